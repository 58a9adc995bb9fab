// Experiments by name, from the page to the queue: what a card says is what the API says, and its button submits that template.
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';

import { Host } from '../api/lib.mjs';
import { Daemon, until } from '../lib/daemon.mjs';
import { axeSource, Browser, findChromium, looks } from './browser.mjs';

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
        await page.getByText('Statements of the theory (20)').click();
        assert.equal(await page.locator('details .statement').count(), 20);
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
        assert.deepEqual(jobs.map(job => [job.template, job.experiment]), [['E09 small 4', 'E09'], ['E09 small 4', 'E09']]);
        await until('the count', async () => /\d+ runs so far/.test(await page.getByRole('region', { name: /^E09/ }).innerText()));
        await page.getByRole('link', { name: /runs so far/ }).click();
        await page.locator('.grid-row').first().waitFor();
        assert.match(page.url(), /experiment=E09/);
        for (const { id } of jobs)
            await daemon.post(`/api/v1/jobs/${id}/cancel`);
        await browser.close(page);
    });
});

/** The real server and store, and runs whose numbers are known. */
describe('what experiments have shown', { skip: findChromium() === null && 'no Chromium here', timeout: 240000 }, () => {
    const values = [[0.90, 0.92, 0.91], [0.905, 0.921, 0.914], [0.80, 0.85, 0.70], [0.85, null, 0.875]]; // softmax, fixed, learned, raw; null diverges
    let host, browser, url, report, folder;
    before(async () => {
        [host, browser] = await Promise.all([Host.start(process.env.POLYD_WEB_DIR ? [`--web-dir=${path.resolve(process.env.POLYD_WEB_DIR)}`] : []), Browser.start()]);
        url = `http://127.0.0.1:${host.port}`;
        folder = mkdtempSync(path.join(os.tmpdir(), 'polyd-report-'));
        const { run_ids: ids } = (await host.post('/api/v1/jobs', { template: 'E04', notes: '<script>alert(1)</script>' })).json;
        for (const [i, run] of ids.entries()) {
            const value = values[Math.floor(i / 3)][i % 3];
            await host.worker(run, [0.5, 0.8, 1].map((part, k) => ({ key: 'acc/val', step: 10 * (k + 1), value: part * (value ?? 0.1) })));
            if (value !== null)
                await host.worker(run, [{ key: 'acc/test', step: 30, value: value - 0.0625 }]);
            await host.tell(`start ${run}`);
            await host.tell(`end ${run} ${value === null ? 1 : 0}`);
        }
        await host.post('/api/v1/jobs', { template: 'E11' });
        await host.post('/api/v1/runs', { name: 'own', experiment: 'by hand' });
        report = (await host.get('/api/v1/experiments/E04/report')).text;
    });
    after(async () => {
        await browser?.stop();
        await host?.stop();
        if (folder)
            rmSync(folder, { recursive: true, force: true });
    });

    test('a card says what was asked, what was seen with its seeds, and where more is', async () => {
        const page = await browser.open(`${url}/#/experiments`), card = page.getByRole('region', { name: /^E04/ });
        await card.getByText('12 of 12 runs ended, 1 diverged.').waitFor();
        const { submissions: [s], job_list: [job] } = (await host.get('/api/v1/experiments/E04')).json;
        const lines = card.locator('.claim');
        assert.equal(await lines.count(), s.claims.length);
        const verdicts = await lines.locator('.chip').allInnerTexts();
        assert.deepEqual(verdicts.map(word => word.toLowerCase()), s.claims.map(c => c.verdict));
        assert.deepEqual(s.claims.map(c => c.verdict), ['undecided', 'undecided', 'holds', 'undecided']);
        const texts = await lines.allInnerTexts();
        assert.match(texts[0], /diverged counts as worse than any finite value: 1 of the seeds/);
        assert.match(texts[2], /difference 0\.003333, 95 % interval −0\.001838 to 0\.008504; seeds 0, 1, 2\./);
        const cells = await card.locator('.means td.num:not(.tested)').allInnerTexts();
        assert.deepEqual(cells.map(text => text.split(' ')[0]), ['0.910', '0.9133', '0.783', '0.863']);
        assert.match(cells[3], /\(2; 1 diverged\)/);
        assert.deepEqual(await card.locator('.means thead th').allInnerTexts(), ['Combination', '', 'acc/val', 'acc/test']);
        assert.deepEqual((await card.locator('.means td.tested').allInnerTexts()).map(text => text.split(' ')[0]), ['0.848', '0.8508', '0.721', '0.800']);
        // Dots stand in the order of the means.
        const dots = await card.locator('.whisker-dot').evaluateAll(list => list.map(dot => dot.getBoundingClientRect().x));
        const means = job.table.map(row => row.statistic.mean);
        means.forEach((mean, i) => means.forEach((other, k) => assert.ok((mean < other) === (dots[i] < dots[k]))));
        assert.equal(await card.getByRole('link', { name: 'Report' }).getAttribute('href'), '/api/v1/experiments/E04/report');
        assert.equal(await card.getByRole('link', { name: 'Job 1' }).getAttribute('href'), '#/jobs/1');
        // Running, and nothing yet.
        await page.getByRole('region', { name: /^E11/ }).getByText('0 of 12 runs ended.').waitFor();
        assert.deepEqual([...new Set(await page.getByRole('region', { name: /^E11/ }).locator('.chip').allInnerTexts())], ['Open']);
        await page.getByRole('region', { name: /^E01/ }).getByText('nothing yet.').waitFor();
        assert.equal(await page.getByRole('region', { name: /^E07/ }).getByText('nothing yet.').count(), 0);
        await page.getByText('Other labels (1)').click();
        await page.getByRole('link', { name: 'Report of by hand' }).waitFor();
        await browser.close(page);
    });

    test('a fold that the reader opened stays open when news come', async () => {
        const page = await browser.open(`${url}/#/experiments`);
        await page.getByText('Other labels (1)').click();
        await host.post('/api/v1/runs', { name: 'own', experiment: 'another' });
        await page.getByText('Other labels (2)').waitFor();
        await page.getByRole('link', { name: 'Report of another' }).waitFor();
        await browser.close(page);
    });

    test('pictures stay when a refresh fails, and come back after an answer that has none', async () => {
        const page = await browser.open(`${url}/#/experiments/E04`, { quiet: /50[0-9]|404/ }), claims = page.locator('#claims');
        await claims.waitFor();
        const fails = async status => {
            await page.route('**/api/v1/experiments/E04', route => route.fulfill({ status, contentType: 'application/problem+json', body: JSON.stringify({ error: { code: 'x', message: 'not now' } }) }));
            const reply = page.waitForResponse(response => response.status() === status);
            await page.evaluate(() => dispatchEvent(new Event('polyd:back')));
            await (await reply).finished();
            await page.evaluate(() => new Promise(done => { requestAnimationFrame(() => requestAnimationFrame(() => done(null))); }));
            await page.unroute('**/api/v1/experiments/E04');
        };
        await fails(503);
        assert.equal(await claims.count(), 1);
        await fails(404);
        await page.getByText('There is no experiment E04').waitFor();
        await page.evaluate(() => dispatchEvent(new Event('polyd:back')));
        await claims.waitFor();
        await browser.close(page);
    });

    test('a click reaches its button though news come while it is pressed', async () => {
        const page = await browser.open(`${url}/#/experiments`), button = page.getByRole('button', { name: 'Run it small: E18' });
        await button.scrollIntoViewIfNeeded();
        const { x, y, width, height } = await button.boundingBox();
        await page.mouse.move(x + width / 2, y + height / 2);
        await page.mouse.down();
        const news = page.waitForResponse(reply => /experiments\/E11$/.test(reply.url()));
        await host.post('/api/v1/runs', { name: 'own', experiment: 'pressed' });
        await (await news).finished();
        await page.evaluate(() => new Promise(done => { requestAnimationFrame(() => requestAnimationFrame(() => done(null))); }));
        await page.mouse.up();
        await page.getByRole('dialog').getByText('Expected:', { exact: false }).waitFor();
        await page.getByText('Other labels (3)').waitFor();
        await browser.close(page);
    });

    test('its pictures and the paper’s table hold our means and the differences', async () => {
        const page = await browser.open(`${url}/#/experiments`);
        await page.getByRole('link', { name: 'Pictures of E04' }).click();
        const table = page.getByRole('region', { name: 'Tiny-ImageNet, Top-1', exact: true }), cells = async i => (await table.locator('tbody tr').nth(i).locator('th, td').allInnerTexts()).map(text => text.replaceAll('−', '-').trim());
        await table.waitFor();
        const mean = list => 100 * list.filter(v => v !== null).reduce((a, b) => a + b) / list.filter(v => v !== null).length, validated = values.map(mean), ours = validated.map(v => v - 6.25), paper = [50.26, 50.5, null, 45.3];
        for (const [i, name] of ['softmax', 'x³ fixed', 'x³ learned', 'x³ raw'].entries()) {
            const [row, column, target, here, less, , apart, n] = await cells(i);
            assert.deepEqual([row, column, target, n], [name, 'ViT-Tiny acc/test', paper[i] === null ? '–' : String(paper[i]), String(values[i].filter(v => v !== null).length)]);
            assert.ok(Math.abs(Number(here.split(' ')[0]) - ours[i]) < 0.006, `${here} ${ours[i]}`);
            if (paper[i] !== null)
                assert.ok(Math.abs(Number(less) - (ours[i] - paper[i])) < 0.006, less);
            if (i)
                assert.ok(Math.abs(Number(apart) - (ours[i] - ours[0])) < 0.006, apart);
        }
        const curves = page.getByRole('region', { name: 'Accuracy through training', exact: true });
        await curves.getByRole('button', { name: 'Accuracy through training: save' }).click();
        const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'CSV', exact: true }).click()]);
        const lines = readFileSync(await download.path(), 'utf8').trim().split('\n').map(line => line.split(','));
        const half = lines.find(([name, step]) => name === 'x³ learned' && step === '10');
        assert.ok(Math.abs(Number(half[2]) - 0.5 * validated[2] / 100) < 1e-9 && half[4] === '3', half.join());
        assert.match(await curves.locator('canvas').getAttribute('aria-label'), /4 lines: softmax ends at 91\.0 %/);
        await browser.close(page);
    });

    for (const look of looks)
        test(`the page in ${look.name}`, async () => {
            await browser.inspect(url, look, [['experiments', '#/experiments', '.claim'], ['experiment', '#/experiments/E04', '.target-table'], ['experiment-empty', '#/experiments/E01', '.state']]);
        });

    for (const look of looks)
        test(`the report opens from a file in ${look.name}, with all its numbers and nothing else`, async () => {
            const file = path.join(folder, `E04-${look.name}.html`);
            writeFileSync(file, report);
            const page = await browser.open(`file://${file}`, { ...look, origin: 'null' });
            const text = await page.innerText('body');
            for (const number of ['0.913333', '0.00802081', '-0.00183781', '0.00850448', '0.862500'.replace(/0+$/, ''), '0.783333'])
                assert.ok(text.includes(number), number);
            assert.ok(text.includes('<script>alert(1)</script>'));
            assert.equal(await page.locator('circle.mean').count(), 4);
            assert.equal(await page.locator('polyline.line').count(), 8); // the paper's figure, and the job's curves
            const dark = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
            assert.equal(dark, look.theme === 'dark' ? 'rgb(13, 17, 23)' : 'rgb(255, 255, 255)');
            const excess = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
            assert.ok(excess <= 0, `${excess} px wider than the window`);
            if (process.env.POLYD_TEST_PICTURES)
                await page.screenshot({ path: path.join(browser.pictures, `report-${look.name}.png`), fullPage: true });
            page.problems = page.problems.filter(problem => !problem.startsWith(`foreign request: file://${file}`));
            await browser.close(page);
        });

    test('the report is accessible, and prints on paper of A4 with no table cut', async () => {
        const page = await browser.open('about:blank', { origin: 'null' });
        // axe is a script: the page's own policy forbids it, so that it is tried without.
        await page.setContent(report.replace(/<meta http-equiv[^>]*>/, ''));
        await page.evaluate(axeSource);
        const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'] }));
        assert.deepEqual(violations.map(v => `${v.id}: ${v.nodes.map(node => node.target.join(' ')).join(', ')}`), []);
        const pdf = await page.pdf({ preferCSSPageSize: true });
        assert.equal(pdf.subarray(0, 5).toString(), '%PDF-');
        const pages = pdf.toString('latin1').match(/\/Type\s*\/Page\b/g).length;
        assert.ok(pages >= 2 && pages < 20, `${pages} pages`);
        // Each table fits between the margins.
        await page.emulateMedia({ media: 'print' });
        await page.setViewportSize({ width: Math.floor((210 - 28) / 25.4 * 96), height: 900 });
        const wide = await page.evaluate(() => [...document.querySelectorAll('table')].filter(t => t.getBoundingClientRect().right > innerWidth + 1).length);
        assert.equal(wide, 0, 'tables wider than the paper');
        if (process.env.POLYD_TEST_PICTURES)
            writeFileSync(path.join(browser.pictures, 'report.pdf'), pdf);
        await browser.close(page);
    });
});

