// The map of GPUs: one card each, with its state and reason, its run, and the driver's latest sample.
import { ask, h, message, toast } from './dom.js';
import { drainDevice, undrainDevice } from './api.js';
import { ago, bytes, count, percent } from './format.js';
import { chip, meter } from './states.js';

/** @typedef {import('./types').Device} Device */
/** @typedef {import('./types').Run} Run */

/**
 * @param {string} name
 * @param {number | null} share
 * @param {string} text
 * @param {string} label
 */
function bar(name, share, text, label) {
    return h('div', { class: 'gpu-bar' }, h('span', { class: 'muted' }, name), meter(share, label, share !== null && share > 0.9 ? 'warn' : 'run'), h('span', { class: 'num' }, text));
}

/** @param {Device} device */
function facts(device) {
    const gpu = /** @type {NonNullable<Device['gpu']>} */ (device.gpu);
    const words = [
        gpu.temperature === null ? null : `${gpu.temperature} °C`,
        gpu.power === null ? null : `${Math.round(gpu.power)}${gpu.powerLimit === null ? '' : ` of ${Math.round(gpu.powerLimit)}`} W`,
        gpu.clock === null ? null : `${count(gpu.clock)} MHz`,
        gpu.eccUncorrected ? `${count(gpu.eccUncorrected)} uncorrected ECC error${gpu.eccUncorrected === 1 ? '' : 's'}` : gpu.eccCorrected ? `${count(gpu.eccCorrected)} ECC errors, corrected` : null,
        gpu.xids ? `${count(gpu.xids)} XID error${gpu.xids === 1 ? '' : 's'}, the last ${gpu.lastXid}` : null,
    ].filter(word => word !== null);
    return words.length === 0 ? null : h('p', { class: 'sub gpu-facts' }, words.map(word => h('span', null, word)));
}

/**
 * @param {Device} device
 * @param {Run | null | undefined} run
 */
function holder(device, run) {
    if (device.runId) {
        const share = run && run.step !== null && run.totalSteps ? run.step / run.totalSteps : null;
        return h('div', { class: 'stack-s' }, h('div', { class: 'row' }, h('a', { href: `#/runs/${device.runId}`, class: 'grow clip' }, run ? run.name : `Run #${device.runId}`), h('span', { class: 'muted small' }, `#${device.runId}`)),
            run && meter(share, `Progress of run ${run.id}`, 'run'));
    }
    return null;
}

/**
 * @param {Device} device
 * @param {() => void} changed
 */
function command(device, changed) {
    const back = device.drained !== null;
    const act = async () => {
        const form = await ask(back ? `Put ${device.name} back into service?` : `Take ${device.name} out of service?`, back
            ? [h('p', { class: 'muted' }, 'Waiting runs may start on it immediately.')]
            : [h('p', { class: 'muted' }, 'Its current run continues to the end; no new run starts on it, also after a restart of polyd.'),
                h('label', { class: 'stack-s' }, 'Why', h('input', { name: 'reason', maxlength: 150, required: true, placeholder: 'Its fan is loud' }))],
        back ? 'Put back' : 'Take out', { danger: !back });
        if (!form)
            return;
        try {
            await (back ? undrainDevice(device.id) : drainDevice(device.id, String(form.get('reason'))));
        } catch (error) {
            toast(message(error), 'bad');
        }
        changed();
    };
    return h('button', { type: 'button', class: 'quiet small', 'aria-label': `${back ? 'Put back' : 'Take out'} ${device.name}`, on: { click: act } }, back ? 'Put back' : 'Take out');
}

/**
 * @param {Device} device
 * @param {Run | null | undefined} run
 * @param {() => void} changed
 */
export function gpuCard(device, run, changed) {
    const gpu = /** @type {NonNullable<Device['gpu']>} */ (device.gpu);
    const used = gpu.memoryUsed !== null && gpu.memoryTotal ? gpu.memoryUsed / gpu.memoryTotal : null;
    return h('section', { class: 'card pad gpu', 'aria-label': device.name, data: { state: device.state, stale: gpu.stale } },
        h('div', { class: 'row' }, h('h2', { class: 'grow gpu-name' }, device.name), chip(device.state)),
        h('p', { class: 'sub' }, h('span', { title: device.id }, device.model), device.memory ? h('span', null, bytes(device.memory)) : null, gpu.instance === null ? null : h('span', null, 'MIG instance')),
        device.reason ? h('p', { class: 'gpu-reason small' }, device.reason, device.drained && device.drained.who !== 'polyd' ? ` (${device.drained.who}, ${ago(device.drained.since)})` : device.drained ? ` (${ago(device.drained.since)})` : '') : null,
        holder(device, run),
        gpu.split ? null : bar('Memory', used, gpu.memoryUsed === null ? '–' : bytes(gpu.memoryUsed), `Memory in use on ${device.name}`),
        gpu.utilization === null ? null : bar('Busy', gpu.utilization, percent(gpu.utilization), `Utilisation of ${device.name}`),
        facts(device),
        h('div', { class: 'row gpu-foot' }, h('span', { class: 'grow muted small' }, gpu.stale ? `as of ${Math.round(gpu.age)} s ago` : ''), command(device, changed)));
}

/**
 * What the machine says of GPUs where it offers none.
 * @param {import('./types').Driver} driver
 */
export function noGpu(driver) {
    return h('p', { class: 'muted small' }, `No GPU: ${driver.whyNone ?? 'polyd did not search for one'}. Jobs run on the CPU.`);
}
