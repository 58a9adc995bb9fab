// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).

/** The upper and lower words of a product of 32-bit words, by halves: doubles hold each sum exactly. */
function mulhilo(a, b) {
    const low = (a & 0xffff) * b, high = (a >>> 16) * b;
    return [Math.floor((high + Math.floor(low / 65536)) / 65536), Math.imul(a, b) >>> 0];
}

/**
 * Four words from a key of 64 bits and a counter of four words.
 * @param {number | bigint} key
 * @param {number[]} counter
 * @returns {number[]}
 */
export function philox(key, counter) {
    let k0 = Number(BigInt(key) & 0xffffffffn), k1 = Number(BigInt(key) >> 32n);
    let [c0, c1, c2, c3] = counter.map(word => word >>> 0);
    for (let round = 0; round < 10; round++) {
        const [h0, l0] = mulhilo(0xD2511F53, c0), [h1, l1] = mulhilo(0xCD9E8D57, c2);
        [c0, c1, c2, c3] = [(h1 ^ c1 ^ k0) >>> 0, l1, (h0 ^ c3 ^ k1) >>> 0, l0];
        k0 = k0 + 0x9E3779B9 >>> 0;
        k1 = k1 + 0xBB67AE85 >>> 0;
    }
    return [c0, c1, c2, c3];
}

/** What the fourth word of a counter says (daemon/worker/data/philox.h): streams never share numbers. */
export const stream = { shuffle: 1, augment: 2, window: 3, split: 4, digit: 5, init: 6, sentence: 7, mix: 8, sequence: 9 };

/** Words for place `index` of epoch `epoch` in a stream. */
export function words(seed, purpose, epoch, index) {
    return philox(seed, [index % 2 ** 32, Math.floor(index / 2 ** 32), epoch, purpose]);
}

/**
 * Whether dropout keeps element (row, column): kernels/graph/op/op.h, DROPOUT.
 * @param {{seed: number, step: number}} draw
 */
export function keeps(draw, place, row, column, rate) {
    const counter = [Math.floor(column / 64) * 16 + column % 16, row, draw.step, 0x80000000 + place];
    return philox(draw.seed, counter)[Math.floor(column / 16) % 4] >= rate * 2 ** 32;
}
