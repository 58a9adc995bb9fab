// A stranger's walk: find the best run of a sweep, see which settings differ, run it again with a smaller rate, hand the link on.
// Once by mouse alone, once by keys alone, in at most twelve actions: an action is a control that is used, however one gets to it.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';

import { build, Daemon, freePort, until } from '../lib/daemon.mjs';
import { Browser, findChromium } from './browser.mjs';

const skip = findChromium() === null && 'no Chromium here';
const MOST = 12;

describe('a stranger', { skip, timeout: 300000 }, () => {
    /** @type {Daemon} */ let daemon;
    /** @type {Browser} */ let browser;
    before(async () => {
        const stateDir = mkdtempSync(path.join(os.tmpdir(), 'polyd-'));
        execFileSync(path.join(build, 'bin/seed_store'), [stateDir, '40'], { stdio: 'ignore' });
        daemon = new Daemon(stateDir, await freePort(), []);
        [, browser] = await Promise.all([daemon.up(), Browser.start()]);
    });
    after(async () => {
        await browser?.stop();
        await daemon?.stop();
    });

    const byMouse = page => async what => {
        /* A page that still comes may draw it anew: an eye finds it again. */
        await until('it to stay', () => what.first().scrollIntoViewIfNeeded().then(() => true));
        const box = await what.first().boundingBox();
        await page.mouse.click(box.x + box.width / 2, box.y + box.height / 2);
    };
    const byKeys = page => async what => {
        /* The page may still come and draw it anew, so it is looked up each time. */
        const back = await what.first().evaluate(el => Boolean(document.activeElement.compareDocumentPosition(el) & Node.DOCUMENT_POSITION_PRECEDING) && document.activeElement !== document.body && !document.activeElement.contains(el));
        for (let i = 0; i < 120; i++) {
            await page.keyboard.press(back ? 'Shift+Tab' : 'Tab');
            if (await what.first().evaluate(el => el === document.activeElement)) {
                await page.keyboard.press('Enter');
                return;
            }
        }
        assert.fail(`no way by Tab to ${what}`);
    };

    for (const [how, hand] of [['mouse', byMouse], ['keys', byKeys]])
        test(`test_e2e_stranger_finds_repeats_and_hands_on_by_${how}_alone`, async () => {
            const page = await browser.open(`${daemon.url}/`);
            await page.context().grantPermissions(['clipboard-read', 'clipboard-write']);
            await page.locator('.grid-row').first().waitFor();
            let actions = 0;
            const use = async what => {
                actions++;
                await what.first().waitFor();
                await hand(page)(what);
            };
            await use(page.getByRole('link', { name: 'Sweeps', exact: true }));
            await use(page.getByRole('link', { name: 'scale sweep N=16' }));
            await page.locator('.tile', { hasText: 'Best run' }).waitFor();
            const best = (await page.locator('.tile', { hasText: 'Best run' }).getByRole('link').innerText()).slice(1);
            const { best_run: truth } = await daemon.get('/api/v1/jobs/1/sweep?value=last');
            assert.equal(best, truth.run_id);
            await use(page.getByRole('link', { name: /Compare/ }));
            /* Which settings differ stands there: k, and the seeds of the trials. */
            const settings = page.locator('[aria-label="Configuration of each run"] th[scope="row"]');
            await settings.first().waitFor();
            assert.ok((await settings.allInnerTexts()).includes('attention.k'));
            await use(page.locator(`.member a[href="#/runs/${best}"]`));
            await use(page.getByRole('link', { name: 'Edit and run again' }));
            await page.getByText('Valid.').waitFor();
            const document = () => page.getByLabel('Job document, JSON').inputValue().then(JSON.parse);
            const before_ = await document();
            assert.equal(before_.attention.k, (await daemon.get(`/api/v1/runs/${best}`)).sweep['/attention/k']);
            await use(page.getByRole('button', { name: 'Peak rate ÷ 2' }));
            await until('a smaller rate', async () => (await document()).train.optimizer.lr === before_.train.optimizer.lr / 2);
            await page.getByText('Valid.').waitFor();
            await until('the check of it', async () => page.getByRole('button', { name: 'Submit' }).isEnabled());
            await use(page.getByRole('button', { name: 'Submit' }));
            await page.locator('.grid-row').first().waitFor();
            const { runs: [again] } = await daemon.get('/api/v1/runs?limit=1');
            assert.equal((await daemon.get(`/api/v1/runs/${again.id}`)).document.train.optimizer.lr, before_.train.optimizer.lr / 2);
            await use(page.locator('.grid-row .name'));
            await page.getByRole('tab', { name: 'Configuration' }).waitFor();
            await use(page.getByRole('button', { name: 'Copy the link to this view' }));
            await page.getByText('Link to this view copied').waitFor();
            const link = await page.evaluate(() => navigator.clipboard.readText());
            assert.ok(actions + 1 <= MOST, `${actions + 1} actions`);
            const title = await page.locator('h1').innerText();
            await browser.close(page);
            const fresh = await browser.open(link); /* a profile of its own */
            await fresh.locator('h1', { hasText: title }).waitFor();
            assert.equal(fresh.url(), link);
            assert.match(await fresh.locator('.sub').first().innerText(), new RegExp(`#${again.id}`));
            await browser.close(fresh);
            await daemon.post(`/api/v1/runs/${again.id}/cancel`).catch(() => {});
        });
});
