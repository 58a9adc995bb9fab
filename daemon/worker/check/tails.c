/* T18: how heavy the tails of gradients are, PreNorm against DNT (DNT paper, figure 1). Asserts nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/check/net.h"

enum { KURTOSIS, HILL, QUANTILES, SHARE, CROSS, TAILS };
static const char *const tail_names[TAILS] = {
    "kurtosis of g", "Hill index of the top 1 %", "|g| at 99.9 % over |g| at 50 %",
    "share of the squared norm in the top 1 %", "greatest over smallest RMS across layers"};

enum { QUERY, KEY, VALUE, OUTPUT, UP, DOWN, GROUPS };
static const char *const group_names[GROUPS] = {"W_q", "W_k", "W_v", "W_o", "W_1", "W_2"};

struct group {
    double *g; /* of all layers */
    size_t count;
    double low, high; /* RMS of a layer */
};

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* g is sorted by size on return. */
static void tails_of(struct group *t, double ret[TAILS])
{
    double square = 0, fourth = 0, top_square = 0, hill = 0;
    const size_t n = t->count, top = n / 100 > 1 ? n / 100 : 1;

    for (size_t i = 0; i < n; i++) {
        double s = t->g[i] * t->g[i];

        square += s;
        fourth += s * s;
        t->g[i] = fabs(t->g[i]);
    }
    qsort(t->g, n, sizeof *t->g, by_size);
    for (size_t i = n - top; i < n; i++) {
        top_square += t->g[i] * t->g[i];
        hill += log(t->g[i] / t->g[n - top - 1]);
    }
    ret[KURTOSIS] = fourth * (double)n / (square * square);
    ret[HILL] = (double)top / hill; /* the tail's exponent: smaller is heavier */
    ret[QUANTILES] = t->g[(size_t)(0.999 * (double)(n - 1))] / t->g[(n - 1) / 2];
    ret[SHARE] = top_square / square;
    ret[CROSS] = t->high / t->low;
}

/* Appends a piece of a layer's gradient. */
static void add(struct group *t, const double *g, size_t count)
{
    double rms = sqrt(check_dot(g, g, (int64_t)count) / (double)count);

    memcpy(t->g + t->count, g, count * sizeof *g);
    t->low = t->count ? fmin(t->low, rms) : rms;
    t->high = t->count ? fmax(t->high, rms) : rms;
    t->count += count;
}

static void collect(struct check *c, struct check_net *net, struct group *groups)
{
    for (size_t i = 0; c->err == PD_OK && i < model_param_count(net->model); i++) {
        const struct model_param *p = model_param(net->model, i);
        const size_t count = (size_t)pk_shape_count(&p->shape);
        double *g;
        char name[80], part[32];
        int layer;

        if (p->role != MODEL_ROLE_MATRIX || sscanf(p->name, "blocks.%d.%31s", &layer, part) != 2 ||
            !(g = check_numbers(c, count)))
            continue;
        snprintf(name, sizeof name, "grad/%s", p->name);
        check_engine_get(c, &net->en, name, g, count);
        if (c->err != PD_OK)
            return;
        if (!strcmp(part, "attn.qkv.weight"))
            for (int k = 0; k < 3; k++)
                add(&groups[QUERY + k], g + (size_t)k * (count / 3), count / 3);
        else
            add(&groups[!strcmp(part, "attn.proj.weight") ? OUTPUT
                        : !strcmp(part, "mlp.fc1.weight") ? UP
                                                          : DOWN],
                g, count);
    }
}

/* Trains one network and takes the gradient of the next batch. */
static void measure(struct check *c, enum model_placement placement, double ret[GROUPS][TAILS], double share)
{
    const int32_t width = (int32_t)check_param(c, "width"), depth = (int32_t)check_param(c, "depth"),
                  batch = (int32_t)check_param(c, "batch");
    const struct model_spec s = check_net_spec(placement, width, depth, 7, PK_F32);
    struct group groups[GROUPS] = {{0}};
    struct check_net net, gradient;

    for (int k = 0; k < GROUPS; k++)
        groups[k].g = check_numbers(c, (size_t)(depth * width * 4 * width));
    if (!check_net_train(c, &net, &s, "adamw", batch))
        return;
    check_net_init(c, &net);
    check_net_steps(c, &net, "adamw", (int64_t)check_param(c, "steps"), 1e-3, share, 0.5);
    if (check_net_train(c, &gradient, &s, NULL, batch)) {
        check_net_copy(c, &gradient, &net);
        check_net_digits(c, &gradient, 200000);
        check_engine_run(c, &gradient.en);
        collect(c, &gradient, groups);
        check_net_close(&gradient);
    }
    check_net_close(&net);
    for (int k = 0; k < GROUPS && c->err == PD_OK; k++)
        tails_of(&groups[k], ret[k]);
}

static void t18(struct check *c)
{
    double pre[GROUPS][TAILS] = {{0}}, dnt[GROUPS][TAILS] = {{0}};
    int *lower = c->memory ? c->memory : check_alloc(c, 2 * sizeof(int));
    struct check_plot *plot =
        c->nth ? NULL
               : check_plot(c, "|g| at 99.9 % over |g| at 50 %, by matrix (W_q, W_k, W_v, W_o, W_1, W_2)",
                            "matrix", false, "ratio", false);
    struct check_series *a = check_series(c, plot, "points", "PreNorm (S1)"),
                        *b = check_series(c, plot, "points", "DNT (S5)");

    c->memory = lower;
    measure(c, MODEL_S1, pre, 0);
    measure(c, MODEL_S5, dnt, 0.5);
    for (int k = 0; k < GROUPS && c->err == PD_OK; k++) {
        for (int t = 0; t < TAILS; t++) {
            check_report(c, pre[k][t], NAN, NAN, "%s, PreNorm: %s", group_names[k], tail_names[t]);
            check_report(c, dnt[k][t], NAN, NAN, "%s, DNT: %s", group_names[k], tail_names[t]);
        }
        check_point(c, a, k + 1, pre[k][QUANTILES], 0);
        check_point(c, b, k + 1, dnt[k][QUANTILES], 0);
        lower[0] += dnt[k][QUANTILES] < pre[k][QUANTILES];
        lower[1]++;
    }
}

static void t18_finish(struct check *c)
{
    const int *lower = c->memory;

    check_report(c, lower[0], NAN, NAN,
                 "matrices, of %d over all seeds, whose ratio of quantiles is lower in DNT", lower[1]);
    check_evidence(
        c,
        "Of %d matrices over all seeds, %d have a lower ratio of the 99.9 %% quantile to the median in "
        "DNT than in PreNorm.",
        lower[1], lower[0]);
    check_evidence(
        c, "The paper's figure compares ranges (1e-4 against 1e-5), which a learning rate can make up "
           "for; these numbers do not depend on scale. "
           "They are of a tiny pair on digits; E12 asks the same of larger networks.");
}

const struct check_theorem check_T18 = {
    .source = "DNT paper, figure 1",
    .claimed = "DNT's gradients have lighter tails than PreNorm's",
    .correct = "To be decided by experiment: a smaller range is no evidence about tails. Here the scale-free "
               "statistics of a tiny trained pair are "
               "reported; nothing is asserted.",
    .wrong = false,
    .seed = t18,
    .finish = t18_finish,
};
