// Starts the server under test and talks to it. Every reply that comes through `call` is checked against
// api/openapi.yaml: a status, a media type or a body that the contract does not know fails the test.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { gunzipSync } from 'node:zlib';
import Ajv from 'ajv/dist/2020.js';
import YAML from 'yaml';

export const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..');
export const build = process.env.POLYD_BUILD ?? path.join(root, 'build');
const hostProgram = process.env.POLYD_API_HOST ?? path.join(build, 'bin/api_host');

/* ---- the contract ---- */

export const contract = YAML.parse(readFileSync(path.join(root, 'api/openapi.yaml'), 'utf8'));
const ajv = new Ajv({ strict: false, allErrors: true, validateFormats: false });
ajv.addSchema(contract, 'openapi');

const escapeToken = token => encodeURIComponent(token.replaceAll('~', '~0').replaceAll('/', '~1'));
const validators = new Map();
function validator(...tokens) {
    const ref = `openapi#/${tokens.map(escapeToken).join('/')}`;
    if (!validators.has(ref))
        validators.set(ref, ajv.compile({ $ref: ref }));
    return validators.get(ref);
}

export function routeOf(pathname) {
    const parts = pathname.split('/');
    let wildcard = null;
    for (const template of Object.keys(contract.paths)) {
        if (template === '/{asset}') {
            wildcard = template;
            continue;
        }
        const names = template.split('/');
        if (names.length === parts.length && names.every((name, i) => /^\{.*\}$/.test(name) ? parts[i] !== '' : name === parts[i]))
            return template;
    }
    return /^\/(api|v1|v2|tokenize|detokenize)(\/|$)/.test(pathname) ? null : wildcard;
}

const surfaceError = pathname => pathname === '/v2' || pathname.startsWith('/v2/') ? 'OipError'
    : /^\/(v1|tokenize|detokenize)(\/|$)/.test(pathname) ? 'OpenaiError' : 'Problem';

/** Throws unless the contract allows this reply. */
export function checkReply(method, pathname, status, headers, bytes) {
    const where = `${method} ${pathname} -> ${status}`;
    const template = routeOf(pathname);
    const operation = template && contract.paths[template][method === 'HEAD' ? 'get' : method.toLowerCase()];
    let tokens = ['components', 'responses', surfaceError(pathname)];
    if (operation) {
        const key = operation.responses[status] ? String(status) : 'default';
        assert.ok(status >= 400 || key !== 'default', `${where}: a success that the contract does not list`);
        tokens = ['paths', template, method === 'HEAD' ? 'get' : method.toLowerCase(), 'responses', key];
    } else {
        assert.ok(status >= 400, `${where}: a success without an operation`);
    }
    let node = tokens.reduce((at, token) => at[token], contract);
    if (node.$ref) {
        tokens = node.$ref.slice(2).split('/');
        node = tokens.reduce((at, token) => at[token], contract);
    }
    assert.equal(headers['x-content-type-options'], 'nosniff', `${where}: nosniff`);
    if (!node.content) {
        assert.equal(bytes.length, 0, `${where}: the contract knows no body`);
        return;
    }
    const type = (headers['content-type'] ?? '').split(';')[0];
    const media = node.content[type] ? type : node.content['*/*'] ? '*/*' : null;
    assert.ok(media, `${where}: media type '${type}' is not in the contract`);
    if (method === 'HEAD' || media === '*/*')
        return;
    const value = /json$/.test(type) ? JSON.parse(bytes.toString('utf8')) : bytes.toString('utf8');
    const check = validator(...tokens, 'content', media, 'schema');
    if (!check(value))
        assert.fail(`${where}: ${ajv.errorsText(check.errors)}\n${bytes.toString('utf8').slice(0, 2000)}`);
}

/* ---- the server ---- */

export class Host {
    /** @param {string[]} flags */
    static async start(flags = [], { dir = null, program = hostProgram } = {}) {
        assert.ok(existsSync(program), `${program} is not built`);
        const host = new Host();
        host.dir = dir ?? mkdtempSync(path.join(os.tmpdir(), 'polyd-api-'));
        host.keep = dir !== null;
        host.child = spawn(program, [host.dir, '--server.port=0', ...flags], { stdio: ['pipe', 'pipe', 'pipe'] });
        host.stderr = '';
        host.lines = [];
        host.waiters = [];
        host.notes = [];
        host.child.stderr.on('data', data => { host.stderr += data; });
        createInterface({ input: host.child.stdout }).on('line', line => {
            if (line.startsWith('cancelled '))
                host.notes.push(line);
            else if (host.waiters.length)
                host.waiters.shift()(line);
            else
                host.lines.push(line);
        });
        host.exit = new Promise(resolve => host.child.on('exit', (code, signal) => {
            for (const waiter of host.waiters.splice(0))
                waiter(`exit ${code} ${signal}`);
            resolve(code ?? signal);
        }));
        const first = await host.line();
        assert.match(first, /^port \d+$/, host.stderr);
        host.port = Number(first.slice(5));
        return host;
    }

