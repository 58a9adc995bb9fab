// Reporter for `node --test`: one readable line a test on stdout, and, for the
// final count, one JSON line a test appended to the file in POLYD_TEST_RESULTS.
//
// Only leaves are counted: a file or a test with subtests stands for its
// children, unless it failed by itself (a hook threw) while they all passed.
import { appendFileSync } from 'node:fs';
import path from 'node:path';

const results = process.env.POLYD_TEST_RESULTS;

/** Whether a test stands for a whole file; a name such as /data/path is a field's pointer. @param {string} name */
const isFile = name => path.isAbsolute(name) && /\.[cm]?js$/.test(name);

/** @param {string} name */
const shorten = name => (isFile(name) ? path.relative(process.cwd(), name) : name);

export default async function* report(source) {
    // For each depth: whether a child was seen, and whether one failed, since its parent last ended.
    const seen = [];
    const failed = [];
    for await (const event of source) {
        if (event.type === 'test:stdout' || event.type === 'test:stderr') {
            if (process.env.POLYD_TEST_VERBOSE)
                yield event.data.message;
            continue;
        }
        if (event.type !== 'test:pass' && event.type !== 'test:fail')
            continue;
        const { data } = event;
        const depth = data.nesting;
        const isParent = Boolean(seen[depth + 1]);
        const childFailed = Boolean(failed[depth + 1]);
        seen.length = depth + 1;
        failed.length = depth + 1;
        seen[depth] = true;
        if (event.type === 'test:fail')
            failed[depth] = true;
        if (isParent && (event.type === 'test:pass' || childFailed))
            continue;
        const skipped = data.skip !== undefined && data.skip !== false;
        // A file in which every test was filtered out or that only holds hooks is no test.
        if (event.type === 'test:pass' && depth === 0 && isFile(data.name) && !skipped)
            continue;
        const status = skipped ? 'skipped' : event.type === 'test:pass' ? 'passed' : 'failed';
        const name = shorten(data.name);
        const why = typeof data.skip === 'string' ? data.skip : '';
        if (results)
            appendFileSync(results, JSON.stringify({ name, status, why }) + '\n');
        yield `${status === 'passed' ? 'ok     ' : status === 'skipped' ? 'skipped' : 'FAILED '} ${name}` +
            `${why ? ` (${why})` : ''} [${Math.round(data.details?.duration_ms ?? 0)} ms]\n`;
        if (status === 'failed') {
            const error = data.details?.error;
            const cause = error?.cause ?? error;
            const text = cause?.stack ?? cause?.message ?? String(cause);
            yield String(text).split('\n').map(line => `        ${line}\n`).join('');
        }
    }
}
