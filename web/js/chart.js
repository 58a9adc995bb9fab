// One panel of curves, drawn by uPlot from honest buckets: the line is the mean of a bucket, the band its minimum
// and maximum. Nothing is sampled: a bucket that hides a spike in its mean shows it in its band and by a dot.
import uPlot from '/vendor/uplot.js';

import { panelMenu } from './chart/menu.js';
import { freshState } from './chart/state.js';
import { clock, distinctWords, linearTicks, logTicks, reach, tickMarks, timeSteps, within } from './chart/ticks.js';
import { hideTip, showTip } from './chart/tip.js';
import { fill, h, icon, line, setText } from './dom.js';
import { count, duration, number } from './format.js';
import { hint } from './hint.js';
import { parseKey, present, seriesName, tickText, unitTitle } from './metrics.js';
import { smooth, spikes, unitOf } from './smooth.js';
import { colour, fontFamily, onTheme, ordered } from './theme.js';

/** @typedef {import('./types').Curve} Curve */
/** @typedef {import('./types').Bucket} Bucket */
/** @typedef {import('./chart/state.js').PanelState} PanelState */
/** @typedef {{smoothing: number, kind: 'ema' | 'gauss', log: boolean, axis: 'step' | 'time' | 'epoch'}} Look */

const palette = ['s1', 's2', 's3', 's4', 's5', 's6', 's7'];
/** A second mark in addition to colour, if lines have no common order. */
const dashes = [[], [6, 4], [2, 3], [10, 4, 2, 4]];
const HEIGHT = 230, TALL = 280, BIG = 520, LOW = 184; // px; LOW: on a phone
/** A window in which panels stand below each other, as css/narrow.css has it. */
export const NARROW = '(max-width: 680px)';
const NEAR = 32; // px: the cursor reads the point that stands within
const LABELLED = 6; // more lines of layers than this are labelled by a number at their end
const axisWords = { step: 'Step', time: 'Time', epoch: 'Epoch' };

/**
 * Colour and dashes of a line by its number: seven colours and four dashes have no common divisor, so 28 lines differ.
 * @param {number} i
 * @returns {[string, number[]]}
 */
export const inkOf = i => [colour(palette[i % palette.length]), dashes[i % dashes.length]];

/**
 * The keys of a layered panel: of whole layers, and of heads.
 * @param {import('./metrics.js').Panel} panel
 */
function depths({ id, keys, layered }) {
    const of = (/** @type {number} */ depth) => (layered ? keys.filter(key => key.slice(id.length).split('/').length - 1 === depth) : []);
    return { layers: of(1), heads: of(2) };
}

/**
 * What a panel draws: of a layered one the layers, or the heads of one layer.
 * @param {import('./metrics.js').Panel} panel
 * @param {number} layer 0: all
 */
export function keysShown(panel, layer) {
    if (!panel.layered)
        return panel.keys;
    const { layers, heads } = depths(panel);
    const chosen = heads.filter(key => key.startsWith(`${panel.id}/${layer}/`));
    return chosen.length > 0 ? chosen : layers.length > 0 ? layers : heads;
}

/** The chart under the pointer: it alone shows the box of values. @type {Chart | null} */
let hovered = null;

