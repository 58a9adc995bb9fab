// A run that was stopped and went on computes what one computes that never stopped: held against the reference, which
// knows of no stop.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { until } from '../lib/daemon.mjs';
import { Rig, agree, imageJob, merge, nystromJob, swinJob, xcitJob } from './rig.mjs';
import { train } from './reference/train.mjs';

let rig;
before(async () => { rig = await Rig.start(); });
after(() => rig?.stop());

/** Each evaluation of the large validation part gives the test time to come in between. */
const long = more => imageJob({
    data: { path: 'tests/long' }, model: { depth: 1 }, diagnostics: { every: 0 }, ...more,
    train: { steps: 40, eval_every: 1, dropout: 0.2, ema: 0.9, checkpoint_every: { steps: 3 }, keep: { best: 0, latest: 50 }, ...more?.train },
});

const now = id => rig.daemon.get(`/api/v1/runs/${id}`);
const folder = id => path.join(rig.daemon.stateDir, 'runs', String(id), 'checkpoints');
const fileOf = step => `step-${String(step).padStart(12, '0')}.safetensors`;
const goesOn = async id => {
    const run = await now(id);
    if (run.state === 'ended')
        throw Object.assign(new Error(`the run was over before the test came in between: ${run.reason}`), { final: true });
    return run;
};

/** Waits for the file of a checkpoint: it is there at once, while progress is reported twice a second. */
const written = (id, step) => until(`the checkpoint of step ${step}`, async () => {
    if (existsSync(path.join(folder(id), fileOf(step))))
        return true;
    await goesOn(id);
    return false;
}, { every: 5 });
const reach = (id, step) => until(`step ${step}`, async () => (await goesOn(id)).step >= step, { every: 5 });

async function pause(job, id) {
    await rig.daemon.post(`/api/v1/jobs/${job}/pause`);
    await until('the pause', async () => (await now(id)).state === 'paused', { every: 10 });
}

/** Everything but validation, which the reference leaves out. */
async function holds(id, job, tolerance = 1e-9) {
    const got = await rig.collect(id), s = rig.settings(job), want = { settings: s, ...train(s, { train: rig.feed(job).train }) };
    for (const key of [...got.series.keys()].filter(key => /val|test/.test(key)))
        got.series.delete(key);
    want.files = [...got.checkpoints.keys()].sort((a, b) => a - b);
    assert.ok(want.files.includes(40));
    agree(got, want, { tolerance });
    return got.run;
}

test('a run that was paused and resumed', { timeout: 120000 }, async () => {
    const job = long(), { job: jobId, run: id } = await rig.daemon.submit(job);
    await written(id, 6);
    await pause(jobId, id);
    const { step } = await now(id);
    assert.ok(step >= 6 && step < 40, `paused at step ${step}`);
    await rig.daemon.post(`/api/v1/jobs/${jobId}/resume`);
    const run = await holds(id, job);
    assert.equal(run.attempts, 2);
});

/** Another file, whole by its own digest: as if the worker had ended between writing the file again and its report. */
function writtenAgain(file, change = bytes => { bytes[bytes.length - 8] ^= 1; }) {
    const bytes = readFileSync(file), key = '"polyd.sha256":"', at = bytes.indexOf(key) + key.length;
    change(bytes);
    bytes.fill('0', at, at + 64);
    bytes.write(createHash('sha256').update(bytes).digest('hex'), at);
    writeFileSync(file, bytes);
    return createHash('sha256').update(bytes).digest('hex');
}

test('a file that polyd has another digest of is recorded again when a run resumes from it', { timeout: 120000 }, async () => {
    const { job: jobId, run: id } = await rig.daemon.submit(long());
    await written(id, 3);
    await pause(jobId, id);
    const list = async () => (await rig.daemon.get(`/api/v1/runs/${id}/checkpoints`)).checkpoints, [{ step, digest }] = await list();
    const again = writtenAgain(path.join(folder(id), fileOf(step)));
    assert.notEqual(again, digest);
    await rig.daemon.post(`/api/v1/jobs/${jobId}/resume`);
    await rig.daemon.reach(id, 'succeeded');
    assert.equal((await list()).filter(one => one.step === step).sort((a, b) => Number(a.id) - Number(b.id)).at(-1).digest, again);
});

test('a checkpoint whose network this version makes otherwise fails the run at once', { timeout: 120000 }, async () => {
    // The checkpoint of the pause is the only one: the run is long enough to be paused before it writes another.
    const { job: jobId, run: id } = await rig.daemon.submit(long({ attention: { activation: 'poly', degree: 3, scale: 'fixed' }, train: { steps: 100000, checkpoint_every: { steps: 100000 } } }));
    await reach(id, 3);
    await pause(jobId, id);
    const [{ step }] = (await rig.daemon.get(`/api/v1/runs/${id}/checkpoints`)).checkpoints, degree = '"polyd.model.degree":"';
    writtenAgain(path.join(folder(id), fileOf(step)), bytes => {
        assert.equal(bytes.write(`${degree}5`, bytes.indexOf(`${degree}3`)), degree.length + 1);
    });
    await rig.daemon.post(`/api/v1/jobs/${jobId}/resume`);
    const run = await until('the end', async () => { const row = await now(id); return row.state === 'ended' && row; });
    assert.equal(run.outcome, 'failed');
    assert.match(run.reason, /another version wrote the checkpoint: its 'polyd.model.degree'/);
    assert.equal(run.attempts, 2);
});

