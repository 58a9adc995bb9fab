// What a run has saved.
import { checkpointFile, isAbort, listCheckpoints } from '../api.js';
import { failedBox, fill, h, message, stateBox, toast } from '../dom.js';
import { ago, bytes, count, moment, number } from '../format.js';
import { fullTitle } from '../metrics.js';

/** @typedef {import('./page.js').Page} Page */

/**
 * @param {Page} page
 * @param {AbortSignal} gone
 * @returns {import('./page.js').Part}
 */
export function checkpointsPart(page, gone) {
    /** Steps to average. @type {Set<number>} */
    const chosen = new Set();
    const mean = h('button', { type: 'button', on: { click: () => page.average([...chosen].sort((a, b) => a - b)).catch(error => toast(message(error), 'bad')) } });
    const told = () => {
        mean.disabled = chosen.size < 2;
        mean.textContent = chosen.size < 2 ? 'Average' : `Average ${chosen.size} checkpoints`;
    };
    /** @param {number} step */
    const tick = step => {
        const box = h('input', { type: 'checkbox', 'aria-label': `Average with the checkpoint of step ${step}` });
        box.checked = chosen.has(step);
        box.addEventListener('change', () => {
            chosen[box.checked ? 'add' : 'delete'](step);
            told();
        });
        return h('label', { class: 'tick' }, box);
    };
    return {
        async refresh() {
            try {
                const list = await listCheckpoints(page.id, gone);
                if (list.length === 0) {
                    fill(page.place, h('div', { class: 'card' }, stateBox('empty', 'No checkpoints', 'A run saves its state now and then and when it ends.')));
                    return;
                }
                const ranks = list[0].metric ? fullTitle(list[0].metric) : 'Value';
                for (const step of chosen) // some are deleted while a run goes on
                    if (!list.some(c => c.step === step))
                        chosen.delete(step);
                told();
                const focus = page.place.contains(document.activeElement) ? document.activeElement?.getAttribute('aria-label') : null;
                fill(page.place, list.length > 1 && h('div', { class: 'toolbar' }, mean, h('span', { class: 'muted small' }, 'Select two or more checkpoints to register their average as a model version.')), h('div', { class: 'card scroll-x', tabindex: 0, role: 'region', 'aria-label': 'Checkpoints' }, h('table', { class: 'table' },
                    h('thead', null, h('tr', null, [['', ''], ['Step', 'num'], ['Kind', ''], [ranks, 'num'], ['Size', 'num'], ['Attempt', 'num'], ['Saved', ''], ['SHA-256', ''], ['', 'num']]
                        .map(([name, cls]) => h('th', { class: cls, scope: 'col' }, name || h('span', { class: 'hidden' }, cls ? 'Actions' : 'To average'))))),
                    h('tbody', null, list.map(c => h('tr', null,
                        h('td', null, list.length > 1 && tick(c.step)), h('td', { class: 'num' }, count(c.step)), h('td', null, c.kind),
                        h('td', { class: 'num' }, number(c.value)), h('td', { class: 'num' }, bytes(c.bytes)),
                        h('td', { class: 'num' }, c.attempt), h('td', { class: 'nowrap', title: moment(c.created) }, ago(c.created)),
                        h('td', { class: 'mono', title: c.digest }, c.digest.slice(0, 12)),
                        h('td', { class: 'num' }, h('span', { class: 'row end' },
                            h('a', { class: 'button small-button', href: checkpointFile(page.id, c.step, 'weights'), download: '', 'aria-label': `Weights of step ${c.step}, download`, title: 'The weights as safetensors, with the parameter names of timm or Hugging Face' }, 'Weights'),
                            h('a', { class: 'button small-button', href: checkpointFile(page.id, c.step, 'file'), download: '', 'aria-label': `File of step ${c.step}, download`, title: 'The whole file, with optimiser state and tokenizer' }, 'File'),
                            h('a', { class: 'button small-button', href: `#/submit?start=${encodeURIComponent(page.id)}&checkpoint=${c.step}`, 'aria-label': `Continue from the checkpoint of step ${c.step}`, title: 'A new job that begins with these weights, or goes on with the run: more epochs, other data' }, 'Continue'),
                            h('a', { class: 'button small-button', href: `#/submit?evaluate=${encodeURIComponent(page.id)}&checkpoint=${c.step}`, 'aria-label': `Evaluate the checkpoint of step ${c.step}` }, 'Evaluate'),
                            h('button', { type: 'button', class: 'small-button', 'aria-label': `Register the checkpoint of step ${c.step} as a model`, on: { click: () => page.register(c.id).catch(error => toast(message(error), 'bad')) } }, 'Register')))))))));
                if (focus)
                    /** @type {HTMLElement | null} */ (page.place.querySelector(`[aria-label="${CSS.escape(focus)}"]`))?.focus({ preventScroll: true });
            } catch (error) {
                if (!isAbort(error))
                    fill(page.place, h('div', { class: 'card' }, failedBox(error, 'The checkpoints', () => page.again())));
            }
        },
    };
}
