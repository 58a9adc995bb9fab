// Getting rid of things, on the real daemon: archive and delete with If-Match, what is refused and in which words, what is left
// on the disk, over a restart as well; `polyd gc`; the bound of the cache.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, utimesSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, before, beforeEach, test } from 'node:test';
import { build, Daemon, sleep } from './lib.mjs';

let host;
before(async () => {
    host = await Daemon.start();
});
after(() => host.stop());
/** The experiment of the test at hand: what an earlier one left behind is not in it. */
let label, tests = 0;
beforeEach(() => { label = `away-${++tests}`; });

const state = name => path.join(host.dir, 'state', name);
const polyd = (...args) => spawnSync(path.join(build, 'bin/polyd'), [`--state-dir=${host.dir}/state`, ...args], { encoding: 'utf8', env: { ...process.env, POLYD_CONFIG: '' } });
function sound() {
    const { status, stdout } = polyd('verify');
    assert.equal(status, 0, stdout);
}
async function until(what, condition) {
    for (let i = 0; i < 600; i++) {
        if (await condition())
            return;
        await sleep(50);
    }
    assert.fail(`waited too long for ${what}`);
}
const gone = (...names) => until(`${names} to go`, () => names.every(name => !existsSync(state(name))));
const swept = () => until('the rest of what was deleted', async () => (await host.get('/api/v1/storage')).json.deleting === 0);
const drop = (what, tag = '*') => host.call('DELETE', `/api/v1/${what}`, { headers: tag ? { 'if-match': tag } : {} });
const put = (what, verb, options) => host.post(`/api/v1/${what}/${verb}`, {}, options);
const ids = async query => (await host.get(`/api/v1/runs?${query}`)).json.runs.map(run => run.id);
async function refused(reply, status, says) {
    const { status: got, json } = await reply;
    assert.equal(got, status, json?.detail);
    assert.match(json.detail, says);
}

/** A run that this test carries out: its id. */
async function own({ points = 3, log = 'a line\n', finish = true, name = 'own' } = {}) {
    const { id } = (await host.post('/api/v1/runs', { name, experiment: label })).json;
    for (let at = 0; at < points; at += 10000) {
        const batch = Array.from({ length: Math.min(10000, points - at) }, (_, i) => ({ key: 'loss', step: at + i, value: i }));
        assert.equal((await host.post(`/api/v1/runs/${id}/metrics`, { points: batch })).status, 200);
    }
    assert.equal((await host.post(`/api/v1/runs/${id}/logs`, { text: log })).status, 200);
    if (finish)
        await host.post(`/api/v1/runs/${id}/finish`, { outcome: 'succeeded', reason: 'all steps' });
    return id;
}

const small = more => ({
    name: 'small', experiment: label, model: { preset: 'vit_micro', patch: 14, depth: 1 }, diagnostics: { every: 0 },
    data: { dataset: 'digits_gen', split: { rule: 'count', train: 64, val: 32 } }, train: { steps: 6, batch: 8, eval_every: 3 }, ...more,
});
async function trained(more) {
    const { id, run_ids: runs } = (await host.post('/api/v1/jobs', small(more))).json;
    assert.equal((await host.over(id)).state, 'done');
    return { id, runs };
}

