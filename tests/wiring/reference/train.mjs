// A whole run in double: losses, gradients by the tape, clipping, the optimisers (tests/golden/README.md 7), schedule, averages,
// validation and probes. What it returns is what the daemon must have reported.
import { decays, initial, shapes } from './init.mjs';
import { lesson, numbers } from './deit.mjs';
import { network } from './networks.mjs';
import { Tape } from './tape.mjs';
import { frozenNorm } from './xcit.mjs';

/** Straight lines from `begin` to `peak`, which the last step of the warm-up has, and to `end`, which the last step has. */
function cycle(s, step, begin, peak, end) {
    const unit = s.perEpoch ? Math.max(1, s.stepsPerEpoch) : 1;
    const t = Math.floor(step / unit), top = s.warmup / unit - 1, last = s.steps / unit - 1;
    const share = t <= top ? top > 0 ? t / top : 1 : Math.min(1, (t - top) / (last - top));
    return t <= top ? begin * (1 - share) + peak * share : peak * (1 - share) + end * share;
}

/** The learning rate of a step, counted from 0. */
export function rate(s, step) {
    if (s.schedule === 'one_cycle')
        return cycle(s, step, s.warmupLr, s.lr, s.minLr);
    const unit = s.perEpoch ? Math.max(1, s.stepsPerEpoch) : 1;
    const t = Math.floor(step / unit), warm = s.warmup / unit, total = s.steps / unit;
    if (t < warm)
        return s.warmupForm === 'timm' ? s.warmupLr + t * (s.lr - s.warmupLr) / warm : s.lr * (t + 1) / (warm + 1);
    if (s.schedule === 'constant')
        return s.lr;
    if (s.schedule === 'step')
        return Math.max(s.minLr, s.milestones.filter(m => step >= m).reduce(lr => lr * s.factor, s.lr));
    const at = s.shifted ? t - warm : t, span = s.shifted ? total - warm : total;
    if (at >= span)
        return s.minLr;
    const share = at / span;
    return s.schedule === 'linear' ? s.lr + (s.minLr - s.lr) * share
        : s.minLr + (s.lr - s.minLr) / 2 * (1 + Math.cos(Math.PI * share));
}

/** Cross-entropy of one row of logits with label smoothing: sum form, and whether the first largest is right. */
function lossOf(t, logits, target, smoothing) {
    const top = Math.max(...logits.map(a => t.at(a)));
    const shifted = logits.map(a => t.shift(a, -top));
    const lse = t.log(t.sum(shifted.map(a => t.exp(a))));
    let loss = t.sub(lse, shifted[target]);
    if (smoothing > 0) {
        const mean = t.scale(t.sum(shifted.map(a => t.sub(lse, a))), 1 / logits.length);
        loss = t.add(t.scale(loss, 1 - smoothing), t.scale(mean, smoothing));
    }
    const values = logits.map(a => t.at(a));
    return { loss, right: values.indexOf(Math.max(...values)) === target };
}

/** Of a mixed picture: both labels by their shares. */
function mixedLoss(t, logits, { target, share, other }, smoothing) {
    const own = lossOf(t, logits, target, smoothing);
    return share === undefined ? own
        : { ...own, loss: t.add(t.scale(own.loss, share), t.scale(lossOf(t, logits, other, smoothing).loss, 1 - share)) };
}

/** Of a network with a teacher: the class head's loss and the lesson of the other head, by their shares. */
function taughtLoss(net, sample, i, smoothing, teacher) {
    const { input } = sample;
    const t = net.t;
    net.classify(input, i);
    const own = mixedLoss(t, net.both[0], sample, smoothing), said = numbers(network, teacher, input);
    return { ...own, loss: t.add(t.scale(own.loss, 1 - teacher.alpha), t.scale(lesson(t, net.both[1], said, teacher), teacher.alpha)) };
}

