// Fetches the curves of charts. Of a zoomed stretch the steps around it come too, in few buckets: smoothing needs to know what
// went before, or a zoom would change the line.
import { getCurves } from '../api.js';

/** @typedef {import('../types').Curve} Curve */

const AROUND = 240; // buckets to either side

/**
 * @param {string} id of the run
 * @param {string[]} keys
 * @param {{buckets: number, range: [number, number] | null, span: number}} what `span`: steps of the whole run
 * @param {AbortSignal} signal
 * @returns {Promise<Curve[]>}
 */
export async function loadCurves(id, keys, { buckets, range, span }, signal) {
    if (keys.length === 0)
        return [];
    if (!range)
        return getCurves(id, keys, { buckets }, signal);
    const [from, to] = range;
    const pad = Math.ceil(span / 2);
    const [inside, before, after] = await Promise.all([
        getCurves(id, keys, { buckets, from, to }, signal),
        from > 0 ? getCurves(id, keys, { buckets: AROUND, from: Math.max(0, from - pad), to: from - 1 }, signal) : [],
        getCurves(id, keys, { buckets: AROUND, from: to + 1, to: to + pad }, signal)]);
    const of = (/** @type {Curve[]} */ list, /** @type {string} */ key) => list.find(c => c.key === key)?.buckets ?? [];
    return inside.map(curve => ({ ...curve, before: of(before, curve.key), after: of(after, curve.key) }));
}
