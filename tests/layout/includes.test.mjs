// The picture of rooms and arrows in README.md, kept true by reading the #include lines.
import assert from 'node:assert/strict';
import { existsSync, readFileSync, readdirSync, statSync } from 'node:fs';
import path from 'node:path';
import test from 'node:test';

const root = path.resolve(import.meta.dirname ?? path.dirname(new URL(import.meta.url).pathname), '../..');

const kernels = ['kernels/tensor', 'kernels/ops', 'kernels/graph', 'kernels/backend', 'kernels/comm'];

// A room may include itself and these. Each program's main file may include everything.
const arrows = {
    'kernels/base': [],
    'kernels/tensor': ['kernels/base'],
    'kernels/ops': ['kernels/base', 'kernels/tensor', 'kernels/graph'],
    'kernels/graph': ['kernels/base', 'kernels/tensor', 'kernels/ops', 'kernels/backend'],
    'kernels/backend': ['kernels/base', 'kernels/tensor', 'kernels/ops', 'kernels/graph', 'kernels/comm'],
    'kernels/comm': ['kernels/base', 'kernels/tensor'],
    'daemon/digest': ['kernels/base'],
    'daemon/spec': ['kernels/base', 'daemon/digest'],
    'daemon/config': ['kernels/base', 'daemon/spec', 'daemon/digest'],
    'daemon/wire': ['kernels/base', 'daemon/digest'],
    'daemon/store': ['kernels/base', 'daemon/spec', 'daemon/digest', 'migrations'],
    'daemon/device': ['kernels/base', 'daemon/config'],
    'daemon/sched': ['kernels/base', 'daemon/store', 'daemon/spec', 'daemon/config', 'daemon/device', 'daemon/digest'],
    'daemon/supervise': ['kernels/base', 'daemon/store', 'daemon/spec', 'daemon/config', 'daemon/device', 'daemon/wire',
        'daemon/sched', 'daemon/digest'],
    'web': [],
    // wire: tensors of a request travel to the supervisor in wire's own struct
    'api': ['kernels/base', 'daemon/wire', 'daemon/store', 'daemon/spec', 'daemon/config', 'daemon/sched', 'daemon/supervise',
        'daemon/device', 'daemon/digest', 'web'],
    'daemon/data': ['kernels/base', ...kernels, 'daemon/spec', 'daemon/digest'],
    'daemon/model': ['kernels/base', ...kernels, 'daemon/spec', 'daemon/digest', 'daemon/data'],
    'daemon/train': ['kernels/base', ...kernels, 'daemon/spec', 'daemon/digest', 'daemon/model', 'daemon/data'],
    'daemon/serve': ['kernels/base', ...kernels, 'daemon/spec', 'daemon/digest', 'daemon/model', 'daemon/data',
        'daemon/train'],
    'daemon/worker': ['kernels/base', ...kernels, 'daemon/spec', 'daemon/digest', 'daemon/wire', 'daemon/model',
        'daemon/data', 'daemon/train', 'daemon/serve'],
};
// The wiring of the programs: main.c and what only it calls.
const mains = new Set(['daemon/main.c', 'daemon/doctor.c', 'daemon/doctor.h', 'daemon/notify.c', 'daemon/notify.h', 'daemon/state_dir.c', 'daemon/state_dir.h', 'daemon/worker/main.c']);

// Each third-party library is included in these rooms and nowhere else.
const libraries = {
    'sqlite3.h': ['daemon/store'],
    'microhttpd.h': ['api'],
    'jansson.h': ['api', 'daemon/spec', 'daemon/data'],
    'ini.h': ['daemon/config'],
    'dnnl.h': ['kernels/backend'],
    'cblas.h': ['kernels/backend'],
    'cuda.h': ['kernels/backend'],
    'cuda_runtime.h': ['kernels/backend'],
    'nccl.h': ['kernels/comm'],
    'nvml.h': ['daemon/device'],
    'nettle': ['daemon/digest'],
    'zlib.h': ['daemon/data', 'api'],
    'jpeglib.h': ['daemon/data'],
    'png.h': ['daemon/data'],
    'pcre2.h': ['daemon/data'],
};

function* sources(folder) {
    if (!existsSync(path.join(root, folder)))
        return;
    for (const name of readdirSync(path.join(root, folder))) {
        const file = path.join(folder, name);
        if (statSync(path.join(root, file)).isDirectory())
            yield* sources(file);
        else if (/\.(c|h|cu|cuh|inc)$/.test(name))
            yield file;
    }
}

const rooms = Object.keys(arrows).sort((a, b) => b.length - a.length);
const roomOf = file => rooms.find(room => file.startsWith(`${room}/`)) ?? null;

export function violations(file, text) {
    const found = [];
    const room = roomOf(file);
    for (const [, open, target] of text.matchAll(/^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]/gm)) {
        if (open === '<') {
            const library = Object.keys(libraries).find(name => target === name || target.startsWith(`${name}/`) ||
                path.basename(target) === name);
            if (library && !libraries[library].includes(room))
                found.push(`${file}: <${target}> belongs to ${libraries[library].join(', ')} alone`);
            continue;
        }
        const to = roomOf(target);
        if (!target.includes('/'))
            found.push(`${file}: "${target}" is not written from the repository root`);
        else if (room && !to && !(arrows[room] ?? []).includes(target.split('/')[0]))
            found.push(`${file}: "${target}" is in no room of the picture`);
        else if (room && to && to !== room && !mains.has(file) && !arrows[room].includes(to))
            found.push(`${file}: ${room} may not include ${to} ("${target}")`);
    }
    return found;
}

test('test_layout_includes_follow_the_arrows', () => {
    const found = [];
    for (const folder of ['kernels', 'daemon', 'api', 'web'])
        for (const file of sources(folder)) {
            if (!roomOf(file) && !mains.has(file))
                found.push(`${file}: in no room of the picture`);
            found.push(...violations(file, readFileSync(path.join(root, file), 'utf8')));
        }
    assert.deepEqual(found, []);
});

test('test_layout_checker_sees_a_wrong_arrow_and_a_stray_library', () => {
    assert.equal(violations('kernels/graph/x.c', '#include "daemon/store/store.h"').length, 1);
    assert.equal(violations('api/x.c', '#include <sqlite3.h>\n#  include <nettle/sha2.h>').length, 2);
    assert.equal(violations('daemon/sched/x.c', '#include "daemon/wire/wire.h"').length, 1);
    assert.equal(violations('daemon/sched/x.c', '#include "sched.h"').length, 1);
    assert.deepEqual(violations('daemon/store/x.c', '#include <sqlite3.h>\n#include "kernels/base/err.h"'), []);
});

test('test_layout_every_room_has_a_page_of_its_own', () => {
    const missing = rooms.filter(room => {
        try {
            const has = readdirSync(path.join(root, room));
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
    for (const lock of ['web/package-lock.json', 'tests/package-lock.json'])
        for (const [, , url] of readFileSync(path.join(root, lock), 'utf8').matchAll(/"(\w+)": "(https?:[^"]*)"/g))
            assert.doesNotMatch(url, /registry|\.tgz$/, lock);
});
