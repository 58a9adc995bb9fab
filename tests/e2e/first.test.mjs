// A stranger's first minutes, and what must not be lost on the way: the example by one click, the drawing pad (its digit and
// probabilities are those that the API gives for the picture on the page), the table's header, place and
// selection, notes, retry, the log, a server that goes away. In a real Chromium.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';

import { build, Daemon, freePort, until } from '../lib/daemon.mjs';
import { example } from '../../web/js/example.js';
import { axeSource, Browser, findChromium } from './browser.mjs';

const RUNS = 400;
const skip = findChromium() === null && 'no Chromium here';
const tiny = {
    name: 'tiny', model: { preset: 'vit_micro', depth: 1 }, data: { dataset: 'digits_gen', split: { rule: 'count', train: 64, val: 64 } }, train: { steps: 4, batch: 16, eval_every: 2 },
};

/** Digits as one draws them with a mouse, in strokes on a grid of 100. */
const drawn = {
    0: [[[50, 15], [34, 22], [26, 40], [26, 60], [34, 78], [50, 86], [66, 78], [74, 60], [74, 40], [66, 22], [50, 15]]],
    1: [[[50, 12], [50, 88]]],
    2: [[[28, 30], [34, 18], [50, 13], [66, 18], [71, 32], [64, 48], [46, 66], [27, 86], [76, 86]]],
    3: [[[28, 22], [40, 14], [58, 14], [70, 24], [68, 38], [52, 48], [68, 56], [72, 70], [62, 84], [44, 88], [28, 80]]],
    4: [[[58, 12], [24, 62], [78, 62]], [[60, 38], [60, 90]]],
    6: [[[66, 14], [46, 24], [32, 44], [28, 66], [36, 82], [52, 88], [68, 80], [72, 66], [62, 54], [46, 52], [32, 62]]],
    7: [[[24, 16], [76, 16], [62, 42], [48, 88]]],
    9: [[[70, 32], [60, 18], [42, 16], [30, 28], [32, 44], [46, 52], [62, 46], [70, 32], [68, 60], [58, 88]]],
};

async function stroke(page, digit) {
    const box = await page.locator('.pad-canvas').boundingBox();
    const at = ([x, y]) => [box.x + x / 100 * box.width, box.y + y / 100 * box.height];
    for (const points of drawn[digit]) {
        await page.mouse.move(...at(points[0]));
        await page.mouse.down();
        for (const point of points.slice(1))
            await page.mouse.move(...at(point), { steps: 3 });
        await page.mouse.up();
    }
}

/** The process that trains a run. */
function workerOf(daemon, run) {
    for (const pid of readdirSync('/proc').filter(name => /^\d+$/.test(name))) {
        try {
            const words = readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0');
            if (words[1] === 'train' && words[words.indexOf('--run') + 1] === run && words.some(word => word.startsWith(daemon.stateDir)))
                return Number(pid);
        } catch { /* it has left */ }
    }
    throw new Error(`run ${run} has no worker`);
}

/** The model of the example, loaded: trained by the test of the example, or here if that did not run. */
async function readerOf(daemon) {
    const { models } = await daemon.get('/api/v1/models');
    if (!models.some(model => model.name === example.register)) {
        const { run } = await daemon.submit(example);
        await daemon.reach(run, 'succeeded');
        await until('the model to be registered', async () => (await daemon.get('/api/v1/models')).models.length > 0);
    }
    await daemon.post(`/api/v1/models/${example.register}/versions/1/load`);
}

