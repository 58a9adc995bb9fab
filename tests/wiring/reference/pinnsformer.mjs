// A PINNsformer from its formulas, one sequence at a time, and the parts of its loss. Derivatives by the points are differences, so Pinnsformer
// does not know how to differentiate: they agree with the worker's to about 1e-6. Gradients by parameters need more digits: they come from
// the same formulas on a tape, where points move by infinitesimals.
import { Jets } from './jets.mjs';
import { Tape } from './tape.mjs';
import { distributions } from './train.mjs';

/** Parameters by name, and the job's settings: {heads, scale, degree} of attention (`scale` null: learned) and the numbers of data.pde. */
export class Pinnsformer {
    constructor(params, job) {
        this.p = params;
        this.job = job;
    }

    linear(x, name) {
        const w = this.p.get(`${name}.weight`).data, b = this.p.get(`${name}.bias`).data, width = x[0].length;
        return x.map(row => Array.from(b, (bias, o) => row.reduce((sum, v, i) => sum + v * w[o * width + i], bias)));
    }

    wave(x, name) {
        const [w1] = this.p.get(`${name}.w1`).data, [w2] = this.p.get(`${name}.w2`).data;
        return x.map(row => row.map(v => w1 * Math.sin(v) + w2 * Math.cos(v)));
    }

    three(x, name) {
        return this.linear(this.wave(this.linear(this.wave(this.linear(x, `${name}.0`), `${name}.1`), `${name}.2`), `${name}.3`), `${name}.4`);
    }

    scale(name) {
        return this.job.scale ?? this.p.get(`${name}.attn_scale`).data[0];
    }

    attention(x, from, name, layer) {
        const w = this.p.get(`${name}.in_proj_weight`).data, b = this.p.get(`${name}.in_proj_bias`).data, d = x[0].length, each = d / this.job.heads;
        const part = (rows, which) => rows.map(row => Array.from({ length: d }, (_, o) => row.reduce((sum, v, i) => sum + v * w[(which * d + o) * d + i], b[which * d + o])));
        const [q, k, v] = [part(x, 0), part(from, 1), part(from, 2)];
        const out = x.map(() => new Array(d).fill(0)), c = this.scale(name), looks = this.looks && Array.from({ length: this.job.heads }, () => ({ a: q.map(() => []), logits: q.map(() => []), between: null }));
        looks && (this.looks[layer] ??= []).push(looks);
        for (let head = 0; head < this.job.heads; head++)
            for (let i = 0; i < q.length; i++)
                for (let j = 0; j < k.length; j++) {
                    let z = 0;
                    for (let o = head * each; o < (head + 1) * each; o++)
                        z += q[i][o] * k[j][o] / Math.sqrt(each);
                    if (looks) {
                        looks[head].logits[i][j] = z;
                        looks[head].a[i][j] = c * z ** this.job.degree;
                    }
                    for (let o = head * each; o < (head + 1) * each; o++)
                        out[i][o] += c * z ** this.job.degree * v[j][o];
                }
        return this.linear(out, `${name}.out_proj`);
    }

    layer(x, from, name, at) {
        const sum = (a, b) => a.map((row, i) => row.map((v, c) => v + b[i][c])), y = this.wave(x, `${name}.act1`);
        x = sum(x, this.attention(y, from ?? y, `${name}.attn`, at));
        return sum(x, this.three(this.wave(x, `${name}.act2`), `${name}.ff.linear`));
    }

    /** u at the points of a sequence. */
    u(x, t) {
        const embedded = this.linear(x.map((v, i) => [v, t[i]]), 'linear_emb');
        const e = this.wave(this.layer(embedded, null, 'encoder.layers.0', 0), 'encoder.act');
        return this.three(this.wave(this.layer(embedded, e, 'decoder.layers.0', 1), 'decoder.act'), 'linear_out').map(row => row[0]);
    }

    /** A derivative of f(x, t), a number each point, by coordinate 0 or 1: of the sum over the sequence by each point, or along a shift of all. */
    derivative(f, by, h) {
        const moved = (x, t, which, step) => {
            const at = [x.slice(), t.slice()];
            at[by] = at[by].map((v, i) => which < 0 || which === i ? v + step : v);
            return f(...at);
        };
        const sum = list => list.reduce((a, b) => a + b, 0);
        if (this.job.shift)
            return (x, t) => {
                const [up, down] = [moved(x, t, -1, h), moved(x, t, -1, -h)];
                return up.map((v, i) => (v - down[i]) / (2 * h));
            };
        return (x, t) => x.map((_, i) => (sum(moved(x, t, i, h)) - sum(moved(x, t, i, -h))) / (2 * h));
    }

    /** The sequence that begins at place b and time a of a grid of [times, places]. */
    sequence([times, places], a, b) {
        const { points, step, width } = this.job;
        return [Array.from({ length: points }, () => Math.fround(width * b / (places - 1))), Array.from({ length: points }, (_, k) => Math.fround(a / (times - 1) + k * step))];
    }

