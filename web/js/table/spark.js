// The curve of a run in its row: its validation loss as a small line. The rows that one sees ask for theirs together, in one
// request, once nothing has been drawn for a moment: neither loading nor scrolling waits for them.
import { isAbort } from '../api.js';
import { present, describe } from '../metrics.js';
import { readCourses } from '../results.js';

/** @typedef {import('../types').Run} Run */

export const COURSE_KEY = 'loss/val';
const POINTS = 32; // of a line
const MOST = 64; // runs of a request
const KEPT = 4000; // lines that are remembered
const QUIET = 250; // ms without a row being drawn
const STALE = 5000; // ms until a run that goes on is asked for again
const WIDTH = 76, HEIGHT = 18;

/** By run; they outlive the table, so that one who comes back finds them. @type {Map<string, {step: number | null, at: number, d: string, text: string}>} */
const known = new Map();
/** @type {Set<string>} */
const wanted = new Set();
/** @type {(() => void) | null} */
let ask = null;

/**
 * Lines are fetched, and `repaint` is called when some have come, until the signal aborts.
 * @param {AbortSignal} signal
 * @param {() => void} repaint
 */
export function startSparks(signal, repaint) {
    let timer = 0;
    let busy = false;
    async function load() {
        if (busy || document.hidden)
            return; // rows are drawn again when the answer is there, or the page is seen
        const ids = [...wanted].slice(-MOST);
        wanted.clear();
        if (ids.length === 0)
            return;
        busy = true;
        try {
            for (const { id, points } of await readCourses(ids, COURSE_KEY, POINTS, signal))
                keep(id, points);
            for (const id of ids)
                wanted.delete(id); // rows that were drawn while the answer was under way
            repaint();
        } catch (error) {
            if (!isAbort(error))
                console.warn(error); // the table does without
        } finally {
            busy = false;
        }
    }
    ask = () => {
        clearTimeout(timer);
        timer = setTimeout(load, QUIET);
    };
    signal.addEventListener('abort', () => clearTimeout(timer));
}

/**
 * @param {string} id
 * @param {[number, number][]} points
 */
function keep(id, points) {
    if (known.size >= KEPT)
        known.delete(/** @type {string} */ (known.keys().next().value));
    const about = describe(COURSE_KEY);
    const first = points[0], last = points[points.length - 1];
    known.set(id, { step: steps.get(id) ?? null, at: performance.now(), d: courseLine(points),
        text: points.length > 1 ? `${about.title} from ${present(about, first[1])} to ${present(about, last[1])}` : '' });
}

/** Where a run stood when its line was wanted. @type {Map<string, number | null>} */
const steps = new Map();

/**
 * A path through the points in a box of WIDTH by HEIGHT; '' where there is no line.
 * @param {[number, number][]} points x growing, y finite
 */
export function courseLine(points) {
    if (points.length < 2)
        return '';
    const ys = points.map(([, y]) => y);
    const low = Math.min(...ys), high = Math.max(...ys), from = points[0][0], to = points[points.length - 1][0];
    const x = (/** @type {number} */ v) => 2 + (v - from) / (to - from || 1) * (WIDTH - 4);
    const y = (/** @type {number} */ v) => (high > low ? 2 + (high - v) / (high - low) * (HEIGHT - 4) : HEIGHT / 2);
    return points.map(([px, py], i) => `${i ? 'L' : 'M'}${x(px).toFixed(1)} ${y(py).toFixed(1)}`).join('');
}

/**
 * @param {HTMLElement} cell
 * @param {Run} run
 */
export function drawSpark(cell, run) {
    const have = (run.latest[COURSE_KEY] ?? null) === null ? null : known.get(run.id);
    if (have !== null && (!have || (have.step !== run.step && performance.now() - have.at > STALE)) && !matchMedia('(max-width: 680px)').matches) {
        wanted.add(run.id);
        steps.set(run.id, run.step);
        ask?.();
    }
    const d = have?.d ?? '';
    if (cell.dataset.now === run.id + d)
        return;
    cell.dataset.now = run.id + d;
    let svg = cell.firstElementChild;
    if (!svg) {
        svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
        for (const [name, value] of Object.entries({ class: 'spark', viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT }))
            svg.setAttribute(name, String(value));
        svg.append(document.createElementNS('http://www.w3.org/2000/svg', 'path'));
        cell.append(svg);
    }
    svg.firstElementChild?.setAttribute('d', d);
    for (const [name, value] of Object.entries(d ? { role: 'img', 'aria-label': have?.text ?? '', 'aria-hidden': 'false' } : { role: 'presentation', 'aria-label': '', 'aria-hidden': 'true' }))
        svg.setAttribute(name, value);
    cell.title = have?.text ?? '';
}
