/* What charts and tables show of a series, against the points themselves: each bucket and each latest value
 * is computed here again, from the list of what was sent. */
#include <math.h>

#include "tests/store/help.h"

enum { COUNT = 12000, BLOCK = 700 };

/* Steps two apart, times that quicken, values of either sign; here and there one that is not finite. */
static struct store_metric sent[COUNT];

static double value_of(int i)
{
    if (i % 97 == 5)
        return (double)NAN;
    if (i % 1013 == 7)
        return (double)INFINITY;
    return sin(i * 0.37) * (1 + i % 13) + (i == 4321 ? 500 : 0) - (i == 9876 ? 700 : 0);
}

static void send_all(struct fixture *f, int64_t run, int attempt)
{
    for (int i = 0; i < COUNT; i++)
        sent[i] = (struct store_metric){.key = "m",
                                        .step = 2 * i + 10,
                                        .time_us = 1000000 + 1000 * (int64_t)i + (int64_t)i * i / 10,
                                        .value = value_of(i)};
    for (int i = 0; i < COUNT; i += BLOCK)
        assert_int_equal(append_points(f, run, attempt, sent + i, i + BLOCK < COUNT ? BLOCK : COUNT - i),
                         i + BLOCK < COUNT ? BLOCK : COUNT - i);
}

struct check {
    int64_t lo, hi, points, last_step; /* steps that the buckets divide */
    int n, seen, last_index;
    bool exact; /* no roll-up is used: each point lies in the bucket of its own step */
};

static bool check_bucket(void *ctx, const struct store_bucket *b)
{
    struct check *c = ctx;
    double min = INFINITY, max = -INFINITY, sum = 0;
    int64_t count = 0, nonfinite = 0, first_us = INT64_MAX, last_us = 0;

    assert_true(b->index > c->last_index && b->index < c->n);
    assert_true(b->first_step > c->last_step && b->first_step <= b->last_step);
    c->last_index = b->index;
    c->last_step = b->last_step;
    c->seen++;
    for (int i = 0; i < COUNT; i++) {
        const struct store_metric *p = &sent[i];
        double place = floor((double)(p->step - c->lo) * c->n / (double)(c->hi - c->lo + 1));

        if (c->exact && p->step >= c->lo && p->step <= c->hi)
            assert_int_equal(place == b->index, p->step >= b->first_step && p->step <= b->last_step);
        if (p->step < b->first_step || p->step > b->last_step)
            continue;
        if (p->step == b->first_step)
            assert_int_equal(place, b->index);
        count++;
        first_us = p->time_us < first_us ? p->time_us : first_us;
        last_us = p->time_us > last_us ? p->time_us : last_us;
        if (!isfinite(p->value)) {
            nonfinite++;
            continue;
        }
        min = fmin(min, p->value);
        max = fmax(max, p->value);
        sum += p->value;
    }
    c->points += count;
    assert_int_equal(b->count, count);
    assert_int_equal(b->nonfinite, nonfinite);
    assert_int_equal(b->first_us, first_us);
    assert_int_equal(b->last_us, last_us);
    if (count == nonfinite) {
        assert_true(isnan(b->min) && isnan(b->max) && isnan(b->mean));
        return true;
    }
    assert_true(b->min == min && b->max == max);
    if (!(fabs(b->mean - sum / (double)(count - nonfinite)) <= 1e-9))
        fail_msg("bucket %d of %d: mean %.17g, not %.17g", b->index, c->n, b->mean,
                 sum / (double)(count - nonfinite));
    return true;
}

static void check_chart(struct fixture *f, struct store_point_query q, int n, bool exact)
{
    struct check c = {.n = n, .exact = exact, .last_index = -1, .last_step = INT64_MIN};
    int64_t want = 0, total = 0;
    struct pd_why why = {""};

    c.lo = q.from_step > sent[0].step ? q.from_step : sent[0].step;
    c.hi = q.to_step < sent[COUNT - 1].step ? q.to_step : sent[COUNT - 1].step;
    for (int i = 0; i < COUNT; i++)
        want += sent[i].step >= c.lo && sent[i].step <= c.hi;
    if (store_bucket_list(f->s, &q, n, check_bucket, &c, &total, &why) != PD_OK)
        fail_msg("%s", why.text);
    assert_int_equal(c.points, want);
    assert_int_equal(total, want);
    assert_true(c.seen > 0);
}

static void test_store_buckets_are_those_of_their_points(void **state)
{
    struct fixture *f = *state;
    struct ids ids = submitted(f);
    struct store_point_query q = {
        .run_id = ids.run, .key = "m", .from_step = INT64_MIN, .to_step = INT64_MAX, .attempt = -1};

    send_all(f, ids.run, 0);
    for (int n = 1; n <= 12; n++) /* a thousand points a bucket and more: of roll-ups */
        check_chart(f, q, n, false);
    check_chart(f, q, 13, true);
    check_chart(f, q, 400, true);
    check_chart(f, q, 3000, true);
    /* The ends cut a roll-up in two: what is inside counts point by point. */
    q.from_step = 2500;
    q.to_step = 20001;
    for (int n = 1; n <= 8; n++)
        check_chart(f, q, n, false);
    check_chart(f, q, 50, true);
    writer_down(f);
    writer_up(f);
    check_chart(f, q, 3, false);
}

