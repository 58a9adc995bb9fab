// Nystromformers over HTTP on the real daemon: the golden weights come in under their public names, answer with the stored scores
// from texts of ids and from ids, and go out again; what a model cannot read is refused with both numbers.
import assert from 'node:assert/strict';
import { existsSync, readFileSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { parse, shown, write } from '../lib/safetensors.mjs';
import { build, Daemon, root } from './lib.mjs';

const folder = path.join(process.env.POLYD_SHARED ?? path.resolve(root, '../shared'), 'golden/nystrom');
const built = existsSync(path.join(build, 'bin/polyd')) && existsSync(path.join(build, 'bin/polyd-worker'));
const skip = !built ? 'polyd or polyd-worker is not built' : existsSync(folder) ? false : 'the shared vectors are not there';
const files = skip ? [] : readdirSync(folder).filter(name => name.startsWith('classifier_')).map(name => name.replace('.safetensors', ''));
let host;

before(async () => { if (!skip) host = await Daemon.start(); });
after(() => host?.stop());

const floats = t => [...new Float32Array(t.bytes.buffer.slice(t.bytes.byteOffset, t.bytes.byteOffset + t.bytes.length))];
const ints = t => [...new Int32Array(t.bytes.buffer.slice(t.bytes.byteOffset, t.bytes.byteOffset + t.bytes.length))];

/** A golden classifier: weights as a public file has them, a description, ids by sample (of a pair both texts) and scores. */
function golden(name) {
    const { meta, tensors } = parse(readFileSync(path.join(folder, `${name}.safetensors`))), c = JSON.parse(meta.config);
    const n = c.seq_len, all = c.dual ? [0, 1] : [0], rows = all.map(k => ints(tensors.get(`in/input_ids_${k}`)));
    return {
        config: c, weights: new Map([...tensors].filter(([key]) => key.startsWith('param/')).map(([key, t]) => [key.slice(6), t])),
        samples: Array.from({ length: c.batch }, (_, i) => rows.map(row => row.slice(i * n, (i + 1) * n))), scores: floats(tensors.get('out/scores')),
        description: {
            model: { arch: 'nystrom', width: c.transformer_dim, depth: c.num_layers, heads: c.num_head, mlp_ratio: c.transformer_hidden_dim / c.transformer_dim, context: n * all.length,
                landmarks: c.num_landmarks, conv_kernel: c.conv_kernel_size, pinv_iterations: c.pinv_iterations, pinv_start: c.pinv_init, pool: c.pooling_mode.toLowerCase() },
            attention: c.attention.kind === 'poly' ? { activation: 'poly', degree: c.attention.p, scale: c.attention.scale_mode } : { activation: c.attention.kind },
            norm: { eps: c.ln_eps }, ...c.dual && { data: { dataset: 'text_pairs' } },
        },
    };
}
const upload = (model, bytes, description) => host.call('POST', `/api/v1/models/${model}/versions?${new URLSearchParams(description && { description: JSON.stringify(description) })}`,
    { body: bytes, headers: { 'content-type': 'application/octet-stream' } });
const infer = (model, input) => host.post(`/v2/models/${model}/infer`, { inputs: [input] });
const near = (got, want, what) => {
    assert.equal(got.length, want.length, what);
    got.forEach((x, i) => assert.ok(Math.abs(x - want[i]) < 1e-4 * (1 + Math.abs(want[i])), `${what}, ${i}: ${x} instead of ${want[i]}`));
};
async function loaded(model, bytes, description) {
    const reply = await upload(model, bytes, description);
    assert.equal(reply.status, 201, reply.text);
    const { status, text, json } = await host.post(`/api/v1/models/${model}/versions/1/load`, {});
    assert.equal(status, 200, text);
    return json.signature;
}

for (const name of files)
    test(`an uploaded Nystromformer answers with the stored scores and comes out as it came in: ${name}`, { skip }, async () => {
        const g = golden(name), { config: c, samples } = g, outputs = reply => Object.fromEntries(reply.json.outputs.map(o => [o.name, o.data]));
        const signature = await loaded(name, write(g.weights, { format: 'pt' }), g.description);
        // the last id of one with a class token is that token, and no text may hold it
        assert.deepEqual([signature.kind, signature.tokenizer, signature.context, signature.classes, signature.pairs, signature.vocabulary],
            ['text_classifier', 'ids', g.description.model.context, c.num_classes, c.dual, c.vocab_size - (c.pooling_mode === 'CLS')]);
        const texts = await infer(name, { name: 'text', datatype: 'BYTES', shape: [c.batch], data: samples.map(parts => parts.map(row => row.join(' ')).join('\t')) });
        assert.equal(texts.status, 200, texts.text);
        near(outputs(texts).logits, g.scores, 'of texts');
        for (let i = 0; i < c.batch; i++) {
            const row = g.scores.slice(i * c.num_classes, (i + 1) * c.num_classes), sum = row.reduce((s, x) => s + Math.exp(x), 0);
            near(outputs(texts).probabilities.slice(i * c.num_classes, (i + 1) * c.num_classes), row.map(x => Math.exp(x) / sum), `probabilities of text ${i}`);
            assert.equal(outputs(texts).class[i], row.indexOf(Math.max(...row)));
        }
        for (const datatype of ['INT32', 'INT64'])
            near(outputs(await infer(name, { name: 'tokens', datatype, shape: [c.batch, g.description.model.context], data: samples.flat(2) })).logits, g.scores, datatype);
        const own = new Map([...g.weights].map(([key, t]) => [key.replace('phi_scale', 'attn_scale'), t])), out = await host.get(`/api/v1/models/${name}/versions/1/weights`);
        assert.deepEqual(shown(parse(out.bytes).tensors), shown(own));
        // what came out describes itself
        assert.deepEqual(await loaded(`${name}_again`, out.bytes), signature);
        near(outputs(await infer(`${name}_again`, { name: 'tokens', datatype: 'INT32', shape: [c.batch, g.description.model.context], data: samples.flat(2) })).logits, g.scores, 'again');
    });

test('all golden files with weights were there', { skip }, () => assert.equal(files.length, 7));

test('what a Nystromformer cannot read is refused with both numbers', { skip }, async () => {
    const g = golden('classifier_mean_softmax_global_colsum'), pair = golden('classifier_dual_softmax_global_colsum'), cls = golden('classifier_cls_softmax_global_colsum');
    await loaded('one', write(g.weights), g.description);
    await loaded('two', write(pair.weights), pair.description);
    await loaded('front', write(cls.weights), cls.description);
    const refused = async (model, input, words) => {
        const { status, text } = await infer(model, input);
        assert.equal(status, 400, text);
        assert.match(text, words);
    };
    const tokens = (shape, data, datatype = 'INT64') => ({ name: 'tokens', datatype, shape, data });
    const text = data => ({ name: 'text', datatype: 'BYTES', shape: [1], data: [data] });
    const many = Array.from({ length: 33 }, () => 1);
    await refused('one', text(many.join(' ')), /text 0: the text has 33 tokens, the model 32 positions/);
    await refused('one', tokens([1, 33], many), /row 0: the text has 33 tokens, the model 32 positions/);
    await refused('one', tokens([2, 2], [1, 2, 3, 12]), /row 1: id 12 is not in the vocabulary, whose ids are 0 to 11/);
    await refused('one', tokens([1, 1], [-1], 'INT32'), /id -1 is not in the vocabulary, whose ids are 0 to 11/);
    await refused('one', tokens([1, 1], [2 ** 33]), /id 8589934592 is not in/);
    await refused('one', text('3 12'), /id 12 is not in the vocabulary, whose ids are 0 to 11/);
    await refused('one', tokens([1, 2, 1], [1, 2]), /must have the shape \[n, tokens\]/);
    await refused('one', tokens([1, 2], [1, 2], 'FP32'), /'tokens' must be INT32 or INT64, not FP32/);
    await refused('front', text('11'), /id 11 is not in the vocabulary, whose ids are 0 to 10/); // its class token
    await refused('two', tokens([1, 3], [1, 2, 3]), /3 tokens cannot be divided into two texts of equal length/);
    await refused('two', tokens([1, 66], [...many, ...many]), /the text has 33 tokens, the model 32 positions for each text/);
    // each half of a short row is one text, which padding follows
    const logits = async input => (await infer('two', input)).json.outputs.find(o => o.name === 'logits').data;
    assert.deepEqual(await logits(tokens([1, 4], [3, 7, 8, 5])), await logits(text('3 7\t8 5')));
    const other = await upload('never', write(g.weights), { ...g.description, model: { ...g.description.model, landmarks: 5 } });
    assert.equal(other.status, 422, other.text);
    assert.match(other.text, /must divide model.context: 5 landmarks, 32 tokens/);
});
