// POST /tokenize and /detokenize on served models: the tokens that their completions use.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { putByteTokens } from './files.mjs';
import { Daemon, build, sleep } from './lib.mjs';

const here = existsSync(path.join(build, 'bin/polyd')) && existsSync(path.join(build, 'bin/polyd-worker'));
const real = { skip: here ? false : 'polyd or polyd-worker is not built', timeout: 300000 };
let host, ids;

async function served(register, document) {
    const reply = await host.post('/api/v1/jobs', { name: register, resources: { device: 'cpu', threads: 1 }, diagnostics: { every: 0 }, register, ...document });
    assert.equal(reply.status, 201, reply.text);
    const job = await host.over(reply.json.id);
    assert.equal(job.state, 'done', job.reason);
    while ((await host.get(`/api/v1/models/${register}/versions/1`)).status !== 200)
        await sleep(50);
    assert.equal((await host.post(`/api/v1/models/${register}/versions/1/load`)).json.state, 'READY');
}

before(async () => {
    if (!here)
        return;
    host = await Daemon.start();
    ids = putByteTokens(path.join(host.dir, 'text/gpt2-bpe'));
    const small = { preset: 'gpt_micro', width: 32, depth: 1, heads: 2 }, train = { steps: 2, batch: 2 };
    await served('bytes', { model: small, data: { dataset: 'text', path: 'text/corpus.txt', tokenizer: 'bytes' }, train });
    await served('pairs', { model: small, data: { dataset: 'text', path: 'text/corpus.txt', tokenizer: 'gpt2_bpe', tokenizer_path: 'text/gpt2-bpe' }, train });
    await served('chars', { model: small, data: { dataset: 'text', path: 'text/corpus.txt', tokenizer: 'chars' }, train });
    await served('digits', { model: { preset: 'vit_micro', depth: 1 }, data: { dataset: 'digits_gen', split: { rule: 'count', train: 64, val: 64 } }, train: { steps: 2, batch: 32 } });
    const alias = await host.call('PUT', '/api/v1/models/pairs/aliases/live', { json: { version: '1' }, headers: { 'if-match': '*' } });
    assert.ok(alias.status < 300, alias.text);
});
after(() => host?.stop());

const tokenize = async (model, prompt, more = {}) => {
    const reply = await host.post('/tokenize', { model, prompt, ...more });
    assert.equal(reply.status, 200, reply.text);
    return reply.json;
};
const detokenize = async (model, tokens) => {
    const reply = await host.post('/detokenize', { model, tokens });
    assert.equal(reply.status, 200, reply.text);
    return reply.json.prompt;
};
const refused = async (target, body, status, message, param) => {
    const reply = await host.post(target, body);
    assert.equal(reply.status, status, reply.text);
    assert.match(reply.json.error.message, message);
    assert.equal(reply.json.error.param, param);
};

test('tokens are those of a completion, by count and by what it says', real, async () => {
    for (const model of ['bytes', 'pairs']) {
        const prompt = 'the quick brown fox 😀 <|endoftext|> über';
        const { tokens, count, max_model_len } = await tokenize(model, prompt);
        assert.equal(count, tokens.length);
        assert.equal(max_model_len, 128);
        const ask = async what => {
            const reply = await host.post('/v1/completions', { model, prompt: what, max_tokens: 8, seed: 5 });
            assert.equal(reply.status, 200, reply.text);
            return reply.json;
        };
        const [text, given] = [await ask(prompt), await ask(tokens)];
        assert.equal(text.usage.prompt_tokens, count);
        assert.equal(given.usage.prompt_tokens, count);
        assert.equal(given.choices[0].text, text.choices[0].text);
    }
    const pairs = await tokenize('pairs', 'the quick');
    assert.equal(pairs.count, 1 + 1 + 3, 'merges are used: the, " qu", i, c, k');
    assert.deepEqual((await tokenize('pairs', '<|endoftext|>')).tokens, [ids - 1], 'as in a prompt, where it is one token');
});

test('a text comes back from its tokens', real, async () => {
    const texts = ['a', 'the quick the', ' \n\t\r\n', 'Grüße, ☃ 😀👩‍👩‍👧 漢字', 'e\u0301 \ufeff\u202e', '"\\/\u0001', '<|endoftext|>', 'x'.repeat(70000)];
    for (const model of ['bytes', 'pairs'])
        for (const text of texts)
            assert.equal(await detokenize(model, (await tokenize(model, text)).tokens), text);
    assert.equal(await detokenize('chars', (await tokenize('chars', 'the lazy dog.')).tokens), 'the lazy dog.');
    for (const model of ['bytes', 'pairs', 'chars']) {
        assert.deepEqual([await tokenize(model, '').then(t => t.tokens), await detokenize(model, [])], [[], '']);
    }
    // A character cut in two has no text of its own.
    const smile = (await tokenize('bytes', '😀')).tokens;
    assert.deepEqual(smile, [...Buffer.from('😀')]);
    assert.match(await detokenize('bytes', smile.slice(0, 2)), /^\ufffd+$/);
});

