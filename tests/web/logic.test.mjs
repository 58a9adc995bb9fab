// The page's pure parts, run outside a browser.
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, readFileSync, readdirSync } from 'node:fs';
import path from 'node:path';
import test from 'node:test';

import { runEvents } from '../../web/js/api.js';
import { ago, bytes, duration, meanWithSd, number, percent, toNumber } from '../../web/js/format.js';
import { at, meanOf } from '../../web/js/compare/mean.js';
import { describe, fullTitle, metrics, panels, parseKey, positionLines, present, seriesName, setMetrics, unitTitle } from '../../web/js/metrics.js';
import { lineOf, locate, stretchOf } from '../../web/js/pointer.js';
import { withMember } from '../../web/js/quick.js';
import { varies } from '../../web/js/sweep/axes.js';
import { toMatplotlib, toPgfplots } from '../../web/js/chart/code.js';
import { criterion, plotFigure, plotWords } from '../../web/js/chart/plot.js';
import { RunList } from '../../web/js/table/list.js';
import { courseLine } from '../../web/js/table/spark.js';
import { columnOf, comparator, formatColumns, parseColumns, short, standardChoice, tableRows, wantedFields, wantedMetrics } from '../../web/js/table/columns.js';
import { clock, distinctWords, fittingTicks, linearTicks, logTicks, reach, tickMarks, within } from '../../web/js/chart/ticks.js';
import { paintFigure, sizeOf, toCsv } from '../../web/js/chart/figure.js';
import { pdfPainter, svgPainter } from '../../web/js/chart/painters.js';
import { formatStates, freshState, parseStates } from '../../web/js/chart/state.js';
import { distinct } from '../../web/js/compare/names.js';
import { reachOf, smooth, spikes, unitOf } from '../../web/js/smooth.js';
import { readEvents } from '../../web/js/sse.js';
import { ordered } from '../../web/js/theme.js';
import { polyd, root } from '../lib/daemon.mjs';

/** The catalogue of metrics as polyd serves it. */
const catalogue = existsSync(polyd) && JSON.parse(execFileSync(polyd, ['metrics'], { encoding: 'utf8' })).metrics;
const needsPolyd = { skip: !catalogue && 'polyd is not built' };
if (catalogue)
    setMetrics(catalogue);

/** Buckets of so many steps each, with the mean of what was logged at each step. */
const bucketed = (values, size, first = 1) => Array.from({ length: values.length / size }, (_, i) => {
    const part = values.slice(i * size, (i + 1) * size);
    return { first: first + i * size, last: first + (i + 1) * size - 1, mean: part.reduce((a, b) => a + b, 0) / size, count: size, min: Math.min(...part), max: Math.max(...part) };
});
const noisy = Array.from({ length: 4000 }, (_, i) => Math.exp(-i / 900) + .2 * Math.sin(i * 12.9898) * Math.cos(i * 78.233));

test('test_smooth_without_weight_is_the_series', () => {
    assert.deepEqual(smooth(bucketed([1, 2, 3], 1), 0, 1), [1, 2, 3]);
});

test('test_smooth_is_debiased_at_the_start_and_keeps_a_constant', () => {
    for (const kind of ['ema', 'gauss'])
        for (const value of smooth(bucketed(new Array(50).fill(7), 1), .95, 1, kind))
            assert.ok(Math.abs(value - 7) < 1e-9);
    assert.equal(smooth(bucketed([4, 8], 1), .5, 1)[0], 4);
});

test('test_smooth_passes_over_gaps_and_non_finite_values', () => {
    const list = bucketed([2, 0, 0, 0, 2], 1);
    [null, NaN, Infinity].forEach((value, i) => { list[i + 1].mean = value; });
    for (const kind of ['ema', 'gauss'])
        assert.deepEqual(smooth(list, .9, 1, kind).map(v => v && Math.round(v * 1e9) / 1e9), [2, null, null, null, 2]);
});

test('test_smooth_bell_looks_back_as_far_as_ahead', () => {
    const step = bucketed([0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1], 1);
    const line = smooth(step, .5, 1, 'gauss').map(v => v ?? NaN);
    assert.ok(line[5] > .05 && line[5] < .5 && line[6] > .5 && line[6] < .95, String(line));
    for (let i = 0; i < line.length; i++)
        assert.ok(Math.abs(line[i] + line[line.length - 1 - i] - 1) < 1e-12, `not symmetric at ${i}: ${line}`);
});

test('test_smooth_weighs_by_steps_not_by_buckets', () => {
    for (const kind of ['ema', 'gauss'])
        for (const weight of [.6, .9, .97]) {
            const unit = unitOf(4000);
            const wide = smooth(bucketed(noisy, 10), weight, unit, kind);
            const narrow = smooth(bucketed(noisy, 1), weight, unit, kind);
            /* In the middle of a wide bucket both say the same, but for how the bucket's own points lie. */
            for (let i = 20; i < 380; i++)
                assert.ok(Math.abs(wide[i] - (narrow[i * 10 + 4] + narrow[i * 10 + 5]) / 2) < .03, `${kind} ${weight} ${i}: ${wide[i]}, ${narrow[i * 10 + 5]}`);
            /* A zoom that knows what went before draws the very line. */
            const part = smooth(bucketed(noisy, 1).slice(2000 - reachOf(weight, unit), 2600 + reachOf(weight, unit)), weight, unit, kind).slice(reachOf(weight, unit)).slice(0, 600);
            part.forEach((v, i) => assert.ok(Math.abs(v - narrow[2000 + i]) < .02, `${kind} ${weight} zoomed ${i}`));
        }
});

test('test_spikes_are_those_that_stand_out', () => {
    const values = noisy.slice();
    values[1234] = 5;
    values[3001] = -4;
    const list = bucketed(values, 10);
    assert.deepEqual(spikes(list, smooth(list, .6, 10)), [{ at: 123, value: 5 }, { at: 300, value: -4 }]);
    assert.deepEqual(spikes(bucketed(noisy, 10), smooth(bucketed(noisy, 10), .6, 10)), []);
    const zeros = bucketed([...new Array(99).fill(0), 1, ...new Array(200).fill(0)], 1);
    assert.deepEqual(spikes(zeros, zeros.map(b => b.mean)).map(s => s.at), []); /* drawn as it is: nothing hides it */
    assert.deepEqual(spikes(zeros, smooth(zeros, .9, 1)).map(s => s.at), [99]);
});

