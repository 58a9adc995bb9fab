/* pk_backend_api.compile on the emulated GPU, with a compiler that compiles nothing (fake_nvrtc.c): which programs a list of
 * calls needs, what is reported of them, when none is compiled again. What NVRTC makes of them: test_rtc.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/base/tree.h"
#include "kernels/formula/formula.h"
#include "tests/gpu/device.h"

static char folder[64];
static struct pk_host host;
static struct pk_backend *device;
static char said[1024]; /* one line for each report */

static void note(void *user, const struct pk_compiling *now)
{
    const size_t n = strlen(said);

    assert_ptr_equal(user, said);
    assert_true(now->us >= 0 && (now->ended || (!now->us && !now->kernels && !now->found)));
    if (now->ended)
        snprintf(said + n, sizeof said - n, "%d/%d %s: %d kernels%s\n", now->number, now->of, now->what,
                 now->kernels, now->found ? ", found" : "");
    else
        snprintf(said + n, sizeof said - n, "%d/%d %s\n", now->number, now->of, now->what);
}

static struct pk_formula_plan *plan_of(const char *text)
{
    struct pk_formula_plan *plan = calloc(1, sizeof *plan);
    struct pk_formula *f = NULL;
    struct pk_formula_fault fault;

    assert_non_null(plan);
    assert_int_equal(pk_formula_parse(text, strlen(text), PK_FORMULA_ACTIVATION, true, NULL, 0, &f, &fault),
                     PD_OK);
    assert_int_equal(pk_formula_plan(f, plan, NULL), PD_OK);
    pk_formula_free(f);
    return plan;
}

/* A call as a plan asks about it: without data. */
struct asked {
    struct pk_call call;
    struct pk_attr attr;
    struct pk_view in[3]; /* packed; y and dy of gradients */
    struct pk_formula_plan *plan;
};

static struct pk_call ask(struct asked *a, enum pk_op op, enum pk_dtype dtype, const char *formula, int head)
{
    *a = (struct asked){.plan = plan_of(formula)};
    a->attr.formula.plan = a->plan;
    a->attr.attention.packed = true;
    a->attr.attention.phi = PK_PHI_SIGMOID;
    for (int k = 0; k < 3; k++)
        a->in[k] = (struct pk_view){.dtype = dtype,
                                    .shape = k ? PK_SHAPE(2, 5, 2, head) : PK_SHAPE(2, 5, 3, 2, head)};
    return (struct pk_call){.op = op, .attr = &a->attr, .n_in = op == PK_OP_FORMULA_BWD ? 3 : 1, .in = a->in};
}

/* Gives a call rows as a plan lays them out. */
static void lay(struct asked *a, int64_t tokens, int64_t head)
{
    for (int k = 0; k < 3; k++)
        a->in[k] = pk_view_dense(NULL, a->in[k].dtype,
                                 k ? PK_SHAPE(2, tokens, 2, head) : PK_SHAPE(2, tokens, 3, 2, head));
}

#define RATIONAL "s^3/(1+abs(s))"
#define ASKED 6
static struct asked asked[ASKED];

/* The calls of a step with one formula, each layer's plan at an address of its own. */
static void step(struct pk_call *calls, enum pk_dtype dtype, const char *formula)
{
    static const enum pk_op ops[ASKED] = {PK_OP_FORMULA,     PK_OP_FORMULA,       PK_OP_FORMULA_BWD,
                                          PK_OP_FORMULA_BWD, PK_OP_FORMULA_STATS, PK_OP_FORMULA};

    for (int k = 0; k < ASKED; k++)
        calls[k] = ask(&asked[k], ops[k], dtype, formula, 32);
}

static void forget(void)
{
    for (int k = 0; k < ASKED; k++) {
        free(asked[k].plan);
        asked[k].plan = NULL;
    }
}

