// One panel of curves, drawn by uPlot from honest buckets: the line is the mean of a bucket, the band its minimum
// and maximum. Nothing is sampled: a bucket that hides a spike in its mean shows it in its band.
import uPlot from '/vendor/uplot.js';

import { download, fill, h, icon, line, setText } from './dom.js';
import { bytes, count, duration, number } from './format.js';
import { hint } from './hint.js';
import { parseKey, present, seriesName } from './metrics.js';
import { smooth } from './smooth.js';
import { colour, onTheme, ordered } from './theme.js';

/** @typedef {import('./types').Curve} Curve */
/** @typedef {{smoothing: number, log: boolean, axis: 'step' | 'time' | 'epoch'}} Look */

const palette = ['s1', 's2', 's3', 's4', 's5', 's6', 's7'];
/** A second mark beside colour, where lines share no order. */
const dashes = [[], [6, 4], [2, 3], [10, 4, 2, 4]];
const HEIGHT = 230;

/**
 * Colour and dashes of a line by its number: seven colours and four dashes have no common divisor, so 28 lines differ.
 * @param {number} i
 * @returns {[string, number[]]}
 */
export const inkOf = i => [colour(palette[i % palette.length]), dashes[i % dashes.length]];

export class Chart {
    /**
     * @param {import('./metrics.js').Panel} panel
     * @param {Look} look
     * @param {object} options
     * @param {AbortSignal} options.signal
     * @param {(range: [number, number] | null) => void} options.zoom to a stretch in the axis' unit, or all of it
     * @param {(by: number) => void} options.pan by a share of what is shown
     * @param {() => void} options.more other keys are wanted now
     * @param {() => number | null} options.began moment (s) that relative time starts at
     * @param {() => number | null} options.epoch steps of an epoch, if known
     * @param {string} [options.name] of the file that a picture is saved as
     */
    constructor(panel, look, options) {
        this.panel = panel;
        this.look = look;
        this.options = options;
        /** @type {Curve[]} */
        this.curves = [];
        /** @type {Set<string>} */
        this.hidden = new Set();
        /** @type {uPlot | null} */
        this.plot = null;
        this.layer = 0; // of a layered panel: 0 shows the layers, k the heads of layer k
        this.shownKeys = '';

        this.place = h('div', { class: 'chart-plot', role: 'img', tabindex: 0, 'aria-label': panel.title });
        this.place.addEventListener('keydown', event => this.key(event));
        this.legend = h('div', { class: 'legend', data: { layered: panel.layered } });
        this.foot = h('span');
        this.table = h('div', { class: 'data-table', tabindex: 0, role: 'region', 'aria-label': `${panel.title}, as numbers` });
        const details = h('details', { on: { toggle: () => this.drawTable() } }, h('summary', null, 'Numbers'), this.table);
        this.details = details;
        this.picker = h('select', { 'aria-label': `${panel.title}: which series`, hidden: true });
        this.picker.addEventListener('change', () => {
            this.layer = Number(this.picker.value);
            this.options.more();
        });
        this.el = h('section', { class: 'card chart', 'aria-label': panel.title, data: { panel: panel.id } },
            h('div', { class: 'chart-head' }, h('h3', null, panel.title),
                hint(panel.metric), h('span', { class: 'grow' }), this.picker,
                h('button', { type: 'button', class: 'quiet icon-button small-button', 'aria-label': `${panel.title}: save as a picture`, title: 'Save as a picture', on: { click: () => this.save() } }, icon('download', 13))),
            this.legend, this.place, h('div', { class: 'chart-foot' }, this.foot, details));

        const observer = new ResizeObserver(() => this.resize());
        observer.observe(this.place);
        options.signal.addEventListener('abort', () => {
            observer.disconnect();
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
        const rebuild = look.log !== this.look.log || look.axis !== this.look.axis;
        this.look = look;
        this.draw(rebuild);
    }

    /**
     * The keys to be drawn: of a layered panel the layers, or the heads of the layer that was chosen.
     * @returns {string[]}
     */
    wanted() {
        const { keys, layered } = this.panel;
        if (!layered)
            return keys;
        const depth = (/** @type {string} */ key) => key.slice(this.panel.id.length).split('/').length - 1;
        const layers = keys.filter(key => depth(key) === 1);
        const heads = keys.filter(key => depth(key) === 2);
        if (heads.length > 0 && layers.length > 0 && this.picker.childElementCount !== layers.length + 1) {
            const names = layers.map(key => key.split('/').pop());
            fill(this.picker, h('option', { value: 0 }, 'All layers'), names.map(name => h('option', { value: name }, `Layer ${name}: heads`)));
            this.picker.value = String(this.layer);
            this.picker.hidden = false;
        }
        const chosen = heads.filter(key => key.startsWith(`${this.panel.id}/${this.layer}/`));
        return chosen.length > 0 ? chosen : layers.length > 0 ? layers : heads;
    }

    /**
     * @param {number} i
     * @param {number} n
     */
    ink(i, n) {
        return this.panel.layered ? ordered(i, n) : colour(palette[i % palette.length]);
    }

    draw(rebuild = false) {
        const { curves } = this;
        const logOk = curves.some(curve => curve.buckets.some(b => (b.mean ?? 0) > 0));
        const log = this.look.log && logOk;
        const data = this.columns_(curves, log);
        const keys = curves.map(c => c.key).join('\n') + (log ? '\nlog' : '');
        const held = this.plot && !rebuild && keys === this.shownKeys;
        this.points = curves.reduce((sum, curve) => sum + curve.points, 0);
        if (held && this.plot) {
            this.plot.setData(data);
        } else {
            this.build(curves, data, log);
            this.shownKeys = keys;
        }
        const nonfinite = curves.reduce((sum, c) => sum + c.buckets.reduce((n, b) => n + b.nonfinite, 0), 0);
        const most = curves.reduce((n, c) => Math.max(n, c.buckets.length), 0);
        const points = curves.reduce((n, c) => Math.max(n, c.points), 0);
        setText(this.foot, (points > most ? `${count(points)} points in ${count(most)} bucket${most === 1 ? '' : 's'}: ${curves.some(c => c.exact) ? 'mean ± one standard deviation' : 'mean, min to max'}`
            : `${count(points)} point${points === 1 ? '' : 's'}`) +
            (nonfinite > 0 ? ` · ${count(nonfinite)} not finite` : '') + (this.look.log && !logOk ? ' · no positive value for a log scale' : ''));
        this.place.setAttribute('aria-label', this.summary(curves));
        if (this.details.open)
            this.drawTable();
    }

    /**
     * Where a bucket stands on the axis.
     * @param {Curve} curve
     * @param {import('./types').Bucket} b
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
        const xs = [...new Set(curves.flatMap(c => c.buckets.map(b => this.x(c, b))))].sort((a, b) => a - b);
        const at = new Map(xs.map((value, i) => [value, i]));
        const fit = (/** @type {number | null} */ v) => (v === null || !Number.isFinite(v) || (log && v <= 0) ? null : v);
        /** @type {any[]} */
        const columns = [xs];
        for (const curve of curves) {
            const low = new Array(xs.length).fill(undefined);
            const high = new Array(xs.length).fill(undefined);
            const mean = new Array(xs.length).fill(undefined);
            const soft = new Array(xs.length).fill(undefined);
            const smoothed = smooth(curve.buckets.map(b => b.mean), this.smoothingOf(curve));
            curve.buckets.forEach((b, i) => {
                const k = /** @type {number} */ (at.get(this.x(curve, b)));
                low[k] = fit(b.min);
                high[k] = fit(b.max);
                mean[k] = fit(b.mean);
                soft[k] = fit(smoothed[i]);
            });
            columns.push(low, high, mean, soft);
        }
        return /** @type {uPlot.AlignedData} */ (columns);
    }

