/* The planner: no two live buffers overlap, the arena is close to what is live, nothing is read outside its
 * lifetime, and passes change no result. */
#include "tests/graph/rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/graph/passes/passes.h"
#include "kernels/graph/plan.h"
#include "tests/graph/net.h"

static const struct net gpt = {
    .batch = 8,
    .tokens = 256,
    .width = 384,
    .heads = 6,
    .depth = 6,
    .vocabulary = 50257,
    .dtype = PK_F32,
    .train = true,
    .clip = true,
    .attention = {.phi = PK_PHI_SOFTMAX, .scale = 1.0, .causal = true},
};

static struct pk_plan_report plan_of(const struct net *n)
{
    struct pk_graph *g = pk_graph_new(false);
    struct pk_exec *e = NULL;
    struct pk_plan_report report;
    struct pd_why why = {.text = ""};

    net_build(g, n);
    if (pk_exec_new(g, NULL, NULL, &e, &why) != PD_OK)
        fail_msg("%s", why.text);
    pk_exec_report(e, &report);
    pk_exec_free(e);
    pk_graph_free(g);
    return report;
}

static void show(const char *what, const struct pk_plan_report *r)
{
    print_message("%s: %zu kernels, arena %.1f MiB, live %.1f MiB (x%.3f); gradients %.1f, workspace %.1f,"
                  " weights %.1f\n",
                  what, r->nodes, (double)r->arena_bytes / 1048576, (double)r->live_bound / 1048576,
                  (double)r->arena_bytes / (double)r->live_bound,
                  (double)r->bytes[PK_CAT_GRADIENTS] / 1048576, (double)r->bytes[PK_CAT_WORKSPACE] / 1048576,
                  (double)r->bytes[PK_CAT_WEIGHTS] / 1048576);
}

static void test_plan_is_close_to_the_bound(void **state)
{
    (void)state;
    for (int variant = 0; variant < 8; variant++) {
        struct net n = gpt;
        struct pk_plan_report r;
        char what[80];

        n.clip = variant & 1;
        if (variant & 2) {
            n.vocabulary = 256;
            n.depth = 12;
        }
        n.separate = variant & 4;
        r = plan_of(&n);
        snprintf(what, sizeof what, "vocabulary %d%s%s", (int)n.vocabulary, n.clip ? ", clip" : "",
                 n.separate ? ", separate" : "");
        show(what, &r);
        assert_true((double)r.arena_bytes <= 1.1 * (double)r.live_bound);
        assert_int_equal(r.bytes[PK_CAT_ACTIVATIONS] + r.bytes[PK_CAT_GRADIENTS] + r.bytes[PK_CAT_WORKSPACE],
                         r.arena_bytes);
        assert_int_equal(r.bytes[PK_CAT_MOMENT1], r.bytes[PK_CAT_WEIGHTS]);
    }
}

