// Experiments by name: listed, shown, tried and submitted, one job or several together, through the real daemon.
import assert from 'node:assert/strict';
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { fits, leaves } from '../../web/js/experiment/choose.js';
import { build, Daemon } from './lib.mjs';

const skip = existsSync(path.join(build, 'bin/polyd')) && existsSync(path.join(build, 'bin/polyd-worker')) ? false : 'polyd or polyd-worker is not built';
let host;
const books = mkdtempSync(path.join(os.tmpdir(), 'polyd-books-'));
before(async () => {
    mkdirSync(path.join(books, 'tinyshakespeare'));
    writeFileSync(path.join(books, 'tinyshakespeare/input.txt'), 'To be, or not to be: that is the question.\n'.repeat(5000));
    host = skip ? null : await Daemon.start([`--data.books=${books}`]);
});
after(async () => {
    await host?.stop();
    rmSync(books, { recursive: true, force: true });
});

/** So small that a run takes no time; steps stand for the template's epochs. */
const tiny = { train: { steps: 2, batch: 4 }, trials: 1, data: { split: { train: 16, val: 8 } }, model: { width: 16, depth: 1 }, resources: { threads: 1 } };
const submit = (body, query = '', headers = {}) => host.post(`/api/v1/jobs${query}`, body, { headers });
const jobs = async () => (await host.get('/api/v1/jobs?limit=200')).json.jobs;

test('the list says of each what it asks and what cannot run yet', { skip }, async () => {
    const list = await host.get('/api/v1/templates'), { templates } = list.json;
    assert.deepEqual(templates.map(t => t.name), [...Array.from({ length: 18 }, (_, i) => `E${String(i + 1).padStart(2, '0')}`),
        ...Array.from({ length: 20 }, (_, i) => `T${i + 1}`)]);
    for (const { name, version, title, question, source, variants } of templates) {
        assert.ok(version >= 1 && title && source, name);
        assert.match(question, /^[^.?]+.*[.?]$/s, name);
        for (const variant of ['small', 'paper'])
            assert.ok(variants[variant].refused ? !variants[variant].jobs : variants[variant].jobs >= 1 && variants[variant].shows, `${name} ${variant}`);
    }
    assert.match(templates.find(t => t.name === 'E07').variants.small.refused, /detection/);
    assert.equal((await host.get('/api/v1/templates', { headers: { 'If-None-Match': list.headers.etag } })).status, 304);
});

test('targets and pictures name jobs, metrics and combinations that the documents have', { skip }, async () => {
    const { metrics } = (await host.get('/api/v1/metrics/catalogue')).json, keys = metrics.map(m => m.key.replace(/<\w+>/g, ''));
    const known = metric => keys.some(key => metric === key || (key.endsWith('/') && metric.startsWith(key)) || key.startsWith(`${metric}/`));
    /** Combinations of a document, as the API writes them. */
    const points = job => (job.sweep?.axes ?? []).reduce((list, axis) => list.flatMap(values => (axis.values ?? [1]).map(value => ({ ...values, [axis.pointer]: value }))), [{}]);
    let rows = 0;
    for (const { name } of (await host.get('/api/v1/templates')).json.templates) {
        const { variants, targets = [], pictures = [] } = (await host.get(`/api/v1/templates/${name}`)).json, all = Object.values(variants).filter(v => v.jobs);
        const meant = (match, job) => all.some(v => v.jobs[job] && points(v.jobs[job]).some(values => fits(values, match)));
        for (const target of targets)
            for (const [i, column] of target.columns.entries()) {
                assert.ok(column.metrics.every(known), `${name}: ${column.metrics}`);
                assert.ok(all.some(v => v.jobs[column.job]), `${name} ${column.name}`);
                for (const small of target.small ?? [])
                    assert.ok(variants.small.jobs[small.job] && (small.value ?? 0) < target.columns.length, `${name} ${small.name}`);
                for (const row of target.rows) {
                    assert.equal(row.values.length, target.columns.length, `${name} ${row.name}`);
                    assert.ok(row.values[i] === null || meant(row.match, column.job), `${name} ${column.name}: nothing is meant by ${row.name}`);
                    rows++;
                }
            }
        for (const p of pictures) {
            const jobs = all.flatMap(v => (p.job === undefined ? v.jobs : v.jobs[p.job] ? [v.jobs[p.job]] : []));
            assert.ok(jobs.length > 0 && (!p.metric || known(p.metric)), `${name} ${p.title}`);
            for (const pointer of [p.x, ...p.rows ?? [], ...p.columns ?? []].filter(Boolean))
                assert.ok(jobs.some(job => job.sweep?.axes.some(a => a.pointer === pointer || points(job).some(v => pointer in leaves(v)))), `${name} ${p.title}: ${pointer}`);
            for (const line of p.lines ?? [])
                assert.ok(meant(line.match, p.job), `${name} ${p.title}: nothing is meant by ${line.name}`);
        }
    }
    assert.ok(rows > 60);
});

