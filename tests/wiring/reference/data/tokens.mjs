// Text to tokens: bytes, characters, words, and GPT-2's byte pairs as its published encoder.py makes them.
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';

/** @typedef {{vocabulary: Buffer[], encode(text: Buffer): number[]}} Tokenizer */

const byBytes = (a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b));

/** @returns {Tokenizer} */
const bytes = () => ({ vocabulary: Array.from({ length: 256 }, (_, i) => Buffer.from([i])), encode: text => [...text] });

/**
 * The distinct characters of the whole text, by code point.
 * @param {Buffer} text
 * @returns {Tokenizer}
 */
function chars(text) {
    const list = [...new Set(text.toString())].sort(byBytes);
    const ids = new Map(list.map((c, id) => [c, id]));
    return { vocabulary: list.map(c => Buffer.from(c)), encode: part => [...part.toString()].map(c => Number(ids.get(c))) };
}

/** Words are parted by blanks; the end of a line is a word of its own. */
const wordsOf = text => text.toString().match(/\n|[^ \t-\r]+/g) ?? [];

/**
 * The words of the training part, the most frequent first, equally frequent ones by their bytes. The end of a line and
 * <unk> count once where they do not occur.
 * @param {Buffer} training
 * @returns {Tokenizer}
 */
function words(training) {
    const counts = new Map();
    for (const word of wordsOf(training))
        counts.set(word, (counts.get(word) ?? 0) + 1);
    for (const word of ['\n', '<unk>'])
        counts.set(word, counts.get(word) ?? 1);
    const list = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a) || byBytes(a, b));
    const ids = new Map(list.map((word, id) => [word, id]));
    return {
        vocabulary: list.map(word => Buffer.from(word === '\n' ? word : `${word} `)),
        encode: part => wordsOf(part).map(word => ids.get(word) ?? ids.get('<unk>')),
    };
}

/** encoder.py, bytes_to_unicode: a printable character for each byte. */
function letters() {
    const printable = b => (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    let next = 256;
    return Array.from({ length: 256 }, (_, b) => String.fromCodePoint(printable(b) ? b : next++));
}

/**
 * A vocabulary for tests: the bytes, what the merges make, and the token between documents.
 * @param {string[][]} pairs of texts; a blank begins a word
 */
export function smallVocabulary(pairs) {
    const letter = letters(), spell = text => [...Buffer.from(text)].map(b => letter[b]).join('');
    const ids = Object.fromEntries(letter.map((c, b) => [c, b]));
    const merges = pairs.map(pair => pair.map(spell));
    for (const [a, b] of merges)
        ids[a + b] = Object.keys(ids).length;
    ids['<|endoftext|>'] = Object.keys(ids).length;
    return { 'encoder.json': JSON.stringify(ids), 'vocab.bpe': `#version: 0.2\n${merges.map(m => m.join(' ')).join('\n')}\n` };
}

/**
 * @param {string} folder with encoder.json and vocab.bpe, or vocab.json and merges.txt
 * @returns {Tokenizer}
 */
export function bytePairs(folder) {
    const read = names => readFileSync(path.join(folder, names.find(name => existsSync(path.join(folder, name)))), 'utf8');
    const ids = JSON.parse(read(['encoder.json', 'vocab.json']));
    const merges = read(['vocab.bpe', 'merges.txt']).split('\n').filter(line => line && !line.startsWith('#version'));
    const ranks = new Map(merges.map((line, i) => [line.trim(), i]));
    const letter = letters(), byteOf = new Map(letter.map((c, b) => [c, b]));
    const split = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu;
    const merge = word => {
        let parts = [...word];
        for (;;) {
            const ranked = parts.slice(1).map((right, i) => ranks.get(`${parts[i]} ${right}`) ?? Infinity);
            const best = Math.min(...ranked, Infinity);
            if (best === Infinity)
                return parts;
            const joined = [];
            for (let i = 0; i < parts.length; i++)
                joined.push(ranked[i] === best ? parts[i] + parts[++i] : parts[i]);
            parts = joined;
        }
    };
    const vocabulary = Object.entries(ids).sort((a, b) => a[1] - b[1])
        .map(([text]) => [...text].every(c => byteOf.has(c)) ? Buffer.from([...text].map(c => Number(byteOf.get(c)))) : Buffer.from(text));
    return {
        vocabulary,
        encode: text => (text.toString().match(split) ?? [])
            .flatMap(piece => merge([...Buffer.from(piece)].map(b => letter[b]).join('')).map(token => ids[token])),
    };
}

/**
 * @param {string} kind data.tokenizer
 * @param {Buffer} whole
 * @param {Buffer} training
 * @param {string} folder of gpt2_bpe
 */
export const tokenizer = (kind, whole, training, folder) =>
    kind === 'chars' ? chars(whole) : kind === 'words' ? words(training) : kind === 'gpt2_bpe' ? bytePairs(folder) : bytes();
