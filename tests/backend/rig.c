#include "tests/backend/rig.h"

#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GUARD_BYTE 0xa5

static void *memory[4096];
static int memories;
static uint64_t seed = 1;

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

static double next_random(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(seed >> 11) * 0x1p-53;
}

void rig_put(struct pk_view *v, int64_t i, double x)
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

double rig_get(const void *data, enum pk_dtype dtype, int64_t i)
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
        rig_put(&v, i, lo + (hi - lo) * next_random());
    return v;
}

struct pk_view rig_values(enum pk_dtype dtype, struct pk_shape shape, const double *values)
{
    struct pk_view v;

    v = pk_view_dense(rig_alloc((size_t)pk_shape_count(&shape) * pk_dtype_size(dtype)), dtype, shape);
    for (int64_t i = 0; i < pk_shape_count(&shape); i++)
        rig_put(&v, i, values[i]);
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

struct rig_guarded rig_guarded_new(size_t bytes)
{
    struct rig_guarded g = {NULL, bytes};

    g.base = aligned_alloc(256, (bytes + 255) / 256 * 256 + 2 * RIG_GUARD + 256);
    assert_non_null(g.base);
    memset(g.base, GUARD_BYTE, RIG_GUARD);
    memset(g.base + RIG_GUARD, 0xff, bytes); /* as a float: NaN */
    memset(g.base + RIG_GUARD + bytes, GUARD_BYTE, RIG_GUARD);
    return g;
}

void rig_guarded_check(const struct rig_guarded *g, const char *name, const char *what)
{
    for (int i = 0; i < RIG_GUARD; i++)
        if (g->base[i] != GUARD_BYTE || g->base[RIG_GUARD + g->bytes + (size_t)i] != GUARD_BYTE)
            fail_msg("%s: wrote outside the %s", name, what);
}

void rig_compare(const struct rig_case *c, const char *label, const struct rig_guarded *got,
                 const struct rig_guarded *want)
{
    for (int o = 0; o < c->n_out; o++) {
        double tolerance = c->tolerance, scale = fmax(c->floor > 0 ? c->floor : 1e-30, c->yard[o]), worst = 0;
        int64_t n = pk_shape_count(&c->out[o]), at = 0;

        if (tolerance == 0)
            tolerance = 2e-6;
        if (c->out_dtype[o] == PK_F64)
            tolerance = tolerance * 1e-9 < 1e-12 ? 1e-12 : tolerance * 1e-9;
        for (int64_t i = 0; i < n; i++) {
            double g = rig_get(got[o].base + RIG_GUARD, c->out_dtype[o], i),
                   w = rig_get(want[o].base + RIG_GUARD, c->out_dtype[o], i);
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
                     label, o, rig_get(got[o].base + RIG_GUARD, c->out_dtype[o], at),
                     rig_get(want[o].base + RIG_GUARD, c->out_dtype[o], at), (long long)at, worst,
                     tolerance * scale);
    }
}
