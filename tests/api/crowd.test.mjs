// One client that takes what it can get: connections that say nothing, bodies that never end. Others are served.
import assert from 'node:assert/strict';
import net from 'node:net';
import { test } from 'node:test';
import { Host, sleep } from './lib.mjs';

/** A connection that may send some bytes and then does nothing. */
async function idle(host, bytes = '') {
    const it = { closed: false, text: '' };
    it.socket = net.connect(host.port, '127.0.0.1');
    it.socket.unref(); // a test that failed must not keep the program
    it.socket.on('error', () => {});
    it.socket.on('close', () => { it.closed = true; });
    it.socket.on('data', piece => { it.text += piece; });
    await new Promise((resolve, reject) => { it.socket.once('connect', resolve); it.socket.once('error', reject); });
    if (bytes)
        it.socket.write(bytes);
    return it;
}
const many = async (host, count, bytes) => {
    const all = [];
    for (let i = 0; i < count; i++)
        all.push(await idle(host, bytes));
    return all;
};
const drop = all => all.forEach(it => it.socket.destroy());

async function until(what, check, ms = 10000) {
    for (const end = Date.now() + ms; !await check(); await sleep(20))
        assert.ok(Date.now() < end, `waited ${ms} ms for ${what}`);
}

async function crowd(flags, body) {
    const host = await Host.start(flags);
    try {
        await body(host);
    } finally {
        await host.stop();
    }
}

const slowBody = 'POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{';
const metric = async (host, name) => Number(new RegExp(`^${name} (\\S+)$`, 'm').exec((await host.get('/metrics')).text)[1]);

test('at the bound the connection that has been idle longest makes a place', { timeout: 60000 }, () => crowd(['--server.max_connections=20'], async host => {
    const old = await many(host, 10);
    await sleep(50);
    const young = await many(host, 10);
    // All places are taken; five more clients get five of the oldest.
    for (let i = 0; i < 5; i++)
        assert.equal((await host.get('/healthz')).status, 200);
    await until('the oldest to be closed', () => old.some(it => it.closed));
    assert.ok(young.every(it => !it.closed), 'the younger ones stay');
    assert.ok(await metric(host, 'polyd_http_connections_replaced_total') >= 1);
    assert.ok(await metric(host, 'polyd_http_connections') <= 20);
    drop([...old, ...young]);
}));

test('a connection in use outlives those that are not', { timeout: 60000 }, () => crowd(['--server.max_connections=20'], async host => {
    const used = await idle(host);
    const others = await many(host, 19);
    for (let i = 0; i < 30; i++) {
        used.text = '';
        used.socket.write('GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n');
        await until('an answer', () => used.text.includes('ok\n') || used.closed);
        assert.ok(!used.closed, `closed after ${i} requests`);
        others.push(await idle(host));
    }
    drop([used, ...others]);
}));

test('bodies that come slowly make place for a request', { timeout: 60000 }, () => crowd(['--server.max_connections=20'], async host => {
    const slow = await many(host, 20, slowBody);
    await sleep(200);
    for (let i = 0; i < 10; i++) {
        const begun = Date.now();
        assert.equal((await host.get('/api/v1/jobs')).status, 200);
        assert.ok(Date.now() - begun < 2000, `${Date.now() - begun} ms`);
    }
    assert.ok(slow.some(it => it.closed));
    drop(slow);
}));

test('a client that has just come is not replaced by those that come after it', { timeout: 60000 }, () => crowd(['--server.max_connections=20'], async host => {
    const bodies = await many(host, 19, slowBody);
    await sleep(1200); /* new as connections go, but no longer just begun */
    const fresh = await idle(host);
    const later = [await idle(host), await idle(host), await idle(host)];
    fresh.socket.write('GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n');
    await until('an answer', () => fresh.text.includes('ok\n') || fresh.closed);
    assert.ok(!fresh.closed, 'it was cut off before its request came');
    drop([...bodies, fresh, ...later]);
}));

test('a body below the least rate is cut off, one above it is not', { timeout: 60000 }, () => crowd(['--server.min_body_rate=2000'], async host => {
    const begun = Date.now();
    const slow = await idle(host, slowBody);
    const fast = await idle(host, slowBody.replace('100000', '64001'));
    let sent = 1;
    const timer = setInterval(() => {
        slow.socket.write('x'.repeat(20));
        // 8 kB a second: it takes eight seconds, more than the slow one is given.
        if (sent < 64001) {
            const piece = Math.min(2000, 64001 - sent);
            fast.socket.write(' '.repeat(piece));
            sent += piece;
        }
    }, 250);
    await until('the slow body to be cut off', () => slow.closed, 30000);
    assert.ok(Date.now() - begun > 4000, 'a body has some seconds before its rate counts');
    assert.ok(Date.now() - begun < 25000);
    assert.ok(!fast.closed);
    await until('an answer to the fast one', () => /^HTTP\/1\.1 4\d\d /.test(fast.text), 30000);
    clearInterval(timer);
    assert.equal(await metric(host, 'polyd_http_slow_bodies_total'), 1);
    drop([slow, fast]);
}));

test('without a least rate a slow body is left alone', { timeout: 60000 }, () => crowd(['--server.min_body_rate=0'], async host => {
    const slow = await idle(host, slowBody);
    await sleep(7000);
    assert.ok(!slow.closed);
    drop([slow]);
}));

test('when every connection is busy some are kept for probes', { timeout: 60000 }, () => crowd(['--server.max_connections=12', '--server.reserved_connections=3'], async host => {
    const streams = [];
    for (let i = 0; i < 12; i++)
        streams.push(await host.events('/api/v1/events').opened);
    for (const target of ['/healthz', '/readyz', '/health', '/metrics', '/v2/health/live', '/v2/health/ready'])
        assert.equal((await host.get(target)).status, 200, target);
    for (const target of ['/api/v1/jobs', '/v1/models', '/v2', '/']) {
        const reply = await host.get(target, { headers: { connection: 'keep-alive' } });
        assert.equal(reply.status, 503, target);
        assert.ok(Number(reply.headers['retry-after']) >= 1);
        assert.equal(reply.headers.connection, 'close', target);
    }
    // Idle ones among the reserved are closed for the next.
    const idles = await many(host, 6);
    assert.equal((await host.get('/healthz')).status, 200);
    assert.ok(streams.every(stream => !stream.ended), 'streams are not cut off');
    drop(idles);
    // A place that becomes free is one for everything.
    streams[0].close();
    await until('a place', async () => (await host.get('/api/v1/jobs')).status === 200);
    streams.forEach(stream => stream.close());
}));

test('beyond the reserve a connection is refused', { timeout: 60000 }, () => crowd(['--server.max_connections=8', '--server.reserved_connections=0'], async host => {
    const streams = [];
    for (let i = 0; i < 8; i++)
        streams.push(await host.events('/api/v1/events').opened);
    await assert.rejects(host.get('/healthz'));
    streams.forEach(stream => stream.close());
    await until('a place', () => host.get('/healthz').then(reply => reply.status === 200, () => false));
    assert.ok(await metric(host, 'polyd_http_connections_refused_total') >= 1);
}));
