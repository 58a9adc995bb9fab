// The run table itself: a header that sorts, resizes and moves columns, and virtual rows that are selected, opened and
// walked by keyboard. It knows no API: the view passes runs to it and receives requests.
import { fill, h, icon } from '../dom.js';
import { VirtualRows } from './virtual.js';

/** @typedef {import('../types').Run} Run */
/** @typedef {import('./columns.js').Chosen} Chosen */

/**
 * @typedef {object} Wishes
 * @property {(id: string) => void} sort a header was pressed
 * @property {(chosen: Chosen[]) => void} changed widths or order
 * @property {(ids: Set<string>) => void} selected
 * @property {(tag: string) => void} tag a tag was pressed
 * @property {AbortSignal} signal
 */

const PICK = 44; // px of the column with the boxes

export class RunGrid {
    /**
     * @param {Chosen[]} chosen
     * @param {Wishes} wishes
     */
    constructor(chosen, wishes) {
        this.chosen = chosen;
        this.wishes = wishes;
        /** @type {Set<string>} */
        this.selected = new Set();
        /** @type {Run[]} */
        this.runs = [];
        this.at = 0; // the row that the keyboard stands on
        this.anchor = -1; // where a range of boxes begins
        this.sort = { id: '', down: true };

        this.head = h('div', { class: 'grid-head', role: 'row', 'aria-rowindex': 1 });
        this.body = h('div', { class: 'grid-body', role: 'rowgroup' });
        this.table = h('div', { class: 'grid', role: 'table', 'aria-label': 'Runs' }, h('div', { role: 'rowgroup', class: 'grid-top' }, this.head), this.body);
        this.el = h('div', { class: 'card grid-scroll', tabindex: -1 }, this.table);
        this.rows = new VirtualRows(this.body, this.el, { make: () => this.make(), draw: (row, run, index) => this.draw(row, /** @type {Run} */ (run), index) }, wishes.signal);
        this.body.addEventListener('click', event => this.clicked(event));
        this.body.addEventListener('keydown', event => this.key(event));
        this.body.addEventListener('focusin', event => {
            const index = this.rows.indexOf(/** @type {Node} */ (event.target));
            if (index >= 0 && index !== this.at) {
                const before = this.at;
                this.at = index;
                for (const i of [before, index])
                    this.tabstop(this.rows.rows.get(i), i);
            }
        });
        this.setColumns(chosen);
    }

    /** @param {Chosen[]} chosen */
    setColumns(chosen) {
        this.chosen = chosen;
        this.measure();
        const all = h('input', { type: 'checkbox', class: 'all-box', tabindex: -1, 'aria-label': 'Select all runs in the table' });
        all.addEventListener('change', () => {
            this.selected = new Set(all.checked ? this.runs.map(run => run.id) : []);
            this.tell();
        });
        all.addEventListener('keydown', event => {
            if (event.key === 'ArrowRight')
                this.toHeading(1);
        });
        all.addEventListener('focus', () => this.stopAt(all));
        this.all = all;
        fill(this.head, h('div', { class: 'grid-cell pick', role: 'columnheader' }, all), chosen.map((entry, i) => this.header(entry, i)));
        this.drawSort();
        this.rows.rebuild();
    }

    measure() {
        // The run's name takes what is left over.
        this.table.style.setProperty('--cols', [`${PICK}px`, ...this.chosen.map(({ column, width }) => (column.id === 'name' ? `minmax(${width}px, 1fr)` : `${width}px`))].join(' '));
        this.table.style.setProperty('--least', `${this.chosen.reduce((sum, { width }) => sum + width, PICK)}px`);
    }

