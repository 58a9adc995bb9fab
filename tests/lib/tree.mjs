// The files of the source tree.
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync } from 'node:fs';
import path from 'node:path';

/** Why a test that applies a patch is skipped. */
export const noGit = spawnSync('git', ['--version']).status !== 0 && 'git is not here';

/** What .gitignore names, at the top and everywhere. */
const ignored = { top: /^(build|build-.*|\.cache|\.gpu-inputs)$/, any: /^(\.git|node_modules|.*\.profraw)$/ };

/** @param {string} root @returns {string[]} */
function walk(root, folder = '') {
    return readdirSync(path.join(root, folder), { withFileTypes: true }).flatMap(entry => {
        const name = path.join(folder, entry.name);
        if (ignored.any.test(entry.name) || (!folder && ignored.top.test(entry.name)))
            return [];
        return entry.isDirectory() ? walk(root, name) : [name];
    });
}

/**
 * Files below `root`, tracked or new, without what git ignores. Where git is missing or refuses (an unpacked archive, a clone of
 * another user) the folders are read.
 * @param {string} root
 */
export function treeFiles(root) {
    const { status, stdout } = spawnSync('git', ['ls-files', '-z', '-co', '--exclude-standard'], { cwd: root, encoding: 'utf8', maxBuffer: 1 << 26 });
    // A folder inside another repository that ignores it has no files for git.
    const files = status === 0 && stdout ? stdout.split('\0').filter(file => file && existsSync(path.join(root, file))) : walk(root);
    return [...new Set(files)].sort();
}
