// Formulas on the page: how a document holds them, what is underlined, what is said of one, and its figures.
import assert from 'node:assert/strict';
import test from 'node:test';

import { formulaFigure, formulaSays, normalLogits } from '../../web/js/formula/figures.js';
import { alone, beyondWords, builtinWords, entriesOf, facts, factored, named, pieces, scalarsOf, withEntries } from '../../web/js/formula/words.js';

const base = { name: 'x', attention: { activation: 'poly', degree: 3, scale: 'learned', dropout: 0.1 }, train: { epochs: 1 } };

test('test_web_formula_entries_come_back_as_they_were_written', () => {
    assert.deepEqual(entriesOf(base), []);
    for (const entries of [[{ formula: 's^3' }], [{ formula: 's^3' }, { formula: 'softmax(s)' }], [{ formula: 'a*s', params: { a: { init: 2 } } }, { formula: 's' }]]) {
        const document = withEntries(base, entries);
        assert.deepEqual(entriesOf(document).map(e => e.formula), entries.map(e => e.formula));
        assert.deepEqual(entriesOf(document).map(e => scalarsOf(document, e)), entries.map(e => e.params ?? {}));
        assert.equal(document.attention.degree, undefined);
        assert.equal(document.attention.dropout, 0.1);
        assert.equal(document.attention.activation, entries.length === 1 ? 'formula' : undefined);
        assert.deepEqual(withEntries(document, []).attention, { dropout: 0.1 });
    }
    assert.deepEqual(withEntries({ train: 1 }, []), { train: 1 });
});

test('test_web_formula_scalars_that_no_formula_names_leave_the_document', () => {
    const a = { init: '0', per: 'head' }, b = { init: 2 }, elastic = withEntries(base, [{ formula: 'relu(softmax(s) + a/ni)', params: { a } }]);
    assert.deepEqual(elastic.attention.params, { a });
    assert.equal('params' in withEntries(elastic, [{ formula: 'softmax(s)' }]).attention, false);
    assert.deepEqual(withEntries(elastic, [{ formula: 'a*s^' }]).attention.params, { a }); // a typing error
    assert.deepEqual(withEntries(elastic, [{ formula: 'a*s' }, { formula: 's^3' }]).attention.params, { a });
    assert.equal('params' in withEntries(elastic, [{ formula: 'abs(s)' }, { formula: 's^3' }]).attention, false);
    const list = withEntries(base, [{ formula: 's', params: { a } }, { formula: 'a*s+b', params: { a, b } }]);
    assert.deepEqual(list.attention.formulas, ['s', { formula: 'a*s+b', params: { a, b } }]);
    const kept = { attention: { activation: 'formula', params: { a, b } }, sweep: { axes: [{ pointer: '/attention/formula', values: ['a*s', 'b*s'] }] } };
    assert.deepEqual(withEntries(kept, [{ formula: 'a*s' }, { formula: 's' }]).attention.params, { a });
    assert.deepEqual(alone(kept, { formula: 'b*s' }).attention.params, { b });
    // A short name is no scalar.
    assert.deepEqual(named('a = s^2; a*b == 1', { a, b }), { b });
});

test('test_web_formula_axis_of_a_kept_document_is_edited_in_place', () => {
    const kept = { attention: { activation: 'formula' }, sweep: { axes: [{ pointer: '/train/batch', values: [8, 16] }, { pointer: '/attention/formula', values: ['s', 's^2'] }] } };
    assert.deepEqual(entriesOf(kept), [{ formula: 's' }, { formula: 's^2' }]);
    assert.deepEqual(withEntries(kept, [{ formula: 's^3' }, { formula: 's^2' }]).sweep.axes[1].values, ['s^3', 's^2']);
    const one = withEntries(kept, [{ formula: 's^3' }]);
    assert.deepEqual(one.sweep.axes, [kept.sweep.axes[0]]);
    assert.equal(one.attention.formula, 's^3');
    assert.equal(alone(kept, { formula: 's' }).sweep, undefined);
    assert.equal(alone(kept, { formula: 's' }).attention.formula, 's');
});

