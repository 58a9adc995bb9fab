// What a run feeds its network, from its resolved document and the files below the data roots.
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { digitSet } from './digits.mjs';
import { encodeDocuments, joined, readDocuments } from './documents.mjs';
import { readCifar, readFolder, readMnist } from './files.mjs';
import { Draws, bounded, shuffled } from './draws.mjs';
import { classesOf, readLabelled, readPairs } from './labelled.mjs';
import { stream, words as draws } from '../philox.mjs';
import { evaluationPicture, normalised, trainingPicture } from './pixels.mjs';
import { erase, mixed } from './recipe.mjs';
import { listops, pathfinder } from './sequences.mjs';
import { generatedParts } from './sentences.mjs';
import { splitImages, splitText } from './split.mjs';
import { tokenizer } from './tokens.mjs';

/**
 * A picture as (channels, rows, columns) of 32-bit numbers with its class, tokens with the token that follows each, or a text
 * with its class: padded tokens, and the place of the last real one.
 * @typedef {{input: Float64Array | number[] | {tokens: number[], last: number}, target: number | number[]}} Sample
 */
/**
 * @typedef {object} Feed
 * @property {(step: number) => Sample[]} train the whole batch of global step 0, 1, ...
 * @property {Sample[]} val the validation part, in order
 * @property {Sample[]} test what is scored once, at the end, in order
 * @property {{name: string, samples: Sample[]}[]} [evals] the zero-shot sets, of texts
 * @property {(split: 'train' | 'val' | 'test') => Sample[]} scored a part as an evaluation sees it, in order
 * @property {{samples: number, channels?: number, height?: number, width?: number, classes?: number, vocab?: number}} facts
 *     of the training part, as a network needs to know them
 * @property {number} stepsPerEpoch
 * @property {number} steps length of the run
 * @property {string[] | null} [names] of the classes
 * @property {Buffer[]} [vocabulary] bytes of each token
 */

/** The order of an epoch cut to whole batches, and what is drawn for it. */
function schedule(document, count, repeats = 1) {
    const { batch, seed, steps, epochs } = document.train;
    const perEpoch = Math.floor((repeats > 1 ? Math.floor(count / 256) * 256 : count) / batch);
    const places = step => {
        const epoch = Math.floor(step / perEpoch), order = shuffled(count, seed, stream.shuffle, epoch);
        return Array.from({ length: batch }, (_, i) => {
            const position = step % perEpoch * batch + i;
            return { epoch, position, sample: order[Math.floor(position / repeats)] };
        });
    };
    return { places, stepsPerEpoch: perEpoch, steps: steps ?? epochs * perEpoch };
}

/* ---- pictures ---- */

const readers = { mnist: readMnist, cifar10: readCifar, image_folder: readFolder, imagenet1k: readFolder, tiny_imagenet: readFolder };

/** The set with the sizes of its training, validation and test files: what the rule standard divides. */
function readParts(dataset, folder) {
    if (dataset === 'image_folder')
        return readFolder(folder, ['val', 'valid', 'validation'], ['test']);
    if (dataset === 'imagenet1k' || dataset === 'tiny_imagenet')
        return readFolder(folder, [], ['val', 'valid', 'validation']);
    const set = readers[dataset](folder);
    return { ...set, given: [set.given[0], 0, set.given[1]] };
}

/** Digits of each part. */
const digitCounts = ({ rule, train, val, test }) => rule === 'standard' ? [train ?? 4000, val ?? 1000, test ?? 1000]
    : rule === 'count' ? [train, val] : rule === 'fraction' ? [train, val].map(share => Math.floor(5000 * share + 1e-6)) : [4000, 1000];

/** @returns {Feed} */
function pictures(document, folder, splitSeed) {
    const { data, train } = document, { augment, split } = data;
    const size = typeof data.image_size === 'number' ? [data.image_size, data.image_size] : data.image_size;
    // Generated digits are no pool to choose from: each part is drawn as long as it is asked for.
    const generated = data.dataset === 'digits_gen';
    const standard = split.rule === 'standard';
    const set = generated ? digitSet(digitCounts(split), splitSeed) : standard ? readParts(data.dataset, folder) : readers[data.dataset](folder);
    const [training, validation, test] = splitImages(generated ? { ...split, rule: standard ? 'standard' : 'given' } : split, set.given, splitSeed);
    const { places, ...length } = schedule(document, training.length, augment.repeats);
    const sample = (index, prepare) =>
        ({ input: normalised(prepare(set.picture(index)), set.mean, set.std), target: set.labels[index] });
    const [height, width] = size;
    const seen = indexes => indexes.map(index => sample(index, picture => evaluationPicture(picture, augment, size)));
    let made;
    return {
        ...length, facts: { samples: augment.repeats > 1 ? Math.floor(training.length / 256) * 256 : training.length, channels: set.mean.length, height, width, classes: set.classes }, names: set.names,
        train: step => {
            const at = places(step), samples = at.map(({ epoch, position, sample: chosen }) => {
                const draws = new Draws(train.seed, epoch, position);
                const one = sample(training[chosen], picture => trainingPicture(picture, augment, size, draws, set.mean));
                if (augment.erasing > 0)
                    erase(one.input, size, augment.erasing, () => draws.next());
                return one;
            });
            return augment.mixup > 0 || augment.cutmix > 0 ? mixed(samples, at, augment, size, train.seed) : samples;
        },
        get val() {
            return made ??= seen(validation);
        },
        test: standard ? seen(test) : [],
        scored: split => seen({ train: training, val: validation, test }[split]),
    };
}