test('a Swin that was paused and resumed', { timeout: 120000 }, async () => {
    const job = swinJob(merge(long(), { model: { arch: 'swin', width: undefined, depth: undefined, heads: undefined, patch: 2 },
        attention: { activation: 'poly', scale: 'learned', dropout: 0.2 }, train: { drop_path: 0.3 } })), { job: jobId, run: id } = await rig.daemon.submit(job);
    await written(id, 6);
    await pause(jobId, id);
    await rig.daemon.post(`/api/v1/jobs/${jobId}/resume`);
    const run = await holds(id, job);
    assert.equal(run.attempts, 2);
});

test('an XCiT that was paused and resumed, buffers included', { timeout: 120000 }, async () => {
    const job = xcitJob(merge(long(), { model: { arch: 'xcit' }, attention: { activation: 'poly', scale: 'learned', dropout: 0.2 },
        train: { drop_path: 0.3, accumulation: 2 } })), { job: jobId, run: id } = await rig.daemon.submit(job);
    await written(id, 6);
    await pause(jobId, id);
    await rig.daemon.post(`/api/v1/jobs/${jobId}/resume`);
    const run = await holds(id, job);
    assert.equal(run.attempts, 2);
});

test('a Nystromformer that was paused and resumed', { timeout: 120000 }, async () => {
    const job = nystromJob({ data: { split: { train: 60, val: 4000, test: 5 } }, model: { depth: 1 }, diagnostics: { every: 0 }, attention: { activation: 'poly', scale: 'learned' },
        train: { ...long().train, accumulation: 2 } }), { job: jobId, run: id } = await rig.daemon.submit(job);
    await written(id, 6);
    await pause(jobId, id);
    await rig.daemon.post(`/api/v1/jobs/${jobId}/resume`);
    const run = await holds(id, job, 1e-7); // the pseudo-inverse enlarges differences of rounding
    assert.equal(run.attempts, 2);
});

test('a run whose worker was killed goes on from its last checkpoint', { timeout: 120000 }, async () => {
    const job = long({ train: { optimizer: { name: 'msgdw', lr: 0.05 }, accumulation: 2, seed: 4 } }), { run: id } = await rig.daemon.submit(job);
    await written(id, 9);
    rig.kill();
    const run = await holds(id, job);
    assert.equal(run.attempts, 2);
});

/** Scalars of each kind: of the heads, of the whole model, of a layer; two are trained in another form. */
const scalars = more => merge(long(), merge({ model: { depth: 2 }, train: { steps: 24, keep: { best: 0, latest: 50 } }, attention: { activation: 'formula', formula: 'c*s^3/(a+abs(s)) + b*s/n', dropout: 0.2,
    params: { a: { init: 1, per: 'head', form: 'softplus' }, b: { init: 0.1, per: 'global' }, c: { init: '1/sqrt(n)', per: 'layer', form: 'log' } } } }, more ?? {}));
/** Parameters, averages and the optimiser's states of all checkpoints that both runs keep, by bits. */
function sameBits(a, b) {
    const steps = [...a.checkpoints.keys()].filter(step => b.checkpoints.has(step));
    assert.ok(steps.includes(24) && steps.length > 3);
    for (const step of steps) {
        const [x, y] = [a, b].map(({ checkpoints }) => checkpoints.get(step).tensors);
        assert.deepEqual([...x.keys()], [...y.keys()]);
        for (const [name, tensor] of x)
            assert.deepEqual(y.get(name), tensor, `${name} at step ${step}`);
    }
    assert.ok([...a.checkpoints.get(24).tensors.keys()].filter(name => /formula_[abc]/.test(name)).length >= 5);
}

test('a formula with three scalars: two runs, two threads, and a run that was killed have the same bits; two ranks agree', { timeout: 300000 }, async () => {
    const plain = await rig.run(scalars());
    sameBits(plain, await rig.run(scalars()));
    sameBits(plain, await rig.run(scalars({ resources: { threads: 2 } })));
    const { run: id } = await rig.daemon.submit(scalars());
    await written(id, 6);
    rig.kill();
    const killed = await rig.collect(id);
    assert.equal(killed.run.attempts, 2);
    sameBits(plain, killed);
    const ranks = await rig.run(scalars({ resources: { slots: 2 } }));
    for (const [name, tensor] of plain.checkpoints.get(24).tensors)
        if (!name.startsWith('polyd.')) {
            const other = [...ranks.checkpoints.get(24).tensors.get(name).data];
            [...tensor.data].forEach((v, i) => assert.ok(Math.abs(Number(other[i]) - Number(v)) <= 1e-9 * Math.max(1, Math.abs(Number(v))), `${name}[${i}]: ${other[i]} and ${v}`));
        }
});
