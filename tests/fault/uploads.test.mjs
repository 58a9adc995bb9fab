// Uploads of weights when the daemon is killed, when the disk is full, and when the file is large.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { closeSync, createReadStream, existsSync, ftruncateSync, mkdtempSync, openSync, readFileSync, readdirSync, rmSync, statSync, writeSync } from 'node:fs';
import http from 'node:http';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { build, Daemon, sleep } from '../api/lib.mjs';

const skip = existsSync(path.join(build, 'bin/polyd')) && existsSync(path.join(build, 'bin/polyd-worker')) ? false : 'polyd or polyd-worker is not built';

/** Names and shapes of GPT-2 as Hugging Face has them, the masks of attention included. */
function shapes({ width, depth, vocab, context }) {
    const all = { 'wte.weight': [vocab, width], 'wpe.weight': [context, width] };
    for (let i = 0; i < depth; i++) {
        all[`h.${i}.attn.bias`] = [1, 1, context, context];
        for (const [name, shape] of [['ln_1', [width]], ['attn.c_attn', [width, 3 * width]], ['attn.c_proj', [width, width]], ['ln_2', [width]], ['mlp.c_fc', [width, 4 * width]], ['mlp.c_proj', [4 * width, width]]]) {
            all[`h.${i}.${name}.weight`] = shape;
            all[`h.${i}.${name}.bias`] = [shape.at(-1)];
        }
    }
    return { ...all, 'ln_f.weight': [width], 'ln_f.bias': [width] };
}

/** Writes a file of such weights, all of them 0, without taking the space: returns its length. */
function sparse(file, size) {
    const header = {};
    let at = 0;
    for (const [name, shape] of Object.entries(shapes(size))) {
        const bytes = 4 * shape.reduce((a, b) => a * b);
        header[name] = { dtype: 'F32', shape, data_offsets: [at, at + bytes] };
        at += bytes;
    }
    const text = Buffer.from(JSON.stringify(header)), length = Buffer.alloc(8), fd = openSync(file, 'w');
    length.writeBigUInt64LE(BigInt(text.length));
    writeSync(fd, Buffer.concat([length, text]));
    ftruncateSync(fd, 8 + text.length + at);
    closeSync(fd);
    return 8 + text.length + at;
}

const describe = ({ width, depth, heads, context }) => encodeURIComponent(JSON.stringify({ model: { arch: 'gpt', width, depth, heads, context } }));
const folder = (host, name) => { try { return readdirSync(path.join(host.dir, 'state', name)); } catch { return []; } };
const memory = pid => Number(/VmHWM:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))[1]) / 1024;

/** Sends the file and resolves with status and text, or with the error. */
const send = (port, target, file, length) => new Promise(resolve => {
    const request = http.request({ host: '127.0.0.1', port, method: 'POST', path: target, headers: { 'content-type': 'application/octet-stream', 'content-length': length, connection: 'close' } }, response => {
        const pieces = [];
        response.on('data', piece => pieces.push(piece));
        response.on('error', error => resolve({ status: 0, text: error.message }));
        response.on('end', () => resolve({ status: response.statusCode, text: Buffer.concat(pieces).toString() }));
    });
    request.on('error', error => resolve({ status: 0, text: error.message }));
    createReadStream(file).pipe(request);
});

