// What diagnostics cost: the same job with and without them, by turns, through a daemon of its own.
//
//     node tests/bench/diagnostics.mjs [STEPS] [ROUNDS] [vit_tiny|gpt_nano]
//
// Without: diagnostics.every 0. With: the defaults (norms every 50 steps), and once more with heat maps of two layers (every 500)
// and histograms of gradients. The time of a run is its attempts' wall time less that of a run of one step. Medians over rounds.
import { Daemon } from '../lib/daemon.mjs';

const [steps = 150, rounds = 3] = process.argv.slice(2, 4).map(Number), only = process.argv[4];
const common = { resources: { device: 'cpu', threads: 2, loader_threads: 1 } };
const jobs = {
    vit_tiny: { ...common, name: 'vit_tiny', model: { preset: 'vit_tiny', patch: 2 }, attention: { activation: 'poly' }, data: { dataset: 'digits_gen', split: { rule: 'count', train: 2048, val: 64 } }, train: { batch: 64 } },
    gpt_nano: { ...common, name: 'gpt_nano', model: { preset: 'gpt_nano' }, attention: { activation: 'poly' }, data: { dataset: 'text_gen' }, train: { batch: 16 } },
};
const kinds = {
    without: { every: 0 },
    defaults: {},
    all: { heatmaps: { layers: [2, 6], heads: [1] }, histograms: { at: [0.05, 0.5, 1] } },
};
const median = list => [...list].sort((a, b) => a - b)[Math.floor(list.length / 2)];

const daemon = await Daemon.start({ flags: ['--devices.cpu_slots=1', '--devices.threads_per_slot=2'] });
try {
    const seconds = async (job, diagnostics, n) => {
        const { run } = await daemon.submit({ ...job, diagnostics, train: { ...job.train, steps: n, eval_every: n, checkpoint_every: { seconds: 1e6 }, keep: { best: 0, latest: 1 } } });
        return (await daemon.reach(run, 'succeeded', 3600000)).used_s;
    };
    for (const [name, job] of Object.entries(jobs).filter(([name]) => !only || name === only)) {
        const times = Object.fromEntries(Object.keys(kinds).map(kind => [kind, []]));
        for (let round = 0; round < rounds; round++)
            for (const [kind, diagnostics] of Object.entries(kinds))
                times[kind].push(await seconds(job, diagnostics, steps) - await seconds(job, { every: 0 }, 1));
        const base = median(times.without);
        for (const [kind, list] of Object.entries(times))
            console.log(`${name} ${kind.padEnd(9)} ${(1000 * median(list) / steps).toFixed(1)} ms a step${kind === 'without' ? '' : `, ${(100 * (median(list) / base - 1)).toFixed(1)} % more`} (${list.map(s => s.toFixed(1)).join(', ')} s)`);
    }
} finally {
    await daemon.stop();
}
