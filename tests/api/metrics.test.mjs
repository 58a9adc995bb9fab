// The catalogue of metrics: served as the contract says, and whole: every key that a run writes has its row.
import assert from 'node:assert/strict';
import { readFileSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { Daemon, root, sleep } from './lib.mjs';

let host, metrics;
before(async () => {
    host = await Daemon.start();
    metrics = (await host.get('/api/v1/metrics/catalogue')).json.metrics;
});
after(() => host?.stop());

/** What a row's key looks like in a run. */
const shape = key => new RegExp(`^${key.replace(/[.]/g, '\\.').replace(/\[(.*)\]$/, '($1)?').replaceAll(/<(layer|head|position)>/g, '[1-9]\\d*').replace('<name>', '[^/]+').replace('<rank>', '\\d+')}$`);
const rowsOf = key => metrics.filter(metric => shape(metric.key).test(key));

test('both tables have a tag, and are not sent again to who has them', async () => {
    for (const table of ['metrics/catalogue', 'fields']) {
        const one = await host.get(`/api/v1/${table}`);
        assert.equal(one.status, 200);
        assert.match(one.headers.etag, /^"[0-9a-f-]+"$/);
        assert.equal(one.headers['cache-control'], 'no-cache');
        const again = await host.get(`/api/v1/${table}`, { headers: { 'If-None-Match': one.headers.etag } });
        assert.deepEqual([again.status, again.text, again.headers.etag], [304, '', one.headers.etag]);
        assert.equal((await host.get(`/api/v1/${table}`, { headers: { 'If-None-Match': '"other"' } })).status, 200);
    }
    assert.equal((await host.get('/api/v1/metrics/catalogue?colour=red')).status, 400);
    assert.equal((await host.post('/api/v1/metrics/catalogue', {})).status, 405);
});

async function seriesOf(document) {
    const reply = await host.post('/api/v1/jobs', document);
    assert.equal(reply.status, 201, reply.text);
    const [run] = reply.json.run_ids;
    for (let i = 0; i < 1200; i++) {
        const now = (await host.get(`/api/v1/runs/${run}`)).json;
        if (now.state === 'ended') {
            assert.equal(now.outcome, 'succeeded', now.reason);
            return (await host.get(`/api/v1/runs/${run}/metrics`)).json.series.map(s => s.key);
        }
        await sleep(50);
    }
    throw new Error(`run ${run} does not end`);
}

test('every key that a run writes has one row, and the run refuses it from a client', { timeout: 120000 }, async () => {
    const own = { diagnostics: { every: 2, probe_batch: 4 }, resources: { device: 'cpu', threads: 1 } };
    const pictures = await seriesOf({
        ...own, name: 'pictures', model: { preset: 'vit_micro', patch: 14, depth: 2 }, attention: { activation: 'poly', degree: 3, scale: 'learned', scale_share: 'head' },
        data: { dataset: 'digits_gen', split: { rule: 'count', train: 64, val: 32 } }, train: { steps: 6, batch: 32, eval_every: 2, ema: 0.9 },
    });
    for (const key of ['loss/val_ema', 'acc/val', 'scale/c/2/1', 'attn/jac_q_fro/1', 'steps_per_epoch', 'mem/peak'])
        assert.ok(pictures.includes(key), `${key} of ${pictures}`);
    for (const key of pictures) {
        assert.equal(rowsOf(key).length, 1, key);
        assert.equal(rowsOf(key)[0].writer, 'worker', key);
    }
    const { runs } = (await host.get('/api/v1/runs')).json;
    for (const key of pictures)
        assert.equal((await host.post(`/api/v1/runs/${runs[0].id}/metrics`, { points: [{ key, step: 99, value: 1 }] })).status, 409, key);
});

test('the sources write no key without a row, and every row is written', () => {
    const files = folder => readdirSync(path.join(root, folder)).filter(name => name.endsWith('.c')).map(name => readFileSync(path.join(root, folder, name), 'utf8')).join('\n');
    const train = files('daemon/worker/train'), task = files('daemon/worker/task'), attempts = files('daemon/polyd/supervise/attempts');
    /* The argument after the reporter: a literal, or the keys of the probe. */
    const written = [...train.matchAll(/reporter_push\(\s*[\w>-]+\s*,\s*([^;]*?);/gs)].flatMap(([, rest]) => [...rest.matchAll(/"([^"]+)"/g)].map(([, key]) => key));
    /* What a task measures, by the samples that are scored, and the unit of its throughput. */
    for (const [, list] of task.matchAll(/\.steps = \{(.*?)\},\n/gs))
        written.push(...[...list.matchAll(/"([^"]+)"/g)].map(([, key]) => key));
    /* An equation's errors are of its two grids: it has no test part and no texts. */
    const ofGrids = name => /^r(mae|rmse)$/.test(name);
    for (const [, name] of task.matchAll(/\bTASK_NUMBER\("(\w+)"\)/g))
        for (const split of ofGrids(name) ? ['val', 'train'] : ['val', 'test', 'train'])
            written.push(`${name}/${split}`, `${name}/${split}_ema`);
    /* Of zero-shot texts, and by position: the key's beginning, behind which a name and a position follow. */
    for (const [, name] of task.matchAll(/\bTASK_NUMBER\("(\w+)"\)/g))
        if (!name.startsWith('acc') && !ofGrids(name))
            written.push(`${name}/eval/ptb`, `${name}/eval_ema/ptb`);
    for (const [, base] of task.matchAll(/"(\w+\/\w+_at\/)"/g))
        written.push(base.includes('/eval') ? `${base}ptb/64` : `${base}64`);
    written.push(...[...task.matchAll(/\.throughput = "(\w+)"/g)].map(([, key]) => key));
    assert.ok(written.length > 20, `${written}`);
    const probed = /stat_keys\[STATS\] = \{([^}]*)\}/.exec(train)[1].match(/"[^"]+"/g).map(key => key.slice(1, -1));
    assert.equal(probed.length, 5);
    assert.match(train, /\? "scale\/c" : stat_keys\[k\]/);
    for (const base of [...probed, 'scale/c'])
        written.push(`${base}/1`, `${base}/1/1`);
    written.push('act/rms/1', ...[...files('daemon/worker/kinds').matchAll(/"(check\/\w+)"/g)].map(([, key]) => key));
    /* Of landmarks and of formulas: keys that are put together by layer and head. */
    for (const [, key] of train.matchAll(/"((?:nystrom|formula)\w*(?:\/\w+|\/%s)?(?:\/%zu)+)"/g))
        written.push(key.replaceAll('%s', 'a').replaceAll('%zu', '1'));
    /* Statistics of gradients by group of weights, and of attention by layer and head. */
    for (const [, list] of train.matchAll(/number_keys\[NUMBERS\] = \{([^}]*)\}/g))
        for (const [, key] of list.matchAll(/"([^"]+)"/g))
            written.push(...key.startsWith('grad/') ? ['q', 'k', 'v', 'o', '1', '2'].map(w => `${key}/w_${w}`) : [`${key}/1`, `${key}/1/1`]);
    assert.match(attempts, /"system\/gpu\.%d\/%s", rank, what\)/);
    for (const [, what] of attempts.matchAll(/\badd\(u, a, k, "(\w+)"/g))
        written.push(`system/gpu.0/${what}`);
    for (const key of written)
        assert.equal(rowsOf(key).length, 1, key);
    for (const metric of metrics)
        assert.ok(written.some(key => shape(metric.key).test(key)), metric.key);
});