test('a run is archived and deleted with the tag last seen, and every wrong way is named', async () => {
    const id = await own({ finish: false, log: 'four words of log\n' });
    await refused(drop(`runs/${id}`), 409, /run \d+ is running: cancel it, or wait for its end, to delete it/);
    await refused(put(`runs/${id}`, 'archive'), 409, /is running: .* to archive it/);
    await host.post(`/api/v1/runs/${id}/finish`, { outcome: 'succeeded' });
    const seen = await host.get(`/api/v1/runs/${id}`), tag = seen.headers.etag;
    assert.deepEqual([seen.json.archived, seen.json.bytes], [null, { checkpoints: 0, logs: 18, blobs: 0, total: 18 }]);

    await refused(drop(`runs/${id}`, null), 428, /If-Match/);
    await refused(drop(`runs/${id}`, '"1"'), 412, /has version \d+, not 1/);
    await refused(drop(`runs/${id}`, 'nonsense'), 412, /does not name the present version/);
    await refused(drop('runs/99999'), 404, /no run 99999/);
    await refused(host.call('DELETE', '/api/v1/runs/twelve', { headers: { 'if-match': '*' } }), 404, /./);
    await refused(host.post(`/api/v1/runs/${id}/archive`, { why: 1 }), 422, /empty object/);
    await refused(put(`runs/${id}`, 'archive', { headers: { 'if-match': '"1"' } }), 412, /version/);
    await refused(host.get('/api/v1/runs?archived=banana'), 400, /archived must be false .* true .* or any/);

    const put1 = await put(`runs/${id}`, 'archive', { headers: { 'if-match': tag } });
    assert.equal(put1.status, 200);
    assert.ok(Date.parse(put1.json.archived) > 0);
    assert.notEqual(put1.headers.etag, tag);
    assert.equal((await put(`runs/${id}`, 'archive')).json.archived, put1.json.archived); // asking twice is no error
    for (const [query, shown] of [['', false], ['archived=false', false], ['archived=true', true], ['archived=any', true], ['archived=any&sort=loss', true], ['sort=loss', false]])
        assert.equal((await ids(`experiment=${label}&${query}`)).includes(id), shown, query);
    const { job_id: job } = seen.json;
    assert.equal((await host.get('/api/v1/jobs?archived=true')).json.jobs[0].id, job); // the run of a job of one is its job
    assert.equal((await put(`jobs/${job}`, 'unarchive')).json.archived, null);
    assert.equal((await host.get(`/api/v1/runs/${id}`)).json.archived, null);

    await refused(drop(`runs/${id}`, tag), 412, /has version/);
    const now = (await host.get(`/api/v1/runs/${id}`)).headers.etag;
    const events = host.events(`/api/v1/events?job=${job}`);
    await events.opened;
    const done = await drop(`runs/${id}`, now);
    assert.deepEqual([done.status, done.text], [204, '']);
    await events.until(stream => stream.events.some(e => e.event === 'job.deleted' && JSON.parse(e.data).data.name === 'own'));
    events.close();
    for (const target of [`runs/${id}`, `jobs/${job}`])
        assert.deepEqual([(await host.get(`/api/v1/${target}`)).status, (await drop(target)).status], [404, 404]);
    assert.equal((await host.post(`/api/v1/runs/${id}/metrics`, { points: [{ key: 'loss', step: 9, value: 1 }] })).status, 404);
    assert.deepEqual(await ids(`experiment=${label}&archived=any`), []);
    await gone(`runs/${id}`);
    await swept();
    sound();
});

test('a run with a model stays until its version is deleted; a version that is loaded or named stays too', async () => {
    const storage = async () => (await host.get('/api/v1/storage?limit=1000')).json, before = await storage();
    const { id: job, runs: [run] } = await trained();
    const full = (await host.get(`/api/v1/jobs/${job}`)).json;
    const files = readdirSync(state(`runs/${run}/checkpoints`));
    assert.ok(files.length > 0 && full.bytes.checkpoints > 10000 && full.bytes.total >= full.bytes.checkpoints + full.bytes.logs);
    const { path: where, runs: space, jobs: rows } = await storage();
    assert.deepEqual([where, space.checkpoints - before.runs.checkpoints], [path.join(host.dir, 'state'), full.bytes.checkpoints]);
    assert.equal(rows.find(row => row.id === job).bytes, full.bytes.checkpoints + full.bytes.logs);
    assert.deepEqual((await host.get('/api/v1/storage?limit=1')).json.jobs, rows.slice(0, 1)); // the largest first
    await refused(host.get('/api/v1/storage?limit=0'), 400, /limit/);

    for (const wanted of ['1', '2'])
        assert.equal((await host.post('/api/v1/models/away/versions', { run_id: run })).json.version, wanted);
    await refused(drop(`runs/${run}`), 409, /checkpoint of run \d+ is version 1 of model 'away': delete that version first/);
    await refused(drop(`jobs/${job}`), 409, /checkpoint of job \d+ is version 1 of model 'away'/);
    assert.equal((await host.post('/api/v1/models/away/versions/1/load', {})).status, 200);
    await host.call('PUT', '/api/v1/models/away/aliases/prod', { json: { version: '2' }, headers: { 'if-match': '*' } });
    await refused(drop('models/away/versions/1'), 409, /version 1 of model 'away' is loaded \(READY\): unload it first/);
    await refused(drop('models/away/versions/2'), 409, /has the alias 'prod'/);
    await refused(drop('models/away'), 409, /version 1 of model 'away' is loaded/);
    await refused(put('models/away', 'archive'), 409, /is loaded/);
    await refused(drop('models/away/versions/7'), 404, /no version or alias '7'/);
    await refused(drop('models/nothing'), 404, /no model 'nothing'/);
    await refused(drop('models/away/versions/1', null), 428, /If-Match/);
    assert.equal((await host.post('/api/v1/models/away/versions/1/unload', {})).status, 200);
    await refused(drop('models/away/versions/1', '"1"'), 412, /has changed in the meantime/);
    const { headers } = await host.get('/api/v1/models/away/versions/1');
    assert.equal((await drop('models/away/versions/1', headers.etag)).status, 204);
    assert.equal((await host.get('/api/v1/models/away/versions/1')).status, 404);

    assert.equal((await put('models/away/versions/2', 'archive')).json.model, 'away');
    assert.ok((await put('models/away', 'archive')).json.archived);
    const names = async query => (await host.get(`/api/v1/models${query}`)).json.models.map(m => m.name);
    assert.deepEqual([await names(''), await names('?archived=true'), await names('?archived=any')], [[], ['away'], ['away']]);
    assert.equal((await host.post('/api/v1/models/away/versions', { run_id: run })).json.version, '3'); // numbers are not given again
    assert.deepEqual(await names(''), ['away']); // a new version brings it back
    await refused(drop(`jobs/${job}`), 409, /is version 2 of/);
    assert.equal((await drop('models/away')).status, 204);
    assert.deepEqual(readdirSync(state(`runs/${run}/checkpoints`)), files); // the run keeps its files
    assert.equal((await drop(`jobs/${job}`)).status, 204);
    await gone(`runs/${run}`);
    await swept();
    const { runs: left, jobs: others } = await storage();
    assert.deepEqual([left, others.filter(row => row.id === job)], [before.runs, []]);
    sound();
});

