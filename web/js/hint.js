// A small "?" next to a title: what the metric is in one sentence, where the definition comes from, and the way to the
// rest of the help.
import { h } from './dom.js';

/** @param {import('./metrics.js').Metric} metric */
export function hint(metric) {
    const box = h('div', { class: 'hint', popover: 'auto', role: 'note' },
        h('p', null, metric.text), h('p', { class: 'muted' }, metric.source),
        h('p', null, h('a', { href: `#/help?metric=${encodeURIComponent(metric.key)}` }, 'All metrics')));
    const button = h('button', { type: 'button', class: 'hint-button', 'aria-label': `What is “${metric.title}”?`, title: metric.text }, '?');
    button.addEventListener('click', () => {
        if (!box.isConnected)
            button.after(box);
        if (typeof box.togglePopover !== 'function') {
            location.hash = `#/help?metric=${encodeURIComponent(metric.key)}`; // an older browser
            return;
        }
        if (!box.togglePopover())
            return;
        const at = button.getBoundingClientRect();
        const width = Math.min(340, innerWidth - 24);
        box.style.width = `${width}px`;
        box.style.left = `${Math.max(12, Math.min(innerWidth - width - 12, at.left - 16))}px`;
        const below = at.bottom + 8;
        box.style.top = `${below + box.offsetHeight > innerHeight - 12 ? Math.max(12, at.top - box.offsetHeight - 8) : below}px`;
    });
    return button;
}
