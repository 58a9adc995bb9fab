// The solution of a run that solves an equation: what the network gives, the exact solution and the error, as maps by step. The step stands
// in the address.
import { getBlob, getCurves, isAbort, listBlobKeys, listBlobs } from '../api.js';
import { bones, failedBox, fill, h, setText, stateBox } from '../dom.js';
import { count } from '../format.js';
import { describe, present } from '../metrics.js';
import { Picture } from '../picture.js';
import { isActive } from '../states.js';
import { onTheme, themeNow } from '../theme.js';
import { fieldFigure, fieldPlace, fieldSays, rangeOf, thinned } from './field_figures.js';

/** @typedef {import('../types').Blob} BlobRow */

const errors = ['rmae/val', 'rrmse/val'];

/**
 * @param {import('./page.js').Page} page
 * @param {AbortSignal} gone
 * @returns {import('./page.js').Part}
 */
export function fieldPart(page, gone) {
    const { query } = page.context;
    /** The step that is looked at; null: the last. */
    let at = query.has('at') ? Number(query.get('at')) : null;
    /** Blobs by key, all of the same steps. @type {Record<'u' | 'exact' | 'error', BlobRow[]>} */
    const rows = { u: [], exact: [], error: [] };
    /** Numbers of blobs by digest: the exact solution is the same at each step. @type {Map<string, Promise<ArrayLike<number>>>} */
    const cache = new Map();
    /** @type {Map<string, {count: number, points: [number, number][]}>} */
    const curves = new Map();
    let drawn = 0, first = true;

    const slider = h('input', { type: 'range', min: 0, max: 0, step: 1, 'aria-label': 'Step', class: 'grow' });
    const stepWord = h('output', { class: 'step-word' });
    const bar = h('div', { class: 'card pad toolbar attention-bar' }, h('label', { class: 'inline-row grow' }, 'Step', slider, stepWord));
    const facts = h('dl', { class: 'card tiles' });
    const file = `run-${page.id}`;
    const pictures = /** @type {const} */ ([['u', 'Solution of the network'], ['exact', 'Exact solution'], ['error', 'Error']]).map(([what, title]) => ({
        what, picture: new Picture(title, { signal: gone, file: `${file}-${what}`, moved: cell => pictures.forEach(other => other.what !== what && other.picture.look(cell)) }) }));
    const none = h('div', { class: 'card', hidden: true });
    const full = [bar, h('h2', { class: 'section-title' }, 'The solution over its domain'), facts, h('div', { class: 'charts' }, pictures.map(p => p.picture.el))];
    const all = h('div', { class: 'stack-l' }, none, full);

    slider.addEventListener('input', () => {
        at = Number(slider.value) === rows.u.length - 1 ? null : rows.u[Number(slider.value)]?.step ?? null;
        page.context.setQuery({ at: at === null ? null : String(at) });
        draw();
    });
    onTheme(() => { // figures hold colours
        draw();
    }, gone);

    /** @param {BlobRow} row */
    const numbersOf = row => {
        const known = cache.get(row.digest) ?? getBlob(page.id, row, gone);
        cache.set(row.digest, known);
        known.catch(() => cache.delete(row.digest));
        return known;
    };

    async function draw() {
        const mine = ++drawn, i = Number(slider.value), now = rows.u[i];
        const same = now && [now, ...['exact', 'error'].map(what => rows[/** @type {'exact' | 'error'} */ (what)].find(row => row.step === now.step))];
        if (!same || same.includes(undefined))
            return;
        setText(stepWord, `${count(now.step)}${rows.u.length > 1 ? ` (${i + 1} of ${rows.u.length})` : ''}`);
        slider.setAttribute('aria-valuetext', `step ${now.step}`);
        try {
            const values = await Promise.all(/** @type {BlobRow[]} */ (same).map(numbersOf));
            const axes = { rows: /** @type {import('./field_figures.js').Axis} */ (now.meta.rows), columns: /** @type {import('./field_figures.js').Axis} */ (now.meta.columns) };
            const maps = values.map(v => thinned({ rows: now.meta.shape[0], columns: now.meta.shape[1], values: v }));
            const both = rangeOf(maps.slice(0, 2));
            const tiles = await tilesAt(now.step);
            if (mine !== drawn || gone.aborted)
                return;
            pictures.forEach(({ picture }, k) => {
                const m = maps[k], words = ['u of the network', 'Exact u', '|u − exact u|'][k], called = k === 1 ? words : `${words} at step ${count(now.step)}`;
                picture.show({
                    make: width => fieldFigure(m, axes, { title: called, name: ['u', 'exact', 'error'][k], width: Math.min(width, 760), theme: themeNow(), range: k === 2 ? { low: 0 } : both }),
                    says: fieldSays(m, axes, called),
                    read: (row, column) => `${fieldPlace(m, axes, row, column)}: ${Number(m.values[row * m.columns + column]).toPrecision(4)}`,
                });
            });
            fill(facts, tiles);
            facts.hidden = tiles.length === 0;
        } catch (error) {
            failed(error, 'The maps', draw);
        }
    }

    /** Errors at the step. @param {number} step */
    async function tilesAt(step) {
        const shown = errors.filter(key => page.series.some(s => s.key === key)), countOf = (/** @type {string} */ key) => page.series.find(s => s.key === key)?.count ?? 0;
        const missing = shown.filter(key => curves.get(key)?.count !== countOf(key));
        for (const curve of missing.length ? await getCurves(page.id, missing, { buckets: 2000 }, gone) : [])
            curves.set(curve.key, { count: countOf(curve.key), points: curve.buckets.filter(b => b.mean !== null).map(b => [b.last, /** @type {number} */ (b.mean)]) });
        return shown.map(key => {
            const value = (curves.get(key)?.points ?? []).filter(([when]) => when <= step).at(-1)?.[1] ?? null, { title, text } = describe(key);
            return h('div', { class: 'tile', title: text }, h('dt', null, title), h('dd', null, value === null ? '–' : present(describe(key), value)));
        });
    }

    /** @param {unknown} error @param {string} what @param {() => void} again */
    function failed(error, what, again) {
        if (isAbort(error))
            return;
        none.hidden = false;
        fill(none, failedBox(error, what, () => { none.hidden = true; again(); }));
    }

    async function refresh() {
        try {
            if (first)
                fill(page.place, h('div', { class: 'card' }, bones(8)));
            const keys = await listBlobKeys(page.id, gone), there = keys.find(k => k.key === 'pde/u');
            if (there && there.count !== Math.min(rows.u.length, rows.exact.length, rows.error.length)) // the three of a step arrive one after another
                [rows.u, rows.exact, rows.error] = await Promise.all(['u', 'exact', 'error'].map(what => listBlobs(page.id, `pde/${what}`, gone)));
            if (gone.aborted)
                return;
            if (first || !all.isConnected)
                fill(page.place, all);
            first = false;
            none.hidden = rows.u.length > 0;
            for (const part of full)
                part.hidden = rows.u.length === 0;
            if (rows.u.length === 0) {
                fill(none, page.run && isActive(page.run) ? stateBox('empty', 'No solution yet', 'The first maps appear with the first evaluation.')
                    : stateBox('empty', 'No maps of the solution', 'This run ended before its first evaluation. The log may show why.', h('button', { type: 'button', on: { click: () => page.openTab('log') } }, 'Open the log')));
                return;
            }
            slider.max = String(rows.u.length - 1);
            slider.disabled = rows.u.length < 2;
            slider.value = String(Math.max(0, at === null ? rows.u.length - 1 : rows.u.findLastIndex(row => row.step <= /** @type {number} */ (at))));
            await draw();
        } catch (error) {
            if (!isAbort(error)) {
                first = true;
                fill(page.place, h('div', { class: 'card' }, failedBox(error, 'The solution', () => refresh())));
            }
        }
    }

    return { refresh };
}
