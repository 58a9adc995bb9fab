// Equations, from the document to the numbers: jobs in double through the daemon and its worker; the parts of the loss and the errors are
// recomputed from each checkpoint's parameters (reference/pinnsformer.mjs), once with the field and once as if it were not there.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Rig, merge } from './rig.mjs';
import { Pinnsformer } from './reference/pinnsformer.mjs';

let rig;
before(async () => { rig = await Rig.start(); });
after(() => rig?.stop());

const equationJob = (more = {}) => merge({
    name: 'wiring', model: { arch: 'pinnsformer', width: 4, depth: 1, heads: 2, mlp_ratio: 2, head_width: 6, context: 3 },
    data: { dataset: 'pde_reaction', pde: { grid: [4, 5], test_grid: [3, 6], step: 0.05, coefficient: 2 } },
    attention: { activation: 'poly', degree: 3, scale: 'k', k: 2 },
    train: { steps: 3, precision: 'fp64', eval_every: 1, checkpoint_every: { steps: 1 }, keep: { latest: 100, best: 1 }, optimizer: { lr: 0.02 } },
    diagnostics: { every: 0 }, resources: { device: 'cpu', threads: 1 },
}, more);

/** A smoother start: second derivatives by differences lose half of the digits. */
const waveJob = (more = {}) => equationJob(merge({ data: { dataset: 'pde_wave' }, attention: { k: 1e4 }, train: { optimizer: { lr: 0.002 } } }, more));

const close = (a, b) => Math.abs(a - b) <= 2e-5 * Math.max(Math.abs(a), Math.abs(b), 1e-3);

/** What the run should have reported, read with these settings. */
function expected(job, checkpoints) {
    const { pde, dataset } = job.data, settings = { heads: job.model.heads, degree: 3, scale: 1 / job.attention.k, points: job.model.context, ...pde, dataset,
        width: dataset === 'pde_wave' ? 1 : 2 * Math.PI, shift: job.train.pinn_derivative === 'jvp_shift' };
    const numbers = new Map();
    for (const [step, { tensors }] of checkpoints) {
        const net = new Pinnsformer(tensors, settings);
        for (const [key, value] of Object.entries(net.errors()))
            numbers.set(`${key}/val ${step}`, value);
        for (const [key, value] of Object.entries(net.loss())) // of the step that begins there
            numbers.set(`loss/${key} ${step + 1}`, value);
    }
    return numbers;
}

/** Keys with steps whose numbers differ. */
function differing(series, numbers) {
    const off = [];
    let compared = 0;
    for (const [key, want] of numbers) {
        const [name, step] = key.split(' '), got = series.get(name)?.get(Number(step));
        if (got === undefined)
            continue;
        compared++;
        if (!close(got, want))
            off.push(`${key}: ${got}, reference ${want}`);
    }
    assert.ok(compared >= 12, `only ${compared} numbers were compared`);
    return off;
}

async function holds(job, other) {
    const { series, checkpoints } = await rig.run(job);
    assert.deepEqual(differing(series, expected(job, checkpoints)), []);
    for (const [step, value] of series.get('loss/train'))
        assert.ok(close(value, ['residual', 'boundary', 'initial'].reduce((sum, part) => sum + series.get(`loss/${part}`).get(step), 0)));
    if (other)
        assert.ok(differing(series, expected(other, checkpoints)).length > 0, 'the case proves nothing');
    return checkpoints;
}

test('/data/pde/grid is what the residual is taken on', async () => {
    const job = equationJob({ data: { pde: { grid: [3, 7] } } });
    await holds(job, equationJob());
});

test('/data/pde/test_grid is what the solution is compared on', async () => {
    await holds(equationJob({ data: { dataset: 'pde_convection', pde: { test_grid: [5, 4] } } }), equationJob({ data: { dataset: 'pde_convection' } }));
});

test('/data/pde/step is the distance of points of a sequence', async () => {
    await holds(equationJob({ data: { pde: { step: 0.2 } } }), equationJob());
});

test('/data/pde/coefficient is that of each equation', async () => {
    await holds(equationJob({ data: { dataset: 'pde_convection', pde: { coefficient: 7 } } }), equationJob({ data: { dataset: 'pde_convection' } }));
    await holds(equationJob({ data: { pde: { coefficient: 4 } } }), equationJob());
    await holds(waveJob({ data: { pde: { coefficient: 1.5 } } }), waveJob());
});

test('/train/pinn_derivative chooses the gradient of the sum or the tangent of a shift', async () => {
    const job = equationJob({ train: { pinn_derivative: 'jvp_shift' } });
    await holds(job, equationJob());
    await holds(waveJob({ train: { pinn_derivative: 'jvp_shift' } }), waveJob());
});

test('/model/head_width is that of the head', async () => {
    const checkpoints = await holds(equationJob({ model: { head_width: 9 } }));
    assert.deepEqual(checkpoints.get(2).tensors.get('linear_out.2.weight').shape, [9, 9]);
});

test('/train/optimizer/name lbfgs: losses of its steps, states in its checkpoints, and what it refuses', { timeout: 120000 }, async () => {
    const job = equationJob({ train: { steps: 4, optimizer: { name: 'lbfgs', lr: 1 } } });
    const checkpoints = await holds(job, equationJob({ data: { pde: { coefficient: 3 } } }));
    assert.ok(['d', 'g', 's', 'y', 'numbers'].every(name => checkpoints.get(2).tensors.has(`optim.lbfgs.${name}`)));
    for (const [part, message] of [[{ train: { ema: 0.9 } }, /train\/ema/], [{ train: { clip_norm: 1 } }, /train\/clip_norm/], [{ train: { accumulation: 2 } }, /accumulation/],
        [{ resources: { slots: 2 } }, /slots/]])
        await assert.rejects(rig.daemon.post('/api/v1/jobs?dry_run=1', merge(job, part)), message);
});

test('presets have the parameters of the reference implementation', async () => {
    for (const [preset, count] of [['pinnsformer', 453561], ['pinn_micro', 33641]]) {
        const { plan } = await rig.daemon.post('/api/v1/jobs?dry_run=1', { model: { preset }, data: { dataset: 'pde_convection' }, train: { steps: 1 } });
        assert.equal(plan.parameters, count);
    }
});
