// Models, the Open Inference Protocol and completions.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Host, sleep, submit } from './lib.mjs';

let host;
const names = ['digits', 'digits-slow', 'digits-never', 'digits-full', 'digits-loading', 'digits-nan', 'pic', 'lm', 'lm-slow', 'lm-full', 'lm-dies', 'lm-dies-slow'];
before(async () => {
    host = await Host.start();
    await submit(host);
    await host.tell('start 1');
    await host.tell('checkpoint 1 5');
    const early = await host.post('/api/v1/models/early/versions', { run_id: '1' });
    assert.equal(early.status, 409, 'a run that goes on may write a better checkpoint');
    await host.tell('end 1');
    for (const name of [...names, 'digits-broken']) {
        const reply = await host.post(`/api/v1/models/${name}/versions`, { run_id: '1' });
        assert.equal(reply.status, 201, reply.text);
    }
    for (const name of names)
        assert.equal((await host.post(`/api/v1/models/${name}/versions/1/load`)).json.state, 'READY');
});
after(() => host.stop());

const until = async (condition, ms = 5000) => {
    for (const end = Date.now() + ms; !await condition(); await sleep(10))
        assert.ok(Date.now() < end, 'waited too long');
};

/* ---- registry ---- */

test('versions count up; a repeated registration makes one', async () => {
    const headers = { 'idempotency-key': 'reg' };
    const first = await host.post('/api/v1/models/fresh/versions', { checkpoint_id: '1' }, { headers });
    assert.equal(first.headers.location, '/api/v1/models/fresh/versions/1');
    assert.equal((await host.post('/api/v1/models/fresh/versions', { checkpoint_id: '1' }, { headers })).headers.location, first.headers.location);
    assert.equal((await host.post('/api/v1/models/fresh/versions', { run_id: '1' })).json.version, '2');
    const model = (await host.get('/api/v1/models/fresh')).json;
    assert.equal(model.latest, '2');
    assert.deepEqual(model.versions.map(v => v.version), ['2', '1']);
    assert.ok((await host.get('/api/v1/models')).json.models.some(m => m.name === 'fresh'));
});

test('wrong registrations are refused', async () => {
    for (const [name, body, status] of [
        ['x', {}, 422], ['x', { run_id: 1 }, 422], ['x', { run_id: '1', checkpoint_id: '1' }, 422], ['x', { run: '1' }, 422],
        ['x', { run_id: '99' }, 422], ['x', { checkpoint_id: '99' }, 422], ['..', { run_id: '1' }, 422], ['a%2Fb', { run_id: '1' }, 422], ['x'.repeat(129), { run_id: '1' }, 422]])
        assert.equal((await host.post(`/api/v1/models/${name}/versions`, body)).status, status, `${name} ${JSON.stringify(body)}`);
    assert.equal((await host.get('/api/v1/models/none')).status, 404);
    assert.equal((await host.get('/api/v1/models/fresh/versions/9')).status, 404);
});

test('aliases move only for those who saw the present state', async () => {
    const seen = (await host.get('/api/v1/models/fresh')).headers.etag;
    const put = (alias, version, headers) => host.call('PUT', `/api/v1/models/fresh/aliases/${alias}`, { json: { version }, headers });
    assert.equal((await put('prod', '1')).status, 428);
    assert.equal((await put('prod', '1', { 'if-match': '"999"' })).status, 412);
    const set = await put('prod', '1', { 'if-match': seen });
    assert.deepEqual(set.json.aliases, { prod: '1' });
    assert.equal((await host.get('/api/v1/models/fresh/versions/prod')).json.version, '1');
    assert.equal((await put('prod', '9', { 'if-match': '*' })).status, 422);
    assert.equal((await put('9lives', '1', { 'if-match': '*' })).status, 422);
    assert.equal((await host.call('PUT', '/api/v1/models/none/aliases/a', { json: { version: '1' }, headers: { 'if-match': '*' } })).status, 404);
    const remove = headers => host.call('DELETE', '/api/v1/models/fresh/aliases/prod', { headers });
    assert.equal((await remove({})).status, 428);
    assert.deepEqual((await remove({ 'if-match': '*' })).json.aliases, {});
    assert.equal((await remove({ 'if-match': '*' })).status, 404);
});

