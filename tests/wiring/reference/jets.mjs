// Numbers v + a e1 + b e2 + ab e1 e2 with e1² = e2² = 0, whose parts are nodes of a tape: a derivative by points, once or twice, that has
// itself a derivative by parameters. A part that is null is zero.

const parts = ['v', 'a', 'b', 'ab'];

export class Jets {
    /** @param {import('./tape.mjs').Tape} t */
    constructor(t) {
        this.t = t;
    }

    /** A number that moves with e1 and e2 at these rates. */
    point(v, a = 0, b = 0) {
        return { v: this.t.leaf(v), a: a ? this.t.leaf(a) : null, b: b ? this.t.leaf(b) : null, ab: null };
    }

    /** A node that does not move. */
    still(v) {
        return { v, a: null, b: null, ab: null };
    }

    sum(list) {
        return Object.fromEntries(parts.map(part => {
            const nodes = list.map(x => x[part]).filter(node => node !== null);
            return [part, nodes.length ? this.t.sum(nodes) : null];
        }));
    }

    /** The sum of x_i w_i over nodes w. */
    dot(x, w) {
        return Object.fromEntries(parts.map(part => {
            const at = x.flatMap((one, i) => (one[part] === null ? [] : [i]));
            return [part, at.length ? this.t.dot(at.map(i => x[i][part]), at.map(i => w[i])) : null];
        }));
    }

    mul(x, y) {
        const products = (...pairs) => {
            const nodes = pairs.filter(([p, q]) => x[p] !== null && y[q] !== null).map(([p, q]) => this.t.mul(x[p], y[q]));
            return nodes.length ? this.t.sum(nodes) : null;
        };
        return { v: products(['v', 'v']), a: products(['a', 'v'], ['v', 'a']), b: products(['b', 'v'], ['v', 'b']), ab: products(['ab', 'v'], ['a', 'b'], ['b', 'a'], ['v', 'ab']) };
    }

    scale(x, factor) {
        return Object.fromEntries(parts.map(part => [part, x[part] === null ? null : this.t.scale(x[part], factor)]));
    }

    /** f(x), of which f, f' and f'' are made as nodes. */
    through(x, f, slope, bend) {
        const t = this.t, moves = x.a !== null || x.b !== null, first = moves ? slope() : null, times = node => (node === null ? null : t.mul(first, node));
        let ab = times(x.ab);
        if (x.a !== null && x.b !== null) {
            const bent = t.mul(bend(), t.mul(x.a, x.b));
            ab = ab === null ? bent : t.add(ab, bent);
        }
        return { v: f(), a: times(x.a), b: times(x.b), ab };
    }

    sin(x) {
        const t = this.t, z = t.at(x.v), sine = () => t.unary(x.v, Math.sin(z), Math.cos(z));
        return this.through(x, sine, () => t.unary(x.v, Math.cos(z), -Math.sin(z)), () => t.scale(sine(), -1));
    }

    cos(x) {
        const t = this.t, z = t.at(x.v), cosine = () => t.unary(x.v, Math.cos(z), -Math.sin(z));
        return this.through(x, cosine, () => t.unary(x.v, -Math.sin(z), -Math.cos(z)), () => t.scale(cosine(), -1));
    }

    /** x^p for a whole p >= 1. */
    power(x, p) {
        const t = this.t, of = (factor, q) => (q === 0 ? t.leaf(factor) : t.scale(t.power(x.v, q), factor));
        return this.through(x, () => of(1, p), () => of(p, p - 1), () => (p > 1 ? of(p * (p - 1), p - 2) : t.leaf(0)));
    }
}