test('real data below any data root are found by name, and what polyd makes stands in', { skip }, async () => {
    const tried = async body => (await submit(body, '?dry_run=1')).json, text = await tried({ template: 'E11' }), pictures = await tried({ template: 'E04' });
    assert.deepEqual([text.document.data.dataset, text.document.data.path, text.document.tags.data, text.plan_error], ['text', 'books/tinyshakespeare/input.txt', 'text', null]);
    assert.ok(text.plan.test_samples > 100 && text.plan.val_samples > 100);
    assert.deepEqual([pictures.document.data.dataset, pictures.document.data.path, pictures.document.tags.data, pictures.plan_error], ['digits_gen', null, 'digits_gen', null]);
    const named = await tried({ template: 'E11', data: { dataset: 'text_gen' } });
    assert.deepEqual([named.document.data.dataset, named.document.data.path], ['text_gen', null]);
});

test('one is shown with its documents, by either name of a check', { skip }, async () => {
    const { json } = await host.get('/api/v1/templates/E01');
    assert.equal(json.variants.small.jobs[0].sweep.axes.length, 2);
    assert.equal((await host.get('/api/v1/templates/T4')).json.name, 'T4');
    const missing = await host.get('/api/v1/templates/E99');
    assert.equal(missing.status, 404);
    assert.match(missing.json.detail, /no template 'E99'/);
});

test('a dry run plans every job of it, and keeps none', { skip, timeout: 60000 }, async () => {
    const before = (await jobs()).length;
    const one = (await submit({ template: 'E04', ...tiny }, '?dry_run=1')).json;
    assert.deepEqual([one.dry_run, one.template, one.runs, one.plan_error], [true, 'E04 small 2', 4, null]);
    assert.equal(one.document.experiment, 'E04');
    assert.deepEqual([one.document.train.steps, one.document.train.epochs, one.document.train.optimizer.lr], [2, null, 0.003]);
    const two = (await submit({ template: 'E09', ...tiny }, '?dry_run=1')).json;
    assert.deepEqual([two.experiment, two.runs, two.jobs.map(job => job.runs), two.jobs.map(job => job.plan_error)], ['E09', 19, [1, 18], [null, null]]);
    assert.equal(two.jobs[0].document.attention.activation, 'softmax');
    assert.ok(two.jobs.every(job => job.plan.total_bytes > 0));
    assert.equal((await jobs()).length, before);
});

test('every small variant passes the dry run on a bare machine, or is refused by the name of what is missing', { skip, timeout: 120000 }, async () => {
    const { templates } = (await host.get('/api/v1/templates')).json;
    let planned = 0;
    for (const { name, variants: { small } } of templates) {
        const { status, json } = await submit({ template: name }, '?dry_run=1');
        if (small.refused) {
            assert.deepEqual([status, json.errors.map(e => e.pointer)], [422, ['#/template']], name);
            assert.ok(json.errors[0].detail.includes(small.refused), name);
            continue;
        }
        const parts = json.jobs ?? [json];
        assert.deepEqual([status, parts.length, parts.filter(part => part.plan_error).map(part => part.plan_error)], [200, small.jobs, []], name);
        assert.ok(parts.every(part => part.runs >= 3 || name.startsWith('T')), name);
        planned += parts.length;
    }
    assert.ok(planned >= 38, `${planned} jobs`);
});

