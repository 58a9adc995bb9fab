// Texts with classes over the real daemon and worker: from tables of one's own to the class of a new text, and what is said of
// a table, a document or a request that is wrong.
import assert from 'node:assert/strict';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { gzipSync } from 'node:zlib';
import { Daemon, build, sleep } from './lib.mjs';

const here = existsSync(path.join(build, 'bin/polyd')) && existsSync(path.join(build, 'bin/polyd-worker'));
const skip = here ? false : 'polyd or polyd-worker is not built';
let host, run;

const words = { praise: ['good', 'great', 'lovely', 'fine'], blame: ['bad', 'dull', 'awful', 'poor'] };
const rows = count => Array.from({ length: count }, (_, i) => {
    const label = i % 2 ? 'praise' : 'blame', said = words[label];
    return { label, text: `a ${said[(i >> 1) % 4]}, ${said[(i >> 3) % 4]} film` };
});
const jsonl = list => list.map(row => `${JSON.stringify(row)}\n`).join('');
const csv = list => `id,text,label\r\n${list.map((row, i) => `${i},"${row.text}",${row.label}\r\n`).join('')}`;

function put(name, bytes) {
    const file = path.join(host.dir, 'text/reviews', name);
    mkdirSync(path.dirname(file), { recursive: true });
    writeFileSync(file, bytes);
}

const job = (data, more = {}) => ({
    name: 'labels', model: { preset: 'gpt_micro', width: 16, depth: 1, heads: 2, context: 32 }, data: { dataset: 'text_labels', ...data },
    train: { steps: 80, batch: 32, init: 'trunc_xavier', optimizer: { lr: 0.01 } }, diagnostics: { every: 0 }, resources: { device: 'cpu', threads: 1 }, ...more,
});
const dry = (data, more) => host.post('/api/v1/jobs?dry_run=1', job(data, more));

before(async () => {
    if (!here)
        return;
    host = await Daemon.start();
    put('parts/train.csv', csv(rows(120)));
    put('parts/valid.jsonl.gz', gzipSync(jsonl(rows(20))));
    put('parts/test.jsonl', jsonl(rows(10)));
    put('one.jsonl', jsonl([...rows(40), { label: 'praise', text: 'good '.repeat(30) }]));
});
after(() => host?.stop());

test('a folder trains a classifier that is asked over HTTP', { skip, timeout: 120000 }, async () => {
    const reply = await host.post('/api/v1/jobs', job({ path: 'text/reviews/parts', tokenizer: 'words' }, { register: 'reviews' }));
    assert.equal(reply.status, 201, reply.text);
    assert.equal((await host.over(reply.json.id)).state, 'done');
    [run] = reply.json.run_ids;
    const { series } = (await host.get(`/api/v1/runs/${run}/metrics`)).json;
    assert.equal(series.find(one => one.key === 'acc/val').value, 1);
    assert.deepEqual(series.filter(one => /ppl|tokens_per_s/.test(one.key)), []);
    for (let i = 0; i < 100 && (await host.get('/api/v1/models/reviews/versions/1')).status !== 200; i++)
        await sleep(50);
    const loaded = await host.post('/api/v1/models/reviews/versions/1/load');
    assert.equal(loaded.json.state, 'READY', loaded.text);
    assert.equal(loaded.json.signature.kind, 'text_classifier');
    assert.deepEqual(loaded.json.signature.labels, ['blame', 'praise']);
    const ask = data => host.post('/v2/models/reviews/infer', { inputs: [{ name: 'text', datatype: 'BYTES', shape: [[data].flat().length], data }] });
    const of = (answer, name) => answer.json.outputs.find(output => output.name === name).data;
    const many = await ask(['a lovely, fine film', 'a dull, poor film', '', `${'awful '.repeat(100)}good`]);
    assert.deepEqual([of(many, 'label')[0], of(many, 'label')[1], of(many, 'label')[3]], ['praise', 'blame', 'blame']);
    assert.deepEqual(of(many, 'class').slice(0, 2), [1, 0]);
    of(many, 'probabilities').forEach(p => assert.ok(p >= 0 && p <= 1));
    // One text may stand for a list of one.
    const one = await ask('a lovely, fine film');
    assert.equal(one.status, 200, one.text);
    of(one, 'probabilities').forEach((p, c) => assert.ok(Math.abs(p - of(many, 'probabilities')[c]) < 1e-6));
    // More than a batch: each as it is alone.
    const list = Array.from({ length: 150 }, (_, i) => rows(150)[i].text), all = await ask(list), alone = new Map();
    for (const text of new Set(list))
        alone.set(text, of(await ask([text]), 'probabilities'));
    list.forEach((text, i) => alone.get(text).forEach((p, c) => assert.ok(Math.abs(of(all, 'probabilities')[2 * i + c] - p) < 1e-6)));
    // The tokenizer answers as a language model's does.
    assert.equal((await host.post('/tokenize', { model: 'reviews', prompt: 'a good film' })).json.count, 3);
    assert.match((await host.post('/v1/completions', { model: 'reviews', prompt: 'a' })).text, /classifier of texts: it does not complete them/);
});

