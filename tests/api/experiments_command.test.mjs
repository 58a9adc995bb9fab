// tests/run experiments, stopped by a kill of the command: the next call goes on, and runs nothing again.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { build, root } from './lib.mjs';

const skip = existsSync(path.join(build, 'bin/polyd')) && existsSync(path.join(build, 'bin/polyd-worker')) ? false : 'polyd or polyd-worker is not built';

/** Calls the command; `seen` looks at all that it has said so far, and ends it by returning true. */
function call(folder, names, seen = _ => false) {
    const child = spawn(process.execPath, [path.join(root, 'tests/bench/experiments.mjs'), ...names], { env: { ...process.env, POLYD_ROOT: folder, POLYD_BUILD: build, POLYD_SHARED: '' } });
    let text = '';
    for (const stream of [child.stdout, child.stderr])
        stream.on('data', part => {
            text += part;
            if (seen(text))
                child.kill('SIGKILL');
        });
    return new Promise(resolve => { child.on('close', (code, signal) => resolve({ code, signal, text })); });
}

test('after a kill of the command the next call goes on, and what has run is not run again', { skip, timeout: 240000 }, async () => {
    const folder = mkdtempSync(path.join(os.tmpdir(), 'polyd-x-'));
    mkdirSync(path.join(folder, 'tests/bench'), { recursive: true });
    try {
        const first = await call(folder, ['T2', 'T9'], text => text.includes('T9: 0 runs'));
        assert.equal(first.signal, 'SIGKILL', first.text);
        assert.match(first.text, /^T2 +about +1 min +T2\nT9 +about +1 min +T9\ntogether +about +1 min[^\n]*\n {2}T2: 0 runs\n/, 'the minutes come first');
        const pid = Number(readFileSync(path.join(folder, 'build/experiments/daemon.pid'), 'utf8')), page = path.join(folder, 'tests/bench/SMALL.md');
        assert.ok(existsSync(`/proc/${pid}`) && !existsSync(page), 'its daemon is left, and nothing is written yet');
        const second = await call(folder, ['T2', 'T9']);
        assert.equal(second.code, 0, second.text);
        assert.match(second.text, /2 passed, 0 failed/);
        assert.ok(!existsSync(`/proc/${pid}`), 'the daemon of the first call has ended');
        const written = readFileSync(page, 'utf8');
        for (const name of ['T2', 'T9'])
            assert.match(written, new RegExp(`## ${name}: [^#]*Verdict: \\*\\*holds\\*\\*`));
        const third = await call(folder, ['T2', 'T9']);
        assert.match(third.text, /T2: 1 runs\n[^]*T9: 1 runs\n[^]*2 passed/, 'one run each: nothing ran again');
        assert.doesNotMatch(third.text, /: 0 runs/);
        assert.equal(readFileSync(page, 'utf8'), written);
        const wrong = await call(folder, ['E99']);
        assert.deepEqual([wrong.code, /no group, experiment or option 'E99'/.test(wrong.text)], [2, true]);
    } finally {
        rmSync(folder, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 });
    }
});