export class Chart {
    /**
     * @param {import('./metrics.js').Panel} panel
     * @param {Look} look
     * @param {object} options
     * @param {AbortSignal} options.signal
     * @param {(range: [number, number] | null) => void} options.zoom to a stretch in the axis' unit, or all of it
     * @param {(by: number) => void} options.pan by a share of what is shown
     * @param {(by: number) => void} options.widen to so many times what is shown
     * @param {() => void} options.more other keys are wanted now
     * @param {() => number | null} options.began moment (s) that relative time starts at
     * @param {() => number | null} options.epoch steps of an epoch, if known
     * @param {() => number} [options.span] steps of the whole run: smoothing counts by it
     * @param {PanelState} [options.state] kept by the page
     * @param {() => void} [options.changed] the state has
     * @param {(big: boolean) => void} [options.expand] without it the panel keeps its size
     * @param {boolean} [options.legend] false: the page has one for all panels
     * @param {string} [options.name] of the file that a picture is saved as
     */
    constructor(panel, look, options) {
        this.panel = panel;
        this.look = look;
        this.options = options;
        this.state = options.state ?? freshState();
        /** @type {Curve[]} */
        this.curves = [];
        /** By curve, drawn. @type {(number | null)[][]} */
        this.lines = [];
        /** Of each curve: where its points stand in the common columns, and their x. @type {{at: number[], x: number[]}[]} */
        this.places = [];
        /** @type {{at: number, value: number}[][]} */
        this.spikes = [];
        /** @type {uPlot | null} */
        this.plot = null;
        this.layer = 0; // of a layered panel: 0 shows the layers, k the heads of layer k
        this.shownKeys = '';
        this.big = false;
        this.log = false;
        /** @type {[number, number]} */
        this.range = [0, 1];
        /** Highlighted by the page. @type {string | null} */
        this.lit = null;

        this.place = h('div', { class: 'chart-plot', role: 'img', tabindex: 0, 'aria-label': panel.title });
        this.place.addEventListener('keydown', event => this.key(event));
        this.legend = h('div', { class: 'legend', data: { layered: panel.layered }, hidden: options.legend === false });
        this.foot = h('span');
        this.table = h('div', { class: 'data-table', tabindex: 0, role: 'region', 'aria-label': `${panel.title}, as numbers` });
        const details = h('details', { on: { toggle: () => this.drawTable() } }, h('summary', null, 'Numbers'), this.table);
        this.details = details;
        this.picker = h('select', { 'aria-label': `${panel.title}: which series`, hidden: true });
        this.picker.addEventListener('change', () => {
            this.layer = Number(this.picker.value);
            this.options.more();
        });
        const unit = unitTitle(panel.metric);
        this.grow = h('button', { type: 'button', class: 'quiet icon-button small-button', hidden: !options.expand, on: { click: () => this.expand(!this.big, true) } });
        this.el = h('section', { class: 'card chart', 'aria-label': panel.title, data: { panel: panel.id } },
            h('div', { class: 'chart-head' }, h('h3', null, panel.title), unit ? h('span', { class: 'muted small unit' }, unit) : null,
                hint(panel.metric), h('span', { class: 'grow' }), this.picker,
                panelMenu(panel.title, { state: () => this.state, log: () => this.log, range: () => this.range, set: part => this.set(part),
                    figure: () => this.figure(), file: () => `${this.options.name ?? 'chart'}-${this.panel.id}` }), this.grow),
            this.legend, this.place, h('div', { class: 'chart-foot' }, this.foot, details));
        this.expand(false, false);

        const observer = new ResizeObserver(() => this.resize());
        observer.observe(this.place);
        // What is out of sight does not follow the pointer: sixteen panels would be worked out at each of its moves.
        const sight = new IntersectionObserver(([entry]) => {
            this.inSight = entry.isIntersecting;
            this.follow();
        });
        sight.observe(this.el);
        options.signal.addEventListener('abort', () => {
            observer.disconnect();
            sight.disconnect();
            this.leave();
            this.plot?.destroy();
        });
        onTheme(() => this.draw(true), options.signal);
    }

    /**
     * @param {Curve[]} curves
     */
    show(curves) {
        this.curves = curves;
        this.draw();
    }

    /** @param {Look} look */
    restyle(look) {
        this.look = look;
        this.draw();
    }

    /** @param {Partial<PanelState>} part */
    set(part) {
        Object.assign(this.state, part);
        this.options.changed?.();
        this.draw(true);
    }

    /**
     * @param {boolean} big
     * @param {boolean} tell
     */
    expand(big, tell) {
        this.big = big;
        this.el.toggleAttribute('data-big', big);
        fill(this.grow, icon(big ? 'shrink' : 'expand', 13));
        const word = `${this.panel.title}: ${big ? 'restore size' : 'enlarge'}`;
        this.grow.setAttribute('aria-label', word);
        this.grow.title = word;
        this.grow.setAttribute('aria-pressed', String(big));
        if (tell) {
            this.options.expand?.(big);
            this.resize();
        }
    }

    height() {
        return this.big ? Math.max(HEIGHT, Math.min(BIG, innerHeight - 260)) : matchMedia(NARROW).matches ? LOW : this.el.hasAttribute('data-wide') ? TALL : HEIGHT;
    }

    /**
     * The keys to be drawn: of a layered panel the layers, or the heads of the layer that was chosen.
     * @returns {string[]}
     */
    wanted() {
        const { layers, heads } = depths(this.panel);
        if (heads.length > 0 && layers.length > 0 && this.picker.childElementCount !== layers.length + 1) {
            const names = layers.map(key => key.split('/').pop());
            fill(this.picker, h('option', { value: 0 }, 'All layers'), names.map(name => h('option', { value: name }, `Layer ${name}: heads`)));
            this.picker.value = String(this.layer);
            this.picker.hidden = false;
        }
        return keysShown(this.panel, this.layer);
    }

    /**
     * @param {Curve} curve
     * @param {number} i
     * @returns {[string, number[]]}
     */
    ink(curve, i) {
        if (curve.ink !== undefined)
            return inkOf(curve.ink);
        const n = this.curves.length;
        return this.panel.layered ? [n > LABELLED ? ordered(i, n) : colour(palette[i % palette.length]), []] : inkOf(i);
    }

    /** @param {Curve} curve */
    nameOf(curve) {
        return curve.name ?? seriesName(curve.key);
    }

    /** @param {Curve} curve */
    shows(curve) {
        return !this.state.hidden.has(curve.key);
    }

