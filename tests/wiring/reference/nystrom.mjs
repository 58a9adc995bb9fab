// The Nystromformer, forward, one scalar at a time: written from its paper (Xiong et al. 2021, sections 3 and 4) and the documents
// of the job's fields. All three matrices are written out, each with its own factor; the engine does neither.
import { Network, activate } from './network.mjs';

const at = (layer, name) => `model.transformer_${layer}.${name}`;

/** Names and shapes of every parameter, as in the authors' repository. `linear`, `norm`, `add`: see init.mjs. */
export function nystromShapes(s, { add, norm, linear, scaleName, learned }) {
    const D = s.width, count = s.scaleShare === 'head' ? s.heads : 1;
    add('embedding', 'model.embeddings.word_embeddings.weight', symbols(s), D);
    if (s.pos === 'learned')
        add('embedding', 'model.embeddings.position_embeddings.weight', s.positions, D);
    if (learned && s.scaleShare === 'global')
        add('scale', scaleName, 1);
    for (let i = 0; i < s.depth; i++) {
        norm(at(i, 'norm1'));
        for (const w of ['W_q', 'W_k', 'W_v', 'ff'])
            linear('matrix', at(i, `mha.${w}`), D, D);
        if (learned && s.scaleShare !== 'global')
            for (const path of s.nystromApply === 'separate' ? ['F1.', 'F2.', 'F3.'] : [''])
                add('scale', at(i, `mha.attn.${path}${scaleName}`), count);
        Object.assign(add('patch', at(i, 'mha.attn.conv.weight'), s.heads, 1, s.convKernel, 1), { fanIn: s.convKernel, fanOut: s.convKernel });
        norm(at(i, 'norm2'));
        linear('matrix', at(i, 'mlpblock.0'), D, s.hidden);
        linear('matrix', at(i, 'mlpblock.3'), s.hidden, D);
    }
    if (s.finalNorm)
        norm('model.norm');
    linear('matrix', 'seq_classifer.mlpblock.0', s.pairs ? 4 * D : D, s.hidden);
    linear('matrix', 'seq_classifer.mlpblock.2', s.hidden, s.classes);
}

const symbols = s => s.vocab + (s.pool === 'cls' ? 1 : 0);

export class Nystrom extends Network {
    get vit() { // matrices lie as [out, in]
        return true;
    }

    factor(layer, head, matrix) {
        const t = this.t, s = this.s, suffix = s.scaleParam === 'direct' ? 'attn_scale' : 'attn_scale_rho';
        if (s.activation !== 'poly' || s.scale !== 'learned')
            return null;
        const all = this.param.get(s.scaleShare === 'global' ? suffix : at(layer, `mha.attn.${s.nystromApply === 'separate' ? `F${matrix}.` : ''}${suffix}`));
        const rho = all[s.scaleShare === 'head' ? head : 0], x = t.at(rho);
        return s.scaleParam === 'log' ? t.exp(rho) : s.scaleParam === 'softplus' ? t.unary(rho, Math.log1p(Math.exp(x)), 1 / (1 + Math.exp(-x))) : rho;
    }

    learned(layer, head) {
        return this.factor(layer, head, 1);
    }

    product(a, b) {
        const t = this.t, columns = b[0].map((_, j) => b.map(row => row[j]));
        return a.map(row => columns.map(column => t.dot(row, column)));
    }

    transposed(a) {
        return a[0].map((_, j) => a.map(row => row[j]));
    }

    /** Six steps of a third-order iteration, or as many as are asked for. */
    inverse(f, all) {
        const t = this.t, s = this.s, of = s.pinvStart === 'matrix_abs' ? [f] : all; // a batch of one sample is its heads
        const sizes = s.pinvStart === 'global_colsum' ? of : of.map(one => one.map(row => row.map(x => t.abs(x))));
        const largest = lists => lists.map(list => t.sum(list)).reduce((a, b) => t.at(b) > t.at(a) ? b : a);
        let by = largest(sizes.flatMap(one => this.transposed(one)));
        if (s.pinvStart !== 'global_colsum')
            by = t.mul(by, largest(sizes.flat()));
        const less = (k, a) => a.map((row, i) => row.map((x, j) => t.shift(t.scale(x, -1), i === j ? k : 0)));
        let z = this.transposed(f).map(row => row.map(x => t.div(x, by)));
        for (let step = 0; step < s.pinvIterations; step++) {
            const fz = this.product(f, z);
            z = this.product(z, less(13, this.product(fz, less(15, this.product(fz, less(7, fz)))))).map(row => row.map(x => t.scale(x, 0.25)));
        }
        return z;
    }

