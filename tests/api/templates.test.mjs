// Experiments by name: listed, shown, tried and submitted, one job or several together, through the real daemon.
import assert from 'node:assert/strict';
import { existsSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { fits, leaves } from '../../web/js/experiment/choose.js';
import { build, Daemon } from './lib.mjs';

const skip = existsSync(path.join(build, 'bin/polyd')) && existsSync(path.join(build, 'bin/polyd-worker')) ? false : 'polyd or polyd-worker is not built';
let host;
const books = mkdtempSync(path.join(os.tmpdir(), 'polyd-books-'));
before(async () => {
    mkdirSync(path.join(books, 'tinyshakespeare'));
    writeFileSync(path.join(books, 'tinyshakespeare/input.txt'), 'To be, or not to be: that is the question.\n'.repeat(5000));
    host = skip ? null : await Daemon.start([`--data.books=${books}`]);
});
after(async () => {
    await host?.stop();
    rmSync(books, { recursive: true, force: true });
});

/** So small that a run takes no time; steps stand for the template's epochs. */
const tiny = { train: { steps: 2, batch: 4 }, trials: 1, data: { split: { train: 16, val: 8 } }, model: { width: 16, depth: 1 }, resources: { threads: 1 } };
const submit = (body, query = '', headers = {}) => host.post(`/api/v1/jobs${query}`, body, { headers });
const jobs = async () => (await host.get('/api/v1/jobs?limit=200')).json.jobs;

test('the list says of each what it asks and what cannot run yet', { skip }, async () => {
    const list = await host.get('/api/v1/templates'), { templates } = list.json;
    assert.deepEqual(templates.map(t => t.name), [...Array.from({ length: 18 }, (_, i) => `E${String(i + 1).padStart(2, '0')}`),
        ...Array.from({ length: 20 }, (_, i) => `T${i + 1}`)]);
    for (const { name, version, title, question, source, variants } of templates) {
        assert.ok(version >= 1 && title && source, name);
        assert.match(question, /^[^.?]+.*[.?]$/s, name);
        for (const variant of ['small', 'paper'])
            assert.ok(variants[variant].refused ? !variants[variant].jobs : variants[variant].jobs >= 1 && variants[variant].shows, `${name} ${variant}`);
    }
    assert.match(templates.find(t => t.name === 'E07').variants.small.refused, /detection/);
    assert.equal((await host.get('/api/v1/templates', { headers: { 'If-None-Match': list.headers.etag } })).status, 304);
});

test('targets and pictures name jobs, metrics and combinations that the documents have', { skip }, async () => {
    const { metrics } = (await host.get('/api/v1/metrics/catalogue')).json, keys = metrics.map(m => m.key.replace(/<\w+>/g, ''));
    const known = metric => keys.some(key => metric === key || (key.endsWith('/') && metric.startsWith(key)) || key.startsWith(`${metric}/`));
    /** Combinations of a document, as the API writes them. */
    const points = job => (job.sweep?.axes ?? []).reduce((list, axis) => list.flatMap(values => (axis.values ?? [1]).map(value => ({ ...values, [axis.pointer]: value }))), [{}]);
    let rows = 0;
    for (const { name } of (await host.get('/api/v1/templates')).json.templates) {
        const { variants, targets = [], pictures = [] } = (await host.get(`/api/v1/templates/${name}`)).json, all = Object.values(variants).filter(v => v.jobs);
        const meant = (match, job) => all.some(v => v.jobs[job] && points(v.jobs[job]).some(values => fits(values, match)));
        for (const target of targets)
            for (const [i, column] of target.columns.entries()) {
                assert.ok(column.metrics.every(known), `${name}: ${column.metrics}`);
                assert.ok(all.some(v => v.jobs[column.job]), `${name} ${column.name}`);
                for (const small of target.small ?? [])
                    assert.ok(variants.small.jobs[small.job] && (small.value ?? 0) < target.columns.length, `${name} ${small.name}`);
                for (const row of target.rows) {
                    assert.equal(row.values.length, target.columns.length, `${name} ${row.name}`);
                    assert.ok(row.values[i] === null || meant(row.match, column.job), `${name} ${column.name}: nothing is meant by ${row.name}`);
                    rows++;
                }
            }
        for (const p of pictures) {
            const jobs = all.flatMap(v => (p.job === undefined ? v.jobs : v.jobs[p.job] ? [v.jobs[p.job]] : []));
            assert.ok(jobs.length > 0 && (!p.metric || known(p.metric)), `${name} ${p.title}`);
            for (const pointer of [p.x, ...p.rows ?? [], ...p.columns ?? []].filter(Boolean))
                assert.ok(jobs.some(job => job.sweep?.axes.some(a => a.pointer === pointer || points(job).some(v => pointer in leaves(v)))), `${name} ${p.title}: ${pointer}`);
            for (const line of p.lines ?? [])
                assert.ok(meant(line.match, p.job), `${name} ${p.title}: nothing is meant by ${line.name}`);
        }
    }
    assert.ok(rows > 60);
});

test('real data below any data root are found by name, and what polyd makes stands in', { skip }, async () => {
    const tried = async body => (await submit(body, '?dry_run=1')).json, text = await tried({ template: 'E11' }), pictures = await tried({ template: 'E04' });
    assert.deepEqual([text.document.data.dataset, text.document.data.path, text.document.tags.data, text.plan_error], ['text', 'books/tinyshakespeare/input.txt', 'text', null]);
    assert.ok(text.plan.test_samples > 100 && text.plan.val_samples > 100);
    assert.deepEqual([pictures.document.data.dataset, pictures.document.data.path, pictures.document.tags.data, pictures.plan_error], ['digits_gen', null, 'digits_gen', null]);
    const named = await tried({ template: 'E11', data: { dataset: 'text_gen' } });
    assert.deepEqual([named.document.data.dataset, named.document.data.path], ['text_gen', null]);
});

test('one is shown with its documents, by either name of a check', { skip }, async () => {
    const { json } = await host.get('/api/v1/templates/E01');
    assert.equal(json.variants.small.jobs[0].sweep.axes.length, 2);
    assert.equal((await host.get('/api/v1/templates/T4')).json.name, 'T4');
    const missing = await host.get('/api/v1/templates/E99');
    assert.equal(missing.status, 404);
    assert.match(missing.json.detail, /no template 'E99'/);
});

test('a dry run plans every job of it, and keeps none', { skip, timeout: 60000 }, async () => {
    const before = (await jobs()).length;
    const one = (await submit({ template: 'E04', ...tiny }, '?dry_run=1')).json;
    assert.deepEqual([one.dry_run, one.template, one.runs, one.plan_error], [true, 'E04 small 2', 4, null]);
    assert.equal(one.document.experiment, 'E04');
    assert.deepEqual([one.document.train.steps, one.document.train.epochs, one.document.train.optimizer.lr], [2, null, 0.003]);
    const two = (await submit({ template: 'E09', ...tiny }, '?dry_run=1')).json;
    assert.deepEqual([two.experiment, two.runs, two.jobs.map(job => job.runs), two.jobs.map(job => job.plan_error)], ['E09', 19, [1, 18], [null, null]]);
    assert.equal(two.jobs[0].document.attention.activation, 'softmax');
    assert.ok(two.jobs.every(job => job.plan.total_bytes > 0));
    assert.equal((await jobs()).length, before);
});

/** Data sets in the shape that the papers' variants name, as small as their dry runs allow: pictures are empty files, as a plan opens none,
 * and the classes of a part are links to one folder, which is hidden. */
function standIns(root) {
    const put = (name, data = '') => {
        mkdirSync(path.dirname(path.join(root, name)), { recursive: true });
        writeFileSync(path.join(root, name), data);
    };
    const text = bytes => 'The quick brown fox jumps over the lazy dog, and so on.\n'.repeat(bytes / 50), lines = make => Array.from({ length: 400 }, (_, i) => make(i)).join('');
    for (const [set, part, classes, pictures, below] of [['imagenet1k', 'val', 1000, 1, ''], ['imagenet1k', 'train', 1000, 5, ''], ['tiny_imagenet', 'train', 200, 4, 'images/']]) {
        for (let i = 0; i < pictures; i++)
            put(`${set}/.${part}/${below}${i}.JPEG`);
        mkdirSync(path.join(root, set, part));
        for (let c = 0; c < classes; c++)
            symlinkSync(`../.${part}`, path.join(root, set, part, `n${c}`));
    }
    put('tiny_imagenet/val/val_annotations.txt', lines(i => `${i}.JPEG\tn${i % 200}\t0\t0\t9\t9\n`));
    for (let i = 0; i < 400; i++)
        put(`tiny_imagenet/val/images/${i}.JPEG`);
    for (const set of ['wikitext103', 'wikitext2'])
        ['train', 'valid', 'test'].forEach(part => put(`${set}/wiki.${part}.tokens`, text(200000)));
    ['train', 'valid', 'test'].forEach(part => put(`ptb/ptb.${part}.txt`, text(100000)));
    for (let i = 0; i < 20; i++)
        put(`openwebtext/${i}.txt`, text(400000));
    ['train', 'validation', 'test'].forEach(part => put(`pg19/${part}/0.txt`, text(100000)));
    ['train', 'val', 'test'].forEach(part => put(`listops/basic_${part}.tsv`, `Source\tTarget\n${lines(i => `( [MAX 1 ${i % 10} ] )\t${Math.max(1, i % 10)}\n`)}`));
    ['train', 'test'].forEach(part => put(`imdb/${part}.tsv`, lines(i => `${i % 2}\t${i}\ta film\n`)));
    ['train', 'eval', 'test'].forEach(part => put(`aan/new_aan_pairs.${part}.tsv`, lines(i => `${i % 2}\t${i}\t${i + 1}\ta paper\tanother\n`)));
    ['data_batch_1', 'data_batch_2', 'test_batch'].forEach(file => put(`cifar10/${file}.bin`, Buffer.alloc(3073 * 400)));
    // GPT-2's tokenizer without a merge: a token for each byte, called as GPT-2 calls it.
    let odd = 0;
    const shown = b => (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    const names = [...Array.from({ length: 256 }, (_, b) => String.fromCodePoint(shown(b) ? b : 256 + odd++)), '<|endoftext|>'];
    for (const set of ['wikitext103', 'openwebtext']) {
        put(`${set}/gpt2-bpe/encoder.json`, JSON.stringify(Object.fromEntries(names.map((name, i) => [name, i]))));
        put(`${set}/gpt2-bpe/vocab.bpe`, '#version: 0.2\n');
    }
    return ['imagenet1k', 'tiny_imagenet', 'wikitext103', 'wikitext2', 'ptb', 'openwebtext', 'pg19', 'listops', 'imdb', 'aan', 'cifar10'];
}

/** Dry runs of these variants of every template. `missing`: what a refusal may name. */
async function dryRuns(daemon, missing, wanted) {
    const { templates } = (await daemon.get('/api/v1/templates')).json, passed = [];
    for (const { name, variants } of templates)
        for (const variant of wanted) {
            const { status, json } = await daemon.post('/api/v1/jobs?dry_run=1', { template: name, variant }), { refused, jobs: count } = variants[variant];
            if (refused) {
                assert.deepEqual([status, json.errors.map(e => e.pointer)], [422, ['#/template']], `${name} ${variant}`);
                assert.ok(json.errors[0].detail.includes(refused), name);
                continue;
            }
            if (status === 422 && variant === 'paper') {
                for (const { pointer, detail } of json.errors)
                    assert.ok(/^#\/data\/(eval\/\d\/)?path$/.test(pointer) && missing.some(set => detail.includes(`no data root named '${set}' is configured`)), `${name}: ${pointer}: ${detail}`);
                continue;
            }
            const parts = json.jobs ?? [json];
            assert.deepEqual([status, parts.length, parts.map(part => part.plan_error).filter(Boolean)], [200, count, []], `${name} ${variant}`);
            assert.ok(variant === 'paper' || name.startsWith('T') || parts.every(part => part.runs >= 3), `${name}: three seeds`);
            passed.push(`${name} ${variant}`);
        }
    return passed;
}
const all = (prefix, from, to, digits) => Array.from({ length: to - from + 1 }, (_, i) => `${prefix}${String(from + i).padStart(digits, '0')}`);
/** E07 waits for detection; E17 and E18 have no paper to follow. */
const small = [...all('E', 1, 18, 2).filter(name => name !== 'E07'), ...all('T', 1, 20, 1)].map(name => `${name} small`);

test('every small variant passes the dry run on a bare machine; what the others lack is named', { skip, timeout: 240000 }, async () => {
    const bare = await Daemon.start(), root = mkdtempSync(path.join(os.tmpdir(), 'polyd-sets-'));
    try {
        const paper = ['E10', ...all('T', 1, 20, 1)].map(name => `${name} paper`);
        assert.deepEqual((await dryRuns(bare, ['imagenet1k', 'tiny_imagenet', 'wikitext103', 'ptb', 'openwebtext', 'listops'], ['small', 'paper'])).sort(), [...small, ...paper].sort());
    } finally {
        await bare.stop();
    }
    const flags = standIns(root).map(set => `--data.${set}=${path.join(root, set)}`), full = await Daemon.start(flags);
    try { // with their data the papers' variants pass, too; the small ones use none of it
        const paper = [...all('E', 1, 16, 2).filter(name => name !== 'E07'), ...all('T', 1, 20, 1)].map(name => `${name} paper`);
        assert.deepEqual((await dryRuns(full, [], ['paper'])).sort(), paper.sort());
    } finally {
        await full.stop();
        rmSync(root, { recursive: true, force: true });
    }
});

test('an unknown override is refused with its pointer, by every template', { skip, timeout: 120000 }, async () => {
    const { templates } = (await host.get('/api/v1/templates')).json, before = (await jobs()).length;
    for (const { name, variants } of templates)
        for (const variant of ['small', 'paper'].filter(word => !variants[word].refused))
            for (const [more, pointer] of [[{ overrides: { '/train/nonsense': 1 } }, '#/overrides/~1train~1nonsense'], [{ overrides: { '/nonsense': null } }, '#/overrides/~1nonsense'], [{ nonsense: 1 }, '#/nonsense']]) {
                const { status, json } = await submit({ template: name, variant, ...more });
                assert.equal(status, 422, `${name} ${variant}`);
                assert.ok(json.errors.some(e => e.pointer === pointer), `${name} ${variant}: ${JSON.stringify(json.errors)}`);
            }
    assert.equal((await jobs()).length, before);
});

test('a statement is submitted by either name', { skip }, async () => {
    for (const name of ['T1', 'theory/T1']) {
        const { status, json } = await submit({ template: name }, '?dry_run=1');
        assert.deepEqual([status, json.template, json.document.experiment, json.document.kind, json.document.check], [200, 'T1 small 2', 'T1', 'check', 'T1'], JSON.stringify(json).slice(0, 500));
    }
});

test('one of a single job is answered as that job', { skip, timeout: 60000 }, async () => {
    const sent = await submit({ template: 'E04', ...tiny, name: 'mine', tags: { who: 'me' } });
    assert.equal(sent.status, 201);
    assert.equal(sent.headers.location, `/api/v1/jobs/${sent.json.id}`);
    assert.deepEqual([sent.json.template, sent.json.name, sent.json.experiment, sent.json.tags], ['E04 small 2', 'mine', 'E04', { template: 'E04', variant: 'small', who: 'me', data: 'digits_gen' }]);
    const job = await host.over(sent.json.id);
    assert.deepEqual([job.state, job.template], ['done', 'E04 small 2']);
    // What is kept is that job alone: sent again, it is no template any more.
    const again = await submit((await host.get(`/api/v1/jobs/${sent.json.id}`)).json.document);
    assert.deepEqual([again.status, again.json.template, again.json.run_ids.length], [201, null, 4]);
    await host.over(again.json.id);
});

test('one of several jobs is accepted as a whole, once for each key', { skip, timeout: 120000 }, async () => {
    const before = (await jobs()).length, headers = { 'Idempotency-Key': 'nine' };
    const sent = await submit({ template: 'E09', ...tiny }, '', headers);
    assert.equal(sent.status, 201);
    assert.deepEqual([sent.json.template, sent.json.experiment, sent.json.jobs.map(job => job.run_ids.length)], ['E09 small 4', 'E09', [1, 18]]);
    assert.ok(sent.json.jobs.every(job => job.experiment === 'E09' && job.template === 'E09 small 4'));
    const again = await submit({ template: 'E09', ...tiny }, '', headers);
    assert.deepEqual([again.status, again.headers['idempotency-replayed'], again.json], [201, 'true', sent.json]);
    assert.equal((await jobs()).length, before + 2);
    for (const { id } of sent.json.jobs)
        assert.equal((await host.over(id)).state, 'done');
    const runs = (await host.get('/api/v1/runs?experiment=E09&limit=100')).json.runs;
    assert.deepEqual([runs.length, new Set(runs.map(run => run.outcome)).size], [19, 1]);
});

test('what is wrong is named, and nothing of it is kept', { skip, timeout: 60000 }, async () => {
    const before = (await jobs()).length;
    for (const [body, pointer, detail] of [
        [{ template: 'E19' }, '#/template', /unknown template; there are E01 to E18 and T1 to T20/],
        [{ template: 'E07' }, '#/template', /E07 in its variant "small" cannot run yet: detection/],
        [{ template: 'E01', variant: 'huge' }, '#/variant', /"small" or "paper"/],
        [{ template: 'E09', overrides: { '/train/nonsense': 1 } }, '#/overrides/~1train~1nonsense', /unknown/],
        [{ template: 'E09', attention: { degre: 2 } }, '#/attention/degre', /did you mean/],
        [{ template: 'E04', params: { n: 1 } }, '#/params', /./],
        [{ template: 'E04', ...tiny, train: { steps: 2, batch: 64 } }, '#/train/batch', /./],
    ]) {
        for (const query of ['', '?dry_run=1']) {
            const { status, json } = await submit(body, query);
            if (query && pointer === '#/train/batch') { // what only the plan knows is told beside it
                assert.match(json.plan_error, /train\/batch/);
                continue;
            }
            assert.equal(status, 422, JSON.stringify(json));
            assert.equal(json.errors[0].pointer, pointer);
            assert.match(json.errors[0].detail, detail);
        }
    }
    // The first job of the two could run; the second is what is wrong.
    const half = await submit({ template: 'E09', ...tiny, sweep: { axes: [{ pointer: '/attention/degree', values: [2, 99] }] } });
    assert.equal(half.status, 422);
    assert.equal((await jobs()).length, before);
});
