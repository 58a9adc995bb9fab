/* seed_store DIR RUNS: a state directory with RUNS runs as a busy month leaves them, written by the real
 * store.
 *
 * The first job is a sweep with trials (scale k over seven values, three seeds); then jobs of one run in many
 * shapes, most of which succeeded, some failed, diverged or were cancelled. Each run has the latest values
 * that the table shows; every 500th has long curves with layers and heads. The numbers come from a generator
 * with a fixed seed: every call makes the same store, but for its times. The daemon must not run meanwhile.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/job/job.h"
#include "daemon/job/state.h"
#include "daemon/polyd/store/tx.h"
#include "kernels/base/clock.h"

#define POINTS_MAX 1000 /* of one call of the store */

static uint64_t state = 20260101;

static double uniform(void)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(state >> 11) / 9007199254740992.0;
}

struct seed {
    struct job_doc *job;
    struct job_report report;
    const char *tags;
    bool rich;
    int64_t first_run; /* of the job just written */
    int64_t runs;
};

static double curve(double t, double end, double noise)
{
    return end + (2.3 - end) * exp(-6 * t) + noise * (uniform() - 0.5);
}

/* Latest values only: one point a key. */
static enum pd_err few(struct store_tx *tx, int64_t run, double good, int64_t step, struct pd_why *why)
{
    int64_t now = pd_clock_wall_us();
    struct store_metric points[] = {
        {"loss/train", step, now, 2.3 - 2.1 * good}, {"loss/val", step, now, 2.3 - 2.0 * good},
        {"acc/val", step, now, 0.1 + 0.88 * good},   {"samples_per_s", step, now, 900 + 300 * uniform()},
        {"step_ms", step, now, 30 + 8 * uniform()},
    };

    return store_metric_append(tx, run, 1, points, sizeof points / sizeof *points, NULL, why);
}

static enum pd_err many(struct store_tx *tx, int64_t run, double good, int64_t steps, struct pd_why *why)
{
    static char keys[512][32];
    static struct store_metric points[POINTS_MAX];
    int64_t begin = pd_clock_wall_us() - steps * 40000;
    size_t n = 0;
    enum pd_err err = PD_OK;

#define POINT(at, value_, ...)                                                                               \
    do {                                                                                                     \
        snprintf(keys[n % 512], sizeof keys[0], __VA_ARGS__);                                                \
        points[n] = (struct store_metric){keys[n % 512], at, begin + (at)*40000, value_};                    \
        if (++n == 500) {                                                                                    \
            err = store_metric_append(tx, run, 1, points, n, NULL, why);                                     \
            n = 0;                                                                                           \
        }                                                                                                    \
    } while (0)
    for (int64_t s = 1; s <= steps && err == PD_OK; s++) {
        double t = (double)s / (double)steps, loss = curve(t, 2.3 - 2.1 * good, 0.25 * (1.2 - t));

        POINT(s, loss, "loss/train");
        POINT(s, fmin(1, fmax(0, 1.0 - loss / 2.6 + 0.08 * (uniform() - 0.5))), "acc/train");
        POINT(s, 0.003 * (t < 0.05 ? t / 0.05 : 0.5 + 0.5 * cos(3.14159 * (t - 0.05) / 0.95)), "lr");
        POINT(s, 0.4 + 2 * exp(-8 * t) * uniform() + 0.2 * uniform(), "grad/norm");
        if (s % 10 == 0) {
            POINT(s, 31 + 3 * uniform() + (uniform() > .97 ? 20 : 0), "step_ms");
            POINT(s, 1000 + 90 * uniform(), "samples_per_s");
            POINT(s, 2.1e8 + 4e5 * floor(10 * t), "mem/peak");
        }
        if (s % 50 == 0) {
            POINT(s, curve(t, 2.3 - 2.0 * good, 0.02), "loss/val");
            POINT(s, (0.1 + 0.88 * good) * (1 - exp(-7 * t)), "acc/val");
            for (int layer = 1; layer <= 6 && err == PD_OK; layer++) {
                POINT(s, 1 + layer * 0.3 + t * (6 - layer) * .4 + .05 * uniform(), "attn/fro/%d", layer);
                POINT(s, .4 + .1 * layer * t + .02 * uniform(), "attn/jac_fro/%d", layer);
                POINT(s, .2 + .05 * layer * t + .02 * uniform(), "attn/jac_q_fro/%d", layer);
                POINT(s, .3 + .15 * layer * t, "logit/std/%d", layer);
                POINT(s, 1 + .8 * layer * t + .1 * uniform(), "logit/max/%d", layer);
                POINT(s, 1 / 7.0 + .03 * (layer - 3) * t, "scale/c/%d", layer);
                for (int head = 1; head <= 4 && err == PD_OK; head++)
                    POINT(s, 1 + layer * 0.3 + t * (6 - layer) * .4 + .1 * head, "attn/fro/%d/%d", layer,
                          head);
            }
        }
    }
    if (n && err == PD_OK)
        err = store_metric_append(tx, run, 1, points, n, NULL, why);
    return err;
}

