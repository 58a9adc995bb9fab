// Convection with coefficient 50 at the paper's size (PINNsformer of 453,561 parameters, 51 x 51 points, 500 outer steps of L-BFGS), with
// softmax and with x³ fixed: POLYD_BUILD=build/release node tests/bench/convection.mjs [--seeds=1] [--device=cuda] [--steps=500]
//     [--threads=2] [--preset=pinn_micro]
// Takes hours on two cores. The state stays in build/convection: after Ctrl-C or a kill the next call goes on from the last checkpoint,
// and what has run is not run again. Prints what each run ended with, as it came, good or bad.
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { Daemon, freePort, root } from '../lib/daemon.mjs';

const option = (name, other) => process.argv.find(word => word.startsWith(`--${name}=`))?.slice(name.length + 3) ?? other;
const unknown = process.argv.slice(2).find(word => !/^--(seeds|steps|threads)=[1-9]\d*$|^--device=(cpu|cuda)$|^--preset=pinn(sformer|_micro)$/.test(word));
if (unknown) {
    console.error(`convection: no option '${unknown}'; options are --seeds=N --device=cpu|cuda --steps=N --threads=N --preset=pinnsformer|pinn_micro`);
    process.exit(2);
}
const [seeds, steps, threads] = [['seeds', 1], ['steps', 500], ['threads', 2]].map(([name, other]) => Number(option(name, other))), device = option('device', 'cpu'), preset = option('preset', 'pinnsformer');
const folder = path.join(root, 'build/convection'), pidFile = path.join(folder, 'daemon.pid'), pause = ms => new Promise(resolve => { setTimeout(resolve, ms); });
const name = `convection ${preset} ${steps} ${seeds} ${device}`;

mkdirSync(folder, { recursive: true });
const before = existsSync(pidFile) ? Number(readFileSync(pidFile, 'utf8')) : 0, proc = `/proc/${before}`; // of a call that was killed
if (before && existsSync(proc) && readFileSync(`${proc}/cmdline`, 'utf8').includes(`--state-dir=${folder}`)) {
    process.kill(before, 'SIGTERM');
    while (existsSync(proc))
        await pause(100);
}
const daemon = new Daemon(folder, await freePort(), ['--devices.cpu_slots=1', `--devices.threads_per_slot=${threads}`, ...device === 'cuda' ? ['--devices.gpus=all'] : []]);
daemon.detached = true;
let stopping = false;
for (const signal of ['SIGINT', 'SIGTERM'])
    process.on(signal, () => { stopping = true; });
await daemon.up();
writeFileSync(pidFile, String(daemon.process.pid));

const find = async () => (await daemon.get('/api/v1/jobs?limit=200')).jobs.find(job => job.name === name);
if (!await find())
    await daemon.post('/api/v1/jobs', {
        name, recipe: 'pinn_convection', model: { preset }, trials: seeds, resources: { device, ...device === 'cpu' ? { threads } : {} }, diagnostics: { every: 0 },
        train: { steps, eval_every: 10, checkpoint_every: { steps: 5 }, keep: { latest: 1, best: 1 } },
        sweep: { method: 'grid', axes: [{ pointer: '/attention', values: [{ activation: 'softmax' }, { activation: 'poly', degree: 3, scale: 'fixed' }] }], metric: 'rmae/val', mode: 'min' },
    });
const job = await find();
if (job.state === 'paused')
    await daemon.post(`/api/v1/jobs/${job.id}/resume`);
const metrics = ['loss/train', 'rmae/val', 'rrmse/val'];
const runs = async () => (await daemon.get(`/api/v1/runs?job=${job.id}&limit=200&${metrics.map(key => `metric=${key}`).join('&')}`)).runs;
const say = run => console.log(`${run.sweep['/attention'].activation} seed ${run.seed}: ${run.outcome ?? run.state}, step ${run.step} of ${steps}, ${metrics.map(key => `${key} ${run.latest?.[key] ?? '-'}`).join(', ')}, ${((run.used_s ?? 0) / 60).toFixed(1)} min, attempts ${run.attempts}`);
let told = '';
while (!stopping) {
    const all = await runs(), now = all.find(run => run.state !== 'ended' && run.step > 0), word = now ? `${now.id} ${Math.floor(now.step / 10)}` : '';
    if (word !== told && now)
        say(now);
    told = word;
    if (all.every(run => run.state === 'ended'))
        break;
    await pause(1000);
}
if (stopping) { // training outlives its daemon on purpose; who stops this command wants none of it to go on
    await daemon.post(`/api/v1/jobs/${job.id}/pause`).catch(() => {});
    while ((await runs()).some(run => ['running', 'starting'].includes(run.state)))
        await pause(200);
}
const all = await runs();
console.log(stopping ? 'stopped; the same call goes on' : 'ended:');
all.sort((a, b) => Number(a.id) - Number(b.id)).forEach(say);
daemon.process.kill('SIGTERM');
await daemon.ended;
process.exit(stopping ? 1 : 0);
