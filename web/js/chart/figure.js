// The one exporter of all charts: what a chart shows as a figure for print, and its layout. A painter puts it down as SVG, as
// PDF or on a canvas; text stays text in the first two. The numbers of the same figure are its CSV.

/** @typedef {[number, number][]} Points */

/**
 * @typedef {object} Axis
 * @property {string} title
 * @property {number} low
 * @property {number} high
 * @property {boolean} [log]
 * @property {{at: number, word: string}[]} ticks
 */

/**
 * @typedef {object} Line
 * @property {string} name
 * @property {string} ink
 * @property {number[]} dash
 * @property {number} [width]
 * @property {boolean} [unnamed] not in the legend: it belongs to the line before
 * @property {string} [shape] of its marks, for the legend
 * @property {number} [alpha]
 * @property {[number, number | null][]} points null: a gap
 * @property {[number, number, number][]} [band] x, low, high
 */

/** @typedef {{x: number, y: number, ink: string, shape: string, size: number, sd?: number | null, hollow?: boolean}} Mark */

/**
 * Numbers as coloured cells: cell (row, column) covers column .. column + 1 of x and row .. row + 1 of y.
 * @typedef {object} Cells
 * @property {number} rows
 * @property {number} columns
 * @property {(row: number, column: number) => string | null} colour null: nothing is drawn
 */

/** @typedef {{from: number, to: number, share: number, ink: string, alpha?: number}} Bar from the foot of the plot up to a share of its height */

/** Legend of a colour scale, next to the plot. @typedef {{title: string, low: number, high: number, log?: boolean, colour: (v:
 * number) => string, ticks: {at: number, word: string}[], rule?: number, without?: string | null}} Key `without`: the colour of numbers that are not finite, if there are any */

/**
 * @typedef {object} Figure
 * @property {string} title
 * @property {number} width
 * @property {number} height
 * @property {Cells} [cells]
 * @property {Bar[]} [bars]
 * @property {Key} [key]
 * @property {{at: number, word: string}[]} [levels] horizontal lines with their names
 * @property {{row: number, column: number} | null} [cursor] the cell that is looked at
 * @property {(painter: Painter, ink: {text: string, muted: string, grid: string, surface: string}, top: number) => void} [drawing] instead of a plot
 * @property {Axis} x
 * @property {Axis} y
 * @property {Line[]} lines
 * @property {Mark[]} [marks]
 * @property {{at: number, word: string}[]} [rules] vertical
 * @property {string[][]} rows of the CSV, with its header
 */

/** @typedef {{stroke?: string, fill?: string, width?: number, dash?: number[], alpha?: number}} Paint */

/**
 * @typedef {object} Painter
 * @property {(points: Points, paint: Paint, closed?: boolean) => void} path
 * @property {(boxes: [number, number, number, number][], fill: string) => void} boxes rectangles of one colour: x, y, width, height
 * @property {(x: number, y: number, text: string, style: {size: number, ink: string, anchor?: 'start' | 'middle' | 'end', bold?: boolean}) => void} text
 * @property {(box: [number, number, number, number] | null) => void} clip until it is called with null
 */

/**
 * The outline of a mark; shapes differ as colours do.
 * @param {string} shape
 * @param {number} x
 * @param {number} y
 * @param {number} r
 * @returns {{points: Points, closed: boolean}[]}
 */
export function outline(shape, x, y, r) {
    const closed = (/** @type {Points} */ points) => [{ points, closed: true }];
    switch (shape) {
    case 'square': return closed([[x - r, y - r], [x + r, y - r], [x + r, y + r], [x - r, y + r]]);
    case 'triangle': return closed([[x, y - r * 1.2], [x + r * 1.15, y + r * .9], [x - r * 1.15, y + r * .9]]);
    case 'diamond': return closed([[x, y - r * 1.3], [x + r * 1.3, y], [x, y + r * 1.3], [x - r * 1.3, y]]);
    case 'cross': return [{ points: [[x - r, y - r], [x + r, y + r]], closed: false }, { points: [[x + r, y - r], [x - r, y + r]], closed: false }];
    case 'bar': return closed([[x - r * 1.2, y - r * .5], [x + r * 1.2, y - r * .5], [x + r * 1.2, y + r * .5], [x - r * 1.2, y + r * .5]]);
    default: return closed(Array.from({ length: 20 }, (_, i) => [x + r * Math.cos(i * Math.PI / 10), y + r * Math.sin(i * Math.PI / 10)]));
    }
}

const LETTER = 6; // px: mean width at size 11

/**
 * Height above the plot for title and legend; `wide`: width of a column of the legend.
 * @param {Figure} figure
 */
