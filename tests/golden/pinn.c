/* Group pinn: PINNsformers on convection and reaction: u, its derivatives' residual, the parts of the loss, and the
 * gradients of the whole loss and of its residual part, both of second order. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/data/data.h"
#include "daemon/worker/task/task.h"
#include "tests/golden/vision.h"

static bool spec_of(const struct golden *c, struct model_spec *s)
{
    const json_t *m = vision_part(c, "model");
    const char *pde = golden_text(c, "pde", "");
    const bool convection = !strcmp(pde, "convection");

    *s = (struct model_spec){
        .arch = &model_pinnsformer,
        .width = vision_whole(m, "d_model"),
        .depth = vision_whole(m, "N"),
        .heads = vision_whole(m, "heads"),
        .mlp_width = (int32_t)golden_num(c, "model_d_ff", 0),
        .head_width = vision_whole(m, "d_hidden"),
        .equation = convection ? DATA_EQUATION_CONVECTION : DATA_EQUATION_REACTION,
        .coefficient = golden_num(c, convection ? "beta" : "rho", 0),
        .context = (int32_t)golden_num(c, "num_step", 0),
        .step = golden_num(c, "step", 0),
        .grid = {(int32_t)golden_num(c, "t_num", 0), (int32_t)golden_num(c, "x_num", 0)},
        .bias = true,
        .norm_eps = 1e-6,
        .dtype = PK_F32,
    };
    s->test_grid[0] = s->grid[0];
    s->test_grid[1] = s->grid[1];
    return vision_attention(c, &s->attention) && (convection || !strcmp(pde, "reaction"));
}

/* Coordinate `which` of the file's points of the residual. */
static void put_points(struct golden *c, struct golden_rig *rig, const char *leaf, int which)
{
    size_t n = 0;
    const double *both = golden_tensor(c, &n, "in/points_res");
    double *one = calloc(n / 2 + 1, sizeof *one);

    for (size_t i = 0; both && one && i < n / 2; i++)
        one[i] = both[2 * i + (size_t)which];
    if (both && one)
        golden_rig_put(rig, leaf, one, n / 2);
    free(one);
}

/* Of u over the whole grid: the file's predictions on its edges are parts of it. */
static void compare_edges(struct golden *c, struct golden_rig *rig, const struct model_spec *s)
{
    const struct {
        const char *name;
        int32_t t, x; /* -1: all of them */
    } edges[] = {{"out/pred_left", 0, -1},
                 {"out/pred_right", s->grid[0] - 1, -1},
                 {"out/pred_lower", -1, 0},
                 {"out/pred_upper", -1, s->grid[1] - 1}};
    size_t count = 0;
    const double *u = golden_rig_output(rig, "logits", &count);

    for (size_t e = 0; u && e < sizeof edges / sizeof *edges; e++) {
        size_t n = 0, at = 0;
        const double *want = golden_tensor(c, &n, "%s", edges[e].name);
        double *got = calloc(n + 1, sizeof *got);

        for (int32_t t = 0; got && t < s->grid[0]; t++)
            for (int32_t x = 0; x < s->grid[1]; x++)
                for (int32_t k = 0; k < s->context; k++)
                    if ((edges[e].t < 0 || t == edges[e].t) && (edges[e].x < 0 || x == edges[e].x) && at < n)
                        got[at++] = u[(t * s->grid[1] + x) * s->context + k];
        if (want && got && at == n)
            golden_close(c, edges[e].name, got, want, n, 2e-5, 1e-6);
        else
            golden_fail(c, "%s: %zu numbers, reference %zu", edges[e].name, at, n);
        free(got);
    }
}

/* Loss and gradients at the file's points, compared by `compare` once they are there. */
static void run_loss(struct golden *c, const struct model *m, const struct model_loss *loss,
                     void (*compare)(struct golden *c, struct golden_rig *rig, const struct model *m))
{
    const struct model_train_options o = {.loss = loss, .batch = 1};
    struct pk_graph *g = NULL;
    struct golden_rig *rig = NULL;
    struct pd_why why;

    if (model_graph_train(m, &o, true, &g, &why) != PD_OK)
        golden_fail(c, "%s", why.text);
    else
        rig = golden_rig_new(c, g);
    if (rig) {
        vision_put_params(c, rig, m);
        put_points(c, rig, "x", 0);
        put_points(c, rig, "t", 1);
        if (golden_rig_run(rig))
            compare(c, rig, m);
    }
    golden_rig_free(rig);
}

static void compare_whole(struct golden *c, struct golden_rig *rig, const struct model *m)
{
    vision_compare(c, rig, "logits", "out/pred_res");
    vision_compare(c, rig, "loss", "out/loss");
    vision_compare(c, rig, "residual", "out/loss_res");
    vision_compare(c, rig, "boundary", "out/loss_bc");
    vision_compare(c, rig, "initial", "out/loss_ic");
    vision_compare_gradients(c, rig, m, "grad");
    compare_edges(c, rig, model_spec(m));
}

/* The task's loss with its residual alone. */
static void residual_alone(struct pk_graph *g, struct model_rows *rows, double smoothing,
                           struct pk_val ret[MODEL_SUMS_MAX])
{
    struct pk_val all[MODEL_SUMS_MAX];

    task_equation.loss->emit(g, rows, smoothing, all);
    ret[0] = all[2];
    ret[1] = all[1];
}

/* Derivatives of u are those by the points, as a gradient of the sum over each sequence. */
static void derivatives(struct pk_graph *g, struct model_rows *rows, double smoothing,
                        struct pk_val ret[MODEL_SUMS_MAX])
{
    const struct pk_val by[] = {rows->x, rows->t};
    struct pk_val slope[2];

    pk_grad(g, rows->logits, PK_NONE, by, 2, slope);
    pk_output(g, "u_x", slope[0]);
    pk_output(g, "u_t", slope[1]);
    residual_alone(g, rows, smoothing, ret);
}

static void compare_residual(struct golden *c, struct golden_rig *rig, const struct model *m)
{
    vision_compare(c, rig, "loss", "out/loss_res");
    vision_compare(c, rig, "u_x", "out/u_x");
    vision_compare(c, rig, "u_t", "out/u_t");
    vision_compare_gradients(c, rig, m, "grad_loss_res");
}

static bool pinn(struct golden *c)
{
    static const struct model_loss residual = {.sum = {"loss_sum", "count"}, .emit = derivatives};
    struct model_spec spec;
    struct model *m = NULL;
    struct pd_why why;

    if (!spec_of(c, &spec))
        return false;
    if (model_new(&spec, &m, &why) != PD_OK) {
        golden_fail(c, "%s", why.text);
        return true;
    }
    run_loss(c, m, task_equation.loss, compare_whole);
    run_loss(c, m, &residual, compare_residual);
    model_free(m);
    return true;
}

void gold_pinn(struct gold *g)
{
    golden_case(g, pinn);
}
