// The page's pure parts, run outside a browser.
import assert from 'node:assert/strict';
import test from 'node:test';

import { ago, bytes, duration, number, percent, toNumber } from '../../web/js/format.js';
import { at, meanOf } from '../../web/js/compare/mean.js';
import { describe, metrics, panels, parseKey, present, seriesName } from '../../web/js/metrics.js';
import { lineOf, locate, stretchOf } from '../../web/js/pointer.js';
import { columnOf, comparator, formatColumns, parseColumns, wantedFields, wantedMetrics } from '../../web/js/table/columns.js';
import { smooth } from '../../web/js/smooth.js';
import { readEvents } from '../../web/js/sse.js';

test('test_smooth_without_weight_is_the_series', () => {
    assert.deepEqual(smooth([1, null, 3], 0), [1, null, 3]);
});

test('test_smooth_is_debiased_at_the_start_and_keeps_a_constant', () => {
    const flat = smooth(new Array(50).fill(7), 0.95);
    for (const value of flat)
        assert.ok(Math.abs(value - 7) < 1e-9);
    const [first, second] = smooth([4, 8], 0.5);
    assert.equal(first, 4);
    assert.ok(Math.abs(second - (0.5 * 0.5 * 4 + 0.5 * 8) / 0.75) < 1e-12);
});

test('test_smooth_passes_over_gaps_and_non_finite_values', () => {
    assert.deepEqual(smooth([2, null, NaN, Infinity, 2], 0.9).map(v => v && Math.round(v * 1e9) / 1e9), [2, null, null, null, 2]);
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
    assert.equal(duration(0.25), '250 ms');
    assert.equal(duration(75), '1 min 15 s');
    assert.equal(duration(3 * 3600 + 60), '3 h 01 min');
    assert.equal(ago('2026-01-01T00:00:00.000Z', Date.parse('2026-01-01T00:02:30Z')), '2 min ago');
});

test('test_metrics_keys_split_into_base_layer_and_head', () => {
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
    assert.deepEqual(parseKey('7'), { base: '7', layer: null, head: null });
    assert.equal(seriesName('attn/fro/3'), 'layer 3');
    assert.equal(seriesName('loss/val'), 'validation');
});

test('test_metrics_panels_overlay_what_belongs_together_in_a_fixed_order', () => {
    const found = panels(['scale/c/2', 'my/own', 'loss/val', 'scale/c/10', 'lr', 'loss/train', 'scale/c/1']);
    assert.deepEqual(found.map(panel => panel.id), ['loss', 'lr', 'scale/c', 'my/own']);
    assert.deepEqual(found[0].keys, ['loss/train', 'loss/val']);
    assert.deepEqual(found[2].keys, ['scale/c/1', 'scale/c/2', 'scale/c/10']);
    assert.ok(found[2].layered && !found[0].layered);
});

test('test_metrics_each_is_explained_in_a_sentence_with_its_source', () => {
    assert.equal(new Set(metrics.map(metric => metric.key)).size, metrics.length);
    for (const metric of metrics) {
        assert.match(metric.text, /\.$/, metric.key);
        assert.ok(metric.source.length > 0 && metric.title.length > 0, metric.key);
    }
    assert.equal(describe('something/else').title, 'something/else');
});

async function events(chunks) {
    const body = new ReadableStream({
        start(controller) {
            for (const chunk of chunks)
                controller.enqueue(typeof chunk === 'string' ? new TextEncoder().encode(chunk) : chunk);
            controller.close();
        },
    });
    const all = [];
    for await (const event of readEvents(body))
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

const run = (id, over = {}) => ({ id, jobId: '1', name: `run ${id}`, experiment: 'e', state: 'ended', outcome: 'succeeded', reason: '', step: 5, totalSteps: 10, attempts: 1, created: '2026-01-01T00:00:00.000Z',
    started: null, ended: null, device: 'cpu', latest: {}, position: null, sweep: {}, tags: {}, fields: {}, priority: 0, index: 0, ...over });

test('test_columns_survive_the_way_through_a_link', () => {
    assert.equal(formatColumns(parseColumns(null)), '');
    const text = 'state,name~400,m:acc/val,c:/train/optimizer/lr~90,m:a%2Cb';
    const chosen = parseColumns(text);
    assert.deepEqual(chosen.map(({ column, width }) => [column.id, width]), [['state', 136], ['name', 400], ['m:acc/val', 128], ['c:/train/optimizer/lr', 90], ['m:a,b', 128]]);
    assert.equal(formatColumns(chosen), text);
});

test('test_columns_unknown_and_too_many_are_left_out_and_the_run_stays', () => {
    assert.deepEqual(parseColumns('nonsense,loss').map(c => c.column.id), ['name', 'loss']);
    assert.equal(parseColumns('gone,%zz').length, parseColumns('').length);
    const many = parseColumns(`name,${Array.from({ length: 40 }, (_, i) => `m:k${i}`).join()}`);
    assert.equal(wantedMetrics(many).length, 16);
    assert.equal(wantedMetrics(parseColumns('name,loss,m:acc/val')).length, 6); // one of them was asked for already
    assert.deepEqual(wantedFields(parseColumns('name,c:/a/b')), ['/a/b']);
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

test('test_metric_values_carry_their_unit', () => {
    assert.equal(present(describe('acc/val'), 0.5), '50.0 %');
    assert.equal(present(describe('mem/peak'), 2048), '2.0 KiB');
    assert.equal(present(describe('step_ms'), null), '–');
    assert.equal(present(describe('loss/val'), NaN), 'NaN');
    for (const metric of metrics)
        assert.ok(metric.text.endsWith('.') && metric.source.length > 8, metric.key);
});
