// Files of labelled texts: TSV, CSV after RFC 4180, JSONL. Written for a test and read back.
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import zlib from 'node:zlib';

/** @typedef {{label: string, text: string}} Row */

const byBytes = (a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b));

/** Fields of one row: quoted with doubled quotes inside, or plain up to a comma. */
const csvField = /("(?:[^"]|"")*"|[^,\r\n]*)(,|\r?\n|$)/y;

/** @param {string} text @returns {string[][]} */
function csvRows(text) {
    const rows = [[]];
    for (csvField.lastIndex = 0; csvField.lastIndex < text.length;) {
        const [, field, end] = csvField.exec(text);
        rows.at(-1).push(field.startsWith('"') ? field.slice(1, -1).replaceAll('""', '"') : field);
        if (end !== ',' && csvField.lastIndex < text.length)
            rows.push([]);
    }
    return rows;
}

/** @param {string} file @returns {Row[]} */
export function readTable(file) {
    const bytes = readFileSync(file), text = (file.endsWith('.gz') ? zlib.gunzipSync(bytes) : bytes).toString();
    const lines = text.split(/\r?\n/).filter(line => line);
    if (/\.jsonl(\.gz)?$/.test(file))
        return lines.map(line => JSON.parse(line)).map(({ label, text }) => ({ label: String(label), text }));
    const [head, ...rows] = /\.csv(\.gz)?$/.test(file) ? csvRows(text) : lines.map(line => line.split('\t'));
    return rows.map(row => ({ label: row[head.indexOf('label')], text: row[head.indexOf('text')] }));
}

/** Of a folder: the rows of its three parts, each with two texts. @param {string} folder @returns {{label: string, texts: string[]}[][]} */
export function readPairs(folder) {
    return ['train', 'eval', 'test'].map(part => readFileSync(path.join(folder, `new_aan_pairs.${part}.tsv`), 'utf8').trim().split('\n')
        .map(line => line.split('\t')).map(([label, , , ...texts]) => ({ label, texts })));
}

const isFile = place => /\.(tsv|csv|jsonl)(\.gz)?$/.test(place);

/** The rows of a file, or of a folder's training file and of the one that validates; by the rule standard of a test file as well. */
export function readLabelled(place, standard) {
    if (isFile(place))
        return { rows: readTable(place), given: [readTable(place).length, 0, 0] };
    const part = stems => stems.flatMap(stem => ['tsv', 'csv', 'jsonl'].flatMap(form => [`${stem}.${form}`, `${stem}.${form}.gz`]))
        .map(name => path.join(place, name)).find(name => existsSync(name));
    const valid = ['valid', 'val', 'validation'];
    const parts = (standard ? [part(['train']), part(valid), part(['test'])] : [part(['train']), part([...valid, 'test'])]).map(file => file ? readTable(file) : []);
    return { rows: parts.flat(), given: parts.map(rows => rows.length) };
}

/** Distinct labels: as numbers where all are whole numbers, else by their bytes. */
export function classesOf(labels) {
    const all = [...new Set(labels)], numbers = all.every(label => /^-?\d{1,18}$/.test(label));
    return all.sort((a, b) => (numbers ? Number(a) - Number(b) : 0) || byBytes(a, b));
}
