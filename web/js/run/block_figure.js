// A network as its job configures it, drawn from the bottom up: where norms stand, what attention does with its logits, which
// branch is added to what, how often a block is repeated. Pure: the parts follow from the resolved document.

/** @typedef {import('../chart/figure.js').Figure} Figure */
/** @typedef {{word: string, kind: 'norm' | 'attention' | 'mlp' | 'other'}} Part */
/** A branch that is added to what went into it, and what follows the sum. @typedef {{branch: Part[], after: Part[]}} Sum */
/** Blocks that are repeated. @typedef {{times: number | null, sums: Sum[]}} Stack */
/** A part, blocks, or `apart`: what follows does not read what stands below it. @typedef {{part: Part} | {stack: Stack} | {apart: true}} Item */

/**
 * @typedef {object} Block
 * @property {Item[]} items from the bottom up
 * @property {string} says
 */

const powers = ['', 'x', 'x²', 'x³', 'x⁴', 'x⁵', 'x⁶', 'x⁷', 'x⁸'];

/** The activation and its scale in words. @param {Record<string, any>} a the document's attention */
export function activationWords(a) {
    const { activation = 'softmax', degree = 3, scale = 'fixed', scale_share: share = 'layer', k, alpha, formula } = a;
    if (activation === 'poly') {
        const power = powers[degree] ?? `x^${degree}`;
        return { none: power, fixed: `${power}/√N`, k: `${power}/${k}`, learned: `c ${power}, c learned ${share === 'global' ? 'once' : `per ${share}`}` }[/** @type {string} */ (scale)] ?? power;
    }
    if (activation === 'formula' && formula)
        return String(formula);
    return { sigmoid: `σ(x)/N^${alpha ?? 0.5}`, sigmoid_bias: 'σ(x − log N)', relu: `ReLU(x)/N^${alpha ?? 1}`, softmax: 'softmax', taylor: 'Taylor softmax', sima: 'l1-normalised linear', periodic: 'periodic softmax' }[/** @type {string} */ (activation)] ?? activation;
}

/** @typedef {Record<string, any>} Document */
/** @typedef {{kind: string, at: string, model: Document, data: Document, attention: Document, norm: Document, part: (word: string, what?: Part['kind']) => Part, pre: Part[], mid: Part[], after: Part[], mlp: Part, norms: (word: string) => Part}} Words */

/** Words of a document that several networks share. @param {Document} document @returns {Words} */
function wordsOf({ model = {}, data = {}, attention = {}, norm = {} }) {
    const at = norm.placement ?? 'S1', kind = norm.kind === 'rms' ? 'RMSNorm' : 'LayerNorm';
    const part = (/** @type {string} */ word, /** @type {Part['kind']} */ what = 'other') => ({ word, kind: what });
    const norms = (/** @type {string} */ word) => part(`${word} (${kind})`, 'norm');
    return { kind, at, model, data, attention, norm, part, norms, pre: at === 'post' ? [] : [norms('PreNorm')], mid: at === 'S4' || at === 'S5' ? [norms('MidNorm')] : [], after: at === 'post' ? [norms('PostNorm')] : [],
        mlp: part(`Feed-forward: ${model.mlp_act === 'relu' ? 'ReLU' : 'GELU'}, ${model.mlp_ratio ?? 4} × width`, 'mlp') };
}

/** The two halves of the transformer's block. @param {Words} w @param {string} word what kind of attention @returns {Sum[]} */
const halves = (w, word) => [
    { branch: [...w.pre, ...w.attention.qk_norm ? [w.part('QKNorm (RMSNorm)', 'norm')] : [], w.part(`${word}: ${activationWords(w.attention)}`, 'attention'), ...w.mid], after: w.after },
    { branch: [...w.at === 'S5' ? [] : w.pre, w.mlp, ...w.mid], after: w.after }];

const parts = (/** @type {Part[]} */ ...list) => list.map(part => ({ part }));
const stack = (/** @type {number | null | undefined} */ times, /** @type {Sum[]} */ sums) => ({ stack: { times: times ?? null, sums } });
const side = (/** @type {any} */ v) => (Array.isArray(v) ? v.join(' × ') : `${v} × ${v}`);

