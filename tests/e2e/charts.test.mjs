// Charts as instruments, in a real Chromium: what the pointer reads, scales and ranges, what is saved. The curves are the test's
// own, so that each number on the page can be computed here.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';

import { Daemon, until } from '../lib/daemon.mjs';
import { Browser, findChromium } from './browser.mjs';

const skip = findChromium() === null && 'no Chromium here';
const STEPS = 3000;
const noise = i => Math.sin(i * 12.9898) * Math.cos(i * 78.233);
const loss = step => +(1.4 + 1.5 * Math.exp(-step / 700) + .05 * noise(step) + (step === 1801 ? 3 : 0)).toFixed(6);

async function log(daemon, run, points) {
    for (let i = 0; i < points.length; i += 5000)
        await daemon.post(`/api/v1/runs/${run}/metrics`, { points: points.slice(i, i + 5000) });
}

/** A run of the test's own that has ended, with nothing but what the test logs. */
async function made(daemon, name, points, config = {}) {
    const { id } = await daemon.post('/api/v1/runs', { name, config });
    await log(daemon, id, points);
    await daemon.post(`/api/v1/runs/${id}/finish`, { outcome: 'succeeded' });
    return id;
}

/** Moves the pointer to where x stands in a panel of the axis [0, most], and reads the box of values. */
async function point(page, panel, share, y = .5) {
    await page.locator(`[data-panel="${panel}"] .u-over`).scrollIntoViewIfNeeded();
    const box = await page.locator(`[data-panel="${panel}"] .u-over`).boundingBox();
    await page.mouse.move(box.x + box.width * share, box.y + box.height * y);
    await page.locator('.tip:not([hidden])').waitFor();
    const rows = await page.locator('.tip tr').evaluateAll(all => all.map(row => [...row.cells].slice(1).map(cell => cell.textContent)));
    return { title: await page.locator('.tip-title').innerText(), rows };
}

const saved = async (page, panel, format) => {
    await page.locator(`[data-panel="${panel}"]`).getByRole('button', { name: /scale, range, save/ }).click();
    const [file] = await Promise.all([page.waitForEvent('download'), page.locator(`[data-panel="${panel}"] .menu`).getByRole('button', { name: format, exact: true }).click()]);
    return { name: file.suggestedFilename(), bytes: Buffer.from(await new Response(await file.createReadStream()).arrayBuffer()) };
};

