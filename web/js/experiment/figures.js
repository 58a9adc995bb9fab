// The papers' pictures of several runs as figures: curves, results against a setting, memory, tables as cells, and a paper's
// values next to the measured ones. Pure functions of what the API answered.
import { sequential } from '../chart/colours.js';
import { fittingTicks, linearTicks, logTicks, reach, tickMarks } from '../chart/ticks.js';
import { bytes, number } from '../format.js';

/** @typedef {import('../chart/figure.js').Figure} Figure */
/** @typedef {(i: number) => [string, number[]]} Inks */
/** @typedef {{name: string, points: {x: number, n: number, mean: number | null, sd: number | null}[], target?: number | null, of?: number}} Curve `of`: combinations of which it is the best */

const finite = (/** @type {unknown} */ v) => typeof v === 'number' && Number.isFinite(v);
/** A title that names the metric, and so the part of the data. @param {string} title @param {string} metric */
const titled = (title, metric) => (metric ? `${title} (${metric})` : title);
const shapes = ['circle', 'square', 'triangle', 'diamond', 'cross', 'bar'];

/**
 * Means over seeds against the step, with a band of one deviation. What a paper's line ended at is dotted in its colour, where it
 * lies within reach.
 * @param {Curve[]} curves
 * @param {{title: string, width: number, inks: Inks, say: (v: number) => string, metric?: string, log?: boolean, level?: {at: number, word: string} | null}} how `metric`: its key, which says the part of the data, is in the title of what is saved; `level`: a bound, drawn where it lies within reach
 * @returns {Figure}
 */
export function curvesFigure(curves, { title, width, inks, say, metric = '', log = false, level = null }) {
    const all = curves.flatMap(c => c.points.filter(p => finite(p.mean) && (!log || /** @type {number} */ (p.mean) > 0)));
    const ends = all.flatMap(({ mean, sd }) => (log ? [Number(mean)] : [Number(mean) - (sd ?? 0), Number(mean) + (sd ?? 0)]));
    const spread = Math.max(...ends) - Math.min(...ends);
    const near = (/** @type {number} */ v) => ends.length > 0 && (log ? v > 0 && v < Math.max(...ends) * 3 && v > Math.min(...ends) / 3 : v < Math.max(...ends) + spread && v > Math.min(...ends) - spread);
    const levels = level && near(level.at) ? [level] : [];
    const targets = curves.flatMap((c, i) => (finite(c.target) && near(Number(c.target)) ? [{ at: Number(c.target), ink: inks(i)[0] }] : [])), reached = [...ends, ...levels.map(l => l.at), ...targets.map(t => t.at)];
    const [low, high] = reach(Math.min(...reached), Math.max(...reached), log);
    const steps = all.map(p => p.x), from = Math.min(...steps, Infinity), to = Math.max(...steps, -Infinity);
    const [left, right] = from < to ? [Math.min(from, to * .02), to] : [0, Number.isFinite(to) && to > 0 ? to * 2 : 1];
    return {
        title: titled(title, metric), width, height: 270,
        x: { title: 'step', low: left, high: right, ticks: fittingTicks(left, right, Math.max(3, Math.floor(width / 110)), width - 82, number) },
        y: { title: '', low, high, log, ticks: tickMarks(log ? logTicks(low, high, 6) : linearTicks(low, high, 5), say) },
        lines: [...targets.map((t, i) => ({ name: i ? '' : 'paper, final value', unnamed: i > 0, ink: t.ink, dash: [1, 4], width: 1.6, points: /** @type {[number, number][]} */ ([[left, t.at], [right, t.at]]) })), ...curves.map((c, i) => ({ name: c.name, ink: inks(i)[0], dash: inks(i)[1], width: 1.8, points: c.points.map(p => /** @type {[number, number | null]} */ ([p.x, finite(p.mean) ? p.mean : null])),
            band: log ? undefined : c.points.filter(p => finite(p.mean) && finite(p.sd)).map(p => /** @type {[number, number, number]} */ ([p.x, Number(p.mean) - Number(p.sd), Number(p.mean) + Number(p.sd)])) }))],
        levels,
        rows: [['line', 'step', 'mean', 'sd', 'n', 'metric'], ...curves.flatMap(c => c.points.map(p => [c.name, p.x, p.mean ?? '', p.sd ?? '', p.n, metric].map(String)))],
    };
}

