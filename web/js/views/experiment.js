// One experiment of the papers: its pictures, drawn from the runs of one submission, each with what the paper's own shows, and the
// paper's tables next to the measured values.
import { isAbort, json } from '../api.js';
import { bones, failedBox, fill, h, message, redraw, stateBox } from '../dom.js';
import { pictureShop } from '../experiment/pictures.js';
import { number } from '../format.js';
import { onEvent, pacer } from '../live.js';
import { chip } from '../states.js';
import { submission } from '../verdict.js';

/** @typedef {import('../experiment/pictures.js').Spec} Spec */
/** @typedef {import('../experiment/pictures.js').Target} Target */
/** @typedef {{name: string, title: string, question: string, source: string, variants: Record<string, {shows?: string, refused?: string}>, pictures?: Spec[]}} Template */

/** @param {number | null} v */
const signed = v => (v === null ? '–' : `${v > 0 ? '+' : ''}${number(v)}`);

/** @param {Target} target */
function resultTable({ title, unit: word, columns }) {
    const unit = word && ` (${word})`, base = columns[0].rows[0].name;
    return h('div', { class: 'card scroll-x', tabindex: 0, role: 'region', 'aria-label': title }, h('table', { class: 'table results target-table' },
        h('thead', null, h('tr', null, h('th', { scope: 'col' }, 'Row'), h('th', { scope: 'col' }, 'Column'), [`Paper${unit}`, `Here${unit}`, 'Here less paper', `Paper less ${base}`, `Here less ${base}`, 'Runs'].map(text => h('th', { scope: 'col', class: 'num' }, text)))),
        h('tbody', null, columns.flatMap(column => column.rows.map(row => h('tr', null, h('th', { scope: 'row' }, row.name), h('td', null, column.name, h('span', { class: 'muted small' }, ` ${column.metric}`)),
            h('td', { class: 'num' }, row.paper === null ? '–' : number(row.paper)),
            h('td', { class: 'num' }, row.here === null ? '–' : number(row.here), row.sd ? h('span', { class: 'muted small' }, ` ± ${number(Number(row.sd.toPrecision(2)))}`) : null),
            h('td', { class: 'num' }, signed(row.here_less_paper)), h('td', { class: 'num muted' }, signed(row.paper_less_first)), h('td', { class: 'num' }, signed(row.here_less_first)),
            h('td', { class: 'num' }, row.n ? `${row.n}${row.of > 1 ? `, best of ${row.of} settings` : ''}` : '–')))))));
}

/**
 * @param {import('../types').ViewContext} context
 * @returns {import('../types').View}
 */
