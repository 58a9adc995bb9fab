// Results over several runs: sweeps, trials, groups, comparison, aggregation.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { Host, root, submit, tinyJob } from './lib.mjs';
import { student } from './numbers.mjs';

const DIVERGED = 1;
const FAILED = 2;
const k = [0.01, 1, 100];
let host;
let sweep;

const ingest = (run, key, values, gap = 10) =>
    host.worker(run, values.map((value, i) => ({ key, step: (i + 1) * gap, value, time: Date.now() / 1000 + i })));
const end = async (run, outcome = 0) => {
    await host.tell(`start ${run}`);
    await host.tell(`end ${run} ${outcome}`);
};
const close = (got, wanted) => assert.ok(Math.abs(got - wanted) < 1e-9, `${got} instead of ${wanted}`);
const sd = list => {
    const mean = list.reduce((a, b) => a + b, 0) / list.length;
    return Math.sqrt(list.reduce((a, b) => a + (b - mean) ** 2, 0) / (list.length - 1));
};

/* 3 combinations of 3 trials: runs 1..9. Combination 0: two succeed, one diverges; 1: all succeed; 2: one
 * succeeds, one fails, one is still queued. */
const accuracy = { 1: [0.1, 0.5], 2: [0.2, 0.7], 3: [0.9, 0.99], 4: [0.5, 0.80], 5: [0.5, 0.90], 6: [0.5, 0.85], 7: [0.3, 0.4] };

before(async () => {
    host = await Host.start();
    sweep = await submit(host, {
        name: 'k sweep', experiment: 'E01', trials: 3, attention: { activation: 'poly', scale: 'k' }, train: { epochs: 2, seed: 5 },
        tags: { arm: 'cubic' },
        sweep: { axes: [{ pointer: '/attention/k', log: [0.01, 100, 3] }], metric: 'acc/val', mode: 'max', concurrency: 2 },
    });
    for (const [run, values] of Object.entries(accuracy))
        await ingest(run, 'acc/val', values);
    for (const run of [1, 2, 4, 5, 6, 7])
        await end(run);
    await end(3, DIVERGED);
    await end(8, FAILED);
});
after(() => host.stop());

test('a job of several runs tells its sweep, its runs their place and seed', async () => {
    assert.deepEqual(sweep.sweep, { method: 'grid', axes: [{ pointer: '/attention/k', log: [0.01, 100, 3] }], points: 3, trials: 3, concurrency: 2, metric: 'acc/val', mode: 'max' });
    assert.deepEqual(sweep.runs, { total: 9, made: 9, ended: 0, failed: 0, deleted: 0 });
    const runs = (await host.get('/api/v1/runs?job=1&order=oldest')).json.runs;
    assert.deepEqual(runs.map(r => [r.index, r.point, r.trial, r.seed, r.sweep['/attention/k']]),
        [...Array(9)].map((_, n) => [n, Math.floor(n / 3), n % 3, 5 + n % 3, k[Math.floor(n / 3)]]));
    assert.equal(new Set(runs.map(r => r.config_digest)).size, 9);
    const full = (await host.get('/api/v1/runs/5')).json;
    assert.equal(full.document.attention.k, 1);
    assert.equal(full.document.train.seed, 6);
    assert.equal(full.document.trials, 1);
});

function wantInterval(got, differences) {
    const n = differences.length, mean = differences.reduce((a, b) => a + b, 0) / n, half = n > 1 ? student(n - 1) * sd(differences) / Math.sqrt(n) : 0;
    assert.equal(got.n, n);
    close(got.mean, mean);
    if (n < 2)
        return assert.deepEqual([got.sd, got.low, got.high], [null, null, null]);
    close(got.sd, sd(differences));
    assert.ok(Math.abs(got.low - (mean - half)) < 2e-5 * half && Math.abs(got.high - (mean + half)) < 2e-5 * half, `${got.low}..${got.high}, expected ${mean - half}..${mean + half}`);
}

