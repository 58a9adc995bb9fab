// The report of an experiment against its pages: every number that Chromium shows on them stands in the report, which then opens from a
// file after polyd has ended, and prints.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';

import { Daemon, until } from '../lib/daemon.mjs';
import { Browser, findChromium } from './browser.mjs';

const train = { steps: 4, batch: 4, eval_every: 2 }, model = { width: 16, depth: 2, heads: 2 }, data = { split: { train: 16, val: 8, test: 8 } };
const small = { train, model, data, trials: 1, resources: { threads: 1 } };
const grid = axes => ({ method: 'grid', axes: Object.entries(axes).map(([pointer, values]) => ({ pointer, values })), metric: 'acc/val', mode: 'max' });
const cubic = { activation: 'poly', degree: 3, scale: 'fixed' };
/** A template with each kind of picture and table, so small that its runs take no time. */
const bodies = [
    { template: 'E01', ...small, trials: 2, sweep: grid({ '/model/patch': [4, 7], '/attention/k': [0.1, 1, 10] }) }, // panels of a sweep
    { template: 'E02', ...small, diagnostics: { every: 2, probe_batch: 4 } }, // curves of each layer
    { template: 'E04', ...small, trials: 2 }, // curves, a paper's table, claims
    { template: 'E06', ...small, diagnostics: { probe_batch: 4, heatmaps: { layers: [1, 2], heads: [1], every: 2 } } }, // maps
    { template: 'E10', train: { steps: 2, eval_every: 1 }, data: { pde: { grid: [5, 5], test_grid: [7, 7] } }, trials: 1, resources: { threads: 1 } }, // a solution
    { template: 'E12', ...small }, // histograms, blocks
    { template: 'E16', train, trials: 1, resources: { threads: 1 } }, // memory
    { template: 'E18', ...small, sweep: grid({ '/attention': [{ activation: 'softmax' }, cubic], '/train/optimizer': [{ name: 'adamw', lr: 0.001 }, { name: 'msgdw', lr: 0.1 }] }) }, // a grid
    { template: 'T2' }, // a statement
];

const units = { '%': 100, KiB: 2 ** -10, MiB: 2 ** -20, GiB: 2 ** -30 };
/** Numbers of a text as they are written: value, half of the last digit's place, unit. @param {string} text */
function numbersOf(text) {
    const found = [];
    for (const [word, digits, , power, unit] of text.replaceAll('−', '-').matchAll(/(?<![\w.])([+-]?\d[\d,]*(\.\d+)?)(?:e([+-]?\d+))?(?: ?(%|KiB|MiB|GiB))?(?![\w])/g)) {
        const value = Number(digits.replaceAll(',', '')) * 10 ** Number(power ?? 0), places = (digits.split('.')[1] ?? '').length - Number(power ?? 0);
        // 1,200 may be rounded to the whole.
        found.push({ word, value, half: 0.5 * 10 ** -places, times: units[unit] ?? 1 });
    }
    return found;
}
/** The numbers of a page that those of the report do not have, to the page's digits. */
function missing(text, numbers) {
    const sorted = [...numbers].filter(Number.isFinite).sort((a, b) => a - b);
    const has = (low, high) => {
        let from = 0, to = sorted.length;
        while (from < to) {
            const middle = (from + to) >> 1;
            if (sorted[middle] < low)
                from = middle + 1;
            else
                to = middle;
        }
        return from < sorted.length && sorted[from] <= high;
    };
    return numbersOf(text).filter(({ value, half, times }) => ![1, times].some(t => {
        const slack = (half + 6e-6 * Math.abs(value)) / t; // the report has six digits
        return has(value / t - slack, value / t + slack) || has(-value / t - slack, -value / t + slack);
    })).map(({ word }) => word);
}
/** Every number of a JSON value; of histograms the shares and the edges of bins, of maps the places of their rows and columns, too. */
function* deep(value) {
    if (typeof value === 'number')
        yield value;
    else if (value && typeof value === 'object') {
        if (Array.isArray(value.counts) && value.meta)
            for (const [i, count] of value.counts.entries())
                yield* [count / value.meta.count, value.meta.lo * (value.meta.hi / value.meta.lo) ** (i / value.counts.length), value.meta.lo * (value.meta.hi / value.meta.lo) ** ((i + 1) / value.counts.length)];
        for (const [axis, n] of [[value.meta?.rows, value.rows], [value.meta?.columns, value.columns]])
            if (value.form === 'map' && axis)
                yield* Array.from({ length: n }, (_, i) => axis.low + (axis.high - axis.low) * i / (n - 1));
        if (value.form === 'map')
            yield* [value.rows * value.columns, ...Array.from({ length: Math.max(value.rows, value.columns) }, (_, i) => i + 1)];
        for (const inner of Object.values(value))
            yield* deep(inner);
    }
}

