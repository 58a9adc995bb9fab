-- 0008: what a run was computed from: SHA-256 of its data's files and of the program that carried it out, as the worker of its
-- last attempt reported them. A report names them, and two runs can be compared by them.

ALTER TABLE run ADD COLUMN data_sha256    TEXT NOT NULL DEFAULT ''; -- '' = not reported, or no file is read
ALTER TABLE run ADD COLUMN data_of        TEXT NOT NULL DEFAULT ''; -- 'contents', or 'names_and_sizes' of pictures
ALTER TABLE run ADD COLUMN program_sha256 TEXT NOT NULL DEFAULT '';
