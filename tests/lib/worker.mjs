// The worker processes of a daemon under test.
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';

/** The worker of a run dies as by the kernel's hand. @param {string} stateDir of its daemon @param {string} run */
export function killWorker(stateDir, run) {
    const pids = readdirSync('/proc').filter(name => /^\d+$/.test(name)).filter(pid => {
        try {
            const words = readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0');
            return words[1] === 'train' && words[words.indexOf('--run') + 1] === String(run) && words.some(word => word.startsWith(`${stateDir}/`));
        } catch {
            return false;
        }
    });
    assert.equal(pids.length, 1, `workers of run ${run}`);
    process.kill(Number(pids[0]), 'SIGKILL');
}
