// All runs that match a question: the first page soon, the rest behind it in large pages, and then kept up to date
// without asking for everything again.
import { getRun, isAbort, listRuns } from '../api.js';
import { isActive } from '../states.js';

/** @typedef {import('../types').Run} Run */
/** @typedef {{text: string, state: string, tag: string, experiment: string, job: string, metrics: string[], fields: string[]}} Question */

const FIRST = 100; // rows of the first page: what fills a window, soon
const PAGE = 1000; // of each later one: the most the API gives
const SINGLE = 20; // runs that a refresh asks for one by one
export const MOST_RUNS = 50000; // older ones are left to a filter

export class RunList {
    /**
     * @param {() => void} changed
     * @param {AbortSignal} signal
     */
    constructor(changed, signal) {
        this.changed = changed;
        this.signal = signal;
        /** By id. @type {Map<string, Run>} */
        this.runs = new Map();
        /** @type {Question | null} */
        this.question = null;
        this.ready = false; // something was answered
        this.complete = false; // everything was
        /** @type {unknown} */
        this.failure = null;
        this.turn = 0; // answers to an older question are dropped
        /** In which refresh a run was asked for by itself. @type {Map<string, number>} */
        this.asked = new Map();
        this.refreshes = 0;
    }

    /**
     * @param {Question} question
     * @param {boolean} [keep] the rows stay until the answer comes: only other columns are asked for
     * @param {(runs: Run[]) => Question} [narrow] what the pages after the first are asked for, once it is known
     */
    async ask(question, keep = false, narrow) {
        this.question = question;
        const mine = ++this.turn;
        if (!keep) {
            this.runs = new Map();
            this.ready = false;
        }
        this.complete = false;
        this.failure = null;
        let cursor = null;
        /** @type {Map<string, Run>} */
        const fresh = new Map();
        try {
            for (let first = true; first || (cursor && fresh.size < MOST_RUNS); first = false) {
                const page = /** @type {{runs: Run[], next: string | null}} */ (
                    await listRuns({ ...question, cursor, limit: first ? FIRST : PAGE }, this.signal));
                if (mine !== this.turn)
                    return;
                for (const run of page.runs) {
                    fresh.set(run.id, run);
                    this.runs.set(run.id, run);
                }
                cursor = page.next;
                if (first && narrow)
                    question = this.question = narrow([...fresh.values()]);
                this.ready = true;
                if (cursor)
                    this.changed();
            }
            if (keep)
                for (const id of this.runs.keys())
                    if (!fresh.has(id))
                        this.runs.delete(id);
            this.complete = !cursor;
        } catch (error) {
            if (isAbort(error) || mine !== this.turn)
                return;
            this.failure = error;
        }
        this.changed();
    }

    /**
     * The newest page again, and those that were active: enough to know what has changed. Where more are active than a page holds,
     * those that run are the oldest.
     */
    async refresh() {
        const { question } = this;
        if (!question)
            return;
        if (this.failure || !this.ready) {
            await this.ask(question, this.ready);
            return;
        }
        const mine = this.turn;
        try {
            const stale = new Set([...this.runs.values()].filter(isActive).map(run => run.id));
            const page = await listRuns({ ...question, cursor: null, limit: FIRST }, this.signal);
            if (mine === this.turn && page.next && !page.runs.some(run => this.runs.has(run.id))) {
                await this.ask(question, true); // more are new than a page holds
                return;
            }
            const newest = new Set(page.runs.map(run => run.id));
            const reach = page.next ? Math.min(...page.runs.map(run => Number(run.id))) : 0;
            const found = [...page.runs];
            if ([...stale].some(id => !newest.has(id))) {
                const active = { ...question, state: question.state || 'active', cursor: null, limit: PAGE };
                const late = await listRuns(active, this.signal);
                found.push(...late.runs);
                if (late.next)
                    found.push(...(await listRuns({ ...active, order: 'oldest' }, this.signal)).runs);
            }
            if (mine !== this.turn)
                return;
            for (const run of found) {
                this.runs.set(run.id, run);
                stale.delete(run.id);
            }
            for (const id of this.runs.keys())
                // A run within the page's reach that the answer lacks matches no longer.
                if (Number(id) >= reach && !newest.has(id)) {
                    this.runs.delete(id);
                    stale.delete(id);
                }
            // Those that ended meanwhile, further back: first those that ran, and each in its turn.
            const waits = (/** @type {string} */ id) => Number(this.runs.get(id)?.state === 'queued'), last = (/** @type {string} */ id) => this.asked.get(id) ?? 0;
            this.refreshes++;
            for (const id of [...stale].sort((a, b) => waits(a) - waits(b) || last(a) - last(b)).slice(0, SINGLE)) {
                this.asked.set(id, this.refreshes);
                const { run } = await getRun(id, this.signal);
                const before = this.runs.get(id);
                if (before && mine === this.turn)
                    this.runs.set(id, { ...run, latest: before.latest, fields: before.fields });
            }
        } catch (error) {
            if (isAbort(error) || mine !== this.turn)
                return;
            this.failure = error;
        }
        if (mine === this.turn)
            this.changed();
    }
}
