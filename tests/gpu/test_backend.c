/* The table of the CUDA back end beside its ops: opening and refusing, memory, what a kernel finds wrong,
 * what a plan without a device is told, capture. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/comm/comm.h"
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
    setenv("POLYD_EMU_DRIVER", "0", 1);
    expect_refusal(0, PD_ERR_UNSUPPORTED, "has no NVIDIA driver");
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
    for (unsigned char round = 0; round < 3; round++) { /* the caller's again as soon as upload returns */
        assert_int_equal(api->upload(b, p, in, sizeof in, NULL), PD_OK);
        memset(in, 40 + round, sizeof in);
        assert_int_equal(api->download(b, out, p, sizeof out, NULL), PD_OK);
        assert_int_equal(out[7], round ? 39 + round : 49);
    }
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

/* More than there is room for on the way, in pieces of every size; nobody waits between them. */
static void test_many_uploads(void **state)
{
    enum { COUNT = 300, MOST = 100000 };
    const struct pk_backend_api *api = gpu_api();
    struct pk_backend *b = gpu_device();
    unsigned char *host = malloc(MOST), *back = malloc(MOST);
    void *at[COUNT];

    (void)state;
    assert_true(host && back);
    for (size_t i = 0; i < COUNT; i++) {
        size_t n = 1 + i * i % 7919 * (i % 50 ? 1 : 12);

        at[i] = api->alloc(b, n);
        assert_non_null(at[i]);
        memset(host, (int)(i * 13 + 1), n);
        assert_int_equal(api->upload(b, at[i], host, n, NULL), PD_OK);
    }
    for (size_t i = 0; i < COUNT; i++) {
        size_t n = 1 + i * i % 7919 * (i % 50 ? 1 : 12);

        assert_int_equal(api->download(b, back, at[i], n, NULL), PD_OK);
        memset(host, (int)(i * 13 + 1), n);
        assert_memory_equal(host, back, n);
        api->free(b, at[i]);
    }
    free(host);
    free(back);
}

static enum pd_err no_sum(struct pk_comm *c, const void *from, void *to, int64_t count, enum pk_dtype dtype,
                          int root, void *stream, struct pd_why *why)
{
    (void)c, (void)from, (void)to, (void)count, (void)dtype, (void)root, (void)stream, (void)why;
    return PD_OK;
}

/* A recording that fails behind a sum over ranks leaves nothing that later runs would wait for. */
static void test_a_failed_recording_forgets_its_sums(void **state)
{
    const struct pk_comm_api comm = {.enqueues = true, .all_reduce = no_sum};
    const struct pk_backend_api *api = gpu_api();
    const struct pk_host host = {.comm_api = &comm, .comm = (struct pk_comm *)&comm};
    struct pk_attr attr = {.ranks = {.root = -1}};
    struct pk_backend *b = NULL;
    struct pk_captured *captured = NULL;
    struct pd_why why = {""};
    struct pk_view x, y;
    struct pk_call calls[2] = {
        {.op = PK_OP_ALL_REDUCE, .attr = &attr, .n_in = 1, .n_out = 1, .in = &x, .out = &x},
        {.op = PK_OP_RESHAPE, .attr = &attr, .n_in = 1, .n_out = 1, .in = &x, .out = &y}};

    (void)state;
    assert_int_equal(api->open(&host, 0, 1, &b, &why), PD_OK);
    x = pk_view_dense(api->alloc(b, 64), PK_F32, PK_SHAPE(16));
    y = pk_view_dense(api->alloc(b, 64), PK_F32, PK_SHAPE(16));
    assert_int_equal(api->run(b, calls, 1, &why), PD_OK);
    assert_int_equal(api->sync(b, &why), PD_OK);
    assert_int_equal(api->capture(b, calls, 2, &captured, &why), PD_ERR_UNSUPPORTED);
    assert_null(captured);
    calls[1].op = PK_OP_COPY;
    if (api->run(b, &calls[1], 1, &why) != PD_OK) /* reads what was being summed */
        fail_msg("%s", why.text);
    assert_int_equal(api->sync(b, &why), PD_OK);
    api->free(b, x.data);
    api->free(b, y.data);
    api->close(b);
}

static void test_upload_refuses_what_is_not_there(void **state)
{
    const struct pk_backend_api *api = gpu_api();
    char text[65] = "";
    void *p = api->alloc(gpu_device(), 64);
    struct pd_why why = {""};

    (void)state;
    need_emulation(); /* a real device would be lost */
    assert_int_equal(api->upload(gpu_device(), p, text, sizeof text, &why), PD_ERR_IO);
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

/* Numbers are those of the run before read_later, whatever runs afterwards; an error comes with the run that made it. */
static void test_read_later(void **state)
{
    const struct pk_backend_api *api = gpu_api();
    struct pk_backend *b = gpu_device();
    const float table[3] = {1.5f, 2.5f, 3.5f};
    struct pk_attr attr = {0};
    struct pk_view in[2], out;
    struct pk_call c = {.op = PK_OP_GATHER, .attr = &attr, .n_in = 2, .n_out = 1, .in = in, .out = &out};
    struct pd_why why = {""};
    float got;

    (void)state;
    in[0] = pk_view_dense(api->alloc(b, sizeof table), PK_F32, PK_SHAPE(3, 1));
    in[1] = pk_view_dense(api->alloc(b, 4), PK_I32, PK_SHAPE(1));
    out = pk_view_dense(api->alloc(b, 4), PK_F32, PK_SHAPE(1, 1));
    assert_int_equal(api->upload(b, in[0].data, table, sizeof table, NULL), PD_OK);
    for (int32_t i = 0; i < 5; i++) { /* one run is always ahead of what is read; index 3 is out of range */
        assert_int_equal(api->upload(b, in[1].data, &i, sizeof i, NULL), PD_OK);
        assert_int_equal(api->run(b, &c, 1, &why), PD_OK);
        assert_int_equal(api->read_later(b, i % 2, out.data, sizeof got, &why), PD_OK);
        if (i > 0 && i < 4) {
            assert_int_equal(api->read_wait(b, (i - 1) % 2, &got, sizeof got, &why), PD_OK);
            assert_true(got == table[i - 1]);
        }
    }
    assert_int_equal(api->read_wait(b, 1, &got, sizeof got, &why), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "index 3"));
    assert_int_equal(api->read_wait(b, 0, &got, sizeof got, &why),
                     PD_ERR_INVALID); /* copied before it was cleared */
    assert_int_equal(api->sync(b, &why), PD_OK);
    assert_int_equal(api->read_later(b, 0, out.data, PK_READ_LATER_MOST + 1, &why), PD_ERR_INVALID);
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
        cmocka_unit_test(test_many_uploads),
        cmocka_unit_test(test_a_failed_recording_forgets_its_sums),
        cmocka_unit_test(test_upload_refuses_what_is_not_there),
        cmocka_unit_test(test_bad_index),
        cmocka_unit_test(test_read_later),
        cmocka_unit_test(test_run_and_capture_refuse),
        cmocka_unit_test(test_math),
    };

    return cmocka_run_group_tests(tests, NULL, gpu_close);
}
