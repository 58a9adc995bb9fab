// The run table: live, filtered by text, state and tag, sorted by any column, with columns of one's own choice. The
// address keeps all of it; the browser keeps the columns.
import { cancelRun, listRuns } from '../api.js';
import { isAway } from '../away.js';
import { toCsv } from '../chart/figure.js';
import { ask as askUser, bones, download, failedBox, fill, h, icon, message, setText, snippet, stateBox, toast } from '../dom.js';
import { curlOf, example } from '../example.js';
import { count } from '../format.js';
import { submitJob } from '../jobs.js';
import { onEvent, pacer } from '../live.js';
import { isActive } from '../states.js';
import { chooseColumns } from '../table/chooser.js';
import { candidates, columnOf, comparator, formatColumns, parseColumns, standardChoice, tableRows, wantedFields, wantedMetrics } from '../table/columns.js';
import { RunGrid } from '../table/grid.js';
import { MOST_RUNS, RunList } from '../table/list.js';
import { startSparks } from '../table/spark.js';

const MOST_COMPARED = 20;
const STORED = 'polyd.columns';
const ROWS = 'polyd.rows';

const filters = [
    { id: '', word: 'All' },
    { id: 'active', word: 'Active' },
    { id: 'queued', word: 'Queued' },
    { id: 'succeeded', word: 'Succeeded' },
    { id: 'failed', word: 'Failed' },
    { id: 'diverged', word: 'Diverged' },
    { id: 'cancelled', word: 'Cancelled' },
    { id: 'lost', word: 'Lost' },
    { id: 'archived', word: 'Archived' },
];

/** @param {string} key */
function stored(key) {
    try {
        return localStorage.getItem(key);
    } catch {
        return null; // storage may be forbidden; the link still keeps the columns
    }
}

/**
 * @param {string} key
 * @param {string | null} text
 */
function store(key, text) {
    try {
        if (text)
            localStorage.setItem(key, text);
        else
            localStorage.removeItem(key);
    } catch { /* as above */ }
}

/**
 * Reads or writes the state of this window.
 * @param {string} key
 * @param {string} [text]
 */
function session(key, text) {
    try {
        if (text !== undefined)
            sessionStorage.setItem(key, text);
        return sessionStorage.getItem(key);
    } catch {
        return null;
    }
}

/** On a phone the window scrolls, not the table. */
const narrowWindow = () => matchMedia('(max-width: 680px)').matches;

/**
 * @param {import('../types').ViewContext} context
 * @returns {import('../types').View}
 */
