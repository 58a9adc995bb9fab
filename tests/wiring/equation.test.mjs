// Equations, from the document to the numbers: jobs in double through the daemon and its worker; the parts of the loss and the errors are
// recomputed from each checkpoint's parameters (reference/pinnsformer.mjs), once with the field and once as if it were not there.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { until } from '../lib/daemon.mjs';
import { parse, write } from '../lib/safetensors.mjs';
import { Rig, merge } from './rig.mjs';
import { Pinnsformer, tails } from './reference/pinnsformer.mjs';
import { matrices } from './reference/train.mjs';

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

const settingsOf = job => ({ heads: job.model.heads, degree: 3, scale: job.attention.scale === 'learned' ? null : 1 / job.attention.k, points: job.model.context, ...job.data.pde, dataset: job.data.dataset,
    width: job.data.dataset === 'pde_wave' ? 1 : 2 * Math.PI, shift: job.train.pinn_derivative === 'jvp_shift' });

/** What the run should have reported, read with these settings. */
function expected(job, checkpoints) {
    const settings = settingsOf(job);
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

test('/train/start/optimizer: the one state of L-BFGS needs every parameter from the file', { timeout: 120000 }, async () => {
    const make = start => equationJob({ train: { steps: 2, optimizer: { name: 'lbfgs', lr: 1 }, ...start && { start: { run: String(first), optimizer: true, ...start } } } });
    const { run: { id: first }, checkpoints } = await rig.run(make(null)), part = await rig.daemon.submit(make({ reset: 'linear_out.0' })), row = await rig.daemon.reach(part.run, 'failed');
    assert.match(row.reason, /#\/train\/start\/optimizer: the state of lbfgs is one of all parameters, and 'linear_out\.0\./);
    assert.equal(row.attempts, 1);
    const { series, run } = await rig.run(make({ checkpoint: 'last' }));
    assert.equal(run.started_from.fields.reset, '0');
    assert.ok(checkpoints.size > 0 && series.get('loss/train').size === 2);
});

test('/train/start/optimizer: the state of L-BFGS is refused for another loss, network or set of trained parameters', { timeout: 240000 }, async () => {
    const make = (more, start) => equationJob(merge({ train: { steps: 2, optimizer: { name: 'lbfgs', lr: 1 }, ...start && { start } } }, more));
    const frozen = stack => ({ train: { freeze: `${stack}.layers.0.ff` } });
    const { run: { id: first } } = await rig.run(make(frozen('encoder')));
    const start = { run: String(first), optimizer: true };
    for (const [more, says] of [
        [{ data: { dataset: 'pde_convection' } }, /is of another loss \(pde_reaction, .*\) than this run's \(pde_convection, /],
        [{ data: { pde: { coefficient: 3 } } }, /coefficient 2, .*coefficient 3, .*; use false/],
        [{ data: { pde: { step: 0.04 } } }, /of another loss/], [{ data: { pde: { grid: [5, 5] } } }, /grid 4 x 5, .*grid 5 x 5/],
        [{ train: { pinn_derivative: 'jvp_shift' } }, /by vjp_sum\) .*by jvp_shift\)/], [{ attention: { k: 3 } }, /of another network: its 'polyd\.model\.\w+'/],
        [frozen('decoder'), /of other trained parameters \(train\.freeze\)/]]) {
        const { run } = await rig.daemon.submit(make(merge(frozen('encoder'), more), start)), row = await rig.daemon.reach(run, 'failed');
        assert.match(row.reason, /^#\/train\/start\/optimizer: the file's state of lbfgs is of /);
        assert.match(row.reason, says);
        assert.equal(row.attempts, 1);
    }
    const { series } = await rig.run(make(merge(frozen('encoder'), { data: { pde: { coefficient: 3 } } }), { ...start, optimizer: false }));
    assert.equal(series.get('loss/train').size, 2);
});

test('presets have the parameters of the reference implementation', async () => {
    for (const [preset, count] of [['pinnsformer', 453561], ['pinn_micro', 33641]]) {
        const { plan } = await rig.daemon.post('/api/v1/jobs?dry_run=1', { model: { preset }, data: { dataset: 'pde_convection' }, train: { steps: 1 } });
        assert.equal(plan.parameters, count);
    }
});

/** Numbers of the worker's maps and distributions, with those of the same names that the reference has: off by no more than a share of the largest. */
function same(got, want, step, share) {
    assert.ok(want.blobs.size > 0 && want.series.size > 0);
    for (const [key, values] of want.blobs) {
        const mine = got.blobs.get(`${key}@${step}`)?.data, most = Math.max(...values.map(Math.abs));
        assert.equal(mine?.length, values.length, key);
        values.forEach((v, i) => assert.ok(Math.abs(mine[i] - v) <= share * most, `${key}, step ${step}: ${mine[i]}, reference ${v}`));
    }
    for (const [key, v] of want.series)
        assert.ok(Math.abs(got.series.get(key)?.get(step) - v) <= 1e3 * share * Math.max(1, Math.abs(v)), /* Hill's index divides by the difference of two logarithms */ `${key}, step ${step}: ${got.series.get(key)?.get(step)}, reference ${v}`);
}

test('/diagnostics/heatmaps: matrices of encoder and decoder are the means over the sequences of the evaluation grid', async () => {
    const job = equationJob({ diagnostics: { every: 0, heatmaps: { every: 1 } } }), got = await rig.run(job), settings = settingsOf(job), [times, places] = settings.test_grid;
    for (const [step, { tensors }] of got.checkpoints) {
        const net = new Pinnsformer(tensors, settings);
        net.looks = [];
        for (let a = 0; a < times; a++)
            for (let b = 0; b < places; b++)
                net.u(...net.sequence(settings.test_grid, a, b));
        const want = matrices({ maps: { layers: [], heads: [] }, patch: [0, 0] }, { looks: net.looks, activation: () => 'poly' });
        assert.equal(want.blobs.size, 4 * 4); // of each head of both: the matrix, softmax's, displacement and logits
        same(got, want, step, 1e-6);
    }
});

for (const [name, make, more] of [['reaction', equationJob, {}], ['convection, a learned scale, L-BFGS', equationJob, { data: { dataset: 'pde_convection' }, attention: { scale: 'learned', k: undefined }, train: { optimizer: { name: 'lbfgs', lr: 1 } } }],
    ['wave', waveJob, {}], ['wave, along a shift', waveJob, { train: { pinn_derivative: 'jvp_shift' }, diagnostics: { histograms: { tensors: ['w_k', 'w_1'] } } }]])
    test(`/diagnostics/histograms: gradients of the loss through derivatives by the points: ${name}`, { timeout: 120000 }, async () => {
        const job = make(merge({ diagnostics: { histograms: { at: [0.34, 1] } } }, more)), got = await rig.run(job);
        for (const step of [1, 3]) {
            const want = tails({ histograms: { tensors: job.diagnostics.histograms.tensors ?? [] } }, got.checkpoints.get(step).tensors, settingsOf(job));
            same(got, want, step, 1e-9);
            if (step < 3 && job.train.optimizer.name !== 'lbfgs') // what the step that begins there reports
                assert.ok(Math.abs(got.series.get('loss/train').get(step + 1) / want.loss - 1) < 1e-9);
            assert.deepEqual([...got.blobs.keys()].filter(key => key.startsWith('grad/') && key.endsWith(`@${step}`)).sort(), [...want.blobs.keys()].map(key => `${key}@${step}`).sort());
        }
    });

/** The matrices of an evaluation are those of the weights in its checkpoint. */
function isSolution(job, { blobs, checkpoints }, step) {
    const [times, places] = job.data.pde.test_grid, net = new Pinnsformer(checkpoints.get(step).tensors, settingsOf(job));
    const [u, exact, error] = ['u', 'exact', 'error'].map(what => blobs.get(`pde/${what}@${step}`));
    assert.deepEqual(u.meta, { shape: [times, places], dtype: 'f32', rows: { name: 't', low: 0, high: 1 }, columns: { name: 'x', low: 0, high: 1 } });
    for (let a = 0; a < times; a++)
        for (let b = 0; b < places; b++) {
            const at = a * places + b, want = net.exact(b / (places - 1), a / (times - 1)), got = net.u(...net.sequence([times, places], a, b))[0];
            for (const [one, value] of [[u, got], [exact, want], [error, Math.abs(got - want)]])
                assert.ok(Math.abs(one.data[at] - value) < 2e-6, `step ${step}, time ${a}, place ${b}: ${one.data[at]}, reference ${value}`);
        }
}

const stepsOf = ({ blobs }) => [...blobs.keys()].filter(key => key.startsWith('pde/u@')).map(key => Number(key.slice(6)));

test('an evaluation leaves the solution, the exact one and the error as matrices', async () => {
    const job = waveJob({ train: { steps: 60, eval_every: 2 } }), got = await rig.run(job), steps = stepsOf(got);
    assert.deepEqual(steps, Array.from({ length: 15 }, (_, i) => 4 * (i + 1))); // of 30 evaluations at most 24, evenly
    for (const step of [steps[0], steps.at(-1)])
        isSolution(job, got, step);
});

test('/evaluate/split: the grid of training is scored as such, and solutions on two pairs of grids have an average', { timeout: 120000 }, async () => {
    const job = equationJob(), own = await rig.run(job), other = await rig.run(equationJob({ data: { pde: { grid: [5, 4], test_grid: [7, 3] } } }));
    const found = {};
    for (const [split, test_grid, asked] of [['val', job.data.pde.test_grid, {}], ['train', job.data.pde.grid, { split: 'train' }]]) { // val is the default
        const { run: id } = await rig.daemon.submit({ kind: 'evaluate', run: own.run.id, checkpoint: 2, ...asked, resources: { device: 'cpu' } });
        await rig.daemon.reach(id, 'succeeded');
        for (const [key, want] of Object.entries(new Pinnsformer(own.checkpoints.get(2).tensors, { ...settingsOf(job), test_grid }).errors())) {
            const { series } = await rig.daemon.get(`/api/v1/runs/${id}/series?key=${key}/${split}`), got = series[0].data[0].mean;
            assert.ok(close(got, want), `${key}/${split}: ${got}, reference ${want}`);
            found[key] = { ...found[key], [split]: want };
        }
    }
    assert.ok(Object.values(found).length > 0 && Object.values(found).every(({ val, train }) => !close(val, train)), 'the grids give the same errors');
    const { step } = await rig.daemon.post('/api/v1/models/between/versions', { average: [own, other].map(({ run }) => ({ run: run.id, checkpoint: 3 })) });
    assert.equal(step, 3);
});

test('an early end leaves them for its last evaluation, of the weights even if averages decide', async () => {
    for (const more of [{}, { ema: 0.5, stop: { metric: 'loss/val_ema' } }]) {
        const job = waveJob({ train: merge({ steps: 60, eval_every: 2, stop: { patience: 2, min_change: 1e9 } }, more) }), got = await rig.run(job);
        assert.deepEqual(stepsOf(got), [4, 6]);
        isSolution(job, got, 6);
    }
});

const infer = (name, body) => rig.daemon.post(`/v2/models/${name}/infer`, body);
const points = list => ({ inputs: [{ name: 'points', datatype: 'FP32', shape: [list.length, 2], data: list.flat() }] });

test('a solution is served: u at points, a warning outside the domain, weights out and in', { timeout: 120000 }, async () => {
    const job = equationJob({ register: 'waves', data: { dataset: 'pde_convection', pde: { coefficient: 3 } }, train: { precision: 'fp32', steps: 6, optimizer: { name: 'lbfgs', lr: 1 } } });
    const { run, checkpoints, series } = await rig.run(job);
    await until('the version', () => rig.daemon.get('/api/v1/models/waves/versions/1'));
    await rig.daemon.post('/api/v1/models/waves/versions/1/load');
    const { inputs, outputs, parameters } = await rig.daemon.get('/v2/models/waves');
    assert.deepEqual([inputs, outputs], [[{ name: 'points', datatype: 'FP32', shape: [-1, 2] }], [{ name: 'u', datatype: 'FP32', shape: [-1] }]]);
    assert.deepEqual([parameters.kind, parameters.equation, parameters.coefficient, parameters.domain], ['field', 'convection', 3, { x: [0, 6.2831855], t: [0, 1] }]);

    // By the formulas, for the weights that validation selected.
    const [best] = [...series.get('rmae/val')].reduce((a, b) => (b[1] < a[1] ? b : a));
    const net = new Pinnsformer(checkpoints.get(best).tensors, settingsOf(job)), { step } = job.data.pde;
    const list = Array.from({ length: 600 }, (_, i) => [2 * Math.PI * (i % 25) / 25, Math.floor(i / 25) / 24]);
    const all = await infer('waves', points(list)), u = all.outputs[0].data;
    assert.equal(all.parameters, undefined);
    assert.deepEqual([all.outputs.length, all.outputs[0].name, all.outputs[0].shape], [1, 'u', [600]]);
    for (const i of [0, 1, 24, 255, 256, 511, 599]) {
        const [x, t] = list[i].map(Math.fround), want = net.u(Array.from({ length: job.model.context }, () => x), Array.from({ length: job.model.context }, (_, k) => t + k * step))[0];
        assert.ok(Math.abs(u[i] - want) < 2e-5, `point ${i}: ${u[i]}, reference ${want}`);
    }
    // A point gets the same bits alone, with others, and in a slice of many.
    for (const chosen of [[0], [599], [254, 255, 256, 257], [7, 300, 599]])
        assert.deepEqual((await infer('waves', points(chosen.map(i => list[i])))).outputs[0].data, chosen.map(i => u[i]));

    const outside = await infer('waves', points([[1, 0.5], [2 * Math.PI, 1], [6.3, 0.5], [1, 1.01], [-0.01, 0]]));
    assert.deepEqual([outside.outputs[0].shape, outside.parameters.outside], [[5], 3]);
    assert.match(outside.parameters.warning, /^3 of 5 points lie outside the domain.* 0 <= x <= 6.28319 and 0 <= t <= 1;.*The first is point 2$/);
    for (const [body, message] of [[{ inputs: [{ ...points([[1, 1]]).inputs[0], shape: [2] }] }, /shape \[n,2\]/], [{ inputs: [{ ...points([[1, 1]]).inputs[0], name: 'image' }] }, /one input, 'points'/],
        [{ inputs: [{ ...points([[1, 1]]).inputs[0], datatype: 'INT32' }] }, /FP32, not INT32/], [{ ...points([[1, 1]]), outputs: [{ name: 'logits' }] }, /there is u/]])
        await assert.rejects(infer('waves', body), message);

    // Weights: under the names of the reference implementation, and back again by a description alone.
    const file = Buffer.from(await (await fetch(`${rig.daemon.url}/api/v1/models/waves/versions/1/weights`)).arrayBuffer());
    const branch = at => ['act1.w1', 'act1.w2', 'act2.w1', 'act2.w2', 'attn.in_proj_weight', 'attn.in_proj_bias', 'attn.out_proj.weight', 'attn.out_proj.bias', ...three('ff.linear')].map(name => `${at}.layers.0.${name}`);
    const three = at => [0, 2, 4].flatMap(i => [`${at}.${i}.weight`, `${at}.${i}.bias`]).concat([1, 3].flatMap(i => [`${at}.${i}.w1`, `${at}.${i}.w2`]));
    const stacks = ['encoder', 'decoder'].flatMap(at => [...branch(at), `${at}.act.w1`, `${at}.act.w2`]);
    const { tensors } = parse(file);
    assert.deepEqual([...tensors.keys()].sort(), ['linear_emb.weight', 'linear_emb.bias', ...stacks, ...three('linear_out')].sort());
    const description = { model: job.model, attention: job.attention, data: job.data };
    for (const [model, ...what] of [['again', file], ['bare', write(tensors), description]]) { // the second says nothing of itself
        await upload(model, ...what);
        await rig.daemon.post(`/api/v1/models/${model}/versions/1/load`);
        const answer = await infer(model, points(list));
        assert.deepEqual(answer.outputs[0].data, u, model);
    }
    assert.equal((await rig.daemon.get('/v2/models/bare')).parameters.coefficient, 3);
    await assert.rejects(upload('wrong', write(tensors), { ...description, data: { dataset: 'digits_gen' } }), /is not an equation/);
    assert.equal(run.outcome, 'succeeded');
});

test('a solution in double is served in f32', async () => {
    const job = equationJob({ register: 'double', train: { steps: 2, optimizer: { lr: 0.02 } } }), { checkpoints, series } = await rig.run(job);
    await until('the version', () => rig.daemon.get('/api/v1/models/double/versions/1'));
    await rig.daemon.post('/api/v1/models/double/versions/1/load');
    const [best] = [...series.get('rmae/val')].reduce((a, b) => (b[1] < a[1] ? b : a)), { tensors } = checkpoints.get(best), net = new Pinnsformer(tensors, settingsOf(job));
    assert.ok([...tensors.values()].some(({ data }) => data.some(v => Math.fround(v) !== v)), 'f32 holds the weights exactly');
    const list = [[0, 0], [1, 0.25], [3.5, 0.5], [6, 1]], u = (await infer('double', points(list))).outputs[0].data;
    list.forEach(([x, t], i) => {
        const want = net.u(Array.from({ length: job.model.context }, () => Math.fround(x)), Array.from({ length: job.model.context }, (_, k) => Math.fround(t) + k * job.data.pde.step))[0];
        assert.ok(Math.abs(u[i] - want) < 2e-5 && u[i] !== want, `point ${i}: ${u[i]}, reference ${want}`);
    });
});

async function upload(model, bytes, description) {
    const query = description ? `?${new URLSearchParams({ description: JSON.stringify(description) })}` : '';
    const reply = await fetch(`${rig.daemon.url}/api/v1/models/${model}/versions${query}`, { method: 'POST', headers: { 'Content-Type': 'application/octet-stream' }, body: bytes });
    if (!reply.ok)
        throw new Error(await reply.text());
}

test('a run that is killed at outer steps of L-BFGS goes on to the same bits', { timeout: 120000 }, async () => {
    const job = equationJob({ data: { dataset: 'pde_convection', pde: { grid: 9, coefficient: 3 } },
        train: { precision: 'fp32', steps: 24, eval_every: 5, optimizer: { name: 'lbfgs', lr: 1 } } });
    const plain = await rig.run(job), { run: id } = await rig.daemon.submit(job);
    for (const at of [3, 11]) {
        await until(`step ${at}`, async () => {
            const run = await rig.daemon.get(`/api/v1/runs/${id}`);
            assert.notEqual(run.state, 'ended', 'the run was over before it was killed');
            return run.step >= at;
        }, { every: 5 });
        rig.kill();
    }
    const killed = await rig.collect(id);
    assert.equal(killed.run.attempts, 3);
    for (const step of [12, 24]) {
        const [a, b] = [plain, killed].map(({ checkpoints }) => checkpoints.get(step).tensors);
        assert.deepEqual([...a.keys()], [...b.keys()]);
        assert.ok(a.has('optim.lbfgs.s') && a.has('optim.lbfgs.numbers'));
        for (const [name, { data }] of a)
            assert.deepEqual(b.get(name).data, data, `step ${step}: ${name}`);
    }
    for (const key of ['loss/train', 'rmae/val'])
        assert.deepEqual([...killed.series.get(key)], [...plain.series.get(key)]);
});
