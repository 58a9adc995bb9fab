// One job at least for every field of the job document that the reference network can recompute. Fields of data, sweeps
// and models of one's own have theirs in data.test.mjs; what no job can show is listed at the end, with the reason.
import { imageJob, labelJob, merge, nystromJob, nystromLabels, pairJob, swinJob, textJob, xcitJob } from './rig.mjs';

/**
 * @typedef {object} Case
 * @property {string} field JSON pointer
 * @property {any} job
 * @property {any} [instead] what the field is when the case asks whether it matters; left out: its default
 * @property {boolean} [inert] the field must change no number
 * @property {number} [tolerance]
 * @property {number} [differs] rounding: at this tolerance the numbers must not agree
 * @property {string} [outcome]
 * @property {string[]} [only] keys of the series to compare, where others hold no finite number
 */

const poly = (more = {}, rest = {}) => imageJob({ attention: { activation: 'poly', ...more }, ...rest });
const polySwin = (more = {}, rest = {}) => swinJob({ attention: { activation: 'poly', ...more }, ...rest });
const polyXcit = (more = {}, rest = {}) => xcitJob({ attention: { activation: 'poly', ...more }, ...rest });
const polyNystrom = (more = {}, rest = {}) => nystromJob({ attention: { activation: 'poly', ...more }, ...rest });
/** Batches of one sample, so that a start of the whole batch is that of one sample's heads; too few steps to forget it. */
const alone = start => ({ model: { pinv_start: start, pinv_iterations: 1 }, data: { split: { train: 60, val: 1, test: 1 } }, train: { batch: 1 }, diagnostics: { probe_batch: 1 } });
/** Pictures of 16 x 16 as sequences, few of them. */
const pictures = more => nystromJob({ model: { width: 4, depth: 1, context: 256, landmarks: 4 }, data: { dataset: 'pathfinder_gen', split: { train: 6, val: 2, test: 2 }, ...more }, train: { batch: 2 }, diagnostics: { every: 0 } });
const polyText = (more = {}, rest = {}) => textJob({ attention: { activation: 'poly', ...more }, ...rest });
const formula = (text, more = {}) => imageJob({ attention: { activation: 'formula', formula: text, ...more } });
const formulaText = (text, more = {}) => textJob({ attention: { activation: 'formula', formula: text, ...more } });
const formulaSwin = (text, more = {}, rest = {}) => swinJob({ attention: { activation: 'formula', formula: text, ...more }, ...rest });
const optimizer = (more, rest = {}) => imageJob({ train: { optimizer: { lr: 0.05, ...more }, ...rest } });
const schedule = (more, rest = {}) => imageJob({ train: { steps: 6, ...rest, schedule: more }, diagnostics: { every: 0 } });
/** Length in epochs: three steps each, of fourteen pictures in batches of four. */
const epochs = (more, rest = {}) => imageJob({ train: { steps: undefined, epochs: 2, ...rest, schedule: more }, diagnostics: { every: 0 } });
/** Without AdamW, which makes differences of rounding large. */
const single = precision => ({ train: { precision, optimizer: { name: 'msgdw', lr: 0.05 } } });
const stopping = (stop, train = {}) => imageJob({ model: { bias: false }, train: { steps: 12, eval_every: 1, optimizer: { lr: 0.3 }, schedule: { name: 'constant' }, stop, ...train }, diagnostics: { every: 0 } });
const stoppingText = stop => textJob({ train: { steps: 12, eval_every: 1, batch: 2, optimizer: { lr: 0.3 }, schedule: { name: 'constant' }, stop }, diagnostics: { every: 0 } });
/** Attention matrices of a cubic network, of every layer and head unless said otherwise. */
const maps = (more, rest = {}) => imageJob(merge({ attention: { activation: 'poly' }, diagnostics: { heatmaps: { every: 1, ...more } } }, rest));
const mapsText = (more, rest = {}) => textJob(merge({ attention: { activation: 'poly' }, diagnostics: { heatmaps: { every: 1, ...more } } }, rest));
/** Distributions of gradients, likewise. */
const histograms = (more, rest = {}) => imageJob(merge({ diagnostics: { histograms: more } }, rest));
const histogramsText = (more, rest = {}) => textJob(merge({ attention: { activation: 'poly' }, diagnostics: { histograms: more } }, rest));
/** Matrices of all layers and heads, on top of a job of any network. */
const heated = { diagnostics: { heatmaps: { every: 2 } } };
const each = (field, list) => list.map(([job, rest = {}]) => ({ field, job, ...rest }));

