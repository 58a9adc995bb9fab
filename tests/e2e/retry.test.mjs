// Failed runs are done again from the pages, under their numbers; a single run of a sweep is paused and resumed.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';

import { Daemon, until } from '../lib/daemon.mjs';
import { killWorker } from '../lib/worker.mjs';
import { Browser, findChromium, looks } from './browser.mjs';

describe('doing it again', { skip: findChromium() === null && 'no Chromium here' }, () => {
    let daemon, browser;
    before(async () => {
        [daemon, browser] = await Promise.all([Daemon.start(), Browser.start()]);
    });
    after(async () => {
        await browser?.stop();
        await daemon?.stop();
    });

    test('test_e2e_failed_runs_of_a_sweep_are_retried_and_one_is_paused', async () => {
        const { id, run_ids: [one, two] } = await daemon.post('/api/v1/jobs', {
            name: 'again', trials: 2, model: { preset: 'vit_micro', patch: 14, depth: 1 }, diagnostics: { every: 0 }, resources: { max_restarts: 0 },
            data: { dataset: 'digits_gen', split: { rule: 'count', train: 64, val: 32 } }, train: { steps: 100000000, batch: 8, eval_every: 1000000 },
        });
        await daemon.reach(one, 'running');
        killWorker(daemon.stateDir, one);
        await daemon.reach(one, 'failed');
        await daemon.reach(two, 'running');
        for (const look of looks)
            await browser.inspect(daemon.url, look, [['sweep-retry', `#/jobs/${id}`, 'text=Retry the failed run'], ['run-retry', `#/runs/${one}`, 'text=Retry']]);
        const page = await browser.open(`${daemon.url}/#/jobs/${id}`);
        await page.getByRole('button', { name: 'Retry the failed run' }).click();
        await until('the failed run to wait again', async () => (await daemon.get(`/api/v1/runs/${one}`)).state === 'queued');
        await page.getByRole('button', { name: 'Retry the failed run' }).waitFor({ state: 'detached' });
        await page.goto(`${daemon.url}/#/runs/${two}`);
        await page.getByRole('button', { name: 'Pause', exact: true }).click();
        await daemon.reach(two, 'paused');
        await page.getByRole('button', { name: 'Resume', exact: true }).waitFor();
        await page.getByText('Paused by you').waitFor();
        assert.equal((await daemon.reach(one, 'running')).attempts, 2);
        await page.getByRole('button', { name: 'Resume', exact: true }).click();
        await daemon.reach(two, 'queued');
        await daemon.post(`/api/v1/jobs/${id}/pause`);
        await page.getByRole('button', { name: 'Resume job' }).waitFor();
        await browser.close(page);
    });
});