test('test_ticks_of_a_narrow_picture_stand_apart', () => {
    const gaps = (marks, low, high, room) => marks.slice(1).map(({ at, word }, i) => (at - marks[i].at) / (high - low) * room - (word.length + marks[i].word.length) / 2 * 6);
    for (const [low, high] of [[-.0087, .0087], [-6, 6], [-1e5, 1e5], [100.001, 100.004], [0, 1]])
        for (const room of [120, 220, 600]) {
            const marks = fittingTicks(low, high, 7, room, number);
            assert.ok(marks.length >= 1 && gaps(marks, low, high, room).every(gap => gap > 6), `${low} to ${high}, ${room} px: ${marks.map(m => m.word)}`);
        }
    assert.deepEqual(fittingTicks(-6, 6, 7, 600, number), tickMarks(linearTicks(-6, 6, 7), number), 'where there is room, all of them');
    assert.ok(fittingTicks(-.0087, .0087, 7, 220, number).length >= 2);
});

test('test_ticks_of_any_range_are_few_and_inside', () => {
    for (const [low, high] of [[1.4, 2.9], [2e-63, 1], [1e-12, 1], [.7, .71], [1e-3, 5e4], [3, 3]])
        for (const most of [4, 7, 10]) {
            const ticks = logTicks(low, high, most);
            assert.ok(ticks.length <= most + 1 && ticks.length >= (high > low * 1.0001 ? 2 : 1), `${low} ${high} ${most}: ${ticks}`);
            assert.ok(ticks.every(v => v >= low * .999999 && v <= high * 1.000001));
        }
    assert.deepEqual(logTicks(.9, 110, 7), [1, 2, 5, 10, 20, 50, 100]);
    assert.deepEqual(linearTicks(0, 10), [0, 2, 4, 6, 8, 10]);
    assert.deepEqual(linearTicks(NaN, 1), []);
    const [a, b] = reach(1.4, 2.9, true);
    assert.ok(a > 1.3 && b < 3.1, 'a logarithmic axis is not rounded out to decades');
    assert.ok(reach(2e-63, 1, true)[0] > 1e-13);
    assert.deepEqual(reach(0, 10, false), [0, 10.6]);
    assert.deepEqual(reach(NaN, NaN, true), [.1, 1]);
    assert.deepEqual(within(Array.from({ length: 101 }, (_, i) => i), .01), [1, 99]);
});

test('test_clock_reads_as_a_clock', () => {
    assert.deepEqual([0, 5, 65, 600, 3600, 11250, 180000].map(s => clock(s)), ['0:00', '0:05', '1:05', '10:00', '1:00:00', '3:07:30', '2 d 2:00']);
    assert.equal(clock(1.5, .5), '0:01.5');
});

test('test_panel_states_survive_the_way_through_a_link', () => {
    const states = new Map([['attn/fro', { log: true, fit: 'clip', hidden: new Set(['attn/fro/1', 'a~b,c']) }], ['lr', { log: false, fit: [-.5, 1e-3], hidden: new Set() }], ['usual', freshState()]]);
    const text = formatStates(states);
    states.delete('usual');
    assert.deepEqual(parseStates(new URLSearchParams(new URLSearchParams({ p: text }).toString()).get('p')), states);
    assert.deepEqual(parseStates('x~y2:1~nonsense,%zz'), new Map([['x', freshState()], ['%zz', freshState()]]));
    assert.equal(parseStates(null).size, 0);
});

test('test_names_lose_what_all_of_them_share', () => {
    assert.deepEqual(distinct(['scale sweep N=16 · k 0.001 · seed 1', 'scale sweep N=16 · k 0.1 · seed 1']), ['k 0.001', 'k 0.1']);
    assert.deepEqual(distinct(['digits cubic long', 'digits softmax long']), ['cubic long', 'softmax long']);
    assert.deepEqual(distinct(['made up 5', 'made up 6']), ['up 5', 'up 6']);
    assert.deepEqual(distinct(['same', 'same']), ['same', 'same']);
    assert.deepEqual(distinct(['a b', 'a']), ['a b', 'a']);
});

test('test_layers_have_colours_that_tell_them_apart', () => {
    const far = (a, b) => Math.hypot(...a.match(/\d+/g).map((v, i) => v - b.match(/\d+/g)[i]));
    for (const theme of ['light', 'dark'])
        for (const n of [7, 12]) {
            const inks = Array.from({ length: n }, (_, i) => ordered(i, n, theme));
            for (let i = 1; i < n; i++)
                assert.ok(far(inks[i], inks[i - 1]) > 30, `${theme} ${n}: ${inks[i - 1]} and ${inks[i]}`);
        }
});

test('test_mean_and_deviation_have_equal_digits', () => {
    assert.deepEqual(meanWithSd(.9001, .009516), ['0.9001', '0.0095']);
    assert.deepEqual(meanWithSd(.284, .1312, 100), ['28', '13']);
    assert.deepEqual(meanWithSd(.9421, .00231, 100), ['94.21', '0.23']);
    assert.deepEqual(meanWithSd(1234.5, 96), ['1235', '96']);
    assert.deepEqual(meanWithSd(-3.2, .999), ['−3.2', '1.0']);
    assert.deepEqual(meanWithSd(2.5, 0), ['2.5', '0']);
    assert.deepEqual(meanWithSd(2.5, null), ['2.5', '']);
});

