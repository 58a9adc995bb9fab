// A block as its job configures it, drawn from the bottom up: where norms stand, what attention does with its logits, which
// branch is added to what. Pure: the parts follow from the resolved document.

/** @typedef {import('../chart/figure.js').Figure} Figure */
/** @typedef {{word: string, kind: 'norm' | 'attention' | 'mlp' | 'other'}} Part */

/**
 * @typedef {object} Block
 * @property {Part[]} before what comes once, before all blocks
 * @property {{branch: Part[], after: Part[]}[]} halves the two halves of a block: a branch that is added to what went into it, and what
 *     follows the sum
 * @property {Part[]} behind what comes once, behind all blocks
 * @property {number | null} depth
 * @property {string} says
 */

const powers = ['', 'x', 'x²', 'x³', 'x⁴', 'x⁵', 'x⁶', 'x⁷', 'x⁸'];

/** The activation and its scale in words. @param {Record<string, any>} a the document's attention */
export function activationWords(a) {
    const { activation = 'softmax', degree = 3, scale = 'fixed', scale_share: share = 'layer', k, alpha } = a;
    if (activation === 'poly') {
        const power = powers[degree] ?? `x^${degree}`;
        return { none: power, fixed: `${power}/√N`, k: `${power}/${k}`, learned: `c ${power}, c learned ${share === 'global' ? 'once' : `per ${share}`}` }[/** @type {string} */ (scale)] ?? power;
    }
    return { sigmoid: `σ(x)/N^${alpha ?? 0.5}`, sigmoid_bias: 'σ(x − log N)', relu: `ReLU(x)/N^${alpha ?? 1}`, softmax: 'softmax', taylor: 'Taylor softmax', sima: 'l1-normalised linear', periodic: 'periodic softmax' }[/** @type {string} */ (activation)] ?? activation;
}

/**
 * @param {Record<string, any>} document resolved
 * @returns {Block}
 */
export function blockOf({ model = {}, attention = {}, norm = {} }) {
    const at = norm.placement ?? 'S1', kind = norm.kind === 'rms' ? 'RMSNorm' : 'LayerNorm', deep = ['S3', 'S4', 'S5'].includes(at), mid = at === 'S4' || at === 'S5';
    /** @returns {Part} */
    const part = (/** @type {string} */ word, /** @type {Part['kind']} */ what) => ({ word, kind: what });
    const pre = (/** @type {boolean} */ has) => (has ? [part(`PreNorm (${kind})`, 'norm')] : []);
    const after = at === 'post' ? [part(`PostNorm (${kind})`, 'norm')] : [];
    const attend = [...attention.qk_norm ? [part('QKNorm (RMSNorm)', 'norm')] : [], part(`${model.arch === 'gpt' ? 'Causal attention' : 'Attention'}: ${activationWords(attention)}`, 'attention')];
    const mlp = part(`Feed-forward: ${model.mlp_act === 'relu' ? 'ReLU' : 'GELU'}, ${model.mlp_ratio ?? 4} × width`, 'mlp');
    const midNorm = mid ? [part(`MidNorm (${kind})`, 'norm')] : [];
    const halves = [{ branch: [...pre(at !== 'post'), ...attend, ...midNorm], after }, { branch: [...pre(at !== 'post' && at !== 'S5'), mlp, ...midNorm], after }];
    const before = [part(model.arch === 'gpt' ? 'Token embedding' : model.arch ? 'Patch embedding' : 'Embedding', 'other'), ...deep ? [part(`InputNorm (${kind})`, 'norm')] : []];
    const behind = [...norm.final === false ? [] : [part(`Final norm (${kind})`, 'norm')], part('Head', 'other')];
    const line = (/** @type {Part[]} */ parts) => parts.map(p => p.word).join(', ');
    return {
        before, halves, behind, depth: model.depth ?? null,
        says: `Placement ${at}. ${line(before)}; then ${model.depth ?? 'all'} blocks: ${halves.map(({ branch, after: more }) => `${line(branch)}, added to what came in${more.length ? `, ${line(more)}` : ''}`).join('; ')}; then ${line(behind)}.`,
    };
}

