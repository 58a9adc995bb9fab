// One run: where it stands, its curves, and everything else there is to know of it.
import {
    cancelRun, getCurves, getJob, getLog, getRun, isAbort, listCheckpoints, listSeries, registerModel, runEvents, steerJob,
} from '../api.js';
import { Chart, present } from '../chart.js';
import { ask, bones, failedBox, fill, h, icon, message, setText, stateBox, toast } from '../dom.js';
import { ago, between, bytes, count, duration, moment, number, toNumber } from '../format.js';
import { onEvent, pacer } from '../live.js';
import { describe, panels } from '../metrics.js';
import { chip, isActive, isMoving, meter, setMeter, standing, toneOf } from '../states.js';

/** @typedef {import('../types').Run} Run */

const tabs = [
    { id: 'charts', word: 'Charts' },
    { id: 'log', word: 'Log' },
    { id: 'checkpoints', word: 'Checkpoints' },
    { id: 'config', word: 'Configuration' },
    { id: 'events', word: 'Events' },
];

/**
 * @param {import('../types').ViewContext} context
 * @returns {import('../types').View}
 */
export function runView(context) {
    const { signal, query } = context;
    const id = context.params[0];
    context.setTitle(`Run ${id}`);

    /** @type {Run | null} */
    let run = null;
    /** @type {Record<string, any>} */
    let resolved = {};
    /** @type {import('../types').Attempt[]} */
    let attempts = [];
    /** @type {{state: string, document: Record<string, any>, runs: number} | null} */
    let job = null;
    let digest = '';
    /** @type {import('../types').Series[]} */
    let series = [];
    /** Progress as it was a while ago, for the remaining time. @type {{step: number, at: number}[]} */
    const pace = [];

    const title = h('h1', null, `Run ${id}`);
    const badge = h('span');
    const sub = h('p', { class: 'sub' });
    const actions = h('div', { class: 'row' });
    const why = h('div', { class: 'note', hidden: true });
    const bar = meter(null, 'Progress');
    bar.classList.add('tall');
    const stepText = h('span');
    const remaining = h('span', { class: 'muted' });
    const tiles = h('dl', { class: 'card tiles' });
    const progress = h('div', { class: 'stack', hidden: true }, h('div', { class: 'row small' }, stepText, remaining), bar);
    remaining.style.marginLeft = 'auto';
    const tablist = h('div', { class: 'tabs', role: 'tablist', 'aria-label': 'Parts of the run' });
    const place = h('div', { role: 'tabpanel', id: 'run-panel', class: 'stack-l', tabindex: -1 });
    const head = h('div', { class: 'head' }, h('div', null, h('div', { class: 'row' }, title, badge), sub), actions);
    const all = h('div', { class: 'stack-l' }, progress, tiles, tablist, place);
    const el = h('div', null, h('p', { class: 'small' }, h('a', { href: '#/' }, '← Runs')), head, why, all);
    all.hidden = true;
    const waiting = h('div', { class: 'card' }, bones(8));
    el.append(waiting);

    // ---- tabs ----
    let tab = tabs.some(t => t.id === query.get('tab')) ? /** @type {string} */ (query.get('tab')) : 'charts';
    /** @type {{refresh: () => void | Promise<void>} | null} */
    let part = null;
    let leavingTab = new AbortController();
    signal.addEventListener('abort', () => leavingTab.abort());
    const buttons = tabs.map(t => h('button', {
        type: 'button', role: 'tab', id: `tab-${t.id}`, 'aria-controls': 'run-panel', on: { click: () => openTab(t.id) },
    }, t.word));
    fill(tablist, buttons);
    tablist.addEventListener('keydown', event => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step)
            return;
        event.preventDefault();
        const next = (tabs.findIndex(t => t.id === tab) + step + tabs.length) % tabs.length;
        openTab(tabs[next].id);
        buttons[next].focus();
    });

    /** @param {string} which */
    function openTab(which) {
        tab = which;
        leavingTab.abort();
        leavingTab = new AbortController();
        buttons.forEach((button, i) => {
            const on = tabs[i].id === tab;
            button.setAttribute('aria-selected', String(on));
            button.tabIndex = on ? 0 : -1;
        });
        place.setAttribute('aria-labelledby', `tab-${tab}`);
        context.setQuery({ tab: tab === 'charts' ? null : tab });
        fill(place, h('div', { class: 'card' }, bones(6)));
        /** @type {Record<string, (gone: AbortSignal) => {refresh: () => void | Promise<void>}>} */
        const parts = { charts: chartsPart, log: logPart, checkpoints: checkpointsPart, config: configPart, events: eventsPart };
        part = parts[tab](leavingTab.signal);
        part.refresh();
    }

    // ---- head ----
    function drawHead() {
        if (!run)
            return;
        const now = run;
        setText(title, now.name);
        context.setTitle(now.name);
        const stands = standing(now);
        if (badge.dataset.state !== stands) {
            if (badge.dataset.state)
                context.announce(`${now.name}: ${stands}`);
            badge.dataset.state = stands;
            fill(badge, chip(stands));
        }
        const facts = [
            `Run #${now.id}`,
            job && job.runs > 1 ? `${now.index + 1} of ${job.runs} of job #${now.jobId}` : `job #${now.jobId}`,
            `experiment ${now.experiment}`,
            now.device,
            `created ${ago(now.created)}`,
            now.attempts > 1 ? `${now.attempts} attempts` : '',
            ...Object.entries(now.sweep).map(([key, value]) => `${key.replace(/^\//, '').replaceAll('/', '.')} = ${JSON.stringify(value)}`),
        ].filter(Boolean);
        if (sub.dataset.text !== facts.join()) {
            sub.dataset.text = facts.join();
            fill(sub, facts.map(fact => h('span', null, fact)));
        }

        const cause = now.reason || (now.outcome === 'failed' ? attempts.findLast(a => a.message)?.message ?? '' : '');
        why.hidden = !cause;
        why.dataset.tone = now.outcome === 'failed' ? 'bad' : now.outcome === 'diverged' ? 'odd' : 'warn';
        setText(why, cause);

        progress.hidden = false;
        const share = now.step !== null && now.totalSteps ? now.step / now.totalSteps : null;
        setMeter(bar, share);
        bar.dataset.tone = now.state === 'ended' ? toneOf(stands) : isMoving(now) ? 'run' : 'idle';
        setText(stepText, now.step === null || !now.started ? 'Not started' : `Step ${count(now.step)}${now.totalSteps ? ` of ${count(now.totalSteps)}` : ''}`);
        setText(remaining, now.state === 'running' ? left(now) : now.state === 'ended'
            ? `${stands === 'succeeded' ? 'Finished' : 'Ended'} ${ago(now.ended)}`
            : now.position ? `Position ${now.position} in the queue` : '');

        const stats = headline();
        const key = stats.map(s => s.title).join();
        if (tiles.dataset.key !== key) {
            tiles.dataset.key = key;
            fill(tiles, stats.map(s => h('div', { class: 'tile', title: s.text }, h('dt', null, s.title), h('dd'))));
        }
        stats.forEach((s, i) => setText(/** @type {Element} */ (tiles.children[i].lastElementChild), s.value));
        drawActions();
    }

    /** The few numbers that one looks for first. */
    function headline() {
        const of = (/** @type {string} */ key) => series.find(s => s.key === key);
        /** @type {{title: string, value: string, text: string}[]} */
        const stats = [];
        const add = (/** @type {string} */ key, /** @type {string} */ name) => {
            const found = of(key);
            if (found)
                stats.push({ title: name, value: present(describe(key), found.value), text: describe(key).text });
        };
        add('loss/val', 'Validation loss');
        add('loss/train', 'Training loss');
        add('acc/val', 'Validation accuracy');
        add('ppl/val', 'Validation perplexity');
        if (stats.length < 3)
            add('acc/train', 'Training accuracy');
        add('samples_per_s', 'Images per second');
        add('tokens_per_s', 'Tokens per second');
        if (run?.started)
            stats.push({ title: 'Time', value: duration(between(run.started, run.ended)), text: 'Since the first start' });
        return stats;
    }

    /**
     * The rest at the pace of the last minute.
     * @param {Run} now
     */
    function left(now) {
        if (now.step === null || !now.totalSteps)
            return '';
        const at = performance.now() / 1000;
        const last = pace[pace.length - 1];
        if (!last || last.step !== now.step)
            pace.push({ step: now.step, at });
        while (pace.length > 2 && at - pace[0].at > 60)
            pace.shift();
        const first = pace[0];
        const steps = now.step - first.step;
        const perStep = steps > 0 && at - first.at > 1 ? (at - first.at) / steps
            : (toNumber(series.find(s => s.key === 'step_ms')?.value) ?? NaN) / 1000;
        const seconds = perStep * (now.totalSteps - now.step);
        return Number.isFinite(seconds) ? `about ${duration(seconds)} left` : '';
    }

    function drawActions() {
        if (!run)
            return;
        const now = run;
        const key = `${now.state} ${job?.state} ${job?.runs}`;
        if (actions.dataset.key === key)
            return;
        actions.dataset.key = key;
        const buttons = [];
        const many = job && job.runs > 1;
        if (isActive(now) && now.state !== 'cancelling') {
            if (now.state === 'paused')
                buttons.push(action(many ? 'Resume job' : 'Resume', 'running', () => steerJob(now.jobId, 'resume'), true));
            else
                buttons.push(action(many ? 'Pause job' : 'Pause', 'paused', () => steerJob(now.jobId, 'pause')));
            buttons.push(action('Cancel', 'stop', async () => {
                const sure = await ask('Cancel this run?', [h('p', { class: 'muted' },
                    'It stops at the next step and keeps its checkpoints. A cancelled run cannot be resumed; pause it if you want to go on later.')],
                'Cancel the run', { danger: true });
                return sure ? cancelRun(now.id) : null;
            }));
        }
        if (now.state === 'ended' && now.outcome !== 'failed')
            buttons.push(action('Register model', 'download', register));
        fill(actions, buttons);
    }

    /**
     * @param {string} word
     * @param {import('../dom.js').IconName} sign
     * @param {() => Promise<unknown>} act
     * @param {boolean} [primary]
     */
    function action(word, sign, act, primary = false) {
        const button = h('button', { type: 'button', class: primary ? 'primary' : '' }, icon(sign), word);
        button.addEventListener('click', async () => {
            button.disabled = true;
            try {
                await act();
                nudge();
            } catch (error) {
                toast(message(error), 'bad');
            } finally {
                button.disabled = false;
            }
        });
        return button;
    }

    async function register() {
        if (!run)
            return;
        const name = h('input', { type: 'text', name: 'name', required: true, maxlength: 128, pattern: '[A-Za-z0-9._\\-]+', autocomplete: 'off',
            value: String(resolved.register ?? run.name.toLowerCase().replace(/[^a-z0-9._-]+/g, '-').replace(/^-+|-+$/g, '')) });
        const data = await ask('Register this model', [
            h('p', { class: 'muted' }, 'The run’s best checkpoint becomes the next version of the model with this name.'),
            h('label', { class: 'field' }, h('span', null, 'Name of the model'), name)], 'Register');
        if (!data)
            return;
        const version = await registerModel(String(data.get('name')), run.id);
        toast(`Registered as ${version.model}, version ${version.version}.`);
        location.hash = `#/models/${encodeURIComponent(version.model)}`;
    }

    // ---- charts ----
    /** @param {AbortSignal} gone */
    function chartsPart(gone) {
        const look = {
            smoothing: clamp(Number(query.get('smooth') ?? .6)),
            log: query.get('log') === '1',
            axis: /** @type {'step' | 'time'} */ (query.get('x') === 'time' ? 'time' : 'step'),
        };
        /** @type {[number, number] | null} */
        let range = null;
        const from = Number(query.get('from'));
        const to = Number(query.get('to'));
        if (query.get('to') && to > from)
            range = [from, to];
        /** @type {Map<string, Chart>} */
        const charts = new Map();
        const grid = h('div', { class: 'charts' });
        const layers = h('div', { class: 'charts' });
        const layersTitle = h('div', { class: 'section-title', hidden: true }, h('h2', null, 'Layers'),
            h('p', { class: 'muted small' }, 'Measured on a fixed probe batch, means over heads.'));

        const slider = h('input', { type: 'range', min: 0, max: 0.98, step: 0.02, value: look.smoothing, 'aria-label': 'Smoothing' });
        const amount = h('output', null, look.smoothing.toFixed(2));
        slider.addEventListener('input', () => {
            look.smoothing = Number(slider.value);
            setText(amount, look.smoothing.toFixed(2));
            context.setQuery({ smooth: look.smoothing === .6 ? null : String(look.smoothing) });
            charts.forEach(chart => chart.restyle({ ...look }));
        });
        const log = h('input', { type: 'checkbox' });
        log.checked = look.log;
        log.addEventListener('change', () => {
            look.log = log.checked;
            context.setQuery({ log: look.log ? '1' : null });
            charts.forEach(chart => chart.restyle({ ...look }));
        });
        const axes = /** @type {const} */ (['step', 'time']).map(axis => h('button', {
            type: 'button', 'aria-pressed': String(look.axis === axis), on: {
                click: () => {
                    look.axis = axis;
                    axes.forEach((b, i) => b.setAttribute('aria-pressed', String(i === (axis === 'step' ? 0 : 1))));
                    context.setQuery({ x: axis === 'time' ? 'time' : null });
                    charts.forEach(chart => chart.restyle({ ...look }));
                },
            },
        }, axis === 'step' ? 'Step' : 'Time'));
        const zoomOut = h('button', { type: 'button', hidden: range === null, on: { click: () => zoom(null) } }, icon('reset'), 'Whole run');
        const toolbar = h('div', { class: 'toolbar' },
            h('label', { class: 'inline' }, 'Smoothing', slider, amount),
            h('label', { class: 'inline' }, log, 'Log scale'),
            h('div', { class: 'segments', role: 'group', 'aria-label': 'Horizontal axis' }, axes),
            zoomOut,
            h('a', { class: 'button', href: `/api/v1/runs/${encodeURIComponent(id)}/export?format=csv`, download: `run-${id}.csv` }, icon('download'), 'CSV'));

        /** @param {[number, number] | null} wanted in the axis' unit */
        function zoom(wanted) {
            if (wanted && look.axis === 'time') {
                // The API cuts by step: find the steps that the moments stand for.
                const began = start() ?? 0;
                const [low, high] = wanted;
                const inside = [...charts.values()].flatMap(c => c.curves).flatMap(c => c.buckets)
                    .filter(b => b.time - began >= low && b.time - began <= high);
                if (inside.length < 2)
                    return;
                wanted = [Math.min(...inside.map(b => b.first)), Math.max(...inside.map(b => b.last))];
            }
            range = wanted ? [Math.floor(wanted[0]), Math.ceil(wanted[1])] : null;
            zoomOut.hidden = range === null;
            context.setQuery({ from: range ? String(range[0]) : null, to: range ? String(range[1]) : null });
            refresh();
        }

        const start = () => (run?.started ? Date.parse(run.started) / 1000 : null);
        let busy = false;
        let again = false;

        async function refresh() {
            if (busy) {
                again = true;
                return;
            }
            busy = true;
            try {
                do {
                    again = false;
                    await load();
                } while (again && !gone.aborted);
            } finally {
                busy = false;
            }
        }

        async function load() {
            try {
                if (series.length === 0)
                    series = await listSeries(id, gone);
                if (series.length === 0) {
                    fill(place, h('div', { class: 'card' }, run && isActive(run)
                        ? stateBox('empty', 'No metrics yet', run.state === 'queued' ? 'The run waits for a device. Its curves begin with the first step.' : 'The first curves come with the first steps.')
                        : stateBox('empty', 'No metrics', 'This run ended before its first step. Its log may say why.',
                            h('button', { type: 'button', on: { click: () => openTab('log') } }, 'Open the log'))));
                    return;
                }
                const wanted = panels(series.map(s => s.key)).filter(p => p.id !== 'mem/arena');
                if (!grid.isConnected)
                    fill(place, toolbar, h('h2', { class: 'hidden' }, 'Curves'), grid, layersTitle, layers);
                for (const panel of wanted) {
                    let chart = charts.get(panel.id);
                    if (!chart) {
                        chart = new Chart(panel, { ...look }, { signal: gone, zoom, more: refresh, began: start });
                        charts.set(panel.id, chart);
                    }
                    chart.panel = panel;
                    const home = panel.layered ? layers : grid;
                    if (chart.el.parentNode !== home)
                        home.append(chart.el);
                }
                // About one bucket a pixel for single curves; bundles of layers are coarser, and a hundred series of heads
                // are asked for only when somebody chooses their layer.
                const width = Math.min(1000, Math.max(100, charts.values().next().value?.place.clientWidth || 400));
                const range_ = { from: range?.[0], to: range?.[1] };
                const flat = wanted.filter(p => !p.layered).flatMap(p => p.keys);
                const bundled = wanted.filter(p => p.layered).flatMap(p => charts.get(p.id)?.wanted() ?? []);
                const curves = (await Promise.all([
                    getCurves(id, flat, { buckets: width, ...range_ }, gone),
                    getCurves(id, bundled, { buckets: Math.ceil(width / 2), ...range_ }, gone)])).flat();
                const byKey = new Map(curves.map(c => [c.key, c]));
                for (const panel of wanted) {
                    const chart = charts.get(panel.id);
                    chart?.show(chart.wanted().map(key => byKey.get(key)).filter(c => c !== undefined));
                }
                layersTitle.hidden = !wanted.some(p => p.layered);
            } catch (error) {
                if (isAbort(error))
                    return;
                if (charts.size === 0)
                    fill(place, h('div', { class: 'card' }, failedBox(error, 'The curves', () => refresh())));
            }
        }
        return { refresh };
    }

    // ---- log ----
    /** @param {AbortSignal} gone */
    function logPart(gone) {
        const out = h('div', { class: 'log', tabindex: 0, role: 'log', 'aria-label': 'Log of the latest attempt' });
        const follow = h('input', { type: 'checkbox' });
        follow.checked = true;
        const bar = h('div', { class: 'toolbar' }, h('label', { class: 'inline' }, follow, 'Follow'),
            h('a', { class: 'button', href: `/api/v1/runs/${encodeURIComponent(id)}/logs?limit=1048576`, target: '_blank', rel: 'noopener' }, icon('download'), 'Plain text'));
        /** @type {number | null} */
        let offset = null;
        let attempt = attempts.length;
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
                    if (attempts.length !== attempt) {
                        attempt = attempts.length;
                        offset = null;
                        fill(out);
                        lines = 0;
                    }
                    const news = await getLog(id, offset === null ? { tail: 2000 } : { offset }, gone);
                    offset = news.next;
                    if (!out.isConnected) {
                        if (news.text === '') {
                            fill(place, h('div', { class: 'card' }, stateBox('empty', 'The log is empty', 'The worker writes its first lines when it starts.')));
                            offset = null;
                            return;
                        }
                        fill(place, bar, out);
                    }
                    add(news.text);
                } catch (error) {
                    if (isAbort(error) || out.isConnected)
                        return;
                    const none = /** @type {any} */ (error).status === 404;
                    fill(place, h('div', { class: 'card' }, none
                        ? stateBox('empty', 'No log yet', 'The first attempt has not started.') : failedBox(error, 'The log', () => part?.refresh())));
                }
            },
        };
    }

    // ---- checkpoints ----
    /** @param {AbortSignal} gone */
    function checkpointsPart(gone) {
        return {
            async refresh() {
                try {
                    const list = await listCheckpoints(id, gone);
                    if (list.length === 0) {
                        fill(place, h('div', { class: 'card' }, stateBox('empty', 'No checkpoints', 'A run saves its state now and then and when it ends.')));
                        return;
                    }
                    fill(place, h('div', { class: 'card scroll-x', tabindex: 0, role: 'region', 'aria-label': 'Checkpoints' }, h('table', { class: 'table' },
                        h('thead', null, h('tr', null, [['Step', 'num'], ['Kind', ''], ['Validation', 'num'], ['Size', 'num'], ['Attempt', 'num'], ['Saved', ''], ['SHA-256', '']]
                            .map(([name, cls]) => h('th', { class: cls, scope: 'col' }, name)))),
                        h('tbody', null, list.map(c => h('tr', null,
                            h('td', { class: 'num' }, count(c.step)), h('td', null, c.kind),
                            h('td', { class: 'num' }, number(c.value)), h('td', { class: 'num' }, bytes(c.bytes)),
                            h('td', { class: 'num' }, c.attempt), h('td', { class: 'nowrap', title: moment(c.created) }, ago(c.created)),
                            h('td', { class: 'mono', title: c.digest }, c.digest.slice(0, 12))))))));
                } catch (error) {
                    if (!isAbort(error))
                        fill(place, h('div', { class: 'card' }, failedBox(error, 'The checkpoints', () => part?.refresh())));
                }
            },
        };
    }

    // ---- configuration ----
    function configPart() {
        let drawn = false;
        return {
            refresh() {
                if (drawn || !job)
                    return;
                drawn = true;
                const given = flatten(job.document);
                const only = h('input', { type: 'checkbox' });
                const groups = group(flatten(resolved));
                const list = h('div', { class: 'config' });
                const draw = () => fill(list, groups.map(([name, rows]) => {
                    const shown = rows.filter(([path]) => !only.checked || given.has(path));
                    return shown.length > 0 && h('section', null, h('h2', null, name), h('dl', null, shown.map(([path, value]) => {
                        const isDefault = !given.has(path);
                        return h('div', { class: 'kv', data: { default: isDefault }, title: isDefault ? 'Not in the submitted document: a default, or computed' : 'As submitted' },
                            h('dt', null, path.slice(name === 'job' ? 1 : name.length + 2).replaceAll('/', '.')), h('dd', null, show(value)));
                    })));
                }));
                only.addEventListener('change', draw);
                draw();
                const raw = new Blob([JSON.stringify(resolved, null, 2)], { type: 'application/json' });
                const url = URL.createObjectURL(raw);
                signal.addEventListener('abort', () => URL.revokeObjectURL(url));
                fill(place, h('div', { class: 'toolbar' }, h('label', { class: 'inline' }, only, 'Only what was submitted'),
                    h('span', { class: 'muted' }, 'Grey values are defaults or computed.'),
                    h('a', { class: 'button', href: url, download: `run-${id}.json` }, icon('download'), 'JSON')),
                h('div', { class: 'card pad' }, list),
                h('p', { class: 'muted small' }, 'Digest ', h('span', { class: 'mono' }, digest.slice(0, 16)),
                    '. Submitting this document again reproduces the run on the same build.'));
            },
        };
    }

    // ---- events ----
    /** @param {AbortSignal} gone */
    function eventsPart(gone) {
        /** @type {Map<string, import('../types').PolydEvent>} */
        const known = new Map();
        const list = h('ol', { class: 'card timeline' });
        const draw = () => {
            if (known.size === 0) {
                fill(place, h('div', { class: 'card' }, stateBox('empty', 'No events', 'What happens to the run will be listed here.')));
                return;
            }
            const events = [...known.values()].sort((a, b) => Number(b.id) - Number(a.id));
            fill(list, events.map(event => h('li', null,
                h('time', { datetime: event.time, class: 'muted' }, moment(event.time)), h('span', null, tell(event)))));
            if (!list.isConnected)
                fill(place, list);
        };
        onEvent(event => {
            if (event.runId === id && event.id) {
                known.set(event.id, event);
                draw();
            }
        }, gone);
        return {
            async refresh() {
                if (known.size > 0)
                    return;
                try {
                    for (const event of await runEvents(id, gone))
                        known.set(event.id, event);
                    draw();
                } catch (error) {
                    if (!isAbort(error))
                        fill(place, h('div', { class: 'card' }, failedBox(error, 'The events', () => part?.refresh())));
                }
            },
        };
    }

    // ---- life ----
    async function refresh() {
        try {
            const wasActive = run && isActive(run);
            const [answer, list] = await Promise.all([getRun(id, signal), listSeries(id, signal)]);
            ({ run, document: resolved, attempts, digest } = answer);
            series = list;
            if (!job || isActive(run) || wasActive)
                job = await getJob(run.jobId, signal);
            waiting.remove();
            if (all.hidden) {
                all.hidden = false;
                openTab(tab);
            } else {
                part?.refresh();
            }
            drawHead();
        } catch (error) {
            if (isAbort(error))
                return;
            if (all.hidden) {
                const missing = /** @type {any} */ (error).status === 404 || /** @type {any} */ (error).status === 400;
                fill(waiting, missing
                    ? stateBox('failed', `There is no run ${id}`, 'It may belong to another polyd.', h('a', { class: 'button', href: '#/' }, 'To the runs'))
                    : failedBox(error, 'The run', () => { fill(waiting, bones(8)); refresh(); }));
                setText(title, `Run ${id}`);
            }
        }
    }

    const nudge = pacer(refresh, { least: 500, most: 1500, wanted: () => run !== null && isMoving(run), signal });
    onEvent(event => {
        if (event.runId === id || event.runs.includes(id) || (event.jobId && event.jobId === run?.jobId && !event.runId))
            nudge();
    }, signal);
    refresh();
    return { el };
}

