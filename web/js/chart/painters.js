// Ways to put a figure down: SVG and PDF, whose text stays text, an element of the page, and a canvas for PNG. The first two are pure.

/** @typedef {import('./figure.js').Painter} Painter */

/** @param {number} v */
const short = v => String(+v.toFixed(2));

/** @param {string} text */
const escaped = text => text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;').replaceAll('"', '&quot;');

/**
 * @param {number} width
 * @param {number} height
 * @param {string} font
 * @returns {Painter & {done: () => string}}
 */
export function svgPainter(width, height, font) {
    const parts = [`<svg xmlns="http://www.w3.org/2000/svg" width="${short(width)}" height="${short(height)}" viewBox="0 0 ${short(width)} ${short(height)}" font-family="${escaped(font)}">`];
    let clips = 0;
    return {
        path(points, { stroke, fill, width: line = 1, dash = [], alpha }, closed = false) {
            const d = `M${points.map(([x, y]) => `${short(x)} ${short(y)}`).join('L')}${closed ? 'Z' : ''}`;
            parts.push(`<path d="${d}" fill="${fill ?? 'none'}"${stroke ? ` stroke="${stroke}" stroke-width="${short(line)}" stroke-linejoin="round"` : ''}${dash.length ? ` stroke-dasharray="${dash.join(' ')}"` : ''}${alpha === undefined ? '' : ` opacity="${alpha}"`}/>`);
        },
        boxes(boxes, fill) {
            const d = boxes.map(([x, y, width, height]) => `M${short(x)} ${short(y)}h${short(width)}v${short(height)}h${short(-width)}z`).join('');
            parts.push(`<path d="${d}" fill="${fill}" shape-rendering="crispEdges"/>`);
        },
        text(x, y, text, { size, ink, anchor = 'start', bold }) {
            parts.push(`<text x="${short(x)}" y="${short(y)}" font-size="${size}" fill="${ink}"${anchor === 'start' ? '' : ` text-anchor="${anchor}"`}${bold ? ' font-weight="600"' : ''}>${escaped(text)}</text>`);
        },
        clip(box) {
            if (box) {
                clips++;
                parts.push(`<clipPath id="c${clips}"><rect x="${short(box[0])}" y="${short(box[1])}" width="${short(box[2])}" height="${short(box[3])}"/></clipPath><g clip-path="url(#c${clips})">`);
            } else {
                parts.push('</g>');
            }
        },
        done: () => `${parts.join('\n')}\n</svg>\n`,
    };
}

/**
 * The same as an element of the page.
 * @param {number} width
 * @param {number} height
 * @param {string} font
 * @returns {Painter & {done: () => SVGSVGElement}}
 */
export function elementPainter(width, height, font) {
    /** @param {string} tag @param {Record<string, string | number>} props @param {...(Node | string)} children */
    const make = (tag, props, ...children) => {
        const el = document.createElementNS('http://www.w3.org/2000/svg', tag);
        for (const [key, value] of Object.entries(props))
            el.setAttribute(key, String(value));
        el.append(...children);
        return el;
    };
    const svg = /** @type {SVGSVGElement} */ (make('svg', { viewBox: `0 0 ${short(width)} ${short(height)}`, width: short(width), height: short(height), 'font-family': font }));
    const name = `clip-${Math.random().toString(36).slice(2)}`;
    let clips = 0;
    /** @type {Element} */
    let at = svg;
    return {
        path(points, { stroke, fill, width: line = 1, dash = [], alpha }, closed = false) {
            if (points.length > 0)
                at.append(make('path', { d: `M${points.map(([x, y]) => `${short(x)} ${short(y)}`).join('L')}${closed ? 'Z' : ''}`, fill: fill ?? 'none', ...(stroke ? { stroke, 'stroke-width': line, 'stroke-linejoin': 'round' } : {}),
                    ...(dash.length ? { 'stroke-dasharray': dash.join(' ') } : {}), ...(alpha === undefined ? {} : { opacity: alpha }) }));
        },
        boxes(boxes, fill) {
            at.append(make('path', { d: boxes.map(([x, y, wide, high]) => `M${short(x)} ${short(y)}h${short(wide)}v${short(high)}h${short(-wide)}z`).join(''), fill, 'shape-rendering': 'crispEdges' }));
        },
        text(x, y, text, { size, ink, anchor = 'start', bold }) {
            at.append(make('text', { x: short(x), y: short(y), 'font-size': size, fill: ink, 'text-anchor': anchor, ...(bold ? { 'font-weight': 600 } : {}) }, text));
        },
        clip(box) {
            if (!box) {
                at = svg;
                return;
            }
            clips++;
            svg.append(make('clipPath', { id: `${name}-${clips}` }, make('rect', { x: short(box[0]), y: short(box[1]), width: short(box[2]), height: short(box[3]) })));
            at = make('g', { 'clip-path': `url(#${name}-${clips})` });
            svg.append(at);
        },
        done: () => svg,
    };
}

