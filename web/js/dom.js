// The one helper that builds elements. Text always enters as text nodes.

const SVG = 'http://www.w3.org/2000/svg';

/** @typedef {Node | string | number | null | undefined | false} Child */

/**
 * An element. `props` are attributes, except `class`, `on` (listeners by event name) and `data` (data-*);
 * a value of true sets an empty attribute, and false, null or undefined leaves it out.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, any> | null} [props]
 * @param {...(Child | Child[])} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(tag, props, ...children) {
    const el = document.createElement(tag);
    for (const [key, value] of Object.entries(props ?? {})) {
        if (key === 'on') {
            for (const [type, listener] of Object.entries(value))
                el.addEventListener(type, listener);
        } else if (key === 'data') {
            for (const [name, text] of Object.entries(value))
                if (text !== undefined && text !== null && text !== false)
                    el.dataset[name] = text === true ? '' : String(text);
        } else if (key === 'class') {
            el.className = value;
        } else if (value === true) {
            el.setAttribute(key, '');
        } else if (value !== false && value !== null && value !== undefined) {
            el.setAttribute(key, String(value));
        }
    }
    append(el, children);
    return el;
}

/**
 * @param {Node} el
 * @param {(Child | Child[])[]} children
 */
function append(el, children) {
    for (const child of children.flat()) {
        if (child === null || child === undefined || child === false)
            continue;
        el.appendChild(child instanceof Node ? child : document.createTextNode(String(child)));
    }
}

/**
 * Replaces everything inside `el`.
 * @template {Element} T
 * @param {T} el
 * @param {...(Child | Child[])} children
 */
export function fill(el, ...children) {
    el.replaceChildren();
    append(el, children);
    return el;
}

/** Is a button of the pointer down? An element that is replaced meanwhile never gets its click. @type {boolean | null} null: no
 * listener yet */
let pressed = null;
/** What waits until the click has arrived. @type {Map<Element, () => void>} */
const waiting = new Map();

function watchPointer() {
    pressed = false;
    addEventListener('pointerdown', () => { pressed = true; }, true);
    for (const kind of ['pointerup', 'pointercancel'])
        addEventListener(kind, () => {
            pressed = false;
            // The click is dispatched before the next task.
            setTimeout(() => {
                const all = [...waiting];
                waiting.clear();
                for (const [el, draw] of all)
                    redraw(el, draw);
            });
        }, true);
}

/**
 * Redraws a part of the page; the keyboard stays on what it was on, known by its label or by where it leads. While
 * the pointer is pressed the last drawing waits, so that a click reaches what was under it.
 * @param {Element} el
 * @param {() => void} draw
 */
export function redraw(el, draw) {
    if (pressed === null)
        watchPointer();
    if (pressed) {
        waiting.set(el, draw);
        return;
    }
    waiting.delete(el);
    const at = el.contains(document.activeElement) ? document.activeElement : null;
    const name = ['aria-label', 'href'].find(attribute => at?.hasAttribute(attribute));
    const value = name && at?.getAttribute(name);
    draw();
    if (name && value)
        /** @type {HTMLElement | null} */ (el.querySelector(`[${name}="${CSS.escape(value)}"]`))?.focus({ preventScroll: true });
}

/**
 * Sets the text only if it differs: a live region must not speak without news.
 * @param {Node} el
 * @param {string} text
 */
export function setText(el, text) {
    if (el.textContent !== text)
        el.textContent = text;
}

