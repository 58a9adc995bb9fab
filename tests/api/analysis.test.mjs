// The analysis of a sweep against what the same values give by independent code (analysis.mjs), and cases whose answer is known.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { RESAMPLES, SEED, TOKENS, jobOf, line, made, panelOf, percentile, philox, pointsOf, scaleSweep, slopeOf } from './analysis.mjs';
import { Host, submit } from './lib.mjs';
import { statistic } from './numbers.mjs';

let host;
before(async () => { host = await Host.start(); });
after(() => host.stop());

const near = (got, want, what) => want === null ? assert.equal(got, null, what)
    : assert.ok(typeof got === 'number' && Math.abs(got - want) <= 1e-9 * Math.max(1, Math.abs(want)), `${what}: ${got}, expected ${want}`);
const analyse = async (job, query = '') => {
    const reply = await host.get(`/api/v1/jobs/${job.id}/sweep/analysis${query}`);
    assert.equal(reply.status, 200, reply.text);
    return reply.json;
};

/** Everything that the answer says of a panel, against the reference. */
function same(got, points, mode, what) {
    const want = panelOf(points, mode);
    assert.deepEqual(got.points.map(p => [p.x, p.point]), points.map(p => [p.x, p.point]), what);
    got.points.forEach((p, i) => {
        for (const [key, value] of Object.entries(statistic(points[i].values)))
            if (key !== 'missing')
                near(p.value[key], value, `${what}, x ${p.x}, ${key}`);
        assert.equal(p.usable, want.fine[i] ?? false, `${what}, x ${p.x}`);
        assert.equal(p.usable, p.why === null);
        if (points[i].fault)
            assert.equal(p.why, points[i].fault);
    });
    if (want.best === null) {
        assert.deepEqual([got.best, got.usable], [null, null], what);
        return want;
    }
    assert.deepEqual([got.best.x, got.best.point, got.best.at_end], [want.best.x, want.best.point, [points[0], points.at(-1)].includes(want.best)], what);
    for (const key of ['low', 'high', 'share'])
        near(got.best[key], want[key], `${what}, ${key} of the best`);
    assert.equal(got.best.why === null, want.picks !== null, what);
    if (want.usable === null) {
        assert.equal(got.usable, null, what);
        return want;
    }
    assert.deepEqual([got.usable.from, got.usable.to, got.usable.from_end, got.usable.to_end],
        [want.usable.from, want.usable.to, want.usable.from === points[0].x, want.usable.to === points.at(-1).x], what);
    near(got.usable.limit, want.limit, `${what}, limit`);
    near(got.usable.decades, want.usable.from > 0 ? Math.log10(want.usable.to / want.usable.from) : null, `${what}, decades`);
    return want;
}

test('the reference: Philox by its published vectors, percentiles and least squares by hand', () => {
    const hex = words => words.map(w => w.toString(16).padStart(8, '0')).join(' ');
    assert.equal(hex(philox([0, 0], [0, 0, 0, 0])), '6627e8d5 e169c58d bc57ac4c 9b00dbd8'); // kat_vectors of Random123
    assert.equal(hex(philox([0xffffffff, 0xffffffff], Array(4).fill(0xffffffff))), '408f276d 41c83b0e a20bc7c6 6d5451fd');
    assert.equal(hex(philox([0xa4093822, 0x299f31d0], [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344])), 'd16cfe09 94fdcceb 5001e420 24126ea1');
    assert.equal(percentile([4, 1, 3, 2], 0.5), 2.5);
    const { a, b } = line([[0, 1], [1, 3], [2, 5], [3, 7]]);
    near(a, 1, 'a');
    near(b, 2, 'b');
});

