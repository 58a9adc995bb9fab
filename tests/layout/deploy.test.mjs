// What is shipped beside the programs: scripts that parse, a unit file that is as tight as it claims.
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { accessSync, constants, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
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
