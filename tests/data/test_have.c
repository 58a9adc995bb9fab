/* What lies below a data root: bounds of the look into it. The kinds are tried by tests/api/have.test.mjs. */
#include "daemon/worker/data/have.h"
#include "kernels/base/clock.h"
#include "tests/data/box.h"

static char text[8192];

static void fill(void)
{
    for (size_t i = 0; i + 1 < sizeof text; i++)
        text[i] = i % 40 == 39 ? '\n' : (char)('a' + i % 23);
}

static void test_fits_late_is_told_by_names_alone(void **state)
{
    struct data_fit fits[DATA_HAVE_FITS];
    size_t count;

    (void)state;
    fill();
    put("late/red/a.png", "x", 1, false);
    put("late/a.txt", text, sizeof text - 1, true);
    count = data_fits(&box_root, "box/late", 1u << DATA_SET_PICTURES, pd_clock_mono_us() - 1, fits);
    assert_int_equal(count, 1);
    assert_string_equal(fits[0].dataset, "image_folder");
    assert_true(fits[0].fits && !fits[0].checked);
    count = data_fits(&box_root, "box/late/a.txt", 1u << DATA_SET_TEXT, pd_clock_mono_us() - 1, fits);
    assert_int_equal(count, 1);
    assert_true(fits[0].fits && !fits[0].checked);
    count = data_fits(&box_root, "box/late/a.txt", 1u << DATA_SET_TEXT, pd_clock_mono_us() + 10000000, fits);
    assert_int_equal(count, 1);
    assert_true(fits[0].fits && fits[0].checked);
}

static void test_have_lists_what_links_lead_to_only_at_its_own_place(void **state)
{
    struct pd_buf out;
    struct pd_why why = {""};
    char path[256];

    (void)state;
    fill();
    put("linked/own/a.txt", text, sizeof text - 1, false);
    snprintf(path, sizeof path, "%s/linked/again", folder);
    assert_int_equal(symlink("own", path), 0);
    snprintf(path, sizeof path, "%s/linked/own/round", folder);
    assert_int_equal(symlink("..", path), 0);
    snprintf(path, sizeof path, "%s/linked/etc", folder);
    assert_int_equal(symlink("/etc", path), 0);
    pd_buf_init(&out, 0);
    assert_int_equal(data_have(&box_root, 1, "box/linked", &out, &why), PD_OK);
    assert_non_null(strstr(out.data, "\"box/linked/own/a.txt\""));
    assert_null(strstr(out.data, "again/"));
    assert_null(strstr(out.data, "round/"));
    assert_null(strstr(out.data, "passwd"));
    assert_non_null(strstr(out.data, "leads outside its data root"));
    pd_buf_done(&out);
}

static void test_have_refuses_paths_outside(void **state)
{
    static const char *const paths[] = {"", "box/..", "box/linked/etc", "box/none", "other/x", "/etc"};

    (void)state;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct pd_buf out;
        struct pd_why why = {""};

        pd_buf_init(&out, 0);
        assert_int_equal(data_have(&box_root, 1, paths[i], &out, &why), PD_ERR_INVALID);
        assert_true(why.text[0]);
        pd_buf_done(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fits_late_is_told_by_names_alone),
        cmocka_unit_test(test_have_lists_what_links_lead_to_only_at_its_own_place),
        cmocka_unit_test(test_have_refuses_paths_outside),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
