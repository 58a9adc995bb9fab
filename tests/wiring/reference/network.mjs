// The networks, forward, one scalar at a time: written from the papers' formulas (kernels/ATTENTION.md 1-3 and 10,
// Dosovitskiy et al. 2021, Radford et al. 2019) and the documents of the job's fields. Nothing here is shared with the
// engine, and nothing is fast.
import { jacobian as formulaJacobian, scalarOf, weights as formulaWeights } from './formulas.mjs';
import { keeps } from './philox.mjs';
import { erf } from './tape.mjs';

const GELU_TANH = Math.sqrt(2 / Math.PI);

function gelu(t, a, form) {
    const x = t.at(a);
    if (form === 'tanh') {
        const u = GELU_TANH * (x + 0.044715 * x ** 3), th = Math.tanh(u);
        return t.unary(a, 0.5 * x * (1 + th), 0.5 * (1 + th) + 0.5 * x * (1 - th * th) * GELU_TANH * (1 + 3 * 0.044715 * x * x));
    }
    const cdf = 0.5 * (1 + erf(x / Math.SQRT2));
    return t.unary(a, x * cdf, cdf + x * Math.exp(-x * x / 2) / Math.sqrt(2 * Math.PI));
}

export const activate = gelu;

const relu = (t, a) => t.unary(a, Math.max(t.at(a), 0), t.at(a) > 0 ? 1 : 0);

function sigmoid(t, a) {
    const y = 1 / (1 + Math.exp(-t.at(a)));
    return t.unary(a, y, y * (1 - y));
}

/** A network with its parameters on a tape. `s` are the settings of settings.mjs. */
export class Network {
    /**
     * @param {import('./tape.mjs').Tape} t
     * @param {Map<string, {shape: number[], data: Float64Array}>} params
     * @param {{seed: number, step: number} | null} draw noise of training; null: none
     */
    constructor(t, s, params, draw = null) {
        this.t = t;
        this.s = s;
        this.draw = draw;
        this.rows = new Map();
        this.param = new Map();
        for (const [name, { data }] of params)
            this.param.set(name, t.leaves(data));
        this.stats = []; // per layer, per sample, per head
        this.looks = []; // likewise: A and the logits that each query sees, as numbers
        this.broken = []; // per layer: entries of A for which a formula or its slope is not finite
        this.squares = []; // per layer: of all numbers behind a block, and how many
    }

    /** Names and layouts of timm; else those of GPT-2. */
    get vit() {
        return this.s.arch !== 'gpt';
    }

    name(layer, timm, gpt) {
        return this.vit ? `blocks.${layer}.${timm}` : `transformer.h.${layer}.${gpt}`;
    }

    /** x W + b; timm stores [out, in], GPT-2 [in, out]. */
    linear(x, name) {
        const b = this.param.get(`${name}.bias`), t = this.t;
        if (!this.rows.has(name)) { // the weights of each output
            const w = this.param.get(`${name}.weight`), outs = w.length / x.length;
            this.rows.set(name, Array.from({ length: outs }, (_, o) => x.map((_, i) => this.vit ? w[o * x.length + i] : w[i * outs + o])));
        }
        return this.rows.get(name).map((row, o) => {
            const sum = t.dot(x, row);
            return b ? t.add(sum, b[o]) : sum;
        });
    }

    norm(x, name) {
        return this.normalise(x, this.s.normKind, this.param.get(`${name}.weight`), this.param.get(`${name}.bias`));
    }

    /** kernels/ATTENTION.md 10: eps stands beside the mean of the squares, or beside their sum. */
    normalise(x, kind, gain, bias) {
        const t = this.t, width = x.length;
        if (kind === 'layer') {
            const mean = t.scale(t.sum(x), 1 / width);
            x = x.map(a => t.sub(a, mean));
        }
        const squares = t.dot(x, x);
        const below = this.s.epsMode === 'sum' ? t.scale(t.shift(squares, this.s.eps), 1 / width)
            : t.shift(t.scale(squares, 1 / width), this.s.eps);
        const root = t.sqrt(below);
        return x.map((a, i) => {
            const y = t.mul(gain[i], t.div(a, root));
            return bias ? t.add(y, bias[i]) : y;
        });
    }

    /** Inverted dropout of one row. */
    drop(x, place, row, rate) {
        if (!this.draw || rate === 0)
            return x;
        return x.map((a, column) => this.t.scale(a, keeps(this.draw, place, row, column, rate) ? 1 / (1 - rate) : 0));
    }

