// Jobs and runs: submit, dry run, pages, tags of versions, commands, repeated requests.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { Host, sleep, submit, tinyJob } from './lib.mjs';

let host;
before(async () => { host = await Host.start(); });
after(() => host.stop());

test('a submitted job is there, with its runs, under its tag', async () => {
    const reply = await host.post('/api/v1/jobs', tinyJob({ name: 'first', tags: { team: 'a', colour: 'blue "x"' }, notes: '**hi**', experiment: 'E01', trials: 3 }));
    assert.equal(reply.status, 201);
    assert.equal(reply.headers.location, `/api/v1/jobs/${reply.json.id}`);
    assert.equal(reply.json.runs.total, 3);
    assert.deepEqual(reply.json.tags, { team: 'a', colour: 'blue "x"' });
    const shown = await host.get(reply.headers.location);
    assert.equal(shown.headers.etag, reply.headers.etag);
    const { warnings, run_ids: ids, ...job } = reply.json;
    assert.deepEqual(shown.json, { ...job, bytes: { checkpoints: 0, logs: 0, blobs: 0, total: 0 } });
    assert.deepEqual(warnings, []);
    const runs = (await host.get(`/api/v1/runs?job=${job.id}&order=oldest`)).json.runs;
    assert.deepEqual(runs.map(run => run.index), [0, 1, 2]);
    assert.deepEqual(ids, runs.map(run => run.id));
    const run = (await host.get(`/api/v1/runs/${runs[1].id}`)).json;
    assert.equal(run.document.train.seed, 1);
    assert.deepEqual(run.attempt_list, []);
    assert.deepEqual(run.queue, { position: Number(run.id), reason: 'waiting for a CPU slot: all are in use' });
});

test('the document comes back as sent: text is never lost or executed', async () => {
    const name = 'žluťoučký <script>alert(1)</script> \u2028 "q" \\ \u0001';
    const job = await submit(host, { name });
    assert.equal((await host.get(`/api/v1/jobs/${job.id}`)).json.name, name);
});

test('all errors of a document come at once, with pointers', async () => {
    const reply = await host.post('/api/v1/jobs', tinyJob({ attention: { activation: 'poly', degree: 'three' }, attenion: {}, train: { steps: -1 } }));
    assert.equal(reply.status, 422);
    const pointers = reply.json.errors.map(error => error.pointer);
    for (const pointer of ['#/attention/degree', '#/attenion', '#/train/steps'])
        assert.ok(pointers.includes(pointer), `${pointer} in ${pointers}`);
    assert.match(reply.json.errors.find(e => e.pointer === '#/attenion').detail, /attention/);
    assert.equal(reply.json.error.message, reply.json.detail);
});

test('a dry run plans and places without keeping anything', async () => {
    const before = (await host.get('/api/v1/jobs?limit=1')).json.jobs[0]?.id;
    const reply = await host.post('/api/v1/jobs?dry_run=1', tinyJob());
    assert.equal(reply.status, 200);
    assert.deepEqual(reply.json.plan, { device_bytes: 1234 });
    assert.deepEqual(reply.json.queue, { position: 1, reason: 'waiting for 1 CPU slots', devices: ['cpu:0'] });
    assert.equal(reply.json.document.train.steps, 10);
    const refused = await host.post('/api/v1/jobs?dry_run=1', tinyJob({ name: 'unplannable' }));
    assert.equal(refused.json.plan, null);
    assert.match(refused.json.plan_error, /refused/);
    assert.equal(refused.json.plan_error, '#/data/path: the planner refused');
    assert.equal((await host.post('/api/v1/jobs?dry_run=1', { nonsense: 1 })).status, 422);
    for (const [query, says] of [['dry_run=1&start=banana', /'start' must be 0 or 1/], ['start=1', /dry_run=1&start=1/], ['start=banana', /'start' must be 0 or 1/]]) {
        const wrong = await host.post(`/api/v1/jobs?${query}`, tinyJob());
        assert.equal(wrong.status, 400, query);
        assert.match(wrong.json.detail, says);
    }
    assert.equal((await host.post('/api/v1/jobs?dry_run=2', tinyJob())).status, 400);
    assert.equal((await host.get('/api/v1/jobs?limit=1')).json.jobs[0]?.id, before);
});

