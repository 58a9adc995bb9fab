// An address that no view answers to.
import { h, stateBox } from '../dom.js';

/**
 * @param {import('../types').ViewContext} context
 * @returns {import('../types').View}
 */
export function notFoundView(context) {
    context.setTitle('Not found');
    return {
        el: h('div', null, h('h1', null, 'Not found'), h('div', { class: 'card' },
            stateBox('failed', 'There is no such page', `There is nothing at “${location.hash}”.`,
                h('a', { class: 'button', href: '#/' }, 'Back to runs')))),
    };
}
