// Every number that is made of several: a sweep's table, its curves on each axis, a comparison, an aggregation and all
// their CSVs are computed here again from the points that were sent, by formulas that share nothing with the server.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Host } from './lib.mjs';
import { METRICS, buckets, chance, counted, curve, finite, greatest, least, mean, pick, statistic, student, sweepOf, welch, word } from './numbers.mjs';

const ROUNDED = 1.5e-3; // seconds: the API tells when a run began in milliseconds
let host;
let job;
/** @type {Awaited<ReturnType<typeof sweepOf>>['runs']} */
let runs;

before(async () => {
    host = await Host.start();
    ({ job, runs } = await sweepOf(host));
});
after(() => host.stop());

function near(got, want, what) {
    if (want === null || typeof want === 'string')
        assert.equal(got, want, what);
    else
        assert.ok(typeof got === 'number' && Math.abs(got - want) <= 1e-9 * Math.max(1, Math.abs(want)), `${what}: ${got}, expected ${want}`);
}
const nearStatistic = (got, want, what) => Object.keys(want).forEach(key => near(got[key], want[key], `${what}, ${key}`));

const csv = text => text.trim().split('\n').map(line => line.split(','));
const records = text => {
    const [head, ...rows] = csv(text);
    return rows.map(row => Object.fromEntries(head.map((key, i) => [key, row[i]])));
};
const cell = text => text === '' ? null : Number(text);

/* ---- and compared ---- */

for (const value of ['last', 'min', 'max'])
    for (const open of [false, true])
        test(`sweep: mean, deviation and extremes over the trials, ${value} values${open ? ', unfinished runs too' : ''}`, async () => {
            const query = `metric=acc/val&metric=loss/val&value=${value}${open ? '&open=1' : ''}`;
            const { table } = (await host.get(`/api/v1/jobs/${job.id}/sweep?${query}&runs=1`)).json;
            const exported = records((await host.get(`/api/v1/jobs/${job.id}/sweep/export?${query}`)).text);
            const each = records((await host.get(`/api/v1/jobs/${job.id}/sweep/export?what=runs&${query}`)).text);
            assert.equal(table.length, 4);
            assert.equal(each.length, 16);
            for (const row of table) {
                const own = runs.filter(run => run.point === row.point), line = exported[row.point];
                assert.deepEqual(row.values, { '/attention/k': 2 ** row.point });
                assert.equal(Number(line['/attention/k']), 2 ** row.point);
                for (const key of METRICS) {
                    const want = statistic(counted(own, open).map(run => pick[value](run.series.get(key))));
                    nearStatistic(row.metrics[key], want, `combination ${row.point}, ${key}`);
                    for (const what of ['mean', 'sd', 'n', 'min', 'max'])
                        near(cell(line[`${key} ${what}`]), want[what], `CSV of combination ${row.point}, ${key} ${what}`);
                    row.trials.forEach((trial, i) => {
                        near(trial.metrics[key], word(pick[value](own[i].series.get(key))), `trial ${i}, ${key}`);
                        assert.equal(each[4 * row.point + i][key], String(word(pick[value](own[i].series.get(key)))).replace(/e([+-])(\d)$/, 'e$10$2'));
                    });
                }
                assert.deepEqual(row.trials.map(t => [t.run_id, t.trial, t.seed]), own.map(run => [run.id, run.trial, 70 + run.trial]));
                const runsOf = outcome => own.filter(run => run.outcome === outcome).length;
                assert.deepEqual(row.runs, { total: 4, open: runsOf('open'), succeeded: runsOf('succeeded'), diverged: runsOf('diverged'), failed: runsOf('failed'), cancelled: 0, lost: 0 });
                for (const what of ['total', 'open', 'succeeded', 'diverged', 'failed', 'cancelled'])
                    assert.equal(Number(line[what === 'total' ? 'runs' : what]), row.runs[what]);
            }
        });

