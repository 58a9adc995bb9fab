// What a job document means, as numbers: the defaults are written here once more, from the documented table (README,
import { scalars } from './formulas.mjs';
// GET /api/v1/fields) and not read from the daemon, so that a default or a rule that goes astray there is noticed.

/** Shapes by name: width, depth, heads and what else a preset says (job document, presets). */
export const presets = {
    vit_micro: { arch: 'vit', width: 64, depth: 4, heads: 2, pool: 'mean' },
    vit_tiny: { arch: 'vit', width: 192, depth: 12, heads: 3, pool: 'cls', patch: [16, 16] },
    vit_small: { arch: 'vit', width: 384, depth: 12, heads: 6, pool: 'cls', patch: [16, 16] },
    vit_b: { arch: 'vit', width: 768, depth: 12, heads: 12, pool: 'cls', patch: [16, 16] },
    vit_l: { arch: 'vit', width: 1024, depth: 24, heads: 16, pool: 'cls', patch: [16, 16] },
    vit_h: { arch: 'vit', width: 1280, depth: 32, heads: 16, pool: 'cls', patch: [14, 14] },
    deit_b: { arch: 'vit', width: 768, depth: 12, heads: 12, pool: 'cls', patch: [16, 16] },
    deit_micro: { arch: 'deit', width: 64, depth: 4, heads: 2, pool: 'cls' },
    deit_b_distilled: { arch: 'deit', width: 768, depth: 12, heads: 12, pool: 'cls', patch: [16, 16] },
    vdnt_large: { arch: 'vit', width: 1024, depth: 24, heads: 16, pool: 'cls', patch: [16, 16], placement: 'S5' },
    vdnt_huge: { arch: 'vit', width: 1280, depth: 32, heads: 16, pool: 'cls', patch: [14, 14], placement: 'S5' },
    swin_micro: { arch: 'swin', widths: [32, 64], depths: [2, 2], head_counts: [2, 4], patch: [2, 2] },
    swin_t: { arch: 'swin', widths: [96, 192, 384, 768], depths: [2, 2, 6, 2], head_counts: [3, 6, 12, 24], patch: [4, 4] },
    swin_s: { arch: 'swin', widths: [96, 192, 384, 768], depths: [2, 2, 18, 2], head_counts: [3, 6, 12, 24], patch: [4, 4] },
    swin_b: { arch: 'swin', widths: [128, 256, 512, 1024], depths: [2, 2, 18, 2], head_counts: [4, 8, 16, 32], patch: [4, 4] },
    xcit_micro: { arch: 'xcit', width: 64, depth: 4, heads: 4, patch: [4, 4] },
    xcit_s12: { arch: 'xcit', width: 384, depth: 12, heads: 8, patch: [16, 16], layerscale: 1 },
    xcit_m24: { arch: 'xcit', width: 512, depth: 24, heads: 8, patch: [16, 16], layerscale: 1e-5 },
    nystrom_micro: { arch: 'nystrom', width: 64, depth: 2, heads: 2, mlp_ratio: 2, context: 128, landmarks: 16 },
    nystrom_lra: { arch: 'nystrom', width: 64, depth: 2, heads: 2, mlp_ratio: 2 },
    gpt_micro: { arch: 'gpt', width: 128, depth: 4, heads: 4, context: 128, bias: false },
    gpt_nano: { arch: 'gpt', width: 384, depth: 6, heads: 6, context: 256, bias: false },
    gpt2: { arch: 'gpt', width: 768, depth: 12, heads: 12, context: 1024, bias: true },
    gpt2_medium: { arch: 'gpt', width: 1024, depth: 24, heads: 16, context: 1024, bias: true },
    gpt2_large: { arch: 'gpt', width: 1280, depth: 36, heads: 20, context: 1024, bias: true },
    gpt2_1436m: { arch: 'gpt', width: 1536, depth: 48, heads: 24, context: 1024, bias: true },
    gpt2_xl: { arch: 'gpt', width: 1600, depth: 48, heads: 25, context: 1024, bias: true },
    ldnt_small: { arch: 'gpt', width: 768, depth: 12, heads: 12, context: 1024, bias: false, placement: 'S5' },
    ldnt_large: { arch: 'gpt', width: 1280, depth: 36, heads: 20, context: 1024, bias: false, placement: 'S5' },
    ldnt_xl: { arch: 'gpt', width: 1536, depth: 48, heads: 24, context: 1024, bias: false, placement: 'S5' },
};

/** Presets of vit whose patch follows the side: the largest divisor that is at most side / 7. */
const largestDivisor = side => {
    for (let k = Math.floor(side / 7); k > 1; k--)
        if (side % k === 0)
            return k;
    return 1;
};

/** Formulas of the cases that are c n^-alpha s^p: they run as that power (attention.recognise). */
const powers = { 's^3/sqrt(n)': { degree: 3, constant: 1, alpha: 0.5 }, '3*s^2/n': { degree: 2, constant: 3, alpha: 1 } };