test('the differences to another combination are those of equal seeds, with an interval', async () => {
    const { table } = (await host.get('/api/v1/jobs/1/sweep?baseline=1')).json;
    wantInterval(table[0].paired['acc/val'], [0.5 - 0.8, 0.7 - 0.9]); // seed 7 diverged
    assert.equal(table[1].paired, undefined);
    wantInterval(table[2].paired['acc/val'], [0.4 - 0.8]);
    assert.equal((await host.get('/api/v1/jobs/1/sweep')).json.table[0].paired, undefined);
    // The baseline need not stand on the page.
    const page = (await host.get('/api/v1/jobs/1/sweep?baseline=2&limit=1&metric=acc/val&metric=loss/val')).json.table;
    wantInterval(page[0].paired['acc/val'], [0.5 - 0.4]);
    assert.deepEqual(page[0].paired['loss/val'], { n: 0, mean: null, sd: null, low: null, high: null });
    const wrong = await host.get('/api/v1/jobs/1/sweep?baseline=3');
    assert.deepEqual([wrong.status, wrong.json.detail], [422, 'combination 3 has no runs']);
    assert.equal((await host.get('/api/v1/jobs/1/sweep?baseline=x')).status, 400);
});

test('the table has a row for each combination; only runs that succeeded are averaged', async () => {
    const page = (await host.get('/api/v1/jobs/1/sweep?metric=acc/val&metric=loss/val&runs=1')).json;
    assert.deepEqual(page.table.map(row => row.values['/attention/k']), k);
    assert.deepEqual(page.table.map(row => row.runs), [
        { total: 3, open: 0, succeeded: 2, diverged: 1, failed: 0, cancelled: 0, lost: 0 },
        { total: 3, open: 0, succeeded: 3, diverged: 0, failed: 0, cancelled: 0, lost: 0 },
        { total: 3, open: 1, succeeded: 1, diverged: 0, failed: 1, cancelled: 0, lost: 0 }]);
    const [zero, one, two] = page.table.map(row => row.metrics['acc/val']);
    close(zero.mean, 0.6);
    close(zero.sd, sd([0.5, 0.7]));
    close(one.mean, 0.85);
    close(one.sd, sd([0.8, 0.9, 0.85]));
    assert.deepEqual([one.n, one.min, one.max, one.missing], [3, 0.8, 0.9, 0]);
    assert.deepEqual(two, { n: 1, missing: 0, mean: 0.4, sd: null, min: 0.4, max: 0.4 });
    assert.deepEqual(page.table[0].metrics['loss/val'], { n: 0, missing: 2, mean: null, sd: null, min: null, max: null });
    assert.deepEqual([page.best.point, page.best.values, page.best.value.n], [1, { '/attention/k': 1 }, 3]);
    assert.deepEqual(page.best_run, { run_id: '5', point: 1, value: 0.9 });
    assert.deepEqual(page.table[0].trials.map(t => [t.run_id, t.trial, t.seed, t.outcome, t.metrics['acc/val']]),
        [['1', 0, 5, 'succeeded', 0.5], ['2', 1, 6, 'succeeded', 0.7], ['3', 2, 7, 'diverged', 0.99]]);
    assert.deepEqual([page.runs.planned, page.runs.made, page.runs.ended, page.runs.queued, page.runs.diverged, page.runs.failed], [9, 9, 8, 1, 1, 1]);
    assert.equal(page.next, null);
});

test('the table is paged by combinations, and tells the least or greatest value on request', async () => {
    const first = await host.get('/api/v1/jobs/1/sweep?limit=2&value=min');
    assert.deepEqual(first.json.table.map(row => [row.point, row.metrics['acc/val'].min]), [[0, 0.1], [1, 0.5]]);
    const second = (await host.get(/<([^>]*)>/.exec(first.headers.link)[1])).json;
    assert.deepEqual(second.table.map(row => row.point), [2]);
    assert.equal(second.next, null);
    assert.equal((await host.get(`/api/v1/jobs/2/sweep?cursor=${first.json.next}`)).status, 400);
    for (const query of ['value=mean', 'limit=0', 'metric=', 'metrics=x', 'open=maybe'])
        assert.equal((await host.get(`/api/v1/jobs/1/sweep?${query}`)).status, 400, query);
    assert.equal((await host.get('/api/v1/jobs/77/sweep')).status, 404);
});

