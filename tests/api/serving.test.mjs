// Served models behind the real daemon and worker: pictures, company, aliases, deaths, budgets, many lives.
// POLYD_CYCLES=1000 makes the long form of the last test.
import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync, readlinkSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { deflateSync } from 'node:zlib';
import { Daemon, build, sleep } from './lib.mjs';

const here = existsSync(path.join(build, 'bin/polyd')) && existsSync(path.join(build, 'bin/polyd-worker'));
const real = { skip: here ? false : 'polyd or polyd-worker is not built', timeout: 300000 };
const cycles = Number(process.env.POLYD_CYCLES ?? 20);
let host;

async function train(register, document) {
    const { json } = await host.post('/api/v1/jobs', { name: register, resources: { device: 'cpu', threads: 1 }, register, ...document });
    for (;; await sleep(100)) {
        const job = (await host.get(`/api/v1/jobs/${json.id}`)).json;
        if (job.state === 'done')
            break;
        assert.ok(!['failed', 'cancelled'].includes(job.state), job.reason);
    }
    while ((await host.get(`/api/v1/models/${register}/versions/1`)).status !== 200)
        await sleep(50);
}

const load = (model, options) => host.post(`/api/v1/models/${model}/versions/1/load`, undefined, options);

before(async () => {
    if (!here)
        return;
    host = await Daemon.start();
    await train('digits', { model: { preset: 'vit_micro' }, data: { dataset: 'digits_gen', split: { rule: 'count', train: 256, val: 64 } }, train: { steps: 20, batch: 32 }, diagnostics: { every: 0 } });
    await train('text', { model: { preset: 'gpt_micro' }, data: { dataset: 'text', path: 'text/corpus.txt', tokenizer: 'bytes' }, train: { steps: 8, batch: 4 }, diagnostics: { every: 0 } });
    for (const model of ['digits', 'text'])
        assert.equal((await load(model)).json.state, 'READY');
});
after(() => host?.stop());

function crc32(bytes) {
    let crc = ~0;
    for (const byte of bytes) {
        crc ^= byte;
        for (let k = 0; k < 8; k++)
            crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0);
    }
    return ~crc >>> 0;
}

function png(pixels, width, height) {
    const chunk = (type, data) => {
        const body = Buffer.concat([Buffer.from(type), data]);
        const out = Buffer.alloc(body.length + 8);
        out.writeUInt32BE(data.length);
        body.copy(out, 4);
        out.writeUInt32BE(crc32(body), body.length + 4);
        return out;
    };
    const head = Buffer.alloc(13);
    head.writeUInt32BE(width);
    head.writeUInt32BE(height, 4);
    head[8] = 8;
    const rows = Buffer.alloc((width + 1) * height);
    for (let y = 0; y < height; y++)
        pixels.copy(rows, y * (width + 1) + 1, y * width, (y + 1) * width);
    return Buffer.concat([Buffer.from('\x89PNG\r\n\x1a\n', 'latin1'), chunk('IHDR', head), chunk('IDAT', deflateSync(rows)), chunk('IEND', Buffer.alloc(0))]);
}

const digit = seed => Buffer.from(Array.from({ length: 784 }, (_, i) => (i * seed * 37 + (i >> 3) * 11) % 256));
const output = (reply, name) => reply.json.outputs.find(o => o.name === name).data;
const complete = (seed, more = {}) => host.post('/v1/completions', { model: 'text', prompt: 'the quick ', max_tokens: 24, seed, ...more });

/** Processes of this daemon's workers that serve `model`: their command lines name the state directory. */
const workers = () => readdirSync('/proc').filter(pid => /^\d+$/.test(pid)).filter(pid => {
    try {
        const line = readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0');
        return line.includes('serve') && !line.includes('shim') && line.some(part => part.startsWith(host.dir));
    } catch {
        return false;
    }
}).map(Number);

