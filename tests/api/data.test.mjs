// Data sets through the real daemon and worker: pictures and byte pairs from their files to a served model.
import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { png, putByteTokens } from './files.mjs';
import { Daemon, build, sleep } from './lib.mjs';

const here = existsSync(path.join(build, 'bin/polyd')) && existsSync(path.join(build, 'bin/polyd-worker'));
const skip = here ? false : 'polyd or polyd-worker is not built';
let host;
before(async () => { if (here) host = await Daemon.start(); });
after(() => host?.stop());

/* ---- files ---- */

const colours = { blue: [20, 30, 200], green: [30, 200, 20], red: [200, 20, 30] };
const picture = (name, i) => png(20, (x, y) => colours[name].map(v => Math.min(255, v + (x * 7 + y * 3 + i * 11) % 40)));

function putPictures() {
    for (const [part, count] of [['train', 16], ['val', 4]])
        for (const name of Object.keys(colours)) {
            const folder = path.join(host.dir, 'text/pictures', part, name);
            mkdirSync(folder, { recursive: true });
            for (let i = 0; i < count; i++)
                writeFileSync(path.join(folder, `${i}.png`), picture(name, i));
        }
    writeFileSync(path.join(host.dir, 'text/pictures/train/red/torn.png'), picture('red', 99).subarray(0, 200));
}

/* ---- runs ---- */

async function trained(document) {
    const reply = await host.post('/api/v1/jobs', document);
    assert.equal(reply.status, 201, reply.text);
    for (let i = 0; i < 1200; i++) {
        const job = (await host.get(reply.headers.location)).json;
        if (/done|failed|cancelled/.test(job.state)) {
            const run = (await host.get(`/api/v1/runs?job=${job.id}`)).json.runs[0];
            assert.equal(job.state, 'done', `${run.reason}\n${(await host.get(`/api/v1/runs/${run.id}/logs?tail=20`)).text}`);
            return run;
        }
        await sleep(100);
    }
    throw new Error('the job did not end');
}

async function loaded(name) {
    for (let i = 0; i < 100 && (await host.get(`/api/v1/models/${name}/versions/1`)).status !== 200; i++)
        await sleep(100);
    const reply = await host.post(`/api/v1/models/${name}/versions/1/load`);
    assert.equal(reply.json.state, 'READY', reply.text);
    return reply.json;
}

const small = { resources: { device: 'cpu', threads: 1 }, diagnostics: { every: 0 } };

test('folders of pictures from their files to the class of a new one', { skip, timeout: 300000 }, async () => {
    putPictures();
    writeFileSync(path.join(host.dir, 'text/pictures/train/red/new.webp'), 'RIFF');
    const document = {
        name: 'colours', model: { preset: 'vit_micro', width: 32, depth: 2, patch: 4 },
        data: { dataset: 'image_folder', path: 'text/pictures', image_size: 16, augment: { crop: 'rrc', flip: 0.5, eval_crop: 0.875, rrc: { scale: [0.5, 1] } } },
        train: { steps: 60, batch: 16, eval_every: 60, optimizer: { lr: 0.003 } }, register: 'colours', ...small,
    };
    const plan = await host.post('/api/v1/jobs?dry_run=1', document);
    assert.equal(plan.json.plan_error, null, plan.text);
    assert.equal(plan.json.plan.train_samples, 49);
    const run = await trained(document);
    const { series } = (await host.get(`/api/v1/runs/${run.id}/metrics`)).json;
    assert.ok(series.find(s => s.key === 'data_wait'));
    assert.equal(series.find(s => s.key === 'data_bad').value, 1);
    assert.match((await host.get(`/api/v1/runs/${run.id}/logs?tail=100`)).text, /picture skipped: train\/red\/torn\.png/);
    assert.match((await host.get(`/api/v1/runs/${run.id}/logs?tail=100`)).text, /1 files are neither JPEG nor PNG and are not read, for example train\/red\/new\.webp/);
    const version = await loaded('colours');
    assert.deepEqual(version.signature.inputs[0].shape, [-1, 3, 16, 16]);
    let right = 0;
    for (const [index, name] of Object.keys(colours).entries()) {
        const bytes = picture(name, 50);
        const reply = await host.post('/v2/models/colours/infer', { inputs: [{ name: version.signature.inputs[0].name, shape: [1], datatype: 'BYTES', data: [bytes.toString('base64')] }] });
        assert.equal(reply.status, 200, reply.text);
        right += Number(reply.json.outputs.find(o => o.name === 'class').data[0]) === index;
    }
    assert.equal(right, 3);
    // The second run finds the decoded pictures, and trains alike.
    const kept = () => readdirSync(path.join(host.dir, 'state/cache')).filter(n => n.endsWith('.cache')).length;
    assert.equal(kept(), 1);
    const again = await trained({ ...document, register: undefined });
    assert.equal(kept(), 1);
    const last = async r => (await host.get(`/api/v1/runs/${r.id}/metrics`)).json.series.find(s => s.key === 'loss/train').value;
    assert.equal(await last(again), await last(run));
});