/** @type {Case[]} */
export const cases = [
    /* ---- model ---- */
    ...each('/model/preset', [
        [imageJob({ model: { arch: undefined, preset: 'vit_micro', width: undefined, heads: undefined, depth: 1 }, train: { steps: 1 } }), { instead: 'vit_tiny' }],
        [textJob({ model: { arch: undefined, preset: 'gpt_micro', width: 16, depth: 1, context: undefined }, data: { context: 5 }, train: { steps: 1, batch: 2 } }), { instead: 'gpt2' }],
        [textJob({ model: { arch: undefined, preset: 'gpt2', width: 24, depth: 1, context: undefined }, data: { context: 5 }, train: { steps: 1, batch: 2 } }), { instead: 'gpt_micro' }],
        [imageJob({ model: { arch: undefined, preset: 'vdnt_large', width: 16, heads: undefined, depth: 1, patch: 4 }, train: { steps: 1 } }), { instead: 'vit_l' }],
    ]),
    ...each('/model/arch', [[imageJob(), { instead: null }], [textJob(), { instead: null }], [labelJob(), { instead: null }]]),
    ...each('/model/width', [[imageJob({ model: { width: 12 } }), { instead: 8 }]]),
    ...each('/model/depth', [[imageJob({ model: { depth: 3 } }), { instead: 2 }]]),
    ...each('/model/heads', [[imageJob({ model: { heads: 4 } }), { instead: 2 }], [textJob({ model: { heads: 4 } }), { instead: 2 }]]),
    ...each('/model/mlp_ratio', [[imageJob({ model: { mlp_ratio: 2.2 } })], [textJob({ model: { mlp_ratio: 3 } })]]),
    ...each('/model/mlp_act', [[imageJob({ model: { mlp_act: 'relu' } })], [textJob({ model: { mlp_act: 'relu' } })]]),
    ...each('/model/gelu', [[imageJob({ model: { gelu: 'tanh' } })], [textJob({ model: { gelu: 'exact' } })], [textJob({ model: { gelu: 'tanh', bias: false } }), { instead: 'exact' }]]),
    ...each('/model/bias', [[imageJob({ model: { bias: false } })], [textJob({ model: { bias: false } })]]),
    ...each('/model/patch', [[imageJob({ model: { patch: [2, 4] } })], [imageJob({ model: { patch: 2 } })]]),
    ...each('/model/pool', [[imageJob({ model: { pool: 'cls' } })]]),
    ...each('/model/pos', [[imageJob({ model: { pos: 'none' } })], [textJob({ model: { pos: 'none' } })]]),
    ...each('/model/pos_after', [[imageJob({ model: { pos_after: true }, norm: { placement: 'S3' } })], [textJob({ model: { pos_after: true }, norm: { placement: 'S5' } })]]),
    ...each('/model/context', [[textJob({ model: { context: 9 } }), { instead: 8 }], [textJob({ model: { context: 9 }, data: { context: 5 } }), { instead: 8 }]]),

    /* ---- Nystromformer ---- */
    ...each('/model/arch', [[nystromJob(), { instead: null }], [nystromLabels(), { instead: null }], [polyNystrom({ scale: 'learned', scale_share: 'head' }, { train: { dropout: 0.1, drop_path: 0.2 } }), { instead: null }],
        [nystromJob({ attention: { activation: 'sigmoid' } }), { instead: null }], [pairJob(), { instead: null }]]),
    ...each('/attention/n_for_scale', [[pairJob({ attention: { activation: 'poly' } }), { instead: 12 }], [pairJob({ attention: { activation: 'sigmoid', n_for_scale: 'keys' } }), { instead: 12 }]]),
    ...each('/model/landmarks', [[polyNystrom({}, { model: { landmarks: 4 } }), { instead: 3 }], [nystromJob({ model: { landmarks: 12 }, diagnostics: { every: 0 } }), { instead: 3 }]]),
    ...each('/model/conv_kernel', [[nystromJob({ model: { conv_kernel: 3 } }), { instead: 5 }]]),
    ...each('/model/pinv_iterations', [[polyNystrom({}, { model: { pinv_iterations: 2 } })]]),
    ...each('/model/pool', [[nystromJob({ model: { pool: 'cls' } })]]),
    ...each('/model/pinv_start', [[polyNystrom({}, alone('global_abs'))], [nystromJob(alone('global_colsum'))]]),
    ...each('/attention/nystrom_apply', [[polyNystrom({ nystrom_apply: 'F1F3', scale: 'learned' })], [polyNystrom({ nystrom_apply: 'separate', scale: 'learned' })]]),
    ...each('/attention/n_valid', [[polyNystrom({ n_valid: true }, { diagnostics: { every: 0 } })], [polyNystrom({ n_valid: true, scale: 'learned' }, { model: { landmarks: 12 }, diagnostics: { every: 0 } })],
        [pairJob({ attention: { activation: 'poly', n_valid: true, scale: 'learned' }, diagnostics: { every: 0 } })]]),
    ...each('/data/zero_is_padding', [[nystromLabels({ data: { tokenizer: 'chars', zero_is_padding: true } })]]),
    ...each('/data/depth', [[nystromJob({ data: { depth: 2 } })]]),
    ...each('/data/contour', [[pictures({ contour: 2 })], [pictures({ contour: 5 })]]),
    ...each('/data/min_tokens', [[nystromJob({ data: { min_tokens: 9 } })]]),
    ...each('/train/init', [[nystromJob({ train: { init: 'kaiming' } }), { instead: 'xavier' }]]),

    /* ---- Swin ---- */
    ...each('/model/arch', [[swinJob(), { instead: null }], [polySwin({ scale: 'learned' }, { train: { steps: 4, dropout: 0.2, drop_path: 0.4, accumulation: 2 } }), { instead: null }]]),
    ...each('/model/widths', [[swinJob({ model: { widths: [6, 12] } }), { instead: [4, 8] }]]),
    ...each('/model/depths', [[swinJob({ model: { depths: [3, 2] } }), { instead: [2, 1] }], [swinJob({ model: { depths: [2, 1, 1], widths: [4, 8, 16], head_counts: [1, 2, 4], patch: 1 } }), { instead: [1, 1, 1] }]]),
    ...each('/model/head_counts', [[swinJob({ model: { head_counts: [2, 4] } }), { instead: [1, 2] }]]),
    ...each('/model/window', [[swinJob({ model: { patch: 1, window: 4 } }), { instead: 2 }], [polySwin({}, { model: { window: 4 } }), { instead: 2 }],
        [polySwin({ degree: 2 }, { model: { patch: [2, 1] } }), { instead: 4 }]]),
    ...each('/attention/n_for_scale', [[polySwin({ n_for_scale: 'patches' })], [polySwin({ n_for_scale: 'keys', scale: 'learned' }, { model: { patch: 1, window: 4, depths: [1, 1] } }), { instead: 'patches' }],
        [polySwin({ n_for_scale: 'window' }, { model: { patch: 1, window: 4 } }), { instead: 5 }], [polySwin({ n_for_scale: 9 })],
        [swinJob({ attention: { activation: 'sigmoid', n_for_scale: 'patches', alpha: 0.7 } })], [swinJob({ attention: { activation: 'sigmoid_bias', n_for_scale: 'patches' } })]]),
    ...each('/attention/scale_share', [[polySwin({ scale: 'learned', scale_share: 'head' })], [polySwin({ scale: 'learned', scale_share: 'global' })]]),
    ...each('/norm/placement', ['S2', 'S4', 'S5', 'post'].map(placement => [swinJob({ norm: { placement } })])),
    ...each('/attention/dropout', [[swinJob({ attention: { dropout: 0.3 } })]]),
    ...each('/attention/qk_gain', [[swinJob({ attention: { qk_norm: true, qk_gain: 'per_head' } })]]),
    ...each('/train/init_fan', [[swinJob({ train: { init_fan: 'fused' } })]]),
    ...each('/resources/slots', [[polySwin({ scale: 'learned', dropout: 0.2 }, { resources: { slots: 2 }, train: { drop_path: 0.3 } }), { inert: true }]]),

    /* ---- XCiT ---- */
    ...each('/model/arch', [[xcitJob(), { instead: null }],
        [polyXcit({ scale: 'learned', dropout: 0.3 }, { model: { layerscale: 0.3 }, train: { steps: 4, dropout: 0.2, drop_path: 0.4, accumulation: 2, ema: 0.8 } }), { instead: null }]]),
    ...each('/model/layerscale', [[xcitJob({ model: { layerscale: 0.5 } }), { instead: null }]]),
    ...each('/model/pos', [[xcitJob({ model: { pos: 'none' } })], [xcitJob({ model: { pos: 'fourier' } }), { instead: 'none' }]]),
    ...each('/model/patch', [[xcitJob({ model: { patch: 2, depth: 1 } }), { instead: 4 }], [xcitJob({ model: { patch: 8, depth: 1 } }), { instead: 4 }]]),
    ...each('/attention/class_attention', [[polyXcit({ class_attention: 'softmax' })], [polyXcit({ class_attention: 'softmax', scale: 'learned' })],
        [xcitJob({ attention: { activation: 'sigmoid', class_attention: 'softmax' } })]]),
    ...each('/attention/n_for_scale', [[polyXcit({ n_for_scale: 'channels' }, { model: { heads: 4 } })], [polyXcit({ n_for_scale: 'keys' }, { model: { heads: 1 } })], [polyXcit({ n_for_scale: 9 })],
        [xcitJob({ attention: { activation: 'sigmoid', n_for_scale: 'channels', alpha: 0.7 }, model: { heads: 4 } })], [xcitJob({ attention: { activation: 'sigmoid_bias', n_for_scale: 'channels' }, model: { heads: 1 } })]]),
    ...each('/attention/scale_share', [[polyXcit({ scale: 'learned', scale_share: 'head' })]]),
    ...each('/attention/scale', [[polyXcit({ scale: 'none' })], [polyXcit({ scale: 'k', k: 3 })]]),
    ...each('/train/optimizer/decay_temperature', [[xcitJob({ train: { optimizer: { lr: 0.05, weight_decay: 0.5, decay_temperature: true } } })]]),
    ...each('/resources/slots', [[polyXcit({ scale: 'learned' }, { resources: { slots: 2 }, train: { drop_path: 0.3 } }), { inert: true }]]),
    ...each('/train/zero', [[xcitJob({ resources: { slots: 2 }, train: { zero: 1, accumulation: 2 } }), { inert: true }]]),

    /* ---- norms ---- */
    ...each('/norm/placement', ['S1', 'S2', 'S3', 'S4', 'S5', 'post'].flatMap(placement =>
        [[imageJob({ norm: { placement } }), placement === 'S1' ? { instead: 'S2' } : {}], [textJob({ norm: { placement } }), placement === 'S1' ? { instead: 'S2' } : {}]])),
    ...each('/norm/kind', [[imageJob({ norm: { kind: 'rms' } })], [textJob({ norm: { kind: 'rms' } })], [imageJob({ norm: { kind: 'layer', placement: 'S4' } })]]),
    ...each('/norm/eps', [[imageJob({ norm: { eps: 0.03 } })], [textJob({ norm: { eps: 0.03 } })], [imageJob({ norm: { eps: 0.03, placement: 'S5' } })]]),
    ...each('/norm/eps_mode', [[imageJob({ norm: { eps: 0.3, eps_mode: 'sum' } })], [imageJob({ norm: { eps: 0.3, eps_mode: 'sum', placement: 'S4' } })]]),
    ...each('/norm/final', [[imageJob({ norm: { final: false } })], [imageJob({ model: { pool: 'cls' }, norm: { final: false } })], [textJob({ norm: { final: false } })]]),

    /* ---- attention ---- */
    ...each('/attention/activation', ['poly', 'sigmoid', 'sigmoid_bias', 'relu', 'taylor', 'sima', 'periodic']
        .flatMap(activation => [[imageJob({ attention: { activation } })], ...activation === 'sima' ? [] : [[textJob({ attention: { activation } })]]])),
    ...each('/attention/formula', [[formula('s^3/(1+abs(s))'), { instead: 's^3/sqrt(n)' }], [formulaText('relu(softmax(s) + a/ni)'), { instead: 'exp(s)/(exp(b)+rowsum(exp(s)))' }]]),
    // NaN at some of the first layer's entries, and so everywhere after it: no step is taken, and the metrics say how many entries
    ...each('/attention/formula', [formula, formulaText].map(of => [merge(of('log(s+0.2)', { init_logit_std: 0.5 }), { train: { nonfinite_limit: 3, steps: 9 } }),
        { instead: null, outcome: 'diverged', only: ['formula_broken/1', 'formula_broken/2', 'nonfinite'] }])),
    ...each('/attention/params', [[formula('a*s^3', { params: { a: { init: '1/sqrt(n)', form: 'log' } }, scale_lr_mult: 2 })], [formulaText('exp(s)/(exp(b)+rowsum(exp(s)))', { params: { b: { init: '0.3*(h+1)/(l+1)', per: 'head' } } })],
        [formula('softmax(c*tanh(s/c))*(1+h)/H', { params: { c: { init: 2, per: 'global', form: 'softplus' } } })], [formulaText('a*s^3', { params: { a: { init: 0.5, form: 'sigmoid' } } })],
        // whose exponential is beyond f64
        [formula('softmax(c*tanh(s/c))*(1+h)/H', { params: { c: { init: 800, form: 'softplus' } } })],
        [formulaText('c*s^3/(a+abs(s)) + b*s/n', { params: { a: { init: 0.5, per: 'head', form: 'softplus' }, b: { init: 0.1, per: 'global' }, c: { init: '1/sqrt(n)', form: 'log' } } })]]),
    ...each('/attention/recognise', [[formula('s^3/sqrt(n)', { recognise: false }), { instead: true }], [formula('s^3/sqrt(n)'), { instead: false }],
        [formulaSwin('s^3/sqrt(n)', { n_for_scale: 'patches' }), { instead: false }], [formulaSwin('s^3/sqrt(n)', { n_for_scale: 'patches', recognise: false }), { instead: true }],
        [formulaSwin('3*s^2/n', {}, { model: { window: 4 } }), { instead: false }]]),
    ...each('/attention/degree', [1, 2, 4, 5, 6, 8].map(degree => [poly({ degree })])),
    ...each('/attention/degree', [[polyText({ degree: 2 })], [polyText({ degree: 1 })]]),
    ...each('/attention/scale', ['none', 'k', 'learned'].flatMap(scale => [[poly({ scale, ...scale === 'k' ? { k: 3 } : {} })], [polyText({ scale, ...scale === 'k' ? { k: 3 } : {} })]])),
    ...each('/attention/scale', [[poly({ scale: 'fixed' }), { instead: 'none' }]]),
    ...each('/attention/k', [[poly({ scale: 'k', k: 0.2 }), { instead: 0.3 }]]),
    ...each('/attention/alpha', ['sigmoid', 'sigmoid_bias', 'relu'].map(activation => [imageJob({ attention: { activation, alpha: 0.8 } })])),
    ...each('/attention/scale_share', [[poly({ scale: 'learned', scale_share: 'head' })], [poly({ scale: 'learned', scale_share: 'global' })],
        [poly({ scale: 'learned', scale_share: 'layer' }, { norm: { placement: 'S4' } })], [polyText({ scale: 'learned', scale_share: 'head' })]]),
    ...each('/attention/scale_param', [[poly({ scale: 'learned', scale_param: 'log' })], [poly({ scale: 'learned', scale_param: 'softplus' })],
        [poly({ scale: 'learned', scale_param: 'direct' }, { train: { optimizer: { name: 'msgdw' } } })]]),
    ...each('/attention/scale_decay', [[poly({ scale: 'learned', scale_decay: true }, { train: { optimizer: { weight_decay: 3 } } })]]),
    ...each('/attention/scale_lr_mult', [[poly({ scale: 'learned', scale_lr_mult: 3 })], [poly({ scale: 'learned', scale_lr_mult: 0 })]]),
    ...each('/attention/n_for_scale', [[poly({ n_for_scale: 'keys' }, { model: { pool: 'cls' } })], [poly({ n_for_scale: 7.5 })],
        [polyText({ n_for_scale: 'keys' }, { model: { context: 9 }, data: { context: 5 } }), { instead: 9 }], [polyText({ n_for_scale: 'row' })], [polyText({ n_for_scale: 'row', scale: 'learned' })],
        [textJob({ attention: { activation: 'sigmoid', n_for_scale: 'row' } })], [textJob({ attention: { activation: 'relu', n_for_scale: 'row', alpha: 0.7 } })],
        [imageJob({ attention: { activation: 'sigmoid_bias', n_for_scale: 40, alpha: 0.3 } })]]),
    ...each('/attention/qk_norm', [[imageJob({ attention: { qk_norm: true } })], [polyText({ qk_norm: true })], [imageJob({ attention: { qk_norm: false }, norm: { placement: 'S3' } })]]),
    ...each('/attention/qk_gain', [[imageJob({ attention: { qk_norm: true, qk_gain: 'per_head' } })], [textJob({ attention: { qk_norm: true, qk_gain: 'per_head' } })]]),
    ...each('/attention/form', [[poly({ degree: 2, form: 'linear' }), { inert: true }], [polyText({ degree: 2, form: 'linear' }), { inert: true }],
        [polyText({ degree: 1, form: 'linear', scale: 'learned' }), { inert: true }], [poly({ degree: 2, form: 'quadratic' }), { inert: true }]]),
    ...each('/attention/init_logit_std', [[imageJob({ attention: { init_logit_std: 0.9 } })], [imageJob({ attention: { init_logit_std: 0.9 }, train: { init: 'trunc_normal' } })],
        [textJob({ attention: { init_logit_std: 0.9 }, train: { init: 'normal' } })]]),
    ...each('/attention/dropout', [[imageJob({ attention: { dropout: 0.3 } })], [polyText({ dropout: 0.3 })]]),

    /* ---- training ---- */
    ...each('/train/steps', [[imageJob({ train: { steps: 5 } }), { instead: 3 }]]),
    ...each('/train/epochs', [[epochs({}), { instead: 3 }]]),
    ...each('/train/batch', [[imageJob({ train: { batch: 6 } })], [textJob({ train: { batch: 3 } })], [labelJob({ train: { batch: 3 } })]].map(([job]) => [job, { instead: 4 }])),
    ...each('/train/accumulation', [[imageJob({ train: { accumulation: 2, dropout: 0.2 } })], [textJob({ train: { accumulation: 4, drop_path: 0.3 } })]]),
    ...each('/train/accumulation', [[labelJob({ train: { accumulation: 2 } }), { inert: true }]]),
    ...each('/train/accumulation', [[imageJob({ train: { accumulation: 2, clip_norm: 0.5, label_smoothing: 0.1 } }), { inert: true }]]),
    ...each('/train/freeze', [[imageJob({ train: { freeze: 'patch_embed, blocks.0.attn', clip_norm: 0.5 } })], [textJob({ train: { freeze: 'transformer.w', ema: 0.6, accumulation: 2 } })],
        [poly({ scale: 'learned' }, { train: { freeze: 'blocks.1.attn.attn_scale,head', optimizer: { name: 'msgdw' } } })], [swinJob({ train: { freeze: 'layers.0' } })],
        ...['patch_embed.proj.2', 'blocks.0.local_mp.bn.running_var', 'blocks.0.local_mp.bn.weight,blocks.1.local_mp.bn.num'].map(freeze => [xcitJob({ train: { freeze, ema: 0.8 } })]),
        [polyXcit({}, { train: { freeze: 'patch_embed', accumulation: 2 } })], [xcitJob({ train: { freeze: 'blocks', batch: 4 }, resources: { slots: 2 } })],
        [imageJob({ train: { freeze: 'blocks', zero: 1 }, resources: { slots: 2 } })]].map(([job]) => [job])),
    ...each('/train/layer_decay', [[imageJob({ model: { depth: 3 }, train: { layer_decay: 0.5 } })], [textJob({ train: { layer_decay: 0.3, optimizer: { name: 'msgdw', weight_decay: 0.2 } } })],
        [polySwin({ scale: 'learned', scale_lr_mult: 2 }, { train: { layer_decay: 0.7 } })], [xcitJob({ train: { layer_decay: 0.5 } })],
        [polyNystrom({ scale: 'learned' }, { train: { layer_decay: 0.5 } })]]),
    ...each('/train/zero', [[imageJob({ train: { zero: 1, ema: 0.8, clip_norm: 0.5 }, resources: { slots: 2 } }), { inert: true }]]),
    ...each('/train/optimizer/name', [[optimizer({ name: 'msgdw' }, { ema: 0.5 })], [optimizer({ name: 'msgd_l2', weight_decay: 0.1 })], [textJob({ train: { optimizer: { name: 'msgdw' } } })]]),
    ...each('/train/optimizer/lr', [[optimizer({ lr: 0.02 })], [imageJob({ train: { optimizer: { lr: undefined, name: 'msgdw' } } }), { instead: 0.1 }], [imageJob({ train: { optimizer: { lr: undefined } } }), { instead: 0.1 }]]),
    ...each('/train/optimizer/betas', [[optimizer({ betas: [0.7, 0.999] })], [optimizer({ betas: [0.9, 0.6] })], [textJob({ train: { optimizer: { betas: [0.5, 0.8] } } })]]),
    ...each('/train/optimizer/eps', [[optimizer({ eps: 0.01 })]]),
    ...each('/train/optimizer/momentum', [[optimizer({ name: 'msgdw', momentum: 0.5 })], [optimizer({ name: 'msgd_l2', momentum: 0 })]]),
    ...each('/train/optimizer/dampening', [[optimizer({ name: 'msgdw', dampening: 0.4 })], [optimizer({ name: 'msgd_l2', dampening: 0.4 })]]),
    ...each('/train/optimizer/nesterov', [[optimizer({ name: 'msgdw', nesterov: true })], [optimizer({ name: 'msgd_l2', nesterov: true })]]),
    ...each('/train/optimizer/weight_decay', [[optimizer({ weight_decay: 0.9 })], [optimizer({ name: 'msgdw', weight_decay: 0.9 })], [textJob({ train: { optimizer: { weight_decay: 0.9 } } })],
        [optimizer({ weight_decay: 0.9 }, { ...{}, steps: 3 })]]),
    ...each('/train/schedule/name', [[schedule({ name: 'linear' })], [schedule({ name: 'constant' })], [schedule({ name: 'step', milestones: [2, 4] })], [schedule({ name: 'cosine' }), { instead: 'linear' }],
        [schedule({ name: 'one_cycle', warmup_steps: 3 })], [schedule({ name: 'one_cycle', warmup_steps: 0 })], [epochs({ name: 'one_cycle', per: 'epoch', warmup_epochs: 1 }, { epochs: 3 })]]),
    ...each('/train/schedule/warmup_steps', [[schedule({ warmup_steps: 3 })], [schedule({ warmup_steps: 0 }, { steps: 20, batch: 2 })], [schedule({ name: 'constant', warmup_steps: 2 })]]),
    ...each('/train/schedule/warmup_epochs', [[epochs({ warmup_epochs: 1 })], [epochs({ warmup_epochs: 0.34 })], [epochs({ warmup_epochs: 1, per: 'epoch' }, { epochs: 3 })]]),
    ...each('/train/schedule/warmup_lr', [[schedule({ warmup_steps: 3, warmup_lr: 0.004 })], [schedule({ name: 'one_cycle', warmup_steps: 3, warmup_lr: 0.04 })]]),
    ...each('/train/schedule/warmup_form', [[schedule({ warmup_steps: 3, warmup_form: 'timm' })], [schedule({ warmup_steps: 3, warmup_lr: 0.004, warmup_form: 'nanogpt' })]]),
    ...each('/train/schedule/beta1', [[schedule({ name: 'one_cycle', warmup_steps: 2, beta1: [0.5, 0.7] })]]),
    ...each('/train/schedule/min_lr', [[schedule({ name: 'one_cycle', warmup_steps: 2, min_lr: 0.006 })], [schedule({ min_lr: 0.006 })], [schedule({ name: 'linear', min_lr: 0.006 })]]),
    ...each('/train/schedule/shifted', [[schedule({ warmup_steps: 2, shifted: false })], [schedule({ name: 'linear', warmup_steps: 2, shifted: false })]]),
    ...each('/train/schedule/per', [[epochs({ per: 'epoch' })], [epochs({ per: 'epoch', name: 'linear', warmup_epochs: 1 }, { epochs: 3 })], [schedule({ per: 'epoch', warmup_steps: 3 })]]),
    ...each('/train/schedule/milestones', [[schedule({ name: 'step', milestones: [1, 3] })]]),
    ...each('/train/schedule/factor', [[schedule({ name: 'step', milestones: [2, 3], factor: 0.5 })]]),
    ...each('/train/clip_norm', [[imageJob({ train: { clip_norm: 0.2 } })], [textJob({ train: { clip_norm: 0.2 } })], [textJob({ train: { clip_norm: null, label_smoothing: 0.5 } }), { instead: 0.01 }],
        [optimizer({ name: 'msgdw' }, { clip_norm: 0.2 })]]),
    ...each('/train/label_smoothing', [[imageJob({ train: { label_smoothing: 0.2 } })], [textJob({ train: { label_smoothing: 0.2 } })]]),
    ...each('/train/drop_path', [[imageJob({ train: { drop_path: 0.5 } })], [textJob({ train: { drop_path: 0.5 } })], [imageJob({ train: { drop_path: 0.5 }, norm: { placement: 'S4' } })]]),
    ...each('/train/drop_path_rule', [[imageJob({ train: { drop_path: 0.5, drop_path_rule: 'same' } })]]),
    ...each('/train/dropout', [[imageJob({ train: { dropout: 0.25, steps: 4 } })], [textJob({ train: { dropout: 0.25, steps: 4 } })], [imageJob({ train: { dropout: 0.25 }, norm: { placement: 'S5' } })]]),
    ...each('/train/precision', [[imageJob(single('fp32')), { tolerance: 1e-5, differs: 1e-11 }], [textJob(single('fp32')), { tolerance: 1e-5, differs: 1e-11 }],
        [imageJob(single('bf16')), { tolerance: 0.03, differs: 1e-4, only: ['loss/train', 'loss/val', 'grad/norm'] }],
        [labelJob(single('bf16')), { tolerance: 0.03, differs: 1e-5, only: ['loss/train', 'loss/val', 'grad/norm'] }]]),
    // The same numbers; what changes is the memory (fields.test.mjs).
    ...each('/train/recompute', [[imageJob({ model: { depth: 3 }, train: { recompute: 'off', batch: 12 } }), { inert: true }], [textJob({ train: { recompute: 'off', accumulation: 2, batch: 8 } }), { inert: true }]]),
    ...each('/train/seed', [[imageJob({ train: { seed: 3, dropout: 0.2 } })], [textJob({ train: { seed: 2 ** 40 + 5, dropout: 0.2, batch: 3 } })]]),
    ...each('/train/init', ['trunc_normal', 'normal', 'xavier'].flatMap(init => [[imageJob({ train: { init } })], [textJob({ train: { init } })]])
        .map(([job]) => [job, { instead: 'trunc_xavier' }])),
    ...each('/train/init', [[labelJob({ train: { init: 'xavier' } }), { instead: 'trunc_xavier' }]]),
    ...each('/train/init_fan', [[imageJob({ train: { init_fan: 'fused' } })], [textJob({ train: { init: 'xavier', init_fan: 'fused' } })]]),
    ...each('/train/ema', [[imageJob({ train: { ema: 0.7 } })], [textJob({ train: { ema: 0.7 } })], [optimizer({ name: 'msgdw' }, { ema: 0.4 })]]),
    ...each('/train/ema_serve', [[imageJob({ train: { ema: 0.95, ema_serve: true, eval_every: 1, steps: 6, optimizer: { lr: 0.1 } } })], [textJob({ train: { ema: 0.5, ema_serve: true, eval_every: 1, steps: 5, optimizer: { lr: 0.5 } } })],
        [labelJob({ train: { ema: 0.95, ema_serve: true, eval_every: 1, steps: 6, optimizer: { lr: 0.1 } } })]]),
    /* Steep steps, so that the values go up and down; without biases, of which a gradient of rounding alone would move some. */
    ...each('/train/stop/patience', [[stopping({ patience: 2 })], [stopping({ patience: 3 }), { instead: 2 }], [stoppingText({ patience: 1 })]]),
    ...each('/train/stop/metric', [[stopping({ patience: 2, metric: 'loss/val' })], [stopping({ patience: 1, metric: 'loss/val_ema' }, { ema: 0.5 })], [stoppingText({ patience: 1, metric: 'ppl/val' }), { inert: true }]]),
    ...each('/train/stop/min_change', [[stopping({ patience: 2, metric: 'loss/val', min_change: 0.3 })], [stoppingText({ patience: 1, min_change: 0.5 })]]),
    ...each('/train/nonfinite_limit', [[imageJob({ train: { nonfinite_limit: 3, steps: 9, optimizer: { name: 'msgdw', lr: 1e200 } }, diagnostics: { every: 0 } }),
        { outcome: 'diverged', only: ['lr', 'nonfinite'] }]]),
    ...each('/train/eval_every', [[imageJob({ train: { eval_every: 3, steps: 7 } }), { instead: 2 }], [imageJob({ train: { eval_every: undefined, steps: 4 } }), { instead: 2 }]]),
    ...each('/train/checkpoint_every/steps', [[imageJob({ train: { checkpoint_every: { steps: 2 }, steps: 5, eval_every: 50, keep: { best: 0 } } }), { instead: 1 }]]),
    ...each('/train/checkpoint_every/seconds', [[imageJob({ train: { checkpoint_every: { steps: undefined, seconds: 1e-7 }, steps: 3, keep: { best: 0 } } })], [imageJob({ train: { checkpoint_every: undefined, steps: 4 } }), { instead: 1e-7 }]]),
    ...each('/train/keep/best', [0, 2, 3].map(best => [imageJob({ train: { steps: 8, eval_every: 1, keep: { best, latest: 1 }, optimizer: { lr: 0.1 } }, diagnostics: { every: 0 } }), best === 0 ? { instead: 2 } : {}])),
    ...each('/train/keep/latest', [0, 2, 4].map(latest => [imageJob({ train: { steps: 8, keep: { best: 0, latest } }, diagnostics: { every: 0 } }), latest === 0 ? { instead: 3 } : {}])),

    /* ---- diagnostics ---- */
    ...each('/diagnostics/every', [[imageJob({ diagnostics: { every: 1 } }), { instead: 2 }], [imageJob({ diagnostics: { every: 0 } }), { instead: 2 }], [polyText({ scale: 'learned' }, { diagnostics: { every: 3 } }), { instead: 2 }]]),
    ...each('/diagnostics/probe_batch', [[imageJob({ diagnostics: { probe_batch: 5 } }), { instead: 3 }], [textJob({ diagnostics: { probe_batch: 1 } }), { instead: 2 }], [imageJob({ diagnostics: { probe_batch: 100 } }), { instead: 3 }]]),

    ...each('/diagnostics/probe_cls', ['softmax', 'poly', 'sigmoid', 'taylor', 'periodic'].map(activation => [imageJob({ model: { pool: 'cls' }, attention: { activation }, diagnostics: { probe_cls: false } })])),
    ...each('/diagnostics/probe_cls', [[imageJob({ model: { pool: 'cls' }, attention: { activation: 'poly', scale: 'learned', scale_share: 'head', qk_norm: true }, diagnostics: { probe_cls: false } })]]),
    ...each('/diagnostics/heatmaps', [[maps({})], [maps({}, { attention: { activation: 'softmax' } })], [mapsText({})], [mapsText({}, { attention: { n_for_scale: 'row' } })],
        [maps({}, { model: { pool: 'cls' } })], [swinJob({ attention: { activation: 'poly' }, diagnostics: { heatmaps: { every: 2 } } })], [maps({}, { attention: { activation: 'sima' } })], [maps({}, { diagnostics: { every: 0 } })]]),
    ...each('/diagnostics/heatmaps', [[polyXcit({}, heated)], [xcitJob(heated)], [polyXcit({ class_attention: 'softmax', scale: 'learned', scale_share: 'head' }, heated)],
        [polyNystrom({ scale: 'learned' }, heated)], [nystromJob(heated)], [polyNystrom({ nystrom_apply: 'F1F3' }, heated)], [polyNystrom({}, merge(heated, { model: { landmarks: 12 }, diagnostics: { every: 0 } }))],
        [nystromLabels(merge(heated, { attention: { activation: 'poly' }, model: { landmarks: 6 }, data: { tokenizer: 'chars', zero_is_padding: true }, diagnostics: { every: 0 } }))],
        [maps({}, { attention: { activation: 'formula', formula: 's^3/(1+abs(s))' } })], [mapsText({}, { attention: { activation: 'formula', formula: 'exp(s)/(exp(b)+rowsum(exp(s)))', params: { b: { init: '0.3*(h+1)/(l+1)', per: 'head' } } } })]]),
    ...each('/diagnostics/heatmaps/layers', [[maps({ layers: [2] }), { instead: [1] }], [mapsText({ layers: [2], heads: [1] }), { instead: [1] }]]),
    ...each('/diagnostics/heatmaps/heads', [[maps({ heads: [2] }, { attention: { scale: 'learned', scale_share: 'head' } }), { instead: [1] }], [mapsText({ heads: [1] }), { instead: [2] }]]),
    ...each('/diagnostics/heatmaps/every', [[maps({ every: 2 }), { instead: 1 }], [mapsText({ every: 3 }), { instead: 2 }]]),

    ...each('/diagnostics/histograms', [[histograms({})], [histogramsText({})], [histograms({}, { norm: { placement: 'S5' }, train: { dropout: 0.3, label_smoothing: 0.1 } })],
        [histograms({}, { train: { accumulation: 2 } })], [histograms({}, { resources: { slots: 2 } })], [swinJob({ diagnostics: { histograms: {} } })]]),
    ...each('/diagnostics/histograms', [[xcitJob({ diagnostics: { histograms: {} } })], [polyXcit({ scale: 'learned' }, { model: { layerscale: 0.3 }, diagnostics: { histograms: {} } })],
        [histograms({}, { data: { augment: { erasing: 0.7 } } })],
        [nystromJob({ diagnostics: { histograms: {} } })], [polyNystrom({ scale: 'learned' }, { diagnostics: { histograms: {} } })]]),
    ...each('/diagnostics/histograms/tensors', [[histograms({ tensors: ['w_k', 'w_2'] })], [histogramsText({ tensors: ['w_v', 'w_o', 'w_1'] }), { instead: ['w_q'] }]]),
    ...each('/diagnostics/histograms/at', [[histograms({ at: [0.34] })], [histogramsText({ at: [0, 1] })]]),

    /* ---- resources: nothing here may change a number ---- */
    ...each('/resources/slots', [[imageJob({ resources: { slots: 2 }, train: { dropout: 0.2, drop_path: 0.3, clip_norm: 0.5 }, attention: { dropout: 0.2 } }), { inert: true }],
        [textJob({ resources: { slots: 2 }, train: { dropout: 0.2, accumulation: 2, ema: 0.9 } }), { inert: true }],
        [labelJob({ resources: { slots: 2 }, train: { dropout: 0.2, accumulation: 2 } }), { inert: true }]]),
    ...each('/resources/device', [[imageJob({ resources: { device: 'auto' } }), { inert: true }]]),
    ...each('/resources/threads', [[imageJob({ resources: { threads: 2 } }), { inert: true }]]),
    ...each('/resources/loader_threads', [[imageJob({ resources: { loader_threads: 3 } }), { inert: true }]]),
    ...each('/resources/time_limit_s', [[imageJob({ resources: { time_limit_s: 500 } }), { inert: true }]]),
    ...each('/resources/warn_before_s', [[imageJob({ resources: { time_limit_s: 500, warn_before_s: 20 } }), { inert: true }]]),
    ...each('/resources/max_restarts', [[imageJob({ resources: { max_restarts: 0 } }), { inert: true }]]),
    ...each('/resources/priority', [[imageJob({ resources: { priority: -5 } }), { inert: true }]]),

    /* ---- head ---- */
    ...each('/schema', [[imageJob({ schema: 1 }), { inert: true }]]),
    ...each('/name', [[imageJob({ name: 'another' }), { inert: true }]]),
    ...each('/experiment', [[imageJob({ experiment: 'another' }), { inert: true }]]),
    ...each('/tags', [[imageJob({ tags: { a: 'b' } }), { inert: true }]]),
    ...each('/notes', [[imageJob({ notes: 'a note' }), { inert: true }]]),
    ...each('/recipe', [[textJob({ recipe: 'gpt2_owt', data: { tokenizer: 'bytes' }, train: { optimizer: { lr: undefined }, init: undefined, schedule: { warmup_steps: 2 } } })],
        [textJob({ recipe: 'ldnt', data: { tokenizer: 'bytes' }, train: { optimizer: { lr: undefined }, init: undefined, schedule: { warmup_steps: 2 } } })]]),
    ...each('/overrides', [[imageJob({ overrides: { '/train/optimizer/lr': 0.03, '/attention/activation': 'relu' } })]]),
];

/** What a recipe says where the document says nothing (GET /api/v1/fields lists the recipes), for the recipes of the cases. */
export const recipes = {
    gpt2_owt: { train: { optimizer: { lr: 6e-4, betas: [0.9, 0.95], weight_decay: 0.1 }, schedule: { min_lr: 6e-5 }, clip_norm: 1, init: 'normal' } },
    ldnt: { train: { optimizer: { lr: 6e-4, betas: [0.9, 0.95], weight_decay: 0.1 }, schedule: { min_lr: 6e-5 }, clip_norm: 1, init: 'xavier' } },
};

/** Fields without a case, each with its reason. Ten at most. */
export const without = {
    '/template': 'no template is accepted yet: a document that names one is refused',
    '/variant': 'the size of a template',
    '/depends_on': 'not accepted yet; says when a job may start',
    '/resources/memory_bytes': 'only its default is accepted',
    '/train/start/model': 'what the document called the file, for people',
    '/train/start/run': 'who wrote it, for people; its path says which file',
    '/evaluate/model': 'what the document called the checkpoint, for people',
    '/evaluate/run': 'whose checkpoint it is, for people; its path says which file',
    '/sweep/concurrency': 'how many runs work at once; no run can see it',
};
