// ListOps as it is documented (daemon/worker/data/README.md), written a second time.
import { stream, words } from '../philox.mjs';

const operators = ['[MIN', '[MAX', '[MED', '[SM'];
const vocabulary = ['<pad>', ...operators, ']', ...'0123456789', '\n', '<unk>'];

/** Ids and value of expression `number`. */
function expression(seed, number, { depth, min_tokens: least, context }) {
    let at = 0, block;
    const roll = bound => {
        if (at % 4 === 0)
            block = words(seed, stream.sequence, at / 4, number);
        return Math.floor(block[at++ % 4] * bound / 2 ** 32);
    };
    const value = (which, list) => {
        const x = list.slice().sort((a, b) => a - b), n = x.length;
        return which === 0 ? x[0] : which === 1 ? x[n - 1] : which === 3 ? x.reduce((a, b) => a + b) % 10
            : n % 2 ? x[(n - 1) / 2] : Math.floor((x[n / 2 - 1] + x[n / 2]) / 2);
    };
    for (;;) {
        const tokens = [];
        const node = level => { // an expression that has become too long ends where it is
            if (tokens.length > context)
                return 0;
            if (level === depth || (level > 1 && roll(4) !== 0)) {
                tokens.push(String(roll(10)));
                return Number(tokens.at(-1));
            }
            const which = roll(4), count = 2 + roll(9), list = [];
            tokens.push(operators[which]);
            for (let i = 0; i < count; i++)
                list.push(node(level + 1));
            tokens.push(']');
            return value(which, list);
        };
        const result = node(1);
        if (tokens.length <= context && tokens.length >= least)
            return { ids: tokens.map(token => vocabulary.indexOf(token)), result };
    }
}

/** The three parts as {ids, result}, and the bytes of each token. */
export function listops(data, seed) {
    const { split } = data, counts = [split.train ?? 8000, split.val ?? 1000, split.test ?? 1000];
    const parts = counts.map((count, part) => Array.from({ length: count }, (_, i) => expression(seed, [0, 2 ** 32, 2 ** 33][part] + i, data)));
    return { parts, vocabulary: vocabulary.map(word => Buffer.from(word === '\n' ? word : `${word} `)) };
}
