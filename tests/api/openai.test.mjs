// An unmodified OpenAI client against the server.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import OpenAI from 'openai';
import { Host, sleep, submit } from './lib.mjs';

let host, client;
before(async () => {
    host = await Host.start();
    await submit(host);
    await host.tell('start 1');
    await host.tell('checkpoint 1 5');
    await host.tell('end 1');
    for (const name of ['lm', 'lm-slow', 'lm-full', 'lm-loading', 'lm-dies-slow']) {
        await host.post(`/api/v1/models/${name}/versions`, { run_id: '1' });
        await host.post(`/api/v1/models/${name}/versions/1/load`);
    }
    client = new OpenAI({ baseURL: `http://127.0.0.1:${host.port}/v1`, apiKey: 'none', maxRetries: 0 });
});
after(() => host.stop());

const collect = async stream => {
    const chunks = [];
    for await (const chunk of stream)
        chunks.push(chunk);
    return chunks;
};

test('models are listed and retrieved', async () => {
    const ids = [];
    for await (const model of client.models.list())
        ids.push(model.id);
    assert.ok(ids.includes('lm') && ids.includes('lm-slow'));
    const one = await client.models.retrieve('lm');
    assert.equal(one.object, 'model');
    assert.equal(one.owned_by, 'polyd');
    await assert.rejects(client.models.retrieve('none'), OpenAI.NotFoundError);
});

test('a completion, its usage, several choices and prompts', async () => {
    const one = await client.completions.create({ model: 'lm', prompt: 'ab', max_tokens: 7, seed: 1, stop: ['x', 'y'], temperature: 0.5, top_p: 0.9, user: 'me' });
    assert.equal(one.object, 'text_completion');
    assert.equal(one.choices[0].text, 'Grüße');
    assert.equal(one.choices[0].finish_reason, 'length');
    assert.deepEqual(one.usage, { prompt_tokens: 2, completion_tokens: 7, total_tokens: 9 });
    const many = await client.completions.create({ model: 'lm', prompt: ['a', 'bc'], n: 2, max_tokens: 1 });
    assert.deepEqual(many.choices.map(c => [c.index, c.text]), [[0, 'G'], [1, 'G'], [2, 'G'], [3, 'G']]);
    assert.deepEqual(many.usage, { prompt_tokens: 3, completion_tokens: 4, total_tokens: 7 });
    const tokens = await client.completions.create({ model: 'lm', prompt: [72, 101], max_tokens: 1 });
    assert.equal(tokens.usage.prompt_tokens, 2);
});

test('logprobs have the shape that the client is typed for', async () => {
    const { choices: [{ logprobs }] } = await client.completions.create({ model: 'lm', prompt: 'a', max_tokens: 3, logprobs: 1 });
    assert.equal(logprobs.tokens.length, 3);
    assert.deepEqual(logprobs.token_logprobs, [null, -0.5, -0.5]);
    assert.equal(logprobs.top_logprobs.length, 3);
    assert.equal(logprobs.text_offset[0], 0);
});

test('a stream ends with its usage', async () => {
    const chunks = await collect(await client.completions.create({ model: 'lm', prompt: 'a', max_tokens: 20, stream: true, stream_options: { include_usage: true } }));
    const last = chunks.pop();
    assert.deepEqual(last.choices, []);
    assert.deepEqual(last.usage, { prompt_tokens: 1, completion_tokens: 20, total_tokens: 21 });
    assert.equal(chunks.map(c => c.choices[0].text).join('').slice(0, 9), 'Grüße, ☃ ');
    assert.equal(chunks.at(-1).choices[0].finish_reason, 'length');
    assert.ok(chunks.slice(0, -1).every(c => c.choices[0].finish_reason === null));
});

test('breaking a stream off stops the work', async () => {
    host.notes.length = 0;
    const stream = await client.completions.create({ model: 'lm-slow', prompt: 'a', max_tokens: 1000, stream: true });
    for await (const chunk of stream)
        if (chunk.choices[0].text)
            break;
    for (const end = Date.now() + 5000; host.notes.length === 0; await sleep(10))
        assert.ok(Date.now() < end, 'it was not cancelled');
});

test('errors come as the client\'s own classes', async () => {
    const refused = async (body, type, check) => {
        const error = await client.completions.create({ model: 'lm', prompt: 'a', ...body }).then(() => assert.fail('no error'), e => e);
        assert.ok(error instanceof type, `${error}`);
        check?.(error);
    };
    await refused({ temperature: 9 }, OpenAI.BadRequestError, e => assert.equal(e.param, 'temperature'));
    await refused({ suffix: 'x' }, OpenAI.BadRequestError, e => assert.equal(e.param, 'suffix'));
    await refused({ model: 'none' }, OpenAI.NotFoundError, e => assert.equal(e.type, 'invalid_request_error'));
    await refused({ model: 'lm-full' }, OpenAI.RateLimitError, e => assert.equal(e.headers.get('retry-after'), '1'));
    await refused({ model: 'lm-loading' }, OpenAI.InternalServerError, e => assert.equal(e.status, 503));
    await assert.rejects(client.chat.completions.create({ model: 'lm', messages: [{ role: 'user', content: 'a' }] }), e => e instanceof OpenAI.NotFoundError && /completions/.test(e.message));
    await assert.rejects(async () => collect(await client.completions.create({ model: 'lm-dies-slow', prompt: 'a', max_tokens: 50, stream: true })), /died/);
});

test('what keeps a completion from a model keeps a tokenizer\'s answer', async () => {
    for (const [path, body] of [['/tokenize', { prompt: 'a' }], ['/detokenize', { tokens: [97] }]]) {
        for (const [model, status, code] of [['none', 404, 'not_found'], ['lm-full', 429, 'overloaded'], ['lm-loading', 503, 'loading']]) {
            const reply = await host.post(path, { model, ...body });
            assert.deepEqual([reply.status, reply.json.error.code], [status, code], `${path} ${model}`);
        }
        const wrong = await host.get(path);
        assert.deepEqual([wrong.status, wrong.json.error.code], [405, 'method_not_allowed']);
    }
});

test('a full queue is tried again after the time that the server names', async () => {
    const patient = new OpenAI({ baseURL: client.baseURL, apiKey: 'none', maxRetries: 1 });
    const begun = Date.now();
    await assert.rejects(patient.completions.create({ model: 'lm-full', prompt: 'a' }), OpenAI.RateLimitError);
    assert.ok(Date.now() - begun >= 950, 'Retry-After was waited for');
});
