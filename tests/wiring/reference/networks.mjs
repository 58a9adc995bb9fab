// Which reference computes which network.
import { Network } from './network.mjs';
import { Swin } from './swin.mjs';

const others = { swin: Swin };

/** The network of the settings: the arguments are those of Network. */
export function network(t, s, ...more) {
    return new (others[s.arch] ?? Network)(t, s, ...more);
}
