// The menu of a panel: its own scale and range, and what it is saved as.
import { fill, h, icon, toast } from '../dom.js';
import { codes, copyFigure, formats, saveFigure } from './save.js';

/** @typedef {() => import('./figure.js').Figure} Make */

/**
 * What a figure is saved and copied as.
 * @param {() => Make | null} figure
 * @param {string} name of the file
 * @param {() => void} done
 */
function saveRows(figure, name, done) {
    const button = (/** @type {string} */ word, /** @type {(make: Make) => void} */ act) => h('button', { type: 'button', class: 'small-button', on: { click: () => {
        const make = figure();
        if (make)
            act(make);
        done();
    } } }, word);
    const now = figure()?.();
    const curves = !now?.cells && !now?.drawing && !now?.bars; // what the code of others can draw too
    return [h('div', { class: 'row', role: 'group', 'aria-label': 'Save the chart' }, h('span', { class: 'muted' }, 'Save'), formats.map(({ id, word }) => button(word, make => saveFigure(make, id, name)))),
        ...curves ? [h('div', { class: 'row', role: 'group', 'aria-label': 'Copy code that draws the chart' }, h('span', { class: 'muted' }, 'Copy'), codes.map(({ id }) => button(id, make => copyFigure(make, id))))] : []];
}

/**
 * A button with a box of its own that opens below it. The box is filled each time.
 * @param {string} label
 * @param {import('../dom.js').IconName} sign
 * @param {() => (Node | null)[]} content
 */
export function popover(label, sign, content) {
    const box = h('div', { class: 'hint menu', popover: 'auto', role: 'group', 'aria-label': label });
    const button = h('button', { type: 'button', class: 'quiet icon-button small-button', 'aria-label': label, title: label, 'aria-expanded': 'false' }, icon(sign, 14));
    box.addEventListener('toggle', event => button.setAttribute('aria-expanded', String(/** @type {ToggleEvent} */ (event).newState === 'open')));
    button.addEventListener('click', () => {
        if (!box.isConnected)
            button.after(box);
        fill(box, content());
        if (typeof box.togglePopover !== 'function') {
            toast('This browser does not support this menu.', 'bad');
            return;
        }
        if (!box.togglePopover())
            return;
        const at = button.getBoundingClientRect();
        box.style.left = `${Math.max(12, Math.min(innerWidth - box.offsetWidth - 12, at.right - box.offsetWidth))}px`;
        const below = at.bottom + 6;
        box.style.top = `${below + box.offsetHeight > innerHeight - 12 ? Math.max(12, at.top - box.offsetHeight - 6) : below}px`;
        /** @type {HTMLElement | null} */ (box.querySelector('button, select, input'))?.focus();
    });
    return { button, close: () => box.isConnected && box.hidePopover?.() };
}

/**
 * @param {string} title of the panel
 * @param {object} panel
 * @param {() => import('./state.js').PanelState} panel.state
 * @param {() => boolean} panel.log is its scale logarithmic now?
 * @param {() => [number, number]} panel.range of its vertical axis now
 * @param {(part: Partial<import('./state.js').PanelState>) => void} panel.set
 * @param {Make} panel.figure
 * @param {() => string} panel.file name of what it is saved as
 */
export function panelMenu(title, panel) {
    const menu = popover(`${title}: scale, range, save`, 'more', () => {
        const { fit } = panel.state();
        const scale = h('div', { class: 'segments', role: 'group', 'aria-label': 'Vertical scale' }, [false, true].map(log => h('button', {
            type: 'button', 'aria-pressed': String(panel.log() === log), on: { click: () => {
                panel.set({ log });
                for (const [i, b] of [...scale.children].entries())
                    b.setAttribute('aria-pressed', String(Boolean(i) === log));
            } } }, log ? 'Log' : 'Linear')));
        const reach = h('select', { 'aria-label': 'Vertical range' }, [['all', 'All values, smallest to largest'], ['lines', 'Fit the lines'], ['clip', 'Without outliers (1 to 99 %)'], ['set', 'From … to …']]
            .map(([value, word]) => h('option', { value }, word)));
        reach.value = Array.isArray(fit) ? 'set' : fit;
        const [low, high] = panel.range();
        const field = (/** @type {string} */ label, /** @type {number} */ value) => h('input', { type: 'number', step: 'any', 'aria-label': label, value: Number(value.toPrecision(4)) });
        const from = field('From', Array.isArray(fit) ? fit[0] : low), to = field('To', Array.isArray(fit) ? fit[1] : high);
        const own = h('div', { class: 'row range-row', hidden: reach.value !== 'set' }, from, 'to', to);
        const byHand = () => {
            if (from.value !== '' && to.value !== '' && Number(to.value) > Number(from.value))
                panel.set({ fit: [Number(from.value), Number(to.value)] });
        };
        reach.addEventListener('change', () => {
            own.hidden = reach.value !== 'set';
            if (reach.value === 'set')
                byHand();
            else
                panel.set({ fit: /** @type {'all' | 'lines' | 'clip'} */ (reach.value) });
        });
        from.addEventListener('change', byHand);
        to.addEventListener('change', byHand);
        return [scale, h('label', { class: 'stack-s' }, h('span', { class: 'muted' }, 'Vertical range'), reach), own,
            ...saveRows(() => panel.figure, panel.file(), () => menu.close())];
    });
    return menu.button;
}

/**
 * A menu that only saves, for figures of one look.
 * @param {string} title
 * @param {() => (() => import('./figure.js').Figure) | null} figure
 * @param {string} name of the file
 */
export function panelSave(title, figure, name) {
    const menu = popover(`${title}: save`, 'download', () => saveRows(figure, name, () => menu.close()));
    return menu.button;
}
