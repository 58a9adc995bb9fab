// The public API as the page sees it: one function a call, and the replies' names turned into ours in one place.

import { shownReason, toNumber } from './format.js';
import { readEvents } from './sse.js';

/** @typedef {import('./types').Run} Run */

export class ApiError extends Error {
    /**
     * @param {number} status
     * @param {string} text
     * @param {string} [code]
     * @param {{pointer?: string, detail: string}[]} [errors]
     */
    constructor(status, text, code = '', errors = []) {
        super(text);
        this.name = 'ApiError';
        this.status = status;
        this.code = code;
        this.errors = errors;
    }
}

/**
 * The answer to a request that js/first.js made before the modules were there. It is taken once.
 * @param {string} path
 * @param {string} [method]
 */
function taken(path, method = 'GET') {
    /** @type {Map<string, Promise<Response>> | undefined} */
    const early = /** @type {any} */ (globalThis).early;
    const answer = method === 'GET' ? early?.get(path) : undefined;
    early?.delete(path);
    return answer;
}

/**
 * @param {string} path
 * @param {{method?: string, body?: unknown, signal?: AbortSignal, headers?: Record<string, string>, raw?: BodyInit}} [options]
 * @returns {Promise<Response>}
 */
export async function request(path, options = {}) {
    /** @type {Record<string, string>} */
    const headers = { ...options.headers };
    let body = options.raw;
    if (options.body !== undefined) {
        headers['Content-Type'] = 'application/json';
        body = JSON.stringify(options.body);
    }
    let response;
    try {
        response = await (taken(path, options.method) ?? fetch(path, { method: options.method ?? 'GET', headers, body, signal: options.signal ?? null }));
    } catch (error) {
        if (error instanceof DOMException && error.name === 'AbortError')
            throw error;
        throw new ApiError(0, 'polyd does not respond. Is it still running?', 'unreachable');
    }
    if (response.ok)
        return response;
    throw await toError(response);
}

/** @param {Response} response */
async function toError(response) {
    let text = `${response.status} ${response.statusText}`.trim();
    let code = '';
    let errors = [];
    try {
        const problem = await response.json();
        if (typeof problem.error === 'string') {
            text = problem.error;
        } else {
            text = problem.error?.message ?? problem.detail ?? problem.title ?? text;
            code = problem.error?.code ?? '';
        }
        if (Array.isArray(problem.errors))
            errors = problem.errors;
    } catch { /* a body that is no JSON says nothing more */ }
    const wait = response.headers.get('Retry-After');
    if (wait && (response.status === 429 || response.status === 503))
        text += ` (try again in ${wait} s)`;
    return new ApiError(response.status, text, code, errors);
}

/**
 * @param {string} path
 * @param {Parameters<typeof request>[1]} [options]
 * @returns {Promise<any>}
 */
export async function json(path, options) {
    const response = await request(path, options);
    const text = await response.text();
    return text ? JSON.parse(text) : {};
}

/** @param {unknown} error */
export const isAbort = error => error instanceof DOMException && error.name === 'AbortError';

/** @param {Record<string, string | number | null | undefined>} values */
export function query(values) {
    const search = new URLSearchParams();
    for (const [key, value] of Object.entries(values))
        if (value !== null && value !== undefined && value !== '')
            search.set(key, String(value));
    const text = search.toString();
    return text ? `?${text}` : '';
}

/**
 * @param {any} raw
 * @returns {Run}
 */
export function toRun(raw) {
    /** @type {Record<string, number | null>} */
    const latest = {};
    for (const [key, value] of Object.entries(raw.latest ?? {}))
        latest[key] = toNumber(/** @type {import('./format.js').Value} */ (value));
    return {
        id: raw.id,
        jobId: raw.job_id,
        kind: raw.kind,
        index: raw.index,
        name: raw.name,
        experiment: raw.experiment,
        state: raw.state,
        outcome: raw.outcome,
        reason: shownReason(raw.queue?.reason || raw.reason),
        phase: raw.phase ?? '',
        step: raw.step,
        totalSteps: raw.total_steps,
        attempts: raw.attempts,
        // Of a run that waits the queue's reason is shown; that of the last attempt must not be lost behind it.
        failure: raw.state === 'queued' && raw.restarts > 0 ? shownReason(raw.reason) : '',
        mostAttempts: raw.attempts + Math.max(0, raw.max_restarts - raw.restarts) + (raw.state === 'queued' ? 1 : 0),
        created: raw.created,
        started: raw.started,
        ended: raw.ended,
        used: raw.attempts > 0 || raw.device === null ? raw.used_s : null,
        device: raw.device === null ? '' : `${raw.device}, ${raw.slots > 1 ? `${raw.slots} ranks of ` : ''}${raw.threads} thread${raw.threads === 1 ? '' : 's'}`,
        latest,
        position: raw.queue?.position ?? null,
        sweep: raw.sweep,
        tags: raw.tags ?? {},
        fields: raw.fields ?? {},
        priority: raw.priority,
        version: raw.version,
        archived: raw.archived ?? null,
        bytes: raw.bytes ?? null,
    };
}