test('a request of thousands of images is answered whole, and one image beside it is not kept waiting', real, async () => {
    const many = 3000, one = 28 * 28;
    const pixels = Buffer.alloc(many * one);
    for (let i = 0; i < many; i++)
        pixels.set(digit(i % 10), i * one);
    const ask = (count, bytes, outputs) => {
        const head = Buffer.from(JSON.stringify({ inputs: [{ name: 'image', shape: [count, 1, 28, 28], datatype: 'UINT8', parameters: { binary_data_size: bytes.length } }], outputs }));
        return host.call('POST', '/v2/models/digits/infer', { body: Buffer.concat([head, bytes]), headers: { 'content-type': 'application/octet-stream', 'inference-header-content-length': head.length } });
    };
    const all = [{ name: 'class' }, { name: 'logits' }, { name: 'probabilities' }];
    let over = false;
    const large = ask(many, pixels, all).finally(() => { over = true; });
    const quick = [];
    while (!over && quick.length < 20) {
        quick.push(await ask(1, pixels.subarray(0, one), all));
        assert.equal(quick.at(-1).status, 200, quick.at(-1).text);
    }
    const reply = await large;
    assert.equal(reply.status, 200, reply.text.slice(0, 300));
    const [classes, logits, probabilities] = reply.json.outputs;
    assert.deepEqual([classes.shape, logits.shape, probabilities.shape], [[many], [many, 10], [many, 10]]);
    assert.ok(reply.bytes.length > 65536);
    for (let i = 0; i < many; i++) {
        assert.equal(classes.data[i], classes.data[i % 10], `image ${i}`);
        assert.ok(Math.abs(logits.data[i * 10] - logits.data[i % 10 * 10]) < 1e-3, `image ${i}`);
    }
    for (const answer of quick)
        assert.equal(answer.json.outputs[0].data[0], classes.data[0]);
    // The same in binary form.
    const binary = await ask(many, pixels, all.map(output => ({ ...output, parameters: { binary_data: true } })));
    assert.equal(binary.status, 200);
    const head = Number(binary.headers['inference-header-content-length']);
    assert.equal(binary.bytes.length - head, many * (8 + 40 + 40));
});

test('a picture is answered like its pixels', real, async () => {
    const pixels = digit(3);
    const tensor = await host.post('/v2/models/digits/infer', { inputs: [{ name: 'image', shape: [1, 1, 28, 28], datatype: 'UINT8', data: [...pixels] }] });
    assert.equal(tensor.status, 200, tensor.text);
    const picture = png(pixels, 28, 28);
    const raw = await host.call('POST', '/v2/models/digits/infer', { body: picture, headers: { 'content-type': 'image/png' } });
    assert.equal(raw.status, 200, raw.text);
    assert.deepEqual(output(raw, 'probabilities'), output(tensor, 'probabilities'));
    assert.deepEqual(output(raw, 'class'), output(tensor, 'class'));
    const json = await host.post('/v2/models/digits/infer', { inputs: [{ name: 'image', shape: [2], datatype: 'BYTES', data: [picture.toString('base64'), png(digit(5), 28, 28).toString('base64')] }] });
    assert.equal(json.status, 200, json.text);
    assert.equal(output(json, 'class').length, 2);
    for (const [what, body] of [['cut', picture.subarray(0, 60)], ['text', Buffer.from('hello')]]) {
        const reply = await host.call('POST', '/v2/models/digits/infer', { body, headers: { 'content-type': 'image/png' } });
        assert.equal(reply.status, 400, what);
        assert.match(reply.json.error, /input 'image', picture 0/);
    }
});