static void compile(const struct pk_call *calls, int count, const char *expected)
{
    struct pd_why why = {""};

    said[0] = '\0';
    if (gpu_api()->compile(device, calls, (size_t)count, note, said, &why) != PD_OK)
        fail_msg("%s", why.text);
    assert_string_equal(said, expected);
}

static void open_device(void)
{
    struct pd_why why = {""};

    host = (struct pk_host){.cache_dir = folder};
    if (gpu_api()->open(&host, 0, 1, &device, &why) != PD_OK)
        fail_msg("%s", why.text);
}

static void test_compile_makes_each_program_once(void **state)
{
    struct pk_call calls[ASKED];

    (void)state;
    step(calls, PK_BF16, RATIONAL);
    compile(calls, ASKED,
            "1/3 the forward pass in bf16\n1/3 the forward pass in bf16: 2 kernels\n"
            "2/3 gradients in bf16\n2/3 gradients in bf16: 7 kernels\n"
            "3/3 diagnostics in bf16\n3/3 diagnostics in bf16: 2 kernels\n");
    compile(calls, ASKED, "");
    forget();
    step(calls, PK_BF16, RATIONAL); /* another graph */
    compile(calls, ASKED, "");
    forget();
    step(calls, PK_BF16, "s/(1+abs(s))");
    compile(calls, 1, "1/1 the forward pass in bf16\n1/1 the forward pass in bf16: 2 kernels\n");
    forget();
}

/* Rows that bulk copies can take: the kernels of sm 90, a program for each shape of their tiles; a scalar's gradient takes four
 * more. */
static void test_compile_for_the_tiles_of_sm_90(void **state)
{
    static const int64_t tokens[] = {5, 70, 80, 600};
    struct pk_call calls[2 * 4];
    struct asked long_one[2 * 4], learned[2];

    (void)state;
    for (int k = 0; k < 8; k++) {
        calls[k] = ask(&long_one[k], k % 2 ? PK_OP_FORMULA_BWD : PK_OP_FORMULA, PK_BF16, RATIONAL, 32);
        lay(&long_one[k], tokens[k / 2], 64);
    }
    compile(calls, 8,
            "1/5 the forward pass in bf16\n1/5 the forward pass in bf16: 1 kernels\n"
            "2/5 gradients in bf16\n2/5 gradients in bf16: 2 kernels\n"
            "3/5 the forward pass in bf16\n3/5 the forward pass in bf16: 1 kernels\n"
            "4/5 gradients in bf16\n4/5 gradients in bf16: 2 kernels\n"
            "5/5 the forward pass in bf16\n5/5 the forward pass in bf16: 1 kernels\n");
    for (int k = 0; k < 2; k++) {
        calls[k] = ask(&learned[k], k ? PK_OP_FORMULA_BWD : PK_OP_FORMULA, PK_BF16, "a*s^3", 64);
        lay(&learned[k], 70, 64);
    }
    compile(calls, 2,
            "1/2 the forward pass in bf16\n1/2 the forward pass in bf16: 1 kernels\n"
            "2/2 gradients in bf16\n2/2 gradients in bf16: 6 kernels\n");
    for (int k = 0; k < 8; k++)
        free(long_one[k].plan);
    for (int k = 0; k < 2; k++)
        free(learned[k].plan);
}

