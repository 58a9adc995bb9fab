// A prompt that a language model continues, token by token, with alternatives to each token; and how well a text fits
// what the model expects.
import { complete, isAbort } from '../api.js';
import { fill, h, icon, message, setText } from '../dom.js';
import { bytes, count, number, percent } from '../format.js';
import { readEvents } from '../sse.js';
import { meter } from '../states.js';

/** @typedef {import('../types').Model} Model */
/** @typedef {import('../types').ModelVersion} ModelVersion */
/** @typedef {{text: string, logprob: number | null, top: [string, number][]}} Token */

/** Nats at which the colour is as strong as it gets: one in a thousand. */
const MOST_NATS = 7;

/**
 * How surprising a token was, −log p, from likely (blue) over one in e (nothing) to unlikely (orange). A share of probability would
 * paint nearly every byte alike.
 * @param {number | null} logprob
 */
function shade(logprob) {
    if (logprob === null)
        return 'transparent';
    const nats = Math.min(MOST_NATS, -logprob);
    return nats < 1 ? `color-mix(in srgb, var(--s1) ${Math.round((1 - nats) * 26)}%, transparent)` : `color-mix(in srgb, var(--s2) ${Math.round((nats - 1) / (MOST_NATS - 1) * 70)}%, transparent)`;
}

/** What the colours mean. */
const scale = () => h('p', { class: 'token-scale small', 'aria-label': 'Colours by probability' }, [1, .6, .37, .1, .03, .01, .001].map(p => {
    const el = h('span', null, p === .001 ? '0.1 %' : `${Math.round(p * 100)} %`);
    el.style.backgroundColor = shade(Math.log(p));
    return el;
}));

/** @param {string} text a token, with its blanks made visible */
const visible = text => JSON.stringify(text).slice(1, -1).replaceAll('\\"', '"').replaceAll(' ', '␣') || '∅';

/**
 * @param {any} logprobs of a choice
 * @returns {Token[]}
 */
export function toTokens(logprobs) {
    return (logprobs?.tokens ?? []).map((/** @type {string} */ text, /** @type {number} */ i) => ({
        text, logprob: logprobs.token_logprobs?.[i] ?? null,
        top: Object.entries(logprobs.top_logprobs?.[i] ?? {}).map(([word, lp]) => /** @type {[string, number]} */ ([word, Number(lp)])).sort((a, b) => b[1] - a[1]),
    }));
}

/**
 * @param {Model} model
 * @param {ModelVersion} version
 * @param {AbortSignal} signal
 * @param {import('../types').ViewContext} context
 */
