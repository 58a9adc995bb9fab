// Experiments by name: what the papers ask, as jobs that polyd knows, each a button away.
import { isAbort, json } from '../api.js';
import { ask, bones, failedBox, fill, h, icon, message, redraw, toast } from '../dom.js';
import { count } from '../format.js';
import { submitJob, tryJob } from '../jobs.js';
import { onEvent, pacer } from '../live.js';
import { chip } from '../states.js';
import { means, submission } from '../verdict.js';

/** @typedef {{shows?: string, jobs?: number, refused?: string}} Variant */
/** @typedef {{name: string, version: number, title: string, question: string, source: string, variants: Record<string, Variant>, pictures?: unknown[], targets?: unknown[]}} Template */

const JOBS_MOST = 6; // links to jobs on one card

/** @param {number} n */
const runs = n => `${count(n)} run${n === 1 ? '' : 's'}`;

/**
 * Asks how large it would be, then the reader, then submits it. True: it runs.
 * @param {Template} template
 * @param {AbortSignal} signal
 */
async function start(template, signal) {
    const text = JSON.stringify({ template: template.name });
    const plan = await tryJob(text, signal);
    /** @type {any[]} */
    const parts = plan.jobs ?? [plan];
    const problem = parts.map(part => part.plan_error).find(Boolean);
    if (problem)
        throw new Error(`It cannot run here: ${problem}`);
    const data = [...new Set(parts.map(part => part.document.data?.dataset))].filter(Boolean).join(', ');
    const yes = await ask(`Run ${template.name}, small`, [
        h('p', null, `${runs(plan.runs)} in ${parts.length === 1 ? 'one job' : `${parts.length} jobs`}${data ? `, on ${data}` : ''}. They wait in the queue; other jobs run in turn with them.`),
        h('p', { class: 'muted' }, `Expected: ${template.variants.small.shows}.`)], 'Run it');
    if (!yes)
        return false;
    await submitJob(text, crypto.randomUUID?.() ?? String(Math.random()).slice(2));
    return true;
}

/**
 * @param {import('../types').ViewContext} context
 * @returns {import('../types').View}
 */
