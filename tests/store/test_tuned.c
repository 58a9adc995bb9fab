/* Measured choices: first come, bounded, counted, dropped; a broken row costs itself alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "daemon/polyd/store/tx.h"

static char dir[64];
static struct store_writer *writer;
static struct store *reader;

static int setup(void **state)
{
    struct store_writer_options o = {.state_dir = dir};
    struct pd_why why;

    (void)state;
    strcpy(dir, "/tmp/polyd-tuned-XXXXXX");
    assert_non_null(mkdtemp(dir));
    assert_int_equal(store_writer_start(&o, &writer, &why), PD_OK);
    assert_int_equal(store_open_reader(store_writer_path(writer), &reader, &why), PD_OK);
    return 0;
}

static int teardown(void **state)
{
    char command[128];

    (void)state;
    reader = store_close(reader);
    writer = store_writer_stop(writer);
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

static enum pd_err call(enum pd_err (*apply)(struct store_tx *, void *, struct pd_why *), void *ctx)
{
    struct store_work work = {.lane = STORE_LANE_WORKER, .apply = apply, .ctx = ctx};
    struct pd_why why;

    return store_writer_call(writer, &work, &why);
}

struct batch {
    struct store_tuned t;
    int from, count; /* keys "k<from>"...; count 0 = t as it is */
    int64_t fresh, gone;
};

static enum pd_err add(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct batch *b = ctx;
    enum pd_err err = PD_OK;
    char key[32];

    b->fresh = 0;
    for (int i = 0; err == PD_OK && i < (b->count ? b->count : 1); i++) {
        bool is_new = false;

        snprintf(key, sizeof key, "k%d", b->from + i);
        if (b->count)
            b->t.key = key;
        err = store_tuned_add(tx, &b->t, &is_new, why);
        b->fresh += is_new;
    }
    return err == PD_OK ? store_tuned_trim(tx, b->t.device, &b->gone, why) : err;
}

struct seen {
    int count, broken;
    char first[64], last[64];
    char value[STORE_TUNED_VALUE + 1];
    int64_t run;
};

static bool see(void *ctx, const struct store_tuned *t)
{
    struct seen *s = ctx;

    if (!t->size) {
        s->broken++;
        return true;
    }
    snprintf(s->count++ ? s->last : s->first, 64, "%s", t->key);
    snprintf(s->value, sizeof s->value, "%.*s", (int)t->size, (const char *)t->value);
    s->run = t->run_id;
    return true;
}

static struct seen list(const char *device, const char *driver)
{
    struct seen s = {.count = 0};
    struct pd_why why;

    assert_int_equal(store_tuned_list(reader, device, driver, "lt 1", see, &s, &why), PD_OK);
    return s;
}

static struct store_tuned record(const char *device, const char *driver, const char *key, const char *value)
{
    return (struct store_tuned){.device = device,
                                .driver = driver,
                                .library = "lt 1",
                                .key = key,
                                .value = value,
                                .size = strlen(value),
                                .run_id = 7};
}

static void test_store_tuned_the_first_of_a_name_holds(void **state)
{
    struct batch b = {.t = record("NVIDIA H200", "13.0", "4x4", "one")};
    struct seen s;

    (void)state;
    assert_int_equal(call(add, &b), PD_OK);
    assert_int_equal(b.fresh, 1);
    b.t = record("NVIDIA H200", "13.0", "4x4", "two");
    b.t.run_id = 8;
    assert_int_equal(call(add, &b), PD_OK);
    assert_int_equal(b.fresh, 0);
    s = list("NVIDIA H200", "13.0");
    assert_int_equal(s.count, 1);
    assert_string_equal(s.value, "one");
    assert_int_equal(s.run, 7);
    /* Another driver's, another device's are others. */
    b.t = record("NVIDIA H200", "13.1", "4x4", "three");
    assert_int_equal(call(add, &b), PD_OK);
    b.t = record("NVIDIA A100", "13.0", "4x4", "four");
    assert_int_equal(call(add, &b), PD_OK);
    assert_string_equal(list("NVIDIA H200", "13.1").value, "three");
    assert_string_equal(list("NVIDIA A100", "13.0").value, "four");
    assert_int_equal(list("NVIDIA B200", "13.0").count, 0);
}

static void test_store_tuned_refuses_what_is_no_record(void **state)
{
    char long_key[STORE_TUNED_KEY + 2], value[STORE_TUNED_VALUE + 2];
    struct batch b = {.t = record("", "13.0", "4x4", "one")};

    (void)state;
    memset(long_key, 'k', sizeof long_key - 1);
    long_key[sizeof long_key - 1] = '\0';
    memset(value, 'v', sizeof value - 1);
    value[sizeof value - 1] = '\0';
    assert_int_equal(call(add, &b), PD_ERR_INVALID);
    b.t = record("g", "13.0", "", "one");
    assert_int_equal(call(add, &b), PD_ERR_INVALID);
    b.t = record("g", "13.0", long_key, "one");
    assert_int_equal(call(add, &b), PD_ERR_INVALID);
    b.t = record("g", "13.0", "k", "");
    assert_int_equal(call(add, &b), PD_ERR_INVALID);
    b.t = record("g", "13.0", "k", value);
    assert_int_equal(call(add, &b), PD_ERR_INVALID);
    b.t.size--;
    long_key[STORE_TUNED_KEY] = '\0';
    b.t.key = long_key;
    assert_int_equal(call(add, &b), PD_OK);
    assert_int_equal(list("g", "13.0").count, 1);
}

