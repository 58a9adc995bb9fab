// GET /api/v1/data: what is listed as fitting is what a dry run accepts.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { gzipSync } from 'node:zlib';
import { png } from './files.mjs';
import { Daemon, build } from './lib.mjs';

const here = existsSync(path.join(build, 'bin/polyd')) && existsSync(path.join(build, 'bin/polyd-worker'));
const real = { skip: here ? false : 'polyd or polyd-worker is not built', timeout: 300000 };
let host, mine;

const put = (name, bytes) => {
    mkdirSync(path.dirname(path.join(mine, name)), { recursive: true });
    writeFileSync(path.join(mine, name), bytes);
};
const prose = 'the quick brown fox jumps over the lazy dog.\n'.repeat(100);

function idx(axes, count) {
    const head = Buffer.from(axes === 3 ? [0, 0, 8, 3, 0, 0, 0, count, 0, 0, 0, 28, 0, 0, 0, 28] : [0, 0, 8, 1, 0, 0, 0, count]);
    return Buffer.concat([head, Buffer.from(Array.from({ length: axes === 3 ? count * 784 : count }, (_, i) => i % 10))]);
}

function digits(folder, { gz = false, without = '' } = {}) {
    for (const [stem, count] of [['train', 80], ['t10k', 20]])
        for (const [what, axes] of [['images', 3], ['labels', 1]]) {
            const name = `${stem}-${what}-idx${axes}-ubyte`;
            if (name !== without)
                put(`${folder}/${name}${gz ? '.gz' : ''}`, gz ? gzipSync(idx(axes, count)) : idx(axes, count));
        }
}

const records = count => Buffer.from(Array.from({ length: count * 3073 }, (_, i) => i % 3073 ? i % 256 : (i / 3073) % 10));

function pictures(folder, parts) {
    for (const part of parts)
        for (const colour of ['blue', 'red'])
            for (let i = 0; i < 24; i++)
                put(path.join(folder, part, colour, `${i}.png`), png(16, (x, y) => [colour === 'red' ? 200 : 20, (x * 7 + i) % 256, (y * 5) % 256]));
}

before(async () => {
    if (!here)
        return;
    mine = mkdtempSync(path.join(os.tmpdir(), 'polyd-have-'));
    digits('sets/mnist');
    digits('sets/zipped', { gz: true });
    digits('sets/halved', { without: 't10k-labels-idx1-ubyte' });
    put('sets/cifar/data_batch_1.bin', records(40));
    put('sets/cifar/test_batch.bin', records(10));
    put('sets/undivided/data_batch_1.bin.gz', gzipSync(records(40)));
    put('sets/torn/data_batch_1.bin', records(2).subarray(1));
    pictures('sets/colours', ['train', 'val']);
    pictures('sets/classes', ['']);
    execFileSync('tar', ['-cf', path.join(mine, 'colours.tar'), '-C', path.join(mine, 'sets/colours'), 'train', 'val']);
    put('ptb/ptb.train.txt', prose);
    put('ptb/ptb.valid.txt', prose);
    put('wiki/wiki.train.tokens.gz', gzipSync(prose));
    put('texts/plain.txt', prose);
    put('texts/plain.txt.gz', gzipSync(prose));
    put('texts/short.txt', 'a line\n');
    put('texts/cut.txt.gz', gzipSync(Array.from({ length: 20000 }, (_, i) => `${i * 7919 % 10007}\n`).join('')).subarray(0, 9000));
    put('texts/packed.txt.xz', Buffer.concat([Buffer.from('\xfd7zXZ\0', 'latin1'), Buffer.alloc(4000, 7)]));
    put('texts/packed.zip', Buffer.concat([Buffer.from('PK\x03\x04', 'latin1'), Buffer.alloc(4000, 7)]));
    put('texts/table.bin', Buffer.from(Array.from({ length: 4000 }, (_, i) => (i * 37) % 256)));
    put('texts/table.bin.gz', gzipSync(Buffer.from(Array.from({ length: 4000 }, (_, i) => (i * 37) % 256))));
    const rows = Array.from({ length: 200 }, (_, i) => `${i % 2 ? 'a' : 'b'}\ttext ${i}\n`).join('');
    put('labelled/parts/train.tsv', `label\ttext\n${rows}`);
    put('labelled/parts/test.tsv.gz', gzipSync(`label\ttext\n${rows}`));
    put('labelled/one.tsv', `label\ttext\n${rows}`);
    put('labelled/table.tsv', `class\ttext\n${rows}`);
    put('one/two/three/four/five/deep.txt', prose);
    put('.hidden/plain.txt', prose);
    symlinkSync('/etc', path.join(mine, 'out'));
    symlinkSync('sets/mnist', path.join(mine, 'inside'));
    symlinkSync('..', path.join(mine, 'sets/up'));
    writeFileSync(Buffer.concat([Buffer.from(`${mine}/texts/`), Buffer.from([0xe4, 0x2e, 0x74])]), prose);
    host = await Daemon.start([`--data.mine=${mine}`, '--data.absent=/nonexistent/data']);
});
after(async () => {
    await host?.stop();
    if (mine)
        rmSync(mine, { recursive: true, force: true });
});

