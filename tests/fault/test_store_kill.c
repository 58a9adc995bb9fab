/* kill -9 of a process that commits, again and again: what it said to be committed is there, once.
 *
 * The child opens the store and commits jobs with runs, metric batches with worker sequence numbers, and HTTP
 * batches, and writes one line to a pipe after each commit's `done`. The parent kills it at a random moment,
 * opens the directory and compares. Seed and number of kills: arguments, `test_store_kill [-n KILLS] [-s
 * SEED]`. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <sqlite3.h>

#include "daemon/polyd/store/tx.h"
#include "kernels/base/clock.h"
#include "kernels/base/log.h"
#include "tests/fault/verify.h"

#define POINTS 50

/* What the child does in one commit; `n` numbers them for its whole life. */
struct deed {
    struct store_writer *w;
    uint32_t life;
    int64_t n, job, run;
    int attempt;
    int64_t seq;
    int out;
    char line[128];
};

static void must(enum pd_err err, const struct pd_why *why)
{
    if (err == PD_OK)
        return;
    fprintf(stderr, "test_store_kill: %s: %s\n", pd_err_name(err), why->text);
    _exit(3);
}

static enum pd_err submit(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct deed *d = ctx;
    struct pd_buf none;
    char name[64], key[64], body[96];
    uint8_t sha[32] = {1};
    int status;
    enum pd_err err;

    pd_buf_init(&none, 0);
    snprintf(name, sizeof name, "job-%u-%" PRId64, d->life, d->n);
    snprintf(key, sizeof key, "key-%u-%" PRId64, d->life, d->n);
    err = store_idem_claim(tx, "POST /api/v1/jobs", key, sha, &status, &none, why);
    if (err == PD_OK)
        err = store_job_insert(
            tx, &(struct store_job_new){.name = name, .experiment = "kill", .document = "{}"}, &d->job, why);
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
    if (err == PD_OK)
        err = store_attempt_insert(tx, &(struct store_attempt_new){.run_id = d->run, .devices = name},
                                   &d->attempt, why);
    if (err == PD_OK)
        err = store_attempt_move(tx, d->run, d->attempt, JOB_ATTEMPT_RUNNING, 0, "", -1, why);
    snprintf(body, sizeof body, "{\"id\":\"%" PRId64 "\"}", d->job);
    if (err == PD_OK)
        err = store_idem_finish(tx, "POST /api/v1/jobs", key, 201, body, strlen(body), why);
    snprintf(d->line, sizeof d->line, "job %" PRId64 " %" PRId64 " %s\n", d->job, d->run, name);
    return err;
}

static enum pd_err metrics(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct deed *d = ctx;
    struct store_metric points[POINTS];
    enum pd_err err;

    err = store_attempt_ack(tx, d->run, d->attempt, d->seq, why);
    for (int i = 0; i < POINTS; i++)
        points[i] = (struct store_metric){"loss/train", d->seq * POINTS + i, 1000 + d->seq, (double)i};
    if (err == PD_OK)
        err = store_metric_append(tx, d->run, d->attempt, points, POINTS, NULL, why);
    snprintf(d->line, sizeof d->line, "metrics %" PRId64 " %" PRId64 "\n", d->run, d->seq);
    return err;
}

static enum pd_err finish(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct deed *d = ctx;
    enum pd_err err =
        store_attempt_move(tx, d->run, d->attempt, JOB_ATTEMPT_ENDED, JOB_CAUSE_DONE, "", 0, why);

    if (err == PD_OK)
        err = store_run_move(tx, d->run, JOB_RUN_RUNNING, 0, "", why);
    if (err == PD_OK)
        err = store_run_move(tx, d->run, JOB_RUN_ENDED, JOB_OUTCOME_SUCCEEDED, "", why);
    snprintf(d->line, sizeof d->line, "end %" PRId64 "\n", d->run);
    return err;
}

