// POST /api/v1/formulas/check: a formula of attention before a job is made of it.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { Daemon, build } from './lib.mjs';

const here = existsSync(path.join(build, 'bin/polyd'));
const real = { skip: here ? false : 'polyd is not built', timeout: 120000 };
let host;

before(async () => {
    if (here)
        host = await Daemon.start();
});
after(() => host?.stop());

const check = async (formula, more = {}) => {
    const reply = await host.post('/api/v1/formulas/check', { formula, ...more });
    assert.equal(reply.status, 200, reply.text);
    return reply.json;
};
const refused = async (body, pointer, detail) => {
    const reply = await host.post('/api/v1/formulas/check', body);
    assert.equal(reply.status, 422, reply.text);
    assert.equal(reply.json.errors.length, 1);
    assert.equal(reply.json.errors[0].pointer, `#${pointer}`, reply.text);
    assert.match(reply.json.errors[0].detail, detail);
    assert.ok(reply.json.detail.includes(pointer), reply.json.detail);
    return reply.json.errors[0];
};

test('a rational function: values, slopes, parity, growth and norm', real, async () => {
    const got = await check('s^3/(1+abs(s))', { from: -2, to: 2, samples: 5 });
    const f = s => s ** 3 / (1 + Math.abs(s)), slope = s => 3 * s * s / (1 + Math.abs(s)) - Math.abs(s) ** 3 / (1 + Math.abs(s)) ** 2;
    assert.deepEqual(got.samples.s, [-2, -1, 0, 1, 2]);
    got.samples.s.forEach((s, k) => {
        assert.ok(Math.abs(got.samples.value[k] - f(s)) < 1e-12);
        assert.ok(Math.abs(got.samples.slope[k] - slope(s)) < 1e-12);
    });
    assert.equal(got.parity, 'odd');
    assert.ok(Math.abs(got.growth - 2) < 0.01);
    assert.equal(got.at_zero, 0);
    assert.equal(got.lowest, null);
    assert.equal(got.sign, 'either');
    assert.equal(got.passes, 1);
    assert.deepEqual(got.warnings, []);
    assert.equal(got.builtin, null);
    assert.ok(got.operations.backward <= 10);
});

test('the norm of a cube is that of a normal distribution, and its factor reaches the ceiling', real, async () => {
    const got = await check('s^3/sqrt(n)', { n: 100, logit_std: 0.5 });
    // E s^6 = 15 sigma^6 d (d + 2) (d + 4) / d^3 of products of normal vectors
    const norm = Math.sqrt(100 * 100 * 15 * 0.5 ** 6 / 100 * 64 * 66 * 68 / 64 ** 3);
    assert.ok(Math.abs(got.norm - norm) < 1e-9 * norm, `${got.norm} ${norm}`);
    assert.equal(got.ceiling, 10);
    assert.ok(Math.abs(got.factor_to_ceiling - 10 / norm) < 1e-8);
    assert.ok(Math.abs(got.norm_growth - 0.5) < 1e-9);
    assert.equal(got.scalar_to_ceiling, null);
    assert.deepEqual(got.beyond, { f32: { over: 0, under: 0 }, bf16: { over: 0, under: 0 } });
    assert.deepEqual(got.builtin, { activation: 'poly', degree: 3, constant: 1, alpha: 0.5 });
    const scaled = await check(`${got.factor_to_ceiling}*s^3/sqrt(n)`, { n: 100, logit_std: 0.5 });
    assert.ok(Math.abs(scaled.norm - 10) < 1e-6);
});

test('two spellings are one function; another one is not', real, async () => {
    const [a, b, c] = await Promise.all(['softmax(s)', 't = exp(s); t/rowsum(t)', 'softmax(2*s)'].map(f => check(f)));
    assert.equal(a.digest, b.digest);
    assert.notEqual(a.digest, c.digest);
    assert.equal(a.canonical, 'exp(s)/rowsum(exp(s))');
    assert.equal(a.builtin.activation, 'softmax');
    assert.equal(a.at_zero, 1 / 8);
    assert.match(a.torch, /def attention_weights\(s, seen, n\)/);
    assert.match(a.latex, /\\sum_j/);
});

test('learned scalars: their initial values are formulas of sizes', real, async () => {
    const got = await check('a*s^3*2^(-b)', { n: 16, heads: 2, params: { a: { init: '1/sqrt(n)', form: 'log', per: 'head' }, b: { init: 0 } }, from: 0, to: 2, samples: 2 });
    assert.deepEqual(got.params, [{ name: 'a', at: 0, value: 0.25 }, { name: 'b', at: 10, value: 0 }]);
    assert.equal(got.samples.value[1], 2);
    const { scalar_to_ceiling: scalar } = await check('a*s^3', { params: { a: { init: 0.1 } } });
    assert.equal(scalar.name, 'a');
    assert.ok(Math.abs((await check('a*s^3', { params: { a: { init: scalar.init } } })).norm - 8) < 1e-9);
    // A sigmoid is below 1: what is above that is no suggestion.
    const unit = logit_std => check('a*s^3', { params: { a: { init: 0.5, form: 'sigmoid' } }, logit_std });
    const wide = await unit(2), narrow = await unit(0.2);
    assert.ok(wide.scalar_to_ceiling.init > 0 && wide.scalar_to_ceiling.init < 1);
    assert.ok(narrow.factor_to_ceiling > 2);
    assert.equal(narrow.scalar_to_ceiling, null);
});

