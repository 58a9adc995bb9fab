// The data half of the reference is held to published vectors before anything is held to it.
import assert from 'node:assert/strict';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, test } from 'node:test';
import { batches } from './reference/data/batches.mjs';
import { digit } from './reference/data/digits.mjs';
import { cifar, png, readCifar, readFolder, readMnist, readPng, writeMnist } from './reference/data/files.mjs';
import { Draws, bounded, shuffled } from './reference/data/draws.mjs';
import { philox, stream } from './reference/philox.mjs';
import { crop, fit, mirrored, normalised, resize, resizedCropBox, shifted } from './reference/data/pixels.mjs';
import { means, nearNats, sentence, sentences } from './reference/data/sentences.mjs';
import { splitImages, splitText } from './reference/data/split.mjs';
import { runsOf } from './reference/data/sweep.mjs';
import { bytePairs, smallVocabulary, tokenizer } from './reference/data/tokens.mjs';

const shared = process.env.POLYD_SHARED ?? '';
const needs = at => existsSync(path.join(shared, at)) && shared ? false : `no ${at} in the shared data`;
const dir = mkdtempSync(path.join(os.tmpdir(), 'polyd-data-'));
after(() => rmSync(dir, { recursive: true, force: true }));

/** A safetensors file of the golden vectors: its tensors and its configuration. */
function golden(name) {
    const bytes = readFileSync(path.join(shared, 'golden/augment', name));
    const length = Number(bytes.readBigUInt64LE()), head = JSON.parse(bytes.toString('utf8', 8, 8 + length));
    const tensors = Object.fromEntries(Object.entries(head).filter(([key]) => key !== '__metadata__').map(([key, t]) => {
        const raw = new Uint8Array(bytes.subarray(8 + length + t.data_offsets[0], 8 + length + t.data_offsets[1]));
        return [key, { shape: t.shape, data: t.dtype === 'U8' ? raw : new Float32Array(raw.buffer) }];
    }));
    return { config: JSON.parse(head.__metadata__.config), tensors };
}
const picture = ({ shape: [height, width, channels], data }) => ({ height, width, channels, data });
const same = (got, want, what) => assert.deepEqual([...got.data], [...want.data], what);

test('philox: the known answers of Random123', () => {
    const hex = list => list.map(word => word.toString(16).padStart(8, '0')).join(' ');
    assert.equal(hex(philox(0, [0, 0, 0, 0])), '6627e8d5 e169c58d bc57ac4c 9b00dbd8');
    assert.equal(hex(philox(2n ** 64n - 1n, Array(4).fill(0xffffffff))), '408f276d 41c83b0e a20bc7c6 6d5451fd');
    assert.equal(hex(philox(0x299f31d0a4093822n, [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344])), 'd16cfe09 94fdcceb 5001e420 24126ea1');
});

test('philox: bounds are the upper half of the product, draws go on from block to block', () => {
    assert.equal(bounded(0xffffffff, 0xffffffff), 0xfffffffe);
    assert.equal(bounded(0x80000000, 7), 3);
    const draws = new Draws(3, 2, 5), five = [1, 2, 3, 4, 5].map(() => draws.next());
    assert.deepEqual(five, [...philox(3, [5, 0, 2, 2]), philox(3, [5, 256, 2, 2])[0]].map(word => word / 2 ** 32));
});

test('a shuffle is a permutation in which every place is equally likely', () => {
    const seen = Array.from({ length: 5 }, () => Array(5).fill(0));
    for (let epoch = 0; epoch < 5000; epoch++) {
        const order = shuffled(5, 1, stream.shuffle, epoch);
        assert.deepEqual([...order].sort(), [0, 1, 2, 3, 4]);
        order.forEach((item, place) => seen[item][place]++);
    }
    // 1000 expected, a standard deviation of 28.
    assert.ok(seen.flat().every(n => Math.abs(n - 1000) < 130), JSON.stringify(seen));
});

test('resampling and the evaluation transform: golden vectors, to the byte', { skip: needs('golden/augment') }, () => {
    const { config, tensors } = golden('resize.safetensors');
    for (const { case: n, out_hw: [height, width] } of config.resize)
        for (const filter of ['bicubic', 'bilinear'])
            same(resize(picture(tensors[`in/${n}`]), filter, height, width), tensors[`out/${n}_${filter}`], `${n} ${filter}`);
    for (const { case: n, crop_pct, size } of config.eval) {
        const out = fit(picture(tensors[`in/eval_${n}`]), { size: [size, size], share: crop_pct, filter: 'bicubic' });
        same(out, tensors[`out/eval_u8_${n}`], `evaluation ${n}`);
        const values = normalised(out, config.mean, config.std), want = tensors[`out/eval_tensor_${n}`].data;
        assert.ok(values.every((v, i) => Math.abs(v - want[i]) < 1e-6), `normalised ${n}`);
    }
    same(mirrored(picture(tensors['in/hflip'])), tensors['out/hflip'], 'flip');
});

