// Archive and delete from the pages: with a question before, gone from the table, found again by its filter; what the server's
// folder takes.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';

import { Daemon, until } from '../lib/daemon.mjs';
import { Browser, findChromium, looks } from './browser.mjs';

describe('getting rid of things', { skip: findChromium() === null && 'no Chromium here' }, () => {
    let daemon, browser;
    before(async () => {
        [daemon, browser] = await Promise.all([Daemon.start(), Browser.start()]);
    });
    after(async () => {
        await browser?.stop();
        await daemon?.stop();
    });

    const small = more => ({
        name: 'short lived', model: { preset: 'vit_micro', patch: 14, depth: 1 }, diagnostics: { every: 0 },
        data: { dataset: 'digits_gen', split: { rule: 'count', train: 64, val: 32 } }, train: { steps: 6, batch: 8, eval_every: 3 }, ...more,
    });

    test('test_e2e_a_run_is_archived_found_again_and_deleted', async () => {
        const { id: job, run_ids: [one, two] } = await daemon.post('/api/v1/jobs', small({ trials: 2 }));
        await daemon.reach(one, 'succeeded');
        await daemon.reach(two, 'succeeded');
        const { id: other, run_ids: others } = await daemon.post('/api/v1/jobs', small({ name: 'in the open list', trials: 2 }));
        for (const run of others)
            await daemon.reach(run, 'succeeded');
        for (const look of looks)
            await browser.inspect(daemon.url, look, [['away-run', `#/runs/${one}`, 'role=button[name="Delete"]'], ['away-job', `#/jobs/${job}`, 'role=button[name="Delete"]'],
                ['storage', '#/devices', 'text=of 16']]);
        const page = await browser.open(`${daemon.url}/#/runs/${one}`, { quiet: /40[49]/ }); // the job with a model is refused
        await page.getByText(/ on disk/).waitFor();
        await page.getByRole('button', { name: 'Archive' }).click();
        await page.getByRole('button', { name: 'Unarchive' }).waitFor();
        await page.getByText(/archived just now|archived \d+ s/).first().waitFor();
        await page.goto(`${daemon.url}/#/?job=${job}`);
        await page.getByText('1 run', { exact: true }).waitFor();
        await page.getByRole('button', { name: 'Archived' }).click();
        await page.getByRole('link', { name: 'short lived' }).first().waitFor();

        await page.goto(`${daemon.url}/#/runs/${one}`);
        await page.getByRole('button', { name: 'Delete' }).click();
        const dialog = page.getByRole('dialog');
        assert.match(await dialog.innerText(), /Delete this run\?[\s\S]*[KM]iB\) are deleted permanently[\s\S]*cannot be undone/);
        await dialog.getByRole('button', { name: 'Keep it' }).click();
        assert.equal((await daemon.get(`/api/v1/runs/${one}`)).id, one);
        await page.getByRole('button', { name: 'Delete' }).click();
        await dialog.getByRole('button', { name: 'Delete the run' }).click();
        await page.getByText('The run is deleted.').waitFor();
        await assert.rejects(daemon.get(`/api/v1/runs/${one}`), /404/);
        await until('the folder to go', () => !existsSync(path.join(daemon.stateDir, 'runs', one)));

        const list = await browser.open(`${daemon.url}/#/sweeps`);
        await list.getByRole('link', { name: 'in the open list' }).waitFor();
        const { id: listed, version } = await daemon.get(`/api/v1/jobs/${other}`);
        assert.equal((await fetch(`${daemon.url}/api/v1/jobs/${listed}`, { method: 'DELETE', headers: { 'If-Match': `"${version}"` } })).status, 204);
        await list.getByRole('link', { name: 'in the open list' }).waitFor({ state: 'detached' });
        await browser.close(list);

        await daemon.post('/api/v1/models/short/versions', { run_id: two });
        await page.goto(`${daemon.url}/#/jobs/${job}`);
        await page.getByText('1 deleted').waitFor();
        await page.getByRole('button', { name: 'Delete' }).click();
        await dialog.getByRole('button', { name: 'Delete the job' }).click();
        await page.getByText(/is version 1 of model 'short': delete that version first/).waitFor();
        await page.goto(`${daemon.url}/#/models/short`);
        await page.getByRole('button', { name: 'Delete version 1' }).click();
        await dialog.getByRole('button', { name: 'Delete the version' }).click();
        await page.getByText('It has no version yet.').waitFor();
        await page.goto(`${daemon.url}/#/jobs/${job}`);
        await page.getByRole('button', { name: 'Delete' }).click();
        await dialog.getByRole('button', { name: 'Delete the job' }).click();
        await page.getByText('The job is deleted.').waitFor();
        await assert.rejects(daemon.get(`/api/v1/jobs/${job}`), /404/);
        await browser.close(page);
    });

    test('test_e2e_older_sweeps_are_listed_once_after_one_was_deleted', async () => {
        const many = await Daemon.start();
        try {
            const ids = [];
            for (let i = 0; i < 53; i++) {
                ids.push((await many.post('/api/v1/jobs', small({ name: `sweep ${i}.`, trials: 2 }))).id);
                await many.post(`/api/v1/jobs/${ids[i]}/cancel`);
            }
            const ended = async () => (await many.get('/api/v1/jobs?limit=100')).jobs.every(({ state }) => ['cancelled', 'done'].includes(state));
            await until('the sweeps to end', ended);
            const page = await browser.open(`${many.url}/#/sweeps`), older = page.getByRole('button', { name: 'Show older ones' });
            const shown = () => page.locator('tbody a').allInnerTexts();
            await older.waitFor();
            assert.equal((await shown()).length, 50);
            const gone = async i => {
                const { version } = await many.get(`/api/v1/jobs/${ids[i]}`);
                assert.equal((await fetch(`${many.url}/api/v1/jobs/${ids[i]}`, { method: 'DELETE', headers: { 'If-Match': `"${version}"` } })).status, 204);
                await page.getByRole('link', { name: `sweep ${i}.`, exact: true }).waitFor({ state: 'detached' });
            };
            await gone(20);
            await older.click();
            await page.getByRole('link', { name: 'sweep 0.', exact: true }).waitFor();
            const names = Array.from({ length: 53 }, (_, i) => `sweep ${52 - i}.`).filter(name => name !== 'sweep 20.');
            assert.deepEqual(await shown(), names);
            /* With fewer than a page holds there are no older ones, though they were there at first. */
            await page.reload();
            await older.waitFor();
            for (const i of [21, 22])
                await gone(i);
            await older.waitFor({ state: 'hidden' });
            assert.deepEqual(await shown(), names.filter(name => !/ 2[12]\./.test(name)));
            await browser.close(page);
        } finally {
            await many.stop();
        }
    });
});
