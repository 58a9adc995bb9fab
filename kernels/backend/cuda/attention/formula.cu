/* FORMULA and FORMULA_BWD: the host side of formula.cuh. The kernels come from cuda_rtc_kernel (rtc_load.c), compiled for the
 * formula; in the emulation from templates over an interpreter of the plan, so that every formula runs there without a
 * compiler. */
#include "kernels/backend/cuda/attention/call.cuh"
#include "kernels/backend/cuda/attention/formula_stats.cuh"
#include "kernels/backend/cuda/attention/formula.h"
#include "kernels/backend/cuda/attention/hopper_formula.cuh"
#include "kernels/backend/cuda/attention/hopper_formula.h"
#include "kernels/backend/cuda/rtc.h"

#define RUNS_BLOCKS 8 /* blocks per multiprocessor in the pass of the bias */

#define EACH_KERNEL(X) FORM_FORWARD_KERNELS(X) FORM_BACKWARD_KERNELS(X) FORM_STATS_KERNELS(X)
enum form_kernel {
#define X(name, body) FORM_KERNEL_##name,
    EACH_KERNEL(X)
#undef X
};

#ifdef PK_CUDA_EMULATED
#include "kernels/backend/cuda/attention/formula_interpreted.cuh"

#define X(name, body)                                                                                        \
    template <class M, class F, int D>                                                                       \
    static __global__ void __launch_bounds__(256)                                                            \
        formula_##name(const struct att a, const struct att_deal g, const struct form_use u)                 \
    {                                                                                                        \
        body;                                                                                                \
    }
EACH_KERNEL(X)
#undef X

typedef void form_function(const struct att, const struct att_deal, const struct form_use);
template <class M, int D> static form_function *emulated(int kernel)
{
    switch (kernel) {
#define X(name, body)                                                                                        \
    case FORM_KERNEL_##name:                                                                                 \
        return formula_##name<M, form_interpreted, D>;
        EACH_KERNEL(X)
#undef X
    default:
        return NULL;
    }
}
#endif

/* ---- host ---- */

namespace
{
/* Which kernels a call takes. */
struct form_choice {
    const struct pk_formula_plan *plan;
    enum att_math math;
    int head; /* 64 or 128 channels of a block */
    enum cuda_formula_part part;
    struct cuda_tiles tiles; /* of the kernels for sm 90; zeros: others */
};
} // namespace

extern "C" int cuda_formula_kernels(enum cuda_formula_part part)
{
    static const int count[CUDA_FORMULA_PARTS] = {
#define X(name, body) +1
#define Y(name, threads, resident, parameters, body) +1
        FORM_FORWARD_KERNELS(X),
        FORM_BACKWARD_KERNELS(X),
        FORM_STATS_KERNELS(X),
        HOPPER_FORWARD_KERNELS(X, Y),
        HOPPER_BACKWARD_KERNELS(X, Y),
        HOPPER_SCALARS_KERNELS(X, Y)
#undef X
#undef Y
    };

    return count[part];
}

static struct cuda_program program_of(const struct form_choice *x)
{
    static const char *const math[] = {"att_bf16", "att_tf32", "att_f32"};

    return {x->plan, math[x->math], x->head, x->part, x->tiles};
}

static enum pd_err launch(struct pk_backend *b, const struct form_choice *x, enum form_kernel kernel,
                          dim3 grid, unsigned threads, size_t shared, const struct att *a,
                          const struct att_deal *g, const struct form_use *u, struct pd_why *why)
{
#ifdef PK_CUDA_EMULATED
    form_function *const f =
        x->math == ATT_BF16 ? x->head == 64 ? emulated<att_bf16, 64>(kernel) : emulated<att_bf16, 128>(kernel)
        : x->math == ATT_TF32
            ? x->head == 64 ? emulated<att_tf32, 64>(kernel) : emulated<att_tf32, 128>(kernel)
            : emulated<att_f32, 128>(kernel);

    PK_CUDA_TRY(att_room(b, (const void *)f, shared));
    PK_LAUNCH(f, grid, dim3(threads), shared, b->stream, *a, *g, *u);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
#else
    static const char *const names[] = {
#define X(name, body) "formula_" #name,
        EACH_KERNEL(X)
#undef X
    };
    const struct cuda_program program = program_of(x);
    void *args[] = {(void *)a, (void *)g, (void *)u};
    const void *f;
    enum pd_err err = cuda_rtc_kernel(b, &program, names[kernel], &f, why);

    if (err != PD_OK)
        return err;
    PK_CUDA_TRY(att_room(b, f, shared));
    PK_CUDA_TRY(cudaLaunchKernel(f, grid, dim3(threads), args, shared, b->stream));
    return PD_OK;
#endif
}

