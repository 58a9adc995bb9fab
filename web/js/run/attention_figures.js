// The pictures of attention as figures: matrices, displacement, the activation over its logits, norms of layers by step. Pure
// functions of stored numbers; what they say in a sentence is computed of the same numbers.
import { scaleOf, sequential, diverging } from '../chart/colours.js';
import { fittingTicks, linearTicks, logTicks, tickMarks } from '../chart/ticks.js';
import { number } from '../format.js';

/** @typedef {import('../chart/figure.js').Figure} Figure */
/** @typedef {'light' | 'dark'} Theme */

/**
 * @typedef {object} Matrix
 * @property {number} rows
 * @property {number} columns
 * @property {ArrayLike<number>} values row by row
 */

const word = (/** @type {number} */ v) => (v === 0 ? '0' : Math.abs(v) >= 1e4 || Math.abs(v) < 1e-3 ? v.toExponential(1).replace('e+', 'e').replace('-', '−') : String(Number(v.toPrecision(3))).replace('-', '−'));

/**
 * Without the tokens that are no patch.
 * @param {Matrix} m
 * @param {number} lead
 * @returns {Matrix}
 */
export function withoutLead(m, lead) {
    if (!lead)
        return m;
    const rows = m.rows - lead, columns = m.columns - lead, values = new Float32Array(rows * columns);
    for (let i = 0; i < rows; i++)
        for (let j = 0; j < columns; j++)
            values[i * columns + j] = m.values[(i + lead) * m.columns + j + lead];
    return { rows, columns, values };
}

/**
 * Of the numbers that are finite: least, largest, share below 0, and where the largest by size stands. `without`: how many are not.
 * @param {Matrix} m
 */
export function summary(m) {
    let low = Infinity, high = -Infinity, below = 0, at = -1, without = 0;
    for (let i = 0; i < m.values.length; i++) {
        const v = m.values[i];
        if (!Number.isFinite(v)) {
            without++;
            continue;
        }
        low = Math.min(low, v);
        high = Math.max(high, v);
        below += v < 0 ? 1 : 0;
        if (at < 0 || Math.abs(v) > Math.abs(m.values[at]))
            at = i;
    }
    return { low, high, below: below / (m.values.length - without || 1), row: Math.floor(at / m.columns), column: at % m.columns, without };
}

/** What a matrix is between, of its meta: of tokens it says where they lie. @typedef {{grid?: [number, number], lead?: number, between?: 'class' | 'channels' | 'landmarks'}} Between */

/** Titles of the axes. @type {Record<string, [string, string]>} */
const axisTitles = { class: ['query', 'key'], channels: ['channel of Q', 'channel of K'], landmarks: ['landmark of queries', 'landmark of keys'] };

/**
 * A row or a column in words: of pictures the row and column of the patch.
 * @param {number} i
 * @param {Between} meta
 * @param {boolean} [bare] whether tokens that are no patch are left out
 * @param {boolean} [query] a row of the matrix
 */
export function tokenName(i, { grid, lead = 0, between }, bare = false, query = false) {
    const patch = bare ? i : i - lead;
    if (between === 'class' && query)
        return 'class token';
    if (between === 'channels' || between === 'landmarks')
        return `${between.slice(0, -1)} ${i + 1}`;
    if (!grid)
        return String(i + 1);
    return patch < 0 ? 'class token' : `patch ${patch + 1} (row ${Math.floor(patch / grid[1]) + 1}, column ${patch % grid[1] + 1})`;
}

/** Marks of an axis of tokens. @param {number} n @param {number} width in pixels */
const tokenTicks = (n, width) => linearTicks(0, n, Math.max(2, Math.min(n < 20 ? n : 6, Math.floor(width / 20)))).filter(v => v < n && Number.isInteger(v)).map(v => ({ at: v + .5, word: String(v + 1) }));

/**
 * @param {ReturnType<typeof scaleOf>} scale
 * @param {Theme} theme
 * @param {string} title
 */
