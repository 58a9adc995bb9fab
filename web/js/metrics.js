// What each metric is: the catalogue that polyd serves, from which a chart takes its title, its unit and its tooltip, and the
// help page its list. Until it has come a metric is called by its key.

import { json } from './api.js';
import { bytes, number, percent, si } from './format.js';

/**
 * @typedef {object} Metric a row of /api/v1/metrics/catalogue
 * @property {string} key as the page names it: `attn/fro` for all layers and heads, `loss/eval` for all zero-shot sets,
 *     `system/gpu.n/power` for all ranks
 * @property {boolean} [named] one series for each name that a document gives
 * @property {string} title
 * @property {string} text one sentence
 * @property {string} source
 * @property {string | null} unit
 * @property {'more' | 'less' | 'neither'} better
 * @property {boolean} exact never smoothed: it has no noise
 * @property {'training' | 'layers' | 'gpus' | 'system' | 'positions'} group
 * @property {string | null} panel charts of one panel are overlaid
 * @property {string | null} series its name within the panel
 */

/** Every metric that polyd writes, in the order of a page. @type {Metric[]} */
export let metrics = [];

/** @type {Map<string, Metric>} */
let byKey = new Map();

/** @param {Metric[]} rows of the catalogue */
export function setMetrics(rows) {
    metrics = rows.map(row => ({ ...row, named: row.key.includes('<name>'), key: row.key.replace(/\/<(layer|name|position)>.*$/, '').replace('<rank>', 'n') }));
    byKey = new Map(metrics.map(metric => [metric.key, metric]));
}

/** The request under way. @type {Promise<void> | null} */
let coming = null;

/** Asks for the catalogue unless it is there. */
export function loadMetrics() {
    if (metrics.length > 0)
        return Promise.resolve();
    coming ??= json('/api/v1/metrics/catalogue').then(reply => setMetrics(reply.metrics)).finally(() => {
        coming = null;
    });
    return coming;
}

/**
 * Splits a series' key into its base name and, if it ends in numbers, its layer and head (both from 1):
 * `attn/fro/3` is the mean over the heads of layer 3, `scale/c/3/1` that layer's first head.
 * `system/gpu.2/power` is that of rank 2's device, `loss/eval/ptb` that of the zero-shot set ptb, `ppl/test_at/64` and
 * `ppl/eval_at/ptb/64` those of the positions up to 64 of the context.
 * @param {string} key
 * @returns {{base: string, layer: number | null, head: number | null, gpu?: number, set?: string, position?: number}}
 */
export function parseKey(key) {
    const gpu = /^system\/gpu\.(\d+)\/(\w+)$/.exec(key);
    if (gpu)
        return { base: `system/gpu.n/${gpu[2]}`, layer: null, head: null, gpu: Number(gpu[1]) };
    const at = /^(\w+\/\w+_at)(?:\/([^/]+))?\/(\d+)$/.exec(key);
    if (at)
        return { base: at[1], layer: null, head: null, set: at[2], position: Number(at[3]) };
    const zero = /^(\w+\/(?:eval|eval_ema))\/([^/]+)$/.exec(key);
    if (zero)
        return { base: zero[1], layer: null, head: null, set: zero[2] };
    const parts = key.split('/');
    /** @type {number[]} */
    const indexes = [];
    while (parts.length > 1 && indexes.length < 2) {
        const match = /^\d+$/.exec(parts[parts.length - 1]);
        if (!match)
            break;
        indexes.unshift(Number(match[0]));
        parts.pop();
    }
    return { base: parts.join('/'), layer: indexes[0] ?? null, head: indexes[1] ?? null };
}

/**
 * The description of a series. A metric that was logged over HTTP has its key as its name.
 * @param {string} base its key, or the common part of its keys
 * @returns {Metric}
 */
export function describe(base) {
    return byKey.get(base) ?? byKey.get(parseKey(base).base) ?? { key: base, title: base, unit: null, better: 'neither', exact: false, group: 'training', panel: null, series: null,
        text: 'A metric of this run’s own, logged over the API.', source: 'POST /api/v1/runs/{id}/metrics' };
}

/**
 * @typedef {object} Panel
 * @property {string} id
 * @property {string} title
 * @property {Metric} metric
 * @property {string[]} keys
 * @property {boolean} layered one series a layer (and head)
 */

/** Whether some keys are those of an equation, whose loss is no cross-entropy and so no number of nats. @param {string[]} keys */
const ofEquation = keys => keys.some(key => /^rmae\/|^loss\/residual$/.test(key));

/**
 * The panels of a run page, in order: known ones as in the table above, then the rest by name.
 * @param {string[]} keys
 * @returns {Panel[]}
 */
