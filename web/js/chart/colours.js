// Colours for numbers in a picture: a diverging scale around 0 and a sequential one, each for both themes. Pure functions.

/** @typedef {[number, number, number]} Rgb */

/** Stops from the middle out: blue below 0, orange above. The middle is the surface's own grey. @type {Record<'light' | 'dark', {below: Rgb[], above: Rgb[]}>} */
const around = {
    light: { below: [[247, 247, 246], [166, 200, 226], [60, 134, 190], [0, 68, 120]], above: [[247, 247, 246], [248, 196, 158], [222, 108, 36], [132, 44, 0]] },
    dark: { below: [[38, 38, 40], [30, 82, 124], [66, 152, 214], [176, 220, 255]], above: [[38, 38, 40], [128, 62, 22], [232, 126, 60], [255, 214, 176]] },
};

/** From nothing to much. @type {Record<'light' | 'dark', Rgb[]>} */
const upward = {
    light: [[250, 250, 248], [196, 222, 214], [86, 170, 168], [16, 108, 134], [16, 48, 92]],
    dark: [[28, 28, 32], [22, 64, 92], [18, 118, 138], [92, 190, 168], [226, 246, 200]],
};

/** Of a number that is not finite: a grey between both ends of each scale. @type {Record<'light' | 'dark', string>} */
const without = { light: '#b4b4b6', dark: '#68686c' };

/**
 * @param {Rgb[]} stops
 * @param {number} t 0 .. 1
 * @returns {Rgb}
 */
function along(stops, t) {
    const at = Math.min(1, Math.max(0, t)) * (stops.length - 1), k = Math.min(stops.length - 2, Math.floor(at));
    return /** @type {Rgb} */ (stops[k].map((c, i) => Math.round(c + (stops[k + 1][i] - c) * (at - k))));
}

/** @param {Rgb} c */
const css = c => `#${c.map(v => v.toString(16).padStart(2, '0')).join('')}`;

/**
 * A colour for a number between -1 and 1; 0 is neutral, and both sides are equally strong.
 * @param {number} t
 * @param {'light' | 'dark'} theme
 */
export const diverging = (t, theme) => Number.isNaN(t) ? without[theme] : css(along(t < 0 ? around[theme].below : around[theme].above, Math.abs(t)));

/**
 * A colour for a number between 0 and 1.
 * @param {number} t
 * @param {'light' | 'dark'} theme
 */
export const sequential = (t, theme) => Number.isNaN(t) ? without[theme] : css(along(upward[theme], t));

/**
 * The scale that numbers are coloured by: a diverging one where some are below 0, else a sequential one. Numbers that are not finite
 * have one colour, `without`, which is null if there are none.
 * @param {ArrayLike<number>} values
 * @param {{low?: number, high?: number}} [range] instead of the numbers' own
 * @returns {{low: number, high: number, signed: boolean, share: (v: number) => number, colour: (v: number, theme: 'light' | 'dark') => string, without: (theme: 'light' | 'dark') => string | null}}
 */
export function scaleOf(values, range = {}) {
    let low = Infinity, high = -Infinity, some = false;
    for (let i = 0; i < values.length; i++) {
        if (!Number.isFinite(values[i])) {
            some = true;
            continue;
        }
        low = Math.min(low, values[i]);
        high = Math.max(high, values[i]);
    }
    if (low > high)
        [low, high] = [0, 1];
    low = range.low ?? low;
    high = range.high ?? high;
    const signed = low < 0, most = Math.max(Math.abs(low), Math.abs(high)) || 1;
    if (!signed)
        low = 0;
    const share = (/** @type {number} */ v) => (signed ? v / most : v / (high || 1));
    return { low: signed ? -most : 0, high: signed ? most : high || 1, signed, share,
        colour: (v, theme) => (signed ? diverging : sequential)(Number.isFinite(v) ? share(v) : NaN, theme), without: theme => (some ? without[theme] : null) };
}
