// The pictures that a template names, drawn from what the runs of one submission stored: one card each, or a line that says
// what is missing. Loading is here; what is drawn follows in figures.js and in the figures of a run's page.
import { getBlob, getRun, listBlobKeys, listBlobs, listSeries } from '../api.js';
import { inkOf } from '../chart.js';
import { h } from '../dom.js';
import { number } from '../format.js';
import { tryJob } from '../jobs.js';
import { describe, present } from '../metrics.js';
import { Picture } from '../picture.js';
import { readAnalysis, readSweep, readSweepCurves } from '../results.js';
import { mapFigure, mapSays, tokenName } from '../run/attention_figures.js';
import { tokensOf } from '../run/attention.js';
import { blockFigure, blockOf, drawable } from '../run/block_figure.js';
import { fieldFigure, fieldPlace, fieldSays, rangeOf, thinned } from '../run/field_figures.js';
import { gradientFigure, gradientSays } from '../run/gradient_figures.js';
import { colour, themeNow } from '../theme.js';
import { choose, leaves, nameOf } from './choose.js';
import { againstFigure, againstSays, curvesFigure, curvesSay, gridFigure, gridSays, memoryFigure, memorySays, targetFigure, targetSays } from './figures.js';

/** @typedef {import('../types').SweepRow} SweepRow */
/** @typedef {import('./choose.js').Settings} Settings */

/**
 * @typedef {object} Spec a picture as a template names it (daemon/job/template.h)
 * @property {'curves' | 'layers' | 'sweep' | 'against' | 'grid' | 'maps' | 'gradients' | 'blocks' | 'memory' | 'solution'} is
 * @property {string} title
 * @property {string} source the paper's figure or table
 * @property {string} paper what that one shows
 * @property {number} [job] of the submission, from 0; left out: a picture of each
 * @property {string} [metric]
 * @property {{name: string, match: Settings[], target?: number}[]} [lines]
 * @property {number[]} [layers]
 * @property {string} [x] pointer
 * @property {string[]} [rows] pointers
 * @property {string[]} [columns] pointers
 */

/** A column of a paper's table with our numbers; `metric` says the part of the data. @typedef {{name: string, metric: string, rows: import('./figures.js').Line[]}} Column */

/** A paper's table with our numbers, as the API computes it. @typedef {{title: string, source: string, unit: string, columns: Column[]}} Target */

/** @typedef {{title: string, source: string, paper: string, cards: HTMLElement[], more?: HTMLElement[], narrow: boolean, missing: string}} Section */

const BUCKETS = 200, LINES = 12, MEMORIES = 8, BLOCKS = 6, MAPS = 6;

/** What a number of a metric is called. @param {string} metric @returns {(v: number) => string} */
const sayOf = metric => v => present(describe(metric), v);

/**
 * @param {object} options
 * @param {string} options.name of the experiment
 * @param {string[]} options.jobs of the submission, in the template's order
 * @param {AbortSignal} options.signal
 * @param {boolean} options.small other data and sizes than the paper's: its numbers are no targets of lines
 */
