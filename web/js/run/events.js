// What happened to a run, newest first.
import { isAbort, runEvents } from '../api.js';
import { failedBox, fill, h, stateBox } from '../dom.js';
import { count, moment } from '../format.js';
import { onEvent } from '../live.js';

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
    const draw = () => {
        if (known.size === 0) {
            fill(page.place, h('div', { class: 'card' }, stateBox('empty', 'No events', 'What happens to the run will be listed here.')));
            return;
        }
        const events = [...known.values()].sort((a, b) => Number(b.id) - Number(a.id));
        fill(list, events.map(event => h('li', null,
            h('time', { datetime: event.time, class: 'muted' }, moment(event.time)), h('span', null, tell(event)))));
        if (!list.isConnected)
            fill(page.place, list);
    };
    onEvent(event => {
        if (event.runId === page.id && event.id) {
            known.set(event.id, event);
            draw();
        }
    }, gone);
    return {
        async refresh() {
            if (known.size > 0)
                return;
            try {
                for (const event of await runEvents(page.id, gone))
                    known.set(event.id, event);
                draw();
            } catch (error) {
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
