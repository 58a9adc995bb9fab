// The numbers behind the maps of an equation: where a cell lies, what a figure and a sentence show of given numbers.
import assert from 'node:assert/strict';
import test from 'node:test';

import { paintFigure, sizeOf, toCsv } from '../../web/js/chart/figure.js';
import { diverging, sequential } from '../../web/js/chart/colours.js';
import { svgPainter } from '../../web/js/chart/painters.js';
import { fieldFigure, fieldPlace, fieldSays, placeOf, rangeOf, thinned } from '../../web/js/run/field_figures.js';

const axes = { rows: { name: 't', low: 0, high: 1 }, columns: { name: 'x', low: 0, high: 6 } };
const map = { rows: 3, columns: 4, values: Float32Array.from([0, 1, 2, 3, 4, 5, -6, 7, 8, 9, 10, 11]) };
const how = { title: 'u', name: 'u', width: 400, theme: /** @type {'light'} */ ('light') };

test('test_field_cells_lie_at_both_ends_of_the_axes', () => {
    assert.deepEqual([0, 1, 2].map(i => placeOf(axes.rows, i, 3)), [0, .5, 1]);
    assert.equal(placeOf(axes.columns, 3, 4), 6);
    assert.equal(fieldPlace(map, axes, 1, 2), 'x = 4, t = 0.5');
    const { x, y, rows } = fieldFigure(map, axes, how);
    // A mark stands in the middle of the cell of its value: 6 in the fourth of four columns.
    assert.deepEqual([x.ticks[0], x.ticks.at(-1)], [{ at: .5, word: '0' }, { at: 3.5, word: '6' }]);
    assert.deepEqual([y.ticks[0].at, y.ticks.at(-1)], [.5, { at: 2.5, word: '1' }]);
    assert.deepEqual([rows[0], rows[7]], [['t', 'x', 'u'], ['0.5', '4', '-6']]);
    assert.equal(toCsv(rows).trim().split('\n').length, 13);
});

test('test_field_colours_follow_one_range_for_several_maps', () => {
    assert.deepEqual(rangeOf([map, { rows: 1, columns: 2, values: [NaN, 20] }]), { low: -6, high: 20 });
    assert.deepEqual(rangeOf([{ rows: 1, columns: 1, values: [NaN] }]), { low: 0, high: 1 });
    const range = { low: -6, high: 20 }, figure = fieldFigure(map, axes, { ...how, range });
    assert.equal(figure.cells.colour(1, 2), diverging(-6 / 20, 'light'));
    assert.equal(figure.cells.colour(2, 3), diverging(11 / 20, 'light'));
    assert.equal(fieldFigure({ ...map, values: map.values.map(Math.abs) }, axes, { ...how, range: { low: 0 } }).cells.colour(2, 3), sequential(1, 'light'));
    assert.match(fieldSays(map, axes, 'u at step 5'), /^u at step 5: 3 times by 4 places, from −6 to 11; the largest at x = 6, t = 1\.$/);
});

test('test_field_that_is_not_finite_has_a_colour_of_its_own_and_a_sentence', () => {
    const all = { ...map, values: new Float32Array(12).fill(NaN) }, some = { ...map, values: [0, NaN, Infinity, 3, 4, 5, 6, 7, -Infinity, 9, 10, 11] };
    for (const theme of /** @type {const} */ (['light', 'dark'])) {
        const none = fieldFigure(all, axes, { ...how, theme, range: { low: -1, high: 1 } }), part = fieldFigure(some, axes, { ...how, theme }), grey = none.cells.colour(0, 0);
        assert.match(grey, /^#[0-9a-f]{6}$/);
        for (const t of [-1, -.5, 0, .5, 1])
            assert.ok(![diverging(t, theme), sequential(Math.abs(t), theme)].includes(grey));
        assert.deepEqual([part.cells.colour(0, 1), part.cells.colour(0, 2), part.cells.colour(2, 0)], [grey, grey, grey]);
        assert.equal(part.cells.colour(2, 3), sequential(1, theme));
        assert.deepEqual([none.key.without, part.key.without, fieldFigure(map, axes, { ...how, theme }).key.without], [grey, grey, null]);
        const svg = svgPainter(...sizeOf(part), 'Inter');
        paintFigure(part, svg, { text: '#000000', muted: '#555555', grid: '#dddddd', surface: '#ffffff' });
        assert.match(svg.done(), />not finite</);
    }
    assert.equal(fieldSays(all, axes, 'u at step 8'), 'u at step 8: 3 times by 4 places; no value is finite.');
    assert.equal(fieldSays(some, axes, 'u at step 8'), 'u at step 8: 3 times by 4 places, from 0 to 11; the largest at x = 6, t = 1; 3 of 12 values not finite.');
});

test('test_field_of_many_points_is_thinned_with_its_ends', () => {
    const rows = 500, columns = 3, large = { rows, columns, values: Float64Array.from({ length: rows * columns }, (_, i) => i) }, small = thinned(large);
    assert.deepEqual([small.rows, small.columns], [201, 3]);
    assert.deepEqual([small.values[0], small.values[200 * 3 + 2]], [0, 1499]);
    assert.equal(small.values[100 * 3 + 1], Math.round(100 * 499 / 200) * 3 + 1);
    assert.equal(thinned(map), map);
});
