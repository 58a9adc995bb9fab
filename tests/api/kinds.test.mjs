// Kinds of jobs over HTTP, on the real daemon: what a document of each may say, and which checkpoint it names.
import assert from 'node:assert/strict';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { png } from '../wiring/reference/data/files.mjs';
import { build, Daemon } from './lib.mjs';

const skip = existsSync(path.join(build, 'bin/polyd')) && existsSync(path.join(build, 'bin/polyd-worker')) ? false : 'polyd or polyd-worker is not built';
let host, job, run;

const train = {
    name: 'digits', model: { preset: 'vit_micro', width: 8, depth: 1, heads: 2, patch: 14 }, register: 'digits',
    data: { dataset: 'digits_gen', split: { rule: 'count', train: 64, val: 16 } }, diagnostics: { every: 0 }, resources: { device: 'cpu', threads: 1 },
    train: { steps: 4, batch: 16, eval_every: 1, checkpoint_every: { steps: 1 }, keep: { latest: 10, best: 1 } },
};
const post = (document, query = '') => host.post(`/api/v1/jobs${query}`, document);
const evaluate = (more = {}) => ({ kind: 'evaluate', run, resources: { device: 'cpu' }, ...more });
const runOf = async reply => (await host.get(`/api/v1/runs/${reply.json.run_ids[0]}`)).json;

before(async () => {
    if (skip)
        return;
    host = await Daemon.start();
    job = (await post(train)).json;
    [run] = job.run_ids;
    assert.equal((await host.over(job.id)).state, 'done');
});
after(() => host?.stop());

test('the catalogue tells the kinds and what each takes', { skip }, async () => {
    const { kinds } = (await host.get('/api/v1/fields')).json;
    assert.deepEqual(kinds.map(kind => kind.name).slice(0, 3), ['train', 'evaluate', 'selftest']);
    const [trains, evaluates] = kinds;
    assert.ok(trains.curves && trains.takes.includes('sweep') && !trains.takes.includes('split'));
    assert.ok(!evaluates.curves && evaluates.takes.includes('checkpoint') && !evaluates.takes.includes('train'));
});

test('an evaluation is a job with one run, which carries its kind', { skip }, async () => {
    const reply = await post(evaluate());
    assert.equal(reply.status, 201);
    assert.equal(reply.json.kind, 'evaluate');
    assert.match(reply.json.name, /^evaluate of run \d+, step \d+$/);
    assert.equal((await host.over(reply.json.id)).state, 'done');
    const scored = await runOf(reply);
    assert.equal(scored.kind, 'evaluate');
    assert.equal(scored.step, scored.total_steps);
    const { checkpoints } = (await host.get(`/api/v1/runs/${run}/checkpoints`)).json, best = checkpoints.find(c => c.kind === 'best');
    assert.deepEqual([scored.document.evaluate.run, scored.document.evaluate.step, scored.document.evaluate.sha256, scored.document.evaluate.split],
        [run, best.step, best.digest, 'test']);
    assert.ok(existsSync(path.join(host.dir, 'state', scored.document.evaluate.path)));
    const { series } = (await host.get(`/api/v1/runs/${scored.id}/metrics`)).json;
    assert.deepEqual(series.map(s => [s.key, s.step]).sort(), [['acc/test', best.step], ['loss/test', best.step]]);
    // Only where one asks for it is it among others.
    const ids = async query => (await host.get(`/api/v1/runs?${query}`)).json.runs.map(r => r.id);
    assert.deepEqual(await ids('kind=evaluate'), [scored.id]);
    assert.deepEqual(await ids('kind=evaluate&sort=created'), [scored.id]);
    assert.deepEqual(await ids('kind=train'), [run]);
    assert.deepEqual(await ids('kind=external'), []);
    assert.equal((await host.get('/api/v1/runs?kind=walk')).status, 400);
    // It has nothing that could be registered or evaluated again.
    const again = await post(evaluate({ run: scored.id }));
    assert.equal(again.status, 422);
    assert.equal(again.json.errors[0].pointer, '#/checkpoint');
});

