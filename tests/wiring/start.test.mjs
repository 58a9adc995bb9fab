// Runs that begin with weights (train.start): each number is recomputed by the reference, from the very tensors of the file.
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { until } from '../lib/daemon.mjs';
import { parse, shown, write } from '../lib/safetensors.mjs';
import { killWorker } from '../lib/worker.mjs';
import { Rig, agree, imageJob, merge, textJob } from './rig.mjs';
import { initial } from './reference/init.mjs';
import { train } from './reference/train.mjs';

let rig;
before(async () => { rig = await Rig.start(); });
after(() => rig?.stop());

const fileOf = (run, step) => path.join(rig.daemon.stateDir, 'runs', String(run), 'checkpoints', `step-${String(step).padStart(12, '0')}.safetensors`);

/** What the reference goes on from: parameters (but for those that are reset), and with `optimizer` the states. */
function begin(tensors, { reset = [], optimizer = false, applied = 0 } = {}) {
    const pick = prefix => new Map([...tensors].filter(([name]) => prefix ? name.startsWith(prefix) : !/^(optim|ema|polyd)\./.test(name))
        .map(([name, t]) => [name.slice(prefix.length), t.data]).filter(([name]) => !reset.some(r => name.startsWith(r))));
    return { params: pick(''), ...optimizer && { m: pick('optim.m.'), v: pick('optim.v.'), applied } };
}

/** Runs the job and holds it against the reference that begins with `from`; the event that tells what was taken. */
async function holds(job, from) {
    const { run } = await rig.daemon.submit(job), feed = rig.feed(job), settings = rig.settings(job);
    const got = await rig.collect(run), want = { feed, settings, ...train(settings, feed, from) };
    agree(got, want, { tolerance: 1e-9 });
    return { run, got, want, told: got.run.started_from };
}

const base = more => imageJob(merge({ train: { steps: 3 } }, more ?? {}));

test('/train/start: a run begins with the weights of a checkpoint, of a version and of its averages', { timeout: 120000 }, async () => {
    const first = base({ train: { ema: 0.6, ema_serve: true } }), { run: { id: run }, checkpoints } = await rig.run(first);
    const second = base({ train: { steps: 2, seed: 7, start: { run: String(run), checkpoint: 2 } } });
    const averaged = new Map([...checkpoints.get(2).tensors].filter(([name]) => name.startsWith('ema.')).map(([name, t]) => [name.slice(4), t]));
    const one = await holds(second, begin(averaged));
    const { document } = (await rig.daemon.get(`/api/v1/runs/${one.run}`));
    assert.equal(document.train.start.step, 2);
    assert.match(document.train.start.sha256, /^[0-9a-f]{64}$/);
    // a version, without a network of its own in the document
    const { version } = await rig.daemon.post('/api/v1/models/begun/versions', { run_id: String(run) });
    const { step } = await rig.daemon.get(`/api/v1/models/begun/versions/${version}`);
    const third = base({ train: { steps: 2, start: { model: 'begun' } } });
    delete third.model;
    const ema = new Map([...checkpoints.get(step).tensors].filter(([name]) => name.startsWith('ema.')).map(([name, t]) => [name.slice(4), t]));
    const { run: id } = await rig.daemon.submit(third), full = base({ train: { steps: 2 } }), settings = rig.settings(full), feed = rig.feed(full);
    agree(await rig.collect(id), { feed, settings, ...train(settings, feed, begin(ema)) });
    // without it the numbers are others
    assert.notEqual([...one.want.series.get('loss/train').values()][0], [...rig.expect(base({ train: { steps: 2, seed: 7 } })).series.get('loss/train').values()][0]);
});

test('/train/start/model: a run begins with the mean of what several checkpoints serve', { timeout: 120000 }, async () => {
    const job = base({ train: { steps: 4, ema: 0.6, ema_serve: true, checkpoint_every: { steps: 1 }, keep: { latest: 4 } } }), { run: { id: run }, checkpoints } = await rig.run(job);
    const version = await rig.daemon.post('/api/v1/models/averaged/versions', { average: [2, 3, 4].map(checkpoint => ({ run: String(run), checkpoint })) });
    assert.deepEqual([version.origin, version.step, version.source.average.map(a => [a.run, a.step])], ['average', 4, [2, 3, 4].map(step => [String(run), step])]);
    const served = step => new Map([...checkpoints.get(step).tensors].filter(([name]) => name.startsWith('ema.')).map(([name, t]) => [name.slice(4), t.data]));
    const means = new Map([...served(2)].map(([name, data]) => [name, { data: Float64Array.from(data, (x, i) => (x + served(3).get(name)[i] + served(4).get(name)[i]) / 3) }]));
    await holds(base({ train: { steps: 2, start: { model: 'averaged:1' } } }), begin(means));
});

