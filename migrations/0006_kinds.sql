-- 0006: jobs have a kind, and a run need not be carried out by polyd: a program of the client's may open one, report to
-- it and end it. Such a run has no attempts, takes no slots, and is lost when nothing is heard of it for long.
-- And a single run can be paused.
-- And what a client once logged under a key that the run's worker writes no longer counts as the worker's.

ALTER TABLE job ADD COLUMN kind TEXT NOT NULL DEFAULT 'train'; -- daemon/job/kind.h

-- Two CHECKs of run give way: the outcome 'lost', and runs without slots. Their text alone changes, no row does.
PRAGMA writable_schema = ON;
UPDATE sqlite_schema
   SET sql = replace(replace(sql, '''diverged'',', '''diverged'', ''lost'','), 'slots >= 1', 'slots >= 0')
 WHERE type = 'table' AND name = 'run';
PRAGMA writable_schema = RESET;

-- On the store's clock: when its client was last heard of; 0 = polyd carries it out itself.
ALTER TABLE run ADD COLUMN heard_us INTEGER NOT NULL DEFAULT 0;
CREATE INDEX run_heard ON run (heard_us) WHERE heard_us > 0 AND state = 'running';
-- Paused by itself, not with its job.
ALTER TABLE run ADD COLUMN held INTEGER NOT NULL DEFAULT 0 CHECK (held IN (0, 1));

-- Latest, least and greatest value of a series that both wrote: the worker's alone. The count stays that of all points.
UPDATE metric_latest AS l
   SET (attempt, step, ts_us, value) =
           (SELECT m.attempt, m.step, m.ts_us, m.value FROM metric m
             WHERE m.run_id = l.run_id AND m.key_id = l.key_id AND m.attempt > 0
             ORDER BY m.attempt DESC, m.step DESC, m.ts_us DESC, m.dup DESC LIMIT 1),
       (min, max) =
           (SELECT min(m.value), max(m.value) FROM metric m
             WHERE m.run_id = l.run_id AND m.key_id = l.key_id AND m.attempt > 0 AND abs(m.value) < 9e999)
 WHERE EXISTS (SELECT 1 FROM metric_rollup r
                WHERE r.run_id = l.run_id AND r.key_id = l.key_id AND r.attempt = 0)
   AND EXISTS (SELECT 1 FROM metric_rollup r
                WHERE r.run_id = l.run_id AND r.key_id = l.key_id AND r.attempt > 0);
