// Rows that exist only where one looks. All have one height; the element that holds them is as high as all of them
// together, and each row stands in it by a transform. A row that leaves the window is used again for one that enters,
// so that a fast scroll makes no garbage.

/**
 * @template T
 * @typedef {object} Source
 * @property {() => HTMLElement} make an empty row
 * @property {(row: HTMLElement, item: T, index: number) => void} draw fills it
 */

/** @template T */
export class VirtualRows {
    /**
     * @param {HTMLElement} body
     * @param {HTMLElement} scroller the element that scrolls, unless the window does
     * @param {Source<T>} source
     * @param {AbortSignal} signal
     */
    constructor(body, scroller, source, signal) {
        this.body = body;
        this.scroller = scroller;
        this.source = source;
        /** @type {T[]} */
        this.items = [];
        this.height = 32;
        /** Rows by index. @type {Map<number, HTMLElement>} */
        this.rows = new Map();
        /** @type {HTMLElement[]} */
        this.free = [];
        this.frame = 0;
        /** @type {ReturnType<typeof setTimeout> | undefined} */
        this.idle = undefined;
        const repaint = () => {
            this.frame ||= requestAnimationFrame(() => this.paint());
        };
        addEventListener('scroll', repaint, { passive: true, signal });
        scroller.addEventListener('scroll', repaint, { passive: true, signal });
        const observer = new ResizeObserver(repaint);
        observer.observe(scroller);
        signal.addEventListener('abort', () => {
            observer.disconnect();
            cancelAnimationFrame(this.frame);
            clearTimeout(this.idle);
        });
    }

    /** @param {T[]} items */
    show(items) {
        this.items = items;
        this.paint(true);
    }

    /** Forgets how rows were built: the columns have changed. */
    rebuild() {
        for (const row of this.rows.values())
            row.remove();
        this.rows.clear();
        this.free = [];
        this.paint(true);
    }

    /**
     * @param {boolean} [all] draw the rows that stand already too
     */
    paint(all = false) {
        cancelAnimationFrame(this.frame);
        this.frame = 0;
        if (!this.body.isConnected)
            return;
        const height = parseFloat(getComputedStyle(this.body).getPropertyValue('--row')) || 32;
        all ||= height !== this.height;
        this.height = height;
        this.body.style.height = `${this.items.length * height}px`;
        const box = this.scroller.getBoundingClientRect();
        const top = Math.max(0, box.top);
        const bottom = Math.min(innerHeight, box.bottom);
        const start = this.body.getBoundingClientRect().top;
        const spare = 6;
        const from = Math.max(0, Math.floor((top - start) / height) - spare);
        const to = Math.min(this.items.length, Math.ceil((bottom - start) / height) + spare);
        for (const [index, row] of this.rows) {
            // The row with the focus stays, or the keyboard would lose its place.
            if ((index < from || index >= to) && (index >= this.items.length || !row.contains(document.activeElement))) {
                this.rows.delete(index);
                this.free.push(row);
            }
        }
        for (let index = from; index < to; index++) {
            let row = this.rows.get(index);
            if (row) {
                if (all)
                    this.source.draw(row, this.items[index], index);
                continue;
            }
            row = this.free.pop() ?? this.source.make();
            this.rows.set(index, row);
            this.source.draw(row, this.items[index], index);
            row.style.transform = `translateY(${index * height}px)`;
            row.hidden = false;
            if (!row.parentNode)
                this.body.append(row);
        }
        if (all)
            for (const [index, row] of this.rows)
                row.style.transform = `translateY(${index * height}px)`;
        // Spare rows are unseen by everybody, and gone once nothing scrolls.
        for (const row of this.free)
            row.hidden = true;
        clearTimeout(this.idle);
        if (all)
            this.tidy();
        else if (this.free.length > 0)
            this.idle = setTimeout(() => this.tidy(), 300);
    }

    tidy() {
        for (const row of this.free.splice(0))
            row.remove();
    }

    /**
     * Brings a row into the window and returns it.
     * @param {number} index
     */
    reveal(index) {
        if (index < 0 || index >= this.items.length)
            return null;
        const own = this.scroller.scrollHeight > this.scroller.clientHeight + 1;
        const start = this.body.getBoundingClientRect().top;
        const box = this.scroller.getBoundingClientRect();
        const head = parseFloat(getComputedStyle(this.body).getPropertyValue('--head')) || 0;
        const low = (own ? box.top : 56) + head;
        const high = own ? Math.min(box.bottom, innerHeight) : innerHeight - 60;
        const y = start + index * this.height;
        const by = y < low ? y - low : y + this.height > high ? y + this.height - high : 0;
        if (by !== 0)
            (own ? this.scroller : document.scrollingElement ?? document.documentElement).scrollTop += by;
        this.paint();
        return this.rows.get(index) ?? null;
    }

    /** @param {Node} node */
    indexOf(node) {
        for (const [index, row] of this.rows)
            if (row.contains(node))
                return index;
        return -1;
    }
}
