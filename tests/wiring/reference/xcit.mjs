// XCiT, forward, one scalar at a time: written from its paper (El-Nouby et al. 2021, sections 3.2 to 3.4 and appendix A), for the
// class layers and the order of the branches from what the authors' code does with them, for BatchNorm from Ioffe and Szegedy
// 2015, and for powers from the documents of the job's fields.
import { Network, activate } from './network.mjs';
import { keeps } from './philox.mjs';

const CLASS_LAYERS = 2, CODE = 32, EPS = 1e-5;

const tokensOf = s => s.height / s.patch[0] * (s.imageWidth / s.patch[1]);
const stemLayers = s => Math.log2(s.patch[0]);
const shared = s => s.scale === 'fixed' || s.scale === 'learned';

/** Whether a BatchNorm's statistics are frozen: a prefix of `train.freeze` fits the name of one of them. */
export const frozenNorm = (s, name) => ['running_mean', 'running_var'].some(buffer => s.freeze.some(begin => `${name}.${buffer}`.startsWith(begin)));

/** Names and shapes of every parameter and buffer, as in the authors' repository. `linear`, `norm`, `add`: see init.mjs. */
export function xcitShapes(s, { add, norm, linear, scaleName, learned }) {
    const D = s.width, layers = stemLayers(s);
    const batchNorm = (name, width) => {
        add('gain', `${name}.weight`, width);
        add('bias', `${name}.bias`, width);
        for (const buffer of ['running_mean', 'running_var'])
            add('buffer', `${name}.${buffer}`, width).value = buffer === 'running_var' ? 1 : 0;
        add('buffer', `${name}.num_batches_tracked`).value = 0;
    };
    const gamma = name => {
        if (s.layerscale !== null)
            add('layerscale', name, D);
    };
    add('embedding', 'cls_token', 1, 1, D);
    for (let i = 0, from = s.channels; i < layers; i++) {
        const to = D / 2 ** (layers - 1 - i);
        Object.assign(add('patch', `patch_embed.proj.${2 * i}.0.weight`, to, from, 3, 3), { fanIn: from * 9, fanOut: to * 9 });
        batchNorm(`patch_embed.proj.${2 * i}.1`, to);
        from = to;
    }
    if (s.pos === 'fourier') {
        Object.assign(add('patch', 'pos_embeder.token_projection.weight', D, 2 * CODE, 1, 1), { fanIn: 2 * CODE, fanOut: D });
        add('bias', 'pos_embeder.token_projection.bias', D);
    }
    const layer = (at, c, kinds) => {
        norm(at('norm1'));
        kinds.forEach((_, i) => gamma(at(`gamma${i + 1}`)));
        linear('qkv', at('attn.qkv'), D, 3 * D);
        if (learned)
            add('scale', at(`attn.${scaleName}`), s.scaleShare === 'head' ? s.heads : 1).c = c;
        linear('residual', at('attn.proj'), D, D);
        norm(at('norm2'));
        linear('matrix', at('mlp.fc1'), D, s.hidden);
        linear('residual', at('mlp.fc2'), s.hidden, D);
    };
    for (let i = 0; i < s.depth; i++) {
        const at = name => `blocks.${i}.${name}`;
        layer(at, s.c, [1, 2, 3]);
        add('temperature', at('attn.temperature'), s.heads, 1, 1);
        norm(at('norm3'));
        for (const conv of ['conv1', 'conv2']) {
            Object.assign(add('patch', at(`local_mp.${conv}.weight`), D, 1, 3, 3), { fanIn: 9, fanOut: 9 });
            add('bias', at(`local_mp.${conv}.bias`), D);
        }
        batchNorm(at('local_mp.bn'), D);
    }
    learned &&= !s.classSoftmax;
    for (let i = 0; i < CLASS_LAYERS; i++)
        layer(name => `cls_attn_blocks.${i}.${name}`, shared(s) ? 1 / Math.sqrt(tokensOf(s) + 1) : s.c, [1, 2]);
    if (s.finalNorm)
        norm('norm');
    linear('matrix', 'head', D, s.classes);
}

export class Xcit extends Network {
    constructor(...all) {
        super(...all);
        this.moments = new Map(); // of a batch: what BatchNorm's buffers move towards
    }

