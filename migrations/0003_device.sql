-- 0003: devices out of service. A GPU that the driver reported broken, or that an operator took away, must stay so
-- over a restart of the daemon: the driver does not say it twice.

CREATE TABLE device_drain (
    device  TEXT    PRIMARY KEY, -- "cpu:0", a GPU's or MIG instance's UUID
    name    TEXT    NOT NULL,    -- for people, at that time: "cuda:3"
    reason  TEXT    NOT NULL,
    who     TEXT    NOT NULL,    -- "polyd", or who asked
    time_us INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
