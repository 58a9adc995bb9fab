// Smoothing of a series of buckets over its steps. How much a point weighs follows from how many steps away it is, not from how
// many buckets are drawn between: a closer look at a part shows the same curve. Gaps (null) and non-finite values pass
// through unsmoothed. Pure functions.

/** @typedef {{first: number, last: number, mean: number | null, count: number}} Bucket */

/** The window of an average is relative to this part of a run, whatever its length. */
const PARTS = 400;

/**
 * Steps after which a weight counts once.
 * @param {number} span steps of the whole run
 */
export const unitOf = span => Math.max(1, span / PARTS);

/**
 * How far back (and, for a Gaussian, ahead) points matter, in steps: what lies beyond is less than a fiftieth.
 * @param {number} weight
 * @param {number} unit
 */
export const reachOf = (weight, unit) => (weight > 0 ? Math.ceil(unit * Math.log(.02) / Math.log(weight)) : 0);

/** @param {number | null} v @returns {v is number} */
const known = v => v !== null && Number.isFinite(v);

/**
 * @param {Bucket[]} buckets in order
 * @param {number} weight 0 (none) up to, but not, 1: what is left of a point one unit of steps later
 * @param {number} unit steps
 * @param {'ema' | 'gauss'} [kind]
 * @returns {(number | null)[]} one value for the middle of each bucket
 */
export function smooth(buckets, weight, unit, kind = 'ema') {
    if (!(weight > 0))
        return buckets.map(b => b.mean);
    return kind === 'gauss' ? gauss(buckets, unit / -Math.log(weight)) : ema(buckets, weight, unit);
}

/**
 * Debiased exponential moving average, as in Adam's first moment: the start is not dragged towards zero. A bucket is taken as
 * constant over its steps, which makes the average the same for few wide buckets and many narrow ones.
 * @param {Bucket[]} buckets
 * @param {number} weight
 * @param {number} unit
 */
function ema(buckets, weight, unit) {
    let sum = 0, mass = 0;
    /** @type {number | null} */
    let at = null;
    return buckets.map(b => {
        if (!known(b.mean))
            return null;
        const steps = Math.max(1e-9, at === null ? b.last - b.first + 1 : b.last - at);
        const half = weight ** (steps / 2 / unit), whole = half * half;
        const middle = (sum * half + b.mean * (1 - half)) / (mass * half + (1 - half));
        sum = sum * whole + b.mean * (1 - whole);
        mass = mass * whole + (1 - whole);
        at = b.last;
        return Number.isFinite(middle) ? middle : b.mean;
    });
}

/**
 * Mean of the points around, weighted by a bell of their distance: no lag, but it looks ahead.
 * @param {Bucket[]} buckets
 * @param {number} sigma steps
 */
function gauss(buckets, sigma) {
    const mids = buckets.map(b => (b.first + b.last) / 2);
    let from = 0;
    return buckets.map((b, i) => {
        if (!known(b.mean))
            return null;
        while (mids[from] < mids[i] - 3 * sigma)
            from++;
        let sum = 0, mass = 0;
        for (let k = from; k < buckets.length && mids[k] <= mids[i] + 3 * sigma; k++) {
            const value = buckets[k].mean;
            if (!known(value))
                continue;
            const w = Math.max(1, buckets[k].count) * Math.exp(-.5 * ((mids[k] - mids[i]) / sigma) ** 2);
            sum += w * value;
            mass += w;
        }
        return mass > 0 ? sum / mass : b.mean;
    });
}

/**
 * Buckets whose greatest or smallest value stands out from those around by more than four deviations of what is usual for the
 * series, and that the line does not show: the spikes that a mean hides. Medians define the neighbourhood and the usual size,
 * so that a spike hides neither itself nor its neighbours.
 * @param {{min: number | null, max: number | null, mean: number | null}[]} buckets
 * @param {(number | null)[]} line
 * @returns {{at: number, value: number}[]} at: the bucket's index
 */
export function spikes(buckets, line) {
    if (buckets.length < 12)
        return [];
    const means = buckets.map(b => b.mean);
    const around = means.map((_, i) => median(means.slice(Math.max(0, i - 5), i + 6).filter(known)));
    const least = Math.max(...means.map(v => (known(v) ? Math.abs(v) : 0))) * 1e-6;
    /** @type {{at: number, value: number}[]} */
    const found = [];
    for (const [side, sign] of /** @type {const} */ ([['max', 1], ['min', -1]])) {
        const by = buckets.map((b, i) => (known(b[side]) ? sign * (/** @type {number} */ (b[side]) - around[i]) : null));
        const usual = by.filter(known);
        const middle = median(usual);
        const bound = Math.max(4 * 1.4826 * median(usual.map(v => Math.abs(v - middle))), least);
        by.forEach((v, at) => {
            const value = buckets[at][side];
            if (known(v) && known(value) && v - middle > bound && Math.abs(value - (line[at] ?? NaN)) > bound / 4)
                found.push({ at, value });
        });
    }
    // Where everything stands out nothing does.
    return found.length > buckets.length / 10 + 2 ? [] : found.sort((a, b) => a.at - b.at);
}

/** @param {number[]} values */
function median(values) {
    const sorted = values.slice().sort((a, b) => a - b);
    const n = sorted.length;
    return n === 0 ? 0 : (sorted[(n - 1) >> 1] + sorted[n >> 1]) / 2;
}
