// The list of planted faults cannot rot: each applies to the tree as it is, names tests that exist, and every field of the
// job table has a fault or a reason. Nothing is built.
import assert from 'node:assert/strict';
import path from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';

import { check, exceptions, parse, plant, rows, testOf } from '../planted/list.mjs';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..');

test('test_planted_every_fault_applies_once_and_every_field_has_one', () => {
    assert.deepEqual(check(root), []);
});

test('test_planted_a_fault_is_found_across_line_ends_and_only_once', () => {
    const [fault] = parse('[a-b] what\nfile: x.c\ntest: unit t\n- f(a,\n-   b);\n+ f(b, a);\n', 'list');
    assert.equal(plant('x;\n    f(a,     b);\n', fault), 'x;\n    f(b, a);\n');
    assert.throws(() => plant('f(a, b); f(a, b);', fault), /\[a-b\] stands 2 times in x\.c/);
    assert.throws(() => plant('f(b, a);', fault), /\[a-b\] is not in x\.c/);
    const [two] = parse('[c] twice\nfile: x.c\ntest: unit t\n- one\n+ 1\n- two\n+\n', 'list');
    assert.equal(plant('one two', two), '1 ');
});

test('test_planted_a_list_that_cannot_be_read_says_where', () => {
    assert.throws(() => parse('file: x.c\n', 'list'), /list:1: expected \[name\]/);
    assert.throws(() => parse('[a] b\nwhat is this\n', 'list'), /list:2: .* neither a key nor a line of a change/);
    assert.throws(() => parse('[a] b\n+ x\n', 'list'), /list:2: \+ before any -/);
    assert.equal(testOf('unit'), null);
    assert.deepEqual(testOf('node tests/a.test.mjs of this name'), { kind: 'node', name: 'tests/a.test.mjs', only: 'of this name' });
    assert.deepEqual([...exceptions('Never:\n    /a /b/c\n')], [['/a', 'Never'], ['/b/c', 'Never']]);
});

test('test_planted_rows_of_the_job_table_are_seen', () => {
    const table = 'struct job_field job_fields[] = {\n{ROW("/a", JOB_T_INT, a), FLAGS(FIXED)},\n{BARE("/b/c", JOB_T_AXES), FLAGS(NULLABLE | ONLY)},\n';
    assert.deepEqual(rows(table), [{ pointer: '/a', closed: false }, { pointer: '/b/c', closed: true }]);
});
