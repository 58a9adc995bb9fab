// The start of a run whose attention is a formula, measured by a dry run, against the run's own first step.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { Daemon, build, sleep } from './lib.mjs';

const here = existsSync(path.join(build, 'bin/polyd')) && existsSync(path.join(build, 'bin/polyd-worker'));
const real = { skip: here ? false : 'polyd or polyd-worker is not built', timeout: 600000 };
let host;

before(async () => {
    if (here)
        host = await Daemon.start();
});
after(() => host?.stop());

/** Pictures of 32 x 32: patches of 4 and a class token are 65 tokens, of 2 they are 257. */
const jobOf = (patch, attention) => ({
    name: 'start', model: { preset: 'vit_micro', patch, depth: 2, width: 32, heads: 2, pool: 'cls' },
    data: { dataset: 'digits_gen', image_size: 32, split: { rule: 'count', train: 64, val: 16 } }, train: { steps: 1, batch: 4, init: 'trunc_xavier' },
    attention: { activation: 'formula', ...attention }, diagnostics: { every: 1, probe_batch: 8 }, resources: { device: 'cpu', threads: 1 },
});
const dry = async document => {
    const reply = await host.post('/api/v1/jobs?dry_run=1&start=1', document);
    assert.equal(reply.status, 200, reply.text);
    assert.equal(reply.json.start_error, null);
    return reply.json;
};
/** attn/fro of each layer at step 0. */
async function measured(document) {
    const { json } = await host.post('/api/v1/jobs', document);
    const [run] = json.run_ids;
    for (;; await sleep(100)) {
        const { state, outcome, reason } = (await host.get(`/api/v1/runs/${run}`)).json;
        if (state === 'ended') {
            assert.equal(outcome, 'succeeded', reason);
            break;
        }
    }
    const { series } = (await host.get(`/api/v1/runs/${run}/series?key=attn/fro/1&key=attn/fro/2&buckets=100`)).json;
    return series.map(({ data: [first] }) => {
        assert.equal(first.first_step ?? first.step, 0);
        return first.mean;
    });
}
const near = (a, b, share, what) => assert.ok(Math.abs(a / b - 1) <= share, `${what}: ${a} and ${b}`);

test('the start is that of the seed asked for', real, async () => {
    const of = async (seed, split_seed) => {
        const document = jobOf(4, { formula: 's^3' });
        document.train.seed = seed;
        document.data.split_seed = split_seed;
        const { start } = await dry(document);
        return [start.seed, start.layers[0].norm];
    };
    const first = await of(1, 7), second = await of(2, 7), other = await of(2, 8);
    assert.deepEqual([first[0], second[0]], [1, 2]);
    assert.notEqual(first[1], second[1]);
    assert.notEqual(second[1], other[1]);
    assert.deepEqual(await of(2, 7), second);
});

test('a context of 8192 has its own ceiling and norm', real, async () => {
    const width = 16, keys = 8192, pairs = keys * (keys + 1) / 2;
    const forecast = async attention => {
        const reply = await host.post('/api/v1/jobs?dry_run=1', {
            name: 'long', model: { preset: 'gpt_micro', context: keys, width, heads: 1, depth: 1 }, data: { dataset: 'text_gen', context: keys },
            train: { steps: 1, batch: 1 }, attention: { activation: 'formula', ...attention }, diagnostics: { every: 0, probe_batch: 1 }, resources: { device: 'cpu', threads: 1 },
        });
        assert.equal(reply.status, 200, reply.text);
        return reply.json.formula;
    };
    const cube = await forecast({ formula: 's^3/sqrt(n)' }), norm = Math.sqrt(pairs * 15 * (1 + 2 / width) * (1 + 4 / width) / keys);
    near(cube.ceiling, Math.sqrt(keys), 1e-9, 'ceiling');
    near(cube.norm, norm, 1e-9, 'norm');
    near(cube.factor_to_ceiling, Math.sqrt(keys) / norm, 1e-9, 'factor');
    // Rows of so many keys are not drawn.
    const row = await forecast({ formula: 'softmax(s)' });
    near(row.ceiling, Math.sqrt(keys), 1e-9, 'ceiling');
    assert.deepEqual([row.norm, row.norm_growth, row.factor_to_ceiling, row.beyond.f32], [null, null, null, { over: null, under: null }]);
});

const formulas = [['s^3', {}], ['a*s^3/(1+abs(s))', { a: { init: '1/sqrt(n)', per: 'head' } }], ['exp(s)/(exp(b)+rowsum(exp(s)))', { b: { init: 1 } }],
    ['relu(s)^2/n', {}], ['relu(softmax(s) + a/ni)', { a: { init: -0.5 } }]];