test('curves: trials aligned on step or epoch, mean and deviation in each bucket', async () => {
    const reply = (await host.get('/api/v1/jobs/1/sweep/curves?key=acc/val&point=0&point=1&buckets=100')).json;
    assert.deepEqual(reply.curves.map(c => c.point), [0, 1]);
    assert.deepEqual(reply.curves[0].data.map(p => [p.x, p.n]), [[10, 2], [20, 2]]);
    close(reply.curves[0].data[0].mean, 0.15);
    close(reply.curves[0].data[1].sd, sd([0.5, 0.7]));
    assert.equal(reply.curves[1].data[1].n, 3);
    assert.deepEqual([reply.curves[1].data[1].min, reply.curves[1].data[1].max], [0.8, 0.9]);
    const one = (await host.get('/api/v1/jobs/1/sweep/curves?key=acc/val&point=0&buckets=1')).json.curves[0].data;
    assert.equal(one.length, 1);
    close(one[0].mean, ((0.1 + 0.5) / 2 + (0.2 + 0.7) / 2) / 2);
    assert.deepEqual([one[0].min, one[0].max], [0.1, 0.7]);
    const time = (await host.get('/api/v1/jobs/1/sweep/curves?key=acc/val&point=1&x=time&buckets=50')).json.curves[0].data;
    assert.equal(time.reduce((n, p) => n + p.n, 0), 6);
    /* No worker told how many steps an epoch has; the document names epochs. */
    const unknown = await host.get('/api/v1/jobs/1/sweep/curves?key=acc/val&x=epoch');
    assert.equal(unknown.status, 422);
    assert.match(unknown.json.detail, /^run \d+ has not reported yet how many steps an epoch has$/);
    for (const query of ['', 'key=', 'key=a&x=days', 'key=a&buckets=0', 'key=a&point=-1', 'key=a&color=1'])
        assert.equal((await host.get(`/api/v1/jobs/1/sweep/curves?${query}`)).status, 400, query);
    assert.equal((await host.get('/api/v1/jobs/77/sweep/curves?key=a')).status, 404);
});

test('the sweep as CSV: table, runs, curves', async () => {
    const table = await host.get('/api/v1/jobs/1/sweep/export');
    assert.match(table.headers['content-disposition'], /sweep-1-table\.csv/);
    const lines = table.text.trim().split('\n');
    assert.equal(lines[0], 'point,/attention/k,runs,open,succeeded,diverged,failed,cancelled,lost,acc/val mean,acc/val sd,acc/val n,acc/val min,acc/val max');
    assert.equal(lines.length, 4);
    assert.match(lines[1], /^0,0\.01,3,0,2,1,0,0,0,0\.6,/);
    assert.equal(lines[3], '2,100,3,1,1,0,1,0,0,0.4,,1,0.4,0.4');
    const runs = (await host.get('/api/v1/jobs/1/sweep/export?what=runs')).text.trim().split('\n');
    assert.equal(runs[0], 'point,/attention/k,trial,run,seed,state,outcome,acc/val');
    assert.deepEqual([runs[1], runs[9]], ['0,0.01,0,1,5,ended,succeeded,0.5', '2,100,2,9,7,queued,,']);
    const curves = (await host.get('/api/v1/jobs/1/sweep/export?what=curves&key=acc/val&point=2')).text.trim().split('\n');
    assert.deepEqual(curves, ['point,/attention/k,step,n,mean,sd,min,max,nonfinite,metric', '2,100,10,1,0.3,,0.3,0.3,0,acc/val', '2,100,20,1,0.4,,0.4,0.4,0,acc/val']);
    for (const query of ['what=all', 'what=table&key=a', 'what=curves'])
        assert.equal((await host.get(`/api/v1/jobs/1/sweep/export?${query}`)).status, 400, query);
    assert.equal((await host.get('/api/v1/jobs/77/sweep/export')).status, 404);
});

test('a dry run shows the expansion and keeps nothing', async () => {
    const reply = await host.post('/api/v1/jobs?dry_run=1', tinyJob({ trials: 2, sweep: { method: 'random', samples: 60, seed: 3, axes: [{ pointer: '/train/optimizer/lr', loguniform: [1e-4, 1e-1] }] } }));
    assert.equal(reply.status, 200, reply.text);
    assert.deepEqual([reply.json.runs, reply.json.points, reply.json.trials, reply.json.expansion.length], [120, 60, 2, 100]);
    const [a, b, c] = reply.json.expansion;
    assert.deepEqual([a.seed, b.seed, c.seed, a.trial, b.trial, c.point], [0, 1, 0, 0, 1, 1]);
    assert.deepEqual(a.values, b.values);
    assert.notDeepEqual(a.values, c.values);
    assert.equal((await host.get('/api/v1/jobs')).json.jobs.length, 1);
});

