// digits_gen: the digits that polyd draws itself. Nothing publishes them, so this restates daemon/worker/data/digits.c's rule:
// a way of writing the digit, every control point moved a little, the whole bent by an affine map, joined by a
// Catmull-Rom curve (or straight), covered by a round pen with a soft edge. All in 32-bit numbers.
import { unit } from './draws.mjs';
import { stream, words } from '../philox.mjs';

const f = Math.fround;
const SIDE = 28, STEPS = 10; // pieces of a curve between two control points

/** Strokes of each way: points in hundredths of a unit box, x right, y down. */
const ways = [
    [0, 'curve 55,2 25,10 10,45 22,88 52,98 82,80 90,42 74,8 50,3'],
    [0, 'curve 40,5 14,30 12,70 40,97 72,92 88,58 80,20 55,2 36,8'],
    [1, 'line 52,2 48,98'],
    [1, 'line 28,24 54,2 52,98'],
    [1, 'line 30,22 52,3 52,96', 'line 26,97 78,97'],
    [2, 'curve 14,26 32,5 66,3 84,26 66,55 36,80 12,96 12,96'],
    [2, 'curve 14,26 34,4 68,5 82,28 62,60 34,84 12,97', 'line 12,97 90,95'],
    [2, 'curve 18,22 42,2 74,12 76,40 48,72 20,92 14,78 34,74 58,94 90,88'],
    [3, 'curve 16,14 44,2 76,12 74,36 44,47 78,56 88,76 66,96 34,97 12,84'],
    [3, 'line 16,5 80,5 44,40', 'curve 44,40 76,46 88,68 70,93 36,97 12,84'],
    [4, 'line 46,3 12,62 90,60', 'line 68,30 64,98'],
    [4, 'curve 20,6 14,34 22,54 80,48', 'line 78,4 70,98'],
    [4, 'line 64,98 66,3 12,66 92,66'],
    [5, 'curve 30,5 24,30 20,46 50,38 82,54 82,80 52,98 14,90', 'line 28,5 84,4'],
    [5, 'line 82,4 26,6 22,44', 'curve 22,44 56,36 86,58 76,88 44,98 12,88'],
    [6, 'curve 72,4 42,16 18,50 16,80 42,98 76,90 84,66 62,50 34,56 18,74'],
    [6, 'curve 50,2 24,34 14,70 34,97 68,94 80,72 62,56 34,62 22,80'],
    [7, 'line 12,6 88,4 42,98'],
    [7, 'line 12,6 86,5 40,98', 'line 34,50 80,48'],
    [7, 'curve 10,16 20,5 52,10 88,4 70,36 52,66 46,98'],
    [8, 'curve 76,12 46,2 20,18 32,40 68,56 82,78 52,98 18,80 34,56 70,34 74,10'],
    [8, 'curve 50,2 24,12 26,36 50,46 74,36 76,12 52,2 44,4', 'curve 50,46 20,60 18,86 50,98 82,86 80,60 52,46 44,48'],
    [9, 'curve 80,22 58,3 26,10 18,34 42,50 72,40 80,16 80,44 74,74 66,98'],
    [9, 'curve 78,20 54,2 22,14 20,38 46,50 74,38 78,20 72,10', 'curve 80,14 82,48 66,86 30,98'],
];

const point = (x, y) => [f(x / 100), f(y / 100)];
const strokes = way => way.slice(1).map(text => {
    const [kind, ...points] = String(text).split(' ');
    return { straight: kind === 'line', points: points.map(p => point(...p.split(',').map(Number))) };
});

/** Uniform in [-1, 1); the words of a block are taken from the last to the first. */
function pen(seed, index) {
    let taken = 0;
    return () => {
        const block = words(seed, stream.digit, Math.floor(taken / 4), index);
        return f(unit(block[3 - taken++ % 4]) * 2 - 1);
    };
}

/** Catmull-Rom between b and c at t. */
function along(a, b, c, d, t) {
    const linear = f(f(c - a) * t);
    const square = f(f(f(f(f(f(2 * a) - f(5 * b)) + f(4 * c)) - d) * t) * t);
    const cube = f(f(f(f(f(f(f(3 * b) - a) - f(3 * c)) + d) * t) * t) * t);
    return f(0.5 * f(f(f(f(2 * b) + linear) + square) + cube));
}

