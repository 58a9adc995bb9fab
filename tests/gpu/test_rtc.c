/* Formulas through NVRTC, without a device: what is compiled, found again, refused. The ordinary run compiles a plan of one pass and one of two;
 * POLYD_TEST_FULL=1 the whole gallery for sm 80 and sm 90a. Skips by name where there is no NVRTC. */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/backend/cuda/attention/formula.h"
#include "kernels/backend/cuda/rtc.h"
#include "kernels/base/tree.h"
#include "tests/formula/gallery.h"

static char folder[64];

static void need_nvrtc(void)
{
    char version[32];
    struct pd_why why;

    if (cuda_rtc_version(version, sizeof version, &why) != PD_OK) {
        print_message("skipped: %s\n", why.text);
        skip();
    }
}

static struct pd_buf source_of(const char *text, const char *math, enum cuda_formula_part part)
{
    static const struct pk_formula_param params[] = {
        {"g", PK_RANGE_UNIT, 0}, {"b", PK_RANGE_POSITIVE, 0}, {"t", PK_RANGE_POSITIVE, 0}};
    struct pk_formula_plan *plan = malloc(sizeof *plan);
    struct pk_formula *f = NULL;
    struct pk_formula_fault fault;
    struct pd_buf out;

    assert_non_null(plan);
    assert_int_equal(pk_formula_parse(text, strlen(text), PK_FORMULA_ACTIVATION, true, params, 3, &f, &fault),
                     PD_OK);
    assert_int_equal(pk_formula_plan(f, plan, NULL), PD_OK);
    pd_buf_init(&out, 0);
    cuda_formula_source(plan, math, 64, part, &out);
    assert_int_equal(pd_buf_err(&out), PD_OK);
    pk_formula_free(f);
    free(plan);
    return out;
}

/* Compiles; returns whether it was found in the folder. */
static bool compile(const char *source, int sm, const char *where, struct pd_buf *code)
{
    struct pd_why why = {""};
    bool cached = false;

    pd_buf_init(code, 0);
    if (cuda_rtc_compile(source, sm, where, code, &cached, &why) != PD_OK)
        fail_msg("%s", why.text);
    return cached;
}

static int files(char *ret_path, size_t size)
{
    DIR *d = opendir(folder);
    struct dirent *e;
    int n = 0;

    while (d && (e = readdir(d)))
        if (strstr(e->d_name, ".rtc")) {
            n++;
            snprintf(ret_path, size, "%s/%s", folder, e->d_name);
        }
    if (d)
        closedir(d);
    return n;
}

/* Bytes of stack of each kernel, which is where registers are spilled; -1: cuobjdump is not here. */
static int stack_of(const struct pd_buf *code)
{
    char path[] = "/tmp/polyd-rtc-XXXXXX", command[160], line[512];
    const char *at;
    FILE *p;
    int fd = mkstemp(path), most = -1;

    assert_true(fd >= 0);
    assert_int_equal(write(fd, code->data, code->len), (ssize_t)code->len);
    close(fd);
    snprintf(command, sizeof command, "PATH=$PATH:/usr/local/cuda/bin cuobjdump -res-usage %s 2>/dev/null",
             path);
    p = popen(command, "r");
    while (p && fgets(line, sizeof line, p))
        if ((at = strstr(line, "STACK:")) && atoi(at + 6) > most)
            most = atoi(at + 6);
    if (p)
        pclose(p);
    unlink(path);
    return most;
}

static void test_rtc_compiles_and_finds_again(void **state)
{
    struct pd_buf source, code, again;
    char path[512];
    struct stat st;

    (void)state;
    need_nvrtc();
    source = source_of("s^3/(1+abs(s))", "att_bf16", CUDA_FORMULA_FORWARD);
    assert_false(compile(source.data, 90, folder, &code));
    assert_memory_equal(code.data, "\177ELF", 4);
    assert_non_null(memmem(code.data, code.len, "formula_forward", 15));
    assert_int_equal(files(path, sizeof path), 1);

    assert_true(compile(source.data, 90, folder, &again));
    assert_int_equal(again.len, code.len);
    assert_memory_equal(again.data, code.data, code.len);
    pd_buf_done(&again);

    /* A file that is damaged anywhere, or cut, is compiled again and put right. */
    for (int how = 0; how < 3; how++) {
        int fd = open(path, O_RDWR);

        assert_true(fd >= 0);
        assert_int_equal(fstat(fd, &st), 0);
        if (how == 2)
            assert_int_equal(ftruncate(fd, st.st_size / 2), 0);
        else
            assert_int_equal(pwrite(fd, "#", 1, how == 0 ? 30 : st.st_size - 9), 1);
        close(fd);
        assert_false(compile(source.data, 90, folder, &again));
        assert_memory_equal(again.data, "\177ELF", 4);
        pd_buf_done(&again);
        assert_true(compile(source.data, 90, folder, &again));
        assert_memory_equal(again.data, "\177ELF", 4);
        pd_buf_done(&again);
    }
    assert_int_equal(files(path, sizeof path), 1);

    /* Another architecture is another entry; a device that NVRTC does not know gets PTX; no folder, no file. */
    assert_false(compile(source.data, 80, NULL, &again));
    assert_memory_equal(again.data, "\177ELF", 4);
    pd_buf_done(&again);
    assert_false(compile(source.data, 990, NULL, &again));
    assert_non_null(strstr(again.data, ".visible .entry formula_forward"));
    pd_buf_done(&again);
    assert_int_equal(files(path, sizeof path), 1);
    pd_buf_done(&code);
    pd_buf_done(&source);
}