/* The part is that of the call's op. */
static struct form_choice choose(const struct pk_backend *b, const struct pk_call *c, int head,
                                 enum cuda_formula_part part)
{
    struct form_choice x = {c->attr->formula.plan, att_math_of(b, c), 128, part, {}};

    if (part == CUDA_FORMULA_STATS) /* no products of tiles there: TF32 would be compiled for nothing */
        x.math = x.math == ATT_BF16 ? ATT_BF16 : ATT_F32;
    else if (x.math != ATT_F32 && head <= 64)
        x.head = 64;
    if (part != CUDA_FORMULA_STATS && cuda_formula_hopper_supports(b, c)) {
        struct cuda_program p = {};

        hopper_formula_program(c, &p);
        x.part = p.part;
        x.tiles = p.tiles;
    }
    return x;
}

/* Reads a call; returns the index of the first input after FORMULA's. */
static int read_call(const struct pk_backend *b, const struct pk_call *c, enum cuda_formula_part part,
                     struct att *a, struct form_use *u, struct form_choice *x)
{
    const struct pk_formula_attr *f = &c->attr->formula;

    att_read(a, c);
    *u = {};
    u->plan = f->plan;
    u->n = (float)f->n;
    u->layer = (float)f->layer;
    u->layers = (float)f->layers;
    if (c->attr->attention.has_scale) {
        const struct pk_view *v = &c->in[c->attr->attention.packed ? 1 : 3];

        u->scalars = (const float *)v->data;
        u->scalars_p = v->stride[0];
        u->scalars_h = v->stride[1];
    }
    u->kept = f->plan->rows + f->plan->shift;
    for (int k = 0; k < f->plan->rows; k++)
        u->kept += f->plan->row[k] == PK_ROW_MAX;
    /* The factor, the bias and the powers of ATTENTION are the formula's business. */
    a->scale = NULL;
    a->factor = 1;
    a->add = a->row_power = 0;
    a->power = a->normalised = a->shifted = false;
    *x = choose(b, c, a->d, part);
    return a->after;
}

static void program_for(const struct pk_backend *b, const struct pk_call *c, enum cuda_formula_part part,
                        struct cuda_program *ret)
{
    struct form_choice x;
    struct att a;

    att_read(&a, c);
    x = choose(b, c, a.d, part);
    *ret = program_of(&x);
}

extern "C" void cuda_formula_compiled(const struct pk_backend *b, const struct pk_call *c,
                                      struct cuda_program *ret)
{
    program_for(b, c, CUDA_FORMULA_FORWARD, ret);
}

extern "C" void cuda_formula_bwd_compiled(const struct pk_backend *b, const struct pk_call *c,
                                          struct cuda_program *ret)
{
    program_for(b, c, CUDA_FORMULA_BACKWARD, ret);
}

extern "C" void cuda_formula_stats_compiled(const struct pk_backend *b, const struct pk_call *c,
                                            struct cuda_program *ret)
{
    program_for(b, c, CUDA_FORMULA_STATS, ret);
}

static size_t element_of(const struct form_choice *x)
{
    return x->math == ATT_BF16 ? 2 : 4;
}

static enum pd_err too_long(const struct att *a, struct pd_why *why)
{
    return pd_fail(why, PD_ERR_UNSUPPORTED,
                   "formula: heads of %d need more shared memory than a block has here", a->d);
}

extern "C" bool cuda_formula_supports(const struct pk_backend *b, const struct pk_call *c)
{
    (void)b;
    return c->in[0].shape.dim[c->in[0].shape.rank - 1] <= CUDA_ATTENTION_HEAD_MOST;
}

/* Two passes need all keys before the second. */
static int parts_of(const struct pk_backend *b, const struct pk_call *c, const struct att *a)
{
    return c->attr->formula.plan->two_passes ? 1 : att_parts_of(b, a);
}

extern "C" size_t cuda_formula_workspace(const struct pk_backend *b, const struct pk_call *c)
{
    struct att a;
    int parts;

    if (cuda_formula_hopper_supports(b, c))
        return 0;
    att_read(&a, c);
    parts = parts_of(b, c, &a);
    return parts == 1 ? 0
                      : (size_t)a.batch * (size_t)a.heads * (size_t)parts * (size_t)a.nq *
                            (size_t)(a.d16 + FORM_SPLIT) * sizeof(float);
}

