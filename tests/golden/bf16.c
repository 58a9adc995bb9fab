#include "tests/golden/bf16.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/golden/attention.h"

#define U 0x1p-8 /* bf16 rounds to this, relative */

/* An element of attention passes three roundings in a row at most (A, or dS and what it was made of; the
 * result), and the error of a sum of rounded terms is mostly smaller than that of each. */
#define ATTENTION (3 * U)
/* A sigmoid by the processor's tanh is right to this, of 1. */
#define SIGMOID 0x1p-12

const char *gold_math(void)
{
    const char *math = getenv("GOLDEN_MATH");

    return math ? math : "";
}

bool gold_bf16(void)
{
    return strcmp(gold_math(), "bf16") == 0;
}

double gold_band(struct gold *g, const char *part, double rtol)
{
    const json_t *measured = json_object_get(g->config, "normalised_error_bf16_emulated");

    if (!gold_bf16())
        return rtol;
    if (json_is_object(measured))
        measured = json_object_get(measured, part);
    if (!json_is_number(measured)) {
        gold_fail(g, "the file does not say what bf16 costs '%s'", part);
        return 0;
    }
    return GOLD_BF16_TIMES * json_number_value(measured);
}

double gold_scale_band(const struct gold *g)
{
    return gold_bf16() ? GOLD_BF16_TIMES * 3.5e-3 : gold_rtol(g, 2e-5); /* tests/golden/README.md 10 */
}

/* ---- attention ---- */

enum { O, DQ, DK, DV, DSCALE, RESULTS };
static const char *const result_name[RESULTS] = {"o", "dq", "dk", "dv", "dscale"};

struct sizes {
    int64_t b, h, nq, nk, d, scales;
};

struct case_data {
    struct sizes s;
    double *q, *k, *v, *go, *scale; /* rounded; (B, H, N, d); scale not rounded, NULL without */
    double *yard[RESULTS];          /* what was added up for each element */
};

static double *numbers(struct gold *g, int64_t count)
{
    return gold_alloc(g, (size_t)count * sizeof(double));
}

static int64_t count_of(const struct sizes *s, int which)
{
    return which == DSCALE ? s->scales : s->b * s->h * s->d * (which == O || which == DQ ? s->nq : s->nk);
}

/* To the nearest bf16, ties to even. */
static double rounded(double x)
{
    float f = (float)x;
    uint32_t bits;

    memcpy(&bits, &f, 4);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&f, &bits, 4);
    return (double)f;
}

static double *rounded_tensor(struct gold *g, const char *name, struct pk_shape *ret_shape)
{
    const double *from = gold_tensor(g, name, ret_shape);
    double *to = from ? numbers(g, pk_shape_count(ret_shape)) : NULL;

    for (int64_t i = 0; to && i < pk_shape_count(ret_shape); i++)
        to[i] = rounded(from[i]);
    return to;
}

static void put(const struct pk_view *v, int64_t i, double x)
{
    if (v->dtype == PK_F64) {
        ((double *)v->data)[i] = x;
    } else {
        float f = (float)x;
        uint32_t bits;

        memcpy(&bits, &f, 4);
        if (v->dtype == PK_BF16)
            ((uint16_t *)v->data)[i] = (uint16_t)(bits >> 16); /* rounded before */
        else
            ((float *)v->data)[i] = f;
    }
}

static double get(const struct pk_view *v, int64_t i)
{
    uint32_t bits;
    float f;

    if (v->dtype == PK_F64)
        return ((const double *)v->data)[i];
    if (v->dtype == PK_F32)
        return (double)((const float *)v->data)[i];
    bits = (uint32_t)((const uint16_t *)v->data)[i] << 16;
    memcpy(&f, &bits, 4);
    return (double)f;
}

