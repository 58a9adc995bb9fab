// The numbers behind the pictures of attention: what a cell, a bar, a line and a sentence show of given numbers.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import test from 'node:test';

import { diverging, scaleOf, sequential } from '../../web/js/chart/colours.js';
import { paintFigure, sizeOf, toCsv } from '../../web/js/chart/figure.js';
import { pdfPainter, svgPainter } from '../../web/js/chart/painters.js';
import { cellAt } from '../../web/js/picture.js';
import { sharedPatches, tokensOf } from '../../web/js/run/attention.js';
import { activationWords, blockFigure, blockOf, drawable, linesOf } from '../../web/js/run/block_figure.js';
import { edge, gradientFigure, gradientSays, span } from '../../web/js/run/gradient_figures.js';
import { shapes } from '../wiring/reference/init.mjs';
import { settings } from '../wiring/reference/settings.mjs';
import { displacementFigure, displacementSays, mapFigure, mapSays, phiFigure, phiSays, stripFigure, stripSays, summary, tokenName, withoutLead } from '../../web/js/run/attention_figures.js';

const ink = { text: '#000000', muted: '#555555', grid: '#dddddd', surface: '#ffffff' };
const matrix = { rows: 3, columns: 3, values: new Float32Array([.5, -.25, 0, 0, 1, 0, -1, .125, .25]) };
const how = { title: 'A', width: 400, theme: /** @type {'light'} */ ('light') };
const channels = colour => colour.match(/\w\w/g).map(v => parseInt(v, 16));

test('test_colours_are_neutral_at_0_and_equally_strong_on_both_sides', () => {
    for (const theme of ['light', 'dark']) {
        const [r, g, b] = channels(diverging(0, theme));
        assert.ok(Math.max(r, g, b) - Math.min(r, g, b) <= 2, 'grey');
        assert.equal(diverging(-1e-9, theme), diverging(1e-9, theme));
        const [br, , bb] = channels(diverging(-1, theme)), [or, , ob] = channels(diverging(1, theme));
        assert.ok(bb > br && or > ob, 'blue below, orange above');
        const light = colour => channels(colour).reduce((a, b) => a + b);
        for (const t of [.25, .5, .75, 1])
            assert.ok(theme === 'light' ? light(sequential(t, theme)) < light(sequential(t - .25, theme)) : light(sequential(t, theme)) > light(sequential(t - .25, theme)));
        assert.equal(diverging(7, theme), diverging(1, theme));
    }
});

test('test_colours_diverge_only_where_numbers_have_both_signs', () => {
    const signed = scaleOf([-.5, 2]), plain = scaleOf([0, .25, 1]);
    assert.deepEqual([signed.low, signed.high, signed.signed], [-2, 2, true]);
    assert.equal(signed.colour(0, 'light'), diverging(0, 'light'));
    assert.equal(signed.colour(-.5, 'light'), diverging(-.25, 'light'));
    assert.deepEqual([plain.low, plain.high, plain.signed], [0, 1, false]);
    assert.equal(plain.colour(.25, 'dark'), sequential(.25, 'dark'));
    assert.deepEqual([scaleOf([]).low, scaleOf([NaN]).high, scaleOf([0, 0]).high], [0, 1, 1]);
});

test('test_map_draws_queries_down_and_keys_across', () => {
    const figure = mapFigure(matrix, how);
    assert.equal(figure.cells.colour(0, 1), diverging(-.25, 'light'));
    assert.equal(figure.cells.colour(2, 0), diverging(-1, 'light'));
    assert.equal(figure.cells.colour(1, 1), diverging(1, 'light'));
    assert.deepEqual([figure.y.low, figure.y.high, figure.x.high], [3, 0, 3]);
    assert.equal(figure.rows.length, 10);
    assert.deepEqual(figure.rows.slice(0, 3), [['query', 'key', 'weight'], ['1', '1', '0.5'], ['1', '2', '-0.25']]);
    assert.equal(toCsv(figure.rows).split('\n')[7], '3,1,-1');
    const soft = mapFigure({ rows: 2, columns: 2, values: [.5, .5, .25, .75] }, how);
    assert.equal(soft.cells.colour(1, 1), sequential(1, 'light'));
});