// Drawn on a 16 x 16 grid, stroked with the colour of the surrounding text.
const icons = {
    search: 'M7 2.5a4.5 4.5 0 1 1 0 9a4.5 4.5 0 0 1 0-9ZM10.5 10.5L14 14',
    queued: 'M8 2.5a5.5 5.5 0 1 1 0 11a5.5 5.5 0 0 1 0-11ZM8 5v3.2l2 1.3',
    starting: 'M8 2.5a5.5 5.5 0 0 1 5.5 5.5M13.5 8A5.5 5.5 0 1 1 4 4.2',
    running: 'M5 3.2v9.6L12.8 8Z',
    paused: 'M5.5 3.5v9M10.5 3.5v9',
    preempted: 'M3 4l5 4l-5 4ZM9 4l4 4l-4 4',
    cancelling: 'M4 8h8',
    succeeded: 'M3 8.5l3.2 3.2L13 4.8',
    failed: 'M4 4l8 8M12 4l-8 8',
    cancelled: 'M8 2.5a5.5 5.5 0 1 1 0 11a5.5 5.5 0 0 1 0-11ZM4.2 11.8l7.6-7.6',
    diverged: 'M2.5 12.5C6 12.5 8 11 9.5 8S12 3 13.5 2.5M10 2.5h3.5V6',
    ready: 'M3 8.5l3.2 3.2L13 4.8',
    unloaded: 'M8 2.5a5.5 5.5 0 1 1 0 11a5.5 5.5 0 0 1 0-11Z',
    busy: 'M8 4.5a3.5 3.5 0 1 1 0 7a3.5 3.5 0 0 1 0-7Z',
    empty: 'M2.5 9.5h3l1 2h3l1-2h3M2.5 9.5l2-6h7l2 6v3.5h-11Z',
    broken: 'M8 2L14.5 13.5H1.5ZM8 6v3.5M8 11.4v.3',
    sun: 'M8 5.2a2.8 2.8 0 1 1 0 5.6a2.8 2.8 0 0 1 0-5.6ZM8 1.5v1.3M8 13.2v1.3M1.5 8h1.3M13.2 8h1.3M3.4 3.4l.9.9M11.7 11.7l.9.9M3.4 12.6l.9-.9M11.7 4.3l.9-.9',
    moon: 'M13.2 9.6A5.6 5.6 0 0 1 6.4 2.8a5.6 5.6 0 1 0 6.8 6.8Z',
    auto: 'M8 2.5a5.5 5.5 0 1 1 0 11a5.5 5.5 0 0 1 0-11ZM8 2.5v11M8 5h4.6M8 8h5.4M8 11h4.6',
    stop: 'M4.5 4.5h7v7h-7Z',
    download: 'M8 2.5v7.5M4.8 7L8 10.2L11.2 7M3 13.5h10',
    up: 'M8 13V3.5M4 7.5L8 3.5L12 7.5',
    down: 'M8 3v9.5M4 8.5L8 12.5L12 8.5',
    left: 'M10 3L5 8L10 13',
    right: 'M6 3L11 8L6 13',
    close: 'M4.5 4.5l7 7M11.5 4.5l-7 7',
    columns: 'M2.5 3.5h11v9h-11ZM6.2 3.5v9M9.8 3.5v9',
    compare: 'M2.5 12.5C5.5 12.5 6 5 9 5S11.5 9 13.5 9M2.5 9.5C6 9.5 7 11 9.5 11S12 3.5 13.5 3.5',
    plus: 'M8 3v10M3 8h10',
    image: 'M2.5 3h11v10h-11ZM2.5 10.5l3-3l3 3l2-2l3 3M10.2 6.2v.1',
    copy: 'M5.5 5.5v-3h8v8h-3M2.5 5.5h8v8h-8Z',
    filter: 'M2.5 3.5h11L9.5 8.5v4.5l-3-1.5v-3Z',
    more: 'M3.4 8h.2M7.9 8h.2M12.4 8h.2',
    link: 'M6.8 9.2a2.6 2.6 0 0 0 3.7 0l2.2-2.2a2.6 2.6 0 0 0-3.7-3.7l-.9.9M9.2 6.8a2.6 2.6 0 0 0-3.7 0L3.3 9a2.6 2.6 0 0 0 3.7 3.7l.9-.9',
    rows: 'M2.5 4h11M2.5 8h11M2.5 12h11',
    expand: 'M9.5 2.5h4v4M6.5 13.5h-4v-4M13.5 2.5l-4.5 4.5M2.5 13.5l4.5-4.5',
    shrink: 'M13.5 6.5h-4v-4M2.5 9.5h4v4M9.5 6.5l4-4M6.5 9.5l-4 4',
    eye: 'M1.5 8C3.5 4.8 5.6 3.5 8 3.5S12.5 4.8 14.5 8C12.5 11.2 10.4 12.5 8 12.5S3.5 11.2 1.5 8ZM8 6a2 2 0 1 1 0 4a2 2 0 0 1 0-4Z',
    hidden: 'M1.5 8C3.5 4.8 5.6 3.5 8 3.5S12.5 4.8 14.5 8C12.5 11.2 10.4 12.5 8 12.5S3.5 11.2 1.5 8ZM3 13.5L13 2.5',
    again: 'M13 3.5v3.2h-3.2M12.8 6.5A5.3 5.3 0 1 0 13.2 9',
    pin: 'M6 2.5h4l-.6 4l2.1 2.5h-7l2.1-2.5ZM8 9v4.5',
    archive: 'M2.5 3h11v3h-11ZM3.5 6v7h9V6M6.5 8.5h3',
    trash: 'M3 4.5h10M6 4.5v-2h4v2M4.3 4.5l.6 9h6.2l.6-9M6.8 7v4M9.2 7v4',
    reset: 'M3 3.5v3.2h3.2M3.2 6.5A5.3 5.3 0 1 1 2.8 9',
};

/**
 * @param {keyof typeof icons} name
 * @param {number} [size]
 * @returns {SVGSVGElement}
 */
export function icon(name, size = 14) {
    const svg = document.createElementNS(SVG, 'svg');
    for (const [key, value] of Object.entries({
        viewBox: '0 0 16 16', width: size, height: size, fill: 'none', stroke: 'currentColor', 'stroke-width': 1.7,
        'stroke-linecap': 'round', 'stroke-linejoin': 'round', 'aria-hidden': 'true', focusable: 'false',
    }))
        svg.setAttribute(key, String(value));
    const path = document.createElementNS(SVG, 'path');
    path.setAttribute('d', icons[name]);
    svg.append(path);
    return svg;
}

/** @typedef {keyof typeof icons} IconName */

/**
 * A piece of a chart's line, for legends: its colour and its dashes.
 * @param {string} ink
 * @param {number[]} [dash]
 */
