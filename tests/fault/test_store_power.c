/* Loss of power under the store: what was acknowledged survives whatever the disk made of the rest.
 *
 * The scenario commits jobs and metrics while this program's own pwrite, ftruncate and fsync record every
 * change of the database and its log, and where in that stream each acknowledgement left. Then the disk is
 * replayed: at a point of the stream everything before a file's last fsync is there, and each later write is
 * lost, kept, or torn at a sector of 512 bytes, as a seeded generator says (and once all lost, once all
 * kept). Each such disk must open, be whole, and hold what was acknowledged before the point.
 * `test_store_power [-s SEED] [-n POINTS]`. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <sqlite3.h>

#include "daemon/polyd/store/tx.h"
#include "kernels/base/clock.h"
#include "kernels/base/log.h"
#include "tests/fault/verify.h"

#define SECTOR 512
#define JOBS 60
#define POINTS 30
#define FDS 1024

enum kind { OP_WRITE, OP_TRUNCATE, OP_SYNC, OP_ACK };
enum file { FILE_DB, FILE_WAL, FILES };

struct op {
    enum kind kind;
    enum file file;
    int64_t at; /* offset or new length; OP_ACK: job id */
    size_t len; /* OP_ACK: 1 = its metrics, 0 = the job itself */
    uint8_t *bytes;
};

static struct op *ops;
static size_t op_count, op_size;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool recording;
static int8_t file_of[FDS]; /* 1 + enum file */
static const char *const names[FILES] = {"/polyd.db", "/polyd.db-wal"};

static void record(enum kind kind, enum file file, int64_t at, const void *bytes, size_t len)
{
    struct op *op;

    pthread_mutex_lock(&lock);
    if (op_count == op_size) {
        op_size = op_size ? op_size * 2 : 4096;
        ops = realloc(ops, op_size * sizeof *ops);
        if (!ops)
            abort();
    }
    op = &ops[op_count++];
    *op = (struct op){.kind = kind, .file = file, .at = at, .len = len};
    if (kind == OP_WRITE) {
        op->bytes = malloc(len ? len : 1);
        if (!op->bytes)
            abort();
        memcpy(op->bytes, bytes, len);
    }
    pthread_mutex_unlock(&lock);
}

static void opened(int fd, const char *path)
{
    size_t len = strlen(path);

    if (fd < 0 || fd >= FDS)
        return;
    file_of[fd] = 0;
    for (int f = 0; recording && f < FILES; f++) {
        size_t n = strlen(names[f]);

        if (len >= n && strcmp(path + len - n, names[f]) == 0)
            file_of[fd] = (int8_t)(1 + f);
    }
}

static bool recorded(int fd)
{
    return recording && fd >= 0 && fd < FDS && file_of[fd];
}

/* Interposing is what this file is for: SQLite in its shared library finds these first. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

int open(const char *path, int flags, ...)
{
    va_list args;
    int mode, fd;

    va_start(args, flags);
    mode = va_arg(args, int);
    va_end(args);
    fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    opened(fd, path);
    return fd;
}

int open64(const char *path, int flags, ...)
{
    va_list args;
    int mode, fd;

    va_start(args, flags);
    mode = va_arg(args, int);
    va_end(args);
    fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    opened(fd, path);
    return fd;
}

ssize_t pwrite(int fd, const void *bytes, size_t len, off_t at)
{
    ssize_t n = syscall(SYS_pwrite64, fd, bytes, len, at);

    if (n > 0 && recorded(fd))
        record(OP_WRITE, (enum file)(file_of[fd] - 1), at, bytes, (size_t)n);
    return n;
}

ssize_t pwrite64(int fd, const void *bytes, size_t len, off_t at)
{
    return pwrite(fd, bytes, len, at);
}

int ftruncate(int fd, off_t len)
{
    int failed = (int)syscall(SYS_ftruncate, fd, len);

    if (!failed && recorded(fd))
        record(OP_TRUNCATE, (enum file)(file_of[fd] - 1), len, NULL, 0);
    return failed;
}

int ftruncate64(int fd, off_t len)
{
    return ftruncate(fd, len);
}

int fsync(int fd)
{
    int failed = (int)syscall(SYS_fsync, fd);

    if (!failed && recorded(fd))
        record(OP_SYNC, (enum file)(file_of[fd] - 1), 0, NULL, 0);
    return failed;
}

int fdatasync(int fd)
{
    return fsync(fd);
}

/* ---- the scenario ---- */

struct deed {
    int64_t job, run;
    int n, metrics;
};

static enum pd_err submit(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct deed *d = ctx;
    char name[32];
    enum pd_err err;

    snprintf(name, sizeof name, "job-%d", d->n);
    err = store_job_insert(tx, &(struct store_job_new){.name = name, .experiment = "power", .document = "{}"},
                           &d->job, why);
    if (err == PD_OK)
        err = store_run_insert(tx, d->job,
                               &(struct store_run_new){.document = "{}",
                                                       .config_digest = "c",
                                                       .plan_digest = "p",
                                                       .device = "cpu",
                                                       .slots = 1,
                                                       .threads = 1,
                                                       .total_steps = -1},
                               &d->run, why);
    return err;
}

