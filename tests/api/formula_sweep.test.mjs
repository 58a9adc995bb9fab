// A list of formulas, from one request to a comparison, a version of a model and its answers.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { Daemon, build, sleep } from './lib.mjs';

const here = existsSync(path.join(build, 'bin/polyd')) && existsSync(path.join(build, 'bin/polyd-worker'));
const real = { skip: here ? false : 'polyd or polyd-worker is not built', timeout: 300000 };
/** One is typed with room to spare: texts are kept as they came. */
const formulas = ['softmax(s)', 's^3/sqrt(n)', `a * s^3 / (1 + abs(s))${' '.repeat(80)}`, 'sigmoid(s - log(n))'];
const sizes = { model: { preset: 'vit_micro', patch: 7 }, data: { dataset: 'digits_gen', split: { rule: 'count', train: 1024, val: 200 } }, train: { epochs: 4, batch: 32, optimizer: { lr: 0.003 } }, resources: { device: 'cpu', threads: 1 } };
const job = {
    ...sizes, name: 'four formulas', register: 'best-formula', attention: { formulas, params: { a: { init: '1/n', per: 'head' } } }, diagnostics: { every: 20 },
    sweep: { metric: 'acc/val', mode: 'max' },
};
let host, id;

before(async () => {
    if (!here)
        return;
    host = await Daemon.start();
    const reply = await host.post('/api/v1/jobs', job);
    assert.equal(reply.status, 201, reply.text);
    assert.deepEqual(reply.json.warnings, []);
    ({ id } = reply.json);
});
after(() => host?.stop());

/** Of the run's document, after the job has ended. */
async function runsOf() {
    for (;; await sleep(200)) {
        const { json } = await host.get(`/api/v1/jobs/${id}`);
        assert.ok(['queued', 'running', 'done'].includes(json.state), json.reason);
        if (json.state === 'done')
            break;
    }
    const { runs } = (await host.get(`/api/v1/runs?job=${id}`)).json;
    return Promise.all(runs.map(async run => (await host.get(`/api/v1/runs/${run.id}`)).json));
}

test('a list of formulas is one job, whose page compares its runs', real, async () => {
    const runs = await runsOf();
    assert.deepEqual(runs.map(r => r.document.attention.formula).sort(), [...formulas].sort());
    for (const { document: { attention } } of runs)
        assert.deepEqual(Object.keys(attention.params), attention.formula.startsWith('a ') ? ['a'] : [], attention.formula);
    const sweep = (await host.get(`/api/v1/jobs/${id}/sweep?metric=acc/val`)).json;
    assert.deepEqual(sweep.axes, [{ pointer: '/attention/formula', values: formulas }]);
    assert.deepEqual(sweep.table.map(row => row.values['/attention/formula']), formulas);
    for (const row of sweep.table)
        assert.ok(row.metrics['acc/val'].mean > 0.2, `${JSON.stringify(row.values)}: ${row.metrics['acc/val'].mean}`);
    const best = sweep.table.reduce((a, b) => (b.metrics['acc/val'].mean > a.metrics['acc/val'].mean ? b : a));
    assert.equal(sweep.best.value.mean, best.metrics['acc/val'].mean);
    // Of the scalar there is a curve for each layer and head, which begins at 1/n.
    const curves = (await host.get(`/api/v1/jobs/${id}/sweep/curves?key=formula/a/1/1&point=2`)).json.curves;
    assert.equal(curves.length, 1);
    assert.ok(Math.abs(curves[0].data[0].mean - 1 / 16) < 1e-6, JSON.stringify(curves[0].data[0]));
    assert.notEqual(curves[0].data.at(-1).mean, curves[0].data[0].mean);
});

test('the best of a list becomes a version of a model, which answers', real, async () => {
    await runsOf();
    while ((await host.get('/api/v1/models/best-formula/versions/1')).status !== 200)
        await sleep(50);
    const loaded = await host.post('/api/v1/models/best-formula/versions/1/load', undefined);
    assert.equal(loaded.json.state, 'READY', loaded.text);
    const pixels = Array.from({ length: 100 }, (_, k) => JSON.parse(execFileSync(path.join(build, 'bin/polyd-worker'), ['digit', String(7000 + k), String(k % 10)], { encoding: 'utf8' })).pixels).flat();
    const reply = await host.post('/v2/models/best-formula/infer', { inputs: [{ name: 'image', shape: [100, 1, 28, 28], datatype: 'UINT8', data: pixels }] });
    assert.equal(reply.status, 200, reply.text);
    const right = reply.json.outputs.find(o => o.name === 'class').data.filter((c, k) => c === k % 10).length;
    assert.ok(right >= 25, `${right} of 100 digits that no training has seen`); // ten by chance
});

/** The metadata of a safetensors file. */
const metaOf = bytes => JSON.parse(bytes.toString('utf8', 8, 8 + Number(bytes.readBigUInt64LE(0)))).__metadata__;

