/* MATMUL by cuBLASLt.
 *
 * The library is column-major. The row-major out (M, N) is its (N, M), so it computes out' = b' a': its first operand
 * is b, and a bias along N is along its rows, as its epilogue requires. A transposed view is passed in its memory
 * layout with the transpose flag. Sums of b over K are those of the library's operand A.
 *
 * The library's objects for a call (descriptors, layouts, the chosen algorithm) are created once and looked up by
 * key: plan.c.
 *
 * Epilogues of the library: bias, ReLU, GELU in its tanh form - its documentation names no other, and it does not
 * replace the exact form - and a residual as C with beta 1, if no activation comes between. If the memory layout
 * allows it also: GELU with the pre-activation as a second output, the slope of GELU, and the gradient of a bias - in
 * the output's type, so only if that is f32. For these the alternative is a kernel of polyd after the product, and the
 * faster variant is used. fallback.cu always computes an exact GELU after the product, and the whole product if
 * strides, types or the library allow nothing else. A bias of f32 with an output of bf16 is rounded first, because the
 * library requires the output's type. */
#include "kernels/backend/cuda/matmul/matmul.h"

#include <string.h>

#include "kernels/backend/cuda/matmul/plan.h"
#include "kernels/backend/cuda/move/move.h"

#define WORKSPACE_MOST ((size_t)32 << 20) /* NVIDIA's recommendation for Hopper */
#define TINY 512                          /* smaller products, in multiplications, skip the library */

/* ---- a call as a product ---- */

static void operand(struct cuda_operand *o, const struct pk_view *v)
{
    int r = v->shape.rank;

    o->data = v->data;
    o->dtype = v->dtype;
    o->rs = v->stride[r - 2];
    o->cs = v->stride[r - 1];
}

static void describe(const struct pk_call *c, struct cuda_product *p)
{
    const struct pk_view *a = &c->in[0], *b = &c->in[1], *o = &c->out[0], *res = NULL;
    int r = o->shape.rank, next = 2;

    memset(p, 0, sizeof *p);
    p->m = o->shape.dim[r - 2];
    p->n = o->shape.dim[r - 1];
    p->k = a->shape.dim[a->shape.rank - 1];
    p->batch = 1;
    operand(&p->a, a);
    operand(&p->b, b);
    p->act = c->attr->matmul.act;
    p->has_bias = c->attr->matmul.has_bias;
    p->has_residual = c->attr->matmul.has_residual;
    p->keeps = c->attr->matmul.keeps;
    p->slope = c->attr->matmul.slope;
    p->sums = c->attr->matmul.sums;
    if (p->keeps)
        p->kept = c->out[1].data;
    if (p->has_bias) {
        p->bias = c->in[next].data;
        p->bias_dtype = c->in[next].dtype;
        p->bias_step = c->in[next++].stride[0];
    }
    if (p->has_residual || p->slope) {
        res = &c->in[next];
        operand(&p->residual, res);
    }
    p->out = o->data;
    p->out_dtype = o->dtype;
    for (int i = 0; i < r - 2; i++) {
        int64_t d = o->shape.dim[i], sa = a->stride[i], sb = b->stride[i], sr = res ? res->stride[i] : 0;
        int32_t l = p->lead - 1;

        p->batch *= d;
        if (d == 1)
            continue;
        if (l >= 0 && p->a.step[l] == sa * d && p->b.step[l] == sb * d && p->residual.step[l] == sr * d) {
            p->dim[l] *= d;
        } else {
            l = p->lead++;
            p->dim[l] = d;
        }
        p->a.step[l] = sa;
        p->b.step[l] = sb;
        p->residual.step[l] = sr;
    }
}

/* Whether the library can read (rows, cols) with strides rs, cs: dense along one axis. */
static bool lies(int64_t rows, int64_t cols, int64_t rs, int64_t cs, int32_t *ret_transposed, int64_t *ret_ld)
{
    if ((cs == 1 || cols == 1) && (rows == 1 || rs >= cols)) {
        *ret_transposed = 0;
        *ret_ld = rows == 1 ? cols : rs;
        return true;
    }
    if ((rs == 1 || rows == 1) && (cols == 1 || cs >= rows)) {
        *ret_transposed = 1;
        *ret_ld = cols == 1 ? rows : cs;
        return true;
    }
    return false;
}

