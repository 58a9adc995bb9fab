// bf16 on a CPU, every bar in one command: `node tests/bench/bf16.mjs [BUILD] [--threads=2] [--rounds=3] [--steps=100] [--python=/usr/bin/python3]
// [--only=vit,gpt,gpt2,loss,peers] [--tiny]`, BUILD being a build folder (build/release). Prints a table for tests/bench/RESULTS.md.
//
//   vit gpt gpt2   a step in bf16 against the same step in fp32, by turns: CPU time of all threads (a busy machine disturbs it least), the
//                  median of the rounds, and the peak of memory. Bars: ViT-Tiny 0.85, GPT 6 x 384 and GPT-2 124M 0.75
//   loss           validation loss after 100 steps of a ViT and a GPT, bf16 against fp32, within the 1e-2 that tests/golden gives a model's
//                  loss in bf16. The ViT learns at 1e-4: at 1e-3 its loss then falls so steeply that seeds, too, differ by 5 %
//   peers          PyTorch's autocast on the same processor (python3-torch; without it these rows say so)
//
// On a processor whose bf16 products are not at least 1.5 times as fast as those of fp32 polyd computes them by its reference, which is slower:
// the table then says so and no bar counts. --tiny tries the command itself with the smallest model and few steps.
import { execFileSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const here = path.dirname(fileURLToPath(import.meta.url));
const words = process.argv.slice(2);
const known = ['threads', 'rounds', 'steps', 'python', 'only', 'tiny'];
for (const word of words)
    if (word.startsWith('--') && !known.includes(word.slice(2).split('=')[0])) {
        console.error(`bf16.mjs: unknown option '${word}' (${known.map(name => `--${name}`).join(' ')})`);
        process.exit(2);
    }
const option = (name, other) => words.find(word => word.startsWith(`--${name}=`))?.slice(name.length + 3) ?? other;
const build = path.resolve(words.find(word => !word.startsWith('--')) ?? 'build/release');
const tiny = words.includes('--tiny');
const threads = Number(option('threads', 2));
const rounds = Number(option('rounds', tiny ? 1 : 3));
const steps = Number(option('steps', tiny ? 4 : 100));
const python = option('python', '/usr/bin/python3');
const only = option('only', 'vit,gpt,gpt2,loss,peers').split(',');
const band = 1e-2;
/** What programs log stays with them, and is shown if they fail. @type {{ encoding: 'utf8', stdio: 'pipe' }} */
const quietly = { encoding: 'utf8', stdio: 'pipe' };
const median = list => [...list].sort((a, b) => a - b)[list.length >> 1];
const rows = [];

/** The fields of a line of `name=value`. */
const fields = text => Object.fromEntries([...text.matchAll(/(\w+)=("[^"]*"|\S+)/g)].map(match => [match[1], match[2]]));

function program(name) {
    const file = path.join(build, 'bin', name);
    if (!existsSync(file)) {
        console.error(`bf16.mjs: no ${file}: ninja -C ${build} step_bench train_job`);
        process.exit(2);
    }
    return file;
}

function step(model, precision, more = []) {
    return fields(execFileSync(program('step_bench'), ['--model', model, '--phi', 'poly', '--precision', precision, '--threads', String(threads),
        '--steps', tiny ? '1' : '3', ...more], quietly));
}

function shape(name, model, bar, more) {
    const times = { fp32: [], bf16: [] };
    const memory = {};
    for (let round = 0; round < rounds; round++)
        for (const precision of ['fp32', 'bf16']) {
            const line = step(model, precision, more);
            times[precision].push(Number(line.cpu_s));
            memory[precision] = line.peak_rss_mb;
        }
    const ratio = median(times.bf16) / median(times.fp32);
    rows.push([`${name}, step`, `${median(times.fp32).toFixed(3)} s`, `${median(times.bf16).toFixed(3)} s`, ratio.toFixed(2), `at most ${bar}`,
        ratio <= bar, `${memory.fp32}, ${memory.bf16} MB`]);
}

/** The last value that train_job printed of a key, and its line about products of bf16. */
function run(document) {
    const folder = mkdtempSync(path.join(os.tmpdir(), 'polyd-bf16-'));
    try {
        writeFileSync(path.join(folder, 'job.json'), JSON.stringify(document));
        const text = execFileSync(program('train_job'), [path.join(folder, 'job.json'), path.join(folder, 'checkpoints')], quietly);
        return { loss: Number([...text.matchAll(/loss\/val +(\S+)/g)].at(-1)?.[1]), note: /^# (bf16 on this CPU uses .*)$/m.exec(text)?.[1] };
    } finally {
        rmSync(folder, { recursive: true });
    }
}

function loss(name, model, data, lr) {
    const of = precision => run({
        model, data, attention: { activation: 'poly', degree: 3, scale: 'fixed' }, diagnostics: { every: 0 }, resources: { device: 'cpu', threads },
        train: { steps, batch: tiny ? 4 : name === 'GPT' ? 8 : 32, eval_every: steps, precision, optimizer: { name: 'adamw', lr } },
    });
    const wide = of('fp32'), half = of('bf16');
    const off = Math.abs(half.loss / wide.loss - 1);
    rows.push([`${name}, loss after ${steps} steps`, wide.loss.toPrecision(6), half.loss.toPrecision(6), `${off.toExponential(1)} off`, `at most ${band}`, off <= band, '']);
}

/** Which products a run of bf16 takes on this processor, and why. */
function chosen() {
    return run({
        model: { preset: 'vit_micro', width: 16, depth: 1, heads: 1, patch: 14 }, data: { dataset: 'digits_gen', split: { rule: 'count', train: 8, val: 4 } },
        diagnostics: { every: 0 }, resources: { device: 'cpu', threads: 1 }, train: { steps: 1, batch: 4, precision: 'bf16' },
    }).note ?? 'the run does not say which products it takes';
}

function peer(name, model) {
    let seconds;
    try {
        seconds = [[], ['--autocast']].map(more => Number(fields(execFileSync(python, [path.join(here, 'peers/torch_step.py'), '--model', model, '--phi', 'poly',
            '--steps', tiny ? '1' : '2', ...tiny ? ['--batch', '1'] : [], ...more], {
            ...quietly, env: { LD_LIBRARY_PATH: '/usr/lib/x86_64-linux-gnu/openblas-openmp', OPENBLAS_CORETYPE: 'SKYLAKEX', ...process.env, OMP_NUM_THREADS: String(threads) },
        })).cpu_s));
    } catch (error) {
        rows.push([`${name}, PyTorch's autocast`, 'not measured', '', '', '', null, String(error.stderr ?? error.message).trim().split('\n').at(-1)]);
        return;
    }
    rows.push([`${name}, PyTorch's fp32 and autocast`, `${seconds[0].toFixed(3)} s`, `${seconds[1].toFixed(3)} s`, (seconds[1] / seconds[0]).toFixed(2), '', null, '']);
}

const small = tiny ? [] : undefined;
if (only.includes('vit'))
    shape('ViT-Tiny', tiny ? 'tiny' : 'vit', 0.85, small);
if (only.includes('gpt'))
    shape('GPT 6 x 384', tiny ? 'tiny' : 'gpt', 0.75, small);
if (only.includes('gpt2'))
    shape('GPT-2 124M', tiny ? 'tiny' : 'gpt2', 0.75, tiny ? [] : ['--batch', '1']);
if (only.includes('loss')) {
    loss('ViT', tiny ? { preset: 'vit_micro', width: 16, depth: 1, heads: 1, patch: 14 } : { preset: 'vit_tiny', patch: 4 },
        { dataset: 'digits_gen', split: { rule: 'count', train: tiny ? 40 : 2000, val: tiny ? 8 : 256 } }, 1e-4);
    loss('GPT', tiny ? { preset: 'gpt_micro', width: 16, depth: 1, heads: 1, context: 16 } : { preset: 'gpt_micro', width: 384, depth: 6, heads: 6, context: 256 },
        { dataset: 'text_gen' }, 1e-3);
}
if (only.includes('peers')) {
    peer('ViT-Tiny', 'vit');
    peer('GPT 6 x 384', 'gpt');
}
const cpu = /^model name\s*: (.*)$/m.exec(readFileSync('/proc/cpuinfo', 'latin1'))?.[1] ?? 'unknown processor';
const note = chosen();
const counts = !tiny && /products of bf16/.test(note);
console.log(`${cpu}, ${threads} threads, load average ${os.loadavg()[0].toFixed(1)}; ${note}${tiny ? '; --tiny: figures mean nothing' : ''}\n`);
console.log('| what | fp32 | bf16 | bf16 / fp32 | bar | met | peak memory |\n|---|---|---|---|---|---|---|');
for (const [what, wide, half, ratio, bar, met, memory] of rows)
    console.log(`| ${what} | ${wide} | ${half} | ${ratio} | ${bar} | ${met === null ? '' : counts || what.includes('loss') ? met ? 'yes' : '**missed**' : 'does not count here'} | ${memory} |`);