test('a scale sweep: panels by N with the best k, its interval, the usable range, and the slope of log k against log N', async () => {
    const { job, runs } = await scaleSweep(host), got = await analyse(job);
    assert.deepEqual([got.metric, got.mode, got.value, got.axis, got.log, got.by, got.left_out], ['acc/val', 'max', 'last', '/attention/k', true, ['/model/patch'], 0]);
    assert.deepEqual(got.bootstrap, { generator: 'philox4x32-10', seed: SEED, resamples: RESAMPLES, level: 0.95 });
    assert.deepEqual(got.axes, [{ pointer: '/model/patch', numeric: true }, { pointer: '/attention/k', numeric: true }]);
    assert.deepEqual(got.panels.map(p => [p.values, p.tokens]), Object.entries(TOKENS).map(([patch, n]) => [{ '/model/patch': Number(patch) }, n]));
    const panels = got.panels.map(panel => {
        const points = pointsOf(runs, '/attention/k', v => v['/model/patch'] === panel.values['/model/patch']);
        return { tokens: panel.tokens, panel: same(panel, points, 'max', `patch ${panel.values['/model/patch']}`) };
    });
    /* The case is worth something: the best of all means is at a point that diverged, one resample differs from another, and a range ends inside. */
    assert.equal(got.panels[0].points[0].why, 'diverged');
    assert.ok(got.panels[0].points[0].value.mean > got.panels[0].best.mean);
    assert.equal(got.panels[3].points.at(-1).why, 'failed');
    assert.ok(panels.some(({ panel }) => panel.low < panel.high && panel.share < 1));
    for (const { best } of got.panels) // no logarithm rounds an end that is a point
        assert.ok([best.low, best.high].every(end => got.panels[0].points.some(p => p.x === end)), `${best.low}, ${best.high}`);
    assert.ok(got.panels.some(p => p.usable && !p.usable.from_end && !p.usable.to_end));
    assert.equal(got.slopes.length, 1);
    const [slope] = got.slopes, want = slopeOf(panels);
    assert.deepEqual([slope.values, slope.panels, slope.n, slope.resampled, slope.why, slope.interval_why], [{}, [0, 1, 2, 3], 4, 4, null, null]);
    for (const key of ['a', 'b', 'low', 'high'])
        near(slope[key], want[key], key);
    assert.ok(slope.low < slope.b && slope.b < slope.high);
    assert.deepEqual(await analyse(job), got, 'the draws are the same each time');
});

test('the other axis, the other mode, all in one panel, and another metric', async () => {
    const { job, runs } = await jobOf(host, { sweep: { axes: [{ pointer: '/attention/k', values: [4, 1, 2] }, { pointer: '/train/label_smoothing', values: [0, 0.1] }], metric: 'loss/val', mode: 'min' }, attention: { activation: 'poly', scale: 'k' } },
        (point, trial) => [3, 2, 5, 1, 4, 6][point] + [0, 0.75, -0.5][trial]);
    const smooth = await analyse(job);
    assert.deepEqual([smooth.axis, smooth.log, smooth.by, smooth.mode], ['/train/label_smoothing', false, ['/attention/k'], 'min']);
    assert.deepEqual(smooth.panels.map(p => p.values['/attention/k']), [4, 1, 2]);
    smooth.panels.forEach((panel, i) => {
        same(panel, pointsOf(runs, '/train/label_smoothing', v => v['/attention/k'] === [4, 1, 2][i]), 'min', `panel ${i}`);
        assert.equal(panel.usable.decades === null, panel.usable.from === 0);
    });
    /* N is the same in all panels. */
    assert.deepEqual([smooth.panels.map(p => p.tokens), smooth.slopes, smooth.slopes_why], [[49, 49, 49], [], 'no two panels differ only in an axis that sets the number of tokens']);
    const k = await analyse(job, '?axis=/attention/k');
    assert.deepEqual(k.by, ['/train/label_smoothing']);
    assert.deepEqual(k.panels[1].points.map(p => p.x), [1, 2, 4]);
    k.panels.forEach((panel, i) => same(panel, pointsOf(runs, '/attention/k', v => v['/train/label_smoothing'] === [0, 0.1][i]), 'min', `panel ${i}`));
    const most = await analyse(job, '?axis=/attention/k&mode=max');
    most.panels.forEach((panel, i) => same(panel, pointsOf(runs, '/attention/k', v => v['/train/label_smoothing'] === [0, 0.1][i]), 'max', `most, panel ${i}`));
    /* Without by the two values of label smoothing are trials of one point. */
    const one = await analyse(job, '?axis=/attention/k&by=');
    assert.deepEqual([one.by, one.panels.length, one.panels[0].values], [[], 1, {}]);
    assert.deepEqual(one.panels[0].points.map(p => [p.x, p.combinations, p.runs.total]), [[1, 2, 6], [2, 2, 6], [4, 2, 6]]);
    same(one.panels[0], pointsOf(runs, '/attention/k'), 'min', 'all');
    const other = await analyse(job, '?metric=acc/val');
    assert.deepEqual([other.metric, other.mode, other.panels[0].best, other.panels[0].best_why], ['acc/val', 'max', null, 'no point without diverged runs has a value']);
    assert.equal((await analyse(job, '?metric=mine')).mode, 'min', 'as the job');
});

