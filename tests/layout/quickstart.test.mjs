// deploy/quickstart: what it does on machines and with daemons of several kinds. Compiler, GPU and API are stand-ins here.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { chmodSync, copyFileSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import os from 'node:os';
import path from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..');
const missing = ['bash', 'curl', 'jq'].filter(name => !process.env.PATH.split(':').some(dir => existsSync(path.join(dir, name))));
const options = { skip: missing.length > 0 && `${missing} not here`, timeout: 60000 };

/** The part of the API that quickstart uses, with one job at most for each document. Training ends at the second look. */
class Api {
    jobs = new Map();
    keys = new Map();
    submitted = 0;
    looks = 0;
    /** The model's newest version. @type {string | null} */
    latest = '1';
    registered = [];

    /** @returns {[number, any]} */
    answer(method, url, body, key) {
        const { pathname, searchParams } = url, id = /^\/api\/v1\/jobs\/(\d+)/.exec(pathname)?.[1];
        if (pathname === '/readyz')
            return [200, {}];
        if (pathname === '/api/v1/jobs' && method === 'POST') {
            if (key && this.keys.has(key))
                return [201, { id: this.keys.get(key) }];
            const made = String(++this.submitted), document = JSON.parse(body);
            this.jobs.set(made, { document: { ...document, schema: 3, resources: { device: 'cpu', threads: 2, ...document.resources }, train: { keep: { best: 1, latest: 1 }, ...document.train } }, state: 'running' });
            this.keys.set(key, made);
            return [201, { id: made }];
        }
        const [name, value] = searchParams.get('tag')?.split('=') ?? [], newest = [...this.jobs].reverse();
        const tagged = ([, { document: { tags } }]) => !name || tags?.[name] === value;
        if (pathname === '/api/v1/jobs')
            return [200, { jobs: newest.filter(tagged).map(([job]) => ({ id: job })) }];
        if (id)
            return this.jobs.has(id) ? [200, { id, ...this.jobs.get(id) }] : [404, { error: { message: 'no such job' } }];
        if (pathname === '/api/v1/runs') {
            const of = searchParams.get('job');
            if (of && searchParams.has('metric') && ++this.looks === 2)
                this.look?.(of);
            const found = newest.filter(of ? ([job]) => job === of : tagged);
            return [200, { runs: found.slice(0, 1).map(([job, { state }]) => ({ id: `r${job}`, job_id: job, state: state === 'done' ? 'ended' : 'running', outcome: 'succeeded', latest: {} })) }];
        }
        if (pathname === '/api/v1/models/digits-cubic')
            return this.latest ? [200, { latest: this.latest }] : [404, { error: { message: 'no such model' } }];
        if (pathname === '/api/v1/models/digits-cubic/versions' && method === 'POST') {
            this.registered.push(JSON.parse(body).run_id);
            return [201, { version: '1' }];
        }
        if (!/^\/(api\/v1|v2)\/models\/digits-cubic\/versions\/1\/(load|infer)$/.test(pathname))
            return [404, { error: { message: `there is no ${pathname}` } }];
        return [200, { outputs: [{ data: [1, 0, 0, 0, 0, 0, 0, 0, 0, 0] }] }];
    }

    end = job => {
        if (this.jobs.has(job))
            this.jobs.get(job).state = 'done';
    };
}

