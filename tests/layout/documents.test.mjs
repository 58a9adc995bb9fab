// Documents: the README stays short, and every link in a document leads to a file of the tree.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import test from 'node:test';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..');
const read = file => readFileSync(path.join(root, file), 'utf8');
const tracked = execFileSync('git', ['ls-files', '-co', '--exclude-standard'], { cwd: root, encoding: 'utf8' }).split('\n')
    .filter(file => file && existsSync(path.join(root, file)));
const documents = tracked.filter(file => file.endsWith('.md'));

/** Links of a Markdown text that lead to no file: relative targets, from the document's folder. */
export function deadLinks(file, text, exists = target => existsSync(path.join(root, target))) {
    return [...text.matchAll(/\]\(([^)\s]+)\)/g)].map(([, target]) => target).filter(target => !/^(https?:|#)/.test(target))
        .filter(target => !exists(path.join(path.dirname(file), target.replace(/#.*/, '')))).map(target => `${file}: ${target}`);
}

test('test_documents_readme_is_short', () => {
    const lines = read('README.md').trimEnd().split('\n').length;
    assert.ok(lines >= 80 && lines <= 120, `README.md has ${lines} lines, not 80 to 120`);
});

test('test_documents_links_lead_to_files', () => {
    assert.ok(documents.length > 40);
    assert.deepEqual(documents.flatMap(file => deadLinks(file, read(file))), []);
    assert.deepEqual(deadLinks('a/x.md', '[y](../b/y.md#part) [z](z.md) [w](https://w)', target => target === 'b/y.md'), ['a/x.md: z.md']);
});
