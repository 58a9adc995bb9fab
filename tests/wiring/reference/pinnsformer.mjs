// A PINNsformer from its formulas, one sequence at a time, and the parts of its loss. Derivatives by the points are differences, so nothing here
// knows how to differentiate: they agree with the worker's to about 1e-6.

/** Parameters by name, and the job's settings: {heads, scale, degree} of attention and the numbers of data.pde. */
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

    attention(x, from, name) {
        const w = this.p.get(`${name}.in_proj_weight`).data, b = this.p.get(`${name}.in_proj_bias`).data, d = x[0].length, each = d / this.job.heads;
        const part = (rows, which) => rows.map(row => Array.from({ length: d }, (_, o) => row.reduce((sum, v, i) => sum + v * w[(which * d + o) * d + i], b[which * d + o])));
        const [q, k, v] = [part(x, 0), part(from, 1), part(from, 2)];
        const out = x.map(() => new Array(d).fill(0)), weights = this.looks && Array.from({ length: this.job.heads }, () => q.map(() => []));
        weights && (this.looks[name] ??= []).push(weights);
        for (let head = 0; head < this.job.heads; head++)
            for (let i = 0; i < q.length; i++)
                for (let j = 0; j < k.length; j++) {
                    let z = 0;
                    for (let c = head * each; c < (head + 1) * each; c++)
                        z += q[i][c] * k[j][c] / Math.sqrt(each);
                    if (weights)
                        weights[head][i][j] = this.job.scale * z ** this.job.degree;
                    for (let c = head * each; c < (head + 1) * each; c++)
                        out[i][c] += this.job.scale * z ** this.job.degree * v[j][c];
                }
        return this.linear(out, `${name}.out_proj`);
    }

    layer(x, from, name) {
        const sum = (a, b) => a.map((row, i) => row.map((v, c) => v + b[i][c])), y = this.wave(x, `${name}.act1`);
        x = sum(x, this.attention(y, from ?? y, `${name}.attn`));
        return sum(x, this.three(this.wave(x, `${name}.act2`), `${name}.ff.linear`));
    }

    /** u at the points of a sequence. */
    u(x, t) {
        const embedded = this.linear(x.map((v, i) => [v, t[i]]), 'linear_emb');
        const e = this.wave(this.layer(embedded, null, 'encoder.layers.0'), 'encoder.act');
        return this.three(this.wave(this.layer(embedded, e, 'decoder.layers.0'), 'decoder.act'), 'linear_out').map(row => row[0]);
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