const keyOf = (scale, theme, title) => ({ title, low: scale.low, high: scale.high, colour: (/** @type {number} */ v) => scale.colour(v, theme),
    ticks: tickMarks(linearTicks(scale.low, scale.high, 5), word), without: scale.without(theme) });

/** Rows of a CSV for a matrix: one a cell. @param {Matrix} m @param {[string, string, string]} names @param {[number, number]} [from] */
const cellRows = (m, names, from = [1, 1]) => [names, ...Array.from({ length: m.rows * m.columns }, (_, i) => [String(Math.floor(i / m.columns) + from[0]), String(i % m.columns + from[1]), String(m.values[i])])];

/**
 * A heat map of attention, queries down and keys across: diverging around 0 where weights have both signs.
 * @param {Matrix} m
 * @param {{title: string, width: number, theme: Theme, range?: {low?: number, high?: number}, between?: string}} how
 * @returns {Figure}
 */
export function mapFigure(m, { title, width, theme, range, between }) {
    const scale = scaleOf(m.values, range);
    const plot = width - 62 - 84, [query, key] = axisTitles[between ?? 'class'];
    return {
        title, width, height: Math.max(30, Math.round(plot * m.rows / m.columns)) + 50,
        x: { title: key, low: 0, high: m.columns, ticks: tokenTicks(m.columns, plot) },
        y: { title: query, low: m.rows, high: 0, ticks: tokenTicks(m.rows, plot * m.rows / m.columns) },
        lines: [], cells: { rows: m.rows, columns: m.columns, colour: (row, column) => scale.colour(m.values[row * m.columns + column], theme) },
        key: keyOf(scale, theme, ''), rows: cellRows(m, ['query', 'key', 'weight']),
    };
}

/**
 * @param {Matrix} m
 * @param {string} what "Mean attention matrix of layer 2, head 1 at step 500"
 * @param {Between} meta
 * @param {boolean} bare
 */
export function mapSays(m, what, meta, bare) {
    const s = summary(m);
    const of = meta.between === 'channels' ? ['channels of Q', 'channels of K'] : meta.between === 'landmarks' ? ['landmarks', 'landmarks'] : [m.rows === 1 ? 'query' : 'queries', 'keys'];
    const size = `${what}: ${m.rows} ${of[0]} by ${m.columns} ${of[1]}`;
    if (s.without === m.values.length)
        return `${size}; no weight is finite.`;
    return `${size}, from ${word(s.low)} to ${word(s.high)}${s.below > 0 ? `, ${Math.round(s.below * 100)} % below 0` : ''}; the largest by size at query ${tokenName(s.row, meta, bare, true)}, key ${tokenName(s.column, meta, bare)}${s.without ? `; ${s.without} of ${m.values.length} weights not finite` : ''}.`;
}

/**
 * Mean |A| by where the key lies: of pictures a map of row and column displacement, of texts a line.
 * @param {Matrix} m
 * @param {[number, number]} from the first displacement of rows and columns
 * @param {{title: string, width: number, theme: Theme, ink: string, causal?: boolean}} how
 * @returns {Figure}
 */
