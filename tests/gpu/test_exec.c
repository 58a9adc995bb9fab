/* Whole steps on the CUDA back end: a small transformer trains as on the CPU; the recorded step gives the
 * bits of the one that goes call by call, sees a new learning rate, and nothing falls back; binding other
 * memory begins anew, and so does an arena that grows; poisoned memory, tracing, feeding by slots. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/graph/graph.h"
#include "tests/gpu/device.h"
#include "tests/graph/net.h"

#define LEAVES 256

struct step {
    const struct pk_backend_api *api;
    struct pk_backend *b;
    struct pk_graph *g;
    struct pk_exec *exec;
    void *memory[LEAVES];
    size_t leaves;
};

static struct pk_backend *cpu;
static bool mixed; /* what step_new makes */

static const struct net small = {
    .batch = 2,
    .tokens = 17,
    .width = 32,
    .heads = 2,
    .depth = 2,
    .vocabulary = 29,
    .dtype = PK_F32,
    .train = true,
    .clip = true,
    .attention = {.phi = PK_PHI_POLY, .degree = 3, .scale = 0.25, .causal = true}};

static double next_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(*seed >> 11) * 0x1p-52 - 1;
}

static size_t leaf_of(const struct step *s, const char *name)
{
    for (size_t i = 0; i < s->leaves; i++)
        if (strcmp(pk_graph_leaf(s->g, i).name, name) == 0)
            return i;
    fail_msg("no leaf '%s'", name);
    return 0;
}

static void set_leaf(struct step *s, const char *name, const void *x)
{
    size_t i = leaf_of(s, name);

    assert_int_equal(s->api->upload(s->b, s->memory[i], x, pk_graph_leaf(s->g, i).bytes, NULL), PD_OK);
}

static void fill_leaf(struct step *s, size_t i, const struct net *n)
{
    struct pk_leaf l = pk_graph_leaf(s->g, i);
    unsigned char *x = calloc(1, l.bytes + 1);
    uint64_t seed = 7;

    assert_non_null(x);
    for (const char *p = l.name; *p; p++)
        seed = seed * 31 + (uint64_t)*p;
    if (l.dtype == PK_I32)
        for (size_t k = 0; k < l.bytes / 4; k++)
            ((int32_t *)x)[k] = (int32_t)(k * (l.name[1] == 'o' ? 7 : 5) % (size_t)n->vocabulary);
    else if (l.category != PK_CAT_MOMENT1 && l.category != PK_CAT_MOMENT2)
        for (size_t k = 0; k < l.bytes / 4; k++)
            ((float *)x)[k] = (float)next_random(&seed);
    assert_int_equal(s->api->upload(s->b, s->memory[i], x, l.bytes, NULL), PD_OK);
    free(x);
}

static struct step step_new_in(struct pk_arena *arena, const struct pk_backend_api *api, struct pk_backend *b,
                               const struct net *n)
{
    const float hyper[4] = {0.02f, 0.1f, 0.01f, 1}, gate[2] = {1, 1};
    struct step s = {.api = api, .b = b, .g = pk_graph_new(false)};
    struct pd_why why = {""};

    assert_non_null(s.g);
    net_build(s.g, n);
    pk_graph_precision(s.g, mixed ? PK_PRECISION_MIXED : PK_PRECISION_FULL);
    if (pk_exec_new_in(s.g, api, b, arena, &s.exec, &why) != PD_OK)
        fail_msg("%s", why.text);
    s.leaves = pk_graph_leaf_count(s.g);
    assert_true(s.leaves <= LEAVES);
    for (size_t i = 0; i < s.leaves; i++) {
        struct pk_leaf l = pk_graph_leaf(s.g, i);

        s.memory[i] = api->alloc(b, l.bytes);
        assert_non_null(s.memory[i]);
        fill_leaf(&s, i, n);
        assert_int_equal(pk_exec_bind(s.exec, l.name, s.memory[i], &why), PD_OK);
    }
    if (n->train) {
        set_leaf(&s, "hyper", hyper);
        set_leaf(&s, "gate", gate);
    }
    return s;
}

static struct step step_new(const struct pk_backend_api *api, struct pk_backend *b, const struct net *n)
{
    struct pk_arena *arena = pk_arena_new();
    struct step s;