    /** Stochastic depth: the branch of a whole sample is dropped or enlarged. */
    dropPath(x, layer, place, sample) {
        const { dropPath, dropPathRule, depth } = this.s;
        const rate = dropPathRule === 'same' ? dropPath : depth > 1 ? dropPath * layer / (depth - 1) : 0;
        if (!this.draw || rate === 0)
            return x;
        const factor = keeps(this.draw, place, sample, 0, rate) ? 1 / (1 - rate) : 0;
        return x.map(row => row.map(a => this.t.scale(a, factor)));
    }

    /** The learned scale of a head, as a node; null where the scale is a number. */
    learned(layer, head) {
        const t = this.t, s = this.s;
        if (s.activation !== 'poly' || s.scale !== 'learned')
            return null;
        const suffix = s.scaleParam === 'direct' ? 'attn_scale' : 'attn_scale_rho';
        const all = this.param.get(s.scaleShare === 'global' ? suffix : this.name(layer, `attn.${suffix}`, `attn.${suffix}`));
        const rho = all[s.scaleShare === 'head' ? head : 0];
        if (s.scaleParam === 'log')
            return t.exp(rho);
        if (s.scaleParam === 'softplus') {
            const x = t.at(rho);
            return t.unary(rho, Math.log1p(Math.exp(x)), 1 / (1 + Math.exp(-x)));
        }
        return rho;
    }

    /** kernels/ATTENTION.md 1: a row of logits that query i sees becomes a row of A. */
    weights(logits, scale, i, layer, head) {
        const t = this.t, s = this.s;
        const perRow = s.nRow ? (i + 1) ** -s.rowPower : 1;
        const shares = f => {
            const sum = t.sum(f);
            return f.map(a => t.div(a, sum));
        };
        switch (s.activation) {
        case 'softmax': {
            const top = Math.max(...logits.map(a => t.at(a)));
            return shares(logits.map(a => t.exp(t.shift(a, -top))));
        }
        case 'taylor':
            return shares(logits.map(a => t.unary(a, 1 + t.at(a) + t.at(a) ** 2 / 2, 1 + t.at(a))));
        case 'periodic':
            return shares(logits.map(a => t.unary(a, Math.sin(t.at(a) + Math.PI / 4) ** 2, Math.sin(2 * t.at(a) + Math.PI / 2))));
        case 'poly':
            return logits.map(a => {
                const y = t.power(a, s.degree);
                return t.scale(scale === null ? t.scale(y, this.c(layer)) : t.mul(scale, y), perRow);
            });
        case 'sigmoid':
        case 'sigmoid_bias':
            return logits.map(a => t.scale(sigmoid(t, a), this.n(layer) ** -s.alpha * perRow));
        case 'relu':
            return logits.map(a => t.scale(relu(t, a), this.n(layer) ** -s.alpha * perRow));
        case 'sima':
            return logits;
        case 'formula':
            return formulaWeights(t, s, logits, this.formulaAt(layer, head, i));
        default:
            throw new Error(`no formula for ${s.activation}`);
        }
    }

    /** What a formula reads beside its logits. */
    formulaAt(layer, head, i) {
        const s = this.s, path = this.name(layer, 'attn', 'attn');
        return { n: this.n(layer), i, h: head, heads: this.heads(layer),
            scalar: name => scalarOf(this.t, s, this.param, s.scalars.find(one => one.name === name), layer, head, path) };
    }

    /** Heads, N and the constant before phi of a layer: networks whose layers differ have others. */
    heads(layer) {
        return this.s.heads;
    }

    n(layer) {
        return this.s.n;
    }

    c(layer) {
        return this.s.c;
    }

    activation(layer) {
        return this.s.activation;
    }

    /** Whether a probe shows the Jacobian by W_Q: not where a norm stands between. */
    showsQueryJacobian(layer) {
        return !this.s.qkNorm;
    }

    /** Self-attention of one sample; x are the rows that W_Q multiplies. */
    attention(x, layer, sample) {
        const s = this.s, tokens = x.length;
        const out = this.attend(x, layer, sample, i => Array.from({ length: this.vit ? tokens : i + 1 }, (_, j) => ({ j, bias: () => null })));
        const name = this.name(layer, 'attn.proj', 'attn.c_proj');
        return out.map((row, i) => this.drop(this.linear(row, name), this.place(layer, 1), sample * tokens + i, s.dropout));
    }

