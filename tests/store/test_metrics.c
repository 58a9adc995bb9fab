/* Points, series, roll-ups, ghosts; what a worker sends twice. */
#include <math.h>

#include "kernels/base/clock.h"
#include "tests/store/help.h"

struct points {
    int count;
    struct store_point at[64];
};

static bool keep_point(void *ctx, const struct store_point *p)
{
    struct points *all = ctx;

    all->at[all->count++ % 64] = *p;
    return true;
}

static void test_store_metrics_repeat_is_ignored_other_value_is_kept(void **state)
{
    struct fixture *f = *state;
    struct ids ids = submitted(f);
    struct store_metric points[] = {
        {.key = "loss/train", .step = 1, .time_us = 5, .value = 2.5},
        {.key = "loss/train", .step = 2, .time_us = 6, .value = (double)NAN},
        {.key = "loss/train", .step = 3, .time_us = 7, .value = (double)INFINITY},
    };
    struct store_metric other = {.key = "loss/train", .step = 1, .time_us = 5, .value = 9.0};
    struct store_point_query q = {
        .run_id = ids.run, .key = "loss/train", .from_step = INT64_MIN, .to_step = INT64_MAX, .attempt = -1};
    struct store_series m;
    struct points got = {0};
    struct pd_why why;

    assert_int_equal(append_points(f, ids.run, 0, points, 3), 3);
    assert_int_equal(append_points(f, ids.run, 0, points, 3), 0);
    assert_int_equal(append_points(f, ids.run, 0, &other, 1), 1);
    assert_int_equal(append_points(f, ids.run, 0, &other, 1), 0);
    assert_int_equal(store_point_list(f->s, &q, keep_point, &got, &why), PD_OK);
    assert_int_equal(got.count, 4);
    assert_true(got.at[0].value == 2.5 && got.at[1].value == 9.0);
    assert_true(isnan(got.at[2].value) && isinf(got.at[3].value));
    q.from_step = 1;
    q.skip = 1;
    q.limit = 1;
    got.count = 0;
    assert_int_equal(store_point_list(f->s, &q, keep_point, &got, &why), PD_OK);
    assert_int_equal(got.count, 1);
    assert_true(got.at[0].value == 9.0);
    assert_int_equal(store_series_get(f->s, ids.run, "loss/train", keep_series, &m, &why), PD_OK);
    assert_true(m.count == 4 && m.step == 3 && m.min == 2.5 && m.max == 9.0);
    assert_int_equal(store_series_get(f->s, ids.run, "nothing", keep_series, &m, &why), PD_ERR_NOT_FOUND);
}

struct reading {
    struct store *s;
    int count;
};

/* The time of the query is over while the caller has its first row. */
static bool late_point(void *ctx, const struct store_point *p)
{
    struct reading *r = ctx;

    (void)p;
    if (++r->count == 1 && r->s)
        store_reader_until(r->s, 1);
    return true;
}

static void test_store_reader_stops_when_its_time_is_over(void **state)
{
    enum { POINTS = 20000 };
    struct fixture *f = *state;
    struct ids ids = submitted(f);
    struct store_metric *points = calloc(POINTS, sizeof *points);
    struct store_point_query q = {
        .run_id = ids.run, .key = "k", .from_step = INT64_MIN, .to_step = INT64_MAX, .attempt = -1};
    struct store_series m;
    struct pd_why why;
    struct reading reading = {.s = f->s};

    assert_non_null(points);
    for (int i = 0; i < POINTS; i++)
        points[i] = (struct store_metric){.key = "k", .step = i, .time_us = i, .value = i};
    assert_int_equal(append_points(f, ids.run, 0, points, POINTS), POINTS);
    free(points);
    /* Over before it begins: nothing is read. */
    store_reader_until(f->s, 1);
    assert_int_equal(store_series_get(f->s, ids.run, "k", keep_series, &m, &why), PD_ERR_TIMEOUT);
    assert_non_null(strstr(why.text, "server.read_timeout_ms"));
    /* Over in the middle of a query. */
    store_reader_until(f->s, pd_clock_mono_us() + 600 * INT64_C(1000000));
    assert_int_equal(store_point_list(f->s, &q, late_point, &reading, &why), PD_ERR_TIMEOUT);
    assert_in_range(reading.count, 1, POINTS - 1);
    /* And without an end again. */
    store_reader_until(f->s, 0);
    reading = (struct reading){0};
    assert_int_equal(store_point_list(f->s, &q, late_point, &reading, &why), PD_OK);
    assert_int_equal(reading.count, POINTS);
}

struct seen {
    int64_t ids[8];
    int count;
};

static bool see_series(void *ctx, const struct store_series *m)
{
    struct seen *s = ctx;

    if (s->count < 8)
        s->ids[s->count++] = m->key_id;
    return true;
}

