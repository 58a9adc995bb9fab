/* Products on the CUDA back end: every form that the executor makes, against plain sums in double;
 * the library's choices and how they are kept; what it does not take goes another way. */
#include <stddef.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend/backend.h"

extern const struct pk_backend_api *pk_backend_entry(void);

#ifdef POLYD_ON_A_DEVICE
#define EMULATED false
#else
#define EMULATED true /* its library refuses what POLYD_EMU_LT_REFUSE says */
#endif

static const struct pk_backend_api *api;
static struct pd_why why;

/* ---- a host that keeps records ---- */

static struct {
    char key[64][800];
    unsigned char value[64][128];
    size_t size[64];
    int count, puts, hits;
    bool forgetful;
} kept;

static size_t tuned_get(void *user, const char *key, void *value, size_t size)
{
    (void)user;
    for (int i = 0; i < kept.count && !kept.forgetful; i++)
        if (!strcmp(kept.key[i], key) && kept.size[i] <= size) {
            memcpy(value, kept.value[i], kept.size[i]);
            kept.hits++;
            return kept.size[i];
        }
    return 0;
}

static void tuned_put(void *user, const char *key, const void *value, size_t size)
{
    (void)user;
    kept.puts++;
    if (kept.count == 64)
        return;
    snprintf(kept.key[kept.count], sizeof kept.key[0], "%s", key);
    memcpy(kept.value[kept.count], value, size);
    kept.size[kept.count++] = size;
}

static int said_fallback; /* products that the library has nothing for */
static int said_foreign;  /* kept choices that it does not know */

static void take_log(void *user, int level, const char *text)
{
    (void)user;
    said_fallback += level == 4 && strstr(text, "cuBLASLt has no algorithm") != NULL;
    said_foreign += level == 4 && strstr(text, "ignored a stored choice") != NULL;
}

static const struct pk_host host = {.log = take_log, .tuned_get = tuned_get, .tuned_put = tuned_put};

static struct pk_backend *open_it(void)
{
    struct pk_backend *b = NULL;

    api = pk_backend_entry();
    if (api->open(&host, 0, 1, &b, &why) != PD_OK)
        fail_msg("%s", why.text);
    return b;
}

/* ---- operands ---- */

static uint64_t seed = 1;

static float next(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(seed >> 40) / 8388608.0 - 1.0);
}

static float half(float x, uint16_t *ret)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    bits += 0x7fffu + (bits >> 16 & 1u);
    bits &= 0xffff0000u;
    if (ret)
        *ret = (uint16_t)(bits >> 16);
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* A tensor on the device and its numbers on the host, by position in memory. */
struct tensor {
    struct pk_view v;
    float *x;
    int64_t count;
};

static struct tensor tensor(struct pk_backend *b, enum pk_dtype dtype, int64_t count, const int64_t *dim,
                            const int64_t *stride, int rank, int64_t offset)
{
    struct tensor t = {.count = count};
    size_t size = dtype == PK_BF16 ? 2 : 4;
    char *raw = malloc((size_t)count * size), *memory;

    t.x = malloc((size_t)count * sizeof *t.x);
    for (int64_t i = 0; i < count; i++) {
        float x = next();

        if (dtype == PK_BF16)
            x = half(x, (uint16_t *)(void *)raw + i);
        else
            ((float *)(void *)raw)[i] = x;
        t.x[i] = x;
    }
    memory = api->alloc(b, (size_t)count * size);
    assert_non_null(memory);
    assert_int_equal(api->upload(b, memory, raw, (size_t)count * size, &why), PD_OK);
    free(raw);
    t.v.data = memory + (size_t)offset * size;
    t.v.dtype = dtype;
    t.v.shape.rank = rank;
    for (int i = 0; i < rank; i++) {
        t.v.shape.dim[i] = dim[i];
        t.v.stride[i] = stride[i];
    }
    t.x += offset;
    return t;
}

static double activate(enum pk_act act, double x)
{
    switch (act) {
    case PK_ACT_GELU:
        return 0.5 * x * (1 + erf(x / sqrt(2)));
    case PK_ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    case PK_ACT_RELU:
        return x > 0 ? x : 0;
    default:
        return x;
    }
}

struct product {
    int64_t m, n, k;
    int64_t lead[2]; /* 0: none */
    enum pk_dtype in_a, in_b, out;
    bool ta, tb, bias, residual, in_place, gaps, share_b, odd;
    enum pk_act act;
    enum pk_math math;
};

