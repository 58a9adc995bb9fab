/* 200 kills of daemon and workers while clients submit, cancel, log metrics and listen; afterwards nothing
 * that was acknowledged is missing, and nothing is there twice.
 *
 *   test_kill [-n KILLS] [-s SEED] [-m MEAN_MS] [-k]      -k keeps the directory
 *
 * The choices of client i depend on (seed, i) alone, those of the killer on the seed; which instruction a
 * kill hits is the machine's business. Everything a client does carries a key of its own and is repeated
 * until it is acknowledged, as a real client would. */
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <sqlite3.h>

#include "kernels/base/clock.h"
#include "tests/fault/rig.h"
#include "tests/fault/verify.h"

#define STEPS 60
#define SUBMITTERS 2
#define JOBS_MAX 4000
#define BATCH 20
#define BATCHES_MAX 20000
#define EVENTS_MAX 400000
/* Every twelfth job: 40 runs, more than are made with the job; all but a few are cancelled soon. */
#define SWEEP                                                                                                \
    ",\"trials\":2,\"sweep\":{\"concurrency\":2,\"axes\":[{\"pointer\":\"/train/optimizer/"                  \
    "lr\",\"log\":[0.001,0.1,20]}]}"

/* What was acknowledged. A slot is written by one thread and read after the join. */
struct ack_job {
    int64_t id;
    char key[48];
    bool cancelled;
};

static struct rig rig;
static uint64_t seed;
static atomic_bool stop;
static struct ack_job jobs[SUBMITTERS][JOBS_MAX];
static int job_count[SUBMITTERS];
static int batch_count;
static int64_t events[EVENTS_MAX];
static int event_count, event_disorder;
static atomic_llong first_run;
static atomic_int refused;
static int kills_daemon, kills_worker, kills_shim;

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Sends until there is an answer that is not "try again". False when the test ends first. */
static bool insist(const char *method, const char *path, const char *headers, const char *body,
                   struct rig_reply *ret)
{
    for (int tries = 0;; tries++) {
        bool whole = rig_http(&rig, method, path, headers, body, ret);

        if (whole && ret->status != 429 && ret->status != 503)
            return true;
        rig_reply_done(ret);
        /* When the killing has ended, what is under way is still carried to its end. */
        if (tries > 4000)
            return false;
        rig_sleep_us(whole ? 20000 : 3000);
    }
}

static void *submitter(void *arg)
{
    int me = (int)(intptr_t)arg;
    uint64_t random = seed * 1000 + (uint64_t)me;

    while (!atomic_load(&stop) && job_count[me] < JOBS_MAX) {
        struct ack_job *j = &jobs[me][job_count[me]];
        struct rig_reply p;
        char head[96], body[512], path[64];

        snprintf(j->key, sizeof j->key, "k%d-%d-%" PRIx64, me, job_count[me], next_random(&random));
        snprintf(head, sizeof head, "Idempotency-Key: \"%s\"\r\n", j->key);
        snprintf(
            body, sizeof body,
            "{\"name\":\"%s\",\"model\":{\"preset\":\"vit_micro\"},\"data\":{\"dataset\":\"digits_gen\"},"
            "\"train\":{\"steps\":%d},\"resources\":{\"device\":\"cpu\",\"max_restarts\":100}%s}",
            j->key, STEPS, job_count[me] % 12 == 7 ? SWEEP : "");
        if (!insist("POST", "/api/v1/jobs", head, body, &p))
            break;
        if (p.status != 201) {
            printf("submission answered %d: %s\n", p.status, p.body.data ? p.body.data : "");
            atomic_fetch_add(&refused, 1);
            rig_reply_done(&p);
            break;
        }
        j->id = rig_json_int(p.body.data, "id");
        rig_reply_done(&p);
        job_count[me]++;
        if (next_random(&random) % 5 == 0 || (job_count[me] - 1) % 12 == 7) {
            rig_sleep_us((int64_t)(next_random(&random) % 150000));
            snprintf(path, sizeof path, "/api/v1/jobs/%" PRId64 "/cancel", j->id);
            if (!insist("POST", path, NULL, "{}", &p))
                break;
            j->cancelled = p.status == 200;
            if (p.status != 200 && p.status != 409) {
                printf("cancel answered %d: %s\n", p.status, p.body.data ? p.body.data : "");
                atomic_fetch_add(&refused, 1);
            }
            rig_reply_done(&p);
        }
        rig_sleep_us(80000 + (int64_t)(next_random(&random) % 160000));
    }
    return NULL;
}

