// A sweep against one of its axes: a panel for each combination of the others, the best values against the number of tokens,
// and both as a table. Every interval, range and slope is the API's; this file draws.
import { readAnalysis } from '../results.js';
import { isAbort } from '../api.js';
import { panelSave } from '../chart/menu.js';
import { fill, h, message } from '../dom.js';
import { number, percent } from '../format.js';
import { describe, present } from '../metrics.js';
import { scatter } from '../scatter.js';
import { short } from '../table/columns.js';

/** @typedef {import('../types').SweepPanel} SweepPanel */
/** @typedef {import('../types').SweepAnalysis} SweepAnalysis */

/** @typedef {{el: HTMLElement, place: HTMLElement, text: HTMLElement, draw: () => void, figure: (() => import('../chart/figure.js').Figure) | null}} Card */

const MOST_PANELS = 24;

/** Why a point is not usable, in words. @type {Record<string, string>} */
const faults = { empty: 'no value yet', diverged: 'a run diverged', nonfinite: 'a run ended at a value that is not finite', failed: 'a run failed', worse: 'too far from the best' };

/** @param {string} pointer */
const nameOf = pointer => pointer.slice(1).replaceAll('/', '.');
/** @param {string} pointer */
const shortName = pointer => pointer.split('/').pop() ?? pointer;

/** What the best value of a panel is, in words. @param {SweepPanel} panel @param {string} name */
export function bestWords({ best, best_why: why }, name) {
    if (!best)
        return `No best ${name}: ${why}.`;
    const interval = best.low === null || best.high === null || best.share === null ? `no interval: ${best.why}`
        : `95 % interval ${number(best.low)} to ${number(best.high)}, chosen by ${percent(best.share)} of the resamples`;
    return `Best ${name} ${number(best.x)}${best.at_end ? ', at the end of the grid' : ''} (${interval}).`;
}

/** @param {SweepPanel} panel */
export function rangeWords({ usable, usable_why: why }) {
    if (!usable)
        return `No usable range: ${why}.`;
    if (usable.from === usable.to)
        return `Usable: ${number(usable.from)} alone.`;
    const ends = [usable.from_end ? 'the lower' : '', usable.to_end ? 'the upper' : ''].filter(Boolean).join(' and ');
    return `Usable from ${number(usable.from)} to ${number(usable.to)}${usable.decades === null ? '' : `, ${usable.decades.toFixed(2)} decades`}${ends ? `, up to ${ends} end of the grid` : ''}.`;
}

/** @param {SweepAnalysis['slopes'][number]} slope @param {string} name */
export function slopeWords(slope, name) {
    if (slope.b === null)
        return `No slope: ${slope.why}.`;
    const interval = slope.low === null || slope.high === null ? `no interval: ${slope.interval_why}` : `95 % interval ${slope.low.toFixed(2)} to ${slope.high.toFixed(2)}`;
    return `The best ${name} grows as N to the power of ${slope.b.toFixed(2)} (${interval}), over ${slope.n} panels.`.replaceAll('-', '−');
}

/** The ranges of a panel, shaded. @param {SweepPanel} panel @returns {import('../scatter.js').Shade[]} */
const shadesOf = ({ best, usable }) => [
    ...(usable ? [/** @type {const} */ ({ kind: 'usable', from: usable.from, to: usable.to, word: 'usable range' })] : []),
    ...(best && best.low !== null && best.high !== null ? [/** @type {const} */ ({ kind: 'interval', from: best.low, to: best.high, word: 'interval of the best' })] : [])];

/** Points that have no mean. @param {SweepPanel} panel */
const goneOf = panel => panel.points.filter(p => p.value.mean === null || !Number.isFinite(p.value.mean)).map(p => ({ x: p.x, text: `${number(p.x)}: ${faults[p.why ?? 'empty']}` }));

/**
 * @param {object} options
 * @param {string} options.id of the job
 * @param {import('../types').ViewContext} options.context
 * @param {(values: Record<string, unknown>) => string} options.say
 * @param {(about: import('../metrics.js').Metric, mean: number | null, sd: number | null) => [string, string]} options.both
 */
