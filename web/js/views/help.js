// Each metric in one sentence, states, keys, and where the rest is written.
import { h } from '../dom.js';
import { metrics } from '../metrics.js';
import { chip } from '../states.js';

const states = [
    ['queued', 'Waits for a device; its page says what for.'],
    ['starting', 'A worker process was started and prepares data and graphs.'],
    ['running', 'Training. It goes on while polyd restarts.'],
    ['paused', 'Saved and taken off its device until resumed.'],
    ['preempted', 'Saved and set aside for a run of higher priority.'],
    ['cancelling', 'Asked to stop at the next step; killed after a grace period.'],
    ['succeeded', 'Reached its last step.'],
    ['diverged', 'Too many steps in a row had a loss or gradient that was not finite: a result, not a crash.'],
    ['failed', 'Ended by an error, a time limit, or more worker deaths than it may restart from.'],
    ['cancelled', 'Stopped on request.'],
];

const keys = [
    ['/', 'Go to the search field'],
    ['↑ ↓', 'From run to run in the table'],
    ['Enter', 'Open the run'],
    ['?', 'This page'],
    ['Drag', 'Zoom into a part of a chart; all charts follow'],
    ['Double click', 'Show the whole run again'],
];

/**
 * @param {import('../types').ViewContext} context
 * @returns {import('../types').View}
 */
export function helpView(context) {
    context.setTitle('Help');
    return {
        el: h('div', null,
            h('div', { class: 'head' }, h('div', null, h('h1', null, 'Help'),
                h('p', { class: 'sub' }, 'What the numbers mean, what the states mean, and what the keys do.'))),
            h('section', { class: 'stack', 'aria-labelledby': 'help-metrics' },
                h('h2', { id: 'help-metrics' }, 'Metrics'),
                h('p', { class: 'muted small prose' }, 'A chart’s line is the mean of a bucket of points, its band their minimum and maximum; every point falls into exactly one bucket. Series of layers end in the layer’s number, those of heads in layer and head, both counted from 1.'),
                h('dl', { class: 'card terms' }, metrics.map(metric => h('div', null,
                    h('dt', null, metric.key), h('dd', null, metric.text, ' ', h('span', { class: 'tag' }, metric.source)))))),
            h('section', { class: 'stack', 'aria-labelledby': 'help-states' },
                h('h2', { id: 'help-states' }, 'States of a run'),
                h('dl', { class: 'card terms' }, states.map(([state, text]) => h('div', null,
                    h('dt', null, chip(state)), h('dd', null, text))))),
            h('section', { class: 'stack', 'aria-labelledby': 'help-keys' },
                h('h2', { id: 'help-keys' }, 'Keys and gestures'),
                h('dl', { class: 'card terms' }, keys.map(([key, text]) => h('div', null,
                    h('dt', null, h('kbd', null, key)), h('dd', null, text))))),
            h('p', { class: 'muted small' }, 'Everything on these pages comes from the public API, described in ',
                h('a', { href: '/openapi.yaml' }, 'openapi.yaml'), '; ', h('a', { href: '/metrics' }, 'metrics'),
                ' are there for Prometheus.')),
    };
}
