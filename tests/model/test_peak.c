/* The matmul peak: measured by the device's own products, kept, recalled; small where memory is, and none of
 * a CPU. The device here is one of the test's, with a clock of its own: nothing depends on this machine's
 * speed. */
#include <stddef.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/model/peak.h"

static struct {
    int sm;
    int64_t n, last; /* of the largest product so far, and the last */
    int runs, allocated, fail_run;
    size_t most;               /* bytes of one allocation that are had; 0: any */
    double us_small, us_large; /* of a product of 256, and of larger ones */
    double now_us;
} device;

/* The clock of this test (the executable's own, found before the library's). */
int64_t __wrap_pd_clock_mono_us(void);
int64_t __wrap_pd_clock_mono_us(void)
{
    return (int64_t)device.now_us;
}

static enum pd_err info(struct pk_backend *b, struct pk_backend_info *ret, struct pd_why *why)
{
    (void)b;
    (void)why;
    memset(ret, 0, sizeof *ret);
    snprintf(ret->name, sizeof ret->name, "Test GPU");
    snprintf(ret->driver, sizeof ret->driver, "13.0");
    snprintf(ret->library, sizeof ret->library, "lib 1");
    ret->sm = device.sm;
    return PD_OK;
}

static void *take(struct pk_backend *b, size_t bytes)
{
    (void)b;
    if (device.most && bytes > device.most)
        return NULL;
    device.allocated++;
    return malloc(1);
}

static void give(struct pk_backend *b, void *memory)
{
    (void)b;
    device.allocated -= memory != NULL;
    free(memory);
}

static enum pd_err upload(struct pk_backend *b, void *to, const void *from, size_t bytes, struct pd_why *why)
{
    const uint16_t *x = from;
    bool plus = false, minus = false;

    (void)b;
    (void)to;
    (void)why;
    for (size_t i = 0; i < bytes / 2; i++) {
        assert_true((x[i] & 0x7f80) == 0x3f80); /* 1 .. 2, of either sign */
        plus = plus || !(x[i] & 0x8000);
        minus = minus || (x[i] & 0x8000);
    }
    assert_true(plus && minus);
    return PD_OK;
}

static size_t workspace(struct pk_backend *b, const struct pk_call *c)
{
    (void)b;
    (void)c;
    return 1000;
}

static enum pd_err run(struct pk_backend *b, const struct pk_call *calls, size_t count, struct pd_why *why)
{
    (void)b;
    assert_int_equal(count, 1);
    assert_int_equal(calls->op, PK_OP_MATMUL);
    assert_int_equal(calls->in[0].dtype, PK_BF16);
    assert_non_null(calls->workspace);
    device.last = calls->out[0].shape.dim[0];
    device.n = device.last > device.n ? device.last : device.n;
    device.runs++;
    device.now_us += device.last == 256 ? device.us_small : device.us_large;
    return device.runs == device.fail_run ? pd_fail(why, PD_ERR_IO, "the device fell off") : PD_OK;
}

static enum pd_err sync_it(struct pk_backend *b, struct pd_why *why)
{
    (void)b;
    (void)why;
    return PD_OK;
}

static const struct pk_backend_api api = {.abi = PK_BACKEND_ABI,
                                          .name = "test",
                                          .info = info,
                                          .alloc = take,
                                          .free = give,
                                          .upload = upload,
                                          .workspace_bytes = workspace,
                                          .run = run,
                                          .sync = sync_it};

static struct {
    char key[256];
    unsigned char value[64];
    size_t size;
    int puts;
} kept;

static size_t tuned_get(void *user, const char *key, void *value, size_t size)
{
    (void)user;
    if (strcmp(key, kept.key) != 0 || kept.size > size)
        return 0;
    memcpy(value, kept.value, kept.size);
    return kept.size;
}

static void tuned_put(void *user, const char *key, const void *value, size_t size)
{
    (void)user;
    kept.puts++;
    snprintf(kept.key, sizeof kept.key, "%s", key);
    memcpy(kept.value, value, size);
    kept.size = size;
}