    /** The rows of one sample; shown[i] says whether token i is no padding. */
    attentionThrough(x, layer, sample, shown) {
        const t = this.t, s = this.s, n = x.length, d = s.width / s.heads, m = s.landmarks, out = x.map(() => new Array(s.width));
        const masked = name => x.map((row, i) => this.linear(row, at(layer, `mha.${name}`)).map(a => shown[i] ? a : t.scale(a, 0)));
        const [q, k, v] = ['W_q', 'W_k', 'W_v'].map(masked), seen = shown.flatMap((yes, i) => yes ? [i] : []), kernel = this.param.get(at(layer, 'mha.attn.conv.weight'));
        const means = rows => Array.from({ length: m }, (_, j) => rows[0].map((_, c) => t.scale(t.sum(rows.slice(j * n / m, (j + 1) * n / m).map(row => row[c])), m / n)));
        const softly = Object.create(this, { s: { value: { ...s, activation: 'softmax' } } });
        const valid = s.nValid ? Math.sqrt(s.n / Math.max(1, seen.length)) : 1; // of each of the three matrices
        const weighed = (...all) => this.weights(...all).map(a => t.scale(a, valid));
        const shift = s.activation === 'sigmoid_bias' ? -Math.log(s.n) : 0, plain = s.nystromApply === 'F1F3';
        const logits = (a, b) => a.map(row => b.map(other => t.shift(t.scale(t.dot(row, other), 1 / Math.sqrt(d)), shift)));
        const cut = (rows, head) => rows.map(row => row.slice(head * d, (head + 1) * d));
        const between = Array.from({ length: n > m ? s.heads : 0 }, (_, head) => { // of all heads first
            const lq = means(cut(q, head)), lk = means(cut(k, head)), z2 = logits(lq, lk);
            return { lq, lk, z2, f2: plain ? z2.map(row => softly.weights(row.map(a => t.shift(a, -shift)), null, 0, layer)) : z2.map((row, i) => weighed(row, this.factor(layer, head, 2), i, layer)) };
        });
        for (let head = 0; head < s.heads; head++) {
            const [Q, K, V] = [q, k, v].map(rows => cut(rows, head)), scale = matrix => this.factor(layer, head, matrix);
            let rows, probed;
            if (n <= m) {
                const every = logits(Q, K), weights = [];
                rows = every.map((row, i) => {
                    const a = weights[i] = weighed(seen.map(j => row[j]), s.nystromApply === 'separate' ? t.div(t.mul(scale(1) ?? t.leaf(1), scale(3) ?? t.leaf(1)), scale(2) ?? t.leaf(1)) : scale(1), i, layer);
                    return V[0].map((_, c) => t.dot(a, seen.map(j => V[j][c])));
                });
                if (this.keepStats && !this.second)
                    this.look(layer, sample, head, { rows: weights, logits: every.map(row => seen.map(j => row[j])), keys: () => seen, columns: n });
            } else {
                const { lq, lk, z2, f2 } = between[head];
                const f1 = logits(Q, lk).map((row, i) => weighed(row, scale(1), i, layer));
                const f3 = logits(lq, K).map((row, i) => weighed(seen.map(j => row[j]), scale(3), i, layer));
                const inverse = this.inverse(f2, between.map(one => one.f2));
                const first = f3.map(row => V[0].map((_, c) => t.dot(row, seen.map(j => V[j][c]))));
                rows = this.product(f1, this.product(inverse, first));
                if (this.keepStats) { // the residual of both texts of a pair, the rest of the first
                    const squares = a => a.flat().reduce((sum, node) => sum + t.at(node) ** 2, 0), back = this.product(this.product(f2, inverse), f2);
                    const sums = (this.inverses ??= [])[layer] ??= { off: 0, all: 0 };
                    const c = plain || scale(2) === null ? 1 : t.at(scale(2)); // of all heads together: each without its factor
                    sums.off += back.flat().reduce((sum, node, i) => sum + (t.at(node) - t.at(f2.flat()[i])) ** 2, 0) / c ** 2;
                    sums.all += squares(f2) / c ** 2;
                }
                if (this.keepStats && !this.second) {
                    probed = { rows: f2, logits: z2, keysOf: lq.map(() => lk), x: means(x.map((row, i) => row.map(a => shown[i] ? a : t.scale(a, 0)))), tau: 1 / Math.sqrt(d), scale: scale(2) === null ? null : t.at(scale(2)) };
                    this.look(layer, sample, head, { rows: f2, logits: plain ? z2.map(row => row.map(a => t.shift(a, -shift))) : z2, keys: () => lk.map((_, j) => j), columns: m, between: 'landmarks' });
                    (plain ? softly : this).note(layer, sample, head, probed);
                }
            }
            for (let i = 0; i < n; i++)
                for (let c = 0; c < d; c++) {
                    const near = Array.from({ length: s.convKernel }, (_, w) => w).filter(w => V[i + w - (s.convKernel - 1) / 2]);
                    out[i][head * d + c] = t.add(rows[i][c], t.dot(near.map(w => V[i + w - (s.convKernel - 1) / 2][c]), near.map(w => kernel[head * s.convKernel + w])));
                }
        }
        return out.map((row, i) => this.drop(this.linear(row, at(layer, 'mha.ff')), this.place(layer, 1), sample * n + i, s.dropout));
    }

