// What a classifier makes of a picture: drawn on a pad, or dropped, pasted or chosen from a file.
import { infer, inferPicture, isAbort } from '../api.js';
import { fill, h, icon, message, setText } from '../dom.js';
import { Pad, paint } from '../draw.js';
import { bytes, number } from '../format.js';
import { classBars } from './classes.js';

/** @typedef {import('../types').Model} Model */
/** @typedef {import('../types').ModelVersion} ModelVersion */

const PREVIEW = 280; // px
const MOST_BYTES = 7 * 1024 * 1024; // a larger file is scaled down here: the server takes 8 MiB

/**
 * @param {Model} model
 * @param {ModelVersion} version
 * @param {AbortSignal} signal
 * @param {import('../types').ViewContext} context
 */
export function imageBox(model, version, signal, context) {
    const input = version.signature?.inputs[0];
    const [channels, height, width] = (input?.shape ?? [-1, 1, 28, 28]).slice(-3);
    // Digits are drawn; photographs are not.
    const drawable = channels === 1 && Math.max(width, height) <= 64;
    const bars = classBars(version.signature?.classes ?? 10, version.signature?.labels);
    const took = h('span', { class: 'muted small' });
    const problem = h('div', { class: 'note', data: { tone: 'bad' }, hidden: true });
    const seen = h('canvas', { class: 'seen', width, height, role: 'img', 'aria-label': `The ${width} by ${height} image that the model receives` });
    let mode = context.query.get('with') === 'picture' || !drawable ? 'picture' : 'draw';
    let wanted = false;
    let running = false;
    let asked = 0; // pictures; only the last one's answer is shown

    /** @param {unknown} error */
    function fail(error) {
        if (isAbort(error))
            return;
        problem.hidden = false;
        setText(problem, message(error));
    }

    /**
     * @param {any} answer
     * @param {number} began
     */
    function answered(answer, began) {
        problem.hidden = true;
        setText(took, `${number(performance.now() - began)} ms round trip`);
        const of = (/** @type {string} */ name) => answer.outputs.find((/** @type {any} */ o) => o.name === name)?.data;
        bars.show(of('probabilities'), of('label')?.[0]);
    }

    // ---- drawing ----
    const pad = new Pad({ label: 'Draw here', changed: () => { wanted = true; askDrawing(); } });

    async function askDrawing() {
        if (running)
            return;
        running = true;
        while (wanted && !signal.aborted && mode === 'draw') {
            wanted = false;
            const pixels = pad.pixels(width, height);
            paint(seen, pixels, width, height);
            if (pad.empty) {
                bars.blank('Draw a digit.');
                setText(took, '');
                continue;
            }
            try {
                const began = performance.now();
                const grey = Array.from(pixels);
                const said = await infer(model.name, version.version, {
                    inputs: [{ name: input?.name ?? 'image', shape: [1, channels, height, width], datatype: 'UINT8',
                        data: Array.from({ length: channels }, () => grey).flat() }],
                    outputs: ['probabilities', ...(version.signature?.outputs.some(o => o.name === 'label') ? ['label'] : [])].map(name => ({ name })),
                }, signal);
                if (mode === 'draw') // else it belongs to a drawing that a picture has replaced
                    answered(said, began);
            } catch (error) {
                if (mode === 'draw')
                    fail(error);
                if (isAbort(error))
                    break;
            }
            await new Promise(resolve => setTimeout(resolve, 60));
        }
        running = false;
    }

    const samples = h('div', { class: 'samples', role: 'group', 'aria-label': 'Insert a sample' }, Array.from({ length: 10 }, (_, digit) =>
        h('button', { type: 'button', 'aria-label': `Draw a ${digit}`, on: { click: () => pad.sample(digit) } }, digit)));
    const drawing = h('div', { class: 'stack' }, pad.canvas, h('p', { class: 'muted small' }, 'Draw with mouse, pen or finger, or use a sample:'), samples,
        h('button', { type: 'button', on: { click: () => pad.clear() } }, icon('reset'), 'Clear'));

    // ---- pictures ----
    const preview = h('canvas', { class: 'preview', width: PREVIEW, height: PREVIEW, role: 'img', 'aria-label': 'The selected image', hidden: true });
    const file = h('input', { type: 'file', accept: 'image/*', class: 'hidden', 'aria-label': 'Choose a picture', tabindex: -1 });
    const choose = h('button', { type: 'button', class: 'drop', on: { click: () => file.click() } }, icon('image', 28), h('span', null, 'Drop a picture here, paste one, or choose a file'));
    const named = h('p', { class: 'muted small' });
    const picture = h('div', { class: 'stack' }, choose, preview, named, file);
    file.addEventListener('change', () => {
        if (file.files?.[0])
            askPicture(file.files[0]);
        file.value = '';
    });

    /** @param {File} chosen */
    async function askPicture(chosen) {
        const turn = ++asked;
        setMode('picture');
        problem.hidden = true;
        preview.hidden = true;
        setText(named, '');
        setText(took, '');
        bars.blank('Reading the picture …');
        let bitmap;
        try {
            bitmap = await createImageBitmap(chosen);
        } catch {
            if (turn === asked)
                refused(new Error(`${chosen.name || 'That'} is not an image that this browser can read.`));
            return;
        }
        if (turn !== asked)
            return;
        preview.hidden = false;
        const scale = Math.min(PREVIEW / bitmap.width, PREVIEW / bitmap.height);
        preview.width = Math.max(1, Math.round(bitmap.width * scale));
        preview.height = Math.max(1, Math.round(bitmap.height * scale));
        preview.getContext('2d')?.drawImage(bitmap, 0, 0, preview.width, preview.height);
        setText(named, [chosen.name, `${bitmap.width} × ${bitmap.height}`, bytes(chosen.size)].filter(Boolean).join(' · '));
        try {
            const began = performance.now();
            const answer = await inferPicture(model.name, version.version, await asSent(chosen, bitmap), signal);
            if (turn === asked && mode === 'picture')
                answered(answer, began);
        } catch (error) {
            if (turn === asked && mode === 'picture')
                refused(error);
        }
    }

    /** @param {unknown} error */
    function refused(error) {
        bars.blank('No answer.');
        fail(error);
    }

    /**
     * JPEG and PNG go as they are; what only the browser can read, and what is too large, goes as PNG.
     * @param {File} chosen
     * @param {ImageBitmap} bitmap
     * @returns {Promise<Blob>}
     */
    async function asSent(chosen, bitmap) {
        if (['image/jpeg', 'image/png'].includes(chosen.type) && chosen.size <= MOST_BYTES)
            return chosen;
        const scale = Math.min(1, 1024 / Math.max(bitmap.width, bitmap.height));
        const canvas = h('canvas', { width: Math.round(bitmap.width * scale), height: Math.round(bitmap.height * scale) });
        canvas.getContext('2d')?.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
        return new Promise((resolve, reject) => canvas.toBlob(blob => (blob ? resolve(blob) : reject(new Error('The image could not be converted.'))), 'image/png'));
    }

    // ---- the box ----
    const modes = /** @type {const} */ ([['draw', 'Draw'], ['picture', 'Picture']]);
    const tabs = modes.map(([id, word]) => h('button', { type: 'button', 'aria-pressed': 'false', on: { click: () => setMode(id) } }, word));
    const source = h('div', { class: 'stack' });

    /** @param {string} next */
    function setMode(next) {
        const changed = mode !== next;
        mode = next;
        tabs.forEach((button, i) => button.setAttribute('aria-pressed', String(modes[i][0] === mode)));
        if (changed || !source.firstChild) {
            context.setQuery({ with: mode === 'picture' && drawable ? 'picture' : null });
            fill(source, drawable ? h('div', { class: 'segments', role: 'group', 'aria-label': 'Source of the image' }, tabs) : null, mode === 'draw' ? drawing : picture);
            seen.hidden = mode !== 'draw';
            bars.blank(mode === 'draw' ? 'Draw a digit.' : 'Choose a picture.');
            setText(took, '');
            problem.hidden = true;
            if (mode === 'draw') {
                wanted = true;
                askDrawing();
            }
        }
    }

    const el = h('section', { class: 'card pad stack try-box', 'aria-labelledby': 'try-title' },
        h('div', { class: 'head' }, h('div', null, h('h2', { id: 'try-title' }, `Try ${model.name}`),
            h('p', { class: 'sub' }, h('span', null, `version ${version.version}`), h('span', null, `${channels} × ${height} × ${width} pixels`), version.signature?.memory_bytes
                ? h('span', null, `${bytes(version.signature.memory_bytes)} in memory`) : null))),
        h('div', { class: 'try' }, source,
            h('div', { class: 'stack try-result' }, h('div', { class: 'row verdict-row' }, seen, h('div', null, bars.verdict, took)), problem, bars.el)));
    for (const type of ['dragenter', 'dragover'])
        el.addEventListener(type, event => {
            if (/** @type {DragEvent} */ (event).dataTransfer?.types.includes('Files')) {
                event.preventDefault();
                el.classList.add('dropping');
            }
        });
    el.addEventListener('dragleave', event => {
        if (!el.contains(/** @type {Node | null} */ (event.relatedTarget)))
            el.classList.remove('dropping');
    });
    el.addEventListener('drop', event => {
        event.preventDefault();
        el.classList.remove('dropping');
        const dropped = event.dataTransfer?.files[0];
        if (dropped)
            askPicture(dropped);
    });
    addEventListener('paste', event => {
        const pasted = [...event.clipboardData?.files ?? []].find(f => f.type.startsWith('image/'));
        if (pasted && el.isConnected) {
            event.preventDefault();
            askPicture(pasted);
        }
    }, { signal });
    paint(seen, pad.pixels(width, height), width, height);
    setMode(mode);
    return el;
}
