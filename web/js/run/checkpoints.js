// What a run has saved.
import { isAbort, listCheckpoints } from '../api.js';
import { failedBox, fill, h, stateBox } from '../dom.js';
import { ago, bytes, count, moment, number } from '../format.js';

/** @typedef {import('./page.js').Page} Page */

/**
 * @param {Page} page
 * @param {AbortSignal} gone
 * @returns {import('./page.js').Part}
 */
export function checkpointsPart(page, gone) {
    return {
        async refresh() {
            try {
                const list = await listCheckpoints(page.id, gone);
                if (list.length === 0) {
                    fill(page.place, h('div', { class: 'card' }, stateBox('empty', 'No checkpoints', 'A run saves its state now and then and when it ends.')));
                    return;
                }
                fill(page.place, h('div', { class: 'card scroll-x', tabindex: 0, role: 'region', 'aria-label': 'Checkpoints' }, h('table', { class: 'table' },
                    h('thead', null, h('tr', null, [['Step', 'num'], ['Kind', ''], ['Validation', 'num'], ['Size', 'num'], ['Attempt', 'num'], ['Saved', ''], ['SHA-256', '']]
                        .map(([name, cls]) => h('th', { class: cls, scope: 'col' }, name)))),
                    h('tbody', null, list.map(c => h('tr', null,
                        h('td', { class: 'num' }, count(c.step)), h('td', null, c.kind),
                        h('td', { class: 'num' }, number(c.value)), h('td', { class: 'num' }, bytes(c.bytes)),
                        h('td', { class: 'num' }, c.attempt), h('td', { class: 'nowrap', title: moment(c.created) }, ago(c.created)),
                        h('td', { class: 'mono', title: c.digest }, c.digest.slice(0, 12))))))));
            } catch (error) {
                if (!isAbort(error))
                    fill(page.place, h('div', { class: 'card' }, failedBox(error, 'The checkpoints', () => page.again())));
            }
        },
    };
}
