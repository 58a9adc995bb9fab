// What a run draws, over HTTP, on the real daemon: keys, blobs of one by step, their bytes; heat maps that a job cannot have.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { build, Daemon } from './lib.mjs';

const skip = existsSync(path.join(build, 'bin/polyd')) && existsSync(path.join(build, 'bin/polyd-worker')) ? false : 'polyd or polyd-worker is not built';
let host, run;

const job = (more = {}, heatmaps = {}) => ({
    name: 'maps', model: { preset: 'vit_micro', width: 8, depth: 2, heads: 2, patch: 7, pool: 'cls' }, attention: { activation: 'poly', degree: 3 },
    data: { dataset: 'digits_gen', split: { rule: 'count', train: 64, val: 16 } }, resources: { device: 'cpu', threads: 1 },
    train: { steps: 5, batch: 16, eval_every: 5 }, diagnostics: { every: 0, probe_batch: 4, heatmaps: { every: 2, layers: [2], heads: [1], ...heatmaps } }, ...more,
});

before(async () => {
    if (skip)
        return;
    host = await Daemon.start();
    const { id, run_ids: runs } = (await host.post('/api/v1/jobs', job())).json;
    [run] = runs;
    assert.equal((await host.over(id)).state, 'done');
});
after(() => host?.stop());

const blobs = async (query = '') => (await host.get(`/api/v1/runs/${run}/blobs${query}`)).json;

test('the keys of a run are those of the chosen layer and head', { skip }, async () => {
    const { keys, ...rest } = await blobs();
    assert.deepEqual(rest, {});
    assert.deepEqual(keys, ['attn/displacement', 'attn/map', 'attn/softmax', 'logit/histogram'].map(key => ({
        key: `${key}/2/1`, kind: key === 'logit/histogram' ? 'histogram' : 'matrix', count: 4, first_step: 0, last_step: 5 })));
});

test('the blobs of a key come by step, after a step, at most so many', { skip }, async () => {
    const steps = async query => (await blobs(`?key=attn%2Fmap%2F2%2F1${query}`)).blobs.map(blob => blob.step);
    assert.deepEqual(await steps(''), [0, 2, 4, 5]);
    assert.deepEqual(await steps('&after=2'), [4, 5]);
    assert.deepEqual(await steps('&after=0&limit=1'), [2]);
    assert.deepEqual(await steps('&after=5'), []);
    assert.deepEqual((await blobs('?key=attn%2Fmap%2F1%2F1')).blobs, []);
});

test('meta says what the bytes are, and the digest is theirs', { skip }, async () => {
    const [first] = (await blobs('?key=attn%2Fmap%2F2%2F1')).blobs;
    assert.deepEqual(first.meta, { shape: [17, 17], dtype: 'f32', samples: 4, causal: false, grid: [4, 4], lead: 1 });
    const reply = await host.call('GET', `/api/v1/runs/${run}/blobs/${first.id}`);
    assert.equal(reply.status, 200);
    assert.equal(reply.bytes.length, first.bytes);
    assert.equal(first.bytes, 17 * 17 * 4);
    assert.equal(createHash('sha256').update(reply.bytes).digest('hex'), first.digest);
    assert.equal(reply.headers.etag, `"${first.digest}"`);
    const again = await host.call('GET', `/api/v1/runs/${run}/blobs/${first.id}`, { headers: { 'If-None-Match': `"${first.digest}"` } });
    assert.equal(again.status, 304);
    const [histogram] = (await blobs('?key=logit%2Fhistogram%2F2%2F1')).blobs;
    assert.equal(histogram.meta.lo, -histogram.meta.hi);
    const counts = new Float64Array(new Uint8Array((await host.call('GET', `/api/v1/runs/${run}/blobs/${histogram.id}`)).bytes).buffer);
    assert.equal(counts.reduce((a, b) => a + b), 4 * 17 * 17);
});

test('what is not there is 404, and a wrong parameter 400', { skip }, async () => {
    const status = async where => (await host.call('GET', where)).status;
    assert.equal(await status('/api/v1/runs/999/blobs'), 404);
    assert.equal(await status(`/api/v1/runs/${run}/blobs/999`), 404);
    assert.equal(await status(`/api/v1/runs/${run}/blobs/x`), 404);
    const other = (await host.post('/api/v1/jobs', job({ diagnostics: { every: 0 } }))).json;
    const [first] = (await blobs('?key=attn%2Fmap%2F2%2F1')).blobs;
    assert.equal(await status(`/api/v1/runs/${other.run_ids[0]}/blobs/${first.id}`), 404, 'a blob of another run');
    for (const query of ['?after=-1', '?limit=0', '?limit=1001', '?step=3', '?after=x'])
        assert.equal(await status(`/api/v1/runs/${run}/blobs${query}`), 400, query);
});

test('heat maps that the network cannot have are refused by field', { skip }, async () => {
    const refused = async (document, pointer, text) => {
        const reply = await host.post('/api/v1/jobs', document);
        assert.equal(reply.status, 422);
        assert.equal(reply.json.errors[0].pointer, pointer);
        assert.match(reply.json.errors[0].detail, text);
    };
    const { data } = job();
    await refused(job({}, { layers: [3] }), '#/diagnostics/heatmaps/layers', /no layer 3; the network has 2/);
    await refused(job({}, { heads: [1, 3] }), '#/diagnostics/heatmaps/heads', /no head 3; a selected layer has 2/);
    await refused(job({}, { layers: [0] }), '#/diagnostics/heatmaps/layers', /1/);
    await refused(job({}, { every: 0 }), '#/diagnostics/heatmaps/every', /1/);
    await refused(job({ model: { ...job().model, patch: 2 }, train: { ...job().train, steps: 4000, batch: 4 } }, { every: 1, layers: [], heads: [] }), '#/diagnostics/heatmaps', /4001 times .* MiB of matrices; at most 1024 MiB/);
    await refused(job({ train: { ...job().train, steps: 200000 } }, { every: 1 }), '#/diagnostics/heatmaps', /1 heads 200001 times; at most 100000/);
    await refused({ ...job(), model: { preset: 'gpt_micro', context: 1025, heads: 1, depth: 1, width: 8 }, data: { dataset: 'text_gen', context: 1025 }, diagnostics: { every: 0, probe_batch: 1, heatmaps: {} } },
        '#/diagnostics/heatmaps', /1025 x 1025; at most 1024 tokens/);
    await refused({ ...job({ data: { ...data, split: { rule: 'count', train: 64, val: 64 } } }), model: { ...job().model, patch: 1 }, diagnostics: { every: 0, probe_batch: 64, heatmaps: { every: 5 } } },
        '#/diagnostics/probe_batch', /logits over the batch; heat maps count at most 16777216/);
});
