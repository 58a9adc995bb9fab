// One run: where it stands, its curves, and everything else there is to know of it.
import { cancelRun, getCurves, getJob, getRun, isAbort, listSeries, registerAverage, registerModel, steerJob, steerRun } from '../api.js';
import { awayButtons } from '../away.js';
import { ask, bones, failedBox, fill, h, icon, message, setText, stateBox, toast } from '../dom.js';
import { ago, bytes, count, duration, toNumber } from '../format.js';
import { submitJob } from '../jobs.js';
import { kindOf } from '../kinds.js';
import { onEvent, pacer } from '../live.js';
import { describe, fullTitle, panels, present } from '../metrics.js';
import { notesCard } from '../notes.js';
import { attentionPart } from '../run/attention.js';
import { fieldPart } from '../run/field.js';
import { chartsPart } from '../run/charts.js';
import { checkPart } from '../run/check.js';
import { checkpointsPart } from '../run/checkpoints.js';
import { configPart } from '../run/config.js';
import { eventsPart } from '../run/events.js';
import { guide } from '../run/guide.js';
import { gradientsPart } from '../run/gradients.js';
import { logPart } from '../run/log.js';
import { resultsPart } from '../run/results.js';
import { chip, isActive, isMoving, meter, nextAttempt, setMeter, standing } from '../states.js';

/** @typedef {import('../types').Run} Run */

