/* Opening a back end that is a plug-in: each way in which it can fail has a sentence of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <dlfcn.h>

#include <cmocka.h>

#include "kernels/backend/load.h"

static const struct pk_backend_api *const untouched = (const struct pk_backend_api *)&untouched;

static int clean(void **state)
{
    (void)state;
    unsetenv("POLYD_CUDA_PLUGIN");
    unsetenv("POLYD_PLUGIN_DIR");
    return 0;
}

static void expect(enum pk_load purpose, enum pd_err want, const char *word)
{
    const struct pk_backend_api *api = untouched;
    struct pd_why why = {""};

    assert_int_equal(pk_backend_load("cuda", purpose, &api, &why), want);
    assert_ptr_equal(api, untouched);
    if (!strstr(why.text, word))
        fail_msg("'%s' does not say '%s'", why.text, word);
    assert_int_equal(pk_backend_load("cuda", purpose, &api, NULL), want);
}

static void test_load_missing_file(void **state)
{
    (void)state;
    setenv("POLYD_PLUGIN_DIR", "/nonexistent", 1);
    expect(PK_LOAD_RUN, PD_ERR_NOT_FOUND, "/nonexistent/backend_cuda.so");
    expect(PK_LOAD_PLAN, PD_ERR_NOT_FOUND, "built without the back end 'cuda'");
    setenv("POLYD_CUDA_PLUGIN", "/nonexistent/other.so", 1);
    expect(PK_LOAD_RUN, PD_ERR_NOT_FOUND, "/nonexistent/other.so");
}

static void test_load_not_a_library(void **state)
{
    (void)state;
    setenv("POLYD_CUDA_PLUGIN", "/proc/self/cmdline", 1);
    expect(PK_LOAD_RUN, PD_ERR_IO, "cannot be loaded");
}

static void test_load_missing_symbol(void **state)
{
    (void)state;
    setenv("POLYD_CUDA_PLUGIN", PLUGINS "/no_entry.so", 1);
    expect(PK_LOAD_RUN, PD_ERR_IO, "it has no pk_backend_entry");
    setenv("POLYD_CUDA_PLUGIN", PLUGINS "/no_table.so", 1);
    expect(PK_LOAD_RUN, PD_ERR_IO, "returned no table of functions");
}

static void test_load_another_version(void **state)
{
    (void)state;
    setenv("POLYD_CUDA_PLUGIN", PLUGINS "/wrong_abi.so", 1);
    expect(PK_LOAD_RUN, PD_ERR_VERSION, "version 999");
    expect(PK_LOAD_PLAN, PD_ERR_VERSION, "version 999");
}

/* The file is there and the driver is not: that is what is said, for a run; a plan goes on to open the file.
 */
static void test_load_no_driver(void **state)
{
    char folder[] = "/tmp/polyd-load-XXXXXX", file[64];
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);

    (void)state;
    if (driver) {
        dlclose(driver);
        print_message("skipped: there is a driver here\n");
        skip();
    }
    assert_non_null(mkdtemp(folder));
    snprintf(file, sizeof file, "%s/backend_cuda.so", folder);
    assert_int_equal(symlink(PLUGINS "/no_entry.so", file), 0);
    setenv("POLYD_PLUGIN_DIR", folder, 1);
    expect(PK_LOAD_RUN, PD_ERR_UNSUPPORTED, "no NVIDIA driver");
    expect(PK_LOAD_PLAN, PD_ERR_IO, "it has no pk_backend_entry");
    unlink(file);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_load_missing_file, clean),
        cmocka_unit_test_teardown(test_load_not_a_library, clean),
        cmocka_unit_test_teardown(test_load_missing_symbol, clean),
        cmocka_unit_test_teardown(test_load_another_version, clean),
        cmocka_unit_test_teardown(test_load_no_driver, clean),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
