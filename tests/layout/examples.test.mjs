// Six small examples of what is added most often, as patches: each applies, and touches only what its row of "One thing, one
// place" allows.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync, readdirSync } from 'node:fs';
import path from 'node:path';
import test from 'node:test';

const root = path.resolve(import.meta.dirname ?? path.dirname(new URL(import.meta.url).pathname), '../..');
const folder = path.join(root, 'tests/layout/examples');

/** Per example: what it may touch, and how many lines it may add to each of the files that are there. */
const LINES = 20;
const may = {
    network: [/^daemon\/worker\/model\/arch\/\w+\.c$/, /^daemon\/worker\/model\/arch\/networks\.h$/, /^daemon\/job\/networks\.c$/],
    optimiser: [/^daemon\/worker\/train\/optim\/\w+\.c$/, /^daemon\/worker\/train\/optim\/optim\.h$/, /^daemon\/job\/(optimisers|fields)\.c$/],
    activation: [/^kernels\/graph\/phi\.h$/, /^daemon\/job\/\w+\.[ch]$/],
    field: [/^daemon\/job\/(fields\.c|job\.h)$/, /^daemon\/worker\/\w+\/\w+\.c$/],
    metric: [/^daemon\/job\/metric\w*\.[ch]$/, /^daemon\/worker\/\w+\/\w+\.c$/],
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

for (const name of names) {
    const file = `${name}.patch`, patch = readFileSync(path.join(folder, file), 'utf8');
    test(`test_layout_example_${name}_applies_and_touches_its_places_alone`, () => {
        assert.ok(touched(patch).length > 0);
        assert.deepEqual(strays(name, patch), []);
        assert.ok(existsSync(path.join(folder, `${name}.json`)), `${name}.json: the job that is run with it`);
        execFileSync('git', ['apply', '--check', path.join(folder, file)], { cwd: root, stdio: 'pipe' });
        assert.deepEqual(crowded(execFileSync('git', ['apply', '--numstat', path.join(folder, file)], { cwd: root, encoding: 'utf8' })), []);
    });
}

test('test_layout_examples_checker_sees_what_strays', () => {
    assert.deepEqual(strays('network', '+++ b/daemon/worker/train/setup.c\n'), ['daemon/worker/train/setup.c']);
    assert.deepEqual(strays('nothing', '+++ b/x\n'), ['x']);
    assert.deepEqual(crowded('21\t0\tREADME.md\n15\t6\tapi/openapi.yaml\n20\t0\tweb/README.md\n99\t0\ta/new/file.c\n'), ['README.md', 'api/openapi.yaml']);
});
