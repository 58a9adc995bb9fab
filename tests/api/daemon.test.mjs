// The whole path through the real daemon and worker: submit, watch, metrics, checkpoint, model, inference, text.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { Daemon, build, sleep } from './lib.mjs';

const here = existsSync(path.join(build, 'bin/polyd')) && existsSync(path.join(build, 'bin/polyd-worker'));
let host;
before(async () => { if (here) host = await Daemon.start(); });
after(() => host?.stop());

async function trained(document) {
    const stream = await host.events('/api/v1/events').opened;
    const reply = await host.post('/api/v1/jobs', document);
    assert.equal(reply.status, 201, reply.text);
    const ended = s => s.events.some(e => e.event === 'job.state' && JSON.parse(e.data).job_id === reply.json.id && /done|failed/.test(e.data));
    await stream.until(ended, 240000);
    stream.close();
    const job = (await host.get(reply.headers.location)).json;
    const run = (await host.get(`/api/v1/runs?job=${job.id}`)).json.runs[0];
    const log = await host.get(`/api/v1/runs/${run.id}/logs?tail=20`);
    assert.equal(job.state, 'done', `${job.reason} ${run.reason}\n${log.text}`);
    assert.ok(stream.events.some(e => e.event === 'metrics'));
    return (await host.get(`/api/v1/runs/${run.id}`)).json;
}

async function ready(name) {
    let version;
    for (let i = 0; i < 100; i++) {
        version = await host.get(`/api/v1/models/${name}/versions/1`);
        if (version.status === 200)
            break;
        await sleep(100);
    }
    assert.equal(version.status, 200, version.text);
    const loaded = await host.post(`/api/v1/models/${name}/versions/1/load`);
    assert.equal(loaded.json.state, 'READY', loaded.text);
    return loaded.json;
}

test('a classifier from its job to a prediction', { skip: here ? false : 'polyd or polyd-worker is not built', timeout: 300000 }, async () => {
    const document = {
        name: 'digits', model: { preset: 'vit_micro' }, attention: { activation: 'poly', degree: 3 },
        data: { dataset: 'digits_gen', split: { rule: 'count', train: 256, val: 64 } }, train: { steps: 12, batch: 16, eval_every: 6 },
        diagnostics: { every: 6, probe_batch: 8 }, resources: { device: 'cpu', threads: 1 }, register: 'digits',
    };
    const plan = await host.post('/api/v1/jobs?dry_run=1', document);
    assert.equal(plan.status, 200, plan.text);
    assert.equal(plan.json.plan_error, null);
    const run = await trained(document);
    assert.equal(run.outcome, 'succeeded');
    assert.equal(run.step, 12);
    const { series } = (await host.get(`/api/v1/runs/${run.id}/metrics`)).json;
    assert.ok(series.find(s => s.key === 'loss/train').count >= 12);
    const chart = (await host.get(`/api/v1/runs/${run.id}/series?key=loss/train&buckets=5`)).json.series[0];
    assert.equal(chart.data.reduce((sum, b) => sum + b.count, 0), chart.points);
    const { checkpoints } = (await host.get(`/api/v1/runs/${run.id}/checkpoints`)).json;
    assert.ok(checkpoints.length > 0);
    const version = await ready('digits');
    const [, channels, height, width] = version.signature.inputs[0].shape;
    const pixels = new Float32Array(channels * height * width).fill(0.5);
    const name = version.signature.inputs[0].name;
    assert.deepEqual((await host.get('/v2/models/digits')).json.parameters.pixels.FP32, [0, 1]);
    const off = await host.post('/v2/models/digits/infer', { inputs: [{ name, shape: [1, channels, height, width], datatype: 'FP32', data: [...pixels].map(() => 255) }] });
    assert.equal(off.status, 400);
    assert.match(off.json.error, /a pixel of 255: an FP32 'image' has values in 0\.\.1/);
    const json = await host.post('/v2/models/digits/infer', { inputs: [{ name, shape: [1, channels, height, width], datatype: 'FP32', data: [...pixels] }] });
    assert.equal(json.status, 200, json.text);
    const header = Buffer.from(JSON.stringify({ inputs: [{ name, shape: [1, channels, height, width], datatype: 'FP32', parameters: { binary_data_size: pixels.byteLength } }], outputs: [{ name: 'probabilities' }] }));
    const binary = await host.call('POST', '/v2/models/digits/infer', {
        body: Buffer.concat([header, Buffer.from(pixels.buffer)]),
        headers: { 'content-type': 'application/octet-stream', 'inference-header-content-length': header.length },
    });
    const probabilities = binary.json.outputs[0].data;
    assert.deepEqual(probabilities, json.json.outputs.find(o => o.name === 'probabilities').data);
    assert.ok(Math.abs(probabilities.reduce((a, b) => a + b) - 1) < 1e-5);
    assert.equal((await host.post('/v2/models/digits/infer', { inputs: [{ name: 'nothing', shape: [1], datatype: 'FP32', data: [1] }] })).status, 400);
    assert.equal((await host.post('/v1/completions', { model: 'digits', prompt: 'a' })).status, 400);
    assert.equal((await host.post('/api/v1/models/digits/versions/1/unload')).json.state, 'UNAVAILABLE');
});

test('a language model from its job to streamed text', { skip: here ? false : 'polyd or polyd-worker is not built', timeout: 300000 }, async () => {
    const run = await trained({
        name: 'bytes', model: { preset: 'gpt_micro' }, data: { dataset: 'text', path: 'text/corpus.txt', tokenizer: 'bytes', split: { rule: 'fraction', train: 0.9, val: 0.1 } },
        train: { steps: 6, batch: 4, eval_every: 6 }, diagnostics: { every: 0 }, resources: { device: 'cpu', threads: 1 }, register: 'fox',
    });
    assert.equal(run.outcome, 'succeeded');
    await ready('fox');
    assert.deepEqual((await host.get('/v1/models')).json.data.map(m => m.id), ['fox']);
    const ask = { model: 'fox', prompt: 'the quick', max_tokens: 12, temperature: 0, seed: 1 };
    const whole = await host.post('/v1/completions', ask);
    assert.equal(whole.status, 200, whole.text);
    assert.equal(whole.json.usage.completion_tokens, 12);
    const stream = await host.events('/v1/completions', { method: 'POST', json: { ...ask, stream: true, stream_options: { include_usage: true } } }).opened;
    await stream.until(s => s.ended, 60000);
    const chunks = stream.events.slice(0, -1).map(e => JSON.parse(e.data));
    assert.equal(chunks.map(c => c.choices[0]?.text ?? '').join(''), whole.json.choices[0].text);
    const scored = await host.post('/v1/completions', { ...ask, max_tokens: 0, echo: true, logprobs: 2 });
    assert.equal(scored.status, 200, scored.text);
    assert.equal(scored.json.choices[0].text, 'the quick');
    assert.equal(scored.json.choices[0].logprobs.tokens.length, 9);
    assert.equal((await host.post('/v1/completions', { ...ask, prompt: 'x'.repeat(5000) })).status, 400);
});
