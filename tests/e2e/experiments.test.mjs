// Experiments by name, from the page to the queue: what a card says is what the API says, and its button submits that template.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';

import { Daemon, until } from '../lib/daemon.mjs';
import { Browser, findChromium } from './browser.mjs';

describe('experiments', { skip: findChromium() === null && 'no Chromium here', timeout: 240000 }, () => {
    let daemon, browser;
    // Nothing is to be trained here: the queue is what counts.
    before(async () => { [daemon, browser] = await Promise.all([Daemon.start({ flags: ['--devices.cpu_slots=1'] }), Browser.start()]); });
    after(async () => {
        await browser?.stop();
        await daemon?.stop();
    });

    test('every template has its card, and those that cannot run say why', async () => {
        const { templates } = await daemon.get('/api/v1/templates'), page = await browser.open(`${daemon.url}/#/sweeps`);
        await page.getByRole('link', { name: 'Experiments by name' }).click();
        await page.locator('#x-E18').waitFor();
        for (const { name, title, question, variants } of templates.filter(t => t.name.startsWith('E'))) {
            const card = page.getByRole('region', { name: `${name} · ${title}` });
            assert.ok((await card.innerText()).includes(question), name);
            assert.equal(await card.getByRole('button').count(), variants.small.refused ? 0 : 1, name);
            if (variants.small.refused)
                assert.ok((await card.innerText()).includes(`annot run yet: ${variants.small.refused}`), name);
        }
        await page.getByText('Checks of the theory (20)').click();
        assert.equal(await page.locator('details li').count(), 20);
        await browser.close(page);
    });

    test('the button says how much it is, and submits it', async () => {
        const page = await browser.open(`${daemon.url}/#/experiments`);
        await page.getByRole('button', { name: 'Run it small: E09' }).click();
        const dialog = page.getByRole('dialog');
        await dialog.getByText('57 runs in 2 jobs, on digits_gen.').waitFor();
        await dialog.getByRole('button', { name: 'Close' }).click();
        assert.equal((await daemon.get('/api/v1/jobs')).jobs.length, 0);
        await page.getByRole('button', { name: 'Run it small: E09' }).click();
        await dialog.getByRole('button', { name: 'Run it' }).click();
        await page.getByText('E09 is in the queue.').waitFor();
        const { jobs } = await daemon.get('/api/v1/jobs');
        assert.deepEqual(jobs.map(job => [job.template, job.experiment]), [['E09 small 2', 'E09'], ['E09 small 2', 'E09']]);
        await until('the count', async () => /\d+ runs so far/.test(await page.getByRole('region', { name: /^E09/ }).innerText()));
        await page.getByRole('link', { name: /runs so far/ }).click();
        await page.locator('.grid-row').first().waitFor();
        assert.match(page.url(), /experiment=E09/);
        for (const { id } of jobs)
            await daemon.post(`/api/v1/jobs/${id}/cancel`);
        await browser.close(page);
    });
});
