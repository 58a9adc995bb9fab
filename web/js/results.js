// The API's results over several runs: jobs with their sweeps, comparisons. Names are turned into ours here.
import { json, query, toRun } from './api.js';
import { toNumber } from './format.js';

/** @typedef {import('./types').Statistic} Statistic */

/**
 * @param {string} name
 * @param {string[]} values
 */
const each = (name, values) => values.map(value => `&${name}=${encodeURIComponent(value)}`).join('');

/**
 * @param {any} raw
 * @returns {Statistic}
 */
const toStatistic = raw => ({ n: raw.n, missing: raw.missing, mean: toNumber(raw.mean), sd: toNumber(raw.sd), min: toNumber(raw.min), max: toNumber(raw.max) });

/**
 * @param {Record<string, any>} raw
 * @returns {Record<string, Statistic>}
 */
const toStatistics = raw => Object.fromEntries(Object.entries(raw).map(([key, value]) => [key, toStatistic(value)]));

/**
 * Jobs of more than one run, newest first.
 * @param {{cursor?: string | null, limit?: number, name?: string}} options
 * @param {AbortSignal} signal
 * @returns {Promise<{jobs: import('./types').Job[], next: string | null}>}
 */
export async function listSweeps(options, signal) {
    const page = await json(`/api/v1/jobs${query({ ...options, sweep: 1 })}`, { signal });
    return { jobs: page.jobs, next: page.next ?? null };
}

/**
 * @param {string} id
 * @param {AbortSignal} signal
 * @returns {Promise<import('./types').Job>}
 */
export const readJob = (id, signal) => json(`/api/v1/jobs/${encodeURIComponent(id)}`, { signal });

/**
 * All combinations of a sweep with their trials.
 * @param {string} id
 * @param {{metrics: string[], value: string, open: boolean, baseline: string}} options `baseline`: the combination from which differences are taken; "": none
 * @param {AbortSignal} signal
 * @returns {Promise<import('./types').Sweep>}
 */
export async function readSweep(id, { metrics, value, open, baseline }, signal) {
    let cursor = null;
    /** @type {any} */
    let first = null;
    const table = [];
    do {
        const page = /** @type {any} */ (await json(`/api/v1/jobs/${encodeURIComponent(id)}/sweep${query({ limit: 1000, runs: 1, value, open: open ? 1 : null, baseline: baseline || null, cursor })}${each('metric', metrics)}`, { signal }));
        first ??= page;
        table.push(...page.table);
        cursor = page.next;
    } while (cursor && table.length < 10000);
    return {
        ...first,
        best: first.best && { ...first.best, value: toStatistic(first.best.value) },
        best_run: first.best_run && { ...first.best_run, value: toNumber(first.best_run.value) },
        table: table.map(row => ({
            ...row, metrics: toStatistics(row.metrics),
            paired: row.paired && Object.fromEntries(Object.entries(row.paired).map(([key, d]) => [key, { n: d.n, mean: toNumber(d.mean), low: toNumber(d.low), high: toNumber(d.high) }])),
            versus_best: row.versus_best && Object.fromEntries(Object.entries(row.versus_best).map(([key, d]) => [key, { ...d, difference: toNumber(d.difference), low: toNumber(d.low), high: toNumber(d.high) }])),
            trials: (row.trials ?? []).map((/** @type {any} */ t) => ({ ...t, metrics: Object.fromEntries(Object.entries(t.metrics).map(([key, v]) => [key, toNumber(/** @type {any} */ (v))])) })),
        })),
    };
}

/**
 * @param {string} id
 * @param {{key: string, x: string, points: number[], buckets: number, open: boolean}} options
 * @param {AbortSignal} signal
 * @returns {Promise<{point: number, values: Record<string, unknown>, data: {x: number, n: number, mean: number | null, sd: number | null}[]}[]>}
 */
export async function readSweepCurves(id, { key, x, points, buckets, open }, signal) {
    const raw = await json(`/api/v1/jobs/${encodeURIComponent(id)}/sweep/curves${query({ key, x, buckets, open: open ? 1 : null })}${each('point', points.map(String))}`, { signal });
    return raw.curves.map((/** @type {any} */ c) => ({
        point: c.point, values: c.values,
        data: c.data.map((/** @type {any} */ d) => ({ x: toNumber(d.x), n: d.n, mean: toNumber(d.mean), sd: toNumber(d.sd) })),
    }));
}

/**
 * A sweep against one of its axes. `axis`: "" for the last one of numbers.
 * @param {string} id
 * @param {{metric: string, axis: string, open: boolean}} options
 * @param {AbortSignal} signal
 * @returns {Promise<import('./types').SweepAnalysis>}
 */
export async function readAnalysis(id, { metric, axis, open }, signal) {
    const raw = /** @type {any} */ (await json(`/api/v1/jobs/${encodeURIComponent(id)}/sweep/analysis${query({ metric: metric || null, axis: axis || null, open: open ? 1 : null })}`, { signal }));
    return {
        ...raw,
        panels: raw.panels.map((/** @type {any} */ p) => ({
            ...p, points: p.points.map((/** @type {any} */ at) => ({ ...at, value: toStatistic(at.value) })),
            best: p.best && { ...p.best, mean: toNumber(p.best.mean), low: toNumber(p.best.low), high: toNumber(p.best.high), share: toNumber(p.best.share) },
            usable: p.usable && { ...p.usable, decades: toNumber(p.usable.decades), limit: toNumber(p.usable.limit) },
        })),
        slopes: raw.slopes.map((/** @type {any} */ s) => ({ ...s, a: toNumber(s.a), b: toNumber(s.b), low: toNumber(s.low), high: toNumber(s.high) })),
    };
}

/**
 * @param {string[]} runs
 * @param {{all: boolean, metrics: string[]}} options
 * @param {AbortSignal} signal
 * @returns {Promise<import('./types').Comparison>}
 */
export async function compareRuns(runs, { all, metrics }, signal) {
    const raw = await json(`/api/v1/compare?${[each('run', runs).slice(1), all ? 'all=1' : '', each('metric', metrics).slice(1)].filter(Boolean).join('&')}`, { signal });
    return {
        runs: raw.runs.map(toRun), fields: raw.fields, differing: raw.differing, same: raw.same,
        metrics: raw.metrics.map((/** @type {any} */ m) => ({ key: m.key, runs: m.runs.map((/** @type {any} */ r) => r && { last: toNumber(r.last), min: toNumber(r.min), max: toNumber(r.max), step: r.step }) })),
    };
}

/**
 * One metric of several runs in few points each.
 * @param {string[]} runs
 * @param {string} key
 * @param {number} buckets
 * @param {AbortSignal} signal
 * @returns {Promise<{id: string, points: [number, number][]}[]>}
 */
export async function readCourses(runs, key, buckets, signal) {
    const raw = await json(`/api/v1/compare/series?${each('run', runs).slice(1)}${each('key', [key])}&buckets=${buckets}`, { signal });
    return raw.series[0].runs.map((/** @type {any} */ run) => ({ id: run.run_id, points: run.data.map((/** @type {any} */ p) => [p.x, toNumber(p.mean)])
        .filter((/** @type {[number, number | null]} */ [, y]) => y !== null && Number.isFinite(y)) }));
}

/**
 * The address of a comparison as CSV.
 * @param {string[]} runs
 * @param {'fields' | 'metrics' | 'series'} what
 * @param {string[]} [keys]
 */
export const compareExport = (runs, what, keys = []) =>
    `/api/v1/compare/export?what=${what}${each('run', runs)}${each(what === 'series' ? 'key' : 'metric', keys)}`;
