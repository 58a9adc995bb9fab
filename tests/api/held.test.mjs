// Requests whose write waits behind a held writer: what they leave if the server stops, if the write is refused, or if
// another write is committed first.
import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { Host, sleep } from './lib.mjs';

let host;
before(async () => { host = await Host.start(); });
after(() => host.stop());

/** Waits until /metrics has this line. */
async function metric(line, on = host) {
    for (let i = 0; i < 1000; i++) {
        if ((await on.get('/metrics')).text.includes(`${line}\n`))
            return;
        await sleep(10);
    }
    assert.fail(`waited in vain for ${line}`);
}

const queued = (lane, count, on = host) => metric(`polyd_db_queue_depth{lane="${lane}"} ${count}`, on);

/** From here to `go` nothing is committed. */
async function hold(on = host) {
    await on.tell('hold');
    await queued('command', 0, on); // else the next write could join its group
}

test('a version committed after the server gave its request up keeps the file of its weights', async () => {
    const other = await Host.start([], { dir: mkdtempSync(path.join(os.tmpdir(), 'polyd-api-')) });
    await hold(other);
    const answer = other.post('/api/v1/models/late/versions', { path: 'weights/x' });
    await queued('command', 1, other);
    await other.stop();
    assert.equal((await answer).status, 503);
    const again = await Host.start([], { dir: other.dir });
    try {
        assert.equal((await again.get('/api/v1/models/late/versions/1')).status, 200);
        assert.equal(readdirSync(path.join(other.dir, 'models')).length, 1);
    } finally {
        await again.stop();
        rmSync(other.dir, { recursive: true, force: true });
    }
});
