// The columns that the run table can show, and the text form of a choice of them: what a link and the browser's
// storage keep. A column is one of the table's own (`state`), a metric (`m:loss/val`) or a member of the
// configuration (`c:/train/optimizer/lr`).
import { fill, h, setText } from '../dom.js';
import { ago, duration, moment, number } from '../format.js';
import { kindOf } from '../kinds.js';
import { describe, metrics, present } from '../metrics.js';
import { COURSE_KEY, drawSpark } from './spark.js';
import { chip, isActive, meter, nextAttempt, setMeter, standing } from '../states.js';

/** @typedef {import('../types').Run} Run */
/** @typedef {string | number | null | undefined} Sortable */

/**
 * @typedef {object} Column
 * @property {string} id
 * @property {string} title
 * @property {string} group of the chooser
 * @property {string} [text] one sentence
 * @property {number} width px
 * @property {boolean} [num] aligned to the right
 * @property {string} [metric] key that the list must be asked for
 * @property {string} [field] pointer that the list must be asked for
 * @property {boolean} [down] the first click sorts downwards
 * @property {(run: Run) => Sortable} value what it is sorted by; null and undefined come last
 * @property {(cell: HTMLElement, run: Run) => void} draw into a cell that may show another run already
 */

export const MOST = 16; // metrics, and members, that one request may ask for

/** Sorts by what a run shows: its outcome once it has ended. */
const standings = ['running', 'starting', 'cancelling', 'queued', 'preempted', 'paused', 'succeeded', 'diverged', 'failed', 'lost', 'cancelled'];

/** @param {Run} run */
const share = run => (run.step !== null && run.totalSteps ? run.step / run.totalSteps : null);

/** @param {Run} run */
const loss = run => run.latest['loss/val'] ?? run.latest['loss/train'] ?? null;

/** With the part of the data that it is from. @param {Run} run */
const lossWord = run => (loss(run) === null ? '–' : `${number(loss(run))} ${run.latest['loss/val'] === undefined || run.latest['loss/val'] === null ? 'train' : 'val'}`);

/** The latest values that the column named loss chooses from; each has a column of its own in a CSV. */
export const LOSS_KEYS = ['loss/train', 'loss/val'];

/** Metrics that say how good a run is, each sorted by its own direction: those that any run has are shown. */
const RESULTS = ['acc/val', 'ppl/val', 'loss/val'];

/**
 * @param {HTMLElement} cell
 * @param {string} text
 * @param {string} [title]
 */
function put(cell, text, title = text) {
    setText(cell, text);
    if (cell.title !== title)
        cell.title = title;
}