const pair = value => Array.isArray(value) ? value : [value, value];

/**
 * @param {any} job a job document without sweep
 * @param {{channels?: number, height?: number, width?: number, classes?: number, vocab?: number,
 *     samples: number}} data what the data set is; `samples` of an epoch
 */
export function settings(job, data) {
    const { model = {}, attention = {}, norm = {}, train = {}, diagnostics = {}, resources = {} } = job;
    const optimizer = train.optimizer ?? {}, schedule = train.schedule ?? {};
    const preset = model.preset ? presets[model.preset] : {};
    if (model.preset && !preset)
        throw new Error(`no preset ${model.preset}`);
    const arch = model.arch ?? preset.arch, gpt = arch === 'gpt', swin = arch === 'swin', xcit = arch === 'xcit', nystrom = arch === 'nystrom', tokens = gpt || nystrom;
    const list = name => model[name] ?? preset[name] ?? [];
    const width = swin ? list('widths')[0] : model.width ?? preset.width;
    const placement = norm.placement ?? preset.placement ?? 'S1', deep = /^S[2-5]$/.test(placement);
    const known = attention.recognise !== false ? powers[attention.formula] : undefined;
    const activation = known ? 'poly' : attention.activation ?? 'softmax', scale = attention.scale ?? 'fixed';
    const pool = model.pool ?? preset.pool ?? (xcit || arch === 'deit' ? 'cls' : 'mean'), bias = model.bias ?? preset.bias ?? true;
    const arena = nystrom ? { listops_gen: [2048, 512], pathfinder_gen: [1024, 8192] }[job.data?.dataset] : undefined;
    const context = model.context ?? preset.context ?? arena?.[job.data?.lra_len === 'paper' ? 1 : 0] ?? 256;
    const patch = tokens ? [0, 0] : pair(model.patch ?? preset.patch ?? [largestDivisor(data.height), largestDivisor(data.width)]);
    const patches = tokens ? 0 : data.height / patch[0] * (data.width / patch[1]);
    const length = job.data?.context ?? context, pairs = job.data?.dataset === 'aan', texts = pairs ? 2 : 1; // of a sample, each as long
    const nWord = attention.n_for_scale ?? (tokens ? 'context' : swin ? 'window' : 'patches');
    const side = swin ? Math.min(model.window ?? 7, data.height / patch[0], data.width / patch[1]) : 0;
    const n = typeof nWord === 'number' ? nWord
        : { patches, channels: width / (model.heads ?? preset.heads), keys: swin ? side * side : xcit ? width / (model.heads ?? preset.heads) : tokens ? length / texts : patches + (pool === 'cls' ? 1 : 0) + (arch === 'deit' ? 1 : 0), window: side * side, context: context / texts, row: 1 }[nWord];
    const alpha = attention.alpha ?? { relu: 1, sigmoid_bias: 0 }[activation] ?? 0.5;
    const momentum = /^msgd/.test(optimizer.name ?? 'adamw');
    const lr = optimizer.lr ?? (momentum ? 0.3 : 1e-3), batch = train.batch ?? 64;
    const stepsPerEpoch = Math.floor(data.samples / batch);
    const steps = train.steps ?? train.epochs * stepsPerEpoch;
    let warmup = schedule.warmup_steps;
    if (warmup === undefined && schedule.warmup_epochs !== undefined)
        warmup = Math.round(schedule.warmup_epochs * stepsPerEpoch);
    warmup ??= train.steps !== undefined ? Math.round(0.05 * steps) : Math.round(train.epochs * 0.05 * stepsPerEpoch);
    return {
        arch, pool, bias, patch, activation, placement, context: length, n,
        positions: context / texts, pairs,
        width, depth: swin ? list('depths').reduce((a, b) => a + b) : model.depth ?? preset.depth, heads: model.heads ?? preset.heads ?? list('head_counts')[0],
        hidden: Math.round((model.mlp_ratio ?? preset.mlp_ratio ?? 4) * width),
        landmarks: model.landmarks ?? preset.landmarks ?? 128, convKernel: model.conv_kernel ?? 35, pinvIterations: model.pinv_iterations ?? 6,
        pinvStart: model.pinv_start ?? 'matrix_abs', nystromApply: attention.nystrom_apply ?? 'all', nValid: attention.n_valid ?? false, zeroIsPadding: job.data?.zero_is_padding ?? job.data?.dataset !== 'text_labels',
        widths: list('widths'), depths: list('depths'), headCounts: list('head_counts'), window: model.window ?? 7, nRule: nWord === 'keys' ? 'window' : nWord,
        mlpAct: model.mlp_act ?? 'gelu',
        gelu: model.gelu ?? (gpt && (!model.preset || /^gpt2/.test(model.preset)) ? 'tanh' : 'exact'),
        pos: model.pos ?? (xcit ? 'fourier' : 'learned'),
        layerscale: model.layerscale ?? preset.layerscale ?? null, classSoftmax: attention.class_attention === 'softmax', decayTemperature: optimizer.decay_temperature ?? false, posAfter: model.pos_after ?? false,
        channels: data.channels, height: data.height, imageWidth: data.width, classes: data.classes, vocab: data.vocab, patches,
        formula: attention.formula, scalars: activation === 'formula' ? scalars(attention) : [],
        degree: known?.degree ?? (activation === 'poly' ? attention.degree ?? 3 : 1), known,
        scale: known ? 'k' : scale, c: known ? known.constant * n ** -known.alpha : { none: 1, fixed: 1 / Math.sqrt(n), k: 1 / attention.k, learned: 1 / Math.sqrt(n) }[scale],
        alpha, nRow: nWord === 'row', rowPower: activation !== 'poly' ? alpha : scale === 'fixed' || scale === 'learned' ? 0.5 : 0,
        scaleShare: attention.scale_share ?? (placement === 'S4' || placement === 'S5' ? 'head' : 'layer'),
        scaleParam: attention.scale_param ?? (momentum ? 'log' : 'direct'),
        scaleDecay: attention.scale_decay ?? false, scaleLrMult: attention.scale_lr_mult ?? 1,
        qkNorm: attention.qk_norm ?? deep, qkGain: attention.qk_gain ?? 'shared',
        logitStd: attention.init_logit_std ?? null, attnDropout: attention.dropout ?? 0,
        normKind: norm.kind ?? (deep ? 'rms' : 'layer'), eps: norm.eps ?? (gpt || swin || nystrom ? 1e-5 : 1e-6),
        epsMode: norm.eps_mode ?? 'mean', finalNorm: norm.final ?? true,
        optimizer: optimizer.name ?? 'adamw', lr, betas: optimizer.betas ?? [0.9, gpt ? 0.95 : 0.999],
        optimEps: optimizer.eps ?? 1e-8, momentum: optimizer.momentum ?? 0.9, dampening: optimizer.dampening ?? 0,
        nesterov: optimizer.nesterov ?? false, decay: optimizer.weight_decay ?? (momentum ? 1e-4 : gpt ? 0.1 : nystrom ? 0 : 0.05),
        schedule: schedule.name ?? 'cosine', warmup, warmupLr: schedule.warmup_lr || (schedule.name === 'one_cycle' ? lr / 25 : 0),
        warmupForm: schedule.warmup_form ?? (schedule.warmup_lr > 0 ? 'timm' : 'nanogpt'),
        minLr: schedule.min_lr ?? (schedule.name === 'one_cycle' ? lr / 25 / 1e4 : lr / 100), beta1: schedule.beta1 ?? [0.95, 0.85], shifted: schedule.shifted ?? true, perEpoch: schedule.per === 'epoch',
        milestones: schedule.milestones ?? [], factor: schedule.factor ?? 0.1,
        clip: train.clip_norm === undefined ? gpt ? 1 : null : train.clip_norm,
        smoothing: train.label_smoothing ?? 0, dropPath: train.drop_path ?? 0, dropPathRule: train.drop_path_rule ?? 'linear',
        dropout: train.dropout ?? 0, seed: train.seed ?? 0, init: train.init ?? (gpt ? 'normal' : nystrom ? 'kaiming' : 'trunc_normal'),
        fusedFan: train.init_fan === 'fused', freeze: (train.freeze ?? '').split(',').map((/** @type {string} */ name) => name.trim()).filter(name => name), layerDecay: train.layer_decay ?? 1,
        ema: train.ema ?? null, emaServe: train.ema_serve ?? false,
        stop: train.stop?.patience ? { patience: train.stop.patience, change: train.stop.min_change ?? 0,
            key: train.stop.metric ?? `${data.classes ? 'acc' : 'loss'}/val${train.ema_serve ? '_ema' : ''}` } : null,
        batch, parts: train.accumulation ?? 1, ranks: resources.slots ?? 1, steps, stepsPerEpoch,
        evalEvery: train.eval_every ?? Math.max(1, Math.floor(steps / 20)),
        probeEvery: diagnostics.every ?? 50, probeBatch: diagnostics.probe_batch ?? 32, probeCls: diagnostics.probe_cls ?? true,
        maps: diagnostics.heatmaps ? { layers: diagnostics.heatmaps.layers ?? [], heads: diagnostics.heatmaps.heads ?? [], every: diagnostics.heatmaps.every ?? 500 } : null,
        histograms: diagnostics.histograms ? { tensors: diagnostics.histograms.tensors ?? [], at: diagnostics.histograms.at ?? [0, 0.5, 1] } : null,
        nonfiniteLimit: train.nonfinite_limit ?? 10,
        precision: train.precision ?? 'fp32',
        saveSteps: train.checkpoint_every?.steps ?? null, saveSeconds: train.checkpoint_every?.seconds ?? 600,
        keepBest: train.keep?.best ?? 1, keepLatest: train.keep?.latest ?? 1,
    };
}
