// Every field of the job that decides what a run is fed, and which runs a job becomes: real jobs through the daemon in
// fp64, recomputed from the files by tests/wiring/reference. A case is called by the field's pointer.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import zlib from 'node:zlib';
import { after, before, test } from 'node:test';
import { build, until } from '../lib/daemon.mjs';
import { resolved } from './reference/data/document.mjs';
import { cifar, png, writeMnist } from './reference/data/files.mjs';
import { inputsOf } from './reference/data/inputs.mjs';
import { philox } from './reference/philox.mjs';
import { runsOf } from './reference/data/sweep.mjs';
import { smallVocabulary } from './reference/data/tokens.mjs';
import { Rig, agree, imageJob, labelJob, merge, textJob } from './rig.mjs';

/** @type {Rig} */
let rig;

/* ---- files ---- */

/** A picture of noise, always the same for the same numbers. */
function picture(height, width, channels, salt) {
    const count = height * width * channels, words = new Uint32Array(Math.ceil(count / 16) * 4);
    for (let i = 0; i < words.length; i += 4)
        words.set(philox(salt, [i, 0, 0, 77]), i);
    return { height, width, channels, data: new Uint8Array(words.buffer, 0, count) };
}

/** `count` pictures with labels that do not repeat in order. */
const part = (count, salt, make) => ({
    pictures: Array.from({ length: count }, (_, i) => make(salt * 1000 + i)),
    labels: Array.from({ length: count }, (_, i) => philox(salt, [i, 0, 0, 78])[0] % 10),
});

/** Words of an own language, with rare ones and ends of lines, some beyond ASCII. */
function prose(count, salt) {
    const list = ['the', 'thé', 'she', 'sea', 'he', 'sells', 'shells', 'at', 'a', 'zoo', 'naïve', '<unk>'];
    return Array.from({ length: count }, (_, i) => {
        const [a, b] = philox(salt, [i, 0, 0, 79]);
        return list[Math.min(a % list.length, b % list.length)] + (i % 7 === 6 ? '\n' : ' ');
    }).join('');
}

/** Texts with labels that do not come in their order; some hold what CSV must quote. */
const labelled = (count, salt, labels) => Array.from({ length: count }, (_, i) => ({
    label: labels[philox(salt, [i, 0, 0, 81])[0] % labels.length], text: prose(i % 6, salt + i).trim() + (i % 5 ? '' : i % 2 ? ', "a"' : '\n"') }));
const csv = rows => ['text,"number",label', ...rows.map(({ label, text }, i) => `"${text.replaceAll('"', '""')}",${i},${label}`)].join('\r\n');
const jsonl = rows => rows.map(({ label, text }) => `${JSON.stringify({ text, label: /^-?\d+$/.test(label) ? Number(label) : label })}\n`).join('');
const tsv = rows => `label\ttext\n${rows.map(({ label, text }) => `${label}\t${text.replaceAll('\n', ' ')}\n`).join('')}`;