/** Losses of samples: nodes to be summed, how many targets, how many right. */
function lossesOf(net, samples, smoothing, teacher = null) {
    const losses = [];
    const batch = net.classifyBatch?.(samples.map(({ input }) => input)); // where samples of a batch meet
    let right = 0;
    samples.forEach((sample, i) => {
        const { input, target } = sample;
        if (sample.share !== undefined && !teacher) {
            const one = mixedLoss(net.t, net.classify(input, i), sample, smoothing);
            losses.push(one.loss);
            right += one.right;
            return;
        }
        if (teacher) {
            const one = taughtLoss(net, sample, i, smoothing, teacher);
            losses.push(one.loss);
            right += one.right;
            return;
        }
        const rows = batch ? [batch[i]] : net.s.classes ? [net.classify(input, i)] : net.predict(input, i);
        const targets = net.s.classes ? [target] : target;
        rows.forEach((logits, r) => {
            const one = lossOf(net.t, logits, targets[r], smoothing);
            losses.push(one.loss);
            right += one.right;
        });
    });
    return { losses, right };
}

/** The last position of the range that a position, from 1, belongs to: the next power of two, at most the context. */
const rangeOf = (position, context) => Math.min(2 ** Math.ceil(Math.log2(position)), context);

/** loss and share of right answers over a set, without noise or smoothing; of a text also the mean loss at each range of positions. */
export function evaluate(s, params, samples) {
    let loss = 0, right = 0, count = 0;
    const at = new Map();
    for (const sample of samples) {
        const t = new Tape(), one = lossesOf(network(t, s, params), [sample], 0);
        one.losses.forEach((node, i) => {
            const range = rangeOf(i + 1, one.losses.length), [sum, rows] = at.get(range) ?? [0, 0];
            loss += t.at(node);
            at.set(range, [sum + t.at(node), rows + 1]);
        });
        right += one.right;
        count += one.losses.length;
    }
    return { loss: loss / count, right: right / count, at: new Map(Array.from(at, ([range, [sum, rows]]) => [range, sum / rows])) };
}

/**
 * The numbers of an evaluation by key.
 * @param {string} part 'val', 'test_ema', ..., of a zero-shot set 'eval' or 'eval_ema' with its name
 */
export function numbersOf(s, one, part, name = '') {
    const under = name && `/${name}`, list = [[`loss/${part}${under}`, one.loss]];
    if (s.classes)
        return [...list, [`acc/${part}${under}`, one.right]];
    return [...list, [`ppl/${part}${under}`, Math.exp(one.loss)],
        ...Array.from(one.at, ([range, mean]) => [`ppl/${part}_at${under}/${range}`, Math.exp(mean)])];
}

/** Statistics of attention over the probe batch: the series of a step by key. */
export function probe(s, params, samples) {
    const net = network(new Tape(), s, params), out = new Map();
    net.keepStats = true;
    samples.slice(0, s.probeBatch).forEach((sample, i) => s.classes ? net.classify(sample.input, i) : net.predict(sample.input, i));
    net.stats.forEach((layer, l) => {
        for (const key of Object.keys(layer[0][0])) {
            if (key === 'attn/jac_q_fro' && !net.showsQueryJacobian(l))
                continue;
            const heads = layer[0].map((_, h) => layer.map(sample => sample[h][key]));
            const fold = key === 'logit/max' ? list => Math.max(...list) : list => list.reduce((a, b) => a + b) / list.length;
            heads.forEach((list, h) => out.set(`${key}/${l + 1}/${h + 1}`, fold(list)));
            out.set(`${key}/${l + 1}`, fold(heads.flat()));
        }
        if (net.activation(l) === 'formula') {
            for (const scalar of s.scalars) {
                const all = Array.from({ length: scalar.per === 'head' ? net.heads(l) : 1 }, (_, h) => net.t.at(net.formulaAt(l, h, 0).scalar(scalar.name)));
                all.forEach((x, h) => all.length > 1 && out.set(`formula/${scalar.name}/${l + 1}/${h + 1}`, x));
                out.set(`formula/${scalar.name}/${l + 1}`, all.reduce((a, b) => a + b) / all.length);
            }
            out.set(`formula_broken/${l + 1}`, net.broken[l]);
        } else if (net.activation(l) !== 'softmax')
            scales(s, net, l).forEach((c, h, all) => {
                if (all.length > 1)
                    out.set(`scale/c/${l + 1}/${h + 1}`, c);
                out.set(`scale/c/${l + 1}`, all.reduce((a, b) => a + b) / all.length);
            });
    });
    (net.inverses ?? []).forEach(({ off, all }, l) => out.set(`nystrom/residual/${l + 1}`, Math.sqrt(off / all)));
    net.squares.forEach(({ sum, count }, l) => out.set(`act/rms/${l + 1}`, Math.sqrt(sum / count)));
    return out;
}

