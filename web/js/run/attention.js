// Attention of one run: its matrices by layer, head and step next to the softmax of the same logits, where weight goes, the
// activation over the logits that it met, and the norms of all layers through training. The view stands in the address.
import { getBlob, getCurves, isAbort, listBlobKeys, listBlobs, listSeries } from '../api.js';
import { failedBox, fill, h, setText, stateBox, bones } from '../dom.js';
import { count } from '../format.js';
import { checkFormula } from '../jobs.js';
import { describe, parseKey, present } from '../metrics.js';
import { Picture } from '../picture.js';
import { isActive } from '../states.js';
import { colour, onTheme, themeNow } from '../theme.js';
import { displacementFigure, displacementSays, mapFigure, mapSays, phiFigure, phiSays, stripFigure, stripSays, tokenName, withoutLead } from './attention_figures.js';

/** @typedef {import('./page.js').Page} Page */
/** @typedef {import('../types').Blob} BlobRow */

/** Norms of layers that have a bound of softmax (Theorem 4.1; the Jacobian's is the sharp one), and others by layer. */
const strips = [
    { key: 'attn/fro', bound: (/** @type {number} */ n) => Math.sqrt(n), name: '√N' },
    { key: 'attn/jac_fro', bound: (/** @type {number} */ n) => Math.sqrt(n) / 2, name: '√N/2' },
    { key: 'attn/entropy', bound: null, name: '' },
    { key: 'attn/rank', bound: null, name: '' },
    { key: 'act/rms', bound: null, name: '' },
];

/**
 * Rows of an attention matrix, as the document says: what the bounds are taken of. Of a Swin those of a window in its first stage, of an
 * XCiT the channels of a head, of a Nystromformer its landmarks.
 * @param {Record<string, any>} document
 */
export function tokensOf(document) {
    const { model = {}, data = {} } = document;
    if (model.arch === 'xcit')
        return Number(model.width) / Number(model.heads);
    if (model.context || data.context) {
        const context = Number(data.context ?? model.context);
        return model.arch === 'nystrom' ? Math.min(context, Number(model.landmarks)) : context;
    }
    const pair = (/** @type {any} */ v) => (Array.isArray(v) ? v : [v, v]).map(Number);
    if (!model.patch || !data.image_size)
        return null;
    const [height, width] = pair(data.image_size), [rows, columns] = pair(model.patch);
    const down = Math.floor(height / rows), across = Math.floor(width / columns), patches = down * across;
    if (model.arch === 'swin')
        return Math.min(Number(model.window), down, across) ** 2;
    return patches > 0 ? patches + (model.arch === 'deit' ? 2 : model.pool === 'cls' ? 1 : 0) : null;
}

/**
 * The patches of a picture, where all these runs have equally many; else 0.
 * @param {{fields: Record<string, any>}[]} runs with the fields /data/image_size and /model/patch
 */
export function sharedPatches(runs) {
    const area = (/** @type {any} */ v) => (Array.isArray(v) ? Number(v[0]) * Number(v[1]) : Number(v) ** 2);
    const all = new Set(runs.map(({ fields }) => area(fields['/data/image_size']) / area(fields['/model/patch']))), [one] = all;
    return all.size === 1 && one > 0 && Number.isFinite(one) ? one : 0;
}

/**
 * @param {Page} page
 * @param {AbortSignal} gone
 * @returns {import('./page.js').Part}
 */
