/* rig_check for the CUDA back end: every case of tests/backend once more, against the CPU back end.
 *
 * A case in f32 is run as it is, then with everything bf16 that op.h lets a pass narrow, then with a mixture.
 * What is expected of bf16 is the CPU's f32 result on the rounded inputs. Each is run several times: outputs
 * and workspace poisoned with NaN between guard bytes, the threads of a block in another order (emulation),
 * and captured and replayed; all must agree bit by bit. Cases in f64 are the CPU's alone. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/backend/rig.h"
#include "tests/gpu/cover.h"
#include "tests/gpu/device.h"

const char *const rig_levels[3] = {"avx512", "avx2", "portable"};

static struct pk_backend *cpu;

/* Tests that ask for levels, libraries or several threads are about the CPU. */
struct pk_backend *rig_backend(const char *level, const char *gemm, int threads)
{
    struct pd_why why;

    if (level || gemm || threads != 1)
        skip();
    if (!cpu)
        assert_int_equal(pk_backend_cpu()->open(NULL, 0, 1, &cpu, &why), PD_OK);
    return cpu;
}

int rig_close_all(void **state)
{
    rig_reset(state);
    if (cpu)
        cpu = pk_backend_cpu()->close(cpu);
    cover_close();
    return gpu_close(state);
}

/* ---- what may be narrowed ---- */

enum { ALONE = 1, TOGETHER = 2 }; /* by itself; all of these have one type */

struct narrowing {
    int in[RIG_MAX_IN], out[RIG_MAX_OUT];
};

static void narrow_attention(const struct rig_case *c, struct narrowing *n)
{
    const struct pk_attention_attr *a = &c->attr.attention;
    int qkv = a->packed ? 1 : 3;

    for (int i = 0; i < qkv; i++)
        n->in[i] = TOGETHER;
    if (c->op == PK_OP_ATTENTION) {
        n->out[0] = TOGETHER;
        return;
    }
    for (int i = 0; i < qkv; i++)
        n->out[i] = TOGETHER;
    /* q, k, v, scale, bias, mask, length, rng, y, dy, sums */
    qkv += a->has_scale + a->has_bias + a->has_mask + a->has_length + a->has_rng;
    n->in[qkv] = n->in[qkv + 1] = TOGETHER;
}

static struct narrowing narrowing_of(const struct rig_case *c)
{
    struct narrowing n = {{0}, {0}};

    switch (c->op) {
    case PK_OP_COPY:
    case PK_OP_FILL:
    case PK_OP_CONCAT:
    case PK_OP_PAD:
    case PK_OP_GATHER:
    case PK_OP_SCATTER_ADD:
    case PK_OP_ONE_HOT:
    case PK_OP_EXPR:
    case PK_OP_SUM:
    case PK_OP_MAX:
    case PK_OP_DROPOUT:
    case PK_OP_SOFTMAX:
    case PK_OP_SOFTMAX_BWD:
        for (int i = 0; i < c->n_in; i++)
            n.in[i] = ALONE;
        for (int i = 0; i < c->n_out; i++)
            n.out[i] = ALONE;
        break;
    case PK_OP_SUMSQ:
        for (int i = 0; i < c->n_in; i++)
            n.in[i] = ALONE;
        break;
    case PK_OP_MATMUL:
        n.in[0] = n.in[1] = TOGETHER;
        for (int i = 2; i < c->n_in; i++)
            n.in[i] = ALONE;
        n.out[0] = ALONE;
        if (c->attr.matmul.keeps)
            n.out[0] = n.out[1] = TOGETHER;
        if (c->attr.matmul.slope)
            n.in[2] = n.out[0] = TOGETHER;
        break;
    case PK_OP_NORM:
        for (int i = 0; i < c->n_in; i++)
            n.in[i] = ALONE;
        n.out[0] = ALONE;
        break;
    case PK_OP_NORM_BWD:
        n.in[0] = n.in[1] = n.in[2] = n.out[0] = ALONE;
        if (c->attr.norm.has_residual)
            n.in[c->n_in - 1] = ALONE;
        if (c->attr.norm.again)
            n.out[c->n_out - 1] = ALONE;
        break;
    case PK_OP_CROSS_ENTROPY:
        n.in[0] = ALONE;
        break;
    case PK_OP_CROSS_ENTROPY_BWD:
    case PK_OP_CROSS_ENTROPY_GRAD:
        n.in[0] = n.out[0] = TOGETHER;
        break;
    case PK_OP_ATTENTION:
    case PK_OP_ATTENTION_BWD:
        narrow_attention(c, &n);
        break;
    case PK_OP_ATTENTION_STATS:
        for (int i = 0; i < (c->attr.attention.packed ? 1 : 3); i++)
            n.in[i] = TOGETHER;
        n.in[c->n_in - 1] = ALONE;
        break;
    case PK_OP_ATTENTION_STATE:
        n.in[0] = n.in[1] = n.in[2] = n.out[0] = TOGETHER;
        break;
    case PK_OP_ADAMW:
    case PK_OP_MSGDW:
    case PK_OP_ACCUMULATE:
    case PK_OP_BLEND:
        n.in[1] = ALONE;
        break;
    case PK_OP_CONV2D:
    case PK_OP_CONV2D_DX:
    case PK_OP_CONV2D_DW: /* as MATMUL: f32 makes no bf16 */
        n.in[0] = n.in[1] = TOGETHER;
        break;
    case PK_OP_DWCONV2D:
    case PK_OP_DWCONV2D_DW:
        n.in[0] = ALONE;
        n.out[0] = c->op == PK_OP_DWCONV2D ? ALONE : 0;
        n.in[1] = c->op == PK_OP_DWCONV2D ? 0 : ALONE;
        break;
    default:
        break;
    }
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i].dtype != PK_F32)
            n.in[i] = 0;
    for (int i = 0; i < c->n_out; i++) {
        if (c->out_dtype[i] != PK_F32)
            n.out[i] = 0;
        if (c->share[i] && !n.in[c->share[i] - 1]) /* one memory, one type */
            n.out[i] = 0;
    }
    return n;
}