function writeFiles(dir) {
    const put = (name, bytes) => {
        mkdirSync(path.dirname(path.join(dir, name)), { recursive: true });
        writeFileSync(path.join(dir, name), bytes);
    };
    const grey = (count, salt) => part(count, salt, n => picture(12, 12, 1, n));
    const colour = (count, salt) => part(count, salt, n => picture(32, 32, 3, n));
    writeMnist(path.join(dir, 'grey'), [grey(23, 1), grey(7, 2)]);
    writeMnist(path.join(dir, 'zipped'), [grey(9, 3), grey(5, 4)], true);
    writeMnist(path.join(dir, 'untested'), [grey(24, 16), grey(1, 17)]);
    for (const what of ['images-idx3', 'labels-idx1'])
        rmSync(path.join(dir, `untested/t10k-${what}-ubyte`));
    put('colour/data_batch_1.bin', cifar(colour(6, 5)));
    put('colour/data_batch_2.bin', cifar(colour(5, 6)));
    put('colour/test_batch.bin', cifar(colour(4, 7)));
    put('single.bin', cifar(colour(12, 8)));
    // Sides of 7 to 17 pixels, upright and lying, some grey.
    let n = 0;
    const photo = () => {
        const [a, b, c] = philox(9, [n++, 0, 0, 80]);
        return png(picture(7 + a % 11, 7 + b % 11, c % 4 ? 3 : 1, 9000 + n));
    };
    for (const [name, count] of [['train/wolf', 5], ['train/ant', 4], ['train/owl', 4], ['val/owl', 3], ['val/ant', 2], ['other/owl', 1]])
        for (let i = 0; i < count; i++)
            put(`parts/${name}/${i}.png`, photo());
    for (const [name, count] of [['train/wolf', 5], ['train/ant', 6], ['val/ant', 3], ['val/wolf', 2], ['test/wolf', 4]])
        for (let i = 0; i < count; i++)
            put(`three/${name}/${i}.png`, photo());
    for (const [name, count] of [['train/wolf', 5], ['train/ant', 6], ['val/ant', 3], ['val/wolf', 2]])
        for (let i = 0; i < count; i++)
            put(`broken/${name}/${i}.png`, photo());
    for (let i = 0; i < 12; i++)
        put(`broken/test/ant/${i}.png`, 'no picture');
    for (const [name, count] of [['b', 7], ['a', 6]])
        for (let i = 0; i < count; i++)
            put(`whole/${name}/${i}.png`, photo());
    for (const [name, count] of [['n2/images', 6], ['n1/images', 5]])
        for (let i = 0; i < count; i++)
            put(`tiny/train/${name}/${i}.png`, photo());
    for (let i = 0; i < 4; i++)
        put(`tiny/val/images/val_${i}.png`, photo());
    put('tiny/val/val_annotations.txt', [1, 2, 2, 1].map((label, i) => `val_${i}.png\tn${label}\t0\t0\t9\t9\n`).join(''));
    put('plain.txt', `${prose(60, 1)}quirk\n`); // letters and a word that only validation has
    put('other.txt', prose(60, 2));
    put('ptb/ptb.train.txt', prose(50, 3));
    put('ptb/ptb.valid.txt', prose(20, 4));
    put('named/train.txt', prose(50, 3));
    put('named/valid.txt', prose(20, 7));
    put('tested/ptb.train.txt', prose(50, 3));
    put('tested/ptb.valid.txt', prose(20, 4));
    put('tested/ptb.test.txt', prose(30, 8));
    put('trained/wiki.train.tokens', prose(70, 5));
    put('trained/wiki.test.tokens', prose(30, 9));
    put('wiki/wiki.train.tokens', prose(50, 5));
    put('wiki/wiki.valid.tokens', prose(20, 6));
    for (const [name, count] of [['train/b.txt', 30], ['train/a/long.txt', 50], ['train/a.txt', 12], ['validation/1.txt', 18], ['test/2.txt.gz', 14], ['test/10.txt', 12]])
        put(`books/${name}`, name.endsWith('.gz') ? zlib.gzipSync(prose(count, count)) : prose(count, count));
    for (let i = 0; i < 14; i++)
        put(`web/subset${i % 3}/${i}.txt`, prose(5 + i % 4, 40 + i).trim());
    put('web/index.html', 'not read');
    put('labelled/one.csv', csv(labelled(40, 11, ['wolf', 'ant', 'Owl'])));
    put('labelled/numbers.jsonl.gz', zlib.gzipSync(jsonl(labelled(40, 12, ['10', '9', '-1']))));
    put('labelled/parts/train.tsv', tsv(labelled(20, 13, ['y', 'x', 'z'])));
    put('labelled/parts/val.csv', csv(labelled(9, 14, ['x', 'z'])));
    put('labelled/parts/test.jsonl', jsonl(labelled(9, 15, ['x', 'y'])));
    const tokens = (name, pairs) => Object.entries(smallVocabulary(pairs)).forEach(([file, text]) => put(`${name}/${file}`, text));
    tokens('gpt2-bpe', [['h', 'e'], ['s', 'he'], [' ', 't'], [' t', 'he'], ['l', 'l'], ['he', 'll']]);
    tokens('pairs', [['t', 'h'], ['th', 'e'], [' ', 's'], ['o', 'o']]);
}

/* ---- jobs ---- */

// Under softmax a key's bias has no gradient: AdamW would divide rounding errors by themselves (tests/golden/README.md 8).
const brief = {
    model: { depth: 1 }, attention: { activation: 'poly', degree: 2 },
    train: { steps: 4, eval_every: 2, checkpoint_every: { steps: 4 } }, diagnostics: { every: 0 },
};
const pictures = (data = {}, more = {}) => imageJob(merge(merge(brief, { data: { path: 'tests/grey', image_size: 12, ...data } }), more));
const text = (data = {}, more = {}) =>
    textJob(merge(merge(brief, { data: { path: 'tests/plain.txt', split: { rule: 'fraction', train: 0.7, val: 0.3 }, ...data } }), more));
/** The base's shares are taken back. */
const standard = (more = {}) => ({ rule: 'standard', train: null, val: null, ...more });
const labels = (data = {}, more = {}) =>
    labelJob(merge(merge(brief, { data: { path: 'tests/labelled/one.csv', split: undefined, ...data } }), more));
const generated = (data = {}, more = {}) => text({ dataset: 'text_gen', path: undefined, split: { rule: 'count', train: 300, val: 150 }, ...data }, more);
const augmented = (augment, data = {}) => pictures({ augment, ...data }, { train: { steps: 6 } }); // 5 steps are an epoch

/** Whatever `want` holds is in `got`. */
function covers(got, want, where = '') {
    if (want && typeof want === 'object' && !Array.isArray(want))
        for (const [key, value] of Object.entries(want))
            covers(got?.[key], value, `${where}/${key}`);
    else
        assert.deepEqual(got, want, where);
}

/** Holds a run that has ended against the job it came of. */
async function held(id, job) {
    const got = await rig.collect(id), want = rig.expect(job), { data, train: length } = resolved(job);
    // An image has no context, a text no pictures: those members say nothing then.
    const { augment, ...rest } = data;
    covers(got.run.document, { data: data.image_size === null ? rest : data, train: length });
    agree(got, want);
    const inputs = inputsOf(data, { tests: rig.folder });
    if (inputs)
        assert.equal(got.run.data_digest, inputs.digest, `the digest of ${data.dataset} ${data.path}`);
    assert.equal(got.run.data_digest_of, got.run.data_digest === null ? null : inputs ? 'contents' : data.dataset === 'text_labels' ? 'contents' : 'names_and_sizes');
    assert.equal(got.run.program_digest, program);
    assert.equal(got.series.get('steps_per_epoch').values().next().value, want.feed.stepsPerEpoch);
    return { got, want };
}

