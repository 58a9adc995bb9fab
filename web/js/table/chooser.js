// The dialog that chooses columns: those shown, in their order, and those on offer; any metric by its key, any member
// of the configuration by its pointer.
import { fill, h, icon } from '../dom.js';
import { columnOf, fits, offered } from './columns.js';

/** @typedef {import('./columns.js').Chosen} Chosen */

/**
 * @param {Chosen[]} chosen
 * @param {(chosen: Chosen[] | null) => void} changed after every change: the table follows at once; null: no choice of one's own
 * @param {() => Chosen[]} standard
 */
export function chooseColumns(chosen, changed, standard) {
    let now = chosen.slice();
    const list = h('ol', { class: 'chosen', 'aria-label': 'Columns shown' });
    const offer = h('div', { class: 'offer' });
    const search = h('input', { type: 'search', placeholder: 'Find a metric or a setting', 'aria-label': 'Find a column', autofocus: true, autocomplete: 'off', spellcheck: 'false' });
    const words = h('p', { class: 'muted small', role: 'status' });

    const set = (/** @type {Chosen[]} */ next) => {
        now = next;
        draw();
        changed(now);
    };
    /**
     * @param {number} i
     * @param {number} by
     */
    const move = (i, by) => {
        const next = now.slice();
        next.splice(i + by, 0, ...next.splice(i, 1));
        set(next);
        /** @type {HTMLElement | null} */ (list.children[i + by]?.querySelector(by < 0 ? '[data-up]' : '[data-down]'))?.focus();
    };

    function draw() {
        fill(list, now.map(({ column }, i) => h('li', null,
            h('span', { class: 'grow', title: column.text }, column.title),
            h('button', { type: 'button', class: 'quiet icon-button', data: { up: true }, disabled: i === 0, 'aria-label': `Move ${column.title} to the left`, on: { click: () => move(i, -1) } }, icon('up')),
            h('button', { type: 'button', class: 'quiet icon-button', data: { down: true }, disabled: i === now.length - 1, 'aria-label': `Move ${column.title} to the right`, on: { click: () => move(i, 1) } }, icon('down')),
            h('button', { type: 'button', class: 'quiet icon-button', disabled: column.id === 'name', 'aria-label': `Hide ${column.title}`, on: { click: () => set(now.filter((_, j) => j !== i)) } }, icon('close')))));
        const text = search.value.trim().toLowerCase();
        const hidden = offered().filter(column => !now.some(other => other.column.id === column.id) &&
            (!text || `${column.title} ${column.id} ${column.text ?? ''}`.toLowerCase().includes(text)));
        // What is no known name may be a key or a pointer.
        const own = text && (hidden.length === 0 || text.includes('/')) && !offered().some(column => column.id.slice(2) === search.value.trim())
            ? columnOf(search.value.trim().startsWith('/') ? `c:${search.value.trim()}` : `m:${search.value.trim()}`) : null;
        const groups = new Map();
        for (const column of own && !now.some(other => other.column.id === own.id) ? [...hidden, own] : hidden)
            groups.set(column === own ? 'By its own name' : column.group, [...(groups.get(column === own ? 'By its own name' : column.group) ?? []), column]);
        fill(offer, [...groups].map(([name, columns]) => h('section', null, h('h3', null, name), h('div', { class: 'row' },
            columns.map((/** @type {import('./columns.js').Column} */ column) => h('button', {
                type: 'button', class: 'offered', title: column.text, disabled: !fits(now, column),
                on: { click: () => set([...now, { column, width: column.width }]) },
            }, icon('plus', 11), column.title))))));
        if (groups.size === 0)
            fill(offer, h('p', { class: 'muted small' }, 'No other column has this name.'));
        fill(words, `${now.length} columns. Drag a heading to move it, its edge to widen it.`);
    }

    search.addEventListener('input', draw);
    const dialog = h('dialog', { class: 'wide', 'aria-labelledby': 'columns-title' },
        h('form', { method: 'dialog' },
            h('div', { class: 'head' }, h('div', null, h('h2', { id: 'columns-title' }, 'Columns'), words),
                h('button', { type: 'button', on: { click: () => {
                    now = standard();
                    draw();
                    changed(null);
                } } }, icon('reset'), 'Reset to default')),
            h('div', { class: 'choose' }, list, h('div', { class: 'stack' }, search, offer)),
            h('div', { class: 'row' }, h('button', { class: 'primary', value: 'done' }, 'Done'))));
    dialog.addEventListener('close', () => dialog.remove());
    dialog.addEventListener('click', event => {
        if (event.target === dialog)
            dialog.close();
    });
    search.addEventListener('keydown', event => {
        if (event.key === 'Enter') {
            event.preventDefault();
            /** @type {HTMLElement | null} */ (offer.querySelector('button:not(:disabled)'))?.click();
        }
    });
    draw();
    document.body.append(dialog);
    dialog.showModal();
}
