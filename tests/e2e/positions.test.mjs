// Perplexity by position in the context and zero-shot texts, from the job to the picture and the file that is saved of it.
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { after, before, describe, test } from 'node:test';

import { Daemon } from '../lib/daemon.mjs';
import { Browser, findChromium, looks } from './browser.mjs';

describe('positions', { skip: findChromium() === null && 'no Chromium here', timeout: 240000 }, () => {
    let daemon, browser, run, scored, values;
    const latest = async id => new Map((await daemon.get(`/api/v1/runs/${id}/metrics`)).series.map(s => [s.key, s.value]));
    before(async () => {
        [daemon, browser] = await Promise.all([Daemon.start(), Browser.start()]);
        run = (await daemon.submit({
            name: 'positions', model: { preset: 'gpt_micro', width: 32, depth: 1, heads: 2 }, resources: { device: 'cpu' }, diagnostics: { every: 0 },
            data: { dataset: 'text_gen', context: 48, split: { train: 20000, val: 2000, test: 2000 }, eval: [{ dataset: 'text_gen', name: 'again' }] },
            train: { steps: 60, batch: 16, eval_every: 20 },
        })).run;
        await daemon.reach(run, 'succeeded');
        scored = (await daemon.submit({ kind: 'evaluate', run, split: 'val', resources: { device: 'cpu' } })).run;
        await daemon.reach(scored, 'succeeded');
        values = await latest(run);
    });
    after(async () => {
        await browser?.stop();
        await daemon?.stop();
    });

    const cardOf = page => page.getByRole('region', { name: 'Perplexity by position in the context' });
    const ranges = [1, 2, 4, 8, 16, 32, 48];

    test('test_e2e_positions_are_drawn_and_saved_as_they_were_reported', async () => {
        const page = await browser.open(`${daemon.url}/#/runs/${run}?tab=charts`), card = cardOf(page);
        await card.locator('svg.scatter').waitFor();
        const marks = await card.locator('svg.scatter [role="img"]').evaluateAll(all => all.map(mark => mark.getAttribute('aria-label')));
        assert.equal(marks.length, 3 * ranges.length);
        for (const name of ['validation', 'test', 'zero-shot: again'])
            assert.ok(marks.some(text => text.startsWith(`${name}, 33 to 48 tokens of context: `)), `${name} of ${marks}`);
        await card.getByRole('button', { name: 'Perplexity by position in the context: save' }).click();
        const [file] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'CSV', exact: true }).last().click()]);
        const rows = (await readFile(await file.path(), 'utf8')).trim().split('\n').slice(1).map(line => line.split(','));
        assert.equal(rows.length, 3 * ranges.length);
        const keys = { validation: 'ppl/val_at/', test: 'ppl/test_at/', 'zero-shot: again': 'ppl/eval_at/again/' };
        for (const [name, position, value] of rows)
            assert.equal(Number(value), values.get(`${keys[name]}${position}`), `${name} ${position}`);
        // No charts of single points beside it.
        assert.equal(await page.locator('[data-panel^="ppl_at"], [data-panel*="_at"]').count(), 0);
        await browser.close(page);
    });

    test('test_e2e_positions_of_an_evaluation_stand_under_its_results', async () => {
        const page = await browser.open(`${daemon.url}/#/runs/${scored}`), card = cardOf(page);
        await card.locator('svg.scatter').waitFor();
        assert.equal(await card.locator('svg.scatter [role="img"]').count(), ranges.length);
        const keys = await page.locator('table.results tbody tr').evaluateAll(rows => rows.map(r => r.cells[2].textContent));
        assert.deepEqual(keys, ['loss/val', 'ppl/val']);
        await browser.close(page);
    });

    for (const look of looks)
        test(`test_e2e_positions_look_${look.name}`, () => browser.inspect(daemon.url, look, [
            ['positions', `#/runs/${run}?tab=charts`, '.positions svg.scatter'],
            ['positions-evaluation', `#/runs/${scored}`, '.positions svg.scatter'],
        ]));
});
