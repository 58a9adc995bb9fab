// Weights come in over HTTP on the real daemon: uploads, files and folders of data roots; what they answer is compared with
// stored logits, what goes out again with what came in, byte by byte.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { parse, shown, write } from '../lib/safetensors.mjs';
import { build, Daemon, root, sleep } from './lib.mjs';

const shared = process.env.POLYD_SHARED ?? path.resolve(root, '../shared');
const built = existsSync(path.join(build, 'bin/polyd')) && existsSync(path.join(build, 'bin/polyd-worker'));
const skip = !built ? 'polyd or polyd-worker is not built' : existsSync(path.join(shared, 'golden/models')) ? false : 'the shared vectors are not there';
let host, models;

/** A golden case: its weights as a public file would have them, its inputs and logits. */
function golden(name) {
    const { meta, tensors } = parse(readFileSync(path.join(shared, 'golden/models', `${name}.safetensors`)));
    return {
        config: JSON.parse(meta.config), tensors,
        weights: new Map([...tensors].filter(([key]) => key.startsWith('param.')).map(([key, t]) => [key.slice(6), t])),
    };
}
const floats = t => new Float32Array(t.bytes.buffer.slice(t.bytes.byteOffset, t.bytes.byteOffset + t.bytes.length));
const longs = t => [...new BigInt64Array(t.bytes.buffer.slice(t.bytes.byteOffset, t.bytes.byteOffset + t.bytes.length))].map(Number);
const sha256 = bytes => createHash('sha256').update(bytes).digest();

const describe = c => ({
    model: c.arch === 'vit'
        ? { arch: 'vit', width: c.D, depth: c.layers, heads: c.H, patch: c.patch, pool: 'cls' }
        : { arch: 'gpt', width: c.D, depth: c.layers, heads: c.H, context: c.T, gelu: c.gelu === 'gelu_new' ? 'tanh' : 'exact' },
    attention: c.activation === 'poly' ? { activation: 'poly', degree: c.p, scale: c.scale_kind === 'invsqrtn' ? 'fixed' : c.scale_kind, n_for_scale: c.n_for_scale } : { activation: c.activation },
    norm: { eps: c.norm_eps },
    // images are sent as numbers from 0 to 1; these hold values between -5 and 5
    ...c.arch === 'vit' && { data: { image_size: c.image }, mean: [0.5, 0.5, 0.5], std: [0.1, 0.1, 0.1] },
});
const upload = (model, bytes, { description, query = {}, headers = {} } = {}) => host.call('POST',
    `/api/v1/models/${model}/versions?${new URLSearchParams({ ...description && { description: JSON.stringify(description) }, ...query })}`,
    { body: bytes, headers: { 'content-type': 'application/octet-stream', ...headers } });
const load = async (model, version = '1') => {
    const reply = await host.post(`/api/v1/models/${model}/versions/${version}/load`, {});
    assert.equal(reply.status, 200, reply.text);
    return reply.json;
};
/** An upload's own file goes when its request ends, a moment after the answer. */
const settled = async () => {
    for (let i = 0; i < 200 && folder('uploads').length; i++)
        await sleep(20);
    assert.deepEqual(folder('uploads'), []);
};
const folder = name => { try { return readdirSync(path.join(host.dir, 'state', name)); } catch { return []; } };
const names = async () => (await host.get('/api/v1/models')).json.models.map(m => m.name);

/** Log-probabilities of the tokens behind the first, and the five greatest of each place, against logits [rows, vocab]. */
async function checkLanguage(model, ids, logits, vocab, tolerance) {
    const { json } = await host.post('/v1/completions', { model, prompt: ids, max_tokens: 0, echo: true, logprobs: 5 });
    const { token_logprobs: got, top_logprobs: top, tokens } = json.choices[0].logprobs;
    assert.equal(got.length, ids.length);
    for (let t = 1; t < ids.length; t++) {
        const row = logits.slice((t - 1) * vocab, t * vocab), most = Math.max(...row);
        const norm = most + Math.log(row.reduce((sum, x) => sum + Math.exp(x - most), 0));
        assert.ok(Math.abs(got[t] - (row[ids[t]] - norm)) < tolerance, `token ${t}: ${got[t]} instead of ${row[ids[t]] - norm}`);
        const best = [...row].map((x, id) => [x - norm, id]).sort((a, b) => b[0] - a[0]).slice(0, 5);
        assert.deepEqual(Object.entries(top[t]).filter(([text]) => text !== tokens[t]).every(([, x]) => best.some(([y]) => Math.abs(x - y) < tolerance)), true);
        assert.ok(Math.abs(Math.max(...Object.values(top[t])) - best[0][0]) < tolerance);
    }
}