test('jobs of several runs are listed by themselves', async () => {
    await submit(host, { name: 'alone', tags: { arm: 'plain' } });
    assert.deepEqual((await host.get('/api/v1/jobs?sweep=1')).json.jobs.map(job => job.name), ['k sweep']);
    assert.equal((await host.get('/api/v1/jobs')).json.jobs.find(job => job.name === 'alone').sweep, null);
});

test('comparison: fields that differ, defaults, what was reached', async () => {
    const reply = (await host.get('/api/v1/compare?run=1&run=4&run=10')).json;
    assert.deepEqual(reply.runs.map(r => r.id), ['1', '4', '10']);
    const field = pointer => reply.fields.find(f => f.pointer === pointer);
    assert.deepEqual(field('/attention/k').values, [0.01, 1, null]);
    assert.deepEqual(field('/attention/k').named, [true, true, false]);
    assert.deepEqual(field('/attention/activation').values, ['poly', 'poly', 'softmax']);
    assert.deepEqual([field('/attention/activation').default, field('/attention/activation').named], ['softmax', [true, true, false]]);
    assert.equal(field('/train/batch'), undefined);
    assert.ok(reply.fields.every(f => f.differs) && reply.same > 50 && reply.differing === reply.fields.length);
    const metric = reply.metrics.find(m => m.key === 'acc/val');
    assert.deepEqual(metric.runs, [{ last: 0.5, min: 0.1, max: 0.5, step: 20, count: 2 }, { last: 0.8, min: 0.5, max: 0.8, step: 20, count: 2 }, null]);
    const all = (await host.get('/api/v1/compare?run=1&run=4&all=1&metric=none')).json;
    assert.equal(all.fields.length, all.same + all.differing);
    assert.deepEqual(all.metrics, [{ key: 'none', runs: [null, null] }]);
    assert.deepEqual(all.fields.filter(f => f.differs).map(f => f.pointer), ['/attention/c0', '/attention/k']);
    for (const query of ['', 'run=x', 'run=1&colour=2', [...Array(129)].map(() => 'run=1').join('&')])
        assert.equal((await host.get(`/api/v1/compare?${query}`)).status, 400, query);
    assert.equal((await host.get('/api/v1/compare?run=1&run=99')).status, 404);
});

test('comparison: a run from before a field has the value that was in force then', async () => {
    const kept = path.join(root, 'tests/train/schema1/digits.json');
    const document = JSON.parse(readFileSync(kept, 'utf8'));
    assert.ok(!('gelu' in document.model) && !('split_seed' in document.data)); /* what schema 2 brought */
    const own = await Host.start();
    await own.tell(`kept ${kept}`);
    const sent = (more = {}) => submit(own, { ...document, schema: 2, model: { ...document.model, gelu: 'exact' }, data: { ...document.data, split_seed: null }, ...more });
    await sent();
    await sent({ model: { ...document.model, gelu: 'tanh' } });
    const compare = async (...runs) => (await own.get(`/api/v1/compare?${runs.map(id => `run=${id}`).join('&')}&all=1`)).json;
    const same = await compare(1, 2);
    assert.deepEqual(same.fields.filter(f => f.differs).map(f => f.pointer), []);
    assert.deepEqual(same.fields.find(f => f.pointer === '/model/gelu').values, ['exact', 'exact']);
    assert.deepEqual((await compare(1, 3)).fields.filter(f => f.differs).map(f => [f.pointer, ...f.values]), [['/model/gelu', 'exact', 'tanh']]);
    assert.match((await own.get('/api/v1/compare/export?run=1&run=3')).text, /^field,default,run 1,run 3\n\/model\/gelu,[a-z]*,exact,tanh\n$/);
    await own.stop();
});