/* Strides of a (rows, cols) matrix behind `lead` axes, with gaps and perhaps transposed. */
static int64_t lay(const struct product *p, int64_t rows, int64_t cols, bool transposed, bool gaps,
                   bool share, int64_t *dim, int64_t *stride, int *ret_rank)
{
    int64_t ld = (transposed ? rows : cols) + (gaps ? 8 : 0), each = ld * (transposed ? cols : rows);
    int rank = (p->lead[0] > 0) + (p->lead[1] > 0);
    int64_t total = each;

    for (int i = rank - 1; i >= 0; i--) {
        dim[i] = p->lead[i];
        stride[i] = share ? 0 : total;
        total *= share ? 1 : p->lead[i];
    }
    if (gaps && rank == 2 && !share) { /* leading axes that cannot be one: stored in reverse */
        stride[1] = each * p->lead[0];
        stride[0] = each;
    }
    dim[rank] = rows;
    dim[rank + 1] = cols;
    stride[rank] = transposed ? 1 : ld;
    stride[rank + 1] = transposed ? ld : 1;
    *ret_rank = rank + 2;
    return total;
}

/* Runs twice (the second time by what is cached), compares with sums in double. Returns a hash of the bits.
 */
static uint64_t check(struct pk_backend *b, const struct product *p)
{
    struct tensor t[4];
    struct pk_view in[4], out;
    struct pk_attr attr;
    struct pk_call c = {.op = PK_OP_MATMUL, .attr = &attr, .in = in, .out = &out, .n_out = 1};
    int64_t dim[8], stride[8], offset = p->odd ? 1 : 0, batch = 1, total, n_in = 2;
    size_t size = p->out == PK_BF16 ? 2 : 4;
    int rank;
    unsigned char *got, *first = NULL;
    double tolerance = p->out == PK_BF16 ? 1.2e-2 : p->math == PK_MATH_TF32 ? 2e-3 : 2e-5;
    uint64_t hash = 1469598103934665603u;

    memset(&attr, 0, sizeof attr);
    attr.matmul.has_bias = p->bias;
    attr.matmul.has_residual = p->residual;
    attr.matmul.act = p->act;
    total = lay(p, p->m, p->k, p->ta, p->gaps, false, dim, stride, &rank);
    t[0] = tensor(b, p->in_a, total + offset, dim, stride, rank, offset);
    total = lay(p, p->k, p->n, p->tb, p->gaps, p->share_b, dim, stride, &rank);
    t[1] = tensor(b, p->in_b, total + offset, dim, stride, rank, offset);
    if (p->bias) {
        dim[0] = p->n;
        stride[0] = 1;
        t[n_in++] = tensor(b, PK_F32, p->n, dim, stride, 1, 0);
    }
    if (p->residual) {
        total = lay(p, p->m, p->n, false, p->gaps && !p->in_place, false, dim, stride, &rank);
        t[n_in++] = tensor(b, p->out, total, dim, stride, rank, 0);
    }
    for (int i = 0; i < n_in; i++)
        in[i] = t[i].v;
    c.n_in = (int32_t)n_in;
    total = lay(p, p->m, p->n, false, false, false, dim, stride, &rank);
    out = (struct pk_view){.dtype = p->out, .shape = {.rank = rank}};
    for (int i = 0; i < rank; i++) {
        out.shape.dim[i] = dim[i];
        out.stride[i] = stride[i];
        batch *= i < rank - 2 ? dim[i] : 1;
    }
    out.data = p->in_place ? in[n_in - 1].data : api->alloc(b, (size_t)total * size);
    assert_int_equal(api->set_math(b, p->math, &why), PD_OK);
    assert_true(api->supports(b, &c) && api->supports(NULL, &c));
    c.workspace_bytes = api->workspace_bytes(b, &c);
    assert_int_equal(c.workspace_bytes, api->workspace_bytes(NULL, &c));
    c.workspace = api->alloc(b, c.workspace_bytes);
    got = malloc((size_t)total * size);
    for (int turn = 0; turn < (p->in_place ? 1 : 2); turn++) {
        if (api->run(b, &c, 1, &why) != PD_OK || api->sync(b, &why) != PD_OK)
            fail_msg("%s", why.text);
        assert_int_equal(api->download(b, got, out.data, (size_t)total * size, &why), PD_OK);
        if (turn) {
            assert_memory_equal(got, first, (size_t)total * size);
            free(first);
        } else if (!p->in_place) {
            first = malloc((size_t)total * size);
            memcpy(first, got, (size_t)total * size);
        }
    }
    for (int64_t z = 0; z < batch; z++)
        for (int64_t i = 0; i < p->m; i++)
            for (int64_t j = 0; j < p->n; j++) {
                int64_t at[4] = {0}, rest = z, e = (z * p->m + i) * p->n + j;
                double sum = 0, scale = 1, x;

                for (int l = rank - 3; l >= 0; l--) {
                    for (int k = 0; k < n_in; k++)
                        if (in[k].shape.rank == rank)
                            at[k] += rest % dim[l] * in[k].stride[l];
                    rest /= dim[l];
                }
                for (int64_t k = 0; k < p->k; k++) {
                    double y =
                        (double)t[0].x[at[0] + i * in[0].stride[rank - 2] + k * in[0].stride[rank - 1]] *
                        (double)t[1].x[at[1] + k * in[1].stride[rank - 2] + j * in[1].stride[rank - 1]];

                    sum += y;
                    scale += fabs(y);
                }
                if (p->bias)
                    sum += (double)t[2].x[j];
                sum = activate(p->act, sum);
                if (p->residual)
                    sum += (double)t[n_in - 1].x[at[n_in - 1] + i * in[n_in - 1].stride[rank - 2] +
                                                 j * in[n_in - 1].stride[rank - 1]];
                if (p->out == PK_BF16) {
                    uint32_t bits = (uint32_t)((uint16_t *)(void *)got)[e] << 16;
                    float f;

                    memcpy(&f, &bits, sizeof f);
                    x = (double)f;
                } else {
                    x = (double)((float *)(void *)got)[e];
                }
                if (!(fabs(x - sum) <= tolerance * scale))
                    fail_msg("%lld x %lld x %lld, matrix %lld, (%lld, %lld): %g, not %g", (long long)p->m,
                             (long long)p->n, (long long)p->k, (long long)z, (long long)i, (long long)j, x,
                             sum);
            }
    for (size_t i = 0; i < (size_t)total * size; i++)
        hash = (hash ^ got[i]) * 1099511628211u;
    free(got);
    for (int i = 0; i < n_in; i++)
        free(t[i].x - (i < 2 ? offset : 0));
    return hash;
}

