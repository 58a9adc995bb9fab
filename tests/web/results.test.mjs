// What the page makes of the API's answers, before anything is drawn: each number ends where its name says.
import assert from 'node:assert/strict';
import { afterEach, test } from 'node:test';

import { getCurves, listRuns, listSeries } from '../../web/js/api.js';
import { compareRuns, readAnalysis, readSweep, readSweepCurves } from '../../web/js/results.js';

const { signal } = new AbortController();
const real = globalThis.fetch;
afterEach(() => { globalThis.fetch = real; });

/** Answers of the API in turn; returns the paths that were asked for. */
function answers(...bodies) {
    const asked = [];
    globalThis.fetch = async path => {
        asked.push(String(path));
        return new Response(JSON.stringify(bodies.shift()));
    };
    return asked;
}

test('test_results_a_bucket_keeps_least_mean_and_greatest_and_stands_in_the_middle_of_its_time', async () => {
    const asked = answers({ series: [{ key: 'loss/train', points: 7, data: [
        { first_step: 3, last_step: 9, first_time: '2026-01-01T00:00:10.000Z', last_time: '2026-01-01T00:00:16.000Z', min: 0.25, max: 'Infinity', mean: 1.5, count: 7, nonfinite: 2 }] }] });
    const [curve] = await getCurves('12', ['loss/train'], { buckets: 50, from: 3, to: 9 }, signal);
    assert.equal(asked[0], '/api/v1/runs/12/series?key=loss%2Ftrain&buckets=50&from_step=3&to_step=9');
    assert.deepEqual(curve, { key: 'loss/train', points: 7, buckets: [
        { first: 3, last: 9, time: Date.parse('2026-01-01T00:00:13.000Z') / 1000, min: 0.25, max: Infinity, mean: 1.5, count: 7, nonfinite: 2 }] });
});

test('test_results_latest_values_of_runs_and_series_are_the_latest', async () => {
    answers({ runs: [{ id: '5', step: 400, threads: 2, slots: 1, device: 'cpu', latest: { 'loss/val': 0.75, 'acc/val': 'NaN' } }], next: null },
        { series: [{ key: 'loss/val', count: 20, step: 400, value: 0.75, min: 0.5, max: 2 }] });
    const { runs } = await listRuns({ metrics: ['loss/val', 'acc/val'] }, signal);
    assert.equal(runs[0].latest['loss/val'], 0.75);
    assert.ok(Number.isNaN(runs[0].latest['acc/val']));
    assert.equal(runs[0].step, 400);
    assert.deepEqual(await listSeries('5', signal), [{ key: 'loss/val', count: 20, step: 400, value: 0.75 }]);
});

test('test_results_a_sweep_keeps_mean_deviation_and_extremes_of_each_combination_apart', async () => {
    const stat = (n, mean, sd, min, max) => ({ n, missing: 0, mean, sd, min, max });
    const row = (point, at) => ({ point, values: { '/attention/k': 2 ** point }, runs: { total: 3 }, metrics: { 'acc/val': at },
        ...(point === 0 && { versus_best: { 'acc/val': { difference: -0.25, low: '-Infinity', high: 0.5, separable: false } } }),
        trials: [{ run_id: String(10 + point), trial: 0, seed: 40 + point, state: 'ended', outcome: 'succeeded', metrics: { 'acc/val': 'NaN' } }] });
    const page = (table, next) => ({ metric: 'acc/val', mode: 'max', points: 2, best: { point: 1, values: {}, value: stat(3, 0.75, 0.0625, 0.5, 0.875) },
        best_run: { run_id: '11', point: 1, value: 0.875 }, table, next });
    const asked = answers(page([row(0, stat(2, 0.5, 0.125, 0.25, 0.625))], 'more'), page([row(1, stat(3, 0.75, 0.0625, 0.5, 0.875))], null));
    const sweep = await readSweep('3', { metrics: ['acc/val'], value: 'last', open: false }, signal);
    assert.equal(asked.length, 2);
    assert.match(asked[1], /cursor=more/);
    assert.deepEqual(sweep.table.map(r => r.metrics['acc/val']), [stat(2, 0.5, 0.125, 0.25, 0.625), stat(3, 0.75, 0.0625, 0.5, 0.875)]);
    assert.deepEqual(sweep.table.map(r => [r.point, r.trials[0].run_id, r.trials[0].seed]), [[0, '10', 40], [1, '11', 41]]);
    assert.deepEqual(sweep.table.map(r => r.versus_best?.['acc/val']), [{ difference: -0.25, low: -Infinity, high: 0.5, separable: false }, undefined]);
    assert.ok(Number.isNaN(sweep.table[0].trials[0].metrics['acc/val']));
    assert.deepEqual(sweep.best.value, stat(3, 0.75, 0.0625, 0.5, 0.875));
    assert.deepEqual([sweep.best.point, sweep.best_run.run_id, sweep.best_run.value], [1, '11', 0.875]);
});

