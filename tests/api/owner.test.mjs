// Keys that a run's worker writes belong to the worker: no client adds to them, before, while and after it works, and what
// several runs have in common is made of the worker's points alone.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Daemon, sleep } from './lib.mjs';

let host;
before(async () => {
    host = await Daemon.start();
});
after(() => host.stop());

const job = (steps, more = {}) => ({
    name: 'kept', experiment: 'kept', model: { preset: 'vit_micro', patch: 14, depth: 1 }, diagnostics: { every: 2 },
    data: { dataset: 'digits_gen', split: { rule: 'count', train: 64, val: 32 } }, train: { steps, batch: 32, eval_every: 2 }, ...more,
});
const log = (run, ...points) => host.post(`/api/v1/runs/${run}/metrics`, { points });
const point = (key, step = 1000000, value = 0.0001) => ({ key, step, value });
async function submitted(document) {
    const reply = await host.post('/api/v1/jobs', document);
    assert.equal(reply.status, 201, reply.text);
    return reply.json;
}
async function reach(run, state) {
    for (let i = 0; i < 600; i++) {
        const now = (await host.get(`/api/v1/runs/${run}`)).json;
        if (now.state === state)
            return now;
        await sleep(50);
    }
    throw new Error(`run ${run} is not ${state}`);
}

test('an ended run, a running one and one that waits refuse their own keys, by place and with a way out', async () => {
    const ended = (await submitted(job(6, { tags: { of: 'these' } }))).run_ids[0];
    await reach(ended, 'ended');
    const before = (await host.get(`/api/v1/runs/${ended}/metrics`)).json.series;
    const running = (await submitted(job(1000000))).run_ids[0], waiting = (await submitted(job(6))).run_ids[0];
    await reach(running, 'running');
    for (const run of [ended, running, waiting])
        for (const key of ['loss/val', 'acc/val', 'loss/train', 'attn/fro/1', 'sys/cpu', 'system/gpu.0/power']) {
            const reply = await log(run, point('mine/x', 1), point(key));
            assert.equal(reply.status, 409, `${run} ${key}`);
            assert.equal(reply.json.detail, `points/1/key: the run itself writes ${key}; use another prefix, such as mine/${key}`);
            assert.equal(reply.json.errors[0].pointer, '#/points/1/key');
        }
    /* Nothing of such a batch is kept, and what the worker writes is all that it wrote. */
    assert.deepEqual((await host.get(`/api/v1/runs/${ended}/metrics`)).json.series, before);
    assert.equal((await log(ended, point('mine/loss/val', 1, 7), point('ppl/val', 1, 7))).status, 200);
    for (const series of before)
        assert.equal((await log(ended, point(series.key))).status, 409, series.key);
    const own = before.find(s => s.key === 'loss/val');
    const { rows } = (await host.get('/api/v1/aggregate?by=tag:of&metric=loss/val&value=min')).json;
    assert.deepEqual([rows[0].label, rows[0].metrics['loss/val'].mean], ['these', own.min]);
    const best = (await host.get(`/api/v1/runs/${ended}`)).json.best;
    assert.equal(best.value, before.find(s => s.key === 'acc/val').max);
    assert.equal((await host.post(`/api/v1/runs/${running}/cancel`)).status, 200);
});

test('in a run of one’s own every key is one’s own', async () => {
    const { id } = (await host.post('/api/v1/runs', {})).json;
    assert.equal((await log(id, point('loss/val', 1, 2), point('system/gpu.0/power', 1, 300))).status, 200);
    assert.equal((await log(id, point('loss/val', 2, 1))).status, 200);
    await host.post(`/api/v1/runs/${id}/finish`, { outcome: 'succeeded' });
});