/**
 * Runs jobs and recomputes each. Every two of them train on something else, as the recomputation itself must show: a
 * field that moves nothing there would not be tested by it.
 * @param {any[]} jobs
 */
async function recomputed(...jobs) {
    const ids = await Promise.all(jobs.map(async job => (await rig.daemon.submit(job)).run));
    const all = [];
    for (const [i, id] of ids.entries())
        all.push(await held(id, jobs[i]));
    const traces = all.map(({ want }) => JSON.stringify(['loss/train', 'loss/val', 'loss/test'].map(key => [...want.series.get(key)?.values() ?? []])));
    assert.equal(new Set(traces).size, jobs.length, 'the jobs differ');
    return all;
}

/** SHA-256 of the worker's executable. */
const program = createHash('sha256').update(readFileSync(path.join(build, 'bin/polyd-worker'))).digest('hex');

before(async () => {
    rig = await Rig.start();
    writeFiles(rig.folder);
});
after(() => rig?.stop());

/* ---- data ---- */

test('/data/dataset', () => recomputed(
    pictures(),
    pictures({ dataset: 'digits_gen', path: undefined, image_size: undefined, split: { rule: 'count', train: 12, val: 11 } },
        { model: { patch: 14 } }),
    pictures({ dataset: 'cifar10', path: 'tests/colour', image_size: undefined }, { model: { patch: 16 } }),
    pictures({ dataset: 'image_folder', path: 'tests/parts', image_size: 8 }),
    pictures({ dataset: 'imagenet1k', path: 'tests/whole', image_size: 8, split: { rule: 'fraction', train: 0.6, val: 0.4 } }),
    pictures({ dataset: 'tiny_imagenet', path: 'tests/tiny', image_size: 8 }),
    text({ split: undefined, tokenizer: 'chars' }),
    text({ dataset: 'ptb', path: 'tests/ptb', tokenizer: 'words', split: undefined }),
    text({ dataset: 'wikitext2', path: 'tests/wiki', tokenizer: 'words', split: undefined }),
    text({ dataset: 'wikitext103', path: 'tests/wiki', split: undefined }),
    generated(), generated({ tokenizer: 'words' }), generated({ tokenizer: 'chars' }),
    ...['bytes', 'words', 'gpt2_bpe'].flatMap(tokenizer => [
        text({ dataset: 'pg19', path: 'tests/books', split: standard(), tokenizer }),
        text({ dataset: 'openwebtext', path: 'tests/web', split: standard({ val: 0.2, test: 0.15 }), tokenizer })]),
    text({ dataset: 'openwebtext', path: 'tests/web', split: { rule: 'fraction', train: 0.6, val: 0.3 } }),
    labels(),
));

test('/data/path', () => recomputed(
    pictures({ path: 'tests/zipped' }), pictures({ path: 'tests/grey' }),
    pictures({ dataset: 'cifar10', path: 'tests/single.bin', image_size: 8, split: { rule: 'fraction', train: 0.7, val: 0.3 } }),
    text({ path: 'tests/plain.txt' }), text({ path: 'tests/other.txt' }),
    ...['tests/ptb', 'tests/named'].map(path => text({ dataset: 'ptb', path, split: undefined })),
    ...['one.csv', 'numbers.jsonl.gz', 'parts', 'parts/train.tsv'].map(name => labels({ path: `tests/labelled/${name}` })),
));

test('the digest of pictures follows their names and sizes, that of what is generated is none', { timeout: 120000 }, async () => {
    const folder = path.join(rig.folder, 'changing'), put = (name, bytes) => {
        mkdirSync(path.dirname(path.join(folder, name)), { recursive: true });
        writeFileSync(path.join(folder, name), bytes);
    };
    const job = pictures({ dataset: 'image_folder', path: 'tests/changing', image_size: 8, split: standard({ val: 4 }) }, { train: { steps: 1 } });
    const found = [];
    for (const [name, size] of [['train/a/0.png', 9], ['train/a/0.png', 8], ['train/a/1.png', 8]]) {
        rmSync(folder, { recursive: true, force: true });
        for (let i = 2; i < 14; i++)
            put(`train/${i % 2 ? 'a' : 'b'}/${i}.png`, png(picture(8, 8, 3, i)));
        put(name, png(picture(size, 8, 3, 1)));
        const { run } = await rig.daemon.submit(job), row = await rig.daemon.reach(run, 'succeeded');
        assert.equal(row.data_digest_of, 'names_and_sizes');
        found.push(row.data_digest);
    }
    assert.equal(new Set(found).size, 3);
});

test('/data/split/rule', () => recomputed(
    pictures(),
    pictures({ split: { rule: 'fraction', train: 0.5, val: 0.2 } }),
    pictures({ split: { rule: 'count', train: 15, val: 6 } }),
    pictures({ dataset: 'image_folder', path: 'tests/whole', image_size: 8, split: { rule: 'count', train: 9, val: 4 } }),
    text({ split: { rule: 'count', train: 130, val: 60 } }), text({ split: { rule: 'fraction', train: 0.5, val: 0.4 } }),
    text({ dataset: 'ptb', path: 'tests/ptb', split: { rule: 'fraction', train: 0.6, val: 0.4 } }),
    generated({ split: { rule: 'fraction', train: 0.0003, val: 0.0001 } }), generated(),
    ...[{ rule: 'given' }, { rule: 'fraction', train: 0.6, val: 0.4 }, { rule: 'count', train: 15, val: 6 }].map(split => labels({ path: 'tests/labelled/parts', split })),
    labels({ split: { rule: 'count', train: 20, val: 9 } }),
));

