#include "tests/backend/attention_rig.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static struct pk_shape stats_shape(struct shape s)
{
    return PK_SHAPE(s.b, s.h, s.nq);
}

static void run_forward(const struct rig_case *f, const struct pk_view *in, struct pk_view *out)
{
    const struct pk_backend_api *api = pk_backend_cpu();
    struct pk_backend *b = rig_backend(NULL, NULL, 1);
    struct pk_call call = {
        .op = f->op, .attr = &f->attr, .n_in = f->n_in, .n_out = f->n_out, .in = in, .out = out};
    struct pd_why why;

    for (int i = 0; i < f->n_out; i++)
        out[i] = pk_view_dense(rig_alloc((size_t)pk_shape_count(&f->out[i]) * 8), f->out_dtype[i], f->out[i]);
    call.workspace_bytes = api->workspace_bytes(b, &call);
    call.workspace = rig_alloc(call.workspace_bytes);
    assert_int_equal(api->run(b, &call, 1, &why), PD_OK);
}

/* What the gradient of a scale is held against, the largest of all heads. With y = c y1 it is the sum of dy
 * y1 over all queries, channels and samples (and heads, of one scale for all). The terms have either sign and
 * may cancel; their errors are independent, so that of the sum is six times the root of their squares at
 * most. */
static double scale_yard(const struct rig_case *f, const struct attention_case *t, int at,
                         const struct pk_view *dy)
{
    struct pk_view in[RIG_MAX_IN], y1[2];
    double square[64] = {0}, size[64] = {0}, most = 0;
    const int64_t heads = pk_shape_count(&t->scale->shape);

    assert_true(heads <= 64);
    memcpy(in, f->in, sizeof in);
    in[at] = rig_random(t->scale->dtype, t->scale->shape, 1, 1);
    run_forward(f, in, y1);
    for (int64_t i = 0; i < pk_shape_count(&f->out[0]); i++) {
        const int64_t h = heads == 1 ? 0 : i / t->shape.d % heads;
        const double term = rig_get(dy->data, dy->dtype, i) * rig_get(y1[0].data, y1[0].dtype, i);

        square[h] += term * term;
        size[h] += fabs(term);
    }
    for (int64_t h = 0; h < heads; h++)
        most = fmax(most, fmin(size[h], 6 * sqrt(square[h])));
    return most;
}

void attention_check(const struct attention_case *t)
{
    const struct shape s = t->shape;
    const struct pk_attention_attr a = t->attr;
    const enum pk_dtype dtype = t->dtype;
    const double spread = t->spread, tolerance = t->tolerance;
    const bool strided = t->strided;
    const struct pk_view *const extra[] = {t->scale, t->bias, t->mask, t->length, t->rng};
    struct rig_case f = {.op = PK_OP_ATTENTION, .attr.attention = a, .name = t->name, .tolerance = tolerance},
                    g;
    const bool sums = pk_phi_normalised(a.phi);
    struct pk_view fwd[2], dy;
    int n = 0, scale_at;

    f.attr.attention.tau = a.tau != 0 ? a.tau : 1 / sqrt(s.d);
    f.attr.attention.has_scale = t->scale != NULL;
    f.attr.attention.has_bias = t->bias != NULL;
    f.attr.attention.has_mask = t->mask != NULL;
    f.attr.attention.has_length = t->length != NULL;
    f.attr.attention.has_rng = t->rng != NULL;
    if (a.packed) {
        f.in[n++] = rig_random(dtype, PK_SHAPE(s.b, s.nq, 3, s.h, s.d), -spread, spread);
    } else {
        f.in[n++] = rig_random(dtype, PK_SHAPE(s.b, s.h, s.nq, s.d), -spread, spread);
        f.in[n++] = rig_random(dtype, PK_SHAPE(s.b, s.h, s.nk, s.d), -spread, spread);
        f.in[n++] = rig_random(dtype, PK_SHAPE(s.b, s.h, s.nk, s.d), -1, 1);
    }
    for (int i = 0; strided && i < n; i++)
        f.in[i] = rig_strided(&f.in[i]);
    scale_at = n;
    for (size_t i = 0; i < sizeof extra / sizeof *extra; i++)
        if (extra[i])
            f.in[n++] = *extra[i];
    f.n_in = n;
    f.n_out = sums ? 2 : 1;
    f.out[0] = PK_SHAPE(s.b, s.nq, s.h, s.d);
    f.out[1] = stats_shape(s);
    f.out_dtype[0] = f.out_dtype[1] = dtype;
    f.floor = 1e-6;
    f.f32_only = spread > 10;
    rig_check(&f);

    run_forward(&f, f.in, fwd);

    g = f;
    g.op = PK_OP_ATTENTION_BWD;
    g.in[n++] = fwd[0];
    dy = rig_random(dtype, f.out[0], -1, 1);
    g.in[n++] = strided ? rig_strided(&dy) : dy;
    if (sums)
        g.in[n++] = fwd[1];
    g.n_in = n;
    g.n_out = 0;
    if (a.packed) {
        g.out[g.n_out++] = f.in[0].shape;
    } else {
        g.out[g.n_out++] = f.in[0].shape;
        g.out[g.n_out++] = f.in[1].shape;
        g.out[g.n_out++] = f.in[2].shape;
    }
    if (t->scale)
        g.yard[g.n_out] = scale_yard(&f, t, scale_at, &dy);
    for (int i = 0; i < 2; i++)
        if (extra[i])
            g.out[g.n_out++] = extra[i]->shape;
    for (int i = 0; i < g.n_out; i++)
        g.out_dtype[i] = dtype;
    rig_check(&g);
}
