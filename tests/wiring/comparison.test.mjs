// What differences() lets pass, no test of this folder can find: here it gets numbers that differ in one place each.
import assert from 'node:assert/strict';
import test from 'node:test';
import { differences } from './rig.mjs';

const numbers = [0.5, -40, 0.25, 3];
const wanted = () => ({ series: new Map([['lr', new Map(numbers.map((x, i) => [i + 1, x]))]]), blobs: new Map([['map@4', [...numbers]]]), files: [4], steps: 4,
    settings: { keepBest: 0 }, best: { step: 0 }, checkpoints: new Map([[4, new Map([['w', [...numbers]], ['b', [1]]])]]) });
const reported = () => ({ series: wanted().series, blobs: new Map([['map@4', { data: [...numbers] }]]), listed: [], run: { step: 4 },
    checkpoints: new Map([[4, { tensors: new Map([['w', { data: [...numbers] }], ['b', { data: [1] }]]) }]]) });

test('test_differences_finds_a_number_at_every_place', () => {
    assert.deepEqual(differences(reported(), wanted()), []);
    for (const value of [NaN, Infinity, -Infinity, 7])
        for (let i = 0; i < numbers.length; i++) {
            const got = reported(), want = wanted();
            got.checkpoints.get(4).tensors.get('w').data[i] = value;
            assert.deepEqual(differences(got, wanted()), [`step 4: w[${i}] is ${value}, expected ${numbers[i]}`]);
            got.checkpoints.get(4).tensors.get('w').data[i] = numbers[i];
            got.blobs.get('map@4').data[i] = value;
            assert.match(differences(got, wanted()).join(), /^map@4: 4 numbers, off by [^,]*$/);
            got.blobs.get('map@4').data[i] = numbers[i];
            got.series.get('lr').set(i + 1, value);
            assert.deepEqual(differences(got, wanted()), [`lr at step ${i + 1}: ${value}, expected ${numbers[i]}`]);
            // and where the reference has it
            want.series.get('lr').set(i + 1, value);
            want.checkpoints.get(4).get('w')[i] = value;
            assert.deepEqual(differences(reported(), want), [`lr at step ${i + 1}: ${numbers[i]}, expected ${value}`, `step 4: w[${i}] is ${numbers[i]}, expected ${value}`]);
        }
});

test('test_differences_names_the_worst_number_of_a_tensor', () => {
    const got = reported(), data = got.checkpoints.get(4).tensors.get('w').data;
    Object.assign(data, [0.5 + 1e-6, -40 - 1e-8, 0.25, 3 + 1e-7]); // -40 within 1e-9 of its size
    assert.deepEqual(differences(got, wanted()), [`step 4: w[0] is ${data[0]}, expected 0.5`]);
    Object.assign(data, [0.5, -40 - 3e-8, 0.25, 3 + 2e-8]); // the largest difference is within tolerance, another is not
    assert.deepEqual(differences(got, wanted()), [`step 4: w[3] is ${data[3]}, expected 3`]);
});
