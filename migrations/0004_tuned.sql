-- 0004: measured choices of back ends. A back end for GPUs times the algorithms of a product once; the next run on such
-- a device takes the same one, so that it starts at once and its sums keep their order. Two devices share records when
-- name, driver and library are equal; shape and types are in the key, whose words are the back end's own.

CREATE TABLE tuned (
    id      INTEGER PRIMARY KEY AUTOINCREMENT, -- the greatest of a device is its ETag: never given twice
    device  TEXT    NOT NULL CHECK (length(device) BETWEEN 1 AND 127), -- "NVIDIA H200"
    driver  TEXT    NOT NULL,                                          -- "13.0"
    library TEXT    NOT NULL,                                          -- "cublasLt 13.1.0"
    key     TEXT    NOT NULL CHECK (length(key) BETWEEN 1 AND 1023),
    value   BLOB    NOT NULL CHECK (length(value) BETWEEN 1 AND 256),
    run_id  INTEGER NOT NULL, -- that measured it; 0 = a serving worker
    time_us INTEGER NOT NULL,
    UNIQUE (device, driver, library, key)
) STRICT;
