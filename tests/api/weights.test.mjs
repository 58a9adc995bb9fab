// Downloads of weights on the real daemon: names, bytes, digests and ranges, against the files in the state folder.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { parse, shown } from '../lib/safetensors.mjs';
import { build, Daemon } from './lib.mjs';

const skip = existsSync(path.join(build, 'bin/polyd')) && existsSync(path.join(build, 'bin/polyd-worker')) ? false : 'polyd or polyd-worker is not built';
let host, run, averaged;

const job = (more = {}) => ({
    name: 'digits', model: { preset: 'vit_micro', width: 8, depth: 1, heads: 2, patch: 14 }, register: 'digits',
    data: { dataset: 'digits_gen', split: { rule: 'count', train: 64, val: 16 } }, diagnostics: { every: 0 }, resources: { device: 'cpu', threads: 1 },
    train: { steps: 4, batch: 16, eval_every: 1, checkpoint_every: { steps: 1 }, keep: { latest: 10, best: 1 }, ...more },
});
const sha256 = bytes => createHash('sha256').update(bytes).digest();
const rowOf = async (id, step) => (await host.get(`/api/v1/runs/${id}/checkpoints`)).json.checkpoints.find(c => c.step === step);
const onDisk = (id, step) => path.join(host.dir, 'state/runs', id, 'checkpoints', `step-${String(step).padStart(12, '0')}.safetensors`);
/** The tensors of a checkpoint's file that are weights. */
const weightsOf = (bytes, prefix = '') => new Map([...parse(bytes).tensors].filter(([name]) =>
    prefix ? name.startsWith(prefix) : !/^(optim|ema|polyd)\./.test(name)).map(([name, t]) => [name.slice(prefix.length), t]));

before(async () => {
    if (skip)
        return;
    host = await Daemon.start();
    const made = [];
    for (const more of [{}, { ema: 0.5, ema_serve: true }]) {
        const reply = await host.post('/api/v1/jobs', job(more));
        assert.equal(reply.status, 201, reply.text);
        assert.equal((await host.over(reply.json.id)).state, 'done');
        made.push(reply.json.run_ids[0]);
    }
    [run, averaged] = made;
});
after(() => host?.stop());

test('a checkpoint goes out under public names with the bytes of its weights', { skip }, async () => {
    const reply = await host.get(`/api/v1/runs/${run}/checkpoints/4/weights`);
    assert.equal(reply.status, 200, reply.text.slice(0, 300));
    const { meta, tensors } = parse(reply.bytes), file = readFileSync(onDisk(run, 4));
    assert.deepEqual(shown(tensors), shown(weightsOf(file)));
    // timm's names: the ViT has a class token or a mean, and no state of an optimiser
    for (const name of ['patch_embed.proj.weight', 'blocks.0.attn.qkv.weight', 'blocks.0.mlp.fc2.bias', 'head.weight'])
        assert.ok(tensors.has(name), name);
    assert.ok(![...tensors.keys()].some(name => /^(optim|ema|polyd)/.test(name)));
    assert.equal(meta.format, 'pt');
    assert.equal(meta['polyd.model.arch'], 'vit');
    const document = JSON.parse(meta['polyd.document']);
    assert.equal(document.model.width, 8);
    assert.equal(document.data.dataset, 'digits_gen');
    assert.ok(!('path' in document.data) && !('split' in document.data), 'no path of this machine');
    assert.equal(reply.headers.etag, `"${sha256(reply.bytes).toString('hex')}"`);
    assert.equal(reply.headers['repr-digest'], `sha-256=:${sha256(reply.bytes).toString('base64')}:`);
    assert.equal(Number(reply.headers['content-length']), reply.bytes.length);
    assert.equal(reply.headers['content-disposition'], `attachment; filename="run-${run}-step-4.safetensors"`);
    // the layout is kept: the second answer is the same
    const again = await host.get(`/api/v1/runs/${run}/checkpoints/4/weights`);
    assert.ok(again.bytes.equals(reply.bytes));
});

test('a version serves its averages, and these go out', { skip }, async () => {
    const reply = await host.get('/api/v1/models/digits/versions/2/weights');
    assert.equal(reply.status, 200, reply.text.slice(0, 300));
    const { run_id: id, step } = (await host.get('/api/v1/models/digits/versions/2')).json;
    assert.equal(id, averaged);
    const file = readFileSync(onDisk(averaged, step)), got = shown(parse(reply.bytes).tensors);
    assert.deepEqual(got, shown(weightsOf(file, 'ema.')));
    assert.notDeepEqual(got, shown(weightsOf(file)));
});