test('a version is named by number or alias, or is the highest', { skip }, async () => {
    assert.equal((await host.call('PUT', '/api/v1/models/digits/aliases/prod', { json: { version: '1' }, headers: { 'if-match': '*' } })).status, 200);
    for (const model of ['digits', 'digits:1', 'digits:prod']) {
        const reply = await post({ kind: 'evaluate', model, resources: { device: 'cpu' } }, '?dry_run=1');
        assert.equal(reply.status, 200, model);
        assert.equal(reply.json.document.evaluate.model, 'digits:1');
        assert.equal(reply.json.plan_error, null);
        assert.equal(reply.json.plan.scored_samples, 16);
        assert.ok(reply.json.plan.total_bytes > 0);
    }
});

test('what an evaluation cannot be is 422 and says where', { skip }, async () => {
    const refuses = async (document, pointer, words) => {
        const reply = await post(document);
        assert.equal(reply.status, 422, JSON.stringify(reply.json));
        const found = reply.json.errors.find(error => error.pointer === pointer);
        assert.ok(found, `${pointer} in ${JSON.stringify(reply.json.errors)}`);
        assert.match(found.detail, words);
    };
    await refuses({ kind: 'evaluate' }, '#/model', /is needed/);
    await refuses({ kind: 'evaluate', model: 'nothing' }, '#/model', /no model 'nothing'/);
    await refuses({ kind: 'evaluate', model: 'digits:9' }, '#/model', /no version 9/);
    await refuses({ kind: 'evaluate', model: 'digits:none' }, '#/model', /none/);
    await refuses(evaluate({ run: '999' }), '#/run', /no run 999/);
    await refuses(evaluate({ model: 'digits' }), '#/run', /not both/);
    await refuses(evaluate({ checkpoint: 77 }), '#/checkpoint', /no checkpoint at step 77/);
    await refuses(evaluate({ split: 'all' }), '#/split', /test, val or train/);
    await refuses(evaluate({ train: { batch: 8 } }), '#/train', /omit it/);
    await refuses(evaluate({ attention: { activation: 'poly' } }), '#/attention', /omit it/);
    await refuses(evaluate({ sweep: { axes: [] } }), '#/sweep', /a job of kind evaluate has no sweep; its members are name/);
    await refuses(evaluate({ register: 'x' }), '#/register', /has no register/);
    await refuses(evaluate({ trials: 2 }), '#/trials', /has no trials/);
    await refuses(evaluate({ chekpoint: 'best' }), '#/chekpoint', /unknown key/);
    await refuses(evaluate({ resources: { slots: 2, device: 'cpu' } }), '#/resources/slots', /one device/);
    await refuses(evaluate({ data: { image_size: 14 } }), '#/data/image_size', /is fixed by the checkpoint to 28/);
    await refuses(evaluate({ data: { dataset: 'text', path: 'text/a.txt' } }), '#/data/dataset', /has no images/);
    await refuses({ kind: 'walk' }, '#/kind', /must be one of/);
    await refuses({ kind: 'external' }, '#/kind', /must be one of/);
    await refuses({ ...train, evaluate: { split: 'val' } }, '#/evaluate', /a job of kind train has no evaluate/);
    const own = (await host.post('/api/v1/runs', { name: 'own' })).json.id;
    await refuses(evaluate({ run: own }), '#/run', /is of kind external, which has no model/);
});