export function experimentView(context) {
    const { signal, query } = context, name = context.params[0];
    context.setTitle(name);
    let wanted = query.get('job') ?? '';
    const title = h('h1', null, name), badge = h('span'), sub = h('p', { class: 'sub' }), actions = h('div', { class: 'toolbar' });
    const pick = h('select', { 'aria-label': 'Submission' }), pickLabel = h('div', { class: 'toolbar' }, h('label', { class: 'inline' }, 'Submission', pick));
    const place = h('div', { class: 'stack-l' }, h('div', { class: 'card' }, bones(8)));
    const el = h('div', null, h('p', { class: 'small' }, h('a', { href: '#/experiments' }, '← Experiments')),
        h('div', { class: 'head' }, h('div', null, h('div', { class: 'row' }, title, badge), sub)), actions, pickLabel, place);
    let mine = 0, leave = new AbortController(), open = false, drawn = '';
    signal.addEventListener('abort', () => leave.abort());
    pick.addEventListener('change', () => {
        wanted = pick.value;
        context.setQuery({ job: wanted });
        drawn = '';
        load();
    });

    /** @param {string} word @param {string} why */
    const nothing = (word, why) => {
        drawn = '';
        fill(place, h('div', { class: 'card' }, stateBox('empty', word, why, h('a', { class: 'button', href: '#/experiments' }, 'Back to experiments'))));
    };

    /** @param {import('../experiment/pictures.js').Section} s @param {number} i */
    const section = (s, i) => h('section', { class: 'stack', 'aria-labelledby': `picture-${i}` }, h('h2', { id: `picture-${i}` }, s.title, ' ', h('span', { class: 'muted small' }, s.source)),
        h('p', { class: 'small' }, h('b', null, 'The paper’s: '), s.paper), s.missing ? h('p', { class: 'note' }, s.missing) : h('div', { class: s.narrow ? 'panels' : 'charts' }, s.cards),
        s.more?.length ? h('details', null, h('summary', null, `More (${s.more.length})`), h('div', { class: 'charts' }, s.more)) : null);

    async function load() {
        const now = ++mine;
        try {
            /** @type {[Template, any]} */
            const [template, all] = await Promise.all([json(`/api/v1/templates/${encodeURIComponent(name)}`, { signal }), json('/api/v1/experiments?limit=1000', { signal })]);
            context.setTitle(`${template.name} · ${template.title}`);
            fill(title, `${template.name} · ${template.title}`);
            fill(sub, template.question, ' ', h('span', { class: 'muted' }, `(${template.source})`));
            /** @type {import('../verdict.js').Experiment | null} */
            const shown = all.experiments.some((/** @type {{name: string}} */ x) => x.name === name) ? await json(`/api/v1/experiments/${encodeURIComponent(name)}`, { signal }) : null;
            if (now !== mine)
                return;
            const list = [...(shown?.submissions ?? [])].reverse(), one = list.find(s => s.jobs.includes(wanted)) ?? list[0];
            pickLabel.hidden = list.length < 2;
            fill(pick, list.map(s => h('option', { value: s.jobs[0] }, `Job ${s.jobs.join(', ')}: ${s.template}`)));
            if (!shown || !one)
                return nothing('No submission yet', template.variants.small?.refused ? `It cannot run yet: ${template.variants.small.refused}.` : 'Its figures are drawn from the runs of a submission.');
            pick.value = one.jobs[0];
            fill(badge, one.verdict ? chip(one.verdict) : '');
            fill(actions, one.jobs.map(job => h('a', { class: 'button', href: `#/jobs/${job}` }, `Job ${job}`)), h('a', { class: 'button', href: shown.report, target: '_blank', rel: 'noopener' }, 'Report'));
            open = shown.runs.open > 0;
            const stands = `${one.jobs.join()} ${shown.runs.total - shown.runs.open} ${JSON.stringify(one.claims.map(c => c.difference))}`;
            if (stands === drawn)
                return;
            leave.abort();
            leave = new AbortController();
            const small = one.template.includes(' small'), shop = pictureShop({ name, jobs: one.jobs, signal: leave.signal, small });
            /** @type {(Node | null)[]} */
            const parts = [];
            for (const target of one.targets) {
                const there = target.columns.filter(column => column.rows.some(row => row.here !== null));
                parts.push(h('section', { class: 'stack' }, h('h2', null, target.title, ' ', h('span', { class: 'muted small' }, target.source)),
                    small ? h('p', { class: 'small muted' }, 'These are small runs on other data, so the values differ from the paper’s; compare the order of the rows and their differences from the first row.') : null,
                    h('div', { class: 'charts' }, there.map(c => shop.targetPicture(target, c))), resultTable(there.length ? { ...target, columns: there } : target)));
            }
            for (const [i, spec] of (template.pictures ?? []).entries()) {
                try {
                    parts.push(section(await shop.draw(spec), i));
                } catch (error) {
                    if (isAbort(error))
                        throw error;
                    parts.push(section({ title: spec.title, source: spec.source, paper: spec.paper, cards: [], narrow: false, missing: message(error) }, i));
                }
                if (now !== mine)
                    return;
            }
            if (parts.length === 0)
                return nothing('This experiment has no figures of its own', 'Its results are on the pages of its jobs.');
            parts.push(one.claims.length ? h('section', { class: 'card pad stack', 'aria-labelledby': 'claims' }, h('h2', { id: 'claims' }, 'Claims'), submission(one)) : null);
            drawn = stands;
            redraw(place, () => fill(place, parts));
        } catch (error) {
            if (isAbort(error) || now !== mine)
                return;
            if (/** @type {any} */ (error).status === 404)
                nothing(`There is no experiment ${name}`, 'The experiments are E01 to E18 and T1 to T20.');
            else if (!drawn) // pictures stay: a later answer brings them up to date
                fill(place, h('div', { class: 'card' }, failedBox(error, 'The experiment', () => load())));
        }
    }

    const nudge = pacer(load, { least: 4000, most: 20000, wanted: () => open, signal });
    onEvent(event => {
        if (event.jobId)
            nudge();
    }, signal);
    load();
    return { el };
}