    /**
     * @param {Chosen} entry
     * @param {number} i
     */
    header(entry, i) {
        const { column } = entry;
        const button = h('button', { type: 'button', class: 'sort', title: column.text ?? `Sort by ${column.title.toLowerCase()}`, draggable: 'true', tabindex: i === 0 ? 0 : -1 },
            h('span', { class: 'sort-word' }, column.title), h('span', { class: 'sort-sign', 'aria-hidden': 'true' }));
        button.addEventListener('click', () => this.wishes.sort(column.id));
        const handle = h('div', {
            class: 'grip', role: 'separator', tabindex: -1, 'aria-orientation': 'vertical', 'aria-label': `Width of the column ${column.title}`,
            'aria-valuenow': Math.round(entry.width), 'aria-valuemin': 56, 'aria-valuemax': 900,
        });
        const cell = h('div', { class: `grid-cell head${column.num ? ' num' : ''}${column.id === 'name' ? ' k-name' : ''}`, role: 'columnheader', data: { column: column.id } }, button, handle);
        const resize = (/** @type {number} */ width) => {
            entry.width = Math.round(Math.min(900, Math.max(56, width)));
            handle.setAttribute('aria-valuenow', String(entry.width));
            this.measure();
        };
        handle.addEventListener('pointerdown', event => {
            event.preventDefault();
            handle.setPointerCapture(event.pointerId);
            const from = event.clientX;
            const width = cell.getBoundingClientRect().width;
            const move = (/** @type {PointerEvent} */ e) => resize(width + e.clientX - from);
            const stop = () => {
                handle.removeEventListener('pointermove', move);
                this.wishes.changed(this.chosen);
            };
            handle.addEventListener('pointermove', move);
            handle.addEventListener('pointerup', stop, { once: true });
            handle.addEventListener('pointercancel', stop, { once: true });
        });
        handle.addEventListener('dblclick', () => {
            resize(column.width);
            this.wishes.changed(this.chosen);
        });
        // A header is dragged onto another one; Alt and an arrow do the same.
        button.addEventListener('dragstart', event => {
            event.dataTransfer?.setData('text/plain', column.id);
            this.dragged = i;
        });
        cell.addEventListener('dragover', event => {
            if (this.dragged !== undefined) {
                event.preventDefault();
                cell.classList.add('over');
            }
        });
        cell.addEventListener('dragleave', () => cell.classList.remove('over'));
        cell.addEventListener('drop', event => {
            event.preventDefault();
            cell.classList.remove('over');
            if (this.dragged !== undefined)
                this.move(this.dragged, i);
            this.dragged = undefined;
        });
        button.addEventListener('dragend', () => { this.dragged = undefined; });
        button.addEventListener('keydown', event => {
            const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
            if (!by)
                return;
            event.preventDefault();
            if (event.altKey) {
                this.move(i, i + by);
                /** @type {HTMLElement | null} */ (this.head.querySelector(`[data-column="${CSS.escape(column.id)}"] .sort`))?.focus();
            } else if (event.shiftKey) {
                resize(entry.width + by * 16);
                this.wishes.changed(this.chosen);
            } else {
                this.toHeading(i + 1 + by);
            }
        });
        button.addEventListener('focus', () => this.stopAt(button));
        return cell;
    }

    /** The header is one stop of the tabulator: arrows go from column to column. @param {number} i 0: the box that selects all */
    toHeading(i) {
        /** @type {HTMLElement | null | undefined} */ (this.head.children[i]?.querySelector('.sort, .all-box'))?.focus();
    }

    /** @param {HTMLElement} el of the header */
    stopAt(el) {
        for (const other of /** @type {NodeListOf<HTMLElement>} */ (this.head.querySelectorAll('.sort, .all-box')))
            other.tabIndex = other === el ? 0 : -1;
    }

    /**
     * @param {number} from
     * @param {number} to
     */
    move(from, to) {
        if (to < 0 || to >= this.chosen.length || from === to)
            return;
        const chosen = this.chosen.slice();
        chosen.splice(to, 0, ...chosen.splice(from, 1));
        this.setColumns(chosen);
        this.wishes.changed(chosen);
    }

    /**
     * @param {string} id
     * @param {boolean} down
     */
    setSort(id, down) {
        this.sort = { id, down };
        this.drawSort();
    }

    drawSort() {
        for (const cell of /** @type {NodeListOf<HTMLElement>} */ (this.head.querySelectorAll('[data-column]'))) {
            const on = cell.dataset.column === this.sort.id;
            if (on)
                cell.setAttribute('aria-sort', this.sort.down ? 'descending' : 'ascending');
            else
                cell.removeAttribute('aria-sort');
            fill(/** @type {Element} */ (cell.querySelector('.sort-sign')), on ? icon(this.sort.down ? 'down' : 'up', 11) : null);
        }
    }

    /**
     * @param {Run[]} runs in order
     * @param {boolean} complete are these all there are?
     */
    show(runs, complete) {
        this.runs = runs;
        this.table.setAttribute('aria-rowcount', complete ? String(runs.length + 1) : '-1');
        if (this.at >= runs.length)
            this.at = 0;
        this.rows.show(runs);
        this.mark();
    }

    make() {
        const box = h('input', { type: 'checkbox', class: 'pick-box', tabindex: -1 });
        const row = h('div', { class: 'grid-row run', role: 'row' }, h('div', { class: 'grid-cell pick', role: 'cell' }, box));
        let lead = 0;
        for (const { column } of this.chosen) {
            // On a phone a row is a card: it shows the first values next to the run, its state and its progress.
            const isLead = !['state', 'name', 'progress', 'tags', 'reason', 'course'].includes(column.id) && lead++ < 2;
            row.append(h('div', { class: `grid-cell k-${/^\w+$/.test(column.id) ? column.id : 'value'}${column.num ? ' num' : ''}${isLead ? ` lead lead-${lead}` : ''}`, role: 'cell', data: { label: column.title } }));
        }
        return row;
    }