/**
 * Attention matrices over the probe batch (train.h: struct train_blob): series of a step by key, and the matrices.
 * @returns {{series: Map<string, number>, blobs: Map<string, number[]>}}
 */
export function maps(s, params, samples) {
    const net = network(new Tape(), s, params), chosen = samples.slice(0, s.probeBatch);
    net.keepStats = true;
    chosen.forEach((sample, i) => s.classes ? net.classify(sample.input, i) : net.predict(sample.input, i));
    return matrices(s, net);
}

/** The same of what a network has looked at. @param {{looks: {a: number[][], logits: number[][], between: string | null}[][][], activation: (layer: number) => string}} net `looks` by layer, sample and head */
export function matrices(s, net) {
    const series = new Map(), blobs = new Map();
    net.looks.forEach((layer, l) => {
        const sums = { entropy: [], rank: [], negative: [], same_row: [], same_column: [] };
        if (s.maps.layers.length && !s.maps.layers.includes(l + 1))
            return;
        for (let h = 0; h < layer[0].length; h++) {
            if (s.maps.heads.length && !s.maps.heads.includes(h + 1))
                continue;
            const at = `${l + 1}/${h + 1}`, looks = layer.map(heads => heads[h]), n = looks[0].a[0].length, { between } = looks[0];
            const mean = of => Array.from({ length: looks[0].a.length * n }, (_, p) =>
                looks.reduce((sum, look) => sum + (of(look)[Math.floor(p / n)][p % n] ?? 0), 0) / looks.length);
            const sizes = mean(({ a }) => a.map(row => row.map(Math.abs)));
            blobs.set(`attn/map/${at}`, mean(({ a }) => a));
            if (net.activation(l) !== 'softmax' && !(between === 'landmarks' && s.nystromApply === 'F1F3'))
                blobs.set(`attn/softmax/${at}`, mean(({ logits }) => logits.map(row => {
                    const most = Math.max(...row.filter(z => z !== undefined)), e = row.map(z => Math.exp(z - most)), total = e.reduce((x, y) => x + y);
                    return e.map(x => x / total);
                })));
            if (!between)
                blobs.set(`attn/displacement/${at}`, displacement(s, sizes, n));
            const all = looks.flatMap(({ logits }) => logits.flatMap(row => row.filter(z => z !== undefined))), reach = Math.max(...all.map(Math.abs)), counts = new Array(64).fill(0);
            for (const z of all)
                counts[Math.min(63, Math.floor((z + reach) / (2 * reach) * 64))]++;
            blobs.set(`logit/histogram/${at}`, counts);
            const rows = looks.flatMap(({ a }) => a.map(entropy));
            sums.entropy.push(rows.reduce((x, y) => x + y) / rows.length);
            const ranks = looks.map(({ a }) => rank(a, n));
            sums.rank.push(ranks.reduce((x, y) => x + y) / ranks.length);
            const map = blobs.get(`attn/map/${at}`);
            sums.negative.push(map.filter(a => a < 0).length / map.length);
            if (s.patch[0] && !between) {
                const { row, column } = sameLine(s, sizes, n);
                sums.same_row.push(row);
                sums.same_column.push(column);
            }
            for (const [key, list] of Object.entries(sums))
                if (list.length)
                    series.set(`attn/${key}/${at}`, list.at(-1));
        }
        for (const key of Object.keys(sums).filter(key => sums[key].length))
            series.set(`attn/${key}/${l + 1}`, sums[key].reduce((x, y) => x + y) / sums[key].length);
    });
    return { series, blobs };
}

/** Entropy in nats of a row of A, of which the absolute values count. */
function entropy(row) {
    const total = row.reduce((sum, a) => sum + Math.abs(a), 0);
    return row.map(a => Math.abs(a) / total).reduce((sum, p) => sum - (p > 0 ? p * Math.log(p) : 0), 0);
}

