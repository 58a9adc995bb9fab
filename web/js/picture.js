// A card with one picture: a figure of the one exporter painted on the page as it is saved, with its menu, a sentence for
// screen readers, its numbers as a table, and for cells a cursor that pointer and arrow keys move.
import { fill, h, setText } from './dom.js';
import { paintFigure, sizeOf } from './chart/figure.js';
import { panelSave } from './chart/menu.js';
import { canvasPainter } from './chart/painters.js';
import { colour, fontFamily, onTheme } from './theme.js';

/** @typedef {import('./chart/figure.js').Figure} Figure */

/**
 * @typedef {object} Subject what a picture shows
 * @property {(width: number) => Figure} make draws it in the available width; called again for each size and theme
 * @property {string} says one sentence: what is seen
 * @property {string[][]} [table] the numbers for people, with a header; left out: the figure's rows
 * @property {(row: number, column: number) => string} [read] what stands at a cell
 */

const TABLE_ROWS = 60;

export class Picture {
    /**
     * @param {string} title
     * @param {{signal: AbortSignal, file: string, note?: string, moved?: (cell: {row: number, column: number}) => void}} how `file`: name of what is saved
     */
    constructor(title, { signal, file, note = '', moved }) {
        /** @type {Subject | null} */
        this.subject = null;
        /** @type {{row: number, column: number} | null} */
        this.cursor = null;
        this.moved = moved;
        this.width = 0;
        this.canvas = h('canvas', { role: 'img', 'aria-label': `${title}: loading` });
        this.plot = h('div', { class: 'picture-plot' }, this.canvas);
        this.readout = h('p', { class: 'picture-read small', 'aria-live': 'polite' });
        this.says = h('p', { class: 'muted small' });
        this.table = h('div', { class: 'data-table', tabindex: 0, role: 'region', 'aria-label': `${title}: numbers` });
        const numbers = h('details', null, h('summary', null, 'Numbers'), this.table);
        numbers.addEventListener('toggle', () => this.#fillTable());
        this.numbers = numbers;
        this.heading = h('h3', null, title);
        const save = panelSave(title, () => {
            const { subject } = this;
            return subject && (() => subject.make(Math.max(360, Math.min(900, this.width || 600))));
        }, file);
        this.el = h('section', { class: 'card chart picture', 'aria-label': title }, h('div', { class: 'chart-head' }, this.heading, h('span', { class: 'grow' }), save),
            this.plot, this.readout, this.says, note ? h('p', { class: 'muted small' }, note) : null, h('div', { class: 'chart-foot' }, numbers));
        const size = new ResizeObserver(() => this.paint());
        size.observe(this.plot);
        signal.addEventListener('abort', () => size.disconnect());
        onTheme(() => this.paint(), signal);
        this.canvas.addEventListener('pointermove', event => this.#point(event));
        this.canvas.addEventListener('pointerdown', event => this.#point(event));
        this.canvas.addEventListener('keydown', event => this.#key(event));
    }

    /** @param {Subject} subject */
    show(subject) {
        this.subject = subject;
        setText(this.says, subject.says);
        this.canvas.setAttribute('aria-label', subject.says);
        if (subject.read) {
            this.canvas.tabIndex = 0;
            this.canvas.setAttribute('aria-roledescription', 'picture; arrow keys move through its cells');
        } else {
            this.canvas.removeAttribute('tabindex');
        }
        this.paint();
        this.#read();
        this.#fillTable();
    }

    paint() {
        const { subject } = this;
        const width = Math.floor(this.plot.clientWidth);
        if (!subject || width < 40)
            return;
        this.width = width;
        const figure = { ...subject.make(Math.max(300, width)), title: '' }; // the card has one
        figure.cursor = subject.read ? this.cursor : null;
        const [wide, high] = sizeOf(figure), ratio = window.devicePixelRatio || 1;
        this.canvas.width = Math.round(wide * ratio);
        this.canvas.height = Math.round(high * ratio);
        this.canvas.style.width = `${wide}px`;
        this.canvas.style.height = `${high}px`;
        const context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext('2d'));
        context.scale(ratio, ratio);
        paintFigure(figure, canvasPainter(context, fontFamily()), { text: colour('text'), muted: colour('muted'), grid: colour('grid'), surface: colour('surface') });
        this.figure = figure;
    }

    /** Looks at a cell, or at none. @param {{row: number, column: number} | null} cell */
    look(cell) {
        const { figure } = this;
        if (cell && figure?.cells)
            cell = { row: Math.min(figure.cells.rows - 1, Math.max(0, cell.row)), column: Math.min(figure.cells.columns - 1, Math.max(0, cell.column)) };
        if (cell?.row === this.cursor?.row && cell?.column === this.cursor?.column)
            return;
        this.cursor = cell;
        this.paint();
        this.#read();
    }

    #read() {
        this.readout.hidden = !this.subject?.read;
        setText(this.readout, this.subject?.read && this.cursor ? this.subject.read(this.cursor.row, this.cursor.column) : '');
    }

    /** @param {PointerEvent} event */
    #point(event) {
        const { figure } = this;
        if (!figure?.cells || !this.subject?.read)
            return;
        const at = cellAt(figure, event.offsetX, event.offsetY);
        if (!at)
            return;
        this.look(at);
        this.moved?.(at);
    }

    /** @param {KeyboardEvent} event */
    #key(event) {
        const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
        if (!step || !this.subject?.read || !this.figure?.cells)
            return;
        event.preventDefault();
        const by = event.shiftKey ? 10 : 1, now = this.cursor ?? { row: -step[0] * by, column: -step[1] * by };
        this.look({ row: now.row + step[0] * by, column: now.column + step[1] * by });
        if (this.cursor)
            this.moved?.(this.cursor);
    }

    #fillTable() {
        if (!this.numbers.open || !this.subject)
            return;
        const rows = this.subject.table ?? this.subject.make(600).rows, [header, ...body] = rows;
        fill(this.table, h('table', { class: 'table' }, h('thead', null, h('tr', null, header.map(cell => h('th', { scope: 'col' }, cell)))),
            h('tbody', null, body.slice(0, TABLE_ROWS).map(row => h('tr', null, row.map(cell => h('td', null, cell)))))),
        body.length > TABLE_ROWS ? h('p', { class: 'muted small pad' }, `The first ${TABLE_ROWS} of ${body.length} rows; the CSV has all.`) : null);
    }
}

/**
 * The cell at a point of the painted figure.
 * @param {Figure} figure
 * @param {number} x
 * @param {number} y
 */
export function cellAt(figure, x, y) {
    if (!figure.cells)
        return null;
    const head = sizeOf(figure)[1] - figure.height;
    const box = { left: 62, right: figure.width - (figure.key ? 84 : 20), top: head + 8, bottom: head + figure.height - 42 };
    const share = (/** @type {number} */ v, /** @type {number} */ from, /** @type {number} */ to) => (v - from) / (to - from);
    const across = share(x, box.left, box.right), down = share(y, box.bottom, box.top);
    if (across < 0 || across >= 1 || down < 0 || down >= 1)
        return null;
    const column = Math.floor(figure.x.low + across * (figure.x.high - figure.x.low)), row = Math.floor(figure.y.low + down * (figure.y.high - figure.y.low));
    return row < 0 || column < 0 || row >= figure.cells.rows || column >= figure.cells.columns ? null : { row, column };
}
