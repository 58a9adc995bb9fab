// A real polyd on a free port with a state directory of its own, for tests that speak HTTP.
import { spawn } from 'node:child_process';
import { closeSync, mkdtempSync, openSync, readFileSync, rmSync } from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

export const root = process.env.POLYD_ROOT ?? path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..');
export const build = process.env.POLYD_BUILD ?? path.join(root, 'build');
export const polyd = path.join(build, 'bin/polyd');

/** POLYD_WEB_DIR: the dashboard of that folder in place of the embedded one, for work on the page without a build. */
const page = process.env.POLYD_WEB_DIR ? [`--web-dir=${path.resolve(process.env.POLYD_WEB_DIR)}`] : [];

let tried = process.pid * 7919;

/**
 * A port that nobody listens on, below those that the kernel gives to clients: one that asks again and again for a
 * polyd that is down could else be given that very port, connect to itself, and keep polyd out.
 * @returns {Promise<number>}
 */
export function freePort() {
    return new Promise((resolve, reject) => {
        const attempt = left => {
            const port = 12000 + tried++ % 20000;
            const server = net.createServer();
            server.on('error', error => left > 0 ? attempt(left - 1) : reject(error));
            server.listen(port, '127.0.0.1', () => server.close(() => resolve(port)));
        };
        attempt(1000);
    });
}

const pause = ms => new Promise(resolve => setTimeout(resolve, ms));

/**
 * Waits until `check` gives something, asking again every `every` ms. Fails by name after `limit` ms, or at once
 * with an error marked `final`.
 * @template T
 * @param {string} what
 * @param {() => Promise<T>} check
 */
export async function until(what, check, { limit = 60000, every = 50 } = {}) {
    const end = Date.now() + limit;
    let last;
    for (;;) {
        try {
            const found = await check();
            if (found)
                return found;
        } catch (error) {
            if (error.final)
                throw error;
            last = error;
        }
        if (Date.now() > end)
            throw new Error(`waited ${limit} ms in vain for: ${what}${last ? ` (${last.message})` : ''}`);
        await pause(every);
    }
}

export class Daemon {
    constructor(stateDir, port, flags) {
        this.stateDir = stateDir;
        this.port = port;
        this.flags = flags;
        /** In a process group of its own: a Ctrl-C for the caller does not reach it. */
        this.detached = false;
        this.url = `http://127.0.0.1:${port}`;
    }

    /**
     * `prepare` puts files into the state directory before the daemon starts, and may return flags.
     * @param {{flags?: string[], prepare?: (stateDir: string) => string[]}} [options]
     */
    static async start({ flags = [], prepare = () => [] } = {}) {
        // Short: a Unix socket lies inside, and its path may have 107 bytes.
        const stateDir = mkdtempSync(path.join(os.tmpdir(), 'polyd-'));
        const daemon = new Daemon(stateDir, await freePort(), [...flags, ...prepare(stateDir)]);
        await daemon.up();
        return daemon;
    }

    async up() {
        const log = openSync(path.join(this.stateDir, 'polyd.log'), 'a');
        this.process = spawn(polyd, [`--port=${this.port}`, `--state-dir=${this.stateDir}`, '--devices.gpus=none', ...page, ...this.flags],
            { stdio: ['ignore', log, log], detached: this.detached });
        closeSync(log);
        this.ended = new Promise(resolve => this.process.on('exit', (code, signal) => resolve({ code, signal })));
        let gone = false;
        this.ended.then(() => { gone = true; });
        await until('polyd to be ready', async () => {
            if (gone)
                throw Object.assign(new Error('polyd ended'), { final: true });
            return (await fetch(`${this.url}/readyz`)).ok;
        }, { limit: 20000 }).catch(error => {
            throw new Error(`${error.message}\n${this.log()}`);
        });
    }

    log() {
        return readFileSync(path.join(this.stateDir, 'polyd.log'), 'utf8').split('\n').slice(-30).join('\n');
    }

    /**
     * @param {string} method
     * @param {string} where
     * @param {unknown} [body]
     */
    async call(method, where, body) {
        const response = await fetch(this.url + where, {
            method, headers: body === undefined ? {} : { 'Content-Type': 'application/json' },
            body: body === undefined ? undefined : JSON.stringify(body),
        });
        const text = await response.text();
        let value = text;
        try {
            value = JSON.parse(text);
        } catch { /* not everything is JSON */ }
        if (!response.ok)
            throw new Error(`${method} ${where}: ${response.status} ${text.slice(0, 500)}`);
        return value;
    }

    get(where) {
        return this.call('GET', where);
    }

    post(where, body = {}) {
        return this.call('POST', where, body);
    }

    /** Submits a job and returns its id with that of its first run. `query`: '?accept_unplanned=1' keeps what is bound to fail. */
    async submit(document, query = '') {
        const { id, run_ids: runs } = await this.post(`/api/v1/jobs${query}`, document);
        return { job: id, run: runs[0] };
    }

    /** Waits for a state or an outcome of a run. */
    async reach(run, wanted, limit = 120000) {
        return until(`run ${run} to be ${wanted}`, async () => {
            const now = await this.get(`/api/v1/runs/${run}`);
            const stands = now.state === 'ended' ? now.outcome : now.state;
            if (stands !== wanted && now.state === 'ended')
                throw Object.assign(new Error(`run ${run} ended as ${now.outcome}: ${now.reason}`), { final: true });
            return stands === wanted && now;
        }, { limit, every: 100 });
    }

    /** Cancels what runs, so that no worker outlives the test, then stops the daemon and removes its files. */
    async stop() {
        try {
            const { runs } = await this.get('/api/v1/runs?state=active&limit=1000');
            await Promise.all(runs.map(run => this.post(`/api/v1/runs/${run.id}/cancel`).catch(() => {})));
            await until('all runs to end', async () =>
                (await this.get('/api/v1/runs?state=active&limit=1')).runs.length === 0, { limit: 30000, every: 100 });
        } catch { /* the daemon may be gone already; its shims follow the state directory */ }
        this.process?.kill('SIGTERM');
        const timer = setTimeout(() => this.process?.kill('SIGKILL'), 15000);
        const how = await this.ended;
        clearTimeout(timer);
        rmSync(this.stateDir, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 });
        return how;
    }
}