/* The acknowledgement: on the writer's thread, after the commit. A short line to a pipe is one write. */
static void committed(void *ctx, enum pd_err err, const struct pd_why *why)
{
    struct deed *d = ctx;

    must(err, why);
    if (write(d->out, d->line, strlen(d->line)) < 0)
        _exit(4);
}

static void child(const char *dir, uint32_t life, int out)
{
    struct store_writer *w = NULL;
    struct pd_why why = {{0}};

    pd_log_set_level(PD_LOG_WARNING);
    must(store_writer_start(&(struct store_writer_options){.state_dir = dir}, &w, &why), &why);
    if (write(out, "up\n", 3) < 0)
        _exit(4);
    for (int64_t n = 0;; n++) {
        struct deed d = {.w = w, .life = life, .n = n, .out = out};
        struct store_work work = {
            .lane = STORE_LANE_COMMAND, .rows = 5, .apply = submit, .done = committed, .ctx = &d};

        must(store_writer_call(w, &work, &why), &why);
        work.lane = STORE_LANE_METRICS;
        work.rows = POINTS;
        work.apply = metrics;
        for (d.seq = 1; d.seq <= 6; d.seq++)
            must(store_writer_call(w, &work, &why), &why);
        work.lane = STORE_LANE_WORKER;
        work.apply = finish;
        must(store_writer_call(w, &work, &why), &why);
    }
}

/* ---- the parent ---- */

struct tally {
    int64_t jobs, batches, ends, last_job;
};

static int64_t number(sqlite3 *db, const char *sql, int64_t a, int64_t b, const char *name)
{
    sqlite3_stmt *st = NULL;
    int64_t value = -1;

    if (sqlite3_prepare_v2(db, sql, -1, &st, NULL) == SQLITE_OK) {
        sqlite3_bind_int64(st, 1, a);
        if (sqlite3_bind_parameter_count(st) > 1)
            sqlite3_bind_int64(st, 2, b);
        if (sqlite3_bind_parameter_count(st) > 2)
            sqlite3_bind_text(st, 3, name, -1, SQLITE_STATIC);
        if (sqlite3_step(st) == SQLITE_ROW)
            value = sqlite3_column_int64(st, 0);
    }
    sqlite3_finalize(st);
    return value;
}

/* Every line that the child got out before it died. */
static int compare(const char *dir, const struct pd_buf *said, struct tally *sum)
{
    char path[128];
    sqlite3 *db = NULL;
    int bad = 0;
    const char *at = said->data, *end;

    snprintf(path, sizeof path, "%s/polyd.db", dir);
    if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL) != SQLITE_OK)
        return 1;
    for (; at && (end = strchr(at, '\n')); at = end + 1) {
        long long a, b;
        char name[64];

        if (sscanf(at, "job %lld %lld %63s", &a, &b, name) == 3) {
            bad += number(db,
                          "SELECT count(*) FROM job JOIN run ON run.job_id = job.id WHERE job.id = ?1 AND "
                          "run.id = ?2 "
                          "AND job.name = ?3",
                          a, b, name) != 1;
            bad +=
                number(db, "SELECT count(*) FROM job WHERE ?1 > 0 AND ?2 > 0 AND name = ?3", 1, 1, name) != 1;
            bad += a <= sum->last_job; /* an id given out twice, or backwards */
            sum->last_job = a;
            sum->jobs++;
        } else if (sscanf(at, "metrics %lld %lld", &a, &b) == 2) {
            bad += number(db, "SELECT count(*) FROM metric WHERE run_id = ?1 AND step / 50 = ?2 AND dup = 0",
                          a, b, NULL) != POINTS;
            bad += number(db, "SELECT max(acked_seq) >= ?2 FROM attempt WHERE run_id = ?1", a, b, NULL) != 1;
            sum->batches++;
        } else if (sscanf(at, "end %lld", &a) == 1) {
            bad += number(db, "SELECT count(*) FROM run WHERE id = ?1 AND state = 'ended'", a, 0, NULL) != 1;
            sum->ends++;
        }
        if (bad) {
            fprintf(stderr, "test_store_kill: lost or doubled: %.*s\n", (int)(end - at), at);
            break;
        }
    }
    /* Never said to be there twice, not even what was not acknowledged. */
    bad += number(db, "SELECT count(*) FROM metric WHERE ?1 > 0 AND dup <> 0", 1, 0, NULL) != 0;
    bad +=
        number(db,
               "SELECT count(*) FROM (SELECT name FROM job WHERE ?1 > 0 GROUP BY name HAVING count(*) > 1)",
               1, 0, NULL) != 0;
    sqlite3_close(db);
    return bad;
}

