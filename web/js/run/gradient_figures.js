// Distributions of gradients as figures: sizes of entries in log-spaced bins, of one run or of two over each other. Pure.
import { count } from '../format.js';

/** @typedef {import('../chart/figure.js').Figure} Figure */

/**
 * @typedef {object} Histogram a blob of grad/histogram: counts of |g| between lo and hi, and statistics of all entries
 * @property {string} name of the run
 * @property {string} ink
 * @property {number[]} dash
 * @property {ArrayLike<number>} counts
 * @property {{lo: number, hi: number, count: number, zeros: number, rms: number | null, kurtosis: number | null, hill: number | null, ratio: number | null, top_share: number | null}} meta
 */

const power = (/** @type {number} */ k) => `1e${k < 0 ? '−' : ''}${Math.abs(k)}`;

/**
 * Lower edge of bin i.
 * @param {Histogram['meta']} meta
 * @param {number} n bins
 * @param {number} i
 */
export const edge = ({ lo, hi }, n, i) => lo * (hi / lo) ** (i / n);

/**
 * The bins that hold entries, of all histograms together.
 * @param {Histogram[]} list
 * @returns {[number, number]}
 */
export function span(list) {
    let first = Infinity, last = -Infinity;
    for (const { counts } of list)
        for (let i = 0; i < counts.length; i++)
            if (counts[i] > 0) {
                first = Math.min(first, i);
                last = Math.max(last, i + 1);
            }
    return first < last ? [first, last] : [0, list[0]?.counts.length ?? 1];
}

/**
 * @param {Histogram[]} list
 * @param {{title: string, width: number, log: boolean}} how
 * @returns {Figure}
 */
export function gradientFigure(list, { title, width, log }) {
    const n = list[0].counts.length, [first, last] = span(list), { meta } = list[0];
    const share = (/** @type {Histogram} */ h, /** @type {number} */ i) => h.counts[i] / h.meta.count;
    const most = Math.max(...list.map(h => Math.max(...Array.from(h.counts, (_, i) => share(h, i)))), 1e-12);
    const least = Math.min(...list.flatMap(h => Array.from(h.counts, (_, i) => share(h, i)).filter(v => v > 0)), most);
    const low = log ? 10 ** Math.floor(Math.log10(least)) : 0, high = log ? 10 ** Math.ceil(Math.log10(most * 1.0001)) : most * 1.06;
    const height = (/** @type {number} */ v) => (log ? (v > 0 ? Math.log(v / low) / Math.log(high / low) : 0) : v / high);
    const from = Math.floor(Math.log10(edge(meta, n, first)) + 1e-9), to = Math.ceil(Math.log10(edge(meta, n, last)) - 1e-9);
    const decades = Array.from({ length: to - from + 1 }, (_, i) => from + i), every = Math.ceil(decades.length / Math.max(3, Math.floor(width / 90)));
    const marks = log ? Array.from({ length: Math.round(Math.log10(high / low)) + 1 }, (_, i) => low * 10 ** i) : [0, .25, .5, .75, 1].map(t => t * most);
    return {
        title, width, height: 230,
        x: { title: '|∂L/∂W|', low: 10 ** from, high: 10 ** Math.max(to, from + 1), log: true, ticks: decades.filter((_, i) => i % every === 0).map(k => ({ at: 10 ** k, word: power(k) })) },
        y: { title: 'share of entries', low, high, log, ticks: marks.map(at => ({ at, word: log ? power(Math.round(Math.log10(at))) : `${(at * 100).toPrecision(2)} %` })) },
        bars: list.flatMap(h => Array.from({ length: last - first }, (_, k) => ({ from: edge(meta, n, first + k), to: edge(meta, n, first + k + 1), share: height(share(h, first + k)), ink: h.ink, alpha: .3 })).filter(b => b.share > 0)),
        lines: list.map(h => ({ name: h.name, ink: h.ink, dash: h.dash, width: 1.6, points: Array.from({ length: last - first }, (_, k) => /** @type {[number, number][]} */ ([[edge(meta, n, first + k), share(h, first + k)], [edge(meta, n, first + k + 1), share(h, first + k)]])).flat().map(([x, y]) => /** @type {[number, number | null]} */ ([x, log && y <= 0 ? null : y])) })),
        rows: [['from', 'to', ...list.map(h => `share ${h.name}`)], ...Array.from({ length: last - first }, (_, k) => [edge(meta, n, first + k), edge(meta, n, first + k + 1), ...list.map(h => share(h, first + k))].map(v => String(Number(v.toPrecision(8)))))],
    };
}

const short = (/** @type {number | null} */ v) => (v === null ? 'none' : Math.abs(v) >= 1e4 || (v !== 0 && Math.abs(v) < 1e-3) ? v.toExponential(1).replace('e+', 'e').replace('-', '−') : String(Number(v.toPrecision(3))));

/**
 * What the distributions say: the statistics that a common factor does not change.
 * @param {Histogram[]} list
 */
export const gradientSays = list => list.map(({ name, meta }) => `${name}: ${count(meta.count)} entries, root mean square ${short(meta.rms)}; the 99.9 % quantile is ${short(meta.ratio)} times the median, kurtosis ${short(meta.kurtosis)}, tail index ${short(meta.hill)}, `
    + `the largest 1 % have ${meta.top_share === null ? 'none' : `${(meta.top_share * 100).toPrecision(3)} %`} of the squared norm.`).join(' ');