test('comparison: series of several runs on one axis, and downloads', async () => {
    const reply = (await host.get('/api/v1/compare/series?run=1&run=4&key=acc/val&key=none')).json;
    assert.deepEqual(reply.series[0].runs[0].data.map(p => [p.x, p.mean, p.count]), [[10, 0.1, 1], [20, 0.5, 1]]);
    assert.deepEqual(reply.series[1].runs.map(r => r.data), [[], []]);
    const fields = (await host.get('/api/v1/compare/export?run=1&run=4')).text.trim().split('\n');
    assert.deepEqual(fields, ['field,default,run 1,run 4', '/attention/c0,,100,1', '/attention/k,null,0.01,1']);
    const other = (await host.get('/api/v1/compare/export?run=1&run=10')).text;
    assert.match(other, /^\/attention\/activation,softmax,poly,softmax$/m);
    const metrics = (await host.get('/api/v1/compare/export?run=1&run=10&what=metrics&metric=acc/val')).text.trim().split('\n');
    assert.deepEqual(metrics, ['metric,run 1 last,run 1 min,run 1 max,run 10 last,run 10 min,run 10 max', 'acc/val,0.5,0.1,0.5,,,']);
    const series = (await host.get('/api/v1/compare/export?run=4&what=series&key=acc/val')).text.trim().split('\n');
    assert.deepEqual(series, ['key,run,step,mean,min,max,count,nonfinite', 'acc/val,4,10,0.5,0.5,0.5,1,0', 'acc/val,4,20,0.8,0.8,0.8,1,0']);
    const many = (count, name, value) => Array.from({ length: count }, (_, i) => `${name}=${value(i)}`).join('&');
    assert.equal((await host.get(`/api/v1/compare/series?${many(128, 'run', () => 1)}&key=a`)).status, 200);
    assert.match((await host.get(`/api/v1/compare/series?${many(129, 'run', () => 1)}&key=a`)).json.detail, /at most 128 runs/);
    for (const route of ['series?', 'export?what=series&'])
        assert.match((await host.get(`/api/v1/compare/${route}${many(33, 'run', () => 1)}&${many(32, 'key', i => `k${i}`)}`)).json.detail, /at most 1024 curves/);
    for (const query of ['compare/series?run=1', 'compare/series?key=a', 'compare/export?run=1&what=x', 'compare/export?run=1&what=series', 'compare/export?what=fields'])
        assert.equal((await host.get(`/api/v1/${query}`)).status, 400, query);
});

test('groups: made, changed under If-Match, listed, averaged, removed', async () => {
    const made = await host.post('/api/v1/groups', { name: 'good', description: 'k = 1', runs: ['4', '5'] }, { headers: { 'idempotency-key': 'g1' } });
    assert.equal(made.status, 201, made.text);
    assert.equal(made.headers.location, '/api/v1/groups/good');
    assert.equal(made.json.runs, 2);
    assert.equal((await host.post('/api/v1/groups', { name: 'good' })).status, 409);
    assert.equal((await host.post('/api/v1/groups', { name: 'good', description: 'k = 1', runs: ['4', '5'] }, { headers: { 'idempotency-key': 'g1' } })).status, 201);
    assert.equal((await host.post('/api/v1/groups', { name: 'bad', runs: ['99'] })).status, 422);
    assert.equal((await host.get('/api/v1/groups/bad')).status, 404);
    for (const body of [{}, { name: 'a b' }, { name: 'x', runs: [4] }, { name: 'x', colour: 1 }, { name: 'x', description: 7 }])
        assert.equal((await host.post('/api/v1/groups', body)).status, 422, JSON.stringify(body));
    const show = await host.get('/api/v1/groups/good');
    assert.equal((await host.get('/api/v1/groups/good', { headers: { 'if-none-match': show.headers.etag } })).status, 304);
    const patch = (json, headers) => host.call('PATCH', '/api/v1/groups/good', { json, headers });
    assert.equal((await patch({ add: ['6'] }, {})).status, 428);
    const changed = await patch({ add: ['6', '7', '3'], drop: ['7'], description: 'one' }, { 'if-match': show.headers.etag });
    assert.deepEqual([changed.status, changed.json.runs, changed.json.description], [200, 4, 'one']);
    assert.equal((await patch({ add: ['6'] }, { 'if-match': show.headers.etag })).status, 412);
    assert.equal((await patch({}, { 'if-match': '*' })).status, 422);
    assert.deepEqual((await host.get('/api/v1/runs?group=good&order=oldest')).json.runs.map(r => r.id), ['3', '4', '5', '6']);
    assert.deepEqual((await host.get('/api/v1/groups')).json.groups.map(g => g.name), ['good']);
    const rows = (await host.get('/api/v1/aggregate?by=group&metric=acc/val')).json.rows;
    assert.equal(rows.length, 1);
    assert.deepEqual([rows[0].label, rows[0].runs.diverged, rows[0].metrics['acc/val'].n], ['good', 1, 3]);
    close(rows[0].metrics['acc/val'].mean, 0.85);
    assert.equal((await host.call('DELETE', '/api/v1/groups/good', { headers: { 'if-match': show.headers.etag } })).status, 412);
    assert.equal((await host.call('DELETE', '/api/v1/groups/good', { headers: { 'if-match': changed.headers.etag } })).status, 204);
    assert.equal((await host.get('/api/v1/groups/good')).status, 404);
    assert.equal((await host.call('DELETE', '/api/v1/groups/good', { headers: { 'if-match': '*' } })).status, 404);
});

