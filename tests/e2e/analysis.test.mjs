// What the page draws of a sweep's analysis, against what the same values give by code that shares nothing with server or page.
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { after, before, describe, test } from 'node:test';

import { TOKENS, panelOf, pointsOf, scaleSweep, slopeOf, jobOf } from '../api/analysis.mjs';
import { Host } from '../api/lib.mjs';
import { mean } from '../api/numbers.mjs';
import { Browser, findChromium, looks } from './browser.mjs';

const skip = findChromium() === null && 'no Chromium here';
const number = x => String(+x.toPrecision(4));
const share = x => `${(x * 100).toFixed(x >= 0.9995 || x === 0 ? 0 : x >= 0.1 ? 1 : 2)} %`;

describe('the analysis of a sweep', { skip, timeout: 240000 }, () => {
    /** @type {Host} */ let host;
    /** @type {Browser} */ let browser;
    let scale;
    let rates;
    let words;
    let alone;
    /** @type {{tokens: number, patch: number, points: any[], panel: ReturnType<typeof panelOf>}[]} */ let panels;
    before(async () => {
        [host, browser] = await Promise.all([Host.start(), Browser.start()]);
        scale = await scaleSweep(host);
        rates = await jobOf(host, { name: 'rates', trials: 2, sweep: { axes: [{ pointer: '/train/optimizer', values: [0.1, 1, 10].map(lr => ({ name: 'msgdw', lr })) }], metric: 'acc/val', mode: 'max' } },
            (point, trial) => point === 2 ? { outcome: 'diverged', value: null } : 0.5 + point / 10 + trial / 100);
        words = await jobOf(host, { name: 'words', trials: 2, sweep: { axes: [{ pointer: '/norm/placement', values: ['S1', 'S5'] }], metric: 'acc/val', mode: 'max' } }, () => 0.5);
        alone = await jobOf(host, { name: 'alone', attention: { activation: 'poly', scale: 'k' }, sweep: { axes: [{ pointer: '/attention/k', log: [0.01, 1000, 6] }], metric: 'acc/val', mode: 'max' } },
            (point, trial) => point === 0 ? { outcome: 'diverged', value: null } : [0, 0.6, 0.9, 0.91, 0.905, 0.8][point] + 0.02 * trial);
        panels = Object.entries(TOKENS).map(([patch, tokens]) => {
            const points = pointsOf(scale.runs, '/attention/k', v => v['/model/patch'] === Number(patch));
            return { tokens, patch: Number(patch), points, panel: panelOf(points, 'max') };
        });
    });
    after(async () => {
        await browser?.stop();
        await host?.stop();
    });
    const open = job => browser.open(`http://127.0.0.1:${host.port}/#/jobs/${job.id}`);
    const section = page => page.getByRole('region', { name: 'Analysis', exact: true });

    test('test_e2e_analysis_has_a_panel_for_each_n_with_the_best_k_its_interval_and_the_usable_range', async () => {
        const page = await open(scale.job), cards = section(page).locator('.panels .chart');
        await section(page).getByRole('heading', { name: 'Analysis along attention.k' }).waitFor();
        assert.equal(await cards.count(), 5);
        for (const [i, { patch, tokens, points, panel }] of panels.entries()) {
            const at = cards.nth(i);
            assert.equal(await at.getByRole('heading').textContent(), `patch ${patch}, N = ${tokens}`);
            assert.equal(await at.getByText(`√N = ${number(Math.sqrt(tokens))}`, { exact: true }).count(), 1);
            /* The combination that diverged twice out of three still has a mean: of the runs that succeeded. */
            assert.deepEqual(await at.locator('[role=img]').evaluateAll(all => all.map(el => el.getAttribute('aria-label').replace(/:.*?(, usable|, not usable: .*)?$/, '$1'))),
                points.map((p, k) => `k ${number(p.x)}${panel.fine[k] ? ', usable' : `, not usable: ${{ diverged: 'a run diverged', failed: 'a run failed' }[p.fault] ?? 'too far from the best'}`}`));
            const said = (await at.locator('p').textContent()).replace(/\s+/g, ' ');
            assert.ok(said.includes(`Best k ${number(panel.best.x)}`), said);
            assert.ok(said.includes(`95 % interval ${number(panel.low)} to ${number(panel.high)}, chosen by ${share(panel.share)} of the resamples`), said);
            assert.ok(panel.usable ? said.includes(panel.usable.from === panel.usable.to ? `Usable: ${number(panel.usable.from)} alone.` : `Usable from ${number(panel.usable.from)} to ${number(panel.usable.to)}, `) : said.includes('No usable range: a run of the best point failed.'), said);
            assert.equal(await at.locator('rect.usable').count(), panel.usable ? 1 : 0);
            assert.equal(await at.locator('rect.interval').count(), 1);
            /* The shade reaches from the first to the last usable mark, and the ring is at the best. */
            const drawn = await at.locator('svg.scatter').evaluate(svg => {
                const centre = el => Number(el.querySelector('circle:last-child').getAttribute('cx')), box = svg.querySelector('rect.interval');
                return { marks: [...svg.querySelectorAll('[role=img]')].map(centre), ring: Number(svg.querySelector('circle[r="10"]').getAttribute('cx')),
                    interval: [Number(box.getAttribute('x')), Number(box.getAttribute('x')) + Number(box.getAttribute('width'))] };
            });
            assert.equal(drawn.ring, drawn.marks[points.indexOf(panel.best)]);
            /* k is drawn by ratio. */
            const gaps = drawn.marks.slice(1).map((x, k) => x - drawn.marks[k]);
            assert.ok(Math.max(...gaps) - Math.min(...gaps) < 0.01, gaps.join());
            const [from, to] = [panel.low, panel.high].map(x => drawn.marks[0] + (drawn.marks.at(-1) - drawn.marks[0]) * Math.log(x / points[0].x) / Math.log(points.at(-1).x / points[0].x));
            assert.ok(Math.abs(drawn.interval[0] - (from - 5)) < 0.01 && Math.abs(drawn.interval[1] - (to + 5)) < 0.01, `${drawn.interval}, expected ${from} to ${to}`);
        }
        await browser.close(page);
    });

    test('test_e2e_sweep_of_several_n_has_no_rule_at_the_root_of_one', async () => {
        const rules = async job => {
            const page = await browser.open(`http://127.0.0.1:${host.port}/#/jobs/${job.id}?axis=/attention/k`);
            await section(page).getByRole('heading', { name: 'Analysis along attention.k' }).waitFor();
            await page.locator('svg.scatter').first().waitFor();
            const all = await page.locator('svg.scatter').evaluateAll(figures => figures.filter(el => !el.closest('.panels')).map(el => [...el.querySelectorAll('text')].filter(t => t.textContent.startsWith('√N')).length));
            await browser.close(page);
            return all;
        };
        assert.deepEqual([await rules(scale.job), await rules(alone.job)], [[0], [1]]);
    });

    test('test_e2e_analysis_fits_log_k_against_log_n_and_says_the_slope', async () => {
        const page = await open(scale.job), card = section(page).locator('.panels .chart').last(), want = slopeOf(panels);
        await card.getByRole('heading', { name: 'best k against N' }).waitFor();
        assert.equal((await card.locator('p').textContent()).trim(), `The best k grows as N to the power of ${want.b.toFixed(2)} (95 % interval ${want.low.toFixed(2)} to ${want.high.toFixed(2)}), over 4 panels.`.replaceAll('-', '−'));
        /* The line that is drawn rises by the slope, in the scale of the marks. */
        const { marks, fit } = await card.locator('svg.scatter').evaluate(svg => ({
            marks: [...svg.querySelectorAll('[role=img]')].map(el => ['cx', 'cy'].map(name => Number(el.querySelector('circle').getAttribute(name)))),
            fit: svg.querySelector('path.fit').getAttribute('d').slice(1).split('L').map(p => p.split(' ').map(Number)) }));
        const best = panels.map(({ panel }) => panel.best.x);
        assert.equal(marks.length, 4);
        const high = best.indexOf(Math.max(...best)), low = best.indexOf(Math.min(...best));
        const down = (marks[high][1] - marks[low][1]) / Math.log(best[high] / best[low]), along = (marks[0][0] - marks[3][0]) / Math.log(196 / 4);
        assert.ok(Math.abs((fit[1][1] - fit[0][1]) / (fit[1][0] - fit[0][0]) * along / down - want.b) < 1e-3);
        await browser.close(page);
    });

    test('test_e2e_analysis_table_and_download_hold_the_numbers', async () => {
        const page = await open(scale.job), rows = page.getByRole('region', { name: 'Best values and usable ranges' }).locator('tbody tr');
        await rows.nth(3).waitFor();
        assert.deepEqual(await rows.evaluateAll(all => all.map(row => [...row.cells].slice(0, 5).map(cell => cell.textContent))),
            panels.map(({ patch, tokens, panel }) => [String(patch), String(tokens), number(panel.best.x), `${number(panel.low)} to ${number(panel.high)}`, share(panel.share)]));
        const ranges = await rows.evaluateAll(all => all.map(row => [...row.cells].slice(6).map(cell => cell.textContent)));
        panels.forEach(({ panel, points }, i) => assert.deepEqual(ranges[i], panel.usable
            ? [`${panel.usable.from === points[0].x ? '≤ ' : ''}${number(panel.usable.from)}`, `${panel.usable.to === points.at(-1).x ? '≥ ' : ''}${number(panel.usable.to)}`, Math.log10(panel.usable.to / panel.usable.from).toFixed(2)] : ['–', '–', '–']));
        const card = section(page).locator('.panels .chart').nth(1);
        await card.getByRole('button', { name: /: save$/ }).click();
        const [download] = await Promise.all([page.waitForEvent('download'), card.getByRole('button', { name: 'CSV' }).click()]);
        const lines = (await readFile(await download.path(), 'utf8')).trim().split('\n').map(line => line.split(','));
        assert.deepEqual(lines[0], ['group', 'attention.k', 'mean acc/val', 'sd', 'n']);
        lines.slice(1).forEach((line, i) => {
            assert.equal(Number(line[1]), panels[1].points[i].x);
            assert.ok(Math.abs(Number(line[2]) - mean(panels[1].points[i].values)) < 1e-9);
        });
        await browser.close(page);
    });

    test('test_e2e_analysis_of_one_panel_is_drawn_into_the_results_and_of_words_not_at_all', async () => {
        let page = await open(rates.job);
        await section(page).getByRole('heading', { name: 'Analysis along train.optimizer.lr' }).waitFor();
        /* The axis of the results is the object, so the rates have a panel of their own, with a cross where nothing is left. */
        assert.deepEqual(await section(page).locator('.panels .gone').evaluateAll(all => all.map(el => el.getAttribute('aria-label'))), ['10: a run diverged']);
        await browser.close(page);
        page = await open(alone.job);
        const results = page.locator('.chart').filter({ hasText: 'acc/val against attention.k' });
        await results.locator('rect.usable').waitFor();
        assert.deepEqual([await page.locator('.scatter').count(), await results.locator('rect.interval').count(), await results.locator('.gone').count()], [1, 1, 1]);
        const { low, high, share: chosen } = panelOf(pointsOf(alone.runs, '/attention/k'), 'max');
        await page.getByText(`Best k 10 (95 % interval ${number(low)} to ${number(high)}, chosen by ${share(chosen)} of the resamples). Usable from 1 to 100, 2.00 decades.`, { exact: true }).waitFor();
        await browser.close(page);
        page = await open(words.job);
        await page.locator('.sweep-table tbody tr').first().waitFor();
        await page.locator('.chart').filter({ hasText: 'acc/val against norm.placement' }).locator('.scatter').waitFor();
        assert.equal(await section(page).isVisible(), false);
        await browser.close(page);
    });

    for (const look of looks)
        test(`test_e2e_analysis_fits_and_is_accessible_${look.name}`, async () => {
            await browser.inspect(`http://127.0.0.1:${host.port}`, look, [['analysis', `#/jobs/${scale.job.id}`, '.analysis-table'], ['analysis-rates', `#/jobs/${rates.job.id}`, '.analysis-table']]);
        });
});
