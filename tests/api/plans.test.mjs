// What a plan knows of a document before anything runs: the real daemon, its planner and its workers.
import assert from 'node:assert/strict';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import zlib from 'node:zlib';
import { build, Daemon, sleep } from './lib.mjs';

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

async function over(id) {
    for (let i = 0; i < 1200; i++) {
        const job = (await host.get(`/api/v1/jobs/${id}`)).json;
        if (['done', 'failed', 'cancelled'].includes(job.state))
            return job;
        await sleep(50);
    }
    assert.fail('the job did not end');
}

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
            assert.equal((await over(sent.id)).state, 'done');
            const points = (await host.get(`/api/v1/runs/${sent.run_ids[0]}/export?format=json&key=loss/val&key=loss/train`)).json;
            series.push({ planned: planned.plan, values: points.map(p => [p.key, p.step, p.value]) });
        }
        assert.ok(series[0].values.length >= 8, tokenizer);
        assert.deepEqual(series[1], series[0], tokenizer);
    }
});

test('what is no text is said before and while it is trained', { skip, timeout: 120000 }, async () => {
    put('noise.bin', Buffer.from(Array.from({ length: 20000 }, (_, i) => i * 7919 % 251 ^ i >> 3 & 255)));
    const document = text('noise.bin', { tokenizer: 'chars' });
    const planned = await dry(document);
    assert.equal(planned.plan_error, null);
    assert.deepEqual(planned.warnings.map(w => w.pointer), ['#/data/path']);
    assert.match(planned.warnings[0].detail, /^\d+\.\d % of the text's bytes are not UTF-8: is it text\?/);
    const sent = (await host.post('/api/v1/jobs', document)).json;
    await over(sent.id);
    const log = (await host.get(`/api/v1/runs/${sent.run_ids[0]}/logs?tail=50`)).text;
    assert.match(log, /event=not_utf8 .*% of the text's bytes are not UTF-8.* bytes=\d+/);
    assert.deepEqual((await dry(text('noise.bin'))).warnings, []); /* bytes are bytes */
});
