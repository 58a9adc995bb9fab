-- 0007: archive and delete, for what has ended. Lists leave out what is archived. A deleted run leaves all tables that name
-- it at once; its points are removed in small batches, then its folder, so that the writer is never held up. A deleted job
-- is hidden at once and its runs are removed in batches. The work that is left is in `remnant` and `remnant_blob`, so
-- that it continues after a restart.

ALTER TABLE job           ADD COLUMN archived_us INTEGER NOT NULL DEFAULT 0; -- 0 = not; here and below
ALTER TABLE run           ADD COLUMN archived_us INTEGER NOT NULL DEFAULT 0;
ALTER TABLE model         ADD COLUMN archived_us INTEGER NOT NULL DEFAULT 0;
ALTER TABLE model_version ADD COLUMN archived_us INTEGER NOT NULL DEFAULT 0;
ALTER TABLE run_group     ADD COLUMN archived_us INTEGER NOT NULL DEFAULT 0;

ALTER TABLE job ADD COLUMN deleted_us   INTEGER NOT NULL DEFAULT 0; -- nothing reads the job any more
ALTER TABLE job ADD COLUMN runs_deleted INTEGER NOT NULL DEFAULT 0; -- of `runs` and `runs_ended`: those that are gone
ALTER TABLE run ADD COLUMN log_bytes    INTEGER NOT NULL DEFAULT 0; -- of the log that its client sent

CREATE INDEX job_deleted ON job (id) WHERE deleted_us > 0;
-- Whether a run has a model is looked up when it is deleted, and by the foreign key.
CREATE INDEX model_version_run ON model_version (run_id);
CREATE INDEX run_blob_sha ON run_blob (sha256);
-- Rows of a run are found when it is deleted, and by the foreign key of attempts.
CREATE INDEX allocation_run ON allocation (run_id, attempt);

-- Deleted runs whose points (rows_gone = 0) or folder are still there.
CREATE TABLE remnant (
    run_id     INTEGER PRIMARY KEY,
    deleted_us INTEGER NOT NULL,
    rows_gone  INTEGER NOT NULL DEFAULT 0 CHECK (rows_gone IN (0, 1))
) STRICT;

-- Files of deleted runs below blobs/, to be removed unless another run shows the same bytes.
CREATE TABLE remnant_blob (
    sha256 TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;
