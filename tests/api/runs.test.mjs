// What runs record: points in, charts out, exports, logs, checkpoints, events.
import assert from 'node:assert/strict';
import net from 'node:net';
import { after, before, test } from 'node:test';
import { Host, sleep, submit, tinyJob } from './lib.mjs';

let host;
let run;
before(async () => {
    host = await Host.start();
    await submit(host);
    run = '1';
});
after(() => host.stop());

const ingest = (points, id = run) => host.post(`/api/v1/runs/${id}/metrics`, { points });

test('points are committed before the answer and shown as they are', async () => {
    const time = '2026-11-20T10:00:00.000Z';
    const reply = await ingest([
        { key: 'mine/loss', step: 0, value: 2.5, time }, { key: 'mine/loss', step: 1, value: 'NaN', time },
        { key: 'mine/loss', step: 2, value: 1e-300, time }, { key: 'weird key,"x"', step: 0, value: '-Infinity', time },
    ]);
    assert.deepEqual(reply.json, { received: 4, stored: 4 });
    assert.deepEqual((await ingest([{ key: 'mine/loss', step: 0, value: 2.5, time }])).json, { received: 1, stored: 0 });
    const series = (await host.get(`/api/v1/runs/${run}/metrics`)).json.series;
    assert.deepEqual(series.map(s => [s.key, s.count, s.step, s.value, s.min, s.max]), [
        ['mine/loss', 3, 2, 1e-300, 1e-300, 2.5], ['weird key,"x"', 1, 0, '-Infinity', null, null]]);
    assert.deepEqual((await ingest([])).json, { received: 0, stored: 0 });
});

test('wrong batches are refused whole, by pointer', async () => {
    const bad = await host.post(`/api/v1/runs/${run}/metrics`, { points: [{ key: 'x', step: 1, value: 1 }, { key: 'x', step: 1.5, value: 1 }] });
    assert.equal(bad.status, 422);
    assert.equal(bad.json.errors[0].pointer, '#/points/1/step');
    assert.equal((await host.call('POST', `/api/v1/runs/${run}/metrics`, { body: '{"points":[' })).status, 400);
    assert.equal((await ingest([{ key: 'x', step: 1, value: 1 }], '999')).status, 404);
    assert.equal((await ingest([...Array(10001)].map((_, i) => ({ key: 'x', step: i, value: 1 })))).status, 422);
    assert.ok(!(await host.get(`/api/v1/runs/${run}/metrics`)).json.series.some(s => s.key === 'x'));
});

test('charts are honest: every point in one bucket, extremes kept, counts told', async () => {
    const n = 5000;
    const values = [...Array(n)].map((_, i) => Math.sin(i / 50) + (i === 3210 ? 100 : 0));
    for (let at = 0; at < n; at += 1000)
        await ingest(values.slice(at, at + 1000).map((value, i) => ({ key: 'wave', step: at + i, value, time: 1700000000 + at + i })));
    const one = (await host.get(`/api/v1/runs/${run}/series?key=wave&buckets=50`)).json.series[0];
    assert.equal(one.points, n);
    assert.equal(one.buckets, one.data.length);
    assert.ok(one.buckets <= 50 && one.buckets >= 3);
    assert.equal(one.data.reduce((sum, b) => sum + b.count, 0), n);
    assert.equal(Math.max(...one.data.map(b => b.max)), Math.max(...values));
    assert.equal(Math.min(...one.data.map(b => b.min)), Math.min(...values));
    const all = (await host.get(`/api/v1/runs/${run}/series?key=wave&buckets=10000&from_step=100&to_step=199&key=none`)).json.series;
    assert.deepEqual(all[0].data.map(b => b.mean), values.slice(100, 200));
    assert.deepEqual(all[1], { key: 'none', points: 0, buckets: 0, data: [] });
    for (const query of ['', 'key=', 'key=wave&buckets=0', 'key=wave&buckets=10001', 'key=wave&from_step=x', 'key=wave&colour=1'])
        assert.equal((await host.get(`/api/v1/runs/${run}/series?${query}`)).status, 400, query);
    assert.equal((await host.get('/api/v1/runs/999/series?key=wave')).status, 404);
});