    draw(rebuild = false) {
        const { curves } = this;
        const logOk = curves.some(curve => curve.buckets.some(b => (b.mean ?? 0) > 0));
        const wish = this.state.log ?? this.look.log;
        this.log = wish && logOk;
        const data = this.columns_(curves, this.log);
        this.measure();
        const single = curves.length > 0 && curves.every(c => c.buckets.length < 2 && !c.before?.length && !c.after?.length);
        // What is set when a plot is built; the rest comes with its data.
        const keys = [this.look.axis, this.log, ...curves.map(c => `${c.key} ${c.name ?? ''} ${c.ink ?? ''}${c.strong ? ' strong' : ''}${this.smoothingOf(c) > 0 ? ' smoothed' : ''}${hasEdge(c) ? ' edge' : ''}${c.buckets.length < 2 ? ' dots' : ''}${c.exact ? ' exact' : ''}`)].join('\n');
        if (single) {
            this.plot?.destroy();
            this.plot = null;
            this.drawFigures();
        } else if (this.plot && !rebuild && keys === this.shownKeys) {
            this.plot.setData(data);
            this.readout();
        } else {
            this.build(curves, data);
            this.shownKeys = keys;
        }
        const nonfinite = curves.reduce((sum, c) => sum + c.buckets.reduce((n, b) => n + b.nonfinite, 0), 0);
        const most = curves.reduce((n, c) => Math.max(n, c.buckets.length), 0);
        const points = curves.reduce((n, c) => Math.max(n, c.points), 0);
        const found = this.spikes.reduce((n, list, i) => n + (this.shows(curves[i]) ? list.length : 0), 0);
        setText(this.foot, [points > most ? `${count(points)} points in ${count(most)} bucket${most === 1 ? '' : 's'}: ${curves.some(c => c.exact) ? 'mean ± one standard deviation' : 'mean, min to max'}`
            : `${count(points)} point${points === 1 ? '' : 's'}`,
        nonfinite > 0 ? `${count(nonfinite)} not finite` : '', wish && !logOk ? 'no positive value for a log scale' : '',
        found > 0 && curves.length <= 3 ? `${count(found)} spike${found === 1 ? '' : 's'} marked` : '', this.beyond > 0 ? `${count(this.beyond)} beyond the range` : ''].filter(Boolean).join(' · '));
        this.place.setAttribute('aria-label', this.summary(curves));
        if (this.details.open)
            this.drawTable();
    }

    /**
     * Where a bucket stands on the axis.
     * @param {Curve} curve
     * @param {Bucket} b
     */
    x(curve, b) {
        if (this.look.axis === 'time')
            return b.time - (curve.began ?? this.options.began() ?? 0);
        const step = (b.first + b.last) / 2;
        return this.look.axis === 'epoch' ? step / (curve.perEpoch ?? this.options.epoch() ?? 1) : step;
    }

    /**
     * uPlot's columns: x, then for each curve minimum, maximum, raw mean and smoothed mean.
     * @param {Curve[]} curves
     * @param {boolean} log
     * @returns {uPlot.AlignedData}
     */
    columns_(curves, log) {
        const own = curves.map(curve => curve.buckets.map(b => this.x(curve, b)));
        const xs = [...new Set(own.flat())].sort((a, b) => a - b);
        const at = new Map(xs.map((value, i) => [value, i]));
        const fit = (/** @type {number | null} */ v) => (v === null || !Number.isFinite(v) || (log && v <= 0) ? null : v);
        /** @type {any[]} */
        const columns = [xs];
        this.lines = [];
        this.places = [];
        this.spikes = [];
        curves.forEach((curve, c) => {
            const low = new Array(xs.length).fill(undefined);
            const high = new Array(xs.length).fill(undefined);
            const mean = new Array(xs.length).fill(undefined);
            const soft = new Array(xs.length).fill(undefined);
            const weight = this.smoothingOf(curve);
            const before = weight > 0 ? curve.before ?? [] : [];
            const after = weight > 0 ? curve.after ?? [] : [];
            const smoothed = smooth([...before, ...curve.buckets, ...after], weight, unitOf(curve.span ?? this.options.span?.() ?? curve.buckets.at(-1)?.last ?? 1), this.look.kind)
                .slice(before.length, before.length + curve.buckets.length);
            const places = own[c].map(x => /** @type {number} */ (at.get(x)));
            curve.buckets.forEach((b, i) => {
                const k = places[i];
                low[k] = fit(b.min);
                high[k] = fit(b.max);
                mean[k] = fit(b.mean);
                // A smoothed value next to nothing is noise of the arithmetic: only where there is a value is there a logarithm.
                soft[k] = log && !((b.mean ?? 0) > 0) ? null : fit(smoothed[i]);
            });
            this.lines.push(places.map(k => soft[k] ?? null));
            this.places.push({ at: places, x: own[c] });
            this.spikes.push(curve.exact || this.panel.metric.exact || curves.length > 3 ? [] : spikes(curve.buckets, smoothed).filter(s => fit(s.value) !== null));
            columns.push(low, high, mean, soft);
        });
        return /** @type {uPlot.AlignedData} */ (columns);
    }