    /**
     * Attention among rows x, the b-th matrix of the layer. `sees` gives the keys of query i: their rows j, and for a
     * head the node that is added to the logit, or null.
     */
    attend(x, layer, b, sees) {
        const t = this.t, s = this.s, tokens = x.length, width = x[0].length, heads = this.heads(layer), d = width / heads;
        const qkv = x.map(row => this.linear(row, this.name(layer, 'attn.qkv', 'attn.c_attn')));
        const out = x.map(() => new Array(width));
        const part = (which, head) => qkv.map(row => row.slice(which * width + head * d, which * width + (head + 1) * d));
        for (let head = 0; head < heads; head++) {
            let q = part(0, head), k = part(1, head);
            const v = part(2, head);
            if (s.qkNorm) {
                const gain = which => {
                    const all = this.param.get(this.name(layer, `attn.${which}_norm.weight`, `attn.${which}_norm.weight`));
                    return s.qkGain === 'per_head' ? all.slice(head * d, (head + 1) * d) : all;
                };
                q = q.map(row => this.normalise(row, 'rms', gain('q'), undefined));
                k = k.map(row => this.normalise(row, 'rms', gain('k'), undefined));
            }
            if (s.activation === 'sima') { // channels divided by their l1 norms over the tokens
                const divide = rows => {
                    const norms = rows[0].map((_, c) => t.sum(rows.map(row => t.abs(row[c]))));
                    return rows.map(row => row.map((a, c) => t.div(a, norms[c])));
                };
                q = divide(q);
                k = divide(k);
            }
            const tau = s.activation === 'sima' ? 1 : 1 / Math.sqrt(d);
            const scale = this.learned(layer, head), rows = [], seen = [], keysOf = [];
            for (let i = 0; i < tokens; i++) {
                const keys = sees(i);
                const shift = s.activation === 'sigmoid_bias' ? -Math.log(this.n(layer)) : 0; // part of the logit
                const logits = keys.map(({ j, bias }) => {
                    const logit = t.shift(t.scale(t.dot(q[i], k[j]), tau), shift), more = bias(head);
                    return more === null ? logit : t.add(logit, more);
                });
                let a = this.weights(logits, scale, i, layer, head);
                rows.push(a);
                seen.push(logits);
                keysOf.push(keys.map(({ j }) => k[j]));
                if (this.draw && s.attnDropout > 0) {
                    const row = (b * heads + head) * tokens + i;
                    a = a.map((w, at) => t.scale(w, keeps(this.draw, this.place(layer, 0), row, keys[at].j, s.attnDropout) ? 1 / (1 - s.attnDropout) : 0));
                }
                for (let c = 0; c < d; c++)
                    out[i][head * d + c] = t.dot(a, keys.map(({ j }) => v[j][c]));
            }
            if (this.keepStats)
                this.look(layer, b, head, { rows, logits: seen, keys: i => sees(i).map(({ j }) => j), columns: tokens });
            if (this.keepStats)
                this.note(layer, b, head, { rows, logits: seen, keysOf, x, tau, scale: scale === null ? null : t.at(scale) });
        }
        return out;
    }

    /** Places of noise in a block: 0 the attention matrix, 1 its projection, 2 its branch, 3 hidden, 4 output, 5 branch. */
    place(layer, what) {
        return 1 + layer * 8 + what;
    }

    feedForward(x, layer, sample) {
        const t = this.t, s = this.s;
        return x.map((row, i) => {
            const r = sample * x.length + i;
            let h = this.linear(row, this.name(layer, 'mlp.fc1', 'mlp.c_fc'));
            h = h.map(a => s.mlpAct === 'relu' ? relu(t, a) : gelu(t, a, s.gelu));
            if (this.vit)
                h = this.drop(h, this.place(layer, 3), r, s.dropout);
            return this.drop(this.linear(h, this.name(layer, 'mlp.fc2', 'mlp.c_proj')), this.place(layer, 4), r, s.dropout);
        });
    }

    /** kernels/ATTENTION.md 10. */
    block(x, layer, sample) {
        const t = this.t, at = this.s.placement, mid = at === 'S4' || at === 'S5';
        const each = (rows, timm, gpt) => rows.map(row => this.norm(row, this.name(layer, timm, gpt)));
        const plus = (a, b) => a.map((row, i) => row.map((x, c) => t.add(x, b[i][c])));
        let h = this.attention(at === 'post' ? x : each(x, 'norm1', 'ln_1'), layer, sample);
        if (mid)
            h = each(h, 'mid1', 'mid_1');
        x = plus(x, this.dropPath(h, layer, this.place(layer, 2), sample));
        if (at === 'post')
            x = each(x, 'norm1', 'ln_1');
        h = this.feedForward(at === 'post' || at === 'S5' ? x : each(x, 'norm2', 'ln_2'), layer, sample);
        if (mid)
            h = each(h, 'mid2', 'mid_2');
        x = plus(x, this.dropPath(h, layer, this.place(layer, 5), sample));
        if (at === 'post')
            x = each(x, 'norm2', 'ln_2');
        const squares = this.squares[layer] ??= { sum: 0, count: 0 };
        for (const row of x)
            for (const a of row) {
                squares.sum += t.at(a) ** 2;
                squares.count++;
            }
        return x;
    }

