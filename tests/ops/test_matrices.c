/* What diagnostics take of attention by primitives: the statistics of a part against the fused op where the part
 * is the whole, counts of an index, softmax over visible keys; what is refused. */
#include "tests/graph/rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { B = 2, H = 3, N = 7, D = 5, WIDTH = 4 };

static void put(struct rig *r, const char *name, int64_t n, uint32_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        rig_put(r, name, i, (double)(seed >> 8) / 8388608.0 - 1);
    }
}

static struct pk_val stat(const struct pk_attention_stats *s, int k)
{
    const struct pk_val all[] = {s->fro, s->jac_fro, s->jac_q_fro, s->logit_std, s->logit_max};

    return all[k];
}

static void test_statistics_of_the_whole_equal_the_fused_op(void **state)
{
    (void)state;
    for (int phi = 0; phi < (int)PK_PHIS; phi++)
        for (int form = 0; form < 4; form++) {
            struct rig *r = rig_new_on(pk_backend_cpu(), 1, false);
            const bool normalised = pk_phi_normalised((enum pk_phi)phi), causal = form & 1;
            struct pk_attention_spec spec = {.phi = (enum pk_phi)phi,
                                             .degree = 3,
                                             .scale = normalised ? 1 : 0.25,
                                             .bias = -0.3,
                                             .causal = causal};
            struct pk_val q, k, x;
            struct pk_attention_stats fused, part;
            char name[32];

            q = pk_input(r->g, "q", PK_F64, PK_SHAPE(B, H, N, D));
            k = pk_input(r->g, "k", PK_F64, PK_SHAPE(B, H, N, D));
            x = pk_input(r->g, "x", PK_F64, PK_SHAPE(B, N, WIDTH));
            if (form & 2)
                spec.length = pk_input(r->g, "length", PK_I32, PK_SHAPE(B));
            if (causal && !normalised)
                spec.row_power = 0.5;
            fused = pk_attention_stats(r->g, q, k, x, spec);
            part = pk_attention_stats_part(r->g, q, k, x, spec, 0);
            for (int s = 0; s < 5; s++) {
                snprintf(name, sizeof name, "fused%d", s);
                pk_output(r->g, name, stat(&fused, s));
                snprintf(name, sizeof name, "part%d", s);
                pk_output(r->g, name, stat(&part, s));
            }
            rig_plan(r);
            put(r, "q", B * H * N * D, 1);
            put(r, "k", B * H * N * D, 2);
            put(r, "x", B * N * WIDTH, 3);
            for (int b = 0; form & 2 && b < B; b++)
                rig_put(r, "length", b, N - b * 2);
            rig_run(r);
            for (int s = 0; s < 5; s++) {
                int64_t n;
                double *want, *got;

                snprintf(name, sizeof name, "fused%d", s);
                want = rig_read(r, name, &n);
                snprintf(name, sizeof name, "part%d", s);
                got = rig_read(r, name, &n);
                for (int64_t i = 0; i < n; i++)
                    if (!(fabs(got[i] - want[i]) <= 1e-10 * fmax(1, fabs(want[i]))))
                        fail_msg("%s, form %d, statistic %d of head %d: %.12g, the op says %.12g",
                                 pk_phi_name((enum pk_phi)phi), form, s, (int)i, got[i], want[i]);
                free(want);
                free(got);
            }
            rig_free(r);
        }
}