describe('first minutes', { skip, timeout: 400000 }, () => {
    /** @type {Daemon} */ let full;
    /** @type {Daemon} */ let empty;
    /** @type {Browser} */ let browser;
    let dataDir;
    before(async () => {
        const stateDir = mkdtempSync(path.join(os.tmpdir(), 'polyd-'));
        execFileSync(path.join(build, 'bin/seed_store'), [stateDir, String(RUNS)], { stdio: 'ignore' });
        dataDir = mkdtempSync(path.join(os.tmpdir(), 'polyd-data-'));
        full = new Daemon(stateDir, await freePort(), [`--data.test=${dataDir}`]);
        [, empty, browser] = await Promise.all([full.up(), Daemon.start(), Browser.start()]);
    });
    after(async () => {
        await browser?.stop();
        await Promise.all([full?.stop(), empty?.stop()]);
        rmSync(dataDir, { recursive: true, force: true });
    });

    test('test_e2e_example_runs_by_one_click_and_is_explained', async () => {
        const page = await browser.open(`${empty.url}/`, { width: 390, height: 844 });
        await page.getByText('No runs yet').waitFor();
        await page.getByText('The same from a shell').click();
        /* The button beside the command covers none of it, and nothing of it is cut off. */
        const covered = await page.evaluate(() => {
            const pre = document.querySelector('.snippet pre'), a = pre.getBoundingClientRect(), b = document.querySelector('.snippet button').getBoundingClientRect();
            return { over: !(b.right <= a.left || b.left >= a.right || b.bottom <= a.top || b.top >= a.bottom), cut: pre.scrollWidth > pre.clientWidth + 1 };
        });
        assert.deepEqual(covered, { over: false, cut: false });
        await page.getByRole('button', { name: 'Run this example' }).click();
        await page.getByRole('heading', { name: 'What happens' }).waitFor();
        assert.match(page.url(), /guide=1/);
        await page.locator('.guide-steps li[data-at="now"]', { hasText: 'Training' }).waitFor({ timeout: 60000 });
        await page.getByText(/Step [\d,]+ of [\d,]+\. Loss falls/).waitFor();
        await page.getByRole('link', { name: 'Load it and draw a digit' }).click({ timeout: 180000 });
        await page.getByRole('button', { name: /Load version 1/ }).first().click();
        await page.locator('.pad-canvas').waitFor({ timeout: 60000 });
        await page.getByRole('button', { name: 'Draw a 0' }).click();
        await page.getByText(/^0 \([\d.]+ %\)$/).waitFor();
        await browser.close(page);
    });

    test('test_e2e_drawn_digit_is_named_and_its_probabilities_are_those_of_the_api', async () => {
        await readerOf(empty);
        const page = await browser.open(`${empty.url}/#/models/digits-cubic`);
        await page.locator('.pad-canvas').waitFor();
        const wrong = [];
        for (const digit of Object.keys(drawn)) {
            await page.getByRole('button', { name: 'Clear' }).click();
            await page.getByText('Draw a digit.', { exact: true }).waitFor();
            await stroke(page, digit);
            /* The image that the model receives is read from the page; the test asks the API about it by itself. Answers to parts of
             * the drawing come first: what stands at last counts. Gives the digit that the page names. */
            const look = async () => {
                const now = await page.evaluate(() => {
                    const seen = document.querySelector('.seen'), of = row => [row.querySelector('.label').textContent, row.querySelector('.value').textContent];
                    return {
                        grey: [...seen.getContext('2d').getImageData(0, 0, seen.width, seen.height).data].filter((_, i) => i % 4 === 0),
                        bars: [...document.querySelectorAll('.bars li')].map(of), best: of(document.querySelector('.bars li.best')),
                        said: document.querySelector('.verdict').textContent,
                    };
                });
                const reply = await empty.post('/v2/models/digits-cubic/versions/1/infer', { inputs: [{ name: 'image', shape: [1, 1, 28, 28], datatype: 'UINT8', data: now.grey }], outputs: [{ name: 'probabilities' }] });
                const { data } = reply.outputs[0], most = String(data.indexOf(Math.max(...data)));
                assert.deepEqual(now.bars, data.map((p, i) => [String(i), `${(p * 100).toFixed(p >= 0.9995 || p === 0 ? 0 : p >= 0.1 ? 1 : 2)} %`]));
                assert.deepEqual([now.best[0], /\d/.exec(now.said)[0]], [most, most], now.said);
                assert.ok(now.said.includes(now.best[1]), now.said);
                /* What the model sees is the drawing: as large as MNIST's digits, its mass in the middle, turned and mirrored by nobody.
                 * Each of its pixels is compared with the mean of the square of the pad that it stands for. */
                const { side, x, y, likeness } = await page.evaluate(() => {
                    const grey = what => {
                        const canvas = document.querySelector(what), n = canvas.width;
                        const data = canvas.getContext('2d').getImageData(0, 0, n, n).data;
                        const sum = { n, at: (x, y) => (x < 0 || y < 0 || x >= n || y >= n ? 0 : data[(Math.floor(y) * n + Math.floor(x)) * 4]), left: n, right: -1, top: n, bottom: -1, x: 0, y: 0 };
                        let mass = 0;
                        for (let y = 0; y < n; y++)
                            for (let x = 0; x < n; x++) {
                                const v = sum.at(x, y);
                                if (v > 24)
                                    Object.assign(sum, { left: Math.min(sum.left, x), right: Math.max(sum.right, x), top: Math.min(sum.top, y), bottom: Math.max(sum.bottom, y) });
                                mass += v;
                                sum.x += v * (x + .5);
                                sum.y += v * (y + .5);
                            }
                        return Object.assign(sum, { x: sum.x / mass, y: sum.y / mass, side: Math.max(sum.right - sum.left, sum.bottom - sum.top) + 1 });
                    };
                    const pad = grey('.pad-canvas'), seen = grey('.seen'), per = pad.side / 20;
                    let ab = 0, aa = 0, bb = 0;
                    for (let y = 0; y < seen.n; y++)
                        for (let x = 0; x < seen.n; x++) {
                            let mean = 0;
                            for (let k = 0; k < 64; k++)
                                mean += pad.at(pad.x + (x + (k % 8 + .5) / 8 - seen.x) * per, pad.y + (y + (Math.floor(k / 8) + .5) / 8 - seen.y) * per) / 64;
                            const v = seen.at(x, y);
                            ab += v * mean;
                            aa += v * v;
                            bb += mean * mean;
                        }
                    return { side: seen.side, x: seen.x, y: seen.y, likeness: ab / Math.sqrt(aa * bb) };
                });
                assert.ok(Math.abs(side - 20) <= 1.5, `${digit}: ${side} px`);
                assert.ok(Math.hypot(x - 14, y - 14) < 1, `${digit}: the mass stands at ${x}, ${y}`);
                assert.ok(likeness > .9, `${digit}: ${likeness} like what was drawn`);
                return now.best[0];
            };
            if (!await until(`the page to name the drawn ${digit}`, async () => await look() === digit, { limit: 10000 }).catch(() => false))
                wrong.push(`a ${digit} as ${await until(`the answer to the drawn ${digit}`, look, { limit: 10000 })}`);
        }
        assert.ok(wrong.length <= 1, wrong.join(', ')); // a small model may misread one
        await browser.close(page);
    });

    test('test_e2e_header_of_the_table_stays_while_rows_scroll', async () => {
        for (const rows of ['32', '40']) {
            const page = await browser.open(`${full.url}/#/?rows=${rows}`);
            await page.getByText(`${RUNS} runs`).waitFor();
            const box = await page.locator('.grid-scroll').boundingBox();
            await page.mouse.move(box.x + 300, box.y + 200);
            await page.mouse.wheel(0, 3000);
            await until('the rows to have moved', async () => await page.locator('.grid-scroll').evaluate(el => el.scrollTop) > 2000);
            const head = await page.locator('.grid-head').boundingBox();
            assert.ok(Math.abs(head.y - box.y) < 3, `the header stands at ${head.y}, the table at ${box.y}`);
            const heights = await page.locator('.grid-row').evaluateAll(all => [...new Set(all.map(row => row.getBoundingClientRect().height))]);
            assert.deepEqual(heights, [Number(rows)]);
            await page.locator('[data-column="m:acc/val"] .sort').click();
            await page.locator('[data-column="m:acc/val"][aria-sort="descending"]').waitFor();
            await browser.close(page);
        }
    });

    test('test_e2e_each_metric_is_its_own_column_sorted_by_its_direction', async () => {
        const runs = [];
        for (const [name, points] of [['words', { 'ppl/val': 12.52 }], ['words, better', { 'ppl/val': 8.1 }], ['pictures', { 'acc/val': .9999 }]]) {
            const { id: run } = await empty.post('/api/v1/runs', { name, experiment: 'own-columns', config: { model: { depth: name === 'pictures' ? 1 : 2 }, data: { dataset: 'own' } } });
            await empty.post(`/api/v1/runs/${run}/metrics`, { points: Object.entries({ 'loss/val': 1, ...points }).map(([key, value]) => ({ key, step: 100, value })) });
            await empty.post(`/api/v1/runs/${run}/finish`, { outcome: 'succeeded' });
            runs.push(run);
        }
        const page = await browser.open(`${empty.url}/#/?experiment=own-columns`);
        await page.locator('[data-column="m:ppl/val"]').waitFor();
        assert.equal(await page.getByRole('columnheader', { name: 'Score' }).count(), 0);
        const first = () => page.locator('.grid-row[aria-rowindex="2"] .name').innerText();
        await page.locator('[data-column="m:ppl/val"] .sort').click();
        await page.locator('[data-column="m:ppl/val"][aria-sort="ascending"]').waitFor();
        assert.equal(await first(), 'words, better');
        await page.locator('[data-column="m:acc/val"] .sort').click();
        await page.locator('[data-column="m:acc/val"][aria-sort="descending"]').waitFor();
        assert.equal(await first(), 'pictures');
        /* The setting that tells these runs apart is a column; those that all share are none. Metrics come before both. */
        const heads = await page.locator('.grid-head [data-column]').evaluateAll(all => all.map(cell => cell.dataset.column));
        assert.deepEqual(heads.slice(0, 5), ['state', 'name', 'm:acc/val', 'm:ppl/val', 'm:loss/val']);
        assert.ok(heads.includes('c:/model/depth'), heads.join());
        assert.ok(!heads.includes('c:/data/dataset'), heads.join());
        /* A run that has ended has its duration and no bar. */
        assert.equal(await page.locator('.grid-row .meter:visible').count(), 0);
        assert.match(await page.locator('.grid-row .k-progress').first().innerText(), /\d+(\.\d+)? (ms|s)/);
        await browser.close(page);
    });

    test('test_e2e_failed_run_says_why_in_the_table_and_is_retried_from_its_page', async () => {
        const { run } = await full.submit({
            name: 'no such file', model: { preset: 'gpt_micro', depth: 1, context: 32 }, data: { dataset: 'text', path: 'test/late.txt', tokenizer: 'bytes', split: { rule: 'fraction', train: .9, val: .1 } },
            train: { steps: 2, batch: 2 }, resources: { max_restarts: 0 },
        }, '?accept_unplanned=1');
        await full.reach(run, 'failed');
        const page = await browser.open(`${full.url}/#/?q=no+such+file`);
        assert.match(await page.locator('.grid-row .under[data-bad]').first().innerText(), /late\.txt/);
        await page.locator('.grid-row .name').first().click();
        await page.getByRole('button', { name: 'Retry' }).waitFor();
        /* Nothing was measured: there is no empty row of figures. */
        assert.equal(await page.locator('.tiles .tile').count() > 0 || await page.locator('.tiles').isHidden(), true);
        assert.match(await page.getByRole('link', { name: 'Edit and run again' }).getAttribute('href'), new RegExp(`#/submit\\?run=${run}`));
        writeFileSync(path.join(dataDir, 'late.txt'), 'It came late, and yet it came. '.repeat(200));
        await page.getByRole('button', { name: 'Retry' }).click();
        /* The same run, by its number: a second attempt. */
        await page.locator('h1 + span [data-state="succeeded"]').waitFor({ timeout: 60000 });
        assert.match(page.url(), new RegExp(`#/runs/${run}`));
        await page.getByText('2 attempts').first().waitFor();
        await page.getByRole('button', { name: 'Run again' }).waitFor();
        await browser.close(page);
    });

    test('test_e2e_run_that_waits_after_a_failure_says_so_and_one_that_cannot_be_is_not_tried_again', async () => {
        const { run: gone } = await full.submit({
            name: 'never there', model: { preset: 'gpt_micro', depth: 1, context: 32 }, data: { dataset: 'text', path: 'test/never.txt', tokenizer: 'bytes', split: { rule: 'fraction', train: .9, val: .1 } },
            train: { steps: 2, batch: 2 },
        }, '?accept_unplanned=1');
        await full.reach(gone, 'failed');
        const ended = await full.get(`/api/v1/runs/${gone}`);
        assert.deepEqual([ended.attempts, ended.max_restarts], [1, 3]);
        assert.match(ended.reason, /never\.txt/);

        const { run } = await full.submit({ ...tiny, name: 'loses its worker', train: { epochs: 5000, batch: 16 } });
        await full.reach(run, 'running');
        const next = await full.submit({ ...tiny, name: 'takes its place', train: { epochs: 5000, batch: 16 }, resources: { priority: 50 } });
        process.kill(workerOf(full, run), 'SIGKILL');
        await until('the run to wait again', async () => (await full.get(`/api/v1/runs/${run}`)).state === 'queued', { every: 20 });
        const page = await browser.open(`${full.url}/#/?q=loses+its+worker`);
        const under = page.locator('.grid-row .under[data-bad]');
        await under.waitFor();
        assert.match(await under.innerText(), /^#\d+ · attempt 2 of 4, last: the worker was killed by signal 9/);
        await page.locator('.grid-row .name').first().click();
        await page.getByText(/^Waits for attempt 2 of 4 \(.*\); the last one failed: the worker was killed by signal 9/).waitFor();
        await page.getByRole('button', { name: 'Start now' }).waitFor();
        await full.post(`/api/v1/runs/${next.run}/cancel`);
        await page.getByText(/^Attempt 2; the last one failed/).waitFor();
        await browser.close(page);
        await full.post(`/api/v1/runs/${run}/cancel`);
        await full.reach(run, 'cancelled');
    });

    test('test_e2e_run_that_never_started_shows_no_empty_figures', async () => {
        const hold = await full.submit({ ...tiny, name: 'holds', train: { epochs: 5000, batch: 16 } });
        await full.reach(hold.run, 'running');
        const { run } = await full.submit({ ...tiny, name: 'waits' });
        const page = await browser.open(`${full.url}/#/runs/${run}`);
        await page.locator('h1 + span [data-state="queued"]').waitFor();
        assert.equal(await page.locator('.tiles').isHidden(), true);
        await browser.close(page);
        await full.post(`/api/v1/runs/${hold.run}/cancel`);
        await full.reach(run, 'succeeded');
    });

    test('test_e2e_selected_runs_are_cancelled_together_and_saved_as_csv', async () => {
        const own = [];
        for (const name of ['batch one', 'batch two', 'batch done'])
            own.push((await full.submit({ ...tiny, name, experiment: 'batch', train: name === 'batch done' ? tiny.train : { epochs: 5000, batch: 16 }, resources: { priority: name === 'batch done' ? 90 : 0 } })).run);
        await until('the third to be next', async () => (await full.get('/api/v1/queue')).queue[0]?.id === own[2]);
        const page = await browser.open(`${full.url}/#/?experiment=batch`);
        await page.getByText('3 runs').waitFor();
        await page.getByLabel('Select all runs in the table').check();
        await page.getByText('3 selected').waitFor();
        await page.locator('.grid-row', { hasText: 'batch done' }).locator('.pick-box').click();
        const [file] = await Promise.all([page.waitForEvent('download'), page.locator('.tray').getByRole('button', { name: 'CSV' }).click()]);
        const csv = (await new Response(await file.createReadStream()).text()).trim().split('\n').map(line => line.split(','));
        assert.deepEqual(csv[0].slice(0, 3), ['id', 'state', 'name']);
        assert.deepEqual(csv.slice(1).map(line => [line[0], line[2]]), [[own[1], 'batch two'], [own[0], 'batch one']]);
        await page.locator('.tray').getByRole('button', { name: 'Cancel' }).click();
        await page.getByRole('dialog').getByText('Cancel 2 runs?').waitFor();
        await page.getByRole('button', { name: 'Cancel the runs' }).click();
        for (const run of own.slice(0, 2))
            await full.reach(run, 'cancelled');
        await full.reach(own[2], 'succeeded'); /* it was not selected */
        await page.locator('.tray').getByRole('button', { name: 'Cancel' }).waitFor({ state: 'hidden' });
        await browser.close(page);
    });

    test('test_e2e_notes_are_read_as_markdown_and_changed_in_place', async () => {
        const { run, job } = await full.submit({ ...tiny, name: 'noted', notes: '# Why\n\nA **cubic** `phi`, see [runs](#/) and <img src=x onerror=alert(1)>\n\n- one\n- two' });
        await full.reach(run, 'succeeded');
        const page = await browser.open(`${full.url}/#/runs/${run}`);
        const notes = page.locator('.notes');
        await notes.locator('h4', { hasText: 'Why' }).waitFor();
        assert.equal(await notes.locator('b', { hasText: 'cubic' }).count(), 1);
        assert.equal(await notes.locator('li').count(), 2);
        assert.equal(await notes.locator('img').count(), 0);
        assert.ok((await notes.innerText()).includes('<img src=x onerror=alert(1)>'));
        await notes.getByRole('button', { name: 'Edit' }).click();
        await notes.getByLabel('Notes, Markdown').fill('It **worked**.');
        await notes.getByRole('button', { name: 'Save' }).click();
        await notes.locator('b', { hasText: 'worked' }).waitFor();
        assert.equal((await full.get(`/api/v1/jobs/${job}`)).notes, 'It **worked**.');
        /* Somebody else was faster: their words stay. */
        await notes.getByRole('button', { name: 'Edit' }).click();
        const { version } = await full.get(`/api/v1/jobs/${job}`);
        await fetch(`${full.url}/api/v1/jobs/${job}`, { method: 'PATCH', headers: { 'Content-Type': 'application/json', 'If-Match': `"${version}"` }, body: JSON.stringify({ notes: 'Theirs.' }) });
        await notes.getByLabel('Notes, Markdown').fill('Mine.');
        await page.unroute('**').catch(() => {});
        await notes.getByRole('button', { name: 'Save' }).click();
        await page.getByText('This job was changed by another client').waitFor();
        assert.equal((await full.get(`/api/v1/jobs/${job}`)).notes, 'Theirs.');
        page.problems = page.problems.filter(text => !/412/.test(text));
        await browser.close(page);
    });

    test('test_e2e_back_from_a_run_finds_place_and_selection', async () => {
        const page = await browser.open(`${full.url}/#/`);
        await page.getByText(/\d+ runs/).waitFor();
        await page.locator('.grid-row .pick-box').nth(1).click();
        await page.locator('.grid-row .pick-box').nth(2).click();
        await page.getByText('2 selected').waitFor();
        assert.match(page.url(), /sel=\d+%2C\d+/);
        const link = page.url();
        await page.locator('.grid-scroll').evaluate(el => { el.scrollTop = 4000; });
        await until('far rows', async () => (await page.locator('.grid-row').first().getAttribute('aria-rowindex')) > 80);
        await page.locator('.grid-row .name').nth(8).click();
        await page.getByRole('tab', { name: 'Charts' }).waitFor();
        await page.goBack();
        await page.getByText('2 selected').waitFor();
        await until('the place of before', async () => Math.abs(await page.locator('.grid-scroll').evaluate(el => el.scrollTop) - 4000) < 40);
        await browser.close(page);
        const fresh = await browser.open(link); /* the link has the selection too */
        await fresh.getByText('2 selected').waitFor();
        await browser.close(fresh);
    });

    test('test_e2e_head_of_a_run_has_its_best_value_with_its_step', async () => {
        const { id: run } = await full.post('/api/v1/runs', { name: 'overfits' });
        const points = [];
        for (let step = 10; step <= 1000; step += 10)
            points.push({ key: 'loss/val', step, value: step <= 300 ? 1 - step / 500 : .4 + (step - 300) / 2000 }, { key: 'acc/val', step, value: step === 640 ? .947 : .9 });
        await full.post(`/api/v1/runs/${run}/metrics`, { points });
        await full.post(`/api/v1/runs/${run}/finish`, { outcome: 'succeeded' });
        const page = await browser.open(`${full.url}/#/runs/${run}`);
        await page.locator('.tile', { hasText: 'Validation loss' }).getByText('best 0.4 at step 300, rising since').waitFor();
        await page.locator('.tile', { hasText: 'Validation accuracy' }).getByText('best 94.7 % at step 640').waitFor();
        assert.equal(await page.getByRole('progressbar', { name: 'Progress' }).isVisible(), false);
        await page.mouse.wheel(0, 700);
        await until('the brief that stays', async () => page.locator('.run-brief').isVisible());
        assert.match(await page.locator('.run-brief').innerText(), /Succeeded\s*overfits · Step 1,000 · Validation loss 0\.75/);
        const { runs: [noted] } = await full.get('/api/v1/runs?text=noted&limit=1');
        await page.goto(`${full.url}/#/runs/${noted.id}`);
        await page.getByRole('link', { name: /^job #\d+$/ }).click();
        await until('the document of its job', async () => /"name": "noted"/.test(await page.getByLabel('Job document, JSON').inputValue()));
        await browser.close(page);
    });

    test('test_e2e_log_is_searched_filtered_and_linked_to_by_line', async () => {
        const { runs: [{ id }] } = await full.get('/api/v1/runs?text=noted&limit=1');
        const page = await browser.open(`${full.url}/#/runs/${id}?tab=log`);
        await page.locator('.log div').nth(2).waitFor();
        assert.equal(await page.getByText('Follow').isVisible(), false); /* it has ended */
        const word = /[a-z]{5,}/.exec(await page.locator('.log div').nth(1).evaluate(el => el.dataset.text))[0];
        await page.getByLabel('Find in the log').fill(word);
        await page.locator('.log mark').first().waitFor();
        const n = await page.locator('.log mark').count();
        await page.getByText(`1 of ${n}`).waitFor();
        await page.getByRole('button', { name: 'Next match' }).click();
        await page.getByText(`${n > 1 ? 2 : 1} of ${n}`).waitFor();
        await page.getByLabel('Severity').selectOption('Errors');
        assert.equal(await page.locator('.log div:visible').count(), await page.locator('.log div.err').count());
        await page.getByLabel('Severity').selectOption('All lines');
        await page.locator('.log .at').nth(1).click();
        assert.match(page.url(), /line=2/);
        const link = page.url();
        await browser.close(page);
        const again = await browser.open(link);
        await again.locator('.log div[data-here]').waitFor();
        assert.equal(await again.locator('.log div[data-here] .at').innerText(), '2');
        await browser.close(again);
    });

    test('test_e2e_log_counts_blank_lines_and_those_that_come_in_pieces', async () => {
        const { id } = await full.post('/api/v1/runs', { name: 'writes a log' });
        await full.post(`/api/v1/runs/${id}/logs`, { text: 'one\n\nthr' });
        const page = await browser.open(`${full.url}/#/runs/${id}?tab=log`);
        const lines = () => page.locator('.log div').evaluateAll(all => all.map(el => [el.querySelector('.at')?.textContent, el.dataset.text]));
        await until('the first piece', async () => JSON.stringify(await lines()) === '[["1","one"],["2",""],["3","thr"]]');
        await full.post(`/api/v1/runs/${id}/logs`, { text: 'ee\nfour\n' });
        await until('the second', async () => (await lines()).length > 3);
        assert.deepEqual(await lines(), [['1', 'one'], ['2', ''], ['3', 'three'], ['4', 'four']]);
        await browser.close(page);
        await full.post(`/api/v1/runs/${id}/finish`, { outcome: 'succeeded' });
    });

    test('test_e2e_end_of_a_long_log_has_whole_lines_and_no_numbers', async () => {
        const { id } = await full.post('/api/v1/runs', { name: 'writes a long log' });
        const text = (from, to) => Array.from({ length: to - from }, (_, i) => `line ${from + i} ${'x'.repeat(90)}\n`).join('');
        for (const i of [4000, 12000]) { /* of about 400 KiB, then of more than 1 MiB */
            for (let from = i === 4000 ? 0 : 4000; from < i; from += 4000)
                await full.post(`/api/v1/runs/${id}/logs`, { text: text(from, from + 4000) });
            const page = await browser.open(`${full.url}/#/runs/${id}?tab=log&line=7`);
            await page.getByText('its lines have no numbers here').waitFor();
            const lines = await page.locator('.log div').allTextContents();
            assert.ok(lines.length > 1000 && lines.every(line => /^line \d+ x{90}$/.test(line)), lines[0]);
            assert.equal(lines.at(-1).split(' ')[1], String(i - 1));
            assert.equal(await page.locator('.log .at').count() + await page.locator('.log [data-here]').count(), 0);
            const plain = await (await fetch(await page.getByRole('link', { name: 'Plain text' }).evaluate(a => a.href))).text();
            assert.ok(plain.endsWith(text(i - 1, i)) && plain.length > lines.length * 95, `${plain.length} bytes`);
            assert.equal(plain.startsWith('line 0 '), i === 4000); /* all of it, as long as it has not more than 1 MiB */
            await browser.close(page);
        }
        await full.post(`/api/v1/runs/${id}/finish`, { outcome: 'succeeded' });
    });

    test('test_e2e_checkpoint_becomes_a_model_from_its_row', async () => {
        const { runs: [{ id }] } = await full.get('/api/v1/runs?text=noted&limit=1');
        const page = await browser.open(`${full.url}/#/runs/${id}?tab=checkpoints`);
        await page.getByRole('button', { name: /Register the checkpoint of step \d+ as a model/ }).last().click();
        await page.getByLabel('Name of the model').fill('from-a-row');
        await page.getByRole('button', { name: 'Register', exact: true }).last().click();
        await page.getByText('Registered as from-a-row, version 1.').waitFor();
        await browser.close(page);
    });

    test('test_e2e_keys_reach_the_rows_soon', async () => {
        const page = await browser.open(`${full.url}/#/`);
        await page.locator('.grid-row').nth(3).waitFor();
        const stops = page.locator('.grid-head :is(button, input, [role="separator"]):not([tabindex="-1"])');
        assert.equal(await stops.count(), 1, 'the header is one stop');
        let presses = 0;
        await until('a row', async () => {
            presses++;
            await page.keyboard.press('Tab');
            return page.evaluate(() => document.activeElement.closest('.grid-row') !== null);
        });
        assert.ok(presses <= 26, `${presses} presses of Tab`);
        /* Arrows go from heading to heading, and the stop follows. */
        const headings = await page.locator('.grid-head .sort').allInnerTexts();
        await stops.focus();
        for (const [key, words] of [['ArrowRight', headings.slice(1, 2)], ['ArrowLeft', headings.slice(0, 1)], ['ArrowLeft', ['']], ['ArrowRight', headings.slice(0, 1)]]) {
            await page.keyboard.press(key);
            assert.deepEqual([await page.evaluate(() => document.activeElement.innerText), ...await stops.allInnerTexts()], [...words, ...words], key);
        }
        await page.evaluate(() => document.activeElement.blur());
        await page.keyboard.press('j');
        assert.equal(await page.evaluate(() => document.activeElement.className), 'name');
        await page.keyboard.press('j');
        assert.equal(await page.evaluate(() => document.activeElement.closest('.grid-row').getAttribute('aria-rowindex')), '3');
        await page.keyboard.press('x');
        await page.keyboard.press('k');
        await page.keyboard.press('x');
        await page.getByText('2 selected').waitFor();
        await page.keyboard.press('c');
        await page.getByRole('heading', { name: 'Compare', exact: true }).waitFor();
        await browser.close(page);
    });

    test('test_e2e_palette_finds_pages_runs_and_actions_by_keys_and_by_touch', async () => {
        const page = await browser.open(`${full.url}/#/devices`, { bypassCSP: true });
        await page.getByRole('heading', { name: 'Devices' }).first().waitFor();
        const fetched = () => page.evaluate(() => performance.getEntriesByType('resource').some(e => e.name.endsWith('/palette.js')));
        assert.equal(await fetched(), false, 'it comes only when it is asked for');
        await page.locator('#theme').focus();
        await page.keyboard.press('Control+k');
        const field = page.getByRole('combobox', { name: /^Find a page/ });
        const chosen = page.locator('[role="option"][aria-selected="true"]');
        await field.waitFor();
        await page.getByRole('group', { name: 'Runs' }).waitFor();
        await page.evaluate(axeSource);
        const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'], rules: { 'target-size': { enabled: true } } }));
        assert.deepEqual(violations.map(v => `${v.id}: ${v.nodes.map(node => node.target.join(' ')).join(', ')}`), []);
        /* Escape gives the focus back. */
        await page.keyboard.press('Escape');
        await field.waitFor({ state: 'detached' });
        assert.equal(await page.evaluate(() => document.activeElement.id), 'theme');

        /* A run by its number, though Enter comes before the answer; then one by a part of its name. */
        await page.keyboard.press('Control+k');
        await field.fill('#22');
        await page.keyboard.press('Enter');
        await until('run 22', async () => /#\/runs\/22$/.test(page.url()));
        await page.getByRole('tab', { name: 'Charts' }).waitFor();
        await page.keyboard.press('Control+k');
        await field.fill('softmax');
        const { runs } = await (await fetch(`${full.url}/api/v1/runs?text=softmax&limit=2`)).json();
        await page.getByRole('option', { name: `#${runs[0].id} ${runs[0].name}` }).waitFor();
        /* What is known before the answer may have another second line, which would stay chosen. */
        await page.locator('#palette-list[aria-busy="false"]').waitFor();
        await until('the newest', async () => (await chosen.innerText()).startsWith(`#${runs[0].id} `));
        await page.keyboard.press('ArrowDown');
        await until('the second is chosen', async () => {
            assert.match(await chosen.innerText(), new RegExp(`^#${runs[1].id} `));
            return true;
        });
        assert.equal(await field.getAttribute('aria-activedescendant'), await chosen.getAttribute('id'));
        await page.keyboard.press('Enter');
        await until('the second', async () => page.url().endsWith(`#/runs/${runs[1].id}`));

        /* What the page can do: a tab of the run, also where the palette is open before the page has come. */
        await page.getByRole('tab', { name: 'Log' }).waitFor();
        const held = [];
        await page.route(`**/api/v1/runs/${runs[0].id}`, route => held.push(route));
        await page.evaluate(id => { location.hash = `#/runs/${id}`; }, runs[0].id);
        await page.getByRole('tab').first().waitFor({ state: 'detached' });
        await until('the request of the page', async () => held.length > 0);
        await page.keyboard.press('Control+k');
        await field.fill('configuration');
        await page.locator('#palette-list[aria-busy="false"]').waitFor({ state: 'attached' });
        assert.equal(await chosen.count(), 0, 'the page that is to come has no tab yet');
        for (const route of held)
            await route.continue();
        await until('the tab', async () => /Configuration/.test(await chosen.innerText()));
        await page.keyboard.press('Enter');
        await page.locator('#tab-config[aria-selected="true"]').waitFor();

        /* A sweep, an experiment and nothing at all. */
        await page.keyboard.press('Control+k');
        const { jobs } = await (await fetch(`${full.url}/api/v1/jobs?sweep=1&limit=1`)).json();
        await field.fill(jobs[0].name);
        await page.getByRole('group', { name: 'Sweeps' }).getByRole('option').first().click();
        await until('the sweep', async () => page.url().endsWith(`#/jobs/${jobs[0].id}`));
        await page.keyboard.press('Control+k');
        await field.fill('no such thing');
        await page.getByText('No match for this name or number.').waitFor();
        assert.equal(await field.getAttribute('aria-expanded'), 'false');
        await page.keyboard.press('Control+k');
        await field.waitFor({ state: 'detached' });
        await browser.close(page);

        const phone = await browser.open(`${full.url}/#/`, { width: 390, height: 844 });
        await phone.getByRole('button', { name: /^Find a page/ }).tap();
        await phone.getByRole('option', { name: 'Write a job' }).tap();
        await phone.getByLabel('Job document, JSON').waitFor();
        await browser.close(phone);
    });

    test('test_e2e_page_says_when_the_server_is_gone', async () => {
        const page = await browser.open(`${empty.url}/#/devices`, { quiet: /ERR_|503/ });
        await page.locator('#live[data-state="on"]').waitFor();
        empty.process.kill('SIGTERM');
        await empty.ended;
        await page.getByText(/Not connected since \d+:\d+:\d+: these values are out of date/).waitFor({ timeout: 12000 });
        await empty.up();
        await page.locator('#away').waitFor({ state: 'hidden', timeout: 30000 });
        await browser.close(page);
    });

    test('test_e2e_font_is_our_own_and_small', async () => {
        const page = await browser.open(`${full.url}/#/help`);
        await page.locator('.terms').first().waitFor();
        await page.waitForFunction(() => document.fonts.check('400 13px Inter', 'φ') && document.fonts.check('650 13px Inter', 'run'));
        const sizes = await page.evaluate(() => performance.getEntriesByType('resource').filter(e => /woff2/.test(e.name)).map(e => e.decodedBodySize));
        assert.ok(sizes.length > 0 && sizes.reduce((a, b) => a + b, 0) <= 120 * 1024, sizes.join());
        assert.match(await (await fetch(`${full.url}/vendor/inter-license.txt`)).text(), /SIL OPEN FONT LICENSE/);
        await browser.close(page);
    });
});
