// A chart of results: one mark a combination, with its deviation, against a swept value. Drawn as SVG, so that it scales
// and is found by the tabulator and by screen readers; the table below it holds the same numbers.
import { inkOf } from './chart.js';
import { outline } from './chart/figure.js';
import { distinctWords, linearTicks, logTicks, tickMarks } from './chart/ticks.js';
import { fill, h } from './dom.js';
import { number } from './format.js';
import { colour } from './theme.js';

const SVG = 'http://www.w3.org/2000/svg';
const shapes = ['circle', 'square', 'triangle', 'diamond', 'cross', 'ring', 'bar'];

/**
 * @param {string} tag
 * @param {Record<string, string | number>} props
 * @param {...(Node | string)} children
 */
function s(tag, props, ...children) {
    const el = document.createElementNS(SVG, tag);
    for (const [key, value] of Object.entries(props))
        el.setAttribute(key, String(value));
    el.append(...children);
    return el;
}

/**
 * @typedef {object} Mark
 * @property {unknown} x the swept value: a number, or a word
 * @property {number} y
 * @property {number | null} sd
 * @property {[number, number] | null} [range] drawn instead of the deviation
 * @property {number} [n] runs behind it
 * @property {string} text read aloud and shown on hover
 * @property {boolean} [best]
 * @property {string} [href]
 */

/**
 * `fit`: a line through two points or more, drawn instead of one that joins the marks.
 * @typedef {{name: string, marks: Mark[], fit?: [number, number][] | null}} Group
 */

/** A range of x that is shaded. @typedef {{kind: 'usable' | 'interval', from: number, to: number, word: string}} Shade */
/** The colour of each by name in css/base.css. */
const shadeInk = { usable: 'good', interval: 'accent' };

/**
 * @param {string} shape
 * @param {number} x
 * @param {number} y
 * @param {number} r
 */
const markPath = (shape, x, y, r) => outline(shape, x, y, r).map(({ points, closed }) => `M${points.map(([px, py]) => `${+px.toFixed(2)} ${+py.toFixed(2)}`).join('L')}${closed ? 'Z' : ''}`).join('');

/**
 * @param {HTMLElement} place
 * @param {object} options
 * @param {Group[]} options.groups
 * @param {string} options.title
 * @param {string} options.xTitle
 * @param {(y: number) => string} options.format
 * @param {{at: number, word: string} | null} [options.rule] a vertical line
 * @param {boolean} [options.log] whether x is logarithmic; if absent, where it spans more than two decades
 * @param {boolean} [options.yLog]
 * @param {Shade[]} [options.shades]
 * @param {{x: number, text: string}[]} [options.gone] places without a value, marked at the lower edge
 * @param {string} [options.yTitle] heads the values in the CSV
 * @param {number} [options.height]
 * @returns {() => import('./chart/figure.js').Figure} the same for print and as numbers
 */