test('a submission is judged by its plan, unless the client does without or none comes in time', async () => {
    const refused = await host.post('/api/v1/jobs', tinyJob({ name: 'x', tags: { as: 'unplannable' } }));
    assert.equal(refused.status, 422);
    assert.deepEqual(refused.json.errors, [{ pointer: '#/data/path', detail: 'the planner refused' }]);
    const taken = await host.post('/api/v1/jobs?accept_unplanned=1', tinyJob({ name: 'x', tags: { as: 'unplannable' } }));
    assert.deepEqual([taken.status, taken.json.warnings], [201, []]);
    const late = await host.post('/api/v1/jobs', tinyJob({ name: 'planned late' }));
    assert.deepEqual([late.status, late.json.warnings], [201, [{ pointer: '#', detail: 'accepted without a plan: a plan takes long' }]]);
    assert.equal((await host.post('/api/v1/jobs?accept_unplanned=2', tinyJob())).status, 400);
});

test('what this build cannot do is refused by name', async () => {
    const reply = await host.post('/api/v1/jobs', tinyJob({ depends_on: [{ job: '1', when: 'afterok' }] }));
    assert.equal(reply.status, 422);
    assert.equal(reply.json.errors[0].pointer, '#/depends_on');
});

test('pages are stable while jobs are added, forwards and backwards', async () => {
    for (let i = 0; i < 7; i++)
        await submit(host, { name: `page ${i}`, experiment: 'pages' });
    for (const order of ['newest', 'oldest']) {
        const seen = [];
        let target = `/api/v1/jobs?experiment=pages&limit=3&order=${order}`;
        for (let pages = 0; target; pages++) {
            assert.ok(pages < 10);
            const reply = await host.get(target);
            seen.push(...reply.json.jobs.map(job => job.name));
            target = reply.headers.link ? /^<([^>]+)>; rel="next"$/.exec(reply.headers.link)[1] : null;
            assert.equal(target === null, reply.json.next === null);
            if (pages === 0 && order === 'newest')
                await submit(host, { name: 'page late', experiment: 'pages' });
        }
        const wanted = [...Array(7).keys()].map(i => `page ${i}`);
        assert.deepEqual(seen, order === 'newest' ? wanted.reverse() : [...wanted, 'page late']);
    }
});

test('cursors of other lists, changed and invented ones are refused', async () => {
    const { next } = (await host.get('/api/v1/jobs?limit=1')).json;
    assert.equal((await host.get(`/api/v1/jobs?limit=1&cursor=${next}`)).status, 200);
    for (const target of [`/api/v1/runs?cursor=${next}`, `/api/v1/jobs?order=oldest&cursor=${next}`, `/api/v1/jobs?cursor=${next.slice(0, -1)}${next.at(-1) === 'A' ? 'B' : 'A'}`, '/api/v1/jobs?cursor=', `/api/v1/jobs?cursor=${'A'.repeat(100)}`])
        assert.equal((await host.get(target)).status, 400, target);
});

