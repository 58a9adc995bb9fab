// Perplexity against the position in the context: one line for each part of the data and each zero-shot text, of its latest
// evaluation. A range of positions is drawn at its last one.
import { panelSave } from '../chart/menu.js';
import { fill, h } from '../dom.js';
import { count, number } from '../format.js';
import { positionLines } from '../metrics.js';
import { scatter } from '../scatter.js';

/** @typedef {import('./page.js').Page} Page */

/**
 * A card that is hidden while there is nothing to draw.
 * @param {Page} page
 * @param {'h2' | 'h3'} heading by where it stands
 */
export function positionsCard(page, heading) {
    /** @type {(() => import('../chart/figure.js').Figure) | null} */
    let figure = null;
    const title = 'Perplexity by position in the context';
    const place = h('div', { class: 'scatter-place' }), note = h('p', { class: 'muted small' });
    const el = h('section', { class: 'card chart positions', hidden: true, 'aria-label': title },
        h('div', { class: 'chart-head' }, h(heading, null, title), h('span', { class: 'grow' }), panelSave(title, () => figure, `run-${page.id}-positions`)), place, note);
    return {
        el,
        draw() {
            const lines = positionLines(page.series);
            el.hidden = lines.length === 0;
            if (lines.length === 0 || !el.isConnected)
                return;
            const steps = [...new Set(lines.map(line => line.step))];
            figure = scatter(place, {
                title, xTitle: 'tokens of context', yTitle: 'perplexity', format: number, log: true, yLog: true, height: 260,
                groups: lines.map(({ name, points }) => ({ name, marks: points.map(([x, y], i) => ({ x, y, sd: null,
                    text: `${name}, ${i === 0 || points[i - 1][0] + 1 === x ? `${x}` : `${points[i - 1][0] + 1} to ${x}`} tokens of context: ${number(y)}` })) })),
            });
            fill(note, 'Each mark is a range of positions, drawn at its end: 1, 2, 3 to 4, 5 to 8 and so on. ',
                steps.length === 1 ? `Evaluated at step ${count(steps[0])}.` : lines.map(line => `${line.name}: step ${count(line.step)}`).join(', ') + '.');
        },
    };
}