export function displacementFigure(m, from, { title, width, theme, ink, causal }) {
    if (m.rows > 1) {
        const scale = scaleOf(m.values);
        const marks = (/** @type {number} */ n, /** @type {number} */ first) => linearTicks(first, first + n - 1, 6).filter(Number.isInteger).map(v => ({ at: v - first + .5, word: word(v) }));
        return {
            title, width, height: Math.round((width - 146) * m.rows / m.columns) + 50,
            x: { title: 'columns to the right', low: 0, high: m.columns, ticks: marks(m.columns, from[1]) },
            y: { title: 'rows down', low: m.rows, high: 0, ticks: marks(m.rows, from[0]) },
            lines: [], cells: { rows: m.rows, columns: m.columns, colour: (row, column) => scale.colour(m.values[row * m.columns + column], theme) },
            key: keyOf(scale, theme, ''), rows: cellRows(m, ['rows down', 'columns right', 'mean |A|'], from),
        };
    }
    const points = Array.from({ length: m.columns }, (_, i) => /** @type {[number, number]} */ ([from[1] + i, m.values[i]])).filter(([at]) => !causal || at <= 0);
    const high = Math.max(...points.map(([, v]) => v).filter(Number.isFinite), 1e-30);
    return {
        title, width, height: 240,
        x: { title: 'place of the key less that of the query', low: points[0][0], high: Math.max(points[points.length - 1][0], points[0][0] + 1), ticks: fittingTicks(points[0][0], points[points.length - 1][0], 6, width - 82, word) },
        y: { title: 'mean |A|', low: 0, high: high * 1.05, ticks: tickMarks(linearTicks(0, high, 4), word) },
        lines: [{ name: '', ink, dash: [], width: 2, points }], rows: [['displacement', 'mean |A|'], ...points.map(([at, v]) => [String(at), String(v)])],
    };
}

/**
 * What the displacement says: the place where most weight lies, and how a row or a column of patches compares with the mean.
 * @param {Matrix} m
 * @param {[number, number]} from
 */
export function displacementSays(m, from) {
    const s = summary(m), down = s.row + from[0], right = s.column + from[1];
    if (s.without === m.values.length)
        return 'No mean weight is finite.';
    if (m.rows === 1)
        return `Most weight lies on keys ${right === 0 ? 'at the query’s own place' : `${Math.abs(right)} ${right < 0 ? 'before' : 'after'} the query`}: ${word(m.values[s.column])} on average.`;
    const mean = (/** @type {(row: number, column: number) => boolean} */ takes) => {
        let sum = 0, n = 0;
        for (let i = 0; i < m.values.length; i++)
            if (Number.isFinite(m.values[i]) && takes(Math.floor(i / m.columns) + from[0], i % m.columns + from[1])) {
                sum += m.values[i];
                n++;
            }
        return n ? sum / n : 0;
    };
    const all = mean(() => true) || 1;
    return `Most weight lies ${down === 0 && right === 0 ? 'on the query’s own patch' : `${Math.abs(down)} rows ${down < 0 ? 'up' : 'down'} and ${Math.abs(right)} columns ${right < 0 ? 'left' : 'right'} of the query`}. `
        + `Keys in the query’s row of patches have ${word(mean(row => row === 0) / all)} times the mean over displacements, those in its column ${word(mean((_, column) => column === 0) / all)} times.`;
}

/** The activations as a page knows them: x to phi(x) without the scale. @type {Record<string, {formula: (c: number, p: number) => string, of: (x: number, p: number) => number} | undefined>} */
export const activations = {
    softmax: { formula: () => 'eˣ (each row over its sum)', of: x => Math.exp(x) },
    poly: { formula: (c, p) => `${word(c)} · x${p === 1 ? '' : ['', '', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸'][p] ?? `^${p}`}`, of: (x, p) => x ** p },
    sigmoid: { formula: c => `${word(c)} · σ(x)`, of: x => 1 / (1 + Math.exp(-x)) },
    sigmoid_bias: { formula: c => `${word(c)} · σ(x)`, of: x => 1 / (1 + Math.exp(-x)) },
    relu: { formula: c => `${word(c)} · max(x, 0)`, of: x => Math.max(0, x) },
    taylor: { formula: () => '1 + x + x²/2 (each row over its sum)', of: x => 1 + x + x * x / 2 },
    periodic: { formula: () => '(1 + sin 2x)/2 (each row over its sum)', of: x => (1 + Math.sin(2 * x)) / 2 },
    sima: { formula: () => 'x', of: x => x },
};

/**
 * Between the samples of a formula, by straight lines; NaN where it has no value.
 * @param {{s: number[], value: (number | null)[]}} samples
 * @param {number} x
 */