extern "C" enum pd_err cuda_formula(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct att a;
    struct form_use u;
    struct form_choice x;
    struct att_deal g;
    enum pd_err err;
    int parts;

    (void)read_call(b, c, CUDA_FORMULA_FORWARD, &a, &u, &x);
    if (a.batch == 0 || a.heads == 0 || a.nq == 0)
        return PD_OK;
    if (x.tiles.columns) {
        const struct cuda_program p = program_of(&x);

        return hopper_formula_run(b, c, &p, &u, why);
    }
    a.y = att_rows_inside(&c->out[0], a.heads, a.nq, a.d);
    if (u.kept)
        u.stats = (float *)c->out[1].data;
    parts = parts_of(b, c, &a);
    if (parts > 1)
        u.split = (float *)c->workspace;
    g = att_deal_of(b, (int64_t)a.batch * a.heads, a.nq, a.nk, a.d16, element_of(&x), 1, 2, 4, parts);
    if (g.shared > b->shared_most)
        return too_long(&a, why);
    err = launch(b, &x, FORM_KERNEL_forward, dim3(att_blocks(&g), (unsigned)cuda_div_up(a.d16, x.head)),
                 (unsigned)(g.warps * g.per_block * PK_WARP), g.shared, &a, &g, &u, why);
    if (err != PD_OK || parts == 1)
        return err;
    return launch(b, &x, FORM_KERNEL_join, dim3((unsigned)cuda_div_up((int64_t)a.batch * a.heads * a.nq, 4)),
                  128, 0, &a, &g, &u, why);
}

/* ---- backward ---- */

namespace
{
struct scratch {
    size_t fields, through, parts, runs, bytes;
    int strips, runs_n;
};
} // namespace

static size_t take(size_t *used, size_t bytes)
{
    const size_t at = *used;

    *used += (bytes + 255) / 256 * 256;
    return at;
}

/* With the kernels of sm 90 their workspace comes first, and no other kernel sums scalars by strips, or a bias. */
static struct scratch scratch_of(const struct pk_backend *b, const struct pk_call *c, const struct att *a)
{
    const size_t pairs = (size_t)a->batch * (size_t)a->heads;
    const int params = c->attr->formula.plan->params;
    const bool hopper = cuda_formula_hopper_supports(b, c);
    struct scratch s = {};

    s.bytes = hopper ? hopper_formula_workspace(b, c) : 0;
    if (hopper && !params)
        return s;
    s.strips = hopper ? 1 : (a->nq + STRIP - 1) / STRIP;
    s.fields = take(&s.bytes, pairs * FORM_FIELDS * (size_t)a->nq * sizeof(float));
    s.through = take(&s.bytes, pairs * (size_t)params * sizeof(double));
    s.parts = take(&s.bytes, pairs * (size_t)(s.strips * params) * sizeof(double));
    if (a->has_bias && !hopper) {
        s.runs_n = att_bias_runs(b, a);
        s.runs = take(&s.bytes,
                      (size_t)s.runs_n * (size_t)a->heads * (size_t)a->nq * (size_t)a->nk * sizeof(float));
    }
    return s;
}

extern "C" bool cuda_formula_bwd_supports(const struct pk_backend *b, const struct pk_call *c)
{
    return cuda_formula_supports(b, c);
}

extern "C" size_t cuda_formula_bwd_workspace(const struct pk_backend *b, const struct pk_call *c)
{
    struct att a;

    att_read(&a, c);
    return scratch_of(b, c, &a).bytes;
}

