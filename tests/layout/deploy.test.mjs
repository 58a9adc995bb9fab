// What is shipped beside the programs: scripts that parse, a unit file that is as tight as it claims.
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { accessSync, constants, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import test from 'node:test';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..');
const scripts = ['deploy/quickstart', 'deploy/install-deps', 'deploy/bare-check', 'tests/run', '.ci/run'];

test('test_deploy_scripts_parse_and_may_be_run', () => {
    for (const script of scripts) {
        accessSync(path.join(root, script), constants.X_OK);
        execFileSync('bash', ['-n', path.join(root, script)]);
    }
});

test('test_deploy_scripts_explain_themselves_and_refuse_what_they_do_not_know', () => {
    for (const script of ['deploy/quickstart', 'deploy/install-deps', 'deploy/bare-check', 'tests/run']) {
        const help = spawnSync(path.join(root, script), ['--help'], { encoding: 'utf8' });
        assert.equal(help.status, 0, script);
        assert.match(help.stdout, new RegExp(script), script);
        const wrong = spawnSync(path.join(root, script), ['--no-such-option'], { encoding: 'utf8' });
        assert.notEqual(wrong.status, 0, script);
        assert.match(wrong.stderr, /no-such-option/, script);
    }
});

test('test_deploy_bare_check_removes_no_folder_that_it_has_not_made', t => {
    const dir = mkdtempSync(path.join(os.tmpdir(), 'polyd-bare-'));
    t.after(() => rmSync(dir, { recursive: true }));
    writeFileSync(path.join(dir, 'mine'), '');
    // A debootstrap that fails: what follows is the end, which removes the tree.
    mkdirSync(path.join(dir, 'bin'));
    writeFileSync(path.join(dir, 'bin/debootstrap'), '#!/bin/sh\nexit 1\n', { mode: 0o755 });
    const { status, stderr } = spawnSync(path.join(root, 'deploy/bare-check'), ['--root', dir], { encoding: 'utf8', env: { ...process.env, PATH: `${dir}/bin:${process.env.PATH}` } });
    assert.equal(status, 1);
    assert.match(stderr, /is there and not empty/);
    accessSync(path.join(dir, 'mine'));
});

test('test_deploy_install_deps_names_what_every_test_needs', t => {
    const dir = mkdtempSync(path.join(os.tmpdir(), 'polyd-deps-')), log = path.join(dir, 'log');
    t.after(() => rmSync(dir, { recursive: true }));
    // A machine that has no package, and on which apt-get only notes what it is asked for.
    for (const [name, text] of [['dpkg-query', 'exit 1'], ['apt-get', `echo "$*" >>${log}`], ['sudo', 'exec "$@"']])
        writeFileSync(path.join(dir, name), `#!/bin/bash\n${text}\n`, { mode: 0o755 });
    for (const name of ['env', 'id', 'mktemp', 'rm', 'tail', 'grep', 'bash'])
        symlinkSync(execFileSync('bash', ['-c', `type -P ${name}`], { encoding: 'utf8' }).trim(), path.join(dir, name));
    const { status, stderr } = spawnSync(path.join(root, 'deploy/install-deps'), ['build', 'test'], { encoding: 'utf8', env: { PATH: dir, TMPDIR: dir } });
    assert.equal(status, 0, stderr);
    const wanted = / install (.*)/.exec(readFileSync(log, 'utf8'))[1].split(' ');
    for (const name of ['gcc', 'g++', 'git', 'libcmocka-dev', 'nodejs'])
        assert.ok(wanted.includes(name), name);
});

const analyze = spawnSync('systemd-analyze', ['--version'], { encoding: 'utf8' });

test('test_deploy_unit_file_is_exposed_to_at_most_2_0', { skip: analyze.status !== 0 && 'systemd-analyze is not here' }, () => {
    const report = spawnSync('systemd-analyze', ['security', '--offline=true', '--no-pager', path.join(root, 'deploy/polyd.service')],
        { encoding: 'utf8' });
    const exposure = /exposure level for polyd\.service: ([0-9.]+)/.exec(report.stdout + report.stderr);
    assert.ok(exposure, report.stderr);
    assert.ok(Number(exposure[1]) <= 2.0, exposure[0]);
});

test('test_deploy_unit_file_lets_training_outlive_the_daemon', () => {
    const unit = readFileSync(path.join(root, 'deploy/polyd.service'), 'utf8');
    assert.match(unit, /^KillMode=process$/m);
    assert.match(unit, /^Type=notify$/m);
    assert.doesNotMatch(unit, /^(PrivateDevices|ProtectControlGroups|MemoryDenyWriteExecute)=yes/m);
});

test('test_deploy_unit_file_allows_the_devices_of_older_and_newer_drivers', () => {
    const unit = readFileSync(path.join(root, 'deploy/polyd.service'), 'utf8');
    assert.match(unit, /^DevicePolicy=closed$/m);
    for (const group of ['nvidia', 'nvidia-frontend', 'nvidiactl', 'nvidia-uvm', 'nvidia-caps'])
        assert.match(unit, new RegExp(`^DeviceAllow=char-${group} rw$`, 'm'));
});

test('test_deploy_unit_file_is_one_that_systemd_reads', { skip: analyze.status !== 0 && 'systemd-analyze is not here' }, t => {
    const dir = mkdtempSync(path.join(os.tmpdir(), 'polyd-unit-'));
    t.after(() => rmSync(dir, { recursive: true }));
    const verify = text => {
        writeFileSync(path.join(dir, 'polyd.service'), text.replace('/usr/bin/polyd', '/bin/true')); // polyd is not installed
        return spawnSync('systemd-analyze', ['verify', '--no-pager', path.join(dir, 'polyd.service')], { encoding: 'utf8' }).stderr;
    };
    const unit = readFileSync(path.join(root, 'deploy/polyd.service'), 'utf8');
    assert.doesNotMatch(verify(unit), /polyd\.service:\d+: /);
    assert.match(verify(unit.replace('char-nvidiactl rw', 'char-nvidiactl rz')), /polyd\.service:\d+: /);
});

test('test_deploy_unit_file_claims_no_sandbox_that_workers_do_not_have', () => {
    const unit = readFileSync(path.join(root, 'deploy/polyd.service'), 'utf8');
    const calls = [...unit.matchAll(/\b(seccomp|landlock\w*)\b/g)].map(([name]) => name);
    assert.deepEqual(calls, [], 'no source calls them');
});
