// node tests/api/bench_serve.mjs [SECONDS [PRESET [WEIGHTS]]]: throughput and latency of a served classifier
// (vit_tiny, 28 x 28, 49 patches) and of a language model (PRESET, default gpt_nano; bytes; 32 tokens a
// request) at 1, 4, 16 and 64 requests at once, through the daemon and its worker over loopback. One by one
// is the first line of each, in the same run. The load comes from this process, on the same cores; the worker's
// processor time for each unit is what other programs on the machine change least.
import { readdirSync, readFileSync } from 'node:fs';
import os from 'node:os';
import http from 'node:http';
import { Daemon, sleep } from './lib.mjs';

const seconds = Number(process.argv[2] ?? 5), preset = process.argv[3] ?? 'gpt_nano', weights = process.argv[4] ?? 'f32';
const threads = Math.min(2, os.cpus().length);
const host = await Daemon.start(['--serve.queue=256', '--serve.timeout_ms=600000', `--serve.weights=${weights}`, `--devices.threads_per_slot=${threads}`]);
const agent = new http.Agent({ keepAlive: true, maxSockets: 256 });

async function train(register, document) {
    const { json } = await host.post('/api/v1/jobs', { name: register, resources: { device: 'cpu', threads }, register, train: { steps: 1, batch: 1 }, diagnostics: { every: 0 }, ...document });
    for (; ; await sleep(200)) {
        const job = (await host.get(`/api/v1/jobs/${json.id}`)).json;
        if (job.state === 'done')
            break;
        if (job.state === 'failed')
            throw new Error(job.reason);
    }
    while ((await host.get(`/api/v1/models/${register}/versions/1`, { check: false })).status !== 200)
        await sleep(50);
    const loaded = await host.post(`/api/v1/models/${register}/versions/1/load`);
    if (loaded.status !== 200)
        throw new Error(loaded.text);
}

const send = (path, type, body, headers) => new Promise((resolve, reject) => {
    const request = http.request({ agent, host: '127.0.0.1', port: host.port, path, method: 'POST', headers: { 'content-type': type, 'content-length': body.length, ...headers } }, response => {
        response.resume();
        response.on('end', () => response.statusCode === 200 ? resolve() : reject(new Error(`status ${response.statusCode}`)));
    });
    request.on('error', reject);
    request.end(body);
});

/** Seconds of processor time of the daemon's serving workers. */
const spent = () => readdirSync('/proc').filter(pid => /^\d+$/.test(pid)).reduce((sum, pid) => {
    try {
        const line = readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0');
        if (!line.includes('serve') || line.includes('shim') || !line.some(part => part.startsWith(host.dir)))
            return sum;
        const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1].split(' ');
        return sum + (Number(fields[11]) + Number(fields[12])) / 100;
    } catch {
        return sum;
    }
}, 0);

async function measure(what, unit, each, one, least) {
    let base = 0;
    for (const at of [1, 4, 16, 64]) {
        const times = [];
        const cpu = spent(), begun = performance.now(), until = begun + seconds * 1000;
        await Promise.all(Array.from({ length: at }, async () => {
            for (let n = 0; n < least || performance.now() < until; n++) {
                const start = performance.now();
                await one(times.length);
                times.push(performance.now() - start);
            }
        }));
        const rate = times.length * each / (performance.now() - begun) * 1000;
        times.sort((a, b) => a - b);
        base ||= rate;
        console.log(`${what}, ${at} at once: ${rate.toFixed(1)} ${unit}/s (${(rate / base).toFixed(2)}x), p50 ${times[times.length >> 1].toFixed(1)} ms, p99 ${times[Math.floor(times.length * 0.99)].toFixed(1)} ms, ${(1000 * (spent() - cpu) / times.length / each).toFixed(2)} ms of processor each`);
    }
}

console.log(`${os.cpus().length} x ${os.cpus()[0].model}, load ${os.loadavg()[0].toFixed(1)}, ${threads} threads`);
await train('images', { model: { preset: 'vit_tiny', patch: 4 }, data: { dataset: 'digits_gen', split: { rule: 'count', train: 64, val: 32 } } });
const header = JSON.stringify({ inputs: [{ name: 'image', shape: [1, 1, 28, 28], datatype: 'UINT8', parameters: { binary_data_size: 784 } }], parameters: { binary_data_output: true } });
const image = Buffer.concat([Buffer.from(header), Buffer.alloc(784, 77)]);
const infer = () => send('/v2/models/images/infer', 'application/octet-stream', image, { 'inference-header-content-length': header.length });
await infer();
await measure('vit_tiny, one image a request', 'images', 1, infer, 2);
await host.post('/api/v1/models/images/versions/1/unload');
await train('text', { model: { preset }, data: { dataset: 'text', path: 'text/corpus.txt', tokenizer: 'bytes', context: 32 } });
const complete = seed => send('/v1/completions', 'application/json', Buffer.from(JSON.stringify({ model: 'text', prompt: 'the quick brown ', max_tokens: 32, seed })));
await complete(0);
await measure(`${preset} ${weights}, 32 tokens a request`, 'tokens', 32, complete, 1);
await host.stop();
agent.destroy();
