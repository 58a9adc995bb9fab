/* Formulas through NVRTC, without a device: what is compiled, found again, refused. Which registers their kernels spill is counted. The ordinary run
 * compiles two plans of one pass and one of two; POLYD_TEST_FULL=1 the whole gallery for sm 80 and sm 90a. Skips by name where there is no NVRTC. */
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
#include "tests/gpu/cubin.h"

#define LIMIT_MS INT64_C(600000) /* a loaded machine is no failure */

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

struct shape_of_plan {
    bool two_passes, alone, factors; /* alone: the kernels of sm 90 take it; factors: its gradient too */
    int instructions, params;        /* instructions of an entry, forward */
};

/* tiles (may be NULL): of kernels for sm 90. ret (may be NULL): of the plan. */
static struct pd_buf source_of(const char *text, const char *math, enum cuda_formula_part part,
                               const struct cuda_tiles *tiles, struct shape_of_plan *ret)
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
    cuda_formula_source(&(struct cuda_program){.plan = plan,
                                               .math = math,
                                               .head = 64,
                                               .part = part,
                                               .tiles = tiles ? *tiles : (struct cuda_tiles){0}},
                        &out);
    if (ret)
        *ret = (struct shape_of_plan){.two_passes = plan->two_passes,
                                      .alone = !plan->rows && !plan->shift && !plan->two_passes &&
                                               !plan->reads_j && !plan->reads_row_position,
                                      .factors = !plan->back_scalars,
                                      .instructions = plan->value.count - plan->value.per_row,
                                      .params = plan->params};
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
    if (cuda_rtc_compile(source, sm, where, LIMIT_MS, code, &cached, &why) != PD_OK)
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

#define KERNELS_MOST 16

static int kernels_of(const struct pd_buf *code, struct cubin_kernel *ret)
{
    const int n = cubin_kernels(code->data, code->len, ret, KERNELS_MOST);

    if (n < 1)
        fail_msg("the compiled code lists no kernels");
    return n;
}

/* Bytes that spills.txt has for a kernel of this formula ("": x^3), 0 if it has no line. -1: the file was written for another
 * NVRTC. */
static int listed(int sm, const char *kernel, const char *text)
{
    char line[512], file[64], name[128], of[400], version[32], known[32] = "";
    FILE *f = fopen(SPILLS, "r");
    int bytes = 0, got;

    assert_non_null(f);
    assert_int_equal(cuda_rtc_version(version, sizeof version, NULL), PD_OK);
    while (fgets(line, sizeof line, f)) {
        const char *nvcc = strstr(line, "Of nvcc V");

        if (nvcc)
            (void)sscanf(nvcc, "Of nvcc V%31[0-9.]", known);
        of[0] = '\0';
        if (line[0] != '#' && sscanf(line, "%63s %127s %d %399[^\n]", file, name, &got, of) >= 3 &&
            !strcmp(file, sm == 90 ? "formula/sm_90a" : "formula/sm_80") && !strcmp(name, kernel) &&
            !strcmp(of, text))
            bytes = got;
    }
    fclose(f);
    assert_true(known[0] != '\0');
    return !strncmp(known, version, strlen(version)) && known[strlen(version)] == '.' ? bytes : -1;
}

/* The key of a file has the options too: code that was compiled with others is not taken. */
static void expect_options(const char *path)
{
    char line[400] = "";
    FILE *f = fopen(path, "rb");

    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    assert_non_null(fgets(line, sizeof line, f));
    fclose(f);
    assert_non_null(strstr(line, "sm_90a -std=c++17 "));
    assert_non_null(strstr(line, " --ftz=true"));
}

