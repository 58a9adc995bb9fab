// What each metric is: its name for people, one sentence, and where the definition comes from. The help page lists
// this table; a chart takes its title and its tooltip from it.

import { bytes, number, percent, si } from './format.js';

/**
 * @typedef {object} Metric
 * @property {string} key base name; per-layer series add `/layer` and `/layer/head`, counted from 1
 * @property {string} title
 * @property {string} text one sentence
 * @property {string} source
 * @property {keyof typeof units} [unit]
 * @property {'up' | 'down'} [better]
 * @property {boolean} [exact] never smoothed: it has no noise
 * @property {boolean} [system] about the machine rather than the model
 * @property {boolean} [gpu] one series for the device of each rank: n in its key is the rank, from 0
 * @property {string} [panel] charts of one panel are overlaid
 */

/** @type {Metric[]} */
export const metrics = [
    { key: 'loss/train', title: 'Loss', panel: 'loss', unit: 'nats', better: 'down', source: 'Cross-entropy of one training step, in nats.',
        text: 'Mean cross-entropy over the samples (or tokens) of this step’s training batch: lower means that the right answer was given more probability.' },
    { key: 'loss/val', title: 'Loss', panel: 'loss', unit: 'nats', better: 'down', source: 'Evaluation over the whole validation set, in nats.',
        text: 'Mean cross-entropy over the whole validation set, without augmentation or dropout.' },
    { key: 'loss/val_ema', title: 'Loss', panel: 'loss', unit: 'nats', better: 'down', source: 'The validation set seen by the averaged weights (train.ema), in nats.',
        text: 'Mean cross-entropy over the validation set of the running average of the weights, which is scored beside the weights themselves.' },
    { key: 'acc/train', title: 'Accuracy', panel: 'acc', unit: 'share', better: 'up', source: 'Top-1 of one training step.',
        text: 'Share of the training batch whose most probable class is the right one.' },
    { key: 'acc/val', title: 'Accuracy', panel: 'acc', unit: 'share', better: 'up', source: 'Top-1 over the validation set: what the tables of the polynomial papers compare.',
        text: 'Share of the validation set whose most probable class is the right one.' },
    { key: 'acc/val_ema', title: 'Accuracy', panel: 'acc', unit: 'share', better: 'up', source: 'Top-1 of the averaged weights (train.ema) over the validation set.',
        text: 'Share of the validation set that the running average of the weights classifies rightly.' },
    { key: 'ppl/train', title: 'Perplexity', panel: 'ppl', better: 'down', source: 'exp(loss) of one training step.',
        text: 'How many equally likely tokens the model wavers between on its training batch.' },
    { key: 'ppl/val', title: 'Perplexity', panel: 'ppl', better: 'down', source: 'exp(loss) over the validation set; Polynomial alternatives (v2), tables 6 to 8.',
        text: 'How many equally likely tokens the model wavers between on text it was not trained on.' },
    { key: 'ppl/val_ema', title: 'Perplexity', panel: 'ppl', better: 'down', source: 'exp(loss) of the averaged weights (train.ema) over the validation set.',
        text: 'How many equally likely tokens the running average of the weights wavers between on text it was not trained on.' },
    { key: 'lr', title: 'Learning rate', exact: true, source: 'The schedule of the job: warm-up, then decay.',
        text: 'The rate that the schedule gave the optimiser for this step.' },
    { key: 'grad/norm', title: 'Gradient norm', source: '√Σg² over all parameters, before clipping.',
        text: 'Euclidean norm of all gradients together: spikes warn of steps that clipping had to tame.' },
    { key: 'nonfinite', title: 'Skipped steps', exact: true, source: 'Counter of the trainer; the job’s train.nonfinite_limit.',
        text: 'Steps skipped so far because the loss or a gradient was not finite; past a limit the run counts as diverged.' },
    { key: 'attn/fro', title: 'Attention norm ‖A‖', source: 'Polynomial alternatives, theorems 4.1 and 4.2, figures 2 and 6: ‖softmax‖ ≤ √N, while a raw xᵖ grows as N.',
        text: 'Frobenius norm of the attention matrix A of a layer, mean over heads and probe samples: the papers argue that a polynomial works once this stays near softmax’s.' },
    { key: 'attn/jac_fro', title: 'Jacobian norm ‖∂A/∂S‖', source: 'Polynomial alternatives, theorem 4.1 (second part), figures 3 and 7; the tight bound for softmax is √N/2.',
        text: 'Frobenius norm of the derivative of attention by its logits: how strongly A answers to a change of S.' },
    { key: 'attn/jac_q_fro', title: 'Jacobian norm ‖∂A/∂W_Q‖', source: 'Polynomial alternatives, theorem 4.3.',
        text: 'Frobenius norm of the derivative of attention by the query weights: how strongly A answers to a training step.' },
    { key: 'logit/std', title: 'Logit spread', source: 'Standard deviation of S = QKᵀ/√d, the argument of the activation.',
        text: 'How far the attention logits of a layer spread; at the usual start it is about 0.08, where a cubic is nearly silent.' },
    { key: 'logit/max', title: 'Largest logit', source: 'max |S| over the probe batch.',
        text: 'Largest absolute attention logit of a layer: xᵖ raises it to the power p, so its growth warns of overflow.' },
    { key: 'scale/c', title: 'Attention scale c', source: 'Polynomial alternatives, corollaries 4.1 and 4.2: φ(x) = c·xᵖ with c = 1/√N, fixed or as the start of a learned one.',
        text: 'The factor in front of the power: constant when fixed, trained per layer or head when learned.' },
    { key: 'step_ms', title: 'Step time', unit: 'ms', better: 'down', system: true, source: 'Clock of the worker, mean since its last report.',
        text: 'Wall time of one optimiser step, data loading included.' },
    { key: 'samples_per_s', title: 'Images per second', unit: 'images', better: 'up', system: true, source: 'Clock of the worker.',
        text: 'Images that training consumed per second.' },
    { key: 'tokens_per_s', title: 'Tokens per second', unit: 'tokens', better: 'up', system: true, source: 'Clock of the worker.',
        text: 'Tokens that training consumed per second.' },
    { key: 'data_wait', title: 'Waiting for data', unit: 'share', better: 'down', system: true, source: 'Clock of the worker, share of the steps\' time.',
        text: 'How much of a step was spent waiting for its batch: above a few hundredths the loader has too few threads.' },
    { key: 'comm/wait', title: 'Waiting for other ranks', unit: 'share', better: 'down', system: true, source: 'Clock of rank 0, share of the steps\' time.',
        text: 'How much of a step rank 0 spent waiting for the sums of all ranks: the others are slower, or share its processors.' },
    { key: 'data_bad', title: 'Skipped images', better: 'down', exact: true, system: true, source: 'Counted when a picture cannot be decoded; the log names each.',
        text: 'Damaged pictures met so far: they are left out of the loss, and too many end the run.' },
    { key: 'sys/flops', title: 'Operations per second', unit: 'flops', better: 'up', system: true, source: 'Multiplications and additions of the planned step (products and attention), by the clock of the worker.',
        text: 'What a step computes, divided by how long it takes. Nothing that is computed twice counts twice.' },
    { key: 'sys/utilisation', title: 'Utilisation', unit: 'share', better: 'up', system: true, source: 'sys/flops by the matmul peak that the worker measured on this GPU (bf16).',
        text: 'Share of the device\'s fastest products that training reaches, 0 to 1. In fp32 or TF32 it is a share of the bf16 peak all the same.' },
    { key: 'sys/peak_flops', title: 'Measured matmul peak', unit: 'flops', system: true, source: 'Large square products in bf16, timed when the worker starts, or recalled for the same GPU, driver and library.',
        text: 'What utilisation is a share of.' },
    { key: 'sys/cpu', title: 'Processors busy', system: true, source: 'Processor time of the worker per second of the clock.',
        text: 'How many processors the worker kept busy: below its number of threads it waited for something.' },
    { key: 'mem/peak', title: 'Memory', unit: 'bytes', exact: true, system: true, source: 'Largest resident set of the worker.',
        text: 'The most memory that the worker process has held so far.' },
    { key: 'mem/arena', title: 'Planned memory', unit: 'bytes', exact: true, system: true, source: 'The memory plan, made before the first step.',
        text: 'Bytes of the one arena that holds gradients, activations and workspace.' },
    { key: 'system/gpu.n/utilization', title: 'GPU busy', unit: 'share', better: 'up', system: true, gpu: true, source: 'The driver (NVML): share of its last sampling period in which a kernel ran; the mean between two points.',
        text: 'How much of the time a kernel ran on the GPU: far below 100 % the GPU waits, for data, for other ranks or for the host.' },
    { key: 'system/gpu.n/memory', title: 'GPU memory', unit: 'bytes', exact: true, system: true, gpu: true, source: 'The driver (NVML): the most in use between two points, by anyone.',
        text: 'Memory in use on the GPU, what the driver keeps for itself included.' },
    { key: 'system/gpu.n/power', title: 'GPU power', unit: 'watts', system: true, gpu: true, source: 'The driver (NVML): the mean between two points.',
        text: 'Power that the GPU drew: near its limit the clocks go down.' },
    { key: 'system/gpu.n/temperature', title: 'GPU temperature', unit: 'celsius', exact: true, system: true, gpu: true, source: 'The driver (NVML): the greatest between two points.',
        text: 'Temperature of the GPU: near its limit the clocks go down.' },
    { key: 'steps_per_epoch', title: 'Steps of an epoch', exact: true, system: true, source: 'Training samples divided by the batch.',
        text: 'How many optimiser steps see every training sample once.' },
];

