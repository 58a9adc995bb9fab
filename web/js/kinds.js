// Kinds of jobs: whether polyd carries their runs out decides what the page offers.

/** @type {Record<string, {worker: boolean, tag: string, text: string}>} */
const kinds = {
    train: { worker: true, tag: '', text: '' },
    external: { worker: false, tag: 'external', text: 'A program of its own carries this run out and reports over HTTP: it takes no device and does not wait.' },
};

/** @param {{kind: string}} run */
export const kindOf = run => kinds[run.kind] ?? kinds.train;