static enum pd_err points(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct deed *d = ctx;
    struct store_metric m[POINTS];

    for (int i = 0; i < POINTS; i++)
        m[i] = (struct store_metric){"loss", i, 1 + i, i};
    return store_metric_append(tx, d->run, 0, m, POINTS, NULL, why);
}

static void acknowledged(void *ctx, enum pd_err err, const struct pd_why *why)
{
    struct deed *d = ctx;

    if (err != PD_OK) {
        fprintf(stderr, "test_store_power: %s\n", why->text);
        exit(2);
    }
    record(OP_ACK, FILE_DB, d->job, NULL, (size_t)d->metrics);
}

static bool play(const char *dir)
{
    struct store_writer *w = NULL;
    struct pd_why why = {{0}};

    recording = true;
    if (store_writer_start(&(struct store_writer_options){.state_dir = dir}, &w, &why) != PD_OK)
        return false;
    for (int n = 0; n < JOBS; n++) {
        struct deed d = {.n = n};
        struct store_work work = {
            .lane = STORE_LANE_COMMAND, .rows = 3, .apply = submit, .done = acknowledged, .ctx = &d};
        struct timespec idle = {.tv_sec = 1, .tv_nsec = 300000000};

        if (store_writer_call(w, &work, &why) != PD_OK)
            return false;
        d.metrics = 1;
        work.lane = STORE_LANE_METRICS;
        work.rows = POINTS;
        work.apply = points;
        if (store_writer_call(w, &work, &why) != PD_OK)
            return false;
        if (n % 20 == 19)
            nanosleep(&idle, NULL); /* an idle writer moves its log into the database */
    }
    store_writer_stop(w);
    recording = false;
    return true;
}

/* ---- the disk afterwards ---- */

static uint64_t random_state;

static uint64_t random_next(void)
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

struct image {
    uint8_t *bytes;
    size_t len, size;
};

static void apply(struct image *f, const struct op *op)
{
    size_t end = op->kind == OP_WRITE ? (size_t)op->at + op->len : (size_t)op->at;

    if (end > f->size) {
        f->bytes = realloc(f->bytes, end * 2);
        if (!f->bytes)
            abort();
        f->size = end * 2;
    }
    if (end > f->len)
        memset(f->bytes + f->len, 0, end - f->len);
    if (op->kind == OP_WRITE) {
        memcpy(f->bytes + op->at, op->bytes, op->len);
        f->len = end > f->len ? end : f->len;
    } else {
        f->len = end;
    }
}

enum fate { ALL_LOST, ALL_KEPT, MIXED };

/* An unsynced write after the loss of power: sector by sector, in no order. */
static void apply_torn(struct image *f, const struct op *op, enum fate fate)
{
    if (fate == ALL_LOST)
        return;
    if (fate == ALL_KEPT || op->kind != OP_WRITE) {
        if (fate == ALL_KEPT || random_next() % 2)
            apply(f, op);
        return;
    }
    switch (random_next() % 3) {
    case 0:
        return;
    case 1:
        apply(f, op);
        return;
    default:
        for (size_t at = 0; at < op->len; at += SECTOR) {
            struct op piece = {.kind = OP_WRITE,
                               .at = op->at + (int64_t)at,
                               .bytes = op->bytes + at,
                               .len = op->len - at < SECTOR ? op->len - at : SECTOR};

            if (random_next() % 2)
                apply(f, &piece);
        }
    }
}

static int64_t ask(sqlite3 *db, const char *sql, int64_t a)
{
    sqlite3_stmt *st = NULL;
    int64_t value = -1;

    if (sqlite3_prepare_v2(db, sql, -1, &st, NULL) == SQLITE_OK) {
        sqlite3_bind_int64(st, 1, a);
        if (sqlite3_step(st) == SQLITE_ROW)
            value = sqlite3_column_int64(st, 0);
    }
    sqlite3_finalize(st);
    return value;
}