    name(layer, timm) {
        return layer < this.s.depth ? `blocks.${layer}.${timm}` : `cls_attn_blocks.${layer - this.s.depth}.${timm}`;
    }

    n(layer) {
        return layer < this.s.depth ? this.s.n : tokensOf(this.s) + 1;
    }

    c(layer) {
        return layer >= this.s.depth && shared(this.s) ? 1 / Math.sqrt(this.n(layer)) : this.s.c;
    }

    activation(layer) {
        return layer >= this.s.depth && this.s.classSoftmax ? 'softmax' : this.s.activation;
    }

    showsQueryJacobian(layer) {
        return layer >= this.s.depth;
    }

    /** Rows of all samples of a batch at once: by the batch's own moments in training, by the buffers elsewhere and where these are frozen. */
    batchNorm(rows, name) {
        const t = this.t, gain = this.param.get(`${name}.weight`), bias = this.param.get(`${name}.bias`), n = rows.length;
        const out = rows.map(row => new Array(row.length)), moments = { mean: [], variance: [] };
        gain.forEach((g, c) => {
            let mean = this.param.get(`${name}.running_mean`)[c], variance = this.param.get(`${name}.running_var`)[c];
            if (this.draw && !frozenNorm(this.s, name)) {
                mean = t.scale(t.sum(rows.map(row => row[c])), 1 / n);
                const away = rows.map(row => t.sub(row[c], mean));
                variance = t.scale(t.dot(away, away), 1 / n);
                moments.mean.push(t.at(mean));
                moments.variance.push(t.at(variance) * n / (n - 1)); // unbiased
            }
            const root = t.sqrt(t.shift(variance, EPS));
            rows.forEach((row, i) => { out[i][c] = t.add(t.mul(g, t.div(t.sub(row[c], mean), root)), bias[c]); });
        });
        this.moments.set(name, moments);
        return out;
    }

    /** A 3 x 3 convolution of a grid [row][column] of vectors, zeros around it. weight: of output o, input i, tap k. */
    convolve(grid, step, outputs, weight, inputs = grid[0][0].length) {
        const t = this.t, rows = grid.length, columns = grid[0].length, out = [];
        for (let r = 0; r < Math.ceil(rows / step); r++) {
            out.push([]);
            for (let c = 0; c < Math.ceil(columns / step); c++)
                out[r].push(Array.from({ length: outputs }, (_, o) => {
                    const a = [], b = [];
                    for (let k = 0; k < 9; k++) {
                        const pixel = grid[r * step + Math.floor(k / 3) - 1]?.[c * step + k % 3 - 1];
                        for (let i = 0; pixel && i < inputs; i++) {
                            a.push(inputs === 1 && outputs > 1 && pixel.length > 1 ? pixel[o] : pixel[i]);
                            b.push(weight(o, i, k));
                        }
                    }
                    return t.dot(a, b);
                }));
        }
        return out;
    }

    /** f of all rows of several grids, as one batch. */
    together(grids, f) {
        const rows = f(grids.flat(2)), [height, width] = [grids[0].length, grids[0][0].length];
        return grids.map((_, g) => Array.from({ length: height }, (_, r) => rows.slice((g * height + r) * width, (g * height + r + 1) * width)));
    }

    map(grids, f) {
        return grids.map(grid => grid.map(line => line.map(pixel => pixel.map(f))));
    }

    stem(images) {
        const t = this.t, s = this.s;
        let grids = images.map(image => Array.from({ length: s.height }, (_, r) => Array.from({ length: s.imageWidth }, (_, c) =>
            t.leaves(Array.from({ length: s.channels }, (_, ch) => image[(ch * s.height + r) * s.imageWidth + c])))));
        for (let i = 0; i < stemLayers(s); i++) {
            const w = this.param.get(`patch_embed.proj.${2 * i}.0.weight`), inputs = grids[0][0][0].length;
            if (i)
                grids = this.map(grids, a => activate(t, a, 'exact'));
            grids = grids.map(grid => this.convolve(grid, 2, w.length / inputs / 9, (o, ch, k) => w[(o * inputs + ch) * 9 + k]));
            grids = this.together(grids, rows => this.batchNorm(rows, `patch_embed.proj.${2 * i}.1`));
        }
        return grids.map(grid => grid.flat());
    }

