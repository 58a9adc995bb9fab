/* Buffers: what training writes and no optimiser touches. A network of this file alone subtracts a running mean
 * of its pixels; the numbers are those of the recursion, worked out here. */
#include "tests/model/rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/model/arch/arch.h"
#include "daemon/worker/task/task.h"
#include "daemon/worker/train/optim/optim.h"

#define PIXELS (3 * 8 * 12)
#define CLASSES 5
#define BATCH 4
#define KEEP 0.9
#define START 0.5
#define EMA 0.75

static struct pk_val forward(struct net *n, struct pk_val images)
{
    struct pk_val x = pk_reshape(n->g, images, PK_SHAPE(n->batch, PIXELS));
    struct pk_val seen = net_buffer(n, "seen", PK_SHAPE(PIXELS), START); /* declared before the parameters */

    net_buffer_update(n, "seen", pk_mean(n->g, x, 1u << 0, false), KEEP);
    return net_linear(n, pk_sub(n->g, x, seen), "head", CLASSES,
                      net_start(&n->m->spec, PIXELS, CLASSES, NET_STD));
}

static enum pd_err check(const struct model_spec *s, struct pd_why *why)
{
    (void)s;
    (void)why;
    return PD_OK;
}

static const struct model_arch running = {.name = "running",
                                          .number = -1,
                                          .reads = MODEL_READS_IMAGES,
                                          .transposed = true,
                                          .check = check,
                                          .forward = forward};

struct fixture {
    struct pk_backend *b;
    struct model *m;
    struct model_store *store;
    size_t seen, weight, bias; /* places in the table */
    double mean[PIXELS];       /* what the buffer is to be */
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct model_spec s = vit_spec();
    struct pd_why why;

    assert_non_null(f);
    s.arch = &running;
    assert_int_equal(pk_backend_cpu()->open(NULL, 0, 2, &f->b, &why), PD_OK);
    f->m = make(&s);
    assert_int_equal(model_store_new(f->m, pk_backend_cpu(), f->b, &f->store, &why), PD_OK);
    assert_int_equal(model_store_init(f->store, 5, &why), PD_OK);
    f->seen = (size_t)(named(f->m, "seen") - model_param(f->m, 0));
    f->weight = (size_t)(named(f->m, "head.weight") - model_param(f->m, 0));
    f->bias = (size_t)(named(f->m, "head.bias") - model_param(f->m, 0));
    for (int i = 0; i < PIXELS; i++)
        f->mean[i] = START;
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    model_store_free(f->store);
    model_free(f->m);
    pk_backend_cpu()->close(f->b);
    free(f);
    return 0;
}

static struct model_train_options options(int32_t batch, double ema)
{
    return (struct model_train_options){.loss = &task_cross_entropy,
                                        .batch = batch,
                                        .optimizer = &optim_find("adamw")->graph,
                                        .beta1 = 0.9,
                                        .beta2 = 0.99,
                                        .eps = 1e-8,
                                        .ema = ema};
}

/* Images of a step, each step others. */
static void put_images(struct rig *r, int step, int32_t batch)
{
    float x[BATCH * PIXELS];
    const int32_t target[BATCH] = {3, 0, 4, 1};

    for (int i = 0; i < batch * PIXELS; i++)
        x[i] = (float)((i * 37 + step * 101) % 64) / 16 - 1;
    put(r, "input", x);
    put(r, "target", target);
}

static void blend_mean(double *to, int step, int32_t batch)
{
    for (int p = 0; p < PIXELS; p++) {
        double sum = 0;

        for (int i = 0; i < batch; i++)
            sum += ((i * PIXELS + p) * 37 + step * 101) % 64 / 16.0 - 1;
        to[p] = KEEP * to[p] + (1 - KEEP) * sum / batch;
    }
}

static void want(const float *got, const double *mean)
{
    for (int i = 0; i < PIXELS; i++)
        if (!(fabs((double)got[i] - mean[i]) <= 2e-6))
            fail_msg("element %d is %.9g, should be %.9g", i, (double)got[i], mean[i]);
}

static const float *seen(const struct fixture *f)
{
    return model_store_data(f->store, f->seen);
}

static float *state_of(struct rig *r, const char *name)
{
    for (size_t i = 0; i < r->count; i++)
        if (!strcmp(pk_graph_leaf(r->g, i).name, name))
            return r->memory[i];
    return NULL;
}

static void zero_states(struct rig *r)
{
    for (size_t i = 0; i < r->count; i++)
        if (r->memory[i] && pk_graph_leaf(r->g, i).kind == PK_OP_STATE)
            memset(r->memory[i], 0, pk_graph_leaf(r->g, i).bytes);
    put(r, "hyper", (const float[4]){1e-2f, 0.1f, 0.01f, 1});
}

static void test_buffers_stand_behind_what_is_trained(void **state)
{
    const struct fixture *f = *state;

    assert_int_equal(model_param_count(f->m), 3);
    assert_int_equal(model_trained_count(f->m), 2);
    assert_string_equal(model_param(f->m, 0)->name, "head.weight");
    assert_string_equal(model_param(f->m, 1)->name, "head.bias");
    assert_string_equal(model_param(f->m, 2)->name, "seen");
    assert_int_equal(model_param_elements(f->m), PIXELS * CLASSES + CLASSES);
    assert_int_equal(model_param_bytes(f->m), 4 * (PIXELS * CLASSES + CLASSES + PIXELS));
    want(seen(f), f->mean);
}

