/* Regions that mixed precision never narrows: coordinates above 256, which bf16 rounds to even pixels and
 * worse, come out whole, and so do their derivatives, whatever stands around them. */
#include "tests/graph/rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/graph/passes/passes.h"
#include "kernels/graph/plan.h"

#define BOXES 24
#define CORNERS 4

/* Whole pixels from 257 to 1333; odd ones among them. */
static double corner(int64_t i)
{
    return (double)(257 + i * 131 % 1077);
}

static struct rig *start(struct pk_val *ret_boxes)
{
    struct rig *r = rig_new_on(pk_backend_cpu(), 1, false);

    *ret_boxes = pk_input(r->g, "boxes", PK_F32, PK_SHAPE(BOXES, CORNERS));
    pk_graph_precision(r->g, PK_PRECISION_MIXED);
    return r;
}

static void run(struct rig *r)
{
    rig_plan(r);
    for (int64_t i = 0; i < BOXES * CORNERS; i++)
        rig_put(r, "boxes", i, corner(i));
    rig_run(r);
}

/* What an output has, freed by the caller. */
static double *read_all(struct rig *r, const char *output, int64_t want)
{
    int64_t n;
    double *x = rig_read(r, output, &n);

    assert_int_equal(n, want);
    return x;
}

static struct pk_val one(struct pk_graph *g, struct pk_val x)
{
    return pk_reshape(g, pk_sum(g, x, 3, false), PK_SHAPE(1));
}

/* boxes + 1, gathered, beside themselves, added up over corners: s (BOXES), and d of sum s^2 by the boxes. */
static void chain(struct rig *r, struct pk_val boxes, const int32_t *index)
{
    struct pk_val both[2] = {pk_offset(r->g, boxes, 1)}, s, d;

    both[1] = pk_gather(r->g, both[0], pk_const(r->g, PK_I32, PK_SHAPE(BOXES), index));
    s = pk_sum(r->g, pk_concat(r->g, 1, both, 2), 2, true);
    pk_output(r->g, "s", s);
    pk_grad(r->g, one(r->g, pk_mul(r->g, s, s)), PK_NONE, &boxes, 1, &d);
    pk_output(r->g, "d", d);
}

static void test_exact_boxes_keep_their_pixels(void **state)
{
    int32_t index[BOXES];

    (void)state;
    for (int i = 0; i < BOXES; i++)
        index[i] = (i * 5 + 3) % BOXES; /* each once */
    for (int exact = 0; exact < 2; exact++) {
        double *s, *d, want[BOXES] = {0}, off = 0;
        struct pk_val boxes;
        struct rig *r = start(&boxes);

        pk_graph_exact(r->g, exact);
        chain(r, boxes, index);
        pk_graph_exact(r->g, false);
        run(r);
        s = read_all(r, "s", BOXES);
        d = read_all(r, "d", BOXES * CORNERS);
        for (int i = 0; i < BOXES; i++)
            for (int k = 0; k < CORNERS; k++)
                want[i] += corner(i * CORNERS + k) + 1 + corner(index[i] * CORNERS + k) + 1;
        for (int i = 0; i < BOXES; i++) {
            off += fabs(s[i] - want[i]);
            for (int k = 0; k < CORNERS; k++) /* once in its own sum, once where it is gathered */
                off += fabs(d[index[i] * CORNERS + k] - 2 * (want[index[i]] + want[i]));
        }
        if (exact)
            assert_true(off == 0);
        else
            assert_true(off > 1); /* what the region is for */
        free(s);
        free(d);
        rig_free(r);
    }
}

/* Derivatives that come later, and sums of them. */
static void test_exact_holds_for_derivatives_emitted_outside(void **state)
{
    struct pk_val boxes, s, d;
    struct rig *r = start(&boxes);
    double *got;

    (void)state;
    pk_graph_exact(r->g, true);
    s = pk_add(r->g, one(r->g, pk_mul(r->g, boxes, boxes)), one(r->g, pk_scale(r->g, boxes, 3)));
    pk_graph_exact(r->g, false);
    pk_grad(r->g, s, PK_NONE, &boxes, 1, &d);
    pk_output(r->g, "d", pk_sum(r->g, d, 2, true)); /* reads d, and wants no f32 */
    run(r);
    got = read_all(r, "d", BOXES);
    for (int i = 0; i < BOXES; i++) {
        double want = 0;

        for (int k = 0; k < CORNERS; k++)
            want += 2 * corner(i * CORNERS + k) + 3;
        assert_true(got[i] == want);
    }
    free(got);
    rig_free(r);
}