    /** The code of one place by the 1 x 1 convolution. */
    position(row, column) {
        const t = this.t, s = this.s, rows = s.height / s.patch[0], columns = s.imageWidth / s.patch[1], code = [];
        for (const at of [2 * Math.PI * (row + 1) / (rows + 1e-6), 2 * Math.PI * (column + 1) / (columns + 1e-6)])
            for (let i = 0; i < CODE; i++) {
                const x = at / 10000 ** (2 * Math.floor(i / 2) / CODE);
                code.push(i % 2 ? Math.cos(x) : Math.sin(x));
            }
        return this.linear(t.leaves(code), 'pos_embeder.token_projection');
    }

    plus(a, b) {
        return a.map((row, i) => row.map((x, c) => this.t.add(x, b[i][c])));
    }

    gamma(rows, name) {
        const g = this.param.get(name);
        return g ? rows.map(row => row.map((a, c) => this.t.mul(g[c], a))) : rows;
    }

    /** Channels attend to channels: row i of A are the weights with which channel i takes the channels of V. */
    covariance(x, layer, sample) {
        const t = this.t, s = this.s, D = s.width, d = D / s.heads, out = x.map(() => new Array(D));
        const qkv = x.map(row => this.linear(row, this.name(layer, 'attn.qkv')));
        const channel = (which, head, i) => qkv.map(row => row[which * D + head * d + i]);
        const unit = list => {
            const length = t.sqrt(t.dot(list, list));
            return list.map(a => t.div(a, length));
        };
        for (let head = 0; head < s.heads; head++) {
            const all = which => Array.from({ length: d }, (_, i) => channel(which, head, i));
            const q = all(0).map(unit), k = all(1).map(unit), v = all(2), tau = this.param.get(this.name(layer, 'attn.temperature'))[head];
            const scale = this.learned(layer, head), shift = s.activation === 'sigmoid_bias' ? -Math.log(this.n(layer)) : 0;
            const logits = q.map(a => k.map(b => t.shift(t.mul(tau, t.dot(a, b)), shift)));
            const rows = logits.map((line, i) => this.weights(line, scale, i, layer));
            rows.forEach((line, i) => {
                const a = this.draw && s.attnDropout > 0 ? line.map((w, j) =>
                    t.scale(w, keeps(this.draw, this.place(layer, 0), (sample * s.heads + head) * d + i, j, s.attnDropout) ? 1 / (1 - s.attnDropout) : 0)) : line;
                x.forEach((_, token) => { out[token][head * d + i] = t.dot(a, v.map(list => list[token])); });
            });
            if (this.keepStats)
                this.look(layer, sample, head, { rows, logits, keys: () => Array.from({ length: d }, (_, j) => j), columns: d, between: 'channels' });
            if (this.keepStats)
                this.note(layer, sample, head, { rows, logits, keysOf: rows.map(line => line.map(() => [tau])), x: rows, tau: 1, scale: scale === null ? null : t.at(scale) });
        }
        return out.map((row, i) => this.drop(this.linear(row, this.name(layer, 'attn.proj')), this.place(layer, 1), sample * x.length + i, s.dropout));
    }

    /** The rows of all samples through a layer. */
    channelLayer(batch, layer) {
        const t = this.t, s = this.s, first = this.first, columns = s.imageWidth / s.patch[1], D = s.width;
        const each = (rows, norm) => rows.map(row => this.norm(row, this.name(layer, norm)));
        const branch = (h, gamma, place, sample) => this.dropPath(this.gamma(h, this.name(layer, gamma)), layer, this.place(layer, place), sample);
        batch = batch.map((x, b) => this.plus(x, branch(this.covariance(each(x, 'norm1'), layer, first + b), 'gamma1', 2, first + b)));
        let grids = batch.map(x => {
            const rows = each(x, 'norm3');
            return Array.from({ length: rows.length / columns }, (_, r) => rows.slice(r * columns, (r + 1) * columns));
        });
        const depthwise = name => {
            const w = this.param.get(this.name(layer, `local_mp.${name}.weight`)), bias = this.param.get(this.name(layer, `local_mp.${name}.bias`));
            grids = grids.map(grid => this.convolve(grid, 1, D, (o, _, k) => w[o * 9 + k], 1).map(line => line.map(pixel => pixel.map((a, c) => t.add(a, bias[c])))));
        };
        depthwise('conv1');
        grids = this.together(this.map(grids, a => activate(t, a, 'exact')), rows => this.batchNorm(rows, this.name(layer, 'local_mp.bn')));
        depthwise('conv2');
        batch = batch.map((x, b) => this.plus(x, branch(grids[b].flat(), 'gamma3', 6, first + b)));
        return batch.map((x, b) => this.plus(x, branch(this.feedForward(each(x, 'norm2'), layer, first + b), 'gamma2', 5, first + b)));
    }

