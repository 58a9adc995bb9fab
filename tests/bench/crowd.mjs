// How long a new client waits while others take what they can get: idle connections, slow bodies, reads of a run with
// very many keys, inference of thousands of images. Loopback only; it ends by itself after --seconds.
//
//   node tests/bench/crowd.mjs [--seconds=20] [--idle=1500] [--slow=1030] [--keys=360000] [--readers=6] [--infer=4]
//
// POLYD_BUILD names the build (api_host, polyd, polyd-worker). The load and the measuring are processes of their own,
// so that the one does not slow the other's clock down.
import { fork } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import http from 'node:http';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { Daemon, Host, sleep, submit } from '../api/lib.mjs';

const self = fileURLToPath(import.meta.url);
const options = { seconds: 20, idle: 1500, slow: 1030, keys: 360000, readers: 6, infer: 4, images: 20000 };
for (const argument of process.argv.slice(2)) {
    const [, name, value] = /^--(\w+)=(\d+)$/.exec(argument) ?? [];
    if (!(name in options))
        throw new Error(`no such option: ${argument}`);
    options[name] = Number(value);
}

const shape = [1, 28, 28];
const pixels = shape.reduce((a, b) => a * b);

function inferBody(count) {
    const head = Buffer.from(JSON.stringify({ inputs: [{ name: 'image', shape: [count, ...shape], datatype: 'UINT8', parameters: { binary_data_size: count * pixels } }], outputs: [{ name: 'class' }] }));
    return { body: Buffer.concat([head, Buffer.alloc(count * pixels, 7)]), head: head.length };
}

/** One request on a connection of its own: [milliseconds, status]; status 0 = none came. */
function ask(port, target, { from = '127.0.0.1', infer = 0, limit = 30000 } = {}) {
    const begun = performance.now();
    return new Promise(resolve => {
        const done = status => resolve([performance.now() - begun, status]);
        const request = http.request({ host: '127.0.0.1', port, localAddress: from, path: target, agent: false, timeout: limit, method: infer ? 'POST' : 'GET', headers: { connection: 'close' } },
            response => { response.on('error', () => done(0)); response.on('end', () => done(response.statusCode)); response.resume(); });
        request.on('error', () => done(0));
        request.on('timeout', () => request.destroy());
        if (infer) {
            const { body, head } = inferBody(infer);
            request.setHeader('content-type', 'application/octet-stream');
            request.setHeader('inference-header-content-length', head);
            request.setHeader('content-length', body.length);
            request.write(body);
        }
        request.end();
    });
}

const quantile = (list, q) => list.length ? list[Math.min(list.length - 1, Math.floor(list.length * q))] : NaN;
function row(name, samples) {
    const times = samples.filter(([, status]) => status === 200).map(([ms]) => ms).sort((a, b) => a - b);
    const text = ms => Number.isNaN(ms) ? '-' : ms < 10 ? ms.toFixed(1) : String(Math.round(ms));
    return `| ${name} | ${samples.length} | ${samples.length - times.length} | ${text(quantile(times, 0.5))} | ${text(quantile(times, 0.99))} | ${text(times.at(-1) ?? NaN)} |`;
}

async function measure({ port, run, model, seconds }) {
    const addresses = ['127.0.0.1', '127.0.0.2', '127.0.0.3', '127.0.0.4'];
    const samples = { health: [], healthOther: [], jobs: [], jobsOther: [], metrics: [], image: [] };
    const end = performance.now() + seconds * 1000;
    const every = async (ms, one) => { for (let i = 0; performance.now() < end; i++) { await one(i); await sleep(ms); } };
    await Promise.all([
        every(20, async i => samples[i % 2 ? 'healthOther' : 'health'].push(await ask(port, '/healthz', { from: addresses[i % 2 ? 1 + i % 3 : 0] }))),
        every(50, async i => samples[i % 2 ? 'jobsOther' : 'jobs'].push(await ask(port, '/api/v1/jobs', { from: addresses[i % 2 ? 1 + i % 3 : 0] }))),
        every(200, async () => samples.metrics.push(await ask(port, '/metrics'))),
        every(100, async () => { if (model) samples.image.push(await ask(port, '/v2/models/digits/infer', { infer: 1 })); }),
    ]);
    void run;
    process.send([row('/healthz, own address', samples.health), row('/healthz, other addresses', samples.healthOther), row('/api/v1/jobs, own address', samples.jobs),
        row('/api/v1/jobs, other addresses', samples.jobsOther), row('/metrics', samples.metrics), ...(model ? [row('one image', samples.image)] : [])]);
}

