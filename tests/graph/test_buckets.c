/* Sums over ranks as nodes: what goes into a bucket, in which order buckets run, and that none is left out.
 */
#include "tests/graph/rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS 6

struct seen {
    const struct pk_backend_api *real;
    int64_t count[64];
    int32_t root[64];
    enum pk_op op[64];
    int n, broadcasts;
};
static struct seen seen;

/* The reference, looking over its shoulder. */
static enum pd_err watch(struct pk_backend *b, const struct pk_call *calls, size_t n, struct pd_why *why)
{
    for (size_t i = 0; i < n; i++)
        if (calls[i].op == PK_OP_ALL_REDUCE || calls[i].op == PK_OP_BROADCAST_RANKS) {
            assert_true(seen.n < 64);
            assert_true(pk_view_is_dense(&calls[i].in[0]));
            seen.op[seen.n] = calls[i].op;
            seen.root[seen.n] = calls[i].attr->ranks.root;
            seen.count[seen.n++] = pk_shape_count(&calls[i].in[0].shape);
        }
    return seen.real->run(b, calls, n, why);
}

static struct pk_backend_api watching(void)
{
    struct pk_backend_api api = *rig_backend();

    memset(&seen, 0, sizeof seen);
    seen.real = rig_backend();
    api.run = watch;
    return api;
}

/* y = w5 tanh(w4 tanh(.. w0 x)); the gradients of w, through buckets or not. */
static struct rig *network(const struct pk_backend_api *api, size_t bucket, const int32_t *owner, bool use)
{
    struct rig *r = rig_new_on(api, 1, false);
    struct pk_val x = pk_input(r->g, "x", PK_F32, PK_SHAPE(3, 7)), w[LAYERS], grad[LAYERS];

    for (int i = 0; i < LAYERS; i++) {
        char name[8];

        snprintf(name, sizeof name, "w%d", i);
        w[i] = pk_param(r->g, name, PK_F32, PK_SHAPE(7, 7));
        x = pk_unary(r->g, PK_EX_TANH, pk_matmul(r->g, x, w[i]));
    }
    pk_grad(r->g, pk_reshape(r->g, pk_sum(r->g, x, 3, false), PK_SHAPE(1)), PK_NONE, w, LAYERS, grad);
    if (bucket)
        pk_all_reduce_buckets(r->g, grad, owner, LAYERS, bucket, grad);
    for (int i = 0; i < LAYERS && use; i++) {
        char name[8];

        snprintf(name, sizeof name, "g%d", i);
        pk_output(r->g, name, grad[i]);
    }
    if (!use)
        pk_output(r->g, "y", x);
    rig_plan(r);
    rig_run(r);
    return r;
}

static void same_gradients(struct rig *a, struct rig *b)
{
    for (int i = 0; i < LAYERS; i++) {
        char name[8];
        double *x, *y;
        int64_t n, m;

        snprintf(name, sizeof name, "g%d", i);
        x = rig_read(a, name, &n);
        y = rig_read(b, name, &m);
        assert_int_equal(n, m);
        assert_memory_equal(x, y, (size_t)n * sizeof *x);
        free(x);
        free(y);
    }
}

/* 49 numbers of each layer begin on multiples of 64: the last of a bucket is not padded. */
static void test_gradients_go_through_buckets_unchanged(void **state)
{
    static const size_t sizes[] = {1, 2 * 49 * 4, 3 * 49 * 4, 1 << 20};
    static const int buckets[] = {6, 3, 2, 1};
    static const int64_t counts[] = {49, 64 + 49, 128 + 49, 5 * 64 + 49};
    struct rig *plain = network(rig_backend(), 0, NULL, true);

    (void)state;
    for (int k = 0; k < 4; k++) {
        struct pk_backend_api api = watching();
        struct rig *r = network(&api, sizes[k], NULL, true);

        same_gradients(plain, r);
        assert_int_equal(seen.n, buckets[k]);
        for (int i = 0; i < seen.n; i++) {
            assert_int_equal(seen.count[i], counts[k]);
            assert_int_equal(seen.root[i], -1);
        }
        rig_free(r);
    }
    rig_free(plain);
}

