// The classes of an answer as bars, and the likeliest in words.
import { h, setText } from '../dom.js';
import { percent } from '../format.js';
import { meter, setMeter } from '../states.js';

/**
 * Class bars that keep their rows, so that they move rather than jump.
 * @param {number} classes
 * @param {string[]} [labels] their names, where they are known before an answer tells them
 */
export function classBars(classes, labels) {
    const el = h('ol', { class: labels ? 'bars named' : 'bars', 'aria-label': 'Classes' });
    const verdict = h('p', { class: 'verdict', role: 'status', 'aria-live': 'polite' });
    /** @type {Map<number, {el: HTMLElement, meter: HTMLElement, value: HTMLElement}>} */
    const rows = new Map();
    /** Names of classes, the others as answers tell them. @type {Map<number, string>} */
    const names = new Map(labels?.entries());

    /** @param {number[]} probabilities */
    function draw(probabilities) {
        const order = probabilities.map((_, i) => i);
        const best = order.reduce((a, b) => (probabilities[b] > probabilities[a] ? b : a), 0);
        // A handful of classes stays in its order, so that bars do not jump; of many, the likeliest are shown.
        const shown = order.length <= 12 ? order : order.sort((a, b) => probabilities[b] - probabilities[a]).slice(0, 10);
        shown.forEach((label, i) => {
            let row = rows.get(label);
            if (!row) {
                const bar = meter(0, `Class ${names.get(label) ?? label}`);
                const value = h('span', { class: 'value' });
                row = { el: h('li', null, h('span', { class: 'label', title: labels?.[label] ?? null }, label), bar, value), meter: bar, value };
                rows.set(label, row);
            }
            setText(/** @type {Element} */ (row.el.firstElementChild), names.get(label) ?? String(label));
            setMeter(row.meter, probabilities[label]);
            setText(row.value, percent(probabilities[label]));
            row.el.classList.toggle('best', label === best);
            if (el.children[i] !== row.el)
                el.insertBefore(row.el, el.children[i] ?? null);
        });
        while (el.children.length > shown.length)
            el.lastElementChild?.remove();
        return best;
    }
    return {
        el, verdict,
        /**
         * @param {number[]} probabilities
         * @param {string | undefined} name of the best, if the model knows it
         */
        show(probabilities, name) {
            if (name)
                names.set(probabilities.reduce((best, p, i) => (p > probabilities[best] ? i : best), 0), name);
            const best = draw(probabilities);
            setText(verdict, `${name ?? best} (${percent(probabilities[best])})`);
        },
        /** @param {string} words */
        blank(words) {
            draw(new Array(Math.min(classes, 12)).fill(0));
            setText(verdict, words);
            for (const row of rows.values()) {
                setText(row.value, '');
                row.el.classList.remove('best');
            }
        },
    };
}