before(async () => {
    if (skip)
        return;
    models = mkdtempSync(path.join(os.tmpdir(), 'polyd-models-'));
    for (const name of readdirSync(path.join(shared, 'data/models/tiny_gpt2'))) {
        mkdirSync(path.join(models, 'tiny'), { recursive: true });
        copyFileSync(path.join(shared, 'data/models/tiny_gpt2', name), path.join(models, 'tiny', name));
    }
    host = await Daemon.start([`--data.models=${models}`]);
});
after(async () => {
    await host?.stop();
    if (models)
        rmSync(models, { recursive: true, force: true });
});

for (const name of ['vit_softmax', 'vit_x3_learned'])
    test(`an uploaded ViT answers with the stored logits and comes out as it came in: ${name}`, { skip }, async () => {
        const g = golden(name), bytes = write(g.weights, { format: 'pt' });
        const reply = await upload(name, bytes, { description: describe(g.config), query: { sha256: sha256(bytes).toString('hex') } });
        assert.equal(reply.status, 201, reply.text);
        assert.deepEqual([reply.json.origin, reply.json.run_id, reply.json.checkpoint_id, reply.json.step], ['upload', null, null, 0]);
        assert.equal(reply.json.source.sha256, sha256(bytes).toString('hex'));
        assert.equal(reply.headers.location, `/api/v1/models/${name}/versions/1`);
        await settled();
        await load(name);
        const images = floats(g.tensors.get('images')), want = floats(g.tensors.get('logits'));
        const { json } = await host.post(`/v2/models/${name}/infer`, { inputs: [{ name: 'image', datatype: 'FP32', shape: [2, 3, 32, 32], data: [...images].map(x => 0.5 + 0.1 * x) }] });
        const got = json.outputs.find(o => o.name === 'logits').data;
        assert.equal(got.length, want.length);
        got.forEach((x, i) => assert.ok(Math.abs(x - want[i]) < 2e-5 * (1 + Math.abs(want[i])), `${i}: ${x} instead of ${want[i]}`));
        const out = await host.get(`/api/v1/models/${name}/versions/1/weights`);
        assert.deepEqual(shown(parse(out.bytes).tensors), shown(g.weights));
        // what came out describes itself: it goes in again without a word, and answers alike
        const again = await upload(`${name}_again`, out.bytes);
        assert.equal(again.status, 201, again.text);
        assert.deepEqual(shown(parse((await host.get(`/api/v1/models/${name}_again/versions/1/weights`)).bytes).tensors), shown(g.weights));
    });

/** A golden case of DeiT, Swin or XCiT: its weights and buffers as a public file has them, and what its attention is. */
function goldenOfImages(network, name) {
    const { meta, tensors } = parse(readFileSync(path.join(shared, 'golden', network, `${name}.safetensors`))), config = JSON.parse(meta.config);
    const under = prefix => [...tensors].filter(([key]) => key.startsWith(prefix)).map(([key, t]) => [key.slice(prefix.length), t]);
    const { attention: { kind, p, scale_mode }, model: m } = config;
    return {
        tensors, config, weights: new Map([...under('param/'), ...under('buffer_before/')]), aux: new Map(under('aux/')),
        description: {
            model: { arch: network, mlp_ratio: m.mlp_ratio, patch: m.patch_size, ...network === 'swin' ? { widths: m.depths.map((_, i) => m.embed_dim << i), depths: m.depths, head_counts: m.num_heads, window: m.window_size }
                : { width: m.embed_dim, depth: m.depth, heads: m.num_heads }, ...network === 'deit' && { pool: 'cls' }, ...network === 'xcit' && { layerscale: m.eta } },
            attention: { ...kind === 'poly' ? { activation: 'poly', degree: p, scale: scale_mode, ...network === 'swin' && { n_for_scale: 'window' } } : { activation: kind }, ...network === 'xcit' && { class_attention: config.class_attention } },
            norm: { eps: config.ln_eps }, data: { image_size: config.in_hw ?? m.img_size }, mean: [0.5, 0.5, 0.5], std: [0.1, 0.1, 0.1],
        },
    };
}
/** Names of timm since 0.9: the merge of patches leads the next stage, and the classifier has a part of its own. */
const newerSwin = t => new Map([...t].map(([k, v]) => [k.replace(/^layers\.(\d+)\.downsample/, (_, i) => `layers.${+i + 1}.downsample`).replace(/^head\./, 'head.fc.'), v]));
/** timm's names of XCiT: another word for the code of positions, and class attention in three layers. */
const timmXcit = t => new Map([...t].flatMap(([k, v]) => {
    const [, head, tail] = /^(cls_attn_blocks\.\d+\.attn\.)qkv\.(\w+)$/.exec(k) ?? [], third = v.bytes.length / 3;
    return head ? ['v', 'q', 'k'].map(letter => [`${head}${letter}.${tail}`, { ...v, shape: [v.shape[0] / 3, ...v.shape.slice(1)], bytes: v.bytes.subarray('qkv'.indexOf(letter) * third, ('qkv'.indexOf(letter) + 1) * third) }])
        : [[k.replace(/^pos_embeder\./, 'pos_embed.'), v]];
}));

