// Runs of one's own: opened, reported to and finished over HTTP; lost after silence; in every table as others are.
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { build, Daemon, root, sleep, submit } from './lib.mjs';

let host;
before(async () => {
    host = await Daemon.start(['--runs.silence_s=2']);
});
after(() => host.stop());

const open = async (more = {}, headers = {}) => {
    const reply = await host.post('/api/v1/runs', { name: 'mine', experiment: 'own', ...more }, { headers });
    assert.equal(reply.status, 201, reply.text);
    return reply.json;
};
const points = (run, ...list) => host.post(`/api/v1/runs/${run.id}/metrics`, { points: list });
const finish = (run, outcome = 'succeeded', more = {}) => host.post(`/api/v1/runs/${run.id}/finish`, { outcome, ...more });
const now = async run => (await host.get(`/api/v1/runs/${run.id}`)).json;

test('a run is opened, reported to and finished, and stands among the others', async () => {
    const trained = await submit(host, { name: 'theirs', experiment: 'own' });
    const reply = await host.post('/api/v1/runs', {
        name: 'by hand', experiment: 'own', notes: '# first', tags: { who: 'me' }, config: { lr: 0.25, net: { depth: 3 } }, total_steps: 40,
    });
    assert.equal(reply.status, 201, reply.text);
    const run = reply.json;
    assert.equal(reply.headers.location, `/api/v1/runs/${run.id}`);
    assert.deepEqual([run.kind, run.state, run.device, run.slots, run.attempts, run.total_steps, run.queue], ['external', 'running', null, 0, 0, 40, null]);
    assert.deepEqual(run.document, { lr: 0.25, net: { depth: 3 } });
    assert.equal((await points(run, { key: 'loss/val', step: 10, value: 0.5 }, { key: 'loss/val', step: 20, value: 0.25 })).status, 200);
    const shown = await now(run);
    assert.deepEqual([shown.step, shown.state, shown.attempt_list, shown.best], [20, 'running', [], null]);
    const done = await finish(run, 'succeeded', { reason: 'all steps' });
    assert.deepEqual([done.status, done.json.state, done.json.outcome, done.json.reason], [200, 'ended', 'succeeded', 'all steps']);
    assert.ok(done.json.ended >= done.json.started && done.json.started >= done.json.created);

    const other = await open({ config: { lr: 0.5, net: { depth: 3 } } });
    await points(other, { key: 'loss/val', step: 20, value: 0.75 });
    await finish(other);
    const table = (await host.get('/api/v1/runs?experiment=own&metric=loss/val&field=/lr')).json.runs;
    assert.deepEqual(table.map(r => [r.kind, r.fields['/lr']]).slice(0, 2), [['external', 0.5], ['external', 0.25]]);
    assert.deepEqual(table.find(r => r.id === run.id).latest, { 'loss/val': 0.25 });
    assert.ok(table.some(r => r.job_id === trained.id && r.kind === 'train'));
    const sorted = (await host.get('/api/v1/runs?experiment=own&sort=/lr&desc=1')).json.runs;
    assert.deepEqual(sorted.slice(0, 2).map(r => r.id), [other.id, run.id]);
    assert.match((await host.get('/api/v1/runs?sort=/lrr')).json.detail, /no|neither/);
    const compared = (await host.get(`/api/v1/compare?run=${run.id}&run=${other.id}`)).json;
    assert.deepEqual(compared.fields.filter(f => f.pointer === '/lr' || f.pointer === '/net/depth').map(f => f.pointer), ['/lr']);
    const { rows } = (await host.get('/api/v1/aggregate?by=field:/net/depth&metric=loss/val')).json;
    assert.deepEqual(rows.map(r => [r.label, r.runs.succeeded, r.metrics['loss/val'].mean]), [['3', 2, 0.5]]);
    const job = (await host.get(`/api/v1/jobs/${run.job_id}`)).json;
    assert.deepEqual([job.kind, job.state, job.notes, job.tags, job.runs.ended], ['external', 'done', '# first', { who: 'me' }, 1]);
    assert.equal((await host.get(`/api/v1/jobs/${run.job_id}/sweep`)).status, 200);
});

test('what is wrong with an opening is named with its place', async () => {
    for (const [body, pointer, says] of [
        [{ nmae: 'x' }, '#/nmae', /name, experiment, notes, tags, config and total_steps/], [{ name: '' }, '#/name', /1 to 200 bytes/],
        [{ name: 3 }, '#/name', /text/], [{ config: [1] }, '#/config', /object/], [{ tags: { a: 1 } }, '#/tags/a', /tag 'a'/],
        [{ total_steps: 0 }, '#/total_steps', /at least 1/], [{ experiment: 'x'.repeat(129) }, '#/experiment', /128/]]) {
        const reply = await host.post('/api/v1/runs', body);
        assert.equal(reply.status, 422, JSON.stringify(body));
        assert.equal(reply.json.errors[0].pointer, pointer);
        assert.match(reply.json.detail, says);
    }
    assert.equal((await host.call('POST', '/api/v1/runs', { body: '[1]' })).status, 400);
    const least = await open({ name: undefined, experiment: undefined });
    assert.deepEqual([least.name, least.experiment, least.document], ['run', 'default', {}]);
    await finish(least);
});

