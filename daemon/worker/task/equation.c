/* Points of a differential equation to its solution u(x, t). The loss is the mean square of the residual over all
 * points of all sequences, and those of the boundary and initial conditions; an evaluation compares u at the first point
 * of each sequence with the exact solution. The rows of the grid are the times, its columns the places, both ends
 * included, so that the boundary and the initial line are slices of u.
 *
 * A derivative by a coordinate is either the gradient of the sum over a sequence's outputs by each of its points, as in
 * the reference implementation, or the tangent of a shift of the whole sequence (model_rows.shift). */
#include <math.h>

#include "daemon/worker/task/task.h"

#define PI 3.14159265358979323846

static bool fits(const struct model_spec *spec)
{
    return model_reads_points(spec);
}

/* ---- the graph ---- */

/* ret[i] = d y / d by[i], all (points, k). One call for all of them: the gradients share one backward pass, so the
 * derivative of the loss goes back through it once. */
static void derivatives(struct pk_graph *g, const struct model_rows *rows, struct pk_val y,
                        const struct pk_val *by, size_t n, struct pk_val *ret)
{
    if (!rows->shift) {
        pk_grad(g, y, PK_NONE, by, n, ret);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        struct pk_val one = pk_fill(g, pk_dtype_of(g, by[i]), pk_shape_of(g, by[i]), 1);

        pk_jvp(g, &y, 1, &by[i], &one, 1, &ret[i]);
    }
}

static struct pk_val derivative(struct pk_graph *g, const struct model_rows *rows, struct pk_val y,
                                struct pk_val by)
{
    struct pk_val ret = PK_NONE;

    derivatives(g, rows, y, &by, 1, &ret);
    return ret;
}

/* u_x is not read for a reaction. */
static struct pk_val residual(struct pk_graph *g, const struct model_rows *rows, struct pk_val u,
                              struct pk_val u_t, struct pk_val u_x)
{
    const double c = rows->spec->coefficient;

    switch ((enum data_equation)rows->spec->equation) {
    case DATA_EQUATION_CONVECTION:
        return pk_add(g, u_t, pk_scale(g, u_x, c));
    case DATA_EQUATION_REACTION:
        return pk_sub(g, u_t, pk_scale(g, pk_sub(g, u, pk_mul(g, u, u)), c));
    default:
        return pk_sub(g, derivative(g, rows, u_t, rows->t),
                      pk_scale(g, derivative(g, rows, u_x, rows->x), c * c));
    }
}

/* u(x, 0) of x. */
static struct pk_val initial(struct pk_graph *g, const struct model_spec *s, struct pk_val x)
{
    switch ((enum data_equation)s->equation) {
    case DATA_EQUATION_CONVECTION:
        return pk_unary(g, PK_EX_SIN, x);
    case DATA_EQUATION_REACTION:
        x = pk_offset(g, x, -PI);
        return pk_unary(g, PK_EX_EXP, pk_scale(g, pk_mul(g, x, x), -1 / (2 * (PI / 4) * (PI / 4))));
    default:
        return pk_add(g, pk_unary(g, PK_EX_SIN, pk_scale(g, x, PI)),
                      pk_scale(g, pk_unary(g, PK_EX_SIN, pk_scale(g, x, 3 * PI)), 0.5));
    }
}

static struct pk_val mean_square(struct pk_graph *g, struct pk_val x)
{
    x = pk_mean(g, pk_mul(g, x, x), (1u << pk_shape_of(g, x).rank) - 1, true);
    return pk_reshape(g, x, PK_SHAPE(1));
}

/* Column `at` of x (times, places, k), and its first row at the first point of each sequence (places). */
static struct pk_val column(struct pk_graph *g, struct pk_val x, int64_t at)
{
    return pk_slice(g, x, 1, at, 1);
}

static struct pk_val first_row(struct pk_graph *g, struct pk_val x)
{
    return pk_slice(g, pk_slice(g, x, 0, 0, 1), 2, 0, 1);
}

enum { LOSS, COUNT, RESIDUAL, BOUNDARY, INITIAL, SUMS };

static void emit(struct pk_graph *g, struct model_rows *rows, double smoothing,
                 struct pk_val ret[MODEL_SUMS_MAX])
{
    const struct model_spec *s = rows->spec;
    const enum pk_dtype dtype = pk_dtype_of(g, rows->logits);
    const struct pk_shape grid = PK_SHAPE(s->grid[0], s->grid[1], s->context);
    const struct pk_val by[] = {rows->t, rows->x};
    struct pk_val u = rows->logits, slope[2] = {PK_NONE, PK_NONE}, u_t, left, right, begin;

    (void)smoothing;
    derivatives(g, rows, u, by, s->equation == DATA_EQUATION_REACTION ? 1 : 2, slope);
    u_t = slope[0];
    pk_graph_exact(g, true);
    ret[RESIDUAL] = mean_square(g, residual(g, rows, u, u_t, slope[1]));
    u = pk_reshape(g, u, grid);
    left = column(g, u, 0);
    right = column(g, u, s->grid[1] - 1);
    begin = first_row(g, u);
    ret[INITIAL] =
        mean_square(g, pk_sub(g, begin, initial(g, s, first_row(g, pk_reshape(g, rows->x, grid)))));
    if (s->equation == DATA_EQUATION_WAVE) { /* ends that do not move, and a start at rest */
        ret[BOUNDARY] = pk_add(g, mean_square(g, left), mean_square(g, right));
        ret[INITIAL] = pk_add(g, ret[INITIAL], mean_square(g, first_row(g, pk_reshape(g, u_t, grid))));
    } else {
        ret[BOUNDARY] = mean_square(g, pk_sub(g, right, left));
    }
    ret[LOSS] = pk_add(g, ret[RESIDUAL], pk_add(g, ret[BOUNDARY], ret[INITIAL]));
    ret[COUNT] = pk_fill(g, dtype, PK_SHAPE(1), 1);
    pk_graph_exact(g, false);
}

