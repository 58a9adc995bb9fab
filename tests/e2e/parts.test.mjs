// Training, validation and test are three things: every list, table, page and export that shows a number of one of them says which. Real
// runs give the numbers; wherever one of them stands, what labels it must name its part of the data.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import YAML from 'yaml';

import { Daemon, root, until } from '../lib/daemon.mjs';
import { Browser, findChromium } from './browser.mjs';

/** What names a part: of the key of a metric, or of a sentence. */
const words = { train: /(?<![a-z])train(ing)?(?![a-z])/i, val: /(?<![a-z])val(idation)?(?![a-z])/i, test: /(?<![a-z])test(?![a-z])/i, eval: /(?<![a-z])eval(?![a-z])|zero-shot|text_gen|text gen/i };
/** The part that a metric is of; null: none, or one that the daemon does not compute from data. @param {string} key */
const partOf = key => /^(?:loss|acc|ppl)\w*\/(train|val|test|eval)(?=$|[/_])/.exec(key)?.[1] ?? null;

/** Numbers by the part that they are of. */
class Known {
    constructor() {
        /** @type {{value: number, part: string, key: string}[]} */
        this.list = [];
    }

    add(key, ...values) {
        const part = partOf(key);
        for (const value of values)
            if (part && typeof value === 'number' && Number.isFinite(value))
                this.list.push({ value, part, key });
    }

    /** Of a number as it is written, with four digits or more: the parts of which it may be. @param {string} word */
    parts(word) {
        const digits = word.replace(/[^\d.eE+-]/g, ''), value = Number(digits), places = (/\.(\d+)/.exec(digits)?.[1] ?? '').length;
        if (!Number.isFinite(value) || digits.replace(/e.*$/i, '').replace(/^[-+0.]+|\./g, '').length < 4 || places < 2)
            return [];
        const half = .51 * 10 ** -places; // a share may stand in per cent, with its unit in the head of the column
        return [...new Set(this.list.filter(known => [1, 100].some(times => Math.abs(known.value * times - value) <= half)).map(known => known.part))];
    }

    /** Numbers of a text, each with its parts. @param {string} text */
    in(text) {
        return [...text.replaceAll('−', '-').matchAll(/(?<![\w.])-?\d+\.\d+(?:e[+-]?\d+)?(?: %)?/g)].map(([word]) => ({ word, parts: this.parts(word) })).filter(found => found.parts.length > 0);
    }

    /** Complains of numbers whose label names none of their parts. @param {string} where @param {{text: string, label: string}[]} places @param {string[]} wanted parts that must be there, and be named */
    check(where, places, wanted) {
        const named = new Set(), wrong = [];
        for (const { text, label } of places)
            for (const { word, parts } of this.in(text)) {
                const said = parts.filter(part => words[part].test(label.replaceAll('_', ' ')));
                said.forEach(part => named.add(part));
                if (said.length === 0)
                    wrong.push(`${word} is of ${parts}: ${label.slice(0, 160)}`);
            }
        assert.deepEqual(wrong.slice(0, 5), [], where);
        for (const part of wanted)
            assert.ok(named.has(part), `${where}: no number of ${part}`);
        return [...named];
    }
}