test('the norm is the mean square over heads and layers where the formula or an initial value reads them', real, async () => {
    const near = (got, want, share) => assert.ok(Math.abs(got / want - 1) <= share, `${got} instead of ${want}`);
    near((await check('h*s', { n: 8, heads: 4 })).norm, 8 * Math.sqrt(14 / 4), 1e-6);
    near((await check('(l+1)*s', { n: 8, heads: 4, layers: 3 })).norm, 8 * Math.sqrt(14 / 3), 1e-6);
    near((await check('a*s', { n: 8, heads: 4, layers: 3, params: { a: { init: '(h+1)*2^l', per: 'head' } } })).norm, 8 * Math.sqrt(30 / 4 * 21 / 3), 1e-6);
    // Logits near 0: A of ALiBi and of retention depends on the distance alone.
    const heads = 4, n = 64, mean = f => Math.sqrt([...Array(heads).keys()].reduce((sum, h) => sum + f(h) / heads, 0));
    const alibi = mean(h => [...Array(n).keys()].reduce((sum, i) => {
        const row = Array.from({ length: i + 1 }, (_, k) => Math.exp(-(2 ** (-8 * (h + 1) / heads)) * k)), total = row.reduce((a, b) => a + b);
        return sum + row.reduce((a, b) => a + (b / total) ** 2, 0);
    }, 0));
    near((await check('softmax(s - 2^(-8*(h+1)/H)*(i-j))', { n, heads, causal: true, logit_std: 0.0258 })).norm, alibi, 0.02);
    const { formulas } = (await host.get('/api/v1/formulas')).json, { formula, params } = formulas.find(f => /RetNet/.test(f.source));
    const std = 0.0258, retention = mean(h => Array.from({ length: n }, (_, k) => (n - k) * (1 - 2 ** (-5 - h)) ** (2 * k) * std ** 2).reduce((a, b) => a + b));
    near((await check(formula, { params, n, heads, causal: true, logit_std: std })).norm, retention, 0.1);
    // Of many heads and layers some are taken, the last included.
    near((await check('where(l==L-1, where(h==H-1, s, 0), 0)', { n: 8, heads: 64, layers: 64 })).norm, 8 / 8, 0.01);
});

test('the suggested initial value is a formula where it differs by head, and one scalar must scale all heads', real, async () => {
    const params = { a: { init: '0.1*(h+1)^2', per: 'head' } }, at = { n: 16, heads: 4, layers: 2 };
    const { scalar_to_ceiling: scalar } = await check('a*s^3', { ...at, params });
    assert.equal(scalar.name, 'a');
    assert.match(scalar.init, /^[0-9.e+-]+\*\(0\.1\*\(h\+1\)\^2\)$/);
    const { norm } = await check('a*s^3', { ...at, params: { a: { ...params.a, init: scalar.init } } });
    assert.ok(Math.abs(norm - 4) < 1e-3, norm);
    // Taken twice, it has one factor.
    const twice = async init => (await check('a*s^3', { ...at, logit_std: 0.5, params: { a: { init, per: 'head' } } })).scalar_to_ceiling.init;
    assert.match(await twice('0.5*(h+1)'), /^[0-9.]+\*\(h\+1\)$/);
    assert.match(await twice('0.5*(h+1)*(h+2)'), /^[0-9.]+\*\(0\.5\*\(h\+1\)\*\(h\+2\)\)$/);
    // Names before the value stay before it.
    assert.match(await twice('t = h+1; t^2; '), /^t = h\+1; [0-9.]+\*\(t\^2\)$/);
    assert.match(await twice('t=h+1;2*(t)'), /^t=h\+1;[0-9.]+\*\(t\)$/);
    assert.equal((await check('where(h==0, a*s, softmax(s))', at)).scalar_to_ceiling, null);
    assert.equal((await check('where(h==0, a*s, softmax(s))', { ...at, heads: 1 })).scalar_to_ceiling.name, 'a');
    // The text of a document has at most 255 bytes.
    const long = `h+${'1+'.repeat(120)}1`;
    assert.equal((await check('a*s^3', { ...at, params: { a: { init: long, per: 'head' } } })).scalar_to_ceiling, null);
    // The largest of the values must be one of the form.
    assert.equal((await check('a*s^3', { n: 16, heads: 4, logit_std: .3, params: { a: { init: '0.01*2^h', per: 'head', form: 'sigmoid' } } })).scalar_to_ceiling, null);
});

test('an initial value that reads what its scalar does not have is refused', real, async () => {
    for (const [init, per, says] of [['h+1', 'layer', /per head/], ['h+1', undefined, /per head/], ['h+1', 'global', /per head/], ['l+1', 'global', /per layer or head/]])
        await refused({ formula: 'a*s^3', params: { a: { init, per } } }, '/params/a/init', says);
    await refused({ formula: 'a*s^3', params: { a: { per: 'token' } } }, '/params/a', /per must be/);
    await check('a*s^3', { params: { a: { init: 'l+1', per: 'layer' } } });
});

