// Weights on the page: checkpoints are downloaded, averaged and continued; a file is uploaded; a model without a tokenizer says so.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';

import { Daemon } from '../lib/daemon.mjs';
import { parse, shown, write } from '../lib/safetensors.mjs';
import { Browser, findChromium, looks } from './browser.mjs';

const digits = {
    name: 'digits cubic', model: { preset: 'vit_micro', depth: 2 }, attention: { activation: 'poly', degree: 3, scale: 'fixed' },
    data: { dataset: 'digits_gen', split: { rule: 'count', train: 256, val: 64 } },
    train: { steps: 6, batch: 32, eval_every: 2, checkpoint_every: { steps: 2 }, keep: { latest: 4 }, optimizer: { name: 'adamw', lr: 0.002 } },
};
const skip = findChromium() === null && 'no Chromium here';

/** A small GPT-2 under the names of Hugging Face, with weights that vary. */
function gpt({ width = 8, vocab = 21, context = 16 } = {}) {
    const shapes = { 'wte.weight': [vocab, width], 'wpe.weight': [context, width], 'ln_f.weight': [width], 'ln_f.bias': [width] };
    for (const [name, shape] of [['ln_1', [width]], ['attn.c_attn', [width, 3 * width]], ['attn.c_proj', [width, width]], ['ln_2', [width]], ['mlp.c_fc', [width, 4 * width]], ['mlp.c_proj', [4 * width, width]]]) {
        shapes[`h.0.${name}.weight`] = shape;
        shapes[`h.0.${name}.bias`] = [shape.at(-1)];
    }
    return new Map(Object.entries(shapes).map(([name, shape], k) => [`transformer.${name}`, { dtype: 'F32', shape,
        bytes: Buffer.from(Float32Array.from({ length: shape.reduce((a, b) => a * b) }, (_, i) => 0.3 * Math.sin(i * 7 + k)).buffer) }]));
}