test('completions in company say what each says alone', real, async () => {
    const alone = [];
    for (let seed = 0; seed < 12; seed++)
        alone.push((await complete(seed, { logprobs: 2 })).json.choices[0]);
    const together = (await Promise.all(alone.map((_, seed) => complete(seed, { logprobs: 2 })))).map(r => r.json.choices[0]);
    assert.deepEqual(together, alone);
    const metrics = (await host.get('/metrics')).text;
    const value = name => Number(new RegExp(`^${name}\\{model="text",version="1"\\} (\\S+)$`, 'm').exec(metrics)[1]);
    assert.equal(value('polyd_infer_tokens_total'), 24 * 24);
    assert.equal(value('polyd_infer_time_to_first_token_seconds_count'), 24);
    assert.equal(value('polyd_infer_inter_token_seconds_count'), 24 * 23);
    assert.ok(value('polyd_infer_batch_size_sum') > 24, 'some ran together');
});

test('perplexity of a given text', real, async () => {
    const text = 'the lazy dog.';
    const reply = await host.post('/v1/completions', { model: 'text', prompt: text, max_tokens: 0, echo: true, logprobs: 0 });
    const { text: said, logprobs } = reply.json.choices[0];
    assert.equal(said, text);
    assert.equal(logprobs.token_logprobs.length, text.length);
    assert.equal(logprobs.token_logprobs[0], null);
    assert.ok(logprobs.token_logprobs.slice(1).every(v => v < 0));
    assert.deepEqual(reply.json.usage, { prompt_tokens: 13, completion_tokens: 0, total_tokens: 13 });
});

test('an alias names a version on every surface, and none that is missing', real, async () => {
    const put = async (alias, version) => {
        const { etag } = (await host.get('/api/v1/models/digits')).headers;
        return host.call('PUT', `/api/v1/models/digits/aliases/${alias}`, { json: { version }, headers: { 'if-match': etag } });
    };
    assert.equal((await put('prod', '1')).status, 200);
    assert.equal((await put('prod', '9')).status, 422);
    assert.equal((await host.get('/api/v1/models/digits')).json.aliases.prod, '1', 'a failed move leaves it');
    const body = { inputs: [{ name: 'image', shape: [1, 1, 28, 28], datatype: 'UINT8', data: [...digit(1)] }] };
    assert.equal((await host.post('/v2/models/digits/versions/prod/infer', body)).status, 200);
    assert.equal((await host.post('/v2/models/digits/versions/none/infer', body)).status, 404);
    assert.equal((await host.post('/v1/completions', { model: 'text:none', prompt: 'a' })).status, 404);
});

test('a worker that dies in the middle of a batch: every request ends, and it serves again', real, async () => {
    const before = workers();
    const many = Array.from({ length: 8 }, (_, seed) => complete(seed, { max_tokens: 5000 }));
    while (!/polyd_infer_running\{model="text",version="1"\} 8/.test((await host.get('/metrics')).text))
        await sleep(20);
    for (const pid of before)
        process.kill(pid, 'SIGKILL');
    for (const reply of await Promise.all(many)) {
        assert.equal(reply.status, 503, reply.text);
        assert.ok(Number(reply.headers['retry-after']) >= 1);
    }
    let reply;
    for (const end = Date.now() + 20000; (reply = await complete(1)).status !== 200; await sleep(100))
        assert.ok(Date.now() < end, reply.text);
    assert.ok(workers().every(pid => !before.includes(pid)));
});

test('unloading while busy ends what is open; loading again serves again', real, async () => {
    const open = [complete(1, { max_tokens: 5000 }), complete(2, { max_tokens: 5000 })];
    const stream = await host.events('/v1/completions', { method: 'POST', json: { model: 'text', prompt: 'a', max_tokens: 5000, stream: true } }).opened;
    await stream.until(s => s.events.length > 2);
    assert.equal((await host.post('/api/v1/models/text/versions/1/unload')).json.state, 'UNAVAILABLE');
    for (const reply of await Promise.all(open))
        assert.equal(reply.status, 503, reply.text);
    await stream.until(s => s.ended);
    assert.match(JSON.parse(stream.events.at(-1).data).error.message, /unload/);
    assert.equal((await complete(1)).status, 404);
    assert.equal((await load('text')).json.state, 'READY');
    assert.equal((await complete(1)).status, 200);
});

