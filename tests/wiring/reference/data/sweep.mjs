// Which runs a job becomes: sweep.axes and trials of the job document, daemon/job/README.md.

/** Twelve digits, so that the third of log [0.001, 1000, 7] is 0.1 and not 0.10000000000000002. */
const tidy = x => Number(x.toPrecision(12));

/** SplitMix64 (Steele, Lea, Flood 2014): its output for a state. */
function mix(state) {
    const u64 = x => BigInt.asUintN(64, x);
    let x = u64(state + 0x9e3779b97f4a7c15n);
    x = u64((x ^ x >> 30n) * 0xbf58476d1ce4e5b9n);
    x = u64((x ^ x >> 27n) * 0x94d049bb133111ebn);
    return x ^ x >> 31n;
}

/** Uniform in [0, 1), from the sweep's seed, the number of the combination and that of the axis. */
const draw = (seed, combination, axis) =>
    Number(mix(mix(mix(BigInt(seed)) ^ BigInt(combination)) ^ BigInt(axis)) >> 11n) * 2 ** -53;

/** Between lo and hi: evenly, or evenly in logarithms. */
const between = (lo, hi, t, log) => log ? Math.exp(Math.log(lo) + t * (Math.log(hi) - Math.log(lo))) : lo + t * (hi - lo);

function listed(axis, round) {
    if (axis.values)
        return axis.values;
    const [lo, hi, n] = axis.log ?? axis.linear;
    return Array.from({ length: n }, (_, i) =>
        round(i && i === n - 1 ? hi : between(lo, hi, n > 1 ? i / (n - 1) : 0, Boolean(axis.log))));
}

/**
 * What differs between the runs of a job, in their order: the value at each pointer and the trial, whose seed is
 * train.seed + trial. A grid's last axis turns fastest, trials turn faster still.
 * @param {any} job the job document as it was submitted
 * @param {(pointer: string) => boolean} integer whether the field at a pointer holds a whole number
 * @returns {{values: Record<string, unknown>, trial: number}[]}
 */
export function runsOf(job, integer = () => false) {
    const { method = 'grid', axes = [], samples = 16, seed = 0 } = job.sweep ?? {};
    const rounded = axis => integer(axis.pointer) ? x => Math.round(x) : tidy;
    let points = [{}];
    if (method === 'grid') {
        for (const axis of axes)
            points = points.flatMap(point => listed(axis, rounded(axis)).map(value => ({ ...point, [axis.pointer]: value })));
    } else {
        points = Array.from({ length: samples }, (_, n) => Object.fromEntries(axes.map((axis, k) => {
            const u = draw(seed, n, k);
            const list = axis.uniform || axis.loguniform ? null : listed(axis, rounded(axis));
            const [lo, hi] = axis.loguniform ?? axis.uniform ?? [0, 0];
            return [axis.pointer, list ? list[Math.floor(u * list.length)] : rounded(axis)(between(lo, hi, u, Boolean(axis.loguniform)))];
        })));
    }
    return points.flatMap(values => Array.from({ length: job.trials ?? 1 }, (_, trial) => ({ values, trial })));
}