    /**
     * @param {HTMLElement} row
     * @param {Run} run
     * @param {number} index
     */
    draw(row, run, index) {
        const on = this.selected.has(run.id);
        row.setAttribute('aria-rowindex', String(index + 2));
        row.dataset.id = run.id;
        row.toggleAttribute('data-selected', on);
        const box = /** @type {HTMLInputElement} */ (row.firstElementChild?.firstElementChild);
        box.checked = on;
        box.setAttribute('aria-label', `Select run ${run.id}, ${run.name}`);
        this.chosen.forEach(({ column }, i) => column.draw(/** @type {HTMLElement} */ (row.children[i + 1]), run));
        this.tabstop(row, index);
    }

    /**
     * One row alone is a stop of the tabulator; arrows go on from there.
     * @param {HTMLElement | undefined} row
     * @param {number} index
     */
    tabstop(row, index) {
        if (!row)
            return;
        const stop = index === this.at ? 0 : -1;
        for (const el of /** @type {NodeListOf<HTMLElement>} */ (row.querySelectorAll('.pick-box, .name')))
            if (el.tabIndex !== stop)
                el.tabIndex = stop;
    }

    /** @param {MouseEvent} event */
    clicked(event) {
        const target = /** @type {Element} */ (event.target);
        const row = /** @type {HTMLElement | null} */ (target.closest('.grid-row'));
        if (!row)
            return;
        const index = this.rows.indexOf(row);
        const tag = /** @type {HTMLElement | null} */ (target.closest('[data-tag]'));
        if (tag) {
            this.wishes.tag(/** @type {string} */ (tag.dataset.tag));
        } else if (target.closest('.pick')) {
            if (!(target instanceof HTMLInputElement))
                event.preventDefault();
            this.toggle(index, event.shiftKey);
        } else if (!target.closest('a') && !getSelection()?.toString()) {
            /** @type {HTMLElement | null} */ (row.querySelector('a.name'))?.click();
        }
    }

    /**
     * @param {number} index
     * @param {boolean} range from the last box on
     */
    toggle(index, range) {
        const run = this.runs[index];
        if (!run)
            return;
        const on = !this.selected.has(run.id);
        const from = range && this.anchor >= 0 ? Math.min(this.anchor, index) : index;
        const to = range && this.anchor >= 0 ? Math.max(this.anchor, index) : index;
        for (let i = from; i <= to; i++) {
            if (on)
                this.selected.add(this.runs[i].id);
            else
                this.selected.delete(this.runs[i].id);
        }
        this.anchor = index;
        this.tell();
    }

    /** @param {Iterable<string>} ids */
    select(ids) {
        this.selected = new Set(ids);
        this.tell();
    }

    clear() {
        this.selected.clear();
        this.anchor = -1;
        this.tell();
    }

    tell() {
        this.rows.paint(true);
        this.mark();
        this.wishes.selected(this.selected);
    }

    mark() {
        if (!this.all)
            return;
        const n = this.selected.size;
        this.all.checked = n > 0 && n >= this.runs.length;
        this.all.indeterminate = n > 0 && n < this.runs.length;
    }

    /** @param {KeyboardEvent} event */
    key(event) {
        const page = Math.max(1, Math.floor(Math.min(innerHeight, this.el.clientHeight) / this.rows.height) - 2);
        const index = this.rows.indexOf(/** @type {Node} */ (event.target));
        const to = { ArrowDown: index + 1, ArrowUp: index - 1, j: index + 1, k: index - 1, Home: 0, End: this.runs.length - 1, PageDown: index + page, PageUp: index - page }[event.key];
        if (index >= 0 && to !== undefined && !event.altKey && !event.ctrlKey && !event.metaKey) {
            event.preventDefault();
            const next = Math.min(this.runs.length - 1, Math.max(0, to));
            const row = this.rows.reveal(next);
            const part = document.activeElement?.classList.contains('pick-box') ? '.pick-box' : '.name';
            /** @type {HTMLElement | null | undefined} */ (row?.querySelector(part))?.focus({ preventScroll: true });
            if (event.shiftKey && event.key.startsWith('Arrow') && this.anchor >= 0)
                this.toggle(next, false);
        } else if (index >= 0 && (event.key === ' ' || event.key === 'x') && event.target instanceof HTMLAnchorElement) {
            event.preventDefault();
            this.toggle(index, event.shiftKey);
        }
    }
}