/** (trace A'A)^2 / trace (A'A)^2. */
function rank(a, n) {
    const at = (i, j) => a[i][j] ?? 0;
    let two = 0, four = 0;
    for (let i = 0; i < n; i++)
        for (let j = 0; j < n; j++) {
            let inner = 0;
            for (let r = 0; r < a.length; r++)
                inner += at(r, i) * at(r, j);
            four += inner * inner;
            if (i === j)
                two += inner;
        }
    return two * two / four;
}

/** Mean over pairs of different patches in one row, and in one column, over that of all pairs. */
function sameLine(s, matrix, n) {
    const [rows, columns] = gridOf(s, n), first = n - rows * columns, mean = list => (list.length ? list.reduce((x, y) => x + y) / list.length : null);
    const pairs = [];
    for (let q = 0; q < rows * columns; q++)
        for (let k = 0; k < rows * columns; k++)
            if (q !== k)
                pairs.push({ row: Math.floor(q / columns) === Math.floor(k / columns), column: q % columns === k % columns, a: matrix[(q + first) * n + k + first] });
    const all = mean(pairs.map(p => p.a)), share = which => {
        const some = mean(pairs.filter(p => p[which]).map(p => p.a));
        return some === null || !(all > 0) ? 1 : some / all;
    };
    return { row: share('row'), column: share('column') };
}

/** Rows and columns of the tokens of a matrix: a picture's patches, a window's, or one row. */
function gridOf(s, n) {
    const grid = s.patch[0] ? [s.height / s.patch[0], s.imageWidth / s.patch[1]] : [0, 0], lead = s.arch === 'deit' ? 2 : s.pool === 'cls' ? 1 : 0;
    const side = Math.sqrt(n), whole = grid[0] * grid[1] + lead === n;
    return !grid[0] ? [1, n] : whole ? grid : Number.isInteger(side) ? [side, side] : [1, n];
}

/** Mean over the pairs with each displacement, key less query, rows of patches first. */
function displacement(s, matrix, n) {
    const [rows, columns] = gridOf(s, n);
    const lists = new Map(), first = n - rows * columns;
    for (let q = 0; q < rows * columns; q++)
        for (let k = 0; k < rows * columns; k++) {
            const place = [Math.floor(k / columns) - Math.floor(q / columns), k % columns - q % columns].join();
            lists.set(place, [...lists.get(place) ?? [], matrix[(q + first) * n + k + first]]);
        }
    const out = [];
    for (let down = 1 - rows; down < rows; down++)
        for (let right = 1 - columns; right < columns; right++) {
            const list = lists.get([down, right].join());
            out.push(list.reduce((x, y) => x + y) / list.length);
        }
    return out;
}

/** Names of the weights whose gradients are looked at, and of which matrix of a block each is what part (of three). */
const looked = { w_q: ['qkv', 0], w_k: ['qkv', 1], w_v: ['qkv', 2], w_o: ['proj'], w_1: ['fc1'], w_2: ['fc2'] };
const matrixNames = { qkv: /\.(attn\.qkv|attn\.c_attn)\.weight$/, proj: /\.(attn\.proj|attn\.c_proj)\.weight$/, fc1: /\.(mlp\.fc1|mlp\.c_fc)\.weight$/, fc2: /\.(mlp\.fc2|mlp\.c_proj)\.weight$/ };
/** A Nystromformer has them apart. */
const alone = { w_q: /\.mha\.W_q\.weight$/, w_k: /\.mha\.W_k\.weight$/, w_v: /\.mha\.W_v\.weight$/, w_o: /\.mha\.ff\.weight$/, w_1: /transformer_\d+\.mlpblock\.0\.weight$/, w_2: /transformer_\d+\.mlpblock\.3\.weight$/ };