/** @type {Column[]} */
const own = [
    { id: 'state', title: 'State', group: 'Run', width: 130, value: run => standings.indexOf(standing(run)),
        draw(cell, run) {
            const now = standing(run);
            if (cell.dataset.now !== now + run.reason) {
                cell.dataset.now = now + run.reason;
                fill(cell, chip(now, run.reason || undefined));
            }
        } },
    { id: 'name', title: 'Run', group: 'Run', width: 220, value: run => run.name.toLowerCase(),
        draw(cell, run) {
            if (!cell.firstChild)
                fill(cell, h('a', { class: 'name' }), h('span', { class: 'under' }));
            const [link, under] = /** @type {[HTMLAnchorElement, HTMLElement]} */ (/** @type {unknown} */ ([...cell.children]));
            setText(link, run.name);
            link.title = run.name;
            const href = `#/runs/${encodeURIComponent(run.id)}`;
            if (link.getAttribute('href') !== href)
                link.setAttribute('href', href);
            const swept = Object.entries(run.sweep).map(([key, value]) => `${key.split('/').pop()} ${short(value)}`);
            const failed = (run.outcome === 'failed' || run.outcome === 'lost') && run.reason !== '';
            const kind = kindOf(run);
            under.toggleAttribute('data-bad', failed || run.failure !== '');
            setText(under, failed ? `#${run.id} · ${run.reason.split('\n')[0]}` : run.failure ? `#${run.id} · ${nextAttempt(run)}, last: ${run.failure.split('\n')[0]}`
                : [`#${run.id}`, kind.tag, ...swept, run.state === 'queued' ? run.reason : ''].filter(Boolean).join(' · '));
            under.title = [run.failure, run.reason].filter(Boolean).join('; ') || kind.text;
        } },
    { id: 'progress', title: 'Progress', group: 'Run', width: 112, value: share, down: true, text: 'Progress of the run; for ended runs, the duration.',
        draw(cell, run) {
            if (!cell.firstChild)
                fill(cell, h('span', { class: 'pair' }, h('span'), h('span')), meter(null, 'Progress'));
            const [pair, bar] = /** @type {[HTMLElement, HTMLElement]} */ (/** @type {unknown} */ ([...cell.children]));
            const done = share(run);
            const active = isActive(run);
            bar.hidden = !active;
            pair.toggleAttribute('data-ended', !active);
            if (active) {
                setMeter(bar, done);
                bar.setAttribute('aria-label', `Progress of run ${run.id}`);
                bar.dataset.tone = run.state === 'running' ? 'run' : 'idle';
            }
            setText(pair.children[0], !active ? duration(run.used) : run.step === null || !run.started ? (run.totalSteps ? `0 / ${number(run.totalSteps)}` : '–')
                : `${number(run.step)}${run.totalSteps ? ` / ${number(run.totalSteps)}` : ''}`);
            setText(pair.children[1], !active ? (done !== null && done < 1 ? `${Math.floor(done * 100)} %` : '') : done === null ? '' : `${Math.floor(done * 100)} %`);
        } },
    { id: 'course', title: 'Loss curve', group: 'Run', width: 100, text: 'Validation loss over the run.', metric: COURSE_KEY, value: run => run.latest[COURSE_KEY], draw: drawSpark },
    { id: 'loss', title: 'Loss', group: 'Run', width: 92, num: true, value: loss, text: 'The latest validation loss, else the training loss.',
        draw: (cell, run) => put(cell, lossWord(run)) },
    { id: 'time', title: 'Time', group: 'Run', width: 116, num: true, down: true, text: 'Time on devices, without waiting and pauses.', value: run => run.used,
        draw: (cell, run) => put(cell, duration(run.used)) },
    { id: 'created', title: 'Created', group: 'Run', width: 100, num: true, down: true, value: run => Date.parse(run.created),
        draw: (cell, run) => put(cell, ago(run.created), moment(run.created)) },
    { id: 'ended', title: 'Ended', group: 'Run', width: 112, num: true, down: true, value: run => (run.ended ? Date.parse(run.ended) : null),
        draw: (cell, run) => put(cell, ago(run.ended), moment(run.ended)) },
    { id: 'id', title: 'Number', group: 'Run', width: 84, num: true, down: true, value: run => Number(run.id), draw: (cell, run) => put(cell, `#${run.id}`) },
    { id: 'job', title: 'Job', group: 'Run', width: 84, num: true, down: true, value: run => Number(run.jobId), draw: (cell, run) => put(cell, `#${run.jobId}`) },
    { id: 'experiment', title: 'Experiment', group: 'Run', width: 116, value: run => run.experiment, draw: (cell, run) => put(cell, run.experiment) },
    { id: 'tags', title: 'Tags', group: 'Run', width: 180, value: run => Object.entries(run.tags).join() || null,
        draw(cell, run) {
            const text = JSON.stringify(run.tags);
            if (cell.dataset.now === text)
                return;
            cell.dataset.now = text;
            fill(cell, Object.entries(run.tags).map(([key, value]) => h('button', {
                type: 'button', class: 'tag', tabindex: -1, data: { tag: `${key}=${value}` }, title: `Only runs with ${key} = ${value}`,
            }, value === '' ? key : `${key} ${value}`)));
        } },
    { id: 'steps', title: 'Step', group: 'Run', width: 92, num: true, down: true, value: run => run.step, draw: (cell, run) => put(cell, number(run.step)) },
    { id: 'attempts', title: 'Attempts', group: 'Run', width: 92, num: true, down: true, value: run => run.attempts, draw: (cell, run) => put(cell, String(run.attempts)) },
    { id: 'priority', title: 'Priority', group: 'Run', width: 84, num: true, down: true, value: run => run.priority, draw: (cell, run) => put(cell, String(run.priority)) },
    { id: 'device', title: 'Device', group: 'Run', width: 132, value: run => run.device, draw: (cell, run) => put(cell, run.device || '–') },
    { id: 'reason', title: 'Reason', group: 'Run', width: 240, value: run => run.reason || null, draw: (cell, run) => put(cell, run.reason || '–') },
];

