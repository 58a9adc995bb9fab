/* Optimiser calls that are done together: as many launches as there have to be, and the numbers of the calls
 * one by one, bit for bit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/backend/cuda/optim.h"

#define CALLS 150
#define TENSORS 5 /* p, g, m, v, average */

const struct pk_backend_api *pk_backend_entry(void);

static const struct pk_backend_api *api;
static struct pk_backend *device, *cpu;

struct update {
    struct pk_attr attr;
    struct pk_view in[7], host[7], out[4];
    struct pk_call call;
};

static struct update update[CALLS];
static float *memory[CALLS][7], *begin[CALLS][7]; /* host */

static float next_random(void)
{
    static uint64_t seed = 7;

    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(seed >> 40) * 0x1p-23f - 1;
}

static void *on_device(const void *from, size_t bytes)
{
    void *p = api->alloc(device, bytes + 16);

    assert_non_null(p);
    assert_int_equal(api->upload(device, p, from, bytes, NULL), PD_OK);
    return p;
}

static int open_all(void **state)
{
    struct pd_why why;

    (void)state;
    api = pk_backend_entry();
    assert_int_equal(api->open(NULL, 0, 1, &device, &why), PD_OK);
    assert_int_equal(pk_backend_cpu()->open(NULL, 0, 1, &cpu, &why), PD_OK);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    device = api->close(device);
    cpu = pk_backend_cpu()->close(cpu);
    return 0;
}

static void let_go(void)
{
    for (int i = 0; i < CALLS; i++) {
        struct update *u = &update[i];
        int tensors = u->call.n_in;

        if (u->call.workspace)
            api->free(device, u->call.workspace);
        for (int k = 0; k < tensors; k++) {
            char *p = u->in[k].data;

            if (p)
                api->free(device, (char *)((uintptr_t)p & ~(uintptr_t)255));
            free(memory[i][k]);
            free(begin[i][k]);
            memory[i][k] = begin[i][k] = NULL;
        }
    }
    memset(update, 0, sizeof update);
}

/* With moments, hyper-parameters and a gate. */
static bool is_step(enum pk_op op)
{
    return op == PK_OP_ADAMW || op == PK_OP_MSGDW;
}

/* A call on tensors of n elements, with the hyper-parameters of a group. */
static void make(enum pk_op op, int i, int64_t n, int group, bool average)
{
    struct update *u = &update[i];
    const int states = op == PK_OP_ADAMW ? 2 : op == PK_OP_MSGDW ? 1 : 0;
    int k = 0;

    memset(u, 0, sizeof *u);
    u->attr.optim.beta1 = 0.9;
    u->attr.optim.beta2 = 0.99;
    u->attr.optim.cycled = op == PK_OP_ADAMW && group == 1;
    u->attr.optim.eps = 1e-8;
    u->attr.optim.momentum = 0.9;
    u->attr.optim.lr_mult = 1 + group;
    u->attr.optim.weight_decay = group % 2 ? 0.1 : 0;
    u->attr.optim.nesterov = group == 3;
    u->attr.optim.l2 = group == 2;
    u->attr.optim.ema = average || (op == PK_OP_BLEND && group > 0) ? 0.9 : 0;
    for (int t = 0; t < 2 + states; t++, k++)
        u->host[k] = pk_view_dense(NULL, PK_F32, PK_SHAPE(n));
    if (!is_step(op)) {
        u->host[k++] = pk_view_dense(NULL, PK_F32, PK_SHAPE(1));
    } else {
        u->host[k++] = pk_view_dense(NULL, PK_F32, PK_SHAPE(4));
        u->host[k++] = pk_view_dense(NULL, PK_F32, PK_SHAPE(2));
        if (average)
            u->host[k++] = pk_view_dense(NULL, PK_F32, PK_SHAPE(n));
    }
    u->call = (struct pk_call){.op = op, .attr = &u->attr, .n_in = k, .in = u->in, .out = u->out};
    for (int t = 0; t < k; t++) {
        size_t count = (size_t)pk_shape_count(&u->host[t].shape);

        memory[i][t] = calloc(count + 1, sizeof(float));
        begin[i][t] = calloc(count + 1, sizeof(float));
        assert_true(memory[i][t] && begin[i][t]);
        for (size_t e = 0; e < count; e++)
            begin[i][t][e] = t == 3 && op == PK_OP_ADAMW ? fabsf(next_random()) : next_random();
        u->host[t].data = memory[i][t];
        u->in[t] = u->host[t];
    }
    for (int t = 0; t < k; t++) {
        if (t == 1)
            continue;
        if (pk_shape_count(&u->host[t].shape) == n && t != 2 + states && t != 3 + states)
            u->out[u->call.n_out++] = u->host[t];
    }
}

