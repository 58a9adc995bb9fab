// Each metric in one sentence with its source, states, keys, and where the rest is written.
import { fill, h, icon } from '../dom.js';
import { metrics } from '../metrics.js';
import { chip } from '../states.js';

const states = [
    ['queued', 'Waiting for a device; its page shows why.'],
    ['starting', 'A worker process was started and prepares data and graphs.'],
    ['running', 'Training. It continues while polyd restarts.'],
    ['paused', 'Stopped with a checkpoint; its device is free until the run is resumed.'],
    ['preempted', 'Stopped with a checkpoint to make way for a run of higher priority.'],
    ['cancelling', 'Requested to stop at the next step; killed after a grace period.'],
    ['succeeded', 'Reached its last step.'],
    ['diverged', 'Too many steps in a row had a loss or gradient that was not finite: a result, not a crash.'],
    ['failed', 'Ended by an error, by a time limit, or after too many restarts.'],
    ['cancelled', 'Stopped on request.'],
    ['lost', 'An external run whose program sent nothing for too long; it continues with the next message.'],
];

const keys = [
    ['Ctrl K, ⌘K', 'Find a page, a run by number or name, a sweep, an experiment, a model or an action; ↑ ↓ and Enter select'],
    ['/', 'Go to the search field'],
    ['↑ ↓ j k Home End', 'Move through the table; j jumps to it from anywhere'],
    ['Enter', 'Open the run'],
    ['Space, x', 'Select the run for comparison; with Shift, a range'],
    ['c', 'Compare the selected runs'],
    ['← →', 'On a column’s heading: to the next one'],
    ['Alt ← →', 'On a column’s heading: move the column'],
    ['Shift ← →', 'On a column’s heading: make it narrower or wider'],
    ['?', 'This page'],
    ['Drag', 'Zoom into a part of a chart; all charts follow'],
    ['← → + − 0', 'In a chart: move, zoom, and show the whole run again'],
    ['Double click', 'Show the whole run again'],
];

const sources = [
    ['Polynomial alternatives', '“Polynomial Alternatives to Softmax in Transformers”, two versions: attention as c·xᵖ, with the argument that softmax works because it bounds the Frobenius norm of A.'],
    ['DNT', '“Deeply Normalized Transformer”: four norm placements, with which momentum SGD matches AdamW.'],
    ['Sigmoid note', 'The note on sigmoid attention: which power of the length n should scale attention whose rows do not sum to one.'],
];

const groups = [['training', 'Training'], ['positions', 'By position in the context'], ['layers', 'Layers'], ['system', 'System'], ['gpus', 'GPUs']];

/**
 * @param {import('../types').ViewContext} context
 * @returns {import('../types').View}
 */
export function helpView(context) {
    context.setTitle('Help');
    const wanted = context.query.get('metric');
    const search = h('input', { type: 'search', placeholder: 'Find a metric', 'aria-label': 'Find a metric', value: context.query.get('q') ?? '', autocomplete: 'off', spellcheck: 'false' });
    const place = h('div', { class: 'stack-l' });

    function draw() {
        const text = search.value.trim().toLowerCase();
        context.setQuery({ q: search.value.trim() });
        const found = groups.map(([group, name]) => {
            const shown = metrics.filter(metric => metric.group === group && (!text || `${metric.key} ${metric.title} ${metric.text} ${metric.source}`.toLowerCase().includes(text)));
            return shown.length > 0 && h('section', { class: 'stack' }, h('h3', null, name), h('dl', { class: 'card terms' }, shown.map(metric => h('div', { data: { metric: metric.key, wanted: metric.key === wanted } },
                h('dt', null, metric.key), h('dd', null, metric.text, h('p', { class: 'muted small' }, metric.source))))));
        });
        fill(place, found.some(Boolean) ? found : h('p', { class: 'muted' }, metrics.length > 0 ? 'No metric matches.' : 'The catalogue of metrics could not be loaded.'));
    }
    search.addEventListener('input', draw);
    draw();
    if (wanted)
        requestAnimationFrame(() => place.querySelector('[data-wanted]')?.scrollIntoView({ block: 'center' }));
    const list = (/** @type {string} */ id, /** @type {string} */ title, /** @type {(string | Node)[][]} */ rows) => h('section', { class: 'stack', 'aria-labelledby': id },
        h('h2', { id }, title), h('dl', { class: 'card terms' }, rows.map(([term, text]) => h('div', null, h('dt', null, term), h('dd', null, text)))));
    return {
        el: h('div', { class: 'help' },
            h('div', { class: 'head' }, h('div', null, h('h1', null, 'Help'),
                h('p', { class: 'sub' }, 'Metrics, states and keyboard shortcuts.'))),
            h('section', { class: 'stack-l', 'aria-labelledby': 'help-metrics' },
                h('div', { class: 'row' }, h('h2', { id: 'help-metrics', class: 'grow' }, 'Metrics'), h('div', { class: 'search' }, icon('search'), search)),
                h('p', { class: 'muted small prose' }, 'A chart’s line is the mean of a bucket of points, its band their minimum and maximum; every point falls into exactly one bucket, so a spike is never lost. Series of layers end in the layer’s number, those of heads in layer and head, both counted from 1. A dot marks a bucket that holds a spike. Smoothing is a debiased moving average over the steps (or a Gaussian, which looks ahead too), told for a four-hundredth of the run, so that a zoom does not change it; it never changes what is stored, and evaluations and what is measured on the probe batch are never smoothed. Pointing at a curve reads the nearest point within 32 pixels, and nothing where there is none.'),
                place),
            list('help-sources', 'Sources', sources),
            list('help-states', 'States of a run', states.map(([state, text]) => [chip(state), text])),
            list('help-keys', 'Keys and gestures', keys.map(([key, text]) => [h('kbd', null, key), text])),
            h('p', { class: 'muted small' }, 'All data on these pages come from the public API, described in ',
                h('a', { href: '/openapi.yaml' }, 'openapi.yaml'), '; ', h('a', { href: '/metrics' }, 'metrics'),
                ' are there for Prometheus. The address of a page includes its view: filters, columns, axes and zoom.')),
    };
}
