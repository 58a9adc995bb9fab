// node tests/bench/page.mjs [RUNS POINTS]: the dashboard in a real Chromium (headless, software rendering). Prints, with what is
// asked of it: the time to the first rows of the table of RUNS (10000) runs and to all of them, the bytes moved; the time in
// which a run page of 16 panels is drawn; and how long scripts take a frame while the pointer moves over POINTS (100000)
// points, from the browser's own trace. Drawing itself is not counted: headless it is done by the processor.
import { execFileSync } from 'node:child_process';
import { mkdtempSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';

import { Browser } from '../e2e/browser.mjs';
import { build, Daemon, freePort } from '../lib/daemon.mjs';

const [runs = 10000, points = 100000] = process.argv.slice(2).map(Number);
const ask = (what, value, unit, most) => console.log(`${what}: ${value} ${unit} (asked: at most ${most} ${unit})${value > most ? '  <-- MORE' : ''}`);
const middle = list => list.slice().sort((a, b) => a - b)[list.length >> 1];

console.log(`${os.cpus().length} x ${os.cpus()[0].model}, load ${os.loadavg()[0].toFixed(1)}`);
const stateDir = mkdtempSync(path.join(os.tmpdir(), 'polyd-'));
execFileSync(path.join(build, 'bin/seed_store'), [stateDir, String(runs)], { stdio: 'ignore' });
const daemon = new Daemon(stateDir, await freePort(), []);
await daemon.up();
const browser = await Browser.start();

/** Until `ready` holds on a page opened anew; the bytes that came meanwhile, as sent. */
async function opening(hash, ready, then) {
    const page = await browser.open('about:blank', { width: 1440, height: 900, origin: daemon.url, bypassCSP: true });
    const session = await page.context().newCDPSession(page);
    await session.send('Network.enable');
    let bytes = 0;
    session.on('Network.loadingFinished', event => { bytes += event.encodedDataLength; });
    const begun = performance.now();
    await page.goto(`${daemon.url}/${hash}`, { waitUntil: 'commit' });
    await page.waitForFunction(ready, null, { polling: 'raf' });
    const first = performance.now() - begun;
    let all = first;
    if (then) {
        await page.waitForFunction(then, null, { polling: 'raf' });
        all = performance.now() - begun;
    }
    return { page, first, all, bytes: () => bytes };
}

try {
    const tables = [];
    for (let i = 0; i < 5; i++) {
        const { page, first, all, bytes } = await opening('#/', () => document.querySelectorAll('.grid-row').length > 10,
            `document.querySelector('.sub')?.textContent.includes('${runs.toLocaleString('en-US')} runs')`);
        tables.push({ first, all, bytes: bytes() });
        await browser.close(page);
    }
    ask(`table of ${runs} runs, first rows (median of 5)`, Math.round(middle(tables.map(t => t.first))), 'ms', 500);
    console.log(`table, all rows: ${Math.round(middle(tables.map(t => t.all)))} ms`);
    ask('table, moved', +(Math.max(...tables.map(t => t.bytes)) / 1e6).toFixed(2), 'MB', 1.5);

    /* Sixteen panels, among them one whose single curve has all the points. */
    const list = ['one', 'two', 'three', 'four'].flatMap(key => [1, 2, 3].map(step => ({ key, step, value: step })));
    for (let step = 1; step <= points; step++)
        list.push({ key: 'dense', step, value: Math.sin(step / 900) + .2 * Math.sin(step * 12.9898) });
    for (let at = 0; at < list.length; at += 5000)
        await daemon.post(`/api/v1/runs/${runs}/metrics`, { points: list.slice(at, at + 5000) });
    const panels = [];
    for (let i = 0; i < 5; i++) {
        const { page, first } = await opening(`#/runs/${runs}?folds=system`, () => document.querySelectorAll('.chart canvas').length >= 16 && document.querySelector('[data-panel="dense"] .legend .value')?.textContent !== '–');
        panels.push(first);
        await browser.close(page);
    }
    ask('run page of 16 panels (median of 5)', Math.round(middle(panels)), 'ms', 600);

    const { page } = await opening(`#/runs/${runs}?folds=system`, () => document.querySelectorAll('.chart canvas').length >= 16);
    await page.locator('[data-panel="dense"] .u-over').scrollIntoViewIfNeeded();
    await page.waitForTimeout(1500);
    const box = await page.locator('[data-panel="dense"] .u-over').boundingBox();
    await browser.browser.startTracing(page, { categories: ['devtools.timeline', 'disabled-by-default-devtools.timeline'] });
    for (let i = 0; i < 240; i++) {
        await page.mouse.move(box.x + box.width * ((i * 7) % 240) / 240, box.y + box.height * (.3 + .4 * (i % 20) / 20));
        await page.evaluate(() => new Promise(requestAnimationFrame));
    }
    const { traceEvents } = JSON.parse((await browser.browser.stopTracing()).toString());
    /* Scripts are what runs for an event of the pointer or a frame; of nested slices the outer one counts. */
    const moves = traceEvents.filter(e => e.name === 'EventDispatch' && e.ph === 'X' && /^(mousemove|pointermove)$/.test(e.args?.data?.type ?? ''));
    const byFrame = new Map();
    const frames = traceEvents.filter(e => e.name === 'FireAnimationFrame' && e.ph === 'X').sort((a, b) => a.ts - b.ts);
    const frameOf = ts => frames.findIndex(f => f.ts > ts);
    for (const e of [...moves, ...frames])
        byFrame.set(frameOf(e.ts - 1), (byFrame.get(frameOf(e.ts - 1)) ?? 0) + e.dur / 1000);
    const times = [...byFrame.values()].sort((a, b) => a - b);
    ask(`scripts a frame over ${points} points, 95th percentile of ${times.length}`, +times[Math.floor(times.length * .95)].toFixed(2), 'ms', 10);
    await browser.close(page);
} finally {
    await browser.stop();
    await daemon.stop();
}