/** Members of the configuration that people ask for most: the table shows those that differ. Any other is chosen by its pointer. */
export const fields = [
    ['/attention/activation', 'Activation'], ['/attention/degree', 'Degree p'], ['/attention/scale', 'Scale'], ['/attention/k', 'Scale k'],
    ['/model/preset', 'Model'], ['/model/width', 'Width'], ['/model/depth', 'Depth'], ['/model/heads', 'Heads'], ['/norm/placement', 'Norms'],
    ['/data/dataset', 'Data'], ['/train/optimizer/name', 'Optimiser'], ['/train/optimizer/lr', 'Peak rate'], ['/train/batch', 'Batch'],
    ['/train/epochs', 'Epochs'], ['/train/seed', 'Seed'],
];

/**
 * A setting in a few words; an arm of a sweep is an object of several.
 * @param {unknown} value
 * @returns {string}
 */
export function short(value) {
    if (typeof value === 'number')
        return Number.isInteger(value) ? String(value) : number(value);
    if (value && typeof value === 'object' && !Array.isArray(value))
        return Object.entries(value).map(([key, part]) => `${key} ${short(part)}`).join(', ');
    return typeof value === 'string' ? value : value === undefined ? '–' : JSON.stringify(value);
}

/**
 * @param {string} key
 * @returns {Column}
 */
function metricColumn(key) {
    const metric = describe(key);
    const tail = key.split('/').pop() ?? '';
    // Several series share a panel, and its title; the end of the key identifies each.
    const side = metric.panel ? ` (${tail.replaceAll('_', ' ')})` : '';
    return {
        id: `m:${key}`, title: metric.key === metric.title ? key : metric.title + side, group: 'Metrics', text: metric.text, width: 122, num: true,
        metric: key, down: metric.better === 'more', value: run => run.latest[key], draw: (cell, run) => put(cell, present(metric, run.latest[key] ?? null)),
    };
}

/**
 * @param {string} pointer
 * @returns {Column}
 */
function fieldColumn(pointer) {
    const known = fields.find(([path]) => path === pointer);
    return {
        id: `c:${pointer}`, title: known?.[1] ?? pointer.slice(1).replaceAll('/', '.'), group: 'Configuration', text: pointer, width: 88, field: pointer,
        value(run) {
            const value = run.fields[pointer];
            return typeof value === 'number' || typeof value === 'string' ? value : value === undefined || value === null ? null : JSON.stringify(value);
        },
        draw: (cell, run) => put(cell, short(run.fields[pointer] ?? undefined)),
    };
}

const settings = fields.map(([pointer]) => fieldColumn(pointer));

/** Those of the catalogue of metrics, and of which one they are. @type {{of: import('../metrics.js').Metric[], columns: Column[]}} */
let measured = { of: [], columns: [] };

/** Everything that the chooser offers by name. */
export function offered() {
    if (measured.of !== metrics)
        measured = { of: metrics, columns: metrics.filter(metric => !metric.named && (metric.group === 'training' || metric.group === 'system')).map(metric => metricColumn(metric.key)) };
    return [...own, ...measured.columns, ...settings];
}

/**
 * @param {string} id
 * @returns {Column | null}
 */
export function columnOf(id) {
    const known = offered().find(column => column.id === id);
    if (known)
        return known;
    if (/^m:.{1,255}$/.test(id))
        return metricColumn(id.slice(2));
    return /^c:\/.{1,127}$/.test(id) ? fieldColumn(id.slice(2)) : null;
}

/** @typedef {{column: Column, width: number}} Chosen */

const MOST_DIFFERING = 4;

/** @param {string[]} ids @returns {Chosen[]} */
const choiceOf = ids => ids.map(id => {
    const column = /** @type {Column} */ (columnOf(id));
    return { column, width: column.width };
});

/** What a table without a choice of one's own asks the first page for. */
export const candidates = { metrics: [...RESULTS, 'loss/train'], fields: fields.map(([pointer]) => pointer).filter(pointer => pointer !== '/train/seed') };

/**
 * The columns of a table without a choice of one's own: what was reached comes first, then the settings that tell these runs
 * apart, then when and how long.
 * @param {Run[]} [runs]
 * @param {string[]} [settings] pointers, where they are settled already
 * @returns {Chosen[]}
 */
export function standardChoice(runs = [], settings) {
    const results = RESULTS.filter(key => runs.some(run => (run.latest[key] ?? null) !== null));
    const differing = settings ?? candidates.fields.filter(pointer => new Set(runs.map(run => JSON.stringify(run.fields[pointer] ?? null))).size > 1)
        // What nearly every run has for itself (a rate drawn at random) tells less than what groups them; few values come first.
        .map(pointer => ({ pointer, many: new Set(runs.map(run => JSON.stringify(run.fields[pointer] ?? null))).size }))
        .sort((a, b) => a.many - b.many).slice(0, MOST_DIFFERING).map(({ pointer }) => pointer);
    return choiceOf(['state', 'name', ...(results.length > 0 ? results.map(key => `m:${key}`) : ['loss']), ...(results.includes(COURSE_KEY) ? ['course'] : []),
        ...candidates.fields.filter(pointer => differing.includes(pointer)).map(pointer => `c:${pointer}`), 'progress', 'created']);
}

