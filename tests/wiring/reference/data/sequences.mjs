// ListOps and Pathfinder as they are documented (daemon/worker/data/README.md), written a second time.
import { stream, words } from '../philox.mjs';

const operators = ['[MIN', '[MAX', '[MED', '[SM'];
const vocabulary = ['<pad>', ...operators, ']', ...'0123456789', '\n', '<unk>'];

/** The draws of sample `number`, one after the other. */
function draws(seed, number) {
    let at = 0, block;
    return bound => {
        if (at % 4 === 0)
            block = words(seed, stream.sequence, at / 4, number);
        return Math.floor(block[at++ % 4] * bound / 2 ** 32);
    };
}

/** Ids and value of expression `number`. */
function expression(seed, number, { depth, min_tokens: least, context }) {
    const roll = draws(seed, number);
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

/** Ids (greys) and class of picture `number`, side x side pixels. */
function picture(seed, number, { contour, context }) {
    const roll = draws(seed, number), side = Math.sqrt(context), same = roll(2);
    let owner, grey;
    const cells = function* (y, x, reach) {
        for (let row = y - reach; row <= y + reach; row++)
            for (let column = x - reach; column <= x + reach; column++)
                if (row >= 0 && column >= 0 && row < side && column < side)
                    yield row * side + column;
    };
    /** The places of one curve, or null where it left the picture or came too close to another curve or to itself. */
    const attempt = (name, length) => {
        let y = 2 + roll(side - 4), x = 2 + roll(side - 4), heading = 2 * Math.PI * (roll(2 ** 16) / 2 ** 16);
        const places = [];
        while (places.length < length) {
            const row = Math.floor(y + 0.5), column = Math.floor(x + 0.5), at = row * side + column;
            if (row < 2 || column < 2 || row >= side - 2 || column >= side - 2)
                return null;
            if (places.at(-1) !== at) {
                const recent = places.slice(-3), mine = new Set(places);
                if ([...cells(row, column, 2)].some(cell => owner[cell] && !mine.has(cell)) || [...cells(row, column, 1)].some(cell => mine.has(cell) && !recent.includes(cell)))
                    return null;
                places.push(at);
            }
            heading += 0.6 * (roll(2 ** 24) / 2 ** 23 - 1);
            y += Math.sin(heading);
            x += Math.cos(heading);
        }
        return places;
    };
    const draw = (name, length) => {
        for (let i = 0; i < 200; i++) {
            const places = attempt(name, length);
            if (places) {
                for (const [k, at] of places.entries()) {
                    owner[at] = name;
                    if (k % 3 < 2)
                        grey[at] = 191;
                }
                return places;
            }
        }
        return null;
    };
    for (;;) {
        owner = new Array(context).fill(0);
        grey = new Array(context).fill(0);
        const curves = [draw(1, 3 * contour - 1)];
        curves.push(curves[0] && draw(2, 3 * contour - 1));
        if (!curves[1])
            continue;
        for (let i = 0; i < Math.floor(side / 16); i++)
            draw(3 + i, contour > 3 ? 5 : 2);
        const first = roll(2), end = roll(2), marks = [curves[first].at(-end)]; // an end of 1 is the last place
        marks.push(same ? curves[first].at(-!end) : curves[1 - first].at(-roll(2)));
        for (const at of marks)
            for (const cell of [at, at - 1, at + 1, at - side, at + side])
                grey[cell] = 255;
        return { ids: grey, result: same };
    }
}

const counted = (make, data, seed) => [data.split.train ?? 8000, data.split.val ?? 1000, data.split.test ?? 1000]
    .map((count, part) => Array.from({ length: count }, (_, i) => make(seed, [0, 2 ** 32, 2 ** 33][part] + i, data)));

/** The three parts as {ids, result}, the names of the classes, and the bytes of each token. */
export const pathfinder = (data, seed) => ({ parts: counted(picture, data, seed), names: ['0', '1'], vocabulary: Array.from({ length: 256 }, (_, id) => Buffer.from(`${id} `)) });
export function listops(data, seed) {
    return { parts: counted(expression, data, seed), names: [...'0123456789'], vocabulary: vocabulary.map(word => Buffer.from(word === '\n' ? word : `${word} `)) };
}
