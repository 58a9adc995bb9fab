// What holds for every request: hosts, origins, media types, methods, sizes, time limits.
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { common } from '../../web/js/quick.js';
import { groupOrder as configOrder } from '../../web/js/run/config.js';
import { fields as columnFields } from '../../web/js/table/columns.js';
import { groupOrder, often } from '../../web/js/views/submit.js';
import { Host, contract, sleep, submit, tinyJob } from './lib.mjs';

let host;
before(async () => { host = await Host.start(['--server.allowed_hosts=polyd.example', '--server.allowed_origins=https://lab.example']); });
after(() => host.stop());

test('only our own host names are served', async () => {
    for (const name of ['localhost', `127.0.0.1:${host.port}`, '[::1]', 'polyd.example'])
        assert.equal((await host.get('/healthz', { headers: { host: name } })).status, 200, name);
    for (const name of ['evil.example', 'localhost.evil.example', '10.1.2.3', 'evil.example:80', 'x y']) {
        const reply = await host.get('/api/v1/jobs', { headers: { host: name } });
        assert.equal(reply.status, 403, name);
        assert.equal(reply.json.error.code, 'host_not_allowed');
    }
    assert.match(await host.raw('GET /healthz HTTP/1.0\r\n\r\n'), /^HTTP\/1\.[01] 400 /);
});

test('pages of other origins are refused on reads and writes', async () => {
    for (const origin of [`http://localhost:${host.port}`, 'https://lab.example'])
        assert.equal((await host.get('/api/v1/jobs', { headers: { origin, host: `localhost:${host.port}` } })).status, 200, origin);
    for (const origin of ['http://evil.example', 'null', `http://localhost:${host.port + 1}`, 'file://']) {
        for (const [method, target] of [['GET', '/api/v1/jobs'], ['POST', '/api/v1/jobs'], ['POST', '/v2/models/x/infer'], ['POST', '/v1/completions'], ['GET', '/metrics']]) {
            const reply = await host.call(method, target, { headers: { origin, host: `localhost:${host.port}` }, json: method === 'POST' ? {} : undefined });
            assert.equal(reply.status, 403, `${origin} ${target}`);
        }
    }
    const reply = await host.get('/api/v1/jobs');
    assert.equal(reply.headers['access-control-allow-origin'], undefined);
});

test('what a plain form can send is refused', async () => {
    for (const type of ['application/x-www-form-urlencoded', 'multipart/form-data; boundary=x', 'text/plain', 'text/plain; application/json', 'application/octet-stream', '']) {
        const reply = await host.call('POST', '/api/v1/jobs', { body: JSON.stringify(tinyJob()), headers: { 'content-type': type } });
        assert.equal(reply.status, 415, type);
    }
    const none = await host.raw(`POST /api/v1/jobs/1/cancel HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n`);
    assert.match(none, /^HTTP\/1.1 415 /);
    assert.equal((await host.get('/api/v1/jobs')).json.jobs.length, 0);
});

test('a wrong method is 405 with Allow on every path of every surface', async () => {
    for (const template of Object.keys(contract.paths)) {
        const target = template.replace('{asset}', '').replaceAll(/\{\w+\}/g, '1');
        const allowed = ['get', 'post', 'put', 'patch', 'delete'].filter(method => contract.paths[template][method]);
        for (const method of ['GET', 'POST', 'PUT', 'PATCH', 'DELETE']) {
            if (allowed.includes(method.toLowerCase()))
                continue;
            const reply = await host.call(method, target);
            assert.equal(reply.status, 405, `${method} ${target}`);
            const wanted = allowed.flatMap(name => name === 'get' ? ['GET', 'HEAD'] : [name.toUpperCase()]);
            assert.deepEqual(reply.headers.allow.split(', ').sort(), wanted.sort(), target);
        }
    }
    assert.match(await host.raw('BREW /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n'), /^HTTP\/1.1 405 /);
});

test('an unknown path is 404 in the form of its surface', async () => {
    for (const target of ['/api/v1/nothing', '/api/v1/jobs/', '/api/v2/jobs', '/v1/nothing', '/v2/nothing', '/nothing', '/api/v1/jobs/%zz', '/../etc/passwd', '/%2e%2e/etc/passwd'])
        assert.equal((await host.get(target)).status, 404, target);
    assert.equal((await host.post('/nothing', {})).status, 404);
});

