-- 0001: the first schema. Jobs expand into runs, runs are carried out by attempts; metrics, events,
-- checkpoints and models hang from runs. Times are integer microseconds since 1970, UTC; 0 = not yet.
-- Digests are lower-case hex except a token's, which is 32 raw bytes.

CREATE TABLE job (
    id            INTEGER PRIMARY KEY AUTOINCREMENT, -- never reused
    version       INTEGER NOT NULL DEFAULT 1,        -- grows with every change: the ETag
    state         TEXT    NOT NULL CHECK (state IN ('queued', 'running', 'paused', 'cancelling', 'cancelled',
                                                    'done', 'failed')),
    name          TEXT    NOT NULL,
    experiment    TEXT    NOT NULL,
    template      TEXT    NOT NULL DEFAULT '',
    tags          TEXT    NOT NULL DEFAULT '{}',
    notes         TEXT    NOT NULL DEFAULT '',
    reason        TEXT    NOT NULL DEFAULT '',
    register_name TEXT    NOT NULL DEFAULT '',
    owner         TEXT    NOT NULL DEFAULT '',
    priority      INTEGER NOT NULL DEFAULT 0,
    runs          INTEGER NOT NULL DEFAULT 0,
    runs_ended    INTEGER NOT NULL DEFAULT 0,
    runs_failed   INTEGER NOT NULL DEFAULT 0,
    created_us    INTEGER NOT NULL,
    started_us    INTEGER NOT NULL DEFAULT 0,
    ended_us      INTEGER NOT NULL DEFAULT 0,
    document      TEXT    NOT NULL
) STRICT;
CREATE INDEX job_experiment ON job (experiment, id);
CREATE INDEX job_state ON job (state, id);

CREATE TABLE run (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id         INTEGER NOT NULL REFERENCES job (id),
    n              INTEGER NOT NULL,
    version        INTEGER NOT NULL DEFAULT 1,
    state          TEXT    NOT NULL CHECK (state IN ('queued', 'starting', 'running', 'preempted', 'paused',
                                                     'cancelling', 'ended')),
    outcome        TEXT    NOT NULL DEFAULT '' CHECK (outcome IN ('', 'succeeded', 'diverged', 'failed',
                                                                  'cancelled')),
    reason         TEXT    NOT NULL DEFAULT '',
    device         TEXT    NOT NULL,
    slots          INTEGER NOT NULL CHECK (slots >= 1),
    threads        INTEGER NOT NULL,
    priority       INTEGER NOT NULL,
    max_restarts   INTEGER NOT NULL,
    attempts       INTEGER NOT NULL DEFAULT 0,
    restarts       INTEGER NOT NULL DEFAULT 0,
    step           INTEGER NOT NULL DEFAULT 0,
    total_steps    INTEGER NOT NULL DEFAULT -1,
    time_limit_us  INTEGER NOT NULL DEFAULT 0,
    warn_before_us INTEGER NOT NULL DEFAULT 0,
    not_before_us  INTEGER NOT NULL DEFAULT 0,
    used_us        INTEGER NOT NULL DEFAULT 0,
    created_us     INTEGER NOT NULL,
    started_us     INTEGER NOT NULL DEFAULT 0,
    ended_us       INTEGER NOT NULL DEFAULT 0,
    config_digest  TEXT    NOT NULL,
    plan_digest    TEXT    NOT NULL,
    sweep          TEXT    NOT NULL DEFAULT '{}',
    document       TEXT    NOT NULL,
    UNIQUE (job_id, n),
    CHECK ((state = 'ended') = (outcome <> ''))
) STRICT;
CREATE INDEX run_state ON run (state, id);
CREATE INDEX run_queue ON run (state, priority DESC, id);