test('the run table shows latest values asked for', async () => {
    const { runs } = (await host.get('/api/v1/runs?metric=wave&metric=none')).json;
    assert.deepEqual(Object.keys(runs[0].latest), ['wave']);
    await submit(host);
    const two = (await host.get('/api/v1/runs?metric=wave')).json.runs;
    assert.deepEqual(two.map(r => Object.keys(r.latest).length), [0, 1]);
    assert.equal((await host.get(`/api/v1/runs?${[...Array(17)].map(() => 'metric=a').join('&')}`)).status, 400);
});

test('brief rows of the run table are the others without their digests', async () => {
    const long = (await host.get('/api/v1/runs?limit=3')).json.runs;
    const brief = (await host.get('/api/v1/runs?limit=3&brief=1')).json.runs;
    assert.ok(long.length > 0 && long.every(run => run.config_digest.length === 64));
    assert.deepEqual(brief, long.map(({ config_digest: _, plan_digest: __, data_digest: ___, data_digest_of: ____, program_digest: _____, ...rest }) => rest));
    assert.equal((await host.get('/api/v1/runs?brief=perhaps')).status, 400);
});

test('an export holds every point once, also of one step with thousands', async () => {
    const many = [...Array(2500)].map((_, i) => ({ key: 'same', step: 7, value: i, time: 1700000000 + i }));
    for (let at = 0; at < many.length; at += 1000)
        await ingest(many.slice(at, at + 1000));
    const csv = await host.get(`/api/v1/runs/${run}/export`);
    const lines = csv.text.trimEnd().split('\n');
    assert.equal(lines[0], 'key,step,time,attempt,value');
    assert.equal(lines.length - 1, 4 + 5000 + 2500);
    assert.ok(lines.includes('mine/loss,1,2026-11-20T10:00:00.000Z,0,NaN'));
    assert.ok(lines.includes('"weird key,""x""",0,2026-11-20T10:00:00.000Z,0,-Infinity'));
    const json = await host.get(`/api/v1/runs/${run}/export?format=json&key=same&key=none`);
    assert.deepEqual(json.json.map(p => p.value).sort((a, b) => a - b), many.map(p => p.value));
    assert.deepEqual((await host.get(`/api/v1/runs/${run}/export?format=json&key=none`)).json, []);
    assert.equal((await host.get(`/api/v1/runs/${run}/export?format=xml`)).status, 400);
    assert.equal((await host.get('/api/v1/runs/999/export')).status, 404);
});

test('logs: a part, the tail, and as they grow', async () => {
    assert.equal((await host.get(`/api/v1/runs/${run}/logs`)).status, 404);
    await host.tell(`start ${run}`);
    assert.equal((await host.get(`/api/v1/runs/${run}/logs`)).status, 404);
    for (let i = 0; i < 5; i++)
        await host.tell(`log ${run} 1 line ${i} é`);
    const whole = await host.get(`/api/v1/runs/${run}/logs`);
    assert.equal(whole.text, [...Array(5)].map((_, i) => `line ${i} é\n`).join(''));
    assert.equal(whole.headers['x-log-next'], String(whole.bytes.length));
    const part = await host.get(`/api/v1/runs/${run}/logs?offset=10&limit=10&attempt=1`);
    assert.equal(part.text, 'line 1 é\n');
    assert.equal((await host.get(`/api/v1/runs/${run}/logs?tail=2`)).text, 'line 3 é\nline 4 é\n');
    assert.equal((await host.get(`/api/v1/runs/${run}/logs?offset=100000`)).text, '');
    for (const query of ['attempt=2', 'attempt=9'])
        assert.equal((await host.get(`/api/v1/runs/${run}/logs?${query}`)).status, 404);
    for (const query of ['tail=0', 'limit=0', 'offset=-1', 'follow=x', 'attempt=0'])
        assert.equal((await host.get(`/api/v1/runs/${run}/logs?${query}`)).status, 400, query);
    const text = stream => stream.events.filter(e => e.event === 'log').map(e => JSON.parse(e.data).text).join('');
    const stream = await host.events(`/api/v1/runs/${run}/logs?follow=1&tail=1`).opened;
    await stream.until(s => text(s) === 'line 4 é\n');
    await host.tell(`log ${run} 1 more`);
    await stream.until(s => text(s) === 'line 4 é\nmore\n');
    const last = stream.events.findLast(e => e.event === 'log').id;
    await host.tell(`end ${run}`);
    await stream.until(s => s.ended);
    assert.equal(stream.events.at(-1).event, 'end');
    const again = await host.events(`/api/v1/runs/${run}/logs?follow=1`, { headers: { 'last-event-id': last } }).opened;
    await again.until(s => s.ended);
    assert.equal(text(again), '');
});

