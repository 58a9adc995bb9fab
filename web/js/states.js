// States of runs, jobs and models: one table gives the word, the icon and the tone of each.
import { h, icon } from './dom.js';

/** @type {Record<string, {word: string, icon: import('./dom.js').IconName, tone?: string, busy?: boolean}>} */
const states = {
    queued: { word: 'Queued', icon: 'queued' },
    starting: { word: 'Starting', icon: 'starting', tone: 'run', busy: true },
    running: { word: 'Running', icon: 'running', tone: 'run', busy: true },
    checkpointing: { word: 'Saving', icon: 'download', tone: 'run', busy: true },
    paused: { word: 'Paused', icon: 'paused', tone: 'warn' },
    preempted: { word: 'Preempted', icon: 'preempted', tone: 'warn' },
    cancelling: { word: 'Cancelling', icon: 'cancelling', tone: 'warn', busy: true },
    stopping: { word: 'Stopping', icon: 'cancelling', tone: 'warn', busy: true },
    succeeded: { word: 'Succeeded', icon: 'succeeded', tone: 'good' },
    done: { word: 'Done', icon: 'succeeded', tone: 'good' },
    done_some: { word: 'Done', icon: 'succeeded', tone: 'warn' },
    failed: { word: 'Failed', icon: 'failed', tone: 'bad' },
    lost: { word: 'Lost', icon: 'failed', tone: 'bad' },
    time_limit: { word: 'Time limit', icon: 'failed', tone: 'bad' },
    diverged: { word: 'Diverged', icon: 'diverged', tone: 'odd' },
    cancelled: { word: 'Cancelled', icon: 'cancelled' },
    ended: { word: 'Ended', icon: 'cancelled' },
    ready: { word: 'Ready', icon: 'ready', tone: 'good' },
    loading: { word: 'Loading', icon: 'starting', tone: 'run', busy: true },
    unloading: { word: 'Unloading', icon: 'cancelling', tone: 'warn', busy: true },
    unavailable: { word: 'Not loaded', icon: 'unloaded' },
    free: { word: 'Free', icon: 'unloaded' },
    busy: { word: 'Busy', icon: 'running', tone: 'run' },
    serving: { word: 'Serving', icon: 'ready', tone: 'good' },
    checking: { word: 'Being checked', icon: 'starting', busy: true },
    draining: { word: 'Last run', icon: 'cancelling', tone: 'warn' },
    foreign: { word: 'Foreign', icon: 'busy', tone: 'warn' },
    drained: { word: 'Drained', icon: 'failed', tone: 'bad' },
    broken: { word: 'Broken', icon: 'broken', tone: 'bad' },
    stale: { word: 'No answer', icon: 'broken', tone: 'warn' },
    gone: { word: 'Gone', icon: 'broken', tone: 'warn' },
    split: { word: 'Split', icon: 'columns' },
    // verdicts of an experiment's claims
    holds: { word: 'Holds', icon: 'succeeded', tone: 'good' },
    reported: { word: 'Reported', icon: 'copy' },
    open: { word: 'Open', icon: 'queued', tone: 'run' },
    undecided: { word: 'Undecided', icon: 'busy', tone: 'warn' },
    fails: { word: 'Fails', icon: 'failed', tone: 'bad' },
};

/**
 * What a run shows: its outcome once it has ended, its state before.
 * @param {{state: string, outcome?: string | null}} run
 */
export function standing(run) {
    return run.state === 'ended' ? run.outcome || 'ended' : run.state;
}

/** Of a run that waits after a failure. @param {{attempts: number, mostAttempts: number}} run */
export const nextAttempt = run => `attempt ${run.attempts + 1} of ${run.mostAttempts}`;

/** @param {{state: string}} run */
export const isActive = run => run.state !== 'ended';

/** @param {{state: string}} run */
export const isMoving = run => run.state === 'running' || run.state === 'starting' || run.state === 'cancelling';

/**
 * @param {string} state
 * @param {string} [title]
 * @param {string} [word] in place of the state's own
 */
export function chip(state, title, word) {
    const key = state.toLowerCase();
    const known = states[key] ?? { word: state, icon: /** @type {const} */ ('unloaded') };
    return h('span', { class: 'chip', title, data: { tone: known.tone, busy: known.busy, state: key } },
        icon(known.icon, 13), word ?? known.word);
}

/** @param {string} state */
export const toneOf = state => states[state.toLowerCase()]?.tone ?? 'idle';

/**
 * A bar for a share of something. Screen readers get the number.
 * @param {number | null} share 0..1
 * @param {string} label
 * @param {string} [tone]
 */
export function meter(share, label, tone) {
    const inner = h('span');
    const el = h('span', {
        class: 'meter', role: 'progressbar', 'aria-label': label, 'aria-valuemin': 0, 'aria-valuemax': 100, data: { tone },
    }, inner);
    setMeter(el, share);
    return el;
}

/**
 * @param {HTMLElement} el
 * @param {number | null} share
 */
export function setMeter(el, share) {
    const inner = /** @type {HTMLElement} */ (el.firstElementChild);
    const clipped = share === null || !Number.isFinite(share) ? 0 : Math.min(1, Math.max(0, share));
    inner.style.transform = `scaleX(${clipped})`;
    if (share === null)
        el.removeAttribute('aria-valuenow');
    else
        el.setAttribute('aria-valuenow', String(Math.round(clipped * 100)));
}

/**
 * One bar for several shares of a whole, each in its tone. Screen readers get the counts.
 * @param {string} label
 */
export function stackedMeter(label) {
    const el = h('span', { class: 'meter stacked', role: 'img', 'aria-label': label });
    return {
        el,
        /**
         * @param {[number, string, string][]} parts count, tone and word
         * @param {number} whole
         */
        set(parts, whole) {
            const shown = parts.filter(([n]) => n > 0);
            el.setAttribute('aria-label', `${label}: ${shown.map(([n, , word]) => `${n} ${word}`).join(', ') || 'none'} of ${whole}`);
            el.replaceChildren(...shown.map(([n, tone, word]) => {
                const part = h('span', { data: { tone }, title: `${n} ${word}` });
                part.style.width = `${100 * n / Math.max(1, whole)}%`;
                return part;
            }));
        },
    };
}
