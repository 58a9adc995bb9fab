// A chart of results: one mark a combination, with its deviation, against a swept value. Drawn as SVG, so that it scales
// and is found by the tabulator and by screen readers; the table below it holds the same numbers.
import { inkOf } from './chart.js';
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
 * @property {string} text read aloud and shown on hover
 * @property {boolean} [best]
 * @property {string} [href]
 */

/** @typedef {{name: string, marks: Mark[]}} Group */

/**
 * @param {number} low
 * @param {number} high
 * @param {number} [about]
 */
export function ticks(low, high, about = 5) {
    const raw = (high - low) / about || 1;
    const size = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map(k => k * size).find(k => k >= raw) ?? raw;
    const out = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++)
        out.push(Number((i * step).toPrecision(12)));
    return out;
}

/**
 * The marks' shapes differ as their colours do.
 * @param {string} shape
 * @param {number} x
 * @param {number} y
 * @param {number} r
 */
function markPath(shape, x, y, r) {
    switch (shape) {
    case 'square': return `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}Z`;
    case 'triangle': return `M${x} ${y - r * 1.2}L${x + r * 1.15} ${y + r * .9}H${x - r * 1.15}Z`;
    case 'diamond': return `M${x} ${y - r * 1.3}L${x + r * 1.3} ${y}L${x} ${y + r * 1.3}L${x - r * 1.3} ${y}Z`;
    case 'cross': return `M${x - r} ${y - r}L${x + r} ${y + r}M${x + r} ${y - r}L${x - r} ${y + r}`;
    case 'bar': return `M${x - r * 1.2} ${y - r * .5}h${r * 2.4}v${r}h${-r * 2.4}Z`;
    default: return `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`;
    }
}

/**
 * @param {HTMLElement} place
 * @param {object} options
 * @param {Group[]} options.groups
 * @param {string} options.title
 * @param {string} options.xTitle
 * @param {(y: number) => string} options.format
 * @param {{at: number, word: string} | null} [options.rule] a vertical line
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
}
