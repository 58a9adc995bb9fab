/* FORMULA and FORMULA_BWD on the CPU, of every formula of the gallery and of shifted.h, against its own lines of C:
 * y, and by complex steps dq, dk, the gradient of every scalar; dv from A. Whole, causal, padded and windowed; a few
 * queries against a cache; every level of instructions, f32 and f64, one thread and two. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/formula/formula.h"
#include "tests/backend/rig.h"
#include "tests/formula/gallery.h"
#include "tests/formula/shifted.h"

enum kind { WHOLE_ROWS, CAUSAL, PADDED, WINDOWS, CACHE, KINDS };

#define HEADS 3 /* as `heads` of the gallery; its `head` is the one that is compared */
#define BATCH 2
#define D 5

struct scene {
    const struct pk_formula_plan *plan;
    const struct pk_formula_param *name;
    const char *text;
    z (*f)(const struct row *, int);
    int names;
    enum kind kind;
    int nq, nk, length; /* length: keys in use, of CACHE */
    double *q, *k, *v, *dy;
    uint8_t *mask;
    double scalar[PK_FORMULA_PARAMS]; /* of the compared head */
};

static bool sees(const struct scene *s, int i, int j)
{
    switch (s->kind) {
    case CAUSAL:
        return j <= i;
    case PADDED:
        return s->mask[s->nk + j]; /* of batch 1 */
    case WINDOWS:
        return j <= i && s->mask[i * s->nk + j];
    case CACHE:
        return j <= i + s->length - s->nq;
    default:
        return true;
    }
}

/* Element of the compared batch and head. */
static double at(const double *x, int n, int row, int c)
{
    return x[(((int64_t)1 * HEADS + (int)head) * n + row) * D + c];
}

static void row_of(const struct scene *s, int i, struct row *r)
{
    memset(r, 0, sizeof *r);
    r->n = s->nk;
    r->i = s->kind == CACHE ? i + s->length - s->nq : i;
    for (int j = 0; j < s->nk; j++) {
        double dot = 0;

        for (int c = 0; c < D; c++)
            dot += at(s->q, s->nq, i, c) * at(s->k, s->nk, j, c);
        r->s[j] = dot / sqrt(D);
        r->seen[j] = sees(s, i, j);
        r->seen_keys += r->seen[j];
    }
    for (int p = 0; p < s->names; p++)
        *scalar(r, s->name[p].name) = s->scalar[p];
}

/* Gradient of A of the row, weighed, along what was moved. Its parts by the entry and by the row's sum may cancel: each is
 * about as large as the weighed row. */
static double along(const struct scene *s, const struct row *r, const double *w, double *size)
{
    double sum = 0;

    for (int j = 0; j < r->n; j++) {
        const z a = pick(r, j, s->f);
        const double d = cimag(a) / STEP;

        sum += w[j] * d;
        *size += fabs(w[j] * d) + fabs(w[j] * creal(a));
    }
    return sum;
}

static void compare(const struct scene *s, const char *what, double got, double want, double size, double eps)
{
    if (!(fabs(got - want) <= eps * (size + 1e-3)))
        fail_msg("'%s', kind %d, %d x %d: %s is %.9g, should be %.9g (of size %g)", s->text, (int)s->kind,
                 s->nq, s->nk, what, got, want, size);
}

static void put_at(struct pk_view *v, const double *x)
{
    for (int64_t i = 0; i < pk_shape_count(&v->shape); i++)
        rig_put(v, i, x[i]);
}

static void call(struct pk_backend *b, enum pk_op op, const struct pk_attr *attr, int n_in,
                 struct pk_view *in, int n_out, struct pk_view *out)
{
    const struct pk_backend_api *api = pk_backend_cpu();
    struct pk_call c = {.op = op, .attr = attr, .n_in = n_in, .n_out = n_out, .in = in, .out = out};
    struct rig_guarded work;
    struct pd_why why;

    assert_true(api->supports(b, &c));
    c.workspace_bytes = api->workspace_bytes(b, &c);
    work = rig_guarded_new(c.workspace_bytes);
    c.workspace = work.base + RIG_GUARD;
    for (int k = 0; k < n_out; k++)
        memset(out[k].data, 0xff, (size_t)pk_shape_count(&out[k].shape) * (out[k].dtype == PK_F32 ? 4 : 8));
    assert_int_equal(api->run(b, &c, 1, &why), PD_OK);
    rig_guarded_check(&work, gallery[0].text, "workspace");
    free(work.base);
}

