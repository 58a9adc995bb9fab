// What each metric is: its name for people, one sentence, and where the definition comes from. The help page lists
// this table; a chart takes its title and its tooltip from it.

/**
 * @typedef {object} Metric
 * @property {string} key base name; per-layer series add `/layer` and `/layer/head`, counted from 1
 * @property {string} title
 * @property {string} text one sentence
 * @property {string} source
 * @property {'share' | 'seconds' | 'ms' | 'bytes'} [unit]
 * @property {'up' | 'down'} [better]
 * @property {boolean} [exact] never smoothed: it has no noise
 * @property {string} [panel] charts of one panel are overlaid
 */

/** @type {Metric[]} */
export const metrics = [
    { key: 'loss/train', title: 'Loss', panel: 'loss', better: 'down', source: 'training step',
        text: 'Mean cross-entropy in nats over the samples (or tokens) of the training batch of this step.' },
    { key: 'loss/val', title: 'Loss', panel: 'loss', better: 'down', source: 'evaluation',
        text: 'Mean cross-entropy in nats over the whole validation set, without augmentation or dropout.' },
    { key: 'acc/train', title: 'Accuracy', panel: 'acc', unit: 'share', better: 'up', source: 'training step',
        text: 'Share of the training batch whose most probable class is the right one.' },
    { key: 'acc/val', title: 'Accuracy', panel: 'acc', unit: 'share', better: 'up', source: 'evaluation',
        text: 'Share of the validation set whose most probable class is the right one.' },
    { key: 'ppl/train', title: 'Perplexity', panel: 'ppl', better: 'down', source: 'training step',
        text: 'exp of the training loss: how many equally likely tokens the model wavers between.' },
    { key: 'ppl/val', title: 'Perplexity', panel: 'ppl', better: 'down', source: 'evaluation',
        text: 'exp of the validation loss: how many equally likely tokens the model wavers between.' },
    { key: 'lr', title: 'Learning rate', exact: true, source: 'schedule',
        text: 'The rate that the schedule gave the optimiser for this step, after warm-up and decay.' },
    { key: 'grad/norm', title: 'Gradient norm', source: 'training step',
        text: 'Euclidean norm of all gradients together, before clipping.' },
    { key: 'nonfinite', title: 'Skipped steps', exact: true, source: 'training step',
        text: 'Steps skipped so far because the loss or a gradient was not finite; past a limit the run counts as diverged.' },
    { key: 'step_ms', title: 'Step time', unit: 'ms', better: 'down', source: 'clock of the worker',
        text: 'Wall time of one optimiser step, data loading included.' },
    { key: 'samples_per_s', title: 'Throughput', better: 'up', source: 'clock of the worker',
        text: 'Images that training consumed per second.' },
    { key: 'tokens_per_s', title: 'Throughput', better: 'up', source: 'clock of the worker',
        text: 'Tokens that training consumed per second.' },
    { key: 'mem/arena', title: 'Planned memory', unit: 'bytes', source: 'memory plan',
        text: 'Bytes of the one arena that holds gradients, activations and workspace, known before the first step.' },
    { key: 'mem/peak', title: 'Memory', unit: 'bytes', source: 'worker',
        text: 'Largest resident memory of the worker process so far.' },
    { key: 'attn/fro', title: 'Attention norm', source: 'probe batch',
        text: 'Frobenius norm of the attention matrix A, per layer: the mean over heads and samples of the norm. The papers argue that keeping it near softmax’s is what makes a polynomial work.' },
    { key: 'attn/jac_fro', title: 'Jacobian norm', source: 'probe batch',
        text: 'Frobenius norm of ∂A/∂S, how strongly attention answers to a change of its logits.' },
    { key: 'attn/jac_q_fro', title: 'Query Jacobian norm', source: 'probe batch',
        text: 'Frobenius norm of ∂A/∂W_Q, how strongly attention answers to a change of the query weights.' },
    { key: 'logit/std', title: 'Logit spread', source: 'probe batch',
        text: 'Standard deviation of the attention logits S = QKᵀ/√d of a layer.' },
    { key: 'logit/max', title: 'Largest logit', source: 'probe batch',
        text: 'Largest absolute attention logit of a layer; xᵖ raises it to the power p, so its growth warns of overflow.' },
    { key: 'scale/c', title: 'Attention scale', source: 'parameters',
        text: 'The factor c in φ(x) = c·xᵖ: constant 1/√N when fixed, trained per layer or head when learned.' },
];

const byKey = new Map(metrics.map(metric => [metric.key, metric]));

/**
 * Splits a series' key into its base name and, if it ends in numbers, its layer and head (both from 1):
 * `attn/fro/3` is the mean over the heads of layer 3, `scale/c/3/1` that layer's first head.
 * @param {string} key
 * @returns {{base: string, layer: number | null, head: number | null}}
 */
export function parseKey(key) {
    const parts = key.split('/');
    /** @type {number[]} */
    const indexes = [];
    while (parts.length > 1 && indexes.length < 2) {
        const match = /^\d+$/.exec(parts[parts.length - 1]);
        if (!match)
            break;
        indexes.unshift(Number(match[0]));
        parts.pop();
    }
    return { base: parts.join('/'), layer: indexes[0] ?? null, head: indexes[1] ?? null };
}

/**
 * What is known of a series. A metric that somebody logged over HTTP gets its key as its name.
 * @param {string} base
 * @returns {Metric}
 */
export function describe(base) {
    return byKey.get(base) ?? { key: base, title: base, text: 'A metric of this run’s own.', source: 'logged' };
}

/**
 * @typedef {object} Panel
 * @property {string} id
 * @property {string} title
 * @property {Metric} metric
 * @property {string[]} keys
 * @property {boolean} layered one series a layer (and head)
 */

/**
 * The panels of a run page, in order: known ones as in the table above, then the rest by name.
 * @param {string[]} keys
 * @returns {Panel[]}
 */
export function panels(keys) {
    /** @type {Map<string, Panel>} */
    const found = new Map();
    for (const key of keys.slice().sort(compareKeys)) {
        const { base, layer } = parseKey(key);
        const metric = describe(base);
        const id = metric.panel ?? base;
        const panel = found.get(id) ?? { id, title: metric.title, metric, keys: [], layered: false };
        panel.keys.push(key);
        panel.layered ||= layer !== null;
        found.set(id, panel);
    }
    const rank = (/** @type {Panel} */ panel) => {
        const i = metrics.findIndex(metric => (metric.panel ?? metric.key) === panel.id);
        return i < 0 ? metrics.length : i;
    };
    return [...found.values()].sort((a, b) => rank(a) - rank(b) || a.id.localeCompare(b.id));
}

/**
 * @param {string} a
 * @param {string} b
 */
function compareKeys(a, b) {
    const x = parseKey(a);
    const y = parseKey(b);
    return x.base.localeCompare(y.base) || (x.layer ?? -1) - (y.layer ?? -1) || (x.head ?? -1) - (y.head ?? -1);
}

/**
 * The name of a series within its panel.
 * @param {string} key
 */
export function seriesName(key) {
    const { base, layer, head } = parseKey(key);
    if (layer !== null)
        return head !== null ? `head ${head}` : `layer ${layer}`;
    const tail = base.split('/').pop() ?? base;
    return { train: 'training', val: 'validation' }[tail] ?? base;
}