for (const [network, name, logits, change] of [['deit', 'tiny_softmax', 'out/logits_eval'], ['deit', 'tiny_poly3_learned', 'out/logits_eval'], ['swin', 'tiny_softmax', 'out/logits'],
    ['swin', 'tiny_poly3_learned', 'out/logits', newerSwin], ['xcit', 'tiny_p16_poly3_learned', 'out/logits_eval_mode_running_stats_before', timmXcit], ['xcit', 'tiny_p16_softmax', 'out/logits_eval_mode_running_stats_before']])
    test(`uploaded weights of a ${network} answer with the stored logits: ${name}${change ? ', newer names' : ''}`, { skip }, async () => {
        const g = goldenOfImages(network, name), model = `${network}_${name}`, indices = new Map([...g.aux].filter(([key]) => key.endsWith('relative_position_index')));
        const reply = await upload(model, write((change ?? (t => t))(new Map([...g.weights, ...indices]))), { description: g.description });
        assert.equal(reply.status, 201, reply.text);
        assert.deepEqual(reply.json.source.ignored.sort(), [...indices.keys()].sort());
        await load(model);
        const images = g.tensors.get('in/x'), want = floats(g.tensors.get(logits));
        const { json } = await host.post(`/v2/models/${model}/infer`, { inputs: [{ name: 'image', datatype: 'FP32', shape: images.shape, data: [...floats(images)].map(x => 0.5 + 0.1 * x) }] });
        const got = json.outputs.find(o => o.name === 'logits').data;
        assert.equal(got.length, want.length);
        got.forEach((x, i) => assert.ok(Math.abs(x - want[i]) < 2e-5 * (1 + Math.abs(want[i])), `${i}: ${x} instead of ${want[i]}`));
        const own = new Map([...g.weights].map(([key, t]) => [key.replace('phi_scale', 'attn_scale'), t]));
        assert.deepEqual(shown(parse((await host.get(`/api/v1/models/${model}/versions/1/weights`)).bytes).tensors), shown(own));
    });

for (const [name, change] of [['gpt2_softmax', t => t], ['gpt2_x3_fixed', t => t],
    // as Hugging Face's hub has GPT-2: without the prefix, with the masks of attention and a head that repeats the embedding
    ['gpt2_softmax', t => new Map([...[...t].map(([k, v]) => [k.replace(/^transformer\./, ''), v]),
        ['h.0.attn.bias', { dtype: 'U8', shape: [1, 1, 4, 4], bytes: Buffer.alloc(16, 1) }], ['h.1.attn.masked_bias', { dtype: 'F32', shape: [], bytes: Buffer.alloc(4) }],
        ['lm_head.weight', t.get('transformer.wte.weight')]])]].map(([n, f], i) => [n, f, i]).map(([n, f, i]) => [`${n}_${i}`, f]))
    test(`an uploaded GPT-2 answers with the stored logits, from token ids: ${name}`, { skip }, async () => {
        const g = golden(name.replace(/_\d$/, '')), T = g.config.T, vocab = g.config.vocab;
        const reply = await upload(name, write(change(g.weights)), { description: describe(g.config) });
        assert.equal(reply.status, 201, reply.text);
        assert.equal(reply.json.source.tokenizer, 'ids');
        assert.deepEqual(reply.json.source.ignored.sort(), name.endsWith('2') ? ['h.0.attn.bias', 'h.1.attn.masked_bias'] : []);
        const { signature } = await load(name);
        assert.equal(signature.tokenizer, 'ids');
        const ids = longs(g.tensors.get('input_ids')), logits = floats(g.tensors.get('logits'));
        for (let b = 0; b < 2; b++)
            await checkLanguage(name, ids.slice(b * T, (b + 1) * T), [...logits.slice(b * T * vocab, (b + 1) * T * vocab)], vocab, 1e-4);
        const text = await host.post('/v1/completions', { model: name, prompt: '3 17', max_tokens: 1, temperature: 0 });
        assert.match(text.json.choices[0].text, /^\d+ $/);
        assert.match((await host.post('/v1/completions', { model: name, prompt: 'Hello', max_tokens: 1 })).text, /no tokenizer/);
        assert.deepEqual(shown(parse((await host.get(`/api/v1/models/${name}/versions/1/weights`)).bytes).tensors), shown(g.weights));
    });

