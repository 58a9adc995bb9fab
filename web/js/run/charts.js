// The curves of a run: panels of single series, those of layers and heads, and what the run costs its machine; one look
// and one stretch of steps for all.
import { isAbort, listSeries } from '../api.js';
import { Chart, keysShown, NARROW } from '../chart.js';
import { loadCurves } from '../chart/load.js';
import { failedBox, fill, h, icon, stateBox } from '../dom.js';
import { LookBar, toSteps } from '../look.js';
import { panels } from '../metrics.js';
import { positionsCard } from './positions.js';
import { isActive } from '../states.js';

/** @typedef {import('./page.js').Page} Page */

/** Shown as numbers of the run, not as curves: they never change. */
const constants = ['mem/arena', 'mem/optimizer', 'mem/optimizer_per_parameter', 'steps_per_epoch'];

const PADDING = 30; // px next to a plot, in its chart

/** Groups of panels: the first whose `holds` says so. Those of a closed group are drawn once it is opened. */
const groups = [
    { id: 'training', title: 'Training', text: '', holds: (/** @type {import('../metrics.js').Panel} */ p) => !p.layered && p.metric.group === 'training' },
    { id: 'layers', title: 'Layers', text: 'Measured on a fixed probe batch, means over heads; choose a layer to see its heads.', holds: (/** @type {import('../metrics.js').Panel} */ p) => p.layered },
    { id: 'gpus', title: 'GPUs', text: 'The devices of the run, as reported by the driver; GPU 0 belongs to rank 0.', holds: (/** @type {import('../metrics.js').Panel} */ p) => p.metric.group === 'gpus' },
    { id: 'system', title: 'System', text: 'Resource use', closed: true, holds: () => true },
];

/**
 * @param {Page} page
 * @param {AbortSignal} gone
 * @returns {import('./page.js').Part}
 */
