// A check of the theory from the button to its page: verdict, claim and truth, plots as drawn from stored data, table, downloads.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, describe, test } from 'node:test';

import { Daemon } from '../lib/daemon.mjs';
import { Browser, findChromium, looks } from './browser.mjs';

describe('checks of the theory', { skip: findChromium() === null && 'no Chromium here', timeout: 240000 }, () => {
    let daemon, browser, run, result;
    before(async () => {
        [daemon, browser] = await Promise.all([Daemon.start(), Browser.start()]);
        const { run_ids: ids } = await daemon.post('/api/v1/jobs', { template: 'T5', params: { seeds: 2 } });
        run = ids[0];
        await daemon.reach(run, 'succeeded');
        result = (await daemon.get(`/api/v1/runs/${run}/check`)).result;
    });
    after(async () => {
        await browser?.stop();
        await daemon?.stop();
    });

    test('the experiments page lists every statement, runs one, and shows what was found', async () => {
        const page = await browser.open(`${daemon.url}/#/experiments`);
        await page.getByText('Statements of the theory (20)').click();
        const t5 = page.getByRole('region', { name: /^T5 ·/ });
        await t5.getByText('Holds', { exact: true }).waitFor();
        await t5.getByText(result.claimed, { exact: false }).waitFor();
        await page.getByText('1 holds', { exact: false }).waitFor();
        assert.equal(await page.getByText('cannot run yet: checks').count(), 0);
        await page.getByRole('button', { name: 'Run it small: T20' }).click();
        await page.getByRole('dialog').getByText('1 run in one job.', { exact: false }).waitFor();
        await page.getByRole('button', { name: 'Run it', exact: true }).click();
        await page.getByRole('region', { name: /^T20 ·/ }).getByText('Holds', { exact: true }).waitFor({ timeout: 60000 });
        await t5.getByRole('link', { name: 'Table and plots' }).click();
        await page.getByRole('region', { name: 'Numbers' }).waitFor();
        assert.match(page.url(), new RegExp(`#/runs/${run}$`));
        await browser.close(page);
    });

    test('the page of a run has the numbers that are stored', async () => {
        const page = await browser.open(`${daemon.url}/#/runs/${run}`);
        await page.getByRole('region', { name: 'Numbers' }).waitFor();
        assert.deepEqual(await page.getByRole('tab').allTextContents(), ['Results', 'Log', 'Configuration', 'Events']);
        await page.getByText('12 of 12 criteria hold, seeds 0, 1').waitFor();
        assert.equal(await page.locator('table.results tbody tr').count(), result.rows.length);
        const cells = await page.locator('table.results tbody tr').first().locator('td').allTextContents();
        assert.equal(cells[0], result.rows[0].what);
        // Each point of a measured series is a mark in its ink, at its place on logarithmic axes.
        const svg = page.locator('.check-plot svg').first(), [plot] = result.plots;
        const label = await svg.getAttribute('aria-label');
        assert.ok(label.startsWith(`${plot.title}: `) && label.includes('p = 3, matrix power: from '), label);
        const marks = await svg.locator('g path').evaluateAll(list => list.filter(p => p.getAttribute('fill') !== 'none' && p.getAttribute('d').endsWith('Z')).map(p => { const b = p.getBBox(); return [b.x + b.width / 2, b.y + b.height / 2]; }));
        const measured = plot.series.filter(s => s.form === 'points').flatMap(s => s.x.map((x, i) => [Math.log(x), Math.log(s.y[i])]));
        const filled = plot.series.length - 1; // one shape of the six is an outline of two strokes
        assert.ok(marks.length >= measured.length * filled / plot.series.length, `${marks.length} marks of ${measured.length}`);
        const order = (list, k) => list.map((_, i) => i).sort((a, b) => list[a][k] - list[b][k]);
        const first = measured.slice(0, 3), drawn = marks.slice(0, 3);
        assert.deepEqual(order(first, 0), order(drawn, 0));
        const share = list => (list[1][0] - list[0][0]) / (list[2][0] - list[0][0]);
        assert.ok(Math.abs(share(first) - share(drawn)) < .02, 'spaced by ratio');
        await browser.close(page);
    });

    test('plots and table can be saved', async () => {
        const page = await browser.open(`${daemon.url}/#/runs/${run}`);
        await page.getByRole('region', { name: 'Numbers' }).waitFor();
        for (const [word, begins] of [['SVG', '<svg'], ['CSV', 'series,N,norm,low,high'], ['PNG', '\x89PNG']]) {
            await page.getByRole('button', { name: `${result.plots[0].title}: save` }).click();
            const [file] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: new RegExp(`^${word}`) }).first().click()]);
            assert.ok(readFileSync(await file.path(), 'latin1').startsWith(begins), word);
        }
        const [table] = await Promise.all([page.waitForEvent('download'), page.getByRole('link', { name: 'CSV' }).click()]);
        assert.equal(readFileSync(await table.path(), 'utf8').trim().split('\n').length, result.rows.length + 1);
        await browser.close(page);
    });

    test('a statement that fails shows where, and all numbers when asked', async () => {
        const { run_ids: [failing] } = await daemon.post('/api/v1/jobs', { template: 'T4', params: { N: [4, 8], p: [1, 3], seeds: 1 } });
        await daemon.reach(failing, 'succeeded');
        const page = await browser.open(`${daemon.url}/#/runs/${failing}`);
        const { rows } = (await daemon.get(`/api/v1/runs/${failing}/check`)).result, failed = rows.filter(r => r.pass === false);
        await page.getByText(`Showing the ${failed.length} numbers that violate their criterion.`).waitFor();
        assert.equal(await page.locator('table.results tbody tr').count(), failed.length);
        await page.getByRole('button', { name: `Show all ${rows.length} numbers` }).click();
        assert.equal(await page.locator('table.results tbody tr').count(), rows.length);
        await browser.close(page);
    });

    for (const look of looks)
        test(`it is whole and accessible: ${look.name}`, () => browser.inspect(daemon.url, look, [['check', `#/runs/${run}`, 'table.results'], ['statements', '#/experiments', 'text=Statements of the theory']]));
});