/** Every number of a JSON value with what names it: the members on the way and the short texts beside them. */
function* jsonPlaces(value, label = '') {
    if (typeof value === 'number')
        yield { text: String(value), label };
    else if (Array.isArray(value))
        for (const inner of value)
            yield* jsonPlaces(inner, label);
    else if (value && typeof value === 'object') {
        const beside = Object.entries(value).filter(([key, text]) => typeof text === 'string' && text.length < 100 && !['name', 'title', 'experiment', 'template'].includes(key)).map(([, text]) => text).join(' ');
        for (const [key, inner] of Object.entries(value))
            if (key !== 'document' && key !== 'configuration')
                yield* jsonPlaces(inner, `${label} ${beside} ${key}`);
    }
}
/** Every cell of a CSV with the heading of its column and the other cells of its row. @param {string} text */
function csvPlaces(text) {
    const [head, ...rows] = text.trim().split(/\r?\n/).map(line => [...line.matchAll(/("(?:[^"]|"")*"|[^,]*)(?:,|$)/g)].map(m => m[1]));
    return rows.flatMap(row => row.map((cell, i) => ({ text: cell, label: `${head[i]} ${row.filter(other => !/^-?[\d.]+$/.test(other)).join(' ')}` })));
}
/** Every piece of text of a page, with the headings, labels and cells that name it. Runs in the browser. */
function pagePlaces() {
    const say = el => (el?.childNodes.length ? [...el.childNodes].map(node => (node.nodeType === Node.TEXT_NODE ? node.textContent : say(node))).join(' ') : '');
    const places = [], walker = document.createTreeWalker(document.querySelector('main') ?? document.body, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const at = node.parentElement, text = node.textContent;
        if (!/\d\.\d/.test(text) || !at || at.closest('style, script, pre, [hidden]'))
            continue;
        const label = [text, say(at).length < 300 ? say(at) : '', at.title, say(at.parentElement).length < 60 ? say(at.parentElement) : '']; // 60: one entry of a legend
        const cell = at.closest('td, th, [role=cell], [role=gridcell]'), row = cell?.closest('tr, [role=row]'), table = cell?.closest('table, [role=grid], [role=table]');
        if (cell && row && table) {
            const i = [...row.children].indexOf(cell), head = table.querySelector('thead tr, [role=row]');
            label.push(say(head?.children[i]), ...[...row.children].filter(other => other !== cell && !/\d\.\d/.test(other.textContent)).map(say));
        }
        for (let up = at; up && up.tagName !== 'MAIN'; up = up.parentElement) {
            label.push(up.getAttribute('aria-label'), up.tagName === 'LI' || up.tagName === 'P' ? say(up) : '', say(up.querySelector(':scope > summary, :scope > h2, :scope > h3, :scope > h4, :scope > figcaption, :scope > .chart-head')));
            if (/^(DT|P)$/.test(up.previousElementSibling?.tagName ?? ''))
                label.push(say(up.previousElementSibling));
            let above = up.previousElementSibling; // the nearest heading above
            while (above && !/^H[2-4]$/.test(above.tagName))
                above = above.previousElementSibling;
            label.push(say(above));
        }
        places.push({ text, label: label.filter(Boolean).join(' | ') });
    }
    return places;
}

test('the walks themselves find a number without its part', () => {
    const known = new Known();
    known.add('loss/val', 0.72349);
    known.add('acc/test', 0.91234);
    known.check('said', [...jsonPlaces({ key: 'loss/val', value: 0.72349 }), ...csvPlaces('step,acc/test\n3,0.91234'), { text: '91.23 %', label: 'Test' }], ['val', 'test']);
    for (const places of [[...jsonPlaces({ key: 'loss/test', value: 0.72349 })], csvPlaces('step,accuracy\n3,0.91234'), [{ text: '91.23 %', label: 'Validation' }]])
        assert.throws(() => known.check('not said', places, []), /is of (val|test)/);
    assert.throws(() => known.check('empty', [], ['val']), /no number of val/);
});

describe('parts of the data', { skip: findChromium() === null && 'no Chromium here', timeout: 600000 }, () => {
    const known = new Known();
    let daemon, browser, sweep, language, runs;
    before(async () => {
        [daemon, browser] = await Promise.all([Daemon.start({ flags: ['--devices.cpu_slots=2'] }), Browser.start()]);
        ({ id: sweep, run_ids: runs } = await daemon.post('/api/v1/jobs', { template: 'E04', trials: 2, train: { steps: 6, batch: 8, eval_every: 2 }, model: { width: 16, depth: 1, heads: 2 }, data: { split: { train: 64, val: 37, test: 53 } }, resources: { threads: 1 } }));
        language = await daemon.submit({ name: 'words', register: 'words', model: { preset: 'gpt_micro', width: 16, depth: 1, heads: 2, context: 16 }, data: { dataset: 'text_gen', tokenizer: 'bytes', split: { train: 4000, val: 2000, test: 3000 }, eval: ['text_gen'] }, train: { steps: 6, batch: 4, eval_every: 2 }, resources: { threads: 1 } });
        await until('all runs', async () => (await daemon.get('/api/v1/runs?state=active&limit=1')).runs.length === 0, { limit: 300000, every: 300 });
        /** @type {Map<string, number[]>} */
        const last = new Map();
        for (const { id, outcome } of (await daemon.get('/api/v1/runs?limit=100')).runs) {
            assert.equal(outcome, 'succeeded');
            const { series } = await daemon.get(`/api/v1/runs/${id}/metrics?limit=1000`);
            for (const s of series) {
                known.add(s.key, s.value, s.min, s.max);
                const points = await daemon.get(`/api/v1/runs/${id}/series?key=${encodeURIComponent(s.key)}&buckets=100`);
                known.add(s.key, ...points.series.flatMap(one => one.data.map(p => p.mean)));
                const at = `${(await daemon.get(`/api/v1/runs/${id}`)).job_id} ${s.key}`;
                last.set(at, [...last.get(at) ?? [], s.value]);
            }
        }
        // Means over the seeds of each combination, whose runs follow each other.
        for (const [at, values] of last)
            for (let i = 0; i + 1 < values.length; i += 2)
                known.add(at.split(' ')[1], (values[i] + values[i + 1]) / 2);
        for (const part of Object.keys(words))
            assert.ok(known.list.some(one => one.part === part), `a number of ${part}`);
    });
    after(async () => {
        await browser?.stop();
        await daemon?.stop();
    });
    const keys = ['loss/train', 'loss/val', 'acc/val', 'loss/test', 'acc/test'], metric = keys.map(key => `metric=${key}`).join('&'), three = ['train', 'val', 'test'];

    test('every list and answer of the API', async () => {
        const run = runs[0], id = language.run, pair = `run=${runs[0]}&run=${runs[2]}`;
        for (const [where, parts] of [
            [`/api/v1/runs?${metric}`, three], [`/api/v1/runs/${run}/metrics?limit=1000`, three], [`/api/v1/runs/${id}/metrics?limit=1000`, [...three, 'eval']],
            [`/api/v1/runs/${run}/series?key=loss/train&key=loss/val&key=loss/test`, three], [`/api/v1/runs/${run}/export?format=json`, three],
            [`/api/v1/runs/${run}`, []], [`/api/v1/runs/${run}/checkpoints`, ['val']],
            [`/api/v1/jobs/${sweep}`, []], [`/api/v1/jobs/${sweep}/sweep?${metric}&runs=1`, three], [`/api/v1/jobs/${sweep}/sweep`, ['val']],
            [`/api/v1/jobs/${sweep}/sweep/curves?key=loss/train`, ['train']], [`/api/v1/jobs/${sweep}/sweep/curves?key=acc/val`, ['val']],
            [`/api/v1/compare?${pair}&${metric}`, three], [`/api/v1/compare/series?${pair}&key=loss/val&key=loss/test`, ['val', 'test']],
            [`/api/v1/aggregate?by=field:/attention/activation&${metric}`, []], [`/api/v1/aggregate?by=field:/attention/scale&job=${sweep}&${metric}`, three],
            ['/api/v1/experiments', []], ['/api/v1/experiments/E04', ['val', 'test']], ['/api/v1/experiments/E04/report?format=json', ['val', 'test']],
            ['/api/v1/models', []], ['/api/v1/models/words', []], ['/api/v1/models/words/versions/1', []],
        ])
            known.check(where, [...jsonPlaces(await daemon.get(where))], parts);
    });

    test('every export of the API, as CSV and as a page', async () => {
        const contract = YAML.parse(readFileSync(path.join(root, 'api/openapi.yaml'), 'utf8'));
        const exports = Object.entries(contract.paths).filter(([, methods]) => JSON.stringify(methods.get ?? {}).includes('text/csv')).map(([at]) => at);
        const pair = `run=${runs[0]}&run=${runs[2]}`;
        /** @type {Record<string, [string, string[]][]>} */
        const calls = {
            '/api/v1/runs/{id}/export': [[`/api/v1/runs/${language.run}/export`, [...three, 'eval']], [`/api/v1/runs/${runs[0]}/export?key=acc/val&key=acc/test`, ['val', 'test']]],
            '/api/v1/runs/{id}/check': [], // a statement of the theory has no data
            '/api/v1/jobs/{id}/sweep/export': [[`/api/v1/jobs/${sweep}/sweep/export?${metric}`, three], [`/api/v1/jobs/${sweep}/sweep/export`, ['val']], [`/api/v1/jobs/${sweep}/sweep/export?what=curves&key=loss/test`, ['test']]],
            '/api/v1/compare/export': [[`/api/v1/compare/export?what=metrics&${pair}&${metric}`, three], [`/api/v1/compare/export?what=series&${pair}&key=loss/val&key=loss/test`, ['val', 'test']], [`/api/v1/compare/export?what=fields&${pair}`, []]],
        };
        assert.deepEqual(exports.sort(), Object.keys(calls).sort(), 'each export is walked');
        for (const [where, parts] of Object.values(calls).flat())
            known.check(where, csvPlaces(await daemon.get(where)), parts);
        const page = await browser.open(`${daemon.url}/api/v1/experiments/E04/report`);
        known.check('the report', await page.evaluate(`(${pagePlaces})()`), ['val', 'test']);
        await browser.close(page);
    });

    test('every page, and what its pictures and tables are saved as', async () => {
        const page = await browser.open(daemon.url), saved = [];
        for (const [hash, parts] of [
            [`#/?cols=name,${keys.map(key => `m:${key}`).join(',')}`, three], ['#/', ['val']], [`#/runs/${runs[0]}`, three], [`#/runs/${language.run}`, three], [`#/runs/${runs[0]}?tab=checkpoints`, ['val']], [`#/runs/${runs[0]}?tab=log`, []],
            [`#/jobs/${sweep}`, []], [`#/compare?runs=${runs[0]},${runs[2]}`, three], ['#/experiments', []], ['#/experiments/E04', ['test']], ['#/sweeps', []], ['#/models', []], ['#/models/words', []],
        ]) {
            await page.goto(`${daemon.url}/${hash}`);
            await until(hash, async () => (await page.locator('main').innerText()).length > 40 && await page.locator('main .bones').count() === 0, { limit: 20000 });
            await page.evaluate(() => { for (const fold of document.querySelectorAll('main details')) fold.open = true; });
            await until(`numbers of ${parts} at ${hash}`, async () => {
                const text = await page.locator('main').innerText();
                return parts.every(part => known.in(text).some(found => found.parts.includes(part)));
            }, { limit: 20000, every: 200 });
            // What papers print is not of these runs.
            known.check(hash, (await page.evaluate(`(${pagePlaces})()`)).filter(at => !at.label.startsWith('At the paper')), parts);
            const buttons = page.locator('main').getByRole('button', { name: /: save$/ });
            for (let i = 0, n = Math.min(await buttons.count(), 8); i < n; i++) {
                await buttons.nth(i).click();
                const [file] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'CSV', exact: true }).click()]);
                const text = readFileSync(await file.path(), 'utf8'), name = `${hash}: ${file.suggestedFilename()}`;
                saved.push(...known.check(name, csvPlaces(text), []));
            }
        }
        assert.ok(['val', 'test', 'eval'].every(part => saved.includes(part)), `pictures were saved with numbers of ${[...new Set(saved)]}`);
        await browser.close(page);
    });
});
