// Formulas of attention as a document holds them, what is wrong with one, and what is known of one, in words. Pure.
import { withMember } from '../quick.js';
import { number } from '../format.js';

/** @typedef {{init?: string | number, per?: string, form?: string}} Scalar */
/** @typedef {Record<string, Scalar>} Scalars */
/** @typedef {{formula: string, params?: Scalars, [key: string]: unknown}} Entry a formula, and its own scalars where they are not those of all */
/** @typedef {{at: number, length: number, text: string}} Fault bytes of a text */

const AXIS = '/attention/formula', WHOLE = '/attention';

/** Whether an axis compares formulas: their texts, or objects of attention that are all formulas. @param {any} axis */
const ofFormulas = axis => Array.isArray(axis?.values) && (axis.pointer === AXIS || (axis.pointer === WHOLE && axis.values.length > 0 && axis.values.every((/** @type {any} */ value) => value?.activation === 'formula' && typeof value.formula === 'string')));

/** @param {any} document */
const axisOf = document => (Array.isArray(document?.sweep?.axes) ? document.sweep.axes.findIndex(ofFormulas) : -1);

/** @param {unknown} value @returns {Entry} */
function entryOf(value) {
    if (typeof value === 'string')
        return { formula: value };
    const { activation, ...rest } = /** @type {any} */ (value ?? {});
    return { ...rest, formula: String(rest.formula ?? '') };
}

/**
 * The formulas of a document: one, a list of them, or the axis of a sweep.
 * @param {any} document
 * @returns {Entry[]}
 */
export function entriesOf(document) {
    const attention = document?.attention ?? {}, axis = axisOf(document);
    if (Array.isArray(attention.formulas))
        return attention.formulas.map(entryOf);
    if (axis >= 0)
        return document.sweep.axes[axis].values.map(entryOf);
    return attention.activation === 'formula' || typeof attention.formula === 'string' ? [{ formula: String(attention.formula ?? '') }] : [];
}

/** Settings of other activations, which have no effect with a formula. */
const others = ['degree', 'scale', 'k', 'alpha', 'scale_share', 'scale_param', 'activation', 'formula', 'formulas'];

/**
 * The scalars that a formula names, and not as a short name of its own.
 * @param {string} formula
 * @param {Scalars} scalars
 * @returns {Scalars}
 */
export const named = (formula, scalars) => Object.fromEntries(Object.entries(scalars).filter(([name]) => /^\w+$/.test(name) && new RegExp(`\\b${name}\\b`).test(formula) && !new RegExp(`(^|;)\\s*${name}\\s*=(?!=)`).test(formula)));

/** The entry with its scalars that its formula names. @param {Entry} entry @returns {Entry} */
function tidy({ params, ...rest }) {
    const mine = named(rest.formula, params ?? {});
    return Object.keys(mine).length > 0 ? { ...rest, params: mine } : rest;
}

/**
 * The document with these formulas: none takes attention back to its default. Scalars that no formula names leave it.
 * @param {any} document
 * @param {Entry[]} entries
 */
export function withEntries(document, entries) {
    const axis = axisOf(document), plain = entries.map(tidy).map(entry => (Object.keys(entry).length === 1 ? entry.formula : entry));
    const attention = { ...document?.attention ?? {} };
    for (const key of others)
        delete attention[key];
    const shared = entries.filter(entry => entries.length === 1 || !entry.params).map(entry => Object.keys(named(entry.formula, entry.params ?? attention.params ?? {}))).flat();
    const params = Object.entries({ ...attention.params ?? {}, ...entries.length === 1 ? entries[0].params ?? {} : {} }).filter(([name]) => shared.includes(name));
    delete attention.params;
    if (params.length > 0)
        attention.params = Object.fromEntries(params);
    if (axis >= 0 && document.sweep.axes[axis].pointer === AXIS && plain.length > 1 && plain.every(entry => typeof entry === 'string')) {
        const copy = withMember(document, `/sweep/axes/${axis}/values`, plain);
        return withMember(copy, '/attention', { activation: 'formula', ...attention });
    }
    let copy = document ?? {};
    if (axis >= 0) {
        const axes = document.sweep.axes.toSpliced(axis, 1);
        copy = axes.length > 0 ? withMember(copy, '/sweep/axes', axes) : withMember(copy, '/sweep', undefined);
    }
    if (entries.length === 1)
        return withMember(copy, '/attention', { activation: 'formula', formula: entries[0].formula, ...attention });
    return withMember(copy, '/attention', entries.length > 1 ? { formulas: plain, ...attention } : Object.keys(attention).length > 0 ? attention : undefined);
}

/**
 * The scalars of an entry: its own, else those of all.
 * @param {any} document
 * @param {Entry} entry
 * @returns {Scalars}
 */
export const scalarsOf = (document, entry) => entry.params ?? document?.attention?.params ?? {};