/* Nodes on either side of the region that passes would join: small numbers, made of large ones inside. */
static struct pk_val product_of_boxes(struct pk_graph *g, struct pk_val boxes)
{
    static const float mix[CORNERS * CORNERS] = {-1, 0, 1, 0, 0, -1, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0};

    return pk_matmul(g, boxes, pk_const(g, PK_F32, PK_SHAPE(CORNERS, CORNERS), mix));
}

/* A product in the region, what is added to it outside. */
static struct pk_val before_a_bias(struct pk_graph *g, struct pk_val boxes)
{
    static const float least[CORNERS] = {0, 0, -260, -261};
    struct pk_val y;

    pk_graph_exact(g, true);
    y = product_of_boxes(g, boxes);
    pk_graph_exact(g, false);
    return pk_add(g, y, pk_const(g, PK_F32, PK_SHAPE(CORNERS), least));
}

/* What only the region reads is not narrowed: by a reader that could do with less, .. */
static struct pk_val only_inside(struct pk_graph *g, struct pk_val boxes)
{
    struct pk_val v = pk_concat(g, 1, (struct pk_val[2]){boxes, boxes}, 2);

    pk_graph_exact(g, true);
    v = pk_sum(g, v, 2, true);
    pk_graph_exact(g, false);
    return v;
}

/* .. nor for one behind the region: small numbers, the remainders of large ones. */
static struct pk_val in_a_chain(struct pk_graph *g, struct pk_val boxes)
{
    float large[BOXES * CORNERS];
    struct pk_val half = pk_slice(g, boxes, 1, 0, 2), v = pk_concat(g, 1, (struct pk_val[2]){half, half}, 2);

    for (int64_t i = 0; i < BOXES; i++)
        for (int k = 0; k < CORNERS; k++)
            large[i * CORNERS + k] = (float)(corner(i * CORNERS + k % 2) - (double)(i % 7));
    pk_graph_exact(g, true);
    v = pk_sub(g, v, pk_const(g, PK_F32, PK_SHAPE(BOXES, CORNERS), large));
    pk_graph_exact(g, false);
    return pk_sum(g, pk_scale(g, v, 2), 2, true);
}

/* An activation in the region, of a product outside that others read as well. */
static struct pk_val an_activation(struct pk_graph *g, struct pk_val boxes)
{
    static const float some[CORNERS] = {1, 0, 0, 0};
    static float none[BOXES];
    struct pk_val sum;
    struct pk_val y =
        pk_matmul(g, pk_const(g, PK_F32, PK_SHAPE(BOXES, 1), none), pk_slice(g, boxes, 0, 0, 1));

    /* products of nothing, and then one: bf16 has both */
    y = pk_matmul(g,
                  pk_broadcast(g, pk_const(g, PK_F32, PK_SHAPE(1, CORNERS), some), PK_SHAPE(BOXES, CORNERS)),
                  pk_concat(g, 0,
                            (struct pk_val[2]){pk_offset(g, pk_slice(g, y, 0, 0, 1), 1),
                                               pk_slice(g, y, 0, 1, CORNERS - 1)},
                            2));
    pk_output(g, "outside", pk_sum(g, y, 3, false));
    pk_graph_exact(g, true);
    y = pk_gelu(g, y, true);
    sum = pk_sum(g, y, 2, true);
    pk_graph_exact(g, false);
    pk_output(g, "too", pk_sum(g, y, 3, false));
    return sum;
}

/* A sum in the region over rows that a product outside has as its operand. */
static struct pk_val beside_a_product(struct pk_graph *g, struct pk_val boxes)
{
    struct pk_val v, sum;

    pk_graph_exact(g, true);
    v = pk_offset(g, boxes, 1);
    sum = pk_sum(g, v, 1, true);
    pk_graph_exact(g, false);
    pk_output(g, "outside", pk_matmul(g, pk_transpose(g, v), boxes));
    return sum;
}

/* The same number, inside and out. */
static struct pk_val shared(struct pk_graph *g, struct pk_val boxes)
{
    struct pk_val outside = pk_offset(g, boxes, 1), inside;

    pk_graph_exact(g, true);
    inside = pk_offset(g, boxes, 1);
    inside = pk_copy(g, pk_transpose(g, inside));
    pk_graph_exact(g, false);
    return pk_sub(g, pk_transpose(g, inside), pk_add(g, pk_scale(g, pk_sum(g, outside, 2, true), 0), boxes));
}

