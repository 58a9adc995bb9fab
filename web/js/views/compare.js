// Comparison of runs: their curves in one chart per metric, what their configurations do not share, and what they reached.
import { isAbort, listSeries } from '../api.js';
import { Chart, inkOf } from '../chart.js';
import { loadCurves } from '../chart/load.js';
import { meanOf } from '../compare/mean.js';
import { distinct } from '../compare/names.js';
import { bones, download, failedBox, fill, h, icon, line, setText, stateBox } from '../dom.js';
import { onEvent, pacer } from '../live.js';
import { LookBar, toSteps } from '../look.js';
import { describe, panels, parseKey, present, seriesName } from '../metrics.js';
import { compareExport, compareRuns } from '../results.js';
import { chip, isActive, standing } from '../states.js';
import { short } from '../table/columns.js';
import { onTheme } from '../theme.js';

/** @typedef {import('../types').Run} Run */

const MOST = 20;

/** @param {Run} run */
const averaged = run => run.outcome === 'succeeded' || run.state !== 'ended';

/**
 * @param {import('../types').ViewContext} context
 * @returns {import('../types').View}
 */
export function compareView(context) {
    const { signal, query } = context;
    context.setTitle('Compare');
    let ids = (query.get('runs') ?? '').split(',').filter(id => /^\d+$/.test(id)).slice(0, MOST);
    let mean = query.get('mean') ?? '';
    let layer = Number(query.get('layer')) || 0;
    let all = query.get('all') === '1';
    /** Runs, or groups of them, that the panels leave out. */
    const off = new Set((query.get('off') ?? '').split(',').filter(Boolean));
    /** Those that come first and are drawn strong, over the others. */
    const pins = new Set((query.get('pins') ?? '').split(',').filter(Boolean));
    /** @type {import('../types').Comparison | null} */
    let comparison = null;
    /** Series of each run. @type {Map<string, import('../types').Series[]>} */
    const series = new Map();
    /** @type {Map<string, Chart>} */
    const charts = new Map();
    /** What the legend was last drawn of. */
    let membersDrawn = '';

    const summary = h('p', { class: 'sub' });
    const members = h('ul', { class: 'members', 'aria-label': 'Runs compared' });
    const add = h('input', { type: 'text', inputmode: 'numeric', class: 'tag-input', placeholder: 'Add run #', 'aria-label': 'Add a run by its number' });
    const adder = h('form', null, add);
    const actions = h('div', { class: 'row' });
    const grid = h('div', { class: 'charts' });
    const layered = h('div', { class: 'charts' });
    const layerPick = h('select', { 'aria-label': 'Layer' });
    const layerBox = h('section', { class: 'stack', hidden: true }, h('div', { class: 'row' }, h('h2', { class: 'grow' }, 'Layers'), layerPick), layered);
    const meanPick = h('select', { 'aria-label': 'Lines' });
    const differences = h('div', { class: 'stack' });
    const reached = h('div', { class: 'stack' });
    const bar = new LookBar(context, {
        look: look => {
            charts.forEach(chart => { chart.look = { ...look }; });
            draw();
        },
        range: () => refresh(),
        panels: () => refresh(),
    });
    bar.el.prepend(h('label', { class: 'inline' }, 'Lines', meanPick));
    const side = h('aside', { class: 'card members-box', 'aria-label': 'Legend' }, members, adder);
    const content = h('div', { class: 'stack-l' }, bar.el, h('div', { class: 'with-side' }, side, h('div', { class: 'stack-l' }, h('h2', { class: 'hidden' }, 'Curves'), grid, layerBox)), reached, differences);
    const place = h('div', null, h('div', { class: 'card' }, bones(8)));
    const el = h('div', null, h('p', { class: 'small' }, h('a', { href: '#/' }, '← Runs')),
        h('div', { class: 'head' }, h('div', null, h('h1', null, 'Compare'), summary), actions), place);

    adder.addEventListener('submit', event => {
        event.preventDefault();
        const id = add.value.replace(/\D/g, '');
        if (id && !ids.includes(id) && ids.length < MOST) {
            add.value = '';
            setRuns([...ids, id]);
        }
    });

    /** @param {string[]} next */
    function setRuns(next) {
        ids = next;
        context.setQuery({ runs: ids.join(',') });
        comparison = null;
        refresh();
    }

    meanPick.addEventListener('change', () => {
        mean = meanPick.value;
        context.setQuery({ mean });
        draw();
        drawTables();
    });
    layerPick.addEventListener('change', () => {
        layer = Number(layerPick.value);
        context.setQuery({ layer: layerPick.value });
        refresh();
    });

    const began = (/** @type {Run} */ run) => (run.started ? Date.parse(run.started) / 1000 : Date.parse(run.created) / 1000);
    /** @param {Run} run */
    function perEpoch(run) {
        const logged = series.get(run.id)?.find(s => s.key === 'steps_per_epoch')?.value;
        if (logged)
            return logged;
        const epochs = Number(comparison?.fields.find(f => f.pointer === '/train/epochs')?.values[comparison.runs.indexOf(run)]);
        return epochs > 0 && run.totalSteps ? run.totalSteps / epochs : null;
    }

    /**
     * The runs in groups, each a line: every run alone, or the mean of those with the same value. What diverged, failed or
     * was cancelled is counted but not averaged.
     * @returns {{name: string, runs: Run[]}[]}
     */
    function lines() {
        const { runs, fields } = /** @type {import('../types').Comparison} */ (comparison);
        if (!mean) {
            const names = distinct(runs.map(label));
            return runs.map((run, i) => ({ name: names[i], runs: [run] }));
        }
        const told = mean === 'trials' ? fields.filter(f => f.differs && !/^\/(train\/seed|name|tags|notes)/.test(f.pointer)) : fields.filter(f => f.pointer === mean);
        /** @type {Map<string, Run[]>} */
        const groups = new Map();
        runs.forEach((run, i) => {
            const name = mean === 'experiment' ? run.experiment : mean === 'job' ? `${run.name} (job #${run.jobId})`
                : told.map(f => `${f.pointer.split('/').pop()} ${short(f.values[i])}`).join(', ') || 'all';
            groups.set(name, [...(groups.get(name) ?? []), run]);
        });
        return [...groups].map(([name, own]) => {
            const counted = own.filter(averaged).length;
            return { name: own.length > 1 ? `${name} (${counted < own.length ? `${counted} of ` : ''}${own.length})` : name, runs: own };
        });
    }

    /** @param {Run} run */
    function label(run) {
        const same = comparison?.runs.filter(other => other.name === run.name).length ?? 0;
        if (same < 2)
            return run.name;
        const i = comparison?.runs.indexOf(run) ?? 0;
        const told = Object.entries(run.sweep).map(([key, value]) => `${key.split('/').pop()} ${short(value)}`);
        const seed = comparison?.fields.find(f => f.pointer === '/train/seed' && f.differs);
        return [run.name, ...told, seed ? `seed ${short(seed.values[i])}` : ''].filter(Boolean).join(' · ') + (told.length || seed ? '' : ` #${run.id}`);
    }

    /** Curves of each run, by metric key. @type {Map<string, Map<string, import('../types').Curve>>} */
    const curves = new Map();

    function wantedPanels() {
        const keys = [...new Set([...series.values()].flatMap(list => list.map(s => s.key)))];
        const flat = [];
        for (const panel of panels(keys)) {
            if (['system', 'gpus', 'positions'].includes(panel.metric.group))
                continue; // of one run: what it took of its machine, and what is no curve over steps
            if (panel.layered)
                flat.push(panel);
            else
                // Lines are runs here: training and validation are charts of their own.
                for (const key of panel.keys.slice().sort((a, b) => Number(/\/train$/.test(a)) - Number(/\/train$/.test(b))))
                    flat.push({ ...panel, id: key, metric: { ...describe(key), unit: panel.metric.unit }, keys: [key], title: describe(key).panel ? `${panel.title}, ${seriesName(key)}` : panel.title });
        }
        return flat;
    }

    /**
     * What a line is called in the address: its run, or the number of its group.
     * @param {{runs: Run[]}} group
     * @param {number} ink
     */
    const lineId = (group, ink) => (mean ? `g${ink}` : group.runs[0].id);

    /** What tells a control of the legend from the others. @param {Element | null} el */
    const nameOf = el => el?.getAttribute('aria-label') ?? el?.getAttribute('href') ?? null;

    /**
     * The one legend of all panels: each line once, with its colour and whether it is shown, and its runs.
     * @param {{name: string, runs: Run[]}[]} groups
     */
    function drawMembers(groups) {
        // Curves come again and again: what did not change stays in place, under the pointer and with the focus.
        const drawn = JSON.stringify([document.documentElement.dataset.theme, ids, Boolean(mean), groups.map((group, ink) => [group.name, off.has(lineId(group, ink)), pins.has(lineId(group, ink)), group.runs.map(run => [run.id, run.name, label(run), standing(run)])])]);
        if (drawn === membersDrawn)
            return;
        membersDrawn = drawn;
        const focus = members.contains(document.activeElement) ? nameOf(document.activeElement) : null;
        /** @param {Run} run @param {string} name */
        const member = (run, name) => [h('a', { href: `#/runs/${run.id}`, class: 'clip', title: run.name }, name), h('span', { class: 'muted small' }, `#${run.id}`), chip(standing(run)),
            h('button', { type: 'button', class: 'quiet icon-button small-button', 'aria-label': `Take run ${run.id} out`, title: 'Remove it from the comparison', on: { click: () => setRuns(ids.filter(id => id !== run.id)) } }, icon('close', 11))];
        const order = groups.map((group, ink) => ({ group, ink, id: lineId(group, ink) })).sort((a, b) => Number(pins.has(b.id)) - Number(pins.has(a.id)));
        fill(members, order.flatMap(({ group, ink, id }) => {
            const shown = !off.has(id);
            const pinned = pins.has(id);
            const pin = h('button', { type: 'button', class: 'quiet icon-button small-button', 'aria-pressed': String(pinned), 'aria-label': `Pin ${group.name}`, title: pinned ? 'Draw it like the others' : 'Put it first and draw it bold', on: { click: () => {
                if (!pins.delete(id))
                    pins.add(id);
                context.setQuery({ pins: [...pins].join(',') });
                draw();
                drawTables();
            } } }, icon('pin', 13));
            const eye = h('button', { type: 'button', class: 'quiet icon-button small-button', 'aria-pressed': String(shown), 'aria-label': `Show ${group.name}`, title: shown ? 'Hide its line' : 'Show its line', on: { click: () => {
                if (!off.delete(id))
                    off.add(id);
                context.setQuery({ off: [...off].join(',') });
                draw();
            } } }, icon(shown ? 'eye' : 'hidden', 14));
            const light = (/** @type {boolean} */ on) => () => charts.forEach(chart => chart.highlight(on ? (mean ? String(ink) : id) : null));
            const on = { mouseenter: light(true), mouseleave: light(false), focusin: light(true), focusout: light(false) };
            const data = { off: !shown, pinned };
            if (!mean)
                return [h('li', { class: 'member', data, on }, eye, pin, line(...inkOf(ink)), ...member(group.runs[0], group.name))];
            return [h('li', { class: 'member group-line', data, on }, eye, pin, line(...inkOf(ink)), h('b', { class: 'clip' }, group.name)),
                ...group.runs.map(run => h('li', { class: 'member of-group', on }, ...member(run, label(run))))];
        }));
        adder.hidden = ids.length >= MOST;
        if (focus)
            /** @type {HTMLElement | undefined} */ ([...members.querySelectorAll('a, button')].find(el => nameOf(el) === focus))?.focus({ preventScroll: true });
    }

    function draw() {
        if (!comparison)
            return;
        const { runs } = comparison;
        const groups = lines();
        const grouped = Boolean(mean);
        const epochs = runs.map(perEpoch);
        bar.epochs(epochs.every(e => e !== null), 'The length of an epoch is not known of every run');
        drawMembers(groups);
        for (const chart of charts.values())
            chart.readWidth();
        for (const panel of wantedPanels()) {
            const key = panel.layered ? `${panel.id}/${layer}` : panel.id;
            const chart = charts.get(panel.id);
            if (!chart)
                continue;
            const made = groups.map((group, ink) => {
                const own = (grouped && group.runs.length > 1 ? group.runs.filter(averaged) : group.runs).map(run => ({ run, curve: curves.get(run.id)?.get(key) })).filter(({ curve }) => curve && curve.buckets.length > 0);
                if (own.length === 0 || off.has(lineId(group, ink)))
                    return null;
                if (!grouped) {
                    const { run, curve } = /** @type {{run: Run, curve: import('../types').Curve}} */ (own[0]);
                    return { ...curve, key: `${run.id}:${key}`, name: group.name, ink, began: began(run), perEpoch: perEpoch(run) ?? 1, span: run.totalSteps ?? undefined };
                }
                const points = own.map(({ run, curve }) => (curve?.buckets ?? []).map(b => ({
                    x: chart.x(/** @type {any} */ ({ began: began(run), perEpoch: perEpoch(run) ?? 1 }), b), y: b.mean })));
                return { key: `${ink}:${key}`, name: group.name, ink, began: 0, perEpoch: 1, exact: own.length > 1, points: own.reduce((n, { curve }) => n + (curve?.points ?? 0), 0), buckets: meanOf(points) };
            });
            // What is drawn last stands over the others.
            const strong = groups.map((group, ink) => pins.has(lineId(group, ink)));
            chart.show(made.map((curve, i) => curve && { ...curve, strong: strong[i] }).filter(curve => curve !== null).sort((a, b) => Number(a.strong) - Number(b.strong)));
            chart.el.hidden = made.every(curve => curve === null) || !bar.fits(panel);
        }
    }

    function drawTables() {
        if (!comparison)
            return;
        const { runs, differing, same, metrics } = comparison;
        const fields = comparison.fields.filter(f => all || f.differs);
        /** Places of the runs, those that are pinned first. */
        const order = runs.map((_, i) => i).sort((a, b) => mean ? 0 : Number(pins.has(runs[b].id)) - Number(pins.has(runs[a].id)));
        const groups = lines();
        const head = () => order.map(i => h('th', { class: 'num', scope: 'col' }, h('span', { class: 'col-run' }, line(...inkOf(groups.findIndex(group => group.runs.includes(runs[i])))), `#${runs[i].id}`)));
        const kept = metrics.filter(m => m.runs.some(Boolean) && describe(parseKey(m.key).base).group !== 'gpus');
        fill(reached, kept.length > 0 && [h('h2', null, 'Results'), h('div', { class: 'card scroll-x', tabindex: 0, role: 'region', 'aria-label': 'Latest values' }, h('table', { class: 'table compare-table' },
            h('thead', null, h('tr', null, h('th', { scope: 'col' }, 'Metric, latest'), head())),
            h('tbody', null, kept.map(m => {
                const metric = describe(m.key);
                const values = m.runs.map(r => r?.last ?? null);
                const finite = values.filter(v => v !== null && Number.isFinite(v));
                const best = metric.better !== 'neither' && finite.length > 1 ? Math[metric.better === 'more' ? 'max' : 'min'](.../** @type {number[]} */ (finite)) : null;
                return h('tr', null, h('th', { scope: 'row' }, m.key), order.map(i => values[i]).map(v => h('td', { class: 'num', data: { best: v !== null && v === best } }, present(metric, v))));
            }))))]);
        const toggle = h('input', { type: 'checkbox' });
        toggle.checked = !all;
        toggle.addEventListener('change', () => {
            all = !toggle.checked;
            context.setQuery({ all: all ? '1' : null });
            drawTables();
        });
        fill(differences, h('div', { class: 'row' }, h('h2', { class: 'grow' }, 'Configuration'), h('label', { class: 'inline small' }, toggle, 'Only differences'),
            h('span', { class: 'muted small' }, `${differing} differ, ${same} are the same`)),
        h('div', { class: 'card scroll-x', tabindex: 0, role: 'region', 'aria-label': 'Configuration of each run' }, fields.length === 0
            ? h('div', { class: 'state small-state' }, h('p', null, 'These runs have the same configuration.'))
            : h('table', { class: 'table compare-table' },
                h('thead', null, h('tr', null, h('th', { scope: 'col' }, 'Setting'), head())),
                h('tbody', null, fields.map(f => h('tr', { data: { same: !f.differs } }, h('th', { scope: 'row' }, f.pointer.slice(1).replaceAll('/', '.')),
                    order.map(i => h('td', { class: 'num mono', data: { default: !f.named[i] }, title: f.named[i] ? 'As submitted' : 'A default, or computed' }, f.values[i] === null ? '–' : short(f.values[i])))))))));
    }

    function drawControls() {
        if (!comparison)
            return;
        const { fields } = comparison;
        const offers = [['', 'Each run'], ['trials', 'Mean of equal runs (trials)'], ['experiment', 'Mean by experiment'], ['job', 'Mean by job'],
            ...fields.filter(f => f.differs && !['/name', '/notes', '/tags', '/experiment'].includes(f.pointer)).map(f => [f.pointer, `Mean by ${f.pointer.slice(1).replaceAll('/', '.')}`])];
        if (mean && !offers.some(([id]) => id === mean))
            mean = '';
        fill(meanPick, offers.map(([id, word]) => h('option', { value: id }, word)));
        meanPick.value = mean;
        const layers = [...new Set([...series.values()].flatMap(list => list.map(s => parseKey(s.key).layer ?? 0)))].filter(Boolean).sort((a, b) => a - b);
        layerBox.hidden = layers.length === 0;
        if (layers.length > 0) {
            if (!layers.includes(layer))
                layer = layers[Math.floor(layers.length / 2)];
            fill(layerPick, layers.map(k => h('option', { value: k }, `Layer ${k}`)));
            layerPick.value = String(layer);
        }
        const keys = wantedPanels().filter(p => !p.layered).flatMap(p => p.keys).slice(0, 32);
        fill(actions, h('a', { class: 'button', href: compareExport(ids, 'fields'), download: 'compare-configuration.csv' }, icon('download'), 'Configuration'),
            h('a', { class: 'button', href: compareExport(ids, 'series', keys), download: 'compare-curves.csv' }, icon('download'), 'Curves'),
            h('button', { type: 'button', on: { click: () => download(new Blob([JSON.stringify({
                runs: comparison?.runs, fields: comparison?.fields, metrics: comparison?.metrics,
                curves: Object.fromEntries([...curves].map(([id, own]) => [id, [...own.values()]])),
            }, null, 1)], { type: 'application/json' }), 'compare.json') } }, icon('download'), 'JSON'));
    }

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
            } while (again && !signal.aborted);
        } finally {
            busy = false;
        }
    }

    async function load() {
        const asked = ids; // of other runs meanwhile, this answer is dropped
        if (asked.length === 0) {
            setText(summary, '');
            fill(actions);
            fill(place, h('div', { class: 'card' }, stateBox('empty', 'Nothing to compare yet', 'Select runs in the table and choose “Compare”. Or start with a run’s number:', adder, h('a', { class: 'button', href: '#/' }, 'Back to runs'))));
            return;
        }
        try {
            const lists = await Promise.all(asked.map(id => listSeries(id, signal)));
            if (asked !== ids)
                return;
            asked.forEach((id, i) => series.set(id, lists[i]));
            for (const id of [...series.keys()])
                if (!asked.includes(id))
                    series.delete(id);
            const headline = ['loss/val', 'loss/train', 'acc/val', 'ppl/val', 'samples_per_s', 'tokens_per_s', 'mem/peak'].filter(key => lists.some(list => list.some(s => s.key === key)));
            const got = await compareRuns(asked, { all: true, metrics: headline }, signal);
            if (asked !== ids)
                return;
            comparison = got;
            drawControls();
            if (!content.isConnected)
                fill(place, content);
            setText(summary, `${asked.length} run${asked.length === 1 ? '' : 's'}, ${comparison.differing} setting${comparison.differing === 1 ? '' : 's'} differ`);
            drawTables();
            bar.last = lists.reduce((most, list) => Math.max(most, ...list.map(s => s.step ?? 0)), 0);
            const wanted = wantedPanels().filter(panel => bar.fits(panel));
            grid.dataset.wide = layered.dataset.wide = bar.wide.value;
            for (const [id, chart] of charts)
                if (!wanted.some(p => p.id === id))
                    chart.el.hidden = true;
            for (const panel of wanted) {
                if (charts.has(panel.id))
                    continue;
                const chart = new Chart({ ...panel, layered: false }, { ...bar.look }, {
                    signal, began: () => 0, epoch: () => 1, span: () => bar.last, pan: by => bar.pan(by), widen: by => bar.widen(by), more: refresh, name: 'compare', legend: false,
                    state: bar.stateOf(panel.id), changed: () => bar.keep(), expand: big => bar.keepBig(panel.id, big),
                    zoom: range => {
                        const steps = range && zoomSteps(range);
                        if (!range || steps)
                            bar.zoom(steps);
                    },
                });
                charts.set(panel.id, chart);
                if (bar.big === panel.id)
                    chart.expand(true, false);
                (panel.layered ? layered : grid).append(chart.el);
            }
            draw();
            const keys = wanted.flatMap(p => (p.layered ? [`${p.id}/${layer}`] : p.keys));
            const buckets = Math.round(Math.min(600, Math.max(100, grid.clientWidth / 2)));
            await Promise.all(asked.map(async id => {
                const have = new Set(series.get(id)?.map(s => s.key));
                const got = await loadCurves(id, keys.filter(key => have.has(key)), { buckets, range: bar.range, span: bar.last }, signal);
                curves.set(id, new Map(got.map(curve => [curve.key, curve])));
            }));
            draw();
        } catch (error) {
            if (isAbort(error) || asked !== ids)
                return;
            if (!content.isConnected || !comparison)
                fill(place, h('div', { class: 'card' }, failedBox(error, 'The comparison', () => refresh())));
        }
    }

    /** @param {[number, number]} range */
    function zoomSteps(range) {
        if (bar.look.axis === 'step')
            return /** @type {[number, number]} */ (range.slice());
        if (!mean)
            return toSteps(range, [...charts.values()]);
        // A mean knows no steps of its own: those of the first run stand for all.
        const run = comparison?.runs[0];
        if (!run || bar.look.axis !== 'epoch')
            return null;
        const per = perEpoch(run) ?? 1;
        return /** @type {[number, number]} */ ([range[0] * per, range[1] * per]);
    }

    onTheme(() => {
        draw();
        drawTables();
    }, signal);
    const nudge = pacer(refresh, { least: 1000, most: 3000, wanted: () => comparison?.runs.some(isActive) ?? false, signal });
    onEvent(event => {
        if (event.runs.some(id => ids.includes(id)) || (event.runId && ids.includes(event.runId)))
            nudge();
    }, signal);
    refresh();
    return { el };
}