    /**
     * Smoothing is for the noise between steps: a series of few points, an evaluation, and what was measured on the probe
     * batch, which is always the same, are left as they are.
     * @param {Curve} curve
     */
    smoothingOf(curve) {
        return curve.points < 40 || this.panel.metric.exact || curve.exact || /\/val/.test(curve.key) || parseKey(curve.key).layer !== null ? 0 : this.look.smoothing;
    }

    /**
     * @param {Curve[]} curves
     * @param {uPlot.AlignedData} data
     * @param {boolean} log
     */
    build(curves, data, log) {
        this.plot?.destroy();
        this.place.replaceChildren();
        const metric = this.panel.metric;
        const text = colour('muted');
        const grid = { stroke: colour('grid'), width: 1 };
        const font = '11px system-ui, sans-serif';
        const isTime = this.look.axis === 'time';
        /** @type {uPlot.Series[]} */
        const series = [{ label: this.look.axis }];
        /** @type {uPlot.Band[]} */
        const bands = [];
        /** @type {HTMLElement[]} */
        this.values = [];
        fill(this.legend);
        const few = curves.length <= 3;
        curves.forEach((curve, i) => {
            const ink = curve.ink === undefined ? this.ink(i, curves.length) : colour(palette[curve.ink % palette.length]);
            const name = curve.name ?? seriesName(curve.key);
            const show = !this.hidden.has(curve.key);
            const raw = this.smoothingOf(curve) > 0;
            const base = series.length;
            const points = { show: curve.buckets.length < 2, size: 5, fill: ink, stroke: ink };
            const dash = curve.ink !== undefined ? dashes[curve.ink % dashes.length] : this.panel.layered ? [] : dashes[i % dashes.length];
            series.push({ show, stroke: 'transparent', width: 0, points: { show: false } },
                { show, stroke: 'transparent', width: 0, points: { show: false } },
                { show: show && raw && few, stroke: fade(ink, .28), width: 1, points: { show: false }, spanGaps: false },
                { show, label: name, stroke: ink, width: curves.length > 6 ? 1.4 : 1.8, dash, points });
            if (few || curve.exact)
                bands.push({ series: [base + 1, base], fill: fade(ink, .14) });
            const value = h('span', { class: 'value' });
            this.values?.push(value);
            const toggle = h('button', { type: 'button', 'aria-pressed': String(show), title: `Show or hide ${name}` },
                line(ink, dash), h('span', { class: 'legend-name' }, name), value);
            toggle.addEventListener('click', () => {
                if (!this.hidden.delete(curve.key))
                    this.hidden.add(curve.key);
                this.draw(true);
            });
            this.legend.append(toggle);
        });
        const format = (/** @type {number} */ v) => (metric.unit === 'share' ? `${+(v * 100).toFixed(2)} %` : metric.unit === 'bytes' ? bytes(v) : metric.unit === 'watts' ? `${number(v)} W` : metric.unit === 'celsius' ? `${number(v)} °C` : number(v));
        this.plot = new uPlot({
            width: Math.max(200, this.place.clientWidth),
            height: HEIGHT,
            padding: [8, 18, 0, 0],
            legend: { show: false },
            cursor: {
                sync: { key: 'run', setSeries: false },
                drag: { x: true, y: false, setScale: false },
                points: { size: 6 },
                focus: { prox: 24 },
            },
            scales: { x: { time: false }, y: { distr: log ? 3 : 1, range: log ? undefined : spread } },
            series,
            bands,
            axes: [
                { stroke: text, grid, ticks: { show: false }, font, size: 28, gap: 6, space: 70,
                    values: (_, ticks) => ticks.map(v => (isTime ? duration(v) : shortCount(v))) },
                { stroke: text, grid, ticks: { show: false }, font, size: 58, gap: 6, space: 34,
                    values: (_, ticks) => ticks.map(v => (v === null ? '' : format(v))) },
            ],
            hooks: {
                setCursor: [u => this.readout(curves, u.cursor.idx ?? null)],
                setSelect: [u => {
                    if (u.select.width > 4) {
                        const from = u.posToVal(u.select.left, 'x');
                        const to = u.posToVal(u.select.left + u.select.width, 'x');
                        this.options.zoom([from, to]);
                    }
                    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
                }],
                init: [u => {
                    // Only the smoothed line answers the cursor with a dot; a double click shows the whole run again.
                    u.over.addEventListener('dblclick', () => this.options.zoom(null));
                }],
            },
        }, data, this.place);
        this.readout(curves, null);
    }