test('HEAD is GET without a body', async () => {
    for (const target of ['/healthz', '/api/v1/jobs', '/', '/v2', '/metrics']) {
        const reply = await host.call('HEAD', target);
        assert.equal(reply.status, 200, target);
        assert.equal(reply.bytes.length, 0);
        assert.ok(Number(reply.headers['content-length']) > 0);
    }
});

test('broken JSON, duplicate keys and other shapes are 400', async () => {
    for (const body of ['{', '', 'null', '[]', '3', '{"a":1,"a":2}', '{"name":"x"}x', '{"name":"\\ud800"}', '{"name":"\xff"}', `${'['.repeat(3000)}${']'.repeat(3000)}`]) {
        const reply = await host.call('POST', '/api/v1/jobs', { body: Buffer.from(body, 'latin1') });
        assert.equal(reply.status, 400, body.slice(0, 40));
    }
    for (const [target, body] of [['/v1/completions', '{"model":"a","model":"b"}'], ['/v2/models/x/infer', '{"inputs":[],"inputs":[]}'], ['/v1/completions', '[1]']])
        assert.equal((await host.call('POST', target, { body })).status, 400, target);
});

test('a text with a NUL is refused in one sentence by every body', async () => {
    for (const [target, body] of [
        ['/api/v1/jobs', '{"name":"a\\u0000b"}'], ['/api/v1/jobs', '{"a\\u0000b":1}'], ['/api/v1/runs', '{"name":"a\\u0000b"}'], ['/api/v1/runs', '{"config":{"a\\u0000b":1}}'],
        ['/v1/completions', '{"model":"lm","prompt":"a\\u0000"}'], ['/v2/models/x/infer', '{"id":"a\\u0000","inputs":[]}'], ['/api/v1/runs/1/metrics', '{"points":[{"key":"a\\u0000","step":1,"value":1}]}']]) {
        const reply = await host.call('POST', target, { body });
        assert.equal(reply.status, 400, `${target}: ${reply.text}`);
        assert.match(reply.text, /a text cannot hold \\\\u0000/, target);
    }
});

test('bodies above a path\'s limit are 413, announced or not', async () => {
    const big = Buffer.alloc(600 * 1024, ' ');
    assert.equal((await host.call('POST', '/api/v1/jobs', { body: big })).status, 413);
    assert.equal((await host.call('POST', '/api/v1/jobs', { body: big, headers: { 'transfer-encoding': 'chunked' } })).status, 413);
    assert.equal((await host.call('POST', '/v1/chat/completions', { body: Buffer.alloc(1100000, ' ') })).status, 413);
    assert.equal((await host.call('POST', '/v2/models/x/infer', { body: Buffer.alloc(100), headers: { 'content-length': 100 } })).status, 400);
    // So large that it is answered at once, before the body has come.
    const early = await host.raw('POST /v2/models/x/infer HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n{');
    assert.match(early, /^HTTP\/1.1 413 /);
});

test('the configured limits of bodies and of connections per address hold', async () => {
    const other = await Host.start(['--server.max_body_bytes=65536', '--server.max_connections_per_address=2']);
    try {
        assert.equal((await other.call('POST', '/v1/chat/completions', { body: JSON.stringify({ a: 'x'.repeat(60000) }) })).status, 404);
        assert.equal((await other.call('POST', '/v1/chat/completions', { body: JSON.stringify({ a: 'x'.repeat(70000) }) })).status, 413);
        // The server may still count a connection that the client has closed.
        const open = async (tries = 50) => {
            try {
                return await other.events('/api/v1/events').opened;
            } catch (error) {
                if (tries === 0)
                    throw error;
                await sleep(100);
                return open(tries - 1);
            }
        };
        const streams = [await open(), await open()];
        await assert.rejects(other.get('/healthz'));
        streams[0].close();
        for (let i = 0; ; i++) {
            assert.ok(i < 50);
            if (await other.get('/healthz').then(reply => reply.status === 200, () => false))
                break;
            await sleep(100);
        }
        streams[1].close();
    } finally {
        await other.stop();
    }
});

