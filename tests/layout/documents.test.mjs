// Documents: the README stays short, and every link in a document leads to a file of the tree.
import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import test from 'node:test';
import { treeFiles } from '../lib/tree.mjs';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..');
const read = file => readFileSync(path.join(root, file), 'utf8');
const tracked = treeFiles(root);
const documents = tracked.filter(file => file.endsWith('.md'));

/** Links of a Markdown text that lead to no file: relative targets, from the document's folder. */
export function deadLinks(file, text, exists = target => existsSync(path.join(root, target))) {
    return [...text.matchAll(/\]\(([^)\s]+)\)/g)].map(([, target]) => target).filter(target => !/^(https?:|#)/.test(target))
        .filter(target => !exists(path.join(path.dirname(file), target.replace(/#.*/, '')))).map(target => `${file}: ${target}`);
}

test('test_documents_readme_is_short_and_has_one_small_picture', () => {
    const lines = read('README.md').trimEnd().split('\n').length;
    assert.ok(lines >= 80 && lines <= 120, `README.md has ${lines} lines, not 80 to 120`);
    const pictures = [...read('README.md').matchAll(/!\[([^\]]{20,})\]\(([^)]+\.png)\)/g)];
    assert.equal(pictures.length, 1, 'one picture, with a text that describes it');
    const bytes = readFileSync(path.join(root, pictures[0][2]));
    assert.ok(bytes.length < 200000, `${pictures[0][2]} has ${bytes.length} bytes`);
    assert.equal(bytes.subarray(1, 4).toString('latin1'), 'PNG');
});

test('test_documents_links_lead_to_files', () => {
    assert.ok(documents.length > 40);
    assert.deepEqual(documents.flatMap(file => deadLinks(file, read(file))), []);
    assert.deepEqual(deadLinks('a/x.md', '[y](../b/y.md#part) [z](z.md) [w](https://w)', target => target === 'b/y.md'), ['a/x.md: z.md']);
});

/** What names the folder that a command writes, never a file of the tree. */
const made = /(^|\/)table\.md$/;

/**
 * Documents that a text cites (`kernels/ENGINE.md 8`) and that the tree does not have, from its root or from the file's folder. A
 * "README" with a number but without its path is one of them too.
 */
export function citesNothing(file, text, exists = target => existsSync(path.join(root, target))) {
    const cited = [...text.matchAll(/[\w./-]*\w\.md\b(?!\]\()/g)].filter(match => !/(https?:|\]\()[^\s)]*$/.test(text.slice(0, match.index)))
        .map(([name]) => name).filter(name => !made.test(name) && !exists(name) && !exists(path.join(path.dirname(file), name)));
    return [...cited, ...[...text.matchAll(/\bREADME \d+/g)].map(([name]) => name)].map(name => `${file}: ${name}`);
}

test('test_documents_that_are_cited_are_in_the_tree', () => {
    const texts = tracked.filter(file => !/package-lock\.json$|\.(png|jpg|woff2|bin|gz|safetensors)$|^tests\/(fuzz\/corpus|layout)\//.test(file));
    assert.ok(texts.length > 1000);
    assert.deepEqual(texts.flatMap(file => citesNothing(file, read(file))), []);
    const tree = name => ['kernels/ENGINE.md', 'a/README.md'].includes(name);
    assert.deepEqual(citesNothing('a/x.c', '/* kernels/ENGINE.md 8, README.md, out/table.md, https://host/y.md */', tree), []);
    assert.deepEqual(citesNothing('a/x.c', '/* engine.md 8 */ // golden README 7, spec/job.md', tree),
        ['a/x.c: engine.md', 'a/x.c: spec/job.md', 'a/x.c: README 7']);
});

/** Sources of other projects, of the system or of the build, and names that stand for any file. */
const foreign = /^(sqlite3|jpeglib|jerror|png|math|nvrtc|migrations|transformer)\.h$|^(a|OUT|llm|Resample|fuzz_NAME)\.c$|(^|\/)NAME\.c$|\/migrations\.h$|^_/;

/** Sources that the comments of a C file, or a document, cite and that the tree does not have: by path, by its end, or by name alone. */
export function citesNoSource(file, text, names) {
    const prose = file.endsWith('.md') ? text : [...text.matchAll(/\/\*[\s\S]*?\*\/|(?<![:'"\w])\/\/[^\n]*/g)].map(([comment]) => comment).join('\n');
    const ends = name => names.some(known => known === name || known.endsWith(`/${name}`)) || names.includes(path.normalize(path.join(path.dirname(file), name)));
    return [...prose.matchAll(/(?<![\w./*{<-])(\w[\w./-]*\.(?:c|h|cu|cuh|mjs|def))\b(?![\w(])/g)].map(([, name]) => name)
        .filter(name => !foreign.test(name) && !ends(name)).map(name => `${file}: ${name}`);
}

test('test_documents_sources_that_are_cited_are_in_the_tree', () => {
    const files = tracked.filter(file => /\.(c|h|cu|cuh|md)$/.test(file) && !file.startsWith('tests/fuzz/corpus/'));
    assert.deepEqual(files.flatMap(file => citesNoSource(file, read(file), tracked)), []);
    assert.deepEqual(citesNoSource('a/x.h', '/* y.c, b/z.h and gone.c */ "lost.c"', ['a/y.c', 'c/b/z.h']), ['a/x.h: gone.c']);
});

/** String literals of C. */
const strings = text => [...text.matchAll(/"(?:\\.|[^"\\\n])*"/g)].map(([literal]) => literal).join('\n');

/** Numbers of a planning list ("M85") in what a user reads. XCiT-M24 is a model's name, M5 16 and the like a path of SVG. */
export function listNumbers(file, text) {
    const seen = /\.[ch]$/.test(file) ? strings(text) : text;
    return [...seen.matchAll(/(?<!\w|[A-Za-z]-)M\d{1,3}(?!\w|\.\d|[ ,-]?-?\d|[A-Z]-?\d)/g)].map(([number]) => `${file}: ${number}`);
}

test('test_documents_show_no_number_of_a_planning_list', () => {
    const shown = tracked.filter(file => /^(api|web|deploy|daemon)\/.*\.(c|h|js|html|css|yaml|conf|json|md)$|^README\.md$/.test(file) && !/package-lock/.test(file));
    assert.ok(shown.length > 400);
    assert.deepEqual(shown.flatMap(file => listNumbers(file, read(file))), []);
    assert.deepEqual(listNumbers('x.c', '/* M7 */ MEANS("the shape (M35)", "M36")'), ['x.c: M35', 'x.c: M36']);
    assert.deepEqual(listNumbers('x.yaml', 'a sweep (M57-M58), M80.'), ['x.yaml: M57', 'x.yaml: M58', 'x.yaml: M80']);
    assert.deepEqual(listNumbers('x.js', "'M7 2.5a4.5', 'M5 16H27M16 5V27', 'XCiT-M24'"), []);
});

test('test_documents_name_programs_where_builds_put_them', () => {
    for (const file of tracked.filter(name => /\.(md|py)$/.test(name)))
        assert.doesNotMatch(read(file), /(^|[^\w/-])build\/bin\//m, `${file}: programs are in build/<preset's folder>/bin`);
    assert.match(read('tests/README.md'), /^ninja -C build\/quick polyd polyd-worker api_host .*\nPOLYD_BUILD=\$PWD\/build\/quick node --test tests\/api\/jobs\.test\.mjs/m);
    assert.match(read('tests/api/lib.mjs'), /'bin\/api_host'/);
});

test('test_documents_name_the_examples_that_need_no_files', () => {
    const patterns = /^Need no files: (.*?)\. /m.exec(read('deploy/examples/README.md'))[1].split(', ').map(cell => new RegExp(`^${cell.replaceAll('`', '').replace('*', '.*')}\\.json$`));
    const examples = tracked.filter(file => /^deploy\/examples\/.*\.json$/.test(file));
    assert.ok(examples.length > 15);
    for (const file of examples)
        assert.equal(patterns.some(pattern => pattern.test(path.basename(file))), JSON.parse(read(file)).data.path === undefined, file);
    for (const pattern of patterns)
        assert.ok(examples.some(file => pattern.test(path.basename(file))), String(pattern));
});

test('test_documents_status_names_the_experiments_that_there_are', () => {
    const [, small, paper] = /^\| experiments by name: (.*?) in small variants, (.*?) at the paper's size/m.exec(read('tests/STATUS.md'));
    const names = text => [...text.matchAll(/E(\d+)-E(\d+)/g)].flatMap(([, from, to]) => Array.from({ length: Number(to) - Number(from) + 1 }, (_, i) => `E${String(Number(from) + i).padStart(2, '0')}`));
    const templates = tracked.filter(file => /^daemon\/job\/templates\/E\d+\.json$/.test(file)).map(file => JSON.parse(read(file)));
    for (const [variant, text] of [['small', small], ['paper', paper]])
        assert.deepEqual(names(text), templates.filter(({ variants }) => !variants[variant].refused).map(({ name }) => name).sort(), variant);
});