/**
 * The last value of each line in words.
 * @param {string} what
 * @param {Curve[]} curves
 * @param {(v: number) => string} say
 */
export function curvesSay(what, curves, say) {
    const last = curves.map(c => ({ name: c.name, at: c.points.filter(p => finite(p.mean)).at(-1), target: c.target, of: c.of ?? 1 }));
    const there = last.filter(c => c.at);
    if (there.length === 0)
        return `${what}: no values yet.`;
    return `${what}, ${there.length} line${there.length === 1 ? '' : 's'}: ${there.map(({ name, at, target, of }) => `${name}${of > 1 ? ` (best of ${of})` : ''} ends at ${say(Number(at?.mean))}${at?.sd ? ` ± ${say(at.sd)}` : ''} (step ${at?.x}, ${at?.n} run${at?.n === 1 ? '' : 's'}${finite(target) ? `; paper: ${say(Number(target))}` : ''})`).join(', ')}.`;
}

/**
 * A result against a setting, one line for each value of the others.
 * @param {{name: string, marks: {x: number, y: number, sd: number | null, n: number, best?: boolean}[], rule?: {at: number, word: string}}[]} groups
 * @param {{title: string, width: number, inks: Inks, say: (v: number) => string, xTitle: string, metric?: string, log?: boolean, rules?: {at: number, word: string}[], level?: {at: number, word: string} | null}} how
 * @returns {Figure}
 */
export function againstFigure(groups, { title, width, inks, say, xTitle, metric = '', log = false, rules = [], level = null }) {
    const marks = groups.flatMap(g => g.marks), xs = marks.map(m => m.x), ends = [...marks.flatMap(m => [m.y - (m.sd ?? 0), m.y + (m.sd ?? 0)]), ...level ? [level.at] : []];
    const [low, high] = reach(Math.min(...ends), Math.max(...ends), false);
    const first = Math.min(...xs), last = Math.max(...xs), room = log ? (last / first) ** .04 || 2 : (last - first) * .04 || .5;
    const [left, right] = log ? [first / Math.max(room, 1.05), last * Math.max(room, 1.05)] : [first - room, last + room];
    const own = [...new Set(xs)].sort((a, b) => a - b), few = own.length <= Math.max(3, Math.floor(width / 70));
    return {
        title: titled(title, metric), width, height: 270,
        x: { title: log ? `${xTitle} (log)` : xTitle, low: left, high: right, log, ticks: tickMarks(few ? own : log ? logTicks(left, right, 6) : linearTicks(left, right, 6), number) },
        y: { title: '', low, high, ticks: tickMarks(linearTicks(low, high, 5), say) },
        lines: groups.map((g, i) => ({ name: groups.length > 1 ? g.name : '', ink: inks(i)[0], dash: inks(i)[1], width: 1.6, shape: shapes[i % shapes.length], points: g.marks.slice().sort((a, b) => a.x - b.x).map(m => /** @type {[number, number]} */ ([m.x, m.y])) })),
        marks: groups.flatMap((g, i) => g.marks.flatMap(m => [{ x: m.x, y: m.y, sd: m.sd, ink: inks(i)[0], shape: shapes[i % shapes.length], size: 4.5 },
            ...m.best ? [{ x: m.x, y: m.y, sd: null, ink: inks(i)[0], shape: 'circle', size: 10, hollow: true }] : []])),
        rules: rules.filter(r => r.at >= left && r.at <= right), levels: level ? [level] : [],
        rows: [['line', xTitle, 'mean', 'sd', 'n', 'best', 'metric'], ...groups.flatMap(g => g.marks.map(m => [g.name, m.x, m.y, m.sd ?? '', m.n, m.best ? 'best' : '', metric].map(String)))],
    };
}

/**
 * The best of each line in words.
 * @param {string} what
 * @param {Parameters<typeof againstFigure>[0]} groups
 * @param {{say: (v: number) => string, xTitle: string, more: boolean}} how `more`: larger is better
 */
