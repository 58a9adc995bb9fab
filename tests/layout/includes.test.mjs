// The picture of modules and arrows in README.md, kept true by reading the #include lines.
import assert from 'node:assert/strict';
import { existsSync, readFileSync, readdirSync, statSync } from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..');

const kernels = ['kernels/graph', 'kernels/backend', 'kernels/comm'];

// A module may include itself and these. Each program's main file may include everything.
const arrows = {
    'kernels/base': [],
    'kernels/formula': ['kernels/base'],
    'kernels/graph': ['kernels/base', 'kernels/formula', 'kernels/backend'],
    'kernels/backend': ['kernels/base', 'kernels/formula', 'kernels/graph', 'kernels/comm'],
    'kernels/comm': ['kernels/base', 'kernels/graph'],
    'daemon/digest': ['kernels/base'],
    'daemon/job': ['kernels/base', 'kernels/formula', 'daemon/digest'],
    'daemon/wire': ['kernels/base', 'daemon/digest'],
    'daemon/polyd/config': ['kernels/base', 'daemon/job', 'daemon/digest'],
    'daemon/polyd/store': ['kernels/base', 'daemon/job', 'daemon/digest', 'migrations'],
    'daemon/polyd/devices': ['kernels/base', 'daemon/polyd/config'],
    'daemon/polyd/sched': ['kernels/base', 'daemon/polyd/store', 'daemon/job', 'daemon/polyd/config', 'daemon/polyd/devices',
        'daemon/digest'],
    'daemon/polyd/supervise/loop': ['kernels/base', 'daemon/polyd/store'],
    // 'daemon/polyd/supervise': the types of its outward header
    'daemon/polyd/supervise/workers': ['kernels/base', 'daemon/polyd/supervise/loop', 'daemon/polyd/supervise', 'daemon/polyd/store',
        'daemon/polyd/devices', 'daemon/wire'],
    'daemon/polyd/supervise/devices': ['kernels/base', 'daemon/polyd/supervise/loop', 'daemon/polyd/supervise/workers',
        'daemon/polyd/supervise', 'daemon/polyd/store', 'daemon/polyd/devices', 'daemon/polyd/sched'],
    'daemon/polyd/supervise/serving': ['kernels/base', 'daemon/polyd/supervise/loop', 'daemon/polyd/supervise/workers',
        'daemon/polyd/supervise/devices', 'daemon/polyd/supervise', 'daemon/polyd/store', 'daemon/polyd/devices', 'daemon/wire',
        'daemon/digest'],
    'daemon/polyd/supervise/plans': ['kernels/base', 'daemon/polyd/supervise/loop', 'daemon/polyd/supervise/workers',
        'daemon/polyd/supervise/devices', 'daemon/polyd/supervise', 'daemon/polyd/store', 'daemon/wire'],
    'daemon/polyd/supervise/attempts': ['kernels/base', 'daemon/polyd/supervise/loop', 'daemon/polyd/supervise/workers',
        'daemon/polyd/supervise/devices', 'daemon/polyd/supervise/plans', 'daemon/polyd/supervise', 'daemon/polyd/store', 'daemon/job',
        'daemon/polyd/devices', 'daemon/polyd/sched', 'daemon/wire', 'daemon/digest'],
    'daemon/polyd/supervise': ['kernels/base', 'daemon/polyd/supervise/loop', 'daemon/polyd/supervise/workers',
        'daemon/polyd/supervise/devices', 'daemon/polyd/supervise/plans', 'daemon/polyd/supervise/attempts',
        'daemon/polyd/supervise/serving', 'daemon/polyd/store', 'daemon/job', 'daemon/wire'],
    'web': [],
    // wire: tensors of a request travel to the supervisor in wire's own struct
    'api': ['kernels/base', 'kernels/formula', 'daemon/wire', 'daemon/polyd/store', 'daemon/job', 'daemon/polyd/config', 'daemon/polyd/sched',
        'daemon/polyd/supervise', 'daemon/polyd/devices', 'daemon/digest', 'web'],
    'daemon/worker/data': ['kernels/base', ...kernels, 'daemon/job', 'daemon/digest'],
    'daemon/worker/model': ['kernels/base', 'kernels/formula', ...kernels, 'daemon/job', 'daemon/digest', 'daemon/worker/data'],
    'daemon/worker/task': ['kernels/base', ...kernels, 'daemon/worker/model', 'daemon/worker/data'],
    'daemon/worker/train': ['kernels/base', ...kernels, 'daemon/job', 'daemon/digest', 'daemon/worker/task',
        'daemon/worker/model', 'daemon/worker/data'],
    'daemon/worker/serve': ['kernels/base', ...kernels, 'daemon/job', 'daemon/digest', 'daemon/worker/task',
        'daemon/worker/model', 'daemon/worker/data', 'daemon/worker/train'],
    'daemon/worker/weights': ['kernels/base', ...kernels, 'daemon/job', 'daemon/digest', 'daemon/worker/task',
        'daemon/worker/model', 'daemon/worker/data', 'daemon/worker/train'],
    'daemon/worker/check': ['kernels/base', ...kernels, 'daemon/job', 'daemon/worker/task', 'daemon/worker/model',
        'daemon/worker/data', 'daemon/worker/train'],
    'daemon/worker/process': ['kernels/base', ...kernels, 'daemon/job', 'daemon/digest', 'daemon/wire', 'daemon/worker/model',
        'daemon/worker/data', 'daemon/worker/train', 'daemon/worker/serve', 'daemon/worker/weights'],
    'daemon/worker/kinds': ['kernels/base', ...kernels, 'daemon/job', 'daemon/wire', 'daemon/digest', 'daemon/worker/model',
        'daemon/worker/data', 'daemon/worker/train', 'daemon/worker/check', 'daemon/worker/process'],
};
// The wiring of the programs: main.c and what only it calls.
const mains = new Set(['main.c', 'doctor.c', 'doctor.h', 'gc.c', 'gc.h', 'notify.c', 'notify.h', 'state_dir.c', 'state_dir.h']
    .map(name => `daemon/polyd/${name}`).concat('daemon/worker/main.c'));

