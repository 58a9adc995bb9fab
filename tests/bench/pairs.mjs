// A training step of two programs by turns, two builds or two activations:
//
//   node tests/bench/pairs.mjs OLD NEW [--pairs=15] [--starts=1] [--threads=1] [--shapes=vit:softmax,...]
//   node tests/bench/pairs.mjs BUILD [...] --shapes=xcit_s12:softmax/poly
//
// OLD, NEW and BUILD are build folders. MODEL:PHI/PHI: the second activation against the first.
// Prints for each shape the seconds of a step (medians: CPU time of one thread, wall time of several), the median ratio of
// pairs, second over first, and what a plan of the step takes of memory. The placement of a process's memory changes its
// speed by some percent for as long as it runs: a smaller difference needs many --starts, each with two new processes in the other
// order. Then the ratio of each start is printed, and their median, quartiles and mean with its standard error.
import { execFileSync, spawn } from 'node:child_process';
import { readFileSync, readdirSync } from 'node:fs';
import path from 'node:path';
import readline from 'node:readline';

const builds = process.argv.slice(2).filter(word => !word.startsWith('--'));
const option = (name, other) => process.argv.find(word => word.startsWith(`--${name}=`))?.slice(name.length + 3) ?? other;
const shapes = option('shapes', 'vit:softmax,vit:poly,gpt:softmax,gpt:poly').split(',').map(word => {
    const [model, phis] = word.split(':'), [first, second] = phis.split('/');
    return { model, phis: [first, second ?? first] };
});
const whole = (name, other) => {
    const value = Number(option(name, other));
    return Number.isInteger(value) && value > 0 ? value : NaN;
};
const pairs = whole('pairs', 15), starts = whole('starts', 1), threads = whole('threads', 1);
if (!builds.length || builds.length > 2 || !(pairs && starts && threads) ||
    (builds.length === 1 && shapes.some(({ phis }) => phis[0] === phis[1]))) {
    console.error('usage: node tests/bench/pairs.mjs OLD NEW [--pairs=15] [--starts=1] [--threads=1] [--shapes=vit:softmax,vit:poly,gpt:softmax,gpt:poly]\n' +
        '       node tests/bench/pairs.mjs BUILD [...] --shapes=MODEL:PHI/PHI[,...]');
    process.exit(2);
}
const program = build => path.resolve(build, 'bin/step_bench');
const quantile = (list, share) => [...list].sort((a, b) => a - b)[Math.floor((list.length - 1) * share + 0.5)];
const median = list => quantile(list, 0.5);

/** A step_bench that waits for its turn. */
class Turns {
    constructor(build, model, phi) {
        this.child = spawn(program(build), ['--model', model, '--phi', phi, '--threads', String(threads), '--turns'], { stdio: ['pipe', 'pipe', 'inherit'] });
        this.lines = readline.createInterface({ input: this.child.stdout })[Symbol.asyncIterator]();
    }

    /** Until it is ready, and one step to warm up. */
    async ready() {
        await this.line();
        await this.step();
    }

    async line() {
        const { value, done } = await this.lines.next();
        if (done)
            throw new Error('step_bench ended early');
        return value;
    }

    /** Seconds on a processor, of all threads. */
    cpu() {
        const tasks = `/proc/${this.child.pid}/task`;
        return readdirSync(tasks).reduce((sum, id) => sum + Number(readFileSync(`${tasks}/${id}/schedstat`, 'latin1').split(' ')[0]), 0) / 1e9;
    }

    /** Seconds of one step: CPU time of one thread, wall time of several. */
    async step() {
        const cpu = this.cpu(), wall = process.hrtime.bigint();
        this.child.stdin.write('1\n');
        await this.line();
        return threads === 1 ? this.cpu() - cpu : Number(process.hrtime.bigint() - wall) / 1e9;
    }

    async close() {
        this.child.stdin.end();
        await new Promise(resolve => this.child.on('exit', resolve));
    }
}

/** MiB by what they are for, as the plan says. */
function memory(build, model, phi) {
    const text = execFileSync(program(build), ['--model', model, '--phi', phi, '--roofline', '1'], { encoding: 'utf8', maxBuffer: 1 << 26 });
    const rows = [...text.matchAll(/^ {2}(\S+) +([\d.]+) MiB$/gm)].map(([, name, size]) => [name, Number(size)]);
    return { arena: Number(/arena (\d+) MiB/.exec(text)?.[1]), ...Object.fromEntries(rows) };
}

/** Steps of two new processes by turns, as [first, second] lists of seconds. */
async function start(sides, reversed) {
    const both = [], times = [[], []];
    for (const k of reversed ? [1, 0] : [0, 1]) {
        both[k] = new Turns(...sides[k]);
        await both[k].ready();
    }
    for (let pair = 0; pair < pairs; pair++)
        for (const k of pair % 2 ? [1, 0] : [0, 1])
            times[k].push(await both[k].step());
    await Promise.all(both.map(one => one.close()));
    return times;
}

for (const { model, phis } of shapes) {
    const sides = phis.map((phi, k) => [builds.at(k - 2) ?? builds[0], model, phi]);
    const times = [[], []], ratios = [], each = [];
    for (let i = 0; i < starts; i++) {
        const found = await start(sides, i % 2 === 1), own = found[1].map((time, k) => time / found[0][k]);
        for (const k of [0, 1])
            times[k].push(...found[k]);
        ratios.push(...own);
        each.push(median(own));
    }
    console.log(`${model} ${[...new Set(phis)].join(' against ')}: ${median(times[0]).toFixed(3)} s, ${median(times[1]).toFixed(3)} s, ratio ${median(ratios).toFixed(4)} (${Math.min(...ratios).toFixed(3)}-${Math.max(...ratios).toFixed(3)})`);
    if (starts > 1) {
        const mean = each.reduce((sum, r) => sum + r, 0) / starts;
        const error = Math.sqrt(each.reduce((sum, r) => sum + (r - mean) ** 2, 0) / (starts - 1) / starts);
        console.log(`  by start: ${each.map(r => r.toFixed(3)).join(', ')}`);
        console.log(`  median ${median(each).toFixed(4)}, quartiles ${quantile(each, 0.25).toFixed(4)}-${quantile(each, 0.75).toFixed(4)}, mean ${mean.toFixed(4)} +- ${error.toFixed(4)}; fastest steps ${Math.min(...times[0]).toFixed(3)}, ${Math.min(...times[1]).toFixed(3)} s`);
    }
    const [old, now] = sides.map(side => memory(...side));
    console.log(`  MiB: ${Object.keys(now).map(key => `${key} ${old[key] ?? '-'} -> ${now[key]}`).join(', ')}`);
}