    assert_non_null(arena);
    s = step_new_in(arena, api, b, n);
    pk_arena_free(arena);
    return s;
}

static void step_free(struct step *s)
{
    s->exec = pk_exec_free(s->exec);
    for (size_t i = 0; i < s->leaves; i++)
        s->api->free(s->b, s->memory[i]);
    s->g = pk_graph_free(s->g);
}

static void run(struct step *s)
{
    struct pd_why why = {""};

    if (pk_exec_run(s->exec, &why) != PD_OK)
        fail_msg("%s", why.text);
}

static float read_loss(struct step *s)
{
    float loss = 0;
    struct pd_why why = {""};

    if (pk_exec_read(s->exec, "loss", &loss, sizeof loss, &why) != PD_OK)
        fail_msg("%s", why.text);
    return loss;
}

static void *read_leaf(struct step *s, size_t i)
{
    struct pk_leaf l = pk_graph_leaf(s->g, i);
    void *x = malloc(l.bytes + 1);

    assert_non_null(x);
    assert_int_equal(s->api->sync(s->b, NULL), PD_OK);
    assert_int_equal(s->api->download(s->b, x, s->memory[i], l.bytes, NULL), PD_OK);
    return x;
}

static void expect_same_leaves(struct step *a, struct step *b)
{
    for (size_t i = 0; i < a->leaves; i++) {
        void *x = read_leaf(a, i), *y = read_leaf(b, i);

        if (memcmp(x, y, pk_graph_leaf(a->g, i).bytes) != 0)
            fail_msg("leaf '%s' has other bits", pk_graph_leaf(a->g, i).name);
        free(x);
        free(y);
    }
}

static int open_cpu(void **state)
{
    (void)state;
    return pk_backend_cpu()->open(NULL, 0, 1, &cpu, NULL) == PD_OK ? 0 : -1;
}

static int close_all(void **state)
{
    cpu = pk_backend_cpu()->close(cpu);
    return gpu_close(state);
}

static void test_exec_follows_the_cpu(void **state)
{
    (void)state;
    for (int phi = 0; phi < 3; phi++) {
        struct net n = small;
        struct step gpu, ref;

        n.attention.phi = (enum pk_phi)phi;
        n.separate = phi == 1;
        gpu = step_new(gpu_api(), gpu_device(), &n);
        ref = step_new(pk_backend_cpu(), cpu, &n);
        for (int i = 0; i < 5; i++) {
            double a, b;

            run(&gpu);
            run(&ref);
            a = read_loss(&gpu);
            b = read_loss(&ref);
            if (!(fabs(a - b) < 2e-4 * fabs(b)))
                fail_msg("phi %d, step %d: loss %.7g instead of %.7g", phi, i, a, b);
        }
        step_free(&gpu);
        step_free(&ref);
    }
}

static void test_exec_replays_the_bits_of_eager_runs(void **state)
{
    struct pk_backend_api plain = *gpu_api();
    struct step eager, recorded;
    struct pk_exec_runs runs;

    (void)state;
    plain.capture = NULL; /* the same device, call by call */
    eager = step_new(&plain, gpu_device(), &small);
    recorded = step_new(gpu_api(), gpu_device(), &small);
    for (int i = 0; i < 6; i++) {
        const float hyper[4] = {0.02f / (float)(i + 1), 0.1f * (float)(i + 1), 0.01f * (float)(i + 1),
                                i == 0};

        set_leaf(&eager, "hyper", hyper); /* a schedule: the recording must see it */
        set_leaf(&recorded, "hyper", hyper);
        run(&eager);
        run(&recorded);
        assert_true(read_loss(&eager) == read_loss(&recorded));
        expect_same_leaves(&eager, &recorded);
    }
    runs = pk_exec_runs(recorded.exec);
    assert_int_equal(runs.eager, 1);
    assert_int_equal(runs.captures, 1);
    assert_int_equal(runs.replays, 5);
    runs = pk_exec_runs(eager.exec);
    assert_int_equal(runs.eager, 6);
    assert_int_equal(runs.captures, 0);
    step_free(&eager);
    step_free(&recorded);
}

