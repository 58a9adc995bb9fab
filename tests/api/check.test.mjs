// Checks of the theory through the real daemon and worker: results, refusals by field, verdicts, cancelling, resuming, the report.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { build, Daemon } from './lib.mjs';

const skip = existsSync(path.join(build, 'bin/polyd')) && existsSync(path.join(build, 'bin/polyd-worker')) ? false : 'polyd or polyd-worker is not built';
let host;
before(async () => { host = skip ? null : await Daemon.start(); });
after(() => host?.stop());

const submit = async (body, query = '') => host.post(`/api/v1/jobs${query}`, body);
async function until(what, ask, limit = 60000) {
    for (const end = Date.now() + limit; Date.now() < end;) {
        const got = await ask();
        if (got)
            return got;
        await new Promise(done => setTimeout(done, 50));
    }
    throw new Error(`no ${what}`);
}
const ended = run => until(`end of run ${run}`, async () => {
    const { json } = await host.get(`/api/v1/runs/${run}`);
    return json.state === 'ended' && json;
});
const examine = async body => {
    const reply = await submit(body);
    assert.equal(reply.status, 201, reply.text);
    const [run] = reply.json.run_ids;
    return { run, row: await ended(run), job: reply.json };
};

test('a template of a check runs to its verdict, table and plots', { skip, timeout: 120000 }, async () => {
    const { run, row, job } = await examine({ template: 'theory/T2', params: { seeds: 2 } });
    assert.deepEqual([row.kind, row.outcome, row.step, row.total_steps, job.template], ['check', 'succeeded', 200, 200, 'T2 small 2']);
    const { json } = await host.get(`/api/v1/runs/${run}/check`), { result } = json;
    assert.deepEqual([json.run_id, result.check, result.verdict, result.wrong, result.seeds], [run, 'T2', 'holds', true, [0, 1]]);
    // The verdict is what the rows say, and the rows what their numbers say.
    for (const r of result.rows.filter(each => each.pass !== null))
        assert.equal(r.pass, r.value >= (r.accept_low ?? -Infinity) && r.value <= (r.accept_high ?? Infinity), r.what);
    const half = result.rows.find(r => r.what.startsWith('‖J‖² of the row (1/2'));
    assert.equal(half.value, 0.25); // diag(f) - f f^T of (1/2, 1/2): 4 entries of 1/4
    assert.equal(result.plots[0].series[0].y.reduce((a, b) => a + b, 0), 3 * 5 * 4000, 'the histogram counts every row');
    // The same as CSV, and the criteria as metrics.
    const csv = await host.get(`/api/v1/runs/${run}/check?format=csv`), lines = csv.text.trim().split('\n');
    assert.match(csv.headers['content-type'], /text\/csv/);
    assert.equal(lines[0], 'what,seed,value,se,low,high,expected,accept_low,accept_high,pass');
    assert.equal(lines.length, result.rows.length + 1);
    assert.ok(lines.some(line => line.endsWith(',true')) && lines.some(line => /^"‖J‖² of the row \(1\/2, 1\/2, 0, \.\.\)",0,0\.25,/.test(line)), lines[2]);
    const { series } = (await host.get(`/api/v1/runs/${run}/metrics`)).json;
    assert.deepEqual(['check/failed', 'check/judged'].map(key => series.find(s => s.key === key)?.value), [0, result.rows.filter(r => r.pass !== null).length]);
    const events = (await host.get(`/api/v1/runs/${run}/blobs?key=check`)).json.blobs;
    assert.deepEqual([events.length, events[0].meta.verdict, events[0].meta.failed], [1, 'holds', 0]);
});

test('bad parameters are refused by their place, all at once', { skip }, async () => {
    const reply = await submit({ template: 'T4', params: { N: [64, 64], d: 0, draw: 5 } });
    assert.equal(reply.status, 422);
    assert.deepEqual(reply.json.errors.map(e => e.pointer).sort(), ['#/params/N', '#/params/d', '#/params/draw']);
    assert.match(reply.json.errors.find(e => e.pointer === '#/params/draw').detail, /did you mean 'draws'/);
    const other = await submit({ kind: 'check', check: 'T99' });
    assert.deepEqual([other.status, other.json.errors[0].pointer], [422, '#/check']);
    const trained = await submit({ template: 'E04', params: { seeds: 1 } });
    assert.deepEqual([trained.status, trained.json.errors[0].pointer], [422, '#/params']);
});

