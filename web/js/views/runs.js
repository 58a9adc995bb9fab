// The run table: live, filtered by text and state, paged by key as one scrolls, and drawn only where one looks, so
// that ten thousand rows cost no more than thirty.
import { isAbort, listRuns } from '../api.js';
import { bones, failedBox, fill, h, icon, setText, snippet, stateBox } from '../dom.js';
import { ago, between, duration, moment, number, percent, toNumber } from '../format.js';
import { onEvent, pacer } from '../live.js';
import { chip, isActive, meter, setMeter, standing, toneOf } from '../states.js';

/** @typedef {import('../types').Run} Run */

const PAGE = 100;

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

/** @param {Run} run */
const share = run => (run.step !== null && run.totalSteps ? run.step / run.totalSteps : null);

/** @param {Run} run */
function score(run) {
    const accuracy = run.latest['acc/val'] ?? run.latest['acc/train'];
    if (accuracy !== undefined)
        return { label: 'Accuracy', text: percent(accuracy) };
    const perplexity = run.latest['ppl/val'] ?? run.latest['ppl/train'];
    return perplexity !== undefined ? { label: 'Perplexity', text: number(perplexity) } : { label: '', text: '–' };
}

/** @param {Run} run */
const loss = run => run.latest['loss/val'] ?? run.latest['loss/train'] ?? null;

/**
 * @param {import('../types').ViewContext} context
 * @returns {import('../types').View}
 */