test('filters by state, name and tag', async () => {
    await submit(host, { name: 'needle in hay', tags: { kind: 'sharp' } });
    const names = async query => (await host.get(`/api/v1/jobs?${query}`)).json.jobs.map(job => job.name);
    assert.deepEqual(await names('name=needle'), ['needle in hay']);
    assert.deepEqual(await names('tag=kind'), ['needle in hay']);
    assert.deepEqual(await names('tag=kind%3Dsharp'), ['needle in hay']);
    assert.deepEqual(await names('tag=kind%3Dblunt'), []);
    assert.deepEqual(await names('state=done'), []);
    assert.deepEqual(await names('name=%25'), []); // a wildcard of SQL is an ordinary character
    assert.equal((await host.get('/api/v1/runs?state=active&outcome=failed')).json.runs.length, 0);
    const runs = async query => (await host.get(`/api/v1/runs?${query}`)).json.runs;
    const [run] = await runs('name=needle');
    assert.deepEqual(run.tags, { kind: 'sharp' });
    const found = async query => (await runs(query)).map(r => r.id);
    for (const query of ['tag=kind', 'tag=kind%3Dsharp', 'text=NEEDLE%20in', 'text=sharp', `text=%23${run.id}`, 'tag=kind&text=hay&state=active'])
        assert.deepEqual(await found(query), [run.id], query);
    for (const query of ['tag=kind%3Dblunt', 'tag=kin', 'tag=kind%3D', 'text=blunt', 'text=%25', 'tag=kind&state=ended'])
        assert.deepEqual(await found(query), [], query);
    const [full] = await runs('tag=kind&field=%2Fattention%2Fdegree&field=%2Fmodel&field=%2Fno%2Fsuch');
    assert.deepEqual(Object.keys(full.fields), ['/attention/degree', '/model']);
    assert.equal(typeof full.fields['/model'].preset, 'string');
    for (const query of ['field=degree', `${[...Array(17)].map(() => 'field=/seed').join('&')}`, `field=/${'a'.repeat(128)}`])
        assert.equal((await host.get(`/api/v1/runs?${query}`)).status, 400, query);
    for (const query of ['state=x', 'outcome=x', 'job=x'])
        assert.equal((await host.get(`/api/v1/runs?${query}`)).status, 400, query);
});

test('conditional reads and writes', async () => {
    const job = await submit(host);
    const target = `/api/v1/jobs/${job.id}`;
    const shown = await host.get(target);
    const patch = (json, headers) => host.call('PATCH', target, { json, headers });
    assert.equal((await patch({ name: 'new' })).status, 428);
    assert.equal((await patch({ name: 'new' }, { 'if-match': '"999"' })).status, 412);
    assert.equal((await patch({ name: 'new' }, { 'if-match': 'garbage' })).status, 412);
    const changed = await patch({ name: 'new', tags: { a: 'b' }, notes: 'n', priority: -3 }, { 'if-match': shown.headers.etag });
    assert.equal(changed.status, 200);
    assert.equal(changed.json.name, 'new');
    assert.equal(changed.json.priority, -3);
    assert.deepEqual(changed.json.tags, { a: 'b' });
    assert.notEqual(changed.headers.etag, shown.headers.etag);
    assert.equal((await patch({ name: 'newer' }, { 'if-match': shown.headers.etag })).status, 412);
    assert.equal((await patch({ name: 'newest' }, { 'if-match': '*' })).status, 200);
    for (const bad of [{}, { name: '' }, { name: 3 }, { name: 'x'.repeat(201) }, { tags: [] }, { tags: { a: 1 } }, { notes: null }, { priority: 101 }, { priority: 1.5 }, { state: 'done' }]) {
        const reply = await patch(bad, { 'if-match': '*' });
        assert.equal(reply.status, 422, JSON.stringify(bad));
    }
    assert.equal((await host.call('PATCH', '/api/v1/jobs/99999', { json: { name: 'x' }, headers: { 'if-match': '*' } })).status, 404);
});