    /** How far the vertical axis reaches, by what is shown and what one chose. */
    measure() {
        const { fit } = this.state;
        const shown = this.curves.map((curve, i) => ({ curve, i })).filter(({ curve }) => this.shows(curve));
        const good = (/** @type {number | null | undefined} */ v) => v !== null && v !== undefined && Number.isFinite(v) && (!this.log || v > 0);
        const lines = shown.flatMap(({ i }) => this.lines[i]).filter(good);
        const few = this.curves.length <= 3;
        /** @type {(number | null)[]} */
        const values = [];
        for (const { curve, i } of shown) {
            for (const v of this.lines[i])
                values.push(v);
            for (const b of curve.buckets) {
                if (few || curve.exact)
                    values.push(b.min, b.max);
                else if (this.smoothingOf(curve) > 0)
                    values.push(b.mean);
            }
        }
        const all = /** @type {number[]} */ (values.filter(good));
        let [low, high] = [NaN, NaN];
        if (fit === 'clip')
            [low, high] = within(all, .01);
        else
            for (const v of fit === 'lines' ? /** @type {number[]} */ (lines) : all) {
                low = v < low || Number.isNaN(low) ? v : low;
                high = v > high || Number.isNaN(high) ? v : high;
            }
        this.range = Array.isArray(fit) && (!this.log || fit[0] > 0) ? [fit[0], fit[1]] : reach(low, high, this.log);
        this.beyond = fit === 'all' ? 0 : all.filter(v => v < this.range[0] || v > this.range[1]).length;
    }

    beyond = 0; // values that the chosen range leaves out

    /**
     * Smoothing is for the noise between steps: a series of few points, an evaluation, and what was measured on the probe
     * batch, which is always the same, are left as they are.
     * @param {Curve} curve
     */
    smoothingOf(curve) {
        return curve.points < 40 || this.panel.metric.exact || curve.exact || /\/val/.test(curve.key) || parseKey(curve.key).layer !== null ? 0 : this.look.smoothing;
    }

    /** The marks of the horizontal axis. @param {number} low @param {number} high @param {number} about */
    xTicks(low, high, about) {
        if (this.look.axis !== 'time') {
            const ticks = linearTicks(low, high, about);
            return { ticks: this.look.axis === 'step' ? ticks.filter(Number.isInteger) : ticks, step: 1 };
        }
        const step = timeSteps.find(s => (high - low) / s <= about + 1) ?? timeSteps[timeSteps.length - 1];
        const out = [];
        for (let i = Math.ceil(low / step - 1e-9); i * step <= high && out.length < 100; i++)
            out.push(i * step);
        return { ticks: out, step };
    }

    /** @param {number} low @param {number} high @param {number} about */
    yTicks(low, high, about) {
        return this.log ? logTicks(low, high, about + 2) : linearTicks(low, high, about);
    }