test('test_a_stored_plot_becomes_a_figure_with_bounds_as_lines_and_values_as_marks', () => {
    const plot = { title: 'Norm against N', x: { title: 'N', log: true }, y: { title: 'norm', log: true }, series: [
        { name: 'p = 1', form: 'points', x: [10, 100, 1000], y: [1, 10, null], low: [.5, 9, null], high: [1.5, 11, null] },
        { name: 'root N', form: 'line', x: [0, 10, 1000], y: [1, 3, 30], low: [null, null, null], high: [null, null, null] }] };
    const figure = plotFigure(plot, 500, i => [['#000000', '#ff0000'][i], [i]]);
    assert.deepEqual([figure.title, figure.width, figure.x.log, figure.y.log], ['Norm against N', 500, true, true]);
    assert.deepEqual(figure.marks.map(m => [m.x, m.y, m.sd, m.ink]), [[10, 1, .5, '#000000'], [100, 10, 1, '#000000']], 'what is no number is no mark');
    assert.deepEqual(figure.lines.map(l => [l.name, l.points, l.dash]), [['p = 1', [], []], ['root N', [[10, 3], [1000, 30]], [1]]], 'a logarithmic axis has no 0');
    assert.ok(figure.x.low < 10 && figure.x.high > 1000 && figure.y.low < 1 && figure.y.high > 30);
    assert.ok(figure.x.ticks.some(t => t.at === 100));
    assert.deepEqual(figure.rows.slice(0, 3), [['series', 'N', 'norm', 'low', 'high'], ['p = 1', '10', '1', '0.5', '1.5'], ['p = 1', '100', '10', '9', '11']]);
    assert.equal(figure.rows[3].join(), 'p = 1,1000,,,', 'the CSV has every point');
    assert.equal(plotWords(plot), 'norm against N. p = 1: from 1 at 10 to 10 at 100; root N: from 3 at 10 to 30 at 1,000.');
    const paired = plotFigure({ ...plot, series: [plot.series[0], { ...plot.series[1], name: 'p = 1, closed form' }, { ...plot.series[0], name: 'p = 2' }] }, 500, i => [`ink ${i}`, []]);
    assert.deepEqual(paired.lines.map(l => l.ink), ['ink 0', 'ink 0', 'ink 1'], 'a closed form has the ink of what it is compared with');
    assert.deepEqual(plotFigure({ ...plot, series: plot.series.slice(0, 1) }, 500, () => ['#000000', []]).lines[0].points, [[10, 1], [100, 10]], 'without bounds the values are joined');
    const bars = plotFigure({ title: '', x: { title: 'v', log: false }, y: { title: 'rows', log: false }, series: [{ name: 'rows', form: 'bars', x: [1, 2], y: [4, 2], low: [null, null], high: [null, null] }] }, 500, () => ['#000000', []]);
    assert.equal(bars.y.low, 0);
    assert.deepEqual(bars.lines[0].points, [[.5, 0], [.5, 4], [1.5, 4], [1.5, 0], [1.5, 0], [1.5, 2], [2.5, 2], [2.5, 0]]);
    assert.equal(plotFigure({ ...plot, series: [{ ...plot.series[1], y: [-1, -1, -1] }] }, 500, () => ['#000000', []]), null);
    const row = { accept_low: null, accept_high: null, pass: true };
    assert.deepEqual([{ ...row, pass: null }, { ...row, accept_high: 2 }, { ...row, accept_low: .5 }, { ...row, accept_low: 1, accept_high: 1 }, { ...row, accept_low: 1, accept_high: 2 }].map(criterion),
        ['–', '≤ 2', '≥ 0.5', '= 1', '1 to 2']);
});