/** Those of an entry alone, by n. */
const phi = { 's^3': () => s => s ** 3, 'a*s^3/(1+abs(s))': n => s => s ** 3 / (1 + Math.abs(s)) / Math.sqrt(n), 'relu(s)^2/n': n => s => Math.max(0, s) ** 2 / n };
/** Root of the sum of phi^2 over all pairs, the logits of a bin spread evenly. */
function overLogits(f, { low, high, counts }, tokens) {
    const width = (high - low) / counts.length, fine = 200;
    let sum = 0, all = 0;
    counts.forEach((count, k) => {
        all += count;
        for (let i = 0; i < fine; i++)
            sum += count / fine * f(low + width * (k + (i + .5) / fine)) ** 2;
    });
    return tokens * Math.sqrt(sum / all);
}

for (const [tokens, patch] of [[65, 4], [257, 2]])
    test(`the norm of A that is forecast for ${tokens} tokens is the one that a run measures at step 0`, real, async () => {
        for (const [formula, params] of formulas) {
            const document = jobOf(patch, { formula, params, recognise: false });
            const { formula: said, start } = await dry(document);
            const real = await measured(document);
            assert.equal(said.norm_from, 'start');
            near(said.ceiling, Math.sqrt(tokens), 1e-9, 'ceiling');
            near(said.norm, (real[0] + real[1]) / 2, 0.05, `${formula} of ${tokens} tokens`);
            start.layers.forEach((layer, i) => near(layer.norm, real[i], 0.05, `${formula}, layer ${i + 1}`));
            assert.equal(start.layers[0].broken, 0);
            assert.ok(start.step_s > 0);
            // While one types: by quadrature over the logits of the first layer's first head.
            const { logits } = start.layers[0], reply = await host.post('/api/v1/formulas/check', { formula, params, n: tokens - 1, keys: tokens, heads: 2, layers: 2, width: 16, logits });
            assert.equal(reply.json.norm_from, 'logits');
            if (phi[formula])
                near(reply.json.norm, overLogits(phi[formula](tokens - 1), logits, tokens), 0.01, `${formula} of ${tokens} tokens, by quadrature`);
        }
    });

test('the init that a dry run suggests puts the norm of A at the root of N', real, async () => {
    for (const [patch, tokens] of [[4, 65], [2, 257]]) {
        const document = jobOf(patch, { formula: 'a*s^3/(1+abs(s))', params: { a: { init: 1 } } });
        const { name, init } = (await dry(document)).formula.scalar_to_ceiling;
        assert.equal(name, 'a');
        document.attention.params.a.init = init;
        const norms = await measured(document);
        near((norms[0] + norms[1]) / 2, Math.sqrt(tokens), 0.1, `${tokens} tokens`);
    }
});

test('the init that a dry run suggests for heads and layers of different values does too', real, async () => {
    for (const [init, per] of [['0.1*(h+1)^2', 'head'], ['0.1*(l+1)^3', 'layer']]) {
        const attention = { formula: 'a*s^3', params: { a: { init, per } } };
        const document = { ...jobOf(7, attention), model: { preset: 'vit_micro', patch: 7 }, data: { dataset: 'digits_gen' }, train: { epochs: 1 } };
        // Patches of 7 of 28 x 28 are 16 tokens. In the smaller network the second layer's logits depend much on the first layer's norm.
        for (const [one, tokens] of [[document, 16], [jobOf(4, attention), 65]]) {
            const { name, init: text } = (await dry(one)).formula.scalar_to_ceiling;
            assert.equal(name, 'a');
            const taken = { ...one, attention: { ...one.attention, params: { a: { init: text, per } } } };
            near((await dry(taken)).formula.norm, Math.sqrt(tokens), 0.1, `${init}, ${tokens} tokens`);
        }
    }
});

test('a dry run tries the start only where it is asked to and the attention is a formula', real, async () => {
    const plain = await host.post('/api/v1/jobs?dry_run=1', jobOf(4, { formula: 's^3' }));
    assert.deepEqual([plain.json.start, plain.json.start_error], [null, null]);
    assert.equal(plain.json.formula.builtin.activation, 'poly');
    assert.equal(plain.json.formula.norm_from, 'deviation');
    const softmax = await host.post('/api/v1/jobs?dry_run=1&start=1', { ...jobOf(4, {}), attention: { activation: 'softmax' } });
    assert.deepEqual([softmax.json.formula, softmax.json.start, softmax.json.start_error], [null, null, null]);
    const refused = await host.post('/api/v1/formulas/check', { formula: 's', logits: { low: 1, high: 0, counts: [1] } }, { check: false });
    assert.equal(refused.status, 422);
    assert.equal(refused.json.errors[0].pointer, '#/logits');
});
