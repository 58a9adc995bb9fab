// Are two means told apart? Welch's interval of their difference, for samples of unequal spread. Pure functions.

/** @typedef {{n: number, mean: number, sd: number}} Sample */

/** Two-sided quantiles of Student's t at 95 %, for 1 to 30 degrees of freedom; beyond, Fisher's expansion about the normal one. */
const t95 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042];

/**
 * @param {number} freedom need not be whole
 */
export function studentT(freedom) {
    if (!(freedom >= 1))
        return t95[0];
    if (freedom > 30) {
        const z = 1.959964;
        return z + (z ** 3 + z) / (4 * freedom) + (5 * z ** 5 + 16 * z ** 3 + 3 * z) / (96 * freedom ** 2);
    }
    const low = Math.floor(freedom);
    const high = Math.min(30, low + 1);
    return t95[low - 1] + (t95[high - 1] - t95[low - 1]) * (freedom - low);
}

/**
 * The 95 % interval of a − b, or null where a sample has fewer than two values.
 * @param {Sample} a
 * @param {Sample} b
 * @returns {[number, number] | null}
 */
export function welch(a, b) {
    if (a.n < 2 || b.n < 2)
        return null;
    const va = a.sd ** 2 / a.n, vb = b.sd ** 2 / b.n;
    const difference = a.mean - b.mean;
    if (va + vb === 0)
        return [difference, difference];
    const freedom = (va + vb) ** 2 / (va ** 2 / (a.n - 1) + vb ** 2 / (b.n - 1));
    const reach = studentT(freedom) * Math.sqrt(va + vb);
    return [difference - reach, difference + reach];
}