export function attentionPart(page, gone) {
    const { query } = page.context;
    /** What is looked at; `at` null: the last step. */
    const view = { layer: Number(query.get('layer')) || 0, head: Number(query.get('head')) || 0, at: query.has('at') ? Number(query.get('at')) : null, bare: query.get('bare') === '1' };
    /** Numbers of blobs by id; they never change. @type {Map<string, Promise<ArrayLike<number>>>} */
    const cache = new Map();
    /** @type {import('../types').BlobKey[]} */
    let keys = [];
    /** Steps of the chosen head's map. @type {BlobRow[]} */
    let maps = [];
    let drawn = 0;

    const layer = h('select', { 'aria-label': 'Layer' }), head = h('select', { 'aria-label': 'Head' });
    const slider = h('input', { type: 'range', min: 0, max: 0, step: 1, 'aria-label': 'Step', class: 'grow' });
    const stepWord = h('output', { class: 'step-word' });
    const bareBox = h('input', { type: 'checkbox' });
    const bare = h('label', { class: 'inline-row' }, bareBox, 'Without the class token');
    const bar = h('div', { class: 'card pad toolbar attention-bar' },
        h('label', { class: 'inline-row' }, 'Layer', layer), h('label', { class: 'inline-row' }, 'Head', head),
        h('label', { class: 'inline-row grow' }, 'Step', slider, stepWord), bare);
    const facts = h('dl', { class: 'card tiles' });
    const file = `run-${page.id}`;
    const map = new Picture('Attention', { signal: gone, file: `${file}-attention`, moved: cell => soft.look(cell) });
    const soft = new Picture('Softmax of the same logits', { signal: gone, file: `${file}-softmax`, moved: cell => map.look(cell) });
    const where = new Picture('Where weight goes', { signal: gone, file: `${file}-displacement`, note: 'Mean of |A| over all pairs of a query and a key with the same displacement. Of pictures, bands about the diagonal of the matrix may mean the same row of patches or the same column; here they differ.' });
    const phi = new Picture('Activation over measured logits', { signal: gone, file: `${file}-phi` });
    const pictures = h('div', { class: 'charts' }, map.el, soft.el, where.el, phi.el);
    const none = h('div', { class: 'card', hidden: true });
    const norms = strips.map(({ key }) => new Picture(describe(key).title, { signal: gone, file: `${file}-${key.replace('/', '-')}-strip`, note: describe(key).text }));
    const normsTitle = h('h2', { class: 'section-title' }, 'Layers through training');
    const normsHome = h('div', { class: 'charts' }, norms.map(p => p.el));
    const headTitle = h('h2', { class: 'section-title' }, 'One head');
    const all = h('div', { class: 'stack-l' }, bar, none, headTitle, facts, pictures, normsTitle, normsHome);

    /** @param {BlobRow | undefined} at */
    const numbersOf = at => {
        if (!at)
            return Promise.resolve(null);
        const known = cache.get(at.id) ?? getBlob(page.id, at, gone);
        cache.set(at.id, known);
        known.catch(() => cache.delete(at.id));
        return known;
    };
    /** Lists of blobs by key, requested again while the run goes on. @type {Map<string, {count: number, list: BlobRow[]}>} */
    const lists = new Map();
    const listOf = async (/** @type {string} */ key) => {
        const row = keys.find(k => k.key === key), known = lists.get(key);
        if (!row)
            return [];
        if (known?.count === row.count)
            return known.list;
        const list = await listBlobs(page.id, key, gone);
        lists.set(key, { count: row.count, list });
        return list;
    };

    const chosen = () => keys.filter(k => k.key.startsWith('attn/map/')).map(k => ({ key: k.key, .../** @type {{layer: number, head: number}} */ (parseKey(k.key)) }));
    const keep = () => page.context.setQuery({ layer: view.layer ? String(view.layer) : null, head: view.head ? String(view.head) : null, at: view.at === null ? null : String(view.at), bare: view.bare ? '1' : null });

    layer.addEventListener('change', () => {
        view.layer = Number(layer.value);
        keep();
        change();
    });
    head.addEventListener('change', () => {
        view.head = Number(head.value);
        keep();
        change();
    });
    slider.addEventListener('input', () => {
        const at = maps[Number(slider.value)];
        view.at = Number(slider.value) === maps.length - 1 ? null : at?.step ?? null;
        keep();
        drawMaps();
    });
    bareBox.addEventListener('change', () => {
        view.bare = bareBox.checked;
        keep();
        drawMaps();
    });
    onTheme(() => { // figures hold colours
        drawMaps();
    }, gone);

    /** What choose does, on a choice of the reader's. */
    function change() {
        choose().catch(error => {
            if (!isAbort(error)) {
                none.hidden = false;
                fill(none, failedBox(error, 'The matrices', () => { none.hidden = true; change(); }));
            }
        });
    }

    /** Fills the choices, and takes the nearest that there is. */
    async function choose() {
        const there = chosen();
        const layers = [...new Set(there.map(k => k.layer))].sort((a, b) => a - b);
        if (!layers.includes(view.layer))
            view.layer = layers[0];
        const heads = there.filter(k => k.layer === view.layer).map(k => k.head).sort((a, b) => a - b);
        if (!heads.includes(view.head))
            view.head = heads[0];
        const options = (/** @type {HTMLSelectElement} */ el, /** @type {number[]} */ list, /** @type {number} */ value) => {
            if (el.dataset.list !== list.join()) {
                el.dataset.list = list.join();
                fill(el, list.map(n => h('option', { value: n }, String(n))));
            }
            el.value = String(value);
        };
        options(layer, layers, view.layer);
        options(head, heads, view.head);
        maps = await listOf(`attn/map/${view.layer}/${view.head}`);
        slider.max = String(Math.max(0, maps.length - 1));
        slider.disabled = maps.length < 2;
        const at = view.at === null ? maps.length - 1 : maps.findLastIndex(m => m.step <= /** @type {number} */ (view.at));
        slider.value = String(Math.max(0, at));
        await drawMaps();
    }

    const current = () => maps[Number(slider.value)];

    async function drawMaps() {
        const mine = ++drawn, now = current();
        if (!now)
            return;
        const id = `${view.layer}/${view.head}`, meta = now.meta, lead = meta.lead ?? 0;
        bare.hidden = lead === 0 || meta.between === 'class';
        bareBox.checked = view.bare;
        setText(stepWord, `${count(now.step)}${maps.length > 1 ? ` (${Number(slider.value) + 1} of ${maps.length})` : ''}`);
        slider.setAttribute('aria-valuetext', `step ${now.step}`);
        try {
            const same = async (/** @type {string} */ what) => (await listOf(`${what}/${id}`)).find(b => b.step === now.step);
            const [softRow, placeRow, countRow] = await Promise.all([same('attn/softmax'), same('attn/displacement'), same('logit/histogram')]);
            const [a, s, d, c] = await Promise.all([now, softRow, placeRow, countRow].map(numbersOf));
            const scales = await scalesAt();
            if (mine !== drawn || gone.aborted || !a)
                return;
            const [rows, columns] = meta.shape;
            const skip = view.bare && !meta.between ? lead : 0;
            const matrix = withoutLead({ rows, columns, values: a }, skip);
            const called = `layer ${view.layer}, head ${view.head} at step ${count(now.step)}`;
            const activation = page.resolved.attention?.activation ?? 'softmax';
            const show = (/** @type {Picture} */ picture, /** @type {import('./attention_figures.js').Matrix} */ m, /** @type {string} */ word) => picture.show({
                make: width => mapFigure(m, { title: `${word}, ${called}`, width: Math.min(width, 760), theme: themeNow(), between: meta.between }),
                says: mapSays(m, `${word} of ${called}, mean over ${meta.samples} samples`, meta, skip > 0),
                read: (row, column) => `Query ${tokenName(row, meta, skip > 0, true)} → key ${tokenName(column, meta, skip > 0)}: ${Number(m.values[row * m.columns + column]).toPrecision(4)}`,
                table: largest(m, meta, skip > 0),
            });
            setText(map.heading, activation === 'softmax' ? 'Attention (softmax)' : 'Attention');
            show(map, matrix, 'A');
            soft.el.hidden = !s;
            if (s)
                show(soft, withoutLead({ rows, columns, values: s }, skip), 'Softmax');
            where.el.hidden = !d || !placeRow;
            if (d && placeRow) {
                const [r, w] = placeRow.meta.shape, from = /** @type {[number, number]} */ (placeRow.meta.from), profile = { rows: r, columns: w, values: d };
                where.show({
                    make: width => displacementFigure(profile, from, { title: `Mean |A| by displacement, ${called}`, width: Math.min(width, 760), theme: themeNow(), ink: colour('s1'), causal: placeRow.meta.causal }),
                    says: displacementSays(profile, from),
                    read: r > 1 ? (row, column) => `${row + from[0]} rows down, ${column + from[1]} columns to the right: ${Number(d[row * w + column]).toPrecision(4)}` : undefined,
                });
            }
            phi.el.hidden = !c || !countRow;
            if (c && countRow) {
                const histogram = { counts: c, low: /** @type {number} */ (countRow.meta.lo), high: /** @type {number} */ (countRow.meta.hi) };
                const formula = await formulaOver(histogram);
                if (mine !== drawn || gone.aborted)
                    return;
                phi.show({
                    make: width => phiFigure(histogram, { formula, activation, degree: Number(page.resolved.attention?.degree ?? 3), scale: formula ? 1 : scales.value ?? 1, title: `φ over the logits of ${called}`, width: Math.min(width, 900), ink: colour('s2'), bar: colour('s1') }),
                    says: phiSays(histogram, Boolean(formula) || activation !== 'formula'),
                });
            }
            await drawFacts(now.step, scales.value, rows, columns);
        } catch (error) {
            if (!isAbort(error) && mine === drawn) {
                none.hidden = false;
                fill(none, failedBox(error, 'The matrices', () => { none.hidden = true; drawMaps(); }));
            }
        }
    }

    /** The largest entries by size. @param {import('./attention_figures.js').Matrix} m @param {any} meta @param {boolean} without */
    const largest = (m, meta, without) => [['Query', 'Key', 'Weight'], ...Array.from(m.values, (v, i) => [Math.abs(v), i]).sort((a, b) => b[0] - a[0]).slice(0, 25)
        .map(([, i]) => [tokenName(Math.floor(i / m.columns), meta, without, true), tokenName(i % m.columns, meta, without), Number(m.values[i]).toPrecision(4)])];

    /** The scale in force at the step that is shown: of the head, else of the layer, else a constant. */
    async function scalesAt() {
        const key = [`scale/c/${view.layer}/${view.head}`, `scale/c/${view.layer}`].find(k => page.series.some(s => s.key === k));
        return { value: key ? await valueAt(key, current()?.step ?? 0) : Number(page.resolved.attention?.c0 ?? 1) };
    }

    /**
     * The formula of the run over these logits, its scalars as they were at the step; null: its activation is no formula.
     * @param {{low: number, high: number}} histogram
     */
    async function formulaOver({ low, high }) {
        const { attention = {}, model = {} } = page.resolved;
        if (attention.activation !== 'formula' || !(low < high))
            return null;
        const found = page.series.map(s => /^formula\/([^/]+)\/\d+$/.exec(s.key)?.[1]).filter(name => name !== undefined);
        const params = Object.fromEntries(await Promise.all([...new Set(found)].map(async name => {
            const key = [`formula/${name}/${view.layer}/${view.head}`, `formula/${name}/${view.layer}`].find(k => page.series.some(s => s.key === k));
            const init = key ? await valueAt(key, current()?.step ?? 0) : null, form = attention.params?.[/** @type {string} */ (name)]?.form;
            return [name, { ...init === null ? {} : { init }, ...form ? { form } : {} }];
        })));
        const keys = tokensOf(page.resolved) ?? 64, heads = Number(model.heads) || 1;
        const n = typeof attention.n_for_scale === 'number' ? attention.n_for_scale : attention.n_for_scale === 'patches' && model.pool === 'cls' ? keys - 1 : keys;
        const { samples } = await checkFormula({ formula: attention.formula, params, n: Math.max(1, Math.round(n)), keys, heads, layers: Number(model.depth) || 1, width: Math.max(1, Math.round(Number(model.width) / heads) || 64), causal: model.arch === 'gpt', from: low, to: high, samples: 401 }, gone);
        return { name: attention.formula, samples };
    }

    /** Curves by key, as long as the run has no more steps. @type {Map<string, {count: number, points: [number, number][]}>} */
    const curves = new Map();

    /** @param {string[]} wanted */
    async function pointsOf(wanted) {
        const countOf = (/** @type {string} */ key) => page.series.find(s => s.key === key)?.count ?? 0;
        const missing = wanted.filter(key => countOf(key) && curves.get(key)?.count !== countOf(key));
        for (const curve of missing.length ? await getCurves(page.id, missing, { buckets: 600 }, gone) : [])
            curves.set(curve.key, { count: countOf(curve.key), points: curve.buckets.filter(b => b.mean !== null).map(b => [b.last, /** @type {number} */ (b.mean)]) });
        return wanted.map(key => curves.get(key)?.points ?? []);
    }

    /** @param {string} key @param {number} step */
    async function valueAt(key, step) {
        const [points] = await pointsOf([key]);
        return points.filter(([at]) => at <= step).at(-1)?.[1] ?? points[0]?.[1] ?? null;
    }

    /** @param {number} step @param {number | null} scale @param {number} n rows of the matrix @param {number} keys */
    async function drawFacts(step, scale, n, keys) {
        const id = `${view.layer}/${view.head}`, mine = drawn;
        const shown = [`attn/fro/${id}`, `attn/jac_fro/${id}`, `attn/entropy/${id}`, `attn/rank/${id}`, `logit/std/${id}`].filter(key => page.series.some(s => s.key === key));
        const values = await Promise.all(shown.map(key => valueAt(key, step)));
        if (mine !== drawn)
            return;
        const note = (/** @type {string} */ key) => (key.startsWith('attn/fro') ? `√N = ${Math.sqrt(n).toPrecision(3)}` : key.startsWith('attn/jac') ? `√N/2 = ${(Math.sqrt(n) / 2).toPrecision(3)}`
            : key.startsWith('attn/entropy') ? `log N = ${Math.log(keys).toPrecision(3)}` : key.startsWith('attn/rank') ? `of ${n}` : '');
        fill(facts, shown.map((key, i) => h('div', { class: 'tile', title: describe(parseKey(key).base).text }, h('dt', null, describe(parseKey(key).base).title), h('dd', null, values[i] === null ? '–' : present(describe(parseKey(key).base), values[i]), h('small', null, ` ${note(key)}`)))),
            page.resolved.attention?.activation === 'poly' && scale !== null ? h('div', { class: 'tile' }, h('dt', null, 'Scale c'), h('dd', null, String(Number(scale.toPrecision(4))))) : null);
    }

    async function drawStrips() {
        const n = maps[0] && maps[0].meta.between !== 'class' ? maps[0].meta.shape[0] : tokensOf(page.resolved);
        let any = false;
        for (const [i, { key, bound, name }] of strips.entries()) {
            const list = page.series.filter(s => {
                const parsed = parseKey(s.key);
                return parsed.base === key && parsed.layer !== null && parsed.head === null;
            }).map(s => ({ key: s.key, layer: /** @type {number} */ (parseKey(s.key).layer) })).sort((a, b) => a.layer - b.layer);
            norms[i].el.hidden = list.length === 0;
            if (list.length === 0)
                continue;
            any = true;
            const points = await pointsOf(list.map(k => k.key));
            const layers = list.map((k, j) => ({ layer: k.layer, points: points[j] }));
            const limit = bound && n ? bound(n) : undefined, { title } = describe(key);
            /** @type {ReturnType<typeof stripFigure> | null} */
            let last = null;
            norms[i].show({
                make: width => (last = stripFigure(layers, { title: `${title} by layer`, width: Math.min(width, 900), theme: themeNow(), bound: limit, boundName: limit ? name : '' })),
                says: stripSays(title, layers, limit, name),
                read: (row, column) => (last ? `Layer ${layers[row].layer}, step ${count(last.strip.steps[column])}: ${last.strip.values[row][column] === null ? 'no value' : Number(last.strip.values[row][column]).toPrecision(4)}${limit ? ` (${name} = ${limit.toPrecision(4)})` : ''}` : ''),
            });
        }
        normsTitle.hidden = !any;
        return any;
    }

    let first = true;

    async function refresh() {
        try {
            if (first)
                fill(page.place, h('div', { class: 'card' }, bones(8)));
            if (page.series.length === 0)
                page.series = await listSeries(page.id, gone);
            keys = await listBlobKeys(page.id, gone);
            if (gone.aborted)
                return;
            if (first || !all.isConnected)
                fill(page.place, all);
            first = false;
            const has = chosen().length > 0;
            bar.hidden = headTitle.hidden = facts.hidden = pictures.hidden = !has;
            none.hidden = has;
            if (!has)
                fill(none, noMaps());
            if (has)
                await choose();
            await drawStrips();
        } catch (error) {
            if (!isAbort(error)) {
                first = true;
                fill(page.place, h('div', { class: 'card' }, failedBox(error, 'Attention', () => refresh())));
            }
        }
    }

    function noMaps() {
        const asked = Boolean(page.resolved.diagnostics?.heatmaps);
        if (asked && page.run && isActive(page.run))
            return stateBox('empty', 'No matrices yet', 'The first ones appear when the run starts.');
        if (asked)
            return stateBox('empty', 'No matrices', 'This run ended before the first ones. The log may show why.', h('button', { type: 'button', on: { click: () => page.openTab('log') } }, 'Open the log'));
        return stateBox('empty', 'This run does not record attention matrices', 'A job keeps those of chosen layers and heads with, for example:',
            h('pre', { class: 'snippet-inline', tabindex: 0, 'aria-label': 'Example' }, '"diagnostics": {"heatmaps": {"layers": [2], "heads": [1], "every": 500}}'),
            h('a', { class: 'button', href: `#/submit?run=${encodeURIComponent(page.id)}` }, 'Edit and run again'));
    }

    return { refresh };
}