// Each third-party library is included in these modules and nowhere else.
const libraries = {
    'sqlite3.h': ['daemon/polyd/store'],
    'microhttpd.h': ['api'],
    // where JSON enters; in supervise: what a worker answers (answer.c)
    'jansson.h': ['api', 'daemon/job', 'daemon/worker/data', 'daemon/polyd/supervise'],
    'ini.h': ['daemon/polyd/config'],
    'dnnl.h': ['kernels/backend'],
    'cblas.h': ['kernels/backend'],
    'cuda.h': ['kernels/backend'],
    'cuda_runtime.h': ['kernels/backend'],
    'nccl.h': ['kernels/comm'],
    'nvml.h': ['daemon/polyd/devices'],
    'nettle': ['daemon/digest'],
    'zlib.h': ['daemon/worker/data', 'api'],
    'jpeglib.h': ['daemon/worker/data'],
    'png.h': ['daemon/worker/data'],
    'pcre2.h': ['daemon/worker/data'],
};

function* sources(folder) {
    if (!existsSync(path.join(root, folder)))
        return;
    for (const name of readdirSync(path.join(root, folder))) {
        const file = path.join(folder, name);
        if (statSync(path.join(root, file)).isDirectory())
            yield* sources(file);
        else if (/\.(c|h|def|cu|cuh|inc)$/.test(name))
            yield file;
    }
}

const modules = Object.keys(arrows).sort((a, b) => b.length - a.length);
const moduleOf = file => modules.find(module => file.startsWith(`${module}/`)) ?? null;

export function violations(file, text) {
    const found = [];
    const module = moduleOf(file);
    for (const [, open, target] of text.matchAll(/^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]/gm)) {
        if (open === '<') {
            const library = Object.keys(libraries).find(name => target === name || target.startsWith(`${name}/`) ||
                path.basename(target) === name);
            if (library && !libraries[library].includes(module))
                found.push(`${file}: <${target}> belongs to ${libraries[library].join(', ')} alone`);
            continue;
        }
        const to = moduleOf(target);
        if (!target.includes('/'))
            found.push(`${file}: "${target}" is not written from the repository root`);
        else if (module && !to && !(arrows[module] ?? []).includes(target.split('/')[0]))
            found.push(`${file}: "${target}" is in no module of the picture`);
        else if (module && to && to !== module && !mains.has(file) && !arrows[module].includes(to))
            found.push(`${file}: ${module} may not include ${to} ("${target}")`);
    }
    return found;
}