const nested = (levels, name = 'a') => levels ? { [name]: nested(levels - 1, name) } : 1;

test('a config is refused if it is too deep or has too long names', async () => {
    for (const [config, says] of [[nested(17), /16 levels/], [{ a: [nested(15)] }, /16 levels/], [nested(2040), /16 levels/],
        [{ ['x'.repeat(257)]: 1 }, /256 bytes/], [{ a: [{ ['ä'.repeat(129)]: 1 }] }, /256 bytes/]]) {
        const reply = await host.post('/api/v1/runs', { config });
        assert.deepEqual([reply.status, reply.json.errors?.[0].pointer], [422, '#/config'], JSON.stringify(config).slice(0, 80));
        assert.match(reply.json.detail, says);
    }
    await finish(await open({ config: { deep: nested(15), ['x'.repeat(256)]: [nested(14)] } }));
    assert.equal((await host.get('/api/v1/aggregate?by=field:/deep/a&metric=x')).status, 200);
    assert.equal((await host.get('/api/v1/runs?sort=/deep/a')).status, 200);
});

test('runs are compared whatever the length of their pointers', async () => {
    const name = 'x'.repeat(256), [low, high] = [254, 255].map(n => 'w'.repeat(n)); // below pointers of 511 and 771 bytes
    const runs = [];
    for (const end of [1, 2])
        runs.push(await open({ config: { [low]: { [high]: { b: end } }, [name]: { [name]: { [name]: { b: end, c: 0, [name]: end } } } } }));
    const compared = (await host.get(`/api/v1/compare?run=${runs[0].id}&run=${runs[1].id}`)).json;
    const above = `/${name}`.repeat(3);
    assert.deepEqual(compared.fields.map(f => [f.pointer, f.values]), [[`/${low}/${high}/b`, [1, 2]], [`${above}/b`, [1, 2]], [`${above}/${name}`, [1, 2]]]);
    assert.deepEqual([compared.differing, compared.same], [3, 1]);
    for (const run of runs)
        await finish(run);
});

test('a name with / or ~ is a field like any other', async () => {
    const runs = [];
    for (const lr of [0.125, 0.25])
        runs.push(await open({ experiment: 'named', config: { 'optimizer/lr': lr, optimizer: { lr: 7 }, 'a~b': { '~1/': lr, c: 1 } } }));
    const compared = (await host.get(`/api/v1/compare?run=${runs[0].id}&run=${runs[1].id}`)).json;
    assert.deepEqual(compared.fields.map(f => [f.pointer, f.values]), [['/a~0b/~01~1', [0.125, 0.25]], ['/optimizer~1lr', [0.125, 0.25]]]);
    assert.deepEqual([compared.differing, compared.same], [2, 2]);
    const table = `/api/v1/runs?experiment=named${compared.fields.map(f => `&field=${encodeURIComponent(f.pointer)}`).join('')}`;
    for (const f of compared.fields) {
        const pointer = encodeURIComponent(f.pointer);
        const rows = (await host.get(`${table}&sort=${pointer}&desc=1`)).json.runs;
        assert.deepEqual(rows.map(r => [r.id, r.fields[f.pointer]]), [[runs[1].id, 0.25], [runs[0].id, 0.125]]);
        const by = (await host.get(`/api/v1/aggregate?by=field:${pointer}&experiment=named&metric=x`)).json.rows;
        assert.deepEqual(by.map(r => r.label), ['0.125', '0.25']);
    }
    for (const run of runs)
        await finish(run);
});

test('a number is one value however it is written', async () => {
    const runs = [];
    for (const [lr, value] of [['1', 10], ['1.0', 20], ['1e0', 30], ['-0.0', 1], ['0', 3], ['1.5', 5], ['"1.0"', 6]]) {
        const body = `{"experiment": "numbers", "config": {"lr": ${lr}, "all": [${lr}, 2]}}`;
        const reply = await host.call('POST', '/api/v1/runs', { body, headers: { 'content-type': 'application/json' } });
        assert.equal(reply.status, 201, reply.text);
        await points(reply.json, { key: 'x', step: 1, value });
        await finish(reply.json);
        runs.push(reply.json);
    }
    const { rows } = (await host.get('/api/v1/aggregate?by=field:/lr&experiment=numbers&metric=x')).json;
    assert.deepEqual(rows.map(r => [r.label, r.runs.total, r.metrics.x.mean]), [['0', 2, 2], ['1', 3, 20], ['1.5', 1, 5], ['1.0', 1, 6]]);
    const differing = async (...which) => (await host.get(`/api/v1/compare?${which.map(i => `run=${runs[i].id}`).join('&')}`)).json.differing;
    assert.deepEqual([await differing(0, 1, 2), await differing(3, 4), await differing(0, 5), await differing(0, 6), await differing(1, 0, 5)], [0, 0, 2, 2, 2]);
});

