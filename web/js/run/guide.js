// The guided first minute: what a run is doing just now, in words, while it does so; then the way to its model.
import { fill, h, icon } from '../dom.js';
import { count } from '../format.js';
import { isActive } from '../states.js';

/**
 * @param {boolean} wanted
 * @param {() => void} close
 */
export function guide(wanted, close) {
    const list = h('ol', { class: 'guide-steps' });
    const el = h('section', { class: 'card pad guide', 'aria-label': 'What happens', hidden: !wanted },
        h('div', { class: 'row' }, h('h2', { class: 'grow' }, 'What happens'), h('button', { type: 'button', class: 'quiet icon-button small-button', 'aria-label': 'Close the guide', on: { click: () => {
            el.hidden = true;
            close();
        } } }, icon('close', 12))), list);
    let shown = '';
    return {
        el,
        /** @param {import('./page.js').Page} page */
        draw(page) {
            const now = page.run;
            if (el.hidden || !now)
                return;
            const ended = !isActive(now);
            const good = now.outcome === 'succeeded';
            const at = ended ? (good ? 3 : 2) : now.state === 'running' && (now.step ?? 0) > 0 ? 2 : now.state === 'queued' ? 0 : 1;
            const model = page.job?.document.register;
            /** @type {[string, (Node | string)[]][]} */
            const steps = [
                ['Queued', ['polyd has checked the job, planned its memory and queued it; it starts as soon as a processor is free.']],
                ['Starting', ['A worker process of its own draws the digits and builds the network. It goes on even if polyd restarts.']],
                ['Training', [now.step ? `Step ${count(now.step)} of ${count(now.totalSteps)}. ` : '', 'Loss falls and accuracy rises in the curves below. Point at a curve to read its step and value; drag over it to zoom.']],
                ['Ready', model && good ? ['The best weights were registered as a model. ', h('a', { href: `#/models/${encodeURIComponent(String(model))}` }, 'Load it and draw a digit'), '; or ', h('a', { href: `#/submit?run=${encodeURIComponent(page.id)}` }, 'change a setting and run it again'), ' and compare the two.']
                    : ended ? ['The run did not finish; the note above explains why.'] : ['The best weights become a model that recognises digits you draw.']],
            ];
            const key = `${at} ${now.step} ${ended}`;
            if (key === shown)
                return;
            shown = key;
            fill(list, steps.map(([word, text], i) => h('li', { data: { at: i < at || (ended && i === at) ? 'done' : i === at ? 'now' : 'later' }, 'aria-current': i === at ? 'step' : null },
                h('b', null, word), h('span', null, text))));
        },
    };
}
