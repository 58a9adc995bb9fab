// What somebody meets in a first week with curl: the real daemon, with real workers.
import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { build, Daemon, root, sleep } from './lib.mjs';

const program = path.join(build, 'bin/polyd');
const skip = existsSync(program) && existsSync(path.join(build, 'bin/polyd-worker')) ? false : 'polyd or polyd-worker is not built';
let host;

before(async () => { host = skip ? null : await Daemon.start(); });
after(() => host?.stop());

const small = (more = {}, train = {}) => ({
    name: 'small', model: { preset: 'vit_micro', patch: 7, depth: 1 }, data: { dataset: 'digits_gen', split: { rule: 'count', train: 256, val: 64 } },
    train: { batch: 64, ...train }, diagnostics: { every: 0 }, resources: { device: 'cpu', threads: 1 }, ...more,
});

/** Asks for a dry run until its plan, which is kept behind the answer, is the one that judges. */
async function judged(document) {
    for (let i = 0; ; i++) {
        const dry = await host.post('/api/v1/jobs?dry_run=1', document);
        if (i === 100 || dry.json.plan_error?.startsWith('#/'))
            return dry;
        await sleep(50);
    }
}

test('a submission that was acknowledged is answered alike again, whatever a plan has shown since', { skip }, async () => {
    const long = small({ name: 'kept' }, { batch: 32, epochs: 3, schedule: { warmup_steps: 500 } }), headers = { 'idempotency-key': 'kept-1' };
    const first = await host.post('/api/v1/jobs?accept_unplanned=1', long, { headers });
    assert.equal(first.status, 201, first.text);
    const dry = await host.post('/api/v1/jobs?dry_run=1', small({}, { batch: 32, epochs: 3 }));
    assert.equal(dry.json.plan_error, null, dry.text);
    await judged(long);
    assert.equal((await host.post('/api/v1/jobs', long)).status, 422);
    const again = await host.post('/api/v1/jobs', long, { headers });
    assert.equal(again.status, 201, again.text);
    assert.equal(again.headers['idempotency-replayed'], 'true');
    assert.equal(again.text, first.text);
});

test('a schedule that the length of the data cannot carry is refused once a plan knows it', { skip }, async () => {
    const good = await host.post('/api/v1/jobs?dry_run=1', small({}, { epochs: 3 }));
    assert.equal(good.json.plan_error, null, good.text);
    assert.equal(good.json.plan.steps, 12);
    assert.deepEqual(good.json.warnings, []);
    /* the plan is kept, and leaves the schedule out */
    const long = small({}, { epochs: 3, schedule: { warmup_steps: 500 } });
    const dry = await judged(long);
    assert.equal(dry.json.plan, null);
    assert.equal(dry.json.plan_error, '#/train/schedule/warmup_steps: the warm-up of 500 steps is longer than the run of 12');
    const sent = await host.post('/api/v1/jobs', long);
    assert.equal(sent.status, 422, sent.text);
    assert.equal(sent.json.errors[0].pointer, '#/train/schedule/warmup_steps');
    const rare = await host.post('/api/v1/jobs?dry_run=1', small({}, { epochs: 3, eval_every: 1000 }));
    assert.equal(rare.json.plan_error, null);
    assert.deepEqual(rare.json.warnings.map(w => w.pointer), ['#/train/eval_every']);
});

async function over(document) {
    const reply = await host.post('/api/v1/jobs', document);
    assert.equal(reply.status, 201, reply.text);
    const job = await host.over(reply.json.id);
    return { job, runs: (await host.get(`/api/v1/runs?job=${job.id}&order=oldest`)).json.runs };
}

