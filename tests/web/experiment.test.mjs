// The numbers behind the pictures of experiments: which combinations are meant, and what a line, a bar, a cell and a difference show.
import assert from 'node:assert/strict';
import test from 'node:test';

import { paintFigure, sizeOf } from '../../web/js/chart/figure.js';
import { svgPainter } from '../../web/js/chart/painters.js';
import { choose, fits, leaves, nameOf } from '../../web/js/experiment/choose.js';
import { againstFigure, againstSays, curvesFigure, curvesSay, gridFigure, gridSays, memoryFigure, memorySays, targetFigure, targetSays } from '../../web/js/experiment/figures.js';

const inks = i => [`#00000${i}`, i ? [2, 2] : []];
const ink = { text: '#111111', muted: '#555555', grid: '#dddddd', surface: '#ffffff' };
const say = v => String(Number(v.toPrecision(4)));
const how = { title: 'P', width: 500, inks, say };
/** What is painted, as SVG. */
const painted = figure => {
    const painter = svgPainter(...sizeOf(figure), 'sans-serif');
    paintFigure(figure, painter, ink);
    return painter.done();
};
const words = figure => [...painted(figure).matchAll(/<text [^>]*>([^<]*)</g)].map(m => m[1]);
const row = (point, values, mean) => ({ point, values, runs: {}, metrics: { 'acc/val': { n: 1, mean, sd: null } }, trials: [] });

test('test_choose_means_combinations_by_leaves', () => {
    assert.deepEqual(leaves({ '/attention': { activation: 'poly', degree: 3 }, '/model/patch': [16, 32] }), { '/attention/activation': 'poly', '/attention/degree': 3, '/model/patch': [16, 32] });
    const values = { '/norm/placement': 'S1', '/train/optimizer': { name: 'msgdw', lr: 0.1 } };
    assert.equal(fits(values, [{ '/model/preset': 'vit_l' }, { '/norm/placement': 'S1', '/train/optimizer/name': 'msgdw' }]), true);
    assert.equal(fits(values, [{ '/norm/placement': 'S1', '/train/optimizer/name': 'adamw' }]), false);
    assert.equal(fits(values), true);
});

test('test_choose_takes_the_best_of_several_by_the_metric_of_the_sweep', () => {
    const table = [0.1, 0.3, 1].map((lr, i) => row(i, { '/train/optimizer': { name: 'msgdw', lr } }, [0.5, 0.7, null][i])), any = [{ '/train/optimizer/name': 'msgdw' }];
    assert.deepEqual([choose({ table, metric: 'acc/val', mode: 'max' }, any).row.point, choose({ table, metric: 'acc/val', mode: 'max' }, any).of], [1, 3]);
    assert.equal(choose({ table, metric: 'acc/val', mode: 'min' }, any).row.point, 0);
    assert.equal(choose({ table, metric: 'acc/val', mode: 'max' }, [{ '/train/optimizer/name': 'adamw' }]), null);
});

test('test_names_leave_out_what_all_share', () => {
    const arms = [{ '/attention': { activation: 'softmax' }, '/model/patch': 2 }, { '/attention': { activation: 'poly', degree: 3, scale: 'none' }, '/model/patch': 2 }];
    assert.deepEqual(arms.map(a => nameOf(a)), ['softmax patch 2', 'x³ raw patch 2']);
    assert.deepEqual(arms.map(a => nameOf(a, arms)), ['softmax', 'x³ raw']);
    assert.equal(nameOf({ '/train/optimizer': { lr: 0.1, name: 'msgdw' }, '/norm/placement': 'S5' }), 'S5 mSGDW rate 0.1');
    assert.equal(nameOf({ '/train': { optimizer: { lr: 1, name: 'msgdw' }, schedule: { warmup_steps: 0 } } }), 'mSGDW rate 1 no warm-up');
    assert.equal(nameOf({}), 'all runs');
});