static size_t library_workspace(const struct cuda_product *p)
{
    /* Room for sixteen parts of the sums, up to what the library makes use of at all. */
    size_t want = ((size_t)p->m * (size_t)p->n * (size_t)p->batch * 64 + 65535) & ~(size_t)65535;

    return want < WORKSPACE_MOST ? want : WORKSPACE_MOST;
}

/* Whether the library writes its result to the workspace as f32: if more of the epilogue follows (an exact GELU, a
 * residual after an activation), rounding to bf16 in between would lose accuracy. */
static bool goes_wide(const struct cuda_product *p)
{
    return p->out_dtype != PK_F32 && p->act != PK_ACT_NONE && !p->keeps && !p->slope &&
           (p->act == PK_ACT_GELU || p->has_residual);
}

static enum pk_dtype library_out(const struct cuda_product *p)
{
    return goes_wide(p) ? PK_F32 : p->out_dtype;
}

static size_t wide_bytes(const struct cuda_product *p)
{
    return goes_wide(p) ? ((size_t)(p->m * p->n * p->batch) * 4 + 255) & ~(size_t)255 : 0;
}

static bool bias_is_rounded(const struct cuda_product *p)
{
    return p->has_bias && (p->bias_dtype != library_out(p) || p->bias_step != 1);
}

static size_t bias_bytes(const struct cuda_product *p)
{
    return bias_is_rounded(p) ? ((size_t)p->n * 4 + 255) & ~(size_t)255 : 0;
}

/* ---- variants ---- */

/* A variant: the library's epilogue, and the part that polyd's kernels do. */
struct way {
    int32_t epilogue;
    bool into_saved; /* the library's result is what is kept */
    bool sums;       /* left */
    int what;        /* left, of CUDA_FINISH_... */
};

/* Whether a second matrix has the layout that the library requires: dense rows, a row stride that is a multiple of
 * eight, 16-byte aligned. At plan time there are no addresses, and the alignment is assumed. */
static bool aux_fits(const struct cuda_product *p, int64_t *ret_ld, int64_t *ret_step)
{
    const int last = p->lead - 1;
    const void *data = p->keeps ? p->kept : p->residual.data;

    *ret_ld = p->keeps || p->m == 1 ? p->n : p->residual.rs;
    *ret_step = p->keeps || last < 0 ? p->m * p->n : p->residual.step[last];
    return p->lead < 2 && *ret_ld % 8 == 0 && *ret_ld >= p->n && (last < 0 || *ret_step % 8 == 0) &&
           (uintptr_t)data % 16 == 0 &&
           (p->keeps || (p->residual.cs == 1 && p->residual.dtype == p->out_dtype));
}

static void way_of(const struct cuda_product *p, bool fused, struct way *w)
{
    int64_t ld, step;
    const bool aux = fused && p->act == PK_ACT_GELU_TANH && aux_fits(p, &ld, &step);
    const bool wide_sums = fused && p->batch == 1 && library_out(p) == PK_F32;

    *w = (struct way){.epilogue = CUBLASLT_EPILOGUE_DEFAULT, .sums = p->sums != PK_SUMS_NONE};
    if (p->slope) {
        w->what = aux ? 0 : CUDA_FINISH_SLOPE;
        if (aux)
            w->epilogue = CUBLASLT_EPILOGUE_DGELU;
        if (aux && wide_sums && p->sums == PK_SUMS_OUT) {
            w->epilogue = CUBLASLT_EPILOGUE_DGELU_BGRAD;
            w->sums = false;
        }
        return;
    }
    if (p->has_bias)
        w->epilogue = CUBLASLT_EPILOGUE_BIAS;
    if (p->keeps ? aux : p->act == PK_ACT_GELU_TANH) {
        w->epilogue = p->has_bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
        if (p->keeps)
            w->epilogue = p->has_bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    } else if (p->act == PK_ACT_RELU && !p->keeps) {
        w->epilogue = p->has_bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    } else if (p->act != PK_ACT_NONE) {
        w->what = CUDA_FINISH_ACT;
        w->into_saved = p->keeps;
    }
    if (p->has_residual && p->act != PK_ACT_NONE)
        w->what |= CUDA_FINISH_RESIDUAL;
    if (wide_sums && w->epilogue == CUBLASLT_EPILOGUE_DEFAULT && w->what == 0 && !p->has_residual &&
        (p->sums == PK_SUMS_A || p->sums == PK_SUMS_B)) {
        w->epilogue = p->sums == PK_SUMS_A ? CUBLASLT_EPILOGUE_BGRADB : CUBLASLT_EPILOGUE_BGRADA;
        w->sums = false;
    }
}

