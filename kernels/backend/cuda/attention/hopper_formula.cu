/* FORMULA and FORMULA_BWD on sm 90: the host side of hopper_formula.cuh. */
#include "kernels/backend/cuda/attention/hopper_formula.h"

#include "kernels/backend/cuda/attention/hopper_bwd_launch.cuh"
#include "kernels/backend/cuda/attention/hopper_formula.cuh"
#include "kernels/backend/cuda/attention/hopper_fwd_launch.cuh"
#include "kernels/backend/cuda/rtc.h"
#include "kernels/formula/formula.h"

static bool is_backward(const struct pk_call *c)
{
    return c->op == PK_OP_FORMULA_BWD;
}

/* G of formulas of which it is known here; 1 of others. */
static float factor_of(const struct pk_formula_plan *plan, const struct hopper_job *j,
                       const struct form_use *u)
{
    double leaf[PK_LEAVES] = {0}, g[PK_FORMULA_RESULTS];

    if (!cuda_formula_turn_fixed(plan))
        return 1.0f;
    leaf[PK_LEAF_N] = (double)u->n;
    leaf[PK_LEAF_HEADS] = j->heads;
    leaf[PK_LEAF_LAYER] = (double)u->layer;
    leaf[PK_LEAF_LAYERS] = (double)u->layers;
    leaf[PK_LEAF_WIDTH] = j->d;
    leaf[PK_LEAF_PI] = 3.14159265358979323846;
    pk_formula_run(&plan->turn, leaf, g);
    return (float)g[0];
}

extern "C" bool cuda_formula_hopper_supports(const struct pk_backend *b, const struct pk_call *c)
{
    const struct pk_formula_plan *p = c->attr->formula.plan;
    struct hopper_job j;

    return (!b || (b->sm == 90 && b->hopper)) && p->rows == 0 && !p->two_passes && !p->shift && !p->reads_j &&
           !p->reads_row_position && !(is_backward(c) && p->back_scalars) && hopper_job_of(c, &j);
}

void hopper_formula_program(const struct pk_call *c, struct cuda_program *ret)
{
    struct hopper_job j;

    if (!hopper_job_of(c, &j))
        return;
    ret->part = !is_backward(c)                     ? CUDA_FORMULA_HOPPER_FORWARD
                : c->attr->formula.plan->params > 0 ? CUDA_FORMULA_HOPPER_SCALARS
                                                    : CUDA_FORMULA_HOPPER_BACKWARD;
    ret->tiles = is_backward(c) ? backward_tiles_of(&j) : forward_tiles_of(&j);
}

size_t hopper_formula_workspace(const struct pk_backend *b, const struct pk_call *c)
{
    struct hopper_job j;

    return hopper_job_of(c, &j) ? hopper_bwd_workspace(b, c, &j) : 0;
}

#ifdef PK_CUDA_EMULATED
#include "kernels/backend/cuda/attention/formula_interpreted.cuh"

#define NOT(name, body)
#define KERNEL(name, threads, resident, parameters, body)                                                    \
    template <int columns, int keys, int groups, int stages, class F>                                        \
    static __global__ void __launch_bounds__(threads, resident) formula_##name parameters                    \
    {                                                                                                        \
        body;                                                                                                \
    }
HOPPER_FORWARD_KERNELS(NOT, KERNEL)
HOPPER_BACKWARD_KERNELS(NOT, KERNEL)

template <int columns, int keys, int groups, int stages>
static enum pd_err launch_forward(struct pk_backend *b, const struct cuda_program *,
                                  const struct forward_launch *l, const struct form_use *u,
                                  struct pd_why *why)
{
    const auto f = formula_hopper_forward<columns, keys, groups, stages, form_interpreted>;
    enum pd_err err = hopper_allow((const void *)f, l->shared, why);

    if (err != PD_OK)
        return err;
    PK_LAUNCH(f, dim3(l->grid), dim3(l->threads), l->shared, b->stream, l->maps[0], l->maps[1], l->maps[2],
              l->args, *u);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

template <int columns, int groups>
static enum pd_err launch_backward(struct pk_backend *b, const struct cuda_program *,
                                   const struct backward_launch *l, const struct form_use *u,
                                   struct pd_why *why)
{
    const auto f = formula_hopper_backward<columns, 0, groups, 0, form_interpreted>;
    enum pd_err err = hopper_allow((const void *)f, l->shared, why);