test('the gallery: every formula is read, drawn and forecast, and written for FlexAttention or said not to be', real, async () => {
    const { formulas } = (await host.get('/api/v1/formulas')).json;
    assert.equal(formulas.length, 25);
    assert.equal(new Set(formulas.map(f => f.name)).size, 25);
    let flex = 0;
    for (const f of formulas) {
        const got = await check(f.formula, { params: f.params, causal: f.causal, heads: 4, n: 32, samples: 5 });
        assert.deepEqual(got.warnings.filter(w => !/such a row gives 0|all of the row/.test(w.text)), [], f.name);
        assert.ok(got.norm > 0 && Number.isFinite(got.norm_growth), f.name);
        assert.ok(got.samples.value.every(Number.isFinite), f.name);
        assert.equal(got.flex === null, got.flex_why !== null, f.name);
        flex += got.flex !== null;
    }
    assert.equal(flex, 17);
    const again = await host.call('GET', '/api/v1/formulas', { headers: { 'if-none-match': (await host.get('/api/v1/formulas')).headers.etag } });
    assert.equal(again.status, 304);
});

test('what can fail is warned of, with its characters', real, async () => {
    for (const [formula, at, text] of [['log(s)', 0, /logarithm/], ['1/s', 1, /divisor/], ['exp(s^2)', 0, /exceeds f32 at s = 9\.42/], ['exp(10*s)', 0, /exceeds f32 at s = 8\.87/], ['2+sqrt(s)', 2, / root/]]) {
        const got = await check(formula);
        assert.equal(got.warnings.length, 1, formula);
        assert.equal(got.warnings[0].at, at);
        assert.match(got.warnings[0].text, text);
    }
    const pole = await check('1/s', { from: -1, to: 1, samples: 3 });
    assert.deepEqual(pole.samples.value, [-1, null, 1]);
    assert.equal((await check('exp(s^2)')).growth, 'Infinity');
});

test('a wrong formula is 422 with the character and a suggestion', real, async () => {
    const error = await refused({ formula: 's + sofmax(s)' }, '/formula', /did you mean 'softmax'/);
    assert.equal(error.at, 4);
    assert.equal(error.length, 6);
    await refused({ formula: 's^0.5' }, '/formula', /relu\(s\)\^a/);
    await refused({ formula: 'q*k' }, '/formula', /SimA/);
    await refused({ formula: '' }, '/formula', /empty/);
    await refused({ formula: '('.repeat(300) }, '/formula', /deep/);
    await refused({ formula: 's+'.repeat(3000) + 's' }, '/formula', /at most 4096/);
    await refused({ formula: 7 }, '/formula', /must be a text/);
    await refused({}, '/formula', /is missing/);
    let long = 's';
    for (let k = 1; k < 60; k++)
        long += `+sin(${k}*s)*cos(s/${k + 100})`;
    await refused({ formula: long }, '/formula', /128 instructions/);
});

test('other members are checked too', real, async () => {
    const f = { formula: 'a*s' };
    await refused({ ...f, nn: 3 }, '/nn', /unknown member/);
    await refused({ ...f, 'a/~b': 3 }, '/a~1~0b', /unknown member/);
    await refused({ ...f, params: { 'a/b': 1 } }, '/params/a~1b', /init, form and per/);
    await refused({ ...f, n: 0 }, '/n', /from 1 to 4096/);
    await refused({ ...f, n: 1.5 }, '/n', /whole/);
    await refused({ ...f, logit_std: 'x' }, '/logit_std', /number/);
    await refused({ ...f, from: 2, to: 2 }, '/to', /above from/);
    await refused({ ...f, samples: 1 }, '/samples', /from 2/);
    await refused({ ...f, causal: 'yes' }, '/causal', /true or false/);
    await refused({ ...f, params: [] }, '/params', /object/);
    await refused({ ...f, params: { a: 1 } }, '/params/a', /init, form and per/);
    await refused({ ...f, params: { a: { initial: 1 } } }, '/params/a', /init, form and per only/);
    await refused({ ...f, params: { a: { form: 'exp' } } }, '/params/a', /direct, log, softplus or sigmoid/);
    await refused({ ...f, params: { a: { init: 's' } } }, '/params/a/init', /initial value/);
    await refused({ ...f, params: { a: { init: 'log(0-1)' } } }, '/params/a/init', /no finite number/);
    await refused({ ...f, params: { a: { init: -1, form: 'log' } } }, '/params/a/init', /above 0/);
    await refused({ ...f, params: { a: { init: 1, form: 'sigmoid' } } }, '/params/a/init', /between 0 and 1/);
    await refused({ ...f, params: { b: { init: 1 } } }, '/params/b', /has no scalar/);
    const broken = await host.call('POST', '/api/v1/formulas/check', { body: '{', headers: { 'content-type': 'application/json' } });
    assert.equal(broken.status, 400);
});
