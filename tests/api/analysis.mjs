// A sweep's analysis computed again from the values that were put in, by code that shares nothing with the server: the
// generator, the draws, percentiles, least squares. For the tests of the API and of the page.
import { until } from '../lib/daemon.mjs';
import { submit } from './lib.mjs';
import { deviation, mean } from './numbers.mjs';

export const RESAMPLES = 2000;
export const SEED = 1;
const OUTCOMES = { succeeded: 0, diverged: 1, failed: 2 };

/** Philox 4x32-10 (Salmon et al. 2011). @param {[number, number]} key @param {number[]} counter */
export function philox([k0, k1], counter) {
    let [a, b, c, d] = counter.map(BigInt), x = BigInt(k0), y = BigInt(k1);
    const low = v => v & 0xffffffffn;
    for (let i = 0; i < 10; i++) {
        const p = 0xD2511F53n * a, q = 0xCD9E8D57n * c;
        [a, b, c, d] = [(q >> 32n) ^ b ^ x, low(q), (p >> 32n) ^ d ^ y, low(p)];
        x = low(x + 0x9E3779B9n);
        y = low(y + 0xBB67AE85n);
    }
    return [a, b, c, d].map(Number);
}

/** The trials of a point as resample r draws them. */
function drawn({ point, values }, r) {
    if (values.length === 1)
        return values;
    return values.map((_, i) => values[Number(BigInt(philox([SEED, 0], [r, point, Math.floor(i / 4), 0])[i % 4]) * BigInt(values.length) >> 32n)]);
}

const better = (mode, a, b) => mode === 'max' ? a > b : a < b;
/** Of points ascending in x the one of the best mean; of equal means the first. */
const winner = (mode, points, of) => points.reduce((best, p) => {
    const m = of(p);
    return best === null || better(mode, m, best.m) ? { p, m } : best;
}, null)?.p ?? null;

export function percentile(list, share) {
    const sorted = list.slice().sort((a, b) => a - b), at = share * (sorted.length - 1), low = Math.floor(at);
    return sorted[low] + (at - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]);
}

/** Slope and place of the line through points, by least squares: the normal equations. */
export function line(points) {
    const sum = f => points.reduce((s, p) => s + f(p), 0), n = points.length;
    const sx = sum(p => p[0]), sy = sum(p => p[1]), sxx = sum(p => p[0] ** 2), sxy = sum(p => p[0] * p[1]);
    const b = (n * sxy - sx * sy) / (n * sxx - sx ** 2);
    return { a: (sy - b * sx) / n, b };
}

/**
 * One panel.
 * @param {{x: number, point: number, values: number[], fault?: string}[]} points ascending in x; `fault`: diverged, nonfinite or failed
 * @param {'min' | 'max'} mode
 */
export function panelOf(points, mode) {
    const sums = values => values.reduce((a, b) => a + b, 0) / values.length;
    const candidates = points.filter(p => p.values.length > 0 && !['diverged', 'nonfinite'].includes(p.fault)), positive = points.every(p => p.x > 0);
    const best = winner(mode, candidates, p => mean(p.values));
    if (!best)
        return { best: null, picks: null, usable: null, fine: [] };
    const picks = candidates.length > 1 && candidates.some(p => p.values.length > 1)
        ? Array.from({ length: RESAMPLES }, (_, r) => winner(mode, candidates, p => sums(drawn(p, r)))) : null;
    const scale = x => positive ? Math.log(x) : x, back = v => positive ? Math.exp(v) : v;
    const ends = picks && [0.025, 0.975].map(share => back(percentile(picks.map(p => scale(p.x)), share)));
    const means = candidates.map(p => mean(p.values)), top = mean(best.values);
    const reach = Math.max((Math.max(...means) - Math.min(...means)) / 10, deviation(best.values) ?? 0), limit = mode === 'max' ? top - reach : top + reach;
    const fine = points.map(p => !p.fault && p.values.length > 0 && !better(mode, limit, mean(p.values)));
    let from = points.indexOf(best), to = from;
    while (fine[from - 1])
        from--;
    while (fine[to + 1])
        to++;
    return { best, picks, low: ends?.[0] ?? null, high: ends?.[1] ?? null, share: picks && picks.filter(p => p === best).length / RESAMPLES,
        fine, limit, usable: fine[points.indexOf(best)] ? { from: points[from].x, to: points[to].x } : null };
}

