// Small data sets on disk, written for a test and read back: IDX, CIFAR-10's records, PNG files in folders of classes.
// Reading follows the formats' published descriptions (LeCun's page, Krizhevsky's page, RFC 2083).
import { mkdirSync, readFileSync, readdirSync, existsSync, statSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import zlib from 'node:zlib';

/** @typedef {import('./pixels.mjs').Picture} Picture */
/**
 * Pictures of a set, its own training part first.
 * @typedef {{picture(i: number): Picture, labels: number[], given: number[], classes: number, names: string[] | null,
 *            mean: number[], std: number[]}} ImageSet
 */

const unzipped = bytes => bytes[0] === 0x1f && bytes[1] === 0x8b ? zlib.gunzipSync(bytes) : bytes;

/** In the order of their bytes. */
const byBytes = (a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b));

/* ---- IDX ---- */

/**
 * @param {number[]} extents
 * @param {Uint8Array} data
 */
export function idx(extents, data) {
    const head = Buffer.alloc(4 + 4 * extents.length);
    head.set([0, 0, 8, extents.length]);
    extents.forEach((n, i) => head.writeUInt32BE(n, 4 + 4 * i));
    return Buffer.concat([head, data]);
}

/** @param {string} file */
export function readIdx(file) {
    const bytes = unzipped(readFileSync(file));
    const extents = Array.from({ length: bytes[3] }, (_, i) => bytes.readUInt32BE(4 + 4 * i));
    const data = new Uint8Array(bytes.subarray(4 + 4 * extents.length));
    if (bytes.readUInt16BE(0) || bytes[2] !== 8 || extents.reduce((a, b) => a * b) !== data.length)
        throw new Error(`${file} is no IDX file of bytes`);
    return { extents, data };
}

/**
 * Writes the four files of MNIST's form; `zip`: compressed.
 * @param {string} folder
 * @param {{pictures: Picture[], labels: number[]}[]} parts training, test
 */
export function writeMnist(folder, parts, zip = false) {
    mkdirSync(folder, { recursive: true });
    ['train', 't10k'].forEach((stem, part) => {
        const { pictures, labels } = parts[part];
        const put = (name, bytes) => writeFileSync(path.join(folder, name + (zip ? '.gz' : '')), zip ? zlib.gzipSync(bytes) : bytes);
        put(`${stem}-images-idx3-ubyte`, idx([pictures.length, pictures[0].height, pictures[0].width], Buffer.concat(pictures.map(p => p.data))));
        put(`${stem}-labels-idx1-ubyte`, idx([labels.length], Uint8Array.from(labels)));
    });
}

/**
 * @param {string} folder
 * @returns {ImageSet}
 */
export function readMnist(folder) {
    const find = (stems, what) => {
        const names = readdirSync(folder).sort().filter(name => stems.some(stem => name.startsWith(`${stem}-${what}`)));
        return names[0] ? readIdx(path.join(folder, names[0])) : { extents: [0, 0, 0], data: Buffer.alloc(0) };
    };
    const parts = [['train', 'train10k'], ['t10k', 't2k', 'test']].map(stems => {
        const { extents: [count, height, width], data } = find(stems, 'images');
        const pictures = Array.from({ length: count }, (_, i) =>
            ({ height, width, channels: 1, data: data.subarray(i * height * width, (i + 1) * height * width) }));
        return { pictures, labels: [...find(stems, 'labels').data] };
    });
    const pictures = parts.flatMap(p => p.pictures);
    return {
        picture: i => pictures[i], labels: parts.flatMap(p => p.labels), given: parts.map(p => p.pictures.length),
        classes: 10, names: null, mean: [0.1307], std: [0.3081],
    };
}

/* ---- CIFAR-10 ---- */

/**
 * A record is a label, then 32 x 32 bytes of red, of green and of blue.
 * @param {{pictures: Picture[], labels: number[]}} part
 */
export const cifar = ({ pictures, labels }) => Buffer.concat(pictures.flatMap((picture, i) =>
    [Buffer.from([labels[i]]), ...[0, 1, 2].map(c => picture.data.filter((_, k) => k % 3 === c))]));

/**
 * @param {string} folder
 * @returns {ImageSet}
 */
export function readCifar(folder) {
    const single = /\.bin(\.gz)?$/.test(folder);
    const files = single ? [[folder], []] : ['data_batch', 'test_batch'].map(stem =>
        readdirSync(folder).filter(name => name.startsWith(stem) && /\.bin(\.gz)?$/.test(name)).sort(byBytes).map(name => path.join(folder, name)));
    const parts = files.map(names => names.flatMap(name => {
        const bytes = unzipped(readFileSync(name));
        return Array.from({ length: bytes.length / 3073 }, (_, i) => {
            const record = bytes.subarray(i * 3073, (i + 1) * 3073);
            const data = new Uint8Array(3072).map((_, k) => record[1 + k % 3 * 1024 + Math.floor(k / 3)]);
            return { label: record[0], picture: { height: 32, width: 32, channels: 3, data } };
        });
    }));
    const all = parts.flat(), meta = path.join(folder, 'batches.meta.txt');
    return {
        picture: i => all[i].picture, labels: all.map(r => r.label), given: parts.map(p => p.length),
        classes: 10, names: !single && existsSync(meta) ? readFileSync(meta, 'utf8').trim().split(/\r?\n/) : null,
        mean: [0.4914, 0.4822, 0.4465], std: [0.2470, 0.2435, 0.2616],
    };
}

