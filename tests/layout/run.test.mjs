// tests/run and the documents say the same of its suites and commands; `quick` leaves no module out.
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import test from 'node:test';
import { treeFiles } from '../lib/tree.mjs';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..');
const read = file => readFileSync(path.join(root, file), 'utf8');

/** The names that `tests/run --help` lists under a heading. */
function helped(heading) {
    const help = execFileSync(path.join(root, 'tests/run'), ['--help'], { encoding: 'utf8' });
    const block = new RegExp(`^${heading}:\\n((?: .*\\n)+)`, 'm').exec(help);
    assert.ok(block, `${heading} in the help of tests/run`);
    return [...block[1].matchAll(/^ {2}([a-z0-9]+)/gm)].map(match => match[1]);
}

/** The names in the first column of the table under a heading of tests/README.md. */
function documented(heading) {
    const table = read('tests/README.md').split(`| ${heading} |`)[1]?.split('\n\n')[0] ?? '';
    return [...table.matchAll(/^\| `([a-z0-9]+)/gm)].map(match => match[1]);
}

test('test_run_help_and_document_name_the_same_suites_and_commands', () => {
    const script = read('tests/run');
    assert.deepEqual(helped('Suites'), /^suites=\(([a-z0-9 ]+)\)$/m.exec(script)[1].split(' '));
    assert.deepEqual(documented('suite'), helped('Suites'));
    assert.ok(helped('Commands').length >= 5);
    assert.deepEqual(documented('command'), helped('Commands'));
    for (const command of helped('Commands'))
        assert.match(script, new RegExp(`^(?:[a-z]+ \\| )*${command}(?: \\| [a-z]+)*\\)`, 'm'), `${command}: a case of tests/run`);
});

// Folders that `quick` leaves out as a whole, and says so.
const leftOut = ['gpu', 'fault'];

/** What tests/CMakeLists.txt sets a list to. */
const list = (text, name) => new RegExp(`^set\\(${name}\\s([^)]*)\\)`, 'm').exec(text)[1].replace(/#.*$/gm, '').trim().split(/\s+/);

export function uncovered(cmake, folders) {
    const whole = list(cmake, 'quick_folders'), programs = list(cmake, 'quick_programs');
    const names = ([, text]) => [...text.matchAll(/\bpolyd_(test|fuzz)\((\w+)/g)].map(match => (match[1] === 'fuzz' ? `fuzz_replay_${match[2]}` : match[2]));
    return Object.entries(folders).filter(([folder, text]) => /\bpolyd_(test|fuzz)\(/.test(text) && !leftOut.includes(folder) &&
        !whole.includes(folder) && !names([folder, text]).some(name => programs.includes(name))).map(([folder]) => folder);
}

test('test_run_quick_has_a_program_of_every_module', () => {
    const cmake = read('tests/CMakeLists.txt'), folders = {};
    for (const folder of readdirSync(path.join(root, 'tests')))
        if (existsSync(path.join(root, 'tests', folder, 'CMakeLists.txt')))
            folders[folder] = read(`tests/${folder}/CMakeLists.txt`);
    assert.ok(Object.keys(folders).length > 20);
    assert.deepEqual(uncovered(cmake, folders), []);
    assert.deepEqual(uncovered(cmake, { x: 'polyd_test(test_x SOURCES x.c)' }), ['x']);
    for (const folder of list(cmake, 'quick_folders'))
        assert.ok(folders[folder], `tests/${folder}, all of which belongs to quick`);
    const all = Object.values(folders).join('\n');
    for (const name of list(cmake, 'quick_programs'))
        assert.ok(all.includes(`(${name.replace(/^fuzz_replay_/, '')} `), `${name}, named for quick, is no program`);
});

test('test_run_experiments_names_its_minutes_and_has_every_small_variant_once', () => {
    const lines = execFileSync(path.join(root, 'tests/run'), ['experiments', '--list'], { encoding: 'utf8' }).trim().split('\n');
    const groups = lines.map(line => /^(\w+) +about +(\d+) min +(.*)$/.exec(line)).map(match => ({ name: match?.[1], minutes: Number(match?.[2]), list: match?.[3].split(', ') ?? [] }));
    const together = groups.pop();
    assert.equal(together.name, 'together');
    assert.ok(together.minutes <= 12 * 60, `${together.minutes} minutes in all`);
    for (const { name, minutes } of groups)
        assert.ok(minutes >= 1 && minutes <= 60, `${name}: ${minutes} minutes`);
    const files = readdirSync(path.join(root, 'daemon/job/templates')).map(file => JSON.parse(read(`daemon/job/templates/${file}`)));
    assert.deepEqual(groups.flatMap(group => group.list).sort(), files.filter(file => !file.variants.small.refused).map(file => file.name).sort());
    assert.ok(Math.abs(groups.reduce((sum, group) => sum + group.minutes, 0) - together.minutes) <= groups.length);
});

/** A folder with `build`, and programs that stand in for those of the same name: shell scripts. */
function standIns(t, programs) {
    const dir = mkdtempSync(path.join(os.tmpdir(), 'polyd run-')), bin = path.join(dir, 'bin');
    t.after(() => rmSync(dir, { recursive: true, force: true }));
    mkdirSync(bin);
    for (const [name, text] of Object.entries(programs)) {
        writeFileSync(path.join(bin, name), `#!/bin/bash\n${text}\n`);
        chmodSync(path.join(bin, name), 0o755);
    }
    const build = path.join(dir, 'b:uild');
    return { dir, build, run(...args) {
        const { status, stdout } = spawnSync(path.join(root, 'tests/run'), args, { encoding: 'utf8',
            env: { ...process.env, PATH: `${bin}:${process.env.PATH}`, POLYD_BUILD: build, POLYD_NO_INSTALL: '1' } });
        return { status, last: stdout.trimEnd().split('\n').at(-1), stdout };
    } };
}

