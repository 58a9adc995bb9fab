// `tests/run examples`: builds each example in a copy of the tree and runs one job with it.
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, readFileSync, readdirSync, rmSync } from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';

const here = path.dirname(fileURLToPath(import.meta.url));
const root = path.resolve(here, '../../..');
const work = path.join(root, 'build/examples');
const tree = path.join(work, 'tree'), build = path.join(work, 'build');
function sh(program, args, cwd) {
    const { status, stdout, stderr, error } = spawnSync(program, args, { cwd, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'], maxBuffer: 1 << 26 });
    if (error || status !== 0) // ninja prints the compiler's errors to standard output
        throw new Error(`${program} ${args.join(' ')}: ${error?.message ?? `exit status ${status}`}\n${stdout.split('\n').slice(-40).join('\n')}\n${stderr}`);
    return stdout;
}

// The tree as it stands, with what is not committed yet; objects of an earlier call stay.
rmSync(tree, { recursive: true, force: true });
for (const file of sh('git', ['ls-files', '-z', '--cached', '--others', '--exclude-standard'], root).split('\0')) {
    if (!file || !existsSync(path.join(root, file)))
        continue;
    mkdirSync(path.dirname(path.join(tree, file)), { recursive: true });
    cpSync(path.join(root, file), path.join(tree, file), { preserveTimestamps: true, verbatimSymlinks: true });
}
process.env.POLYD_BUILD = build;
process.env.POLYD_ROOT = tree;
const { Daemon } = await import('../../lib/daemon.mjs'), { checkBuffers } = await import('./buffers.mjs');

/** The copy lies in a folder that git ignores: git must not take it for a part of this repository. */
function patch(name, ...how) {
    execFileSync('git', ['apply', ...how, path.join(here, `${name}.patch`)], { cwd: tree, stdio: 'pipe', env: { ...process.env, GIT_CEILING_DIRECTORIES: work } });
}

function compile() {
    sh('cmake', ['-C', 'deploy/presets/quick.cmake', '-B', build, '-G', 'Ninja'], tree);
    sh('ninja', ['-C', build, 'polyd', 'polyd-worker'], tree);
}

for (const name of readdirSync(here).filter(file => file.endsWith('.patch')).map(file => file.replace(/\.patch$/, '')).sort())
    test(`example ${name}: builds, and its job does what is expected`, { timeout: 900000 }, async () => {
        const { job, falls, parameters, writes } = JSON.parse(readFileSync(path.join(here, `${name}.json`), 'utf8'));
        patch(name);
        try {
            compile();
            const daemon = await Daemon.start({ flags: ['--devices.cpu_slots=1'] });
            try {
                if (parameters !== undefined)
                    assert.equal((await daemon.post('/api/v1/jobs?dry_run=1', job)).plan.parameters, parameters);
                const { run } = await daemon.submit(job);
                await daemon.reach(run, 'succeeded');
                const rows = (await daemon.get(`/api/v1/runs/${run}/export`)).trim().split('\n').slice(1).map(line => line.split(','));
                const of = key => rows.filter(row => row[0] === key).map(row => Number(row.at(-1)));
                if (falls)
                    assert.ok(of(falls).length > 1 && /** @type {number} */ (of(falls).at(-1)) < of(falls)[0] - .05, `${falls}: ${of(falls)}`);
                if (writes)
                    assert.deepEqual(of(writes.key), writes.values);
            } finally {
                await daemon.stop();
            }
            if (name === 'network')
                await checkBuffers(job.model);
        } finally {
            patch(name, '-R');
        }
    });