static enum pd_err live(struct store_tx *tx, struct seed *s, int64_t run, double good, struct pd_why *why)
{
    struct store_attempt_new a = {.run_id = run, .devices = "cpu:0"};
    double fate = uniform();
    int64_t steps = s->rich ? 3000 : 600, done = steps;
    enum job_outcome outcome = JOB_OUTCOME_SUCCEEDED;
    enum job_cause cause = JOB_CAUSE_DONE;
    const char *message = "";
    int attempt;
    enum pd_err err;

    if (!s->rich && fate < .06) {
        outcome = JOB_OUTCOME_FAILED;
        cause = JOB_CAUSE_FAILED;
        message = "data: test/verse.txt: no such file";
        done = 0;
    } else if (!s->rich && fate < .11) {
        outcome = JOB_OUTCOME_DIVERGED;
        cause = JOB_CAUSE_DIVERGED;
        message = "100 steps in a row had a loss or a gradient that was not finite";
        done = steps / 3;
    } else if (!s->rich && fate < .15) {
        outcome = JOB_OUTCOME_CANCELLED;
        cause = JOB_CAUSE_CANCELLED;
        message = "cancelled by request";
        done = steps / 2;
    }
    err = store_attempt_insert(tx, &a, &attempt, why);
    if (err == PD_OK)
        err = store_attempt_move(tx, run, attempt, JOB_ATTEMPT_RUNNING, 0, NULL, -1, why);
    if (err == PD_OK)
        err = store_run_move(tx, run, JOB_RUN_RUNNING, 0, NULL, why);
    if (err == PD_OK)
        err = store_attempt_progress(tx, run, attempt, done, steps, 0, why);
    if (err == PD_OK && done)
        err = s->rich ? many(tx, run, good, steps, why)
                      : few(tx, run, outcome == JOB_OUTCOME_DIVERGED ? 0.1 : good, done, why);
    if (err == PD_OK)
        err = store_attempt_move(tx, run, attempt, JOB_ATTEMPT_ENDED, cause, message,
                                 outcome == JOB_OUTCOME_FAILED, why);
    if (err == PD_OK)
        err = store_run_move(tx, run, JOB_RUN_ENDED, outcome, message, why);
    return err;
}

/* The member "sweep" of a document of ours (no braces within strings), or "". The caller frees it. */
static char *sweep_of(const char *document)
{
    const char *at = strstr(document, "\"sweep\":{");
    size_t n = 0;
    int depth = 0;

    if (!at)
        return strdup("");
    at += strlen("\"sweep\":");
    do {
        depth += (at[n] == '{') - (at[n] == '}');
        n++;
    } while (depth > 0 && at[n]);
    return strndup(at, n);
}

static enum pd_err apply(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct seed *s = ctx;
    const struct job_head *head = job_doc_head(s->job);
    struct pd_buf document;
    struct store_job_new job = {.name = head->name,
                                .experiment = head->experiment,
                                .tags = s->tags,
                                .notes = head->notes,
                                .priority = (int)head->resources.priority,
                                .planned = head->run_count,
                                .points = head->points,
                                .trials = head->trials,
                                .concurrency = head->concurrency,
                                .metric = head->metric,
                                .maximise = head->mode == JOB_MODE_MAX};
    char *axes = NULL;
    int64_t id = 0;
    enum pd_err err;

    pd_buf_init(&document, 0);
    err = job_document(s->job, &document, why);
    if (err == PD_OK)
        err = pd_buf_err(&document);
    job.document = document.data;
    if (err == PD_OK && !(axes = sweep_of(document.data)))
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for a sweep");
    job.sweep = axes;
    if (err == PD_OK)
        err = store_job_insert(tx, &job, &id, why);
    for (int64_t n = 0; n < job_run_count(s->job) && err == PD_OK; n++) {
        char digest[JOB_DIGEST_SIZE], plan[JOB_DIGEST_SIZE];
        struct pd_buf text, sweep;
        double k = 0;
        int64_t run;

        pd_buf_init(&text, 0);
        pd_buf_init(&sweep, 0);
        err = job_run_resolve(s->job, n, &text, why);
        if (err == PD_OK)
            err = job_run_params(s->job, n, &sweep, why);
        if (err == PD_OK)
            err = job_config_digest(text.data, text.len, digest, why);
        if (err == PD_OK)
            err = job_plan_digest(text.data, text.len, "build=seed device=cpu", plan, why);
        if (err == PD_OK) {
            struct store_run_new row = {.document = text.data,
                                        .config_digest = digest,
                                        .plan_digest = plan,
                                        .sweep = sweep.data,
                                        .device = "cpu",
                                        .slots = 1,
                                        .threads = 1,
                                        .priority = job.priority,
                                        .max_restarts = 3,
                                        .total_steps = -1,
                                        .point = n / head->trials,
                                        .trial = job_run_trial(s->job, n),
                                        .seed = job_run_seed(s->job, n)};

            err = store_run_insert(tx, id, &row, &run, why);
        }
        if (err == PD_OK) {
            if (sweep.data && sscanf(sweep.data, "{\"/attention/k\":%lf", &k) == 1 && k > 0)
                k = .97 - .09 * fabs(log10(k) - .85) - .02 * uniform();
            else
                k = .6 + .38 * uniform();
            err = live(tx, s, run, k, why);
        }
        pd_buf_done(&text);
        pd_buf_done(&sweep);
    }
    free(axes);
    pd_buf_done(&document);
    return err;
}