static void test_rtc_reports_what_the_compiler_says(void **state)
{
    struct pd_why why = {""};
    struct pd_buf code;
    char path[512];

    (void)state;
    need_nvrtc();
    pd_buf_init(&code, 0);
    assert_int_equal(cuda_rtc_compile("__global__ void f() { nonsense; }", 90, folder, &code, NULL, &why),
                     PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "nonsense"));
    assert_int_equal(files(path, sizeof path), 0);
    pd_buf_done(&code);
}

/* A folder that cannot be written costs time only. */
static void test_rtc_does_without_its_folder(void **state)
{
    struct pd_buf source, code;

    (void)state;
    need_nvrtc();
    source = source_of("s", "att_f32", CUDA_FORMULA_STATS);
    assert_false(compile(source.data, 90, "/proc/none", &code));
    pd_buf_done(&code);
    pd_buf_done(&source);
}

/* Every part, of plans of each kind; of formulas of one pass the registers are those of x^3. */
static void test_rtc_compiles_the_gallery(void **state)
{
    static const char *const some[] = {"relu(softmax(s) + a/ni)"};
    const bool full = getenv("POLYD_TEST_FULL") != NULL;
    int most[3] = {-1, -1, -1};

    (void)state;
    need_nvrtc();
    for (int m = -1; m < (full ? GALLERY : (int)(sizeof some / sizeof *some)); m++)
        for (int sm = full ? 80 : 90; sm <= 90; sm += 10)
            for (int part = 0; part < 3; part++) {
                const char *text = m < 0 ? "s^3/sqrt(n)" : full ? gallery[m].text : some[m];
                const bool two = full && m >= 0 ? gallery[m].passes == 2 : m == 0;
                struct pd_buf source = source_of(text, "att_bf16", (enum cuda_formula_part)part), code;
                int stack;

                (void)compile(source.data, sm, NULL, &code);
                assert_memory_equal(code.data, "\177ELF", 4);
                stack = stack_of(&code);
                if (m < 0)
                    most[part] = stack > most[part] ? stack : most[part];
                else if (!two && stack > most[part])
                    print_message("%s, sm %d, part %d: %d bytes of stack, x^3 has %d\n", text, sm, part,
                                  stack, most[part]);
                pd_buf_done(&code);
                pd_buf_done(&source);
            }
}

static void test_rtc_without_the_library(void **state)
{
    pid_t child = fork();
    int status;

    (void)state;
    assert_true(child >= 0);
    if (child == 0) {
        struct pd_why why = {""};
        char version[32];

        setenv("POLYD_NVRTC", "/nonexistent/libnvrtc.so", 1);
        _exit(cuda_rtc_version(version, sizeof version, &why) == PD_ERR_UNSUPPORTED &&
                      strstr(why.text, "NVRTC")
                  ? 0
                  : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static int folder_new(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/polyd-rtc-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int folder_gone(void **state)
{
    (void)state;
    return pd_tree_remove(folder, NULL) == PD_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rtc_without_the_library), /* first: the library is opened once */
        cmocka_unit_test_setup_teardown(test_rtc_compiles_and_finds_again, folder_new, folder_gone),
        cmocka_unit_test_setup_teardown(test_rtc_reports_what_the_compiler_says, folder_new, folder_gone),
        cmocka_unit_test_setup_teardown(test_rtc_does_without_its_folder, folder_new, folder_gone),
        cmocka_unit_test(test_rtc_compiles_the_gallery)};

    return cmocka_run_group_tests_name("rtc", tests, NULL, NULL);
}
