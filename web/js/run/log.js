// The log of an attempt, followed as it grows: found in, filtered by severity, and linked to by line.
import { getLog, isAbort } from '../api.js';
import { failedBox, fill, h, icon, setText, stateBox } from '../dom.js';
import { count } from '../format.js';
import { kindOf } from '../kinds.js';
import { isActive } from '../states.js';

/** @typedef {import('./page.js').Page} Page */

const MOST = 5000; // lines kept on the page
const PLAIN = 1048576; // bytes: the most the API gives at once

/**
 * @param {Page} page
 * @param {AbortSignal} gone
 * @returns {import('./page.js').Part}
 */
export function logPart(page, gone) {
    const { query } = page.context;
    const out = h('div', { class: 'log', tabindex: 0, role: 'log', 'aria-label': 'Log' });
    const follow = h('input', { type: 'checkbox' });
    follow.checked = !query.get('line');
    const followBox = h('label', { class: 'inline' }, follow, 'Follow');
    const wrap = h('input', { type: 'checkbox' });
    wrap.checked = query.get('wrap') !== '0';
    const find = h('input', { type: 'search', placeholder: 'Find in the log', 'aria-label': 'Find in the log', value: query.get('find') ?? '', autocomplete: 'off', spellcheck: 'false' });
    const found = h('span', { class: 'muted', role: 'status' });
    const level = h('select', { 'aria-label': 'Severity' }, [['', 'All lines'], ['warn', 'Warnings and errors'], ['err', 'Errors']].map(([value, word]) => h('option', { value }, word)));
    level.value = query.get('level') ?? '';
    const pick = h('select', { 'aria-label': 'Attempt' });
    const plain = h('a', { class: 'button', target: '_blank', rel: 'noopener' }, icon('download'), 'Plain text');
    const cut = h('p', { class: 'muted small', hidden: true }, 'The end of a long log: its lines have no numbers here. “Plain text” goes further back.');
    const step = (/** @type {number} */ by) => () => go(by);
    const bar = h('div', { class: 'toolbar' }, pick, h('div', { class: 'search log-find' }, icon('search'), find),
        h('div', { class: 'row' }, h('button', { type: 'button', class: 'icon-button', 'aria-label': 'Previous match', title: 'Previous match', on: { click: step(-1) } }, icon('up')),
            h('button', { type: 'button', class: 'icon-button', 'aria-label': 'Next match', title: 'Next match', on: { click: step(1) } }, icon('down')), found),
        level, h('label', { class: 'inline' }, wrap, 'Wrap lines'), followBox, plain);
    /** @type {number | null} */
    let offset = null;
    /** @type {number | null} of one's own choice; null: the latest */
    let chosen = Number(query.get('attempt')) || null;
    let attempt = 0;
    let first = 1; // number of the first line on the page
    let numbered = true; // the log is known from its start
    let lines = 0;
    let rest = ''; // of the last line, which goes on
    let here = -1;
    out.addEventListener('scroll', () => {
        if (!followBox.hidden)
            follow.checked = out.scrollHeight - out.scrollTop - out.clientHeight < 40;
    });
    wrap.addEventListener('change', () => {
        page.context.setQuery({ wrap: wrap.checked ? null : '0' });
        out.dataset.wrap = wrap.checked ? 'on' : 'off';
    });
    level.addEventListener('change', () => {
        page.context.setQuery({ level: level.value });
        mark();
    });
    find.addEventListener('input', () => {
        page.context.setQuery({ find: find.value.trim() });
        here = -1;
        mark();
        if (find.value.trim())
            go(1);
    });
    find.addEventListener('keydown', event => {
        if (event.key === 'Enter') {
            event.preventDefault();
            go(event.shiftKey ? -1 : 1);
        }
    });
    pick.addEventListener('change', () => {
        chosen = Number(pick.value) === page.attempts.length ? null : Number(pick.value);
        page.context.setQuery({ attempt: chosen === null ? null : String(chosen), line: null });
        attempt = 0;
        page.again();
    });
    out.addEventListener('click', event => {
        const at = /** @type {Element} */ (event.target).closest('.at');
        if (!at)
            return;
        event.preventDefault();
        page.context.setQuery({ line: at.textContent });
        light(Number(at.textContent));
        navigator.clipboard?.writeText(location.href).catch(() => {});
        page.context.announce(`Link to line ${at.textContent} copied`);
    });
    out.dataset.wrap = wrap.checked ? 'on' : 'off';

    /** @param {number} line */
    function light(line) {
        for (const el of out.querySelectorAll('[data-here]'))
            el.removeAttribute('data-here');
        const el = numbered ? out.children[line - first] : null;
        if (el instanceof HTMLElement) {
            el.dataset.here = '';
            el.scrollIntoView({ block: 'center' });
        }
    }

    /** What is looked for, marked; lines below the severity, hidden. */
    function mark() {
        for (const line of /** @type {HTMLCollectionOf<HTMLElement>} */ (out.children))
            dress(line);
        const n = out.querySelectorAll('mark').length;
        setText(found, find.value.trim() ? (n === 0 ? 'not found' : `${count(n)} found`) : '');
    }

    /** @param {HTMLElement} line */
    function dress(line) {
        const text = line.dataset.text ?? '';
        line.hidden = (level.value === 'err' && !line.classList.contains('err')) || (level.value === 'warn' && !line.className);
        const word = find.value.trim().toLowerCase();
        const at = word === '' || line.hidden ? -1 : text.toLowerCase().indexOf(word);
        const number = /** @type {Node} */ (line.firstChild);
        if (at < 0) {
            if (line.childNodes.length !== 2 || line.lastChild?.nodeType !== Node.TEXT_NODE)
                fill(line, number, text);
        } else {
            fill(line, number, text.slice(0, at), h('mark', null, text.slice(at, at + word.length)), text.slice(at + word.length));
        }
    }

    /** @param {number} by */
    function go(by) {
        const marks = [...out.querySelectorAll('mark')];
        if (marks.length === 0)
            return;
        here = (here + by + marks.length) % marks.length;
        follow.checked = false;
        for (const el of out.querySelectorAll('[data-here]'))
            el.removeAttribute('data-here');
        const line = /** @type {HTMLElement} */ (marks[here].parentElement);
        line.dataset.here = '';
        line.scrollIntoView({ block: 'center' });
        setText(found, `${count(here + 1)} of ${count(marks.length)}`);
    }

    /** @param {string} text */
    function add(text) {
        if (text === '')
            return;
        if (rest) {
            out.lastElementChild?.remove();
            lines--;
        }
        const all = (rest + text).split('\n');
        rest = all[all.length - 1];
        for (const line of rest ? all : all.slice(0, -1)) {
            // Lines of the program itself begin with a priority, as syslog numbers them.
            const severity = /^<[0-3]>/.test(line) ? 'err' : /^<4>/.test(line) ? 'warn' : '';
            const words = line.replace(/^<\d>/, '');
            const el = h('div', { class: severity, data: { text: words } }, numbered ? h('a', { class: 'at', href: '#', tabindex: -1, title: 'Copy the link to this line' }, first + lines) : h('span'), words);
            out.append(el);
            if (level.value || find.value.trim())
                dress(el);
            lines++;
        }
        for (; lines > MOST; lines--, first++)
            out.firstElementChild?.remove();
        if (follow.checked && !followBox.hidden)
            out.scrollTop = out.scrollHeight;
    }

    return {
        async refresh() {
            try {
                const now = chosen ?? page.attempts.length;
                if (now !== attempt) {
                    attempt = now;
                    offset = null;
                    fill(out);
                    lines = 0;
                    first = 1;
                    rest = '';
                }
                if (pick.childElementCount !== page.attempts.length) {
                    fill(pick, page.attempts.map(a => h('option', { value: a.n }, `Attempt ${a.n}${a.cause ? `, ${a.cause.replaceAll('_', ' ')}` : ''}`)));
                    pick.hidden = page.attempts.length < 2;
                }
                pick.value = String(attempt);
                followBox.hidden = chosen !== null || !page.run || !isActive(page.run);
                const fresh = offset === null;
                const news = await getLog(page.id, { ...(offset === null ? { tail: MOST } : { offset }), attempt: attempt > 0 ? attempt : null }, gone);
                offset = news.next;
                if (fresh)
                    numbered = cut.hidden = news.start === 0;
                plain.href = `/api/v1/runs/${encodeURIComponent(page.id)}/logs?limit=${PLAIN}${offset > PLAIN ? '&tail=10000' : ''}${attempt > 0 ? `&attempt=${attempt}` : ''}`;
                if (!out.isConnected) {
                    if (news.text === '') {
                        fill(page.place, h('div', { class: 'card' }, stateBox('empty', 'The log is empty', 'The worker writes the first lines when it starts.')));
                        offset = null;
                        return;
                    }
                    fill(page.place, bar, cut, out);
                }
                // A part that begins later may begin within a line.
                add(fresh && !numbered ? news.text.slice(news.text.indexOf('\n') + 1) : news.text);
                if (fresh) {
                    mark();
                    const line = Number(query.get('line'));
                    if (line > 0)
                        light(line);
                }
            } catch (error) {
                if (isAbort(error) || out.isConnected)
                    return;
                const none = /** @type {any} */ (error).status === 404;
                fill(page.place, h('div', { class: 'card' }, none
                    ? stateBox('empty', 'No log yet', page.run && !kindOf(page.run).worker ? 'Its program has sent no log: POST /api/v1/runs/' + page.id + '/logs takes it.' : 'The first attempt has not started.') : failedBox(error, 'The log', () => page.again())));
            }
        },
    };
}
