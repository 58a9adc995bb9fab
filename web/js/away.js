// Getting rid of things: archive, delete, and what the server's folder takes.
import { json } from './api.js';
import { ask, h, icon, message, toast } from './dom.js';
import { bytes, count } from './format.js';

/** @typedef {'jobs' | 'runs'} Kind */
/** @typedef {{id: string, version: number, archived: string | null, bytes?: {total: number} | null}} Thing */

/**
 * Lists leave out what is archived.
 * @param {Kind} kind
 * @param {string} id
 * @param {boolean} on
 */
const archive = (kind, id, on) => json(`/api/v1/${kind}/${encodeURIComponent(id)}/${on ? 'archive' : 'unarchive'}`, { method: 'POST', body: {} });

/**
 * The version guards against concurrent changes.
 * @param {Kind} kind
 * @param {string} id
 * @param {number} version
 */
const remove = (kind, id, version) => json(`/api/v1/${kind}/${encodeURIComponent(id)}`, { method: 'DELETE', headers: { 'If-Match': `"${version}"` } });

/** @param {string} model @param {string} version */
export const deleteVersion = (model, version) => json(`/api/v1/models/${encodeURIComponent(model)}/versions/${encodeURIComponent(version)}`, { method: 'DELETE', headers: { 'If-Match': '*' } });

/** @param {AbortSignal} signal @returns {Promise<import('./types').Storage>} */
export const getStorage = signal => json('/api/v1/storage?limit=5', { signal });

/** Does this event change what lists show? @param {string} kind */
export const isAway = kind => /\.(deleted|archived|unarchived)$/.test(kind);

/**
 * The buttons of something that has ended: Archive (or Unarchive) and Delete.
 * @param {Kind} kind
 * @param {() => Thing} now as it is when a button is pressed
 * @param {{word: string, contents: string, changed: () => void, gone: () => void}} options `word`: "run"; `contents`: what goes with it
 */
export function awayButtons(kind, now, { word, contents, changed, gone }) {
    const { archived } = now();
    const put = h('button', { type: 'button', title: archived ? 'Show it in lists again' : 'Hide it in lists; nothing is deleted' }, icon('archive'), archived ? 'Unarchive' : 'Archive');
    const drop = h('button', { type: 'button' }, icon('trash'), 'Delete');
    const guarded = (/** @type {HTMLButtonElement} */ button, /** @type {() => Promise<void>} */ act) => button.addEventListener('click', async () => {
        button.disabled = true;
        try {
            await act();
        } catch (error) {
            toast(/** @type {any} */ (error).status === 412 ? `This ${word} has changed in the meantime. Check it again before you delete it.` : message(error), 'bad');
            changed();
        } finally {
            button.disabled = false;
        }
    });
    guarded(put, async () => {
        await archive(kind, now().id, !archived);
        toast(archived ? `The ${word} is back in the lists.` : `The ${word} is archived and hidden in lists.`);
        changed();
    });
    guarded(drop, async () => {
        const thing = now();
        const size = thing.bytes?.total ?? 0;
        const sure = await ask(`Delete this ${word}?`, [
            h('p', null, `${contents} ${size > 0 ? `(${bytes(size)}) ` : ''}are deleted permanently.`),
            h('p', { class: 'muted' }, thing.archived ? 'This cannot be undone.' : 'This cannot be undone. Archive it instead to hide it in lists.')],
        `Delete the ${word}`, { danger: true, keep: 'Keep it' });
        if (!sure)
            return;
        await remove(kind, thing.id, thing.version);
        toast(`The ${word} is deleted.`);
        gone();
    });
    return [put, drop];
}

/**
 * What the server's folder takes, for the page of the machine.
 * @param {import('./types').Storage} storage
 */
export function storageCard(storage) {
    const { runs, cache } = storage;
    const tile = (/** @type {string} */ name, /** @type {string} */ value, /** @type {string} */ small, /** @type {string} */ text) =>
        h('div', { class: 'tile', title: text }, h('dt', null, name), h('dd', null, value, small ? h('small', null, ` ${small}`) : null));
    return [
        h('dl', { class: 'tiles' },
            tile('Runs', bytes(runs.total), storage.deleting ? `${count(storage.deleting)} being removed` : '', `Checkpoints ${bytes(runs.checkpoints)}, logs ${bytes(runs.logs)}, pictures ${bytes(runs.blobs)}`),
            tile('Database', bytes(storage.database), '', 'Jobs, metrics, events'),
            tile('Cache', bytes(cache.bytes), `of ${bytes(cache.max_bytes)}`, `${cache.path}: decoded images and tokens, recreated when needed`),
            storage.free === null ? null : tile('Free', bytes(storage.free), '', storage.path)),
        storage.jobs.length === 0 ? null : h('div', { class: 'scroll-x', tabindex: 0, role: 'region', 'aria-label': 'Largest jobs' }, h('table', { class: 'table' },
            h('thead', null, h('tr', null, [['Job', ''], ['Runs', 'num'], ['Size', 'num']].map(([name, cls]) => h('th', { class: cls, scope: 'col' }, name)))),
            h('tbody', null, storage.jobs.map(job => h('tr', null,
                h('td', null, h('a', { href: job.runs > 1 ? `#/jobs/${job.id}` : `#/?job=${job.id}` }, `#${job.id} ${job.name}`), job.archived ? h('span', { class: 'muted' }, ' archived') : null),
                h('td', { class: 'num' }, count(job.runs)), h('td', { class: 'num' }, bytes(job.bytes))))))),
        h('p', { class: 'muted small' }, storage.path),
    ];
}
