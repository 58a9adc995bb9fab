// Initial weights: names and shapes of every parameter (timm's for ViT, GPT-2's for GPT), and the documented draws.
import { nystromShapes } from './nystrom.mjs';
import { stream, words } from './philox.mjs';
import { parameter } from './formulas.mjs';
import { swinShapes } from './swin.mjs';
import { xcitShapes } from './xcit.mjs';

/**
 * Every parameter in no particular order: what it is decides its initial value and whether it decays.
 * @returns {{name: string, shape: number[], role: string, fanIn?: number}[]}
 */
export function shapes(s) {
    const list = [], vit = s.arch !== 'gpt', D = s.width;
    const add = (role, name, ...shape) => {
        list.push({ name, shape, role });
        return list.at(-1);
    };
    const norm = (name, width = D) => {
        add('gain', `${name}.weight`, width);
        if (s.bias && s.normKind === 'layer')
            add('bias', `${name}.bias`, width);
    };
    const linear = (role, name, from, to) => {
        add(role, `${name}.weight`, ...vit ? [to, from] : [from, to]);
        list.at(-1).fanIn = from;
        list.at(-1).fanOut = to;
        if (s.bias)
            add('bias', `${name}.bias`, to);
    };
    const learned = s.activation === 'poly' && s.scale === 'learned';
    const scaleName = s.scaleParam === 'direct' ? 'attn_scale' : 'attn_scale_rho';
    const input = ['S3', 'S4', 'S5'].includes(s.placement), mid = ['S4', 'S5'].includes(s.placement);
    if (s.arch === 'xcit') {
        xcitShapes(s, { add, norm, linear, scaleName, learned });
        return list;
    }
    if (s.arch === 'nystrom') {
        nystromShapes(s, { add, norm, linear, scaleName, learned });
        return list;
    }
    if (s.arch === 'swin') {
        swinShapes(s, { add, norm, linear, scaleName, learned, input, mid });
        return list;
    }
    if (vit) {
        const pixels = [s.channels, ...s.patch], cls = s.pool === 'cls', two = s.arch === 'deit';
        if (cls)
            add(two ? 'token' : 'cls', 'cls_token', 1, 1, D);
        if (two)
            add('token', 'dist_token', 1, 1, D);
        if (s.pos === 'learned')
            add('embedding', 'pos_embed', 1, s.patches + (two ? 2 : cls ? 1 : 0), D);
        add('patch', 'patch_embed.proj.weight', D, ...pixels);
        list.at(-1).fanIn = pixels.reduce((a, b) => a * b);
        list.at(-1).fanOut = D;
        if (s.bias)
            add('bias', 'patch_embed.proj.bias', D);
    } else {
        add('embedding', 'transformer.wte.weight', s.vocab, D);
        if (s.pos === 'learned')
            add('embedding', 'transformer.wpe.weight', s.positions, D);
    }
    if (learned && s.scaleShare === 'global')
        add('scale', scaleName, 1);
    for (const scalar of s.scalars.filter(one => one.per === 'global'))
        add('scale', `formula_${scalar.name}`, 1).values = parameter(s, scalar, 0, '').values;
    if (input)
        norm(vit ? 'norm_pre' : 'transformer.ln_in');
    for (let i = 0; i < s.depth; i++) {
        const at = (timm, gpt) => vit ? `blocks.${i}.${timm}` : `transformer.h.${i}.${gpt}`;
        norm(at('norm1', 'ln_1'));
        linear('qkv', at('attn.qkv', 'attn.c_attn'), D, 3 * D);
        if (s.qkNorm)
            for (const which of ['q', 'k'])
                add('gain', at(`attn.${which}_norm.weight`, `attn.${which}_norm.weight`),
                    ...s.qkGain === 'per_head' ? [s.heads, D / s.heads] : [D / s.heads]);
        if (learned && s.scaleShare !== 'global')
            add('scale', at(`attn.${scaleName}`, `attn.${scaleName}`), s.scaleShare === 'head' ? s.heads : 1);
        for (const scalar of s.scalars.filter(one => one.per !== 'global')) {
            const { name, count, values } = parameter(s, scalar, i, at('attn', 'attn'));
            add('scale', name, count).values = values;
        }
        linear('residual', at('attn.proj', 'attn.c_proj'), D, D);
        if (mid)
            norm(at('mid1', 'mid_1'));
        if (s.placement !== 'S5')
            norm(at('norm2', 'ln_2'));
        linear('matrix', at('mlp.fc1', 'mlp.c_fc'), D, s.hidden);
        linear('residual', at('mlp.fc2', 'mlp.c_proj'), s.hidden, D);
        if (mid)
            norm(at('mid2', 'mid_2'));
    }
    if (s.finalNorm)
        norm(vit ? s.pool === 'cls' ? 'norm' : 'fc_norm' : 'transformer.ln_f');
    if (s.arch === 'deit')
        linear('matrix', 'head_dist', D, s.classes);
    if (vit)
        linear('matrix', 'head', D, s.classes);
    else if (s.classes) {
        add('matrix', 'score.weight', s.classes, D);
        Object.assign(list.at(-1), { fanIn: D, fanOut: s.classes });
    }
    return list;
}