static void test_a_bucket_has_one_owner(void **state)
{
    static const int32_t owner[LAYERS] = {0, 1, 1, 0, 2, 0};
    struct pk_backend_api api = watching();
    struct rig *plain = network(rig_backend(), 0, NULL, true), *r = network(&api, 2 * 49 * 4, owner, true);

    (void)state;
    same_gradients(plain, r);
    /* known in the order 5, 4, 3, 2, 1, 0: {5, 3} of 0, {2, 1} of 1, and what is left: 4 of 2, 0 of 0 */
    assert_int_equal(seen.n, 4);
    assert_int_equal(seen.root[0], 0);
    assert_int_equal(seen.count[0], 64 + 49);
    assert_int_equal(seen.root[1], 1);
    assert_int_equal(seen.count[1], 64 + 49);
    assert_int_equal(seen.root[2], 2);
    assert_int_equal(seen.root[3], 0);
    rig_free(r);
    rig_free(plain);
}

/* A rank that does not need a sum still has to be there. */
static void test_sums_that_nobody_reads_are_not_dead(void **state)
{
    struct pk_backend_api api = watching();
    struct rig *r = network(&api, 1, NULL, false);

    (void)state;
    assert_int_equal(seen.n, LAYERS);
    rig_free(r);
}

static void test_meetings_keep_the_order_of_building(void **state)
{
    struct pk_backend_api api = watching();
    struct rig *r = rig_new_on(&api, 1, false);
    struct pk_val big = pk_param(r->g, "big", PK_F32, PK_SHAPE(5000)),
                  small = pk_param(r->g, "small", PK_F32, PK_SHAPE(2));
    struct pk_val a = pk_all_reduce(r->g, pk_scale(r->g, big, 2), -1), b = pk_all_reduce(r->g, small, 1);
    struct pk_val c = pk_all_reduce(r->g, pk_sum(r->g, a, 1, true), -1), d = pk_all_reduce(r->g, small, 1);

    (void)state;
    pk_broadcast_ranks(r->g, big, 3);
    pk_output(r->g, "c", c);
    pk_output(r->g, "b", b);
    pk_output(r->g, "d", d);
    rig_plan(r);
    rig_run(r);
    assert_int_equal(seen.n, 5); /* the equal two are not made one */
    assert_int_equal(seen.count[0], 5000);
    assert_int_equal(seen.count[1], 2);
    assert_int_equal(seen.count[2], 1);
    assert_int_equal(seen.count[3], 2);
    assert_int_equal(seen.op[4], PK_OP_BROADCAST_RANKS);
    assert_int_equal(seen.root[4], 3);
    rig_free(r);
}

static void test_what_cannot_be_summed_is_refused(void **state)
{
    struct rig *r = rig_new(false);

    (void)state;
    (void)pk_all_reduce(r->g, pk_input(r->g, "x", PK_U8, PK_SHAPE(2)), -1);
    assert_int_equal(pk_graph_check(r->g, &r->why), PD_ERR_INVALID);
    assert_non_null(strstr(r->why.text, "bytes"));
    rig_free(r);
    r = rig_new(false);
    pk_broadcast_ranks(r->g, pk_param(r->g, "x", PK_F32, PK_SHAPE(2)), -1);
    assert_int_equal(pk_graph_check(r->g, &r->why), PD_ERR_INVALID);
    rig_free(r);
    r = rig_new(false);
    pk_broadcast_ranks(r->g, pk_fill(r->g, PK_F32, PK_SHAPE(2), 1), 0);
    assert_int_equal(pk_graph_check(r->g, &r->why), PD_ERR_INVALID);
    rig_free(r);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients_go_through_buckets_unchanged),
        cmocka_unit_test(test_a_bucket_has_one_owner),
        cmocka_unit_test(test_sums_that_nobody_reads_are_not_dead),
        cmocka_unit_test(test_meetings_keep_the_order_of_building),
        cmocka_unit_test(test_what_cannot_be_summed_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
