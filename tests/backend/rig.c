#include "tests/backend/rig.h"

#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/reference/reference.h"

#define GUARD 256
#define GUARD_BYTE 0xa5

const char *const rig_levels[3] = {"avx512", "avx2", "portable"};

static void *memory[4096];
static int memories;
static uint64_t seed = 1;

static struct {
    char key[64];
    struct pk_backend *b;
} opened[64];
static int opened_count;

void *rig_alloc(size_t bytes)
{
    void *p = aligned_alloc(256, (bytes + 511) / 256 * 256);

    assert_non_null(p);
    assert_true(memories < 4096);
    memory[memories++] = p;
    return p;
}

int rig_reset(void **state)
{
    (void)state;
    while (memories > 0)
        free(memory[--memories]);
    seed = 1;
    return 0;
}

struct pk_backend *rig_backend(const char *level, const char *gemm, int threads)
{
    struct pd_why why;
    char key[64];

    snprintf(key, sizeof key, "%s %s %d", level ? level : "", gemm ? gemm : "", threads);
    for (int i = 0; i < opened_count; i++)
        if (strcmp(opened[i].key, key) == 0)
            return opened[i].b;
    setenv("POLYD_CPU_LEVEL", level ? level : "", 1);
    setenv("POLYD_CPU_GEMM", gemm ? gemm : "", 1);
    assert_true(opened_count < 64);
    memcpy(opened[opened_count].key, key, sizeof key);
    if (pk_backend_cpu()->open(NULL, 0, threads, &opened[opened_count].b, &why) != PD_OK)
        opened[opened_count].b = NULL;
    return opened[opened_count++].b;
}

int rig_close_all(void **state)
{
    rig_reset(state);
    while (opened_count > 0)
        pk_backend_cpu()->close(opened[--opened_count].b);
    return 0;
}

static double next_random(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(seed >> 11) * 0x1p-53;
}

static void put(struct pk_view *v, int64_t i, double x)
{
    switch (v->dtype) {
    case PK_F64:
        ((double *)v->data)[i] = x;
        break;
    case PK_I32:
        ((int32_t *)v->data)[i] = (int32_t)floor(x);
        break;
    case PK_U8:
        ((uint8_t *)v->data)[i] = (uint8_t)x;
        break;
    case PK_BF16: {
        float f = (float)x;
        uint32_t bits;

        memcpy(&bits, &f, sizeof bits);
        ((uint16_t *)v->data)[i] = (uint16_t)(bits >> 16);
        break;
    }
    default:
        ((float *)v->data)[i] = (float)x;
    }
}

static double get(const void *data, enum pk_dtype dtype, int64_t i)
{
    uint32_t bits;
    float f;

    switch (dtype) {
    case PK_F64:
        return ((const double *)data)[i];
    case PK_I32:
        return ((const int32_t *)data)[i];
    case PK_U8:
        return ((const uint8_t *)data)[i];
    case PK_BF16:
        bits = (uint32_t)((const uint16_t *)data)[i] << 16;
        memcpy(&f, &bits, sizeof f);
        return (double)f;
    default:
        return (double)((const float *)data)[i];
    }
}

struct pk_view rig_random(enum pk_dtype dtype, struct pk_shape shape, double lo, double hi)
{
    struct pk_view v;

    v = pk_view_dense(rig_alloc((size_t)pk_shape_count(&shape) * pk_dtype_size(dtype)), dtype, shape);
    for (int64_t i = 0; i < pk_shape_count(&shape); i++)
        put(&v, i, lo + (hi - lo) * next_random());
    return v;
}

struct pk_view rig_values(enum pk_dtype dtype, struct pk_shape shape, const double *values)
{
    struct pk_view v;

    v = pk_view_dense(rig_alloc((size_t)pk_shape_count(&shape) * pk_dtype_size(dtype)), dtype, shape);
    for (int64_t i = 0; i < pk_shape_count(&shape); i++)
        put(&v, i, values[i]);
    return v;
}

struct pk_view rig_transposed(struct pk_view v)
{
    int r = v.shape.rank;
    int64_t t = v.shape.dim[r - 1];

    v.shape.dim[r - 1] = v.shape.dim[r - 2];
    v.shape.dim[r - 2] = t;
    t = v.stride[r - 1];
    v.stride[r - 1] = v.stride[r - 2];
    v.stride[r - 2] = t;
    return v;
}

struct pk_view rig_strided(const struct pk_view *v)
{
    struct pk_view s = *v;
    size_t size = pk_dtype_size(v->dtype);
    int64_t step = 2, n = pk_shape_count(&v->shape);

    for (int i = 0; i < v->shape.rank; i++) { /* first axis fastest, a gap after each element and line */
        s.stride[i] = step;
        step = step * v->shape.dim[i] + 3;
    }
    s.data = memset(rig_alloc((size_t)step * size), 0xff, (size_t)step * size);
    for (int64_t i = 0; i < n; i++) {
        int64_t rest = i, off = 0;

        for (int k = v->shape.rank - 1; k >= 0; k--) {
            off += rest % v->shape.dim[k] * s.stride[k];
            rest /= v->shape.dim[k];
        }
        memcpy((char *)s.data + (size_t)off * size, (const char *)v->data + (size_t)i * size, size);
    }
    return s;
}

struct guarded {
    unsigned char *base;
    size_t bytes;
};

static struct guarded guarded_new(size_t bytes)
{
    struct guarded g = {NULL, bytes};