static void test_buffers_follow_training_and_a_skipped_step_leaves_them(void **state)
{
    struct fixture *f = *state;
    const struct model_train_options o = options(BATCH, EMA);
    double average[PIXELS];
    float before[PIXELS], averaged[PIXELS], report[5];
    struct rig r = {0};
    struct pd_why why;

    assert_int_equal(model_graph_train(f->m, &o, false, &r.g, &why), PD_OK);
    plan(&r, f->store, f->b, NULL);
    zero_states(&r);
    assert_null(state_of(&r, "m/seen")); /* no moments, no gradient */
    assert_non_null(state_of(&r, "m/head.bias"));
    for (int i = 0; i < PIXELS; i++) {
        state_of(&r, "ema/seen")[i] = (float)START;
        average[i] = START;
    }
    for (int step = 0; step < 3; step++) {
        put_images(&r, step, BATCH);
        assert_int_equal(pk_exec_run(r.e, &why), PD_OK);
        blend_mean(f->mean, step, BATCH);
        for (int i = 0; i < PIXELS; i++)
            average[i] = EMA * average[i] + (1 - EMA) * f->mean[i];
        want(seen(f), f->mean);
        want(state_of(&r, "ema/seen"), average);
    }
    memcpy(before, seen(f), sizeof before);
    memcpy(averaged, state_of(&r, "ema/seen"), sizeof averaged);
    {
        float x[BATCH * PIXELS] = {INFINITY};

        put(&r, "input", x);
    }
    assert_int_equal(pk_exec_run(r.e, &why), PD_OK);
    assert_int_equal(pk_exec_read(r.e, "report", report, sizeof report, &why), PD_OK);
    assert_true(report[4] == 0); /* not applied */
    assert_memory_equal(before, seen(f), sizeof before);
    assert_memory_equal(averaged, state_of(&r, "ema/seen"), sizeof averaged);
    close_rig(&r, f->b);
}

static void test_buffers_of_a_step_in_parts(void **state)
{
    struct fixture *f = *state;
    const struct model_train_options o = options(2, EMA);
    struct rig part = {0}, apply = {0};
    double average[PIXELS];
    struct pd_why why;

    assert_int_equal(model_graph_apply(f->m, &o, &apply.g, &why), PD_OK);
    assert_int_equal(model_graph_part(f->m, &o, &part.g, &why), PD_OK);
    plan(&apply, f->store, f->b, NULL);
    plan(&part, f->store, f->b, &apply);
    zero_states(&apply);
    for (int i = 0; i < PIXELS; i++) {
        state_of(&apply, "ema/seen")[i] = (float)START;
        average[i] = START;
    }
    /* The first two are parts of a step that was stopped: it begins anew. */
    for (int i = 0; i < 4; i++) {
        put_images(&part, i, 2);
        put(&part, "first", (const float[1]){i == 0 || i == 2});
        assert_int_equal(pk_exec_run(part.e, &why), PD_OK);
        want(seen(f), f->mean); /* untouched until the step is whole */
    }
    assert_int_equal(pk_exec_run(apply.e, &why), PD_OK);
    blend_mean(f->mean, 2, 2);
    blend_mean(f->mean, 3, 2);
    for (int i = 0; i < PIXELS; i++)
        average[i] = EMA * average[i] + (1 - EMA) * f->mean[i];
    want(seen(f), f->mean);
    want(state_of(&apply, "ema/seen"), average);
    close_rig(&part, f->b);
    close_rig(&apply, f->b);
}

static void test_buffers_are_read_by_an_evaluation(void **state)
{
    struct fixture *f = *state;
    const float *weight = model_store_data(f->store, f->weight), *bias = model_store_data(f->store, f->bias);
    float got[BATCH * CLASSES], *b = model_store_data(f->store, f->seen);
    struct rig r = {0};
    struct pd_why why;

    for (int i = 0; i < PIXELS; i++)
        b[i] = (float)(i % 7) / 8;
    assert_int_equal(model_graph_eval(f->m, &task_cross_entropy, BATCH, 0, &r.g, &why), PD_OK);
    plan(&r, f->store, f->b, NULL);
    put_images(&r, 0, BATCH);
    assert_int_equal(pk_exec_run(r.e, &why), PD_OK);
    assert_int_equal(pk_exec_read(r.e, "logits", got, sizeof got, &why), PD_OK);
    for (int i = 0; i < BATCH; i++)
        for (int c = 0; c < CLASSES; c++) {
            double sum = bias[c];

            for (int p = 0; p < PIXELS; p++)
                sum += (double)weight[c * PIXELS + p] * ((i * PIXELS + p) * 37 % 64 / 16.0 - 1 - p % 7 / 8.0);
            assert_true(fabs(got[i * CLASSES + c] - sum) < 1e-5);
        }
    for (int i = 0; i < PIXELS; i++)
        assert_true(b[i] == (float)(i % 7) / 8); /* and not written */
    close_rig(&r, f->b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_buffers_stand_behind_what_is_trained, setup, teardown),
        cmocka_unit_test_setup_teardown(test_buffers_follow_training_and_a_skipped_step_leaves_them, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_buffers_of_a_step_in_parts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_buffers_are_read_by_an_evaluation, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
