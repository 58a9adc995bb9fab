// Several curves as one: their mean with one standard deviation to either side. Pure functions.

/** @typedef {import('../types').Bucket} Bucket */

/**
 * The value of a curve at x, between its neighbours; null outside of it.
 * @param {number[]} xs growing
 * @param {number[]} ys
 * @param {number} x
 */
export function at(xs, ys, x) {
    const last = xs.length - 1;
    if (last < 0 || x < xs[0] || x > xs[last])
        return null;
    let low = 0;
    let high = last;
    while (high - low > 1) {
        const middle = (low + high) >> 1;
        if (xs[middle] <= x)
            low = middle;
        else
            high = middle;
    }
    if (xs[low] === x || high === low)
        return ys[low];
    return ys[low] + (ys[high] - ys[low]) * (x - xs[low]) / (xs[high] - xs[low]);
}

/**
 * Mean and deviation (of the sample) of curves over their common stretch of x. The curves need not share their points:
 * between them they are straight.
 * @param {{x: number, y: number | null}[][]} curves
 * @param {number} [most] points of the result
 * @returns {Bucket[]} x stands in first, last and time; min and max are the mean less and plus the deviation
 */
export function meanOf(curves, most = 400) {
    const clean = curves.map(points => points.filter(p => p.y !== null && Number.isFinite(p.y))).filter(points => points.length > 0);
    let xs = [...new Set(clean.flatMap(points => points.map(p => p.x)))].sort((a, b) => a - b);
    if (xs.length > most) {
        const first = xs[0];
        const span = xs[xs.length - 1] - first;
        xs = Array.from({ length: most }, (_, i) => first + span * i / (most - 1));
    }
    const lines = clean.map(points => ({ xs: points.map(p => p.x), ys: points.map(p => /** @type {number} */ (p.y)) }));
    return xs.flatMap(x => {
        const values = lines.map(line => at(line.xs, line.ys, x)).filter(v => v !== null);
        if (values.length === 0)
            return [];
        const mean = values.reduce((a, b) => a + b, 0) / values.length;
        const sd = values.length > 1 ? Math.sqrt(values.reduce((sum, v) => sum + (v - mean) ** 2, 0) / (values.length - 1)) : 0;
        return [{ first: x, last: x, time: x, mean, min: mean - sd, max: mean + sd, count: values.length, nonfinite: 0 }];
    });
}