/* ---- a case with other types ---- */

static int64_t span_of(const struct pk_view *v)
{
    int64_t n = 1;

    for (int i = 0; i < v->shape.rank; i++) {
        if (v->shape.dim[i] == 0)
            return 0;
        n += (v->shape.dim[i] - 1) * v->stride[i];
    }
    return n;
}

static uint16_t to_bf16(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    if (isnan(x))
        return 0x7fff;
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

/* The same view in bf16, and *ret_rounded in f32 with the same values. */
static struct pk_view narrowed(const struct pk_view *v, struct pk_view *ret_rounded)
{
    int64_t n = span_of(v);
    uint16_t *to = rig_alloc((size_t)n * 2);
    float *rounded = rig_alloc((size_t)n * 4);
    struct pk_view r = *v;

    for (int64_t i = 0; i < n; i++) {
        uint32_t u;

        to[i] = to_bf16(((const float *)v->data)[i]);
        u = (uint32_t)to[i] << 16;
        memcpy(&rounded[i], &u, sizeof u);
    }
    *ret_rounded = *v;
    ret_rounded->data = rounded;
    r.data = to;
    r.dtype = PK_BF16;
    return r;
}

/* ---- running ---- */

/* The CPU's result; outputs as the case says, but f32 instead of bf16. */
static void run_cpu(const struct rig_case *c, struct rig_guarded *out)
{
    const struct pk_backend_api *api = pk_backend_cpu();
    struct pk_backend *b = rig_backend(NULL, NULL, 1);
    struct pk_view in[RIG_MAX_IN], outs[RIG_MAX_OUT];
    struct pk_call call = {
        .op = c->op, .attr = &c->attr, .n_in = c->n_in, .n_out = c->n_out, .in = in, .out = outs};
    struct pd_why why = {""};

    memcpy(in, c->in, sizeof in);
    for (int i = 0; i < c->n_out; i++) {
        size_t bytes = (size_t)pk_shape_count(&c->out[i]) * pk_dtype_size(c->out_dtype[i]);

        out[i] = rig_guarded_new(bytes);
        outs[i] = pk_view_dense(out[i].base + RIG_GUARD, c->out_dtype[i], c->out[i]);
        if (c->share[i]) {
            memcpy(outs[i].data, c->in[c->share[i] - 1].data, bytes);
            in[c->share[i] - 1].data = outs[i].data;
        }
    }
    assert_true(api->supports(b, &call));
    call.workspace_bytes = api->workspace_bytes(b, &call);
    call.workspace = rig_alloc(call.workspace_bytes);
    if (api->run(b, &call, 1, &why) != PD_OK)
        fail_msg("%s: the CPU: %s", c->name, why.text);
}

struct on_device {
    unsigned char *base;
    size_t bytes;
};

static struct on_device put_on_device(const void *from, size_t bytes)
{
    struct on_device d = {gpu_api()->alloc(gpu_device(), bytes), bytes};

    assert_non_null(d.base);
    assert_int_equal(gpu_api()->upload(gpu_device(), d.base, from, bytes, NULL), PD_OK);
    return d;
}

static void take_from_device(const struct on_device *d, struct rig_guarded *to)
{
    assert_int_equal(gpu_api()->download(gpu_device(), to->base, d->base, d->bytes, NULL), PD_OK);
}

enum how {
    EAGER,
    AGAIN
}; /* AGAIN: captured and replayed, in the emulation also in another order of threads */

/* What a plan reserves for the call: made before there is memory. */
static size_t planned(const struct pk_backend_api *api, struct pk_backend *b, const struct pk_call *call)
{
    struct pk_view in[RIG_MAX_IN], out[RIG_MAX_OUT];
    struct pk_call bare = *call;

    for (int i = 0; i < call->n_in; i++) {
        in[i] = call->in[i];
        in[i].data = NULL;
    }
    for (int i = 0; i < call->n_out; i++) {
        out[i] = call->out[i];
        out[i].data = NULL;
    }
    bare.in = in;
    bare.out = out;
    return api->workspace_bytes(b, &bare);
}

static void run_gpu(const struct rig_case *c, const char *label, enum how how, struct rig_guarded *out)
{
    const struct pk_backend_api *api = gpu_api();
    struct pk_backend *b = gpu_device();
    struct pk_view in[RIG_MAX_IN], outs[RIG_MAX_OUT];
    struct pk_call call = {
        .op = c->op, .attr = &c->attr, .n_in = c->n_in, .n_out = c->n_out, .in = in, .out = outs};
    struct on_device on[RIG_MAX_IN + RIG_MAX_OUT + 1];
    struct pk_captured *captured = NULL;
    struct rig_guarded work;
    struct pd_why why = {""};
    int n = 0, work_at, out_at[RIG_MAX_OUT];
    size_t need;

    memcpy(in, c->in, sizeof in);
    for (int i = 0; i < c->n_in; i++) {
        on[n] = put_on_device(in[i].data, (size_t)span_of(&in[i]) * pk_dtype_size(in[i].dtype));
        in[i].data = on[n++].base;
    }
    for (int i = 0; i < c->n_out; i++) {
        size_t bytes = (size_t)pk_shape_count(&c->out[i]) * pk_dtype_size(c->out_dtype[i]);

        out[i] = rig_guarded_new(bytes);
        if (c->share[i])
            memcpy(out[i].base + RIG_GUARD, c->in[c->share[i] - 1].data, bytes);
        out_at[i] = n;
        on[n] = put_on_device(out[i].base, bytes + 2 * RIG_GUARD);
        outs[i] = pk_view_dense(on[n++].base + RIG_GUARD, c->out_dtype[i], c->out[i]);
        if (c->share[i])
            in[c->share[i] - 1].data = outs[i].data;
    }
    need = planned(api, b, &call);
    work = rig_guarded_new(need);
    work_at = n;
    on[n] = put_on_device(work.base, need + 2 * RIG_GUARD);
    call.workspace = on[n++].base + RIG_GUARD;
    call.workspace_bytes = need;
    if (how == AGAIN)
        setenv("POLYD_EMU_ORDER", "reverse", 1);
    if (how == AGAIN) {
        if (api->capture(b, &call, 1, &captured, &why) != PD_OK)
            fail_msg("%s, %s: capturing: %s", c->name, label, why.text);
        if (api->replay(b, captured, &why) != PD_OK)
            fail_msg("%s, %s: replaying: %s", c->name, label, why.text);
    } else if (api->run(b, &call, 1, &why) != PD_OK) {
        fail_msg("%s, %s: %s", c->name, label, why.text);
    }
    if (api->sync(b, &why) != PD_OK)
        fail_msg("%s, %s: %s", c->name, label, why.text);
    unsetenv("POLYD_EMU_ORDER");
    api->captured_free(b, captured);
    take_from_device(&on[work_at], &work);
    rig_guarded_check(&work, c->name, "workspace");
    free(work.base);
    for (int i = 0; i < c->n_out; i++) {
        take_from_device(&on[out_at[i]], &out[i]);
        rig_guarded_check(&out[i], c->name, "output");
    }
    while (n > 0)
        api->free(b, on[--n].base);
}

static void free_all(const struct rig_case *c, struct rig_guarded *g)
{
    for (int i = 0; i < c->n_out; i++)
        free(g[i].base);
}

static void same_bits(const struct rig_case *c, const char *label, const char *what,
                      const struct rig_guarded *a, const struct rig_guarded *b)
{
    for (int o = 0; o < c->n_out; o++)
        if (memcmp(a[o].base, b[o].base, a[o].bytes + 2 * RIG_GUARD) != 0)
            fail_msg("%s, %s, output %d: %s gives other bits", c->name, label, o, what);
}

/* Relative to the largest value of a tensor: f32 sums in another order; the rounding of a bf16 result; and of
 * attention in bf16, where A is narrowed on its way into a second product, what tests/golden/README.md 10
 * measured of an emulation. */
static double tolerance_of(const struct rig_case *c, bool any_bf16, bool out_bf16)
{
    const struct pk_attention_attr *a = &c->attr.attention;
    double t = c->tolerance > 0 ? c->tolerance * 4 : 8e-6;

    if (any_bf16 && (c->op == PK_OP_ATTENTION || c->op == PK_OP_ATTENTION_BWD))
        t += a->phi != PK_PHI_POLY ? 8.1e-3 : a->degree <= 3 ? 1.5e-2 : 2.1e-2;
    if (out_bf16)
        t += 0x1p-8;
    return t;
}

/* Sums over the rows of an output in bf16 are of rounded numbers: each is off by up to 2^-8 of itself,
 * evenly, and their sum by six standard deviations at most. The largest of all columns. */
static double sums_off(const struct rig_case *c, const struct rig_guarded *out)
{
    const struct pk_shape *shape = &c->out[0];
    const int64_t n = pk_shape_count(shape), columns = shape->dim[shape->rank - 1];
    double most = 0;

    for (int64_t j = 0; j < columns; j++) {
        double square = 0;

        for (int64_t i = j; i < n; i += columns)
            square += pow(rig_get(out->base + RIG_GUARD, c->out_dtype[0], i), 2);
        most = fmax(most, 6 * 0x1p-8 / sqrt(3) * sqrt(square));
    }
    return most;
}

/* Whether a product in bf16 may be rounded before what follows: a slope, or the activation where its argument is kept; on a
 * device anything else too, since cuBLASLt may leave an epilogue to a kernel of its own that reads the rounded product. */
static bool rounded_twice(const struct pk_attr *a)
{
    return a->matmul.slope || a->matmul.keeps ||
           (!gpu_is_emulated() &&
            (a->matmul.has_bias || a->matmul.has_residual || a->matmul.act != PK_ACT_NONE));
}

static bool supported(const struct rig_case *c)
{
    struct pk_view out[RIG_MAX_OUT];
    struct pk_call call = {
        .op = c->op, .attr = &c->attr, .n_in = c->n_in, .n_out = c->n_out, .in = c->in, .out = out};
    bool yes;

    for (int i = 0; i < c->n_out; i++)
        out[i] = pk_view_dense(NULL, c->out_dtype[i], c->out[i]);
    yes = gpu_api()->supports(gpu_device(), &call);
    /* A plan without a device is of an ordinary one: it may say yes where this one says no, not the reverse.
     */
    if (yes && !gpu_api()->supports(NULL, &call))
        fail_msg("%s: supported here, and not in a plan without a device", c->name);
    return yes;
}

/* Multiplications of the linear order of attention: what takes the emulation long. */
static double work_of(const struct rig_case *c)
{
    const struct pk_attention_attr *a = &c->attr.attention;
    const struct pk_shape *q = &c->in[0].shape;
    double d;

    if ((c->op != PK_OP_ATTENTION && c->op != PK_OP_ATTENTION_BWD) || a->form != PK_FORM_LINEAR ||
        !gpu_is_emulated() || getenv("POLYD_TEST_FULL"))
        return 0;
    d = (double)q->dim[q->rank - 1];
    return (double)pk_shape_count(q) * (double)pk_attention_features(a->degree, q->dim[q->rank - 1]) *
           (d > 64 ? 2 : 1);
}

/* Whether the ordinary run takes this case in these types. */
static bool wanted(const struct rig_case *c, const char *label)
{
    struct pk_view out[RIG_MAX_OUT];
    struct pk_call call = {
        .op = c->op, .attr = &c->attr, .n_in = c->n_in, .n_out = c->n_out, .in = c->in, .out = out};
    char about[200];

    for (int i = 0; i < c->n_out; i++)
        out[i] = pk_view_dense(NULL, c->out_dtype[i], c->out[i]);
    snprintf(about, sizeof about, "%s, %s", strcmp(label, "f32") == 0 ? "wide" : label, c->name);
    return cover_wants(gpu_api(), PK_MATH_F32, &call, c->share, about);
}

/* `reference` has the inputs of `c` in f32; outputs in bf16 are compared with f32 ones. */
static void check_one(const struct rig_case *c, const struct rig_case *reference, const char *label)
{
    struct rig_guarded want[RIG_MAX_OUT], first[RIG_MAX_OUT], again[RIG_MAX_OUT];
    bool any = false;

    if (!wanted(c, label))
        return;
    for (int i = 0; i < c->n_in; i++)
        any = any || c->in[i].dtype == PK_BF16;
    run_cpu(reference, want);
    run_gpu(c, label, EAGER, first);
    for (int o = 0; o < c->n_out; o++) { /* one by one: each has its own tolerance */
        struct rig_case one = *reference;
        struct rig_guarded wide = first[o];
        bool bf16 = c->out_dtype[o] == PK_BF16 && reference->out_dtype[o] == PK_F32;
        char name[200];

        if (bf16) {
            wide = rig_guarded_new((size_t)pk_shape_count(&c->out[o]) * 4);
            for (int64_t i = 0; i < pk_shape_count(&c->out[o]); i++)
                ((float *)(wide.base + RIG_GUARD))[i] = (float)rig_get(first[o].base + RIG_GUARD, PK_BF16, i);
        }
        snprintf(name, sizeof name, "%s, output %d", c->name, o);
        one.name = name;
        one.n_out = 1;
        one.out[0] = c->out[o];
        one.out_dtype[0] = reference->out_dtype[o];
        one.yard[0] = c->yard[o];
        one.tolerance = tolerance_of(c, any, bf16);
        if (c->op == PK_OP_MATMUL && c->attr.matmul.sums == PK_SUMS_OUT && c->out_dtype[0] == PK_BF16 &&
            o == c->n_out - 1)
            one.yard[0] = fmax(one.yard[0], sums_off(reference, &want[0]) / one.tolerance);
        if (c->op == PK_OP_MATMUL && bf16 && rounded_twice(&c->attr))
            one.tolerance += 0x1p-8;
        if (c->op == PK_OP_MATMUL && any) /* the product may be rounded before bias, activation, residual */
            one.floor = fmax(one.floor, 1);
        /* Where terms cancel to nothing: a row's mean against each of it, and whatever is rounded. */
        if (c->op == PK_OP_ATTENTION_BWD && (any || pk_phi_normalised(c->attr.attention.phi)))
            one.floor = 0.01;
        rig_compare(&one, label, &wide, &want[o]);
        if (bf16)
            free(wide.base);
    }
    if (work_of(c) < 1e7) {
        run_gpu(c, label, AGAIN, again);
        same_bits(c, label, "a captured run", first, again);
        free_all(c, again);
    }
    free_all(c, first);
    free_all(c, want);
}

void rig_check(const struct rig_case *c)
{
    static uint32_t coin = 12345;
    const struct narrowing n = narrowing_of(c);
    int any = 0; /* ALONE | TOGETHER */

    for (int i = 0; i < c->n_in; i++) {
        if (c->in[i].dtype == PK_F64)
            return;
        any |= n.in[i];
    }
    for (int i = 0; i < c->n_out; i++) {
        if (c->out_dtype[i] == PK_F64)
            return;
        any |= n.out[i];
    }
    if (!supported(c)) {
        gpu_note_missing(c->op);
        return;
    }
    coin = coin * 1664525u + 1013904223u;
    if (work_of(c) >= 1e8) /* test_attention.c has such heads in linear order */
        return;
    if (work_of(c) >= 1e7) { /* one or the other; POLYD_TEST_FULL=1: both, twice */
        if (coin >> 31) {
            check_one(c, c, "f32");
            return;
        }
    } else {
        check_one(c, c, "f32");
    }
    for (int variant = 0; any && !c->f32_only && variant < (any & ALONE ? 2 : 1); variant++) {
        struct rig_case narrow = *c, reference = *c;
        bool together = true;

        coin = coin * 1664525u + 1013904223u;
        if (variant == 1)
            together = coin >> 31;
        for (int i = 0; i < c->n_in; i++) {
            coin = coin * 1664525u + 1013904223u;
            if (n.in[i] == TOGETHER ? together : n.in[i] && (variant == 0 || coin >> 31))
                narrow.in[i] = narrowed(&c->in[i], &reference.in[i]);
        }
        for (int i = 0; i < c->n_out; i++) {
            coin = coin * 1664525u + 1013904223u;
            if (c->share[i] ? narrow.in[c->share[i] - 1].dtype == PK_BF16
                            : (n.out[i] == TOGETHER ? together : n.out[i] && (variant == 0 || coin >> 31)))
                narrow.out_dtype[i] = PK_BF16;
        }
        if (!supported(&narrow))
            fail_msg("%s: f32 is supported, and bf16 is not (%s)", c->name,
                     variant ? "a mixture" : "all of it");
        check_one(&narrow, &reference, variant ? "mixture" : "bf16");
    }
}
