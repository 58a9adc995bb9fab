/* Every activation of attention, with masks, lengths, biases and scales: first and second derivatives against
 * central differences in f64, fused and plain (M11). */
#include "tests/ops/grad.h"

static struct pk_attention_spec spec_of(enum pk_phi phi, int p, bool causal)
{
    return (struct pk_attention_spec){.phi = phi, .degree = p, .scale = 0.7, .causal = causal};
}

MAKE(make_attention_softmax)
{
    struct pk_val q = P("q", 2, 2, 3, 4), k = P("k", 2, 2, 5, 4);

    return pk_attention(g, q, k, P("v", 2, 2, 5, 4), spec_of(PK_PHI_SOFTMAX, 0, false));
}
MAKE(make_attention_causal)
{
    struct pk_attention_spec s = spec_of(PK_PHI_SOFTMAX, 0, true);

    s.scale = 1.0;
    return pk_attention_packed(g, P("qkv", 2, 4, 3, 2, 3), s);
}
MAKE(make_attention_cubic)
{
    struct pk_attention_spec s = spec_of(PK_PHI_POLY, 3, true);
    struct pk_val qkv = P("qkv", 2, 4, 3, 2, 3);

    s.scale_value = P("c", 2);
    s.mask = pk_input(g, "mask", PK_U8, PK_SHAPE(2, 4));
    return pk_attention_packed(g, qkv, s);
}
static void fill_mask(struct rig *r)
{
    const double m[8] = {1, 1, 0, 1, 0, 0, 1, 1};

    rig_set(r, "mask", m);
}
MAKE(make_attention_linear)
{
    struct pk_attention_spec s = spec_of(PK_PHI_POLY, 1, true);
    struct pk_val q = P("q", 2, 2, 3, 4), k = P("k", 2, 2, 5, 4), v = P("v", 2, 2, 5, 4);

    s.scale_value = P("c", 1);
    s.length = pk_input(g, "length", PK_I32, PK_SHAPE(2));
    return pk_attention(g, q, k, v, s);
}
static void fill_length(struct rig *r)
{
    const double l[2] = {5, 3};

    rig_set(r, "length", l);
}
MAKE(make_attention_masked_softmax)
{
    struct pk_attention_spec s = spec_of(PK_PHI_SOFTMAX, 0, true);

    s.mask = pk_input(g, "mask", PK_U8, PK_SHAPE(2, 4));
    return pk_attention_packed(g, P("qkv", 2, 4, 3, 2, 3), s);
}
MAKE(make_attention_sigmoid)
{
    struct pk_attention_spec s = spec_of(PK_PHI_SIGMOID, 0, false);

    s.bias = -1.5;
    return pk_attention_packed(g, P("qkv", 1, 4, 3, 2, 3), s);
}
MAKE(make_attention_relu)
{
    return pk_attention_packed(g, P("qkv", 1, 4, 3, 2, 3), spec_of(PK_PHI_RELU, 0, true));
}

static const struct build builds[] = {
    {"attention softmax", make_attention_softmax, NULL, true},
    {"attention causal", make_attention_causal, NULL, true},
    {"attention cubic", make_attention_cubic, fill_mask, true},
    {"attention linear", make_attention_linear, fill_length, true},
    {"attention softmax masked", make_attention_masked_softmax, fill_mask, true},
    {"attention sigmoid", make_attention_sigmoid, NULL, true},
    {"attention relu", make_attention_relu, NULL, true},
};

static void test_attention_grad_agrees_with_differences(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof builds / sizeof *builds; i++) {
        grad_check(&builds[i], false, false);
        grad_check(&builds[i], true, false);
    }
}

static void test_attention_second_grad_agrees_with_differences(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof builds / sizeof *builds; i++) {
        grad_check(&builds[i], true, true);
        grad_check(&builds[i], false, true);
    }
}

static void test_fused_attention_equals_plain_attention(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof builds / sizeof *builds; i++)
        grad_check_fused_is_plain(&builds[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_grad_agrees_with_differences),
        cmocka_unit_test(test_attention_second_grad_agrees_with_differences),
        cmocka_unit_test(test_fused_attention_equals_plain_attention),
    };

#ifdef TEST_ON_CPU
    rig_backend = pk_backend_cpu;
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}