test('loading and unloading are answered when done', async () => {
    assert.equal((await host.post('/api/v1/models/digits-broken/versions/1/load')).status, 500);
    assert.equal((await host.post('/api/v1/models/none/versions/1/load')).status, 404);
    assert.equal((await host.post('/api/v1/models/fresh/versions/1/load', { x: 1 })).status, 422);
    assert.equal((await host.post('/api/v1/models/fresh/versions/1/load')).json.state, 'READY');
    assert.equal((await host.post('/api/v1/models/fresh/versions/1/unload')).json.state, 'UNAVAILABLE');
    assert.equal((await host.post('/api/v1/models/fresh/versions/1/unload')).status, 404);
    assert.equal((await host.post('/v2/repository/models/fresh/load')).status, 200);
    assert.equal((await host.post('/v2/repository/models/fresh/load', { parameters: { config: 1 } })).status, 400);
    assert.equal((await host.post('/v2/repository/models/fresh/unload', {})).bytes.length, 0);
    const index = (await host.post('/v2/repository/index')).json;
    assert.equal(index.find(m => m.name === 'digits').state, 'READY');
    assert.equal(index.find(m => m.name === 'fresh').state, 'UNAVAILABLE');
    assert.ok((await host.post('/v2/repository/index', { ready: true })).json.every(m => m.state === 'READY'));
    assert.equal((await host.post('/v2/repository/index', { ready: 1 })).status, 400);
});

/* ---- Open Inference Protocol ---- */

const x = (data, shape = [1, 4], more = {}) => ({ inputs: [{ name: 'x', shape, datatype: 'FP32', data, ...more }] });

test('server and model metadata', async () => {
    assert.deepEqual((await host.get('/v2')).json.extensions, ['binary_tensor_data', 'model_repository', 'generate']);
    assert.deepEqual((await host.get('/v2/health/live')).json, { live: true });
    assert.deepEqual((await host.get('/v2/health/ready')).json, { live: true, ready: true });
    const meta = (await host.get('/v2/models/digits')).json;
    assert.deepEqual(meta.inputs, [{ name: 'x', datatype: 'FP32', shape: [-1, 4] }]);
    assert.equal(meta.parameters.kind, 'classifier');
    assert.equal((await host.get('/v2/models/digits/versions/1')).json.name, 'digits');
    assert.deepEqual((await host.get('/v2/models/digits/ready')).json, { name: 'digits', ready: true });
    assert.equal((await host.get('/v2/models/digits/versions/1/ready')).status, 200);
    for (const target of ['/v2/models/none', '/v2/models/none/ready', '/v2/models/digits/versions/9', '/v2/models/digits/versions/prod/ready', '/v2/models/digits-broken/ready'])
        assert.equal((await host.get(target)).status, 404, target);
});

test('JSON in, JSON out, flat or nested', async () => {
    const flat = await host.post('/v2/models/digits/infer', { id: 'a', ...x([1, 2.5, -3, 0.1]) });
    assert.deepEqual(flat.json, {
        model_name: 'digits', model_version: '1', id: 'a',
        outputs: [{ name: 'y', shape: [1, 4], datatype: 'FP32', data: [1, 2.5, -3, 0.1] }, { name: 'class', shape: [1], datatype: 'INT64', data: [0] }],
    });
    const nested = await host.post('/v2/models/digits/versions/1/infer', x([[1, 2, 3, 4], [5, 6, 7, 8]], [2, 4]));
    assert.deepEqual(nested.json.outputs[0].data, [1, 2, 3, 4, 5, 6, 7, 8]);
    const one = await host.post('/v2/models/digits/infer', { ...x([1, 2, 3, 4]), outputs: [{ name: 'class' }] });
    assert.deepEqual(one.json.outputs.map(o => o.name), ['class']);
});