/** Embedding, positions and InputNorm in their order. @param {Words} w @param {Part[]} first @param {boolean} positions */
function entrance(w, first, positions) {
    const placed = positions ? [w.part('Learned positions, added')] : [], input = ['S3', 'S4', 'S5'].includes(w.at) ? [w.norms('InputNorm')] : [];
    return parts(...first, ...w.model.pos_after ? [...input, ...placed] : [...placed, ...input]);
}

const finals = (/** @type {Words} */ w, /** @type {string} */ word = 'Final norm') => (w.norm.final === false ? [] : [w.norms(word)]);
const learned = (/** @type {Words} */ w) => w.model.pos !== 'none';

/** Networks by the word of model.arch. @type {Record<string, (w: Words) => Item[]>} */
const networks = {
    vit: w => [...entrance(w, [w.part(`Patch embedding, ${side(w.model.patch ?? '?')} pixels`), ...w.model.pool === 'cls' ? [w.part('Class token, in front')] : []], learned(w)),
        stack(w.model.depth, halves(w, 'Attention')), ...parts(w.part(w.model.pool === 'cls' ? 'Row of the class token' : 'Mean over patches'), ...finals(w), w.part('Head'))],

    deit: w => [...entrance(w, [w.part(`Patch embedding, ${side(w.model.patch ?? '?')} pixels`), w.part('Class and distillation token, in front')], learned(w)),
        stack(w.model.depth, halves(w, 'Attention')), ...parts(...finals(w), w.part('A head of each of the two tokens'), w.part('Mean of both heads'))],

    gpt: w => [...entrance(w, [w.part('Token embedding')], learned(w)), stack(w.model.depth, halves(w, 'Causal attention')), ...parts(...finals(w), w.part('Head'))],

    /** A stack for each stage; windows of every other block are shifted, unless one covers the grid. */
    swin: w => {
        const { depths = [], widths = [], head_counts: heads = [], window = 7, patch } = w.model, pair = (/** @type {any} */ v) => (Array.isArray(v) ? v : [v, v]).map(Number);
        const [rows, columns] = pair(w.data.image_size).map((size, i) => size / pair(patch)[i]);
        const words = (/** @type {number} */ i) => {
            const grid = Math.min(rows, columns) / 2 ** i, small = grid <= window; // not known: as configured
            return `Attention of ${heads[i]} head${heads[i] === 1 ? '' : 's'} in ${side(small ? grid : window)} windows${!small && depths[i] > 1 ? ', every other one shifted' : ''}, position bias`;
        };
        return [...entrance(w, [w.part(`Patch embedding, ${side(patch ?? '?')} pixels`), w.norms('Norm of patches')], false),
            ...depths.flatMap((/** @type {number} */ depth, /** @type {number} */ i) => [
                ...i ? parts(w.norms('Norm of 2 × 2 patches'), w.part(`Merging of patches, ${4 * widths[i - 1]} → ${widths[i]}`)) : [], stack(depth, halves(w, words(i)))]),
            ...parts(...finals(w), w.part('Mean over patches'), w.part('Head'))];
    },

    xcit: w => {
        const scaled = w.model.layerscale === null || w.model.layerscale === undefined ? [] : [w.part('LayerScale', 'norm')];
        const own = w.attention.class_attention === 'softmax' ? 'softmax' : activationWords(w.attention);
        const steps = Math.log2(Array.isArray(w.model.patch) ? w.model.patch[0] : w.model.patch ?? 16);
        return [...parts(w.part(`${steps} convolutions 3 × 3, stride 2, BatchNorm`), ...w.model.pos === 'fourier' ? [w.part('Fourier positions, added')] : []),
            stack(w.model.depth, [
                { branch: [...w.pre, w.part('Rows of Q and K divided by their norms', 'norm'), w.part(`Attention between channels: ${activationWords(w.attention)}`, 'attention'), ...scaled], after: [] },
                { branch: [...w.pre, w.part('Local patch interaction: 3 × 3 by channel, GELU, BatchNorm, 3 × 3', 'mlp'), ...scaled], after: [] },
                { branch: [...w.pre, w.mlp, ...scaled], after: [] }]),
            ...parts(w.part('Class token, in front')),
            stack(2, [{ branch: [...w.pre, w.part(`Class attention: ${own}`, 'attention'), ...scaled], after: [w.norms('Norm of the sum')] }, { branch: [w.part(`${w.mlp.word}, of the class token`, 'mlp'), ...scaled], after: [] }]),
            ...parts(...finals(w), w.part('Row of the class token'), w.part('Head'))];
    },

    nystrom: w => {
        const { context, landmarks, conv_kernel: kernel, pool } = w.model, exact = context !== null && context <= landmarks;
        return [...parts(w.part('Token embedding'), ...pool === 'cls' ? [w.part('Class token, in front')] : [], ...learned(w) ? [w.part('Learned positions, added')] : []),
            stack(w.model.depth, [
                { branch: [...w.pre, w.part(exact ? `Attention: ${activationWords(w.attention)}` : `Attention by ${landmarks} landmarks: ${activationWords(w.attention)}`, 'attention'), w.part(`plus V convolved over ${kernel} tokens`, 'attention')], after: [] },
                { branch: [...w.pre, w.mlp], after: [] }]),
            ...parts(...finals(w), w.part(pool === 'cls' ? 'Row of the class token' : 'Mean over tokens'), w.part('Head: linear, ReLU, linear'))];
    },

    /** Encoder and decoder; both begin with the embedded points. */
    pinnsformer: w => {
        const { depth, head_width: wide } = w.model, wave = w.part('Wave: w₁ sin x + w₂ cos x', 'mlp'), feed = w.part(`Feed-forward: 3 layers with waves, ${w.model.mlp_ratio ?? 8} × width`, 'mlp');
        const block = (/** @type {string} */ word) => [{ branch: [wave, w.part(`${word}: ${activationWords(w.attention)}`, 'attention')], after: [] }, { branch: [wave, feed], after: [] }];
        return [...parts(w.part('Points of x and t, embedded')), stack(depth, block('Attention')), ...parts(wave, w.part('Output of the encoder')),
            { apart: true }, ...parts(w.part('The same embedded points')), stack(depth, block('Attention to the encoder’s output')), ...parts(wave, w.part(`u: 3 layers with waves, ${wide ?? 512} wide`))];
    },
};