test('a sweep may rank by each key that its runs write, and by no other', { skip, timeout: 120000 }, async () => {
    const document = small({ diagnostics: { every: 4, probe_batch: 8 }, attention: { activation: 'poly', degree: 3, scale: 'learned', scale_share: 'head' } }, { epochs: 2, ema: 0.9 });
    const { runs: [run] } = await over(document);
    const keys = (await host.get(`/api/v1/runs/${run.id}/metrics`)).json.series.map(s => s.key);
    assert.ok(keys.length > 20 && keys.some(key => key.startsWith('scale/c/1/')), keys.join());
    const about = async metric => {
        const sweep = { axes: [{ pointer: '/train/seed', values: [1, 2] }], metric };
        return (await host.post('/api/v1/jobs?dry_run=1', { ...document, sweep })).json.warnings.map(w => w.pointer);
    };
    for (const key of keys)
        assert.deepEqual(await about(key), [], key);
    assert.deepEqual(await about('accuracy'), ['#/sweep/metric']);
});

test('the best run of the table is the run that is registered', { skip, timeout: 120000 }, async () => {
    const sent = await host.post('/api/v1/jobs', small({ trials: 3, register: 'best', sweep: { axes: [{ pointer: '/train/batch', values: [64] }], metric: 'mine/score', mode: 'max' } }, { epochs: 3 }));
    assert.equal(sent.status, 201, sent.text);
    /* the second ends best; the first and the third were the best on their way, and equally good */
    const scores = [[0.9, 0.1], [0.5, 0.6], [0.9, 0.2]];
    for (const [i, id] of sent.json.run_ids.entries()) {
        const points = scores[i].map((value, k) => ({ key: 'mine/score', step: k + 1, value }));
        assert.equal((await host.post(`/api/v1/runs/${id}/metrics`, { points })).status, 200);
    }
    await host.over(sent.json.id);
    const table = (await host.get(`/api/v1/jobs/${sent.json.id}/sweep`)).json;
    const version = (await host.get('/api/v1/models/best/versions/1')).json;
    assert.deepEqual(table.best_run, { run_id: sent.json.run_ids[0], point: 0, value: 0.9 });
    assert.equal(version.run_id, table.best_run.run_id);
    for (const value of ['last', 'min', 'max'])
        assert.deepEqual((await host.get(`/api/v1/jobs/${sent.json.id}/sweep?value=${value}`)).json.best_run, table.best_run);
});

test('reasons stay: of a cancel while the run works, of a failure in its job', { skip, timeout: 120000 }, async () => {
    const long = { epochs: 100000 };
    const sent = (await host.post('/api/v1/jobs', small({}, long))).json;
    for (let i = 0; ; i++) {
        const run = (await host.get(`/api/v1/runs/${sent.run_ids[0]}`)).json;
        if (run.state === 'running' && run.step > 0)
            break;
        assert.ok(i < 600, `the run stays ${run.state}`);
        await sleep(50);
    }
    assert.equal((await host.post(`/api/v1/jobs/${sent.id}/cancel`, { reason: 'wrong data' })).status, 200);
    const cancelled = await host.over(sent.id);
    assert.deepEqual([cancelled.state, cancelled.reason], ['cancelled', 'wrong data']);
    const run = (await host.get(`/api/v1/runs/${sent.run_ids[0]}`)).json;
    assert.deepEqual([run.outcome, run.reason], ['cancelled', 'wrong data']);
    const limited = more => small({ ...more, resources: { device: 'cpu', threads: 1, time_limit_s: 1 } }, long);
    const one = await over(limited());
    assert.deepEqual([one.job.state, one.job.reason], ['failed', 'time limit']);
    const two = await over(limited({ trials: 2 }));
    assert.equal(two.job.reason, `2 of 2 runs failed; run ${two.runs[0].id}: time limit`);
    const { jobs } = (await host.get('/api/v1/jobs?state=failed')).json;
    assert.ok(jobs.length >= 2 && jobs.every(job => job.reason !== ''));
});