/* Every tensor as at the beginning. The hyper-parameters of all calls of a kind are one tensor, as in a
 * graph. */
static void reset(float apply, float first)
{
    const float hyper[4] = {1e-2f, 0.19f, 0.02f, first}, gate[2] = {0.5f, apply};

    for (int i = 0; i < CALLS; i++) {
        struct update *u = &update[i];
        const int at = u->call.op == PK_OP_ADAMW ? 4 : u->call.op == PK_OP_MSGDW ? 3 : 2;

        if (!u->call.attr)
            continue;
        if (!is_step(u->call.op)) {
            begin[i][at][0] = first;
        } else {
            memcpy(begin[i][at], hyper, sizeof hyper);
            memcpy(begin[i][at + 1], gate, sizeof gate);
        }
        for (int t = 0; t < u->call.n_in; t++) {
            size_t bytes = (size_t)pk_shape_count(&u->host[t].shape) * sizeof(float);

            memcpy(memory[i][t], begin[i][t], bytes);
            if (!u->in[t].data || u->in[t].data == memory[i][t])
                u->in[t].data = on_device(begin[i][t], bytes);
            else if (u->in[t].dtype == PK_F32 && pk_view_is_dense(&u->in[t]))
                assert_int_equal(api->upload(device, u->in[t].data, begin[i][t], bytes, NULL), PD_OK);
        }
    }
}

static void share_hyper(void)
{
    for (int i = 1; i < CALLS; i++) {
        struct update *u = &update[i];
        const int at = u->call.op == PK_OP_ADAMW ? 4 : u->call.op == PK_OP_MSGDW ? 3 : 2;

        if (!u->call.attr)
            continue;
        for (int t = at; t < at + (!is_step(u->call.op) ? 1 : 2); t++) {
            api->free(device, u->in[t].data);
            u->in[t].data = update[0].in[t].data;
        }
    }
}

static void unshare(void)
{
    for (int i = 1; i < CALLS; i++) {
        struct update *u = &update[i];
        const int at = u->call.op == PK_OP_ADAMW ? 4 : u->call.op == PK_OP_MSGDW ? 3 : 2;

        for (int t = at; u->call.attr && t < at + (!is_step(u->call.op) ? 1 : 2); t++)
            u->in[t].data = NULL;
    }
}

static void take_all(float *to[CALLS][TENSORS + 2])
{
    for (int i = 0; i < CALLS; i++)
        for (int t = 0; t < update[i].call.n_in; t++)
            if (t != 1) {
                size_t bytes = (size_t)pk_shape_count(&update[i].host[t].shape) * sizeof(float);

                to[i][t] = calloc(1, bytes + 1);
                assert_non_null(to[i][t]);
                assert_int_equal(api->download(device, to[i][t], update[i].in[t].data, bytes, NULL), PD_OK);
            }
}

static void run_calls(const struct pk_backend_api *on, struct pk_backend *b, int count, bool at_once)
{
    static struct pk_call calls[CALLS];
    struct pd_why why = {""};

    for (int i = 0; i < count; i++)
        calls[i] = update[i].call;
    for (int i = 0; i < count; i += at_once ? count : 1)
        if (on->run(b, calls + i, at_once ? (size_t)count : 1, &why) != PD_OK)
            fail_msg("%s", why.text);
    assert_int_equal(on->sync(b, &why), PD_OK);
}

static size_t launches(int count)
{
    static struct pk_call calls[CALLS];
    size_t n = 0;

    for (int i = 0; i < count; i++)
        calls[i] = update[i].call;
    for (size_t i = 0; i < (size_t)count; n++) {
        size_t some = cuda_optim_together(calls + i, (size_t)count - i);

        assert_true(some >= 1 && some <= (size_t)count - i);
        i += some;
    }
    return n;
}

