// The devices page in a real Chromium, on machines whose GPUs are a text file (tests/devices/fake_nvml.c).
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';

import { Daemon, build, until } from '../lib/daemon.mjs';
import { Machine, gpu } from '../lib/gpus.mjs';
import { Browser, findChromium, looks } from './browser.mjs';

const library = path.join(build, 'fake/libnvidia-ml.so.1');
const skip = !existsSync(library) ? 'the fake NVML is not built' : findChromium() ? false : 'no Chromium is installed';
const tablet = [{ name: 'tablet-light', width: 768, height: 1024, theme: 'light' }, { name: 'tablet-dark', width: 768, height: 1024, theme: 'dark' }];

const eight = [
    gpu(0, { util: 97, memutil: 55, temp: 71, power: 655000, used: 121000000000 }), gpu(1), gpu(2, { ecc: '3,0' }),
    gpu(3, { proc: '4711:80634567890', used: 81000000000, util: 12, temp: 44 }), gpu(4), gpu(5), gpu(6, { code: 15 }), gpu(7, { mig: 1 }),
    'instance 7 0 uuid=MIG-70 name="NVIDIA H200 MIG 3g.71gb" gi=1 total=74000000000 used=40000000',
    'instance 7 1 uuid=MIG-71 name="NVIDIA H200 MIG 1g.18gb" gi=2 total=18000000000 used=40000000'];
const many = [...Array(64).keys()].map(i => gpu(i, { uuid: `GPU-${i}`, util: i * 37 % 101, used: i * 2300000000 }));
const job = resources => ({ name: 'cubic on the GPU, under a name that is rather long', model: { preset: 'vit_micro' }, data: { dataset: 'digits_gen' }, train: { steps: 10 }, resources });

async function begin(lines) {
    const machine = new Machine(lines);
    const env = { ...machine.env, POLYD_SELFTEST: '1', POLYD_SELFTEST_STEPS: '100000', POLYD_SELFTEST_STEP_US: '5000' };
    Object.assign(process.env, env);
    const daemon = await Daemon.start({ flags: [`--devices.nvml=${library}`, '--devices.gpus=all', '--devices.gpu_sample_ms=100'] });
    for (const key of Object.keys(env))
        delete process.env[key];
    return { machine, daemon };
}