test('best and last are checkpoints, and the file goes out as it is', { skip }, async () => {
    const { checkpoints } = (await host.get(`/api/v1/runs/${run}/checkpoints`)).json;
    const best = checkpoints.find(c => c.kind === 'best');
    for (const [name, row] of [['best', best], ['last', checkpoints.find(c => c.step === 4)]]) {
        const reply = await host.get(`/api/v1/runs/${run}/checkpoints/${name}/file`);
        assert.equal(reply.status, 200);
        assert.ok(reply.bytes.equals(readFileSync(onDisk(run, row.step))), name);
        assert.equal(reply.headers.etag, `"${row.digest}"`);
    }
    const version = (await host.get('/api/v1/models/digits/versions/1')).json;
    const reply = await host.get('/api/v1/models/digits/versions/1/file');
    assert.equal(reply.headers.etag, `"${version.digest}"`);
    assert.equal(reply.bytes.length, version.bytes);
});

test('ranges, conditions and HEAD', { skip }, async () => {
    for (const what of ['weights', 'file']) {
        const at = `/api/v1/runs/${run}/checkpoints/4/${what}`, { bytes, headers: { etag } } = await host.get(at), n = bytes.length;
        const ranged = (range, more = {}) => host.get(at, { headers: { range, ...more } });
        // within the header, across its end, within the data, to the end
        for (const [from, to] of [[0, 0], [3, 9], [100, n - 100], [n - 7, n - 1], [1, n + 1000]]) {
            const reply = await ranged(`bytes=${from}-${to}`), last = Math.min(to, n - 1);
            assert.equal(reply.status, 206, `${what} ${from}-${to}`);
            assert.equal(reply.headers['content-range'], `bytes ${from}-${last}/${n}`);
            assert.ok(reply.bytes.equals(bytes.subarray(from, last + 1)), `${what} ${from}-${to}`);
            assert.equal(reply.headers['repr-digest'], `sha-256=:${sha256(bytes).toString('base64')}:`);
        }
        assert.ok((await ranged('bytes=-5')).bytes.equals(bytes.subarray(n - 5)));
        assert.ok((await ranged(`bytes=${n - 5}-`)).bytes.equals(bytes.subarray(n - 5)));
        for (const range of [`bytes=${n}-`, 'bytes=-0']) {
            const reply = await ranged(range);
            assert.equal(reply.status, 416);
            assert.equal(reply.headers['content-range'], `bytes */${n}`);
            assert.equal(reply.json.error.code, 'range');
        }
        for (const range of ['bytes=5-2', 'lines=1-2', 'bytes=1-2,4-5', 'bytes=a-b'])
            assert.equal((await ranged(range)).status, 200, range);
        assert.equal((await ranged('bytes=0-3', { 'if-range': etag })).status, 206);
        const changed = await ranged('bytes=0-3', { 'if-range': '"another"' });
        assert.equal(changed.status, 200);
        assert.equal(changed.bytes.length, n);
        assert.equal((await host.get(at, { headers: { 'if-none-match': etag } })).status, 304);
        const head = await host.call('HEAD', at);
        assert.deepEqual([head.status, Number(head.headers['content-length']), head.headers.etag, head.bytes.length], [200, n, etag, 0]);
    }
});

test('what is not there is 404, and a damaged file is not sent', { skip }, async () => {
    for (const [at, words] of [[`/api/v1/runs/${run}/checkpoints/99/weights`, /no checkpoint at step 99/], ['/api/v1/runs/77/checkpoints/best/file', /77/],
        [`/api/v1/runs/${run}/checkpoints/first/file`, /best, last, or the step/], ['/api/v1/models/digits/versions/9/weights', /version/],
        ['/api/v1/models/nothing/versions/1/file', /nothing/]]) {
        const reply = await host.get(at);
        assert.equal(reply.status, 404, at);
        assert.match(reply.json.detail, words);
    }
    const row = await rowOf(run, 2), file = onDisk(run, 2), bytes = readFileSync(file);
    bytes[bytes.length - 3] ^= 1;
    writeFileSync(file, bytes);
    const damaged = await host.get(`/api/v1/runs/${run}/checkpoints/2/weights`);
    assert.equal(damaged.status, 500);
    assert.match(damaged.json.detail, /does not match its digest/);
    writeFileSync(file, bytes.subarray(0, row.bytes - 8));
    for (const what of ['weights', 'file']) {
        const reply = await host.get(`/api/v1/runs/${run}/checkpoints/2/${what}`);
        assert.equal(reply.status, 500, what);
    }
});

test('weights of a network without a vocabulary are none of a network of texts', { skip }, async () => {
    const { bytes } = await host.get(`/api/v1/runs/${run}/checkpoints/4/weights`);
    const reply = await host.call('POST', '/api/v1/models/text/versions?preset=gpt_micro', { body: bytes, headers: { 'content-type': 'application/octet-stream' } });
    assert.equal(reply.status, 422, reply.text);
    assert.match(reply.json.detail, /the size of the vocabulary is unknown: there is no tokenizer, and no tensor transformer\.wte\.weight/);
});
