// polyd beyond loopback: only for those who ask for it, in every layer of the configuration.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { build } from './lib.mjs';

const program = path.join(build, 'bin/polyd');
const skip = !existsSync(program) && 'polyd is not built';

function polyd(flags, env = {}) {
    const dir = mkdtempSync(path.join(os.tmpdir(), 'polyd-listen-'));
    writeFileSync(path.join(dir, 'beyond.conf'), '[server]\nlisten = 0.0.0.0\n');
    writeFileSync(path.join(dir, 'asked.conf'), '[server]\nlisten = 0.0.0.0\ninsecure_listen = yes\n');
    const ran = spawnSync(program, ['--port=0', `--state-dir=${dir}/state`, ...flags.map(flag => flag.replace('DIR', dir))],
        { env: { ...process.env, POLYD_CONFIG: '', ...env }, encoding: 'utf8', timeout: 20000 });
    const made = readdirSync(dir).includes('state');
    rmSync(dir, { recursive: true });
    return { status: ran.status, text: ran.stderr, made };
}

for (const [layer, flags, env] of [
    ['the flag', ['--listen=0.0.0.0']],
    ['the long flag', ['--server.listen=::']],
    ['the environment', [], { POLYD_SERVER_LISTEN: '0.0.0.0' }],
    ['the file', ['--config=DIR/beyond.conf']],
]) {
    test(`listening beyond loopback by ${layer} alone is refused with a sentence`, { skip }, () => {
        const ran = polyd(flags, env);
        assert.equal(ran.status, 2, ran.text);
        assert.match(ran.text, /server\.listen = \S+ is not a loopback address, .*--insecure-listen/);
        assert.ok(!ran.made, 'nothing is touched');
    });
}

for (const [layer, flags, env] of [
    ['the flag', ['--listen=0.0.0.0', '--insecure-listen']],
    ['the environment', ['--listen=0.0.0.0'], { POLYD_SERVER_INSECURE_LISTEN: 'yes' }],
    ['the file', ['--config=DIR/asked.conf']],
]) {
    // --check-config, so that no test listens on the network.
    test(`listening beyond loopback asked for by ${layer} is taken with a warning`, { skip }, () => {
        const ran = polyd([...flags, '--check-config'], env);
        assert.equal(ran.status, 0, ran.text);
        assert.match(ran.text, /warning: .*server\.listen = 0\.0\.0\.0 is not a loopback address/);
    });
}
