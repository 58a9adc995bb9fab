// tests/bench/RESULTS.md keeps what was measured apart from what was counted.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import test from 'node:test';

const file = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../bench/RESULTS.md');

/** The parts (headings of the first level) with their sections (second level). */
function parts() {
    return Object.fromEntries(readFileSync(file, 'utf8').split(/^# /m).slice(1).map(part => {
        const [title, ...sections] = part.split(/^## /m);
        return [title.split('\n')[0], { text: part, sections: sections.map(text => ({ title: text.split('\n')[0], text })) }];
    }));
}

test('test_results_have_a_part_for_what_was_measured_and_one_for_what_was_counted', () => {
    assert.deepEqual(Object.keys(parts()), ['Measured figures', 'Measured', 'Counted', 'Not measured']);
});

test('test_results_measured_have_a_date_and_count_nothing', () => {
    for (const { title, text } of parts().Measured.sections) {
        assert.ok(title === 'Summary' || /20\d\d-\d\d-\d\d/.test(title), `'${title}' has no date`);
        for (const word of ['not measured, at', '--roofline', 'at 790'])
            assert.ok(!text.includes(word), `'${title}' has '${word}': that belongs to the part Counted`);
    }
});

test('test_results_counted_say_so_and_when', () => {
    for (const { title } of parts().Counted.sections)
        assert.match(title, /[Cc]ounted.*20\d\d-\d\d-\d\d/);
});

test('test_results_not_measured_hold_no_figure', () => {
    for (const row of parts()['Not measured'].text.split('\n').filter(line => line.startsWith('| ') && !line.startsWith('| bars')))
        assert.match(row, /\| (not measured|-) \|$/);
});
