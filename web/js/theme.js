// Light and dark: as the system says, until the button says otherwise. Listeners redraw what is painted
// on a canvas, where CSS variables do not reach.
import { fill, icon } from './dom.js';

const order = /** @type {const} */ (['auto', 'light', 'dark']);
/** @typedef {typeof order[number]} Theme */

const system = matchMedia('(prefers-color-scheme: dark)');
/** @type {Set<() => void>} */
const listeners = new Set();

/** @returns {Theme} */
function chosen() {
    try {
        const stored = localStorage.getItem('polyd.theme');
        return stored === 'light' || stored === 'dark' ? stored : 'auto';
    } catch {
        return 'auto'; // storage may be forbidden; the button then lasts until the page is left
    }
}

/** @param {Theme} theme */
function apply(theme) {
    document.documentElement.dataset.theme = theme === 'auto' ? (system.matches ? 'dark' : 'light') : theme;
    for (const listener of listeners)
        listener();
}

/** @param {HTMLElement} button */
export function startTheme(button) {
    let theme = chosen();
    const show = () => {
        fill(button, icon(theme === 'auto' ? 'auto' : theme === 'dark' ? 'moon' : 'sun', 16));
        const word = theme === 'auto' ? 'as the system' : theme;
        button.setAttribute('aria-label', `Colours: ${word}`);
        button.title = `Colours: ${word}`;
        apply(theme);
    };
    button.addEventListener('click', () => {
        theme = order[(order.indexOf(theme) + 1) % order.length];
        try {
            localStorage.setItem('polyd.theme', theme);
        } catch { /* as above */ }
        show();
    });
    system.addEventListener('change', show);
    show();
}

/**
 * Calls back after each change of colours, until the signal aborts.
 * @param {() => void} listener
 * @param {AbortSignal} signal
 */
export function onTheme(listener, signal) {
    listeners.add(listener);
    signal.addEventListener('abort', () => listeners.delete(listener));
}

/**
 * A colour of css/base.css by name, as it is now.
 * @param {string} name without the dashes
 */
export function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/**
 * `n` colours for things that have an order (layers): a part of the cividis map, which reads the same to the
 * colour-blind and in grey. Its dark end is left out on dark surfaces, its bright end on light ones.
 * @param {number} i
 * @param {number} n
 */
export function ordered(i, n) {
    const dark = document.documentElement.dataset.theme === 'dark';
    const stops = dark
        ? [[104, 124, 191], [126, 144, 168], [152, 160, 140], [186, 176, 112], [222, 198, 84], [255, 226, 70]]
        : [[0, 42, 104], [40, 72, 120], [74, 96, 116], [104, 116, 108], [134, 132, 84], [164, 142, 34]];
    const t = n <= 1 ? 0 : (i / (n - 1)) * (stops.length - 1);
    const k = Math.min(stops.length - 2, Math.floor(t));
    const mix = stops[k].map((c, j) => Math.round(c + (stops[k + 1][j] - c) * (t - k)));
    return `rgb(${mix.join(' ')})`;
}