export function runsView(context) {
    const { signal } = context;
    context.setTitle('Runs');
    let text = context.query.get('q') ?? '';
    let state = context.query.get('state') ?? '';
    /** @type {Run[]} */
    let runs = [];
    /** @type {string | null} */
    let next = null;
    let loading = false;
    let failure = /** @type {unknown} */ (null);
    let ready = false;
    let generation = 0; // answers to an older question are dropped

    const search = h('input', {
        type: 'search', placeholder: 'Search by name', 'aria-label': 'Search runs by name', value: text, autocomplete: 'off', spellcheck: 'false',
    });
    const buttons = filters.map(filter => h('button', {
        type: 'button', 'aria-pressed': String(filter.id === state), on: { click: () => choose(filter.id) },
    }, filter.word));
    const summary = h('p', { class: 'sub' });
    const body = h('tbody');
    const table = h('table', { class: 'table runs', 'aria-label': 'Runs' },
        h('thead', null, h('tr', null,
            h('th', { class: 'c-state', scope: 'col' }, 'State'),
            h('th', { scope: 'col' }, 'Run'),
            h('th', { class: 'c-progress', scope: 'col' }, 'Progress'),
            h('th', { class: 'c-num num', scope: 'col' }, 'Loss'),
            h('th', { class: 'c-num num', scope: 'col' }, 'Score'),
            h('th', { class: 'c-time num', scope: 'col' }, 'Time'),
            h('th', { class: 'c-age num', scope: 'col' }, 'Created'))),
        body);
    const end = h('div', { class: 'list-end', role: 'status' });
    const place = h('div', { class: 'card' }, bones(7));
    const el = h('div', null,
        h('div', { class: 'head' }, h('div', null, h('h1', null, 'Runs'), summary)),
        h('div', { class: 'row' }, h('div', { class: 'search' }, icon('search'), search),
            h('div', { class: 'segments', role: 'group', 'aria-label': 'Filter by state' }, buttons)),
        place);

    /** @param {string} id */
    function choose(id) {
        state = id;
        buttons.forEach((button, i) => button.setAttribute('aria-pressed', String(filters[i].id === id)));
        context.setQuery({ state });
        restart();
    }

    let typing = 0;
    search.addEventListener('input', () => {
        clearTimeout(typing);
        typing = setTimeout(() => {
            text = search.value.trim();
            context.setQuery({ q: text });
            restart();
        }, 180);
    });

    function restart() {
        generation++;
        runs = [];
        next = null;
        ready = false;
        loading = false;
        fill(place, bones(7));
        load();
    }

    async function load() {
        if (loading)
            return;
        loading = true;
        const mine = generation;
        try {
            const page = await listRuns({ q: text, state, cursor: next, limit: PAGE }, signal);
            if (mine !== generation)
                return;
            runs = runs.concat(page.runs.filter(run => !runs.some(other => other.id === run.id)));
            next = page.next;
            failure = null;
            ready = true;
        } catch (error) {
            if (isAbort(error) || mine !== generation)
                return;
            failure = error;
        } finally {
            if (mine === generation)
                loading = false;
        }
        draw();
    }

    // The first page again, merged by id: new runs come on top, changed ones change in place.
    async function refresh() {
        if (loading || (!ready && !failure))
            return;
        const mine = generation;
        try {
            const page = await listRuns({ q: text, state, cursor: null, limit: PAGE }, signal);
            if (mine !== generation)
                return;
            const fresh = new Map(page.runs.map(run => [run.id, run]));
            const oldest = page.runs.length > 0 && page.next ? Number(page.runs[page.runs.length - 1].id) : -Infinity;
            // A run on the page's stretch that the answer lacks no longer matches the filter.
            const rest = runs.filter(run => !fresh.has(run.id) && Number(run.id) < oldest);
            if (!ready || runs.length <= PAGE)
                next = page.next;
            runs = page.runs.concat(rest);
            failure = null;
            ready = true;
        } catch (error) {
            if (isAbort(error) || mine !== generation)
                return;
            failure = error;
        }
        draw();
    }

    function draw() {
        if (failure && runs.length === 0) {
            fill(place, failedBox(failure, 'The runs', () => restart()));
            setText(summary, '');
            return;
        }
        if (!ready)
            return;
        const active = runs.filter(isActive).length;
        setText(summary, runs.length === 0 ? '' : failure ? 'The last refresh failed; these are older figures.'
            : `${runs.length}${next ? '+' : ''} run${runs.length === 1 && !next ? '' : 's'}${active ? `, ${active} active` : ''}`);
        if (runs.length === 0) {
            fill(place, text || state
                ? stateBox('empty', 'No run matches', 'Try another word or another state.',
                    h('button', { type: 'button', on: { click: () => { search.value = ''; text = ''; context.setQuery({ q: null }); choose(''); } } }, 'Show all runs'))
                : stateBox('empty', 'No runs yet', 'Submit a job and its runs appear here, live. This one trains a small vision transformer with cubic attention on digits that polyd draws itself:',
                    snippet(submitExample())));
            return;
        }
        if (table.parentNode !== place)
            fill(place, table, end);
        table.setAttribute('aria-rowcount', next ? '-1' : String(runs.length + 1));
        setText(end, next ? 'More runs below' : runs.length > PAGE ? 'That is all' : '');
        end.hidden = !end.textContent;
        paint();
    }

    // ---- virtual rows: only what is near the window exists ----
    /** @type {Map<string, ReturnType<typeof row>>} */
    const rows = new Map();
    const above = spacer();
    const below = spacer();
    let height = 58;

    function spacer() {
        const cell = h('td', { colspan: 7 });
        return { row: h('tr', { class: 'spacer', 'aria-hidden': 'true' }, cell), cell };
    }

    function paint() {
        const top = table.getBoundingClientRect().top + (table.tHead?.offsetHeight ?? 0);
        const from = Math.max(0, Math.floor(-top / height) - 12);
        const to = Math.min(runs.length, Math.ceil((innerHeight - top) / height) + 12);
        const wanted = new Set();
        const order = [];
        for (let i = from; i < to; i++) {
            const run = runs[i];
            wanted.add(run.id);
            let item = rows.get(run.id);
            if (!item) {
                item = row(run);
                rows.set(run.id, item);
            }
            item.update(run, i);
            order.push(item.el);
        }
        for (const [id, item] of rows) {
            // The focused row stays alive, or the keyboard would lose its place.
            if (!wanted.has(id) && !item.el.contains(document.activeElement)) {
                item.el.remove();
                rows.delete(id);
            }
        }
        above.cell.style.height = `${from * height}px`;
        below.cell.style.height = `${(runs.length - to) * height}px`;
        place_(order);
        const first = order[0];
        if (first && first.offsetHeight > 0 && Math.abs(first.offsetHeight - height) > 1) {
            height = first.offsetHeight;
            paint();
        }
        if (next && !loading && !failure && to > runs.length - 20)
            load();
    }

    /**
     * Puts the rows in order without taking out those that already stand right: the focus stays.
     * @param {HTMLElement[]} order
     */
    function place_(order) {
        const all = [above.row, ...order, below.row];
        for (const child of [...body.children])
            if (!all.includes(/** @type {any} */ (child)))
                child.remove();
        all.forEach((el, i) => {
            if (body.children[i] !== el)
                body.insertBefore(el, body.children[i] ?? null);
        });
    }

    /** @param {Run} run */
    function row(run) {
        const link = h('a', { class: 'name', href: `#/runs/${encodeURIComponent(run.id)}` });
        const under = h('span', { class: 'under' });
        const stateCell = h('td', { class: 'k-state' });
        const bar = meter(null, `Progress of run ${run.id}`);
        const steps = h('span');
        const part = h('span');
        const lossCell = h('td', { class: 'num k-loss', data: { label: 'Loss' } });
        const scoreCell = h('td', { class: 'num k-score' });
        const time = h('td', { class: 'num k-time' });
        const age = h('td', { class: 'num muted k-age' });
        const tr = h('tr', { class: 'run' }, stateCell, h('td', { class: 'k-name' }, link, under),
            h('td', { class: 'k-progress' }, h('span', { class: 'pair' }, steps, part), bar), lossCell, scoreCell, time, age);
        tr.addEventListener('click', event => {
            if (!(event.target instanceof Element && event.target.closest('a')) && !getSelection()?.toString())
                link.click();
        });
        let shownState = '';
        return {
            el: tr,
            /**
             * @param {Run} now
             * @param {number} index
             */
            update(now, index) {
                tr.setAttribute('aria-rowindex', String(index + 2));
                const standingNow = standing(now);
                if (standingNow !== shownState) {
                    shownState = standingNow;
                    fill(stateCell, chip(standingNow, now.reason || undefined));
                }
                setText(link, now.name);
                link.title = now.name;
                setText(under, `#${now.id} · ${now.experiment}${now.state === 'queued' && now.reason ? ` · ${now.reason}` : ''}`);
                const done = share(now);
                setMeter(bar, done);
                bar.dataset.tone = now.state === 'ended' ? toneOf(standingNow) : now.state === 'running' ? 'run' : 'idle';
                setText(steps, now.step === null || !now.started ? (now.totalSteps ? `0 / ${number(now.totalSteps)}` : '–')
                    : `${number(now.step)}${now.totalSteps ? ` / ${number(now.totalSteps)}` : ''}`);
                setText(part, done === null ? '' : `${Math.floor(done * 100)} %`);
                setText(lossCell, number(toNumber(loss(now))));
                const points = score(now);
                setText(scoreCell, points.text);
                scoreCell.dataset.label = points.label;
                scoreCell.title = points.label;
                setText(time, now.started ? duration(between(now.started, now.ended)) : '–');
                setText(age, ago(now.created));
                age.title = moment(now.created);
            },
        };
    }

    let frame = 0;
    const repaint = () => {
        if (!frame)
            frame = requestAnimationFrame(() => {
                frame = 0;
                if (table.isConnected)
                    paint();
            });
    };
    addEventListener('scroll', repaint, { passive: true, signal });
    addEventListener('resize', repaint, { passive: true, signal });
    table.addEventListener('keydown', event => {
        if (event.key !== 'ArrowDown' && event.key !== 'ArrowUp')
            return;
        const links = [...body.querySelectorAll('a.name')];
        const at = links.indexOf(/** @type {Element} */ (document.activeElement));
        const target = links[at + (event.key === 'ArrowDown' ? 1 : -1)];
        if (target instanceof HTMLElement) {
            event.preventDefault();
            target.focus();
            target.scrollIntoView({ block: 'nearest' });
        }
    });

    const nudge = pacer(refresh, { least: 700, most: 2500, wanted: () => runs.some(isActive) || Boolean(failure), signal });
    onEvent(event => {
        if (event.runId || event.jobId)
            nudge();
    }, signal);
    load();
    return { el };
}
