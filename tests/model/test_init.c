/* Initial values as samples of their distributions: moments, bounds and the whole distribution; and the
 * spread of the logits that come of them (kernels/ATTENTION.md 8). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/worker/model/model.h"
#include "tests/lib/worst.h"

static struct model_spec base(const struct model_arch *arch, int32_t width)
{
    return (struct model_spec){.arch = arch,
                               .width = width,
                               .depth = 8,
                               .heads = width / 64,
                               .mlp_width = 4 * width,
                               .bias = true,
                               .final_norm = true,
                               .norm_eps = 1e-6,
                               .channels = 3,
                               .image_h = 64,
                               .image_w = 64,
                               .patch_h = 16,
                               .patch_w = 16,
                               .classes = arch == &model_gpt ? 0 : 10,
                               .vocab = 500,
                               .context = 64,
                               .pos = true,
                               .attention.degree = 1,
                               .attention.n_for_scale = 16,
                               .attention.scale_value = 1,
                               .attention.scale_lr_mult = 1,
                               .attention.init_logit_std = -1,
                               .dtype = PK_F64};
}

/* The initial values of a parameter, in f64; *ret_count of them. */
static double *drawn(const struct model_spec *s, const char *name, uint64_t seed, size_t *ret_count)
{
    struct model *m = NULL;
    struct pd_why why;
    double *x = NULL;

    assert_int_equal(model_new(s, &m, &why), PD_OK);
    for (size_t i = 0; i < model_param_count(m); i++)
        if (!strcmp(model_param(m, i)->name, name)) {
            *ret_count = (size_t)pk_shape_count(&model_param(m, i)->shape);
            x = malloc(*ret_count * sizeof *x);
            assert_non_null(x);
            assert_int_equal(model_param_init(m, i, seed, x, &why), PD_OK);
        }
    model_free(m);
    assert_non_null(x);
    return x;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double normal_cdf(double x)
{
    return 0.5 * erfc(-x / sqrt(2.0));
}

enum shape { NORMAL, CUT, UNIFORM };

/* Distribution function at x deviations; CUT: a normal one kept within two of its deviations. */
static double cdf(enum shape shape, double x)
{
    double tail = normal_cdf(-2);

    switch (shape) {
    case NORMAL:
        return normal_cdf(x);
    case CUT:
        return x < -2 ? 0 : x > 2 ? 1 : (normal_cdf(x) - tail) / (1 - 2 * tail);
    default:
        return x < -sqrt(3.0) ? 0 : x > sqrt(3.0) ? 1 : 0.5 + x / (2 * sqrt(3.0));
    }
}

/* Mean within four of its deviations, and the greatest distance of the distributions (Kolmogorov-Smirnov; a
 * sample of the right kind is beyond 1.95 / sqrt(n) once in a thousand times, and the seed is fixed). */
static void check_sample(const char *what, double *x, size_t n, enum shape shape, double deviation)
{
    double sum = 0, far = 0;

    for (size_t i = 0; i < n; i++)
        sum += x[i];
    if (!(fabs(sum / (double)n) <= 4 * deviation / sqrt((double)n)))
        fail_msg("%s: mean %g of %zu", what, sum / (double)n, n);
    qsort(x, n, sizeof *x, ascending);
    for (size_t i = 0; i < n; i++) {
        double want = cdf(shape, x[i] / deviation);

        far = worse(far, fabs(want - (double)i / (double)n));
        far = worse(far, fabs(want - (double)(i + 1) / (double)n));
    }
    if (!(far <= 1.95 / sqrt((double)n)))
        fail_msg("%s: distance %g of the distributions, %zu samples", what, far, n);
}

static void check_param(struct model_spec s, const char *name, enum shape shape, double deviation)
{
    size_t n;
    double *x = drawn(&s, name, 11, &n);

    check_sample(name, x, n, shape, deviation);
    free(x);
}

static void test_each_initialiser_draws_what_it_says(void **state)
{
    struct model_spec s = base(&model_vit, 192);

    (void)state;
    s.init = MODEL_INIT_TRUNC_NORMAL; /* timm: 0.02, cut at +-2, which is nowhere */
    check_param(s, "blocks.0.attn.qkv.weight", NORMAL, 0.02);
    check_param(s, "blocks.3.attn.proj.weight", NORMAL, 0.02);
    check_param(s, "blocks.3.mlp.fc2.weight", NORMAL, 0.02);
    check_param(s, "patch_embed.proj.weight", NORMAL, 0.02);
    check_param(s, "pos_embed", NORMAL, 0.02);
    s.init = MODEL_INIT_XAVIER; /* uniform in +-sqrt(6 / (in + out)): deviation sqrt(2 / (in + out)) */
    check_param(s, "blocks.0.attn.proj.weight", UNIFORM, sqrt(2.0 / (192 + 192)));
    check_param(s, "blocks.0.attn.qkv.weight", UNIFORM, sqrt(2.0 / (192 + 192)));
    check_param(s, "blocks.0.mlp.fc1.weight", UNIFORM, sqrt(2.0 / (192 + 768)));
    check_param(s, "blocks.0.mlp.fc2.weight", UNIFORM, sqrt(2.0 / (192 + 768)));
    check_param(s, "patch_embed.proj.weight", UNIFORM, sqrt(2.0 / (768 + 192)));
    check_param(s, "head.weight", UNIFORM, sqrt(2.0 / (192 + 10)));
    s.init_fused = true; /* the matrix as it lies: 192 -> 576 */
    check_param(s, "blocks.0.attn.qkv.weight", UNIFORM, sqrt(2.0 / (192 + 576)));
    check_param(s, "blocks.0.attn.proj.weight", UNIFORM, sqrt(2.0 / (192 + 192)));
    s.init = MODEL_INIT_TRUNC_XAVIER;
    check_param(s, "blocks.0.attn.qkv.weight", CUT, sqrt(2.0 / (192 + 576)));
    s.init_fused = false;
    check_param(s, "blocks.0.attn.qkv.weight", CUT, sqrt(2.0 / (192 + 192)));
    check_param(s, "blocks.5.mlp.fc1.weight", CUT, sqrt(2.0 / (192 + 768)));
    s = base(&model_gpt, 192);
    s.init = MODEL_INIT_NORMAL; /* nanoGPT: projections into the residual stream by 1 / sqrt(2 L) */
    check_param(s, "transformer.wte.weight", NORMAL, 0.02);
    check_param(s, "transformer.h.0.attn.c_attn.weight", NORMAL, 0.02);
    check_param(s, "transformer.h.7.attn.c_proj.weight", NORMAL, 0.02 / 4);
    check_param(s, "transformer.h.7.mlp.c_proj.weight", NORMAL, 0.02 / 4);
    check_param(s, "transformer.h.7.mlp.c_fc.weight", NORMAL, 0.02);
}

static void test_what_is_not_drawn_starts_as_it_must(void **state)
{
    static const struct {
        const char *name;
        double value;
    } fixed[] = {{"blocks.0.norm1.weight", 1},
                 {"blocks.0.norm1.bias", 0},
                 {"blocks.0.attn.q_norm.weight", 1},
                 {"blocks.0.mid1.weight", 1},
                 {"norm_pre.weight", 1},
                 {"blocks.0.attn.qkv.bias", 0},
                 {"head.bias", 0},
                 {"patch_embed.proj.bias", 0}};
    struct model_spec s = base(&model_vit, 64);

    (void)state;
    s.placement = MODEL_S4;
    s.attention.qk_norm = true;
    for (int init = MODEL_INIT_TRUNC_NORMAL; init <= MODEL_INIT_TRUNC_XAVIER; init++)
        for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) {
            size_t n;
            double *x;

            s.init = (enum model_init)init;
            x = drawn(&s, fixed[i].name, 3, &n);
            for (size_t k = 0; k < n; k++)
                assert_true(x[k] == fixed[i].value);
            free(x);
        }
}

