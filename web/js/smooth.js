// Debiased exponential moving average, as in Adam's first moment: the start is not dragged towards zero,
// and a smoothing of 0 is the series itself. Gaps (null) and non-finite values pass through unsmoothed.

/**
 * @param {(number | null)[]} values
 * @param {number} weight 0 (none) up to, but not, 1
 * @returns {(number | null)[]}
 */
export function smooth(values, weight) {
    if (!(weight > 0))
        return values.slice();
    let sum = 0;
    let mass = 0;
    return values.map(value => {
        if (value === null || !Number.isFinite(value))
            return null;
        sum = weight * sum + (1 - weight) * value;
        mass = weight * mass + (1 - weight);
        return sum / mass;
    });
}
