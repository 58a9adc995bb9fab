// Reverse-mode differentiation of scalars, in double. A node is a number: its place on the tape. Every formula of the
// reference network is written with these few operations, so that its derivative follows and is nowhere written down.

export class Tape {
    constructor() {
        this.count = 0;
        this.value = new Float64Array(1 << 13);
        this.first = new Int32Array(1 << 13); // edges of node i: first[i] .. first[i + 1]
        this.edges = 0;
        this.from = new Int32Array(1 << 15);
        this.slope = new Float64Array(1 << 15);
    }

    node(value) {
        if (this.count + 2 > this.value.length) {
            this.value = grown(this.value);
            this.first = grown(this.first);
        }
        this.value[this.count] = value;
        this.first[this.count + 1] = this.edges;
        return this.count++;
    }

    /** An edge of the node that was made last. */
    edge(from, slope) {
        if (this.edges + 1 > this.from.length) {
            this.from = grown(this.from);
            this.slope = grown(this.slope);
        }
        this.from[this.edges] = from;
        this.slope[this.edges++] = slope;
        this.first[this.count] = this.edges;
    }

    leaf(value) {
        return this.node(value);
    }

    leaves(values) {
        return Array.from(values, value => this.node(value));
    }

    at(i) {
        return this.value[i];
    }

    /** f(a), with its slope. */
    unary(a, value, slope) {
        const node = this.node(value);
        this.edge(a, slope);
        return node;
    }

    add(a, b) {
        const node = this.node(this.value[a] + this.value[b]);
        this.edge(a, 1);
        this.edge(b, 1);
        return node;
    }

    sub(a, b) {
        const node = this.node(this.value[a] - this.value[b]);
        this.edge(a, 1);
        this.edge(b, -1);
        return node;
    }

    mul(a, b) {
        const x = this.value[a], y = this.value[b];
        const node = this.node(x * y);
        this.edge(a, y);
        this.edge(b, x);
        return node;
    }

    div(a, b) {
        const x = this.value[a], y = this.value[b];
        const node = this.node(x / y);
        this.edge(a, 1 / y);
        this.edge(b, -x / (y * y));
        return node;
    }

    /** a times a number. */
    scale(a, factor) {
        return this.unary(a, factor * this.value[a], factor);
    }

    /** a plus a number. */
    shift(a, number) {
        return this.unary(a, this.value[a] + number, 1);
    }

    sum(list) {
        let total = 0;
        for (const a of list)
            total += this.value[a];
        const node = this.node(total);
        for (const a of list)
            this.edge(a, 1);
        return node;
    }

    dot(a, b) {
        let total = 0;
        for (let i = 0; i < a.length; i++)
            total += this.value[a[i]] * this.value[b[i]];
        const node = this.node(total);
        for (let i = 0; i < a.length; i++) {
            this.edge(a[i], this.value[b[i]]);
            this.edge(b[i], this.value[a[i]]);
        }
        return node;
    }

    exp(a) {
        const y = Math.exp(this.value[a]);
        return this.unary(a, y, y);
    }

    log(a) {
        const x = this.value[a];
        return this.unary(a, Math.log(x), 1 / x);
    }

    sqrt(a) {
        const y = Math.sqrt(this.value[a]);
        return this.unary(a, y, 0.5 / y);
    }

    abs(a) {
        const x = this.value[a];
        return this.unary(a, Math.abs(x), Math.sign(x));
    }

    /** x^p for a whole p >= 1, by multiplication. */
    power(a, p) {
        const x = this.value[a];
        let below = 1;
        for (let i = 1; i < p; i++)
            below *= x;
        return this.unary(a, below * x, p * below);
    }

    /** Derivatives of node `of` by every node. */
    gradient(of) {
        const g = new Float64Array(this.count);
        g[of] = 1;
        for (let i = of; i >= 0; i--)
            if (g[i] !== 0)
                for (let e = this.first[i]; e < this.first[i + 1]; e++)
                    g[this.from[e]] += g[i] * this.slope[e];
        return g;
    }
}

function grown(array) {
    const more = new array.constructor(array.length * 2);
    more.set(array);
    return more;
}

/** The error function, from its series of positive terms (Abramowitz and Stegun 7.1.6). */
export function erf(x) {
    const z = Math.abs(x);
    if (z > 6)
        return Math.sign(x);
    let term = z, sum = z;
    for (let n = 1; term > sum * 1e-18; n++) {
        term *= 2 * z * z / (2 * n + 1);
        sum += term;
    }
    return Math.sign(x) * 2 / Math.sqrt(Math.PI) * Math.exp(-z * z) * sum;
}