struct times {
    int64_t from, to, count[8];
};

static bool check_time(void *ctx, const struct store_bucket *b)
{
    struct times *t = ctx;
    double sum = 0;
    int64_t count = 0, finite = 0;

    for (int i = 0; i < COUNT; i++) {
        double place = floor((double)(sent[i].time_us - t->from) * 8 / (double)(t->to - t->from + 1));

        if (place != b->index)
            continue;
        count++;
        finite += isfinite(sent[i].value);
        sum += isfinite(sent[i].value) ? sent[i].value : 0;
    }
    t->count[b->index] = b->count;
    if (b->count == count)
        assert_true(fabs(b->mean - sum / (double)finite) < 1e-9);
    return true;
}

/* By time a bucket may begin where a roll-up does; over points, at the very moment. */
static void test_store_buckets_by_time_divide_the_time(void **state)
{
    struct fixture *f = *state;
    struct ids ids = submitted(f);
    struct store_point_query q = {.run_id = ids.run,
                                  .key = "m",
                                  .from_step = INT64_MIN,
                                  .to_step = INT64_MAX,
                                  .attempt = -1,
                                  .by_time = true,
                                  .whole_range = true};
    struct times t = {0};
    int64_t total = 0;
    struct pd_why why = {""};

    send_all(f, ids.run, 0);
    t.from = q.from_us = sent[0].time_us;
    t.to = q.to_us = sent[COUNT - 1].time_us;
    assert_int_equal(store_bucket_list(f->s, &q, 8, check_time, &t, &total, &why), PD_OK);
    assert_int_equal(total, COUNT);
    for (int i = 0; i < 8; i++) {
        int64_t here = 0;

        for (int k = 0; k < COUNT; k++)
            here += floor((double)(sent[k].time_us - t.from) * 8 / (double)(t.to - t.from + 1)) == i;
        assert_in_range(t.count[i] + 1000, here, here + 2000); /* to a roll-up's length */
    }
}

static enum pd_err next_attempt(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct ids *ids = ctx;
    struct store_attempt_new a = {.run_id = ids->run, .devices = "cpu:0", .start_step = 10};
    enum pd_err err =
        store_attempt_move(tx, ids->run, ids->attempt, JOB_ATTEMPT_ENDED, JOB_CAUSE_LOST, "gone", 9, why);

    if (err == PD_OK)
        err = store_run_move(tx, ids->run, JOB_RUN_QUEUED, 0, "lost", why);
    return err == PD_OK ? store_attempt_insert(tx, &a, &ids->attempt, why) : err;
}

static struct store_series latest(struct fixture *f, int64_t run, const char *key)
{
    struct store_series m;
    struct pd_why why = {""};

    if (store_series_get(f->s, run, key, keep_series, &m, &why) != PD_OK)
        fail_msg("%s", why.text);
    return m;
}

static void add(struct fixture *f, const struct ids *ids, int attempt, int64_t step, int64_t time_us,
                double value)
{
    struct store_metric p = {.key = "l", .step = step, .time_us = time_us, .value = value};

    assert_int_equal(append_points(f, ids->run, attempt, &p, 1), 1);
}

/* The latest attempt's greatest step, and of one step the latest moment; the extremes are of all. */
static void test_store_latest_is_of_the_latest_attempt_step_and_moment(void **state)
{
    struct fixture *f = *state;
    struct ids ids = submitted(f);
    struct pd_why why;

    assert_int_equal(call(f, start_attempt, &ids, &why), PD_OK);
    add(f, &ids, 1, 20, 100, 5);
    add(f, &ids, 1, 20, 300, 6);
    assert_true(latest(f, ids.run, "l").value == 6);
    add(f, &ids, 1, 20, 200, 7); /* earlier, though it came later */
    assert_true(latest(f, ids.run, "l").value == 6);
    add(f, &ids, 1, 15, 400, -3);
    assert_true(latest(f, ids.run, "l").value == 6 && latest(f, ids.run, "l").step == 20);
    add(f, &ids, 1, 30, 50, 8);
    assert_true(latest(f, ids.run, "l").value == 8 && latest(f, ids.run, "l").step == 30);
    assert_int_equal(call(f, next_attempt, &ids, &why), PD_OK);
    add(f, &ids, 2, 11, 500, 1); /* went back to step 10: what it says is the latest */
    assert_true(latest(f, ids.run, "l").value == 1 && latest(f, ids.run, "l").step == 11);
    add(f, &ids, 1, 40, 600, 9); /* a late word of the attempt before */
    assert_true(latest(f, ids.run, "l").value == 1);
    add(f, &ids, 2, 12, 510, (double)NAN);
    assert_true(isnan(latest(f, ids.run, "l").value));
    assert_int_equal(latest(f, ids.run, "l").count, 8);
    assert_true(latest(f, ids.run, "l").min == -3 && latest(f, ids.run, "l").max == 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_store_buckets_are_those_of_their_points),
        TEST(test_store_buckets_by_time_divide_the_time),
        TEST(test_store_latest_is_of_the_latest_attempt_step_and_moment),
    };

    return cmocka_run_group_tests_name("store_rollups", tests, NULL, NULL);
}
