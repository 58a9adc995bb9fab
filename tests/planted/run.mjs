// Plants one fault after the other in a copy of the tree, rebuilds, and names the test that notices. See README.md.
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { chmodSync, existsSync, mkdirSync, readFileSync, readdirSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

import { check, load, plant, testOf } from './list.mjs';

/** @typedef {import('./list.mjs').Fault} Fault */
/**
 * @typedef {object} Outcome what a test said
 * @property {boolean} ran
 * @property {string[]} passed
 * @property {string[]} failed
 * @property {string} log
 */

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..');
const work = path.join(root, 'build/planted');
const usual = 240; // seconds that a test may take before it counts as hanging
const help = `tests/run planted [OPTIONS] [PATTERN...]: plants the faults of tests/planted/faults, one at a time, in a copy
of the tree, and names the test that fails. Without PATTERN all of them; a PATTERN is part of a fault's name, of a
field's pointer, or of the name of a list.
  --list         says what there is and plants nothing
  --check        only checks that the list fits the tree; builds nothing
  --again        also plants what an earlier call found caught on the same tree
  --narrow       only the expected tests: what they do not catch counts as survived at once
  --lanes N      so many copies at once (default: half the processors, at least 1)
Ends in 'N caught, N survived, N errors'; the exit status is 1 unless all were caught.`;

const { values: options, positionals } = parseArgs({
    allowPositionals: true,
    options: {
        list: { type: 'boolean' }, check: { type: 'boolean' }, again: { type: 'boolean' }, narrow: { type: 'boolean' },
        lanes: { type: 'string' }, help: { type: 'boolean', short: 'h' },
    },
});

/**
 * @param {string} program
 * @param {string[]} args
 * @param {{cwd?: string, env?: Record<string, string>, seconds?: number}} [how]
 * @returns {Promise<{code: number, out: string, late: boolean}>}
 */
function run(program, args, { cwd = root, env = {}, seconds = 3600 } = {}) {
    return new Promise(resolve => {
        // In a group of its own: a test that hangs is ended with what it started.
        const child = spawn(program, args, { cwd, env: { ...process.env, ...env }, stdio: ['ignore', 'pipe', 'pipe'], detached: true });
        const end = () => { try { process.kill(-/** @type {number} */ (child.pid), 'SIGKILL'); } catch { /* gone */ } };
        let out = '';
        let late = false;
        const timer = setTimeout(() => { late = true; end(); }, seconds * 1000);
        const take = (/** @type {Buffer} */ data) => { out = (out + data).slice(-400000); };
        child.stdout.on('data', take);
        child.stderr.on('data', take);
        live.add(end);
        const done = (/** @type {number | null} */ code) => {
            clearTimeout(timer);
            live.delete(end);
            resolve({ code: code ?? 1, out, late });
        };
        child.on('error', error => { out += error.message; done(1); });
        child.on('close', done);
    });
}

/** Ends what is running. @type {Set<() => void>} */
const live = new Set();
for (const signal of /** @type {const} */ (['SIGINT', 'SIGTERM']))
    process.on(signal, () => {
        live.forEach(end => end());
        process.exit(130);
    });

/** Tracked and new files; what git ignores is not part of the tree. */
async function treeFiles() {
    const { out, code } = await run('git', ['ls-files', '-z', '--cached', '--others', '--exclude-standard']);
    if (code !== 0)
        throw new Error(`git ls-files: ${out}`);
    return out.split('\0').filter(file => file && existsSync(path.join(root, file)) && statSync(path.join(root, file)).isFile());
}

/**
 * Makes `to` a copy of the tree; files that are equal keep their times, so that they are not built again.
 * @param {string[]} files
 * @param {string} to
 */
function copyTree(files, to) {
    const wanted = new Set(files);
    const clear = (/** @type {string} */ folder) => {
        for (const entry of existsSync(path.join(to, folder)) ? readdirSync(path.join(to, folder), { withFileTypes: true }) : []) {
            const file = path.join(folder, entry.name);
            if (file === 'build' || entry.name === 'node_modules')
                continue;
            if (entry.isDirectory())
                clear(file);
            else if (!wanted.has(file))
                rmSync(path.join(to, file));
        }
    };
    clear('');
    for (const file of files) {
        const target = path.join(to, file);
        const bytes = readFileSync(path.join(root, file));
        if (existsSync(target) && bytes.equals(readFileSync(target)))
            continue;
        mkdirSync(path.dirname(target), { recursive: true });
        writeFileSync(target, bytes);
        chmodSync(target, statSync(path.join(root, file)).mode);
    }
    const modules = path.join(to, 'tests/node_modules');
    if (!existsSync(modules) && existsSync(path.join(root, 'tests/node_modules')))
        symlinkSync(path.join(root, 'tests/node_modules'), modules);
}

/** One copy of the tree with its build. */
class Lane {
    /** @param {number} n */
    constructor(n) {
        this.tree = path.join(work, `lane-${n}`);
        this.build = path.join(this.tree, 'build/test');
        this.env = { POLYD_ROOT: this.tree, POLYD_BUILD: this.build, POLYD_SHARED: shared(), POLYD_NO_INSTALL: '1', CMOCKA_MESSAGE_OUTPUT: 'TAP' };
    }

    /** @param {string[]} files */
    async open(files) {
        copyTree(files, this.tree);
        mkdirSync(this.build, { recursive: true });
        const { code, out } = await run('cmake', ['-C', 'deploy/presets/dev.cmake', '-B', this.build, '-G', 'Ninja'], { cwd: this.tree });
        if (code !== 0)
            throw new Error(`cmake: ${out.slice(-2000)}`);
    }

    /** @param {string[]} targets */
    async make(targets) {
        return targets.length === 0 ? { code: 0, out: '', late: false }
            : run('ninja', ['-C', this.build, ...targets], { cwd: this.tree });
    }

    /** Programs that a build of everything would link anew. */
    async stale() {
        const { out } = await run('ninja', ['-C', this.build, '-n'], { cwd: this.tree });
        return [...out.matchAll(/Linking C\w* executable bin\/(\S+)/g)].map(match => match[1]);
    }

    /**
     * @param {string} line as in a list
     * @param {number} [seconds]
     * @returns {Promise<Outcome>}
     */
    async test(line, seconds = usual) {
        const test = testOf(line);
        if (!test)
            return { ran: false, passed: [], failed: [], log: `no test '${line}'` };
        if (test.kind === 'unit')
            return this.#program(test.name, [], {}, seconds);
        if (test.kind.startsWith('golden')) {
            const folder = path.join(this.env.POLYD_SHARED, 'golden', test.name);
            if (!this.env.POLYD_SHARED || !existsSync(folder))
                return { ran: false, passed: [], failed: [], log: 'there is no shared data' };
            return this.#program('golden', [folder], test.kind === 'golden-bf16' ? { GOLDEN_MATH: 'bf16' } : {}, seconds);
        }
        return this.#node(...nodeFiles(this.tree, test), seconds);
    }

    /** @returns {Promise<Outcome>} */
    async #program(/** @type {string} */ name, /** @type {string[]} */ args, /** @type {Record<string, string>} */ env, /** @type {number} */ seconds) {
        const { code, out, late } = await run(path.join(this.build, 'bin', name), args, { cwd: this.tree, env: { ...this.env, ...env }, seconds });
        const names = (/** @type {RegExp} */ pattern) => [...out.matchAll(pattern)].map(match => `${name}: ${match[1]}`);
        const failed = [...names(/^not ok \d+ - (?!# SKIP)(.*)$/gm), ...names(/^FAIL (\S+):/gm)];
        const passed = [...names(/^ok \d+ - (?!# SKIP)(.*)$/gm), ...names(/^ok (\S+):/gm)];
        if (late)
            failed.push(`${name}: hung`);
        else if (code !== 0 && code !== 77 && failed.length === 0)
            failed.push(`${name}: died`);
        else if (code === 0 && passed.length === 0)
            passed.push(name);
        return { ran: code !== 77, passed, failed, log: out };
    }

    /** @returns {Promise<Outcome>} */
    async #node(/** @type {string[]} */ names, /** @type {string} */ only, /** @type {number} */ seconds) {
        const results = path.join(this.build, 'planted.jsonl');
        rmSync(results, { force: true });
        if (names.length === 0)
            return { ran: false, passed: [], failed: [], log: 'no such file' };
        const { code, out, late } = await run('node', ['--test', ...(only ? ['--test-name-pattern', only] : []), '--test-reporter=./tests/lib/reporter.mjs',
            '--test-reporter-destination=stdout', ...names], { cwd: this.tree, env: { ...this.env, POLYD_TEST_RESULTS: results }, seconds });
        /** @type {{name: string, status: string}[]} */
        const said = existsSync(results) ? readFileSync(results, 'utf8').split('\n').filter(Boolean).map(line => JSON.parse(line)) : [];
        const of = (/** @type {string} */ status) => said.filter(test => test.status === status).map(test => test.name);
        const failed = of('failed');
        if (late)
            failed.push(`${names.join(' ')}: hung`);
        else if (code !== 0 && failed.length === 0)
            failed.push(`${names.join(' ')}: died`);
        return { ran: failed.length > 0 || of('passed').length > 0, passed: of('passed'), failed, log: out };
    }
}

/**
 * The files and the pattern of names for Node.js.
 * @param {string} tree
 * @param {{kind: string, name: string, only: string}} test
 * @returns {[string[], string]}
 */
function nodeFiles(tree, test) {
    if (test.kind === 'node')
        return [[test.name], test.only];
    const folder = path.join(tree, 'tests/wiring');
    const files = existsSync(folder) ? readdirSync(folder).filter(name => name.endsWith('.test.mjs')) : [];
    // The file that writes the pointer in quotes has its case; a pointer never ends inside a longer one. fields.test.mjs has
    // its cases in cases.mjs.
    const writes = (/** @type {string} */ name) => existsSync(path.join(folder, name)) &&
        new RegExp(`['"\`]${test.name}['"\`\\s]`).test(readFileSync(path.join(folder, name), 'utf8'));
    const own = files.filter(name => writes(name) || (name === 'fields.test.mjs' && writes('cases.mjs')));
    return [(own.length > 0 ? own : files).map(name => `tests/wiring/${name}`), `(^|\\s)${test.name}(?![\\w/])`];
}

const shared = () => process.env.POLYD_SHARED || (existsSync(path.join(root, '../shared')) ? path.resolve(root, '../shared') : '');

/** What a test needs built. @param {string} line */
function targets(line) {
    const test = testOf(line);
    if (!test || (test.kind === 'node' && /^tests\/(web|layout)\//.test(test.name)))
        return [];
    if (test.kind === 'unit')
        return [test.name];
    if (test.kind.startsWith('golden'))
        return ['golden'];
    return ['polyd', 'polyd-worker', ...(/^tests\/(api|e2e)\//.test(test.name) ? ['api_host'] : []),
        ...(test.name.startsWith('tests/e2e/') ? ['seed_store'] : [])];
}

/** The suites that may see more than the expected test, once that has not failed: by the programs that change. */
async function broad(/** @type {Lane} */ lane) {
    const programs = await lane.stale();
    const slow = /^(test_(cuda|gpu|hopper|kill|store_kill|store_power|faults|store_nomem)|fuzz_|bench_|.*_bench$)/;
    const lines = programs.filter(name => name.startsWith('test_') && !slow.test(name)).sort().map(name => `unit ${name}`);
    if (programs.includes('golden'))
        lines.push('golden .');
    if (programs.includes('polyd') || programs.includes('polyd-worker') || programs.includes('api_host'))
        lines.push(...['wiring', 'api'].flatMap(folder => {
            const at = path.join(lane.tree, 'tests', folder);
            return existsSync(at) ? readdirSync(at).filter(name => name.endsWith('.test.mjs')).sort().map(name => `node tests/${folder}/${name}`) : [];
        }));
    lines.push('node tests/web/logic.test.mjs');
    return lines;
}

/** @typedef {{id: string, verdict: 'caught' | 'survived' | 'error', by: string, seconds: number, key: string}} Result */

/**
 * Whether the tests stand on the clean tree, by their line. A test that fails there proves nothing.
 * @param {Lane[]} lanes
 * @param {string[]} lines
 * @returns {Promise<Map<string, Outcome>>}
 */
async function cleanly(lanes, lines) {
    const found = new Map();
    const part = (/** @type {string} */ line) => {
        const test = testOf(line);
        return test && ['node', 'wiring'].includes(test.kind) ? { line, files: nodeFiles(root, test)[0], only: new RegExp(nodeFiles(root, test)[1]) } : null;
    };
    // Files of which several parts are wanted run once, as a whole.
    const parts = lines.map(part).filter(p => p !== null);
    const often = [...new Set(parts.flatMap(p => p.files))].filter(file => parts.filter(p => p.files.includes(file)).length > 3);
    /** @type {Map<string, Outcome>} */
    const whole = new Map();
    const left = [...often.map(file => `node ${file}`), ...lines.filter(line => !part(line)?.files.every(file => often.includes(file)))];
    await Promise.all(lanes.map(async lane => {
        for (let line = left.shift(); line; line = left.shift()) {
            const outcome = await lane.test(line, 4 * usual);
            found.set(line, outcome);
            whole.set(line, outcome);
        }
    }));
    for (const { line, files, only } of parts.filter(p => !found.has(p.line))) {
        const of = (/** @type {'passed' | 'failed'} */ kind) => files.flatMap(file => whole.get(`node ${file}`)?.[kind] ?? []).filter(name => only.test(name) || / (hung|died)$/.test(name));
        found.set(line, { ran: of('passed').length + of('failed').length > 0, passed: of('passed'), failed: of('failed'), log: '' });
    }
    return found;
}

/**
 * @param {Lane} lane
 * @param {Fault} fault
 * @param {string} original the file without the fault
 * @param {Map<string, Outcome>} clean
 * @param {string[]} told what was found on the way
 * @returns {Promise<{verdict: Result['verdict'], by: string}>}
 */
async function look(lane, fault, original, clean, told) {
    const lines = fault.tests;
    const good = lines.filter(line => clean.get(line)?.passed.length);
    for (const line of lines.filter(line => !good.includes(line)))
        told.push(clean.get(line)?.failed.length ? `${line} fails on the clean tree: ${clean.get(line)?.failed[0]}` : `${line} has nothing to run`);
    const made = await lane.make([...new Set(good.flatMap(targets))]);
    if (made.code !== 0)
        return { verdict: 'error', by: `does not build: ${/^.*(?:error: |undefined reference|undefined symbol).*$/m.exec(made.out)?.[0] ?? made.out.slice(-300)}` };
    for (const line of good) {
        const failed = (await lane.test(line)).failed.filter(name => !clean.get(line)?.failed.includes(name));
        if (failed.length > 0)
            return { verdict: 'caught', by: failed[0] };
        told.push(`${line} passes`);
    }
    if (options.narrow)
        return { verdict: 'survived', by: '' };
    const more = (await broad(lane)).filter(line => !lines.includes(line));
    for (const line of more) {
        const build = await lane.make(targets(line));
        if (build.code !== 0)
            return { verdict: 'error', by: `does not build: ${/^.*(?:error: |undefined reference|undefined symbol).*$/m.exec(build.out)?.[0] ?? build.out.slice(-300)}` };
        const { failed } = await lane.test(line, usual * 3);
        if (failed.length === 0)
            continue;
        // It may fail without the fault as well: then it says nothing.
        const text = readFileSync(path.join(lane.tree, fault.file));
        writeFileSync(path.join(lane.tree, fault.file), original);
        await lane.make(targets(line));
        const again = await lane.test(line, usual * 3);
        writeFileSync(path.join(lane.tree, fault.file), text);
        const own = failed.filter(name => !again.failed.includes(name));
        if (own.length > 0)
            return { verdict: 'caught', by: `${own[0]} (${line}, not an expected test)` };
        told.push(`${line} fails on the clean tree as well`);
    }
    return { verdict: 'survived', by: '' };
}

async function main() {
    if (options.help) {
        console.log(help);
        return 0;
    }
    const wrong = check(root);
    if (wrong.length > 0) {
        wrong.forEach(text => console.log(text));
        console.log(`planted: the list has ${wrong.length} errors`);
        return 1;
    }
    const all = load(root);
    const faults = all.filter(fault => positionals.length === 0 ||
        positionals.some(word => fault.id.includes(word) || fault.fields.some(f => f.includes(word)) || fault.at.includes(`/${word}`)));
    if (options.list)
        for (const fault of faults)
            console.log(`${fault.id}: ${fault.what} (${fault.file}${fault.fields.length ? `; ${fault.fields.join(' ')}` : ''})\n    ${fault.tests.join(', ')}`);
    if (options.list || options.check) {
        console.log(`${faults.length} faults`);
        return 0;
    }
    if (faults.length === 0) {
        console.log(`planted: no fault fits ${positionals.join(' ')}`);
        return 2;
    }

    const files = await treeFiles();
    const hash = createHash('sha256');
    for (const file of files.filter(name => !name.startsWith('tests/planted/')))
        hash.update(`${file}\0`).update(readFileSync(path.join(root, file)));
    const tree = hash.digest('hex');
    const stateFile = path.join(work, 'state.json');
    /** @type {Record<string, Result>} */
    const state = existsSync(stateFile) ? JSON.parse(readFileSync(stateFile, 'utf8')) : {};
    const keyOf = (/** @type {Fault} */ fault) => createHash('sha256').update(tree + JSON.stringify({ ...fault, at: '' })).digest('hex');
    const known = (/** @type {Fault} */ fault) => !options.again && state[fault.id]?.key === keyOf(fault) && state[fault.id].verdict === 'caught';
    const left = faults.filter(fault => !known(fault));
    const began = Date.now();
    const stamp = () => `${Math.round((Date.now() - began) / 1000)} s`;

    // As they are now: the tree may change while the copies are worked on.
    const originals = new Map(left.map(fault => [fault.file, readFileSync(path.join(root, fault.file), 'utf8')]));

    mkdirSync(work, { recursive: true });
    if (left.length > 0) {
        const lanes = Array.from({ length: Math.min(left.length, Number(options.lanes) || Math.max(1, Math.floor(os.cpus().length / 2))) }, (_, i) => new Lane(i));
        const lines = [...new Set(left.flatMap(fault => fault.tests))];
        const wanted = [...new Set(lines.flatMap(targets))];
        console.log(`${faults.length} faults${left.length < faults.length ? `, ${faults.length - left.length} of them known to be caught on this tree` : ''}; ${lanes.length} copies of the tree`);
        for (const lane of lanes) {
            await lane.open(files);
            const { code, out } = await lane.make(wanted);
            if (code !== 0) {
                console.log(`${out.slice(-3000)}\nplanted: the clean tree does not build`);
                return 1;
            }
        }
        console.log(`built (${stamp()})`);
        const clean = await cleanly(lanes, lines);
        for (const [line, outcome] of clean)
            if (outcome.failed.length > 0)
                console.log(`${line} fails on the clean tree: ${outcome.failed[0]}`);
        console.log(`${lines.length} tests run on the clean tree (${stamp()})`);
        await Promise.all(lanes.map(async lane => {
            for (let fault = left.shift(); fault; fault = left.shift()) {
                const file = path.join(lane.tree, fault.file);
                const text = /** @type {string} */ (originals.get(fault.file));
                const start = Date.now();
                /** @type {string[]} */
                const told = [];
                writeFileSync(file, plant(text, fault));
                const { verdict, by } = await look(lane, fault, text, clean, told);
                writeFileSync(file, text);
                const seconds = Math.round((Date.now() - start) / 100) / 10;
                state[fault.id] = { id: fault.id, verdict, by, seconds, key: keyOf(fault) };
                writeFileSync(stateFile, JSON.stringify(state, null, 1));
                console.log(`${verdict === 'caught' ? 'caught  ' : verdict === 'survived' ? 'SURVIVED' : 'ERROR   '} ${fault.id}: ${fault.what} [${seconds} s]` +
                    `\n         ${fault.file}${by ? `; ${verdict === 'caught' ? 'fails: ' : ''}${by}` : ''}${verdict === 'caught' && told.length === 0 ? '' : told.map(text => `\n         ${text}`).join('')}`);
            }
        }));
    }
    const of = (/** @type {string} */ verdict) => faults.filter(fault => state[fault.id]?.verdict === verdict);
    for (const fault of of('survived'))
        console.log(`survived: ${fault.id} (${fault.at}): ${fault.what}; expected ${fault.tests.join(', ')}`);
    for (const fault of of('error'))
        console.log(`error: ${fault.id} (${fault.at}): ${state[fault.id].by}`);
    const [caught, survived, errors] = ['caught', 'survived', 'error'].map(verdict => of(verdict).length);
    console.log(`${stamp()}\n${caught} caught, ${survived} survived, ${errors} errors`);
    return caught === faults.length ? 0 : 1;
}

process.exitCode = await main();
