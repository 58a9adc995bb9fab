/* A state folder gets its marker, is upgraded, or is moved aside by --init, and the process is killed at the
 * n-th system call that changes the folder, for every n. Whatever is left must be a folder that starts (after
 * --init: one that starts, or is refused until --init goes on), names its own database, and has lost no file.
 *
 * This program's own open, write, fsync, rename ... count themselves; the last write leaves nothing, or 20
 * bytes. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sqlite3.h>

#include "daemon/digest/digest.h"
#include "daemon/polyd/store/tx.h"
#include "daemon/polyd/store/verify.h"
#include "kernels/base/file.h"
#include "kernels/base/log.h"
#include "tests/lib/schema4.h"

static long countdown; /* changing calls until the kill; 0 = never */
static size_t torn;    /* bytes that reach the file of a write that is the last */
static bool *in_write; /* shared: the last call was a write */

static void die(void)
{
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

static bool last(void)
{
    return countdown && --countdown == 0;
}

static void count(void)
{
    if (last())
        die();
}

/* Interposing is what this file is for: SQLite in its shared library finds these first. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

int open(const char *path, int flags, ...)
{
    va_list args;
    int mode;

    va_start(args, flags);
    mode = va_arg(args, int);
    va_end(args);
    if (flags & (O_CREAT | O_TRUNC))
        count();
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    va_list args;
    int mode;

    va_start(args, flags);
    mode = va_arg(args, int);
    va_end(args);
    if (flags & (O_CREAT | O_TRUNC))
        count();
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

ssize_t write(int fd, const void *bytes, size_t len)
{
    if (fd > 2 && last()) {
        syscall(SYS_write, fd, bytes, len < torn ? len : torn);
        *in_write = true;
        die();
    }
    return syscall(SYS_write, fd, bytes, len);
}

ssize_t pwrite(int fd, const void *bytes, size_t len, off_t at)
{
    if (last()) {
        syscall(SYS_pwrite64, fd, bytes, len < torn ? len : torn, at);
        *in_write = true;
        die();
    }
    return syscall(SYS_pwrite64, fd, bytes, len, at);
}

ssize_t pwrite64(int fd, const void *bytes, size_t len, off_t at)
{
    return pwrite(fd, bytes, len, at);
}

int ftruncate(int fd, off_t len)
{
    count();
    return (int)syscall(SYS_ftruncate, fd, len);
}

int ftruncate64(int fd, off_t len)
{
    return ftruncate(fd, len);
}

/* A kill loses nothing that the kernel has: waiting for the disk would only take time. */
int fsync(int fd)
{
    (void)fd;
    count();
    return 0;
}

int fdatasync(int fd)
{
    return fsync(fd);
}

int rename(const char *from, const char *to)
{
    count();
    return (int)syscall(SYS_rename, from, to);
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    count();
    return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
}

int mkdir(const char *path, mode_t mode)
{
    count();
    return (int)syscall(SYS_mkdir, path, mode);
}

int unlink(const char *path)
{
    count();
    return (int)syscall(SYS_unlink, path);
}

/* ---- folders ---- */

static int bad;

#define CHECK(what, ...)                                                                                     \
    do {                                                                                                     \
        if (!(what)) {                                                                                       \
            printf(__VA_ARGS__);                                                                             \
            printf("\n");                                                                                    \
            bad++;                                                                                           \
        }                                                                                                    \
    } while (0)

static enum pd_err submit(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    int64_t *run = ctx, job;
    enum pd_err err = store_job_insert(
        tx, &(struct store_job_new){.name = "n", .experiment = "e", .document = "{}"}, &job, why);

    return err == PD_OK ? store_run_insert(tx, job,
                                           &(struct store_run_new){.document = "{}",
                                                                   .config_digest = "c",
                                                                   .plan_digest = "p",
                                                                   .device = "cpu",
                                                                   .slots = 1,
                                                                   .threads = 1,
                                                                   .total_steps = -1},
                                           run, why)
                        : err;
}

/* Starts, submits, stops. *ret_run: the id that the new run got. */
static enum pd_err use(const char *dir, bool init, int64_t *ret_run, struct pd_why *why)
{
    struct store_writer_options o = {.state_dir = dir, .init = init};
    struct store_writer *w = NULL;
    struct store_work work = {.lane = STORE_LANE_COMMAND, .rows = 1, .apply = submit, .ctx = ret_run};
    enum pd_err err = store_writer_start(&o, &w, why);

    if (err == PD_OK)
        err = store_writer_call(w, &work, why);
    store_writer_stop(w);
    return err;
}

static void shell(const char *fmt, ...)
{
    char command[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(command, sizeof command, fmt, ap);
    va_end(ap);
    if (system(command) != 0) {
        printf("failed: %s\n", command);
        exit(2);
    }
}

static void sql(const char *dir, const char *text)
{
    char path[PATH_MAX], *error = NULL;
    sqlite3 *db;

    snprintf(path, sizeof path, "%s/polyd.db", dir);
    if (sqlite3_open(path, &db) != SQLITE_OK || sqlite3_exec(db, text, NULL, NULL, &error) != SQLITE_OK) {
        printf("sql: %s\n", error ? error : "cannot open");
        exit(2);
    }
    sqlite3_close(db);
}

static void said(void *ctx, const char *text)
{
    (void)ctx;
    if (!strstr(text, "is missing")) /* the files of runs that this test only pretends */
        CHECK(false, "verify: %s", text);
}

/* A plain start works, the marker names the database, the rows are in order. */
static void check_sound(const char *dir, const char *when, int64_t least_run)
{
    struct pd_why why = {""};
    int64_t run = 0, problems = 0;
    enum pd_err err = use(dir, false, &run, &why);

    CHECK(err == PD_OK, "%s: start failed: %s", when, why.text);
    CHECK(err != PD_OK || run >= least_run, "%s: the next run is %lld", when, (long long)run);
    CHECK(store_verify(dir, false, said, NULL, &problems, &why) == PD_OK, "%s: verify: %s", when, why.text);
}

/* The files that a user would miss. */
static const char *const treasures[] = {"a copy of the database", "weights of run 1", "log of run 2"};
static int found[3];

static int find_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    struct pd_buf b;

    (void)st;
    (void)ftw;
    if (type != FTW_F)
        return 0;
    pd_buf_init(&b, 0);
    if (pd_file_read(path, 1 << 20, &b, NULL) == PD_OK && b.data)
        for (int i = 0; i < 3; i++)
            found[i] += b.len == strlen(treasures[i]) && !memcmp(b.data, treasures[i], b.len);
    pd_buf_done(&b);
    return 0;
}

static void check_treasures(const char *dir, const char *when)
{
    memset(found, 0, sizeof found);
    nftw(dir, find_one, 16, FTW_PHYS);
    for (int i = 0; i < 3; i++)
        CHECK(found[i] == 1, "%s: '%s' is there %d times", when, treasures[i], found[i]);
}

/* ---- scenarios ---- */

static void make_new(const char *dir)
{
    (void)dir;
}

static void make_old(const char *dir)
{
    struct pd_why why;
    int64_t run;
    char text[2048];

    if (use(dir, false, &run, &why) != PD_OK) {
        printf("%s\n", why.text);
        exit(2);
    }
    snprintf(text, sizeof text, SCHEMA4_SQL, dir);
    sql(dir, text);
    shell("rm %s/store-id && mkdir -p %s/runs/1/attempt-1", dir, dir);
}

/* Another's database, its runs, no log. */
static void make_lost(const char *dir)
{
    struct pd_why why;
    int64_t run;

    if (use(dir, false, &run, &why) != PD_OK) {
        printf("%s\n", why.text);
        exit(2);
    }
    shell("cd %s && rm -f polyd.db* && mkdir -p runs/1/checkpoints runs/2/attempt-1 models && "
          "printf '%s' > polyd.db.before-migration && printf '%s' > runs/1/checkpoints/step-1.safetensors && "
          "printf '%s' > runs/2/attempt-1/log",
          dir, treasures[0], treasures[1], treasures[2]);
}

static void after_new(const char *dir, const char *when)
{
    check_sound(dir, when, 1);
}

static void after_old(const char *dir, const char *when)
{
    check_sound(dir, when, 2);
}

static void after_init(const char *dir, const char *when)
{
    struct pd_why why = {""};
    int64_t run = 0;
    enum pd_err err;

    check_treasures(dir, when);
    err = use(dir, false, &run, &why);
    if (err == PD_ERR_CONFLICT && strstr(why.text, "--init")) {
        err = use(dir, true, &run, &why);
        CHECK(err == PD_OK, "%s: --init failed: %s", when, why.text);
    } else
        CHECK(err == PD_OK, "%s: start failed: %s", when, why.text);
    check_treasures(dir, when);
    check_sound(dir, when, 2);
}

static const struct {
    const char *name;
    bool init;
    void (*make)(const char *dir);
    void (*after)(const char *dir, const char *when);
} scenarios[] = {
    {"new folder", false, make_new, after_new},
    {"upgrade", false, make_old, after_old},
    {"--init", true, make_lost, after_init},
};

/* In memory where possible: what is tested is the order of changes, not the disk. */
static void new_folder(char dir[64])
{
    snprintf(dir, 64, "%s/polyd-marker-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(dir))
        exit(2);
}

int main(void)
{
    pd_log_set_level(PD_LOG_ERROR);
    in_write = mmap(NULL, sizeof *in_write, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (in_write == MAP_FAILED)
        return 2;
    for (size_t k = 0; k < sizeof scenarios / sizeof *scenarios; k++) {
        bool over = false;
        char begin[64];
        long n;

        new_folder(begin);
        scenarios[k].make(begin);
        torn = 20;
        for (n = 1; !over && bad < 20; n += torn ? 1 : 0) {
            char dir[64], when[96];
            int status;
            pid_t pid;

            new_folder(dir);
            shell("cp -a '%s/.' '%s'", begin, dir);
            *in_write = false;
            fflush(stdout);
            pid = fork();
            if (pid == 0) {
                struct store_writer_options o = {.state_dir = dir, .init = scenarios[k].init};
                struct store_writer *w;

                countdown = n;
                _exit(store_writer_start(&o, &w, NULL) == PD_OK ? 0 : 1);
            }
            waitpid(pid, &status, 0);
            over = WIFEXITED(status);
            snprintf(when, sizeof when, "%s, killed at change %ld (%zu bytes)", scenarios[k].name, n, torn);
            CHECK(!over || WEXITSTATUS(status) == 0, "%s: the start failed", when);
            scenarios[k].after(dir, when);
            if (bad)
                printf("kept %s\n", dir);
            else
                shell("rm -rf '%s'", dir);
            /* A write is tried once more with nothing of it written. */
            torn = torn && *in_write ? 0 : 20;
        }
        shell("rm -rf '%s'", begin);
        printf("%s: killed at each of %ld changes\n", scenarios[k].name, n - 1);
        CHECK(n > 20, "%s: only %ld changes were seen", scenarios[k].name, n - 1);
    }
    return bad ? 1 : 0;
}
