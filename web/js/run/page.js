// What the parts of a run's page share. The page fills it in; a part only reads, and asks for another part by openTab.

/**
 * @typedef {object} Page
 * @property {string} id
 * @property {import('../types').ViewContext} context
 * @property {AbortSignal} signal aborted when the page is left
 * @property {HTMLElement} place where the open part draws
 * @property {import('../types').Run | null} run
 * @property {{id: string, version: number, notes: string, state: string, document: Record<string, any>, runs: number} | null} job
 * @property {Record<string, any>} resolved the run's complete document
 * @property {string} digest
 * @property {{data: string | null, dataOf: string | null, program: string | null} | null} inputs what it was computed from, as its worker reported
 * @property {{text: string, fields: Record<string, string>} | null} begun what its parameters took of the weights that it began with
 * @property {import('../types').Attempt[]} attempts
 * @property {import('../types').Series[]} series
 * @property {(checkpoint?: string) => Promise<void>} register asks for a name and registers the model
 * @property {(steps: number[]) => Promise<void>} average asks for a name and registers the mean of these checkpoints
 * @property {(tab: string) => void} openTab
 * @property {() => void} again redraws the open part
 */

/** @typedef {{refresh: () => void | Promise<void>}} Part */

export {};
