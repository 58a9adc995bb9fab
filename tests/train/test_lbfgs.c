/* L-BFGS against PyTorch's (lbfgs/README.md), and what a line search may leave. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/job.h"
#include "daemon/worker/train/optim/search.h"
#include "daemon/worker/train/trainer.h"
#include "kernels/base/clock.h"
#include "tests/train/lbfgs/peer.h"
#include "tests/train/rig.h"

#define N 10
#define EVALUATIONS 30
#define CLOSE 1e-8 /* relative */

/* A function of N variables with its vectors on the host. */
struct function {
    double x[N], g[N], d[N], before[N], s[LBFGS_ROWS][N], y[LBFGS_ROWS][N];
    double (*value)(const double *x, double *ret_g);
    double seen[100];
    int evaluations;
    /* of the line being searched */
    struct optim_point from, last;
    int tries;
    int moves, wolfe; /* those that meet both conditions */
    int broken;       /* every so many evaluations one is no number; 0: none */
    int infinite;
    bool single; /* x and the value are rounded to float */
};

static double dot(const double *a, const double *b)
{
    double sum = 0;

    for (int i = 0; i < N; i++)
        sum += a[i] * b[i];
    return sum;
}

static double rosenbrock(const double *x, double *ret_g)
{
    double f = 0;

    memset(ret_g, 0, N * sizeof *ret_g);
    for (int i = 0; i + 1 < N; i++) {
        const double a = x[i + 1] - x[i] * x[i], b = 1 - x[i];

        f += 100 * a * a + b * b;
        ret_g[i] += -400 * a * x[i] - 2 * b;
        ret_g[i + 1] += 200 * a;
    }
    return f;
}

/* Finite where a run starts, and nowhere else. */
static double walled(const double *x, double *ret_g)
{
    const double f = rosenbrock(x, ret_g);

    return x[1] == 1 ? f : (double)INFINITY;
}

static double rounded(const struct function *f, double x)
{
    return f->single ? (float)x : x;
}

static enum pd_err at(void *user, double t, struct optim_point *ret, struct pd_why *why)
{
    struct function *f = user;
    double x[N];
    const bool beyond = f->broken && t > 0 && f->evaluations % f->broken == 2;

    (void)why;
    for (int i = 0; i < N; i++)
        x[i] = rounded(f, f->x[i] + t * f->d[i]);
    *ret = (struct optim_point){.t = t, .loss = rounded(f, f->value(x, f->g))};
    ret->finite = !beyond && isfinite(ret->loss);
    for (int i = 0; beyond && i < N; i++)
        f->g[i] = (double)NAN;
    if (beyond) {
        ret->loss = (double)NAN;
        f->infinite++;
    }
    ret->slope = dot(f->g, f->d);
    for (int i = 0; i < N; i++) {
        ret->largest = fmax(ret->largest, fabs(f->g[i]));
        ret->sum += fabs(f->g[i]);
    }
    if (f->evaluations < 100)
        f->seen[f->evaluations] = ret->loss;
    f->evaluations++;
    f->tries++;
    f->last = *ret;
    return PD_OK;
}

static enum pd_err pair(void *user, double t, int32_t row, double *ret, struct pd_why *why)
{
    struct function *f = user;

    (void)why;
    assert_in_range(row, 0, LBFGS_ROWS - 1);
    for (int i = 0; i < N; i++) {
        f->s[row][i] = t * f->d[i];
        f->y[row][i] = f->g[i] - f->before[i];
    }
    for (int i = 0; i < 2 * LBFGS_ROWS; i++) {
        const double *own = i < LBFGS_ROWS ? f->s[i] : f->y[i - LBFGS_ROWS];

        ret[3 * i] = dot(own, f->y[row]);
        ret[3 * i + 1] = dot(own, f->g);
        ret[3 * i + 2] = dot(own, f->s[row]);
    }
    return PD_OK;
}

static enum pd_err direct(void *user, const double *shares, double *ret_slope, double *ret_largest,
                          struct pd_why *why)
{
    struct function *f = user;

    (void)why;
    *ret_largest = 0;
    for (int i = 0; i < N; i++) {
        f->d[i] = shares[2 * LBFGS_ROWS] * f->g[i];
        for (int k = 0; k < LBFGS_ROWS; k++)
            f->d[i] += shares[k] * f->s[k][i] + shares[LBFGS_ROWS + k] * f->y[k][i];
        *ret_largest = fmax(*ret_largest, fabs(f->d[i]));
    }
    memcpy(f->before, f->g, sizeof f->g);
    *ret_slope = dot(f->g, f->d);
    f->from = f->last;
    f->from.slope = *ret_slope;
    f->tries = 0;
    return PD_OK;
}