/* (B, H, N, d) numbers as part `part` of parts in (B, N, parts, H, d), and back. */
static void interleave(const struct sizes *s, int64_t n, int64_t parts, int64_t part, const struct pk_view *v,
                       double *numbers, bool back)
{
    for (int64_t b = 0; b < s->b; b++)
        for (int64_t h = 0; h < s->h; h++)
            for (int64_t i = 0; i < n; i++)
                for (int64_t c = 0; c < s->d; c++) {
                    int64_t there = (((b * n + i) * parts + part) * s->h + h) * s->d + c;
                    int64_t here = ((b * s->h + h) * n + i) * s->d + c;

                    if (back)
                        numbers[here] = get(v, there);
                    else
                        put(v, there, numbers[here]);
                }
}

static void dense(const struct pk_view *v, double *numbers, bool back)
{
    for (int64_t i = 0; i < pk_shape_count(&v->shape); i++)
        if (back)
            numbers[i] = get(v, i);
        else
            put(v, i, numbers[i]);
}

/* Both directions on the back end, in f64 (there it is the CPU's) or in bf16. */
static bool attend(struct gold *g, const struct case_data *c, struct pk_attr attr, enum pk_dtype dtype,
                   bool packed, double *result[RESULTS])
{
    const struct sizes *s = &c->s;
    enum pk_dtype wide = dtype == PK_F64 ? PK_F64 : PK_F32;
    struct pk_view in[8], out[4], fwd[2], q = {0};
    double *const part[3] = {c->q, c->k, c->v};
    int n = packed ? 1 : 3, back = packed ? 1 : 3;

    attr.attention.packed = packed;
    if (packed) {
        in[0] = gold_zeros(g, dtype, PK_SHAPE(s->b, s->nq, 3, s->h, s->d));
        for (int i = 0; i < 3; i++)
            interleave(s, s->nq, 3, i, &in[0], part[i], false);
    } else {
        for (int i = 0; i < 3; i++) {
            in[i] = gold_zeros(g, dtype, PK_SHAPE(s->b, s->h, i ? s->nk : s->nq, s->d));
            dense(&in[i], part[i], false);
        }
    }
    q = in[0];
    if (c->scale) {
        in[n] = gold_zeros(g, wide, PK_SHAPE(s->scales));
        dense(&in[n++], c->scale, false);
    }
    fwd[0] = gold_zeros(g, dtype, PK_SHAPE(s->b, s->nq, s->h, s->d));
    fwd[1] = gold_zeros(g, wide, PK_SHAPE(s->b, s->h, s->nq));
    if (!gold_run(g, PK_OP_ATTENTION, &attr, in, n, fwd, attr.attention.phi == PK_PHI_SOFTMAX ? 2 : 1))
        return false;
    interleave(s, s->nq, 1, 0, &fwd[0], result[O], true);
    in[n] = fwd[0];
    in[n + 1] = gold_zeros(g, dtype, fwd[0].shape);
    interleave(s, s->nq, 1, 0, &in[n + 1], c->go, false);
    in[n + 2] = fwd[1];
    if (packed)
        out[0] = gold_zeros(g, dtype, q.shape);
    for (int i = 0; i < 3 && !packed; i++)
        out[i] = gold_zeros(g, dtype, in[i].shape);
    if (c->scale)
        out[back] = gold_zeros(g, wide, PK_SHAPE(s->scales));
    if (!gold_run(g, PK_OP_ATTENTION_BWD, &attr, in, n + 2 + (attr.attention.phi == PK_PHI_SOFTMAX), out,
                  back + (c->scale != NULL)))
        return false;
    for (int i = 0; i < 3; i++)
        if (packed)
            interleave(s, s->nq, 3, i, &out[0], result[DQ + i], true);
        else
            dense(&out[i], result[DQ + i], true);
    if (c->scale)
        dense(&out[back], result[DSCALE], true);
    return true;
}

