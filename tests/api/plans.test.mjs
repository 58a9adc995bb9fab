// What a plan knows of a document before anything runs: the real daemon, its planner and its workers.
import assert from 'node:assert/strict';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { totalmem } from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import zlib from 'node:zlib';
import { build, Daemon } from './lib.mjs';

const skip = existsSync(path.join(build, 'bin/polyd')) && existsSync(path.join(build, 'bin/polyd-worker')) ? false : 'polyd or polyd-worker is not built';
let host;

before(async () => { host = skip ? null : await Daemon.start(); });
after(() => host?.stop());

const put = (name, bytes) => {
    const file = path.join(host.dir, 'text', name);
    mkdirSync(path.dirname(file), { recursive: true });
    writeFileSync(file, bytes);
};

const text = (file, data = {}, train = {}) => ({
    name: 'text', model: { preset: 'gpt_micro', width: 16, depth: 1, heads: 2, context: 16 }, data: { dataset: 'text', path: `text/${file}`, ...data },
    train: { steps: 6, batch: 4, eval_every: 3, ...train }, diagnostics: { every: 0 }, resources: { device: 'cpu', threads: 1 },
});

const dry = async document => (await host.post('/api/v1/jobs?dry_run=1', document)).json;

test('gzipped text is planned and trained as the plain one', { skip, timeout: 120000 }, async () => {
    const words = Array.from({ length: 4000 }, (_, i) => `word${i * i % 97} is followed by café ${i % 13}.\n`).join('');
    put('plain.txt', words);
    put('packed.txt.gz', zlib.gzipSync(words));
    for (const tokenizer of ['bytes', 'chars']) {
        const series = [];
        for (const file of ['plain.txt', 'packed.txt.gz']) {
            const planned = await dry(text(file, { tokenizer }));
            assert.deepEqual([planned.plan_error, planned.warnings], [null, []]);
            const sent = (await host.post('/api/v1/jobs', text(file, { tokenizer }))).json;
            assert.equal((await host.over(sent.id)).state, 'done');
            const points = (await host.get(`/api/v1/runs/${sent.run_ids[0]}/export?format=json&key=loss/val&key=loss/train`)).json;
            series.push({ planned: planned.plan, values: points.map(p => [p.key, p.step, p.value]) });
        }
        assert.ok(series[0].values.length >= 8, tokenizer);
        assert.deepEqual(series[1], series[0], tokenizer);
    }
});

test('a text that polyd generates is planned without files', { skip }, async () => {
    const { document, plan, plan_error, warnings } = await dry(text('', { dataset: 'text_gen', path: undefined }));
    assert.deepEqual([plan_error, warnings, document.data.path, document.data.split.rule], [null, [], null, 'standard']);
    assert.deepEqual([plan.train_samples, plan.val_samples], [62499, 6249]); // windows of 16 bytes
});

