// Jobs of more than one run: sweeps and repeated trials.
import { isAbort } from '../api.js';
import { bones, failedBox, fill, h, redraw, setText, snippet, stateBox } from '../dom.js';
import { ago, count, moment } from '../format.js';
import { onEvent, pacer } from '../live.js';
import { listSweeps } from '../results.js';
import { chip, stackedMeter } from '../states.js';

const example = () => `curl ${location.origin}/api/v1/jobs -H 'Content-Type: application/json' -d '{
  "name": "scale sweep", "trials": 3,
  "model": {"preset": "vit_micro", "patch": 7},
  "attention": {"activation": "poly", "degree": 3, "scale": "k", "k": 4},
  "data": {"dataset": "digits_gen"}, "train": {"epochs": 4},
  "sweep": {"axes": [{"pointer": "/attention/k", "log": [0.01, 100, 5]}], "metric": "acc/val", "mode": "max"}
}'`;

/** @param {import('../types').Job} job */
function bars(job) {
    const bar = stackedMeter(`Runs of job ${job.id} that have ended`);
    bar.set([[job.runs.ended - job.runs.failed, 'good', 'ended'], [job.runs.failed, 'bad', 'failed']], job.runs.total);
    return bar.el;
}

/**
 * A sweep of which a part failed is done, and says how many.
 * @param {import('../types').Job} job
 */
function stateOf(job) {
    const some = job.state === 'failed' && job.runs.ended > job.runs.failed;
    return some ? chip('done_some', job.reason || undefined, `Done, ${job.runs.failed} failed`) : chip(job.state, job.reason || undefined);
}

/**
 * @param {import('../types').ViewContext} context
 * @returns {import('../types').View}
 */
export function sweepsView(context) {
    const { signal } = context;
    context.setTitle('Sweeps');
    const summary = h('p', { class: 'sub' });
    const place = h('div', { class: 'card' }, bones(5));
    const more = h('button', { type: 'button', hidden: true, on: { click: () => load() } }, 'Show older ones');
    const el = h('div', null, h('div', { class: 'head' }, h('div', null, h('h1', null, 'Sweeps'), summary), h('div', { class: 'row' }, h('a', { class: 'button', href: '#/experiments' }, 'Experiments by name'))), place, h('div', { class: 'row' }, more));
    /** @type {import('../types').Job[]} */
    let jobs = [];
    /** @type {string | null} */
    let next = null;
    let ready = false;

    function draw() {
        setText(summary, jobs.length === 0 ? '' : `${count(jobs.length)}${next ? '+' : ''} sweep${jobs.length === 1 && !next ? '' : 's'}`);
        more.hidden = !next;
        if (jobs.length === 0) {
            fill(place, stateBox('empty', 'No sweeps yet', 'A job with a sweep, or with trials, becomes several runs; here they are one line with one result. For example:', snippet(example())));
            return;
        }
        // rows are redrawn while sweeps run
        redraw(place, () => fill(place, h('div', { class: 'scroll-x', tabindex: 0, role: 'region', 'aria-label': 'Sweeps' }, h('table', { class: 'table' },
            h('thead', null, h('tr', null, [['State', ''], ['Job', ''], ['Parameters', ''], ['Runs', ''], ['Ranked by', ''], ['Created', 'num']].map(([word, cls]) => h('th', { scope: 'col', class: cls }, word)))),
            h('tbody', null, jobs.map(job => h('tr', null,
                h('td', null, stateOf(job)),
                h('td', null, h('a', { href: `#/jobs/${job.id}`, class: 'strong' }, job.name), h('div', { class: 'muted small' }, `#${job.id} · ${job.experiment}`)),
                h('td', null, (job.sweep?.axes ?? []).map(a => h('span', { class: 'tag' }, a.pointer.slice(1).replaceAll('/', '.'))), job.sweep && job.sweep.trials > 1 ? h('span', { class: 'tag' }, `${job.sweep.trials} trials`) : null),
                h('td', null, h('div', { class: 'small muted nowrap' }, `${count(job.runs.ended)} / ${count(job.runs.total)}${job.runs.failed ? `, ${job.runs.failed} failed` : ''}`),
                    bars(job)),
                h('td', { class: 'mono nowrap' }, job.sweep ? `${job.sweep.metric} (${job.sweep.mode})` : '–'),
                h('td', { class: 'num nowrap', title: moment(job.created) }, ago(job.created)))))))));
    }

    /** @param {boolean} [fresh] the first page again */
    async function load(fresh = false) {
        try {
            const page = await listSweeps({ limit: 50, cursor: fresh ? null : next }, signal);
            // A sweep within the page's reach that the answer lacks has been deleted or archived.
            const reach = page.next ? Math.min(...page.jobs.map(job => Number(job.id))) : 0;
            const behind = fresh ? jobs.filter(job => Number(job.id) < reach)
                // Since one was deleted or archived, the first page may have some of the next.
                : page.jobs.filter(job => jobs.every(known => Number(known.id) > Number(job.id)));
            jobs = fresh ? [...page.jobs, ...behind] : [...jobs, ...behind];
            if (!fresh || behind.length === 0)
                next = page.next;
            ready = true;
            draw();
        } catch (error) {
            if (!isAbort(error) && !ready)
                fill(place, failedBox(error, 'The sweeps', () => load()));
        }
    }

    const nudge = pacer(() => load(true), { least: 900, most: 4000, wanted: () => jobs.some(job => job.state === 'running'), signal });
    onEvent(event => {
        if (event.jobId)
            nudge();
    }, signal);
    load();
    return { el };
}
