// polyd-worker plan by hand: bytes as JSON, what a step moves as tables, and what it says of nonsense.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { build } from './lib.mjs';

const worker = path.join(build, 'bin/polyd-worker');
const skip = existsSync(worker) ? false : 'polyd-worker is not built';
const job = JSON.stringify({ model: { preset: 'vit_micro' }, data: { dataset: 'digits_gen' }, train: { steps: 10 } });
const plan = (input, ...args) => spawnSync(worker, ['plan', ...args], { input, encoding: 'utf8' });

test('a job is planned in bytes, or counted node by node', { skip }, () => {
    const bytes = plan(job), count = plan(job, '--roofline'), other = plan(job, '--roofline', '--tflops', '989', '--tbs', '3.35');
    assert.equal(bytes.status, 0, bytes.stderr);
    assert.ok(JSON.parse(bytes.stdout).total_bytes > 0);
    assert.equal(count.status, 0, count.stderr);
    assert.match(count.stdout, /^the whole step, 1 times a step\n/);
    assert.match(count.stdout, /counted, not measured: at 790 TFLOP\/s and 4\.30 TB\/s/);
    assert.match(count.stdout, /\nmatmul +backward +\d+ /);
    assert.match(other.stdout, /counted, not measured: at 989 TFLOP\/s and 3\.35 TB\/s/);
    const kernels = text => /\ntotal +(\d+) .* (\S+)\n/.exec(text).slice(1).map(Number);
    assert.equal(kernels(count.stdout)[0], kernels(other.stdout)[0]);
    assert.ok(kernels(count.stdout)[1] < kernels(other.stdout)[1]); // slower memory, a longer step
});

test('what is no number and no job is said', { skip }, () => {
    for (const [name, value] of [['--tflops', 'x'], ['--tbs', '0'], ['--tbs', '-1'], ['--tflops', 'nan']]) {
        const bad = plan(job, '--roofline', name, value);
        assert.equal(bad.status, 2);
        assert.match(bad.stderr, new RegExp(`'${name} ${value}' is not a positive number`));
    }
    const none = plan('', '--roofline');
    assert.equal(none.status, 1);
    assert.match(none.stderr, /standard input has no document/);
    const wrong = plan('{"train":{}}', '--roofline');
    assert.equal(wrong.status, 3);
    assert.match(wrong.stderr, /^#\//);
    assert.equal(wrong.stdout, '');
});