    initial(x) {
        return { pde_convection: Math.sin(x), pde_reaction: Math.exp(-((x - Math.PI) ** 2) / (2 * (Math.PI / 4) ** 2)),
            pde_wave: Math.sin(Math.PI * x) + Math.sin(3 * Math.PI * x) / 2 }[this.job.dataset];
    }

    exact(x, t) {
        const { dataset, coefficient: c } = this.job, h = this.initial(x), grown = h * Math.exp(c * t);
        return dataset === 'pde_convection' ? Math.sin(x - c * t) : dataset === 'pde_reaction' ? grown / (grown + 1 - h)
            : Math.sin(Math.PI * x) * Math.cos(c * Math.PI * t) + Math.sin(3 * Math.PI * x) * Math.cos(3 * c * Math.PI * t) / 2;
    }

    /** Residual, boundary and initial part of the loss. */
    loss() {
        const { grid, dataset, coefficient: c } = this.job, [times, places] = grid, mean = list => list.reduce((a, b) => a + b * b, 0) / list.length;
        const u = (x, t) => this.u(x, t), first = 1e-6, twice = 3e-5;
        const ut = this.derivative(u, 1, first), ux = this.derivative(u, 0, first);
        const wide = [this.derivative(this.derivative(u, 1, twice), 1, twice), this.derivative(this.derivative(u, 0, twice), 0, twice)];
        const residual = [], ends = [], left = [], right = [], start = [], rest = [];
        for (let a = 0; a < times; a++) {
            for (let b = 0; b < places; b++) {
                const [x, t] = this.sequence(grid, a, b), at = u(x, t);
                if (dataset === 'pde_wave') {
                    const [tt, xx] = wide.map(f => f(x, t));
                    residual.push(...tt.map((v, i) => v - c * c * xx[i]));
                } else if (dataset === 'pde_convection') {
                    const along = ux(x, t);
                    residual.push(...ut(x, t).map((v, i) => v + c * along[i]));
                } else {
                    residual.push(...ut(x, t).map((v, i) => v - c * at[i] * (1 - at[i])));
                }
                if (a === 0) {
                    start.push(at[0] - this.initial(x[0]));
                    rest.push(ut(x, t)[0]);
                }
            }
            const [l, r] = [this.u(...this.sequence(grid, a, 0)), this.u(...this.sequence(grid, a, places - 1))];
            left.push(...l);
            right.push(...r);
            ends.push(...l.map((v, i) => r[i] - v));
        }
        return { residual: mean(residual), boundary: dataset === 'pde_wave' ? mean(left) + mean(right) : mean(ends),
            initial: mean(start) + (dataset === 'pde_wave' ? mean(rest) : 0) };
    }

    /** rMAE, rRMSE and the mean square of the error over the evaluation grid. */
    errors() {
        const [times, places] = this.job.test_grid, { width } = this.job;
        let off = 0, size = 0, off2 = 0, size2 = 0;
        for (let a = 0; a < times; a++)
            for (let b = 0; b < places; b++) {
                const want = Math.fround(this.exact(width * b / (places - 1), a / (times - 1))), error = this.u(...this.sequence([times, places], a, b))[0] - want;
                off += Math.abs(error);
                size += Math.abs(want);
                off2 += error ** 2;
                size2 += want ** 2;
            }
        return { rmae: off / size, rrmse: Math.sqrt(off2 / size2), loss: off2 / (times * places) };
    }
}

/** The same network, whose numbers are jets on a tape. */
class Differentiable extends Pinnsformer {
    constructor(params, job) {
        super(params, job);
        this.t = new Tape();
        this.j = new Jets(this.t);
        this.nodes = new Map(Array.from(params, ([name, { data }]) => [name, this.t.leaves(data)]));
    }

    rows(x, w, b, first, count) {
        const { j } = this, width = x[0].length;
        return x.map(row => Array.from({ length: count }, (_, o) => j.sum([j.dot(row, w.slice((first + o) * width, (first + o + 1) * width)), j.still(b[first + o])])));
    }

    linear(x, name) {
        const w = this.nodes.get(`${name}.weight`), b = this.nodes.get(`${name}.bias`);
        return this.rows(x, w, b, 0, b.length);
    }

    wave(x, name) {
        const { j } = this, w = ['w1', 'w2'].map(w => this.nodes.get(`${name}.${w}`)[0]);
        return x.map(row => row.map(v => j.sum([j.dot([j.sin(v)], [w[0]]), j.dot([j.cos(v)], [w[1]])])));
    }

