/* The arithmetic of view.cuh: divisions by multiplication, and walks through views beyond 2^31 elements,
 * which no test can afford to have memory for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

extern "C" {
#include <cmocka.h>
}

#include "kernels/backend/cuda/view.cuh"

static const int64_t edge = (int64_t)1 << 31;

static void test_division(void **state)
{
    static const int64_t by[] = {1,
                                 2,
                                 3,
                                 5,
                                 7,
                                 12,
                                 48,
                                 64,
                                 197,
                                 768,
                                 1000,
                                 50257,
                                 50304,
                                 65535,
                                 65536,
                                 65537,
                                 (1 << 24) + 1,
                                 715827882,
                                 1073741823,
                                 1073741824,
                                 1073741825,
                                 2147483647};

    (void)state;
    for (int64_t d : by) {
        const struct cuda_divisor v = cuda_divisor_of(d);

        for (int64_t q = 0; q < 400; q++)
            for (int64_t r : {(int64_t)0, (int64_t)1, d / 2, d - 1})
                for (int64_t n : {q * d + r, (edge - 1) / d * d - q * d + r, q * 5368709 + r})
                    if (n >= 0 && n < edge && pk_divide(v, (uint32_t)n) != (uint32_t)(n / d))
                        fail_msg("%lld / %lld is not %u", (long long)n, (long long)d,
                                 pk_divide(v, (uint32_t)n));
    }
}

/* Where element `index` of a view of this shape lies, plainly. */
static int64_t plain(const int64_t *dim, const int64_t *stride, int rank, int64_t index)
{
    int64_t at = 0;

    for (int i = rank - 1; i >= 0; i--) {
        at += index % dim[i] * stride[i];
        index /= dim[i];
    }
    return at;
}

static void test_walks(void **state)
{
    static const struct {
        int rank;
        int64_t dim[5], stride[5], other[5];
    } views[] = {
        {3, {4, 5, 6}, {30, 6, 1}, {30, 6, 1}},                 /* dense: one axis */
        {3, {4, 5, 6}, {1, 4, 20}, {30, 6, 1}},                 /* turned round */
        {4, {2, 3, 1, 8}, {24, 8, 99, 1}, {0, 8, 5, 1}},        /* an axis of one, an axis that repeats */
        {2, {70000, 70000}, {70000, 1}, {70000, 1}},            /* beyond 2^32, one axis */
        {2, {70000, 70000}, {1, 70000}, {70000, 1}},            /* the same, turned */
        {3, {3, 2147483648, 2}, {1, 6, 3}, {4294967296, 2, 1}}, /* one axis alone is beyond */
        {5, {9, 1, 50304, 3, 2048}, {7, 0, 9437184, 3145728, 1536}, {309067776, 1, 6144, 2048, 1}},
    };

    (void)state;
    for (const auto &v : views) {
        struct cuda_pair w;
        int64_t count = 1, other;

        cuda_walk_open(&w);
        for (int i = 0; i < v.rank; i++) {
            cuda_walk_add(&w, v.dim[i], v.stride[i], v.other[i]);
            count *= v.dim[i];
        }
        cuda_walk_close(&w, 1);
        assert_int_equal(w.count, count);
        assert_int_equal(w.wide, count >= edge);
        for (int64_t k = 0; k < 4000; k++) {
            const int64_t index = k < 100 ? k % count : count - 1 - (count / 4000 * (k - 100));

            assert_int_equal(pk_walk_both(w, index, &other), plain(v.dim, v.stride, v.rank, index));
            assert_int_equal(other, plain(v.dim, v.other, v.rank, index));
            assert_int_equal(pk_walk_at(w, index), plain(v.dim, v.stride, v.rank, index));
        }
    }
}

static void test_units(void **state)
{
    struct cuda_pair w;
    int64_t other;

    (void)state;
    cuda_walk_open(&w); /* 3 rows of 8 of 12, from 10 to 12 apart */
    cuda_walk_add(&w, 3, 12, 8);
    cuda_walk_add(&w, 8, 1, 1);
    assert_true(cuda_walk_unit(&w, 4));
    assert_false(cuda_walk_unit(&w, 8));
    assert_true(cuda_walk_unit(&w, 1));
    cuda_walk_close(&w, 4);
    assert_int_equal(w.count, 6);
    assert_int_equal(pk_walk_both(w, 3, &other), 4); /* unit 1 of row 1 */
    assert_int_equal(other, 3);
    cuda_walk_open(&w);
    cuda_walk_add(&w, 8, 2, 1);
    assert_false(cuda_walk_unit(&w, 2));
    cuda_walk_open(&w); /* a single element */
    assert_false(cuda_walk_unit(&w, 4));
    cuda_walk_close(&w, 1);
    assert_int_equal(w.count, 1);
    assert_int_equal(pk_walk_at(w, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_division),
        cmocka_unit_test(test_walks),
        cmocka_unit_test(test_units),
    };

    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
