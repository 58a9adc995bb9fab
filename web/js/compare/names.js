// Names of runs without the part that all of them share: what is left tells them apart. Pure.

/**
 * @param {string[]} names parts are divided by " · "
 * @returns {string[]}
 */
export function distinct(names) {
    if (new Set(names).size < 2)
        return names.slice();
    const split = names.map(name => name.split(' · '));
    const shared = (/** @type {string} */ part) => split.every(parts => parts.includes(part));
    const kept = split.map(parts => parts.filter(part => !shared(part)));
    // Of the first part the words in front that all share go too; a bare number keeps the word before it.
    const words = kept.map(parts => (parts[0] ?? '').split(' '));
    let n = 0;
    while (words.every(own => own.length > n + 1 && own[n] === words[0][n]))
        n++;
    while (n > 0 && words.some(own => /^[\d.,e+−-]+$/.test(own[n])))
        n--;
    const out = kept.map((parts, i) => [words[i].slice(n).join(' '), ...parts.slice(1)].filter(Boolean).join(' · '));
    return out.every(Boolean) && new Set(out).size === new Set(names).size ? out : names.slice();
}
