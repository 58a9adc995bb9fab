/* Whose a series is: what a run's worker writes, or has written, no client may add to; and what a client once
 * did counts for nothing beside it. */
#include <math.h>

#include "daemon/job/job.h"
#include "daemon/polyd/supervise/expand.h"
#include "tests/store/help.h"

struct batch {
    int64_t run;
    struct store_metric *points;
    size_t count, index;
};

static enum pd_err check(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct batch *b = ctx;

    return store_metric_check_client(tx, b->run, b->points, b->count, &b->index, why);
}

/* The index of the point that is refused, -1 = none is. */
static int refused(struct fixture *f, int64_t run, struct store_metric *points, size_t count,
                   struct pd_why *why)
{
    struct batch b = {.run = run, .points = points, .count = count, .index = 99};
    enum pd_err err = call(f, check, &b, why);

    assert_true(err == PD_OK || err == PD_ERR_CONFLICT);
    return err == PD_OK ? -1 : (int)b.index;
}

static int refused_key(struct fixture *f, int64_t run, const char *key)
{
    struct store_metric p = {.key = key, .step = 1, .time_us = 1, .value = 1};
    struct pd_why why;

    return refused(f, run, &p, 1, &why);
}

struct trained {
    struct expand_run run;
    struct ids ids;
};

static enum pd_err submit_trained(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct trained *t = ctx;
    struct store_job_new job = {.name = "real", .experiment = "e", .document = "{}"};
    struct store_run_new run = {
        .document = t->run.document.data, .device = "cpu", .slots = 1, .threads = 1, .total_steps = -1};
    enum pd_err err = store_job_insert(tx, &job, &t->ids.job, why);

    return err == PD_OK ? store_run_insert(tx, t->ids.job, &run, &t->ids.run, why) : err;
}

/* A run of a document as polyd resolves it, not started. */
static int64_t trained(struct fixture *f)
{
    static const char text[] =
        "{\"model\": {\"preset\": \"vit_micro\"}, \"data\": {\"dataset\": \"digits_gen\"}, "
        "\"train\": {\"steps\": 10}}";
    struct job_env env = {.threads = 1};
    struct job_report report;
    struct job_doc *job = NULL;
    struct trained t = {0};
    struct pd_why why = {""};

    job_report_init(&report);
    assert_int_equal(job_parse(text, strlen(text), &env, &job, &report), PD_OK);
    assert_int_equal(expand_run_make(job, 0, &t.run, &why), PD_OK);
    assert_int_equal(call(f, submit_trained, &t, &why), PD_OK);
    expand_run_done(&t.run);
    job_free(job);
    job_report_done(&report);
    return t.ids.run;
}

static void test_keys_of_the_worker_are_refused_before_it_wrote_any(void **state)
{
    struct fixture *f = *state;
    int64_t run = trained(f);
    struct store_metric points[] = {{.key = "mine/a", .step = 1, .time_us = 1, .value = 1},
                                    {.key = "mine/a", .step = 2, .time_us = 1, .value = 1},
                                    {.key = "acc/val", .step = 1, .time_us = 1, .value = 1}};
    static const char *const own[] = {
        "loss/val",   "loss/train",    "acc/val",   "lr",      "grad/norm",
        "attn/fro/1", "attn/fro/1/2",  "step_ms",   "sys/cpu", "system/gpu.0/power",
        "data_wait",  "samples_per_s", "loss/test", "acc/test"};
    static const char *const free_keys[] = {"mine/loss",   "ppl/test", "ppl/val",
                                            "attn/fro/99", "my lr",    "system"};
    struct pd_why why;

    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (refused_key(f, run, own[i]) != 0)
            fail_msg("%s is taken from a client", own[i]);
    for (size_t i = 0; i < sizeof free_keys / sizeof *free_keys; i++)
        if (refused_key(f, run, free_keys[i]) != -1)
            fail_msg("%s is refused", free_keys[i]);
    assert_int_equal(refused(f, run, points, 3, &why), 2);
    assert_non_null(strstr(why.text, "the run itself writes acc/val"));
    assert_int_equal(refused(f, run, points, 2, &why), -1);
}

static void test_what_a_worker_has_written_is_its_own(void **state)
{
    struct fixture *f = *state;
    struct ids ids = submitted(f); /* its document says nothing */
    struct store_metric own = {.key = "w", .step = 5, .time_us = 1, .value = 2},
                        mine = {.key = "m", .step = 5, .time_us = 1, .value = 3};

    assert_int_equal(refused_key(f, ids.run, "w"), -1);
    append_points(f, ids.run, 1, &own, 1);
    append_points(f, ids.run, 0, &mine, 1);
    assert_int_equal(refused_key(f, ids.run, "w"), 0);
    assert_int_equal(refused_key(f, ids.run, "m"), -1);
    writer_down(f); /* it is the file that knows */
    writer_up(f);
    assert_int_equal(refused_key(f, ids.run, "w"), 0);
    assert_int_equal(refused_key(f, ids.run, "m"), -1);
}

static bool count_point(void *ctx, const struct store_point *p)
{
    assert_true(p->attempt == 1);
    ++*(int *)ctx;
    return true;
}

static void test_points_of_a_client_count_for_nothing_beside_the_worker_s(void **state)
{
    struct fixture *f = *state;
    struct ids ids = submitted(f);
    struct store_metric early = {.key = "w", .step = 900, .time_us = 1, .value = -100},
                        late = {.key = "w", .step = 901, .time_us = 2, .value = 100},
                        own[] = {{.key = "w", .step = 1, .time_us = 3, .value = 2},
                                 {.key = "w", .step = 2, .time_us = 4, .value = 1}};
    struct store_point_query q = {
        .run_id = ids.run, .key = "w", .from_step = INT64_MIN, .to_step = INT64_MAX, .attempt = -1};
    struct store_series m;
    struct pd_why why;
    int n = 0;

    assert_int_equal(call(f, start_attempt, &ids, &why), PD_OK);
    append_points(f, ids.run, 0, &early, 1);
    append_points(f, ids.run, 1, own, 2);
    append_points(f, ids.run, 0, &late, 1);
    assert_int_equal(store_series_get(f->s, ids.run, "w", keep_series, &m, &why), PD_OK);
    assert_true(m.value == 1 && m.step == 2 && m.attempt == 1 && m.min == 1 && m.max == 2 && m.count == 4);
    assert_int_equal(store_point_list(f->s, &q, count_point, &n, &why), PD_OK);
    assert_int_equal(n, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_keys_of_the_worker_are_refused_before_it_wrote_any),
        TEST(test_what_a_worker_has_written_is_its_own),
        TEST(test_points_of_a_client_count_for_nothing_beside_the_worker_s),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
