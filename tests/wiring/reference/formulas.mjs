// Formulas of attention as the wiring cases type them, each a second time by hand: a row of logits becomes a row of A.
import { Tape } from './tape.mjs';

const relu = (t, a) => t.unary(a, Math.max(t.at(a), 0), t.at(a) > 0 ? 1 : 0);
const exps = (t, l) => l.map(a => t.exp(a));

/**
 * Nodes of A from nodes of the logits. `at`: n, i, h, heads, and scalar(name), a node.
 * @type {Record<string, (t: Tape, l: number[], at: any) => number[]>}
 */
const rows = {
    's^3/(1+abs(s))': (t, l) => l.map(a => t.div(t.power(a, 3), t.shift(t.abs(a), 1))),
    'c*s^3/(a+abs(s)) + b*s/n': (t, l, { n, scalar }) => l.map(x =>
        t.add(t.mul(scalar('c'), t.div(t.power(x, 3), t.add(scalar('a'), t.abs(x)))), t.scale(t.mul(scalar('b'), x), 1 / n))),
    'log(s+0.2)': (t, l) => l.map(a => t.unary(a, Math.log(t.at(a) + 0.2), 1 / (t.at(a) + 0.2))),
    's^3/sqrt(n)': (t, l, { n }) => l.map(a => t.scale(t.power(a, 3), n ** -0.5)),
    '3*s^2/n': (t, l, { n }) => l.map(a => t.scale(t.power(a, 2), 3 / n)),
    'a*s^3': (t, l, { scalar }) => l.map(a => t.mul(scalar('a'), t.power(a, 3))),
    'exp(s)/(exp(b)+rowsum(exp(s)))': (t, l, { scalar }) => {
        const e = exps(t, l), under = t.add(t.exp(scalar('b')), t.sum(e));
        return e.map(a => t.div(a, under));
    },
    'relu(softmax(s) + a/ni)': (t, l, { scalar }) => {
        const e = exps(t, l), sum = t.sum(e), more = t.scale(scalar('a'), 1 / l.length);
        return e.map(a => relu(t, t.add(t.div(a, sum), more)));
    },
    'softmax(c*tanh(s/c))*(1+h)/H': (t, l, { scalar, h, heads }) => {
        const c = scalar('c');
        const e = l.map(a => {
            const x = t.div(a, c), y = Math.tanh(t.at(x));
            return t.exp(t.mul(c, t.unary(x, y, 1 - y * y)));
        });
        const sum = t.sum(e);
        return e.map(a => t.scale(t.div(a, sum), (1 + h) / heads));
    },
};

/** Initial values as typed. */
const starts = {
    '1': () => 1, '0.1': () => 0.1, '0.5': () => 0.5, '1/sqrt(n)': ({ n }) => n ** -0.5, '0.3*(h+1)/(l+1)': ({ h, l }) => 0.3 * (h + 1) / (l + 1), '2': () => 2, '800': () => 800,
};
const inverse = { direct: v => v, log: Math.log, softplus: v => v + Math.log1p(-Math.exp(-v)), sigmoid: v => Math.log(v / (1 - v)) };
/** The trained number's value, and its slope there. */
const forms = {
    direct: x => [x, 1], log: x => [Math.exp(x), Math.exp(x)], softplus: x => [Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x))), 1 / (1 + Math.exp(-x))],
    sigmoid: x => [1 / (1 + Math.exp(-x)), 1 / (1 + Math.exp(-x)) * (1 - 1 / (1 + Math.exp(-x)))],
};

/** The learned scalars of a formula: those of the document, else of each layer, direct, from 1. */
export function scalars(attention) {
    const names = /^c\*s/.test(attention.formula ?? '') ? ['a', 'b', 'c'] : /^a\*|a\/ni/.test(attention.formula ?? '') ? ['a'] : /exp\(b\)/.test(attention.formula ?? '') ? ['b'] : /tanh\(s\/c/.test(attention.formula ?? '') ? ['c'] : [];
    return names.map(name => ({ name, init: '1', per: 'layer', form: 'direct', ...attention.params?.[name] }));
}

/** Parameter of a scalar in a layer: name, shape, values at the start. `path`: of the attention module. */
export function parameter(s, scalar, layer, path) {
    const count = scalar.per === 'head' ? s.heads : 1, global = scalar.per === 'global';
    return { name: global ? `formula_${scalar.name}` : `${path}.formula_${scalar.name}`, count,
        values: Array.from({ length: count }, (_, h) => inverse[scalar.form](starts[scalar.init]({ n: s.n, h, l: global ? 0 : layer }))) };
}

/** A scalar's value in a head, as a node. */
export function scalarOf(t, s, param, scalar, layer, head, path) {
    const all = param.get(parameter(s, scalar, layer, path).name), x = all[scalar.per === 'head' ? head : 0];
    const [y, slope] = forms[scalar.form](t.at(x));
    return t.unary(x, y, slope);
}

export function weights(t, s, l, at) {
    const row = rows[s.formula];
    if (!row)
        throw new Error(`no row for '${s.formula}'`);
    return row(t, l, at);
}

/** dA_j / ds_m of a row of logits, given the scalars as numbers. */
export function jacobian(s, logits, at, numbers) {
    const t = new Tape(), l = logits.map(x => t.leaf(x)), given = new Map(Object.entries(numbers).map(([name, x]) => [name, t.leaf(x)]));
    return weights(t, s, l, { ...at, scalar: name => given.get(name) }).map(a => {
        const g = t.gradient(a);
        return l.map(id => g[id]);
    });
}