test('test_results_curves_of_a_sweep_have_mean_and_deviation_at_their_place', async () => {
    const asked = answers({ curves: [{ point: 4, values: { '/train/seed': 1 }, data: [{ x: 12.5, n: 3, mean: 0.5, sd: 0.25, min: 0, max: 1 }, { x: 20, n: 1, mean: 0.375, sd: null, min: 0, max: 1 }] }] });
    const [curve] = await readSweepCurves('3', { key: 'acc/val', x: 'epoch', points: [4], buckets: 10, open: true }, signal);
    assert.equal(asked[0], '/api/v1/jobs/3/sweep/curves?key=acc%2Fval&x=epoch&buckets=10&open=1&point=4');
    assert.deepEqual(curve, { point: 4, values: { '/train/seed': 1 }, data: [{ x: 12.5, n: 3, mean: 0.5, sd: 0.25 }, { x: 20, n: 1, mean: 0.375, sd: null }] });
});

test('test_results_an_analysis_keeps_the_ends_of_intervals_and_ranges_apart', async () => {
    const point = { x: 10, point: 3, combinations: 1, runs: { total: 3 }, value: { n: 2, missing: 1, mean: 'Infinity', sd: null, min: 0.5, max: 'Infinity' }, usable: false, why: 'nonfinite' };
    const panel = { values: {}, tokens: 49, points: [point], best: { x: 10, point: 3, mean: 0.75, at_end: true, low: 1, high: 100, share: 0.5, why: null }, best_why: null, usable: { from: 2, to: 20, decades: 1, limit: '-Infinity', from_end: true, to_end: false }, usable_why: null };
    const asked = answers({ axis: '/attention/k', panels: [panel, { ...panel, best: null, usable: null }], slopes: [{ values: {}, panels: [0], n: 1, a: null, b: 0.5, why: null, low: 0.25, high: 0.75, interval_why: null, resampled: 1 }] });
    const got = await readAnalysis('3', { metric: 'acc/val', axis: '/attention/k', open: true }, signal);
    assert.equal(asked[0], '/api/v1/jobs/3/sweep/analysis?metric=acc%2Fval&axis=%2Fattention%2Fk&open=1');
    assert.deepEqual(got.panels[0].points[0].value, { n: 2, missing: 1, mean: Infinity, sd: null, min: 0.5, max: Infinity });
    assert.deepEqual([got.panels[0].best, got.panels[0].usable], [panel.best, { ...panel.usable, limit: -Infinity }]);
    assert.deepEqual([got.panels[1].best, got.panels[1].usable], [null, null]);
    assert.deepEqual([got.slopes[0].a, got.slopes[0].b, got.slopes[0].low, got.slopes[0].high], [null, 0.5, 0.25, 0.75]);
});

test('test_results_a_comparison_keeps_last_least_and_greatest_apart', async () => {
    const run = id => ({ id, device: 'cpu', threads: 1, slots: 1 });
    const asked = answers({ runs: [run('1'), run('2')], fields: [], differing: 2, same: 90,
        metrics: [{ key: 'loss/val', runs: [{ last: 0.5, min: 0.25, max: 'Infinity', step: 300, count: 9 }, null] }] });
    const comparison = await compareRuns(['1', '2'], { all: true, metrics: ['loss/val'] }, signal);
    assert.equal(asked[0], '/api/v1/compare?run=1&run=2&all=1&metric=loss%2Fval');
    assert.deepEqual(comparison.metrics, [{ key: 'loss/val', runs: [{ last: 0.5, min: 0.25, max: Infinity, step: 300 }, null] }]);
    assert.deepEqual([comparison.differing, comparison.same], [2, 90]);
});