/** @param {{tokens: number, panel: ReturnType<typeof panelOf>}[]} panels */
export function slopeOf(panels) {
    const of = at => line(panels.map(({ tokens, panel }) => [Math.log(tokens), Math.log(at(panel).x)]));
    const slopes = Array.from({ length: RESAMPLES }, (_, r) => of(panel => panel.picks?.[r] ?? panel.best).b);
    return { ...of(panel => panel.best), low: percentile(slopes, 0.025), high: percentile(slopes, 0.975) };
}

/* ---- a job with known values ---- */

/** Waits until the job has all its runs: the first come with it, the others after. */
export async function made(host, id) {
    await host.tell('expand');
    await until('all runs', async () => (({ made, total }) => made === total)((await host.get(`/api/v1/jobs/${id}`)).json.runs));
}

/**
 * A job whose runs end as they are told. Runs come in the order of combinations, then of trials.
 * @param {import('./lib.mjs').Host} host
 * @param {object} document
 * @param {(point: number, trial: number, values: Record<string, any>) => number | string | null | {outcome?: string, value: number | string | null}} reach
 *     the run's only value of the metric; null: none
 */
export async function jobOf(host, document, reach) {
    const job = await submit(host, { trials: 3, ...document });
    await made(host, job.id);
    const { runs } = (await host.get(`/api/v1/runs?job=${job.id}&order=oldest&limit=1000`)).json;
    const out = [];
    for (const run of runs) {
        const told = reach(run.point, run.trial, run.sweep), { outcome = 'succeeded', value } = typeof told === 'object' && told !== null ? told : { value: told };
        if (value !== null)
            await host.worker(run.id, [{ key: document.sweep.metric, step: 10, value, time: Date.now() / 1000 }]);
        if (outcome !== 'open') {
            await host.tell(`start ${run.id}`);
            await host.tell(`end ${run.id} ${OUTCOMES[outcome]}`);
        }
        out.push({ point: run.point, trial: run.trial, values: run.sweep, outcome, value });
    }
    return { job, runs: out };
}

/** The points of the runs that `where` takes, ascending in what the axis holds. */
export function pointsOf(runs, axis, where = () => true) {
    const points = new Map();
    for (const run of runs.filter(r => where(r.values))) {
        const x = run.values[axis], p = points.get(x) ?? { x, point: run.point, values: [], fault: undefined };
        points.set(x, p);
        if (run.outcome === 'succeeded' && typeof run.value === 'number')
            p.values.push(run.value);
        const fault = run.outcome === 'diverged' ? 'diverged' : run.outcome === 'succeeded' && typeof run.value === 'string' ? 'nonfinite' : run.outcome === 'failed' ? 'failed' : undefined;
        p.fault = [p.fault, fault].includes('diverged') ? 'diverged' : p.fault ?? fault;
    }
    return [...points.values()].sort((a, b) => a.x - b.x);
}

/** The same numbers each time, in [-1, 1). */
export function noise(seed = 1) {
    let state = seed;
    return () => {
        state = (state * 1103515245 + 12345) % 2147483648;
        return state / 1073741824 - 1;
    };
}

export const TOKENS = { 2: 196, 4: 49, 7: 16, 14: 4 };

/** E01 small: accuracy with an optimum that grows with N, a plateau within the noise, a divergence at small k and large N, and a failure. */
export function scaleSweep(host) {
    const random = noise(7);
    return jobOf(host, {
        name: 'scale sweep', experiment: 'E01', attention: { activation: 'poly', scale: 'k' },
        sweep: { axes: [{ pointer: '/model/patch', values: [2, 4, 7, 14] }, { pointer: '/attention/k', log: [0.01, 100, 5] }], metric: 'acc/val', mode: 'max' },
    }, (point, trial, values) => {
        const patch = values['/model/patch'], k = values['/attention/k'], off = Math.log10(k) - Math.log10(TOKENS[patch]) / 2;
        const value = 0.9 - 0.08 * off ** 2 + 0.06 * random();
        if (patch === 2 && k === 0.01)
            return { outcome: trial === 1 ? 'diverged' : 'succeeded', value: trial === 1 ? 0.99 : 0.98 };
        return { outcome: patch === 14 && k === 100 && trial === 0 ? 'failed' : 'succeeded', value };
    });
}