    /** Embedded tokens to those behind the last block. */
    body(x, position, sample) {
        const t = this.t, s = this.s, input = ['S3', 'S4', 'S5'].includes(s.placement);
        const place = rows => position ? rows.map((row, i) => row.map((a, c) => t.add(a, position[i][c]))) : rows;
        const after = s.posAfter && input;
        if (!after)
            x = place(x);
        x = x.map((row, i) => this.drop(row, 0, sample * x.length + i, s.dropout));
        if (input)
            x = x.map(row => this.norm(row, this.vit ? 'norm_pre' : 'transformer.ln_in'));
        if (after)
            x = place(x);
        for (let layer = 0; layer < s.depth; layer++)
            x = this.block(x, layer, sample);
        return x;
    }

    /** An image, or a text, to the logits of its classes. */
    classify(input, sample) {
        return this.vit ? this.classifyImage(input, sample) : this.classifyText(input, sample);
    }

    /** The embedded patches of an image [channel][row][column], flat. */
    patches(image) {
        const t = this.t, s = this.s, rows = s.height / s.patch[0], columns = s.imageWidth / s.patch[1];
        const w = this.param.get('patch_embed.proj.weight'), b = this.param.get('patch_embed.proj.bias');
        const size = s.channels * s.patch[0] * s.patch[1];
        const x = [];
        for (let r = 0; r < rows; r++)
            for (let c = 0; c < columns; c++) {
                const pixels = [];
                for (let ch = 0; ch < s.channels; ch++)
                    for (let y = 0; y < s.patch[0]; y++)
                        for (let z = 0; z < s.patch[1]; z++)
                            pixels.push(image[(ch * s.height + r * s.patch[0] + y) * s.imageWidth + c * s.patch[1] + z]);
                const token = [];
                for (let o = 0; o < s.width; o++) {
                    let sum = 0;
                    for (let i = 0; i < size; i++)
                        sum += t.at(w[o * size + i]) * pixels[i];
                    const node = t.node(b ? sum + t.at(b[o]) : sum);
                    for (let i = 0; i < size; i++)
                        t.edge(w[o * size + i], pixels[i]);
                    if (b)
                        t.edge(b[o], 1);
                    token.push(node);
                }
                x.push(token);
            }
        return x;
    }

    classifyImage(image, sample) {
        const t = this.t, s = this.s;
        const split = all => Array.from({ length: all.length / s.width }, (_, i) => all.slice(i * s.width, (i + 1) * s.width));
        let x = this.patches(image);
        if (s.pool === 'cls')
            x.unshift(this.param.get('cls_token'));
        x = this.body(x, s.pos === 'learned' ? split(this.param.get('pos_embed')) : null, sample);
        let read = s.pool === 'cls' ? x[0] : x[0].map((_, c) => t.scale(t.sum(x.map(row => row[c])), 1 / x.length));
        if (s.finalNorm)
            read = this.norm(read, s.pool === 'cls' ? 'norm' : 'fc_norm');
        return this.linear(read, 'head');
    }

    /** The output at the last token of a text, as GPT2ForSequenceClassification has it: no bias. */
    classifyText({ tokens, last }, sample) {
        const t = this.t, s = this.s, x = this.read(tokens, sample)[last], w = this.param.get('score.weight');
        return Array.from({ length: s.classes }, (_, c) => t.dot(x, w.slice(c * s.width, (c + 1) * s.width)));
    }

    /** Tokens to the logits of what follows each; the head is the embedding. */
    predict(tokens, sample) {
        const t = this.t, s = this.s, wte = this.param.get('transformer.wte.weight');
        return this.read(tokens, sample).map(row => Array.from({ length: s.vocab }, (_, id) => t.dot(row, wte.slice(id * s.width, (id + 1) * s.width))));
    }

    /** Tokens to the rows behind the last norm. */
    read(tokens, sample) {
        const s = this.s;
        const table = name => {
            const all = this.param.get(name);
            return i => all.slice(i * s.width, (i + 1) * s.width);
        };
        const wte = table('transformer.wte.weight');
        const position = s.pos === 'learned' ? tokens.map((_, i) => table('transformer.wpe.weight')(i)) : null;
        let x = this.body(Array.from(tokens, id => wte(id)), position, sample);
        if (s.finalNorm)
            x = x.map(row => this.norm(row, 'transformer.ln_f'));
        return x;
    }