function headOf(figure) {
    const named = figure.lines.filter(line => !line.unnamed && line.name), room = figure.width - 24;
    const longest = Math.max(...named.map(line => line.name.length), 0), columns = Math.max(1, Math.floor(room / Math.max(180, 34 + LETTER * longest)));
    return { named, columns, wide: Math.min(room, Math.max(180, 34 + LETTER * longest)), height: (figure.title ? 30 : 14) + 16 * Math.ceil(named.length / columns) };
}

/** @param {Figure} figure @returns {[number, number]} */
export const sizeOf = figure => [figure.width, figure.height + headOf(figure).height];

/**
 * @param {Figure} figure
 * @param {Painter} painter
 * @param {{text: string, muted: string, grid: string, surface: string}} ink
 */
export function paintFigure(figure, painter, ink) {
    const { named, columns, wide, height: head } = headOf(figure);
    const { x, y, width, height } = figure;
    const box = { left: 62, right: width - (figure.key ? 84 : 20), top: head + 8, bottom: head + height - 42 };
    const scale = (/** @type {Axis} */ axis, /** @type {number} */ v) => (axis.log ? Math.log(v / axis.low) / Math.log(axis.high / axis.low) : (v - axis.low) / (axis.high - axis.low || 1));
    const px = (/** @type {number} */ v) => box.left + scale(x, v) * (box.right - box.left);
    const py = (/** @type {number} */ v) => box.bottom - (y.log && v <= 0 ? -1 : scale(y, v)) * (box.bottom - box.top);
    painter.path([[0, 0], [width, 0], [width, head + height], [0, head + height]], { fill: ink.surface }, true);
    painter.text(12, 20, figure.title, { size: 14, ink: ink.text, bold: true });
    named.forEach((line, n) => {
        const at = 12 + (n % columns) * wide, base = (figure.title ? 38 : 22) + 16 * Math.floor(n / columns);
        if (!line.shape || line.points.length > 0)
            painter.path([[at, base - 4], [at + 20, base - 4]], { stroke: line.ink, width: 2, dash: line.dash });
        if (line.shape)
            for (const { points, closed } of outline(line.shape, at + 10, base - 4, 4))
                painter.path(points, closed ? { fill: line.ink } : { stroke: line.ink, width: 1.6 }, closed);
        const most = Math.max(8, Math.floor((wide - 30) / LETTER));
        painter.text(at + 26, base, line.name.length > most ? `${line.name.slice(0, most - 1)}…` : line.name, { size: 11, ink: ink.text });
    });
    if (figure.drawing) {
        figure.drawing(painter, ink, head);
        return;
    }
    for (const { at, word } of y.ticks) {
        if (!figure.cells)
            painter.path([[box.left, py(at)], [box.right, py(at)]], { stroke: ink.grid, width: 1 });
        painter.text(box.left - 8, py(at) + 4, word, { size: 11, ink: ink.muted, anchor: 'end' });
    }
    for (const { at, word } of x.ticks)
        painter.text(px(at), box.bottom + 16, word, { size: 11, ink: ink.muted, anchor: 'middle' });
    painter.text((box.left + box.right) / 2, box.bottom + 34, x.title, { size: 11, ink: ink.muted, anchor: 'middle' });
    if (figure.cells) {
        painter.text(box.left - 50, box.top - 2, y.title, { size: 11, ink: ink.muted });
        paintCells(figure.cells, painter, px, py);
        painter.path([[box.left, box.top], [box.right, box.top], [box.right, box.bottom], [box.left, box.bottom]], { stroke: ink.grid, width: 1 }, true);
        if (figure.cursor) {
            const { row, column } = figure.cursor;
            painter.path([[px(column), py(row)], [px(column + 1), py(row)], [px(column + 1), py(row + 1)], [px(column), py(row + 1)]], { stroke: ink.text, width: 2 }, true);
        }
    }
    if (figure.key)
        paintKey(figure.key, painter, ink, { left: box.right + 14, top: box.top, bottom: box.bottom });
    painter.clip([box.left, box.top, box.right - box.left, box.bottom - box.top]);
    for (const { from, to, share, ink: fill, alpha } of figure.bars ?? []) {
        const top = box.bottom - share * (box.bottom - box.top);
        painter.path([[px(from), box.bottom], [px(from), top], [px(to), top], [px(to), box.bottom]], { fill, alpha }, true);
    }
    for (const { at } of figure.levels ?? [])
        painter.path([[box.left, py(at)], [box.right, py(at)]], { stroke: ink.text, width: 1, dash: [5, 4] });
    for (const { at } of figure.rules ?? [])
        painter.path([[px(at), box.top], [px(at), box.bottom]], { stroke: ink.muted, width: 1, dash: [3, 4] });
    for (const line of figure.lines) {
        if (line.band && line.band.length > 1)
            painter.path([...line.band.map(([at, , high]) => /** @type {[number, number]} */ ([px(at), py(high)])),
                ...line.band.slice().reverse().map(([at, low]) => /** @type {[number, number]} */ ([px(at), py(low)]))], { fill: line.ink, alpha: .14 }, true);
        /** @type {Points} */
        let part = [];
        for (const [at, v] of [...line.points, /** @type {[number, null]} */ ([0, null])]) {
            if (v !== null && Number.isFinite(v) && !(y.log && v <= 0)) {
                part.push([px(at), py(v)]);
                continue;
            }
            if (part.length > 1)
                painter.path(part, { stroke: line.ink, width: line.width ?? 1.6, dash: line.dash, alpha: line.alpha });
            else if (part.length === 1)
                painter.path(outline('circle', part[0][0], part[0][1], 3)[0].points, { fill: line.ink }, true);
            part = [];
        }
    }
    for (const mark of figure.marks ?? []) {
        const [mx, my] = [px(mark.x), py(mark.y)];
        if (mark.sd) {
            const [top, bottom] = [py(mark.y + mark.sd), py(mark.y - mark.sd)];
            for (const points of /** @type {Points[]} */ ([[[mx, top], [mx, bottom]], [[mx - 5, top], [mx + 5, top]], [[mx - 5, bottom], [mx + 5, bottom]]]))
                painter.path(points, { stroke: mark.ink, width: 1.3 });
        }
        for (const { points, closed } of outline(mark.shape, mx, my, mark.size))
            painter.path(points, closed && !mark.hollow ? { fill: mark.ink } : { stroke: mark.ink, width: 1.6 }, closed);
    }
    painter.clip(null);
    for (const { at, word } of figure.levels ?? [])
        painter.text(box.right - 4, py(at) - 5, word, { size: 11, ink: ink.text, anchor: 'end' });
    for (const { at, word } of figure.rules ?? []) { // above the plot, where no mark is
        const wide = LETTER * word.length / 2;
        painter.text(Math.min(Math.max(px(at), box.left + wide), box.right - wide), box.top - 2, word, { size: 11, ink: ink.muted, anchor: 'middle' });
    }
}