static void test_rtc_compiles_and_finds_again(void **state)
{
    struct pd_buf source, code, again;
    char path[512];
    struct stat st;

    (void)state;
    need_nvrtc();
    source = source_of("s^3/(1+abs(s))", "att_bf16", CUDA_FORMULA_FORWARD, NULL, NULL);
    assert_false(compile(source.data, 90, folder, &code));
    assert_memory_equal(code.data, "\177ELF", 4);
    assert_non_null(memmem(code.data, code.len, "formula_forward", 15));
    assert_int_equal(files(path, sizeof path), 1);
    expect_options(path);

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
    assert_int_equal(cuda_rtc_compile("__global__ void f() { nonsense; }", 90, folder, CUDA_RTC_LIMIT_MS,
                                      &code, NULL, &why),
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
    source = source_of("s", "att_f32", CUDA_FORMULA_STATS, NULL, NULL);
    assert_false(compile(source.data, 90, "/proc/none", &code));
    pd_buf_done(&code);
    pd_buf_done(&source);
}

/* Stack of x^3's kernels by architecture and part, as measured here. */
static struct cubin_kernel power[2][CUDA_FORMULA_PARTS][KERNELS_MOST];
static int powers[2][CUDA_FORMULA_PARTS];

/* A kernel that has less than its line in spills.txt asks for another line. */
static void check_stack(const char *text, int sm, const struct cubin_kernel *k, int most)
{
    const int line = listed(sm, k->name, text);

    if (line < 0) {
        print_message("skipped: spills.txt was written for another NVRTC\n");
        return;
    }
    if (k->stack_bytes > (line > most ? line : most) || k->stack_bytes < line)
        fail_msg("'%s', sm %d: %s has %d bytes of stack; spills.txt says %d, x^3 has %d",
                 *text ? text : "x^3", sm, k->name, k->stack_bytes, line, most);
}

static void measure_power(int sm, enum cuda_formula_part part, const struct pd_buf *code)
{
    struct cubin_kernel *k = power[sm == 90][part];
    const int n = powers[sm == 90][part] = kernels_of(code, k);

    assert_int_equal(n, cuda_formula_kernels(part));
    for (int i = 0; i < n; i++)
        check_stack("", sm, &k[i], 0);
}

static void compare_with_power(const char *text, int sm, enum cuda_formula_part part,
                               const struct pd_buf *code)
{
    const struct cubin_kernel *k = power[sm == 90][part];
    struct cubin_kernel own[KERNELS_MOST];
    const int n = kernels_of(code, own);

    assert_int_equal(n, powers[sm == 90][part]);
    for (int i = 0; i < n; i++) {
        assert_string_equal(own[i].name, k[i].name);
        check_stack(text, sm, &own[i], k[i].stack_bytes);
    }
}

/* Every part, of plans of each kind. A formula of one pass and at most SHORT instructions spills what x^3 spills, but for what
 * spills.txt has. */
#define SHORT 12
static void test_rtc_compiles_the_gallery(void **state)
{
    static const char *const some[] = {"s^3/sqrt(n)", "s^3/(1+abs(s))", "relu(softmax(s) + a/ni)"};
    const bool full = getenv("POLYD_TEST_FULL") != NULL;
    const int count = full ? GALLERY + 1 : (int)(sizeof some / sizeof *some);
    int compared = 0;

    (void)state;
    need_nvrtc();
    for (int m = 0; m < count; m++)
        for (int sm = full ? 80 : 90; sm <= 90; sm += 10)
            for (int part = 0; part <= CUDA_FORMULA_STATS; part++) {
                const char *text = full && m > 0 ? gallery[m - 1].text : some[m];
                struct shape_of_plan shape;
                struct pd_buf source =
                                  source_of(text, "att_bf16", (enum cuda_formula_part)part, NULL, &shape),
                              code;

                (void)compile(source.data, sm, NULL, &code);
                if (m == 0)
                    measure_power(sm, (enum cuda_formula_part)part, &code);
                else if (!shape.two_passes && shape.instructions <= SHORT) {
                    compare_with_power(text, sm, (enum cuda_formula_part)part, &code);
                    compared++;
                }
                pd_buf_done(&code);
                pd_buf_done(&source);
            }
    assert_true(compared >= (full ? 2 * 3 * 20 : 3));
}

/* The kernels of sm 90 around formulas, in every shape of their tiles. Their registers are dealt out by hand: what a formula
 * spills beyond x^3 has a line in spills.txt. */
static void test_rtc_compiles_for_sm_90(void **state)
{
    static const struct {
        enum cuda_formula_part part;
        struct cuda_tiles tiles;
        bool always; /* also in the ordinary run */
    } kinds[] = {{CUDA_FORMULA_HOPPER_FORWARD, {64, 96, 3, 4}, true},
                 {CUDA_FORMULA_HOPPER_BACKWARD, {64, 128, 2, 0}, true},
                 {CUDA_FORMULA_HOPPER_FORWARD, {32, 64, 1, 2}, false},
                 {CUDA_FORMULA_HOPPER_FORWARD, {32, 128, 2, 4}, false},
                 {CUDA_FORMULA_HOPPER_FORWARD, {64, 64, 1, 2}, false},
                 {CUDA_FORMULA_HOPPER_FORWARD, {64, 112, 2, 4}, false},
                 {CUDA_FORMULA_HOPPER_FORWARD, {64, 128, 2, 4}, false},
                 {CUDA_FORMULA_HOPPER_FORWARD, {128, 128, 2, 2}, false},
                 {CUDA_FORMULA_HOPPER_BACKWARD, {32, 64, 1, 0}, false},
                 {CUDA_FORMULA_HOPPER_BACKWARD, {64, 64, 1, 0}, false},
                 {CUDA_FORMULA_HOPPER_BACKWARD, {128, 128, 2, 0}, false}};
    const bool full = getenv("POLYD_TEST_FULL") != NULL;
    int compiled = 0;

    (void)state;
    need_nvrtc();
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        struct cubin_kernel cube[KERNELS_MOST], own[KERNELS_MOST];
        int cubes = 0;

        for (int m = -1; m < GALLERY && (full || kinds[k].always); m++) {
            const char *text = m < 0 ? "s^3/sqrt(n)" : gallery[m].text;
            enum cuda_formula_part part = kinds[k].part;
            struct shape_of_plan shape;
            struct pd_buf source = source_of(text, "att_bf16", part, &kinds[k].tiles, &shape), code;
            int n;

            if ((m >= 0 && !strcmp(text, "s^3/sqrt(n)")) || !shape.alone ||
                (part == CUDA_FORMULA_HOPPER_BACKWARD && !shape.factors) || (!full && !strstr(text, "s^3"))) {
                pd_buf_done(&source);
                continue;
            }
            if (part == CUDA_FORMULA_HOPPER_BACKWARD && shape.params) {
                pd_buf_done(&source);
                part = CUDA_FORMULA_HOPPER_SCALARS;
                source = source_of(text, "att_bf16", part, &kinds[k].tiles, NULL);
            }
            (void)compile(source.data, 90, NULL, &code);
            n = kernels_of(&code, own);
            assert_int_equal(n, cuda_formula_kernels(part));
            for (int i = 0; i < n; i++) {
                int most = 0;

                if (strstr(own[i].name, "hopper_"))
                    snprintf(own[i].name + strlen(own[i].name), sizeof own[i].name - strlen(own[i].name),
                             "/%dx%d", kinds[k].tiles.columns, kinds[k].tiles.keys);
                for (int c = 0; c < cubes; c++)
                    most = strcmp(cube[c].name, own[i].name) ? most : cube[c].stack_bytes;
                check_stack(m < 0 ? "" : text, 90, &own[i], most);
            }
            if (m < 0) {
                memcpy(cube, own, sizeof cube);
                cubes = n;
            }
            compiled++;
            pd_buf_done(&code);
            pd_buf_done(&source);
        }
    }
    assert_true(compiled >= (full ? 11 * 8 : 6));
}