function binary(header, ...raw) {
    const json = Buffer.from(JSON.stringify(header));
    return { body: Buffer.concat([json, ...raw]), headers: { 'content-type': 'application/octet-stream', 'inference-header-content-length': json.length } };
}

const floats = (...values) => Buffer.from(Float32Array.from(values).buffer);
const bx = (bytes, shape = [1, 4]) => ({ name: 'x', shape, datatype: 'FP32', parameters: { binary_data_size: bytes } });

test('binary in, binary out, and both mixed', async () => {
    const all = await host.call('POST', '/v2/models/digits/infer', binary({ inputs: [bx(16)], parameters: { binary_data_output: true } }, floats(1, 2, 3, 4)));
    assert.equal(all.status, 200, all.text);
    const length = Number(all.headers['inference-header-content-length']);
    const header = JSON.parse(all.bytes.subarray(0, length));
    assert.deepEqual(header.outputs.map(o => o.parameters.binary_data_size), [16, 8]);
    assert.deepEqual(all.bytes.subarray(length, length + 16), floats(1, 2, 3, 4));
    assert.equal(all.bytes.length, length + 24);
    const json = await host.call('POST', '/v2/models/digits/infer', binary({ inputs: [bx(16)] }, floats(1, 2, 3, 4)));
    assert.deepEqual(json.json.outputs[0].data, [1, 2, 3, 4]);
    const mixed = await host.post('/v2/models/digits/infer', { ...x([1, 2, 3, 4]), outputs: [{ name: 'class' }, { name: 'y', parameters: { binary_data: true } }] });
    const cut = Number(mixed.headers['inference-header-content-length']);
    assert.deepEqual(JSON.parse(mixed.bytes.subarray(0, cut)).outputs[0].data, [0]);
    assert.deepEqual(mixed.bytes.subarray(cut), floats(1, 2, 3, 4));
});

test('wrong sizes and shapes are 400 before anything is computed', async () => {
    const cases = [
        binary({ inputs: [bx(16)] }, floats(1, 2, 3)), binary({ inputs: [bx(12)] }, floats(1, 2, 3)), binary({ inputs: [bx(16)] }, floats(1, 2, 3, 4, 5)),
        binary({ inputs: [bx(16, [4294967296, 4294967296])] }, floats(1, 2, 3, 4)),
        { body: 'xx', headers: { 'content-type': 'application/octet-stream' } },
        { body: '{}', headers: { 'inference-header-content-length': '3' } },
        { body: '{}', headers: { 'inference-header-content-length': '-1' } },
        { body: '{}', headers: { 'inference-header-content-length': 'x' } },
    ];
    for (const [i, options] of cases.entries())
        assert.equal((await host.call('POST', '/v2/models/digits/infer', options)).status, 400, `case ${i}`);
    for (const body of [x([1, 2, 3]), x(['1', 2, 3, 4]), x([1, 2, 3, 4], [-1, 4]), x([1, 2, 3, 4], [1, 4], { datatype: 'FP16' }), { inputs: [] }, { ...x([1, 2, 3, 4]), outputs: [{ name: 'none' }] }, { ...x([1, 2, 3, 4]), parameters: { unknown: 1 } }])
        assert.equal((await host.post('/v2/models/digits/infer', body)).status, 400, JSON.stringify(body));
    assert.equal((await host.post('/v2/models/none/infer', x([1, 2, 3, 4]))).status, 404);
    assert.equal((await host.post('/v2/models/digits/versions/9/infer', x([1, 2, 3, 4]))).status, 404);
});

test('a NaN is 500 in JSON and carried in binary', async () => {
    const reply = await host.post('/v2/models/digits-nan/infer', x([1, 2, 3, 4]));
    assert.equal(reply.status, 500);
    assert.match(reply.json.error, /NaN/);
    const raw = await host.call('POST', '/v2/models/digits-nan/infer', binary({ inputs: [bx(16)], parameters: { binary_data_output: true } }, floats(1, 2, 3, 4)));
    const length = Number(raw.headers['inference-header-content-length']);
    assert.ok(Number.isNaN(raw.bytes.readFloatLE(length)));
});