test('/data/split/test: training, validation and test are three parts; the test is scored once, with the checkpoint that validation selected', { timeout: 240000 }, async () => {
    const all = await recomputed(
        pictures({ split: standard() }, { train: { steps: 6, eval_every: 1, ema: 0.5 } }),
        pictures({ split: standard({ train: 11, val: 5, test: 4 }), split_seed: 2 }),
        pictures({ split: standard({ val: 0.3 }) }, { train: { keep: { best: 0 } } }),
        pictures({ dataset: 'image_folder', path: 'tests/three', image_size: 8, split: undefined }),
        pictures({ dataset: 'imagenet1k', path: 'tests/three', image_size: 8, split: undefined }),
        pictures({ dataset: 'image_folder', path: 'tests/whole', image_size: 8, split: standard({ test: 3 }) }),
        pictures({ dataset: 'digits_gen', path: undefined, image_size: 12, split: standard({ train: 12, val: 5, test: 7 }) }),
        text({ split: standard({ test: 0.2 }), tokenizer: 'chars' }),
        text({ split: standard({ train: 0.5, val: 40, test: 50 }) }),
        text({ dataset: 'ptb', path: 'tests/tested', split: standard(), tokenizer: 'words' }),
        text({ dataset: 'wikitext2', path: 'tests/trained', split: standard({ val: 0.2 }) }),
        generated({ split: standard({ train: 300, val: 150, test: 100 }) }),
        labels({ path: 'tests/labelled/parts', split: standard() }),
        labels({ split: standard({ test: 8 }) }),
        pictures({ split: standard({ train: 0.5 }), path: 'tests/untested' }));
    assert.deepEqual(all.map(({ want }) => want.feed.test.length), [7, 4, 7, 4, 5, 3, 7, ...all.slice(7, 12).map(({ want }) => want.feed.test.length), 9, 8, 0]);
    assert.ok(all.slice(7, 12).every(({ want }) => want.feed.test.length), 'a text has a test part');
    // The best is not the last everywhere, or it would not show which one is tested.
    assert.ok(all.some(({ want }) => ![...want.series.get('loss/test')?.keys() ?? []].includes(want.steps)), 'each best was the last');
});