/* Two ways to say one expression, which fusing makes equal. */
static struct pk_val said_twice(struct pk_graph *g, struct pk_val boxes)
{
    struct pk_expr p = {.count = 5};
    struct pk_val outside, inside;

    p.code[0].op = PK_EX_IN;
    p.code[1].op = p.code[3].op = PK_EX_CONST;
    p.code[1].imm = 1;
    p.code[2].op = PK_EX_ADD;
    p.code[3].imm = 3;
    p.code[4].op = PK_EX_MUL;
    outside = pk_expr_emit(g, &p, &boxes, 1);
    pk_graph_exact(g, true);
    inside = pk_scale(g, pk_offset(g, boxes, 1), 3);
    pk_graph_exact(g, false);
    pk_output(g, "outside", pk_sum(g, outside, 3, false));
    return pk_sum(g, inside, 2, true);
}

static double box_of(int64_t i, int k)
{
    return corner(i * CORNERS + k);
}

static double bias_value(int64_t i, int k)
{
    return k == 0   ? box_of(i, 2) - box_of(i, 0)
           : k == 1 ? box_of(i, 3) - box_of(i, 1)
           : k == 2 ? box_of(i, 0) - 260
                    : box_of(i, 1) - 261;
}

static double inside_value(int64_t i, int k)
{
    (void)k;
    return 2 * (box_of(i, 0) + box_of(i, 1) + box_of(i, 2) + box_of(i, 3));
}

static double chain_value(int64_t i, int k)
{
    (void)k;
    return CORNERS * 2.0 * (double)(i % 7);
}

static double activation_value(int64_t i, int k)
{
    (void)i;
    (void)k;
    return CORNERS * (double)0.841191990f; /* GELU(1), by tanh */
}

static double column_value(int64_t i, int k)
{
    double sum = BOXES;

    (void)i;
    for (int64_t row = 0; row < BOXES; row++)
        sum += box_of(row, k);
    return sum;
}

static double shared_value(int64_t i, int k)
{
    (void)i;
    (void)k;
    return 1;
}

static double said_value(int64_t i, int k)
{
    (void)k;
    return 3 * (box_of(i, 0) + box_of(i, 1) + box_of(i, 2) + box_of(i, 3) + 4);
}

static void test_exact_nodes_are_not_joined_with_others(void **state)
{
    static const struct {
        const char *name;
        struct pk_val (*make)(struct pk_graph *g, struct pk_val boxes);
        double (*value)(int64_t i, int k);
        int rows, columns;
    } cases[] = {{"a bias", before_a_bias, bias_value, BOXES, CORNERS},
                 {"only inside", only_inside, inside_value, BOXES, 1},
                 {"a chain", in_a_chain, chain_value, BOXES, 1},
                 {"an activation", an_activation, activation_value, BOXES, 1},
                 {"a sum beside a product", beside_a_product, column_value, 1, CORNERS},
                 {"a shared value", shared, shared_value, BOXES, CORNERS},
                 {"one expression twice", said_twice, said_value, BOXES, 1}};

    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct pk_val boxes;
        struct rig *r = start(&boxes);
        double *got;

        pk_output(r->g, "y", cases[c].make(r->g, boxes));
        run(r);
        got = read_all(r, "y", cases[c].rows * cases[c].columns);
        for (int64_t i = 0; i < cases[c].rows; i++)
            for (int k = 0; k < cases[c].columns; k++)
                if (!(fabs(got[i * cases[c].columns + k] - cases[c].value(i, k)) <= 1e-5))
                    fail_msg("%s: (%lld, %d) is %g, not %g", cases[c].name, (long long)i, k,
                             got[i * cases[c].columns + k], cases[c].value(i, k));
        free(got);
        rig_free(r);
    }
}

/* ---- every kind of node ---- */

