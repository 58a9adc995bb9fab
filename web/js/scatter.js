// A chart of results: one mark a combination, with its deviation, against a swept value. Drawn as SVG, so that it scales
// and is found by the tabulator and by screen readers; the table below it holds the same numbers.
import { inkOf } from './chart.js';
import { outline } from './chart/figure.js';
import { linearTicks as ticks } from './chart/ticks.js';
import { fill, h } from './dom.js';
import { number } from './format.js';

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
 * @property {number} [n] runs behind it
 * @property {string} text read aloud and shown on hover
 * @property {boolean} [best]
 * @property {string} [href]
 */

/** @typedef {{name: string, marks: Mark[]}} Group */

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
 * @returns {() => import('./chart/figure.js').Figure} the same for print and as numbers
 */
export function scatter(place, { groups, title, xTitle, format, rule = null }) {
    const width = Math.max(280, place.clientWidth);
    const height = 300;
    const box = { left: 62, right: width - 18, top: 14, bottom: height - 44 };
    const marks = groups.flatMap(group => group.marks);
    const numeric = marks.every(m => typeof m.x === 'number');
    const xs = numeric ? [...new Set(marks.map(m => /** @type {number} */ (m.x)))].sort((a, b) => a - b) : [...new Set(marks.map(m => String(m.x)))];
    // Values that span more than two decades were spaced by ratio.
    const first = Number(xs[0]);
    const last = Number(xs[xs.length - 1]);
    const log = numeric && first > 0 && last / first > 100;
    const place_ = numeric
        ? (/** @type {unknown} */ x) => {
            const v = log ? Math.log(Number(x) / first) / Math.log(last / first) : (Number(x) - first) / (last - first || 1);
            const room = 16;
            return xs.length === 1 ? (box.left + box.right) / 2 : box.left + room + v * (box.right - box.left - 2 * room);
        }
        : (/** @type {unknown} */ x) => box.left + (xs.indexOf(/** @type {never} */ (String(x))) + .5) * (box.right - box.left) / xs.length;
    let low = Math.min(...marks.map(m => m.y - (m.sd ?? 0)));
    let high = Math.max(...marks.map(m => m.y + (m.sd ?? 0)));
    const room = (high - low) * .08 || Math.abs(high) * .1 || 1;
    low -= room;
    high += room;
    const y = (/** @type {number} */ v) => box.bottom - (v - low) / (high - low) * (box.bottom - box.top);
    const svg = s('svg', { viewBox: `0 0 ${width} ${height}`, width, height, class: 'scatter', role: 'group', 'aria-label': title });
    for (const t of ticks(low, high)) {
        svg.append(s('path', { class: 'rule', d: `M${box.left} ${y(t)}H${box.right}` }),
            s('text', { x: box.left - 8, y: y(t) + 4, 'text-anchor': 'end' }, format(t)));
    }
    /** @type {number[]} */
    let shown = [];
    if (log)
        for (let k = Math.ceil(Math.log10(first) - 1e-9); 10 ** k <= last * 1.0001; k++)
            shown.push(10 ** k);
    else if (numeric)
        shown = xs.length <= 9 ? /** @type {number[]} */ (xs) : ticks(first, last, 6);
    const gap = (box.right - box.left) / 64;
    while (shown.length > gap)
        shown = shown.filter((_, i) => i % 2 === 0);
    for (const t of numeric ? shown : xs)
        svg.append(s('text', { x: place_(t), y: box.bottom + 18, 'text-anchor': 'middle' }, typeof t === 'number' ? number(t) : String(t).slice(0, 18)));
    svg.append(s('text', { x: (box.left + box.right) / 2, y: height - 6, 'text-anchor': 'middle', class: 'axis-title' }, log ? `${xTitle} (log)` : xTitle));
    if (rule && numeric && rule.at >= first && rule.at <= last)
        svg.append(s('path', { class: 'mark-rule', d: `M${place_(rule.at)} ${box.top}V${box.bottom}` }),
            s('text', { x: place_(rule.at) + 6, y: box.bottom - 8 }, rule.word));
    groups.forEach((group, i) => {
        const [ink, dash] = inkOf(i);
        const own = group.marks.slice().sort((a, b) => (numeric ? Number(a.x) - Number(b.x) : 0));
        if (own.length > 1 && numeric)
            svg.append(s('path', { d: own.map((m, k) => `${k ? 'L' : 'M'}${place_(m.x)} ${y(m.y)}`).join(''), fill: 'none', stroke: ink, 'stroke-width': 1.5, 'stroke-dasharray': dash.join(' ') || 'none', opacity: .75 }));
        for (const m of own) {
            const x = place_(m.x);
            if (m.sd)
                svg.append(s('path', { d: `M${x} ${y(m.y - m.sd)}V${y(m.y + m.sd)}M${x - 5} ${y(m.y - m.sd)}h10M${x - 5} ${y(m.y + m.sd)}h10`, stroke: ink, 'stroke-width': 1.4, fill: 'none' }));
            const shape = shapes[i % shapes.length];
            const mark = s('path', { d: markPath(shape, x, y(m.y), 5), fill: shape === 'ring' || shape === 'cross' ? 'transparent' : ink, stroke: ink, 'stroke-width': 2 });
            const parts = [s('title', {}, m.text), ...(m.best ? [s('circle', { cx: x, cy: y(m.y), r: 10, fill: 'none', stroke: ink, 'stroke-width': 1.5 })] : []), mark,
                s('circle', { cx: x, cy: y(m.y), r: 12, fill: 'transparent' })];
            svg.append(m.href ? s('a', { href: m.href, 'aria-label': m.text }, ...parts) : s('g', { role: 'img', 'aria-label': m.text }, ...parts));
        }
    });
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
        const at = (/** @type {unknown} */ x) => (numeric ? Number(x) : xs.indexOf(/** @type {never} */ (String(x))));
        const [from, to] = numeric ? [first, last] : [0, xs.length - 1];
        const pad = log ? Math.exp(Math.log(last / first) * .04) : (to - from) * .04 || 1;
        return {
            title, width: 640, height: 360,
            x: { title: log ? `${xTitle} (log)` : xTitle, log, low: log ? from / pad : from - pad, high: log ? to * pad : to + pad,
                ticks: (numeric ? shown : xs).map(t => ({ at: at(t), word: typeof t === 'number' ? number(t) : String(t) })) },
            y: { title: '', low, high, ticks: ticks(low, high).map(t => ({ at: t, word: format(t) })) },
            lines: groups.map((group, i) => ({ name: groups.length > 1 ? group.name : '', ink: inkOf(i)[0], dash: inkOf(i)[1], width: 1.4, alpha: .75,
                points: numeric ? group.marks.map(m => /** @type {[number, number]} */ ([at(m.x), m.y])).sort((a, b) => a[0] - b[0]) : [] })),
            marks: groups.flatMap((group, i) => group.marks.map(m => ({ x: at(m.x), y: m.y, sd: m.sd, ink: inkOf(i)[0], shape: shapes[i % shapes.length], size: 4.5, hollow: shapes[i % shapes.length] === 'ring' }))),
            rules: rule && numeric && rule.at >= first && rule.at <= last ? [rule] : [],
            rows: [['group', xTitle, 'mean', 'sd', 'n'], ...groups.flatMap(group => group.marks.map(m => [group.name, String(m.x), String(m.y), m.sd === null ? '' : String(m.sd), m.n === undefined ? '' : String(m.n)]))],
        };
    };
}
