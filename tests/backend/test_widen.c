/* Calls with bf16 in them on the CPU: each is the f32 call on the widened numbers, rounded to nearest even.
 */
#include <stddef.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend/cpu/half.h"
#include "tests/backend/rig.h"

#define MOST 12

static uint16_t half_of(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    bits += 0x7fffu + (bits >> 16 & 1u);
    return (uint16_t)(bits >> 16);
}

static float float_of(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

static void run(struct pk_call *c, int threads)
{
    const struct pk_backend_api *api = pk_backend_cpu();
    struct pk_backend *b = rig_backend(NULL, NULL, threads);
    struct pd_why why = {""};

    if (!api->supports(b, c) || !api->supports(NULL, c))
        fail_msg("%s is not supported", pk_op_name(c->op));
    c->workspace_bytes = api->workspace_bytes(b, c);
    c->workspace = rig_alloc(c->workspace_bytes + 256);
    c->workspace = (void *)(((uintptr_t)c->workspace + 255) & ~(uintptr_t)255);
    memset(c->workspace, 0xff, c->workspace_bytes);
    if (api->run(b, c, 1, &why) != PD_OK)
        fail_msg("%s: %s", pk_op_name(c->op), why.text);
}

/* A copy of `v` in the other type; its elements are known to be representable. Strides stay. */
static struct pk_view other(const struct pk_view *v, enum pk_dtype dtype, int64_t elements)
{
    struct pk_view to = *v;

    to.dtype = dtype;
    to.data = rig_alloc((size_t)elements * 4 + 4);
    for (int64_t i = 0; i < elements; i++)
        if (dtype == PK_BF16)
            ((uint16_t *)to.data)[i] = half_of(((const float *)v->data)[i]);
        else
            ((float *)to.data)[i] = float_of(((const uint16_t *)v->data)[i]);
    return to;
}

struct item {
    enum pk_op op;
    struct pk_attr attr;
    int n_in, n_out;
    struct pk_view in[MOST]; /* f32, dense or of the first `held` elements; integers as they are */
    int64_t held[MOST];      /* 0: as many as the shape says */
    struct pk_shape out[4];
    uint32_t half_in, half_out; /* bit k: that one is bf16 */
    uint32_t near;              /* bit k: output k is a sum in another order */
};

/* `half_in` inputs are rounded to bf16 first, so that both calls see the same numbers. One thread gives what two give, bit
 * for bit. */
static void check(struct item *t)
{
    struct pk_view wide[MOST], narrow[MOST], want[4], got[4], once[4];
    struct pk_call c = {.op = t->op, .attr = &t->attr, .n_in = t->n_in, .n_out = t->n_out};

    for (int i = 0; i < t->n_in; i++) {
        int64_t n = t->held[i] ? t->held[i] : pk_shape_count(&t->in[i].shape);

        wide[i] = narrow[i] = t->in[i];
        if (!(t->half_in >> i & 1))
            continue;
        narrow[i] = other(&t->in[i], PK_BF16, n);
        wide[i] = other(&narrow[i], PK_F32, n);
    }
    for (int i = 0; i < t->n_out; i++) {
        size_t bytes = (size_t)pk_shape_count(&t->out[i]) * 4 + 64;

        want[i] = pk_view_dense(rig_alloc(bytes), PK_F32, t->out[i]);
        got[i] = pk_view_dense(rig_alloc(bytes), t->half_out >> i & 1 ? PK_BF16 : PK_F32, t->out[i]);
        memset(got[i].data, 0x5a, bytes);
        once[i] = got[i];
        once[i].data = rig_alloc(bytes);
    }
    c.in = wide;
    c.out = want;
    run(&c, 2);
    c.in = narrow;
    c.out = once;
    run(&c, 1);
    c.out = got;
    run(&c, 2);
    for (int i = 0; i < t->n_out; i++)
        assert_memory_equal(got[i].data, once[i].data,
                            (size_t)pk_shape_count(&t->out[i]) * pk_dtype_size(got[i].dtype));
    for (int i = 0; i < t->n_out; i++) {
        int64_t n = pk_shape_count(&t->out[i]);
        const unsigned char *guard;

        for (int64_t k = 0; k < n; k++) {
            float x = ((float *)want[i].data)[k];

            if (t->near >> i & 1) {
                if (!(fabsf(((float *)got[i].data)[k] - x) <= 1e-5f * fmaxf(1.0f, fabsf(x))))
                    fail_msg("%s: output %d, element %lld: %g, not %g", pk_op_name(t->op), i, (long long)k,
                             (double)((float *)got[i].data)[k], (double)x);
                continue;
            }
            if (got[i].dtype == PK_BF16 ? ((uint16_t *)got[i].data)[k] != half_of(x)
                                        : memcmp((float *)got[i].data + k, &x, sizeof x) != 0)
                fail_msg("%s: output %d, element %lld: %g wanted", pk_op_name(t->op), i, (long long)k,
                         (double)x);
        }
        guard = (const unsigned char *)got[i].data + (size_t)n * pk_dtype_size(got[i].dtype);
        for (int k = 0; k < 32; k++)
            assert_int_equal(guard[k], 0x5a);
    }
}

static struct pk_view numbers(struct pk_shape shape)
{
    return rig_random(PK_F32, shape, -1, 1);
}

static void test_widen_products(void **state)
{
    (void)state;
    for (uint32_t half = 0; half < 32; half++)
        for (int m = 3; m < 40; m += 30) {
            struct item t = {.op = PK_OP_MATMUL, .n_in = 4, .n_out = 1, .half_in = half & 15};

            t.attr.matmul.has_bias = t.attr.matmul.has_residual = true;
            t.attr.matmul.act = PK_ACT_GELU;
            t.in[0] = numbers(PK_SHAPE(m, 24));
            t.in[1] = rig_transposed(numbers(PK_SHAPE(17, 24)));
            t.in[2] = numbers(PK_SHAPE(17));
            t.in[3] = numbers(PK_SHAPE(m, 17));
            t.out[0] = PK_SHAPE(m, 17);
            t.half_out = half >> 4;
            if ((half & 3) == 2) /* there is a form of its own for b alone, with sums of another order */
                continue;
            if ((half & 3) == 3 && m <= 16)
                continue;
            check(&t);
        }
}

/* Gradients of a weight with what flows into the bias, slopes, what is kept: outputs by their types. */
static void test_widen_what_products_do_besides(void **state)
{
    (void)state;
    for (int m = 20; m < 60; m += 30)
        for (int sums = PK_SUMS_NONE; sums <= PK_SUMS_B; sums++)
            for (int form = 0; form < 3; form++) {
                struct item t = {.op = PK_OP_MATMUL, .n_in = 2, .n_out = 1, .half_in = 3};

                t.attr.matmul.sums = (enum pk_sums)sums;
                t.attr.matmul.act = form ? PK_ACT_GELU_TANH : PK_ACT_NONE;
                t.attr.matmul.keeps = form == 1;
                t.attr.matmul.slope = form == 2;
                t.in[0] = numbers(PK_SHAPE(m, 24));
                t.in[1] = numbers(PK_SHAPE(24, 17));
                t.out[0] = PK_SHAPE(m, 17);
                if (form == 1)
                    t.out[t.n_out++] = PK_SHAPE(m, 17);
                if (form == 2)
                    t.in[t.n_in++] = numbers(PK_SHAPE(m, 17));
                if (sums)
                    t.out[t.n_out++] = PK_SHAPE(sums == PK_SUMS_A ? m : 17);
                if (form) {
                    t.half_in |= form == 2 ? 4 : 0;
                    t.half_out = form == 1 ? 3 : 1;
                    if (sums == PK_SUMS_OUT)
                        continue; /* of numbers before they are rounded */
                }
                check(&t);
            }
}

static void test_widen_elementwise_with_repeated_axes(void **state)
{
    struct pk_expr p = {.count = 3, .code = {{PK_EX_IN, 0, 0}, {PK_EX_IN, 1, 0}, {PK_EX_MUL, 0, 0}}};

    (void)state;
    for (uint32_t half = 1; half < 8; half++) {
        struct item t = {.op = PK_OP_EXPR, .n_in = 2, .n_out = 1, .half_in = half & 3, .half_out = half >> 2};

        t.attr.expr = &p;
        t.in[0] = numbers(PK_SHAPE(3, 5, 7));
        t.in[1] = numbers(PK_SHAPE(7));
        t.in[1].shape = t.in[0].shape;
        t.in[1].stride[0] = t.in[1].stride[1] = 0;
        t.in[1].stride[2] = 1;
        t.held[1] = 7;
        t.out[0] = PK_SHAPE(3, 5, 7);
        check(&t);
    }
}

static void test_widen_norm_and_its_derivative(void **state)
{
    struct item t = {.op = PK_OP_NORM, .n_in = 3, .n_out = 3, .half_in = 1, .half_out = 1};

    (void)state;
    t.attr.norm.eps = 1e-5;
    t.attr.norm.has_beta = true;
    t.in[0] = numbers(PK_SHAPE(5, 33));
    t.in[1] = numbers(PK_SHAPE(33));
    t.in[2] = numbers(PK_SHAPE(33));
    t.out[0] = PK_SHAPE(5, 33);
    t.out[1] = t.out[2] = PK_SHAPE(5);
    check(&t);
    t.op = PK_OP_NORM_BWD;
    t.n_in = 5;
    t.half_in = 1 | 4;
    t.in[2] = numbers(PK_SHAPE(5, 33));
    t.in[3] = rig_random(PK_F32, PK_SHAPE(5), 1, 2);
    t.in[4] = numbers(PK_SHAPE(5));
    t.out[1] = t.out[2] = PK_SHAPE(33);
    check(&t);
}

static void test_widen_attention(void **state)
{
    struct item t = {.op = PK_OP_ATTENTION, .n_in = 2, .n_out = 1, .half_in = 1, .half_out = 1};

    (void)state;
    t.attr.attention = (struct pk_attention_attr){.phi = PK_PHI_POLY,
                                                  .degree = 3,
                                                  .tau = 0.25,
                                                  .scale = 0.5,
                                                  .causal = true,
                                                  .packed = true,
                                                  .has_scale = true};
    t.in[0] = numbers(PK_SHAPE(2, 9, 3, 2, 16));
    t.in[1] = numbers(PK_SHAPE(2));
    t.out[0] = PK_SHAPE(2, 9, 2, 16);
    check(&t);
    t.op = PK_OP_ATTENTION_BWD;
    t.n_in = 4;
    t.n_out = 2;
    t.half_in = 1 | 4 | 8;
    t.in[2] = numbers(PK_SHAPE(2, 9, 2, 16));
    t.in[3] = numbers(PK_SHAPE(2, 9, 2, 16));
    t.out[0] = PK_SHAPE(2, 9, 3, 2, 16);
    t.out[1] = PK_SHAPE(2);
    check(&t);
}

/* ---- calls that are computed in parts: more than 2 MiB of wide numbers, the last part with fewer rows ---- */

/* check, and scratch of less than `share` of what all wide numbers would take. Outputs in `sums` are sums over rows, which
 * parts add up in another order: these are close, not equal. */
static void check_parts(struct item *t, uint32_t sums, double share)
{
    const struct pk_backend_api *api = pk_backend_cpu();
    struct pk_view narrow[MOST], out[4];
    struct pk_call c = {
        .op = t->op, .attr = &t->attr, .n_in = t->n_in, .n_out = t->n_out, .in = narrow, .out = out};
    size_t all = 0;

    for (int i = 0; i < t->n_in; i++) {
        narrow[i] = t->in[i];
        if (t->half_in >> i & 1)
            narrow[i].dtype = PK_BF16;
        all += t->half_in >> i & 1 ? (size_t)pk_shape_count(&t->in[i].shape) * 4 : 0;
    }
    for (int i = 0; i < t->n_out; i++) {
        out[i] = pk_view_dense(NULL, t->half_out >> i & 1 ? PK_BF16 : PK_F32, t->out[i]);
        all += t->half_out >> i & 1 ? (size_t)pk_shape_count(&t->out[i]) * 4 : 0;
    }
    assert_true(all > (size_t)4 << 20);
    if (!((double)api->workspace_bytes(NULL, &c) < share * (double)all))
        fail_msg("%s: %zu bytes of scratch, %zu of wide numbers", pk_op_name(t->op),
                 api->workspace_bytes(NULL, &c), all);
    t->near = sums;
    check(t);
}

static void test_widen_rows_in_parts(void **state)
{
    struct pk_expr p = {.count = 3, .code = {{PK_EX_IN, 0, 0}, {PK_EX_IN, 1, 0}, {PK_EX_MUL, 0, 0}}};
    struct item t = {.op = PK_OP_EXPR, .n_in = 2, .n_out = 1, .half_in = 3, .half_out = 1};

    (void)state;
    t.attr.expr = &p;
    t.in[0] = numbers(PK_SHAPE(1031, 1700));
    t.in[1] = numbers(PK_SHAPE(1700));
    t.in[1].shape = t.in[0].shape;
    t.in[1].stride[0] = 0;
    t.in[1].stride[1] = 1;
    t.held[1] = 1700;
    t.out[0] = PK_SHAPE(1031, 1700);
    check_parts(&t, 0, 0.5);
    t.in[1] = numbers(PK_SHAPE(1031, 1)); /* a number a row */
    t.in[1].shape = t.in[0].shape;
    t.in[1].stride[1] = 0;
    t.held[1] = 1031;
    check_parts(&t, 0, 0.5);
    t = (struct item){.op = PK_OP_SOFTMAX, .n_in = 1, .n_out = 1, .half_in = 1, .half_out = 1};
    t.in[0] = numbers(PK_SHAPE(7, 211, 700));
    t.out[0] = PK_SHAPE(7, 211, 700);
    check_parts(&t, 0, 0.5);
    t = (struct item){.op = PK_OP_NORM, .n_in = 3, .n_out = 3, .half_in = 1, .half_out = 1};
    t.attr.norm.eps = 1e-5;
    t.attr.norm.has_beta = true;
    t.in[0] = numbers(PK_SHAPE(1031, 1700));
    t.in[1] = numbers(PK_SHAPE(1700));
    t.in[2] = numbers(PK_SHAPE(1700));
    t.out[0] = PK_SHAPE(1031, 1700);
    t.out[1] = t.out[2] = PK_SHAPE(1031);
    check_parts(&t, 0, 0.5);
}

/* A batch of none: the sums are 0, and nothing else is written. */
static void test_widen_no_rows(void **state)
{
    struct item t = {.op = PK_OP_SUM, .n_in = 1, .n_out = 1, .half_in = 1};

    (void)state;
    t.attr.reduce.axes = 1;
    t.in[0] = numbers(PK_SHAPE(0, 24));
    t.out[0] = PK_SHAPE(24);
    check(&t);
    t = (struct item){.op = PK_OP_SOFTMAX, .n_in = 1, .n_out = 1, .half_in = 1, .half_out = 1};
    t.in[0] = numbers(PK_SHAPE(0, 24));
    t.out[0] = PK_SHAPE(0, 24);
    check(&t);
}

/* Sums over rows, stored one after the other or apart. */
static void test_widen_sums_in_parts(void **state)
{
    (void)state;
    for (int apart = 0; apart < 2; apart++) {
        struct item t = {.op = PK_OP_SUM, .n_in = 1, .n_out = 1, .half_in = 1};

        t.attr.reduce.axes = 1;
        t.in[0] = apart ? rig_transposed(numbers(PK_SHAPE(800, 3001))) : numbers(PK_SHAPE(3001, 800));
        t.out[0] = PK_SHAPE(800);
        check_parts(&t, 1, 0.6);
    }
}

/* Every form of the gradient of a norm: with and without beta, the residual, and the norm computed again. 724: sums end within
 * a line of the cache. */
static void test_widen_gradients_of_norms_in_parts(void **state)
{
    (void)state;
    for (int form = 0; form < 12; form++) {
        struct item t = {.op = PK_OP_NORM_BWD, .half_in = 1 | 4, .half_out = 1};
        const bool centred = form % 3 != 2;

        t.attr.norm.kind = centred ? PK_NORM_LAYER : PK_NORM_RMS;
        t.attr.norm.eps = 1e-5;
        t.attr.norm.has_beta = form % 3 == 0;
        t.attr.norm.has_residual = form / 3 & 1;
        t.attr.norm.again = form / 6;
        t.in[t.n_in++] = numbers(PK_SHAPE(1031, 724));
        t.in[t.n_in++] = numbers(PK_SHAPE(724));
        t.in[t.n_in++] = numbers(PK_SHAPE(1031, 724));
        t.in[t.n_in++] = rig_random(PK_F32, PK_SHAPE(1031), 1, 2);
        if (centred)
            t.in[t.n_in++] = numbers(PK_SHAPE(1031));
        if (t.attr.norm.again && t.attr.norm.has_beta)
            t.in[t.n_in++] = numbers(PK_SHAPE(724));
        if (t.attr.norm.has_residual) {
            t.half_in |= 1u << t.n_in;
            t.in[t.n_in++] = numbers(PK_SHAPE(1031, 724));
        }
        t.out[t.n_out++] = PK_SHAPE(1031, 724);
        t.out[t.n_out++] = PK_SHAPE(724);
        if (t.attr.norm.has_beta)
            t.out[t.n_out++] = PK_SHAPE(724);
        if (t.attr.norm.again) {
            t.half_out |= 1u << t.n_out;
            t.out[t.n_out++] = PK_SHAPE(1031, 724);
        }
        check_parts(&t, t.attr.norm.has_beta ? 6 : 2, 0.5);
    }
}

static void test_widen_losses_in_parts(void **state)
{
    (void)state;
    for (int mean = 0; mean < 2; mean++) {
        struct item t = {.op = PK_OP_CROSS_ENTROPY_GRAD, .n_in = 3, .n_out = 4, .half_in = 1, .half_out = 1};
        int32_t *target;

        t.attr.cross_entropy.smoothing = 0.1;
        t.attr.cross_entropy.ignore = 3;
        t.attr.cross_entropy.mean = mean;
        t.attr.cross_entropy.width = mean ? 1704 : 0;
        t.in[0] = numbers(PK_SHAPE(1031, 1700));
        t.in[1] = pk_view_dense(rig_alloc(1031 * 4 + 64), PK_I32, PK_SHAPE(1031));
        target = t.in[1].data;
        for (int i = 0; i < 1031; i++)
            target[i] = i % 5 ? i * 7919 % 1700 : i % 4; /* some are ignored */
        t.in[2] = rig_random(PK_F32, PK_SHAPE(1), 1, 2);
        t.out[0] = PK_SHAPE(1031, mean ? 1704 : 1700);
        t.out[1] = t.out[2] = t.out[3] = PK_SHAPE(1);
        check_parts(&t, 2 | 4 | 8, 0.5);
    }
}

static void test_widen_attention_in_parts(void **state)
{
    (void)state;
    for (int form = 0; form < 4; form++) {
        const bool learned = form & 1, packed = form & 2;
        struct item t = {.op = PK_OP_ATTENTION, .n_out = 1, .half_out = 1};
        int qkv;

        t.attr.attention = (struct pk_attention_attr){.phi = PK_PHI_POLY,
                                                      .degree = 3,
                                                      .tau = 0.25,
                                                      .scale = 0.5,
                                                      .packed = packed,
                                                      .has_scale = learned};
        for (int i = 0; i < (packed ? 1 : 3); i++) {
            t.half_in |= 1u << t.n_in;
            t.in[t.n_in++] = numbers(packed ? PK_SHAPE(37, 65, 3, 4, 64) : PK_SHAPE(37, 4, 65, 64));
        }
        qkv = t.n_in;
        if (learned)
            t.in[t.n_in++] = numbers(PK_SHAPE(4));
        t.out[0] = PK_SHAPE(37, 65, 4, 64);
        check_parts(&t, 0, 0.6);
        t.op = PK_OP_ATTENTION_BWD;
        for (int i = 0; i < 2; i++) {
            t.half_in |= 1u << t.n_in;
            t.in[t.n_in++] = numbers(PK_SHAPE(37, 65, 4, 64));
        }
        t.n_out = 0;
        t.half_out = 0;
        for (int i = 0; i < qkv; i++) {
            t.half_out |= 1u << t.n_out;
            t.out[t.n_out++] = t.in[i].shape;
        }
        if (learned)
            t.out[t.n_out++] = PK_SHAPE(4);
        check_parts(&t, learned ? 1u << qkv : 0, 0.6);
    }
}

static void test_widen_movement_between_types(void **state)
{
    struct item t = {.op = PK_OP_CONCAT, .n_in = 2, .n_out = 1};
    const double where[3] = {4, 0, 2};

    (void)state;
    t.attr.concat.axis = 1;
    t.in[0] = numbers(PK_SHAPE(3, 2));
    t.in[1] = numbers(PK_SHAPE(3, 5));
    t.out[0] = PK_SHAPE(3, 7);
    for (uint32_t half = 0; half < 8; half++) {
        t.half_in = half & 3;
        t.half_out = half >> 2;
        check(&t);
    }
    t = (struct item){.op = PK_OP_GATHER, .n_in = 2, .n_out = 1, .half_out = 1};
    t.in[0] = numbers(PK_SHAPE(5, 6));
    t.in[1] = rig_values(PK_I32, PK_SHAPE(3), where);
    t.out[0] = PK_SHAPE(3, 6);
    check(&t);
    t.half_in = 1; /* of one type: bytes */
    check(&t);
    t = (struct item){.op = PK_OP_SCATTER_ADD, .n_in = 3, .n_out = 1, .half_in = 2};
    t.attr.scatter_add.rows = 5;
    t.in[0] = rig_values(PK_I32, PK_SHAPE(3), where);
    t.in[1] = numbers(PK_SHAPE(3, 6));
    t.in[2] = numbers(PK_SHAPE(5, 6));
    t.out[0] = PK_SHAPE(5, 6);
    check(&t);
}

/* A cache of bf16 takes rows of f32 in place. */
static void test_widen_a_cache_takes_wider_rows(void **state)
{
    const double at[1] = {2};
    struct pk_view cache = rig_random(PK_BF16, PK_SHAPE(1, 1, 4, 3), 0, 1),
                   rows = numbers(PK_SHAPE(1, 1, 2, 3));
    struct pk_view in[3] = {cache, rows, rig_values(PK_I32, PK_SHAPE(1), at)}, out = cache;
    uint16_t before[6], *now = cache.data;
    struct pk_call c = {.op = PK_OP_CACHE_APPEND, .n_in = 3, .n_out = 1, .in = in, .out = &out};
    struct pk_attr attr = {0};

    (void)state;
    c.attr = &attr;
    memcpy(before, now, sizeof before);
    run(&c, 2);
    assert_memory_equal(now, before, sizeof before);
    for (int i = 0; i < 6; i++)
        assert_int_equal(now[6 + i], half_of(((float *)rows.data)[i]));
}

static void test_widen_refuses_f64_and_narrow_states(void **state)
{
    const struct pk_backend_api *api = pk_backend_cpu();
    struct pk_attr attr = {0};
    struct pk_view in[6] = {numbers(PK_SHAPE(3)), numbers(PK_SHAPE(3)), numbers(PK_SHAPE(3)),
                            numbers(PK_SHAPE(3)), numbers(PK_SHAPE(4)), numbers(PK_SHAPE(2))};
    struct pk_call c = {.op = PK_OP_ADAMW, .attr = &attr, .n_in = 6, .n_out = 3, .in = in, .out = in};
    struct pk_view mixed[2] = {rig_random(PK_F64, PK_SHAPE(3), 0, 1), rig_random(PK_BF16, PK_SHAPE(3), 0, 1)};
    struct pk_view first[3] = {rig_random(PK_BF16, PK_SHAPE(3), 0, 1), numbers(PK_SHAPE(3)),
                               numbers(PK_SHAPE(1))};

    (void)state;
    in[1].dtype = PK_BF16;
    assert_true(api->supports(NULL, &c));
    in[0].dtype = PK_BF16;
    assert_false(api->supports(NULL, &c));
    c = (struct pk_call){.op = PK_OP_CONCAT, .attr = &attr, .n_in = 2, .n_out = 1, .in = mixed, .out = mixed};
    assert_false(api->supports(NULL, &c));
    c = (struct pk_call){
        .op = PK_OP_ACCUMULATE, .attr = &attr, .n_in = 3, .n_out = 1, .in = first, .out = first};
    assert_false(api->supports(NULL, &c));
    c.op = PK_OP_BLEND;
    assert_false(api->supports(NULL, &c));
}

/* ---- which products of bf16 are used ---- */

static double speedup;
static int measured;

static double measure(void)
{
    measured++;
    return speedup;
}

static void test_half_products_are_used_where_they_measure_half_again_as_fast(void **state)
{
    static const struct {
        const char *choice;
        bool instructions;
        double speedup;
        bool products, measures;
        const char *word;
    } all[] = {
        {NULL, true, 1.5, true, true, "1.50 times as fast"},
        {"auto", true, 3.4, true, true, "3.40 times as fast"},
        {NULL, true, 1.49, false, true, "1.49 times as fast"}, /* AVX512_BF16 alone is no sign */
        {NULL, true, 0.5, false, true, "1.5 times is what it takes"},
        {NULL, true, 0, false, true, "onednn has no products of bf16"},
        {NULL, false, 9, false, false, "no instructions for bf16"},
        {"reference", true, 9, false, false, "POLYD_CPU_BF16 is reference"},
        {"products", false, 0.5, true, true, "0.50 times as fast"},
        {"products", true, 0, false, true, "has none for this processor"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct cpu_half h;

        measured = 0;
        speedup = all[i].speedup;
        cpu_half_choose(all[i].choice, all[i].instructions, measure, &h);
        if (h.products != all[i].products || measured != all[i].measures || !strstr(h.why, all[i].word))
            fail_msg("case %zu: products %d, measured %d, '%s'", i, h.products, measured, h.why);
    }
}

int main(void)
{
    setenv("POLYD_CPU_BF16", "reference", 1); /* the library adds in another order: test_matmul.c */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_widen_products, rig_reset),
        cmocka_unit_test_teardown(test_widen_what_products_do_besides, rig_reset),
        cmocka_unit_test_teardown(test_widen_elementwise_with_repeated_axes, rig_reset),
        cmocka_unit_test_teardown(test_widen_norm_and_its_derivative, rig_reset),
        cmocka_unit_test_teardown(test_widen_attention, rig_reset),
        cmocka_unit_test_teardown(test_widen_rows_in_parts, rig_reset),
        cmocka_unit_test_teardown(test_widen_no_rows, rig_reset),
        cmocka_unit_test_teardown(test_widen_sums_in_parts, rig_reset),
        cmocka_unit_test_teardown(test_widen_gradients_of_norms_in_parts, rig_reset),
        cmocka_unit_test_teardown(test_widen_losses_in_parts, rig_reset),
        cmocka_unit_test_teardown(test_widen_attention_in_parts, rig_reset),
        cmocka_unit_test_teardown(test_widen_movement_between_types, rig_reset),
        cmocka_unit_test_teardown(test_widen_a_cache_takes_wider_rows, rig_reset),
        cmocka_unit_test(test_half_products_are_used_where_they_measure_half_again_as_fast),
        cmocka_unit_test_teardown(test_widen_refuses_f64_and_narrow_states, rig_reset),
    };

    return cmocka_run_group_tests(tests, NULL, rig_close_all);
}