test('a body of nothing but a picture is an element of BYTES', async () => {
    for (const type of ['image/jpeg', 'image/png; charset=binary']) {
        const reply = await host.call('POST', '/v2/models/pic/infer', { body: Buffer.from([200, 100, 50, 7, 0]), headers: { 'content-type': type } });
        assert.equal(reply.status, 200, reply.text);
        assert.deepEqual(reply.json.outputs[0].data, [5, 200, 100, 50]);
    }
    const named = await host.call('POST', '/v2/models/pic/versions/1/infer', { body: 'abcd', headers: { 'content-type': 'image/png' } });
    assert.deepEqual(named.json.outputs[0].data, [4, 97, 98, 99]);
    const json = await host.post('/v2/models/pic/infer', { inputs: [{ name: 'image', shape: [1], datatype: 'BYTES', data: ['QUJD'] }] });
    assert.deepEqual(json.json.outputs[0].data, [4, 81, 85, 74], 'text stays text: the worker knows base64');
    assert.equal((await host.call('POST', '/v2/models/pic/infer', { body: '', headers: { 'content-type': 'image/png' } })).status, 400);
    assert.equal((await host.call('POST', '/v2/models/pic/infer', { body: 'x', headers: { 'content-type': 'image/webp' } })).status, 415);
    assert.equal((await host.call('POST', '/v2/models/digits/infer', { body: 'abcd', headers: { 'content-type': 'image/png' } })).status, 400);
});

test('full is 429, loading is 503, late is 504', async () => {
    const full = await host.post('/v2/models/digits-full/infer', x([1, 2, 3, 4]));
    assert.equal(full.status, 429);
    assert.ok(Number(full.headers['retry-after']) >= 1);
    assert.equal((await host.post('/v2/models/digits-loading/infer', x([1, 2, 3, 4]))).status, 503);
    assert.equal((await host.post('/v2/models/digits-slow/infer', { ...x([1, 2, 3, 4]), parameters: { timeout: 50000 } })).status, 504);
    assert.equal((await host.post('/v1/completions', { model: 'lm-full', prompt: 'a' })).status, 429);
    const metrics = (await host.get('/metrics')).text;
    for (const model of ['digits-full', 'lm-full'])
        assert.match(metrics, new RegExp(`^polyd_infer_rejected_total\\{model="${model}",version="1"\\} 1$`, 'm'));
    assert.match(metrics, /^polyd_infer_overloads_total 0$/m);
});

test('histograms of a model are whole: buckets grow, the last is the count', async () => {
    const lines = (await host.get('/metrics')).text.split('\n');
    for (const family of ['batch_size', 'queue_seconds', 'compute_seconds', 'time_to_first_token_seconds', 'inter_token_seconds']) {
        const name = `polyd_infer_${family}`;
        assert.ok(lines.includes(`# TYPE ${name} histogram`), name);
        const of = kind => lines.filter(l => l.startsWith(`${name}_${kind}{model="digits",version="1"`)).map(l => Number(l.split(' ').at(-1)));
        const buckets = of('bucket');
        assert.ok(buckets.length > 2 && buckets.every((n, i) => i === 0 || n >= buckets[i - 1]), name);
        assert.deepEqual([buckets.at(-1)], of('count'));
        assert.equal(of('sum').length, 1);
    }
    assert.match(lines.join('\n'), /^polyd_infer_compute_seconds_bucket\{model="digits",version="1",le="0.001"\} 0$/m);
    const requests = Number(/^polyd_infer_requests_total\{model="digits",version="1"\} (\d+)$/m.exec(lines.join('\n'))[1]);
    assert.ok(requests > 0);
    assert.ok(lines.includes(`polyd_infer_batch_size_count{model="digits",version="1"} ${requests}`));
});