export function analysisSection({ id, context, say, both }) {
    const { signal, query } = context;
    let along = query.get('along') ?? '';
    /** @type {SweepAnalysis | null} */
    let analysis = null;
    let shown = { metric: '', open: false, axis: '' };
    const heading = h('h2', null, 'Analysis');
    const pick = h('select', { 'aria-label': 'Along' });
    const pickLabel = h('div', { class: 'toolbar' }, h('label', { class: 'inline' }, 'Along', pick));
    const legend = h('p', { class: 'muted small' }), note = h('p', { class: 'muted small' }), words = h('p');
    const grid = h('div', { class: 'panels' }), table = h('div', { class: 'card scroll-x', tabindex: 0, role: 'region', 'aria-label': 'Best values and usable ranges' });
    const el = h('section', { class: 'stack', hidden: true, 'aria-label': 'Analysis' }, heading, pickLabel, legend, grid, words, table, note);
    /** By what they show, so that an open menu outlives a refresh. @type {Map<string, Card>} */
    const cards = new Map();

    pick.addEventListener('change', () => {
        along = pick.value;
        context.setQuery({ along });
        refresh(shown.metric, shown.open, shown.axis);
    });

    /**
     * @param {string} key
     * @param {string} title
     * @returns {Card}
     */
    function card(key, title) {
        const known = cards.get(key);
        if (known)
            return known;
        /** @type {Card} */
        const made = { el: h('section', { class: 'card chart' }), place: h('div', { class: 'scatter-place' }), text: h('p', { class: 'small' }), draw: () => {}, figure: null };
        fill(made.el, h('div', { class: 'chart-head' }, h('h3', null, title), h('span', { class: 'grow' }), panelSave(title, () => made.figure, `sweep-${id}-${title}`)), made.place, made.text);
        cards.set(key, made);
        return made;
    }

    /** @param {SweepPanel} panel */
    const titleOf = panel => [Object.keys(panel.values).length > 0 ? say(panel.values) : '', panel.tokens ? `N = ${panel.tokens}` : ''].filter(Boolean).join(', ') || 'all runs';

    /** @param {SweepAnalysis} a @param {SweepPanel} panel */
    function panelCard(a, panel) {
        const at = card(`panel ${JSON.stringify(panel.values)} ${a.axis}`, titleOf(panel)), about = describe(a.metric), name = shortName(a.axis);
        at.draw = () => {
            const marks = panel.points.filter(p => p.value.mean !== null && Number.isFinite(p.value.mean)).map(p => ({
                x: p.x, y: /** @type {number} */ (p.value.mean), sd: p.value.sd, n: p.value.n, best: p.point === panel.best?.point,
                text: `${name} ${number(p.x)}: ${both(about, p.value.mean, p.value.sd).join('')}, ${p.value.n} run${p.value.n === 1 ? '' : 's'}${p.why ? `, not usable: ${faults[p.why]}` : ', usable'}` }));
            at.figure = null;
            if (marks.length === 0) {
                fill(at.place, h('div', { class: 'state small-state' }, h('p', null, 'No successful run has a value yet.')));
                return;
            }
            const root = a.axis === '/attention/k' && panel.tokens ? { at: Math.sqrt(panel.tokens), word: `√N = ${number(Math.sqrt(panel.tokens))}` } : null;
            at.figure = scatter(at.place, { groups: [{ name: '', marks }], title: `${a.metric} against ${name}, ${titleOf(panel)}`, xTitle: nameOf(a.axis), yTitle: `mean ${a.metric}`, log: a.log, height: 240, rule: root,
                format: v => (about.unit === 'share' ? `${+(v * 100).toFixed(2)} %` : present(about, v)), shades: shadesOf(panel), gone: goneOf(panel) });
        };
        fill(at.text, bestWords(panel, name), ' ', rangeWords(panel));
        return at;
    }

    /** The best values against N, with the fitted lines. @param {SweepAnalysis} a */
    function slopeCard(a) {
        const at = card(`slope ${a.axis}`, `best ${shortName(a.axis)} against N`), name = shortName(a.axis);
        at.draw = () => {
            const groups = a.slopes.map(slope => {
                const panels = slope.panels.map(i => a.panels[i]).filter(p => p.tokens && p.best && p.best.x > 0);
                const ends = panels.map(p => /** @type {number} */ (p.tokens)), { a: height, b } = slope;
                return { name: say(slope.values), fit: b === null || height === null ? null : [Math.min(...ends), Math.max(...ends)].map(n => /** @type {[number, number]} */ ([n, Math.exp(height + b * Math.log(n))])),
                    marks: panels.map(({ tokens, best }) => ({ x: tokens, y: /** @type {number} */ (best?.x), sd: null, range: best && best.low !== null && best.high !== null ? /** @type {[number, number]} */ ([best.low, best.high]) : null,
                        text: `N ${tokens}: best ${name} ${number(best?.x)}${best && best.low !== null ? `, ${number(best.low)} to ${number(best.high)}` : ''}` })) };
            }).filter(group => group.marks.length > 0).slice(0, 14);
            at.figure = groups.length > 0 ? scatter(at.place, { groups, title: `best ${name} against the number of tokens N`, xTitle: 'N, tokens', yTitle: `best ${name}`, log: true, yLog: true, height: 240, format: number }) : null;
        };
        fill(at.text, a.slopes.map(slope => h('span', { class: 'block' }, a.slopes.length > 1 ? `${say(slope.values)}: ` : '', slopeWords(slope, name), ' ')));
        return at;
    }

    /** @param {SweepAnalysis} a */
    function drawTable(a) {
        const name = shortName(a.axis), about = describe(a.metric), sized = a.panels.some(p => p.tokens);
        const col = (/** @type {string} */ word, num = true) => h('th', { scope: 'col', class: num ? 'num' : '' }, word);
        const cell = (/** @type {string} */ text) => h('td', { class: 'num' }, text);
        fill(table, h('table', { class: 'table analysis-table' },
            h('thead', null, h('tr', null, a.by.map(pointer => col(nameOf(pointer))), sized ? col('N') : null, col(`Best ${name}`), col('95 % interval'), col('Resamples'), col(a.metric), col('Usable from'), col('to'), col('Decades'))),
            h('tbody', null, a.panels.map(({ values, tokens, best, usable }) => h('tr', null,
                a.by.map(pointer => h('td', { class: 'num mono' }, pointer in values ? short(values[pointer]) : '–')), sized ? cell(tokens ? String(tokens) : '–') : null,
                cell(best ? number(best.x) : '–'), cell(best && best.low !== null ? `${number(best.low)} to ${number(best.high)}` : '–'), cell(best && best.share !== null ? percent(best.share) : '–'), cell(best ? present(about, best.mean) : '–'),
                cell(usable ? `${usable.from_end ? '≤ ' : ''}${number(usable.from)}` : '–'), cell(usable ? `${usable.to_end ? '≥ ' : ''}${number(usable.to)}` : '–'), cell(usable && usable.decades !== null ? usable.decades.toFixed(2) : '–'))))));
    }

    function draw() {
        const a = analysis;
        el.hidden = !a || a.panels.length === 0;
        if (!a)
            return;
        const name = shortName(a.axis), alone = extra(shown.axis) !== null;
        heading.textContent = `Analysis along ${nameOf(a.axis)}`;
        const numeric = a.axes.filter(axis => axis.numeric).map(axis => axis.pointer);
        fill(pick, numeric.map(pointer => h('option', { value: pointer }, nameOf(pointer))));
        pick.value = a.axis;
        pickLabel.hidden = numeric.length < 2;
        fill(legend, h('span', { class: 'key-usable', 'aria-hidden': 'true' }), ' usable range, ', h('span', { class: 'key-interval', 'aria-hidden': 'true' }), ' 95 % bootstrap interval of the best, bars: one standard deviation over trials, ✕: no value.');
        const wanted = [...(alone ? [] : a.panels.slice(0, MOST_PANELS).map(panel => panelCard(a, panel))), ...(a.slopes.some(slope => slope.b !== null || slope.n > 1) ? [slopeCard(a)] : [])];
        for (const [key, { el: old }] of cards)
            if (!wanted.some(at => at.el === old))
                cards.delete(key);
        if (grid.children.length !== wanted.length || wanted.some((at, i) => grid.children[i] !== at.el))
            fill(grid, wanted.map(at => at.el));
        drawCharts();
        words.hidden = !alone;
        fill(words, alone ? `${bestWords(a.panels[0], name)} ${rangeWords(a.panels[0])}` : '');
        drawTable(a);
        fill(note, [`Usable: ${a.usable_rule}.`, a.slopes.length === 0 && a.slopes_why ? `No slope against N: ${a.slopes_why}.` : '', a.left_out > 0 ? `${a.left_out} combinations without a number here are left out.` : '',
            a.panels.length > MOST_PANELS && !alone ? `${a.panels.length - MOST_PANELS} more panels are in the table.` : ''].filter(Boolean).join(' '));
    }

    /** Again at another width or in other colours. */
    function drawCharts() {
        if (!el.hidden && el.isConnected)
            for (const at of cards.values())
                at.draw();
    }

    /**
     * What the chart of results takes up where it shows the one panel that there is.
     * @param {string} axis of that chart
     */
    function extra(axis) {
        if (!analysis || analysis.panels.length !== 1 || analysis.axis !== axis || analysis.metric !== shown.metric)
            return null;
        return { shades: shadesOf(analysis.panels[0]), gone: goneOf(analysis.panels[0]) };
    }

    /** @param {string} metric @param {boolean} open @param {string} axis of the chart of results */
    async function refresh(metric, open, axis) {
        shown = { metric, open, axis };
        try {
            const got = await readAnalysis(id, { metric, axis: along, open }, signal);
            if (shown.metric !== metric || shown.open !== open)
                return; // another was chosen meanwhile
            analysis = got;
            draw();
        } catch (error) {
            if (isAbort(error))
                return;
            if (along && /** @type {any} */ (error).status === 422) { // an old link
                along = '';
                context.setQuery({ along: null });
                return refresh(metric, open, axis);
            }
            analysis = null;
            // 422: nothing that is swept is a number.
            const dull = /** @type {any} */ (error).status === 422;
            el.hidden = dull;
            heading.textContent = 'Analysis';
            pickLabel.hidden = true;
            cards.clear();
            for (const part of [legend, words, table, grid, note])
                fill(part);
            if (!dull)
                fill(grid, h('p', { class: 'note', data: { tone: 'bad' } }, message(error)));
        }
    }

    let width = 0;
    const observer = new ResizeObserver(() => {
        if (Math.abs(grid.clientWidth - width) > 2) {
            width = grid.clientWidth;
            drawCharts();
        }
    });
    observer.observe(grid);
    signal.addEventListener('abort', () => observer.disconnect());
    return { el, refresh, redraw: drawCharts, extra };
}
