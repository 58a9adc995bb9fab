// SIGHUP: what a running daemon takes from its configuration, and what it says of the rest.
import assert from 'node:assert/strict';
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { build, Daemon, sleep } from './lib.mjs';

const skip = existsSync(path.join(build, 'bin/polyd')) && existsSync(path.join(build, 'bin/polyd-worker')) ? false : 'polyd or polyd-worker is not built';

test('data roots and [keep] are read anew, and what needs a restart is named', { skip, timeout: 60000 }, async () => {
    const dir = mkdtempSync(path.join(os.tmpdir(), 'polyd-reload-')), file = path.join(dir, 'polyd.conf');
    for (const name of ['one', 'two']) {
        mkdirSync(path.join(dir, name));
        writeFileSync(path.join(dir, name, 'x.txt'), `${name} and so on, and on, and on. `.repeat(100));
    }
    writeFileSync(file, '[data]\none = one\n[keep]\nbest = 2\n');
    const host = await Daemon.start([`--config=${file}`]);
    const document = root => ({ name: 'x', model: { preset: 'gpt_micro', width: 16, depth: 1, heads: 2, context: 16 }, data: { dataset: 'text', path: `${root}/x.txt` }, train: { steps: 2, batch: 2 }, resources: { device: 'cpu' } });
    const dry = async root => host.post('/api/v1/jobs?dry_run=1', document(root));
    const setting = async (section, key) => (await host.get('/api/v1/config')).json.settings.find(s => s.section === section && s.key === key)?.value;
    const reloaded = async count => {
        host.child.kill('SIGHUP');
        for (let i = 0; host.stderr.split('reload=done').length <= count; i++) {
            assert.ok(i < 400, host.stderr);
            await sleep(20);
        }
    };
    const logs = async line => {
        for (let i = 0; !line.test(host.stderr); i++) {
            assert.ok(i < 400, host.stderr);
            await sleep(20);
        }
    };
    try {
        assert.equal((await dry('one')).json.document.train.keep.best, 2);
        assert.equal((await dry('two')).status, 422);
        writeFileSync(file, '[data]\none = one\ntwo = two\n[keep]\nbest = 5\n[serve]\nqueue = 7\n[server]\nreaders = 6\n');
        await reloaded(1);
        await logs(/reload=partial needs a restart: server\.readers, serve\.queue/);
        const two = (await dry('two')).json;
        assert.deepEqual([two.plan_error, two.document.train.keep.best], [null, 5]);
        assert.deepEqual([await setting('data', 'two'), await setting('keep', 'best'), await setting('server', 'readers'), await setting('serve', 'queue')],
            [path.join(dir, 'two'), '5', '4', '64']);
        const sent = await host.post('/api/v1/jobs', document('two'));
        assert.equal(sent.status, 201, sent.text);
        for (let i = 0; ; i++) {
            const { state, reason } = (await host.get(`/api/v1/jobs/${sent.json.id}`)).json;
            if (state === 'done')
                break;
            assert.ok(i < 400 && state !== 'failed', reason);
            await sleep(50);
        }
        /* gone again */
        const lines = host.stderr.split('needs a restart').length;
        writeFileSync(file, '[data]\none = one\n[keep]\nbest = 5\n');
        await reloaded(2);
        assert.equal((await dry('two')).status, 422);
        /* a mistake changes nothing */
        writeFileSync(file, '[data]\none = one\ntwo = two\n[keep]\nbest = many\n');
        host.child.kill('SIGHUP');
        await logs(/reload=refused/);
        assert.equal((await dry('two')).status, 422);
        assert.equal(host.stderr.split('needs a restart').length, lines); /* since the first reload nothing else has changed */
    } finally {
        await host.stop();
        rmSync(dir, { recursive: true, force: true });
    }
});