/** Distributions of the entries of a batch's gradient, without noise (train.h). */
export function tails(s, params, samples) {
    const t = new Tape(), net = network(t, s, params), { losses } = lossesOf(net, samples, s.smoothing, s.teacher ?? null), g = t.gradient(t.sum(losses));
    return distributions(s, Object.entries(looked).map(([weight, [kind, third]]) => {
        const layers = [];
        for (const [name, nodes] of net.param) {
            if (!(s.arch === 'nystrom' ? alone[weight] : matrixNames[kind]).test(name))
                continue;
            const { shape } = params.get(name);
            const inThird = i => third === undefined || s.arch === 'nystrom' || (net.vit ? Math.floor(i / shape[1] / (shape[0] / 3)) : Math.floor(i % shape[1] / (shape[1] / 3))) === third;
            layers.push(nodes.filter((_, i) => inThird(i)).map(node => g[node] / losses.length));
        }
        return [weight, layers];
    }));
}

/** The same of gradients: of each weight the entries by layer. `entries` by key is what the bins count. @param {[weight: string, layers: number[][]][]} weights */
export function distributions(s, weights) {
    const series = new Map(), blobs = new Map(), entries = new Map();
    for (const [weight, layers] of weights) {
        if (s.histograms.tensors.length && !s.histograms.tensors.includes(weight))
            continue;
        const all = layers.flat(), put = (key, list) => {
            entries.set(key, list);
            blobs.set(key, logBins(list));
        };
        layers.forEach((list, l) => put(`grad/histogram/${weight}/${l + 1}`, list));
        put(`grad/histogram/${weight}`, all);
        const one = tailOf(all), sizes = layers.map(list => Math.sqrt(list.reduce((sum, x) => sum + x * x, 0) / list.length));
        one.layer_ratio = Math.max(...sizes) / Math.min(...sizes);
        for (const [key, value] of Object.entries(one))
            series.set(`grad/${key}/${weight}`, value);
    }
    return { series, blobs, entries };
}

/** Counts of sizes in bins of a tenth of a decade from 1e-16 to 1e4. */
function logBins(list) {
    const counts = new Array(200).fill(0);
    for (const x of list) {
        const at = Math.floor((Math.log10(Math.abs(x)) + 16) * 10);
        if (at >= 0 && at < 200)
            counts[at]++;
    }
    return counts;
}

/** Statistics of the tail that a common factor does not change. */
function tailOf(list) {
    const n = list.length, mean = list.reduce((a, b) => a + b, 0) / n, moment = p => list.reduce((sum, x) => sum + (x - mean) ** p, 0) / n;
    const sizes = list.map(Math.abs).sort((a, b) => a - b), quantile = q => sizes[Math.max(0, Math.ceil(q * n) - 1)];
    const top = Math.max(1, Math.floor(n / 100)), largest = sizes.slice(n - top), under = sizes[n - top - 1];
    return {
        kurtosis: moment(4) / moment(2) ** 2, ratio: quantile(.999) / quantile(.5),
        hill: top / largest.reduce((sum, x) => sum + Math.log(x / under), 0),
        top_share: largest.reduce((sum, x) => sum + x * x, 0) / sizes.reduce((sum, x) => sum + x * x, 0),
    };
}

function scales(s, net, layer) {
    if (s.activation === 'poly')
        return s.scale === 'learned'
            ? Array.from({ length: s.scaleShare === 'head' ? net.heads(layer) : 1 }, (_, h) => net.t.at(net.learned(layer, h))) : [net.c(layer)];
    return [['sigmoid', 'sigmoid_bias', 'relu'].includes(s.activation) ? net.n(layer) ** -s.alpha : 1];
}

/** The gradient of the mean loss over a batch, which may come in parts with noise of their own. */
export function gradient(s, params, samples, step, smoothing = s.smoothing) {
    const size = samples.length / s.parts, grads = new Map();
    const moments = [];
    let loss = 0, right = 0, count = 0;
    for (const [name, { data }] of params)
        grads.set(name, new Float64Array(data.length));
    for (let part = 0; part < s.parts; part++) {
        const t = new Tape(), net = network(t, s, params, { seed: s.seed, step: step * s.parts + part });
        const one = lossesOf(net, samples.slice(part * size, (part + 1) * size), smoothing, s.teacher ?? null);
        const total = t.sum(one.losses), g = t.gradient(total);
        loss += t.at(total);
        right += one.right;
        count += one.losses.length;
        for (const [name, nodes] of net.param)
            nodes.forEach((node, i) => { grads.get(name)[i] += g[node]; });
        moments.push(net.moments);
    }
    for (const list of grads.values())
        list.forEach((x, i) => { list[i] = x / count; });
    return { loss: loss / count, right: right / count, grads, moments };
}