/* All of what the region computes is f32; casts for it widen. Counts kernels inside, and narrow values. */
static void judge(const struct pk_graph *g, int off, int *ret_exact, int *ret_half)
{
    *ret_exact = *ret_half = 0;
    for (uint32_t i = 1; i < g->n_node; i++) {
        const struct pk_node *n = &g->node[i];
        bool half = false;

        if (!pk_is_kernel(n))
            continue;
        for (int32_t k = 0; k < n->n_out; k++) {
            half = half || g->value[n->out + (uint32_t)k].dtype == PK_BF16;
            *ret_half += g->value[n->out + (uint32_t)k].dtype == PK_BF16;
        }
        for (int32_t k = 0; k < n->n_in && n->op != PK_OP_COPY; k++)
            half = half || g->value[n->in[k]].dtype == PK_BF16;
        *ret_exact += n->exact;
        /* sums of what flows back from either side, and casts, may be of no region */
        if (!n->exact && strcmp(n->scope, "exact") == 0 && n->op != PK_OP_EXPR && n->op != PK_OP_COPY &&
            !(n->op == PK_OP_MATMUL && n->attr->matmul.has_residual))
            fail_msg("without pass %d: %s has left the region", off, pk_op_name(n->op));
        if (n->exact && half)
            fail_msg("without pass %d: %s of the region sees bf16", off, pk_op_name(n->op));
    }
}

/* x (4, 6, 16) through products, norms, attention, softmax; the shapes stay. */
static struct pk_val block(struct pk_graph *g, struct pk_val x, const char *scope, bool exact)
{
    const struct pk_norm_spec norm = {PK_NORM_LAYER, PK_EPS_MEAN, 1e-5};
    const struct pk_attention_spec attention = {.phi = PK_PHI_SOFTMAX, .scale = 1};
    struct pk_val w[3], gain, bias, h;
    const char *const name[3] = {"qkv", "up", "down"};
    const struct pk_shape shape[3] = {PK_SHAPE(16, 48), PK_SHAPE(16, 32), PK_SHAPE(32, 16)};
    char text[32];

    for (int i = 0; i < 3; i++) {
        snprintf(text, sizeof text, "%s.%s", scope, name[i]);
        w[i] = pk_param(g, text, PK_F32, shape[i]);
    }
    snprintf(text, sizeof text, "%s.gain", scope);
    gain = pk_param(g, text, PK_F32, PK_SHAPE(16));
    snprintf(text, sizeof text, "%s.bias", scope);
    bias = pk_param(g, text, PK_F32, PK_SHAPE(32));
    pk_graph_scope(g, scope);
    pk_graph_exact(g, exact);
    h = pk_matmul(g, pk_norm(g, x, gain, PK_NONE, norm), w[0]);
    h = pk_attention_packed(g, pk_reshape(g, h, PK_SHAPE(4, 6, 3, 2, 8)), attention);
    x = pk_add(g, x, pk_reshape(g, h, PK_SHAPE(4, 6, 16)));
    h = pk_gelu(g, pk_linear(g, pk_norm(g, x, gain, PK_NONE, norm), w[1], false, bias), true);
    x = pk_add(g, pk_softmax(g, x), pk_matmul(g, h, w[2]));
    pk_graph_exact(g, false);
    pk_graph_scope(g, "");
    return x;
}

static void test_exact_no_node_of_the_region_sees_bf16(void **state)
{
    static const int32_t target[24] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5};

    (void)state;
    for (int off = -1; off == -1 || pk_passes_name((size_t)off); off++) {
        struct pk_graph *g = pk_graph_new(false);
        struct pk_val x = pk_input(g, "x", PK_F32, PK_SHAPE(4, 6, 16)), y, loss, wrt[20], d[20];
        struct pd_why why = {""};
        size_t n = 0;
        int exact, half;
        bool any;

        x = block(g, x, "before", false);
        y = block(g, x, "exact", true);
        /* what the region reads goes past it, too */
        y = pk_add(g, y, pk_matmul(g, x, pk_param(g, "past", PK_F32, PK_SHAPE(16, 16))));
        y = block(g, y, "behind", false);
        pk_graph_scope(g, "exact");
        pk_graph_exact(g, true);
        loss = pk_cross_entropy(g, pk_reshape(g, y, PK_SHAPE(24, 16)),
                                pk_const(g, PK_I32, PK_SHAPE(24), target), 0, -1)
                   .loss_sum;
        pk_graph_exact(g, false);
        pk_graph_scope(g, "");
        y = pk_add(g, loss, pk_reshape(g, pk_sum(g, pk_mul(g, y, y), 7, false), PK_SHAPE(1)));
        for (size_t i = 0; i < g->n_leaf; i++)
            wrt[n++].id = g->leaf[i].value;
        assert_true(n <= sizeof wrt / sizeof *wrt);
        pk_grad(g, y, PK_NONE, wrt, n, d);
        for (size_t i = 0; i < n; i++)
            pk_output(g, g->leaf[i].name, d[i]);
        pk_graph_precision(g, PK_PRECISION_MIXED);
        if (off >= 0)
            g->passes.off = 1u << off;
        assert_int_equal(pk_passes_run(g, &why), PD_OK);
        judge(g, off, &exact, &half);
        assert_true(exact > 10);
        if (off < 0 || strcmp(pk_passes_name((size_t)off), "narrow") != 0)
            assert_true(half > 10);
        assert_int_equal(pk_passes_again(g, &any, &why), PD_OK);
        judge(g, off, &exact, &half);
        pk_graph_free(g);
    }
}