test('test_figures_are_painted_with_text_that_stays_text', () => {
    const figure = { title: 'Loss ‖A‖ (√N)', width: 640, height: 360, x: { title: 'Step', low: 0, high: 10, ticks: [{ at: 0, word: '0' }, { at: 10, word: '10' }] },
        y: { title: '', low: .1, high: 10, log: true, ticks: [{ at: 1, word: '1' }] }, rows: [['a', 'b'], ['x,"y"', '1']],
        lines: [{ name: 'training <1>', ink: '#0072b2', dash: [6, 4], points: [[0, 1], [5, null], [6, 2], [10, 3]], band: [[0, .5, 2], [10, 1, 4]] }], marks: [{ x: 5, y: 2, ink: 'rgb(1 2 3)', shape: 'diamond', size: 5, sd: .5 }], rules: [{ at: 4, word: 'k' }] };
    const ink = { text: '#000000', muted: '#666666', grid: '#eeeeee', surface: '#ffffff' };
    const svg = svgPainter(...sizeOf(figure), 'Inter');
    paintFigure(figure, svg, ink);
    const text = svg.done();
    assert.match(text, />training &lt;1&gt;<\/text>/);
    assert.equal((text.match(/<g /g) ?? []).length, (text.match(/<\/g>/g) ?? []).length);
    assert.doesNotMatch(text, /NaN|undefined|Infinity/);
    const pdf = pdfPainter(...sizeOf(figure));
    paintFigure(figure, pdf, ink);
    const bytes = Buffer.from(pdf.done(figure.title)), page = bytes.toString('latin1');
    assert.match(page, /^%PDF-1\.4\n/);
    assert.match(page, /\(Loss \|\|A\|\| \\\(\) Tj\n\/S 14 Tf \(\\326\) Tj/); /* the root stands in the font Symbol */
    assert.doesNotMatch(page, /NaN|undefined|Infinity/);
    const table = Number(/startxref\n(\d+)/.exec(page)[1]);
    assert.equal(page.slice(table, table + 4), 'xref');
    for (const [, at] of page.slice(table).matchAll(/^(\d{10}) 00000 n/gm))
        assert.match(page.slice(Number(at)), /^\d+ 0 obj/);
    assert.equal(toCsv(figure.rows), 'a,b\n"x,""y""",1\n');
});

const printed = { title: 'Loss 50 % of ‖A‖', width: 640, height: 360, x: { title: 'k_1 (log)', log: true, low: .01, high: 100, ticks: [{ at: .01, word: '0.01' }, { at: 100, word: '100' }] },
    y: { title: 'nats', low: 0, high: 5, ticks: [{ at: 0, word: '0' }, { at: 5, word: '5' }] }, rows: [],
    lines: [{ name: 'training & "more"', ink: '#0072b2', dash: [6, 4], points: [[.01, 1.25], [1, null], [100, 3]], band: [[.01, .5, 2], [100, 1, 4]] }, { name: '', unnamed: true, ink: 'rgb(213 94 0)', dash: [], alpha: .35, points: [[.01, 2], [100, 2]] }],
    marks: [{ x: 1, y: 2, ink: 'rgb(213 94 0)', shape: 'diamond', size: 5, sd: .5 }, { x: 10, y: 1, ink: '#0072b2', shape: 'circle', size: 3, hollow: true }], rules: [{ at: 4, word: '√N' }] };

test('test_figure_as_matplotlib_runs_and_draws_the_same_numbers', { skip: spawnSync('python3', ['--version']).error && 'no python3 here' }, () => {
    /* A stand-in that notes what is drawn: matplotlib itself need not be there. */
    const stub = 'import sys, types, json\nnotes = []\nclass Any:\n    def __init__(self, name): self.name = name\n    def __getattr__(self, name): return Any(name)\n    def __call__(self, *a, **k):\n        notes.append([self.name, repr(a), repr(k)])\n        return (Any("fig"), Any("ax")) if self.name == "subplots" else None\n'
        + 'plt = Any("plt")\nm = types.ModuleType("matplotlib"); m.pyplot = plt; sys.modules["matplotlib"] = m; sys.modules["matplotlib.pyplot"] = plt\nexec(compile(sys.stdin.read(), "chart.py", "exec"))\nprint(json.dumps(notes))';
    const notes = JSON.parse(execFileSync('python3', ['-c', stub], { input: toMatplotlib(printed), encoding: 'utf8' }));
    const of = name => notes.filter(note => note[0] === name);
    assert.deepEqual(of('plot').map(note => note[1]), ['([0.01, 1, 100], [1.25, nan, 3])', '([0.01, 100], [2, 2])']);
    assert.match(of('plot')[0][2], /'color': '#0072B2'.*'linestyle': \(0, \(6, 4\)\), 'label': 'training & "more"'/);
    assert.deepEqual(of('fill_between').map(note => note[1]), ['([0.01, 100], [0.5, 1], [2, 4])']);
    assert.deepEqual(of('errorbar').map(note => note[1]), ['([1], [2])', '([10], [1])']);
    assert.match(of('errorbar')[0][2], /'yerr': \[0\.5\], 'fmt': 'D', 'color': '#D55E00'/);
    assert.deepEqual([of('set_xscale').length, of('set_yscale').length], [1, 0]);
    assert.deepEqual([of('set_xlim')[0][1], of('set_yticks')[0][1], of('set_title')[0][1]], ['(0.01, 100)', "([0, 5], ['0', '5'])", "('Loss 50 % of ‖A‖',)"]);
});

test('test_figure_as_pgfplots_has_its_numbers_and_text_that_tex_takes', () => {
    const code = toPgfplots(printed);
    assert.match(code, /\\definecolor\{polydA\}\{HTML\}\{0072B2\}\n\\definecolor\{polydB\}\{HTML\}\{D55E00\}/);
    assert.match(code, /title=\{Loss 50 \\% of \$\\\|\$A\$\\\|\$\}/);
    assert.match(code, /xlabel=\{k\\_1 \(log\)\}/);
    assert.match(code, /xmode=log/);
    assert.doesNotMatch(code, /ymode/);
    assert.match(code, /\\addplot \[polydA, .*dash pattern=on 6pt off 4pt\] coordinates \{\(0\.01,1\.25\) \(1,nan\) \(100,3\)\};\n\\addlegendentry\{training \\& "more"\}/);
    assert.match(code, /fill=polydA.* coordinates \{\(0\.01,2\) \(100,4\) \(100,1\) \(0\.01,0\.5\)\};/);
    assert.match(code, /mark=diamond\*.*y explicit\] coordinates \{\(1,2\) \+- \(0,0\.5\)\};/);
    assert.match(code, /mark=o, .*forget plot\] coordinates \{\(10,1\)\};/);
    const bare = code.replaceAll(/\\[{}]/g, '');
    assert.equal(bare.split('{').length, bare.split('}').length);
    assert.doesNotMatch(code, /NaN|undefined|Infinity|[^\x00-\x7f]/);
});

test('test_format_number_keeps_four_digits_and_names_the_non_finite', () => {
    assert.equal(number(0.312749), '0.3127');
    assert.equal(number(12.3456), '12.35');
    assert.equal(number(1204), '1,204');
    assert.equal(number(1654.23), '1,654');
    assert.equal(number(0.000032), '3.2e−5');
    assert.equal(number(-0.5), '−0.5');
    assert.equal(number('NaN'), 'NaN');
    assert.equal(number('-Infinity'), '−∞');
    assert.equal(number(null), '–');
    assert.equal(number(0), '0');
    assert.equal(toNumber('Infinity'), Infinity);
});

test('test_format_shares_sizes_and_times', () => {
    assert.equal(percent(0.9712), '97.1 %');
    assert.equal(percent(1), '100 %');
    assert.equal(percent(0.0123), '1.23 %');
    assert.equal(bytes(1536), '1.5 KiB');
    assert.equal(bytes(1048576), '1.0 MiB');
    assert.equal(bytes(102400), '100 KiB');
    assert.equal(duration(0.25), '250 ms');
    assert.equal(duration(75), '1 min 15 s');
    assert.equal(duration(3 * 3600 + 60), '3 h 01 min');
    assert.equal(ago('2026-01-01T00:00:00.000Z', Date.parse('2026-01-01T00:02:30Z')), '2 min ago');
});