test('test_map_says_what_is_seen', () => {
    assert.deepEqual(summary(matrix), { low: -1, high: 1, below: 2 / 9, row: 1, column: 1, without: 0 });
    assert.equal(mapSays(matrix, 'A of layer 1', {}, false), 'A of layer 1: 3 queries by 3 keys, from −1 to 1, 22 % below 0; the largest by size at query 2, key 2.');
    assert.equal(tokenName(0, { grid: [2, 3], lead: 1 }), 'class token');
    assert.equal(tokenName(5, { grid: [2, 3], lead: 1 }), 'patch 5 (row 2, column 2)');
    assert.equal(tokenName(4, { grid: [2, 3], lead: 1 }, true), 'patch 5 (row 2, column 2)');
    assert.equal(tokenName(4, {}), '5');
    assert.deepEqual(Array.from(withoutLead(matrix, 1).values), [1, 0, .125, .25]);
    assert.equal(withoutLead(matrix, 0), matrix);
});

test('test_map_with_numbers_that_are_not_finite_is_drawn_and_says_how_many', () => {
    const part = { ...matrix, values: [NaN, -.25, 0, 0, Infinity, 0, -1, .125, .25] }, none = { ...matrix, values: new Float32Array(9).fill(NaN) };
    assert.equal(mapFigure(part, how).cells.colour(0, 0), mapFigure(none, how).cells.colour(2, 2));
    assert.equal(mapFigure(part, how).cells.colour(2, 0), diverging(-1, 'light'));
    assert.equal(mapFigure(none, how).key.without, mapFigure(none, how).cells.colour(0, 0));
    assert.equal(mapSays(part, 'A', {}, false), 'A: 3 queries by 3 keys, from −1 to 0.25, 29 % below 0; the largest by size at query 3, key 1; 2 of 9 weights not finite.');
    assert.equal(mapSays(none, 'A', {}, false), 'A: 3 queries by 3 keys; no weight is finite.');
    assert.equal(displacementSays(none, [-1, -1]), 'No mean weight is finite.');
    assert.doesNotMatch(displacementSays(part, [-1, -1]), /NaN|Infinity/);
    const line = displacementFigure({ rows: 1, columns: 3, values: [NaN, .5, .25] }, [0, -1], { ...how, ink: '#123456' });
    assert.ok(line.y.high > .5 && line.y.high < .6);
});

test('test_map_cell_under_the_pointer_is_the_one_that_is_painted', () => {
    const figure = mapFigure(matrix, how), head = sizeOf(figure)[1] - figure.height;
    const left = 62, right = 400 - 84, top = head + 8, bottom = head + figure.height - 42;
    for (let row = 0; row < 3; row++)
        for (let column = 0; column < 3; column++)
            assert.deepEqual(cellAt(figure, left + (column + .5) * (right - left) / 3, top + (row + .5) * (bottom - top) / 3), { row, column });
    assert.equal(cellAt(figure, left - 1, top + 5), null);
    assert.equal(cellAt(figure, left + 5, bottom + 1), null);
    const svg = svgPainter(...sizeOf(figure), 'Inter');
    paintFigure(figure, svg, ink);
    const text = svg.done(), box = new RegExp(`<path d="M${left} ${String(top + 2 * (bottom - top) / 3).slice(0, 5)}[^"]*" fill="${diverging(-1, 'light')}"`);
    assert.match(text, box);
});

test('test_exporter_puts_equal_neighbours_down_as_one_shape', () => {
    const figure = mapFigure({ rows: 200, columns: 200, values: new Float32Array(40000).fill(.5) }, how);
    const svg = svgPainter(...sizeOf(figure), 'Inter');
    paintFigure(figure, svg, ink);
    assert.ok(svg.done().length < 40000);
    const pdf = pdfPainter(...sizeOf(figure));
    paintFigure(figure, pdf, ink);
    const bytes = Buffer.from(pdf.done('A')).toString('latin1');
    assert.match(bytes, / re\n/);
    assert.match(bytes, /%%EOF/);
});