/* The derivative of the largest looks for its place among more than bf16 can count, .. */
static void test_exact_is_the_place_of_the_largest(void **state)
{
    struct rig *r = rig_new_on(pk_backend_cpu(), 1, false);
    struct pk_val x = pk_input(r->g, "x", PK_F32, PK_SHAPE(2, 600)), top, d;
    double *got;
    int64_t n;

    (void)state;
    top = pk_maximum_flow(r->g, pk_concat(r->g, 0, (struct pk_val[2]){x, x}, 2), 2, true);
    pk_grad(r->g, top, PK_NONE, &x, 1, &d);
    pk_output(r->g, "d", pk_sum(r->g, pk_copy(r->g, pk_transpose(r->g, d)), 2, true));
    pk_graph_precision(r->g, PK_PRECISION_MIXED);
    rig_plan(r);
    for (int64_t i = 0; i < 1200; i++)
        rig_put(r, "x", i, i == 301 || i == 400 || i == 600 + 511 ? 2 : (double)(i % 5) / 4);
    rig_run(r);
    got = rig_read(r, "d", &n);
    assert_int_equal(n, 600);
    for (int64_t i = 0; i < n; i++)
        assert_true(got[i] == (i == 301 || i == 511 ? 2 : 0));
    free(got);
    rig_free(r);
}

/* Whether anything that `value` is made of belongs to the backward part. */
static bool from_backward(const struct pk_graph *g, uint32_t value)
{
    const struct pk_node *n = &g->node[g->value[value].node];
    bool any = n->backward;

    for (int32_t i = 0; i < n->n_in && !any; i++)
        any = from_backward(g, n->in[i]);
    return any;
}

/* .. and among the numbers that the largest was taken of, not those that the backward part makes again. */
static void test_exact_places_are_those_of_the_forward_part(void **state)
{
    struct pk_graph *g = pk_graph_new(false);
    struct pk_val x = pk_input(g, "x", PK_F32, PK_SHAPE(64, 256)),
                  w = pk_param(g, "w", PK_F32, PK_SHAPE(256, 256));
    struct pk_val gain = pk_param(g, "gain", PK_F32, PK_SHAPE(256)), y, d[2];
    struct pd_why why = {""};
    int found = 0, again = 0;
    bool any;

    (void)state;
    y = pk_norm(g, pk_matmul(g, x, w), gain, PK_NONE, (struct pk_norm_spec){PK_NORM_RMS, PK_EPS_MEAN, 1e-5});
    y = pk_mul(g, pk_matmul(g, y, w), pk_maximum_flow(g, y, 2, true));
    pk_grad(g, pk_sum(g, y, 3, false), PK_NONE, (struct pk_val[2]){w, gain}, 2, d);
    pk_output(g, "dw", d[0]);
    pk_output(g, "dgain", d[1]);
    assert_int_equal(pk_passes_run(g, &why), PD_OK);
    assert_int_equal(pk_passes_again(g, &any, &why), PD_OK);
    for (uint32_t i = 1; i < g->n_node; i++) {
        if (!pk_is_kernel(&g->node[i]))
            continue;
        again += g->node[i].op == PK_OP_NORM_BWD && g->node[i].attr->norm.again;
        found += g->node[i].op == PK_OP_MAX;
        if (g->node[i].op == PK_OP_MAX)
            assert_false(from_backward(g, g->node[i].out));
    }
    assert_int_equal(found, 2);
    assert_int_equal(again, 1); /* it was made again, for others */
    pk_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_boxes_keep_their_pixels),
        cmocka_unit_test(test_exact_holds_for_derivatives_emitted_outside),
        cmocka_unit_test(test_exact_nodes_are_not_joined_with_others),
        cmocka_unit_test(test_exact_no_node_of_the_region_sees_bf16),
        cmocka_unit_test(test_exact_is_the_place_of_the_largest),
        cmocka_unit_test(test_exact_places_are_those_of_the_forward_part),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
