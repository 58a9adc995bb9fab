// Safetensors files, read and written independently of the C code.
import { createHash } from 'node:crypto';

/**
 * @param {Buffer} bytes
 * @returns {{meta: Record<string, string>, tensors: Map<string, {dtype: string, shape: number[], bytes: Buffer}>}}
 */
export function parse(bytes) {
    const length = Number(bytes.readBigUInt64LE(0)), header = JSON.parse(bytes.subarray(8, 8 + length).toString('utf8'));
    const data = bytes.subarray(8 + length), { __metadata__: meta = {}, ...entries } = header;
    const tensors = new Map();
    for (const [name, { dtype, shape, data_offsets: [from, to] }] of Object.entries(entries)) {
        if (to > data.length)
            throw new Error(`${name} lies outside the file`);
        tensors.set(name, { dtype, shape, bytes: data.subarray(from, to) });
    }
    return { meta, tensors };
}

/** @param {Map<string, {dtype: string, shape: number[], bytes: Buffer}>} tensors @param {Record<string, string>} [meta] */
export function write(tensors, meta) {
    const header = {};
    let at = 0;
    if (meta)
        header.__metadata__ = meta;
    for (const [name, { dtype, shape, bytes }] of tensors) {
        header[name] = { dtype, shape, data_offsets: [at, at + bytes.length] };
        at += bytes.length;
    }
    let text = JSON.stringify(header);
    text += ' '.repeat((8 - Buffer.byteLength(text) % 8) % 8);
    const length = Buffer.alloc(8);
    length.writeBigUInt64LE(BigInt(Buffer.byteLength(text)));
    return Buffer.concat([length, Buffer.from(text), ...[...tensors.values()].map(t => t.bytes)]);
}

/** What can be compared: name -> dtype, shape and digest of the bytes. */
export const shown = tensors => Object.fromEntries([...tensors].map(([name, t]) =>
    [name, `${t.dtype} [${t.shape}] ${createHash('sha256').update(t.bytes).digest('hex')}`]).sort());