const byKey = new Map(metrics.map(metric => [metric.key, metric]));

/**
 * Splits a series' key into its base name and, if it ends in numbers, its layer and head (both from 1):
 * `attn/fro/3` is the mean over the heads of layer 3, `scale/c/3/1` that layer's first head.
 * `system/gpu.2/power` is that of rank 2's device.
 * @param {string} key
 * @returns {{base: string, layer: number | null, head: number | null, gpu?: number}}
 */
export function parseKey(key) {
    const gpu = /^system\/gpu\.(\d+)\/(\w+)$/.exec(key);
    if (gpu)
        return { base: `system/gpu.n/${gpu[2]}`, layer: null, head: null, gpu: Number(gpu[1]) };
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
    return byKey.get(base) ?? { key: base, title: base, text: 'A metric of this run’s own, logged over the API.', source: 'POST /api/v1/runs/{id}/metrics' };
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
    return x.base.localeCompare(y.base) || (x.gpu ?? -1) - (y.gpu ?? -1) || (x.layer ?? -1) - (y.layer ?? -1) || (x.head ?? -1) - (y.head ?? -1);
}

/**
 * The name of a series within its panel.
 * @param {string} key
 */
export function seriesName(key) {
    const { base, layer, head, gpu } = parseKey(key);
    if (gpu !== undefined)
        return `GPU ${gpu}`;
    if (layer !== null)
        return head !== null ? `head ${head}` : `layer ${layer}`;
    const tail = base.split('/').pop() ?? base;
    return { train: 'training', val: 'validation', val_ema: 'validation, averaged weights' }[tail] ?? base;
}

