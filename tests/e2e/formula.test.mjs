// A stranger who knows only the page: types four activations, one of them wrong at first, submits the sweep, reads the comparison,
// and lets the best one name a digit. And the card in every look, empty, full and failed.
import assert from 'node:assert/strict';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';

import { Daemon } from '../lib/daemon.mjs';
import { axeSource, Browser, findChromium, looks } from './browser.mjs';

const skip = findChromium() === null && 'no Chromium here';
const formulas = ['softmax(s)', 's^3/sqrt(n)', 'a*s^3/(1+abs(s))', 'sigmoid(s-log(n))'];
/** A wrong formula is a 422 of both questions that the page asks. */
const quiet = /422/;

describe('attention by formula', { skip, timeout: 600000 }, () => {
    /** @type {Daemon} */ let daemon;
    /** @type {Browser} */ let browser;
    before(async () => {
        [daemon, browser] = await Promise.all([Daemon.start(), Browser.start()]);
    });
    after(async () => {
        await browser?.stop();
        await daemon?.stop();
    });

    /** No wider than the window, and nothing for axe-core; with POLYD_TEST_PICTURES=1 a picture. */
    async function see(page, name) {
        if (process.env.POLYD_TEST_PICTURES)
            await page.screenshot({ path: path.join(browser.pictures, `${name}.png`), fullPage: true });
        assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= document.documentElement.clientWidth), `${name}: wider than the window`);
        if (!await page.evaluate(() => 'axe' in globalThis))
            await page.evaluate(axeSource);
        const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'], rules: { 'target-size': { enabled: true } } }));
        assert.deepEqual(violations.map(v => `${v.id}: ${v.nodes.map(node => node.target.join(' ')).join(', ')}`), [], name);
    }
    const field = (page, i) => page.getByRole('textbox', { name: i === undefined ? 'Formula' : `Formula ${i + 1}`, exact: true });

    test('test_e2e_formula_stranger_compares_four_and_asks_the_best', async () => {
        const page = await browser.open(`${daemon.url}/`, { quiet });
        await page.getByRole('link', { name: 'New job' }).first().click();
        await page.getByText('Attention by formula').click();
        await page.getByRole('button', { name: 'Type an activation' }).click();
        /* One typing error on the way: the place is underlined, the sentence names it, and nothing can be submitted. */
        await field(page).fill('softmax(s');
        await page.locator('.formula-says', { hasText: 'Character 10' }).waitFor({ timeout: 60000 });
        assert.equal(await page.locator('.formula-paint .wrong').count(), 1);
        await page.locator('.note', { hasText: 'character 10' }).first().waitFor({ timeout: 60000 });
        assert.ok(await page.getByRole('button', { name: 'Submit' }).isDisabled());
        await field(page).fill('softmax(s)');
        await page.getByText('Recognised: it runs as the built-in softmax.').waitFor({ timeout: 60000 });
        for (const [i, text] of formulas.entries()) {
            if (i === 0)
                continue;
            await page.getByRole('button', { name: 'Compare with another formula' }).click();
            await field(page, i).fill(text);
        }
        await page.getByText('Valid.').waitFor({ timeout: 60000 });
        await page.locator('.quick-field', { hasText: 'Epochs' }).locator('input').fill('3');
        await page.locator('.quick-field', { hasText: 'Epochs' }).locator('input').blur();
        await page.getByText(/4 runs \(4 combinations\)/).waitFor({ timeout: 60000 });
        await page.getByRole('button', { name: 'Submit' }).click();
        await page.waitForURL(/#\/jobs\/\d+/);
        await page.locator('.chip', { hasText: 'Done' }).waitFor({ timeout: 400000 });
        /* The page compares all four, and draws the learned scalar. */
        const table = page.getByRole('region', { name: 'Results' });
        for (const text of formulas)
            await table.getByText(text, { exact: true }).waitFor();
        const best = await page.locator('.tile', { hasText: 'Best combination' }).innerText();
        assert.ok(formulas.some(text => best.includes(text)), best);
        await page.getByRole('heading', { name: 'a over training' }).waitFor({ timeout: 60000 });
        assert.equal((await daemon.get(`/api/v1/jobs/${/\d+$/.exec(page.url().split('?')[0])[0]}/sweep`)).runs.succeeded, 4);
        /* The best one was registered, loads, and names a digit that the page draws. */
        await page.getByRole('link', { name: 'Models', exact: true }).click();
        await page.getByRole('link', { name: 'digits-cubic' }).first().click();
        await page.getByRole('button', { name: /Load version 1/ }).first().click();
        await page.locator('.pad-canvas').waitFor({ timeout: 60000 });
        await page.getByRole('button', { name: 'Draw a 0' }).click();
        await page.getByText(/^\d \([\d.]+ %\)$/).waitFor({ timeout: 60000 });
        await browser.close(page);
    });

    test('test_e2e_formula_says_what_it_runs_as_and_where', async () => {
        const page = await browser.open(`${daemon.url}/#/submit`, { quiet });
        const editor = page.getByLabel('Job document, JSON'), says = page.locator('.formula-says');
        /* Too large to be tried unasked, which would draw the card again. */
        const write = attention => editor.fill(JSON.stringify({ model: { preset: 'vit_micro', width: 512, heads: 8, depth: 6 }, data: { dataset: 'digits_gen' }, train: { epochs: 1 }, attention: { activation: 'formula', ...attention } }));
        await write({ formula: 'softmax(s)' });
        await says.getByText('Recognised: it runs as the built-in softmax.').waitFor({ timeout: 60000 });
        await write({ formula: 'softmax(s)', recognise: false });
        await says.getByText(/It equals the built-in softmax, but attention\.recognise is off: it runs by the formula’s own program/).waitFor({ timeout: 60000 });
        await write({ formula: 's^3/(1+abs(s))' });
        await says.getByText('No built-in activation: it runs by the formula’s own program, interpreted on a CPU, compiled on a GPU.').waitFor({ timeout: 60000 });
        await browser.close(page);
    });

    test('test_e2e_formula_keeps_its_own_scalars_while_it_is_typed_again', async () => {
        const page = await browser.open(`${daemon.url}/#/submit`, { quiet });
        const editor = page.getByLabel('Job document, JSON'), document = async () => JSON.parse(await editor.inputValue());
        await page.getByText('Attention by formula').click();
        await editor.fill(JSON.stringify({ model: { preset: 'vit_micro' }, data: { dataset: 'digits_gen' }, train: { epochs: 1 },
            attention: { params: { a: { init: 2 } }, formulas: [{ formula: 'a*s^3', params: { a: { init: 0.1 } } }, 'a*s'] } }));
        const first = page.getByLabel('Formula 1', { exact: true }), listed = async () => {
            const { attention, sweep } = await document();
            return { formulas: attention.formulas ?? sweep.axes[0].values, params: attention.params };
        };
        await first.click();
        await first.fill('');
        await page.waitForFunction(() => !document.querySelector('[aria-label="Job document, JSON"]').value.includes('0.1'), null, { timeout: 60000 });
        await first.fill('a*s^3/n');
        await page.waitForFunction(() => document.querySelector('[aria-label="Job document, JSON"]').value.includes('0.1'), null, { timeout: 60000 });
        const { formulas, params } = await listed();
        assert.deepEqual([formulas, params], [[{ formula: 'a*s^3/n', params: { a: { init: 0.1 } } }, 'a*s'], { a: { init: 2 } }]);
        await browser.close(page);
    });

    test('test_e2e_formula_scalars_leave_with_their_formula', async () => {
        const page = await browser.open(`${daemon.url}/#/submit`, { quiet });
        const editor = page.getByLabel('Job document, JSON'), attention = async () => JSON.parse(await editor.inputValue()).attention;
        const holds = (has, name) => page.waitForFunction(([want, key]) => {
            const text = document.querySelector('[aria-label="Job document, JSON"]').value;
            return (JSON.parse(text).attention?.params?.[key] !== undefined) === want;
        }, [has, name], { timeout: 60000 });
        await page.getByText('Attention by formula').click();
        await page.getByText('Gallery: 25 published formulas').click();
        await page.getByRole('button', { name: 'Use elastic softmax' }).click();
        await holds(true, 'a');
        const { params } = await attention();
        assert.deepEqual(Object.keys(params), ['a']);
        /* A typing error that names it no longer, and back: nothing is lost. */
        const { formula } = await attention();
        await field(page).fill('softmax(s');
        await holds(false, 'a');
        await page.locator('.formula-says', { hasText: 'Character' }).waitFor({ timeout: 60000 });
        await field(page).fill(formula);
        await holds(true, 'a');
        assert.deepEqual((await attention()).params, params);
        await page.getByLabel('init of a').waitFor({ timeout: 60000 });
        /* Without it, and then a scalar of that name again: it is a new one. */
        await field(page).fill('softmax(s)');
        await holds(false, 'a');
        await page.getByText('Recognised: it runs as the built-in softmax.').waitFor({ timeout: 60000 });
        await page.getByText('Valid.').waitFor({ timeout: 60000 });
        await field(page).fill('a*s');
        await page.getByLabel('init of a').waitFor({ timeout: 60000 });
        assert.equal((await attention()).params, undefined);
        assert.equal(await page.getByLabel('init of a').inputValue(), '');
        /* A value that no f32 holds is named by a note. */
        await page.getByLabel('init of a').fill('1e300');
        await page.getByLabel('init of a').blur();
        await page.locator('.note', { hasText: 'is 1e+300' }).first().waitFor({ timeout: 60000 });
        await browser.close(page);
    });

    /* No GPU is here: the page gets the answer that a run has while its kernels are compiled. */
    test('test_e2e_formula_run_shows_that_kernels_are_compiled', async () => {
        const { run } = await daemon.submit({ name: 'compiles', attention: { activation: 'formula', formula: 's^3/(1+abs(s))' }, model: { preset: 'vit_micro', width: 16, depth: 1, heads: 1, patch: 14 },
            data: { dataset: 'digits_gen', split: { rule: 'count', train: 24, val: 8 } }, diagnostics: { every: 0 }, train: { steps: 2, batch: 4 } });
        await daemon.reach(run, 'succeeded');
        let phase = 'compiling kernels of formulas: gradients in bf16 (2 of 2)';
        const page = await browser.open(`${daemon.url}/#/`);
        await page.route(`**/api/v1/runs/${run}`, async route => {
            const response = await route.fetch();
            const answer = { ...await response.json(), state: 'starting', outcome: null, ended: null, phase };
            await route.fulfill({ response, json: answer });
        });
        await page.goto(`${daemon.url}/#/runs/${run}`);
        const shown = page.getByText('Compiling kernels of formulas: gradients in bf16 (2 of 2)', { exact: true });
        await shown.waitFor();
        await page.locator('.head .chip', { hasText: 'Starting' }).waitFor();
        phase = null;
        await shown.waitFor({ state: 'detached' });
        await page.unrouteAll({ behavior: 'ignoreErrors' });
        await browser.close(page);
    });

    for (const look of looks)
        test(`test_e2e_formula_card_is_clean_on_${look.name}`, async () => {
            const page = await browser.open(`${daemon.url}/#/submit`, { ...look, bypassCSP: true, quiet });
            await page.getByText('Attention by formula').click();
            await see(page, `formula-empty-${look.name}`);
            await page.getByRole('button', { name: 'Type an activation' }).click();
            await field(page).fill('1/s');
            await page.locator('.formula-paint .warned').waitFor({ timeout: 60000 });
            await field(page).fill('a*s^2/(1+s^2)');
            await page.getByLabel('init of a').waitFor({ timeout: 60000 });
            await page.getByText(/measured at step 0/).waitFor({ timeout: 120000 });
            const take = page.getByRole('button', { name: /^Start a at/ });
            await take.click();
            await page.waitForFunction(() => Number(document.querySelector('[aria-label="init of a"]').value) > 0, null, { timeout: 60000 });
            await page.getByText('Gallery: 25 published formulas').click();
            await page.getByText('softpick', { exact: true }).waitFor();
            assert.equal(await page.locator('.gallery li').count(), 25);
            await page.getByText('As a PyTorch function').click();
            await page.locator('.formula-text', { hasText: 'def attention_weights' }).waitFor();
            await see(page, `formula-full-${look.name}`);
            await field(page).fill('s^');
            await page.locator('.formula-paint .wrong').waitFor({ timeout: 60000 });
            await see(page, `formula-wrong-${look.name}`);
            await browser.close(page);
        });
});