/** kernels/ATTENTION.md 9: timm leaves out rank 1, the class token and positions; nanoGPT decays rank 2 and more. */
export function decays(s, p) {
    if (p.role === 'scale')
        return s.scaleDecay;
    if (p.role === 'temperature')
        return s.decayTemperature;
    if (p.role === 'gain' || p.shape.length < 2)
        return false;
    return s.arch === 'gpt' || s.arch === 'nystrom' || !['cls', 'token', 'embedding'].includes(p.role);
}

/** FNV-1a of 32 bits: every parameter draws from a stream of its own. */
function hash(name) {
    let h = 2166136261;
    for (const byte of Buffer.from(name))
        h = Math.imul(h ^ byte, 16777619) >>> 0;
    return h;
}

class Source {
    constructor(seed, name) {
        this.seed = seed;
        this.name = hash(name);
        this.index = 0;
        this.left = [];
    }

    draw() {
        return words(this.seed, stream.init, this.name, this.index++);
    }

    /** Box and Muller; of each pair the sine is taken first. */
    normal() {
        if (!this.left.length) {
            const w = this.draw();
            const radius = Math.sqrt(-2 * Math.log((w[0] + 0.5) * 2 ** -32 + w[1] * 2 ** -64));
            const angle = 2 * Math.PI * ((w[2] + 0.5) * 2 ** -32);
            this.left = [radius * Math.cos(angle), radius * Math.sin(angle)];
        }
        return this.left.pop();
    }

    /** Drawn again until it lies within `limit` deviations. */
    bounded(std, limit) {
        let z;
        do
            z = this.normal();
        while (Math.abs(z) > limit);
        return std * z;
    }

    uniform(bound) {
        const w = this.draw();
        return bound * (2 * (w[0] * 2 ** -32 + w[1] * 2 ** -64) - 1);
    }
}

/** @returns {Map<string, {shape: number[], data: Float64Array}>} in double; fp32 runs round it */
export function initial(s) {
    const params = new Map();
    for (const p of shapes(s)) {
        const count = p.shape.reduce((a, b) => a * b, 1), source = new Source(s.seed, p.name);
        const data = new Float64Array(count);
        for (let i = 0; i < count; i++)
            data[i] = start(s, p, source, i);
        params.set(p.name, { shape: p.shape, data });
    }
    return params;
}

function start(s, p, source, element) {
    const c0 = p.c ?? s.c, cut = s.init === 'trunc_normal' ? 2 / 0.02 : Infinity; // timm cuts at 2, not at two deviations
    switch (p.role) {
    case 'temperature':
    case 'gain': return 1;
    case 'bias': return 0;
    case 'layerscale': return s.layerscale;
    case 'buffer': return p.value;
    case 'scale': return p.values ? p.values[element] : s.scaleParam === 'log' ? Math.log(c0) : s.scaleParam === 'softplus' ? Math.log(Math.expm1(c0)) : c0;
    case 'cls': return 1e-6 * source.normal();
    case 'token': return 0.02 * source.normal();
    case 'embedding': return source.bounded(0.02, cut);
    }
    let { fanOut } = p, std = 0.02;
    if (p.role === 'qkv') {
        const width = p.fanIn, output = s.arch === 'gpt' ? element % (3 * width) : Math.floor(element / width);
        if (s.logitStd !== null && output < 2 * width) // unit inputs: deviation of a logit is std^2 D
            return source.bounded(Math.sqrt(s.logitStd / width), cut);
        fanOut = s.fusedFan ? 3 * width : width;
    }
    if (s.init === 'xavier')
        return source.uniform(Math.sqrt(6 / (p.fanIn + fanOut)));
    if (s.init === 'kaiming')
        return source.uniform(1 / Math.sqrt(p.fanIn));
    if (s.init === 'trunc_xavier')
        return source.bounded(Math.sqrt(2 / (p.fanIn + fanOut)), 2);
    if (p.role === 'residual' && s.arch === 'gpt') // nanoGPT
        std = 0.02 / Math.sqrt(2 * s.depth);
    return source.bounded(std, cut);
}
