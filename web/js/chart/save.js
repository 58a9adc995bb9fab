// Saves a figure as a file. For print, SVG and PDF take the light colours; a picture is as the page looks.
import { download, h } from '../dom.js';
import { colour, fontFamily, inLight } from '../theme.js';
import { paintFigure, sizeOf, toCsv } from './figure.js';
import { canvasPainter, pdfPainter, svgPainter } from './painters.js';

/** @typedef {import('./figure.js').Figure} Figure */

/** @type {{id: 'svg' | 'pdf' | 'png' | 'csv', word: string}[]} */
export const formats = [{ id: 'svg', word: 'SVG' }, { id: 'pdf', word: 'PDF' }, { id: 'png', word: 'PNG' }, { id: 'csv', word: 'CSV' }];

const inks = () => ({ text: colour('text'), muted: colour('muted'), grid: colour('grid'), surface: colour('surface') });

/**
 * @param {() => Figure} make is asked anew, as its colours depend on the theme
 * @param {'svg' | 'pdf' | 'png' | 'csv'} format
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