test('test_map_names_what_it_is_between', () => {
    const of = (between, m = matrix) => ({ figure: mapFigure(m, { ...how, between }), says: mapSays(m, 'A', { grid: [1, 2], lead: 1, between }, false) });
    assert.deepEqual([of('channels').figure.x.title, of('channels').figure.y.title, of(undefined).figure.x.title], ['channel of K', 'channel of Q', 'key']);
    assert.match(of('channels').says, /3 channels of Q by 3 channels of K, .* at query channel 2, key channel 2\./);
    assert.match(of('landmarks').says, /3 landmarks by 3 landmarks, .*key landmark 2\./);
    const row = { rows: 1, columns: 3, values: new Float32Array([.1, .7, .2]) }, { figure, says } = of('class', row);
    assert.ok(figure.height - 50 >= 30, 'one row is not drawn as a hair');
    assert.match(says, /1 query by 3 keys, .*at query class token, key patch 1 \(row 1, column 1\)\./);
});

test('test_displacement_of_a_picture_is_a_map_and_of_a_text_a_line', () => {
    const picture = { rows: 3, columns: 5, values: Float32Array.from({ length: 15 }, (_, i) => i / 14) };
    const map = displacementFigure(picture, [-1, -2], { ...how, ink: '#000000' });
    assert.equal(map.cells.colour(2, 4), sequential(1, 'light'));
    assert.deepEqual(map.rows[1], ['-1', '-2', '0']);
    assert.deepEqual(map.rows.at(-1), ['1', '2', '1']);
    assert.match(displacementSays(picture, [-1, -2]), /^Most weight lies 1 rows down and 2 columns right of the query\. Keys in the query’s row of patches have 1 times the mean over displacements, those in its column 1 times\.$/);
    const row = { rows: 3, columns: 3, values: [0, 0, 0, 3, 3, 3, 0, 0, 0] };
    assert.match(displacementSays(row, [-1, -1]), /row of patches have 3 times the mean .* column 1 times/);
    const text = { rows: 1, columns: 5, values: [.1, .2, .7, 0, 0] };
    const line = displacementFigure(text, [0, -2], { ...how, ink: '#000000', causal: true });
    assert.deepEqual(line.lines[0].points, [[-2, .1], [-1, .2], [0, .7]]);
    assert.match(displacementSays(text, [0, -2]), /at the query’s own place: 0\.7 on average/);
    assert.match(displacementSays({ rows: 1, columns: 3, values: [.9, 0, 0] }, [0, -1]), /1 before the query/);
});

test('test_phi_is_drawn_at_the_scale_over_shares_of_logits', () => {
    const histogram = { counts: [1, 3, 4, 0], low: -2, high: 2 };
    const figure = phiFigure(histogram, { activation: 'poly', degree: 3, scale: .25, title: 'φ', width: 500, ink: '#000000', bar: '#111111' });
    assert.deepEqual(figure.bars.map(b => [b.from, b.to]), [[-2, -1], [-1, 0], [0, 1], [1, 2]]);
    assert.deepEqual(figure.bars.map(b => +b.share.toFixed(4)), [.225, .675, .9, 0]);
    assert.deepEqual(figure.lines[0].points[0], [-2, -2]);
    assert.deepEqual(figure.lines[0].points.at(-1), [2, 2]);
    assert.equal(figure.lines[0].name, 'φ(x) = 0.25 · x³');
    assert.deepEqual(figure.rows[2], ['-1', '0', '0.375', String(.25 * (-.5) ** 3)]);
    const soft = phiFigure(histogram, { activation: 'softmax', degree: 3, scale: 1, title: 'φ', width: 500, ink: '#000000', bar: '#111111' });
    assert.ok(Math.abs(soft.lines[0].points.at(-1)[1] - Math.exp(2)) < 1e-12);
    const own = phiFigure(histogram, { activation: 'formula', degree: 3, scale: 1, title: 'φ', width: 500, ink: '#000000', bar: '#111111' });
    assert.deepEqual([own.lines, own.rows[0], own.bars.length], [[], ['from', 'to', 'share of logits'], histogram.counts.length], 'a formula is not drawn as the identity');
    assert.match(phiSays(histogram, false), /depends on its row/);
    assert.match(phiSays(histogram, true), /^8 visible logits from −2 to 2, mean −0\.125, spread 0\.696; 0 % lie within half of 0/);
});