    mlp(x, layer, sample) {
        const t = this.t, s = this.s;
        return x.map((row, i) => {
            const r = sample * x.length + i, h = this.linear(row, at(layer, 'mlpblock.0')).map(a => s.mlpAct === 'relu' ? t.unary(a, Math.max(t.at(a), 0), t.at(a) > 0 ? 1 : 0) : activate(t, a, s.gelu));
            return this.drop(this.linear(this.drop(h, this.place(layer, 3), r, s.dropout), at(layer, 'mlpblock.3')), this.place(layer, 4), r, s.dropout);
        });
    }

    /** Of two texts, a and b as [a, b, a b, a - b]; without noise, as the numbers of their rows are not those of single texts. */
    classify({ tokens, last }, sample = 0) {
        const t = this.t, s = this.s, half = tokens.length / 2;
        let read;
        if (s.pairs) {
            const [a, b] = [0, 1].map(which => {
                this.second = which === 1;
                return this.encode({ tokens: tokens.slice(which * half, (which + 1) * half), last: half - 1 }, sample);
            });
            read = [...a, ...b, ...a.map((x, c) => t.mul(x, b[c])), ...a.map((x, c) => t.sub(x, b[c]))];
        } else
            read = this.encode({ tokens, last }, sample);
        const hidden = this.linear(read, 'seq_classifer.mlpblock.0').map(a => t.unary(a, Math.max(t.at(a), 0), t.at(a) > 0 ? 1 : 0));
        return this.linear(hidden, 'seq_classifer.mlpblock.2');
    }

    encode({ tokens, last }, sample) {
        const t = this.t, s = this.s, D = s.width, words = this.param.get('model.embeddings.word_embeddings.weight'), places = this.param.get('model.embeddings.position_embeddings.weight');
        let ids = Array.from(tokens), shown = ids.map((id, i) => i <= last && !(s.zeroIsPadding && id === 0));
        if (s.pool === 'cls') {
            ids = [symbols(s) - 1, ...ids.slice(0, -1)];
            shown = [true, ...shown.slice(0, -1)];
        }
        const each = (rows, name) => rows.map(row => this.norm(row, name)), plus = (a, b) => a.map((row, i) => row.map((y, c) => t.add(y, b[i][c])));
        let x = ids.map((id, i) => words.slice(id * D, (id + 1) * D).map((a, c) => places ? t.add(a, places[i * D + c]) : a));
        x = x.map((row, i) => this.drop(row, 0, sample * x.length + i, s.dropout));
        for (let layer = 0; layer < s.depth; layer++) {
            x = plus(x, this.dropPath(this.attentionThrough(each(x, at(layer, 'norm1')), layer, sample, shown), layer, this.place(layer, 2), sample));
            x = plus(x, this.dropPath(this.mlp(each(x, at(layer, 'norm2')), layer, sample), layer, this.place(layer, 5), sample));
            const squares = this.squares[layer] ??= { sum: 0, count: 0 };
            for (const a of x.flat()) {
                squares.sum += t.at(a) ** 2;
                squares.count++;
            }
        }
        if (s.finalNorm)
            x = each(x, 'model.norm');
        x = x.map((row, i) => row.map(a => shown[i] ? a : t.scale(a, 0)));
        return s.pool === 'cls' ? x[0] : x[0].map((_, c) => t.scale(t.sum(x.map(row => row[c])), 1 / x.length));
    }
}
