// Every field of the job document, from the document to the number: a real job in double through the daemon and its
// worker, each number of it recomputed by the reference (reference/), once with the field and once as if it were not there.
import assert from 'node:assert/strict';
import { readFileSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { cases, recipes, without } from './cases.mjs';
import { Rig, agree, differences, imageJob, merge, nystromJob, textJob } from './rig.mjs';
import { presets, settings } from './reference/settings.mjs';
import { shapes } from './reference/init.mjs';

let rig;
before(async () => { rig = await Rig.start(); });
after(() => rig?.stop());

/** The document as the reference reads it: overrides and recipes folded in, absent keys gone. */
function folded(job) {
    let all = JSON.parse(JSON.stringify(job));
    if (all.recipe)
        all = merge(recipes[all.recipe], all);
    for (const [pointer, value] of Object.entries(all.overrides ?? {}))
        all = placed(all, pointer, value);
    return all;
}

/** The job with another value at a pointer; undefined: without the key. */
function placed(job, pointer, value) {
    const copy = JSON.parse(JSON.stringify(job)), keys = pointer.slice(1).split('/'), last = keys.pop();
    const parent = keys.reduce((at, key) => at[key] ??= {}, copy);
    if (value === undefined)
        delete parent[last];
    else
        parent[last] = value;
    return copy;
}

const seen = new Map();
describe('fields', { concurrency: 2 }, () => {
    for (const { field, job, inert, tolerance = 1e-9, differs, outcome, only, ...rest } of cases) {
        seen.set(field, (seen.get(field) ?? 0) + 1);
        test(`${field} (${seen.get(field)})`, { timeout: 120000 }, async () => {
            const got = await rig.run(job, outcome), want = rig.expect(folded(job));
            agree(got, want, { tolerance, only });
            if (field === '/train/optimizer/name') { // memory of the states: parameters, times states, times the size of a number
                assert.deepEqual([...got.series.get('mem/optimizer').values()], [want.optimiser.bytes]);
                assert.deepEqual([...got.series.get('mem/optimizer_per_parameter').values()], [want.optimiser.each]);
            }
            if (field === '/train/recompute') { // kept activations take more memory than those that are computed again
                const arena = numbers => [...numbers.series.get('mem/arena').values()][0], again = await rig.run(placed(job, field, 'on'));
                agree(again, want, { tolerance });
                assert.ok(arena(got) > arena(again), `an arena of ${arena(got)} bytes, and of ${arena(again)} where activations are computed again`);
            }
            if (differs !== undefined)
                assert.ok(differences(got, want, { tolerance: differs, only }).length > 0, `the same numbers as in double, to ${differs}`);
            if (inert || rest.instead === null || differs !== undefined)
                return;
            const other = folded(placed(job, field, rest.instead));
            assert.ok(differences(got, rig.expect(other), { tolerance: 10 * tolerance, only }).length > 0,
                `the case proves nothing: with ${JSON.stringify(rest.instead)} at ${field} every number is the same`);
        });
    }
});

test('what is computed while resolving stands in the document', async () => {
    for (const job of [imageJob({ attention: { activation: 'poly' } }), textJob({ attention: { activation: 'poly', scale: 'learned' } }),
        imageJob({ attention: { activation: 'poly', scale: 'k', k: 5 }, model: { pool: 'cls' } })]) {
        const { document } = await rig.daemon.post('/api/v1/jobs?dry_run=1', job), s = rig.settings(job);
        // fields /attention/n and /attention/c0
        assert.equal(document.attention.n ?? s.n, s.n);
        assert.equal(document.attention.c0, s.c);
    }
});

test('/attention/formulas: each run is the job of its own formula', async () => {
    const entries = ['s^3/(1+abs(s))', { formula: 'a*s^3', params: { a: { init: 0.5 } } }, 'exp(s)/(exp(b)+rowsum(exp(s)))'];
    const params = { b: { init: '0.3*(h+1)/(l+1)', per: 'head' } };
    const { run_ids: ids } = await rig.daemon.post('/api/v1/jobs', imageJob({ attention: { formulas: entries, params }, trials: 2 }));
    assert.equal(ids.length, 2 * entries.length);
    const all = [];
    for (const [i, id] of ids.entries()) {
        const entry = entries[Math.floor(i / 2)], of = typeof entry === 'string' ? { formula: entry } : entry;
        const want = rig.expect(folded(imageJob({ attention: { activation: 'formula', params: /\bb\b/.test(of.formula) ? params : {}, ...of }, train: { seed: i % 2 } })));
        agree(await rig.collect(id), want);
        all.push(JSON.stringify([...want.series.get('loss/train')]));
    }
    assert.equal(new Set(all).size, ids.length, 'the runs differ');
});

test('/model/preset: every available preset has the parameters that its shape asks for', { timeout: 300000 }, async () => {
    const { presets: list } = await rig.daemon.get('/api/v1/fields');
    // those of equations are counted in equation.test.mjs
    const available = list.filter(preset => preset.available && !preset.name.startsWith('pinn')).map(preset => preset.name);
    assert.deepEqual(Object.keys(presets).sort(), available.sort());
    for (const [name, { arch }] of Object.entries(presets)) {
        const side = 224, job = arch === 'gpt'
            ? textJob({ model: { arch: undefined, preset: name, width: undefined, depth: undefined, heads: undefined, context: undefined }, data: { context: 6 } })
            : arch === 'nystrom' ? nystromJob({ model: { arch: undefined, preset: name, width: undefined, depth: undefined, heads: undefined, mlp_ratio: undefined, context: undefined, landmarks: undefined } })
            : imageJob({ model: { arch: undefined, preset: name, width: undefined, depth: undefined, heads: undefined, patch: undefined }, data: { image_size: side } });
        if (arch === 'deit') { // its parameters are those that teacher.test.mjs finds in a checkpoint
            await assert.rejects(rig.daemon.post('/api/v1/jobs?dry_run=1', job), /train\/teacher/);
            continue;
        }
        const { plan, plan_error } = await rig.daemon.post('/api/v1/jobs?dry_run=1', job);
        const s = settings(folded(job), { channels: 1, height: side, width: side, classes: arch === 'gpt' ? undefined : 10, vocab: arch === 'nystrom' ? 18 : 256, samples: 14 });
        const count = shapes(s).filter(p => p.role !== 'buffer').reduce((sum, p) => sum + p.shape.reduce((a, b) => a * b, 1), 0);
        assert.equal(plan?.parameters, count, `${name}: ${plan_error}`);
    }
});

test('/data/lra_len: the length of sequences is that of the configuration or of the paper', async () => {
    for (const [dataset, reference, paper] of [['listops_gen', 2048, 512], ['pathfinder_gen', 1024, 8192]])
        for (const [word, length] of [['reference', reference], ['paper', paper]]) {
            const job = nystromJob({ model: { context: undefined, landmarks: 16 }, data: { dataset, lra_len: word } });
            const { document, plan } = await rig.daemon.post('/api/v1/jobs?dry_run=1', job);
            assert.deepEqual([document.model.context, document.data.context], [length, length]);
            // the table of positions has a row for each
            const s = settings(merge(job, { model: { context: length } }), { classes: dataset === 'listops_gen' ? 10 : 2, vocab: dataset === 'listops_gen' ? 18 : 256, samples: 60 });
            assert.equal(plan?.parameters, shapes(s).reduce((sum, p) => sum + p.shape.reduce((a, b) => a * b, 1), 0));
        }
});

/* ---- a field without a case fails the suite ---- */

/** A value other than the default, for a look at what the daemon says of it. */
function another(f) {
    if (f.available)
        return f.available.find(value => value !== f.default);
    switch (f.type) {
    case 'boolean': return !f.default;
    case 'integer': return Math.max(f.minimum ?? 1, (f.default ?? 1) + 1);
    case 'number': return f.default ? f.default / 2 : 0.5;
    case 'array of integers': return [4];
    default: return undefined;
    }
}

test('every field that may change a number has a case', async () => {
    const { fields } = await rig.daemon.get('/api/v1/fields');
    const here = path.dirname(fileURLToPath(import.meta.url));
    const sources = readdirSync(here).filter(name => name.endsWith('.test.mjs')).map(name => readFileSync(path.join(here, name), 'utf8')).join('\n');
    const covered = pointer => seen.has(pointer) || sources.includes(`test('${pointer}'`) || sources.includes(`test('${pointer} `) || sources.includes(`test('${pointer}:`);
    const fixed = fields.filter(f => f.only_default).map(f => f.pointer), missing = [];
    for (const f of fields) {
        if (covered(f.pointer) || f.pointer in without || f.computed)
            continue;
        if (fixed.some(pointer => f.pointer === pointer || f.pointer.startsWith(`${pointer}/`)) || (f.available && f.available.length < 2))
            continue; // only one value is accepted: another one is refused by name, which the API's own tests see
        // Of something that is not available: the daemon must say that the field has no effect.
        const [, of, value] = /unless (?:model|sweep)\.(arch|method) is (\w+)/.exec(f.no_effect ?? '') ?? [];
        if ((of && !fields.find(other => other.pointer.endsWith(`/${of}`)).available.includes(value))) {
            const job = of === 'method' ? imageJob({ sweep: { axes: [{ pointer: '/train/seed', values: [1, 2] }] } }) : imageJob();
            const { warnings } = await rig.daemon.post('/api/v1/jobs?dry_run=1', placed(job, f.pointer, another(f)));
            assert.ok(warnings.some(w => w.pointer === `#${f.pointer}` && /has no effect/.test(w.detail)), `${f.pointer}: ${JSON.stringify(warnings)}`);
            continue;
        }
        missing.push(f.pointer);
    }
    assert.deepEqual(missing, [], 'fields without a case in tests/wiring');
    assert.ok(Object.keys(without).length <= 10);
    for (const pointer of [...seen.keys(), ...Object.keys(without)])
        assert.ok(fields.some(f => f.pointer === pointer), `${pointer} is no field`);
});
