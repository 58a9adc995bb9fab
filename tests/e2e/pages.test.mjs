// Every view of the dashboard in a real browser on a real daemon: with data, empty and failed; light and dark;
// desktop and phone. Pictures are left in <build>/e2e.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';

import { Daemon, until } from '../lib/daemon.mjs';
import { Browser, findChromium, looks } from './browser.mjs';

const quick = {
    name: 'digits cubic', model: { preset: 'vit_micro', depth: 2 }, attention: { activation: 'poly', degree: 3, scale: 'learned' },
    data: { dataset: 'digits_gen', split: { rule: 'count', train: 1024, val: 256 } },
    train: { epochs: 2, batch: 32, eval_every: 8, optimizer: { name: 'adamw', lr: 0.002 } },
    diagnostics: { every: 8 }, register: 'digits',
};
const endless = { ...quick, name: 'long one', register: null, train: { ...quick.train, epochs: 5000 } };
const doomed = { ...quick, name: 'goes astray', register: null, train: { ...quick.train, optimizer: { name: 'adamw', lr: 1e6 }, nonfinite_limit: 3 } };

/** Headless pages all count as seen: with `see` the test says which are. `seen`: at the start. */
const sight = (page, seen) => page.context().addInitScript(now => {
    let seen = now;
    Object.defineProperty(document, 'hidden', { get: () => !seen });
    Object.assign(globalThis, { see: then => {
        seen = then;
        document.dispatchEvent(new Event('visibilitychange'));
    } });
}, seen);
const isStream = request => new URL(request.url()).pathname === '/api/v1/events';

const skip = findChromium() === null && 'no Chromium here';

