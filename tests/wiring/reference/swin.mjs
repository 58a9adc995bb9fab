// Swin, forward, one scalar at a time: written from its paper (Liu et al. 2021, sections 3.1 and 3.2) and, for what a power
// does to the bias and to masked pairs, from the documents of the job's fields. Tokens are addressed one by one: no grid is
// rolled and no mask is made.
import { Network } from './network.mjs';

/** Stage, place in it, grid and window of every block. */
export function blocksOf(s) {
    const list = [];
    s.depths.forEach((count, stage) => {
        const rows = s.height / s.patch[0] / 2 ** stage, columns = s.imageWidth / s.patch[1] / 2 ** stage;
        const whole = Math.min(rows, columns) <= s.window, side = whole ? Math.min(rows, columns) : s.window;
        for (let j = 0; j < count; j++) {
            const n = { window: side * side, patches: rows * columns }[s.nRule] ?? s.n;
            list.push({ stage, number: j, rows, columns, side, shift: whole || j % 2 === 0 ? 0 : Math.floor(side / 2),
                width: s.widths[stage], heads: s.headCounts[stage], n,
                c: s.known ? s.known.constant * n ** -s.known.alpha : s.scale === 'fixed' || s.scale === 'learned' ? 1 / Math.sqrt(n) : s.c });
        }
    });
    return list;
}

/** Names and shapes of every parameter, as in the repository of the authors. `linear`, `norm`, `add`: see init.mjs. */
export function swinShapes(s, { add, norm, linear, scaleName, learned, input, mid }) {
    const pixels = [s.channels, ...s.patch], D = s.widths[0];
    Object.assign(add('patch', 'patch_embed.proj.weight', D, ...pixels), { fanIn: pixels.reduce((a, b) => a * b), fanOut: D });
    if (s.bias)
        add('bias', 'patch_embed.proj.bias', D);
    norm('patch_embed.norm', D);
    if (learned && s.scaleShare === 'global')
        add('scale', scaleName, 1).c = blocksOf(s)[0].c;
    if (input)
        norm('norm_pre', D);
    for (const b of blocksOf(s)) {
        const at = name => `layers.${b.stage}.blocks.${b.number}.${name}`;
        norm(at('norm1'), b.width);
        add('embedding', at('attn.relative_position_bias_table'), (2 * b.side - 1) ** 2, b.heads);
        linear('qkv', at('attn.qkv'), b.width, 3 * b.width);
        if (s.qkNorm)
            for (const which of ['q', 'k'])
                add('gain', at(`attn.${which}_norm.weight`), ...s.qkGain === 'per_head' ? [b.heads, b.width / b.heads] : [b.width / b.heads]);
        if (learned && s.scaleShare !== 'global')
            add('scale', at(`attn.${scaleName}`), s.scaleShare === 'head' ? b.heads : 1).c = b.c;
        linear('residual', at('attn.proj'), b.width, b.width);
        if (mid)
            norm(at('mid1'), b.width);
        if (s.placement !== 'S5')
            norm(at('norm2'), b.width);
        const hidden = s.hidden * b.width / D;
        linear('matrix', at('mlp.fc1'), b.width, hidden);
        linear('residual', at('mlp.fc2'), hidden, b.width);
        if (mid)
            norm(at('mid2'), b.width);
        if (b.number === s.depths[b.stage] - 1 && b.stage < s.depths.length - 1) {
            norm(`layers.${b.stage}.downsample.norm`, 4 * b.width);
            Object.assign(add('matrix', `layers.${b.stage}.downsample.reduction.weight`, 2 * b.width, 4 * b.width), { fanIn: 4 * b.width, fanOut: 2 * b.width });
        }
    }
    const last = s.widths.at(-1);
    if (s.finalNorm)
        norm('norm', last);
    linear('matrix', 'head', last, s.classes);
}

export class Swin extends Network {
    constructor(...all) {
        super(...all);
        this.blocks = blocksOf(this.s);
    }

    name(layer, timm) {
        return `layers.${this.blocks[layer].stage}.blocks.${this.blocks[layer].number}.${timm}`;
    }

    heads(layer) {
        return this.blocks[layer].heads;
    }

    n(layer) {
        return this.blocks[layer].n;
    }

    c(layer) {
        return this.blocks[layer].c;
    }

    /** Window by window: which token stands where, as the grid is after it has moved up and left by the shift. */
    attention(x, layer, sample) {
        const { rows, columns, side, shift, heads } = this.blocks[layer], t = this.t, tokens = x.length;
        const table = this.param.get(this.name(layer, 'attn.relative_position_bias_table'));
        const out = new Array(tokens), across = columns / side, windows = rows / side * across;
        const came = (at, extent) => at + shift >= extent; // round from the other end
        for (let w = 0; w < windows; w++) {
            const places = [];
            for (let y = 0; y < side; y++)
                for (let z = 0; z < side; z++)
                    places.push({ y, z, row: Math.floor(w / across) * side + y, column: w % across * side + z });
            const token = p => (p.row + shift) % rows * columns + (p.column + shift) % columns;
            const together = (a, b) => came(a.row, rows) === came(b.row, rows) && came(a.column, columns) === came(b.column, columns);
            const sees = i => places.flatMap((p, j) => together(places[i], p)
                ? [{ j, bias: head => table[((places[i].y - p.y + side - 1) * (2 * side - 1) + places[i].z - p.z + side - 1) * heads + head] }] : []);
            const mixed = this.attend(places.map(p => x[token(p)]), layer, sample * windows + w, sees);
            mixed.forEach((row, i) => { out[token(places[i])] = row; });
        }
        return out.map((row, i) => this.drop(this.linear(row, this.name(layer, 'attn.proj')), this.place(layer, 1), sample * tokens + i, this.s.dropout));
    }

    /** Four neighbours become one: left column downwards, then the right one. */
    merge(x, { stage, rows, columns }) {
        const out = [];
        for (let y = 0; y < rows; y += 2)
            for (let z = 0; z < columns; z += 2) {
                const four = [[0, 0], [1, 0], [0, 1], [1, 1]].flatMap(([down, right]) => x[(y + down) * columns + z + right]);
                out.push(this.linear(this.norm(four, `layers.${stage}.downsample.norm`), `layers.${stage}.downsample.reduction`));
            }
        return out;
    }

    classifyImage(image, sample) {
        const t = this.t, s = this.s;
        let x = this.patches(image).map(row => this.norm(row, 'patch_embed.norm'));
        x = x.map((row, i) => this.drop(row, 0, sample * x.length + i, s.dropout));
        if (['S3', 'S4', 'S5'].includes(s.placement))
            x = x.map(row => this.norm(row, 'norm_pre'));
        this.blocks.forEach((b, layer) => {
            x = this.block(x, layer, sample);
            if (b.number === s.depths[b.stage] - 1 && b.stage < s.depths.length - 1)
                x = this.merge(x, b);
        });
        if (s.finalNorm)
            x = x.map(row => this.norm(row, 'norm'));
        return this.linear(x[0].map((_, c) => t.scale(t.sum(x.map(row => row[c])), 1 / x.length)), 'head');
    }
}