export function runsView(context) {
    const { signal, query } = context;
    context.setTitle('Runs');
    const ask = {
        text: query.get('q') ?? '', state: query.get('state') ?? '', tag: query.get('tag') ?? '',
        experiment: query.get('experiment') ?? '', job: query.get('job') ?? '',
    };
    /** Of one's own, or null: then the table shows what tells its runs apart. */
    let own = parseColumns(query.get('cols') ?? stored(STORED));
    let chosen = own ?? standardChoice();
    let roomy = (query.get('rows') ?? stored(ROWS)) === '40';
    let sort = parseSort(query.get('sort'));

    const search = h('input', {
        type: 'search', placeholder: 'Search name, tag, setting, #number', 'aria-label': 'Search runs', value: ask.text, autocomplete: 'off', spellcheck: 'false',
    });
    const tags = h('datalist', { id: 'tags' });
    const tag = h('input', { type: 'text', class: 'tag-input', placeholder: 'Tag', 'aria-label': 'Filter by tag: key, or key=value', value: ask.tag, list: 'tags', autocomplete: 'off', spellcheck: 'false' });
    const buttons = filters.map(filter => h('button', {
        type: 'button', 'aria-pressed': String(filter.id === ask.state), on: { click: () => choose(filter.id) },
    }, filter.word));
    const summary = h('p', { class: 'sub', role: 'status' });
    const held = h('div', { class: 'row', hidden: true });
    const columns = h('button', { type: 'button', on: { click: () => chooseColumns(chosen, setColumns, () => standardChoice([...list.runs.values()])) } }, icon('columns'), 'Columns');
    const density = h('button', { type: 'button', class: 'icon-button', 'aria-label': 'High rows', title: 'High or low rows', on: { click: () => setRows(!roomy) } }, icon('rows'));
    const place = h('div', null, h('div', { class: 'card' }, bones(9)));
    const compare = h('a', { class: 'button primary', href: '#/compare' }, icon('compare'), 'Compare');
    const picked = h('span');
    const cancel = h('button', { type: 'button', hidden: true, on: { click: () => cancelPicked() } }, 'Cancel');
    const tray = h('div', { class: 'tray', role: 'region', 'aria-label': 'Selected runs', hidden: true }, picked,
        h('button', { type: 'button', class: 'quiet icon-button', 'aria-label': 'Clear the selection', title: 'Clear the selection', on: { click: () => grid.clear() } }, icon('close')),
        h('button', { type: 'button', on: { click: () => download(new Blob([toCsv(tableRows(pickedRuns(), chosen))], { type: 'text/csv' }), 'runs.csv') } }, 'CSV'), cancel, compare);
    const states = h('div', { class: 'segments', role: 'group', 'aria-label': 'Filter by state' }, buttons);
    const filtersOn = h('span');
    const openFilters = h('button', { type: 'button', class: 'open-filters', 'aria-haspopup': 'dialog', on: { click: () => sheet.showModal() } }, icon('filter'), filtersOn);
    const filterRow = h('div', { class: 'row filters' }, h('div', { class: 'search' }, icon('search'), search), openFilters, tags);
    const inSheet = h('div', { class: 'stack' });
    // On a phone the filters wait in a sheet at the lower edge, and the first run stands right below the search.
    const sheet = h('dialog', { class: 'sheet', 'aria-labelledby': 'sheet-title' }, h('form', { method: 'dialog', class: 'stack' }, h('div', { class: 'row' }, h('h2', { id: 'sheet-title', class: 'grow' }, 'Filters'),
        h('button', { class: 'primary' }, 'Show runs')), inSheet));
    sheet.addEventListener('click', event => {
        if (event.target === sheet)
            sheet.close();
    });
    const el = h('div', { class: 'wide-view runs-view' },
        h('div', { class: 'head' }, h('div', null, h('h1', null, 'Runs'), summary), h('div', { class: 'row' }, density, columns,
            h('a', { class: 'button', href: '#/submit' }, icon('plus'), 'New job'))),
        filterRow, held, place, tray, sheet);
    const phone = matchMedia('(max-width: 680px)');
    const lay = () => {
        if (phone.matches) {
            fill(inSheet, h('label', { class: 'field' }, h('span', null, 'Tag'), tag), h('div', { class: 'field' }, h('span', null, 'State'), states));
        } else {
            sheet.close();
            filterRow.append(tag, states);
        }
    };
    phone.addEventListener('change', lay, { signal });
    lay();

    const grid = new RunGrid(chosen, {
        signal,
        sort: order,
        changed(next) {
            own = chosen = next;
            keep();
        },
        selected(ids) {
            context.setQuery({ sel: [...ids].slice(0, 200).join(',') });
            showTray(ids);
        },
        tag(text) {
            tag.value = text;
            setTag();
        },
    });
    const list = new RunList(draw, signal);
    startSparks(signal, () => grid.rows.paint(true));

    /** @param {string | null} text */
    function parseSort(text) {
        const down = text?.startsWith('-') ?? false;
        const column = columnOf((text ?? '').replace(/^-/, ''));
        return column ? { column, down } : null;
    }

    /** @param {string} id a header was pressed: up, down, and back to the newest first */
    function order(id) {
        const column = columnOf(id);
        if (!column)
            return;
        const first = Boolean(column.down);
        if (sort?.column.id !== id)
            sort = { column, down: first };
        else
            sort = sort.down === first ? { column, down: !first } : null;
        context.setQuery({ sort: sort ? `${sort.down ? '-' : ''}${sort.column.id}` : null });
        context.announce(sort ? `Sorted by ${sort.column.title}, ${sort.down ? 'descending' : 'ascending'}` : 'Newest first');
        draw();
    }

    function keep() {
        const text = own ? formatColumns(own) : '';
        context.setQuery({ cols: text });
        store(STORED, text);
    }

    /** @param {boolean} high */
    function setRows(high) {
        roomy = high;
        grid.el.toggleAttribute('data-roomy', roomy);
        density.setAttribute('aria-pressed', String(roomy));
        context.setQuery({ rows: roomy ? '40' : null });
        store(ROWS, roomy ? '40' : null);
        grid.rows.paint(true);
    }

    /** @param {import('../table/columns.js').Chosen[] | null} next */
    function setColumns(next) {
        const before = JSON.stringify([wantedMetrics(chosen), wantedFields(chosen)]);
        own = next;
        chosen = own ?? standardChoice([...list.runs.values()]);
        keep();
        grid.setColumns(chosen);
        if (JSON.stringify([wantedMetrics(chosen), wantedFields(chosen)]) !== before)
            list.ask(question(), true, own ? undefined : narrow);
        draw();
    }

    /**
     * Without columns of one's own the first page tells which settings differ; only those are asked for from then on.
     * @param {import('../types').Run[]} runs
     */
    function narrow(runs) {
        chosen = standardChoice(runs);
        settled = new Set(runs.map(run => run.id));
        grid.setColumns(chosen);
        return { ...ask, metrics: candidates.metrics, fields: wantedFields(chosen) };
    }

    /** Runs that the choice of settings was made by. */
    let settled = new Set();
    /** What comes later may have results of another kind; of a short table, settings that differ. @param {import('../types').Run[]} runs */
    function followRuns(runs) {
        if (own || !list.complete)
            return;
        const next = standardChoice(runs, wantedFields(chosen));
        if (formatColumns(next) !== formatColumns(chosen)) {
            chosen = next;
            grid.setColumns(chosen);
        }
        if (runs.length <= 100 && runs.some(run => !settled.has(run.id))) {
            settled = new Set(runs.map(run => run.id));
            list.ask(question(), true, narrow);
        }
    }

    const question = () => (own ? { ...ask, metrics: wantedMetrics(own), fields: wantedFields(own) } : { ...ask, ...candidates });

    function restart() {
        fill(place, h('div', { class: 'card' }, bones(9)));
        grid.clear();
        drawHeld();
        tellFilters();
        list.ask(question(), false, own ? undefined : narrow);
    }

    /** @param {string} id */
    function choose(id) {
        ask.state = id;
        buttons.forEach((button, i) => button.setAttribute('aria-pressed', String(filters[i].id === id)));
        context.setQuery({ state: id });
        restart();
    }

    function setTag() {
        if (tag.value.trim() === ask.tag)
            return;
        ask.tag = tag.value.trim();
        context.setQuery({ tag: ask.tag });
        restart();
    }

    let typing = 0;
    const later = (/** @type {() => void} */ then) => () => {
        clearTimeout(typing);
        typing = setTimeout(then, 180);
    };
    search.addEventListener('input', later(() => {
        if (search.value.trim() === ask.text)
            return;
        ask.text = search.value.trim();
        context.setQuery({ q: ask.text });
        restart();
    }));
    tag.addEventListener('input', later(setTag));
    tag.addEventListener('change', setTag);
    signal.addEventListener('abort', () => clearTimeout(typing));

    /** The button of the sheet says what is hidden in it. */
    function tellFilters() {
        const on = [filters.find(filter => filter.id === ask.state && ask.state)?.word, ask.tag].filter(Boolean);
        setText(filtersOn, on.length > 0 ? on.join(', ') : 'Filters');
        openFilters.toggleAttribute('data-on', on.length > 0);
    }

    /** Filters that came by a link have no field of their own: they are shown, and taken away, here. */
    function drawHeld() {
        const words = /** @type {const} */ ([['experiment', `Experiment ${ask.experiment}`], ['job', `Job #${ask.job}`]]);
        const on = words.filter(([key]) => ask[key]);
        held.hidden = on.length === 0;
        fill(held, on.map(([key, word]) => h('button', { type: 'button', class: 'held', 'aria-label': `${word}: remove this filter`, on: { click: () => {
            ask[key] = '';
            context.setQuery({ [key]: null });
            restart();
        } } }, word, icon('close', 11))));
    }

    function showAll() {
        search.value = tag.value = '';
        Object.assign(ask, { text: '', tag: '', experiment: '', job: '' });
        context.setQuery({ q: null, tag: null, experiment: null, job: null });
        choose('');
    }

    let known = '';
    function drawTags() {
        const all = new Set();
        for (const run of list.runs.values())
            for (const [key, value] of Object.entries(run.tags))
                all.add(`${key}=${value}`);
        const sorted = [...all].sort().slice(0, 200);
        if (sorted.join() !== known) {
            known = sorted.join();
            fill(tags, sorted.map(text => h('option', { value: text })));
        }
    }

    function draw() {
        if (signal.aborted)
            return;
        if (list.failure && list.runs.size === 0) {
            fill(place, failedBox(list.failure, 'The runs', () => restart()));
            place.firstElementChild?.classList.add('card');
            setText(summary, '');
            return;
        }
        if (!list.ready)
            return;
        const runs = [...list.runs.values()];
        const active = runs.filter(isActive).length;
        const words = [`${count(runs.length)}${list.complete ? '' : '+'} run${runs.length === 1 && list.complete ? '' : 's'}`, active ? `${active} active` : '',
            runs.length >= MOST_RUNS && !list.complete ? `the newest ${count(MOST_RUNS)}; use a filter to find older ones` : list.complete ? '' : 'loading the rest',
            list.failure ? 'the last refresh failed; these values are older' : ''];
        setText(summary, runs.length === 0 ? '' : words.filter(Boolean).join(' · '));
        if (runs.length === 0) {
            const filtered = Object.values(ask).some(Boolean);
            fill(place, h('div', { class: 'card' }, filtered
                ? stateBox('empty', 'No run matches', 'Try another text, tag or state.', h('button', { type: 'button', on: { click: showAll } }, 'Show all runs'))
                : firstMinute()));
            return;
        }
        if (grid.el.parentNode !== place)
            fill(place, grid.el);
        runs.sort(sort ? comparator(sort.column, sort.down) : (a, b) => Number(b.id) - Number(a.id));
        followRuns(runs);
        grid.setSort(sort?.column.id ?? '', sort?.down ?? true);
        grid.show(runs, list.complete);
        drawTags();
        showTray(grid.selected);
        if (back !== null && (runs.length * grid.rows.height >= back + grid.el.clientHeight || list.complete)) {
            const to = back;
            back = null;
            if (narrowWindow())
                scrollTo(0, to);
            else
                grid.el.scrollTop = to;
            grid.rows.paint();
        }
    }

    /** What a stranger sees first: one click that does something, and what it does. */
    function firstMinute() {
        const go = h('button', { type: 'button', class: 'primary' }, icon('running'), 'Run this example');
        go.addEventListener('click', async () => {
            go.disabled = true;
            try {
                const job = await submitJob(JSON.stringify(example), `first-${Date.now()}`);
                location.hash = `#/runs/${await firstRun(job.id)}?guide=1`;
            } catch (error) {
                toast(message(error), 'bad');
                go.disabled = false;
            }
        });
        return stateBox('empty', 'No runs yet', 'The example trains a small vision transformer with cubic attention, x³ in place of softmax, on digits that polyd generates. It takes about half a minute on one processor, and its model then recognises digits you draw.',
            h('div', { class: 'row' }, go, h('a', { class: 'button', href: '#/submit' }, icon('plus'), 'Write a job')),
            h('details', { class: 'small by-hand' }, h('summary', null, 'The same from a shell'), snippet(curlOf(example))));
    }

    /** @param {string} job */
    async function firstRun(job) {
        const { runs } = await listRuns({ job, limit: 1 }, signal);
        return runs[0].id;
    }

    /** Those selected, in the order of the table. */
    const pickedRuns = () => grid.runs.filter(run => grid.selected.has(run.id));

    async function cancelPicked() {
        const open = pickedRuns().filter(run => isActive(run) && run.state !== 'cancelling');
        const sure = await askUser(`Cancel ${count(open.length)} run${open.length === 1 ? '' : 's'}?`, [h('p', { class: 'muted' }, 'Running ones stop at their next step and their checkpoints are retained; waiting ones are removed from the queue.')], 'Cancel the runs', { danger: true, keep: 'Keep running' });
        if (!sure)
            return;
        const failed = (await Promise.allSettled(open.map(run => cancelRun(run.id)))).filter(done => done.status === 'rejected');
        if (failed.length > 0)
            toast(`${count(failed.length)} of ${count(open.length)} were not cancelled: ${message(/** @type {PromiseRejectedResult} */ (failed[0]).reason)}`, 'bad');
        list.refresh();
    }

    /** @param {Set<string>} ids */
    function showTray(ids) {
        tray.hidden = ids.size === 0;
        cancel.hidden = !pickedRuns().some(run => isActive(run) && run.state !== 'cancelling');
        setText(picked, `${count(ids.size)} selected${ids.size > MOST_COMPARED ? `, at most ${MOST_COMPARED} are compared` : ''}`);
        const first = [...ids].slice(0, MOST_COMPARED);
        compare.href = `#/compare?runs=${first.join(',')}`;
        setText(/** @type {Node} */ (compare.lastChild), ids.size === 1 ? 'Open' : 'Compare');
        if (ids.size === 1)
            compare.href = `#/runs/${first[0]}`;
    }

    const nudge = pacer(() => list.refresh(), { least: 700, most: 2500, wanted: () => Boolean(list.failure) || [...list.runs.values()].some(isActive), signal });
    const reload = pacer(() => list.ask(list.question ?? question(), true), { least: 500, most: Infinity, wanted: () => false, signal, after: 'polyd:missed' });
    onEvent(event => {
        if (isAway(event.kind)) // of any age: the newest page would not tell
            reload();
        else if (event.runId || event.jobId)
            nudge();
    }, signal);
    drawHeld();
    tellFilters();
    grid.el.toggleAttribute('data-roomy', roomy);
    density.setAttribute('aria-pressed', String(roomy));
    // The table comes back as it was left: the selection from the link, the scroll position from this window.
    const picks = (query.get('sel') ?? '').split(',').filter(id => /^\d+$/.test(id));
    const place_ = () => `polyd.scroll ${location.hash.replace(/[?&]sel=[^&]*/, '')}`;
    const placeKey = { now: place_() };
    /** @type {number | null} */
    let back = Number(session(placeKey.now)) || null;
    const remember = () => {
        if (!signal.aborted && grid.el.isConnected && back === null)
            session((placeKey.now = place_()), String(Math.round(Math.max(grid.el.scrollTop, narrowWindow() ? scrollY : 0))));
    };
    grid.el.addEventListener('scroll', remember, { passive: true, signal });
    addEventListener('scroll', remember, { passive: true, signal });
    if (picks.length > 0)
        grid.select(picks);
    list.ask(question(), false, own ? undefined : narrow);
    return { el };
}