test('test_strip_divides_at_the_bound_and_leaves_gaps', () => {
    const layers = [{ layer: 1, points: [[0, 1], [10, 4]] }, { layer: 2, points: [[0, 16], [20, 2]] }];
    const figure = stripFigure(layers, { ...how, width: 600, bound: 4, boundName: '√N' });
    assert.deepEqual(figure.strip.steps, [0, 10, 20]);
    assert.deepEqual(figure.strip.values, [[1, 4, null], [16, null, 2]]);
    assert.equal(figure.cells.colour(0, 1), diverging(0, 'light'), 'at the bound');
    assert.equal(figure.cells.colour(1, 0), diverging(1, 'light'), 'as far above');
    assert.equal(figure.cells.colour(0, 0), diverging(-1, 'light'), 'as far below');
    assert.equal(figure.cells.colour(0, 2), null);
    assert.equal(figure.key.rule, 4);
    assert.deepEqual(figure.rows, [['step', 'layer 1', 'layer 2'], ['0', '1', '16'], ['10', '4', ''], ['20', '', '2']]);
    assert.equal(stripSays('Norm', layers, 4, '√N'), 'Norm at step 10: from 2 (layer 2) to 4 (layer 1). Above √N = 4 at some step: layer 2.');
    assert.match(stripSays('Norm', layers, 100, '√N'), /No layer was ever above √N = 100\.$/);
    assert.equal(stripSays('Norm', [{ layer: 1, points: [] }]), 'Norm: no values yet.');
    const plain = stripFigure(layers, { ...how, width: 600 });
    assert.equal(plain.cells.colour(1, 0), sequential(1, 'light'));
    const many = stripFigure([{ layer: 1, points: Array.from({ length: 5000 }, (_, i) => [i, 1 + i]) }], { ...how, width: 600 });
    assert.ok(many.strip.steps.length <= 160 && many.strip.steps.at(-1) === 4999 && many.rows.length === 5001);
});

test('test_tokens_follow_from_the_document', () => {
    assert.equal(tokensOf({ model: { patch: [7, 7], pool: 'cls' }, data: { image_size: [28, 28] } }), 17);
    assert.equal(tokensOf({ model: { patch: 4 }, data: { image_size: 28 } }), 49);
    assert.equal(tokensOf({ model: { context: 64 }, data: { context: 32 } }), 32);
    assert.equal(tokensOf({}), null);
    assert.equal(tokensOf({ model: { arch: 'deit', patch: [7, 7], pool: 'cls' }, data: { image_size: 28 } }), 18);
    assert.equal(tokensOf({ model: { arch: 'swin', patch: [2, 2], window: 7 }, data: { image_size: 28 } }), 49);
    assert.equal(tokensOf({ model: { arch: 'swin', patch: [7, 7], window: 7 }, data: { image_size: 28 } }), 16, 'a window of the whole grid');
    assert.equal(tokensOf({ model: { arch: 'xcit', width: 64, heads: 4, patch: [4, 4] }, data: { image_size: 28 } }), 16);
    assert.equal(tokensOf({ model: { arch: 'nystrom', context: 128, landmarks: 16 }, data: { context: 128 } }), 16);
    assert.equal(tokensOf({ model: { arch: 'nystrom', context: 8, landmarks: 16 }, data: { context: 8 } }), 8);
});

test('test_runs_of_other_patches_share_no_number_of_tokens', () => {
    const runs = (...patches) => patches.map(patch => ({ fields: { '/data/image_size': 28, '/model/patch': patch } }));
    assert.equal(sharedPatches(runs(4, 4)), 49);
    assert.equal(sharedPatches(runs([4, 7], [7, 4])), 28);
    assert.equal(sharedPatches(runs(2, 4, 7, 14)), 0);
    assert.equal(sharedPatches(runs(4, undefined)), 0);
    assert.equal(sharedPatches([{ fields: {} }]), 0);
    assert.equal(sharedPatches([]), 0);
});