test('aggregation by experiment, tag, field and job', async () => {
    const rows = async query => (await host.get(`/api/v1/aggregate?${query}`)).json.rows;
    assert.deepEqual((await rows('by=experiment&metric=acc/val')).map(r => [r.label, r.runs.total, r.metrics['acc/val'].n]), [['E01', 9, 6], ['default', 1, 0]]);
    assert.deepEqual((await rows('by=tag:arm')).map(r => [r.label, r.runs.total]), [['cubic', 9], ['plain', 1]]);
    assert.deepEqual((await rows('by=field:/attention/k&job=1&metric=acc/val')).map(r => [Number(r.label), r.metrics['acc/val'].n]), [[0.01, 2], [1, 3], [100, 1]]);
    assert.deepEqual((await rows('by=job&experiment=E01')).map(r => r.label), ['1']);
    assert.deepEqual(await rows('by=tag:none'), []);
    for (const query of ['', 'by=colour', 'by=tag:', 'by=field:x', 'by=job&job=x', 'by=job&limit=3'])
        assert.equal((await host.get(`/api/v1/aggregate?${query}`)).status, 400, query);
});

test('numbers come back as they were sent, and a series without a finite value has no range', async () => {
    const job = await submit(host, { sweep: { axes: [{ pointer: '/train/label_smoothing', values: [0.1, 0.3] }] } });
    for (const where of ['sweep', 'sweep/curves?key=a']) {
        const reply = await host.get(`/api/v1/jobs/${job.id}/${where}`);
        assert.ok(reply.text.includes('"values":[0.1,0.3]'), reply.text);
    }
    await ingest(job.run_ids[0], 'mine/x', ['Infinity']);
    const { series } = (await host.get(`/api/v1/runs/${job.run_ids[0]}/metrics`)).json;
    assert.deepEqual(series.map(s => [s.value, s.min, s.max]), [['Infinity', null, null]]);
});

/** All runs of a sorted list, page by page: by its cursors, or by the Link header. */
async function sorted(query, limit) {
    const seen = [];
    for (let next = `/api/v1/runs?${query}&limit=${limit}`; next;) {
        const reply = await host.get(next);
        assert.equal(reply.status, 200, reply.text);
        assert.ok(reply.json.runs.length <= limit);
        seen.push(...reply.json.runs.map(r => Number(r.id)));
        next = /<([^>]*)>/.exec(reply.headers.link ?? '')?.[1];
        assert.equal(next === undefined, reply.json.next === null);
    }
    return seen;
}

