// A refusal says which member it is about in its sentence, not only in the pointer beside it.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Host, submit, tinyJob } from './lib.mjs';

let host, job, run;
before(async () => {
    host = await Host.start();
    job = await submit(host);
    run = (await host.post('/api/v1/runs', { name: 'mine' })).json;
    await host.post('/api/v1/models/lm/versions', { run_id: '1' });
    await host.post('/api/v1/groups', { name: 'one' });
});
after(() => host.stop());

async function named(method, target, json, pointer, headers = {}) {
    const reply = await host.call(method, target, { json, headers });
    const where = `${method} ${target} ${JSON.stringify(json).slice(0, 80)}: ${reply.text}`;
    assert.ok(reply.status === 400 || reply.status === 422, where);
    assert.equal(reply.json.errors?.[0].pointer, `#/${pointer}`, where);
    for (const sentence of [reply.json.detail, reply.json.errors[0].detail])
        assert.ok(sentence.includes(pointer.split('/').at(-1)), where);
}

test('every refused member is named in the sentence', async () => {
    const etag = (await host.get(`/api/v1/jobs/${job.id}`)).headers.etag, match = { 'if-match': etag };
    for (const [member, value] of [['name', ''], ['name', 5], ['notes', 1], ['tags', 'a'], ['tags', { a: 1 }], ['priority', 1000], ['colour', 1]])
        await named('PATCH', `/api/v1/jobs/${job.id}`, { [member]: value }, member, match);
    await named('POST', `/api/v1/jobs/${job.id}/cancel`, { reason: 5 }, 'reason');
    await named('POST', '/api/v1/devices/cpu:0/drain', { reason: 'x'.repeat(5000) }, 'reason');
    for (const [member, value] of [['name', ''], ['experiment', 1], ['notes', 1], ['config', [1]], ['total_steps', 0], ['colour', 1]])
        await named('POST', '/api/v1/runs', { [member]: value }, member);
    await named('POST', `/api/v1/runs/${run.id}/finish`, { outcome: 'well' }, 'outcome');
    await named('POST', `/api/v1/runs/${run.id}/finish`, { outcome: 'failed', reason: 1 }, 'reason');
    await named('POST', `/api/v1/runs/${run.id}/logs`, { text: 1 }, 'text');
    for (const [body, member] of [[{ description: 'a' }, 'name'], [{ name: 'a b' }, 'name'], [{ name: 'a', description: 1 }, 'description'], [{ name: 'a', runs: 1 }, 'runs'], [{ name: 'a', runs: ['x'] }, 'runs']])
        await named('POST', '/api/v1/groups', body, member);
    await named('POST', '/api/v1/models/lm/versions', { run_id: 1 }, 'run_id');
    await named('PUT', '/api/v1/models/lm/aliases/live', {}, 'version');
    await named('POST', '/api/v1/jobs', tinyJob({ depends_on: [{ job: '1', when: 'afterok' }] }), 'depends_on');
});

test('a refused point is named with its place', async () => {
    const good = { key: 'loss/train', step: 1, value: 2 };
    for (const [point, pointer] of [[{ ...good, step: 'a' }, 'points/1/step'], [{ ...good, key: '' }, 'points/1/key'], [{ ...good, value: 'high' }, 'points/1/value'], [{ ...good, key: 5 }, 'points/1/key'], [5, 'points/1']])
        await named('POST', `/api/v1/runs/${run.id}/metrics`, { points: [good, point] }, pointer);
    await named('POST', `/api/v1/runs/${run.id}/metrics`, { dots: [] }, 'dots');
    const other = await host.post(`/api/v1/runs/${run.id}/metrics`, { points: [good, { ...good, step: 'a' }] });
    assert.match(other.json.detail, /^points\/1\/step: /);
});