static struct pk_view tensor(enum pk_dtype dtype, struct pk_shape shape, const double *x)
{
    struct pk_view v = pk_view_dense(rig_alloc((size_t)pk_shape_count(&shape) * 8 + 8), dtype, shape);

    if (x)
        put_at(&v, x);
    return v;
}

static double out_at(const struct pk_view *v, int64_t i)
{
    return rig_get(v->data, v->dtype, i);
}

static void run_case(struct scene *s, struct pk_backend *b, enum pk_dtype dtype)
{
    const struct pk_shape rows = PK_SHAPE(BATCH, HEADS, s->nq, D), keys = PK_SHAPE(BATCH, HEADS, s->nk, D);
    struct pk_attr attr;
    struct pk_view in[12], out[6], fwd[2];
    double scalars[PK_FORMULA_PARAMS * HEADS], eps = dtype == PK_F32 ? 4e-5 : 1e-11,
                                               want_s[PK_FORMULA_PARAMS] = {0},
                                               size_s[PK_FORMULA_PARAMS] = {0};
    const int sampled[] = {0, s->nk / 3, s->nk / 2, s->nk - 1};
    double want_k[4][D] = {{0}}, size_k[4] = {0}, *want_v = calloc((size_t)s->nk * D, sizeof(double)),
           *size_v = calloc((size_t)s->nk, sizeof(double));
    const int64_t base_k = ((int64_t)HEADS + (int)head) * s->nk,
                  base_q = ((int64_t)HEADS + (int)head) * s->nq;
    int32_t length = s->length;
    int n = 0, n_out = 0, kept = s->plan->rows + s->plan->shift;

    memset(&attr, 0, sizeof attr);
    attr.formula.plan = s->plan;
    attr.formula.n = n_scale;
    attr.formula.layers = 1;
    attr.attention.phi = PK_PHI_SIGMOID;
    attr.attention.scale = 1;
    attr.attention.tau = 1 / sqrt(D);
    attr.attention.causal = s->kind == CAUSAL || s->kind == CACHE || s->kind == WINDOWS;
    attr.attention.has_scale = s->names > 0;
    attr.attention.has_mask = s->mask != NULL;
    attr.attention.has_length = s->kind == CACHE;
    in[n++] = tensor(dtype, rows, s->q);
    in[n++] = tensor(dtype, keys, s->k);
    in[n++] = tensor(dtype, keys, s->v);
    for (int p = 0; p < s->names; p++)
        for (int h = 0; h < HEADS; h++)
            scalars[p * HEADS + h] = h == (int)head ? s->scalar[p] : 0.5;
    if (s->names)
        in[n++] = tensor(dtype, PK_SHAPE(s->names, HEADS), scalars);
    if (s->mask)
        in[n++] = pk_view_dense(s->mask, PK_U8,
                                s->kind == WINDOWS ? PK_SHAPE(1, s->nq, s->nk) : PK_SHAPE(BATCH, s->nk));
    if (s->kind == CACHE)
        in[n++] = pk_view_dense(&length, PK_I32, PK_SHAPE(1));
    fwd[0] = tensor(dtype, PK_SHAPE(BATCH, s->nq, HEADS, D), NULL);
    fwd[1] = tensor(dtype, PK_SHAPE(BATCH, HEADS, kept, s->nq), NULL);
    call(b, PK_OP_FORMULA, &attr, n, in, kept ? 2 : 1, fwd);

    in[n] = fwd[0];
    in[n + 1] = tensor(dtype, fwd[0].shape, s->dy);
    in[n + 2] = fwd[1];
    out[n_out++] = tensor(dtype, rows, NULL);
    out[n_out++] = tensor(dtype, keys, NULL);
    out[n_out++] = tensor(dtype, keys, NULL);
    if (s->names)
        out[n_out++] = tensor(dtype, PK_SHAPE(s->names, HEADS), NULL);
    call(b, PK_OP_FORMULA_BWD, &attr, n + 2 + (kept > 0), in, n_out, out);

    for (int i = 0; i < s->nq; i++) {
        static struct row r;
        double a[KEYS], w[KEYS], dy[D], any = 0;

        row_of(s, i, &r);
        for (int c = 0; c < D; c++) {
            dy[c] = s->dy[(((int64_t)s->nq + i) * HEADS + (int)head) * D + c];
            any += fabs(dy[c]);
        }
        if (any == 0 && s->nq > 8 && i % 16)
            continue;
        for (int j = 0; j < s->nk; j++) {
            a[j] = r.seen_keys ? creal(pick(&r, j, s->f)) : 0;
            w[j] = 0;
            for (int c = 0; c < D; c++) {
                w[j] += dy[c] * at(s->v, s->nk, j, c);
                want_v[j * D + c] += a[j] * dy[c];
                size_v[j] += fabs(a[j] * dy[c]);
            }
        }
        for (int c = 0; c < D; c++) {
            double y = 0, size = 0;

            for (int j = 0; j < s->nk; j++) {
                y += a[j] * at(s->v, s->nk, j, c);
                size += fabs(a[j] * at(s->v, s->nk, j, c));
            }
            compare(s, "y", out_at(&fwd[0], (((int64_t)s->nq + i) * HEADS + (int)head) * D + c), y, size,
                    eps);
        }
        if (any == 0 || !r.seen_keys) {
            for (int c = 0; c < D; c++)
                compare(s, "dq of no gradient", out_at(&out[0], (base_q + i) * D + c), 0, 0, eps);
            continue;
        }
        for (int c = 0; c < D; c += 2) {
            struct row moved = r;
            double size = 0, want;

            for (int j = 0; j < s->nk; j++)
                moved.s[j] += _Complex_I * STEP * at(s->k, s->nk, j, c) / sqrt(D);
            want = along(s, &moved, w, &size);
            compare(s, "dq", out_at(&out[0], (base_q + i) * D + c), want, size, eps);
        }
        for (int p = 0; p < s->names; p++) {
            struct row moved = r;

            *scalar(&moved, s->name[p].name) += _Complex_I * STEP;
            want_s[p] += along(s, &moved, w, &size_s[p]);
        }
        for (int k = 0; k < 4; k++) {
            struct row moved = r;
            double ds;

            moved.s[sampled[k]] += _Complex_I * STEP;
            ds = along(s, &moved, w, &size_k[k]);
            for (int c = 0; c < D; c++)
                want_k[k][c] += ds * at(s->q, s->nq, i, c) / sqrt(D);
        }
    }
    for (int k = 0; k < 4; k++)
        for (int c = 0; c < D; c++)
            compare(s, "dk", out_at(&out[1], (base_k + sampled[k]) * D + c), want_k[k][c], size_k[k], eps);
    for (int j = 0; j < s->nk; j++)
        for (int c = 0; c < D; c++)
            compare(s, "dv", out_at(&out[2], (base_k + j) * D + c), want_v[j * D + c], size_v[j], eps);
    /* Batch 0 flows nothing back: its dy is 0. */
    for (int p = 0; p < s->names; p++)
        compare(s, "a scalar's gradient", out_at(&out[3], p * HEADS + (int)head), want_s[p], size_s[p], eps);
    free(want_v);
    free(size_v);
}

