// What the pages show of several runs together, against the numbers that were put in: means, deviations, the best, curves.
// The formulas (tests/api/numbers.mjs) share nothing with the server or the page.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';

import { Host } from '../api/lib.mjs';
import { EPOCHS, STEPS, chance, counted, curve, deviation, finite, mean, pick, sweepOf } from '../api/numbers.mjs';
import { until } from '../lib/daemon.mjs';
import { Browser, findChromium } from './browser.mjs';

const skip = findChromium() === null && 'no Chromium here';

/* As people read numbers: four digits; a share in per cent; a deviation in two digits, and its mean to the same place. */
const minus = text => text.replace('-', '−');
const number = x => minus(Math.abs(x) >= 1000 ? x.toLocaleString('en-US', { maximumFractionDigits: 0 }) : String(+x.toPrecision(4)));
const share = x => Number.isFinite(x) ? `${(x * 100).toFixed(x >= 0.9995 || x === 0 ? 0 : x >= 0.1 ? 1 : 2)} %` : Number.isNaN(x) ? 'NaN' : x > 0 ? '∞' : '−∞';
const shown = { 'loss/val': number, 'acc/val': share };
const both = (values, key) => {
    const times = key === 'acc/val' ? 100 : 1, sd = deviation(values) * times;
    const places = 1 - Number(sd.toExponential(1).split('e')[1]);
    assert.ok(places >= 0);
    return `${minus((mean(values) * times).toFixed(places))} ± ${sd.toFixed(places)}${times === 100 ? ' %' : ''}`;
};
const texts = rows => rows.map(row => [...row.cells].map(cell => cell.textContent.trim()));

/** Rows of a chart's table of numbers. */
async function table(panel) {
    if (await panel.locator('details[open]').count() === 0)
        await panel.getByText('Numbers', { exact: true }).click();
    await panel.locator('tbody tr').first().waitFor();
    return (await panel.locator('tbody tr').evaluateAll(texts)).map(([name, place, min, mid, max, n]) => ({ name, place: Number(place.replace(',', '')), min, mean: mid, max, n: Number(n) }));
}