test('attempts, live progress and checkpoints are shown', async () => {
    const other = await submit(host);
    const id = (await host.get(`/api/v1/runs?job=${other.id}`)).json.runs[0].id;
    await host.tell(`start ${id}`);
    const shown = (await host.get(`/api/v1/runs/${id}`)).json;
    assert.equal(shown.state, 'running');
    assert.equal(shown.step, 17);
    assert.equal(shown.phase, 'compiling kernels of formulas: gradients in bf16 (2 of 2)');
    assert.deepEqual(shown.attempt_list[0].devices, ['cpu:0', 'cpu:1']);
    await host.tell(`checkpoint ${id} 5`);
    await host.tell(`checkpoint ${id} 9`);
    const { checkpoints } = (await host.get(`/api/v1/runs/${id}/checkpoints`)).json;
    assert.deepEqual(checkpoints.map(c => c.step), [9, 5]);
    assert.equal((await host.get('/api/v1/runs/999/checkpoints')).status, 404);
});

test('events: live, replayed from any id, filtered', async () => {
    const live = await host.events('/api/v1/events').opened;
    assert.equal(live.response.headers['x-accel-buffering'], 'no');
    const job = await submit(host, { name: 'seen live' });
    await live.until(s => s.events.some(e => e.event === 'job.state' && JSON.parse(e.data).job_id === job.id));
    const seen = live.events.filter(e => e.event);
    live.close();
    const ids = seen.map(e => Number(e.id));
    assert.deepEqual(ids, [...ids].sort((a, b) => a - b));
    const all = await host.events('/api/v1/events?since=0').opened;
    await all.until(s => s.events.some(e => e.id === String(ids.at(-1))));
    const allIds = all.events.filter(e => e.event && e.event !== 'metrics').map(e => Number(e.id));
    assert.deepEqual(allIds, [...Array(allIds.length).keys()].map(i => i + 1)); // nothing missed, nothing twice
    all.close();
    const half = Math.floor(allIds.length / 2);
    const replay = await host.events('/api/v1/events', { headers: { 'last-event-id': String(half) } }).opened;
    await replay.until(s => s.events.some(e => e.event && e.id === String(allIds.length)));
    assert.equal(Number(replay.events.find(e => e.event).id), half + 1);
    replay.close();
    const one = await host.events(`/api/v1/events?since=0&job=${job.id}`).opened;
    await one.until(s => s.events.some(e => e.event));
    assert.ok(one.events.filter(e => e.event).every(e => JSON.parse(e.data).job_id === job.id));
    one.close();
    for (const query of ['since=x', 'since=-1', 'job=x', 'colour=1'])
        assert.equal((await host.get(`/api/v1/events?${query}`)).status, 400, query);
    assert.equal((await host.get('/api/v1/events', { headers: { 'last-event-id': 'x' } })).status, 400);
});

test('streams hear which runs got points', async () => {
    const stream = await host.events('/api/v1/events').opened;
    await ingest([{ key: 'live', step: 1, value: 1 }]);
    await stream.until(s => s.events.some(e => e.event === 'metrics' && JSON.parse(e.data).runs.includes(run)));
    assert.ok(stream.events.filter(e => e.event === 'metrics').every(e => e.id === undefined));
    stream.close();
});

test('streams deliver the values that were asked for', async () => {
    const stream = await host.events(`/api/v1/events?run=${run}&metric=live/one&metric=live/two&metric=never`).opened;
    await ingest([{ key: 'live/one', step: 7, value: 0.5 }, { key: 'live/two', step: 8, value: 'Infinity' }, { key: 'live/other', step: 9, value: 3 }]);
    await stream.until(s => s.events.some(e => e.event === 'metrics'));
    const { runs, values } = JSON.parse(stream.events.find(e => e.event === 'metrics').data);
    assert.deepEqual([runs, Object.keys(values)], [[run], [run]]);
    assert.deepEqual(Object.entries(values[run]).map(([key, p]) => [key, p.step, p.value]), [['live/one', 7, 0.5], ['live/two', 8, 'Infinity']]);
    assert.ok(Math.abs(Date.parse(values[run]['live/one'].time) - Date.now()) < 60000);
    stream.close();
    assert.equal((await host.get(`/api/v1/events?${Array.from({ length: 9 }, (_, i) => `metric=m${i}`).join('&')}`)).status, 400);
});

