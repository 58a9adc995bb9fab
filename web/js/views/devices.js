// What the machine offers, who holds it, who waits for it and why; the queue is put in another order here.
import { cancelRun, getVersion, isAbort, json, listDevices, listQueue, listRuns } from '../api.js';
import { getStorage, isAway, storageCard } from '../away.js';
import { ask, bones, failedBox, fill, h, icon, message, redraw, setText, stateBox, toast } from '../dom.js';
import { ago, bytes, count, duration, moment } from '../format.js';
import { changeJob } from '../jobs.js';
import { gpuCard, noGpu } from '../gpu.js';
import { onEvent, pacer } from '../live.js';
import { readJob } from '../results.js';
import { chip, meter } from '../states.js';

/** @typedef {import('../types').Run} Run */

/**
 * @param {import('../types').ViewContext} context
 * @returns {import('../types').View}
 */
export function devicesView(context) {
    const { signal, query } = context;
    context.setTitle('Devices and queue');
    const summary = h('p', { class: 'sub' });
    const gpuPlace = h('div', { class: 'gpus', hidden: true });
    const devicesPlace = h('div', { class: 'cols' }, h('div', { class: 'card' }, bones(3)));
    const queuePlace = h('div', { class: 'card' }, bones(3));
    const storagePlace = h('div', { class: 'card pad stack' }, bones(2));
    const queueTitle = h('h2', { id: 'queue-title' }, 'Queue');
    const settings = h('details', { class: 'card pad settings', open: query.get('settings') === '1' }, h('summary', null, h('b', null, 'Server settings')), h('div', { class: 'stack' }));
    const about = h('p', { class: 'muted small' });
    const el = h('div', null,
        h('div', { class: 'head' }, h('div', null, h('h1', null, 'Devices and queue'), summary)),
        gpuPlace,
        devicesPlace,
        h('section', { class: 'stack', 'aria-labelledby': 'queue-title' }, queueTitle, queuePlace),
        h('section', { class: 'stack', 'aria-labelledby': 'storage-title' }, h('h2', { id: 'storage-title' }, 'Storage'), storagePlace), settings, about);
    let ready = false;
    let watched = false; // there are GPUs
    let held = false; // a field of the table is being used: it must not be redrawn

    /** Progress as it was a while ago, by run, for the remaining time. @type {Map<string, {step: number, at: number}>} */
    const pace = new Map();

    /** @param {Run} run */
    function left(run) {
        if (run.step === null || !run.totalSteps)
            return '';
        const at = performance.now() / 1000;
        const first = pace.get(run.id);
        if (!first) {
            pace.set(run.id, { step: run.step, at });
            return '';
        }
        const steps = run.step - first.step;
        return steps > 0 && at - first.at > 2 ? `about ${duration((at - first.at) / steps * (run.totalSteps - run.step))} left` : '';
    }

    /**
     * @param {Run} run
     * @param {number} to
     */
    async function rank(run, to) {
        try {
            const job = await readJob(run.jobId, signal);
            await changeJob(run.jobId, job.version, { priority: to });
            context.announce(`${run.name}: priority ${to}`);
        } catch (error) {
            toast(/** @type {any} */ (error).status === 412 ? 'Another client has just changed this job. Try again.' : message(error), 'bad');
        }
        await refresh();
    }

    /** @param {Run} run */
    function priority(run) {
        const field = h('input', { type: 'number', min: -100, max: 100, step: 1, value: run.priority, class: 'rank', 'aria-label': `Priority of ${run.name}` });
        field.addEventListener('focus', () => { held = true; });
        field.addEventListener('blur', () => { held = false; });
        field.addEventListener('change', () => {
            held = false;
            if (field.checkValidity() && field.value !== '')
                rank(run, Number(field.value));
        });
        return field;
    }

    /** @param {Run} run */
    async function cancel(run) {
        const sure = await ask(`Cancel ${run.name}?`, [h('p', { class: 'muted' }, 'It is removed from the queue. A cancelled run cannot be resumed.')], 'Cancel the run', { danger: true, keep: 'Keep it' });
        if (!sure)
            return;
        try {
            await cancelRun(run.id);
        } catch (error) {
            toast(message(error), 'bad');
        }
        await refresh();
    }

    /** @param {Run[]} queue */
    function drawQueue(queue) {
        if (queue.length === 0) {
            fill(queuePlace, h('div', { class: 'state small-state' }, h('p', null, 'Queue is empty.')));
            return;
        }
        const shown = queue.slice(0, 200);
        fill(queuePlace, h('div', { class: 'scroll-x', tabindex: 0, role: 'region', 'aria-label': 'Runs that wait' }, h('table', { class: 'table queue' },
            h('thead', null, h('tr', null, [['Place', 'num'], ['Run', ''], ['State', ''], ['Waits for', ''], ['Priority', 'num'], ['Since', 'num'], ['', 'num']].map(([name, cls]) =>
                h('th', { class: cls, scope: 'col' }, name || h('span', { class: 'hidden' }, 'Actions'))))),
            h('tbody', null, shown.map((run, i) => h('tr', null,
                h('td', { class: 'num strong' }, run.position || i + 1),
                h('td', { class: 'who' }, h('a', { href: `#/runs/${run.id}` }, run.name), ' ', h('span', { class: 'muted small' }, `#${run.id}`)),
                h('td', { class: 'how' }, chip(run.state)), h('td', { class: 'reason' }, run.reason || '–'), h('td', { class: 'num rank-cell' }, priority(run)),
                h('td', { class: 'num nowrap since', title: moment(run.created) }, ago(run.created)),
                h('td', { class: 'num act' }, h('button', { type: 'button', class: 'quiet icon-button', 'aria-label': `Cancel ${run.name}`, title: 'Cancel', on: { click: () => cancel(run) } }, icon('close')))))))),
        h('p', { class: 'muted small pad' }, `${queue.length > shown.length ? `${count(queue.length - shown.length)} more wait behind these. ` : ''}Higher priorities start first; at equal priority, older runs. A change applies to the whole job.`));
    }

    /**
     * @param {import('../types').Device} device
     * @param {Run | null | undefined} run
     */
    function card(device, run) {
        const share = run && run.step !== null && run.totalSteps ? run.step / run.totalSteps : null;
        return h('section', { class: 'card pad stack', 'aria-label': device.name },
            h('div', { class: 'row' }, h('h2', { class: 'grow' }, device.name), chip(device.state)),
            device.reason ? h('p', { class: 'gpu-reason small' }, device.reason) : null,
            h('p', { class: 'sub' }, h('span', null, device.model || device.kind), device.threads ? h('span', null, `${device.threads} thread${device.threads === 1 ? '' : 's'}`) : null,
                device.memory ? h('span', null, bytes(device.memory)) : null),
            device.runId
                ? h('div', { class: 'stack' }, h('div', { class: 'row' }, h('a', { href: `#/runs/${device.runId}`, class: 'grow' }, run ? run.name : `Run #${device.runId}`), h('span', { class: 'muted small' }, `#${device.runId}`)),
                    run && meter(share, `Progress of run ${run.id}`, 'run'),
                    run && h('div', { class: 'row small muted' }, h('span', { class: 'grow' }, share === null ? '' : `${count(run.step)} of ${count(run.totalSteps)} steps`), h('span', null, left(run))))
                : h('p', { class: 'muted small' }, 'Nothing runs here.'));
    }

    /**
     * @param {import('../types').Device[]} gpus
     * @param {import('../types').Driver} driver
     * @param {Map<string, Run>} runs
     */
    function drawGpus(gpus, driver, runs) {
        gpuPlace.hidden = false;
        watched = gpus.length > 0;
        gpuPlace.toggleAttribute('data-many', gpus.length > 8);
        redraw(gpuPlace, () => fill(gpuPlace, gpus.length > 0 ? gpus.map(device => gpuCard(device, device.runId ? runs.get(device.runId) : null, () => refresh())) : noGpu(driver)));
    }

    async function refresh() {
        try {
            const [{ devices, driver }, queue, active] = await Promise.all([
                listDevices(signal), listQueue(signal), listRuns({ state: 'active', limit: 100 }, signal)]);
            ready = true;
            const runs = new Map(active.runs.map(run => [run.id, run]));
            const gpus = devices.filter(d => d.gpu), slots = devices.filter(d => !d.gpu), units = gpus.filter(d => !d.gpu?.split);
            const used = units.filter(d => d.runId).length, out = units.filter(d => ['foreign', 'drained', 'broken', 'stale', 'gone'].includes(d.state)).length;
            setText(summary, `${units.length > 0 ? `${units.length} GPU${units.length === 1 ? '' : 's'}, ${used} in use${out > 0 ? `, ${out} not usable` : ''}; ` : ''}${slots.length} CPU slot${slots.length === 1 ? '' : 's'}, ${slots.filter(d => d.state === 'busy').length} in use; ${queue.length} run${queue.length === 1 ? '' : 's'} waiting`);
            drawGpus(gpus, driver, runs);
            if (slots.length === 0)
                fill(devicesPlace, h('div', { class: 'card' }, stateBox('empty', 'No devices', 'The configuration has no slots, so runs will wait.')));
            else
                fill(devicesPlace, slots.map(device => card(device, device.runId ? runs.get(device.runId) : null)));
            setText(queueTitle, queue.length > 0 ? `Queue (${count(queue.length)})` : 'Queue');
            if (!held)
                redraw(queuePlace, () => drawQueue(queue));
        } catch (error) {
            if (isAbort(error))
                return;
            if (!ready) {
                fill(devicesPlace, h('div', { class: 'card' }, failedBox(error, 'The devices', () => refresh())));
                fill(queuePlace);
            }
        }
    }

    async function drawStorage() {
        try {
            const storage = await getStorage(signal);
            redraw(storagePlace, () => fill(storagePlace, storageCard(storage)));
        } catch (error) {
            if (!isAbort(error))
                fill(storagePlace, failedBox(error, 'Disk usage of the state folder', () => drawStorage()));
        }
    }

    async function drawSettings() {
        context.setQuery({ settings: settings.open ? '1' : null });
        const place = /** @type {HTMLElement} */ (settings.lastElementChild);
        if (!settings.open || place.childElementCount > 0)
            return;
        fill(place, bones(4));
        try {
            const raw = await json('/api/v1/config', { signal });
            fill(place, h('p', { class: 'muted small' }, raw.file ? `Read from ${raw.file}. ` : 'No configuration file was read. ', 'Bold values differ from the defaults.'),
                h('div', { class: 'scroll-x', tabindex: 0, role: 'region', 'aria-label': 'Settings' }, h('table', { class: 'table' },
                    h('thead', null, h('tr', null, ['Setting', 'Value', 'From', 'Meaning'].map(word => h('th', { scope: 'col' }, word)))),
                    h('tbody', null, raw.settings.map((/** @type {any} */ s) => h('tr', null, h('td', { class: 'mono nowrap' }, `${s.section}.${s.key}`),
                        h('td', { class: s.source === 'default' ? 'mono muted' : 'mono strong' }, s.value ?? '–'), h('td', { class: 'nowrap' }, s.source === 'default' ? 'default' : s.origin), h('td', null, s.meaning)))))));
        } catch (error) {
            if (!isAbort(error))
                fill(place, failedBox(error, 'The settings', () => { fill(place); drawSettings(); }));
        }
    }
    settings.addEventListener('toggle', drawSettings);
    if (settings.open)
        drawSettings();

    getVersion(signal).then(version => setText(about, `polyd ${version.version}, started ${ago(version.started)}`)).catch(() => {});
    const nudge = pacer(refresh, { least: 600, most: 3000, wanted: () => true, signal });
    const nudgeStorage = pacer(drawStorage, { least: 3000, most: 30000, wanted: () => true, signal });
    onEvent(event => {
        nudge();
        if (isAway(event.kind) || event.kind === 'checkpoint')
            nudgeStorage();
    }, signal);
    /* Temperature and memory change without an event. */
    const timer = setInterval(() => { if (watched && !document.hidden) nudge(); }, 3000);
    signal.addEventListener('abort', () => clearInterval(timer));
    refresh();
    drawStorage();
    return { el };
}
