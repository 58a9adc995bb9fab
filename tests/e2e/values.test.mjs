// What the pages say is what was put in: the heads of a layer and the layers of a comparison, in a real Chromium. The
// numbers of a run are the test's own: each names its key and step, so that a wrong head, layer or step shows.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';

import { Daemon, until } from '../lib/daemon.mjs';
import { Browser, findChromium } from './browser.mjs';

const skip = findChromium() === null && 'no Chromium here';

/** A number of the test's own for each place: run, layer, head (0: the layer itself) and step can be read off. */
const LAYERS = 12, HEADS = 4, STEPS = [100, 200, 300, 400, 500];
const own = (run, base, layer, head, at) => (base === 'logit/max' ? -1 : 1) * (run * 1e5 + layer * 1e3 + head * 1e2 + at);
const shown = x => (Math.abs(x) >= 1000 ? x.toLocaleString('en-US', { maximumFractionDigits: 0 }) : String(+x.toPrecision(4))).replace('-', '−');

/** A run that has ended, with metrics of the test's own only. */
async function madeUp(daemon, number) {
    const { run } = await daemon.submit({
        name: `made up ${number}`, model: { preset: 'vit_micro', depth: 1 }, data: { dataset: 'digits_gen', split: { rule: 'count', train: 64, val: 64 } },
        train: { steps: 2, batch: 16, seed: number }, diagnostics: { every: 0 },
    });
    await daemon.reach(run, 'succeeded');
    const points = [];
    for (const base of ['attn/fro', 'logit/max'])
        for (let layer = 1; layer <= LAYERS; layer++)
            for (let head = 0; head <= (base === 'attn/fro' ? HEADS : 0); head++)
                STEPS.forEach((step, at) => points.push({ key: [base, layer, ...(head ? [head] : [])].join('/'), step, value: own(number, base, layer, head, at) }));
    await daemon.post(`/api/v1/runs/${run}/metrics`, { points });
    return run;
}

/** The rows of a panel's table of numbers: series, step, mean. */
async function table(panel) {
    if (await panel.locator('details[open]').count() === 0)
        await panel.getByText('Numbers', { exact: true }).click();
    await panel.locator('tbody tr').first().waitFor();
    return (await panel.locator('tbody tr').evaluateAll(rows => rows.map(row => [...row.cells].map(cell => cell.textContent))))
        .map(([name, step, min, mean, max, n]) => ({ name, step: Number(step.replace(',', '')), min, mean, max, n }));
}

/** Names and values of a panel's legend. */
const legend = panel => panel.locator('.legend button').evaluateAll(all => all.map(b => [b.querySelector('.legend-name').textContent, b.querySelector('.value').textContent]));

describe('values', { skip, timeout: 240000 }, () => {
    /** @type {Daemon} */ let daemon;
    /** @type {Browser} */ let browser;
    before(async () => {
        [daemon, browser] = await Promise.all([Daemon.start(), Browser.start()]);
    });
    after(async () => {
        await browser?.stop();
        await daemon?.stop();
    });

    test('test_e2e_heads_of_a_layer_show_their_own_numbers', async () => {
        const run = await madeUp(daemon, 3);
        const page = await browser.open(`${daemon.url}/#/runs/${run}`);
        const panel = page.locator('[data-panel="attn/fro"]');
        await panel.locator('.legend button').nth(LAYERS - 1).waitFor();
        const last = STEPS.length - 1;
        assert.deepEqual(await legend(panel), Array.from({ length: LAYERS }, (_, i) => [`layer ${i + 1}`, shown(own(3, 'attn/fro', i + 1, 0, last))]));
        const picker = panel.getByLabel(/which series/);
        for (const layer of [2, 1, 11, 12]) {
            await picker.selectOption({ label: `Layer ${layer}: heads` });
            const wanted = Array.from({ length: HEADS }, (_, i) => [`head ${i + 1}`, shown(own(3, 'attn/fro', layer, i + 1, last))]);
            await until(`the heads of layer ${layer}`, async () => {
                assert.deepEqual(await legend(panel), wanted);
                return true;
            });
            /* Every number of the table: the test's own, and the API's series of that very key. */
            const rows = await table(panel);
            assert.equal(rows.length, HEADS * STEPS.length);
            for (let head = 1; head <= HEADS; head++) {
                const { series: [{ data }] } = await daemon.get(`/api/v1/runs/${run}/series?key=attn/fro/${layer}/${head}&buckets=1000`);
                assert.deepEqual(data.map(b => [b.first_step, b.mean]), STEPS.map((step, at) => [step, own(3, 'attn/fro', layer, head, at)]));
                const mine = rows.filter(row => row.name === `head ${head}`).sort((a, b) => a.step - b.step);
                assert.deepEqual(mine.map(row => [row.step, row.min, row.mean, row.max, row.n]), data.map(b => [b.first_step, shown(b.min), shown(b.mean), shown(b.max), '1']));
            }
        }
        await picker.selectOption({ label: 'All layers' });
        await until('the layers again', async () => (await legend(panel)).length === LAYERS);
        /* Another panel has its own numbers, and no heads to choose. */
        const other = page.locator('[data-panel="logit/max"]');
        assert.deepEqual(await legend(other), Array.from({ length: LAYERS }, (_, i) => [`layer ${i + 1}`, shown(own(3, 'logit/max', i + 1, 0, last))]));
        assert.equal(await other.getByLabel(/which series/).isVisible(), false);
        await browser.close(page);
    });

    test('test_e2e_comparison_of_a_layer_shows_that_layers_numbers', async () => {
        const runs = [[5, await madeUp(daemon, 5)], [6, await madeUp(daemon, 6)]];
        const page = await browser.open(`${daemon.url}/#/compare?runs=${runs.map(([, run]) => run).join(',')}`);
        const picker = page.getByLabel('Layer', { exact: true });
        await picker.waitFor();
        assert.deepEqual(await picker.locator('option').allInnerTexts(), Array.from({ length: LAYERS }, (_, i) => `Layer ${i + 1}`));
        for (const layer of [1, 12, 3]) {
            await picker.selectOption(`Layer ${layer}`);
            for (const base of ['attn/fro', 'logit/max']) {
                const panel = page.locator(`[data-panel="${base}"]`);
                const wanted = runs.flatMap(([number, run]) => STEPS.map((step, at) => [`up ${number}`, step, shown(own(number, base, layer, 0, at))]));
                await until(`${base} of layer ${layer}`, async () => {
                    const rows = (await table(panel)).map(row => [row.name, row.step, row.mean]).sort(([a, x], [b, y]) => a.localeCompare(b) || x - y);
                    assert.deepEqual(rows, wanted);
                    return true;
                });
            }
            const [file] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'JSON' }).click()]);
            const { curves } = JSON.parse(await new Response(await file.createReadStream()).text());
            for (const [number, run] of runs) {
                const curve = curves[run].find(c => c.key === `attn/fro/${layer}`);
                assert.deepEqual(curve.buckets.map(b => [b.first, b.mean]), STEPS.map((step, at) => [step, own(number, 'attn/fro', layer, 0, at)]));
                assert.equal(curves[run].filter(c => c.key.startsWith('attn/fro/')).length, 1);
            }
        }
        /* The link opens the same layer. */
        const again = await browser.open(page.url());
        await again.getByLabel('Layer', { exact: true }).waitFor();
        assert.equal(await again.getByLabel('Layer', { exact: true }).inputValue(), '3');
        await browser.close(again);
        await browser.close(page);
    });
});
