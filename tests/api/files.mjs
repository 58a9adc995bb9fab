// Files of data sets: pictures, and a GPT-2 tokenizer with five merges.
import { mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import zlib from 'node:zlib';

// zlib.crc32 is younger than the Node.js of Debian 12: the table is short.
const table = [...Array(256)].map((_, n) => {
    for (let k = 0; k < 8; k++)
        n = n & 1 ? n >>> 1 ^ 0xedb88320 : n >>> 1;
    return n >>> 0;
});
const sum = bytes => zlib.crc32 ? zlib.crc32(bytes) : (bytes.reduce((c, b) => table[(c ^ b) & 255] ^ c >>> 8, 0xffffffff) ^ 0xffffffff) >>> 0;

/** A square picture. @param {number} side @param {(x: number, y: number) => number[]} colour */
export function png(side, colour) {
    const chunk = (type, data) => {
        const body = Buffer.concat([Buffer.from(type), data]), out = Buffer.alloc(8);
        out.writeUInt32BE(data.length, 0);
        out.writeUInt32BE(sum(body), 4);
        return Buffer.concat([out.subarray(0, 4), body, out.subarray(4)]);
    };
    const header = Buffer.alloc(13);
    header.writeUInt32BE(side, 0);
    header.writeUInt32BE(side, 4);
    header.set([8, 2, 0, 0, 0], 8);
    const rows = Buffer.alloc(side * (1 + 3 * side));
    for (let y = 0; y < side; y++)
        for (let x = 0; x < side; x++)
            rows.set(colour(x, y), y * (1 + 3 * side) + 1 + 3 * x);
    return Buffer.concat([Buffer.from('\x89PNG\r\n\x1a\n', 'latin1'), chunk('IHDR', header), chunk('IDAT', zlib.deflateSync(rows)), chunk('IEND', Buffer.alloc(0))]);
}

/** Writes the two files of a small byte-level tokenizer of byte pairs; the number of its ids. @param {string} folder */
export function putByteTokens(folder) {
    const plain = b => b >= 33 && b <= 126 || b >= 161 && b <= 172 || b >= 174;
    let next = 256;
    const letter = [...Array(256)].map((_, b) => String.fromCodePoint(plain(b) ? b : next++));
    const vocab = Object.fromEntries(letter.map((c, b) => [c, b]));
    const space = letter[32], pairs = [['t', 'h'], ['th', 'e'], [space, 'the'], ['q', 'u'], [space, 'qu']];
    for (const [a, b] of pairs)
        vocab[a + b] = Object.keys(vocab).length;
    vocab['<|endoftext|>'] = Object.keys(vocab).length;
    mkdirSync(folder, { recursive: true });
    writeFileSync(path.join(folder, 'vocab.json'), JSON.stringify(vocab));
    writeFileSync(path.join(folder, 'merges.txt'), `#version: 0.2\n${pairs.map(p => p.join(' ')).join('\n')}\n`);
    return Object.keys(vocab).length;
}
