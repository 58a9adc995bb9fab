/* A state folder and its database: which start is refused, what --init moves, and that neither deletes a
 * byte. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "daemon/digest/digest.h"
#include "kernels/base/file.h"
#include "tests/lib/schema4.h"
#include "tests/store/help.h"

static void path_in(char out[PATH_MAX], const char *dir, const char *name)
{
    assert_true(snprintf(out, PATH_MAX, "%s/%s", dir, name) < PATH_MAX);
}

static void put(const char *dir, const char *name, const char *text)
{
    char path[PATH_MAX], *slash;

    path_in(path, dir, name);
    slash = strrchr(path, '/');
    *slash = '\0';
    assert_int_equal(pd_file_make_dirs(path, NULL), PD_OK);
    *slash = '/';
    assert_int_equal(pd_file_replace(path, text, strlen(text), 0600, NULL), PD_OK);
}

static bool there(const char *dir, const char *name)
{
    char path[PATH_MAX];

    path_in(path, dir, name);
    return access(path, F_OK) == 0;
}

static void shell(const char *fmt, ...)
{
    char command[4 * PATH_MAX];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(command, sizeof command, fmt, ap);
    va_end(ap);
    assert_int_equal(system(command), 0);
}

static void sql(const char *dir, const char *text)
{
    char path[PATH_MAX], *error = NULL;
    sqlite3 *db;

    path_in(path, dir, "polyd.db");
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_exec(db, text, NULL, NULL, &error) != SQLITE_OK)
        fail_msg("%s: %s", text, error);
    sqlite3_close(db);
}

/* Path, size and digest of every file but the lock, sorted. */
static struct pd_buf *listing;
static size_t listing_root;

static int list_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    char hex[DIGEST_SHA256_HEX_SIZE];

    (void)ftw;
    /* What comes and goes with any look at the database: the index of its log, and a log of no bytes. */
    if (type != FTW_F || !strcmp(path + listing_root, "/lock") ||
        !strcmp(path + listing_root, "/polyd.db-shm") ||
        (!strcmp(path + listing_root, "/polyd.db-wal") && !st->st_size))
        return 0;
    assert_int_equal(digest_file_hex(path, hex, NULL), PD_OK);
    pd_buf_printf(listing, "%s %lld %s\n", path + listing_root, (long long)st->st_size, hex);
    return 0;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static char *list(const char *dir)
{
    struct pd_buf raw, out;
    char *lines[200], *at, *line;
    size_t n = 0;

    pd_buf_init(&raw, 0);
    pd_buf_init(&out, 0);
    listing = &raw;
    listing_root = strlen(dir);
    assert_int_equal(nftw(dir, list_one, 16, FTW_PHYS), 0);
    for (at = raw.data; (line = strsep(&at, "\n")) && *line;)
        lines[n++] = line;
    qsort(lines, n, sizeof *lines, by_text);
    for (size_t i = 0; i < n; i++)
        pd_buf_printf(&out, "%s\n", lines[i]);
    pd_buf_done(&raw);
    return pd_buf_take(&out);
}

/* A start is refused, names --init, `says` what is wrong, and changes nothing. */
static void refused(struct fixture *f, const char *says)
{
    struct store_writer_options o = {.state_dir = f->dir};
    struct pd_why why = {""};
    char *before = list(f->dir), *after;
    enum pd_err err = store_writer_start(&o, &f->w, &why);

    if (err != PD_ERR_CONFLICT || !strstr(why.text, "--init") || !strstr(why.text, says))
        fail_msg("%s: %s", pd_err_name(err), why.text);
    after = list(f->dir);
    assert_string_equal(before, after);
    free(before);
    free(after);
}

static void up_with_init(struct fixture *f)
{
    struct store_writer_options o = {.state_dir = f->dir, .init = true};
    struct pd_why why = {""};

    if (store_writer_start(&o, &f->w, &why) != PD_OK ||
        store_open_reader(store_writer_path(f->w), &f->s, &why))
        fail_msg("%s", why.text);
}

/* The one folder old-<time>. */
static void old_folder(const struct fixture *f, char out[PATH_MAX])
{
    char found[256];
    FILE *p;

    snprintf(out, PATH_MAX, "ls -d %s/old-[0-9]*", f->dir);
    p = popen(out, "r");
    assert_non_null(fgets(found, sizeof found, p));
    found[strcspn(found, "\n")] = '\0';
    assert_null(fgets(out, PATH_MAX, p));
    pclose(p);
    strcpy(out, found);
}