    /**
     * @param {Curve[]} curves
     * @param {uPlot.AlignedData} data
     */
    build(curves, data) {
        this.leave();
        this.plot?.destroy();
        this.place.replaceChildren();
        const metric = this.panel.metric;
        const text = colour('muted');
        const grid = { stroke: colour('grid'), width: 1 };
        const font = `11px ${fontFamily()}`;
        /** @type {uPlot.Series[]} */
        const series = [{ label: this.look.axis }];
        /** @type {uPlot.Band[]} */
        const bands = [];
        const few = curves.length <= 3;
        const labelled = this.panel.layered && curves.length > LABELLED;
        this.drawLegend();
        curves.forEach((curve, i) => {
            const [ink, dash] = this.ink(curve, i);
            const show = this.shows(curve);
            const raw = this.smoothingOf(curve) > 0;
            const base = series.length;
            const points = { show: curve.buckets.length < 2, size: 5, fill: ink, stroke: ink };
            const edge = few && hasEdge(curve) ? fade(ink, .5) : 'transparent';
            series.push({ show, stroke: edge, width: .75, points: { show: false } },
                { show, stroke: edge, width: .75, points: { show: false } },
                { show: show && raw && few, stroke: fade(ink, .28), width: 1, points: { show: false }, spanGaps: false },
                { show, label: this.nameOf(curve), stroke: ink, width: curve.strong ? 3.2 : curves.length > 6 ? 1.4 : 1.8, dash, points });
            if (few || curve.exact)
                bands.push({ series: [base + 1, base], fill: fade(ink, .14) });
        });
        this.plot = new uPlot({
            width: Math.max(200, this.width || this.place.clientWidth),
            height: this.height(),
            padding: [8, labelled || this.look.axis === 'time' ? 40 : 24, 0, 0],
            legend: { show: false },
            focus: { alpha: .25 },
            cursor: {
                sync: { key: 'run', setSeries: false },
                drag: { x: true, y: false, setScale: false },
                dataIdx: (_, si, __, x) => (si === 0 ? _.cursor.idx ?? null : this.nearest(Math.floor((si - 1) / 4), x)),
                points: { size: 6, show: (_u, si) => (si > 0 && si % 4 === 0 ? dot() : /** @type {any} */ (false)) },
            },
            scales: { x: { time: false, range: (_, low, high) => (low === high ? [low - 1, high + 1] : [low, high]) }, y: { distr: this.log ? 3 : 1, range: () => this.range } },
            series,
            bands,
            axes: [
                { stroke: text, grid, ticks: { show: false }, font, size: 26, gap: 6, label: axisWords[this.look.axis], labelSize: 16, labelFont: font, labelGap: 0,
                    splits: (u, _, low, high) => this.xTicks(low, high, Math.max(2, Math.floor(u.bbox.width / devicePixelRatio / 74))).ticks,
                    values: (_u, ticks) => {
                        const step = ticks.length > 1 ? ticks[1] - ticks[0] : 1;
                        return ticks.map(v => (this.look.axis === 'time' ? clock(v, step) : shortCount(v)));
                    } },
                { stroke: text, grid, ticks: { show: false }, font, size: 58, gap: 6, filter: (_, splits) => splits,
                    splits: (u, _, low, high) => this.yTicks(low, high, Math.max(2, Math.floor(u.bbox.height / devicePixelRatio / 38))),
                    values: (_, ticks) => distinctWords(ticks, v => (v === null ? '' : tickText(metric, v))) },
            ],
            hooks: {
                setCursor: [() => this.readout()],
                draw: [u => this.drawMarks(u, labelled)],
                setSelect: [u => {
                    if (u.select.width > 4) {
                        const from = u.posToVal(u.select.left, 'x');
                        const to = u.posToVal(u.select.left + u.select.width, 'x');
                        this.options.zoom([from, to]);
                    }
                    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
                }],
                init: [u => {
                    u.over.addEventListener('dblclick', () => this.options.zoom(null));
                    u.over.addEventListener('mouseenter', () => { hovered = this; });
                    u.over.addEventListener('mouseleave', () => this.leave());
                }],
            },
        }, data, this.place);
        this.follow();
        this.readout();
        this.highlight(this.lit);
    }

    inSight = true;
    width = 0; // px, as measured last

    /** Takes part in the common cursor, or no longer. */
    follow() {
        if (!this.plot)
            return;
        const group = uPlot.sync('run');
        group.unsub(this.plot);
        if (this.inSight)
            group.sub(this.plot);
    }

    /** Reads its width: where several charts are drawn in turn, all are read before the first is. */
    readWidth() {
        this.width = this.place.clientWidth;
    }

    leave() {
        if (hovered === this) {
            hovered = null;
            hideTip();
        }
    }

    drawLegend() {
        /** @type {HTMLElement[]} */
        this.values = [];
        fill(this.legend);
        this.curves.forEach((curve, i) => {
            const [ink, dash] = this.ink(curve, i);
            const name = this.nameOf(curve);
            const value = h('span', { class: 'value' });
            this.values?.push(value);
            const toggle = h('button', { type: 'button', 'aria-pressed': String(this.shows(curve)), title: `Show or hide ${name}` },
                line(ink, dash), h('span', { class: 'legend-name' }, name), value);
            toggle.addEventListener('click', () => this.toggle(curve.key));
            this.legend.append(toggle);
        });
    }

    /** @param {string} key */
    toggle(key) {
        if (!this.state.hidden.delete(key))
            this.state.hidden.add(key);
        this.options.changed?.();
        this.draw(true);
    }

    /**
     * Lets one line stand out, or none.
     * @param {string | null} key of the line, or what stands before its colon
     */
    highlight(key) {
        this.lit = key;
        const i = key === null ? -1 : this.curves.findIndex(c => c.key === key || c.key.startsWith(`${key}:`));
        this.plot?.setSeries(i < 0 ? null : 4 + i * 4, { focus: true }, false);
    }

    /**
     * The point of a curve nearest to x, if it stands near enough: what dot, legend and box all show.
     * @param {number} i
     * @param {number} x
     * @returns {number | null} its place in the common columns
     */
    nearest(i, x) {
        const k = this.nearestBucket(i, x);
        return k < 0 ? null : this.places[i].at[k];
    }

