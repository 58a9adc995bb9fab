/* tests/store/help.h: a writer and a reader in a fresh directory, and what most tests put there. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "daemon/polyd/store/tx.h"
#include "daemon/polyd/store/verify.h"

struct fixture {
    char dir[64];
    struct store_writer *w;
    struct store *s;
};

static inline void writer_up(struct fixture *f)
{
    struct store_writer_options o = {.state_dir = f->dir};
    struct pd_why why = {""};

    if (store_writer_start(&o, &f->w, &why) != PD_OK)
        fail_msg("%s", why.text);
    if (store_open_reader(store_writer_path(f->w), &f->s, &why) != PD_OK)
        fail_msg("%s", why.text);
}

static inline void writer_down(struct fixture *f)
{
    f->s = store_close(f->s);
    f->w = store_writer_stop(f->w);
}

static inline int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    strcpy(f->dir, "/tmp/polyd-store-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    writer_up(f);
    *state = f;
    return 0;
}

static inline int teardown(void **state)
{
    struct fixture *f = *state;
    char command[128];

    writer_down(f);
    snprintf(command, sizeof command, "rm -rf '%s'", f->dir);
    assert_int_equal(system(command), 0);
    free(f);
    return 0;
}

/* Runs `apply` in a commit of its own. */
static inline enum pd_err call(struct fixture *f,
                               enum pd_err (*apply)(struct store_tx *, void *, struct pd_why *), void *ctx,
                               struct pd_why *why)
{
    struct store_work work = {.lane = STORE_LANE_COMMAND, .rows = 1, .apply = apply, .ctx = ctx};

    return store_writer_call(f->w, &work, why);
}

struct ids {
    int64_t job, run;
    int attempt;
};

static inline enum pd_err submit(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct ids *ids = ctx;
    struct store_job_new job = {.name = "a \"quoted\" job", .experiment = "e", .document = "{}"};
    struct store_run_new run = {
        .document = "{}", .device = "cpu", .slots = 1, .threads = 2, .max_restarts = 3, .total_steps = 100};
    enum pd_err err = store_job_insert(tx, &job, &ids->job, why);

    return err == PD_OK ? store_run_insert(tx, ids->job, &run, &ids->run, why) : err;
}

static inline enum pd_err submit_then_fail(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    enum pd_err err = submit(tx, ctx, why);

    return err == PD_OK ? pd_fail(why, PD_ERR_INVALID, "changed my mind") : err;
}

static inline enum pd_err start_attempt(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct ids *ids = ctx;
    struct store_attempt_new a = {.run_id = ids->run, .devices = "cpu:0"};

    return store_attempt_insert(tx, &a, &ids->attempt, why);
}

static inline struct ids submitted(struct fixture *f)
{
    struct ids ids = {0};
    struct pd_why why;

    assert_int_equal(call(f, submit, &ids, &why), PD_OK);
    return ids;
}

struct append {
    int64_t run;
    int attempt;
    struct store_metric *points;
    size_t count;
    int64_t news;
};

static inline enum pd_err append(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct append *a = ctx;

    return store_metric_append(tx, a->run, a->attempt, a->points, a->count, &a->news, why);
}

static inline int64_t append_points(struct fixture *f, int64_t run, int attempt, struct store_metric *points,
                                    size_t count)
{
    struct append a = {.run = run, .attempt = attempt, .points = points, .count = count};
    struct pd_why why = {""};

    if (call(f, append, &a, &why) != PD_OK)
        fail_msg("%s", why.text);
    return a.news;
}

static inline bool keep_series(void *ctx, const struct store_series *m)
{
    *(struct store_series *)ctx = *m;
    return true;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

/* SQL on the file itself, while no writer has it. */
static inline void poke(struct fixture *f, const char *sql)
{
    char path[128];
    sqlite3 *db;

    snprintf(path, sizeof path, "%s/polyd.db", f->dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

static inline void say(void *ctx, const char *text)
{
    (void)ctx;
    print_message("verify: %s\n", text);
}

/* How many places of the folder contradict each other; each is printed. */
static inline int64_t problems(struct fixture *f)
{
    struct pd_why why;
    int64_t n = -1;

    assert_int_equal(store_verify(f->dir, false, say, NULL, &n, &why), PD_OK);
    return n;
}

static inline void expect_sound(struct fixture *f)
{
    assert_int_equal(problems(f), 0);
}
