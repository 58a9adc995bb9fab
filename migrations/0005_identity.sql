-- 0005: a database knows which state folder it belongs to. The same identity stands in the folder's file "store-id"; a
-- start that finds the two apart, or the folder's runs without their database, is refused instead of beginning at 1 again.
-- And the paths of checkpoints are relative to that folder: it may be moved.
-- And waits, limits and accounts no longer depend on the wall clock, which jumps: they are kept on the store's own clock.

CREATE TABLE store (
    one  INTEGER PRIMARY KEY CHECK (one = 1),
    uuid TEXT    NOT NULL CHECK (length(uuid) = 32), -- random, lower-case hex; the same for the life of the database
    -- The store's clock: microseconds that only grow. Within one start of the machine (boot) it is the time since then
    -- plus clock_base_us; the next start goes on from clock_seen_us, or from the wall clock where that is ahead.
    boot          TEXT    NOT NULL DEFAULT '',
    clock_base_us INTEGER NOT NULL DEFAULT 0,
    clock_seen_us INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO store (one, uuid, clock_seen_us)
    VALUES (1, lower(hex(randomblob(16))), coalesce((SELECT time_us FROM event ORDER BY id DESC LIMIT 1), 0));

-- They all are <state folder>/runs/<run>/checkpoints/<name>; a path of any other form stays absolute.
UPDATE checkpoint
   SET path = 'runs/' || run_id || '/checkpoints/' || replace(path, rtrim(path, replace(path, '/', '')), '')
 WHERE path LIKE '/%'
   AND rtrim(path, replace(path, '/', '')) LIKE '%/runs/' || run_id || '/checkpoints/';

-- On the store's clock from here on: run.not_before_us, allocation.from_us and to_us, idempotency.created_us, and the new
-- columns. It begins at the wall clock or ahead of it, so what is there stays in order. The other times are the wall
-- clock's, for display; of one row they are in order, too.
ALTER TABLE run ADD COLUMN clock_us INTEGER NOT NULL DEFAULT 0;     -- when it was made
ALTER TABLE attempt ADD COLUMN clock_us INTEGER NOT NULL DEFAULT 0; -- when it was made
ALTER TABLE attempt ADD COLUMN held_us  INTEGER NOT NULL DEFAULT 0; -- how long it had its devices; 0 = not ended
UPDATE run SET clock_us = created_us;
UPDATE attempt SET clock_us = created_us,
                   held_us = CASE WHEN state = 'ended' THEN max(ended_us - created_us, 0) ELSE 0 END;
