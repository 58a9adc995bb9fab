#include "tests/train/rig.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/digest/digest.h"
#include "daemon/worker/data/philox.h"
#include "kernels/comm/comm.h"

char folder[64], checkpoints[128];
struct data_root root = {"box", folder};

/* What polyd knows of files, the newest last. */
static struct {
    char path[400], digest[DIGEST_SHA256_HEX_SIZE];
} recorded[512];
static size_t recorded_count;

int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/polyd-train-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(checkpoints, sizeof checkpoints, "%s/run", folder);
    recorded_count = 0;
    return 0;
}

int teardown(void **state)
{
    char command[160];

    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static bool timing(const char *key)
{
    return !strcmp(key, "step_ms") || !strcmp(key, "samples_per_s") || !strcmp(key, "tokens_per_s") ||
           !strncmp(key, "mem/", 4) || !strncmp(key, "sys/", 4) || !strcmp(key, "steps_per_epoch") ||
           !strcmp(key, "data_wait") || !strcmp(key, "comm/wait");
}

static void on_metrics(void *user, const struct train_point *points, size_t count)
{
    struct book *b = user;

    assert_true(count > 0 && count <= 1000);
    b->points = realloc(b->points, (b->count + count) * sizeof *b->points);
    for (size_t i = 0; i < count; i++) {
        if (timing(points[i].key)) {
            if (!strcmp(points[i].key, "mem/arena"))
                b->arena = points[i].value;
            b->comm_waits += !strcmp(points[i].key, "comm/wait");
            assert_true(points[i].value > 0 || !strcmp(points[i].key, "data_wait") ||
                        !strcmp(points[i].key, "comm/wait"));
            continue;
        }
        snprintf(b->points[b->count].key, sizeof b->points[0].key, "%s", points[i].key);
        b->points[b->count].step = points[i].step;
        b->points[b->count++].value = points[i].value;
    }
}

static void on_event(void *user, const char *kind, const char *text, const char *fields)
{
    struct book *b = user;
    size_t n = strlen(b->events);

    assert_non_null(text);
    assert_non_null(fields);
    snprintf(b->events + n, sizeof b->events - n, "%s;", kind);
    if (!strcmp(kind, "compiled"))
        snprintf(b->compiled, sizeof b->compiled, "%s", fields);
    if (!strcmp(kind, "bad_picture"))
        snprintf(b->bad + strlen(b->bad), sizeof b->bad - strlen(b->bad), "%s;", fields);
}

static void on_phase(void *user, const char *text)
{
    struct book *b = user;
    size_t n = strlen(b->events);

    snprintf(b->events + n, sizeof b->events - n, "phase%s%s;", text ? ":" : "", text ? text : "");
}

static void on_progress(void *user, int64_t step, int64_t total)
{
    ((struct book *)user)->progress = step;
    assert_true(step <= total);
}

const char *recorded_digest(const char *path)
{
    for (size_t i = recorded_count; i-- > 0;)
        if (!strcmp(recorded[i].path, path))
            return recorded[i].digest;
    return "";
}

static void on_checkpoint(void *user, const struct train_checkpoint_info *info)
{
    struct book *b = user;
    struct stat s;

    if (!b->lost) {
        assert_true(recorded_count < sizeof recorded / sizeof *recorded);
        snprintf(recorded[recorded_count].path, sizeof recorded->path, "%s", info->path);
        digest_hex(info->sha256, sizeof info->sha256, recorded[recorded_count++].digest);
    }
    b->written++;
    b->written_best += info->best;
    snprintf(b->last_path, sizeof b->last_path, "%s", info->path);
    assert_int_equal(stat(info->path, &s), 0);
    assert_int_equal(s.st_size, info->bytes);
}

static enum train_stop on_stop(void *user)
{
    struct book *b = user;

    b->asked++;
    if (b->stop_after_calls && b->asked > b->stop_after_calls)
        return b->how;
    return TRAIN_STOP_NONE;
}

static bool on_checkpoint_now(void *user)
{
    struct book *b = user;

    return b->want_checkpoint > 0 && b->want_checkpoint-- == 1;
}

static bool on_recorded(void *user, int64_t step, bool wait)
{
    struct book *b = user;

    b->waits += wait;
    return wait || !b->unrecorded || step < b->unrecorded;
}

static void on_log(void *user, const char *line)
{
    (void)user;
    assert_true(strlen(line) > 0);
}

const struct pk_backend_api *run_api;

/* What polyd would name: `start` and the older files of the run's folder, or all of them, newest first. */
#define STARTS_MAX 64
struct starts {
    char paths[STARTS_MAX][400];
    const char *items[STARTS_MAX], *digests[STARTS_MAX];
};

static int newest_first(const void *a, const void *b)
{
    return -strcmp(a, b); /* the names have the step in digits of equal number */
}

static size_t starts_from(const char *start, struct starts *s)
{
    DIR *d = opendir(checkpoints);
    struct dirent *e;
    size_t n = 0;

    if (start && (!d || strncmp(start, checkpoints, strlen(checkpoints)) != 0))
        snprintf(s->paths[n++], sizeof s->paths[0], "%s", start);
    while (d && (e = readdir(d)) && n < STARTS_MAX)
        if (train_checkpoint_step(e->d_name) >= 0) {
            snprintf(s->paths[n], sizeof s->paths[0], "%s/%s", checkpoints, e->d_name);
            if (!start || strcmp(s->paths[n], start) <= 0)
                n++;
        }
    if (d)
        closedir(d);
    qsort(s->paths, n, sizeof s->paths[0], newest_first);
    for (size_t i = 0; i < n; i++) {
        s->items[i] = s->paths[i];
        s->digests[i] = recorded_digest(s->paths[i]);
    }
    return n;
}

static enum pd_err run_as(const struct train_ranks *ranks, const char *json, struct book *book,
                          const char *start, int threads, struct train_outcome *out, struct pd_why *why)
{
    const struct train_host host = {.user = book,
                                    .metrics = on_metrics,
                                    .event = on_event,
                                    .progress = on_progress,
                                    .phase = on_phase,
                                    .checkpoint_written = on_checkpoint,
                                    .checkpoint_recorded = on_recorded,
                                    .log = on_log,
                                    .stop = on_stop,
                                    .checkpoint_now = on_checkpoint_now};
    struct starts starts;
    const struct train_dirs dirs = {.checkpoints = checkpoints,
                                    .roots = &root,
                                    .root_count = 1,
                                    .starts = starts.items,
                                    .start_digests = starts.digests,
                                    .start_count = book->from_seed ? 0 : starts_from(start, &starts),
                                    .threads = threads,
                                    .ranks = *ranks};
    struct job_config *config = NULL;
    enum pd_err err = job_config_load(json, strlen(json), &config, why);

    if (err != PD_OK)
        fail_msg("the document is refused: %s", why->text);
    err = run_api ? train_run_on(config, &dirs, &host, run_api, out, why)
                  : train_run(config, &dirs, &host, out, why);
    job_config_free(config);
    return err;
}

enum pd_err run(const char *json, struct book *book, const char *start, int threads,
                struct train_outcome *out, struct pd_why *why)
{
    return run_as(&(struct train_ranks){.ranks = 1}, json, book, start, threads, out, why);
}

enum pd_err others = PD_OK;
char last_rank_why[512];
const struct pk_comm_api *others_comm, *first_comm;

enum pd_err run_ranks(int ranks, const char *json, struct book *book, const char *start,
                      struct train_outcome *out, struct pd_why *why)
{
    uint8_t id[PK_COMM_ID_MAX];
    struct train_ranks r = {.ranks = ranks, .comm = pk_comm_local(), .id = id};
    pid_t pid[8];
    int pipe_fd[2];
    enum pd_err err;

    assert_int_equal(pipe(pipe_fd), 0);
    assert_int_equal(pk_comm_local()->make_id(id, why), PD_OK);
    for (int i = 1; i < ranks; i++) {
        pid[i] = fork();
        assert_true(pid[i] >= 0);
        if (!pid[i]) {
            struct book own = {0};

            alarm(120);
            r.rank = i;
            r.comm = others_comm ? others_comm : r.comm;
            err = run_as(&r, json, &own, start, 1, out, why);
            if (err != others)
                fprintf(stderr, "rank %d: %s\n", i, err == PD_OK ? "all went well" : why->text);
            if (own.count || own.written || own.events[0])
                _exit(100); /* only rank 0 speaks */
            if (i == ranks - 1 && write(pipe_fd[1], why->text, sizeof last_rank_why) < 0)
                _exit(101);
            _exit((int)err);
        }
    }
    r.comm = first_comm ? first_comm : r.comm;
    err = run_as(&r, json, book, start, 1, out, why);
    for (int i = 1; i < ranks; i++) {
        int status;

        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        if (others != PD_ERR_COUNT && (!WIFEXITED(status) || WEXITSTATUS(status) != (int)others))
            fail_msg("rank %d ended with %x (rank 0: %s)", i, (unsigned)status,
                     err == PD_OK ? "" : why->text);
    }
    close(pipe_fd[1]);
    if (read(pipe_fd[0], last_rank_why, sizeof last_rank_why) <= 0)
        last_rank_why[0] = '\0';
    close(pipe_fd[0]);
    return err;
}

void close_book(struct book *b)
{
    free(b->points);
    memset(b, 0, sizeof *b);
}

const struct point *find(const struct book *b, const char *key, int64_t step)
{
    for (size_t i = 0; i < b->count; i++)
        if (!strcmp(b->points[i].key, key) && b->points[i].step == step)
            return &b->points[i];
    return NULL;
}

size_t files(void)
{
    DIR *d = opendir(checkpoints);
    struct dirent *e;
    size_t n = 0;

    assert_non_null(d);
    while ((e = readdir(d)))
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

void clear(void)
{
    char command[160];

    snprintf(command, sizeof command, "rm -rf '%s'", checkpoints);
    assert_int_equal(system(command), 0);
    recorded_count = 0;
}

void read_whole(const char *path, uint8_t **ret, size_t *ret_len)
{
    FILE *f = fopen(path, "rb");

    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *ret_len = (size_t)ftell(f);
    rewind(f);
    *ret = malloc(*ret_len + 1);
    assert_int_equal(fread(*ret, 1, *ret_len, f), *ret_len);
    fclose(f);
}

void same_points(const struct book *a, const struct book *b)
{
    assert_int_equal(a->count, b->count);
    for (size_t i = 0; i < a->count; i++) {
        const struct point *p = find(b, a->points[i].key, a->points[i].step);

        if (!p || memcmp(&p->value, &a->points[i].value, sizeof p->value))
            fail_msg("%s at step %lld: %a and %a", a->points[i].key, (long long)a->points[i].step,
                     a->points[i].value, p ? p->value : (double)NAN);
    }
}

const struct point *far_point(const struct book *want, const struct book *got, double tolerance)
{
    for (size_t i = 0; i < want->count; i++) {
        const struct point *p = &want->points[i], *q = find(got, p->key, p->step);

        if (!q || !(fabs(q->value - p->value) <= tolerance * fmax(1, fabs(p->value))))
            return p;
    }
    return NULL;
}

void near_points(const struct book *want, const struct book *got, double tolerance)
{
    const struct point *p = far_point(want, got, tolerance), *q;

    assert_int_equal(want->count, got->count);
    if (!p)
        return;
    q = find(got, p->key, p->step);
    fail_msg("%s at step %lld: %.17g and %.17g", p->key, (long long)p->step, p->value,
             q ? q->value : (double)NAN);
}

void check_random_stops(const char *json, int trials)
{
    struct book whole = {0};
    struct train_outcome out;
    uint8_t *want, *got;
    size_t want_len, got_len;
    uint64_t seed = (uint64_t)time(NULL);
    const char *fixed = getenv("POLYD_TEST_SEED");
    struct pd_why why;

    if (fixed)
        seed = strtoull(fixed, NULL, 10);
    print_message("POLYD_TEST_SEED=%llu\n", (unsigned long long)seed);
    if (run(json, &whole, NULL, 1, &out, &why) != PD_OK)
        fail_msg("%s", why.text);
    read_whole(out.latest_path, &want, &want_len);
    for (int trial = 0; trial < trials; trial++) {
        struct book pieces = {0};
        int stops = 0;

        clear();
        do {
            uint32_t word[4];

            data_random(seed, DATA_STREAM_INIT, (uint64_t)trial, (uint64_t)stops++, word);
            /* stop is asked at boundaries and inside evaluations: any moment may be hit */
            pieces.asked = 0;
            pieces.stop_after_calls = 1 + data_bounded(word[0], 12);
            pieces.how = TRAIN_STOP_CHECKPOINT;
            assert_int_equal(run(json, &pieces, NULL, 1 + trial % 2, &out, &why), PD_OK);
            assert_true(out.result == TRAIN_STOPPED || out.result == TRAIN_DONE);
            assert_true(stops < 100);
        } while (out.result != TRAIN_DONE);
        same_points(&whole, &pieces);
        read_whole(out.latest_path, &got, &got_len);
        assert_int_equal(got_len, want_len);
        assert_memory_equal(got, want, want_len); /* parameters, moments, counts: all of it */
        free(got);
        close_book(&pieces);
    }
    free(want);
    close_book(&whole);
}