test('a first load that fails leaves the server ready, and is forgotten with its version', async () => {
    const { id: job, runs: [run] } = await trained();
    const files = readdirSync(state(`runs/${run}/checkpoints`)).map(name => state(`runs/${run}/checkpoints/${name}`));
    const kept = files.map(file => readFileSync(file));
    const spoil = () => files.forEach(file => writeFileSync(file, 'spoilt'));
    const restore = () => files.forEach((file, i) => writeFileSync(file, kept[i]));
    const ready = async () => (await host.get('/v2/health/ready')).status;
    const known = async () => (await host.get('/metrics')).text.includes('model="lost"');
    for (const wanted of ['1', '2'])
        assert.equal((await host.post('/api/v1/models/lost/versions', { run_id: run })).json.version, wanted);
    spoil();
    assert.notEqual((await host.post('/api/v1/models/lost/versions/1/load', {})).status, 200);
    assert.ok((await host.get('/api/v1/models/lost/versions/1')).json.reason);
    assert.deepEqual([await ready(), await known()], [200, true]);
    assert.equal((await drop('models/lost/versions/1')).status, 204);
    await until('the load to be forgotten', async () => !(await known()));

    restore();
    assert.equal((await host.post('/api/v1/models/lost/versions/2/load', {})).status, 200);
    assert.equal(await ready(), 200);
    await host.stop({ keep: true });
    spoil();
    host = await Daemon.start([], host.dir);
    const load = async () => (await host.get('/api/v1/models/lost/versions/2')).json;
    await until('the load to fail', async () => (await load()).state === 'UNAVAILABLE' && (await load()).reason);
    assert.equal(await ready(), 503); // it was ready before the restart
    assert.equal((await host.post('/api/v1/models/lost/versions/2/unload', {})).status, 200);
    assert.equal(await ready(), 200);
    restore();
    assert.equal((await drop('models/lost')).status, 204);
    assert.equal((await drop(`jobs/${job}`)).status, 204);
    await swept();
});

