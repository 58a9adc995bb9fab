// Gradients of one run: how large their entries are, for six weights by layer and step, next to those of another run. The view
// stands in the address.
import { getBlob, getRun, isAbort, listBlobKeys, listBlobs } from '../api.js';
import { bones, failedBox, fill, h, setText, stateBox } from '../dom.js';
import { count } from '../format.js';
import { Picture } from '../picture.js';
import { isActive } from '../states.js';
import { colour, onTheme } from '../theme.js';
import { gradientFigure, gradientSays } from './gradient_figures.js';

/** @typedef {import('./page.js').Page} Page */

const weights = [['w_q', 'W_Q'], ['w_k', 'W_K'], ['w_v', 'W_V'], ['w_o', 'W_O'], ['w_1', 'W_1'], ['w_2', 'W_2']];

/**
 * @param {Page} page
 * @param {AbortSignal} gone
 * @returns {import('./page.js').Part}
 */
export function gradientsPart(page, gone) {
    const { query } = page.context;
    const view = { layer: Number(query.get('glayer')) || 0, at: query.has('gat') ? Number(query.get('gat')) : null, log: query.get('glog') === '1', other: query.get('with') ?? '' };
    const layer = h('select', { 'aria-label': 'Layer' });
    const slider = h('input', { type: 'range', min: 0, max: 0, step: 1, 'aria-label': 'Step', class: 'grow' });
    const stepWord = h('output', { class: 'step-word' });
    const logBox = h('input', { type: 'checkbox', checked: view.log });
    const other = h('input', { type: 'number', min: 1, step: 1, 'aria-label': 'Another run, by its number', value: view.other, class: 'amount' });
    const trouble = h('p', { class: 'note small', data: { tone: 'warn' }, role: 'status', hidden: true });
    const bar = h('div', { class: 'card pad toolbar attention-bar' }, h('label', { class: 'inline-row' }, 'Layer', layer), h('label', { class: 'inline-row grow' }, 'Step', slider, stepWord),
        h('label', { class: 'inline-row' }, logBox, 'Logarithmic share'), h('label', { class: 'inline-row' }, 'Beside run #', other));
    const pictures = weights.map(([key, name]) => new Picture(name, { signal: gone, file: `run-${page.id}-gradient-${key}` }));
    const home = h('div', { class: 'charts' }, pictures.map(p => p.el));
    const all = h('div', { class: 'stack-l' }, bar, trouble, h('h2', { class: 'section-title' }, 'Magnitudes of the entries, by weight'), home);
    /** Keys and lists by run. @type {Map<string, {keys: import('../types').BlobKey[], name: string}>} */
    const runs = new Map();
    /** @type {Map<string, Promise<import('../types').Blob[]>>} */
    const lists = new Map();
    /** @type {number[]} */
    let steps = [];
    let drawn = 0;
    let first = true;

    const keep = () => page.context.setQuery({ glayer: view.layer ? String(view.layer) : null, gat: view.at === null ? null : String(view.at), glog: view.log ? '1' : null, with: view.other || null });
    const listOf = (/** @type {string} */ run, /** @type {string} */ key) => {
        const n = runs.get(run)?.keys.find(k => k.key === key)?.count ?? 0, id = `${run} ${key} ${n}`;
        if (!n)
            return Promise.resolve([]);
        const known = lists.get(id) ?? listBlobs(run, key, gone);
        lists.set(id, known);
        known.catch(() => lists.delete(id));
        return known;
    };
    const keyOf = (/** @type {string} */ weight) => `grad/histogram/${weight}${view.layer ? `/${view.layer}` : ''}`;

    layer.addEventListener('change', () => {
        view.layer = Number(layer.value);
        keep();
        draw();
    });
    slider.addEventListener('input', () => {
        view.at = Number(slider.value) === steps.length - 1 ? null : steps[Number(slider.value)];
        keep();
        draw();
    });
    logBox.addEventListener('change', () => {
        view.log = logBox.checked;
        keep();
        draw();
    });
    other.addEventListener('change', () => {
        view.other = other.value;
        keep();
        refresh();
    });
    onTheme(() => { draw(); }, gone);

    /** The histogram of a weight that was taken nearest to a step. @param {string} run @param {string} weight @param {number} step @param {number} ink */
    async function histogramOf(run, weight, step, ink) {
        const list = await listOf(run, keyOf(weight));
        if (list.length === 0)
            return null;
        const blob = list.reduce((a, b) => (Math.abs(b.step - step) < Math.abs(a.step - step) ? b : a));
        return { name: `Run #${run}${runs.size > 1 && blob.step !== step ? ` (step ${blob.step})` : ''}`, ink: colour(ink ? 's2' : 's1'), dash: ink ? [6, 3] : [], counts: await getBlob(run, blob, gone), meta: /** @type {any} */ (blob.meta) };
    }

    async function draw() {
        const mine = ++drawn;
        try {
            const there = runs.get(page.id)?.keys ?? [];
            const layers = [...new Set(there.map(k => Number(/^grad\/histogram\/\w+\/(\d+)$/.exec(k.key)?.[1] ?? 0)))].sort((a, b) => a - b);
            if (!layers.includes(view.layer))
                view.layer = 0;
            if (layer.dataset.list !== layers.join()) {
                layer.dataset.list = layers.join();
                fill(layer, layers.map(n => h('option', { value: n }, n ? String(n) : 'all')));
            }
            layer.value = String(view.layer);
            const known = weights.find(([key]) => there.some(k => k.key === `grad/histogram/${key}`));
            steps = known ? (await listOf(page.id, `grad/histogram/${known[0]}`)).map(b => b.step) : [];
            const at = view.at === null ? steps.length - 1 : Math.max(0, steps.findLastIndex(s => s <= /** @type {number} */ (view.at)));
            slider.max = String(Math.max(0, steps.length - 1));
            slider.value = String(at);
            slider.disabled = steps.length < 2;
            setText(stepWord, `${count(steps[at])} (${at + 1} of ${steps.length})`);
            slider.setAttribute('aria-valuetext', `step ${steps[at]}`);
            await Promise.all(weights.map(async ([key, name], i) => {
                const list = (await Promise.all([...runs.keys()].map((run, k) => histogramOf(run, key, steps[at], k)))).filter(one => one !== null);
                if (mine !== drawn || gone.aborted)
                    return;
                pictures[i].el.hidden = list.length === 0;
                if (list.length)
                    pictures[i].show({ make: width => gradientFigure(list, { title: `Gradient of ${name}, ${view.layer ? `layer ${view.layer}` : 'all layers'}, step ${count(steps[at])}`, width: Math.min(width, 800), log: view.log }), says: gradientSays(list) });
            }));
        } catch (error) {
            if (!isAbort(error) && mine === drawn)
                fill(page.place, h('div', { class: 'card' }, failedBox(error, 'The gradients', () => { first = true; refresh(); })));
        }
    }

    async function refresh() {
        try {
            if (first)
                fill(page.place, h('div', { class: 'card' }, bones(6)));
            runs.clear();
            runs.set(page.id, { keys: (await listBlobKeys(page.id, gone)).filter(k => k.key.startsWith('grad/histogram/')), name: '' });
            trouble.hidden = true;
            if (view.other && view.other !== page.id) {
                try {
                    const [keys] = await Promise.all([listBlobKeys(view.other, gone), getRun(view.other, gone)]);
                    const some = keys.filter(k => k.key.startsWith('grad/histogram/'));
                    if (some.length)
                        runs.set(view.other, { keys: some, name: '' });
                    trouble.hidden = some.length > 0;
                    setText(trouble, `Run #${view.other} has no histograms of gradients.`);
                } catch (error) {
                    if (isAbort(error))
                        throw error;
                    trouble.hidden = false;
                    setText(trouble, `Run #${view.other} could not be loaded.`);
                }
            }
            if (gone.aborted)
                return;
            if (runs.get(page.id)?.keys.length === 0) {
                fill(page.place, h('div', { class: 'card' }, none()));
                first = true;
                return;
            }
            if (first || !all.isConnected)
                fill(page.place, all);
            first = false;
            await draw();
        } catch (error) {
            if (!isAbort(error)) {
                first = true;
                fill(page.place, h('div', { class: 'card' }, failedBox(error, 'The gradients', () => refresh())));
            }
        }
    }

    function none() {
        if (page.resolved.diagnostics?.histograms)
            return page.run && isActive(page.run) ? stateBox('empty', 'No histograms yet', 'They are recorded at the fractions of the run given in its document.')
                : stateBox('empty', 'No histograms', 'This run ended before the first ones.');
        return stateBox('empty', 'This run does not record histograms of gradients', 'A job keeps those of six weights at some fractions of the run with, for example:',
            h('pre', { class: 'snippet-inline', tabindex: 0, 'aria-label': 'Example' }, '"diagnostics": {"histograms": {"at": [0.05, 0.5, 1]}}'),
            h('a', { class: 'button', href: `#/submit?run=${encodeURIComponent(page.id)}` }, 'Edit and run again'));
    }

    return { refresh };
}