/** Pictures that need what only real runs store. */
describe('pictures of real runs', { skip: findChromium() === null && 'no Chromium here', timeout: 240000 }, () => {
    let daemon, browser;
    const train = { steps: 2, batch: 4, eval_every: 2 }, model = { width: 16, depth: 2, heads: 2 }, data = { split: { train: 16, val: 8, test: 8 } }, more = { trials: 1, resources: { threads: 1 } };
    before(async () => {
        [daemon, browser] = await Promise.all([Daemon.start({ flags: ['--devices.cpu_slots=2'] }), Browser.start()]);
        const maps = { probe_batch: 4, heatmaps: { layers: [2], heads: [1], every: 2 } };
        for (const body of [{ template: 'E12', train, model, data }, { template: 'E06', train, model, data, diagnostics: maps }, { template: 'E16', train }])
            await daemon.post('/api/v1/jobs', { ...body, ...more });
        await until('all runs', async () => (await daemon.get('/api/v1/experiments')).experiments.every(x => x.runs.succeeded === x.runs.total), { limit: 120000 });
    });
    after(async () => {
        await browser?.stop();
        await daemon?.stop();
    });
    const csv = async (page, title) => {
        await page.getByRole('button', { name: `${title}: save` }).click();
        const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'CSV', exact: true }).click()]);
        return readFileSync(await download.path(), 'utf8').trim().split('\n').map(line => line.split(','));
    };

    test('gradients of both arms are the stored counts, and each arm has its block', async () => {
        const page = await browser.open(`${daemon.url}/#/experiments/E12`);
        const { runs } = await daemon.get('/api/v1/runs?experiment=E12'), title = 'W_Q, all layers, step 0';
        await page.getByRole('region', { name: 'S5: vision block', exact: true }).waitFor();
        await page.getByRole('region', { name: 'S1: vision block', exact: true }).waitFor();
        const rows = await csv(page, title);
        assert.deepEqual(rows[0], ['from', 'to', 'share S1', 'share S5']);
        for (const [i, run] of runs.map(r => r.id).sort((a, b) => a - b).entries()) {
            const { blobs: [blob] } = await daemon.get(`/api/v1/runs/${run}/blobs?key=grad/histogram/w_q`);
            const counts = new Float64Array(await (await fetch(`${daemon.url}/api/v1/runs/${run}/blobs/${blob.id}`)).arrayBuffer().then(b => (blob.meta.dtype === 'f64' ? b : new Float64Array(new Float32Array(b)).buffer)));
            const used = [...counts].map(c => c / blob.meta.count).filter(v => v > 0), drawn = rows.slice(1).map(r => Number(r[2 + i])).filter(v => v > 0);
            assert.equal(drawn.length, used.length);
            used.forEach((v, k) => assert.ok(Math.abs(v - drawn[k]) < 1e-7));
        }
        await browser.close(page);
    });

    test('matrices of both arms stand side by side, cell by cell as stored', async () => {
        const page = await browser.open(`${daemon.url}/#/experiments/E06`), { runs } = await daemon.get('/api/v1/runs?experiment=E06');
        const rows = await csv(page, 'x³ learned, layer 2, head 1'), run = runs.map(r => r.id).sort((a, b) => a - b)[1];
        const blob = (await daemon.get(`/api/v1/runs/${run}/blobs?key=attn/map/2/1`)).blobs.at(-1);
        const values = new Float32Array(await (await fetch(`${daemon.url}/api/v1/runs/${run}/blobs/${blob.id}`)).arrayBuffer());
        assert.deepEqual(rows.slice(1).map(r => Math.fround(Number(r[2]))), [...values]);
        await page.getByRole('region', { name: 'softmax, layer 2, head 1', exact: true }).waitFor();
        await browser.close(page);
    });

    test('memory bars are the plan’s bytes, and states take what was measured', async () => {
        const page = await browser.open(`${daemon.url}/#/experiments/E16`), rows = await csv(page, 'Memory by category');
        const of = (name, what) => Number(rows.find(r => r[0] === name && r.slice(1, -1).join(',') .replaceAll('"', '') === what).at(-1));
        const { runs } = await daemon.get('/api/v1/runs?experiment=E16'), first = runs.map(r => r.id).sort((a, b) => a - b)[0];
        const { plan } = await daemon.post('/api/v1/jobs?dry_run=1', (await daemon.get(`/api/v1/runs/${first}`)).document);
        for (const [id, word] of [['weights', 'Weights'], ['moment1', 'First moment'], ['moment2', 'Second moment'], ['activations', 'Activations']])
            assert.equal(of('AdamW rate 0.001', word), plan.bytes[id]);
        assert.equal(of('AdamW rate 0.001', 'state, measured'), plan.bytes.moment1 + plan.bytes.moment2);
        assert.equal(of('mSGDW rate 0.1', 'state, measured'), plan.bytes.moment1);
        await browser.close(page);
    });

    for (const look of looks.filter(({ name }) => name === 'desktop-dark' || name === 'phone-light'))
        test(`they are whole in ${look.name}`, async () => {
            await browser.inspect(daemon.url, look, [['experiment-gradients', '#/experiments/E12', '.picture canvas'], ['experiment-maps', '#/experiments/E06', '.picture canvas'], ['experiment-memory', '#/experiments/E16', '.picture canvas']]);
        });
});
