// What data draw, under the counters that daemon/worker/data/README.md lists. A draw follows from what is asked alone, never
// from the order of asking.
import { stream, words } from '../philox.mjs';

/** Uniform in 0 .. bound-1: the upper half of the 64-bit product. */
export const bounded = (word, bound) => Number(BigInt(word) * BigInt(bound) >> 32n);

/** Uniform in [0, 1). */
export const unit = word => word / 2 ** 32;

/** The numbers of one training picture, one after the other. */
export class Draws {
    /**
     * @param {number} seed
     * @param {number} epoch
     * @param {number} position place in the epoch's order
     */
    constructor(seed, epoch, position) {
        this.block = block => words(seed, stream.augment, epoch, position + block * 2 ** 40);
        this.taken = 0;
    }

    next() {
        const n = this.taken++;
        return unit(this.block(Math.floor(n / 4))[n % 4]);
    }
}

/**
 * 0 .. count-1 in the order of a Fisher-Yates shuffle from the last place down: draw n decides what comes to place
 * count-1-n, and is word n mod 4 of index n div 4.
 * @param {number} count
 * @param {number} seed
 * @param {number} purpose
 * @param {number} epoch
 */
export function shuffled(count, seed, purpose, epoch) {
    const order = Array.from({ length: count }, (_, i) => i);
    for (let n = 0; n < count - 1; n++) {
        const last = count - 1 - n;
        const other = bounded(words(seed, purpose, epoch, Math.floor(n / 4))[n % 4], last + 1);
        [order[last], order[other]] = [order[other], order[last]];
    }
    return order;
}