/* NVRTC cannot be interrupted: at the limit the caller stops waiting, and the next compilation is not affected. */
static void test_rtc_gives_up_after_its_limit(void **state)
{
    pid_t child = fork();
    int status;

    (void)state;
    assert_true(child >= 0);
    if (child == 0) {
        struct pd_why why = {""};
        struct pd_buf code;
        bool good;

        pd_buf_init(&code, 0);
        setenv("POLYD_NVRTC", FAKE_NVRTC, 1);
        setenv("POLYD_FAKE_NVRTC_MS", "100", 1);
        good = cuda_rtc_compile("x", 90, NULL, 5, &code, NULL, &why) == PD_ERR_TIMEOUT &&
               strstr(why.text, "within 0.005 s") && code.len == 0;
        good = good && cuda_rtc_compile("y", 90, NULL, 60000, &code, NULL, &why) == PD_OK &&
               !memcmp(code.data, "\177ELF", 4);
        _exit(good ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
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
        cmocka_unit_test(
            test_rtc_without_the_library), /* first, as the next one: the library is opened once */
        cmocka_unit_test(test_rtc_gives_up_after_its_limit),
        cmocka_unit_test_setup_teardown(test_rtc_compiles_and_finds_again, folder_new, folder_gone),
        cmocka_unit_test_setup_teardown(test_rtc_reports_what_the_compiler_says, folder_new, folder_gone),
        cmocka_unit_test_setup_teardown(test_rtc_does_without_its_folder, folder_new, folder_gone),
        cmocka_unit_test(test_rtc_compiles_the_gallery),
        cmocka_unit_test(test_rtc_compiles_for_sm_90)};

    return cmocka_run_group_tests_name("rtc", tests, NULL, NULL);
}