    line() {
        return this.lines.length ? Promise.resolve(this.lines.shift()) : new Promise(resolve => this.waiters.push(resolve));
    }

    async tell(command) {
        this.child.stdin.write(`${command}\n`);
        const answer = await this.line();
        assert.equal(answer, 'ok', command.slice(0, 200));
    }

    /** Points as the worker of a run writes them. @param {string} run @param {{key: string, step: number, value: number}[]} points */
    async worker(run, points, attempt = 1) {
        for (let at = 0; at < points.length; at += 10000)
            await this.tell(`points ${run} ${attempt} ${JSON.stringify({ points: points.slice(at, at + 10000) })}`);
    }

    /** Waits for the end of a job, however it ends. */
    async over(id) {
        for (let i = 0; i < 1200; i++) {
            const job = (await this.get(`/api/v1/jobs/${id}`)).json;
            if (['done', 'failed', 'cancelled'].includes(job.state))
                return job;
            await sleep(50);
        }
        assert.fail('the job did not end');
    }

    /** Stops; the program must end by itself, without leaks or races reported. */
    async stop() {
        if (this.child.exitCode === null) {
            this.child.stdin.end('stop\n');
            const timer = setTimeout(() => this.child.kill('SIGKILL'), 20000);
            await this.exit;
            clearTimeout(timer);
        }
        assert.equal(this.child.exitCode, 0, `exit status; ${this.stderr}`);
        assert.doesNotMatch(this.stderr, /Sanitizer|runtime error/);
        if (!this.keep)
            rmSync(this.dir, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 });
    }

    /**
     * One request, its reply checked against the contract.
     * @param {string} method
     * @param {string} target
     */
    call(method, target, { json, body, headers = {}, check = true } = {}) {
        const all = { connection: 'close', ...headers };
        let bytes = body;
        if (json !== undefined)
            bytes = JSON.stringify(json);
        if (bytes !== undefined && !Object.keys(all).some(name => name.toLowerCase() === 'content-type'))
            all['content-type'] = 'application/json';
        if (bytes === undefined && /^(POST|PUT|PATCH|DELETE)$/.test(method) && !('content-type' in all))
            all['content-type'] = 'application/json';
        if (bytes !== undefined && !('transfer-encoding' in all) && !('content-length' in all))
            all['content-length'] = Buffer.byteLength(bytes);
        return new Promise((resolve, reject) => {
            const request = http.request({ host: '127.0.0.1', port: this.port, method, path: target, headers: all }, response => {
                const pieces = [];
                response.on('data', piece => pieces.push(piece));
                response.on('error', reject);
                response.on('end', () => {
                    const wire = Buffer.concat(pieces);
                    try {
                        // JSON is read as what it is; `wire` is what came.
                        const zipped = response.headers['content-encoding'] === 'gzip' && /json/.test(response.headers['content-type'] ?? '');
                        const got = zipped ? gunzipSync(wire) : wire;
                        if (check)
                            checkReply(method, target.split('?')[0], response.statusCode, response.headers, got);
                        const reply = { status: response.statusCode, headers: response.headers, bytes: got, wire, text: got.toString('utf8') };
                        if (/json/.test(response.headers['content-type'] ?? '') && got.length)
                            reply.json = JSON.parse(reply.text);
                        resolve(reply);
                    } catch (error) {
                        reject(error);
                    }
                });
            });
            request.on('error', reject);
            if (bytes !== undefined)
                request.write(bytes);
            request.end();
        });
    }

    get(target, options) {
        return this.call('GET', target, options);
    }

    post(target, json, options = {}) {
        return this.call('POST', target, { json, ...options });
    }

    /** Opens a stream and reads its events as they come. */
    events(target, { method = 'GET', headers = {}, json } = {}) {
        const stream = { events: [], comments: 0, ended: false, waiters: [] };
        const changed = () => stream.waiters.splice(0).forEach(waiter => waiter());
        const body = json === undefined ? undefined : JSON.stringify(json);
        if (body !== undefined)
            headers = { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body), ...headers };
        stream.opened = new Promise((resolve, reject) => {
            const request = http.request({ host: '127.0.0.1', port: this.port, method, path: target, headers }, response => {
                stream.response = response;
                stream.status = response.statusCode;
                let text = '';
                const decoder = new TextDecoder('utf-8', { fatal: true });
                response.on('data', piece => {
                    text += decoder.decode(piece, { stream: true });
                    for (let at; (at = text.indexOf('\n\n')) >= 0; text = text.slice(at + 2)) {
                        const event = { data: null };
                        for (const line of text.slice(0, at).split('\n')) {
                            if (line.startsWith(':'))
                                stream.comments++;
                            else
                                event[line.slice(0, line.indexOf(': '))] = line.slice(line.indexOf(': ') + 2);
                        }
                        if (event.data !== null || event.id)
                            stream.events.push(event);
                    }
                    changed();
                });
                response.on('end', () => { stream.ended = true; changed(); });
                response.on('error', () => { stream.ended = true; stream.broken = true; changed(); });
                response.on('close', () => { stream.ended = true; changed(); });
                resolve(stream);
            });
            request.on('error', error => { stream.ended = true; changed(); reject(error); });
            stream.request = request;
            if (body !== undefined)
                request.write(body);
            request.end();
        });
        stream.until = async (condition, ms = 10000) => {
            const end = Date.now() + ms;
            while (!condition(stream)) {
                assert.ok(Date.now() < end, `waited ${ms} ms; ${JSON.stringify(stream.events).slice(-500)}`);
                await new Promise(resolve => { stream.waiters.push(resolve); setTimeout(resolve, 50); });
            }
            return stream;
        };
        stream.close = () => stream.request.destroy();
        return stream;
    }

    /** Bytes as they are, over a socket of its own; resolves with what came until the server closed or `ms` passed. */
    raw(text, { ms = 3000, half = false } = {}) {
        return new Promise(resolve => {
            const socket = net.connect(this.port, '127.0.0.1');
            const pieces = [];
            const finish = () => { socket.destroy(); resolve(Buffer.concat(pieces).toString('latin1')); };
            const timer = setTimeout(finish, ms);
            socket.on('data', piece => pieces.push(piece));
            socket.on('close', () => { clearTimeout(timer); finish(); });
            socket.on('error', () => {});
            socket.write(text);
            if (half)
                socket.end();
        });
    }
}