/* |phi| and |phi'| at a logit without the factor c; of softmax its numerator, for both. */
static void magnitudes(const struct pk_attention_attr *a, double x, double ret[2])
{
    double s = 1 / (1 + exp(-x));

    switch (a->phi) {
    case PK_PHI_POLY:
        ret[0] = pow(fabs(x), a->degree);
        ret[1] = a->degree * pow(fabs(x), a->degree - 1);
        break;
    case PK_PHI_SIGMOID:
        ret[0] = s + SIGMOID / ATTENTION;
        ret[1] = s * (1 - s) + SIGMOID / ATTENTION;
        break;
    case PK_PHI_RELU:
        ret[0] = fmax(x, 0);
        ret[1] = x > 0;
        break;
    default:
        ret[0] = ret[1] = exp(x);
        break;
    }
}

/* One row's weights: w[0][j] of A, w[1][j] of dA/dS, and |dy| |v_j| in w[2][j]; c_h is left out. In linear
 * order the terms are products of channels, of which |q| |k| is the sum. */
static void row_weights(const struct case_data *c, const struct pk_attention_attr *a, bool linear,
                        int64_t head, int64_t i, double *w[3])
{
    const struct sizes *s = &c->s;
    const double *q = c->q + (head * s->nq + i) * s->d, *go = c->go + (head * s->nq + i) * s->d;
    double largest = -INFINITY, sum = 0, mean = 0;
    int64_t seen = a->causal ? i + 1 + s->nk - s->nq : s->nk;

    for (int64_t j = 0; j < s->nk; j++) {
        const double *k = c->k + (head * s->nk + j) * s->d, *v = c->v + (head * s->nk + j) * s->d;
        double dot = 0, terms = 0, product = 0;

        for (int64_t e = 0; e < s->d; e++) {
            dot += q[e] * k[e];
            terms += fabs(q[e] * k[e]);
            product += fabs(go[e] * v[e]);
        }
        w[0][j] = a->tau * (linear ? terms : dot) + a->bias;
        w[2][j] = product;
        if (j < seen)
            largest = fmax(largest, w[0][j]);
    }
    for (int64_t j = 0; j < s->nk; j++) {
        double m[2] = {0, 0};

        if (j < seen)
            magnitudes(a, a->phi == PK_PHI_SOFTMAX ? w[0][j] - largest : w[0][j], m);
        w[0][j] = fabs(a->scale) * m[0];
        w[1][j] = fabs(a->scale) * m[1];
        sum += w[0][j];
    }
    if (a->phi != PK_PHI_SOFTMAX)
        return;
    for (int64_t j = 0; j < s->nk; j++) {
        w[0][j] = sum > 0 ? w[0][j] / sum : 0;
        w[1][j] = w[0][j];
        mean += w[0][j] * w[2][j];
    }
    for (int64_t j = 0; j < s->nk; j++) /* dS = A (dA - the row's mean of dA) */
        w[2][j] += mean;
}

static void add_row(struct case_data *c, const struct pk_attention_attr *a, int64_t head, int64_t i,
                    double *const w[3])
{
    const struct sizes *s = &c->s;
    int64_t h = head % s->h;
    double factor = c->scale ? fabs(c->scale[s->scales == 1 ? 0 : h]) : 1;
    const double *q = c->q + (head * s->nq + i) * s->d, *go = c->go + (head * s->nq + i) * s->d;
    double *o = c->yard[O] + (head * s->nq + i) * s->d, *dq = c->yard[DQ] + (head * s->nq + i) * s->d;

    for (int64_t j = 0; j < s->nk; j++) {
        int64_t at = (head * s->nk + j) * s->d;
        double ds = a->tau * factor * w[1][j] * w[2][j];

        for (int64_t e = 0; e < s->d; e++) {
            o[e] += factor * w[0][j] * fabs(c->v[at + e]);
            dq[e] += ds * fabs(c->k[at + e]);
            c->yard[DK][at + e] += ds * fabs(q[e]);
            c->yard[DV][at + e] += factor * w[0][j] * fabs(go[e]);
        }
        if (c->scale)
            c->yard[DSCALE][s->scales == 1 ? 0 : h] += w[0][j] * w[2][j];
    }
}