    if (err != PD_OK)
        return err;
    if (l->plan.cluster == 1)
        PK_LAUNCH(f, dim3(l->grid), dim3(l->threads), l->shared, b->stream, l->maps[0], l->maps[1],
                  l->maps[2], l->maps[3], l->args, *u);
    else
        PK_LAUNCH_CLUSTER(f, (unsigned)l->plan.cluster, dim3(l->grid), dim3(l->threads), l->shared, b->stream,
                          l->maps[0], l->maps[1], l->maps[2], l->maps[3], l->args, *u);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

template <int columns, int groups>
static enum pd_err launch_bias(struct pk_backend *b, const struct cuda_program *,
                               const struct backward_launch *l, const struct form_use *u, float *to,
                               struct pd_why *why)
{
    PK_LAUNCH((formula_hopper_bias<columns, 0, groups, 0, form_interpreted>),
              backward_bias_grid(&l->args.job), dim3(64), 0, b->stream, l->args, *u, to);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}
#else
/* cluster: blocks that run together; 1: none. */
static enum pd_err start(struct pk_backend *b, const struct cuda_program *p, const char *name, int cluster,
                         dim3 grid, unsigned threads, size_t shared, void **args, struct pd_why *why)
{
    cudaLaunchAttribute blocks = {};
    cudaLaunchConfig_t config = {};
    const void *f;
    enum pd_err err = cuda_rtc_kernel(b, p, name, &f, why);

    if (err == PD_OK && shared > 0)
        err = hopper_allow(f, shared, why);
    if (err != PD_OK)
        return err;
    blocks.id = cudaLaunchAttributeClusterDimension;
    blocks.val.clusterDim.x = (unsigned)cluster;
    blocks.val.clusterDim.y = blocks.val.clusterDim.z = 1;
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = b->stream;
    config.attrs = &blocks;
    config.numAttrs = cluster > 1;
    PK_CUDA_TRY(cudaLaunchKernelExC(&config, f, args));
    return PD_OK;
}

template <int columns, int keys, int groups, int stages>
static enum pd_err launch_forward(struct pk_backend *b, const struct cuda_program *p,
                                  struct forward_launch *l, const struct form_use *u, struct pd_why *why)
{
    void *args[] = {&l->maps[0], &l->maps[1], &l->maps[2], &l->args, (void *)u};

    return start(b, p, "formula_hopper_forward", 1, dim3(l->grid), l->threads, l->shared, args, why);
}

template <int columns, int groups>
static enum pd_err launch_backward(struct pk_backend *b, const struct cuda_program *p,
                                   struct backward_launch *l, const struct form_use *u, struct pd_why *why)
{
    void *args[] = {&l->maps[0], &l->maps[1], &l->maps[2], &l->maps[3], &l->args, (void *)u};

    return start(b, p, "formula_hopper_backward", l->plan.cluster, dim3(l->grid), l->threads, l->shared, args,
                 why);
}

template <int columns, int groups>
static enum pd_err launch_bias(struct pk_backend *b, const struct cuda_program *p, struct backward_launch *l,
                               const struct form_use *u, float *to, struct pd_why *why)
{
    void *args[] = {&l->args, (void *)u, &to};

    return start(b, p, "formula_hopper_bias", 1, backward_bias_grid(&l->args.job), 64, 0, args, why);
}
#endif

template <int columns, int keys, int groups, int stages>
static enum pd_err run_forward(struct pk_backend *b, const struct pk_call *c, const struct cuda_program *p,
                               const struct hopper_job *j, const struct form_use *u, struct pd_why *why)
{
    struct forward_launch l = {};
    enum pd_err err = forward_prepare<columns, keys, groups, stages>(b, c, j, &l, why);

    return err == PD_OK ? launch_forward<columns, keys, groups, stages>(b, p, &l, u, why) : err;
}

template <int columns, int groups>
static enum pd_err run_backward(struct pk_backend *b, const struct pk_call *c, const struct cuda_program *p,
                                const struct hopper_job *j, const struct form_use *u, struct pd_why *why)
{
    const struct pk_attention_attr *a = &c->attr->attention;
    struct backward_launch l = {};
    enum pd_err err = backward_prepare<columns, groups>(b, c, j, &l, why);

    if (err == PD_OK)
        err = launch_backward<columns, groups>(b, p, &l, u, why);
    if (err == PD_OK && a->has_bias)
        err = launch_bias<columns, groups>(b, p, &l, u,
                                           (float *)c->out[(a->packed ? 1 : 3) + a->has_scale].data, why);
    return err;
}

enum pd_err hopper_formula_run(struct pk_backend *b, const struct pk_call *c, const struct cuda_program *p,
                               const struct form_use *u, struct pd_why *why)
{
    const struct cuda_tiles t = p->tiles;
    struct hopper_job j;

    if (!hopper_job_of(c, &j))
        return pd_fail(why, PD_ERR_UNSUPPORTED, "formula: not a call for the kernels of sm 90");
    j.scale = factor_of(c->attr->formula.plan, &j, u);
    if (is_backward(c)) {
#define X(columns_, groups_)                                                                                 \
    if (t.columns == columns_ && t.groups == groups_)                                                        \
        return run_backward<columns_, groups_>(b, c, p, &j, u, why);
        BACKWARD_EACH_SHAPE(X)
#undef X
    } else {
#define X(columns_, keys_, groups_, stages_)                                                                 \
    if (t.columns == columns_ && t.keys == keys_)                                                            \
        return run_forward<columns_, keys_, groups_, stages_>(b, c, p, &j, u, why);
        FORWARD_EACH_SHAPE(X)
#undef X
    }
    return pd_fail(why, PD_ERR_UNSUPPORTED, "formula: no kernel for tiles of %d by %d", t.columns, t.keys);
}
