/* Images travel as bytes: what the graph makes of them is what a program would compute from mean and deviation,
 * to the bit, and a network learns from them what it learns from numbers. */
#include "tests/model/rig.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/worker/model/net.h"
#include "daemon/worker/task/task.h"
#include "daemon/worker/train/optim/optim.h"

#define SIDE 16 /* a channel has every byte once */
#define PIXELS (SIDE * SIDE)

static const float mean[] = {0.485f, 0.456f, 0.1307f}, deviation[] = {0.229f, 0.224f, 0.3081f};

static float number_of(uint8_t byte, size_t channel)
{
    return ((float)byte / 255.0f - mean[channel]) / deviation[channel];
}

static struct model_spec pixels_spec(enum model_pixels pixels)
{
    struct model_spec s = vit_spec();

    s.pixels = pixels;
    memcpy(s.mean, mean, sizeof mean);
    memcpy(s.std, deviation, sizeof deviation);
    return s;
}

static void test_pixels_every_byte_becomes_the_number_of_its_channel(void **state)
{
    static const struct {
        enum model_pixels pixels;
        enum pk_dtype fed, made;
    } forms[] = {{MODEL_PIXELS_BYTES, PK_U8, PK_F32},
                 {MODEL_PIXELS_UNIT, PK_F32, PK_F32},
                 {MODEL_PIXELS_BYTES, PK_U8, PK_F64}};
    struct pk_backend *b = NULL;
    struct pd_why why;

    (void)state;
    assert_int_equal(pk_backend_cpu()->open(NULL, 0, 2, &b, &why), PD_OK);
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        struct model_spec s = pixels_spec(forms[f].pixels);
        uint8_t bytes[2 * 3 * PIXELS];
        float unit[2 * 3 * PIXELS];
        double got[2 * 3 * PIXELS];
        struct rig r = {.g = pk_graph_new(false)};
        struct model *m = make(&s);
        struct model_store *store = NULL;

        s.dtype = forms[f].made;
        for (size_t i = 0; i < sizeof bytes; i++) {
            bytes[i] = (uint8_t)(i < 3 * PIXELS ? i : 255 - i);
            unit[i] = (float)bytes[i] / 255.0f;
        }
        pk_output(r.g, "y",
                  net_normalise(r.g, &s, pk_input(r.g, "x", forms[f].fed, PK_SHAPE(2, 3, SIDE, SIDE))));
        assert_int_equal(pk_graph_check(r.g, &why), PD_OK);
        assert_int_equal(model_store_new(m, pk_backend_cpu(), b, &store, &why), PD_OK);
        plan(&r, store, b, NULL);
        put(&r, "x", forms[f].fed == PK_U8 ? (const void *)bytes : unit);
        assert_int_equal(pk_exec_run(r.e, &why), PD_OK);
        assert_int_equal(pk_exec_read(r.e, "y", got, 2 * 3 * PIXELS * pk_dtype_size(s.dtype), &why), PD_OK);
        for (size_t i = 0; i < sizeof bytes; i++) {
            const float want = number_of(bytes[i], i / PIXELS % 3);

            if (s.dtype == PK_F64)
                assert_true(got[i] == (double)want);
            else
                assert_memory_equal((const float *)(const void *)got + i, &want, sizeof want);
        }
        close_rig(&r, b);
        model_store_free(store);
        model_free(m);
    }
    pk_backend_cpu()->close(b);
}

#define BATCH 4
#define IMAGE (3 * 8 * 12)

/* The parameters after two steps of training, one behind the other. */
static float *trained(struct pk_backend *b, const struct model_spec *s, const void *images, size_t *ret_count)
{
    const struct model_train_options o = {.loss = &task_cross_entropy,
                                          .batch = BATCH,
                                          .optimizer = &optim_find("adamw")->graph,
                                          .beta1 = 0.9,
                                          .beta2 = 0.99,
                                          .eps = 1e-8};
    const int32_t target[BATCH] = {3, 0, 4, 1};
    struct model *m = make(s);
    struct model_store *store = NULL;
    struct rig r = {0};
    struct pd_why why;
    float *all = malloc((size_t)model_param_elements(m) * sizeof *all);
    size_t at = 0;

    assert_non_null(all);
    assert_int_equal(model_store_new(m, pk_backend_cpu(), b, &store, &why), PD_OK);
    assert_int_equal(model_store_init(store, 5, &why), PD_OK);
    assert_int_equal(model_graph_train(m, &o, false, &r.g, &why), PD_OK);
    plan(&r, store, b, NULL);
    put(&r, "input", images);
    put(&r, "target", target);
    for (size_t i = 0; i < r.count; i++) {
        struct pk_leaf leaf = pk_graph_leaf(r.g, i);

        if (leaf.kind == PK_OP_STATE)
            memset(r.memory[i], 0, leaf.bytes);
    }
    for (int step = 0; step < 2; step++) {
        put(&r, "hyper", (const float[4]){1e-2f, step ? 0.19f : 0.1f, step ? 0.0199f : 0.01f, 0});
        assert_int_equal(pk_exec_run(r.e, &why), PD_OK);
    }
    for (size_t i = 0; i < model_param_count(m); i++) {
        const size_t count = (size_t)pk_shape_count(&model_param(m, i)->shape);

        memcpy(all + at, model_store_data(store, i), count * sizeof *all);
        at += count;
    }
    *ret_count = at;
    close_rig(&r, b);
    model_store_free(store);
    model_free(m);
    return all;
}

static void test_pixels_as_bytes_train_as_numbers_do(void **state)
{
    struct pk_backend *b = NULL;
    uint8_t bytes[BATCH * IMAGE];
    float numbers[BATCH * IMAGE];
    struct pd_why why;

    (void)state;
    assert_int_equal(pk_backend_cpu()->open(NULL, 0, 1, &b, &why), PD_OK);
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)(i * i * 37 % 256);
        numbers[i] = number_of(bytes[i], i / 96 % 3);
    }
    for (int mixed = 0; mixed < 2; mixed++) {
        struct model_spec of_bytes = pixels_spec(MODEL_PIXELS_BYTES), ready = vit_spec();
        size_t count, other_count;
        float *a, *c;

        of_bytes.mixed = ready.mixed = mixed;
        a = trained(b, &of_bytes, bytes, &count);
        c = trained(b, &ready, numbers, &other_count);
        assert_int_equal(count, other_count);
        assert_memory_equal(a, c, count * sizeof *a);
        free(c);
        bytes[5] ^= 1; /* and one bit of one byte is seen */
        c = trained(b, &of_bytes, bytes, &count);
        assert_memory_not_equal(a, c, count * sizeof *a);
        bytes[5] ^= 1;
        free(a);
        free(c);
    }
    pk_backend_cpu()->close(b);
}

static void test_pixels_of_more_channels_are_refused(void **state)
{
    struct model_spec s = pixels_spec(MODEL_PIXELS_BYTES);
    struct model *m = NULL;
    struct pd_why why;

    (void)state;
    s.channels = 5;
    assert_int_equal(model_new(&s, &m, &why), PD_ERR_UNSUPPORTED);
    assert_non_null(strstr(why.text, "5 channels"));
    s.pixels = MODEL_PIXELS_READY;
    assert_int_equal(model_new(&s, &m, &why), PD_OK);
    model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pixels_every_byte_becomes_the_number_of_its_channel),
        cmocka_unit_test(test_pixels_as_bytes_train_as_numbers_do),
        cmocka_unit_test(test_pixels_of_more_channels_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
