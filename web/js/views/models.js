// Registered models with their versions, and a box to try the one that is loaded: a pad for images, a prompt for text.
import { complete, infer, isAbort, listModels, moveModel } from '../api.js';
import { bones, failedBox, fill, h, icon, message, setText, snippet, stateBox, toast } from '../dom.js';
import { Pad, paint } from '../draw.js';
import { ago, bytes, count, moment, number, percent } from '../format.js';
import { onEvent, pacer } from '../live.js';
import { readEvents } from '../sse.js';
import { chip, meter, setMeter } from '../states.js';

/** @typedef {import('../types').Model} Model */
/** @typedef {import('../types').ModelVersion} ModelVersion */

/**
 * @param {import('../types').ViewContext} context
 * @returns {import('../types').View}
 */
export function modelsView(context) {
    const { signal } = context;
    const asked = context.params[0] ?? null;
    context.setTitle(asked ?? 'Models');
    /** @type {Model[]} */
    let models = [];
    let ready = false;

    const summary = h('p', { class: 'sub' });
    const place = h('div', null, h('div', { class: 'card' }, bones(6)));
    const list = h('ul', { class: 'card model-list', 'aria-label': 'Models' });
    const side = h('div', { class: 'stack-l' });
    const grid = h('div', { class: 'model-grid' }, list, side);
    const el = h('div', null, h('div', { class: 'head' }, h('div', null, h('h1', null, 'Models'), summary)), place);

    /** What the box shows stays as it is while the lists refresh. @type {{key: string, el: HTMLElement} | null} */
    let box = null;
    let leaving = new AbortController();
    signal.addEventListener('abort', () => leaving.abort());

    function draw() {
        if (models.length === 0) {
            setText(summary, '');
            fill(place, h('div', { class: 'card' }, stateBox('empty', 'No models yet',
                'A model is registered when a job with "register" succeeds, or by hand: open a run that has ended and choose “Register model”. Or by curl:',
                snippet(`curl ${location.origin}/api/v1/models/my-model/versions -H 'Content-Type: application/json' -d '{"run_id": "1"}'`))));
            return;
        }
        const loaded = models.filter(model => model.versions.some(v => v.state === 'READY')).length;
        setText(summary, `${models.length} registered, ${loaded} loaded`);
        if (!grid.isConnected)
            fill(place, grid);
        const chosen = models.find(model => model.name === asked) ?? (asked === null ? models[0] : null);
        fill(list, models.map(model => h('li', null, h('a', {
            href: `#/models/${encodeURIComponent(model.name)}`, 'aria-current': model === chosen ? 'true' : null,
        }, h('span', { class: 'row' }, h('b', null, model.name), chip(bestState(model))),
        h('span', { class: 'muted small' }, `${model.versions.length} version${model.versions.length === 1 ? '' : 's'} · ${ago(model.versions[0]?.created)}`)))));
        if (!chosen) {
            fill(side, h('div', { class: 'card' }, stateBox('failed', `There is no model “${asked}”`, 'Choose one from the list.')));
            return;
        }
        drawModel(chosen);
    }

    /** @param {Model} model */
    function drawModel(model) {
        const serving = model.versions.find(v => v.state === 'READY') ?? null;
        const key = serving ? `${model.name}:${serving.version}` : `${model.name}:none`;
        if (box?.key !== key) {
            leaving.abort();
            leaving = new AbortController();
            box = { key, el: serving ? tryBox(model, serving, leaving.signal) : notLoaded(model) };
        }
        const aliases = (/** @type {string} */ version) => Object.entries(model.aliases).filter(([, v]) => v === version).map(([name]) => h('span', { class: 'tag' }, name));
        const versions = h('section', { class: 'card scroll-x', tabindex: 0, 'aria-label': `Versions of ${model.name}` }, h('table', { class: 'table' },
            h('thead', null, h('tr', null, [['Version', ''], ['State', ''], ['From run', ''], ['Step', 'num'], ['Size', 'num'], ['Registered', ''], ['', 'num']].map(([name, cls]) =>
                h('th', { class: cls, scope: 'col' }, name || h('span', { class: 'hidden' }, 'Actions'))))),
            h('tbody', null, model.versions.map(v => h('tr', null,
                h('td', null, h('span', { class: 'row' }, `v${v.version}`, aliases(v.version))),
                h('td', null, chip(v.state, v.reason || undefined)),
                h('td', null, v.runId ? h('a', { href: `#/runs/${v.runId}` }, `#${v.runId}`) : '–'),
                h('td', { class: 'num' }, count(v.step)),
                h('td', { class: 'num' }, bytes(v.bytes)),
                h('td', { class: 'nowrap', title: moment(v.created) }, ago(v.created)),
                h('td', { class: 'num' }, move(model, v)))))));
        const reasons = model.versions.filter(v => v.reason && v.state !== 'READY').map(v => h('div', { class: 'note', data: { tone: 'bad' } }, `Version ${v.version}: ${v.reason}`));
        const focus = document.activeElement instanceof HTMLElement && side.contains(document.activeElement) ? document.activeElement : null;
        const children = [box.el, ...reasons, versions];
        if (side.firstElementChild === box.el) {
            while (side.children.length > 1)
                side.lastElementChild?.remove();
            side.append(...children.slice(1));
        } else {
            fill(side, children);
        }
        if (focus?.isConnected)
            focus.focus({ preventScroll: true });
    }

    /**
     * @param {Model} model
     * @param {ModelVersion} version
     */
    function move(model, version) {
        const action = version.state === 'READY' ? 'unload' : 'load';
        const button = h('button', { type: 'button', 'aria-label': `${action === 'load' ? 'Load' : 'Unload'} version ${version.version}` },
            action === 'load' ? 'Load' : 'Unload');
        button.disabled = version.state === 'LOADING' || version.state === 'UNLOADING';
        button.addEventListener('click', () => act(button, model, version, action));
        return button;
    }

    /**
     * @param {HTMLButtonElement} button
     * @param {Model} model
     * @param {ModelVersion} version
     * @param {'load' | 'unload'} action
     */
    async function act(button, model, version, action) {
        button.disabled = true;
        setText(button, action === 'load' ? 'Loading …' : 'Unloading …');
        try {
            await moveModel(model.name, version.version, action);
            context.announce(`${model.name} version ${version.version}: ${action}ed`);
        } catch (error) {
            toast(message(error), 'bad');
        }
        await refresh();
    }

    /** @param {Model} model */
    function notLoaded(model) {
        const newest = model.versions[0];
        const button = h('button', { type: 'button', class: 'primary' }, `Load version ${newest?.version}`);
        button.addEventListener('click', () => act(button, model, newest, 'load'));
        return h('section', { class: 'card' }, stateBox('empty', `${model.name} is not loaded`, newest
            ? 'Load it into memory to try it here and to serve it over HTTP.' : 'It has no version yet.', newest && button));
    }

    async function refresh() {
        try {
            models = await listModels(signal);
            ready = true;
            draw();
        } catch (error) {
            if (!isAbort(error) && !ready)
                fill(place, h('div', { class: 'card' }, failedBox(error, 'The models', () => refresh())));
        }
    }
    const nudge = pacer(refresh, { least: 600, most: 1500,
        wanted: () => models.some(m => m.versions.some(v => v.state === 'LOADING' || v.state === 'UNLOADING')), signal });
    onEvent(event => {
        if (event.kind.startsWith('model'))
            nudge();
    }, signal);
    refresh();
    return { el };
}