static const int64_t sizes[][3] = {{1, 1, 1}, {5, 7, 3}, {33, 65, 17}, {64, 40, 130}, {2, 96, 64}};

static void test_matmul_types_transpositions_and_gaps(void **state)
{
    struct pk_backend *b = open_it();

    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int form = 0; form < 8; form++)
            for (int type = 0; type < 4; type++) {
                struct product p = {.m = sizes[s][0],
                                    .n = sizes[s][1],
                                    .k = sizes[s][2],
                                    .in_a = type ? PK_BF16 : PK_F32,
                                    .in_b = type && type < 3 ? PK_BF16 : PK_F32, /* 3: a mixture */
                                    .out = type == 1 ? PK_BF16 : PK_F32,
                                    .ta = form & 1,
                                    .tb = form & 2,
                                    .gaps = form & 4,
                                    .odd = form & 4};

                (void)check(b, &p);
            }
    api->close(b);
}

static void test_matmul_epilogues(void **state)
{
    struct pk_backend *b = open_it();

    (void)state;
    for (int act = PK_ACT_NONE; act <= PK_ACT_RELU; act++)
        for (int form = 0; form < 32; form++) {
            struct product p = {.m = 19,
                                .n = 24,
                                .k = 33,
                                .in_a = form & 4 ? PK_BF16 : PK_F32,
                                .in_b = form & 4 ? PK_BF16 : PK_F32,
                                .out = form & 4 && form & 8 ? PK_BF16 : PK_F32,
                                .tb = form & 8,
                                .bias = form & 1,
                                .residual = form & 2,
                                .in_place = form & 2 && form & 16,
                                .gaps = form & 16,
                                .act = (enum pk_act)act};

            (void)check(b, &p);
        }
    api->close(b);
}