test('test_curves_are_means_with_a_band_and_the_papers_end_where_it_is_near', () => {
    const curve = (name, list, target) => ({ name, target, points: list.map((mean, i) => ({ x: 10 * (i + 1), n: 3, mean, sd: 0.1 })) });
    const figure = curvesFigure([curve('a', [3, 2, 1], 0.9), curve('b', [3, null, 2], 80)], { ...how, metric: 'loss/val' });
    assert.deepEqual(figure.lines.filter(l => l.name.length === 1).map(l => l.points.map(p => p[1])), [[3, 2, 1], [3, null, 2]]);
    assert.deepEqual(figure.lines.filter(l => l.dash[0] === 1).map(l => [l.name, l.points[0][1]]), [['paper, final value', 0.9]], 'the far one would press the lines flat');
    assert.deepEqual(figure.lines[1].band.map(b => b.map(v => +v.toFixed(6))), [[10, 2.9, 3.1], [20, 1.9, 2.1], [30, 0.9, 1.1]]);
    const narrow = curvesFigure([{ name: 'a', points: [[10, 0.2], [20, 0], [30, 0.2]].map(([x, sd]) => ({ x, n: 3, mean: 1, sd })) }], how);
    assert.deepEqual(narrow.lines[0].band.map(b => b.map(v => +v.toFixed(6))), [[10, 0.8, 1.2], [20, 1, 1], [30, 0.8, 1.2]], 'equal seeds pinch the band instead of leaving its place to the neighbours');
    assert.ok(figure.y.low < 0.9 && figure.y.high > 3.1);
    assert.deepEqual(figure.rows.slice(0, 2), [['line', 'step', 'mean', 'sd', 'n', 'metric'], ['a', '10', '3', '0.1', '3', 'loss/val']]);
    assert.ok(words(figure).includes('P (loss/val)'), 'what is saved says the part of the data as well');
    assert.equal(curvesSay('Loss', [{ ...curve('a', [3, 2, 1], 0.9), of: 4 }], say), 'Loss, 1 line: a (best of 4) ends at 1 ± 0.1 (step 30, 3 runs; paper: 0.9).');
    assert.equal(curvesSay('Loss', [], say), 'Loss: no values yet.');
    const norms = curvesFigure([curve('softmax', [1, 1, 1.1])], { ...how, log: true, level: { at: 2, word: '√N = 2' } });
    assert.ok(norms.levels[0].at === 2 && norms.y.log && norms.y.high > 2 && words(norms).includes('√N = 2'));
});

test('test_against_marks_the_best_and_the_rule', () => {
    const groups = [{ name: 'N = 49', marks: [{ x: 0.1, y: 0.5, sd: 0.1, n: 3 }, { x: 10, y: 0.8, sd: null, n: 3, best: true }] }];
    const figure = againstFigure(groups, { ...how, xTitle: 'k', metric: 'acc/val', log: true, rules: [{ at: 7, word: '√N = 7' }, { at: 1e6, word: 'far' }] });
    assert.deepEqual(figure.marks.map(m => [m.x, m.y, m.hollow ?? false]), [[0.1, 0.5, false], [10, 0.8, false], [10, 0.8, true]]);
    assert.deepEqual(figure.rules.map(r => r.word), ['√N = 7']);
    assert.equal(figure.rows[2].join(), 'N = 49,10,0.8,,3,best,acc/val');
    assert.equal(againstSays('Accuracy', groups, { say, xTitle: 'k', more: true }), 'Accuracy: N = 49: best at k 10 with 0.8.');
    assert.equal(againstSays('Loss', groups, { say, xTitle: 'k', more: false }), 'Loss: N = 49: best at k 0.1 with 0.5.');
});

