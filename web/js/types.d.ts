// Shapes that the modules exchange. Not shipped: only `tsc --noEmit` reads it.

export interface Run {
    id: string;
    jobId: string;
    /** Of its job: see kinds.js. */
    kind: string;
    index: number;
    name: string;
    experiment: string;
    state: string;
    outcome: string | null;
    reason: string;
    /** What its worker does between steps; empty: nothing that takes long. */
    phase: string;
    step: number | null;
    totalSteps: number | null;
    attempts: number;
    /** Why the last attempt failed, of a run that waits for another. */
    failure: string;
    /** Attempts that there will be if each fails without progress. */
    mostAttempts: number;
    created: string;
    started: string | null;
    ended: string | null;
    /** Seconds that it worked, without waiting and pauses; null before its first attempt. */
    used: number | null;
    device: string;
    latest: Record<string, number | null>;
    position: number | null;
    sweep: Record<string, unknown>;
    /** The job's. */
    tags: Record<string, string>;
    /** Members of the resolved document that the list was asked for, by pointer. */
    fields: Record<string, unknown>;
    priority: number;
    version: number;
    archived: string | null;
    /** Absent in lists. */
    bytes: Bytes | null;
}

export interface Bytes {
    checkpoints: number;
    logs: number;
    blobs: number;
    total: number;
}

export interface Storage {
    path: string;
    free: number | null;
    database: number;
    runs: Bytes;
    cache: { path: string; bytes: number; files: number; max_bytes: number };
    deleting: number;
    jobs: { id: string; name: string; experiment: string; runs: number; bytes: number; archived: string | null }[];
}

export interface Series {
    key: string;
    count: number;
    step: number | null;
    value: number | null;
}

export interface Bucket {
    first: number;
    last: number;
    time: number;
    min: number | null;
    max: number | null;
    mean: number | null;
    count: number;
    nonfinite: number;
}

export interface Curve {
    key: string;
    points: number;
    buckets: Bucket[];
    /** Around a zoomed stretch: not drawn, but smoothing knows them. */
    before?: Bucket[];
    after?: Bucket[];
    /** Steps of its whole run, where each curve has its own. */
    span?: number;
    /** In the legend, in place of the key's. */
    name?: string;
    /** Number of its colour and dashes, where charts must agree on them. */
    ink?: number;
    /** Moment (s) that its own relative time starts at. */
    began?: number;
    /** Steps of its own epoch. */
    perEpoch?: number;
    /** Drawn strong. */
    strong?: boolean;
    /** Its band is a deviation: never smoothed, always shown. */
    exact?: boolean;
}

export interface PolydEvent {
    id: string;
    kind: string;
    time: string;
    jobId: string | null;
    runId: string | null;
    attempt: number | null;
    data: Record<string, unknown>;
    /** Of an event named `metrics`: the runs that got points. */
    runs: string[];
}

export interface Attempt {
    n: number;
    state: string;
    cause: string | null;
    message: string;
    step: number | null;
    startStep: number | null;
    /** One of each rank, in their order. */
    devices: string[];
    created: string;
    ended: string | null;
}

export interface Checkpoint {
    id: string;
    step: number;
    kind: string;
    bytes: number;
    digest: string;
    value: number | null;
    /** By which it is ranked. */
    metric: string | null;
    attempt: number;
    created: string;
}

export interface ModelVersion {
    version: string;
    state: string;
    reason: string;
    runId: string | null;
    step: number | null;
    bytes: number | null;
    created: string;
    digest: string;
    origin: 'run' | 'upload' | 'root' | 'average';
    source: { path?: string; sha256?: string; tokenizer?: string | null; ignored?: string[]; average?: { run?: string; model?: string; step: number; sha256: string }[] };
    signature: Signature | null;
}

export interface Signature {
    kind: 'classifier' | 'text_classifier' | 'field' | 'language';
    platform: string;
    inputs: TensorMeta[];
    outputs: TensorMeta[];
    classes?: number;
    labels?: string[];
    vocabulary?: number;
    tokenizer?: string;
    context?: number;
    /** Whether it reads two texts. */
    pairs?: boolean;
    equation?: string;
    coefficient?: number;
    domain?: { x: [number, number]; t: [number, number] };
    memory_bytes?: number;
}

export interface Model {
    name: string;
    description: string;
    created: string;
    latest: string | null;
    aliases: Record<string, string>;
    versions: ModelVersion[];
}

export interface Statistic {
    n: number;
    missing: number;
    mean: number | null;
    sd: number | null;
    min: number | null;
    max: number | null;
}

export interface Job {
    id: string;
    version: number;
    state: string;
    name: string;
    experiment: string;
    tags: Record<string, string>;
    notes: string;
    reason: string;
    priority: number;
    runs: { total: number; made: number; ended: number; failed: number; deleted: number };
    sweep: { method: string | null; points: number; trials: number; metric: string; mode: string; axes: Axis[] } | null;
    created: string;
    started: string | null;
    ended: string | null;
    archived: string | null;
    /** Absent in lists. */
    bytes?: Bytes;
    document?: Record<string, any>;
}

export interface Axis {
    pointer: string;
    [how: string]: unknown;
}