test('names, aliases, the text of each token and llama.cpp\'s name of the prompt', real, async () => {
    const { tokens } = await tokenize('pairs', 'the é');
    for (const model of ['pairs:1', 'pairs:live'])
        assert.deepEqual((await tokenize(model, 'the é')).tokens, tokens);
    const llama = await host.post('/tokenize', { model: 'pairs', content: 'the é' });
    assert.deepEqual(llama.json.tokens, tokens);
    for (const add_special_tokens of [true, false, null])
        assert.deepEqual((await tokenize('pairs', 'the é', { add_special_tokens })).tokens, tokens);
    assert.equal(llama.json.token_strs, null);
    assert.deepEqual((await tokenize('pairs', 'the é', { return_token_strs: true })).token_strs, ['the', ' ', 'bytes:\\xc3', 'bytes:\\xa9']);
});

test('what cannot be answered is refused with the place named', real, async () => {
    await refused('/detokenize', { model: 'pairs', tokens: [0, 1, ids] }, 400, new RegExp(`tokens\\[2\\] is ${ids}; ids are 0\\.\\.${ids - 1}`), 'tokens');
    await refused('/detokenize', { model: 'bytes', tokens: [256] }, 400, /tokens\[0\] is 256/, 'tokens');
    await refused('/detokenize', { model: 'pairs', tokens: [1, -1] }, 400, /tokens\[1\]/, 'tokens');
    await refused('/detokenize', { model: 'pairs', tokens: [1, 2.5] }, 400, /tokens\[1\]/, 'tokens');
    await refused('/detokenize', { model: 'pairs', tokens: ['1'] }, 400, /tokens\[0\]/, 'tokens');
    await refused('/detokenize', { model: 'pairs', tokens: [2 ** 31] }, 400, /tokens\[0\]/, 'tokens');
    await refused('/detokenize', { model: 'pairs', tokens: 'the' }, 400, /tokens must be an array/, 'tokens');
    await refused('/detokenize', { model: 'pairs' }, 400, /tokens must be an array/, 'tokens');
    await refused('/detokenize', { model: 'pairs', tokens: [1], prompt: 'a' }, 400, /unknown member 'prompt'/, 'prompt');
    await refused('/detokenize', { model: 'bytes', tokens: Array(2 ** 20 + 1).fill(1) }, 400, /at most 1048576/, 'tokens');
    for (const [target, body] of [['/tokenize', { prompt: 'a' }], ['/detokenize', { tokens: [1] }]]) {
        await refused(target, { ...body, model: 'digits' }, 400, /classifier: it has no tokens/, null);
        await refused(target, { ...body, model: 'none' }, 404, /none/, null);
        await refused(target, { ...body, model: 'pairs:7' }, 404, /has no loaded version 7/, null);
        await refused(target, body, 400, /model must be the name/, 'model');
        await refused(target, { ...body, model: 5 }, 400, /model must be the name/, 'model');
    }
    await refused('/tokenize', { model: 'pairs' }, 400, /prompt must be a text/, 'prompt');
    await refused('/tokenize', { model: 'pairs', prompt: [1] }, 400, /prompt must be a text/, 'prompt');
    await refused('/tokenize', { model: 'pairs', content: 1 }, 400, /content must be a text/, 'content');
    await refused('/tokenize', { model: 'pairs', content: 'a', prompt: 'a' }, 400, /another name of prompt/, 'content');
    await refused('/tokenize', { model: 'pairs', prompt: 'a', return_token_strs: 1 }, 400, /return_token_strs must be true or false/, 'return_token_strs');
    await refused('/tokenize', { model: 'pairs', messages: [] }, 400, /chat template/, 'messages');
    await refused('/tokenize', { model: 'pairs', prompt: 'a', lowercase: true }, 400, /unknown member 'lowercase'/, 'lowercase');
    await refused('/tokenize', { model: 'chars', prompt: 'the 漢' }, 400, /prompt: /, 'prompt');
    const broken = await host.call('POST', '/tokenize', { body: Buffer.concat([Buffer.from('{"model":"bytes","prompt":"'), Buffer.from([0xc3, 0x28]), Buffer.from('"}')]) });
    assert.equal(broken.status, 400);
    assert.match(broken.json.error.message, /not JSON/);
});