test('a sweep loses one run and counts on; its last run takes it along', async () => {
    const { id: job, runs: [one, two] } = await trained({ trials: 2 });
    await host.post('/api/v1/groups', { name: 'pair', runs: [one, two] });
    const group = (await host.get('/api/v1/groups/pair')).headers.etag;
    await put(`runs/${one}`, 'archive');
    assert.deepEqual([await ids(`job=${job}`), await ids(`job=${job}&archived=true`)], [[two], [one]]);
    await put(`jobs/${job}`, 'archive');
    await refused(put(`runs/${one}`, 'unarchive'), 409, /job \d+ is archived as a whole/);
    assert.deepEqual([await ids(`job=${job}`), await ids(`experiment=${label}`)], [[two], []]);
    await put(`jobs/${job}`, 'unarchive');
    assert.equal((await drop(`runs/${one}`)).status, 204);
    assert.deepEqual((await host.get(`/api/v1/jobs/${job}`)).json.runs, { total: 2, made: 2, ended: 2, failed: 0, deleted: 1 });
    assert.deepEqual((await host.get(`/api/v1/runs?group=pair`)).json.runs.map(run => run.id), [two]);
    assert.notEqual((await host.get('/api/v1/groups/pair')).headers.etag, group);
    assert.equal((await host.get(`/api/v1/jobs/${job}/sweep`)).status, 200);
    sound();
    assert.ok((await put('groups/pair', 'archive')).json.archived);
    assert.deepEqual([(await host.get('/api/v1/groups')).json.groups.length, (await host.get('/api/v1/groups?archived=any')).json.groups.length], [0, 1]);
    assert.equal((await put('groups/pair', 'unarchive')).json.archived, null);
    await refused(drop('groups/none'), 404, /no group 'none'/);
    assert.equal((await drop('groups/pair')).status, 204);
    assert.equal((await drop(`runs/${two}`)).status, 204);
    assert.equal((await host.get(`/api/v1/jobs/${job}`)).status, 404);
    await gone(`runs/${one}`, `runs/${two}`);
    await swept();
    sound();
});

test('the pages of a sweep go on after a combination whose runs were deleted', async () => {
    const { id: job, run_ids: runs } = (await host.post('/api/v1/jobs', small({ sweep: { axes: [{ pointer: '/train/batch', values: [4, 8, 16, 32] }] } }))).json;
    await host.post(`/api/v1/jobs/${job}/cancel`);
    await host.over(job);
    assert.equal((await drop(`runs/${runs[1]}`)).status, 204);
    const points = [];
    for (let cursor = '', pages = 0; cursor !== null; pages++) {
        const page = (await host.get(`/api/v1/jobs/${job}/sweep?limit=2${cursor && `&cursor=${cursor}`}`)).json;
        points.push(...page.table.map(row => row.point));
        cursor = page.next;
        assert.ok(pages < 4);
    }
    assert.deepEqual(points, [0, 2, 3]);
});

test('a large run is gone at once, the writer goes on, and a restart finishes the rest', async () => {
    const [large, other] = [await own({ points: 120000 }), await own({ finish: false, name: 'other' })];
    assert.equal((await drop(`runs/${large}`)).status, 204);
    assert.equal((await host.get(`/api/v1/runs/${large}/metrics`)).status, 404);
    let slowest = 0;
    for (let i = 0; i < 10; i++) {
        const began = performance.now();
        assert.equal((await host.post(`/api/v1/runs/${other}/heartbeat`, {})).status, 200);
        slowest = Math.max(slowest, performance.now() - began);
    }
    assert.ok(slowest < 10000, `a write waited ${slowest} ms`);
    sound(); // in the middle of it
    const { dir } = host;
    await host.stop({ keep: true });
    host = await Daemon.start([], dir);
    await swept();
    await gone(`runs/${large}`);
    sound();
    await host.post(`/api/v1/runs/${other}/finish`, { outcome: 'succeeded' });
    assert.equal((await drop(`runs/${other}`)).status, 204);
    await swept();
});

