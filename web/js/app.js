// The frame: routes behind '#', so that a link keeps its view and the server serves one page.
import { bones, failedBox, fill, icon, setText, toast } from './dom.js';
import { startLive } from './live.js';
import { loadMetrics, metrics } from './metrics.js';
import { startTheme } from './theme.js';
import { notFoundView } from './views/not-found.js';

/** @typedef {import('./types').ViewContext} ViewContext */
/** @typedef {import('./types').View} View */

/** @typedef {(context: ViewContext) => View} Open */

/** Each view comes when it is first opened, the others once the page is idle. By name; with "/": of one thing. @type {Record<string, () => Promise<Open>>} */
const views = {
    runs: () => import('./views/runs.js').then(m => m.runsView),
    'runs/': () => import('./views/run.js').then(m => m.runView),
    compare: () => import('./views/compare.js').then(m => m.compareView),
    sweeps: () => import('./views/sweeps.js').then(m => m.sweepsView),
    experiments: () => import('./views/experiments.js').then(m => m.experimentsView),
    'experiments/': () => import('./views/experiment.js').then(m => m.experimentView),
    'jobs/': () => import('./views/sweep.js').then(m => m.sweepView),
    models: () => import('./views/models.js').then(m => m.modelsView),
    devices: () => import('./views/devices.js').then(m => m.devicesView),
    submit: () => import('./views/submit.js').then(m => m.submitView),
    help: () => import('./views/help.js').then(m => m.helpView),
};
/** Views that say what metrics are. */
const naming = new Set(['runs', 'runs/', 'compare', 'jobs/', 'experiments/', 'help']);
/** How long they wait for the catalogue that says so. */
const PATIENCE_MS = 2000;
/** Those that have come. @type {Map<string, Open>} */
const ready = new Map([['', notFoundView]]);

/** What an address opens: the part of the menu, and the view. @type {Record<string, {nav: string, view: string, one?: string}>} */
const routes = {
    '': { nav: 'runs', view: 'runs' },
    runs: { nav: 'runs', view: 'runs', one: 'runs/' },
    submit: { nav: 'runs', view: 'submit' },
    jobs: { nav: 'sweeps', view: 'sweeps', one: 'jobs/' },
    sweeps: { nav: 'sweeps', view: 'sweeps' },
    experiments: { nav: 'sweeps', view: 'experiments', one: 'experiments/' },
    compare: { nav: 'runs', view: 'compare' },
    models: { nav: 'models', view: 'models' },
    devices: { nav: 'devices', view: 'devices' },
    help: { nav: 'help', view: 'help' },
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
    const route = routes[parts[0] ?? ''] ?? { nav: '', view: '' };
    const name = parts.length > 1 && route.one ? route.one : route.view;
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
            // Each change of the address is a message to another process, so unchanged addresses are not set again.
            if (shown === `${path}?${query}`)
                return;
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
    const open = ready.get(name);
    if (open && (metrics.length > 0 || !naming.has(name)))
        show(open, context);
    else
        Promise.all([open ?? fetchView(name), metricsFor(name, signal)]).then(([come]) => !signal.aborted && show(come, context), () => {
            if (signal.aborted)
                return;
            fill(main, failedBox(new Error('polyd does not respond. Is it still running?'), 'This view', () => location.reload()));
            addEventListener('polyd:back', reopen, { once: true, signal });
        });
    scrollTo(0, 0);
    // Who came by keyboard goes on from the top of the new view; the first view leaves the focus alone.
    if (!first)
        main.focus({ preventScroll: true });
    first = false;
}

function reopen() {
    shown = '';
    navigate();
}

/**
 * Waits for the catalogue of metrics, but not for long: the view does without, and is opened again once it has come, unless it
 * is in use by then.
 * @param {string} name
 * @param {AbortSignal} signal
 */
async function metricsFor(name, signal) {
    if (metrics.length > 0 || !naming.has(name))
        return;
    let late = false;
    let used = false;
    for (const kind of ['pointerdown', 'keydown', 'wheel', 'scroll'])
        addEventListener(kind, () => {
            used = late;
        }, { signal, capture: true, passive: true });
    const come = loadMetrics().then(() => {
        if (late && !used && !signal.aborted)
            reopen();
    }, () => addEventListener('polyd:back', () => used || reopen(), { once: true, signal }));
    await Promise.race([come, new Promise(done => setTimeout(done, PATIENCE_MS))]);
    late = true;
}

/** @param {string} name */
async function fetchView(name) {
    const open = await views[name]();
    ready.set(name, open);
    return open;
}

/** @param {Open} open @param {ViewContext} context */
function show(open, context) {
    try {
        const view = open(context);
        view.el.classList.add('view');
        fill(main, view.el);
    } catch (error) {
        console.error(error);
        fill(main, failedBox(error, 'This view', () => location.reload()));
    }
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
        toast('Link to this view copied.');
    } catch {
        toast('The browser does not allow copying. Copy the address of this page instead.', 'bad');
    }
});
startTheme(/** @type {HTMLElement} */ (document.getElementById('theme')));
const find = /** @type {HTMLElement} */ (document.getElementById('find'));
find.prepend(icon('search', 16));
find.addEventListener('click', openPalette);
// On a Mac Ctrl-K belongs to text fields.
const mac = /Mac|iP/.test(navigator.platform);
setText(/** @type {Element} */ (find.querySelector('kbd')), mac ? '⌘K' : 'Ctrl K');

async function openPalette() {
    try {
        const palette = await import('./palette.js');
        // Asked for twice while it was on its way, or after a question was.
        if (!document.querySelector('dialog[open]'))
            palette.openPalette();
    } catch {
        toast('polyd does not respond. Is it still running?', 'bad');
    }
}
addEventListener('hashchange', navigate);
addEventListener('keydown', event => {
    if ((mac ? event.metaKey : event.ctrlKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === 'k' && !document.querySelector('dialog[open]')) {
        event.preventDefault();
        openPalette();
        return;
    }
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
    setText(away, since ? `Not connected since ${since.toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', second: '2-digit' })}: these values are out of date. The page continues automatically when polyd responds.` : '');
});
// The other views, one after the other: then a click waits for nothing, also while polyd is away.
setTimeout(async () => {
    /** @type {any} */ (globalThis).early?.clear(); // unused answers are old
    for (const name of Object.keys(views))
        if (!ready.has(name))
            await fetchView(name).catch(() => {});
}, 1500);