static int one_life(const char *dir, uint32_t life, unsigned delay_us, struct tally *sum, bool *verified)
{
    struct pd_buf said, out;
    struct timespec pause = {.tv_nsec = (long)delay_us * 1000};
    int fds[2], status, bad = 0;
    char chunk[4096];
    ssize_t n;
    pid_t pid;

    pd_buf_init(&said, 0);
    pd_buf_init(&out, 0);
    if (pipe(fds) != 0)
        return 1;
    pid = fork();
    if (pid == 0) {
        close(fds[0]);
        child(dir, life, fds[1]);
        _exit(0);
    }
    close(fds[1]);
    /* The clock of the kill runs from the moment it is up, except that one in ten dies while starting. */
    if (life % 10)
        n = read(fds[0], chunk, 3);
    nanosleep(&pause, NULL);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    while ((n = read(fds[0], chunk, sizeof chunk)) > 0)
        pd_buf_append(&said, chunk, (size_t)n);
    close(fds[0]);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
        fprintf(stderr, "test_store_kill: the child ended by itself, status %d\n", status);
        bad++;
    }
    if (said.len)
        bad += compare(dir, &said, sum);
    /* The whole check reads everything: now and then, and at the end. */
    *verified = life % 20 == 0;
    if (*verified && verify_state(dir, false, &out) > 0) {
        fprintf(stderr, "%s", out.data);
        bad++;
    }
    pd_buf_done(&said);
    pd_buf_done(&out);
    return bad;
}

int main(int argc, char **argv)
{
    char dir[] = "/tmp/polyd-store-kill-XXXXXX", command[96];
    unsigned long kills = 200, seed = (unsigned long)time(NULL) * 1000003u + (unsigned long)getpid();
    struct tally sum = {0};
    struct pd_buf out;
    int64_t start;
    int opt, bad = 0;
    bool verified = false;

    while ((opt = getopt(argc, argv, "n:s:")) != -1) {
        if (opt == 'n')
            kills = strtoul(optarg, NULL, 10);
        else if (opt == 's')
            seed = strtoul(optarg, NULL, 10);
        else
            return 2;
    }
    if (!mkdtemp(dir))
        return 2;
    printf("store kill: seed %lu, %lu kills, %s\n", seed, kills, dir);
    fflush(stdout);
    srand48((long)seed);
    start = pd_clock_mono_us();
    for (uint32_t life = 1; life <= kills && !bad; life++)
        bad = one_life(dir, life, (unsigned)(drand48() * 30000), &sum, &verified);
    pd_buf_init(&out, 0);
    if (!bad && !verified && verify_state(dir, false, &out) > 0) {
        fprintf(stderr, "%s", out.data);
        bad = 1;
    }
    pd_buf_done(&out);
    printf("store kill: %" PRId64 " jobs, %" PRId64 " batches and %" PRId64
           " ends acknowledged, %d breaches, %.1f s\n",
           sum.jobs, sum.batches, sum.ends, bad, (double)(pd_clock_mono_us() - start) / 1e6);
    if (bad) {
        printf("store kill: kept %s; again with -s %lu\n", dir, seed);
        return 1;
    }
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command) != 0;
}