static void test_matmul_batches(void **state)
{
    struct pk_backend *b = open_it();

    (void)state;
    for (int form = 0; form < 32; form++) {
        struct product p = {.m = 9,
                            .n = 12,
                            .k = 16,
                            .lead = {3, form & 1 ? 2 : 0},
                            .in_a = form & 2 ? PK_BF16 : PK_F32,
                            .in_b = form & 2 ? PK_BF16 : PK_F32,
                            .out = form & 2 ? PK_BF16 : PK_F32,
                            .ta = form & 4,
                            .tb = !(form & 4),
                            .gaps = form & 8, /* leading axes in another order */
                            .share_b = form & 16,
                            .residual = form & 8,
                            .bias = form & 16};

        (void)check(b, &p);
    }
    api->close(b);
}

static void test_matmul_tf32_rounds_and_f32_does_not(void **state)
{
    struct pk_backend *b = open_it();
    struct product p = {.m = 16, .n = 16, .k = 64, .in_a = PK_F32, .in_b = PK_F32, .out = PK_F32};
    uint64_t full, rounded;

    (void)state;
    seed = 77;
    full = check(b, &p);
    p.math = PK_MATH_TF32;
    seed = 77;
    rounded = check(b, &p);
    assert_true(full != rounded);
    api->close(b);
}

static void test_matmul_sums_of_nothing_are_the_bias(void **state)
{
    struct pk_backend *b = open_it();
    struct product p = {.m = 3,
                        .n = 5,
                        .k = 0,
                        .in_a = PK_F32,
                        .in_b = PK_F32,
                        .out = PK_F32,
                        .bias = true,
                        .residual = true};

    (void)state;
    (void)check(b, &p);
    api->close(b);
}

/* Choices are made once, kept by name, and found again; a record that is no algorithm is not believed. */
static void test_matmul_choices_are_kept(void **state)
{
    struct product p = {
        .m = 40, .n = 48, .k = 200, .in_a = PK_BF16, .in_b = PK_BF16, .out = PK_BF16, .bias = true};
    struct pk_backend *b;
    uint64_t first, again;

    (void)state;
    said_foreign = 0;
    memset(&kept, 0, sizeof kept);
    b = open_it();
    seed = 5;
    first = check(b, &p);
    assert_int_equal(kept.puts, 1);
    assert_non_null(strstr(kept.key[0], "40x48x200"));
    assert_non_null(strstr(kept.key[0], "cublasLt 13."));
    seed = 5;
    assert_true(check(b, &p) == first);
    assert_int_equal(kept.puts, 1); /* cached */
    api->close(b);
    b = open_it();
    seed = 5;
    again = check(b, &p);
    assert_int_equal(kept.puts, 1);
    assert_int_equal(kept.hits, 1);
    assert_true(first == again);
    api->close(b);
    assert_int_equal(said_foreign, 0);
    memset(kept.value[0], 0xee, sizeof kept.value[0]);
    b = open_it();
    (void)check(b, &p);
    assert_int_equal(kept.puts, 2);
    assert_int_equal(said_foreign, 1);
    api->close(b);
    memset(&kept, 0, sizeof kept);
}

static void test_matmul_what_the_library_refuses_is_computed_all_the_same(void **state)
{
    struct pk_backend *b;

    (void)state;
    if (!EMULATED)
        skip();
    b = open_it();
    said_fallback = 0;
    setenv("POLYD_EMU_LT_REFUSE", "1", 1);
    for (int form = 0; form < 4; form++) {
        struct product p = {.m = 21,
                            .n = 22,
                            .k = 23,
                            .lead = {form & 1 ? 2 : 0, 0},
                            .in_a = PK_BF16,
                            .in_b = PK_BF16,
                            .out = form & 2 ? PK_BF16 : PK_F32,
                            .bias = true,
                            .residual = true,
                            .act = PK_ACT_GELU_TANH};

        (void)check(b, &p);
    }
    assert_true(said_fallback > 0);
    unsetenv("POLYD_EMU_LT_REFUSE");
    api->close(b);
}

/* ---- extra outputs and operands of a product ---- */

struct extra {
    int64_t m, n, k;
    bool bf16; /* operands and output */
    bool wide; /* but the output */
    bool bias, keeps, slope;
    enum pk_sums sums;
    const char *fused; /* the epilogue of the library that has it all, as records name it */
};

