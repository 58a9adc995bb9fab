// Models served with serve.device = cuda through the real daemon, on the emulated plug-in and a machine that is a text file:
// they answer near the CPU on every surface, give their memory back, and say in one sentence why they cannot be loaded.
import assert from 'node:assert/strict';
import { existsSync, readFileSync, readdirSync, rmSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { Machine, gpu } from '../lib/gpus.mjs';
import { Daemon, build, sleep } from './lib.mjs';

const nvml = path.join(build, 'fake/libnvidia-ml.so.1'), plugin = path.join(build, 'bin/backend_cuda_emulated.so');
const skip = [nvml, plugin, path.join(build, 'bin/polyd'), path.join(build, 'bin/polyd-worker')].every(existsSync)
    ? false : 'polyd, the fake NVML or the emulated plug-in is not built';
const real = { skip, timeout: 300000 };
let host, machine, dir;

async function start(flags, env = {}) {
    const all = { ...machine.env, POLYD_CUDA_PLUGIN: plugin, ...env }, kept = { ...process.env };
    Object.assign(process.env, all);
    host = await Daemon.start([`--devices.nvml=${nvml}`, '--devices.gpus=all', '--devices.gpu_sample_ms=50', ...flags], dir);
    for (const key of Object.keys(all))
        if (key in kept)
            process.env[key] = kept[key];
        else
            delete process.env[key];
    dir = host.dir;
}

async function train(register, document) {
    const { json } = await host.post('/api/v1/jobs', { name: register, resources: { device: 'cpu', threads: 1 }, register, diagnostics: { every: 0 }, ...document });
    for (;; await sleep(50)) {
        const job = (await host.get(`/api/v1/jobs/${json.id}`)).json;
        if (job.state === 'done')
            break;
        assert.ok(!['failed', 'cancelled'].includes(job.state), job.reason);
    }
    while ((await host.get(`/api/v1/models/${register}/versions/1`)).status !== 200)
        await sleep(50);
}

const load = model => host.post(`/api/v1/models/${model}/versions/1/load`);
const unload = model => host.post(`/api/v1/models/${model}/versions/1/unload`);
const device = async () => (await host.get('/api/v1/devices')).json.devices.find(d => d.name === 'cuda:0');

async function until(check) {
    const limit = Date.now() + 60000;
    for (;;) {
        const found = await check();
        if (found)
            return found;
        assert.ok(Date.now() < limit, `waited in vain for ${check}`);
        await sleep(30);
    }
}

/** Processes that serve a model for this daemon. */
const workers = () => readdirSync('/proc').filter(pid => /^\d+$/.test(pid)).filter(pid => {
    try {
        const line = readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0');
        return line.includes('serve') && line.some(part => part.startsWith(dir));
    } catch {
        return false;
    }
});

before(async () => {
    if (skip)
        return;
    machine = new Machine([gpu(0)]);
    await start(['--serve.device=cpu']);
    await train('digits', { model: { preset: 'vit_micro', width: 32, depth: 2, heads: 2, patch: 7 }, attention: { activation: 'poly', degree: 3, scale: 'learned' },
        data: { dataset: 'digits_gen', split: { rule: 'count', train: 128, val: 32 } }, train: { steps: 30, batch: 16, init: 'trunc_xavier', optimizer: { name: 'adamw', lr: 0.003 } } });
    await train('text', { model: { preset: 'gpt_micro', width: 32, depth: 2, heads: 2 }, data: { dataset: 'text', path: 'text/corpus.txt', tokenizer: 'bytes' }, train: { steps: 30, batch: 4, optimizer: { name: 'adamw', lr: 0.003 } } });
});
after(async () => {
    if (host?.child.exitCode === null)
        await host.stop({ keep: true });
    if (dir)
        rmSync(dir, { recursive: true, force: true });
    machine?.remove();
});

const digit = seed => Array.from({ length: 784 }, (_, i) => (i * seed * 37 + (i >> 3) * 11) % 256);
const output = (reply, name) => reply.json.outputs.find(o => o.name === name).data;
const infer = n => host.post('/v2/models/digits/infer', { inputs: [{ name: 'image', shape: [n, 1, 28, 28], datatype: 'UINT8', data: Array.from({ length: n }, (_, i) => digit(i + 1)).flat() }] });
const score = () => host.post('/v1/completions', { model: 'text', prompt: 'the quick brown fox', max_tokens: 0, echo: true, logprobs: 0 });

/** What both devices are asked. */
async function answers() {
    const one = await infer(1), five = await infer(5);
    assert.equal(one.status, 200, one.text);
    assert.equal(five.status, 200, five.text);
    const said = await score();
    assert.equal(said.status, 200, said.text);
    const text = await host.post('/v1/completions', { model: 'text', prompt: 'the quick ', max_tokens: 16, temperature: 0 });
    assert.equal(text.status, 200, text.text);
    const generated = await host.post('/v2/models/text/generate', { text_input: 'the quick ', parameters: { max_tokens: 16, temperature: 0 } });
    assert.equal(generated.status, 200, generated.text);
    const stream = await host.events('/v1/completions', { method: 'POST', json: { model: 'text', prompt: 'the quick ', max_tokens: 16, temperature: 0, stream: true } }).opened;
    await stream.until(s => s.ended, 60000);
    assert.equal(stream.events.at(-1).data, '[DONE]'); /* how many parts there are depends on how fast they are read */
    const pieces = stream.events.map(e => e.data).filter(d => d !== '[DONE]').map(d => JSON.parse(d).choices[0].text);
    return { one: output(one, 'probabilities'), five: output(five, 'probabilities'), logprobs: said.json.choices[0].logprobs.token_logprobs,
        text: text.json.choices[0].text, generated: generated.json.text_output, streamed: pieces.join('') };
}

const near = (a, b, most, what) => {
    assert.equal(a.length, b.length, what);
    a.forEach((value, i) => assert.ok(value === b[i] || Math.abs(value - b[i]) <= most, `${what}[${i}]: ${value} and ${b[i]}`));
};

test('a model on cuda answers near the cpu on every surface, and gives everything back', real, async () => {
    for (const model of ['digits', 'text'])
        assert.equal((await load(model)).json.state, 'READY');
    assert.equal((await host.get('/v2/models/digits')).json.platform, 'polyd_cpu');
    const cpu = await answers();
    assert.equal((await device()).state, 'free');
    await host.stop({ keep: true });

    /* Both are wanted in memory: the next daemon loads them by itself, where its configuration says. */
    await start(['--serve.device=cuda']);
    await until(async () => (await host.get('/v2/health/ready')).status === 200 && (await host.get('/v2/models/text/ready')).status === 200 && (await host.get('/v2/models/digits/ready')).status === 200);
    for (const model of ['digits', 'text'])
        assert.equal((await host.get(`/v2/models/${model}`)).json.platform, 'polyd_cuda');
    const serving = await device();
    assert.deepEqual([serving.state, serving.models, serving.reason], ['serving', 2, '2 loaded models']);
    const cuda = await answers();
    /* bf16 has 8 bits: its rounding, and no more. */
    near(cuda.one, cpu.one, 0.03, 'one picture');
    near(cuda.five, cpu.five, 0.03, 'five pictures');
    near(cuda.logprobs, cpu.logprobs, 0.1, 'log-probabilities');
    assert.notDeepEqual(cuda.logprobs, cpu.logprobs, 'it is bf16, not the CPU again');
    assert.equal(cuda.generated, cuda.text);
    assert.equal(cuda.streamed, cuda.text);
    assert.deepEqual(await answers(), cuda, 'the same again, to the bit');

    /* What serving measured is kept as training's is. */
    assert.ok((await host.get('/api/v1/tuned')).json.devices[0].records > 0);
    /* A run may share the GPU with them. */
    const made = await host.post('/api/v1/jobs', { name: 'beside', model: { preset: 'vit_micro', width: 16, depth: 1, heads: 1, patch: 14 }, data: { dataset: 'digits_gen', split: { rule: 'count', train: 24, val: 8 } }, resources: { device: 'cuda', threads: 1 }, diagnostics: { every: 0 }, train: { steps: 3, batch: 4 } });
    await until(async () => (await host.get(`/api/v1/jobs/${made.json.id}`)).json.state === 'done');

    for (const model of ['digits', 'text']) {
        const gone = await unload(model);
        assert.equal(gone.status, 200, gone.text);
    }
    assert.deepEqual(workers(), [], 'their memory went with their processes');
    const free = await until(async () => { const d = await device(); return d.state === 'free' && d; });
    assert.equal(free.models, 0);
    assert.equal((await infer(1)).status, 404);
    await host.stop({ keep: true });
});

test('the device is not there: the load says why and names the setting, the rest goes on', real, async () => {
    const refused = async pattern => {
        const reply = await load('digits');
        assert.ok(reply.status >= 400 && reply.status < 600, reply.text);
        assert.match(reply.json.detail, pattern);
        const oip = await host.post('/v2/repository/models/digits/load');
        assert.match(oip.json.error, pattern);
        assert.deepEqual(workers(), []);
    };
    await start(['--serve.device=cuda', '--devices.nvml=/nonexistent/libnvidia-ml.so.1']);
    await refused(/^serve\.device is cuda, but this node has no NVIDIA GPU: .*libnvidia-ml\.so\.1 cannot be loaded/);
    await train('after', { model: { preset: 'vit_micro', width: 16, depth: 1, heads: 1, patch: 14 }, data: { dataset: 'digits_gen', split: { rule: 'count', train: 24, val: 8 } }, train: { steps: 2, batch: 4 } });
    await host.stop({ keep: true });

    await start(['--serve.device=cuda'], { POLYD_CUDA_PLUGIN: '', POLYD_PLUGIN_DIR: '/nonexistent' });
    await refused(/^serve\.device is cuda, but .*backend_cuda/);
    await host.stop({ keep: true });

    machine.write([gpu(0, { code: 15 })]);
    await start(['--serve.device=cuda']);
    await refused(/^serve\.device is cuda, but no GPU can be used: cuda:0 is drained \(it has fallen off the bus\)/);
    await host.stop({ keep: true });

    machine.write([gpu(0)]);
    await start(['--serve.device=cpu'], { POLYD_CUDA_PLUGIN: '', POLYD_PLUGIN_DIR: '/nonexistent' });
    assert.equal((await load('digits')).json.state, 'READY');
    assert.equal((await infer(2)).status, 200);
    await host.stop({ keep: true });
});
