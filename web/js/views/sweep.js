// A job of several runs: what each combination of its sweep reached, as a curve with deviations, as a table with its
// trials, and over the steps of training.
import { isAbort, listRuns, listSeries, steerJob } from '../api.js';
import { awayButtons } from '../away.js';
import { Chart } from '../chart.js';
import { ask, bones, failedBox, fill, h, icon, message, setText, stateBox, toast } from '../dom.js';
import { panelSave } from '../chart/menu.js';
import { ago, bytes, count, meanWithSd } from '../format.js';
import { hint } from '../hint.js';
import { cancelJob } from '../jobs.js';
import { onEvent, pacer } from '../live.js';
import { LookBar } from '../look.js';
import { describe, metrics as knownMetrics, present } from '../metrics.js';
import { readJob, readSweep, readSweepCurves } from '../results.js';
import { sharedPatches } from '../run/attention.js';
import { scatter } from '../scatter.js';
import { analysisSection } from '../sweep/analysis.js';
import { varies } from '../sweep/axes.js';
import { chip, stackedMeter } from '../states.js';
import { short } from '../table/columns.js';
import { onTheme } from '../theme.js';

/** @typedef {import('../types').SweepRow} SweepRow */

const MOST_CURVES = 12;
const OPEN = new Set(['queued', 'running', 'paused', 'cancelling']);

/** @param {string} pointer */
const nameOf = pointer => pointer.slice(1).replaceAll('/', '.');
/** @param {string} pointer */
const shortName = pointer => pointer.split('/').pop() ?? pointer;

/**
 * @param {import('../types').ViewContext} context
 * @returns {import('../types').View}
 */
