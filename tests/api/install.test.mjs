// What `cmake --install` installs: the files that deploy/README.md names, where the installed programs look for them.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, readdirSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import test from 'node:test';
import { build } from '../lib/daemon.mjs';
import { root } from './lib.mjs';

const plugins = ['backend_cuda', 'comm_nccl'];
/** Plug-ins that this build makes: their targets are in its build.ninja. */
const made = () => {
    const rules = readFileSync(path.join(build, 'build.ninja'), 'utf8');
    return plugins.filter(name => rules.includes(`\nbuild bin/${name}.so`));
};
const unbuilt = () => [...made().map(name => `bin/${name}.so`), 'man/polyd.8'].filter(name => !existsSync(path.join(build, name)));

test('an installation has every file that the document names', t => {
    if (unbuilt().length > 0)
        return t.skip(`not built: ${unbuilt()}`);
    const dir = mkdtempSync(path.join(os.tmpdir(), 'polyd-install-'));
    t.after(() => rmSync(dir, { recursive: true, force: true }));
    execFileSync('cmake', ['--install', build, '--prefix', '/opt/polyd'], { stdio: 'pipe', env: { ...process.env, DESTDIR: dir } });
    const prefix = path.join(dir, 'opt/polyd');
    const found = readdirSync(prefix, { recursive: true, withFileTypes: true }).filter(entry => entry.isFile())
        .map(entry => path.relative(prefix, path.join(entry.parentPath ?? entry.path, entry.name))).sort();
    const table = readFileSync(path.join(root, 'deploy/README.md'), 'utf8').split('\n## Installing\n')[1].split('\n## ')[0];
    const named = [...table.matchAll(/^\| (`.*?) \|/gm)].flatMap(([, cell]) => cell.split(', ').map(file => file.replaceAll('`', '')));
    assert.deepEqual(found, named.filter(file => !plugins.some(name => file.endsWith(`/${name}.so`) && !made().includes(name))).sort());

    // The plug-ins are found: what is missing here is a driver or a library of NVIDIA.
    const info = JSON.parse(execFileSync(path.join(prefix, 'bin/polyd-worker'), ['info'], { encoding: 'utf8' }));
    for (const name of made())
        assert.doesNotMatch(info.plugins[name], /is missing|was built without/, name);
    assert.match(readFileSync(path.join(prefix, 'lib/systemd/system/polyd.service'), 'utf8'), /^ExecStart=\/opt\/polyd\/bin\/polyd$/m);
});
