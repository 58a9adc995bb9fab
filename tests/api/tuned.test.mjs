// Measured choices through the real daemon: a job on the emulated plug-in measures, the store keeps what it found, and
// the next one of its kind measures nothing. The machine is a text file (tests/devices/fake_nvml.c).
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { Machine, gpu } from '../lib/gpus.mjs';
import { Daemon, build, sleep } from './lib.mjs';

const nvml = path.join(build, 'fake/libnvidia-ml.so.1'), plugin = path.join(build, 'bin/backend_cuda_emulated.so');
const skip = [nvml, plugin, path.join(build, 'bin/polyd'), path.join(build, 'bin/polyd-worker')].every(existsSync)
    ? false : 'polyd, the fake NVML or the emulated plug-in is not built';

let host, machine, env;

async function begin(dir) {
    const kept = { ...process.env };
    Object.assign(process.env, env);
    host = await Daemon.start([`--devices.nvml=${nvml}`, '--devices.gpus=all', '--devices.gpu_sample_ms=100'], dir);
    for (const key of Object.keys(env))
        if (key in kept)
            process.env[key] = kept[key];
        else
            delete process.env[key];
}

before(async () => {
    if (skip)
        return;
    machine = new Machine([gpu(0)]);
    env = { ...machine.env, POLYD_CUDA_PLUGIN: plugin };
    await begin();
});
after(async () => {
    await host?.stop();
    machine?.remove();
});

const job = (more = {}) => ({
    name: 'measured', model: { preset: 'vit_micro', width: 16, depth: 1, heads: 1, patch: 14, mlp_ratio: 2 },
    data: { dataset: 'digits_gen', split: { rule: 'count', train: 24, val: 8 } }, resources: { device: 'cuda', threads: 1 },
    diagnostics: { every: 0 }, train: { steps: 3, batch: 4, eval_every: 3 }, ...more,
});

/** Runs the job to its end; what its worker said of measured choices. */
async function measured(body) {
    const made = await host.post('/api/v1/jobs', body);
    assert.equal(made.status, 201, made.text);
    for (;;) {
        const run = (await host.get(`/api/v1/runs?job=${made.json.id}`)).json.runs[0];
        if (run?.state === 'ended') {
            const log = (await host.get(`/api/v1/runs/${run.id}/logs`)).text;
            assert.equal(run.outcome, 'succeeded', `${run.reason}\n${log}`);
            const [, known, fresh] = /measured choices: (\d+) read, (\d+) measured/.exec(log) ?? assert.fail(log);
            return { known: Number(known), fresh: Number(fresh), run: run.id };
        }
        await sleep(50);
    }
}

const kept = async () => (await host.get('/api/v1/tuned')).json.devices;

test('the second run of a job measures nothing, also after a restart; dropped, all is measured again', { skip, timeout: 300000 }, async () => {
    assert.deepEqual(await kept(), []);
    const first = await measured(job());
    assert.equal(first.known, 0);
    assert.ok(first.fresh > 3, JSON.stringify(first));
    const [device] = await kept();
    assert.equal(device.records, first.fresh);
    assert.ok(device.bytes > 64 * device.records);
    assert.equal(device.kept.length, 1);
    assert.match(device.kept[0].library, /^cublasLt/);
    assert.ok(device.kept[0].driver.length > 0);
    assert.ok(!readdirSync(path.join(host.dir, 'state')).includes('cache') || !readdirSync(path.join(host.dir, 'state/cache')).includes('tuned.records'));

    const second = await measured(job());
    assert.deepEqual([second.known, second.fresh], [first.fresh, 0]);
    assert.deepEqual(await kept(), [device]);

    const { dir } = host;
    await host.stop({ keep: true });
    await begin(dir);
    const third = await measured(job());
    assert.deepEqual([third.known, third.fresh], [first.fresh, 0]);
    /* Other shapes are measured, and the old ones are not. */
    const wider = await measured(job({ train: { steps: 2, batch: 6, eval_every: 2 } }));
    assert.equal(wider.known, first.fresh);
    assert.ok(wider.fresh > 0 && wider.fresh <= first.fresh, JSON.stringify(wider));
    const doctor = execFileSync(path.join(build, 'bin/polyd'), [`--state.dir=${dir}/state`, `--devices.nvml=${nvml}`, 'doctor'], { encoding: 'utf8', env: { ...process.env, ...env, POLYD_CONFIG: '' } });
    assert.match(doctor, new RegExp(`^measured +${first.fresh + wider.fresh} choices for ${device.device} \\(driver ${device.kept[0].driver}, ${device.kept[0].library}\\), the last `, 'm'));

    const one = await host.get(`/api/v1/tuned/${encodeURIComponent(device.device)}`);
    assert.equal(one.json.records, first.fresh + wider.fresh);
    const target = `/api/v1/tuned/${encodeURIComponent(device.device)}`;
    assert.equal((await host.get(target, { headers: { 'if-none-match': one.headers.etag } })).status, 304);
    assert.equal((await host.call('DELETE', target)).status, 428);
    assert.equal((await host.call('DELETE', target, { headers: { 'if-match': '"1"' } })).status, 412);
    assert.equal((await host.call('DELETE', target, { headers: { 'if-match': one.headers.etag } })).status, 204);
    assert.deepEqual(await kept(), []);
    assert.equal((await host.get(target)).status, 404);
    assert.equal((await host.call('DELETE', target, { headers: { 'if-match': one.headers.etag } })).status, 404);
    assert.equal((await host.call('PUT', target)).status, 405);
    const again = await measured(job());
    assert.deepEqual([again.known, again.fresh], [0, first.fresh]);
});