export function pictureShop({ name, jobs, signal, small }) {
    /** @type {Map<string, Promise<any>>} */
    const kept = new Map();
    /** @template T @param {string} key @param {() => Promise<T>} ask @returns {Promise<T>} */
    const once = (key, ask) => {
        const known = kept.get(key) ?? ask();
        kept.set(key, known);
        known.catch(() => kept.delete(key));
        return known;
    };
    /** @param {number} i @param {string[]} metrics @returns {Promise<import('../types').Sweep | null>} */
    const sweepOf = async (i, metrics) => {
        if (!jobs[i])
            return null;
        const first = await once(`sweep ${jobs[i]}`, () => readSweep(jobs[i], { metrics: [], value: 'last', open: true, baseline: '' }, signal));
        const wanted = [...new Set([first.metric, ...metrics])].filter(Boolean).sort();
        return once(`sweep ${jobs[i]} ${wanted.join()}`, () => readSweep(jobs[i], { metrics: wanted, value: 'last', open: true, baseline: '' }, signal));
    };
    const runOf = (/** @type {string} */ id) => once(`run ${id}`, () => getRun(id, signal));
    const seriesOf = (/** @type {string} */ id) => once(`series ${id}`, () => listSeries(id, signal));
    /** The first run of a combination that got so far as to store something. @param {SweepRow} row */
    const firstRun = row => (row.trials.find(t => t.state === 'ended' && t.outcome === 'succeeded') ?? row.trials[0])?.run_id;
    const file = (/** @type {string} */ title) => `${name}-${title}`.replaceAll(/[^\w]+/g, '-').toLowerCase();

    /** Lines of a picture: those that the template names, or every combination. @param {Spec} spec @param {import('../types').Sweep} sweep @param {SweepRow[] | null} only */
    function linesOf(spec, sweep, only) {
        const rows = sweep.table.filter(row => !only || only.includes(row)).slice(0, LINES);
        if (!spec.lines)
            return rows.map(row => ({ name: nameOf(row.values, rows.map(r => r.values)), row, target: /** @type {number | undefined} */ (undefined), of: 1 }));
        return spec.lines.flatMap(({ name: word, match, target }) => {
            const found = choose(sweep, match);
            const rate = found && found.of > 1 ? nameOf(Object.fromEntries(Object.entries(leaves(found.row.values)).filter(([pointer]) => pointer.endsWith('/lr')))) : '';
            return found ? [{ name: rate ? `${word}, ${rate}` : word, row: found.row, target: small ? undefined : target, of: found.of }] : [];
        });
    }

    /** @param {Spec} spec @param {string} title @param {string} metric @param {{at: number, word: string} | null} [level] @param {SweepRow[] | null} [only] */
    async function curveCard(spec, title, metric, level = null, only = null) {
        const at = spec.job ?? 0, sweep = await sweepOf(at, []);
        const lines = sweep ? linesOf(spec, sweep, only) : [];
        if (!sweep || lines.length === 0)
            return null;
        const got = await readSweepCurves(jobs[at], { key: metric, x: 'step', points: lines.map(l => l.row.point), buckets: BUCKETS, open: true }, signal);
        const curves = lines.map(l => ({ name: l.name, target: l.target, of: l.of, points: got.find(c => c.point === l.row.point)?.data ?? [] })).filter(c => c.points.length > 0);
        if (curves.length === 0)
            return null;
        const means = curves.flatMap(c => c.points.map(p => p.mean ?? 0)).filter(v => v > 0), log = means.length > 0 && (level !== null || Math.max(...means) / Math.min(...means) > 50);
        const picture = new Picture(title, { signal, file: file(title) });
        picture.show({
            make: width => curvesFigure(curves, { title, width: Math.min(width, 760), inks: inkOf, say: sayOf(metric), metric, log, level }),
            says: curvesSay(`${title} (${metric})`, curves, sayOf(metric)) + (!spec.lines && !only && sweep.table.length > LINES ? ` These are the first ${LINES} of ${sweep.table.length} combinations.` : ''),
        });
        return picture.el;
    }

    /** @type {Record<Spec['is'], (spec: Spec) => Promise<{cards: (HTMLElement | null)[], more?: (HTMLElement | null)[]}>>} */
    const makers = {
        async curves(spec) {
            return { cards: [await curveCard(spec, spec.title, spec.metric ?? '')] };
        },

        /** One panel for each layer: those of the paper's figure first, the others folded. Combinations of other token counts have panels of their own. */
        async layers(spec) {
            const sweep = await sweepOf(spec.job ?? 0, []), metric = spec.metric ?? '';
            if (!sweep || sweep.table.length === 0)
                return { cards: [] };
            /** @type {Map<string, SweepRow[]>} */
            const groups = new Map();
            for (const row of sweep.table) {
                const patch = leaves(row.values)['/model/patch'], key = patch === undefined ? '' : JSON.stringify(patch);
                groups.set(key, [...(groups.get(key) ?? []), row]);
            }
            /** @type {(HTMLElement | null)[]} */
            const cards = [];
            /** @type {(HTMLElement | null)[]} */
            const more = [];
            for (const rows of groups.values()) {
                const id = firstRun(rows[0]);
                if (!id)
                    continue;
                const [series, { document }] = await Promise.all([seriesOf(id), runOf(id)]);
                const there = series.map(s => s.key).filter(key => key.startsWith(`${metric}/`) && /^\d+$/.test(key.slice(metric.length + 1))).map(key => Number(key.slice(metric.length + 1))).sort((a, b) => a - b);
                const wanted = there.filter(layer => (spec.layers ?? []).includes(layer)), first = wanted.length > 1 ? wanted : [...new Set([...wanted, ...there.filter(layer => layer === there.length || layer === Math.ceil(there.length / 2))])].sort((a, b) => a - b);
                const n = tokensOf(document), bound = metric === 'attn/fro' ? [1, '√N'] : metric === 'attn/jac_fro' ? [.5, '√N/2'] : null;
                const level = n && bound ? { at: Number(bound[0]) * Math.sqrt(n), word: `${bound[1]} = ${number(Number(bound[0]) * Math.sqrt(n))}` } : null;
                const of = groups.size > 1 && n ? `, N = ${n}` : '';
                for (const layer of there) {
                    const home = first.includes(layer) ? cards : more;
                    home.push(await curveCard(spec, `${describe(metric).title}, layer ${layer}${of}`, `${metric}/${layer}`, level, rows));
                }
            }
            return { cards, more };
        },

        /** Panels by N and all of them over each other, with ranges and the best value as the API finds them. */
        async sweep(spec) {
            const at = spec.job ?? 0;
            if (!jobs[at])
                return { cards: [] };
            const a = await readAnalysis(jobs[at], { metric: spec.metric ?? '', axis: spec.x ?? '', open: true }, signal), say = sayOf(a.metric), x = a.axis.split('/').pop() ?? '';
            const groups = a.panels.map(panel => ({
                name: panel.tokens ? `N = ${panel.tokens}` : nameOf(panel.values), rule: panel.tokens && x === 'k' ? { at: Math.sqrt(panel.tokens), word: `√N = ${number(Math.sqrt(panel.tokens))}` } : undefined,
                marks: panel.points.filter(p => p.value.mean !== null && Number.isFinite(p.value.mean)).map(p => ({ x: p.x, y: Number(p.value.mean), sd: p.value.sd, n: p.value.n, best: p.point === panel.best?.point })),
            })).filter(g => g.marks.length > 0);
            if (groups.length === 0)
                return { cards: [] };
            const card = (/** @type {string} */ title, /** @type {typeof groups} */ list, /** @type {{at: number, word: string}[]} */ rules) => {
                const picture = new Picture(title, { signal, file: file(title) });
                picture.show({ make: width => againstFigure(list, { title, width: Math.min(width, 760), inks: inkOf, say, xTitle: x, metric: a.metric, log: a.log, rules }), says: againstSays(`${title} (${a.metric})`, list, { say, xTitle: x, more: a.mode === 'max' }) });
                return picture.el;
            };
            return { cards: [...groups.map(g => card(`${spec.title}, ${g.name}`, [{ ...g, name: '' }], g.rule ? [g.rule] : [])), ...groups.length > 1 ? [card(`${spec.title}, all over each other`, groups, [])] : []] };
        },

        /** A result against a number that combinations set; those that do not set it are a level. */
        async against(spec) {
            const metric = spec.metric ?? '', at = spec.job ?? 0, sweep = await sweepOf(at, [metric]), pointer = spec.x ?? '';
            if (!sweep || sweep.axes.length === 0)
                return { cards: [] };
            /** @type {Map<string, {x: number, y: number, sd: number | null, n: number}[]>} */
            const groups = new Map();
            /** @type {{at: number, word: string} | null} */
            let level = null;
            const others = await Promise.all(jobs.map((_, i) => (i === at ? null : sweepOf(i, [metric]))));
            for (const row of [...sweep.table, ...others.flatMap(s => (s && s.axes.length === 0 ? s.table : []))]) {
                const set = leaves(row.values), value = row.metrics[metric], x = Array.isArray(set[pointer]) ? NaN : Number(set[pointer]);
                if (value?.mean === null || value?.mean === undefined || !Number.isFinite(value.mean))
                    continue;
                const { [pointer]: _, '/attention/activation': activation, ...rest } = set;
                const line = nameOf(activation === undefined || activation === 'poly' ? rest : { ...rest, '/attention/activation': activation });
                if (Number.isFinite(x))
                    groups.set(line, [...(groups.get(line) ?? []), { x, y: value.mean, sd: value.sd, n: value.n }]);
                else
                    level = { at: value.mean, word: `${activation ?? 'softmax'}: ${sayOf(metric)(value.mean)}` };
            }
            const list = [...groups].map(([word, marks]) => ({ name: word, marks })), xTitle = pointer.split('/').pop() ?? '';
            if (list.length === 0)
                return { cards: [] };
            const picture = new Picture(spec.title, { signal, file: file(spec.title) });
            picture.show({ make: width => againstFigure(list, { title: spec.title, width: Math.min(width, 760), inks: inkOf, say: sayOf(metric), metric, xTitle, level }), says: againstSays(`${spec.title} (${metric})`, list, { say: sayOf(metric), xTitle, more: sweep.mode === 'max' }) });
            return { cards: [picture.el] };
        },

        async grid(spec) {
            const metric = spec.metric ?? '', sweep = await sweepOf(spec.job ?? 0, [metric]);
            if (!sweep)
                return { cards: [] };
            const part = (/** @type {Record<string, unknown>} */ values, /** @type {string[]} */ pointers) => nameOf(Object.fromEntries(Object.entries(leaves(values)).filter(([p]) => pointers.some(q => p === q || p.startsWith(`${q}/`)))));
            const cells = sweep.table.map(row => ({ row: part(row.values, spec.rows ?? []), column: part(row.values, spec.columns ?? []), value: row.metrics[metric]?.mean ?? null, sd: row.metrics[metric]?.sd ?? null, n: row.metrics[metric]?.n ?? 0 }));
            if (!cells.some(c => c.value !== null))
                return { cards: [] };
            const picture = new Picture(spec.title, { signal, file: file(spec.title) });
            picture.show({ make: width => gridFigure(cells, { title: spec.title, width: Math.min(width, 900), theme: themeNow(), say: sayOf(metric), metric }), says: gridSays(`${spec.title} (${metric})`, cells, sayOf(metric)) });
            return { cards: [picture.el] };
        },

        /** The same layer and head of each arm in a row, at the last step. */
        async maps(spec) {
            const sweep = await sweepOf(spec.job ?? 0, []);
            /** @type {(HTMLElement | null)[]} */
            const cards = [];
            /** @type {(HTMLElement | null)[]} */
            const more = [];
            const arms = (sweep?.table ?? []).slice(0, MAPS).flatMap(row => {
                const id = firstRun(row);
                return id ? [{ id, word: nameOf(row.values) }] : [];
            });
            const keys = await Promise.all(arms.map(arm => once(`keys ${arm.id}`, () => listBlobKeys(arm.id, signal))));
            const places = [...new Set(keys.flatMap(list => list.map(k => k.key).filter(key => key.startsWith('attn/map/'))))].sort();
            for (const [k, key] of places.entries()) {
                const [, , layer, head] = key.split('/');
                for (const [i, arm] of arms.entries()) {
                    if (!keys[i].some(one => one.key === key))
                        continue;
                    const blob = (await listBlobs(arm.id, key, signal)).at(-1);
                    if (!blob)
                        continue;
                    const values = await getBlob(arm.id, blob, signal), [rows, columns] = blob.meta.shape, matrix = { rows, columns, values }, title = `${arm.word}, layer ${layer}, head ${head}`;
                    const picture = new Picture(title, { signal, file: file(`attention ${title}`) });
                    picture.show({
                        make: width => mapFigure(matrix, { title: `${title}, step ${blob.step}`, width: Math.min(width, 620), theme: themeNow(), between: blob.meta.between }),
                        says: mapSays(matrix, `Mean A of ${title}, over ${blob.meta.samples} samples at step ${blob.step} of run #${arm.id}`, blob.meta, false),
                        read: (row, column) => `Query ${tokenName(row, blob.meta, false, true)} → key ${tokenName(column, blob.meta)}: ${Number(values[row * columns + column]).toPrecision(4)}`,
                    });
                    picture.el.append(h('p', { class: 'small' }, h('a', { href: `#/runs/${arm.id}?tab=attention&layer=${layer}&head=${head}` }, `Run #${arm.id}: other steps, displacement, logits`)));
                    (k < 2 ? cards : more).push(picture.el);
                }
            }
            return { cards, more };
        },

        /** Of each arm the last maps of u and of the error, with the exact solution once. */
        async solution(spec) {
            const sweep = await sweepOf(spec.job ?? 0, []), called = sweep?.name ?? '';
            /** @type {(HTMLElement | null)[]} */
            const cards = [];
            /** @type {(HTMLElement | null)[]} */
            const more = [];
            for (const row of (sweep?.table ?? []).slice(0, MAPS)) {
                const id = firstRun(row), word = nameOf(row.values);
                const blobs = id ? await Promise.all(['u', 'exact', 'error'].map(async what => (await listBlobs(id, `pde/${what}`, signal)).at(-1))) : [];
                const [u] = blobs;
                if (!id || !u?.meta.rows || !u.meta.columns || blobs.includes(undefined))
                    continue;
                const axes = { rows: u.meta.rows, columns: u.meta.columns }, [rows, columns] = u.meta.shape;
                const maps = (await Promise.all(blobs.map(blob => getBlob(id, /** @type {import('../types').Blob} */ (blob), signal)))).map(values => thinned({ rows, columns, values })), both = rangeOf(maps.slice(0, 2));
                for (const [k, what] of ['u', 'exact u', 'error'].entries()) {
                    if (k === 1 && cards.length + more.length > 1)
                        continue;
                    const m = maps[k], title = k === 1 ? `${called}: ${what}` : `${called}, ${word}: ${what}`, picture = new Picture(title, { signal, file: file(`solution ${title}`) });
                    picture.show({
                        make: width => fieldFigure(m, axes, { title: k === 1 ? title : `${title} at step ${u.step}`, name: what, width: Math.min(width, 620), theme: themeNow(), range: k === 2 ? { low: 0 } : both }),
                        says: fieldSays(m, axes, k === 1 ? title : `${title} at step ${u.step} of run #${id}`),
                        read: (r, c) => `${fieldPlace(m, axes, r, c)}: ${Number(m.values[r * m.columns + c]).toPrecision(4)}`,
                    });
                    picture.el.append(h('p', { class: 'small' }, h('a', { href: `#/runs/${id}?tab=solution` }, `Run #${id}: other steps`)));
                    (cards.length < 5 ? cards : more).push(picture.el);
                }
            }
            return { cards, more };
        },

        /** Six weights, each with the arms over each other: the earliest histograms, all layers pooled. */
        async gradients(spec) {
            const sweep = await sweepOf(spec.job ?? 0, []);
            const arms = (sweep?.table ?? []).slice(0, 2).flatMap((row, i) => {
                const id = firstRun(row);
                return id ? [{ id, word: nameOf(row.values), i }] : [];
            });
            const cards = [];
            for (const [weight, word] of [['w_q', 'W_Q'], ['w_k', 'W_K'], ['w_v', 'W_V'], ['w_o', 'W_O'], ['w_1', 'W_1'], ['w_2', 'W_2']]) {
                /** @type {{name: string, i: number, counts: ArrayLike<number>, meta: any}[]} */
                const list = [];
                let step = 0;
                for (const arm of arms) {
                    const blob = (await listBlobs(arm.id, `grad/histogram/${weight}`, signal))[0];
                    if (!blob)
                        continue;
                    step = blob.step;
                    list.push({ name: arm.word, i: arm.i, counts: await getBlob(arm.id, blob, signal), meta: /** @type {any} */ (blob.meta) });
                }
                if (list.length === 0)
                    continue;
                const inked = () => list.map(({ i, ...one }) => ({ ...one, ink: colour(i ? 's2' : 's1'), dash: i ? [6, 3] : [] }));
                const title = `${word}, all layers, step ${step}`, picture = new Picture(title, { signal, file: file(`gradient ${weight}`) });
                picture.show({ make: width => gradientFigure(inked(), { title, width: Math.min(width, 760), log: false }), says: gradientSays(inked()) });
                cards.push(picture.el);
            }
            return { cards };
        },

        async blocks(spec) {
            const sweep = await sweepOf(spec.job ?? 0, []);
            const cards = [], seen = new Set();
            for (const row of sweep?.table ?? []) {
                const id = firstRun(row);
                if (!id || cards.length >= BLOCKS)
                    continue;
                const { document } = await runOf(id);
                if (!drawable(document.model?.arch))
                    continue;
                const block = blockOf(document), what = JSON.stringify(block);
                if (seen.has(what))
                    continue;
                seen.add(what);
                const title = `${document.norm?.placement ?? ''}: ${document.model.arch === 'gpt' ? 'language' : 'vision'} block`, picture = new Picture(title, { signal, file: file(`block ${title}`) });
                picture.show({ make: width => blockFigure(document, { title, width: Math.min(width, 460), inks: { norm: colour('s3'), attention: colour('s1'), mlp: colour('s2'), other: colour('s7') } }), says: block.says });
                cards.push(picture.el);
            }
            return { cards };
        },

        /** The plan of each combination, requested again from its resolved document, next to the values that its run measured. */
        async memory(spec) {
            const sweep = await sweepOf(spec.job ?? 0, []);
            /** @type {import('./figures.js').Memory[]} */
            const list = [];
            for (const row of (sweep?.table ?? []).slice(0, MEMORIES)) {
                const id = firstRun(row);
                if (!id)
                    continue;
                const [{ document }, series] = await Promise.all([runOf(id), seriesOf(id)]);
                const plan = await once(`plan ${id}`, () => tryJob(JSON.stringify(document), signal)), { total: _, ...parts } = /** @type {Record<string, number>} */ (plan.plan?.bytes ?? {});
                const measured = [['mem/optimizer', 'state, measured'], ['mem/peak', 'process, measured']].flatMap(([key, word]) => {
                    const value = series.find(s => s.key === key)?.value;
                    return value === null || value === undefined ? [] : [{ word, size: value }];
                });
                list.push({ name: nameOf(row.values), parts, measured });
            }
            if (list.length === 0 || list.every(m => Object.keys(m.parts).length === 0))
                return { cards: [] };
            const picture = new Picture(spec.title, { signal, file: file(spec.title) });
            picture.show({ make: width => memoryFigure(list, { title: spec.title, width: Math.min(width, 900), inks: inkOf }), says: memorySays(list) });
            return { cards: [picture.el] };
        },
    };

    return {
        /** @param {Spec} spec @returns {Promise<Section>} */
        async draw(spec) {
            const some = spec.job !== undefined ? [spec.job] : jobs.map((_, i) => i);
            /** @type {(HTMLElement | null)[]} */
            const cards = [];
            /** @type {(HTMLElement | null)[]} */
            const more = [];
            for (const job of some) {
                const word = some.length > 1 && spec.is !== 'blocks' ? (await sweepOf(job, []))?.name : '';
                const made = await makers[spec.is]({ ...spec, job, title: word ? `${spec.title}, ${word}` : spec.title });
                cards.push(...made.cards);
                more.push(...made.more ?? []);
            }
            const there = cards.filter(c => c !== null);
            return { title: spec.title, source: spec.source, paper: spec.paper, cards: there, narrow: spec.is === 'blocks', more: more.filter(c => c !== null), missing: there.length ? '' : 'No data yet.' };
        },

        /** @param {Target} target @param {Column} column */
        targetPicture(target, column) {
            const title = `${target.title}: ${column.name}`, picture = new Picture(title, { signal, file: file(title) });
            picture.show({ make: width => targetFigure(column.rows, { title, width: Math.min(width, 760), inks: inkOf, unit: target.unit, metric: column.metric }), says: targetSays(`${title} (${column.metric})`, column.rows, target.unit) });
            return picture.el;
        },
    };
}