test('a file that is not a text gives a warning before and during training', { skip, timeout: 120000 }, async () => {
    put('noise.bin', Buffer.from(Array.from({ length: 20000 }, (_, i) => i * 7919 % 251 ^ i >> 3 & 255)));
    const document = text('noise.bin', { tokenizer: 'chars' });
    const planned = await dry(document);
    assert.equal(planned.plan_error, null);
    assert.deepEqual(planned.warnings.map(w => w.pointer), ['#/data/path']);
    assert.match(planned.warnings[0].detail, /^\d+\.\d % of the text's bytes are not UTF-8: convert the text/);
    const sent = (await host.post('/api/v1/jobs', document)).json;
    await host.over(sent.id);
    const log = (await host.get(`/api/v1/runs/${sent.run_ids[0]}/logs?tail=50`)).text;
    assert.match(log, /event=not_utf8 .*% of the text's bytes are not UTF-8.* bytes=\d+/);
    assert.deepEqual((await dry(text('noise.bin'))).warnings, []); /* bytes are bytes */
});

test('a document that cannot run is refused with the field', { skip, timeout: 120000 }, async () => {
    const jobs = async () => (await host.get('/api/v1/jobs?limit=1')).json.jobs[0]?.id;
    put('some.txt', 'to be or not to be, that is the question. '.repeat(20));
    mkdirSync(path.join(host.dir, 'text/folder'), { recursive: true });
    const digits = (train, more = {}) => ({ name: 'digits', model: { preset: 'vit_micro', patch: 7, depth: 1 }, data: { dataset: 'digits_gen', split: { rule: 'count', train: 256, val: 64 } },
        train: { epochs: 2, ...train }, diagnostics: { every: 0 }, resources: { device: 'cpu', threads: 1, ...more } });
    const before = await jobs();
    for (const [document, pointer, says] of [
        [text('nowhere.txt'), '#/data/path', /cannot open 'text\/nowhere.txt': No such file/],
        [text('folder'), '#/data/path', /'text\/folder' is a folder: set the path of a file in it/],
        [text('some.txt', { tokenizer: 'gpt2_bpe' }), '#/data/tokenizer_path', /cannot open 'text\/gpt2-bpe': No such file.*encoder.json and vocab.bpe.*name their folder/],
        [text('some.txt', { split: { rule: 'count', train: 800, val: 800 } }), '#/data/split', /more bytes are requested than the 840/],
        [text('', { dataset: 'text_gen', path: undefined, split: { rule: 'count', train: 16, val: 100 } }), '#/data/split', /the training part of 'text_gen' is shorter than data.context \+ 1/],
        [digits({ batch: 100000 }), '#/train/batch', /the training set has 256 samples, less than one batch of 100000: reduce train.batch/],
        [digits({ schedule: { warmup_steps: 500 } }), '#/train/schedule/warmup_steps', /the warm-up of 500 steps is longer than the run of 8/],
        [digits({}, { slots: 2 }), '#/resources/slots', /2 cpu slots are requested, this machine has 1/],
    ]) {
        const reply = await host.post('/api/v1/jobs', document);
        assert.equal(reply.status, 422, reply.text);
        assert.deepEqual(reply.json.errors.map(e => e.pointer), [pointer]);
        assert.match(reply.json.errors[0].detail, says);
    }
    assert.equal(await jobs(), before, 'none was kept');
});

test('what was accepted without a plan fails after one attempt if the document or the data are to blame', { skip, timeout: 120000 }, async () => {
    const sent = await host.post('/api/v1/jobs?accept_unplanned=1', text('never.txt'), { headers: { 'idempotency-key': 'never-1' } });
    assert.equal(sent.status, 201, sent.text);
    assert.equal((await host.over(sent.json.id)).state, 'failed');
    const run = (await host.get(`/api/v1/runs/${sent.json.run_ids[0]}`)).json;
    assert.deepEqual([run.attempts, run.reason], [1, "#/data/path: cannot open 'text/never.txt': No such file or directory"]);
    /* acknowledged is acknowledged */
    const again = await host.post('/api/v1/jobs', text('never.txt'), { headers: { 'idempotency-key': 'never-1' } });
    assert.deepEqual([again.status, again.text], [201, sent.text]);
    assert.equal((await host.post('/api/v1/jobs', text('never.txt'))).status, 422);
});

test('a repeat that comes while the first is planned is answered as the first', { skip, timeout: 120000 }, async () => {
    put('brief.txt', 'brief is beautiful. '.repeat(400));
    const document = text('brief.txt', {}, { batch: 3 }), headers = { 'idempotency-key': 'twins' };
    const replies = await Promise.all(Array.from({ length: 6 }, () => host.post('/api/v1/jobs', document, { headers })));
    assert.deepEqual(new Set(replies.map(r => r.status)), new Set([201]));
    assert.equal(new Set(replies.map(r => r.text)).size, 1);
});

test('a data root that is not there yet is no mistake of the document', { skip, timeout: 120000 }, async () => {
    const later = await Daemon.start(['--data.later=/nonexistent-data']);
    try {
        const document = text('x');
        document.data.path = 'later/x.txt';
        const sent = await later.post('/api/v1/jobs', document);
        assert.equal(sent.status, 201, sent.text);
        assert.deepEqual(sent.json.warnings.map(w => w.pointer), ['#/data/path']);
        assert.match(sent.json.warnings[0].detail, /^accepted without a plan: the data root 'later' \(\/nonexistent-data\) cannot be opened: No such file/);
    } finally {
        await later.stop();
    }
});

test('many submissions at once are all planned', { skip, timeout: 120000 }, async () => {
    put('many.txt', 'many hands make light work. '.repeat(400));
    const replies = await Promise.all(Array.from({ length: 24 }, (_, i) => host.post('/api/v1/jobs', text('many.txt', {}, { steps: 1, batch: 4 + i, eval_every: 1 }))));
    for (const reply of replies)
        assert.deepEqual([reply.status, reply.json.warnings], [201, []], reply.text);
    const bad = await Promise.all(Array.from({ length: 24 }, (_, i) => host.post('/api/v1/jobs', text(`gone${i}.txt`))));
    assert.deepEqual(new Set(bad.map(r => r.status)), new Set([422]));
    for (const { json } of replies)
        await host.post(`/api/v1/jobs/${json.id}/cancel`, {});
    for (const { json } of replies)
        await host.over(json.id);
});

test('a plan larger than the machine is said, refused, and planned smaller', { skip, timeout: 120000 }, async () => {
    put('long.txt', 'so much to say, so little time. '.repeat(20000));
    const document = { ...text('long.txt'), model: { preset: 'gpt2_xl' }, train: { steps: 2, batch: 256 } };
    const gb = bytes => (bytes / 1e9).toFixed(1), memory = totalmem();
    const planned = await dry(document);
    assert.equal(planned.plan_error, null);
    assert.ok(planned.plan.total_bytes > memory, 'no machine of this size yet');
    const { accumulation, total_bytes: less } = planned.plan.accumulated;
    const says = `needs ${gb(planned.plan.total_bytes)} GB, this machine has ${gb(memory)} GB; with train.accumulation ${accumulation} it needs ${gb(less)} GB`;
    assert.deepEqual(planned.warnings.filter(w => w.pointer === '#/train/batch').map(w => w.detail), [says]);
    assert.deepEqual(planned.queue, { position: 0, reason: `never fits: ${says}`, devices: [] });
    const refused = await host.post('/api/v1/jobs', document);
    assert.equal(refused.status, 422, refused.text);
    assert.deepEqual(refused.json.errors, [{ pointer: '#/train/batch', detail: says }]);
    const divided = await dry({ ...document, train: { ...document.train, accumulation } });
    assert.equal(divided.plan.total_bytes, less);
    assert.equal((await dry(text('long.txt'))).queue.reason, 'would start at once');
});

test('the layout that the fields tell of a data set is one that polyd reads', { skip, timeout: 60000 }, async () => {
    const { datasets } = (await host.get('/api/v1/fields')).json;
    const layout = Object.fromEntries(datasets.map(d => [d.name, d.layout]));
    for (const d of datasets)
        assert.equal(d.layout !== null, d.available && !d.generated, d.name);
    assert.deepEqual(datasets.filter(d => d.entropy !== null).map(d => [d.name, d.entropy]), [['text_gen', 0.391051258]]);
    /* each name of a file for the parts of a text, as it is told */
    const told = /training file \(([^)]*)\)/.exec(layout.ptb)[1].split(/, | or /), words = 'again and again and again. '.repeat(40);
    assert.equal(told.length, 5);
    for (const [i, name] of told.entries()) {
        put(`parts${i}/${name}`, words);
        put(`parts${i}/${name.replace('train', 'valid')}.gz`, zlib.gzipSync(words));
        const { plan, plan_error } = await dry(text('', { dataset: 'ptb', path: `text/parts${i}` }));
        assert.equal(plan_error, null, name);
        assert.ok(plan.train_samples > 0 && plan.val_samples > 0);
    }
    for (const file of ['train-images-idx3-ubyte', 't10k-labels-idx1-ubyte'])
        assert.ok(layout.mnist.includes(file));
});