test('a grid of rates within objects: one panel for each model and optimiser, the rate as the axis', async () => {
    const rate = { msgdw: [0.03, 0.1, 0.3, 1] }, optimisers = [{ name: 'adamw', lr: 0.001 }, ...rate.msgdw.map(lr => ({ name: 'msgdw', lr }))];
    const reach = { S1: [0.95, 0.9, 0.7, 0.3, 0.1], S5: [0.95, 0.93, 0.955, 0.95, 0.6] };
    const { job, runs } = await jobOf(host, { norm: {}, sweep: { axes: [{ pointer: '/norm/placement', values: ['S1', 'S5'] }, { pointer: '/train/optimizer', values: optimisers }], metric: 'acc/val', mode: 'max' } },
        (point, trial, values) => values['/norm/placement'] === 'S1' && values['/train/optimizer'].lr === 1 ? { outcome: trial ? 'succeeded' : 'diverged', value: 0.1 }
            : reach[values['/norm/placement']][point % 5] + [0, 0.004, -0.004][trial]);
    const got = await analyse(job), flat = runs.map(run => ({ ...run, values: { ...run.values, lr: run.values['/train/optimizer'].lr, name: run.values['/train/optimizer'].name } }));
    assert.deepEqual([got.axis, got.by, got.left_out], ['/train/optimizer/lr', ['/norm/placement', '/train/optimizer/name'], 0]);
    assert.deepEqual(got.axes, [['/norm/placement', false], ['/train/optimizer/lr', true], ['/train/optimizer/name', false]].map(([pointer, numeric]) => ({ pointer, numeric })));
    assert.deepEqual(got.panels.map(p => Object.values(p.values)), [['S1', 'adamw'], ['S1', 'msgdw'], ['S5', 'adamw'], ['S5', 'msgdw']]);
    for (const panel of got.panels) {
        const [placement, name] = Object.values(panel.values);
        same(panel, pointsOf(flat, 'lr', v => v['/norm/placement'] === placement && v.name === name), 'max', `${placement} ${name}`);
    }
    /* By hand: S1 is best at 0.03 and nothing else is near; S5 is best at 0.1, 0.3 and 0.03 lie within a tenth of 0.955 - 0.6. */
    const [adamw, s1, , s5] = got.panels;
    assert.deepEqual([adamw.best.x, adamw.best.why, adamw.best.low], [0.001, 'there is one point: nothing to choose from', null]);
    assert.deepEqual([s1.best.x, s1.usable.from, s1.usable.to, s1.usable.decades], [0.03, 0.03, 0.03, 0]);
    assert.deepEqual([s5.best.x, s5.usable.from, s5.usable.to, s5.usable.from_end, s5.usable.to_end], [0.1, 0.03, 0.3, true, false]);
    near(s5.usable.decades, 1, 'decades');
    near(s5.usable.limit, 0.955 - 0.0355, 'limit');
    assert.deepEqual(got.slopes, []);
});

