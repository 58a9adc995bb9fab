// Which combinations of a sweep a picture or a row of a paper's table means. Pure functions.

/** @typedef {import('../types').SweepRow} SweepRow */
/** @typedef {Record<string, unknown>} Settings leaves by JSON pointer */

/**
 * Leaves of what a combination sets: a swept object counts as its members.
 * @param {Record<string, unknown>} values by pointer
 * @returns {Settings}
 */
export function leaves(values) {
    /** @type {Settings} */
    const out = {};
    const walk = (/** @type {string} */ at, /** @type {unknown} */ value) => {
        if (value !== null && typeof value === 'object' && !Array.isArray(value))
            for (const [key, inner] of Object.entries(value))
                walk(`${at}/${key}`, inner);
        else
            out[at] = value;
    };
    for (const [pointer, value] of Object.entries(values))
        walk(pointer, value);
    return out;
}

/**
 * Does a combination have all settings of one of the alternatives? No alternatives: every combination does.
 * @param {Record<string, unknown>} values
 * @param {Settings[]} [any]
 */
export function fits(values, any) {
    const has = leaves(values);
    return !any || any.some(wanted => Object.entries(wanted).every(([pointer, value]) => JSON.stringify(has[pointer]) === JSON.stringify(value)));
}

/**
 * The combination that is meant: of several the best by the metric that ranks the sweep. Null: none fits.
 * @param {{table: SweepRow[], metric: string, mode: 'min' | 'max'}} sweep
 * @param {Settings[]} [any]
 * @returns {{row: SweepRow, of: number} | null}
 */
export function choose({ table, metric, mode }, any) {
    const all = table.filter(row => fits(row.values, any)), sign = mode === 'min' ? 1 : -1;
    const rank = (/** @type {SweepRow} */ row) => {
        const mean = row.metrics[metric]?.mean;
        return mean === null || mean === undefined || !Number.isFinite(mean) ? Infinity : sign * mean;
    };
    return all.length === 0 ? null : { row: all.reduce((a, b) => (rank(b) < rank(a) ? b : a)), of: all.length };
}

/** Two settings of one thing in few words: "softmax", "x³ fixed", "N = 49". @type {Record<string, (v: unknown) => string>} */
const words = {
    '/attention/activation': v => (v === 'poly' ? '' : String(v)),
    '/attention/degree': v => (v === 1 ? 'x' : `x${['', '', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸'][Number(v)] ?? `^${v}`}`),
    '/attention/scale': v => (v === 'none' ? 'raw' : String(v)),
    '/attention/scale_share': v => `per ${v}`,
    '/attention/alpha': v => `α ${v}`,
    '/attention/n_for_scale': () => '',
    '/model/patch': v => `patch ${Array.isArray(v) ? v.join('×') : v}`,
    '/norm/placement': String, '/model/preset': String,
    '/train/optimizer/name': v => ({ adamw: 'AdamW', msgdw: 'mSGDW' })[String(v)] ?? String(v),
    '/train/optimizer/lr': v => `rate ${v}`,
    '/train/schedule/warmup_steps': v => (v === 0 ? 'no warm-up' : `warm-up ${v}`),
    '/train/optimizer/betas': () => '', '/train/optimizer/momentum': () => '', '/train/optimizer/weight_decay': () => '',
};

/**
 * A combination in few words.
 * @param {Record<string, unknown>} values
 * @param {Record<string, unknown>[]} [among] combinations to distinguish it from: values that all of them share are omitted
 */
export function nameOf(values, among = []) {
    const others = among.map(leaves);
    const order = Object.keys(words), at = (/** @type {string} */ pointer) => (order.includes(pointer) ? order.indexOf(pointer) : -1);
    const own = Object.entries(leaves(values)).sort(([a], [b]) => at(a) - at(b)).filter(([pointer, value]) => others.length < 2 || others.some(other => JSON.stringify(other[pointer]) !== JSON.stringify(value)));
    const parts = own.map(([pointer, value]) => (words[pointer] ? words[pointer](value) : `${pointer.split('/').pop()} ${Array.isArray(value) ? value.join('×') : value}`)).filter(Boolean);
    return parts.join(' ') || 'all runs';
}