static double noise_between(double lo, double hi)
{
    static uint64_t x = 88172645463325252ull;

    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return lo + (hi - lo) * ((double)(x >> 11) / 9007199254740992.0);
}

static double *noises(int64_t n, double spread)
{
    double *x = rig_alloc((size_t)n * sizeof *x);

    for (int64_t i = 0; i < n; i++)
        x[i] = (float)noise_between(-spread, spread); /* the same number in f32 and f64 */
    return x;
}

#define FORMULAS (GALLERY + SHIFTED)

static const char *text_of(int m)
{
    return m < GALLERY ? gallery[m].text : shifted[m - GALLERY].text;
}

static void check_formula(int m, enum kind kind, int nq, int nk, const char *level, int threads,
                          enum pk_dtype dtype)
{
    static const struct pk_formula_param params[] = {
        {"g", PK_RANGE_UNIT, 0}, {"b", PK_RANGE_POSITIVE, 0}, {"t", PK_RANGE_POSITIVE, 0}};
    static const char names[] = "abcgt";
    static const double values[] = {0.4, 0.3, 1.7, 0.9, 1.5};
    struct pk_formula_plan *plan = malloc(sizeof *plan);
    struct scene s = {.plan = plan, .kind = kind, .nq = nq, .nk = nk, .length = nk - 3};
    struct pk_backend *b = rig_backend(level, NULL, threads);
    struct pk_formula *f = NULL;
    struct pk_formula_fault fault;