/* A graph of random nodes: anything may use anything. */
static void random_graph(struct pk_graph *g, uint64_t seed, int nodes)
{
    struct pk_val v[600], p;
    int n = 0;

    v[n++] = pk_input(g, "a", PK_F64, PK_SHAPE(6, 6));
    p = pk_param(g, "p", PK_F64, PK_SHAPE(6, 6));
    v[n++] = p;
    for (int i = 0; i < nodes && n < 590; i++) {
        struct pk_val a = v[(int)((rig_random(&seed) + 1.0) / 2.0 * n)];
        struct pk_val b = v[(int)((rig_random(&seed) + 1.0) / 2.0 * n)];
        struct pk_val both[2] = {a, b};

        switch ((int)((rig_random(&seed) + 1.0) * 5.5)) {
        case 0:
            v[n++] = pk_scale(g, pk_matmul(g, a, b), 0.2);
            break;
        case 1: /* a residual that the product reads too: must not be overwritten */
            a = pk_unary(g, PK_EX_SIN, a);
            v[n++] = pk_unary(g, PK_EX_TANH, pk_add(g, a, pk_matmul(g, i % 2 ? a : b, a)));
            break;
        case 2: /* an input seen twice, in two ways */
            a = pk_softmax(g, a);
            v[n++] = pk_add(g, a, i % 2 ? pk_transpose(g, a) : b);
            break;
        case 3:
            v[n++] = pk_mul(g, a, b);
            break;
        case 4:
            v[n++] = pk_gelu(g, a, false);
            break;
        case 5:
            v[n++] = pk_transpose(g, a);
            break;
        case 6:
            v[n++] = pk_softmax(g, a);
            break;
        case 7:
            v[n++] = pk_slice(g, pk_concat(g, 1, both, 2), 1, 3, 6);
            break;
        case 8:
            v[n++] = pk_sub(g, a, pk_mean(g, b, 2, true));
            break;
        case 9:
            v[n++] = pk_reshape(g, pk_unary(g, PK_EX_TANH, pk_reshape(g, a, PK_SHAPE(4, 9))), PK_SHAPE(6, 6));
            break;
        default:
            v[n++] = pk_unary(g, PK_EX_SIN, pk_mul(g, pk_fill(g, PK_F64, PK_SHAPE(6), 0.5), b));
            break;
        }
    }
    for (int i = 0; i < 4; i++) {
        char name[16];

        snprintf(name, sizeof name, "o%d", i);
        pk_output(g, name, v[n - 1 - i * 3]);
    }
    /* Written in the middle of everything: readers before and after. */
    struct pk_val sum = pk_sumsq(g, &v[n - 1], 1), d;

    pk_grad(g, sum, PK_NONE, &p, 1, &d);
    pk_output(g, "d", d);
    pk_msgdw(g, p, d, pk_state(g, "m", PK_F64, PK_SHAPE(6, 6), PK_CAT_MOMENT1),
             pk_input(g, "hyper", PK_F64, PK_SHAPE(4)), pk_input(g, "gate", PK_F64, PK_SHAPE(2)),
             (struct pk_optim_spec){.momentum = 0.9, .lr_mult = 1.0});
    pk_output(g, "after", pk_matmul(g, p, v[n - 1]));
}

static void test_plan_never_overlaps_live_buffers(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct pk_graph *g = pk_graph_new(false), *c;
        struct pk_plan p;
        struct pd_why why;
        bool any;

        random_graph(g, seed, 20 + (int)(seed * 7 % 300));
        assert_int_equal(pk_graph_check(g, &why), PD_OK);
        c = pk_graph_clone(g);
        assert_int_equal(pk_passes_run(c, &why), PD_OK);
        if (seed % 2)
            assert_int_equal(pk_passes_again(c, &any, &why), PD_OK);
        assert_int_equal(pk_plan_make(c, NULL, &p, &why), PD_OK);
        for (uint32_t i = 0; i < p.n_buffer; i++)
            for (uint32_t j = 0; j < i; j++) {
                const struct pk_buffer *a = &p.buffer[i], *b = &p.buffer[j];
                bool together = a->first <= b->last && b->first <= a->last;
                bool apart = a->offset + a->bytes <= b->offset || b->offset + b->bytes <= a->offset;

                assert_true(!together || apart || !a->bytes || !b->bytes);
            }
        for (uint32_t i = 0; i < p.n_buffer; i++) {
            assert_int_equal(p.buffer[i].offset % PK_ALIGN, 0);
            assert_true(p.buffer[i].offset + p.buffer[i].bytes <= p.arena_bytes);
        }
        assert_true(p.arena_bytes >= p.live_bound);
        pk_plan_done(&p);
        pk_graph_free(c);
        pk_graph_free(g);
    }
}

struct seen {
    struct value {
        char *name;
        double *x;
    } at[16];
};

static void compare(const char *what, const char *output, const double *a, const double *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(a[i] - b[i]) <= 1e-9 * (1.0 + fabs(a[i]))))
            fail_msg("%s: output %s[%lld] is %.15g and %.15g", what, output, (long long)i, a[i], b[i]);
}

