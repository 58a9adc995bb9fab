// node tests/bench/large.mjs [RUNS KEYS POINTS [JOBS]]: a daemon over a large store (10000 x 10 x 1000: 100 million rows, about
// 4 GB under the temporary folder, minutes to make; by default a hundredth of the points). Measures the time from
// start to ready, the first page of the run table, a chart of 100 runs, both also while 64 clients log, and the daemon's
// memory. JOBS (default 100000): a second store of so many jobs, for the time to ready alone.
import { execFileSync, spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, statSync, readdirSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { build } from '../api/lib.mjs';

const [runs = 10000, keys = 10, points = 10, jobs = 100000] = process.argv.slice(2).map(Number);
const bin = name => path.join(build, 'bin', name);
const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));

async function start(dir) {
    const begun = performance.now();
    const child = spawn(bin('polyd'), ['--port=0', `--state.dir=${dir}`], { stdio: ['ignore', 'ignore', 'pipe'], env: { ...process.env, POLYD_CONFIG: '' } });
    let text = '';
    const port = await new Promise((resolve, reject) => {
        child.stderr.on('data', data => {
            text += data;
            const match = /listening=\S+ port=(\d+)/.exec(text);
            if (match)
                resolve(Number(match[1]));
        });
        child.on('exit', () => reject(new Error(text)));
    });
    for (;;) {
        const reply = await fetch(`http://127.0.0.1:${port}/readyz`).catch(() => null);
        if (reply?.status === 200)
            break;
        await sleep(2);
    }
    return { child, port, ready: performance.now() - begun };
}

const stop = daemon => new Promise(resolve => {
    daemon.child.removeAllListeners('exit');
    daemon.child.on('exit', resolve);
    daemon.child.kill('SIGTERM');
});

const rss = daemon => Math.round(Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${daemon.child.pid}/status`, 'utf8'))[1]) / 1024);
const size = dir => readdirSync(dir).filter(name => name.endsWith('.db')).reduce((sum, name) => sum + statSync(path.join(dir, name)).size, 0);

function get(daemon, what, connections, url) {
    const line = execFileSync(bin('bench_api'), [String(daemon.port), 'get', String(connections), '4', url], { encoding: 'utf8' }).trim();
    console.log(`${what}: ${line.replace(/^get \S+: /, '')}`);
}

console.log(`${os.cpus().length} x ${os.cpus()[0].model}, load ${os.loadavg()[0].toFixed(1)}`);
let dir = mkdtempSync(path.join(os.tmpdir(), 'polyd-large-'));
try {
    console.log(execFileSync(bin('large_store'), [dir, String(runs), String(keys), String(points)], { encoding: 'utf8' }).trim(), `${(size(dir) / 1e9).toFixed(2)} GB`);
    let daemon = await start(dir);
    console.log(`ready after ${daemon.ready.toFixed(0)} ms`);
    const series = Array.from({ length: keys }, (_, k) => `metric=series/${k}`).join('&');
    const hundred = Array.from({ length: Math.min(100, runs) }, (_, k) => `run=${1 + Math.floor(k * runs / 100)}`).join('&');
    const table = `/api/v1/runs?limit=50&${series}`, chart = `/api/v1/compare/series?${hundred}&key=series/0`;
    const reply = await fetch(`http://127.0.0.1:${daemon.port}${chart}`);
    if (reply.status !== 200)
        throw new Error(`${reply.status} ${await reply.text()}`);
    get(daemon, `run table, ${keys} metrics`, 1, table);
    get(daemon, 'chart of 100 runs', 1, chart);
    const load = spawn(bin('bench_api'), [String(daemon.port), 'ingest', '64', '10', '1:10'], { stdio: 'ignore' });
    get(daemon, 'run table, 64 clients logging', 1, table);
    get(daemon, 'chart of 100 runs, 64 clients logging', 1, chart);
    load.kill();
    console.log(`memory ${rss(daemon)} MB`);
    await stop(daemon);
    rmSync(dir, { recursive: true });
    if (jobs) {
        dir = mkdtempSync(path.join(os.tmpdir(), 'polyd-large-'));
        execFileSync(bin('large_store'), [dir, String(jobs), '1', '1']);
        daemon = await start(dir);
        console.log(`${jobs} jobs: ready after ${daemon.ready.toFixed(0)} ms, memory ${rss(daemon)} MB`);
        await stop(daemon);
    }
} finally {
    rmSync(dir, { recursive: true, force: true });
}