export function panels(keys) {
    /** @type {Map<string, Panel>} */
    const found = new Map(), equation = ofEquation(keys);
    for (const key of keys.slice().sort(compareKeys)) {
        const { base, layer } = parseKey(key), known = describe(base);
        const metric = equation && known.panel === 'loss' ? { ...known, unit: null } : known;
        const id = metric.panel ?? base;
        const panel = found.get(id) ?? { id, title: metric.title, metric, keys: [], layered: false };
        panel.keys.push(key);
        panel.layered ||= layer !== null;
        found.set(id, panel);
    }
    const rank = (/** @type {Panel} */ panel) => {
        const i = metrics.findIndex(metric => (metric.panel ?? metric.key) === panel.id);
        return i < 0 ? metrics.length : i;
    };
    return [...found.values()].sort((a, b) => rank(a) - rank(b) || a.id.localeCompare(b.id));
}

/**
 * @param {string} a
 * @param {string} b
 */
function compareKeys(a, b) {
    const x = parseKey(a);
    const y = parseKey(b);
    return Number(x.set !== undefined) - Number(y.set !== undefined) || x.base.localeCompare(y.base) || (x.set ?? '').localeCompare(y.set ?? '') || (x.position ?? -1) - (y.position ?? -1) || (x.gpu ?? -1) - (y.gpu ?? -1) || (x.layer ?? -1) - (y.layer ?? -1) || (x.head ?? -1) - (y.head ?? -1);
}

/**
 * The name of a series within its panel.
 * @param {string} key
 */
export function seriesName(key) {
    const { base, layer, head, gpu, set } = parseKey(key);
    if (gpu !== undefined)
        return `GPU ${gpu}`;
    if (layer !== null)
        return head !== null ? `head ${head}` : `layer ${layer}`;
    const name = describe(base).series ?? base;
    return set === undefined ? name : `${name}: ${set}`;
}

/** Values by position in the context as lines, each with the step of its evaluation. @param {{key: string, value: number | null, step: number | null}[]} series */
export function positionLines(series) {
    /** @type {Map<string, {name: string, step: number, points: [number, number][]}>} */
    const lines = new Map();
    for (const { key, value, step } of series) {
        const { position } = parseKey(key);
        if (position === undefined || value === null || !Number.isFinite(value) || describe(key).group !== 'positions')
            continue;
        const line = lines.get(seriesName(key)) ?? { name: seriesName(key), step: step ?? 0, points: [] };
        line.points.push([position, value]);
        lines.set(line.name, line);
    }
    return [...lines.values()].map(line => ({ ...line, points: line.points.sort((a, b) => a[0] - b[0]) }));
}

/**
 * A metric by itself, outside its panel: "Validation loss".
 * @param {string} key
 */
export function fullTitle(key) {
    const { series, title } = describe(key), { set, position } = parseKey(key);
    const words = series ? series.charAt(0).toUpperCase() + series.slice(1) + ` ${title.toLowerCase()}` : title;
    return words + (set === undefined ? '' : `, ${set}`) + (position === undefined ? '' : `, up to ${position}`);
}

/**
 * How each unit is written: next to the title of a chart, at a mark of its axis, and with a value.
 * @type {Record<string, {title: string, tick: (v: number) => string, value: (v: number) => string}>}
 */
const units = {
    share: { title: '', tick: v => `${+(v * 100).toPrecision(4)} %`, value: percent },
    bytes: { title: '', tick: bytes, value: bytes },
    nats: { title: 'nats', tick: number, value: number },
    ms: { title: 'ms', tick: number, value: v => `${number(v)} ms` },
    watts: { title: 'W', tick: number, value: v => `${number(v)} W` },
    celsius: { title: '°C', tick: number, value: v => `${number(v)} °C` },
    'flop/s': { title: 'FLOP/s', tick: v => si(v), value: v => si(v, 'FLOP/s') },
    'samples/s': { title: 'samples/s', tick: v => si(v), value: v => si(v, 'samples/s') },
    'tokens/s': { title: 'tok/s', tick: v => si(v), value: v => si(v, 'tok/s') },
};

/** @param {Metric} metric */
const unitOf = metric => (metric.unit ? units[metric.unit] : undefined);

/** @param {Metric} metric */
export const unitTitle = metric => unitOf(metric)?.title ?? '';

/**
 * A value at a mark of an axis, whose title has the unit.
 * @param {Metric} metric
 * @param {number} value
 */
export const tickText = (metric, value) => unitOf(metric)?.tick(value) ?? (Math.abs(value) >= 1e4 ? si(value) : number(value));

/**
 * A value in its metric's unit.
 * @param {Metric} metric
 * @param {number | null} value
 */
export function present(metric, value) {
    return value === null ? '–' : (Number.isFinite(value) && unitOf(metric)?.value(value)) || number(value);
}
