/* tests/check/test_check_parts.c: what checks of the theory are made of, against computations of another kind: gamma functions, moments that can be written
 * down, naive loops. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "daemon/worker/check/norms.h"
#include "daemon/worker/check/sigmoid.h"
#include "daemon/worker/check/stat.h"

static void close_to(double got, double want, double rtol)
{
    if (!(fabs(got - want) <= rtol * fabs(want)))
        fail_msg("%.17g instead of %.17g", got, want);
}

/* ---- draws and statistics ---------------------------------------------------------------------- */

static void test_draws_depend_on_seed_stream_and_index_alone(void **state)
{
    struct check_draws a = check_draws(3, 1, 2), b = check_draws(3, 1, 2),
                       other[3] = {check_draws(4, 1, 2), check_draws(3, 2, 2), check_draws(3, 1, 3)};
    double x[7], y[7], first[7];

    (void)state;
    check_normals(&a, 1, first, 7);
    for (int i = 0; i < 7; i += 2) /* in pieces */
        check_normals(&b, 1, y + i, i + 2 <= 7 ? 2 : 1);
    assert_memory_equal(first, y, sizeof y);
    for (int k = 0; k < 3; k++) {
        check_normals(&other[k], 1, x, 7);
        assert_memory_not_equal(first, x, sizeof x);
    }
}

static void test_normals_have_the_moments_of_their_distribution(void **state)
{
    enum { N = 400000 };
    struct check_draws d = check_draws(0, 0, 0);
    double *x = malloc(N * sizeof *x), sum[9] = {0}, below = 0;

    (void)state;
    check_normals(&d, 2, x, N);
    for (int i = 0; i < N; i++) {
        double power = 1;

        for (int k = 1; k <= 8; k++)
            sum[k] += power *= x[i] / 2;
        below += x[i] < 2 * 1.2815515655446004; /* the 90 % quantile */
    }
    assert_true(fabs(sum[1] / N) < 4 / sqrt(N));
    assert_true(fabs(sum[3] / N) < 4 * sqrt(15.0 / N));
    close_to(sum[2] / N, 1, 4 * sqrt(2.0 / N));
    close_to(sum[4] / N, 3, 4 * sqrt(96.0 / N) / 3);
    close_to(sum[6] / N, 15, 4 * sqrt(10170.0 / N) / 15);
    assert_true(fabs(below / N - 0.9) < 4 * sqrt(0.09 / N));
    free(x);
}

static void test_statistics_of_a_few_numbers(void **state)
{
    static const double values[] = {1, 4, 2, 9}, x[] = {1, 2, 4, 8};
    double y[4];
    struct check_stat s = {0};

    (void)state;
    for (int i = 0; i < 4; i++) {
        check_stat_add(&s, values[i]);
        y[i] = 3 * pow(x[i], 1.75);
    }
    close_to(s.mean, 4, 1e-15);
    close_to(check_stat_var(&s), 38.0 / 3, 1e-15);
    close_to(check_stat_se(&s), sqrt(38.0 / 12), 1e-15);
    close_to(check_stat_root(&s), 2, 1e-15);
    close_to(check_stat_root_se(&s), sqrt(38.0 / 12) / 4, 1e-15);
    close_to(check_log_slope(x, y, 4), 1.75, 1e-13);
}

/* ---- closed forms ------------------------------------------------------------------------------ */

static void test_factorials_are_ratios_of_gamma_functions(void **state)
{
    (void)state;
    for (int p = 0; p <= 8; p++) {
        close_to(check_odd_factorial(p), pow(2, p) * tgamma(p + 0.5) / sqrt(3.14159265358979323846), 1e-13);
        for (int m = 1; m <= 64; m *= 4)
            close_to(check_rising(p, m), pow(2, p) * tgamma(m / 2.0 + p) / tgamma(m / 2.0), 1e-12);
    }
    assert_true(check_double_factorial(5) == 15 && check_double_factorial(6) == 48 &&
                check_double_factorial(1) == 1);
    /* The figures of the papers' proof: D = 64, p = 3. */
    assert_true(check_rising(3, 64) == 287232);
}

/* For D = d = 1 everything is moments of single normals: S_ij = q k x_i x_j. E x^(2m) = (2m-1)!!. */
static void test_closed_forms_of_one_dimension_follow_from_moments(void **state)
{
    (void)state;
    for (int p = 1; p <= 4; p++)
        for (int n = 1; n <= 5; n++) {
            const struct check_shape s = {.n = n, .width = 1, .head = 1, .sigma_x = 0.5, .sigma_t = 3};
            double m = check_odd_factorial(p),
                   x = n * check_odd_factorial(2 * p) + n * (n - 1) * m * m; /* E (sum of x^2p)^2 */

            close_to(check_power_square(&s, p), pow(0.5 * 0.5 * 9, 2 * p) * m * m * x, 1e-12);
            close_to(check_gradient_square(&s, p),
                     p * p * pow(0.5, 4 * p) * pow(3, 4 * p - 2) * check_odd_factorial(p - 1) * m * x, 1e-12);
        }
}

static void test_the_leading_term_is_the_limit_of_the_closed_form(void **state)
{
    const struct check_shape s = {.n = 1e6, .width = 1e7, .head = 1e7, .sigma_x = 1, .sigma_t = 1e-3};

    (void)state;
    for (int p = 1; p <= 4; p++)
        close_to(sqrt(check_power_square(&s, p)), check_power_leading(&s, p), 1e-4);
}

