// Runs the small variants of the papers' experiments and the statements of the theory through a daemon of their own and writes
// what they showed to tests/bench/SMALL.md; what ran elsewhere keeps its section. Called by `tests/run experiments [GROUP or
// EXPERIMENT...]`; `--list` names the groups and starts nothing, `--slots=N` runs N at a time (one for each core unless given).
//
// The daemon's state stays in build/experiments: after a kill of this command or of the daemon the next call goes on where
// the last one was, and an experiment that has run is not run again (`--again` removes the folder first).
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { Daemon } from '../lib/daemon.mjs';

const root = process.env.POLYD_ROOT ?? '.', folder = path.join(root, 'build/experiments');
const shared = process.env.POLYD_SHARED ? path.join(process.env.POLYD_SHARED, 'data') : '';
const page = path.join(root, 'tests/bench/SMALL.md');

/** Minutes on two cores, as SMALL.md measured them; an experiment without a line takes less than half a minute. @type {Record<string, number>} */
const minutes = { E01: 12, E02: 5, E03: 5, E04: 1, E05: 6, E06: 2, E08: 20, E09: 3, E10: 20, E11: 8, E13: 11, E14: 16, E15: 6, E16: 2, E17: 9, E18: 3, T4: 1, T7: 1, T10: 3, T12: 3, T13: 1, T16: 1, T17: 3, T18: 5 };
/** @type {Record<string, string[]>} */
const groups = {
    memory: ['E16'],
    theory: Array.from({ length: 20 }, (_, i) => `T${i + 1}`),
    looking: ['E06', 'E12'],
    accuracy: ['E04', 'E05', 'E09'],
    norms: ['E15', 'E18'],
    optimisers: ['E13'],
    language: ['E11'],
    scale: ['E01'],
    attention: ['E02', 'E03'],
    sigmoid: ['E17'],
    equations: ['E10'],
    sequences: ['E08'],
    deep: ['E14'],
};
const every = Object.values(groups).flat();

const pidFile = path.join(folder, 'daemon.pid');
const pause = ms => new Promise(resolve => { setTimeout(resolve, ms); });
const say = text => process.stdout.write(`${text}\n`);
const args = process.argv.slice(2), names = args.filter(arg => !arg.startsWith('--'));
const slotsWanted = Number(args.find(arg => /^--slots=[1-9]\d*$/.test(arg))?.split('=')[1] ?? os.cpus().length);
const known = ['--list', '--again', '--slots=N'];
const wrong = [...names.filter(name => !groups[name] && !every.includes(name)), ...args.filter(arg => arg.startsWith('--') && !known.includes(arg.replace(/=[1-9]\d*$/, '=N')))];
if (wrong.length) {
    say(`experiments: no group, experiment or option '${wrong[0]}'; groups are ${Object.keys(groups).join(', ')}, options ${known.join(', ')}`);
    process.exit(2);
}
/** What to run, by group; an experiment's own name is a group of one. */
const chosen = Object.fromEntries((names.length ? names : Object.keys(groups)).map(name => [name, groups[name] ?? [name]]));
const sum = list => list.reduce((total, name) => total + (minutes[name] ?? 0.2), 0);
for (const [group, list] of Object.entries(chosen))
    say(`${group.padEnd(12)}about ${String(Math.ceil(sum(list))).padStart(3)} min   ${list.join(', ')}`);
say(`${'together'.padEnd(12)}about ${String(Math.ceil(sum(Object.values(chosen).flat()))).padStart(3)} min on two cores; what has run already is not run again`);
if (args.includes('--list'))
    process.exit(0);

/* ---- the daemon ---- */

if (args.includes('--again'))
    rmSync(folder, { recursive: true, force: true });
mkdirSync(folder, { recursive: true });
const daemon = new Daemon(folder, await freePort(), [`--devices.cpu_slots=${slotsWanted}`, '--devices.threads_per_slot=1',
    ...existsSync(shared) ? [`--data.shared=${shared}`] : []]);
daemon.detached = true;
await left();
await daemon.up();
writeFileSync(pidFile, String(daemon.process.pid));
for (const { id } of await jobs('paused'))
    await daemon.post(`/api/v1/jobs/${id}/resume`);
