// Saves a figure as a file. For print, SVG and PDF take the light colours; a picture is as the page looks.
import { download, h, toast } from '../dom.js';
import { colour, fontFamily, inLight } from '../theme.js';
import { toMatplotlib, toPgfplots } from './code.js';
import { paintFigure, sizeOf, toCsv } from './figure.js';
import { canvasPainter, pdfPainter, svgPainter } from './painters.js';

/** @typedef {import('./figure.js').Figure} Figure */

/** @typedef {'svg' | 'pdf' | 'png' | 'csv'} Format */

/** @type {{id: Format, word: string}[]} */
export const formats = [{ id: 'svg', word: 'SVG' }, { id: 'pdf', word: 'PDF' }, { id: 'png', word: 'PNG' }, { id: 'csv', word: 'CSV' }];

/** The code that draws it again, for the clipboard. @type {{id: 'pgfplots' | 'matplotlib', make: (figure: Figure) => string}[]} */
export const codes = [{ id: 'pgfplots', make: toPgfplots }, { id: 'matplotlib', make: toMatplotlib }];

/**
 * @param {() => Figure} make
 * @param {'pgfplots' | 'matplotlib'} id
 */
export async function copyFigure(make, id) {
    const text = inLight(() => codes.find(code => code.id === id)?.make(make()) ?? '');
    try {
        await navigator.clipboard.writeText(text);
        toast(`The ${id} code of this chart is in the clipboard.`);
    } catch {
        download(new Blob([text], { type: 'text/plain' }), id === 'pgfplots' ? 'chart.tex' : 'chart.py'); // where copying is forbidden
    }
}

const inks = () => ({ text: colour('text'), muted: colour('muted'), grid: colour('grid'), surface: colour('surface') });

/**
 * @param {() => Figure} make is called again, as its colours depend on the theme
 * @param {Format} format
 * @param {string} name without its extension
 */
export function saveFigure(make, format, name) {
    const file = `${name.replaceAll(/[^\w.-]+/g, '-')}.${format}`;
    if (format === 'csv') {
        download(new Blob([toCsv(make().rows)], { type: 'text/csv' }), file);
    } else if (format === 'svg') {
        const text = inLight(() => {
            const figure = make();
            const painter = svgPainter(...sizeOf(figure), 'Inter, Helvetica, Arial, sans-serif');
            paintFigure(figure, painter, inks());
            return painter.done();
        });
        download(new Blob([text], { type: 'image/svg+xml' }), file);
    } else if (format === 'pdf') {
        const bytes = inLight(() => {
            const figure = make();
            const painter = pdfPainter(...sizeOf(figure));
            paintFigure(figure, painter, inks());
            return painter.done(figure.title);
        });
        download(new Blob([/** @type {BlobPart} */ (bytes)], { type: 'application/pdf' }), file);
    } else {
        const figure = make();
        const [width, height] = sizeOf(figure);
        const canvas = h('canvas', { width: width * 2, height: height * 2 });
        const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext('2d'));
        context.scale(2, 2);
        paintFigure(figure, canvasPainter(context, fontFamily()), inks());
        canvas.toBlob(blob => blob && download(blob, file));
    }
}