/* Logs batches over HTTP to the first run there is. Each point carries a time, so a repetition is the same
 * point. */
static void *logger(void *arg)
{
    (void)arg;
    while (!atomic_load(&stop) && batch_count < BATCHES_MAX) {
        int64_t run = atomic_load(&first_run);
        char body[4096], path[64];
        struct rig_reply p;
        int at;

        if (!run) {
            rig_http(&rig, "GET", "/api/v1/runs?limit=1&order=oldest", NULL, NULL, &p);
            if (p.status == 200 && rig_json_int(p.body.data, "id") > 0)
                atomic_store(&first_run, rig_json_int(p.body.data, "id"));
            rig_reply_done(&p);
            rig_sleep_us(5000);
            continue;
        }
        at = snprintf(body, sizeof body, "{\"points\":[");
        for (int i = 0; i < BATCH; i++)
            at += snprintf(body + at, sizeof body - (size_t)at,
                           "%s{\"key\":\"http/%d\",\"step\":%d,\"value\":%d.5,\"time\":%d}", i ? "," : "",
                           i % 4, batch_count * BATCH + i, batch_count, 1700000000 + batch_count);
        snprintf(body + at, sizeof body - (size_t)at, "]}");
        snprintf(path, sizeof path, "/api/v1/runs/%" PRId64 "/metrics", run);
        if (!insist("POST", path, NULL, body, &p))
            break;
        if (p.status == 200) {
            batch_count++;
        } else {
            printf("metrics answered %d: %s\n", p.status, p.body.data ? p.body.data : "");
            atomic_fetch_add(&refused, 1);
            rig_reply_done(&p);
            break;
        }
        rig_reply_done(&p);
        rig_sleep_us(4000);
    }
    return NULL;
}

/* Listens to the events and, after each break, goes on behind the last one it has seen. */
static void *listener(void *arg)
{
    int64_t last = 0;

    (void)arg;
    while (!atomic_load(&stop)) {
        char request[256], line[16384];
        int fd = rig_connect(&rig), n;
        bool data = false;
        int64_t id = 0;
        FILE *f;

        if (fd < 0) {
            rig_sleep_us(3000);
            continue;
        }
        n = snprintf(request, sizeof request,
                     "GET /api/v1/events%s HTTP/1.1\r\nHost: 127.0.0.1:%u\r\nAccept: text/event-stream\r\n"
                     "Last-Event-ID: %" PRId64 "\r\n\r\n",
                     last ? "" : "?since=0", rig.port, last);
        if (write(fd, request, (size_t)n) != n || !(f = fdopen(fd, "r"))) {
            close(fd);
            continue;
        }
        /* An event counts when its blank line has come: a break may cut anywhere before. */
        while (!atomic_load(&stop) && fgets(line, sizeof line, f)) {
            if (sscanf(line, "id: %" SCNd64, &id) == 1 || sscanf(line, "id:%" SCNd64, &id) == 1)
                continue;
            data |= strncmp(line, "data:", 5) == 0;
            if (strcmp(line, "\n") != 0 && strcmp(line, "\r\n") != 0)
                continue;
            if (!data || id == 0) {
                id = 0; /* an id alone, or the news of points: no event of the table */
                data = false;
                continue;
            }
            if (id <= last && event_disorder++ < 5)
                printf("event %" PRId64 " came after %" PRId64 "\n", id, last);
            last = id;
            id = 0;
            data = false;
            if (event_count < EVENTS_MAX)
                events[event_count++] = last;
        }
        fclose(f);
    }
    return NULL;
}

