/* test_trig [all]: sin and cos of f32 on the CPU back end against the C library's in double. Every 1009th float of
 * -65536 .. 65536, their signs by turns, or with `all` every one (minutes), at every level, each function alone and both
 * of one argument, which share their reduction. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/backend/rig.h"

#define BLOCK 65536
static int64_t apart = 1009;

/* One letter for each instruction: x, y inputs; s sin, c cos; d DUP of the top, e DUP of the value below it; + - *. */
static void run(struct pk_backend *b, const char *program, const struct pk_view *in, struct pk_view *out)
{
    struct pk_expr e = {0};
    struct pk_attr attr = {.expr = &e};
    struct pk_call c = {.op = PK_OP_EXPR, .attr = &attr, .n_in = 2, .n_out = 1, .in = in, .out = out};
    struct pd_why why;

    for (const char *p = program; *p; p++) {
        static const char letter[] = "xyscde+-*";
        static const enum pk_ex op[] = {PK_EX_IN,  PK_EX_IN,  PK_EX_SIN, PK_EX_COS, PK_EX_DUP,
                                        PK_EX_DUP, PK_EX_ADD, PK_EX_SUB, PK_EX_MUL};

        e.code[e.count].op = (uint8_t)op[strchr(letter, *p) - letter];
        e.code[e.count++].arg = *p == 'y' || *p == 'e';
    }
    assert_int_equal(pk_backend_cpu()->run(b, &c, 1, &why), PD_OK);
}

/* Units in the last place of a float near `want` between it and `got`. */
static double ulps(float got, double want)
{
    int exponent;

    frexp(want, &exponent);
    return fabs((double)got - want) / ldexp(1, (exponent < -125 ? -125 : exponent) - 24);
}

static void test_trig_error_is_below_one_and_a_half_units(void **state)
{
    struct pk_view in[2] = {rig_random(PK_F32, PK_SHAPE(BLOCK), 0, 1)}, y[3] = {{0}};
    double worst[3][2] = {{0}};
    float *x = in[0].data;
    int64_t bits = 0, end = 0x47800000; /* 65536 */

    (void)state;
    in[1] = in[0];
    for (int f = 0; f < 3; f++)
        y[f] = rig_random(PK_F32, PK_SHAPE(BLOCK), 0, 1);
    while (bits <= end) {
        int n = 0;

        for (; n < BLOCK && bits <= end; n++, bits += apart) {
            const uint32_t u = (uint32_t)bits | (n % 2 ? 0x80000000u : 0);

            memcpy(&x[n], &u, sizeof u);
        }
        for (int l = 0; l < 3; l++) {
            struct pk_backend *b = rig_backend(rig_levels[l], NULL, 2);

            if (!b)
                continue;
            run(b, "xs", in, &y[0]);
            run(b, "xc", in, &y[1]);
            run(b, "xsxc-", in, &y[2]);
            for (int i = 0; i < n; i++) {
                const float s = ((float *)y[0].data)[i], c = ((float *)y[1].data)[i];

                if (fabsf(x[i]) < 1.2e-38f)
                    continue; /* is 0 inside the back end */
                worst[l][0] = fmax(worst[l][0], ulps(s, sin((double)x[i])));
                worst[l][1] = fmax(worst[l][1], ulps(c, cos((double)x[i])));
                if (s - c != ((float *)y[2].data)[i])
                    fail_msg("sin %.9g less cos at %s: not that of either alone", (double)x[i],
                             rig_levels[l]);
            }
        }
    }
    for (int l = 0; l < 3; l++) {
        if (worst[l][0] == 0)
            continue;
        print_message("# %s: sin %.3f, cos %.3f units in the last place\n", rig_levels[l], worst[l][0],
                      worst[l][1]);
        assert_true(worst[l][0] < 1.5 && worst[l][1] < 1.5);
    }
}

/* Both functions of one value in programs of other shapes, against the same instructions one by one, to the bit: more
 * pairs than one program shares, values that are computed, ends that fill no vector, arguments beyond the reduction. */
static void test_trig_pairs_equal_single_calls(void **state)
{
    enum { N = 3001, DEEP = 8 };
    static const char *const programs[] = {"xsxc*",
                                           "xcxs-",
                                           "xsxc-xs*",
                                           "xsycxcys***",
                                           "xcxsd*-",
                                           "xy*dsec*+",
                                           "xsxc*ysyc*+xy+dsec*++xy*dsec*++xy-dsec*++"};
    const struct pk_view in[2] = {rig_random(PK_F32, PK_SHAPE(N), -40, 40),
                                  rig_random(PK_F32, PK_SHAPE(N), -40, 40)};
    struct pk_view got = rig_random(PK_F32, PK_SHAPE(N), 0, 1), stack[DEEP];
    float *x = in[0].data;

    (void)state;
    x[5] = 1e6f, x[77] = -3e38f, x[1030] = INFINITY, x[3000] = 70000;
    for (int i = 0; i < DEEP; i++)
        stack[i] = rig_random(PK_F32, PK_SHAPE(N), 0, 1);
    for (int l = 0; l < 3; l++) {
        struct pk_backend *b = rig_backend(rig_levels[l], NULL, 2);

        for (size_t k = 0; b && k < sizeof programs / sizeof *programs; k++) {
            int depth = 0;

            for (const char *p = programs[k]; *p; p++) {
                const bool binary = strchr("+-*", *p), unary = strchr("sc", *p);
                const struct pk_view *of = *p == 'x'   ? &in[0]
                                           : *p == 'y' ? &in[1]
                                           : *p == 'e' ? &stack[depth - 2]
                                                       : &stack[depth - 1];
                float *to;

                depth += binary ? -1 : unary ? 0 : 1;
                to = stack[depth - 1].data;
                if (unary) {
                    const struct pk_view operand[2] = {*of, *of};

                    run(b, *p == 's' ? "xs" : "xc", operand, &got);
                    memcpy(to, got.data, N * sizeof *to);
                } else if (!binary) {
                    memcpy(to, of->data, N * sizeof *to);
                } else {
                    const float *y = of->data;

                    for (int i = 0; i < N; i++)
                        to[i] = *p == '+' ? to[i] + y[i] : *p == '-' ? to[i] - y[i] : to[i] * y[i];
                }
            }
            assert_int_equal(depth, 1);
            run(b, programs[k], in, &got);
            for (int i = 0; i < N; i++) {
                const float a = ((float *)got.data)[i], want = ((float *)stack[0].data)[i];

                if (a != want && !(isnan(a) && isnan(want)))
                    fail_msg("%s at %s, element %d: %.9g, one by one %.9g", programs[k], rig_levels[l], i,
                             (double)a, (double)want);
            }
        }
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_trig_error_is_below_one_and_a_half_units, rig_reset),
        cmocka_unit_test_teardown(test_trig_pairs_equal_single_calls, rig_reset),
    };

    if (argc > 1 && strcmp(argv[1], "all") == 0)
        apart = 1;
    return cmocka_run_group_tests(tests, NULL, rig_close_all);
}
