// DeiT with a distillation token, forward, and what its second head learns of a teacher: written from its paper (Touvron et
// al. 2021, section 4). Of the soft form the mean is taken over samples and classes, as the authors' code has it.
import { Network } from './network.mjs';
import { Tape } from './tape.mjs';

export class Deit extends Network {
    /** The mean of both heads, which stay in `both`: [class, distillation]. */
    classifyImage(image, sample) {
        const t = this.t, s = this.s;
        const position = this.param.get('pos_embed');
        const at = i => position.slice(i * s.width, (i + 1) * s.width);
        let x = [this.param.get('cls_token'), this.param.get('dist_token'), ...this.patches(image)];
        x = this.body(x, s.pos === 'learned' ? x.map((_, i) => at(i)) : null, sample);
        this.both = ['head', 'head_dist'].map((name, i) => this.linear(s.finalNorm ? this.norm(x[i], 'norm') : x[i], name));
        return this.both[0].map((a, c) => t.scale(t.add(a, this.both[1][c]), 0.5));
    }
}

/** Logs of the softmax of logits divided by tau, as nodes. */
function logShares(t, logits, tau) {
    const scaled = logits.map(a => t.scale(a, 1 / tau)), top = Math.max(...scaled.map(a => t.at(a)));
    const lse = t.log(t.sum(scaled.map(a => t.exp(t.shift(a, -top)))));
    return scaled.map(a => t.sub(t.shift(a, -top), lse));
}

/** What one sample owes its teacher, whose logits are numbers: a node. */
export function lesson(t, distilled, teacher, { kind, tau }) {
    if (kind === 'hard')
        return t.scale(logShares(t, distilled, 1)[teacher.indexOf(Math.max(...teacher))], -1);
    const top = Math.max(...teacher), exps = teacher.map(x => Math.exp((x - top) / tau)), all = exps.reduce((a, b) => a + b);
    const logs = teacher.map(x => (x - top) / tau - Math.log(all));
    const terms = logShares(t, distilled, tau).map((a, c) => t.scale(t.shift(t.scale(a, -1), logs[c]), exps[c] / all));
    return t.scale(t.sum(terms), tau * tau / teacher.length);
}

/** The logits of a network as numbers. */
export function numbers(make, { s, params }, input) {
    const t = new Tape();
    return make(t, s, params).classify(input, 0).map(a => t.at(a));
}