/**
 * `state,name~280,m:loss/val`: the columns in order, with widths that differ from their own. Unknown ones, and those
 * above what one request may ask for, are left out; the run itself is always there. Without a text there is no choice: null.
 * @param {string | null | undefined} text
 * @returns {Chosen[] | null}
 */
export function parseColumns(text) {
    /** @type {Chosen[]} */
    const chosen = [];
    for (const part of (text ?? '').split(',')) {
        const [, id, width] = /^(.*?)(?:~(\d{2,4}))?$/.exec(part) ?? [];
        let name = id ?? '';
        try {
            name = decodeURIComponent(name);
        } catch { /* taken as it stands */ }
        const column = columnOf(name);
        if (column && !chosen.some(other => other.column.id === column.id) && fits(chosen, column))
            chosen.push({ column, width: width ? Math.min(900, Math.max(56, Number(width))) : column.width });
    }
    if (chosen.length === 0)
        return null;
    if (!chosen.some(({ column }) => column.id === 'name'))
        chosen.unshift(...choiceOf(['name']));
    return chosen;
}

/** @param {Chosen[]} chosen */
export function formatColumns(chosen) {
    return chosen.map(({ column, width }) => `${column.id.replaceAll(/[%,~]/g, encodeURIComponent)}${width === column.width ? '' : `~${Math.round(width)}`}`).join(',');
}

/**
 * Would one request still do?
 * @param {Chosen[]} chosen
 * @param {Column} column
 */
export function fits(chosen, column) {
    return (!column.metric || wantedMetrics([...chosen, { column, width: 0 }]).length <= MOST) &&
        (!column.field || chosen.filter(other => other.column.field).length < MOST);
}

/** Columns whose order is not what one reads. @type {Record<string, (run: Run) => Sortable>} */
const written = { state: standing, name: run => run.name, created: run => run.created, ended: run => run.ended };

/**
 * Rows of a CSV with the columns shown, by metric key, pointer or name; numbers in full.
 * @param {Run[]} runs
 * @param {Chosen[]} chosen
 * @returns {string[][]}
 */
export function tableRows(runs, chosen) {
    const columns = chosen.flatMap(({ column }) => (column.id === 'loss' ? LOSS_KEYS.map(metricColumn) : [column])).filter(column => !['id', 'course'].includes(column.id));
    const cell = (/** @type {Sortable} */ value) => (value === null || value === undefined ? '' : String(value));
    return [['id', ...columns.map(column => column.metric ?? column.field ?? column.id)],
        ...runs.map(run => [run.id, ...columns.map(column => cell((written[column.id] ?? column.value)(run)))])];
}

/** @param {Chosen[]} chosen */
export function wantedMetrics(chosen) {
    const keys = chosen.some(({ column }) => column.id === 'loss') ? LOSS_KEYS.slice() : [];
    for (const { column } of chosen)
        if (column.metric && !keys.includes(column.metric))
            keys.push(column.metric);
    return keys;
}

/** @param {Chosen[]} chosen */
export const wantedFields = chosen => chosen.flatMap(({ column }) => column.field ?? []);

/**
 * An order of runs: by the column, ties by age, newest first; runs without a value come last either way.
 * @param {Column} column
 * @param {boolean} down
 * @returns {(a: Run, b: Run) => number}
 */
export function comparator(column, down) {
    const sign = down ? -1 : 1;
    const lacks = (/** @type {Sortable} */ v) => v === null || v === undefined || (typeof v === 'number' && Number.isNaN(v));
    return (a, b) => {
        const x = column.value(a);
        const y = column.value(b);
        const none = Number(lacks(x)) - Number(lacks(y));
        if (none !== 0)
            return none;
        if (!lacks(x) && x !== y) {
            // Words among numbers (a scale may be 0.25 or "learned") stand behind them.
            if (typeof x !== typeof y)
                return sign * (typeof x === 'number' ? -1 : 1);
            return sign * (/** @type {any} */ (x) < /** @type {any} */ (y) ? -1 : 1);
        }
        return Number(b.id) - Number(a.id);
    };
}