test('the comparison itself finds a number that is missing, of any unit', () => {
    assert.deepEqual(missing('0.8508 ± 0.013, 91.2 %, 1.5 KiB, −3.2e−5, 1,204', [0.850833, 0.0127, 0.91234, 1536, -3.21e-5, 1204]), []);
    assert.deepEqual(missing('0.8508 ± 0.014, 91.3 %, 1.6 KiB, −3.3e−5, 1,205', [0.850833, 0.0127, 0.91234, 1536, -3.21e-5, 1204]), ['0.014', '91.3 %', '1.6 KiB', '-3.3e-5', '1,205']);
});

describe('reports', { skip: findChromium() === null && 'no Chromium here', timeout: 600000 }, () => {
    let browser, folder;
    /** By name: what Chromium shows of it, the report as a page and as JSON. @type {Map<string, {card: string, page: string, tables: string, html: string, json: any}>} */
    const seen = new Map();
    before(async () => {
        const daemon = await Daemon.start({ flags: ['--devices.cpu_slots=2'] });
        browser = await Browser.start();
        folder = mkdtempSync(path.join(os.tmpdir(), 'polyd-reports-'));
        try {
            for (const body of bodies)
                await daemon.post('/api/v1/jobs', body);
            await until('all runs', async () => (await daemon.get('/api/v1/experiments')).experiments.every(x => x.runs.open === 0), { limit: 400000, every: 500 });
            const page = await browser.open(`${daemon.url}/#/experiments`);
            await page.locator('.claim').first().waitFor();
            await page.evaluate(() => { for (const fold of document.querySelectorAll('details')) fold.open = true; });
            for (const { template: name } of bodies) {
                const { runs } = await daemon.get(`/api/v1/experiments/${name}`);
                assert.deepEqual([runs.succeeded, runs.open], [runs.total, 0], name);
                seen.set(name, { card: await page.getByRole('region', { name: new RegExp(`^${name} ·`) }).innerText(), page: '', tables: '', html: '', json: null });
            }
            for (const name of [...seen.keys()].filter(key => key.startsWith('E'))) {
                await page.goto(`${daemon.url}/#/experiments/${name}`);
                await page.locator('main h2').first().waitFor();
                await page.evaluate(() => { for (const fold of document.querySelectorAll('main details:not(.chart-foot *)')) fold.open = true; });
                seen.get(name).page = await page.locator('main').innerText();
                await page.evaluate(() => { for (const fold of document.querySelectorAll('main .chart-foot details')) fold.open = true; });
                await until('the tables', async () => page.evaluate(() => [...document.querySelectorAll('main .chart-foot details')].every(fold => fold.querySelector('table'))));
                seen.get(name).tables = (await page.locator('main .chart-foot .data-table').allInnerTexts()).join('\n');
            }
            // After the pages: that of E16 has asked for the plans, which polyd stores then.
            for (const [name, one] of seen)
                Object.assign(one, { html: await daemon.get(`/api/v1/experiments/${name}/report`), json: await daemon.get(`/api/v1/experiments/${name}/report?format=json`) });
            await browser.close(page);
        } finally {
            await daemon.stop(); // from here on there is no polyd
        }
    });
    after(async () => {
        await browser?.stop();
        rmSync(folder, { recursive: true, force: true });
    });

    for (const { template: name } of bodies)
        test(`the report of ${name} holds every number of its pages, opens without polyd and prints`, async () => {
            const { card, page: shown, tables, html, json } = seen.get(name), file = path.join(folder, `${name}.html`);
            writeFileSync(file, html);
            const page = await browser.open(`file://${file}`, { origin: 'null' });
            const text = await page.innerText('body'), numbers = numbersOf(text).map(n => n.value);
            assert.ok(numbersOf(card).length > 5 && numbers.length > 100, `${name}: ${numbersOf(card).length} and ${numbers.length} numbers`);
            assert.deepEqual(missing(card, numbers), [], `${name}: on the card`);
            assert.deepEqual(missing(shown, numbers), [], `${name}: on its page`);
            assert.deepEqual(missing(tables, [...deep(json), ...numbers]), [], `${name}: below its pictures`);
            assert.match(text, /SHA-256 of the data\s+(none: polyd generates the data|[0-9a-f]{64})|digests of data and program are not recorded/);
            assert.ok(name === 'T2' || /SHA-256 of the program that trained\s+[0-9a-f]{64}/.test(text), `${name}: the program's digest`);
            if (process.env.POLYD_TEST_PICTURES)
                await page.screenshot({ path: path.join(browser.pictures, `report-of-${name}.png`), fullPage: true });
            const pdf = await page.pdf({ preferCSSPageSize: true });
            assert.equal(pdf.subarray(0, 5).toString(), '%PDF-');
            assert.ok(pdf.toString('latin1').match(/\/Type\s*\/Page\b/g).length >= 2);
            page.problems = page.problems.filter(problem => !problem.startsWith(`foreign request: file://${file}`));
            await browser.close(page);
        });
});