static enum pd_err move(void *user, double t, struct pd_why *why)
{
    struct function *f = user;
    const bool lower = f->last.loss <= f->from.loss + OPTIM_WOLFE_1 * t * f->from.slope,
               flat = fabs(f->last.slope) <= -OPTIM_WOLFE_2 * f->from.slope;

    (void)why;
    assert_true(f->last.t == t); /* its gradient is the last one */
    f->moves++;
    f->wolfe += lower && flat;
    assert_true((lower && flat) || f->tries >= OPTIM_SEARCH_MOST || f->single);
    for (int i = 0; i < N; i++)
        f->x[i] = rounded(f, f->x[i] + t * f->d[i]);
    return PD_OK;
}

static void minimise(struct function *f, int evaluations)
{
    const struct optim_line line = {.user = f, .at = at, .pair = pair, .direct = direct, .move = move};
    double *numbers = calloc(LBFGS_NUMBERS, sizeof *numbers);
    struct optim_point first;
    struct lbfgs_outcome outcome;
    struct pd_why why = {""};

    assert_non_null(numbers);
    while (f->evaluations < evaluations) {
        assert_int_equal(at(f, 0, &first, &why), PD_OK);
        assert_int_equal(lbfgs_step(numbers, &line, &first, 1, &outcome, &why), PD_OK);
        if (!outcome.moved)
            break;
    }
    free(numbers);
}

static void begin(struct function *f)
{
    memset(f, 0, sizeof *f);
    f->value = rosenbrock;
    for (int i = 0; i < N; i++)
        f->x[i] = i % 2 ? 1 : -1.2;
}

static void assert_close(double got, double want, int i)
{
    if (!(fabs(got - want) <= CLOSE * fabs(want)))
        fail_msg("evaluation %d: %.17g, PyTorch %.17g", i + 1, got, want);
}

static void test_lbfgs_rosenbrock_follows_pytorch(void **state)
{
    struct function f;

    (void)state;
    begin(&f);
    minimise(&f, EVALUATIONS);
    for (int i = 0; i < EVALUATIONS; i++)
        assert_close(f.seen[i], peer_rosenbrock[i], i);
    assert_true(f.moves > 10);
    assert_int_equal(f.wolfe, f.moves);
}

static void test_lbfgs_reaches_a_minimum_of_many_steps(void **state)
{
    struct function f;

    (void)state;
    begin(&f);
    minimise(&f, 400);
    assert_true(f.last.loss < 4); /* the function has a second minimum, at 3.99 */
    assert_true(f.last.largest < 1e-4);
}

static void test_lbfgs_infinite_trial_is_stepped_back_from(void **state)
{
    struct function f;

    (void)state;
    begin(&f);
    f.broken = 5;
    minimise(&f, 80);
    assert_true(f.infinite > 5);
    assert_true(f.last.loss < 9);
    assert_int_equal(f.wolfe, f.moves);
}

/* A step of `f` at rate `lr`, which continues from `numbers`; *ret_moved: x is another. */
static struct lbfgs_outcome step(struct function *f, double *numbers, double lr, bool *ret_moved)
{
    const struct optim_line line = {.user = f, .at = at, .pair = pair, .direct = direct, .move = move};
    struct lbfgs_outcome outcome;
    struct optim_point first;
    struct pd_why why = {""};
    double x[N];

    memcpy(x, f->x, sizeof x);
    f->evaluations = 0;
    assert_int_equal(at(f, 0, &first, &why), PD_OK);
    assert_int_equal(lbfgs_step(numbers, &line, &first, lr, &outcome, &why), PD_OK);
    *ret_moved = memcmp(x, f->x, sizeof x) != 0;
    return outcome;
}

/* In single precision a search ends where rounding hides what is left to gain. From the third step on that began at one
 * point, every further one evaluates the same points and moves nothing; another rate is another search. */