    /**
     * The values under the cursor, or the latest ones.
     * @param {Curve[]} curves
     * @param {number | null} index
     */
    readout(curves, index) {
        const data = this.plot?.data;
        curves.forEach((curve, i) => {
            let value = null;
            if (index !== null && data) {
                const column = data[1 + i * 4 + 3];
                // Series have points at different steps: the nearest to the left stands for this one.
                for (let k = index; k >= 0 && value === null; k--)
                    value = column?.[k] ?? null;
            } else {
                for (let k = curve.buckets.length - 1; k >= 0 && value === null; k--)
                    value = curve.buckets[k].mean;
            }
            const place = this.values?.[i];
            if (place)
                setText(place, present(this.panel.metric, value));
        });
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
            '-': () => this.options.zoom([min - (max - min) / 2, max + (max - min) / 2]),
            0: () => this.options.zoom(null), Escape: () => this.options.zoom(null),
        }[event.key];
        if (act) {
            event.preventDefault();
            act();
        }
    }

    /** The chart as a picture, with its title and legend. */
    save() {
        if (!this.plot)
            return;
        const from = this.plot.ctx.canvas;
        const scale = from.width / this.plot.width;
        const shown = this.curves.filter(curve => !this.hidden.has(curve.key));
        const head = 30 + 18 * Math.ceil(shown.length / 3);
        const canvas = h('canvas', { width: from.width, height: from.height + head * scale });
        const c = /** @type {CanvasRenderingContext2D} */ (canvas.getContext('2d'));
        c.fillStyle = colour('surface');
        c.fillRect(0, 0, canvas.width, canvas.height);
        c.scale(scale, scale);
        c.fillStyle = colour('text');
        c.font = '600 15px system-ui, sans-serif';
        c.fillText(this.panel.title, 12, 20);
        c.font = '12px system-ui, sans-serif';
        shown.forEach((curve, n) => {
            const i = this.curves.indexOf(curve);
            const x = 12 + (n % 3) * (this.plot?.width ?? 300) / 3;
            const y = 40 + 18 * Math.floor(n / 3);
            const series = /** @type {uPlot.Series} */ (this.plot?.series[1 + i * 4 + 3]);
            c.strokeStyle = String(typeof series.stroke === 'function' ? series.stroke(/** @type {uPlot} */ (this.plot), 1) : series.stroke);
            c.lineWidth = 2;
            c.setLineDash(series.dash ?? []);
            c.beginPath();
            c.moveTo(x, y - 4);
            c.lineTo(x + 20, y - 4);
            c.stroke();
            c.fillText((curve.name ?? seriesName(curve.key)).slice(0, 40), x + 26, y);
        });
        c.setTransform(1, 0, 0, 1, 0, 0);
        c.drawImage(from, 0, head * scale);
        canvas.toBlob(blob => blob && download(blob, `${this.options.name ?? 'chart'}-${this.panel.id.replaceAll('/', '-')}.png`));
    }

    resize() {
        const width = this.place.clientWidth;
        if (this.plot && width > 0 && Math.abs(this.plot.width - width) > 1)
            this.plot.setSize({ width, height: HEIGHT });
    }

    /** @param {Curve[]} curves */
    summary(curves) {
        const parts = curves.slice(0, 12).map(curve => {
            const last = curve.buckets.findLast(b => b.mean !== null);
            return `${curve.name ?? seriesName(curve.key)} ${present(this.panel.metric, last?.mean ?? null)} at step ${count(last?.last ?? 0)}`;
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
                h('td', null, curve.name ?? seriesName(curve.key)),
                h('td', { class: 'num' }, b.first === b.last ? count(b.first) : `${count(b.first)}–${count(b.last)}`),
                h('td', { class: 'num' }, present(this.panel.metric, b.min)),
                h('td', { class: 'num' }, present(this.panel.metric, b.mean)),
                h('td', { class: 'num' }, present(this.panel.metric, b.max)),
                h('td', { class: 'num' }, count(b.count)))))));
    }
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

/**
 * Room above and below, and a flat line in the middle.
 * @param {uPlot} _
 * @param {number | null} low
 * @param {number | null} high
 * @returns {uPlot.Range.MinMax}
 */
function spread(_, low, high) {
    if (low === null || high === null)
        return [0, 1];
    // Equal but for the last bits of a mean is flat: no axis can be divided so finely.
    const room = high - low > Math.max(Math.abs(low), Math.abs(high)) * 1e-9 ? (high - low) * .06 : Math.abs(high) * .1 || 1;
    return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}

/** @param {number} v */
function shortCount(v) {
    const size = Math.abs(v);
    return size >= 1e6 ? `${+(v / 1e6).toFixed(2)} M` : size >= 1e4 ? `${+(v / 1e3).toFixed(1)} k` : (+v.toFixed(2)).toLocaleString('en-US');
}