/** Of runs without a kind all are shown; else those whose kind `fits`. */
const tabs = [
    { id: 'charts', word: 'Charts', fits: (/** @type {import('../kinds.js').Kind} */ kind) => kind.curves },
    { id: 'solution', word: 'Solution', fits: (/** @type {import('../kinds.js').Kind} */ kind, /** @type {Record<string, any>} */ document) => kind.curves && kind.settings && document.model?.arch === 'pinnsformer' },
    { id: 'attention', word: 'Attention', fits: (/** @type {import('../kinds.js').Kind} */ kind) => kind.curves && kind.settings },
    { id: 'gradients', word: 'Gradients', fits: (/** @type {import('../kinds.js').Kind} */ kind) => kind.curves && kind.settings },
    { id: 'results', word: 'Results', fits: (/** @type {import('../kinds.js').Kind} */ kind) => !kind.curves },
    { id: 'log', word: 'Log' },
    { id: 'checkpoints', word: 'Checkpoints', fits: (/** @type {import('../kinds.js').Kind} */ kind) => kind.saves },
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
    const brief = h('p', { class: 'run-brief small', 'aria-hidden': 'true' });
    const strip = h('div', { class: 'run-strip' }, tablist, brief);
    // The brief repeats the head once that has scrolled away.
    const seen = new IntersectionObserver(([entry]) => strip.toggleAttribute('data-stuck', !entry.isIntersecting && entry.boundingClientRect.top < 100));
    signal.addEventListener('abort', () => seen.disconnect());
    const place = h('div', { role: 'tabpanel', id: 'run-panel', class: 'stack-l', tabindex: -1 });
    const head = h('div', { class: 'head' }, h('div', null, h('div', { class: 'row' }, h('a', { href: '#/', class: 'small', 'aria-label': 'Back to runs' }, '← Runs'), title, badge), sub), actions);
    seen.observe(head);
    const notes = notesCard(() => page.job, async () => {
        if (page.run)
            page.job = await getJob(page.run.jobId, signal);
    });
    const steps = guide(query.get('guide') === '1', () => context.setQuery({ guide: null }));
    const begun = h('details', { class: 'card pad small begun', hidden: true }, h('summary'), h('p'));
    const all = h('div', { class: 'stack-l run-page' }, steps.el, progress, tiles, notes.el, begun, strip, place);
    const el = h('div', null, head, why, all);
    /** @type {import('../run/page.js').Page} */
    const page = {
        id, context, signal, place, run: null, job: null, resolved: {}, digest: '', inputs: null, begun: null, attempts: [], series: [], openTab, register, average,
        again: () => part?.refresh(),
    };
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
        const there = tabs.filter(fits);
        const next = there[(there.findIndex(t => t.id === tab) + step + there.length) % there.length];
        openTab(next.id);
        buttons[tabs.indexOf(next)].focus();
    });

    /** Does the tab make sense for this run? @param {typeof tabs[number]} which */
    const fits = which => !which.fits || !page.run || which.fits(kindOf(page.run), page.resolved);
    const firstTab = () => /** @type {typeof tabs[number]} */ (tabs.find(fits)).id;

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
        context.setQuery({ tab: tab === firstTab() ? null : tab });
        fill(place, h('div', { class: 'card' }, bones(6)));
        /** @type {Record<string, (page: import('../run/page.js').Page, gone: AbortSignal) => import('../run/page.js').Part>} */
        const parts = { charts: chartsPart, solution: fieldPart, attention: attentionPart, gradients: gradientsPart, results: page.run?.kind === 'check' ? checkPart : resultsPart, log: logPart, checkpoints: checkpointsPart, config: configPart, events: eventsPart };
        part = parts[tab](page, leavingTab.signal);
        return part.refresh();
    }

    // ---- head ----
    function drawHead() {
        if (!page.run)
            return;
        const now = page.run;
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
            page.job && page.job.runs > 1 ? `${now.index + 1} of ${page.job.runs} of job #${now.jobId}` : `job #${now.jobId}`,
            `experiment ${now.experiment}`,
            ...Object.entries(now.tags).map(([key, value]) => `tag ${key}${value === '' ? '' : `=${value}`}`),
            kindOf(now).tag || now.device,
            now.state === 'ended' ? `ended ${ago(now.ended)}` : `created ${ago(now.created)}`,
            now.state === 'ended' ? stepWord(now).toLowerCase() : '',
            now.state === 'ended' && now.bytes && now.bytes.total > 0 ? `${bytes(now.bytes.total)} on disk` : '',
            now.archived ? `archived ${ago(now.archived)}` : '',
            now.attempts > 1 && !attemptWord(now) ? `${now.attempts} attempts` : '',
            ...Object.entries(now.sweep).map(([key, value]) => `${key.replace(/^\//, '').replaceAll('/', '.')} = ${JSON.stringify(value)}`),
        ].filter(Boolean);
        if (sub.dataset.text !== facts.join()) {
            sub.dataset.text = facts.join();
            fill(sub, facts.map(fact => h('span', null, factLink(now, fact))), notes.add);
        }
        notes.draw();
        begun.hidden = page.begun === null;
        if (page.begun && !begun.dataset.drawn) {
            begun.dataset.drawn = '1';
            fill(begun, h('summary', null, begunWord(page.begun.fields, page.resolved.train?.start ?? {})), h('p', { class: 'mono' }, page.begun.text));
        }

        const again = attemptWord(now);
        const cause = again || now.reason || (now.outcome === 'failed' ? page.attempts.findLast(a => a.message)?.message ?? '' : '');
        why.hidden = !cause;
        why.dataset.tone = now.outcome === 'failed' || now.outcome === 'lost' ? 'bad' : now.outcome === 'diverged' ? 'odd' : 'warn';
        if (why.dataset.text !== cause) {
            why.dataset.text = cause;
            fill(why, h('p', null, cause), now.outcome === 'diverged'
                ? h('p', null, 'This is a result, not a crash: all points up to that step are stored. A lower learning rate, a longer warm-up, gradient clipping or a fixed scale often helps.')
                : now.outcome === 'lost' ? h('p', null, 'Its program may have ended, or cannot reach polyd. The run continues with its next message.')
                : now.outcome === 'failed' ? h('p', null, h('button', { type: 'button', class: 'link', on: { click: () => openTab('log') } }, 'See the end of the log'), '.') : null);
        }

        // A bar at its end says nothing: it goes with the run, and what is left to say stands among the facts.
        progress.hidden = now.state === 'ended';
        const share = now.step !== null && now.totalSteps ? now.step / now.totalSteps : null;
        setMeter(bar, share);
        bar.dataset.tone = isMoving(now) ? 'run' : 'idle';
        setText(stepText, now.step === null || !now.started ? 'Not started' : stepWord(now));
        setText(remaining, now.phase ? now.phase.charAt(0).toUpperCase() + now.phase.slice(1) : now.state === 'running' ? left(now) : now.position ? `Position ${now.position} in the queue` : '');
        steps.draw(page);

        const stats = headline();
        const key = stats.map(s => s.title).join();
        if (tiles.dataset.key !== key) {
            tiles.dataset.key = key;
            fill(tiles, stats.map(s => h('div', { class: 'tile', title: s.text }, h('dt', null, s.title), h('dd'))));
        }
        stats.forEach((s, i) => {
            const dd = /** @type {Element} */ (tiles.children[i].lastElementChild);
            const text = `${s.value} ${s.note}`;
            if (/** @type {HTMLElement} */ (dd).dataset.text !== text) {
                /** @type {HTMLElement} */ (dd).dataset.text = text;
                fill(dd, s.value, s.note ? h('small', { data: { tone: s.tone } }, ` ${s.note}`) : null);
            }
        });
        tiles.hidden = stats.length === 0;
        const leading = stats.find(s => s.value !== '–' && /loss|accuracy|perplexity/i.test(s.title));
        const said = [now.name, stepWord(now), leading ? `${leading.title} ${leading.value}` : ''].filter(Boolean).join(' · ');
        if (brief.dataset.text !== said + stands) {
            brief.dataset.text = said + stands;
            fill(brief, chip(stands), h('span', { class: 'clip' }, said));
        }
        drawActions();
    }

    /** @param {Run} now */
    const stepWord = now => (now.step === null || !now.started ? '' : `${kindOf(now).step} ${count(now.step)}${now.totalSteps ? ` of ${count(now.totalSteps)}` : ''}`);

    /** A run that failed and waits for another attempt says so, and why. @param {Run} now */
    function attemptWord(now) {
        const failed = page.attempts.findLast(a => a.ended !== null && a.message !== '' && a.cause !== null && !['done', 'paused', 'preempted', 'cancelled'].includes(a.cause));
        if (!isActive(now) || !failed)
            return '';
        const next = now.state === 'queued' ? `waits for ${now.failure ? nextAttempt(now) : `attempt ${failed.n + 1}`}` : `attempt ${page.attempts.length}`;
        return `${next.charAt(0).toUpperCase()}${next.slice(1)}${now.state === 'queued' && now.reason ? ` (${now.reason})` : ''}; the last one failed: ${failed.message}`;
    }

    /** Best values with their steps, by key: read again once the series has grown. @type {Map<string, {count: number, value: number, step: number, last: number}>} */
    const bests = new Map();
    const withBest = ['loss/val', 'acc/val', 'ppl/val'];
    let asking = false;

    async function readBests() {
        const keys = withBest.filter(key => {
            const s = page.series.find(found => found.key === key);
            return s && bests.get(key)?.count !== s.count;
        });
        if (asking || keys.length === 0)
            return;
        asking = true;
        try {
            for (const curve of await getCurves(id, keys, { buckets: 10000 }, signal)) {
                const up = describe(curve.key).better === 'more';
                const known = curve.buckets.filter(b => b.mean !== null && Number.isFinite(b.mean));
                const best = known.reduce((a, b) => (a === null || (up ? /** @type {number} */ (b.max) > /** @type {number} */ (a.max) : /** @type {number} */ (b.min) < /** @type {number} */ (a.min)) ? b : a), /** @type {import('../types').Bucket | null} */ (null));
                const n = page.series.find(s => s.key === curve.key)?.count ?? 0;
                if (best)
                    bests.set(curve.key, { count: n, value: /** @type {number} */ (up ? best.max : best.min), step: best.last, last: known[known.length - 1].last });
            }
            drawHead();
        } catch (error) {
            if (!isAbort(error))
                console.warn(error); // the tiles do without the best value
        } finally {
            asking = false;
        }
    }

    /** The few numbers that one looks for first: the latest, and the best with its step. */
    function headline() {
        const of = (/** @type {string} */ key) => page.series.find(s => s.key === key);
        /** @type {{title: string, value: string, note: string, tone?: string, text: string}[]} */
        const stats = [];
        const add = (/** @type {string} */ key) => {
            const found = of(key);
            if (!found)
                return;
            const metric = describe(key);
            const best = bests.get(key);
            const differs = best && best.step < best.last && best.value !== found.value;
            // Reports validation that has been worse than its best for a third of the run, a sign of overfitting.
            const worse = differs && found.value !== null && best.step < best.last * 2 / 3 && Math.abs(found.value - best.value) > Math.abs(best.value) * .05;
            stats.push({ title: fullTitle(key), value: present(metric, found.value), text: metric.text, tone: worse ? 'warn' : undefined,
                note: differs ? `best ${present(metric, best.value)} at step ${count(best.step)}${worse ? `, ${metric.better === 'more' ? 'falling' : 'rising'} since` : ''}` : best && best.last > 0 ? 'the best' : withBest.includes(key) ? '\u00a0' : '' });
        };
        const addCourse = () => {
            add('loss/val');
            add('loss/train');
            add('acc/val');
            add('ppl/val');
            if (stats.length < 3)
                add('acc/train');
            add('samples_per_s');
            add('tokens_per_s');
        };
        if (page.run && !kindOf(page.run).curves)
            panels(page.series.map(s => s.key)).filter(panel => panel.metric.group !== 'positions').flatMap(panel => panel.keys.slice(0, 1)).slice(0, 4).forEach(add);
        else
            addCourse();
        if (page.attempts.length > 0)
            // What it worked, without what it waited.
            stats.push({ title: 'Time', value: duration(page.run?.used), note: page.attempts.length > 1 ? `in ${page.attempts.length} attempts` : '', text: 'Sum of its attempts, without waiting and pauses' });
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
            : (toNumber(page.series.find(s => s.key === 'step_ms')?.value) ?? NaN) / 1000;
        const seconds = perStep * (now.totalSteps - now.step);
        return Number.isFinite(seconds) ? `about ${duration(seconds)} left` : '';
    }

    function drawActions() {
        if (!page.run)
            return;
        const now = page.run;
        const buttons = [];
        const { worker, saves } = kindOf(now);
        const withJob = worker && now.state === 'paused' && (page.job?.runs ?? 1) > 1 && page.job?.state === 'paused';
        const goesOn = now.outcome === 'failed' && page.job?.state !== 'cancelled';
        const waitsAgain = now.state === 'queued' && page.attempts.length > 0;
        // Only what decides the buttons: they stay in place, under the pointer and with the focus, while the rest of the page comes.
        const key = [standing(now), worker, withJob, goesOn, waitsAgain, now.archived !== null].join(' ');
        if (actions.dataset.key === key)
            return;
        actions.dataset.key = key;
        if (isActive(now) && now.state !== 'cancelling') {
            if (worker && now.state === 'paused')
                buttons.push(withJob ? action('Resume job', 'running', () => steerJob(now.jobId, 'resume'), true)
                    : action('Resume', 'running', () => steerRun(now.id, 'resume'), true));
            else if (worker)
                buttons.push(action('Pause', 'paused', () => steerRun(now.id, 'pause')));
            buttons.push(action('Cancel', 'stop', async () => {
                const sure = await ask('Cancel this run?', [h('p', { class: 'muted' }, worker
                    ? 'It stops at the next step; its checkpoints are retained. A cancelled run cannot be resumed; pause it if you want to continue later.'
                    : 'It is marked as cancelled immediately. Its program receives this with its next heartbeat; polyd cannot stop the program.')],
                'Cancel the run', { danger: true, keep: 'Keep running' });
                return sure ? cancelRun(now.id) : null;
            }));
        }
        if (waitsAgain)
            buttons.push(action('Start now', 'again', () => steerRun(now.id, 'retry')));
        if (now.state === 'ended' && worker) {
            if (now.outcome !== 'failed' && saves)
                buttons.push(action('Register model', 'download', () => register()));
            // A failed run goes on under its number, from its last checkpoint; any other is repeated as a job of its own.
            buttons.push(goesOn ? action('Retry', 'again', () => steerRun(now.id, 'retry'), true) : action('Run again', 'again', runAgain),
                h('a', { class: 'button', href: `#/submit?run=${encodeURIComponent(now.id)}` }, icon('copy'), 'Edit and run again'));
        }
        if (now.state === 'ended')
            buttons.push(...awayButtons('runs', () => page.run ?? now, {
                word: 'run', contents: 'Its curves, checkpoints, log and events', changed: nudge, gone: () => { location.hash = '#/'; },
            }));
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

    /** The same document as a new job: of a sweep, what this one run was. */
    async function runAgain() {
        if (!page.run || !page.job)
            return;
        const document = page.job.runs > 1 ? page.resolved : page.job.document;
        const job = await submitJob(JSON.stringify(document), crypto.randomUUID?.() ?? `again-${Date.now()}-${Math.random()}`);
        toast(`Job #${job.id} accepted: ${job.name}`);
        location.hash = job.runs.total > 1 ? `#/jobs/${job.id}` : `#/?job=${job.id}`;
    }

    /** @param {string} [checkpoint] */
    async function register(checkpoint) {
        await nameModel('Register this model', `${checkpoint ? 'This' : 'The run’s best'} checkpoint becomes the next version of the model with this name.`,
            name => registerModel(name, id, checkpoint));
    }

    /** @param {number[]} checkpoints */
    async function average(checkpoints) {
        await nameModel(`Average ${checkpoints.length} checkpoints`,
            `The average of the checkpoints of steps ${checkpoints.map(step => count(step)).join(', ')} becomes the next version of the model with this name.`,
            name => registerAverage(name, id, checkpoints));
    }

    /**
     * @param {string} heading
     * @param {string} text
     * @param {(name: string) => Promise<{model: string, version: string}>} act
     */
    async function nameModel(heading, text, act) {
        if (!page.run)
            return;
        const name = h('input', { type: 'text', name: 'name', required: true, maxlength: 128, pattern: '[A-Za-z0-9._\\-]+', autocomplete: 'off',
            value: String(page.resolved.register ?? page.run.name.toLowerCase().replace(/[^a-z0-9._-]+/g, '-').replace(/^-+|-+$/g, '')) });
        const data = await ask(heading, [h('p', { class: 'muted' }, text), h('label', { class: 'field' }, h('span', null, 'Name of the model'), name)], 'Register');
        if (!data)
            return;
        const version = await act(String(data.get('name')));
        toast(`Registered as ${version.model}, version ${version.version}.`);
        location.hash = `#/models/${encodeURIComponent(version.model)}`;
    }

    // ---- life ----
    async function refresh() {
        try {
            const before = page.run && `${standing(page.run)} ${page.run.attempts}`;
            const [answer, list] = await Promise.all([getRun(id, signal), listSeries(id, signal)]);
            Object.assign(page, { run: answer.run, resolved: answer.document, attempts: answer.attempts, digest: answer.digest, inputs: answer.inputs, begun: answer.begun, series: list });
            const first = all.hidden;
            if (first)
                await readBests(); // with the first tiles: a note that came later would push the charts down, under the pointer
            const job = !page.job || isActive(answer.run) || before !== `${standing(answer.run)} ${answer.run.attempts}` ? getJob(answer.run.jobId, signal) : null;
            waiting.remove();
            if (first && job && tab === 'config')
                page.job = await job; // it tells what was submitted
            if (first) {
                all.hidden = false;
                buttons.forEach((button, i) => { button.hidden = !fits(tabs[i]); });
            }
            // The tab asks for its curves before anything is drawn.
            const drawn = first ? openTab(tabs.some(t => t.id === tab && fits(t)) ? tab : firstTab()) : part?.refresh();
            if (first)
                drawHead();
            if (job)
                page.job = await job;
            drawHead();
            await drawn;
            readBests();
        } catch (error) {
            if (isAbort(error))
                return;
            if (all.hidden) {
                const missing = /** @type {any} */ (error).status === 404 || /** @type {any} */ (error).status === 400;
                fill(waiting, missing
                    ? stateBox('failed', `There is no run ${id}`, 'It may be on another server.', h('a', { class: 'button', href: '#/' }, 'Back to runs'))
                    : failedBox(error, 'The run', () => { fill(waiting, bones(8)); refresh(); }));
                setText(title, `Run ${id}`);
            }
        }
    }

    const nudge = pacer(refresh, { least: 500, most: 1500, wanted: () => page.run !== null && isMoving(page.run), signal });
    onEvent(event => {
        if (event.runId === id || event.runs.includes(id) || (event.jobId && event.jobId === page.run?.jobId && !event.runId))
            nudge();
    }, signal);
    refresh();
    return { el };
}