test('an upload killed at 20 random points leaves what was acknowledged and nothing else', { skip }, async context => {
    const seed = Number(process.env.POLYD_SEED ?? Date.now() % 1e6), size = { width: 128, depth: 4, heads: 4, vocab: 2000, context: 64 };
    context.diagnostic(`POLYD_SEED=${seed}`);
    let state = seed;
    const random = () => (state = (state * 1103515245 + 12345) % 2147483648) / 2147483648;
    const dir = mkdtempSync(path.join(os.tmpdir(), 'polyd-uploads-')), file = path.join(dir, 'gpt.safetensors'), length = sparse(file, size), bytes = readFileSync(file);
    const target = `/api/v1/models/killed/versions?description=${describe(size)}`;
    let host = await Daemon.start([], dir), acknowledged = 0;

    /** Sends the body in pieces; resolves when an answer or the end has come. */
    const slowly = () => new Promise(resolve => {
        const socket = net.connect(host.port, '127.0.0.1');
        const piece = Math.ceil(length / 8);
        let answer = '';
        socket.on('data', text => { answer += text; });
        socket.on('error', () => {});
        socket.on('close', () => resolve(answer));
        socket.write(`POST ${target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/octet-stream\r\nContent-Length: ${length}\r\n\r\n`);
        let at = 0;
        const next = () => {
            if (socket.destroyed || at >= length)
                return;
            socket.write(bytes.subarray(at, at + piece));
            at += piece;
            setTimeout(next, 5);
        };
        next();
    });
    try {
        const begun = Date.now(), whole = await slowly();
        assert.match(whole, /^HTTP\/1.1 201 /);
        acknowledged++;
        const took = Date.now() - begun;
        for (let i = 0; i < 20; i++) {
            const sent = slowly();
            await sleep(1.1 * took * random());
            host.child.kill('SIGKILL');
            await host.exit;
            const answer = await sent;
            acknowledged += /^HTTP\/1.1 201 /.test(answer) ? 1 : 0;
            host = await Daemon.start([], dir);
            const { versions } = (await host.get('/api/v1/models')).json.models[0], files = folder(host, 'models');
            assert.deepEqual(folder(host, 'uploads'), [], `kill ${i}`);
            assert.equal(files.length, versions.length, `kill ${i}: a file for each version and no other`);
            assert.ok(versions.length >= acknowledged, `kill ${i}: ${versions.length} versions, ${acknowledged} acknowledged`);
            acknowledged = versions.length; // one may have been registered whose answer did not come
            for (const v of versions) {
                const stored = await host.get(`/api/v1/models/killed/versions/${v.version}/file`);
                assert.equal(createHash('sha256').update(stored.bytes).digest('hex'), v.digest);
            }
        }
        await host.stop({ keep: true });
    } finally {
        host.child.kill('SIGKILL');
        rmSync(dir, { recursive: true, force: true });
    }
});

test('160 MB go in and out with less than 17 MB of the daemon’s memory more', { skip, timeout: 600000 }, async context => {
    const size = { width: 768, depth: 2, heads: 12, vocab: 30000, context: 1024 };
    const dir = mkdtempSync(path.join(os.tmpdir(), 'polyd-large-')), file = path.join(dir, 'gpt2.safetensors'), length = sparse(file, size);
    assert.ok(length > 160e6, String(length));
    const host = await Daemon.start([], dir);
    try {
        const before = memory(host.child.pid), began = Date.now();
        const { status, text } = await send(host.port, `/api/v1/models/large/versions?description=${describe(size)}`, file, length);
        assert.equal(status, 201, text);
        const uploaded = Date.now();
        const digest = createHash('sha256');
        let got = 0;
        await new Promise((resolve, reject) => http.get({ host: '127.0.0.1', port: host.port, path: '/api/v1/models/large/versions/1/weights', headers: { connection: 'close' } }, response => {
            response.on('data', piece => { got += piece.length; digest.update(piece); });
            response.on('error', reject);
            response.on('end', () => {
                assert.equal(response.headers.etag, `"${digest.digest('hex')}"`);
                assert.equal(Number(response.headers['content-length']), got);
                resolve();
            });
        }).on('error', reject));
        assert.ok(Math.abs(got - (length - 2 * 4 * 1024 ** 2)) < 1e5); // without the masks
        const most = memory(host.child.pid);
        context.diagnostic(`${(length / 1e6).toFixed(0)} MB: in ${uploaded - began} ms, out ${Date.now() - uploaded} ms; the daemon took ${before.toFixed(1)} MB before, ${most.toFixed(1)} MB at most`);
        assert.ok(most - before < 17, `${most} MB`);
        await host.stop({ keep: true });
    } finally {
        host.child.kill('SIGKILL');
        rmSync(dir, { recursive: true, force: true });
    }
});