/* What was acknowledged among the first `count` operations is in the directory's database. */
static int check(const char *dir, size_t count, const char *what)
{
    char path[128];
    struct pd_buf out;
    sqlite3 *db = NULL;
    int bad = 0;

    pd_buf_init(&out, 0);
    snprintf(path, sizeof path, "%s/polyd.db", dir);
    if (sqlite3_open(path, &db) != SQLITE_OK)
        bad++;
    for (size_t i = 0; i < count && !bad; i++) {
        if (ops[i].kind != OP_ACK)
            continue;
        if (ops[i].len ? ask(db, "SELECT count(*) FROM metric JOIN run ON run.id = run_id WHERE job_id = ?1",
                             ops[i].at) != POINTS
                       : ask(db, "SELECT count(*) FROM job WHERE id = ?1", ops[i].at) != 1) {
            printf("power lost after %zu of %zu operations, %s: job %" PRId64 " lost its %s (%s)\n", count,
                   op_count, what, ops[i].at, ops[i].len ? "metrics" : "row", sqlite3_errmsg(db));
            bad++;
        }
    }
    sqlite3_close(db);
    /* Before the first commit there is no schema to verify. */
    if (!bad && count == op_count && verify_state(dir, false, &out) > 0) {
        printf("power lost after %zu operations, %s: %s", count, what, out.data);
        bad++;
    } else if (!bad && out.len == 0) {
        if (sqlite3_open(path, &db) == SQLITE_OK &&
            ask(db,
                "SELECT count(*) FROM pragma_integrity_check WHERE ?1 = 0 AND "
                "integrity_check <> 'ok'",
                0) != 0) {
            printf("power lost after %zu operations, %s: %s\n", count, what, sqlite3_errmsg(db));
            bad++;
        }
        sqlite3_close(db);
    }
    pd_buf_done(&out);
    return bad;
}

static int lose_power(const char *base, size_t count, enum fate fate)
{
    static const char *const fates[] = {"unsynced lost", "unsynced kept", "unsynced torn"};
    struct image image[FILES] = {{0}};
    size_t synced[FILES] = {0};
    char dir[96], path[128], command[128];
    int bad = 0;

    snprintf(dir, sizeof dir, "%s/after", base);
    snprintf(command, sizeof command, "%s", dir);
    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        return 1;
    for (size_t i = 0; i < count; i++) {
        if (ops[i].kind == OP_SYNC)
            synced[ops[i].file] = i;
    }
    for (size_t i = 0; i < count; i++) {
        const struct op *op = &ops[i];

        if (op->kind == OP_ACK || op->kind == OP_SYNC)
            continue;
        if (i < synced[op->file])
            apply(&image[op->file], op);
        else
            apply_torn(&image[op->file], op, fate);
    }
    for (int f = 0; f < FILES; f++) {
        FILE *out;

        snprintf(path, sizeof path, "%s%s", dir, names[f]);
        out = fopen(path, "w");
        if (!out || (image[f].len && fwrite(image[f].bytes, image[f].len, 1, out) != 1) || fclose(out) != 0)
            bad++;
        free(image[f].bytes);
    }
    snprintf(path, sizeof path, "%s/polyd.db-shm", dir);
    unlink(path);
    bad += check(dir, count, fates[fate]);
    return bad;
}

int main(int argc, char **argv)
{
    unsigned long seed = (unsigned long)time(NULL) * 1000003u + (unsigned long)getpid(), wanted = 250;
    char dir[64], command[96];
    size_t kinds[4] = {0}, to_db = 0, tried = 0;
    int64_t from = pd_clock_mono_us();
    int opt, bad = 0;

    while ((opt = getopt(argc, argv, "s:n:")) != -1) {
        if (opt == 's')
            seed = strtoul(optarg, NULL, 10);
        else if (opt == 'n')
            wanted = strtoul(optarg, NULL, 10);
        else
            return 2;
    }
    snprintf(dir, sizeof dir, "%s/polyd-store-power-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(dir))
        return 2;
    pd_log_set_level(PD_LOG_ERROR);
    random_state = seed;
    if (!play(dir)) {
        printf("store power: the scenario failed\n");
        return 2;
    }
    for (size_t i = 0; i < op_count; i++) {
        kinds[ops[i].kind]++;
        to_db += ops[i].kind == OP_WRITE && ops[i].file == FILE_DB;
    }
    printf("store power: seed %lu, %zu writes (%zu to the database), %zu fsyncs, %zu acknowledgements\n",
           seed, kinds[OP_WRITE], to_db, kinds[OP_SYNC], kinds[OP_ACK]);
    if (kinds[OP_ACK] != 2 * JOBS || kinds[OP_SYNC] < 2 * JOBS || to_db < 10) {
        printf("store power: the record is not what it should be\n");
        bad++;
    }
    /* Every acknowledgement's own moment is the hardest; the others are drawn. */
    for (size_t i = 0; i < op_count && !bad; i++) {
        if (ops[i].kind != OP_ACK || i % 4)
            continue;
        bad += lose_power(dir, i + 1, ALL_LOST) + lose_power(dir, i + 1, MIXED);
        tried += 2;
    }
    for (; tried < wanted && !bad; tried++)
        bad += lose_power(dir, 1 + random_next() % op_count, (enum fate)(random_next() % 3));
    if (!bad)
        bad += lose_power(dir, op_count, ALL_LOST) + lose_power(dir, op_count, MIXED);
    printf("store power: %zu losses, %d breaches, %.1f s\n", tried + 2, bad,
           (double)(pd_clock_mono_us() - from) / 1e6);
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    if (bad)
        printf("store power: kept %s; again with -s %lu\n", dir, seed);
    else if (system(command) != 0)
        bad++;
    return bad != 0;
}