test('test_layout_includes_follow_the_arrows', () => {
    const found = [];
    for (const folder of ['kernels', 'daemon', 'api', 'web'])
        for (const file of sources(folder)) {
            if (!moduleOf(file) && !mains.has(file))
                found.push(`${file}: in no module of the picture`);
            found.push(...violations(file, readFileSync(path.join(root, file), 'utf8')));
        }
    assert.deepEqual(found, []);
});

test('test_layout_checker_sees_a_wrong_arrow_and_a_stray_library', () => {
    assert.equal(violations('kernels/graph/x.c', '#include "daemon/polyd/store/store.h"').length, 1);
    assert.equal(violations('api/x.c', '#include <sqlite3.h>\n#  include <nettle/sha2.h>').length, 2);
    assert.equal(violations('daemon/polyd/sched/x.c', '#include "daemon/wire/wire.h"').length, 1);
    assert.equal(violations('daemon/polyd/sched/x.c', '#include "sched.h"').length, 1);
    assert.deepEqual(violations('daemon/polyd/store/x.c', '#include <sqlite3.h>\n#include "kernels/base/err.h"'), []);
});

// The parts of a run, and whose functions each may call. What all borrow of a session and the types of train.h are not listed.
const train = 'daemon/worker/train';
const borrowed = ['checkpoint', 'executable', 'graphs', 'ranks', 'reporter', 'session', 'setup'];
const parts = {
    reporter: [],
    executable: [],
    checkpoint: [],
    schedule: [],
    teacher: [],
    setup: ['schedule', 'teacher'],
    digest: ['setup'],
    graphs: ['setup'],
    plan: ['graphs', 'setup'],
    ranks: ['executable'],
    session: ['executable', 'graphs', 'ranks', 'reporter', 'setup'],
    batches: borrowed,
    trainer: [...borrowed, 'batches', 'line'],
    line: borrowed,
    evaluator: [...borrowed, 'fields'],
    fields: borrowed,
    probe: borrowed,
    displacement: ['maps', ...borrowed],
    maps: borrowed,
    tails: [],
    gradients: [...borrowed, 'tails'],
    exchange: borrowed,
    start: borrowed,
    contents: [...borrowed, 'trainer', 'exchange', 'start'],
    retention: borrowed,
    checkpoints: [...borrowed, 'trainer', 'contents', 'retention'],
    score: [...borrowed, 'evaluator'],
    preview: [...borrowed, 'trainer', 'probe', 'maps', 'start'],
    run: [...borrowed, 'trainer', 'evaluator', 'probe', 'maps', 'gradients', 'checkpoints'],
};
// Their members are seen by their own file alone.
const opaque = ['reporter', 'ranks', 'batches', 'line', 'trainer', 'evaluator', 'probe', 'maps', 'gradients', 'contents', 'retention', 'checkpoints'];

