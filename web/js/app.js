// The frame: routes behind '#', so that a link keeps its view and the server serves one page.
import { bones, failedBox, fill, icon, setText, toast } from './dom.js';
import { startLive } from './live.js';
import { startTheme } from './theme.js';
import { compareView } from './views/compare.js';
import { devicesView } from './views/devices.js';
import { helpView } from './views/help.js';
import { modelsView } from './views/models.js';
import { notFoundView } from './views/not-found.js';
import { runView } from './views/run.js';
import { runsView } from './views/runs.js';
import { submitView } from './views/submit.js';
import { sweepView } from './views/sweep.js';
import { sweepsView } from './views/sweeps.js';

/** @typedef {import('./types').ViewContext} ViewContext */
/** @typedef {import('./types').View} View */

/** @type {Record<string, {nav: string, open: (context: ViewContext) => View}>} */
const routes = {
    '': { nav: 'runs', open: runsView },
    runs: { nav: 'runs', open: context => (context.params.length > 0 ? runView(context) : runsView(context)) },
    submit: { nav: 'runs', open: submitView },
    jobs: { nav: 'sweeps', open: context => (context.params.length > 0 ? sweepView(context) : sweepsView(context)) },
    sweeps: { nav: 'sweeps', open: sweepsView },
    compare: { nav: 'runs', open: compareView },
    models: { nav: 'models', open: modelsView },
    devices: { nav: 'devices', open: devicesView },
    help: { nav: 'help', open: helpView },
};

const main = /** @type {HTMLElement} */ (document.getElementById('main'));
const live = /** @type {HTMLElement} */ (document.getElementById('live'));
const announcer = /** @type {HTMLElement} */ (document.getElementById('announce'));

let leaving = new AbortController();
let shown = '';
let first = true;

function parse() {
    const text = location.hash.replace(/^#\/?/, '');
    const cut = text.indexOf('?');
    const path = cut < 0 ? text : text.slice(0, cut);
    return {
        parts: path.split('/').filter(Boolean).map(decode),
        path,
        query: new URLSearchParams(cut < 0 ? '' : text.slice(cut + 1)),
    };
}

/** @param {string} text */
function decode(text) {
    try {
        return decodeURIComponent(text);
    } catch {
        return text;
    }
}

function navigate() {
    const { parts, path, query } = parse();
    if (`${path}?${query}` === shown)
        return;
    shown = `${path}?${query}`;
    // A question that a view asked leaves with it.
    for (const dialog of document.querySelectorAll('dialog'))
        dialog.close();
    leaving.abort();
    leaving = new AbortController();
    const { signal } = leaving;
    const route = routes[parts[0] ?? ''] ?? { nav: '', open: notFoundView };
    for (const link of document.querySelectorAll('[data-nav]')) {
        if (/** @type {HTMLElement} */ (link).dataset.nav === route.nav)
            link.setAttribute('aria-current', 'page');
        else
            link.removeAttribute('aria-current');
    }
    /** @type {ViewContext} */
    const context = {
        params: parts.slice(1),
        query,
        signal,
        setQuery(values) {
            if (signal.aborted)
                return;
            for (const [key, value] of Object.entries(values)) {
                if (value === null || value === '')
                    query.delete(key);
                else
                    query.set(key, value);
            }
            const text = query.toString();
            shown = `${path}?${query}`;
            history.replaceState(null, '', `#/${path}${text ? `?${text}` : ''}`);
        },
        setTitle(title) {
            document.title = title ? `${title} · polyd` : 'polyd';
        },
        announce: text => setText(announcer, text),
    };
    context.setTitle('');
    fill(main, bones());
    try {
        const view = route.open(context);
        view.el.classList.add('view');
        fill(main, view.el);
    } catch (error) {
        console.error(error);
        fill(main, failedBox(error, 'This view', () => location.reload()));
    }
    scrollTo(0, 0);
    // Who came by keyboard goes on from the top of the new view; the first view leaves the focus alone.
    if (!first)
        main.focus({ preventScroll: true });
    first = false;
}

// The part behind '#' belongs to the views: the way past the frame must not change it.
document.querySelector('.skip')?.addEventListener('click', event => {
    event.preventDefault();
    main.focus();
});
const copyLink = /** @type {HTMLElement} */ (document.getElementById('copy-link'));
fill(copyLink, icon('link', 16));
copyLink.addEventListener('click', async () => {
    try {
        await navigator.clipboard.writeText(location.href);
        toast('Link copied: it opens this very view.');
    } catch {
        toast('The browser forbids copying. The address above is the link.', 'bad');
    }
});
startTheme(/** @type {HTMLElement} */ (document.getElementById('theme')));
addEventListener('hashchange', navigate);
addEventListener('keydown', event => {
    const typing = event.target instanceof HTMLElement && event.target.closest('input, textarea, select, dialog');
    if (typing || event.ctrlKey || event.metaKey || event.altKey)
        return;
    if (event.key === '/') {
        const search = document.querySelector('input[type="search"]');
        if (search instanceof HTMLInputElement) {
            event.preventDefault();
            search.focus();
        }
    } else if (event.key === '?') {
        location.hash = '#/help';
    } else if (event.key === 'j' || event.key === 'k') {
        // Into the table; inside of it the rows listen themselves.
        const row = document.querySelector('.grid-row .name[tabindex="0"]') ?? document.querySelector('.grid-row .name');
        if (row instanceof HTMLElement && !document.activeElement?.closest('.grid-row')) {
            event.preventDefault();
            row.focus();
        }
    } else if (event.key === 'c') {
        /** @type {HTMLElement | null} */ (document.querySelector('.tray:not([hidden]) a.primary'))?.click();
    }
});
navigate();
const away = /** @type {HTMLElement} */ (document.getElementById('away'));
startLive((state, word) => {
    live.dataset.state = state;
    setText(/** @type {Element} */ (live.querySelector('.live-text')), word);
}, since => {
    document.documentElement.toggleAttribute('data-away', since !== null);
    away.hidden = since === null;
    setText(away, since ? `Not connected since ${since.toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', second: '2-digit' })}: these figures are old. The page goes on by itself once polyd answers.` : '');
});
