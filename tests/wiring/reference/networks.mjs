// Which reference computes which network.
import { Deit } from './deit.mjs';
import { Network } from './network.mjs';
import { Nystrom } from './nystrom.mjs';
import { Swin } from './swin.mjs';
import { Xcit } from './xcit.mjs';

const others = { deit: Deit, nystrom: Nystrom, swin: Swin, xcit: Xcit };

/** The network of the settings: the arguments are those of Network. */
export function network(t, s, ...more) {
    return new (others[s.arch] ?? Network)(t, s, ...more);
}