/** Whether a network can be drawn. @param {string | undefined} arch */
export const drawable = arch => arch !== undefined && arch in networks;

/**
 * @param {Document} document resolved
 * @returns {Block}
 */
export function blockOf(document) {
    const w = wordsOf(document), items = networks[document.model?.arch ?? 'vit'](w), line = (/** @type {Part[]} */ list) => list.map(p => p.word).join(', ');
    const said = items.map(item => ('part' in item ? item.part.word : 'apart' in item ? 'apart from these' : `${item.stack.times ?? 'all'} block${item.stack.times === 1 ? '' : 's'} (${item.stack.sums.map(({ branch, after }) => `${line(branch)}, added to what came in${after.length ? `, ${line(after)}` : ''}`).join('; ')})`));
    return { items, says: `${items.some(item => 'stack' in item && item.stack.sums.some(({ branch, after }) => [...branch, ...after].some(p => p.kind === 'norm'))) ? `Placement ${w.at}, from` : 'From'} the input on: ${said.join('; ')}.` };
}

const ROW = 30, LINE = 14, GAP = 16, WIDE = 224, RING = 18, LETTERS = 36;

/** A word of a box in lines that fit into it. @param {string} word */
export function linesOf(word) {
    /** @type {string[]} */
    const lines = [];
    for (const one of word.replaceAll(' × ', '\u00a0×\u00a0').split(' ')) { // a product is not divided
        const last = lines[lines.length - 1];
        if (last !== undefined && `${last} ${one}`.length <= LETTERS)
            lines[lines.length - 1] = `${last} ${one}`;
        else
            lines.push(one.length > LETTERS ? `${one.slice(0, LETTERS - 1)}…` : one);
    }
    return lines;
}

const tall = (/** @type {Part} */ p) => ROW + LINE * (linesOf(p.word).length - 1);
const sumOf = (/** @type {number[]} */ list) => list.reduce((a, b) => a + b, 0);

/** What an item takes, with the gap below it. @param {Item} item */
const heightOf = item => ('apart' in item ? GAP : 'part' in item ? GAP + tall(item.part) : sumOf(item.stack.sums.map(({ branch, after }) => sumOf([...branch, ...after].map(p => GAP + tall(p))) + GAP + RING)));