export function experimentsView(context) {
    const { signal } = context;
    context.setTitle('Experiments');
    const place = h('div', { class: 'stack-l' }, bones(8));
    const el = h('div', null, h('p', { class: 'small' }, h('a', { href: '#/sweeps' }, '← Sweeps')),
        h('div', { class: 'head' }, h('div', null, h('h1', null, 'Experiments'),
            h('p', { class: 'sub' }, 'The experiments of the papers as ready-made jobs. The small variants run on two cores; every field can be changed before a job is submitted.'))),
        place);
    /** Every label that jobs carry. @type {Map<string, {name: string, template: string | null, jobs: number, runs: import('../verdict.js').Tally}>} */
    let labels = new Map();
    /** What those of the templates have shown. @type {Map<string, import('../verdict.js').Experiment>} */
    let shown = new Map();
    /** @type {Template[]} */
    let templates = [];
    /** Which of the page's folds are open. @type {Map<string, boolean>} */
    const folds = new Map();

    /** What has been seen of it. @param {Template} template */
    function seen(template) {
        const x = shown.get(template.name), label = labels.get(template.name);
        if (!label)
            return template.variants.small.refused ? null : h('p', { class: 'small' }, h('b', null, 'Seen: '), 'nothing yet.');
        const { runs: tally } = label, odd = ['diverged', 'failed', 'cancelled', 'lost'].filter(key => tally[/** @type {'lost'} */ (key)] > 0).map(key => `, ${count(tally[/** @type {'lost'} */ (key)])} ${key}`).join('');
        const stands = `${count(tally.total - tally.open)} of ${runs(tally.total)} ended${odd}`;
        if (!x)
            return h('p', { class: 'small' }, h('b', null, 'Seen: '), stands, '.');
        const [last, ...earlier] = [...x.submissions].reverse();
        return h('div', { class: 'stack' },
            h('p', { class: 'small row' }, h('b', null, 'Seen:'), x.verdict ? chip(x.verdict) : null, h('span', null, x.verdict ? `${stands}.` : `${stands}; no verdict.`)),
            last ? submission(last) : null,
            earlier.length ? h('details', { data: { key: `earlier-${x.name}` } }, h('summary', null, `Earlier submissions (${earlier.length})`),
                h('div', { class: 'stack' }, earlier.map(s => [h('p', { class: 'small row' }, h('b', null, `Job ${s.jobs.join(', ')}`), s.verdict ? chip(s.verdict) : null), submission(s)]).flat())) : null,
            x.job_list.filter(job => !last || last.jobs.includes(job.id)).map(means),
            x.cut.length ? h('p', { class: 'small muted' }, `Shown: ${x.cut.join('; ')}.`) : null);
    }

    /** @param {Template} template */
    function runButton(template) {
        const button = h('button', { type: 'button', class: 'primary', 'aria-label': `Run it small: ${template.name}` }, icon('running'), 'Run it small');
        button.addEventListener('click', async () => {
            button.disabled = true;
            try {
                if (await start(template, signal)) {
                    toast(`${template.name} is in the queue.`);
                    await load();
                }
            } catch (error) {
                if (!isAbort(error))
                    toast(message(error), 'bad');
            }
            button.disabled = false;
        });
        return button;
    }

    /** @param {Template} template */
    function card(template) {
        const { small, paper } = template.variants;
        const button = runButton(template);
        const label = labels.get(template.name), x = shown.get(template.name);
        const n = label?.runs.total ?? 0;
        return h('section', { class: 'card pad stack', 'aria-labelledby': `x-${template.name}` },
            h('h2', { id: `x-${template.name}` }, `${template.name} · ${template.title}`),
            h('p', null, template.question, ' ', h('span', { class: 'muted small' }, `(${template.source})`)),
            small.refused ? null : h('p', { class: 'small' }, h('b', null, 'To be seen: '), `${small.shows}.`),
            seen(template),
            h('p', { class: 'small muted' }, small.refused && small.refused === paper.refused ? `Cannot run yet: ${small.refused}.`
                : [small.refused ? `Small: cannot run yet: ${small.refused}. ` : '', paper.refused ? `At the paper's size: cannot run yet: ${paper.refused}.` : `At the paper's size: ${paper.shows}.`].join('')),
            h('div', { class: 'row' }, small.refused ? null : button,
                label && (template.pictures || template.targets) ? h('a', { class: 'button', href: `#/experiments/${template.name}`, 'aria-label': `Pictures of ${template.name}` }, 'Pictures') : null,
                n ? h('a', { class: 'button', href: `#/?experiment=${template.name}` }, `${runs(n)} so far`) : null,
                label ? h('a', { class: 'button', href: `/api/v1/experiments/${template.name}/report`, target: '_blank', rel: 'noopener' }, 'Report') : null,
                (x?.job_list ?? []).slice(-JOBS_MOST).map(job => h('a', { href: `#/jobs/${job.id}` }, `Job ${job.id}`)),
                h('a', { href: `/api/v1/templates/${template.name}`, target: '_blank', rel: 'noopener' }, 'Documents')));
    }

    /** Jobs of other labels: no question is known of them, but they have a report. */
    function others() {
        const rest = [...labels.values()].filter(label => !templates.some(t => t.name === label.name));
        return rest.length === 0 ? null : h('details', { class: 'card pad', data: { key: 'others' } }, h('summary', null, h('b', null, `Other labels (${count(rest.length)})`)),
            h('ul', null, rest.map(({ name, runs: tally }) => h('li', null, h('a', { href: `#/?experiment=${encodeURIComponent(name)}` }, name), ` ${runs(tally.total)} `,
                h('a', { href: `/api/v1/experiments/${encodeURIComponent(name)}/report`, target: '_blank', rel: 'noopener', 'aria-label': `Report of ${name}` }, 'Report')))));
    }

    /** One statement of the theory: its question, and what its newest run found. @param {Template} template */
    function statement(template) {
        const x = shown.get(template.name), label = labels.get(template.name);
        const last = x?.submissions[x.submissions.length - 1];
        const found = x?.job_list.filter(job => last?.jobs.includes(job.id)).flatMap(job => job.checks)[0];
        return h('section', { class: 'stack statement', 'aria-labelledby': `x-${template.name}` },
            h('div', { class: 'row' }, h('h3', { id: `x-${template.name}` }, `${template.name} · ${template.title}`), last?.verdict ? chip(last.verdict) : null),
            h('p', { class: 'small' }, template.question, ' ', h('span', { class: 'muted' }, `(${template.source})`)),
            found ? [h('p', { class: 'small' }, h('b', null, 'Claimed: '), `${found.result.claimed}.`), h('p', { class: 'small' }, h('b', null, found.result.wrong ? 'What is true: ' : 'In full: '), found.result.correct)] : null,
            last?.why ? h('p', { class: 'small muted' }, `No verdict: ${last.why}.`) : null,
            h('div', { class: 'row' }, runButton(template),
                found ? h('a', { class: 'button', href: `#/runs/${found.run_id}` }, 'Table and plots') : null,
                label ? h('a', { class: 'button', href: `/api/v1/experiments/${template.name}/report`, target: '_blank', rel: 'noopener', 'aria-label': `Report of ${template.name}` }, 'Report') : null,
                label && label.runs.open > 0 ? h('span', { class: 'small muted' }, `${runs(label.runs.open)} open`) : null));
    }

    function draw() {
        const checks = templates.filter(t => t.name.startsWith('T'));
        const words = ['holds', 'fails', 'reported'].map(word => [word, checks.filter(t => shown.get(t.name)?.verdict === word).length]).filter(([, n]) => Number(n) > 0).map(([word, n]) => `${n} ${word}`);
        redraw(place, () => {
            // Read here: the event of a fold that was opened just now comes later than this drawing.
            for (const fold of place.querySelectorAll('details'))
                folds.set(fold.dataset.key ?? '', fold.open);
            fill(place, templates.filter(t => t.name.startsWith('E')).map(card), others(),
                h('details', { class: 'card pad', data: { key: 'checks' } }, h('summary', null, h('b', null, `Statements of the theory (${checks.length})`), h('span', { class: 'muted small' }, words.length > 0 ? ` ${words.join(', ')}` : ' none examined yet')),
                    h('p', { class: 'muted' }, 'Each is verified in double precision with three seeds. It holds if every criterion holds for every seed.'),
                    h('div', { class: 'stack-l' }, checks.map(statement))));
            for (const fold of place.querySelectorAll('details'))
                fold.open = folds.get(fold.dataset.key ?? '') ?? fold.open;
        });
    }

    async function load() {
        try {
            const [list, all] = await Promise.all([json('/api/v1/templates', { signal }), json('/api/v1/experiments?limit=1000', { signal })]);
            templates = list.templates;
            labels = new Map(all.experiments.map((/** @type {{name: string}} */ e) => [e.name, e]));
            shown = new Map(await Promise.all(templates.filter(t => labels.has(t.name)).map(async t => /** @type {const} */ ([t.name, await json(`/api/v1/experiments/${t.name}`, { signal })]))));
            draw();
        } catch (error) {
            if (!isAbort(error))
                fill(place, failedBox(error, 'The experiments', () => { fill(place, bones(8)); load(); }));
        }
    }

    const nudge = pacer(load, { least: 2000, most: 10000, wanted: () => [...shown.values()].some(x => x.runs.open > 0), signal });
    onEvent(event => {
        if (event.jobId)
            nudge();
    }, signal);
    load();
    return { el };
}