test('streams of a job or a run deliver what is theirs', async () => {
    const { id: job, run_ids: [mine, second] } = await submit(host, { trials: 2 });
    const streams = [`job=${job}`, `run=${second}`].map(filter => host.events(`/api/v1/events?${filter}&metric=k`));
    const whole = await host.events('/api/v1/events').opened;
    await Promise.all(streams.map(s => s.opened));
    const heard = stream => new Set(stream.events.filter(e => e.event === 'metrics').flatMap(e => {
        const { runs, values } = JSON.parse(e.data);
        assert.deepEqual(Object.keys(values ?? {}), values ? runs : []);
        return runs;
    }));
    for (const id of [run, mine, second])
        await ingest([{ key: 'k', step: 1, value: 1 }], id);
    await streams[0].until(() => heard(streams[0]).has(second) && heard(streams[0]).has(mine));
    await streams[1].until(s => heard(s).size > 0);
    await whole.until(s => heard(s).has(run));
    assert.deepEqual([...heard(streams[0])].sort(), [mine, second].sort());
    assert.deepEqual([...heard(streams[1])], [second]);
    for (const stream of [whole, ...streams])
        stream.close();
});

test('streams hear of every run, however many report at once', async () => {
    const runs = [];
    while (runs.length < 160)
        runs.push(...(await submit(host, { sweep: { axes: [{ pointer: '/train/seed', values: [...Array(32).keys()] }] } })).run_ids);
    const heard = stream => new Set(stream.events.filter(e => e.event === 'metrics').flatMap(e => JSON.parse(e.data).runs));
    const log = async (step, ids) => {
        for (let at = 0; at < ids.length; at += 8)
            for (const { status } of await Promise.all(ids.slice(at, at + 8).map(id => ingest([{ key: 'k', step, value: 1 }], id))))
                assert.equal(status, 200);
    };
    await log(0, runs);
    const whole = await host.events('/api/v1/events').opened, first = await host.events(`/api/v1/events?run=${runs[0]}`).opened;
    for (const [step, ids] of [[1, runs], [2, [...runs].reverse()], [3, runs]]) { // the later ones of one order are the earlier ones of the next
        whole.events.length = first.events.length = 0;
        await log(step, ids);
        await whole.until(s => heard(s).size === runs.length);
        await first.until(s => heard(s).size > 0);
    }
    assert.ok(whole.events.filter(e => e.event === 'metrics').every(e => JSON.parse(e.data).runs.length <= 64));
    whole.close();
    first.close();
});

test('a reader that never reads holds nobody up and costs no memory', { timeout: 60000 }, async () => {
    const lazy = net.connect(host.port, '127.0.0.1');
    lazy.on('error', () => {});
    lazy.pause();
    lazy.write('GET /api/v1/events?since=0 HTTP/1.1\r\nHost: localhost\r\n\r\n');
    await sleep(100);
    const memory = async () => Number(/^process_resident_memory_bytes (\d+)/m.exec((await host.get('/metrics')).text)[1]);
    const before = await memory();
    for (let i = 0; i < 40; i++)
        await Promise.all([...Array(6)].map(() => submit(host, { name: 'x'.repeat(190), tags: { long: 'y'.repeat(4000) } })));
    // A sanitizer keeps freed memory for a while.
    assert.ok(await memory() - before < (process.env.POLYD_SANITIZED ? 400e6 : 24e6));
    assert.match((await host.get('/metrics')).text, /^polyd_sse_clients [1-9]/m);
    lazy.destroy();
});

test('no more event streams than the limit', async () => {
    const other = await Host.start(['--limits.sse_clients=2']);
    try {
        const streams = [await other.events('/api/v1/events').opened, await other.events('/api/v1/events').opened];
        assert.equal((await other.get('/api/v1/events')).status, 503);
        streams.forEach(stream => stream.close());
        for (let i = 0; i < 60 && (await other.get('/metrics')).text.match(/^polyd_sse_clients (\d+)/m)[1] !== '0'; i++)
            await sleep(100);
        const again = await other.events('/api/v1/events').opened;
        assert.equal(again.status, 200);
        again.close();
    } finally {
        await other.stop();
    }
});

test('a silent stream gets a comment every 15 seconds', { timeout: 40000 }, async () => {
    const other = await Host.start();
    try {
        const stream = await other.events('/api/v1/events').opened;
        await stream.until(s => s.comments > 0, 20000);
        stream.close();
    } finally {
        await other.stop();
    }
});