test('a completion may take longer than the deadline, as long as tokens come', real, async () => {
    await host.stop({ keep: true });
    host = await Daemon.start(['--serve.timeout_ms=1000'], host.dir);
    for (const end = Date.now() + 20000; (await load('text')).status !== 200; await sleep(100))
        assert.ok(Date.now() < end);
    let tokens = 12000, stream, took;
    for (;; tokens *= 2) { // as many as this machine needs more than the deadline for
        const began = Date.now(), whole = complete(3, { max_tokens: tokens });
        stream = await host.events('/v1/completions', { method: 'POST', json: { model: 'text', prompt: 'a', max_tokens: tokens, stream: true, stream_options: { include_usage: true } } }).opened;
        const reply = await whole;
        took = Date.now() - began;
        assert.deepEqual([reply.status, reply.json.usage?.completion_tokens], [200, tokens], reply.text.slice(0, 500));
        await stream.until(s => s.ended, 100000);
        if (took > 1200)
            break;
    }
    assert.equal(stream.events.at(-1).data, '[DONE]');
    assert.equal(JSON.parse(stream.events.at(-2).data).usage.completion_tokens, tokens);
    await host.stop({ keep: true });
    host = await Daemon.start([], host.dir);
});

test('a version that the budget does not hold is refused with the numbers', real, async () => {
    await host.stop({ keep: true });
    host = await Daemon.start(['--serve.memory_bytes=3000000'], host.dir);
    let reply;
    for (const end = Date.now() + 20000; ; await sleep(100)) {
        reply = await load('text');
        if (reply.status !== 503 && reply.status !== 409)
            break;
        assert.ok(Date.now() < end, reply.text);
    }
    assert.deepEqual([reply.status, reply.json.error.code], [422, 'limit'], reply.text);
    assert.match(reply.json.detail, /\d+ bytes|takes? \d+|serve\.memory_bytes/);
    assert.match((await host.get('/api/v1/models/text/versions/1')).json.reason, /serve\.memory_bytes/);
    await host.stop({ keep: true });
    host = await Daemon.start([], host.dir);
});

test(`${cycles} times loaded and unloaded leave nothing behind`, { ...real, timeout: 300000 + cycles * 2000 }, async () => {
    const state = () => {
        const status = readFileSync(`/proc/${host.child.pid}/status`, 'utf8');
        return { kib: Number(/VmRSS:\s+(\d+)/.exec(status)[1]), fds: readdirSync(`/proc/${host.child.pid}/fd`).filter(fd => {
            try {
                return !/socket/.test(readlinkSync(`/proc/${host.child.pid}/fd/${fd}`));
            } catch {
                return false;
            }
        }).length };
    };
    const once = async () => {
        for (const model of ['digits', 'text'])
            assert.equal((await load(model)).json.state, 'READY');
        assert.equal((await complete(1, { max_tokens: 2 })).status, 200);
        for (const model of ['digits', 'text'])
            assert.equal((await host.post(`/api/v1/models/${model}/versions/1/unload`)).json.state, 'UNAVAILABLE');
        assert.equal((await host.post('/api/v1/models/text/versions/9/load')).status, 404);
    };
    for (let i = 0; i < 5; i++)
        await once();
    const begun = state();
    for (let i = 0; i < cycles; i++)
        await once();
    const ended = state();
    assert.deepEqual(workers(), []);
    assert.ok(ended.kib - begun.kib < 1024, `the daemon grew from ${begun.kib} to ${ended.kib} KiB`);
    assert.ok(ended.fds <= begun.fds, `${begun.fds} files, then ${ended.fds}`);
    console.log(`${cycles} cycles of two models: ${begun.kib} -> ${ended.kib} KiB, ${begun.fds} -> ${ended.fds} files`);
});
