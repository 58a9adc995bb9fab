// What an experiment has shown so far: each claim with its verdict, numbers and seeds in words, and the mean of each
// combination with its deviation. The numbers are those of /api/v1/experiments/{experiment}.
import { h } from './dom.js';
import { count, meanWithSd, number } from './format.js';
import { chip } from './states.js';
import { short } from './table/columns.js';

/** @typedef {{n: number, mean: number | null, sd: number | null, low: number | null, high: number | null}} Interval */
/** @typedef {{n: number, missing: number, mean: number | null, sd: number | null, min: number | null, max: number | null}} Statistic */
/** @typedef {{total: number, open: number, succeeded: number, diverged: number, failed: number, cancelled: number, lost: number}} Tally */
/** @typedef {{says: string, verdict: string, why: string | null, metric: string, difference: Interval, seeds: number[], relative: boolean, slope: {axis: string, b: number | null, low: number | null, high: number | null} | null}} Claim */
/** @typedef {{template: string, shows: string | null, jobs: string[], changed: string[], verdict: string | null, why: string | null, claims: Claim[], targets: import('./experiment/pictures.js').Target[]}} Submission */
/** @typedef {{point: number, values: Record<string, unknown>, runs: Tally, statistic: Statistic, test: Statistic | null}} Row */
/** @typedef {{id: string, name: string, state: string, metric: string, test_metric: string | null, points: number, table: Row[], checks: {run_id: string, result: import('./run/check.js').Result}[]}} ExperimentJob */
/** @typedef {{name: string, template: string | null, runs: Tally, verdict: string | null, submissions: Submission[], job_list: ExperimentJob[], cut: string[], report: string}} Experiment */

const FEW = 8; // combinations that are shown without being asked for

/** The difference in words. @param {Claim} claim */
function numbers({ difference: d, seeds, relative, slope }) {
    if (!seeds.length)
        return 'no seed has a result yet';
    if (slope)
        return slope.b === null ? `no exponent; seeds ${seeds.join(', ')}`
            : `best ${slope.axis.split('/').pop()} grows as N to the power of ${number(slope.b)}${slope.low === null || slope.high === null ? '' : `, 95 % interval ${number(slope.low)} to ${number(slope.high)}`}; ${d.n} panels, seeds ${seeds.join(', ')}`;
    const times = relative ? 100 : 1, unit = relative ? ' %' : '', say = (/** @type {number} */ x) => number(x * times);
    const of = `seed${seeds.length === 1 ? '' : 's'} ${seeds.join(', ')}`;
    if (d.mean === null)
        return of;
    const finite = d.n < seeds.length ? ` of the ${d.n} that ${d.n === 1 ? 'is' : 'are'} finite` : '';
    return `difference${finite} ${say(d.mean)}${unit}${d.low === null || d.high === null ? '' : `, 95 % interval ${say(d.low)} to ${say(d.high)}${unit}`}; ${of}`;
}

/** @param {Claim} claim */
const claimLine = claim => h('li', { class: 'claim' }, chip(claim.verdict), h('div', null, h('div', null, `${claim.says[0].toUpperCase()}${claim.says.slice(1)}.`),
    h('div', { class: 'small muted' }, `${claim.metric}: ${numbers(claim)}${claim.why ? `. ${claim.why[0].toUpperCase()}${claim.why.slice(1)}` : ''}.`)));

/** The claims of one submission. @param {Submission} s */
export function submission(s) {
    return h('div', { class: 'stack' },
        s.changed.length ? h('p', { class: 'small' }, h('b', null, 'Changed from the template: '), s.changed.map(p => p.slice(1).replaceAll('/', '.')).join(', '), '.') : null,
        s.why ? h('p', { class: 'small muted' }, `Not judged: ${s.why}.`) : null,
        s.claims.length ? h('ul', { class: 'claims' }, s.claims.map(claimLine)) : null);
}

/** @param {Record<string, unknown>} values */
const say = values => Object.entries(values).map(([key, value]) => (value && typeof value === 'object' && !Array.isArray(value) ? short(value) : `${key.split('/').pop()} ${short(value)}`)).join(', ') || 'all runs';

/**
 * The mean of each combination as a place on a line, with a deviation to either side. Null: no run has a value.
 * @param {ExperimentJob} job
 * @returns {HTMLElement | null}
 */
export function means(job) {
    const ends = job.table.flatMap(({ statistic: { mean, sd } }) => (mean === null ? [] : [mean - (sd ?? 0), mean + (sd ?? 0)]));
    if (!ends.length)
        return null;
    const low = Math.min(...ends), span = Math.max(...ends) - low || 1;
    const place = (/** @type {number} */ x) => `${(100 * (x - low) / span).toFixed(2)}%`;
    const rows = job.table.map(({ values, runs, statistic: { mean, sd, n }, test }) => {
        const track = h('td', { class: 'whisker', 'aria-hidden': 'true' });
        if (mean !== null) {
            const bar = h('span', { class: 'whisker-bar' }), dot = h('span', { class: 'whisker-dot' });
            bar.style.left = place(mean - (sd ?? 0));
            bar.style.width = `${(200 * (sd ?? 0) / span).toFixed(2)}%`;
            dot.style.left = place(mean);
            track.append(h('span', { class: 'whisker-track' }, bar, dot));
        }
        const [m, s] = mean === null ? ['–', ''] : meanWithSd(mean, sd);
        const odd = [['diverged', runs.diverged], ['failed', runs.failed], ['cancelled', runs.cancelled], ['lost', runs.lost], ['open', runs.open]].filter(([, k]) => Number(k) > 0).map(([word, k]) => `${k} ${word}`).join(', ');
        return h('tr', null, h('th', { scope: 'row' }, say(values)), track, h('td', { class: 'num' }, s ? `${m} ± ${s}` : m, h('span', { class: 'muted' }, ` (${n}${odd ? `; ${odd}` : ''})`)),
            job.test_metric ? h('td', { class: 'num tested' }, test?.mean === null || !test ? '–' : meanWithSd(test.mean, test.sd).filter(Boolean).join(' ± ')) : null);
    });
    return h('details', { open: rows.length <= FEW, data: { key: `means-${job.id}` } },
        h('summary', null, `${job.metric} of job ${job.id}: mean ± deviation over the seeds, ${count(job.points)} combination${job.points === 1 ? '' : 's'}`),
        h('div', { class: 'scroll-x', tabindex: 0, role: 'region', 'aria-label': `Means of job ${job.id}` }, h('table', { class: 'means' },
            job.test_metric ? h('thead', null, h('tr', null, h('th', { scope: 'col' }, 'Combination'), h('th', { 'aria-hidden': 'true' }), h('th', { class: 'num', scope: 'col' }, job.metric), h('th', { class: 'num', scope: 'col' }, job.test_metric))) : null,
            h('tbody', null, rows))));
}