static void sum_up(struct gold *g, struct case_data *c, const struct pk_attention_attr *a, bool linear)
{
    double *w[3];

    for (int i = 0; i < 3; i++)
        w[i] = numbers(g, c->s.nk);
    for (int r = 0; r < RESULTS; r++)
        memset(c->yard[r], 0, (size_t)count_of(&c->s, r) * sizeof(double));
    for (int64_t head = 0; head < c->s.b * c->s.h; head++)
        for (int64_t i = 0; i < c->s.nq; i++) {
            row_weights(c, a, linear, head, i, w);
            add_row(c, a, head, i, w);
        }
}

static void compare(struct gold *g, const char *how, const struct case_data *c, double *const got[RESULTS],
                    double *const want[RESULTS])
{
    for (int r = 0; r < RESULTS - (c->scale == NULL); r++) {
        double worst = 0;
        int64_t at = 0;

        for (int64_t i = 0; i < count_of(&c->s, r); i++) {
            /* 1e-30: where all terms are 0, a product of bf16 may still be the smallest number there is */
            double e = fabs(got[r][i] - want[r][i]) / (ATTENTION * c->yard[r][i] + 1e-30);

            if (!(e <= worst)) {
                worst = isnan(e) ? INFINITY : e;
                at = i;
            }
        }
        g->compared++;
        g->worst = fmax(g->worst, worst);
        if (!(worst <= 1))
            gold_fail(g,
                      "%s%s (bf16): %.6g at %lld, of these numbers in f64 %.6g; %.3g were added up and may "
                      "be off by %.3g",
                      how, result_name[r], got[r][at], (long long)at, want[r][at], c->yard[r][at],
                      ATTENTION * c->yard[r][at]);
    }
}

void gold_attention_bf16(struct gold *g, const struct pk_attr *attr)
{
    struct case_data c = {0};
    struct pk_shape shape = {0}, keys = {0};
    double *want[RESULTS], *got[RESULTS];

    c.q = rounded_tensor(g, "q", &shape);
    c.k = rounded_tensor(g, "k", &keys);
    c.v = rounded_tensor(g, "v", &keys);
    c.go = rounded_tensor(g, "go", &shape);
    if (!c.q || !c.k || !c.v || !c.go)
        return;
    c.s = (struct sizes){shape.dim[0], shape.dim[1], shape.dim[2], keys.dim[2], shape.dim[3], 1};
    if (attr->attention.has_scale) {
        struct pk_shape heads = {0};

        c.scale = (double *)(uintptr_t)gold_tensor(g, "scale", &heads);
        c.s.scales = pk_shape_count(&heads);
        for (int64_t i = 0; c.scale && i < c.s.scales; i++)
            c.scale[i] = (double)(float)c.scale[i];
    }
    for (int r = 0; r < RESULTS; r++) {
        want[r] = numbers(g, count_of(&c.s, r));
        got[r] = numbers(g, count_of(&c.s, r));
        c.yard[r] = numbers(g, count_of(&c.s, r));
    }
    if (!attend(g, &c, *attr, PK_F64, false, want))
        return;
    for (int linear = 0; linear < 2; linear++) {
        struct pk_attr form = *attr;

        if (linear && pk_attention_not_linear(&attr->attention, c.s.nq, c.s.nk, 0))
            break;
        form.attention.form = linear ? PK_FORM_LINEAR : PK_FORM_QUADRATIC;
        sum_up(g, &c, &attr->attention, linear != 0);
        if (attend(g, &c, form, PK_BF16, false, got))
            compare(g, linear ? "linear " : "", &c, got, want);
        if (c.s.nq == c.s.nk && attend(g, &c, form, PK_BF16, true, got))
            compare(g, linear ? "linear packed " : "packed ", &c, got, want);
    }
}
