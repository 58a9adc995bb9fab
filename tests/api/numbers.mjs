// A sweep whose every number is known, and what is made of such numbers, by formulas that share nothing with the server:
// for the tests of the API and of the pages.
import assert from 'node:assert/strict';

import { submit } from './lib.mjs';

const OUTCOMES = { succeeded: 0, diverged: 1, failed: 2 };
export const METRICS = ['acc/val', 'loss/val'];
export const STEPS = 40; // of a run
export const EPOCHS = 5;

/* By the mean of loss/val combination 1 is the best, by its single run combination 2, and by accuracy combination 0. One run of
 * combination 3 diverged with the least loss of all. */
const centre = { 'acc/val': [0.9, 0.5, 0.4, 0.3], 'loss/val': [4, 2, 3, 6] };
const spread = { 'acc/val': [0.05, 0.05, 0.05, 0.05], 'loss/val': [0.5, 0.25, 6, 0.5] };
const outcomeOf = (point, trial) => point === 3 && trial === 1 ? 'diverged' : point === 0 && trial === 3 ? 'failed' : point === 1 && trial === 2 ? 'open' : 'succeeded';

/**
 * Combinations /attention/k 1, 2, 4, 8 in four trials each, with their points. Steps and moments differ from trial to trial;
 * some values are not finite.
 * @returns {Promise<{job: any, runs: {id: string, point: number, trial: number, seed: number, outcome: string, started: number,
 *     series: Map<string, {step: number, value: number, at: number}[]>}[]}>} `at`: seconds since the run began
 */
export async function sweepOf(host) {
    /** The same numbers each time. */
    let salt = 1;
    const noise = () => {
        salt = (salt * 1103515245 + 12345) % 2147483648;
        return salt / 2147483648 - 0.5;
    };
    const job = await submit(host, {
        name: 'many numbers', experiment: 'rollups', trials: 4, attention: { activation: 'poly', scale: 'k' }, tags: { arm: 'one' },
        train: { steps: undefined, epochs: EPOCHS, seed: 70 },
        sweep: { axes: [{ pointer: '/attention/k', values: [1, 2, 4, 8] }], metric: 'loss/val', mode: 'min' },
    });
    const listed = (await host.get(`/api/v1/runs?job=${job.id}&order=oldest&limit=100`)).json.runs;
    assert.equal(listed.length, 16);
    const runs = [];
    for (const run of listed) {
        await host.tell(`start ${run.id}`);
        await host.tell(`length ${run.id} ${STEPS}`);
        const started = Date.parse((await host.get(`/api/v1/runs/${run.id}`)).json.started) / 1000;
        const outcome = outcomeOf(run.point, run.trial), series = new Map();
        for (const key of METRICS) {
            const accuracy = key === 'acc/val', gap = accuracy ? 1 : 2 + run.trial, points = [];
            for (let step = gap; step <= STEPS; step += gap) {
                const wild = accuracy && (step + run.trial) % 11 === 3;
                const value = outcome === 'diverged' ? (accuracy ? 0.01 : -20 - step) : centre[key][run.point] + spread[key][run.point] * noise() * 2 + (accuracy ? 0.03 : 3) / step;
                points.push({ step, value: wild ? [NaN, Infinity, -Infinity][step % 3] : value, at: step * (0.5 + 0.25 * run.trial) });
            }
            series.set(key, points);
            await host.worker(run.id, points.map(p => ({ key, step: p.step, value: word(p.value), time: started + p.at })));
        }
        if (outcome !== 'open')
            await host.tell(`end ${run.id} ${OUTCOMES[outcome]}`);
        runs.push({ id: run.id, point: run.point, trial: run.trial, seed: run.seed, outcome, started, series });
    }
    return { job, runs };
}

export const finite = list => list.filter(Number.isFinite);
export const mean = list => list.length > 0 ? list.reduce((a, b) => a + b, 0) / list.length : null;
export const deviation = list => list.length > 1 ? Math.sqrt(list.reduce((sum, x) => sum + (x - mean(list)) ** 2, 0) / (list.length - 1)) : null;

