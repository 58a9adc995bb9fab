/* The whole stack on the CPU back end: a small transformer trains step for step as on the reference, with
 * memory poisoned between lifetimes, and bitwise the same for any number of threads. */
#include "tests/graph/rig.h"

#include <math.h>
#include <string.h>

#include "tests/graph/net.h"
#include "tests/reference/reference.h"

static struct rig *start(const struct pk_backend_api *api, int threads, const struct net *n)
{
    const double hyper[4] = {0.02, 0.1, 0.01, 1}, gate[2] = {1, 1};
    struct rig *r = rig_new_on(api, threads, false);

    net_build(r->g, n);
    rig_plan(r);
    for (int64_t i = 0; i < n->batch * n->tokens; i++) {
        rig_put(r, "tokens", i, (double)(i * 7 % n->vocabulary));
        rig_put(r, "targets", i, (double)(i * 5 % n->vocabulary));
    }
    rig_set(r, "hyper", hyper);
    rig_set(r, "gate", gate);
    for (size_t i = 0; i < pk_graph_leaf_count(r->g); i++) {
        struct pk_leaf l = pk_graph_leaf(r->g, i);

        if (l.category == PK_CAT_MOMENT1 || l.category == PK_CAT_MOMENT2)
            memset(rig_leaf(r, l.name), 0, l.bytes);
    }
    return r;
}

static struct net small(enum pk_dtype dtype, int variant)
{
    struct net n = {.batch = 2,
                    .tokens = 17,
                    .width = 32,
                    .heads = 2,
                    .depth = 2,
                    .vocabulary = 29,
                    .dtype = dtype,
                    .train = true,
                    .attention = {.degree = 3, .scale = 0.25, .causal = true}};

    n.clip = variant & 1;
    n.separate = variant & 2;
    n.attention.phi = variant & 4 ? PK_PHI_SOFTMAX : PK_PHI_POLY;
    return n;
}

static void test_train_on_the_cpu_follows_the_reference(void **state)
{
    (void)state;
    for (int variant = 0; variant < 16; variant++) {
        bool f64 = variant & 8;
        struct net n = small(f64 ? PK_F64 : PK_F32, variant);
        struct rig *cpu = start(pk_backend_cpu(), 2, &n), *reference = start(reference_backend(), 1, &n);

        pk_exec_poison(cpu->exec, true);
        for (int step = 0; step < 3; step++) {
            double a, b, tolerance = f64 ? 1e-9 : 1e-3; /* AdamW divides by the size of each gradient */

            rig_run(cpu);
            rig_run(reference);
            a = rig_scalar(cpu, "loss");
            b = rig_scalar(reference, "loss");
            if (!(fabs(a - b) <= tolerance * fabs(b)))
                fail_msg("variant %d, step %d: %.12g on the CPU, %.12g on the reference", variant, step, a,
                         b);
        }
        rig_free(cpu);
        rig_free(reference);
    }
}

static void test_train_is_bitwise_the_same_for_any_number_of_threads(void **state)
{
    (void)state;
    for (int variant = 0; variant < 8; variant++) {
        struct net n = small(PK_F32, variant);
        struct rig *one = start(pk_backend_cpu(), 1, &n);

        for (int step = 0; step < 3; step++)
            rig_run(one);
        for (int threads = 2; threads <= 3; threads++) {
            struct rig *many = start(pk_backend_cpu(), threads, &n);

            for (int step = 0; step < 3; step++)
                rig_run(many);
            for (size_t i = 0; i < pk_graph_leaf_count(one->g); i++) {
                struct pk_leaf l = pk_graph_leaf(one->g, i);

                assert_memory_equal(rig_leaf(one, l.name), rig_leaf(many, l.name), l.bytes);
            }
            rig_free(many);
        }
        rig_free(one);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_train_on_the_cpu_follows_the_reference),
        cmocka_unit_test(test_train_is_bitwise_the_same_for_any_number_of_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