test('test_gradients_are_shares_in_log_bins_of_two_runs', () => {
    const meta = { lo: 1e-4, hi: 1, count: 10, zeros: 0, rms: .5, kurtosis: 3, hill: 2.5, ratio: 12, top_share: .25 };
    const one = { name: 'Run #1', ink: '#000000', dash: [], counts: [0, 4, 6, 0], meta }, two = { ...one, name: 'Run #2', counts: [0, 0, 5, 15], meta: { ...meta, count: 20, hill: null } };
    assert.deepEqual(span([one, two]), [1, 4]);
    assert.ok(Math.abs(edge(meta, 4, 1) - 1e-3) < 1e-15);
    const figure = gradientFigure([one, two], { title: 'g', width: 500, log: false });
    assert.deepEqual(figure.rows, [['from', 'to', 'share Run #1', 'share Run #2'], ['0.001', '0.01', '0.4', '0'], ['0.01', '0.1', '0.6', '0.25'], ['0.1', '1', '0', '0.75']]);
    assert.deepEqual([figure.x.low, figure.x.high, figure.x.log], [1e-3, 1, true]);
    const tallest = Math.max(...figure.bars.map(b => b.share));
    assert.ok(Math.abs(tallest - 1 / 1.06) < 1e-9);
    assert.equal(figure.bars.length, 4);
    const log = gradientFigure([one, two], { title: 'g', width: 500, log: true });
    assert.deepEqual([log.y.low, log.y.high, log.y.log], [.1, 1, true]);
    assert.ok(Math.abs(log.bars[0].share - Math.log10(4)) < 1e-9);
    assert.equal(log.lines[1].points[0][1], null, 'nothing is drawn of an empty bin');
    assert.match(gradientSays([one, two]), /^Run #1: 10 entries, root mean square 0\.5; the 99\.9 % quantile is 12 times the median, kurtosis 3, tail index 2\.5, the largest 1 % have 25\.0 % of the squared norm\. Run #2: 20 entries.*tail index none/);
});

/** The words of an item of the drawing: of a part one, of blocks those of each branch and behind each sum. */
const wordsOf = item => {
    const short = list => list.map(p => p.word.replace(/ \(.*|:.*/, '')).join(' ');
    return 'part' in item ? [short([item.part])] : item.stack.sums.flatMap(({ branch, after }) => [short(branch), short(after)]);
};

test('test_block_has_its_norms_where_the_placement_says', () => {
    const of = placement => blockOf({ model: { arch: 'gpt', depth: 4, mlp_ratio: 4, mlp_act: 'gelu', pos: 'none' }, attention: { activation: 'softmax', qk_norm: placement !== 'S1' && placement !== 'post' },
        norm: { placement, kind: placement === 'S1' || placement === 'post' ? 'layer' : 'rms', final: true } }).items.flatMap(wordsOf);
    const head = ['Token embedding'], tail = ['Final norm', 'Head'];
    assert.deepEqual(of('S1'), [...head, 'PreNorm Causal attention', '', 'PreNorm Feed-forward', '', ...tail]);
    assert.deepEqual(of('S2'), [...head, 'PreNorm QKNorm Causal attention', '', 'PreNorm Feed-forward', '', ...tail]);
    assert.deepEqual(of('S3'), [...head, 'InputNorm', 'PreNorm QKNorm Causal attention', '', 'PreNorm Feed-forward', '', ...tail]);
    assert.deepEqual(of('S4'), [...head, 'InputNorm', 'PreNorm QKNorm Causal attention MidNorm', '', 'PreNorm Feed-forward MidNorm', '', ...tail]);
    assert.deepEqual(of('S5'), [...head, 'InputNorm', 'PreNorm QKNorm Causal attention MidNorm', '', 'Feed-forward MidNorm', '', ...tail]);
    assert.deepEqual(of('post'), [...head, 'Causal attention', 'PostNorm', 'Feed-forward', 'PostNorm', ...tail]);
});

test('test_block_every_network_has_a_drawing', () => {
    const list = /X\(\w+\)(?: X\(\w+\))*$/m.exec(readFileSync(new URL('../../daemon/worker/model/arch/networks.h', import.meta.url), 'utf8'))[0];
    const known = [...list.matchAll(/X\((\w+)\)/g)].map(m => m[1]);
    assert.ok(known.length >= 7);
    for (const arch of known)
        assert.ok(drawable(arch), `${arch} is not drawn (web/js/run/block_figure.js)`);
    assert.equal(drawable('another'), false);
    assert.equal(drawable(undefined), false);
});

/** A document of each network as the API resolves it, as far as the drawing reads it. */
const documents = {
    vit: { model: { arch: 'vit', depth: 3, width: 8, heads: 2, patch: [4, 2], pool: 'cls', pos: 'learned' }, attention: { qk_norm: true } },
    deit: { model: { arch: 'deit', depth: 2, width: 8, heads: 2, patch: [4, 4], pool: 'cls', pos: 'learned' }, attention: { qk_norm: true } },
    gpt: { model: { arch: 'gpt', depth: 4, width: 8, heads: 2, context: 6, pos: 'learned' }, attention: { qk_norm: true } },
    swin: { model: { arch: 'swin', widths: [4, 8, 16], depths: [2, 3, 1], head_counts: [1, 2, 4], window: 2, patch: [1, 1] }, attention: { qk_norm: true } },
    xcit: { model: { arch: 'xcit', depth: 3, width: 8, heads: 2, patch: [4, 4], pos: 'fourier', layerscale: 0.5 }, attention: {} },
    nystrom: { model: { arch: 'nystrom', depth: 2, width: 8, heads: 2, mlp_ratio: 2, context: 12, landmarks: 3, conv_kernel: 5, pool: 'mean' }, attention: {} },
    pinnsformer: { model: { arch: 'pinnsformer', depth: 2, width: 8, heads: 2, mlp_ratio: 8, head_width: 16, context: 5 }, attention: {} },
};

/* The norms and the gains of the drawing, times its repetitions, are as many as the reference's list of parameters has. */
test('test_block_has_as_many_norms_as_the_network_has_parameters_of_them', () => {
    for (const [arch, document] of Object.entries(documents).filter(([name]) => name !== 'pinnsformer'))
        for (const placement of ['swin', 'vit', 'gpt', 'deit'].includes(arch) ? ['S1', 'S2', 'S3', 'S4', 'S5', 'post'] : ['S1'])
            for (const final of [true, false]) {
                const qk = document.attention.qk_norm && placement !== 'S1' && placement !== 'post', whole = { model: document.model, attention: { activation: 'softmax', qk_norm: qk }, norm: { placement, kind: 'layer', final }, data: { image_size: 8 } };
                const names = shapes(settings(whole, { channels: 1, height: 8, width: 8, classes: 3, vocab: 9, samples: 8 })).filter(p => p.role === 'gain' || p.role === 'layerscale').map(p => p.name);
                // A QKNorm has a gain for queries and one for keys.
                const want = { norms: names.filter(n => n.endsWith('.weight') && !/local_mp|patch_embed\.proj|attn\.[qk]_norm/.test(n)).length, qk: names.filter(n => /attn\.[qk]_norm/.test(n)).length / 2, scales: names.filter(n => /gamma\d$/.test(n)).length };
                const got = { norms: 0, qk: 0, scales: 0 };
                for (const item of blockOf(whole).items)
                    for (const [part, times] of 'part' in item ? [[item.part, 1]] : item.stack.sums.flatMap(({ branch, after }) => [...branch, ...after].map(p => [p, item.stack.times]))) {
                        got.norms += /^(PreNorm|MidNorm|PostNorm|InputNorm|Final norm|Norm of)/.test(part.word) ? times : 0;
                        got.qk += part.word.startsWith('QKNorm') ? times : 0;
                        got.scales += part.word === 'LayerScale' ? times : 0;
                    }
                assert.deepEqual(got, want, `${arch}, ${placement}, final ${final}`);
            }
});

test('test_block_says_what_is_peculiar_to_a_network', () => {
    const says = (arch, more = {}) => blockOf({ data: { image_size: 8 }, norm: { placement: 'S1', kind: 'layer' }, ...documents[arch], attention: { activation: 'poly', degree: 3, scale: 'fixed', ...more } }).says;
    assert.match(says('swin'), /2 blocks \(.*Attention of 1 head in 2 × 2 windows, every other one shifted, position bias: x³\/√N.*Merging of patches, 16 → 8; 3 blocks .*Merging of patches, 32 → 16; 1 block \(.*4 heads in 2 × 2 windows, position bias: /);
    assert.match(says('xcit', { class_attention: 'softmax' }), /^Placement S1, from the input on: 2 convolutions 3 × 3, .*3 blocks \(.*between channels: x³.*Local patch interaction.*; Class token, in front; 2 blocks \(.*Class attention: softmax.*\); Final norm/);
    assert.match(says('nystrom'), /Attention by 3 landmarks: x³\/√N, plus V convolved over 5 tokens/);
    assert.match(blockOf({ ...documents.nystrom, model: { ...documents.nystrom.model, landmarks: 12 } }).says, /Attention: softmax, plus V/, 'with a landmark for each token attention is exact');
    assert.match(says('pinnsformer'), /^From the input on: Points of x and t, embedded; 2 blocks .*Output of the encoder; apart from these; The same embedded points; 2 blocks \(.*to the encoder’s output: x³/);
    assert.match(says('deit'), /Class and distillation token.*A head of each of the two tokens; Mean of both heads\.$/);
    assert.match(says('gpt', { activation: 'formula', formula: 's^3/(1+abs(s))' }), /Causal attention: s\^3\/\(1\+abs\(s\)\)/);
});

test('test_block_says_the_activation_with_its_scale', () => {
    assert.equal(activationWords({ activation: 'poly', degree: 3, scale: 'learned', scale_share: 'head' }), 'c x³, c learned per head');
    assert.equal(activationWords({ activation: 'poly', degree: 2, scale: 'fixed' }), 'x²/√N');
    assert.equal(activationWords({ activation: 'poly', degree: 3, scale: 'k', k: 16 }), 'x³/16');
    assert.equal(activationWords({ activation: 'poly', degree: 11, scale: 'none' }), 'x^11');
    assert.equal(activationWords({}), 'softmax');
    assert.match(blockOf({ model: { arch: 'gpt', depth: 2, pos: 'none' }, attention: {}, norm: { placement: 'post', kind: 'layer' } }).says, /^Placement post, from the input on: Token embedding; 2 blocks \(Causal attention: softmax, added to what came in, PostNorm \(LayerNorm\); Feed-forward/);
});

test('test_block_is_drawn_whole_and_saved_as_text', () => {
    for (const [arch, document] of Object.entries(documents))
        for (const placement of arch === 'gpt' || arch === 'swin' ? ['S1', 'S4', 'S5', 'post'] : ['S1']) {
            const figure = blockFigure({ ...document, data: { image_size: 8 }, attention: { activation: 'poly', degree: 3, scale: 'fixed' }, norm: { placement, kind: 'rms' } },
                { title: 'Block', width: 300, inks: { norm: '#111111', attention: '#222222', mlp: '#333333', other: '#444444' } });
            const svg = svgPainter(...sizeOf(figure), 'Inter'), [width, height] = sizeOf(figure);
            paintFigure(figure, svg, ink);
            const text = svg.done(), [, ...rows] = figure.rows;
            assert.ok(!/NaN|undefined|Infinity/.test(text), arch);
            // Every part of the CSV is in the picture, in its order from the bottom up, and nothing is outside of it.
            const words = [...text.matchAll(/<text x="([\d.]+)" y="([\d.-]+)"[^>]*>([^<]*)</g)].map(m => ({ x: Number(m[1]), y: Number(m[2]), word: m[3] })).filter(t => t.word !== 'Block');
            assert.deepEqual(words.filter(t => !/^× \d/.test(t.word)).map(t => t.word), rows.filter(r => r[1] !== 'sum').flatMap(r => linesOf(r[1])), arch);
            assert.ok(words.every(t => t.y > sizeOf(figure)[1] - figure.height && t.y < height && t.x > 0 && t.x < width), arch);
            const boxes = [...text.matchAll(/<path d="M([\d.]+) ([\d.]+)L[\d.]+ ([\d.]+)L([\d.]+) [\d.]+L[\d.]+ [\d.]+Z" fill="#(\d)/g)].map(m => m.slice(1, 5).map(Number));
            assert.equal(boxes.length, rows.filter(r => r[1] !== 'sum').length);
            boxes.forEach(([, foot, top], i) => assert.ok(foot > top && (i === 0 || foot < boxes[i - 1][2]), `${arch}: box ${i} stands above the one before it`));
            assert.deepEqual(words.filter(t => /^× \d/.test(t.word)).map(t => t.word.slice(2)), (arch === 'swin' ? document.model.depths : arch === 'xcit' ? [3, 2] : arch === 'pinnsformer' ? [2, 2] : [document.model.depth]).map(String));
        }
    assert.deepEqual(linesOf('a '.repeat(40).trim()).map(line => line.length <= 36), [true, true, true]);
});
