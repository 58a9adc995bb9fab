// Heat maps and distributions of gradients of runs in f32, recomputed in double from the checkpoint of the same step: to 1e-5 of the largest
// number. An entry of a gradient that is as near to an edge of its bin may be counted on either side. That whole runs in f64 have them from the document on, fields.test.mjs, teacher.test.mjs and equation.test.mjs show.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Pinnsformer, tails as tailsOfEquation } from './reference/pinnsformer.mjs';
import { maps, matrices, tails } from './reference/train.mjs';
import { Rig, imageJob, merge, nystromJob, parametersOf, swinJob, textJob, xcitJob } from './rig.mjs';

let rig, teacher;
before(async () => {
    rig = await Rig.start();
    teacher = await rig.taught('master', imageJob({ train: { steps: 6, optimizer: { lr: 0.05 } } }));
});
after(() => rig?.stop());

const asked = { train: { precision: 'fp32', optimizer: { name: 'msgdw', lr: 0.05 } }, diagnostics: { every: 0, heatmaps: { every: 2 }, histograms: { at: [0, 1] } } };
const cubic = { attention: { activation: 'poly', scale: 'learned' } };
const lesson = { kind: 'soft', alpha: 0.5, tau: 2 };
const jobs = { vit: imageJob(merge(cubic, { model: { pool: 'cls' } })), 'vit softmax': imageJob(), gpt: textJob(cubic), swin: swinJob(cubic), xcit: xcitJob(cubic), nystrom: nystromJob(cubic),
    deit: imageJob(merge(cubic, { model: { arch: 'deit' }, train: { teacher: { model: 'master', ...lesson } } })) };

/** What stands at a step of a run that made three of them: matrices, and at its end distributions of gradients. */
function expected(job, step, params) {
    const feed = rig.feed(job), s = rig.settings(job);
    return { blobs: maps(s, params, feed.val).blobs, entries: step === s.steps ? tails(job.model.arch === 'deit' ? { ...s, teacher: { ...teacher, ...lesson } } : s, params, feed.train(step)).entries : new Map() };
}

/** Whether counts in bins are those of the entries, each moved by at most 1e-5 of its size and 1e-6 of the largest. */
function counted(list, counts) {
    const sizes = list.map(Math.abs), most = Math.max(...sizes), least = 10 ** -16;
    assert.equal(counts.length, 200);
    assert.ok(sizes.every(x => x > least && x < 1e4), 'an entry beyond the bins');
    let from = 0;
    for (let i = 199; i > 0; i--) {
        const edge = 10 ** (i / 10 - 16), room = 1e-5 * edge + 1e-6 * most, [sure, perhaps] = [edge + room, edge - room].map(at => sizes.filter(x => x >= at).length);
        from += counts[i];
        if (from < sure || from > perhaps)
            return `${from} entries from 1e${(i / 10 - 16).toFixed(1)}, expected ${sure} to ${perhaps}`;
    }
    return from + counts[0] === list.length ? '' : `${from + counts[0]} entries, expected ${list.length}`;
}

async function holds(job, least, want) {
    const got = await rig.run(job);
    let compared = 0;
    for (const step of [2, 3]) {
        const { blobs, entries } = want(job, step, parametersOf(got.checkpoints.get(step)));
        for (const [key, values] of blobs) {
            const mine = got.blobs.get(`${key}@${step}`)?.data, most = Math.max(...values.map(Math.abs));
            assert.equal(mine?.length, values.length, key);
            const worst = Math.max(...values.map((v, i) => Math.abs(v - mine[i])));
            assert.ok(worst <= 1e-5 * most, `${key} at step ${step}: off by ${worst} of ${most}`);
            compared += values.length;
        }
        for (const [key, list] of entries) {
            assert.equal(counted(list, got.blobs.get(`${key}@${step}`).data), '', `${key} at step ${step}`);
            compared += list.length;
        }
        assert.equal(entries.size > 0, step === 3);
    }
    assert.ok(compared > least, `${compared} numbers`);
}

for (const [name, one] of Object.entries(jobs))
    test(`heat maps and gradients of ${name} follow from the checkpoint`, () => holds(merge(one, asked), 1000, expected));

for (const [dataset, coefficient] of [['pde_reaction', 2], ['pde_convection', 3]])
    test(`heat maps and gradients of pinnsformer, ${dataset}, follow from the checkpoint`, () => {
        const pde = { grid: [4, 5], test_grid: [3, 6], step: 0.05, coefficient }, attention = { activation: 'poly', degree: 3, scale: 'k', k: 20 }; // of larger maps the decoder's have the encoder's rounding a hundred times
        const job = { name: 'wiring', model: { arch: 'pinnsformer', width: 4, depth: 1, heads: 2, mlp_ratio: 2, head_width: 6, context: 3 }, data: { dataset, pde }, attention, resources: { device: 'cpu', threads: 1 },
            train: { steps: 3, precision: 'fp32', eval_every: 1, checkpoint_every: { steps: 1 }, keep: { latest: 100, best: 1 }, optimizer: { lr: 0.02 } }, diagnostics: asked.diagnostics };
        const of = { heads: 2, degree: 3, scale: 1 / attention.k, points: 3, dataset, width: 2 * Math.PI, shift: false, ...pde };
        return holds(job, 1000, (_, step, params) => {
            const net = new Pinnsformer(params, of), [times, places] = pde.test_grid, all = { maps: { layers: [], heads: [] }, histograms: { tensors: [] }, patch: [0, 0] };
            net.looks = [];
            for (let a = 0; a < times; a++)
                for (let b = 0; b < places; b++)
                    net.u(...net.sequence(pde.test_grid, a, b));
            return { blobs: matrices(all, { looks: net.looks, activation: () => 'poly' }).blobs, entries: step === 3 ? tailsOfEquation(all, params, of).entries : new Map() };
        });
    });
