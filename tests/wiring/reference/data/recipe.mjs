// The heavier augmentation, written from its papers (RandAugment: Cubuk et al. 2020; mixup: Zhang et al. 2018; cutmix: Yun et
// al. 2019; random erasing: Zhong et al. 2020) and from what Pillow's documentation and timm's options say of each operation.
import { stream, words } from '../philox.mjs';
import { unit } from './draws.mjs';

const clip = x => x <= 0 ? 0 : x >= 255 ? 255 : Math.trunc(x);

/** Numbers of a stream from one place on, one after the other. */
function numbers(seed, purpose, epoch, position) {
    let n = 0;
    return () => unit(words(seed, purpose, epoch, position + Math.floor(n / 4) * 2 ** 40)[n++ % 4]);
}

export const normal = next => {
    const radius = Math.sqrt(-2 * Math.log(1 - next()));
    return radius * Math.cos(2 * Math.PI * next());
};

/* ---- RandAugment ---- */

const luma = (picture, i) => picture.channels === 1 ? picture.data[i]
    : (19595 * picture.data[i] + 38470 * picture.data[i + 1] + 7471 * picture.data[i + 2] + 32768) >> 16;

const bytes = (picture, f) => ({ ...picture, data: picture.data.map((value, i) => f(value, i % picture.channels, i)) });

function histograms({ data, channels }) {
    const all = Array.from({ length: channels }, () => new Array(256).fill(0));
    data.forEach((value, i) => all[i % channels][value]++);
    return all;
}

function autoContrast(picture) {
    const ends = histograms(picture).map(h => [h.findIndex(n => n > 0), h.findLastIndex(n => n > 0)]);
    return bytes(picture, (value, c) => {
        const [low, high] = ends[c], scale = 255 / (high - low);
        return high > low ? clip(value * scale - low * scale) : value;
    });
}

function equalize(picture) {
    const tables = histograms(picture).map(h => {
        const used = h.filter(n => n > 0), step = Math.floor((picture.data.length / picture.channels - used.at(-1)) / 255);
        let before = Math.floor(step / 2);
        return h.map((n, i) => {
            const to = step ? Math.min(255, Math.floor(before / step)) : i;
            before += n;
            return to;
        });
    });
    return bytes(picture, (value, c) => tables[c][value]);
}

/** A blend of each byte with that of a plainer picture, in single precision. */
const blend = (picture, plain, factor) => bytes(picture, (value, c, i) => {
    const other = plain(i - c, c), f = Math.fround;
    return clip(f(other + f(f(factor) * (value - other))));
});

function smoothed({ data, height, width, channels }, at, c) {
    const pixel = at / channels, y = Math.floor(pixel / width), x = pixel % width;
    if (y === 0 || x === 0 || y === height - 1 || x === width - 1)
        return data[at + c];
    let sum = 4 * data[at + c];
    for (const dy of [-1, 0, 1])
        for (const dx of [-1, 0, 1])
            sum += data[((y + dy) * width + x + dx) * channels + c];
    return Math.round(sum / 13);
}

/**
 * Each pixel's middle comes from m[0] x + m[1] y + m[2], m[3] x + m[4] y + m[5]; outside there is the fill colour. Results
 * are cut off, not rounded, so the order of operations is Pillow's: along the row first.
 */
function moved(picture, m, filter, fill) {
    const { data, height, width, channels } = picture, result = new Uint8Array(data.length);
    const inside = (at, extent) => Math.min(Math.max(at, 0), extent - 1);
    const between = filter === 'bilinear' ? ([, a, b], d) => a + (b - a) * d
        : ([a, b, c, e], d) => b + d * (-a + c + d * (2 * (a - b) + c - e + d * (-a + b - c + e)));
    for (let y = 0; y < height; y++)
        for (let x = 0; x < width; x++) {
            const fx = m[0] * (x + 0.5) + m[1] * (y + 0.5) + m[2], fy = m[3] * (x + 0.5) + m[4] * (y + 0.5) + m[5];
            const ix = Math.floor(fx - 0.5), iy = Math.floor(fy - 0.5);
            for (let c = 0; c < channels; c++) {
                const row = j => between([-1, 0, 1, 2].map(i => data[(inside(iy + j, height) * width + inside(ix + i, width)) * channels + c]), fx - 0.5 - ix);
                result[(y * width + x) * channels + c] = fx >= 0 && fx < width && fy >= 0 && fy < height
                    ? clip(between([-1, 0, 1, 2].map(row), fy - 0.5 - iy)) : fill[c];
            }
        }
    return { ...picture, data: result };
}

/** Pillow rounds sines and cosines to 15 digits. */
function turned(picture, degrees, filter, fill) {
    if (degrees === 0)
        return picture;
    const a = -((degrees + 360) % 360) * Math.PI / 180, cx = picture.width / 2, cy = picture.height / 2;
    const [cos, sin] = [Math.cos(a), Math.sin(a)].map(x => Math.round(x * 1e15) / 1e15);
    return moved(picture, [cos, sin, cos * -cx + sin * -cy + cx, -sin, cos, -sin * -cx + cos * -cy + cy], filter, fill);
}

