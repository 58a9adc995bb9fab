// A classifier of sequences in the browser: text or ids of tokens in, classes with their probabilities out, and refusals with both numbers.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { after, before, describe, test } from 'node:test';
import { Daemon, polyd, until } from '../lib/daemon.mjs';
import { Browser, findChromium } from './browser.mjs';

const skip = !existsSync(polyd) ? 'polyd is not built' : findChromium() ? false : 'there is no Chromium';
const job = (register, more) => ({
    name: register, register, model: { arch: 'nystrom', width: 8, depth: 1, heads: 2, mlp_ratio: 2, context: 12, landmarks: 3, conv_kernel: 5, ...more?.model },
    data: { dataset: 'listops_gen', split: { train: 60, val: 7, test: 5 }, ...more?.data }, attention: { activation: 'poly', degree: 3, scale: 'learned' },
    train: { steps: 4, batch: 4, optimizer: { lr: 0.05 } }, diagnostics: { every: 0 }, resources: { device: 'cpu', threads: 1 },
});
let daemon, browser;

describe('sequences', { skip }, () => {
    before(async () => {
        [daemon, browser] = await Promise.all([Daemon.start({ flags: ['--devices.cpu_slots=1'] }), Browser.start()]);
        const { run } = await daemon.submit(job('values'));
        await daemon.reach(run, 'succeeded');
        await until('the model', () => daemon.get('/api/v1/models/values/versions/1'));
        await daemon.post('/api/v1/models/values/versions/1/load');
    });
    after(async () => {
        await browser?.stop();
        await daemon?.stop();
    });

    const infer = async input => {
        const { outputs } = await daemon.post('/v2/models/values/infer', { inputs: [input] });
        return outputs.find(o => o.name === 'probabilities').data;
    };
    /** Waits until the bars show these probabilities, in the order of the classes. */
    const shows = (page, want) => until('the bars', async () => {
        const got = await page.getByRole('list', { name: 'Classes' }).locator('.value').allTextContents();
        return got.length === want.length && got.every((text, i) => Math.abs(parseFloat(text) - 100 * want[i]) <= 0.06 + 0.01 * want[i] * 100);
    }, { limit: 20000 });

    test('test_e2e_sequence_is_classified_from_text_and_from_ids', async () => {
        const page = await browser.open(`${daemon.url}/#/models/values`), box = page.getByRole('region', { name: 'Try values' });
        await box.getByText('reads 12 tokens').waitFor();
        await box.getByRole('textbox').fill('[MAX 4 9 [MIN 2 7 ] ]');
        await box.getByRole('button', { name: 'Classify the text' }).click();
        const want = await infer({ name: 'text', datatype: 'BYTES', shape: [1], data: ['[MAX 4 9 [MIN 2 7 ] ]'] });
        await shows(page, want);
        assert.match(await box.locator('.verdict').textContent(), new RegExp(`^${want.indexOf(Math.max(...want))} \\(`));
        await box.getByLabel('Read as').selectOption('ids');
        await box.getByRole('textbox').fill('3, 7 8 5');
        await page.keyboard.press('Control+Enter');
        await shows(page, await infer({ name: 'tokens', datatype: 'INT64', shape: [1, 4], data: [3, 7, 8, 5] }));
        assert.match(page.url(), /form=ids/);
        await browser.close(page);
    });

    test('test_e2e_sequence_that_the_model_cannot_read_is_refused_with_both_numbers', async () => {
        const page = await browser.open(`${daemon.url}/#/models/values?form=ids&text=${encodeURIComponent('1 2 99')}`), box = page.getByRole('region', { name: 'Try values' });
        await box.getByText('id 99 is not in the vocabulary, whose ids are 0 to 17').waitFor();
        await box.getByRole('textbox').fill('1 two');
        await page.keyboard.press('Control+Enter');
        await box.getByText('"two" is no id').waitFor();
        await box.getByLabel('Read as').selectOption('text');
        await box.getByRole('textbox').fill('[MAX 1 2 3 4 5 6 7 8 9 0 1 ]');
        await page.keyboard.press('Control+Enter');
        await box.getByText('the text has 13 tokens, the model 12 positions').waitFor();
        assert.ok(page.problems.splice(0).every(text => text.includes('400 (Bad Request)'))); // the two that polyd refused
        await browser.close(page);
    });
});