test('a folder that has grown is planned again', { skip, timeout: 60000 }, async () => {
    const folder = path.join(host.dir, 'text/growing/train');
    const put = (from, to) => Object.keys(colours).forEach(name => {
        mkdirSync(path.join(folder, name), { recursive: true });
        for (let i = from; i < to; i++)
            writeFileSync(path.join(folder, name, `${i}.png`), picture(name, i));
    });
    const document = {
        name: 'growing', model: { preset: 'vit_micro', depth: 1 }, data: { dataset: 'image_folder', path: 'text/growing', image_size: 16, split: { val: 2 } },
        train: { epochs: 2, batch: 4, schedule: { warmup_steps: 20 } }, ...small,
    };
    const planned = async () => {
        const { json, text } = await host.post('/api/v1/jobs?dry_run=1', document);
        assert.ok('plan' in json, text);
        return json;
    };
    const submitted = async () => (await host.post('/api/v1/jobs', document)).status;
    put(0, 4); /* 12 pictures, 10 of them for training: 5 steps */
    assert.match((await planned()).plan_error, /warm-up of 20 steps is longer/);
    assert.equal(await submitted(), 422);
    put(4, 34);
    const grown = await planned();
    assert.equal(grown.plan_error, null);
    assert.equal(grown.plan.train_samples, 100);
    put(34, 44);
    assert.equal(await submitted(), 201);
    assert.equal((await planned()).plan.train_samples, 130);
});

test('small pictures that enlarged to the usual size give a warning', { skip, timeout: 60000 }, async () => {
    putPictures();
    const document = size => ({
        name: 'enlarged', model: { preset: 'vit_micro', depth: 1 }, data: { dataset: 'image_folder', path: 'text/pictures', ...size },
        train: { steps: 2, batch: 2 }, ...small,
    });
    const about = async size => (await host.post('/api/v1/jobs?dry_run=1', document(size))).json.warnings.filter(w => w.pointer === '#/data/image_size');
    assert.deepEqual((await about({})).map(w => w.detail), ['the pictures are 20 x 20 (median) and are enlarged to image_size 224 x 224, which costs 125 times their pixels; set a smaller data.image_size']);
    assert.deepEqual(await about({ image_size: 28 }), []); /* 1.4 times the side */
    assert.equal((await about({ image_size: 32 })).length, 1);
});

test('a wrong folder is refused with a sentence, and fails the run that was accepted all the same', { skip, timeout: 60000 }, async () => {
    const document = {
        name: 'nothing', model: { preset: 'vit_micro' }, data: { dataset: 'image_folder', path: 'text/nowhere', image_size: 28 },
        train: { steps: 2, batch: 2 }, ...small, resources: { ...small.resources, max_restarts: 0 },
    };
    const refused = await host.post('/api/v1/jobs', document);
    assert.equal(refused.status, 422);
    assert.deepEqual(refused.json.errors.map(e => e.pointer), ['#/data/path']);
    const reply = await host.post('/api/v1/jobs?accept_unplanned=1', document);
    assert.equal(reply.status, 201, reply.text);
    for (let i = 0; i < 300; i++) {
        const run = (await host.get(`/api/v1/runs?job=${reply.json.id}`)).json.runs[0];
        if (run?.outcome) {
            assert.equal(run.outcome, 'failed');
            assert.match(run.reason, /nowhere/);
            return;
        }
        await sleep(100);
    }
    throw new Error('the run did not end');
});

test('byte pairs from their files to a completion', { skip, timeout: 300000 }, async () => {
    const size = putByteTokens(path.join(host.dir, 'text/gpt2-bpe'));
    await trained({
        name: 'pairs', model: { preset: 'gpt_micro', width: 32, depth: 2, heads: 2, context: 32 }, data: { dataset: 'text', path: 'text/corpus.txt', tokenizer: 'gpt2_bpe' },
        train: { steps: 30, batch: 8, eval_every: 30, optimizer: { lr: 0.01 } }, register: 'pairs', ...small,
    });
    const version = await loaded('pairs');
    assert.equal(version.signature.tokenizer, 'gpt2_bpe');
    assert.equal(version.signature.vocabulary, size);
    const ask = { model: 'pairs', prompt: 'jumps over the quick', max_tokens: 8, temperature: 0 };
    const scored = await host.post('/v1/completions', { ...ask, max_tokens: 0, echo: true, logprobs: 2 });
    assert.equal(scored.status, 200, scored.text);
    const { tokens, top_logprobs: tops } = scored.json.choices[0].logprobs;
    assert.deepEqual(tokens, [...'jumps', ' ', ...'over', ' the', ' qu', ...'ick']);
    assert.equal(scored.json.usage.prompt_tokens, tokens.length);
    assert.ok(Object.keys(tops[10]).every(name => !name.startsWith('token:')), JSON.stringify(tops[10]));
    const whole = await host.post('/v1/completions', ask);
    assert.equal(whole.json.usage.completion_tokens, 8);
    assert.equal((await host.post('/v1/completions', { ...ask, prompt: '' })).status, 200);
});
