// Jobs of device cuda through the real daemon, on a machine whose GPU is a text file (tests/devices/fake_nvml.c) and whose
// plug-in is the emulated one (tests/gpu/emu): they train, in bf16 unless said otherwise, and end near the CPU.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { Machine, gpu } from '../lib/gpus.mjs';
import { Daemon, build, sleep } from './lib.mjs';

const nvml = path.join(build, 'fake/libnvidia-ml.so.1'), plugin = path.join(build, 'bin/backend_cuda_emulated.so');
const nvrtc = path.join(build, 'fake/libnvrtc.so'); // tests/gpu/fake_nvrtc.c: each compilation takes as long as it is told
const skip = [nvml, plugin, nvrtc, path.join(build, 'bin/polyd'), path.join(build, 'bin/polyd-worker')].every(existsSync)
    ? false : 'polyd, the fake NVML and NVRTC or the emulated plug-in is not built';

let host, machine;
before(async () => {
    if (skip)
        return;
    machine = new Machine([gpu(0)]);
    const env = { ...machine.env, POLYD_CUDA_PLUGIN: plugin, POLYD_NVRTC: nvrtc, POLYD_FAKE_NVRTC_MS: '800' }, kept = { ...process.env };
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

/** Runs a job to its end; returns every phase that its run showed, with the state at that time, and the run. */
async function watch(body) {
    const made = await host.post('/api/v1/jobs', body);
    assert.equal(made.status, 201, made.text);
    const seen = [];
    for (;;) {
        const run = (await host.get(`/api/v1/runs?job=${made.json.id}`)).json.runs[0];
        if (run && run.phase !== (seen.at(-1)?.phase ?? null))
            seen.push({ phase: run.phase, state: run.state, step: run.step });
        if (run?.state === 'ended')
            return { seen, run: (await host.get(`/api/v1/runs/${run.id}`)).json };
        await sleep(20);
    }
}

const compiledOf = async run => {
    const stream = await host.events(`/api/v1/events?run=${run.id}&since=0`).opened;
    await stream.until(s => s.events.some(e => e.event === 'run.state' && JSON.parse(e.data).data.to === 'ended'));
    stream.close();
    return stream.events.filter(e => e.event === 'worker.compiled').map(e => JSON.parse(e.data).data);
};

test('compiling the kernels of a formula is a phase of the run, and the next run finds them in the cache', { skip, timeout: 120000 }, async () => {
    const rational = { ...job('cuda'), attention: { activation: 'formula', formula: 's^3/(1+abs(s))' }, diagnostics: { every: 3, probe_batch: 2 } };
    const first = await watch(rational);
    assert.equal(first.run.outcome, 'succeeded', first.run.reason);
    const phases = first.seen.filter(s => s.phase);
    assert.deepEqual(phases.map(s => s.phase), ['the forward pass in bf16 (1 of 2)', 'gradients in bf16 (2 of 2)', 'diagnostics in bf16 (1 of 1)']
        .map(what => `compiling kernels of formulas: ${what}`));
    assert.ok(phases.every(s => s.state === 'starting'), JSON.stringify(phases));
    assert.equal(first.seen.at(-1).phase, null);
    const [compiled, ...others] = await compiledOf(first.run);
    assert.equal(others.length, 0);
    assert.deepEqual([compiled.fields.kernels, compiled.fields.programs, compiled.fields.found], ['5', '3', '0']);
    assert.ok(Number(compiled.fields.seconds) >= 2.4 && Number(compiled.fields.seconds) < 60, compiled.fields.seconds);
    assert.match(compiled.text, /^5 kernels of formulas are ready after .* s: 3 programs compiled, 0 found in the cache$/);
    assert.match((await host.get(`/api/v1/runs/${first.run.id}/logs`)).text, /formula: kernels of gradients in bf16, heads of at most 64, compiled in /);

    const again = await watch(rational);
    assert.equal(again.run.outcome, 'succeeded', again.run.reason);
    const [found] = await compiledOf(again.run);
    assert.deepEqual([found.fields.kernels, found.fields.programs, found.fields.found], ['5', '3', '3']);
});

test('what a device cannot do is refused by name', { skip, timeout: 60000 }, async () => {
    for (const [device, precision] of [['cuda', 'fp64'], ['cpu', 'tf32'], ['cuda', 'fp16']]) {
        const made = await host.post('/api/v1/jobs', job(device, precision));
        assert.equal(made.status, 422, made.text);
        assert.match(made.text, /\/train\/precision/);
    }
});