test('work stops when its client leaves while it waits', async () => {
    for (const [model, target, json] of [['digits-never', '/v2/models/digits-never/infer', x([1, 2, 3, 4])], ['lm-slow', '/v1/completions', { model: 'lm-slow', prompt: 'a', max_tokens: 1000 }]]) {
        const asked = async () => Number(new RegExp(`^polyd_infer_requests_total\\{model="${model}",version="1"\\} (\\d+)$`, 'm').exec((await host.get('/metrics')).text)[1]);
        const before = await asked();
        host.notes.length = 0;
        const request = host.events(target, { method: 'POST', json });
        request.opened.catch(() => {}); // it leaves before an answer comes
        await until(async () => await asked() > before);
        request.close();
        await until(() => host.notes.some(note => note.includes(model)));
    }
});

/* ---- completions ---- */

const said = 'Grüße, ☃ 😀! ';
const bytesOf = n => { let s = Buffer.from(said); while (s.length < n) s = Buffer.concat([s, Buffer.from(said)]); return s.subarray(0, n); };

test('models that complete are listed', async () => {
    const { data } = (await host.get('/v1/models')).json;
    assert.deepEqual(data.map(m => m.id).sort(), ['lm', 'lm-dies', 'lm-dies-slow', 'lm-full', 'lm-slow']);
    assert.equal((await host.get('/v1/models/lm')).json.owned_by, 'polyd');
    for (const id of ['none', 'digits'])
        assert.equal((await host.get(`/v1/models/${id}`)).status, 404);
});

test('a completion with usage, warnings and several choices', async () => {
    const reply = await host.post('/v1/completions', { model: 'lm', prompt: 'héllo', max_tokens: Buffer.byteLength(said), n: 2, seed: 1, foo: 1 });
    assert.equal(reply.status, 200, reply.text);
    assert.deepEqual(reply.json.choices.map(c => [c.index, c.text, c.finish_reason, c.logprobs]), [[0, said, 'length', null], [1, said, 'length', null]]);
    assert.deepEqual(reply.json.usage, { prompt_tokens: 6, completion_tokens: 2 * Buffer.byteLength(said), total_tokens: 6 + 2 * Buffer.byteLength(said) });
    assert.match(reply.json.warnings[0], /foo/);
    assert.match(reply.json.id, /^cmpl-[0-9a-f]+$/);
    const many = await host.post('/v1/completions', { model: 'lm:1', prompt: ['a', 'bc'], max_tokens: 3 });
    assert.equal(many.json.choices.length, 2);
    assert.equal(many.json.model, 'lm:1');
    assert.equal((await host.post('/v1/completions', { model: 'lm', prompt: [1, 2, 3] })).json.usage.prompt_tokens, 3);
});

test('a prompt of neither texts nor token ids is named as what it is', async () => {
    for (const [prompt, words] of [[[1.5], /token ids are integers from 0/], [[1, 2.5], /token ids are integers from 0/], [[-1], /token ids are integers from 0/], [[[1.5]], /token ids are integers from 0/], [[true], /must be a text, texts/], [[null], /must be a text, texts/], [[{}], /must be a text, texts/], [['a', 1], /mixes/]]) {
        const reply = await host.post('/v1/completions', { model: 'lm', prompt });
        assert.deepEqual([reply.status, reply.json.error.param], [400, 'prompt'], reply.text);
        assert.match(reply.json.error.message, words, JSON.stringify(prompt));
    }
});

test('logprobs have one entry a token', async () => {
    const { choices: [choice] } = (await host.post('/v1/completions', { model: 'lm', prompt: 'a', max_tokens: 5, logprobs: 1, echo: true })).json;
    assert.deepEqual(choice.logprobs.tokens, ['G', 'r', 'bytes:\\xc3', 'bytes:\\xbc', 'bytes:\\xc3']);
    assert.deepEqual(choice.logprobs.token_logprobs, [null, -0.5, -0.5, -0.5, -0.5]);
    assert.deepEqual(choice.logprobs.top_logprobs[1], { r: -0.5 });
    assert.equal(choice.logprobs.top_logprobs[0], null);
    assert.deepEqual(choice.logprobs.text_offset, [0, 1, 2, 3, 3]);
    const none = (await host.post('/v1/completions', { model: 'lm', prompt: 'a', max_tokens: 2, logprobs: 0 })).json.choices[0].logprobs;
    assert.deepEqual(none.top_logprobs, [null, null]);
});

