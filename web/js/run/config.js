// The resolved document of a run: every setting with its value, and whether it was submitted, swept, or filled in.
import { getJob, isAbort, listFields } from '../api.js';
import { failedBox, fill, h, icon, setText } from '../dom.js';
import { builtinWords } from '../formula/words.js';
import { checkFormula } from '../jobs.js';
import { kindOf } from '../kinds.js';
import { Picture } from '../picture.js';
import { colour } from '../theme.js';
import { blockFigure, blockOf, drawable } from './block_figure.js';

/** @typedef {import('./page.js').Page} Page */

/**
 * @param {Page} page
 * @param {AbortSignal} gone
 * @returns {import('./page.js').Part}
 */
export function configPart(page, gone) {
    const { query } = page.context;
    let drawn = false;
    const search = h('input', { type: 'search', placeholder: 'Find a setting', 'aria-label': 'Find a setting', value: query.get('find') ?? '', autocomplete: 'off', spellcheck: 'false' });
    const only = h('input', { type: 'checkbox' });
    only.checked = query.get('given') === '1';
    const list = h('div', { class: 'config' });
    const found = h('span', { class: 'muted', role: 'status' });
    /** Reference of the settings. @type {Map<string, string>} */
    let meanings = new Map();
    /** @type {ReturnType<typeof group>} */
    let groups = [];
    /** @type {Map<string, any>} */
    let given = new Map();

    function draw() {
        const text = search.value.trim().toLowerCase();
        page.context.setQuery({ find: search.value.trim(), given: only.checked ? '1' : null });
        let shown = 0;
        const swept = new Set(Object.keys(page.run?.sweep ?? {}));
        const from = (/** @type {string} */ path) => (swept.has(path) ? 'swept' : [...given.keys()].some(key => key === path || path.startsWith(`${key}/`)) ? 'given' : 'default');
        const sections = groups.map(([name, rows]) => {
            const fitting = rows.filter(([path, value]) => (!only.checked || from(path) !== 'default') &&
                (!text || `${path.replaceAll('/', '.')} ${show(value)} ${meanings.get(path) ?? ''}`.toLowerCase().includes(text)));
            shown += fitting.length;
            return fitting.length > 0 && h('section', null, h('h2', null, name), h('dl', null, fitting.map(([path, value]) => {
                const origin = from(path);
                return h('div', { class: 'kv', data: { default: origin === 'default', from: origin }, title: meanings.get(path) },
                    h('dt', null, path.slice(name === 'job' ? 1 : name.length + 2).replaceAll('/', '.')),
                    h('dd', null, show(value), origin === 'swept' ? h('span', { class: 'tag' }, 'swept') : origin === 'default' ? h('span', { class: 'hidden' }, ', default') : null));
            })));
        });
        fill(list, sections.some(Boolean) ? sections : h('p', { class: 'muted' }, 'No setting matches.'));
        setText(found, text || only.checked ? `${shown} of ${groups.reduce((n, [, rows]) => n + rows.length, 0)}` : '');
    }

    /** The network, drawn from these settings. */
    function block() {
        const { model } = page.resolved;
        if (!drawable(model?.arch))
            return null;
        const picture = new Picture('The network and its blocks', { signal: gone, file: `run-${page.id}-block` });
        picture.show({ make: width => blockFigure(page.resolved, { title: `Network of ${page.run?.name ?? `run #${page.id}`}`, width: Math.min(width, 460), inks: { norm: colour('s3'), attention: colour('s1'), mlp: colour('s2'), other: colour('s7') } }), says: blockOf(page.resolved).says });
        return picture.el;
    }

    /** The run's formula as it was typed, what it runs as, and the digest by which two spellings are one. */
    function formula() {
        const { attention } = page.resolved;
        if (attention?.activation !== 'formula' || !attention.formula)
            return null;
        const runs = h('dd', null, '…'), digest = h('dd', { class: 'mono wrap' }, '…');
        const params = Object.fromEntries(Object.entries(attention.params ?? {}).map(([name, p]) => [name, p.form ? { form: p.form } : {}]));
        checkFormula({ formula: attention.formula, params, samples: 2, causal: page.resolved.model?.arch === 'gpt' }, gone).then(answer => {
            fill(runs, attention.recognise === false ? 'its own program: recognising is off' : answer.builtin ? `the built-in ${builtinWords(answer.builtin)}` : 'its own program');
            fill(digest, answer.digest ?? 'none: the normal form is too long');
        }).catch(() => { // without an answer the text alone is shown
            fill(runs, '–');
            fill(digest, '–');
        });
        return h('dl', { class: 'facts inputs' }, h('div', null, h('dt', { class: 'muted small' }, 'Formula as typed'), h('dd', { class: 'mono wrap' }, attention.formula)),
            h('div', null, h('dt', { class: 'muted small' }, 'It runs as'), runs), h('div', null, h('dt', { class: 'muted small' }, 'SHA-256 of its normal form'), digest));
    }

    return {
        async refresh() {
            if (drawn || !page.run)
                return;
            try {
                page.job ??= await getJob(page.run.jobId, gone); // the page's own question may be late, or has failed
            } catch (error) {
                if (!isAbort(error))
                    fill(page.place, h('div', { class: 'card' }, failedBox(error, 'The configuration', () => page.again())));
                return;
            }
            if (drawn || gone.aborted)
                return;
            drawn = true;
            const trained = !page.run || kindOf(page.run).worker;
            given = flatten(trained ? page.job.document : page.resolved);
            groups = Object.keys(page.resolved).length > 0 ? group(flatten(page.resolved)) : [];
            search.addEventListener('input', draw);
            only.addEventListener('change', draw);
            draw();
            const raw = new Blob([JSON.stringify(page.resolved, null, 2)], { type: 'application/json' });
            const url = URL.createObjectURL(raw);
            page.signal.addEventListener('abort', () => URL.revokeObjectURL(url));
            fill(page.place, h('div', { class: 'toolbar' }, h('div', { class: 'search' }, icon('search'), search), h('label', { class: 'inline' }, only, 'Only what was submitted'), found,
                h('a', { class: 'button', href: url, download: `run-${page.id}.json` }, icon('download'), 'JSON'),
                trained && h('a', { class: 'button', href: `#/submit?run=${encodeURIComponent(page.id)}` }, icon('copy'), 'Use for a new job')),
            h('div', { class: 'card pad' }, groups.length > 0 ? list : h('p', { class: 'muted' }, 'This external run has no configuration.')),
            trained && h('p', { class: 'muted small' }, 'Bold values were submitted; grey ones are defaults or computed. Digest ', h('span', { class: 'mono' }, page.digest.slice(0, 16)),
                ': the same document gives the same results on the same build.'),
            trained && page.inputs?.program && h('dl', { class: 'facts inputs' },
                h('div', null, h('dt', { class: 'muted small' }, 'SHA-256 of the data'), h('dd', null, page.inputs.data ? [h('span', { class: 'mono wrap' }, page.inputs.data), page.inputs.dataOf === 'contents' ? ' (of contents)' : ' (of names and sizes)'] : 'none: polyd makes the data, by document and program')),
                h('div', null, h('dt', { class: 'muted small' }, 'SHA-256 of the program'), h('dd', { class: 'mono wrap' }, page.inputs.program))), formula(), block());
            try {
                const { fields } = await listFields(page.signal);
                meanings = new Map(fields.map(field => [field.pointer, field.meaning]));
                draw();
            } catch { /* the page does without the meanings */ }
        },
    };
}

/**
 * Leaves of a document by JSON pointer. Arrays and empty objects are leaves.
 * @param {any} value
 * @param {string} [path]
 * @param {Map<string, any>} [out]
 */
export function flatten(value, path = '', out = new Map()) {
    if (value !== null && typeof value === 'object' && !Array.isArray(value) && Object.keys(value).length > 0) {
        for (const [key, inner] of Object.entries(value))
            flatten(inner, `${path}/${key}`, out);
    } else {
        out.set(path, value);
    }
    return out;
}

/** Groups of settings in the order shown; `job` are those that stand in none. */
export const groupOrder = ['job', 'model', 'attention', 'norm', 'data', 'train', 'diagnostics', 'resources', 'sweep'];

/** @param {Map<string, any>} leaves */
function group(leaves) {
    /** @type {Map<string, [string, any][]>} */
    const groups = new Map();
    for (const [path, value] of leaves) {
        const parts = path.split('/');
        const name = parts.length > 2 ? parts[1] : 'job';
        groups.set(name, [...(groups.get(name) ?? []), [path, value]]);
    }
    const rank = (/** @type {string} */ name) => (groupOrder.includes(name) ? groupOrder.indexOf(name) : groupOrder.length);
    return [...groups].sort(([a], [b]) => rank(a) - rank(b));
}

/** @param {any} value */
export function show(value) {
    return typeof value === 'string' ? value || '""' : JSON.stringify(value);
}