/** A clone with a built polyd that waits, and what `run` needs to start quickstart there. `had`: arguments of that polyd. */
async function clone(t, programs = {}, had = []) {
    const dir = mkdtempSync(path.join(os.tmpdir(), 'polyd-quickstart-')), bin = path.join(dir, 'path'), built = path.join(dir, 'build/quickstart/bin'), state = path.join(dir, 'state');
    const api = new Api(), sockets = new Set();
    api.look = api.end;
    const server = http.createServer(async (request, reply) => {
        let body = '';
        for await (const part of request)
            body += part;
        const [status, answer] = api.answer(request.method, new URL(request.url, 'http://x'), body, request.headers['idempotency-key']);
        reply.writeHead(status, { 'Content-Type': 'application/json' }).end(JSON.stringify(answer));
    }).on('connection', socket => sockets.add(socket));
    await new Promise(done => { server.listen(0, '127.0.0.1', () => done(undefined)); });
    for (const folder of [bin, built, state, path.join(dir, 'deploy')])
        mkdirSync(folder, { recursive: true });
    const script = (file, text) => {
        writeFileSync(file, `#!/bin/bash\n${text}\n`);
        chmodSync(file, 0o755);
    };
    copyFileSync(path.join(root, 'deploy/quickstart'), path.join(dir, 'deploy/quickstart'));
    for (const [name, text] of Object.entries({ cmake: `echo "$*" >>${dir}/cmake.log`, ninja: `echo "$*" >>${dir}/ninja.log`, 'nvidia-smi': 'exit 9', ...programs }))
        script(path.join(bin, name), text);
    script(path.join(built, 'polyd-worker'), `echo '{"digit": 3, "pixels": [${Array(784).fill(0)}]}'`);
    const polyd = path.join(built, 'polyd'); // /proc/PID/exe names it
    copyFileSync(process.env.PATH.split(':').map(folder => path.join(folder, 'bash')).find(existsSync), polyd);
    const daemon = spawn(polyd, ['-c', 'read -r _', ...had], { stdio: ['pipe', 'ignore', 'ignore'] });
    await new Promise(done => { daemon.on('spawn', () => done(undefined)); });
    const port = /** @type {import('node:net').AddressInfo} */ (server.address()).port;
    writeFileSync(path.join(state, 'quickstart.pid'), `${daemon.pid} ${port}\n`);
    t.after(() => {
        daemon.kill('SIGKILL');
        server.close();
        sockets.forEach(socket => socket.destroy());
        rmSync(dir, { recursive: true, force: true });
    });
    return { api, dir, daemon, port, polyd, state, script,
        read: name => existsSync(path.join(dir, name)) ? readFileSync(path.join(dir, name), 'utf8') : '',
        /** Runs it; killed after fifty seconds, its status is null. */
        run: (...args) => new Promise(done => {
            const child = spawn('bash', [path.join(dir, 'deploy/quickstart'), '--no-install', '--state-dir', state, ...args], { env: { ...process.env, PATH: `${bin}:${process.env.PATH}` }, detached: true });
            let out = '', err = '';
            child.stdout.on('data', text => { out += text; });
            child.stderr.on('data', text => { err += text; });
            const timer = setTimeout(() => process.kill(-child.pid, 'SIGKILL'), 50000);
            child.on('close', status => {
                clearTimeout(timer);
                done({ status, out, err });
            });
        }) };
}

test('test_quickstart_finds_its_job_again_however_late', options, async t => {
    const { api, run } = await clone(t);
    const first = await run();
    assert.equal(first.status, 0, first.err);
    assert.match(first.out, /Training: job 1, run r1/);
    api.keys.clear(); // as after 24 hours
    const second = await run();
    assert.equal(second.status, 0, second.err);
    assert.equal(api.submitted, 1, 'nothing is trained a second time');
});

test('test_quickstart_passes_edited_copies_of_its_job_by', options, async t => {
    const { api, run } = await clone(t);
    assert.equal((await run()).status, 0);
    const { document } = api.jobs.get('1');
    for (const edit of [{ train: { epochs: 1 } }, { resources: { gpus: 8 } }, { seed: 2 }])
        api.jobs.set(String(++api.submitted), { document: { ...document, ...edit }, state: 'running' });
    const again = await run();
    assert.equal(again.status, 0, `${again.status} ${again.err}`);
    assert.match(again.out, /Training: job 1, run r1/);
    assert.equal(api.submitted, 4, 'nothing is trained a second time');
    api.jobs.delete('1');
    api.looks = 0;
    assert.match((await run()).out, /Training: job 5, run r5/, 'copies alone are not its job');
});

test('test_quickstart_trains_again_after_its_job_was_deleted', options, async t => {
    const { api, run } = await clone(t);
    assert.equal((await run()).status, 0);
    api.jobs.clear();
    api.looks = 0;
    const again = await run();
    assert.equal(again.status, 0, `${again.status} ${again.err}`);
    assert.match(again.out, /Training: job 2, run r2/);
});