test('parameters that do not fit each other end the run at once, with the field', { skip, timeout: 60000 }, async () => {
    const { run, row } = await examine({ kind: 'check', check: 'T10', params: { patch: [5, 7], seeds: 1 } });
    assert.deepEqual([row.outcome, row.attempts], ['failed', 1]);
    assert.match(row.reason, /#\/params\/patch: 5 does not divide/);
    assert.equal((await host.get(`/api/v1/runs/${run}/check`)).json.result, null);
});

test('a check that misses a criterion has run, and fails as a statement', { skip, timeout: 60000 }, async () => {
    const { run, row } = await examine({ template: 'T4', params: { N: [4, 8], p: [1, 3], seeds: 1 } });
    assert.equal(row.outcome, 'succeeded');
    const { result } = (await host.get(`/api/v1/runs/${run}/check`)).json;
    assert.equal(result.verdict, 'fails');
    const x = (await host.get('/api/v1/experiments/T4')).json;
    assert.deepEqual([x.verdict, x.submissions[0].verdict, x.submissions[0].changed], ['fails', 'fails', ['/params']]);
});

test('the experiment of a check has its verdict and statement, its report also table and plots', { skip, timeout: 120000 }, async () => {
    await examine({ template: 'T20', params: { seeds: 1 } });
    const { run } = await examine({ template: 'T18', params: { seeds: 1, steps: 2, depth: 1, width: 16 } });
    assert.equal((await host.get('/api/v1/experiments/T20')).json.verdict, 'holds');
    const x = (await host.get('/api/v1/experiments/T18')).json, [check] = x.job_list[0].checks;
    assert.deepEqual([x.verdict, check.run_id, check.result.verdict, check.result.rows], ['reported', run, 'reported', undefined]);
    const full = (await host.get('/api/v1/experiments/T18/report?format=json')).json.job_list[0].checks[0].result;
    assert.deepEqual(full, (await host.get(`/api/v1/runs/${run}/check`)).json.result);
    const page = (await host.get('/api/v1/experiments/T18/report')).text;
    for (const text of [full.claimed.replaceAll("'", '&#39;'), full.rows[0].what, '<svg', full.plots[0].title])
        assert.ok(page.includes(text), text);
    assert.ok(!page.includes('loss/val'), 'a check ranks nothing');
});

test('a long check shows progress, can be cancelled, and is paused and taken up with the same result', { skip, timeout: 120000 }, async () => {
    const long = { kind: 'check', check: 'T8', params: { seeds: 1, entries: 100000000 } };
    const { json } = await submit(long), [run] = json.run_ids;
    const now = await until('progress', async () => {
        const { json: row } = await host.get(`/api/v1/runs/${run}`);
        return row.step > 0 && row;
    });
    assert.equal(now.total_steps, 100);
    await host.post(`/api/v1/runs/${run}/cancel`, {});
    assert.equal((await ended(run)).outcome, 'cancelled');
    assert.equal((await host.get(`/api/v1/runs/${run}/check`)).json.result, null);

    const document = { kind: 'check', check: 'T4', params: { seeds: 2, draws: 3000, N: [64, 128] } };
    const [paused] = (await submit(document)).json.run_ids;
    await until('a start', async () => ['running', 'ended'].includes((await host.get(`/api/v1/runs/${paused}`)).json.state));
    await host.post(`/api/v1/runs/${paused}/pause`, {});
    await until('a pause', async () => ['paused', 'ended'].includes((await host.get(`/api/v1/runs/${paused}`)).json.state));
    await host.post(`/api/v1/runs/${paused}/resume`, {});
    assert.equal((await ended(paused)).outcome, 'succeeded');
    const { run: whole } = await examine(document);
    const [a, b] = await Promise.all([paused, whole].map(async id => (await host.get(`/api/v1/runs/${id}/check`)).json.result));
    assert.deepEqual(a, b);
});

test('a time limit ends a check', { skip, timeout: 60000 }, async () => {
    const { row } = await examine({ kind: 'check', check: 'T8', params: { entries: 100000000 }, resources: { time_limit_s: 2, warn_before_s: 1 } });
    assert.equal(row.outcome, 'failed');
    assert.match(row.reason, /time limit/);
});

test('runs of other kinds and runs that there are not have no check', { skip, timeout: 60000 }, async () => {
    const { run } = await examine({ kind: 'selftest' });
    const reply = await host.get(`/api/v1/runs/${run}/check`);
    assert.equal(reply.status, 404);
    assert.match(reply.json.detail, /of kind selftest, which checks no statement/);
    assert.equal((await host.get('/api/v1/runs/999999/check')).status, 404);
    assert.equal((await host.get(`/api/v1/runs/${run}/check?format=xml`)).status, 400);
    assert.equal((await host.get(`/api/v1/runs/${run}/check?what=1`)).status, 400);
});

test('every statement has its parameters in the table of fields', { skip }, async () => {
    const { checks } = (await host.get('/api/v1/fields')).json;
    assert.deepEqual(checks.map(c => c.name), Array.from({ length: 20 }, (_, i) => `T${i + 1}`));
    for (const { name, params } of checks)
        for (const { name: param, type, default: value, minimum, maximum } of params)
            for (const one of [value].flat())
                assert.ok(one >= minimum && one <= maximum && Array.isArray(value) === type.startsWith('array'), `${name} ${param}`);
});
