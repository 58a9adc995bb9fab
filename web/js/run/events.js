// What happened to a run, newest first.
import { isAbort, runEvents } from '../api.js';
import { failedBox, fill, h, stateBox } from '../dom.js';
import { between, count, duration, moment } from '../format.js';
import { onEvent } from '../live.js';
import { chip } from '../states.js';

/** @typedef {import('./page.js').Page} Page */

/**
 * @param {Page} page
 * @param {AbortSignal} gone
 * @returns {import('./page.js').Part}
 */
export function eventsPart(page, gone) {
    /** @type {Map<string, import('../types').PolydEvent>} */
    const known = new Map();
    const list = h('ol', { class: 'card timeline' });
    const attempts = h('div', { class: 'stack' });
    let shown = '';
    let complete = false; // but for what the page's stream brings

    /** What carried the run: an attempt ends by itself, by a command, or by the death of its worker. */
    function drawAttempts() {
        const key = JSON.stringify(page.attempts);
        if (key === shown)
            return;
        shown = key;
        fill(attempts, page.attempts.length > 0 && [h('h2', null, 'Attempts'), h('div', { class: 'card scroll-x', tabindex: 0, role: 'region', 'aria-label': 'Attempts' }, h('table', { class: 'table' },
            h('thead', null, h('tr', null, [['Attempt', 'num'], ['Outcome', ''], ['Steps', 'num'], ['Time', 'num'], ['Started', ''], ['Devices', ''], ['Message', '']].map(([name, cls]) => h('th', { class: cls, scope: 'col' }, name)))),
            h('tbody', null, page.attempts.map(a => h('tr', null,
                h('td', { class: 'num' }, a.n), h('td', null, chip(a.cause ?? a.state)),
                h('td', { class: 'num' }, `${count(a.startStep)} to ${count(a.step)}`), h('td', { class: 'num' }, duration(between(a.created, a.ended))),
                h('td', { class: 'nowrap' }, moment(a.created)),
                h('td', null, a.devices.join(', ')), h('td', null, a.message || '–'))))))]);
    }

    const draw = () => {
        if (known.size === 0) {
            fill(page.place, h('div', { class: 'card' }, stateBox('empty', 'No events', 'Events of the run will be listed here.')));
            return;
        }
        const events = [...known.values()].sort((a, b) => Number(b.id) - Number(a.id));
        fill(list, events.map(event => h('li', null,
            h('time', { datetime: event.time, class: 'muted' }, moment(event.time)), h('span', null, tell(event)))));
        if (!list.isConnected)
            fill(page.place, attempts, h('h2', null, 'Events'), list);
        drawAttempts();
    };
    onEvent(event => {
        if (event.runId === page.id && event.id) {
            known.set(event.id, event);
            draw();
        }
    }, gone);
    addEventListener('polyd:missed', () => { complete = false; }, { signal: gone });
    return {
        async refresh() {
            if (complete && known.size > 0) {
                drawAttempts();
                return;
            }
            try {
                complete = true; // unless more is missed meanwhile
                for (const event of await runEvents(page.id, gone))
                    known.set(event.id, event);
                draw();
            } catch (error) {
                complete = false;
                if (!isAbort(error))
                    fill(page.place, h('div', { class: 'card' }, failedBox(error, 'The events', () => page.again())));
            }
        },
    };
}

/** @param {import('../types').PolydEvent} event */
function tell(event) {
    const { state, from, to, outcome, cause, reason, text, message: said, step, kind, ...rest } = /** @type {Record<string, any>} */ (event.data);
    const what = event.kind.replaceAll(/[._]/g, ' ');
    const parts = [what.charAt(0).toUpperCase() + what.slice(1)];
    const target = to ?? state;
    if (target)
        parts.push(from ? `${from} → ${target}` : target);
    for (const more of [outcome, cause, kind])
        if (more)
            parts.push(String(more));
    if (event.attempt)
        parts.push(`attempt ${event.attempt}`);
    if (step !== undefined && step !== null)
        parts.push(`step ${count(Number(step))}`);
    const words = [text, said, reason].filter(Boolean).join(' · ');
    const others = Object.entries(rest).filter(([, value]) => value !== null && value !== '' && typeof value !== 'object')
        .map(([key, value]) => `${key}=${value}`).join(' ');
    return [parts.join(' · '), words, others].filter(Boolean).join(' — ');
}
