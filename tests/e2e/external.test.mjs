// A run that its client carries out, on the page: in the table among the others, with a page that offers what makes sense.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';

import { Daemon } from '../lib/daemon.mjs';
import { Browser, findChromium, looks } from './browser.mjs';

describe('runs of one’s own', { skip: findChromium() === null && 'no Chromium here' }, () => {
    let daemon, browser, open, lost, beats;
    before(async () => {
        [daemon, browser] = await Promise.all([Daemon.start({ flags: ['--runs.silence_s=5'] }), Browser.start()]);
        lost = (await daemon.post('/api/v1/runs', { name: 'went quiet', experiment: 'own' })).id;
        await daemon.reach(lost, 'lost');
        open = (await daemon.post('/api/v1/runs', { name: 'by hand', experiment: 'own', tags: { who: 'me' }, config: { lr: 0.25, net: { depth: 3 } }, total_steps: 40 })).id;
        await daemon.post(`/api/v1/runs/${open}/metrics`, { points: [...Array(20)].map((_, i) => ({ key: 'loss/val', step: i + 1, value: 1 / (i + 1) })) });
        await daemon.post(`/api/v1/runs/${open}/logs`, { text: 'a line of its own\n' });
        beats = setInterval(() => daemon.post(`/api/v1/runs/${open}/heartbeat`).catch(() => {}), 1000); // it stays alive, however slow the browser is
    });
    after(async () => {
        clearInterval(beats);
        await browser?.stop();
        await daemon?.stop();
    });
    test('the table names the kind, and the page offers only what makes sense', async () => {
        const page = await browser.open(`${daemon.url}/`);
        const row = page.getByRole('row').filter({ hasText: 'by hand' });
        await row.getByText('external').waitFor();
        await page.getByRole('row').filter({ hasText: 'went quiet' }).getByText('Lost', { exact: true }).waitFor();
        await row.getByRole('link', { name: 'by hand' }).click();
        await page.getByRole('tab', { name: 'Charts' }).waitFor();
        assert.deepEqual(await page.getByRole('tab').allTextContents(), ['Charts', 'Log', 'Configuration', 'Events']);
        await page.getByText('Step 20 of 40').first().waitFor();
        assert.deepEqual(await page.locator('.head .row button:visible').allTextContents(), ['Cancel']);
        await page.getByRole('tab', { name: 'Log' }).click();
        await page.getByText('a line of its own').waitFor();
        await page.getByRole('tab', { name: 'Configuration' }).click();
        await page.getByText('0.25').waitFor();
        assert.equal(await page.getByText('Use for a new job').count(), 0);
        assert.equal(await page.getByRole('link', { name: /^job / }).count(), 0); // there is no document to send again
        // Another tab by the keyboard: the hidden one is passed over.
        await page.getByRole('tab', { name: 'Log' }).click();
        await page.keyboard.press('ArrowRight');
        assert.equal(await page.getByRole('tab', { name: 'Configuration' }).getAttribute('aria-selected'), 'true');
        await page.goto(`${daemon.url}/#/runs/${lost}?tab=checkpoints`);
        await page.getByText('nothing was heard of it for 5 s').waitFor();
        await page.getByText('The run continues with its next message.').waitFor();
        assert.deepEqual(await page.locator('.head .row button:visible').allTextContents(), ['Archive', 'Delete']);
        assert.equal(await page.getByRole('tab', { name: 'Charts' }).getAttribute('aria-selected'), 'true');
        await browser.close(page);
    });

    for (const look of looks)
        test(`it is whole and accessible: ${look.name}`, () => browser.inspect(daemon.url, look, [['external-run', `#/runs/${open}`, 'canvas'],
            ['external-lost', `#/runs/${lost}?tab=config`, '.note'], ['external-table', '#/', 'text=by hand']]));
});
