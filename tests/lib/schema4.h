/* tests/lib/schema4.h: SQL that takes a database back to schema 4, as polyd left it before there were
 * identities. %s: the state folder, without a quote in it. */
#pragma once

#define SCHEMA7_SQL                                                                                          \
    "DROP INDEX model_version_weights;"                                                                      \
    "ALTER TABLE model_version DROP COLUMN weights_id;"                                                      \
    "DROP TABLE weights;"                                                                                    \
    "ALTER TABLE run DROP COLUMN data_sha256;"                                                               \
    "ALTER TABLE run DROP COLUMN data_of;"                                                                   \
    "ALTER TABLE run DROP COLUMN program_sha256;"

#define SCHEMA6_SQL                                                                                          \
    SCHEMA7_SQL                                                                                              \
    "DROP TABLE remnant;"                                                                                    \
    "DROP TABLE remnant_blob;"                                                                               \
    "DROP INDEX job_deleted;"                                                                                \
    "DROP INDEX model_version_run;"                                                                          \
    "DROP INDEX run_blob_sha;"                                                                               \
    "DROP INDEX allocation_run;"                                                                             \
    "ALTER TABLE job DROP COLUMN archived_us;"                                                               \
    "ALTER TABLE job DROP COLUMN deleted_us;"                                                                \
    "ALTER TABLE job DROP COLUMN runs_deleted;"                                                              \
    "ALTER TABLE run DROP COLUMN archived_us;"                                                               \
    "ALTER TABLE run DROP COLUMN log_bytes;"                                                                 \
    "ALTER TABLE model DROP COLUMN archived_us;"                                                             \
    "ALTER TABLE model_version DROP COLUMN archived_us;"                                                     \
    "ALTER TABLE run_group DROP COLUMN archived_us;"

#define SCHEMA4_SQL                                                                                          \
    SCHEMA6_SQL                                                                                              \
    "DROP INDEX run_heard;"                                                                                  \
    "ALTER TABLE run DROP COLUMN heard_us;"                                                                  \
    "ALTER TABLE run DROP COLUMN held;"                                                                      \
    "ALTER TABLE job DROP COLUMN kind;"                                                                      \
    "DROP TABLE store;"                                                                                      \
    "ALTER TABLE run DROP COLUMN clock_us;"                                                                  \
    "ALTER TABLE attempt DROP COLUMN clock_us;"                                                              \
    "ALTER TABLE attempt DROP COLUMN held_us;"                                                               \
    "UPDATE checkpoint SET path = '%s/' || path WHERE path NOT LIKE '/%%';"                                  \
    "PRAGMA user_version = 4"