/* Sizes round a tile's, a gradient in bf16, one that is not aligned, one that is not dense. */
static void make_all(enum pk_op op, int count)
{
    static const int64_t sizes[] = {5, 2048, 1, 2049, 700, 0, 4100, 2047, 33};

    for (int i = 0; i < count; i++) {
        int64_t n = sizes[i % 9];

        make(op, i, n, i % 4, i % 7 == 3);
    }
    reset(1, 0);
    for (int i = 0; i < count; i++) {
        struct update *u = &update[i];
        int64_t n = u->host[0].shape.dim[0];

        if (i % 5 == 2) { /* bf16: the upper half of a float that has no lower */
            uint16_t *half = calloc((size_t)n + 1, 2);

            assert_non_null(half);
            for (int64_t e = 0; e < n; e++) {
                uint32_t bits;

                memcpy(&bits, &begin[i][1][e], 4);
                bits &= 0xffff0000u;
                half[e] = (uint16_t)(bits >> 16);
                memcpy(&begin[i][1][e], &bits, 4);
            }
            api->free(device, u->in[1].data);
            u->in[1].data = on_device(half, (size_t)n * 2);
            u->in[1].dtype = PK_BF16;
            free(half);
        } else if (i == 16 || i == 17) { /* begins one element late */
            float *late = calloc((size_t)n + 1, 4);

            assert_non_null(late);
            memcpy(late + 1, begin[i][1], (size_t)n * 4);
            api->free(device, u->in[1].data);
            u->in[1].data = (char *)on_device(late, (size_t)n * 4 + 4) + 4;
            u->in[1].stride[0] = 1;
            free(late);
        } else if (i == 60) { /* every second element */
            float *wide = calloc(2 * (size_t)n + 1, 4);

            assert_non_null(wide);
            for (int64_t e = 0; e < n; e++)
                wide[2 * e] = begin[i][1][e];
            api->free(device, u->in[1].data);
            u->in[1].data = on_device(wide, (size_t)n * 8);
            u->in[1].stride[0] = 2;
            free(wide);
        }
        u->call.workspace_bytes = api->workspace_bytes(device, &u->call);
        if (u->call.workspace_bytes)
            u->call.workspace = api->alloc(device, u->call.workspace_bytes);
    }
    share_hyper();
}

static void check_one_kind(enum pk_op op, float apply, float first)
{
    static float *alone[CALLS][TENSORS + 2], *together[CALLS][TENSORS + 2];
    const int count = 130;

    make_all(op, count);
    reset(apply, first);
    run_calls(api, device, count, false);
    take_all(alone);
    reset(apply, first);
    /* 130 calls, 56 at most in a launch, and number 60 goes alone: 56, 4, 1, 56, 13. */
    assert_int_equal(launches(count), 5);
    run_calls(api, device, count, true);
    take_all(together);
    for (int i = 0; i < count; i++) { /* and the CPU's, but for rounding */
        struct update *u = &update[i];
        struct pk_view in[7], out[4];
        struct pk_call c = u->call;

        memcpy(in, u->host, sizeof in);
        memcpy(out, u->out, sizeof out);
        memcpy(memory[i][1], begin[i][1], (size_t)in[1].shape.dim[0] * 4);
        c.in = in;
        c.out = out;
        assert_int_equal(pk_backend_cpu()->run(cpu, &c, 1, NULL), PD_OK);
        for (int t = 0; t < c.n_in; t++) {
            int64_t n = pk_shape_count(&in[t].shape);

            if (t == 1)
                continue;
            assert_memory_equal(alone[i][t], together[i][t], (size_t)n * 4);
            for (int64_t e = 0; e < n; e++)
                if (!(fabsf(memory[i][t][e] - together[i][t][e]) <= 2e-6f * (1 + fabsf(memory[i][t][e]))))
                    fail_msg("call %d, tensor %d, element %d: %.9g instead of %.9g", i, t, (int)e,
                             (double)together[i][t][e], (double)memory[i][t][e]);
            free(alone[i][t]);
            free(together[i][t]);
        }
    }
    unshare();
    let_go();
}