test('a run has started when its first attempt did, before its first point', { skip, timeout: 120000 }, async () => {
    const { runs } = await over(small({ trials: 2 }, { epochs: 2 }));
    for (const { id } of runs) {
        const run = (await host.get(`/api/v1/runs/${id}`)).json;
        assert.equal(run.started, run.attempt_list[0].started);
        const { series } = (await host.get(`/api/v1/runs/${id}/series?key=loss/train&buckets=1000`)).json;
        assert.ok(series.length, 'a series');
    }
    const reply = await host.get(`/api/v1/compare/series?${runs.map(r => `run=${r.id}`).join('&')}&key=loss/train&x=time&buckets=1000`);
    assert.equal(reply.status, 200, reply.text);
    const text = JSON.stringify(reply.json), xs = [...text.matchAll(/"x":(-?[\d.e-]+)/g)].map(m => Number(m[1]));
    assert.ok(xs.length > 4 && xs.every(x => x >= 0), text);
});

test('a run tells how long it worked, without waiting and pauses', { skip, timeout: 120000 }, async () => {
    const sent = (await host.post('/api/v1/jobs', small({}, { epochs: 100000 }))).json;
    const read = async () => (await host.get(`/api/v1/runs/${sent.run_ids[0]}`)).json;
    const until = async right => {
        for (let i = 0; ; i++) {
            const run = await read();
            if (right(run))
                return run;
            assert.ok(i < 1200, `${run.state}, used ${run.used_s} s`);
            await sleep(25);
        }
    };
    const worked = run => run.attempt_list.reduce((sum, a) => sum + (Date.parse(a.ended ?? new Date().toISOString()) - Date.parse(a.created)) / 1000, 0);
    const first = await until(run => run.state === 'running' && run.used_s > .3); /* it grows while the run works */
    assert.ok(Math.abs(first.used_s - worked(first)) < .4, `${first.used_s} s of ${worked(first)} s`);
    await host.post(`/api/v1/jobs/${sent.id}/pause`, {});
    const paused = await until(run => run.state === 'paused' && run.attempt_list[0].ended);
    await sleep(700); /* what must not count */
    assert.equal((await read()).used_s, paused.used_s);
    await host.post(`/api/v1/jobs/${sent.id}/resume`, {});
    await until(run => run.used_s > paused.used_s + .2);
    await host.post(`/api/v1/jobs/${sent.id}/cancel`, {});
    await host.over(sent.id);
    const run = await read();
    assert.ok(Math.abs(run.used_s - worked(run)) < .1, `${run.used_s} s of ${worked(run)} s`);
    assert.ok(run.used_s < (Date.parse(run.ended) - Date.parse(run.started)) / 1000 - .5);
    assert.equal((await host.get(`/api/v1/runs?job=${sent.id}`)).json.runs[0].used_s, run.used_s);
});

test('a curve by epoch of runs whose length is given in steps says so', { skip, timeout: 120000 }, async () => {
    const { job } = await over(small({ trials: 2 }, { steps: 9 }));
    const curve = await host.get(`/api/v1/jobs/${job.id}/sweep/curves?key=loss/train&x=epoch`);
    assert.equal(curve.status, 422, curve.text);
    assert.match(curve.json.detail, /^run \d+ has no epochs: its length is given in steps$/);
});

test('a run tells when it will end, and its best value with key and step', { skip, timeout: 120000 }, async () => {
    const sent = (await host.post('/api/v1/jobs', small({}, { epochs: 100000, eval_every: 4 }))).json;
    const id = sent.run_ids[0];
    let run, now;
    for (let i = 0, before; ; i++) {
        now = Date.now();
        run = (await host.get(`/api/v1/runs/${id}`)).json;
        /* The daemon measures the pace up to the last progress that it knows of: it has just come when the step is a new one. */
        if (run.eta_s !== null && run.best && before !== undefined && run.step !== before)
            break;
        before = run.step;
        assert.ok(i < 1200, `${run.state}, step ${run.step}`);
        await sleep(50);
    }
    /* what is left, at the pace so far: within a factor of two, since both are read at different moments */
    const taken = (now - Date.parse(run.attempt_list[0].started)) / 1000, due = taken / run.step * (run.total_steps - run.step);
    assert.ok(run.eta_s > due / 2 && run.eta_s < due * 2, `${run.eta_s} s, expected about ${due} s`);
    assert.equal(typeof (await host.get(`/api/v1/runs?job=${sent.id}`)).json.runs[0].eta_s, 'number');
    /* a client gives the run no value of its own keys */
    assert.equal((await host.post(`/api/v1/runs/${id}/metrics`, { points: [{ key: 'acc/val', step: 0, value: 99 }] })).status, 409);
    await host.post(`/api/v1/jobs/${sent.id}/cancel`, {});
    await host.over(sent.id);
    run = (await host.get(`/api/v1/runs/${id}`)).json;
    assert.equal(run.eta_s, null);
    const points = (await host.get(`/api/v1/runs/${id}/export?format=json&key=acc/val`)).json;
    const best = points.filter(p => p.attempt > 0).reduce((a, b) => (b.value > a.value ? b : a));
    assert.deepEqual(run.best, { key: 'acc/val', value: best.value, step: best.step });
    const none = (await host.post('/api/v1/jobs', small({}, { epochs: 1, eval_every: 1 }))).json;
    await host.over(none.id);
    const ended = (await host.get(`/api/v1/runs/${none.run_ids[0]}`)).json;
    assert.equal(ended.best.key, 'acc/val');
    assert.ok(ended.best.step >= 1 && ended.best.step <= 4);
});

