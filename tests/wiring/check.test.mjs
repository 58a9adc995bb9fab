// A job of kind check, from the document to the numbers of its run: parameters reach the computation, whose closed forms are written
// down here a second time.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Rig } from './rig.mjs';

let rig;
before(async () => { rig = await Rig.start(); });
after(() => rig?.stop());

async function examine(document) {
    const { run } = await rig.daemon.submit({ kind: 'check', ...document });
    await rig.daemon.reach(run, 'succeeded');
    return (await rig.daemon.get(`/api/v1/runs/${run}/check`)).result;
}

const odd = p => (p < 1 ? 1 : (2 * p - 1) * odd(p - 1));
const rising = (p, m) => (p < 1 ? 1 : m * rising(p - 1, m + 2));
/** E ||(X Q K^T X^T / root d)^p||_F^2 of theorem 4.2. */
const square = ({ N, D, d, x, t }, p) => d ** -p * odd(p) * rising(p, d) * (x * t) ** (4 * p) * (N * (N - 1) * rising(p, D) ** 2 + N * rising(2 * p, D));

test('/check: the statement that the document names is examined', { timeout: 120000 }, async () => {
    for (const check of ['T2', 'T20']) {
        const result = await examine({ check, params: { seeds: 1 } });
        assert.equal(result.check, check);
        assert.equal(result.verdict, 'holds');
        assert.ok(result.rows.some(row => (check === 'T2' ? /‖J‖²/ : /mSGDW/).test(row.what)));
    }
});

test('/params: each parameter of T4 decides what is drawn and expected', { timeout: 120000 }, async () => {
    const params = { N: [6, 12], D: 5, d: 3, p: [1, 2], draws: 400, sigma_x: 0.5, sigma_t: 2, seed: 7, seeds: 2 };
    const result = await examine({ check: 'T4', params });
    assert.deepEqual(result.seeds, [7, 8]);
    for (const seed of [7, 8])
        for (const N of params.N)
            for (const p of params.p) {
                const row = result.rows.find(r => r.seed === seed && r.what === `p = ${p}, N = ${N}`);
                const want = Math.sqrt(square({ N, D: 5, d: 3, x: 0.5, t: 2 }, p));
                assert.ok(Math.abs(row.expected / want - 1) < 1e-12, `${row.what}: ${row.expected} for ${want}`);
                assert.ok(Math.abs(row.value - want) < 5 * row.se, `${row.what}: ${row.value} ± ${row.se} for ${want}`);
            }
    // more draws: a smaller error
    const finer = await examine({ check: 'T4', params: { ...params, draws: 6400 } });
    const [a, b] = [result, finer].map(r => r.rows.find(row => row.what === 'p = 1, N = 12').se);
    assert.ok(a / b > 2.5 && a / b < 6, `${a / b}`);
    // other seeds: other numbers
    const other = await examine({ check: 'T4', params: { ...params, seed: 9 } });
    assert.notEqual(other.rows[0].value, result.rows[0].value);
});

test('/params: the same document gives the same bits', { timeout: 120000 }, async () => {
    const document = { check: 'T13', params: { seeds: 1, draws: 20, n: [8, 64] } };
    assert.deepEqual(await examine(document), await examine(document));
});
