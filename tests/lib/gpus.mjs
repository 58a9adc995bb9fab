// The machine that the fake NVML (tests/devices/fake_nvml.c) shows: a text file, rewritten whole.
import { mkdtempSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';

/** One line of the machine: GPU `i` with the usual values, and others over them. */
export function gpu(i, more = {}) {
    const words = {
        uuid: `GPU-0000000${i}-aaaa-bbbb-cccc-00000000000${i}`.replace(/0(\d\d)(?=-|$)/, '$1'), name: 'NVIDIA H200',
        bus: `00000000:${(16 + i).toString(16).toUpperCase()}:00.0`, total: 150754820096, used: 600000000, reserved: 600000000, util: 0, memutil: 0,
        temp: 31, power: 75000, limit: 700000, clock: 1980, major: 9, minor: 0, ecc: '0,0', remap_failed: 0, mig: 0, ...more,
    };
    return `gpu ${i} ${Object.entries(words).map(([key, value]) => `${key}=${/\s/.test(String(value)) ? `"${value}"` : value}`).join(' ')}`;
}

export class Machine {
    /** @param {string[]} lines */
    constructor(lines) {
        this.dir = mkdtempSync(path.join(os.tmpdir(), 'polyd-gpus-'));
        this.file = path.join(this.dir, 'machine');
        this.write(lines);
    }

    write(lines) {
        writeFileSync(`${this.file}.new`, `driver 580.65.06\n${lines.join('\n')}\n`);
        renameSync(`${this.file}.new`, this.file);
    }

    /** What the daemon must find in its environment. */
    get env() {
        return { POLYD_FAKE_NVML: this.file };
    }

    remove() {
        rmSync(this.dir, { recursive: true, force: true });
    }
}