function segments({ straight, points }) {
    const result = [];
    for (let i = 0; i + 1 < points.length; i++) {
        const b = points[i], c = points[i + 1], a = points[i - 1] ?? b, d = points[i + 2] ?? c;
        const steps = straight ? 1 : STEPS;
        let from = b;
        for (let k = 1; k <= steps; k++) {
            const t = f(k / steps);
            const to = straight ? c : [0, 1].map(axis => along(a[axis], b[axis], c[axis], d[axis], t));
            result.push([from, to]);
            from = to;
        }
    }
    return result;
}

function squaredDistance([[x0, y0], [x1, y1]], x, y) {
    const dx = f(x1 - x0), dy = f(y1 - y0), px = f(x - x0), py = f(y - y0);
    const length = f(f(dx * dx) + f(dy * dy));
    const t = length > 0 ? Math.min(1, Math.max(0, f(f(f(px * dx) + f(py * dy)) / length))) : 0;
    const qx = f(px - f(t * dx)), qy = f(py - f(t * dy));
    return f(f(qx * qx) + f(qy * qy));
}

/**
 * The 28 x 28 picture of a digit.
 * @param {number} seed
 * @param {number} index
 * @param {number} digit
 * @returns {import('./pixels.mjs').Picture}
 */
export function digit(seed, index, digit) {
    const draw = pen(seed, index);
    const its = ways.filter(way => way[0] === digit);
    const way = strokes(its[Math.trunc(f(f(f(draw() + 1) * 0.5) * its.length))]);
    const turn = f(draw() * f(0.20)), slant = f(f(draw() * f(0.28)) - f(0.06));
    const wide = f(12.5 + f(draw() * 3.5)), tall = f(18.5 + f(draw() * 2));
    const radius = f(f(1.15) + f(draw() * f(0.55))), ink = f(232 + f(draw() * 23));
    let dx = f(draw() * f(1.6)), dy = f(draw() * f(1.6));
    const cosine = f(Math.cos(turn)), sine = f(Math.sin(turn));
    const pieces = way.flatMap(stroke => segments({
        straight: stroke.straight,
        points: stroke.points.map(([px, py]) => {
            let x = f(f(px - 0.5) + f(draw() * f(0.055))), y = f(f(py - 0.5) + f(draw() * f(0.055)));
            x = f(f(x - f(slant * y)) * wide);
            y = f(y * tall);
            return [f(f(cosine * x) - f(sine * y)), f(f(sine * x) + f(cosine * y))];
        }),
    }));
    // The middle of the box around it goes to the middle of the picture, moved by (dx, dy).
    const middle = axis => {
        const at = pieces.flat().map(p => p[axis]);
        return f(f(Math.min(...at) + Math.max(...at)) * 0.5);
    };
    dx = f(dx + f(13.5 - middle(0)));
    dy = f(dy + f(13.5 - middle(1)));
    const reach = f(radius + 0.75), data = new Uint8Array(SIDE * SIDE);
    for (let y = 0; y < SIDE; y++)
        for (let x = 0; x < SIDE; x++) {
            const best = Math.min(...pieces.map(piece => squaredDistance(piece, f(x - dx), f(y - dy))));
            const cover = best >= f(reach * reach) ? 0 : f(f(reach - f(Math.sqrt(best))) / f(1.3));
            const value = f(ink * Math.min(1, cover)), low = Math.floor(value);
            data[y * SIDE + x] = value - low > 0.5 || (value - low === 0.5 && low % 2) ? low + 1 : low;
        }
    return { height: SIDE, width: SIDE, channels: 1, data };
}

/** Numbers of the validation digits begin here: no training digit is among them. */
const VALIDATION = 2 ** 32;

/**
 * Training digits, then validation digits; the labels go round.
 * @param {number[]} counts
 * @param {number} seed
 * @returns {import('./files.mjs').ImageSet}
 */
export function digitSet(counts, seed) {
    const parts = counts.map((count, part) => Array.from({ length: count }, (_, i) => ({ at: part * VALIDATION + i, label: i % 10 })));
    const all = parts.flat();
    return {
        picture: i => digit(seed, all[i].at, all[i].label), labels: all.map(item => item.label), given: counts,
        classes: 10, names: null, mean: [0.1307], std: [0.3081],
    };
}