test('one slope for each set of panels that differ in N alone', async () => {
    const { job } = await jobOf(host, { trials: 2, model: { preset: 'vit_micro' }, attention: { activation: 'poly', scale: 'k' },
        sweep: { axes: [{ pointer: '/model/patch', values: [7, 14] }, { pointer: '/norm/placement', values: ['S1', 'S5'] }, { pointer: '/attention/k', values: [1, 2, 4] }], metric: 'acc/val', mode: 'max' } },
    (point, trial, v) => {
        const best = v['/norm/placement'] === 'S1' ? { 7: 4, 14: 2 } : { 7: 2, 14: 2 };
        return (v['/attention/k'] === best[v['/model/patch']] ? 0.9 : 0.5) + trial * 0.01;
    });
    const { slopes } = await analyse(job);
    assert.deepEqual(slopes.map(s => [s.values, s.panels, s.n]), [[{ '/norm/placement': 'S1' }, [0, 2], 2], [{ '/norm/placement': 'S5' }, [1, 3], 2]]);
    near(slopes[0].b, 0.5, 'k doubles where N grows from 4 to 16');
    near(slopes[0].a, 0, 'k = N ^ (1/2)');
    near(slopes[1].b, 0, 'k stays');
    for (const s of slopes)
        assert.ok(Math.abs(s.low - s.b) < 1e-9 && Math.abs(s.high - s.b) < 1e-9, 'every resample chooses the same k');
});

test('one trial has no interval and says why; so has the slope', async () => {
    const { job } = await jobOf(host, { trials: 1, attention: { activation: 'poly', scale: 'k' }, sweep: { axes: [{ pointer: '/model/patch', values: [7, 14] }, { pointer: '/attention/k', values: [1, 2, 4] }], metric: 'acc/val', mode: 'max' } },
        point => [0.1, 0.2, 0.9, 0.1, 0.9, 0.85][point]);
    const { panels, slopes } = await analyse(job), why = 'no point has more than one trial: nothing to resample';
    assert.deepEqual(panels.map(p => [p.best.x, p.best.low, p.best.high, p.best.share, p.best.why, p.best.at_end]), [[4, null, null, null, why, true], [2, null, null, null, why, false]]);
    assert.deepEqual([panels[1].usable.from, panels[1].usable.to], [2, 4], 'within a tenth of 0.8');
    near(slopes[0].b, 0.5, 'slope');
    assert.deepEqual([slopes[0].low, slopes[0].high, slopes[0].interval_why, slopes[0].resampled], [null, null, why, 0]);
});

test('diverged runs, values that are not finite, missing ones and open runs', async () => {
    const { job, runs } = await jobOf(host, { sweep: { axes: [{ pointer: '/train/optimizer/lr', values: [0.001, 0.01, 0.1, 1, 10] }], metric: 'loss/val', mode: 'min' } },
        (point, trial) => point === 0 ? { outcome: 'open', value: trial === 0 ? 0.5 : null } : point === 1 ? 2 + trial : point === 2 ? (trial === 0 ? 'NaN' : 0.125) : point === 3 ? { outcome: 'diverged', value: 0.25 } : null);
    const { panels: [got], slopes, slopes_why } = await analyse(job);
    assert.deepEqual(got.points.map(p => [p.why, p.value.n]), [['empty', 0], [null, 3], ['nonfinite', 2], ['diverged', 0], ['empty', 0]]);
    assert.deepEqual([got.best.x, got.best.low, got.best.why], [0.01, null, 'there is one point: nothing to choose from']);
    assert.deepEqual([got.usable.from, got.usable.to, slopes], [0.01, 0.01, []]);
    assert.ok(slopes_why);
    same(got, pointsOf(runs, '/train/optimizer/lr'), 'min', 'lr');
    const open = (await analyse(job, '?open=1')).panels[0];
    assert.deepEqual([open.best.x, open.points[0].value.n, open.points[0].runs.open], [0.001, 1, 3]);
    /* All of them diverged. */
    const lost = await jobOf(host, { sweep: { axes: [{ pointer: '/train/optimizer/lr', values: [1, 10] }], metric: 'loss/val', mode: 'min' } }, () => ({ outcome: 'diverged', value: 'Infinity' }));
    const [none] = (await analyse(lost.job)).panels;
    assert.deepEqual([none.best, none.best_why, none.usable, none.usable_why], [null, ...Array(3).fill().map((_, i) => i === 1 ? null : 'no point without diverged runs has a value')]);
});

