// Experiments by name: what the papers ask, as jobs that polyd knows, each a button away.
import { isAbort, json } from '../api.js';
import { ask, bones, failedBox, fill, h, icon, message, toast } from '../dom.js';
import { count } from '../format.js';
import { submitJob, tryJob } from '../jobs.js';

/** @typedef {{shows?: string, jobs?: number, refused?: string}} Variant */
/** @typedef {{name: string, version: number, title: string, question: string, source: string, variants: Record<string, Variant>}} Template */

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
    const data = [...new Set(parts.map(part => part.document.data.dataset))].join(', ');
    const yes = await ask(`Run ${template.name}, small`, [
        h('p', null, `${runs(plan.runs)} in ${parts.length === 1 ? 'one job' : `${parts.length} jobs`}, on ${data}. They wait in the queue for their turn; other jobs take turns with them.`),
        h('p', { class: 'muted' }, `To be seen: ${template.variants.small.shows}.`)], 'Run it');
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
            h('p', { class: 'sub' }, 'The questions of the papers as jobs that polyd knows by name. Small ones run on two cores; each can be changed field by field before it is sent.'))),
        place);
    /** Runs of each experiment so far. @type {Map<string, number>} */
    let seen = new Map();
    /** @type {Template[]} */
    let templates = [];

    /** @param {Template} template */
    function card(template) {
        const { small, paper } = template.variants;
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
        const n = seen.get(template.name) ?? 0;
        return h('section', { class: 'card pad stack', 'aria-labelledby': `x-${template.name}` },
            h('h2', { id: `x-${template.name}` }, `${template.name} · ${template.title}`),
            h('p', null, template.question, ' ', h('span', { class: 'muted small' }, `(${template.source})`)),
            small.refused ? null : h('p', { class: 'small' }, h('b', null, 'To be seen: '), `${small.shows}.`),
            h('p', { class: 'small muted' }, small.refused && small.refused === paper.refused ? `Cannot run yet: ${small.refused}.`
                : [small.refused ? `Small: cannot run yet: ${small.refused}. ` : '', paper.refused ? `At the paper's size: cannot run yet: ${paper.refused}.` : `At the paper's size: ${paper.shows}.`].join('')),
            h('div', { class: 'row' }, small.refused ? null : button,
                n ? h('a', { class: 'button', href: `#/?experiment=${template.name}` }, `${runs(n)} so far`) : null,
                h('a', { href: `/api/v1/templates/${template.name}`, target: '_blank', rel: 'noopener' }, 'Documents')));
    }

    function draw() {
        const checks = templates.filter(t => t.name.startsWith('T'));
        fill(place, templates.filter(t => t.name.startsWith('E')).map(card),
            h('details', { class: 'card pad' }, h('summary', null, h('b', null, `Checks of the theory (${checks.length})`)),
                h('p', { class: 'muted' }, `Cannot run yet: ${checks[0]?.variants.small.refused}.`),
                h('ul', null, checks.map(t => h('li', null, `${t.name} · ${t.title} `, h('span', { class: 'muted small' }, `(${t.source})`))))));
    }

    async function load() {
        try {
            const [list, so] = await Promise.all([json('/api/v1/templates', { signal }), json('/api/v1/aggregate?by=experiment&metric=loss/val', { signal })]);
            templates = list.templates;
            seen = new Map(so.rows.map((/** @type {any} */ row) => [row.label, row.runs.total]));
            draw();
        } catch (error) {
            if (!isAbort(error))
                fill(place, failedBox(error, 'The experiments', () => { fill(place, bones(8)); load(); }));
        }
    }

    load();
    return { el };
}