test('sweep: the best combination is that of the best mean, the best run that which reached the best value, by the metric of the job', async () => {
    const last = run => pick.last(run.series.get('loss/val'));
    const means = [0, 1, 2, 3].map(point => mean(counted(runs).filter(run => run.point === point).map(last)));
    const reached = run => pick.min(run.series.get('loss/val'));
    const best = counted(runs).reduce((a, b) => reached(b) < reached(a) ? b : a);
    assert.notEqual(counted(runs).reduce((a, b) => last(b) < last(a) ? b : a).id, best.id, 'the case is to tell the last value from the best');
    assert.notEqual(means.indexOf(Math.min(...means)), best.point, 'the case is to tell the two apart');
    for (const query of ['', '?metric=acc/val', '?metric=loss/val']) {
        const got = (await host.get(`/api/v1/jobs/${job.id}/sweep${query}`)).json;
        assert.equal(got.best.point, means.indexOf(Math.min(...means)), query);
        near(got.best.value.mean, Math.min(...means), 'its mean');
        assert.deepEqual([got.best_run.run_id, got.best_run.point], [best.id, best.point]);
        near(got.best_run.value, reached(best), 'its value');
        assert.deepEqual([got.metric, got.mode], ['loss/val', 'min']);
    }
});

test('the reference: quantiles of t are those of printed tables, and Welch’s interval ends where chance is one in twenty', () => {
    for (const [df, t] of [[1, 12.706], [2, 4.303], [3, 3.182], [5, 2.571], [10, 2.228], [30, 2.042], [60, 2], [120, 1.98]]) // Fisher and Yates, table III
        assert.ok(Math.abs(student(df) - t) < 6e-4, `${df}: ${student(df)}`);
    const [a, b] = [[3, 4, 5.5], [1, 9, 2, 7, 5, 11, 3]];
    for (const end of welch(a, b))
        assert.ok(Math.abs(chance(a.map(x => x - end), b) - 0.05) < 1e-4, `${chance(a.map(x => x - end), b)}`);
});

for (const open of [false, true])
    test(`sweep: the difference of each row from the best combination, with Welch’s interval${open ? ', unfinished runs too' : ''}`, async () => {
        const { best, table } = (await host.get(`/api/v1/jobs/${job.id}/sweep?metric=acc/val&metric=loss/val${open ? '&open=1' : ''}`)).json;
        const values = (point, key) => finite(counted(runs, open).filter(run => run.point === point).map(run => pick.last(run.series.get(key))));
        const verdicts = [];
        for (const row of table) {
            assert.equal(row.versus_best === undefined, row.point === best.point);
            for (const key of row.point === best.point ? [] : METRICS) {
                const got = row.versus_best[key], [low, high] = welch(values(row.point, key), values(best.point, key));
                near(got.difference, mean(values(row.point, key)) - mean(values(best.point, key)), 'difference');
                for (const [end, want] of [[got.low, low], [got.high, high]])
                    assert.ok(Math.abs(end - want) < 2e-5 * (high - low), `${key} of combination ${row.point}: ${end}, expected ${want}`);
                assert.equal(got.separable, low > 0 || high < 0);
                verdicts.push(got.separable);
            }
        }
        assert.deepEqual([...new Set(verdicts)].sort(), [false, true], 'the case is to have both');
        /* The best need not stand on the page, nor its metric among those asked for. */
        const page = (await host.get(`/api/v1/jobs/${job.id}/sweep?limit=1&metric=acc/val${open ? '&open=1' : ''}`)).json.table;
        assert.deepEqual(page[0].versus_best, { 'acc/val': table[0].versus_best['acc/val'] });
    });

for (const axis of ['step', 'epoch', 'time'])
    for (const count of [1, 7, 33]) // no moment lies on the border of two buckets
        test(`curves over the trials in ${count} bucket${count > 1 ? 's' : ''} of ${axis}`, async () => {
            for (const key of METRICS) {
                const query = `key=${key}&x=${axis}&buckets=${count}`;
                const { curves } = (await host.get(`/api/v1/jobs/${job.id}/sweep/curves?${query}`)).json;
                const exported = records((await host.get(`/api/v1/jobs/${job.id}/sweep/export?what=curves&${query}`)).text);
                assert.equal(curves.length, 4);
                for (const got of curves) {
                    const want = curve(counted(runs).filter(run => run.point === got.point), key, count, axis), lines = exported.filter(line => Number(line.point) === got.point);
                    assert.equal(got.data.length, want.length, `combination ${got.point}, ${key}`);
                    assert.equal(lines.length, want.length);
                    want.forEach((w, i) => {
                        const what = `combination ${got.point}, ${key}, bucket ${i}`;
                        for (const field of ['n', 'nonfinite', 'mean', 'sd', 'min', 'max']) {
                            near(got.data[i][field], w[field], `${what}, ${field}`);
                            near(cell(lines[i][field]), w[field], `CSV: ${what}, ${field}`);
                        }
                        const tolerance = axis === 'time' ? ROUNDED : 1e-9;
                        assert.ok(Math.abs(got.data[i].x - w.x) < tolerance, `${what}: at ${got.data[i].x}, expected ${w.x}`);
                        assert.ok(Math.abs(Number(lines[i][axis]) - w.x) < tolerance);
                    });
                }
            }
        });