/* --init moves everything, byte for byte, and begins at 1. */
static void begins_anew(struct fixture *f)
{
    char *before = list(f->dir), *after, old[PATH_MAX];
    struct ids ids;

    up_with_init(f);
    ids = submitted(f);
    assert_int_equal(ids.run, 1);
    old_folder(f, old);
    after = list(old);
    assert_string_equal(before, after);
    assert_true(there(f->dir, "store-id"));
    assert_false(there(f->dir, "runs"));
    writer_down(f);
    writer_up(f); /* and it is a folder like any other */
    free(before);
    free(after);
}

/* A folder that had two runs, one with a checkpoint. */
static void had_runs(struct fixture *f)
{
    submitted(f);
    submitted(f);
    writer_down(f);
    put(f->dir, "runs/1/checkpoints/step-7.safetensors", "weights");
    put(f->dir, "runs/2/attempt-1/log", "text");
    put(f->dir, "blobs/ab/abcd", "picture");
}

static void test_identity_marker_is_made_once_and_names_the_database(void **state)
{
    struct fixture *f = *state, other = {.dir = "/tmp/polyd-store-XXXXXX"};
    char uuid[33];

    assert_true(there(f->dir, "store-id"));
    strcpy(uuid, store_writer_uuid(f->w));
    assert_int_equal(strlen(uuid), 32);
    writer_down(f);
    writer_up(f);
    assert_string_equal(uuid, store_writer_uuid(f->w));
    assert_non_null(mkdtemp(other.dir));
    writer_up(&other);
    assert_string_not_equal(uuid, store_writer_uuid(other.w));
    writer_down(&other);
    shell("rm -rf '%s'", other.dir);
}

static void test_identity_deleted_database_is_refused(void **state)
{
    struct fixture *f = *state;

    had_runs(f);
    shell("rm %s/polyd.db", f->dir);
    refused(f, "is missing");
    begins_anew(f);
}

static void test_identity_emptied_database_is_refused(void **state)
{
    struct fixture *f = *state;

    had_runs(f);
    shell(": > %s/polyd.db", f->dir);
    refused(f, "is empty");
    shell("rm %s/polyd.db*", f->dir);
    sql(f->dir, "PRAGMA journal_mode = WAL; VACUUM"); /* a database, without a table */
    refused(f, "is empty");
    begins_anew(f);
}

static void test_identity_damaged_database_is_refused(void **state)
{
    struct fixture *f = *state;

    had_runs(f);
    put(f->dir, "polyd.db",
        "this is not a database, and it is longer than the header of one would be: 100 bytes "
        "at the least, which is why this sentence goes on and on");
    refused(f, "is damaged");
    begins_anew(f);
}