test('test_metrics_keys_split_into_base_layer_and_head', needsPolyd, () => {
    assert.deepEqual(parseKey('attn/fro/3/1'), { base: 'attn/fro', layer: 3, head: 1 });
    assert.deepEqual(parseKey('scale/c/2'), { base: 'scale/c', layer: 2, head: null });
    assert.deepEqual(parseKey('loss/train'), { base: 'loss/train', layer: null, head: null });
    assert.deepEqual(parseKey('system/gpu.12/power'), { base: 'system/gpu.n/power', layer: null, head: null, gpu: 12 });
    assert.deepEqual(parseKey('system/gpu_0_power'), { base: 'system/gpu_0_power', layer: null, head: null }); /* somebody else's */
    assert.equal(seriesName('system/gpu.12/power'), 'GPU 12');
    assert.deepEqual(panels(['system/gpu.10/memory', 'system/gpu.2/memory', 'loss/train', 'system/gpu.2/power']).map(p => [p.id, p.keys.length, p.keys[0]]),
        [['loss', 1, 'loss/train'], ['system/gpu.n/memory', 2, 'system/gpu.2/memory'], ['system/gpu.n/power', 1, 'system/gpu.2/power']]);
    assert.equal(present(describe('system/gpu.n/power'), 655.25), '655.3 W');
    assert.equal(present(describe('system/gpu.n/temperature'), 61), '61 °C');
    assert.deepEqual(parseKey('loss/eval/ptb'), { base: 'loss/eval', layer: null, head: null, set: 'ptb' });
    assert.deepEqual(parseKey('ppl/test_at/64'), { base: 'ppl/test_at', layer: null, head: null, set: undefined, position: 64 });
    assert.deepEqual(parseKey('ppl/eval_ema_at/a.b-1/128'), { base: 'ppl/eval_ema_at', layer: null, head: null, set: 'a.b-1', position: 128 });
    assert.deepEqual(parseKey('7'), { base: '7', layer: null, head: null });
    assert.equal(seriesName('attn/fro/3'), 'layer 3');
    assert.equal(seriesName('loss/val'), 'validation');
    assert.equal(seriesName('ppl/eval_at/ptb/64'), 'zero-shot: ptb');
    assert.equal(fullTitle('ppl/eval/ptb'), 'Zero-shot perplexity, ptb');
    assert.equal(fullTitle('ppl/test_at/64'), 'Test perplexity by position, up to 64');
    assert.deepEqual(positionLines([['ppl/val_at/1', 9], ['ppl/val_at/16', 5], ['ppl/val_at/2', 7], ['ppl/eval_at/ptb/1', 20], ['ppl/eval_at/pg19/1', 30], ['ppl/val', 6], ['ppl/val_at/4', null]]
        .map(([key, value]) => ({ key, value, step: 3 }))).map(({ name, points }) => [name, points]),
    [['validation', [[1, 9], [2, 7], [16, 5]]], ['zero-shot: ptb', [[1, 20]]], ['zero-shot: pg19', [[1, 30]]]]);
});

test('test_metrics_panels_overlay_what_belongs_together_in_a_fixed_order', needsPolyd, () => {
    const found = panels(['scale/c/2', 'my/own', 'loss/val', 'scale/c/10', 'lr', 'loss/train', 'scale/c/1']);
    assert.deepEqual(found.map(panel => panel.id), ['loss', 'lr', 'scale/c', 'my/own']);
    assert.deepEqual(found[0].keys, ['loss/train', 'loss/val']);
    assert.deepEqual(found[2].keys, ['scale/c/1', 'scale/c/2', 'scale/c/10']);
    assert.ok(found[2].layered && !found[0].layered);
});

test('test_metrics_loss_of_an_equation_has_no_unit', needsPolyd, () => {
    const unit = (keys, id = 'loss') => unitTitle(panels(keys).find(panel => panel.id === id).metric);
    assert.equal(unit(['loss/train', 'loss/val', 'acc/val']), 'nats');
    assert.equal(unit(['loss/train', 'loss/residual', 'loss/boundary']), '');
    assert.equal(unit(['loss/val', 'rmae/val', 'attn/entropy/1']), '');
    assert.equal(unit(['loss/val', 'rmae/val', 'attn/entropy/1'], 'attn/entropy'), 'nats');
    assert.equal(describe('loss/val').unit, 'nats', 'the catalogue itself');
});

test('test_metrics_each_is_explained_in_a_sentence_with_its_source', needsPolyd, () => {
    assert.equal(new Set(metrics.map(metric => metric.key)).size, metrics.length);
    for (const metric of metrics) {
        assert.match(metric.text, /\.$/, metric.key);
        assert.ok(metric.source.length > 0 && metric.title.length > 0, metric.key);
    }
    assert.equal(describe('something/else').title, 'something/else');
    assert.deepEqual(['loss/val', 'acc/train', 'samples_per_s', 'my/own'].map(fullTitle), ['Validation loss', 'Training accuracy', 'Samples per second', 'my/own']);
});

test('test_metrics_have_their_keys_for_names_until_the_catalogue_has_come', needsPolyd, () => {
    setMetrics([]);
    try {
        assert.equal(describe('loss/val').title, 'loss/val');
        assert.equal(fullTitle('loss/val'), 'loss/val');
        assert.equal(present(describe('acc/val'), .5), '0.5');
        assert.deepEqual(panels(['loss/val', 'attn/fro/1', 'loss/train']).map(p => [p.title, p.layered]), [['attn/fro', true], ['loss/train', false], ['loss/val', false]]);
        assert.equal(columnOf('m:loss/val').title, 'loss/val');
    } finally {
        setMetrics(catalogue);
    }
    assert.equal(columnOf('m:loss/val').title, 'Loss (val)');
});

test('test_metrics_every_unit_of_the_catalogue_is_written', needsPolyd, () => {
    for (const metric of metrics.filter(m => m.unit !== null)) {
        assert.ok(unitTitle(metric) !== '' || ['share', 'bytes'].includes(metric.unit), metric.unit);
        assert.ok(metric.unit === 'nats' || present(metric, 1234567) !== number(1234567), `${metric.key} in ${metric.unit}`);
    }
});

test('test_metrics_the_page_has_no_sentences_of_its_own', needsPolyd, () => {
    const folder = path.join(root, 'web/js');
    for (const file of readdirSync(folder, { recursive: true }).filter(name => name.endsWith('.js'))) {
        const text = readFileSync(path.join(folder, file), 'utf8');
        for (const metric of metrics) {
            assert.ok(!text.includes(metric.text.slice(0, 40)), `${file}: ${metric.text}`);
            for (const title of [metric.title, fullTitle(metric.key)].filter(name => name.includes(' ')))
                assert.ok(!text.includes(`'${title}'`), `${file}: ${title}`);
        }
    }
});