/** GPT-2 in double precision, written from the paper and Hugging Face's layout: logits [T][vocab]. */
function gpt2(tensors, ids, heads) {
    const get = name => { const t = tensors.get(name); return { v: [...floats(t)], shape: t.shape }; };
    const linear = (x, name) => {
        const { v: w, shape: [rows, cols] } = get(`${name}.weight`), b = get(`${name}.bias`).v;
        return x.map(row => Array.from({ length: cols }, (_, j) => b[j] + row.reduce((s, a, i) => s + a * w[i * cols + j], 0) + 0 * rows));
    };
    const norm = (x, name) => x.map(row => {
        const m = row.reduce((a, b) => a + b) / row.length, s = row.reduce((a, b) => a + (b - m) ** 2, 0) / row.length;
        return row.map((a, i) => (a - m) / Math.sqrt(s + 1e-5) * get(`${name}.weight`).v[i] + get(`${name}.bias`).v[i]);
    });
    const gelu = x => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));
    const wte = get('wte.weight'), wpe = get('wpe.weight'), d = wte.shape[1];
    let x = ids.map((id, t) => Array.from({ length: d }, (_, i) => wte.v[id * d + i] + wpe.v[t * d + i]));
    const qkv = linear(norm(x, 'h.0.ln_1'), 'h.0.attn.c_attn'), size = d / heads;
    const mixed = x.map((_, t) => Array.from({ length: d }, (_, j) => {
        const h = Math.floor(j / size), scores = [];
        for (let s = 0; s <= t; s++)
            scores.push(Array.from({ length: size }, (_, k) => qkv[t][h * size + k] * qkv[s][d + h * size + k]).reduce((a, b) => a + b) / Math.sqrt(size));
        const most = Math.max(...scores), e = scores.map(s => Math.exp(s - most)), sum = e.reduce((a, b) => a + b);
        return e.reduce((a, w, s) => a + w / sum * qkv[s][2 * d + j], 0);
    }));
    x = x.map((row, t) => row.map((a, i) => a + linear(mixed, 'h.0.attn.c_proj')[t][i]));
    const inner = linear(norm(x, 'h.0.ln_2'), 'h.0.mlp.c_fc').map(row => row.map(gelu));
    const back = linear(inner, 'h.0.mlp.c_proj');
    x = norm(x.map((row, t) => row.map((a, i) => a + back[t][i])), 'ln_f');
    return x.map(row => Array.from({ length: wte.shape[0] }, (_, id) => row.reduce((s, a, i) => s + a * wte.v[id * d + i], 0)));
}

const tinyDescription = { model: { arch: 'gpt', width: 2, depth: 1, heads: 1, context: 1024 } };

test('a rooted folder brings its tokenizer, and answers as an independent recomputation does', { skip }, async () => {
    const reply = await host.post('/api/v1/models/tiny/versions', { path: 'models/tiny', description: tinyDescription });
    assert.equal(reply.status, 201, reply.text);
    assert.deepEqual([reply.json.origin, reply.json.source.path, reply.json.source.tokenizer], ['root', 'models/tiny', 'gpt2_bpe']);
    assert.equal((await load('tiny')).signature.tokenizer, 'gpt2_bpe');
    const { tensors } = parse(readFileSync(path.join(models, 'tiny/model.safetensors')));
    const ids = [3, 0, 20, 7, 7, 1, 12], logits = gpt2(tensors, ids, 1).flat();
    const { json } = await host.post('/v1/completions', { model: 'tiny', prompt: ids, max_tokens: 0, echo: true, logprobs: 1 });
    json.choices[0].logprobs.token_logprobs.forEach((x, t) => {
        const row = logits.slice((t - 1) * 21, t * 21);
        if (t)
            assert.ok(Math.abs(x - (row[ids[t]] - Math.log(row.reduce((s, a) => s + Math.exp(a), 0)))) < 1e-5, `${t}: ${x}`);
    });
    // public names have the prefix
    assert.deepEqual(shown(parse((await host.get('/api/v1/models/tiny/versions/1/weights')).bytes).tensors),
        shown(new Map([...tensors].map(([name, t]) => [`transformer.${name}`, t]))));
});

