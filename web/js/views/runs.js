// The run table: live, filtered by text, state and tag, sorted by any column, with columns of one's own choice. The
// address keeps all of it; the browser keeps the columns.
import { bones, failedBox, fill, h, icon, setText, snippet, stateBox } from '../dom.js';
import { count } from '../format.js';
import { onEvent, pacer } from '../live.js';
import { isActive } from '../states.js';
import { chooseColumns } from '../table/chooser.js';
import { columnOf, comparator, formatColumns, parseColumns, wantedFields, wantedMetrics } from '../table/columns.js';
import { RunGrid } from '../table/grid.js';
import { MOST_RUNS, RunList } from '../table/list.js';

const MOST_COMPARED = 20;
const STORED = 'polyd.columns';

const filters = [
    { id: '', word: 'All' },
    { id: 'active', word: 'Active' },
    { id: 'queued', word: 'Queued' },
    { id: 'succeeded', word: 'Succeeded' },
    { id: 'failed', word: 'Failed' },
    { id: 'diverged', word: 'Diverged' },
    { id: 'cancelled', word: 'Cancelled' },
];

export const submitExample = () => `curl ${location.origin}/api/v1/jobs -H 'Content-Type: application/json' -d '{
  "name": "digits cubic",
  "model": {"preset": "vit_micro", "patch": 7},
  "attention": {"activation": "poly", "degree": 3, "scale": "learned"},
  "data": {"dataset": "digits_gen", "augment": {"crop": "pad_crop", "pad_crop": {"shift": 2}}},
  "train": {"epochs": 24, "init": "trunc_xavier", "optimizer": {"lr": 0.003}},
  "register": "digits-cubic"
}'`;

function stored() {
    try {
        return localStorage.getItem(STORED);
    } catch {
        return null; // storage may be forbidden; the link still keeps the columns
    }
}

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
    let chosen = parseColumns(query.get('cols') ?? stored());
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
    const columns = h('button', { type: 'button', on: { click: () => chooseColumns(chosen, setColumns) } }, icon('columns'), 'Columns');
    const place = h('div', null, h('div', { class: 'card' }, bones(9)));
    const compare = h('a', { class: 'button primary', href: '#/compare' }, icon('compare'), 'Compare');
    const picked = h('span');
    const tray = h('div', { class: 'tray', role: 'region', 'aria-label': 'Selected runs', hidden: true }, picked,
        h('button', { type: 'button', class: 'quiet', on: { click: () => grid.clear() } }, 'Clear'), compare);
    const el = h('div', { class: 'wide-view runs-view' },
        h('div', { class: 'head' }, h('div', null, h('h1', null, 'Runs'), summary), h('div', { class: 'row' }, columns,
            h('a', { class: 'button', href: '#/submit' }, icon('plus'), 'New job'))),
        h('div', { class: 'row filters' }, h('div', { class: 'search' }, icon('search'), search), tag, tags,
            h('div', { class: 'segments', role: 'group', 'aria-label': 'Filter by state' }, buttons)),
        held, place, tray);

    const grid = new RunGrid(chosen, {
        signal,
        sort: order,
        changed(next) {
            chosen = next;
            keep();
        },
        selected: showTray,
        tag(text) {
            tag.value = text;
            setTag();
        },
    });
    const list = new RunList(draw, signal);

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
        const text = formatColumns(chosen);
        context.setQuery({ cols: text });
        try {
            if (text)
                localStorage.setItem(STORED, text);
            else
                localStorage.removeItem(STORED);
        } catch { /* as above */ }
    }

    /** @param {import('../table/columns.js').Chosen[]} next */
    function setColumns(next) {
        const before = JSON.stringify([wantedMetrics(chosen), wantedFields(chosen)]);
        chosen = next;
        keep();
        grid.setColumns(chosen);
        if (JSON.stringify([wantedMetrics(chosen), wantedFields(chosen)]) !== before)
            list.ask(question(), true);
        draw();
    }

    const question = () => ({ ...ask, metrics: wantedMetrics(chosen), fields: wantedFields(chosen) });

    function restart() {
        fill(place, h('div', { class: 'card' }, bones(9)));
        grid.clear();
        drawHeld();
        list.ask(question());
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
            runs.length >= MOST_RUNS && !list.complete ? `the newest ${count(MOST_RUNS)}: a filter finds older ones` : list.complete ? '' : 'loading the rest',
            list.failure ? 'the last refresh failed; these are older figures' : ''];
        setText(summary, runs.length === 0 ? '' : words.filter(Boolean).join(' · '));
        if (runs.length === 0) {
            const filtered = Object.values(ask).some(Boolean);
            fill(place, h('div', { class: 'card' }, filtered
                ? stateBox('empty', 'No run matches', 'Try another word, tag or state.', h('button', { type: 'button', on: { click: showAll } }, 'Show all runs'))
                : stateBox('empty', 'No runs yet', 'Submit a job and its runs appear here, live. This one trains a small vision transformer with cubic attention on digits that polyd draws itself:',
                    snippet(submitExample()), h('a', { class: 'button', href: '#/submit' }, icon('plus'), 'Write a job here'))));
            return;
        }
        if (grid.el.parentNode !== place)
            fill(place, grid.el);
        runs.sort(sort ? comparator(sort.column, sort.down) : (a, b) => Number(b.id) - Number(a.id));
        grid.setSort(sort?.column.id ?? '', sort?.down ?? true);
        grid.show(runs, list.complete);
        drawTags();
        showTray(grid.selected);
    }

    /** @param {Set<string>} ids */
    function showTray(ids) {
        tray.hidden = ids.size === 0;
        setText(picked, `${count(ids.size)} selected${ids.size > MOST_COMPARED ? `, at most ${MOST_COMPARED} are compared` : ''}`);
        const first = [...ids].slice(0, MOST_COMPARED);
        compare.href = `#/compare?runs=${first.join(',')}`;
        setText(/** @type {Node} */ (compare.lastChild), ids.size === 1 ? 'Open' : 'Compare');
        if (ids.size === 1)
            compare.href = `#/runs/${first[0]}`;
    }

    const nudge = pacer(() => list.refresh(), { least: 700, most: 2500, wanted: () => Boolean(list.failure) || [...list.runs.values()].some(isActive), signal });
    onEvent(event => {
        if (event.runId || event.jobId)
            nudge();
    }, signal);
    drawHeld();
    list.ask(question());
    return { el };
}