export function between({ s, value }, x) {
    const at = Math.min(s.length - 2, Math.max(0, (x - s[0]) / (s[s.length - 1] - s[0]) * (s.length - 1))), i = Math.floor(at), [a, b] = [value[i], value[i + 1]];
    return a === null || b === null ? NaN : a + (at - i) * (b - a);
}

/**
 * The activation over the logits that were measured.
 * @param {{counts: ArrayLike<number>, low: number, high: number}} histogram
 * @param {{activation: string, degree: number, scale: number, title: string, width: number, ink: string, bar: string, formula?: {name: string, samples: {s: number[], value: (number | null)[]}} | null}} how
 *     `formula`: in place of a built-in activation
 * @returns {Figure}
 */
export function phiFigure({ counts, low, high }, { activation, degree, scale, title, width, ink, bar, formula }) {
    // Without samples of a formula, whose entries may depend on their whole row, there is no line.
    const phi = formula ? { formula: () => formula.name, of: (/** @type {number} */ x) => between(formula.samples, x) } : activations[activation], n = counts.length, edge = (/** @type {number} */ i) => low + (high - low) * i / n;
    const total = Array.from(counts).reduce((a, b) => a + b, 0) || 1, most = Math.max(...Array.from(counts)) / total || 1;
    const points = !phi ? [] : Array.from({ length: 201 }, (_, i) => {
        const x = low + (high - low) * i / 200, v = scale * phi.of(x, degree);
        return /** @type {[number, number | null]} */ ([x, Number.isFinite(v) ? v : null]);
    });
    const known = points.map(([, v]) => v).filter(v => v !== null);
    const least = Math.min(0, ...known), top = Math.max(...known, least + 1e-30);
    const span = top - least;
    return {
        title, width, height: 260,
        x: { title: 'logit x', low, high: high > low ? high : low + 1, ticks: fittingTicks(low, high, 7, width - 82, word) },
        y: phi ? { title: 'φ(x)', low: least - span * .04, high: top + span * .06, ticks: tickMarks(linearTicks(least, top, 5), word) } : { title: '', low: 0, high: 1, ticks: [] },
        bars: Array.from(counts, (count, i) => ({ from: edge(i), to: edge(i + 1), share: .9 * count / total / most, ink: bar, alpha: .45 })),
        lines: phi ? [{ name: `φ(x) = ${phi.formula(scale, degree)}`, ink, dash: [], width: 2.2, points }] : [],
        rows: [['from', 'to', 'share of logits', ...phi ? ['φ at the middle'] : []], ...Array.from(counts, (count, i) => [edge(i), edge(i + 1), count / total, ...phi ? [scale * phi.of((edge(i) + edge(i + 1)) / 2, degree)] : []].map(String))],
    };
}

/**
 * @param {{counts: ArrayLike<number>, low: number, high: number}} histogram
 * @param {boolean} line whether the activation is drawn
 */
export function phiSays({ counts, low, high }, line) {
    const n = counts.length, list = Array.from(counts), total = list.reduce((a, b) => a + b, 0) || 1;
    const middle = list.map((_, i) => low + (high - low) * (i + .5) / n);
    const mean = list.reduce((sum, count, i) => sum + count * middle[i], 0) / total;
    const sd = Math.sqrt(list.reduce((sum, count, i) => sum + count * (middle[i] - mean) ** 2, 0) / total);
    const near = list.reduce((sum, count, i) => sum + (Math.abs(middle[i]) < .5 ? count : 0), 0) / total;
    return `${number(total)} visible logits from ${word(low)} to ${word(high)}, mean ${word(mean)}, spread ${word(sd)}; ${Math.round(near * 100)} % lie within half of 0. Bars show how often a logit occurs${line ? ', the line what it becomes' : '; what it becomes depends on its row, by the formula of the configuration'}.`;
}