/**
 * @param {{text?: string, state?: string, tag?: string, experiment?: string, job?: string, cursor?: string | null, limit?: number, order?: 'newest' | 'oldest',
 *     metrics?: string[], fields?: string[]}} options `state`: a state, an outcome, "active", or "archived" for what other lists leave out; `metrics`: latest values
 *     wanted; `fields`: pointers into the configuration
 * @param {AbortSignal} signal
 * @returns {Promise<{runs: Run[], next: string | null}>}
 */
export async function listRuns({ text, state, tag, experiment, job, cursor, limit, order, metrics = [], fields = [] }, signal) {
    const archived = state === 'archived' ? 'true' : null;
    const isOutcome = ['succeeded', 'diverged', 'failed', 'cancelled', 'lost'].includes(state ?? '');
    const search = new URLSearchParams(query({ text, tag, experiment, job, state: isOutcome || archived ? null : state, outcome: isOutcome ? state : null, archived, cursor, limit, order, brief: 1 }));
    for (const key of metrics)
        search.append('metric', key);
    for (const pointer of fields)
        search.append('field', pointer);
    const page = await json(`/api/v1/runs?${search}`, { signal });
    return { runs: page.runs.map(toRun), next: page.next ?? null };
}

/**
 * What a run of kind check has found; null: nothing yet.
 * @param {string} id
 * @param {AbortSignal} [signal]
 * @returns {Promise<{run_id: string, result: import('./run/check.js').Result | null}>}
 */
export const getCheck = (id, signal) => json(`/api/v1/runs/${encodeURIComponent(id)}/check`, { signal });

/**
 * @param {string} id
 * @param {AbortSignal} signal
 * @returns {Promise<{run: Run, document: Record<string, any>, attempts: import('./types').Attempt[], digest: string, inputs: import('./run/page.js').Page['inputs'], begun: import('./run/page.js').Page['begun']}>}
 */
export async function getRun(id, signal) {
    const raw = await json(`/api/v1/runs/${encodeURIComponent(id)}`, { signal });
    return {
        run: toRun(raw),
        document: raw.document,
        digest: raw.config_digest,
        begun: raw.started_from,
        inputs: { data: raw.data_digest, dataOf: raw.data_digest_of, program: raw.program_digest },
        attempts: raw.attempt_list.map((/** @type {any} */ a) => ({
            n: a.n, state: a.state, cause: a.cause, message: a.message, step: a.step, startStep: a.start_step,
            devices: a.devices, created: a.created, ended: a.ended,
        })),
    };
}

/**
 * @param {string} id
 * @param {AbortSignal} signal
 * @returns {Promise<{id: string, version: number, notes: string, state: string, document: Record<string, any>, runs: number, register: string | null}>}
 */
export async function getJob(id, signal) {
    const raw = await json(`/api/v1/jobs/${encodeURIComponent(id)}`, { signal });
    return { id: raw.id, version: raw.version, notes: raw.notes ?? '', state: raw.state, document: raw.document, runs: raw.runs.total, register: raw.register };
}

/**
 * @param {string} id
 * @param {AbortSignal} signal
 * @returns {Promise<import('./types').Series[]>}
 */
export async function listSeries(id, signal) {
    const series = [];
    for (let cursor = null; ;) {
        const raw = await json(`/api/v1/runs/${encodeURIComponent(id)}/metrics${query({ cursor })}`, { signal });
        series.push(...raw.series);
        cursor = raw.next;
        if (!cursor)
            break;
    }
    return series.map((/** @type {any} */ s) => ({
        key: s.key, count: s.count, step: s.step, value: toNumber(s.value),
    })).sort((a, b) => a.key < b.key ? -1 : 1);
}