/**
 * The document of that entry alone, without a sweep.
 * @param {any} document
 * @param {Entry} entry
 */
export function alone(document, entry) {
    const copy = withMember(withEntries(document, [{ formula: entry.formula, ...entry.params ? { params: entry.params } : {} }]), '/sweep', undefined);
    return withMember(copy, '/trials', undefined);
}

/**
 * A text in pieces, some of which are wrong. Places are counted in bytes of UTF-8.
 * @param {string} text
 * @param {Fault[]} faults
 * @returns {{text: string, bad: boolean}[]}
 */
export function pieces(text, faults) {
    const bytes = new TextEncoder();
    /** @type {{text: string, bad: boolean}[]} */
    const out = [];
    let at = 0;
    for (const sign of text) {
        const bad = faults.some(f => at >= f.at && at < f.at + Math.max(1, f.length));
        const last = out.at(-1);
        if (last && last.bad === bad)
            last.text += sign;
        else
            out.push({ text: sign, bad });
        at += bytes.encode(sign).length;
    }
    if (faults.some(f => f.at >= at)) // what is missing behind the end
        out.push({ text: ' ', bad: true });
    return out;
}

/**
 * The formula times a learned scalar that it does not name yet.
 * @param {string} text
 * @param {string[]} names that are taken
 * @returns {{name: string, formula: string}}
 */
export function factored(text, names) {
    const name = ['c', 'c1', 'c2', 'c3', 'c4', 'c5', 'c6', 'c7', 'c8'].find(word => !names.includes(word) && !new RegExp(`\\b${word}\\b`).test(text)) ?? 'factor';
    const parts = text.trim().replace(/;\s*$/, '').split(';'), last = /** @type {string} */ (parts.pop()).trim();
    return { name, formula: [...parts.map(part => part.trim()), `${name}*(${last})`].join('; ') };
}

const powers = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
/** @param {number} x */
const power = x => (Number.isInteger(x) && x >= 0 && x < 10 ? powers[x] : `^${Number(x.toPrecision(3))}`);

/** Which built-in activation a formula is. @param {any} builtin of the API's answer */
export function builtinWords(builtin) {
    if (!builtin)
        return '';
    const { activation, degree, constant, alpha } = builtin;
    const c = Number.isFinite(constant) ? Number(constant.toPrecision(4)) : 1, factor = [c === 1 ? '' : String(c), alpha ? `n^−${Number(alpha.toPrecision(3))}` : ''].filter(Boolean).join(' ');
    return activation === 'poly' ? `poly: ${factor}${factor ? ' ' : ''}s${degree === 1 ? '' : power(degree)}` : `${activation}${factor ? `, times ${factor}` : ''}`;
}

/** What is known of a formula: title, value, remark. @param {any} answer of the API @returns {[string, string, string][]} */
export function facts(answer) {
    const grows = answer.growth === null ? ['by its row', ''] : !Number.isFinite(Number(answer.growth)) ? ['faster than any power', ''] : Math.abs(answer.growth) < .01 ? ['not at all', 'for large s'] : [`as |s|${power(Number(Number(answer.growth).toPrecision(2)))}`, 'for large s'];
    const bound = (/** @type {number | null} */ v, /** @type {string} */ none) => (v === null ? none : number(v));
    return [
        ['φ(0)', answer.at_zero === null ? 'not finite' : number(answer.at_zero), answer.row_functions > 0 ? 'of a row of zeros' : ''],
        ['Symmetry', answer.parity === 'none' ? 'neither even nor odd' : answer.parity, ''],
        ['Sign', answer.sign, ''],
        ['Bounds', answer.lowest === null && answer.highest === null ? 'none' : `${bound(answer.lowest, '−∞')} to ${bound(answer.highest, '∞')}`, answer.lowest === null && answer.highest === null ? '' : 'proven'],
        ['Grows', grows[0], grows[1]],
        ['Passes', String(answer.passes), 'over the keys of a row'],
        ['Operations a pair', `${answer.operations.forward} + ${answer.operations.backward}`, 'forward and backward'],
    ];
}

/** Shares of pairs that a format cannot hold, in words. @param {any} beyond */
export function beyondWords(beyond) {
    if (beyond.f32.over === null)
        return 'not forecast';
    const share = (/** @type {number} */ v) => (v >= 1e-4 ? `${Number((v * 100).toPrecision(2))} %` : `${v.toExponential(1)}`);
    const of = (/** @type {string} */ format, /** @type {any} */ b) => [...b.over > 1e-12 ? [`${share(b.over)} of pairs above ${format}`] : [], ...b.under > 1e-12 ? [`${share(b.under)} below its normal numbers`] : []];
    const all = [...of('f32', beyond.f32), ...of('bf16', beyond.bf16)];
    return all.length > 0 ? all.join(', ') : 'no pair beyond the range of f32 or bf16';
}