async function events(chunks, passed) {
    const body = new ReadableStream({
        start(controller) {
            for (const chunk of chunks)
                controller.enqueue(typeof chunk === 'string' ? new TextEncoder().encode(chunk) : chunk);
            controller.close();
        },
    });
    const all = [];
    for await (const event of readEvents(body, passed))
        all.push(event);
    return all;
}

test('test_sse_reads_events_cut_anywhere', async () => {
    const text = ': hello\n\nevent: run.state\nid: 12\ndata: {"a":"ä"}\n\nretry: 500\ndata: one\ndata: two\r\n\r\ndata: lost';
    const bytesOf = new TextEncoder().encode(text);
    for (let size = 1; size < 9; size++) {
        const chunks = [];
        for (let i = 0; i < bytesOf.length; i += size)
            chunks.push(bytesOf.slice(i, i + size));
        const all = await events(chunks);
        assert.deepEqual(all.map(({ event, data, id }) => [event, data, id]),
            [['run.state', '{"a":"ä"}', '12'], ['message', 'one\ntwo', '12']], `chunks of ${size}`);
        assert.equal(all[1].retry, 500);
    }
});

test('test_sse_passes_an_id_on_that_comes_without_an_event', async () => {
    const passed = [];
    assert.deepEqual((await events([new TextEncoder().encode('retry: 1000\nid: 7\n\nevent: metrics\ndata: {}\n\nid: 8\n')], id => passed.push(id))).map(({ event }) => event), ['metrics']);
    assert.deepEqual([...new Set(passed)], ['7']); /* that of an event cut off does not count */
});

const run = (id, over = {}) => ({ id, jobId: '1', name: `run ${id}`, experiment: 'e', state: 'ended', outcome: 'succeeded', reason: '', step: 5, totalSteps: 10, attempts: 1, created: '2026-01-01T00:00:00.000Z',
    started: null, ended: null, used: null, device: 'cpu', latest: {}, position: null, sweep: {}, tags: {}, fields: {}, priority: 0, index: 0, ...over });

test('test_events_of_a_run_are_those_with_an_id_of_their_own', async t => {
    t.mock.method(globalThis, 'fetch', async () => new Response('id: 5\nevent: run.state\ndata: {"id":"5","kind":"run.state","run_id":"7","data":{"to":"running"}}\n\nevent: metrics\ndata: {"runs":["7"]}\n\n'));
    const events = await runEvents('7', new AbortController().signal);
    assert.deepEqual(events.map(event => [event.id, event.kind, event.runId]), [['5', 'run.state', '7']]);
});

test('test_settings_are_said_in_a_few_words', () => {
    assert.deepEqual([3, 0.25, 'S5', true, null, undefined, [16, 32], { activation: 'poly', degree: 3, scale: 'fixed' }, {}].map(short),
        ['3', '0.25', 'S5', 'true', 'null', '–', '[16,32]', 'activation poly, degree 3, scale fixed', '']);
});

test('test_columns_survive_the_way_through_a_link', () => {
    assert.equal(parseColumns(null), null); /* no choice of one's own */
    const text = 'state,name~400,m:acc/val,c:/train/optimizer/lr~90,m:a%2Cb';
    const chosen = parseColumns(text);
    assert.deepEqual(chosen.map(({ column, width }) => [column.id, width]), [['state', 130], ['name', 400], ['m:acc/val', 122], ['c:/train/optimizer/lr', 90], ['m:a,b', 122]]);
    assert.equal(formatColumns(chosen), text);
});

test('test_columns_unknown_and_too_many_are_left_out_and_the_run_stays', () => {
    assert.deepEqual(parseColumns('nonsense,loss').map(c => c.column.id), ['name', 'loss']);
    assert.equal(parseColumns('gone,%zz'), null);
    const many = parseColumns(`name,${Array.from({ length: 40 }, (_, i) => `m:k${i}`).join()}`);
    assert.equal(wantedMetrics(many).length, 16);
    assert.equal(wantedMetrics(parseColumns('name,loss,m:loss/val')).length, 2); // one of them was asked for already
    assert.deepEqual(wantedFields(parseColumns('name,c:/a/b')), ['/a/b']);
});

test('test_columns_of_no_choice_are_results_and_what_differs', () => {
    const ids = (runs, settings) => standardChoice(runs, settings).map(({ column }) => column.id);
    assert.deepEqual(ids([]), ['state', 'name', 'loss', 'progress', 'created']);
    const two = [run('1', { latest: { 'acc/val': .9 }, fields: { '/attention/degree': 3, '/model/depth': 2, '/train/optimizer/lr': .1 } }),
        run('2', { latest: { 'ppl/val': 12 }, fields: { '/attention/degree': 5, '/model/depth': 2, '/train/optimizer/lr': .1 } })];
    assert.deepEqual(ids(two), ['state', 'name', 'm:acc/val', 'm:ppl/val', 'c:/attention/degree', 'progress', 'created']);
    assert.deepEqual(ids(two, ['/model/depth']), ['state', 'name', 'm:acc/val', 'm:ppl/val', 'c:/model/depth', 'progress', 'created']);
});

test('test_course_of_a_run_is_a_line_within_its_box', () => {
    assert.equal(courseLine([]), '');
    assert.equal(courseLine([[5, 1]]), '');
    assert.equal(courseLine([[0, 4], [50, 1], [100, 2]]), 'M2.0 2.0L38.0 16.0L74.0 11.3'); /* high is up, x by step and not by place */
    assert.equal(courseLine([[1, 3], [2, 3]]), 'M2.0 9.0L74.0 9.0');
});

