// The last line of tests/run is only worth what its parser is.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';

import { parseJunit } from '../lib/count.mjs';

const junit = (name, status, output, more = '') =>
    `<testsuite><testcase name="${name}" classname="${name}" time="0.1" status="${status}">${more}<system-out>${output}</system-out></testcase></testsuite>`;
const tally = xml => ['passed', 'failed', 'skipped'].map(status => parseJunit(xml).filter(test => test.status === status).length);

test('test_count_reads_cmocka_function_by_function', () => {
    assert.deepEqual(tally(junit('t', 'fail', '1..3\nok 1 - test_a\nnot ok 2 - test_b\n# 0x1 != 0x2\nnot ok 3 # SKIP test_c\n# not ok - t\n', '<failure message="Failed"/>')), [1, 1, 1]);
});

test('test_count_a_program_that_died_has_failed', () => {
    assert.deepEqual(tally(junit('t', 'fail', '1..3\nok 1 - test_a\n', '<failure message="SEGFAULT"/>')), [1, 1, 0]);
    assert.deepEqual(tally(junit('t', 'fail', '', '<failure message="Timeout"/>')), [0, 1, 0]);
});

test('test_count_a_skipped_program_gives_its_reason', () => {
    const [skipped] = parseJunit(junit('t', 'notrun', 'skip: no data &amp; no luck\n', '<skipped message="SKIP_RETURN_CODE=77"/>'));
    assert.deepEqual(skipped, { name: 't', status: 'skipped', why: 'skip: no data & no luck' });
});

test('test_count_a_program_that_could_not_start_has_failed', () => {
    // What ctest 3.25 writes.
    for (const [why, output] of [['Unable to find executable', 'Unable to find executable: bin/t'], ['Required Files Missing', 'Unable to find required file: x'],
        ['Failed to change working directory', 'Failed to change working directory to /x'], ['Fixture dependency failed', 'Failed test dependencies: f'], ['', '']])
        assert.deepEqual(tally(junit('t', 'notrun', output, `<skipped message="${why}"/>`)), [0, 1, 0], why);
    assert.deepEqual(parseJunit(junit('t', 'notrun', 'Unable to find executable: bin/t', '<skipped message="Unable to find executable"/>')),
        [{ name: 't', status: 'failed', why: 'Unable to find executable: bin/t' }]);
    assert.deepEqual(tally(junit('t', 'notrun', '')), [0, 1, 0]);
    assert.deepEqual(tally(junit('t', 'disabled', 'Disabled')), [0, 0, 1]);
});

test('test_count_takes_the_word_of_a_runner_that_counts', () => {
    assert.deepEqual(tally(junit('golden', 'run', 'attention/p3 ok\ngolden: 18 passed, 0 failed, 2 skipped\n')), [18, 0, 2]);
    assert.deepEqual(tally(junit('golden', 'fail', 'golden: 17 passed, 1 failed, 0 skipped\n', '<failure message="Failed"/>')), [17, 1, 0]);
    const named = parseJunit(junit('golden', 'fail', 'ok a/1: fine\nFAIL a/2: 3 tensors\nskip b/1: to come\ngolden: 1 passed, 1 failed, 1 skipped\n', '<failure message="Failed"/>'));
    assert.deepEqual(named.map(({ name, why }) => [name, why]), [['golden: a/1', ''], ['golden: a/2', '3 tensors'], ['golden: b/1', 'to come']]);
    assert.deepEqual(tally(junit('plain', 'run', 'fine\n')), [1, 0, 0]);
});

test('test_count_a_test_called_by_a_pointer_is_no_file', () => {
    const dir = mkdtempSync(path.join(os.tmpdir(), 'polyd-count-')), results = path.join(dir, 'results');
    const reporter = fileURLToPath(new URL('../lib/reporter.mjs', import.meta.url)), file = path.join(dir, 'a.test.mjs');
    try {
        writeFileSync(file, "import test from 'node:test';\ntest('/data/path', () => {});\ntest('/data/split/val', () => { throw new Error('no'); });\n");
        const { NODE_TEST_CONTEXT, ...env } = process.env; // it would make the child report to this run
        spawnSync(process.execPath, ['--test', `--test-reporter=${reporter}`, '--test-reporter-destination=stdout', file], { env: { ...env, POLYD_TEST_RESULTS: results } });
        assert.deepEqual(readFileSync(results, 'utf8').trim().split('\n').map(line => JSON.parse(line)).map(({ name, status }) => [name, status]),
            [['/data/path', 'passed'], ['/data/split/val', 'failed']]);
    } finally {
        rmSync(dir, { recursive: true });
    }
});
