// The palette of Ctrl-K: one field that leads to any page, run, sweep, experiment or model, and to what the current page can do.
// app.js fetches this module when it is first opened.
import { isAbort, listModels, listRuns } from './api.js';
import { fill, h, icon, message, setText } from './dom.js';
import { count } from './format.js';
import { listSweeps } from './results.js';
import { chip, standing } from './states.js';

/**
 * @typedef {object} Item
 * @property {string} group
 * @property {string} name
 * @property {string} [words] by which it is found, too
 * @property {Node | string} [note] shown at the end of its line
 * @property {string} [href] where it leads, else
 * @property {() => void} [act] what it does
 */

const MOST = 6; // of a group
const PAUSE = 120; // ms without another letter before the server is asked
const groups = ['Pages', 'Actions', 'Runs', 'Experiments', 'Sweeps', 'Models'];

/** @type {Item[]} */
const pages = [
    { name: 'Runs', words: 'table home', href: '#/' },
    { name: 'Write a job', words: 'submit new run', href: '#/submit' },
    { name: 'Sweeps', words: 'trials jobs', href: '#/sweeps' },
    { name: 'Experiments by name', words: 'templates papers E01', href: '#/experiments' },
    { name: 'Models', words: 'try load', href: '#/models' },
    { name: 'Devices', words: 'queue gpu cpu', href: '#/devices' },
    { name: 'Help', words: 'metrics states keys', href: '#/help' },
].map(page => ({ ...page, group: 'Pages' }));

/** What the page shows as buttons of its head, its tabs, and the link to it. @returns {Item[]} */
function actions() {
    const found = document.querySelectorAll('main .head :is(button, a.button), main [role="tab"], #copy-link');
    return [.../** @type {NodeListOf<HTMLElement>} */ (found)].filter(el => el.getClientRects().length > 0 && !el.matches(':disabled')).map(el => ({
        group: 'Actions', name: (el.getAttribute('aria-label') ?? el.textContent ?? '').trim(), note: el.role === 'tab' ? 'tab' : undefined, act: () => el.click(),
    })).filter(item => item.name !== '');
}

/** All words stand in it; what begins with the text comes first. @param {Item[]} items @param {string} text */
function matching(items, text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const begins = (/** @type {Item} */ item) => Number(item.name.toLowerCase().startsWith(words[0] ?? ''));
    return items.filter(item => words.every(word => `${item.name} ${item.words ?? ''}`.toLowerCase().includes(word))).sort((a, b) => begins(b) - begins(a));
}

/** @param {string} text @param {AbortSignal} signal @returns {Promise<Item[]>} */
async function answersTo(text, signal) {
    const number = /^#?(\d+)$/.exec(text)?.[1];
    // A number is first of all that of a run; "#12" is found in "#120" too, of which the oldest is the one meant.
    const [exact, named, sweeps] = await Promise.all([
        number ? listRuns({ text: `#${number}`, order: 'oldest', limit: 3 }, signal) : { runs: [] },
        listRuns({ text, limit: 20 }, signal),
        listSweeps({ name: text, limit: MOST }, signal),
    ]);
    const runs = new Map([...exact.runs, ...named.runs].map(run => [run.id, run]));
    const experiments = new Set(named.runs.map(run => run.experiment).filter(name => text !== '' && name.toLowerCase().includes(text.toLowerCase())));
    return [
        ...[...runs.values()].map(run => ({ group: 'Runs', name: `#${run.id} ${run.name}`, note: chip(standing(run)), href: `#/runs/${run.id}` })),
        ...[...experiments].map(name => ({ group: 'Experiments', name, href: `#/?experiment=${encodeURIComponent(name)}` })),
        ...sweeps.jobs.map(job => ({ group: 'Sweeps', name: `#${job.id} ${job.name}`, note: `${count(job.runs.total)} runs`, href: `#/jobs/${job.id}` })),
    ];
}

/** Models are few: all are asked for once. @param {AbortSignal} signal @returns {Promise<Item[]>} */
async function allModels(signal) {
    return (await listModels(signal)).map(model => ({
        group: 'Models', name: model.name, words: Object.keys(model.aliases).join(' '), note: model.description ?? '', href: `#/models/${encodeURIComponent(model.name)}`,
    }));
}