    attention(x, from, name) {
        const { j } = this, w = this.nodes.get(`${name}.in_proj_weight`), b = this.nodes.get(`${name}.in_proj_bias`), d = x[0].length, each = d / this.job.heads;
        const [q, k, v] = [x, from, from].map((rows, which) => this.rows(rows, w, b, which * d, d)), c = this.job.scale === null ? this.nodes.get(`${name}.attn_scale`)[0] : this.t.leaf(this.job.scale);
        const out = q.map(row => Array.from({ length: d }, (_, o) => {
            const head = Math.floor(o / each), channels = Array.from({ length: each }, (_, i) => head * each + i);
            return j.sum(k.map((key, at) => {
                const z = j.scale(j.sum(channels.map(i => j.mul(row[i], key[i]))), 1 / Math.sqrt(each));
                return j.mul(j.dot([j.power(z, this.job.degree)], [c]), v[at][o]);
            }));
        }));
        return this.linear(out, `${name}.out_proj`);
    }

    layer(x, from, name) {
        const sum = (a, b) => a.map((row, i) => row.map((v, c) => this.j.sum([v, b[i][c]]))), y = this.wave(x, `${name}.act1`);
        x = sum(x, this.attention(y, from ?? y, `${name}.attn`));
        return sum(x, this.three(this.wave(x, `${name}.act2`), `${name}.ff.linear`));
    }

    /** u of a sequence whose points move in coordinate `by` at these rates. */
    moved([x, t], by, a, b = []) {
        const still = list => list.map(v => this.j.point(v)), moving = list => list.map((v, i) => this.j.point(v, a[i], b[i]));
        return this.u(by === 0 ? moving(x) : still(x), by === 1 ? moving(t) : still(t));
    }

    /** Nodes: the derivative by coordinate `by` at each point, once or twice. */
    slopes(sequence, by, twice = false) {
        const n = sequence[0].length, all = new Array(n).fill(1), part = twice ? 'ab' : 'a';
        if (this.job.shift)
            return this.moved(sequence, by, all, twice ? all : []).map(u => u[part]);
        // Of the sum over the outputs by each point; of these again the sum.
        return all.map((_, i) => {
            const one = all.map((_, k) => (k === i ? 1 : 0)), u = twice ? this.moved(sequence, by, all, one) : this.moved(sequence, by, one);
            return this.t.sum(u.map(v => v[part]).filter(node => node !== null));
        });
    }

    /** A node: all of the loss. */
    total() {
        const { t } = this, { grid, dataset, coefficient: c } = this.job, [times, places] = grid, mean = list => t.scale(t.dot(list, list), 1 / list.length);
        const residual = [], ends = [], left = [], right = [], start = [], rest = [];
        for (let a = 0; a < times; a++) {
            let first;
            for (let b = 0; b < places; b++) {
                const sequence = this.sequence(grid, a, b), u = this.u(...sequence.map(list => list.map(v => this.j.point(v)))).map(one => one.v);
                const by = dataset === 'pde_wave' ? [this.slopes(sequence, 1, true), this.slopes(sequence, 0, true)] : [this.slopes(sequence, 1), dataset === 'pde_convection' ? this.slopes(sequence, 0) : null];
                residual.push(...u.map((v, i) => (dataset === 'pde_wave' ? t.sub(by[0][i], t.scale(by[1][i], c * c)) : dataset === 'pde_convection' ? t.add(by[0][i], t.scale(by[1][i], c))
                    : t.sub(by[0][i], t.scale(t.sub(v, t.mul(v, v)), c)))));
                if (a === 0) {
                    start.push(t.shift(u[0], -this.initial(sequence[0][0])));
                    if (dataset === 'pde_wave')
                        rest.push(this.slopes(sequence, 1)[0]);
                }
                if (b === 0)
                    first = u;
                if (b === places - 1) {
                    left.push(...first);
                    right.push(...u);
                    ends.push(...u.map((v, i) => t.sub(v, first[i])));
                }
            }
        }
        return t.sum(dataset === 'pde_wave' ? [mean(residual), mean(left), mean(right), mean(start), mean(rest)] : [mean(residual), mean(ends), mean(start)]);
    }
}

/** Names of the weights whose gradients are looked at, of a layer; of W_Q, W_K and W_V together a third of the rows each. */
const looked = { w_q: ['attn.in_proj_weight', 0], w_k: ['attn.in_proj_weight', 1], w_v: ['attn.in_proj_weight', 2], w_o: ['attn.out_proj.weight'], w_1: ['ff.linear.0.weight'], w_2: ['ff.linear.4.weight'] };

/** Distributions of the gradient of the loss, and the loss. @param {{histograms: {tensors: string[]}}} s which are recorded */
export function tails(s, params, job) {
    const net = new Differentiable(params, job), loss = net.total(), g = net.t.gradient(loss);
    return { loss: net.t.at(loss), ...distributions(s, Object.entries(looked).map(([weight, [name, third]]) => [weight, ['encoder', 'decoder'].map(stack => {
        const list = net.nodes.get(`${stack}.layers.0.${name}`).map(node => g[node]);
        return third === undefined ? list : list.slice(third * list.length / 3, (third + 1) * list.length / 3);
    })])) };
}
