// DeiT, Swin and XCiT on MNIST through a daemon of its own: `POLYD_BUILD=... node tests/bench/vision.mjs SETS [NAME...]`, where SETS holds
// mnist/. Sends deploy/examples/mnist-softmax.json (registered, the teacher), mnist-deit.json, mnist-swin.json and mnist-xcit.json, or those
// named, one after the other, and prints the accuracy on the test digits and the seconds of training.
//
// `--arms`: instead, x^3 without a scale, with a fixed and with a learned one, three seeds each, of mnist-xcit, mnist-deit and mnist-swin (or
// those named) as sweeps, two runs at a time with one thread each; a line for each run as it ends.
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { Daemon, root, until } from '../lib/daemon.mjs';

const arms = process.argv.includes('--arms'), [sets, ...names] = process.argv.slice(2).filter(word => word !== '--arms');
if (!sets) {
    console.error('usage: node tests/bench/vision.mjs [--arms] SETS [mnist-softmax mnist-deit mnist-swin mnist-xcit]');
    process.exit(2);
}
const daemon = await Daemon.start({ flags: [`--data.sets=${path.resolve(sets)}`, `--devices.cpu_slots=${arms ? 2 : 1}`, `--devices.threads_per_slot=${arms ? 1 : 2}`] });
const example = name => JSON.parse(readFileSync(path.join(root, `deploy/examples/${name}.json`), 'utf8'));
const last = async (run, key) => (await daemon.get(`/api/v1/runs/${run}/series?key=${key}`)).series[0]?.data.at(-1)?.mean;

/** A sweep of the example over x^3's three scales and three seeds; prints each run when it has ended. */
async function sweep(name) {
    const values = ['none', 'fixed', 'learned'].map(scale => ({ activation: 'poly', degree: 3, scale }));
    const { job } = await daemon.submit({ ...example(name), sweep: { method: 'grid', axes: [{ pointer: '/attention', values }] }, trials: 3 });
    const printed = new Set();
    await until(name, async () => {
        const { runs } = await daemon.get(`/api/v1/runs?job=${job}&limit=100`);
        for (const run of runs.filter(at => at.state === 'ended' && !printed.has(at.id))) {
            console.log(`${name} ${run.sweep['/attention'].scale} seed ${run.seed}: ${run.outcome} ${run.reason ?? ''} acc/test ${await last(run.id, 'acc/test')}`);
            printed.add(run.id);
        }
        return printed.size === 9;
    }, { limit: 6 * 3600000, every: 2000 });
}

try {
    for (const name of names.length ? names : arms ? ['mnist-softmax', 'mnist-xcit', 'mnist-deit', 'mnist-swin'] : ['mnist-softmax', 'mnist-deit', 'mnist-swin', 'mnist-xcit']) {
        if (arms && name !== 'mnist-softmax') {
            await sweep(name);
            continue;
        }
        const job = example(name), began = Date.now();
        const { run } = await daemon.submit({ ...job, register: name });
        const ended = await until(name, async () => {
            const at = await daemon.get(`/api/v1/runs/${run}`);
            return at.state === 'ended' && at;
        }, { limit: 3600000, every: 1000 });
        const seconds = (Date.now() - began) / 1000;
        console.log(`${name}: ${ended.outcome ?? ended.state} ${ended.reason ?? ''} acc/test ${await last(run, 'acc/test')}, acc/val ${await last(run, 'acc/val')}, ${seconds.toFixed(0)} s`);
        await until(`model ${name}`, () => daemon.get(`/api/v1/models/${name}/versions/1`), { limit: 60000 });
    }
} finally {
    await daemon.stop();
}
