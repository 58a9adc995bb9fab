#include "tests/graph/rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/reference/reference.h"

const struct pk_backend_api *(*rig_backend)(void) = reference_backend;

struct rig *rig_new(bool decomposed)
{
    return rig_new_on(rig_backend(), 1, decomposed);
}

struct rig *rig_new_on(const struct pk_backend_api *api, int threads, bool decomposed)
{
    struct rig *r = calloc(1, sizeof *r);

    assert_non_null(r);
    r->g = pk_graph_new(decomposed);
    assert_non_null(r->g);
    r->api = api;
    assert_int_equal(r->api->open(NULL, 0, threads, &r->backend, &r->why), PD_OK);
    return r;
}

struct rig *rig_free(struct rig *r)
{
    if (r) {
        for (size_t i = 0; i < sizeof r->memory / sizeof *r->memory; i++)
            if (r->memory[i])
                r->api->free(r->backend, r->memory[i]);
        pk_exec_free(r->exec);
        pk_graph_free(r->g);
        r->api->close(r->backend);
        free(r);
    }
    return NULL;
}

double rig_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (double)(z >> 11) / 4503599627370496.0 - 1.0;
}

static void ok(struct rig *r, enum pd_err err)
{
    if (err != PD_OK)
        fail_msg("%s: %s", pd_err_name(err), r->why.text);
}

static void put_at(const struct pk_leaf *l, void *memory, int64_t i, double x)
{
    switch (l->dtype) {
    case PK_F32:
        ((float *)memory)[i] = (float)x;
        break;
    case PK_F64:
        ((double *)memory)[i] = x;
        break;
    case PK_BF16: { /* cut off: these are any numbers */
        float wide = (float)x;

        memcpy((uint16_t *)memory + i, (char *)&wide + 2, 2);
        break;
    }
    case PK_I32:
        ((int32_t *)memory)[i] = (int32_t)x;
        break;
    case PK_U8:
        ((uint8_t *)memory)[i] = (uint8_t)x;
        break;
    default:
        fail_msg("dtype %d", (int)l->dtype);
    }
}

void rig_replan(struct rig *r)
{
    ok(r, pk_graph_check(r->g, &r->why));
    r->exec = pk_exec_free(r->exec);
    ok(r, pk_exec_new(r->g, r->api, r->backend, &r->exec, &r->why));
    assert_true(pk_graph_leaf_count(r->g) < sizeof r->memory / sizeof *r->memory);
    for (size_t i = 0; i < pk_graph_leaf_count(r->g); i++) {
        struct pk_leaf l = pk_graph_leaf(r->g, i);

        if (!r->memory[i]) {
            uint64_t seed = 7;

            for (const char *c = l.name; *c; c++)
                seed = seed * 31 + (unsigned char)*c;
            r->memory[i] = r->api->alloc(r->backend, l.bytes ? l.bytes : 1);
            assert_non_null(r->memory[i]);
            for (int64_t k = 0; k < pk_shape_count(&l.shape); k++)
                put_at(&l, r->memory[i], k, pk_dtype_is_float(l.dtype) ? rig_random(&seed) : 0.0);
        }
        ok(r, pk_exec_bind(r->exec, l.name, r->memory[i], &r->why));
    }
}

void rig_plan(struct rig *r)
{
    rig_replan(r);
}

void rig_run(struct rig *r)
{
    ok(r, pk_exec_run(r->exec, &r->why));
}

static size_t find(struct rig *r, const char *name, struct pk_leaf *ret)
{
    for (size_t i = 0; i < pk_graph_leaf_count(r->g); i++) {
        *ret = pk_graph_leaf(r->g, i);
        if (strcmp(ret->name, name) == 0)
            return i;
    }
    fail_msg("no leaf '%s'", name);
    return 0;
}

void *rig_leaf(struct rig *r, const char *name)
{
    struct pk_leaf l;

    return r->memory[find(r, name, &l)];
}

int64_t rig_count(struct rig *r, const char *name)
{
    struct pk_leaf l;

    find(r, name, &l);
    return pk_shape_count(&l.shape);
}

double rig_get(struct rig *r, const char *name, int64_t i)
{
    struct pk_leaf l;
    void *m = r->memory[find(r, name, &l)];

    return l.dtype == PK_F64   ? ((double *)m)[i]
           : l.dtype == PK_F32 ? (double)((float *)m)[i]
           : l.dtype == PK_I32 ? (double)((int32_t *)m)[i]
                               : (double)((uint8_t *)m)[i];
}

void rig_put(struct rig *r, const char *name, int64_t i, double x)
{
    struct pk_leaf l;
    size_t at = find(r, name, &l);

    put_at(&l, r->memory[at], i, x);
}

void rig_set(struct rig *r, const char *name, const double *x)
{
    for (int64_t i = 0; i < rig_count(r, name); i++)
        rig_put(r, name, i, x[i]);
}

double *rig_read(struct rig *r, const char *output, int64_t *ret_n)
{
    struct pk_shape shape;
    int64_t n;
    double *x;

    if (!pk_exec_output(r->exec, output, &shape))
        fail_msg("no output '%s'", output);
    n = pk_shape_count(&shape);
    x = malloc(((size_t)n + 1) * sizeof *x);
    assert_non_null(x);
    if (pk_exec_read(r->exec, output, x, (size_t)n * sizeof *x, &r->why) != PD_OK) {
        float *f = malloc(((size_t)n + 1) * sizeof *f);

        ok(r, pk_exec_read(r->exec, output, f, (size_t)n * sizeof *f, &r->why));
        for (int64_t i = 0; i < n; i++)
            x[i] = (double)f[i];
        free(f);
    }
    if (ret_n)
        *ret_n = n;
    return x;
}

double rig_scalar(struct rig *r, const char *output)
{
    int64_t n;
    double *x = rig_read(r, output, &n), v = x[0];

    assert_int_equal(n, 1);
    free(x);
    return v;
}

void rig_check_gradient(struct rig *r, const char *leaf, double tolerance)
{
    char name[128];
    int64_t n;
    double *d;

    snprintf(name, sizeof name, "d.%s", leaf);
    rig_run(r);
    d = rig_read(r, name, &n);
    assert_int_equal(n, rig_count(r, leaf));
    for (int64_t i = 0; i < n; i++) {
        const double h = 1e-5; /* central: error of h^2 against rounding of 1e-16/h */
        double x = rig_get(r, leaf, i), up, down, want;

        rig_put(r, leaf, i, x + h);
        rig_run(r);
        up = rig_scalar(r, "f");
        rig_put(r, leaf, i, x - h);
        rig_run(r);
        down = rig_scalar(r, "f");
        rig_put(r, leaf, i, x);
        want = (up - down) / (2.0 * h);
        if (!(fabs(d[i] - want) <= tolerance * (1.0 + fabs(want))))
            fail_msg("d f / d %s[%lld] is %.12g, differences give %.12g", leaf, (long long)i, d[i], want);
    }
    free(d);
}