let stopping = false;
for (const signal of ['SIGINT', 'SIGTERM'])
    process.on(signal, () => { stopping = true; });

/** Ends the daemon of a call that was killed: one state folder has one daemon. Its runs go on meanwhile. */
async function left() {
    const pid = existsSync(pidFile) ? Number(readFileSync(pidFile, 'utf8')) : 0, proc = `/proc/${pid}`;
    if (!pid || !existsSync(proc) || !readFileSync(`${proc}/cmdline`, 'utf8').includes(`--state-dir=${folder}`))
        return;
    process.kill(pid, 'SIGTERM');
    while (existsSync(proc))
        await pause(100);
}

async function jobs(state) {
    return (await daemon.get('/api/v1/jobs?limit=200')).jobs.filter(job => job.state === state);
}

/** Training outlives its daemon on purpose; whoever stops this command wants none of it to go on. */
async function rest() {
    for (const { id } of await jobs('running'))
        await daemon.post(`/api/v1/jobs/${id}/pause`).catch(() => {});
    for (let n = 0; n < 200 && (await daemon.get('/api/v1/runs?state=active&limit=200')).runs.some(run => run.state === 'running' || run.state === 'starting'); n++)
        await pause(200);
}

async function freePort() {
    const { createServer } = await import('node:net');
    return new Promise(resolve => {
        const server = createServer().listen(0, '127.0.0.1', () => {
            const { port } = /** @type {import('node:net').AddressInfo} */ (server.address());
            server.close(() => resolve(port));
        });
    });
}

const find = async name => (await daemon.get('/api/v1/experiments?limit=200')).experiments.find(one => one.name === name);

/** Submits what was never submitted, and waits until all of it has ended. False: stopped. */
async function through(name) {
    if (!await find(name))
        await daemon.post('/api/v1/jobs', { template: name });
    for (let told = -1; !stopping; await pause(1000)) {
        const { runs, ended: over } = await find(name), done = runs.total - runs.open;
        if (done !== told && (done % 10 === 0 || over))
            say(`  ${name}: ${done} runs`);
        told = done;
        if (over)
            return true;
    }
    return false;
}

/* ---- what they showed ---- */

/** @param {number | null | undefined} x */
const digits = x => x === null || x === undefined ? '–' : x === 0 ? '0' : Math.abs(x) >= 1e4 || Math.abs(x) < 1e-3 ? x.toExponential(2) : x.toPrecision(4);
const label = values => Object.entries(values).map(([pointer, value]) =>
    `${pointer.split('/').pop()} ${value && typeof value === 'object' ? Object.values(value).map(v => typeof v === 'number' ? digits(v) : v).join(' ') : typeof value === 'number' ? Number(value.toPrecision(4)) : value}`).join(', ') || 'one combination';
const share = statistic => statistic?.n ? `${digits(statistic.mean)} ± ${digits(statistic.sd)}` : '–';

/** Minutes that the runs took, all together: several ran at a time. */
async function spent(name) {
    let seconds = 0;
    for (let cursor = ''; cursor !== null;) {
        const { runs, next } = await daemon.get(`/api/v1/runs?experiment=${name}&limit=200${cursor && `&cursor=${cursor}`}`);
        seconds += runs.reduce((sum, run) => sum + (run.used_s ?? 0), 0);
        cursor = next ?? null;
    }
    return (seconds / 60).toFixed(1);
}

/** Every combination with the metric that ranks it, and the same of the test part. */
async function table(job) {
    const key = job.metric, tested = key.replace(/\/val$/, '/test');
    const { table: rows } = await daemon.get(`/api/v1/jobs/${job.id}/sweep?limit=200&metric=${key}&metric=${tested}`);
    return ['', `| ${job.name} | ${key} | ${tested} | runs, diverged |`, '|---|---|---|---|',
        ...rows.map(row => `| ${label(row.values)} | ${share(row.metrics[key])} | ${share(row.metrics[tested])} | ${row.runs.total}, ${row.runs.diverged} |`)];
}

