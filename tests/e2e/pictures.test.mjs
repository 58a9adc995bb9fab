// All pictures of the dashboard: each is saved as SVG, PNG, PDF and CSV by the one exporter and says in words what it shows. What makes
// a picture is found in the sources, and every such place has to be reached: one that is added without a view in gallery.mjs fails here.
import assert from 'node:assert/strict';
import { existsSync, readFileSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';

import { polyd, root } from '../lib/daemon.mjs';
import { Browser, findChromium, looks } from './browser.mjs';
import { CARD, Gallery } from './gallery.mjs';

const skip = !existsSync(polyd) ? 'polyd is not built' : findChromium() ? false : 'there is no Chromium';

/** Code that makes a picture, or puts one down. */
const makes = /new (?:Picture|Chart)\(|(?<![.\w]|function )(?:panelSave|scatter)\(|async \w+\(spec\) \{/g;
/** Drawn things that are no pictures of results, with the reason. */
const others = {
    'svg.icon, svg[aria-hidden="true"], svg[role="presentation"]': 'signs beside words',
    '.spark, .spark svg': 'a line of the table of runs, whose cell has the number',
    '.pad-canvas, canvas.seen, canvas.preview': 'what goes into a model',
};

/** Is what a file holds a picture of that format, with something on it? @type {Record<string, (bytes: Buffer, page: any) => Promise<void>>} */
const holds = {
    async SVG(bytes, page) {
        const seen = await page.evaluate(text => {
            const doc = new DOMParser().parseFromString(text, 'image/svg+xml');
            const error = doc.querySelector('parsererror')?.textContent ?? '', svg = document.body.appendChild(document.importNode(doc.documentElement, true)), { width, height } = svg.viewBox.baseVal;
            const texts = [...svg.querySelectorAll('text')].filter(t => t.textContent), boxes = texts.map(t => ({ word: t.textContent, box: t.getBBox() }));
            const cut = boxes.filter(({ box }) => box.x < -1 || box.y < -1 || box.x + box.width > width + 1 || box.y + box.height > height + 1).map(({ word }) => word);
            const over = boxes.flatMap(({ word, box: a }, i) => boxes.slice(i + 1).filter(({ box: b }) => Math.min(a.x + a.width, b.x + b.width) - Math.max(a.x, b.x) > 3 && Math.min(a.y + a.height, b.y + b.height) - Math.max(a.y, b.y) > 5).map(other => `${word} / ${other.word}`));
            svg.remove();
            return { error, root: doc.documentElement.localName, shapes: doc.querySelectorAll('path').length, words: boxes.map(({ word }) => word).join(' '), cut, over };
        }, bytes.toString());
        assert.equal(seen.error, '');
        assert.deepEqual(seen.cut, [], 'words outside of the picture');
        assert.deepEqual(seen.over, [], 'words over each other');
        assert.ok(seen.root === 'svg' && seen.shapes > 2 && seen.words.length > 10, JSON.stringify(seen));
        assert.doesNotMatch(bytes.toString(), /NaN|undefined|Infinity|\bnull\b|\[object/);
    },
    async PNG(bytes, page) {
        const colours = await page.evaluate(async list => {
            const bitmap = await createImageBitmap(new Blob([Uint8Array.from(list)], { type: 'image/png' })), canvas = new OffscreenCanvas(bitmap.width, bitmap.height), context = canvas.getContext('2d');
            context.drawImage(bitmap, 0, 0);
            return new Set(new Uint32Array(context.getImageData(0, 0, bitmap.width, bitmap.height).data.buffer)).size;
        }, [...bytes]);
        assert.ok(colours > 8, `${colours} colours`);
    },
    async PDF(bytes) {
        assert.match(bytes.toString('latin1'), /^%PDF-1\.4\n[\s\S]*\n%%EOF\n$/);
        assert.doesNotMatch(bytes.toString('latin1'), /NaN|undefined|Infinity/);
    },
    async CSV(bytes) {
        const [header, ...rows] = bytes.toString().trimEnd().split('\n').map(line => line.match(/("([^"]|"")*"|[^,]*)(,|$)/g).slice(0, line.endsWith(',') ? undefined : -1).length);
        assert.ok(header > 1 && rows.length > 0, `${rows.length} rows of ${header} columns`);
        assert.ok(rows.every(n => n === header), 'each row has the columns of the header');
        assert.doesNotMatch(bytes.toString(), /NaN|undefined|\[object/);
    },
};

describe('pictures', { skip, timeout: 600000 }, () => {
    /** @type {Gallery} */ let gallery;
    /** @type {Browser} */ let browser;
    before(async () => { [gallery, browser] = await Promise.all([Gallery.start(), Browser.start()]); });
    after(async () => {
        await browser?.stop();
        await gallery?.stop();
    });

    test('test_e2e_pictures_are_saved_in_every_form_and_say_what_they_show', async () => {
        const page = await browser.open('about:blank', { origin: gallery.daemon.url }), seen = new Set();
        await page.coverage.startJSCoverage({ resetOnNavigation: false });
        for (const view of gallery.views()) {
            await gallery.open(page, view);
            // What is drawn stands in a card that saves it.
            const stray = await page.evaluate(({ card, others }) => [...document.querySelectorAll('main canvas, main svg, main [role=img]')]
                .filter(el => el.checkVisibility() && !el.closest(others) && !el.closest(card)?.querySelector('button[aria-label$="save"]') && !el.matches('.meter, .memory')).map(el => el.outerHTML.slice(0, 120)), { card: CARD, others: Object.keys(others).join() });
            assert.deepEqual(stray, [], `${view.name}: drawn, but no picture that can be saved`);
            for (const card of await page.locator(CARD).all()) {
                if (!await card.isVisible() || await card.locator('.state').count())
                    continue;
                const title = await card.getByRole('heading').first().innerText(), what = `${view.name}, ${title}`;
                const drawn = card.locator('canvas[role=img], svg[role], .chart-plot[role=img]').first(), says = await drawn.getAttribute('aria-label');
                // Marks of a plot say their values one by one; everything else says all in a sentence.
                const marks = await drawn.getAttribute('role') === 'group' ? await drawn.locator('[aria-label]').evaluateAll(list => list.map(el => el.getAttribute('aria-label'))) : [says];
                assert.ok(says && marks.length > 0 && marks.every(words => /\d|block/.test(words ?? '') && words.length > 12), `${what}: in words: ${marks.join('; ') || says}`);
                // Panels of curves differ in their data alone: of each view one with layers is saved and one without, of other pictures all.
                const same = view.each ? `${view.name} ${title}` : `${await card.locator('.chart-plot').count() ? await card.locator('select').first().isVisible() : title} ${view.name.replace(/-.*/, '')}`;
                if (seen.has(same))
                    continue;
                seen.add(same);
                const sizes = [];
                for (const [word, check] of Object.entries(holds)) {
                    await card.getByRole('button', { name: /save$/ }).click();
                    const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('group', { name: 'Save the chart' }).getByRole('button', { name: word, exact: true }).click()]);
                    assert.match(download.suggestedFilename(), new RegExp(`^[\\w.-]+\\.${word.toLowerCase()}$`));
                    const bytes = readFileSync(await download.path());
                    await check(bytes, page).catch(error => { throw new Error(`${what}, ${word}: ${error.message}`); });
                    sizes.push(bytes.length);
                }
                assert.ok(sizes.every(n => n > 30), `${what}: ${sizes}`);
            }
        }
        assert.ok(seen.size > 50, `${seen.size} pictures`);
        // Every place that makes one was reached.
        const scripts = new Map((await page.coverage.stopJSCoverage()).map(one => [new URL(one.url).pathname, one])), missed = [];
        let places = 0;
        for (const name of readdirSync(path.join(root, 'web/js'), { recursive: true }).filter(file => file.endsWith('.js')).sort()) {
            const script = scripts.get(`/js/${name}`), source = readFileSync(path.join(root, 'web/js', name), 'utf8');
            assert.ok(!script?.source || script.source === source, `${name} is another one than the page's: build polyd, or set POLYD_WEB_DIR`);
            const ranges = (script?.functions ?? []).flatMap(f => f.ranges).sort((a, b) => (a.endOffset - a.startOffset) - (b.endOffset - b.startOffset));
            for (const { index, 0: text } of source.matchAll(makes)) {
                const at = index + text.length;
                places++;
                if (!ranges.find(r => r.startOffset <= at && at < r.endOffset)?.count)
                    missed.push(`${name}:${source.slice(0, index).split('\n').length}`);
            }
        }
        assert.deepEqual(missed, [], 'places that make a picture which no view of gallery.mjs reaches');
        assert.ok(places > 25, `${places} places`);
        await browser.close(page);
    });

    /** A picture's CSV, by the heading of its card. @returns {Promise<string[][]>} with its header */
    async function csv(page, hash, title) {
        await gallery.open(page, { hash, ready: CARD });
        const card = page.locator(CARD).filter({ has: page.getByRole('heading', { name: title, exact: true }) }).first();
        await card.getByRole('button', { name: /save$/ }).click();
        const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('group', { name: 'Save the chart' }).getByRole('button', { name: 'CSV', exact: true }).click()]);
        return readFileSync(await download.path(), 'utf8').trim().split('\n').map(line => Array.from(`${line},`.matchAll(/(?:"((?:[^"]|"")*)"|([^,"]*)),/g), ([, quoted, plain]) => quoted?.replaceAll('""', '"') ?? plain));
    }

    /** Runs of an experiment with what they were swept over and the last value of a metric. @returns {Promise<{id: string, set: Record<string, any>, value: number | undefined}[]>} */
    async function results(experiment, metric) {
        const { runs } = await gallery.daemon.get(`/api/v1/runs?experiment=${experiment}&limit=1000`);
        return Promise.all(runs.map(async run => ({ id: run.id, set: run.sweep, value: (await gallery.daemon.get(`/api/v1/runs/${run.id}/metrics`)).series.find(s => s.key === metric)?.value })));
    }

    const points = async (run, key) => (await gallery.daemon.get(`/api/v1/runs/${run}/series?key=${encodeURIComponent(key)}&buckets=1000`)).series[0].data.map(p => [p.first_step ?? p.step, p.mean]);
    const blobOf = async (run, key, step = null) => {
        const { blobs } = await gallery.daemon.get(`/api/v1/runs/${run}/blobs?key=${encodeURIComponent(key)}`), blob = step === null ? blobs.at(-1) : blobs.find(b => b.step === step);
        const bytes = await (await fetch(`${gallery.daemon.url}/api/v1/runs/${run}/blobs/${blob.id}`)).arrayBuffer();
        return { ...blob, data: [...blob.meta.dtype === 'f64' ? new Float64Array(bytes) : new Float32Array(bytes)] };
    };
    const near = (a, b) => Math.abs(a - b) <= 1e-7 * Math.max(1, Math.abs(b));
    const mean = list => list.reduce((a, b) => a + b, 0) / list.length;

    test('test_e2e_pictures_of_experiments_hold_what_their_runs_reached', async () => {
        const page = await browser.open('about:blank', { origin: gallery.daemon.url });
        // Scale sweep: mean and deviation of two seeds at each k, the best marked.
        const swept = await results('E01', 'acc/val');
        for (const [patch, tokens] of [[4, 49], [7, 16]]) {
            const [, ...rows] = await csv(page, '#/experiments/E01', `Accuracy against k, N = ${tokens}`);
            const want = [0.1, 1, 10].map(k => swept.filter(r => r.set['/model/patch'] === patch && r.set['/attention/k'] === k).map(r => r.value));
            assert.deepEqual(rows.map(r => Number(r[1])), [0.1, 1, 10]);
            rows.forEach((r, i) => {
                const of = mean(want[i]), sd = Math.sqrt(want[i].reduce((sum, v) => sum + (v - of) ** 2, 0));
                assert.ok(want[i].length === 2 && r[4] === '2' && near(Number(r[2]), of) && near(Number(r[3]), sd), `${r}, of runs ${want[i]}`);
            });
            const best = rows.filter(r => r[5] === 'best');
            assert.ok(best.length === 1 && Number(best[0][2]) === Math.max(...rows.map(r => Number(r[2]))), 'the largest mean is marked');
        }
        // Norms by layer: each arm's series, and the bound in the picture.
        const normed = await results('E02', 'attn/fro/2'), [, ...norms] = await csv(page, '#/experiments/E02', 'Attention norm ‖A‖, layer 2');
        const lines = [];
        for (const { id, set } of normed)
            for (const [step, value] of await points(id, 'attn/fro/2'))
                lines.push([set['/attention'].activation === 'softmax' ? 'softmax' : 'x³ fixed', step, value]);
        assert.deepEqual(norms.map(r => [r[0], Number(r[1])]).sort(), lines.map(r => [r[0], r[1]]).sort());
        assert.ok(norms.every(r => lines.some(([name, step, value]) => name === r[0] && step === Number(r[1]) && near(Number(r[2]), value))), norms.join('; '));
        assert.ok((await page.locator('main canvas').first().getAttribute('aria-label')).includes('Attention norm'));
        // Degrees: a line each way of scaling.
        const degrees = await results('E09', 'acc/val'), [, ...against] = await csv(page, '#/experiments/E09', 'Accuracy against the degree, E09 degrees, small');
        const powers = degrees.filter(r => r.set && (r.set['/attention']?.activation ?? 'poly') === 'poly' && Object.keys(r.set).length);
        assert.equal(against.length, powers.length);
        for (const [line, degree, value] of against) {
            const run = powers.find(r => { const a = { ...r.set['/attention'], ...Object.fromEntries(Object.entries(r.set).filter(([key]) => key.startsWith('/attention/')).map(([key, v]) => [key.slice(11), v])) }; return a.degree === Number(degree) && { none: 'raw' }[a.scale] === (line === 'raw' ? 'raw' : undefined) && (line === 'raw' || a.scale === line); });
            assert.ok(run && near(Number(value), run.value), `${line} ${degree}: ${value}, of the run ${run?.value}`);
        }
        // The grid: one cell a combination.
        const crossed = await results('E18', 'loss/val'), [, ...cells] = await csv(page, '#/experiments/E18', 'Final validation loss');
        const sorted = list => list.map(v => Number(v.toPrecision(10))).sort((a, b) => a - b);
        assert.deepEqual(sorted(cells.map(r => Number(r[2]))), sorted(crossed.map(r => r.value)));
        for (const { set, value } of crossed) {
            const cell = cells.find(r => near(Number(r[2]), value)), optimizer = { adamw: 'AdamW', msgdw: 'mSGDW' }[set['/train/optimizer'].name];
            assert.ok(cell[1].startsWith(`${set['/norm/placement']} ${optimizer}`) && cell[0].startsWith(set['/attention'].activation === 'softmax' ? 'softmax' : `x³ ${set['/attention'].scale}`), `${cell}: ${JSON.stringify(set)}`);
        }
        // Equations: the stored map.
        const [solved] = (await gallery.daemon.get('/api/v1/runs?experiment=E10&limit=100')).runs.filter(r => r.name.includes('reaction') && r.sweep['/attention'].activation === 'softmax');
        const [, ...places] = await csv(page, '#/experiments/E10', 'E10 reaction, small, softmax: error'), stored = await blobOf(solved.id, 'pde/error');
        assert.deepEqual(places.map(r => Math.fround(Number(r[2]))), stored.data);
        await browser.close(page);
    });

    test('test_e2e_pictures_have_whole_titles_on_a_phone', async () => {
        const page = await browser.open('about:blank', { ...looks.find(({ name }) => name === 'phone-light'), origin: gallery.daemon.url });
        for (const view of gallery.views().filter(({ name }) => ['curves', 'scalars', 'attention', 'compare'].includes(name))) {
            await gallery.open(page, view);
            const titles = await page.locator('main :is(h2, h3):visible:not(.hidden)').evaluateAll(list => list.map(el => ({ text: el.textContent, cut: el.scrollWidth - el.clientWidth })));
            assert.ok(titles.length > 3);
            assert.deepEqual(titles.filter(({ cut }) => cut > 0), [], view.name);
        }
        await browser.close(page);
    });

    test('test_e2e_pictures_of_formulas_hold_their_values_and_the_learned_scalars', async () => {
        const page = await browser.open('about:blank', { origin: gallery.daemon.url }), { job } = gallery.at.formulas, sweep = await gallery.daemon.get(`/api/v1/jobs/${job}/sweep?runs=1`);
        // The first formula is shown, at the scalar's start of 1.
        const [[, value], ...values] = await csv(page, `#/submit?job=${job}`, 'φ(s)'), [[, slope], ...slopes] = await csv(page, `#/submit?job=${job}`, 'φ′(s)');
        assert.deepEqual([value, slope, values.length, slopes.length], ['phi', 'slope', 241, 241]);
        values.forEach(([s, phi], i) => {
            const x = Number(s), size = Math.abs(x);
            assert.ok(near(x, i / 20 - 6) && near(Number(phi), x ** 3 / (1 + size)) && near(Number(slopes[i][1]), x ** 2 * (3 + 2 * size) / (1 + size) ** 2), `at ${s}: ${phi}, slope ${slopes[i][1]}`);
        });
        // Of the runs that have the scalar, a line each layer.
        const [, ...lines] = await csv(page, `#/jobs/${job}`, 'a over training'), want = [];
        for (const { point, values: set, trials: [{ run_id: run }] } of sweep.table)
            for (const layer of JSON.stringify(set).includes('a*') ? [1, 2] : [])
                for (const [step, mean] of await points(run, `formula/a/${layer}`))
                    want.push([`${point}:formula/a/${layer}`, step, mean]);
        assert.ok(want.length >= 16 && lines.length === want.length, `${lines.length} rows, ${want.length} points`);
        for (const [key, step, mean] of want)
            assert.ok(lines.some(r => r[0].includes(`layer ${key.at(-1)}`) && r[1] === key && Number(r[2]) === step && near(Number(r[5]), mean)), `${key}, step ${step}: ${mean}; ${lines.join('; ')}`);
        await browser.close(page);
    });

    test('test_e2e_pictures_of_a_run_hold_its_stored_numbers', async () => {
        const page = await browser.open('about:blank', { origin: gallery.daemon.url }), { run } = gallery.at.vit, hash = `#/runs/${run}?tab=attention&layer=2&head=1&at=4`;
        const [, ...profile] = await csv(page, hash, 'Where weight goes'), displaced = await blobOf(run, 'attn/displacement/2/1', 4), wide = displaced.meta.shape[1];
        assert.deepEqual(profile.map(r => Math.fround(Number(r[2]))), displaced.data);
        profile.forEach((r, i) => assert.deepEqual([Number(r[0]), Number(r[1])], [Math.floor(i / wide) + displaced.meta.from[0], i % wide + displaced.meta.from[1]]));
        const [, ...bins] = await csv(page, hash, 'Activation over measured logits'), counted = await blobOf(run, 'logit/histogram/2/1', 4), all = counted.data.reduce((a, b) => a + b);
        const c = (await points(run, 'scale/c/2')).findLast(([step]) => step <= 4)[1], size = (counted.meta.hi - counted.meta.lo) / bins.length;
        assert.ok(all > 0 && bins.length === counted.data.length);
        bins.forEach((r, i) => {
            const x = counted.meta.lo + (i + 0.5) * size;
            assert.ok(near(Number(r[2]), counted.data[i] / all) && near(Number(r[3]), c * x ** 3), `${r}: share ${counted.data[i] / all}, phi ${c * x ** 3}`);
        });
        // The strip has each layer's series.
        const [, ...strip] = await csv(page, hash, 'Jacobian norm ‖∂A/∂S‖'), layers = await Promise.all([1, 2].map(l => points(run, `attn/jac_fro/${l}`)));
        assert.deepEqual(strip.map(r => Number(r[0])), layers[0].map(([step]) => step));
        strip.forEach((r, i) => layers.forEach((list, l) => assert.ok(near(Number(r[1 + l]), list[i][1]))));
        // What a check has found.
        for (const name of gallery.checks) {
            const { result } = await gallery.daemon.get(`/api/v1/runs/${gallery.at[name].run}/check`);
            for (const plot of result.plots) {
                const [, ...rows] = await csv(page, `#/runs/${gallery.at[name].run}`, plot.title), want = plot.series.flatMap(one => one.x.map((x, i) => [x, one.y[i]]));
                assert.deepEqual(rows.map(r => r.slice(-4, -2).map(v => (v === '' ? null : Number(v)))), want, plot.title);
            }
        }
        // Every name of the legend of a plot can be read.
        for (const svg of await page.locator('.check-plot svg').all()) {
            const [, , width, height] = (await svg.getAttribute('viewBox')).split(' ').map(Number), texts = await svg.locator('text').evaluateAll(list => list.map(t => { const b = t.getBBox(); return { word: t.textContent, x: b.x, y: b.y, right: b.x + b.width, foot: b.y + b.height }; }));
            assert.ok(texts.length > 4 && texts.every(t => t.x >= -1 && t.y >= -1 && t.right <= width + 1 && t.foot <= height + 1), JSON.stringify(texts));
        }
        await browser.close(page);
    });
});