export function scatter(place, { groups, title, xTitle, format, rule = null, log: asked, yLog = false, shades = [], gone = [], yTitle = 'mean', height = 300 }) {
    const width = Math.max(240, place.clientWidth);
    const box = { left: 62, right: width - 18, top: 14, bottom: height - 44 };
    const marks = groups.flatMap(group => group.marks);
    const numeric = marks.every(m => typeof m.x === 'number');
    const xs = numeric ? [...new Set([...marks, ...gone].map(m => /** @type {number} */ (m.x)))].sort((a, b) => a - b) : [...new Set(marks.map(m => String(m.x)))];
    // Values that span more than two decades were spaced by ratio.
    const first = Number(xs[0]);
    const last = Number(xs[xs.length - 1]);
    const log = numeric && first > 0 && (asked ?? last / first > 100);
    const place_ = numeric
        ? (/** @type {unknown} */ x) => {
            const v = log ? Math.log(Number(x) / first) / Math.log(last / first) : (Number(x) - first) / (last - first || 1);
            const room = 16;
            return xs.length === 1 ? (box.left + box.right) / 2 : box.left + room + v * (box.right - box.left - 2 * room);
        }
        : (/** @type {unknown} */ x) => box.left + (xs.indexOf(/** @type {never} */ (String(x))) + .5) * (box.right - box.left) / xs.length;
    const spanOf = (/** @type {Mark} */ m) => m.range ?? [m.y - (m.sd ?? 0), m.y + (m.sd ?? 0)];
    const ends = [...marks.map(spanOf), ...groups.flatMap(group => (group.fit ?? []).map(([, v]) => [v, v]))];
    let low = Math.min(...ends.map(([a]) => a));
    let high = Math.max(...ends.map(([, b]) => b));
    if (yLog) {
        const factor = high / low > 1.01 ? (high / low) ** .08 : 2;
        low /= factor;
        high *= factor;
    } else {
        const room = (high - low) * .08 || Math.abs(high) * .1 || 1;
        low -= room;
        high += room;
    }
    const yTicks = yLog ? logTicks(low, high, 6) : linearTicks(low, high);
    const y = (/** @type {number} */ v) => box.bottom - (yLog ? Math.log(v / low) / Math.log(high / low) : (v - low) / (high - low)) * (box.bottom - box.top);
    const svg = s('svg', { viewBox: `0 0 ${width} ${height}`, width, height, class: 'scatter', role: 'group', 'aria-label': title });
    for (const { kind, from, to, word } of shades) {
        const a = Math.max(box.left, place_(from) - 5), b = Math.min(box.right, place_(to) + 5);
        svg.append(s('rect', { class: kind, x: a, y: box.top, width: b - a, height: box.bottom - box.top }, s('title', {}, word)));
    }
    const yWords = distinctWords(yTicks, format);
    for (const [i, t] of yTicks.entries()) {
        svg.append(s('path', { class: 'rule', d: `M${box.left} ${y(t)}H${box.right}` }),
            s('text', { x: box.left - 8, y: y(t) + 4, 'text-anchor': 'end' }, yWords[i]));
    }
    /** @type {number[]} */
    let shown = [];
    if (log && !(asked && xs.length <= 9))
        for (let k = Math.ceil(Math.log10(first) - 1e-9); 10 ** k <= last * 1.0001; k++)
            shown.push(10 ** k);
    else if (numeric)
        shown = xs.length <= 9 ? /** @type {number[]} */ (xs) : linearTicks(first, last, 6);
    const gap = (box.right - box.left) / 64;
    while (shown.length > gap)
        shown = shown.filter((_, i) => i % 2 === 0);
    // Labels have the space between two of them: what does not fit is cut, and the mark itself has the whole.
    const most = Math.max(4, Math.floor((box.right - box.left) / xs.length / 6.5)), cut = (/** @type {string} */ word) => (word.length > most ? `${word.slice(0, most - 1)}…` : word);
    for (const t of numeric ? shown : xs)
        svg.append(s('text', { x: place_(t), y: box.bottom + 18, 'text-anchor': 'middle' }, typeof t === 'number' ? number(t) : cut(String(t))));
    svg.append(s('text', { x: (box.left + box.right) / 2, y: height - 6, 'text-anchor': 'middle', class: 'axis-title' }, log ? `${xTitle} (log)` : xTitle));
    if (rule && numeric && rule.at >= first && rule.at <= last)
        svg.append(s('path', { class: 'mark-rule', d: `M${place_(rule.at)} ${box.top}V${box.bottom}` }),
            s('text', { x: Math.min(Math.max(place_(rule.at), box.left + 3 * rule.word.length), box.right - 3 * rule.word.length), y: box.top - 3, 'text-anchor': 'middle' }, rule.word)); // above the plot, where no mark is
    groups.forEach((group, i) => {
        const [ink, dash] = inkOf(i);
        const own = group.marks.slice().sort((a, b) => (numeric ? Number(a.x) - Number(b.x) : 0));
        if (group.fit)
            svg.append(s('path', { class: 'fit', d: group.fit.map(([fx, fy], k) => `${k ? 'L' : 'M'}${place_(fx)} ${y(fy)}`).join(''), fill: 'none', stroke: ink, 'stroke-width': 1.5, 'stroke-dasharray': dash.join(' ') || 'none' }));
        else if (own.length > 1 && numeric && group.fit === undefined)
            svg.append(s('path', { d: own.map((m, k) => `${k ? 'L' : 'M'}${place_(m.x)} ${y(m.y)}`).join(''), fill: 'none', stroke: ink, 'stroke-width': 1.5, 'stroke-dasharray': dash.join(' ') || 'none', opacity: .75 }));
        for (const m of own) {
            const x = place_(m.x);
            const [under, over] = spanOf(m);
            if (over > under)
                svg.append(s('path', { d: `M${x} ${y(under)}V${y(over)}M${x - 5} ${y(under)}h10M${x - 5} ${y(over)}h10`, stroke: ink, 'stroke-width': 1.4, fill: 'none' }));
            const shape = shapes[i % shapes.length];
            const mark = s('path', { d: markPath(shape, x, y(m.y), 5), fill: shape === 'ring' || shape === 'cross' ? 'transparent' : ink, stroke: ink, 'stroke-width': 2 });
            const parts = [s('title', {}, m.text), ...(m.best ? [s('circle', { cx: x, cy: y(m.y), r: 10, fill: 'none', stroke: ink, 'stroke-width': 1.5 })] : []), mark,
                s('circle', { cx: x, cy: y(m.y), r: 12, fill: 'transparent' })];
            svg.append(m.href ? s('a', { href: m.href, 'aria-label': m.text }, ...parts) : s('g', { role: 'img', 'aria-label': m.text }, ...parts));
        }
    });
    for (const { x, text } of gone)
        svg.append(s('g', { role: 'img', 'aria-label': text, class: 'gone' }, s('title', {}, text), s('path', { d: markPath('cross', place_(x), box.bottom - 8, 4) })));
    fill(place, svg);
    if (groups.length > 1)
        place.append(h('div', { class: 'legend' }, groups.map((group, i) => {
            const [ink, dash] = inkOf(i);
            const swatch = s('svg', { viewBox: '0 0 22 12', width: 22, height: 12, 'aria-hidden': 'true', class: 'swatch' },
                s('path', { d: 'M0 6H22', stroke: ink, 'stroke-width': 1.5, 'stroke-dasharray': dash.join(' ') || 'none' }),
                s('path', { d: markPath(shapes[i % shapes.length], 11, 6, 4), fill: ink, stroke: ink }));
            return h('span', { class: 'row small' }, swatch, group.name);
        })));

    return () => {
        // Words stand at whole numbers, ratios as logarithms do.
        const span = shades.map(({ kind, from: a, to: b, word }) => ({ name: word, ink: colour(shadeInk[kind]), dash: [], points: [], band: /** @type {[number, number, number][]} */ ([[a, low, high], [b, low, high]]) }));
        const at = (/** @type {unknown} */ x) => (numeric ? Number(x) : xs.indexOf(/** @type {never} */ (String(x))));
        const [from, to] = numeric ? [first, last] : [0, xs.length - 1];
        const pad = log ? Math.exp(Math.log(last / first) * .04) : (to - from) * .04 || 1;
        return {
            title, width: 640, height: 360,
            x: { title: log ? `${xTitle} (log)` : xTitle, log, low: log ? from / pad : from - pad, high: log ? to * pad : to + pad,
                ticks: (numeric ? shown : xs).map(t => ({ at: at(t), word: typeof t === 'number' ? number(t) : String(t) })) },
            y: { title: '', low, high, log: yLog, ticks: tickMarks(yTicks, format) },
            lines: [...span, ...groups.map((group, i) => ({ name: groups.length > 1 ? group.name : '', ink: inkOf(i)[0], dash: inkOf(i)[1], width: 1.4, alpha: .75, shape: shapes[i % shapes.length],
                points: group.fit !== undefined ? group.fit ?? [] : numeric ? group.marks.map(m => /** @type {[number, number]} */ ([at(m.x), m.y])).sort((a, b) => a[0] - b[0]) : [] })),
            ...groups.flatMap((group, i) => group.marks.filter(m => m.range).map(m => ({ name: '', unnamed: true, ink: inkOf(i)[0], dash: [], points: (m.range ?? []).map(v => /** @type {[number, number]} */ ([at(m.x), v])) })))],
            marks: groups.flatMap((group, i) => group.marks.map(m => ({ x: at(m.x), y: m.y, sd: m.range ? null : m.sd, ink: inkOf(i)[0], shape: shapes[i % shapes.length], size: 4.5, hollow: shapes[i % shapes.length] === 'ring' })).concat(group.marks.filter(m => m.best).map(m => ({ x: at(m.x), y: m.y, sd: null, ink: inkOf(i)[0], shape: 'circle', size: 10, hollow: true })))).concat(gone.map(({ x }) => ({ x: at(x), y: yLog ? low * (high / low) ** .02 : low + (high - low) * .02, sd: null, ink: colour('muted'), shape: 'cross', size: 4, hollow: false }))),
            rules: rule && numeric && rule.at >= first && rule.at <= last ? [rule] : [],
            rows: marks.some(m => m.range) ? [['group', xTitle, yTitle, 'low', 'high'], ...groups.flatMap(group => group.marks.map(m => [group.name, String(m.x), String(m.y), ...(m.range?.map(String) ?? ['', ''])]))]
                : [['group', xTitle, yTitle, 'sd', 'n'], ...groups.flatMap(group => group.marks.map(m => [group.name, String(m.x), String(m.y), m.sd === null ? '' : String(m.sd), m.n === undefined ? '' : String(m.n)])), ...gone.map(({ x }) => ['', String(x), '', '', '0'])],
        };
    };
}