test('what has ended is read again only if its tag is another', async () => {
    const job = await submit(host);
    const { json: { runs: [run] } } = await host.get(`/api/v1/runs?job=${job.id}`);
    const targets = [`/api/v1/jobs/${job.id}`, `/api/v1/runs/${run.id}`];
    const again = async target => (await host.get(target, { headers: { 'if-none-match': (await host.get(target)).headers.etag } })).status;
    for (const target of targets)
        assert.equal(await again(target), 200, target); /* its bytes may have grown */
    await host.post(`${targets[0]}/cancel`);
    for (const target of targets) {
        assert.equal(await again(target), 304, target);
        assert.equal((await host.get(target, { headers: { 'if-none-match': '"999"' } })).status, 200);
    }
    for (const change of [{ name: 'renamed' }, { tags: { a: 'b' } }]) { // a run shows both
        const { etag } = (await host.get(targets[1])).headers;
        assert.equal((await host.call('PATCH', targets[0], { json: change, headers: { 'if-match': '*' } })).status, 200);
        const shown = await host.get(targets[1], { headers: { 'if-none-match': etag } });
        assert.equal(shown.status, 200, JSON.stringify(change));
        assert.deepEqual({ ...shown.json, ...change }, shown.json);
        assert.equal(await again(targets[1]), 304);
    }
    const { etag } = (await host.get(targets[1])).headers;
    await host.call('PATCH', targets[0], { json: { notes: 'n', priority: 3 }, headers: { 'if-match': '*' } });
    assert.equal((await host.get(targets[1], { headers: { 'if-none-match': etag } })).status, 304); // a run has no notes, and keeps its priority once it has ended
});

test('cancel, pause, resume, and what is not allowed', async () => {
    const job = await submit(host);
    const target = `/api/v1/jobs/${job.id}`;
    const paused = await host.post(`${target}/pause`);
    assert.equal(paused.status, 200, paused.text);
    assert.equal(paused.json.state, 'paused');
    assert.equal((await host.post(`${target}/resume`, {}, { headers: { 'if-match': '"1"' } })).status, 412);
    assert.equal((await host.post(`${target}/resume`)).json.state, 'queued');
    assert.equal((await host.post(`${target}/resume`)).status, 409);
    assert.equal((await host.post(`${target}/pause`, { why: 1 })).status, 422);
    assert.equal((await host.post(`${target}/cancel`, { reason: 3 })).status, 422);
    assert.equal((await host.post(`${target}/cancel`, { because: 'x' })).status, 422);
    const cancelled = await host.post(`${target}/cancel`, { reason: 'changed my mind' });
    assert.equal(cancelled.json.state, 'cancelled');
    assert.match(cancelled.json.reason, /changed my mind/);
    assert.equal((await host.post(`${target}/cancel`)).status, 409);
    for (const verb of ['cancel', 'pause', 'resume'])
        assert.equal((await host.post(`/api/v1/jobs/99999/${verb}`)).status, 404);
    for (const id of ['0', '-1', 'x', '01', '1.0', '99999999999999999999'])
        assert.equal((await host.get(`/api/v1/jobs/${id}`)).status, 404, id);
});

test('one run of several is cancelled alone', async () => {
    const job = await submit(host, { trials: 2 });
    const [a, b] = (await host.get(`/api/v1/runs?job=${job.id}&order=oldest`)).json.runs;
    const reply = await host.post(`/api/v1/runs/${a.id}/cancel`, { reason: 'this one' });
    assert.equal(reply.json.state, 'ended');
    assert.equal(reply.json.outcome, 'cancelled');
    assert.equal((await host.get(`/api/v1/runs/${b.id}`)).json.state, 'queued');
    assert.equal((await host.post('/api/v1/runs/99999/cancel')).status, 404);
    assert.equal((await host.get('/api/v1/runs/99999')).status, 404);
    const queue = (await host.get('/api/v1/queue')).json.queue.map(run => run.id);
    assert.ok(queue.includes(b.id) && !queue.includes(a.id));
});