const ROW = 30, GAP = 16, WIDE = 230, SUM = 18;

/**
 * @param {Record<string, any>} document
 * @param {{title: string, width: number, inks: {norm: string, attention: string, mlp: string, other: string}}} how
 * @returns {Figure}
 */
export function blockFigure(document, { title, width, inks }) {
    const block = blockOf(document);
    const boxes = block.before.length + block.behind.length + block.halves.reduce((n, { branch, after }) => n + branch.length + after.length, 0);
    const height = boxes * (ROW + GAP) - GAP + block.halves.length * (GAP + SUM) + 24;
    return {
        title, width, height, x: { title: '', low: 0, high: 1, ticks: [] }, y: { title: '', low: 0, high: 1, ticks: [] }, lines: [],
        rows: [['place', 'part'], ...[...block.before.map(p => ['before', p.word]), ...block.halves.flatMap(({ branch, after }, i) => [...branch.map(p => [`branch ${i + 1}`, p.word]), [`branch ${i + 1}`, 'sum'], ...after.map(p => [`behind sum ${i + 1}`, p.word])]), ...block.behind.map(p => ['behind', p.word])]],
        drawing: (painter, ink, top) => {
            const middle = width / 2, left = middle - WIDE / 2, right = middle + WIDE / 2;
            let y = top + height - 12;
            const arrow = (/** @type {number} */ from, /** @type {number} */ to) => {
                painter.path([[middle, from], [middle, to]], { stroke: ink.text, width: 1.4 });
                painter.path([[middle - 4, to + 6], [middle, to], [middle + 4, to + 6]], { stroke: ink.text, width: 1.4 });
            };
            const box = (/** @type {Part} */ p) => {
                painter.path([[left, y], [left, y - ROW], [right, y - ROW], [right, y]], { fill: inks[p.kind], alpha: .22 }, true);
                painter.path([[left, y], [left, y - ROW], [right, y - ROW], [right, y]], { stroke: inks[p.kind], width: 1.4 }, true);
                painter.text(middle, y - ROW / 2 + 4, p.word, { size: 12, ink: ink.text, anchor: 'middle' });
                y -= ROW;
            };
            const up = () => {
                arrow(y, y - GAP);
                y -= GAP;
            };
            block.before.forEach((p, i) => {
                if (i)
                    up();
                box(p);
            });
            const foot = y - GAP / 2;
            for (const { branch, after } of block.halves) {
                const split = y - GAP / 2;
                for (const p of branch) {
                    up();
                    box(p);
                }
                arrow(y, y - GAP);
                y -= GAP;
                const centre = y - 9;
                painter.path(Array.from({ length: 24 }, (_, i) => /** @type {[number, number]} */ ([middle + 9 * Math.cos(i * Math.PI / 12), centre + 9 * Math.sin(i * Math.PI / 12)])), { stroke: ink.text, width: 1.4 }, true);
                painter.path([[middle - 4, centre], [middle + 4, centre]], { stroke: ink.text, width: 1.4 });
                painter.path([[middle, centre - 4], [middle, centre + 4]], { stroke: ink.text, width: 1.4 });
                painter.path([[middle, split], [left - 22, split], [left - 22, centre], [middle - 9, centre]], { stroke: ink.muted, width: 1.4 });
                y = centre - 9;
                for (const p of after) {
                    up();
                    box(p);
                }
            }
            painter.path([[left - 34, foot], [left - 34, y - 4], [right + 14, y - 4], [right + 14, foot]], { stroke: ink.muted, width: 1, dash: [4, 4] }, true);
            if (block.depth)
                painter.text(right + 20, (foot + y) / 2, `× ${block.depth}`, { size: 14, ink: ink.text, bold: true });
            for (const p of block.behind) {
                up();
                box(p);
            }
        },
    };
}