static void test_store_series_come_in_pages(void **state)
{
    struct fixture *f = *state;
    struct ids ids = submitted(f);
    struct store_metric points[] = {
        {.key = "b", .step = 1}, {.key = "a", .step = 1}, {.key = "c", .step = 1}};
    struct seen first = {.count = 0}, rest = {.count = 0};
    struct pd_why why;

    assert_int_equal(append_points(f, ids.run, 0, points, 3), 3);
    assert_int_equal(store_series_page(f->s, ids.run, 0, 2, see_series, &first, &why), PD_OK);
    assert_int_equal(first.count, 2);
    assert_int_equal(store_series_page(f->s, ids.run, first.ids[1], 2, see_series, &rest, &why), PD_OK);
    assert_int_equal(rest.count, 1);
    assert_true(first.ids[0] < first.ids[1] && first.ids[1] < rest.ids[0]);
}

static void test_store_metrics_refuse_unknown_run_and_bad_key(void **state)
{
    struct fixture *f = *state;
    struct ids ids = submitted(f);
    struct store_metric point = {.key = "", .step = 1, .value = 1};
    struct append a = {.run = 4711, .points = &point, .count = 1};
    struct pd_why why;

    assert_int_equal(call(f, append, &a, &why), PD_ERR_NOT_FOUND);
    a.run = ids.run;
    assert_int_equal(call(f, append, &a, &why), PD_ERR_INVALID);
}

struct resume {
    struct ids *ids;
    int64_t start;
};

static enum pd_err attempt_from(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    const struct resume *resume = ctx;
    struct ids *ids = resume->ids;
    struct store_attempt_new a = {.run_id = ids->run, .devices = "cpu:0", .start_step = resume->start};
    enum pd_err err;

    err = store_attempt_move(tx, ids->run, ids->attempt, JOB_ATTEMPT_ENDED, JOB_CAUSE_LOST, "gone", 9, why);
    if (err == PD_OK)
        err = store_run_move(tx, ids->run, JOB_RUN_QUEUED, 0, "lost", why);
    return err == PD_OK ? store_attempt_insert(tx, &a, &ids->attempt, why) : err;
}

static void test_store_points_beyond_the_checkpoint_become_ghosts(void **state)
{
    struct fixture *f = *state;
    struct ids ids = submitted(f);
    struct resume resume = {.ids = &ids, .start = 10};
    struct store_metric points[20];
    struct store_point_query q = {
        .run_id = ids.run, .key = "x", .from_step = INT64_MIN, .to_step = INT64_MAX, .attempt = -1};
    struct points got = {0};
    struct pd_why why;

    assert_int_equal(call(f, start_attempt, &ids, &why), PD_OK);
    for (int i = 0; i < 20; i++)
        points[i] = (struct store_metric){.key = "x", .step = i + 1, .time_us = i, .value = 1};
    append_points(f, ids.run, 1, points, 15); /* steps 1..15, checkpoint at 10 */
    assert_int_equal(call(f, attempt_from, &resume, &why), PD_OK);
    assert_int_equal(ids.attempt, 2);
    for (int i = 9; i < 20; i++)
        points[i].value = 2;
    append_points(f, ids.run, 2, points + 9,
                  11); /* steps 10..20: that of the checkpoint is the first attempt's */
    assert_int_equal(store_point_list(f->s, &q, keep_point, &got, &why), PD_OK);
    assert_int_equal(got.count, 20);
    for (int i = 0; i < 20; i++)
        assert_true(got.at[i].step == i + 1 && got.at[i].value == (i < 10 ? 1 : 2));
    q.attempt = 1;
    got.count = 0;
    assert_int_equal(store_point_list(f->s, &q, keep_point, &got, &why), PD_OK);
    assert_int_equal(got.count, 15);
}

struct chart {
    int64_t points, buckets, last_step;
    double min, max, sum;
};

static bool add_bucket(void *ctx, const struct store_bucket *b)
{
    struct chart *c = ctx;

    assert_true(b->first_step <= b->last_step && b->first_step > c->last_step);
    c->last_step = b->last_step;
    c->buckets++;
    c->points += b->count;
    c->sum += b->mean * (double)(b->count - b->nonfinite);
    c->min = c->buckets == 1 || b->min < c->min ? b->min : c->min;
    c->max = c->buckets == 1 || b->max > c->max ? b->max : c->max;
    return true;
}