test('test_list_of_more_active_runs_than_a_page_follows_those_that_run_and_those_between', async t => {
    const all = Array.from({ length: 2600 }, (_, i) => ({ id: String(i + 1), state: i < 4 ? 'running' : 'queued', outcome: null, step: 0, restarts: 0 }));
    t.mock.method(globalThis, 'fetch', async url => {
        const { pathname, searchParams } = new URL(url, 'http://127.0.0.1'), one = /runs\/(\d+)$/.exec(pathname);
        if (one)
            return Response.json({ ...all[one[1] - 1], attempt_list: [] });
        const active = searchParams.get('state') === 'active', limit = Number(searchParams.get('limit')), old = searchParams.get('order') === 'oldest';
        const runs = (old ? all : all.toReversed()).filter(run => !active || run.state !== 'ended'), at = Number(searchParams.get('cursor') ?? 0);
        return Response.json({ runs: runs.slice(at, at + limit), next: at + limit < runs.length ? String(at + limit) : null });
    });
    const list = new RunList(() => {}, new AbortController().signal);
    await list.ask({ text: '', state: '', tag: '', experiment: '', job: '', metrics: [], fields: [] });
    assert.equal(list.runs.size, all.length);
    Object.assign(all[0], { step: 70 });
    Object.assign(all[1], { state: 'ended', outcome: 'succeeded', step: 100 });
    Object.assign(all[4], { state: 'running', step: 10 });
    await list.refresh();
    const stands = id => [list.runs.get(id).state, list.runs.get(id).step];
    assert.deepEqual(['1', '2', '5'].map(stands), [['running', 70], ['ended', 100], ['running', 10]]);
    /* One that waits in the middle, in neither page, has its turn too. */
    Object.assign(all[1300], { state: 'ended', outcome: 'cancelled' });
    for (let i = 0; i < 600 / 20 + 1; i++)
        await list.refresh();
    assert.equal(list.failure, null);
    assert.deepEqual(stands('1301'), ['ended', 0]);
});

test('test_list_has_all_runs_after_more_are_new_than_a_page_holds', async t => {
    const all = Array.from({ length: 50 }, (_, i) => ({ id: String(i + 1), state: 'ended', outcome: 'succeeded', step: 0, restarts: 0 }));
    t.mock.method(globalThis, 'fetch', async url => {
        const { searchParams } = new URL(url, 'http://127.0.0.1'), limit = Number(searchParams.get('limit')), at = Number(searchParams.get('cursor') ?? 0), runs = all.toReversed();
        return Response.json({ runs: runs.slice(at, at + limit), next: at + limit < runs.length ? String(at + limit) : null });
    });
    const list = new RunList(() => {}, new AbortController().signal);
    await list.ask({ text: '', state: '', tag: '', experiment: '', job: '', metrics: [], fields: [] });
    for (let i = 0; i < 250; i++)
        all.push({ ...all[0], id: String(i + 51) });
    await list.refresh();
    assert.equal(list.runs.size, 300);
    assert.ok(list.complete);
});

test('test_quick_settings_write_into_a_copy', () => {
    const document = { train: { epochs: 2 }, model: 'x' };
    assert.deepEqual(withMember(document, '/train/optimizer/lr', .1), { train: { epochs: 2, optimizer: { lr: .1 } }, model: 'x' });
    assert.deepEqual(withMember(document, '/train/epochs', undefined), { train: {}, model: 'x' });
    assert.deepEqual(document, { train: { epochs: 2 }, model: 'x' });
});

test('test_table_as_csv_has_keys_and_whole_numbers', () => {
    const runs = [run('7', { name: 'A, "b"', latest: { 'acc/val': .912345678, 'loss/val': 1 / 3 }, fields: { '/attention/k': 8 }, used: 1.25 }), run('8', { state: 'queued', outcome: null })];
    const rows = tableRows(runs, parseColumns('state,name,m:acc/val,course,c:/attention/k,progress,time,created,id'));
    assert.deepEqual(rows, [['id', 'state', 'name', 'acc/val', '/attention/k', 'progress', 'time', 'created'],
        ['7', 'succeeded', 'A, "b"', '0.912345678', '8', '0.5', '1.25', '2026-01-01T00:00:00.000Z'], ['8', 'queued', 'run 8', '', '', '0.5', '', '2026-01-01T00:00:00.000Z']]);
    assert.ok(toCsv(rows).split('\n')[1].startsWith('7,succeeded,"A, ""b""",0.912345678,8'));
    // A loss says the part of the data that it is from.
    assert.deepEqual(tableRows([run('9', { latest: { 'loss/train': .5 } }), run('10', { latest: { 'loss/train': .5, 'loss/val': .75 } })], parseColumns('name,loss')),
        [['id', 'name', 'loss/train', 'loss/val'], ['9', 'run 9', '0.5', ''], ['10', 'run 10', '0.5', '0.75']]);
});

test('test_columns_sort_puts_runs_without_a_value_last_either_way', () => {
    const runs = [run('1', { latest: { 'loss/val': 2 } }), run('2'), run('3', { latest: { 'loss/val': 1 } }), run('4', { latest: { 'loss/val': NaN } })];
    const order = down => runs.slice().sort(comparator(columnOf('loss'), down)).map(r => r.id);
    assert.deepEqual(order(false), ['3', '1', '4', '2']);
    assert.deepEqual(order(true), ['1', '3', '4', '2']);
    const mixed = [run('1', { fields: { '/attention/k': 'auto' } }), run('2', { fields: { '/attention/k': 8 } }), run('3', { fields: { '/attention/k': 2 } })];
    assert.deepEqual(mixed.sort(comparator(columnOf('c:/attention/k'), false)).map(r => r.id), ['3', '2', '1']);
});

test('test_mean_of_curves_that_share_no_points', () => {
    const line = (from, to, step, f) => Array.from({ length: (to - from) / step + 1 }, (_, i) => ({ x: from + i * step, y: f(from + i * step) }));
    const mean = meanOf([line(0, 10, 2, x => x), line(0, 10, 5, x => x + 2), [{ x: 3, y: NaN }, { x: 4, y: null }]]);
    for (const b of mean) {
        assert.ok(Math.abs(b.mean - (b.first + 1)) < 1e-9, JSON.stringify(b));
        assert.ok(Math.abs(b.max - b.mean - Math.SQRT2) < 1e-9);
        assert.equal(b.count, 2);
    }
    assert.deepEqual(mean.map(b => b.first), [0, 2, 4, 5, 6, 8, 10]);
    assert.equal(meanOf([]).length, 0);
    assert.equal(at([1, 3], [10, 30], 2), 20);
    assert.equal(at([1, 3], [10, 30], 3.5), null);
    assert.ok(meanOf([line(0, 5000, 1, x => x), line(0, 5000, 1, x => -x)]).length <= 400);
});

