/* The table of the CUDA back end beside its ops: opening and refusing, memory, what a kernel finds wrong,
 * what a plan without a device is told, capture. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/gpu/device.h"

static void expect_refusal(int device, enum pd_err want, const char *word)
{
    struct pk_backend *b = NULL;
    struct pd_why why = {""};

    assert_int_equal(gpu_api()->open(NULL, device, 1, &b, &why), want);
    assert_null(b);
    if (!strstr(why.text, word))
        fail_msg("'%s' does not say '%s'", why.text, word);
}

static void need_emulation(void)
{
    if (!gpu_is_emulated())
        skip();
}

static void test_open_refuses(void **state)
{
    (void)state;
    expect_refusal(-1, PD_ERR_NOT_FOUND, "there is no GPU -1");
    need_emulation();
    expect_refusal(1, PD_ERR_NOT_FOUND, "there is no GPU 1: this process sees 1");
    setenv("POLYD_EMU_SM", "75", 1);
    expect_refusal(0, PD_ERR_UNSUPPORTED, "compute capability 7.5");
    unsetenv("POLYD_EMU_SM");
    setenv("POLYD_EMU_DEVICES", "0", 1);
    expect_refusal(0, PD_ERR_NOT_FOUND, "no NVIDIA GPU is visible");
    setenv("CUDA_VISIBLE_DEVICES", "none", 1);
    expect_refusal(0, PD_ERR_NOT_FOUND, "CUDA_VISIBLE_DEVICES=none");
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("POLYD_EMU_DEVICES");
    setenv("POLYD_EMU_DRIVER", "12020", 1);
    expect_refusal(0, PD_ERR_UNSUPPORTED, "supports CUDA 12.2");
    unsetenv("POLYD_EMU_DRIVER");
    assert_null(gpu_api()->close(NULL));
}

static void test_memory(void **state)
{
    const struct pk_backend_api *api = gpu_api();
    struct pk_backend *b = gpu_device();
    unsigned char in[1000], out[1000];
    struct pk_backend_info before, after;
    void *p = api->alloc(b, sizeof in), *nothing = api->alloc(b, 0), *host;

    (void)state;
    assert_non_null(p);
    assert_non_null(nothing);
    assert_int_equal((uintptr_t)p % 256, 0);
    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (unsigned char)(i * 7);
    assert_int_equal(api->upload(b, p, in, sizeof in, NULL), PD_OK);
    assert_int_equal(api->download(b, out, p, sizeof out, NULL), PD_OK);
    assert_memory_equal(in, out, sizeof in);
    assert_int_equal(api->upload(b, nothing, in, 0, NULL), PD_OK);
    host = api->alloc_host(b, sizeof in);
    assert_non_null(host);
    assert_int_equal((uintptr_t)host % 256, 0);
    memset(host, 3, sizeof in);
    assert_int_equal(api->upload(b, p, host, sizeof in, NULL), PD_OK);
    memset(host, 9, sizeof in); /* upload has read it */
    assert_int_equal(api->download(b, out, p, sizeof out, NULL), PD_OK);
    assert_true(out[0] == 3 && out[999] == 3);
    api->free_host(b, host);
    api->free_host(b, NULL);
    assert_int_equal(api->info(b, &before, NULL), PD_OK);
    host = api->alloc(b, 1 << 20);
    assert_int_equal(api->info(b, &after, NULL), PD_OK);
    assert_true(before.memory_free >= after.memory_free && after.memory_total == before.memory_total);
    assert_true(before.sm >= 80 && before.multiprocessors > 0 && before.name[0] && before.driver[0]);
    assert_int_equal(strncmp(before.uuid, "GPU-", 4), 0);
    assert_int_equal(strlen(before.uuid), 40);
    api->free(b, host);
    api->free(b, p);
    api->free(b, nothing);
    assert_null(api->alloc(b, (size_t)1 << 60));
}

static void test_upload_refuses_what_is_not_there(void **state)
{
    const struct pk_backend_api *api = gpu_api();
    char text[64] = "";
    void *p = api->alloc(gpu_device(), 64);
    struct pd_why why = {""};

    (void)state;
    need_emulation(); /* a real device would be lost */
    assert_int_equal(api->upload(gpu_device(), p, text, 65, &why), PD_ERR_IO);
    assert_non_null(strstr(why.text, "invalid argument"));
    assert_int_equal(api->sync(gpu_device(), &why), PD_OK); /* the error does not come up again */
    api->free(gpu_device(), p);
}

