// The log of the latest attempt, followed as it grows.
import { getLog, isAbort } from '../api.js';
import { failedBox, fill, h, icon, stateBox } from '../dom.js';

/** @typedef {import('./page.js').Page} Page */

/**
 * @param {Page} page
 * @param {AbortSignal} gone
 * @returns {import('./page.js').Part}
 */
export function logPart(page, gone) {
    const out = h('div', { class: 'log', tabindex: 0, role: 'log', 'aria-label': 'Log of the latest attempt' });
    const follow = h('input', { type: 'checkbox' });
    follow.checked = true;
    const bar = h('div', { class: 'toolbar' }, h('label', { class: 'inline' }, follow, 'Follow'),
        h('a', { class: 'button', href: `/api/v1/runs/${encodeURIComponent(page.id)}/logs?limit=1048576`, target: '_blank', rel: 'noopener' }, icon('download'), 'Plain text'));
    /** @type {number | null} */
    let offset = null;
    let attempt = page.attempts.length;
    let lines = 0;
    out.addEventListener('scroll', () => {
        follow.checked = out.scrollHeight - out.scrollTop - out.clientHeight < 40;
    });

    /** @param {string} text */
    function add(text) {
        for (const line of text.split('\n')) {
            if (line === '')
                continue;
            // Lines of the program itself begin with a priority, as syslog numbers them.
            const level = /^<[0-3]>/.test(line) ? 'err' : /^<4>/.test(line) ? 'warn' : '';
            out.append(h('div', { class: level }, line.replace(/^<\d>/, '')));
            lines++;
        }
        for (; lines > 5000; lines--)
            out.firstElementChild?.remove();
        if (follow.checked)
            out.scrollTop = out.scrollHeight;
    }

    return {
        async refresh() {
            try {
                if (page.attempts.length !== attempt) {
                    attempt = page.attempts.length;
                    offset = null;
                    fill(out);
                    lines = 0;
                }
                const news = await getLog(page.id, offset === null ? { tail: 2000 } : { offset }, gone);
                offset = news.next;
                if (!out.isConnected) {
                    if (news.text === '') {
                        fill(page.place, h('div', { class: 'card' }, stateBox('empty', 'The log is empty', 'The worker writes its first lines when it starts.')));
                        offset = null;
                        return;
                    }
                    fill(page.place, bar, out);
                }
                add(news.text);
            } catch (error) {
                if (isAbort(error) || out.isConnected)
                    return;
                const none = /** @type {any} */ (error).status === 404;
                fill(page.place, h('div', { class: 'card' }, none
                    ? stateBox('empty', 'No log yet', 'The first attempt has not started.') : failedBox(error, 'The log', () => page.again())));
            }
        },
    };
}