    /** A matrix and its logits as numbers, in the places of their keys; hidden ones stay empty. `between`: what it is between, where that is not tokens. */
    look(layer, sample, head, { rows, logits, keys, columns, between = null }) {
        const dense = list => list.map((row, i) => {
            const line = new Array(columns);
            row.forEach((id, at) => { line[keys(i)[at]] = this.t.at(id); });
            return line;
        });
        this.looks[layer] ??= [];
        (this.looks[layer][sample] ??= [])[head] = { a: dense(rows), logits: dense(logits), between };
    }

    /** Statistics of one head's matrix (kernels/ATTENTION.md 2), from values alone. */
    note(layer, sample, head, { rows, logits, keysOf, x, tau, scale }) {
        const t = this.t, s = this.s;
        const normalised = ['softmax', 'taylor', 'periodic'].includes(s.activation);
        const skip = s.probeCls || s.pool !== 'cls' ? 0 : 1; // rows and columns that are left out, from the first
        let fro = 0, jac = 0, jacQ = 0, count = 0, sum = 0, most = 0;
        rows.forEach((row, i) => {
            if (i < skip)
                return;
            const a = row.map(id => t.at(id)), l = logits[i].map(id => t.at(id));
            const x2 = x[i].reduce((acc, id) => acc + t.at(id) ** 2, 0);
            for (const z of l.slice(skip)) {
                count++;
                sum += z;
                most = Math.max(most, Math.abs(z));
            }
            fro += a.slice(skip).reduce((acc, y) => acc + y * y, 0);
            // J[j][m] = dA_ij / ds_im
            const at = s.activation === 'formula' ? this.formulaAt(layer, head, i) : null;
            const jacobian = at ? formulaJacobian(s, l, at, Object.fromEntries(s.scalars.map(({ name }) => [name, t.at(at.scalar(name))])))
                : a.map((y, j) => a.map((_, m) => normalised
                ? (j === m ? logSlope(s.activation, l[j]) * y : 0) - y * a[m] * logSlope(s.activation, l[m])
                : j === m ? this.slope(l[j], scale, i, layer) : 0));
            for (let j = skip; j < a.length; j++)
                this.broken[layer] = (this.broken[layer] ?? 0) + (Number.isFinite(a[j]) && Number.isFinite(jacobian[j][j]) ? 0 : 1);
            for (const line of jacobian.slice(skip)) {
                jac += line.slice(skip).reduce((acc, y) => acc + y * y, 0);
                for (let c = 0; c < keysOf[i][0].length; c++) {
                    const y = line.reduce((acc, g, m) => acc + g * t.at(keysOf[i][m][c]), 0);
                    jacQ += tau * tau * x2 * y * y;
                }
            }
        });
        const mean = sum / count;
        const spread = logits.slice(skip).flatMap(row => row.slice(skip)).reduce((acc, id) => acc + (t.at(id) - mean) ** 2, 0);
        this.stats[layer] ??= [];
        this.stats[layer][sample] ??= [];
        this.stats[layer][sample][head] = {
            'attn/fro': Math.sqrt(fro), 'attn/jac_fro': Math.sqrt(jac), 'attn/jac_q_fro': Math.sqrt(jacQ),
            'logit/std': Math.sqrt(spread / count), 'logit/max': most,
        };
    }

    /** Derivative of an entry of A by its own logit, where rows are not normalised. */
    slope(z, scale, i, layer) {
        const s = this.s, perRow = s.nRow ? (i + 1) ** -s.rowPower : 1;
        const bell = x => 1 / (1 + Math.exp(-x)) * (1 - 1 / (1 + Math.exp(-x)));
        switch (s.activation) {
        case 'poly': return perRow * (scale ?? this.c(layer)) * s.degree * z ** (s.degree - 1);
        case 'sigmoid':
        case 'sigmoid_bias': return perRow * this.n(layer) ** -s.alpha * bell(z);
        case 'relu': return z > 0 ? perRow * this.n(layer) ** -s.alpha : 0;
        case 'sima': return 1;
        default: throw new Error(s.activation);
        }
    }
}

/** Derivative of log f, where A = f / sum f. */
function logSlope(activation, z) {
    switch (activation) {
    case 'softmax': return 1;
    case 'taylor': return (1 + z) / (1 + z + z * z / 2);
    case 'periodic': return 2 / Math.tan(z + Math.PI / 4);
    default: throw new Error(activation);
    }
}