export function againstSays(what, groups, { say, xTitle, more }) {
    const full = groups.filter(g => g.marks.length > 0);
    if (full.length === 0)
        return `${what}: no values yet.`;
    return `${what}: ${full.map(g => {
        const best = g.marks.reduce((a, b) => ((more ? b.y > a.y : b.y < a.y) ? b : a));
        return `${g.name ? `${g.name}: ` : ''}best at ${xTitle} ${number(best.x)} with ${say(best.y)}`;
    }).join('; ')}.`;
}

/** Names to the left, a scale to the right: the frame of pictures whose rows are things. @param {number} width @param {string[]} names */
const leftOf = (width, names) => Math.min(Math.round(width * .42), 24 + 6.4 * Math.max(...names.map(n => n.length), 4));
const cut = (/** @type {string} */ text, /** @type {number} */ room) => (text.length * 6.4 > room ? `${text.slice(0, Math.max(3, Math.floor(room / 6.4) - 1))}…` : text);
const blank = { title: '', low: 0, high: 1, ticks: [] };

/** @typedef {{name: string, parts: Record<string, number>, measured: {word: string, size: number}[]}} Memory bytes by category as planned, and what was measured */

/** Categories of a plan, in the order in which they are stacked. */
export const categories = [['weights', 'Weights'], ['master', 'Master weights'], ['gradients', 'Gradients'], ['moment1', 'First moment'], ['moment2', 'Second moment'], ['ema', 'Average of weights'],
    ['activations', 'Activations'], ['workspace', 'Workspace'], ['inputs', 'Inputs'], ['cache', 'Cache']];

/**
 * Planned bytes by category as stacked bars, and below each what was measured.
 * @param {Memory[]} list
 * @param {{title: string, width: number, inks: Inks}} how
 * @returns {Figure}
 */
export function memoryFigure(list, { title, width, inks }) {
    const used = categories.filter(([id]) => list.some(m => m.parts[id] > 0));
    const total = (/** @type {Memory} */ m) => used.reduce((sum, [id]) => sum + (m.parts[id] ?? 0), 0);
    const most = Math.max(...list.flatMap(m => [total(m), ...m.measured.map(x => x.size)]), 1);
    const ROW = 24, bars = list.flatMap(m => [{ name: m.name, bold: true, m, size: total(m) }, ...m.measured.map(x => ({ name: x.word, bold: false, m: null, size: x.size }))]);
    const columns = Math.max(1, Math.floor((width - 24) / 150)), legend = Math.ceil(used.length / columns) * 18;
    const height = legend + bars.length * ROW + list.length * 12 + 18;
    return {
        title, width, height, x: blank, y: blank, lines: [],
        rows: [['configuration', 'what', 'bytes'], ...list.flatMap(m => [...used.map(([id, word]) => [m.name, word, String(m.parts[id] ?? 0)]), [m.name, 'planned, all', String(total(m))], ...m.measured.map(x => [m.name, x.word, String(x.size)])])],
        drawing: (painter, ink, top) => {
            used.forEach(([, word], i) => {
                const x = 12 + (i % columns) * 150, y = top + 4 + 18 * Math.floor(i / columns);
                painter.boxes([[x, y, 11, 11]], inks(i)[0]);
                painter.text(x + 17, y + 10, word, { size: 11, ink: ink.text });
            });
            const left = leftOf(width, bars.map(b => b.name)), right = width - 78;
            let y = top + legend + 14;
            for (const bar of bars) {
                painter.text(left - 8, y + 13, cut(bar.name, left - 14), { size: 11, ink: bar.bold ? ink.text : ink.muted, anchor: 'end', bold: bar.bold });
                let x = left;
                if (bar.m)
                    used.forEach(([id], i) => {
                        const w = (bar.m?.parts[id] ?? 0) / most * (right - left);
                        if (w > 0)
                            painter.boxes([[x, y, w, ROW - 7]], inks(i)[0]);
                        x += w;
                    });
                else {
                    x += bar.size / most * (right - left);
                    painter.path([[left, y + 3], [x, y + 3], [x, y + ROW - 10], [left, y + ROW - 10]], { stroke: ink.text, width: 1 }, true);
                }
                painter.text(x + 6, y + 13, bytes(bar.size), { size: 11, ink: ink.text });
                y += ROW + (bar === bars[bars.length - 1] || bars[bars.indexOf(bar) + 1]?.bold ? 12 : 0);
            }
        },
    };
}

