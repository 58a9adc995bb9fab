// A model that learns from a registered one: the teacher is trained and registered by the daemon, its weights are read from
// the file, and every number of the student's run is recomputed with what these weights say of each image.
import assert from 'node:assert/strict';
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { until } from '../lib/daemon.mjs';
import { numbers } from './reference/deit.mjs';
import { network } from './reference/networks.mjs';
import { train } from './reference/train.mjs';
import { Rig, SIDE, TRAIN, agree, differences, imageJob, merge, noise, parametersOf } from './rig.mjs';
import { png } from './reference/data/files.mjs';

let rig, teacher;
before(async () => {
    rig = await Rig.start();
    teacher = await rig.taught('master', imageJob({ train: { steps: 6, optimizer: { lr: 0.05 } } }));
});
after(() => rig?.stop());

const student = (more = {}, rest = {}) => imageJob(merge({ model: { arch: 'deit' }, train: { teacher: { model: 'master', ...more } } }, rest));

function expected(job, from = teacher) {
    const feed = rig.feed(job), { kind = 'hard', alpha = 0.5, tau = 1 } = job.train.teacher;
    const s = { ...rig.settings(job), teacher: { ...from, kind, alpha, tau } };
    return { feed, settings: s, ...train(s, feed) };
}

/** The job is as the reference has it, and another value of the field would give other numbers. */
async function holds(job, other) {
    const got = await rig.run(job);
    agree(got, expected(job));
    assert.ok(differences(got, expected(other), { tolerance: 1e-8 }).length > 0, 'another value gives the same numbers');
    return got;
}

test('/train/teacher/kind: hard, the class of the largest logit', () => holds(student({}, { train: { steps: 4, label_smoothing: 0.1 } }), student({ kind: 'soft', tau: 2 }, { train: { steps: 4, label_smoothing: 0.1 } })));
test('/train/teacher/kind: soft', () => holds(student({ kind: 'soft', tau: 3 }), student({ tau: 3 })));
test('/train/teacher/alpha', () => holds(student({ alpha: 0.8 }), student()));
test('/train/teacher/tau', () => holds(student({ kind: 'soft', tau: 2.5 }), student({ kind: 'soft' })));
test('/diagnostics/heatmaps, /diagnostics/histograms: of a deit, with two tokens in front of the patches and the lesson in the gradient', async () => {
    const job = student({ kind: 'soft' }, { attention: { activation: 'poly' }, diagnostics: { heatmaps: { every: 2 }, histograms: {} } });
    agree(await rig.run(job), expected(job));
});
test('/model/arch: a deit with a learned scale, in parts, with noise of its own and none of the teacher', () => {
    const more = { attention: { activation: 'poly', scale: 'learned', n_for_scale: 'keys' }, train: { accumulation: 2, dropout: 0.2, drop_path: 0.3 } };
    return holds(student({}, more), student({}, merge(more, { attention: { n_for_scale: 'patches' } })));
});
test('a student is evaluated and served by the mean of its heads, without its teacher', async () => {
    const job = student({}, { train: { steps: 4, precision: 'fp64', eval_every: 4 } }), got = await rig.run(merge(job, { register: 'pupil' }));
    const { run: id } = await rig.daemon.submit({ kind: 'evaluate', run: got.run.id, checkpoint: 'last', split: 'val' });
    await rig.daemon.reach(id, 'succeeded');
    const { series } = await rig.daemon.get(`/api/v1/runs/${id}/series?key=loss/val`);
    assert.ok(Math.abs(series[0].data[0].mean - got.series.get('loss/val').get(4)) < 1e-6);
    await until('the version', () => rig.daemon.get('/api/v1/models/pupil/versions/1'));
    await rig.daemon.post('/api/v1/models/pupil/versions/1/load');
    const pixels = rig.data.pixels.subarray(TRAIN * SIDE * SIDE, (TRAIN + 1) * SIDE * SIDE), params = parametersOf(got.checkpoints.get(4));
    const reply = await rig.daemon.post('/v2/models/pupil/infer', { inputs: [{ name: 'image', datatype: 'UINT8', shape: [1, 1, SIDE, SIDE], data: [...pixels] }] });
    const want = numbers(network, { s: rig.settings(job), params }, Array.from(pixels, x => (x / 255 - 0.1307) / 0.3081));
    reply.outputs.find(o => o.name === 'logits').data.forEach((x, i) => assert.ok(Math.abs(x - want[i]) < 2e-5 * Math.max(1, Math.abs(want[i]))));
});
test('two ranks', async () => {
    const job = student({ kind: 'soft', tau: 2 }, { resources: { slots: 2 } });
    agree(await rig.run(job), expected(job));
});

test('/train/teacher/model: a name, a version or an alias, recorded as the version with its file', async () => {
    const etag = (await fetch(`${rig.daemon.url}/api/v1/models/master`)).headers.get('etag');
    const put = await fetch(`${rig.daemon.url}/api/v1/models/master/aliases/prod`, { method: 'PUT', headers: { 'Content-Type': 'application/json', 'If-Match': etag }, body: '{"version": "1"}' });
    assert.ok(put.ok);
    const { sha256 } = await rig.daemon.get('/api/v1/models/master/versions/1');
    for (const model of ['master', 'master:1', 'master:prod']) {
        const { document } = await rig.daemon.post('/api/v1/jobs?dry_run=1', student({ model }));
        assert.equal(document.train.teacher.model, 'master:1');
        // fields /train/teacher/path and /train/teacher/sha256
        assert.match(document.train.teacher.path, /^runs\/\d+\/checkpoints\/step-/);
        assert.match(document.train.teacher.sha256, /^[0-9a-f]{64}$/);
        if (sha256)
            assert.equal(document.train.teacher.sha256, sha256);
        const again = await rig.daemon.post('/api/v1/jobs?dry_run=1', document);
        assert.deepEqual(again.document.train.teacher, document.train.teacher);
    }
});