    /**
     * @param {number} i
     * @param {number} x
     */
    nearestBucket(i, x) {
        const xs = this.places[i]?.x ?? [];
        const u = this.plot;
        if (!u || xs.length === 0)
            return -1;
        let low = 0, high = xs.length - 1;
        while (low < high) {
            const middle = (low + high) >> 1;
            if (xs[middle] < x)
                low = middle + 1;
            else
                high = middle;
        }
        const { min, max } = u.scales.x;
        const per = u.bbox.width / devicePixelRatio / ((max ?? 1) - (min ?? 0) || 1);
        let best = -1, least = NEAR;
        // Where a point has no value (a gap, or nothing to take the logarithm of) the next one counts.
        for (let k = low - 2; k <= low + 2; k++)
            if (k >= 0 && k < xs.length && this.lines[i][k] !== null && Math.abs(xs[k] - x) * per <= least) {
                least = Math.abs(xs[k] - x) * per;
                best = k;
            }
        return best;
    }

    /** The values under the cursor, or the latest ones; the box of values where the pointer is. */
    readout() {
        const u = this.plot;
        const left = u?.cursor.left ?? -1;
        const inside = u !== null && left >= 0 && u.cursor.idx !== null && u.cursor.idx !== undefined;
        const x = inside ? u.posToVal(left, 'x') : 0;
        const at = this.curves.map((_, i) => (inside ? this.nearestBucket(i, x) : -1));
        if (this.options.legend !== false)
            this.curves.forEach((curve, i) => {
                let value = null;
                if (inside)
                    value = at[i] < 0 ? null : this.lines[i][at[i]];
                else
                    for (let k = curve.buckets.length - 1; k >= 0 && value === null; k--)
                        value = curve.buckets[k].mean;
                const place = this.values?.[i];
                if (place)
                    setText(place, present(this.panel.metric, value));
            });
        if (hovered === this && u) {
            if (inside)
                this.drawTip(u, x, at);
            else
                hideTip();
        }
    }

    /**
     * @param {uPlot} u
     * @param {number} x
     * @param {number[]} at
     */
    drawTip(u, x, at) {
        const { metric } = this.panel;
        /** @type {{row: import('./chart/tip.js').TipRow, value: number}[]} */
        const rows = [];
        /** The point nearest to the pointer says where this is. @type {{curve: Curve, b: Bucket, by: number} | null} */
        let here = null;
        this.curves.forEach((curve, i) => {
            if (at[i] < 0 || !this.shows(curve))
                return;
            const by = Math.abs(this.places[i].x[at[i]] - x);
            if (!here || by < here.by)
                here = { curve, b: curve.buckets[at[i]], by };
        });
        const near = /** @type {{curve: Curve, b: Bucket, by: number} | null} */ (here);
        if (!near) {
            hideTip();
            return;
        }
        const steps = (/** @type {Bucket} */ b) => (b.first === b.last ? count(b.first) : `${count(Math.round(b.first))}–${count(Math.round(b.last))}`);
        this.curves.forEach((curve, i) => {
            if (at[i] < 0 || !this.shows(curve))
                return;
            const b = curve.buckets[at[i]];
            const value = /** @type {number} */ (this.lines[i][at[i]]);
            const [ink, dash] = this.ink(curve, i);
            const more = [this.smoothingOf(curve) > 0 ? `raw ${present(metric, b.mean)}` : '', b.min !== null && b.max !== null && b.max > b.min ? `${present(metric, b.min)} to ${present(metric, b.max)}` : ''].filter(Boolean).join(', ');
            const same = b.first === near.b.first && b.last === near.b.last;
            rows.push({ value, row: { name: this.nameOf(curve), ink, dash, value: present(metric, value), more, at: same ? '' : this.look.axis === 'step' || !curve.name ? `step ${steps(b)}` : '' } });
        });
        if (rows.length > 3)
            rows.sort((a, b) => b.value - a.value);
        const { curve, b } = near;
        const per = curve.perEpoch ?? this.options.epoch();
        const began = curve.began ?? this.options.began();
        const seconds = began ? b.time - began : null;
        const title = curve.exact && this.look.axis !== 'step' ? `${axisWords[this.look.axis]} ${this.look.axis === 'time' ? clock(this.x(curve, b)) : number(this.x(curve, b))}`
            : [`Step ${steps(b)}`, per && per > 1 ? `epoch ${number(Number(((b.first + b.last) / 2 / per).toFixed(2)))}` : '', seconds !== null && seconds >= 0 && seconds < 1e8 && !curve.exact ? duration(seconds) : ''].filter(Boolean).join(' · ');
        const box = u.rect;
        showTip(box.left + (u.cursor.left ?? 0), box.top + (u.cursor.top ?? 0), title, rows.map(({ row }) => row));
    }

