// A pad to draw on, and what a model of small images sees of it: the drawing cut out, scaled into a box of five
// sevenths of the side and centred by its mass, as the digits of MNIST were.
import { h } from './dom.js';

const SIDE = 280;

// Digits as one draws them, on a grid of 100: for people without a pointer, and to show what to do.
const shapes = [
    'M50 14C28 14 24 40 24 52C24 74 34 88 50 88C66 88 76 72 76 50C76 30 68 14 50 14',
    'M34 30L54 14L54 88',
    'M26 32C28 8 74 8 74 34C74 52 40 66 26 86L78 86',
    'M28 22C40 8 72 12 70 32C69 44 56 48 46 48C60 48 76 54 74 70C72 92 36 94 26 76',
    'M62 88L62 14L22 64L82 64',
    'M72 14L36 14L30 48C42 38 76 42 74 66C72 92 38 94 26 78',
    'M68 16C44 18 26 42 28 66C30 90 74 94 76 68C77 46 42 44 30 64',
    'M24 16L76 16C62 40 50 62 44 88',
    'M50 48C26 44 26 14 50 14C74 14 74 44 50 48C20 54 20 88 50 88C80 88 80 54 50 48',
    'M72 34C70 10 30 10 28 34C27 56 62 58 70 38C72 56 66 78 56 88',
];

export class Pad {
    /** @param {{changed: () => void, label: string}} options */
    constructor({ changed, label }) {
        this.canvas = h('canvas', { class: 'pad-canvas', width: SIDE, height: SIDE, role: 'img', 'aria-label': label });
        this.context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext('2d', { willReadFrequently: true }));
        this.changed = changed;
        this.empty = true;
        this.clear(false);
        /** @type {{x: number, y: number} | null} */
        let last = null;
        const at = (/** @type {PointerEvent} */ event) => {
            const box = this.canvas.getBoundingClientRect();
            return { x: (event.clientX - box.left) * SIDE / box.width, y: (event.clientY - box.top) * SIDE / box.height };
        };
        this.canvas.addEventListener('pointerdown', event => {
            event.preventDefault();
            this.canvas.setPointerCapture(event.pointerId);
            last = at(event);
            this.line(last, last);
        });
        this.canvas.addEventListener('pointermove', event => {
            if (!last)
                return;
            for (const step of event.getCoalescedEvents?.() ?? [event]) {
                const now = at(step);
                this.line(last, now);
                last = now;
            }
        });
        for (const type of ['pointerup', 'pointercancel'])
            this.canvas.addEventListener(type, () => { last = null; });
    }

    /**
     * @param {{x: number, y: number}} a
     * @param {{x: number, y: number}} b
     */
    line(a, b) {
        const { context } = this;
        context.strokeStyle = '#fff';
        context.lineWidth = SIDE / 13;
        context.lineCap = 'round';
        context.lineJoin = 'round';
        context.beginPath();
        context.moveTo(a.x, a.y);
        context.lineTo(b.x + .01, b.y);
        context.stroke();
        this.empty = false;
        this.changed();
    }

    clear(tell = true) {
        this.context.setTransform(1, 0, 0, 1, 0, 0);
        this.context.fillStyle = '#000';
        this.context.fillRect(0, 0, SIDE, SIDE);
        this.empty = true;
        if (tell)
            this.changed();
    }

    /**
     * Draws a digit, a little different each time.
     * @param {number} digit
     */
    sample(digit) {
        this.clear(false);
        const { context } = this;
        const jitter = (/** @type {number} */ size) => (Math.random() * 2 - 1) * size;
        const scale = SIDE / 100 * (.8 + jitter(.06));
        context.translate(SIDE / 2, SIDE / 2);
        context.transform(1, jitter(.06), -.1 + jitter(.12), 1, 0, 0);
        context.scale(scale, scale);
        context.translate(-50, -51);
        context.strokeStyle = '#fff';
        context.lineWidth = 9 + jitter(2);
        context.lineCap = 'round';
        context.lineJoin = 'round';
        context.stroke(new Path2D(shapes[digit]));
        context.setTransform(1, 0, 0, 1, 0, 0);
        this.empty = false;
        this.changed();
    }

    /**
     * The drawing as grey values 0..255, row by row.
     * @param {number} width
     * @param {number} height
     * @returns {Uint8Array}
     */
    pixels(width, height) {
        const source = this.context.getImageData(0, 0, SIDE, SIDE).data;
        let left = SIDE, top = SIDE, right = -1, bottom = -1, mass = 0, mx = 0, my = 0;
        for (let y = 0; y < SIDE; y++) {
            for (let x = 0; x < SIDE; x++) {
                const value = source[(y * SIDE + x) * 4];
                if (value > 24) {
                    left = Math.min(left, x);
                    right = Math.max(right, x);
                    top = Math.min(top, y);
                    bottom = Math.max(bottom, y);
                }
                mass += value;
                mx += value * x;
                my += value * y;
            }
        }
        const small = h('canvas', { width, height });
        const context = /** @type {CanvasRenderingContext2D} */ (small.getContext('2d'));
        context.fillStyle = '#000';
        context.fillRect(0, 0, width, height);
        if (right >= 0) {
            const scale = Math.min(width, height) * 5 / 7 / Math.max(right - left + 1, bottom - top + 1);
            const cx = mx / mass, cy = my / mass;
            // The mass goes to the middle, but never so far that ink would leave the picture.
            const fit = (/** @type {number} */ centre, /** @type {number} */ low, /** @type {number} */ high, /** @type {number} */ size) => {
                const shift = size / 2 - centre * scale;
                return Math.min(Math.max(shift, -low * scale), size - (high + 1) * scale);
            };
            context.imageSmoothingEnabled = true;
            context.imageSmoothingQuality = 'high';
            context.drawImage(this.canvas, left, top, right - left + 1, bottom - top + 1,
                fit(cx, left, right, width) + left * scale, fit(cy, top, bottom, height) + top * scale,
                (right - left + 1) * scale, (bottom - top + 1) * scale);
        }
        const data = context.getImageData(0, 0, width, height).data;
        return Uint8Array.from({ length: width * height }, (_, i) => data[i * 4]);
    }
}

/**
 * Paints grey values, pixel by pixel.
 * @param {HTMLCanvasElement} canvas
 * @param {Uint8Array} pixels
 * @param {number} width
 * @param {number} height
 */
export function paint(canvas, pixels, width, height) {
    canvas.width = width;
    canvas.height = height;
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext('2d'));
    const image = context.createImageData(width, height);
    pixels.forEach((value, i) => image.data.set([value, value, value, 255], i * 4));
    context.putImageData(image, 0, 0);
}