async function list(query = '') {
    const reply = await host.get(`/api/v1/data${query}`);
    assert.equal(reply.status, 200, reply.text);
    return reply.json;
}
const entries = async query => Object.fromEntries((await list(query)).roots.flatMap(root => root.entries).map(entry => [entry.path, entry]));
const fits = entry => (entry?.fits ?? []).map(fit => `${fit.dataset} ${fit.split}`);
const almost = entry => (entry?.almost ?? []).map(item => `${item.dataset}: ${item.missing}`).join('; ');

test('each data set is told by its files, and what almost is one says what is missing', real, async () => {
    const all = await list(), found = await entries('?root=mine');
    assert.deepEqual(all.roots.map(root => root.name), ['text', 'mine', 'absent']);
    const pair = ['image_folder standard'];
    const expected = {
        'mine/sets/mnist': ['mnist standard'], 'mine/sets/zipped': ['mnist standard'], 'mine/sets/halved': [],
        'mine/sets/cifar': ['cifar10 standard'], 'mine/sets/undivided': ['cifar10 standard'], 'mine/sets/torn': [],
        'mine/sets/colours': pair, 'mine/colours.tar': pair, 'mine/sets/classes': ['image_folder standard'],
        'mine/ptb': ['ptb standard', 'wikitext2 standard', 'wikitext103 standard'], 'mine/wiki': ['ptb standard', 'wikitext2 standard', 'wikitext103 standard'],
        'mine/labelled/parts': ['text_labels standard'], 'mine/labelled/one.tsv': ['text standard', 'text_labels standard'], 'mine/labelled/table.tsv': ['text standard'],
        'mine/texts/plain.txt': ['text standard'], 'mine/texts/plain.txt.gz': ['text standard'], 'mine/texts/short.txt': [],
        'mine/texts/cut.txt.gz': [], 'mine/texts/packed.txt.xz': [], 'mine/texts/packed.zip': [], 'mine/texts/?': [], 'mine/out': [], 'mine/inside': [], 'mine/sets/up': [],
    };
    assert.deepEqual(Object.fromEntries(Object.keys(found).sort().map(name => [name, fits(found[name])])), Object.fromEntries(Object.keys(expected).sort().map(name => [name, expected[name]])));
    for (const [name, sentence] of [
        ['sets/halved', /^mnist: t10k-labels-idx1-ubyte is missing/], ['sets/torn', /^cifar10: .*not a multiple of a record/],
        ['texts/packed.txt.xz', /^text: .*packed by xz/], ['texts/packed.zip', /^text: .*packed by zip/],
        ['labelled/table.tsv', /^text_labels: .*line 1: there is no column 'label'; the header names class, text/],
        ['texts/short.txt', /^text: .*too small/], ['texts/cut.txt.gz', /^text: .*truncated|unexpected end/]])
        assert.match(almost(found[`mine/${name}`]), sentence);
    assert.match(found['mine/out'].note, /leads outside its data root/);
    assert.match(found['mine/texts/?'].note, /not UTF-8/);
    assert.equal(found['mine/texts/plain.txt'].bytes, prose.length);
    assert.equal(found['mine/ptb'].bytes, 2 * prose.length);
    assert.equal(found['mine/sets/cifar'].bytes, 50 * 3073);
    assert.equal(found['mine/sets/colours'].bytes, null);
    for (const entry of Object.values(found))
        assert.ok(entry.fits.every(fit => fit.checked), entry.path);
    const text = all.roots[0].entries.find(entry => entry.path === 'text/corpus.txt');
    assert.deepEqual(fits(text), ['text standard']);
});

