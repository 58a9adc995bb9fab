// A refusal says which member it is about in its sentence, not only in the pointer beside it.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
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
    for (const [member, value] of [['name', ''], ['name', 5], ['notes', 1], ['tags', 'a'], ['priority', 1000], ['colour', 1]])
        await named('PATCH', `/api/v1/jobs/${job.id}`, { [member]: value }, member, match);
    assert.equal((await host.call('PATCH', `/api/v1/jobs/${job.id}`, { json: { tags: { 'a/b~': 1 } }, headers: match })).json.errors[0].pointer, '#/tags/a~1b~0');
    await named('PATCH', `/api/v1/jobs/${job.id}`, { tags: { right: 'b', a: 1 } }, 'tags/a', match);
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
    for (const body of [{}, { run_id: '1', checkpoint_id: '1' }])
        assert.equal((await host.post('/api/v1/models/lm/versions', body)).json.errors?.[0].pointer, '#', JSON.stringify(body));
    await named('PUT', '/api/v1/models/lm/aliases/live', {}, 'version');
    await named('POST', '/api/v1/jobs', tinyJob({ depends_on: [{ job: '1', when: 'afterok' }] }), 'depends_on');
});

test('what a member names and does not exist is a fault of the member, what the path names is 404', async () => {
    const any = { 'if-match': '*' };
    await named('PATCH', '/api/v1/groups/one', { add: ['1', '999'] }, 'add/1', any);
    await named('POST', '/api/v1/groups', { name: 'two', runs: ['1', '2', '999'] }, 'runs/2');
    await named('POST', '/api/v1/models/lm/versions', { run_id: '999' }, 'run_id');
    await named('POST', '/api/v1/models/lm/versions', { run_id: '1' }, 'run_id'); // it has no checkpoint yet
    await named('POST', '/api/v1/models/lm/versions', { checkpoint_id: '999' }, 'checkpoint_id');
    assert.equal((await host.post('/api/v1/models/lm/versions', { path: 'weights/x' })).json.version, '1');
    await named('PUT', '/api/v1/models/lm/aliases/live', { version: '99' }, 'version', any);
    for (const [method, target, json] of [
        ['PATCH', '/api/v1/groups/none', { add: ['999'] }], ['PUT', '/api/v1/models/none/aliases/a', { version: '1' }], ['DELETE', '/api/v1/models/lm/aliases/none']]) {
        const reply = await host.call(method, target, { json, headers: any });
        assert.deepEqual([reply.status, reply.json.errors], [404, undefined], target);
    }
});

test('a description or a digest that does not fit is named', async () => {
    for (const [body, pointer] of [
        [{ preset: 'vit_huge' }, 'preset'], [{ description: { preset: 'vit_huge' } }, 'description/model/preset'],
        [{ description: { std: [1] } }, 'description/std'], [{ description: { colour: 1 } }, 'description/colour']])
        await named('POST', '/api/v1/models/lm/versions', { path: 'weights/x', ...body }, pointer);
    const headers = { 'content-type': 'application/octet-stream' }, target = '/api/v1/models/lm/versions';
    for (const [query, more, pointer] of [
        [`?sha256=${'0'.repeat(64)}`, {}, '#/sha256'], ['', { 'content-digest': `sha-256=:${Buffer.alloc(32).toString('base64')}:` }, '#/Content-Digest'],
        ['?description=%7B%22colour%22%3A1%7D', {}, '#/description/colour']]) {
        const reply = await host.call('POST', target + query, { body: 'weights', headers: { ...headers, ...more } });
        assert.deepEqual([reply.status, reply.json.errors?.map(error => error.pointer)], [422, [pointer]], reply.text);
    }
});

test('a refused point is named with its place', async () => {
    const good = { key: 'loss/train', step: 1, value: 2 };
    for (const [point, pointer] of [[{ ...good, step: 'a' }, 'points/1/step'], [{ ...good, key: '' }, 'points/1/key'], [{ ...good, value: 'high' }, 'points/1/value'], [{ ...good, key: 5 }, 'points/1/key'], [5, 'points/1']])
        await named('POST', `/api/v1/runs/${run.id}/metrics`, { points: [good, point] }, pointer);
    await named('POST', `/api/v1/runs/${run.id}/metrics`, { dots: [] }, 'dots');
    for (const body of [{}, []]) // the document itself
        assert.equal((await host.post(`/api/v1/runs/${run.id}/metrics`, body)).json.errors[0].pointer, '#', JSON.stringify(body));
    const other = await host.post(`/api/v1/runs/${run.id}/metrics`, { points: [good, { ...good, step: 'a' }] });
    assert.match(other.json.detail, /^points\/1\/step: /);
});

test('a digest header that cannot be read is refused; another algorithm is not checked', async () => {
    const right = createHash('sha256').update('weights').digest('base64'), zeros = Buffer.alloc(32).toString('base64');
    const hex = createHash('sha256').update('weights').digest('hex'), other = `sha-512=:${Buffer.alloc(64).toString('base64')}:`;
    const upload = headers => host.call('POST', '/api/v1/models/digest/versions', { body: 'weights', headers: { 'content-type': 'application/octet-stream', ...headers } });
    for (const header of ['Content-Digest', 'Repr-Digest']) {
        for (const value of [`sha-256=${hex}`, `sha-256=:${hex}:`, `sha-256=${right}`, 'sha-256', 'sha-256=', 'sha-256=:', 'sha-256=::', `sha-256=:${right}`, `SHA-256=${hex}`, `${other}, sha-256=${hex}`, `sha-256=:${right.slice(0, -4)}:`]) {
            const reply = await upload({ [header]: value });
            assert.deepEqual([reply.status, reply.json.errors?.[0].pointer], [422, `#/${header}`], `${value}: ${reply.text}`);
            assert.match(reply.json.detail, /must be sha-256=:BASE64:/, value);
        }
        for (const value of [`SHA-256=:${zeros}:`, `sha-256 = :${zeros}:`, `${other},sha-256=:${zeros}: `]) {
            const reply = await upload({ [header]: value });
            assert.deepEqual([reply.status, reply.json.errors?.[0].pointer], [422, `#/${header}`], `${value}: ${reply.text}`);
            assert.match(reply.json.detail, /differs from/, value);
        }
        for (const value of [`SHA-256=:${right}:`, `sha-256 = :${right}: , ${other}`, other, ''])
            assert.match((await upload({ [header]: value })).json.detail, /the test has no worker/, value); // the bytes were taken
    }
});
