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
 * The same with what the first step will measure, which takes seconds.
 * @param {string} text the document
 * @param {AbortSignal} signal
 */
export const tryStart = (text, signal) => json('/api/v1/jobs?dry_run=1&start=1', { method: 'POST', raw: text, headers: { 'Content-Type': 'application/json' }, signal });

/**
 * What a formula of attention is, or an error with its characters.
 * @param {Record<string, unknown>} body
 * @param {AbortSignal} signal
 */
export const checkFormula = (body, signal) => json('/api/v1/formulas/check', { method: 'POST', body, signal });

/** Published formulas. @param {AbortSignal} signal */
export const listFormulas = async signal => (await json('/api/v1/formulas', { signal })).formulas;

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