test('a request that is wrong is told what is', { skip }, async () => {
    const refused = async (input, says) => {
        const reply = await host.post('/v2/models/reviews/infer', { inputs: [{ name: 'text', datatype: 'BYTES', shape: [1], data: ['a'], ...input }] });
        assert.equal(reply.status, 400, reply.text);
        assert.match(reply.json.error, says);
    };
    await refused({ name: 'image' }, /this model takes one input, 'text'/);
    await refused({ datatype: 'UINT8', data: [1] }, /input 'text' must be BYTES, not UINT8/);
    await refused({ shape: [2], data: ['a', 3] }, /input 'text': element 1 of BYTES is not a text/);
    await refused({ shape: [2] }, /input 'text': data has 1 elements, its shape needs 2/);
    await refused({ data: 3 }, /input 'text' needs data, an array, or one text/);
    await refused({ shape: [0], data: [] }, /input 'text' of BYTES must have the shape \[n\], 1 <= n <= 256/);
    await refused({ shape: [257], data: Array(257).fill('a') }, /1 <= n <= 256/);
    await refused({ shape: [1, 1] }, /must have the shape \[n\]/);
});

test('a file that is wrong is 422 with the file, the line and what is expected', { skip, timeout: 60000 }, async () => {
    const refused = async (name, bytes, says, pointer = '#/data/path') => {
        put(`bad/${name}`, bytes);
        const reply = await host.post('/api/v1/jobs', job({ path: `text/reviews/bad/${name}` }));
        assert.equal(reply.status, 422, reply.text);
        assert.equal(reply.json.errors[0].pointer, pointer);
        assert.match(reply.json.errors[0].detail, says);
    };
    await refused('empty.csv', '', /'text\/reviews\/bad\/empty.csv' is empty/);
    await refused('columns.csv', 'label,words\nx,a\n', /line 1: there is no column 'text'; the header names label, words/);
    await refused('short.tsv', 'label\ttext\nx\ta\ny\n', /line 3: 1 column, the header names 2/);
    await refused('quote.csv', 'label,text\nx,"a\n', /line 2: the quote that opens here is never closed/);
    await refused('torn.jsonl', '{"label": 1, "text": "a"}\n{"label"', /line 2: invalid JSON/);
    await refused('one.jsonl', jsonl(rows(40).filter(row => row.label === 'blame')), /have the label 'blame'; two classes are needed/);
    put('foreign/train.csv', csv(rows(20)));
    put('foreign/val.csv', csv([{ label: 'neither', text: 'a film' }]));
    const foreign = await host.post('/api/v1/jobs', job({ path: 'text/reviews/foreign' }));
    assert.match(foreign.json.errors[0].detail, /'val.csv': line 2: no text of the training part has the label 'neither'/);
});

