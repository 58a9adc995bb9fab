// How a data set becomes a training, a validation and a test part: `data.split` of the job document, daemon/worker/data/README.md.
import { shuffled } from './draws.mjs';
import { stream } from '../philox.mjs';

/** @typedef {{rule: 'given' | 'fraction' | 'count', train: number | null, val: number | null}} Split */

/**
 * Sizes of the two parts of `whole` samples or bytes.
 * @param {Split} split
 * @param {number} whole
 * @param {number[]} given what the set itself divides
 */
function sizes(split, whole, given) {
    if (split.rule === 'given')
        return given;
    if (split.rule === 'count')
        return [Number(split.train), Number(split.val)];
    // A share such as 0.3 is no binary number: 0.3 of 10 shall be 3.
    return [split.train, split.val].map(share => Math.floor(whole * Number(share) + 1e-6));
}

/**
 * Places of the training, the validation and the test pictures among all, the set's own training part first. `fraction`
 * pools everything and shuffles it; `count` chooses from each part of the set's own, or disjointly where it has none. The
 * test part is the set's own second one as a whole, or what a pool has left.
 * @param {Split} split
 * @param {number[]} given pictures of the set's own parts; without any: [all, 0]
 * @param {number} seed
 * @returns {number[][]}
 */
export function splitImages(split, given, seed) {
    const whole = given[0] + given[1];
    const [train, val] = sizes(split, whole, given);
    const second = Array.from({ length: given[1] }, (_, i) => given[0] + i);
    if (split.rule === 'given')
        return [Array.from({ length: train }, (_, i) => i), second, second];
    if (split.rule === 'fraction' || !given[1]) {
        const all = shuffled(whole, seed, stream.split, 0);
        return [all.slice(0, train), all.slice(train, train + val), all.slice(train + val)];
    }
    return [
        shuffled(given[0], seed, stream.split, 0).slice(0, train),
        shuffled(given[1], seed, stream.split, given[0]).slice(0, val).map(i => given[0] + i),
        second,
    ];
}

/**
 * The three parts of a text, one behind the other; with `whole` characters none is torn: it goes to validation, or to
 * the test part, which is what is left.
 * @param {Split} split
 * @param {Buffer} text
 * @param {number[]} given bytes of each file, or of nine tenths and the rest
 * @param {boolean} whole
 */
export function splitText(split, text, given, whole) {
    let [train, val] = sizes(split, text.length, given);
    const inside = at => whole && at < text.length && (text[at] & 0xc0) === 0x80;
    let end = train + val;
    while (inside(train))
        train--;
    while (inside(end))
        end--;
    return [text.subarray(0, train), text.subarray(train, end), text.subarray(end)];
}
