// "One thing, one place" (house style): what is added most often has one home, and nobody else asks which one it is.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { treeFiles } from '../lib/tree.mjs';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..');
const sources = treeFiles(root).filter(name => /^(daemon|api|kernels)\/.*\.(c|h|cu|cuh)$/.test(name));

/** The words of a table such as NETWORKS(X) X(vit) X(gpt). */
const words = (file, table) => [...readFileSync(path.join(root, file), 'utf8').match(new RegExp(`#define ${table}\\(X\\)(.*(?:\\\\\\n.*)*)`))[1].matchAll(/\bX\((\w+)\)/g)].map(m => m[1]);
const any = (file, table) => words(file, table).join('|');
const networks = any('daemon/worker/model/arch/networks.h', 'MODEL_NETWORKS'), networkNames = any('daemon/job/networks.c', 'NETWORKS');
const optimisers = any('daemon/worker/train/optim/optim.h', 'OPTIMS'), optimiserNames = any('daemon/job/optimisers.c', 'OPTIMISERS');
const tasks = any('daemon/worker/task/tasks.h', 'TASKS');

/** A statement of the theory is about one activation, one optimiser or one network, and names it. */
const statements = /^daemon\/worker\/check\//;

/** What may stand in no file but those of its home. */
const rules = [
    // what an op is by nature its rule says; passes that look for a pattern may compare with the op it is made of
    { what: 'an op', pattern: /\bcase PK_OP_\w+/, home: /^kernels\/(graph\/op|backend)\// },
    { what: 'an op by name', pattern: /[!=]=\s*PK_OP_\w+/,
        home: /^(?!kernels\/graph\/((?!passes\/|op\/)|passes\/narrow\.c))/ },
    { what: 'a network', named: true, pattern: new RegExp(`\\barch\\s*[!=]=|\\bJOB_ARCH_\\w+|\\bmodel_(${networks})\\b|\\bMODEL_(${networks.toUpperCase()})\\b`), home: /^daemon\/worker\/model\/arch\// },
    { what: 'an activation', named: true, pattern: /\bPK_PHI_\w+/, home: /^kernels\/graph\/phi\.h$/ },
    // rows of presets and of the table of networks
    { what: 'the name of a network', pattern: new RegExp(`"(${networkNames})"`), home: /^daemon\/(worker\/model\/arch\/|job\/networks\.c)/ },
    { what: 'the kind of a data set', pattern: /\bDATA_(IMAGES|TOKENS)\b/, home: /^daemon\/worker\/(data\/(data\.h|sample\.c)|model\/spec\.c)$/ },
    { what: 'what a network reads', pattern: /\bmodel_(reads_tokens|decodes)\b/, home: /^daemon\/worker\/(model|task)\// },
    { what: 'a task', pattern: new RegExp(`\\bclassifier\\b|\\btask_(${tasks})\\b|[!=]=\\s*&?serve_kind_`), outside: 'strings',
        home: /^daemon\/worker\/(task\/|serve\/(classify|picture|language|stream)\.c$)/ },
    { what: 'a number of an evaluation', pattern: /"((acc|ppl)\/(val|train)|loss\/val)/, home: /^(?!daemon\/worker\/(?!task\/))/ },
    { what: 'a parameter of one network', named: true, pattern: /"(transformer\.|patch_embed|cls_token|pos_embed|blocks\.)/, home: /^daemon\/worker\/model\/arch\// },
    { what: 'an optimiser', pattern: new RegExp(`\\bJOB_OPTIMI[SZ]ER_\\w+|\\bMODEL_(${optimisers.toUpperCase()})\\b|\\boptim_(${optimisers})\\b`), home: /^daemon\/worker\/train\/optim\// },
    { what: 'the name of an optimiser', named: true, pattern: new RegExp(`"(${optimiserNames})"`), home: /^(daemon\/(worker\/train\/optim\/|job\/(optimisers|presets)\.c)|kernels\/graph\/)/ },
];

const code = text => text.replace(/\/\*[\s\S]*?\*\//g, '').replace(/\/\/.*$/gm, '');

const read = (rule, text) => rule.outside === 'strings' ? code(text).replace(/"(\\.|[^"\\\n])*"/g, '""') : code(text);

export function strays(file, text) {
    return rules.filter(rule => !rule.home.test(file) && !(rule.named && statements.test(file)) && rule.pattern.test(read(rule, text)))
        .map(rule => `${file}: ${rule.what}: ${read(rule, text).match(rule.pattern)[0]}`);
}

test('test_layout_each_thing_stands_in_one_place', () => {
    assert.deepEqual(sources.flatMap(file => strays(file, readFileSync(path.join(root, file), 'utf8'))), []);
});

test('test_layout_checker_sees_what_strays', () => {
    assert.equal(strays('kernels/backend/cpu/attention.c', 'if (a->phi == PK_PHI_RELU)').length, 1);
    assert.deepEqual(strays('kernels/backend/cpu/attention.c', 'PK_EACH_PHI(ROW) PK_PHIS pk_phi_power(x)'), []);
    assert.equal(strays('kernels/graph/plan.c', 'switch (n->op) { case PK_OP_MATMUL: }').length, 1);
    assert.equal(strays('kernels/graph/exec.c', 'if (n->op == PK_OP_EXPR)').length, 1);
    assert.equal(strays('kernels/graph/passes/narrow.c', 'if (n->op != PK_OP_ADAMW)').length, 1);
    assert.deepEqual(strays('kernels/graph/passes/fuse.c', 'if (n->op != PK_OP_NORM_BWD)'), []);
    assert.deepEqual(strays('kernels/backend/cpu/widen.c', 'switch (c->op) { case PK_OP_FILL: }'), []);
    assert.equal(strays('daemon/worker/train/x.c', 'if (spec->arch == NULL)').length, 1);
    assert.equal(strays('daemon/job/rules.c', 'switch (a) { case JOB_ARCH_VIT: }').length, 1);
    assert.equal(strays('daemon/worker/train/probe.c', 'snprintf(b, n, "transformer.h.%d", i)').length, 1);
    assert.equal(strays('daemon/worker/train/setup.c', 'o = &optim_adamw.graph;').length, 1);
    assert.deepEqual(strays('daemon/worker/train/x.c', '/* arch == vit */ int x;'), []);
    assert.equal(strays('daemon/worker/train/setup.h', 'bool classifier;').length, 1);
    assert.equal(strays('daemon/worker/train/executable.c', 's->classifier ? b->images : b->tokens').length, 1);
    assert.equal(strays('daemon/worker/train/setup.c', 'if (info->kind == DATA_IMAGES)').length, 1);
    assert.equal(strays('daemon/worker/process/x.c', 'if (info->kind == &serve_kind_classify)').length, 1);
    assert.equal(strays('daemon/worker/train/evaluator.c', 'reporter_push(r, "acc/val", x)').length, 1);
    assert.deepEqual(strays('daemon/worker/check/x.c', 'spec.phi = PK_PHI_POLY; train("adamw");'), []);
    assert.equal(strays('daemon/worker/check/x.c', 'o = &optim_adamw.graph;').length, 1);
    assert.deepEqual(strays('daemon/worker/process/x.c', 'x = "classifier: it does not complete text";'), []);
});
