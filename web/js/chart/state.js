// What one chose for a single panel, and its text form in an address: `loss~log~clip,attn%2Ffro~-layer%201,lr~y0:0.01`.
// Pure functions.

/**
 * @typedef {object} PanelState
 * @property {boolean | null} log its own scale, or null: as the page says
 * @property {'all' | 'lines' | 'clip' | [number, number]} fit what the vertical axis reaches over
 * @property {Set<string>} hidden keys of series
 */

/** @returns {PanelState} */
export const freshState = () => ({ log: null, fit: 'all', hidden: new Set() });

/** @param {string} text */
const coded = text => text.replaceAll(/[%,~]/g, c => encodeURIComponent(c) === c ? `%${c.charCodeAt(0).toString(16)}` : encodeURIComponent(c));

/** @param {string} text */
function plain(text) {
    try {
        return decodeURIComponent(text);
    } catch {
        return text;
    }
}

/** @param {PanelState} state */
const isFresh = state => state.log === null && state.fit === 'all' && state.hidden.size === 0;

/**
 * @param {Map<string, PanelState>} states by panel
 * @returns {string}
 */
export function formatStates(states) {
    return [...states].filter(([, state]) => !isFresh(state)).map(([id, { log, fit, hidden }]) => [coded(id),
        log === null ? '' : log ? 'log' : 'lin', fit === 'all' ? '' : Array.isArray(fit) ? `y${fit[0]}:${fit[1]}` : fit,
        ...[...hidden].map(key => `-${coded(key)}`)].filter(Boolean).join('~')).join(',');
}

/**
 * Reads what it understands and leaves the rest.
 * @param {string | null} text
 * @returns {Map<string, PanelState>}
 */
export function parseStates(text) {
    /** @type {Map<string, PanelState>} */
    const states = new Map();
    for (const part of (text ?? '').split(',').filter(Boolean)) {
        const [id, ...words] = part.split('~');
        const state = freshState();
        for (const word of words) {
            const [, low, high] = /^y(-?[\d.]+(?:e[-+]?\d+)?):(-?[\d.]+(?:e[-+]?\d+)?)$/i.exec(word) ?? [];
            if (word === 'log' || word === 'lin')
                state.log = word === 'log';
            else if (word === 'clip' || word === 'lines')
                state.fit = word;
            else if (word.startsWith('-'))
                state.hidden.add(plain(word.slice(1)));
            else if (Number(high) > Number(low))
                state.fit = [Number(low), Number(high)];
        }
        states.set(plain(id), state);
    }
    return states;
}
