// An activation of attention is one row of kernels/graph/phi.h and one word of the job table: every arithmetic knows every
// word that rows are written in, and an example of a new one shows what is to be touched. (one_place.test.mjs: nobody else
// names one.)
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import test from 'node:test';
import { noGit } from '../lib/tree.mjs';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..');
const read = file => readFileSync(path.join(root, file), 'utf8');
const rows = 'kernels/graph/phi.h', end = 'kernels/graph/phi_end.h', example = 'tests/layout/examples/activation.patch';

// Who expands the rows, and the words that it may do without: powers are written out by degree, the graph differentiates.
const arithmetics = {
    'kernels/graph/phi.c': ['V', 'D', 'DSIGMOID', 'DWAVE', 'DPOW'],
    'kernels/backend/cpu/attention_phi.h': ['POW', 'DPOW'],
    'kernels/backend/cpu/attention_stats.c': [],
    'kernels/backend/cuda/attention/phi.cuh': ['POW', 'DPOW'],
    'kernels/backend/cuda/attention/hopper_phi.cuh': ['POW', 'DPOW'],
    'kernels/backend/cuda/attention/stats.cu': [],
};
const all = (text, pattern) => [...text.matchAll(pattern)].map(match => match[1]);

test('test_phi_every_arithmetic_defines_every_word_of_the_rows', () => {
    const words = all(read(end), /^#undef (\w+)$/gm);
    assert.ok(words.length >= 20, words.join());
    const table = /#define PK_EACH_PHI\(ROW\)([^]*?)\/\* clang-format on \*\//.exec(read(rows))[1].replace(/\/\*.*?\*\//g, '');
    for (const [, used] of table.matchAll(/\b([A-Z][A-Z0-9]*)(?=[(), ])/g))
        assert.ok(words.includes(used) || ['ROW', 'ALONE', 'HOMOGENEOUS', 'POWER', 'SUMMED', 'EXPONENTIAL'].includes(used), `${used}: no word of ${end}`);
    for (const [file, without] of Object.entries(arithmetics)) {
        const text = read(file), defined = all(text, /^#define (\w+)/gm);
        assert.deepEqual(words.filter(word => !defined.includes(word) && !without.includes(word)), [], `${file} lacks words`);
        assert.ok(text.includes(`#include "${end}"`), `${file} takes its words back`);
    }
});

test('test_phi_rows_and_words_of_the_job_table_go_together', () => {
    const names = all(read(rows), /^ *ROW\(PK_PHI_\w+, *(\w+),/gm);
    const words = all(/#define JOB_ACTIVATIONS\(WORD\)([^]*?)\/\* clang-format on \*\//.exec(read('daemon/job/job.h'))[1], /WORD\(\w+, *(\w+),/g);
    const besides = all(read('daemon/worker/model/spec.c'), /\{JOB_ACTIVATION_(\w+), "\w+"/g).map(word => word.toLowerCase());
    assert.ok(names.length >= 6 && besides.length >= 2);
    assert.deepEqual(words.filter(word => !besides.includes(word) && word !== 'formula').sort(), [...names].sort());
});

test('test_phi_a_new_activation_touches_one_row_and_one_word', { skip: noGit }, () => {
    const changed = execFileSync('git', ['apply', '--numstat', path.join(root, example)], { cwd: root, encoding: 'utf8' }).trim().split('\n')
        .map(line => line.split('\t'));
    assert.deepEqual(changed.map(([, removed, file]) => [file, removed]), [['daemon/job/job.h', '0'], [rows, '0']]);
    const check = spawnSync('git', ['apply', '--check', path.join(root, example)], { cwd: root, encoding: 'utf8' });
    assert.equal(check.status, 0, check.stderr);
});