/**
 * Charts of at most 64 keys a request; more are asked for in turn.
 * @param {string} id
 * @param {string[]} keys
 * @param {{buckets: number, from?: number | null, to?: number | null}} range
 * @param {AbortSignal} signal
 * @returns {Promise<import('./types').Curve[]>}
 */
export async function getCurves(id, keys, range, signal) {
    const curves = [];
    for (let i = 0; i < keys.length; i += 64) {
        const part = keys.slice(i, i + 64).map(key => `key=${encodeURIComponent(key)}`).join('&');
        const rest = query({ buckets: range.buckets, from_step: range.from, to_step: range.to }).slice(1);
        const raw = await json(`/api/v1/runs/${encodeURIComponent(id)}/series?${part}&${rest}`, { signal });
        curves.push(...raw.series.map(toCurve));
    }
    return curves;
}

/**
 * @param {any} raw
 * @returns {import('./types').Curve}
 */
function toCurve(raw) {
    return {
        key: raw.key,
        points: raw.points,
        buckets: raw.data.map((/** @type {any} */ b) => ({
            first: b.first_step, last: b.last_step, time: (Date.parse(b.first_time) + Date.parse(b.last_time)) / 2000,
            min: toNumber(b.min), max: toNumber(b.max), mean: toNumber(b.mean), count: b.count, nonfinite: b.nonfinite,
        })),
    };
}

/**
 * A part of an attempt's log: its last lines, or what follows an offset.
 * @param {string} id
 * @param {{tail?: number, offset?: number, attempt?: number | null}} part
 * @param {AbortSignal} signal
 */
export async function getLog(id, part, signal) {
    const response = await request(`/api/v1/runs/${encodeURIComponent(id)}/logs${query(part)}`, { signal });
    const text = await response.text();
    return { text, next: Number(response.headers.get('X-Log-Next') ?? 0), start: Number(response.headers.get('X-Log-Offset') ?? 0) };
}

/**
 * @param {string} id
 * @param {AbortSignal} signal
 * @returns {Promise<import('./types').Checkpoint[]>}
 */
export async function listCheckpoints(id, signal) {
    const raw = await json(`/api/v1/runs/${encodeURIComponent(id)}/checkpoints`, { signal });
    return raw.checkpoints.map((/** @type {any} */ c) => ({ ...c, value: toNumber(c.value), metric: raw.metric }));
}

/**
 * Keys of what the run has drawn.
 * @param {string} id
 * @param {AbortSignal} signal
 * @returns {Promise<import('./types').BlobKey[]>}
 */
export async function listBlobKeys(id, signal) {
    return (await json(`/api/v1/runs/${encodeURIComponent(id)}/blobs`, { signal })).keys;
}

/**
 * All blobs of one key, by step.
 * @param {string} id
 * @param {string} key
 * @param {AbortSignal} signal
 * @returns {Promise<import('./types').Blob[]>}
 */
export async function listBlobs(id, key, signal) {
    /** @type {import('./types').Blob[]} */
    const all = [];
    for (let after = null; ;) {
        const { blobs } = await json(`/api/v1/runs/${encodeURIComponent(id)}/blobs${query({ key, after })}`, { signal });
        all.push(...blobs);
        if (blobs.length < 1000)
            return all;
        after = blobs[blobs.length - 1].step;
    }
}

/**
 * The numbers of a blob.
 * @param {string} id of its run
 * @param {import('./types').Blob} blob
 * @param {AbortSignal} signal
 * @returns {Promise<ArrayLike<number>>}
 */
export async function getBlob(id, blob, signal) {
    const bytes = await (await request(`/api/v1/runs/${encodeURIComponent(id)}/blobs/${encodeURIComponent(blob.id)}`, { signal })).arrayBuffer();
    return blob.meta.dtype === 'f64' ? new Float64Array(bytes) : new Float32Array(bytes);
}

/**
 * Where a checkpoint is downloaded: its weights under public names, or the whole file.
 * @param {string} run
 * @param {number} step
 * @param {'weights' | 'file'} what
 */
export const checkpointFile = (run, step, what) => `/api/v1/runs/${encodeURIComponent(run)}/checkpoints/${step}/${what}`;

/**
 * The same of a version of a model.
 * @param {string} model
 * @param {string} version
 * @param {'weights' | 'file'} what
 */
