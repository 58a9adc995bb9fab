// node tests/api/bench.mjs [SECONDS]: figures of the API on this machine, over loopback: trivial GET, ingest of
// metrics with a commit before each answer, binary inference of a model that computes nothing (api_host's), and
// the requests of a dashboard while 20 clients log. Each line says how it was measured.
import { execFileSync, spawn } from 'node:child_process';
import os from 'node:os';
import path from 'node:path';
import { Host, build, submit } from './lib.mjs';

const seconds = process.argv[2] ?? '4';
const bench = path.join(build, 'bin/bench_api');
const host = await Host.start();
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
run('infer', 1, 'null:1,4');
run('infer', 16, 'null:1,4');
const load = spawn(bench, [String(host.port), 'ingest', '20', String(Number(seconds) + 1), '1:10'], { stdio: 'ignore' });
run('get', 4, '/api/v1/runs?limit=50&metric=bench/k1');
run('get', 4, '/api/v1/runs/1/series?key=bench/k1&buckets=500');
load.kill();
await host.stop();
