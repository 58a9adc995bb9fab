/* Networks that solve a differential equation, as the PINNsformer does: what a document may ask of one. */
#include "daemon/job/rules.h"

#include <math.h>
#include <stdio.h>

#include "daemon/job/internal.h"

#define SEQUENCE_MOST 1024  /* points, as daemon/worker/model/arch/pinnsformer.c asks */
#define SOLUTION_LEAST 1e-4 /* an exact solution of amplitude 1 that is smaller everywhere is about 0 */

/* Refuses what such a network does not have. */
static void refuse(struct job_ctx *c, bool asked, const char *pointer, const char *what)
{
    if (asked && !job_ctx_bad(c, pointer))
        job_ctx_error(c, pointer, "%s", what);
}

/* One that searches along lines compares losses of one batch, and takes all parameters for one vector. */
static void check_search(struct job_ctx *c)
{
    const struct job_config *g = c->g;
    char text[160];

    if (!job_optimiser(g->train.optimizer.name)->searches)
        return;
#define NO(asked, pointer, what)                                                                             \
    do {                                                                                                     \
        snprintf(text, sizeof text, "%s %s", job_optimiser_name(g->train.optimizer.name), what);             \
        refuse(c, asked, pointer, text);                                                                     \
    } while (0)
    NO(!job_network(g->model.arch)->equations, "/train/optimizer/name",
       "needs the same loss at each evaluation, so it is limited to equations");
    NO(g->resources.slots > 1, "/resources/slots", "runs on one device: use 1");
    NO(g->train.accumulation > 1, "/train/accumulation", "needs the whole batch at once: use 1");
    NO(g->train.ema > 0, "/train/ema", "supports no averaged weights: use null");
    NO(g->train.clip_norm > 0, "/train/clip_norm",
       "needs the unclipped gradient for its line search: use null");
    NO(g->train.optimizer.weight_decay > 0, "/train/optimizer/weight_decay", "has no weight decay: use 0");
    NO(g->train.layer_decay != 1, "/train/layer_decay", "has one learning rate for all parameters: use 1");
    NO(g->attention.scale_lr_mult != 1 && job_use_learned(c->run), "/attention/scale_lr_mult",
       "has one learning rate for all parameters: use 1");
#undef NO
}

/* The points of a sequence are the tokens of the network. */
static void check_sequence(struct job_ctx *c)
{
    const long long points = c->g->data.context, tokens = c->g->model.context;

    if (job_ctx_bad(c, "/model/context") || job_ctx_bad(c, "/data/context"))
        return;
    if (tokens < 1 || tokens > SEQUENCE_MOST)
        job_ctx_error(c, "/model/context", "must be 1 to %d: the points of a sequence", SEQUENCE_MOST);
    else if (points != tokens)
        job_ctx_refuse(
            c, "/data/context",
            "is %lld and model.context %lld; both are the points of a sequence, so they must be equal",
            points, tokens);
}

/* The largest |exact solution| on a grid of 2 or 3 points in x: at x = 0, pi and 2 pi, convection is sin(beta t) but
 * for the sign. */
static double largest_at_ends(double beta, int64_t points_in_t)
{
    double most = 0;

    for (int64_t a = 1; a < points_in_t; a++)
        most = fmax(most, fabs(sin(beta * (double)a / (double)(points_in_t - 1))));
    return most;
}

/* Errors are relative to the exact solution, which must not be about 0 at all points that are scored. */
static void check_solution(struct job_ctx *c)
{
    const struct job_config *g = c->g;
    const struct job_data *d = &g->data;
    const bool train = g->kind == JOB_KIND_EVALUATE && g->evaluate.split == JOB_SCORED_TRAIN;
    const int64_t *grid = train ? d->grid : d->test_grid;
    const char *pointer = train ? "/evaluate/split" : "/data/pde/test_grid";
    const char *needs = train ? "scores data.pde.grid, which needs" : "needs";

    if (job_ctx_bad(c, pointer) || job_ctx_bad(c, "/data/pde/grid") ||
        job_ctx_bad(c, "/data/pde/coefficient"))
        return;
    if (d->dataset == JOB_DATASET_PDE_WAVE && grid[1] < 3)
        job_ctx_refuse(c, pointer,
                       "%s at least 3 points in x, the second number: pde_wave is 0 at both ends of x, and "
                       "errors are relative to it",
                       needs);
    else if (d->dataset == JOB_DATASET_PDE_CONVECTION && grid[1] < 4 &&
             largest_at_ends(d->coefficient, grid[0]) < SOLUTION_LEAST)
        job_ctx_refuse(c, pointer,
                       "%s at least 4 points in x, the second number: with coefficient %.6g and %lld points "
                       "in t, pde_convection is about 0 at both ends of x and in the middle, and errors are "
                       "relative to it",
                       needs, d->coefficient, (long long)grid[0]);
}

void job_check_equations(struct job_ctx *c)
{
    const struct job_config *g = c->g;

    check_search(c);
    if (!job_network(g->model.arch)->equations)
        return;
    check_sequence(c);
    refuse(c, g->train.batch != 1, "/train/batch",
           "must be 1: each step of an equation uses its whole grid, which is one sample");
    refuse(c, g->train.accumulation > 1, "/train/accumulation",
           "must be 1: each step of an equation uses its whole grid at once");
    refuse(c, g->resources.slots > 1, "/resources/slots",
           "must be 1: each step of an equation uses its whole grid on one device");
    check_solution(c);
    refuse(c, g->norm.placement != JOB_NORM_S1, "/norm/placement", "must be S1: a pinnsformer has no norms");
    refuse(c, g->attention.qk_norm, "/attention/qk_norm", "must be false: a pinnsformer has no norms");
    refuse(c, g->attention.activation == JOB_ACTIVATION_SIMA, "/attention/activation",
           "a pinnsformer does not support sima, which divides by sums over tokens");
    refuse(c, g->attention.form == JOB_FORM_LINEAR, "/attention/form",
           "must be auto or quadratic: a sequence has few points");
    refuse(c, g->attention.dropout > 0, "/attention/dropout",
           "must be 0: the residual of an equation needs a deterministic network");
    refuse(c, g->train.dropout > 0, "/train/dropout",
           "must be 0: the residual of an equation needs a deterministic network");
    refuse(c, g->train.drop_path > 0, "/train/drop_path",
           "must be 0: the residual of an equation needs a deterministic network");
    refuse(c, g->train.label_smoothing > 0, "/train/label_smoothing", "must be 0: an equation has no labels");
    refuse(c, !g->model.bias, "/model/bias", "must be true: a pinnsformer has biases");
    refuse(c, g->train.precision != JOB_PRECISION_FP32 && g->train.precision != JOB_PRECISION_FP64,
           "/train/precision",
           "must be fp32 or fp64: derivatives of a solution lose too much accuracy in other formats");
}