/* Sums over the points of an evaluation; its graph outputs them with u and the solution. */
enum { ERROR_SQUARE, POINTS, ERROR, EXACT, EXACT_SQUARE, SCORES };
static const char *const scores[SCORES] = {"error_square", "points", "error", "exact_abs", "exact_square"};

static struct pk_val total(struct pk_graph *g, struct pk_val x)
{
    return pk_reshape(g, pk_sum(g, x, (1u << pk_shape_of(g, x).rank) - 1, true), PK_SHAPE(1));
}

static struct pk_val absolute(struct pk_graph *g, struct pk_val x)
{
    return pk_max2(g, x, pk_scale(g, x, -1));
}

static void emit_eval(struct pk_graph *g, const struct model_spec *spec, struct pk_val logits, int32_t batch,
                      struct pk_val ret[MODEL_SUMS_MAX])
{
    const enum pk_dtype dtype = pk_dtype_of(g, logits);
    const int64_t points = pk_shape_of(g, logits).dim[0];
    const struct pk_shape grid = PK_SHAPE(points / spec->test_grid[1], spec->test_grid[1]);
    struct pk_val exact = pk_input(g, "exact", dtype, PK_SHAPE(points)),
                  u = pk_reshape(g, pk_slice(g, logits, 1, 0, 1), PK_SHAPE(points)),
                  error = pk_sub(g, u, exact);
    struct pk_val sum[SCORES];

    (void)batch;
    sum[ERROR_SQUARE] = total(g, pk_mul(g, error, error));
    sum[POINTS] = pk_fill(g, dtype, PK_SHAPE(1), (double)points);
    error = absolute(g, error);
    sum[ERROR] = total(g, error);
    sum[EXACT] = total(g, absolute(g, exact));
    sum[EXACT_SQUARE] = total(g, pk_mul(g, exact, exact));
    for (int i = 0; i < SCORES; i++)
        pk_output(g, scores[i], sum[i]);
    pk_output(g, "map/u", pk_reshape(g, u, grid));
    pk_output(g, "map/exact", pk_reshape(g, exact, grid));
    pk_output(g, "map/error", pk_reshape(g, error, grid));
    for (int i = 0; i < SUMS; i++)
        ret[i] = sum[i];
}

static const struct model_loss loss = {.sum = {[LOSS] = "loss_sum",
                                               [COUNT] = "count",
                                               [RESIDUAL] = "residual",
                                               [BOUNDARY] = "boundary",
                                               [INITIAL] = "initial"},
                                       .emit = emit,
                                       .emit_eval = emit_eval};

/* ---- its numbers ---- */

static double residual_of(const double *report)
{
    return report[RESIDUAL];
}

static double boundary_of(const double *report)
{
    return report[BOUNDARY];
}

static double initial_of(const double *report)
{
    return report[INITIAL];
}

static void begin(struct task_score *score, int32_t context)
{
    (void)context;
    *score = (struct task_score){.count = SCORES};
}

static enum pd_err add(struct task_score *score, const struct task_outputs *from, struct pd_why *why)
{
    enum pd_err err = PD_OK;

    for (int i = 0; i < SCORES && err == PD_OK; i++) {
        double x = 0;

        err = from->read(from->user, scores[i], &x, 1, why);
        score->sum[i] += x;
    }
    return err;
}

static void end(const struct task_score *score, double ret[TASK_NUMBERS_MAX])
{
    const double *sum = score->sum;

    ret[0] = sum[ERROR_SQUARE] / sum[POINTS];
    ret[1] = sum[ERROR] / sum[EXACT];
    ret[2] = sqrt(sum[ERROR_SQUARE] / sum[EXACT_SQUARE]);
}

static void axes(const struct data_info *info, struct task_axis ret[2])
{
    ret[0] = (struct task_axis){"t", 0, 1};
    ret[1] = (struct task_axis){"x", 0, data_equation_width(info->equation)};
}

const struct task task_equation = {
    .name = "equation",
    .serves = "field",
    .data_kind = "points",
    .throughput = "samples_per_s",
    .inputs = {{"x", PK_F32}, {"t", PK_F32}, {"exact", PK_F32}},
    .fits = fits,
    .loss = &loss,
    .steps = {{"loss/residual", residual_of}, {"loss/boundary", boundary_of}, {"loss/initial", initial_of}},
    .units = task_samples,
    .begin = begin,
    .add = add,
    .end = end,
    .numbers = {TASK_NUMBER("loss"), TASK_NUMBER("rmae"), TASK_NUMBER("rrmse")},
    .maps = {{"pde/u", "map/u"}, {"pde/exact", "map/exact"}, {"pde/error", "map/error"}},
    .axes = axes,
};