test('a sharded folder is one model; what its index says wrongly is refused', { skip }, async () => {
    const { weights, config } = golden('gpt2_softmax'), all = [...weights], half = all.length / 2, dir = path.join(models, 'shards');
    const files = { 'model-00001-of-00002.safetensors': new Map(all.slice(0, half)), 'model-00002-of-00002.safetensors': new Map(all.slice(half)) };
    const map = Object.fromEntries(Object.entries(files).flatMap(([file, tensors]) => [...tensors.keys()].map(name => [name, file])));
    mkdirSync(dir);
    for (const [file, tensors] of Object.entries(files))
        writeFileSync(path.join(dir, file), write(tensors));
    const index = (weight_map = map) => writeFileSync(path.join(dir, 'model.safetensors.index.json'), JSON.stringify({ metadata: {}, weight_map }));
    const register = () => host.post('/api/v1/models/shards/versions', { path: 'models/shards', description: describe(config) });
    index();
    const reply = await register();
    assert.equal(reply.status, 201, reply.text);
    assert.deepEqual(shown(parse((await host.get('/api/v1/models/shards/versions/1/weights')).bytes).tensors), shown(weights));
    const [first] = all[0];
    for (const [wrong, words] of [[{ ...map, [first]: 'model-00002-of-00002.safetensors' }, /as the index says/], [{ ...map, [first]: '../tiny/model.safetensors' }, /no file of this folder/],
        [{ ...map, [first]: 'other.safetensors' }, /other\.safetensors/], [Object.fromEntries(Object.entries(map).slice(1)), /the index/]]) {
        index(wrong);
        const bad = await register();
        assert.equal(bad.status, 422, JSON.stringify(wrong).slice(0, 100));
        assert.match(bad.json.detail, words);
    }
});

test('a missing, a surplus and a wrongly shaped tensor are all named', { skip }, async () => {
    const { weights, config } = golden('vit_softmax'), odd = new Map(weights), norm = odd.get('norm.weight');
    odd.delete('blocks.1.mlp.fc2.bias');
    odd.set('head_dist.weight', norm);
    odd.set('blocks.0.attn.proj.bias', { ...norm, shape: [2, norm.shape[0] / 2] });
    const reply = await upload('odd', write(odd), { description: describe(config) });
    assert.equal(reply.status, 422);
    assert.deepEqual(reply.json.errors.map(e => [e.pointer, e.detail]), [['#/tensors/blocks.1.mlp.fc2.bias', 'is missing'],
        ['#/tensors/head_dist.weight', 'is no parameter of this network'], ['#/tensors/blocks.0.attn.proj.bias', 'is (2, 24), the network needs (48)']]);
    for (const name of ['blocks.1.mlp.fc2.bias', 'head_dist.weight', 'blocks.0.attn.proj.bias'])
        assert.ok(reply.json.detail.includes(name), reply.json.detail);
    // of a parameter in three parts each must be there, of one type
    const xcit = goldenOfImages('xcit', 'tiny_p16_softmax'), parts = timmXcit(xcit.weights), half = parts.get('cls_attn_blocks.1.attn.k.weight');
    parts.delete('cls_attn_blocks.0.attn.v.bias');
    parts.set('cls_attn_blocks.1.attn.k.weight', { ...half, dtype: 'F16', bytes: Buffer.alloc(half.bytes.length / 2) });
    parts.set('cls_attn_blocks.0.attn.qkv.weight', xcit.weights.get('cls_attn_blocks.0.attn.qkv.weight'));
    const split = await upload('odd', write(parts), { description: xcit.description });
    assert.deepEqual(split.json.errors.map(e => [e.pointer, e.detail]).sort(), [['#/tensors/cls_attn_blocks.0.attn.qkv.bias', 'lacks part 3 of its 3'],
        ['#/tensors/cls_attn_blocks.0.attn.qkv.weight', 'is there under two names'], ['#/tensors/cls_attn_blocks.1.attn.qkv.weight', 'has a part of type F32 and one of type F16']]);
    // a part that does not fit is one fault, not also a part that lacks
    const misfit = timmXcit(xcit.weights), q = misfit.get('cls_attn_blocks.0.attn.q.weight');
    misfit.set('cls_attn_blocks.0.attn.q.weight', { ...q, shape: [q.shape[0] / 2, q.shape[1]], bytes: Buffer.alloc(q.bytes.length / 2) });
    assert.deepEqual((await upload('odd', write(misfit), { description: xcit.description })).json.errors.map(e => e.pointer), ['#/tensors/cls_attn_blocks.0.attn.q.weight']);
    // how many batches were tracked is not needed, and then 0
    const uncounted = new Map([...xcit.weights].filter(([name]) => !name.endsWith('.num_batches_tracked')));
    assert.ok(uncounted.size < xcit.weights.size);
    assert.equal((await upload('uncounted', write(uncounted), { description: xcit.description })).status, 201);
    const counted = parse((await host.get('/api/v1/models/uncounted/versions/1/weights')).bytes).tensors;
    for (const name of xcit.weights.keys())
        if (!uncounted.has(name))
            assert.deepEqual([counted.get(name).dtype, counted.get(name).shape, [...counted.get(name).bytes]], ['I64', [], [0, 0, 0, 0, 0, 0, 0, 0]]);
    // four channels, of which no description can give the mean
    const patches = weights.get('patch_embed.proj.weight'), [width, channels, ...side] = patches.shape;
    assert.equal(channels, 3);
    const wide = new Map(weights).set('patch_embed.proj.weight', { ...patches, shape: [width, 4, ...side], bytes: Buffer.alloc(patches.bytes.length / 3 * 4) });
    for (const description of [describe(config), { ...describe(config), mean: undefined, std: undefined }]) {
        const four = await upload('odd', write(wide), { description });
        assert.equal(four.status, 422, four.text);
        assert.match(four.json.detail, description.mean ? /has 3 numbers, the images have 4 channels/ : /images of 4 channels; .* for at most 3/);
    }
    // an untied head would be another network
    const gpt = golden('gpt2_softmax'), head = gpt.weights.get('transformer.wte.weight'), other = Buffer.from(head.bytes);
    other[5] ^= 1;
    assert.match((await upload('odd', write(new Map([...gpt.weights, ['lm_head.weight', { ...head, bytes: other }]])), { description: describe(gpt.config) })).json.detail, /lm_head\.weight.*tied/);
    assert.ok(!(await names()).includes('odd'));
});

