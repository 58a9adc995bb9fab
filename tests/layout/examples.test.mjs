// Seven small examples of what is added most often, as patches: each applies, touches only what its row of "One thing, one
// place" allows, and is C that a compiler takes.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import test, { after } from 'node:test';
import { fileURLToPath } from 'node:url';
import { noGit, treeFiles } from '../lib/tree.mjs';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..');
const folder = path.join(root, 'tests/layout/examples');

/** Per example: what it may touch, and how many lines it may add to each of the files that are there. */
const LINES = 20;
const may = {
    network: [/^daemon\/worker\/model\/arch\/\w+\.c$/, /^daemon\/worker\/model\/arch\/networks\.h$/, /^daemon\/job\/networks\.c$/],
    optimiser: [/^daemon\/worker\/train\/optim\/\w+\.c$/, /^daemon\/worker\/train\/optim\/optim\.h$/, /^daemon\/job\/(optimisers|fields)\.c$/],
    activation: [/^kernels\/graph\/phi\.h$/, /^daemon\/job\/\w+\.[ch]$/],
    field: [/^daemon\/job\/(fields\.c|job\.h)$/, /^daemon\/worker\/\w+\/\w+\.c$/],
    metric: [/^daemon\/job\/metric\w*\.[ch]$/, /^daemon\/worker\/\w+\/\w+\.c$/],
    function: [/^kernels\/formula\/functions\.def$/],
    kind: [/^daemon\/job\/kind\.[ch]$/, /^daemon\/worker\/kinds\/\w+\.c$/],
};

const names = readdirSync(folder).filter(name => name.endsWith('.patch')).map(file => file.replace(/\.patch$/, ''));
const touched = patch => [...patch.matchAll(/^\+\+\+ b\/(.*)$/gm)].map(m => m[1]);

export const strays = (name, patch) => touched(patch).filter(file => !(may[name] ?? []).some(rule => rule.test(file)));

/** Files that were there before, with more lines changed than a row or two. */
export const crowded = numstat => numstat.trim().split('\n').map(line => line.split('\t'))
    .filter(([added, removed, file]) => existsSync(path.join(root, file)) && Number(added) + Number(removed) > LINES).map(([, , file]) => file);

test('test_layout_examples_are_those_of_the_table', () => {
    assert.deepEqual(names.sort(), Object.keys(may).sort());
});

/** The sources alone, to be patched. */
const copy = mkdtempSync(path.join(os.tmpdir(), 'polyd-examples-'));
after(() => rmSync(copy, { recursive: true, force: true }));
for (const file of treeFiles(root)) {
    if (!/^(daemon|kernels)\/.*\.(h|c|def)$/.test(file))
        continue;
    mkdirSync(path.dirname(path.join(copy, file)), { recursive: true });
    copyFileSync(path.join(root, file), path.join(copy, file));
}

/** What expands a table that an example adds to: symbolic layer, graph, vectors of the CPU. */
const expands = { function: ['kernels/formula/parse.c', 'kernels/formula/program.c', 'kernels/graph/formula.c', 'kernels/backend/cpu/attention_formula.c'] };

/** Compiles without writing. Of an example that changes headers alone nothing is compiled. */
const compile = files => files.forEach(file =>
    execFileSync('cc', ['-std=gnu17', '-fsyntax-only', '-Wall', '-Werror', '-D_GNU_SOURCE', '-DCPU_F64=0', '-I', copy, file], { cwd: copy, stdio: 'pipe' }));

for (const name of names) {
    const file = `${name}.patch`, patch = readFileSync(path.join(folder, file), 'utf8');
    test(`test_layout_example_${name}_applies_and_touches_its_places_alone`, { skip: noGit }, () => {
        assert.ok(touched(patch).length > 0);
        assert.deepEqual(strays(name, patch), []);
        assert.ok(existsSync(path.join(folder, `${name}.json`)), `${name}.json: the job that is run with it`);
        execFileSync('git', ['apply', '--check', path.join(folder, file)], { cwd: root, stdio: 'pipe' });
        assert.deepEqual(crowded(execFileSync('git', ['apply', '--numstat', path.join(folder, file)], { cwd: root, encoding: 'utf8' })), []);
        execFileSync('git', ['apply', path.join(folder, file)], { cwd: copy, stdio: 'pipe' });
        compile([...touched(patch).filter(one => one.endsWith('.c')), ...expands[name] ?? []]);
        execFileSync('git', ['apply', '-R', path.join(folder, file)], { cwd: copy, stdio: 'pipe' });
    });
}

test('test_layout_examples_checker_compiles', () => {
    mkdirSync(path.join(copy, 'daemon/none'), { recursive: true });
    execFileSync('sh', ['-c', 'echo "int f(void) { return g(); }" > daemon/none/wrong.c'], { cwd: copy });
    assert.throws(() => compile(['daemon/none/wrong.c']), /implicit declaration/);
});

test('test_layout_examples_checker_sees_what_strays', () => {
    assert.deepEqual(strays('network', '+++ b/daemon/worker/train/setup.c\n'), ['daemon/worker/train/setup.c']);
    assert.deepEqual(strays('nothing', '+++ b/x\n'), ['x']);
    assert.deepEqual(crowded('21\t0\tREADME.md\n15\t6\tapi/openapi.yaml\n20\t0\tweb/README.md\n99\t0\ta/new/file.c\n'), ['README.md', 'api/openapi.yaml']);
});
