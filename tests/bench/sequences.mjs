// Nystromformers on the sequences that polyd makes, through a daemon of its own: `POLYD_BUILD=... node tests/bench/sequences.mjs [NAME...]`.
// Sends deploy/examples/listops-softmax.json, listops-cubic-learned.json and pathfinder-softmax.json, or those named, one after the other
// on two threads. Of each it prints the accuracy on the test part (and the best on validation), and what needs no network: the share of
// the commonest class, and of ListOps that of the best guess from the first operator, both chosen on the training part. Then the steps
// of the pseudo-inverse, the largest residual that the run reported, the seconds from submission to the end, and the CPU time of the worker.
import { readFileSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { Daemon, root, until } from '../lib/daemon.mjs';
import { listops, pathfinder } from '../wiring/reference/data/sequences.mjs';

const names = process.argv.slice(2), all = ['listops-softmax', 'listops-cubic-learned', 'pathfinder-softmax'];
const daemon = await Daemon.start({ flags: ['--devices.cpu_slots=1', '--devices.threads_per_slot=2'] });
const percent = share => `${(100 * share).toFixed(1)} %`;

/** The class that most of the samples have, by what `key` gives of them. */
function guesses(samples, key) {
    const counts = new Map();
    for (const sample of samples) {
        const at = key(sample), of = counts.get(at) ?? counts.set(at, new Map()).get(at);
        of.set(sample.result, (of.get(sample.result) ?? 0) + 1);
    }
    return new Map([...counts].map(([at, of]) => [at, [...of].reduce((best, one) => one[1] > best[1] ? one : best)[0]]));
}

/** The share of the test part that such guesses get right. */
function guessed([train, , test], key) {
    const guess = guesses(train, key);
    return test.filter(sample => guess.get(key(sample)) === sample.result).length / test.length;
}

/** CPU seconds of the worker that trains; null: there is none. */
function workerSeconds() {
    for (const pid of readdirSync('/proc').filter(name => /^\d+$/.test(name)))
        try {
            const words = readFileSync(`/proc/${pid}/cmdline`, 'latin1').split('\0');
            if (words[1] === 'train' && readFileSync(`/proc/${pid}/environ`, 'latin1').includes(daemon.stateDir)) {
                const stat = readFileSync(`/proc/${pid}/stat`, 'latin1').split(') ')[1].split(' ');
                return (Number(stat[11]) + Number(stat[12])) / 100;
            }
        } catch { /* it has ended */ }
    return null;
}

try {
    for (const name of names.length ? names : all) {
        const job = JSON.parse(readFileSync(path.join(root, `deploy/examples/${name}.json`), 'utf8')), began = Date.now();
        const { run } = await daemon.submit(job);
        let cpu = 0;
        const ended = await until(name, async () => {
            cpu = Math.max(cpu, workerSeconds() ?? 0);
            const at = await daemon.get(`/api/v1/runs/${run}`);
            return at.state === 'ended' && at;
        }, { limit: 6 * 3600000, every: 500 });
        const seconds = (Date.now() - began) / 1000, config = ended.document;
        const keys = ['acc/test', 'acc/val', 'nystrom/residual/1', 'nystrom/residual/2'];
        const { series } = await daemon.get(`/api/v1/runs/${run}/series?buckets=10000&${keys.map(key => `key=${encodeURIComponent(key)}`).join('&')}`);
        const of = key => series.find(one => one.key === key)?.data.map(point => point.max ?? point.mean) ?? [];
        const data = { depth: 3, min_tokens: 1, contour: 4, ...config.data }, made = (data.dataset === 'listops_gen' ? listops : pathfinder)(data, data.split_seed ?? config.train.seed);
        console.log([`${name}: ${ended.outcome}${ended.reason ? ` (${ended.reason})` : ''}`, `test ${percent(of('acc/test').at(-1))}`, `validation at best ${percent(Math.max(...of('acc/val')))}`,
            `commonest ${percent(guessed(made.parts, () => 0))}`, ...data.dataset === 'listops_gen' ? [`first operator ${percent(guessed(made.parts, ({ ids }) => ids[0]))}`] : [],
            `${config.model.pinv_iterations} steps of the pseudo-inverse, residual at most ${Math.max(...of('nystrom/residual/1'), ...of('nystrom/residual/2')).toExponential(2)}`,
            `${seconds.toFixed(0)} s`, `CPU ${cpu.toFixed(0)} s`].join(', '));
    }
} finally {
    await daemon.stop();
}
