// How a page of charts looks at its curves: smoothing, scale, axis, and the stretch of steps. One bar of controls for
// the run page and the comparison; the address keeps what was chosen.
import { h, icon, setText } from './dom.js';

/** @typedef {import('./chart.js').Look} Look */

const words = { step: 'Step', time: 'Time', epoch: 'Epoch' };
const axes = /** @type {const} */ (['step', 'time', 'epoch']);

/** @param {number} x */
const clamp = x => (Number.isFinite(x) ? Math.min(.98, Math.max(0, x)) : .6);

export class LookBar {
    /**
     * @param {import('./types').ViewContext} context
     * @param {object} on
     * @param {(look: Look) => void} on.look
     * @param {(range: [number, number] | null) => void} on.range
     */
    constructor(context, on) {
        const { query } = context;
        this.context = context;
        this.on = on;
        const x = query.get('x');
        /** @type {Look} */
        this.look = {
            smoothing: clamp(Number(query.get('smooth') ?? .6)),
            log: query.get('log') === '1',
            axis: x === 'time' || x === 'epoch' ? x : 'step',
        };
        /** In steps. @type {[number, number] | null} */
        this.range = null;
        const from = Number(query.get('from'));
        const to = Number(query.get('to'));
        if (query.get('to') && to > from)
            this.range = [from, to];

        const slider = h('input', { type: 'range', min: 0, max: 0.98, step: 0.02, value: this.look.smoothing, 'aria-label': 'Smoothing' });
        const amount = h('output', null, this.look.smoothing.toFixed(2));
        slider.addEventListener('input', () => {
            setText(amount, Number(slider.value).toFixed(2));
            this.set({ smoothing: Number(slider.value) });
        });
        const log = h('input', { type: 'checkbox' });
        log.checked = this.look.log;
        log.addEventListener('change', () => this.set({ log: log.checked }));
        this.axes = axes.map(axis => h('button', { type: 'button', 'aria-pressed': String(this.look.axis === axis), on: { click: () => this.set({ axis }) } }, words[axis]));
        this.out = h('div', { class: 'row', hidden: this.range === null },
            h('button', { type: 'button', class: 'icon-button', 'aria-label': 'Earlier steps', title: 'Earlier steps', on: { click: () => this.pan(-.5) } }, icon('left')),
            h('button', { type: 'button', class: 'icon-button', 'aria-label': 'Later steps', title: 'Later steps', on: { click: () => this.pan(.5) } }, icon('right')),
            h('button', { type: 'button', on: { click: () => this.zoom(null) } }, icon('reset'), 'Whole run'));
        this.smoothing = h('label', { class: 'inline' }, 'Smoothing', slider, amount);
        this.axisBox = h('div', { class: 'segments', role: 'group', 'aria-label': 'Horizontal axis' }, this.axes);
        this.el = h('div', { class: 'toolbar' },
            this.smoothing,
            h('label', { class: 'inline' }, log, 'Log scale'),
            this.axisBox,
            this.out);
    }

    /** @param {Partial<Look>} part */
    set(part) {
        Object.assign(this.look, part);
        const { smoothing, log, axis } = this.look;
        this.axes.forEach((button, i) => button.setAttribute('aria-pressed', String(axes[i] === axis)));
        this.context.setQuery({ smooth: smoothing === .6 ? null : String(smoothing), log: log ? '1' : null, x: axis === 'step' ? null : axis });
        this.on.look({ ...this.look });
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