/** The errors of a document that is not accepted. */
async function refused(job) {
    const reply = await fetch(`${rig.daemon.url}/api/v1/jobs`, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(job) });
    assert.equal(reply.status, 422);
    const { errors, detail } = await reply.json();
    return errors ? errors.map(e => `${e.pointer}: ${e.detail}`).join('\n') : detail;
}

test('/train/teacher/sha256: of another file than the version has now', async () => {
    const { document } = await rig.daemon.post('/api/v1/jobs?dry_run=1', student());
    document.train.teacher.sha256 = 'a'.repeat(64);
    assert.match(await refused(document), /#\/train\/teacher\/sha256: is not the digest of master:1/);
});

test('/train/teacher/path: a teacher that is not known, or named in overrides, is refused by its field', async () => {
    assert.match(await refused(student({ model: 'nobody' })), /#\/train\/teacher\/model: /);
    assert.match(await refused(student({ model: 'master:7' })), /#\/train\/teacher\/model: /);
    assert.match(await refused(student({ model: 'nobody' }, { model: { arch: 'vit' } })), /^#\/train\/teacher: a vit has no distillation head; a deit has$/);
    assert.match(await refused(merge(student(), { train: { teacher: null }, overrides: { '/train/teacher': { model: 'master' } } })), /overrides/);
});

test('a teacher stays while a run needs it; without its file the run fails at once, also after it has begun', async () => {
    await rig.taught('brief', imageJob({ train: { steps: 1 } }));
    const call = (method, what) => fetch(`${rig.daemon.url}/api/v1/${what}`, { method, headers: { 'Content-Type': 'application/json', 'If-Match': '*' }, ...method === 'POST' && { body: '{}' } });
    const { run } = await rig.daemon.submit(student({ model: 'brief' }, { data: { path: 'tests/long' }, train: { steps: 100000, eval_every: 100000, checkpoint_every: { steps: 1000 } }, diagnostics: { every: 0 } }));
    await until('a step', async () => (await rig.daemon.get(`/api/v1/runs/${run}`)).step > 0);
    await call('POST', `runs/${run}/pause`);
    const { document } = await rig.daemon.reach(run, 'paused');
    for (const what of ['models/brief/versions/1', 'models/brief']) {
        const reply = await call('DELETE', what);
        assert.equal(reply.status, 409);
        assert.match((await reply.json()).detail, new RegExp(`run ${run}, which has not ended, needs (this|a) version of model 'brief'`));
    }
    rmSync(path.join(rig.daemon.stateDir, document.train.teacher.path));
    await call('POST', `runs/${run}/resume`);
    const failed = await rig.daemon.reach(run, 'failed');
    assert.match(failed.reason, /#\/train\/teacher\/model: the checkpoint of brief:1 cannot be read/);
    assert.equal(failed.attempts, 2, 'one before the pause, one after it');
    assert.equal((await call('DELETE', 'models/brief')).status, 204);
});

test('a teacher of other classes or another image size is refused with both numbers', async () => {
    await rig.taught('wide', imageJob({ data: { dataset: 'digits_gen', path: undefined, image_size: undefined, split: { rule: 'count', train: 20, val: 8 } }, model: { patch: 14 }, train: { steps: 1, precision: 'fp32' }, diagnostics: { every: 0 } }));
    assert.match(await refused(student({ model: 'wide' })), /#\/train\/teacher\/model: wide:1 reads images of 28 x 28, the job's are 8 x 8|has \d+ classes, the data have \d+/);
    const { run } = await rig.daemon.submit(student());
    await rig.daemon.reach(run, 'succeeded');
});

test('a teacher of as many classes with other names is refused with the first that differs', async () => {
    const put = (folder, names) => names.forEach((name, i) => ['train', 'val'].forEach(part => Array.from({ length: 4 }, (_, k) => {
        const file = path.join(rig.folder, folder, part, name, `${k}.png`);
        mkdirSync(path.dirname(file), { recursive: true });
        writeFileSync(file, png({ height: SIDE, width: SIDE, channels: 3, data: noise(3 * SIDE * SIDE, 80 + 8 * i + k) }));
    })));
    put('pets', ['cat', 'dog', 'fish']);
    put('birds', ['cat', 'crow', 'dog']);
    const of = folder => ({ data: { dataset: 'image_folder', path: `tests/${folder}` } });
    await rig.taught('vet', imageJob(merge(of('pets'), { train: { steps: 1 } })));
    assert.match(await refused(student({ model: 'vet' }, of('birds'))), /#\/train\/teacher\/model: class 1 is 'crow', but 'dog' in vet:1/);
    await rig.daemon.post('/api/v1/jobs?dry_run=1', student({ model: 'vet' }, of('pets')));
});

test('/train/teacher: without one there is no distillation head, and without that head no teacher', async () => {
    assert.match(await refused(imageJob({ model: { arch: 'deit' } })), /#\/train\/teacher: is needed by a deit, whose distillation head/);
    assert.match(await refused(student({}, { model: { arch: 'vit' } })), /#\/train\/teacher: a vit has no distillation head/);
    assert.match(await refused(student({}, { model: { pool: 'mean' } })), /#\/model\/pool: must be cls/);
});
