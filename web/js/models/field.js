// The solution of an equation by a model: a map that one can point at, and u at any point.
import { infer, isAbort } from '../api.js';
import { h, icon, message, setText } from '../dom.js';
import { bytes, number } from '../format.js';
import { Picture } from '../picture.js';
import { fieldFigure, fieldPlace, fieldSays, placeOf } from '../run/field_figures.js';
import { onTheme, themeNow } from '../theme.js';

/** @typedef {import('../types').Model} Model */
/** @typedef {import('../types').ModelVersion} ModelVersion */

const CELLS = 61; // of each axis

/**
 * @param {Model} model
 * @param {ModelVersion} version
 * @param {AbortSignal} signal
 * @param {import('../types').ViewContext} context
 */
export function fieldBox(model, version, signal, context) {
    const { signature } = version, domain = signature?.domain ?? { x: [0, 1], t: [0, 1] };
    const axes = { rows: { name: 't', low: domain.t[0], high: domain.t[1] }, columns: { name: 'x', low: domain.x[0], high: domain.x[1] } };
    const problem = h('div', { class: 'note', data: { tone: 'bad' }, hidden: true });
    const outside = h('div', { class: 'note', data: { tone: 'warn' }, role: 'status', hidden: true });
    const field = (/** @type {'x' | 't'} */ name) => h('input', { type: 'number', step: 'any', name, required: true, value: context.query.get(name) ?? String(Number(((domain[name][0] + domain[name][1]) / 2).toPrecision(4))) });
    const x = field('x'), t = field('t');
    const verdict = h('p', { class: 'verdict', 'aria-live': 'polite' }), took = h('span', { class: 'muted small' });
    const form = h('form', { class: 'stack' }, h('div', { class: 'params' }, ...[['x', x], ['t', t]].map(([name, input]) => h('label', { class: 'field' }, h('span', null, String(name)), input))),
        h('div', { class: 'row' }, h('button', { class: 'primary' }, icon('running'), 'Ask for u')));
    const map = new Picture('u over the domain', { signal, file: `${model.name}-${version.version}-u`, note: 'Point at the map to read a value; click to select the point.', moved: cell => {
        pointed = cell;
    } });
    /** The cell under the pointer. @type {{row: number, column: number} | null} */
    let pointed = null;
    /** @type {AbortController | null} */
    let running = null;
    signal.addEventListener('abort', () => running?.abort());

    /** @param {[number, number][]} points @param {AbortSignal} [until] */
    const ask = (points, until = signal) => infer(model.name, version.version, { inputs: [{ name: 'points', datatype: 'FP32', shape: [points.length, 2], data: points.flat() }] }, until);

    /** @param {unknown} error */
    function fail(error) {
        if (isAbort(error))
            return;
        problem.hidden = false;
        setText(problem, message(error));
    }

    async function askOne() {
        running?.abort();
        if (!form.checkValidity()) // a blank value is not 0
            return;
        const mine = new AbortController();
        running = mine;
        context.setQuery({ x: x.value, t: t.value });
        try {
            const began = performance.now(), answer = await ask([[Number(x.value), Number(t.value)]], mine.signal);
            problem.hidden = true;
            outside.hidden = !answer.parameters?.warning;
            setText(outside, answer.parameters?.warning ?? '');
            setText(verdict, `u(${x.value}, ${t.value}) = ${Number(answer.outputs[0].data[0]).toPrecision(5)}`);
            setText(took, `${number(performance.now() - began)} ms round trip`);
        } catch (error) {
            if (!isAbort(error)) { // what is shown answers other coordinates
                outside.hidden = true;
                setText(verdict, '');
                setText(took, '');
            }
            fail(error);
        }
    }

    async function askAll() {
        const points = Array.from({ length: CELLS * CELLS }, (_, i) => /** @type {[number, number]} */ ([placeOf(axes.columns, i % CELLS, CELLS), placeOf(axes.rows, Math.floor(i / CELLS), CELLS)]));
        try {
            const values = (await ask(points)).outputs[0].data, m = { rows: CELLS, columns: CELLS, values };
            map.show({
                make: width => fieldFigure(m, axes, { title: `u of ${model.name}`, name: 'u', width: Math.min(width, 760), theme: themeNow() }),
                says: fieldSays(m, axes, `u of ${model.name}`),
                read: (row, column) => `${fieldPlace(m, axes, row, column)}: u = ${Number(values[row * CELLS + column]).toPrecision(4)}`,
            });
        } catch (error) {
            fail(error);
        }
    }

    form.addEventListener('submit', event => {
        event.preventDefault();
        askOne();
    });
    /** Takes the cell that is pointed at. */
    function take() {
        if (!pointed)
            return;
        x.value = String(Number(placeOf(axes.columns, pointed.column, CELLS).toPrecision(4)));
        t.value = String(Number(placeOf(axes.rows, pointed.row, CELLS).toPrecision(4)));
        askOne();
    }
    map.canvas.addEventListener('click', take);
    map.canvas.addEventListener('keydown', event => {
        if (event.key === 'Enter')
            take();
    });
    onTheme(() => map.paint(), signal);
    askAll();
    if (context.query.has('x') && context.query.has('t'))
        askOne();

    return h('div', { class: 'stack-l' }, h('section', { class: 'card pad stack', 'aria-labelledby': 'try-title' },
        h('div', { class: 'head' }, h('div', null, h('h2', { id: 'try-title' }, `Try ${model.name}`),
            h('p', { class: 'sub' }, h('span', null, `version ${version.version}`), signature?.equation ? h('span', null, `${signature.equation}, coefficient ${signature.coefficient}`) : null,
                signature?.memory_bytes ? h('span', null, `${bytes(signature.memory_bytes)} in memory`) : null))),
        h('div', { class: 'try even' }, form, h('div', { class: 'stack' }, h('div', null, verdict, took), outside, problem))), map.el);
}
