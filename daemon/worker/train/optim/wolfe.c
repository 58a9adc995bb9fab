/* daemon/worker/train/optim/wolfe.c: a line search with the strong Wolfe conditions (Nocedal and Wright, Numerical
 * Optimization, algorithms 3.5 and 3.6), with the interpolation, safeguards and limits of PyTorch's. */
#include <math.h>

#include "daemon/worker/train/optim/search.h"

struct search {
    const struct optim_line *line;
    struct optim_point from;
    int evaluations, infinite;
    bool any;
    double last; /* t of the last evaluation */
};

static enum pd_err look(struct search *s, double t, struct optim_point *ret, struct pd_why *why)
{
    enum pd_err err = s->line->at(s->line->user, t, ret, why);

    ret->t = t;
    if (err == PD_OK && !ret->finite) {
        ret->loss = INFINITY;
        s->infinite++;
    }
    s->evaluations++;
    s->last = t;
    return err;
}

/* The minimum of the cubic through two points with their slopes, kept between low and high; the middle where it has none,
 * or one of the points is infinitely high. */
static double interpolate(const struct optim_point *a, const struct optim_point *b, double low, double high)
{
    const struct optim_point *left = a->t <= b->t ? a : b, *right = a->t <= b->t ? b : a;
    double d1, square, d2, t;

    if (!a->finite || !b->finite)
        return (low + high) / 2;
    d1 = a->slope + b->slope - 3 * (a->loss - b->loss) / (a->t - b->t);
    square = d1 * d1 - a->slope * b->slope;
    if (!(square >= 0))
        return (low + high) / 2;
    d2 = sqrt(square);
    t = right->t - (right->t - left->t) * ((right->slope + d2 - d1) / (right->slope - left->slope + 2 * d2));
    return t < low ? low : t > high ? high : t; /* of no number: itself, as min and max of Python's give it */
}

static bool too_high(const struct search *s, const struct optim_point *p)
{
    return p->loss > s->from.loss + OPTIM_WOLFE_1 * p->t * s->from.slope;
}

static bool flat(const struct search *s, const struct optim_point *p)
{
    return p->finite && fabs(p->slope) <= -OPTIM_WOLFE_2 * s->from.slope;
}

/* Widens until two points hold a minimum between them, or one meets the conditions (*ret_done; it is end[0] and end[1]). */
static enum pd_err bracket(struct search *s, double t, struct optim_point end[2], bool *ret_done,
                           int *ret_iterations, struct pd_why *why)
{
    struct optim_point before = s->from, now;
    enum pd_err err = look(s, t, &now, why);
    int i = 0;

    *ret_done = false;
    for (; err == PD_OK && i < OPTIM_SEARCH_MOST; i++) {
        double next;

        if (too_high(s, &now) || (i > 1 && now.loss >= before.loss) || flat(s, &now) || now.slope >= 0) {
            *ret_done = !too_high(s, &now) && !(i > 1 && now.loss >= before.loss) && flat(s, &now);
            end[0] = *ret_done ? now : before;
            end[1] = now;
            *ret_iterations = i;
            return PD_OK;
        }
        next = interpolate(&before, &now, now.t + 0.01 * (now.t - before.t), now.t * 10);
        before = now;
        err = look(s, next, &now, why);
    }
    end[0] = s->from;
    end[1] = now;
    *ret_iterations = i;
    return err;
}

/* Away from the ends of the bracket where the steps towards one are too small. */
static double keep_inside(double t, double low, double high, bool *insufficient)
{
    const double edge = 0.1 * (high - low);
    const bool near_edge = fmin(high - t, t - low) < edge;

    if (near_edge && (*insufficient || t >= high || t <= low)) {
        *insufficient = false;
        return fabs(t - high) < fabs(t - low) ? high - edge : low + edge;
    }
    *insufficient = near_edge;
    return t;
}

enum pd_err optim_wolfe(const struct optim_line *line, const struct optim_point *from, double t,
                        double largest, struct optim_point *ret, int *ret_evaluations, int *ret_infinite,
                        struct pd_why *why)
{
    struct search s = {.line = line, .from = *from};
    struct optim_point end[2], now;
    bool done, insufficient = false;
    int i = 0, low = 0;
    enum pd_err err;

    s.from.t = 0;
    err = bracket(&s, t, end, &done, &i, why);
    if (err != PD_OK)
        return err;
    low = end[0].loss <= end[1].loss ? 0 : 1;
    while (!done && i < OPTIM_SEARCH_MOST && !(fabs(end[1].t - end[0].t) * largest < OPTIM_CHANGE)) {
        const double left = fmin(end[0].t, end[1].t), right = fmax(end[0].t, end[1].t);

        if (s.infinite) /* next to what was infinite the cubic of values may end at 0 */
            insufficient = true;
        t = keep_inside(interpolate(&end[0], &end[1], left, right), left, right, &insufficient);
        err = look(&s, t, &now, why);
        if (err != PD_OK)
            return err;
        i++;
        if (too_high(&s, &now) || now.loss >= end[low].loss) {
            end[!low] = now;
            low = end[0].loss <= end[1].loss ? 0 : 1;
            continue;
        }
        if (flat(&s, &now))
            done = true;
        else if (now.slope * (end[!low].t - end[low].t) >= 0)
            end[!low] = end[low];
        end[low] = now;
    }
    *ret = end[low];
    *ret_evaluations = s.evaluations;
    *ret_infinite = s.infinite;
    if (s.last !=
        ret->t) { /* the gradient of the point that is taken is the last one again; it counts as no trial */
        err = line->at(line->user, ret->t, &now, why);
    }
    return err;
}