test('what is not whole or lies about itself is refused, and nothing of it stays', { skip }, async () => {
    const { weights, config } = golden('vit_softmax'), bytes = write(weights), kept = folder('models').sort();
    const lying = change => { const copy = Buffer.from(bytes); change(copy); return copy; };
    const length = Number(bytes.readBigUInt64LE(0)), header = JSON.parse(bytes.subarray(8, 8 + length));
    const rewritten = change => { const h = structuredClone(header); change(h); const t = Buffer.from(JSON.stringify(h).padEnd(length)); return Buffer.concat([bytes.subarray(0, 8), t, bytes.subarray(8 + length)]); };
    for (const [body, words] of [
        [bytes.subarray(0, bytes.length - 4), /outside the file/], [bytes.subarray(0, 7), /^the upload is not a safetensors file$/], [Buffer.concat([bytes, Buffer.alloc(4)]), /after the last tensor/],
        [lying(b => b.writeBigUInt64LE(2n ** 40n, 0)), /exceeds the limit/], [lying(b => b.writeBigUInt64LE(BigInt(bytes.length), 0)), /exceeds the file/],
        [rewritten(h => { h['head.bias'].data_offsets = h['norm.bias'].data_offsets.slice(); h['head.bias'].shape = h['norm.bias'].shape; }), /overlaps|gap/],
        [rewritten(h => { h['head.bias'].shape = [9]; }), /bytes; its shape requires/], [rewritten(h => { h['head.bias'].dtype = 'F4'; }), /unsupported type/],
    ]) {
        const reply = await upload('broken', body, { description: describe(config) });
        assert.equal(reply.status, 422, reply.text);
        assert.match(reply.json.detail, words);
    }
    const wrong = '0'.repeat(64);
    assert.match((await upload('broken', bytes, { description: describe(config), query: { sha256: wrong } })).json.detail, /differs from the request/);
    assert.match((await upload('broken', bytes, { description: describe(config), headers: { 'content-digest': `sha-256=:${Buffer.alloc(32).toString('base64')}:` } })).json.detail, /differs from/);
    assert.equal((await upload('broken', bytes, { description: describe(config), headers: { 'content-digest': `sha-256=:${sha256(bytes).toString('base64')}:` } })).status, 201);
    await settled();
    assert.equal(folder('models').length, kept.length + 1);
    assert.match((await upload('plain', bytes)).json.detail, /set preset or description/);
    assert.match((await upload('plain', bytes, { query: { preset: 'vit_huge' } })).json.detail, /preset/);
    // Nothing in a file says which equation its network solves.
    const needs = /data\/dataset: is needed: the equation that the pinnsformer solves\. Set data\.dataset of description, next to preset or model, to one of pde_convection, pde_reaction, pde_wave$/;
    for (const more of [{ query: { preset: 'pinn_micro' } }, { query: { preset: 'pinnsformer' } }, { description: { preset: 'pinn_micro', data: { context: 5 } } }])
        assert.match((await upload('plain', bytes, more)).json.detail, needs);
    const equation = await upload('plain', bytes, { description: { preset: 'pinn_micro', data: { dataset: 'pde_wave' } } });
    assert.match(equation.json.detail, /'linear_emb\.weight' is missing/); // of this file
    assert.equal((await upload('plain', bytes, { query: { colour: 'red' } })).status, 400);
    assert.equal((await upload('.plain', bytes, { description: describe(config) })).status, 422);
    for (const [member, body] of [['path', { path: 'models/../x' }], ['path', { path: 'nowhere/x' }], ['path', { path: 'models/nope' }], ['tokenizer', { path: 'models/tiny', tokenizer: 'models/nope' }]]) {
        const reply = await host.post('/api/v1/models/plain/versions', { description: describe(config), ...body });
        assert.deepEqual([reply.status, reply.json.errors?.[0].pointer], [422, `#/${member}`], reply.text);
        assert.ok(reply.json.detail.startsWith(`${member}: `), reply.text);
    }
    assert.match((await host.post('/api/v1/models/plain/versions', { path: 'models/tiny', run_id: '1' })).json.detail, /does not go with path/);
    assert.ok(!(await names()).includes('plain'));
});