test('checkpoints keep the text as it was typed beside the digest of its normal form, and load where nothing is known of it', real, async () => {
    const runs = await runsOf(), other = await Daemon.start();
    try {
        for (const run of runs) {
            const { formula } = run.document.attention, file = await host.call('GET', `/api/v1/runs/${run.id}/checkpoints/best/file`);
            const check = (await host.post('/api/v1/formulas/check', { formula })).json, meta = metaOf(file.bytes);
            assert.deepEqual([meta['polyd.formula'], meta['polyd.formula_sha256']], [formula, check.digest]);
            assert.equal(meta['polyd.model.formula'], check.builtin ? undefined : formula);
            const weights = await host.call('GET', `/api/v1/runs/${run.id}/checkpoints/best/weights`);
            assert.equal(metaOf(weights.bytes)['polyd.formula'], formula);
        }
        // The rational has scalars of its own: another polyd serves its file and gives the same probabilities.
        const run = runs.find(r => r.document.attention.formula.startsWith('a ')), pixels = Array.from({ length: 784 }, (_, i) => (i * 37) % 256);
        const file = await host.call('GET', `/api/v1/runs/${run.id}/checkpoints/best/file`), ask = { inputs: [{ name: 'image', shape: [1, 1, 28, 28], datatype: 'UINT8', data: pixels }] };
        await host.post('/api/v1/models/here/versions', { run_id: run.id });
        const sent = await other.call('POST', '/api/v1/models/there/versions', { body: file.bytes, headers: { 'content-type': 'application/octet-stream' } });
        assert.equal(sent.status, 201, sent.text);
        const said = [];
        for (const [where, model] of [[host, 'here'], [other, 'there']]) {
            assert.equal((await where.post(`/api/v1/models/${model}/versions/1/load`, undefined)).json.state, 'READY');
            said.push((await where.post(`/v2/models/${model}/infer`, ask)).json.outputs.find(o => o.name === 'probabilities').data);
        }
        assert.deepEqual(said[0], said[1]);
        // Two checkpoints of one formula make an average, which has it too.
        const mean = await host.post('/api/v1/models/mean/versions', { average: [{ run: run.id, checkpoint: 'best' }, { run: run.id, checkpoint: 'last' }] });
        assert.equal(mean.status, 201, mean.text);
        assert.equal(metaOf((await host.call('GET', '/api/v1/models/mean/versions/1/file')).bytes)['polyd.formula'], run.document.attention.formula);
    } finally {
        await other.stop();
    }
});

test('a formula whose normal form is too long to print trains, and its checkpoint has no digest', real, async () => {
    const names = [...'abcdefghijklmn'].map(c => `${c}1`), steps = names.map((name, k) => `${name} = sin(${names[k - 1] ?? 's'}) + cos(${names[k - 1] ?? 's'});`);
    const formula = `${steps.join(' ')} n1`, check = (await host.post('/api/v1/formulas/check', { formula })).json;
    assert.deepEqual([check.canonical, check.digest], [null, null]);
    const made = await host.post('/api/v1/jobs', { ...sizes, attention: { activation: 'formula', formula }, train: { steps: 2, batch: 8 } });
    assert.equal(made.status, 201, made.text);
    let state;
    do {
        await sleep(100);
        state = (await host.get(`/api/v1/jobs/${made.json.id}`)).json;
    } while (['queued', 'running'].includes(state.state));
    assert.equal(state.state, 'done', state.reason);
    const [run] = (await host.get(`/api/v1/runs?job=${made.json.id}`)).json.runs;
    const meta = metaOf((await host.call('GET', `/api/v1/runs/${run.id}/checkpoints/last/file`)).bytes);
    assert.deepEqual([meta['polyd.formula'], meta['polyd.formula_sha256']], [formula, undefined]);
});

test('a run whose losses are no numbers has no best checkpoint, and its first layer is to blame', real, async () => {
    // In floats infinity over infinity, in doubles near 1.
    const made = await host.post('/api/v1/jobs', { ...sizes, attention: { activation: 'formula', formula: '(1e15*s + 1)^4/(1 + (1e15*s)^4)' }, train: { steps: 3, batch: 16 }, diagnostics: { every: 1 } });
    assert.equal(made.status, 201, made.text);
    const [id] = made.json.run_ids;
    while ((await host.get(`/api/v1/runs/${id}`)).json.state !== 'ended')
        await sleep(100);
    const { checkpoints, metric } = (await host.get(`/api/v1/runs/${id}/checkpoints`)).json;
    assert.equal(metric, 'acc/val');
    assert.deepEqual(checkpoints.map(c => c.kind), ['latest']);
    const { series } = (await host.get(`/api/v1/runs/${id}/series?key=formula_broken/1&key=loss/val&buckets=10`)).json;
    const values = key => series.find(one => one.key === key).data.map(d => d.mean);
    assert.ok(values('formula_broken/1').every(v => v > 0));
    assert.ok(values('loss/val').every(v => v === 'NaN'));
});

test('a wrong formula of a list is named by its place and its character', real, async () => {
    const reply = await host.post('/api/v1/jobs', { ...job, attention: { formulas: ['softmax(s)', 's^3/sqrt(n'], params: {} } });
    assert.equal(reply.status, 422);
    assert.deepEqual(reply.json.errors.map(e => e.pointer), ['#/attention/formulas/1']);
    assert.match(reply.json.errors[0].detail, /character 11/);
});
