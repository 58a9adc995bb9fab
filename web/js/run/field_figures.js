// The solution of an equation as a figure: a map over place and time. Pure functions of stored or answered numbers.
import { scaleOf } from '../chart/colours.js';
import { linearTicks } from '../chart/ticks.js';

/** @typedef {import('../chart/figure.js').Figure} Figure */
/** @typedef {import('./attention_figures.js').Matrix} Matrix */

/**
 * What the rows, or the columns, of a matrix are: the first lies at `low`, the last at `high`.
 * @typedef {object} Axis
 * @property {string} name
 * @property {number} low
 * @property {number} high
 */

/** @typedef {{rows: Axis, columns: Axis}} Axes */

const MOST = 201; // cells of an axis that are drawn
const word = (/** @type {number} */ v) => (v === 0 ? '0' : Math.abs(v) >= 1e4 || Math.abs(v) < 1e-3 ? v.toExponential(1).replace('e+', 'e').replace('-', '−') : String(Number(v.toPrecision(3))).replace('-', '−'));

/** Where row or column i of n lies. @param {Axis} axis @param {number} i @param {number} n */
export const placeOf = (axis, i, n) => axis.low + (axis.high - axis.low) * (n > 1 ? i / (n - 1) : 0);

/**
 * A matrix with at most as many rows and columns as can be distinguished: evenly chosen ones, both ends included.
 * @param {Matrix} m
 * @returns {Matrix}
 */
export function thinned(m) {
    const rows = Math.min(m.rows, MOST), columns = Math.min(m.columns, MOST);
    if (rows === m.rows && columns === m.columns)
        return m;
    const at = (/** @type {number} */ i, /** @type {number} */ n, /** @type {number} */ of) => Math.round(i * (of - 1) / (n - 1));
    return { rows, columns, values: Float64Array.from({ length: rows * columns }, (_, i) => m.values[at(Math.floor(i / columns), rows, m.rows) * m.columns + at(i % columns, columns, m.columns)]) };
}

/** Least and largest of several matrices, so that one colour means one value in all of them. @param {Matrix[]} all */
export function rangeOf(all) {
    let low = Infinity, high = -Infinity;
    for (const { values } of all)
        for (let i = 0; i < values.length; i++)
            if (Number.isFinite(values[i])) {
                low = Math.min(low, values[i]);
                high = Math.max(high, values[i]);
            }
    return low <= high ? { low, high } : { low: 0, high: 1 };
}

/** Marks of an axis of cells. @param {Axis} axis @param {number} n */
const marks = (axis, n) => linearTicks(axis.low, axis.high, 6).filter(v => v >= axis.low && v <= axis.high)
    .map(v => ({ at: (axis.high > axis.low ? (v - axis.low) / (axis.high - axis.low) * (n - 1) : 0) + .5, word: word(v) }));

/**
 * A map: places across, times down from the first, as the reference implementation draws it.
 * @param {Matrix} m
 * @param {Axes} axes
 * @param {{title: string, name: string, width: number, theme: 'light' | 'dark', range?: {low?: number, high?: number}}} how
 * @returns {Figure}
 */
export function fieldFigure(m, axes, { title, name, width, theme, range }) {
    const scale = scaleOf(m.values, range);
    return {
        title, width, height: Math.round(Math.min(width - 146, 420) * .72) + 50,
        x: { title: axes.columns.name, low: 0, high: m.columns, ticks: marks(axes.columns, m.columns) },
        y: { title: axes.rows.name, low: m.rows, high: 0, ticks: marks(axes.rows, m.rows) },
        lines: [], cells: { rows: m.rows, columns: m.columns, colour: (row, column) => scale.colour(m.values[row * m.columns + column], theme) },
        key: { title: '', low: scale.low, high: scale.high, colour: v => scale.colour(v, theme), ticks: linearTicks(scale.low, scale.high, 5).map(at => ({ at, word: word(at) })), without: scale.without(theme) },
        rows: [[axes.rows.name, axes.columns.name, name], ...Array.from({ length: m.rows * m.columns }, (_, i) => [placeOf(axes.rows, Math.floor(i / m.columns), m.rows), placeOf(axes.columns, i % m.columns, m.columns), m.values[i]].map(String))],
    };
}

/**
 * @param {Matrix} m
 * @param {Axes} axes
 * @param {string} what "The solution at step 500"
 */
export function fieldSays(m, axes, what) {
    const all = Array.from(m.values), finite = all.filter(Number.isFinite).length, size = `${what}: ${m.rows} times by ${m.columns} places`;
    if (finite === 0)
        return `${size}; no value is finite.`;
    const { low, high } = rangeOf([m]), at = all.indexOf(high);
    return `${size}, from ${word(low)} to ${word(high)}; the largest at ${fieldPlace(m, axes, Math.floor(at / m.columns), at % m.columns)}${finite < all.length ? `; ${all.length - finite} of ${all.length} values not finite` : ''}.`;
}

/** "x = 3.14, t = 0.5". @param {Matrix} m @param {Axes} axes @param {number} row @param {number} column */
export const fieldPlace = (m, axes, row, column) => `${axes.columns.name} = ${word(placeOf(axes.columns, column, m.columns))}, ${axes.rows.name} = ${word(placeOf(axes.rows, row, m.rows))}`;
