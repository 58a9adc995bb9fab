// What diagnostics cost: the same job with and without them, by turns, through a daemon of its own.
//
//     node tests/bench/diagnostics.mjs [STEPS] [ROUNDS] [vit_tiny|gpt_nano]
//
// One probe of the norms costs what a run that probes at every step takes longer than one that never does, by its number of
// probes; heat maps (two layers, one head) and histograms of gradients likewise. A step costs what STEPS steps take longer than
// one. Each cost is printed as a share of the steps between two of its kind at the default intervals: 50 steps for norms, 500
// for heat maps; of histograms three fall into a run of 1000 steps. Times are processor times of the worker, which other work
// on the machine changes less than wall time. Medians over rounds. Batches are small (16 pictures, 4 texts): a larger one makes a
// step longer and the share smaller.
import { readFileSync } from 'node:fs';

import { Daemon, until } from '../lib/daemon.mjs';

const [steps = 4, rounds = 3] = process.argv.slice(2, 4).map(Number), only = process.argv[4];
const common = { resources: { device: 'cpu', threads: 2, loader_threads: 1 } };
const jobs = {
    vit_tiny: { ...common, name: 'vit_tiny', model: { preset: 'vit_tiny', patch: 2 }, attention: { activation: 'poly' }, data: { dataset: 'digits_gen', split: { rule: 'count', train: 160, val: 16 } }, train: { batch: 16 } },
    gpt_nano: { ...common, name: 'gpt_nano', model: { preset: 'gpt_nano' }, attention: { activation: 'poly' }, data: { dataset: 'text_gen', split: { val: 2000, test: 2000 } }, train: { batch: 4 } },
};
const at = Array.from({ length: steps }, (_, i) => (i + 1) / steps);
const kinds = {
    norms: { diagnostics: { every: 1 }, between: 50 },
    'heat maps': { diagnostics: { every: 0, heatmaps: { layers: [2, 6], heads: [1], every: 1 } }, between: 500 },
    histograms: { diagnostics: { every: 0, histograms: { at } }, between: 1000 / 3 },
};
const median = list => [...list].sort((a, b) => a - b)[Math.floor(list.length / 2)];

const daemon = await Daemon.start({ flags: ['--devices.cpu_slots=1', '--devices.threads_per_slot=2'] });
try {
    /** Seconds of processor time of all workers that have ended: fields 16 and 17 of proc(5)'s stat, in ticks of 10 ms. */
    const processor = () => {
        const fields = readFileSync(`/proc/${daemon.process.pid}/stat`, 'latin1').replace(/^.*\) /, '').split(' ');
        return (Number(fields[13]) + Number(fields[14])) / 100;
    };
    const measure = async (job, diagnostics, n) => {
        const before = processor();
        const { run } = await daemon.submit({ ...job, diagnostics, train: { ...job.train, steps: n, eval_every: n, checkpoint_every: { seconds: 1e6 }, keep: { best: 0, latest: 1 } } });
        await daemon.reach(run, 'succeeded', 3600000);
        // The plan's worker ended before; the run's is counted once it is gone.
        let last = -1;
        await until('the worker to be gone', async () => {
            const now = processor(), same = now === last && now > before + 0.05;
            last = now;
            return same;
        }, { limit: 60000, every: 700 });
        const { series } = await daemon.get(`/api/v1/runs/${run}/metrics`), { keys } = await daemon.get(`/api/v1/runs/${run}/blobs`);
        const norms = series.find(s => s.key === 'attn/fro/1')?.count ?? 0, blobs = Math.max(0, ...keys.map(k => k.count));
        return { seconds: last - before, taken: blobs || norms };
    };
    for (const [name, job] of Object.entries(jobs).filter(([name]) => !only || name === only)) {
        const step = [], costs = Object.fromEntries(Object.keys(kinds).map(kind => [kind, []]));
        for (let round = 0; round < rounds; round++) {
            const one = await measure(job, { every: 0 }, 1), plain = await measure(job, { every: 0 }, steps);
            step.push((plain.seconds - one.seconds) / (steps - 1));
            for (const [kind, { diagnostics }] of Object.entries(kinds)) {
                const more = await measure(job, diagnostics, steps);
                costs[kind].push((more.seconds - plain.seconds) / more.taken);
            }
        }
        const say = list => list.map(s => (1000 * s).toFixed(0)).join(', ');
        console.log(`${name}: a step ${(1000 * median(step)).toFixed(0)} ms of processor time (${say(step)})`);
        for (const [kind, list] of Object.entries(costs))
            console.log(`${name}: ${kind} ${(1000 * median(list)).toFixed(0)} ms each (${say(list)}), ${(100 * median(list) / (kinds[kind].between * median(step))).toFixed(2)} % of ${kinds[kind].between.toFixed(0)} steps`);
    }
} finally {
    await daemon.stop();
}