/** @param {Memory[]} list */
export const memorySays = list => list.map(m => `${m.name}: planned ${categories.filter(([id]) => m.parts[id] > 0).map(([id, word]) => `${word.toLowerCase()} ${bytes(m.parts[id])}`).join(', ')}${m.measured.length ? `; ${m.measured.map(x => `${x.word} ${bytes(x.size)}`).join(', ')}` : ''}.`).join(' ');

/** @typedef {{row: string, column: string, value: number | null, sd: number | null, n: number}} Cell */

/**
 * A result for two groups of settings, as cells; turned where it would be too wide.
 * @param {Cell[]} cells
 * @param {{title: string, width: number, theme: 'light' | 'dark', say: (v: number) => string, metric?: string}} how
 * @returns {Figure & {names: {rows: string[], columns: string[]}}}
 */
export function gridFigure(cells, { title, width, theme, say, metric = '' }) {
    let rows = [...new Set(cells.map(c => c.row))], columns = [...new Set(cells.map(c => c.column))];
    const turned = columns.length > rows.length && (width - leftOf(width, rows)) / columns.length < 60;
    if (turned)
        [rows, columns] = [columns, rows];
    const values = cells.map(c => c.value).filter(finite).map(Number), low = Math.min(...values), high = Math.max(...values);
    const ROW = 40;
    return {
        title: titled(title, metric), width, height: rows.length * ROW + 74, x: blank, y: blank, lines: [], names: { rows, columns },
        rows: [['row', 'column', 'mean', 'sd', 'n', 'metric'], ...cells.map(c => [c.row, c.column, c.value ?? '', c.sd ?? '', c.n, metric].map(String))],
        drawing: (painter, ink, top) => {
            const left = leftOf(width, rows), wide = (width - 12 - left) / columns.length;
            columns.forEach((name, j) => name.split(' ').slice(0, 4).forEach((word, k) => painter.text(left + (j + .5) * wide, top + 10 + 13 * k, cut(word, wide), { size: 11, ink: ink.muted, anchor: 'middle' })));
            rows.forEach((name, i) => {
                const y = top + 58 + i * ROW;
                painter.text(left - 8, y + ROW / 2 + 4, cut(name, left - 14), { size: 11, ink: ink.text, anchor: 'end' });
                columns.forEach((column, j) => {
                    const cell = cells.find(c => (turned ? c.column : c.row) === name && (turned ? c.row : c.column) === column);
                    if (!cell || !finite(cell.value)) {
                        painter.text(left + (j + .5) * wide, y + ROW / 2 + 4, '–', { size: 11, ink: ink.muted, anchor: 'middle' });
                        return;
                    }
                    const share = high > low ? (Number(cell.value) - low) / (high - low) : .5;
                    painter.boxes([[left + j * wide + 1, y + 1, wide - 2, ROW - 2]], sequential(.08 + .84 * share, theme));
                    painter.text(left + (j + .5) * wide, y + ROW / 2 + 4, cut(say(Number(cell.value)), wide + 12), { size: 11, ink: (theme === 'light' ? share > .5 : share < .55) ? '#ffffff' : '#111111', anchor: 'middle', bold: true });
                });
            });
        },
    };
}

/**
 * @param {string} what
 * @param {Cell[]} cells
 * @param {(v: number) => string} say
 */
export function gridSays(what, cells, say) {
    const there = cells.filter(c => finite(c.value)).sort((a, b) => Number(a.value) - Number(b.value));
    if (there.length === 0)
        return `${what}: no values yet.`;
    const low = there[0], high = there[there.length - 1];
    return `${what}: from ${say(Number(low.value))} (${low.row}, ${low.column}) to ${say(Number(high.value))} (${high.row}, ${high.column}), ${there.length} of ${cells.length} combinations.`;
}

/** A row of a paper's table with our number and the differences; those from the first row are null in the first. @typedef {{name: string, paper: number | null, here: number | null, sd: number | null, n: number, of: number, here_less_paper: number | null, paper_less_first: number | null, here_less_first: number | null}} Line */

/** The differences from the first row, whose own are 0. @param {Line[]} lines */
const fromFirst = lines => lines.map((l, i) => (i ? { paper: l.paper_less_first, here: l.here_less_first } : { paper: l.paper === null ? null : 0, here: l.here === null ? null : 0 }));

