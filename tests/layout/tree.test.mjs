// The list of source files is the same with and without git.
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { noGit, treeFiles } from '../lib/tree.mjs';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..'), lib = path.join(root, 'tests/lib/tree.mjs');
/** treeFiles in a process that finds no git. */
const without = folder => JSON.parse(execFileSync(process.execPath, ['--input-type=module', '-e',
    `const { treeFiles } = await import(${JSON.stringify(lib)}); console.log(JSON.stringify(treeFiles(${JSON.stringify(folder)})));`], { env: { PATH: '/nonexistent' }, encoding: 'utf8', maxBuffer: 1 << 26 }));

test('test_tree_is_the_same_without_git', { skip: noGit || (spawnSync('git', ['ls-files', '--error-unmatch', 'README.md'], { cwd: root }).status !== 0 && 'this tree is no repository') }, () => {
    const files = treeFiles(root);
    assert.ok(files.length > 1000 && files.includes('tests/lib/tree.mjs'));
    assert.deepEqual(without(root), files);
});

test('test_tree_without_git_leaves_out_what_a_build_makes', t => {
    const dir = mkdtempSync(path.join(os.tmpdir(), 'polyd-tree-'));
    t.after(() => rmSync(dir, { recursive: true, force: true }));
    for (const file of ['a.c', 'daemon/build/b.c', 'build/x.o', 'build-old/x.o', 'tests/node_modules/p/i.js', '.git/config', '.ci/run', 'd/one.profraw', '.gpu-inputs/x']) {
        mkdirSync(path.join(dir, path.dirname(file)), { recursive: true });
        writeFileSync(path.join(dir, file), '');
    }
    assert.deepEqual(without(dir), ['.ci/run', 'a.c', 'daemon/build/b.c']);
    if (!noGit) { // a folder of which git says that it is a repository, and then refuses it
        writeFileSync(path.join(dir, '.git/config'), 'no configuration');
        assert.deepEqual(treeFiles(dir), ['.ci/run', 'a.c', 'daemon/build/b.c']);
    }
});

test('test_tree_is_what_the_tests_of_the_layout_read', () => {
    for (const file of treeFiles(root).filter(name => /^tests\/layout\/(?!tree)\w+\.test\.mjs$/.test(name)))
        assert.doesNotMatch(readFileSync(path.join(root, file), 'utf8'), /ls-files/, `${file}: treeFiles() also works without git`);
});