static double slope_at(double x)
{
    return (activate(PK_ACT_GELU_TANH, x + 1e-5) - activate(PK_ACT_GELU_TANH, x - 1e-5)) / 2e-5;
}

static void expect(struct pk_backend *b, const struct pk_view *v, const double *want, double tolerance)
{
    int64_t count = 1;
    unsigned char *got;

    for (int i = 0; i < v->shape.rank; i++)
        count *= v->shape.dim[i];
    got = malloc((size_t)count * 4);
    assert_int_equal(api->download(b, got, v->data, (size_t)count * (v->dtype == PK_BF16 ? 2 : 4), &why),
                     PD_OK);
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits =
            v->dtype == PK_BF16 ? (uint32_t)((uint16_t *)(void *)got)[i] << 16 : ((uint32_t *)(void *)got)[i];
        float x;

        memcpy(&x, &bits, sizeof x);
        if (!(fabs((double)x - want[i]) <= tolerance * (1 + fabs(want[i]))))
            fail_msg("element %lld: %g, not %g", (long long)i, (double)x, want[i]);
    }
    free(got);
}

static void check_extra(struct pk_backend *b, const struct extra *p)
{
    const enum pk_dtype in_type = p->bf16 ? PK_BF16 : PK_F32,
                        out_type = p->bf16 && !p->wide ? PK_BF16 : PK_F32;
    const int64_t rows = p->m, cols = p->n, terms = p->k, many = p->sums == PK_SUMS_A ? rows : cols;
    struct tensor t[4];
    struct pk_view in[4], out[3];
    struct pk_attr attr;
    struct pk_call c = {.op = PK_OP_MATMUL, .attr = &attr, .in = in, .out = out};
    double *y = calloc((size_t)(rows * cols), sizeof *y), *pre = calloc((size_t)(rows * cols), sizeof *pre),
           *sums = calloc((size_t)many, sizeof *sums), tolerance = out_type == PK_BF16 ? 2e-2 : 1e-4;
    int64_t dim[2] = {rows, terms}, stride[2] = {terms, 1};

    memset(&attr, 0, sizeof attr);
    attr.matmul.act = p->keeps || p->slope ? PK_ACT_GELU_TANH : PK_ACT_NONE;
    attr.matmul.has_bias = p->bias;
    attr.matmul.keeps = p->keeps;
    attr.matmul.slope = p->slope;
    attr.matmul.sums = p->sums;
    t[c.n_in++] = tensor(b, in_type, rows * terms, dim, stride, 2, 0);
    dim[0] = terms;
    dim[1] = stride[0] = cols;
    t[c.n_in++] = tensor(b, in_type, terms * cols, dim, stride, 2, 0);
    dim[0] = rows;
    if (p->bias)
        t[c.n_in++] = tensor(b, PK_F32, cols, dim + 1, stride + 1, 1, 0);
    if (p->slope)
        t[c.n_in++] = tensor(b, out_type, rows * cols, dim, stride, 2, 0);
    for (int i = 0; i < c.n_in; i++)
        in[i] = t[i].v;
    out[c.n_out++] = pk_view_dense(api->alloc(b, (size_t)(rows * cols) * 4), out_type, PK_SHAPE(rows, cols));
    if (p->keeps)
        out[c.n_out++] =
            pk_view_dense(api->alloc(b, (size_t)(rows * cols) * 4), out_type, PK_SHAPE(rows, cols));
    if (p->sums)
        out[c.n_out++] = pk_view_dense(api->alloc(b, (size_t)many * 4), PK_F32, PK_SHAPE(many));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            double sum = p->bias ? (double)t[2].x[j] : 0;

            for (int64_t k = 0; k < terms; k++)
                sum += (double)t[0].x[i * terms + k] * (double)t[1].x[k * cols + j];
            pre[i * cols + j] = sum;
            y[i * cols + j] = p->slope   ? sum * slope_at((double)t[2].x[i * cols + j])
                              : p->keeps ? activate(PK_ACT_GELU_TANH, sum)
                                         : sum;
            if (p->sums == PK_SUMS_OUT)
                sums[j] += y[i * cols + j];
        }
    for (int64_t k = 0; k < terms; k++)
        for (int64_t i = 0; i < many && p->sums != PK_SUMS_OUT && p->sums; i++)
            sums[i] += (double)(p->sums == PK_SUMS_A ? t[0].x[i * terms + k] : t[1].x[k * cols + i]);
    c.workspace_bytes = api->workspace_bytes(b, &c);
    assert_int_equal(c.workspace_bytes, api->workspace_bytes(NULL, &c));
    c.workspace = api->alloc(b, c.workspace_bytes + 1);
    if (api->run(b, &c, 1, &why) != PD_OK || api->sync(b, &why) != PD_OK)
        fail_msg("%s", why.text);
    expect(b, &out[0], y, tolerance);
    if (p->keeps)
        expect(b, &out[1], pre, tolerance);
    if (p->sums)
        expect(b, &out[c.n_out - 1], sums, 4 * tolerance);
    for (int i = 0; i < c.n_in; i++)
        free(t[i].x);
    free(y);
    free(pre);
    free(sums);
}

