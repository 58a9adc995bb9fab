// Reads that take long do not keep others waiting; a run's keys come in pages and are bounded.
import assert from 'node:assert/strict';
import net from 'node:net';
import { after, before, test } from 'node:test';
import { Host, sleep, submit } from './lib.mjs';

let host, run;
before(async () => {
    host = await Host.start();
    await submit(host);
    run = (await host.get('/api/v1/runs')).json.runs[0].id;
});
after(() => host.stop());

const points = (from, count) => Array.from({ length: count }, (_, i) => ({ key: `k/${String(from + i).padStart(6, '0')}`, step: 1, value: i, time: '2026-11-20T00:00:00Z' }));

test('the keys of a run come in pages that follow each other', async () => {
    assert.equal((await host.post(`/api/v1/runs/${run}/metrics`, { points: points(0, 25) })).status, 200);
    const keys = [];
    let target = `/api/v1/runs/${run}/metrics?limit=10`;
    for (let pages = 0; target; pages++) {
        assert.ok(pages < 5);
        const reply = await host.get(target);
        assert.equal(reply.status, 200);
        assert.equal(reply.json.series.length, pages < 2 ? 10 : 5);
        keys.push(...reply.json.series.map(s => s.key));
        assert.equal(reply.json.next === null, pages === 2);
        target = reply.json.next && `/api/v1/runs/${run}/metrics?limit=10&cursor=${reply.json.next}`;
        assert.equal(reply.headers.link !== undefined, reply.json.next !== null);
    }
    assert.deepEqual(keys, points(0, 25).map(p => p.key));
    const whole = await host.get(`/api/v1/runs/${run}/metrics`);
    assert.equal(whole.json.series.length, 25);
    assert.equal(whole.json.next, null);
    for (const query of ['limit=0', 'limit=10001', 'cursor=x', 'key=a'])
        assert.equal((await host.get(`/api/v1/runs/${run}/metrics?${query}`)).status, 400, query);
});

test('a run has at most 10000 keys, and points of those it has are taken as before', async () => {
    const other = await submit(host);
    const id = (await host.get(`/api/v1/runs?job=${other.id}`)).json.runs[0].id;
    assert.equal((await host.post(`/api/v1/runs/${id}/metrics`, { points: points(0, 6000) })).status, 200);
    const refused = await host.post(`/api/v1/runs/${id}/metrics`, { points: points(6000, 4001) });
    assert.equal(refused.status, 422, refused.text);
    assert.match(refused.json.detail, /10000 metric keys.*'k\/010000'/);
    // A refused batch leaves nothing behind.
    assert.equal((await host.get(`/api/v1/runs/${id}/metrics`)).json.series.length, 6000);
    assert.equal((await host.post(`/api/v1/runs/${id}/metrics`, { points: points(6000, 4000) })).status, 200);
    const one = await host.post(`/api/v1/runs/${id}/metrics`, { points: points(10000, 1) });
    assert.equal(one.status, 422);
    const more = await host.post(`/api/v1/runs/${id}/metrics`, { points: points(0, 10000).map(p => ({ ...p, step: 2 })) });
    assert.deepEqual(more.json, { received: 10000, stored: 10000 });
    assert.equal((await host.get(`/api/v1/runs/${id}/metrics`)).json.series.length, 10000);
});

/** A request on a connection of its own, from an address of its own; milliseconds until the answer is whole. */
function timed(target, from) {
    const begun = performance.now();
    return new Promise((resolve, reject) => {
        const socket = net.connect({ port: host.port, host: '127.0.0.1', localAddress: from });
        let text = '';
        socket.on('data', piece => { text += piece; });
        socket.on('error', reject);
        socket.on('close', () => /^HTTP\/1\.1 200 /.test(text) ? resolve(performance.now() - begun) : reject(new Error(text.slice(0, 200) || 'closed')));
        socket.write(`GET ${target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n`);
    });
}
const median = list => list.sort((a, b) => a - b)[list.length >> 1];

test('six clients that read a run of 150000 keys do not keep others waiting', { timeout: 120000 }, async () => {
    // As an earlier version took them from clients: of the run's own worker there is no bound.
    const made = await submit(host);
    const id = (await host.get(`/api/v1/runs?job=${made.id}`)).json.runs[0].id;
    await host.tell(`start ${id}`);
    await host.tell(`keys ${id} 150000`);
    let over = false, reads = 0;
    const readers = Array.from({ length: 6 }, async () => {
        while (!over) {
            await timed(`/api/v1/runs/${id}/metrics`, '127.0.0.1');
            reads++;
        }
    });
    const health = [], jobs = [];
    await sleep(100);
    for (let i = 0; i < 20; i++) {
        health.push(await timed('/healthz', i % 2 ? '127.0.0.1' : '127.0.0.2'));
        jobs.push(await timed('/api/v1/jobs', i % 2 ? '127.0.0.1' : '127.0.0.3'));
    }
    over = true;
    await Promise.all(readers);
    assert.ok(reads > 0);
    // Generous: machines that run tests are slow and shared. The figures stand in tests/bench/RESULTS.md.
    assert.ok(median(health) < 1500, `healthz ${health.map(Math.round)}`);
    assert.ok(median(jobs) < 4000, `jobs ${jobs.map(Math.round)}`);
});

test('a request whose client left while it waited is not worked on', async () => {
    const before = Number(/^polyd_http_departed_total (\d+)$/m.exec((await host.get('/metrics')).text)[1]);
    const sockets = Array.from({ length: 60 }, () => {
        const socket = net.connect(host.port, '127.0.0.1');
        socket.on('error', () => {});
        socket.write(`GET /api/v1/runs/3/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n`);
        return socket;
    });
    await sleep(30);
    sockets.forEach(socket => socket.destroy());
    for (let i = 0; ; i++) {
        assert.ok(i < 200, 'no departure was noticed');
        if (Number(/^polyd_http_departed_total (\d+)$/m.exec((await host.get('/metrics')).text)[1]) > before)
            break;
        await sleep(50);
    }
});
