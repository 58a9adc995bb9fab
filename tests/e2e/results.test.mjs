// The pages over many runs, in a real browser on a store that is full: the table, the comparison, sweeps, the queue,
// and the page that writes a job.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';

import { build, Daemon, freePort, until } from '../lib/daemon.mjs';
import { Browser, findChromium, looks } from './browser.mjs';

const RUNS = 1200;
const skip = findChromium() === null && 'no Chromium here';
const endless = {
    name: 'holds the slot', model: { preset: 'vit_micro', depth: 1 }, data: { dataset: 'digits_gen', split: { rule: 'count', train: 256, val: 64 } },
    train: { epochs: 5000, batch: 16 },
};

describe('results', { skip }, () => {
    /** @type {Daemon} */ let full;
    /** @type {Daemon} */ let empty;
    /** @type {Browser} */ let browser;

    before(async () => {
        const stateDir = mkdtempSync(path.join(os.tmpdir(), 'polyd-'));
        execFileSync(path.join(build, 'bin/seed_store'), [stateDir, String(RUNS)], { stdio: 'ignore' });
        full = new Daemon(stateDir, await freePort(), []);
        [, empty, browser] = await Promise.all([full.up(), Daemon.start(), Browser.start()]);
    });
    after(async () => {
        await browser?.stop();
        await Promise.all([full?.stop(), empty?.stop()]);
    });

    const names = page => page.locator('.grid-row').evaluateAll(rows => rows
        .sort((a, b) => a.getAttribute('aria-rowindex') - b.getAttribute('aria-rowindex')).map(row => row.querySelector('.under').textContent));

    test('test_e2e_table_draws_only_what_one_sees_of_all_rows', async () => {
        const page = await browser.open(`${full.url}/`);
        await page.getByText(`${RUNS.toLocaleString('en-US')} runs`).waitFor();
        assert.equal(await page.locator('.grid').getAttribute('aria-rowcount'), String(RUNS + 1));
        assert.ok(await page.locator('.grid-row').count() < 60);
        await page.locator('.grid-row .name').first().focus();
        await page.keyboard.press('End');
        await until('the last row', async () => (await page.evaluate(() => document.activeElement.closest('.grid-row')?.getAttribute('aria-rowindex'))) === String(RUNS + 1));
        assert.match(await page.evaluate(() => document.activeElement.closest('.grid-row').textContent), /#1 ·/);
        await page.keyboard.press('PageUp');
        await page.keyboard.press('Home');
        await until('the first row', async () => (await page.evaluate(() => document.activeElement.closest('.grid-row')?.getAttribute('aria-rowindex'))) === '2');
        await browser.close(page);
    });

    test('test_e2e_table_sorts_and_the_link_keeps_order_columns_and_filters', async () => {
        const page = await browser.open(`${full.url}/`);
        await page.getByText(`${RUNS.toLocaleString('en-US')} runs`).waitFor();
        await page.locator('[data-column="m:loss/val"] .sort').click();
        await page.locator('[data-column="m:loss/val"][aria-sort="ascending"]').waitFor();
        const losses = (await page.locator('.grid-row').evaluateAll(rows => rows.filter(row => row.style.display !== 'none').sort((a, b) => a.getAttribute('aria-rowindex') - b.getAttribute('aria-rowindex')).map(row => row.querySelector('[data-label="Loss (val)"]').textContent))).map(Number);
        assert.deepEqual(losses, losses.slice().sort((a, b) => a - b));
        await page.getByRole('button', { name: 'Columns' }).click();
        await page.getByLabel('Find a column').fill('seed');
        await page.getByRole('button', { name: 'Seed', exact: true }).click();
        await page.getByLabel('Find a column').fill('my/own metric');
        await page.keyboard.press('Enter');
        await page.getByRole('button', { name: 'Hide my/own metric' }).click();
        await page.getByRole('button', { name: 'Done' }).click();
        await page.getByRole('columnheader', { name: 'Seed' }).waitFor();
        await until('the new column to be filled', async () => /\d/.test(await page.locator('.grid-row [data-label="Seed"]').first().innerText()));
        const grip = page.getByRole('separator', { name: 'Width of the column Seed' });
        await page.locator('[data-column="c:/train/seed"] .sort').focus();
        await page.keyboard.press('Shift+ArrowRight');
        assert.equal(await grip.getAttribute('aria-valuenow'), '104');
        await page.locator('[data-column="c:/train/seed"] .sort').focus();
        await page.keyboard.press('Alt+ArrowLeft');
        await page.getByLabel('Filter by tag').fill('owner=ada');
        await until('the tag to reach the address', async () => /tag=owner/.test(page.url()));
        await page.getByRole('button', { name: 'Succeeded' }).click();
        await page.locator('.grid-row').first().waitFor();
        await page.getByText(/^\d+ runs$/).waitFor();
        const link = page.url();
        const shown = await names(page);
        const heads = await page.locator('.grid-head .sort-word').allInnerTexts();
        assert.equal(heads.at(-2), 'Seed');
        await browser.close(page);
        const again = await browser.open(link);
        await again.getByText(/^\d+ runs$/).waitFor();
        assert.deepEqual(await again.locator('.grid-head .sort-word').allInnerTexts(), heads);
        assert.deepEqual(await names(again), shown);
        assert.equal(await again.getByLabel('Filter by tag').inputValue(), 'owner=ada');
        assert.equal(await again.getByRole('separator', { name: 'Width of the column Seed' }).getAttribute('aria-valuenow'), '104');
        await browser.close(again);
    });

    test('test_e2e_rows_one_sees_have_their_course_and_ask_for_it_together', async () => {
        const page = await browser.open('about:blank', { origin: full.url });
        const asked = [];
        page.on('request', request => {
            const { pathname, searchParams } = new URL(request.url());
            if (pathname === '/api/v1/compare/series')
                asked.push(searchParams.getAll('run'));
        });
        /* Rows that are drawn again while the answer is under way do not ask twice. */
        let answer;
        const held = new Promise(resolve => { answer = resolve; });
        await page.route('**/api/v1/compare/series*', route => held.then(() => route.continue()));
        await page.goto(`${full.url}/#/?state=succeeded`);
        await until('the lines to be asked for', async () => asked.length === 1);
        for (let i = 0; i < 2; i++)
            await page.getByRole('button', { name: 'High rows' }).click();
        answer();
        await page.locator('.spark path[d^="M"]').first().waitFor();
        await page.waitForTimeout(600);
        assert.equal(asked.length, 1, JSON.stringify(asked));
        assert.ok(asked[0].length >= 10 && asked[0].length <= 64, String(asked[0].length));
        const drawn = await page.locator('.grid-row:has(.spark path[d^="M"])').evaluateAll(rows => rows.map(row => ({ id: row.dataset.id, d: row.querySelector('.spark path').getAttribute('d'), label: row.querySelector('.spark').getAttribute('aria-label') })));
        for (const { id, d, label } of drawn) {
            const { series: [{ data }] } = await full.get(`/api/v1/runs/${id}/series?key=loss/val&buckets=10000`);
            const numbers = [...d.matchAll(/[ML]([\d.]+) ([\d.]+)/g)].map(m => [Number(m[1]), Number(m[2])]);
            const low = Math.min(...data.map(b => b.mean)), high = Math.max(...data.map(b => b.mean)), last = data.at(-1);
            if (data.length <= 32) /* each point has a bucket of its own */
                assert.deepEqual(numbers.map(([x]) => Math.round(x)), data.map(b => Math.round(2 + 72 * (b.last_step - data[0].last_step) / (last.last_step - data[0].last_step))));
            assert.ok(Math.abs(numbers.at(-1)[1] - (2 + 14 * (high - last.mean) / (high - low))) < 1.5, `run ${id}: ${d}`);
            assert.match(label, /^Loss from [\d.]+ to [\d.]+$/);
        }
        /* Rows far below ask when one gets there, and those that were asked for do not again. */
        await page.locator('.grid-scroll').evaluate(el => { el.scrollTop = 6000; });
        await until('the lines further down to be asked for', async () => asked.length === 2);
        assert.deepEqual(asked[1].filter(id => asked[0].includes(id)), []);
        await page.locator('.grid-scroll').evaluate(el => { el.scrollTop = 0; });
        await page.locator('.spark path[d^="M"]').first().waitFor();
        assert.equal(asked.length, 2);
        await browser.close(page);
    });

    test('test_e2e_filters_of_a_phone_wait_in_a_sheet', async () => {
        const page = await browser.open(`${full.url}/`, { width: 390, height: 844 });
        const first = page.locator('.grid-row').first();
        await first.waitFor();
        assert.ok((await first.boundingBox()).y < 210, `the first run stands at ${(await first.boundingBox()).y}`);
        assert.equal(await page.getByLabel('Filter by tag').isVisible(), false);
        await page.getByRole('button', { name: 'Filters' }).click();
        const sheet = page.getByRole('dialog', { name: 'Filters' });
        const box = await sheet.boundingBox();
        assert.ok(Math.abs(box.y + box.height - 844) < 2 && box.x === 0 && box.width === 390, JSON.stringify(box)); /* at the lower edge, as wide as the phone */
        for (const button of await sheet.getByRole('button').all()) {
            const { x, width } = await button.boundingBox();
            assert.ok(x >= 0 && x + width <= 390, await button.innerText()); /* no state is out of sight */
        }
        await sheet.getByRole('button', { name: 'Failed' }).click();
        await sheet.getByLabel('Filter by tag').fill('owner=ada');
        await until('the filters to reach the address', async () => /state=failed/.test(page.url()) && /tag=owner/.test(page.url()));
        await sheet.getByRole('button', { name: 'Show runs' }).click();
        await page.getByRole('button', { name: 'Failed, owner=ada' }).waitFor();
        await until('failed runs alone', async () => (await page.locator('.grid-row .chip').evaluateAll(all => [...new Set(all.map(el => el.dataset.state))])).join() === 'failed');
        /* A phone that is turned, or a wide window, has them in the row again. */
        await page.setViewportSize({ width: 1000, height: 700 });
        await page.getByLabel('Filter by tag').waitFor();
        assert.equal(await page.getByLabel('Filter by tag').inputValue(), 'owner=ada');
        assert.equal(await page.getByRole('button', { name: 'Failed', exact: true }).getAttribute('aria-pressed'), 'true');
        await browser.close(page);
    });

    test('test_e2e_runs_are_selected_and_compared', async () => {
        const page = await browser.open(`${full.url}/#/?state=succeeded`);
        await page.locator('.grid-row').nth(3).waitFor();
        await page.locator('.grid-row .name').first().focus();
        await page.keyboard.press(' ');
        const boxes = page.locator('.pick-box');
        await boxes.nth(3).click({ modifiers: ['Shift'] });
        await page.getByText('4 selected').waitFor();
        await page.locator('.tray a').click();
        await page.getByRole('heading', { name: 'Compare', exact: true }).waitFor();
        await page.locator('[data-panel="loss/val"] canvas').waitFor();
        assert.equal(await page.locator('.member').count(), 4);
        const rows = page.locator('[aria-label="Configuration of each run"] tbody tr');
        const few = await rows.count();
        assert.ok(few > 0 && few < 40);
        await page.getByLabel('Only differences').uncheck();
        await until('all settings', async () => (await rows.count()) > 100);
        await page.getByLabel('Lines').selectOption('/attention/activation');
        await page.locator('[data-panel="loss/val"] .chart-foot', { hasText: /deviation|points/ }).waitFor();
        assert.match(page.url(), /mean=%2Fattention%2Factivation/);
        assert.match(page.url(), /all=1/);
        for (const link of await page.locator('a[download]').evaluateAll(all => all.map(a => a.href)))
            assert.equal((await fetch(link)).status, 200, link);
        const url = page.url();
        await page.goto('about:blank');
        await page.goto(url);
        await page.locator('[data-panel="loss/val"] canvas').waitFor();
        assert.equal(await page.getByLabel('Lines').inputValue(), '/attention/activation');
        await page.getByRole('button', { name: /Take run \d+ out/ }).first().click();
        await until('the run to leave', async () => (await page.locator('.member:not(.group-line)').count()) === 3);
        await browser.close(page);
    });

    test('test_e2e_keyboard_alone_leads_from_the_frame_to_a_comparison', async () => {
        const page = await browser.open(`${full.url}/#/?job=1`);
        await page.getByText('21 runs').waitFor();
        await page.keyboard.press('Tab');
        assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Skip to content');
        await page.keyboard.press('Enter');
        // From field to field into the table, whose rows are one stop.
        await until('a row', async () => {
            await page.keyboard.press('Tab');
            return page.evaluate(() => document.activeElement.classList.contains('name'));
        });
        await page.keyboard.press(' ');
        await page.keyboard.press('ArrowDown');
        await page.keyboard.press(' ');
        await page.getByText('2 selected').waitFor();
        await until('the way to the comparison', async () => {
            await page.keyboard.press('Tab');
            return page.evaluate(() => document.activeElement.textContent === 'Compare');
        });
        await page.keyboard.press('Enter');
        await page.getByRole('heading', { name: 'Compare', exact: true }).waitFor();
        assert.equal(await page.evaluate(() => document.activeElement.id), 'main');
        await page.goto(`${full.url}/#/jobs/2`);
        await page.locator('h1 + span [data-state="succeeded"], h1 + span [data-state]').first().waitFor();
        await until('the job of one run to lead to it', async () => /#\/runs\/22$/.test(page.url()));
        await browser.close(page);
    });

    test('test_e2e_sweep_shows_its_curve_table_and_trials', async () => {
        const page = await browser.open(`${full.url}/#/sweeps`);
        await page.getByRole('link', { name: 'scale sweep N=16' }).click();
        await page.locator('.scatter a').first().waitFor();
        assert.equal(await page.locator('.scatter a').count(), 7);
        assert.match(await page.locator('.scatter').innerHTML(), /√N = 4/);
        assert.match(await page.locator('.tiles').innerText(), /k 10/);
        /* Some failed: the sweep is done all the same, its bar has a part of each kind, and means have the digits of their deviation. */
        assert.match(await page.locator('h1 + span').innerText(), /^Done, 2 failed$/);
        assert.match(await page.locator('.meter.stacked').getAttribute('aria-label'), /: 19 succeeded, 2 failed of 21$/);
        assert.match(await page.locator('.tiles').innerText(), /mean ± sd of 3\s+\d\d\.\d\d\s+± 0\.\d\d %/);
        for (const [format, begins] of [['SVG', /^<svg[\s\S]*>√N = 4</], ['PDF', /^%PDF[\s\S]*\(attention\.k \\\(log\\\)\) Tj/]]) {
            await page.getByRole('button', { name: 'Results: save' }).click();
            const [picture] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: format, exact: true }).last().click()]);
            assert.match(Buffer.from(await new Response(await picture.createReadStream()).arrayBuffer()).toString(format === 'PDF' ? 'latin1' : 'utf8'), begins);
        }
        await page.getByRole('button', { name: 'Results: save' }).click();
        const [file] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'CSV', exact: true }).last().click()]);
        const lines = (await new Response(await file.createReadStream()).text()).trim().split('\n').map(line => line.split(','));
        const { table } = await full.get('/api/v1/jobs/1/sweep?value=last&metric=acc/val');
        assert.deepEqual(lines.slice(1).map(line => [Number(line[1]), Number(line[2]), Number(line[4])]), table.map(row => [row.values['/attention/k'], row.metrics['acc/val'].mean, row.metrics['acc/val'].n]));
        const rows = page.locator('.sweep-table tbody tr');
        assert.equal(await rows.count(), 7);
        // Differences from a combination, seed by seed, are those of the API; the first has none of its own.
        await page.getByLabel('Differences from').selectOption('2');
        const { table: paired } = await full.get('/api/v1/jobs/1/sweep?metric=acc/val&baseline=2');
        const percent = x => `${x > 0 ? '+' : ''}${(100 * x).toFixed(2)}`;
        const { mean, low, high } = paired[0].paired['acc/val'];
        const cell = rows.first().locator('td', { has: page.locator('div') }).first().locator('div');
        await until('the differences', async () => await cell.count() === 1 && (await cell.innerText()).includes(percent(mean)));
        assert.ok((await cell.innerText()).includes(percent(low)) && (await cell.innerText()).includes(percent(high)), await cell.innerText());
        assert.match(page.url(), /from=2/);
        assert.equal(await rows.nth(2).locator('td div').count(), 0);
        await page.getByLabel('Differences from').selectOption('');
        await until('no differences', async () => await rows.locator('td div').count() === 0);
        await page.getByRole('button', { name: '3 trials' }).first().click();
        assert.equal(await rows.count(), 10);
        await page.getByRole('button', { name: 'acc/val', exact: true }).click();
        await page.getByRole('button', { name: 'acc/val', exact: true }).click();
        assert.match(await rows.first().innerText(), /^10\t/);
        assert.match(page.url(), /sort=-acc/);
        await page.getByLabel('Metric').selectOption('loss/val');
        assert.match(page.url(), /metric=loss/);
        await page.locator('.card.chart', { hasText: 'loss/val against attention.k' }).waitFor();
        await browser.close(page);
    });

    test('test_e2e_sweep_keeps_the_choice_of_now_when_an_earlier_answer_comes_late', async () => {
        const page = await browser.open('about:blank', { origin: full.url });
        /* The answers to the first question for curves, and to that for differences, wait. */
        let curves, differences;
        const [firstCurves, firstDifferences] = [new Promise(resolve => { curves = resolve; }), new Promise(resolve => { differences = resolve; })];
        await page.route('**/sweep/curves?**', async route => {
            const of = new URL(route.request().url()).searchParams, loss = of.get('key') === 'loss/val';
            if (!loss)
                await firstCurves;
            await route.fulfill({ json: { curves: [{ point: Number(of.get('point')), values: { '/attention/k': 10 }, data: [1, 2, 3].map(x => ({ x, n: 3, mean: loss ? 1.5 : .25, sd: .01 })) }] } });
        });
        await page.route('**/sweep?**baseline=2**', route => firstDifferences.then(() => route.continue()));
        await page.goto(`${full.url}/#/jobs/1?metric=acc/val`);
        await page.locator('.scatter a').first().waitFor();
        await page.getByLabel('Metric').selectOption('loss/val');
        const plot = page.locator('[data-panel="loss/val"] .chart-plot');
        await plot.locator('canvas').waitFor();
        const late = async (/** @type {RegExp} */ what, release) => {
            const answer = page.waitForResponse(response => what.test(response.url()));
            release();
            await (await answer).finished();
            await page.evaluate(() => new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(resolve))));
        };
        await late(/sweep\/curves.*key=acc/, curves);
        assert.match(await plot.getAttribute('aria-label'), /^loss\/val over training: .* 1\.5(00)? at step 3/);
        const compared = () => page.locator('.sweep-table tbody tr').evaluateAll(rows => rows.map(row => row.querySelectorAll('td div').length > 0));
        await page.getByLabel('Differences from').selectOption('2');
        await page.getByLabel('Differences from').selectOption('3');
        await until('differences from the fourth', async () => (await compared())[2]);
        await late(/sweep\?.*baseline=2/, differences);
        assert.deepEqual((await compared()).slice(2, 4), [true, false]);
        await browser.close(page);
    });

    test('test_e2e_sweep_offers_metrics_as_its_runs_get_them', async () => {
        const page = await browser.open('about:blank', { origin: full.url });
        /* An open job whose last run has no values yet; at first no run has any. */
        let begun = false;
        await page.route('**/api/v1/jobs/1', async route => route.fulfill({ json: { ...await (await route.fetch()).json(), state: 'running' } }));
        await page.route('**/api/v1/runs?**', async route => {
            const { runs } = await (await route.fetch()).json();
            await route.fulfill({ json: { runs: runs.map(run => (begun && run.id !== '21' ? run : { ...run, latest: {} })), next: null } });
        });
        await page.goto(`${full.url}/#/jobs/1?metric=loss/val`);
        const offers = () => page.getByLabel('Metric').locator('option').allInnerTexts();
        const csv = () => page.locator('a', { hasText: 'CSV' }).first().getAttribute('href');
        await until('the metric of the sweep', async () => (await offers()).join() === 'acc/val');
        assert.ok(!(await csv()).includes('loss%2Fval'), await csv());
        begun = true;
        await until('metrics of the first runs', async () => (await offers()).includes('loss/val'));
        assert.ok((await offers()).includes('loss/train') && (await offers()).includes('acc/val'), (await offers()).join());
        assert.equal(await page.getByLabel('Metric').inputValue(), 'loss/val'); /* as the link asks */
        assert.ok((await csv()).includes('loss%2Fval'), await csv());
        await browser.close(page);
    });

    test('test_e2e_job_is_written_checked_and_submitted', async () => {
        const page = await browser.open(`${empty.url}/#/submit`, { quiet: /422/ });
        await page.getByText('Valid.').waitFor();
        const editor = page.getByLabel('Job document, JSON');
        await editor.fill('{\n  "name": "typo",\n  "model": {"preset": "vit_micro"},\n  "data": {"dataset": "digits_gen"},\n  "attention": {"degree": 1.5},\n  "train": {"epochs": 1}\n}');
        const problem = page.locator('.problems li', { hasText: 'attention.degree' });
        await problem.waitFor();
        assert.match(await problem.innerText(), /line 5/);
        assert.equal(await page.locator('.paint .wrong').innerText(), '"degree"'); /* underlined in the text, and its line marked */
        assert.equal(await page.locator('.gutter [data-bad]').innerText().then(text => text.trim()), '5');
        assert.ok(await page.getByRole('button', { name: 'Submit' }).isDisabled());
        await problem.getByRole('button').click();
        assert.equal(await editor.evaluate(el => el.value.slice(el.selectionStart, el.selectionEnd)), '"degree"');
        await editor.fill('{"name": ');
        await page.getByText('Not JSON yet').waitFor();
        await editor.fill(JSON.stringify({ ...endless, name: 'from the page', train: { epochs: 1, batch: 64 } }));
        await page.getByText('Valid.').waitFor();
        await page.getByText(/on its device: [\d,]+ parameters/).waitFor();
        await page.getByLabel('Find a setting').fill('peak learning rate');
        await page.getByLabel('Find a setting').fill('activation');
        await page.locator('.setting', { hasText: 'attention.activation' }).waitFor();
        await page.getByRole('button', { name: 'Submit' }).click();
        await page.locator('.run', { hasText: 'from the page' }).waitFor();
        await browser.close(page);
    });

    test('test_e2e_queue_is_put_in_another_order', async () => {
        const held = await full.submit(endless);
        await full.reach(held.run, 'running');
        const first = await full.submit({ ...endless, name: 'first in line' });
        const second = await full.submit({ ...endless, name: 'second in line' });
        const page = await browser.open(`${full.url}/#/devices`);
        const rows = page.locator('[aria-label="Runs that wait"] tbody tr');
        await rows.nth(1).waitFor();
        assert.match(await rows.nth(0).innerText(), /first in line/);
        assert.match(await rows.nth(0).innerText(), /waiting for/i);
        await page.getByLabel('Priority of second in line').fill('5');
        await page.keyboard.press('Tab');
        await until('the second to be first', async () => /second in line/.test(await rows.nth(0).innerText()));
        await page.getByRole('button', { name: 'Cancel first in line' }).click();
        await page.getByRole('button', { name: 'Cancel the run' }).click();
        await full.reach(first.run, 'cancelled');
        await page.getByText('Server settings').click();
        await page.locator('[aria-label="Settings"] tbody tr').nth(5).waitFor();
        assert.match(page.url(), /settings=1/);
        await browser.close(page);
        for (const { run } of [second, held])
            await full.post(`/api/v1/runs/${run}/cancel`);
        await full.reach(held.run, 'cancelled');
    });

    test('test_e2e_help_is_reached_from_a_panel', async () => {
        const page = await browser.open(`${full.url}/#/runs/${RUNS}`);
        await page.locator('[data-panel="attn/fro"] canvas').waitFor();
        await page.getByRole('button', { name: /What is .Attention norm/ }).click();
        await page.locator('.hint', { hasText: 'theorems 4.1 and 4.2' }).getByRole('link').click();
        await page.locator('[data-metric="attn/fro"][data-wanted]').waitFor();
        await browser.close(page);
    });

    test('test_e2e_charts_are_walked_by_keyboard', async () => {
        const page = await browser.open(`${full.url}/#/runs/${RUNS}?x=epoch`);
        const plot = page.locator('[data-panel="loss"] .chart-plot');
        await plot.locator('canvas').waitFor();
        assert.equal(await page.getByRole('button', { name: 'Epoch' }).getAttribute('aria-pressed'), 'true');
        await plot.focus();
        await page.keyboard.press('+');
        await until('a part', async () => /from=\d+/.test(page.url()));
        const from = Number(/from=(\d+)/.exec(page.url())[1]);
        await until('another part', async () => {
            await page.keyboard.press('ArrowRight');
            return Number(/from=(\d+)/.exec(page.url())[1]) > from;
        });
        await page.keyboard.press('Escape');
        await until('the whole run', async () => !/from=/.test(page.url()));
        /* What plus has narrowed minus widens again, on each axis, up to the whole run. */
        for (const axis of ['Epoch', 'Time', 'Step']) {
            await page.getByRole('button', { name: axis, exact: true }).click();
            await plot.focus();
            const width = () => Number(/to=(\d+)/.exec(page.url())?.[1] ?? Infinity) - Number(/from=(\d+)/.exec(page.url())?.[1] ?? 0);
            await page.keyboard.press('+');
            await until('a part', async () => width() < Infinity);
            const half = width();
            await until('less', async () => {
                await page.keyboard.press('+');
                return width() < .6 * half;
            });
            const less = width();
            await page.keyboard.press('-');
            await until('more', async () => width() > 1.8 * less);
            for (let i = 0; i < 4; i++)
                await page.keyboard.press('-');
            await until('the whole run', async () => !/from=/.test(page.url()));
        }
        await browser.close(page);
    });

    for (const look of [...looks, { name: 'tablet-light', width: 768, height: 1024, theme: 'light' }]) {
        test(`test_e2e_every_full_page_holds_in_${look.name.replace('-', '_')}`, async () => {
            const four = [RUNS, RUNS - 1, RUNS - 2, RUNS - 3].join(',');
            await browser.inspect(full.url, look, [
                ['full-runs', '#/?cols=state,name,m%3Aacc%2Fval,c%3A%2Ftrain%2Foptimizer%2Flr,tags,created', '.grid-row'],
                ['full-run', `#/runs/${RUNS}?folds=layers-open`, '[data-panel="attn/fro"] canvas'], ['compare', `#/compare?runs=${four}`, '[data-panel="loss/val"] canvas'],
                ['compare-mean', `#/compare?runs=${four}&mean=trials&x=epoch`, '[data-panel="loss/val"] canvas'],
                ['sweeps', '#/sweeps', '.table a'], ['sweep', '#/jobs/1', '.scatter a'], ['experiments', '#/experiments', '#x-E18'], ['submit', '#/submit', 'text=Valid.'], ['help', '#/help?metric=attn/fro', '[data-wanted]'],
            ]);
            await browser.inspect(empty.url, look, [['empty-compare', '#/compare', 'text=Nothing to compare yet'], ['empty-sweeps', '#/sweeps', 'text=No sweeps yet'], ['empty-experiments', '#/experiments', '#x-E18'],
                ['missing-job', '#/jobs/999999', 'text=There is no job 999999'], ['missing-compare', '#/compare?runs=999999', 'text=could not be loaded']], { quiet: /404/ });
            const refuse = page => page.route('**/api/v1/{jobs,compare,runs,templates}**', route => route.fulfill({
                status: 503, contentType: 'application/problem+json', headers: { 'Retry-After': '5' },
                body: JSON.stringify({ type: 'about:blank', title: 'Service Unavailable', status: 503, detail: 'the store is full',
                    error: { code: 'full', message: 'the store is full' } }) }));
            const words = 'text=the store is full (try again in 5 s)';
            await browser.inspect(empty.url, look, [['failed-sweeps', '#/sweeps', words], ['failed-experiments', '#/experiments', words], ['failed-sweep', '#/jobs/1', words], ['failed-compare', '#/compare?runs=1', words],
                ['failed-submit', '#/submit', words]], { quiet: /503/, prepare: refuse });
        });
    }
});