/* TF32 and f32 differ in everything but the diagnostics; heads beyond 64 channels are another program. */
static void test_compile_distinguishes_arithmetics_and_heads(void **state)
{
    struct pk_call calls[ASKED];
    struct asked wide;

    (void)state;
    step(calls, PK_F32, RATIONAL);
    assert_int_equal(gpu_api()->set_math(device, PK_MATH_TF32, NULL), PD_OK);
    compile(calls, ASKED,
            "1/3 the forward pass in tf32\n1/3 the forward pass in tf32: 2 kernels\n"
            "2/3 gradients in tf32\n2/3 gradients in tf32: 7 kernels\n"
            "3/3 diagnostics in f32\n3/3 diagnostics in f32: 2 kernels\n");
    assert_int_equal(gpu_api()->set_math(device, PK_MATH_F32, NULL), PD_OK);
    compile(calls, ASKED,
            "1/2 the forward pass in f32\n1/2 the forward pass in f32: 2 kernels\n"
            "2/2 gradients in f32\n2/2 gradients in f32: 7 kernels\n");
    calls[0] = ask(&wide, PK_OP_FORMULA, PK_F32, RATIONAL, 128);
    compile(calls, 1, ""); /* f32 has one size of block */
    assert_int_equal(gpu_api()->set_math(device, PK_MATH_TF32, NULL), PD_OK);
    compile(calls, 1, "1/1 the forward pass in tf32\n1/1 the forward pass in tf32: 2 kernels\n");
    assert_int_equal(gpu_api()->set_math(device, PK_MATH_F32, NULL), PD_OK);
    free(wide.plan);
    forget();
}

static void test_compile_finds_what_an_earlier_run_compiled(void **state)
{
    struct pk_call calls[ASKED];

    (void)state;
    step(calls, PK_BF16, RATIONAL);
    compile(calls, 1, "1/1 the forward pass in bf16\n1/1 the forward pass in bf16: 2 kernels\n");
    device = gpu_api()->close(device);
    open_device();
    compile(calls, 4,
            "1/2 the forward pass in bf16\n1/2 the forward pass in bf16: 2 kernels, found\n"
            "2/2 gradients in bf16\n2/2 gradients in bf16: 7 kernels\n");
    forget();
}

static void test_compile_reports_a_failure_and_tries_again(void **state)
{
    struct pk_call calls[ASKED];
    struct pd_why why = {""};

    (void)state;
    step(calls, PK_BF16, RATIONAL);
    setenv("POLYD_FAKE_NVRTC_ERROR", "formula.cu(3): error: this is nonsense", 1);
    said[0] = '\0';
    assert_int_equal(gpu_api()->compile(device, calls, ASKED, note, said, &why), PD_ERR_INVALID);
    assert_string_equal(said, "1/3 the forward pass in bf16\n");
    assert_non_null(strstr(why.text, "this is nonsense"));
    unsetenv("POLYD_FAKE_NVRTC_ERROR");
    assert_int_equal(gpu_api()->compile(device, calls, 2, NULL, NULL, &why), PD_OK);
    compile(calls, 2, "");
    forget();
}

/* Other calls have their kernels in the plug-in; without a named compiler the emulation has all of them. */
static void test_compile_of_other_calls_does_nothing(void **state)
{
    struct pk_call calls[ASKED];
    struct asked other;

    (void)state;
    calls[0] = ask(&other, PK_OP_ATTENTION, PK_BF16, RATIONAL, 32);
    compile(calls, 1, "");
    free(other.plan);
    step(calls, PK_BF16, RATIONAL);
    unsetenv("POLYD_NVRTC");
    compile(calls, ASKED, "");
    setenv("POLYD_NVRTC", FAKE_NVRTC, 1);
    forget();
}

static int fresh(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/polyd-compile-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    setenv("POLYD_NVRTC", FAKE_NVRTC, 1);
    open_device();
    return 0;
}

static int gone(void **state)
{
    (void)state;
    device = gpu_api()->close(device);
    return pd_tree_remove(folder, NULL) == PD_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_compile_makes_each_program_once, fresh, gone),
        cmocka_unit_test_setup_teardown(test_compile_for_the_tiles_of_sm_90, fresh, gone),
        cmocka_unit_test_setup_teardown(test_compile_distinguishes_arithmetics_and_heads, fresh, gone),
        cmocka_unit_test_setup_teardown(test_compile_finds_what_an_earlier_run_compiled, fresh, gone),
        cmocka_unit_test_setup_teardown(test_compile_reports_a_failure_and_tries_again, fresh, gone),
        cmocka_unit_test_setup_teardown(test_compile_of_other_calls_does_nothing, fresh, gone)};

    return cmocka_run_group_tests_name("compile", tests, NULL, NULL);
}