test('test_quickstart_registers_the_run_again_after_its_model_was_deleted', options, async t => {
    const { api, run } = await clone(t);
    assert.equal((await run()).status, 0);
    assert.deepEqual(api.registered, []);
    api.latest = null;
    const again = await run();
    assert.equal(again.status, 0, `${again.status} ${again.err}`);
    assert.match(again.out, /Loading the model digits-cubic, version 1/);
    assert.deepEqual(api.registered, ['r1']);
});

test('test_quickstart_ends_when_its_job_is_deleted_while_it_trains', options, async t => {
    const { api, run } = await clone(t);
    api.look = () => api.jobs.clear();
    const ended = await run();
    assert.equal(ended.status, 1, ended.err);
    assert.match(ended.err, /job 1 was deleted/);
});

test('test_quickstart_ends_when_a_request_is_refused', options, async t => {
    const { api, run } = await clone(t);
    assert.equal((await run()).status, 0);
    const answer = api.answer.bind(api);
    api.answer = (method, url, body, key) => url.pathname === '/api/v1/jobs/1' ? [500, { error: { message: 'the disk is full' } }] : answer(method, url, body, key);
    const ended = await run();
    assert.equal(ended.status, 1, ended.err);
    assert.match(ended.err, /the disk is full[^]*status 500/);
});

test('test_quickstart_builds_for_gpus_that_the_kernels_run_on', options, async t => {
    for (const [smi, archs, said] of [['echo 7.5', null, /compute capability 7\.5.*on the CPU/], ['echo 8.0', '80'], ['printf "9.0\\n9.0\\n"', '90a'], ['echo 12.0', '120'], ['echo "No devices were found"', null], ['exit 9', null]]) {
        const { run, read } = await clone(t, { 'nvidia-smi': smi }), { status, out, err } = await run();
        assert.equal(status, 0, err);
        assert.equal(/-DPOLYD_CUDA_ARCHS=(\S+)/.exec(read('cmake.log'))?.[1] ?? null, archs, smi);
        assert.equal(/ polyd polyd-worker backend_cuda comm_nccl$/m.test(read('ninja.log')), archs !== null, smi);
        assert.equal(/compute capability/.test(out), Boolean(said), out);
        assert.match(out, said ?? /./);
    }
});

test('test_quickstart_leaves_a_daemon_alone_that_has_what_it_was_given', options, async t => {
    const { daemon, run } = await clone(t, {}, ['--data.sets=/a']);
    for (const args of [[], ['--data', 'sets=/a'], ['--data=sets=/a']]) {
        const { status, out, err } = await run(...args);
        assert.equal(status, 0, err);
        assert.doesNotMatch(out, /started again/);
        assert.equal(daemon.signalCode ?? daemon.exitCode, null);
    }
});

test('test_quickstart_gives_a_running_daemon_the_data_that_it_lacks', options, async t => {
    for (const given of ['sets=/b', 'more=/a']) {
        const { daemon, run } = await clone(t, {}, ['--data.sets=/a']), { status, out, err } = await run('--data', given);
        assert.equal(status, 0, err);
        assert.match(out, new RegExp(`polyd that runs does not offer ${given}: it is started again`));
        assert.equal(daemon.signalCode, 'SIGTERM');
    }
});

test('test_quickstart_replaces_a_daemon_of_another_build_and_keeps_its_arguments', options, async t => {
    const had = ['--port=1', '--data.sets=/a', '--data.texts=/t'], { daemon, dir, polyd, port, read, run, script, state } = await clone(t, {}, had);
    rmSync(polyd); // as a linker does
    script(polyd, `printf '%s\\n' "$@" >${dir}/arguments`);
    const { status, out, err } = await run('--data', 'sets=b', '--data', 'more=/c');
    assert.equal(status, 0, err);
    assert.match(out, /polyd that runs is of another build: it is started again/);
    assert.equal(daemon.signalCode, 'SIGTERM');
    assert.deepEqual(read('arguments').trim().split('\n'), ['-c', 'read -r _', '--port=1', '--data.texts=/t', `--data.sets=${process.cwd()}/b`, '--data.more=/c']);
    assert.match(readFileSync(path.join(state, 'quickstart.pid'), 'utf8'), new RegExp(`^(?!${daemon.pid} )\\d+ ${port}\n$`));
});
