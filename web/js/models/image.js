// A pad to draw on, and what a classifier of images makes of it.
import { infer, isAbort } from '../api.js';
import { h, icon, message, setText } from '../dom.js';
import { Pad, paint } from '../draw.js';
import { bytes, number, percent } from '../format.js';
import { meter, setMeter } from '../states.js';

/** @typedef {import('../types').Model} Model */
/** @typedef {import('../types').ModelVersion} ModelVersion */

/**
 * @param {Model} model
 * @param {ModelVersion} version
 * @param {AbortSignal} signal
 */
export function imageBox(model, version, signal) {
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
