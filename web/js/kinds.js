// Kinds of jobs: what the page offers for their runs. A kind without a row is shown as what it is called.

/**
 * @typedef {object} Kind
 * @property {boolean} worker polyd carries its runs out
 * @property {boolean} curves its numbers change over the steps; else they are the result of the run
 * @property {boolean} saves its runs write checkpoints
 * @property {string} step what its progress counts
 * @property {boolean} settings the common settings (quick.js) are settings of its document
 * @property {string} tag shown next to the number of a run
 * @property {string} text
 */

/** @type {Record<string, Kind>} */
const kinds = {
    train: { worker: true, curves: true, saves: true, step: 'Step', settings: true, tag: '', text: '' },
    evaluate: { worker: true, curves: false, saves: false, step: 'Batch', settings: false, tag: 'evaluate', text: 'Evaluates one checkpoint on a data set.' },
    check: { worker: true, curves: false, saves: false, step: 'Part', settings: false, tag: 'check', text: 'Verifies a statement of the theory.' },
    external: { worker: false, curves: true, saves: false, step: 'Step', settings: false, tag: 'external', text: 'External run: your own program executes it and reports over HTTP. It takes no device and does not wait in the queue.' },
};

/**
 * @param {{kind: string}} run
 * @returns {Kind}
 */
export const kindOf = run => kinds[run.kind] ?? { worker: true, curves: true, saves: true, step: 'Step', settings: false, tag: run.kind, text: '' };