/**
 * A norm by layer and step, as a strip: blue below a bound, orange above it, on a logarithmic scale; without a bound one colour
 * from least to largest.
 * @param {{layer: number, points: [number, number][]}[]} layers points: step, value
 * @param {{title: string, width: number, theme: Theme, bound?: number, boundName?: string}} how
 * @returns {Figure & {strip: {steps: number[], values: (number | null)[][]}}}
 */
export function stripFigure(layers, { title, width, theme, bound, boundName = '' }) {
    const most = Math.max(1, Math.floor((width - 146) / 3));
    const every = [...new Set(layers.flatMap(({ points }) => points.map(([step]) => step)))].sort((a, b) => a - b);
    const steps = every.length <= most ? every : Array.from({ length: most }, (_, i) => every[Math.round(i * (every.length - 1) / (most - 1))]);
    const values = layers.map(({ points }) => {
        const known = new Map(points);
        return steps.map(step => known.get(step) ?? null);
    });
    const positive = values.flat().filter(v => v !== null && v > 0 && Number.isFinite(v)).map(Number);
    let low = Math.min(...positive, bound ?? Infinity), high = Math.max(...positive, bound ?? 0);
    if (!(low < high))
        [low, high] = [(low || 1) * .9, (low || 1) * 1.1];
    const reach = bound ? Math.max(Math.log(bound / low), Math.log(high / bound), 1e-9) : 1;
    const colour = (/** @type {number} */ v) => (bound ? diverging(Math.log(v / bound) / reach, theme) : sequential(Math.log(v / low) / Math.log(high / low), theme));
    const row = Math.max(14, 66 / layers.length, Math.min(26, 240 / layers.length)); // the key has room for some marks
    const marks = linearTicks(0, steps.length - 1, Math.max(2, Math.floor(width / 120))).filter(Number.isInteger);
    return {
        title, width, height: Math.round(row * layers.length) + 50,
        x: { title: 'step', low: 0, high: Math.max(1, steps.length), ticks: marks.map(i => ({ at: i + .5, word: String(steps[i]) })) },
        y: { title: 'layer', low: layers.length, high: 0, ticks: layers.map(({ layer }, i) => ({ at: i + .5, word: String(layer) })).filter((_, i) => row >= 14 || i % 2 === 0) },
        lines: [], cells: { rows: layers.length, columns: steps.length, colour: (r, c) => {
            const v = values[r][c];
            return v === null || !(v > 0) || !Number.isFinite(v) ? null : colour(v);
        } },
        key: { title: boundName, low, high, log: true, colour, ticks: tickMarks(logTicks(low, high, Math.max(2, Math.min(5, Math.floor(row * layers.length / 24)))), word), rule: bound },
        rows: [['step', ...layers.map(({ layer }) => `layer ${layer}`)], ...every.map(step => [String(step), ...layers.map(({ points }) => String(new Map(points).get(step) ?? ''))])],
        strip: { steps, values },
    };
}

/**
 * @param {string} what
 * @param {{layer: number, points: [number, number][]}[]} layers
 * @param {number} [bound]
 * @param {string} [boundName]
 */
export function stripSays(what, layers, bound, boundName) {
    const last = layers.filter(({ points }) => points.length).map(({ layer, points }) => ({ layer, value: points[points.length - 1][1], step: points[points.length - 1][0] }));
    if (last.length === 0)
        return `${what}: no values yet.`;
    const least = last.reduce((a, b) => (b.value < a.value ? b : a)), most = last.reduce((a, b) => (b.value > a.value ? b : a));
    const over = bound === undefined ? [] : layers.filter(({ points }) => points.some(([, v]) => v > bound));
    return `${what} at step ${last[0].step}: ${last.length === 1 ? `${word(least.value)} (layer ${least.layer})` : `from ${word(least.value)} (layer ${least.layer}) to ${word(most.value)} (layer ${most.layer})`}.`
        + (bound === undefined ? '' : over.length === 0 ? ` No layer was ever above ${boundName} = ${word(bound)}.` : ` Above ${boundName} = ${word(bound)} at some step: layer ${over.map(({ layer }) => layer).join(', ')}.`);
}
