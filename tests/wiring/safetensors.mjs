// Reads a checkpoint: a safetensors file (8 bytes of length, a JSON header, then the tensors).
import { readFileSync } from 'node:fs';

const width = { F64: 8, F32: 4, U8: 1, I64: 8, I32: 4, BF16: 2 };

/** @returns {{meta: Record<string, string>, tensors: Map<string, {shape: number[], data: Float64Array}>}} */
export function readCheckpoint(file) {
    const bytes = readFileSync(file), length = Number(bytes.readBigUInt64LE(0));
    const header = JSON.parse(bytes.toString('utf8', 8, 8 + length)), tensors = new Map();
    for (const [name, entry] of Object.entries(header)) {
        if (name === '__metadata__')
            continue;
        const [from, to] = entry.data_offsets.map(at => 8 + length + at);
        const data = new Float64Array((to - from) / width[entry.dtype]);
        for (let i = 0; i < data.length; i++) {
            const at = from + i * width[entry.dtype];
            data[i] = entry.dtype === 'F64' ? bytes.readDoubleLE(at) : entry.dtype === 'F32' ? bytes.readFloatLE(at) : entry.dtype === 'I64' ? Number(bytes.readBigInt64LE(at)) : bytes[at];
        }
        tensors.set(name, { shape: entry.shape, dtype: entry.dtype, data });
    }
    return { meta: header.__metadata__ ?? {}, tensors };
}