test('a client that leaves in between leaves nothing', { skip }, async () => {
    const { weights, config } = golden('vit_softmax'), bytes = write(weights), kept = folder('models').length;
    const target = `/api/v1/models/left/versions?description=${encodeURIComponent(JSON.stringify(describe(config)))}`;
    for (const part of [0, 1, 1000, 100000, bytes.length - 1])
        await new Promise(resolve => {
            const socket = net.connect(host.port, '127.0.0.1', () => {
                socket.write(`POST ${target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\nContent-Length: ${bytes.length}\r\n\r\n`);
                socket.write(bytes.subarray(0, part), () => setTimeout(() => { socket.destroy(); resolve(); }, 30));
            });
        });
    await settled();
    assert.equal(folder('models').length, kept);
    assert.ok(!(await names()).includes('left'));
});

test('a version of weights is deleted with its file; a repeated request registers once', { skip }, async () => {
    const { weights, config } = golden('gpt2_softmax'), bytes = write(weights), kept = folder('models').length;
    const once = () => upload('gone', bytes, { description: describe(config), headers: { 'idempotency-key': 'once' } });
    assert.equal((await once()).status, 201);
    const again = await once();
    assert.deepEqual([again.status, again.json.version, again.headers['idempotency-replayed']], [201, '1', 'true']);
    for (let i = 0; i < 100 && folder('models').length > kept + 1; i++)
        await sleep(20);
    assert.equal(folder('models').length, kept + 1, 'the second file is gone');
    assert.equal((await host.call('DELETE', '/api/v1/models/gone/versions/1', { headers: { 'if-match': '*' } })).status, 204);
    for (let i = 0; i < 200 && folder('models').length > kept; i++)
        await sleep(20);
    assert.equal(folder('models').length, kept);
});

/** The mean of several files, tensor by tensor: summed in double in their order, rounded to F32. */
function mean(files) {
    return new Map([...files[0]].map(([name, t]) => {
        const all = files.map(f => floats(f.get(name)));
        return [name, { ...t, bytes: Buffer.from(Float32Array.from(all[0], (_, i) => all.reduce((sum, v) => sum + v[i], 0) / all.length).buffer) }];
    }));
}

