// The solution of an equation in the browser: the maps of a run by step, and a model that one can point at.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { after, before, describe, test } from 'node:test';
import { Daemon, polyd, until } from '../lib/daemon.mjs';
import { Browser, findChromium, looks } from './browser.mjs';

const skip = !existsSync(polyd) ? 'polyd is not built' : findChromium() ? false : 'there is no Chromium';
const job = (more = {}) => ({
    name: 'reaction', model: { preset: 'pinn_micro', width: 8, mlp_ratio: 2, head_width: 16 }, attention: { activation: 'poly', degree: 3 }, register: 'reaction',
    data: { dataset: 'pde_reaction', pde: { grid: 9, test_grid: [12, 17] } }, diagnostics: { every: 0 }, resources: { device: 'cpu', threads: 1 },
    train: { steps: 6, eval_every: 2, optimizer: { name: 'lbfgs' } }, ...more,
});
let daemon, browser, run, none, other, wave; // of wave no value is finite

describe('field', { skip }, () => {
    before(async () => {
        [daemon, browser] = await Promise.all([Daemon.start({ flags: ['--devices.cpu_slots=1'] }), Browser.start()]);
        run = (await daemon.submit(job())).run;
        other = (await daemon.submit({ name: 'fit', kind: 'selftest' })).run;
        wave = (await daemon.submit(job({ name: 'wave', register: null, data: { dataset: 'pde_wave', pde: { grid: 9, test_grid: [4, 40] } },
            train: { steps: 8, precision: 'fp32', optimizer: { name: 'msgdw', lr: 1e9 } } }))).run;
        await daemon.reach(run, 'succeeded');
        await daemon.reach(wave, 'succeeded');
        await daemon.reach(other, 'succeeded');
        const late = await daemon.submit(job({ name: 'late', register: null, train: { steps: 100000, eval_every: 100000, optimizer: { name: 'lbfgs' } } }));
        none = late.run;
        await until('the model', () => daemon.get('/api/v1/models/reaction/versions/1'));
        await daemon.post('/api/v1/models/reaction/versions/1/load');
    });
    after(async () => {
        await browser?.stop();
        await daemon?.stop();
    });

    const card = (page, name) => page.getByRole('region', { name, exact: true });
    const drawn = picture => picture.locator('canvas:not([aria-label$=": loading"])').waitFor();
    const press = async (page, ...keys) => {
        for (const key of keys)
            await page.keyboard.press(key);
    };
    const numbers = async (key, step) => {
        const { blobs } = await daemon.get(`/api/v1/runs/${run}/blobs?key=${encodeURIComponent(key)}`), blob = blobs.find(b => b.step === step);
        return new Float32Array(await (await fetch(`${daemon.url}/api/v1/runs/${run}/blobs/${blob.id}`)).arrayBuffer());
    };

    test('test_e2e_solution_shows_the_stored_maps_cell_by_cell_and_keeps_its_step', async () => {
        const page = await browser.open(`${daemon.url}/#/runs/${run}?tab=solution`);
        const names = ['Solution of the network', 'Exact solution', 'Error'], keys = ['pde/u', 'pde/exact', 'pde/error'];
        await page.getByText('6 (3 of 3)').waitFor();
        await page.getByRole('slider', { name: 'Step' }).focus();
        await press(page, 'ArrowLeft');
        await page.getByText('4 (2 of 3)').waitFor();
        await until('the map of step 4', async () => /u of the network at step 4: 12 times by 17 places/.test(await card(page, names[0]).locator('canvas').getAttribute('aria-label')));
        assert.match(page.url(), /at=4/);
        await card(page, names[0]).locator('canvas').focus();
        await press(page, 'ArrowDown', 'ArrowDown', 'ArrowDown', 'ArrowRight', 'ArrowRight'); // row 2, column 2: the first press is the first cell
        for (const [i, name] of names.entries()) { // all three look at the same cell
            const words = await card(page, name).locator('.picture-read').textContent(), want = (await numbers(keys[i], 4))[2 * 17 + 2];
            assert.match(words, /^x = 0\.785, t = 0\.182: /);
            assert.ok(Math.abs(Number(words.split(': ')[1]) - want) <= 1e-3 * Math.abs(want), `${name}: ${words}, stored ${want}`);
        }
        const shown = await page.locator('#run-panel .tile', { hasText: 'Relative error' }).locator('dd').textContent();
        const { series } = await daemon.get(`/api/v1/runs/${run}/series?key=${encodeURIComponent('rmae/val')}&buckets=100`), point = series[0].data.find(p => (p.last_step ?? p.step) === 4);
        assert.ok(Math.abs(parseFloat(shown) - point.mean) < .01 * point.mean, `${shown}, reported ${point.mean}`);
        await browser.close(page);
    });

    test('test_e2e_loss_of_an_equation_has_no_unit', async () => {
        for (const at of [`runs/${run}`, `compare?runs=${run},${wave}`]) {
            const page = await browser.open(`${daemon.url}/#/${at}`);
            await page.locator('[data-panel^="loss"] h3').first().waitFor();
            assert.equal(await page.locator('[data-panel^="loss"] .unit').count(), 0, at);
            await browser.close(page);
        }
    });

    test('test_e2e_solution_stands_on_pages_of_equations_alone', async () => {
        const page = await browser.open(`${daemon.url}/#/runs/${other}`);
        await page.getByRole('tab', { name: 'Charts' }).waitFor();
        assert.equal(await page.getByRole('tab', { name: 'Solution' }).isVisible(), false);
        await browser.close(page);
    });

    test('test_e2e_solution_that_is_not_finite_is_said_and_the_exact_one_is_drawn', async () => {
        const page = await browser.open(`${daemon.url}/#/runs/${wave}?tab=solution`);
        const says = name => card(page, name).locator('canvas').getAttribute('aria-label');
        await drawn(card(page, 'Error'));
        assert.match(await says('Solution of the network'), /: 4 times by 40 places; no value is finite\./);
        assert.match(await says('Error'), /; no value is finite\./);
        assert.match(await says('Exact solution'), /: 4 times by 40 places, from /);
        assert.equal(await page.getByText('could not be loaded').isVisible(), false);
        await browser.close(page);
    });

    test('test_e2e_field_does_not_ask_for_a_blank_value', async () => {
        const page = await browser.open(`${daemon.url}/#/models/reaction?x=abc&t=2`);
        let asked = 0;
        page.on('request', request => { asked += /infer$/.test(request.url()) && JSON.parse(request.postData() ?? '{}').inputs[0].shape[0] === 1 ? 1 : 0; });
        await drawn(card(page, 'u over the domain'));
        await page.getByRole('button', { name: 'Ask for u' }).click();
        assert.equal(await page.locator('.verdict').textContent(), '');
        await page.getByLabel('x', { exact: true }).fill('1');
        await page.getByRole('button', { name: 'Ask for u' }).click();
        await page.locator('.verdict', { hasText: 'u(1, 2) = ' }).waitFor();
        assert.equal(asked, 1);
        await browser.close(page);
    });

    test('test_e2e_field_answers_at_points_and_warns_outside', async () => {
        const page = await browser.open(`${daemon.url}/#/models/reaction`), map = card(page, 'u over the domain');
        await drawn(map);
        const ask = async (x, t) => (await daemon.post('/v2/models/reaction/infer', { inputs: [{ name: 'points', datatype: 'FP32', shape: [1, 2], data: [x, t] }] })).outputs[0].data[0];
        await map.locator('canvas').focus();
        await press(page, 'ArrowDown', 'Shift+ArrowDown', 'Shift+ArrowRight', 'Shift+ArrowRight', 'Shift+ArrowRight');
        assert.match(await map.locator('.picture-read').textContent(), /^x = 3\.14, t = 0\.167: u = /);
        await press(page, 'Enter');
        await page.locator('.verdict', { hasText: 'u(3.142, 0.1667) = ' }).waitFor();
        const shown = Number((await page.locator('.verdict').textContent()).split('= ')[1]), want = await ask(3.142, 0.1667);
        assert.ok(Math.abs(shown - want) <= 1e-4 * Math.abs(want), `${shown}, asked ${want}`);
        assert.equal(await page.getByText('outside the domain').count(), 0);
        await page.getByLabel('t', { exact: true }).fill('1.5');
        await page.getByRole('button', { name: 'Ask for u' }).click();
        await page.getByText('1 of 1 points lie outside the domain').waitFor();
        assert.match(page.url(), /t=1\.5/);
        await browser.close(page);
    });

    test('test_e2e_field_shows_no_answer_of_other_coordinates_beside_an_error', async () => {
        const page = await browser.open(`${daemon.url}/#/models/reaction?x=1&t=2`, { quiet: /infer/ });
        await page.locator('.verdict', { hasText: 'u(1, 2) = ' }).waitFor();
        await page.getByText('lie outside the domain').waitFor();
        await page.route('**/infer', route => route.fulfill({ status: 500, contentType: 'application/problem+json', body: '{"title":"broken"}' }));
        await page.getByLabel('t', { exact: true }).fill('0.5');
        await page.getByRole('button', { name: 'Ask for u' }).click();
        await page.locator('.note[data-tone=bad]:not([hidden])').waitFor();
        assert.equal(await page.locator('.verdict').textContent(), '');
        assert.equal(await page.getByText('round trip').count(), 0);
        assert.equal(await page.getByText('lie outside the domain').isVisible(), false);
        await browser.close(page);
    });

    for (const look of looks)
        test(`test_e2e_field_is_whole_${look.name}`, async () => {
            await browser.inspect(daemon.url, look, [
                ['solution', `#/runs/${run}?tab=solution`, '.picture canvas:not([aria-label$=": loading"])'],
                ['solution-none', `#/runs/${none}?tab=solution`, '.state'],
                ['field', '#/models/reaction?x=1&t=2', '.note[data-tone=warn]:not([hidden])'],
            ]);
        });

    test('test_e2e_solution_that_cannot_be_loaded_offers_another_try', async () => {
        const page = await browser.open(`${daemon.url}/#/runs/${run}`, { quiet: /blobs/ });
        await page.route('**/blobs*', route => route.fulfill({ status: 500, contentType: 'application/problem+json', body: '{"title":"broken"}' }));
        await page.getByRole('tab', { name: 'Solution' }).click();
        await page.getByText('The solution could not be loaded').waitFor();
        await page.unroute('**/blobs*');
        await page.getByRole('button', { name: 'Try again' }).click();
        await drawn(card(page, 'Error'));
        await browser.close(page);
    });
});