test('a repeated submission gets the first answer, byte for byte', async () => {
    const headers = { 'idempotency-key': '"abc-1"' };
    const first = await host.post('/api/v1/jobs', tinyJob({ name: 'once' }), { headers });
    await host.post(`${first.headers.location}/pause`);
    const second = await host.post('/api/v1/jobs', tinyJob({ name: 'once' }), { headers });
    assert.equal(second.status, 201);
    assert.equal(second.text, first.text);
    assert.equal(second.headers.location, first.headers.location);
    assert.equal(second.headers['idempotency-replayed'], 'true');
    const other = await host.post('/api/v1/jobs', tinyJob({ name: 'twice' }), { headers });
    assert.equal(other.status, 422);
    assert.equal(other.json.error.code, 'idempotency_key_reused');
    assert.equal((await host.get('/api/v1/jobs?name=once')).json.jobs.length, 1);
    for (const key of ['', '""', 'a b', 'x'.repeat(256), 'é'])
        assert.equal((await host.post('/api/v1/jobs', tinyJob(), { headers: { 'idempotency-key': Buffer.from(key).toString('latin1') } })).status, 400, key);
    // The key belongs to the path: the same one elsewhere is another request.
    assert.equal((await host.post(`${first.headers.location}/resume`, {}, { headers })).status, 200);
    assert.equal((await host.post(`${first.headers.location}/resume`, {}, { headers })).status, 200); // carried out once
});

test('many at once with one key make one job', async () => {
    const headers = { 'idempotency-key': 'storm' };
    const replies = await Promise.all([...Array(6)].map(() => host.post('/api/v1/jobs', tinyJob({ name: 'storm' }), { headers })));
    assert.equal(new Set(replies.map(reply => reply.text)).size, 1, replies.map(reply => reply.text).join('\n'));
    assert.equal((await host.get('/api/v1/jobs?name=storm')).json.jobs.length, 1);
});

test('a full writer is 503 with Retry-After; what was accepted commits even if the client left', async () => {
    await host.tell('hold');
    const body = JSON.stringify(tinyJob({ name: 'left' }));
    await host.raw(`POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nIdempotency-Key: left\r\nContent-Length: ${body.length}\r\n\r\n${body}`, { ms: 500 });
    const replies = [];
    const all = [...Array(48)].map((_, i) => host.post('/api/v1/jobs', tinyJob({ name: `full ${i}` })).then(reply => replies.push(reply)));
    while (replies.length === 0) // only refusals can come: nothing commits
        await sleep(20);
    assert.equal(replies[0].status, 503);
    await host.tell('go');
    await Promise.all(all);
    const refused = replies.filter(reply => reply.status === 503);
    assert.ok(refused.length > 0 && refused.length < 48);
    assert.ok(refused.every(reply => Number(reply.headers['retry-after']) >= 1));
    assert.equal((await host.get('/api/v1/jobs?name=left&limit=10')).json.jobs.filter(job => job.name === 'left').length, 1);
    const again = await host.post('/api/v1/jobs', tinyJob({ name: 'left' }), { headers: { 'idempotency-key': 'left' } });
    assert.equal(again.headers['idempotency-replayed'], 'true');
});

test('no more open jobs than the limit', async () => {
    const other = await Host.start(['--limits.jobs=2']);
    try {
        const [first] = [await submit(other), await submit(other)];
        const refused = await other.post('/api/v1/jobs', tinyJob());
        assert.equal(refused.status, 429);
        assert.match(refused.json.detail, /limits\.jobs/);
        await other.post(`/api/v1/jobs/${first.id}/cancel`);
        await sleep(1100);
        await submit(other);
    } finally {
        await other.stop();
    }
});

test('a page goes on after a restart of the daemon', async () => {
    const dir = mkdtempSync(path.join(os.tmpdir(), 'polyd-cursor-'));
    const first = await Host.start([], { dir });
    for (let i = 0; i < 3; i++)
        await submit(first, { name: `job ${i}` });
    const page = (await first.get('/api/v1/jobs?limit=2')).json;
    assert.deepEqual(page.jobs.map(job => job.id), ['3', '2']);
    await first.stop();
    const second = await Host.start([], { dir });
    assert.deepEqual((await second.get(`/api/v1/jobs?limit=2&cursor=${page.next}`)).json.jobs.map(job => job.id), ['1']);
    await second.stop();
    rmSync(dir, { recursive: true, force: true });
});