test('runs are sorted by a metric, a field or a pointer, the same in pages of any size', async () => {
    const last = { 1: 0.5, 2: 0.7, 3: 0.99, 4: 0.8, 5: 0.9, 6: 0.85, 7: 0.4 };
    const order = desc => Object.keys(last).map(Number).sort((a, b) => (desc ? last[b] - last[a] : last[a] - last[b]));
    await ingest(8, 'acc/val', ['NaN']); /* as one without a value: 9 */
    for (const limit of [1, 2, 3, 100]) {
        assert.deepEqual(await sorted('job=1&sort=acc/val&desc=1', limit), [...order(true), 9, 8]);
        assert.deepEqual(await sorted('job=1&sort=acc/val', limit), [...order(false), 8, 9]);
        assert.deepEqual(await sorted('job=1&sort=/attention/k&desc=1', limit), [9, 8, 7, 6, 5, 4, 3, 2, 1]);
        assert.deepEqual(await sorted('job=1&sort=trial', limit), [1, 4, 7, 2, 5, 8, 3, 6, 9]);
        assert.deepEqual(await sorted('experiment=E01&outcome=succeeded&sort=acc/val', limit), order(false).filter(id => id !== 3));
        const all = await sorted('sort=name', limit), names = new Map((await host.get('/api/v1/runs?limit=1000')).json.runs.map(r => [Number(r.id), r.name]));
        assert.deepEqual(all, [...names.keys()].sort((a, b) => (names.get(a) < names.get(b) ? -1 : names.get(a) > names.get(b) ? 1 : a - b)));
        assert.equal((await sorted('sort=ended&state=ended', limit)).length, 8);
        assert.deepEqual(await sorted('job=1&state=active&sort=started', limit), [9]);
    }
    /* a run whose value moves while pages are read changes its own place, nobody else's */
    const first = (await host.get('/api/v1/runs?job=1&sort=acc/val&limit=3')).json;
    await ingest(first.runs[2].id, 'acc/val', [0.95], 100);
    const rest = (await host.get(`/api/v1/runs?job=1&sort=acc/val&limit=100&cursor=${first.next}`)).json;
    assert.deepEqual(rest.runs.map(r => Number(r.id)), [4, 6, 5, Number(first.runs[2].id), 3, 8, 9]);
});

test('what cannot be sorted by is refused by name', async () => {
    for (const [query, words] of [['sort=acc/vla', /acc\/vla/], ['sort=/attention/kk', /\/attention\/kk/], ['sort=/attention', /\/attention/],
        ['sort=', /sort/], ['desc=1', /sort/], ['sort=id&order=oldest', /order/], ['sort=id&desc=maybe', /desc/]]) {
        const reply = await host.get(`/api/v1/runs?${query}`);
        assert.equal(reply.status, 400, query);
        assert.match(reply.json.detail, words);
    }
    const { next } = (await host.get('/api/v1/runs?sort=id&limit=1')).json;
    for (const other of [`sort=id&desc=1&cursor=${next}`, `sort=seed&cursor=${next}`, `cursor=${next}`, `sort=id&cursor=${next}x`, 'sort=id&cursor=.bjE'])
        assert.equal((await host.get(`/api/v1/runs?${other}`)).status, 400, other);
});

test('the interval holds for few pairs and for many', async () => {
    const job = await submit(host, { name: 'pairs', trials: 16, train: { epochs: 1, seed: 1 }, sweep: { axes: [{ pointer: '/train/batch', values: [4, 8] }] } });
    const { runs } = (await host.get(`/api/v1/runs?job=${job.id}&order=oldest&limit=100`)).json;
    assert.equal(runs.length, 32);
    const value = run => Math.sin(run.seed * 12.9 + run.point) + run.point / 10;
    for (const run of runs) {
        await ingest(run.id, 'loss/val', [value(run)]);
        if (run.trial < 5)
            await ingest(run.id, 'acc/val', [value(run)]);
        await end(run.id);
    }
    const [, row] = (await host.get(`/api/v1/jobs/${job.id}/sweep?baseline=0&metric=loss/val&metric=acc/val`)).json.table;
    const differences = Array.from({ length: 16 }, (_, t) => value({ seed: 1 + t, point: 1 }) - value({ seed: 1 + t, point: 0 }));
    wantInterval(row.paired['loss/val'], differences);
    wantInterval(row.paired['acc/val'], differences.slice(0, 5));
});

test('the Link header keeps every parameter, of any length and with any letter', async () => {
    const names = ['a>b"c', 'linked'];
    for (const name of names)
        await submit(host, { name, trials: 3 });
    const ids = async query => (await host.get(`/api/v1/runs?${query}`)).json.runs.map(r => Number(r.id));
    const long = `metric=${'m'.repeat(250)}&metric=${'n'.repeat(250)}`;
    for (const query of ['name=a>b"c', `${long}&name=a>b"c`, `${long}&name=linked`, `sort=id&${long}&text=linked`]) {
        const want = await ids(query);
        assert.equal(want.length, 3);
        assert.deepEqual(await sorted(query, 1), want, query);
    }
    const reply = await host.get(`/api/v1/runs?name=linked&limit=1${`&metric=${'%41'.repeat(250)}`.repeat(12)}`);
    assert.deepEqual([reply.status, reply.headers.link, typeof reply.json.next], [200, undefined, 'string']);
});