test('equal means: the least x is the best, everything is usable', async () => {
    const { job } = await jobOf(host, { sweep: { axes: [{ pointer: '/train/optimizer/lr', values: [0.1, 0.01, 0.001] }], metric: 'acc/val', mode: 'max' } }, () => 0.5);
    const [got] = (await analyse(job)).panels;
    assert.deepEqual([got.best.x, got.best.share, got.usable.from, got.usable.to], [0.001, 1, 0.001, 0.1]);
    near(got.best.low, 0.001, 'low');
    near(got.best.high, 0.001, 'high');
    near(got.usable.decades, 2, 'decades');
});

test('a run of the best point that failed leaves the best, but no usable range', async () => {
    const { job } = await jobOf(host, { sweep: { axes: [{ pointer: '/train/optimizer/lr', values: [0.001, 0.01] }], metric: 'acc/val', mode: 'max' } },
        (point, trial) => point === 1 && trial === 2 ? { outcome: 'failed', value: 0.1 } : 0.5 + point / 4 + trial / 100);
    const [got] = (await analyse(job)).panels;
    assert.deepEqual([got.best.x, got.best.mean, got.usable, got.usable_why, got.points[1].why], [0.01, 0.755, null, 'a run of the best point failed', 'failed']);
});

test('values drawn at random are points of one panel, those of a list divide them', async () => {
    const { job, runs } = await jobOf(host, { trials: 1, sweep: { method: 'random', samples: 12, seed: 3, axes: [{ pointer: '/norm/placement', values: ['S1', 'S5'] }, { pointer: '/train/label_smoothing', uniform: [0, 0.2] }, { pointer: '/train/optimizer/lr', loguniform: [1e-4, 1e-1] }], metric: 'acc/val', mode: 'max' } },
        (point, trial, v) => 0.5 - Math.abs(Math.log10(v['/train/optimizer/lr']) + 2.5) / 10);
    const got = await analyse(job);
    assert.deepEqual([got.axis, got.by], ['/train/optimizer/lr', ['/norm/placement']]);
    assert.equal(got.panels.reduce((n, p) => n + p.points.length, 0), 12);
    for (const panel of got.panels)
        same(panel, pointsOf(runs, '/train/optimizer/lr', v => v['/norm/placement'] === panel.values['/norm/placement']), 'max', JSON.stringify(panel.values));
});

test('combinations without a number on the axis are left out and counted', async () => {
    const { job } = await jobOf(host, { trials: 1, sweep: { axes: [{ pointer: '/model/patch', values: [4, 7] },
        { pointer: '/attention', values: [{ activation: 'softmax' }, { activation: 'sigmoid', alpha: 0 }, { activation: 'sigmoid', alpha: 0.5 }, { activation: 'sigmoid', alpha: 1 }] }], metric: 'acc/val', mode: 'max' } },
    point => 0.5 + point / 100);
    const got = await analyse(job);
    assert.deepEqual([got.axis, got.log, got.left_out, got.panels.map(p => p.points.length)], ['/attention/alpha', false, 2, [3, 3]]);
    assert.deepEqual([got.slopes[0].b, got.slopes[0].why], [null, 'the axis has values that are not positive']);
    /* The axis itself sets N. */
    const patch = await analyse(job, '?axis=/model/patch&by=/attention/alpha');
    assert.deepEqual([patch.panels.length, ...new Set(patch.panels.map(p => p.tokens))], [4, null]);
});

test('a member of swept objects that never varies on its own makes no analysis', async () => {
    const formulas = (...list) => jobOf(host, { trials: 1, attention: { formulas: list }, sweep: { metric: 'acc/val', mode: 'max' } }, point => 0.5 + point / 100);
    const a = init => ({ formula: 'a*s', params: { a: { init } } });
    for (const list of [['s^3', a(2)], [a(2), { ...a(3), formula: 'a*s^3' }]]) {
        const { job } = await formulas(...list), reply = await host.get(`/api/v1/jobs/${job.id}/sweep/analysis`);
        assert.equal(reply.status, 422, reply.text);
        assert.match(reply.json.detail, /^axis: no swept field of numbers varies on its own: .*\/attention\/params\/a\/init/);
    }
    const { job } = await formulas(a(2), a(3), 's^3'), got = await analyse(job);
    assert.equal(got.axis, '/attention/params/a/init');
    assert.deepEqual(got.panels.map(p => p.points.map(one => one.x)), [[2, 3]]);
    const mixed = await jobOf(host, { trials: 1, attention: { formulas: ['s^3', a(2)] }, sweep: { axes: [{ pointer: '/train/optimizer/lr', values: [0.1, 0.2] }], metric: 'acc/val', mode: 'max' } }, () => 0.5);
    assert.equal((await analyse(mixed.job)).axis, '/train/optimizer/lr');
});