/* ---- norms of one draw ------------------------------------------------------------------------- */

enum { N = 7, D = 5, H = 3 };

static const struct check_shape shape = {.n = N, .width = D, .head = H, .sigma_x = 1, .sigma_t = 0.7};

struct naive {
    struct check_rig rig;
    double memory[1000], s[N][N]; /* x_i Q K^T x_j */
};

static void draw(struct naive *a, uint32_t index)
{
    struct check_draws d = check_draws(11, 0, index);

    assert_true(check_rig_size(&shape) <= 1000);
    check_rig_init(&a->rig, &shape, a->memory);
    check_rig_draw(&a->rig, &d);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            a->s[i][j] = 0;
            for (int e = 0; e < H; e++)
                a->s[i][j] += a->rig.q[i * H + e] * a->rig.k[j * H + e];
        }
}

static void test_norms_of_a_draw_equal_naive_loops(void **state)
{
    struct naive a;
    double power[4], gradient[4];

    (void)state;
    draw(&a, 0);
    check_rig_norms(&a.rig, 4, power, gradient);
    for (int p = 1; p <= 4; p++) {
        double want = 0, by_q = 0;

        for (int i = 0; i < N; i++)
            for (int j = 0; j < N; j++) {
                want += pow(a.s[i][j] / sqrt(H), 2 * p);
                for (int r = 0; r < D; r++) /* d S_ij^p / dQ_re = p S_ij^(p-1) x_ir k_je */
                    for (int e = 0; e < H; e++)
                        by_q += pow(p * pow(a.s[i][j], p - 1) * a.rig.x[i * D + r] * a.rig.k[j * H + e], 2);
            }
        close_to(power[p - 1], want, 1e-12);
        close_to(gradient[p - 1], by_q, 1e-12);
    }
}

static void test_matrix_powers_of_low_rank_equal_whole_products(void **state)
{
    struct naive a;
    double scratch[5 * H * H], got[4], m[N * N], now[N * N], next[N * N];

    (void)state;
    draw(&a, 1);
    check_rig_matrix_norms(&a.rig, 4, got, scratch);
    for (int i = 0; i < N * N; i++)
        m[i] = now[i] = a.s[i / N][i % N] / sqrt(H);
    for (int p = 1; p <= 4; p++) {
        double want = 0;

        for (int i = 0; i < N * N; i++)
            want += now[i] * now[i];
        close_to(got[p - 1], want, 1e-11);
        for (int i = 0; i < N; i++)
            for (int j = 0; j < N; j++) {
                next[i * N + j] = 0;
                for (int e = 0; e < N; e++)
                    next[i * N + j] += now[i * N + e] * m[e * N + j];
            }
        memcpy(now, next, sizeof now);
    }
}

/* The Jacobian of each row, entry by entry: f_i (1_ij - f_j). */
static void test_softmax_of_a_draw_equals_naive_loops(void **state)
{
    struct naive a;
    double norm, jacobian, want = 0, slope = 0;

    (void)state;
    draw(&a, 2);
    check_rig_softmax(&a.rig, &norm, &jacobian);
    for (int i = 0; i < N; i++) {
        double f[N], sum = 0;

        for (int j = 0; j < N; j++)
            sum += f[j] = exp(a.s[i][j] / sqrt(H));
        for (int j = 0; j < N; j++)
            f[j] /= sum;
        for (int j = 0; j < N; j++) {
            want += f[j] * f[j];
            for (int k = 0; k < N; k++)
                slope += pow(f[j] * ((j == k) - f[k]), 2);
        }
    }
    close_to(norm, sqrt(want), 1e-13);
    close_to(jacobian, sqrt(slope), 1e-12);
}

static void test_sigmoid_sums_equal_naive_loops(void **state)
{
    double u[D], keys[N * D], values[N * D], got[D];
    struct check_draws d = check_draws(5, 0, 0);

    (void)state;
    check_normals(&d, 1, u, D);
    check_normals(&d, 1, keys, N * D);
    check_normals(&d, 1, values, N * D);
    check_sigmoid_sum(u, keys, values, N, D, -0.4, got);
    for (int e = 0; e < D; e++) {
        double want = 0;

        for (int j = 0; j < N; j++) {
            double z = -0.4;

            for (int r = 0; r < D; r++)
                z += u[r] * keys[j * D + r];
            want += values[j * D + e] * (0.5 + 0.5 * tanh(z / 2));
        }
        close_to(got[e], want, 1e-12);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_draws_depend_on_seed_stream_and_index_alone),
        cmocka_unit_test(test_normals_have_the_moments_of_their_distribution),
        cmocka_unit_test(test_statistics_of_a_few_numbers),
        cmocka_unit_test(test_factorials_are_ratios_of_gamma_functions),
        cmocka_unit_test(test_closed_forms_of_one_dimension_follow_from_moments),
        cmocka_unit_test(test_the_leading_term_is_the_limit_of_the_closed_form),
        cmocka_unit_test(test_norms_of_a_draw_equal_naive_loops),
        cmocka_unit_test(test_matrix_powers_of_low_rank_equal_whole_products),
        cmocka_unit_test(test_softmax_of_a_draw_equals_naive_loops),
        cmocka_unit_test(test_sigmoid_sums_equal_naive_loops),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
