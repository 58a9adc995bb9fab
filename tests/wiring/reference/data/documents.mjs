// Folders of text files, a document each (openwebtext, pg19), from what daemon/worker/data/README.md says of them.
import { existsSync, readFileSync, readdirSync, statSync } from 'node:fs';
import path from 'node:path';
import zlib from 'node:zlib';

const byBytes = (a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b));
const unzipped = bytes => bytes[0] === 0x1f && bytes[1] === 0x8b ? zlib.gunzipSync(bytes) : bytes;
const isFolder = at => existsSync(at) && statSync(at).isDirectory();

/** Paths of all files below a folder whose names end in .txt or .txt.gz, by their bytes. */
const filesBelow = folder => readdirSync(folder, { recursive: true }).map(String)
    .filter(name => /\.txt(\.gz)?$/.test(name) && !isFolder(path.join(folder, name))).sort(byBytes);

/**
 * The documents of each part; of a folder without parts all of them are the first.
 * @param {string} folder
 * @returns {Buffer[][]} training, validation, test
 */
export function readDocuments(folder) {
    const read = below => filesBelow(path.join(folder, below)).map(name => unzipped(readFileSync(path.join(folder, below, name))));
    const parts = [['train'], ['validation', 'valid', 'val'], ['test']].map(names => names.find(name => isFolder(path.join(folder, name))));
    return parts.some(Boolean) ? parts.map(name => name ? read(name) : []) : [read('.'), [], []];
}

/**
 * Documents as one text, and where each ends. Byte pairs have a token for the end of a document, the others get a line feed.
 * @param {Buffer[]} documents
 * @param {string} tokenizer
 */
export function joined(documents, tokenizer) {
    const pieces = tokenizer === 'gpt2_bpe' ? documents : documents.map(d => Buffer.concat([d, Buffer.from('\n')]));
    let at = 0;
    return { text: Buffer.concat(pieces), ends: pieces.map(piece => at += piece.length) };
}

/**
 * Tokens of text.subarray(from, to), with the end token behind each document that ends there.
 * @param {{vocabulary: Buffer[], encode(text: Buffer): number[]}} tokenizer
 * @param {Buffer} text
 * @param {number[]} ends of documents in the text; none: no token is added
 */
export function encodeDocuments({ vocabulary, encode }, text, ends, from, to) {
    const end = vocabulary.findIndex(token => String(token) === '<|endoftext|>'), ids = [];
    let at = from;
    for (const stop of ends.filter(e => e > from && e <= to)) {
        ids.push(...encode(text.subarray(at, stop)), end);
        at = stop;
    }
    return [...ids, ...encode(text.subarray(at, to))];
}