export function sweepView(context) {
    const { signal, query } = context;
    const id = context.params[0];
    context.setTitle(`Job ${id}`);
    let wished = query.get('metric') ?? ''; // shown as soon as a run has it
    let metric = wished;
    let axis = query.get('axis') ?? '';
    let open = query.get('open') === '1';
    let baseline = query.get('from') ?? '';
    let sort = query.get('sort') ?? '';
    /** @type {import('../types').Job | null} */
    let job = null;
    /** @type {import('../types').Sweep | null} */
    let sweep = null;
    /** Metrics that its runs have: while the job is open more may come. @type {string[]} */
    let keys = [];
    let keysKnown = false;
    const unfolded = new Set();
    let turn = 0, drawing = 0; // answers to an older question are dropped

    const title = h('h1', null, `Job ${id}`);
    const badge = h('span');
    const sub = h('p', { class: 'sub' });
    const actions = h('div', { class: 'row' });
    const tiles = h('dl', { class: 'card tiles' });
    const bar = stackedMeter('Runs that have ended');
    bar.el.classList.add('tall');
    const progress = h('div', { class: 'stack' }, h('div', { class: 'row small' }, h('span'), h('span', { class: 'muted push' })), bar.el);
    const metricPick = h('select', { 'aria-label': 'Metric' });
    const axisPick = h('select', { 'aria-label': 'Against' });
    const basePick = h('select', { 'aria-label': 'Differences from' });
    const openBox = h('input', { type: 'checkbox' });
    openBox.checked = open;
    const plot = h('div', { class: 'scatter-place' });
    const plotHead = h('div', { class: 'chart-head' });
    const table = h('div', { class: 'card scroll-x', tabindex: 0, role: 'region', 'aria-label': 'Results' });
    const curvesPlace = h('div', { class: 'stack' });
    const scalarsPlace = h('div', { class: 'stack' });
    const controls = h('div', { class: 'toolbar' }, h('label', { class: 'inline' }, 'Metric', metricPick), h('label', { class: 'inline' }, 'Against', axisPick),
        h('label', { class: 'inline' }, 'Differences from', basePick),
        h('label', { class: 'inline' }, openBox, 'Count unfinished runs'));
    const analysis = analysisSection({ id, context, say: values => say(values), both: (about, mean, sd) => both(about, mean, sd) });
    const content = h('div', { class: 'stack-l' }, progress, tiles, controls, h('h2', { class: 'hidden' }, 'Results'), h('section', { class: 'card chart' }, plotHead, plot), analysis.el, h('h2', null, 'Combinations'), table, curvesPlace, scalarsPlace);
    const place = h('div', null, h('div', { class: 'card' }, bones(8)));
    const el = h('div', null, h('p', { class: 'small' }, h('a', { href: '#/sweeps' }, '← Sweeps')),
        h('div', { class: 'head' }, h('div', null, h('div', { class: 'row' }, title, badge), sub), actions), place);

    const look = new LookBar(context, { look: style => [chart, ...scalarCharts.values()].forEach(c => c?.restyle({ ...style, axis: 'step' })), range: () => {} });
    look.smoothing.hidden = look.axisBox.hidden = true; // of means, against the step
    /** @type {Chart | null} */
    let chart = null;
    /** Of learned scalars, by name. @type {Map<string, Chart>} */
    const scalarCharts = new Map();

    metricPick.addEventListener('change', () => {
        metric = wished = metricPick.value;
        context.setQuery({ metric });
        draw();
        analyse();
        drawCurves();
    });
    axisPick.addEventListener('change', () => {
        axis = axisPick.value;
        context.setQuery({ axis });
        drawPlot();
        analyse();
    });
    basePick.addEventListener('change', () => {
        baseline = basePick.value;
        context.setQuery({ from: baseline });
        refresh();
    });
    openBox.addEventListener('change', () => {
        open = openBox.checked;
        context.setQuery({ open: open ? '1' : null });
        refresh();
    });

    /** @param {Record<string, unknown>} values */
    const say = values => Object.entries(values).map(([key, value]) => `${shortName(key)} ${short(value)}`).join(', ') || 'all runs';

    function drawHead() {
        if (!job || !sweep)
            return;
        const { runs } = sweep;
        setText(title, job.name);
        context.setTitle(job.name);
        const odd = ['failed', 'diverged', 'cancelled', 'lost'].filter(key => runs[key] > 0).map(key => `${count(runs[key])} ${key}`).join(', ');
        // A sweep whose runs have ended is done, whatever became of some of them: the chip says how many.
        const over = !OPEN.has(job.state) && job.state !== 'cancelled' && runs.succeeded > 0;
        const stands = `${job.state} ${odd}`;
        if (badge.dataset.state !== stands) {
            badge.dataset.state = stands;
            fill(badge, over ? chip(runs.failed > 0 ? 'done_some' : 'done', undefined, odd ? `Done, ${odd}` : 'Done') : chip(job.state));
        }
        const facts = [`Job #${job.id}`, sweep.axes.length > 0 ? `${count(sweep.points)} combinations${sweep.trials > 1 ? ` × ${sweep.trials} trials` : ''}` : `${sweep.trials} trials`,
            `experiment ${job.experiment}`, `created ${ago(job.created)}`,
            ...(job.runs.deleted > 0 ? [`${count(job.runs.deleted)} deleted`] : []), ...(job.bytes && job.bytes.total > 0 ? [`${bytes(job.bytes.total)} on disk`] : []), ...(job.archived ? [`archived ${ago(job.archived)}`] : [])];
        if (sub.dataset.text !== facts.join()) {
            sub.dataset.text = facts.join();
            fill(sub, facts.map(fact => h('span', null, fact)));
        }
        bar.set([[runs.succeeded, 'good', 'succeeded'], [runs.diverged, 'odd', 'diverged'], [runs.failed, 'bad', 'failed'], [runs.cancelled, 'idle', 'cancelled'], [runs.lost, 'bad', 'lost'], [runs.running, 'run', 'running']], runs.planned);
        setText(/** @type {Node} */ (progress.firstElementChild?.firstChild), `${count(runs.ended)} of ${count(runs.planned)} runs ended`);
        const rest = [['running', 'running'], ['queued', 'queued'], ['failed', 'failed'], ['diverged', 'diverged'], ['cancelled', 'cancelled'], ['lost', 'lost']].filter(([key]) => runs[key] > 0).map(([key, word]) => `${count(runs[key])} ${word}`);
        setText(/** @type {Node} */ (progress.firstElementChild?.lastChild), rest.join(' · '));
        const retries = runs.failed > 0 && !job.state.startsWith('cancel');
        const key = `${job.state} ${sweep.table.length} ${retries ? runs.failed : ''} ${job.archived !== null} ${keys.length}`;
        if (actions.dataset.key !== key) {
            actions.dataset.key = key;
            const now = job;
            const steer = (/** @type {string} */ word, /** @type {import('../dom.js').IconName} */ sign, /** @type {() => Promise<unknown>} */ act) => {
                const button = h('button', { type: 'button' }, icon(sign), word);
                button.addEventListener('click', async () => {
                    button.disabled = true;
                    try {
                        await act();
                        refresh();
                    } catch (error) {
                        toast(message(error), 'bad');
                    } finally {
                        button.disabled = false;
                    }
                });
                return button;
            };
            const trials = sweep.table.flatMap(row => row.trials.map(t => t.run_id));
            fill(actions,
                now.state === 'paused' ? steer('Resume', 'running', () => steerJob(now.id, 'resume')) : OPEN.has(now.state) && now.state !== 'cancelling' ? steer('Pause', 'paused', () => steerJob(now.id, 'pause')) : null,
                retries ? steer(runs.failed === 1 ? 'Retry the failed run' : `Retry ${count(runs.failed)} failed runs`, 'again', () => steerJob(now.id, 'retry')) : null,
                OPEN.has(now.state) && now.state !== 'cancelling' ? steer('Cancel', 'stop', async () => {
                    const sure = await ask('Cancel this job?', [h('p', { class: 'muted' }, 'All its running runs stop at their next step; their checkpoints are retained.')], 'Cancel the job', { danger: true, keep: 'Keep running' });
                    return sure ? cancelJob(now.id) : null;
                }) : null,
                h('a', { class: 'button', href: `#/compare?runs=${trials.slice(0, 20).join(',')}${trials.length > 1 ? '&mean=trials' : ''}` }, icon('compare'), trials.length > 20 ? 'Compare the first 20' : 'Compare runs'),
                h('a', { class: 'button', href: `#/?job=${encodeURIComponent(now.id)}` }, 'Runs'),
                h('a', { class: 'button', href: `/api/v1/jobs/${encodeURIComponent(now.id)}/sweep/export?what=table${keys.slice(0, 16).map(k => `&metric=${encodeURIComponent(k)}`).join('')}`, download: `sweep-${now.id}.csv` }, icon('download'), 'CSV'),
                OPEN.has(now.state) ? null : awayButtons('jobs', () => job ?? now, {
                    word: 'job', contents: 'All its runs, with their curves, checkpoints, logs and events', changed: refresh, gone: () => { location.hash = '#/sweeps'; },
                }));
        }
        const stats = [];
        const about = describe(sweep.metric);
        if (sweep.best) {
            const [mean, sd] = both(about, sweep.best.value.mean, sweep.best.value.sd);
            stats.push(['Best combination', say(sweep.best.values), rivals()], [`${about.title}, ${sweep.metric.endsWith('/val') ? 'validation' : 'latest'}${sd ? `, mean ± sd of ${sweep.best.value.n}` : ''}`, mean, sd]);
        }
        if (sweep.best_run)
            stats.push(['Best run', `#${sweep.best_run.run_id}`, `${present(about, sweep.best_run.value)}${sweep.metric.endsWith('/val') ? ', validation' : ''}`]);
        tiles.hidden = stats.length === 0;
        fill(tiles, stats.map(([name, value, small]) => h('div', { class: 'tile' }, h('dt', null, name), h('dd', null,
            name === 'Best run' ? h('a', { href: `#/runs/${sweep?.best_run?.run_id}` }, value) : value, small ? h('small', null, ` ${small}`) : null))));
    }

    /**
     * A mean in the metric's unit, and its deviation with equal digits.
     * @param {import('../metrics.js').Metric} about
     * @param {number | null} mean
     * @param {number | null} sd
     * @returns {[string, string]}
     */
    function both(about, mean, sd) {
        if (mean === null || sd === null || (about.unit && !['share', 'nats'].includes(about.unit)))
            return [present(about, mean), sd === null ? '' : `± ${present(about, sd)}`];
        const [m, s] = meanWithSd(mean, sd, about.unit === 'share' ? 100 : 1);
        return [m, ` ± ${s}${about.unit === 'share' ? ' %' : ''}`];
    }

    /** Combinations whose mean the trials do not tell apart from the best one's. */
    const rivalRows = () => (sweep?.table ?? []).filter(row => row.versus_best?.[sweep?.metric ?? '']?.separable === false);

    function rivals() {
        const n = rivalRows().length;
        return n > 0 ? `not separable from ${n} other${n === 1 ? '' : 's'} (95 %)` : '';
    }

    function drawControls() {
        if (!sweep)
            return;
        const listed = knownMetrics.map(m => m.key).filter(key => keys.includes(key));
        const all = [...listed, ...keys.filter(key => !listed.includes(key))];
        metric = [wished, metric, sweep.metric].find(key => all.includes(key)) ?? all[0] ?? '';
        fill(metricPick, all.map(key => h('option', { value: key }, key)));
        metricPick.value = metric;
        const axes = sweep.axes.map(a => a.pointer);
        if (!axes.includes(axis))
            axis = axes[0] ?? '';
        fill(axisPick, axes.map(pointer => h('option', { value: pointer }, nameOf(pointer))));
        axisPick.value = axis;
        /** @type {HTMLElement} */ (axisPick.parentElement).hidden = axes.length < 2;
    }

    function drawPlot() {
        if (!sweep)
            return;
        const about = describe(metric);
        const rows = sweep.table.filter(row => row.metrics[metric]?.mean !== null && row.metrics[metric] !== undefined && Number.isFinite(row.metrics[metric].mean));
        fill(plotHead, h('h3', null, axis ? `${metric} against ${nameOf(axis)}` : metric), hint(about), h('span', { class: 'grow' }), saver);
        if (rows.length === 0) {
            fill(plot, h('div', { class: 'state small-state' }, h('p', null, open ? 'No run has a value of this metric yet.' : 'No successful run has this metric yet. Select “Count unfinished runs” to include running ones.')));
            return;
        }
        /** @type {Map<string, import('../scatter.js').Mark[]>} */
        const groups = new Map();
        for (const row of rows) {
            const others = Object.entries(row.values).filter(([key]) => key !== axis);
            const name = others.map(([key, value]) => `${shortName(key)} ${short(value)}`).join(', ');
            const at = row.metrics[metric];
            const value = axis in row.values ? row.values[axis] : 'all runs';
            groups.set(name, [...(groups.get(name) ?? []), {
                x: typeof value === 'number' ? value : short(value), y: /** @type {number} */ (at.mean), sd: at.sd, best: row.point === sweep.best?.point && metric === sweep.metric,
                text: `${say(row.values)}: ${both(about, at.mean, at.sd).join('')}, ${at.n} run${at.n === 1 ? '' : 's'}`,
                n: at.n, href: row.trials.length === 1 ? `#/runs/${row.trials[0].run_id}` : `#/compare?runs=${row.trials.slice(0, 20).map(t => t.run_id).join(',')}`,
            }]);
        }
        const named = [...groups].map(([name, marks]) => ({ name, marks }));
        figure = scatter(plot, { groups: named.slice(0, 14), title: `${metric} against ${nameOf(axis)}`, xTitle: axis ? nameOf(axis) : '', yTitle: `mean ${metric}`, format: v => (about.unit === 'share' ? `${+(v * 100).toFixed(2)} %` : present(about, v)), rule: rootOfN(), ...analysis.extra(axis) });
        if (named.length > 14)
            plot.append(h('p', { class: 'muted small' }, `${named.length - 14} more lines are in the table.`));
    }

    /** What the plot shows, for print. @type {(() => import('../chart/figure.js').Figure) | null} */
    let figure = null;
    const saver = panelSave('Results', () => figure, `sweep-${id}`);

    /**
     * The difference from the combination that was chosen, with its interval; strong where that is on one side of zero.
     * @param {import('../metrics.js').Metric} about
     * @param {NonNullable<SweepRow['paired']>[string] | undefined} d
     */
    function difference(about, d) {
        if (!d || d.mean === null)
            return null;
        const { mean, low, high } = d, apart = low !== null && high !== null && low * high > 0;
        const share = about.unit === 'share'; // a difference of shares is in points, not in percent
        const signed = (/** @type {number} */ x) => `${x > 0 ? '+' : ''}${share ? (100 * x).toFixed(2) : present(about, x)}`;
        return h('div', { class: apart ? 'small strong' : 'small muted', title: `Mean of ${d.n} difference${d.n === 1 ? '' : 's'} of runs with equal seeds, and its 95 % interval` },
            low === null || high === null ? signed(mean) : `${signed(mean)} [${signed(low)}, ${signed(high)}]`, share ? ' points' : '');
    }

    /** The combinations to choose from, as they become known. */
    function drawBaselines() {
        const rows = sweep?.table.slice(0, 500) ?? [], key = rows.map(row => row.point).join();
        if (basePick.dataset.key === key)
            return;
        basePick.dataset.key = key;
        fill(basePick, h('option', { value: '' }, 'none'), rows.map(row => h('option', { value: row.point }, say(row.values))));
        basePick.value = baseline;
    }

    /** Against k, the theory's choice √N is marked where N follows from the documents and is that of all lines. */
    function rootOfN() {
        if (axis !== '/attention/k' || !tokens)
            return null;
        return { at: Math.sqrt(tokens), word: `√N = ${+Math.sqrt(tokens).toFixed(2)}` };
    }
    let tokens = 0;

    function drawTable() {
        if (!sweep)
            return;
        const { axes } = sweep;
        const shown = [metric, ...[sweep.metric, 'loss/val', 'acc/val', 'ppl/val', 'loss/train'].filter(key => key !== metric && keys.includes(key))].filter((key, i, list) => key && list.indexOf(key) === i).slice(0, 4);
        const rows = sweep.table.slice();
        const down = sort.startsWith('-');
        const by = sort.replace(/^-/, '');
        if (by) {
            const value = (/** @type {SweepRow} */ row) => (by.startsWith('/') ? row.values[by] : row.metrics[by]?.mean) ?? null;
            rows.sort((a, b) => {
                const x = value(a);
                const y = value(b);
                if (x === null || y === null)
                    return Number(x === null) - Number(y === null);
                return (down ? -1 : 1) * (/** @type {any} */ (x) < /** @type {any} */ (y) ? -1 : /** @type {any} */ (x) > /** @type {any} */ (y) ? 1 : 0);
            });
        }
        const header = (/** @type {string} */ key, /** @type {string} */ word, /** @type {boolean} */ num, note = '') => {
            const on = by === key;
            const button = h('button', { type: 'button', class: 'sort-plain', on: { click: () => {
                sort = !on ? key : down ? '' : `-${key}`;
                context.setQuery({ sort });
                drawTable();
                /** @type {HTMLElement | null} */ (table.querySelector(`[data-key="${CSS.escape(key)}"] button`))?.focus();
            } } }, word, on ? icon(down ? 'down' : 'up', 11) : null);
            return h('th', { scope: 'col', class: num ? 'num' : '', data: { key }, 'aria-sort': on ? (down ? 'descending' : 'ascending') : null }, button, note ? h('span', { class: 'muted small th-note' }, note) : null);
        };
        const near = new Set(rivalRows().map(row => row.point));
        fill(table, h('table', { class: 'table sweep-table' },
            h('thead', null, h('tr', null, axes.map(a => header(a.pointer, nameOf(a.pointer), true)), shown.map(key => header(key, key, true, sweep && sweep.trials > 1 ? 'mean ± sd' : '')), h('th', { scope: 'col', class: 'num' }, 'Runs'), h('th', { scope: 'col' }, h('span', { class: 'hidden' }, 'Trials')))),
            h('tbody', null, rows.slice(0, 500).flatMap(row => {
                const best = row.point === sweep?.best?.point;
                const many = row.trials.length > 1;
                const isOpen = unfolded.has(row.point);
                const odd = [row.runs.open ? `${row.runs.open} open` : '', row.runs.diverged ? `${row.runs.diverged} diverged` : '', row.runs.failed ? `${row.runs.failed} failed` : '', row.runs.cancelled ? `${row.runs.cancelled} cancelled` : '', row.runs.lost ? `${row.runs.lost} lost` : ''].filter(Boolean).join(', ');
                const toggle = h('button', { type: 'button', class: 'small-button', 'aria-expanded': String(isOpen), on: { click: () => {
                    if (!unfolded.delete(row.point))
                        unfolded.add(row.point);
                    drawTable();
                } } }, isOpen ? 'Hide trials' : `${row.trials.length} trials`);
                return [h('tr', { data: { best } },
                    axes.map((a, i) => h('td', { class: 'num mono' }, i === 0 && near.has(row.point) ? h('span', { class: 'tag near', title: 'The 95 % interval of its difference from the best contains zero (Welch)' }, 'not separable') : null, short(row.values[a.pointer]))),
                    shown.map(key => {
                        const at = row.metrics[key];
                        const about = describe(key);
                        if (!at || at.mean === null)
                            return h('td', { class: 'num' }, '–');
                        const [mean, sd] = both(about, at.mean, at.sd);
                        return h('td', { class: 'num' }, mean, sd ? h('span', { class: 'muted small' }, sd) : null, difference(about, row.paired?.[key]));
                    }),
                    h('td', { class: 'num' }, `${row.runs.succeeded}`, h('span', { class: 'muted small' }, ` of ${row.runs.total}${odd ? ` (${odd})` : ''}`)),
                    h('td', { class: 'num' }, many ? toggle : row.trials[0] ? h('a', { href: `#/runs/${row.trials[0].run_id}` }, `#${row.trials[0].run_id}`) : null)),
                ...(isOpen ? row.trials.map(t => h('tr', { class: 'trial' },
                    axes.length > 0 ? h('td', { class: 'num muted', colspan: axes.length }, `seed ${t.seed}`) : null,
                    shown.map(key => h('td', { class: 'num' }, present(describe(key), t.metrics[key] ?? null))),
                    h('td', { class: 'num' }, chip(t.state === 'ended' ? t.outcome ?? 'ended' : t.state)), h('td', { class: 'num' }, h('a', { href: `#/runs/${t.run_id}` }, `#${t.run_id}`)))) : [])];
            }))));
        if (rows.length > 500)
            table.append(h('p', { class: 'muted small pad' }, `500 of ${count(rows.length)} combinations; the CSV has all.`));
    }

    /**
     * @param {Awaited<ReturnType<typeof readSweepCurves>>[number]} curve
     * @param {string} key
     * @param {string} name
     * @param {number} ink
     */
    const lineOf = (curve, key, name, ink) => ({
        key: `${curve.point}:${key}`, name, ink, exact: true, points: curve.data.reduce((n, d) => n + d.n, 0),
        buckets: curve.data.filter(d => d.mean !== null).map(d => ({ first: d.x, last: d.x, time: d.x, mean: d.mean, count: d.n, nonfinite: 0,
            min: /** @type {number} */ (d.mean) - (d.sd ?? 0), max: /** @type {number} */ (d.mean) + (d.sd ?? 0) })),
    });

    /** Learned scalars of the formulas that are compared, each in each layer. @param {number[]} points */
    async function drawScalars(points) {
        if (!sweep?.axes.some(swept => ['/attention/formula', '/attention'].includes(swept.pointer)))
            return;
        /** Layers by scalar. @type {Map<string, Set<string>>} */
        const found = new Map();
        for (const row of sweep.table.filter(r => points.includes(r.point) && r.trials.length > 0))
            for (const { key } of await listSeries(row.trials[0].run_id, signal)) {
                const [, scalar, layer] = /^formula\/([^/]+)\/(\d+)$/.exec(key) ?? [];
                if (scalar)
                    found.set(scalar, (found.get(scalar) ?? new Set()).add(layer));
            }
        for (const [scalar, layers] of found) {
            const curves = (await Promise.all([...layers].sort((a, b) => Number(a) - Number(b)).map(async layer => (await readSweepCurves(id, { key: `formula/${scalar}/${layer}`, x: 'step', points, buckets: 200, open: true }, signal))
                .filter(curve => curve.data.length > 0).map(curve => ({ curve, layer }))))).flat();
            let one = scalarCharts.get(scalar);
            if (!one) {
                const key = `formula/${scalar}`, panel = { id: key, title: `${scalar} over training`, metric: { ...describe(`${key}/1`), exact: true }, keys: [key], layered: false };
                one = new Chart(panel, { ...look.look, axis: 'step' }, { signal, zoom: () => {}, pan: () => {}, widen: () => {}, more: () => {}, began: () => 0, epoch: () => 1, name: `sweep-${id}-${scalar}` });
                scalarCharts.set(scalar, one);
            }
            one.show(curves.map(({ curve, layer }, i) => lineOf(curve, `formula/${scalar}/${layer}`, `layer ${layer}, ${say(curve.values)}`, i)).filter(curve => curve.buckets.length > 0));
        }
        if (found.size > 0 && !scalarsPlace.hasChildNodes())
            fill(scalarsPlace, h('h2', null, 'Learned scalars'), [...scalarCharts.values()].map(c => c.el));
    }

    async function drawCurves() {
        const mine = ++drawing;
        const key = metric;
        if (!sweep || !key)
            return;
        // The best combinations, in the order of the table, are as many as one can tell apart.
        const about = describe(key);
        const sign = sweep.mode === 'min' ? 1 : -1;
        const ranked = sweep.table.filter(row => row.metrics[sweep?.metric ?? '']?.mean !== null && row.metrics[sweep?.metric ?? '']).sort((a, b) =>
            sign * (/** @type {number} */ (a.metrics[sweep?.metric ?? ''].mean) - /** @type {number} */ (b.metrics[sweep?.metric ?? ''].mean)));
        const points = ranked.slice(0, MOST_CURVES).map(row => row.point).sort((a, b) => a - b);
        if (points.length === 0) {
            fill(curvesPlace);
            return;
        }
        try {
            const curves = await readSweepCurves(id, { key, x: 'step', points, buckets: 200, open }, signal);
            if (mine !== drawing)
                return;
            if (curves.every(curve => curve.data.length < 2)) {
                fill(curvesPlace);
                chart = null;
                return;
            }
            if (chart?.panel.id !== key || !chart.el.isConnected) {
                const panel = { id: key, title: `${key} over training`, metric: { ...about, exact: true }, keys: [key], layered: false };
                chart = new Chart(panel, { ...look.look, axis: 'step' }, { signal, zoom: () => {}, pan: () => {}, widen: () => {}, more: () => {}, began: () => 0, epoch: () => 1, name: `sweep-${id}` });
                fill(curvesPlace, h('div', { class: 'row' }, h('h2', { class: 'grow' }, 'Over training'), h('span', { class: 'muted small' }, points.length < (sweep?.table.length ?? 0) ? `the best ${points.length} combinations` : '')), look.el, chart.el);
            }
            chart.show(curves.map((curve, i) => lineOf(curve, key, say(curve.values), i)).filter(curve => curve.buckets.length > 0));
            await drawScalars(points);
        } catch (error) {
            if (!isAbort(error) && mine === drawing)
                fill(curvesPlace, h('p', { class: 'note', data: { tone: 'bad' } }, message(error)));
        }
    }

    function draw() {
        drawControls();
        drawBaselines();
        drawHead();
        drawPlot();
        drawTable();
    }

    /** What the API makes of the sweep; the chart above shows its ranges where one panel is all there is. */
    async function analyse() {
        if (!sweep || !sweep.axes.some(swept => varies(swept.values)))
            return;
        await analysis.refresh(metric, open, axis);
        drawPlot();
    }

    /** Metrics of its runs, first and last ones: a run that waits or has just started has none. */
    async function readKeys() {
        const metrics = knownMetrics.filter(m => m.group === 'training').map(m => m.key).slice(0, 16);
        const ends = await Promise.all(/** @type {const} */ (['oldest', 'newest']).map(order => listRuns({ job: id, limit: 20, order, metrics, fields: ['/data/image_size', '/model/patch'] }, signal)));
        const runs = ends.flatMap(page => page.runs);
        tokens = sharedPatches(runs);
        return runs.flatMap(run => Object.keys(run.latest));
    }

    async function refresh() {
        const mine = ++turn;
        try {
            const now = await readJob(id, signal);
            if (now.runs.total === 1 && !now.sweep) {
                // A job of one run has nothing to say that its run does not.
                const { runs } = await listRuns({ job: id, limit: 1 }, signal);
                if (runs.length > 0) {
                    location.replace(`#/runs/${runs[0].id}`);
                    return;
                }
            }
            if (!keysKnown) {
                const found = await readKeys();
                keys = [...new Set([...keys, ...now.sweep ? [now.sweep.metric] : [], ...found])];
                keysKnown = !OPEN.has(now.state);
            }
            const got = await readSweep(id, { metrics: keys.slice(0, 16), value: 'last', open, baseline }, signal);
            if (mine !== turn)
                return;
            job = now;
            sweep = got;
            if (!content.isConnected)
                fill(place, content);
            draw();
            await analyse();
            await drawCurves();
        } catch (error) {
            if (isAbort(error) || mine !== turn)
                return;
            if (baseline && /** @type {any} */ (error).status === 422) { // an old link: there is no such combination
                baseline = '';
                context.setQuery({ from: null });
                return refresh();
            }
            if (!content.isConnected) {
                const missing = [400, 404].includes(/** @type {any} */ (error).status);
                fill(place, h('div', { class: 'card' }, missing ? stateBox('failed', `There is no job ${id}`, 'It may be on another server.', h('a', { class: 'button', href: '#/' }, 'Back to runs'))
                    : failedBox(error, 'The job', () => refresh())));
            }
        }
    }

    let width = 0;
    const observer = new ResizeObserver(() => {
        if (Math.abs(plot.clientWidth - width) > 2) {
            width = plot.clientWidth;
            drawPlot();
        }
    });
    observer.observe(plot);
    signal.addEventListener('abort', () => observer.disconnect());
    onTheme(() => {
        drawPlot();
        analysis.redraw();
    }, signal);
    const nudge = pacer(refresh, { least: 1500, most: 4000, wanted: () => job !== null && OPEN.has(job.state), signal });
    onEvent(event => {
        if (event.jobId === id)
            nudge();
    }, signal);
    refresh();
    return { el };
}
