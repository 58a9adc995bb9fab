// Devices over HTTP: the real daemon on a machine whose GPUs are a text file (tests/devices/fake_nvml.c), its workers in
// the diagnostic role.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import path from 'node:path';
import { afterEach, test } from 'node:test';
import { Machine, gpu } from '../lib/gpus.mjs';
import { Daemon, build, sleep, tinyJob } from './lib.mjs';

const library = path.join(build, 'fake/libnvidia-ml.so.1');
const skip = existsSync(library) && existsSync(path.join(build, 'bin/polyd')) ? false : 'polyd or the fake NVML is not built';
const selftest = { POLYD_SELFTEST: '1', POLYD_SELFTEST_STEPS: '100000', POLYD_SELFTEST_STEP_US: '5000' };
const uuid = i => /uuid=(\S+)/.exec(gpu(i))[1];
let machine, host;

async function begin(lines, flags = [], env = selftest) {
    machine = new Machine(lines);
    const kept = { ...process.env };
    Object.assign(process.env, machine.env, env);
    host = await Daemon.start([`--devices.nvml=${library}`, '--devices.gpus=all', '--devices.gpu_sample_ms=50', ...flags]);
    for (const key of Object.keys({ ...machine.env, ...env }))
        if (key in kept)
            process.env[key] = kept[key];
        else
            delete process.env[key];
}

// A test that failed leaves its daemon behind.
afterEach(() => {
    if (host?.child.exitCode === null)
        host.child.kill('SIGKILL');
    machine?.remove();
});

async function end() {
    const { runs } = (await host.get('/api/v1/runs?state=active&limit=100')).json;
    for (const run of runs)
        await host.post(`/api/v1/runs/${run.id}/cancel`);
    await until(async () => (await host.get('/api/v1/runs?state=active&limit=1')).json.runs.length === 0);
    await host.stop();
    machine.remove();
}

async function until(check, ms = 60000) {
    const limit = Date.now() + ms;
    for (;;) {
        const found = await check();
        if (found)
            return found;
        assert.ok(Date.now() < limit, `waited ${ms} ms in vain for ${check}`);
        await sleep(30);
    }
}

const devices = async () => (await host.get('/api/v1/devices')).json;
const device = async name => (await devices()).devices.find(d => d.name === name);
const cuda = (slots = 1, more = {}) => tinyJob({ resources: { device: 'cuda', slots }, ...more });

test('eight GPUs: all that the driver tells', { skip, timeout: 180000 }, async () => {
    await begin([...Array(7).keys()].map(i => gpu(i)).concat(gpu(7, { util: 97, memutil: 41, temp: 66, power: 512300, used: 81234567890, ecc: '3,1', proc: '4711:80634567890' })));
    const { devices: all, driver } = await devices();
    assert.deepEqual(all.map(d => d.name), ['cpu:0', 'cuda:0', 'cuda:1', 'cuda:2', 'cuda:3', 'cuda:4', 'cuda:5', 'cuda:6', 'cuda:7']);
    assert.deepEqual(driver, { gpus: 8, why_none: null, version: '580.65.06', nvml: '13.fake', cuda: '13.0', xid_events: true });
    const { gpu: seen, ...seven } = await device('cuda:7');
    assert.deepEqual({ ...seven, id: undefined }, {
        id: undefined, name: 'cuda:7', kind: 'cuda', model: 'NVIDIA H200', threads: 0, memory_bytes: 150754820096, state: 'foreign',
        reason: 'a foreign process (pid 4711)', run_id: null, attempt: null, models: 0, drained: null,
    });
    assert.equal(seen.uuid, seven.id);
    assert.ok(seen.age_seconds < 5 && !seen.stale);
    assert.deepEqual([seen.utilization_ratio, seen.memory_utilization_ratio, seen.temperature_celsius, seen.power_watts, seen.power_limit_watts, seen.memory_used_bytes,
        seen.ecc_corrected, seen.ecc_uncorrected, seen.compute_capability, seen.sm_clock_mhz, seen.xid_errors, seen.last_xid], [0.97, 0.41, 66, 512.3, 700, 81234567890, 3, 1, '9.0', 1980, 0, null]);
    assert.deepEqual(seen.processes, [{ pid: 4711, memory_bytes: 80634567890 }]);
    assert.equal((await device('cpu:0')).gpu, null);
    const text = (await host.get('/metrics')).text;
    for (const line of [`polyd_gpu_allocated{gpu="7",uuid="${uuid(7)}"} 0`, `polyd_gpu_utilization_ratio{gpu="7",uuid="${uuid(7)}"} 0.97`, `polyd_gpu_memory_used_bytes{gpu="7",uuid="${uuid(7)}"} 81234567890`,
        `polyd_gpu_memory_total_bytes{gpu="0",uuid="${uuid(0)}"} 150754820096`, `polyd_gpu_power_watts{gpu="7",uuid="${uuid(7)}"} 512.300`, `polyd_gpu_temperature_celsius{gpu="0",uuid="${uuid(0)}"} 31`,
        `polyd_gpu_xid_errors_total{gpu="0",uuid="${uuid(0)}"} 0`, `polyd_gpu_out_of_service{gpu="7",uuid="${uuid(7)}"} 1`])
        assert.ok(text.includes(`${line}\n`), `${line}\n${text.match(/.*polyd_gpu_.*/g)?.join('\n')}`);
    await end();
});