static const struct pk_host host = {.tuned_get = tuned_get, .tuned_put = tuned_put};

static int setup(void **state)
{
    (void)state;
    memset(&device, 0, sizeof device);
    memset(&kept, 0, sizeof kept);
    device.sm = 90;
    device.us_small = 10;
    device.us_large = 1400;
    return 0;
}

static struct model_peak measure(const struct pk_host *h)
{
    struct model_peak p;
    struct pd_why why = {""};

    if (model_peak_measure(&api, NULL, h, &p, &why) != PD_OK)
        fail_msg("%s", why.text);
    assert_int_equal(device.allocated, 0);
    return p;
}

static void test_peak_is_measured_once_and_recalled(void **state)
{
    struct model_peak p = measure(&host), again;
    int runs = device.runs;

    (void)state;
    assert_int_equal(p.n, 8192);
    assert_false(p.recalled);
    assert_true(p.flops > 0.99 * 2 * 8192.0 * 8192 * 8192 / 1400e-6 &&
                p.flops < 1.01 * 2 * 8192.0 * 8192 * 8192 / 1400e-6);
    assert_int_equal(kept.puts, 1);
    assert_non_null(strstr(kept.key, "Test GPU|driver 13.0|lib 1|bf16"));
    again = measure(&host);
    assert_true(again.recalled && again.flops == p.flops && again.n == p.n);
    assert_int_equal(device.runs, runs);
    kept.size = 3; /* no such record */
    again = measure(&host);
    assert_false(again.recalled);
    assert_int_equal(kept.puts, 2);
}

static void test_peak_without_records(void **state)
{
    (void)state;
    assert_int_equal(measure(NULL).n, 8192);
    assert_int_equal(measure(&(struct pk_host){0}).n, 8192);
}

static void test_peak_of_a_slow_device_is_that_of_small_products(void **state)
{
    struct model_peak p;

    (void)state;
    device.us_small = 40000;
    p = measure(&host);
    assert_int_equal(p.n, 256);
    assert_int_equal(device.n, 256);
    assert_true(device.runs <= 3); /* it is cheap */
    assert_true(p.flops > 0.99 * 2 * 256.0 * 256 * 256 / 40000e-6);
}

static void test_peak_takes_what_fits(void **state)
{
    (void)state;
    device.most = (size_t)2048 * 2048 * 2;
    assert_int_equal(measure(&host).n, 2048);
    kept.size = 0;
    device.most = (size_t)256 * 256 * 2;
    assert_int_equal(measure(&host).n, 256);
}

static void test_peak_of_no_gpu_is_not_known(void **state)
{
    (void)state;
    device.sm = 0;
    assert_true(measure(&host).flops == 0);
    assert_int_equal(device.runs, 0);
    assert_int_equal(kept.puts, 0);
}

static void test_peak_failures_are_told(void **state)
{
    struct model_peak p;
    struct pd_why why = {""};

    (void)state;
    for (int fail = 1; fail < 8; fail++) {
        device.runs = 0;
        device.fail_run = fail;
        assert_int_equal(model_peak_measure(&api, NULL, &host, &p, &why), PD_ERR_IO);
        assert_int_equal(device.allocated, 0);
    }
    device.fail_run = 0;
    device.most = 100; /* nothing fits */
    assert_int_equal(model_peak_measure(&api, NULL, &host, &p, &why), PD_ERR_NOMEM);
    assert_int_equal(device.allocated, 0);
    assert_int_equal(kept.puts, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_peak_is_measured_once_and_recalled, setup),
        cmocka_unit_test_setup(test_peak_without_records, setup),
        cmocka_unit_test_setup(test_peak_of_a_slow_device_is_that_of_small_products, setup),
        cmocka_unit_test_setup(test_peak_takes_what_fits, setup),
        cmocka_unit_test_setup(test_peak_of_no_gpu_is_not_known, setup),
        cmocka_unit_test_setup(test_peak_failures_are_told, setup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