test('random resized crops: golden vectors, box, draws and bytes', { skip: needs('golden/augment') }, () => {
    const { config, tensors } = golden('random_resized_crop.safetensors');
    for (const c of config.cases) {
        let taken = 0;
        const box = resizedCropBox(() => c.draws[taken++], c.height, c.width, c.scale, c.ratio);
        assert.deepEqual({ ...box, taken }, { top: c.i, left: c.j, height: c.h, width: c.w, taken: c.draws.length }, `case ${c.case}`);
        for (const filter of c.has_image ? ['bicubic', 'bilinear'] : [])
            same(resize(crop(picture(tensors[`in/${c.case}`]), box), filter, c.size, c.size), tensors[`out/${c.case}_${filter}`], `case ${c.case} ${filter}`);
    }
});

test('a shifted picture is a window into one with a border of zeros', () => {
    const from = { height: 2, width: 3, channels: 1, data: Uint8Array.from([1, 2, 3, 4, 5, 6]) };
    assert.deepEqual([...shifted(from, 1, -1).data], [0, 4, 5, 0, 0, 0]);
    assert.deepEqual([...shifted(from, -1, 2).data], [0, 0, 0, 3, 0, 0]);
});

test('parts of an image set are disjoint, and chosen from its own parts by count', () => {
    const none = { train: null, val: null };
    assert.deepEqual(splitImages({ rule: 'given', ...none }, [3, 2], 1), [[0, 1, 2], [3, 4], [3, 4]]); // the test part is the set's second one, too
    for (const [split, given] of [[{ rule: 'fraction', train: 0.6, val: 0.3 }, [7, 3]], [{ rule: 'count', train: 6, val: 3 }, [10, 0]]]) {
        const [train, val, rest] = splitImages(split, given, 5);
        assert.deepEqual([train.length, val.length, rest.length, new Set([...train, ...val, ...rest]).size], [6, 3, 1, 10]);
        assert.notDeepEqual(splitImages(split, given, 6), [train, val, rest]);
    }
    const [train, val, all] = splitImages({ rule: 'count', train: 5, val: 2 }, [8, 4], 5);
    assert.ok(train.every(i => i < 8) && val.every(i => i >= 8 && i < 12));
    assert.deepEqual(all, [8, 9, 10, 11]);
    assert.deepEqual([new Set(train).size, new Set(val).size], [5, 2]);
});

test('a text is cut between characters', () => {
    const text = Buffer.from('aäb€c'), cut = (train, whole) => splitText({ rule: 'count', train, val: 3 }, text, [], whole).map(String);
    assert.deepEqual(cut(3, true), ['aä', 'b', '€c']); // the end falls into the euro sign
    assert.deepEqual(cut(2, true), ['a', 'äb', '€c']);
    assert.equal(splitText({ rule: 'count', train: 2, val: 3 }, text, [], false)[0].length, 2);
});

test('words: the most frequent first, then by their bytes; unknown ones and ends of lines', () => {
    const training = Buffer.from('b a a\nc b d\ta\n');
    const { vocabulary, encode } = tokenizer('words', training, training, '');
    assert.deepEqual(vocabulary.map(String), ['a ', '\n', 'b ', '<unk> ', 'c ', 'd ']);
    assert.deepEqual(encode(Buffer.from('a zebra\nd')), [0, 3, 1, 5]);
    const chars = tokenizer('chars', Buffer.from('€aéZa'), training, '');
    assert.deepEqual([chars.vocabulary.map(String), chars.encode(Buffer.from('a€'))], [['Z', 'a', 'é', '€'], [1, 3]]);
});

test('a small vocabulary of byte pairs merges by rank', () => {
    const folder = path.join(dir, 'bpe');
    mkdirSync(folder);
    for (const [name, text] of Object.entries(smallVocabulary([['t', 'h'], ['h', 'e'], ['th', 'e'], [' ', 'the']])))
        writeFileSync(path.join(folder, name), text);
    const { encode, vocabulary } = bytePairs(folder);
    assert.deepEqual(encode(Buffer.from('the thé he')).map(id => String(vocabulary[id])), ['the', ' ', 'th', ...[0xc3, 0xa9].map(b => String(Buffer.from([b]))), ' ', 'he']);
    assert.equal(vocabulary.length, 261);
});