static void test_seeds_and_names_draw_apart(void **state)
{
    static const char *const names[] = {"blocks.0.attn.proj.weight", "blocks.1.attn.proj.weight"};
    struct model_spec s = base(&model_vit, 64);
    double *x[3], dot[3] = {0};
    size_t n;

    (void)state;
    x[0] = drawn(&s, names[0], 1, &n);
    x[1] = drawn(&s, names[1], 1, &n);
    x[2] = drawn(&s, names[0], 2, &n);
    for (size_t i = 0; i < n; i++) {
        dot[0] += x[0][i] * x[1][i];
        dot[1] += x[0][i] * x[2][i];
        dot[2] += i ? x[0][i] * x[0][i - 1] : 0;
    }
    for (int i = 0; i < 3; i++) /* no more alike than strangers: 4 / sqrt(4096) */
        assert_true(fabs(dot[i]) / (double)n < 4 * 0.02 * 0.02 / sqrt((double)n));
    for (int i = 0; i < 3; i++)
        free(x[i]);
}

/* The deviation of q k / sqrt(d) over rows of unit variance, from W_Q and W_K themselves. */
static double logit_deviation(const struct model_spec *s)
{
    enum { ROWS = 40 };
    const int64_t d = s->width, head = d / s->heads;
    const bool gpt = s->arch == &model_gpt;
    size_t n;
    double *w = drawn(s, gpt ? "transformer.h.0.attn.c_attn.weight" : "blocks.0.attn.qkv.weight", 5, &n);
    double *x = calloc((size_t)(ROWS * d), sizeof *x), *qk = calloc((size_t)(ROWS * 2 * d), sizeof *qk);
    double sum = 0;
    uint64_t seed = 9;
    int64_t count = 0;

    assert_true(x && qk);
    for (int64_t i = 0; i < ROWS * d; i++) { /* twelve uniforms: unit variance */
        for (int k = 0; k < 12; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            x[i] += (double)(seed >> 40) * 0x1p-24 - 0.5;
        }
    }
    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t j = 0; j < 2 * d; j++)
            for (int64_t k = 0; k < d; k++)
                qk[r * 2 * d + j] += x[r * d + k] * (gpt ? w[k * 3 * d + j] : w[j * d + k]);
    for (int64_t h = 0; h < s->heads; h++)
        for (int64_t a = 0; a < ROWS; a++)
            for (int64_t b = 0; b < ROWS; b++) {
                double logit = 0;

                if (a == b)
                    continue; /* a row with itself: another mean */
                for (int64_t k = 0; k < head; k++)
                    logit += qk[a * 2 * d + h * head + k] * qk[b * 2 * d + d + h * head + k];
                sum += logit * logit / (double)head;
                count++;
            }
    free(w);
    free(x);
    free(qk);
    return sqrt(sum / (double)count);
}