/* An index out of range is found by the kernel, said by sync, once, and the device goes on. */
static void test_bad_index(void **state)
{
    const struct pk_backend_api *api = gpu_api();
    struct pk_backend *b = gpu_device();
    const float table[15] = {0};
    struct pk_attr attr = {0};
    struct pk_view in[2], out;
    struct pk_call c = {.op = PK_OP_GATHER, .attr = &attr, .n_in = 2, .n_out = 1, .in = in, .out = &out};
    struct pk_captured *captured = NULL;
    struct pd_why why;

    (void)state;
    in[0] = pk_view_dense(api->alloc(b, sizeof table), PK_F32, PK_SHAPE(5, 3));
    in[1] = pk_view_dense(api->alloc(b, 8), PK_I32, PK_SHAPE(2));
    out = pk_view_dense(api->alloc(b, 24), PK_F32, PK_SHAPE(2, 3));
    if (!api->supports(b, &c)) {
        gpu_note_missing(PK_OP_GATHER);
        return;
    }
    assert_int_equal(api->upload(b, in[0].data, table, sizeof table, NULL), PD_OK);
    for (int bad = -1; bad <= 5; bad += 6) {
        const int32_t index[2] = {0, bad}, good[2] = {4, 0};

        assert_int_equal(api->upload(b, in[1].data, index, sizeof index, NULL), PD_OK);
        assert_int_equal(api->run(b, &c, 1, &why), PD_OK);
        assert_int_equal(api->sync(b, &why), PD_ERR_INVALID);
        assert_non_null(strstr(why.text, "gather"));
        assert_non_null(strstr(why.text, bad < 0 ? "-1" : "5"));
        assert_int_equal(api->upload(b, in[1].data, good, sizeof good, NULL), PD_OK);
        assert_int_equal(api->run(b, &c, 1, &why), PD_OK);
        assert_int_equal(api->sync(b, &why), PD_OK);
        if (!captured)
            assert_int_equal(api->capture(b, &c, 1, &captured, &why), PD_OK);
        assert_int_equal(api->upload(b, in[1].data, index, sizeof index, NULL), PD_OK);
        assert_int_equal(api->replay(b, captured, &why), PD_OK);
        assert_int_equal(api->sync(b, NULL), PD_ERR_INVALID);
        assert_int_equal(api->sync(b, NULL), PD_OK);
    }
    assert_null(api->captured_free(b, captured));
    assert_null(api->captured_free(b, NULL));
    api->free(b, in[0].data);
    api->free(b, in[1].data);
    api->free(b, out.data);
}

static void test_run_and_capture_refuse(void **state)
{
    const struct pk_backend_api *api = gpu_api();
    struct pk_backend *b = gpu_device();
    struct pk_attr attr = {0};
    struct pk_view x = pk_view_dense(NULL, PK_F64, PK_SHAPE(4)), y = x;
    struct pk_call c = {.op = PK_OP_COPY, .attr = &attr, .n_in = 1, .n_out = 1, .in = &x, .out = &y};
    struct pk_captured *captured = NULL;
    struct pd_why why = {""};

    (void)state;
    assert_false(api->supports(b, &c)); /* there is no f64 */
    assert_false(api->supports(NULL, &c));
    c.op = PK_OP_RESHAPE;
    assert_false(api->supports(NULL, &c));
    assert_int_equal(api->workspace_bytes(NULL, &c), 0);
    assert_int_equal(api->run(b, &c, 1, &why), PD_ERR_UNSUPPORTED);
    assert_int_equal(api->capture(b, &c, 1, &captured, &why), PD_ERR_UNSUPPORTED);
    assert_null(captured);
    /* A capture that failed leaves the stream as it was. */
    assert_int_equal(api->capture(b, &c, 0, &captured, &why), PD_OK);
    assert_int_equal(api->replay(b, captured, &why), PD_OK);
    assert_int_equal(api->sync(b, &why), PD_OK);
    api->captured_free(b, captured);
}

static void test_math(void **state)
{
    (void)state;
    assert_int_equal(gpu_api()->set_math(gpu_device(), PK_MATH_TF32, NULL), PD_OK);
    assert_int_equal(gpu_api()->set_math(gpu_device(), PK_MATH_F32, NULL), PD_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_refuses),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_upload_refuses_what_is_not_there),
        cmocka_unit_test(test_bad_index),
        cmocka_unit_test(test_run_and_capture_refuse),
        cmocka_unit_test(test_math),
    };

    return cmocka_run_group_tests(tests, NULL, gpu_close);
}