/* Evaluates the graph one node after the other, no passes, no sharing of memory: every value is an output. */
static void test_plan_changes_no_result_even_poisoned(void **state)
{
    static const char *const output[6] = {"o0", "o1", "o2", "o3", "d", "after"};

    (void)state;
    for (uint64_t seed = 1; seed <= 25; seed++) {
        struct rig *plain = rig_new(false), *poisoned = rig_new(false);
        const double hyper[4] = {0.1, 1, 1, 1}, gate[2] = {1, 1};
        uint32_t end;

        random_graph(plain->g, seed, 10 + (int)(seed * 5));
        random_graph(poisoned->g, seed, 10 + (int)(seed * 5));
        /* All values of the first readable: nothing can be fused, shared or dropped. */
        end = seed % 2 ? 10 + (uint32_t)(seed * 5) : 0;
        for (uint32_t id = 1; id < end; id++) {
            char name[16];

            snprintf(name, sizeof name, "all%u", id);
            pk_output(plain->g, name, (struct pk_val){id});
        }
        rig_plan(plain);
        rig_plan(poisoned);
        pk_exec_poison(poisoned->exec, true);
        rig_set(plain, "hyper", hyper);
        rig_set(plain, "gate", gate);
        rig_set(poisoned, "hyper", hyper);
        rig_set(poisoned, "gate", gate);
        for (int step = 0; step < 2; step++) {
            rig_run(plain);
            rig_run(poisoned);
            for (int i = 0; i < 6; i++) {
                int64_t n;
                double *a = rig_read(plain, output[i], &n), *b = rig_read(poisoned, output[i], &n);

                compare("poisoned", output[i], a, b, n);
                free(a);
                free(b);
            }
        }
        rig_free(plain);
        rig_free(poisoned);
    }
}

static void fill_tokens(struct rig *r, const struct net *n)
{
    const double hyper[4] = {0.05, 0.1, 0.01, 1}, gate[2] = {1, 1};

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
}

static void test_plan_trains_poisoned_as_usual(void **state)
{
    struct net n = {.batch = 2,
                    .tokens = 5,
                    .width = 8,
                    .heads = 2,
                    .depth = 2,
                    .vocabulary = 11,
                    .dtype = PK_F64,
                    .train = true,
                    .attention = {.phi = PK_PHI_POLY, .degree = 3, .scale = 0.4, .causal = true}};

    (void)state;
    for (int variant = 0; variant < 8; variant++) {
        struct rig *fused = rig_new(false), *plain = rig_new(true);
        double first = 0.0, last = 0.0;

        n.clip = variant & 1;
        n.separate = variant & 2;
        n.attention.phi = variant & 4 ? PK_PHI_SOFTMAX : PK_PHI_POLY;
        net_build(fused->g, &n);
        net_build(plain->g, &n);
        rig_plan(fused);
        rig_plan(plain);
        fill_tokens(fused, &n);
        fill_tokens(plain, &n);
        pk_exec_poison(fused->exec, true);
        for (int step = 0; step < 4; step++) {
            double a, b;

            rig_run(fused);
            rig_run(plain);
            a = rig_scalar(fused, "loss");
            b = rig_scalar(plain, "loss");
            compare("step", "loss", &a, &b, 1);
            if (step == 0)
                first = a;
            last = a;
        }
        assert_true(last < first);
        rig_free(fused);
        rig_free(plain);
    }
}

static void test_plan_runs_updates_after_all_readers(void **state)
{
    struct rig *r = rig_new(false);
    struct pk_val p = pk_param(r->g, "p", PK_F64, PK_SHAPE(2)), g = pk_input(r->g, "g", PK_F64, PK_SHAPE(2));
    struct pk_val before = pk_scale(r->g, p, 1.0), twice = pk_scale(r->g, p, 2.0);
    const double hyper[4] = {1, 1, 1, 1}, gate[2] = {1, 1}, at[2] = {3, 4}, grad[2] = {1, 1};
    double *x;
    int64_t n;

    (void)state;
    pk_msgdw(r->g, p, g, pk_state(r->g, "m", PK_F64, PK_SHAPE(2), PK_CAT_MOMENT1),
             pk_input(r->g, "hyper", PK_F64, PK_SHAPE(4)), pk_input(r->g, "gate", PK_F64, PK_SHAPE(2)),
             (struct pk_optim_spec){.momentum = 0.5, .lr_mult = 1.0});
    /* The same expression, but of the new value: must not be taken for the old one. */
    pk_output(r->g, "new2", pk_scale(r->g, p, 2.0));
    pk_output(r->g, "old", pk_copy(r->g, before));
    pk_output(r->g, "old2", pk_copy(r->g, twice));
    rig_plan(r);
    rig_set(r, "hyper", hyper);
    rig_set(r, "gate", gate);
    rig_set(r, "p", at);
    rig_set(r, "g", grad);
    rig_run(r);
    x = rig_read(r, "old", &n);
    assert_true(x[0] == 3.0 && x[1] == 4.0);
    free(x);
    x = rig_read(r, "old2", &n);
    assert_true(x[0] == 6.0);
    free(x);
    x = rig_read(r, "new2", &n);
    assert_true(x[0] == 4.0 && x[1] == 6.0);
    free(x);
    rig_free(r);
}

