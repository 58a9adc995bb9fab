// What a served model answers, recomputed: a job trains, the checkpoint that is best by its own validation becomes a model,
// and classes, probabilities, log-probabilities and sampled texts must be those of the formulas for that file's weights
// (fields.test.mjs holds the weights themselves). Models are served in f32; of each kind some jobs train in f32 and some in f64.
import assert from 'node:assert/strict';
import { mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { png } from './reference/data/files.mjs';
import { network } from './reference/networks.mjs';
import { logSoftmax, pick } from './reference/sampling.mjs';
import { Tape } from './reference/tape.mjs';
import { Rig, SIDE, TRAIN, VAL, imageJob, labelJob, merge, noise, nystromJob, nystromLabels, swinJob, textJob, xcitJob } from './rig.mjs';
import { until } from '../lib/daemon.mjs';

let rig;
before(async () => { rig = await Rig.start(); });
after(() => rig?.stop());

/** Trains, registers the best checkpoint, loads it; gives the weights that must answer. `like`: a job of the same network whose data the reference reads. */
async function served(name, job, { averaged = false, like = job, precision = 'fp32' } = {}) {
    const got = await rig.run(merge(job, { register: name, train: { precision } }));
    const key = averaged ? 'acc/val_ema' : got.series.has('acc/val') ? 'acc/val' : 'loss/val', points = [...got.series.get(key)];
    const better = key === 'loss/val' ? (a, b) => a < b : (a, b) => a > b;
    const [step] = points.reduce((best, point) => better(point[1], best[1]) ? point : best);
    if (points.length > 1)
        assert.notEqual(step, points.at(-1)[0], 'the best checkpoint is to be another than the last');
    await until('the version', () => rig.daemon.get(`/api/v1/models/${name}/versions/1`));
    await rig.daemon.post(`/api/v1/models/${name}/versions/1/load`);
    const { tensors } = got.checkpoints.get(step), params = new Map();
    for (const tensor of tensors.keys())
        if (!/^(optim|ema|polyd)\./.test(tensor))
            params.set(tensor, { data: tensors.get(averaged ? `ema.${tensor}` : tensor).data });
    return { params, s: rig.settings(like) };
}

function classify({ s, params }, image) {
    const t = new Tape();
    return network(t, s, params).classify(image, 0).map(id => t.at(id));
}

function predict({ s, params }, tokens) {
    const t = new Tape(), rows = network(t, s, params).predict(tokens.slice(-s.positions), 0);
    return rows.map(row => row.map(id => t.at(id)));
}

const near = (a, b, tolerance = 2e-5) => Math.abs(a - b) <= tolerance * Math.max(1, Math.abs(b));
function allNear(got, want, what) {
    assert.equal(got.length, want.length, what);
    got.forEach((x, i) => assert.ok(near(x, want[i]), `${what}[${i}]: ${x}, expected ${want[i]}`));
}

const pixels = i => rig.data.pixels.subarray(i * SIDE * SIDE, (i + 1) * SIDE * SIDE);
const infer = (name, input) => rig.daemon.post(`/v2/models/${name}/infer`, { inputs: [input] });
const output = (reply, name) => reply.outputs.find(o => o.name === name).data;
const normal = (x, scale) => (x / scale - 0.1307) / 0.3081;

const classifiers = {
    'softmax with biases': imageJob({ train: { steps: 8, eval_every: 2, optimizer: { lr: 0.03 } } }),
    'a learned scale, deep norms and a class token': imageJob({ model: { pool: 'cls', mlp_act: 'relu' }, norm: { placement: 'S4' }, attention: { activation: 'poly', scale: 'learned' }, train: { steps: 6, optimizer: { lr: 0.05 } } }),
    'windows that shift, with a factor for each block': swinJob({ attention: { activation: 'poly', n_for_scale: 'patches' }, train: { steps: 8, eval_every: 2, optimizer: { lr: 0.03 } } }),
    'BatchNorm by its buffers, class layers by softmax': xcitJob({ attention: { activation: 'poly', class_attention: 'softmax' }, model: { layerscale: 0.7 }, train: { steps: 8, eval_every: 2, optimizer: { lr: 0.05 } } }),
    'noise of training, which an answer must not have': imageJob({ train: { steps: 9, eval_every: 1, dropout: 0.5, drop_path: 0.5, optimizer: { lr: 0.1 } }, attention: { dropout: 0.5 } }),
};
Object.entries(classifiers).forEach(([what, job], i) => test(`a classifier answers with its formulas: ${what}`, async () => {
    const model = await served(`pictures${i}`, job, { precision: i % 4 ? 'fp64' : 'fp32' }), shape = [VAL, 1, SIDE, SIDE];
    const all = Array.from({ length: VAL }, (_, k) => pixels(TRAIN + k));
    const expected = all.map(image => classify(model, Array.from(image, x => normal(x, 255))));
    const bytes = await infer(`pictures${i}`, { name: 'image', datatype: 'UINT8', shape, data: all.flatMap(image => [...image]) });
    allNear(output(bytes, 'logits'), expected.flat(), 'logits of bytes');
    allNear(output(bytes, 'probabilities'), expected.flatMap(row => logSoftmax(row).map(Math.exp)), 'probabilities');
    assert.deepEqual(output(bytes, 'class'), expected.map(row => row.indexOf(Math.max(...row))));
    const share = await infer(`pictures${i}`, { name: 'image', datatype: 'FP32', shape, data: all.flatMap(image => [...image].map(x => x / 255)) });
    allNear(output(share, 'logits'), expected.flat(), 'logits of shares');
    const reply = await fetch(`${rig.daemon.url}/v2/models/pictures${i}/infer`, { method: 'POST', headers: { 'Content-Type': 'image/png' }, body: png({ height: SIDE, width: SIDE, channels: 1, data: all[2] }) });
    allNear(output(await reply.json(), 'logits'), expected[2], 'logits of a PNG');
}));

test('averaged weights answer where the job says so, and the weights themselves where it does not', async () => {
    const job = serve => imageJob({ train: { ema: 0.9, ...serve ? { ema_serve: true } : {}, steps: 6, eval_every: 3, optimizer: { lr: 0.1 } } });
    const image = Array.from(pixels(TRAIN), x => normal(x, 255));
    for (const averaged of [true, false]) {
        const name = averaged ? 'averaged' : 'plain', model = await served(name, job(averaged), { averaged, precision: averaged ? 'fp64' : 'fp32' });
        const reply = await infer(name, { name: 'image', datatype: 'UINT8', shape: [1, 1, SIDE, SIDE], data: [...pixels(TRAIN)] });
        allNear(output(reply, 'logits'), classify(model, image), name);
    }
});

const labellers = {
    'softmax, bytes': labelJob({ train: { steps: 9, eval_every: 2, optimizer: { lr: 0.05 } } }),
    'x cubed, deep norms, characters, fewer tokens than positions': labelJob({ model: { context: 9 }, data: { context: 5, tokenizer: 'chars' }, norm: { placement: 'S5' },
        attention: { activation: 'poly', scale: 'learned' }, train: { steps: 6, optimizer: { lr: 0.05 } } }),
};
Object.entries(labellers).forEach(([what, job], i) => test(`a classifier of texts answers with its formulas: ${what}`, { timeout: 120000 }, async () => {
    const name = `labels${i}`, model = await served(name, job, { precision: i ? 'fp64' : 'fp32' }), { names, vocabulary } = rig.feed(job), most = job.data.context ?? job.model.context;
    const texts = ['abc', '', 'gfedcba', 'a', 'abcdef', 'fade', 'bed', 'cab', 'abcdefg'];
    // Of a text alone: what stands behind its last token cannot matter.
    const tokens = text => text ? [...text].map(c => vocabulary.findIndex(b => b.equals(Buffer.from(c)))).slice(0, most) : [0];
    const expected = texts.map(text => classify(model, { tokens: tokens(text), last: tokens(text).length - 1 }));
    const reply = await infer(name, { name: 'text', datatype: 'BYTES', shape: [texts.length], data: texts });
    allNear(output(reply, 'logits'), expected.flat(), 'logits');
    allNear(output(reply, 'probabilities'), expected.flatMap(row => logSoftmax(row).map(Math.exp)), 'probabilities');
    const best = expected.map(row => row.indexOf(Math.max(...row)));
    assert.deepEqual(output(reply, 'class'), best);
    assert.deepEqual(output(reply, 'label'), best.map(c => names[c]));
    assert.deepEqual(names, [...names].sort());
    const { parameters, inputs } = await rig.daemon.get(`/v2/models/${name}`);
    assert.deepEqual([parameters.kind, parameters.labels, parameters.context, inputs], ['text_classifier', names, most, [{ name: 'text', datatype: 'BYTES', shape: [-1] }]]);
}));

const solvers = {
    'softmax, the mean': nystromJob({ train: { steps: 6, optimizer: { lr: 0.05 } } }),
    'x cubed, a class token, more landmarks': nystromJob({ attention: { activation: 'poly', scale: 'learned' }, model: { pool: 'cls', landmarks: 4 }, train: { steps: 6, optimizer: { lr: 0.05 } } }),
};
Object.entries(solvers).forEach(([what, job], i) => test(`a classifier of sequences answers with its formulas: ${what}`, { timeout: 120000 }, async () => {
    const name = `sequences${i}`, model = await served(name, job, { precision: i ? 'fp64' : 'fp32' }), { names, vocabulary } = rig.feed(job), { context } = job.model;
    const texts = ['[MAX 1 2 ]', '[SM 9 [MIN 4 5 ] 3 ]', '7', '[MED 1 2 3 4 5 6 7 8 9 0 ]'];
    const tokens = text => text.split(' ').map(word => vocabulary.findIndex(b => b.equals(Buffer.from(`${word} `))));
    const expected = texts.map(text => classify(model, { tokens: Array.from({ length: context }, (_, k) => tokens(text)[k] ?? 0), last: tokens(text).length - 1 }));
    const reply = await infer(name, { name: 'text', datatype: 'BYTES', shape: [texts.length], data: texts });
    allNear(output(reply, 'logits'), expected.flat(), 'logits');
    assert.deepEqual(output(reply, 'label'), expected.map(row => names[row.indexOf(Math.max(...row))]));
    // The mean is over all positions: a part of a sequence is another sequence, and is not read in its place.
    await assert.rejects(infer(name, { name: 'text', datatype: 'BYTES', shape: [1], data: ['[MAX 1 2 3 4 5 6 7 8 9 0 1 ]'] }), /the text has 13 tokens, the model 12 positions/);
    await rawExpressions(name, { ...model, vocabulary, context });
}));

/** ListOps as the Long Range Arena writes it: parentheses are no tokens, and no other word has an embedding that was trained. */
async function rawExpressions(name, { vocabulary, context, ...model }) {
    const clean = ['[MAX 1 2 ]', '[SM 9 [MIN 4 5 ] 3 ]'], raw = ['( ( ( [MAX 1 )\t2 ) ] )\r\n', '( ( ( ( [SM 9 ) ( ( ( [MIN 4 ) 5 ) ] ) ) 3 ) ] )'];
    const tokens = text => text.split(' ').map(word => vocabulary.findIndex(b => b.equals(Buffer.from(`${word} `))));
    const expected = clean.map(text => classify(model, { tokens: Array.from({ length: context }, (_, k) => tokens(text)[k] ?? 0), last: tokens(text).length - 1 }));
    allNear(output(await infer(name, { name: 'text', datatype: 'BYTES', shape: [2], data: raw }), 'logits'), expected.flat(), 'logits of raw expressions');
    await assert.rejects(infer(name, { name: 'text', datatype: 'BYTES', shape: [2], data: ['7', '[MAX 1 two ]'] }), /400.*text 1: 'two' is not a token of ListOps/);
}

test('/data/dataset: an expression of ListOps is served as it was read from the file', { timeout: 120000 }, async () => {
    const rows = Array.from({ length: 100 }, (_, i) => `( ( ( [M${['AX', 'IN'][i % 2]} ${i % 7} ) ${i % 10} ) ] )\t${i % 10}\n`);
    writeFileSync(path.join(rig.folder, 'expressions.tsv'), `Source\tTarget\n${rows.join('')}`);
    const like = nystromJob(), job = nystromJob({ data: { dataset: 'listops', path: 'tests/expressions.tsv', split: { rule: 'count', train: 80, val: 7, test: undefined } }, train: { steps: 1 } });
    await rawExpressions('expressions', { ...await served('expressions', job, { like }), vocabulary: rig.feed(like).vocabulary, context: job.model.context });
});

test('of a long text a network with landmarks reads what it read in training', { timeout: 120000 }, async () => {
    const job = nystromLabels({ train: { steps: 1 } }), model = await served('beginnings', job), { vocabulary } = rig.feed(job), { context } = job.model;
    const texts = ['abcdefgabc', 'abcdefg', 'ab'], tokens = text => [...text].map(c => vocabulary.findIndex(b => b.equals(Buffer.from(c))));
    const expected = texts.map(text => classify(model, { tokens: Array.from({ length: context }, (_, k) => tokens(text)[k] ?? 0), last: Math.min(text.length, context) - 1 }));
    allNear(output(await infer('beginnings', { name: 'text', datatype: 'BYTES', shape: [3], data: texts }), 'logits'), expected.flat(), 'logits');
});

/* Longer than the 1000 bytes that the Long Range Arena reads of a text, at most as long as both networks have positions, and longer still. */
const reviews = [900, 1000, 1010, 1020, 1500].map((length, i) => Buffer.from(noise(length, 60 + i).map(x => 97 + x % 9)).toString());
const reviewers = {
    'a nystrom': nystromJob({ model: { depth: 1, context: 1024, landmarks: 4 } }),
    'a gpt': textJob({ model: { depth: 1, context: 1024 } }),
    'a gpt without the cut': textJob({ model: { depth: 1, context: 1024 }, data: { lra_len: 'paper' } }),
};
Object.entries(reviewers).forEach(([what, job], i) => test(`/data/lra_len: a text is served as it is evaluated, before its weights went out and in and after: ${what}`, { timeout: 120000 }, async () => {
    const name = `reviews${i}`, folder = path.join(rig.folder, 'imdb');
    mkdirSync(folder, { recursive: true });
    for (const part of ['train', 'test'])
        writeFileSync(path.join(folder, `${part}.tsv`), reviews.map((text, k) => `${k % 2}\t${k}\t${text}\n`).join(''));
    const { run } = await rig.run(merge(job, { register: name, data: { dataset: 'imdb', path: 'tests/imdb', split: { rule: 'given' } }, diagnostics: { every: 0, probe_batch: 1 },
        train: { steps: 2, precision: 'fp32', batch: 2, optimizer: { lr: 0.05 } } }));
    const { run: scored } = await rig.daemon.submit({ kind: 'evaluate', run: run.id, checkpoint: 'best', split: 'test', resources: { device: 'cpu' } });
    await rig.daemon.reach(scored, 'succeeded');
    const { series } = await rig.daemon.get(`/api/v1/runs/${scored}/series?key=loss/test`), loss = series[0].data[0].mean;
    await until('the version', () => rig.daemon.get(`/api/v1/models/${name}/versions/1`));
    const weights = await (await fetch(`${rig.daemon.url}/api/v1/models/${name}/versions/1/weights`)).arrayBuffer();
    const uploaded = await fetch(`${rig.daemon.url}/api/v1/models/${name}again/versions`, { method: 'POST', headers: { 'Content-Type': 'application/octet-stream' }, body: weights });
    assert.ok(uploaded.ok, `uploaded: ${uploaded.status}`);
    const asIds = text => [...Buffer.from(text)].map(byte => byte + 1).join(' '); // what went out has no tokenizer
    for (const [model, write] of [[name, text => text], [`${name}again`, asIds]]) {
        await rig.daemon.post(`/api/v1/models/${model}/versions/1/load`);
        const ask = async data => output(await infer(model, { name: 'text', datatype: 'BYTES', shape: [data.length], data: data.map(write) }), 'logits'), logits = await ask(reviews);
        const losses = reviews.map((_, k) => -logSoftmax(logits.slice(2 * k, 2 * k + 2))[k % 2]);
        assert.ok(near(losses.reduce((a, b) => a + b) / losses.length, loss), `${model}: ${losses.reduce((a, b) => a + b) / losses.length}, evaluated ${loss}`);
        const cut = job.data.lra_len === 'paper' ? 1024 : 1000, [begin, other] = [cut, cut - 24].map(length => reviews.map(text => text.slice(0, length)));
        allNear(logits, await ask(begin), `${model}: the first ${cut}`);
        assert.ok((await ask(other)).some((x, k) => !near(x, logits[k], 1e-4)), 'the tokens at the end make no difference');
    }
}));

const ids = text => [...Buffer.from(text)];
/** Keeps answers to letters that the text has, so that every token is one character. */
const letters = Object.fromEntries(Array.from({ length: 256 }, (_, id) => [id, -100]).filter(([id]) => id < 97 || id > 103));

const writers = {
    'softmax, keys and values kept': textJob({ model: { context: 14 }, train: { steps: 25, batch: 6, eval_every: 1, optimizer: { lr: 0.3 }, schedule: { name: 'constant' } }, diagnostics: { every: 0 } }),
    'x squared, a state of constant size': textJob({ model: { context: 14 }, attention: { activation: 'poly', degree: 2, scale: 'learned' }, norm: { placement: 'S5' }, train: { steps: 25, batch: 6, eval_every: 1, optimizer: { lr: 0.3 }, schedule: { name: 'constant' } }, diagnostics: { every: 0 } }),
    'a formula and its scalars': textJob({ model: { context: 14 }, attention: { activation: 'formula', formula: 'c*s^3/(a+abs(s)) + b*s/n',
        params: { a: { init: 0.5, per: 'head', form: 'softplus' }, b: { init: 0.1, per: 'global' }, c: { init: '1/sqrt(n)', form: 'log' } } },
        train: { steps: 25, batch: 6, eval_every: 1, optimizer: { lr: 0.2 }, schedule: { name: 'constant' } }, diagnostics: { every: 0 } }),
    'x cubed by rows': textJob({ attention: { activation: 'poly', n_for_scale: 'row' }, model: { bias: false, context: 14 }, train: { steps: 25, batch: 6, eval_every: 1, optimizer: { lr: 0.2 }, schedule: { name: 'constant' } }, diagnostics: { every: 0 } }),
};
Object.entries(writers).forEach(([what, job], i) => test(`a language model answers with its formulas: ${what}`, { timeout: 120000 }, async () => {
    const model = await served(`text${i}`, job, { precision: i === 1 || i === 2 ? 'fp64' : 'fp32' }), prompt = 'abcd';
    const scored = await rig.daemon.post('/v1/completions', { model: `text${i}`, prompt, max_tokens: 0, echo: true, logprobs: 3 });
    const rows = predict(model, ids(prompt)).map(logSoftmax), { token_logprobs, top_logprobs } = scored.choices[0].logprobs;
    assert.equal(token_logprobs[0], null);
    allNear(token_logprobs.slice(1), ids(prompt).slice(1).map((id, k) => rows[k][id]), 'log-probabilities of the prompt');
    top_logprobs.slice(1).forEach((top, k) => allNear(Object.values(top).sort((a, b) => b - a), [...rows[k]].sort((a, b) => b - a).slice(0, 3), `alternatives at ${k}`));

    const settings = [{ temperature: 0 }, { temperature: 0, frequency_penalty: 1.5 }, { temperature: 0, presence_penalty: 2 }, { temperature: 0, logit_bias: { ...letters, 98: 5 } },
        { temperature: 1, seed: 1 }, { temperature: 1.7, seed: 2 }, { temperature: 0.6, seed: 3 }, { temperature: 1.2, top_p: 0.5, seed: 4 }, { temperature: 2, top_p: 0.8, seed: 2 ** 40 + 1 },
        { temperature: 1.1, presence_penalty: 1, frequency_penalty: 0.7, seed: 5 },
        { temperature: 2, top_k: 3, seed: 6 }, { temperature: 2, top_k: 1, seed: 7 }, { temperature: 2, top_k: 4, top_p: 0.6, seed: 8 }, { temperature: 2, min_p: 0.4, seed: 9 },
        { temperature: 2, min_p: 0.2, top_k: 5, top_p: 0.9, seed: 10 }, { temperature: 0, repetition_penalty: 3 }, { temperature: 1, repetition_penalty: 0.3, frequency_penalty: 0.5, seed: 11 },
        { temperature: 0, repetition_penalty: 1.5, logit_bias: { ...letters, ...Object.fromEntries([97, 98, 99, 100, 101, 102, 103].map(id => [id, -20])) } }];
    const texts = new Set();
    for (const setting of settings) {
        const request = { logit_bias: letters, ...setting }, max = Math.min(12, model.s.positions - prompt.length);
        const reply = await rig.daemon.post('/v1/completions', { model: `text${i}`, prompt, max_tokens: max, logprobs: 1, ...request });
        const generated = [], logprobs = [];
        while (generated.length < max) {
            const logits = predict(model, [...ids(prompt), ...generated]).at(-1), id = pick(logits, generated, request, ids(prompt));
            logprobs.push(logSoftmax(logits)[id]);
            generated.push(id);
        }
        assert.equal(reply.choices[0].text, Buffer.from(generated).toString(), JSON.stringify(setting));
        allNear(reply.choices[0].logprobs.token_logprobs, logprobs, JSON.stringify(setting));
        texts.add(reply.choices[0].text);
    }
    assert.ok(texts.size > 3, 'the settings make no difference');
}));