    g.base = aligned_alloc(256, (bytes + 255) / 256 * 256 + 2 * GUARD + 256);
    assert_non_null(g.base);
    memset(g.base, GUARD_BYTE, GUARD);
    memset(g.base + GUARD, 0xff, bytes); /* as a float: NaN */
    memset(g.base + GUARD + bytes, GUARD_BYTE, GUARD);
    return g;
}

static void guarded_check(const struct guarded *g, const char *name, const char *what)
{
    for (int i = 0; i < GUARD; i++)
        if (g->base[i] != GUARD_BYTE || g->base[GUARD + g->bytes + (size_t)i] != GUARD_BYTE)
            fail_msg("%s: wrote outside the %s", name, what);
}

/* Runs the case; outputs go to out[]. */
static void run(const struct rig_case *c, const struct pk_backend_api *api, struct pk_backend *b,
                struct guarded *out)
{
    struct pk_view in[RIG_MAX_IN], outs[RIG_MAX_OUT];
    struct pk_call call = {
        .op = c->op, .attr = &c->attr, .n_in = c->n_in, .n_out = c->n_out, .in = in, .out = outs};
    struct guarded work;
    struct pd_why why = {""};

    memcpy(in, c->in, sizeof in);
    for (int i = 0; i < c->n_out; i++) {
        size_t bytes = (size_t)pk_shape_count(&c->out[i]) * pk_dtype_size(c->out_dtype[i]);

        out[i] = guarded_new(bytes);
        outs[i] = pk_view_dense(out[i].base + GUARD, c->out_dtype[i], c->out[i]);
        if (c->share[i]) {
            memcpy(outs[i].data, c->in[c->share[i] - 1].data, bytes);
            in[c->share[i] - 1].data = outs[i].data;
        }
    }
    if (!api->supports(b, &call))
        fail_msg("%s: not supported", c->name);
    work = guarded_new(api->workspace_bytes(b, &call));
    call.workspace = work.base + GUARD;
    call.workspace_bytes = work.bytes;
    if (api->run(b, &call, 1, &why) != PD_OK)
        fail_msg("%s: %s", c->name, why.text);
    guarded_check(&work, c->name, "workspace");
    free(work.base);
    for (int i = 0; i < c->n_out; i++)
        guarded_check(&out[i], c->name, "output");
}

static void compare(const struct rig_case *c, const char *label, const struct guarded *got,
                    const struct guarded *want)
{
    for (int o = 0; o < c->n_out; o++) {
        double tolerance = c->tolerance, scale = c->floor > 0 ? c->floor : 1e-30, worst = 0;
        int64_t n = pk_shape_count(&c->out[o]), at = 0;

        if (tolerance == 0)
            tolerance = 2e-6;
        if (c->out_dtype[o] == PK_F64)
            tolerance = tolerance * 1e-9 < 1e-12 ? 1e-12 : tolerance * 1e-9;
        for (int64_t i = 0; i < n; i++) {
            double g = get(got[o].base + GUARD, c->out_dtype[o], i),
                   w = get(want[o].base + GUARD, c->out_dtype[o], i);
            double e = isnan(g) && isnan(w) ? 0 : g == w ? 0 : fabs(g - w);

            if (isfinite(w))
                scale = fmax(scale, fabs(w));
            if (!(e <= worst)) {
                worst = isnan(e) ? INFINITY : e;
                at = i;
            }
        }
        if (!(worst <= tolerance * scale))
            fail_msg("%s, %s, output %d: %.9g instead of %.9g at %lld (error %.3g of %.3g allowed)", c->name,
                     label, o, get(got[o].base + GUARD, c->out_dtype[o], at),
                     get(want[o].base + GUARD, c->out_dtype[o], at), (long long)at, worst, tolerance * scale);
    }
}

static void free_all(const struct rig_case *c, struct guarded *g)
{
    for (int i = 0; i < c->n_out; i++)
        free(g[i].base);
}

void rig_check(const struct rig_case *c)
{
    const struct pk_backend_api *api = pk_backend_cpu(), *ref = reference_backend();
    static struct pk_backend *reference;
    struct guarded want[RIG_MAX_OUT], first[RIG_MAX_OUT], got[RIG_MAX_OUT];
    struct pd_why why;
    char label[64];

    if (!reference)
        assert_int_equal(ref->open(NULL, 0, 1, &reference, &why), PD_OK);
    run(c, ref, reference, want);
    for (int l = 0; l < 3; l++)
        for (int gemm = 0; gemm < 2; gemm++) {
            if (gemm && c->op != PK_OP_MATMUL)
                continue;
            for (int threads = 1; threads <= 3; threads++) {
                struct pk_backend *b = rig_backend(rig_levels[l], gemm ? "own" : NULL, threads);

                if (!b) /* a level that this processor lacks */
                    continue;
                snprintf(label, sizeof label, "%s%s, %d threads", rig_levels[l], gemm ? " own" : "", threads);
                run(c, api, b, got);
                compare(c, label, got, want);
                for (int o = 0; threads > 1 && o < c->n_out; o++)
                    if (memcmp(first[o].base, got[o].base, first[o].bytes + 2 * GUARD) != 0)
                        fail_msg("%s, %s, output %d: not the bits of one thread", c->name, label, o);
                if (threads == 1)
                    memcpy(first, got, sizeof first);
                else
                    free_all(c, got);
            }
            if (rig_backend(rig_levels[l], gemm ? "own" : NULL, 1))
                free_all(c, first);
        }
    free_all(c, want);
}
