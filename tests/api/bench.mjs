// node tests/api/bench.mjs [SECONDS]: figures of the API on this machine, over loopback: trivial GET, ingest of
// metrics with a commit before each answer, binary inference of a model that computes nothing (api_host's), the
// requests of a dashboard while 20 clients log; then, with the real daemon, a dashboard's requests while a run
// trains, and binary inference of the small digits model it trained. Each line says how it was measured.
import { execFileSync, spawn } from 'node:child_process';
import os from 'node:os';
import path from 'node:path';
import { Daemon, Host, build, sleep, submit, tinyJob } from './lib.mjs';

const seconds = process.argv[2] ?? '4';
const bench = path.join(build, 'bin/bench_api');
let host = await Host.start();
const run = (mode, connections, argument) =>
    console.log(execFileSync(bench, [String(host.port), mode, String(connections), seconds, argument], { encoding: 'utf8' }).trim(), `(${connections} connections)`);

console.log(`${os.cpus().length} x ${os.cpus()[0].model}, load ${os.loadavg()[0].toFixed(1)}`);
await submit(host);
await host.tell('start 1');
await host.tell('checkpoint 1 5');
await host.tell('end 1');
await host.post('/api/v1/models/null/versions', { run_id: '1' });
await host.post('/api/v1/models/null/versions/1/load');
run('get', 64, '/healthz');
run('get', 64, '/api/v1/jobs/1');
run('ingest', 4, '1:1000');
run('ingest', 20, '1:10');
run('ingest', 16, '1:1000');
run('submit', 1, JSON.stringify(tinyJob()));
run('submit', 16, JSON.stringify(tinyJob()));
run('infer', 1, 'null:1,4');
run('infer', 16, 'null:1,4');
const load = spawn(bench, [String(host.port), 'ingest', '20', String(Number(seconds) + 1), '1:10'], { stdio: 'ignore' });
run('get', 4, '/api/v1/runs?limit=50&metric=bench/k1');
run('get', 4, '/api/v1/runs/1/series?key=bench/k1&buckets=500');
load.kill();
await host.stop();

host = await Daemon.start();
const reply = await host.post('/api/v1/jobs', {
    name: 'bench', model: { preset: 'vit_micro' }, data: { dataset: 'digits_gen', split: { rule: 'count', train: 2048, val: 256 } },
    train: { steps: 100000, batch: 64 }, resources: { device: 'cpu', threads: 2 },
});
const id = (await host.get(`/api/v1/runs?job=${reply.json.id}`)).json.runs[0].id;
while (((await host.get(`/api/v1/runs/${id}`)).json.step ?? 0) < 5)
    await sleep(100);
console.log('while a run trains on every core:');
run('get', 2, '/api/v1/runs?limit=50&metric=loss/train');
run('get', 2, `/api/v1/runs/${id}/series?key=loss/train&buckets=500`);
run('ingest', 256, `${id}:10`);
await host.post(`/api/v1/jobs/${reply.json.id}/cancel`);
await submit(host, { name: 'digits', data: { dataset: 'digits_gen', split: { rule: 'count', train: 256, val: 64 } }, train: { steps: 5, batch: 16 }, register: 'digits' });
while ((await host.get('/api/v1/models/digits', { check: false })).status !== 200)
    await sleep(200);
await host.post('/api/v1/models/digits/versions/1/load');
console.log('the real model, one image, through the worker:');
run('infer', 1, 'digits:1,1,28,28');
run('infer', 8, 'digits:1,1,28,28');
await host.stop();
