// Comparisons of the C tests that a NaN would pass: each comparison with a NaN is false, so "off > limit" lets it through, and
// fmax() drops it.
import assert from 'node:assert/strict';
import { readFileSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import test from 'node:test';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..');

/** Bands and figures of a report: where they are missing no test passes for it. */
const reports = /^(\w->worst|b\.logits)$/;

export function passesNan(file, text) {
    const code = text.replace(/\/\*[\s\S]*?\*\/|\/\/[^\n]*/g, '').replace(/\s+/g, ' '), found = [];
    for (const [, condition] of code.matchAll(/\bif \(((?:[^;{}](?!\bif \())*?)\) (?:fail_msg|golden_fail|gold_fail)\(/g))
        if (/\bfabsf?\((?:[^()]|\([^()]*\))* - .*? > /.test(condition))
            found.push(condition);
    for (const [all, name] of code.matchAll(/([\w.>[\]-]+) = fmaxf?\(\1, [^;]*?\bfabsf?\([^;]* - [^;]*;/g))
        if (!reports.test(name))
            found.push(all);
    return found.map(what => `${file}: ${what}`);
}

test('test_layout_no_comparison_of_a_test_lets_a_nan_pass', () => {
    const files = readdirSync(path.join(root, 'tests'), { withFileTypes: true }).filter(entry => entry.isDirectory() && !/^(node_modules|reference|bench|fuzz)$/.test(entry.name))
        .flatMap(({ name }) => readdirSync(path.join(root, 'tests', name)).filter(file => /\.(c|cc|cu|h)$/.test(file)).map(file => `tests/${name}/${file}`));
    assert.ok(files.length > 150, `${files.length} files`);
    assert.deepEqual(files.flatMap(file => passesNan(file, readFileSync(path.join(root, file), 'utf8'))), []);
});

test('test_layout_checker_of_comparisons_sees_them', () => {
    const one = text => passesNan('x.c', text).length;
    assert.equal(one('if (fabs(slope - grad[k]) > 2e-6 * fmax(1, fabs(slope)))\n    fail_msg("x");'), 1);
    assert.equal(one('if (!q || fabs(q->value - p->value) > 1e-3)\n fail_msg("x");'), 1);
    assert.equal(one('if (fabsf(a[i][t] - b[i][t]) > 2e-6f * (1 + fabsf(a[i][t]))) gold_fail(g, "x");'), 1);
    assert.equal(one('worst = fmax(worst, fabs((double)y[i] - want) / ulp);'), 1);
    assert.equal(one('if (!(fabs(slope - grad[k]) <= 1e-6))\n fail_msg("x");'), 0);
    assert.equal(one('worst = worse(worst, fabs(a - b)); most = fmax(most, fabs(want[i])); g->worst = fmax(g->worst, fabs(a - b));'), 0);
    assert.equal(one('/* worst = fmax(worst, fabs(a - b)); */'), 0);
});