describe('pages', { skip }, () => {
    /** @type {Daemon} */ let full;
    /** @type {Daemon} */ let empty;
    /** @type {Browser} */ let browser;
    let dataDir;
    let run;

    before(async () => {
        dataDir = mkdtempSync(path.join(os.tmpdir(), 'polyd-data-'));
        writeFileSync(path.join(dataDir, 'verse.txt'),
            'The rose is red, the violet blue, and so the day is come anew. '.repeat(400));
        writeFileSync(path.join(dataDir, 'moods.tsv'), `label\ttext\n${'good\tin a good mood\nbad\tin a bad mood\n'.repeat(40)}`);
        [full, empty, browser] = await Promise.all([Daemon.start({ flags: [`--data.test=${dataDir}`] }), Daemon.start(), Browser.start()]);
        ({ run } = await full.submit(quick));
    });
    after(async () => {
        await browser?.stop();
        await Promise.all([full?.stop(), empty?.stop()]);
        rmSync(dataDir, { recursive: true, force: true });
    });

    test('test_e2e_run_appears_and_moves_without_reload', async () => {
        const page = await browser.open(`${full.url}/`);
        await page.locator('#live[data-state="on"]').waitFor();
        const { run: second } = await full.submit({ ...quick, name: 'comes later', register: null, train: { ...quick.train, epochs: 1 } });
        const row = page.locator('.run', { hasText: 'comes later' });
        await row.waitFor();
        await row.locator('[data-state="succeeded"]').waitFor({ timeout: 120000 });
        assert.match(await row.locator('.k-value').first().innerText(), /%/);
        await full.reach(second, 'succeeded');
        await browser.close(page);
    });

    test('test_e2e_run_page_draws_its_curves_live', async () => {
        const page = await browser.open(`${full.url}/#/runs/${run}`);
        await page.locator('[data-panel="loss"] canvas').waitFor({ timeout: 60000 });
        for (const panel of ['loss', 'acc', 'lr', 'grad/norm', 'attn/fro', 'scale/c', 'logit/std'])
            await page.locator(`[data-panel="${panel}"] canvas`).waitFor({ timeout: 60000 });
        await page.locator('h1 + span [data-state="succeeded"]').waitFor({ timeout: 120000 });
        assert.match(await page.locator('.tiles').innerText(), /Validation accuracy/);
        assert.match(await page.locator('[data-panel="loss"] .chart-plot').getAttribute('aria-label'), /training [0-9.]+ at step/);
        await browser.close(page);
    });

    test('test_e2e_run_page_keeps_its_view_in_the_link', async () => {
        await full.reach(run, 'succeeded');
        const page = await browser.open(`${full.url}/#/runs/${run}`);
        const plot = page.locator('[data-panel="loss"] .u-over');
        await plot.waitFor();
        await page.getByLabel('Log scale').check();
        await page.getByLabel('Smoothing').fill('0.9');
        const box = await plot.boundingBox();
        await page.mouse.move(box.x + box.width * .3, box.y + 60);
        await page.mouse.down();
        await page.mouse.move(box.x + box.width * .7, box.y + 60, { steps: 6 });
        await page.mouse.up();
        await page.getByRole('button', { name: 'Whole run' }).waitFor();
        const link = page.url();
        assert.match(link, /log=1/);
        assert.match(link, /smooth=0\.9/);
        assert.match(link, /from=\d+&to=\d+/);
        await browser.close(page);

        const again = await browser.open(link);
        await again.getByRole('button', { name: 'Whole run' }).waitFor();
        assert.ok(await again.getByLabel('Log scale').isChecked());
        const steps = Number(/from=(\d+)/.exec(link)[1]);
        await again.locator('[data-panel="loss"] summary').click();
        await again.locator('[data-panel="loss"] tbody tr').first().waitFor();
        const rows = await again.locator('[data-panel="loss"] tbody tr').allInnerTexts();
        assert.ok(rows.length > 0);
        for (const row of rows)
            assert.ok(Number(/\t([\d,]+)/.exec(row)[1].replace(',', '')) >= steps, row);
        await again.getByRole('button', { name: 'Whole run' }).click();
        await until('the zoom to leave the link', async () => !again.url().includes('from='));
        await browser.close(again);
    });

    test('test_e2e_seventh_page_loads_as_those_out_of_sight_give_their_streams_back', async () => {
        await full.reach(run, 'succeeded');
        await until('its model', async () => (await full.get('/api/v1/models')).models.length > 0);
        const first = await browser.open('about:blank', { origin: full.url });
        await sight(first, true);
        const pages = [first];
        for (let i = 0; i < 7; i++) {
            const page = pages[i] ?? await first.context().newPage();
            pages[i] = page;
            await page.goto(`${full.url}/`);
            await page.locator('#live[data-state="on"]').waitFor();
            await page.locator('.run').first().waitFor();
            if (i < 6)
                await page.evaluate(() => globalThis.see(false));
        }
        /* Back in sight, the first goes on after the last event that it knows of: nothing had happened before. */
        const { id } = await full.post('/api/v1/runs', { name: 'while away' });
        await pages[6].locator('.run', { hasText: 'while away' }).waitFor();
        const again = first.waitForRequest(isStream);
        await first.evaluate(() => globalThis.see(true));
        assert.match((await again).headers()['last-event-id'] ?? '', /^\d+$/);
        await first.locator('.run', { hasText: 'while away' }).waitFor();
        assert.equal(await first.locator('#live').getAttribute('data-state'), 'on');
        await full.post(`/api/v1/runs/${id}/finish`, { outcome: 'succeeded' });
        await browser.close(first);
    });

    test('test_e2e_page_opened_out_of_sight_misses_no_event', async () => {
        const { id } = await full.post('/api/v1/runs', { name: 'out of sight' });
        const page = await browser.open('about:blank', { origin: full.url });
        await sight(page, false);
        await page.goto(`${full.url}/#/runs/${id}?tab=events`);
        await page.locator('.timeline li').first().waitFor();
        const known = await page.locator('.timeline li').count();
        await full.post(`/api/v1/runs/${id}/finish`, { outcome: 'succeeded' });
        await page.evaluate(() => globalThis.see(true));
        await page.locator('h1 + span [data-state="succeeded"]').waitFor();
        await page.locator('.timeline li', { hasText: 'succeeded' }).first().waitFor();
        assert.ok(await page.locator('.timeline li').count() > known);
        await browser.close(page);
    });

    test('test_e2e_table_of_runs_is_not_loaded_anew_when_its_page_comes_back_into_sight', async () => {
        const many = await Daemon.start();
        try {
            for (let i = 0; i < 120; i++)
                await many.post('/api/v1/runs', { name: `run ${i}` });
            const page = await browser.open('about:blank', { origin: many.url });
            await sight(page, true);
            let loads = 0;
            page.on('request', request => { loads += Number(/[?&]cursor=/.test(request.url())); });
            await page.goto(many.url);
            await page.locator('#live[data-state="on"]').waitFor();
            await page.locator('.run').first().waitFor();
            await until('the pages behind the first', async () => loads === 1);
            const ended = page.waitForEvent('requestfailed', { predicate: isStream });
            await page.evaluate(() => globalThis.see(false));
            await ended;
            await many.post('/api/v1/runs', { name: 'while away' });
            await page.evaluate(() => globalThis.see(true));
            await page.locator('.run', { hasText: 'while away' }).waitFor();
            await many.post('/api/v1/runs', { name: 'afterwards' }); // shown by the refresh after that of the return
            await page.locator('.run', { hasText: 'afterwards' }).waitFor();
            assert.equal(loads, 1);
            await browser.close(page);
        } finally {
            await many.stop();
        }
    });

    test('test_e2e_configuration_comes_though_the_job_was_late_or_failed', async () => {
        const { job_id: job } = await full.reach(run, 'succeeded');
        const page = await browser.open('about:blank', { origin: full.url, quiet: /503/ }), asked = `**/api/v1/jobs/${job}`;
        /* Late: the tab is open before the answer is there. */
        let release;
        const held = new Promise(resolve => { release = resolve; });
        await page.route(asked, route => held.then(() => route.continue()));
        await page.goto(`${full.url}/#/runs/${run}`);
        await page.getByRole('tab', { name: 'Configuration' }).click();
        release();
        await page.locator('.config .kv').first().waitFor();
        await page.unroute(asked);
        await page.goto('about:blank');
        /* Failed: the tab says so, and asks again. */
        await page.route(asked, route => route.fulfill({ status: 503, contentType: 'application/problem+json', body: JSON.stringify({ error: { code: 'full', message: 'the store is full' } }) }));
        await page.goto(`${full.url}/#/runs/${run}`);
        await page.getByRole('tab', { name: 'Configuration' }).click();
        await page.getByText('The configuration could not be loaded').waitFor();
        await page.unroute(asked);
        await page.getByRole('button', { name: 'Try again' }).click();
        await page.locator('.config .kv').first().waitFor();
        await browser.close(page);
    });

    test('test_e2e_run_page_shows_log_checkpoints_configuration_and_events', async () => {
        await full.reach(run, 'succeeded');
        const page = await browser.open(`${full.url}/#/runs/${run}`);
        await page.getByRole('tab', { name: 'Charts' }).focus();
        for (const name of ['Attention', 'Gradients', 'Log']) {
            await page.keyboard.press('ArrowRight');
            await page.getByRole('tab', { name, selected: true }).waitFor();
        }
        await page.locator('.log div').first().waitFor();
        await page.keyboard.press('ArrowRight');
        await page.locator('table', { hasText: 'SHA-256' }).waitFor();
        await page.keyboard.press('ArrowRight');
        await page.locator('.config .kv').first().waitFor();
        assert.equal(await page.locator('.kv', { hasText: 'degree' }).first().getAttribute('data-default'), null);
        assert.equal(await page.locator('.kv', { hasText: 'mlp_ratio' }).first().getAttribute('data-default'), '');
        await page.keyboard.press('ArrowRight');
        await page.locator('.timeline li').nth(2).waitFor();
        assert.match(page.url(), /tab=events/);
        await browser.close(page);
    });

    test('test_e2e_run_is_paused_resumed_and_cancelled_by_its_buttons', async () => {
        const { run: long } = await full.submit(endless);
        const page = await browser.open(`${full.url}/#/runs/${long}`);
        const chip = state => page.locator(`h1 + span [data-state="${state}"]`);
        await chip('running').waitFor({ timeout: 60000 });
        await page.getByText(/about .* left/).waitFor({ timeout: 60000 });
        await page.getByRole('button', { name: 'Pause' }).click();
        await chip('paused').waitFor({ timeout: 60000 });
        await page.getByRole('button', { name: 'Resume' }).click();
        await chip('running').waitFor({ timeout: 60000 });
        await page.getByRole('button', { name: 'Cancel' }).click();
        await page.getByRole('button', { name: 'Keep running' }).click();
        assert.equal(await page.locator('dialog').count(), 0);
        await page.getByRole('button', { name: 'Cancel' }).click();
        await page.getByRole('button', { name: 'Cancel the run' }).click();
        await chip('cancelled').waitFor({ timeout: 60000 });
        await browser.close(page);
    });

    test('test_e2e_diverged_run_says_so', async () => {
        const { run: lost } = await full.submit(doomed);
        await full.reach(lost, 'diverged');
        const page = await browser.open(`${full.url}/#/runs/${lost}`);
        await page.locator('h1 + span [data-state="diverged"]').waitFor();
        await page.locator('[data-panel="loss"] canvas').waitFor();
        await page.goto(`${full.url}/#/?state=diverged`);
        await page.locator('.run', { hasText: 'goes astray' }).waitFor();
        assert.equal(await page.locator('.run', { hasText: 'digits cubic' }).count(), 0);
        await browser.close(page);
    });

    test('test_e2e_run_table_is_searched_and_walked_by_keyboard', async () => {
        const page = await browser.open(`${full.url}/`);
        await page.locator('.run').first().waitFor();
        await page.keyboard.press('/');
        await page.keyboard.type('digits');
        await until('the search to narrow the table', async () => {
            const names = await page.locator('.run .name').allInnerTexts();
            return names.length > 0 && names.every(name => name.includes('digits'));
        });
        /* What is typed reaches the address after a pause. */
        await until('the address to keep the search', async () => /q=digits/.test(page.url()));
        await page.locator('.run .name').first().focus();
        await page.keyboard.press('Enter');
        await page.locator('h1', { hasText: 'digits cubic' }).waitFor();
        await page.goBack();
        await page.locator('.run', { hasText: 'digits cubic' }).waitFor();
        assert.equal(await page.locator('input[type=search]').inputValue(), 'digits');
        await page.locator('input[type=search]').fill('no such run anywhere');
        await page.getByText('No run matches').waitFor();
        await page.getByRole('button', { name: 'Show all runs' }).click();
        await page.locator('.run').nth(1).waitFor();
        await page.locator('.run .name').first().focus();
        await page.keyboard.press('ArrowDown');
        assert.equal(await page.evaluate(() => document.activeElement?.textContent), await page.locator('.run .name').nth(1).innerText());
        await browser.close(page);
    });

    test('test_e2e_model_is_loaded_and_names_a_drawn_digit', async () => {
        await full.reach(run, 'succeeded');
        await until('the model to be registered', async () => (await full.get('/api/v1/models')).models.length > 0);
        const page = await browser.open(`${full.url}/#/models/digits`);
        await page.getByRole('button', { name: 'Load version 1' }).first().click();
        await page.getByRole('heading', { name: 'Try digits' }).waitFor({ timeout: 60000 });
        for (const digit of [1, 3, 8]) {
            await page.getByRole('button', { name: `Draw a ${digit}` }).click();
            await page.getByText(/^\d \([\d.]+ %\)$/).waitFor();
        }
        await page.getByRole('button', { name: 'Clear' }).click();
        await page.getByText('Draw a digit.', { exact: true }).waitFor();
        const box = await page.locator('.pad-canvas').boundingBox();
        await page.mouse.move(box.x + 140, box.y + 50);
        await page.mouse.down();
        await page.mouse.move(box.x + 138, box.y + 230, { steps: 12 });
        await page.mouse.up();
        await page.getByText(/^\d \([\d.]+ %\)$/).waitFor();
        const shares = (await page.locator('.bars .value').allInnerTexts()).map(text => parseFloat(text));
        assert.equal(shares.length, 10);
        assert.ok(Math.abs(shares.reduce((a, b) => a + b) - 100) < 1.5, shares.join());
        await page.getByRole('button', { name: 'Picture' }).click();
        assert.match(page.url(), /with=picture/);
        const png = await page.evaluate(() => {
            const canvas = document.createElement('canvas');
            canvas.width = canvas.height = 56;
            const c = canvas.getContext('2d');
            c.fillRect(0, 0, 56, 56);
            c.fillStyle = '#fff';
            c.fillRect(26, 8, 6, 40);
            return canvas.toDataURL('image/png').split(',')[1];
        });
        await page.getByLabel('Choose a picture').setInputFiles({ name: 'one.png', mimeType: 'image/png', buffer: Buffer.from(png, 'base64') });
        await page.getByText(/^\d \([\d.]+ %\)$/).waitFor();
        await page.getByText('one.png · 56 × 56').waitFor();
        await page.getByLabel('Choose a picture').setInputFiles({ name: 'no.png', mimeType: 'image/png', buffer: Buffer.from('no picture') });
        await page.getByText('no.png is not an image').waitFor();
        assert.equal(await page.locator('.try-box .verdict').innerText(), 'No answer.');
        assert.equal(await page.getByText('one.png', { exact: false }).isVisible(), false, 'nothing of the picture before it stays');
        assert.equal(await page.locator('.bars .best').count(), 0);
        await page.getByRole('button', { name: 'Give version 1 an alias' }).click();
        await page.getByLabel('Alias', { exact: true }).fill('best');
        await page.getByRole('button', { name: 'Set the alias' }).click();
        await page.getByRole('button', { name: 'Remove the alias best' }).click();
        await until('the alias to go', async () => (await page.locator('.alias').count()) === 0);
        await browser.close(page);
    });

    test('test_e2e_classes_of_pictures_have_their_names_before_an_answer', async () => {
        const page = await browser.open(`${full.url}/#/runs`);
        await page.route('**/api/v1/models', async route => {
            const response = await route.fetch(), all = await response.json();
            for (const version of all.models.find(m => m.name === 'digits').versions)
                version.signature.labels = Array.from({ length: 10 }, (_, i) => `digit ${i}`);
            await route.fulfill({ response, json: all });
        });
        await page.goto(`${full.url}/#/models/digits`);
        await page.goto(`${full.url}/#/models/digits`);
        await page.getByText('Draw a digit.', { exact: true }).waitFor();
        assert.deepEqual(await page.locator('.bars .label').allInnerTexts(), Array.from({ length: 10 }, (_, i) => `digit ${i}`));
        await browser.close(page);
    });

    test('test_e2e_text_is_classified_and_its_probabilities_are_those_of_the_api', async () => {
        const { run: moods } = await full.submit({
            name: 'moods', model: { preset: 'gpt_micro', width: 32, depth: 1, heads: 2, context: 32 }, data: { dataset: 'text_labels', path: 'test/moods.tsv', tokenizer: 'words' },
            train: { steps: 60, batch: 16, init: 'trunc_xavier', optimizer: { lr: 0.01 } }, diagnostics: { every: 0 }, register: 'moods',
        });
        await full.reach(moods, 'succeeded');
        await full.post('/api/v1/models/moods/versions/1/load');
        const page = await browser.open(`${full.url}/#/models/moods`);
        await page.getByText('Write or paste a text.').waitFor();
        for (const word of ['good', 'bad']) {
            const text = `in a ${word} mood`;
            await page.getByLabel('Text', { exact: true }).fill(text);
            await page.getByRole('button', { name: 'Classify the text' }).click();
            await page.locator('.verdict', { hasText: new RegExp(`^${word} \\(`) }).waitFor();
            const { outputs: [{ data }] } = await full.post('/v2/models/moods/infer', { inputs: [{ name: 'text', datatype: 'BYTES', shape: [1], data: [text] }], outputs: [{ name: 'probabilities' }] });
            const shown = await page.locator('.bars li').evaluateAll(rows => rows.map(row => [row.querySelector('.label').textContent, parseFloat(row.querySelector('.value').textContent)]));
            assert.deepEqual(shown.map(([name]) => name), ['bad', 'good']);
            shown.forEach(([, share], c) => assert.ok(Math.abs(share - 100 * data[c]) < .06, `${shown} is not ${data}`));
            assert.equal(await page.locator('.bars li.best .label').innerText(), word);
        }
        assert.match(page.url(), /text=in\+a\+bad\+mood/);
        await browser.close(page);
        for (const look of [looks[0], looks[3]])
            await browser.inspect(full.url, look, [['classes-of-text', '#/models/moods?text=in+a+bad+mood', '.bars.named li.best']]);
    });

    test('test_e2e_language_model_continues_a_prompt_token_by_token', async () => {
        const { run: text } = await full.submit({
            name: 'verse', model: { preset: 'gpt_micro', depth: 2, context: 64 }, attention: { activation: 'softmax' },
            data: { dataset: 'text', path: 'test/verse.txt', tokenizer: 'bytes', split: { rule: 'fraction', train: 0.9, val: 0.1 } },
            train: { steps: 30, batch: 8 }, register: 'verse',
        });
        await full.reach(text, 'succeeded');
        await full.post('/api/v1/models/verse/versions/1/load');
        const page = await browser.open(`${full.url}/#/models/verse`);
        await page.getByLabel('Prompt').fill('The rose ');
        await page.getByLabel('Tokens').fill('40');
        await page.getByRole('button', { name: 'Continue the text' }).click();
        await page.getByText(/40 tokens in/).waitFor();
        assert.match(await page.locator('.answer').innerText(), /^The rose .+/s);
        await page.getByLabel('Show probabilities').check();
        await page.getByRole('button', { name: 'Continue the text' }).click();
        await page.locator('.answer .tok').nth(20).waitFor();
        assert.match(await page.locator('.answer .tok').nth(3).getAttribute('title'), /%/);
        await page.getByText(/40 tokens in/).waitFor();
        await page.locator('.answer').focus();
        await page.keyboard.press('ArrowRight');
        await page.locator('.alternatives li').nth(4).waitFor();
        assert.match(page.url(), /prompt=The\+rose/);
        await page.getByRole('button', { name: 'Score the text' }).click();
        await page.getByText(/Perplexity [0-9.]+ over 8 tokens/).waitFor();
        await page.getByLabel('Tokens').fill('60000');
        await page.getByRole('button', { name: 'Continue the text' }).click();
        await page.locator('.answer .tok').nth(5).waitFor();
        await page.getByRole('button', { name: 'Stop' }).click();
        await page.getByText('Stopped.').waitFor();
        await browser.close(page);
    });

    test('test_e2e_tokens_are_coloured_by_surprise_and_a_scale_says_how', async () => {
        const { run: text } = await full.submit({
            name: 'shades', model: { preset: 'gpt_micro', depth: 1, context: 64 }, attention: { activation: 'softmax' },
            data: { dataset: 'text', path: 'test/verse.txt', tokenizer: 'bytes', split: { rule: 'fraction', train: 0.9, val: 0.1 } },
            train: { steps: 60, batch: 8 }, register: 'shades',
        });
        await full.reach(text, 'succeeded');
        await full.post('/api/v1/models/shades/versions/1/load');
        const prompt = 'The rose is red, QZ#';
        let logprobs;
        await until('the model to answer', async () => {
            [{ logprobs: { token_logprobs: logprobs } }] = (await full.post('/v1/completions', { model: 'shades:1', prompt, echo: true, max_tokens: 0, logprobs: 1 })).choices;
            return true;
        });
        const nats = logprobs.map(lp => (lp === null ? null : -lp));
        assert.ok(Math.max(...nats) > 5 && Math.min(...nats.slice(1)) < 1, `too much alike: ${nats}`);
        for (const theme of ['light', 'dark']) {
            const page = await browser.open(`${full.url}/#/models/shades`, { theme });
            await page.getByLabel('Prompt').fill(prompt);
            await page.getByRole('button', { name: 'Score the text' }).click();
            await page.getByText(/^Perplexity/).waitFor();
            /* Painted alone, a colour has its alpha: read back what the browser made of it. */
            const colours = await page.evaluate(() => {
                const c = Object.assign(document.createElement('canvas'), { width: 1, height: 1 }).getContext('2d');
                const read = el => {
                    c.clearRect(0, 0, 1, 1);
                    c.fillStyle = getComputedStyle(el).backgroundColor;
                    c.fillRect(0, 0, 1, 1);
                    const [r, , b, a] = c.getImageData(0, 0, 1, 1).data;
                    return { warm: a > 12 ? r > b : null, alpha: a / 255 };
                };
                return { tokens: [...document.querySelectorAll('.answer .tok')].map(read), scale: [...document.querySelectorAll('.token-scale span')].map(el => ({ ...read(el), word: el.textContent })) };
            });
            assert.equal(colours.tokens.length, nats.length);
            colours.tokens.forEach(({ warm, alpha }, i) => {
                if (nats[i] === null)
                    return;
                const strength = nats[i] < 1 ? (1 - nats[i]) * .26 : (Math.min(7, nats[i]) - 1) / 6 * .7;
                assert.ok(Math.abs(alpha - strength) < .02, `${theme}: ${nats[i]} nats at ${alpha}, not ${strength}`);
                if (warm !== null)
                    assert.equal(warm, nats[i] > 1, `${theme}: ${nats[i]} nats`);
            });
            assert.deepEqual(colours.scale.map(({ word }) => word), ['100 %', '60 %', '37 %', '10 %', '3 %', '1 %', '0.1 %']);
            const unlikely = colours.scale.slice(2).map(({ alpha }) => alpha);
            assert.deepEqual(unlikely, unlikely.slice().sort((a, b) => a - b));
            assert.ok(colours.scale[0].warm === false && colours.scale[6].warm === true);
            await page.getByText('orange ones were unlikely').waitFor();
            await browser.close(page);
        }
    });

    test('test_e2e_frame_has_no_strip_beside_the_scrollbar_and_lines_up_with_the_page', async () => {
        const classic = await Browser.start({ scrollbars: true });
        try {
            for (const width of [1280, 1920]) {
                const page = await classic.open(`${full.url}/#/help`, { width, height: 700 });
                await page.locator('.terms').first().waitFor();
                const at = await page.evaluate(() => {
                    const box = selector => document.querySelector(selector).getBoundingClientRect();
                    const main = document.querySelector('main'), style = getComputedStyle(main);
                    return { bar: box('.bar').right, left: box('.bar').left, window: innerWidth, room: document.documentElement.clientWidth, brand: box('.brand').left,
                        end: box('.bar-end').right, content: box('main').left + parseFloat(style.paddingLeft), contentEnd: box('main').right - parseFloat(style.paddingRight) };
                });
                assert.ok(at.window - at.room > 5, 'this window has no scrollbar');
                /* The header reaches from the left edge to the scrollbar, and no empty gutter stands on either side. */
                assert.deepEqual([at.left, at.bar], [0, at.room]);
                assert.ok(Math.abs(at.brand - at.content) < 1 && Math.abs(at.end - at.contentEnd) < 1, `${width}: ${JSON.stringify(at)}`);
                await classic.close(page);
                /* A page that does not scroll has its content at the same place. */
                const short = await classic.open(`${empty.url}/#/models`, { width, height: 700 });
                await short.getByText('No models yet').waitFor();
                assert.equal(await short.evaluate(() => document.querySelector('.brand').getBoundingClientRect().left), at.brand);
                await classic.close(short);
            }
        } finally {
            await classic.stop();
        }
    });

    for (const look of looks) {
        test(`test_e2e_every_view_holds_in_${look.name.replace('-', '_')}`, async () => {
            await full.reach(run, 'succeeded');
            await browser.inspect(full.url, look, [
                ['runs', '#/', '.run'], ['run', `#/runs/${run}?folds=layers-open`, '[data-panel="scale/c"] canvas'], ['run-log', `#/runs/${run}?tab=log`, '.log div'],
                ['run-config', `#/runs/${run}?tab=config`, '.config'], ['run-events', `#/runs/${run}?tab=events`, '.timeline li'],
                ['run-checkpoints', `#/runs/${run}?tab=checkpoints`, '#run-panel table'], ['models', '#/models', '.model-list a'],
                ['devices', '#/devices', '.cols h2'], ['help', '#/help', '.terms'],
            ]);
        });

        test(`test_e2e_every_empty_view_holds_in_${look.name.replace('-', '_')}`, async () => {
            await browser.inspect(empty.url, look, [['empty-runs', '#/', 'text=No runs yet'], ['empty-models', '#/models', 'text=No models yet'],
                ['empty-devices', '#/devices', 'text=Queue is empty'], ['missing-run', '#/runs/999999', 'text=There is no run 999999'],
                ['missing-view', '#/nowhere', 'text=There is no such page']], { quiet: /404/ });
        });

        test(`test_e2e_every_failed_view_holds_in_${look.name.replace('-', '_')}`, async () => {
            // The API refuses while the page itself is there.
            const refuse = page => page.route('**/api/v1/{runs,models,devices,queue}*', route => route.fulfill({
                status: 503, contentType: 'application/problem+json', headers: { 'Retry-After': '5' },
                body: JSON.stringify({ type: 'about:blank', title: 'Service Unavailable', status: 503, detail: 'the store is full',
                    error: { code: 'full', message: 'the store is full' } }) }));
            const words = 'text=the store is full (try again in 5 s)';
            await browser.inspect(empty.url, look, [['failed-runs', '#/', words], ['failed-models', '#/models', words],
                ['failed-devices', '#/devices', words]], { quiet: /503/, prepare: refuse });
        });
    }

    test('test_e2e_page_survives_a_restart_of_the_daemon', async () => {
        const page = await browser.open(`${empty.url}/`, { quiet: /ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED|ERR_EMPTY|ERR_CONNECTION_RESET|503/ });
        await page.locator('#live[data-state="on"]').waitFor();
        empty.process.kill('SIGTERM');
        await empty.ended;
        await page.locator('#live[data-state="lost"]').waitFor();
        await page.getByRole('link', { name: 'Models' }).click();
        await page.getByText('polyd does not respond').waitFor();
        await empty.up();
        await page.locator('#live[data-state="on"]').waitFor({ timeout: 30000 });
        await page.getByText('No models yet').waitFor();
        await browser.close(page);
    });

    test('test_e2e_theme_is_chosen_and_remembered', async () => {
        const page = await browser.open(`${empty.url}/#/help`, { theme: 'light' });
        const theme = () => page.evaluate(() => document.documentElement.dataset.theme);
        assert.equal(await theme(), 'light');
        await page.locator('#theme').click();
        assert.equal(await theme(), 'dark'); /* one press changes something */
        await page.reload();
        assert.equal(await theme(), 'dark');
        assert.equal(await page.locator('#theme').getAttribute('aria-label'), 'Colours: dark');
        await browser.close(page);
    });

    test('test_e2e_page_is_served_with_a_strict_policy', async () => {
        const response = await fetch(`${empty.url}/`);
        const policy = response.headers.get('content-security-policy') ?? '';
        assert.match(policy, /default-src 'self'/);
        assert.doesNotMatch(policy, /unsafe|\*|data:/);
        assert.equal(response.headers.get('content-type'), 'text/html; charset=utf-8');
        const script = await fetch(`${empty.url}/js/app.js`);
        assert.match(script.headers.get('content-type'), /^text\/javascript/);
    });
});