test('messages name the field and the remedy', { skip, timeout: 60000 }, async () => {
    const index = await host.get('/api/v1');
    assert.equal(index.status, 200);
    assert.deepEqual([index.json.contract, index.json.fields], ['/openapi.yaml', '/api/v1/fields']);
    assert.ok(index.json.routes.some(r => r.method === 'POST' && r.path === '/api/v1/jobs' && r.operation === 'api_job_submit'));
    const words = await host.post('/api/v1/jobs', { ...small(), num_train_epochs: 3, model: { preset: 'vit_micro', layers: 2 } });
    assert.deepEqual(words.json.errors.filter(e => /unknown/.test(e.detail)).sort((a, b) => a.pointer < b.pointer ? -1 : 1), [
        { pointer: '#/model/layers', detail: 'unknown key; did you mean /model/depth?' }, { pointer: '#/num_train_epochs', detail: 'unknown key; did you mean /train/epochs?' }]);
    const none = await host.post('/api/v1/models/shakespeare/versions', { run_id: '9999' });
    assert.equal(none.status, 422);
    assert.equal(none.json.detail, 'run_id: there is no run 9999');
    const model = await host.post('/v1/completions', { model: 'shak', prompt: 'x' });
    assert.equal(model.status, 404);
    assert.match(model.json.error.message, /^model 'shak' is not loaded; GET \/api\/v1\/models lists the models, and POST \/api\/v1\/models\/NAME\/versions\/N\/load loads it$/);
    const { runs: [run] } = await over(small({}, { epochs: 1 }));
    const list = await host.post(`/api/v1/runs/${run.id}/metrics`, [{ key: 'a', step: 1, value: 1 }]);
    assert.equal(list.status, 422, list.text);
    assert.match(list.text, /must be an object, \{\\"points\\":\[\{.*\], not an array|must be an object, .* not an array/);
    /* codes of a list that users do not have */
    const { fields } = (await host.get('/api/v1/fields')).json;
    assert.ok(fields.every(f => !/\bM\d+\b/.test(f.meaning)));
    /* references name sections of documents that are in the tree */
    const slug = heading => heading.toLowerCase().replace(/[^\p{L}\p{N} _²-]/gu, '').replace(/ /g, '-');
    const sections = file => [...readFileSync(path.join(root, file), 'utf8').matchAll(/^#+ (.*)$/gm)].map(([, heading]) => slug(heading));
    const references = fields.flatMap(f => f.reference ?? []);
    assert.ok(references.length > 80);
    assert.deepEqual(references.filter(r => !sections(r.split('#')[0]).includes(r.split('#')[1])), []);
    assert.doesNotMatch(readFileSync(path.join(root, 'README.md'), 'utf8'), /\bM\d{1,3}\b/);
    assert.doesNotMatch(host.stderr, /^<\d>/m);
    assert.match(host.stderr, /^20\d\d-\S+ polyd: listening=/m);
});