    /**
     * Spikes, and numbers at the ends of lines.
     * @param {uPlot} u
     * @param {boolean} labelled
     */
    drawMarks(u, labelled) {
        const c = u.ctx, ratio = devicePixelRatio;
        c.save();
        this.curves.forEach((curve, i) => {
            if (!this.shows(curve))
                return;
            const [ink] = this.ink(curve, i);
            for (const { at, value } of this.spikes[i]) {
                const x = u.valToPos(this.places[i].x[at], 'x', true);
                const y = Math.min(u.bbox.top + u.bbox.height, Math.max(u.bbox.top, u.valToPos(value, 'y', true)));
                c.beginPath();
                c.arc(x, y, 3 * ratio, 0, 2 * Math.PI);
                c.fillStyle = colour('surface');
                c.fill();
                c.strokeStyle = ink;
                c.lineWidth = 1.6 * ratio;
                c.stroke();
            }
        });
        if (labelled) {
            const ends = this.curves.map((curve, i) => {
                const k = this.lines[i].findLastIndex(v => v !== null);
                return { word: this.nameOf(curve).replace(/^\D+/, ''), ink: this.ink(curve, i)[0], y: k < 0 || !this.shows(curve) ? NaN : u.valToPos(/** @type {number} */ (this.lines[i][k]), 'y', true) };
            }).filter(end => end.y >= u.bbox.top - 1 && end.y <= u.bbox.top + u.bbox.height + 1).sort((a, b) => a.y - b.y);
            const gap = 11 * ratio;
            // Numbers that would overlap move apart; the lowest may not fall off the plot.
            for (let k = 1; k < ends.length; k++)
                ends[k].y = Math.max(ends[k].y, ends[k - 1].y + gap);
            let floor = u.bbox.top + u.bbox.height;
            for (let k = ends.length - 1; k >= 0; k--, floor -= gap)
                ends[k].y = Math.min(ends[k].y, floor);
            c.font = `600 ${10.5 * ratio}px ${fontFamily()}`;
            c.textBaseline = 'middle';
            for (const { word, ink, y } of ends) {
                c.fillStyle = ink;
                c.fillText(word, u.bbox.left + u.bbox.width + 5 * ratio, y);
            }
        }
        c.restore();
    }

    /** Series of one point each have no curve: their numbers are shown, with bars if several are compared. */
    drawFigures() {
        const { metric } = this.panel;
        this.leave();
        this.shownKeys = '';
        this.drawLegend();
        this.readout();
        const known = this.curves.map((curve, i) => ({ curve, i, b: curve.buckets[0] })).filter(({ curve, b }) => b && this.shows(curve));
        const most = Math.max(...known.map(({ b }) => Math.abs(b.mean ?? 0)));
        fill(this.place, known.length === 1
            ? h('div', { class: 'one-figure' }, h('b', null, present(metric, known[0].b.mean)), h('span', { class: 'muted' }, `at step ${count(known[0].b.last)}`))
            : h('ul', { class: 'figure-bars' }, known.map(({ curve, i, b }) => {
                const bar = h('span', { class: 'figure-bar' });
                bar.style.width = `${most > 0 ? 100 * Math.abs(b.mean ?? 0) / most : 0}%`;
                bar.style.background = this.ink(curve, i)[0];
                return h('li', null, h('span', { class: 'clip', title: this.nameOf(curve) }, this.nameOf(curve)), h('span', { class: 'figure-track' }, bar), h('b', { class: 'num' }, present(metric, b.mean)));
            })));
    }

    /**
     * Arrows move along the axis, plus and minus zoom, zero or Escape shows the whole run.
     * @param {KeyboardEvent} event
     */
    key(event) {
        if (event.ctrlKey || event.metaKey || event.altKey || !this.plot)
            return;
        const { min, max } = this.plot.scales.x;
        if (min === undefined || max === undefined || min === null || max === null)
            return;
        const act = {
            ArrowLeft: () => this.options.pan(-.25), ArrowRight: () => this.options.pan(.25),
            '+': () => this.options.zoom([min + (max - min) / 4, max - (max - min) / 4]),
            '-': () => this.options.widen(2),
            0: () => this.options.zoom(null), Escape: () => this.options.zoom(null),
        }[event.key];
        if (act) {
            event.preventDefault();
            act();
        }
    }