static const struct extra extras[] = {
    {16, 24, 33, .keeps = true, .fused = " f160 "},
    {16, 24, 33, .bf16 = true, .bias = true, .keeps = true, .fused = " f164 "},
    {16, 20, 33, .bf16 = true, .bias = true, .keeps = true, .fused = " f0 "}, /* 20: no multiple of eight */
    {16, 24, 33, .slope = true, .fused = " f192 "},
    {16, 24, 33, .slope = true, .sums = PK_SUMS_OUT, .fused = " f208 "},
    {16, 24, 33, .bf16 = true, .slope = true, .sums = PK_SUMS_OUT,
     .fused = " f192 "}, /* its sums would be bf16 */
    {17, 24, 33, .bf16 = true, .wide = true, .sums = PK_SUMS_A, .fused = " f512 "},
    {17, 23, 33, .bf16 = true, .wide = true, .sums = PK_SUMS_B, .fused = " f256 "},
    {17, 23, 33, .bf16 = true, .sums = PK_SUMS_B, .fused = " f0 "},
};

/* Each by the library where it can, and by our kernels where it cannot or will not. */
static void test_matmul_extra_outputs(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof extras / sizeof extras[0]; i++)
        for (int refused = 0; refused < (EMULATED ? 3 : 1); refused++) {
            struct pk_backend *b;
            int64_t way;

            memset(&kept, 0, sizeof kept);
            setenv("POLYD_EMU_LT_REFUSE", refused == 2 ? "1" : refused ? "2" : "0", 1);
            b = open_it();
            check_extra(b, &extras[i]);
            assert_int_equal(kept.puts, refused < 2);
            if (refused < 2 && !strstr(kept.key[0], extras[i].fused))
                fail_msg("%s is not in %s", extras[i].fused, kept.key[0]);
            memcpy(&way, kept.value[0] + kept.size[0] - sizeof way, sizeof way);
            if (refused == 1)
                assert_int_equal(way, 0);
            check_extra(b, &extras[i]); /* as planned */
            api->close(b);
            if (refused < 2) { /* either way, as a record says; the other is found again likewise */
                for (way = 0; way < (refused || !strcmp(extras[i].fused, " f0 ") ? 1 : 2); way++) {
                    memcpy(kept.value[0] + kept.size[0] - sizeof way, &way, sizeof way);
                    kept.hits = 0;
                    b = open_it();
                    check_extra(b, &extras[i]);
                    assert_int_equal(kept.hits, 1);
                    if (EMULATED) /* a device may know the algorithm of one way for that one alone */
                        assert_int_equal(kept.puts, 1);
                    api->close(b);
                }
                way = 2; /* no way at all: not believed */
                memcpy(kept.value[0] + kept.size[0] - sizeof way, &way, sizeof way);
                kept.puts = 0;
                b = open_it();
                check_extra(b, &extras[i]);
                assert_int_equal(kept.puts, 1);
                api->close(b);
            }
        }
    unsetenv("POLYD_EMU_LT_REFUSE");
    memset(&kept, 0, sizeof kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matmul_types_transpositions_and_gaps),
        cmocka_unit_test(test_matmul_epilogues),
        cmocka_unit_test(test_matmul_batches),
        cmocka_unit_test(test_matmul_tf32_rounds_and_f32_does_not),
        cmocka_unit_test(test_matmul_sums_of_nothing_are_the_bias),
        cmocka_unit_test(test_matmul_choices_are_kept),
        cmocka_unit_test(test_matmul_what_the_library_refuses_is_computed_all_the_same),
        cmocka_unit_test(test_matmul_extra_outputs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
