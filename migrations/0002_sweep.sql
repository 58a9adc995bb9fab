-- 0002: a sweep's runs know their place (combination and trial), a job knows how many runs it will have and how
-- its runs are ranked, runs can be put into named groups, the tally of state moves and the key of page cursors
-- outlive the daemon.

ALTER TABLE job ADD COLUMN planned     INTEGER NOT NULL DEFAULT 0;          -- runs it will have; made lazily
ALTER TABLE job ADD COLUMN points      INTEGER NOT NULL DEFAULT 1;          -- combinations of the sweep
ALTER TABLE job ADD COLUMN trials      INTEGER NOT NULL DEFAULT 1;
ALTER TABLE job ADD COLUMN concurrency INTEGER NOT NULL DEFAULT 0;          -- runs at once; 0 = no cap
ALTER TABLE job ADD COLUMN metric      TEXT    NOT NULL DEFAULT 'loss/val'; -- ranks the runs
ALTER TABLE job ADD COLUMN mode        TEXT    NOT NULL DEFAULT 'min' CHECK (mode IN ('min', 'max'));
ALTER TABLE job ADD COLUMN sweep       TEXT    NOT NULL DEFAULT '';         -- method and axes, JSON; '' = none

ALTER TABLE run ADD COLUMN point INTEGER NOT NULL DEFAULT 0; -- combination of the sweep
ALTER TABLE run ADD COLUMN trial INTEGER NOT NULL DEFAULT 0;
ALTER TABLE run ADD COLUMN seed  INTEGER NOT NULL DEFAULT 0;

-- Jobs of 0001 made all their runs at once: trials are named by the document, and run n is combination
-- n / trials, trial n % trials.
UPDATE job SET planned = runs,
               trials = max(1, coalesce(json_extract(document, '$.trials'), 1)),
               concurrency = coalesce(json_extract(document, '$.sweep.concurrency'), 0),
               metric = coalesce(json_extract(document, '$.sweep.metric'), 'loss/val'),
               mode = coalesce(json_extract(document, '$.sweep.mode'), 'min'),
               sweep = CASE WHEN json_type(document, '$.sweep') = 'object'
                            THEN json_object('method', coalesce(json_extract(document, '$.sweep.method'), 'grid'),
                                             'axes', json(coalesce(json_extract(document, '$.sweep.axes'), '[]')))
                            ELSE '' END
       WHERE json_valid(document);
UPDATE job SET planned = runs WHERE planned <> runs;
UPDATE job SET points = max(1, runs / trials);
UPDATE run SET trial = n % (SELECT trials FROM job WHERE job.id = run.job_id),
               point = n / (SELECT trials FROM job WHERE job.id = run.job_id),
               seed = CASE WHEN json_valid(document) THEN coalesce(json_extract(document, '$.train.seed'), 0) ELSE 0 END;

-- The table of a sweep and its counts come from this index alone.
CREATE INDEX run_point ON run (job_id, point, trial, state, outcome, seed);
-- Jobs whose runs are still being made.
CREATE INDEX job_expanding ON job (id) WHERE runs < planned;
CREATE INDEX job_sweep ON job (id) WHERE planned > 1;
-- The queue takes the first runs of every job before the later ones of a large sweep.
CREATE INDEX run_turn ON run (state, priority DESC, n, id);

CREATE TABLE run_group (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    version     INTEGER NOT NULL DEFAULT 1,
    name        TEXT    NOT NULL UNIQUE,
    description TEXT    NOT NULL DEFAULT '',
    created_us  INTEGER NOT NULL
) STRICT;

CREATE TABLE run_group_member (
    group_id INTEGER NOT NULL REFERENCES run_group (id) ON DELETE CASCADE,
    run_id   INTEGER NOT NULL REFERENCES run (id),
    PRIMARY KEY (group_id, run_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX run_group_of ON run_group_member (run_id);

-- Moves of states since the first day, for counters that do not fall back at a restart.
CREATE TABLE tally (
    kind  TEXT    NOT NULL CHECK (kind IN ('job', 'run', 'attempt')),
    past  TEXT    NOT NULL, -- '' = it came to be
    next  TEXT    NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (kind, past, next)
) STRICT, WITHOUT ROWID;
INSERT INTO tally (kind, past, next, count)
    SELECT substr(kind, 1, length(kind) - 6), coalesce(json_extract(data, '$.from'), ''),
           json_extract(data, '$.to'), count(*)
    FROM event WHERE kind IN ('job.state', 'run.state', 'attempt.state') GROUP BY 1, 2, 3;

-- Random bytes made once: page cursors signed with them are good after a restart.
CREATE TABLE secret (
    name  TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;
