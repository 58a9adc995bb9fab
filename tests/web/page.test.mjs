// The page's sources: types hold, nothing comes from elsewhere, no text enters as markup.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import test from 'node:test';

const here = path.dirname(fileURLToPath(import.meta.url));
const web = path.resolve(here, '../../web');

function* files(folder) {
    for (const entry of readdirSync(folder, { withFileTypes: true })) {
        const file = path.join(folder, entry.name);
        if (entry.isDirectory())
            yield* files(file);
        else if (/\.(html|css|js|svg)$/.test(entry.name))
            yield file;
    }
}
const sources = [...files(web)].map(file => ({ name: path.relative(web, file), text: readFileSync(file, 'utf8') }));

test('test_web_types_hold', () => {
    try {
        execFileSync(process.execPath, [path.resolve(here, '../node_modules/typescript/bin/tsc'), '-p', path.join(here, 'tsconfig.json')],
            { encoding: 'utf8' });
    } catch (error) {
        assert.fail(error.stdout);
    }
});

/** Every absolute address in a text; names of XML namespaces are not fetched. */
export const addresses = text => [...text.matchAll(/(?:https?:|wss?:)?\/\/[a-z0-9-]+\.[a-z0-9.-]+[^\s"'`)]*/gi)]
    .map(match => match[0]).filter(url => !/^http:\/\/www\.w3\.org\/(2000\/svg|1999\/xhtml)$/.test(url));

test('test_web_names_no_foreign_host', () => {
    for (const { name, text } of sources)
        assert.deepEqual(addresses(text), [], name);
    assert.deepEqual(addresses('x = "//cdn.example.org/x.js"; y = `https://a.example/`'), ['//cdn.example.org/x.js', 'https://a.example/']);
});

test('test_web_library_names_no_host_to_fetch_from', { skip: !process.env.POLYD_BUILD && 'POLYD_BUILD names no build folder' }, () => {
    const folder = path.join(process.env.POLYD_BUILD, 'web/npm/node_modules/uplot/dist');
    for (const name of ['uPlot.esm.js', 'uPlot.min.css']) {
        const text = readFileSync(path.join(folder, name), 'utf8').replace(/^\s*(\/\/|\*|\/\*).*$/gm, '');
        assert.deepEqual(addresses(text).filter(url => !url.includes('github.com') && !url.includes('stackoverflow.com')), [], name);
        assert.doesNotMatch(text, /\bimport\s*\(|@import|url\(\s*['"]?http/, name);
    }
});

test('test_web_text_enters_through_text_nodes_only', () => {
    const markup = /\b(innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|setHTML\w*|srcdoc)\b|\beval\(|new Function\b/;
    for (const { name, text } of sources.filter(file => file.name.endsWith('.js')))
        assert.doesNotMatch(text, markup, name);
});

test('test_web_markup_keeps_the_content_security_policy', () => {
    for (const { name, text } of sources.filter(file => file.name.endsWith('.html'))) {
        assert.doesNotMatch(text, /<script(?![^>]*\bsrc=)[^>]*>|\sstyle\s*=|\son[a-z]+\s*=|<style|javascript:/i, name);
        for (const [, url] of text.matchAll(/(?:src|href)="([^"#][^"]*)"/g))
            assert.ok(url.startsWith('/'), `${name}: ${url}`);
    }
    // A style attribute set from script breaks the policy just the same; properties of el.style do not.
    for (const { name, text } of sources.filter(file => file.name.endsWith('.js')))
        assert.doesNotMatch(text, /setAttribute\(\s*['"]style|\bstyle:\s*['"`]/, name);
});

test('test_web_every_import_exists', () => {
    for (const { name, text } of sources.filter(file => file.name.endsWith('.js')))
        for (const [, target] of text.matchAll(/^(?:import|export)\b[^'"]*?from\s+'([^']+)'/gm)) {
            if (target.startsWith('/vendor/'))
                continue;
            assert.ok(existsSync(path.resolve(web, path.dirname(name), target)), `${name}: ${target}`);
        }
});