test('a dry run names the GPUs that it would get; gpus: n is short', { skip, timeout: 180000 }, async () => {
    await begin([gpu(0), gpu(1, { proc: '99' }), gpu(2)]);
    const one = (await host.post('/api/v1/jobs?dry_run=1', cuda())).json;
    assert.deepEqual(one.queue, { position: 1, reason: 'would start at once', devices: ['cuda:0'] });
    assert.equal(one.document.resources.device, 'cuda');
    const short = (await host.post('/api/v1/jobs?dry_run=1', tinyJob({ resources: { gpus: 1 } }))).json;
    assert.deepEqual([short.document.resources.device, short.document.resources.slots, short.document.resources.gpus], ['cuda', 1, undefined]);
    for (const resources of [{ gpus: 1, device: 'cpu' }, { gpus: 2, slots: 1 }, { gpus: 0 }, { gpus: 'two' }]) {
        const reply = await host.post('/api/v1/jobs', tinyJob({ resources }));
        assert.equal(reply.status, 422, JSON.stringify(resources));
        assert.equal(reply.json.errors[0].pointer, '#/resources/gpus');
    }
    /* auto is the GPU where there is one. */
    assert.equal((await host.post('/api/v1/jobs?dry_run=1', tinyJob())).json.document.resources.device, 'cuda');
    await end();
});