static void test_together_is_one_by_one(void **state)
{
    (void)state;
    for (int first = 0; first < 2; first++) {
        check_one_kind(PK_OP_ADAMW, 1, (float)first);
        check_one_kind(PK_OP_MSGDW, 1, (float)first);
        check_one_kind(PK_OP_ACCUMULATE, 1, (float)first);
        check_one_kind(PK_OP_BLEND, 1, (float)first);
    }
}

static void test_a_closed_gate_leaves_everything(void **state)
{
    (void)state;
    for (int op = PK_OP_ADAMW; op <= PK_OP_MSGDW; op++) {
        make_all((enum pk_op)op, 20);
        reset(0, 1);
        run_calls(api, device, 20, true);
        for (int i = 0; i < 20; i++) {
            size_t bytes = (size_t)update[i].host[0].shape.dim[0] * 4;
            float *p = calloc(1, bytes + 1);

            assert_non_null(p);
            assert_int_equal(api->download(device, p, update[i].in[0].data, bytes, NULL), PD_OK);
            assert_memory_equal(p, begin[i][0], bytes);
            free(p);
        }
        unshare();
        let_go();
    }
}

static void test_what_does_not_go_together(void **state)
{
    struct pk_call calls[12];

    (void)state;
    for (int i = 0; i < 12; i++) /* a set of hyper-parameters each: eight fit */
        make(PK_OP_ADAMW, i, 100, i, false);
    reset(1, 0);
    share_hyper();
    for (int i = 0; i < 12; i++)
        calls[i] = update[i].call;
    assert_int_equal(cuda_optim_together(calls, 12), 8);
    assert_int_equal(cuda_optim_together(calls, 3), 3);
    assert_int_equal(cuda_optim_together(calls, 0), 0);
    update[2].in[0].data = update[0].in[0].data; /* the same parameter twice: in order, one after the other */
    assert_int_equal(cuda_optim_together(calls, 12), 2);
    update[2].in[0].data = NULL;                               /* not let go twice */
    update[1].in[1].data = (char *)update[0].in[2].data + 396; /* reads what another writes */
    assert_int_equal(cuda_optim_together(calls, 12), 1);
    update[1].in[1].data = NULL;
    calls[1].op = PK_OP_COPY;
    assert_int_equal(cuda_optim_together(calls, 12), 1);
    assert_int_equal(cuda_optim_together(calls + 1, 11), 0);
    unshare();
    let_go();
}

/* The average of a parameter that does not change, at a decay that f32 rounds. */
static void test_average_of_a_constant_is_that_constant(void **state)
{
    enum { N = 37, STEPS = 5000 };
    static const enum pk_op ops[] = {PK_OP_ADAMW, PK_OP_MSGDW, PK_OP_BLEND};

    (void)state;
    for (size_t k = 0; k < sizeof ops / sizeof ops[0]; k++) {
        struct update *u = &update[0];
        const int constant = is_step(ops[k]) ? 0 : 1;
        float average[N];
        int at;

        make(ops[k], 0, N, 0, is_step(ops[k]));
        at = is_step(ops[k]) ? u->call.n_in - 1 : 0;
        u->attr.optim.ema = 0.9999999;
        u->attr.optim.lr_mult = 0;
        memcpy(begin[0][at], begin[0][constant], sizeof average);
        reset(1, 1);
        for (int i = 0; i < STEPS; i++)
            run_calls(api, device, 1, false);
        assert_int_equal(api->download(device, average, u->in[at].data, sizeof average, NULL), PD_OK);
        for (int e = 0; e < N; e++)
            if (!(fabsf(average[e] - begin[0][constant][e]) <= 1e-6f * fabsf(begin[0][constant][e])))
                fail_msg("operation %zu, element %d: %.9g is the average of the constant %.9g", k, e,
                         (double)average[e], (double)begin[0][constant][e]);
        let_go();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_together_is_one_by_one),
        cmocka_unit_test(test_a_closed_gate_leaves_everything),
        cmocka_unit_test(test_what_does_not_go_together),
        cmocka_unit_test(test_average_of_a_constant_is_that_constant),
    };

    return cmocka_run_group_tests(tests, open_all, close_all);
}