export const versionFile = (model, version, what) => `/api/v1/models/${encodeURIComponent(model)}/versions/${encodeURIComponent(version)}/${what}`;

/** @param {string} id */
export const cancelRun = id => json(`/api/v1/runs/${encodeURIComponent(id)}/cancel`, { method: 'POST', body: {} });

/**
 * `retry`: a failed run is done again under its number; one that waits after a failure starts at once.
 * @param {string} id
 * @param {'pause' | 'resume' | 'retry'} action
 */
export const steerRun = (id, action) =>
    json(`/api/v1/runs/${encodeURIComponent(id)}/${action}`, { method: 'POST', body: {} });

/**
 * `retry`: its failed runs are done again.
 * @param {string} jobId
 * @param {'pause' | 'resume' | 'retry'} action
 */
export const steerJob = (jobId, action) =>
    json(`/api/v1/jobs/${encodeURIComponent(jobId)}/${action}`, { method: 'POST', body: {} });

/**
 * @param {string} name
 * @param {string} runId
 * @param {string} [checkpoint] id; the best one if absent
 */
export const registerModel = (name, runId, checkpoint) =>
    json(`/api/v1/models/${encodeURIComponent(name)}/versions`, { method: 'POST', body: checkpoint ? { checkpoint_id: checkpoint } : { run_id: runId } });

/**
 * The mean of several checkpoints of a run becomes the next version of a model.
 * @param {string} name
 * @param {string} run
 * @param {number[]} steps
 */
export const registerAverage = (name, run, steps) =>
    json(`/api/v1/models/${encodeURIComponent(name)}/versions`, { method: 'POST', body: { average: steps.map(checkpoint => ({ run, checkpoint })) } });

/**
 * A safetensors file becomes the next version of a model; the browser reads it while it sends.
 * @param {string} name
 * @param {File} file
 * @param {{preset: string, description: string, tokenizer: string}} what
 */
export const uploadModel = (name, file, what) =>
    json(`/api/v1/models/${encodeURIComponent(name)}/versions${query(what)}`, { method: 'POST', raw: file, headers: { 'Content-Type': 'application/octet-stream' } });

/**
 * @param {AbortSignal} signal
 * @returns {Promise<import('./types').Model[]>}
 */
export async function listModels(signal) {
    const raw = await json('/api/v1/models', { signal });
    return raw.models.map((/** @type {any} */ m) => {
        const versions = m.versions.map((/** @type {any} */ v) => ({
            version: v.version, state: v.state, reason: v.reason, runId: v.run_id, step: v.step, bytes: v.bytes,
            created: v.created, signature: v.signature, digest: v.digest, origin: v.origin, source: v.source,
        })).sort((/** @type {any} */ a, /** @type {any} */ b) => Number(b.version) - Number(a.version));
        return { name: m.name, description: m.description, created: m.created, latest: m.latest, aliases: m.aliases, versions };
    });
}

/**
 * @param {string} name
 * @param {string} version
 * @param {'load' | 'unload'} action
 */
export const moveModel = (name, version, action) => json(
    `/api/v1/models/${encodeURIComponent(name)}/versions/${encodeURIComponent(version)}/${action}`, { method: 'POST', body: {} });

/**
 * @param {string} name
 * @param {string} version
 * @param {object} body
 * @param {AbortSignal} signal
 */
export const infer = (name, version, body, signal) => json(
    `/v2/models/${encodeURIComponent(name)}/versions/${encodeURIComponent(version)}/infer`, { method: 'POST', body, signal });

/**
 * A picture as it is: the server decodes it and fits it to the model.
 * @param {string} name
 * @param {string} version
 * @param {Blob} picture JPEG or PNG
 * @param {AbortSignal} signal
 */
export const inferPicture = (name, version, picture, signal) => json(
    `/v2/models/${encodeURIComponent(name)}/versions/${encodeURIComponent(version)}/infer`, { method: 'POST', raw: picture, headers: { 'Content-Type': picture.type }, signal });

/**
 * Points an alias at a version; without a version it is removed.
 * @param {string} model
 * @param {string} alias
 * @param {string | null} version
 */
export const setAlias = (model, alias, version) => json(`/api/v1/models/${encodeURIComponent(model)}/aliases/${encodeURIComponent(alias)}`,
    version === null ? { method: 'DELETE', headers: { 'If-Match': '*' } } : { method: 'PUT', body: { version }, headers: { 'If-Match': '*' } });

