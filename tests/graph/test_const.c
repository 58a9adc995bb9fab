/* Constants: one for equal bytes, uploaded once by each exec that reads them, never bound, never written. */
#include "tests/graph/rig.h"

#include <stdlib.h>
#include <string.h>

#include "tests/reference/reference.h"

/* ---- a back end that counts what it is asked for, and whose memory is not the host's ---- */

static struct {
    int blocks, uploads;
    size_t bytes;
} asked;

static void *count_alloc(struct pk_backend *b, size_t bytes)
{
    asked.blocks++;
    return reference_backend()->alloc(b, bytes);
}

static void count_free(struct pk_backend *b, void *memory)
{
    asked.blocks--;
    reference_backend()->free(b, memory);
}

static enum pd_err count_upload(struct pk_backend *b, void *to, const void *from, size_t bytes,
                                struct pd_why *why)
{
    asked.uploads++;
    asked.bytes += bytes;
    return reference_backend()->upload(b, to, from, bytes, why);
}

static const struct pk_backend_api *counting(void)
{
    static struct pk_backend_api api;

    api = *reference_backend();
    api.host_memory = false;
    api.alloc = count_alloc;
    api.free = count_free;
    api.upload = count_upload;
    memset(&asked, 0, sizeof asked);
    return &api;
}

static void test_const_equal_ones_are_one(void **state)
{
    static const int32_t index[4] = {3, 0, 1, 2}, other[4] = {3, 0, 1, 1};
    struct pk_graph *g = pk_graph_new(false);
    int32_t mine[4];
    struct pk_val a;
    struct pd_why why;

    (void)state;
    memcpy(mine, index, sizeof mine);
    a = pk_const(g, PK_I32, PK_SHAPE(4), mine);
    mine[0] = 7; /* the graph has a copy */
    assert_int_equal(pk_const(g, PK_I32, PK_SHAPE(4), index).id, a.id);
    assert_int_not_equal(pk_const(g, PK_I32, PK_SHAPE(4), other).id, a.id);
    assert_int_not_equal(pk_const(g, PK_I32, PK_SHAPE(2, 2), index).id, a.id);
    assert_int_not_equal(pk_const(g, PK_F32, PK_SHAPE(4), index).id, a.id);
    assert_int_equal(pk_graph_leaf_count(g), 0);
    assert_int_equal(pk_graph_check(g, &why), PD_OK);
    pk_graph_free(g);
}

/* A bias from a table by a constant index, as windows have it: differences of the table's gradient. */
static void test_const_feeds_a_graph_that_is_differentiated(void **state)
{
    static const int32_t index[6] = {2, 0, 1, 2, 2, 0};
    static const double weight[6] = {0.5, -1, 2, 0.25, 3, -0.75};
    struct rig *r = rig_new(false);
    struct pk_val table = pk_param(r->g, "t", PK_F64, PK_SHAPE(3, 2)), d;
    struct pk_val y = pk_gather(r->g, table, pk_const(r->g, PK_I32, PK_SHAPE(6), index));
    struct pk_val w = pk_const(r->g, PK_F64, PK_SHAPE(6, 1), weight);
    struct pk_val f =
        pk_reshape(r->g, pk_sum(r->g, pk_mul(r->g, pk_mul(r->g, y, y), w), 3, false), PK_SHAPE(1));

    (void)state;
    pk_grad(r->g, f, PK_NONE, &table, 1, &d);
    pk_output(r->g, "f", f);
    pk_output(r->g, "d.t", d);
    pk_output(r->g, "index", pk_const(r->g, PK_I32, PK_SHAPE(6), index));
    rig_plan(r);
    assert_int_equal(pk_graph_leaf_count(r->g), 1); /* the rig binds the table alone */
    rig_check_gradient(r, "t", 1e-9);
    pk_exec_poison(r->exec, true);
    rig_check_gradient(r, "t", 1e-9);
    {
        int32_t got[6]; /* an output of the graph may be a constant */
        double sum = 0;

        rig_run(r);
        assert_int_equal(pk_exec_read(r->exec, "index", got, sizeof got, &r->why), PD_OK);
        assert_memory_equal(got, index, sizeof got);
        for (int i = 0; i < 6; i++)
            for (int k = 0; k < 2; k++)
                sum += weight[i] * rig_get(r, "t", index[i] * 2 + k) * rig_get(r, "t", index[i] * 2 + k);
        assert_true(sum - rig_scalar(r, "f") < 1e-12 && rig_scalar(r, "f") - sum < 1e-12);
    }
    rig_free(r);
}

