// The digest of a data set's files, from what daemon/worker/data/README.md says of it: SHA-256 of a list with a line for each
// file in the order of reading.
import { createHash } from 'node:crypto';
import { existsSync, readFileSync, readdirSync, statSync } from 'node:fs';
import path from 'node:path';
import zlib from 'node:zlib';

const sha256 = bytes => createHash('sha256').update(bytes).digest('hex');
const byBytes = (a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b));
const unzipped = bytes => bytes[0] === 0x1f && bytes[1] === 0x8b ? zlib.gunzipSync(bytes) : bytes;
const isFolder = at => existsSync(at) && statSync(at).isDirectory();

const textParts = [
    ['train.txt', 'ptb.train.txt', 'wiki.train.tokens', 'wiki.train.raw', 'train.tokens'],
    ['valid.txt', 'ptb.valid.txt', 'wiki.valid.tokens', 'wiki.valid.raw', 'valid.tokens', 'val.txt', 'validation.txt'],
    ['test.txt', 'ptb.test.txt', 'wiki.test.tokens', 'wiki.test.raw', 'test.tokens'],
];

/** Names of the files below `place`, in the order of reading; null: of a set that is not summed here. */
function namesOf({ dataset, split }, place) {
    const standard = split.rule === 'standard', present = name => [name, `${name}.gz`].find(file => existsSync(path.join(place, file)));
    if (['ptb', 'wikitext2', 'wikitext103'].includes(dataset))
        return textParts.slice(0, standard ? 3 : 2).map(names => names.map(present).find(Boolean)).filter(Boolean);
    if (dataset === 'mnist')
        return ['train', 't10k'].flatMap(stem => ['images-idx3', 'labels-idx1'].map(what => present(`${stem}-${what}-ubyte`))).filter(Boolean);
    if (dataset === 'cifar10')
        return ['data_batch', 'test_batch'].flatMap(stem => readdirSync(place).filter(name => name.startsWith(stem)).sort(byBytes));
    if (dataset === 'openwebtext' || dataset === 'pg19') {
        const folders = [['train'], ['validation', 'valid', 'val'], ['test']].map(names => names.find(name => isFolder(path.join(place, name))));
        const parts = folders.some(Boolean) ? folders.slice(0, standard ? 3 : 2).filter(Boolean) : ['.'];
        return parts.flatMap(part => readdirSync(path.join(place, part), { recursive: true }).map(String).filter(name => /\.txt(\.gz)?$/.test(name))
            .sort(byBytes).map(name => part === '.' ? name : `${part}/${name}`));
    }
    return null;
}

/**
 * @param {any} data of a resolved document
 * @param {Record<string, string>} roots
 * @returns {{digest: string | null} | null} null: of a set that is not summed here
 */
export function inputsOf(data, roots) {
    if (!data.path)
        return { digest: null };
    const [root, ...rest] = data.path.split('/'), place = path.join(roots[root], ...rest);
    const single = !isFolder(place);
    if (single && ['image_folder', 'imagenet1k', 'tiny_imagenet'].includes(data.dataset))
        return null;
    const names = single ? [path.basename(place)] : namesOf(data, place);
    return names && { digest: sha256(names.map(name => {
        const bytes = unzipped(readFileSync(single ? place : path.join(place, name)));
        return `${sha256(bytes)}  ${bytes.length}  ${name.replace(/\.gz$/, '')}\n`;
    }).join('')) };
}
