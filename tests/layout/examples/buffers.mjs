// A network with a running mean of its pixels: what checkpoints hold of it is the recursion over the batches that the tests'
// own loader makes (tests/wiring/reference), on one rank and on two, in one part and in two, with and without a stop.
import assert from 'node:assert/strict';
import { until } from '../../lib/daemon.mjs';
import { Rig, imageJob, merge } from '../../wiring/rig.mjs';

const keep = 0.9, average = 0.75;

/** The buffer and its average behind each step; a step of several parts changes it once in each. */
function* expected(feed, steps, parts) {
    let mean = null, averaged;
    for (let step = 0; step < steps; step++) {
        const batch = feed.train(step), size = batch.length / parts;
        mean ??= new Array(batch[0].input.length).fill(0);
        averaged ??= [...mean];
        for (let part = 0; part < parts; part++) {
            const samples = batch.slice(part * size, (part + 1) * size);
            mean = mean.map((b, i) => keep * b + (1 - keep) * samples.reduce((sum, sample) => sum + sample.input[i], 0) / size);
        }
        averaged = averaged.map((b, i) => average * b + (1 - average) * mean[i]);
        yield { step: step + 1, mean, averaged };
    }
}

function near(tensor, values, what) {
    assert.ok(tensor, `${what} is missing`);
    assert.equal(tensor.data.length, values.length);
    values.forEach((value, i) => assert.ok(Math.abs(tensor.data[i] - value) < 1e-9, `${what}[${i}] is ${tensor.data[i]}, expected ${value}`));
}

/** @param {object} model of the job */
export async function checkBuffers(model) {
    const rig = await Rig.start();
    const job = more => ({ ...imageJob(merge({ train: { steps: 6, ema: average, keep: { latest: 100, best: 0 } }, diagnostics: { every: 0 } }, more)), model });
    const check = async (more, id, parts) => {
        const { checkpoints } = await rig.collect(id), { model: _, ...like } = job(more), feed = rig.feed(imageJob(like));
        let seen = 0;
        for (const { step, mean, averaged } of expected(feed, like.train.steps, parts)) {
            const file = checkpoints.get(step);
            if (!file)
                continue;
            seen++;
            near(file.tensors.get('running_mean'), mean, `running_mean of step ${step}`);
            near(file.tensors.get('ema.running_mean'), averaged, `ema.running_mean of step ${step}`);
            assert.ok(![...file.tensors.keys()].some(name => /^optim.*running_mean/.test(name)), 'a buffer has no moments');
        }
        assert.ok(seen > 5, `${seen} checkpoints`);
    };
    try {
        for (const [slots, accumulation, zero] of [[1, 1, 0], [2, 1, 0], [1, 2, 0], [2, 2, 1]]) {
            const more = { train: { accumulation, zero }, resources: { slots } };
            await check(more, (await rig.daemon.submit(job(more))).run, accumulation);
        }
        const more = { data: { path: 'tests/long' }, train: { steps: 40, eval_every: 1 } }, { run: id, job: jobId } = await rig.daemon.submit(job(more));
        const now = () => rig.daemon.get(`/api/v1/runs/${id}`);
        await until('step 7', async () => (await now()).step >= 7, { every: 5 });
        await rig.daemon.post(`/api/v1/jobs/${jobId}/pause`);
        await until('the pause', async () => (await now()).state === 'paused', { every: 10 });
        await rig.daemon.post(`/api/v1/jobs/${jobId}/resume`);
        await check(more, id, 1);
        assert.equal((await now()).attempts, 2);
    } finally {
        await rig.stop();
    }
}