/** @param {number} x */
const clamp = x => (Number.isFinite(x) ? Math.min(.98, Math.max(0, x)) : .6);

/**
 * Leaves of a document by JSON pointer. Arrays and empty objects are leaves.
 * @param {any} value
 * @param {string} [path]
 * @param {Map<string, any>} [out]
 */
function flatten(value, path = '', out = new Map()) {
    if (value !== null && typeof value === 'object' && !Array.isArray(value) && Object.keys(value).length > 0) {
        for (const [key, inner] of Object.entries(value))
            flatten(inner, `${path}/${key}`, out);
    } else {
        out.set(path, value);
    }
    return out;
}

/** @param {Map<string, any>} leaves */
function group(leaves) {
    /** @type {Map<string, [string, any][]>} */
    const groups = new Map();
    for (const [path, value] of leaves) {
        const parts = path.split('/');
        const name = parts.length > 2 ? parts[1] : 'job';
        groups.set(name, [...(groups.get(name) ?? []), [path, value]]);
    }
    const order = ['job', 'model', 'attention', 'norm', 'data', 'train', 'diagnostics', 'resources', 'sweep'];
    const rank = (/** @type {string} */ name) => (order.includes(name) ? order.indexOf(name) : order.length);
    return [...groups].sort(([a], [b]) => rank(a) - rank(b));
}

/** @param {any} value */
function show(value) {
    return typeof value === 'string' ? value || '""' : JSON.stringify(value);
}

/** @param {import('../types').PolydEvent} event */
function tell(event) {
    const { state, from, to, outcome, cause, reason, text, message: said, step, kind, ...rest } = /** @type {Record<string, any>} */ (event.data);
    const what = event.kind.replaceAll(/[._]/g, ' ');
    const parts = [what.charAt(0).toUpperCase() + what.slice(1)];
    const target = to ?? state;
    if (target)
        parts.push(from ? `${from} → ${target}` : target);
    for (const more of [outcome, cause, kind])
        if (more)
            parts.push(String(more));
    if (event.attempt)
        parts.push(`attempt ${event.attempt}`);
    if (step !== undefined && step !== null)
        parts.push(`step ${count(Number(step))}`);
    const words = [text, said, reason].filter(Boolean).join(' · ');
    const others = Object.entries(rest).filter(([, value]) => value !== null && value !== '' && typeof value !== 'object')
        .map(([key, value]) => `${key}=${value}`).join(' ');
    return [parts.join(' · '), words, others].filter(Boolean).join(' — ');
}
