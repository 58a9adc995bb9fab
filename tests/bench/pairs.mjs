// A training step of two builds by turns: `node tests/bench/pairs.mjs OLD NEW [--pairs=15] [--shapes=vit:softmax,...]`, where OLD and NEW
// are build folders. Prints for each shape the CPU time of a step on one thread (medians), the median ratio of pairs, and
// what a plan of the step takes of memory.
import { execFileSync, spawn } from 'node:child_process';
import { readFileSync, readdirSync } from 'node:fs';
import path from 'node:path';
import readline from 'node:readline';

const builds = process.argv.slice(2).filter(word => !word.startsWith('--'));
const option = (name, other) => process.argv.find(word => word.startsWith(`--${name}=`))?.slice(name.length + 3) ?? other;
if (builds.length !== 2) {
    console.error('usage: node tests/bench/pairs.mjs OLD NEW [--pairs=15] [--shapes=vit:softmax,vit:poly,gpt:softmax,gpt:poly]');
    process.exit(2);
}
const pairs = Number(option('pairs', 15));
const shapes = option('shapes', 'vit:softmax,vit:poly,gpt:softmax,gpt:poly').split(',').map(word => word.split(':'));
const program = build => path.resolve(build, 'bin/step_bench');
const median = list => [...list].sort((a, b) => a - b)[list.length >> 1];

/** A step_bench that waits for its turn. */
class Turns {
    constructor(build, model, phi) {
        this.child = spawn(program(build), ['--model', model, '--phi', phi, '--threads', '1', '--turns'], { stdio: ['pipe', 'pipe', 'inherit'] });
        this.lines = readline.createInterface({ input: this.child.stdout })[Symbol.asyncIterator]();
    }

    /** Nanoseconds on a processor, of all threads. */
    cpu() {
        const tasks = `/proc/${this.child.pid}/task`;
        return readdirSync(tasks).reduce((sum, id) => sum + Number(readFileSync(`${tasks}/${id}/schedstat`, 'latin1').split(' ')[0]), 0);
    }

    /** Seconds of CPU time of one step. */
    async step() {
        const before = this.cpu();
        this.child.stdin.write('1\n');
        await this.lines.next();
        return (this.cpu() - before) / 1e9;
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

for (const [model, phi] of shapes) {
    const both = builds.map(build => new Turns(build, model, phi)), times = [[], []];
    for (const one of both) {
        await one.lines.next(); // ready
        await one.step(); // warm
    }
    for (let pair = 0; pair < pairs; pair++)
        for (const k of pair % 2 ? [1, 0] : [0, 1])
            times[k].push(await both[k].step());
    await Promise.all(both.map(one => one.close()));
    const ratios = times[1].map((time, i) => time / times[0][i]);
    console.log(`${model} ${phi}: ${median(times[0]).toFixed(3)} s, ${median(times[1]).toFixed(3)} s, ratio ${median(ratios).toFixed(4)} (${Math.min(...ratios).toFixed(3)}-${Math.max(...ratios).toFixed(3)})`);
    const [old, now] = builds.map(build => memory(build, model, phi));
    console.log(`  MiB: ${Object.keys(now).map(key => `${key} ${old[key] ?? '-'} -> ${now[key]}`).join(', ')}`);
}
