/* Attention through as many landmarks as tokens is ordinary attention: as the network computes it, and as the formula
 * F1 F2^+ F3 has it, where all three matrices are the same. */
#include <math.h>
#include <string.h>

#include "daemon/worker/model/net.h"
#include "tests/lib/worst.h"
#include "tests/model/rig.h"

enum { BATCH = 2, HEADS = 2, TOKENS = 16, WIDTH = 8, ROWS = BATCH * TOKENS * HEADS };
#define FACTOR 0.25

/* q, k, v (B, n, H, d), the mask (B, n) and attention by loops: softmax, or FACTOR z^3. */
struct numbers {
    double in[3][ROWS * WIDTH], out[ROWS * WIDTH];
    uint8_t mask[BATCH * TOKENS];
};

static size_t at(int b, int i, int h)
{
    return (size_t)((b * TOKENS + i) * HEADS + h) * WIDTH;
}

static void attend(struct numbers *x, bool softmax)
{
    for (int b = 0; b < BATCH; b++)
        for (int h = 0; h < HEADS; h++)
            for (int i = 0; i < TOKENS; i++) {
                double a[TOKENS], sum = 0;

                for (int j = 0; j < TOKENS; j++) {
                    double z = 0;

                    for (int c = 0; c < WIDTH; c++)
                        z += x->in[0][at(b, i, h) + c] * x->in[1][at(b, j, h) + c];
                    z /= sqrt(WIDTH);
                    a[j] = !x->mask[b * TOKENS + j] ? 0 : softmax ? exp(z) : FACTOR * z * z * z;
                    sum += a[j];
                }
                for (int c = 0; c < WIDTH; c++) {
                    double y = 0;

                    for (int j = 0; j < TOKENS; j++)
                        y += a[j] * x->in[2][at(b, j, h) + c];
                    x->out[at(b, i, h) + c] = softmax ? y / sum : y;
                }
            }
}

/* Numbers that look random and are always the same; masked: the last five tokens of the second sequence are padding. */
static void fill(struct numbers *x, bool masked)
{
    uint32_t state = 17;

    for (int t = 0; t < 3; t++)
        for (int i = 0; i < ROWS * WIDTH; i++) {
            state = state * 1664525u + 1013904223u;
            x->in[t][i] = (float)(3.0 * (state >> 8) / (1 << 24) - 1.5);
        }
    memset(x->mask, 1, sizeof x->mask);
    for (int i = TOKENS - 5; masked && i < TOKENS; i++) {
        x->mask[TOKENS + i] = 0;
        for (int h = 0; h < HEADS; h++) /* as the network has it, q, k and v of padding are 0 */
            for (int t = 0; t < 3; t++)
                memset(&x->in[t][at(1, i, h)], 0, WIDTH * sizeof(double));
    }
}

static struct pk_val heads_first(struct pk_graph *g, struct pk_val x)
{
    static const int32_t order[] = {0, 2, 1, 3};

    return pk_permute(g, x, order);
}

/* Y of the network, and of the formula with `steps` steps of the pseudo-inverse. */
static struct pk_graph *write_graph(const struct numbers *x, bool softmax, int steps)
{
    struct pk_graph *g = pk_graph_new(false);
    const struct pk_attention_spec all = {
        .phi = pk_phi_find(softmax ? "softmax" : "poly"), .degree = 3, .scale = 1};
    struct net_nystrom_spec s = {.landmarks = TOKENS, .iterations = steps, .attention = all};
    struct pk_val in[3], f, y;

    for (int t = 0; t < 3; t++)
        in[t] = pk_const(g, PK_F64, PK_SHAPE(BATCH, TOKENS, HEADS, WIDTH), x->in[t]);
    s.attention.mask = pk_const(g, PK_U8, PK_SHAPE(BATCH, TOKENS), x->mask);
    s.attention.scale = softmax ? 1 : FACTOR;
    pk_output(g, "own", pk_copy(g, net_nystrom(g, in[0], in[1], in[2], &s).y));
    /* Landmarks of one token each are the tokens: F1 = F2 = F3. */
    in[0] = heads_first(g, net_landmarks(g, in[0], TOKENS));
    in[1] = heads_first(g, net_landmarks(g, in[1], TOKENS));
    f = pk_scale(g, pk_matmul(g, in[0], pk_transpose(g, in[1])), 1 / sqrt(WIDTH));
    f = pk_attention_weights(g, f, all);
    y = pk_matmul(g, net_pseudo_inverse(g, f, MODEL_PINV_MATRIX_ABS, 1, steps),
                  pk_matmul(g, f, heads_first(g, in[2])));
    y = pk_scale(g, heads_first(g, pk_matmul(g, f, y)), s.attention.scale);
    pk_output(g, "formula", pk_copy(g, y));
    return g;
}

static double worst(struct pk_exec *e, const char *name, const double *want)
{
    double got[ROWS * WIDTH], most = 0;
    struct pd_why why;

    assert_int_equal(pk_exec_read(e, name, got, sizeof got, &why), PD_OK);
    for (int i = 0; i < ROWS * WIDTH; i++)
        most = worse(most, fabs(got[i] - want[i]) / fmax(1, fabs(want[i])));
    return most;
}

static void compare(bool softmax, bool masked, int steps)
{
    const struct pk_backend_api *api = pk_backend_cpu();
    struct pk_backend *b = NULL;
    static struct numbers x;
    struct pk_graph *g;
    struct pk_exec *e = NULL;
    struct pd_why why;
    double own, formula;

    fill(&x, masked);
    attend(&x, softmax);
    assert_int_equal(api->open(NULL, 0, 1, &b, &why), PD_OK);
    g = write_graph(&x, softmax, steps);
    assert_int_equal(pk_exec_new(g, api, b, &e, &why), PD_OK);
    assert_int_equal(pk_exec_run(e, &why), PD_OK);
    own = worst(e, "own", x.out);
    formula = worst(e, "formula", x.out);
    print_message("%s%s: the network %.1e off, the formula %.1e\n", softmax ? "softmax" : "x^3",
                  masked ? ", masked" : "", own, formula);
    assert_true(own < 1e-6);
    if (!masked || !softmax) /* rows of softmax beyond the mask would have to add up to 1 */
        assert_true(formula < 1e-6);
    pk_exec_free(e);
    pk_graph_free(g);
    api->close(b);
}

static void test_nystrom_with_a_landmark_for_each_token_is_attention(void **state)
{
    (void)state;
    compare(true, false, 60);
    compare(true, true, 60);
    compare(false, false, 60);
    compare(false, true, 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nystrom_with_a_landmark_for_each_token_is_attention),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
