// A plot that a run of kind check has stored, as a figure and in words; a criterion in words. Pure functions.
import { number } from '../format.js';
import { linearTicks, logTicks, reach, tickMarks } from './ticks.js';

/** @typedef {{name: string, form: 'points' | 'line' | 'bars', x: (number | null)[], y: (number | null)[], low: (number | null)[], high: (number | null)[]}} Series */
/** @typedef {{title: string, x: {title: string, log: boolean}, y: {title: string, log: boolean}, series: Series[]}} Plot */
/** @typedef {{what: string, seed: number | null, value: number | null, se: number | null, low: number | null, high: number | null, expected: number | null, accept_low: number | null, accept_high: number | null, pass: boolean | null}} Row */

const shapes = ['circle', 'square', 'triangle', 'diamond', 'cross', 'bar'];
const HEIGHT = 320;

/**
 * Places of a series that its axes can show.
 * @param {Plot} plot
 * @param {Series} s
 */
const shownOf = (plot, s) => s.x.map((x, i) => ({ x, y: s.y[i], low: s.low[i], high: s.high[i] }))
    .filter(p => p.x !== null && p.y !== null && !(plot.x.log && p.x <= 0) && !(plot.y.log && p.y <= 0)).map(p => /** @type {{x: number, y: number, low: number | null, high: number | null}} */ (p));

/**
 * The number of each series' ink: a bound or closed form that is named after a measured series ("p = 1, closed form") shares its ink.
 * @param {Plot} plot
 */
function inksOf(plot) {
    /** @type {number[]} */
    const inks = [];
    let fresh = 0;
    for (const s of plot.series) {
        const of = plot.series.findIndex((other, k) => k < inks.length && s.form === 'line' && s.name.startsWith(`${other.name},`));
        inks.push(of >= 0 ? inks[of] : fresh++);
    }
    return inks;
}

/**
 * A stored plot as a figure, which the page and every download draw alike. Lines are bounds and closed forms, marks what was measured, joined
 * where the plot has no lines.
 * @param {Plot} plot
 * @param {number} width
 * @param {(i: number) => [string, number[]]} ink colour and dash by number
 * @returns {import('../chart/figure.js').Figure | null} null: there is nothing to draw
 */
export function plotFigure(plot, width, ink) {
    const series = plot.series.map(s => ({ s, at: shownOf(plot, s) }));
    const points = series.flatMap(({ at }) => at);
    if (points.length === 0)
        return null;
    const bars = plot.series.some(s => s.form === 'bars'), joined = !plot.series.some(s => s.form === 'line'), inks = inksOf(plot);
    const [x0, x1] = reach(Math.min(...points.map(p => p.x)), Math.max(...points.map(p => p.x)), plot.x.log);
    const [y0, y1] = reach(bars ? 0 : Math.min(...points.map(p => p.y)), Math.max(...points.map(p => p.y)), plot.y.log);
    const lines = series.map(({ s, at }, i) => {
        const [stroke, dash] = ink(inks[i]);
        const step = at.length > 1 ? at[1].x - at[0].x : 1;
        const outline = s.form === 'bars' ? at.flatMap(p => /** @type {[number, number][]} */ ([[p.x - step / 2, 0], [p.x - step / 2, p.y], [p.x + step / 2, p.y], [p.x + step / 2, 0]])) : [];
        return { name: s.name, ink: stroke, dash: s.form === 'line' ? dash : [], width: s.form === 'points' ? 1 : 1.6, shape: s.form === 'points' ? shapes[i % shapes.length] : undefined,
            points: s.form === 'line' || (s.form === 'points' && joined) ? at.map(p => /** @type {[number, number]} */ ([p.x, p.y])) : outline };
    });
    const marks = series.flatMap(({ s, at }, i) => (s.form === 'points' ? at.map(p => ({ x: p.x, y: p.y, ink: ink(inks[i])[0], shape: shapes[i % shapes.length], size: 4, sd: p.high === null ? null : p.high - p.y })) : []));
    return { title: plot.title, width, height: HEIGHT,
        x: { title: plot.x.log ? `${plot.x.title} (log)` : plot.x.title, low: x0, high: x1, log: plot.x.log, ticks: tickMarks(plot.x.log ? logTicks(x0, x1) : linearTicks(x0, x1), number) },
        y: { title: plot.y.title, low: y0, high: y1, log: plot.y.log, ticks: tickMarks(plot.y.log ? logTicks(y0, y1) : linearTicks(y0, y1), number) },
        lines, marks,
        rows: [['series', plot.x.title, plot.y.title, 'low', 'high'], ...plot.series.flatMap(s => s.x.map((x, i) => [s.name, ...[x, s.y[i], s.low[i], s.high[i]].map(v => (v === null ? '' : String(v)))]))] };
}

/** The plot in words. @param {Plot} plot */
export function plotWords(plot) {
    const parts = plot.series.map(s => {
        const at = shownOf(plot, s);
        const first = at[0], last = at[at.length - 1];
        if (!first)
            return `${s.name}: no value`;
        return at.length === 1 ? `${s.name}: ${number(first.y)} at ${number(first.x)}` : `${s.name}: from ${number(first.y)} at ${number(first.x)} to ${number(last.y)} at ${number(last.x)}`;
    });
    return `${plot.y.title} against ${plot.x.title}. ${parts.join('; ')}.`;
}

/** A criterion in words. @param {Row} row */
export function criterion({ accept_low: low, accept_high: high, pass }) {
    if (pass === null)
        return '–';
    if (low === null)
        return `≤ ${number(high)}`;
    if (high === null)
        return `≥ ${number(low)}`;
    return number(low) === number(high) ? `= ${number(low)}` : `${number(low)} to ${number(high)}`;
}
