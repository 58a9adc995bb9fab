// The floating box of values at the pointer. It is placed without measuring: reading its size would make the browser lay
// out the page again at every move.
import { fill, h, line } from '../dom.js';

/** @typedef {{name: string, ink: string, dash: number[], value: string, more: string, at: string}} TipRow */

const MOST = 14;
const el = h('div', { class: 'tip', hidden: true, 'aria-hidden': 'true' });
let drawn = '';

/**
 * @param {number} x of the pointer, in the window
 * @param {number} y
 * @param {string} title where the pointer stands: step, epoch, time
 * @param {TipRow[]} rows
 */
export function showTip(x, y, title, rows) {
    if (!el.isConnected)
        document.body.append(el);
    const shown = rows.slice(0, MOST);
    const key = JSON.stringify([title, shown, rows.length]);
    if (key !== drawn) {
        drawn = key;
        fill(el, h('p', { class: 'tip-title' }, title), h('table', null, h('tbody', null, shown.map(row => h('tr', null,
            h('td', null, line(row.ink, row.dash)), h('th', { scope: 'row' }, row.name), h('td', { class: 'num strong' }, row.value), h('td', { class: 'num muted' }, row.more), h('td', { class: 'num muted' }, row.at))))),
        rows.length > shown.length ? h('p', { class: 'muted' }, `${rows.length - shown.length} more`) : null);
    }
    el.hidden = false;
    const left = x > innerWidth / 2, above = y > innerHeight * .6;
    el.style.transform = `translate(${Math.round(x + (left ? -16 : 16))}px, ${Math.round(y + (above ? -12 : 12))}px) translate(${left ? '-100%' : '0'}, ${above ? '-100%' : '0'})`;
}

export function hideTip() {
    el.hidden = true;
}
