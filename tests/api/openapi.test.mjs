// api/openapi.yaml against the route table, both ways, and against itself.
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import YAML from 'yaml';
import { Host, build, contract, root } from './lib.mjs';

let host;
before(async () => { host = await Host.start(); });
after(() => host.stop());

const methods = ['get', 'post', 'put', 'patch', 'delete'];

function contractRoutes() {
    return Object.entries(contract.paths).flatMap(([template, item]) =>
        methods.filter(method => item[method]).map(method => `${method.toUpperCase()} ${template} ${item[method].operationId}`));
}

test('every route stands in openapi.yaml and the other way round', () => {
    const polyd = path.join(build, 'bin/polyd');
    const source = readFileSync(path.join(root, 'api/routes.c'), 'utf8');
    const table = [...source.matchAll(/^\s*ROUTE(?:_QUERY|_PROBE)?\((\w+), "([^"]+)",\s+(\w+),/gm)].map(([, method, template, operation]) => `${method} ${template} ${operation}`);
    assert.ok(table.length > 50);
    assert.deepEqual([...table].sort(), contractRoutes().sort());
    if (existsSync(polyd)) {
        const printed = execFileSync(polyd, ['routes'], { encoding: 'utf8' }).trim().split('\n');
        assert.deepEqual(printed.sort(), contractRoutes().sort());
    }
});

test('each operationId is the C name of a handler that is defined once', () => {
    const handlers = readFileSync(path.join(root, 'api/handlers.h'), 'utf8');
    const names = contractRoutes().map(route => route.split(' ')[2]);
    assert.equal(new Set(names).size, names.length);
    for (const name of names)
        assert.match(handlers, new RegExp(`^void ${name}\\(struct api_req \\*r\\);$`, 'm'));
});

test('every reference resolves and every path parameter is declared', () => {
    const walk = (node, where) => {
        if (Array.isArray(node))
            return node.forEach((item, i) => walk(item, `${where}/${i}`));
        if (!node || typeof node !== 'object')
            return;
        if (typeof node.$ref === 'string') {
            const target = node.$ref.slice(2).split('/').reduce((at, token) => at?.[token], contract);
            assert.ok(target, `${where}: ${node.$ref}`);
        }
        for (const [key, value] of Object.entries(node))
            walk(value, `${where}/${key}`);
    };
    walk(contract, '#');
    for (const [template, item] of Object.entries(contract.paths)) {
        const wanted = [...template.matchAll(/\{(\w+)\}/g)].map(match => match[1]).sort();
        const declared = (item.parameters ?? [])
            .map(p => p.$ref ? p.$ref.slice(2).split('/').reduce((at, token) => at[token], contract) : p)
            .filter(p => p.in === 'path').map(p => p.name).sort();
        assert.deepEqual(declared, wanted, template);
    }
});

const resolved = node => node.$ref ? node.$ref.slice(2).split('/').reduce((at, token) => at[token], contract) : node;

test('a response has the members that OpenAPI knows, and what may be 304 names the tag', () => {
    for (const [where, path] of Object.entries(contract.paths))
        for (const [method, operation] of Object.entries(path).filter(([, value]) => value.operationId)) {
            for (const [status, response] of Object.entries(operation.responses)) {
                const known = response.$ref ? ['$ref'] : ['description', 'headers', 'content', 'links'];
                assert.deepEqual(Object.keys(response).filter(name => !known.includes(name)), [], `${method} ${where} ${status}`);
                assert.equal(typeof resolved(response).description, 'string');
            }
            const asks = [...path.parameters ?? [], ...operation.parameters ?? []].some(p => resolved(p).name === 'If-None-Match');
            assert.equal(asks, '304' in operation.responses, `${method} ${where}: If-None-Match and 304`);
            if (asks)
                assert.ok('ETag' in (resolved(operation.responses['200']).headers ?? {}), `${method} ${where}: ETag`);
        }
    for (const [name, response] of Object.entries(contract.components.responses))
        assert.deepEqual(Object.keys(response).filter(member => !['description', 'headers', 'content', 'links'].includes(member)), [], name);
});

test('/openapi.yaml is the file and /openapi.json says the same', async () => {
    const yaml = await host.get('/openapi.yaml');
    assert.equal(yaml.text, readFileSync(path.join(root, 'api/openapi.yaml'), 'utf8'));
    const json = await host.get('/openapi.json');
    assert.deepEqual(json.json, YAML.parse(yaml.text));
});

const library = path.join(build, 'api/node_modules/yaml');
test('the build takes all of YAML, and stops at what is none', { skip: !existsSync(library) && 'openapi.json was made elsewhere' }, () => {
    const dir = mkdtempSync(path.join(build, 'api/try-'));
    const turn = text => {
        writeFileSync(path.join(dir, 'in.yaml'), text);
        const done = spawnSync(process.execPath, [path.join(root, 'api/openapi.mjs'), path.join(dir, 'in.yaml'), path.join(dir, 'out.json')], { encoding: 'utf8' });
        return done.status === 0 ? readFileSync(path.join(dir, 'out.json'), 'utf8') : done.stderr;
    };
    try {
        assert.equal(turn('a: >-\n  one\n  two\nb: &x {c: [1,\n  2]}\nd: *x\n'), '{"a":"one two","b":{"c":[1,2]},"d":{"c":[1,2]}}');
        assert.match(turn('a: 1\na: 2\n'), /unique/);
        assert.match(turn('a: {b\n'), /at line \d/);
    } finally {
        rmSync(dir, { recursive: true });
    }
});