/** The 97.5 % quantile of Student's t by integration of its density, with x = tan(angle), and bisection. */
export function student(df) {
    const density = angle => (1 + Math.tan(angle) ** 2 / df) ** (-(df + 1) / 2) / Math.cos(angle) ** 2;
    const area = (from, to, n = 20000) => {
        let sum = 0;
        for (let i = 0; i < n; i++)
            sum += density(from + (to - from) * (i + 0.5) / n);
        return sum * (to - from) / n;
    };
    const half = area(0, Math.PI / 2);
    let low = 0, high = Math.PI / 2;
    for (let i = 0; i < 40; i++) {
        const middle = (low + high) / 2;
        if (area(0, middle) / half < 0.95)
            low = middle;
        else
            high = middle;
    }
    return Math.tan(low);
}

/** Welch's 95 % interval of the difference of two means, a less b; null where a list has fewer than two values. */
export function welch(a, b) {
    if (a.length < 2 || b.length < 2)
        return null;
    const [va, vb] = [a, b].map(list => deviation(list) ** 2 / list.length), difference = mean(a) - mean(b);
    if (va + vb === 0)
        return [difference, difference];
    const half = student((va + vb) ** 2 / (va ** 2 / (a.length - 1) + vb ** 2 / (b.length - 1))) * Math.sqrt(va + vb);
    return [difference - half, difference + half];
}

/** How probable a difference of the two means at least this great is if there is none: Welch's t, its density summed up. */
export function chance(a, b) {
    const [va, vb] = [a, b].map(list => deviation(list) ** 2 / list.length);
    const freedom = (va + vb) ** 2 / (va ** 2 / (a.length - 1) + vb ** 2 / (b.length - 1)), t = Math.abs(mean(a) - mean(b)) / Math.sqrt(va + vb);
    /* With x = sqrt(freedom) tan(u) the density is cos(u)^(freedom - 1), up to its whole. */
    const sum = to => {
        let s = 0;
        for (let i = 0; i < 20000; i++)
            s += Math.cos((i + 0.5) / 20000 * to) ** (freedom - 1) * to / 20000;
        return s;
    };
    return 1 - sum(Math.atan(t / Math.sqrt(freedom))) / sum(Math.PI / 2);
}
export const least = list => list.length > 0 ? Math.min(...list) : null;
export const greatest = list => list.length > 0 ? Math.max(...list) : null;
export const pick = { last: points => points.at(-1).value, min: points => least(finite(points.map(p => p.value))), max: points => greatest(finite(points.map(p => p.value))) };
export const statistic = values => ({ n: finite(values).length, missing: values.length - finite(values).length, mean: mean(finite(values)), sd: deviation(finite(values)), min: least(finite(values)), max: greatest(finite(values)) });
export const counted = (list, open = false) => list.filter(run => run.outcome === 'succeeded' || (open && run.outcome === 'open'));

/** As JSON writes it. */
export const word = value => Number.isFinite(value) ? value : String(value);

/** Points of one run by bucket: the bucket of a step is the share of the whole range that lies below it. */
export function buckets(points, lo, hi, count) {
    const found = new Map();
    for (const p of points) {
        const i = Math.floor((p.place - lo) / (hi - lo + 1) * count);
        found.set(i, [...found.get(i) ?? [], p]);
    }
    return found;
}

/**
 * The curve over several runs: of each the mean in a bucket, and over those mean and deviation.
 * @param {'step' | 'epoch' | 'time'} axis
 */
export function curve(list, key, count, axis) {
    const place = { step: p => p.step, epoch: p => p.step / (STEPS / EPOCHS), time: p => p.at }[axis];
    const furthest = Math.max(...list.map(run => run.series.get(key).at(-1)).map(p => axis === 'time' ? p.at : p.step));
    const at = new Map();
    for (const run of list) {
        const points = run.series.get(key).map(p => ({ ...p, place: axis === 'time' ? Math.round(p.at * 1e6) : p.step }));
        for (const [i, inside] of buckets(points, 0, axis === 'time' ? Math.round(furthest * 1e6) : furthest, count)) {
            const values = finite(inside.map(p => p.value)), slot = at.get(i) ?? { x: [], means: [], all: [], nonfinite: 0, count: 0 };
            slot.x.push((place(inside[0]) + place(inside.at(-1))) / 2);
            slot.count += inside.length;
            slot.nonfinite += inside.length - values.length;
            if (values.length > 0) {
                slot.means.push(mean(values));
                slot.all.push(...values);
            }
            at.set(i, slot);
        }
    }
    return [...at].sort((a, b) => a[0] - b[0]).map(([, s]) => ({ x: mean(s.x), n: s.means.length, mean: mean(s.means), sd: deviation(s.means),
        min: least(s.all), max: greatest(s.all), nonfinite: s.nonfinite, count: s.count }));
}