    /**
     * What is drawn, for print and as numbers.
     * @returns {import('./chart/figure.js').Figure}
     */
    figure() {
        const { metric } = this.panel;
        const unit = unitTitle(metric);
        const shown = this.curves.map((curve, i) => ({ curve, i })).filter(({ curve }) => this.shows(curve));
        const xs = shown.flatMap(({ i }) => this.places[i].x);
        const low = xs.length ? Math.min(...xs) : 0, high = xs.length ? Math.max(...xs) : 1;
        const few = this.curves.length <= 3;
        const width = 640, height = 360;
        const { ticks, step } = this.xTicks(low, high, 7);
        const text = (/** @type {number | null | undefined} */ v) => (v === null || v === undefined ? '' : String(v));
        return {
            title: unit ? `${this.panel.title} (${unit})` : this.panel.title, width, height,
            x: { title: axisWords[this.look.axis], low, high: high > low ? high : low + 1, ticks: ticks.map(at => ({ at, word: this.look.axis === 'time' ? clock(at, step) : shortCount(at) })) },
            y: { title: unit, low: this.range[0], high: this.range[1], log: this.log, ticks: tickMarks(this.yTicks(this.range[0], this.range[1], 7), at => tickText(metric, at)) },
            lines: shown.flatMap(({ curve, i }) => {
                const [ink, dash] = this.ink(curve, i);
                const x = this.places[i].x;
                const fit = (/** @type {number | null} */ v) => (v === null || !Number.isFinite(v) || (this.log && v <= 0) ? null : v);
                /** @type {import('./chart/figure.js').Line[]} */
                const lines = [{ name: this.nameOf(curve), ink, dash, width: curve.strong ? 2.8 : undefined, points: this.lines[i].map((v, k) => [x[k], v]),
                    band: few || curve.exact ? curve.buckets.map((b, k) => /** @type {[number, number, number]} */ ([x[k], fit(b.min) ?? this.range[0], fit(b.max) ?? this.range[0]])).filter((_, k) => fit(curve.buckets[k].max) !== null) : undefined }];
                if (few && this.smoothingOf(curve) > 0)
                    lines.unshift({ name: '', unnamed: true, ink, dash: [], width: .8, alpha: .35, points: curve.buckets.map((b, k) => [x[k], fit(b.mean)]) });
                return lines;
            }),
            marks: shown.flatMap(({ curve, i }) => this.spikes[i].map(({ at, value }) => ({ x: this.places[i].x[at], y: value, ink: this.ink(curve, i)[0], shape: 'circle', size: 2.6, hollow: true }))),
            rows: [['series', 'key', this.look.axis, 'first_step', 'last_step', 'value', 'drawn', 'min', 'max', 'points'],
                ...shown.flatMap(({ curve, i }) => curve.buckets.map((b, k) => [this.nameOf(curve), curve.key, text(this.places[i].x[k]), text(b.first), text(b.last), text(b.mean), text(this.lines[i][k]), text(b.min), text(b.max), text(b.count)]))],
        };
    }

    resize() {
        const width = this.place.clientWidth, height = this.height();
        this.width = width;
        this.place.style.height = this.plot ? `${height}px` : '';
        if (this.plot && width > 0 && (Math.abs(this.plot.width - width) > 1 || this.plot.height !== height))
            this.plot.setSize({ width, height });
    }

    /** @param {Curve[]} curves */
    summary(curves) {
        const parts = curves.slice(0, 12).map(curve => {
            const last = curve.buckets.findLast(b => b.mean !== null);
            return `${this.nameOf(curve)} ${present(this.panel.metric, last?.mean ?? null)} at step ${count(last?.last ?? 0)}`;
        });
        return `${this.panel.title}: ${parts.join('; ')}`;
    }

    drawTable() {
        if (!this.details.open)
            return;
        const { curves } = this;
        const rows = curves.flatMap(curve => curve.buckets.slice(-200).map(b => ({ curve, b })));
        fill(this.table, h('table', { class: 'table' },
            h('thead', null, h('tr', null, ['Series', 'Steps', 'Min', 'Mean', 'Max', 'Points'].map((name, i) =>
                h('th', { class: i ? 'num' : '', scope: 'col' }, name)))),
            h('tbody', null, rows.reverse().map(({ curve, b }) => h('tr', null,
                h('td', null, this.nameOf(curve)),
                h('td', { class: 'num' }, b.first === b.last ? count(b.first) : `${count(b.first)}–${count(b.last)}`),
                h('td', { class: 'num' }, present(this.panel.metric, b.min)),
                h('td', { class: 'num' }, present(this.panel.metric, b.mean)),
                h('td', { class: 'num' }, present(this.panel.metric, b.max)),
                h('td', { class: 'num' }, count(b.count)))))));
    }
}

/** Does a bucket hold several points, so that its band has an edge? @param {Curve} curve */
const hasEdge = curve => curve.points > curve.buckets.length;

/** The dot that a line shows under the cursor. */
function dot() {
    const el = h('div', { class: 'u-cursor-pt' });
    el.style.width = el.style.height = '7px';
    el.style.marginLeft = el.style.marginTop = '-3.5px';
    return el;
}

/**
 * A colour of ours ("#rrggbb" or "rgb(r g b)") made transparent; canvases of older browsers know no color-mix().
 * @param {string} ink
 * @param {number} alpha
 */
function fade(ink, alpha) {
    const hex = /^#(..)(..)(..)$/.exec(ink);
    const [r, g, b] = hex ? hex.slice(1).map(part => parseInt(part, 16)) : (ink.match(/\d+/g) ?? ['0', '0', '0']).map(Number);
    return `rgba(${r}, ${g}, ${b}, ${alpha})`;
}

/** @param {number} v */
function shortCount(v) {
    const size = Math.abs(v);
    return size >= 1e6 ? `${+(v / 1e6).toFixed(2)} M` : size >= 1e4 ? `${+(v / 1e3).toFixed(1)} k` : (+v.toFixed(2)).toLocaleString('en-US');
}