/* Whether the library would overwrite the residual before it is added. */
static bool loses_residual(const struct cuda_product *p)
{
    return p->has_residual && p->act != PK_ACT_NONE && p->residual.data == p->out && !goes_wide(p);
}

/* Fills the key but for alignments; false: not for the library. Reads no data pointers: plans have none. */
static bool key_of(const struct pk_backend *b, const struct cuda_product *p, struct cuda_lt_key *k)
{
    bool residual = p->has_residual && p->act == PK_ACT_NONE;
    int last = p->lead - 1;

    memset(k, 0, sizeof *k);
    if (p->m * p->n * p->k * p->batch <= TINY || p->a.dtype != p->b.dtype ||
        (p->a.dtype == PK_F32 && p->out_dtype != PK_F32))
        return false;
    if (!lies(p->m, p->k, p->a.rs, p->a.cs, &k->ta, &k->lda) ||
        !lies(p->k, p->n, p->b.rs, p->b.cs, &k->tb, &k->ldb))
        return false;
    if (p->has_residual && (p->residual.dtype != p->out_dtype || (p->residual.cs != 1 && p->n != 1) ||
                            (p->m != 1 && p->residual.rs < p->n)))
        return false;
    k->m = p->m;
    k->n = p->n;
    k->k = p->k;
    k->batch = last >= 0 ? p->dim[last] : 1;
    if (k->batch > INT32_MAX)
        return false;
    k->ldc = residual && p->m != 1 ? p->residual.rs : p->n;
    k->step_c = p->m * p->n;
    if (last >= 0) {
        k->step_a = p->a.step[last];
        k->step_b = p->b.step[last];
        k->step_c = residual ? p->residual.step[last] : k->step_c;
    }
    k->workspace = (int64_t)library_workspace(p);
    k->in = (int32_t)p->a.dtype;
    k->out = (int32_t)library_out(p);
    k->residual = residual;
    k->math = p->a.dtype == PK_F32 && b && b->math == PK_MATH_TF32;
    return true;
}

/* The extra sums of a product as a call of SUM. */
struct sums {
    struct pk_attr attr;
    struct pk_view in, out;
    struct pk_call call;
};

static void sums_of(const struct pk_call *c, struct sums *s)
{
    const enum pk_sums which = c->attr->matmul.sums;

    memset(s, 0, sizeof *s);
    s->in = which == PK_SUMS_A ? c->in[0] : which == PK_SUMS_B ? c->in[1] : c->out[0];
    s->out = c->out[c->n_out - 1];
    s->attr.reduce.axes = which == PK_SUMS_A   ? 2u
                          : which == PK_SUMS_B ? 1u
                                               : (1u << (s->in.shape.rank - 1)) - 1;
    s->call = (struct pk_call){
        .op = PK_OP_SUM, .attr = &s->attr, .n_in = 1, .n_out = 1, .in = &s->in, .out = &s->out};
}

static size_t sums_workspace(const struct pk_backend *b, const struct pk_call *c)
{
    struct sums s;

    if (!c->attr->matmul.sums)
        return 0;
    sums_of(c, &s);
    return cuda_sum_workspace(b, &s.call);
}

size_t cuda_matmul_workspace(const struct pk_backend *b, const struct pk_call *c)
{
    size_t sums = sums_workspace(b, c); /* run after the product, in the library's workspace */
    struct cuda_product p;
    struct cuda_lt_key k;

    describe(c, &p);
    if (!key_of(b, &p, &k))
        return sums;
    return bias_bytes(&p) + wide_bytes(&p) + (sums > (size_t)k.workspace ? sums : (size_t)k.workspace);
}