static void test_const_is_uploaded_once_and_freed_with_the_exec(void **state)
{
    float table[300], unused[5] = {0};
    struct pk_plan_report report;
    struct pk_graph *g = pk_graph_new(false);
    struct pk_val x = pk_input(g, "x", PK_F32, PK_SHAPE(300));
    const struct pk_backend_api *api = counting();
    struct pk_backend *b = NULL;
    struct pk_exec *e = NULL;
    struct pd_why why = {""};
    float *memory, *y;
    int blocks;

    (void)state;
    for (int i = 0; i < 300; i++)
        table[i] = (float)i;
    assert_int_equal(api->open(NULL, 0, 1, &b, &why), PD_OK);
    pk_output(g, "y", pk_mul(g, x, pk_const(g, PK_F32, PK_SHAPE(300), table)));
    (void)pk_const(g, PK_F32, PK_SHAPE(5), unused);
    assert_int_equal(pk_exec_new(g, api, NULL, &e, &why), PD_OK); /* a forecast: nothing is uploaded */
    pk_exec_report(e, &report);
    assert_int_equal(report.const_bytes,
                     1280); /* of 1200, on whole boundaries; the unused one is not there */
    assert_int_equal(report.bytes[PK_CAT_INPUTS], 1200 + 1280);
    assert_int_equal(asked.blocks + asked.uploads, 0);
    pk_exec_free(e);
    assert_int_equal(pk_exec_new(g, api, b, &e, &why), PD_OK);
    pk_graph_free(g); /* the exec keeps nothing of it */
    memset(table, 0, sizeof table);
    assert_int_equal(asked.uploads, 1);
    assert_int_equal(asked.bytes, 1200);
    blocks = asked.blocks;
    memory = api->alloc(b, sizeof table);
    y = malloc(sizeof table);
    assert_non_null(y);
    for (int run = 1; run < 3; run++) {
        for (int i = 0; i < 300; i++)
            memory[i] = (float)run;
        assert_int_equal(pk_exec_bind(e, "x", memory, &why), PD_OK);
        assert_int_equal(pk_exec_run(e, &why), PD_OK);
        assert_int_equal(pk_exec_read(e, "y", y, sizeof table, &why), PD_OK);
        for (int i = 0; i < 300; i++)
            assert_true(y[i] == (float)(run * i));
    }
    assert_int_equal(asked.uploads, 1);
    api->free(b, memory);
    assert_int_equal(asked.blocks, blocks);
    pk_exec_free(e);
    assert_int_equal(asked.blocks, 0);
    free(y);
    api->close(b);
}

static void test_const_is_not_written_and_not_bound(void **state)
{
    static const float zero[2] = {0, 0};
    struct pk_graph *g = pk_graph_new(false);
    struct pk_val c = pk_const(g, PK_F32, PK_SHAPE(2), zero);
    struct pd_why why = {""};

    (void)state;
    pk_accumulate(g, c, pk_input(g, "x", PK_F32, PK_SHAPE(2)), pk_input(g, "first", PK_F32, PK_SHAPE(1)));
    assert_int_equal(pk_graph_check(g, &why), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "neither"));
    pk_graph_free(g);

    g = pk_graph_new(false);
    pk_working_copy(g, pk_param(g, "w", PK_F32, PK_SHAPE(2)), pk_const(g, PK_BF16, PK_SHAPE(2), zero));
    assert_int_equal(pk_graph_check(g, &why), PD_ERR_INVALID);
    pk_graph_free(g);

    g = pk_graph_new(false);
    (void)pk_const(g, PK_F32, PK_SHAPE(2, -1), zero);
    assert_int_equal(pk_graph_check(g, &why), PD_ERR_INVALID);
    assert_string_equal(why.text, "'a constant' has a negative extent");
    pk_graph_free(g);
}

/* No batch: what depends on constants and parameters alone keeps its bits in a mixed plan. */
static void see_type(void *user, const char *scope, bool backward, const struct pk_call *call)
{
    (void)backward;
    if (strcmp(scope, "table") == 0)
        for (int i = 0; i < call->n_out; i++)
            *(int *)user += call->out[i].dtype == PK_BF16 ? 100 : 1;
}

static void test_const_is_no_batch(void **state)
{
    static float table[8 * 8];

    (void)state;
    for (int fed = 0; fed < 2; fed++) {
        struct pk_graph *g = pk_graph_new(false);
        struct pk_exec *e = NULL;
        struct pd_why why = {""};
        struct pk_val t =
            fed ? pk_input(g, "t", PK_F32, PK_SHAPE(8, 8)) : pk_const(g, PK_F32, PK_SHAPE(8, 8), table);
        int seen = 0;

        pk_graph_scope(g, "table");
        t = pk_scale(g, t, 3);
        pk_graph_scope(g, "");
        pk_output(g, "y", pk_matmul(g, pk_input(g, "x", PK_F32, PK_SHAPE(4, 8)), t));
        pk_graph_precision(g, PK_PRECISION_MIXED);
        if (pk_exec_new(g, NULL, NULL, &e, &why) != PD_OK)
            fail_msg("%s", why.text);
        pk_exec_each(e, see_type, &seen);
        assert_int_equal(seen, fed ? 100 : 1);
        pk_exec_free(e);
        pk_graph_free(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_const_equal_ones_are_one),
        cmocka_unit_test(test_const_feeds_a_graph_that_is_differentiated),
        cmocka_unit_test(test_const_is_uploaded_once_and_freed_with_the_exec),
        cmocka_unit_test(test_const_is_not_written_and_not_bound),
        cmocka_unit_test(test_const_is_no_batch),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