test('a run holds its GPU; an operator takes another out and puts it back', { skip, timeout: 180000 }, async () => {
    await begin([gpu(0), gpu(1)]);
    const job = await host.post('/api/v1/jobs', cuda());
    assert.equal(job.status, 201, job.text);
    const held = await until(async () => (await devices()).devices.find(d => d.kind === 'cuda' && d.run_id));
    assert.equal(held.state, 'busy');
    const { runs } = (await host.get(`/api/v1/runs?job=${job.json.id}`)).json;
    const run = await until(async () => { const r = (await host.get(`/api/v1/runs/${runs[0].id}`)).json; return r.state === 'running' && r; });
    assert.deepEqual(run.attempts_list?.[0]?.devices ?? run.attempt_list?.[0]?.devices ?? [held.id], [held.id]);
    const other = held.name === 'cuda:0' ? 'cuda:1' : 'cuda:0';

    for (let twice = 0; twice < 2; twice++) {
        const reply = await host.post(`/api/v1/devices/${other}/drain`, { reason: 'its fan is loud' });
        assert.equal(reply.status, 200, reply.text);
        assert.equal(reply.json.drained.reason, 'its fan is loud');
        assert.equal(reply.json.drained.who, 'a client');
    }
    await until(async () => (await device(other)).state === 'drained');
    const second = (await host.post('/api/v1/jobs', cuda())).json;
    const waits = await until(async () => { const { queue } = (await host.get('/api/v1/queue')).json; return queue.length && queue[0].queue?.reason.includes('drained') && queue[0]; });
    assert.equal(waits.queue.reason, `waiting for a GPU: none is free, 1 is drained (${other}: its fan is loud)`);
    assert.equal((await host.post(`/api/v1/devices/${held.id}/drain`)).status, 200); /* by its id, too */
    await until(async () => (await device(held.name)).state === 'draining');
    assert.equal((await host.post(`/api/v1/devices/${encodeURIComponent(other)}/undrain`, {})).json.drained, null);
    await until(async () => (await device(other)).run_id);
    assert.equal((await device(other)).run_id, (await host.get(`/api/v1/runs?job=${second.id}`)).json.runs[0].id);

    assert.equal((await host.post('/api/v1/devices/cuda:9/drain')).status, 404);
    assert.equal((await host.post('/api/v1/devices/cuda:0/drain', { reason: 7 })).status, 422);
    assert.equal((await host.post('/api/v1/devices/cuda:0/drain', { because: 'x' })).status, 422);
    assert.equal((await host.call('GET', '/api/v1/devices/cuda:0/drain')).status, 405);
    const stream = await host.events('/api/v1/events?since=0').opened;
    await stream.until(s => s.events.filter(e => e.event === 'device.drained').length === 2 && s.events.some(e => e.event === 'device.undrained'));
    assert.deepEqual(JSON.parse(stream.events.find(e => e.event === 'device.drained').data).data,
        { device: (await device(other)).id, name: other, reason: 'its fan is loud', who: 'a client' });
    stream.close();
    await end();
});

test('an error that the driver reports drains the GPU, and its run goes on elsewhere', { skip, timeout: 180000 }, async () => {
    await begin([gpu(0), gpu(1)]);
    await host.post('/api/v1/jobs', cuda());
    const first = await until(async () => (await devices()).devices.find(d => d.kind === 'cuda' && d.run_id));
    await until(async () => (await host.get(`/api/v1/runs/${first.run_id}`)).json.step > 3);
    machine.write([gpu(0), gpu(1), `xid 1 ${first.gpu.index} 79`]);
    const gone = await until(async () => { const d = await device(first.name); return d.state === 'drained' && d; });
    assert.equal(gone.reason, 'XID 79: GPU has fallen off the bus');
    assert.equal(gone.drained.who, 'polyd');
    assert.equal(gone.gpu.last_xid, 79);
    const second = await until(async () => (await devices()).devices.find(d => d.kind === 'cuda' && d.run_id && d.attempt && d.name !== first.name));
    assert.equal(second.run_id, first.run_id);
    assert.equal(second.attempt, 2);
    assert.match((await host.get('/metrics')).text, new RegExp(`polyd_gpu_xid_errors_total\\{gpu="${first.gpu.index}",uuid="${first.id}"\\} 1\n`));
    await end();
});

test('a GPU that goes takes no run with it, and is used again when it comes back', { skip, timeout: 180000 }, async () => {
    await begin([gpu(0), gpu(1)]);
    await host.post('/api/v1/jobs', cuda());
    const first = await until(async () => (await devices()).devices.find(d => d.kind === 'cuda' && d.run_id));
    await until(async () => (await host.get(`/api/v1/runs/${first.run_id}`)).json.step > 3);
    const { index } = first.gpu;
    machine.write([gpu(1 - index).replace(/^gpu 1/, 'gpu 0')]);
    const gone = await until(async () => { const d = (await devices()).devices.find(one => one.id === first.id); return d.state === 'gone' && d; });
    assert.equal(gone.reason, 'the driver lists it no longer');
    assert.equal(gone.run_id, null);
    assert.deepEqual([gone.gpu.memory_used_bytes, gone.gpu.temperature_celsius, gone.gpu.stale], [null, null, false]);
    const moved = await until(async () => (await devices()).devices.find(d => d.run_id === first.run_id && d.id !== first.id && d.attempt));
    assert.equal(moved.attempt, 2);
    const run = (await host.get(`/api/v1/runs/${first.run_id}`)).json;
    assert.match(run.attempts_list?.[0]?.message ?? run.attempt_list?.[0]?.message ?? JSON.stringify(run), /cuda:\d: the driver lists the GPU no longer/);
    assert.match((await host.get('/metrics')).text, new RegExp(`polyd_gpu_out_of_service\\{gpu="[^"]*",uuid="${first.id}"\\} 1\n`));
    assert.equal((await host.post('/api/v1/jobs?dry_run=1', cuda(2))).status, 200); /* such a job would wait for it */
    machine.write([gpu(0), gpu(1)]);
    await until(async () => (await devices()).devices.find(d => d.id === first.id)?.state === 'free');
    await end();
});