bool cuda_matmul_supports(const struct pk_backend *b, const struct pk_call *c)
{
    (void)b;
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i].dtype != PK_F32 && c->in[i].dtype != PK_BF16)
            return false;
    return c->out[0].dtype == PK_F32 || c->out[0].dtype == PK_BF16;
}

/* ---- running ---- */

/* The largest power of two, up to 256, that the address and all steps in bytes are multiples of. */
static int32_t align_of(const void *data, const int64_t *step, int32_t steps, size_t size)
{
    uintptr_t bits = (uintptr_t)data | 256u;

    for (int32_t i = 0; i < steps; i++)
        bits |= (uintptr_t)step[i] * size;
    return (int32_t)(bits & (~bits + 1));
}

static size_t size_of(enum pk_dtype t)
{
    return t == PK_BF16 ? 2 : 4;
}

/* Moves a pointer to matrix number `at` of the leading axes, without the last of them. */
static const void *shifted(const struct cuda_product *p, const struct cuda_operand *o, int64_t at)
{
    int64_t off = 0;

    for (int32_t i = p->lead - 2; i >= 0; i--) {
        off += at % p->dim[i] * o->step[i];
        at /= p->dim[i];
    }
    return (const char *)o->data + off * (int64_t)size_of(o->dtype);
}

/* The state of a call to the library. */
struct job {
    struct pk_backend *b;
    const struct pk_call *c;
    const struct cuda_product *p;
    struct way way[CUDA_LT_WAYS];
    enum pk_dtype wide; /* type of the library's result */
    char *scratch;      /* the library's workspace */
};

static enum pd_err add_up(struct pk_backend *b, const struct pk_call *c, const void *first, void *to,
                          void *workspace, struct pd_why *why)
{
    struct sums s;

    sums_of(c, &s);
    if (c->attr->matmul.sums == PK_SUMS_OUT)
        s.in.data = (void *)(uintptr_t)first;
    s.out.data = to;
    s.call.workspace = workspace;
    s.call.workspace_bytes = cuda_sum_workspace(b, &s.call);
    return cuda_sum(b, &s.call, why);
}

/* The remaining part of a variant: from d to out, and the sums. */
static enum pd_err finish(const struct job *j, int way, const void *d, void *out, void *sums,
                          struct pd_why *why)
{
    const struct way *w = &j->way[way];
    struct cuda_product p = *j->p;
    enum pd_err err = PD_OK;

    p.out = out;
    if (w->what)
        err = cuda_product_finish(j->b, &p, d, j->wide, w->what, why);
    if (err == PD_OK && w->sums)
        err = add_up(j->b, j->c, out, sums, j->scratch, why);
    return err;
}

static enum pd_err finish_trial(void *user, int way, const struct cuda_lt_run *trial, struct pd_why *why)
{
    /* the fused way's result is out: in a trial of both that is where the other's comes to as well */
    return finish(user, way, trial->d[way], trial->d[CUDA_LT_FUSED], trial->sums, why);
}

static enum pd_err round_bias(const struct job *j, struct pd_why *why)
{
    const struct cuda_product *p = j->p;
    struct pk_view v = {
        .data = (void *)(uintptr_t)p->bias, .dtype = p->bias_dtype, .shape = {.rank = 1, .dim = {p->n}}};

    v.stride[0] = p->bias_step;
    return cuda_copy_view(j->b, &v, j->c->workspace, j->wide, why);
}