/**
 * A streaming completion; the caller reads the body as events.
 * @param {object} body
 * @param {AbortSignal} signal
 */
export const complete = (body, signal) => request('/v1/completions', { method: 'POST', body, signal });

/**
 * @param {AbortSignal} signal
 * @returns {Promise<{devices: import('./types').Device[], driver: import('./types').Driver}>}
 */
export async function listDevices(signal) {
    const raw = await json('/api/v1/devices', { signal });
    return {
        devices: raw.devices.map((/** @type {any} */ d) => ({
            id: d.id, name: d.name, kind: d.kind, model: d.model, state: d.state, reason: d.reason, threads: d.threads, memory: d.memory_bytes, runId: d.run_id, drained: d.drained,
            gpu: d.gpu && {
                instance: d.gpu.instance, split: d.gpu.split, memoryUsed: d.gpu.memory_used_bytes, memoryTotal: d.gpu.memory_total_bytes, utilization: d.gpu.utilization_ratio,
                temperature: d.gpu.temperature_celsius, power: d.gpu.power_watts, powerLimit: d.gpu.power_limit_watts, clock: d.gpu.sm_clock_mhz, eccCorrected: d.gpu.ecc_corrected,
                eccUncorrected: d.gpu.ecc_uncorrected, xids: d.gpu.xid_errors, lastXid: d.gpu.last_xid, stale: d.gpu.stale, age: d.gpu.age_seconds,
            },
        })),
        driver: { gpus: raw.driver.gpus, whyNone: raw.driver.why_none, version: raw.driver.version, cuda: raw.driver.cuda },
    };
}

/**
 * @param {string} id
 * @param {string} reason
 */
export const drainDevice = (id, reason) => json(`/api/v1/devices/${encodeURIComponent(id)}/drain`, { method: 'POST', body: { reason } });

/** @param {string} id */
export const undrainDevice = id => json(`/api/v1/devices/${encodeURIComponent(id)}/undrain`, { method: 'POST', body: {} });

/**
 * @param {AbortSignal} signal
 * @returns {Promise<Run[]>}
 */
export async function listQueue(signal) {
    const raw = await json('/api/v1/queue', { signal });
    return raw.queue.map(toRun);
}

/**
 * The job document, documented by itself.
 * @param {AbortSignal} signal
 * @returns {Promise<{fields: import('./types').Field[], presets: any[], recipes: any[], datasets: any[]}>}
 */
export const listFields = signal => json('/api/v1/fields', { signal });

/** @param {AbortSignal} signal */
export const getVersion = signal => json('/api/v1/version', { signal });

/**
 * @param {string} kind
 * @param {string | null} id
 * @param {any} raw
 * @returns {import('./types').PolydEvent}
 */
export function toEvent(kind, id, raw) {
    return {
        id: raw.id ?? id ?? '', kind: raw.kind ?? kind, time: raw.time ?? '', jobId: raw.job_id ?? null, runId: raw.run_id ?? null,
        attempt: raw.attempt ?? null, data: raw.data ?? {}, runs: Array.isArray(raw.runs) ? raw.runs : [],
    };
}

/**
 * What happened to a run so far: its events from the first on, until the stream has been quiet for a moment. Later ones
 * come by the page's own stream.
 * @param {string} id
 * @param {AbortSignal} signal
 * @returns {Promise<import('./types').PolydEvent[]>}
 */
export async function runEvents(id, signal) {
    const stop = new AbortController();
    signal.addEventListener('abort', () => stop.abort());
    const response = await request(`/api/v1/events${query({ since: 0, run: id })}`, { signal: stop.signal });
    const events = [];
    let quiet = setTimeout(() => stop.abort(), 1500);
    try {
        for await (const message of readEvents(/** @type {ReadableStream<Uint8Array>} */ (response.body))) {
            if (message.id === null || message.event === 'metrics')
                continue; // new points are no event: they have no id, and come with that of the event before
            events.push(toEvent(message.event, message.id, JSON.parse(message.data)));
            clearTimeout(quiet);
            quiet = setTimeout(() => stop.abort(), 250);
        }
    } catch (error) {
        if (!isAbort(error) || signal.aborted)
            throw error;
    } finally {
        clearTimeout(quiet);
    }
    return events;
}