export function partViolations(file, text) {
    const part = path.basename(file).replace(/\.[ch]$/, '');
    if (!Object.hasOwn(parts, part))
        return [`${file}: no part of a run`];
    const found = [...text.matchAll(/^#include "daemon\/worker\/train\/(\w+)\.h"/gm)].map(([, to]) => to)
        .filter(to => to !== part && to !== 'train' && !parts[part].includes(to))
        .map(to => `${file}: ${part} may not include ${to}`);
    for (const name of opaque)
        if (file !== `${train}/${name}.c` && new RegExp(`^struct ${name} \\{`, 'm').test(text))
            found.push(`${file}: shows the members of struct ${name}`);
    return found;
}

test('test_layout_parts_of_a_run_follow_their_arrows', () => {
    const files = readdirSync(path.join(root, train)).filter(name => /\.[ch]$/.test(name) && name !== 'train.h');
    assert.ok(files.length > 30);
    assert.deepEqual(files.flatMap(name => partViolations(`${train}/${name}`, readFileSync(path.join(root, train, name), 'utf8'))), []);
});

test('test_layout_part_checker_sees_a_wrong_arrow_and_shown_members', () => {
    assert.equal(partViolations(`${train}/reporter.c`, '#include "daemon/worker/train/trainer.h"\n').length, 1);
    assert.equal(partViolations(`${train}/trainer.c`, '#include "daemon/worker/train/checkpoints.h"\n').length, 1);
    assert.equal(partViolations(`${train}/trainer.h`, 'struct trainer {\n').length, 1);
    assert.deepEqual(partViolations(`${train}/trainer.c`, '#include "daemon/worker/train/batches.h"\nstruct trainer {\n'), []);
    assert.equal(partViolations(`${train}/more.c`, '').length, 1);
});

// JSON is read by jansson and written by kernels/base/json.h. These lines are something else: constants, sentences for people
// that show JSON, and rows of a table.
const jsonByHand = {
    'api/infer.c': /body\[\] =/, 'api/system.c': /body\[\] =/,
    'api/ingest.c': /must be an object|a batch is/, 'api/external.c': /must be an object|must be a text/,
    'daemon/job/fields.c': /MEANS\(/, 'daemon/job/presets.c': /\bD\(/,
};
/** Where a file reads JSON by searching its text, or writes it by printf. */
export function handMade(file, text) {
    const found = [];
    const lines = text.replace(/\\\n\s*/g, '').split('\n');
    for (const [i, line] of lines.entries()) {
        // {"key":  ,"key":  and "key": inside a C string
        if (line.includes('\\"') && (/[^\\]"(?:[^"\\]|\\.)*(?:[{,]\s*|^)\\"[\w%. -]+\\"\s*:/.test(line) || /"\{\s*\\"/.test(line) || /"\s*\\"[\w%]+\\"\s*:/.test(line)))
            if (!jsonByHand[file]?.test(lines.slice(Math.max(0, i - 2), i + 1).join(' ')))
                found.push(`${file}:${i + 1}: ${line.trim()}`);
        if (/\b(?:strstr|sscanf)\s*\(/.test(line) && /json|plan|info\b|\\":/i.test(line))
            found.push(`${file}:${i + 1}: ${line.trim()}`);
    }
    return found;
}

test('test_layout_json_is_written_by_one_writer_and_never_searched', () => {
    const found = [];
    for (const folder of ['kernels', 'daemon', 'api'])
        for (const file of sources(folder))
            found.push(...handMade(file, readFileSync(path.join(root, file), 'utf8')));
    assert.deepEqual(found, []);
    // A file that reads JSON has no use for either function.
    for (const folder of ['kernels', 'daemon', 'api'])
        for (const file of sources(folder)) {
            const text = readFileSync(path.join(root, file), 'utf8');
            if (/#include (<jansson.h>|"kernels\/base\/json.h")/.test(text))
                assert.doesNotMatch(text, /\b(strstr|sscanf)\s*\(/, file);
        }
});

test('test_layout_checker_sees_json_made_by_hand', () => {
    assert.equal(handMade('x.c', 'pd_buf_printf(b, "{\\"id\\":%d}", id);').length, 1);
    assert.equal(handMade('x.c', 'pd_buf_str(b, ",\\"reason\\":");').length, 1);
    assert.equal(handMade('x.c', 'pd_buf_printf(b, "{ \\"id\\" : %d }", id);').length, 1);
    assert.equal(handMade('x.c', 'pd_buf_printf(b, "{\\"a\\": 1, \\"id\\": %d }", id);').length, 1);
    assert.equal(handMade('x.c', 'at = strstr(text, "\\"backend_cuda\\":\\"");').length, 2);
    assert.equal(handMade('x.c', 'n = sscanf(json, "%d", &n);').length, 1);
    assert.deepEqual(handMade('x.c', 'log("why=\\"%s\\"", why); sscanf(text, "%d", &n);'), []);
});

test('test_layout_every_module_has_a_page_of_its_own', () => {
    const missing = modules.filter(module => {
        try {
            const has = readdirSync(path.join(root, module));
            return has.some(name => /\.(c|h)$/.test(name)) && !has.includes('README.md');
        } catch {
            return false;
        }
    });
    assert.deepEqual(missing, []);
});

test('test_layout_every_folder_in_the_picture_has_a_page', () => {
    const folders = [...readFileSync(path.join(root, 'README.md'), 'utf8').matchAll(/^\| `([a-z]+)\/` \|/gm)].map(m => m[1]);
    assert.ok(folders.length >= 7, folders.join());
    assert.deepEqual(folders.filter(name => !existsSync(path.join(root, name, 'README.md'))), []);
});

test('test_layout_nothing_names_a_registry_host', () => {
    for (const lock of ['web/package-lock.json', 'api/package-lock.json', 'tests/package-lock.json'])
        for (const [, , url] of readFileSync(path.join(root, lock), 'utf8').matchAll(/"(\w+)": "(https?:[^"]*)"/g))
            assert.doesNotMatch(url, /registry|\.tgz$/, lock);
});
