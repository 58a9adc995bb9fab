// The page's pure parts, run outside a browser.
import assert from 'node:assert/strict';
import test from 'node:test';

import { ago, bytes, duration, number, percent, toNumber } from '../../web/js/format.js';
import { describe, metrics, panels, parseKey, seriesName } from '../../web/js/metrics.js';
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