export interface Tally {
    total: number;
    open: number;
    succeeded: number;
    diverged: number;
    failed: number;
    cancelled: number;
    lost: number;
}

export interface SweepRow {
    point: number;
    values: Record<string, unknown>;
    runs: Tally;
    metrics: Record<string, Statistic>;
    /** Differences from the baseline, seed by seed, with a 95 % interval of their mean. */
    paired?: Record<string, { n: number; mean: number | null; low: number | null; high: number | null }>;
    /** Differences of the means from the best combination's, with Welch's 95 % interval; separable: it leaves out zero. */
    versus_best?: Record<string, { difference: number | null; low: number | null; high: number | null; separable: boolean | null }>;
    trials: { run_id: string; trial: number; seed: number; state: string; outcome: string | null; metrics: Record<string, number | null> }[];
}

export interface Sweep {
    job_id: string;
    name: string;
    state: string;
    method: string | null;
    axes: Axis[];
    points: number;
    trials: number;
    metric: string;
    mode: 'min' | 'max';
    runs: Record<string, number>;
    best: { point: number; values: Record<string, unknown>; value: Statistic } | null;
    best_run: { run_id: string; point: number; value: number | null } | null;
    table: SweepRow[];
}

/** A sweep against one of its axes, as the API computes it. */
export interface SweepAnalysis {
    metric: string;
    mode: 'min' | 'max';
    axes: { pointer: string; numeric: boolean }[];
    axis: string;
    log: boolean;
    by: string[];
    left_out: number;
    usable_rule: string;
    panels: SweepPanel[];
    slopes: { values: Record<string, unknown>; panels: number[]; n: number; a: number | null; b: number | null; why: string | null; low: number | null; high: number | null; interval_why: string | null }[];
    slopes_why: string | null;
}

export interface SweepPanel {
    values: Record<string, unknown>;
    tokens: number | null;
    points: { x: number; point: number; combinations: number; runs: Tally; value: Statistic; usable: boolean; why: string | null }[];
    best: { x: number; point: number; mean: number; at_end: boolean; low: number | null; high: number | null; share: number | null; why: string | null } | null;
    best_why: string | null;
    usable: { from: number; to: number; decades: number | null; limit: number; from_end: boolean; to_end: boolean } | null;
    usable_why: string | null;
}

export interface Comparison {
    runs: Run[];
    fields: { pointer: string; differs: boolean; default: unknown; has_default: boolean; values: unknown[]; named: boolean[] }[];
    differing: number;
    same: number;
    metrics: { key: string; runs: ({ last: number | null; min: number | null; max: number | null; step: number } | null)[] }[];
}

/** A setting of the job document. */
export interface Field {
    pointer: string;
    type: string;
    meaning: string;
    default?: unknown;
    /** Values that a string may have, and those among them that this build can do. */
    values?: string[];
    available?: string[] | boolean;
    minimum?: number;
    maximum?: number;
    reference?: string;
    sweepable?: boolean;
}

export interface Device {
    /** The same for good: what attempts name. */
    id: string;
    name: string;
    kind: string;
    model: string;
    state: string;
    /** Of the state; empty where it needs none. */
    reason: string;
    threads: number | null;
    memory: number | null;
    runId: string | null;
    drained: { reason: string; who: string; since: string } | null;
    /** The driver's latest sample; null for a CPU slot. Values that it does not report are null. */
    gpu: {
        instance: number | null;
        split: boolean;
        memoryUsed: number | null;
        memoryTotal: number | null;
        utilization: number | null;
        temperature: number | null;
        power: number | null;
        powerLimit: number | null;
        clock: number | null;
        eccCorrected: number | null;
        eccUncorrected: number | null;
        xids: number;
        lastXid: number | null;
        stale: boolean;
        age: number;
    } | null;
}

export interface Driver {
    gpus: number;
    whyNone: string | null;
    version: string | null;
    cuda: string | null;
}

export interface TensorMeta {
    name: string;
    datatype: string;
    shape: number[];
}

export interface ViewContext {
    /** Parts of the path after the view's own name. */
    params: string[];
    query: URLSearchParams;
    /** Aborted when the view is left. */
    signal: AbortSignal;
    /** Writes the view's state into the address, so that the link keeps it. Empty values are left out. */
    setQuery(values: Record<string, string | null>): void;
    setTitle(title: string): void;
    announce(text: string): void;
}

export interface BlobKey {
    key: string;
    kind: 'matrix' | 'histogram' | 'image';
    count: number;
    first_step: number;
    last_step: number;
}

/** A matrix or histogram of a run at a step; `meta` says what its bytes are. */
export interface Blob {
    id: string;
    attempt: number;
    step: number;
    time: string;
    bytes: number;
    digest: string;
    meta: { shape: number[]; dtype: 'f32' | 'f64'; samples?: number; causal?: boolean; grid?: [number, number]; lead?: number; between?: 'class' | 'channels' | 'landmarks'; from?: [number, number]; lo?: number; hi?: number; rows?: { name: string; low: number; high: number }; columns?: { name: string; low: number; high: number } };
}

export interface View {
    el: HTMLElement;
}