test('/data/split/test: a run whose test part cannot be read fails, and says so', { timeout: 120000 }, async () => {
    const { run } = await rig.daemon.submit(pictures({ dataset: 'image_folder', path: 'tests/broken', image_size: 8, split: standard() }));
    const row = await rig.daemon.reach(run, 'failed');
    assert.match(row.reason, /1[12] of 28 pictures so far cannot be decoded, the first 'test\/ant\//);
    const { series } = await rig.daemon.get(`/api/v1/runs/${run}/metrics`);
    assert.ok(series.some(({ key }) => key === 'loss/val') && !series.some(({ key }) => key === 'loss/test'));
});

test('/data/split/test: as large as asked for; what is more than there is, or no share of a whole, is refused', { timeout: 120000 }, async () => {
    await recomputed(...[2, 5].map(n => pictures({ split: standard({ val: 4, test: n }) })), text({ split: standard({ test: 0.1 }) }), text({ split: standard({ test: 0.3 }) }));
    const refused = (job, pointer, because) => assert.rejects(rig.daemon.submit(job), error => {
        assert.match(error.message, /422/);
        assert.ok(error.message.includes(`"pointer":"#${pointer}"`), error.message);
        assert.match(error.message, because);
        return true;
    });
    await refused(pictures({ split: standard({ test: 8 }) }), '/data/split/test', /8 samples are requested, only 7 exist/);
    await refused(pictures({ split: standard({ val: 24 }) }), '/data/split/val', /24 samples are requested, only 23 exist/);
    await refused(pictures({ split: standard({ train: 20, val: 4 }) }), '/data/split/train', /20 samples are requested, only 19 exist/);
    await refused(pictures({ split: standard({ train: 1.5 }) }), '/data/split/train', /fraction below 1, or an integer/);
    await refused(generated({ split: standard({ train: 300, val: 0.5 }) }), '/data/split/val', /must be a count/);
    await refused(text({ split: standard({ train: 0.6, val: 0.3, test: 0.2 }) }), '/data/split', /more than 1/);
});

test('/data/split/train', () => recomputed(
    ...[0.45, 0.55].map(train => pictures({ split: { rule: 'fraction', train, val: 0.3 } })),
    ...[11, 17].map(train => pictures({ split: { rule: 'count', train, val: 5 } })),
    ...[100, 101].map(train => text({ tokenizer: 'chars', split: { rule: 'count', train, val: 90 } })),
    text({ split: undefined }),
));

test('/data/split/val', () => recomputed(
    ...[0.2, 0.3].map(val => pictures({ split: { rule: 'fraction', train: 0.5, val } })),
    ...[4, 6].map(val => pictures({ split: { rule: 'count', train: 15, val } })),
    ...[30, 60].map(val => text({ split: { rule: 'count', train: 150, val } })),
    text({ split: undefined }), text({ split: { train: 0.6 } }), text({ split: { train: 0.6, val: 0.3 } }),
));

test('/data/split_seed', () => recomputed(
    ...[0, 1, null].map(split_seed => pictures({ split_seed, split: { rule: 'fraction', train: 0.5, val: 0.3 } }, { train: { seed: 5 } })),
    pictures({ dataset: 'digits_gen', path: undefined, image_size: 12, split_seed: 3, split: { rule: 'count', train: 9, val: 3 } }),
    ...[0, 2, null].map(split_seed => labels({ split_seed }, { train: { seed: 5 } })),
    ...[0, 2, null].map(split_seed => generated({ split_seed }, { train: { seed: 5 } })),
));

test('/data/image_size', () => recomputed(
    pictures(), pictures({ image_size: 8 }), pictures({ image_size: [8, 12] }), pictures({ image_size: [20, 16] }),
    pictures({ image_size: undefined }, { model: { patch: 14 } }),
));

test('/data/eval: each text is scored once at the end, with the tokenizer and the selected checkpoint of the run', { timeout: 240000 }, async () => {
    const some = ['ptb', 'web', 'books', 'other', 'text_gen'].map(name => ({
        ptb: { dataset: 'ptb', path: 'tests/tested' }, web: { dataset: 'openwebtext', path: 'tests/web' }, books: { dataset: 'pg19', path: 'tests/books', name: 'books' },
        other: { dataset: 'text', path: 'tests/other.txt', name: 'other' }, text_gen: 'text_gen' })[name]);
    const worse = { train: { steps: 6, eval_every: 1, optimizer: { lr: 0.5 }, schedule: { name: 'constant' } } }; // the best is not the last
    const jobs = [
        text({ eval: some.slice(0, 4), split: standard({ test: 0.2 }) }, worse),
        text({ eval: some.slice(0, 4), tokenizer: 'words' }, { train: { ema: 0.5 } }),
        text({ eval: some.slice(0, 3), tokenizer: 'gpt2_bpe' }),
        text({ eval: some.slice(4), split: standard() }, { model: { depth: 1, context: 300 }, data: { context: 200 } }),
    ];
    const all = await recomputed(...jobs.slice(0, 3));
    assert.ok(!all[0].want.series.get('loss/eval/ptb').has(6), 'the best is not the last');
    // As many as asked for, under their names, and with the averages.
    assert.deepEqual([...all[0].got.series.keys()].filter(key => key.startsWith('ppl/eval/')).sort(), ['books', 'openwebtext', 'other', 'ptb'].map(name => `ppl/eval/${name}`));
    assert.ok(all[1].got.series.has('loss/eval_ema/other'));
    // An evaluation by itself takes them too, and does not take those of its run.
    const { run } = all[0].got;
    const scored = async data => {
        const { run: id } = await rig.daemon.submit({ kind: 'evaluate', run: run.id, checkpoint: 6, split: 'val', resources: { device: 'cpu' }, data });
        await rig.daemon.reach(id, 'succeeded');
        return new Map((await rig.daemon.get(`/api/v1/runs/${id}/metrics`)).series.map(({ key, last }) => [key, last ?? null]));
    };
    assert.ok(![...(await scored({})).keys()].some(key => key.includes('/eval')));
    assert.ok((await scored({ eval: some.slice(1, 2) })).has('ppl/eval/openwebtext'));
});

test('/data/eval: what cannot be scored is refused by its entry', { timeout: 120000 }, async () => {
    const refused = (job, pointer, because) => assert.rejects(rig.daemon.submit(job), error => {
        assert.match(error.message, /422/);
        assert.ok(error.message.includes(`"pointer":"#${pointer}"`), error.message);
        assert.match(error.message, because);
        return true;
    });
    const of = (...list) => text({ eval: list });
    const other = { dataset: 'text', path: 'tests/other.txt' };
    await refused(of('ptb2'), '/data/eval/0/dataset', /must be one of .*did you mean 'ptb'/);
    await refused(of({ ...other, dataset: 'mnist' }), '/data/eval/0/dataset', /not a text for language models/);
    await refused(of({ ...other, dataset: 'text_labels' }), '/data/eval/0/dataset', /not a text for language models/);
    await refused(of({ path: 'tests/other.txt' }), '/data/eval/0/dataset', /is needed/);
    await refused(of(other, { dataset: 'text' }), '/data/eval/1/path', /is needed: a text file/);
    await refused(of('ptb'), '/data/eval/0/path', /ptb.*data root/);
    await refused(of({ ...other, path: 'tests/../x' }), '/data/eval/0/path', /must not contain/);
    await refused(of({ dataset: 'text_gen', path: 'tests/other.txt' }), '/data/eval/0/path', /generated by polyd/);
    await refused(of({ ...other, path: 'tests/none.txt' }), '/data/eval/0', /cannot open 'tests\/none.txt'/);
    await refused(of({ dataset: 'ptb', path: 'tests/ptb' }), '/data/eval/0', /has no test.txt/);
    await refused(of({ dataset: 'pg19', path: 'tests/labelled' }), '/data/eval/0', /no text: no file name ends in/);
    await refused(of(other, other), '/data/eval/1', /\\"text\\" is already the name of entry 0/);
    await refused(of(other, { ...other, name: 'a/b' }), '/data/eval/1/name', /1 to 32 letters/);
    await refused(of({ ...other, split: {} }), '/data/eval/0', /unknown key \\"split\\"/);
    await refused(of(7), '/data/eval/0', /must be the name of a data set/);
    await refused(of(...Array.from({ length: 9 }, (_, i) => ({ ...other, name: `n${i}` }))), '/data/eval', /at most 8 entries/);
    await refused(text({ eval: 'ptb' }), '/data/eval', /must be an array/);
    await refused(text({ tokenizer: 'chars', path: 'tests/plain.txt', eval: [{ dataset: 'text', path: 'tests/tiny.txt' }] }), '/data/eval/0', /character/);
    await refused(pictures({ eval: [other] }), '/data/eval', /is for language models/);
    await refused({ ...of(other), sweep: { axes: [{ pointer: '/data/eval', values: [[], [other]] }] } }, '/sweep/axes/0/pointer', /cannot be swept/);
});

// Of the last one's 60 bytes an epoch is two steps: the windows move between the steps.
test('/data/context', () => recomputed(
    text(), text({ context: 4 }), text({ context: 6, split: undefined }, { model: { context: 9 } }),
    text({ split: { rule: 'count', train: 60, val: 40 } }),
    labels(), labels({ context: 3 }),
));

test('/data/tokenizer', async () => {
    const kinds = ['bytes', 'chars', 'words', 'gpt2_bpe'];
    const jobs = [...kinds.map(tokenizer => text({ tokenizer })), ...kinds.map(tokenizer => labels({ tokenizer }))];
    for (const { got, want } of (await recomputed(...jobs)).filter((_, i) => i % kinds.length)) { // of bytes nothing needs to be carried
        const saved = Buffer.from(got.checkpoints.get(4).tensors.get('polyd.tokenizer').data), { vocabulary } = want.feed;
        assert.equal(saved.readUInt32LE(12), vocabulary.length, 'tokens that the checkpoint carries');
        assert.ok(saved.subarray(20 + 4 * vocabulary.length).subarray(0, Buffer.concat(vocabulary).length).equals(Buffer.concat(vocabulary)));
    }
});

test('/data/tokenizer_path', () =>
    recomputed(text({ tokenizer: 'gpt2_bpe' }), text({ tokenizer: 'gpt2_bpe', tokenizer_path: 'tests/pairs' })));

test('/data/augment/crop', () => recomputed(...['none', 'pad_crop', 'rrc'].map(crop => augmented({ crop })),
    augmented({ crop: 'rrc', flip: 0.5 }, { dataset: 'image_folder', path: 'tests/parts', image_size: [8, 12] }),
    augmented({ crop: 'pad_crop', flip: 0.5, eval_crop: 0.7 }, { dataset: 'image_folder', path: 'tests/parts', image_size: 8 })));

test('/data/augment/pad_crop/shift', () =>
    recomputed(...[0, 1, 11].map(shift => augmented({ crop: 'pad_crop', pad_crop: { shift } }))));

test('/data/augment/rrc/scale', () =>
    recomputed(...[[0.5, 0.6], [0.1, 0.9], [1, 1]].map(scale => augmented({ crop: 'rrc', rrc: { scale } }))));

// The last two let no try succeed: the middle is cut at the nearest ratio.
test('/data/augment/rrc/ratio', () =>
    recomputed(...[[0.5, 2], [0.9, 1], [3, 4], [0.2, 0.25]].map(ratio => augmented({ crop: 'rrc', rrc: { scale: [0.9, 1], ratio } }))));

test('/data/augment/flip', () => recomputed(...[0, 0.3, 0.8, 1].map(flip => augmented({ flip }))));

const colours = { dataset: 'image_folder', path: 'tests/parts', image_size: [8, 12] };
const drawn = more => ({ randaugment: { n: 4, m: 9, std: 3, inc: true, ...more } });
test('/data/augment/randaugment', () => recomputed(augmented({ randaugment: {} }), augmented({}), augmented({ crop: 'rrc', flip: 0.5, interpolation: 'bilinear', ...drawn() }, colours)));
test('/data/augment/randaugment/n', () => recomputed(...[1, 3, 12].map(n => augmented(drawn({ n })))));
test('/data/augment/randaugment/m', () => recomputed(...[0, 5, 14].map(m => augmented(drawn({ m, std: 1 }), colours))));
test('/data/augment/randaugment/std', () => recomputed(...[0, 0.5, 6].map(std => augmented(drawn({ std })))));
test('/data/augment/randaugment/inc', () => recomputed(...[true, false].map(inc => augmented(drawn({ inc, n: 12 }), colours))));

test('/data/augment/mixup', () => recomputed(...[0, 0.8, 3].map(mixup => augmented({ mixup }))));
test('/data/augment/cutmix', () => recomputed(...[0, 1, 0.3].map(cutmix => augmented({ cutmix }, colours))));
test('/data/augment/mix_prob', () => recomputed(...[0.5, 1].map(mix_prob => augmented({ mixup: 0.8, mix_prob }))));
test('/data/augment/switch_prob', () => recomputed(...[0.2, 0.9].map(switch_prob => augmented({ mixup: 0.8, cutmix: 1, switch_prob }))));
test('/data/augment/mix_group', () => recomputed(augmented({ mixup: 0.8, cutmix: 1, mix_group: 2 }), augmented({ mixup: 0.8, cutmix: 1 })));
test('/data/augment/mix_group: two ranks draw what one does', async () => {
    for (const more of [{}, { resources: { slots: 2 } }, { train: { accumulation: 2 } }])
        await recomputed(merge(augmented({ mixup: 0.8, cutmix: 1, mix_group: 2 }), { train: { label_smoothing: 0.1 }, ...more }));
});
test('/data/augment/mix_group: what does not divide is refused with both numbers', async () => {
    for (const [job, says] of [[merge(augmented({ mixup: 1, mix_group: 4 }), { resources: { slots: 2 } }), /groups of 4 do not divide 2 images/],
        [augmented({ mixup: 1, mix_group: 3 }), /must be even/], [merge(augmented({ cutmix: 1 }), { train: { batch: 3 } }), /train\/batch.*an even number of images in a micro-batch.*it gives 3/]]) {
        const reply = await fetch(`${rig.daemon.url}/api/v1/jobs`, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(job) });
        assert.equal(reply.status, 422);
        assert.match(JSON.stringify(await reply.json()), says);
    }
});
test('/data/augment/erasing', () => recomputed(...[0, 0.5, 1].map(erasing => augmented({ erasing })), augmented({ erasing: 0.7, cutmix: 1, flip: 0.5 }, colours)));
const many = (repeats, train) => pictures({ dataset: 'digits_gen', path: undefined, image_size: undefined, split: { rule: 'count', train, val: 8 }, augment: { repeats, crop: 'pad_crop' } },
    { model: { patch: 14 }, train: { steps: 5, batch: 64, eval_every: 5, checkpoint_every: { steps: 5 } } });