export function textBox(model, version, signal, context) {
    const { query } = context;
    // A model that came without a tokenizer reads and writes token ids.
    const ids = version.signature?.tokenizer === 'ids';
    const example = ids ? '0 1 2' : 'ROMEO:\n';
    const prompt = h('textarea', { rows: 4, name: 'prompt', spellcheck: 'false' }, query.get('prompt') ?? example);
    const field = (/** @type {string} */ name, /** @type {string} */ word, /** @type {Record<string, any>} */ props, /** @type {string} */ text) => {
        const input = h('input', { type: 'number', name, required: true, ...props, value: query.get(name) ?? props.value });
        return { input, standard: String(props.value), el: h('label', { class: 'field', title: text }, h('span', null, word), input) };
    };
    const fields = {
        max_tokens: field('max_tokens', 'Tokens', { value: 200, min: 1, max: 65536 }, 'Maximum number of tokens to generate'),
        temperature: field('temperature', 'Temperature', { value: 0.8, min: 0, max: 2, step: 0.1 }, '0 always takes the most likely token; 1 samples from the distribution of the model'),
        top_p: field('top_p', 'Top p', { value: 0.95, min: 0.01, max: 1, step: 0.01 }, 'Sample only from the most likely tokens that together have this probability'),
        seed: field('seed', 'Seed', { value: 1, min: 0, step: 1 }, 'The same seed gives the same text'),
    };
    const stopAt = h('input', { type: 'text', name: 'stop', placeholder: 'none', value: query.get('stop') ?? '' });
    const shades = h('input', { type: 'checkbox' });
    shades.checked = query.get('shades') !== '0';
    const answer = h('div', { class: 'answer', tabindex: 0, role: 'region', 'aria-label': 'Answer' });
    const inspector = h('aside', { class: 'inspector', 'aria-label': 'Alternatives to each token', 'aria-live': 'polite' });
    const status = h('span', { class: 'muted small', role: 'status' });
    const go = h('button', { class: 'primary' }, icon('running'), 'Continue the text');
    const judge = h('button', { type: 'button', title: 'Probability of each token of the prompt' }, 'Score the text');
    const stop = h('button', { type: 'button', hidden: true }, icon('stop'), 'Stop');
    const problem = h('div', { class: 'note', data: { tone: 'bad' }, hidden: true });
    /** @type {AbortController | null} */
    let running = null;
    /** What is shown of each token. @type {{token: Token, el: HTMLElement}[]} */
    let tokens = [];
    let chosen = -1;
    signal.addEventListener('abort', () => running?.abort());
    fill(answer, h('span', { class: 'muted' }, 'The answer appears here, token by token.'));

    const most = (version.signature?.vocabulary ?? 1) - 1;
    const form = h('form', { class: 'stack' },
        ids && h('p', { class: 'note' }, `This model has no tokenizer: prompt and answer are token ids from 0 to ${most}, separated by spaces. To use text, register it again with its vocab.json and merges.txt.`),
        h('label', { class: 'field' }, h('span', null, ids ? 'Prompt, token ids' : 'Prompt'), prompt),
        h('div', { class: 'params' }, Object.values(fields).map(f => f.el), h('label', { class: 'field', title: 'The text ends before these characters' }, h('span', null, 'Stop at'), stopAt)),
        h('div', { class: 'row' }, go, judge, stop, h('label', { class: 'inline small' }, shades, 'Show probabilities'), status));
    form.addEventListener('submit', event => {
        event.preventDefault();
        write(false);
    });
    judge.addEventListener('click', () => write(true));
    prompt.addEventListener('keydown', event => {
        if (event.key === 'Enter' && (event.ctrlKey || event.metaKey))
            form.requestSubmit();
    });
    stop.addEventListener('click', () => running?.abort());

    // ---- tokens under the pointer, or under the arrows ----
    answer.addEventListener('pointerover', event => look(/** @type {Element} */ (event.target)));
    answer.addEventListener('click', event => look(/** @type {Element} */ (event.target)));
    answer.addEventListener('keydown', event => {
        const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (by && tokens.length > 0) {
            event.preventDefault();
            inspect(Math.min(tokens.length - 1, Math.max(0, chosen + by)));
            tokens[chosen].el.scrollIntoView({ block: 'nearest' });
        }
    });

    /** @param {Element} target */
    function look(target) {
        const el = target.closest('.tok');
        const i = el ? tokens.findIndex(t => t.el === el) : -1;
        if (i >= 0 && i !== chosen)
            inspect(i);
    }

    /** @param {number} i */
    function inspect(i) {
        tokens[chosen]?.el.removeAttribute('data-on');
        chosen = i;
        const { token, el } = tokens[i];
        el.dataset.on = '';
        const own = token.logprob === null ? null : Math.exp(token.logprob);
        const rows = token.top.map(([word, lp]) => [word, Math.exp(lp)]);
        if (own !== null && !rows.some(([word]) => word === token.text))
            rows.push([token.text, own]);
        fill(inspector, h('p', { class: 'small' }, h('b', { class: 'mono' }, visible(token.text)), own === null ? ': no context' : `: ${percent(own)}`),
            h('ol', { class: 'bars alternatives' }, rows.map(([word, p]) => {
                const li = h('li', { class: word === token.text ? 'best' : '' }, h('span', { class: 'label mono' }, visible(String(word))), meter(Number(p), visible(String(word))), h('span', { class: 'value' }, percent(Number(p))));
                return li;
            })));
    }

    function keep() {
        /** @type {Record<string, string | null>} */
        const values = { prompt: prompt.value.length <= 1500 && prompt.value !== example ? prompt.value : null, stop: stopAt.value, shades: shades.checked ? null : '0' };
        for (const [name, { input, standard }] of Object.entries(fields))
            values[name] = input.value === standard ? null : input.value;
        context.setQuery(values);
    }

    /** @param {boolean} scoring of the prompt alone, instead of going on from it */
    async function write(scoring) {
        running?.abort();
        const mine = new AbortController();
        running = mine;
        keep();
        problem.hidden = true;
        stop.hidden = false;
        go.disabled = judge.disabled = true;
        tokens = [];
        chosen = -1;
        fill(inspector);
        const text = h('span', { class: 'caret' });
        fill(answer, scoring ? null : h('span', { class: 'given' }, prompt.value), text);
        const began = performance.now();
        let first = 0;
        let made = 0;
        let finish = '';
        /** A small model is faster than a page: what came and is not shown yet. @type {any[]} */
        const come = [];
        let due = false;
        const show = () => {
            add(text, come.splice(0));
            const seconds = (performance.now() - first) / 1000;
            setText(status, `${count(made)} tokens${seconds > .3 ? `, ${number(Math.round(made / seconds))} a second` : ''}`);
        };
        /** Shows what has come in the next frame, then lets the page rest three times as long as that took: Stop works at any length. */
        const showSoon = () => {
            if (due)
                return;
            due = true;
            requestAnimationFrame(() => {
                const start = performance.now();
                if (come.length > 0)
                    show();
                setTimeout(() => setTimeout(() => {
                    due = false;
                    if (come.length > 0 && running === mine)
                        showSoon();
                }, 3 * (performance.now() - start)));
            });
        };
        try {
            const response = await complete({
                model: `${model.name}:${version.version}`, prompt: prompt.value, stream: !scoring, ...(scoring ? { echo: true, max_tokens: 0, logprobs: 5 } : {
                    stream_options: { include_usage: true }, max_tokens: Number(fields.max_tokens.input.value), temperature: Number(fields.temperature.input.value),
                    top_p: Number(fields.top_p.input.value), seed: Number(fields.seed.input.value), ...(stopAt.value ? { stop: stopAt.value } : {}), ...(shades.checked ? { logprobs: 5 } : {}),
                }),
            }, mine.signal);
            if (scoring) {
                score(await response.json(), text);
                return;
            }
            for await (const event of readEvents(/** @type {ReadableStream<Uint8Array>} */ (response.body))) {
                if (event.data === '[DONE]')
                    break;
                const part = JSON.parse(event.data);
                if (part.error)
                    throw new Error(part.error.message);
                if (part.usage)
                    made = part.usage.completion_tokens;
                const choice = part.choices[0];
                if (!choice)
                    continue;
                first ||= performance.now();
                finish = choice.finish_reason ?? finish;
                come.push(choice);
                if (!part.usage)
                    made += choice.logprobs?.tokens?.length ?? (choice.text ? 1 : 0);
                showSoon();
            }
            show();
            const total = (performance.now() - began) / 1000;
            setText(status, `${count(made)} tokens in ${number(total)} s, the first after ${number(first - began)} ms${finish === 'stop' ? ', ended by a stop sequence' : ''}`);
            if (tokens.length > 0)
                fill(inspector, scale(), h('p', { class: 'muted small' }, 'Blue tokens were likely; orange ones were unlikely, stronger colours more so. Point at a token, or use the arrows in the text, to see the alternatives.'));
        } catch (error) {
            if (!scoring)
                show();
            if (isAbort(error)) {
                setText(status, 'Stopped.');
            } else {
                problem.hidden = false;
                setText(problem, message(error));
                setText(status, '');
            }
        } finally {
            text.classList.remove('caret');
            if (running === mine) {
                stop.hidden = true;
                go.disabled = judge.disabled = false;
            }
        }
    }

    /**
     * @param {any} reply
     * @param {HTMLElement} place
     */
    function score(reply, place) {
        const all = toTokens(reply.choices[0].logprobs);
        append(place, all);
        const known = all.map(t => t.logprob).filter(lp => lp !== null);
        const mean = known.length > 0 ? -known.reduce((a, b) => a + b, 0) / known.length : NaN;
        setText(status, known.length > 0 ? `Perplexity ${number(Math.exp(mean))} over ${count(known.length)} tokens (${number(mean)} nats each)` : 'A single token has no context, so there is nothing to score.');
        fill(inspector, scale(), h('p', { class: 'muted small' }, 'Blue tokens were likely; orange ones were unlikely, stronger colours more so. Point at a token to see what the model expected.'));
    }

    /**
     * @param {HTMLElement} place
     * @param {Token[]} more
     */
    function append(place, more) {
        for (const token of more) {
            const p = token.logprob === null ? 1 : Math.exp(token.logprob);
            const el = h('span', { class: 'tok', title: `${visible(token.text)} ${percent(p)}` }, /^bytes:(\\x[0-9a-f]{2})+$/.test(token.text) ? '\ufffd' : token.text);
            el.style.backgroundColor = shade(token.logprob);
            tokens.push({ token, el });
            place.append(el);
        }
    }

    /**
     * @param {HTMLElement} place
     * @param {any[]} choices
     */
    function add(place, choices) {
        const atEnd = answer.scrollHeight - answer.scrollTop - answer.clientHeight < 40;
        for (const choice of choices) {
            if (choice.logprobs?.tokens?.length)
                append(place, toTokens(choice.logprobs));
            else
                place.append(choice.text);
        }
        if (atEnd)
            answer.scrollTop = answer.scrollHeight;
    }

    return h('section', { class: 'card pad stack', 'aria-labelledby': 'try-title' },
        h('div', { class: 'head' }, h('div', null, h('h2', { id: 'try-title' }, `Try ${model.name}`),
            h('p', { class: 'sub' }, h('span', null, `version ${version.version}`), version.signature?.context ? h('span', null, `context ${count(version.signature.context)} tokens`) : null,
                version.signature?.vocabulary ? h('span', null, `vocabulary ${count(version.signature.vocabulary)}`) : null,
                version.signature?.memory_bytes ? h('span', null, `${bytes(version.signature.memory_bytes)} in memory`) : null))),
        form, problem, h('div', { class: 'answer-row' }, answer, inspector));
}