test('polyd gc names what belongs to nothing, and removes that alone', async () => {
    const kept = await own();
    const sha = 'ab'.repeat(32);
    const plant = (name, text = 'x'.repeat(100)) => {
        mkdirSync(path.dirname(state(name)), { recursive: true });
        writeFileSync(state(name), text);
    };
    const orphans = ['runs/7777/checkpoints/step-1.safetensors', `blobs/ab/${sha}`, 'blobs/ab/left.tmp.12', 'cache/abc.tmp-1-1', 'serve/77/log'];
    const others = ['old-20260101T000000/runs/1/log', 'runs/notes.txt', 'cache/good.cache'];
    for (const name of [...orphans, ...others])
        plant(name);

    const beside = polyd('gc');
    assert.equal(beside.status, 1);
    assert.match(beside.stderr, /a running polyd uses .*: stop it first, or use --dry-run/);
    const young = polyd('gc', '--dry-run');
    assert.deepEqual([young.status, /runs\/7777/.test(young.stdout)], [0, false]); // beside a daemon what is young may be on its way
    const past = new Date(Date.now() - 3600000);
    utimesSync(state('runs/7777'), past, past);
    assert.match(polyd('gc', '--dry-run').stdout, /100 {2}runs\/7777 {2}\(its run is not in the database\)/);

    const { dir } = host;
    await host.stop({ keep: true });
    const dry = polyd('gc', '--dry-run');
    assert.equal(dry.status, 0, dry.stderr);
    for (const name of ['runs/7777', `blobs/ab/${sha}`, 'blobs/ab/left.tmp.12', 'cache/abc.tmp-1-1', 'serve/77'])
        assert.match(dry.stdout, new RegExp(`100 {2}${name.replaceAll('.', '\\.')} {2}\\(`));
    assert.match(dry.stdout, /old-20260101T000000 {2}\(stays: moved aside by --init/);
    assert.match(dry.stdout, /: 5 things, 500 bytes, nothing was removed\n$/);
    assert.doesNotMatch(dry.stdout, new RegExp(`runs/${kept} |notes|good`));
    for (const name of [...orphans, ...others])
        assert.ok(existsSync(state(name)), name);

    assert.match(polyd('--cache.max_bytes=0', 'gc', '--dry-run').stdout, /cache\/good\.cache {2}\(over cache\.max_bytes/);
    const { status, stdout, stderr } = polyd('gc');
    assert.equal(status, 0, stderr);
    assert.match(stdout, /: 5 things, 500 bytes removed\n$/);
    for (const name of orphans)
        assert.ok(!existsSync(state(name)), name);
    for (const name of [...others, `runs/${kept}/log`])
        assert.ok(existsSync(state(name)), name);
    assert.match(polyd('gc').stdout, /: 0 things, 0 bytes removed\n$/);
    sound();

    const wrong = polyd('gc', '--dry');
    assert.equal(wrong.status, 2);
    assert.match(wrong.stderr, /no such argument: --dry; the only one is --dry-run/);
    const empty = mkdtempSync(path.join(os.tmpdir(), 'polyd-gc-'));
    const none = polyd(`--state-dir=${empty}`, 'gc');
    assert.deepEqual([none.status, readdirSync(empty)], [1, []]);
    assert.match(none.stderr, /there is no database/);
    rmSync(empty, { recursive: true });
    host = await Daemon.start([], dir);
    assert.equal((await host.get(`/api/v1/runs/${kept}/logs`)).text, 'a line\n');
});

test('polyd gc finishes a deletion that the daemon could not', async () => {
    const id = await own({ points: 30000 });
    assert.equal((await drop(`runs/${id}`)).status, 204);
    const { dir } = host;
    host.child.kill('SIGKILL');
    await host.exit;
    assert.equal(polyd('gc').status, 0);
    assert.ok(!existsSync(state(`runs/${id}`)));
    assert.match(polyd('gc', '--dry-run').stdout, /: 0 things, 0 bytes/);
    sound();
    host = await Daemon.start([], dir);
    assert.equal((await host.get('/api/v1/storage')).json.deleting, 0);
});

test('the cache keeps to its bound: unused for longest goes first, in use stays', async () => {
    const { dir } = host;
    await host.stop({ keep: true });
    rmSync(state('cache'), { recursive: true, force: true });
    mkdirSync(state('cache'));
    for (const [i, name] of ['held', 'old', 'middle', 'new'].entries()) {
        writeFileSync(state(`cache/${name}.cache`), Buffer.alloc(1000));
        utimesSync(state(`cache/${name}.cache`), 1000 + i, 1000 + i);
    }
    const user = spawn('flock', ['-s', state('cache/held.cache'), '-c', 'echo held; exec sleep 60'], { stdio: ['ignore', 'pipe', 'inherit'], detached: true });
    await new Promise(resolve => user.stdout.once('data', resolve));
    host = await Daemon.start(['--cache.max_bytes=2500'], dir);
    await gone('cache/old.cache', 'cache/middle.cache');
    assert.deepEqual(readdirSync(state('cache')).sort(), ['held.cache', 'limit', 'new.cache']);
    assert.equal(readFileSync(state('cache/limit'), 'utf8'), '2500\n');
    assert.deepEqual((await host.get('/api/v1/storage')).json.cache, { path: state('cache'), bytes: 2000, files: 2, max_bytes: 2500 });
    process.kill(-user.pid);
    await refused(Daemon.start(['--cache.max_bytes=-1']).then(() => ({ status: 0 }), error => ({ status: 1, json: { detail: error.message } })), 1, /cache\.max_bytes/);
});
