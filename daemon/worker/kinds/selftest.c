/* Kind selftest, the diagnostic one: fits y = a x + b to generated points by gradient descent, one point a
 * step. It is small and exact on purpose: fault tests run hundreds of it, kill it anywhere, and afterwards
 * know from (seed, step) alone what every metric, checkpoint and the final weights must be.
 *
 * A daemon that was started with the train role "selftest" gives it to every run, whatever its kind.
 * Variables of the worker's environment (tests set them for the daemon, workers inherit them):
 * - POLYD_SELFTEST_STEPS      steps (default 200)
 * - POLYD_SELFTEST_STEP_US    pause after each step, in microseconds (default 1000)
 * - POLYD_SELFTEST_EVERY      steps between checkpoints (default 20)
 * - POLYD_SELFTEST_KEYS       further scalars a step, "x/0".. (default 0), of value step + key / 1000
 * - POLYD_SELFTEST_FAIL_AT    fail at this step, in every attempt
 * - POLYD_SELFTEST_REFUSE_AT  likewise, as a document that cannot be carried out
 * - POLYD_SELFTEST_CRASH_AT   abort() at this step, in the first attempt only
 * - POLYD_SELFTEST_DIVERGE_AT end as diverged at this step
 * - POLYD_SELFTEST_FORK       1: leave a child behind that forked twice and sleeps
 * - POLYD_SELFTEST_IGNORE     1: ignore the wish to stop (for the hard kill)
 * - POLYD_SELFTEST_FAIL_RANK  with several ranks: this one fails at step 30 of the first attempt
 *
 * With several ranks, rank 0 does all that, and before every step tells the others whether to go on; they do
 * nothing but listen.
 *
 * Its scalars at step s: "loss", "a", "b". A checkpoint is a text file "selftest <step> <a> <b>", in
 * hexadecimal floating point, so that resuming is exact. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/digest/digest.h"
#include "daemon/worker/kinds/kinds.h"
#include "kernels/base/clock.h"
#include "kernels/base/file.h"
#include "kernels/base/log.h"
#include "kernels/comm/comm.h"

struct fit {
    int64_t step;
    double a, b;
};

static int64_t env_int(const char *name, int64_t missing)
{
    const char *text = getenv(name);

    return text && *text ? strtoll(text, NULL, 10) : missing;
}

/* The point of a step, in [0, 1): splitmix64. */
static double draw(int64_t step)
{
    uint64_t z = (uint64_t)step * UINT64_C(0x9E3779B97F4A7C15) + UINT64_C(0x9E3779B97F4A7C15);

    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
}

/* One step; returns the loss before it. */
static double fit_step(struct fit *f)
{
    double x = draw(f->step + 1), y = 3.0 * x - 1.0, error = f->a * x + f->b - y;

    f->a -= 0.5 * error * x;
    f->b -= 0.5 * error;
    f->step++;
    return error * error;
}

static enum pd_err fit_load(struct fit *f, const char *path, struct pd_why *why)
{
    struct pd_buf text;
    long long step;
    enum pd_err err;

    pd_buf_init(&text, 0);
    err = pd_file_read(path, 4096, &text, why);
    if (err == PD_OK && (!text.data || sscanf(text.data, "selftest %lld %la %la", &step, &f->a, &f->b) != 3))
        err = pd_fail(why, PD_ERR_CORRUPT, "'%s' is not a checkpoint of the selftest", path);
    if (err == PD_OK)
        f->step = step;
    pd_buf_done(&text);
    return err;
}

static enum pd_err fit_save(struct attempt *at, const struct fit *f, const char *kind, double loss,
                            struct pd_why *why)
{
    char dir[2048], path[4096], text[256], digest[DIGEST_SHA256_HEX_SIZE];
    int len = snprintf(text, sizeof text, "selftest %lld %a %a\n", (long long)f->step, f->a, f->b);
    enum pd_err err;

    if ((size_t)snprintf(dir, sizeof dir, "%s/checkpoints", at->assign->run_dir) >= sizeof dir)
        return pd_fail(why, PD_ERR_LIMIT, "the run directory's name is too long");
    snprintf(path, sizeof path, "%s/a%d-%s-%lld.txt", dir, at->number, kind, (long long)f->step);
    err = pd_file_make_dirs(dir, why);
    if (err == PD_OK)
        err = pd_file_replace(path, text, (size_t)len, 0600, why);
    if (err == PD_OK)
        link_checkpoint(at->link, kind, path, f->step, (uint64_t)len,
                        digest_sha256_hex(text, (size_t)len, digest), loss);
    return err;
}

static void leave_a_stray(void)
{
    pid_t pid = fork();

    if (pid == 0) {
        setsid();
        if (fork() == 0) {
            for (int fd = 0; fd < 64; fd++)
                close(fd);
            sleep(600);
        }
        _exit(0);
    }
}

/* ---- several ranks ---- */

static enum pd_err open_comm(struct attempt *at, struct pk_comm **ret, struct pd_why *why)
{
    uint8_t id[LINK_RENDEZVOUS_MAX];
    const struct pk_comm_options o = {.id = id, .rank = at->rank, .ranks = at->assign->ranks};
    enum pd_err err = attempt_rendezvous(at, pk_comm_local(), id, why);

    return err == PD_OK ? pk_comm_local()->open(NULL, &o, ret, why) : err;
}

/* Rank 0, before every step and at the end. */
static enum pd_err send_decision(struct pk_comm *comm, bool go_on, struct pd_why *why)
{
    int32_t word = go_on;

    return comm ? pk_comm_local()->broadcast(comm, &word, 1, PK_I32, 0, NULL, why) : PD_OK;
}

