// Experiments: the list of labels, claims judged against an independent computation, tables, and the report.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { fits } from '../../web/js/experiment/choose.js';
import { made, panelOf, slopeOf, TOKENS } from './analysis.mjs';
import { Host, submit } from './lib.mjs';

const DIVERGED = 1, FAILED = 2, CANCELLED = 3;
let host;
before(async () => { host = await Host.start(); });
after(() => host.stop());

const mean = list => list.reduce((a, b) => a + b, 0) / list.length;
const sd = list => Math.sqrt(list.reduce((a, b) => a + (b - mean(list)) ** 2, 0) / (list.length - 1));
/** 97.5 % quantiles of Student's t, from a printed table. */
const student = { 1: 12.7062, 2: 4.30265, 3: 3.18245 };
function interval(list) {
    const half = student[list.length - 1] * sd(list) / Math.sqrt(list.length);
    return { n: list.length, mean: mean(list), sd: sd(list), low: mean(list) - half, high: mean(list) + half };
}
const close = (got, wanted, what) => assert.ok(Math.abs(got - wanted) < 2e-5 * (1 + Math.abs(wanted)), `${what}: ${got} instead of ${wanted}`);
const closeAll = (got, wanted) => Object.keys(wanted).forEach(key => close(got[key], wanted[key], key));

const send = async (template, more = {}) => {
    const reply = await host.post('/api/v1/jobs', { template, ...more });
    assert.equal(reply.status, 201, reply.text);
    return reply.json.jobs ?? [reply.json];
};
const end = async (run, outcome = 0) => {
    await host.tell(`start ${run}`);
    await host.tell(`end ${run} ${outcome}`);
};
/** Runs of a job with the last value of a metric; a number succeeds, a word is how the run ended, null stays open. */
async function finish(job, key, rows) {
    const runs = (await host.get(`/api/v1/runs?job=${job}&order=oldest&limit=200`)).json.runs;
    for (const run of runs) {
        const value = rows[run.point]?.[run.trial];
        if (value === null || value === undefined)
            continue;
        const numbers = typeof value === 'number' ? [0.5 * value, value] : [0.1];
        await host.worker(run.id, numbers.map((v, i) => ({ key, step: (i + 1) * 10, value: v, time: Date.now() / 1000 + i })));
        await end(run.id, typeof value === 'number' ? 0 : { diverged: DIVERGED, failed: FAILED, cancelled: CANCELLED }[value]);
    }
    return runs;
}
const experiment = async name => (await host.get(`/api/v1/experiments/${encodeURIComponent(name)}`)).json;