test('a query parameter that nobody looks at is refused by name, on every path of ours', async () => {
    const one = await Host.start();
    await submit(one);
    for (const target of ['jobs', 'jobs/1', 'jobs/1/sweep', 'runs', 'runs/1', 'runs/1/metrics', 'runs/1/checkpoints', 'runs/1/logs', 'events', 'models', 'devices', 'queue', 'config', 'fields', 'metrics/catalogue', 'version', 'tuned', 'groups', 'compare', 'aggregate']) {
        const reply = await one.get(`/api/v1/${target}?colour=red`);
        assert.equal(reply.status, 400, target);
        assert.match(reply.json.detail, /unknown query parameter 'colour'/, target);
    }
    assert.equal((await one.post('/api/v1/jobs/1/cancel?colour=red', {})).status, 400);
    assert.equal((await one.get('/api/v1/jobs/1')).json.state, 'queued');
    await one.stop();
});

test('moves of states are counted for Prometheus and outlive a restart', async () => {
    const dir = mkdtempSync(path.join(os.tmpdir(), 'polyd-tally-'));
    let one = await Host.start([], { dir });
    await submit(one, { trials: 2 });
    await one.post('/api/v1/jobs/1/cancel', {});
    for (let round = 0; round < 2; round++) {
        const text = (await one.get('/metrics')).text;
        assert.match(text, /polyd_job_transitions_total\{from="new",to="queued"\} 1\n/);
        assert.match(text, /polyd_job_transitions_total\{from="cancelling",to="cancelled"\} 1\n/);
        assert.match(text, /polyd_run_transitions_total\{from="new",to="queued"\} 2\n/);
        assert.match(text, /polyd_job_wait_seconds_bucket\{le="\+Inf"\} 0\n/);
        await one.stop();
        one = round ? null : await Host.start([], { dir });
    }
    rmSync(dir, { recursive: true, force: true });
});

test('retry: open runs that back off start at once, with all their restarts; a job that is over stays so', async () => {
    const one = await Host.start();
    await submit(one, { trials: 3 });
    await one.tell('backoff 1 5');
    await one.tell('backoff 2 1');
    assert.deepEqual((await one.get('/api/v1/runs?order=oldest')).json.runs.map(r => r.restarts), [5, 1, 0]);
    const reply = await one.post('/api/v1/jobs/1/retry', {});
    assert.equal(reply.status, 200, reply.text);
    assert.deepEqual((await one.get('/api/v1/runs?order=oldest')).json.runs.map(r => r.restarts), [0, 0, 0]);
    assert.equal((await one.post('/api/v1/jobs/1/retry', {}, { headers: { 'if-match': '"1"' } })).status, 412);
    await one.post('/api/v1/jobs/1/cancel', {});
    assert.equal((await one.post('/api/v1/jobs/1/retry', {})).status, 409);
    assert.equal((await one.post('/api/v1/jobs/9/retry', {})).status, 404);
    await one.stop();
});

test('clients that leave while their job is written lose nothing and leak nothing', async () => {
    const one = await Host.start();
    const body = JSON.stringify(tinyJob({ notes: 'n'.repeat(1000) }));
    const text = `POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
    await Promise.all(Array.from({ length: 200 }, (_, i) => new Promise(resolve => {
        const socket = net.connect(one.port, '127.0.0.1', () => socket.write(text, () => setTimeout(() => socket.resetAndDestroy(), i % 40)));
        socket.on('error', () => {}).on('close', resolve);
    })));
    await sleep(200);
    const page = (await one.get('/api/v1/jobs?limit=1')).json.jobs;
    assert.ok(page.length === 1 && Number(page[0].id) > 0, 'those that were taken are there');
    await one.stop(); // the sanitizers' build counts what is left
});
