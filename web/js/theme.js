// Light and dark: as the system says, until the button says otherwise. Listeners redraw what is painted
// on a canvas, where CSS variables do not reach.
import { fill, icon } from './dom.js';

/** @typedef {'auto' | 'light' | 'dark'} Theme */

const system = globalThis.matchMedia?.('(prefers-color-scheme: dark)');
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
    document.documentElement.dataset.theme = theme === 'auto' ? (system?.matches ? 'dark' : 'light') : theme;
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
        // A press changes something: from the system's colours the next is the other one.
        const other = system?.matches ? 'light' : 'dark';
        const next = /** @type {Record<Theme, Theme>} */ ({ auto: other, [other]: other === 'dark' ? 'light' : 'dark', [other === 'dark' ? 'light' : 'dark']: 'auto' });
        theme = next[theme];
        try {
            localStorage.setItem('polyd.theme', theme);
        } catch { /* as above */ }
        show();
    });
    system?.addEventListener('change', show);
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

/** The theme that is on: of a picture whose colours stand for numbers. @returns {'light' | 'dark'} */
export const themeNow = () => (document.documentElement.dataset.theme === 'dark' ? 'dark' : 'light');

/**
 * A colour of css/base.css by name, as it is now.
 * @param {string} name without the dashes
 */
export function colour(name) {
    return known(name, style => style.getPropertyValue(`--${name}`).trim());
}

/** The page's font, for what is painted on a canvas. */
export const fontFamily = () => known('(font)', style => style.getPropertyValue('--sans').trim());

/** What was read of the style: asking for it makes the browser work out the style of the whole page. @type {Map<string, string>} */
const read = new Map();

/**
 * @param {string} name
 * @param {(style: CSSStyleDeclaration) => string} get
 */
function known(name, get) {
    const root = document.documentElement;
    const key = `${root.dataset.theme} ${name}`;
    let value = read.get(key);
    if (value === undefined || value === '') {
        value = get(getComputedStyle(root));
        read.set(key, value);
    }
    return value;
}

/**
 * Runs something as if the light theme were on: for what goes on paper. Nothing is painted meanwhile.
 * @template T
 * @param {() => T} make
 * @returns {T}
 */
export function inLight(make) {
    const root = document.documentElement;
    const was = root.dataset.theme;
    root.dataset.theme = 'light';
    try {
        return make();
    } finally {
        root.dataset.theme = was;
    }
}

/** From violet over blue, green and yellow to red, each at 3:1 on its surface. */
const spectrum = {
    light: [[74, 36, 160], [20, 92, 205], [0, 128, 158], [0, 132, 78], [112, 122, 0], [184, 98, 0], [204, 52, 20], [150, 10, 84]],
    dark: [[160, 140, 255], [92, 170, 255], [48, 205, 218], [84, 222, 136], [196, 216, 74], [250, 184, 64], [255, 122, 88], [255, 130, 196]],
};

/**
 * One of `n` colours for things that have an order (layers, heads) and are more than the inks of css/base.css.
 * @param {number} i
 * @param {number} n
 * @param {'light' | 'dark'} [theme]
 */
export function ordered(i, n, theme = document.documentElement.dataset.theme === 'dark' ? 'dark' : 'light') {
    const stops = spectrum[theme];
    const t = n <= 1 ? 0 : (i / (n - 1)) * (stops.length - 1);
    const k = Math.min(stops.length - 2, Math.floor(t));
    const mix = stops[k].map((c, j) => Math.round(c + (stops[k + 1][j] - c) * (t - k)));
    return `rgb(${mix.join(' ')})`;
}
