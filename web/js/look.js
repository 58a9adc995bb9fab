// How a page of charts looks at its curves: smoothing, scale, axis, the stretch of steps, which charts and how many next to each
// other. One bar of controls for the run page and the comparison; the address keeps what was chosen.
import { formatStates, freshState, parseStates } from './chart/state.js';
import { h, icon } from './dom.js';

/** @typedef {import('./chart.js').Look} Look */

const words = { step: 'Step', time: 'Time', epoch: 'Epoch' };
const axes = /** @type {const} */ (['step', 'time', 'epoch']);
const STORED = 'polyd.smoothing';
const USUAL = '0.6';

/** @param {number} x */
const clamp = x => (Number.isFinite(x) ? Math.min(.99, Math.max(0, x)) : .6);

/** Smoothing as one chose it last: its weight, and "g" behind it for a Gaussian. */
function stored() {
    try {
        return localStorage.getItem(STORED) ?? USUAL;
    } catch {
        return USUAL; // storage may be forbidden; the link still keeps it
    }
}

export class LookBar {
    /**
     * @param {import('./types').ViewContext} context
     * @param {object} on
     * @param {(look: Look) => void} on.look
     * @param {(range: [number, number] | null) => void} on.range
     * @param {() => void} [on.panels] other panels are wanted: there is a field to find them and a choice of columns
     */
    constructor(context, on) {
        const { query } = context;
        this.context = context;
        this.on = on;
        const x = query.get('x');
        const smoothing = query.get('smooth') ?? stored();
        /** @type {Look} */
        this.look = {
            smoothing: clamp(parseFloat(smoothing)),
            kind: smoothing.endsWith('g') ? 'gauss' : 'ema',
            log: query.get('log') === '1',
            axis: x === 'time' || x === 'epoch' ? x : 'step',
        };
        /** In steps. @type {[number, number] | null} */
        this.range = null;
        const from = Number(query.get('from'));
        const to = Number(query.get('to'));
        if (query.get('to') && to > from)
            this.range = [from, to];
        /** Settings of single charts. @type {Map<string, import('./chart/state.js').PanelState>} */
        this.states = parseStates(query.get('p'));
        this.big = query.get('big') ?? '';

        const slider = h('input', { type: 'range', min: 0, max: 0.99, step: 0.01, value: this.look.smoothing, 'aria-label': 'Smoothing' });
        const amount = h('input', { type: 'number', min: 0, max: 0.99, step: 0.01, value: this.look.smoothing, class: 'amount', 'aria-label': 'Weight of the average' });
        const kind = h('select', { 'aria-label': 'Kind of average', title: 'A moving average follows what went before; a Gaussian looks ahead too, and has no lag' },
            h('option', { value: 'ema' }, 'Moving'), h('option', { value: 'gauss' }, 'Gaussian'));
        kind.value = this.look.kind;
        slider.addEventListener('input', () => {
            amount.value = slider.value;
            this.set({ smoothing: clamp(Number(slider.value)) });
        });
        amount.addEventListener('input', () => {
            if (amount.value === '' || !amount.checkValidity())
                return;
            slider.value = amount.value;
            this.set({ smoothing: clamp(Number(amount.value)) });
        });
        kind.addEventListener('change', () => this.set({ kind: kind.value === 'gauss' ? 'gauss' : 'ema' }));
        const log = h('input', { type: 'checkbox' });
        log.checked = this.look.log;
        log.addEventListener('change', () => {
            // The page's word goes for all panels: those with a word of their own forget it.
            for (const state of this.states.values())
                state.log = null;
            this.keep();
            this.set({ log: log.checked });
        });
        this.axes = axes.map(axis => h('button', { type: 'button', 'aria-pressed': String(this.look.axis === axis), on: { click: () => this.set({ axis }) } }, words[axis]));
        this.out = h('div', { class: 'row', hidden: this.range === null },
            h('button', { type: 'button', class: 'icon-button', 'aria-label': 'Earlier steps', title: 'Earlier steps', on: { click: () => this.pan(-.5) } }, icon('left')),
            h('button', { type: 'button', class: 'icon-button', 'aria-label': 'Later steps', title: 'Later steps', on: { click: () => this.pan(.5) } }, icon('right')),
            h('button', { type: 'button', on: { click: () => this.zoom(null) } }, icon('reset'), 'Whole run'));
        this.smoothing = h('div', { class: 'inline-row' }, h('label', { class: 'inline' }, 'Smoothing', slider), amount, kind);
        this.axisBox = h('div', { class: 'segments', role: 'group', 'aria-label': 'Horizontal axis' }, this.axes);
        this.find = h('input', { type: 'search', placeholder: 'Panels: grad|loss', 'aria-label': 'Find panels', value: query.get('panels') ?? '', autocomplete: 'off', spellcheck: 'false' });
        this.wide = h('select', { 'aria-label': 'Charts per row' }, [['', 'Auto'], ['1', '1 column'], ['2', '2 columns'], ['3', '3 columns'], ['4', '4 columns']].map(([value, word]) => h('option', { value }, word)));
        this.wide.value = /^[1-4]$/.test(query.get('wide') ?? '') ? /** @type {string} */ (query.get('wide')) : '';
        this.find.addEventListener('input', () => {
            context.setQuery({ panels: this.find.value.trim() });
            on.panels?.();
        });
        this.wide.addEventListener('change', () => {
            context.setQuery({ wide: this.wide.value });
            on.panels?.();
        });
        this.el = h('div', { class: 'toolbar' },
            this.smoothing,
            h('label', { class: 'inline' }, log, 'Log scale'),
            this.axisBox,
            on.panels ? h('div', { class: 'inline-row' }, h('div', { class: 'search find-panels' }, icon('search'), this.find), this.wide) : null,
            this.out);
        this.write();
    }