/* Kills one process; true if there was one. */
static bool kill_someone(uint64_t *random)
{
    uint64_t choice = next_random(random) % 100;
    pid_t pids[64];
    int n;

    if (choice < 55) {
        if (rig_stop(&rig, SIGKILL) == -1)
            return false;
        kills_daemon++;
        return true;
    }
    n = rig_workers(&rig, choice < 90 ? "train" : "shim", pids, 64);
    if (n == 0)
        return false;
    if (kill(pids[next_random(random) % (uint64_t)n], SIGKILL) != 0)
        return false;
    if (choice < 90)
        kills_worker++;
    else
        kills_shim++;
    return true;
}

/* ---- afterwards ---- */

static int64_t ask(sqlite3 *db, const char *sql, int64_t a, const char *text, int64_t b)
{
    sqlite3_stmt *st = NULL;
    int64_t value = -1;

    if (sqlite3_prepare_v2(db, sql, -1, &st, NULL) == SQLITE_OK) {
        int n = sqlite3_bind_parameter_count(st);

        sqlite3_bind_int64(st, 1, a);
        if (n > 1)
            sqlite3_bind_text(st, 2, text, -1, SQLITE_STATIC);
        if (n > 2)
            sqlite3_bind_int64(st, 3, b);
        if (sqlite3_step(st) == SQLITE_ROW)
            value = sqlite3_column_int64(st, 0);
    }
    sqlite3_finalize(st);
    return value;
}

