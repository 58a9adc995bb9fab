// A dozen settings as fields next to the document: the most frequently changed ones, without knowing their place. The document
// stays the truth; a field only writes into it.
import { fill, h } from './dom.js';
import { kindOf } from './kinds.js';

/** @typedef {import('./types').Field} Field */

/** Pointer, word, and for numbers that one thinks of in ratios true. @type {[string, string, boolean?][]} */
export const common = [['/attention/activation', 'Activation'], ['/attention/degree', 'Degree p'], ['/attention/scale', 'Scale'], ['/attention/k', 'Scale k'], ['/train/optimizer/lr', 'Peak rate', true],
    ['/train/epochs', 'Epochs', true], ['/train/batch', 'Batch', true], ['/train/seed', 'Seed'], ['/model/depth', 'Depth'], ['/model/width', 'Width'], ['/model/heads', 'Heads'], ['/trials', 'Trials']];

/**
 * @param {any} document
 * @param {string} pointer
 */
const at = (document, pointer) => pointer.split('/').slice(1).reduce((value, key) => (value && typeof value === 'object' ? value[key] : undefined), document);

/**
 * A copy of the document with a member set, or taken out.
 * @param {any} document
 * @param {string} pointer
 * @param {unknown} value undefined: taken out
 */
export function withMember(document, pointer, value) {
    const copy = structuredClone(document);
    const keys = pointer.split('/').slice(1);
    const last = /** @type {string} */ (keys.pop());
    let place = copy;
    for (const key of keys) {
        if (place[key] === null || typeof place[key] !== 'object')
            place[key] = {};
        place = place[key];
    }
    if (value === undefined)
        delete place[last];
    else
        place[last] = value;
    return copy;
}

/**
 * @param {() => any} read the document, or undefined while it is no JSON
 * @param {(document: any) => void} write
 */
export function quickForm(read, write) {
    const place = h('div', { class: 'quick' });
    const el = h('details', { class: 'card pad', open: true }, h('summary', null, h('b', null, 'Common settings')), place);
    /** @type {Field[]} */
    let fields = [];
    /** @type {Map<string, HTMLInputElement | HTMLSelectElement>} */
    const inputs = new Map();

    /**
     * @param {string} pointer
     * @param {string} text
     */
    function change(pointer, text) {
        const document = read();
        if (document === undefined)
            return;
        const field = fields.find(f => f.pointer === pointer);
        const numeric = text !== '' && field?.type !== 'string' && Number.isFinite(Number(text));
        write(withMember(document, pointer, text === '' ? undefined : numeric ? Number(text) : text));
    }

    /**
     * @param {string} pointer
     * @param {number} by
     */
    function scale(pointer, by) {
        const field = fields.find(f => f.pointer === pointer);
        const now = Number(inputs.get(pointer)?.value || field?.default);
        if (!(now > 0))
            return;
        const next = field?.type === 'integer' ? Math.max(1, Math.round(now * by)) : Number((now * by).toPrecision(3));
        change(pointer, String(next));
    }

    return {
        el,
        /** @param {Field[]} all */
        know(all) {
            fields = all;
            inputs.clear();
            fill(place, common.map(([pointer, word, ratio]) => {
                const field = fields.find(f => f.pointer === pointer);
                if (!field)
                    return null;
                const can = Array.isArray(field.available) ? field.available : field.values;
                const standard = field.default === undefined || field.default === null ? '' : String(field.default);
                const input = can && can.length > 0
                    ? h('select', { 'aria-label': word }, h('option', { value: '' }, standard ? `${standard} (default)` : 'default'), can.map(value => h('option', { value }, value)))
                    : h('input', { type: 'number', step: field.type === 'integer' ? 1 : 'any', placeholder: standard || 'default', 'aria-label': word });
                input.addEventListener('change', () => change(pointer, input.value));
                inputs.set(pointer, input);
                return h('div', { class: 'quick-field', title: field.meaning }, h('span', { class: 'muted small' }, word), h('span', { class: 'quick-row' }, input,
                    ratio ? [h('button', { type: 'button', class: 'small-button', 'aria-label': `${word} ÷ 2`, on: { click: () => scale(pointer, .5) } }, '÷ 2'),
                        h('button', { type: 'button', class: 'small-button', 'aria-label': `${word} × 2`, on: { click: () => scale(pointer, 2) } }, '× 2')] : null));
            }));
            this.show();
        },
        /** Takes the values over from the document. */
        show() {
            const document = read();
            el.hidden = typeof document?.kind === 'string' && !kindOf(document).settings;
            for (const [pointer, input] of inputs) {
                input.disabled = document === undefined;
                const value = at(document, pointer);
                // What is neither a number nor a word of the list (a schedule, a range) is left to the text.
                const text = value === undefined || value === null || typeof value === 'object' ? '' : String(value);
                if (input !== window.document.activeElement || input.value !== text)
                    input.value = text;
            }
        },
    };
}