test('byte pairs: published counts of GPT-2 tokens', { skip: needs('data/gpt2-bpe') }, () => {
    const { encode } = bytePairs(path.join(shared, 'data/gpt2-bpe'));
    assert.deepEqual(encode(Buffer.from("Hello, I'm a language model,")), [15496, 11, 314, 1101, 257, 3303, 2746, 11]);
    const valid = readFileSync(path.join(shared, 'data/wikitext-2/valid.txt'));
    assert.deepEqual(encode(valid.subarray(0, 200)).slice(0, 8), [220, 198, 796, 8074, 20272, 9106, 3876, 385]);
});

test('words and characters: published counts', { skip: needs('data/ptb') }, () => {
    const training = readFileSync(path.join(shared, 'data/ptb/ptb.train.txt'));
    const { vocabulary, encode } = tokenizer('words', training, training, '');
    assert.deepEqual([vocabulary.length, encode(training).length], [10000, 929589]);
    assert.equal(encode(readFileSync(path.join(shared, 'data/ptb/ptb.valid.txt'))).length, 73760);
    const shakespeare = readFileSync(path.join(shared, 'data/tinyshakespeare/input.txt'));
    assert.equal(tokenizer('chars', shakespeare, shakespeare, '').vocabulary.length, 65);
});

test('IDX and CIFAR-10: the first published digits and pixels', { skip: needs('data/mnist') }, () => {
    const mnist = readMnist(path.join(shared, 'data/mnist'));
    assert.deepEqual([mnist.given, mnist.labels.slice(0, 10), mnist.labels.slice(10000, 10010)],
        [[10000, 2000], [5, 0, 4, 1, 9, 2, 1, 3, 1, 4], [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]]);
    const set = readCifar(path.join(shared, 'data/cifar10'));
    assert.deepEqual([set.given, set.labels.slice(0, 10), [...set.picture(0).data.subarray(0, 3)], set.names?.[6]],
        [[3000, 0], [6, 9, 9, 4, 1, 1, 2, 7, 8, 3], [59, 62, 63], 'frog']);
});

test('what is written is what is read', () => {
    const made = (height, width, channels, n) =>
        ({ height, width, channels, data: Uint8Array.from({ length: height * width * channels }, (_, i) => i * 7 + n * 31) });
    const parts = [[made(3, 5, 1, 0), made(3, 5, 1, 1)], [made(3, 5, 1, 2)]].map((pictures, i) => ({ pictures, labels: pictures.map((_, k) => i + k) }));
    for (const zip of [false, true]) {
        const folder = path.join(dir, `idx${zip}`);
        writeMnist(folder, parts, zip);
        const set = readMnist(folder);
        assert.deepEqual([set.given, set.labels, [...set.picture(2).data]], [[2, 1], [0, 1, 1], [...parts[1].pictures[0].data]]);
    }
    mkdirSync(path.join(dir, 'cifar'));
    writeFileSync(path.join(dir, 'cifar/test_batch.bin'), cifar({ pictures: [made(32, 32, 3, 1)], labels: [4] }));
    writeFileSync(path.join(dir, 'cifar/data_batch_1.bin'), cifar({ pictures: [made(32, 32, 3, 2)], labels: [5] }));
    const records = readCifar(path.join(dir, 'cifar'));
    assert.deepEqual([records.labels, records.given, records.picture(1)], [[5, 4], [1, 1], made(32, 32, 3, 1)]);
    assert.deepEqual(readPng(png(made(4, 6, 3, 1))), made(4, 6, 3, 1));
    assert.deepEqual([...readPng(png(made(1, 2, 1, 1))).data], [31, 31, 31, 38, 38, 38]);
    for (const name of ['train/b/0', 'train/a/1', 'val/b/2', 'valley/a/3'])  {
        mkdirSync(path.join(dir, 'tree', path.dirname(name)), { recursive: true });
        writeFileSync(path.join(dir, 'tree', `${name}.png`), png(made(2, 2, 3, Number(name.slice(-1)))));
    }
    const tree = readFolder(path.join(dir, 'tree'));
    assert.deepEqual([tree.names, tree.given, tree.labels, tree.picture(2).data[0]], [['a', 'b'], [2, 1, 0], [0, 1, 1], 62]);
});

