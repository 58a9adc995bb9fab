/* The n-th allocation fails, for n = 1, 2, 3, ... until nothing fails any more: the store reports it, loses
 * nothing that it acknowledged, and does not crash, hang or leave a broken file.
 *
 * This program's own malloc stands in front of glibc's, so SQLite's allocations count too. The store is first
 * made anew, then used in a copy of a new one, until the scenario has run through untouched.
 *
 * `test_store_nomem [-k] [-s N]`: -k: every later allocation fails as well, which is what a full machine does;
 * -s: every N-th allocation of the use is tried, and every 6 N-th of the making, which has ten times as many
 * for nothing but SQLite's parsing of the schema. */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/polyd/store/tx.h"
#include "kernels/base/buf.h"
#include "kernels/base/log.h"
#include "tests/fault/verify.h"

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t size);

static atomic_long left; /* allocations until the failing one; 0 or less = not armed or past it */
static atomic_bool armed, keep_failing;
static atomic_long failed;

static bool fails(void)
{
    long n;

    if (!atomic_load_explicit(&armed, memory_order_relaxed))
        return false;
    n = atomic_fetch_sub(&left, 1);
    if (n == 1 || (n < 1 && atomic_load(&keep_failing))) {
        atomic_fetch_add(&failed, 1);
        return true;
    }
    return false;
}

void *malloc(size_t size)
{
    return fails() ? NULL : __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
    return fails() ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t size)
{
    return fails() ? NULL : __libc_realloc(p, size);
}

/* ---- the scenario ---- */

struct shop {
    int64_t job, run;
    int jobs_seen, points_seen;
};

static enum pd_err submit(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct shop *s = ctx;
    struct pd_buf response;
    uint8_t sha[32] = {7};
    int status;
    enum pd_err err;

    pd_buf_init(&response, 0);
    err = store_idem_claim(tx, "POST /api/v1/jobs", "key", sha, &status, &response, why);
    if (err == PD_OK)
        err = store_job_insert(
            tx, &(struct store_job_new){.name = "one", .experiment = "e", .document = "{}"}, &s->job, why);
    if (err == PD_OK)
        err = store_run_insert(tx, s->job,
                               &(struct store_run_new){.document = "{}",
                                                       .config_digest = "c",
                                                       .plan_digest = "p",
                                                       .device = "cpu",
                                                       .slots = 1,
                                                       .threads = 1,
                                                       .total_steps = -1},
                               &s->run, why);
    if (err == PD_OK)
        err = store_idem_finish(tx, "POST /api/v1/jobs", "key", 201, "{}", 2, why);
    pd_buf_done(&response);
    return err;
}

static enum pd_err points(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct shop *s = ctx;
    struct store_metric m[40];

    for (int i = 0; i < 40; i++)
        m[i] = (struct store_metric){i % 2 ? "a" : "b", i, i, i};
    return store_metric_append(tx, s->run, 0, m, 40, NULL, why);
}

static bool on_job(void *ctx, const struct store_job *job)
{
    struct shop *s = ctx;

    s->jobs_seen += job->id == s->job;
    return true;
}

static bool on_series(void *ctx, const struct store_series *series)
{
    struct shop *s = ctx;

    s->points_seen += (int)series->count;
    return true;
}

/* Everything in turn, going on after a failure where a caller would. */
static enum pd_err play(const char *dir, struct shop *s, bool *ret_submitted, bool *ret_points)
{
    struct store_writer *w = NULL;
    struct store *r = NULL;
    struct pd_why why = {{0}};
    struct store_work work = {.lane = STORE_LANE_COMMAND, .rows = 3, .apply = submit, .ctx = s};
    struct store_job_query jobs = {.state = -1, .limit = 10};
    enum pd_err first, err;

    first = store_writer_start(&(struct store_writer_options){.state_dir = dir}, &w, &why);
    if (first != PD_OK)
        return first;
    err = store_writer_call(w, &work, &why);
    *ret_submitted = err == PD_OK;
    first = err;
    if (err == PD_OK) {
        work.lane = STORE_LANE_METRICS;
        work.rows = 40;
        work.apply = points;
        err = store_writer_call(w, &work, &why);
        *ret_points = err == PD_OK;
        first = err;
    }
    err = store_open_reader(store_writer_path(w), &r, &why);
    if (err == PD_OK)
        err = store_job_list(r, &jobs, on_job, s, &why);
    if (err == PD_OK)
        err = store_series_list(r, s->run, on_series, s, &why);
    if (first == PD_OK)
        first = err;
    store_close(r);
    store_writer_stop(w);
    return first;
}

