/* Plans that share an arena: what it weighs, whose values it holds, and what happens when it grows or cannot. */
#include <string.h>

#include "tests/graph/rig.h"

/* Two plans, of 4 rows and of 64, that read the same x (rows, 8): y = (2 x) (x / 2)'. */
struct pair {
    struct rig *r; /* its back end and the memory; its graph is not used */
    struct pk_arena *arena;
    struct pk_graph *g[2];
    struct pk_exec *e[2];
    float *x;
};

static void write(struct pair *p, int i)
{
    struct pk_val x;

    p->g[i] = pk_graph_new(false);
    assert_non_null(p->g[i]);
    x = pk_input(p->g[i], "x", PK_F32, PK_SHAPE(i ? 64 : 4, 8));
    pk_output(
        p->g[i], "y",
        pk_matmul(p->g[i], pk_scale(p->g[i], x, 2.0), pk_transpose(p->g[i], pk_scale(p->g[i], x, 0.5))));
}

static void plan(struct pair *p, int i, const struct pk_backend_api *api, struct pk_backend *b)
{
    if (pk_exec_new_in(p->g[i], api, b, p->arena, &p->e[i], &p->r->why) != PD_OK)
        fail_msg("%s", p->r->why.text);
    if (b)
        assert_int_equal(pk_exec_bind(p->e[i], "x", p->x, &p->r->why), PD_OK);
}

static struct pair begin(void)
{
    struct pair p = {.r = rig_new(false), .arena = pk_arena_new()};

    assert_non_null(p.arena);
    p.r->memory[0] = p.x = p.r->api->alloc(p.r->backend, 64 * 8 * sizeof *p.x);
    assert_non_null(p.x);
    for (int i = 0; i < 64 * 8; i++)
        p.x[i] = (float)(i % 13) - 6;
    write(&p, 0);
    write(&p, 1);
    return p;
}

static void end(struct pair *p)
{
    for (int i = 0; i < 2; i++) {
        pk_exec_free(p->e[i]);
        pk_graph_free(p->g[i]);
    }
    pk_arena_free(p->arena);
    rig_free(p->r);
}

static void run(struct pair *p, int i)
{
    int rows = i ? 64 : 4;
    static float y[64 * 64];

    if (pk_exec_run(p->e[i], &p->r->why) != PD_OK)
        fail_msg("%s", p->r->why.text);
    assert_int_equal(pk_exec_read(p->e[i], "y", y, (size_t)(rows * rows) * sizeof *y, &p->r->why), PD_OK);
    for (int a = 0; a < rows; a++)
        for (int b = 0; b < rows; b++) {
            float want = 0;

            for (int k = 0; k < 8; k++)
                want += p->x[a * 8 + k] * p->x[b * 8 + k];
            assert_true(y[a * rows + b] == want); /* whole numbers: exact in any order */
        }
}

static size_t own_bytes(const struct pair *p, int i)
{
    struct pk_plan_report report;

    pk_exec_report(p->e[i], &report);
    return report.arena_bytes;
}

static void test_arena_is_as_large_as_its_largest_plan(void **state)
{
    struct pair p = begin();

    (void)state;
    assert_int_equal(pk_arena_bytes(p.arena), 0);
    plan(&p, 0, p.r->api, p.r->backend);
    assert_int_equal(pk_arena_bytes(p.arena), own_bytes(&p, 0));
    plan(&p, 1, p.r->api, p.r->backend);
    assert_true(own_bytes(&p, 1) > own_bytes(&p, 0));
    assert_int_equal(pk_arena_bytes(p.arena), own_bytes(&p, 1));
    end(&p);
}

static void test_arena_of_forecasts_counts_the_same_bytes(void **state)
{
    struct pair p = begin();

    (void)state;
    plan(&p, 0, p.r->api, NULL);
    plan(&p, 1, p.r->api, NULL);
    assert_int_equal(pk_arena_bytes(p.arena), own_bytes(&p, 1));
    assert_true(own_bytes(&p, 0) > 0);
    end(&p);
}

