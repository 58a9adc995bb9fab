// All statements of the theory as jobs of kind `check`, with the seeds 0, 1 and 2, through a daemon of its own with two slots of one thread.
//
//     node tests/bench/theory.mjs [T1 T2 ...]
//
// prints the verdict of each with its criteria and seconds, then wall and processor time of all. Ends with status 1 if a criterion does
// not hold, or if T10 or T18, which only report, judge anything.
import { readFileSync } from 'node:fs';

import { Daemon } from '../lib/daemon.mjs';

const all = Array.from({ length: 20 }, (_, i) => `T${i + 1}`), asked = process.argv.slice(2), reported = ['T10', 'T18'];
const names = asked.length > 0 ? asked : all;
const daemon = await Daemon.start({ flags: ['--devices.cpu_slots=2', '--devices.threads_per_slot=1'] });
try {
    /** Seconds of processor time of the daemon and of its workers that have ended: fields 14 to 17 of proc(5)'s stat, in ticks of 10 ms. */
    const processor = () => {
        const fields = readFileSync(`/proc/${daemon.process.pid}/stat`, 'latin1').replace(/^.*\) /, '').split(' ');
        return fields.slice(11, 15).reduce((sum, ticks) => sum + Number(ticks), 0) / 100;
    };
    const began = Date.now(), before = processor(), jobs = [];
    for (const template of names)
        jobs.push([template, (await daemon.post('/api/v1/jobs', { template, params: { seeds: 3 } })).run_ids[0]]);
    let judged = 0, wrong = 0;
    for (const [name, id] of jobs) {
        const run = await daemon.reach(id, 'succeeded', 3600000), { result } = await daemon.get(`/api/v1/runs/${id}/check`);
        const criteria = result.rows.filter(row => row.pass !== null), holds = criteria.filter(row => row.pass).length;
        const good = result.seeds.join() === '0,1,2' && (reported.includes(name) ? result.verdict === 'reported' && criteria.length === 0 : result.verdict === 'holds' && criteria.length > 0 && holds === criteria.length);
        judged += criteria.length;
        wrong += good ? 0 : 1;
        console.log(`${name.padEnd(4)} ${result.verdict.padEnd(9)} ${holds} of ${criteria.length} criteria, seeds ${result.seeds.join(', ')}, ${((Date.parse(run.ended) - Date.parse(run.started)) / 1000).toFixed(1)} s${good ? '' : '  <- not as it should be'}`);
    }
    const wall = (Date.now() - began) / 1000;
    await new Promise(done => setTimeout(done, 2000)); // until the last worker is gone and counted
    console.log(`${names.length} statements, ${judged} criteria, ${wrong} not as they should be; ${wall.toFixed(0)} s, ${(processor() - before).toFixed(0)} s of processor time`);
    process.exitCode = wrong > 0 ? 1 : 0;
} finally {
    await daemon.stop();
}