/**
 * A fact of the head: job, experiment and tags lead to the runs that share them; the job of one run, to its document.
 * @param {Run} run
 * @param {string} fact
 */
function factLink(run, fact) {
    const href = / of job #/.test(fact) ? `#/jobs/${run.jobId}` : fact.startsWith('job #') && kindOf(run).worker ? `#/submit?job=${run.jobId}` : fact.startsWith('experiment ') ? `#/?experiment=${encodeURIComponent(run.experiment)}`
        : fact.startsWith('tag ') ? `#/?tag=${encodeURIComponent(fact.slice(4))}` : '';
    return href ? h('a', { href, title: fact.startsWith('job #') ? 'The document of this job' : null }, fact) : fact;
}

/**
 * What a run began with, in a line.
 * @param {Record<string, string>} fields of the event
 * @param {Record<string, any>} start of the document
 */
function begunWord(fields, start) {
    const some = (/** @type {string} */ key, /** @type {string} */ word) => (Number(fields[key]) > 0 ? `, ${count(Number(fields[key]))} ${word}` : '');
    return `Begins with ${start.model ? `model ${start.model}` : `run #${start.run}, step ${count(start.step)}`}: ${count(Number(fields.taken))} parameters taken${some('missing', 'not in the file')}${
        some('reset', 'reset to initial values')}${some('unused', 'in the file but not used')}${start.optimizer ? ', with the states of its optimiser' : ''}`;
}
