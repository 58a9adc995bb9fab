// The notes of a job: read as Markdown, changed in place. A run shows those of its job.
import { fill, h, icon, message, toast } from './dom.js';
import { changeJob } from './jobs.js';
import { markdown } from './markdown.js';

/**
 * @param {() => {id: string, version: number, notes: string} | null} job
 * @param {() => Promise<unknown>} changed
 */
export function notesCard(job, changed) {
    const place = h('div');
    const edit = h('button', { type: 'button', class: 'quiet small-button', on: { click: () => write() } }, 'Edit');
    const el = h('section', { class: 'card pad notes', 'aria-label': 'Notes', hidden: true }, h('div', { class: 'row' }, h('h2', { class: 'grow' }, 'Notes'), edit), place);
    const add = h('button', { type: 'button', class: 'quiet small-button', on: { click: () => write() } }, icon('plus', 11), 'Add notes');
    let writing = false;
    let shown = '';

    function draw() {
        const now = job();
        if (!now || writing)
            return;
        el.hidden = now.notes === '';
        add.hidden = now.notes !== '';
        edit.hidden = false;
        if (shown !== now.notes || !place.firstChild) {
            shown = now.notes;
            fill(place, markdown(now.notes));
        }
    }

    function write() {
        const now = job();
        if (!now)
            return;
        writing = true;
        el.hidden = false;
        add.hidden = edit.hidden = true;
        const text = h('textarea', { rows: Math.min(16, now.notes.split('\n').length + 3), 'aria-label': 'Notes, Markdown', maxlength: 65536 }, now.notes);
        const save = h('button', { class: 'primary' }, 'Save');
        const stop = () => {
            writing = false;
            shown = '\0';
            draw();
        };
        const form = h('form', { class: 'stack' }, text, h('div', { class: 'row' }, save, h('button', { type: 'button', on: { click: stop } }, 'Discard changes'), h('span', { class: 'muted small' }, 'Markdown: # heading, - list, **bold**, `code`, [word](link)')));
        form.addEventListener('submit', async event => {
            event.preventDefault();
            save.disabled = true;
            try {
                // The version is the one that was read, so a concurrent change is not overwritten.
                await changeJob(now.id, now.version, { notes: text.value });
                writing = false;
                shown = '\0';
                await changed();
                draw();
            } catch (error) {
                toast(/** @type {any} */ (error).status === 412 ? 'This job was changed by another client. Copy your text, discard it here and edit again.' : message(error), 'bad');
                save.disabled = false;
            }
        });
        fill(place, form);
        text.focus();
    }
    return { el, add, draw };
}
