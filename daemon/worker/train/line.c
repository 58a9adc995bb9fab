/* daemon/worker/train/line.c: see line.h. */
#include "daemon/worker/train/line.h"

#include <stdlib.h>
#include <string.h>

enum { PAIR, DIRECT, MOVE, LOAD, GRAPHS };

struct line {
    const struct session *session;
    struct executable *point;
    struct executable graph[GRAPHS];
    double *numbers; /* LBFGS_NUMBERS */
    double report[MODEL_REPORT_MAX];
    struct optim_point last, from; /* the last evaluation, and that at which the present search began */
    void (*seen)(void *user, const struct optim_point *p, const struct optim_point *from);
    void *user;
};

enum pd_err line_open(const struct session *s, struct model_store *store, struct executable *point,
                      struct line **ret, struct pd_why *why)
{
    static const enum train_graph_use uses[GRAPHS] = {TRAIN_GRAPH_LINE_PAIR, TRAIN_GRAPH_LINE_DIRECT,
                                                      TRAIN_GRAPH_LINE_MOVE, TRAIN_GRAPH_LINE_LOAD};
    struct line *l = calloc(1, sizeof *l);
    enum pd_err err = PD_OK;

    if (!l)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for an optimiser");
    l->session = s;
    l->point = point;
    l->numbers = calloc(LBFGS_NUMBERS, sizeof *l->numbers);
    if (!l->numbers)
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for an optimiser");
    for (int i = 0; i < GRAPHS && err == PD_OK; i++) {
        struct train_graph graph;

        err = train_graph_find(&s->setup, uses[i], &graph)
                  ? session_executable(s, &graph, store, point, &l->graph[i], why)
                  : pd_fail(why, PD_ERR_INTERNAL, "the optimiser of this run has no line search");
    }
    if (err == PD_OK)
        *ret = l;
    else
        line_close(l);
    return err;
}

struct line *line_close(struct line *l)
{
    if (!l)
        return NULL;
    for (int i = 0; i < GRAPHS; i++)
        executable_done(&l->graph[i]);
    free(l->numbers);
    free(l);
    return NULL;
}

void line_watch(struct line *l,
                void (*seen)(void *user, const struct optim_point *p, const struct optim_point *from),
                void *user)
{
    l->seen = seen;
    l->user = user;
}

/* ---- what the optimiser asks for ---- */

static enum pd_err at(void *user, double t, struct optim_point *ret, struct pd_why *why)
{
    struct line *l = user;
    const size_t sums = model_loss_sums(l->session->setup.task->loss);
    const double *reported = l->report + sums;
    enum pd_err err = executable_feed_numbers(l->point, MODEL_LINE_ALONG, &t, 1, why);

    if (err == PD_OK)
        err = pk_exec_run(l->point->exec, why);
    if (err == PD_OK)
        err = executable_read(l->point, "report", l->report, sums + MODEL_LINE_NUMBERS_OF_POINT, why);
    if (err != PD_OK)
        return err;
    *ret = (struct optim_point){.t = t,
                                .loss = l->report[0],
                                .slope = reported[MODEL_LINE_SLOPE],
                                .largest = reported[MODEL_LINE_LARGEST],
                                .sum = reported[MODEL_LINE_SUM],
                                .finite = reported[MODEL_LINE_FINITE] != 0};
    l->last = *ret;
    if (l->seen)
        l->seen(l->user, ret, NULL);
    return PD_OK;
}

static enum pd_err pair(void *user, double t, int32_t row, double *ret, struct pd_why *why)
{
    struct line *l = user;
    struct executable *e = &l->graph[PAIR];
    enum pd_err err = executable_feed_numbers(e, MODEL_LINE_ALONG, &t, 1, why);

    if (err == PD_OK)
        err = e->api->upload(e->backend, executable_memory(e, MODEL_LINE_ROW), &row, sizeof row, why);
    if (err == PD_OK)
        err = pk_exec_run(e->exec, why);
    return err == PD_OK ? executable_read(e, "products", ret, 2 * LBFGS_ROWS * 3, why) : err;
}

static enum pd_err direct(void *user, const double *shares, double *ret_slope, double *ret_largest,
                          struct pd_why *why)
{
    struct line *l = user;
    struct executable *e = &l->graph[DIRECT];
    float narrow[2 * LBFGS_ROWS + 1];
    double reported[2];
    enum pd_err err;

    for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++)
        narrow[i] = (float)shares[i];
    err = e->api->upload(e->backend, executable_memory(e, MODEL_LINE_SHARES),
                         e->wide ? (const void *)shares : narrow,
                         sizeof narrow / sizeof *narrow * (e->wide ? sizeof *shares : sizeof *narrow), why);
    if (err == PD_OK)
        err = pk_exec_run(e->exec, why);
    if (err == PD_OK)
        err = executable_read(e, "direction", reported, 2, why);
    if (err == PD_OK) {
        *ret_slope = reported[0];
        *ret_largest = reported[1];
        l->from = l->last;
        l->from.slope = reported[0];
    }
    return err;
}

static enum pd_err load(struct line *l, struct pd_why *why)
{
    return pk_exec_run(l->graph[LOAD].exec, why);
}

static enum pd_err move(void *user, double t, struct pd_why *why)
{
    struct line *l = user;
    struct executable *e = &l->graph[MOVE];
    enum pd_err err = executable_feed_numbers(e, MODEL_LINE_ALONG, &t, 1, why);

    if (err == PD_OK && l->seen)
        l->seen(l->user, &l->last, &l->from);
    if (err == PD_OK)
        err = pk_exec_run(e->exec, why);
    return err == PD_OK ? load(l, why) : err;
}

/* ---- a step ---- */

enum pd_err line_step(struct line *l, bool first, double lr, double report[MODEL_REPORT_MAX],
                      struct lbfgs_outcome *ret, struct pd_why *why)
{
    const struct optim_line asks = {.user = l, .at = at, .pair = pair, .direct = direct, .move = move};
    const struct session *s = l->session;
    const size_t sums = model_loss_sums(s->setup.task->loss), bytes = LBFGS_NUMBERS * sizeof *l->numbers;
    void *kept = executable_memory(l->point, MODEL_LINE_NUMBERS);
    struct optim_point begin;
    enum pd_err err = s->api->download(s->backend, l->numbers, kept, bytes, why);

    if (err == PD_OK && first)
        lbfgs_forget_steps(l->numbers);
    if (err == PD_OK)
        err = load(l, why);
    if (err == PD_OK)
        err = at(l, 0, &begin, why);
    if (err != PD_OK)
        return err;
    memcpy(report, l->report, (sums + 1) * sizeof *report);
    report[sums + 1] = begin.finite;
    err = lbfgs_step(l->numbers, &asks, &begin, lr, ret, why);
    return err == PD_OK ? s->api->upload(s->backend, kept, l->numbers, bytes, why) : err;
}