test('questions that do not fit the sweep are refused by the name of their field', async () => {
    const { job } = await jobOf(host, { trials: 1, sweep: { axes: [{ pointer: '/norm/placement', values: ['S1', 'S5'] }, { pointer: '/train/optimizer/lr', values: [0.1, 0.2] }], metric: 'acc/val', mode: 'max' } }, () => 0.5);
    const words = await jobOf(host, { trials: 1, sweep: { axes: [{ pointer: '/norm/placement', values: ['S1', 'S5'] }], metric: 'acc/val', mode: 'max' } }, () => 0.5);
    const plain = await submit(host);
    const refused = async (id, query, status, detail, field) => {
        const reply = await host.get(`/api/v1/jobs/${id}/sweep/analysis?${query}`);
        assert.deepEqual([reply.status, reply.json.detail], [status, detail], query);
        if (field)
            assert.match(reply.text, new RegExp(`"pointer":"[^"]*${field}"`), query);
    };
    await refused(job.id, 'axis=/attention/k', 422, 'axis: /attention/k is not swept; swept fields: /norm/placement, /train/optimizer/lr', 'axis');
    await refused(job.id, 'axis=/norm/placement', 422, 'axis: the values of /norm/placement are not all numbers', 'axis');
    await refused(job.id, 'by=/model/patch', 422, 'by: /model/patch is not swept; swept fields: /norm/placement, /train/optimizer/lr', 'by');
    await refused(job.id, 'by=/train/optimizer/lr', 422, 'by: /train/optimizer/lr is the axis already', 'by');
    await refused(words.job.id, '', 422, 'axis: no swept field has only numbers: /norm/placement', 'axis');
    await refused(plain.id, '', 422, 'axis: the job has no sweep', 'axis');
    await refused(plain.id, 'axis=/attention/k', 422, 'axis: /attention/k is not swept: the job has no sweep', 'axis');
    await refused(job.id, 'metric=a&metric=b', 400, 'metric: the analysis is of one', 'metric');
    await refused(job.id, 'axis=', 400, 'axis must be the pointer of a swept field', 'axis');
    await refused(job.id, 'mode=best', 400, 'mode must be min or max', 'mode');
    await refused(job.id, Array(33).fill('by=/norm/placement').join('&'), 400, 'by: at most 32 pointers of swept fields', 'by');
    await refused(4711, '', 404, 'there is no job 4711');
    for (const query of ['value=mean', 'open=maybe', 'metric=', 'runs=1', `axis=/${'a'.repeat(300)}`, `by=/${'a'.repeat(300)}`])
        assert.equal((await host.get(`/api/v1/jobs/${job.id}/sweep/analysis?${query}`)).status, 400, query);
});

test('more panels than one answer takes are refused, and a sweep of many points is analysed in bounded time', async () => {
    const job = await submit(host, { trials: 4, sweep: { axes: [{ pointer: '/train/label_smoothing', linear: [0, 0.5, 300] }, { pointer: '/train/optimizer/lr', values: [0.1, 0.2] }], metric: 'acc/val', mode: 'max' } });
    await made(host, job.id);
    const many = await host.get(`/api/v1/jobs/${job.id}/sweep/analysis`);
    assert.deepEqual([many.status, many.json.detail], [422, 'by: there are more than 256 panels; name fewer fields by which to divide']);
    const { panels } = await analyse(job, '?axis=/train/label_smoothing');
    assert.deepEqual(panels.map(p => [p.points.length, p.best]), [[300, null], [300, null]]);
});