/* Writes the job; exits on failure. */
static int64_t add(struct store_writer *w, const char *text, const char *tags, bool rich)
{
    struct seed s = {.tags = tags, .rich = rich};
    struct store_work work = {.lane = STORE_LANE_COMMAND, .rows = 1000, .apply = apply, .ctx = &s};
    struct pd_why why = {.text = ""};
    int64_t runs;

    job_report_init(&s.report);
    if (job_parse(text, strlen(text), NULL, &s.job, &s.report) != PD_OK) {
        fprintf(stderr, "seed_store: %s %s\n%s\n", s.report.error_count ? s.report.errors[0].pointer : "",
                s.report.error_count ? s.report.errors[0].detail : "", text);
        exit(1);
    }
    if (store_writer_call(w, &work, &why) != PD_OK) {
        fprintf(stderr, "seed_store: %s\n", why.text);
        exit(1);
    }
    runs = job_run_count(s.job);
    job_free(s.job);
    job_report_done(&s.report);
    return runs;
}

int main(int argc, char **argv)
{
    static const char *const scales[] = {"fixed", "learned", "none"};
    static const char *const who[] = {"ada", "noor", "émile"};
    struct store_writer_options o = {.state_dir = argc > 1 ? argv[1] : ""};
    long wanted = argc > 2 ? strtol(argv[2], NULL, 10) : 0;
    struct store_writer *w;
    struct pd_why why = {.text = ""};
    char text[1024], tags[160];
    int64_t runs = 0;

    if (argc != 3 || wanted < 1) {
        fprintf(stderr, "usage: seed_store DIR RUNS\n");
        return 2;
    }
    mkdir(o.state_dir, 0700);
    if (store_writer_start(&o, &w, &why) != PD_OK) {
        fprintf(stderr, "seed_store: %s\n", why.text);
        return 1;
    }
    runs += add(w,
                "{\"name\":\"scale sweep N=16\",\"experiment\":\"E01\",\"notes\":\"Accuracy against "
                "k.\",\"model\":{\"preset\":"
                "\"vit_micro\",\"patch\":7},\"attention\":{\"activation\":\"poly\",\"degree\":3,\"scale\":"
                "\"k\",\"k\":4},\"data\":{\"dataset\":"
                "\"digits_gen\"},\"train\":{\"epochs\":2},\"trials\":3,\"sweep\":{\"method\":\"grid\","
                "\"axes\":[{\"pointer\":"
                "\"/attention/k\",\"log\":[0.001,1000,7]}],\"metric\":\"acc/val\",\"mode\":\"max\"}}",
                "{\"paper\":\"P-Fig 1\"}", false);
    for (long i = 0; runs < wanted; i++) {
        int degree = 1 + (int)(uniform() * 6);
        const char *scale = scales[(int)(uniform() * 3)], *person = who[(int)(uniform() * 3)];
        double lr = pow(10, -4 + 2 * uniform());
        bool soft = uniform() < .25, rich = i % 500 == 0 || runs >= wanted - 4;

        snprintf(tags, sizeof tags, "{\"owner\":\"%s\"%s}", person, i % 7 == 0 ? ",\"keep\":\"yes\"" : "");
        if (soft)
            snprintf(
                text, sizeof text,
                "{\"name\":\"softmax %s %ld\",\"experiment\":\"E%02ld\",\"model\":{\"preset\":\"vit_micro\"},"
                "\"attention\":{\"activation\":\"softmax\"},\"data\":{\"dataset\":\"digits_gen\"},\"train\":{"
                "\"epochs\":4,\"seed\":%ld,"
                "\"optimizer\":{\"lr\":%.3g}}}",
                person, i, 1 + i % 9, i, lr);
        else
            snprintf(
                text, sizeof text,
                "{\"name\":\"x^%d %s %ld\",\"experiment\":\"E%02ld\",\"model\":{\"preset\":\"vit_micro\"},"
                "\"attention\":{\"activation\":\"poly\",\"degree\":%d,\"scale\":\"%s\"},\"data\":{"
                "\"dataset\":\"digits_gen\"},"
                "\"train\":{\"epochs\":4,\"seed\":%ld,\"optimizer\":{\"lr\":%.3g}}}",
                degree, scale, i, 1 + i % 9, degree, scale, i, lr);
        runs += add(w, text, tags, rich);
    }
    store_writer_stop(w);
    printf("%lld runs\n", (long long)runs);
    return 0;
}
