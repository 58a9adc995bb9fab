// What the pages say is what the API says and what was put in: the drawing pad's digit and probabilities, the heads of
// a layer, and the layers of a comparison, in a real Chromium. The numbers of a run are the test's own: each names its
// key and step, so that a wrong head, layer or step shows.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';

import { Daemon, until } from '../lib/daemon.mjs';
import { Browser, findChromium } from './browser.mjs';

const skip = findChromium() === null && 'no Chromium here';

/** Digits as one draws them with a mouse, in strokes on a grid of 100. */
const drawn = {
    0: [[[50, 15], [34, 22], [26, 40], [26, 60], [34, 78], [50, 86], [66, 78], [74, 60], [74, 40], [66, 22], [50, 15]]],
    1: [[[50, 12], [50, 88]]],
    2: [[[28, 30], [34, 18], [50, 13], [66, 18], [71, 32], [64, 48], [46, 66], [27, 86], [76, 86]]],
    3: [[[28, 22], [40, 14], [58, 14], [70, 24], [68, 38], [52, 48], [68, 56], [72, 70], [62, 84], [44, 88], [28, 80]]],
    4: [[[58, 12], [24, 62], [78, 62]], [[60, 38], [60, 90]]],
    6: [[[66, 14], [46, 24], [32, 44], [28, 66], [36, 82], [52, 88], [68, 80], [72, 66], [62, 54], [46, 52], [32, 62]]],
    7: [[[24, 16], [76, 16], [62, 42], [48, 88]]],
    9: [[[70, 32], [60, 18], [42, 16], [30, 28], [32, 44], [46, 52], [62, 46], [70, 32], [68, 60], [58, 88]]],
};

async function stroke(page, digit) {
    const box = await page.locator('.pad-canvas').boundingBox();
    const at = ([x, y]) => [box.x + x / 100 * box.width, box.y + y / 100 * box.height];
    for (const points of drawn[digit]) {
        await page.mouse.move(...at(points[0]));
        await page.mouse.down();
        for (const point of points.slice(1))
            await page.mouse.move(...at(point), { steps: 3 });
        await page.mouse.up();
    }
}

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

    test('test_e2e_drawn_digit_is_named_and_its_probabilities_are_those_of_the_api', async () => {
        const { run } = await daemon.submit({
            name: 'reads digits', model: { preset: 'vit_micro', depth: 2 }, attention: { activation: 'softmax' },
            data: { dataset: 'digits_gen', split: { rule: 'count', train: 4096, val: 512 }, augment: { crop: 'pad_crop', pad_crop: { shift: 2 } } },
            train: { epochs: 16, batch: 32, eval_every: 512, optimizer: { name: 'adamw', lr: 0.002 } }, register: 'reads-digits',
        });
        await daemon.reach(run, 'succeeded');
        const { series } = await daemon.get(`/api/v1/runs/${run}/metrics`);
        assert.ok(series.find(s => s.key === 'acc/val').value > 0.93, 'the model learned to read');
        await until('the model to be registered', async () => (await daemon.get('/api/v1/models')).models.length > 0);
        await daemon.post('/api/v1/models/reads-digits/versions/1/load');
        const page = await browser.open(`${daemon.url}/#/models/reads-digits`);
        await page.locator('.pad-canvas').waitFor();
        for (const digit of Object.keys(drawn)) {
            await page.getByRole('button', { name: 'Clear' }).click();
            await page.getByText('Draw a digit.', { exact: true }).waitFor();
            await stroke(page, digit);
            /* The picture that the model sees is read from the page; the test asks the API about it by itself. Answers to parts of
             * the drawing come first: what stands at last counts. */
            await until(`the page to name the drawn ${digit}`, async () => {
                const now = await page.evaluate(() => {
                    const seen = document.querySelector('.seen'), of = row => [row.querySelector('.label').textContent, row.querySelector('.value').textContent];
                    return {
                        grey: [...seen.getContext('2d').getImageData(0, 0, seen.width, seen.height).data].filter((_, i) => i % 4 === 0),
                        bars: [...document.querySelectorAll('.bars li')].map(of), best: of(document.querySelector('.bars li.best')),
                        said: document.querySelector('.verdict').textContent,
                    };
                });
                const reply = await daemon.post('/v2/models/reads-digits/versions/1/infer', { inputs: [{ name: 'image', shape: [1, 1, 28, 28], datatype: 'UINT8', data: now.grey }], outputs: [{ name: 'probabilities' }] });
                assert.deepEqual(now.bars, reply.outputs[0].data.map((p, i) => [String(i), `${(p * 100).toFixed(p >= 0.9995 || p === 0 ? 0 : p >= 0.1 ? 1 : 2)} %`]));
                assert.deepEqual([now.best[0], /\d/.exec(now.said)[0]], [digit, digit], now.said);
                assert.ok(now.said.includes(now.best[1]), now.said);
                /* What the model sees is the drawing: as large as MNIST's digits, its mass in the middle, turned and mirrored by nobody.
                 * Each of its pixels is compared with the mean of the square of the pad that it stands for. */
                const { side, x, y, likeness } = await page.evaluate(() => {
                    const grey = what => {
                        const canvas = document.querySelector(what), n = canvas.width;
                        const data = canvas.getContext('2d').getImageData(0, 0, n, n).data;
                        const sum = { n, at: (x, y) => (x < 0 || y < 0 || x >= n || y >= n ? 0 : data[(Math.floor(y) * n + Math.floor(x)) * 4]), left: n, right: -1, top: n, bottom: -1, x: 0, y: 0 };
                        let mass = 0;
                        for (let y = 0; y < n; y++)
                            for (let x = 0; x < n; x++) {
                                const v = sum.at(x, y);
                                if (v > 24)
                                    Object.assign(sum, { left: Math.min(sum.left, x), right: Math.max(sum.right, x), top: Math.min(sum.top, y), bottom: Math.max(sum.bottom, y) });
                                mass += v;
                                sum.x += v * (x + .5);
                                sum.y += v * (y + .5);
                            }
                        return Object.assign(sum, { x: sum.x / mass, y: sum.y / mass, side: Math.max(sum.right - sum.left, sum.bottom - sum.top) + 1 });
                    };
                    const pad = grey('.pad-canvas'), seen = grey('.seen'), per = pad.side / 20;
                    let ab = 0, aa = 0, bb = 0;
                    for (let y = 0; y < seen.n; y++)
                        for (let x = 0; x < seen.n; x++) {
                            let mean = 0;
                            for (let k = 0; k < 64; k++)
                                mean += pad.at(pad.x + (x + (k % 8 + .5) / 8 - seen.x) * per, pad.y + (y + (Math.floor(k / 8) + .5) / 8 - seen.y) * per) / 64;
                            const v = seen.at(x, y);
                            ab += v * mean;
                            aa += v * v;
                            bb += mean * mean;
                        }
                    return { side: seen.side, x: seen.x, y: seen.y, likeness: ab / Math.sqrt(aa * bb) };
                });
                assert.ok(Math.abs(side - 20) <= 1.5, `${digit}: ${side} px`);
                assert.ok(Math.hypot(x - 14, y - 14) < 1, `${digit}: the mass stands at ${x}, ${y}`);
                assert.ok(likeness > .9, `${digit}: ${likeness} like what was drawn`);
                return true;
            }, { limit: 10000 });
        }
        await browser.close(page);
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
