// Doing again what failed, and pausing single runs, with real workers: numbers stay, attempts are added, checkpoints are
// gone on from; every wrong state answers 409 with a sentence.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { killWorker } from '../lib/worker.mjs';
import { build, Daemon, sleep } from './lib.mjs';

let host;
before(async () => {
    host = await Daemon.start();
});
after(() => host.stop());

const endless = more => ({
    name: 'endless', model: { preset: 'vit_micro', patch: 14, depth: 1 }, diagnostics: { every: 0 }, resources: { max_restarts: 0 },
    data: { dataset: 'digits_gen', split: { rule: 'count', train: 64, val: 32 } }, train: { steps: 100000000, batch: 8, eval_every: 1000000 }, ...more,
});
const command = (what, verb, headers = {}) => host.post(`/api/v1/${what}/${verb}`, {}, { headers });
async function run(id) {
    return (await host.get(`/api/v1/runs/${id}`)).json;
}
async function reach(id, wanted) {
    for (let i = 0; i < 600; i++) {
        const now = await run(id);
        if ((now.state === 'ended' ? now.outcome : now.state) === wanted && (wanted !== 'running' || now.step > now.attempt_list.at(-1).start_step))
            return now;
        await sleep(50);
    }
    throw new Error(`run ${id} is not ${wanted}: ${JSON.stringify(await run(id)).slice(0, 600)}`);
}
const kill = id => killWorker(host.dir, id);
async function refused(what, verb, says) {
    const reply = await command(what, verb);
    assert.equal(reply.status, 409, `${what} ${verb}: ${reply.text}`);
    assert.match(reply.json.detail, says);
}

test('runs of a sweep are paused, resumed and retried one by one and together', async () => {
    const job = (await host.post('/api/v1/jobs', endless({ trials: 2 }))).json, [one, two] = job.run_ids;
    await reach(one, 'running');
    await refused(`runs/${one}`, 'resume', /is running: only a paused run/);
    await refused(`runs/${one}`, 'retry', /is running: only a run that has failed/);
    const asked = await command(`runs/${one}`, 'pause');
    assert.deepEqual([asked.status, asked.json.state], [200, 'running']);
    const paused = await reach(one, 'paused');
    assert.deepEqual([paused.reason, paused.attempt_list[0].cause], ['paused', 'paused']);
    assert.equal((await command(`runs/${one}`, 'pause')).status, 200); // asking twice is no error
    assert.equal((await host.get(`/api/v1/jobs/${job.id}`)).json.state, 'running');
    await reach(two, 'running'); // the device is free for the other
    assert.equal((await command(`runs/${one}`, 'resume')).json.state, 'queued');

    kill(two);
    const failed = await reach(two, 'failed');
    assert.match(failed.reason, /killed by signal 9/);
    await refused(`runs/${two}`, 'pause', /is ended: it cannot be paused/);
    const resumed = await reach(one, 'running');
    assert.deepEqual([resumed.attempts, resumed.attempt_list[1].start_step > 0], [2, true]);
    const again = await command(`runs/${two}`, 'retry', { 'idempotency-key': 'again' });
    assert.deepEqual([again.status, again.json.state, again.json.outcome, again.json.ended, again.json.reason], [200, 'queued', null, null, '']);
    assert.deepEqual((await host.get(`/api/v1/jobs/${job.id}`)).json.runs, { total: 2, made: 2, ended: 0, failed: 0, deleted: 0 });
    assert.equal((await command(`runs/${two}`, 'retry', { 'idempotency-key': 'again' })).status, 200); // repeated, not done again

    kill(one);
    await reach(one, 'failed');
    const working = await reach(two, 'running');
    assert.deepEqual([working.attempts, working.attempt_list.map(a => a.n)], [2, [1, 2]]);
    assert.equal((await command(`jobs/${job.id}`, 'retry')).status, 200);
    assert.deepEqual([(await run(one)).state, (await run(two)).state], ['queued', 'running']);
    await host.post(`/api/v1/runs/${two}/cancel`, {});
    const third = await reach(one, 'running');
    assert.deepEqual([third.attempts, third.attempt_list[2].start_step >= resumed.attempt_list[1].start_step], [3, true]);
    await refused(`runs/${two}`, 'retry', /is cancelled: only a run that has failed/);
    await host.post(`/api/v1/jobs/${job.id}/cancel`, {});
    await reach(one, 'cancelled');
    await refused(`jobs/${job.id}`, 'retry', /was cancelled/);
});

test('the failed run of a job of one is retried by either number; so is it paused and resumed', async () => {
    const job = (await host.post('/api/v1/jobs', endless({ name: 'alone' }))).json, [id] = job.run_ids;
    await reach(id, 'running');
    assert.equal((await command(`runs/${id}`, 'pause')).status, 200);
    await reach(id, 'paused');
    assert.equal((await host.get(`/api/v1/jobs/${job.id}`)).json.state, 'paused');
    assert.equal((await command(`runs/${id}`, 'resume')).status, 200);
    await reach(id, 'running');
    for (const what of [`jobs/${job.id}`, `runs/${id}`]) {
        kill(id);
        await reach(id, 'failed');
        const over = (await host.get(`/api/v1/jobs/${job.id}`)).json;
        assert.deepEqual([over.state, over.runs.failed, /signal 9/.test(over.reason)], ['failed', 1, true]);
        await refused(`jobs/${job.id}`, 'resume', /is failed: only a paused job can be resumed/);
        const stale = await command(what, 'retry', { 'if-match': '"1"' });
        assert.equal(stale.status, 412);
        assert.equal((await command(what, 'retry')).status, 200);
        const now = (await host.get(`/api/v1/jobs/${job.id}`)).json;
        assert.ok(['queued', 'running'].includes(now.state) && now.reason === '' && now.ended === null, JSON.stringify(now));
        await reach(id, 'running');
    }
    assert.equal((await run(id)).attempts, 4);
    for (const verb of ['pause', 'resume', 'retry']) {
        assert.equal((await host.post(`/api/v1/runs/${id}/${verb}`, { why: 1 })).status, 422);
        assert.equal((await host.post(`/api/v1/runs/9999/${verb}`, {})).status, 404);
    }
    await host.post(`/api/v1/jobs/${job.id}/cancel`, {});
    await reach(id, 'cancelled');
    execFileSync(path.join(build, 'bin/polyd'), [`--state-dir=${host.dir}/state`, 'verify'], { env: { ...process.env, POLYD_CONFIG: '' } });
});

test('a run paused by itself stays so over a restart of polyd', async () => {
    const job = (await host.post('/api/v1/jobs', endless({ name: 'held', trials: 2 }))).json, [one, two] = job.run_ids;
    await reach(one, 'running');
    await command(`runs/${two}`, 'pause');
    await command(`runs/${one}`, 'pause');
    const { dir } = host;
    await host.stop({ keep: true });
    host = await Daemon.start([], dir);
    await reach(one, 'paused');
    assert.equal((await run(two)).state, 'paused');
    await host.post(`/api/v1/jobs/${job.id}/pause`, {});
    await refused(`runs/${one}`, 'resume', /paused as a whole/);
    await host.post(`/api/v1/jobs/${job.id}/resume`, {}); // all its runs
    await reach(one, 'running');
    assert.equal((await run(two)).state, 'queued');
    await host.post(`/api/v1/jobs/${job.id}/cancel`, {});
    await reach(one, 'cancelled');
});
