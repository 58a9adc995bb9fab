// Pictures as bytes: Pillow's resampling, torchvision's crops, timm's evaluation transform, normalising.
// A picture is {height, width, channels, data}, rows of pixels of `channels` bytes.
import { randAugment } from './recipe.mjs';

/** @typedef {{height: number, width: number, channels: number, data: Uint8Array}} Picture */
/** @typedef {{top: number, left: number, height: number, width: number}} Box */
/** @typedef {'bicubic' | 'bilinear'} Filter */

/** Python's round(): halves go to the even number. */
function round(x) {
    const low = Math.floor(x), part = x - low;
    return part > 0.5 || (part === 0.5 && low % 2) ? low + 1 : low;
}

/* ---- resampling: Pillow's Resample.c ---- */

const filters = {
    bilinear: { support: 1, at: x => Math.max(0, 1 - Math.abs(x)) },
    bicubic: {
        support: 2,
        at: x => { // Keys' cubic with a = -1/2
            x = Math.abs(x);
            return x < 1 ? 1.5 * x ** 3 - 2.5 * x ** 2 + 1 : x < 2 ? -0.5 * x ** 3 + 2.5 * x ** 2 - 4 * x + 2 : 0;
        },
    },
};

/** First source place and integer weights (22 bits of fraction) of each place of the result. */
function weights(filter, from, to) {
    const { support, at } = filters[filter];
    const scale = from / to, wide = Math.max(scale, 1), reach = support * wide;
    return Array.from({ length: to }, (_, i) => {
        const centre = (i + 0.5) * scale;
        const first = Math.max(0, Math.trunc(centre - reach + 0.5)), last = Math.min(from, Math.trunc(centre + reach + 0.5));
        const exact = Array.from({ length: last - first }, (_, k) => at((first + k - centre + 0.5) / wide));
        const sum = exact.reduce((a, b) => a + b, 0);
        return { first, weight: exact.map(w => Math.trunc(w / sum * 2 ** 22 + (w < 0 ? -0.5 : 0.5))) };
    });
}

const toByte = sum => Math.min(255, Math.max(0, Math.floor((sum + 2 ** 21) / 2 ** 22)));

/** One pass along an axis; a side that does not change is left as it is. */
function pass(picture, filter, to, across) {
    const { height, width, channels, data } = picture;
    if (to === (across ? width : height))
        return picture;
    const out = across ? { height, width: to, channels } : { height: to, width, channels };
    const table = weights(filter, across ? width : height, to);
    const result = new Uint8Array(out.height * out.width * channels);
    for (let y = 0; y < out.height; y++)
        for (let x = 0; x < out.width; x++) {
            const { first, weight } = table[across ? x : y];
            for (let c = 0; c < channels; c++) {
                let sum = 0;
                weight.forEach((w, k) => {
                    const place = across ? y * width + first + k : (first + k) * width + x;
                    sum += w * data[place * channels + c];
                });
                result[(y * out.width + x) * channels + c] = toByte(sum);
            }
        }
    return { ...out, data: result };
}

/**
 * @param {Picture} picture
 * @param {Box} box
 * @returns {Picture}
 */
export function crop(picture, box) {
    const { width, channels, data } = picture;
    const result = new Uint8Array(box.height * box.width * channels);
    for (let y = 0; y < box.height; y++) {
        const from = ((box.top + y) * width + box.left) * channels;
        result.set(data.subarray(from, from + box.width * channels), y * box.width * channels);
    }
    return { height: box.height, width: box.width, channels, data: result };
}

/**
 * Across first, then down, each pass rounded to bytes.
 * @param {Picture} picture
 * @param {Filter} filter
 * @param {number} height
 * @param {number} width
 */
export const resize = (picture, filter, height, width) => pass(pass(picture, filter, width, true), filter, height, false);

/* ---- torchvision and timm ---- */

/**
 * Torchvision's RandomResizedCrop.get_params from uniform draws.
 * @param {() => number} next
 * @param {number} height
 * @param {number} width
 * @param {number[]} scale
 * @param {number[]} ratio
 * @returns {Box}
 */
