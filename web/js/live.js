// The page's one event stream. Views subscribe here; no other module opens a stream of events. After a break it continues
// after the last event seen, so nothing is missed; the header says whether the page is live. A browser opens six connections to
// a host for all of its tabs together, so a page out of sight gives its own back.
import { toEvent } from './api.js';
import { readEvents } from './sse.js';

/** @typedef {(event: import('./types').PolydEvent) => void} Listener */

/** @type {Set<Listener>} */
const listeners = new Set();
/** @type {string | null} */
let lastId = null;
let wait = 0;

/**
 * @param {Listener} listener
 * @param {AbortSignal} signal
 */
export function onEvent(listener, signal) {
    listeners.add(listener);
    signal.addEventListener('abort', () => listeners.delete(listener));
}

/** @param {number} ms */
const pause = ms => new Promise(resolve => {
    const timer = setTimeout(resolve, ms);
    // After a laptop wakes up, it should not wait for a long delay to end.
    addEventListener('online', () => { clearTimeout(timer); resolve(null); }, { once: true });
});

/** How long a page may be out of sight before its stream ends: ms. */
const HIDDEN = 5000;

/** Ends once the page is in sight. */
const inSight = () => new Promise(resolve => {
    const look = () => {
        if (document.hidden)
            return;
        document.removeEventListener('visibilitychange', look);
        resolve(null);
    };
    document.addEventListener('visibilitychange', look);
    look();
});

/** How long a connection may be gone before the page says so in large: ms. */
const PATIENCE = 5000;
/** When it broke. @type {Date | null} */
let lostAt = null;

/** @param {(since: Date | null) => void} tell once polyd has been away for a while, and again when it is back */
function watch(tell) {
    let told = false;
    setInterval(() => {
        const late = lostAt !== null && Date.now() - lostAt.getTime() >= PATIENCE;
        if (late !== told) {
            told = late;
            tell(late ? lostAt : null);
        }
    }, 500);
}

/**
 * `polyd:back` on the window: the stream is open again, what comes without an event is to be asked for. `polyd:missed`: events
 * may be missing too.
 * @param {(state: 'on' | 'lost' | 'off', word: string) => void} show
 * @param {(since: Date | null) => void} away
 */
export async function startLive(show, away) {
    watch(away);
    /** Of the stream that is open. */
    let stop = new AbortController();
    let timer = 0;
    document.addEventListener('visibilitychange', () => {
        clearTimeout(timer);
        if (document.hidden)
            timer = setTimeout(() => stop.abort(), HIDDEN);
    });
    for (;;) {
        const rested = document.hidden || stop.signal.aborted;
        await inSight();
        stop = new AbortController();
        try {
            /** @type {Record<string, string>} */
            const headers = { Accept: 'text/event-stream' };
            if (lastId !== null)
                headers['Last-Event-ID'] = lastId;
            const response = await fetch('/api/v1/events', { headers, cache: 'no-store', signal: stop.signal });
            if (!response.ok || !response.body)
                throw new Error(`status ${response.status}`);
            lostAt = null;
            show('on', 'Live');
            const broken = wait > 0;
            wait = 0;
            if (rested || broken) // new points, unlike events, are not sent again
                dispatchEvent(new Event('polyd:back'));
            if (broken || (rested && lastId === null)) // another store may answer, or the page opened out of sight
                dispatchEvent(new Event('polyd:missed'));
            for await (const message of readEvents(response.body, id => { lastId = id; })) {
                let event;
                try {
                    event = toEvent(message.event, message.id, JSON.parse(message.data));
                } catch {
                    continue; // one unreadable event must not end the stream
                }
                for (const listener of listeners)
                    listener(event);
            }
        } catch { /* shown below */ }
        if (stop.signal.aborted)
            continue;
        lostAt ??= new Date();
        show('lost', 'Reconnecting');
        wait = Math.min(10000, wait === 0 ? 500 : wait * 2);
        await pause(wait);
    }
}

/**
 * Calls `refresh` now and then: soon after a nudge but never more often than every `least` ms, and every `most`
 * ms while `wanted()` holds (progress inside a step is no event). Never two at once; not while the page is hidden.
 * @param {() => Promise<void>} refresh
 * @param {{least: number, most: number, wanted: () => boolean, signal: AbortSignal, after?: 'polyd:back' | 'polyd:missed'}} options
 *        `after`: nudges it too; `polyd:missed` for what only events change
 * @returns {() => void} the nudge
 */
export function pacer(refresh, { least, most, wanted, signal, after = 'polyd:back' }) {
    let last = performance.now();
    let nudged = false;
    let running = false;
    let rest = 0;
    const timer = setInterval(async () => {
        const idle = performance.now() - last;
        if (running || document.hidden || idle < Math.max(least, rest) || !(nudged || (wanted() && idle >= most)))
            return;
        nudged = false;
        running = true;
        const began = performance.now();
        try {
            await refresh();
        } finally {
            running = false;
            // A slow answer slows the pace: at most a third of the time is spent on asking.
            const now = performance.now();
            rest = Math.min(5000, 2 * (now - began));
            last = now;
        }
    }, 100);
    const nudge = () => { nudged = true; };
    addEventListener(after, nudge, { signal });
    signal.addEventListener('abort', () => clearInterval(timer));
    return nudge;
}
