// Numbers, durations and moments as people read them. Pure functions.

/** @typedef {number | string | null | undefined} Value a number, or "NaN", "Infinity", "-Infinity" */

/**
 * JSON has no NaN: the API writes the three non-finite values as words.
 * @param {Value} value
 * @returns {number | null}
 */
export function toNumber(value) {
    if (value === null || value === undefined || value === '')
        return null;
    return typeof value === 'number' ? value : Number(value);
}

/**
 * Four significant digits, without noise: 0.3127, 12.35, 1,204, 3.2e-5.
 * @param {Value} value
 */
export function number(value) {
    const x = toNumber(value);
    if (x === null)
        return '–';
    if (Number.isNaN(x))
        return 'NaN';
    if (!Number.isFinite(x))
        return x > 0 ? '∞' : '−∞';
    const size = Math.abs(x);
    if (size === 0)
        return '0';
    if (size < 1e-3 || size >= 1e7)
        return minus(x.toExponential(2).replace(/\.?0+e/, 'e').replace('e+', 'e'));
    if (Number.isInteger(x))
        return minus(x.toLocaleString('en-US'));
    return minus(size >= 1000 ? x.toLocaleString('en-US', { maximumFractionDigits: 0 }) : trim(x.toPrecision(4)));
}

/** @param {string} text */
const trim = text => (text.includes('.') ? text.replace(/\.?0+$/, '') : text);

/** @param {string} text */
const minus = text => text.replace('-', '−').replace('e−', 'e-').replace('e-', 'e−');

/**
 * @param {Value} value a share from 0 to 1
 */
export function percent(value) {
    const x = toNumber(value);
    if (x === null || !Number.isFinite(x))
        return number(x);
    return `${(x * 100).toFixed(x >= 0.9995 || x === 0 ? 0 : x >= 0.1 ? 1 : 2)} %`;
}

/**
 * A mean and its deviation with equal digits: two of the deviation, and the mean to match.
 * @param {number} mean
 * @param {number | null} sd
 * @param {number} [times] 100 for shares in per cent
 * @returns {[string, string]} '' where there is no deviation
 */
export function meanWithSd(mean, sd, times = 1) {
    const m = mean * times;
    if (sd === null || !Number.isFinite(sd) || !Number.isFinite(m))
        return [times === 1 ? number(m) : number(Number(m.toFixed(2))), ''];
    const s = sd * times;
    if (s === 0)
        return [number(Number(m.toPrecision(4))), '0'];
    const digits = 1 - Math.floor(Math.log10(Number(s.toPrecision(2))));
    if (digits > 8 || digits < -6)
        return [minus(m.toExponential(2)), s.toExponential(1)];
    const fixed = (/** @type {number} */ v) => (digits > 0 ? v.toFixed(digits) : String(Math.round(v / 10 ** -digits) * 10 ** -digits));
    return [minus(fixed(m)), fixed(s)];
}

/** @type {[number, string][]} */
const prefixes = [[1e15, 'P'], [1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']];

/**
 * A great number with its SI prefix: 47.6 G, 2.43 k. Below a thousand it stands as it is.
 * @param {number} x
 * @param {string} [unit] with a capital it takes the prefix itself (GFLOP/s), else it follows
 */
export function si(x, unit = '') {
    const size = Math.abs(x);
    const found = prefixes.find(([from]) => size >= from * .99995);
    const text = found ? `${minus(trim((x / found[0]).toPrecision(3)))} ${found[1]}` : number(x);
    return unit === '' ? text : found && /^[A-Z]/.test(unit) ? text + unit : `${text} ${unit}`;
}

/** @param {number | null | undefined} x */
export function count(x) {
    return x === null || x === undefined ? '–' : x.toLocaleString('en-US');
}

/** @param {number | null | undefined} size */
export function bytes(size) {
    if (size === null || size === undefined)
        return '–';
    const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
    let x = size;
    let unit = 0;
    while (x >= 1024 && unit < units.length - 1) {
        x /= 1024;
        unit++;
    }
    return `${unit === 0 || x >= 100 ? Math.round(x) : x.toFixed(1)} ${units[unit]}`;
}

/** @param {number | null | undefined} seconds */
export function duration(seconds) {
    if (seconds === null || seconds === undefined || !Number.isFinite(seconds))
        return '–';
    const s = Math.max(0, seconds);
    if (s < 1)
        return `${Math.round(s * 1000)} ms`;
    if (s < 60)
        return `${s < 10 ? trim(s.toFixed(1)) : Math.round(s)} s`;
    const m = Math.floor(s / 60);
    if (m < 60)
        return `${m} min ${String(Math.floor(s % 60)).padStart(2, '0')} s`;
    const hours = Math.floor(m / 60);
    return hours < 48 ? `${hours} h ${String(m % 60).padStart(2, '0')} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/**
 * "2 min ago"; the exact moment belongs into the title.
 * @param {string | null | undefined} time RFC 3339
 * @param {number} [now] ms
 */
export function ago(time, now = Date.now()) {
    if (!time)
        return '–';
    const s = (now - Date.parse(time)) / 1000;
    if (s < 10)
        return 'just now';
    if (s < 60)
        return `${Math.floor(s)} s ago`;
    if (s < 3600)
        return `${Math.floor(s / 60)} min ago`;
    if (s < 86400)
        return `${Math.floor(s / 3600)} h ago`;
    return s < 86400 * 14 ? `${Math.floor(s / 86400)} d ago` : new Date(time).toLocaleDateString();
}

/** The reasons that polyd stores for commands, as the page shows them. @type {Record<string, string>} */
const reasons = { 'paused with its job': 'Paused by you', paused: 'Paused by you', 'cancelled by a client': 'Cancelled', 'cancelled by request': 'Cancelled', 'not needed': 'Cancelled: not needed' };

/** @param {string | undefined} reason of a run or a job */
export const shownReason = reason => reasons[reason ?? ''] ?? (reason ?? '').replace(/^waiting/, 'Waiting');

/** @param {string | null | undefined} time */
export function moment(time) {
    return time ? new Date(time).toLocaleString() : '–';
}

/**
 * Seconds between two moments; the second defaults to now.
 * @param {string | null | undefined} from
 * @param {string | null | undefined} [to]
 */
export function between(from, to) {
    if (!from)
        return null;
    return ((to ? Date.parse(to) : Date.now()) - Date.parse(from)) / 1000;
}
