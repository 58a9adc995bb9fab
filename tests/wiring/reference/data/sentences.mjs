// text_gen: the text that polyd makes, from the grammar and the draws that daemon/worker/data/README.md lists under
// "Generated text". Words of a list have shares; a place of the sentence gives each list a number of 256ths to divide.
import { stream, words } from '../philox.mjs';

const shares = text => text.split(' ').map(item => {
    const [word, share] = item.split(':');
    return { word, share: Number(share) };
});
const lists = {
    adjective: shares('old:3 small:2 red:2 quiet:1'),
    noun: shares('dog:8 child:6 bird:5 king:4 ship:3 tree:3 river:2 stone:1'),
    nouns: shares('dogs:8 children:6 birds:5 kings:4 ships:3 trees:3 rivers:2 stones:1'),
    verb: { one: shares('sees:5 finds:4 likes:3 follows:2 hears:1 leaves:1'), many: shares('see:5 find:4 like:3 follow:2 hear:1 leave:1') },
    preposition: shares('near:2 behind:1 under:1'),
};

/** @typedef {{subject: string, at: string}} Place where a sentence stands: number of its subject ('' before it is known) */
/** @typedef {{word: string | null, weight: number, next: Place}} Choice */

/** A list with `whole` of 256 among its words. */
const among = (list, whole, next) => {
    const sum = list.reduce((a, { share }) => a + share, 0);
    return list.map(({ word, share }) => ({ word, weight: share * whole / sum, next }));
};
const single = (word, weight, next) => ({ word, weight, next });

/** What may follow; null for a word: the sentence ends.
 * @param {Place} place
 * @returns {Choice[]}
 */
export function choices({ subject, at }) {
    const to = (next, number = subject) => ({ subject: number, at: next });
    const loop = among(lists.adjective, 64, to(at));
    const article = next => [single('the', 192, to(next)), single('our', 64, to(next))];
    const any = next => [...loop, ...among(lists.noun, 96, to(next)), ...among(lists.nouns, 96, to(next))];
    switch (at) {
    case 'begin': return [single('the', 128, to('any')), single('a', 64, to('one')), single('some', 64, to('many'))];
    case 'any': return [...loop, ...among(lists.noun, 96, to('noun', 'one')), ...among(lists.nouns, 96, to('noun', 'many'))];
    case 'one': return [...loop, ...among(lists.noun, 192, to('noun', 'one'))];
    case 'many': return [...loop, ...among(lists.nouns, 192, to('noun', 'many'))];
    case 'noun': return [...among(lists.preposition, 96, to('at')), ...among(lists.verb[subject], 160, to('verb'))];
    case 'at': return article('place');
    case 'place': return any('noun');
    case 'verb': return article('object');
    case 'object': return any('tail');
    case 'tail': return [single(null, 128, to('')), single('and', 80, to('and')), single('today', 32, to('last')), single('again', 16, to('last'))];
    case 'and': return among(lists.verb[subject], 256, to('verb'));
    default: return [single(null, 256, to(''))];
    }
}

const begin = { subject: '', at: 'begin' };

/** The words of a sentence: draw n is the upper byte of word n mod 4 of block n div 4. */
export function sentence(seed, number) {
    const list = [];
    for (let n = 0, place = begin; ; n++) {
        let drawn = words(seed, stream.sentence, Math.floor(n / 4), number)[n % 4] >>> 24;
        const chosen = choices(place).find(({ weight }) => (drawn -= weight) < 0);
        if (!chosen?.word)
            return list;
        list.push(chosen.word);
        place = chosen.next;
    }
}

/** Sentences from a number on, in `length` bytes; behind the last word that fits only line ends. */
export function sentences(seed, first, length) {
    let text = '';
    for (let number = first; text.length < length; number++)
        text += `${sentence(seed, number).join(' ')}\n`;
    if (text.length > length) {
        // A word fits if the blank or line end behind it does.
        const end = Math.max(text.lastIndexOf(' ', length - 1), text.lastIndexOf('\n', length - 1)) + 1;
        text = text.slice(0, end).padEnd(length, '\n');
    }
    return Buffer.from(text);
}

const VALIDATION = 2 ** 32, TEST = 2 ** 33;

/**
 * The three parts; as long a test part as a validation part.
 * @param {import('./split.mjs').Split} split
 * @param {number} seed
 */
export function generatedParts({ rule, train, val, test }, seed) {
    if (rule === 'standard')
        return [sentences(seed, 0, train ?? 1000000), sentences(seed, VALIDATION, val ?? 100000), sentences(seed, TEST, test ?? 100000)];
    const [training, validation] = rule === 'count' ? [Number(train), Number(val)]
        : rule === 'fraction' ? [train, val].map(share => Math.floor(1100000 * Number(share) + 1e-6)) : [1000000, 100000];
    return [sentences(seed, 0, training), sentences(seed, VALIDATION, validation), sentences(seed, TEST, validation)];
}

/**
 * Nats and bytes that are to come from a place on, on average: for each place a linear equation in those behind it, solved
 * by Gauss and Jordan. Of `begin` they are those of a sentence.
 */
export function means() {
    const name = ({ subject, at }) => `${subject} ${at}`;
    const places = [begin], number = new Map([[name(begin), 0]]);
    for (const place of places)
        for (const { word, next } of choices(place))
            if (word && !number.has(name(next)))
                number.set(name(next), places.push(next) - 1);
    const rows = places.map((place, i) => {
        const row = Array(places.length + 2).fill(0);
        row[i] = 1;
        for (const { word, weight, next } of choices(place)) {
            const p = weight / 256;
            row[places.length] -= p * Math.log(p);
            if (word) {
                row[places.length + 1] += p * (word.length + 1);
                row[Number(number.get(name(next)))] -= p;
            }
        }
        return row;
    });
    rows.forEach((row, i) => {
        const pivot = row[i];
        row.forEach((value, k) => { row[k] = value / pivot; });
        rows.forEach((other, j) => {
            const factor = other[i];
            if (j !== i && factor)
                other.forEach((value, k) => { other[k] = value - factor * row[k]; });
        });
    });
    return { nats: rows[0][places.length], bytes: rows[0][places.length + 1] };
}

/** Nats of a sentence for who knows the word before, or that a sentence begins, and nothing else. */
export function nearNats() {
    /** @type {Map<string, Map<string, number>>} how often the second comes behind the first, in a sentence */
    const pairs = new Map();
    let open = new Map([[JSON.stringify([begin, '']), 1]]);
    while ([...open.values()].reduce((a, b) => a + b, 0) > 1e-14) {
        const then = new Map();
        for (const [key, often] of open) {
            const [place, before] = JSON.parse(key), counts = pairs.get(before) ?? new Map();
            pairs.set(before, counts);
            for (const { word, weight, next } of choices(place)) {
                const p = often * weight / 256, behind = JSON.stringify([next, word]);
                counts.set(word ?? '', (counts.get(word ?? '') ?? 0) + p);
                if (word)
                    then.set(behind, (then.get(behind) ?? 0) + p);
            }
        }
        open = then;
    }
    let nats = 0;
    for (const counts of pairs.values()) {
        const sum = [...counts.values()].reduce((a, b) => a + b, 0);
        for (const p of counts.values())
            nats -= p * Math.log(p / sum);
    }
    return nats;
}