test('an opening repeated with its key is the same run', async () => {
    const key = { 'idempotency-key': 'one-run' };
    const first = await open({ name: 'once' }, key);
    const again = await host.post('/api/v1/runs', { name: 'once', experiment: 'own' }, { headers: key });
    assert.deepEqual([again.status, again.json, again.headers['idempotency-replayed']], [201, first, 'true']);
    assert.equal((await host.post('/api/v1/runs', { name: 'other' }, { headers: key })).status, 422);
    await finish(first);
});

test('a log is appended, read and followed', async () => {
    const run = await open();
    assert.match((await host.get(`/api/v1/runs/${run.id}/logs`)).json.detail, /no log yet/);
    assert.deepEqual((await host.post(`/api/v1/runs/${run.id}/logs`, { text: 'first\n' })).json, { size: 6 });
    assert.deepEqual((await host.post(`/api/v1/runs/${run.id}/logs`, { text: 'zweite Zeile: ä\n' })).json, { size: 23 });
    assert.equal((await host.get(`/api/v1/runs/${run.id}/logs`)).text, 'first\nzweite Zeile: ä\n');
    const stream = host.events(`/api/v1/runs/${run.id}/logs?follow=1`);
    await stream.opened;
    await host.post(`/api/v1/runs/${run.id}/logs`, { text: 'last\n' });
    await finish(run);
    await stream.until(s => s.ended);
    assert.equal(stream.events.filter(e => e.event === 'log').map(e => JSON.parse(e.data).text).join(''), 'first\nzweite Zeile: ä\nlast\n');
    assert.equal(stream.events.at(-1).event, 'end');
    const late = await host.post(`/api/v1/runs/${run.id}/logs`, { text: 'too late\n' });
    assert.deepEqual([late.status, /has ended: succeeded/.test(late.json.detail)], [409, true]);
    assert.equal((await host.get(`/api/v1/runs/${run.id}/logs?attempt=1`)).status, 404);
    for (const body of [{}, { text: 1 }, { text: 'x', more: 1 }])
        assert.equal((await host.post(`/api/v1/runs/${run.id}/logs`, body)).status, 422);
    assert.equal((await host.post('/api/v1/runs/9999/logs', { text: 'x' })).status, 404);
});

test('silence loses a run; points and heartbeats keep it, and bring it back', async () => {
    const quiet = await open(), kept = await open(), fed = await open(), logged = await open();
    for (let i = 0; i < 50 && (await now(quiet)).state !== 'ended'; i++) {
        assert.equal((await host.post(`/api/v1/runs/${kept.id}/heartbeat`)).status, 200);
        assert.equal((await points(fed, { key: 'x', step: i, value: i })).status, 200);
        assert.equal((await host.post(`/api/v1/runs/${logged.id}/logs`, { text: '.' })).status, 200);
        await sleep(100);
    }
    const lost = await now(quiet);
    assert.deepEqual([lost.state, lost.outcome, lost.reason], ['ended', 'lost', 'nothing was heard of it for 2 s']);
    for (const run of [kept, fed, logged])
        assert.equal((await now(run)).state, 'running');
    const job = (await host.get(`/api/v1/jobs/${quiet.job_id}`)).json;
    assert.deepEqual([job.state, job.reason, job.runs.failed], ['failed', 'nothing was heard of it for 2 s', 1]);
    assert.deepEqual((await host.get('/api/v1/runs?outcome=lost')).json.runs.map(r => r.id), [quiet.id]);
    const { rows } = (await host.get(`/api/v1/aggregate?by=job&job=${quiet.job_id}&metric=x`)).json;
    assert.deepEqual([rows[0].runs.lost, rows[0].runs.cancelled, rows[0].metrics.x.n], [1, 0, 0]);
    assert.equal((await points(quiet, { key: 'x', step: 1, value: 1 })).status, 200);
    assert.equal((await now(quiet)).state, 'running');
    assert.equal((await host.get(`/api/v1/jobs/${quiet.job_id}`)).json.state, 'running');
    for (const run of [quiet, kept, fed, logged])
        assert.equal((await finish(run)).json.outcome, 'succeeded');
});