extern "C" enum pd_err cuda_formula_bwd(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    const int params = c->attr->formula.plan->params;
    char *const work = (char *)c->workspace;
    struct att a;
    struct form_use u;
    struct form_choice x;
    struct scratch s;
    struct att_deal own_keys, own_queries, one = {};
    int64_t pairs;
    unsigned blocks_y, threads;
    enum pd_err err;
    int out;

    (void)read_call(b, c, CUDA_FORMULA_BACKWARD, &a, &u, &x);
    if (x.tiles.columns && !params) {
        const struct cuda_program p = program_of(&x);

        return hopper_formula_run(b, c, &p, &u, why);
    }
    s = scratch_of(b, c, &a);
    out = att_read_bwd(&a, c);
    u.fields = (float *)(work + s.fields);
    u.through = (double *)(work + s.through);
    u.parts = (double *)(work + s.parts);
    u.strips = s.strips;
    u.runs = (float *)(work + s.runs);
    u.runs_n = s.runs_n;
    if (u.kept) {
        const struct pk_view *v = &c->in[a.after + 2];

        u.stats_in = (const float *)v->data;
        u.in_b = v->stride[0];
        u.in_h = v->stride[1];
        u.in_k = v->stride[2];
        u.in_i = v->stride[3];
    }
    if (params)
        u.dscalars = (float *)c->out[out++].data;
    pairs = (int64_t)a.batch * a.heads;
    blocks_y = (unsigned)cuda_div_up(a.d16, x.head);
    own_keys = att_deal_of(b, pairs, a.nk, a.nq, a.d16, element_of(&x), 2, 2, 4, 1);
    own_queries = att_deal_of(b, pairs, a.nq, a.nk, a.d16, element_of(&x), 2, 2, 4, 1);
    if (own_keys.shared > b->shared_most || own_queries.shared > b->shared_most)
        return too_long(&a, why);
    threads = (unsigned)(own_queries.warps * own_queries.per_block * PK_WARP);
    if (pairs > 0 && a.nq > 0) {
        err = launch(b, &x, FORM_KERNEL_rows, dim3((unsigned)cuda_div_up(pairs * a.nq, 4)), 128, 0, &a, &one,
                     &u, why);
        if (err == PD_OK && (x.plan->two_passes || x.plan->needs_d))
            err = launch(b, &x, FORM_KERNEL_sweep, dim3(att_blocks(&own_queries)), threads,
                         own_queries.shared, &a, &own_queries, &u, why);
        if (err == PD_OK)
            err = launch(b, &x, FORM_KERNEL_turn, dim3((unsigned)pairs), 128, 0, &a, &one, &u, why);
        if (err == PD_OK && !x.tiles.columns)
            err = launch(b, &x, FORM_KERNEL_queries, dim3(att_blocks(&own_queries), blocks_y), threads,
                         own_queries.shared, &a, &own_queries, &u, why);
        if (err != PD_OK)
            return err;
    }
    if (x.tiles.columns) {
        const struct cuda_program p = program_of(&x);

        PK_CUDA_TRY(cudaMemsetAsync(u.parts, 0, (size_t)pairs * (size_t)params * sizeof *u.parts, b->stream));
        err = hopper_formula_run(b, c, &p, &u, why);
        if (err != PD_OK)
            return err;
    } else if (pairs > 0 && a.nk > 0) {
        err = launch(b, &x, FORM_KERNEL_keys, dim3(att_blocks(&own_keys), blocks_y),
                     (unsigned)(own_keys.warps * own_keys.per_block * PK_WARP), own_keys.shared, &a,
                     &own_keys, &u, why);
        if (err != PD_OK)
            return err;
    }
    if (params && a.heads > 0) {
        err =
            launch(b, &x, FORM_KERNEL_scalars, dim3((unsigned)(params * a.heads)), 256, 0, &a, &one, &u, why);
        if (err != PD_OK)
            return err;
    }
    if (!a.has_bias || x.tiles.columns || (int64_t)a.heads * a.nq * a.nk == 0)
        return PD_OK;
    one = att_deal_of(b, 1, a.nq, TILE, a.d16, element_of(&x), 2, 2, 4, 1);
    err = launch(b, &x, FORM_KERNEL_bias,
                 dim3((unsigned)cuda_div_up(a.nk, TILE), (unsigned)cuda_div_up(a.nq, one.warps * STRIP),
                      (unsigned)(u.runs_n * a.heads)),
                 (unsigned)(one.warps * PK_WARP), one.shared, &a, &one, &u, why);
    return err == PD_OK ? att_add_bias_runs(b, &a, u.runs, u.runs_n, (float *)c->out[out].data, why) : err;
}

/* ---- diagnostics ---- */

extern "C" bool cuda_formula_stats_supports(const struct pk_backend *b, const struct pk_call *c)
{
    return cuda_formula_supports(b, c);
}

extern "C" size_t cuda_formula_stats_workspace(const struct pk_backend *b, const struct pk_call *c)
{
    struct att a;

    (void)b;
    att_read(&a, c);
    return (size_t)a.batch * (size_t)a.heads * (size_t)a.nq * FORM_NUMBERS * sizeof(double);
}

extern "C" enum pd_err cuda_formula_stats(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct att a;
    struct form_use u;
    struct form_choice x;
    struct att_deal none = {};
    const struct pk_view *rows;
    int64_t pairs;
    enum pd_err err = PD_OK;

    rows = &c->in[read_call(b, c, CUDA_FORMULA_STATS, &a, &u, &x)];
    u.x = rows->data;
    u.x_b = rows->stride[0];
    u.x_i = rows->stride[1];
    u.x_c = rows->stride[2];
    u.width = rows->shape.dim[2];
    u.numbers = (double *)c->workspace;
    for (int k = 0; k < 6; k++)
        u.measured[k] = (float *)c->out[k].data;
    pairs = (int64_t)a.batch * a.heads;
    if (pairs == 0)
        return PD_OK;
    if (a.nq > 0)
        err = launch(b, &x, FORM_KERNEL_measure, dim3((unsigned)cuda_div_up(pairs * a.nq, FORM_WARPS)),
                     FORM_WARPS * PK_WARP, 0, &a, &none, &u, why);
    return err == PD_OK ? launch(b, &x, FORM_KERNEL_measure_sum, dim3((unsigned)pairs), PK_WARP * 4, 0, &a,
                                 &none, &u, why)
                        : err;
}