test('/data/augment/repeats', { timeout: 120000 }, () => recomputed(many(1, 300), many(3, 300), many(2, 300)));
test('/data/augment/repeats: fewer than 256 pictures are refused by name', async () => {
    const reply = await fetch(`${rig.daemon.url}/api/v1/jobs`, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(many(3, 255)) });
    assert.equal(reply.status, 422);
    assert.match(JSON.stringify(await reply.json()), /#\/data\/augment\/repeats.*needs at least 256 training images, and there are 255/);
});

test('/data/augment/eval_crop', () => recomputed(
    ...[1, 0.75, 0.6].map(eval_crop => augmented({ eval_crop })),
    augmented({ eval_crop: 0.75, crop: 'rrc' }, { dataset: 'image_folder', path: 'tests/parts', image_size: [12, 8] }),
));

test('/data/augment/interpolation', () => recomputed(...['bicubic', 'bilinear'].flatMap(interpolation =>
    [pictures({ image_size: 8, augment: { interpolation } }), augmented({ crop: 'rrc', interpolation })])));

/* ---- length and order ---- */

test('/train/seed', () => recomputed(...[0, 1, 2 ** 40 + 1].flatMap(seed => [
    pictures({ augment: { crop: 'rrc', flip: 0.5 } }, { train: { seed, steps: 6 } }),
    text({}, { train: { seed, steps: 12 } }),
])));