test('wrong states answer 409 and say why', async () => {
    const run = await open();
    const trained = (await submit(host)).run_ids[0];
    for (const [target, body, says] of [
        [`/api/v1/runs/${trained}/heartbeat`, undefined, /polyd executes run/], [`/api/v1/runs/${trained}/finish`, { outcome: 'failed' }, /polyd executes run/],
        [`/api/v1/runs/${trained}/logs`, { text: 'x' }, /carried out by polyd/], [`/api/v1/jobs/${run.job_id}/pause`, {}, /is external/],
        [`/api/v1/jobs/${run.job_id}/resume`, {}, /is external/], [`/api/v1/jobs/${run.job_id}/retry`, {}, /is external/]]) {
        const reply = await host.post(target, body);
        assert.equal(reply.status, 409, target);
        assert.match(reply.json.detail, says);
    }
    for (const [body, pointer] of [[{}, '#/outcome'], [{ outcome: 'lost' }, '#/outcome'], [{ outcome: 'failed', why: 'x' }, '#/why'], [{ outcome: 'failed', reason: 1 }, '#/reason']]) {
        const reply = await finish(run, undefined, body.outcome ? body : { outcome: undefined });
        assert.deepEqual([reply.status, reply.json.errors[0].pointer], [422, pointer]);
    }
    assert.equal((await host.post('/api/v1/runs/9999/finish', { outcome: 'failed' })).status, 404);
    assert.equal((await host.post(`/api/v1/runs/${run.id}/cancel`, { reason: 'enough' })).json.outcome, 'cancelled');
    const told = await host.post(`/api/v1/runs/${run.id}/heartbeat`);
    assert.deepEqual([told.status, /has ended: cancelled/.test(told.json.detail)], [409, true]);
    assert.equal((await finish(run, 'cancelled')).status, 200);
    assert.equal((await finish(run, 'succeeded')).status, 409);
});

test('a run outlives a restart of polyd, and the time that polyd was away is no silence', async () => {
    const run = await open({ name: 'over a restart' });
    await points(run, { key: 'x', step: 1, value: 1 });
    const { dir } = host;
    await host.stop({ keep: true });
    await sleep(2500); // longer than the silence that loses a run: this time is the test's matter
    host = await Daemon.start(['--runs.silence_s=2'], dir);
    assert.equal((await now(run)).state, 'running');
    await sleep(500); // the daemon looks for silent runs several times in it
    assert.equal((await now(run)).state, 'running');
    assert.equal((await points(run, { key: 'x', step: 2, value: 2 })).status, 200);
    assert.equal((await finish(run, 'failed', { reason: 'no luck' })).json.reason, 'no luck');
    execFileSync(path.join(build, 'bin/polyd'), [`--state-dir=${dir}/state`, 'verify'], { env: { ...process.env, POLYD_CONFIG: '' } });
});

/* ---- the examples ---- */

const examples = path.join(root, 'deploy/examples');
const here = (program, ...args) => spawnSync(program, args, { encoding: 'utf8' });
const url = () => `http://127.0.0.1:${host.port}`;

test('the example in Python reports a run', { skip: here('python3', '--version').status !== 0 && 'python3 is not here' }, async () => {
    const out = here('python3', path.join(examples, 'own_run.py'), url());
    assert.equal(out.status, 0, out.stderr);
    const id = /run (\d+): loss/.exec(out.stdout)[1];
    const run = await now({ id });
    assert.deepEqual([run.outcome, run.step, run.total_steps, run.tags], ['succeeded', 200, 200, { language: 'python' }]);
    assert.match(run.reason, /^y = (2\.9|3\.0)\d x -(0\.9|1\.0)\d$/);
    const series = (await host.get(`/api/v1/runs/${id}/metrics`)).json.series;
    assert.deepEqual(series.map(s => [s.key, s.count]), [['loss/train', 200]]);
    assert.equal((await host.get(`/api/v1/runs/${id}/logs`)).text.split('\n').length, 5);
    const wrong = here('python3', path.join(examples, 'own_run.py'), `${url()}/nowhere`);
    assert.notEqual(wrong.status, 0);
});

const curl = here('pkg-config', '--cflags', '--libs', 'libcurl');
test('the example in C reports a run', { skip: curl.status !== 0 && 'libcurl is not here' }, async () => {
    const program = path.join(host.dir, 'own_run');
    const made = here('cc', '-std=c17', '-Wall', '-Wextra', '-Werror', path.join(examples, 'own_run.c'), ...curl.stdout.trim().split(/\s+/), '-o', program);
    assert.equal(made.status, 0, made.stderr);
    const out = here(program, url());
    assert.equal(out.status, 0, out.stderr);
    const run = await now({ id: /run (\d+): x = 1.414214/.exec(out.stdout)[1] });
    assert.deepEqual([run.outcome, run.reason, run.step, run.document], ['succeeded', 'x = 1.414214', 12, { start: 100 }]);
    assert.equal(here(program, 'http://127.0.0.1:1').status, 1);
});