/** The fifteen operations in timm's order; share: of the greatest level; way: 1 or -1. */
const operations = [
    picture => autoContrast(picture),
    picture => equalize(picture),
    picture => bytes(picture, value => 255 - value),
    (picture, { share, way, filter, fill }) => turned(picture, way * share * 30, filter, fill),
    (picture, { share, inc }) => {
        const dropped = inc ? 4 + Math.floor(4 * share) : 8 - Math.floor(4 * share);
        return bytes(picture, value => value >> dropped << dropped);
    },
    (picture, { share, inc }) => {
        const from = inc ? 256 - Math.floor(256 * share) : Math.floor(256 * share);
        return bytes(picture, value => value < from ? value : 255 - value);
    },
    (picture, { share }) => bytes(picture, value => value < 128 ? Math.min(255, value + Math.min(128, Math.floor(110 * share))) : value),
    (picture, { factor }) => blend(picture, at => luma(picture, at), factor),
    (picture, { factor }) => {
        const pixels = picture.data.length / picture.channels;
        let sum = 0;
        for (let i = 0; i < pixels; i++)
            sum += luma(picture, i * picture.channels);
        return blend(picture, () => Math.floor(sum / pixels + 0.5), factor);
    },
    (picture, { factor }) => blend(picture, () => 0, factor),
    (picture, { factor }) => blend(picture, (at, c) => smoothed(picture, at, c), factor),
    (picture, { share, way, filter, fill }) => moved(picture, [1, way * share * 0.3, 0, 0, 1, 0], filter, fill),
    (picture, { share, way, filter, fill }) => moved(picture, [1, 0, 0, way * share * 0.3, 1, 0], filter, fill),
    (picture, { share, way, filter, fill }) => moved(picture, [1, 0, way * share * 0.45 * picture.width, 0, 1, 0], filter, fill),
    (picture, { share, way, filter, fill }) => moved(picture, [1, 0, 0, 0, 1, way * share * 0.45 * picture.height], filter, fill),
];

/** n operations; each draws which it is, whether it is applied, a normal number for the level, and its way. */
export function randAugment(picture, { n, m, std, inc }, filter, mean, next) {
    const fill = mean.map(x => Math.round(255 * x));
    for (let k = 0; k < n; k++) {
        const which = Math.floor(next() * operations.length), applied = next() < 0.5;
        const share = Math.min(Math.max(m + std * normal(next), 0), 10) / 10, way = next() < 0.5 ? 1 : -1;
        const factor = inc ? Math.max(0.1, 1 + way * 0.9 * share) : 0.1 + 1.8 * share;
        if (applied)
            picture = operations[which](picture, { share, way, inc, factor, filter, fill });
    }
    return picture;
}

/* ---- erasing ---- */

/** A rectangle of normalised input (channels first) becomes normal noise. */
export function erase(input, [height, width], probability, next) {
    if (next() > probability)
        return;
    for (let tries = 0; tries < 10; tries++) {
        const area = (0.02 + (1 / 3 - 0.02) * next()) * height * width, ratio = 0.3 * (1 / 0.3 / 0.3) ** next();
        const h = Math.round(Math.sqrt(area * ratio)), w = Math.round(Math.sqrt(area / ratio));
        if (h >= height || w >= width)
            continue;
        const top = Math.floor(next() * (height - h + 1)), left = Math.floor(next() * (width - w + 1));
        for (let c = 0; c < input.length / (height * width); c++)
            for (let y = top; y < top + h; y++)
                for (let x = left; x < left + w; x++)
                    input[(c * height + y) * width + x] = Math.fround(normal(next));
        return;
    }
}

/* ---- mixing ---- */

/** Marsaglia and Tsang (2000); below 1 by way of alpha + 1. */
function gamma(alpha, next) {
    const boost = alpha < 1 ? (1 - next()) ** (1 / alpha) : 1, d = (alpha < 1 ? alpha + 1 : alpha) - 1 / 3;
    for (;;) {
        const x = normal(next), u = 1 - next(), v = (1 + x / Math.sqrt(9 * d)) ** 3;
        if (v > 0 && Math.log(u) < x * x / 2 + d - d * v + d * Math.log(v))
            return boost * d * v;
    }
}

function beta(alpha, next) {
    const x = gamma(alpha, next), y = gamma(alpha, next);
    return x / (x + y);
}

/** What a group of pictures draws: the share of the own label, and how pixels are mixed. */
function mixOf(augment, [height, width], next) {
    const f = Math.fround, { mixup, cutmix } = augment;
    const whole = { top: 0, bottom: height, left: 0, right: width };
    if (!(next() < augment.mix_prob))
        return { share: 1, weight: 0, ...whole };
    const cut = cutmix > 0 && (!(mixup > 0) || next() < augment.switch_prob), share = beta(cut ? cutmix : mixup, next);
    if (!cut)
        return { share: f(share), weight: f(1 - share), ...whole };
    const side = Math.sqrt(1 - share), h = Math.floor(Math.floor(height * side) / 2), w = Math.floor(Math.floor(width * side) / 2);
    const y = Math.floor(next() * height), x = Math.floor(next() * width), inside = (at, extent) => Math.min(Math.max(at, 0), extent);
    const box = { top: inside(y - h, height), bottom: inside(y + h, height), left: inside(x - w, width), right: inside(x + w, width) };
    return { share: f(1 - (box.bottom - box.top) * (box.right - box.left) / (height * width)), weight: 1, ...box };
}

/** The samples of a batch, group by group mixed with those at the mirrored places; `places` are theirs in the epoch. */
export function mixed(samples, places, augment, size, seed) {
    const group = augment.mix_group, [height, width] = size;
    return samples.map((sample, i) => {
        const first = i - i % group, partner = samples[first + group - 1 - i % group];
        const m = mixOf(augment, size, numbers(seed, stream.mix, places[i].epoch, places[first].position));
        const input = sample.input.map((own, at) => {
            const y = Math.floor(at / width) % height, x = at % width;
            const weight = y >= m.top && y < m.bottom && x >= m.left && x < m.right ? m.weight : 0;
            return own * (1 - weight) + partner.input[at] * weight;
        });
        return { ...sample, input, share: m.share, other: partner.target };
    });
}