/* bf16, with logits that are laid out wider than they are, through the kernel that reads them once. */
static void test_exec_mixed_follows_the_cpu(void **state)
{
    struct pk_backend_api plain = *gpu_api();
    struct net n = small;
    struct step eager, recorded, ref;

    (void)state;
    plain.capture = NULL;
    n.vocabulary = 1030;
    mixed = true;
    eager = step_new(&plain, gpu_device(), &n);
    recorded = step_new(gpu_api(), gpu_device(), &n);
    ref = step_new(pk_backend_cpu(), cpu, &n);
    mixed = false;
    for (int i = 0; i < 3; i++) {
        double a, b;

        run(&eager);
        run(&recorded);
        run(&ref);
        a = read_loss(&recorded);
        b = read_loss(&ref);
        if (!(fabs(a - b) < 0.01 * fabs(b)))
            fail_msg("step %d: loss %.7g instead of %.7g", i, a, b);
        assert_true(read_loss(&eager) == read_loss(&recorded));
        expect_same_leaves(&eager, &recorded);
    }
    step_free(&eager);
    step_free(&recorded);
    step_free(&ref);
}

static void test_exec_binds_anew(void **state)
{
    struct step s = step_new(gpu_api(), gpu_device(), &small);
    size_t at = leaf_of(&s, "hyper");
    const float other[4] = {0, 0.1f, 0.01f, 1}; /* no learning rate: nothing may change */
    void *memory = s.api->alloc(s.b, sizeof other), *before, *after;
    struct pk_exec_runs runs;
    size_t weight = 0;

    (void)state;
    for (int i = 0; i < 3; i++)
        run(&s);
    assert_int_equal(s.api->upload(s.b, memory, other, sizeof other, NULL), PD_OK);
    assert_int_equal(pk_exec_bind(s.exec, "hyper", memory, NULL), PD_OK);
    while (pk_graph_leaf(s.g, weight).kind != PK_OP_PARAM)
        weight++;
    before = read_leaf(&s, weight);
    for (int i = 0; i < 3; i++)
        run(&s);
    after = read_leaf(&s, weight);
    assert_memory_equal(before, after, pk_graph_leaf(s.g, weight).bytes);
    runs = pk_exec_runs(s.exec);
    assert_int_equal(runs.eager, 2);
    assert_int_equal(runs.captures, 2);
    assert_int_equal(runs.replays, 4);
    assert_int_equal(pk_exec_bind(s.exec, "hyper", memory, NULL), PD_OK); /* the same: nothing is lost */
    run(&s);
    assert_int_equal(pk_exec_runs(s.exec).captures, 2);
    free(before);
    free(after);
    s.api->free(s.b, s.memory[at]);
    s.memory[at] = memory;
    step_free(&s);
}

/* A recording holds addresses: it must not outlive the memory that a larger plan has replaced. */
static void test_exec_shares_an_arena_with_a_larger_plan(void **state)
{
    struct pk_arena *arena = pk_arena_new();
    struct net large = small;
    struct step s = step_new_in(arena, gpu_api(), gpu_device(), &small), twin, other;

    (void)state;
    large.batch = 4;
    twin = step_new(gpu_api(), gpu_device(), &small);
    for (int i = 0; i < 3; i++) {
        run(&s);
        run(&twin);
    }
    other = step_new_in(arena, gpu_api(), gpu_device(), &large);
    for (int i = 0; i < 4; i++) {
        run(&other);
        assert_true(isfinite(read_loss(&other)));
        run(&s);
        run(&twin);
        assert_true(read_loss(&s) == read_loss(&twin));
        expect_same_leaves(&s, &twin);
    }
    assert_int_equal(pk_exec_runs(s.exec).captures, 2);
    assert_int_equal(pk_exec_runs(twin.exec).captures, 1);
    assert_int_equal(pk_exec_runs(other.exec).captures, 1);
    step_free(&other);
    step_free(&s);
    step_free(&twin);
    pk_arena_free(arena);
}

static enum pd_err refuse(struct pk_backend *b, const struct pk_call *calls, size_t count,
                          struct pk_captured **ret, struct pd_why *why)
{
    (void)b;
    (void)calls;
    (void)ret;
    return pd_fail(why, PD_ERR_IO, "recording %zu calls: operation not permitted", count);
}