test('one of a single job is answered as that job', { skip, timeout: 60000 }, async () => {
    const sent = await submit({ template: 'E04', ...tiny, name: 'mine', tags: { who: 'me' } });
    assert.equal(sent.status, 201);
    assert.equal(sent.headers.location, `/api/v1/jobs/${sent.json.id}`);
    assert.deepEqual([sent.json.template, sent.json.name, sent.json.experiment, sent.json.tags], ['E04 small 2', 'mine', 'E04', { template: 'E04', variant: 'small', who: 'me', data: 'digits_gen' }]);
    const job = await host.over(sent.json.id);
    assert.deepEqual([job.state, job.template], ['done', 'E04 small 2']);
    // What is kept is that job alone: sent again, it is no template any more.
    const again = await submit((await host.get(`/api/v1/jobs/${sent.json.id}`)).json.document);
    assert.deepEqual([again.status, again.json.template, again.json.run_ids.length], [201, null, 4]);
    await host.over(again.json.id);
});

test('one of several jobs is accepted as a whole, once for each key', { skip, timeout: 120000 }, async () => {
    const before = (await jobs()).length, headers = { 'Idempotency-Key': 'nine' };
    const sent = await submit({ template: 'E09', ...tiny }, '', headers);
    assert.equal(sent.status, 201);
    assert.deepEqual([sent.json.template, sent.json.experiment, sent.json.jobs.map(job => job.run_ids.length)], ['E09 small 3', 'E09', [1, 18]]);
    assert.ok(sent.json.jobs.every(job => job.experiment === 'E09' && job.template === 'E09 small 3'));
    const again = await submit({ template: 'E09', ...tiny }, '', headers);
    assert.deepEqual([again.status, again.headers['idempotency-replayed'], again.json], [201, 'true', sent.json]);
    assert.equal((await jobs()).length, before + 2);
    for (const { id } of sent.json.jobs)
        assert.equal((await host.over(id)).state, 'done');
    const runs = (await host.get('/api/v1/runs?experiment=E09&limit=100')).json.runs;
    assert.deepEqual([runs.length, new Set(runs.map(run => run.outcome)).size], [19, 1]);
});

test('what is wrong is named, and nothing of it is kept', { skip, timeout: 60000 }, async () => {
    const before = (await jobs()).length;
    for (const [body, pointer, detail] of [
        [{ template: 'E19' }, '#/template', /unknown template; there are E01 to E18 and T1 to T20/],
        [{ template: 'E07' }, '#/template', /E07 in its variant "small" cannot run yet: detection/],
        [{ template: 'E01', variant: 'huge' }, '#/variant', /"small" or "paper"/],
        [{ template: 'E09', overrides: { '/train/nonsense': 1 } }, '#/overrides/~1train~1nonsense', /unknown/],
        [{ template: 'E09', attention: { degre: 2 } }, '#/attention/degre', /did you mean/],
        [{ template: 'E04', params: { n: 1 } }, '#/params', /./],
        [{ template: 'E04', ...tiny, train: { steps: 2, batch: 64 } }, '#/train/batch', /./],
    ]) {
        for (const query of ['', '?dry_run=1']) {
            const { status, json } = await submit(body, query);
            if (query && pointer === '#/train/batch') { // what only the plan knows is told beside it
                assert.match(json.plan_error, /train\/batch/);
                continue;
            }
            assert.equal(status, 422, JSON.stringify(json));
            assert.equal(json.errors[0].pointer, pointer);
            assert.match(json.errors[0].detail, detail);
        }
    }
    // The first job of the two could run; the second is what is wrong.
    const half = await submit({ template: 'E09', ...tiny, sweep: { axes: [{ pointer: '/attention/degree', values: [2, 99] }] } });
    assert.equal(half.status, 422);
    assert.equal((await jobs()).length, before);
});
