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
    const struct pk_backend_api *api = pk_backend_cpu();
    struct pk_view fwd[2], work_in[RIG_MAX_IN];
    struct pk_call call;
    struct pd_why why;
    int n = 0;

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

    fwd[0] = pk_view_dense(rig_alloc((size_t)pk_shape_count(&f.out[0]) * 8), dtype, f.out[0]);
    fwd[1] = pk_view_dense(rig_alloc((size_t)pk_shape_count(&f.out[1]) * 8), dtype, f.out[1]);
    memcpy(work_in, f.in, sizeof work_in);
    call = (struct pk_call){
        .op = f.op, .attr = &f.attr, .n_in = f.n_in, .n_out = f.n_out, .in = work_in, .out = fwd};
    call.workspace_bytes = api->workspace_bytes(rig_backend(NULL, NULL, 1), &call);
    call.workspace = rig_alloc(call.workspace_bytes);
    assert_int_equal(api->run(rig_backend(NULL, NULL, 1), &call, 1, &why), PD_OK);

    g = f;
    g.op = PK_OP_ATTENTION_BWD;
    g.in[n++] = fwd[0];
    g.in[n] = rig_random(dtype, f.out[0], -1, 1);
    if (strided)
        g.in[n] = rig_strided(&g.in[n]);
    n++;
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
    for (int i = 0; i < 2; i++)
        if (extra[i])
            g.out[g.n_out++] = extra[i]->shape;
    for (int i = 0; i < g.n_out; i++)
        g.out_dtype[i] = dtype;
    /* Sums that cancel: the gradient of a scale is tested against its own yardstick in tests/golden. */
    if (t->scale)
        g.tolerance = (tolerance > 0 ? tolerance : 2e-6) * 50;
    rig_check(&g);
}
