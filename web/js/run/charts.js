// The curves of a run: panels of single series, then those of layers; one look and one stretch of steps for all.
import { getCurves, isAbort, listSeries } from '../api.js';
import { Chart } from '../chart.js';
import { failedBox, fill, h, icon, setText, stateBox } from '../dom.js';
import { panels } from '../metrics.js';
import { isActive } from '../states.js';

/** @typedef {import('./page.js').Page} Page */

/**
 * @param {Page} page
 * @param {AbortSignal} gone
 * @returns {import('./page.js').Part}
 */
export function chartsPart(page, gone) {
    const { query } = page.context;
    const look = {
        smoothing: clamp(Number(query.get('smooth') ?? .6)),
        log: query.get('log') === '1',
        axis: /** @type {'step' | 'time'} */ (query.get('x') === 'time' ? 'time' : 'step'),
    };
    /** @type {[number, number] | null} */
    let range = null;
    const from = Number(query.get('from'));
    const to = Number(query.get('to'));
    if (query.get('to') && to > from)
        range = [from, to];
    /** @type {Map<string, Chart>} */
    const charts = new Map();
    const grid = h('div', { class: 'charts' });
    const layers = h('div', { class: 'charts' });
    const layersTitle = h('div', { class: 'section-title', hidden: true }, h('h2', null, 'Layers'),
        h('p', { class: 'muted small' }, 'Measured on a fixed probe batch, means over heads.'));

    const slider = h('input', { type: 'range', min: 0, max: 0.98, step: 0.02, value: look.smoothing, 'aria-label': 'Smoothing' });
    const amount = h('output', null, look.smoothing.toFixed(2));
    slider.addEventListener('input', () => {
        look.smoothing = Number(slider.value);
        setText(amount, look.smoothing.toFixed(2));
        page.context.setQuery({ smooth: look.smoothing === .6 ? null : String(look.smoothing) });
        charts.forEach(chart => chart.restyle({ ...look }));
    });
    const log = h('input', { type: 'checkbox' });
    log.checked = look.log;
    log.addEventListener('change', () => {
        look.log = log.checked;
        page.context.setQuery({ log: look.log ? '1' : null });
        charts.forEach(chart => chart.restyle({ ...look }));
    });
    const axes = /** @type {const} */ (['step', 'time']).map(axis => h('button', {
        type: 'button', 'aria-pressed': String(look.axis === axis), on: {
            click: () => {
                look.axis = axis;
                axes.forEach((b, i) => b.setAttribute('aria-pressed', String(i === (axis === 'step' ? 0 : 1))));
                page.context.setQuery({ x: axis === 'time' ? 'time' : null });
                charts.forEach(chart => chart.restyle({ ...look }));
            },
        },
    }, axis === 'step' ? 'Step' : 'Time'));
    const zoomOut = h('button', { type: 'button', hidden: range === null, on: { click: () => zoom(null) } }, icon('reset'), 'Whole run');
    const toolbar = h('div', { class: 'toolbar' },
        h('label', { class: 'inline' }, 'Smoothing', slider, amount),
        h('label', { class: 'inline' }, log, 'Log scale'),
        h('div', { class: 'segments', role: 'group', 'aria-label': 'Horizontal axis' }, axes),
        zoomOut,
        h('a', { class: 'button', href: `/api/v1/runs/${encodeURIComponent(page.id)}/export?format=csv`, download: `run-${page.id}.csv` }, icon('download'), 'CSV'));

    /** @param {[number, number] | null} wanted in the axis' unit */
    function zoom(wanted) {
        if (wanted && look.axis === 'time') {
            // The API cuts by step: find the steps that the moments stand for.
            const began = start() ?? 0;
            const [low, high] = wanted;
            const inside = [...charts.values()].flatMap(c => c.curves).flatMap(c => c.buckets)
                .filter(b => b.time - began >= low && b.time - began <= high);
            if (inside.length < 2)
                return;
            wanted = [Math.min(...inside.map(b => b.first)), Math.max(...inside.map(b => b.last))];
        }
        range = wanted ? [Math.floor(wanted[0]), Math.ceil(wanted[1])] : null;
        zoomOut.hidden = range === null;
        page.context.setQuery({ from: range ? String(range[0]) : null, to: range ? String(range[1]) : null });
        refresh();
    }

    const start = () => (page.run?.started ? Date.parse(page.run.started) / 1000 : null);
    let busy = false;
    let again = false;

    async function refresh() {
        if (busy) {
            again = true;
            return;
        }
        busy = true;
        try {
            do {
                again = false;
                await load();
            } while (again && !gone.aborted);
        } finally {
            busy = false;
        }
    }

    async function load() {
        try {
            if (page.series.length === 0)
                page.series = await listSeries(page.id, gone);
            if (page.series.length === 0) {
                fill(page.place, h('div', { class: 'card' }, page.run && isActive(page.run)
                    ? stateBox('empty', 'No metrics yet', page.run.state === 'queued' ? 'The run waits for a device. Its curves begin with the first step.' : 'The first curves come with the first steps.')
                    : stateBox('empty', 'No metrics', 'This run ended before its first step. Its log may say why.',
                        h('button', { type: 'button', on: { click: () => page.openTab('log') } }, 'Open the log'))));
                return;
            }
            const wanted = panels(page.series.map(s => s.key)).filter(p => p.id !== 'mem/arena');
            if (!grid.isConnected)
                fill(page.place, toolbar, h('h2', { class: 'hidden' }, 'Curves'), grid, layersTitle, layers);
            for (const panel of wanted) {
                let chart = charts.get(panel.id);
                if (!chart) {
                    chart = new Chart(panel, { ...look }, { signal: gone, zoom, more: refresh, began: start });
                    charts.set(panel.id, chart);
                }
                chart.panel = panel;
                const home = panel.layered ? layers : grid;
                if (chart.el.parentNode !== home)
                    home.append(chart.el);
            }
            // About one bucket a pixel for single curves; bundles of layers are coarser, and a hundred series of heads
            // are asked for only when somebody chooses their layer.
            const width = Math.min(1000, Math.max(100, charts.values().next().value?.place.clientWidth || 400));
            const range_ = { from: range?.[0], to: range?.[1] };
            const flat = wanted.filter(p => !p.layered).flatMap(p => p.keys);
            const bundled = wanted.filter(p => p.layered).flatMap(p => charts.get(p.id)?.wanted() ?? []);
            const curves = (await Promise.all([
                getCurves(page.id, flat, { buckets: width, ...range_ }, gone),
                getCurves(page.id, bundled, { buckets: Math.ceil(width / 2), ...range_ }, gone)])).flat();
            const byKey = new Map(curves.map(c => [c.key, c]));
            for (const panel of wanted) {
                const chart = charts.get(panel.id);
                chart?.show(chart.wanted().map(key => byKey.get(key)).filter(c => c !== undefined));
            }
            layersTitle.hidden = !wanted.some(p => p.layered);
        } catch (error) {
            if (isAbort(error))
                return;
            if (charts.size === 0)
                fill(page.place, h('div', { class: 'card' }, failedBox(error, 'The curves', () => refresh())));
        }
    }
    return { refresh };
}

/** @param {number} x */
const clamp = x => (Number.isFinite(x) ? Math.min(.98, Math.max(0, x)) : .6);