test('polyd doctor says what is there, and why not', { skip, timeout: 180000 }, () => {
    machine = new Machine([gpu(0, { proc: '4711' }), gpu(1, { code: 15 })]);
    const say = (...flags) => execFileSync(path.join(build, 'bin/polyd'), [...flags, 'doctor'], { encoding: 'utf8', env: { ...process.env, ...machine.env, POLYD_CONFIG: '', POLYD_PLUGIN_DIR: '/nonexistent' } });
    const text = say(`--devices.nvml=${library}`);
    assert.match(text, /^driver +580\.65\.06, up to CUDA 13\.0/m);
    assert.match(text, /^cuda:0 +NVIDIA H200, .*compute capability 9\.0, GPU-/m);
    assert.match(text, /process 4711 computes there/);
    assert.match(text, /^cuda:1 .*BROKEN: it has fallen off the bus$/m);
    assert.match(text, /^backend_cuda .*backend_cuda/m);
    assert.match(text, /^comm_nccl /m);
    assert.match(say('--devices.nvml=/nonexistent/libnvidia-ml.so.1'), /^GPUs +none: .*cannot be loaded/m);
});

test('no GPU: jobs for one are refused in a sentence, and the others run', { skip, timeout: 180000 }, async () => {
    await begin([], ['--devices.nvml=/nonexistent/libnvidia-ml.so.1']);
    const { devices: all, driver } = await devices();
    assert.deepEqual(all.map(d => d.name), ['cpu:0']);
    assert.equal(driver.gpus, 0);
    assert.match(driver.why_none, /libnvidia-ml\.so\.1 cannot be loaded/);
    assert.equal(host.stderr.match(/gpus=0/g).length, 1, host.stderr);
    const reply = await host.post('/api/v1/jobs', cuda());
    assert.equal(reply.status, 422);
    assert.equal(reply.json.errors[0].pointer, '#/resources/device');
    assert.match(reply.json.errors[0].detail, /^this node has no NVIDIA GPU: .*libnvidia-ml\.so\.1 cannot be loaded/);
    const short = await host.post('/api/v1/jobs', tinyJob({ resources: { gpus: 1 }, train: { steps: 'many' } }));
    assert.equal(short.status, 422);
    assert.deepEqual(short.json.errors.map(e => e.pointer), ['#/resources/gpus', '#/train/steps'], 'of the word that was written, and every other error too');
    assert.equal((await host.post('/api/v1/jobs', tinyJob())).status, 201); /* auto is cpu */
    await until(async () => (await device('cpu:0')).run_id);
    assert.doesNotMatch((await host.get('/metrics')).text, /polyd_gpu_/);
    await end();
});

test('GPUs, but a worker that cannot use them: refused in a sentence', { skip, timeout: 180000 }, async () => {
    await begin([gpu(0)], [], { POLYD_PLUGIN_DIR: '/nonexistent' });
    const reply = await host.post('/api/v1/jobs', cuda());
    assert.equal(reply.status, 422);
    assert.match(reply.json.errors[0].detail, /backend_cuda/);
    assert.equal((await host.post('/api/v1/jobs?dry_run=1', tinyJob())).json.document.resources.device, 'cpu');
    await end();
});