static int compare_int64(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static int check_jobs(sqlite3 *db)
{
    static int64_t ids[SUBMITTERS * JOBS_MAX];
    int count = 0, bad = 0;

    for (int s = 0; s < SUBMITTERS; s++) {
        for (int i = 0; i < job_count[s]; i++) {
            const struct ack_job *j = &jobs[s][i];

            if (ask(db, "SELECT count(*) FROM job WHERE id = ?1 AND name = ?2", j->id, j->key, 0) != 1 ||
                ask(db, "SELECT count(*) FROM job WHERE ?1 > 0 AND name = ?2", 1, j->key, 0) != 1) {
                printf("job %" PRId64 " (%s) was acknowledged and is not there once\n", j->id, j->key);
                bad++;
            }
            if (j->cancelled &&
                ask(db, "SELECT count(*) FROM job WHERE id = ?1 AND state IN ('cancelled', 'done', 'failed')",
                    j->id, NULL, 0) != 1) {
                printf("job %" PRId64 ": the acknowledged cancel came to nothing\n", j->id);
                bad++;
            }
            ids[count++] = j->id;
        }
    }
    if (ask(db,
            "SELECT count(*) FROM (SELECT 1 FROM job j LEFT JOIN run r ON r.job_id = j.id WHERE ?1 > 0 GROUP "
            "BY "
            "j.id HAVING count(r.id) <> j.planned OR count(DISTINCT r.n) <> j.planned OR j.runs <> "
            "j.planned)",
            1, NULL, 0) != 0) {
        printf("a job has not the runs that it should have\n");
        bad++;
    }
    qsort(ids, (size_t)count, sizeof ids[0], compare_int64);
    for (int i = 1; i < count; i++) {
        if (ids[i] == ids[i - 1]) {
            printf("id %" PRId64 " was given out twice\n", ids[i]);
            bad++;
        }
    }
    if (ask(db, "SELECT count(*) FROM (SELECT name FROM job WHERE ?1 > 0 GROUP BY name HAVING count(*) > 1)",
            1, NULL, 0) != 0) {
        printf("a key made two jobs\n");
        bad++;
    }
    return bad;
}

static int check_batches(sqlite3 *db)
{
    static int points[BATCHES_MAX];
    sqlite3_stmt *st = NULL;
    int bad = 0;

    /* Batch b wrote the steps 20 b .. 20 b + 19 with the value b + 1/2; the last one may be there
     * unacknowledged. */
    if (sqlite3_prepare_v2(
            db, "SELECT step / 20, value = step / 20 + 0.5 AND dup = 0 FROM metric WHERE attempt = 0", -1,
            &st, NULL) != SQLITE_OK)
        bad++;
    while (st && sqlite3_step(st) == SQLITE_ROW) {
        int64_t batch = sqlite3_column_int64(st, 0);

        if (batch < 0 || batch > batch_count || batch >= BATCHES_MAX || !sqlite3_column_int(st, 1)) {
            if (bad++ < 10)
                printf("a point of batch %" PRId64 " that nobody sent\n", batch);
        } else {
            points[batch]++;
        }
    }
    sqlite3_finalize(st);
    for (int i = 0; i < batch_count; i++) {
        if (points[i] != BATCH && bad++ < 10)
            printf("batch %d was acknowledged and has %d points\n", i, points[i]);
    }
    return bad;
}

/* The listener missed nothing between its first and its last event. */
static int check_events(sqlite3 *db)
{
    int64_t first = event_count ? events[0] : 0, last = event_count ? events[event_count - 1] : 0;

    if (event_disorder) {
        printf("%d events came out of order\n", event_disorder);
        return 1;
    }
    if (event_count < EVENTS_MAX &&
        ask(db, "SELECT count(*) FROM event WHERE id >= ?1 AND ?2 IS NULL AND id <= ?3", first, NULL, last) !=
            event_count) {
        printf("of the events %" PRId64 "..%" PRId64 " the listener saw %d\n", first, last, event_count);
        return 1;
    }
    return 0;
}

static int check_all(void)
{
    struct pd_buf out;
    sqlite3 *db = NULL;
    char path[128];
    int bad = 0;

    pd_buf_init(&out, 0);
    bad += verify_state(rig.state, true, &out);
    if (verify_processes(rig.state, &out) > 0)
        bad++;
    if (out.len)
        printf("%s", out.data);
    pd_buf_done(&out);
    bad += rig_check_points(&rig, STEPS);
    snprintf(path, sizeof path, "%s/polyd.db", rig.state);
    if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL) != SQLITE_OK)
        bad++;
    else
        bad += check_jobs(db) + check_batches(db) + check_events(db);
    if (db)
        printf("kill: %" PRId64 " runs succeeded, %" PRId64 " failed, %" PRId64 " attempts, %" PRId64
               " lost, %" PRId64 " points, %" PRId64 " checkpoints\n",
               ask(db, "SELECT count(*) FROM run WHERE ?1 > 0 AND outcome = 'succeeded'", 1, NULL, 0),
               ask(db, "SELECT count(*) FROM run WHERE ?1 > 0 AND outcome = 'failed'", 1, NULL, 0),
               ask(db, "SELECT count(*) FROM attempt WHERE ?1 > 0", 1, NULL, 0),
               ask(db, "SELECT count(*) FROM attempt WHERE ?1 > 0 AND cause = 'lost'", 1, NULL, 0),
               ask(db, "SELECT count(*) FROM metric WHERE ?1 > 0", 1, NULL, 0),
               ask(db, "SELECT count(*) FROM checkpoint WHERE ?1 > 0", 1, NULL, 0));
    if (db && ask(db, "SELECT count(*) FROM run WHERE ?1 > 0 AND outcome = 'failed'", 1, NULL, 0) != 0) {
        printf("no run may fail: a killed worker is begun again\n");
        bad++;
    }
    sqlite3_close(db);
    return bad;
}

/* Waits until every job has ended; false after two minutes. */
static bool wait_jobs(void)
{
    char path[128];
    sqlite3 *db = NULL;
    int64_t left = -1;

    snprintf(path, sizeof path, "%s/polyd.db", rig.state);
    if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL) != SQLITE_OK)
        return false;
    sqlite3_busy_timeout(db, 5000);
    for (int i = 0; i < 1200 && left; i++) {
        left =
            ask(db, "SELECT count(*) FROM job WHERE ?1 > 0 AND state NOT IN ('done', 'failed', 'cancelled')",
                1, NULL, 0);
        if (left)
            rig_sleep_us(100000);
    }
    sqlite3_close(db);
    if (left)
        printf("%" PRId64 " jobs never ended\n", left);
    return left == 0;
}