/* ---- texts ---- */

const partFiles = [
    ['train.txt', 'ptb.train.txt', 'wiki.train.tokens', 'wiki.train.raw', 'train.tokens'],
    ['valid.txt', 'ptb.valid.txt', 'wiki.valid.tokens', 'wiki.valid.raw', 'valid.tokens', 'val.txt', 'validation.txt'],
    ['test.txt', 'ptb.test.txt', 'wiki.test.tokens', 'wiki.test.raw', 'test.tokens'],
];

const folders = ['openwebtext', 'pg19'];

/** The text of a zero-shot set, and where its documents end: its test part, or all of a set without parts. */
function evalText({ dataset }, place, tokenizer, splitSeed) {
    if (dataset === 'text_gen')
        return { text: generatedParts({ rule: 'standard' }, splitSeed)[2], ends: [] };
    if (dataset === 'text')
        return { text: readFileSync(place), ends: [] };
    if (folders.includes(dataset)) {
        const [train, , test] = readDocuments(place);
        return joined(test.length ? test : train, tokenizer);
    }
    return { text: readFileSync(path.join(place, partFiles[2].find(file => existsSync(path.join(place, file))))), ends: [] };
}

/** The three parts of a text, and all that its characters are taken from. */
function textParts({ data }, place, splitSeed) {
    const standard = data.split.rule === 'standard';
    if (folders.includes(data.dataset)) {
        const given = readDocuments(place).slice(0, standard ? 3 : 2), { text, ends } = joined(given.flat(), data.tokenizer);
        const sizes = given.map(documents => joined(documents, data.tokenizer).text.length);
        return { parts: splitText(data.split, text, sizes, data.tokenizer !== 'bytes', ends), text, ends };
    }
    if (data.dataset === 'text_gen') {
        const parts = generatedParts(data.split, splitSeed);
        return { parts, text: Buffer.concat(parts.slice(0, standard ? 3 : 2)) };
    }
    const files = data.dataset === 'text' ? [readFileSync(place)] : partFiles.slice(0, standard ? 3 : 2).map(names => {
        const name = names.find(file => existsSync(path.join(place, file)));
        return name ? readFileSync(path.join(place, name)) : Buffer.alloc(0);
    });
    const text = Buffer.concat(files), nine = Math.floor(text.length * 0.9);
    const given = data.dataset === 'text' ? standard ? [text.length, 0, 0] : [nine, text.length - nine] : files.map(file => file.length);
    return { parts: splitText(data.split, text, given, data.tokenizer !== 'bytes'), text };
}

/** @returns {Feed} */
function texts(document, place, tokenizerFolder, splitSeed, below) {
    const { data, train } = document, context = data.context, { parts, text, ends } = textParts(document, place, splitSeed);
    const words = tokenizer(data.tokenizer, text, parts[0], tokenizerFolder), { vocabulary } = words;
    const encode = (whole, part, documents) => {
        const from = part.byteOffset - whole.byteOffset;
        return encodeDocuments(words, whole, data.tokenizer === 'gpt2_bpe' ? documents : [], from, from + part.length);
    };
    const ids = parts.map(part => ends ? encode(text, part, ends) : words.encode(part)), counts = ids.map(part => Math.floor((part.length - 1) / context));
    const { places, ...length } = schedule(document, counts[0]);
    // A window is the context and one token more; the last one is moved back inside.
    const cut = (tokens, number, offset) => {
        const at = Math.min(number * context + offset, tokens.length - context - 1);
        return tokens.slice(at, at + context + 1);
    };
    const window = (part, number, offset) => cut(ids[part], number, offset);
    const sample = window => ({ input: window.slice(0, -1), target: window.slice(1) });
    const whole = part => Array.from({ length: counts[part] }, (_, i) => sample(window(part, i, 0)));
    const evals = (data.eval ?? []).map(entry => {
        const other = evalText(entry, entry.path && below(entry.path), data.tokenizer, splitSeed);
        const tokens = encode(other.text, other.text, other.ends);
        return { name: entry.name, samples: Array.from({ length: Math.floor((tokens.length - 1) / context) }, (_, i) => sample(cut(tokens, i, 0))) };
    });
    return {
        ...length, facts: { samples: counts[0], vocab: vocabulary.length }, vocabulary,
        train: step => places(step).map(({ epoch, sample: number }) =>
            sample(window(0, number, bounded(draws(train.seed, stream.window, epoch, 0)[0], context)))),
        val: whole(1), test: data.split.rule === 'standard' && parts[2].length ? whole(2) : [], evals,
        scored: split => whole(['train', 'val', 'test'].indexOf(split)),
    };
}

