// The resolved document of a run, with what was submitted set apart from what was filled in.
import { fill, h, icon } from '../dom.js';

/** @typedef {import('./page.js').Page} Page */

/**
 * @param {Page} page
 * @returns {import('./page.js').Part}
 */
export function configPart(page) {
    let drawn = false;
    return {
        refresh() {
            if (drawn || !page.job)
                return;
            drawn = true;
            const given = flatten(page.job.document);
            const only = h('input', { type: 'checkbox' });
            const groups = group(flatten(page.resolved));
            const list = h('div', { class: 'config' });
            const draw = () => fill(list, groups.map(([name, rows]) => {
                const shown = rows.filter(([path]) => !only.checked || given.has(path));
                return shown.length > 0 && h('section', null, h('h2', null, name), h('dl', null, shown.map(([path, value]) => {
                    const isDefault = !given.has(path);
                    return h('div', { class: 'kv', data: { default: isDefault }, title: isDefault ? 'Not in the submitted document: a default, or computed' : 'As submitted' },
                        h('dt', null, path.slice(name === 'job' ? 1 : name.length + 2).replaceAll('/', '.')), h('dd', null, show(value)));
                })));
            }));
            only.addEventListener('change', draw);
            draw();
            const raw = new Blob([JSON.stringify(page.resolved, null, 2)], { type: 'application/json' });
            const url = URL.createObjectURL(raw);
            page.signal.addEventListener('abort', () => URL.revokeObjectURL(url));
            fill(page.place, h('div', { class: 'toolbar' }, h('label', { class: 'inline' }, only, 'Only what was submitted'),
                h('span', { class: 'muted' }, 'Grey values are defaults or computed.'),
                h('a', { class: 'button', href: url, download: `run-${page.id}.json` }, icon('download'), 'JSON')),
            h('div', { class: 'card pad' }, list),
            h('p', { class: 'muted small' }, 'Digest ', h('span', { class: 'mono' }, page.digest.slice(0, 16)),
                '. Submitting this document again reproduces the run on the same build.'));
        },
    };
}

/**
 * Leaves of a document by JSON pointer. Arrays and empty objects are leaves.
 * @param {any} value
 * @param {string} [path]
 * @param {Map<string, any>} [out]
 */
function flatten(value, path = '', out = new Map()) {
    if (value !== null && typeof value === 'object' && !Array.isArray(value) && Object.keys(value).length > 0) {
        for (const [key, inner] of Object.entries(value))
            flatten(inner, `${path}/${key}`, out);
    } else {
        out.set(path, value);
    }
    return out;
}

/** @param {Map<string, any>} leaves */
function group(leaves) {
    /** @type {Map<string, [string, any][]>} */
    const groups = new Map();
    for (const [path, value] of leaves) {
        const parts = path.split('/');
        const name = parts.length > 2 ? parts[1] : 'job';
        groups.set(name, [...(groups.get(name) ?? []), [path, value]]);
    }
    const order = ['job', 'model', 'attention', 'norm', 'data', 'train', 'diagnostics', 'resources', 'sweep'];
    const rank = (/** @type {string} */ name) => (order.includes(name) ? order.indexOf(name) : order.length);
    return [...groups].sort(([a], [b]) => rank(a) - rank(b));
}

/** @param {any} value */
function show(value) {
    return typeof value === 'string' ? value || '""' : JSON.stringify(value);
}