/** @param {string} name of an experiment whose jobs are checks */
async function checked(name) {
    const x = await daemon.get(`/api/v1/experiments/${name}/report?format=json`); // with every number
    const results = x.job_list.flatMap(job => job.checks).map(({ result }) => result);
    const lines = [`## ${x.name}: ${x.question.title}`, '', x.question.question, ''];
    for (const { verdict, claimed, correct, rows, seeds, evidence } of results) {
        const judged = rows.filter(row => row.pass !== null);
        lines.push(`Verdict: **${verdict}**. ${judged.length ? `${judged.filter(row => row.pass).length} of ${judged.length} criteria hold` : 'Nothing is asserted'}, seeds ${seeds.join(', ')}, ${await spent(x.name)} min of run time, template ${x.template}.`,
            '', `- Claimed: ${claimed}.`, `- What is true: ${correct}`, ...judged.length ? [] : evidence.map(text => `- Found: ${text}`));
    }
    return lines.join('\n');
}

async function section(name) {
    const x = await daemon.get(`/api/v1/experiments/${name}`);
    if (x.job_list.every(job => job.kind === 'check'))
        return checked(name);
    const claims = x.submissions.flatMap(set => set.claims);
    const { tags } = await daemon.get(`/api/v1/jobs/${x.job_list[0].id}`), seeds = [...new Set(claims.flatMap(claim => claim.seeds))].sort((a, b) => a - b);
    const lines = [`## ${name}: ${x.question.title}`, '', x.question.question, '',
        `Verdict: **${x.verdict ?? 'not judged'}**. Data: ${tags.data}. ${x.runs.total} runs (${x.runs.diverged} diverged), seeds ${seeds.join(', ') || '–'}, ${await spent(name)} min of run time, template ${x.template}.`];
    if (claims.length)
        lines.push('', '| claim | verdict | difference, 95 % interval, pairs |', '|---|---|---|', ...claims.map(({ says, verdict, difference: d, why }) =>
            `| ${says} | ${verdict} | ${d?.n ? `${digits(d.mean)}, ${digits(d.low)} to ${digits(d.high)}, ${d.n}` : why ?? '–'} |`));
    for (const job of [...x.job_list].sort((a, b) => Number(a.id) - Number(b.id)))
        lines.push(...await table(job));
    return lines.join('\n');
}

const mark = '<!-- What follows is written by tests/run experiments. -->';
const order = [...every].sort((a, b) => a[0].localeCompare(b[0]) || Number(a.slice(1)) - Number(b.slice(1)));

/** Sections of this folder's daemon replace those of the page; the others stay. */
async function write() {
    const [before, after = ''] = (existsSync(page) ? readFileSync(page, 'utf8') : '# Small variants of the experiments').split(mark);
    const sections = new Map(after.split(/^(?=## )/m).map(text => [/^## (\w+):/.exec(text)?.[1] ?? '', text.trim()]));
    for (const name of order) {
        const head = await find(name);
        if (head && head.runs.open === 0)
            sections.set(name, await section(name));
    }
    writeFileSync(page, `${before.trimEnd()}\n\n${mark}\n\n${order.filter(name => sections.has(name)).map(name => sections.get(name)).join('\n\n')}\n`);
    say(`written: ${path.relative(root, page)}`);
}

let ended = 0, failed = 0;
try {
    for (const [group, list] of Object.entries(chosen)) {
        const began = Date.now();
        for (const name of list) {
            if (!await through(name))
                break;
            const { runs } = await find(name);
            ended++;
            failed += runs.failed > 0 || runs.lost > 0 ? 1 : 0;
        }
        if (stopping)
            break;
        say(`${group}: ${((Date.now() - began) / 60000).toFixed(1)} min`);
    }
    if (!stopping)
        await write();
} finally {
    await rest();
    daemon.process.kill('SIGTERM');
    await daemon.ended;
    rmSync(pidFile, { force: true });
}
say(stopping ? 'stopped; the next call goes on here' : `${ended - failed} passed, ${failed} failed, 0 skipped`);
process.exit(stopping ? 130 : failed ? 1 : 0);