/* Dies with a log that is not yet in the file: what the next owner of that log would be handed. */
static void die_with_a_log(const char *dir)
{
    pid_t pid = fork();
    int status;

    if (pid == 0) {
        struct fixture f = {0};

        snprintf(f.dir, sizeof f.dir, "%s", dir);
        writer_up(&f);
        submitted(&f);
        kill(getpid(), SIGKILL);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
}

static void test_identity_database_of_another_folder_is_refused(void **state)
{
    struct fixture *f = *state, other = {.dir = "/tmp/polyd-store-XXXXXX"};

    had_runs(f);
    die_with_a_log(f->dir);
    assert_non_null(mkdtemp(other.dir));
    writer_up(&other);
    submitted(&other);
    writer_down(&other);
    shell("cp %s/polyd.db %s/polyd.db", other.dir, f->dir);
    refused(f, "belongs to another folder");
    shell("rm -rf '%s'", other.dir);
    begins_anew(f);
}

static void test_identity_database_of_another_program_is_refused(void **state)
{
    struct fixture *f = *state;

    writer_down(f);
    sql(f->dir, "PRAGMA application_id = 7");
    refused(f, "another program");
}

static void test_identity_folders_without_a_marker_are_evidence(void **state)
{
    struct fixture *f = *state;

    writer_down(f);
    shell("rm %s/polyd.db* %s/store-id", f->dir, f->dir);
    put(f->dir, "runs/1/attempt-1/log", "text");
    refused(f, "'runs'");
    shell("mv %s/runs %s/models", f->dir, f->dir);
    refused(f, "'models'");
    shell("rm -r %s/models", f->dir);
    put(f->dir, "polyd.db-wal", "a log without its database");
    refused(f, "'polyd.db-wal'");
    shell("rm %s/polyd.db-wal; mkdir %s/runs %s/models", f->dir, f->dir, f->dir);
    writer_up(f); /* empty folders are none */
    assert_int_equal(submitted(f).run, 1);
}

/* As polyd of schema 4 left it. */
static void make_old(struct fixture *f)
{
    char text[2048];

    writer_down(f);
    shell("rm %s/store-id", f->dir);
    snprintf(text, sizeof text, SCHEMA4_SQL, f->dir);
    sql(f->dir, text);
}

static void test_identity_old_folder_gets_its_marker(void **state)
{
    struct fixture *f = *state;
    struct ids ids = submitted(f);

    make_old(f);
    put(f->dir, "runs/1/attempt-1/log", "text");
    writer_up(f);
    assert_true(there(f->dir, "store-id"));
    assert_int_equal(submitted(f).run, ids.run + 1);
    writer_down(f);
    shell("rm %s/store-id", f->dir); /* lost, the database is good: as of a copy that left it behind */
    writer_up(f);
    assert_true(there(f->dir, "store-id"));
}

static void test_identity_old_folder_with_unknown_runs_is_refused(void **state)
{
    struct fixture *f = *state;

    submitted(f);
    make_old(f);
    put(f->dir, "runs/9/attempt-1/log", "text");
    refused(f, "does not know run 9");
}

static void test_identity_old_database_beside_a_marker_is_refused(void **state)
{
    struct fixture *f = *state;
    char keep[PATH_MAX];

    submitted(f);
    path_in(keep, f->dir, "store-id");
    shell("cp %s %s.kept", keep, keep);
    make_old(f);
    shell("mv %s.kept %s", keep, keep);
    refused(f, "has no identity");
}

static void test_identity_marker_that_is_none_is_refused(void **state)
{
    struct fixture *f = *state;

    writer_down(f);
    put(f->dir, "store-id", "polyd store 12345\n");
    refused(f, "store-id' does not contain the identity of a database");
    put(f->dir, "store-id", "");
    refused(f, "store-id' does not contain the identity of a database");
}

static void test_identity_init_leaves_a_sound_folder_alone(void **state)
{
    struct fixture *f = *state;
    char uuid[33];

    strcpy(uuid, store_writer_uuid(f->w));
    had_runs(f);
    up_with_init(f);
    assert_string_equal(uuid, store_writer_uuid(f->w));
    assert_true(there(f->dir, "runs/1/checkpoints/step-7.safetensors"));
    assert_int_equal(submitted(f).run, 3);
}

static void test_identity_init_goes_on_where_it_was_cut_off(void **state)
{
    struct fixture *f = *state;
    char old[PATH_MAX];

    had_runs(f);
    shell("rm %s/polyd.db; mkdir %s/old-unfinished; mv %s/runs %s/old-unfinished/runs", f->dir, f->dir,
          f->dir, f->dir);
    refused(f, "is missing");
    up_with_init(f);
    old_folder(f, old);
    assert_true(there(old, "runs/1/checkpoints/step-7.safetensors"));
    assert_true(there(old, "blobs/ab/abcd"));
    assert_true(there(old, "store-id"));
    assert_false(there(f->dir, "old-unfinished"));
}

static void count_busy(void *ctx, const char *what)
{
    assert_non_null(strstr(what, "schema"));
    ++*(int *)ctx;
}

static void test_migration_that_takes_long_says_that_it_goes_on(void **state)
{
    static struct store_metric points[10000];
    struct fixture *f = *state;
    int calls = 0;
    struct store_writer_options o = {.state_dir = f->dir, .busy = count_busy, .busy_ctx = &calls};
    struct ids ids = submitted(f);
    struct pd_why why;

    for (int k = 0; k < 5; k++) {
        for (int i = 0; i < 10000; i++)
            points[i] = (struct store_metric){.key = "x", .step = k * 10000 + i, .time_us = i, .value = i};
        append_points(f, ids.run, 0, points, 10000);
    }
    make_old(f); /* it will be copied whole before it is changed */
    assert_int_equal(store_writer_start(&o, &f->w, &why), PD_OK);
    assert_true(calls >= 3);
    writer_down(f);
    calls = 0;
    assert_int_equal(store_writer_start(&o, &f->w, &why), PD_OK);
    assert_int_equal(calls, 0); /* nothing to do */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_identity_marker_is_made_once_and_names_the_database),
        TEST(test_identity_deleted_database_is_refused),
        TEST(test_identity_emptied_database_is_refused),
        TEST(test_identity_damaged_database_is_refused),
        TEST(test_identity_database_of_another_folder_is_refused),
        TEST(test_identity_database_of_another_program_is_refused),
        TEST(test_identity_folders_without_a_marker_are_evidence),
        TEST(test_identity_old_folder_gets_its_marker),
        TEST(test_identity_old_folder_with_unknown_runs_is_refused),
        TEST(test_identity_old_database_beside_a_marker_is_refused),
        TEST(test_identity_marker_that_is_none_is_refused),
        TEST(test_migration_that_takes_long_says_that_it_goes_on),
        TEST(test_identity_init_leaves_a_sound_folder_alone),
        TEST(test_identity_init_goes_on_where_it_was_cut_off),
    };

    return cmocka_run_group_tests_name("identity", tests, NULL, NULL);
}