/**
 * @param {CanvasRenderingContext2D} c
 * @param {string} font
 * @returns {Painter}
 */
export function canvasPainter(c, font) {
    return {
        path(points, { stroke, fill, width = 1, dash = [], alpha = 1 }, closed = false) {
            c.globalAlpha = alpha;
            c.beginPath();
            points.forEach(([x, y], i) => (i ? c.lineTo(x, y) : c.moveTo(x, y)));
            if (closed)
                c.closePath();
            if (fill) {
                c.fillStyle = fill;
                c.fill();
            }
            if (stroke) {
                c.strokeStyle = stroke;
                c.lineWidth = width;
                c.lineJoin = 'round';
                c.setLineDash(dash);
                c.stroke();
            }
            c.globalAlpha = 1;
        },
        boxes(boxes, fill) {
            // Edges on whole pixels, so that no seam shows between neighbours.
            const { a: scale = 1 } = c.getTransform?.() ?? {}, snap = (/** @type {number} */ v) => Math.round(v * scale) / scale;
            c.fillStyle = fill;
            for (const [x, y, width, height] of boxes)
                c.fillRect(snap(x), snap(y), snap(x + width) - snap(x), snap(y + height) - snap(y));
        },
        text(x, y, text, { size, ink, anchor = 'start', bold }) {
            c.font = `${bold ? 600 : 400} ${size}px ${font}`;
            c.fillStyle = ink;
            c.textAlign = anchor === 'middle' ? 'center' : anchor;
            c.fillText(text, x, y);
        },
        clip(box) {
            if (box) {
                c.save();
                c.beginPath();
                c.rect(...box);
                c.clip();
            } else {
                c.restore();
            }
        },
    };
}

// Widths of Helvetica's characters from blank to tilde, in thousandths of the size: what centres text in a PDF.
const widths = [278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278, 556, 556, 556, 556, 556, 556, 556, 556, 556, 556, 278, 278, 584, 584, 584, 556,
    1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833, 722, 778, 667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469, 556,
    333, 556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556, 556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584];

/** Characters that Windows' Latin set has beyond Latin 1. @type {Record<string, number>} */
const latin = { '€': 0x80, '…': 0x85, '‘': 0x91, '’': 0x92, '“': 0x93, '”': 0x94, '•': 0x95, '–': 0x96, '—': 0x97 };
/** What is found in the font Symbol instead, which every reader of PDF has. @type {Record<string, number>} */
const symbol = { '−': 0x2d, '√': 0xd6, '∂': 0xb6, '∞': 0xa5, '≤': 0xa3, '≥': 0xb3, '→': 0xae, '∅': 0xc6, 'Σ': 0x53, 'α': 0x61, 'β': 0x62, 'γ': 0x67, 'δ': 0x64, 'ε': 0x65, 'η': 0x68, 'θ': 0x71, 'λ': 0x6c, 'μ': 0x6d, 'π': 0x70, 'σ': 0x73, 'τ': 0x74, 'φ': 0x66, 'χ': 0x63, 'ω': 0x77 };
/** @type {Record<string, string>} */
const spelled = { '‖': '||', 'ᵖ': 'p', 'ᵀ': 'T', '∇': 'grad ', '≠': '!=', '\u00a0': ' ', '\u202f': ' ' };

/**
 * Text in runs of one font; characters that neither font has become question marks.
 * @param {string} text
 * @param {boolean} bold
 */
function runsOf(text, bold) {
    /** @type {{font: string, bytes: number[], width: number}[]} */
    const runs = [];
    const put = (/** @type {string} */ font, /** @type {number} */ byte, /** @type {number} */ width) => {
        const last = runs[runs.length - 1];
        const run = last?.font === font ? last : { font, bytes: [], width: 0 };
        if (run !== last)
            runs.push(run);
        run.bytes.push(byte);
        run.width += width;
    };
    for (const one of [...text].flatMap(c => [...(spelled[c] ?? c)])) {
        const code = one.codePointAt(0) ?? 63;
        if (symbol[one] !== undefined)
            put('S', symbol[one], 549);
        else {
            const byte = latin[one] ?? ((code >= 32 && code < 127) || (code >= 0xa0 && code < 0x100) ? code : 63);
            put(bold ? 'B' : 'H', byte, (widths[byte - 32] ?? 556) * (bold ? 1.05 : 1));
        }
    }
    return runs;
}