/* An attempt measures at or before its start: a test of the best weights, an evaluation left undone before. */
static void test_store_points_at_or_before_the_start_are_shown(void **state)
{
    struct fixture *f = *state;
    struct ids ids = submitted(f);
    struct resume resume = {.ids = &ids, .start = 10};
    struct store_metric first[] = {{.key = "x", .step = 2, .time_us = 1, .value = 1},
                                   {.key = "x", .step = 8, .time_us = 2, .value = 1},
                                   {.key = "x", .step = 12, .time_us = 3, .value = 1}};
    struct store_metric second[] = {{.key = "x", .step = 10, .time_us = 4, .value = 2},
                                    {.key = "x", .step = 12, .time_us = 5, .value = 2},
                                    {.key = "x", .step = 3, .time_us = 6, .value = 2},
                                    {.key = "x", .step = 8, .time_us = 7, .value = 2},
                                    {.key = "test", .step = 3, .time_us = 8, .value = 2}};
    struct store_metric third = {.key = "x", .step = 10, .time_us = 9, .value = 3};
    static const int64_t steps[] = {2, 3, 8, 10, 12}, values[] = {1, 2, 1, 2, 2};
    struct store_point_query q = {
        .run_id = ids.run, .key = "x", .from_step = INT64_MIN, .to_step = INT64_MAX, .attempt = -1};
    struct points got = {0};
    struct chart c = {.last_step = INT64_MIN};
    struct pd_why why;

    assert_int_equal(call(f, start_attempt, &ids, &why), PD_OK);
    append_points(f, ids.run, 1, first, 3);
    assert_int_equal(call(f, attempt_from, &resume, &why), PD_OK);
    append_points(f, ids.run, 2, second, 5);
    assert_int_equal(store_point_list(f->s, &q, keep_point, &got, &why), PD_OK);
    assert_int_equal(got.count, 5);
    for (int i = 0; i < 5; i++)
        assert_true(got.at[i].step == steps[i] && (int64_t)got.at[i].value == values[i] &&
                    got.at[i].attempt == got.at[i].value);
    assert_int_equal(store_bucket_list(f->s, &q, 100, add_bucket, &c, NULL, &why), PD_OK);
    assert_true(c.points == 5 && c.sum == 8 && c.last_step == 12);
    q.from_step = 3; /* the next page */
    q.skip = q.limit = 1;
    got.count = 0;
    assert_int_equal(store_point_list(f->s, &q, keep_point, &got, &why), PD_OK);
    assert_true(got.count == 1 && got.at[0].step == 8);
    q = (struct store_point_query){
        .run_id = ids.run, .key = "test", .from_step = INT64_MIN, .to_step = INT64_MAX, .attempt = -1};
    got.count = 0;
    c = (struct chart){.last_step = INT64_MIN};
    assert_int_equal(store_point_list(f->s, &q, keep_point, &got, &why), PD_OK);
    assert_true(got.count == 1 && got.at[0].step == 3 && got.at[0].attempt == 2);
    assert_int_equal(store_bucket_list(f->s, &q, 10, add_bucket, &c, NULL, &why), PD_OK);
    assert_true(c.points == 1 && c.sum == 2);
    /* The third attempt goes on from the same checkpoint: the second's points beyond it are ghosts. */
    assert_int_equal(call(f, attempt_from, &resume, &why), PD_OK);
    append_points(f, ids.run, 3, &third, 1);
    q.key = "x";
    got.count = 0;
    assert_int_equal(store_point_list(f->s, &q, keep_point, &got, &why), PD_OK);
    assert_int_equal(got.count, 4);
    for (int i = 0; i < 4; i++)
        assert_true(got.at[i].step == steps[i] && (int64_t)got.at[i].value == values[i]);
}

/* A ghost of a step does not hide what a later attempt measured there. */
static void test_store_points_at_the_start_replace_ghosts(void **state)
{
    struct fixture *f = *state;
    struct ids ids = submitted(f);
    struct resume resume = {.ids = &ids, .start = 10};
    struct store_metric point = {.key = "x", .step = 15, .time_us = 1, .value = 1};
    struct store_point_query q = {
        .run_id = ids.run, .key = "x", .from_step = INT64_MIN, .to_step = INT64_MAX, .attempt = -1};
    struct points got = {0};
    struct pd_why why;

    assert_int_equal(call(f, start_attempt, &ids, &why), PD_OK);
    append_points(f, ids.run, 1, &point, 1);
    assert_int_equal(call(f, attempt_from, &resume, &why), PD_OK); /* from 10 to a checkpoint of step 15 */
    resume.start = 15;
    assert_int_equal(call(f, attempt_from, &resume, &why), PD_OK);
    point.time_us = 2;
    point.value = 3;
    append_points(f, ids.run, 3, &point, 1);
    assert_int_equal(store_point_list(f->s, &q, keep_point, &got, &why), PD_OK);
    assert_true(got.count == 1 && got.at[0].attempt == 3 && got.at[0].value == 3);
}