/** Opens it; it leaves by itself. */
export function openPalette() {
    const gone = new AbortController();
    let asking = new AbortController();
    /** @type {Item[]} */
    let items = [];
    /** @type {Item[]} */
    let answers = [];
    /** Models, once they have come. @type {Item[]} */
    let known = [];
    /** @type {Promise<Item[]> | null} */
    let models = null;
    let at = 0;
    let busy = false;
    let go = false; // Enter came before the answer
    let mine = actions();

    const field = h('input', { type: 'text', role: 'combobox', placeholder: 'Page, run, sweep, model, action', 'aria-label': 'Find a page, run, sweep, model or action',
        'aria-autocomplete': 'list', 'aria-controls': 'palette-list', 'aria-expanded': 'false', autocomplete: 'off', autocapitalize: 'off', spellcheck: 'false', enterkeyhint: 'go' });
    const list = h('div', { class: 'palette-list', role: 'listbox', id: 'palette-list', 'aria-label': 'Found' });
    const said = h('p', { class: 'muted small palette-said', role: 'status' });
    const dialog = h('dialog', { class: 'palette', 'aria-label': 'Find' }, h('div', { class: 'search' }, icon('search'), field,
        h('button', { type: 'button', class: 'quiet icon-button', 'aria-label': 'Close', on: { click: () => dialog.close() } }, icon('close', 13))), list, said);

    // A list drawn under a resting pointer receives a move event, which must not change the keyboard selection.
    /** Where the pointer was last seen. @type {string | null} */
    let seen = null;
    const moved = (/** @type {any} */ event) => {
        const before = seen;
        seen = `${event.clientX} ${event.clientY}`;
        return before !== null && before !== seen;
    };

    function draw() {
        const before = items[at];
        const all = [...matching([...pages, ...mine, ...known], field.value.trim()), ...answers];
        items = groups.flatMap(group => all.filter(item => item.group === group).slice(0, MOST));
        // What one has moved to stays chosen while answers come.
        at = Math.max(0, at === 0 ? 0 : items.findIndex(item => item.name === before?.name && item.group === before.group));
        fill(list, groups.filter(group => items.some(item => item.group === group)).map(group => h('div', { role: 'group', 'aria-label': group },
            h('div', { class: 'palette-group', 'aria-hidden': 'true' }, group),
            items.map((item, i) => item.group === group && h('div', { role: 'option', id: `palette-${i}`, class: 'palette-item', on: { click: () => take(item), pointermove: (/** @type {any} */ event) => moved(event) && i !== at && choose(i) } },
                h('span', { class: 'clip' }, item.name), item.note ? h('span', { class: 'muted small' }, item.note) : null)))));
        list.hidden = items.length === 0;
        list.setAttribute('aria-busy', String(busy));
        field.setAttribute('aria-expanded', String(items.length > 0));
        choose(at);
        setText(said, items.length > 0 ? '' : busy ? 'Looking …' : 'No match for this name or number.');
        if (go && !busy && items.length > 0)
            take(items[at]);
    }

    // The view may come, or change what it offers, while the palette is open.
    const watch = new MutationObserver(() => {
        const now = actions(), names = (/** @type {Item[]} */ list) => list.map(item => item.name).join('\n');
        if (names(now) === names(mine))
            return;
        mine = now;
        draw();
    });

    /** @param {number} which */
    function choose(which) {
        at = which;
        list.querySelectorAll('[role="option"]').forEach(el => el.setAttribute('aria-selected', String(el.id === `palette-${at}`)));
        const el = document.getElementById(`palette-${at}`);
        el?.scrollIntoView({ block: 'nearest' });
        if (el)
            field.setAttribute('aria-activedescendant', el.id);
        else
            field.removeAttribute('aria-activedescendant');
    }

    /** @param {Item} item */
    function take(item) {
        dialog.close();
        if (item.href)
            location.hash = item.href;
        else
            item.act?.();
    }

    async function ask() {
        asking.abort();
        asking = new AbortController();
        const { signal } = asking;
        const text = field.value.trim();
        busy = true;
        go = false;
        at = 0;
        answers = matching(answers, text);
        known = [];
        let trouble = '';
        const show = () => !signal.aborted && draw();
        models?.then(list => { known = list; show(); }, () => {});
        show();
        await new Promise(done => setTimeout(done, PAUSE));
        if (signal.aborted)
            return;
        try {
            models ??= allModels(gone.signal);
            [answers, known] = await Promise.all([answersTo(text, signal), models]);
        } catch (error) {
            if (isAbort(error))
                return;
            models = null; // asked for once more with the next letter
            trouble = message(error);
        }
        if (signal.aborted)
            return;
        busy = false;
        show();
        if (trouble)
            setText(said, trouble);
    }

    field.addEventListener('input', ask);
    dialog.addEventListener('keydown', event => {
        const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
        if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === 'k') {
            event.preventDefault();
            event.stopPropagation(); // the page would open it again
            dialog.close();
        } else if (by && items.length > 0) {
            event.preventDefault();
            choose((at + by + items.length) % items.length);
        } else if (event.key === 'Enter' && event.target === field) {
            event.preventDefault();
            // What the server has not yet answered to may have a better first line.
            if (items.length > 0 && (!busy || at > 0 || items[0].act || items[0].group === 'Pages'))
                take(items[at]);
            else
                go = busy;
        }
    });
    // Outside the box: the backdrop belongs to the dialog.
    dialog.addEventListener('click', event => event.target === dialog && dialog.close());
    dialog.addEventListener('close', () => {
        asking.abort();
        gone.abort();
        watch.disconnect();
        dialog.remove();
    });
    watch.observe(/** @type {HTMLElement} */ (document.getElementById('main')), { childList: true, subtree: true });
    document.body.append(dialog);
    dialog.showModal(); // gives the focus back when it closes
    field.focus();
    ask();
}
