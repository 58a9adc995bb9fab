// A formula of attention and its slope over logits, with the distribution of the start's logits beneath. Pure.
import { fittingTicks, linearTicks } from '../chart/ticks.js';
import { number } from '../format.js';

/** @typedef {import('../chart/figure.js').Figure} Figure */
/** @typedef {{s: number[], value: (number | null)[], slope: (number | null)[]}} Samples */
/** @typedef {{low: number, high: number, counts: number[]}} Logits */

/** A normal distribution of that deviation, as counts. @param {number} deviation @returns {Logits} */
export function normalLogits(deviation) {
    const n = 64, reach = 3.5 * deviation;
    return { low: -reach, high: reach, counts: Array.from({ length: n }, (_, i) => Math.exp(-.5 * ((i + .5) / n * 7 - 3.5) ** 2)) };
}

/**
 * Of lines that leave the plot far behind, the middle nine tenths decide how high it is.
 * @param {number[]} values
 */
function reachOf(values) {
    const sorted = [...values].sort((a, b) => a - b), at = (/** @type {number} */ share) => sorted[Math.round(share * (sorted.length - 1))] ?? 0;
    const low = at(0), high = at(1), inner = at(.95) - at(.05);
    const cut = inner > 0 && high - low > 12 * inner;
    const from = Math.min(0, cut ? at(.05) - inner : low), to = Math.max(0, cut ? at(.95) + inner : high);
    return to > from ? [from, to] : [from - .5, to + .5];
}

/**
 * @param {Samples} samples
 * @param {'value' | 'slope'} which
 * @param {Logits | null} logits
 * @param {{title: string, width: number, ink: string, bar: string}} how
 * @returns {Figure}
 */
export function formulaFigure(samples, which, logits, { title, width, ink, bar }) {
    const { s } = samples, line = samples[which], low = s[0], high = s[s.length - 1];
    const known = line.filter(v => v !== null).map(Number), [least, most] = reachOf(known), span = most - least;
    const clip = (/** @type {number | null} */ v) => (v === null ? null : Math.min(most + span, Math.max(least - span, v)));
    /** @type {import('../chart/figure.js').Bar[]} */
    const bars = [];
    if (logits) {
        const { counts } = logits, n = counts.length, top = Math.max(...counts, 1e-30), edge = (/** @type {number} */ i) => logits.low + (logits.high - logits.low) * i / n;
        counts.forEach((count, i) => {
            const from = Math.max(low, edge(i)), to = Math.min(high, edge(i + 1));
            if (from < to && count > 0)
                bars.push({ from, to, share: .42 * count / top, ink: bar, alpha: .4 });
        });
    }
    const mark = (/** @type {number} */ at) => ({ at, word: number(at) });
    return {
        title, width, height: 230,
        x: { title: 'logit s', low, high, ticks: fittingTicks(low, high, 6, width - 82, number) },
        y: { title: which === 'value' ? 'φ(s)' : 'φ′(s)', low: least - span * .05, high: most + span * .05, ticks: linearTicks(least, most, 5).map(mark) },
        bars, lines: [{ name: '', ink, dash: [], width: 2.2, points: s.map((x, i) => /** @type {[number, number | null]} */ ([x, clip(line[i])])) }],
        rows: [['s', which === 'value' ? 'phi' : 'slope'], ...s.map((x, i) => [x, line[i] ?? ''].map(String))],
    };
}

/**
 * @param {Samples} samples
 * @param {'value' | 'slope'} which
 */
export function formulaSays(samples, which) {
    const line = samples[which], { s } = samples, name = which === 'value' ? 'φ' : 'φ′';
    const gaps = line.filter(v => v === null).length, first = line.findIndex(v => v !== null), last = line.findLastIndex(v => v !== null);
    if (first < 0)
        return `${name} has no finite value between ${number(s[0])} and ${number(s[s.length - 1])}.`;
    return `${name} goes from ${number(line[first])} at ${number(s[first])} to ${number(line[last])} at ${number(s[last])}${gaps ? `; it has no finite value at ${gaps} of ${s.length} points` : ''}.`;
}