/* In memory where possible: what is tested is not the disk. */
static bool make_dir(char out[64])
{
    snprintf(out, 64, "%s/polyd-store-nomem-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    return mkdtemp(out) != NULL;
}

/* `from`: a folder to copy; NULL: it is made anew, and only the start meets the failure. */
static int one(long n, const char *from, bool *ret_untouched)
{
    char dir[64], command[160];
    struct shop s = {0}, again = {0};
    bool submitted = false, logged = false, again_submitted = false, again_logged = false;
    struct pd_buf out;
    enum pd_err err, after;
    long hits;
    int bad = 0;

    if (!make_dir(dir))
        return 1;
    snprintf(command, sizeof command, "cp -a '%s/.' '%s'", from ? from : "", dir);
    if (from && system(command))
        return 1;
    atomic_store(&failed, 0);
    atomic_store(&left, n);
    atomic_store(&armed, true);
    err = play(dir, &s, &submitted, &logged);
    atomic_store(&armed, false);
    hits = atomic_load(&failed);
    *ret_untouched = hits == 0;
    if (hits == 0 && err != PD_OK) {
        fprintf(stderr, "allocation %ld: nothing failed, yet the result is %s\n", n, pd_err_name(err));
        bad++;
    }
    if (err == PD_OK && (s.jobs_seen != 1 || s.points_seen != 40)) {
        fprintf(stderr, "allocation %ld: PD_OK, but %d jobs and %d points were read\n", n, s.jobs_seen,
                s.points_seen);
        bad++;
    }
    /* With memory again, the directory opens, is whole, and what was acknowledged is there: the same key
     * finds the first answer. What was refused is not there, or (memory failed between the commit and its
     * report) is there once, and the key finds it. */
    after = play(dir, &again, &again_submitted, &again_logged);
    if (submitted ? after != PD_ERR_EXISTS : after != PD_OK && after != PD_ERR_EXISTS) {
        fprintf(stderr, "allocation %ld: acknowledged %d, second time %s, job %" PRId64 "\n", n, submitted,
                pd_err_name(after), again.job);
        bad++;
    }
    pd_buf_init(&out, 0);
    if (verify_state(dir, false, &out) > 0) {
        fprintf(stderr, "allocation %ld: %s", n, out.data);
        bad++;
    }
    pd_buf_done(&out);
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return bad + (system(command) != 0);
}

/* A store without rows in a new folder; *ret_allocations: how many its making takes. */
static bool make_template(char dir[64], long *ret_allocations)
{
    struct store_writer *w = NULL;
    struct pd_why why = {{0}};
    const long plenty = 1000000000;
    enum pd_err err;

    if (!make_dir(dir))
        return false;
    atomic_store(&left, plenty);
    atomic_store(&armed, true);
    err = store_writer_start(&(struct store_writer_options){.state_dir = dir}, &w, &why);
    atomic_store(&armed, false);
    *ret_allocations = plenty - atomic_load(&left);
    store_writer_stop(w);
    return err == PD_OK;
}

int main(int argc, char **argv)
{
    bool untouched = false;
    long n, tried = 0, making, stride = 1;
    char template[64], command[96];
    int bad = 0, opt;

    while ((opt = getopt(argc, argv, "ks:")) != -1) {
        if (opt == 'k')
            atomic_store(&keep_failing, true);
        else if (opt == 's')
            stride = strtol(optarg, NULL, 10);
        else
            return 2;
    }
    pd_log_set_level(PD_LOG_ERROR);
    alarm(300); /* a hang is a failure too */
    if (!make_template(template, &making))
        return 1;
    for (n = 1; n <= making && !bad; n += 6 * stride, tried++)
        bad = one(n, NULL, &untouched);
    for (n = 1, untouched = false; !untouched && !bad; n += stride, tried++)
        bad = one(n, template, &untouched);
    snprintf(command, sizeof command, "rm -rf '%s'", template);
    bad += system(command) != 0;
    printf("store nomem: %ld allocations failed in turn%s, %d breaches\n", tried,
           atomic_load(&keep_failing) ? " and for good" : "", bad);
    return bad != 0;
}