test('test_memory_bars_are_as_long_as_their_bytes', () => {
    const list = [{ name: 'AdamW', parts: { weights: 100, moment1: 100, moment2: 100 }, measured: [{ word: 'state, measured', size: 200 }] }, { name: 'mSGDW', parts: { weights: 100, moment1: 100 }, measured: [] }];
    const figure = memoryFigure(list, how), boxes = [...painted(figure).matchAll(/<path d="M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)h[^"]*" fill="#00000(\d)"/g)].map(m => m.slice(1).map(Number)).filter(b => b[3] > 12);
    assert.equal(boxes.length, 5);
    assert.ok(boxes.every(b => Math.abs(b[2] - boxes[0][2]) < 0.02), 'equal bytes, equal length');
    assert.deepEqual(boxes.map(b => b[4]), [0, 1, 2, 0, 1]);
    assert.ok(Math.abs(boxes[1][0] - boxes[0][0] - boxes[0][2]) < 0.02, 'one after the other');
    assert.deepEqual(figure.rows.at(-1), ['mSGDW', 'planned, all', '200']);
    assert.ok(figure.rows.some(r => r.join() === 'AdamW,state, measured,200'));
    assert.match(memorySays(list), /^AdamW: planned weights 100 B, first moment 100 B, second moment 100 B; state, measured 200 B\. mSGDW: /);
});

test('test_grid_has_each_cell_where_its_names_are_also_when_turned', () => {
    const cells = ['r1', 'r2'].flatMap((r, i) => ['c1', 'c2', 'c3'].map((column, k) => ({ row: r, column, value: i === 1 && k === 2 ? null : 10 * i + k, sd: null, n: 1 })));
    const texts = figure => [...painted(figure).matchAll(/<text x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]*)</g)].map(m => ({ x: Number(m[1]), y: Number(m[2]), word: m[3] }));
    for (const width of [700, 200]) {
        const figure = gridFigure(cells, { ...how, width, theme: 'light', metric: 'acc/val' }), all = texts(figure), place = word => all.find(t => t.word === word);
        const turned = width === 200;
        assert.deepEqual(turned ? figure.names.columns : figure.names.rows, ['r1', 'r2']);
        assert.equal(place('11')[turned ? 'y' : 'x'], place('1')[turned ? 'y' : 'x'], 'one column of the table');
        assert.equal(place('11')[turned ? 'x' : 'y'], place('10')[turned ? 'x' : 'y'], 'one row of it');
        assert.equal(all.filter(t => t.word === '–').length, 1);
        assert.deepEqual([...new Set(figure.rows.map(r => r[5]))], ['metric', 'acc/val']);
    }
    assert.equal(gridSays('Loss', cells, say), 'Loss: from 0 (r1, c1) to 11 (r2, c2), 5 of 6 combinations.');
});

test('test_targets_compare_differences_from_the_first_row', () => {
    const lines = [{ name: 'softmax', paper: 50, here: 90, sd: 1, n: 3, of: 1, here_less_paper: 40, paper_less_first: null, here_less_first: null }, { name: 'x³', paper: 45, here: 88, sd: null, n: 3, of: 1, here_less_paper: 43, paper_less_first: -5, here_less_first: -2 },
        { name: 'new', paper: null, here: null, sd: null, n: 0, of: 0, here_less_paper: null, paper_less_first: null, here_less_first: null }];
    const figure = targetFigure(lines, { ...how, unit: '%', metric: 'acc/test' }), svg = painted(figure);
    assert.deepEqual([figure.rows[0].at(-1), figure.rows[2]], ['metric', ['x³', '45', '88', '', '3', '-5', '-2', '43', 'acc/test']]);
    assert.equal(figure.title, 'P (acc/test)');
    assert.ok(svg.includes('difference from softmax, points'));
    // The paper's mark of x³ stands left of ours, both left of 0.
    const diamonds = [...svg.matchAll(/<path d="M([\d.]+) [\d.]+L[\d.]+ [\d.]+L[\d.]+ [\d.]+L[\d.]+ [\d.]+Z" fill="none" stroke="#000001"/g)].map(m => Number(m[1]));
    const dots = [...svg.matchAll(/<path d="M([\d.]+) [\d.]+(?:L[\d.]+ [\d.]+){19}Z" fill="#000000"/g)].map(m => Number(m[1]) - 5);
    assert.equal(diamonds.length, 3); // the legend's first
    assert.equal(dots.length, 3);
    assert.ok(Math.abs(diamonds[1] - dots[1]) < 0.02, 'the first row is 0 for both');
    assert.ok(Math.abs((diamonds[1] - diamonds[2]) / (dots[1] - dots[2]) - 2.5) < 0.01, '-5 to -2');
    assert.equal(targetSays('Table', lines, '%'), 'Table, differences from softmax: x³ paper −5 points, here −2 points; new paper none, here none.');
});