/**
 * Differences from the first row: the paper's hollow, ours filled.
 * @param {Line[]} lines
 * @param {{title: string, width: number, inks: Inks, unit: string, metric: string}} how
 * @returns {Figure}
 */
export function targetFigure(lines, { title, width, inks, unit, metric }) {
    const apart = fromFirst(lines), ends = apart.flatMap((d, i) => [d.paper, d.here, ...d.here === null ? [] : [d.here - (lines[i].sd ?? 0), d.here + (lines[i].sd ?? 0)]]).filter(finite).map(Number);
    const [low, high] = reach(Math.min(0, ...ends), Math.max(0, ...ends), false), ROW = 26;
    const say = (/** @type {number} */ v) => `${v > 0 ? '+' : ''}${number(v)}`;
    return {
        title: titled(title, metric), width, height: lines.length * ROW + 74, x: blank, y: blank, lines: [],
        rows: [['row', `paper${unit && `, ${unit}`}`, `here${unit && `, ${unit}`}`, 'sd', 'n', 'paper, difference from the first row', 'here, difference from the first row', 'here less paper', 'metric'],
            ...lines.map((l, i) => [l.name, l.paper, l.here, l.sd, l.n, apart[i].paper, apart[i].here, l.here_less_paper, metric].map(v => (v === null ? '' : typeof v === 'number' ? String(Number(v.toPrecision(10))) : v)))],
        drawing: (painter, ink, top) => {
            const left = leftOf(width, lines.map(l => l.name)), right = width - 24, foot = top + 26 + lines.length * ROW;
            const px = (/** @type {number} */ v) => left + (v - low) / (high - low || 1) * (right - left);
            const mark = (/** @type {number} */ x, /** @type {number} */ y, /** @type {boolean} */ ours) => {
                const r = 5, shape = ours ? Array.from({ length: 20 }, (_, i) => /** @type {[number, number]} */ ([x + r * Math.cos(i * Math.PI / 10), y + r * Math.sin(i * Math.PI / 10)])) : /** @type {[number, number][]} */ ([[x, y - 7], [x + 7, y], [x, y + 7], [x - 7, y]]);
                painter.path(shape, ours ? { fill: inks(0)[0] } : { stroke: inks(1)[0], width: 1.8 }, true);
            };
            mark(20, top + 6, false);
            painter.text(32, top + 10, 'paper', { size: 11, ink: ink.text });
            mark(86, top + 6, true);
            painter.text(98, top + 10, 'here', { size: 11, ink: ink.text });
            for (const at of linearTicks(low, high, Math.max(2, Math.floor((right - left) / 70)))) {
                painter.path([[px(at), top + 22], [px(at), foot]], { stroke: at === 0 ? ink.muted : ink.grid, width: 1 });
                painter.text(px(at), foot + 15, say(at), { size: 11, ink: ink.muted, anchor: 'middle' });
            }
            painter.text((left + right) / 2, foot + 33, `difference from ${lines[0]?.name ?? ''}${unit && `, ${unit === '%' ? 'points' : unit}`}`, { size: 11, ink: ink.muted, anchor: 'middle' });
            lines.forEach((l, i) => {
                const y = top + 26 + i * ROW + ROW / 2, { paper, here } = apart[i];
                painter.text(left - 8, y + 4, cut(l.name, left - 14), { size: 11, ink: ink.text, anchor: 'end' });
                if (here !== null && l.sd)
                    painter.path([[px(here - l.sd), y], [px(here + l.sd), y]], { stroke: inks(0)[0], width: 1.4 });
                if (here !== null)
                    mark(px(here), y, true);
                if (paper !== null)
                    mark(px(paper), y, false);
            });
        },
    };
}

/** @param {string} what @param {Line[]} lines @param {string} unit */
export function targetSays(what, lines, unit) {
    const apart = fromFirst(lines), u = unit && (unit === '%' ? ' points' : ` ${unit}`);
    const say = (/** @type {number | null} */ v) => (v === null ? 'none' : `${v > 0 ? '+' : ''}${number(v)}${u}`);
    return `${what}, differences from ${lines[0]?.name ?? 'the first row'}: ${lines.slice(1).map((l, i) => `${l.name} paper ${say(apart[i + 1].paper)}, here ${say(apart[i + 1].here)}`).join('; ')}.`;
}
