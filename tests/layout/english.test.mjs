// Comments and documents use standard terms: words of a private dialect, and persons in code, are refused.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import test from 'node:test';
import { treeFiles } from '../lib/tree.mjs';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..');
const tracked = treeFiles(root);

/** What is refused, with the term to use. `but`: contexts in which the word is the usual one. */
const terms = [
    { word: /\b(nobody|somebody|anybody|whoever)\b/i, better: 'the process, thread or caller that is meant' },
    { word: /\btold\b/i, better: 'notified, reported, requested, recognised by' },
    { word: /\bbeside\b/i, better: 'in addition to, next to, auxiliary' },
    { word: /\bmeetings?\b/i, better: 'collective, all-reduce, barrier' },
    { word: /\bpost ?box(es)?\b/i, better: 'inbox' },
    { word: /\bstart values?\b/i, better: 'initial value' },
    { word: /\bdoors?\b/i, better: 'front end' },
    { word: /\bkeepers?\b/i, better: 'store' },
    { word: /\banew\b/i, better: 'again; restart, reset' },
    { word: /\bfor want of\b/i, better: 'without, if missing' },
    { word: /\bsaid\b/i, better: 'stated, logged, reported' },
    { word: /\bside by side\b/i, better: 'concurrent, in a row' },
    { word: /\bto the bit\b/i, better: 'bitwise equal' },
    { word: /\bhands? out\b/i, better: 'returns, allocates, exports' },
    { word: /\bcourse\b/i, better: 'trajectory, curve', but: /\bof course\b|polyd\.course/i },
    { word: /\brooms?\b/i, better: 'module; space', but: /\broom (for|in it|now)\b|\b(no|has|have|make|makes) room\b|class=/i },
];

/** The parts of a file that are prose: a document whole, of code the comments. Code in backticks is left out. */
export function prose(file, text) {
    if (/\.(md|sql|conf)$/.test(file))
        return text.replace(/^```[\s\S]*?^```/gm, '').replace(/`[^`\n]*`/g, '');
    return [...text.matchAll(/\/\*[\s\S]*?\*\/|(?<![:'"\w])\/\/[^\n]*/g)].map(([comment]) => comment).join('\n').replace(/`[^`\n]*`/g, '');
}

export function dialect(file, text) {
    const lines = prose(file, text).split('\n');
    return terms.flatMap(({ word, better, but }) => lines.filter(line => word.test(but ? line.replace(new RegExp(but, 'gi'), '') : line))
        .map(line => `${file}: ${line.match(word)[0]} (${better}): ${line.trim().slice(0, 100)}`));
}

test('test_english_comments_and_documents_use_standard_terms', () => {
    const files = tracked.filter(file => /^(api|daemon|deploy|kernels|migrations|web)\/.*\.(c|h|cu|cuh|js|mjs|css|md|sql|conf)$|^README\.md$|^tests\/([\w/]+\/)?README\.md$/.test(file));
    assert.ok(files.length > 800);
    assert.deepEqual(files.flatMap(file => dialect(file, readFileSync(path.join(root, file), 'utf8'))), []);
});

/** Parts of identifiers that are private terms; `room` is allowed where it is the workspace of the attention kernels. */
const parts = /(?:^|_)(say|says|said|told|tell|tells|meeting|keeper|beside|course|rooms?|doors?)(?:_|$)/i, allowed = /^(att_room|backward_room)$/;

export function identifiers(file, text) {
    const code = text.replace(/\/\*[\s\S]*?\*\/|\/\/[^\n]*|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'/g, '');
    return [...new Set(code.match(/\b[A-Za-z_]\w*\b/g) ?? [])].filter(name => parts.test(name) && !allowed.test(name)).map(name => `${file}: ${name}`);
}

test('test_english_identifiers_have_no_private_terms', () => {
    const files = tracked.filter(file => /^(api|daemon|kernels)\/.*\.(c|h|cu|cuh)$/.test(file));
    assert.ok(files.length > 500);
    assert.deepEqual(files.flatMap(file => identifiers(file, readFileSync(path.join(root, file), 'utf8'))), []);
    assert.deepEqual(identifiers('a.c', 'int row_room; /* said */ char *said; f("told"); essay();'), ['a.c: row_room', 'a.c: said']);
});

test('test_english_checker_reads_comments_and_knows_contexts', () => {
    assert.equal(dialect('a.c', '/* nobody waits */ int x;').length, 1);
    assert.equal(dialect('a.c', '// kept beside it, as whoever asks is told').length, 3);
    assert.deepEqual(dialect('a.c', 'x = "nobody"; /* has room for one, of course: `told` */'), []);
    assert.equal(dialect('a.md', 'Each room has a door.').length, 2);
    assert.equal(dialect('a.h', '/* A keeper hands out what is said anew, for want of a word. */').length, 5);
    assert.deepEqual(dialect('a.md', 'There is no room.\n```\nwhoever\n```'), []);
});