describe('numbers of several runs', { skip, timeout: 240000 }, () => {
    /** @type {Host} */ let host;
    /** @type {Browser} */ let browser;
    /** @type {Awaited<ReturnType<typeof sweepOf>>['runs']} */ let runs;
    let job;
    let url;
    before(async () => {
        [host, browser] = await Promise.all([Host.start(), Browser.start()]);
        ({ job, runs } = await sweepOf(host));
        url = `http://127.0.0.1:${host.port}`;
    });
    after(async () => {
        await browser?.stop();
        await host?.stop();
    });
    const last = (run, key) => pick.last(run.series.get(key));
    const of = point => runs.filter(run => run.point === point);

    test('test_e2e_sweep_shows_means_deviations_and_the_best', async () => {
        const page = await browser.open(`${url}/#/jobs/${job.id}`);
        const rows = page.locator('.sweep-table tbody tr');
        await rows.nth(3).waitFor();
        const head = await page.locator('.sweep-table thead th').evaluateAll(all => all.map(th => th.dataset.key ?? ''));
        const keys = head.filter(key => shown[key]);
        assert.deepEqual(keys, ['loss/val', 'acc/val']);
        const means = [0, 1, 2, 3].map(point => mean(counted(of(point)).map(run => last(run, 'loss/val'))));
        const best = means.indexOf(Math.min(...means));
        const got = await rows.evaluateAll(texts);
        assert.equal(got.length, 4);
        const rivals = [0, 1, 2, 3].filter(point => point !== best && chance(...[point, best].map(p => counted(of(p)).map(run => last(run, 'loss/val')))) > 0.05);
        assert.deepEqual(rivals, [2], 'the case is to have one of wide spread that may be the best');
        for (const point of [0, 1, 2, 3]) {
            assert.equal(got[point][0], `${rivals.includes(point) ? 'not separable' : ''}${2 ** point}`);
            keys.forEach((key, k) => {
                const values = finite(counted(of(point)).map(run => last(run, key)));
                assert.equal(got[point][1 + k].replace(/\s+/g, ' '), both(values, key), `combination ${point}, ${key}`);
            });
            assert.match(got[point][1 + keys.length], new RegExp(`^${counted(of(point)).length} of 4`));
            assert.equal(await rows.nth(point).getAttribute('data-best') !== null, point === best);
        }
        const tiles = new Map(await page.locator('.tile').evaluateAll(all => all.map(tile => [tile.querySelector('dt').textContent, tile.querySelector('dd').textContent.trim()])));
        const values = counted(of(best)).map(run => last(run, 'loss/val'));
        const reached = run => pick.min(run.series.get('loss/val'));
        const single = counted(runs).reduce((a, b) => reached(b) < reached(a) ? b : a);
        assert.notEqual(single.point, best);
        assert.equal(tiles.get('Best combination'), `k ${2 ** best} not separable from 1 other (95 %)`);
        assert.equal(tiles.get(`Loss, validation, mean ± sd of ${values.length}`).replace(/\s+/g, ' '), both(values, 'loss/val'));
        assert.equal(tiles.get('Best run').replace(/\s+/g, ' '), `#${single.id} ${number(reached(single))}, validation`);
        /* The trials of a combination, each with its seed and its own values. */
        await rows.nth(2).getByRole('button', { name: 'Trials' }).click();
        await page.locator('tr.trial').nth(3).waitFor();
        const trials = await page.locator('tr.trial').evaluateAll(texts);
        assert.deepEqual(trials.map(cells => cells.slice(0, 3)), of(2).map(run => [`seed ${run.seed}`, number(last(run, 'loss/val')), share(last(run, 'acc/val'))]));
        /* Against k the theory's choice is marked: 28 x 28 pixels in patches of 4 are 49 tokens. */
        await page.getByText('√N = 7', { exact: true }).waitFor();
        const marks = await page.locator('.scatter-place circle, .scatter-place [role="img"]').count();
        assert.ok(marks > 0);
        await browser.close(page);
    });

    test('test_e2e_sweep_draws_mean_and_deviation_over_training', async () => {
        const page = await browser.open(`${url}/#/jobs/${job.id}`);
        const panel = page.locator('.chart').filter({ hasText: 'loss/val over training' });
        await panel.getByText('Numbers', { exact: true }).waitFor();
        const rows = await table(panel);
        for (const point of [0, 1, 2, 3]) {
            const want = curve(counted(of(point)), 'loss/val', 200, 'step'), mine = rows.filter(row => row.name === `k ${2 ** point}`).sort((a, b) => a.place - b.place);
            assert.deepEqual(mine.map(row => [row.place, row.min, row.mean, row.max, row.n]),
                want.map(w => [w.x, number(w.mean - (w.sd ?? 0)), number(w.mean), number(w.mean + (w.sd ?? 0)), w.n]), `combination ${point}`);
        }
        await browser.close(page);
    });

    test('test_e2e_comparison_shows_the_latest_and_marks_the_best', async () => {
        const some = [runs[1], runs[4], runs[9], runs[13]];
        const page = await browser.open(`${url}/#/compare?runs=${some.map(run => run.id).join(',')}`);
        await page.getByRole('heading', { name: 'Results' }).waitFor();
        const rows = await page.getByRole('region', { name: 'Latest values' }).locator('tbody tr').evaluateAll(all => all.map(row => [...row.cells].map(cell => [cell.textContent, cell.dataset.best !== undefined])));
        for (const [key, best] of [['loss/val', 'min'], ['acc/val', 'max']]) {
            const values = some.map(run => last(run, key)), winner = Math[best](...finite(values));
            const [, ...cells] = rows.find(([[name]]) => name === key);
            assert.deepEqual(cells, values.map(v => [shown[key](v), v === winner]));
        }
        await browser.close(page);
    });

    test('test_e2e_comparison_averages_equal_runs_but_not_those_that_diverged', async () => {
        /* Without the one that runs: of a run under way the supervisor tells the length, and here there is none. */
        const some = runs.filter(run => run.outcome !== 'open'), ids = some.map(run => run.id).join(',');
        for (const [axis, place] of [['step', p => p.step], ['epoch', p => p.step / (STEPS / EPOCHS)], ['time', p => p.at]]) {
            const page = await browser.open(`${url}/#/compare?runs=${ids}&mean=${encodeURIComponent('/attention/k')}&x=${axis}`);
            const panel = page.locator('[data-panel="loss/val"]');
            await page.locator('.group-line').nth(3).waitFor();
            for (const point of [0, 1, 2, 3]) {
                const all = some.filter(run => run.point === point), own = all.filter(run => run.outcome === 'succeeded');
                const name = `k ${2 ** point} (${own.length < all.length ? `${own.length} of ` : ''}${all.length})`;
                /* Between its points a curve is straight; the mean is taken where any of them has a point. */
                const lines = own.map(run => run.series.get('loss/val').map(p => [place(p), p.value]));
                const at = (line, x) => {
                    const after = line.findIndex(([there]) => there >= x - 1e-9);
                    if (after < 0 || (after === 0 && line[0][0] > x + 1e-9))
                        return null;
                    const [[x1, y1], [x0, y0]] = [line[after], line[Math.max(0, after - 1)]];
                    return x1 - x < 1e-9 || after === 0 ? y1 : y0 + (y1 - y0) * (x - x0) / (x1 - x0);
                };
                const places = [...new Set(lines.flatMap(line => line.map(([x]) => Math.round(x * 1e6) / 1e6)))].sort((a, b) => a - b);
                await until(`the means of ${name} by ${axis}`, async () => {
                    const rows = (await table(panel)).filter(row => row.name === name).reverse();
                    assert.equal(rows.length, places.length);
                    rows.forEach((row, i) => {
                        const values = lines.map(line => at(line, places[i])).filter(v => v !== null), wide = deviation(values) ?? 0;
                        assert.ok(Math.abs(row.place - places[i]) < 0.006, `${row.place}, expected ${places[i]}`);
                        if (axis !== 'time') // a run's beginning is told in milliseconds
                            assert.deepEqual([row.min, row.mean, row.max, row.n], [number(mean(values) - wide), number(mean(values)), number(mean(values) + wide), values.length], `${name} at ${places[i]}`);
                    });
                    return true;
                });
            }
            await browser.close(page);
        }
    });
});
