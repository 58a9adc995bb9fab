// Which class a classifier of texts gives a text, with the probabilities of the others.
import { infer, isAbort } from '../api.js';
import { h, icon, message, setText } from '../dom.js';
import { bytes, count, number } from '../format.js';
import { classBars } from './classes.js';

/** @typedef {import('../types').Model} Model */
/** @typedef {import('../types').ModelVersion} ModelVersion */

/**
 * @param {Model} model
 * @param {ModelVersion} version
 * @param {AbortSignal} signal
 * @param {import('../types').ViewContext} context
 */
export function labelBox(model, version, signal, context) {
    const { signature } = version;
    const text = h('textarea', { rows: 6, name: 'text', spellcheck: 'false' }, context.query.get('text') ?? '');
    const bars = classBars(signature?.classes ?? 2, signature?.labels);
    const took = h('span', { class: 'muted small' });
    const problem = h('div', { class: 'note', data: { tone: 'bad' }, hidden: true });
    const go = h('button', { class: 'primary' }, icon('running'), 'Classify the text');
    const form = h('form', { class: 'stack' }, h('label', { class: 'field' }, h('span', null, 'Text'), text), h('div', { class: 'row' }, go));
    /** @type {AbortController | null} */
    let running = null;
    signal.addEventListener('abort', () => running?.abort());
    bars.blank('Write or paste a text.');
    if (text.value) // of the link
        classify();

    form.addEventListener('submit', event => {
        event.preventDefault();
        classify();
    });
    text.addEventListener('keydown', event => {
        if (event.key === 'Enter' && (event.ctrlKey || event.metaKey))
            form.requestSubmit();
    });

    async function classify() {
        running?.abort();
        const mine = new AbortController();
        running = mine;
        context.setQuery({ text: text.value && text.value.length <= 1500 ? text.value : null });
        try {
            const began = performance.now();
            const answer = await infer(model.name, version.version, {
                inputs: [{ name: 'text', shape: [1], datatype: 'BYTES', data: [text.value] }], outputs: ['probabilities', 'label'].map(name => ({ name })),
            }, mine.signal);
            const of = (/** @type {string} */ name) => answer.outputs.find((/** @type {any} */ o) => o.name === name).data;
            problem.hidden = true;
            setText(took, `${number(performance.now() - began)} ms round trip`);
            bars.show(of('probabilities'), of('label')[0]);
        } catch (error) {
            if (isAbort(error))
                return;
            problem.hidden = false;
            setText(problem, message(error));
        }
    }

    return h('section', { class: 'card pad stack', 'aria-labelledby': 'try-title' },
        h('div', { class: 'head' }, h('div', null, h('h2', { id: 'try-title' }, `Try ${model.name}`),
            h('p', { class: 'sub' }, h('span', null, `version ${version.version}`), signature?.context ? h('span', null, `reads ${count(signature.context)} tokens`) : null,
                signature?.memory_bytes ? h('span', null, `${bytes(signature.memory_bytes)} in memory`) : null))),
        h('div', { class: 'try even' }, form, h('div', { class: 'stack' }, h('div', null, bars.verdict, took), problem, bars.el)));
}