export function line(ink, dash = []) {
    const svg = document.createElementNS(SVG, 'svg');
    for (const [key, value] of Object.entries({ viewBox: '0 0 22 6', width: 22, height: 6, 'aria-hidden': 'true', focusable: 'false', class: 'swatch' }))
        svg.setAttribute(key, String(value));
    const path = document.createElementNS(SVG, 'path');
    for (const [key, value] of Object.entries({ d: 'M0 3H22', stroke: ink, 'stroke-width': 2.4, 'stroke-dasharray': dash.join(' ') || 'none' }))
        path.setAttribute(key, String(value));
    svg.append(path);
    return svg;
}

/**
 * Saves something that the page holds as a file.
 * @param {Blob} blob
 * @param {string} name
 */
export function download(blob, name) {
    const url = URL.createObjectURL(blob);
    const link = h('a', { href: url, download: name, hidden: true });
    document.body.append(link); // browsers may pass over a link that is nowhere in the page
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/**
 * The middle of a view that has nothing to show, or failed to get it.
 * @param {'empty' | 'failed'} kind
 * @param {string} title
 * @param {...Child} more paragraphs (strings) and elements
 */
export function stateBox(kind, title, ...more) {
    return h('div', { class: 'state', data: { kind }, role: kind === 'failed' ? 'alert' : null },
        icon(kind === 'failed' ? 'broken' : 'empty', 36),
        h('h2', null, title),
        more.map(child => (typeof child === 'string' ? h('p', null, child) : child)));
}

/**
 * The failed state of a view, with a way to try again.
 * @param {unknown} error
 * @param {string} what such as "The runs"
 * @param {() => void} [again]
 */
export function failedBox(error, what, again) {
    return stateBox('failed', `${what} could not be loaded`, message(error),
        again && h('button', { type: 'button', on: { click: again } }, 'Try again'));
}

/** @param {unknown} error */
export function message(error) {
    return error instanceof Error ? error.message : String(error);
}

/** Grey bars in place of what is on its way. */
export function bones(lines = 6) {
    return h('div', { class: 'bones', role: 'status', 'aria-label': 'Loading' },
        Array.from({ length: lines }, () => h('span')));
}

/**
 * A command to copy.
 * @param {string} text
 */
export function snippet(text) {
    const button = h('button', { type: 'button' }, 'Copy');
    button.addEventListener('click', async () => {
        try {
            await navigator.clipboard.writeText(text);
            setText(button, 'Copied');
        } catch {
            setText(button, 'Select it');
        }
        setTimeout(() => setText(button, 'Copy'), 1600);
    });
    // The button stands above the box: it must not cover what is to be copied.
    return h('div', { class: 'snippet' }, h('div', { class: 'row' }, h('span', { class: 'grow muted small' }, 'Command'), button), h('pre', { tabindex: 0, 'aria-label': 'Command' }, text));
}

/**
 * A short word at the edge of the page.
 * @param {string} text
 * @param {'plain' | 'bad'} [tone]
 */
export function toast(text, tone = 'plain') {
    const el = h('div', { class: 'toast', data: { tone } }, text);
    document.getElementById('toasts')?.append(el);
    setTimeout(() => el.remove(), tone === 'bad' ? 9000 : 4000);
}

/**
 * Asks before something that cannot be taken back. Resolves to the form's data, or null.
 * @param {string} title
 * @param {Child[]} body
 * @param {string} action the button's word
 * @param {{danger?: boolean, keep?: string, act?: (data: FormData) => Promise<void>}} [options] `keep`: the word of the button that changes
 *     nothing; `act`: what the button does: until it has succeeded the dialog stays, with what one has filled in
 * @returns {Promise<FormData | null>}
 */
export function ask(title, body, action, options = {}) {
    return new Promise(resolve => {
        const heading = h('h2', { id: 'dialog-title' }, title);
        const go = h('button', { class: options.danger ? 'danger' : 'primary', value: 'yes' }, action);
        const wrong = h('p', { class: 'note', data: { tone: 'bad' }, role: 'alert', hidden: true });
        const form = h('form', { method: 'dialog' }, heading, ...body, wrong, h('div', { class: 'row' },
            h('button', { type: 'button', on: { click: () => dialog.close('no') } }, options.keep ?? 'Close'), go));
        const dialog = h('dialog', { 'aria-labelledby': 'dialog-title' }, form);
        const { act } = options;
        if (act)
            form.addEventListener('submit', async event => {
                event.preventDefault();
                go.disabled = true;
                wrong.hidden = true;
                setText(go, `${action} …`);
                try {
                    await act(new FormData(form));
                    dialog.close('yes');
                } catch (error) {
                    setText(wrong, message(error));
                    wrong.hidden = false;
                    if (!dialog.isConnected) // closed meanwhile
                        toast(message(error), 'bad');
                }
                go.disabled = false;
                setText(go, action);
            });
        dialog.addEventListener('close', () => {
            resolve(dialog.returnValue === 'yes' ? new FormData(form) : null);
            dialog.remove();
        });
        document.body.append(dialog);
        dialog.showModal();
    });
}