test('test_run_a_ctest_that_dies_has_failed', t => {
    // `unit` dies before or after it wrote its results, `golden` passes.
    for (const [unit, last] of [['exit 139', '1 passed, 1 failed, 0 skipped'], ['junit; exit 1', '2 passed, 1 failed, 0 skipped'], ['exit 0', '1 passed, 1 failed, 0 skipped'],
        ['junit; exit 0', '2 passed, 0 failed, 0 skipped']]) {
        const { run } = standIns(t, { cmake: 'exit 0', ninja: 'exit 0', ctest: `while [ "$1" != --output-junit ]; do shift; done
            xml=$2
            junit() { echo '<testcase name="t" status="run"><system-out></system-out></testcase>' >"$xml"; }
            [[ $xml != */golden.xml ]] || { junit; exit 0; }
            ${unit}` });
        const ended = run('unit', 'golden');
        assert.equal(ended.last, last, `${unit}\n${ended.stdout}`);
        assert.equal(ended.status, last.includes(' 0 failed') ? 0 : 1);
    }
});

test('test_run_configures_a_folder_of_another_preset_afresh', t => {
    const preset = path.join(root, 'deploy/presets/dev.cmake');
    const { dir, build, run } = standIns(t, { ninja: 'exit 0', ctest: 'exit 0', cmake: `[ ! -e "$POLYD_BUILD/CMakeCache.txt" ] && [ ! -e "$POLYD_BUILD/CMakeFiles" ] || echo not afresh >>"\${0%/*}/../configured"
        echo "$*" >>"\${0%/*}/../configured"
        [ ! -e "\${0%/*}/../no" ] || exit 1
        mkdir "$POLYD_BUILD/CMakeFiles"
        touch "$POLYD_BUILD/CMakeCache.txt" "$POLYD_BUILD/CMakeFiles/3" "$POLYD_BUILD/build.ninja"` });
    // All that the oldest CMake of CMakeLists.txt knows: --fresh is of 3.24.
    const log = path.join(dir, 'configured'), line = name => `-C deploy/presets/${name}.cmake -B ${build} -G Ninja\n`;
    const configured = (...args) => {
        rmSync(log, { force: true });
        run(...args);
        return existsSync(log) ? readFileSync(log, 'utf8') : '';
    };
    mkdirSync(build);
    for (const name of ['build.ninja', 'CMakeCache.txt'])
        writeFileSync(path.join(build, name), ''); // by hand
    assert.equal(configured('unit'), line('dev'));
    assert.equal(configured('unit'), '');
    assert.equal(configured('emulated'), '');
    assert.equal(configured('asan'), line('asan'));
    assert.equal(configured('asan'), '');
    assert.equal(configured('tsan'), line('tsan'));
    assert.equal(configured('unit'), line('dev'));
    // the preset itself has changed
    const note = path.join(build, 'preset');
    assert.ok(readFileSync(note, 'utf8').startsWith(`dev ${createHash('sha256').update(readFileSync(preset)).digest('hex')}`));
    writeFileSync(note, 'dev 0123  -\n');
    assert.equal(configured('unit'), line('dev'));
    // a cmake that fails leaves no note
    writeFileSync(path.join(dir, 'no'), '');
    assert.equal(configured('asan'), line('asan'));
    rmSync(path.join(dir, 'no'));
    assert.equal(configured('asan'), line('asan'));
    assert.equal(configured('asan'), '');
});

test('test_run_works_in_a_folder_with_a_space_and_a_colon', t => {
    // A program under a sanitizer reads its options as `name='value':name=value`.
    const { build, run } = standIns(t, { cmake: 'exit 0', ninja: 'exit 0', setarch: 'shift 2; exec "$@"', ctest: 'printf "%s" "$ASAN_OPTIONS$TSAN_OPTIONS" >"$POLYD_BUILD/results/options"' });
    for (const command of ['asan', 'tsan']) {
        run(command);
        const options = readFileSync(path.join(build, 'results/options'), 'utf8');
        assert.ok(options.startsWith(`log_path='${build}/results/report':`), options);
    }
});

test('test_run_no_script_takes_an_encoded_path', () => {
    for (const file of treeFiles(root).filter(name => name.endsWith('.mjs') && name !== 'tests/layout/run.test.mjs'))
        assert.doesNotMatch(read(file), /new URL\([^)]*import\.meta\.url\)\.pathname/, `${file}: a space is %20 there; fileURLToPath() decodes it`);
    assert.match(read('kernels/backend/cuda/CMakeLists.txt'), /RULE_LAUNCH_COMPILE "\\"\$\{CMAKE_SOURCE_DIR\}[^ ]*\\" <OBJECT>"/, 'a launcher is split at spaces');
});