/* A driver that will not record a step costs time, not the run: it goes on call by call, and the count says so. */
static void test_exec_goes_on_without_recording(void **state)
{
    struct pk_backend_api unwilling = *gpu_api();
    struct step refused, recorded;

    (void)state;
    unwilling.capture = refuse;
    refused = step_new(&unwilling, gpu_device(), &small);
    recorded = step_new(gpu_api(), gpu_device(), &small);
    for (int i = 0; i < 4; i++) {
        run(&refused);
        run(&recorded);
        assert_true(read_loss(&refused) == read_loss(&recorded));
        expect_same_leaves(&refused, &recorded);
    }
    assert_int_equal(pk_exec_runs(refused.exec).refused, 1); /* asked once */
    assert_int_equal(pk_exec_runs(refused.exec).eager, 4);
    assert_int_equal(pk_exec_runs(refused.exec).replays, 0);
    assert_int_equal(pk_exec_runs(recorded.exec).refused, 0);
    step_free(&refused);
    step_free(&recorded);
}

static struct traced {
    int calls, numbers;
    bool nan;
} traced;

static void trace(void *user, const char *node, const struct pk_view *out, int n)
{
    struct traced *t = user;

    assert_non_null(strchr(node, '#'));
    t->calls++;
    for (int i = 0; i < n; i++)
        if (out[i].dtype == PK_F32 && pk_shape_count(&out[i].shape)) {
            t->numbers++;
            t->nan = t->nan || isnan(((const float *)out[i].data)[0]);
        }
}

static void test_exec_poisoned_and_traced(void **state)
{
    struct step plain = step_new(gpu_api(), gpu_device(), &small),
                poisoned = step_new(gpu_api(), gpu_device(), &small);
    struct pk_plan_report report;

    (void)state;
    pk_exec_report(plain.exec, &report);
    pk_exec_poison(poisoned.exec, true);
    for (int i = 0; i < 2; i++) {
        if (i == 1)
            pk_exec_trace(poisoned.exec, trace, &traced);
        run(&plain);
        run(&poisoned);
        assert_true(read_loss(&plain) == read_loss(&poisoned));
        expect_same_leaves(&plain, &poisoned);
    }
    assert_int_equal(traced.calls, report.nodes);
    assert_true(traced.numbers > 0 && !traced.nan);
    assert_int_equal(pk_exec_runs(poisoned.exec).eager, 2);
    step_free(&plain);
    step_free(&poisoned);
}

/* Batches travel while steps run; what a step reads is its own batch. */
static void test_exec_is_fed_by_slots(void **state)
{
    struct net n = small;
    struct step fed, set;
    struct pk_slot *slot[2];
    struct pd_why why = {""};
    size_t tokens, targets, bytes;
    struct pk_take parts[2];

    (void)state;
    fed = step_new(gpu_api(), gpu_device(), &n);
    set = step_new(gpu_api(), gpu_device(), &n);
    tokens = leaf_of(&fed, "tokens");
    targets = leaf_of(&fed, "targets");
    bytes = pk_graph_leaf(fed.g, tokens).bytes;
    parts[0] = (struct pk_take){fed.memory[tokens], 0, bytes};
    parts[1] = (struct pk_take){fed.memory[targets], bytes, bytes};
    for (int i = 0; i < 2; i++)
        assert_int_equal(fed.api->slot_new(fed.b, 2 * bytes, &slot[i], &why), PD_OK);
    assert_int_equal(fed.api->slot_take(fed.b, slot[0], parts, 2, &why), PD_ERR_CONFLICT);
    for (int i = 0; i < 7; i++) {
        int32_t *x = fed.api->slot_host(slot[i % 2]);

        assert_int_equal((uintptr_t)x % 256, 0);
        assert_int_equal(fed.api->slot_wait(fed.b, slot[i % 2], &why), PD_OK);
        for (size_t k = 0; k < 2 * bytes / 4; k++)
            x[k] = (int32_t)((k * 11 + (size_t)i * 13) % (size_t)n.vocabulary);
        set_leaf(&set, "tokens", x);
        set_leaf(&set, "targets", x + bytes / 4);
        run(&set);
        assert_int_equal(fed.api->slot_send(fed.b, slot[i % 2], &why), PD_OK);
        assert_int_equal(fed.api->slot_take(fed.b, slot[i % 2], parts, 2, &why), PD_OK);
        run(&fed);
    }
    assert_true(read_loss(&fed) == read_loss(&set));
    expect_same_leaves(&fed, &set);
    parts[1].bytes = bytes + 1;
    assert_int_equal(fed.api->slot_take(fed.b, slot[0], parts, 2, &why), PD_ERR_INVALID);
    for (int i = 0; i < 2; i++)
        fed.api->slot_free(fed.b, slot[i]);
    assert_null(fed.api->slot_free(fed.b, NULL));
    step_free(&fed);
    step_free(&set);
}

