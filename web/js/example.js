// The job that the first minute begins with: small enough to end within half a minute on one processor, and its model reads
// digits that one draws.

export const example = {
    name: 'digits cubic', model: { preset: 'vit_micro', patch: 7 }, attention: { activation: 'poly', degree: 3, scale: 'learned' },
    data: { dataset: 'digits_gen', augment: { crop: 'pad_crop', pad_crop: { shift: 2 } } }, train: { epochs: 24, init: 'trunc_xavier', optimizer: { lr: 0.003 } }, register: 'digits-cubic',
};

/** A document as people write it: an object a line, short ones in one. @param {unknown} value */
export const pretty = value => JSON.stringify(value, null, 2).replace(/\[\s+([^[\]{}]*?)\s+\]/g, (_, inner) => `[${inner.replace(/\s*\n\s*/g, ' ')}]`);

/** @param {unknown} document */
export const curlOf = document => `curl ${location.origin}/api/v1/jobs -H 'Content-Type: application/json' -d '${pretty(document)}'`;
