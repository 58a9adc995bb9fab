/* Decoding with a state of constant size: a prompt and then single tokens give what attention over the whole
 * sequence gives; what is refused. */
#include "tests/graph/rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { B = 2, H = 2, T = 150, D = 16, PROMPT = 131 };

/* One graph for n new tokens: inputs q, k, v, position, length; state. */
static struct rig *step_graph(int degree, int64_t n)
{
    struct rig *r = rig_new_on(pk_backend_cpu(), 2, false);
    struct pk_val q = pk_input(r->g, "q", PK_F32, PK_SHAPE(B, H, n, D));
    struct pk_val k = pk_input(r->g, "k", PK_F32, PK_SHAPE(B, H, n, D));
    struct pk_val v = pk_input(r->g, "v", PK_F32, PK_SHAPE(B, H, n, D));
    struct pk_val s =
        pk_state(r->g, "state", PK_F32, PK_SHAPE(B, H, pk_attention_features(degree, D), D), PK_CAT_CACHE);
    struct pk_val position = pk_input(r->g, "position", PK_I32, PK_SHAPE(B));
    struct pk_attention_spec spec = {.phi = PK_PHI_POLY,
                                     .degree = degree,
                                     .scale = 0.25,
                                     .scale_value = pk_param(r->g, "c", PK_F32, PK_SHAPE(H)),
                                     .length = pk_input(r->g, "length", PK_I32, PK_SHAPE(B))};

    pk_output(r->g, "y", pk_attention_state(r->g, q, k, v, s, position, spec));
    rig_plan(r);
    return r;
}

/* Copies tokens from .. from+n-1 of (B, H, T, D). */
static void feed(struct rig *r, const char *name, const double *all, int from, int n)
{
    for (int i = 0; i < B * H; i++)
        for (int t = 0; t < n; t++)
            for (int c = 0; c < D; c++)
                rig_put(r, name, (i * n + t) * D + c, all[(i * T + from + t) * D + c]);
}

static void test_state_equals_attention_over_the_whole(void **state)
{
    static const char *const name[3] = {"q", "k", "v"};

    (void)state;
    for (int degree = 1; degree <= 2; degree++) {
        struct rig *whole = rig_new_on(pk_backend_cpu(), 2, false), *prompt = step_graph(degree, PROMPT + 5),
                   *one = step_graph(degree, 1);
        struct pk_attention_spec spec = {.phi = PK_PHI_POLY,
                                         .degree = degree,
                                         .scale = 0.25,
                                         .causal = true,
                                         .form = PK_FORM_QUADRATIC,
                                         .scale_value = pk_param(whole->g, "c", PK_F32, PK_SHAPE(H))};
        struct pk_val in[3];
        double *x[3], *want, *got, most = 0;
        int64_t n;

        for (int i = 0; i < 3; i++)
            in[i] = pk_input(whole->g, name[i], PK_F32, PK_SHAPE(B, H, T, D));
        pk_output(whole->g, "y", pk_attention(whole->g, in[0], in[1], in[2], spec));
        rig_plan(whole);
        for (int i = 0; i < 3; i++) {
            x[i] = malloc(sizeof(double) * B * H * T * D);
            assert_non_null(x[i]);
            for (int e = 0; e < B * H * T * D; e++)
                x[i][e] = rig_get(whole, name[i], e);
        }
        for (int h = 0; h < H; h++)
            rig_put(whole, "c", h, h ? -1.5 : 0.5);
        rig_run(whole);
        want = rig_read(whole, "y", &n);
        for (int64_t i = 0; i < n; i++)
            most = fmax(most, fabs(want[i]));
        /* The prompt's bucket is longer than the prompt; what the state held before does not matter. */
        for (int i = 0; i < 3; i++)
            feed(prompt, name[i], x[i], 0, PROMPT + 5);
        for (int h = 0; h < H; h++) {
            rig_put(prompt, "c", h, h ? -1.5 : 0.5);
            rig_put(one, "c", h, h ? -1.5 : 0.5);
        }
        for (int b = 0; b < B; b++) {
            rig_put(prompt, "position", b, 0);
            rig_put(prompt, "length", b, PROMPT);
        }
        rig_run(prompt);
        got = rig_read(prompt, "y", &n);
        for (int b = 0; b < B; b++)
            for (int i = 0; i < (PROMPT + 5) * H * D; i++) {
                double w = i < PROMPT * H * D ? want[b * T * H * D + i] : 0;

                if (!(fabs(got[b * (PROMPT + 5) * H * D + i] - w) <= 3e-5 * most))
                    fail_msg("degree %d: prompt, %d: %g instead of %g", degree, i,
                             got[b * (PROMPT + 5) * H * D + i], w);
            }
        free(got);
        memcpy(rig_leaf(one, "state"), rig_leaf(prompt, "state"),
               sizeof(float) * (size_t)(B * H * pk_attention_features(degree, D) * D));
        for (int t = PROMPT; t < T; t++) {
            for (int i = 0; i < 3; i++)
                feed(one, name[i], x[i], t, 1);
            for (int b = 0; b < B; b++) {
                rig_put(one, "position", b, t);
                rig_put(one, "length", b, t + 1);
            }
            rig_run(one);
            got = rig_read(one, "y", &n);
            for (int b = 0; b < B; b++)
                for (int i = 0; i < H * D; i++)
                    if (!(fabs(got[b * H * D + i] - want[(b * T + t) * H * D + i]) <= 3e-5 * most))
                        fail_msg("degree %d, token %d: %g instead of %g", degree, t, got[b * H * D + i],
                                 want[(b * T + t) * H * D + i]);
            free(got);
        }
        free(want);
        for (int i = 0; i < 3; i++)
            free(x[i]);
        rig_free(whole);
        rig_free(prompt);
        rig_free(one);
    }
}

static void refused(int degree, enum pk_phi phi, int64_t rows, bool leaf, double bias, const char *says)
{
    struct rig *r = rig_new(false);
    struct pk_val x = pk_input(r->g, "x", PK_F32, PK_SHAPE(1, 1, 1, 4));
    struct pk_val s = pk_state(r->g, "state", PK_F32, PK_SHAPE(1, 1, rows, 4), PK_CAT_CACHE);
    struct pk_val at = pk_input(r->g, "at", PK_I32, PK_SHAPE(1));

    pk_attention_state(
        r->g, x, x, x, leaf ? s : pk_scale(r->g, s, 2.0), at,
        (struct pk_attention_spec){.phi = phi, .degree = degree, .scale = 1, .bias = bias, .length = at});
    assert_int_not_equal(pk_graph_check(r->g, &r->why), PD_OK);
    if (!strstr(r->why.text, says))
        fail_msg("'%s' does not say '%s'", r->why.text, says);
    rig_free(r);
}

static void test_state_refuses_what_has_none(void **state)
{
    (void)state;
    refused(3, PK_PHI_POLY, 10, true, 0, "x^1 or x^2");
    refused(1, PK_PHI_SOFTMAX, 4, true, 0, "x^1 or x^2");
    refused(2, PK_PHI_POLY, 4, true, 0, "(B, H, F, d)");
    refused(1, PK_PHI_POLY, 4, false, 0, "param or state");
    refused(1, PK_PHI_POLY, 4, true, 1, "no bias");
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_state_equals_attention_over_the_whole),
        cmocka_unit_test(test_state_refuses_what_has_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