test('a folder with other classes, or fewer of them, does not fit', { skip, timeout: 120000 }, async () => {
    const folder = (name, classes) => {
        for (const part of ['train', 'val', 'test'])
            for (const [i, label] of classes.entries()) {
                mkdirSync(path.join(host.dir, 'text', name, part, label), { recursive: true });
                writeFileSync(path.join(host.dir, 'text', name, part, label, 'x.png'), png({ height: 8, width: 8, channels: 3, data: new Uint8Array(192).fill(40 * i) }));
            }
        return { dataset: 'image_folder', path: `text/${name}` };
    };
    const rest = { ...train, register: null };
    const trained = (await post({ ...rest, data: { ...folder('pets', ['cat', 'dog', 'eel']), image_size: 28 }, train: { ...rest.train, batch: 2, steps: 2 } })).json;
    assert.equal((await host.over(trained.id)).state, 'done');
    const against = data => post(evaluate({ run: trained.run_ids[0], data }));
    assert.equal((await against(folder('more', ['cat', 'dog', 'eel']))).status, 201);
    for (const [name, classes, pointer, words] of [
        ['two', ['cat', 'dog'], '#/data/dataset', /has 2 classes, the checkpoint 3/], ['four', ['cat', 'dog', 'eel', 'fox'], '#/data/dataset', /has 4 classes/],
        ['named', ['cat', 'dog', 'emu'], '#/data/path', /class 2 is 'emu', but 'eel' in the checkpoint/]]) {
        const reply = await against(folder(name, classes));
        assert.deepEqual([reply.status, reply.json.errors?.[0].pointer], [422, pointer], name);
        assert.match(reply.json.errors[0].detail, words);
    }
    const grey = await post(evaluate({ data: folder('pets', ['cat', 'dog', 'eel']) }));
    assert.deepEqual([grey.status, grey.json.errors[0].pointer], [422, '#/data/dataset']);
    assert.match(grey.json.errors[0].detail, /3 channels, the checkpoint reads 1/);
});

test('the self-test goes through the queue as any job', { skip }, async () => {
    const reply = await post({ kind: 'selftest', name: 'does it work', resources: { device: 'cpu' } });
    assert.equal(reply.status, 201);
    assert.equal((await host.over(reply.json.id)).state, 'done');
    const tested = await runOf(reply);
    assert.deepEqual([tested.kind, tested.outcome, tested.step], ['selftest', 'succeeded', 200]);
    assert.deepEqual(Object.keys(tested.document).sort(), ['depends_on', 'experiment', 'kind', 'name', 'notes', 'resources', 'schema', 'tags']);
    assert.equal((await post({ kind: 'selftest', model: {} })).json.errors[0].pointer, '#/model');
    assert.match((await post(evaluate({ run: tested.id }))).json.errors[0].detail, /is of kind selftest, which has no model/);
});

test('a run that is deleted while its evaluation waits: the evaluation says so', { skip }, async () => {
    const other = (await post({ ...train, name: 'other', register: null })).json;
    await host.over(other.id);
    // The only slot is held, so the evaluation waits.
    const long = (await post({ ...train, name: 'long', register: null, train: { ...train.train, steps: 1000000 } })).json;
    const ask = key => host.call('POST', '/api/v1/jobs', { json: evaluate({ run: other.run_ids[0] }), headers: { 'idempotency-key': key } });
    const reply = await ask('once');
    assert.equal(reply.status, 201);
    assert.equal((await host.call('DELETE', `/api/v1/jobs/${other.id}`, { headers: { 'if-match': '*' } })).status, 204);
    // The same request again has its answer; a new one has no checkpoint.
    const again = await ask('once'), late = await ask('twice');
    assert.deepEqual([again.status, again.json.id, again.headers['idempotency-replayed']], [201, reply.json.id, 'true']);
    assert.deepEqual([late.status, late.json.errors[0].pointer], [422, '#/run']);
    await host.post(`/api/v1/jobs/${long.id}/cancel`, {});
    assert.equal((await host.over(reply.json.id)).state, 'failed');
    const scored = await runOf(reply);
    assert.match(scored.reason, /checkpoint of run \d+ at step \d+ cannot be read/);
    assert.equal(scored.attempts, 1);
});