CREATE TABLE attempt (
    run_id       INTEGER NOT NULL REFERENCES run (id),
    n            INTEGER NOT NULL,
    state        TEXT    NOT NULL CHECK (state IN ('starting', 'running', 'checkpointing', 'stopping', 'ended')),
    cause        TEXT    NOT NULL DEFAULT '' CHECK (cause IN ('', 'done', 'diverged', 'failed', 'lost', 'preempted',
                                                              'paused', 'cancelled', 'time_limit')),
    message      TEXT    NOT NULL DEFAULT '',
    devices      TEXT    NOT NULL,
    pid          INTEGER NOT NULL DEFAULT 0, -- of the shim; identified together with pid_start
    pid_start    INTEGER NOT NULL DEFAULT 0,
    cgroup       TEXT    NOT NULL DEFAULT '',
    token_sha256 BLOB    NOT NULL CHECK (length(token_sha256) = 32),
    acked_seq    INTEGER NOT NULL DEFAULT 0, -- every data frame up to it is in these tables
    start_step   INTEGER NOT NULL DEFAULT 0,
    step         INTEGER NOT NULL DEFAULT 0,
    log_bytes    INTEGER NOT NULL DEFAULT 0,
    exit_status  INTEGER NOT NULL DEFAULT -1,
    created_us   INTEGER NOT NULL,
    started_us   INTEGER NOT NULL DEFAULT 0,
    ended_us     INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, n),
    CHECK ((state = 'ended') = (cause <> ''))
) STRICT, WITHOUT ROWID;
CREATE INDEX attempt_live ON attempt (state) WHERE state <> 'ended';

-- One interval a device and attempt: accounting, and the proof that no device was in two runs.
CREATE TABLE allocation (
    device   TEXT    NOT NULL,
    from_us  INTEGER NOT NULL,
    run_id   INTEGER NOT NULL,
    attempt  INTEGER NOT NULL,
    to_us    INTEGER NOT NULL DEFAULT 0, -- 0 = held
    PRIMARY KEY (device, run_id, attempt),
    FOREIGN KEY (run_id, attempt) REFERENCES attempt (run_id, n)
) STRICT, WITHOUT ROWID;
CREATE INDEX allocation_time ON allocation (device, from_us);

CREATE TABLE metric_key (
    id   INTEGER PRIMARY KEY,
    name TEXT    NOT NULL UNIQUE
) STRICT;

-- value NULL = NaN: SQLite keeps no NaN. run_id has no foreign key: a check for each point costs more than
-- the insert, and the writer looks the run up once a batch. attempt 0 = logged over HTTP.
CREATE TABLE metric (
    run_id  INTEGER NOT NULL,
    key_id  INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    step    INTEGER NOT NULL,
    ts_us   INTEGER NOT NULL,
    dup     INTEGER NOT NULL, -- 0, or 1.. for another value at the same step and time
    value   REAL,
    PRIMARY KEY (run_id, key_id, attempt, step, ts_us, dup)
) STRICT, WITHOUT ROWID;

-- Roll-ups of 1000 points each, in the order of arrival, written with the points.
CREATE TABLE metric_rollup (
    run_id     INTEGER NOT NULL,
    key_id     INTEGER NOT NULL,
    attempt    INTEGER NOT NULL,
    chunk      INTEGER NOT NULL,
    count      INTEGER NOT NULL,
    nonfinite  INTEGER NOT NULL,
    first_step INTEGER NOT NULL, -- least and greatest step among its points
    last_step  INTEGER NOT NULL,
    first_us   INTEGER NOT NULL,
    last_us    INTEGER NOT NULL,
    min        REAL, -- of the finite points; NULL = none
    max        REAL,
    sum        REAL NOT NULL,
    PRIMARY KEY (run_id, key_id, attempt, chunk)
) STRICT, WITHOUT ROWID;