test('a header that is too long is refused', async () => {
    assert.match(await host.raw(`GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Long: ${'x'.repeat(100000)}\r\n\r\n`), /^(HTTP\/1\.1 4\d\d |$)/);
    assert.equal((await host.get('/healthz')).status, 200);
});

test('broken query parameters are 400 and unknown ones are named', async () => {
    for (const query of ['limit=0', 'limit=1001', 'limit=x', 'limit=%', 'cursor=x', 'state=asleep', 'order=up', 'colour=red', 'limit=99999999999999999999'])
        assert.equal((await host.get(`/api/v1/jobs?${query}`)).status, 400, query);
    assert.match((await host.get('/api/v1/jobs?colour=red')).json.detail, /colour/);
});

test('the page carries its policy, tags and a compressed form', async () => {
    const page = await host.get('/');
    assert.match(page.headers['content-type'], /^text\/html/);
    assert.match(page.headers['content-security-policy'], /default-src 'self'/);
    assert.ok(page.headers.etag);
    assert.equal((await host.get('/', { headers: { 'if-none-match': page.headers.etag } })).status, 304);
    const gzip = await host.get('/', { headers: { 'accept-encoding': 'gzip' } });
    if (gzip.headers['content-encoding'] === 'gzip') {
        assert.notEqual(gzip.headers.etag, page.headers.etag);
        assert.ok(gzip.bytes.length < page.bytes.length);
    }
});

test('long answers in JSON are compressed for those who ask', async () => {
    const ask = '/api/v1/config';
    const plain = await host.get(ask);
    assert.ok(plain.bytes.length > 5000);
    assert.equal(plain.headers['content-encoding'], undefined);
    assert.equal(plain.headers.vary, 'Accept-Encoding');
    for (const wanted of ['gzip', 'deflate, gzip;q=0.5, br', 'br, *', 'GZIP; q=1']) {
        const small = await host.get(ask, { headers: { 'accept-encoding': wanted } });
        assert.equal(small.headers['content-encoding'], 'gzip', wanted);
        assert.equal(Number(small.headers['content-length']), small.wire.length);
        assert.ok(small.wire.length < plain.bytes.length / 2, `${wanted}: ${small.wire.length} of ${plain.bytes.length}`);
        assert.deepEqual(small.json, plain.json, wanted);
    }
    for (const not of ['identity', 'gzip;q=0', 'gzip; q=0.0, *', 'br', 'xgzip', '*;q=0'])
        assert.equal((await host.get(ask, { headers: { 'accept-encoding': not } })).headers['content-encoding'], undefined, not);
    /* Short ones are not worth it, and say nothing of it. */
    const short = await host.get('/api/v1/version', { headers: { 'accept-encoding': 'gzip' } });
    assert.equal(short.headers['content-encoding'], undefined);
    assert.equal(short.headers.vary, undefined);
});

test('--web.dir serves files of that directory and nothing outside it', async () => {
    const dir = mkdtempSync(path.join(os.tmpdir(), 'polyd-web-'));
    mkdirSync(path.join(dir, 'www/js'), { recursive: true });
    writeFileSync(path.join(dir, 'www/index.html'), '<!doctype html><p>hi');
    writeFileSync(path.join(dir, 'www/js/a.js'), 'export {};');
    writeFileSync(path.join(dir, 'secret'), 'secret');
    symlinkSync(path.join(dir, 'secret'), path.join(dir, 'www/link'));
    const other = await Host.start([`--web.dir=${path.join(dir, 'www')}`]);
    try {
        assert.equal((await other.get('/')).text, '<!doctype html><p>hi');
        assert.match((await other.get('/js/a.js')).headers['content-type'], /^text\/javascript/);
        for (const target of ['/link', '/../secret', '/..%2fsecret', '/js/..%2f..%2fsecret', '/js', '/none'])
            assert.equal((await other.get(target)).status, 404, target);
    } finally {
        await other.stop();
        rmSync(dir, { recursive: true });
    }
});

