// Requests whose write waits behind a held writer: what they leave if the server stops, if the write is refused, or if
// another write is committed first.
import assert from 'node:assert/strict';
import { existsSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { Host, sleep, submit, tinyJob } from './lib.mjs';

let host;
before(async () => { host = await Host.start(); });
after(async () => {
    await host.tell('go'); // of a test that failed
    await host.stop();
});

/** Waits until /metrics has this line. */
async function metric(line, on = host) {
    for (let i = 0; i < 1000; i++) {
        if ((await on.get('/metrics')).text.includes(`${line}\n`))
            return;
        await sleep(10);
    }
    assert.fail(`waited in vain for ${line}`);
}

const queued = (lane, count, on = host) => metric(`polyd_db_queue_depth{lane="${lane}"} ${count}`, on);

/** From here to `go` nothing is committed. */
async function hold(on = host) {
    await on.tell('hold');
    await queued('command', 0, on); // else the next write could join its group
}

test('what is committed after the server gave its requests up stays: a job, a version with its file', async () => {
    const other = await Host.start([], { dir: mkdtempSync(path.join(os.tmpdir(), 'polyd-api-')) });
    await hold(other);
    const answers = [other.post('/api/v1/models/late/versions', { path: 'weights/x' }), other.post('/api/v1/jobs', tinyJob({ name: 'late' }))];
    await queued('command', 2, other);
    await other.stop();
    assert.deepEqual((await Promise.all(answers)).map(answer => answer.status), [503, 503]);
    const again = await Host.start([], { dir: other.dir });
    try {
        assert.equal((await again.get('/api/v1/models/late/versions/1')).status, 200);
        assert.equal(readdirSync(path.join(other.dir, 'models')).length, 1);
        assert.deepEqual((await again.get('/api/v1/jobs')).json.jobs.map(job => job.name), ['late']);
    } finally {
        await again.stop();
        rmSync(other.dir, { recursive: true, force: true });
    }
});

test('a version that is deleted while a job with it is planned refuses the job and names the member', async () => {
    const { run_ids: [run] } = await submit(host);
    writeFileSync(path.join(host.dir, 'document'), JSON.stringify((await host.get(`/api/v1/runs/${run}`)).json.document));
    const jobs = async () => (await host.get('/api/v1/jobs?limit=100')).json.jobs.length;
    const before = await jobs();
    for (const [job, pointer] of [
        [tinyJob({ train: { steps: 10, start: { model: 'named:1' } } }), '#/train/start/model'],
        [tinyJob({ model: { preset: 'deit_micro' }, train: { steps: 10, teacher: { model: 'named' } } }), '#/train/teacher/model'],
        [{ kind: 'evaluate', model: 'named:prod' }, '#/model'],
    ]) {
        assert.equal((await host.post('/api/v1/models/named/versions', { path: 'document' })).json.version, '1');
        assert.equal((await host.call('PUT', '/api/v1/models/named/aliases/prod', { json: { version: '1' }, headers: { 'if-match': '*' } })).status, 200);
        await hold();
        const deleted = host.call('DELETE', '/api/v1/models/named', { headers: { 'if-match': '*' } });
        await queued('command', 1);
        const answer = host.post('/api/v1/jobs?accept_unplanned=1', job);
        await Promise.race([queued('command', 2), answer.then(reply => assert.fail(reply.text))]);
        await host.tell('go');
        assert.equal((await deleted).status, 204);
        const { status, json } = await answer;
        assert.deepEqual([status, json.errors?.map(error => error.pointer)], [422, [pointer]], JSON.stringify(json));
        assert.match(json.errors[0].detail, /no version 1 of model 'named'/);
    }
    assert.equal(await jobs(), before);
});

const openRun = async () => (await host.post('/api/v1/runs', { name: 'logged' })).json.id;
const say = (run, text) => host.post(`/api/v1/runs/${run}/logs`, { text });
const logOf = async run => (await host.get(`/api/v1/runs/${run}/logs`)).text;

test('a text that was refused because the writer is full is in the log once after the client repeats it', async () => {
    const run = await openRun(), other = await openRun();
    assert.equal((await say(run, 'one\n')).status, 200);
    await hold();
    const points = Array.from({ length: 24 }, (_, step) => host.post(`/api/v1/runs/${other}/metrics`, { points: [{ key: 'x', step, value: 1 }] }));
    await queued('metrics', 24); // as many as the lane takes
    const refused = await say(run, 'two\n');
    await host.tell('go');
    await Promise.all(points);
    assert.equal(refused.status, 503);
    assert.deepEqual((await say(run, 'two\n')).json, { size: 8 });
    assert.equal(await logOf(run), 'one\ntwo\n');
});

test('texts of several requests follow each other, and what was not committed is not kept', async () => {
    const run = await openRun();
    await hold();
    const first = say(run, 'one\n');
    await queued('metrics', 1);
    const second = say(run, 'two\n');
    await queued('metrics', 2);
    await host.tell('go');
    assert.deepEqual([(await first).json, (await second).json], [{ size: 4 }, { size: 8 }]);
    await host.tell(`log ${run} 0 a piece of a text whose commit failed`);
    assert.deepEqual((await say(run, 'three\n')).json, { size: 14 });
    assert.equal(await logOf(run), 'one\ntwo\nthree\n');
    assert.equal((await host.get(`/api/v1/runs/${run}`)).json.bytes.logs, 14);
});

test('a text for a run that is deleted first is 404 and makes no file', async () => {
    const run = await openRun();
    await hold();
    const finished = host.post(`/api/v1/runs/${run}/finish`, { outcome: 'succeeded' });
    await queued('command', 1);
    const deleted = host.call('DELETE', `/api/v1/runs/${run}`, { headers: { 'if-match': '*' } });
    await queued('command', 2);
    const late = say(run, 'late\n');
    await queued('metrics', 1);
    await host.tell('go');
    await finished; // 200, or 404 if the deletion was in the same commit
    assert.deepEqual([(await deleted).status, (await late).status], [204, 404]);
    assert.ok(!existsSync(path.join(host.dir, `run-${run}-0.log`)));
});