test('a dry run accepts every listed path, and refuses what almost fits', real, async () => {
    const found = await entries('?root=mine');
    const models = { text: { preset: 'gpt_micro' }, image: { preset: 'vit_micro', depth: 1 } };
    const plan = async (dataset, at) => {
        const images = /mnist|cifar|image/.test(dataset);
        const data = { dataset, path: at, ...(images ? {} : { tokenizer: 'bytes' }), ...(dataset === 'image_folder' ? { image_size: 16 } : {}) };
        const model = images ? { ...models.image, ...(dataset === 'mnist' ? {} : { patch: 4 }) } : models.text;
        return host.post('/api/v1/jobs?dry_run=1', { name: 'have', model, data, train: { steps: 2, batch: 2 }, resources: { device: 'cpu', threads: 1 }, diagnostics: { every: 0 } });
    };
    let accepted = 0;
    for (const entry of Object.values(found))
        for (const { dataset } of entry.fits) {
            const reply = await plan(dataset, entry.path);
            assert.equal(reply.status, 200, `${entry.path} ${dataset}: ${reply.text}`);
            assert.equal(reply.json.plan_error, null, `${entry.path} ${dataset}: ${reply.text}`);
            accepted++;
        }
    assert.equal(accepted, 19);
    for (const name of ['sets/halved', 'sets/torn', 'texts/cut.txt.gz']) {
        const entry = found[`mine/${name}`], { dataset } = entry.almost[0];
        const reply = await plan(dataset, entry.path);
        assert.notEqual(reply.json.plan_error ?? reply.json.detail ?? null, null, `${name}: ${reply.text}`);
    }
});

test('a root that is absent says so, and the others are listed', real, async () => {
    const { roots } = await list();
    const absent = roots.find(root => root.name === 'absent');
    assert.match(absent.error, /'absent'.*cannot be opened: No such file/);
    assert.deepEqual(absent.entries, []);
    assert.ok(roots.filter(root => root.name !== 'absent').every(root => root.error === null && root.entries.length > 0));
});

test('depth and number are bounded, and a path descends', real, async () => {
    const whole = (await list('?root=mine')).roots[0];
    assert.equal(whole.truncated, true, 'five folders deep');
    assert.ok(!whole.entries.some(entry => entry.path.includes('deep.txt')));
    const deep = await list('?path=mine/one/two//three/');
    assert.deepEqual(deep.roots[0].entries.map(entry => entry.path), ['mine/one/two/three/four/five/deep.txt']);
    assert.equal(deep.truncated, false);
    assert.deepEqual(Object.keys(await entries('?path=mine/texts/plain.txt')), ['mine/texts/plain.txt']);
    assert.deepEqual(Object.keys(await entries('?root=mine&path=mine/ptb')), ['mine/ptb']);
    for (let i = 0; i < 600; i++)
        put(`many/${i}.log`, prose);
    const many = await list('?path=mine/many');
    assert.equal(many.roots[0].entries.length, 500);
    assert.equal(many.truncated, true);
    rmSync(path.join(mine, 'many'), { recursive: true });
});

test('folders of documents are listed as one set each, and their files are not listed one by one', real, async () => {
    for (let i = 0; i < 9; i++) {
        put(`web/part${i % 2}/${i}.txt`, prose);
        put(`flat/${i}.txt`, prose);
        put(`few/${i % 7}.txt`, prose);
    }
    for (const part of ['train', 'validation', 'test'])
        put(`books/${part}/one.txt`, prose);
    const named = async at => Object.fromEntries(Object.entries(await entries(`?path=mine/${at}`)).map(([name, entry]) => [name, entry.fits.map(fit => fit.dataset)]));
    assert.deepEqual(await named('flat'), { 'mine/flat': ['openwebtext', 'pg19'] });
    assert.deepEqual(await named('books'), { 'mine/books': ['openwebtext', 'pg19'] });
    assert.deepEqual(Object.values(await named('few')), Array(7).fill(['text']));
    for (let i = 9; i < 20; i++)
        put(`web/part${i % 2}/${i}.txt`, prose);
    assert.deepEqual(await named('web'), { 'mine/web': ['openwebtext', 'pg19'] });
    for (const folder of ['web', 'flat', 'few', 'books'])
        rmSync(path.join(mine, folder), { recursive: true });
});

test('a wrong parameter is named', real, async () => {
    for (const [query, sentence] of [
        ['?root=other', /query parameter 'root': no data root named 'other' is configured; there are text, mine, absent/],
        ['?path=other/x', /query parameter 'path': no data root named 'other'/], ['?path=/etc', /query parameter 'path'/],
        ['?path=mine/none', /query parameter 'path': .*none/], ['?path=mine/../etc', /query parameter 'path': .*'\.\.'/],
        ['?path=mine/out', /query parameter 'path': .*leads outside/], ['?path=mine/out/passwd', /query parameter 'path': .*leads outside/],
        ['?root=text&path=mine/ptb', /query parameter 'path' is not below the data root 'text'/], ['?path=mine/%ff', /query parameter 'path' is not UTF-8/],
        ['?depth=9', /unknown query parameter 'depth'/]]) {
        const reply = await host.get(`/api/v1/data${query}`);
        assert.equal(reply.status, 400, `${query}: ${reply.text}`);
        assert.match(reply.json.detail, sentence, query);
    }
});