static void test_lbfgs_stalls_where_rounding_hides_the_gain(void **state)
{
    static const struct {
        double (*value)(const double *x, double *ret_g);
        double rate;
    } cases[] = {{rosenbrock, 1}, {rosenbrock, 0.5}, {walled, 1}};

    (void)state;
    for (int k = 0; k < 3; k++) {
        double *numbers = calloc(LBFGS_NUMBERS, sizeof *numbers), before[100] = {0};
        struct lbfgs_outcome outcome = {.same = 0};
        struct function f;
        int steps = 0, evaluations = 0;
        bool moved = false;

        assert_non_null(numbers);
        begin(&f);
        f.single = true;
        f.value = cases[k].value;
        for (int i = 0; i < N; i++)
            f.x[i] = rounded(&f, f.x[i]);
        while (steps < 400 && outcome.same < 3) {
            outcome = step(&f, numbers, cases[k].rate, &moved);
            steps++;
            assert_true(moved == (k < 2) || steps > 1);
        }
        assert_int_equal(outcome.same, 3);
        assert_true(k == 2 ? outcome.end == LBFGS_END_INFINITE : outcome.end != LBFGS_END_INFINITE);
        for (int again = 0; again < 4; again++) {
            memcpy(before, f.seen, sizeof before);
            evaluations = f.evaluations;
            outcome = step(&f, numbers, cases[k].rate, &moved);
            assert_false(moved);
            assert_int_equal(outcome.same, 4 + again);
            assert_int_equal(f.evaluations, evaluations);
            assert_memory_equal(f.seen, before, (size_t)evaluations * sizeof f.seen[0]);
        }
        lbfgs_forget_steps(numbers); /* as a run that starts from this state */
        assert_int_equal(step(&f, numbers, cases[k].rate, &moved).same, 1);
        for (int again = 0; again < 4; again++)
            assert_int_equal(step(&f, numbers, again % 2 ? cases[k].rate : cases[k].rate / 2, &moved).same,
                             1);
        free(numbers);
    }
}

/* Of gradients that are no numbers all have one norm: steps from them are not the same step. */
static void test_lbfgs_a_start_without_a_finite_loss_is_no_stall(void **state)
{
    double *numbers = calloc(LBFGS_NUMBERS, sizeof *numbers);
    const struct optim_point broken = {.loss = INFINITY, .sum = INFINITY, .largest = INFINITY};
    const struct optim_line none = {.user = NULL};
    struct lbfgs_outcome outcome = {.same = -1};
    struct pd_why why;

    (void)state;
    assert_non_null(numbers);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(lbfgs_step(numbers, &none, &broken, 1, &outcome, &why), PD_OK);
        assert_int_equal(outcome.same, 0);
    }
    free(numbers);
}

/* ---- a run ---- */

struct trail {
    double loss[100];
    int count, tries, moves;
};

static void seen(void *user, const struct optim_point *p, const struct optim_point *from)
{
    struct trail *t = user;

    if (!from) {
        t->tries++;
        if (t->count < 100)
            t->loss[t->count++] = p->loss;
        return;
    }
    t->moves++;
    if (t->tries < OPTIM_SEARCH_MOST) {
        assert_true(p->loss <= from->loss + OPTIM_WOLFE_1 * p->t * from->slope);
        assert_true(fabs(p->slope) <= -OPTIM_WOLFE_2 * from->slope);
    }
    t->tries = 0;
}

/* The start that peer.py writes out. */
static void put_start(struct session *s, struct trainer *t)
{
    for (size_t i = 0; i < model_param_count(s->setup.model); i++) {
        const struct model_param *p = model_param(s->setup.model, i);
        const int64_t count = pk_shape_count(&p->shape);
        const size_t len = strlen(p->name);
        const bool gain = !strcmp(p->name + len - 3, ".w1") || !strcmp(p->name + len - 3, ".w2");
        double *x = calloc((size_t)count, sizeof *x);
        int phase = 0;
        struct pd_why why;

        for (const char *c = p->name; *c; c++)
            phase += *c;
        phase %= 97;
        for (int64_t k = 0; k < count; k++) {
            const double wave = sin(1 + 0.37 * (double)k + 1.3 * phase);

            x[k] = p->shape.rank == 2 ? wave * sqrt(3 / (double)(p->shape.dim[0] + p->shape.dim[1]))
                                      : 0.05 * wave + (gain ? 1 : 0.01);
        }
        assert_int_equal(s->api->upload(s->backend, model_store_data(trainer_store(t), i), x,
                                        (size_t)count * sizeof *x, &why),
                         PD_OK);
        free(x);
    }
}

static enum train_stop never(void *user)
{
    (void)user;
    return TRAIN_STOP_NONE;
}