test('comparison: last, least and greatest of each run, and its curve on each axis', async () => {
    const some = [runs[0], runs[5], runs[14]], ids = some.map(run => `run=${run.id}`).join('&');
    const { metrics } = (await host.get(`/api/v1/compare?${ids}&metric=acc/val&metric=loss/val`)).json;
    const exported = records((await host.get(`/api/v1/compare/export?what=metrics&${ids}&metric=acc/val&metric=loss/val`)).text);
    METRICS.forEach((key, k) => some.forEach((run, i) => {
        const points = run.series.get(key), got = metrics.find(m => m.key === key).runs[i];
        assert.deepEqual([got.last, got.step, got.count], [word(points.at(-1).value), points.at(-1).step, points.length]);
        near(got.min, pick.min(points), 'least');
        near(got.max, pick.max(points), 'greatest');
        assert.equal(exported[k].metric, key);
        near(cell(exported[k][`run ${run.id} min`]), pick.min(points), 'CSV, least');
        near(cell(exported[k][`run ${run.id} max`]), pick.max(points), 'CSV, greatest');
        assert.equal(exported[k][`run ${run.id} last`], String(got.last));
    }));
    for (const axis of ['step', 'epoch', 'time']) {
        const { series } = (await host.get(`/api/v1/compare/series?${ids}&key=acc/val&key=loss/val&x=${axis}&buckets=6`)).json;
        const lines = records((await host.get(`/api/v1/compare/export?what=series&${ids}&key=acc/val&key=loss/val&x=${axis}&buckets=6`)).text);
        for (const { key, runs: curves } of series)
            some.forEach((run, i) => {
                const want = curve([run], key, 6, axis), own = lines.filter(line => line.key === key && line.run === run.id);
                assert.deepEqual(curves[i].data.map(p => [p.count, p.nonfinite]), want.map(p => [p.count, p.nonfinite]));
                want.forEach((w, n) => {
                    for (const field of ['x', 'mean', 'min', 'max']) {
                        const tolerance = field === 'x' && axis === 'time' ? ROUNDED : 1e-9;
                        const got = curves[i].data[n][field], line = cell(own[n][field === 'x' ? axis : field]);
                        assert.ok(Math.abs(got - w[field]) < tolerance && Math.abs(line - w[field]) < tolerance, `${key} of run ${run.id}, bucket ${n}, ${field}: ${got}, ${line}, expected ${w[field]}`);
                    }
                });
            });
    }
});

test('comparison: what differs in any of the runs, the default and who named it', async () => {
    const ids = [runs[0], runs[1], runs[4], runs[9]];
    const { fields, differing, same } = (await host.get(`/api/v1/compare?${ids.map(run => `run=${run.id}`).join('&')}&all=1`)).json;
    const documents = await Promise.all(ids.map(async run => (await host.get(`/api/v1/runs/${run.id}`)).json.document));
    const table = new Map((await host.get('/api/v1/fields')).json.fields.map(f => [f.pointer, f]));
    const at = (document, pointer) => pointer.slice(1).split('/').reduce((value, key) => value?.[key], document);
    let different = 0;
    for (const field of fields) {
        const values = documents.map(document => at(document, field.pointer));
        assert.deepEqual(field.values, values, field.pointer);
        assert.equal(field.differs, new Set(values.map(v => JSON.stringify(v))).size > 1, field.pointer);
        different += field.differs;
        if (field.has_default && table.get(field.pointer)?.default !== undefined)
            assert.deepEqual(field.default, table.get(field.pointer).default, field.pointer);
    }
    assert.deepEqual([differing, same], [different, fields.length - different]);
    assert.deepEqual(fields.filter(f => f.differs).map(f => f.pointer), ['/attention/c0', '/attention/k', '/train/seed']);
    // Differs in the last run alone.
    const late = (await host.get(`/api/v1/compare?run=${runs[0].id}&run=${runs[0].id}&run=${runs[4].id}`)).json;
    assert.deepEqual(late.fields.map(f => f.pointer), ['/attention/c0', '/attention/k']);
});