/* ---- PNG ---- */

const crcTable = Array.from({ length: 256 }, (_, n) => {
    for (let k = 0; k < 8; k++)
        n = n & 1 ? n >>> 1 ^ 0xedb88320 : n >>> 1;
    return n >>> 0;
});
const crc = bytes => (bytes.reduce((c, b) => crcTable[(c ^ b) & 255] ^ c >>> 8, 0xffffffff) ^ 0xffffffff) >>> 0;

/**
 * A PNG of 8 bits a channel, grey or RGB, unfiltered.
 * @param {Picture} picture
 */
export function png({ height, width, channels, data }) {
    const chunk = (type, body) => {
        const named = Buffer.concat([Buffer.from(type), body]), out = Buffer.alloc(named.length + 8);
        out.writeUInt32BE(body.length, 0);
        out.set(named, 4);
        out.writeUInt32BE(crc(named), named.length + 4);
        return out;
    };
    const head = Buffer.alloc(13), rows = Buffer.alloc(height * (1 + width * channels));
    head.writeUInt32BE(width, 0);
    head.writeUInt32BE(height, 4);
    head.set([8, channels === 3 ? 2 : 0, 0, 0, 0], 8);
    for (let y = 0; y < height; y++)
        rows.set(data.subarray(y * width * channels, (y + 1) * width * channels), y * (1 + width * channels) + 1);
    const chunks = [chunk('IHDR', head), chunk('IDAT', zlib.deflateSync(rows)), chunk('IEND', Buffer.alloc(0))];
    return Buffer.concat([Buffer.from('\x89PNG\r\n\x1a\n', 'latin1'), ...chunks]);
}

/**
 * What png() writes, as RGB: grey three times.
 * @param {Buffer} bytes
 * @returns {Picture}
 */
export function readPng(bytes) {
    const width = bytes.readUInt32BE(16), height = bytes.readUInt32BE(20), given = bytes[25] === 2 ? 3 : 1;
    const packed = [];
    for (let at = 8; at < bytes.length; at += 12 + bytes.readUInt32BE(at))
        if (bytes.toString('latin1', at + 4, at + 8) === 'IDAT')
            packed.push(bytes.subarray(at + 8, at + 8 + bytes.readUInt32BE(at)));
    const rows = zlib.inflateSync(Buffer.concat(packed)), stride = 1 + width * given;
    const data = new Uint8Array(height * width * 3);
    for (let y = 0; y < height; y++) {
        if (bytes[24] !== 8 || bytes[28] || rows[y * stride])
            throw new Error('only PNG files of 8 bits without filters or interlacing are read here');
        for (let i = 0; i < width * 3; i++)
            data[y * width * 3 + i] = rows[y * stride + 1 + (given === 3 ? i : Math.floor(i / 3))];
    }
    return { height, width, channels: 3, data };
}

/**
 * Folders of PNG files: train/CLASS and val/CLASS (or valid, validation, test), or CLASS alone; val/images with
 * val_annotations.txt. Classes are those of the training part; both stand in byte order.
 * @param {string} folder
 * @param {string[]} parts names of the second part's folder
 * @param {string[]} third names of the third part's, which the rule standard alone reads
 * @returns {ImageSet}
 */
export function readFolder(folder, parts = ['val', 'valid', 'validation', 'test'], third = []) {
    const isFolder = name => existsSync(path.join(folder, name)) && statSync(path.join(folder, name)).isDirectory();
    const under = name => readdirSync(path.join(folder, name), { recursive: true }).map(String)
        .filter(file => /\.png$/i.test(file)).map(file => `${name}/${file}`);
    const own = isFolder('train');
    const second = parts.find(isFolder), last = third.find(isFolder), noting = [second, last].find(name => name === 'val');
    const notes = noting && path.join(folder, noting, 'val_annotations.txt');
    const noted = notes && existsSync(notes)
        ? new Map(readFileSync(notes, 'utf8').trim().split('\n').map(line => /** @type {[string, string]} */ (line.split('\t').slice(0, 2)))) : null;
    const listed = (own ? [['train'], [second], [last]].map(tops => tops.filter(Boolean)) : [readdirSync(folder).filter(isFolder), [], []]).map(tops => tops.flatMap(top =>
        under(String(top)).map(file => {
            const at = file.split('/');
            const name = noted && at[0] === noting ? String(noted.get(at[at.length - 1])) : at[own ? 1 : 0];
            return { file, name };
        })).sort((a, b) => byBytes(a.name, b.name) || byBytes(a.file, b.file)));
    const names = [...new Set(listed[0].map(item => item.name))];
    const all = listed.flat();
    return {
        picture: i => readPng(readFileSync(path.join(folder, all[i].file))),
        labels: all.map(item => names.indexOf(item.name)), given: listed.map(part => part.length),
        classes: names.length, names, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225],
    };
}