test('probes, versions and settings', async () => {
    assert.equal((await host.get('/healthz')).text, 'ok\n');
    assert.equal((await host.get('/readyz')).text, 'ok\n');
    assert.match((await host.get('/readyz?verbose')).text, /\[\+\] store ok/);
    assert.deepEqual((await host.get('/health')).json, { status: 'ok' });
    assert.match((await host.get('/version')).text, /^\d+\.\d+\.\d+\n$/);
    assert.equal((await host.get('/api/v1/version')).json.name, 'polyd');
    const settings = (await host.get('/api/v1/config')).json.settings;
    const port = settings.find(s => s.section === 'server' && s.key === 'port');
    assert.equal(port.source, 'flag');
    assert.equal(port.value, '0');
    const fields = (await host.get('/api/v1/fields')).json;
    assert.ok(fields.fields.some(field => field.pointer === '/attention/degree'));
    assert.equal((await host.get('/api/v1/devices')).json.devices[1].run_id, '3');
});

test('every setting that the page offers by name is one of the document', async () => {
    const known = new Set((await host.get('/api/v1/fields')).json.fields.map(field => field.pointer));
    const offered = { columns: columnFields.map(([pointer]) => pointer), form: common.map(([pointer]) => pointer), list: often };
    for (const [place, pointers] of Object.entries(offered)) {
        assert.ok(pointers.length > 8, place);
        assert.deepEqual(pointers.filter(pointer => !known.has(pointer)), [], place);
    }
    const groups = new Set([...known].map(pointer => pointer.split('/')[1]));
    assert.deepEqual([...groupOrder, ...configOrder].filter(name => name !== 'job' && !groups.has(name)), []);
});

test('Prometheus text passes promtool', async t => {
    await submit(host);
    const reply = await host.get('/metrics');
    assert.equal(reply.headers['content-type'], 'text/plain; version=0.0.4; charset=utf-8');
    assert.match(reply.text, /^polyd_jobs\{state="queued"\} 1$/m);
    assert.match(reply.text, /^polyd_http_requests_total\{route="\/api\/v1\/jobs",method="POST",code="201"\} 1$/m);
    if (spawnSync('promtool', ['--version']).error) {
        t.skip('promtool is not installed');
        return;
    }
    execFileSync('promtool', ['check', 'metrics'], { input: reply.text });
});

test('a client that dribbles its request is cut off', { timeout: 60000 }, async () => {
    const socket = net.connect(host.port, '127.0.0.1');
    const begun = Date.now();
    const closed = new Promise(resolve => socket.on('close', resolve));
    socket.on('error', () => {});
    socket.write('GET /healthz HTTP/1.1\r\nHost: localhost\r\n');
    const timer = setInterval(() => socket.write('X-A: b\r\n'), 1000);
    await closed;
    clearInterval(timer);
    assert.ok(Date.now() - begun < 20000);
});

test('while draining nothing new is taken, and reads go on', async () => {
    const other = await Host.start();
    try {
        await other.tell('drain');
        const reply = await other.post('/api/v1/jobs', tinyJob());
        assert.equal(reply.status, 503);
        assert.ok(Number(reply.headers['retry-after']) >= 1);
        assert.equal((await other.get('/api/v1/jobs')).status, 200);
        const ready = await other.get('/readyz');
        assert.equal(ready.status, 503);
        assert.match(ready.text, /draining/);
        assert.equal((await other.get('/v2/health/ready')).status, 503);
        assert.equal((await other.get('/v2/health/live')).status, 200);
    } finally {
        await other.stop();
    }
});

test('a second server on the same port is refused with a sentence', async () => {
    await assert.rejects(Host.start([`--server.port=${host.port}`]), /cannot listen on 127.0.0.1 port/);
});

test('stopping with writes and streams in flight answers or ends them all', async () => {
    const other = await Host.start();
    const stream = other.events('/api/v1/events');
    await stream.opened;
    await other.tell('stall 700');
    const waiting = other.post('/api/v1/jobs', tinyJob());
    await sleep(200);
    const [reply] = await Promise.all([waiting, other.stop()]);
    assert.equal(reply.status, 201); // the commit came within the grace
    await stream.until(s => s.ended);
});