/** The real program under the same client. */
export class Daemon extends Host {
    /** `dir`: of a daemon that was stopped with `keep`. */
    static async start(flags = [], dir = mkdtempSync(path.join(os.tmpdir(), 'polyd-daemon-'))) {
        const host = new Daemon();
        host.dir = dir;
        mkdirSync(path.join(host.dir, 'text'), { recursive: true });
        writeFileSync(path.join(host.dir, 'text/corpus.txt'), 'the quick brown fox jumps over the lazy dog. '.repeat(500));
        host.stderr = '';
        host.child = spawn(path.join(build, 'bin/polyd'), ['--port=0', `--state.dir=${host.dir}/state`, `--data.text=${host.dir}/text`, '--devices.cpu_slots=1', '--devices.threads_per_slot=1', '--devices.gpus=none', ...flags],
            { stdio: ['ignore', 'ignore', 'pipe'], env: { ...process.env, POLYD_CONFIG: '' } });
        host.exit = new Promise(resolve => host.child.on('exit', resolve));
        const port = await new Promise((resolve, reject) => {
            host.child.stderr.on('data', data => {
                host.stderr += data;
                const match = /listening=\S+ port=(\d+)/.exec(host.stderr);
                if (match)
                    resolve(Number(match[1]));
            });
            host.exit.then(() => reject(new Error(host.stderr)));
        });
        host.port = port;
        return host;
    }

    /** Workers outlive their daemon: unless the state is kept, what still runs is cancelled first. */
    async stop({ keep = false } = {}) {
        for (let i = 0; !keep && this.child.exitCode === null && i < 200; i++) {
            const { runs } = (await this.get('/api/v1/runs?state=active&limit=1000', { check: false })).json;
            if (!runs.length)
                break;
            if (i === 0)
                for (const run of runs)
                    await this.post(`/api/v1/runs/${run.id}/cancel`, {}, { check: false });
            await sleep(50);
        }
        this.child.kill('SIGTERM');
        assert.equal(await this.exit, 0, this.stderr);
        if (!keep)
            rmSync(this.dir, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 });
    }
}

export const tinyJob = (more = {}) => ({
    name: 'tiny', model: { preset: 'vit_micro' }, data: { dataset: 'digits_gen' }, train: { steps: 10 }, ...more,
});

export async function submit(host, more = {}) {
    const reply = await host.post('/api/v1/jobs', tinyJob(more));
    assert.equal(reply.status, 201, reply.text);
    return reply.json;
}

export const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));