int main(int argc, char **argv)
{
    unsigned long kills = 200, mean_ms = 250;
    pthread_t threads[SUBMITTERS + 2];
    uint64_t random;
    int64_t begin, limit;
    int opt, bad = 0, status = 0;
    bool keep = false;

    seed = (uint64_t)time(NULL) * 1000003u + (uint64_t)getpid();
    while ((opt = getopt(argc, argv, "n:s:m:k")) != -1) {
        if (opt == 'n')
            kills = strtoul(optarg, NULL, 10);
        else if (opt == 's')
            seed = strtoull(optarg, NULL, 10);
        else if (opt == 'm')
            mean_ms = strtoul(optarg, NULL, 10);
        else if (opt == 'k')
            keep = true;
        else
            return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    rig_init(&rig, "kill");
    printf("kill: seed %" PRIu64 ", %lu kills, %s\n", seed, kills, rig.dir);
    setenv("POLYD_SELFTEST", "1", 1);
    setenv("POLYD_SELFTEST_STEPS", "60", 1);
    setenv("POLYD_SELFTEST_STEP_US", "4000", 1);
    setenv("POLYD_SELFTEST_EVERY", "10", 1);
    rig.args[0] = "--devices.cpu_slots=4";
    rig.args[1] = "--devices.threads_per_slot=1";
    if (!rig_start(&rig, &status)) {
        printf("kill: polyd did not start (status %d)\n", status);
        rig_done(&rig, true);
        return 1;
    }
    begin = pd_clock_mono_us();
    limit = begin + (int64_t)kills * (int64_t)mean_ms * 4000 + 60000000;
    for (int i = 0; i < SUBMITTERS; i++)
        pthread_create(&threads[i], NULL, submitter, (void *)(intptr_t)i);
    pthread_create(&threads[SUBMITTERS], NULL, logger, NULL);
    pthread_create(&threads[SUBMITTERS + 1], NULL, listener, NULL);
    random = seed;
    for (unsigned long k = 0; k < kills && !bad;) {
        rig_sleep_us((int64_t)(next_random(&random) % (2000 * mean_ms)));
        k += kill_someone(&random);
        if (rig.pid == 0) {
            /* One in eight dies again before it is ready. */
            if (next_random(&random) % 8 == 0 && k < kills) {
                rig_spawn(&rig);
                rig_sleep_us((int64_t)(next_random(&random) % 40000));
                rig_stop(&rig, SIGKILL);
                kills_daemon++;
                k++;
            }
            if (!rig_start(&rig, &status)) {
                printf("kill: polyd did not start again after kill %lu (status %d)\n", k, status);
                bad++;
            }
        }
        if (pd_clock_mono_us() > limit) {
            printf("kill: only %lu kills in the time\n", k);
            bad++;
        }
    }
    atomic_store(&stop, true);
    for (int i = 0; i <= SUBMITTERS; i++)
        pthread_join(threads[i], NULL);
    if (!bad && !wait_jobs())
        bad++;
    printf("kill: %.1f s\n", (double)(pd_clock_mono_us() - begin) / 1e6);
    status = rig_stop(&rig, SIGTERM); /* ends the listener's connection too */
    pthread_join(threads[SUBMITTERS + 1], NULL);
    if (status != 0) {
        printf("kill: polyd ended with status %d after SIGTERM\n", status);
        bad++;
    }
    if (!rig_wait_alone(&rig, 10000))
        printf("kill: processes are left\n");
    bad += check_all() + atomic_load(&refused);
    printf("kill: seed %" PRIu64
           ": %d daemons, %d workers, %d shims killed; acknowledged %d jobs, %d batches, %d events "
           "seen; ready after %.0f ms (worst %.0f); %d breaches\n",
           seed, kills_daemon, kills_worker, kills_shim, job_count[0] + job_count[1], batch_count,
           event_count, (double)rig.ready_us_sum / 1000 / (rig.restarts ? rig.restarts : 1),
           (double)rig.ready_us_max / 1000, bad);
    rig_done(&rig, keep || bad);
    return bad != 0;
}
