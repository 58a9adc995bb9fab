/* tests/lib/schema4.h: SQL that takes a database back to schema 4, as polyd left it before there were
 * identities. %s: the state folder, without a quote in it. */
#pragma once

#define SCHEMA4_SQL                                                                                          \
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