/* Buckets from points, from roll-ups and with cut ends must all represent every point once. */
static void test_store_buckets_hold_every_point_and_the_extremes(void **state)
{
    struct fixture *f = *state;
    struct ids ids = submitted(f);
    static struct store_metric points[1000];
    struct store_point_query q = {
        .run_id = ids.run, .key = "y", .from_step = INT64_MIN, .to_step = INT64_MAX, .attempt = -1};
    struct pd_why why;
    double sum = 0;

    for (int block = 0; block < 20; block++) {
        for (int i = 0; i < 1000; i++) {
            int step = block * 1000 + i;

            points[i] = (struct store_metric){.key = "y", .step = step, .time_us = step, .value = step % 777};
            if (step == 7003)
                points[i].value = 1e6;
            if (step == 12345)
                points[i].value = -1e6;
            sum += points[i].value;
        }
        append_points(f, ids.run, 0, points, 1000);
    }
    for (int n = 1; n <= 4000; n *= 5) {
        struct chart c = {.last_step = -1};
        int64_t total;

        assert_int_equal(store_bucket_list(f->s, &q, n, add_bucket, &c, &total, &why), PD_OK);
        assert_int_equal(c.points, 20000);
        assert_int_equal(total, 20000);
        assert_true(c.buckets <= n && c.max == 1e6 && c.min == -1e6);
        assert_true(fabs(c.sum - sum) < 1e-3);
    }
    q.from_step = 500;
    q.to_step = 18499;
    for (int n = 1; n <= 3000; n *= 9) {
        struct chart c = {.last_step = -1};

        assert_int_equal(store_bucket_list(f->s, &q, n, add_bucket, &c, NULL, &why), PD_OK);
        assert_int_equal(c.points, 18000);
        assert_true(c.last_step <= 18499);
    }
    assert_int_equal(store_bucket_list(f->s, &q, 0, add_bucket, NULL, NULL, &why), PD_ERR_INVALID);
}

static void test_store_rollups_survive_reopening_and_failed_neighbours(void **state)
{
    struct fixture *f = *state;
    struct ids ids = submitted(f);
    struct store_point_query q = {
        .run_id = ids.run, .key = "z", .from_step = INT64_MIN, .to_step = INT64_MAX, .attempt = -1};
    struct chart c = {.last_step = -1};
    struct pd_why why;

    for (int i = 0; i < 2500; i++) {
        struct store_metric point = {.key = "z", .step = i, .time_us = i, .value = i};

        if (i == 700 || i == 1700) {
            writer_down(f);
            writer_up(f);
        }
        append_points(f, ids.run, 0, &point, 1);
        if (i % 500 == 0) {
            struct ids other = {0};

            assert_int_equal(call(f, submit_then_fail, &other, &why), PD_ERR_INVALID);
        }
    }
    assert_int_equal(store_bucket_list(f->s, &q, 2, add_bucket, &c, NULL, &why), PD_OK);
    assert_int_equal(c.points, 2500);
    assert_true(c.max == 2499 && c.sum == 2499.0 * 2500 / 2);
}

/* ---- exactly once --------------------------------------------------------------------------- */

struct seq {
    struct ids ids;
    int64_t seq;
};

static enum pd_err ack(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct seq *s = ctx;

    return store_attempt_ack(tx, s->ids.run, s->ids.attempt, s->seq, why);
}

static void test_store_attempt_ack_takes_each_seq_once(void **state)
{
    struct fixture *f = *state;
    struct seq s = {.ids = submitted(f), .seq = 1};
    struct pd_why why;

    assert_int_equal(call(f, start_attempt, &s.ids, &why), PD_OK);
    assert_int_equal(call(f, ack, &s, &why), PD_OK);
    assert_int_equal(call(f, ack, &s, &why), PD_ERR_EXISTS);
    s.seq = 3;
    assert_int_equal(call(f, ack, &s, &why), PD_ERR_CONFLICT);
    s.seq = 2;
    assert_int_equal(call(f, ack, &s, &why), PD_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_store_metrics_repeat_is_ignored_other_value_is_kept),
        TEST(test_store_reader_stops_when_its_time_is_over),
        TEST(test_store_series_come_in_pages),
        TEST(test_store_metrics_refuse_unknown_run_and_bad_key),
        TEST(test_store_points_beyond_the_checkpoint_become_ghosts),
        TEST(test_store_points_at_or_before_the_start_are_shown),
        TEST(test_store_points_at_the_start_replace_ghosts),
        TEST(test_store_buckets_hold_every_point_and_the_extremes),
        TEST(test_store_rollups_survive_reopening_and_failed_neighbours),
        TEST(test_store_attempt_ack_takes_each_seq_once),
    };

    return cmocka_run_group_tests_name("store_metrics", tests, NULL, NULL);
}