test('a generated digit is ink on black, its own for every number', () => {
    const pictures = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10].map(i => digit(1, i, i % 10));
    assert.equal(new Set(pictures.map(p => p.data.join())).size, 11);
    for (const { data } of pictures) {
        const ink = data.reduce((a, b) => a + b, 0) / 255;
        assert.ok(ink > 20 && ink < 250 && data[0] === 0, `${ink} pixels of ink`);
    }
});

test('a generated text has the entropy that is published, and verbs of the number of their subject', () => {
    const { nats, bytes } = means(), readme = readFileSync(new URL('../../daemon/worker/data/README.md', import.meta.url), 'utf8');
    const published = /\| a sentence \| ([\d.]+) \| ([\d.]+) \|[^]*\| a byte \| ([\d.]+) \|[^]* ([\d.]+) nats per byte\b/.exec(readme)?.slice(1).map(Number) ?? [];
    [nats, bytes, nats / bytes, nearNats() / bytes].forEach((value, i) => assert.ok(Math.abs(published[i] - value) < 5.1e-7, `${published[i]}, ${value}`));
    const many = Array.from({ length: 20000 }, (_, i) => sentence(1, i));
    const length = many.reduce((sum, list) => sum + list.join(' ').length + 1, 0) / many.length;
    assert.ok(Math.abs(length - bytes) < 1, `${length} bytes a sentence`); // a standard deviation of 0.2
    const one = /^(a|the) (.* )?(sees|finds|likes|follows|hears|leaves) /, plural = /^(some|the) (.* )?(see|find|like|follow|hear|leave) /;
    assert.ok(many.every(list => one.test(list.join(' ')) !== plural.test(list.join(' '))));
    assert.ok(many.some(list => list.length > 25));
});

test('a generated text is cut between words', () => {
    const whole = String(sentences(2, 0, 500));
    for (const length of [1, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50]) {
        const text = String(sentences(2, 0, length)), kept = text.replace(/\n+$/, '');
        assert.equal(text.length, length);
        assert.ok(whole.startsWith(kept) && (!kept || kept.endsWith(' ') || whole[kept.length] === '\n'), text);
    }
});

test('texts are fed in windows that move on from epoch to epoch, never beyond the end', () => {
    writeFileSync(path.join(dir, 'text.txt'), Buffer.from(Array.from({ length: 100 }, (_, i) => i)));
    const document = {
        data: { dataset: 'text', path: 'here/text.txt', image_size: null, tokenizer: 'bytes', tokenizer_path: null, context: 8, split: { rule: 'count', train: 60, val: 30 } },
        train: { batch: 3, seed: 4, steps: null, epochs: 5 },
    };
    const feed = batches(document, { here: dir });
    assert.deepEqual([feed.facts, feed.val.length, feed.stepsPerEpoch, feed.steps], [{ samples: 7, vocab: 256 }, 3, 2, 10]);
    const starts = Array.from({ length: 10 }, (_, step) => feed.train(step).map(({ input, target }) => {
        assert.ok(input.length === 8 && target.every((t, i) => t === input[i] + 1 && t < 60));
        return input[0];
    }));
    assert.ok(new Set(starts.flat().filter(at => at < 51).map(at => at % 8)).size > 2, 'the grid moves');
    assert.deepEqual(feed.val[1].target, [69, 70, 71, 72, 73, 74, 75, 76]);
});

test('a grid turns its last axis fastest; ranges end where they say', () => {
    const job = { trials: 2, sweep: { axes: [{ pointer: '/a', log: [0.001, 1000, 7] }, { pointer: '/b', linear: [1, 2, 3] }] } };
    const runs = runsOf(job);
    assert.equal(runs.length, 42);
    assert.deepEqual(runs.slice(0, 3), [{ values: { '/a': 0.001, '/b': 1 }, trial: 0 }, { values: { '/a': 0.001, '/b': 1 }, trial: 1 }, { values: { '/a': 0.001, '/b': 1.5 }, trial: 0 }]);
    assert.deepEqual([...new Set(runs.map(run => run.values['/a']))], [0.001, 0.01, 0.1, 1, 10, 100, 1000]);
    const random = runsOf({ sweep: { method: 'random', samples: 400, seed: 3, axes: [{ pointer: '/a', loguniform: [0.01, 1] }, { pointer: '/b', values: [1, 2] }] } });
    const logs = random.map(run => Math.log10(Number(run.values['/a'])));
    assert.ok(logs.every(x => x >= -2 && x <= 0) && Math.abs(logs.reduce((a, b) => a + b) / 400 + 1) < 0.1);
    assert.ok(Math.abs(random.filter(run => run.values['/b'] === 1).length - 200) < 50);
});