/**
 * How each unit is written: beside the title of a panel, at a mark of its axis, and with a value.
 * @satisfies {Record<string, {title: string, tick: (v: number) => string, value: (v: number) => string}>}
 */
const units = {
    share: { title: '', tick: v => `${+(v * 100).toPrecision(4)} %`, value: percent },
    bytes: { title: '', tick: bytes, value: bytes },
    nats: { title: 'nats', tick: number, value: number },
    ms: { title: 'ms', tick: number, value: v => `${number(v)} ms` },
    watts: { title: 'W', tick: number, value: v => `${number(v)} W` },
    celsius: { title: '°C', tick: number, value: v => `${number(v)} °C` },
    flops: { title: 'FLOP/s', tick: v => si(v), value: v => si(v, 'FLOP/s') },
    images: { title: 'img/s', tick: v => si(v), value: v => si(v, 'img/s') },
    tokens: { title: 'tok/s', tick: v => si(v), value: v => si(v, 'tok/s') },
};

/** @param {Metric} metric */
export const unitTitle = metric => (metric.unit ? units[metric.unit].title : '');

/**
 * A value at a mark of an axis, whose title has the unit.
 * @param {Metric} metric
 * @param {number} value
 */
export const tickText = (metric, value) => (metric.unit ? units[metric.unit].tick(value) : Math.abs(value) >= 1e4 ? si(value) : number(value));

/**
 * A value in its metric's unit.
 * @param {Metric} metric
 * @param {number | null} value
 */
export function present(metric, value) {
    return value === null ? '–' : metric.unit && Number.isFinite(value) ? units[metric.unit].value(value) : number(value);
}
