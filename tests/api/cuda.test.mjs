// Jobs of device cuda through the real daemon, on a machine whose GPU is a text file (tests/devices/fake_nvml.c) and whose
// plug-in is the emulated one (tests/gpu/emu): they train, in bf16 unless said otherwise, and end near the CPU.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { Machine, gpu } from '../lib/gpus.mjs';
import { Daemon, build, sleep } from './lib.mjs';

const nvml = path.join(build, 'fake/libnvidia-ml.so.1'), plugin = path.join(build, 'bin/backend_cuda_emulated.so');
const skip = [nvml, plugin, path.join(build, 'bin/polyd'), path.join(build, 'bin/polyd-worker')].every(existsSync)
    ? false : 'polyd, the fake NVML or the emulated plug-in is not built';

let host, machine;
before(async () => {
    if (skip)
        return;
    machine = new Machine([gpu(0)]);
    const env = { ...machine.env, POLYD_CUDA_PLUGIN: plugin }, kept = { ...process.env };
    Object.assign(process.env, env);
    host = await Daemon.start([`--devices.nvml=${nvml}`, '--devices.gpus=all']);
    for (const key of Object.keys(env))
        if (key in kept)
            process.env[key] = kept[key];
        else
            delete process.env[key];
});
after(async () => {
    await host?.stop();
    machine?.remove();
});

const job = (device, precision) => ({
    name: `${device} ${precision ?? ''}`, model: { preset: 'vit_micro', width: 16, depth: 1, heads: 1, patch: 14, mlp_ratio: 2 },
    attention: { activation: 'poly', degree: 3, scale: 'learned' },
    data: { dataset: 'digits_gen', split: { rule: 'count', train: 24, val: 8 } }, resources: { device, threads: 1 },
    diagnostics: { every: 0 }, train: { steps: 6, batch: 4, eval_every: 6, ...(precision ? { precision } : {}) },
});

async function finish(body) {
    const made = await host.post('/api/v1/jobs', body);
    assert.equal(made.status, 201, made.text);
    for (;;) {
        const run = (await host.get(`/api/v1/runs?job=${made.json.id}`)).json.runs[0];
        if (run?.state === 'ended') {
            assert.equal(run.outcome, 'succeeded', run.reason);
            return (await host.get(`/api/v1/runs/${run.id}/series?key=loss/val&buckets=10`)).json.series[0].data.at(-1).mean;
        }
        await sleep(50);
    }
}

test('a job of device cuda trains and ends near the cpu', { skip, timeout: 300000 }, async () => {
    const cpu = await finish(job('cpu'));
    const half = await finish(job('cuda'));
    const full = await finish(job('cuda', 'fp32'));
    assert.ok(Math.abs(half - cpu) < 0.03 * cpu, `${half} in bf16, ${cpu} on the cpu`);
    assert.ok(Math.abs(full - cpu) < 1e-3 * cpu, `${full} in fp32, ${cpu} on the cpu`);
    assert.notEqual(half, full);
});

test('what a device cannot do is refused by name', { skip, timeout: 60000 }, async () => {
    for (const [device, precision] of [['cuda', 'fp64'], ['cpu', 'tf32'], ['cuda', 'fp16']]) {
        const made = await host.post('/api/v1/jobs', job(device, precision));
        assert.equal(made.status, 422, made.text);
        assert.match(made.text, /\/train\/precision/);
    }
});