/** Of all gradients together, before clipping. */
function normOf(grads) {
    let squares = 0;
    for (const list of grads.values())
        for (const x of list)
            squares += x * x;
    return Math.sqrt(squares);
}

const frozen = (s, name) => s.freeze.some(begin => name.startsWith(begin));

/**
 * What each parameter's rate is multiplied with: d^(L + 1 - layer), where the blocks of the network, in its order, are the
 * layers 1 to L, what it reads before them is 0 and what stands behind them is L + 1 (timm's param_groups_layer_decay).
 */
function layerRates(s) {
    const names = shapes(s).filter(p => p.role !== 'buffer').map(p => p.name);
    const blockOf = name => /^(blocks\.\d+|transformer\.h\.\d+|layers\.\d+\.blocks\.\d+|model\.transformer_\d+)\./.exec(name)?.[1] ?? null;
    const blocks = [...new Set(names.map(blockOf).filter(block => block !== null))], last = names.findLastIndex(name => blockOf(name) !== null);
    let layer = 0;
    return new Map(names.map((name, i) => {
        if (blockOf(name) !== null)
            layer = blocks.indexOf(blockOf(name)) + 1;
        return [name, s.layerDecay ** (blocks.length + 1 - (i > last ? blocks.length + 1 : layer))];
    }));
}

/** A step of the optimiser, in place. `applied` counts the steps that changed the parameters before this one. */
export function update(s, state, grads, lr, step) {
    const factor = s.clip ? Math.min(1, s.clip / (normOf(grads) + 1e-6)) : 1, t = state.applied + 1, rates = layerRates(s);
    const beta1 = s.schedule === 'one_cycle' ? cycle(s, step, s.beta1[0], s.beta1[1], s.beta1[0]) : s.betas[0];
    for (const p of shapes(s)) {
        if (p.role === 'buffer' || frozen(s, p.name))
            continue;
        const { data } = state.params.get(p.name), g = grads.get(p.name), wd = decays(s, p) ? s.decay : 0;
        const eta = (p.role === 'scale' ? lr * s.scaleLrMult : lr) * rates.get(p.name);
        const m = state.m.get(p.name), v = state.v.get(p.name), average = state.ema?.get(p.name);
        for (let i = 0; i < data.length; i++) {
            let x = g[i] * factor;
            if (s.optimizer === 'adamw') {
                data[i] *= 1 - eta * wd;
                m[i] = beta1 * m[i] + (1 - beta1) * x;
                v[i] = s.betas[1] * v[i] + (1 - s.betas[1]) * x * x;
                data[i] -= eta / (1 - beta1 ** t) * m[i] / (Math.sqrt(v[i]) / Math.sqrt(1 - s.betas[1] ** t) + s.optimEps);
            } else {
                if (s.optimizer === 'msgd_l2')
                    x += wd * data[i];
                else
                    data[i] *= 1 - eta * wd;
                m[i] = state.applied === 0 ? x : s.momentum * m[i] + (1 - s.dampening) * x;
                data[i] -= eta * (s.nesterov ? x + s.momentum * m[i] : m[i]);
            }
            if (average)
                average[i] = s.ema * average[i] + (1 - s.ema) * data[i];
        }
    }
    state.applied++;
}

/** A tenth of the way to the moments of each part's batch; a step is counted once. */
function move(s, state, moments) {
    for (const p of shapes(s)) {
        const at = p.name.lastIndexOf('.'), { data } = state.params.get(p.name), average = state.ema?.get(p.name);
        if (p.role !== 'buffer' || frozen(s, p.name) || frozenNorm(s, p.name.slice(0, at)))
            continue;
        if (p.name.slice(at + 1) === 'num_batches_tracked')
            data[0]++;
        else
            for (const part of moments) {
                const { mean, variance } = part.get(p.name.slice(0, at)), to = p.name.endsWith('mean') ? mean : variance;
                to.forEach((x, i) => { data[i] = 0.9 * data[i] + 0.1 * x; });
            }
        average?.forEach((x, i) => { average[i] = p.name.endsWith('num_batches_tracked') ? data[i] : s.ema * x + (1 - s.ema) * data[i]; });
    }
}