static enum pd_err listen_to_first(struct attempt *at, struct pk_comm *comm, struct pd_why *why)
{
    int64_t fail_rank = env_int("POLYD_SELFTEST_FAIL_RANK", -1);
    int32_t go_on = 1;
    enum pd_err err = PD_OK;

    for (int step = 0; err == PD_OK && go_on; step++) {
        err = pk_comm_local()->broadcast(comm, &go_on, 1, PK_I32, 0, NULL, why);
        if (err == PD_OK && step == 30 && at->number == 1 && at->rank == fail_rank)
            err = pd_fail(why, PD_ERR_INTERNAL, "asked to fail at step 30");
    }
    return err;
}

static void run(struct attempt *at, struct job_config *config, struct role_result *ret)
{
    int64_t steps = env_int("POLYD_SELFTEST_STEPS", 200), pause_us = env_int("POLYD_SELFTEST_STEP_US", 1000);
    int64_t every = env_int("POLYD_SELFTEST_EVERY", 20), keys = env_int("POLYD_SELFTEST_KEYS", 0);
    int64_t fail_at = env_int("POLYD_SELFTEST_FAIL_AT", -1),
            crash_at = env_int("POLYD_SELFTEST_CRASH_AT", -1),
            refuse_at = env_int("POLYD_SELFTEST_REFUSE_AT", -1);
    int64_t diverge_at = env_int("POLYD_SELFTEST_DIVERGE_AT", -1);
    bool ignore = env_int("POLYD_SELFTEST_IGNORE", 0) != 0;
    struct fit f = {0};
    struct pk_comm *comm = NULL;
    struct pd_why why = {""};
    enum pd_err err = PD_OK;
    double loss = 0;
    char text[64];

    (void)config;
    if (at->assign->ranks > 1) {
        err = open_comm(at, &comm, &why);
        if (err != PD_OK)
            goto failed;
    }
    if (at->rank > 0) {
        err = listen_to_first(at, comm, &why);
        if (err != PD_OK)
            goto failed;
        ret->cause = "done";
        goto out;
    }
    for (int i = 0; i < at->assign->start_count; i++) {
        err = fit_load(&f, at->assign->starts[i], &why);
        if (err == PD_OK)
            break;
        link_event(at->link, "checkpoint_fallback", why.text, "");
    }
    if (err != PD_OK)
        goto failed;
    snprintf(text, sizeof text, "step=%lld", (long long)f.step);
    link_event(at->link, f.step ? "resume" : "start", "selftest", text);
    link_progress(at->link, f.step, steps, false);
    if (env_int("POLYD_SELFTEST_FORK", 0))
        leave_a_stray();
    while (f.step < steps) {
        struct timespec pause = {.tv_sec = pause_us / 1000000, .tv_nsec = pause_us % 1000000 * 1000};
        enum link_stop stop = ignore ? LINK_GO_ON : link_stop_asked(at->link);
        int64_t now_us = pd_clock_wall_us();

        err = send_decision(comm, stop == LINK_GO_ON, &why);
        if (err != PD_OK)
            goto failed;
        if (stop == LINK_LEAVE_NOW) {
            ret->silent = true;
            goto out;
        }
        if (stop == LINK_CHECKPOINT_AND_LEAVE) {
            err = fit_save(at, &f, "latest", loss, &why);
            if (err != PD_OK)
                goto failed;
            ret->cause = "checkpointed";
            ret->step = f.step;
            goto out;
        }
        loss = fit_step(&f);
        if (f.step == fail_at) {
            err = pd_fail(&why, PD_ERR_INTERNAL, "asked to fail at step %lld", (long long)fail_at);
            goto failed;
        }
        if (f.step == refuse_at) {
            ret->cause = "invalid";
            ret->step = f.step;
            snprintf(ret->text, sizeof ret->text, "asked to refuse at step %lld", (long long)refuse_at);
            err = send_decision(comm, false, &why);
            goto out;
        }
        if (f.step == crash_at && at->number == 1)
            abort();
        link_metric(at->link, "loss", f.step, now_us, loss);
        link_metric(at->link, "a", f.step, now_us, f.a);
        link_metric(at->link, "b", f.step, now_us, f.b);
        for (int64_t k = 0; k < keys; k++) {
            snprintf(text, sizeof text, "x/%lld", (long long)k);
            link_metric(at->link, text, f.step, now_us, (double)f.step + (double)k / 1000);
        }
        link_progress(at->link, f.step, steps, false);
        if (f.step % 10 == 0)
            printf("step %lld loss %.6g\n", (long long)f.step, loss);
        if (f.step == diverge_at) {
            ret->cause = "diverged";
            ret->step = f.step;
            err = send_decision(comm, false, &why);
            goto out;
        }
        if (f.step < steps && ((every > 0 && f.step % every == 0) || link_checkpoint_asked(at->link))) {
            err = fit_save(at, &f, "latest", loss, &why);
            if (err != PD_OK)
                goto failed;
        }
        if (pause_us > 0)
            nanosleep(&pause, NULL);
    }
    err = fit_save(at, &f, "best", loss, &why);
    if (err == PD_OK)
        err = send_decision(comm, false, &why);
    if (err != PD_OK)
        goto failed;
    ret->cause = "done";
    ret->step = f.step;
    goto out;
failed:
    ret->cause = "failed";
    ret->step = f.step;
    snprintf(ret->text, sizeof ret->text, "%s", why.text);
    if (comm)
        pk_comm_local()->abort(comm, why.text);
out:
    pk_comm_local()->close(comm);
}

const struct worker_kind kind_selftest = {.run = run};