static void test_lbfgs_pinn_micro_follows_pytorch(void **state)
{
    static const char json[] =
        "{\"model\":{\"preset\":\"pinn_micro\"},\"data\":{\"dataset\":\"pde_reaction\"},"
        "\"attention\":{\"activation\":\"poly\",\"degree\":3},\"diagnostics\":{\"every\":0},"
        "\"resources\":{\"device\":\"cpu\",\"threads\":2},"
        "\"train\":{\"steps\":3,\"precision\":\"fp64\",\"optimizer\":{\"name\":\"lbfgs\"}}}";
    const struct train_dirs dirs = {.checkpoints = checkpoints};
    const struct train_host host = {.stop = never};
    struct session s = {
        .dirs = &dirs, .host = &host, .api = pk_backend_cpu(), .began_us = pd_clock_mono_us()};
    struct trail trail = {.count = 0};
    struct trainer *t = NULL;
    struct job_doc *doc = NULL;
    struct job_report report;
    struct pd_buf resolved;
    struct pd_why why = {""};
    bool lasting, done;

    (void)state;
    job_report_init(&report);
    pd_buf_init(&resolved, 0);
    assert_int_equal(job_parse(json, strlen(json), NULL, &doc, &report), PD_OK);
    assert_int_equal(job_run_resolve(doc, 0, &resolved, &why), PD_OK);
    assert_int_equal(job_config_load(resolved.data, resolved.len, &s.config, &why), PD_OK);
    if (session_open(&s, &lasting, &why) != PD_OK || trainer_open(&s, &t, &why) != PD_OK)
        fail_msg("%s", why.text);
    put_start(&s, t);
    trainer_watch(t, seen, &trail);
    assert_int_equal(trainer_start(t, &why), PD_OK);
    while (trail.count < EVALUATIONS)
        if (trainer_step(t, false, &done, &why) != PD_OK)
            fail_msg("%s", why.text);
    for (int i = 0; i < EVALUATIONS; i++)
        assert_close(trail.loss[i], peer_pinn[i], i);
    assert_true(trail.moves > 10); /* each met both Wolfe conditions */
    trainer_close(t);
    session_close(&s);
    job_config_free(s.config);
    job_free(doc);
    job_report_done(&report);
    pd_buf_done(&resolved);
}

/* With softmax as well, whose second derivatives go by primitives; the probe sees both stacks. */
static void test_lbfgs_resume_is_bit_identical_at_random_stops(void **state)
{
    (void)state;
    check_random_stops(EQUATION("cpu", "\"activation\":\"poly\",\"scale\":\"learned\"", "8", ""), 4);
    clear();
    check_random_stops(EQUATION("cpu", "\"activation\":\"softmax\"", "8", ""), 4);
}

/* A first step so long that powers overflow: the trials are counted, more of them than steps, and the run goes on from
 * its checkpoints. */
static void test_lbfgs_infinite_trials_are_counted(void **state)
{
    static const char job[] = EQUATION("cpu", "\"activation\":\"poly\",\"degree\":5", "8", ",\"lr\":1e7");
    struct train_outcome out;
    struct book book = {0};
    struct pd_why why = {""};

    (void)state;
    if (run(job, &book, NULL, 1, &out, &why) != PD_OK)
        fail_msg("%s", why.text);
    assert_int_equal(out.result, TRAIN_DONE);
    assert_true(out.nonfinite > 8);
    assert_true(out.loss_train < find(&book, "loss/train", 1)->value);
    for (int64_t i = 1; i <= 8; i++) /* a step's numbers belong to one step */
        assert_non_null(find(&book, "evaluations", i));
    assert_null(find(&book, "evaluations", 0));
    close_book(&book);
    clear();
    check_random_stops(job, 2);
}

/* Steps that change nothing are one event, however many there are, and the loss stays. */
static void stall(const char *json, int64_t last, bool stalls)
{
    struct train_outcome out;
    struct book whole = {0}, first = {.stop_after_calls = last / 2, .how = TRAIN_STOP_CHECKPOINT},
                second = {0};
    struct pd_why why = {""};
    const char *event;

    if (run(json, &whole, NULL, 1, &out, &why) != PD_OK)
        fail_msg("%s", why.text);
    event = strstr(whole.events, "stalled;");
    assert_int_equal(event != NULL, stalls);
    assert_null(event ? strstr(event + 1, "stalled;") : NULL);
    assert_int_equal(find(&whole, "loss/train", last - 1)->value == find(&whole, "loss/train", last)->value,
                     stalls);
    clear();
    if (run(json, &first, NULL, 1, &out, &why) != PD_OK || run(json, &second, NULL, 1, &out, &why) != PD_OK)
        fail_msg("%s", why.text);
    assert_int_equal(out.step, last);
    assert_non_null(strstr(second.events, "resume;"));
    assert_int_equal(strstr(first.events, "stalled;") || strstr(second.events, "stalled;"), stalls);
    assert_false(strstr(first.events, "stalled;") && strstr(second.events, "stalled;"));
    close_book(&whole);
    close_book(&first);
    close_book(&second);
    clear();
}