/**
 * A run from its seed. `batches` gives the samples of a step, {input, target} each, and those of validation; without
 * these nothing of it is computed.
 * @param {{train: (step: number) => {input: any, target: any}[], val?: {input: any, target: any}[], test?: {input: any, target: any}[],
 *     evals?: {name: string, samples: {input: any, target: any}[]}[]}} batches
 * @returns {{series: Map<string, Map<number, number>>, checkpoints: Map<number, Map<string, ArrayLike<number>>>,
 *     blobs: Map<string, number[]>, files: number[], best: {step: number, score: number}, steps: number, finished: boolean}} `begin`: what it goes on from
 *     instead of initial values: parameters, and with the optimiser its states and how many steps it has made. `checkpoints` holds the
 *     state at every step, `blobs` what is drawn as key@step, `files` says which steps have a file in the end
 */
export function train(s, batches, begin = null) {
    const zeros = params => new Map(Array.from(params, ([name, p]) => [name, new Float64Array(p.data.length)]));
    const buffers = new Set(shapes(s).filter(p => p.role === 'buffer').map(p => p.name));
    const params = initial(s), series = new Map(), checkpoints = new Map(), blobs = new Map();
    const state = { params, m: zeros(params), v: zeros(params), applied: 0,
        ema: null };
    for (const [name, p] of params) {
        p.data.set(begin?.params.get(name) ?? p.data);
        state.m.get(name).set(begin?.m?.get(name) ?? []);
        state.v.get(name).set(begin?.v?.get(name) ?? []);
    }
    state.applied = begin?.applied ?? 0;
    state.ema = s.ema === null ? null : new Map(Array.from(params, ([name, p]) => [name, p.data.slice()]));
    const push = (key, step, value) => {
        if (!series.has(key))
            series.set(key, new Map());
        series.get(key).set(step, value);
    };
    const pushAll = (step, ...what) => numbersOf(s, ...what).forEach(([key, value]) => push(key, step, value));
    const numbers = [...params.values()].reduce((sum, p) => sum + p.data.length, 0), perNumber = (s.optimizer === 'adamw' ? 2 : 1) * (s.precision === 'fp64' ? 8 : 4);
    const kept = retention(s);
    const boundary = step => {
        /* The accuracy of outputs that are no numbers ranks nothing. */
        const scoreOf = found => (Number.isFinite(found.loss) ? s.classes ? found.right : found.loss : NaN);
        let score = NaN;
        if (batches.val && step > 0 && (step % s.evalEvery === 0 || step === s.steps)) {
            const one = evaluate(s, params, batches.val);
            pushAll(step, one, 'val');
            score = scoreOf(one);
            if (state.ema) {
                const averaged = new Map(Array.from(params, ([name, p]) => [name, { shape: p.shape, data: state.ema.get(name) }]));
                const other = evaluate(s, averaged, batches.val);
                pushAll(step, other, 'val_ema');
                if (s.emaServe)
                    score = scoreOf(other);
            }
        }
        if (s.probeEvery > 0 && step % s.probeEvery === 0)
            for (const [key, value] of probe(s, params, batches.val))
                push(key, step, value);
        if (s.maps && (step % s.maps.every === 0 || step === s.steps)) {
            const one = maps(s, params, batches.val);
            for (const [key, value] of one.series)
                push(key, step, value);
            for (const [key, value] of one.blobs)
                blobs.set(`${key}@${step}`, value);
        }
        if (s.histograms?.at.some(share => Math.round(share * s.steps) === step)) {
            const one = tails(s, params, batches.train(step));
            for (const [key, value] of one.series)
                push(key, step, value);
            for (const [key, value] of one.blobs)
                blobs.set(`${key}@${step}`, value);
        }
        const saved = new Map();
        for (const [name, p] of params) {
            saved.set(name, p.data.slice());
            if (state.ema)
                saved.set(`ema.${name}`, state.ema.get(name).slice());
            if (buffers.has(name) || frozen(s, name))
                continue;
            saved.set(`optim.m.${name}`, state.m.get(name).slice());
            if (s.optimizer === 'adamw')
                saved.set(`optim.v.${name}`, state.v.get(name).slice());
        }
        checkpoints.set(step, saved);
        kept.boundary(step, score);
    };
    /** The evaluations since the one that was better than all before it by more than the least change. */
    const patient = () => {
        if (!s.stop)
            return true;
        let best = NaN, waited = 0;
        for (const value of series.get(s.stop.key)?.values() ?? []) {
            const better = Number.isNaN(best) ? !Number.isNaN(value) : (s.stop.key.startsWith('acc') ? value - best : best - value) > s.stop.change;
            [best, waited] = better ? [value, 0] : [best, waited + 1];
        }
        return waited < s.stop.patience;
    };
    let skipped = 0, inRow = 0, step = 0;
    boundary(0);
    while (step < s.steps && inRow < s.nonfiniteLimit && patient()) {
        const samples = batches.train(step), { loss, right, grads, moments } = gradient(s, params, samples, step);
        for (const name of [...grads.keys()].filter(each => buffers.has(each) || frozen(s, each)))
            grads.delete(name);
        const lr = rate(s, step), norm = normOf(grads);
        push('loss/train', ++step, loss);
        if (s.classes && samples[0].share === undefined) // a mixed picture has two classes
            push('acc/train', step, right);
        push('lr', step, lr);
        push('grad/norm', step, norm);
        if (Number.isFinite(loss) && Number.isFinite(norm)) { // else the step changes nothing and is counted
            update(s, state, grads, lr, step - 1);
            move(s, state, moments);
            inRow = 0;
        } else {
            inRow++;
            push('nonfinite', step, ++skipped);
        }
        boundary(step);
    }
    const finished = inRow < s.nonfiniteLimit;
    if (finished && (batches.test?.length || batches.evals?.length)) { // once, with the best that is kept, or else the last
        const at = s.keepBest > 0 && kept.best().step >= 0 ? kept.best().step : step;
        for (const [prefix, suffix] of state.ema ? [['', ''], ['ema.', '_ema']] : [['', '']]) {
            const chosen = new Map(Array.from(params, ([name, p]) => [name, { shape: p.shape, data: checkpoints.get(at).get(prefix + name) }]));
            if (batches.test.length)
                pushAll(at, evaluate(s, chosen, batches.test), `test${suffix}`);
            for (const { name, samples } of batches.evals ?? [])
                pushAll(at, evaluate(s, chosen, samples), `eval${suffix}`, name);
        }
    }
    return { series, checkpoints, blobs, files: kept.end(finished ? step : null), best: kept.best(), steps: step, finished, optimiser: { bytes: numbers * perNumber, each: perNumber } };
}