static void test_statistics_of_a_part_leave_out_its_rows_and_columns(void **state)
{
    struct rig *r = rig_new_on(pk_backend_cpu(), 1, false);
    struct pk_attention_spec spec = {.phi = PK_PHI_POLY, .degree = 2, .tau = 1, .scale = 0.5};
    struct pk_val q = pk_input(r->g, "q", PK_F64, PK_SHAPE(1, 1, 3, 1)),
                  k = pk_input(r->g, "k", PK_F64, PK_SHAPE(1, 1, 3, 1)),
                  x = pk_input(r->g, "x", PK_F64, PK_SHAPE(1, 3, 1));
    struct pk_attention_stats s = pk_attention_stats_part(r->g, q, k, x, spec, 1);
    /* logits of rows 2, 3 and columns 2, 3: q k = 2 4, 3 6 */
    const double want[5] = {0.5 * sqrt(4 * 4 + 16 * 16 + 9 * 9 + 36 * 36),
                            sqrt(2 * 2 + 4 * 4 + 3 * 3 + 6 * 6),
                            sqrt((2 * 2 * 1 + 4 * 4 * 4) * 25 + (3 * 3 * 1 + 6 * 6 * 4) * 36.0),
                            sqrt((3.0625 + 0.0625 + 0.5625 + 5.0625) / 4), 6};

    (void)state;
    for (int i = 0; i < 5; i++) {
        char name[8];

        snprintf(name, sizeof name, "s%d", i);
        pk_output(r->g, name, stat(&s, i));
    }
    rig_plan(r);
    for (int i = 0; i < 3; i++) {
        rig_put(r, "q", i, i + 1);
        rig_put(r, "k", i, i ? i : 9);
        rig_put(r, "x", i, i + 4);
    }
    rig_run(r);
    for (int i = 0; i < 5; i++) {
        char name[8];
        double *got;
        int64_t n;

        snprintf(name, sizeof name, "s%d", i);
        got = rig_read(r, name, &n);
        assert_int_equal(n, 1);
        assert_float_equal(got[0], want[i], 1e-12);
        free(got);
    }
    rig_free(r);
}

static void test_count_tells_how_often_each_stands_there(void **state)
{
    static const int32_t index[] = {2, 0, 2, 2, 4, 0};
    static const double want[] = {2, 0, 3, 0, 1};
    struct rig *r = rig_new_on(pk_backend_cpu(), 1, false);
    double *got;
    int64_t n;

    (void)state;
    pk_output(r->g, "n", pk_count(r->g, pk_input(r->g, "i", PK_I32, PK_SHAPE(2, 3)), 5, PK_F32));
    rig_plan(r);
    for (int i = 0; i < 6; i++)
        rig_put(r, "i", i, index[i]);
    rig_run(r);
    got = rig_read(r, "n", &n);
    assert_int_equal(n, 5);
    for (int i = 0; i < 5; i++)
        assert_true(got[i] == want[i]);
    free(got);
    rig_free(r);
}

static void refused(struct pk_attention_spec spec, int64_t skip, enum pd_err want, const char *text)
{
    struct pk_graph *g = pk_graph_new(false);
    struct pk_val q = pk_input(g, "q", PK_F64, PK_SHAPE(B, H, N, D)),
                  x = pk_input(g, "x", PK_F64, PK_SHAPE(B, N, 2));
    struct pd_why why;

    assert_int_equal(pk_attention_stats_part(g, q, q, x, spec, skip).fro.id, 0);
    assert_int_equal(pk_graph_check(g, &why), want);
    if (!strstr(why.text, text))
        fail_msg("'%s' does not say '%s'", why.text, text);
    pk_graph_free(g);
}

static void test_statistics_of_a_part_refuse_what_they_cannot_do(void **state)
{
    (void)state;
    refused((struct pk_attention_spec){.phi = PK_PHI_SOFTMAX, .scale = 1}, N, PD_ERR_INVALID,
            "leave out 7 of 7 tokens");
    refused((struct pk_attention_spec){.phi = PK_PHI_SOFTMAX, .scale = 2}, 1, PD_ERR_UNSUPPORTED,
            "with a scale");
    refused((struct pk_attention_spec){.phi = PK_PHI_POLY, .scale = 1}, 1, PD_ERR_INVALID,
            "degree must be at least 1");
    refused((struct pk_attention_spec){.phi = PK_PHI_SOFTMAX, .scale = 1, .row_power = 1}, 1, PD_ERR_INVALID,
            "power of the row's length");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statistics_of_the_whole_equal_the_fused_op),
        cmocka_unit_test(test_statistics_of_a_part_leave_out_its_rows_and_columns),
        cmocka_unit_test(test_count_tells_how_often_each_stands_there),
        cmocka_unit_test(test_statistics_of_a_part_refuse_what_they_cannot_do),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
