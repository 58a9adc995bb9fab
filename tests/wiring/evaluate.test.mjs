// A job of kind evaluate, from the checkpoint and the samples that it names to its numbers: held against the reference, which
// has the parameters of that step and looks up the samples by itself.
import assert from 'node:assert/strict';
import { copyFileSync, mkdirSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { until } from '../lib/daemon.mjs';
import { killWorker } from '../lib/worker.mjs';
import { Rig, SIDE, imageJob, labelJob, merge, noise, textJob } from './rig.mjs';
import { cifar, png } from './reference/data/files.mjs';
import { initial } from './reference/init.mjs';
import { evaluate, numbersOf } from './reference/train.mjs';

let rig;
before(async () => { rig = await Rig.start(); });
after(() => rig?.stop());

/** The reference's numbers of an evaluation, by key. `data`: what the document says of the data beside the run's own. */
function expected(job, step, split, data = {}) {
    const { settings, checkpoints } = rig.expect(job), shapes = initial(settings);
    const feed = rig.feed(merge(merge(job, { data: { eval: [] } }), { data })), samples = feed.scored(split);
    const numbers = {};
    for (const [prefix, suffix] of settings.ema === null ? [['', '']] : [['', ''], ['ema.', '_ema']]) {
        const params = new Map(Array.from(shapes, ([name, p]) => [name, { shape: p.shape, data: checkpoints.get(step).get(prefix + name) }]));
        Object.assign(numbers, Object.fromEntries(numbersOf(settings, evaluate(settings, params, samples), `${split}${suffix}`)));
        for (const other of feed.evals ?? [])
            Object.assign(numbers, Object.fromEntries(numbersOf(settings, evaluate(settings, params, other.samples), `eval${suffix}`, other.name)));
    }
    return numbers;
}

/** The last value of each series of a run, and that all are of this step. */
async function numbers(run, step) {
    const rows = (await rig.daemon.get(`/api/v1/runs/${run}/export`)).trim().split('\n').slice(1).map(line => line.split(','));
    assert.deepEqual([...new Set(rows.map(row => row[1]))], [String(step)]);
    return Object.fromEntries(rows.map(row => [row[0], Number(row.at(-1))]));
}

function near(got, want) {
    assert.deepEqual(Object.keys(got).sort(), Object.keys(want).sort());
    for (const key of Object.keys(want))
        assert.ok(Math.abs(got[key] - want[key]) < 1e-9, `${key}: ${got[key]}, expected ${want[key]}`);
}

async function scores(document, step, want) {
    const { run } = await rig.daemon.submit({ kind: 'evaluate', resources: { device: 'cpu' }, ...document });
    const row = await rig.daemon.reach(run, 'succeeded');
    assert.equal(row.kind, 'evaluate');
    assert.equal(row.step, row.total_steps);
    const got = await numbers(run, step);
    near(got, want);
    return { run, got, document: row.document };
}

const counted = { split: { rule: 'count', train: 8, val: 3 } };

test('/evaluate/split: each split of pictures is scored for what it is, with the weights and with their averages', { timeout: 120000 }, async () => {
    const job = imageJob({ data: counted, train: { ema: 0.5 } });
    const { run } = await rig.run(job);
    const found = {};
    for (const split of ['test', 'val', 'train'])
        found[split] = (await scores({ run: run.id, checkpoint: 2, split }, 2, expected(job, 2, split))).got[`loss/${split}`];
    assert.equal(new Set(Object.values(found)).size, 3, 'the splits differ');
    assert.equal(rig.feed(job).scored('test').length, 7);
    // What the run itself found at that step.
    const own = rig.expect(job).series;
    assert.ok(Math.abs(found.val - own.get('loss/val').get(2)) < 1e-9);
});

test('/evaluate/step: of a pool the test part is what training and validation left; the points are at the step of the checkpoint', { timeout: 120000 }, async () => {
    const job = imageJob({ data: { split: { rule: 'fraction', train: 0.5, val: 0.25 }, split_seed: 3 } });
    const { run } = await rig.run(job);
    assert.equal(rig.feed(job).scored('test').length, 6);
    await scores({ run: run.id, checkpoint: 3 }, 3, expected(job, 3, 'test'));
});

test('a text that is left over is scored; other samples are those that the document names', { timeout: 120000 }, async () => {
    const split = { rule: 'fraction', train: 0.6, val: 0.2 }, job = textJob({ data: { split } });
    const { run } = await rig.run(job);
    await scores({ run: run.id, checkpoint: 'last' }, 3, expected(job, 3, 'test'));
    const other = { split: { rule: 'fraction', train: 0.5, val: 0.1 } };
    await scores({ run: run.id, checkpoint: 'last', data: other }, 3, expected(job, 3, 'test', other));
});

test('of a generated text each split is a stream of its own', { timeout: 120000 }, async () => {
    const job = textJob({ data: { dataset: 'text_gen', path: undefined, split: { rule: 'count', train: 300, val: 150 } } });
    const { run } = await rig.run(job), found = [];
    for (const split of ['test', 'val', 'train'])
        found.push((await scores({ run: run.id, checkpoint: 'last', split }, 3, expected(job, 3, split))).got[`loss/${split}`]);
    assert.equal(new Set(found).size, 3, 'the splits differ');
});

test('/evaluate/path: best is the best, last the last, a version the checkpoint that it was made of', { timeout: 120000 }, async () => {
    const job = imageJob({ data: counted, register: 'wired', train: { steps: 6, eval_every: 1 } });
    const { run } = await rig.run(job), best = rig.expect(job).best.step;
    assert.notEqual(best, 6, 'the last is the best: the test shows nothing');
    await scores({ run: run.id }, best, expected(job, best, 'test'));
    await scores({ run: run.id, checkpoint: 'last' }, 6, expected(job, 6, 'test'));
    const made = await until('the version', async () => (await rig.daemon.get('/api/v1/models/wired')).versions[0]);
    assert.equal(made.step, best);
    const { document } = await scores({ model: 'wired' }, best, expected(job, best, 'test'));
    assert.equal(document.evaluate.model, 'wired:1');
    assert.equal(document.evaluate.sha256, made.digest);
    // What a run was resolved to can be sent again, and is the same.
    const { kind, ...again } = document;
    const { document: same } = await scores(again, best, expected(job, best, 'test'));
    assert.deepEqual(same, { kind, ...again });
});

test('labelled texts are scored on each part, with the classes and the tokenizer of the checkpoint alone', { timeout: 120000 }, async () => {
    const job = labelJob({ data: { split: { rule: 'count', train: 13, val: 6 } } });
    const { run } = await rig.run(job);
    for (const split of ['test', 'val', 'train'])
        await scores({ run: run.id, checkpoint: 3, split }, 3, expected(job, 3, split));
    const refused = (data, pointer, because) => assert.rejects(
        rig.daemon.submit({ kind: 'evaluate', run: run.id, checkpoint: 3, split: 'val', resources: { device: 'cpu' }, data }), error => {
            assert.match(error.message, /422/);
            assert.ok(error.message.includes(`"pointer":"${pointer}"`), error.message);
            assert.match(error.message, because);
            return true;
        });
    const other = (file, labels) => writeFileSync(path.join(rig.folder, file), `label\ttext\n${labels.map(label => `${label}\tabc\n`.repeat(12)).join('')}`);
    other('two.tsv', ['bad', 'glad']);
    await refused({ path: 'tests/two.tsv' }, '#/data/dataset', /it has 2 classes, the checkpoint 3/);
    other('named.tsv', ['bad', 'glad', 'mad']);
    await refused({ path: 'tests/named.tsv' }, '#/data/path', /class 2 is 'mad', but 'sad' in the checkpoint/);
    await refused({ tokenizer: 'chars' }, '#/data/tokenizer', /is fixed by the checkpoint/);
    await refused({ dataset: 'text', path: 'tests/tiny.txt' }, '#/data/dataset', /it has 0 classes/);
    const chars = labelJob({ data: { tokenizer: 'chars', split: { rule: 'count', train: 13, val: 6 } } });
    const { run: second } = await rig.run(chars);
    await scores({ run: second.id, checkpoint: 3, split: 'val' }, 3, expected(chars, 3, 'val'));
    writeFileSync(path.join(rig.folder, 'words.tsv'), `label\ttext\n${['bad', 'glad', 'sad'].map(label => `${label}\txyz\n`.repeat(12)).join('')}`);
    await assert.rejects(rig.daemon.submit({ kind: 'evaluate', run: second.id, checkpoint: 3, resources: { device: 'cpu' }, data: { path: 'tests/words.tsv' } }), /422.*#\/data\/tokenizer.*differs from the checkpoint/);
});

test('pictures of another data set are normalised by the checkpoint', { timeout: 120000 }, async () => {
    const colours = (count, salt) => Array.from({ length: count }, (_, i) => ({ height: 32, width: 32, channels: 3, data: noise(3072, salt + i) }));
    const labels = Array.from({ length: 10 }, (_, i) => i), test = colours(10, 40), put = (name, bytes) => {
        mkdirSync(path.dirname(path.join(rig.folder, name)), { recursive: true });
        writeFileSync(path.join(rig.folder, name), bytes);
    };
    put('colour/data_batch_1.bin', cifar({ pictures: colours(10, 20), labels }));
    put('colour/test_batch.bin', cifar({ pictures: test, labels }));
    for (const part of ['train', 'test'])
        test.forEach((picture, i) => put(`same/${part}/${i}/0.png`, png(picture)));
    const job = imageJob({ data: { dataset: 'cifar10', path: 'tests/colour', image_size: undefined, split: { rule: 'standard', train: 8, val: 2 } }, model: { patch: 16, depth: 1 } });
    const { run } = await rig.run(job), want = expected(job, 3, 'test');
    await scores({ run: run.id, checkpoint: 3 }, 3, want);
    await scores({ run: run.id, checkpoint: 3, data: { dataset: 'image_folder', path: 'tests/same' } }, 3, want);
});

test('an average of checkpoints has no averages of its own, whatever its document says', { timeout: 120000 }, async () => {
    for (const serve of [false, true]) { // the mean is of the weights, or of their averages
        const job = imageJob({ data: counted, train: { ema: 0.5, ...serve && { ema_serve: true } } }), { settings, checkpoints } = rig.expect(job), { run } = await rig.run(job);
        const name = serve ? 'ofaverages' : 'ofweights', prefix = serve ? 'ema.' : '', means = new Map();
        await rig.daemon.post(`/api/v1/models/${name}/versions`, { average: [2, 3].map(checkpoint => ({ run: run.id, checkpoint })) });
        for (const [key, { shape }] of initial(settings))
            means.set(key, { shape, data: checkpoints.get(2).get(prefix + key).map((x, i) => (x + checkpoints.get(3).get(prefix + key)[i]) / 2) });
        await scores({ model: name, split: 'val' }, 3, Object.fromEntries(numbersOf(settings, evaluate(settings, means, rig.feed(job).scored('val')), 'val')));
    }
});

test('/kind: an evaluation whose worker was killed is made anew', { timeout: 120000 }, async () => {
    const { run } = await rig.run(imageJob());
    const document = { kind: 'evaluate', run: run.id, checkpoint: 1, data: { path: 'tests/long' }, resources: { device: 'cpu' } };
    const { run: whole } = await rig.daemon.submit(document);
    await rig.daemon.reach(whole, 'succeeded');
    const { run: cut } = await rig.daemon.submit(document);
    await until('its worker', async () => { // which throws while there is none
        killWorker(rig.daemon.stateDir, cut);
        return true;
    }, { every: 1 });
    const row = await rig.daemon.reach(cut, 'succeeded');
    assert.equal(row.attempts, 2);
    assert.deepEqual(await numbers(cut, 1), await numbers(whole, 1));
});

test('/evaluate/sha256: a checkpoint that is another file, or gone, is not scored', { timeout: 120000 }, async () => {
    const { run } = await rig.run(imageJob({ name: 'gone' })), folder = path.join(rig.daemon.stateDir, 'runs', run.id, 'checkpoints');
    const file = step => path.join(folder, readdirSync(folder).find(name => Number(name.slice(5, 17)) === step));
    const fails = async (checkpoint, because) => {
        const { run: id } = await rig.daemon.submit({ kind: 'evaluate', run: run.id, checkpoint, resources: { device: 'cpu' } }, '?accept_unplanned=1');
        const ended = await until('the end', async () => {
            const now = await rig.daemon.get(`/api/v1/runs/${id}`);
            return now.state === 'ended' && now;
        });
        assert.equal(ended.outcome, 'failed');
        assert.match(ended.reason, because);
        assert.equal(ended.attempts, 1);
    };
    copyFileSync(file(3), file(1)); // a good checkpoint, and not the one that was recorded
    await fails(1, /checkpoint of run \d+ at step 1 has the digest/);
    rmSync(file(2));
    await fails(2, /checkpoint of run \d+ at step 2 cannot be read/);
    // With a plan, both are known before.
    await assert.rejects(rig.daemon.submit({ kind: 'evaluate', run: run.id, checkpoint: 2, resources: { device: 'cpu' } }), /422.*#\/checkpoint/);
});

test('data that do not fit the checkpoint are refused', { timeout: 120000 }, async () => {
    const { run } = await rig.run(imageJob());
    const refused = (document, pointer) => assert.rejects(
        rig.daemon.submit({ kind: 'evaluate', resources: { device: 'cpu' }, ...document }), error => {
            assert.match(error.message, /422/);
            assert.ok(error.message.includes(`"pointer":"${pointer}"`), error.message);
            return true;
        });
    const records = Buffer.alloc(3073 * 4);
    writeFileSync(path.join(rig.folder, 'data_batch_1.bin'), records);
    await refused({ run: run.id, data: { dataset: 'cifar10', path: 'tests/data_batch_1.bin', split: { rule: 'count', train: 1, val: 1 } } }, '#/data/dataset');
    await refused({ run: run.id, data: { dataset: 'text', path: 'tests/tiny.txt' } }, '#/data/dataset');
    await refused({ run: run.id, data: { image_size: SIDE + 1 } }, '#/data/image_size');
    // A text with other characters has another tokenizer.
    const text = textJob({ data: { tokenizer: 'chars', split: { rule: 'fraction', train: 0.6, val: 0.2 } } });
    const { run: chars } = await rig.run(text);
    await scores({ run: chars.id, checkpoint: 'last' }, 3, expected(text, 3, 'test'));
    writeFileSync(path.join(rig.folder, 'other.txt'), Buffer.from('ABCDEFG'.repeat(30)));
    await refused({ run: chars.id, data: { path: 'tests/other.txt' } }, '#/data/tokenizer');
    await refused({ run: chars.id, data: { tokenizer: 'bytes' } }, '#/data/tokenizer');
    // No test part: neither of its own, nor one that is left.
    await refused({ run: chars.id, data: { split: { rule: 'fraction', train: 0.5, val: 0.5 } } }, '#/split');
});
