// What the machine offers, who holds it, and who waits for it.
import { getVersion, isAbort, listDevices, listQueue, listRuns } from '../api.js';
import { bones, failedBox, fill, h, setText, stateBox } from '../dom.js';
import { ago, bytes, moment } from '../format.js';
import { onEvent, pacer } from '../live.js';
import { chip, meter } from '../states.js';

/**
 * @param {import('../types').ViewContext} context
 * @returns {import('../types').View}
 */
export function devicesView(context) {
    const { signal } = context;
    context.setTitle('Devices and queue');
    const summary = h('p', { class: 'sub' });
    const devicesPlace = h('div', { class: 'cols' }, h('div', { class: 'card' }, bones(3)));
    const queuePlace = h('div', { class: 'card' }, bones(3));
    const queueTitle = h('h2', { id: 'queue-title' }, 'Queue');
    const about = h('p', { class: 'muted small' });
    const el = h('div', null,
        h('div', { class: 'head' }, h('div', null, h('h1', null, 'Devices'), summary)),
        devicesPlace,
        h('section', { class: 'stack', 'aria-labelledby': 'queue-title' }, queueTitle, queuePlace), about);
    let ready = false;

    async function refresh() {
        try {
            const [devices, queue, active] = await Promise.all([
                listDevices(signal), listQueue(signal), listRuns({ state: 'active', limit: 100 }, signal)]);
            ready = true;
            const runs = new Map(active.runs.map(run => [run.id, run]));
            const busy = devices.filter(d => d.state !== 'free').length;
            setText(summary, `${devices.length} slot${devices.length === 1 ? '' : 's'}, ${busy} in use, ${queue.length} run${queue.length === 1 ? '' : 's'} waiting`);
            if (devices.length === 0)
                fill(devicesPlace, h('div', { class: 'card' }, stateBox('empty', 'No devices', 'The configuration offers no slot; runs will wait.')));
            else
                fill(devicesPlace, devices.map(device => {
                    const run = device.runId ? runs.get(device.runId) : null;
                    const share = run && run.step !== null && run.totalSteps ? run.step / run.totalSteps : null;
                    return h('section', { class: 'card pad stack', 'aria-label': device.name },
                        h('div', { class: 'row' }, h('h2', null, device.name), chip(device.state)),
                        h('p', { class: 'sub' }, h('span', null, device.model || device.kind), device.threads ? h('span', null, `${device.threads} thread${device.threads === 1 ? '' : 's'}`) : null,
                            device.memory ? h('span', null, bytes(device.memory)) : null),
                        device.runId
                            ? h('div', { class: 'stack' }, h('a', { href: `#/runs/${device.runId}` }, run ? `${run.name} (#${run.id})` : `Run #${device.runId}`),
                                run && meter(share, `Progress of run ${run.id}`, 'run'))
                            : h('p', { class: 'muted small' }, 'Nothing runs here.'));
                }));
            if (queue.length === 0)
                fill(queuePlace, h('div', { class: 'state small-state' }, h('p', null, 'Nobody waits.')));
            else
                fill(queuePlace, h('div', { class: 'scroll-x', tabindex: 0, role: 'region', 'aria-label': 'Runs that wait' }, h('table', { class: 'table' },
                    h('thead', null, h('tr', null, [['Place', 'num'], ['Run', ''], ['State', ''], ['Waits for', ''], ['Since', 'num']].map(([name, cls]) => h('th', { class: cls, scope: 'col' }, name)))),
                    h('tbody', null, queue.map((run, i) => h('tr', null,
                        h('td', { class: 'num' }, run.position || i + 1),
                        h('td', null, h('a', { href: `#/runs/${run.id}` }, run.name), ' ', h('span', { class: 'muted small' }, `#${run.id}`)),
                        h('td', null, chip(run.state)), h('td', null, run.reason || '–'),
                        h('td', { class: 'num nowrap', title: moment(run.created) }, ago(run.created))))))));
        } catch (error) {
            if (isAbort(error))
                return;
            if (!ready) {
                fill(devicesPlace, h('div', { class: 'card' }, failedBox(error, 'The devices', () => refresh())));
                fill(queuePlace);
            }
        }
    }
    getVersion(signal).then(version => setText(about, `polyd ${version.version}, started ${ago(version.started)}`)).catch(() => {});
    const nudge = pacer(refresh, { least: 600, most: 3000, wanted: () => true, signal });
    onEvent(() => nudge(), signal);
    refresh();
    return { el };
}
