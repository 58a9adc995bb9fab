// How a data set becomes a training, a validation and a test part: `data.split` of the job document, daemon/worker/data/README.md.
import { shuffled } from './draws.mjs';
import { stream } from '../philox.mjs';

/** @typedef {{rule: 'given' | 'fraction' | 'count' | 'standard', train: number | null, val: number | null, test?: number | null}} Split */

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

/** Below 1 a share, else a count. */
const amount = (said, whole) => said < 1 ? Math.floor(whole * said + 1e-6) : said;

/**
 * Sizes of training, validation and test under the rule standard.
 * @param {Split} split
 * @param {number[]} given samples or bytes in training, validation and test files
 */
function standardSizes(split, given) {
    const [train, val, test] = [split.train, split.val, split.test].map(said => said ?? null);
    const sizes = [0, given[1] ? amount(val ?? given[1], given[1]) : amount(val ?? 0.1, given[0]),
        given[2] ? amount(test ?? given[2], given[2]) : amount(test ?? 0, given[0])];
    const lent = (given[1] ? 0 : sizes[1]) + (given[2] ? 0 : sizes[2]);
    sizes[0] = train === null ? given[0] - lent : amount(train, given[0]);
    return { sizes, lent };
}

const numbers = (count, from = 0) => Array.from({ length: count }, (_, i) => from + i);

/** What the training files lend comes first in their shuffle: validation, then test; training follows. */
function standardImages(split, given, seed) {
    const { sizes: [train, val, test], lent } = standardSizes(split, given);
    const pool = lent || train < given[0] ? shuffled(given[0], seed, stream.split, 0) : numbers(given[0]);
    const own = (count, part) => {
        const from = part === 1 ? given[0] : given[0] + given[1];
        return count === given[part] ? numbers(count, from) : shuffled(given[part], seed, stream.split, from).slice(0, count).map(i => from + i);
    };
    return [pool.slice(lent, lent + train), given[1] ? own(val, 1) : pool.slice(0, val),
        given[2] ? own(test, 2) : pool.slice(lent - test, lent)];
}

/** The training file lends its end; files of their own are taken from their beginning. A document goes to one part. */
function standardText(split, text, given, whole, ends) {
    const { sizes } = standardSizes(split, given), parts = [];
    const inside = at => whole && at < given[0] && (text[at] & 0xc0) === 0x80;
    let at = 0, file = given[0], end = 0;
    sizes.forEach((size, part) => {
        if (part && given[part]) {
            parts.push(text.subarray(file, file + size));
            file += given[part];
            return;
        }
        end += size;
        let stop = ends.findLast(e => e > at && e <= end) ?? end;
        while (size && stop > at && inside(stop))
            stop--;
        parts.push(text.subarray(at, stop));
        at = stop;
    });
    return parts;
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
    if (split.rule === 'standard')
        return standardImages(split, given, seed);
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
 * @param {number[]} given bytes of each file, or of nine tenths and the rest; of one file under standard all
 * @param {boolean} whole
 * @param {number[]} [ends] of documents, which are not torn either
 */
export function splitText(split, text, given, whole, ends = []) {
    if (split.rule === 'standard')
        return standardText(split, text, given, whole, ends);
    const between = (from, to) => ends.findLast(e => e > from && e <= to) ?? to;
    let [train, val] = sizes(split, text.length, given);
    const all = train + val;
    train = between(0, train);
    val = between(train, all) - train;
    const inside = at => whole && at < text.length && (text[at] & 0xc0) === 0x80;
    let end = train + val;
    while (inside(train))
        train--;
    while (inside(end))
        end--;
    return [text.subarray(0, train), text.subarray(train, end), text.subarray(end)];
}