test('a stream never splits a character and ends in usage and [DONE]', async () => {
    const n = 3 * Buffer.byteLength(said);
    const stream = await host.events('/v1/completions', { method: 'POST', json: { model: 'lm', prompt: 'a', max_tokens: n, stream: true, stream_options: { include_usage: true } } }).opened;
    await stream.until(s => s.ended);
    assert.equal(stream.response.headers['content-type'], 'text/event-stream');
    assert.equal(stream.events.at(-1).data, '[DONE]');
    const chunks = stream.events.slice(0, -1).map(e => JSON.parse(e.data));
    const last = chunks.pop();
    assert.deepEqual(last.choices, []);
    assert.equal(last.usage.completion_tokens, n);
    assert.ok(chunks.every(c => c.object === 'text_completion' && c.usage === null && c.id === last.id));
    assert.equal(chunks.map(c => c.choices[0].text).join(''), said.repeat(3));
    assert.ok(chunks.every(c => !c.choices[0].text.includes('\ufffd')));
    assert.deepEqual(chunks.map(c => c.choices[0].finish_reason).filter(Boolean), ['length']);
});

test('what is cut in the middle of a character by the end is still valid', async () => {
    const reply = await host.post('/v1/completions', { model: 'lm', prompt: 'a', max_tokens: 3 });
    assert.equal(reply.json.choices[0].text, new TextDecoder().decode(bytesOf(3)));
    const stream = await host.events('/v1/completions', { method: 'POST', json: { model: 'lm', prompt: 'a', max_tokens: 3, stream: true } }).opened;
    await stream.until(s => s.ended);
    assert.equal(stream.events.slice(0, -1).map(e => JSON.parse(e.data).choices[0].text).join(''), 'Gr\ufffd');
});

test('refusals name the parameter', async () => {
    for (const [body, param, status] of [
        [{ model: 'lm' }, 'prompt', 400], [{ prompt: 'a' }, 'model', 400], [{ model: 'none', prompt: 'a' }, null, 404],
        [{ model: 'lm', prompt: 'a', best_of: 3 }, 'best_of', 400], [{ model: 'lm', prompt: 'a', suffix: 'x' }, 'suffix', 400], [{ model: 'lm', prompt: 'a', temperature: 9 }, 'temperature', 400]]) {
        const reply = await host.post('/v1/completions', body);
        assert.equal(reply.status, status, JSON.stringify(body));
        assert.equal(reply.json.error.param, param);
    }
    const chat = await host.post('/v1/chat/completions', { model: 'lm', messages: [] });
    assert.equal(chat.status, 404);
    assert.match(chat.json.error.message, /completions/);
});

test('a worker that dies is 503 before the first byte and an error event after it', async () => {
    assert.equal((await host.post('/v1/completions', { model: 'lm-dies', prompt: 'a' })).status, 503);
    const stream = await host.events('/v1/completions', { method: 'POST', json: { model: 'lm-dies-slow', prompt: 'a', stream: true } }).opened;
    await stream.until(s => s.ended);
    assert.match(JSON.parse(stream.events.at(-1).data).error.message, /died/);
    assert.ok(stream.events.every(e => e.data !== '[DONE]'));
});

test('a stream whose client leaves is cancelled long before its end', async () => {
    host.notes.length = 0;
    const stream = await host.events('/v1/completions', { method: 'POST', json: { model: 'lm-slow', prompt: 'a', max_tokens: 1000, stream: true } }).opened;
    await stream.until(s => s.events.length >= 3);
    const seen = stream.events.length;
    stream.close();
    await until(() => host.notes.length > 0);
    const after = Number(/after (\d+)/.exec(host.notes[0])[1]);
    assert.ok(after - seen < 200, `${seen} seen, cancelled after ${after}`);
});

