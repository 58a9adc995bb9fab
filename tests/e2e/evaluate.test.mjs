// An evaluation from the button to its numbers: of a checkpoint on the page of its run, and of a version of a model.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';

import { Daemon, until } from '../lib/daemon.mjs';
import { Browser, findChromium, looks } from './browser.mjs';

describe('evaluations', { skip: findChromium() === null && 'no Chromium here', timeout: 240000 }, () => {
    let daemon, browser, run, scored;
    before(async () => {
        [daemon, browser] = await Promise.all([Daemon.start(), Browser.start()]);
        run = (await daemon.submit({
            name: 'digits', model: { preset: 'vit_micro', width: 8, depth: 1, heads: 2, patch: 14 }, register: 'digits',
            data: { dataset: 'digits_gen', split: { rule: 'count', train: 64, val: 16 } }, resources: { device: 'cpu' },
            train: { steps: 6, batch: 16, eval_every: 2, ema: 0.9, checkpoint_every: { steps: 3 }, keep: { latest: 10, best: 1 } },
        })).run;
        await daemon.reach(run, 'succeeded');
        await until('the model', async () => (await daemon.get('/api/v1/models/digits')).versions.length === 1);
    });
    after(async () => {
        await browser?.stop();
        await daemon?.stop();
    });

    test('from the button beside a checkpoint to its numbers', async () => {
        const page = await browser.open(`${daemon.url}/#/runs/${run}?tab=checkpoints`);
        await page.getByRole('link', { name: 'Evaluate the checkpoint of step 3' }).click();
        const editor = page.getByLabel('Job document, JSON');
        await page.getByText('Valid.').waitFor();
        assert.deepEqual(JSON.parse(await editor.inputValue()), { kind: 'evaluate', run, checkpoint: 3, split: 'test' });
        await page.getByText(/parameters, 16 samples to score/).waitFor();
        assert.equal(await page.getByText('Common settings').isVisible(), false, 'the settings of training are none of it');
        await page.getByRole('button', { name: 'Submit' }).click();
        const row = page.getByRole('row').filter({ hasText: `evaluate of run ${run}, step 3` });
        await row.getByText('evaluate', { exact: false }).first().waitFor();
        scored = (await daemon.get('/api/v1/runs?kind=evaluate')).runs[0].id;
        await daemon.reach(scored, 'succeeded');
        await row.getByRole('link', { name: 'evaluate of run' }).click();
        // Its numbers are a table, not curves of one point.
        await page.getByRole('region', { name: 'Results' }).waitFor();
        assert.deepEqual(await page.getByRole('tab').allTextContents(), ['Results', 'Log', 'Configuration', 'Events']);
        assert.equal(await page.locator('canvas').count(), 0);
        const { series } = await daemon.get(`/api/v1/runs/${scored}/metrics`), value = key => series.find(s => s.key === key).value;
        const shown = await page.locator('table.results tbody tr').evaluateAll(rows => rows.map(r => [...r.cells].slice(0, 3).map(c => c.textContent)));
        assert.deepEqual(shown.map(([, , key]) => key), ['loss/test', 'loss/test_ema', 'acc/test', 'acc/test_ema']);
        const [[title, loss], , [, accuracy]] = shown;
        assert.match(title, /^Test loss/);
        assert.ok(Math.abs(Number(loss) - value('loss/test')) < 1e-3, loss);
        assert.ok(Math.abs(parseFloat(accuracy) / 100 - value('acc/test')) < 1e-3, accuracy);
        await page.getByText('digits_gen, test part').waitFor();
        assert.deepEqual(await page.locator('.head .row button:visible').allTextContents(), ['Run again', 'Archive', 'Delete']);
        await page.getByRole('link', { name: `run #${run}` }).click();
        await page.getByRole('region', { name: 'Checkpoints' }).waitFor();
        await browser.close(page);
    });

    test('from the button beside a version of a model', async () => {
        const page = await browser.open(`${daemon.url}/#/models/digits`);
        await page.getByRole('link', { name: 'Evaluate version 1' }).click();
        await page.getByText('Valid.').waitFor();
        assert.deepEqual(JSON.parse(await page.getByLabel('Job document, JSON').inputValue()), { kind: 'evaluate', model: 'digits:1', split: 'test' });
        await browser.close(page);
    });

    test('a kind that the page does not know has its name and its curves', async () => {
        const { run: tested } = await daemon.submit({ kind: 'selftest', name: 'tested', resources: { device: 'cpu' } });
        await daemon.reach(tested, 'succeeded');
        const page = await browser.open(`${daemon.url}/#/runs/${tested}`);
        await page.locator('canvas').first().waitFor();
        await page.getByText('selftest', { exact: true }).first().waitFor();
        await page.goto(`${daemon.url}/#/submit?run=${tested}`);
        await page.getByText('Valid.').waitFor();
        await browser.close(page);
    });

    for (const look of looks)
        test(`it is whole and accessible: ${look.name}`, () => browser.inspect(daemon.url, look, [['evaluate-run', `#/runs/${scored}`, 'table.results'],
            ['evaluate-checkpoints', `#/runs/${run}?tab=checkpoints`, 'text=Evaluate'], ['evaluate-submit', `#/submit?evaluate=${run}&checkpoint=3`, 'text=Valid.'],
            ['evaluate-models', '#/models/digits', 'text=Evaluate']]));
});