static void test_store_tuned_the_oldest_give_way(void **state)
{
    struct batch b = {.t = record("g", "12.9", "", "old"), .count = 5};
    struct seen s;

    (void)state;
    assert_int_equal(call(add, &b), PD_OK);
    b = (struct batch){.t = record("g", "13.0", "", "new"), .count = STORE_TUNED_DEVICE};
    assert_int_equal(call(add, &b), PD_OK);
    assert_int_equal(b.gone, 5);
    assert_int_equal(list("g", "12.9").count, 0);
    b = (struct batch){.t = record("g", "13.0", "", "new"), .from = STORE_TUNED_DEVICE, .count = 3};
    assert_int_equal(call(add, &b), PD_OK);
    assert_int_equal(b.gone, 3);
    s = list("g", "13.0");
    assert_int_equal(s.count, STORE_TUNED_DEVICE);
    assert_string_equal(s.first, "k3");
    /* And of all devices together. */
    for (int i = 0; i < 4; i++) {
        char device[] = "h0";

        device[1] = (char)('0' + i);
        b = (struct batch){.t = record(device, "13.0", "", "x"), .count = STORE_TUNED_DEVICE};
        assert_int_equal(call(add, &b), PD_OK);
    }
    assert_int_equal(list("g", "13.0").count, 0);
    assert_int_equal(list("h3", "13.0").count, STORE_TUNED_DEVICE);
}

struct drop {
    const char *device;
    int64_t version;
};

static enum pd_err drop(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    const struct drop *d = ctx;

    return store_tuned_drop(tx, d->device, d->version, "a test", why);
}

static int64_t sums_version;
static int sums_count;

static bool sum(void *ctx, const struct store_tuned_sum *s)
{
    int64_t *records = ctx;

    *records += s->records;
    sums_version = s->version;
    sums_count++;
    assert_true(s->bytes >= 4 * s->records);
    assert_true(s->first_us > 0 && s->last_us >= s->first_us);
    return true;
}

static int64_t sums(const char *device)
{
    int64_t records = 0;
    struct pd_why why;

    sums_count = 0;
    assert_int_equal(store_tuned_sums(reader, device, sum, &records, &why), PD_OK);
    return records;
}

static void test_store_tuned_counts_and_drops_by_device(void **state)
{
    struct batch b = {.t = record("g", "13.0", "", "one"), .count = 3};
    struct drop d = {.device = "g"};

    (void)state;
    assert_int_equal(sums(NULL), 0);
    assert_int_equal(call(add, &b), PD_OK);
    b.t = record("g", "13.1", "", "one");
    assert_int_equal(call(add, &b), PD_OK);
    b.t = record("h", "13.0", "", "one");
    assert_int_equal(call(add, &b), PD_OK);
    assert_int_equal(sums(NULL), 9);
    assert_int_equal(sums_count, 3);
    assert_int_equal(sums("g"), 6);
    d.version = sums_version;
    b = (struct batch){.t = record("g", "13.0", "late", "one")};
    assert_int_equal(call(add, &b), PD_OK);
    assert_int_equal(call(drop, &d), PD_ERR_STALE);
    assert_int_equal(sums("g"), 7);
    d.version = sums_version;
    assert_int_equal(call(drop, &d), PD_OK);
    assert_int_equal(sums("g"), 0);
    assert_int_equal(sums("h"), 3);
    assert_int_equal(call(drop, &d), PD_ERR_NOT_FOUND);
    /* The tag of a device is never given twice. */
    b = (struct batch){.t = record("g", "13.0", "again", "one")};
    assert_int_equal(call(add, &b), PD_OK);
    assert_int_equal(sums("g"), 1);
    assert_true(sums_version > d.version);
}

static void test_store_tuned_a_broken_row_costs_itself_alone(void **state)
{
    struct batch b = {.t = record("g", "13.0", "good", "one")};
    struct seen s;
    sqlite3 *db;

    (void)state;
    assert_int_equal(call(add, &b), PD_OK);
    assert_int_equal(sqlite3_open(store_writer_path(writer), &db), SQLITE_OK);
    assert_int_equal(
        sqlite3_exec(db,
                     "PRAGMA ignore_check_constraints = 1;"
                     "INSERT INTO tuned (device, driver, library, key, value, run_id, time_us) VALUES "
                     "('g', '13.0', 'lt 1', '', x'00', 1, 1), ('g', '13.0', 'lt 1', 'empty', x'', 1, 1), "
                     "('g', '13.0', 'lt 1', 'large', zeroblob(300), 1, 1), "
                     "('g', '13.0', 'lt 1', CAST(x'610062' AS TEXT), x'00', 1, 1)",
                     NULL, NULL, NULL),
        SQLITE_OK);
    sqlite3_close(db);
    s = list("g", "13.0");
    assert_int_equal(s.count, 1);
    assert_int_equal(s.broken, 4);
    assert_string_equal(s.first, "good");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_store_tuned_the_first_of_a_name_holds),
        TEST(test_store_tuned_refuses_what_is_no_record),
        TEST(test_store_tuned_the_oldest_give_way),
        TEST(test_store_tuned_counts_and_drops_by_device),
        TEST(test_store_tuned_a_broken_row_costs_itself_alone),
    };

    return cmocka_run_group_tests_name("store tuned", tests, NULL, NULL);
}