test('several versions become their mean; what is of another network, twice there or damaged is refused', { skip }, async () => {
    const { weights, config } = golden('vit_softmax'), description = describe(config), average = (list, model = 'mean') => host.post(`/api/v1/models/${model}/versions`, { average: list });
    const files = [1, 0.3, -2.7].map((scale, k) => new Map([...weights].map(([name, t]) => [name, { ...t, bytes: Buffer.from(floats(t).map((x, i) => Math.fround(scale * x + k * Math.sin(i))).buffer) }])));
    for (const tensors of files)
        assert.equal((await upload('part', write(tensors), { description })).status, 201);
    const parts = [1, 2, 3].map(n => ({ model: `part:${n}` })), reply = await average(parts);
    assert.equal(reply.status, 201, reply.text);
    const digests = (await host.get('/api/v1/models')).json.models.find(m => m.name === 'part').versions.sort((a, b) => a.version - b.version).map(v => v.digest);
    assert.deepEqual([reply.json.origin, reply.json.run_id, reply.json.source.average], ['average', null, digests.map((sha256, i) => ({ model: `part:${i + 1}`, step: 0, sha256 }))]);
    const out = await host.get('/api/v1/models/mean/versions/1/weights');
    assert.deepEqual(shown(parse(out.bytes).tensors), shown(mean(files)));
    // it is served, and its weights go in again by what they say of themselves
    await load('mean');
    const pixels = Array.from({ length: 3 * 32 * 32 }, (_, i) => (i * 37 % 101) / 100), ask = model => host.post(`/v2/models/${model}/infer`, { inputs: [{ name: 'image', datatype: 'FP32', shape: [1, 3, 32, 32], data: pixels }] });
    assert.equal((await upload('mean_again', out.bytes)).status, 201);
    await load('mean_again');
    assert.deepEqual((await ask('mean')).json.outputs[0].data, (await ask('mean_again')).json.outputs[0].data);

    const kept = folder('models').length, refused = async (list, status, words) => {
        const bad = await average(list, 'none');
        assert.equal(bad.status, status, bad.text);
        assert.match(JSON.stringify(bad.json.errors ?? bad.json.detail), words);
    };
    // the same tensors, another activation
    assert.equal((await upload('cubic', write(weights), { description: { ...description, attention: { activation: 'poly', degree: 3, scale: 'fixed', n_for_scale: 65 } } })).status, 201);
    await refused([parts[0], { model: 'cubic' }], 422, /average\/1.*model\.phi is poly, softmax in the first file/);
    assert.equal((await upload('bright', write(weights), { description: { ...description, std: [0.2, 0.1, 0.1] } })).status, 201);
    await refused([parts[0], parts[1], { model: 'bright:1' }], 422, /average\/2.*data\.std/);
    await refused([parts[0], parts[1], { model: 'part:1' }], 422, /#\/average\/2.*is the file of #\/average\/0/);
    await refused([parts[0], { model: 'part:9' }, { run: '77' }, { run: '1', model: 'part' }, 5, { model: 'part', checkpoint: 1 }, { model: 'part:2', colour: 'red' }], 422,
        /average\/1\/model.*average\/2\/run.*average\/3".*average\/4".*average\/5\/model.*average\/6\/colour/);
    for (const list of [[], [parts[0]], 'part', null, Array(65).fill(parts[0])])
        await refused(list, 422, /list of 2 to 64 checkpoints/);
    const both = await host.post('/api/v1/models/none/versions', { average: parts, run_id: '1' });
    assert.match(both.json.detail, /run_id does not go with average/);
    // a byte of the second file has changed
    const file = folder('models').map(name => path.join(host.dir, 'state/models', name)).find(name => sha256(readFileSync(name)).toString('hex') === digests[1]), bytes = readFileSync(file);
    bytes[bytes.length - 1] ^= 1;
    writeFileSync(file, bytes);
    await refused(parts, 422, /average\/1.*does not match its digest/);
    assert.ok(!(await names()).includes('none'));
    assert.equal(folder('models').length, kept + 2, 'the two that were uploaded since');
});

test('an upload has a limit of its own', { skip }, async () => {
    const small = await Daemon.start(['--server.max_upload_bytes=65536', '--server.max_body_bytes=65536']);
    try {
        const big = Buffer.alloc(70000), at = '/api/v1/models/big/versions?preset=vit_micro', headers = { 'content-type': 'application/octet-stream' };
        assert.equal((await small.call('POST', at, { body: big, headers })).status, 413);
        const chunked = await small.call('POST', at, { body: big, headers: { ...headers, 'transfer-encoding': 'chunked' } });
        assert.equal(chunked.status, 413);
        assert.match(chunked.json.detail, /max_upload_bytes/);
        assert.equal((await small.call('POST', at, { body: Buffer.alloc(60000), headers })).status, 422);
    } finally {
        await small.stop();
    }
});