export function resizedCropBox(next, height, width, scale, ratio) {
    const uniform = (low, high) => low + (high - low) * next();
    for (let attempt = 0; attempt < 10; attempt++) {
        const area = height * width * uniform(scale[0], scale[1]);
        const shape = Math.exp(uniform(Math.log(ratio[0]), Math.log(ratio[1])));
        const w = round(Math.sqrt(area * shape)), h = round(Math.sqrt(area / shape));
        if (w > 0 && w <= width && h > 0 && h <= height) {
            const top = Math.floor(next() * (height - h + 1)), left = Math.floor(next() * (width - w + 1));
            return { top, left, height: h, width: w };
        }
    }
    let h = height, w = width;
    if (width / height < ratio[0])
        h = round(width / ratio[0]);
    else if (width / height > ratio[1])
        w = round(height * ratio[1]);
    return { top: Math.floor((height - h) / 2), left: Math.floor((width - w) / 2), height: h, width: w };
}

/**
 * The evaluation transform: resized to cover the network's size divided by `share`, then the middle.
 * @param {Picture} picture
 * @param {{size: number[], share: number, filter: Filter}} fit size: rows, columns
 */
export function fit(picture, { size: [rows, columns], share, filter }) {
    let height = Math.floor(rows / share), width = Math.floor(columns / share);
    if (height / picture.height >= width / picture.width)
        width = Math.floor(height * picture.width / picture.height);
    else
        height = Math.floor(width * picture.height / picture.width);
    const whole = resize(picture, filter, height, width);
    return crop(whole, { top: round((height - rows) / 2), left: round((width - columns) / 2), height: rows, width: columns });
}

/**
 * A border of zeros `shift` wide, then a crop of the old size that begins (dy, dx) from where the picture does.
 * @param {Picture} picture
 */
export function shifted(picture, dy, dx) {
    const { height, width, channels, data } = picture;
    const result = new Uint8Array(data.length);
    for (let y = 0; y < height; y++)
        for (let x = 0; x < width; x++) {
            const fromY = y + dy, fromX = x + dx;
            if (fromY >= 0 && fromY < height && fromX >= 0 && fromX < width)
                for (let c = 0; c < channels; c++)
                    result[(y * width + x) * channels + c] = data[(fromY * width + fromX) * channels + c];
        }
    return { height, width, channels, data: result };
}

/** @param {Picture} picture */
export function mirrored(picture) {
    const { height, width, channels, data } = picture;
    return {
        height, width, channels,
        data: data.map((_, i) => {
            const pixel = Math.floor(i / channels), x = pixel % width;
            return data[(pixel - x + width - 1 - x) * channels + i % channels];
        }),
    };
}

/**
 * (byte / 255 - mean) / std of each channel, channels first. The network is fed 32-bit numbers in every precision: each
 * operation rounds to them.
 * @param {Picture} picture
 * @param {number[]} mean
 * @param {number[]} std
 */
export function normalised(picture, mean, std) {
    const { height, width, channels, data } = picture, f = Math.fround;
    const result = new Float64Array(data.length);
    for (let c = 0; c < channels; c++)
        for (let i = 0; i < height * width; i++)
            result[c * height * width + i] = f(f(f(data[i * channels + c] / 255) - f(mean[c])) / f(std[c]));
    return result;
}

/**
 * A training picture: the crop that the document names, then perhaps a flip. Draws are taken in that order: rrc area and
 * log ratio for each try, then top and left; pad_crop rows, columns; then the flip's, if one may come; then those of
 * RandAugment.
 * @param {Picture} picture
 * @param {any} augment data.augment of the resolved document
 * @param {number[]} size rows, columns
 * @param {{next(): number}} draws
 */
export function trainingPicture(picture, augment, size, draws, mean) {
    const next = () => draws.next();
    const filter = augment.interpolation;
    let out;
    if (augment.crop === 'rrc') {
        const box = resizedCropBox(next, picture.height, picture.width, augment.rrc.scale, augment.rrc.ratio);
        out = resize(crop(picture, box), filter, size[0], size[1]);
    } else if (augment.crop === 'pad_crop') {
        const { shift } = augment.pad_crop;
        out = fit(picture, { size, share: 1, filter });
        if (shift) {
            const dy = Math.floor(next() * (2 * shift + 1)) - shift, dx = Math.floor(next() * (2 * shift + 1)) - shift;
            out = shifted(out, dy, dx);
        }
    } else {
        out = fit(picture, { size, share: augment.eval_crop, filter });
    }
    if (augment.flip > 0 && next() < augment.flip)
        out = mirrored(out);
    return augment.randaugment ? randAugment(out, augment.randaugment, filter, mean, next) : out;
}

/**
 * What validation and serving read.
 * @param {Picture} picture
 * @param {any} augment
 * @param {number[]} size
 */
export const evaluationPicture = (picture, augment, size) =>
    fit(picture, { size, share: augment.eval_crop, filter: augment.interpolation });
