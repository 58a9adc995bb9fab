// The manual pages: made from the tables behind --help, installed, and shown by man without a warning.
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import test from 'node:test';
import { build } from '../lib/daemon.mjs';

const pages = { 'polyd.8': 'man8', 'polyd-worker.8': 'man8', 'polyd.conf.5': 'man5' };
const run = (program, ...args) => execFileSync(path.join(build, 'bin', program), args, { encoding: 'utf8' });
const skip = spawnSync('man', ['--version']).status !== 0 && 'man (package man-db) is not installed';

/** What a reader sees, on lines that are never broken. */
function shown(file) {
    const env = { ...process.env, MANWIDTH: '10000', LC_ALL: 'C.UTF-8', MANOPT: '' };
    const { status, stdout, stderr } = spawnSync('man', ['--warnings', '-l', file], { encoding: 'utf8', env });
    assert.deepEqual([status, stderr], [0, ''], file);
    return stdout;
}

test('manual pages are shown without a warning and name all that --help names', { skip }, () => {
    const page = Object.fromEntries(Object.keys(pages).map(name => [name, shown(path.join(build, 'man', name))]));
    const help = run('polyd', '--help');
    const flags = [...help.matchAll(/(--[\w.-]+|POLYD_\w+)/g)].map(match => match[1].replace(/\.$/, ''));
    assert.ok(flags.length > 100);
    assert.deepEqual(flags.filter(flag => !page['polyd.8'].includes(flag)), []);
    const commands = [...help.matchAll(/^ {2}polyd \[flags\] (\w+)/gm)].map(match => match[1]).filter(word => word !== 'run');
    assert.ok(commands.length >= 6);
    for (const command of commands)
        assert.match(page['polyd.8'], new RegExp(`^ +${command}\\b`, 'm'));
    const settings = [...help.matchAll(/--(\w+)\.(\w+)=/g)].filter(([, section]) => section !== 'data');
    assert.ok(settings.length > 30);
    for (const [, section, key] of settings) {
        assert.ok(page['polyd.conf.5'].includes(`[${section}]`), section);
        assert.match(page['polyd.conf.5'], new RegExp(`^ +${key} = `, 'm'));
    }
    const roles = [...run('polyd-worker', '--help').matchAll(/^ {2}polyd-worker ([a-z]+) +(.*)$/gm)];
    assert.ok(roles.length >= 7);
    for (const [, role, what] of roles)
        assert.ok(page['polyd-worker.8'].includes(role) && page['polyd-worker.8'].includes(what), role);
    for (const [name, text] of Object.entries(page)) {
        const [title, section] = [name.slice(0, -2), name.slice(-1)];
        assert.match(text, new RegExp(`^${title}\\(${section}\\)`, 'm'));
        assert.match(text, new RegExp(`^NAME\\n +${title} - \\w`, 'm'));
    }
});

test('manual pages are installed in their sections', () => {
    const prefix = mkdtempSync(path.join(os.tmpdir(), 'polyd-manual-'));
    try {
        execFileSync('cmake', ['--install', build, '--component', 'manual', '--prefix', prefix], { stdio: 'pipe' });
        const found = readdirSync(prefix, { recursive: true, withFileTypes: true }).filter(entry => entry.isFile())
            .map(entry => `${path.basename(entry.parentPath ?? entry.path)}/${entry.name}`).sort();
        assert.deepEqual(found, Object.entries(pages).map(([name, folder]) => `${folder}/${name}`).sort());
    } finally {
        rmSync(prefix, { recursive: true, force: true });
    }
});
