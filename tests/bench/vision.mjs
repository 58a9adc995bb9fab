// DeiT, Swin and XCiT on MNIST through a daemon of its own: `POLYD_BUILD=... node tests/bench/vision.mjs SETS [NAME...]`, where SETS holds
// mnist/. Sends deploy/examples/mnist-softmax.json (registered, the teacher), mnist-deit.json, mnist-swin.json and mnist-xcit.json, or those
// named, one after the other, and prints the accuracy on the test digits and the seconds of training.
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { Daemon, root, until } from '../lib/daemon.mjs';

const [sets, ...names] = process.argv.slice(2);
if (!sets) {
    console.error('usage: node tests/bench/vision.mjs SETS [mnist-softmax mnist-deit mnist-swin mnist-xcit]');
    process.exit(2);
}
const daemon = await Daemon.start({ flags: [`--data.sets=${path.resolve(sets)}`, '--devices.cpu_slots=1', '--devices.threads_per_slot=2'] });
try {
    for (const name of names.length ? names : ['mnist-softmax', 'mnist-deit', 'mnist-swin', 'mnist-xcit']) {
        const job = JSON.parse(readFileSync(path.join(root, `deploy/examples/${name}.json`), 'utf8')), began = Date.now();
        const { run } = await daemon.submit({ ...job, register: name });
        const ended = await until(name, async () => {
            const at = await daemon.get(`/api/v1/runs/${run}`);
            return at.state === 'ended' && at;
        }, { limit: 3600000, every: 1000 });
        const seconds = (Date.now() - began) / 1000;
        const { series } = await daemon.get(`/api/v1/runs/${run}/series?key=acc/test&key=acc/val`);
        const last = key => series.find(one => one.key === key)?.data.at(-1)?.mean;
        console.log(`${name}: ${ended.outcome ?? ended.state} ${ended.reason ?? ''} acc/test ${last('acc/test')}, acc/val ${last('acc/val')}, ${seconds.toFixed(0)} s`);
        await until(`model ${name}`, () => daemon.get(`/api/v1/models/${name}/versions/1`), { limit: 60000 });
    }
} finally {
    await daemon.stop();
}