test('/train/batch', () => recomputed(...[1, 3, 5].map(batch => pictures({}, { train: { batch, steps: 5 } }))));

test('/train/steps', () => recomputed(...[1, 7].map(steps => pictures({}, { train: { steps } }))));

// 23 pictures are five batches of four: three are left over in each epoch.
test('/train/epochs', () => recomputed(
    ...[1, 2].map(epochs => pictures({}, { train: { steps: undefined, epochs } })),
    text({ split: { rule: 'count', train: 60, val: 40 } }, { train: { steps: undefined, epochs: 3 } }),
));

/* ---- one job, many runs ---- */

/** The runs of a job in their order, when all have ended. */
async function runs(job) {
    const { id } = await rig.daemon.post('/api/v1/jobs', job);
    const list = await until(`job ${id} to end`, async () => {
        const { state } = await rig.daemon.get(`/api/v1/jobs/${id}`);
        if (state === 'failed')
            throw Object.assign(new Error(`job ${id} failed`), { final: true });
        return state === 'done' && (await rig.daemon.get(`/api/v1/runs?job=${id}&limit=100`)).runs;
    }, { limit: 120000, every: 50 });
    return { id, list: list.sort((a, b) => a.index - b.index) };
}

/** The document of one run: values at their pointers, the trial's seed. */
function documentOf({ sweep, trials, register, ...job }, { values, trial }) {
    const put = (pointer, value) => pointer.split('/').slice(1).reduceRight((inner, key) => ({ [key]: inner }), value);
    return Object.entries(values).reduce((document, [pointer, value]) => merge(document, put(pointer, value)),
        merge(job, { train: { seed: (job.train.seed ?? 0) + trial } }));
}

/** Every run of the job is the one that its place calls for, and computed what its own document says. */
async function expanded(job, integer) {
    const { id, list } = await runs(job), wanted = runsOf(job, integer), { trials = 1 } = job;
    assert.deepEqual(list.map(run => [run.point, run.trial, run.sweep]),
        wanted.map(({ values, trial }, i) => [Math.floor(i / trials), trial, values]));
    const all = [];
    for (const [i, run] of list.entries()) {
        const document = documentOf(job, wanted[i]);
        assert.equal(run.seed, document.train.seed);
        all.push(await held(run.id, document));
    }
    assert.equal(new Set(all.map(({ want }) => JSON.stringify([...want.series.get('loss/train')]))).size, list.length, 'the runs differ');
    return { id, list, all };
}

