// The Attention tab of a run: what it draws, says and keeps in its address, by pointer and by keyboard; without matrices,
// loading and failed.
import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { after, before, describe, test } from 'node:test';
import { Daemon, polyd } from '../lib/daemon.mjs';
import { Browser, findChromium, looks } from './browser.mjs';

const skip = !existsSync(polyd) ? 'polyd is not built' : findChromium() ? false : 'there is no Chromium';
const job = (more = {}, heatmaps = {}) => ({
    name: 'maps', model: { preset: 'vit_micro', width: 16, depth: 2, heads: 2, patch: 7, pool: 'cls' }, attention: { activation: 'poly', degree: 3, scale: 'learned', init_logit_std: 0.6 },
    data: { dataset: 'digits_gen', split: { rule: 'count', train: 64, val: 16 } }, resources: { device: 'cpu', threads: 1 },
    train: { steps: 6, batch: 16, eval_every: 6, init: 'trunc_xavier' }, diagnostics: { every: 2, probe_batch: 4, heatmaps: { every: 2, ...heatmaps }, histograms: {} }, ...more,
});
let daemon, browser, run, text, bare;

describe('attention', { skip }, () => {
    before(async () => {
        [daemon, browser] = await Promise.all([Daemon.start({ flags: ['--devices.cpu_slots=2'] }), Browser.start()]);
        run = (await daemon.submit(job())).run;
        text = (await daemon.submit({ ...job({}, { layers: [1], heads: [2] }), name: 'softmax', attention: {}, model: { preset: 'gpt_micro', width: 16, depth: 1, heads: 2, context: 16 }, data: { dataset: 'text_gen', context: 16 } })).run;
        bare = (await daemon.submit(job({ name: 'bare', diagnostics: { every: 2, probe_batch: 4 } }))).run;
        for (const id of [run, text, bare])
            await daemon.reach(id, 'succeeded');
    });
    after(async () => {
        await browser?.stop();
        await daemon?.stop();
    });

    const open = (id, query = '', look = {}) => browser.open(`${daemon.url}/#/runs/${id}?tab=attention${query}`, look);
    const card = (page, name) => page.getByRole('region', { name, exact: true });
    /** Waits until the picture is drawn. */
    const drawn = picture => picture.locator('canvas:not([aria-label$=": loading"])').waitFor();
    /** What a cell's readout says, as a number. */
    const read = async picture => Number(/: (-?[\d.e-]+)/.exec(await picture.locator('.picture-read').textContent())?.[1]);
    const numbers = async (id, key, step) => {
        const { blobs } = await daemon.get(`/api/v1/runs/${id}/blobs?key=${encodeURIComponent(key)}`), blob = blobs.find(b => b.step === step);
        return new Float32Array(await (await fetch(`${daemon.url}/api/v1/runs/${id}/blobs/${blob.id}`)).arrayBuffer());
    };

    test('test_e2e_attention_shows_the_stored_matrix_cell_by_cell', async () => {
        const page = await open(run, '&layer=2&head=1&at=4'), a = card(page, 'Attention'), soft = card(page, 'Softmax of the same logits');
        await drawn(a);
        await drawn(soft);
        assert.match(await a.locator('canvas').getAttribute('aria-label'), /^A of layer 2, head 1 at step 4, mean over 4 samples: 17 queries by 17 keys/);
        const want = await numbers(run, 'attn/map/2/1', 4), other = await numbers(run, 'attn/softmax/2/1', 4);
        await a.locator('canvas').focus();
        for (const key of ['ArrowDown', 'ArrowDown', 'ArrowRight', 'ArrowDown', 'ArrowRight', 'ArrowRight']) // row 2, column 3: the first press is the first cell
            await page.keyboard.press(key);
        const words = await a.locator('.picture-read').textContent();
        assert.match(words, /^Query patch 2 \(row 1, column 2\) → key patch 3 \(row 1, column 3\): /);
        assert.ok(Math.abs(await read(a) - want[2 * 17 + 3]) <= 1e-3 * Math.abs(want[2 * 17 + 3]));
        assert.ok(Math.abs(await read(soft) - other[2 * 17 + 3]) <= 1e-3 * other[2 * 17 + 3], 'the softmax beside it looks at the same cell');
        await browser.close(page);
    });

    test('test_e2e_attention_keeps_its_view_in_the_address', async () => {
        const page = await open(run);
        const slider = page.getByRole('slider', { name: 'Step' });
        await page.getByText(/6 \(4 of 4\)/).waitFor();
        await slider.focus();
        await page.keyboard.press('ArrowLeft');
        await page.getByText(/4 \(3 of 4\)/).waitFor();
        await page.getByLabel('Layer', { exact: true }).selectOption('2');
        await page.getByLabel('Head', { exact: true }).selectOption('2');
        await page.getByLabel('Without the class token').check();
        await page.waitForFunction(() => /A of layer 2, head 2 at step 4.*16 queries by 16 keys/.test(document.querySelector('.picture canvas')?.getAttribute('aria-label') ?? ''));
        assert.match(page.url(), /layer=2.*head=2.*at=4.*bare=1/);
        const again = await browser.open(page.url());
        await again.waitForFunction(() => /A of layer 2, head 2 at step 4.*16 queries by 16 keys/.test(document.querySelector('.picture canvas')?.getAttribute('aria-label') ?? ''));
        await browser.close(again);
        await browser.close(page);
    });

    test('test_e2e_attention_of_softmax_has_one_matrix_and_a_line_of_distances', async () => {
        const page = await open(text), a = card(page, 'Attention');
        await a.locator('canvas').waitFor();
        await page.waitForFunction(() => document.querySelector('.picture h3')?.textContent === 'Attention (softmax)');
        assert.equal(await card(page, 'Softmax of the same logits').isVisible(), false);
        assert.equal(await page.getByLabel('Without the class token').isVisible(), false);
        await drawn(card(page, 'Activation over measured logits'));
        assert.match(await card(page, 'Where weight goes').locator('canvas').getAttribute('aria-label'), /the query/);
        assert.match(await card(page, 'Activation over measured logits').locator('canvas').getAttribute('aria-label'), /visible logits/);
        await browser.close(page);
    });

    test('test_e2e_attention_strips_hold_the_norms_of_layers', async () => {
        const page = await open(run), strip = card(page, 'Attention norm ‖A‖');
        await page.waitForFunction(() => /at step 6/.test(document.querySelector('[aria-label="Attention norm ‖A‖"] canvas')?.getAttribute('aria-label') ?? ''));
        await strip.locator('canvas').focus();
        await page.keyboard.press('ArrowDown');
        await page.keyboard.press('ArrowDown');
        const { series } = await daemon.get(`/api/v1/runs/${run}/series?key=${encodeURIComponent('attn/fro/2')}&buckets=100`);
        const first = series[0].data[0];
        assert.match(await strip.locator('.picture-read').textContent(), /^Layer 2, step 0: /);
        assert.ok(Math.abs(await read(strip) - first.mean) <= 1e-3 * first.mean);
        assert.match(await strip.locator('canvas').getAttribute('aria-label'), /√N = 4\.12/);
        await browser.close(page);
    });

    test('test_e2e_attention_picture_is_saved_in_every_form', async () => {
        const page = await open(run, '&layer=1&head=1&at=0'), a = card(page, 'Attention');
        await drawn(a);
        const want = await numbers(run, 'attn/map/1/1', 0);
        for (const form of ['SVG', 'PDF', 'PNG', 'CSV']) {
            await a.getByRole('button', { name: 'Attention: save' }).click();
            const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: form, exact: true }).click()]);
            assert.equal(download.suggestedFilename(), `run-${run}-attention.${form.toLowerCase()}`);
            const bytes = readFileSync(await download.path());
            if (form === 'CSV') {
                const rows = bytes.toString().trim().split('\n');
                assert.equal(rows.length, 1 + 17 * 17);
                assert.equal(rows[0], 'query,key,weight');
                assert.equal(Number(rows[1 + 17 + 2].split(',')[2]), want[17 + 2]);
            } else {
                assert.ok(bytes.length > 2000 && bytes.subarray(0, 5).toString('latin1') === { SVG: '<svg ', PDF: '%PDF-', PNG: '\x89PNG\r' }[form]);
            }
        }
        await browser.close(page);
    });

    test('test_e2e_attention_of_a_run_without_matrices_says_how_to_have_them', async () => {
        const page = await open(bare);
        await page.getByText('This run does not record attention matrices').waitFor();
        await card(page, 'Attention norm ‖A‖').locator('canvas').waitFor();
        assert.equal(await page.getByLabel('Layer', { exact: true }).isVisible(), false);
        await browser.close(page);
    });

    test('test_e2e_attention_that_cannot_be_loaded_offers_another_try', async () => {
        const page = await browser.open(`${daemon.url}/#/runs/${run}`, { quiet: /blobs/ });
        await page.route('**/blobs*', route => route.fulfill({ status: 500, contentType: 'application/problem+json', body: '{"title":"broken"}' }));
        await page.getByRole('tab', { name: 'Attention' }).click();
        await page.getByText('Attention could not be loaded').waitFor();
        await page.unroute('**/blobs*');
        await page.getByRole('button', { name: 'Try again' }).click();
        await drawn(card(page, 'Attention'));
        await browser.close(page);
    });

    for (const look of looks)
        test(`test_e2e_attention_is_whole_${look.name}`, async () => {
            await browser.inspect(daemon.url, look, [
                ['attention', `#/runs/${run}?tab=attention&layer=2&head=1`, '.picture canvas'],
                ['attention-softmax', `#/runs/${text}?tab=attention`, '.picture canvas'],
                ['attention-none', `#/runs/${bare}?tab=attention`, '.state'],
                ['gradients', `#/runs/${run}?tab=gradients`, '.picture canvas'],
                ['gradients-none', `#/runs/${bare}?tab=gradients`, '.state'],
                ['block', `#/runs/${text}?tab=config`, '.picture canvas'],
            ]);
        });

    test('test_e2e_gradients_lay_two_runs_over_each_other', async () => {
        const page = await browser.open(`${daemon.url}/#/runs/${run}?tab=gradients&with=${text}&glayer=1&gat=0`), q = card(page, 'W_Q');
        await page.waitForFunction(() => /Run #\d+: .*Run #\d+: /.test(document.querySelector('.picture canvas')?.getAttribute('aria-label') ?? ''));
        const { blobs } = await daemon.get(`/api/v1/runs/${run}/blobs?key=${encodeURIComponent('grad/histogram/w_q/1')}`);
        assert.match(await q.locator('canvas').getAttribute('aria-label'), new RegExp(`Run #${run}: ${blobs[0].meta.count} entries`));
        await q.getByText('Numbers').click();
        await q.locator('tbody tr').nth(3).waitFor(); // the table is drawn when its fold opens
        await page.getByLabel('Layer', { exact: true }).selectOption('0');
        await page.waitForFunction(() => !location.hash.includes('glayer'));
        await page.getByLabel('Logarithmic share').check();
        await page.waitForFunction(() => location.hash.includes('glog=1'));
        await browser.close(page);
    });
});