/* ---- working copies ---- */

static int casts;

static bool count_casts(struct pk_backend *b, const struct pk_call *c)
{
    casts += c->op == PK_OP_COPY && c->in[0].dtype == PK_F32 && c->out[0].dtype == PK_BF16;
    return gpu_api()->supports(b, c);
}

/* In a captured mixed step the update writes the weights' working copies: no cast is left, and every bit is
 * that of the step that makes them anew. */
static void test_exec_updates_write_working_copies(void **state)
{
    struct pk_backend_api counting = *gpu_api();
    struct net n = small;
    struct step with, without;
    int before, after;

    (void)state;
    counting.supports = count_casts;
    mixed = n.gelu_tanh = true;
    casts = 0;
    without = step_new(&counting, gpu_device(), &n);
    before = casts;
    n.copies = true;
    casts = 0;
    with = step_new(&counting, gpu_device(), &n);
    after = casts;
    mixed = false;
    /* both count the graph and its twin that computes activations again, if there is one */
    assert_true(before >= 4 * (int)n.depth + 1);
    assert_int_equal(after, 0);
    for (size_t i = 0; i < with.leaves; i++) {
        struct pk_leaf l = pk_graph_leaf(with.g, i);
        uint16_t *half;
        float *full;

        if (strncmp(l.name, "half.", 5) != 0)
            continue;
        full = read_leaf(&with, leaf_of(&with, l.name + 5));
        half = malloc(l.bytes);
        assert_non_null(half);
        for (size_t k = 0; k < l.bytes / 2; k++) {
            uint32_t bits;

            memcpy(&bits, &full[k], sizeof bits);
            half[k] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
        }
        set_leaf(&with, l.name, half);
        free(half);
        free(full);
    }
    for (int i = 0; i < 5; i++) {
        const float gate[2] = {1, i != 3}; /* one step is left out */

        set_leaf(&with, "gate", gate);
        set_leaf(&without, "gate", gate);
        run(&with);
        run(&without);
        assert_true(read_loss(&with) == read_loss(&without));
    }
    for (size_t i = 0; i < without.leaves; i++) {
        struct pk_leaf l = pk_graph_leaf(without.g, i);
        void *x = read_leaf(&without, i), *y = read_leaf(&with, leaf_of(&with, l.name));

        if (memcmp(x, y, l.bytes) != 0)
            fail_msg("leaf '%s' has other bits", l.name);
        free(x);
        free(y);
    }
    assert_int_equal(pk_exec_runs(with.exec).eager, 1);
    assert_int_equal(pk_exec_runs(with.exec).replays, 4);
    step_free(&with);
    step_free(&without);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exec_follows_the_cpu),
        cmocka_unit_test(test_exec_replays_the_bits_of_eager_runs),
        cmocka_unit_test(test_exec_mixed_follows_the_cpu),
        cmocka_unit_test(test_exec_binds_anew),
        cmocka_unit_test(test_exec_shares_an_arena_with_a_larger_plan),
        cmocka_unit_test(test_exec_goes_on_without_recording),
        cmocka_unit_test(test_exec_poisoned_and_traced),
        cmocka_unit_test(test_exec_is_fed_by_slots),
        cmocka_unit_test(test_exec_updates_write_working_copies),
    };

    return cmocka_run_group_tests(tests, open_cpu, close_all);
}