describe('charts', { skip, timeout: 240000 }, () => {
    /** @type {Daemon} */ let daemon;
    /** @type {Browser} */ let browser;
    let run;
    before(async () => {
        [daemon, browser] = await Promise.all([Daemon.start(), Browser.start()]);
        const points = [];
        for (let step = 1; step <= STEPS; step++)
            points.push({ key: 'loss/train', step, value: loss(step) });
        for (let step = 500; step <= STEPS; step += 500)
            points.push({ key: 'loss/val', step, value: 2 + step / 1e4 });
        for (let step = 1; step <= 300; step++)
            points.push({ key: 'burst', step, value: step === 1 ? 1 : 0 }, { key: 'sys/flops', step, value: step === 1 ? 3e10 : 4.76e10 + step });
        points.push({ key: 'once', step: 77, value: 12.5 });
        for (const step of [1, 100, 200, 300])
            for (let layer = 1; layer <= 4; layer++)
                points.push({ key: `logit/max/${layer}`, step, value: layer === 1 ? 2400 : 40 + layer + step / 100 });
        run = await made(daemon, 'instrument', points);
    });
    after(async () => {
        await browser?.stop();
        await daemon?.stop();
    });

    /** A page that notes what its canvases write, and the colours of their lines. */
    async function painted(url) {
        const page = await browser.open('about:blank', { origin: daemon.url });
        await page.addInitScript(() => {
            const { fill, fillText, stroke } = CanvasRenderingContext2D.prototype;
            Object.assign(globalThis, { words: [], strokes: [], fills: [] });
            CanvasRenderingContext2D.prototype.fill = function (...rest) {
                globalThis.fills.push(this.fillStyle);
                return fill.apply(this, rest);
            };
            CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
                globalThis.words.push(text);
                return fillText.call(this, text, ...rest);
            };
            CanvasRenderingContext2D.prototype.stroke = function (...rest) {
                globalThis.strokes.push(this.strokeStyle);
                return stroke.apply(this, rest);
            };
        });
        await page.goto(url);
        return page;
    }

    const answer = page => Promise.race([page.evaluate(() => 'answers'), new Promise(resolve => setTimeout(resolve, 20000, 'frozen').unref())]);

    test('test_e2e_log_scale_of_a_burst_and_zeros_does_not_freeze_the_page', async () => {
        const page = await browser.open(`${daemon.url}/#/runs/${run}?log=1`);
        page.setDefaultTimeout(20000);
        await page.locator('[data-panel="burst"] canvas').waitFor();
        assert.equal(await answer(page), 'answers');
        await page.getByLabel('Log scale').uncheck();
        await page.getByLabel('Log scale').check();
        assert.equal(await answer(page), 'answers');
        await browser.close(page);
    });

    test('test_e2e_pointer_reads_step_value_raw_and_range_and_dot_legend_and_box_agree', async () => {
        const page = await browser.open(`${daemon.url}/#/runs/${run}?smooth=0.9`);
        await page.locator('[data-panel="loss"] canvas').waitFor();
        for (const share of [.1, .31, .5, .84]) {
            const { title, rows } = await point(page, 'loss', share);
            /* Where the validation's point is the nearest, the title is its step, and the training's row has its own. */
            const [, from, to] = /^step ([\d,]+)(?:–([\d,]+))?/i.exec(rows[0][3] || title).map(text => Number(text?.replace(',', '')));
            assert.ok(from <= 1 + share * (STEPS - 1) + 12 && (to || from) >= 1 + share * (STEPS - 1) - 12, `${title} at ${share}`);
            const part = Array.from({ length: (to || from) - from + 1 }, (_, i) => loss(from + i));
            const [name, value, more] = rows[0];
            assert.equal(name, 'training');
            const [, raw, low, high] = /^raw ([\d.]+), ([\d.]+) to ([\d.]+)$/.exec(more).map(Number);
            assert.ok(Math.abs(raw - part.reduce((a, b) => a + b) / part.length) < 6e-4, `${more}: ${part}`);
            assert.ok(Math.abs(low - Math.min(...part)) < 6e-4 && Math.abs(high - Math.max(...part)) < 6e-4, `${more}: ${part}`);
            assert.equal(await page.locator('[data-panel="loss"] .legend .value').first().innerText(), value);
            /* The dot stands at that value and at that step. */
            const dot = await page.evaluate(() => {
                const panel = document.querySelector('[data-panel="loss"]'), over = panel.querySelector('.u-over').getBoundingClientRect();
                const dots = [...panel.querySelectorAll('.u-cursor-pt')].map(d => d.getBoundingClientRect()).map(d => ({ x: (d.x + d.width / 2 - over.x) / over.width, y: (d.y + d.height / 2 - over.y) / over.height }));
                return dots.find(d => d.x >= 0);
            });
            assert.ok(Math.abs(dot.x - ((from + (to || from)) / 2 - 1.5) / (STEPS - 2)) < .006, `${dot.x} for ${title}`);
            /* Validation is read where it stands within reach, with its own step, and else not at all. */
            const near = Math.round((1 + share * (STEPS - 1)) / 500) * 500;
            const reads = Math.abs(near - (1 + share * (STEPS - 1))) / STEPS * (await page.locator('[data-panel="loss"] .u-over').boundingBox()).width < 31;
            if (reads && near > 0)
                assert.deepEqual([rows[1][0], rows[1][1], rows[1][3] || /^Step [\d,]+/.exec(title)[0].toLowerCase()], ['validation', String(2 + near / 1e4), `step ${near.toLocaleString('en-US')}`]);
            else
                assert.equal(await page.locator('[data-panel="loss"] .legend .value').nth(1).innerText(), '–');
        }
        /* Other panels show their dots and values at the same place, and no box. */
        assert.equal(await page.locator('.tip:not([hidden])').count(), 1);
        await page.mouse.move(5, 5);
        await until('the box to go', async () => await page.locator('.tip:not([hidden])').count() === 0);
        await browser.close(page);
    });

    test('test_e2e_legend_cuts_no_name_and_keeps_its_place_while_values_change', async () => {
        const page = await browser.open(`${daemon.url}/#/help`);
        /* The best values are read by a request of their own: what comes late moves no chart. */
        await page.route(/buckets=10000/, async route => {
            await new Promise(done => setTimeout(done, 400));
            await route.continue();
        });
        await page.goto(`${daemon.url}/#/runs/${run}?folds=system`);
        for (const panel of ['loss', 'logit/max', 'sys/flops']) {
            await page.locator(`[data-panel="${panel}"] canvas`).waitFor();
            await page.locator(`[data-panel="${panel}"] .u-over`).scrollIntoViewIfNeeded();
            const names = () => page.locator(`[data-panel="${panel}"] .legend button`).evaluateAll(all => all.map(el => {
                const name = el.querySelector('.legend-name'), box = name.getBoundingClientRect(), value = el.querySelector('.value').getBoundingClientRect();
                return { at: [box.left, box.top, box.width], cut: name.scrollWidth > name.clientWidth || value.right > el.getBoundingClientRect().right + 1, value: el.querySelector('.value').textContent };
            }));
            const before = await names();
            assert.deepEqual(before.map(name => name.cut), before.map(() => false), `${panel} ${JSON.stringify(before)}`);
            const seen = new Set();
            for (const share of [.02, .31, .5, .62, .98]) {
                const box = await page.locator(`[data-panel="${panel}"] .u-over`).boundingBox();
                await page.mouse.move(box.x + box.width * share, box.y + 40);
                await page.evaluate(() => new Promise(requestAnimationFrame));
                const now = await names();
                assert.deepEqual(now.map(name => name.at), before.map(name => name.at), `${panel} at ${share}`);
                seen.add(now.map(name => name.value).join());
            }
            assert.ok(seen.size > 1, `${panel}: its values do not change`);
            await page.mouse.move(5, 5);
        }
        await browser.close(page);
    });

    test('test_e2e_smoothing_is_not_changed_by_a_zoom_and_is_remembered', async () => {
        const page = await browser.open(`${daemon.url}/#/runs/${run}?smooth=0.95`);
        await page.locator('[data-panel="loss"] canvas').waitFor();
        const drawn = async () => {
            const { bytes } = await saved(page, 'loss', 'CSV');
            return bytes.toString().trim().split('\n').slice(1).map(row => row.split(',')).filter(row => row[0] === 'training').map(row => [Number(row[2]), Number(row[6]), Number(row[5])]);
        };
        const whole = await drawn();
        await page.goto(`${daemon.url}/#/runs/${run}?smooth=0.95&from=1000&to=1500`);
        await page.getByRole('button', { name: 'Whole run' }).waitFor();
        await until('the part to be drawn', async () => (await page.locator('[data-panel="loss"] .chart-plot').getAttribute('aria-label')).includes('at step 1,500'));
        const part = await drawn();
        assert.ok(part.length > 300);
        let compared = 0;
        for (const [x, value] of whole.filter(([at]) => at >= 1000 && at <= 1500)) {
            const near = part.reduce((best, p) => (Math.abs(p[0] - x) < Math.abs(best[0] - x) ? p : best));
            assert.ok(Math.abs(near[1] - value) < .01, `at ${x}: ${value}, zoomed ${near[1]}`);
            compared++;
        }
        assert.ok(compared > 20);
        /* A number is typed; another page of this browser begins with it; a link says it anyway. */
        await page.getByLabel('Weight of the average').fill('0.83');
        await page.getByLabel('Kind of average').selectOption('Gaussian');
        await until('the link to say so', async () => /smooth=0\.83g/.test(page.url()));
        await page.getByRole('link', { name: 'Help', exact: true }).click();
        await page.goto(`${daemon.url}/#/runs/${run}`);
        await until('the smoothing of last time', async () => await page.getByLabel('Weight of the average').inputValue() === '0.83' && /smooth=0\.83g/.test(page.url()));
        await browser.close(page);
    });

    test('test_e2e_panel_has_its_own_scale_range_and_size_and_the_link_keeps_them', async () => {
        const page = await browser.open(`${daemon.url}/#/runs/${run}`);
        const panel = page.locator('[data-panel="logit/max"]');
        await panel.locator('canvas').waitFor();
        const limits = async () => {
            const svg = (await saved(page, 'logit/max', 'SVG')).bytes.toString();
            return [...svg.matchAll(/text-anchor="end">([^<]+)</g)].map(m => Number(m[1].replace(',', '').replace(' k', '000')));
        };
        assert.ok(Math.max(...await limits()) >= 2000);
        await panel.getByRole('button', { name: /scale, range, save/ }).click();
        await panel.getByRole('button', { name: 'Log', exact: true }).click();
        await page.keyboard.press('Escape');
        assert.match(page.url(), /p=logit%2Fmax%7Elog|p=logit%2Fmax~log/);
        const ticks = await limits();
        assert.ok(Math.min(...ticks) <= 100 && Math.min(...ticks) >= 20 && Math.max(...ticks) <= 2500, ticks.join());
        assert.equal(await page.getByLabel('Log scale').isChecked(), false);
        /* Without the layer that flattens the others the axis fits what is left. */
        await panel.locator('.legend button', { hasText: 'layer 1' }).click();
        await panel.getByRole('button', { name: /scale, range, save/ }).click();
        await panel.getByRole('button', { name: 'Linear', exact: true }).click();
        await page.keyboard.press('Escape');
        assert.ok(Math.max(...await limits()) < 60);
        await panel.getByRole('button', { name: /scale, range, save/ }).click();
        await panel.getByLabel('Vertical range').selectOption('set');
        await panel.getByLabel('From', { exact: true }).fill('41');
        await panel.getByLabel('To', { exact: true }).fill('44');
        await panel.getByLabel('To', { exact: true }).press('Enter');
        await page.keyboard.press('Escape');
        assert.deepEqual((await limits()).filter(v => v < 41 || v > 44), []);
        await panel.getByText(/beyond the range/).waitFor();
        await panel.getByRole('button', { name: /enlarge/ }).click();
        await until('a large panel', async () => (await panel.locator('.chart-plot').boundingBox()).height > 400);
        const again = await browser.open(page.url());
        const same = again.locator('[data-panel="logit/max"]');
        await same.getByText(/beyond the range/).waitFor();
        assert.equal(await same.locator('.legend button', { hasText: 'layer 1' }).getAttribute('aria-pressed'), 'false');
        assert.ok((await same.locator('.chart-plot').boundingBox()).height > 400);
        await browser.close(again);
        await browser.close(page);
    });

    test('test_e2e_range_without_outliers_is_that_of_the_others', async () => {
        const page = await browser.open(`${daemon.url}/#/runs/${run}?p=loss~clip&smooth=0`);
        await page.locator('[data-panel="loss"] canvas').waitFor();
        const svg = (await saved(page, 'loss', 'SVG')).bytes.toString();
        const ticks = [...svg.matchAll(/text-anchor="end">([^<]+)</g)].map(m => Number(m[1]));
        assert.ok(Math.max(...ticks) < 3 && Math.max(...ticks) > 2, ticks.join());
        await page.locator('[data-panel="loss"]').getByText(/\d spikes? marked · \d+ beyond the range/).waitFor();
        await browser.close(page);
    });

    test('test_e2e_axes_have_titles_and_units_and_times_read_as_a_clock', async () => {
        const page = await browser.open(`${daemon.url}/#/runs/${run}?folds=system`);
        await page.locator('[data-panel="sys/flops"] canvas').waitFor();
        assert.equal(await page.locator('[data-panel="loss"] .unit').innerText(), 'nats');
        assert.equal(await page.locator('[data-panel="sys/flops"] .unit').innerText(), 'FLOP/s');
        assert.match(await page.locator('[data-panel="sys/flops"] .legend').innerText(), /47\.6 GFLOP\/s/);
        const svg = (await saved(page, 'sys/flops', 'SVG')).bytes.toString();
        assert.ok(svg.includes('>Operations per second (FLOP/s)<') && svg.includes('>Step<'));
        assert.match(svg, /text-anchor="end">[\d.]+ G</);
        /* A series of one point is a number, not a dot on an empty axis. */
        assert.match(await page.locator('[data-panel="once"] .one-figure').innerText(), /12\.5\s*at step 77/);
        assert.equal(await page.locator('[data-panel="once"] canvas').count(), 0);
        await browser.close(page);
        const begun = Date.now() - 3600000;
        const timed = await made(daemon, 'timed', Array.from({ length: 400 }, (_, i) => ({ key: 'loss/train', step: i + 1, value: 1, time: new Date(begun + i * 1000).toISOString() })));
        const clock = await browser.open(`${daemon.url}/#/runs/${timed}?x=time`);
        await clock.locator('[data-panel="loss"] canvas').waitFor();
        const words = [...(await saved(clock, 'loss', 'SVG')).bytes.toString().matchAll(/text-anchor="middle">([^<]+)</g)].map(m => m[1]);
        assert.equal(words.at(-1), 'Time');
        assert.ok(words.length > 3 && words.slice(0, -1).every(word => /^−?(\d+:)?\d+:\d\d$/.test(word)), words.join());
        await browser.close(clock);
    });

    test('test_e2e_curves_are_asked_for_once_before_the_panels_are_built_a_bucket_a_pixel', async () => {
        const page = await browser.open('about:blank', { origin: daemon.url, width: 900 });
        await page.addInitScript(() => {
            const real = globalThis.fetch;
            globalThis.asked = [];
            globalThis.fetch = (url, options) => {
                if (/\/series\?/.test(url))
                    globalThis.asked.push({ url: String(url), panels: document.querySelectorAll('[data-panel]').length });
                return real(url, options);
            };
        });
        await page.goto(`${daemon.url}/#/runs/${run}`);
        await page.locator('[data-panel="burst"] canvas').waitFor();
        await page.getByText(/best .* at step/).first().waitFor(); /* what is read last: 10,000 buckets, for the best values */
        const curves = (await page.evaluate(() => globalThis.asked)).map(({ url, panels }) => ({ panels, keys: url, buckets: Number(/buckets=(\d+)/.exec(url)[1]) })).filter(c => c.buckets <= 1000);
        const of = key => curves.filter(c => c.keys.includes(`key=${encodeURIComponent(key)}&`));
        const width = panel => page.locator(`[data-panel="${panel}"] .chart-plot`).evaluate(el => el.clientWidth);
        for (const [panel, key, share] of [['loss', 'loss/train', 1], ['burst', 'burst', 1], ['logit/max', 'logit/max/1', 2]])
            assert.deepEqual(of(key).map(c => [c.panels, c.buckets]), [[0, Math.ceil(await width(panel) / share)]], key);
        await browser.close(page);
    });

    test('test_e2e_panels_are_found_and_laid_out_and_groups_fold', async () => {
        const page = await browser.open(`${daemon.url}/#/runs/${run}`);
        await page.locator('[data-panel="loss"] canvas').waitFor();
        assert.equal(await page.locator('[data-panel="sys/flops"]').count(), 0); /* resource use is folded away at first */
        const wide = await page.locator('[data-panel="loss"]').boundingBox();
        assert.ok(wide.width > 1.8 * (await page.locator('[data-panel="burst"]').boundingBox()).width);
        await page.getByLabel('Find panels').fill('logit|burst');
        await until('two panels', async () => (await page.locator('.chart:visible').count()) === 2);
        await page.getByLabel('Charts per row').selectOption('1 column');
        await until('one column', async () => (await page.locator('[data-panel="burst"]').boundingBox()).width > 1000);
        assert.match(page.url(), /panels=logit%7Cburst/);
        assert.match(page.url(), /wide=1/);
        await page.getByLabel('Find panels').fill('nothing has this name');
        await page.getByText('No chart has this name.').waitFor();
        await page.getByLabel('Find panels').fill('');
        await page.getByText('Resource use').click();
        await page.locator('[data-panel="sys/flops"] canvas').waitFor();
        assert.match(page.url(), /folds=system/);
        await browser.close(page);
    });

    test('test_e2e_phone_folds_the_groups_after_the_first_and_the_link_opens_them_there_alone', async () => {
        const page = await browser.open(`${daemon.url}/#/runs/${run}`, { width: 390, height: 844 });
        await page.locator('[data-panel="burst"] canvas').waitFor();
        const layers = page.locator('[data-panel="logit/max"] canvas');
        assert.equal(await page.locator('[data-panel="logit/max"]').count(), 0);
        const panels = await page.locator('.chart:visible').count();
        const tall = await page.evaluate(() => document.documentElement.scrollHeight);
        assert.ok(tall < 900 + 320 * panels, `${tall} px for ${panels} panels`);
        await page.getByRole('heading', { name: 'Layers' }).click();
        await layers.waitFor();
        await until('the link to say so', async () => /folds=layers-open/.test(page.url()));
        await page.reload();
        await layers.waitFor();
        const link = page.url();
        await page.getByRole('heading', { name: 'Layers' }).click();
        await until('the link to forget it', async () => !/folds/.test(page.url()));
        await browser.close(page);
        /* On a wide window they are open with this link and without. */
        const wide = await browser.open(link);
        await wide.locator('[data-panel="logit/max"] canvas').waitFor();
        await wide.getByRole('heading', { name: 'Layers' }).click();
        await until('the link to have it closed', async () => /folds=layers$/.test(wide.url()));
        await browser.close(wide);
    });

    test('test_e2e_chart_is_saved_as_svg_pdf_png_and_the_numbers_drawn', async () => {
        const page = await browser.open(`${daemon.url}/#/runs/${run}?smooth=0`, { theme: 'dark' });
        await page.locator('[data-panel="loss"] canvas').waitFor();
        const svg = await saved(page, 'loss', 'SVG');
        assert.match(svg.name, /^run-\d+-loss\.svg$/);
        const text = svg.bytes.toString();
        assert.ok(text.includes('>training</text>'));
        assert.ok(text.includes('fill="#ffffff"')); /* for paper, whatever the theme */
        assert.ok((text.match(/<path/g) ?? []).length > 8);
        const pdf = await saved(page, 'loss', 'PDF');
        assert.ok(/^%PDF[\s\S]*\(training\) Tj/.test(pdf.bytes.toString('latin1')));
        const png = await saved(page, 'loss', 'PNG');
        assert.deepEqual([...png.bytes.subarray(0, 4)], [137, 80, 78, 71]);
        const csv = (await saved(page, 'loss', 'CSV')).bytes.toString().trim().split('\n').map(row => row.split(','));
        assert.deepEqual(csv[0], ['series', 'key', 'step', 'first_step', 'last_step', 'value', 'drawn', 'min', 'max', 'points']);
        const val = csv.filter(row => row[1] === 'loss/val' && Number(row[3]) > 2); /* the run itself evaluated too, at its end */
        assert.deepEqual(val.map(row => [Number(row[3]), Number(row[5])]), [500, 1000, 1500, 2000, 2500, 3000].map(step => [step, 2 + step / 1e4]));
        assert.equal(csv.filter(row => row[1] === 'loss/train').reduce((n, row) => n + Number(row[9]), 0), STEPS);
        /* The code that draws it again, for a paper: the validation's points are among it. */
        await page.context().grantPermissions(['clipboard-read', 'clipboard-write']);
        for (const [word, part] of [['pgfplots', /coordinates \{.*\(500,2\.05\) \(1000,2\.1\).*\};\n\\addlegendentry\{validation\}/], ['matplotlib', /ax\.plot\(\[.*500, 1000, 1500, 2000, 2500, 3000\], \[.*2\.05, 2\.1, 2\.15, 2\.2, 2\.25, 2\.3\], .*label="validation"\)/]]) {
            await page.locator('[data-panel="loss"]').getByRole('button', { name: /scale, range, save/ }).click();
            await page.locator('[data-panel="loss"] .menu').getByRole('button', { name: word, exact: true }).click();
            await page.getByText(`The ${word} code of this chart is in the clipboard.`).waitFor();
            const code = await page.evaluate(() => navigator.clipboard.readText());
            assert.match(code, part);
            assert.ok(/0072B2/.test(code), 'the colours are those for paper');
        }
        await page.locator('[data-panel="loss"] .legend button', { hasText: 'validation' }).click();
        assert.ok(!(await saved(page, 'loss', 'CSV')).bytes.toString().includes('loss/val'));
        await browser.close(page);
    });

    test('test_e2e_comparison_has_one_legend_with_names_told_apart', async () => {
        const runs = [];
        for (const lr of [.001, .002])
            runs.push(await made(daemon, `a long name that all share, rate ${lr}`, [...[1, 2, 3].map(step => ({ key: 'mine', step, value: lr * step })), { key: 'only', step: 2, value: lr }], { train: { optimizer: { name: 'adamw', lr } } }));
        const page = await browser.open(`${daemon.url}/#/compare?runs=${runs.join(',')}`);
        await page.locator('[data-panel="mine"] canvas').waitFor();
        assert.deepEqual(await page.locator('.member a').allInnerTexts(), ['rate 0.001', 'rate 0.002']);
        assert.equal(await page.locator('.chart .legend:visible').count(), 0);
        const { rows } = await point(page, 'mine', .5);
        assert.deepEqual(rows.map(row => [row[0], row[1]]), [['rate 0.001', '0.002'], ['rate 0.002', '0.004']]);
        assert.deepEqual(await page.locator('[data-panel="only"] .figure-bars li').allInnerTexts().then(all => all.map(text => text.split('\n').map(t => t.trim()).filter(Boolean))), [['rate 0.001', '0.001'], ['rate 0.002', '0.002']]);
        /* What is pinned comes first in both lists and tables, and its line is the strong one; the link keeps it. */
        assert.match(await page.locator('[aria-label="Latest values"] th').nth(1).innerText(), new RegExp(`#${runs[0]}$`));
        await page.getByRole('button', { name: 'Pin rate 0.002' }).click();
        for (const one of [page, await browser.open(page.url())]) {
            await one.locator('[data-panel="mine"] canvas').waitFor();
            assert.deepEqual(await one.locator('.member a').allInnerTexts(), ['rate 0.002', 'rate 0.001']);
            for (const table of ['Latest values', 'Configuration of each run'])
                assert.deepEqual((await one.locator(`[aria-label="${table}"] thead th`).allInnerTexts()).slice(1).map(text => text.trim()), [`#${runs[1]}`, `#${runs[0]}`]);
            assert.deepEqual((await one.locator('[aria-label="Configuration of each run"] tr', { hasText: 'train.optimizer.lr' }).locator('td').allInnerTexts()).map(Number), [.002, .001]);
            const svg = (await saved(one, 'mine', 'SVG')).bytes.toString();
            const widths = [...svg.matchAll(/<path d="M[^"]*L[^"]*L[^"]*" fill="none" stroke="(#\w+)" stroke-width="([\d.]+)"/g)].map(m => [m[1], Number(m[2])]);
            assert.deepEqual(widths, [['#0072b2', 1.6], ['#d55e00', 2.8]]);
            if (one !== page)
                await browser.close(one);
        }
        await page.getByRole('button', { name: 'Pin rate 0.002' }).click();
        assert.deepEqual(await page.locator('.member a').allInnerTexts(), ['rate 0.001', 'rate 0.002']);
        await page.getByRole('button', { name: 'Show rate 0.001' }).click();
        await until('one line', async () => (await page.locator('[data-panel="mine"] .chart-plot').getAttribute('aria-label')).includes('rate 0.002') && !(await page.locator('[data-panel="mine"] .chart-plot').getAttribute('aria-label')).includes('rate 0.001'));
        assert.match(page.url(), new RegExp(`off=${runs[0]}`));
        await browser.close(page);
    });

    test('test_e2e_comparison_has_the_same_colours_in_lines_legend_and_tables', async () => {
        const runs = [];
        for (const [name, lr, level] of [['ada', .001, 1], ['bob', .002, 2], ['cay', .002, 3]])
            runs.push(await made(daemon, name, [1, 2, 3].map(step => ({ key: 'level', step, value: level })), { train: { optimizer: { name: 'adamw', lr } } }));
        const page = await browser.open(`${daemon.url}/#/compare?runs=${runs.join(',')}`);
        await page.locator('[data-panel="level"] canvas').waitFor();
        const inks = { light: ['#0072b2', '#d55e00', '#009e73'], dark: ['#56b4e9', '#f0843c', '#2cc295'] };
        const swatches = where => page.locator(`${where} .swatch path`).evaluateAll(all => all.map(path => path.getAttribute('stroke')));
        /* Which of some colours the canvas has. */
        const drawn = some => page.locator('[data-panel="level"] canvas').evaluate((canvas, list) => {
            const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
            return list.filter(ink => {
                const rgb = [1, 3, 5].map(at => parseInt(ink.slice(at, at + 2), 16));
                let n = 0;
                for (let i = 0; i < data.length; i += 4)
                    n += data[i + 3] > 200 && rgb.every((v, k) => Math.abs(data[i + k] - v) < 30);
                return n > 40;
            });
        }, some);
        const heads = table => swatches(`[aria-label="${table}"] thead`);
        const [first, second, third] = inks.light;
        await until('three lines', async () => (await drawn(inks.light)).length === 3);
        assert.deepEqual(await swatches('.member'), inks.light);
        /* Of two equal runs the line is one, and so is their colour in the tables. */
        await page.getByLabel('Lines').selectOption('trials');
        await until('two lines', async () => (await drawn(inks.light)).join() === [first, second].join());
        for (const table of ['Latest values', 'Configuration of each run'])
            assert.deepEqual(await heads(table), [first, second, second], table);
        while (await page.evaluate(() => document.documentElement.dataset.theme) !== 'dark')
            await page.locator('#theme').click();
        const [light, deep] = inks.dark;
        await until('the lines in the colours of the dark', async () => (await drawn(inks.dark)).join() === [light, deep].join());
        for (const table of ['Latest values', 'Configuration of each run'])
            assert.deepEqual(await heads(table), [light, deep, deep], table);
        while (await page.evaluate(() => document.documentElement.dataset.theme) !== 'light')
            await page.locator('#theme').click();
        await page.getByLabel('Lines').selectOption('');
        /* One that is hidden and then taken out leaves its colour to the next. */
        await page.getByRole('button', { name: 'Show ada' }).click();
        await until('its line to go', async () => (await drawn(inks.light)).join() === [second, third].join());
        await page.getByRole('button', { name: `Take run ${runs[0]} out` }).click();
        await page.mouse.move(5, 5); /* the line under the pointer stands out */
        await until('two runs', async () => (await swatches('.member')).join() === [first, second].join());
        await until('their colours to be those of the legend', async () => (await drawn(inks.light)).join() === [first, second].join(), { limit: 10000 });
        await browser.close(page);
    });

    test('test_e2e_comparison_names_its_axis_as_one_chooses_it', async () => {
        const page = await painted(`${daemon.url}/#/compare?runs=${run}`);
        await page.locator('[data-panel="loss/train"] canvas').waitFor();
        for (const [axis, word] of [['Time', 'Time'], ['Step', 'Step']]) {
            await page.evaluate(() => { globalThis.words.length = 0; });
            await page.getByRole('button', { name: axis, exact: true }).click();
            await until('titles', async () => page.evaluate(() => globalThis.words.some(text => /^(Step|Time)$/.test(text))));
            assert.deepEqual(await page.evaluate(() => [...new Set(globalThis.words.filter(text => /^(Step|Time)$/.test(text)))]), [word]);
        }
        await browser.close(page);
    });

    test('test_e2e_raw_line_and_edges_of_the_band_come_without_a_reload', async () => {
        const { id } = await daemon.post('/api/v1/runs', { name: 'grows' });
        await log(daemon, id, Array.from({ length: 60 }, (_, i) => ({ key: 'loss/train', step: i + 1, value: loss(i + 1) })));
        const page = await painted(`${daemon.url}/#/runs/${id}?smooth=0`);
        const canvas = page.locator('[data-panel="loss"] canvas');
        await canvas.waitFor();
        const lines = async alpha => (await page.evaluate(() => globalThis.strokes)).includes(`rgba(0, 114, 178, ${alpha})`);
        assert.deepEqual([await lines(.28), await lines(.5)], [false, false]);
        await page.getByLabel('Smoothing').fill('0.9');
        await until('the raw line, faint', () => lines(.28), { limit: 10000 });
        assert.equal(await lines(.5), false);
        await log(daemon, id, Array.from({ length: STEPS }, (_, i) => ({ key: 'loss/train', step: i + 61, value: loss(i + 61) })));
        await until('edges of buckets of several points', () => lines(.5), { limit: 10000 });
        await daemon.post(`/api/v1/runs/${id}/finish`, { outcome: 'succeeded' });
        await browser.close(page);
    });

    test('test_e2e_dot_of_a_single_point_comes_with_a_zoom', async () => {
        const points = Array.from({ length: 30 }, (_, i) => ({ key: 'loss/train', step: 10 * (i + 1), value: 3 - i / 20 }));
        const id = await made(daemon, 'few', [...points, ...[50, 150, 250].map(step => ({ key: 'loss/val', step, value: 3 }))]);
        const page = await painted(`${daemon.url}/#/runs/${id}`), plot = page.locator('[data-panel="loss"] .u-over');
        const dots = async () => (await page.evaluate(() => globalThis.fills)).includes('#d55e00');
        await plot.waitFor();
        assert.equal(await dots(), false); // a line joins the three
        const box = await plot.boundingBox();
        await page.mouse.move(box.x + box.width * .05, box.y + 60);
        await page.mouse.down();
        await page.mouse.move(box.x + box.width * .3, box.y + 60, { steps: 6 });
        await page.mouse.up();
        await until('the one within, which no line reaches', dots, { limit: 10000 });
        await browser.close(page);
    });

    test('test_e2e_band_comes_once_a_line_is_the_mean_of_several_runs', async () => {
        const runs = [], many = value => Array.from({ length: STEPS }, (_, i) => ({ key: 'level', step: i + 1, value: value + noise(i) }));
        for (let i = 1; i <= 4; i++)
            runs.push(await made(daemon, `kind ${i}`, many(i), { kind: i }));
        const { id } = await daemon.post('/api/v1/runs', { name: 'kind 4', config: { kind: 4 } });
        const page = await painted(`${daemon.url}/#/compare?runs=${[...runs, id].join(',')}&mean=/kind&smooth=0`);
        await page.locator('[data-panel="level"] canvas').waitFor();
        const bands = async () => (await page.evaluate(() => globalThis.fills)).some(fill => /0\.14\)$/.test(fill));
        assert.equal(await bands(), false);
        await log(daemon, id, many(5));
        await until('one standard deviation about the mean', bands, { limit: 10000 });
        await daemon.post(`/api/v1/runs/${id}/finish`, { outcome: 'succeeded' });
        await browser.close(page);
    });

    test('test_e2e_comparison_without_a_run_drops_an_answer_about_it_that_comes_late', async () => {
        const runs = [];
        for (const key of ['first', 'second'])
            runs.push(await made(daemon, key, [1, 2, 3].map(step => ({ key, step, value: step }))));
        const page = await browser.open(`${daemon.url}/#/compare?runs=${runs.join(',')}`);
        await page.locator('[data-panel="second"] canvas').waitFor();
        let release;
        const held = new Promise(resolve => { release = resolve; });
        await page.route(`**/runs/${runs[0]}/metrics`, route => held.then(() => route.continue()));
        const asks = page.waitForRequest(request => request.url().endsWith(`/runs/${runs[0]}/metrics`));
        await page.getByLabel('Find panels').fill('first|second');
        await asks;
        await page.getByRole('button', { name: `Take run ${runs[0]} out` }).click();
        const answer = page.waitForResponse(response => response.url().includes(`/runs/${runs[1]}/series`));
        release();
        await (await answer).finished();
        await page.locator('[data-panel="first"]').waitFor({ state: 'hidden' });
        assert.equal(await page.locator('[data-panel="second"]:visible').count(), 1);
        assert.equal(await page.locator('.member').count(), 1);
        await browser.close(page);
    });
});