test('a dry run forecasts, and names what does not fit together', { skip, timeout: 60000 }, async () => {
    const good = await dry({ path: 'text/reviews/one.jsonl' });
    assert.equal(good.status, 200, good.text);
    // 41 texts: a tenth validates, and the head of two classes instead of a tied one.
    assert.deepEqual([good.json.plan.train_samples, good.json.plan.val_samples, good.json.plan.steps_per_epoch], [37, 4, 1]);
    const tokens = await host.post('/api/v1/jobs?dry_run=1', job({ dataset: 'text', path: 'text/corpus.txt' }));
    assert.equal(good.json.plan.parameters, tokens.json.plan.parameters + 2 * 16);
    assert.deepEqual(good.json.warnings.filter(w => /tokens/.test(w.detail)).map(w => w.pointer), ['#/data/context']);
    assert.equal(good.json.document.data.split.rule, 'standard');
    assert.equal((await dry({ path: 'text/reviews/parts' })).json.document.data.split.rule, 'standard');
    const refused = async (data, pointer, says, more) => {
        const reply = await host.post('/api/v1/jobs', job(data, more));
        assert.equal(reply.status, 422, reply.text);
        assert.equal(reply.json.errors[0].pointer, pointer, reply.text);
        assert.match(reply.json.errors[0].detail, says);
    };
    await refused({}, '#/data/path', /is needed: a file of labelled texts or a folder of such files/);
    await refused({ path: 'text/reviews/one.jsonl', split: { rule: 'given' } }, '#/data/split/rule', /has no parts; use standard, fraction or count/);
    await refused({ path: 'text/reviews/one.jsonl' }, '#/data/dataset', /has no images, which a vit needs/, { model: { preset: 'vit_micro' } });
    await refused({ path: 'text/reviews/one.jsonl', split: { rule: 'count', train: 40, val: 9 } }, '#/data/split/val', /9 samples are requested, only 1 exist/);
    await refused({ path: 'text/reviews' }, '#/data/path', /has no train.tsv, train.csv or train.jsonl/);
    const { fields, datasets } = (await host.get('/api/v1/fields')).json;
    assert.ok(fields.find(f => f.pointer === '/data/dataset').available.includes('text_labels'));
    assert.match(datasets.find(set => set.name === 'text_labels').layout, /label and text/);
});

test('texts that were cut are counted in the log of the run', { skip, timeout: 60000 }, async () => {
    const reply = await host.post('/api/v1/jobs', job({ path: 'text/reviews/one.jsonl' }, { train: { steps: 2, batch: 8 } }));
    assert.equal((await host.over(reply.json.id)).state, 'done');
    assert.match((await host.get(`/api/v1/runs/${reply.json.run_ids[0]}/logs?tail=100`)).text, /1 of 41 texts have more than 32 tokens: of these the first 32 are read/);
});

test('an evaluation is of the same classes and the same tokenizer', { skip, timeout: 60000 }, async () => {
    const evaluate = data => host.post('/api/v1/jobs', { kind: 'evaluate', model: 'reviews', resources: { device: 'cpu', threads: 1 }, ...data ? { data } : {} });
    const good = await evaluate();
    assert.equal(good.status, 201, good.text);
    assert.equal((await host.over(good.json.id)).state, 'done');
    const { series } = (await host.get(`/api/v1/runs/${good.json.run_ids[0]}/metrics`)).json;
    assert.deepEqual(series.map(one => one.key).sort(), ['acc/test', 'loss/test']);
    put('three/train.csv', csv([...rows(20), { label: 'unsure', text: 'a film' }]));
    put('three/test.csv', csv(rows(6)));
    const three = await evaluate({ path: 'text/reviews/three' });
    assert.equal(three.status, 422, three.text);
    assert.match(three.json.errors[0].detail, /it has 3 classes, the checkpoint 2/);
    put('other/train.csv', csv(rows(20).map(row => ({ ...row, text: `${row.text} again` }))));
    put('other/test.csv', csv(rows(6)));
    const other = await evaluate({ path: 'text/reviews/other' });
    assert.equal(other.json.errors[0].pointer, '#/data/tokenizer', other.text);
});