static int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static enum pd_err by_library(struct pk_backend *b, const struct cuda_product *p, struct cuda_lt_key *k,
                              const struct pk_call *c, bool *ret_fallback, struct pd_why *why)
{
    size_t bias_size = bias_bytes(p), wide_size = wide_bytes(p), out_size = size_of(library_out(p));
    int64_t out_step[PK_MAX_RANK], rounds = p->batch / k->batch, each = p->m * p->n * k->batch;
    char *scratch = c->workspace;
    struct job j = {
        .b = b, .c = c, .p = p, .wide = library_out(p), .scratch = scratch + bias_size + wide_size};
    struct cuda_lt_run r = {.bias = bias_size ? c->workspace : p->bias, .workspace = j.scratch};
    void *sums = p->sums ? c->out[c->n_out - 1].data : NULL, *result[CUDA_LT_WAYS];
    const struct cuda_lt_plan *plan = NULL;
    enum pd_err err = PD_OK;

    for (int32_t i = p->lead - 1, n = 0; i >= 0; i--, n++)
        out_step[i] = i == p->lead - 1 ? p->m * p->n : out_step[i + 1] * p->dim[i + 1];
    way_of(p, false, &j.way[CUDA_LT_SIMPLE]);
    way_of(p, rounds == 1, &j.way[CUDA_LT_FUSED]);
    for (int i = 0; i < CUDA_LT_WAYS; i++)
        result[i] = j.way[i].into_saved ? p->kept : wide_size ? scratch + bias_size : p->out;
    k->epilogue = j.way[CUDA_LT_SIMPLE].epilogue;
    k->align_a = align_of(p->a.data, p->a.step, p->lead, size_of(p->a.dtype));
    k->align_b = align_of(p->b.data, p->b.step, p->lead, size_of(p->b.dtype));
    k->align_d = least(align_of(result[0], out_step, p->lead, out_size),
                       align_of(result[1], out_step, p->lead, out_size));
    k->align_c = k->residual ? align_of(p->residual.data, p->residual.step, p->lead, out_size) : k->align_d;
    if (p->has_bias)
        k->align_bias = align_of(r.bias, NULL, 0, out_size);
    if (j.way[CUDA_LT_FUSED].epilogue != k->epilogue) {
        k->fused = j.way[CUDA_LT_FUSED].epilogue;
        if (p->keeps || p->slope) {
            (void)aux_fits(p, &k->ldx, &k->step_x);
            r.aux = p->keeps ? p->kept : (void *)(uintptr_t)p->residual.data;
            k->align_x = align_of(r.aux, p->keeps ? out_step : p->residual.step, p->lead, out_size);
        }
        if (!j.way[CUDA_LT_FUSED].sums && p->sums) {
            r.sums = sums;
            k->align_bias = align_of(sums, NULL, 0, out_size);
        }
    }
    if (bias_size)
        err = round_bias(&j, why);
    for (int64_t at = 0; at < rounds && err == PD_OK; at++) {
        r.a = shifted(p, &p->a, at);
        r.b = shifted(p, &p->b, at);
        r.c = k->residual ? shifted(p, &p->residual, at) : NULL;
        for (int i = 0; i < CUDA_LT_WAYS; i++)
            r.d[i] = (char *)result[i] + (size_t)(at * each) * out_size;
        err = plan ? PD_OK : cuda_lt_plan_of(b, k, &r, finish_trial, &j, &plan, why);
        if (err == PD_OK && plan->fallback) {
            *ret_fallback = true;
            return PD_OK;
        }
        if (err == PD_OK)
            err = cuda_lt_start(b, plan, &r, why);
    }
    return err == PD_OK ? finish(&j, plan->way, result[plan->way], p->out, sums, why) : err;
}

static enum pd_err fallback(struct pk_backend *b, const struct cuda_product *p, const struct pk_call *c,
                            struct pd_why *why)
{
    enum pd_err err = cuda_product_fallback(b, p, why);

    if (err == PD_OK && p->sums)
        err = add_up(b, c, p->out, c->out[c->n_out - 1].data, c->workspace, why);
    return err;
}

enum pd_err cuda_matmul(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct cuda_product p;
    struct cuda_lt_key k;
    bool refused = false;
    enum pd_err err;

    describe(c, &p);
    if (p.m == 0 || p.n == 0 || p.batch == 0)
        return p.sums ? add_up(b, c, p.out, c->out[c->n_out - 1].data, c->workspace, why) : PD_OK;
    if (loses_residual(&p) || !key_of(b, &p, &k))
        return fallback(b, &p, c, why);
    err = by_library(b, &p, &k, c, &refused, why);
    return err == PD_OK && refused ? fallback(b, &p, c, why) : err;
}
