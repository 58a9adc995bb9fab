// The part of a resolved document that data follow from, with the defaults written once more from the documented table
// (GET /api/v1/fields): one that goes astray in the daemon is noticed.

const texts = ['text', 'ptb', 'wikitext2', 'wikitext103', 'openwebtext', 'pg19', 'text_labels', 'text_gen', 'listops_gen', 'pathfinder_gen', 'aan'];
const sides = { mnist: 28, digits_gen: 28, cifar10: 32, tiny_imagenet: 64, imagenet1k: 224, image_folder: 224 };

/** Dashes of a curve of Pathfinder by the pixels of its square picture; a context that is no square counts as 32 x 32. @param {number} context */
function dashes(context) {
    const side = Number.isInteger(Math.sqrt(context)) ? Math.sqrt(context) : 32;
    return side > 16 ? side / 4 + 4 : 4;
}

/**
 * @param {any} job a job document without sweep, in which data.dataset, and data.path if it has one, are named
 * @returns {{data: any, train: {batch: number, seed: number, steps: number | null, epochs: number | null}}}
 */
export function resolved({ data, model = {}, train = {}, resources = {} }) {
    const isText = texts.includes(data.dataset), { augment = {} } = data;
    const tokenizer = data.tokenizer ?? 'bytes';
    return {
        data: {
            dataset: data.dataset, path: data.path ?? null,
            split: { rule: data.split?.rule ?? 'standard', train: data.split?.train ?? null, val: data.split?.val ?? null, test: data.split?.test ?? null },
            split_seed: data.split_seed === undefined ? 0 : data.split_seed,
            image_size: isText ? null : data.image_size ?? sides[data.dataset],
            context: isText ? data.context ?? model.context ?? 256 : null,
            depth: data.depth ?? 3, min_tokens: data.min_tokens ?? 1, contour: data.contour ?? dashes(data.context ?? (isText ? model.context : null) ?? 256),
            eval: (data.eval ?? []).map(entry => {
                const { dataset, path, name } = typeof entry === 'string' ? { dataset: entry } : entry;
                return { dataset, name: name ?? dataset, path: path ?? (dataset === 'text_gen' ? null : dataset) };
            }),
            tokenizer, tokenizer_path: data.tokenizer_path ?? (tokenizer === 'gpt2_bpe' ? `${data.path.split('/')[0]}/gpt2-bpe` : null),
            augment: {
                crop: augment.crop ?? 'none', pad_crop: { shift: augment.pad_crop?.shift ?? 4 },
                rrc: { scale: augment.rrc?.scale ?? [0.08, 1], ratio: augment.rrc?.ratio ?? [0.75, 1.3333] },
                flip: augment.flip ?? 0, eval_crop: augment.eval_crop ?? 1, interpolation: augment.interpolation ?? 'bicubic',
                randaugment: augment.randaugment ? { n: 2, m: 9, std: 0.5, inc: true, ...augment.randaugment } : null, erasing: augment.erasing ?? 0, repeats: augment.repeats ?? 1,
                mixup: augment.mixup ?? 0, cutmix: augment.cutmix ?? 0, mix_prob: augment.mix_prob ?? 1, switch_prob: augment.switch_prob ?? 0.5,
                mix_group: augment.mixup > 0 || augment.cutmix > 0 ? augment.mix_group ?? (train.batch ?? 64) / ((resources.slots ?? 1) * (train.accumulation ?? 1)) : null,
            },
        },
        train: { batch: train.batch ?? 64, seed: train.seed ?? 0, steps: train.steps ?? null, epochs: train.epochs ?? null },
    };
}
