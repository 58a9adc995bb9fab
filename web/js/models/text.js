// A prompt that a language model continues, token by token.
import { complete, isAbort } from '../api.js';
import { fill, h, icon, message, setText } from '../dom.js';
import { bytes, count, number, percent } from '../format.js';
import { readEvents } from '../sse.js';

/** @typedef {import('../types').Model} Model */
/** @typedef {import('../types').ModelVersion} ModelVersion */

/**
 * @param {Model} model
 * @param {ModelVersion} version
 * @param {AbortSignal} signal
 */
export function textBox(model, version, signal) {
    const prompt = h('textarea', { rows: 3, name: 'prompt', spellcheck: 'false' }, 'ROMEO:\n');
    const field = (/** @type {string} */ name, /** @type {string} */ word, /** @type {Record<string, any>} */ props) => {
        const input = h('input', { type: 'number', name, ...props });
        return { input, el: h('label', { class: 'field' }, h('span', null, word), input) };
    };
    const length = field('max_tokens', 'Tokens', { value: 200, min: 1, max: 65536 });
    const temperature = field('temperature', 'Temperature', { value: 0.8, min: 0, max: 2, step: 0.1 });
    const top = field('top_p', 'Top p', { value: 0.95, min: 0.01, max: 1, step: 0.01 });
    const seed = field('seed', 'Seed', { value: 1, min: 0, step: 1 });
    const shades = h('input', { type: 'checkbox' });
    const answer = h('div', { class: 'answer', tabindex: 0, role: 'region', 'aria-label': 'Answer' });
    const status = h('span', { class: 'muted small', role: 'status' });
    const go = h('button', { class: 'primary' }, icon('running'), 'Continue the text');
    const stop = h('button', { type: 'button', hidden: true }, icon('stop'), 'Stop');
    const problem = h('div', { class: 'note', data: { tone: 'bad' }, hidden: true });
    /** @type {AbortController | null} */
    let running = null;
    signal.addEventListener('abort', () => running?.abort());
    fill(answer, h('span', { class: 'muted' }, 'The answer appears here, token by token.'));

    const form = h('form', { class: 'stack' },
        h('label', { class: 'field' }, h('span', null, 'Prompt'), prompt),
        h('div', { class: 'params' }, length.el, temperature.el, top.el, seed.el),
        h('div', { class: 'row' }, go, stop, h('label', { class: 'inline small' }, shades, 'Show probabilities'), status));
    form.addEventListener('submit', event => {
        event.preventDefault();
        write();
    });
    prompt.addEventListener('keydown', event => {
        if (event.key === 'Enter' && (event.ctrlKey || event.metaKey))
            form.requestSubmit();
    });
    stop.addEventListener('click', () => running?.abort());

    async function write() {
        running?.abort();
        const mine = new AbortController();
        running = mine;
        problem.hidden = true;
        stop.hidden = false;
        go.disabled = true;
        const text = h('span', { class: 'caret' });
        fill(answer, h('span', { class: 'given' }, prompt.value), text);
        const began = performance.now();
        let first = 0;
        let tokens = 0;
        let finish = '';
        /** A small model is faster than a page: what came is shown once a frame. @type {any[]} */
        const come = [];
        let frame = 0;
        const show = () => {
            cancelAnimationFrame(frame);
            frame = 0;
            add(text, come.splice(0));
            const seconds = (performance.now() - first) / 1000;
            setText(status, `${count(tokens)} tokens${seconds > .3 ? `, ${number(Math.round(tokens / seconds))} a second` : ''}`);
        };
        try {
            const response = await complete({
                model: `${model.name}:${version.version}`, prompt: prompt.value, stream: true, stream_options: { include_usage: true },
                max_tokens: Number(length.input.value), temperature: Number(temperature.input.value), top_p: Number(top.input.value),
                seed: Number(seed.input.value), ...(shades.checked ? { logprobs: 5 } : {}),
            }, mine.signal);
            for await (const event of readEvents(/** @type {ReadableStream<Uint8Array>} */ (response.body))) {
                if (event.data === '[DONE]')
                    break;
                const part = JSON.parse(event.data);
                if (part.error)
                    throw new Error(part.error.message);
                if (part.usage)
                    tokens = part.usage.completion_tokens;
                const choice = part.choices[0];
                if (!choice)
                    continue;
                first ||= performance.now();
                finish = choice.finish_reason ?? finish;
                come.push(choice);
                if (!part.usage)
                    tokens += choice.logprobs?.tokens?.length ?? (choice.text ? 1 : 0);
                frame ||= requestAnimationFrame(show);
            }
            show();
            const total = (performance.now() - began) / 1000;
            setText(status, `${count(tokens)} tokens in ${number(total)} s, the first after ${number(first - began)} ms${finish === 'stop' ? ', ended by a stop' : ''}`);
        } catch (error) {
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
                go.disabled = false;
            }
        }
    }

    /**
     * @param {HTMLElement} place
     * @param {any[]} choices
     */
    function add(place, choices) {
        const atEnd = answer.scrollHeight - answer.scrollTop - answer.clientHeight < 40;
        for (const choice of choices) {
            const probs = choice.logprobs;
            if (!probs?.tokens?.length) {
                place.append(choice.text);
                continue;
            }
            probs.tokens.forEach((/** @type {string} */ token, /** @type {number} */ i) => {
                const p = Math.exp(probs.token_logprobs[i] ?? 0);
                const others = Object.entries(probs.top_logprobs?.[i] ?? {}).map(([t, lp]) => `${JSON.stringify(t)} ${percent(Math.exp(Number(lp)))}`);
                const el = h('span', { class: 'tok', title: `${JSON.stringify(token)} ${percent(p)}\n${others.join('\n')}` }, token);
                el.style.backgroundColor = `color-mix(in srgb, var(--s2) ${Math.round((1 - p) * 55)}%, transparent)`;
                place.append(el);
            });
        }
        if (atEnd)
            answer.scrollTop = answer.scrollHeight;
    }

    return h('section', { class: 'card pad stack', 'aria-labelledby': 'try-title' },
        h('div', { class: 'head' }, h('div', null, h('h2', { id: 'try-title' }, `Try ${model.name}`),
            h('p', { class: 'sub' }, h('span', null, `version ${version.version}`), version.signature?.context ? h('span', null, `context ${count(version.signature.context)} tokens`) : null,
                version.signature?.memory_bytes ? h('span', null, `${bytes(version.signature.memory_bytes)} in memory`) : null))),
        form, problem, answer);
}