/**
 * @param {Document} document
 * @param {{title: string, width: number, inks: {norm: string, attention: string, mlp: string, other: string}}} how
 * @returns {Figure}
 */
export function blockFigure(document, { title, width, inks }) {
    const { items } = blockOf(document);
    const height = sumOf(items.map(heightOf)) - GAP + 24;
    let number = 0;
    return {
        title, width, height, x: { title: '', low: 0, high: 1, ticks: [] }, y: { title: '', low: 0, high: 1, ticks: [] }, lines: [],
        rows: [['place', 'part', 'times'], ...items.flatMap(item => {
            if ('apart' in item)
                return [];
            if ('part' in item)
                return [['network', item.part.word, '1']];
            number++;
            const times = String(item.stack.times ?? '');
            return item.stack.sums.flatMap(({ branch, after }, i) => [...branch.map(p => [`blocks ${number}, branch ${i + 1}`, p.word, times]), [`blocks ${number}, branch ${i + 1}`, 'sum', times], ...after.map(p => [`blocks ${number}, behind sum ${i + 1}`, p.word, times])]);
        })],
        drawing: (painter, ink, top) => {
            const middle = width / 2 - 4, left = middle - WIDE / 2, right = middle + WIDE / 2;
            let y = top + height - 12;
            const arrow = (/** @type {number} */ from, /** @type {number} */ to) => {
                painter.path([[middle, from], [middle, to]], { stroke: ink.text, width: 1.4 });
                painter.path([[middle - 4, to + 6], [middle, to], [middle + 4, to + 6]], { stroke: ink.text, width: 1.4 });
            };
            const up = () => {
                arrow(y, y - GAP);
                y -= GAP;
            };
            const box = (/** @type {Part} */ p) => {
                const high = tall(p), lines = linesOf(p.word);
                painter.path([[left, y], [left, y - high], [right, y - high], [right, y]], { fill: inks[p.kind], alpha: .22 }, true);
                painter.path([[left, y], [left, y - high], [right, y - high], [right, y]], { stroke: inks[p.kind], width: 1.4 }, true);
                lines.forEach((line, i) => painter.text(middle, y - high / 2 + 4 + LINE * (i - (lines.length - 1) / 2), line, { size: 12, ink: ink.text, anchor: 'middle' }));
                y -= high;
            };
            /** A branch, and the way around it to the sum. @param {Sum} sum */
            const sum = ({ branch, after }) => {
                const split = y - GAP / 2;
                for (const p of branch) {
                    up();
                    box(p);
                }
                up();
                const centre = y - RING / 2;
                painter.path(Array.from({ length: 24 }, (_, i) => /** @type {[number, number]} */ ([middle + 9 * Math.cos(i * Math.PI / 12), centre + 9 * Math.sin(i * Math.PI / 12)])), { stroke: ink.text, width: 1.4 }, true);
                painter.path([[middle - 4, centre], [middle + 4, centre]], { stroke: ink.text, width: 1.4 });
                painter.path([[middle, centre - 4], [middle, centre + 4]], { stroke: ink.text, width: 1.4 });
                painter.path([[middle, split], [left - 14, split], [left - 14, centre], [middle - 9, centre]], { stroke: ink.muted, width: 1.4 });
                y = centre - RING / 2;
                for (const p of after) {
                    up();
                    box(p);
                }
            };
            let joined = false; // whether the item reads what stands below it
            for (const item of items) {
                if ('apart' in item) {
                    y -= GAP;
                    joined = false;
                    continue;
                }
                if ('part' in item) {
                    if (joined)
                        up();
                    box(item.part);
                } else {
                    const foot = y - GAP / 2 + 3;
                    item.stack.sums.forEach(sum);
                    painter.path([[left - 24, foot], [left - 24, y - 4], [right + 10, y - 4], [right + 10, foot]], { stroke: ink.muted, width: 1, dash: [4, 4] }, true);
                    if (item.stack.times)
                        painter.text(right + 14, (foot + y) / 2, `× ${item.stack.times}`, { size: 13, ink: ink.text, bold: true });
                }
                joined = true;
            }
        },
    };
}