const short = { train: { steps: 3, eval_every: 1, checkpoint_every: { steps: 1 } } };
const divided = (data = {}, more = {}) => pictures({ split: { rule: 'fraction', train: 0.5, val: 0.3 }, ...data }, merge(short, more));

test('/sweep', async () => {
    assert.equal((await expanded(divided())).list.length, 1);
    assert.equal((await expanded({ ...divided(), sweep: { axes: [{ pointer: '/train/batch', values: [3, 5] }] } })).list.length, 2);
});

/** A sweep that draws the rate, and what else is asked for. */
const random = (more, axes = []) =>
    ({ ...divided(), sweep: { method: 'random', ...more, axes: [{ pointer: '/train/optimizer/lr', loguniform: [0.001, 0.1] }, ...axes] } });

test('/sweep/method', async () => {
    const axes = [{ pointer: '/data/augment/flip', values: [0, 1] }];
    await expanded({ ...divided(), sweep: { method: 'grid', axes: [...axes, { pointer: '/train/optimizer/lr', linear: [0.01, 0.03, 2] }] } });
    await expanded(random({ samples: 3 }, axes));
});

test('/sweep/axes', async () => {
    const shift = '/data/augment/pad_crop/shift', augment = { crop: 'pad_crop' };
    const swept = (axes, method = 'grid') =>
        expanded({ ...divided({ augment }), sweep: { method, ...method === 'random' ? { samples: 3 } : {}, axes } }, pointer => pointer === shift);
    await swept([{ pointer: shift, linear: [1, 4, 3] }, { pointer: '/train/optimizer', values: [{ lr: 0.02 }, { name: 'msgdw', lr: 0.1 }] }]);
    await swept([{ pointer: '/train/optimizer/lr', log: [0.001, 0.1, 3] }]);
    await swept([{ pointer: '/train/optimizer/lr', loguniform: [0.001, 0.1] }, { pointer: '/data/augment/flip', uniform: [0, 1] },
        { pointer: shift, uniform: [1, 9] }], 'random');
});

test('/sweep/samples', async () => {
    for (const samples of [1, 4])
        await expanded(random({ samples }));
});

test('/sweep/seed', async () => {
    const [one, two] = [await expanded(random({ samples: 2, seed: 1 })), await expanded(random({ samples: 2, seed: 2 }))];
    assert.notDeepEqual(one.list.map(run => run.sweep), two.list.map(run => run.sweep));
});

test('/trials', async () => {
    const axes = [{ pointer: '/train/optimizer/lr', values: [0.01, 0.03] }];
    const { all } = await expanded({ ...divided({}, { train: { seed: 7 } }), trials: 2, sweep: { axes } });
    // The split is one, the order and the weights are each trial's own.
    const pixels = all.map(({ want }) => JSON.stringify(want.feed.val.map(({ input }) => [...input])));
    assert.equal(new Set(pixels).size, 1);
    const own = await expanded({ ...divided({ split_seed: null }, { train: { seed: 7 } }), trials: 2 });
    assert.equal(new Set(own.all.map(({ want }) => JSON.stringify(want.feed.val.map(({ target }) => target)))).size, 2);
});

/** The recomputed value that stands for a run: its best by the mode, or its last. */
const best = (values, mode) => values.reduce((a, b) => (mode === 'max' ? Math.max : Math.min)(a, b));

const contest = (metric, mode, more = {}) => ({
    ...divided({}, more), sweep: { metric, mode, axes: [{ pointer: '/train/optimizer/lr', values: [0.5, 0.003, 0.03] }] },
});

/** The combination that the recomputation holds for the best by the last value of a metric. */
function winner(all, metric, mode) {
    const last = all.map(({ want }) => [...want.series.get(metric).values()].at(-1));
    return last.indexOf(best(last, mode));
}

/** Holds the sweep's own account of which run was best; what is not said is loss/val and min. */
async function won(metric, mode) {
    const { id, list, all } = await expanded(contest(metric, mode)), by = [metric ?? 'loss/val', mode ?? 'min'], at = winner(all, ...by);
    const page = await rig.daemon.get(`/api/v1/jobs/${id}/sweep`);
    assert.deepEqual([page.metric, page.mode, page.best.point, page.best_run.run_id], [...by, at, list[at].id]);
    return at;
}

test('/sweep/metric', async () => assert.notEqual(await won(), await won('grad/norm')));

test('/sweep/mode', async () => assert.notEqual(await won('loss/val', 'min'), await won('loss/val', 'max')));

test('/register', async () => {
    for (const [metric, mode] of [['loss/val', 'min'], ['loss/val', 'max']]) {
        const name = `best-${mode}`, job = { ...contest(metric, mode, { data: { augment: { flip: 0.5 } } }), register: name };
        const { list, all } = await expanded(job);
        const { versions } = await until(`${name} to be registered`, () => rig.daemon.get(`/api/v1/models/${name}`));
        const reached = all.map(({ want }) => best([...want.series.get(metric).values()], mode)), at = reached.indexOf(best(reached, mode));
        // The best checkpoint of a classifier is the first with its greatest accuracy.
        const scores = [...all[at].want.series.get('acc/val')], step = scores.reduce((a, b) => b[1] > a[1] ? b : a)[0];
        assert.deepEqual(versions.map(v => [v.run_id, v.step]), [[list[at].id, step]]);
    }
});