/**
 * Cells of one colour are put down together: a matrix of thousands becomes some dozens of shapes.
 * @param {Cells} cells
 * @param {Painter} painter
 * @param {(v: number) => number} px
 * @param {(v: number) => number} py
 */
function paintCells(cells, painter, px, py) {
    /** @type {Map<string, [number, number, number, number][]>} */
    const byColour = new Map();
    for (let row = 0; row < cells.rows; row++) {
        const y = Math.min(py(row), py(row + 1)), height = Math.abs(py(row + 1) - py(row));
        for (let from = 0; from < cells.columns;) {
            const colour = cells.colour(row, from);
            let to = from + 1;
            while (to < cells.columns && cells.colour(row, to) === colour)
                to++;
            if (colour !== null) {
                const list = byColour.get(colour) ?? [];
                list.push([px(from), y, px(to) - px(from), height]);
                byColour.set(colour, list);
            }
            from = to;
        }
    }
    for (const [colour, boxes] of byColour)
        painter.boxes(boxes, colour);
}

/**
 * @param {Key} key
 * @param {Painter} painter
 * @param {{text: string, muted: string}} ink
 * @param {{left: number, top: number, bottom: number}} place
 */
function paintKey(key, painter, ink, { left, top, bottom }) {
    const parts = 64, at = (/** @type {number} */ share) => bottom - share * (bottom - top);
    const share = (/** @type {number} */ v) => (key.log ? Math.log(v / key.low) / Math.log(key.high / key.low) : (v - key.low) / (key.high - key.low || 1));
    for (let i = 0; i < parts; i++) {
        const middle = (i + .5) / parts, v = key.log ? key.low * (key.high / key.low) ** middle : key.low + middle * (key.high - key.low);
        painter.boxes([[left, at((i + 1) / parts), 12, (bottom - top) / parts + .5]], key.colour(v));
    }
    for (const { at: v, word } of key.ticks)
        painter.text(left + 17, at(share(v)) + 4, word, { size: 11, ink: ink.muted });
    if (key.rule !== undefined && key.rule >= key.low && key.rule <= key.high)
        painter.path([[left - 3, at(share(key.rule))], [left + 15, at(share(key.rule))]], { stroke: ink.text, width: 2 });
    if (key.without) { // below the scale
        painter.boxes([[left, bottom + 16, 12, 12]], key.without);
        painter.text(left + 17, bottom + 26, 'not finite', { size: 11, ink: ink.muted });
    }
    painter.text(left + 66, top - 6, key.title, { size: 11, ink: ink.muted, anchor: 'end' });
}

/** @param {string[][]} rows */
export const toCsv = rows => `${rows.map(row => row.map(cell => (/[",\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell)).join(',')).join('\n')}\n`;