/** @param {string} ink "#rrggbb" or "rgb(r g b)" */
function rgb(ink) {
    const hex = /^#(..)(..)(..)$/.exec(ink);
    const parts = hex ? hex.slice(1).map(part => parseInt(part, 16)) : (ink.match(/[\d.]+/g) ?? ['0', '0', '0']).slice(0, 3).map(Number);
    return parts.map(v => (v / 255).toFixed(3)).join(' ');
}

/**
 * A page of the figure's size in points, with the fonts that every reader has: Helvetica, and Symbol for Greek and signs.
 * @param {number} width
 * @param {number} height
 * @returns {Painter & {done: (title: string) => Uint8Array}}
 */
export function pdfPainter(width, height) {
    /** @type {string[]} */
    const out = [];
    /** @type {number[]} */
    const alphas = [];
    const flip = (/** @type {number} */ y) => short(height - y);
    return {
        path(points, { stroke, fill, width: line = 1, dash = [], alpha }, closed = false) {
            out.push('q');
            if (alpha !== undefined) {
                if (!alphas.includes(alpha))
                    alphas.push(alpha);
                out.push(`/G${alphas.indexOf(alpha)} gs`);
            }
            if (stroke)
                out.push(`${rgb(stroke)} RG ${short(line)} w 1 j [${dash.join(' ')}] 0 d`);
            if (fill)
                out.push(`${rgb(fill)} rg`);
            out.push(points.map(([x, y], i) => `${short(x)} ${flip(y)} ${i ? 'l' : 'm'}`).join('\n'), `${closed ? 'h ' : ''}${fill && stroke ? 'B' : fill ? 'f' : 'S'}`, 'Q');
        },
        boxes(boxes, fill) {
            out.push(`q ${rgb(fill)} rg`, boxes.map(([x, y, wide, high]) => `${short(x)} ${flip(y + high)} ${short(wide)} ${short(high)} re`).join('\n'), 'f Q');
        },
        text(x, y, text, { size, ink, anchor = 'start', bold = false }) {
            const runs = runsOf(text, bold);
            const wide = runs.reduce((sum, run) => sum + run.width, 0) * size / 1000;
            const at = x - (anchor === 'middle' ? wide / 2 : anchor === 'end' ? wide : 0);
            out.push(`BT ${rgb(ink)} rg ${short(at)} ${flip(y)} Td`, ...runs.map(({ font, bytes }) => `/${font} ${size} Tf (${bytes.map(b => (b === 40 || b === 41 || b === 92 ? `\\${String.fromCharCode(b)}` : b > 126 ? `\\${b.toString(8).padStart(3, '0')}` : String.fromCharCode(b))).join('')}) Tj`), 'ET');
        },
        clip(box) {
            out.push(box ? `q ${short(box[0])} ${flip(box[1] + box[3])} ${short(box[2])} ${short(box[3])} re W n` : 'Q');
        },
        done(title) {
            const content = out.join('\n');
            const named = runsOf(title, false).flatMap(run => (run.font === 'S' ? [63] : run.bytes)).map(b => (b === 40 || b === 41 || b === 92 || b > 126 ? `\\${b.toString(8).padStart(3, '0')}` : String.fromCharCode(b))).join('');
            const objects = ['<< /Type /Catalog /Pages 2 0 R >>', '<< /Type /Pages /Kids [3 0 R] /Count 1 >>',
                `<< /Type /Page /Parent 2 0 R /MediaBox [0 0 ${short(width)} ${short(height)}] /Contents 4 0 R /Resources << /Font << /H 5 0 R /B 6 0 R /S 7 0 R >> /ExtGState << ${alphas.map((a, i) => `/G${i} << /ca ${a} /CA ${a} >>`).join(' ')} >> >> >>`,
                `<< /Length ${content.length} >>\nstream\n${content}\nendstream`,
                '<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>', '<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica-Bold /Encoding /WinAnsiEncoding >>',
                '<< /Type /Font /Subtype /Type1 /BaseFont /Symbol >>', `<< /Title (${named}) /Producer (polyd) >>`];
            let text = '%PDF-1.4\n';
            const at = objects.map((object, i) => {
                const place = text.length;
                text += `${i + 1} 0 obj\n${object}\nendobj\n`;
                return place;
            });
            const table = text.length;
            text += `xref\n0 ${objects.length + 1}\n0000000000 65535 f \n${at.map(n => `${String(n).padStart(10, '0')} 00000 n \n`).join('')}trailer\n<< /Size ${objects.length + 1} /Root 1 0 R /Info ${objects.length} 0 R >>\nstartxref\n${table}\n%%EOF\n`;
            // Everything above is ASCII: a byte is a character.
            return Uint8Array.from(text, c => c.charCodeAt(0));
        },
    };
}