test('test_pointer_finds_its_place_also_in_broken_text', () => {
    const text = '{\n "a": {"b~c": [1, {"d/e": "x\\"y"}]},\n "f": tru';
    const all = locate(text);
    assert.equal(text.slice(...Object.values(all.get('/a/b~0c/1/d~1e')).slice(0, 2)), '"x\\"y"');
    assert.equal(text.slice(...stretchOf(text, '#/a/b~0c/1/d~1e')), '"d/e"');
    assert.equal(text.slice(...stretchOf(text, '#/a/b~0c/0')), '1');
    assert.equal(text.slice(...stretchOf(text, '#/a/nothing/here')), '"a"'); // the nearest thing around it
    assert.equal(text.slice(...stretchOf(text, '#/f')), '"f"');
    assert.deepEqual(lineOf(text, stretchOf(text, '#/f')[0]), { line: 3, column: 2 });
    assert.deepEqual(stretchOf('', '#/x'), [0, 0]);
});

test('test_metric_values_carry_their_unit', needsPolyd, () => {
    assert.equal(present(describe('acc/val'), 0.5), '50.0 %');
    assert.equal(present(describe('mem/peak'), 2048), '2.0 KiB');
    assert.equal(present(describe('step_ms'), null), '–');
    assert.equal(present(describe('sys/flops'), 4.76e10), '47.6 GFLOP/s');
    assert.equal(present(describe('samples_per_s'), 2412), '2.41 k samples/s');
    assert.equal(present(describe('samples_per_s'), 999.99), '1 k samples/s');
    assert.equal(present(describe('loss/val'), NaN), 'NaN');
    for (const metric of metrics)
        assert.ok(metric.text.endsWith('.') && metric.source.length > 8, metric.key);
});

test('test_ticks_have_the_digits_that_tell_them_apart', () => {
    assert.deepEqual(distinctWords([0, .5, 1], number), ['0', '0.5', '1']);
    assert.deepEqual(distinctWords([4.5601, 4.5602, 4.5603], v => v.toPrecision(3)), ['4.5601', '4.5602', '4.5603']);
    assert.deepEqual(distinctWords([-.12341, -.12342], v => `${(v * 100).toFixed(1)} %`), ['−12.341 %', '−12.342 %']);
    assert.deepEqual(distinctWords([20500000, 20550000], v => `${(v / 2 ** 20).toFixed(0)} MiB`), ['20 MiB', '20 MiB'], 'a unit is not dropped');
    assert.deepEqual(distinctWords([1, 1], number), ['1', '1'], 'equal numbers are no reason to look for more');
    assert.deepEqual(tickMarks([2, 3], String), [{ at: 2, word: '2' }, { at: 3, word: '3' }]);
});

test('test_legend_has_whole_names_and_the_marks_of_lines_that_are_not_drawn', () => {
    const name = 'φ(x) = 0.25 · x³ with a name that is longer than most', line = { name, ink: '#010101', dash: [], points: /** @type {[number, number][]} */ ([[0, 0], [1, 1]]) };
    const axis = { title: '', low: 0, high: 1, ticks: [] }, figure = { title: '', width: 600, height: 200, x: axis, y: axis, rows: [], lines: [line, { ...line, name: 'measured', ink: '#020202', shape: 'square', points: [] }], rules: [{ at: .99, word: '√N = 1000' }] };
    const svg = svgPainter(...sizeOf(figure), 'Inter');
    paintFigure(figure, svg, { text: '#000000', muted: '#555555', grid: '#dddddd', surface: '#ffffff' });
    const text = svg.done();
    assert.ok(text.includes(`>${name}<`));
    assert.equal([...text.matchAll(/fill="#020202"/g)].length, 1, 'its mark');
    assert.equal([...text.matchAll(/stroke="#020202"/g)].length, 0, 'and no line');
    // A rule's word stands above the plot, within it from side to side.
    const [, x, y] = /<text x="([\d.]+)" y="([\d.]+)"[^>]*>√N = 1000</.exec(text).map(Number), top = Number(/<rect x="62" y="([\d.]+)"/.exec(text)[1]);
    assert.ok(y <= top && x + 3 * 9 <= 580 && x > 500, `${x}, ${y}`);
});

test('test_web_sweep_is_analysed_along_numbers_that_vary_alone', () => {
    assert.ok(varies(undefined), 'drawn numbers');
    assert.ok(varies([0.1, 0.2]));
    assert.ok(!varies(['poly', 'softmax']));
    assert.ok(varies([{ activation: 'softmax' }, { activation: 'poly', degree: 2 }, { degree: 3, activation: 'poly' }]), 'whatever the order of members');
    assert.ok(varies([{ params: { a: { init: 1, per: 'head' } } }, { params: { a: { init: 2, per: 'head' } } }]));
    assert.ok(!varies([{ activation: 'poly', degree: 3, scale: 'none' }, { activation: 'poly', degree: 3, scale: 'fixed' }, { activation: 'softmax' }]), 'one value');
    assert.ok(!varies([{ formula: 's', params: { a: 1 } }, { formula: 's^2', params: { a: 2 } }]), 'it varies with the formula');
    assert.ok(!varies([[1, 2], [3, 4]]), 'pairs are no axis');
    assert.ok(!varies([196, 'patches']), 'a word among numbers');
    assert.ok(!varies([{ k: 1, n: 2 }, { k: 1, n: 3 }, { k: 1, n: 'keys' }]), 'a word in one of the objects');
    assert.ok(varies([{ k: 1 }, { k: 2 }, { k: null }]), 'null is the default');
});