describe('weights', { skip }, () => {
    /** @type {Daemon} */ let daemon;
    /** @type {Browser} */ let browser;
    let run;

    before(async () => {
        [daemon, browser] = await Promise.all([Daemon.start(), Browser.start()]);
        ({ run } = await daemon.submit(digits));
        await daemon.reach(run, 'succeeded');
    });
    after(async () => {
        await browser?.stop();
        await daemon?.stop();
    });
    const bytesOf = async path => Buffer.from(await (await fetch(`${daemon.url}${path}`)).arrayBuffer());

    test('test_e2e_checkpoints_are_averaged_into_a_model', async () => {
        const page = await browser.open(`${daemon.url}/#/runs/${run}?tab=checkpoints`);
        const button = page.getByRole('button', { name: 'Average', exact: true });
        await button.waitFor();
        assert.ok(await button.isDisabled());
        for (const step of [4, 6])
            await page.getByLabel(`Average with the checkpoint of step ${step}`).check();
        await page.getByRole('button', { name: 'Average 2 checkpoints' }).click();
        await page.getByText(/average of the checkpoints of steps 4, 6/).waitFor();
        await page.getByLabel('Name of the model').fill('soup');
        await page.getByRole('button', { name: 'Register', exact: true }).last().click();
        await page.getByText('average of 2 checkpoints').waitFor();
        const files = await Promise.all([4, 6].map(async step => parse(await bytesOf(`/api/v1/runs/${run}/checkpoints/${step}/weights`)).tensors));
        const floats = t => new Float32Array(t.bytes.buffer.slice(t.bytes.byteOffset, t.bytes.byteOffset + t.bytes.length));
        const mean = new Map([...files[0]].map(([name, t]) => [name, { ...t, bytes: Buffer.from(floats(t).map((x, i) => (x + floats(files[1].get(name))[i]) / 2).buffer) }]));
        const [download] = await Promise.all([page.waitForEvent('download'), page.getByLabel('Weights of version 1, download').click()]);
        assert.deepEqual(shown(parse(readFileSync(await download.path())).tensors), shown(mean));
        await browser.close(page);
    });

    test('test_e2e_a_checkpoint_is_continued_with_its_optimiser_and_the_run_says_so', async () => {
        const page = await browser.open(`${daemon.url}/#/runs/${run}?tab=checkpoints`);
        await page.getByLabel('Continue from the checkpoint of step 6').click();
        const editor = page.getByLabel('Job document, JSON');
        await page.getByText(/starts from the weights of run \d+, step 6/).waitFor();
        await page.getByLabel(/Also load the optimiser state/).check();
        const document = JSON.parse(await editor.inputValue());
        assert.deepEqual(document.train.start, { run, checkpoint: 6, optimizer: true });
        assert.deepEqual([document.name, document.model, document.data, document.train.optimizer], [`from run ${run}, step 6`, digits.model, digits.data, digits.train.optimizer]);
        await editor.fill(JSON.stringify({ ...document, name: 'goes on', train: { ...document.train, steps: 3 } }));
        await page.getByRole('button', { name: 'Submit' }).click();
        await page.locator('.run', { hasText: 'goes on' }).waitFor();
        const { runs: [next] } = await daemon.get('/api/v1/runs');
        await daemon.reach(next.id, 'succeeded');
        await page.goto(`${daemon.url}/#/runs/${next.id}`);
        await page.getByText(new RegExp(`Begins with run #${run}, step 6: \\d+ parameters taken, with the states of its optimiser`)).click();
        await page.getByText(/parameters begin from runs\/.*/).waitFor();
        await browser.close(page);
        await browser.inspect(daemon.url, looks[3], [['checkpoints', `#/runs/${run}?tab=checkpoints`, 'table'], ['continue', `#/submit?start=${run}&checkpoint=6`, '.good'], ['begun', `#/runs/${next.id}`, '.begun']]);
    });

    test('test_e2e_an_uploaded_model_without_a_tokenizer_takes_ids_and_says_so', async () => {
        const page = await browser.open(`${daemon.url}/#/models`);
        await page.getByRole('button', { name: 'Upload weights' }).click();
        await page.getByLabel('File', { exact: true }).setInputFiles({ name: 'gpt.safetensors', mimeType: 'application/octet-stream', buffer: write(gpt()) });
        await page.getByLabel('Name of the model').fill('ids');
        await page.getByLabel('Description (JSON)').fill('{"model": {"arch": "gpt", "width": 8, "depth": 1, "heads": 1, "context": 16}}');
        await page.getByRole('button', { name: 'Upload', exact: true }).click();
        await page.locator('.model-list', { hasText: 'ids' }).getByText('ids').click();
        await page.getByText('upload (token ids)').waitFor();
        await page.getByRole('button', { name: 'Load version 1' }).first().click();
        await page.getByText(/has no tokenizer: prompt and answer are token ids from 0 to 20/).waitFor();
        await page.getByLabel('Tokens').fill('5');
        await page.getByRole('button', { name: 'Continue the text' }).click();
        await page.getByText(/5 tokens in/).waitFor();
        assert.match(await page.locator('.answer').innerText(), /^0 1 2\s*(\d+ ){5}$/);
        await page.getByLabel('Fine-tune version 1').click();
        await page.getByText(/starts from the weights of ids:1/).waitFor();
        assert.deepEqual(JSON.parse(await page.getByLabel('Job document, JSON').inputValue()).train.start, { model: 'ids:1' });
        await browser.close(page);
        for (const look of [looks[0], looks[3]])
            await browser.inspect(daemon.url, look, [['model-of-ids', '#/models/ids', '.note'], ['fine-tune', '#/submit?start=ids:1', 'textarea']]);
    });

    test('test_e2e_an_upload_that_does_not_fit_names_its_tensors', async () => {
        const odd = gpt();
        odd.delete('transformer.ln_f.bias');
        const page = await browser.open(`${daemon.url}/#/models`, { quiet: /422/ });
        await page.getByRole('button', { name: 'Upload weights' }).click();
        await page.getByLabel('File', { exact: true }).setInputFiles({ name: 'odd.safetensors', mimeType: 'application/octet-stream', buffer: write(odd) });
        await page.getByLabel('Name of the model').fill('odd');
        await page.getByLabel('Description (JSON)').fill('{"model": {"arch": "gpt", "width": 8, "depth": 1, "heads": 1, "context": 16}}');
        await page.getByRole('button', { name: 'Upload', exact: true }).click();
        const dialog = page.getByRole('dialog');
        await dialog.getByText(/transformer\.ln_f\.bias.*is missing/).waitFor();
        /* What one filled in is still there: another file will do. */
        await page.getByLabel('File', { exact: true }).setInputFiles({ name: 'even.safetensors', mimeType: 'application/octet-stream', buffer: write(gpt()) });
        await page.getByRole('button', { name: 'Upload', exact: true }).click();
        await page.locator('.model-list').getByText('odd').waitFor();
        assert.equal(await dialog.count(), 0);
        await browser.close(page);
    });
});
