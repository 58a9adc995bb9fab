// Sums up what the suites left in a folder of results: *.xml from `ctest
// --output-junit` and *.jsonl from tests/lib/reporter.mjs. Names what was
// skipped and what failed, then prints the one last line. Exit status 1 if
// anything failed or nothing ran.
//
// A cmocka program run with CMOCKA_MESSAGE_OUTPUT=TAP counts function by
// function; any other program counts as one test.
import { readFileSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

/** @param {string} text */
function unescape(text) {
    return text.replace(/&lt;/g, '<').replace(/&gt;/g, '>').replace(/&quot;/g, '"').replace(/&apos;/g, "'")
        .replace(/&#(x?)([0-9a-fA-F]+);/g, (_, hex, digits) => String.fromCodePoint(parseInt(digits, hex ? 16 : 10)))
        .replace(/&amp;/g, '&');
}

/** @returns {{name: string, status: 'passed'|'failed'|'skipped', why: string}[]} */
export function parseJunit(xml) {
    const tests = [];
    for (const match of xml.matchAll(/<testcase\s([^>]*?)(\/>|>([\s\S]*?)<\/testcase>)/g)) {
        const attribute = key => unescape(new RegExp(`\\b${key}="([^"]*)"`).exec(match[1])?.[1] ?? '');
        const body = match[3] ?? '';
        const program = attribute('name');
        const status = attribute('status');
        const output = unescape(/<system-out>([\s\S]*?)<\/system-out>/.exec(body)?.[1] ?? '');
        // A skip is what a program asks for by its exit status. ctest writes <skipped> also for what it could not start: no
        // such program, folder or file. That has failed, as its own exit status says.
        const notRun = /<skipped message="([^"]*)"/.exec(body)?.[1] ?? (status === 'notrun' ? 'it was not run' : null);
        const skipped = status === 'disabled' || notRun?.startsWith('SKIP_');
        const crashed = status === 'fail' || /<failure/.test(body);
        const points = [];
        for (const line of output.matchAll(/^\s*(not )?ok \d+ (?:- )?(?:(# SKIP) )?(.*)$/gm)) {
            points.push({
                name: `${program}: ${line[3]}`,
                status: line[2] ? 'skipped' : line[1] ? 'failed' : 'passed',
                why: '',
            });
        }
        // A program with a count of its own (the golden runner) says so in its last line.
        const own = /^(\w+): (\d+) passed, (\d+) failed, (\d+) skipped\s*$/m.exec(output);
        if (own && points.length === 0) {
            /** @type {[string, 'passed' | 'failed' | 'skipped'][]} */
            const kinds = [['ok', 'passed'], ['FAIL', 'failed'], ['skip', 'skipped']];
            kinds.forEach(([word, kind], i) => {
                const named = [...output.matchAll(new RegExp(`^${word} (\\S+): (.*)$`, 'gm'))];
                for (let n = 0; n < Number(own[i + 2]); n++)
                    points.push({ name: `${program}: ${named[n]?.[1] ?? 'case'}`, status: kind, why: kind === 'passed' ? '' : named[n]?.[2] ?? '' });
            });
        }
        if (skipped) {
            const reason = output.trim().split('\n').filter(Boolean).pop() ?? '';
            tests.push({ name: program, status: 'skipped', why: reason.slice(0, 200) });
        } else if (notRun !== null) {
            tests.push({ name: program, status: 'failed', why: (output.trim() || unescape(notRun)).slice(0, 200) });
        } else {
            tests.push(...points);
            // A program that died, or one that is not cmocka's: it is a test of its own.
            if (crashed && !points.some(point => point.status === 'failed'))
                tests.push({ name: program, status: 'failed', why: 'the program failed' });
            else if (points.length === 0)
                tests.push({ name: program, status: 'passed', why: '' });
        }
    }
    return tests;
}

/** @param {string} folder */
function collect(folder) {
    const tests = [];
    for (const file of readdirSync(folder).sort()) {
        const text = readFileSync(path.join(folder, file), 'utf8');
        if (file.endsWith('.xml'))
            tests.push(...parseJunit(text));
        else if (file.endsWith('.jsonl'))
            tests.push(...text.split('\n').filter(Boolean).map(line => JSON.parse(line)));
    }
    return tests;
}

function main() {
    const tests = collect(process.argv[2]);
    const of = status => tests.filter(test => test.status === status);
    // Many skipped for one reason are one line: the reason is the news.
    /** @type {Map<string, string[]>} */
    const reasons = new Map();
    for (const { name, why } of of('skipped'))
        reasons.set(why, [...(reasons.get(why) ?? []), name]);
    for (const [why, names] of reasons) {
        const shown = names.length > 6 ? `${names.slice(0, 3).join(', ')} and ${names.length - 3} more` : names.join(', ');
        console.log(`skipped: ${shown}${why ? ` (${why})` : ''}`);
    }
    for (const test of of('failed'))
        console.log(`failed: ${test.name}${test.why ? ` (${test.why})` : ''}`);
    console.log(`${of('passed').length} passed, ${of('failed').length} failed, ${of('skipped').length} skipped`);
    process.exitCode = of('failed').length > 0 || of('passed').length === 0 ? 1 : 0;
}

if (import.meta.url === pathToFileURL(process.argv[1]).href)
    main();
