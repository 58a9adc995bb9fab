// Runs a job through a real daemon and holds what it reported against the reference, number by number.
import assert from 'node:assert/strict';
import { copyFileSync, mkdirSync, readFileSync, readdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { Daemon, until } from '../lib/daemon.mjs';
import { batches } from './reference/data/batches.mjs';
import { resolved } from './reference/data/document.mjs';
import { idx } from './reference/data/files.mjs';
import { words } from './reference/philox.mjs';
import { settings } from './reference/settings.mjs';
import { train } from './reference/train.mjs';
import { readCheckpoint } from './safetensors.mjs';

/* ---- small data of the tests' own ---- */

/** Bytes that look random and are always the same. */
export function noise(count, salt) {
    const bytes = new Uint8Array(count);
    for (let i = 0; i < count; i++)
        bytes[i] = words(12345, 99, salt, Math.floor(i / 4))[i % 4] >>> 24;
    return bytes;
}

export const SIDE = 8, TRAIN = 14, VAL = 7;
const LONG = 4000;

/** Pictures of SIDE x SIDE pixels in MNIST's form, and a text. */
export function writeData(dir) {
    const pixels = noise((TRAIN + VAL) * SIDE * SIDE, 1), labels = noise(TRAIN + VAL, 2).map(x => x % 3); // few classes: some answers are right
    mkdirSync(path.join(dir, 'tiny'), { recursive: true });
    for (const [stem, from, count] of [['train', 0, TRAIN], ['t10k', TRAIN, VAL]]) {
        writeFileSync(path.join(dir, `tiny/${stem}-images-idx3-ubyte`), idx([count, SIDE, SIDE], pixels.subarray(from * SIDE * SIDE, (from + count) * SIDE * SIDE)));
        writeFileSync(path.join(dir, `tiny/${stem}-labels-idx1-ubyte`), idx([count], labels.subarray(from, from + count)));
    }
    // The same for training, with so many pictures for validation that a run takes a while.
    const many = noise(LONG * SIDE * SIDE, 4), names = noise(LONG, 5).map(x => x % 3);
    mkdirSync(path.join(dir, 'long'), { recursive: true });
    for (const file of ['images-idx3', 'labels-idx1'])
        copyFileSync(path.join(dir, `tiny/train-${file}-ubyte`), path.join(dir, `long/train-${file}-ubyte`));
    writeFileSync(path.join(dir, 'long/t10k-images-idx3-ubyte'), idx([LONG, SIDE, SIDE], many));
    writeFileSync(path.join(dir, 'long/t10k-labels-idx1-ubyte'), idx([LONG], names));
    const text = Buffer.from(noise(160, 3).map(x => 97 + x % 7));
    writeFileSync(path.join(dir, 'tiny.txt'), text);
    // Texts of 0 to 8 letters in three classes; the labels come in another order than they sort.
    const rows = Array.from(noise(26, 6), (x, i) => ({ label: ['sad', 'glad', 'bad'][(x >>> 3) % 3], text: text.subarray(5 * i, 5 * i + x % 9).toString() }));
    writeFileSync(path.join(dir, 'labelled.tsv'), ['text\tlabel', ...rows.map(row => `${row.text}\t${row.label}`)].join('\n'));
    // Pairs of texts of 2 to 9 letters, so that some are longer than half the context of pairJob.
    mkdirSync(path.join(dir, 'aan'));
    const letters = noise(520, 7), cut = at => String.fromCharCode(...letters.subarray(10 * at, 10 * at + 2 + letters[10 * at + 9] % 8).map(x => 97 + x % 7));
    for (const [part, from, count] of [['train', 0, 14], ['eval', 14, 7], ['test', 21, 5]])
        writeFileSync(path.join(dir, `aan/new_aan_pairs.${part}.tsv`), Array.from({ length: count }, (_, i) => `${(from + i) % 2}\ta\tb\t${cut(2 * (from + i))}\t${cut(2 * (from + i) + 1)}\n`).join(''));
    return { pixels, labels, text, rows };
}

/* ---- jobs ---- */

export const merge = (a, b) => {
    const out = { ...a };
    for (const [key, value] of Object.entries(b))
        out[key] = value && typeof value === 'object' && !Array.isArray(value) && a[key] && typeof a[key] === 'object' && !Array.isArray(a[key])
            ? merge(a[key], value) : value;
    return out;
};

const common = {
    train: { steps: 3, batch: 4, precision: 'fp64', init: 'trunc_xavier', eval_every: 2, checkpoint_every: { steps: 1 }, keep: { latest: 100, best: 1 },
        optimizer: { lr: 0.01 } },
    diagnostics: { every: 2, probe_batch: 3 }, resources: { device: 'cpu', threads: 1 },
};

export const imageJob = (more = {}) => merge(merge({
    name: 'wiring', model: { arch: 'vit', width: 8, depth: 2, heads: 2, patch: 4 },
    data: { dataset: 'mnist', path: 'tests/tiny', image_size: SIDE, split: { rule: 'given' } },
}, common), more);

/** Swin of two stages: four windows that every other block shifts, then one. */
export const swinJob = (more = {}) => imageJob(merge({ model: { arch: 'swin', width: undefined, depth: undefined, heads: undefined,
    widths: [4, 8], depths: [2, 1], head_counts: [1, 2], patch: 2, window: 2 } }, more));

/** XCiT: a stem of two convolutions, 2 x 2 tokens, heads of 4 channels. */
export const xcitJob = (more = {}) => imageJob(merge({ model: { arch: 'xcit' } }, more));

export const textJob = (more = {}) => merge(merge({
    name: 'wiring', model: { arch: 'gpt', width: 8, depth: 2, heads: 2, context: 6 },
    data: { dataset: 'text', path: 'tests/tiny.txt', split: { rule: 'fraction', train: 0.9, val: 0.1 } },
}, common), more);

/** Texts with classes; some are longer than the context. */
export const labelJob = (more = {}) => textJob(merge({ data: { dataset: 'text_labels', path: 'tests/labelled.tsv', split: { rule: 'fraction', train: 0.6, val: 0.3 } } }, more));

/** A Nystromformer of three landmarks over expressions of at most 12 tokens. */
export const nystromJob = (more = {}) => merge(merge({
    name: 'wiring', model: { arch: 'nystrom', width: 8, depth: 2, heads: 2, mlp_ratio: 2, context: 12, landmarks: 3, conv_kernel: 5 },
    data: { dataset: 'listops_gen', split: { train: 60, val: 7, test: 5 } },
}, merge(common, { train: { init: undefined } })), more);

/** The same over texts with classes. */
export const nystromLabels = (more = {}) => labelJob(merge({ model: { arch: 'nystrom', context: 6, landmarks: 3, conv_kernel: 3 } }, more));

/** The same over pairs of texts, of 6 tokens each. */
export const pairJob = (more = {}) => nystromJob(merge({ data: { dataset: 'aan', path: 'tests/aan', split: undefined } }, more));

/** The parameters of a checkpoint, without its states and averages. */
export const parametersOf = ({ tensors }) => new Map([...tensors].filter(([name]) => !/^(optim|ema|polyd)\./.test(name)));

export class Rig {
    /** A daemon with the data above as root `tests`. */
    static async start(flags = []) {
        const rig = new Rig();
        rig.daemon = await Daemon.start({ flags: ['--devices.cpu_slots=2', '--devices.threads_per_slot=1', ...flags], prepare: dir => {
            rig.folder = path.join(dir, 'data');
            rig.data = writeData(rig.folder);
            return [`--data.tests=${rig.folder}`];
        } });
        return rig;
    }

    stop() {
        return this.daemon.stop();
    }

    /** Ends the one worker that trains, at once. */
    kill() {
        const mine = readdirSync('/proc').filter(name => /^\d+$/.test(name)).filter(pid => {
            try {
                const words = readFileSync(`/proc/${pid}/cmdline`, 'latin1').split('\0');
                return words[1] === 'train' && readFileSync(`/proc/${pid}/environ`, 'latin1').includes(this.daemon.stateDir);
            } catch {
                return false;
            }
        });
        assert.equal(mine.length, 1, 'one worker trains');
        process.kill(Number(mine[0]), 'SIGKILL');
    }

    /** What a job trains on and is validated with. */
    feed(job) {
        return batches(resolved(job), { tests: this.folder });
    }

    /** Settings of a job as the reference reads it. */
    settings(job) {
        return settings(job, this.feed(job).facts);
    }

    /** The reference's account of a job; jobs that mean the same are computed once. */
    expect(job) {
        const feed = this.feed(job), s = settings(job, feed.facts);
        const key = JSON.stringify([s, resolved(job)], (_, value) => typeof value === 'bigint' ? String(value) : value);
        this.known ??= new Map();
        if (!this.known.has(key))
            this.known.set(key, { feed, settings: s, ...train(s, feed) });
        return this.known.get(key);
    }

    /** Submits, waits, and collects all series and checkpoints. */
    async run(job, outcome = 'succeeded') {
        const { run: id } = await this.daemon.submit(job);
        return this.collect(id, outcome);
    }

    /** Trains a job and registers what comes of it as that name: the settings and weights of the version. */
    async taught(name, job) {
        const got = await this.run(merge(job, { register: name }));
        const version = await until('the version', () => this.daemon.get(`/api/v1/models/${name}/versions/1`));
        return { s: this.settings(job), params: parametersOf(got.checkpoints.get(version.step)) };
    }

    /** The numbers of a blob. */
    async numbers(id, { id: blob, meta, bytes }) {
        const reply = await fetch(`${this.daemon.url}/api/v1/runs/${id}/blobs/${blob}`), body = await reply.arrayBuffer();
        assert.equal(body.byteLength, bytes);
        const data = meta.dtype === 'f32' ? new Float32Array(body) : new Float64Array(body);
        assert.equal(data.length, meta.shape.reduce((a, b) => a * b, 1));
        return data;
    }

    async collect(id, outcome = 'succeeded') {
        const run = await this.daemon.reach(id, outcome), series = new Map();
        const { series: list } = await this.daemon.get(`/api/v1/runs/${id}/metrics`);
        for (let i = 0; i < list.length; i += 64) { // as many as a request may name
            const keys = list.slice(i, i + 64).map(({ key }) => `key=${encodeURIComponent(key)}`).join('&');
            for (const one of (await this.daemon.get(`/api/v1/runs/${id}/series?${keys}&buckets=10000`)).series)
                series.set(one.key, new Map(one.data.map(point => [point.first_step ?? point.step, point.mean])));
        }
        const blobs = new Map();
        for (const { key } of (await this.daemon.get(`/api/v1/runs/${id}/blobs`)).keys)
            for (const blob of (await this.daemon.get(`/api/v1/runs/${id}/blobs?key=${encodeURIComponent(key)}`)).blobs)
                blobs.set(`${key}@${blob.step}`, { ...blob, data: await this.numbers(id, blob) });
        const dir = path.join(this.daemon.stateDir, 'runs', String(id), 'checkpoints'), checkpoints = new Map();
        for (const name of readdirSync(dir).filter(name => name.startsWith('step-')))
            checkpoints.set(Number(name.slice(5, 17)), readCheckpoint(path.join(dir, name)));
        return { run, series, checkpoints, blobs, listed: (await this.daemon.get(`/api/v1/runs/${id}/checkpoints`)).checkpoints };
    }
}

/** Series that say how fast a machine was: no recomputation can know them. */
const measured = /^(step_ms|samples_per_s|tokens_per_s|data_wait|comm\/wait|sys\/.*|mem\/.*|system\/.*)$/;

/**
 * Differences between what the daemon reported and what the reference gives, as sentences; none: they agree.
 * @param {number} tolerance relative to the larger of 1 and the expected value
 */
export function differences(got, want, { tolerance = 1e-9, only = null } = {}) {
    const list = [];
    const wanted = key => !only || only.includes(key);
    const near = (a, b) => a === b || (Number.isFinite(b) && Math.abs(a - b) <= tolerance * Math.max(1, Math.abs(b))) || (Number.isNaN(a) && Number.isNaN(b));
    for (const [key, points] of want.series) {
        if (!wanted(key))
            continue;
        const mine = got.series.get(key);
        if (!mine) {
            list.push(`${key} is missing`);
            continue;
        }
        for (const [step, value] of points)
            if (!mine.has(step))
                list.push(`${key} has no value at step ${step}`);
            else if (!near(mine.get(step), value))
                list.push(`${key} at step ${step}: ${mine.get(step)}, expected ${value}`);
        for (const step of mine.keys())
            if (!points.has(step))
                list.push(`${key} has a value at step ${step} that is not expected`);
    }
    for (const key of got.series.keys())
        if (wanted(key) && !want.series.has(key) && !measured.test(key) && key !== 'steps_per_epoch')
            list.push(`${key} is not expected`);
    // stored as f32: a blob's numbers agree to 1e-6 of the largest
    for (const [name, values] of only ? [] : want.blobs) {
        const mine = got.blobs.get(name)?.data, most = Math.max(...values.map(Math.abs), 1e-30);
        const worst = mine?.length === values.length ? Math.max(...values.map((x, i) => Math.abs(x - mine[i]))) : Infinity;
        if (!(worst <= Math.max(1e-6, tolerance) * most))
            list.push(`${name}: ${mine ? `${mine.length} numbers, off by ${worst} of ${most}` : 'is missing'}`);
    }
    for (const name of only ? [] : got.blobs.keys())
        if (!want.blobs.has(name))
            list.push(`${name} is not expected`);
    const steps = [...got.checkpoints.keys()].sort((a, b) => a - b).join(' ');
    if (steps !== want.files.join(' '))
        list.push(`checkpoints of the steps ${steps}, expected ${want.files.join(' ')}`);
    // Each was the best when it was written; the newest of them is the run's.
    const best = Math.max(-1, ...got.listed.filter(c => c.kind === 'best').map(c => c.step));
    if (want.settings.keepBest > 0 && want.best.step > 0 && best !== want.best.step)
        list.push(`the best checkpoint is of step ${best}, expected ${want.best.step}`);
    if (got.run.step !== want.steps)
        list.push(`the run ended at step ${got.run.step}, expected ${want.steps}`);
    if (only)
        return list;
    for (const [step, file] of got.checkpoints) {
        const tensors = want.checkpoints.get(step);
        if (!tensors) {
            list.push(`a checkpoint of step ${step} is not expected`);
            continue;
        }
        for (const [name, values] of tensors) {
            const tensor = file.tensors.get(name);
            if (!tensor || tensor.data.length !== values.length) {
                list.push(`step ${step}: ${name} ${tensor ? `has ${tensor.data.length} values, expected ${values.length}` : 'is missing'}`);
                continue;
            }
            let worst = -1;
            for (let i = 0; i < values.length; i++) // of those that are not near: a difference that is NaN is one, and less than none
                if (!near(tensor.data[i], values[i]) && (worst < 0 || !(Math.abs(tensor.data[i] - values[i]) <= Math.abs(tensor.data[worst] - values[worst]))))
                    worst = i;
            if (worst >= 0)
                list.push(`step ${step}: ${name}[${worst}] is ${tensor.data[worst]}, expected ${values[worst]}`);
        }
        for (const name of file.tensors.keys())
            if (!tensors.has(name) && !name.startsWith('polyd.'))
                list.push(`step ${step}: ${name} is not expected`);
    }
    return list;
}

export function agree(got, want, options) {
    const list = differences(got, want, options);
    assert.deepEqual(list.slice(0, 8), [], `${list.length} numbers differ`);
}