    if (!b) {
        free(plan);
        return;
    }
    s.text = text_of(m);
    s.f = m < GALLERY ? gallery[m].f : shifted[m - GALLERY].f;
    assert_int_equal(
        pk_formula_parse(s.text, strlen(s.text), PK_FORMULA_ACTIVATION, true, params, 3, &f, &fault), PD_OK);
    assert_int_equal(pk_formula_plan(f, plan, NULL), PD_OK);
    s.names = pk_formula_params(f, &s.name);
    for (int p = 0; p < s.names; p++)
        s.scalar[p] = (float)values[strchr(names, s.name[p].name[0]) - names];
    s.q = noises((int64_t)BATCH * HEADS * nq * D, 1.5);
    s.k = noises((int64_t)BATCH * HEADS * nk * D, 1.5);
    s.v = noises((int64_t)BATCH * HEADS * nk * D, 1);
    s.dy = noises((int64_t)BATCH * HEADS * nq * D, 1);
    for (int i = 0; i < 2 * nq; i++) /* few rows have a gradient: the reference takes its time */
        if (i < nq || (i - nq != nq / 2 && i - nq != nq - 1 && i - nq))
            memset(s.dy + (int64_t)i * HEADS * D, 0, HEADS * D * sizeof *s.dy);
    if (kind == PADDED || kind == WINDOWS) {
        s.mask = rig_alloc((size_t)(nq + BATCH) * (size_t)nk);
        for (int i = 0; i < (kind == PADDED ? BATCH : nq); i++)
            for (int j = 0; j < nk; j++)
                s.mask[i * nk + j] =
                    kind == PADDED ? j % 3 != 2 : i - j < 5 && i - j > -5 && (i != 1 || nk == 1);
    }
    run_case(&s, b, dtype);
    pk_formula_free(f);
    free(plan);
    rig_reset(NULL);
}

static bool of_distance(int m)
{
    return strstr(text_of(m), "(i-j)") != NULL;
}

static void test_formula_kernels_match_the_papers(void **state)
{
    static const int lengths[] = {1, 2, 63, 64, 65};

    (void)state;
    for (int m = 0; m < FORMULAS; m++)
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
            for (enum kind kind = WHOLE_ROWS; kind < CACHE; kind++) {
                const int n = lengths[l];

                if (m >= GALLERY && n != 65)
                    continue;
                if (of_distance(m) && (kind == WHOLE_ROWS || kind == PADDED))
                    continue; /* keys behind the query: the logarithm of a negative distance */
                check_formula(m, kind, n, n, NULL, 1, PK_F32);
                if (n == 65 || n == 2)
                    check_formula(m, kind, n, n, NULL, 2, PK_F64);
            }
}

/* 1100 keys: blocks of one pass and of two passes both end before the last key. */
static void test_formula_kernels_match_over_blocks(void **state)
{
    (void)state;
    for (int m = 0; m < FORMULAS; m++) {
        check_formula(m, CAUSAL, 257, 257, NULL, 1, PK_F32);
        check_formula(m, CACHE, 70, 1100, NULL, 1, PK_F32);
    }
}

static void test_formula_kernels_match_at_every_level(void **state)
{
    (void)state;
    for (int m = 0; m < GALLERY; m++)
        for (size_t l = 0; l < 3; l++) {
            check_formula(m, CAUSAL, 20, 20, rig_levels[l], 1, PK_F32);
            check_formula(m, CAUSAL, 20, 20, rig_levels[l], 1, PK_F64);
        }
}

static void test_formula_kernels_decode(void **state)
{
    (void)state;
    for (int m = 0; m < FORMULAS; m++)
        for (int nq = 1; nq <= 5; nq += 2) /* 1 and 3 take the kernel of few queries, 5 tiles */
            check_formula(m, CACHE, nq, 70, NULL, 1, PK_F32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_formula_kernels_match_the_papers, rig_reset),
        cmocka_unit_test_teardown(test_formula_kernels_match_over_blocks, rig_reset),
        cmocka_unit_test_teardown(test_formula_kernels_match_at_every_level, rig_reset),
        cmocka_unit_test_teardown(test_formula_kernels_decode, rig_reset),
    };

    return cmocka_run_group_tests(tests, NULL, rig_close_all);
}