static void check_logits(struct model_spec s, double want)
{
    double got = logit_deviation(&s);

    if (!(fabs(got - want) <= 0.08 * want))
        fail_msg("width %d, initialiser %d: logits deviate by %g, expected %g", s.width, (int)s.init, got,
                 want);
}

static void test_logits_start_with_the_spread_of_the_theory(void **state)
{
    struct model_spec s = base(&model_vit, 192);

    (void)state;
    check_logits(s, 0.0768); /* sigma^2 D */
    s.init = MODEL_INIT_XAVIER;
    check_logits(s, 1);
    s.init_fused = true;
    check_logits(s, 0.5);
    s.init_fused = false;
    s.init = MODEL_INIT_TRUNC_XAVIER;
    check_logits(s, 0.7737); /* two deviations hold 0.8796^2 of the variance */
    s.attention.init_logit_std = 0.6;
    check_logits(s, 0.6);
    s.init = MODEL_INIT_TRUNC_NORMAL;
    s.attention.init_logit_std = 2;
    check_logits(s, 2);
    s = base(&model_gpt, 384);
    s.init = MODEL_INIT_NORMAL;
    check_logits(s, 0.1536);
    s.attention.init_logit_std = 0.637; /* where the scaled cube meets softmax's ceiling */
    check_logits(s, 0.637);
}

/* A value that the scalar's form does not allow is the document's fault, not the memory's. */
static void test_a_scalar_without_initial_value_is_named(void **state)
{
    struct model_spec s = base(&model_vit, 128); /* two heads */
    struct model_formula *f = &s.attention.formula;
    struct model *m = NULL;
    struct pd_why why = {""};

    (void)state;
    s.attention.phi = pk_phi_find("sigmoid");
    snprintf(f->text, sizeof f->text, "a*s^3");
    f->scalars = 1;
    f->scalar[0] = (struct model_scalar){
        .name = "a", .init = "1-h", .share = MODEL_SHARE_LAYER, .form = MODEL_SCALAR_LOG};
    assert_int_equal(model_new(&s, &m, &why), PD_OK);
    m = model_free(m);
    f->scalar[0].share = MODEL_SHARE_HEAD;
    assert_int_equal(model_new(&s, &m, &why), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "#/attention/params/a/init"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_initialiser_draws_what_it_says),
        cmocka_unit_test(test_what_is_not_drawn_starts_as_it_must),
        cmocka_unit_test(test_seeds_and_names_draw_apart),
        cmocka_unit_test(test_logits_start_with_the_spread_of_the_theory),
        cmocka_unit_test(test_a_scalar_without_initial_value_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
