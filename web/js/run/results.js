// What a run found whose numbers are its result: a table, and what they were found for.
import { isAbort, listSeries } from '../api.js';
import { failedBox, fill, h, icon, stateBox } from '../dom.js';
import { count } from '../format.js';
import { describe, fullTitle, panels, present } from '../metrics.js';
import { isActive } from '../states.js';
import { positionsCard } from './positions.js';

/** @typedef {import('./page.js').Page} Page */

/** The names that a document has for the samples that are scored. @type {Record<string, string>} */
const splits = { test: 'test part', val: 'validation part', train: 'training part' };

/** What was scored, and on what: word and content. @param {Page} page */
function subject(page) {
    const { evaluate, data } = page.resolved;
    if (!evaluate)
        return [];
    const run = h('a', { href: `#/runs/${evaluate.run}?tab=checkpoints` }, `run #${evaluate.run}`);
    const model = evaluate.model && h('a', { href: `#/models/${encodeURIComponent(evaluate.model.split(':')[0])}` }, evaluate.model);
    return [
        ['Checkpoint', [model, model && ' of ', run, `, step ${count(evaluate.step)}`]],
        ['Data', `${data.dataset}${data.path ? ` (${data.path})` : ''}, ${splits[evaluate.split] ?? evaluate.split}`],
        ['SHA-256', h('span', { class: 'mono', title: evaluate.sha256 }, evaluate.sha256.slice(0, 12))],
    ];
}

/**
 * @param {Page} page
 * @param {AbortSignal} gone
 * @returns {import('./page.js').Part}
 */
export function resultsPart(page, gone) {
    const positions = positionsCard(page, 'h2');
    return {
        async refresh() {
            try {
                if (page.series.length === 0)
                    page.series = await listSeries(page.id, gone);
                const keys = panels(page.series.map(s => s.key)).filter(panel => panel.metric.group !== 'positions').flatMap(panel => panel.keys);
                const facts = subject(page);
                fill(page.place,
                    facts.length > 0 && h('dl', { class: 'card pad facts' }, facts.map(([word, what]) => h('div', null, h('dt', { class: 'muted small' }, word), h('dd', null, what)))),
                    keys.length === 0
                        ? h('div', { class: 'card' }, page.run && isActive(page.run)
                            ? stateBox('empty', 'No results yet', page.run.state === 'queued' ? 'The run is waiting for a device.' : 'The results appear when all samples are scored.')
                            : stateBox('empty', 'No results', 'This run ended without results. The log may show why.', h('button', { type: 'button', on: { click: () => page.openTab('log') } }, 'Open the log')))
                        : h('div', { class: 'card scroll-x', tabindex: 0, role: 'region', 'aria-label': 'Results' }, h('table', { class: 'table results' },
                            h('thead', null, h('tr', null, h('th', { scope: 'col' }, 'Result'), h('th', { class: 'num', scope: 'col' }, 'Value'), h('th', { scope: 'col' }, 'Key'))),
                            h('tbody', null, keys.map(key => {
                                const metric = describe(key);
                                return h('tr', null, h('td', null, fullTitle(key), h('p', { class: 'muted small' }, metric.text)),
                                    h('td', { class: 'num' }, present(metric, page.series.find(s => s.key === key)?.value ?? null)), h('td', { class: 'mono' }, key));
                            })))),
                    positions.el,
                    h('p', null, h('a', { class: 'button', href: `/api/v1/runs/${encodeURIComponent(page.id)}/export?format=csv`, download: `run-${page.id}.csv` }, icon('download'), 'CSV')));
                positions.draw();
            } catch (error) {
                if (!isAbort(error))
                    fill(page.place, h('div', { class: 'card' }, failedBox(error, 'The results', () => page.again())));
            }
        },
    };
}
