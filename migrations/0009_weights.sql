-- 0009: versions of models that no run of polyd wrote: weights that were uploaded, read from a data root, or averaged of
-- several. Their files belong to the registry (folder models of the state folder) and go with their version.

CREATE TABLE weights (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    path       TEXT    NOT NULL UNIQUE,  -- from the state folder on
    bytes      INTEGER NOT NULL,
    digest     TEXT    NOT NULL,
    origin     TEXT    NOT NULL CHECK (origin IN ('upload', 'root', 'average')),
    source     TEXT    NOT NULL,         -- what it was made of, JSON
    document   TEXT    NOT NULL,         -- the resolved document that describes the network; '' = the file alone does
    step       INTEGER NOT NULL,         -- of training, as the file says; 0 = it does not
    created_us INTEGER NOT NULL,
    deleted_us INTEGER NOT NULL DEFAULT 0 -- its version is gone, the file is still to be removed
) STRICT;
CREATE INDEX weights_deleted ON weights (id) WHERE deleted_us > 0;

-- A version is made of a checkpoint of a run, or of weights.
PRAGMA writable_schema = ON;
UPDATE sqlite_schema
   SET sql = replace(replace(sql, 'run_id        INTEGER NOT NULL', 'run_id        INTEGER'),
                     'checkpoint_id INTEGER NOT NULL', 'checkpoint_id INTEGER')
 WHERE type = 'table' AND name = 'model_version';
PRAGMA writable_schema = RESET;
ALTER TABLE model_version ADD COLUMN weights_id INTEGER REFERENCES weights (id)
    CHECK ((weights_id IS NULL) = (checkpoint_id IS NOT NULL) AND (run_id IS NULL) = (checkpoint_id IS NULL));
CREATE INDEX model_version_weights ON model_version (weights_id);
