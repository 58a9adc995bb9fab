/* The table of kinds, and `polyd-worker train`: one attempt of a run, whatever its kind. */
#include "daemon/worker/kinds/kinds.h"

#include <stdio.h>
#include <string.h>

#include "daemon/worker/process/run_folder.h"
#include "daemon/worker/process/worker.h"
#include "kernels/base/log.h"

#define RANK_FAILED 3 /* exit status: the shim then waits for the others no longer */
#define RANK_BYE_US 5000000

#define ENTRY(constant, name) [JOB_KIND_##constant] = &kind_##name,
static const struct worker_kind *const table[JOB_KIND_COUNT] = {JOB_WORKER_KINDS(ENTRY)};

const struct worker_kind *kind_find(enum job_kind kind)
{
    return (unsigned)kind < JOB_KIND_COUNT ? table[kind] : NULL;
}

/* By the document; but a role other than "train" is the name of a kind, whatever the document says: fault
 * tests give every run the diagnostic one. */
static void carry_out(struct attempt *a, struct role_result *ret)
{
    struct job_config *config = NULL;
    struct pd_why why = {""};
    enum job_kind kind = JOB_KIND_TRAIN;

    if (strcmp(a->assign->role, "train") != 0) {
        if (job_kind_parse(a->assign->role, &kind) && kind_find(kind))
            kind_find(kind)->run(a, NULL, ret);
        else
            snprintf(ret->text, sizeof ret->text, "this worker has no role '%s'", a->assign->role);
    } else if (job_config_load(a->assign->job, a->assign->job_len, &config, &why) != PD_OK) {
        ret->cause = "invalid";
        snprintf(ret->text, sizeof ret->text, "%s", why.text);
    } else {
        kind_find((enum job_kind)config->kind)->run(a, config, ret);
        job_config_free(config);
    }
}

int worker_train_main(int argc, char **argv)
{
    struct role_result result = {.cause = "failed"};
    struct attempt a;
    struct pd_why why;
    enum pd_err err;
    int status = 0;

    setvbuf(stdout, NULL, _IOLBF, 0); /* the log is read while it grows */
    if (attempt_begin(argc, argv, false, &a) != PD_OK)
        return 1;
    pd_log(PD_LOG_INFO, "worker", "run=%lld attempt=%d rank=%d/%d role=%s threads=%d start=%s",
           (long long)a.run, a.number, a.rank, a.assign->ranks, a.assign->role, a.assign->threads,
           a.assign->checkpoint ? a.assign->checkpoint : "scratch");
    if (a.rank == 0 && run_folder_claim(a.assign, a.run, a.number, &why) != PD_OK)
        snprintf(result.text, sizeof result.text, "%s", why.text);
    else
        carry_out(&a, &result);
    if (!result.silent) {
        pd_log(PD_LOG_INFO, "worker", "run=%lld attempt=%d rank=%d cause=%s step=%lld %s%s%s",
               (long long)a.run, a.number, a.rank, result.cause, (long long)result.step,
               result.text[0] ? "why=\"" : "", result.text, result.text[0] ? "\"" : "");
        err = link_bye(a.link, result.cause, result.step, result.text, a.rank ? RANK_BYE_US : 0, &why);
        if (err != PD_OK) {
            pd_log(PD_LOG_WARNING, "worker", "bye=%s why=\"%s\"", pd_err_name(err), why.text);
            status = 1;
        }
    }
    /* Rank 0 stays until polyd has recorded its end; what the others say is not waited for. */
    if (a.rank > 0)
        status = !strcmp(result.cause, "failed") || !strcmp(result.cause, "invalid") ||
                         !strcmp(result.cause, "outdated")
                     ? RANK_FAILED
                     : 0;
    attempt_end(&a);
    return status;
}
