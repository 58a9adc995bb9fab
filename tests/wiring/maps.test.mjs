// Heat maps and distributions of gradients of runs in f32, recomputed in double from the checkpoint of the same step: to 1e-5 of the largest
// number. That whole runs in f64 have them from the document on, fields.test.mjs shows.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { maps, tails } from './reference/train.mjs';
import { Rig, imageJob, merge, nystromJob, swinJob, textJob, xcitJob } from './rig.mjs';

let rig;
before(async () => { rig = await Rig.start(); });
after(() => rig?.stop());

const asked = { train: { precision: 'fp32', optimizer: { name: 'msgdw', lr: 0.05 } }, diagnostics: { every: 0, heatmaps: { every: 2 }, histograms: { at: [0, 1] } } };
const cubic = { attention: { activation: 'poly', scale: 'learned' } };
const jobs = { vit: imageJob(merge(cubic, { model: { pool: 'cls' } })), 'vit softmax': imageJob(), gpt: textJob(cubic), swin: swinJob(cubic), xcit: xcitJob(cubic), nystrom: nystromJob(cubic) };

for (const [name, one] of Object.entries(jobs))
    test(`heat maps and gradients of ${name} follow from the checkpoint`, async () => {
        const job = merge(one, asked), got = await rig.run(job), s = rig.settings(job), feed = rig.feed(job);
        let compared = 0;
        for (const step of [2, 3]) {
            const params = new Map([...got.checkpoints.get(step).tensors].filter(([tensor]) => !/^(optim|ema|polyd)\./.test(tensor)));
            const want = new Map(maps(s, params, feed.val).blobs);
            if (step === s.steps)
                for (const [key, values] of tails(s, params, feed.train(step)).blobs)
                    want.set(key, values);
            for (const [key, values] of want) {
                const mine = got.blobs.get(`${key}@${step}`)?.data, most = Math.max(...values.map(Math.abs));
                assert.equal(mine?.length, values.length, key);
                const worst = Math.max(...values.map((v, i) => Math.abs(v - mine[i])));
                assert.ok(worst <= 1e-5 * most, `${key} at step ${step}: off by ${worst} of ${most}`);
                compared += values.length;
            }
        }
        assert.ok(compared > 1000, `${compared} numbers`);
    });