test('/train/start/optimizer: a run goes on with its optimiser, for more steps and with another rate', { timeout: 120000 }, async () => {
    for (const [name, make, optimizer] of [['adamw', imageJob, {}], ['msgdw', textJob, { name: 'msgdw', lr: 0.05 }]]) {
        const first = make({ train: { steps: 4, optimizer } }), { run: { id: run }, checkpoints } = await rig.run(first);
        const more = make({ train: { steps: 3, optimizer: { ...optimizer, lr: 0.02 }, start: { run: String(run), checkpoint: 'last', optimizer: true } } });
        await holds(more, begin(checkpoints.get(4).tensors, { optimizer: true, applied: 4 }));
        const other = make({ train: { steps: 1, optimizer: { name: name === 'adamw' ? 'msgdw' : 'adamw' }, start: { run: String(run), optimizer: true } } });
        const { run: failed } = await rig.daemon.submit(other);
        assert.match((await rig.daemon.reach(failed, 'failed')).reason, /optimizer/);
    }
});

test('/train/start/optimizer: parameters that do not begin from the file, or were not trained there, have no moments', { timeout: 240000 }, async () => {
    const { run: { id: run }, checkpoints } = await rig.run(base({ train: { freeze: 'patch_embed' } })), { tensors } = checkpoints.get(3), optimizer = true, applied = 3;
    assert.ok(!tensors.has('optim.m.patch_embed.proj.weight'));
    const start = more => ({ train: { steps: 2, start: { run: String(run), checkpoint: 'last', optimizer, ...more } } });
    await holds(base(start({ reset: 'head.' })), begin(tensors, { reset: ['head.'], optimizer, applied })); // of the same shape
    await holds(base(merge(start(), { model: { depth: 3 } })), begin(tensors, { optimizer, applied }));
    for (const zero of [0, 1]) { // of another shape
        const job = base(merge(start({ reset: 'patch_embed, pos_embed, blocks.1.' }), { model: { patch: 2 }, resources: { slots: 2 }, train: { zero } }));
        await holds(job, begin(tensors, { reset: ['patch_embed', 'pos_embed', 'blocks.1.'], optimizer, applied }));
    }
    const narrow = await rig.daemon.submit(base(merge(start(), { train: { precision: 'fp32' } }))), refused = await rig.daemon.reach(narrow.run, 'failed');
    assert.match(refused.reason, /#\/train\/start\/optimizer: the file does not have 'optim\.m\./);
    assert.equal(refused.attempts, 1);
});

test('/train/start/reset: a head for other classes begins anew, where the document says so', { timeout: 120000 }, async () => {
    const { run: { id: run }, checkpoints } = await rig.run(base());
    const deeper = base({ model: { depth: 3 }, train: { steps: 2, start: { run: String(run), checkpoint: 'last', reset: 'head., norm' } } });
    const { told } = await holds(deeper, begin(checkpoints.get(3).tensors, { reset: ['head.', 'norm'] }));
    assert.match(told.text, /not in the file: blocks\.2\..*blocks\.2\.mlp\.fc2\.bias; reset to initial values: .*head\.weight.*; in the file but not used: .*head\.weight/);
    assert.deepEqual([told.fields.missing, told.fields.unused, told.fields.optimizer], ['12', told.fields.reset, '0']);
    const wider = base({ model: { width: 16 }, train: { steps: 1, start: { run: String(run) } } }), { run: failed } = await rig.daemon.submit(wider);
    const refused = await rig.daemon.reach(failed, 'failed');
    assert.match(refused.reason, /has the shape \(.*\), the network needs .*train\.start\.reset/);
    assert.equal(refused.attempts, 1, 'another attempt could not do better');
    const text = await rig.daemon.submit(textJob({ train: { steps: 1, start: { run: String(run) } } }));
    assert.match((await rig.daemon.reach(text.run, 'failed')).reason, /no parameter of this network/);
});

test('/train/start/sha256: a run begins with the very file that was there when it was accepted, and no other', { timeout: 120000 }, async () => {
    const { run: { id: run } } = await rig.run(base()), { run: id } = await rig.daemon.submit(base({ train: { steps: 1, start: { run: String(run), checkpoint: 3 } } })), { document } = await rig.daemon.reach(id, 'succeeded');
    const file = fileOf(run, 3), bytes = readFileSync(file);
    bytes[bytes.length - 1] ^= 1;
    writeFileSync(file, bytes);
    const again = base({ train: { steps: 1, start: document.train.start } }), { run: failed } = await rig.daemon.submit(again);
    const other = await rig.daemon.reach(failed, 'failed');
    assert.match(other.reason, /has the digest/);
    assert.equal(other.attempts, 1, 'it will be no other file in another attempt');
    const refused = async (start, words) => assert.match(await rig.daemon.submit(base({ train: { start } })).then(() => 'accepted', error => String(error.message ?? error)), words);
    await refused({ run: String(run), checkpoint: 77 }, /no checkpoint at step 77/);
    await refused({ model: 'nowhere' }, /no model/);
    await refused({ model: 'nowhere', run: '1' }, /either model/);
    await refused({ run: String(run), checkpoint: 'first' }, /best, last, or the step/);
    await refused({ ...document.train.start, sha256: '0'.repeat(64) }, /is not the digest of the current checkpoint/);
    await refused({}, /either model/);
});

test('/train/start/step: a run that began with weights goes on bitwise after its worker was killed', { timeout: 180000 }, async () => {
    const { run: { id: run } } = await rig.run(base());
    const job = name => base({ name, data: { path: 'tests/long' }, train: { steps: 40, start: { run: String(run), checkpoint: 'last', optimizer: true }, freeze: 'patch_embed', layer_decay: 0.8,
        checkpoint_every: { steps: 2 }, keep: { latest: 1 } } });
    const whole = await rig.daemon.submit(job('whole'));
    await rig.daemon.reach(whole.run, 'succeeded');
    const broken = await rig.daemon.submit(job('broken'));
    await until('some steps', async () => (await rig.daemon.get(`/api/v1/runs/${broken.run}`)).step >= 6);
    await killWorker(rig.daemon.stateDir, broken.run);
    const row = await rig.daemon.reach(broken.run, 'succeeded');
    assert.ok(row.attempts > 1, 'it was started again');
    const bytes = id => shown(parse(readFileSync(fileOf(id, 40))).tensors);
    assert.deepEqual(bytes(broken.run), bytes(whole.run));
    // the first step after a resume needs no file of the start: only its digest decides the run
    assert.notDeepEqual(bytes(whole.run), shown(parse(readFileSync(fileOf(run, 3))).tensors));
});

test('/train/start/path: weights of another program are fine-tuned and come out under the same names', { timeout: 120000 }, async () => {
    const settings = rig.settings(base()), tensors = new Map([...initial({ ...settings, seed: 99 })].map(([name, p]) =>
        [name, { dtype: 'F32', shape: p.shape, bytes: Buffer.from(Float32Array.from(p.data).buffer) }]));
    writeFileSync(path.join(rig.folder, 'vit.safetensors'), write(tensors));
    const description = { model: base().model, data: { image_size: 8 } };
    const version = await rig.daemon.post('/api/v1/models/foreign/versions', { path: 'tests/vit.safetensors', description });
    assert.equal(version.origin, 'root');
    const from = new Map([...tensors].map(([name, t]) => [name, { data: Float64Array.from(new Float32Array(t.bytes.buffer, t.bytes.byteOffset, t.bytes.length / 4)) }]));
    const { run } = await holds(base({ train: { start: { model: 'foreign:1' } } }), begin(from));
    const out = Buffer.from(await (await fetch(`${rig.daemon.url ?? `http://127.0.0.1:${rig.daemon.port}`}/api/v1/runs/${run}/checkpoints/last/weights`)).arrayBuffer());
    const shapesOf = map => [...map].map(([name, t]) => `${name} ${t.shape}`).sort();
    assert.deepEqual(shapesOf(parse(out).tensors), shapesOf(tensors));
});