const clean = html => html.replace(/<[^>]*>/g, ' ').replace(/&lt;/g, '<').replace(/&gt;/g, '>').replace(/&quot;/g, '"').replace(/&#39;/g, "'").replace(/&amp;/g, '&');
function* numbers(value, key = '') {
    if (typeof value === 'number')
        yield value;
    else if (value && typeof value === 'object')
        for (const [name, inner] of Object.entries(value))
            yield* numbers(inner, name);
}
/** As printf's %.6g. */
function six(x) {
    if (Number.isInteger(x) && Math.abs(x) < 1e15)
        return [String(x), Number(x).toPrecision(6).replace(/\.?0+$/, '')];
    const [digits, power] = x.toExponential(5).split('e'), p = Number(power);
    const short = text => text.includes('.') ? text.replace(/\.?0+$/, '') : text;
    return [p < -4 || p >= 6 ? `${short(digits)}e${p < 0 ? '-' : '+'}${String(Math.abs(p)).padStart(2, '0')}` : short(x.toFixed(Math.max(0, 5 - p)))];
}

/* E04's combinations: softmax, fixed, learned, raw. Two claims: not_less than raw to one point, two: within two points of softmax. */
const verdicts = x => x.submissions.map(s => s.claims.map(c => c.verdict));

test('claims are judged by the paired differences, each verdict as computed here', async () => {
    const label = 'verdicts';
    const values = [[0.90, 0.92, 0.91], [0.905, 0.921, 0.914], [0.80, 0.85, 0.70], [0.85, 0.89, 0.875]];
    const [job] = await send('E04', { experiment: label });
    assert.deepEqual(verdicts(await experiment(label)), [['open', 'open', 'open', 'open']]);
    assert.equal((await experiment(label)).verdict, 'open');
    await finish(job.id, 'acc/val', values);
    const x = await experiment(label), [s] = x.submissions;
    const minus = (a, b) => a.map((v, i) => v - b[i]);
    const wanted = [
        [minus(values[1], values[3]), d => d.low >= -0.01 ? 'holds' : d.high < -0.01 ? 'fails' : 'undecided'],
        [minus(values[2], values[3]), d => d.low >= -0.01 ? 'holds' : d.high < -0.01 ? 'fails' : 'undecided'],
        [minus(values[1], values[0]), d => d.low >= -0.02 && d.high <= 0.02 ? 'holds' : d.low > 0.02 || d.high < -0.02 ? 'fails' : 'undecided'],
        [minus(values[2], values[0]), d => d.low >= -0.02 && d.high <= 0.02 ? 'holds' : d.low > 0.02 || d.high < -0.02 ? 'fails' : 'undecided']];
    wanted.forEach(([differences, rule], i) => {
        closeAll(s.claims[i].difference, interval(differences));
        assert.equal(s.claims[i].verdict, rule(interval(differences)), s.claims[i].says);
        assert.deepEqual([s.claims[i].seeds, s.claims[i].why], [[0, 1, 2], null]);
    });
    assert.deepEqual(s.claims.map(c => c.verdict), ['holds', 'undecided', 'holds', 'undecided']);
    assert.deepEqual([s.verdict, x.verdict, s.changed, s.jobs, s.template], ['undecided', 'undecided', [], [job.id], 'E04 small 2']);
    assert.deepEqual(s.claims[0].arm.map(p => [p.job_id, p.point, p.chosen, p.values['/attention'].scale]), [[job.id, 1, false, 'fixed']]);
    closeAll(s.claims[0].arm[0].statistic, { n: 3, mean: mean(values[1]), sd: sd(values[1]), min: 0.905, max: 0.921 });
    // The table: each row less softmax's.
    const { table } = x.job_list[0];
    assert.deepEqual([table[0].paired, table[2].paired.against], [null, 0]);
    values.forEach((list, i) => {
        closeAll(table[i].statistic, { n: 3, mean: mean(list), sd: sd(list) });
        if (i)
            closeAll(table[i].paired.difference, interval(minus(list, values[0])));
    });
});

test('a claim fails where the interval lies on the other side, and the worst submission is the verdict', async () => {
    const label = 'worst', good = [[0.90, 0.92, 0.91], [0.901, 0.922, 0.911], [0.902, 0.921, 0.912], [0.904, 0.924, 0.914]]; // raw is above, within the margin
    const [first] = await send('E04', { experiment: label });
    await finish(first.id, 'acc/val', good);
    assert.equal((await experiment(label)).verdict, 'holds');
    const [second] = await send('E04', { experiment: label, trials: 2, train: { epochs: 3 } });
    assert.equal((await experiment(label)).verdict, 'open');
    await finish(second.id, 'acc/val', [[0.9, 0.9], [0.6, 0.6001], [0.9, 0.901], [0.8, 0.8]]);
    const x = await experiment(label);
    assert.deepEqual(x.submissions.map(s => s.verdict), ['holds', 'fails']);
    assert.deepEqual(x.submissions[1].claims.map(c => c.verdict), ['fails', 'holds', 'fails', 'holds']);
    assert.equal(x.verdict, 'fails');
    assert.deepEqual(x.submissions[1].changed.sort(), ['/train/epochs', '/trials']);
    // A submission without any result says nothing of the experiment.
    const [third] = await send('E04', { experiment: label });
    await host.post(`/api/v1/jobs/${third.id}/cancel`, {});
    const after = await experiment(label);
    assert.deepEqual(after.submissions.map(s => s.verdict), ['holds', 'fails', 'open']);
    assert.match(after.submissions[2].claims[0].why, /no seed has a result/);
    assert.deepEqual([after.verdict, after.jobs, after.runs.total, after.runs.cancelled], ['fails', 3, 32, 12]);
});

test('a run that diverged is worse than any finite value, and says so', async () => {
    const label = 'diverged';
    const [job] = await send('E04', { experiment: label });
    // The raw cubic diverges in two of three seeds; the learned one in one.
    await finish(job.id, 'acc/val', [[0.90, 0.92, 0.91], [0.901, 0.922, 0.911], [0.902, 'diverged', 0.912], ['diverged', 'diverged', 0.86]]);
    const { claims } = (await experiment(label)).submissions[0];
    // fixed against raw: +inf, +inf, 0.051: one finite difference has no interval.
    assert.deepEqual([claims[0].verdict, claims[0].difference.n, claims[0].diverged], ['undecided', 1, { arm: 0, against: 2 }]);
    assert.match(claims[0].why, /only one seed did not diverge/);
    // learned against raw: +inf, both diverged, finite.
    assert.deepEqual([claims[1].verdict, claims[1].diverged], ['undecided', { arm: 1, against: 2 }]);
    assert.match(claims[1].why, /1 of the seeds diverged on both sides/);
    assert.equal(claims[2].verdict, 'holds');
    // learned against softmax: finite, -inf, finite: the interval is open below.
    assert.deepEqual([claims[3].verdict, claims[3].difference.n, claims[3].seeds], ['undecided', 2, [0, 1, 2]]);
    assert.match(claims[3].why, /worse than any finite value: 1 of the seeds/);
    const [all] = await send('E04', { experiment: 'all diverged' .replace(' ', '-') });
    await finish(all.id, 'acc/val', [[0.9, 0.9, 0.9], [0.9, 0.9, 0.9], ['diverged', 'diverged', 'diverged'], ['diverged', 'diverged', 'diverged']]);
    assert.deepEqual((await experiment('all-diverged')).submissions[0].claims.map(c => c.verdict), ['holds', 'undecided', 'holds', 'fails']);
});

test('no seed is left out: one that failed, one that is open, one that is alone', async () => {
    const [failed] = await send('E04', { experiment: 'seeds' });
    await finish(failed.id, 'acc/val', [[0.90, 0.92, 0.91], [0.901, 0.922, 'failed'], [0.902, 0.921, null], [0.85, 0.87, 0.86]]);
    const { claims } = (await experiment('seeds')).submissions[0];
    assert.deepEqual(claims.map(c => [c.verdict, c.open, c.without_result]), [['undecided', 0, 1], ['open', 1, 0], ['undecided', 0, 1], ['open', 1, 0]]);
    assert.match(claims[0].why, /1 of the seeds have no result, and none may be left out afterwards/);
    assert.deepEqual(claims[0].seeds, [0, 1]);
    const [alone] = await send('E04', { experiment: 'alone', trials: 1 });
    await finish(alone.id, 'acc/val', [[0.9], [0.91], [0.92], [0.5]]);
    for (const claim of (await experiment('alone')).submissions[0].claims)
        assert.deepEqual([claim.verdict, /one seed gives no interval/.test(claim.why), claim.difference.low], ['undecided', true, null]);
    // A run that is deleted afterwards is missed.
    const [cut] = await send('E04', { experiment: 'deleted' });
    const runs = await finish(cut.id, 'acc/val', [[0.90, 0.92, 0.91], [0.901, 0.922, 0.911], [0.902, 0.921, 0.912], [0.85, 0.87, 0.86]]);
    assert.equal((await experiment('deleted')).verdict, 'holds');
    await host.call('DELETE', `/api/v1/runs/${runs.at(-1).id}`, { headers: { 'If-Match': '*' } });
    assert.deepEqual((await experiment('deleted')).submissions[0].claims.map(c => [c.verdict, c.without_result]), [['undecided', 1], ['undecided', 1], ['holds', 0], ['holds', 0]]);
});

test('a number, a relative margin, a distance, the least and greatest of a series', async () => {
    const [job] = await send('E11', { experiment: 'E11' }); // within 5 % of softmax; raw not below
    const loss = [[1.00, 1.02, 1.04], [1.02, 1.04, 1.06], [1.2, 1.22, 1.25], [0.9, 0.92, 0.93]];
    await finish(job.id, 'loss/val', loss);
    const { claims } = (await experiment('E11')).submissions[0];
    [1, 2].forEach(i => closeAll(claims[i - 1].difference, interval(loss[i].map((v, k) => (v - loss[0][k]) / loss[0][k]))));
    assert.deepEqual(claims.map(c => c.verdict), ['holds', 'fails', 'fails']);
    // E03: softmax's Jacobian never above half the root of N; the scaled cubic nearer to it than the raw one.
    const [norms] = await send('E03', { experiment: 'E03' });
    const last = { 0: [3, 3.1, 3.2], 1: [3.4, 3.3, 3.5], 2: [9, 9.5, 9.1] }; // patch 2: softmax, fixed, none
    for (const run of (await host.get(`/api/v1/runs?job=${norms.id}&order=oldest`)).json.runs) {
        const value = last[run.point]?.[run.trial];
        if (value === undefined)
            continue;
        await host.worker(run.id, [{ key: 'attn/jac_fro/2', step: 1, value: 6.9 + 0.01 * run.trial }, { key: 'attn/jac_fro/2', step: 2, value }]);
        await end(run.id);
    }
    const e03 = (await experiment('E03')).submissions[0].claims;
    assert.deepEqual(e03.slice(0, 2).map(c => c.verdict), ['holds', 'holds']);
    closeAll(e03[0].difference, interval([6.9 - 7, 6.91 - 7, 6.92 - 7]));
    assert.deepEqual([e03[0].bound, e03[0].value, e03[0].against, e03[1].arm.length], [7, 'max', [], 2]);
    closeAll(e03[1].difference, interval([0, 1, 2].map(i => Math.abs(last[1][i] - last[0][i]) - Math.abs(last[2][i] - last[0][i]))));
    assert.equal(e03[2].verdict, 'open');
});

test('two jobs of one submission, the best of several, gaps', async () => {
    const jobs = await send('E13', { experiment: 'E13' });
    assert.equal(jobs.length, 2);
    // Placement S1, S5; AdamW, then momentum SGD at 0.03, 0.1, 0.3, 1.
    const rows = [[0.9, 0.91], [0.5, 0.52], [0.7, 0.71], [0.6, 0.6], ['diverged', 'diverged'], [0.92, 0.93], [0.8, 0.81], [0.9, 0.92], [0.85, 0.86], [0.6, 0.62]];
    const full = rows.map(list => [...list, list[0]]);
    await finish(jobs[0].id, 'acc/val', full);
    const x = await experiment('E13'), [s] = x.submissions;
    assert.deepEqual([s.jobs.length, x.submissions.length], [2, 1]);
    const gap = i => (full[5][i] - full[7][i]) - (full[0][i] - full[2][i]);
    assert.deepEqual(s.claims[0].arm.map(p => [p.point, p.chosen]), [[5, false], [7, true]]);
    assert.deepEqual(s.claims[0].against.map(p => [p.point, p.chosen]), [[0, false], [2, true]]);
    closeAll(s.claims[0].difference, interval([gap(0), gap(1), gap(2)]));
    assert.deepEqual(s.claims.map(c => c.verdict), ['holds', 'holds', 'holds', 'open', 'open', 'open']);
    assert.match(s.claims[2].why, /worse than any finite value: 3 of the seeds/);
    assert.equal(x.verdict, 'open');
});

/** E01 small: patches 2, 4, 7, 14, then seven k from 0.001 to 1000. The best k is N to the power of `b`, but for noise. */
async function scales(label, b, { trials = 3, odd = () => null } = {}) {
    const [job] = await send('E01', { experiment: label, trials });
    await made(host, job.id);
    const patches = [2, 4, 7, 14], values = Array.from({ length: 28 }, (_, point) => {
        const tokens = TOKENS[patches[Math.floor(point / 7)]], power = point % 7 - 3; // k = 10^power
        return Array.from({ length: trials }, (__, trial) => odd(point, trial) ?? 0.9 - 0.02 * (power - b * Math.log10(tokens)) ** 2 + 0.003 * Math.sin(7 * point + 3 * trial));
    });
    await finish(job.id, 'acc/val', values);
    const panels = patches.map((patch, i) => ({ tokens: TOKENS[patch],
        panel: panelOf(values.slice(7 * i, 7 * i + 7).map((list, k) => ({ x: 10 ** (k - 3), point: 7 * i + k, values: list.filter(v => typeof v === 'number') })), 'max') }));
    return { wanted: trials > 1 ? slopeOf(panels) : null, x: await experiment(label), panels, id: job.id };
}

let grown; // best k that grows, for several tests
test('a claim of how the best value grows with the number of tokens is judged by the bootstrap interval', async () => {
    grown = await scales('grows', 0.9);
    const { x, wanted, id } = grown, [claim] = x.submissions[0].claims;
    assert.ok(wanted.low > 0 && wanted.low < wanted.b && wanted.b < wanted.high, JSON.stringify(wanted));
    closeAll(claim.slope, { b: wanted.b, low: wanted.low, high: wanted.high });
    closeAll(claim.difference, { n: 4, mean: wanted.b, low: wanted.low, high: wanted.high });
    assert.deepEqual([claim.verdict, claim.why, claim.slope.job_id, claim.slope.axis, claim.arm, claim.against, claim.bound, claim.seeds, claim.difference.sd], ['holds', null, id, '/attention/k', [], [], 0, [0, 1, 2], null]);
    const falls = await scales('falls', -0.9);
    assert.ok(falls.wanted.high < 0);
    assert.equal(falls.x.submissions[0].claims[0].verdict, 'fails');
    const flat = await scales('flat', 0.24);
    assert.ok(flat.wanted.b > 0 && flat.wanted.low <= 0 && flat.wanted.high >= 0, JSON.stringify(flat.wanted));
    assert.equal(flat.x.submissions[0].claims[0].verdict, 'undecided');
});

test('a slope leaves no run out: one that failed, one trial, none yet, another axis', async () => {
    const verdict = ({ x }) => { const [c] = x.submissions[0].claims; return [c.verdict, c.open, c.without_result]; };
    const failed = await scales('slope-failed', 0.9, { odd: (point, trial) => (point === 5 && trial === 2 ? 'failed' : null) });
    assert.deepEqual(verdict(failed), ['undecided', 0, 1]);
    assert.match(failed.x.submissions[0].claims[0].why, /1 of the runs have no result/);
    const alone = await scales('slope-alone', 0.9, { trials: 1 });
    assert.equal(verdict(alone)[0], 'undecided');
    assert.ok(alone.x.submissions[0].claims[0].slope.b > 0 && alone.x.submissions[0].claims[0].slope.low === null);
    const [waits] = await send('E01', { experiment: 'slope-waits' });
    assert.deepEqual(verdict({ x: await experiment('slope-waits') }), ['open', 84, 0]);
    await host.post(`/api/v1/jobs/${waits.id}/cancel`, {});
    const cancelled = await experiment('slope-waits');
    assert.deepEqual([cancelled.submissions[0].claims[0].verdict, cancelled.verdict], ['open', null]);
    const [other] = await send('E01', { experiment: 'slope-other', attention: { k: 10 }, sweep: { method: 'grid', axes: [{ pointer: '/model/patch', values: [2, 4] }], metric: 'acc/val', mode: 'max' } });
    await finish(other.id, 'acc/val', [[0.9, 0.9, 0.9], [0.8, 0.8, 0.8]]);
    assert.deepEqual([verdict({ x: await experiment('slope-other') })[0], (await experiment('slope-other')).submissions[0].claims[0].why], ['undecided', 'its sweep does not have the axis, or is beyond what is analysed']);
});

test('a report has the panels of a sweep by the number of tokens, with pictures where the numbers are', async () => {
    const { panels } = grown, page = (await host.get('/api/v1/experiments/grows/report')).text;
    const { analysis, id } = (await host.get('/api/v1/experiments/grows/report?format=json')).json.job_list[0];
    assert.deepEqual(analysis, (await host.get(`/api/v1/jobs/${id}/sweep/analysis`)).json);
    assert.deepEqual(analysis.panels.map(p => [p.tokens, p.best.x]), panels.map(({ tokens, panel }) => [tokens, panel.best.x]));
    const words = new Set(clean(page).split(/[\s,;:()]+/).map(word => word.replace(/\.$/, '')));
    for (const number of numbers([analysis.slopes.map(({ a, b, low, high, n }) => [a, b, low, high, n]), analysis.panels.map(({ tokens, best, usable }) => [tokens, best.x, best.mean, best.low, best.high, best.share, usable.from, usable.to, usable.decades, usable.limit])]))
        assert.ok(six(number).some(word => words.has(word)), `${number} is not in the report`);
    const figures = [...page.matchAll(/<figure>.*?<\/figure>/gs)].map(m => m[0]);
    assert.equal(figures.length, 4);
    figures.forEach((figure, i) => {
        const dots = [...figure.matchAll(/<circle class="dot c0" cx="([\d.]+)" cy="([\d.]+)"/g)].map(m => [Number(m[1]), Number(m[2])]);
        const means = analysis.panels[i].points.map(p => p.value.mean), at = k => Math.log10(k) + 3;
        assert.equal(dots.length, 7);
        const along = (dots[6][0] - dots[0][0]) / 6, up = (dots[1][1] - dots[0][1]) / (means[1] - means[0]);
        dots.forEach(([cx, cy], k) => assert.ok(Math.abs(cx - dots[0][0] - along * k) < 0.2 && Math.abs(cy - dots[0][1] - up * (means[k] - means[0])) < 0.3));
        assert.ok(Math.abs(Number(/class="top" x1="([\d.]+)"/.exec(figure)[1]) - dots[0][0] - along * at(analysis.panels[i].best.x)) < 0.2);
        assert.ok(Math.abs(Number(/class="root" x1="([\d.]+)"/.exec(figure)[1]) - dots[0][0] - along * at(Math.sqrt(analysis.panels[i].tokens))) < 0.2);
        const [, left, width] = /class="use" x="([\d.]+)" width="([\d.]+)"/.exec(figure).map(Number), { from, to } = analysis.panels[i].usable;
        assert.ok(Math.abs(left + 4 - dots[0][0] - along * at(from)) < 0.2 && Math.abs(width - 8 - along * Math.log10(to / from)) < 0.2);
    });
});

test('the scores of the test part stand beside those of validation, and choose nothing', async () => {
    const [job] = await send('E04', { experiment: 'tested' });
    const values = [[0.90, 0.92, 0.91], [0.905, 0.921, 0.914], [0.80, 0.85, 0.70], [0.85, 0.89, 0.875]], off = [0.1, 0.2, 0.05, -0.2];
    for (const run of (await host.get(`/api/v1/runs?job=${job.id}&order=oldest`)).json.runs)
        await host.worker(run.id, [{ key: 'acc/test', step: 20, value: values[run.point][run.trial] - off[run.point] }]);
    await finish(job.id, 'acc/val', values);
    const [{ table, metric, test_metric: tested }] = (await experiment('tested')).job_list;
    assert.deepEqual([metric, tested], ['acc/val', 'acc/test']);
    values.forEach((list, i) => closeAll(table[i].test, { n: 3, mean: mean(list) - off[i], sd: sd(list), min: Math.min(...list) - off[i], max: Math.max(...list) - off[i] }));
    const words = new Set(clean((await host.get('/api/v1/experiments/tested/report')).text).split(/[\s,;:()]+/));
    for (const { test } of table)
        assert.ok(six(test.mean).some(word => words.has(word)));
    assert.equal((await experiment('verdicts')).job_list[0].test_metric, null);
});

/** The paper's tables of a template with the numbers of an experiment's jobs, computed here from the API's tables of sweeps. */
async function tables(x, small = true) {
    const { targets } = (await host.get(`/api/v1/templates/${x.question.name}`)).json, [s] = x.submissions, jobs = s.jobs.map(id => x.job_list.find(job => job.id === id));
    const sweep = async (job, metric) => (job ? (await host.get(`/api/v1/jobs/${job.id}/sweep?metric=${metric}`)).json.table.map(row => row.metrics[metric]) : []);
    const number = v => (v === null || v === undefined ? null : v), less = (a, b) => (a === null || b === null ? null : a - b);
    const filled = async (job, keys) => { for (const key of keys) if ((await sweep(job, key)).some(v => v?.n)) return key; return keys[0]; };
    return Promise.all(targets.map(async ({ title, source, unit, columns, small: other, rows }) => ({ title, source, unit, columns: await Promise.all(((small && other) || columns).map(async (column, i) => {
        const job = jobs[column.job], metric = await filled(job, column.metrics), lists = [await sweep(job, metric), await sweep(jobs[column.first], metric)];
        const lines = rows.map((row, k) => {
            const of = k === 0 && column.first !== undefined ? jobs[column.first] : job, match = of === job ? row.match : undefined;
            const all = (of?.table ?? []).filter(r => fits(r.values, match)), sign = of?.mode === 'min' ? 1 : -1;
            const best = all.reduce((a, b) => (a === null || (b.statistic.n && sign * b.statistic.mean < sign * (a.statistic.mean ?? Infinity * sign)) ? b : a), null);
            const value = best && lists[of === job ? 0 : 1][best.point], times = unit === '%' ? 100 : 1;
            return { name: row.name, job_id: of?.id ?? null, point: best ? best.point : null, of: all.length, paper: number(row.values[column.value ?? i]), n: value?.n ?? 0, here: value?.n ? value.mean * times : null, sd: value?.n > 1 ? value.sd * times : null };
        });
        return { name: column.name, metric, rows: lines.map((l, k) => ({ ...l, here_less_paper: less(l.here, l.paper), paper_less_first: k ? less(l.paper, lines[0].paper) : null, here_less_first: k ? less(l.here, lines[0].here) : null })) };
    })) })));
}
/** Equal but for rounding, to the last leaf. */
function alike(got, wanted, at) {
    if (typeof wanted === 'number')
        return close(got, wanted, at);
    if (wanted === null || typeof wanted !== 'object')
        return assert.equal(got, wanted, at);
    assert.deepEqual(Object.keys(got).sort(), Object.keys(wanted).sort(), at);
    Object.keys(wanted).forEach(key => alike(got[key], wanted[key], `${at}/${key}`));
}

test('the paper’s tables hold our means, of the test part where it is scored, and the differences', async () => {
    const tested = await experiment('tested'), [column] = tested.submissions[0].targets[0].columns;
    assert.deepEqual([column.metric, column.rows.map(r => r.point)], ['acc/test', [0, 1, 2, 3]]);
    closeAll(column.rows[3], { paper: 45.3, here: 107.1666667, here_less_paper: 61.8666667, paper_less_first: -4.96, here_less_first: 26.1666667 });
    const [first] = await send('E09', { experiment: 'degrees' }); // softmax is a job of its own, whose number is the first row
    const nine = await experiment('degrees');
    await finish(first.id, 'acc/val', [[0.9, 0.8, 0.85]]);
    await finish(nine.job_list[1].id, 'acc/val', nine.job_list[1].table.map((_, i) => [0, 1, 2].map(k => 0.5 + 0.02 * i + 0.001 * k * i)));
    let there = 0;
    for (const label of ['tested', 'verdicts', 'diverged', 'E13', 'E11', 'degrees']) {
        const x = await experiment(label);
        alike(x.submissions[0].targets, await tables(x), label);
        there += x.submissions[0].targets.flatMap(t => t.columns.flatMap(c => c.rows)).filter(r => r.here !== null).length;
    }
    assert.ok(there > 20, `${there} rows have numbers`);
    const of = (await experiment('E13')).submissions[0].targets[0].columns[0].rows.map(r => r.of);
    assert.ok(Math.max(...of) > 1, 'a row is the best of several settings');
    // A variant at the paper's size has the columns of the paper.
    const [paper] = await send('E04', { experiment: 'at-size', variant: 'paper', data: { dataset: 'digits_gen' } });
    const x = await experiment('at-size');
    assert.deepEqual([x.submissions[0].jobs, x.submissions[0].targets[0].columns[0].rows[0].here], [[paper.id], null]);
    alike(x.submissions[0].targets, await tables(x, false), 'at-size');
});

test('the list: every label once, by name, paged', async () => {
    const { experiments } = (await host.get('/api/v1/experiments')).json, names = experiments.map(e => e.name);
    assert.deepEqual(names, [...names].sort());
    const worst = experiments.find(e => e.name === 'worst');
    assert.deepEqual([worst.jobs, worst.template, worst.runs.total, worst.runs.succeeded, worst.runs.open], [3, 'E04 small 2', 32, 20, 0]);
    let path = '/api/v1/experiments?limit=2', seen = [];
    while (path) {
        const page = await host.get(path);
        seen = seen.concat(page.json.experiments.map(e => e.name));
        path = page.headers.link ? /<([^>]*)>/.exec(page.headers.link)[1] : null;
    }
    assert.deepEqual(seen, names);
    for (const query of ['limit=0', 'cursor=x', 'order=newest'])
        assert.equal((await host.get(`/api/v1/experiments?${query}`)).status, 400, query);
    const missing = await host.get('/api/v1/experiments/E99');
    assert.deepEqual([missing.status, missing.json.detail], [404, "there is no experiment 'E99': no job has this label"]);
    assert.equal((await host.get('/api/v1/experiments/E99/report')).status, 404);
});

test('the report is one page with every number of the experiment, without scripts or addresses', async () => {
    for (const name of ['verdicts', 'diverged', 'E13', 'E03', 'worst', 'tested', 'degrees']) {
        const page = await host.get(`/api/v1/experiments/${name}/report`), text = clean(page.text);
        assert.equal(page.status, 200);
        assert.match(page.headers['content-type'], /^text\/html/);
        assert.match(page.headers['content-security-policy'], /default-src 'none'; style-src 'unsafe-inline'/);
        assert.equal(page.headers['content-disposition'], `inline; filename="polyd-${name}.html"`);
        assert.equal(page.text.match(/<script|https?:|src=|url\(|@import|<link|\son\w+=/i), null);
        const words = new Set(text.split(/[\s,;:()]+/).map(word => word.replace(/\.$/, '')));
        const x = await experiment(name);
        for (const number of numbers(x))
            assert.ok(six(number).some(word => words.has(word)), `${name}: ${number} is not in the report`);
        const full = (await host.get(`/api/v1/experiments/${name}/report?format=json`)).json;
        for (const job of full.job_list)
            for (const run of job.run_list)
                assert.ok(words.has(run.run_id) && (run.value === null || six(run.value).some(word => words.has(word))), `${name}: run ${run.run_id}`);
        assert.ok(text.includes(full.polyd) && text.includes(full.job_list[0].configuration.config_digest) && text.includes('not recorded'));
        assert.ok(x.submissions.every(s => s.claims.every(c => text.includes(c.says) && (!c.why || text.includes(c.why)))));
        const { made, polyd, ...rest } = full;
        for (const job of rest.job_list)
            for (const more of ['run_list', 'curves', 'analysis', 'configuration', 'inputs'])
                delete job[more];
        for (const set of rest.submissions)
            delete set.pictures;
        assert.deepEqual(rest, x); // the same numbers
    }
    const json = await host.get('/api/v1/experiments/E13/report?download=1', { headers: { accept: 'application/json' } });
    assert.deepEqual([json.json.name, json.headers['content-disposition']], ['E13', 'attachment; filename="polyd-E13.json"']);
    for (const query of ['format=pdf', 'download=maybe', 'colour=1'])
        assert.equal((await host.get(`/api/v1/experiments/E13/report?${query}`)).status, 400, query);
});

test('the pictures stand where the numbers are', async () => {
    const page = (await host.get('/api/v1/experiments/verdicts/report')).text;
    const dots = [...page.matchAll(/<circle class="mean" cx="([\d.]+)"/g)].map(m => Number(m[1]));
    const means = (await experiment('verdicts')).job_list[0].table.map(row => row.statistic.mean);
    assert.equal(dots.length, 4);
    const scale = (dots[1] - dots[2]) / (means[1] - means[2]);
    means.forEach((value, i) => assert.ok(Math.abs(dots[i] - dots[0] - scale * (value - means[0])) < 0.2));
    const bars = [...page.matchAll(/<line class="sd" x1="([\d.]+)" x2="([\d.]+)"/g)].map(m => m[2] - m[1]);
    (await experiment('verdicts')).job_list[0].table.forEach((row, i) => assert.ok(Math.abs(bars[i] - 2 * scale * row.statistic.sd) < 0.2));
    const lines = [...page.matchAll(/<polyline class="line c\d+" points="([^"]*)"/g)].map(m => m[1].trim().split(' '));
    assert.deepEqual(lines.map(points => points.length), Array(8).fill(2)); // two points of each series: the paper's figure, and the job's curves
    assert.deepEqual(lines.slice(0, 4), lines.slice(4));
});

test('texts of users are text, and a label may hold anything', async () => {
    const evil = '"><script>alert(1)</script>\'&';
    const open = await host.post('/api/v1/runs', { name: `name ${evil}`, experiment: `label/${evil}`, notes: `notes ${evil}`, config: { '<b>': evil } });
    assert.equal(open.status, 201);
    await host.post(`/api/v1/runs/${open.json.id}/metrics`, { points: [{ key: 'loss/val', step: 1, value: 0.25 }] });
    await host.post(`/api/v1/runs/${open.json.id}/finish`, { outcome: 'succeeded' });
    const { experiments } = (await host.get('/api/v1/experiments')).json;
    assert.ok(experiments.some(e => e.name === `label/${evil}` && e.template === null));
    const x = await experiment(`label/${evil}`);
    assert.deepEqual([x.name, x.question, x.verdict, x.submissions, x.job_list[0].table[0].statistic.mean], [`label/${evil}`, null, null, [], 0.25]);
    const page = await host.get(x.report);
    assert.equal(page.text.match(/<script|<b>"/), null);
    for (const text of [`name ${evil}`, `label/${evil}`, `notes ${evil}`])
        assert.ok(clean(page.text).includes(text), text);
    assert.equal(page.headers['content-disposition'], 'inline; filename="polyd-label____script_alert_1___script___.html"');
});

test('a report says what the limits leave out', async () => {
    for (let i = 0; i < 33; i++) {
        const { id } = (await host.post('/api/v1/runs', { name: `own ${i}`, experiment: 'many' })).json;
        await host.post(`/api/v1/runs/${id}/finish`, { outcome: 'succeeded' });
    }
    const x = await experiment('many');
    assert.deepEqual([x.jobs, x.runs.total, x.job_list.length, x.job_list[0].name, x.cut], [33, 33, 32, 'own 1', ['the newest 32 of 33 jobs']]);
    assert.match((await host.get(x.report)).text, /This report is cut\.<\/b> It holds: the newest 32 of 33 jobs\./);
    await submit(host, { experiment: 'wide', sweep: { axes: [{ pointer: '/train/optimizer/lr', log: [1e-5, 1e-1, 201] }] } });
    const wide = (await host.get('/api/v1/experiments/wide/report?format=json')).json;
    assert.deepEqual(wide.cut, [ 'the first 200 of 201 combinations of job ' + wide.job_list[0].id, ...(wide.job_list[0].table.length > 12 ? [`curves of the first 12 of ${wide.job_list[0].table.length} combinations of job ${wide.job_list[0].id}`] : [])]);
});

test('a variant without claims is not judged', async () => {
    const [job] = await send('E16', { experiment: 'E16', variant: 'paper', data: { dataset: 'text_gen', tokenizer: 'bytes' } });
    const [s] = (await experiment('E16')).submissions;
    assert.deepEqual([s.verdict, s.claims, s.why, s.jobs], [null, [], 'this variant has no claims', [job.id]]);
    assert.equal((await experiment('E16')).verdict, null);
});
