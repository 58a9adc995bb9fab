// Which class a classifier of texts or of sequences of tokens gives one, with the probabilities of the others.
import { infer, isAbort } from '../api.js';
import { h, icon, message, setText } from '../dom.js';
import { bytes, count, number } from '../format.js';
import { classBars } from './classes.js';

/** @typedef {import('../types').Model} Model */
/** @typedef {import('../types').ModelVersion} ModelVersion */

/**
 * Ids of tokens as the reader of a text writes them: numbers with blanks or commas between.
 * @param {string} text
 */
function idsOf(text) {
    return text.split(/[\s,]+/).filter(word => word).map(word => {
        if (!/^\d{1,15}$/.test(word))
            throw new Error(`"${word.slice(0, 40)}" is no id: ids of tokens are whole numbers with blanks between, such as 3 17`);
        return Number(word);
    });
}

/**
 * The input of a request: one text, or a pair of them.
 * @param {string[]} texts
 * @param {boolean} asIds
 */
function inputOf(texts, asIds) {
    if (!asIds)
        return { name: 'text', shape: [1], datatype: 'BYTES', data: [texts.join('\t')] };
    const rows = texts.map(idsOf), length = Math.max(...rows.map(row => row.length));
    if (!length)
        throw new Error('there are no ids');
    return { name: 'tokens', shape: [1, rows.length * length], datatype: 'INT64', data: rows.flatMap(row => [...row, ...new Array(length - row.length).fill(0)]) }; // id 0 pads the shorter of a pair
}

/**
 * @param {Model} model
 * @param {ModelVersion} version
 * @param {AbortSignal} signal
 * @param {import('../types').ViewContext} context
 */
export function labelBox(model, version, signal, context) {
    const { signature } = version;
    const names = signature?.pairs ? ['First text', 'Second text'] : ['Text'], linked = (context.query.get('text') ?? '').split('\t');
    const texts = names.map((_, i) => h('textarea', { rows: signature?.pairs ? 4 : 6, name: `text-${i + 1}`, spellcheck: 'false' }, (i ? linked.slice(1).join('\t') : signature?.pairs ? linked[0] : linked.join('\t')) ?? ''));
    const reading = signature?.tokenizer === 'ids' ? null : h('select', { name: 'form' }, h('option', { value: 'text' }, 'text'), h('option', { value: 'ids' }, 'ids of tokens'));
    if (reading && context.query.get('form') === 'ids')
        reading.value = 'ids';
    const asIds = () => !reading || reading.value === 'ids';
    const bars = classBars(signature?.classes ?? 2, signature?.labels);
    const took = h('span', { class: 'muted small' });
    const problem = h('div', { class: 'note', data: { tone: 'bad' }, hidden: true });
    const go = h('button', { class: 'primary' }, icon('running'), signature?.pairs ? 'Classify the pair' : 'Classify the text');
    const form = h('form', { class: 'stack' }, names.map((name, i) => h('label', { class: 'field' }, h('span', null, name), texts[i])),
        h('div', { class: 'row' }, go, reading ? h('label', { class: 'row' }, h('span', null, 'Read as'), reading)
            : h('span', { class: 'muted small' }, `Ids from 0 to ${count((signature?.vocabulary ?? 1) - 1)} with blanks between: the model has no tokenizer.`)));
    /** @type {AbortController | null} */
    let running = null;
    signal.addEventListener('abort', () => running?.abort());
    bars.blank(signature?.pairs ? 'Write or paste two texts.' : asIds() ? 'Write or paste ids of tokens.' : 'Write or paste a text.');
    if (texts.some(text => text.value)) // of the link
        classify();

    form.addEventListener('submit', event => {
        event.preventDefault();
        classify();
    });
    for (const text of texts)
        text.addEventListener('keydown', event => {
            if (event.key === 'Enter' && (event.ctrlKey || event.metaKey))
                form.requestSubmit();
        });

    async function classify() {
        running?.abort();
        const mine = new AbortController();
        running = mine;
        const all = texts.map(text => text.value).join('\t');
        context.setQuery({ text: all.trim() && all.length <= 1500 ? all : null, form: reading?.value === 'ids' ? 'ids' : null });
        try {
            const began = performance.now();
            const answer = await infer(model.name, version.version, {
                inputs: [inputOf(texts.map(text => text.value), asIds())], outputs: ['probabilities', ...signature?.labels ? ['label'] : []].map(name => ({ name })),
            }, mine.signal);
            const of = (/** @type {string} */ name) => answer.outputs.find((/** @type {any} */ o) => o.name === name)?.data;
            problem.hidden = true;
            setText(took, `${number(performance.now() - began)} ms round trip`);
            bars.show(of('probabilities'), of('label')?.[0]);
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