/** Until it is ended. A connection that the server closes is opened again after a second. */
async function load({ port, run, model }) {
    const counts = { reconnects: 0, reads: 0, infers: 0, refused: 0 };
    const hold = (bytes, drip) => {
        const socket = net.connect(port, '127.0.0.1');
        let timer;
        socket.on('connect', () => { if (bytes) socket.write(bytes); if (drip) timer = setInterval(() => socket.write(drip), 1000); });
        socket.on('error', () => {});
        socket.on('close', () => { clearInterval(timer); counts.reconnects++; setTimeout(() => hold(bytes, drip), 1000); });
        socket.resume();
    };
    for (let i = 0; i < options.idle; i++) {
        hold();
        if (i % 50 === 0)
            await sleep(5);
    }
    for (let i = 0; i < options.slow; i++) {
        hold('POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{', ' ');
        if (i % 50 === 0)
            await sleep(5);
    }
    for (let i = 0; i < options.readers; i++)
        (async () => { for (;;) { const [, status] = await ask(port, `/api/v1/runs/${run}/metrics`); counts[status === 200 ? 'reads' : 'refused']++; if (status !== 200) await sleep(10); } })();
    for (let i = 0; model && i < options.infer; i++)
        (async () => { for (;;) { const [, status] = await ask(port, '/v2/models/digits/infer', { infer: options.images, limit: 120000 }); counts[status === 200 ? 'infers' : 'refused']++; if (status !== 200) await sleep(100); } })();
    process.on('message', () => { process.send(counts); process.disconnect(); setTimeout(() => process.exit(0), 100); });
    process.send('loading');
}

if (process.env.CROWD_ROLE) {
    const about = JSON.parse(process.env.CROWD_ABOUT);
    if (process.env.CROWD_ROLE === 'load')
        await load(about);
    else
        await measure(about);
} else {
    const dir = mkdtempSync(path.join(os.tmpdir(), 'polyd-crowd-'));
    // The keys are written as a run's worker writes them: clients may not log so many.
    mkdirSync(path.join(dir, 'state'));
    const maker = await Host.start([], { dir: path.join(dir, 'state') });
    await submit(maker);
    const run = (await maker.get('/api/v1/runs')).json.runs[0].id;
    await maker.tell(`start ${run}`);
    for (const verb of [`keys ${run} ${options.keys}`, `end ${run} 0`])
        await maker.tell(verb);
    await maker.stop();
    const daemon = await Daemon.start([], dir);
    const children = [];
    const start = (role, about) => {
        const child = fork(self, process.argv.slice(2), { env: { ...process.env, CROWD_ROLE: role, CROWD_ABOUT: JSON.stringify(about) } });
        children.push(child);
        return child;
    };
    const message = child => new Promise(resolve => child.once('message', resolve));
    try {
        const { json } = await daemon.post('/api/v1/jobs', { name: 'digits', register: 'digits', resources: { device: 'cpu', threads: 1 }, model: { preset: 'vit_micro' },
            data: { dataset: 'digits_gen', split: { rule: 'count', train: 256, val: 64 } }, train: { steps: 20, batch: 32 }, diagnostics: { every: 0 } });
        while ((await daemon.get(`/api/v1/jobs/${json.id}`)).json.state !== 'done')
            await sleep(200);
        while ((await daemon.get('/api/v1/models/digits/versions/1')).status !== 200)
            await sleep(100);
        const loaded = await daemon.post('/api/v1/models/digits/versions/1/load');
        if (loaded.json.state !== 'READY')
            throw new Error(loaded.text);
        const metadata = (await daemon.get('/v2/models/digits')).json;
        if (String(metadata.inputs[0].shape.slice(1)) !== String(shape))
            throw new Error(`the model takes images of ${metadata.inputs[0].shape}`);
        const about = { port: daemon.port, run, model: true };
        console.log(`${options.idle} idle, ${options.slow} slow bodies, ${options.readers} readers of ${options.keys} keys, ${options.infer} x ${options.images} images, ${options.seconds} s\n`);
        console.log('| request on a fresh connection | n | not 200 | median ms | p99 ms | most ms |\n|---|---|---|---|---|---|');
        for (const line of await message(start('measure', { ...about, seconds: 3 })))
            console.log(line.replace('| ', '| alone: '));
        const crowd = start('load', about);
        await message(crowd);
        await sleep(2000);
        for (const line of await message(start('measure', { ...about, seconds: options.seconds })))
            console.log(line);
        crowd.send('end');
        console.log(`\nthe load meanwhile: ${JSON.stringify(await message(crowd))}`);
        console.log((await daemon.get('/metrics')).text.split('\n').filter(line => /^polyd_http_(connections|slow|departed)/.test(line)).join('\n'));
    } finally {
        children.forEach(child => child.kill());
        await daemon.stop();
        rmSync(dir, { recursive: true, force: true });
    }
}
