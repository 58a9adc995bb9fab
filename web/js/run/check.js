// What a check of the theory has found: claim and truth, sentences, plots drawn from stored data, and the table of numbers.
import { getCheck, isAbort } from '../api.js';
import { inkOf } from '../chart.js';
import { paintFigure, sizeOf } from '../chart/figure.js';
import { panelSave } from '../chart/menu.js';
import { elementPainter } from '../chart/painters.js';
import { criterion, plotFigure, plotWords } from '../chart/plot.js';
import { failedBox, fill, h, icon, stateBox } from '../dom.js';
import { count, number } from '../format.js';
import { chip, isActive } from '../states.js';
import { colour, fontFamily, onTheme } from '../theme.js';

/** @typedef {import('./page.js').Page} Page */
/** @typedef {import('../chart/plot.js').Plot} Plot */
/** @typedef {import('../chart/plot.js').Row} Row */
/** @typedef {{check: string, source: string, claimed: string, correct: string, wrong: boolean, seeds: number[], verdict: string, evidence: string[], rows: Row[], plots: Plot[]}} Result */

/**
 * @param {Plot} plot
 * @param {string} name of the files
 */
function plotCard(plot, name) {
    const place = h('div', { class: 'check-plot' });
    /** @type {(() => import('../chart/figure.js').Figure) | null} */
    let make = null;
    const el = h('section', { class: 'card chart', 'aria-label': plot.title }, h('div', { class: 'chart-head' }, h('h3', null, plot.title), h('span', { class: 'grow' }), panelSave(plot.title, () => make, name)), place,
        h('details', null, h('summary', { class: 'small' }, 'The results as text'), h('p', { class: 'small' }, plotWords(plot))));
    return { el, draw: () => {
        const drawn = plotFigure({ ...plot, title: '' }, Math.max(280, place.clientWidth), inkOf);
        if (!drawn) {
            fill(place, h('p', { class: 'muted small' }, 'No values within the axes.'));
            return;
        }
        make = () => /** @type {import('../chart/figure.js').Figure} */ (plotFigure(plot, 640, inkOf));
        const painter = elementPainter(...sizeOf(drawn), fontFamily());
        paintFigure(drawn, painter, { text: colour('text'), muted: colour('muted'), grid: colour('grid'), surface: colour('surface') });
        const svg = painter.done();
        svg.setAttribute('role', 'img');
        svg.setAttribute('aria-label', `${plot.title}: ${plotWords(plot)}`);
        fill(place, svg);
    } };
}

/** @param {Row[]} rows */
function table(rows) {
    const cell = (/** @type {number | null} */ v) => h('td', { class: 'num' }, v === null ? '–' : number(v));
    return h('div', { class: 'card scroll-x', tabindex: 0, role: 'region', 'aria-label': 'Numbers' }, h('table', { class: 'table results' },
        h('thead', null, h('tr', null, h('th', { scope: 'col' }, 'Number'), ['Seed', 'Value', 'Standard error', '99 % interval', 'Expected', 'Criterion'].map(word => h('th', { class: 'num', scope: 'col' }, word)), h('th', { scope: 'col' }, 'Verdict'))),
        h('tbody', null, rows.map(row => h('tr', null, h('td', null, row.what), h('td', { class: 'num' }, row.seed === null ? 'all' : String(row.seed)), cell(row.value), cell(row.se),
            h('td', { class: 'num' }, row.low === null ? '–' : `${number(row.low)} to ${number(row.high)}`), cell(row.expected), h('td', { class: 'num' }, criterion(row)), h('td', null, row.pass === null ? '' : chip(row.pass ? 'holds' : 'fails')))))));
}

/**
 * @param {Page} page
 * @param {AbortSignal} gone
 * @returns {import('./page.js').Part}
 */
export function checkPart(page, gone) {
    /** @type {{el: HTMLElement, draw: () => void}[]} */
    let cards = [];
    let shown = '';
    const draw = () => cards.forEach(card => card.draw());
    onTheme(draw, gone);
    let width = 0;
    const observer = new ResizeObserver(() => {
        if (Math.abs(page.place.clientWidth - width) > 2) {
            width = page.place.clientWidth;
            draw();
        }
    });
    observer.observe(page.place);
    gone.addEventListener('abort', () => observer.disconnect());

    /** @param {Result} result */
    function show(result) {
        const judged = result.rows.filter(row => row.pass !== null), failed = judged.filter(row => row.pass === false);
        const id = encodeURIComponent(page.id);
        const numbers = h('div', null, table(failed.length > 0 ? failed : result.rows));
        cards = result.plots.map((plot, i) => plotCard(plot, `${result.check}-${i + 1}`));
        const all = h('button', { type: 'button', on: { click: () => { fill(numbers, table(result.rows)); all.remove(); } } }, `Show all ${count(result.rows.length)} numbers`);
        fill(page.place,
            h('section', { class: 'card pad stack' },
                h('div', { class: 'row' }, h('h2', null, result.check), chip(result.verdict), h('span', { class: 'muted small' }, judged.length > 0 ? `${count(judged.length - failed.length)} of ${count(judged.length)} criteria hold, seeds ${result.seeds.join(', ')}` : `no criterion, seeds ${result.seeds.join(', ')}`)),
                h('dl', { class: 'facts' }, [['Source', result.source], ['Claimed', result.claimed], [result.wrong ? 'What is true' : 'In full', result.correct]].map(([word, text]) => h('div', null, h('dt', { class: 'muted small' }, word), h('dd', null, text)))),
                result.evidence.map(text => h('p', null, text))),
            cards.length > 0 && h('div', { class: 'stack-l' }, cards.map(card => card.el)),
            failed.length > 0 && h('p', { class: 'row' }, h('span', null, `Showing the ${count(failed.length)} numbers that violate their criterion.`), all),
            numbers,
            h('p', null, h('a', { class: 'button', href: `/api/v1/runs/${id}/check?format=csv`, download: `${result.check}-run-${page.id}.csv` }, icon('download'), 'CSV')));
        draw();
    }

    return {
        async refresh() {
            try {
                const { result } = await getCheck(page.id, gone);
                const key = JSON.stringify(result ? [result.verdict, result.rows.length] : [page.run?.state]);
                if (key === shown)
                    return; // an open menu outlives a refresh
                shown = key;
                if (result)
                    show(result);
                else
                    fill(page.place, h('div', { class: 'card' }, page.run && isActive(page.run)
                        ? stateBox('empty', 'No result yet', page.run.state === 'queued' ? 'The run is waiting for a device.' : 'Table and plots appear when all seeds are done.')
                        : stateBox('empty', 'No result', 'This run ended without a result. The log may show why.', h('button', { type: 'button', on: { click: () => page.openTab('log') } }, 'Open the log'))));
            } catch (error) {
                shown = '';
                if (!isAbort(error))
                    fill(page.place, h('div', { class: 'card' }, failedBox(error, 'The result', () => page.again())));
            }
        },
    };
}