    /** @param {Partial<Look>} part */
    set(part) {
        Object.assign(this.look, part);
        this.axes.forEach((button, i) => button.setAttribute('aria-pressed', String(axes[i] === this.look.axis)));
        this.write();
        if (part.smoothing !== undefined || part.kind)
            try {
                localStorage.setItem(STORED, this.smoothText());
            } catch { /* as above */ }
        this.on.look({ ...this.look });
    }

    smoothText() {
        return `${this.look.smoothing}${this.look.kind === 'gauss' ? 'g' : ''}`;
    }

    write() {
        const { log, axis } = this.look;
        const smoothing = this.smoothText();
        this.context.setQuery({ smooth: smoothing === USUAL ? null : smoothing, log: log ? '1' : null, x: axis === 'step' ? null : axis });
    }

    /**
     * The state of a panel, which the address keeps once `keep` is called.
     * @param {string} id
     */
    stateOf(id) {
        const state = this.states.get(id) ?? freshState();
        this.states.set(id, state);
        return state;
    }

    keep() {
        this.context.setQuery({ p: formatStates(this.states) || null });
    }

    /**
     * @param {string} id
     * @param {boolean} big
     */
    keepBig(id, big) {
        this.big = big ? id : '';
        this.context.setQuery({ big: this.big || null });
    }

    /**
     * Is the panel one of those looked for? What is no regular expression is taken as it stands.
     * @param {import('./metrics.js').Panel} panel
     */
    fits(panel) {
        const text = this.find.value.trim();
        const about = `${panel.title} ${panel.id} ${panel.keys.join(' ')}`.toLowerCase();
        try {
            return new RegExp(text, 'i').test(about);
        } catch {
            return about.includes(text.toLowerCase());
        }
    }

    /**
     * Without the length of an epoch there is no such axis.
     * @param {boolean} known
     * @param {string} [why]
     */
    epochs(known, why = '') {
        const button = this.axes[2];
        button.disabled = !known;
        button.title = known ? '' : why;
        if (!known && this.look.axis === 'epoch')
            this.set({ axis: 'step' });
    }

    /** @param {[number, number] | null} range in steps */
    zoom(range) {
        if (range) {
            const from = Math.max(0, Math.floor(range[0]));
            const to = Math.ceil(range[1]);
            if (to - from < 2)
                return;
            range = this.last > 0 && from === 0 && to >= this.last ? null : [from, to];
        }
        this.range = range;
        this.out.hidden = range === null;
        this.context.setQuery({ from: range ? String(range[0]) : null, to: range ? String(range[1]) : null });
        this.on.range(range);
    }

    /** @param {number} by share of what is shown */
    pan(by) {
        if (!this.range)
            return;
        const [from, to] = this.range;
        const room = this.last > 0 ? Math.max(0, this.last - to) : Infinity;
        const shift = Math.max(-from, Math.min(room, Math.round((to - from) * by)));
        if (shift !== 0)
            this.zoom([from + shift, to + shift]);
    }

    /** @param {number} by times what is shown, about its middle */
    widen(by) {
        if (!this.range)
            return;
        const [from, to] = this.range;
        const more = (to - from) * (by - 1) / 2;
        this.zoom([from - more, to + more]);
    }

    last = 0; // step that the longest curve ends at
}

/**
 * A stretch of a chart's axis as steps, which is what the API cuts by.
 * @param {[number, number]} wanted in the axis' unit
 * @param {import('./chart.js').Chart[]} charts
 * @returns {[number, number] | null}
 */
export function toSteps(wanted, charts) {
    const [low, high] = wanted;
    const inside = charts.flatMap(chart => chart.curves.flatMap(curve => curve.buckets.filter(b => {
        const x = chart.x(curve, b);
        return x >= low && x <= high;
    })));
    if (inside.length < 2)
        return null;
    return [Math.min(...inside.map(b => b.first)), Math.max(...inside.map(b => b.last))];
}