    /** The class row, which is the first, asks; all rows answer. */
    classLayer(x, layer, sample) {
        const t = this.t, s = this.s, D = s.width, d = D / s.heads;
        const each = (rows, norm) => rows.map(row => this.norm(row, this.name(layer, norm)));
        const like = this.activation(layer) === s.activation ? this : Object.create(this, { s: { value: { ...s, activation: 'softmax' } } });
        const u = each(x, 'norm1'), qkv = u.map(row => this.linear(row, this.name(layer, 'attn.qkv'))), y = [];
        for (let head = 0; head < s.heads; head++) {
            const part = (row, which) => row.slice(which * D + head * d, which * D + (head + 1) * d);
            const q = part(qkv[0], 0), k = qkv.map(row => part(row, 1)), v = qkv.map(row => part(row, 2)), tau = 1 / Math.sqrt(d);
            const shift = like.s.activation === 'sigmoid_bias' ? -Math.log(this.n(layer)) : 0, scale = like.learned(layer, head);
            const logits = k.map(row => t.shift(t.scale(t.dot(q, row), tau), shift));
            let a = like.weights(logits, scale, 0, layer);
            if (this.keepStats)
                this.look(layer, sample, head, { rows: [a], logits: [logits], keys: () => k.map((_, j) => j), columns: k.length, between: 'class' });
            if (this.keepStats)
                like.note(layer, sample, head, { rows: [a], logits: [logits], keysOf: [k], x: [u[0]], tau, scale: scale === null ? null : t.at(scale) });
            if (this.draw && s.attnDropout > 0)
                a = a.map((w, j) => t.scale(w, keeps(this.draw, this.place(layer, 0), sample * s.heads + head, j, s.attnDropout) ? 1 / (1 - s.attnDropout) : 0));
            for (let c = 0; c < d; c++)
                y.push(t.dot(a, v.map(row => row[c])));
        }
        const asked = this.drop(this.linear(y, this.name(layer, 'attn.proj')), this.place(layer, 1), sample, s.dropout);
        x = each(this.plus(x, this.gamma([asked, ...u.slice(1)], this.name(layer, 'gamma1'))), 'norm2');
        const [fed] = this.gamma(this.feedForward([x[0]], layer, sample), this.name(layer, 'gamma2'));
        return this.plus(x, [fed, ...x.slice(1)]);
    }

    /** `first` is the number of the first image. */
    classifyBatch(images, first = 0) {
        const s = this.s, columns = s.imageWidth / s.patch[1];
        let batch = this.stem(images);
        if (s.pos === 'fourier')
            batch = batch.map(x => this.plus(x, x.map((_, i) => this.position(Math.floor(i / columns), i % columns))));
        this.first = first;
        batch = batch.map((x, b) => x.map((row, i) => this.drop(row, 0, (first + b) * x.length + i, s.dropout)));
        for (let layer = 0; layer < s.depth; layer++)
            batch = this.channelLayer(batch, layer);
        return batch.map((rows, b) => {
            let x = [this.param.get('cls_token'), ...rows];
            for (let layer = s.depth; layer < s.depth + CLASS_LAYERS; layer++)
                x = this.classLayer(x, layer, first + b);
            return this.linear(s.finalNorm ? this.norm(x[0], 'norm') : x[0], 'head');
        });
    }

    classify(image, sample = 0) {
        return this.classifyBatch([image], sample)[0];
    }
}
