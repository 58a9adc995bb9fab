// A real Chromium for the page's tests, watched: no request elsewhere, no error in the console, no page wider
// than its window, nothing at all for axe-core, sizes of targets included.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';

import { chromium } from 'playwright-core';

import { build } from '../lib/daemon.mjs';

export const axeSource = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

/** Where Debian or Ubuntu put a Chromium, or null. Debian's shell of it draws no window around the page: half the work. */
export function findChromium() {
    for (const name of ['chromium-headless-shell', 'chromium', 'chromium-browser', 'google-chrome']) {
        try {
            return execFileSync('/bin/sh', ['-c', `command -v ${name}`], { encoding: 'utf8' }).trim();
        } catch { /* the next */ }
    }
    return null;
}

export const looks = [
    { name: 'desktop-light', width: 1280, height: 860, theme: 'light' },
    { name: 'desktop-dark', width: 1280, height: 860, theme: 'dark' },
    { name: 'phone-light', width: 390, height: 844, theme: 'light' },
    { name: 'phone-dark', width: 390, height: 844, theme: 'dark' },
];

export class Browser {
    /** @param {{scrollbars?: boolean}} [options] `scrollbars`: they take their room, as on most desktops */
    static async start({ scrollbars = false } = {}) {
        const self = new Browser();
        self.browser = await chromium.launch({
            executablePath: findChromium(), ignoreDefaultArgs: scrollbars ? ['--hide-scrollbars'] : [],
            args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
                '--disable-component-update', '--disable-sync'],
        });
        self.pictures = path.join(build, 'e2e');
        mkdirSync(self.pictures, { recursive: true });
        return self;
    }

    /**
     * A page of its own, with a record of what went wrong on it.
     * @param {string} url
     * @param {{width?: number, height?: number, theme?: string, bypassCSP?: boolean, quiet?: RegExp, origin?: string}} [look] `quiet`:
     *     console errors that the test provokes
     */
    async open(url, { width = 1280, height = 860, theme = 'light', bypassCSP = false, quiet, origin = new URL(url).origin } = {}) {
        const context = await this.browser.newContext({
            viewport: { width, height }, colorScheme: theme, bypassCSP, isMobile: width < 500, hasTouch: width < 500,
            reducedMotion: 'reduce', locale: 'en-GB',
        });
        const page = await context.newPage();
        page.problems = [];
        page.on('request', request => {
            const target = new URL(request.url());
            if (target.origin !== origin && !['data:', 'blob:'].includes(target.protocol))
                page.problems.push(`foreign request: ${request.url()}`);
        });
        page.on('console', message => {
            if (message.type() === 'error' && !quiet?.test(`${message.text()} ${message.location().url}`))
                page.problems.push(`console: ${message.text()} (${message.location().url})`);
        });
        page.on('pageerror', error => page.problems.push(`error: ${error.stack}`));
        page.setDefaultTimeout(20000);
        await page.goto(url);
        return page;
    }

    /** @param {import('playwright-core').Page} page */
    async close(page) {
        const { problems } = page;
        await page.context().close();
        assert.deepEqual(problems, []);
    }

    /**
     * A look at some views in one size and colour: width, axe-core, and with POLYD_TEST_PICTURES=1 a picture in the build's
     * folder e2e. One window serves them all, as it would a person.
     * @param {string} origin
     * @param {typeof looks[number]} look
     * @param {[name: string, hash: string, ready: string][]} views `ready`: what shows that it has loaded
     * @param {{quiet?: RegExp, prepare?: (page: any) => Promise<void>}} [options]
     */
    async inspect(origin, look, views, { quiet, prepare } = {}) {
        const page = await this.open('about:blank', { ...look, bypassCSP: true, quiet, origin });
        await prepare?.(page);
        for (const [name, hash, ready] of views) {
            await page.goto(`${origin}/${hash}`);
            await page.locator(ready).first().waitFor();
            if (process.env.POLYD_TEST_PICTURES)
                await page.screenshot({ path: path.join(this.pictures, `${name}-${look.name}.png`) });
            const excess = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
            assert.ok(excess <= 0, `${name} ${look.name}: ${excess} px wider than the window`);
            if (!await page.evaluate(() => 'axe' in globalThis))
                await page.evaluate(axeSource);
            const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'], rules: { 'target-size': { enabled: true } } }));
            assert.deepEqual(violations.map(v => `${v.id}: ${v.nodes.map(node => node.target.join(' ')).join(', ')}`), [], `${name} ${look.name}`);
        }
        await this.close(page);
    }

    async stop() {
        await this.browser?.close();
    }
}