CREATE TABLE metric_latest (
    run_id  INTEGER NOT NULL,
    key_id  INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    step    INTEGER NOT NULL,
    ts_us   INTEGER NOT NULL,
    value   REAL, -- NULL = NaN
    count   INTEGER NOT NULL,
    min     REAL,
    max     REAL,
    PRIMARY KEY (run_id, key_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE event (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    time_us INTEGER NOT NULL,
    kind    TEXT    NOT NULL,
    job_id  INTEGER NOT NULL DEFAULT 0,
    run_id  INTEGER NOT NULL DEFAULT 0,
    attempt INTEGER NOT NULL DEFAULT 0,
    data    TEXT    NOT NULL
) STRICT;
CREATE INDEX event_job ON event (job_id, id) WHERE job_id <> 0;
CREATE INDEX event_run ON event (run_id, id) WHERE run_id <> 0;

CREATE TABLE checkpoint (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id     INTEGER NOT NULL REFERENCES run (id),
    attempt    INTEGER NOT NULL,
    step       INTEGER NOT NULL,
    kind       TEXT    NOT NULL CHECK (kind IN ('latest', 'best', 'final')),
    path       TEXT    NOT NULL,
    bytes      INTEGER NOT NULL,
    digest     TEXT    NOT NULL,
    value      REAL, -- NULL = none
    created_us INTEGER NOT NULL,
    deleted_us INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX checkpoint_run ON checkpoint (run_id, id);

CREATE TABLE model (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    name        TEXT    NOT NULL UNIQUE,
    description TEXT    NOT NULL DEFAULT '',
    versions    INTEGER NOT NULL DEFAULT 0,
    version     INTEGER NOT NULL DEFAULT 1,
    created_us  INTEGER NOT NULL
) STRICT;

CREATE TABLE model_version (
    model_id      INTEGER NOT NULL REFERENCES model (id),
    n             INTEGER NOT NULL,
    run_id        INTEGER NOT NULL REFERENCES run (id),
    checkpoint_id INTEGER NOT NULL REFERENCES checkpoint (id),
    loaded        INTEGER NOT NULL DEFAULT 0 CHECK (loaded IN (0, 1)),
    created_us    INTEGER NOT NULL,
    PRIMARY KEY (model_id, n)
) STRICT, WITHOUT ROWID;
CREATE INDEX model_version_checkpoint ON model_version (checkpoint_id);

CREATE TABLE model_alias (
    model_id   INTEGER NOT NULL,
    alias      TEXT    NOT NULL,
    n          INTEGER NOT NULL,
    updated_us INTEGER NOT NULL,
    PRIMARY KEY (model_id, alias),
    FOREIGN KEY (model_id, n) REFERENCES model_version (model_id, n)
) STRICT, WITHOUT ROWID;

-- Files under blobs/, named by their digest; run_blob says what they show.
CREATE TABLE blob (
    sha256     TEXT    PRIMARY KEY,
    bytes      INTEGER NOT NULL,
    created_us INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE run_blob (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id  INTEGER NOT NULL REFERENCES run (id),
    attempt INTEGER NOT NULL,
    key     TEXT    NOT NULL,
    kind    TEXT    NOT NULL,
    step    INTEGER NOT NULL,
    time_us INTEGER NOT NULL,
    meta    TEXT    NOT NULL DEFAULT '{}',
    sha256  TEXT    NOT NULL REFERENCES blob (sha256)
) STRICT;
CREATE INDEX run_blob_key ON run_blob (run_id, key, step);

CREATE TABLE plan (
    digest     TEXT    PRIMARY KEY,
    plan       TEXT    NOT NULL,
    created_us INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE idempotency (
    scope       TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    body_sha256 BLOB    NOT NULL CHECK (length(body_sha256) = 32),
    status      INTEGER NOT NULL, -- 0 only inside the transaction that answers
    response    BLOB    NOT NULL,
    created_us  INTEGER NOT NULL,
    PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_age ON idempotency (created_us);

CREATE TABLE audit (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    time_us INTEGER NOT NULL,
    who     TEXT    NOT NULL,
    what    TEXT    NOT NULL,
    target  TEXT    NOT NULL,
    before  TEXT,
    after   TEXT
) STRICT;
CREATE TRIGGER audit_is_append_only_update BEFORE UPDATE ON audit
BEGIN
    SELECT RAISE(ABORT, 'the audit log is append-only');
END;
CREATE TRIGGER audit_is_append_only_delete BEFORE DELETE ON audit
BEGIN
    SELECT RAISE(ABORT, 'the audit log is append-only');
END;