test('generate, whole and in pieces', async () => {
    const whole = await host.post('/v2/models/lm/generate', { id: 'g', text_input: 'a', parameters: { max_tokens: 7, temperature: 0 } });
    assert.deepEqual(whole.json, { id: 'g', model_name: 'lm', model_version: '1', text_output: 'Grüße' });
    assert.equal((await host.post('/v2/models/lm/versions/1/generate', { text_input: 'a', max_tokens: 1 })).json.text_output, 'G');
    const stream = await host.events('/v2/models/lm/versions/1/generate_stream', { method: 'POST', json: { text_input: 'a', parameters: { max_tokens: 7 } } }).opened;
    await stream.until(s => s.ended);
    const pieces = stream.events.map(e => JSON.parse(e.data));
    assert.equal(pieces.map(p => p.text_output).join(''), 'Grüße');
    assert.deepEqual(pieces.map(p => p.done).filter(Boolean), [true]);
    assert.equal((await host.post('/v2/models/lm/generate', { text_input: 'a', parameters: { top_q: 3 } })).status, 400);
    assert.equal((await host.post('/v2/models/lm/generate', {})).status, 400);
    assert.equal((await host.post('/v2/models/none/generate_stream', { text_input: 'a' })).status, 404);
    assert.equal((await host.post('/v2/models/lm/versions/9/generate', { text_input: 'a' })).status, 404);
    assert.equal((await host.post('/v2/models/lm/versions/x/generate_stream', { text_input: 'a' })).status, 404);
});

test('stopping with inference in flight ends everything', async () => {
    const other = await Host.start();
    await submit(other);
    await other.tell('start 1');
    await other.tell('checkpoint 1 5');
    await other.tell('end 1');
    await other.post('/api/v1/models/lm-slow/versions', { run_id: '1' });
    await other.post('/api/v1/models/lm-slow/versions/1/load');
    const stream = await other.events('/v1/completions', { method: 'POST', json: { model: 'lm-slow', prompt: 'a', max_tokens: 1000, stream: true } }).opened;
    const whole = other.post('/v1/completions', { model: 'lm-slow', prompt: 'a', max_tokens: 1000 }).catch(error => ({ status: error.code }));
    await stream.until(s => s.events.length > 1);
    const begun = Date.now();
    await other.stop();
    assert.ok(Date.now() - begun < 4000);
    assert.ok([409, 503, 'ECONNRESET'].includes((await whole).status));
    await stream.until(s => s.ended);
});

test('what a worker says after the server gave its requests up reaches nobody, and nothing freed', async () => {
    const other = await Host.start();
    await submit(other);
    await other.tell('start 1');
    await other.tell('checkpoint 1 5');
    await other.tell('end 1');
    for (const model of ['x-deaf', 'lm-deaf']) {
        await other.post(`/api/v1/models/${model}/versions`, { run_id: '1' });
        await other.post(`/api/v1/models/${model}/versions/1/load`);
    }
    const waiting = [
        other.post('/v2/models/x-deaf/infer', { inputs: [{ name: 'x', shape: [1, 4], datatype: 'FP32', data: [1, 2, 3, 4] }] }),
        other.post('/v1/completions', { model: 'lm-deaf', prompt: 'a', max_tokens: 4 }),
        other.post('/v1/completions', { model: 'lm-deaf', prompt: 'a', max_tokens: 4, n: 3 }),
    ].map(reply => reply.catch(error => ({ status: error.code })));
    const stream = other.events('/v1/completions', { method: 'POST', json: { model: 'lm-deaf', prompt: 'a', stream: true } });
    waiting.push(stream.opened.catch(error => ({ status: error.code })));
    const end = Date.now() + 5000;
    while (!/polyd_infer_in_flight 6$/m.test((await other.get('/metrics')).text))
        assert.ok(Date.now() < end, 'six are in flight');
    await other.stop();
    for (const reply of await Promise.all(waiting))
        assert.ok([409, 503, 'ECONNRESET'].includes(reply.status), `status ${reply.status}`);
});