export function chartsPart(page, gone) {
    /** @type {Map<string, Chart>} */
    const charts = new Map();
    const { query } = page.context;
    /** Groups that are not as they usually are; "layers-open": one that a phone folds is open there. */
    const turned = new Set((query.get('folds') ?? '').split('.').filter(Boolean));
    // On a phone all but the first group wait folded: panels stand below each other, and a page of layers is long.
    const phone = matchMedia(NARROW).matches;
    const folded = (/** @type {typeof groups[number]} */ group) => phone && !group.closed && group !== groups[0];
    const startsOpen = (/** @type {typeof groups[number]} */ group) => (folded(group) ? turned.has(`${group.id}-open`) : Boolean(group.closed) === turned.has(group.id));
    const homes = groups.map(group => {
        const grid = h('div', { class: 'charts' });
        const fold = h('details', { class: 'group', open: startsOpen(group) }, h('summary', null, h('h2', null, group.title), group.text ? h('span', { class: 'muted small' }, group.text) : null), grid);
        fold.hidden = true;
        fold.addEventListener('toggle', () => {
            const own = `${group.id}-open`;
            if (!folded(group) && fold.open === Boolean(group.closed)) {
                turned.add(group.id);
                turned.delete(own);
            } else {
                if (fold.open)
                    turned.delete(group.id);
                if (folded(group))
                    turned[fold.open ? 'add' : 'delete'](own);
            }
            page.context.setQuery({ folds: [...turned].join('.') });
            // A group that is open from the start tells so too: its panels are on their way.
            if (fold.open && !fold.hidden && !grid.firstChild)
                refresh();
        });
        return { group, grid, fold };
    });
    const positions = positionsCard(page, 'h3');
    const none = h('p', { class: 'muted', hidden: true }, 'No chart has this name.');
    const bar = new LookBar(page.context, {
        look: look => charts.forEach(chart => chart.restyle({ ...look })),
        range: () => refresh(),
        panels: () => refresh(),
    });
    bar.el.append(h('a', { class: 'button', href: `/api/v1/runs/${encodeURIComponent(page.id)}/export?format=csv`, download: `run-${page.id}.csv` }, icon('download'), 'CSV'));

    const start = () => (page.run?.started ? Date.parse(page.run.started) / 1000 : null);
    const epoch = () => stepsPerEpoch(page);
    /* Clients may log beyond the last step of training. */
    const span = () => Math.max(page.run?.totalSteps ?? 0, bar.last);

    /** @param {[number, number] | null} wanted in the axis' unit */
    const zoom = wanted => {
        const steps = wanted && toSteps(wanted, [...charts.values()]);
        if (!wanted || steps)
            bar.zoom(steps);
    };

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
                    ? stateBox('empty', 'No metrics yet', page.run.state === 'queued' ? 'The run is waiting for a device. Its curves begin with the first step.' : 'The curves begin with the first steps.')
                    : stateBox('empty', 'No metrics', 'This run ended before its first step. The log may show why.',
                        h('button', { type: 'button', on: { click: () => page.openTab('log') } }, 'Open the log'))));
                return;
            }
            bar.last = page.series.reduce((most, s) => Math.max(most, s.step ?? 0), 0);
            bar.epochs(epoch() !== null, 'The length of an epoch is not known yet');
            const all = panels(page.series.map(s => s.key)).filter(p => !constants.includes(p.id) && p.metric.group !== 'positions');
            const found = all.filter(panel => bar.fits(panel));
            const homeOf = (/** @type {import('../metrics.js').Panel} */ panel) => homes.find(({ group }) => group.holds(panel)) ?? homes[0];
            if (!bar.el.isConnected)
                fill(page.place, bar.el, none, homes[0].fold, positions.el, homes.slice(1).map(home => home.fold));
            positions.draw();
            none.hidden = found.length > 0;
            for (const home of homes) {
                home.fold.hidden = !found.some(panel => homeOf(panel) === home);
                home.grid.dataset.wide = bar.wide.value;
            }
            for (const chart of charts.values())
                chart.el.hidden = !found.some(panel => panel.id === chart.panel.id);
            const wanted = found.filter(panel => homeOf(panel).fold.open);
            // What one trains for comes first and is wide.
            const wide = (/** @type {import('../metrics.js').Panel} */ panel) => panel === all[0] && !panel.layered;
            for (const panel of wanted)
                charts.get(panel.id)?.readWidth();
            // About one bucket a pixel for single curves; bundles of layers are coarser, and a hundred series of heads
            // are requested only when their layer is chosen.
            /** By number of buckets. @type {Map<number, import('../metrics.js').Panel[]>} */
            const asked = new Map();
            for (const panel of wanted) {
                const width = Math.min(1000, Math.max(100, charts.get(panel.id)?.width || roomOf(homeOf(panel).grid, wide(panel)) || 400));
                const buckets = panel.layered ? Math.ceil(width / 2) : width;
                asked.set(buckets, [...asked.get(buckets) ?? [], panel]);
            }
            const { range } = bar;
            const keysOf = (/** @type {import('../metrics.js').Panel} */ panel) => charts.get(panel.id)?.wanted() ?? keysShown(panel, 0);
            const answers = [...asked].map(([buckets, some]) => ({ some, curves: loadCurves(page.id, some.flatMap(keysOf), { buckets, range, span: span() }, gone) }));
            for (const { curves } of answers)
                curves.catch(() => {}); // awaited below, once the panels stand
            // The server works while the panels are built.
            for (const panel of wanted) {
                let chart = charts.get(panel.id);
                if (!chart) {
                    chart = new Chart(panel, { ...bar.look }, {
                        signal: gone, zoom, pan: by => bar.pan(by), widen: by => bar.widen(by), more: refresh, began: start, epoch, span, name: `run-${page.id}`,
                        state: bar.stateOf(panel.id), changed: () => bar.keep(), expand: big => {
                            if (big)
                                for (const other of charts.values())
                                    if (other.big && other.panel.id !== panel.id) {
                                        other.expand(false, false);
                                        other.resize();
                                    }
                            bar.keepBig(panel.id, big);
                        },
                    });
                    charts.set(panel.id, chart);
                    chart.el.toggleAttribute('data-wide', wide(panel));
                    if (bar.big === panel.id)
                        chart.expand(true, false);
                }
                chart.panel = panel;
                const home = homeOf(panel);
                if (chart.el.parentNode !== home.grid)
                    home.grid.append(chart.el);
            }
            for (const panel of wanted)
                charts.get(panel.id)?.readWidth();
            await Promise.all(answers.map(async ({ some, curves }) => {
                const byKey = new Map((await curves).map(c => [c.key, c]));
                for (const panel of some) {
                    const chart = charts.get(panel.id);
                    chart?.show(chart.wanted().map(key => byKey.get(key)).filter(c => c !== undefined));
                }
            }));
        } catch (error) {
            if (isAbort(error))
                return;
            if (charts.size === 0)
                fill(page.place, h('div', { class: 'card' }, failedBox(error, 'The curves', () => refresh())));
        }
    }
    return { refresh };
}

/**
 * How wide the plot of a panel becomes that is not built yet, in px.
 * @param {HTMLElement} grid
 * @param {boolean} wide
 */
function roomOf(grid, wide) {
    const { gridTemplateColumns, columnGap } = getComputedStyle(grid);
    const columns = gridTemplateColumns.split(' ').map(parseFloat);
    const n = !wide ? 1 : grid.dataset.wide ? columns.length : Math.min(2, columns.length);
    return Math.round(n * columns[0] + (n - 1) * parseFloat(columnGap) - PADDING) || 0;
}

/**
 * Steps of an epoch: as the run logged them, else from its length.
 * @param {Page} page
 * @returns {number | null}
 */
function stepsPerEpoch(page) {
    const logged = page.series.find(s => s.key === 'steps_per_epoch')?.value;
    if (logged && logged > 0)
        return logged;
    const epochs = Number(page.resolved.train?.epochs);
    return epochs > 0 && page.run?.totalSteps ? page.run.totalSteps / epochs : null;
}