/* ---- labelled texts ---- */

/** @returns {Feed} */
function labelled(document, place, tokenizerFolder, splitSeed) {
    const { data } = document, { rows, given } = readLabelled(place, data.split.rule === 'standard'), parts = splitImages(data.split, given, splitSeed);
    const names = classesOf(parts[0].map(i => rows[i].label));
    const training = Buffer.from(parts[0].map(i => rows[i].text).join(data.tokenizer === 'words' ? ' ' : ''));
    const { vocabulary, encode } = tokenizer(data.tokenizer, training, training, tokenizerFolder);
    const { places, ...length } = schedule(document, parts[0].length);
    const sample = i => {
        const ids = encode(Buffer.from(rows[i].text)).slice(0, data.context);
        return {
            input: { tokens: Array.from({ length: data.context }, (_, k) => ids[k] ?? 0), last: Math.max(ids.length, 1) - 1 },
            target: names.indexOf(rows[i].label),
        };
    };
    return {
        ...length, facts: { samples: parts[0].length, vocab: vocabulary.length, classes: names.length }, vocabulary, names,
        train: step => places(step).map(({ sample: chosen }) => sample(parts[0][chosen])),
        val: parts[1].map(sample), test: data.split.rule === 'standard' ? parts[2].map(sample) : [],
        scored: split => parts[['train', 'val', 'test'].indexOf(split)].map(sample),
    };
}

/** Two texts in each sample, bytes from 1 on, each in half the context. @returns {Feed} */
function pairs(document, folder) {
    const { data } = document, rows = readPairs(folder), names = classesOf(rows[0].map(row => row.label)), { places, ...length } = schedule(document, rows[0].length);
    const half = text => Array.from({ length: data.context / 2 }, (_, k) => (Buffer.from(text)[k] ?? -1) + 1);
    const parts = rows.map(part => part.map(({ label, texts }) => ({ input: { tokens: texts.flatMap(half), last: data.context - 1 }, target: names.indexOf(label) })));
    return {
        ...length, facts: { samples: rows[0].length, vocab: 257, classes: names.length }, names,
        train: step => places(step).map(({ sample }) => parts[0][sample]),
        val: parts[1], test: parts[2], scored: split => parts[['train', 'val', 'test'].indexOf(split)],
    };
}

/** @returns {Feed} */
function generated(make, document, splitSeed) {
    const { data } = document, { parts, vocabulary, names } = make(data, splitSeed), { places, ...length } = schedule(document, parts[0].length);
    const sample = ({ ids, result }) => ({ input: { tokens: Array.from({ length: data.context }, (_, k) => ids[k] ?? 0), last: ids.length - 1 }, target: result });
    return {
        ...length, facts: { samples: parts[0].length, vocab: vocabulary.length, classes: names.length }, vocabulary, names,
        train: step => places(step).map(({ sample: chosen }) => sample(parts[0][chosen])),
        val: parts[1].map(sample), test: parts[2].map(sample), scored: split => parts[['train', 'val', 'test'].indexOf(split)].map(sample),
    };
}

/**
 * @param {any} document the resolved document of a run
 * @param {Record<string, string>} roots folder of each data root that it names
 * @returns {Feed}
 */
export function batches(document, roots) {
    const { data } = document;
    const below = at => {
        const [root, ...rest] = at.split('/');
        return path.join(roots[root], ...rest);
    };
    const place = data.path && below(data.path);
    if (data.dataset === 'text_labels')
        return labelled(document, place, data.tokenizer_path && below(data.tokenizer_path), data.split_seed ?? document.train.seed);
    if (data.dataset === 'aan')
        return pairs(document, place);
    if (data.dataset === 'listops_gen')
        return generated(listops, document, data.split_seed ?? document.train.seed);
    if (data.dataset === 'pathfinder_gen')
        return generated(pathfinder, document, data.split_seed ?? document.train.seed);
    if (data.image_size === null)
        return texts(document, place, data.tokenizer_path && below(data.tokenizer_path), data.split_seed ?? document.train.seed, below);
    return pictures(document, place, data.split_seed ?? document.train.seed);
}