for (const [by, label] of [['experiment', () => 'rollups'], ['tag:arm', () => 'one'], ['job', () => job.id], ['field:/attention/k', run => String(2 ** run.point)], ['field:/train/seed', run => String(run.seed)], ['group:odd', () => 'odd']])
    test(`aggregation by ${by}`, async () => {
        const members = by === 'group:odd' ? runs.filter((_, i) => i % 2 === 1) : runs;
        if (by === 'group:odd')
            assert.equal((await host.post('/api/v1/groups', { name: 'odd', runs: members.map(run => run.id) })).status, 201);
        const { rows } = (await host.get(`/api/v1/aggregate?by=${by}&metric=acc/val&metric=loss/val&value=max`)).json;
        const labels = [...new Set(members.map(label))];
        assert.deepEqual(rows.map(row => String(Number(row.label) || row.label)).sort(), labels.map(String).sort());
        for (const row of rows) {
            const own = members.filter(run => String(label(run)) === String(Number(row.label) || row.label));
            assert.equal(row.runs.total, own.length);
            for (const key of METRICS)
                nearStatistic(row.metrics[key], statistic(counted(own).map(run => pick.max(run.series.get(key)))), `${row.label}, ${key}`);
        }
    });

test('a run: its table, its latest values, its chart and its export are the points that were sent', async () => {
    const run = runs[2];
    const { series } = (await host.get(`/api/v1/runs/${run.id}/metrics`)).json;
    const [listed] = (await host.get(`/api/v1/runs?job=${job.id}&metric=acc/val&metric=loss/val&limit=100`)).json.runs.filter(r => r.id === run.id);
    const lines = records((await host.get(`/api/v1/runs/${run.id}/export?format=csv`)).text);
    const json = (await host.get(`/api/v1/runs/${run.id}/export?format=json`)).json;
    for (const key of METRICS) {
        const points = run.series.get(key), told = series.find(s => s.key === key), own = lines.filter(line => line.key === key);
        assert.deepEqual([told.count, told.step, told.value], [points.length, points.at(-1).step, word(points.at(-1).value)]);
        near(told.min, pick.min(points), 'least');
        near(told.max, pick.max(points), 'greatest');
        assert.ok(Math.abs(Date.parse(told.time) / 1000 - run.started - points.at(-1).at) < 2 * ROUNDED);
        assert.equal(listed.latest[key], word(points.at(-1).value));
        assert.deepEqual(own.map(line => [Number(line.step), line.attempt]), points.map(p => [p.step, '1']));
        own.forEach((line, i) => {
            assert.ok(Object.is(Number(line.value.replace('inf', 'Infinity')), points[i].value), `${key}: ${line.value}, sent ${points[i].value}`);
            assert.ok(Math.abs(Date.parse(line.time) / 1000 - run.started - points[i].at) < 2 * ROUNDED);
        });
        assert.deepEqual(json.filter(p => p.key === key).map(p => [p.step, p.value]), points.map(p => [p.step, word(p.value)]));
        for (const count of [1, 5, 9]) {
            const [{ data }] = (await host.get(`/api/v1/runs/${run.id}/series?key=${key}&buckets=${count}`)).json.series;
            const first = points[0].step, want = [...buckets(points.map(p => ({ ...p, place: p.step })), first, points.at(-1).step, count)].sort((a, b) => a[0] - b[0]).map(([, inside]) => inside);
            assert.equal(data.length, want.length);
            want.forEach((inside, i) => {
                const values = finite(inside.map(p => p.value));
                assert.deepEqual([data[i].first_step, data[i].last_step, data[i].count, data[i].nonfinite], [inside[0].step, inside.at(-1).step, inside.length, inside.length - values.length]);
                for (const [field, w] of [['min', least(values)], ['max', greatest(values)], ['mean', mean(values)]])
                    near(data[i][field], w ?? 'NaN', `${key}, bucket ${i}, ${field}`);
                assert.ok(Math.abs(Date.parse(data[i].first_time) / 1000 - run.started - inside[0].at) < 2 * ROUNDED);
                assert.ok(Math.abs(Date.parse(data[i].last_time) / 1000 - run.started - inside.at(-1).at) < 2 * ROUNDED);
            });
        }
    }
});