test('test_web_formula_axis_of_whole_activations_is_read_where_all_are_formulas', () => {
    const values = [{ activation: 'formula', formula: 's^3' }, { activation: 'formula', formula: 'a*s', params: { a: { init: 2 } } }];
    const kept = { name: 'x', attention: { dropout: 0.1 }, sweep: { axes: [{ pointer: '/attention', values }] } };
    assert.deepEqual(entriesOf(kept), [{ formula: 's^3' }, { formula: 'a*s', params: { a: { init: 2 } } }]);
    assert.deepEqual(withEntries(kept, [{ formula: 's^3' }, { formula: 's' }]), { name: 'x', attention: { formulas: ['s^3', 's'], dropout: 0.1 } });
    assert.deepEqual(entriesOf({ attention: { formulas: [null, 's', 3] } }).map(e => e.formula), ['', 's', '']); // while one types
    const mixed = { sweep: { axes: [{ pointer: '/attention', values: [...values, { activation: 'softmax' }] }] } };
    assert.deepEqual(entriesOf(mixed), []);
});

test('test_web_formula_faults_are_counted_in_bytes', () => {
    assert.deepEqual(pieces('s + é + q', [{ at: 4, length: 2, text: '' }]), [{ text: 's + ', bad: false }, { text: 'é', bad: true }, { text: ' + q', bad: false }]);
    assert.deepEqual(pieces('(s', [{ at: 2, length: 1, text: '' }]), [{ text: '(s', bad: false }, { text: ' ', bad: true }]);
    assert.deepEqual(pieces('s', []), [{ text: 's', bad: false }]);
});

test('test_web_formula_factor_is_a_new_scalar_on_the_last_part', () => {
    assert.deepEqual(factored('t = 1+s; t/rowsum(t)', []), { name: 'c', formula: 't = 1+s; c*(t/rowsum(t))' });
    assert.deepEqual(factored('c*tanh(s/c)', ['c']), { name: 'c1', formula: 'c1*(c*tanh(s/c))' });
});

test('test_web_formula_facts_are_words', () => {
    const answer = { at_zero: 0, row_functions: 0, parity: 'odd', sign: 'either', lowest: null, highest: null, growth: 3, passes: 1, operations: { forward: 1, backward: 4 } };
    const said = Object.fromEntries(facts(answer).map(([title, value]) => [title, value]));
    assert.deepEqual([said['φ(0)'], said.Symmetry, said.Bounds, said.Grows], ['0', 'odd', 'none', 'as |s|³']);
    assert.equal(Object.fromEntries(facts({ ...answer, growth: 'Infinity', lowest: 0, highest: 1 }).map(([t, v]) => [t, v])).Grows, 'faster than any power');
    assert.equal(builtinWords(null), '');
    assert.equal(builtinWords({ activation: 'poly', degree: 3, constant: 1, alpha: 0.5 }), 'poly: n^−0.5 s³');
    assert.equal(builtinWords({ activation: 'softmax', degree: 0, constant: 1, alpha: 0 }), 'softmax');
    const none = { over: 0, under: 0 };
    assert.match(beyondWords({ f32: none, bf16: none }), /^no pair/);
    assert.equal(beyondWords({ f32: { over: null, under: null }, bf16: { over: null, under: null } }), 'not forecast');
    assert.match(beyondWords({ f32: { over: .012, under: 0 }, bf16: none }), /1.2 % of pairs above f32/);
});

test('test_web_formula_figure_has_gaps_where_there_is_no_value', () => {
    const samples = { s: [-1, 0, 1, 2], value: [-1, null, 1, 8], slope: [3, null, 3, 12] };
    const how = { title: 't', width: 400, ink: 'red', bar: 'blue' };
    const figure = formulaFigure(samples, 'value', normalLogits(1), how);
    assert.deepEqual(figure.lines[0].points.map(([, v]) => v), [-1, null, 1, 8]);
    assert.ok(figure.bars.every(b => b.from >= -1 && b.to <= 2 && b.share <= .42 && b.share > 0) && figure.bars.length > 10);
    assert.deepEqual(figure.rows[2], ['0', '']);
    assert.match(formulaSays(samples, 'slope'), /no finite value at 1 of 4 points/);
    assert.match(formulaSays({ ...samples, value: [null, null, null, null] }, 'value'), /no finite value between/);
});
