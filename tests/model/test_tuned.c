/* Records of measured choices: kept, shared, and not believed when they are broken. */
#include <stddef.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/worker/model/tuned.h"

static char folder[64], file[96];

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/polyd-tuned-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(file, sizeof file, "%s/tuned.records", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    (void)unlink(file);
    return rmdir(folder);
}

static struct model_tuned *open_at(const char *where, struct pk_host *host)
{
    struct model_tuned *t = NULL;
    struct pd_why why = {""};

    assert_int_equal(model_tuned_new(where, NULL, NULL, NULL, &t, &why), PD_OK);
    memset(host, 0, sizeof *host);
    model_tuned_lend(t, host);
    host->log(host->user, 6, "nobody listens");
    return t;
}

static void test_tuned_records_outlive_their_worker(void **state)
{
    const unsigned char a[3] = {0, 0xff, 0x1a}, b[3] = {1, 2, 3};
    unsigned char got[8];
    struct pk_host host, other;
    struct model_tuned *t = open_at(folder, &host), *u = open_at(folder, &other);

    (void)state;
    assert_int_equal(host.tuned_get(host.user, "x|1", got, sizeof got), 0);
    host.tuned_put(host.user, "x|1", a, sizeof a);
    host.tuned_put(host.user, "x|1", b, sizeof b); /* the first holds */
    other.tuned_put(other.user, "x|1", b, sizeof b);
    other.tuned_put(other.user, "y", b, sizeof b);
    assert_int_equal(host.tuned_get(host.user, "x|1", got, sizeof got), 3);
    assert_memory_equal(got, a, 3);
    assert_int_equal(host.tuned_get(host.user, "x|1", got, 2), 0); /* it would not fit */
    model_tuned_free(t);
    model_tuned_free(u);
    t = open_at(folder, &host);
    assert_int_equal(host.tuned_get(host.user, "x|1", got, sizeof got), 3);
    assert_memory_equal(got, a, 3);
    assert_int_equal(host.tuned_get(host.user, "y", got, sizeof got), 3);
    assert_memory_equal(got, b, 3);
    model_tuned_free(t);
}

static void test_tuned_passes_over_what_is_no_record(void **state)
{
    unsigned char got[8];
    struct pk_host host;
    struct model_tuned *t;
    FILE *f = fopen(file, "w");

    (void)state;
    fputs("\n\t00\nno value\t\nodd\t012\nletters\tzz\ngood\t0a0b\ncut off\t0a", f);
    fclose(f);
    t = open_at(folder, &host);
    assert_int_equal(host.tuned_get(host.user, "odd", got, sizeof got), 0);
    assert_int_equal(host.tuned_get(host.user, "letters", got, sizeof got), 0);
    assert_int_equal(host.tuned_get(host.user, "cut off", got, sizeof got), 0);
    assert_int_equal(host.tuned_get(host.user, "good", got, sizeof got), 2);
    assert_int_equal(got[1], 0x0b);
    host.tuned_put(host.user, "a\tb", got, 2); /* such a name cannot be kept */
    assert_int_equal(host.tuned_get(host.user, "a\tb", got, sizeof got), 0);
    model_tuned_free(t);
}

static void test_tuned_without_a_folder_nothing_is_measured(void **state)
{
    struct pk_host host;
    struct model_tuned *t = open_at(NULL, &host);

    (void)state;
    assert_null(host.tuned_get);
    assert_null(host.tuned_put);
    model_tuned_free(t);
    t = open_at("/proc/none/here", &host);
    assert_null(host.tuned_put);
    assert_null(model_tuned_free(t));
    assert_null(model_tuned_free(NULL));
}

/* A store with some records, which notes requests and reports. */
static char asked[256], told[256];

static void recall(void *ctx, const struct pk_backend_info *device,
                   void (*take)(void *to, const char *key, const void *value, size_t size), void *to)
{
    static unsigned char large[300];

    (void)ctx;
    snprintf(asked, sizeof asked, "%s|%s|%s", device->name, device->driver, device->library);
    take(to, "known", "12", 2);
    take(to, "", "x", 1);
    take(to, "large", large, sizeof large);
    take(to, "empty", "", 0);
}

static void report(void *ctx, const struct pk_backend_info *device, const char *key, const void *value,
                   size_t size)
{
    size_t len = strlen(told);

    (void)ctx;
    snprintf(told + len, sizeof told - len, "%s %s=%.*s;", device->name, key, (int)size, (const char *)value);
}

static void test_tuned_store_gives_records_of_the_device_and_receives_new_ones(void **state)
{
    const struct model_tuned_store store = {.recall = recall, .report = report};
    struct pk_backend_info device = {.name = "NVIDIA H200", .driver = "13.0", .library = "lt 1"};
    struct pk_host host = {0};
    struct model_tuned *t = NULL;
    size_t known, fresh;
    struct pd_why why;
    char got[8];

    (void)state;
    asked[0] = told[0] = '\0';
    assert_int_equal(model_tuned_new(folder, &store, NULL, NULL, &t, &why), PD_OK);
    model_tuned_lend(t, &host);
    assert_non_null(host.tuned_get);
    model_tuned_recall(t, &device); /* no GPU */
    assert_string_equal(asked, "");
    host.tuned_put(host.user, "early", "1", 1);
    assert_int_equal(host.tuned_get(host.user, "early", got, sizeof got), 0);
    device.sm = 90;
    model_tuned_recall(t, &device);
    assert_string_equal(asked, "NVIDIA H200|13.0|lt 1");
    assert_int_equal(host.tuned_get(host.user, "known", got, sizeof got), 2);
    assert_int_equal(host.tuned_get(host.user, "large", got, sizeof got), 0);
    host.tuned_put(host.user, "known", "34", 2); /* it exists: it is not reported */
    host.tuned_put(host.user, "new", "5", 1);
    assert_string_equal(told, "NVIDIA H200 new=5;");
    assert_int_equal(host.tuned_get(host.user, "new", got, sizeof got), 1);
    model_tuned_count(t, &known, &fresh);
    assert_int_equal(known, 1);
    assert_int_equal(fresh, 1);
    model_tuned_free(t);
    assert_int_equal(access(file, F_OK), -1); /* the folder is not used */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_tuned_records_outlive_their_worker, setup, teardown),
        cmocka_unit_test_setup_teardown(test_tuned_passes_over_what_is_no_record, setup, teardown),
        cmocka_unit_test_setup_teardown(test_tuned_store_gives_records_of_the_device_and_receives_new_ones,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_tuned_without_a_folder_nothing_is_measured, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
