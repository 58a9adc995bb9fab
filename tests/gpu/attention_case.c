#include "tests/gpu/attention_case.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/backend/cuda/attention/attention.h"
#include "tests/gpu/cover.h"
#include "tests/reference/reference.h"

#define GUARD 256
#define GUARD_BYTE 0xa5

static const struct pk_backend_api *api;
static struct pk_backend *device, *reference;
static bool without_hopper; /* POLYD_CUDA_HOPPER is 0 until the device is closed */
static char *hopper_before; /* what it was; NULL: not set */
static bool only_hopper;    /* of the case that runs */
static int wants_hopper;    /* of a formula that runs, as in struct attention_call */
static void *memory[4096];
static int memories;
static uint64_t seed = 1;

/* ---- tensors of the host ---- */

static void *take(size_t bytes)
{
    void *p = calloc(1, bytes + 16);

    assert_non_null(p);
    assert_true(memories < 4096);
    memory[memories++] = p;
    return p;
}

int attention_reset(void **state)
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

static void put(void *data, enum pk_dtype dtype, int64_t i, double x)
{
    const float f = (float)x;
    uint32_t bits;

    switch (dtype) {
    case PK_F64:
        ((double *)data)[i] = x;
        break;
    case PK_I32:
        ((int32_t *)data)[i] = (int32_t)floor(x);
        break;
    case PK_U8:
        ((uint8_t *)data)[i] = (uint8_t)x;
        break;
    case PK_BF16:
        memcpy(&bits, &f, sizeof bits);
        ((uint16_t *)data)[i] = (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
        break;
    default:
        ((float *)data)[i] = f;
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

static int64_t place(const struct pk_view *v, int64_t i)
{
    int64_t at = 0;

    for (int k = v->shape.rank - 1; k >= 0; k--) {
        at += i % v->shape.dim[k] * v->stride[k];
        i /= v->shape.dim[k];
    }
    return at;
}

static struct pk_view tensor(enum pk_dtype dtype, struct pk_shape shape)
{
    return pk_view_dense(take((size_t)pk_shape_count(&shape) * pk_dtype_size(dtype)), dtype, shape);
}

struct pk_view attention_random(enum pk_dtype dtype, struct pk_shape shape, double lo, double hi)
{
    struct pk_view v = tensor(dtype, shape);

    for (int64_t i = 0; i < pk_shape_count(&shape); i++)
        put(v.data, dtype, i, lo + (hi - lo) * next_random());
    return v;
}

struct pk_view attention_values(enum pk_dtype dtype, struct pk_shape shape, const double *values)
{
    struct pk_view v = tensor(dtype, shape);

    for (int64_t i = 0; i < pk_shape_count(&shape); i++)
        put(v.data, dtype, i, values[i]);
    return v;
}

struct pk_view attention_strided(const struct pk_view *v)
{
    struct pk_view s = *v;
    const size_t size = pk_dtype_size(v->dtype);
    int64_t step = 2;

    for (int i = 0; i < v->shape.rank; i++) {
        s.stride[i] = step;
        step = step * v->shape.dim[i] + 3;
    }
    s.data = memset(take((size_t)step * size), 0xff, (size_t)step * size);
    for (int64_t i = 0; i < pk_shape_count(&v->shape); i++)
        put(s.data, s.dtype, place(&s, i), get(v->data, v->dtype, place(v, i)));
    return s;
}

/* Four axes, the middle two stored the other way round; rows of 16-byte pieces with gaps between them. */
static struct pk_view swapped(const struct pk_view *v)
{
    struct pk_view s = *v;
    const int64_t row = (v->shape.dim[3] + 7) / 8 * 8 + 8;
    size_t bytes;

    s.stride[3] = 1;
    s.stride[1] = row;
    s.stride[2] = row * v->shape.dim[1] + 8;
    s.stride[0] = s.stride[2] * v->shape.dim[2] + 16;
    bytes = (size_t)(s.stride[0] * v->shape.dim[0]) * pk_dtype_size(v->dtype);
    s.data = memset(take(bytes), 0xff, bytes);
    for (int64_t i = 0; i < pk_shape_count(&v->shape); i++)
        put(s.data, s.dtype, place(&s, i), get(v->data, v->dtype, place(v, i)));
    return s;
}

/* The same numbers in double (integers stay what they are). */
struct pk_view attention_widened(const struct pk_view *v)
{
    struct pk_view w = tensor(pk_dtype_is_float(v->dtype) ? PK_F64 : v->dtype, v->shape);

    for (int64_t i = 0; i < pk_shape_count(&v->shape); i++)
        put(w.data, w.dtype, i, get(v->data, v->dtype, place(v, i)));
    return w;
}

/* ---- running ---- */

void attention_open(const struct pk_backend_api *opened)
{
    static struct pk_host host;
    struct pd_why why = {""};

    api = opened;
    host.cache_dir = getenv("POLYD_TEST_CACHE");
    if (api->open(&host, 0, 1, &device, &why) != PD_OK)
        fail_msg("open: %s", why.text);
    assert_int_equal(reference_backend()->open(NULL, 0, 1, &reference, &why), PD_OK);
}

void attention_open_without_hopper(const struct pk_backend_api *opened)
{
    const char *before = getenv("POLYD_CUDA_HOPPER");

    without_hopper = true;
    hopper_before = before ? strdup(before) : NULL;
    setenv("POLYD_CUDA_HOPPER", "0", 1);
    attention_open(opened);
}

struct pk_backend *attention_device(void)
{
    return device;
}

void attention_close(void)
{
    cover_close();
    device = api->close(device);
    reference = reference_backend()->close(reference);
    if (!without_hopper)
        return;
    if (hopper_before)
        setenv("POLYD_CUDA_HOPPER", hopper_before, 1);
    else
        unsetenv("POLYD_CUDA_HOPPER");
    free(hopper_before);
    hopper_before = NULL;
    without_hopper = false;
}

/* Elements from the first to behind the last of a view. */
static size_t extent(const struct pk_view *v)
{
    int64_t last = 0;

    if (pk_shape_count(&v->shape) == 0)
        return 0;
    for (int i = 0; i < v->shape.rank; i++)
        last += (v->shape.dim[i] - 1) * v->stride[i];
    return (size_t)(last + 1) * pk_dtype_size(v->dtype);
}

static char *guarded(size_t bytes)
{
    char *p = api->alloc(device, bytes + 2 * GUARD), *host = malloc(bytes + 2 * GUARD);
    struct pd_why why;

    assert_non_null(p);
    assert_non_null(host);
    memset(host, GUARD_BYTE, bytes + 2 * GUARD);
    memset(host + GUARD, 0xff, bytes); /* NaN */
    assert_int_equal(api->upload(device, p, host, bytes + 2 * GUARD, &why), PD_OK);
    free(host);
    return p;
}

/* Reads it back into `to` (may be NULL) and frees it. */
static void ungarded(const char *name, const char *what, char *p, size_t bytes, void *to)
{
    char *host = malloc(bytes + 2 * GUARD);
    struct pd_why why;

    assert_non_null(host);
    assert_int_equal(api->download(device, host, p, bytes + 2 * GUARD, &why), PD_OK);
    for (size_t i = 0; i < GUARD; i++)
        if ((uint8_t)host[i] != GUARD_BYTE || (uint8_t)host[GUARD + bytes + i] != GUARD_BYTE)
            fail_msg("%s: wrote outside the %s", name, what);
    if (to)
        memcpy(to, host + GUARD, bytes);
    api->free(device, p);
    free(host);
}

/* Runs on the device; outputs to host memory at out[].data. */
static void run(const char *name, enum pk_op op, const struct pk_attr *attr, enum pk_math math, int n_in,
                const struct pk_view *in, int n_out, struct pk_view *out, const int *share)
{
    struct pk_view din[16], dout[6];
    struct pk_call call = {.op = op, .attr = attr, .n_in = n_in, .n_out = n_out, .in = din, .out = dout};
    struct pd_why why = {""};
    char *from[16], *to[6], *work;

    assert_int_equal(api->set_math(device, math, &why), PD_OK);
    for (int i = 0; i < n_in; i++) {
        const size_t bytes = extent(&in[i]);

        from[i] = api->alloc(device, bytes ? bytes : 1);
        assert_non_null(from[i]);
        assert_int_equal(api->upload(device, from[i], in[i].data, bytes, &why), PD_OK);
        din[i] = in[i];
        din[i].data = from[i];
    }
    for (int o = 0; o < n_out; o++) {
        const size_t bytes = extent(&out[o]);

        to[o] = guarded(bytes);
        dout[o] = out[o];
        dout[o].data = to[o] + GUARD;
        if (share && share[o]) {
            assert_int_equal(api->upload(device, dout[o].data, in[share[o] - 1].data, bytes, &why), PD_OK);
            din[share[o] - 1].data = dout[o].data;
        }
    }
    if (!api->supports(device, &call))
        fail_msg("%s: not supported", name);
    if (only_hopper && !cuda_attention_hopper_supports(device, &call))
        fail_msg("%s: other kernels than those of sm 90", name);
    if (wants_hopper && (op == PK_OP_FORMULA || op == PK_OP_FORMULA_BWD) &&
        cuda_formula_hopper_supports(device, &call) != (wants_hopper > 0))
        fail_msg("%s: %s", name,
                 wants_hopper > 0 ? "other kernels than those of sm 90" : "the kernels of sm 90");
    call.workspace_bytes = api->workspace_bytes(device, &call);
    work = guarded(call.workspace_bytes);
    call.workspace = work + GUARD;
    if (api->run(device, &call, 1, &why) != PD_OK || api->sync(device, &why) != PD_OK)
        fail_msg("%s: %s", name, why.text);
    ungarded(name, "workspace", work, call.workspace_bytes, NULL);
    for (int o = 0; o < n_out; o++)
        ungarded(name, "output", to[o], extent(&out[o]), out[o].data);
    for (int i = 0; i < n_in; i++)
        api->free(device, from[i]);
}

/* Twice, for the same bits. */
static void run_twice(const char *name, enum pk_op op, const struct pk_attr *attr, enum pk_math math,
                      int n_in, const struct pk_view *in, int n_out, struct pk_view *out, const int *share)
{
    struct pk_view again[6];

    run(name, op, attr, math, n_in, in, n_out, out, share);
    for (int o = 0; o < n_out; o++)
        again[o] = tensor(out[o].dtype, out[o].shape);
    run(name, op, attr, math, n_in, in, n_out, again, share);
    for (int o = 0; o < n_out; o++)
        if (memcmp(out[o].data, again[o].data, extent(&out[o])) != 0)
            fail_msg("%s, output %d: other bits in a second run", name, o);
}

static void run_reference(const char *name, enum pk_op op, const struct pk_attr *attr, int n_in,
                          const struct pk_view *in, int n_out, struct pk_view *out)
{
    struct pk_call call = {.op = op, .attr = attr, .n_in = n_in, .n_out = n_out, .in = in, .out = out};
    struct pd_why why = {""};

    call.workspace_bytes = reference_backend()->workspace_bytes(reference, &call);
    call.workspace = take(call.workspace_bytes);
    if (reference_backend()->run(reference, &call, 1, &why) != PD_OK)
        fail_msg("%s: reference: %s", name, why.text);
}

static void compare(const char *name, int o, const struct pk_view *got, const struct pk_view *want,
                    const double *yard, double tolerance, double floor)
{
    const int64_t n = pk_shape_count(&want->shape);
    double top = floor, most = 0;

    /* A score that cancels has an error of its own, whatever becomes of it: a part of the largest counts. */
    for (int64_t i = 0; yard && i < n; i++)
        most = fmax(most, yard[i]);
    floor = fmax(floor, most / 32);
    for (int64_t i = 0; i < n; i++)
        if (isfinite(((const double *)want->data)[i]))
            top = fmax(top, fabs(((const double *)want->data)[i]));
    for (int64_t i = 0; i < n; i++) {
        const double g = get(got->data, got->dtype, i), w = ((const double *)want->data)[i];
        const double allowed = tolerance * (yard ? fmax(yard[i], floor) : top);

        if (!(g == w || fabs(g - w) <= allowed))
            fail_msg("%s, output %d: %.9g instead of %.9g at %lld (error %.3g of %.3g allowed)", name, o, g,
                     w, (long long)i, fabs(g - w), allowed);
    }
}

void attention_call_check(const struct attention_call *c)
{
    struct pk_view in[16], out[6], want[6];

    for (int o = 0; o < c->n_out; o++) {
        out[o] = tensor(c->wide[o] ? PK_F32 : c->in[c->share[o] ? c->share[o] - 1 : 0].dtype, c->out[o]);
        want[o] = tensor(PK_F64, c->out[o]);
    }
    if (!c->always &&
        !cover_wants(
            api, c->math,
            &(struct pk_call){
                .op = c->op, .attr = &c->attr, .n_in = c->n_in, .n_out = c->n_out, .in = c->in, .out = out},
            c->share, c->name))
        return;
    wants_hopper = c->hopper;
    run_twice(c->name, c->op, &c->attr, c->math, c->n_in, c->in, c->n_out, out, c->share);
    wants_hopper = 0;
    for (int i = 0; i < c->n_in; i++)
        in[i] = attention_widened(&c->in[i]);
    for (int o = 0; o < c->n_out; o++)
        if (c->share[o]) {
            want[o] = in[c->share[o] - 1];
        }
    run_reference(c->name, c->op, &c->attr, c->n_in, in, c->n_out, want);
    for (int o = 0; o < c->n_out; o++)
        compare(c->name, o, &out[o], &want[o], NULL, c->tolerance, fmax(c->floor, c->yard[o]));
}

/* ---- a case ---- */

/* How much larger than the score of query i and key j the rounding of its terms may be taken: those of q k
 * are independent, so that twice the root of their squares counts where they cancel. 1: they do not. */
static double cancelled(const struct pk_attention_attr *a, const struct pk_view *in, struct attention_shape s,
                        int b, int h, int i, int j)
{
    double score = 0, squares = 0;

    for (int c = 0; c < s.d; c++) {
        const int64_t q = a->packed ? (((int64_t)(b * s.nq + i) * 3) * s.h + h) * s.d + c
                                    : ((int64_t)(b * s.h + h) * s.nq + i) * s.d + c,
                      k = a->packed ? (((int64_t)(b * s.nk + j) * 3 + 1) * s.h + h) * s.d + c
                                    : ((int64_t)(b * s.h + h) * s.nk + j) * s.d + c;
        const double term = ((double *)in[0].data)[q] * ((double *)in[a->packed ? 0 : 1].data)[k];

        score += term;
        squares += term * term;
    }
    return fmax(1, 2 * sqrt(squares) / fmax(fabs(score), 1e-30));
}

/* Sum over j of |A_ij| |v_jc|, by the columns of A: y where v has a 1 for one key each channel. A power of a
 * score that cancels counts for what its terms are rounded by. */
static double *yardstick(const char *name, const struct pk_attr *attr, int n_in, const struct pk_view *in,
                         struct attention_shape s, bool sums)
{
    const struct pk_attention_attr *a = &attr->attention;
    struct pk_view mine[16], y[2], v = in[a->packed ? 0 : 2];
    double *yard = take((size_t)(s.b * s.nq * s.h * s.d) * sizeof *yard);
    struct pk_attr packed = *attr;

    memcpy(mine, in, (size_t)n_in * sizeof *in);
    y[0] = tensor(PK_F64, PK_SHAPE(s.b, s.nq, s.h, s.d));
    y[1] = tensor(PK_F64, PK_SHAPE(s.b, s.h, s.nq));
    if (a->packed) {
        mine[0] = tensor(PK_F64, v.shape);
        memcpy(mine[0].data, v.data, (size_t)pk_shape_count(&v.shape) * sizeof(double));
    } else {
        mine[2] = tensor(PK_F64, v.shape);
    }
    for (int j0 = 0; j0 < s.nk; j0 += s.d) {
        for (int b = 0; b < s.b; b++)
            for (int h = 0; h < s.h; h++)
                for (int j = 0; j < s.nk; j++)
                    for (int c = 0; c < s.d; c++) {
                        const int64_t at = a->packed ? (((int64_t)(b * s.nk + j) * 3 + 2) * s.h + h) * s.d + c
                                                     : ((int64_t)(b * s.h + h) * s.nk + j) * s.d + c;

                        ((double *)mine[a->packed ? 0 : 2].data)[at] = j == j0 + c;
                    }
        run_reference(name, PK_OP_ATTENTION, &packed, n_in, mine, sums ? 2 : 1, y);
        for (int b = 0; b < s.b; b++)
            for (int h = 0; h < s.h; h++)
                for (int i = 0; i < s.nq; i++)
                    for (int j = j0; j < s.nk && j < j0 + s.d; j++) {
                        const int64_t row = ((int64_t)(b * s.nq + i) * s.h + h) * s.d;
                        const double part =
                            a->phi == PK_PHI_POLY && !a->has_bias ? cancelled(a, in, s, b, h, i, j) : 1;
                        const double weight = part * fabs(((double *)y[0].data)[row + j - j0]);

                        for (int c = 0; c < s.d; c++) {
                            const int64_t at = a->packed
                                                   ? (((int64_t)(b * s.nk + j) * 3 + 2) * s.h + h) * s.d + c
                                                   : ((int64_t)(b * s.h + h) * s.nk + j) * s.d + c;

                            yard[row + c] += weight * fabs(((const double *)v.data)[at]);
                        }
                    }
    }
    return yard;
}

/* What the gradient of a scale is held against, the largest of all heads. With y = c y1 it is the sum of dy
 * y1 over all queries, channels and samples (and heads, of one scale for all). The terms have either sign and
 * may cancel; their errors are independent, so that of the sum is six times the root of their squares at
 * most. */
static double scale_yard(const char *name, const struct pk_attr *attr, int n_in, const struct pk_view *in,
                         int scale_at, struct attention_shape s, const struct pk_view *dy, bool sums)
{
    struct pk_view mine[16], y1[2];
    double square[64] = {0}, size[64] = {0}, most = 0;
    const int64_t heads = pk_shape_count(&in[scale_at].shape);

    assert_true(heads <= 64);
    memcpy(mine, in, (size_t)n_in * sizeof *in);
    mine[scale_at] = tensor(PK_F64, in[scale_at].shape);
    for (int64_t h = 0; h < heads; h++)
        ((double *)mine[scale_at].data)[h] = 1;
    y1[0] = tensor(PK_F64, PK_SHAPE(s.b, s.nq, s.h, s.d));
    y1[1] = tensor(PK_F64, PK_SHAPE(s.b, s.h, s.nq));
    run_reference(name, PK_OP_ATTENTION, attr, n_in, mine, sums ? 2 : 1, y1);
    for (int64_t i = 0; i < pk_shape_count(&y1[0].shape); i++) {
        const int64_t h = heads == 1 ? 0 : i / s.d % heads;
        const double term = get(dy->data, dy->dtype, i) * ((double *)y1[0].data)[i];

        square[h] += term * term;
        size[h] += fabs(term);
    }
    for (int64_t h = 0; h < heads; h++)
        most = fmax(most, fmin(size[h], 6 * sqrt(square[h])));
    return most;
}

/* Relative: bf16 rounds A to 2^-9, and y; TF32 rounds q, k, A, v to 2^-11 each, x^p multiplies that of q k.
 */
static double tolerance_of(const struct attention_case *t)
{
    const int p = t->attr.phi == PK_PHI_POLY ? t->attr.degree : 2;

    if (t->dtype == PK_BF16)
        return 0x1p-7;
    return t->math == PK_MATH_TF32 ? (2 + p) * 0x1p-10 : 2e-5;
}

/* Copies of keys and values with NaN at and beyond each length. */
static void poison(const struct attention_case *t, struct pk_view *in, const struct pk_view *length)
{
    for (int i = 1; i < 3; i++) {
        const struct pk_view v = in[i];

        in[i].data = memcpy(take(extent(&v)), v.data, extent(&v));
        for (int64_t x = 0; x < pk_shape_count(&v.shape); x++) {
            const int64_t row = x / t->shape.d % t->shape.nk, b = x / t->shape.d / t->shape.nk / t->shape.h;

            if (row >= (int64_t)get(length->data, PK_I32, b))
                put(in[i].data, t->dtype, place(&v, x), (double)NAN);
        }
    }
}

/* Runs again with NaN there: the same bits. */
static void run_poisoned(const char *name, enum pk_op op, const struct attention_case *t,
                         const struct pk_attr *attr, int n_in, const struct pk_view *in,
                         const struct pk_view *length, int n_out, const struct pk_view *out)
{
    struct pk_view bad[16], again[6];

    memcpy(bad, in, (size_t)n_in * sizeof *in);
    poison(t, bad, length);
    for (int o = 0; o < n_out; o++)
        again[o] = tensor(out[o].dtype, out[o].shape);
    run(name, op, attr, t->math, n_in, bad, n_out, again, NULL);
    for (int o = 0; o < n_out; o++)
        if (memcmp(out[o].data, again[o].data, extent(&out[o])) != 0)
            fail_msg("%s, output %d: what lies beyond the length counts", name, o);
}

/* Whether the ordinary run takes this case, forward or backward. `in` has room for what only the latter
 * reads, `out` is what the former writes. */
static bool wanted(const struct attention_case *t, const struct pk_attr *attr, int n, struct pk_view *in,
                   int gradients, const struct pk_view *out)
{
    const bool sums = pk_phi_normalised(t->attr.phi);
    struct pk_view d[6];
    struct pk_call call = {
        .op = PK_OP_ATTENTION, .attr = attr, .n_in = n, .n_out = sums ? 2 : 1, .in = in, .out = out};
    bool yes = cover_wants(api, t->math, &call, NULL, t->name);

    if (t->forward)
        return yes;
    in[n++] = out[0];
    in[n++] = t->strided ? attention_strided(&out[0]) : t->swapped ? swapped(&out[0]) : out[0];
    if (sums)
        in[n++] = out[1];
    for (int i = 0; i < gradients; i++)
        d[i] = pk_view_dense(NULL, in[i].dtype, in[i].shape);
    call = (struct pk_call){
        .op = PK_OP_ATTENTION_BWD, .attr = attr, .n_in = n, .n_out = gradients, .in = in, .out = d};
    return cover_wants(api, t->math, &call, NULL, t->name) || yes;
}

void attention_check(const struct attention_case *t)
{
    static const double words[4] = {77, -9, 12345, 2}, heads[8] = {0.5, -2, 1, 0, 1.5, -0.25, 3, 1};
    static const double layer[1] = {-0.7}, zero[1] = {0};
    const struct attention_shape s = t->shape;
    const bool sums = pk_phi_normalised(t->attr.phi);
    const double tolerance = tolerance_of(t) * (t->loose > 0 ? t->loose : 1);
    struct pk_attr attr = {.attention = t->attr};
    struct pk_attention_attr *a = &attr.attention;
    const int scale_at = t->attr.packed ? 1 : 3;
    struct pk_view in[16], wide[16], out[6], want[6], length = {0}, dy;
    double yard = 0;
    char name[256];
    int n = 0, first;

    snprintf(
        name, sizeof name, "%s (%s%s, phi %d p %d, b %d h %d nq %d nk %d d %d%s%s%s%s%s%s, mask %d scale %d)",
        t->name, pk_dtype_name(t->dtype), t->dtype == PK_F32 && t->math ? " as tf32" : "", (int)a->phi,
        (int)a->degree, s.b, s.h, s.nq, s.nk, s.d, a->causal ? " causal" : "", a->packed ? " packed" : "",
        t->bias ? " bias" : "", t->length ? " length" : "", t->dropout ? " dropout" : "",
        t->strided   ? " strided"
        : t->swapped ? " swapped"
                     : "",
        (int)t->mask, (int)t->scale);
    only_hopper = t->hopper;
    if (a->tau == 0)
        a->tau = 1 / sqrt(s.d);
    a->has_scale = t->scale != SCALE_NONE;
    a->has_bias = t->bias;
    a->has_mask = t->mask != MASK_NONE;
    a->has_length = t->length;
    a->has_rng = t->dropout;
    if (t->dropout && a->dropout == 0)
        a->dropout = 0.3;
    if (a->packed) {
        in[n] = attention_random(t->dtype, PK_SHAPE(s.b, s.nq, 3, s.h, s.d), -1, 1);
        for (int64_t i = 0; i < pk_shape_count(&in[n].shape); i++)
            if (i / (s.h * s.d) % 3 != 2)
                put(in[n].data, t->dtype, i, get(in[n].data, t->dtype, i) * t->spread);
        n++;
    } else {
        in[n++] = attention_random(t->dtype, PK_SHAPE(s.b, s.h, s.nq, s.d), -t->spread, t->spread);
        in[n++] = attention_random(t->dtype, PK_SHAPE(s.b, s.h, s.nk, s.d), -t->spread, t->spread);
        in[n++] = attention_random(t->dtype, PK_SHAPE(s.b, s.h, s.nk, s.d), -1, 1);
    }
    /* ReLU has a corner: products of such numbers are exact in any arithmetic, so that all see the same side.
     */
    for (int i = 0; a->phi == PK_PHI_RELU && i < n; i++)
        for (int64_t x = 0; x < pk_shape_count(&in[i].shape); x++)
            put(in[i].data, t->dtype, x, nearbyint(get(in[i].data, t->dtype, x) * 4) / 4);
    for (int i = 0; t->strided && i < n; i++)
        in[i] = attention_strided(&in[i]);
    for (int i = 0; t->swapped && i < n; i++)
        in[i] = swapped(&in[i]);
    first = n;
    if (t->scale == SCALE_HEADS)
        in[n++] = attention_values(PK_F32, PK_SHAPE(s.h), heads);
    else if (t->scale)
        in[n++] = attention_values(PK_F32, PK_SHAPE(1), t->scale == SCALE_ZERO ? zero : layer);
    if (t->bias)
        in[n++] = attention_random(PK_F32, PK_SHAPE(s.h, s.nq, s.nk), -1, 1);
    if (t->mask == MASK_KEYS) {
        in[n] = attention_random(PK_U8, PK_SHAPE(s.b, s.nk), 0, 2);
        ((uint8_t *)in[n].data)[0] = 0; /* causal row 0 sees nothing */
        for (int k = 2; k < 4 && k < s.nk;
             k++) /* of one key alone the gradient is rounding: y - v of itself */
            ((uint8_t *)in[n].data)[k] = 1;
        if (s.b > 1)
            memset((uint8_t *)in[n].data + s.nk, 0, (size_t)s.nk); /* nobody sees anything */
        n++;
    } else if (t->mask == MASK_WINDOWS) {
        const int w = s.b % 2 ? 1 : s.b / 2;

        in[n] = attention_random(PK_U8, PK_SHAPE(w, s.nq, s.nk), 0, 2);
        memset(in[n].data, 0, (size_t)s.nk); /* a query that sees nothing, a key that nobody sees */
        for (int q = 0; s.nk > 1 && q < s.nq; q++)
            ((uint8_t *)in[n].data)[q * s.nk + 1] = 0;
        n++;
    }
    if (t->length) {
        double lengths[16];

        assert_true(s.b <= 16);
        for (int b = 0; b < s.b; b++)
            lengths[b] = b == 0 ? (s.nk * 2 + 2) / 3 : b == 1 ? 0 : s.nk + 5 - b;
        length = in[n++] = attention_values(PK_I32, PK_SHAPE(s.b), lengths);
    }
    if (t->dropout)
        in[n++] = attention_values(PK_I32, PK_SHAPE(t->attr.degree % 2 ? 3 : 4),
                                   words); /* with a share of a batch, or without */

    out[0] = tensor(t->dtype, PK_SHAPE(s.b, s.nq, s.h, s.d));
    out[1] = tensor(PK_F32, PK_SHAPE(s.b, s.h, s.nq));
    if (!wanted(t, &attr, n, in, first + (t->scale != SCALE_NONE) + t->bias, out))
        return;
    want[0] = tensor(PK_F64, out[0].shape);
    want[1] = tensor(PK_F64, out[1].shape);
    for (int i = 0; i < n; i++)
        wide[i] = attention_widened(&in[i]);
    run_twice(name, PK_OP_ATTENTION, &attr, t->math, n, in, sums ? 2 : 1, out, NULL);
    if (t->length && !a->packed)
        run_poisoned(name, PK_OP_ATTENTION, t, &attr, n, in, &length, sums ? 2 : 1, out);
    run_reference(name, PK_OP_ATTENTION, &attr, n, wide, sums ? 2 : 1, want);
    compare(name, 0, &out[0], &want[0], yardstick(name, &attr, n, wide, s, sums), tolerance, 1e-7);
    if (sums)
        compare(name, 1, &out[1], &want[1], NULL, fmax(tolerance, 2e-5), 1);
    if (t->forward)
        return;
    dy = attention_random(t->dtype, out[0].shape, -1, 1);

    if (t->scale)
        yard = scale_yard(name, &attr, n, wide, scale_at, s, &dy, sums);

    /* The backward pass of the reference sees the y and sums that the device gets. */
    in[n] = out[0];
    wide[n] = attention_widened(&in[n]);
    n++;
    in[n] = t->strided ? attention_strided(&dy) : t->swapped ? swapped(&dy) : dy;
    wide[n] = attention_widened(&in[n]);
    n++;
    if (sums) {
        in[n] = out[1];
        wide[n] = attention_widened(&in[n]);
        n++;
    }
    for (int i = 0; i < first; i++) {
        out[i] = tensor(t->dtype, in[i].shape);
        want[i] = tensor(PK_F64, in[i].shape);
    }
    for (int i = first; i < first + (t->scale != SCALE_NONE) + t->bias; i++) {
        out[i] = tensor(PK_F32, in[i].shape);
        want[i] = tensor(PK_F64, in[i].shape);
    }
    first += (t->scale != SCALE_NONE) + t->bias;
    attr.attention = *a;
    run_twice(name, PK_OP_ATTENTION_BWD, &attr, t->math, n, in, first, out, NULL);
    if (t->length && !a->packed)
        run_poisoned(name, PK_OP_ATTENTION_BWD, t, &attr, n, in, &length, first, out);
    run_reference(name, PK_OP_ATTENTION_BWD, &attr, n, wide, first, want);
    for (int i = 0; i < first; i++)
        compare(name, 10 + i, &out[i], &want[i], NULL, tolerance,
                fmax(sums ? 1e-2 : 1e-5, t->scale && i == scale_at ? yard : 0));
}
