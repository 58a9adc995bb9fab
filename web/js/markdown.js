// A subset of Markdown as elements: headings, lists, code, bold, italics, links. Text enters as text, and a link leads to a web
// address or to a page of ours, nowhere else.
import { h } from './dom.js';

/** @typedef {import('./dom.js').Child} Child */

/**
 * @param {string} text of one paragraph
 * @returns {Child[]}
 */
function inline(text) {
    /** @type {Child[]} */
    const out = [];
    const pattern = /`([^`]+)`|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*|\[([^\]]+)\]\(([^)\s]+)\)|(https?:\/\/[^\s)]+)/g;
    let at = 0;
    for (const match of text.matchAll(pattern)) {
        out.push(text.slice(at, match.index));
        at = match.index + match[0].length;
        const [whole, code, bold, italic, word, target, bare] = match;
        const link = target ?? bare;
        if (code)
            out.push(h('code', null, code));
        else if (bold)
            out.push(h('b', null, bold));
        else if (italic)
            out.push(h('i', null, italic));
        else if (/^(https?:\/\/|#\/)/.test(link))
            out.push(h('a', { href: link, rel: 'noreferrer noopener', target: link.startsWith('#') ? null : '_blank' }, word ?? bare));
        else
            out.push(whole);
    }
    out.push(text.slice(at));
    return out;
}

/**
 * @param {string} text
 * @returns {HTMLElement}
 */
export function markdown(text) {
    const el = h('div', { class: 'notes-text' });
    const blocks = text.replaceAll('\r\n', '\n').split(/\n{2,}|(?=^#{1,4} )|(?<=^#{1,4} .*)\n|(?=^```)|(?<=^```)\n(?=\n)/m).filter(block => block.trim());
    for (let i = 0; i < blocks.length; i++) {
        const lines = blocks[i].trim().split('\n');
        const head = /^(#{1,4}) (.*)$/.exec(lines[0]);
        if (lines[0].startsWith('```')) {
            // A block of code may hold empty lines: it goes on to its end.
            let code = blocks[i].trim();
            while (!/\n```\s*$/.test(code) && i + 1 < blocks.length)
                code += `\n\n${blocks[++i]}`;
            el.append(h('pre', null, code.replace(/^```.*\n?/, '').replace(/\n?```\s*$/, '')));
        } else if (head) {
            el.append(h('h4', null, inline(head[2])), ...(lines.length > 1 ? [h('p', null, inline(lines.slice(1).join(' ')))] : []));
        } else if (lines.every(line => /^\s*([-*]|\d+\.) /.test(line))) {
            el.append(h(/^\s*\d/.test(lines[0]) ? 'ol' : 'ul', null, lines.map(line => h('li', null, inline(line.replace(/^\s*([-*]|\d+\.) /, ''))))));
        } else {
            el.append(h('p', null, lines.flatMap((line, k) => (k ? [h('br'), ...inline(line)] : inline(line)))));
        }
    }
    return el;
}