/* A back end may do optimiser calls that follow each other in one launch: with a global norm, which waits for
 * every gradient, nothing comes between them. */
static void test_plan_keeps_the_updates_of_a_clipped_step_together(void **state)
{
    (void)state;
    for (int again = 0; again < 2; again++) {
        struct net n = gpt;
        struct pk_graph *g = pk_graph_new(false);
        uint32_t updates = 0, runs = 0;
        struct pk_plan p;
        struct pd_why why;
        bool any;

        n.batch = 2;
        n.tokens = 64;
        net_build(g, &n);
        assert_int_equal(pk_passes_run(g, &why), PD_OK);
        if (again)
            assert_int_equal(pk_passes_again(g, &any, &why), PD_OK);
        assert_int_equal(pk_plan_make(g, NULL, &p, &why), PD_OK);
        for (uint32_t s = 0; s < p.n_step; s++)
            if (g->node[p.order[s]].op == PK_OP_ADAMW) {
                updates++;
                runs += s == 0 || g->node[p.order[s - 1]].op != PK_OP_ADAMW;
            }
        assert_true(updates > 20);
        assert_int_equal(runs, 1);
        pk_plan_done(&p);
        pk_graph_free(g);
    }
}

static void test_plan_appends_to_a_cache_before_its_readers(void **state)
{
    struct rig *r = rig_new(false);
    struct pk_val cache = pk_state(r->g, "cache", PK_F64, PK_SHAPE(1, 1, 4, 2), PK_CAT_CACHE);
    struct pk_val fresh = pk_input(r->g, "fresh", PK_F64, PK_SHAPE(1, 1, 1, 2));
    struct pk_val at = pk_input(r->g, "at", PK_I32, PK_SHAPE(1));
    struct pk_val old = pk_sum(r->g, cache, 15, false), next = pk_cache_append(r->g, cache, fresh, at);
    const double zero[8] = {0}, x[2] = {3, 4};

    (void)state;
    pk_output(r->g, "new", pk_sum(r->g, next, 15, false));
    pk_output(r->g, "old", old);
    rig_plan(r);
    rig_set(r, "cache", zero);
    rig_set(r, "fresh", x);
    rig_put(r, "at", 0, 2);
    rig_run(r);
    assert_true(rig_scalar(r, "old") == 0.0);
    assert_true(rig_scalar(r, "new") == 7.0);
    assert_true(rig_get(r, "cache", 4) == 3.0);
    rig_put(r, "at", 0, 4);
    assert_int_equal(pk_exec_run(r->exec, &r->why), PD_ERR_INVALID);
    rig_free(r);
}

static void test_plan_of_twenty_thousand_nodes(void **state)
{
    struct pk_graph *g = pk_graph_new(false);
    struct pk_val x = pk_param(g, "x", PK_F32, PK_SHAPE(4, 4)), y = x, d;
    struct pk_exec *e;
    struct pk_plan_report report;
    struct pd_why why;

    (void)state;
    for (int i = 0; i < 10000; i++)
        y = pk_softmax(g, i % 2 ? pk_matmul(g, y, x) : y);
    pk_grad(g, pk_sumsq(g, &y, 1), PK_NONE, &x, 1, &d);
    pk_output(g, "d", d);
    assert_int_equal(pk_exec_new(g, NULL, NULL, &e, &why), PD_OK);
    pk_exec_report(e, &report);
    show("deep", &report);
    assert_true(report.nodes > 30000);
    pk_exec_free(e);
    pk_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_is_close_to_the_bound),
        cmocka_unit_test(test_plan_never_overlaps_live_buffers),
        cmocka_unit_test(test_plan_changes_no_result_even_poisoned),
        cmocka_unit_test(test_plan_trains_poisoned_as_usual),
        cmocka_unit_test(test_plan_runs_updates_after_all_readers),
        cmocka_unit_test(test_plan_keeps_the_updates_of_a_clipped_step_together),
        cmocka_unit_test(test_plan_appends_to_a_cache_before_its_readers),
        cmocka_unit_test(test_plan_of_twenty_thousand_nodes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
