// A job on several slots: the real daemon, a process for each rank, the same trajectory as on one.
import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { Daemon, build, sleep } from './lib.mjs';


const here = existsSync(path.join(build, 'bin/polyd')) && existsSync(path.join(build, 'bin/polyd-worker'));
const skip = here ? false : 'polyd or polyd-worker is not built';

let host;
before(async () => {
    if (here)
        host = await Daemon.start(['--devices.cpu_slots=2']);
});
after(() => host?.stop());

const job = (slots, train = {}) => ({
    name: `on ${slots}`, model: { preset: 'vit_micro', depth: 2, width: 32, heads: 2 },
    attention: { activation: 'poly', degree: 3, scale: 'learned' },
    data: { dataset: 'digits_gen', split: { rule: 'count', train: 512, val: 96 } }, resources: { slots },
    train: { steps: 60, batch: 32, eval_every: 20, dropout: 0.1, optimizer: { lr: 2e-3 }, ...train },
});

async function finish(body) {
    const made = await host.post('/api/v1/jobs', body);
    assert.equal(made.status, 201, made.text);
    for (;;) {
        const run = (await host.get(`/api/v1/runs?job=${made.json.id}`)).json.runs[0];
        if (run?.state === 'ended') {
            assert.equal(run.outcome, 'succeeded', run.reason);
            return run;
        }
        await sleep(50);
    }
}

const series = async (run, key) => (await host.get(`/api/v1/runs/${run.id}/series?key=${encodeURIComponent(key)}&buckets=10000`)).json.series[0];

/** The processes of this daemon's runs. */
const processes = () => readdirSync('/proc').filter(pid => /^\d+$/.test(pid)).filter(pid => {
    try {
        return readFileSync(`/proc/${pid}/environ`, 'latin1').includes(`POLYD_MARK=${host.dir}/state:run`);
    } catch {
        return false;
    }
});

test('two ranks train what one does, and say so once', { skip, timeout: 300000 }, async () => {
    const one = await finish(job(1));
    const two = await finish(job(2));
    const zero = await finish(job(2, { zero: 1 }));
    for (const [key, tolerance] of [['loss/train', 2e-3], ['loss/val', 2e-3], ['grad/norm', 2e-2]]) {
        const want = await series(one, key);
        assert.ok(want.points > 0);
        for (const run of [two, zero]) {
            const got = await series(run, key);
            assert.equal(got.points, want.points, key); // rank 0 alone reports
            got.data.forEach((b, i) => assert.ok(Math.abs(b.mean - want.data[i].mean) <= tolerance * Math.max(1, Math.abs(want.data[i].mean)),
                `${key} ${i}: ${b.mean} and ${want.data[i].mean}`));
        }
    }
    assert.equal((await series(one, 'comm/wait')).points, 0);
    assert.ok((await series(two, 'comm/wait')).points > 0);
    const attempt = (await host.get(`/api/v1/runs/${two.id}`)).json.attempt_list?.[0];
    assert.equal(attempt.devices.length, 2, JSON.stringify(attempt));
    for (const limit = Date.now() + 20000; processes().length; await sleep(50)) // they leave after the row of their run has ended
        assert.ok(Date.now() < limit, `processes are left: ${processes()}`);
});

test('a batch that the ranks do not divide is refused by pointer', { skip }, async () => {
    const reply = await host.post('/api/v1/jobs', job(2, { batch: 33 }));
    assert.equal(reply.status, 422);
    assert.ok(reply.json.errors.some(e => e.pointer === '#/train/batch'), reply.text);
    const plan = await host.post('/api/v1/jobs?dry_run=1', job(2));
    assert.equal(plan.status, 200, plan.text);
});

/** The process of a rank. */
function rankOf(number) {
    for (const pid of readdirSync('/proc').filter(name => /^\d+$/.test(name)))
        try {
            if (!readFileSync(`/proc/${pid}/environ`, 'latin1').includes(`POLYD_MARK=${host.dir}/state:run`))
                continue;
            const words = readFileSync(`/proc/${pid}/cmdline`, 'latin1').split('\0');
            if (words[1] === 'train' && words[words.indexOf('--rank') + 1] === String(number))
                return Number(pid);
        } catch { /* it has just ended */ }
    return 0;
}

test('a killed daemon finds its gang again, a killed rank is named and made good', { skip, timeout: 300000 }, async () => {
    const made = await host.post('/api/v1/jobs', job(2, { steps: 320, checkpoint_every: { steps: 25 } }));
    assert.equal(made.status, 201, made.text);
    const now = async () => (await host.get(`/api/v1/runs?job=${made.json.id}`)).json.runs[0];
    const reach = async step => {
        for (;;) {
            const run = await now();
            assert.notEqual(run?.state, 'ended', run?.reason);
            if (run?.step >= step)
                return run;
            await sleep(20);
        }
    };
    await reach(40);
    host.child.kill('SIGKILL');
    await host.exit;
    host = await Daemon.start(['--devices.cpu_slots=2'], host.dir);
    const { id } = await reach(90);
    assert.equal((await host.get(`/api/v1/runs/${id}`)).json.attempt_list.length, 1);
    const pid = rankOf(1);
    assert.ok(pid > 0);
    process.kill(pid, 'SIGKILL');
    let run;
    for (run = await now(); run.state !== 'ended'; run = await now())
        await sleep(50);
    const full = (await host.get(`/api/v1/runs/${id}`)).json;
    assert.equal(run.outcome, 'succeeded', JSON.stringify(full.attempt_list));
    assert.equal(full.attempt_list.length, 2);
    assert.match(full.attempt_list[0].message, /rank 1/);
    assert.ok(full.attempt_list[1].start_step >= 75);
});
