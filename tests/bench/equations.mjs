// How long reaction and convection with coefficient 10 take on 21 x 21 points (pinn_micro, L-BFGS, seed 0) until an evaluation first finds
// rMAE below 0.1: POLYD_BUILD=build/release node tests/bench/equations.mjs [--threads=2] [reaction-softmax reaction-cube convection-softmax
//     convection-cube]
// Evaluates after every outer step, one run after the other; the time is the wall clock from the job's submission, loading included, and
// the CPU time of the worker, which is what counts on a machine that others use.
// Exits 1 if a run does not get there in 300 s of CPU time.
import { readdirSync, readFileSync } from 'node:fs';
import { Daemon } from '../lib/daemon.mjs';

const LIMIT_S = 300, BOUND = 0.1;
const data = { reaction: { dataset: 'pde_reaction' }, convection: { dataset: 'pde_convection', pde: { coefficient: 10 } } };
const attention = { softmax: { activation: 'softmax' }, cube: { activation: 'poly', degree: 3, scale: 'fixed' } };
const all = Object.keys(data).flatMap(equation => Object.keys(attention).map(form => `${equation}-${form}`));
const words = process.argv.slice(2), threads = Number(words.find(word => /^--threads=[1-9]\d*$/.test(word))?.slice(10) ?? 2), chosen = words.filter(word => !word.startsWith('--threads='));
const unknown = chosen.find(word => !all.includes(word));
if (unknown) {
    console.error(`equations: no run '${unknown}'; there are ${all.join(' ')}`);
    process.exit(2);
}
const daemon = await Daemon.start({ flags: ['--devices.cpu_slots=1', `--devices.threads_per_slot=${threads}`] });
let missed = 0;

/** CPU seconds of the workers of this daemon so far. */
function used() {
    let ticks = 0;
    for (const pid of readdirSync('/proc').filter(name => /^\d+$/.test(name)))
        try {
            const command = readFileSync(`/proc/${pid}/cmdline`, 'utf8');
            if (command.startsWith('polyd-worker') && command.includes(daemon.stateDir))
                ticks += readFileSync(`/proc/${pid}/stat`, 'utf8').replace(/.*\) /s, '').split(' ').slice(11, 13).reduce((sum, n) => sum + Number(n), 0);
        } catch { /* it has ended */ }
    return ticks / 100;
}

for (const name of chosen.length > 0 ? chosen : all) {
    const [equation, form] = name.split('-'), began = performance.now(), seconds = () => (performance.now() - began) / 1000;
    const { run, job } = await daemon.submit({ name, model: { preset: 'pinn_micro' }, data: data[equation], attention: attention[form],
        train: { seed: 0, steps: 100, eval_every: 1, optimizer: { name: 'lbfgs' } }, diagnostics: { every: 0 }, resources: { device: 'cpu', threads } });
    let found, state, cpu;
    do {
        await new Promise(resolve => { setTimeout(resolve, 100); });
        cpu = used();
        state = await daemon.get(`/api/v1/runs/${run}`);
        const points = (await daemon.get(`/api/v1/runs/${run}/series?key=rmae/val&buckets=1000`)).series[0].data;
        found = points.find(point => point.mean < BOUND);
    } while (!found && state.state !== 'ended' && cpu < LIMIT_S);
    if (found)
        console.log(`${name}: rMAE ${found.mean.toPrecision(3)} after ${seconds().toFixed(1)} s (${cpu.toFixed(1)} s of CPU), outer step ${found.first_step ?? found.step}`);
    else
        console.log(`${name}: no evaluation below ${BOUND} in ${seconds().toFixed(1)} s (${cpu.toFixed(1)} s of CPU), ${state.step} outer steps (${state.outcome ?? state.state})`);
    missed += !found;
    if (state.state !== 'ended')
        await daemon.post(`/api/v1/jobs/${job}/cancel`);
    while ((await daemon.get(`/api/v1/runs/${run}`)).state !== 'ended')
        await new Promise(resolve => { setTimeout(resolve, 100); });
}
await daemon.stop();
process.exit(missed ? 1 : 0);
