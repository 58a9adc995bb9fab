// Four formulas of attention on MNIST, from one request to answers of the best one: node tests/bench/formula_sweep.mjs FOLDER [EPOCHS]
// FOLDER has MNIST's four files. Two slots of one thread each; prints the accuracies and the time of each part.
import { execFileSync } from 'node:child_process';
import path from 'node:path';
import { Daemon, build, until } from '../lib/daemon.mjs';

const [folder, epochs = '2'] = process.argv.slice(2);
if (!folder) {
    console.error('formula_sweep: wants a folder with MNIST');
    process.exit(2);
}
const formulas = ['softmax(s)', 's^3/sqrt(n)', 's^3/(1+abs(s))', 'sigmoid(s-log(n))'];
const daemon = await Daemon.start({ flags: [`--data.sets=${path.dirname(path.resolve(folder))}`, '--devices.cpu_slots=2', '--devices.threads_per_slot=1', '--devices.gpus=none'] });
const began = Date.now(), at = () => `${((Date.now() - began) / 1000).toFixed(1)} s`;
try {
    const job = await daemon.post('/api/v1/jobs', {
        name: 'four formulas', register: 'best-formula', model: { preset: 'vit_micro', patch: 7 }, attention: { formulas }, data: { dataset: 'mnist', path: `sets/${path.basename(path.resolve(folder))}` },
        train: { epochs: Number(epochs), batch: 64, init: 'trunc_xavier', optimizer: { lr: 0.003 } }, diagnostics: { every: 0 }, sweep: { metric: 'acc/val', mode: 'max' },
    });
    await until('the sweep', async () => (await daemon.get(`/api/v1/jobs/${job.id}`)).state === 'done', { limit: 3600000, every: 500 });
    console.log(`the sweep took ${at()}`);
    for (const row of (await daemon.get(`/api/v1/jobs/${job.id}/sweep?metric=acc/val`)).table)
        console.log(`${row.values['/attention/formula']}: acc/val ${row.metrics['acc/val'].mean}`);
    await until('the version', async () => (await daemon.get('/api/v1/models')).models.some(m => m.name === 'best-formula' && m.versions.length > 0), { every: 100 });
    await daemon.post('/api/v1/models/best-formula/versions/1/load');
    const { pixels } = JSON.parse(execFileSync(path.join(build, 'bin/polyd-worker'), ['digit', '7', '3'], { encoding: 'utf8' }));
    const { outputs } = await daemon.post('/v2/models/best-formula/infer', { inputs: [{ name: 'image', shape: [1, 1, 28, 28], datatype: 'UINT8', data: pixels }] });
    console.log(`a drawn 3 was answered with ${outputs.find(o => o.name === 'class').data[0]} at ${at()}`);
} finally {
    await daemon.stop();
}