static void test_arena_plans_run_in_turn(void **state)
{
    struct pair p = begin();

    (void)state;
    plan(&p, 1, p.r->api, p.r->backend);
    plan(&p, 0, p.r->api, p.r->backend);
    for (int i = 0; i < 6; i++)
        run(&p, i % 2);
    pk_exec_poison(p.e[0], true);
    for (int i = 0; i < 4; i++)
        run(&p, i % 2);
    end(&p);
}

static void test_arena_that_grows_takes_its_older_plans_along(void **state)
{
    struct pair p = begin();

    (void)state;
    plan(&p, 0, p.r->api, p.r->backend);
    run(&p, 0);
    run(&p, 0);
    plan(&p, 1, p.r->api, p.r->backend);
    run(&p, 0);
    run(&p, 1);
    run(&p, 0);
    end(&p);
}

static void test_arena_output_is_not_read_once_another_plan_has_run(void **state)
{
    struct pair p = begin();
    float y[16];

    (void)state;
    plan(&p, 0, p.r->api, p.r->backend);
    assert_int_equal(pk_exec_read(p.e[0], "y", y, sizeof y, &p.r->why), PD_ERR_CONFLICT); /* none yet */
    run(&p, 0);
    assert_non_null(pk_exec_output(p.e[0], "y", NULL));
    plan(&p, 1, p.r->api, p.r->backend);
    assert_int_equal(pk_exec_read(p.e[0], "y", y, sizeof y, &p.r->why), PD_ERR_CONFLICT); /* it has moved */
    run(&p, 0);
    run(&p, 1);
    assert_int_equal(pk_exec_read(p.e[0], "y", y, sizeof y, &p.r->why), PD_ERR_CONFLICT);
    assert_null(pk_exec_output(p.e[0], "y", NULL));
    assert_non_null(strstr(p.r->why.text, "another plan"));
    run(&p, 0);
    end(&p);
}

static void test_arena_outlives_its_maker_and_a_freed_plan(void **state)
{
    struct pair p = begin();

    (void)state;
    plan(&p, 0, p.r->api, p.r->backend);
    plan(&p, 1, p.r->api, p.r->backend);
    p.arena = pk_arena_free(p.arena);
    run(&p, 1);
    p.e[1] = pk_exec_free(p.e[1]);
    run(&p, 0);
    end(&p);
}

static void *no_memory(struct pk_backend *b, size_t bytes)
{
    (void)b;
    (void)bytes;
    return NULL;
}

static void test_arena_without_memory_to_grow_says_so(void **state)
{
    struct pair p = begin();
    struct pk_backend_api poor = *p.r->api;
    struct pk_exec *larger = NULL;

    (void)state;
    plan(&p, 0, p.r->api, p.r->backend);
    run(&p, 0);
    poor.alloc = no_memory;
    assert_int_equal(pk_exec_new_in(p.g[1], &poor, p.r->backend, p.arena, &larger, &p.r->why), PD_ERR_NOMEM);
    assert_null(larger);
    assert_int_equal(pk_exec_run(p.e[0], &p.r->why), PD_ERR_NOMEM); /* its memory was given up */
    plan(&p, 1, p.r->api, p.r->backend);
    run(&p, 0);
    end(&p);
}

static void test_arena_belongs_to_one_back_end(void **state)
{
    struct pair p = begin();
    struct rig *other = rig_new(false);
    struct pk_exec *none = NULL;

    (void)state;
    plan(&p, 0, p.r->api, p.r->backend);
    assert_int_equal(pk_exec_new_in(p.g[0], other->api, other->backend, p.arena, &none, &p.r->why),
                     PD_ERR_INVALID);
    assert_null(none);
    run(&p, 0);
    rig_free(other);
    end(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arena_is_as_large_as_its_largest_plan),
        cmocka_unit_test(test_arena_of_forecasts_counts_the_same_bytes),
        cmocka_unit_test(test_arena_plans_run_in_turn),
        cmocka_unit_test(test_arena_that_grows_takes_its_older_plans_along),
        cmocka_unit_test(test_arena_output_is_not_read_once_another_plan_has_run),
        cmocka_unit_test(test_arena_outlives_its_maker_and_a_freed_plan),
        cmocka_unit_test(test_arena_without_memory_to_grow_says_so),
        cmocka_unit_test(test_arena_belongs_to_one_back_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