/**
 * Which checkpoints are written and kept: one every so many steps or seconds, one at each new best, one at the end; of
 * them the newest and the best remain (train.checkpoint_every, train.keep).
 */
function retention(s) {
    let files = [];
    const better = (a, b) => !Number.isNaN(a) && (Number.isNaN(b) || (s.classes ? a > b : a < b));
    let best = { step: -1, score: NaN };
    const prune = latest => {
        const good = files.filter(f => !Number.isNaN(f.score))
            .sort((a, b) => better(a.score, b.score) ? -1 : better(b.score, a.score) ? 1 : a.step - b.step).slice(0, s.keepBest);
        files = files.filter((f, i) => i >= files.length - latest || good.includes(f));
    };
    const save = (step, score) => {
        files = [...files.filter(f => f.step !== step), { step, score }];
        prune(s.keepLatest + 1); // one more while the run goes on, to fall back to
    };
    let last = { step: -1, score: NaN };
    return {
        boundary(step, score) {
            const newBest = better(score, best.score);
            if (newBest)
                best = { step, score };
            last = { step, score };
            if ((s.saveSteps ? step > 0 && step % s.saveSteps === 0 : s.saveSeconds < 1e-6) || (newBest && s.keepBest > 0))
                save(step, score);
        },
        end(step) {
            if (step !== null) {
                if (!files.some(f => f.step === step))
                    save(step, last.score);
                prune(Math.max(s.keepLatest, 1));
            }
            return files.map(f => f.step);
        },
        best: () => best,
    };
}