static void test_lbfgs_stall_is_one_event(void **state)
{
    (void)state;
    stall(EQUATION("cpu", "\"activation\":\"poly\",\"degree\":3", "200", ""), 200, true);
    stall(EQUATION("cpu", "\"activation\":\"poly\",\"degree\":3", "8", ",\"lr\":1e30"), 8,
          true); /* no trial is finite */
    stall(EQUATION("cpu", "\"activation\":\"poly\",\"degree\":3", "8", ""), 8, false);
    stall(EQUATION("cpu", "\"activation\":\"poly\",\"degree\":3", "8", ",\"lr\":1e-8"), 8,
          true); /* not at step 1, whose first iteration alone is too short */
}

struct measured {
    double step_ms, flops, evaluations;
};

static void take_measured(void *user, const struct train_point *points, size_t count)
{
    struct measured *m = user;

    for (size_t i = 0; i < count; i++)
        if (!strcmp(points[i].key, "step_ms"))
            m->step_ms = points[i].value;
        else if (!strcmp(points[i].key, "sys/flops"))
            m->flops = points[i].value;
        else if (!strcmp(points[i].key, "evaluations"))
            m->evaluations += points[i].value;
}

/* Every evaluation of a search runs the graph. */
static void test_lbfgs_flops_count_every_evaluation(void **state)
{
    static const char json[] = EQUATION("cpu", "\"activation\":\"poly\",\"degree\":3", "3", "");
    struct measured got = {0};
    const struct train_dirs dirs = {.checkpoints = checkpoints};
    const struct train_host host = {.stop = never, .user = &got, .metrics = take_measured};
    struct session s = {
        .dirs = &dirs, .host = &host, .api = pk_backend_cpu(), .began_us = pd_clock_mono_us()};
    struct trainer *t = NULL;
    struct job_doc *doc = NULL;
    struct job_report report;
    struct pd_buf resolved;
    struct pd_why why = {""};
    bool lasting, done;

    (void)state;
    job_report_init(&report);
    pd_buf_init(&resolved, 0);
    assert_int_equal(job_parse(json, strlen(json), NULL, &doc, &report), PD_OK);
    assert_int_equal(job_run_resolve(doc, 0, &resolved, &why), PD_OK);
    assert_int_equal(job_config_load(resolved.data, resolved.len, &s.config, &why), PD_OK);
    if (session_open(&s, &lasting, &why) != PD_OK || trainer_open(&s, &t, &why) != PD_OK ||
        trainer_begin(t, &why) != PD_OK || trainer_start(t, &why) != PD_OK)
        fail_msg("%s", why.text);
    for (int i = 0; i < 3; i++)
        assert_int_equal(trainer_step(t, false, &done, &why), PD_OK);
    reporter_flush(s.reporter);
    assert_true(got.evaluations > 10 && trainer_step_flop(t) > 0);
    assert_close(got.flops * got.step_ms / 1000 * 3 / got.evaluations, trainer_step_flop(t), 0);
    trainer_close(t);
    session_close(&s);
    job_config_free(s.config);
    job_free(doc);
    job_report_done(&report);
    pd_buf_done(&resolved);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lbfgs_rosenbrock_follows_pytorch),
        cmocka_unit_test(test_lbfgs_reaches_a_minimum_of_many_steps),
        cmocka_unit_test(test_lbfgs_infinite_trial_is_stepped_back_from),
        cmocka_unit_test(test_lbfgs_stalls_where_rounding_hides_the_gain),
        cmocka_unit_test(test_lbfgs_a_start_without_a_finite_loss_is_no_stall),
        cmocka_unit_test_setup_teardown(test_lbfgs_resume_is_bit_identical_at_random_stops, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lbfgs_infinite_trials_are_counted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lbfgs_stall_is_one_event, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lbfgs_flops_count_every_evaluation, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lbfgs_pinn_micro_follows_pytorch, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
