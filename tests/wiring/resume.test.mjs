// A run that was stopped and went on computes what one computes that never stopped: held against the reference, which
// knows of no stop.
import assert from 'node:assert/strict';
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
const reach = (id, step) => until(`step ${step}`, async () => {
    const run = await now(id);
    assert.notEqual(run.state, 'ended', `the run was over before the test came in between: ${run.reason}`);
    return run.step >= step && run;
}, { every: 5 });

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
    const job = long(), { run: id } = await rig.daemon.submit(job);
    const { job_id: jobId } = await reach(id, 7);
    await rig.daemon.post(`/api/v1/jobs/${jobId}/pause`);
    await until('the pause', async () => (await now(id)).state === 'paused', { every: 10 });
    const { step } = await now(id);
    assert.ok(step >= 7 && step < 40, `paused at step ${step}`);
    await rig.daemon.post(`/api/v1/jobs/${jobId}/resume`);
    const run = await holds(id, job);
    assert.equal(run.attempts, 2);
});

test('a Swin that was paused and resumed', { timeout: 120000 }, async () => {
    const job = swinJob(merge(long(), { model: { arch: 'swin', width: undefined, depth: undefined, heads: undefined, patch: 2 },
        attention: { activation: 'poly', scale: 'learned', dropout: 0.2 }, train: { drop_path: 0.3 } })), { run: id } = await rig.daemon.submit(job);
    const { job_id: jobId } = await reach(id, 5);
    await rig.daemon.post(`/api/v1/jobs/${jobId}/pause`);
    await until('the pause', async () => (await now(id)).state === 'paused', { every: 10 });
    await rig.daemon.post(`/api/v1/jobs/${jobId}/resume`);
    const run = await holds(id, job);
    assert.equal(run.attempts, 2);
});

test('an XCiT that was paused and resumed, buffers included', { timeout: 120000 }, async () => {
    const job = xcitJob(merge(long(), { model: { arch: 'xcit' }, attention: { activation: 'poly', scale: 'learned', dropout: 0.2 },
        train: { drop_path: 0.3, accumulation: 2 } })), { run: id } = await rig.daemon.submit(job);
    const { job_id: jobId } = await reach(id, 5);
    await rig.daemon.post(`/api/v1/jobs/${jobId}/pause`);
    await until('the pause', async () => (await now(id)).state === 'paused', { every: 10 });
    await rig.daemon.post(`/api/v1/jobs/${jobId}/resume`);
    const run = await holds(id, job);
    assert.equal(run.attempts, 2);
});

test('a Nystromformer that was paused and resumed', { timeout: 120000 }, async () => {
    const job = nystromJob({ data: { split: { train: 60, val: 4000, test: 5 } }, model: { depth: 1 }, diagnostics: { every: 0 }, attention: { activation: 'poly', scale: 'learned' },
        train: { ...long().train, accumulation: 2 } }), { run: id } = await rig.daemon.submit(job);
    const { job_id: jobId } = await reach(id, 5);
    await rig.daemon.post(`/api/v1/jobs/${jobId}/pause`);
    await until('the pause', async () => (await now(id)).state === 'paused', { every: 10 });
    await rig.daemon.post(`/api/v1/jobs/${jobId}/resume`);
    const run = await holds(id, job, 1e-7); // the pseudo-inverse enlarges differences of rounding
    assert.equal(run.attempts, 2);
});

test('a run whose worker was killed goes on from its last checkpoint', { timeout: 120000 }, async () => {
    const job = long({ train: { optimizer: { name: 'msgdw', lr: 0.05 }, accumulation: 2, seed: 4 } }), { run: id } = await rig.daemon.submit(job);
    await reach(id, 10);
    rig.kill();
    const run = await holds(id, job);
    assert.equal(run.attempts, 2);
});
