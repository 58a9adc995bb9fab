// Where a chart's axes have their marks, how these are written, and how far an axis reaches. Pure functions.

/**
 * Marks at 1, 2 and 5 times a power of ten.
 * @param {number} low
 * @param {number} high
 * @param {number} [about] how many
 */
export function linearTicks(low, high, about = 5) {
    const raw = (high - low) / about;
    if (!(raw > 0) || !Number.isFinite(raw))
        return Number.isFinite(low) ? [low] : [];
    const size = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map(k => k * size).find(k => k >= raw * .7) ?? raw;
    const out = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9 && out.length < 100; i++)
        out.push(Number((i * step).toPrecision(12)));
    return out;
}

/**
 * Marks of a logarithmic axis: 1, 2 and 5 of each decade while they fit, else decades, else every n-th. An axis of less
 * than a decade is marked as a linear one.
 * @param {number} low above 0
 * @param {number} high
 * @param {number} [most]
 */
export function logTicks(low, high, most = 7) {
    if (!(low > 0) || !(high > low) || !Number.isFinite(high))
        return low > 0 && Number.isFinite(low) ? [low] : [];
    const decades = Math.log10(high / low);
    if (decades < 1)
        return linearTicks(low, high, Math.max(2, most - 1)).filter(v => v > 0);
    const from = Math.floor(Math.log10(low)), to = Math.ceil(Math.log10(high));
    const of = (/** @type {number[]} */ parts) => {
        const out = [];
        for (let k = from; k <= to; k++)
            for (const part of parts) {
                const v = Number(`${part}e${k}`);
                if (v >= low * (1 - 1e-9) && v <= high * (1 + 1e-9))
                    out.push(v);
            }
        return out;
    };
    for (const parts of [[1, 2, 3, 5, 7], [1, 2, 5], [1, 3], [1]]) {
        const out = of(parts);
        if (out.length <= most && (out.length > 1 || parts.length > 2))
            return out;
    }
    const all = of([1]);
    const every = Math.ceil(all.length / most);
    return every > 1 ? all.filter(v => Math.round(Math.log10(v)) % every === 0) : all;
}

/**
 * Marks of an axis in words, with as many digits as tell neighbours apart: on a narrow range "4.56" would stand at each.
 * @param {number[]} values
 * @param {(v: number) => string} say
 * @returns {string[]}
 */
export function distinctWords(values, say) {
    const words = values.map(say);
    if (new Set(words).size === words.length || words.some(word => !/^[−-]?[\d.,]+(e−?\d+)?( %)?$/.test(word))) // other units have words of their own
        return words;
    const times = words[0].endsWith('%') ? 100 : 1, unit = times > 1 ? ' %' : '';
    for (let digits = 4; digits <= 12; digits++) {
        const longer = values.map(v => `${String(Number((v * times).toPrecision(digits))).replace('-', '−')}${unit}`);
        if (new Set(longer).size === longer.length)
            return longer;
    }
    return words;
}

/** Places with their words. @param {number[]} values @param {(v: number) => string} say */
export const tickMarks = (values, say) => {
    const words = distinctWords(values, say);
    return values.map((at, i) => ({ at, word: words[i] }));
};

/**
 * Marks of a linear axis with their words, as many as stand next to each other without touching.
 * @param {number} low
 * @param {number} high
 * @param {number} most about how many
 * @param {number} space of the axis in pixels
 * @param {(v: number) => string} say
 */
export function fittingTicks(low, high, most, space, say) {
    let marks = tickMarks(linearTicks(low, high, most), say);
    // A sign of the figures' text is 6.5 px wide; between words are at least 8.
    const tight = () => marks.some(({ at, word }, i) => i > 0 && (at - marks[i - 1].at) / (high - low) * space < (word.length + marks[i - 1].word.length) / 2 * 6.5 + 8);
    for (let n = most - 1; n >= 2 && tight(); n--)
        marks = tickMarks(linearTicks(low, high, n), say);
    return tight() ? marks.slice(0, 1) : marks;
}

const minute = 60, hour = 3600, day = 86400;
/** Distances of marks that people count time by, in seconds. */
export const timeSteps = [.1, .2, .5, 1, 2, 5, 10, 15, 30, minute, 2 * minute, 5 * minute, 10 * minute, 15 * minute, 30 * minute,
    hour, 2 * hour, 3 * hour, 6 * hour, 12 * hour, day, 2 * day, 7 * day, 14 * day, 28 * day];

/**
 * Seconds as a clock shows them: 0:05, 12:30, 3:07:30, 2 d 6:00.
 * @param {number} seconds
 * @param {number} [step] distance to the next mark: below a second tenths are written
 */
export function clock(seconds, step = 1) {
    const sign = seconds < 0 ? '−' : '';
    let s = Math.abs(seconds);
    const tenths = step < 1 ? `.${Math.floor(s * 10 + 1e-6) % 10}` : '';
    s = step < 1 ? Math.floor(s + 1e-6) : Math.round(s);
    const two = (/** @type {number} */ n) => String(n).padStart(2, '0');
    const d = Math.floor(s / day), h = Math.floor(s / hour) % 24, m = Math.floor(s / minute) % 60;
    const tail = `${two(m)}:${two(s % 60)}${tenths}`;
    if (d > 0)
        return `${sign}${d} d ${h}:${two(m)}`;
    return sign + (h > 0 ? `${h}:${tail}` : tail.replace(/^0/, ''));
}

/**
 * How far a vertical axis reaches around values. A logarithmic one reaches down twelve decades at most, so that a value next to
 * nothing cannot press the others together.
 * @param {number} low
 * @param {number} high
 * @param {boolean} log
 * @returns {[number, number]}
 */
export function reach(low, high, log) {
    if (!Number.isFinite(low) || !Number.isFinite(high) || low > high)
        return log ? [.1, 1] : [0, 1];
    if (log) {
        const a = Math.max(low, high * 1e-12);
        // Equal but for the last bits of a mean is flat: no axis can be divided so finely.
        const room = high / a > 1 + 1e-9 ? Math.log(high / a) * .05 : Math.log(2);
        return [a * Math.exp(-room), high * Math.exp(room)];
    }
    const room = high - low > Math.max(Math.abs(low), Math.abs(high)) * 1e-9 ? (high - low) * .06 : Math.abs(high) * .1 || 1;
    return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}

/**
 * The values between which the middle share of all lies.
 * @param {number[]} values
 * @param {number} share left out at either end
 * @returns {[number, number]}
 */
export function within(values, share) {
    const sorted = values.slice().sort((a, b) => a - b);
    const at = (/** @type {number} */ q) => {
        const k = q * (sorted.length - 1), low = Math.floor(k);
        return sorted[low] + (sorted[Math.min(sorted.length - 1, low + 1)] - sorted[low]) * (k - low);
    };
    return sorted.length === 0 ? [NaN, NaN] : [at(share), at(1 - share)];
}
