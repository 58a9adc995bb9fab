// Commands to jobs: submit, try, change, cancel.
import { json } from './api.js';

/** @param {string} id */
export const cancelJob = id => json(`/api/v1/jobs/${encodeURIComponent(id)}/cancel`, { method: 'POST', body: {} });

/**
 * Checks, plans and places a job without keeping it.
 * @param {string} text the document
 * @param {AbortSignal} signal
 */
export const tryJob = (text, signal) => json('/api/v1/jobs?dry_run=1', { method: 'POST', raw: text, headers: { 'Content-Type': 'application/json' }, signal });

/**
 * @param {string} text the document
 * @param {string} key sent again with a repeated attempt, so that one job comes of it
 */
export const submitJob = (text, key) => json('/api/v1/jobs', { method: 'POST', raw: text, headers: { 'Content-Type': 'application/json', 'Idempotency-Key': key } });

/**
 * Changes name, tags, notes or priority; the version guards against concurrent changes.
 * @param {string} id
 * @param {number} version
 * @param {Record<string, unknown>} patch
 */
export const changeJob = (id, version, patch) => json(`/api/v1/jobs/${encodeURIComponent(id)}`, { method: 'PATCH', body: patch, headers: { 'If-Match': `"${version}"` } });