describe('the devices page', { skip, timeout: 240000 }, () => {
    let browser, some, full, none;
    before(async () => {
        browser = await Browser.start();
        some = await begin(eight);
        full = await begin(many);
        none = await begin([]);
        await some.daemon.submit(job({ gpus: 1 }));
        await some.daemon.post('/api/v1/devices/cuda:4/drain', { reason: 'its fan is loud' });
        some.machine.write([...eight, 'xid 1 5 79']);
        const state = async name => (await some.daemon.get('/api/v1/devices')).devices.find(d => d.name === name).state;
        await until('the GPU to be drained', async () => await state('cuda:5') === 'drained' && await state('cuda:4') === 'drained' && await state('cuda:0') !== 'checking');
        await some.daemon.submit(job({ gpus: 2, device: 'cuda' })).catch(() => {});
    });
    after(async () => {
        await browser?.stop();
        for (const one of [some, full, none])
            if (one) {
                await one.daemon.stop();
                one.machine.remove();
            }
    });

    for (const look of [...looks, ...tablet])
        test(`test_e2e_gpus_hold_in_${look.name.replace('-', '_')}`, async () => {
            await browser.inspect(some.daemon.url, look, [['gpus-eight', '#/devices', '.gpu[data-state="drained"]']]);
            await browser.inspect(full.daemon.url, look, [['gpus-many', '#/devices', '.gpu']]);
            await browser.inspect(none.daemon.url, look, [['gpus-none', '#/devices', 'text=No GPU']]);
        });

    test('test_e2e_a_run_shows_its_gpus', async () => {
        const { run_id: run, gpu: its } = (await some.daemon.get('/api/v1/devices')).devices.find(d => d.kind === 'cuda' && d.run_id);
        await until('samples of the GPU', async () => (await some.daemon.get(`/api/v1/runs/${run}/metrics`)).series.filter(s => s.key.startsWith('system/gpu.0/')).length === 4);
        const page = await browser.open(`${some.daemon.url}/#/runs/${run}`);
        const group = page.locator('details.group', { has: page.getByRole('heading', { name: 'GPUs', exact: true }) });
        await group.waitFor();
        assert.deepEqual(await group.locator('h3').allInnerTexts(), ['GPU busy', 'GPU memory', 'GPU power', 'GPU temperature']);
        await group.locator('[data-panel="system/gpu.n/utilization"]', { hasText: 'GPU 0' }).waitFor();
        assert.match(await group.locator('[data-panel="system/gpu.n/utilization"]').innerText(), new RegExp(`GPU 0\\s*${Math.round(its.utilization_ratio * 100)}`));
        assert.match(await group.locator('[data-panel="system/gpu.n/power"]').innerText(), new RegExp(`${Math.round(its.power_watts)} W`));
        assert.match(await group.locator('[data-panel="system/gpu.n/temperature"]').innerText(), new RegExp(`${its.temperature_celsius} °C`));
        /* Neither among the run's own metrics, nor offered as a column. */
        assert.equal(await page.locator('details.group', { has: page.getByRole('heading', { name: 'Training', exact: true }) }).locator('[data-panel^="system"]').count(), 0);
        await browser.close(page);

        /* A run on a CPU has no such group; eight GPUs over a day fit every size. */
        await none.daemon.submit(job({ device: 'cpu', slots: 1 }));
        const { runs } = await none.daemon.get('/api/v1/runs');
        await until('its first points', async () => (await none.daemon.get(`/api/v1/runs/${runs[0].id}/metrics`)).series.length > 0);
        for (const look of looks) {
            const cpu = await browser.open(`${none.daemon.url}/#/runs/${runs[0].id}`, look);
            await cpu.locator('details.group').first().waitFor();
            assert.equal(await cpu.getByRole('heading', { name: 'GPUs', exact: true }).count(), 0);
            await browser.close(cpu);
        }
        const begin_ms = Date.now() - 86400000, points = [];
        for (let gpu = 0; gpu < 8; gpu++)
            for (let i = 0; i < 1000; i++)
                for (const [what, value] of [['utilization', (60 + 40 * Math.sin(i / 20 + gpu)) / 100], ['memory', 1e11 + gpu * 2e9], ['power', 400 + 250 * Math.sin(i / 15 + gpu)], ['temperature', 50 + gpu]])
                    points.push({ key: `system/gpu.${gpu}/${what}`, step: i * 10, time: new Date(begin_ms + i * 86400).toISOString(), value });
        const { id: own } = await none.daemon.post('/api/v1/runs', { name: 'on eight GPUs' }); /* no machine here has them */
        for (let at = 0; at < points.length; at += 8000)
            await none.daemon.post(`/api/v1/runs/${own}/metrics`, { points: points.slice(at, at + 8000) });
        for (const look of looks)
            await browser.inspect(none.daemon.url, look, [['run-gpus', `#/runs/${own}?folds=gpus-open`, '[data-panel="system/gpu.n/temperature"] .legend button']]);
        const shown = await browser.open(`${none.daemon.url}/#/runs/${own}?folds=gpus-open`, looks[3]);
        const busy = shown.locator('[data-panel="system/gpu.n/utilization"]');
        await busy.locator('.legend button').nth(7).waitFor();
        await busy.scrollIntoViewIfNeeded();
        await busy.screenshot({ path: path.join(browser.pictures, 'run-gpus-panel-phone-dark.png') });
        await browser.close(shown);
        const wide = await browser.open(`${none.daemon.url}/#/runs/${own}`, looks[0]);
        const all = wide.locator('details.group', { has: wide.getByRole('heading', { name: 'GPUs', exact: true }) });
        await all.locator('.legend button').nth(31).waitFor();
        await all.screenshot({ path: path.join(browser.pictures, 'run-gpus-group-desktop-light.png') });
        await browser.close(wide);
    });

    test('test_e2e_the_queue_fits_a_phone', async () => {
        for (let i = 0; i < 3; i++)
            await none.daemon.submit(job({ device: 'cpu', slots: 1, priority: i }));
        for (const look of looks) {
            const page = await browser.open(`${none.daemon.url}/#/devices`, look);
            const table = page.locator('.queue');
            await table.waitFor();
            await page.evaluate(() => document.querySelector('.queue')?.scrollIntoView());
            await page.screenshot({ path: path.join(browser.pictures, `queue-${look.name}.png`) }); /* the table itself is drawn anew now and then */
            const [inner, outer] = await page.getByRole('region', { name: 'Runs that wait' }).evaluate(e => [e.scrollWidth, e.clientWidth]);
            assert.ok(inner <= outer, `${look.name}: the queue is ${inner} px wide in ${outer}`);
            assert.equal(await page.getByRole('button', { name: /^Cancel / }).first().isVisible(), true);
            assert.equal(await page.getByRole('spinbutton').first().isVisible(), true);
            assert.match(await table.innerText(), /waiting for a CPU slot/i);
            await browser.close(page);
        }
    });

    test('test_e2e_a_gpu_is_taken_out_and_put_back', async () => {
        const page = await browser.open(`${some.daemon.url}/#/devices`);
        const card = page.locator('.gpu[aria-label="cuda:2"]');
        await card.waitFor();
        assert.match(await card.innerText(), /3 ECC errors, corrected/);
        assert.match(await page.locator('.gpu[aria-label="cuda:3"]').innerText(), /a foreign process \(pid 4711\)/);
        assert.match(await page.locator('.gpu[aria-label="cuda:5"]').innerText(), /XID 79: GPU has fallen off the bus/);
        await page.getByRole('button', { name: 'Take out cuda:2' }).click();
        await page.getByPlaceholder('Its fan is loud').fill('a test');
        await page.getByRole('button', { name: 'Take out', exact: true }).last().click();
        /* "draining" while a run is there still. */
        await page.locator('.gpu[aria-label="cuda:2"][data-state^="drain"]').waitFor();
        assert.match(await card.innerText(), /a test \(a client, /);
        await page.getByRole('button', { name: 'Put back cuda:2' }).click();
        await page.getByRole('button', { name: 'Put back', exact: true }).last().click();
        await page.locator('.gpu[aria-label="cuda:2"]:not([data-state^="drain"])').waitFor();
        await browser.close(page);
    });
});