/** @param {Model} model */
function bestState(model) {
    const states = model.versions.map(v => v.state);
    return ['READY', 'LOADING', 'UNLOADING'].find(state => states.includes(state)) ?? 'UNAVAILABLE';
}

/**
 * @param {Model} model
 * @param {ModelVersion} version
 * @param {AbortSignal} signal
 */
function tryBox(model, version, signal) {
    const { signature } = version;
    if (signature?.kind === 'classifier')
        return imageBox(model, version, signal);
    if (signature?.kind === 'language')
        return textBox(model, version, signal);
    return h('section', { class: 'card' }, stateBox('empty', 'No box for this model', 'It is neither a classifier of images nor a language model; use the API.'));
}

// ---- images ----

/**
 * @param {Model} model
 * @param {ModelVersion} version
 * @param {AbortSignal} signal
 */
function imageBox(model, version, signal) {
    const input = version.signature?.inputs[0];
    const [channels, height, width] = (input?.shape ?? [-1, 1, 28, 28]).slice(-3);
    const bars = h('ol', { class: 'bars', 'aria-label': 'Classes' });
    const verdict = h('p', { role: 'status', 'aria-live': 'polite' });
    const took = h('span', { class: 'muted small' });
    const problem = h('div', { class: 'note', data: { tone: 'bad' }, hidden: true });
    const seen = h('canvas', { class: 'seen', width, height, role: 'img', 'aria-label': `The ${width} by ${height} picture that the model sees` });
    let wanted = false;
    let running = false;
    /** @type {Map<number, {el: HTMLElement, meter: HTMLElement, value: HTMLElement}>} */
    const rows = new Map();

    const pad = new Pad({ label: 'Draw here', changed: () => { wanted = true; ask(); } });

    async function ask() {
        if (running)
            return;
        running = true;
        while (wanted && !signal.aborted) {
            wanted = false;
            const pixels = pad.pixels(width, height);
            paint(seen, pixels, width, height);
            if (pad.empty) {
                blank();
                continue;
            }
            try {
                const began = performance.now();
                const grey = Array.from(pixels);
                const answer = await infer(model.name, version.version, {
                    inputs: [{ name: input?.name ?? 'image', shape: [1, channels, height, width], datatype: 'UINT8',
                        data: Array.from({ length: channels }, () => grey).flat() }],
                    outputs: [{ name: 'probabilities' }],
                }, signal);
                problem.hidden = true;
                setText(took, `${number(performance.now() - began)} ms there and back`);
                show(answer.outputs[0].data);
            } catch (error) {
                if (isAbort(error))
                    break;
                problem.hidden = false;
                setText(problem, message(error));
            }
            await new Promise(resolve => setTimeout(resolve, 60));
        }
        running = false;
    }

    function blank() {
        setText(verdict, 'Draw a digit on the left.');
        setText(took, '');
        for (const row of rows.values()) {
            setMeter(row.meter, 0);
            setText(row.value, '');
            row.el.classList.remove('best');
        }
    }

    /** @param {number[]} probabilities */
    function show(probabilities) {
        const order = probabilities.map((_, i) => i);
        const best = order.reduce((a, b) => (probabilities[b] > probabilities[a] ? b : a), 0);
        // A handful of classes stays in its order, so that bars do not jump; of many, the likeliest are shown.
        const shown = order.length <= 12 ? order : order.sort((a, b) => probabilities[b] - probabilities[a]).slice(0, 10);
        shown.forEach((label, i) => {
            let row = rows.get(label);
            if (!row) {
                const bar = meter(0, `Class ${label}`);
                const value = h('span', { class: 'value' });
                row = { el: h('li', null, h('span', { class: 'label' }, label), bar, value), meter: bar, value };
                rows.set(label, row);
            }
            setMeter(row.meter, probabilities[label]);
            setText(row.value, percent(probabilities[label]));
            row.el.classList.toggle('best', label === best);
            if (bars.children[i] !== row.el)
                bars.insertBefore(row.el, bars.children[i] ?? null);
        });
        while (bars.children.length > shown.length)
            bars.lastElementChild?.remove();
        setText(verdict, `Looks like ${best}, with ${percent(probabilities[best])}.`);
    }

    const samples = h('div', { class: 'samples', role: 'group', 'aria-label': 'Draw a sample' }, Array.from({ length: 10 }, (_, digit) =>
        h('button', { type: 'button', 'aria-label': `Draw a ${digit}`, on: { click: () => pad.sample(digit) } }, digit)));
    const el = h('section', { class: 'card pad stack', 'aria-labelledby': 'try-title' },
        h('div', { class: 'head' }, h('div', null, h('h2', { id: 'try-title' }, `Try ${model.name}`),
            h('p', { class: 'sub' }, h('span', null, `version ${version.version}`), h('span', null, `${channels} × ${height} × ${width} pixels`), version.signature?.memory_bytes
                ? h('span', null, `${bytes(version.signature.memory_bytes)} in memory`) : null)),
        h('button', { type: 'button', on: { click: () => pad.clear() } }, icon('reset'), 'Clear')),
        h('div', { class: 'try' },
            h('div', { class: 'stack' }, pad.canvas, h('p', { class: 'muted small' }, 'Draw with mouse, pen or finger, or let a digit be drawn:'), samples),
            h('div', { class: 'stack' }, h('div', { class: 'row' }, seen, h('div', { class: 'stack' }, verdict, took)), problem, bars)));
    paint(seen, pad.pixels(width, height), width, height);
    show(new Array(10).fill(0).slice(0, version.signature?.classes ?? 10).concat(new Array(Math.max(0, (version.signature?.classes ?? 10) - 10)).fill(0)));
    blank();
    return el;
}

// ---- text ----

/**
 * @param {Model} model
 * @param {ModelVersion} version
 * @param {AbortSignal} signal
 */
function textBox(model, version, signal) {
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
