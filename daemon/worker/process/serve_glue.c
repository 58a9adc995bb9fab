/* The serve role's line to the link: fills the table that serve_run (role_serve.h) is given. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/model/tuned.h"
#include "daemon/wire/serve_host.h"
#include "daemon/worker/process/args.h"
#include "daemon/worker/process/attempt.h"
#include "daemon/worker/process/role_serve.h"
#include "daemon/worker/process/worker.h"
#include "kernels/base/log.h"

static void host_ready(void *ctx, const char *signature, uint64_t memory_bytes)
{
    link_send_ready(((struct attempt *)ctx)->link, signature, memory_bytes);
}

static enum pd_err host_next(void *ctx, int timeout_ms, struct serve_request **ret)
{
    return link_request_next(((struct attempt *)ctx)->link, timeout_ms, ret);
}

static bool host_cancelled(void *ctx, const struct serve_request *req)
{
    return link_request_cancelled(((struct attempt *)ctx)->link, req);
}

static void host_reply(void *ctx, const struct serve_request *req, const struct serve_result *part)
{
    link_request_reply(((struct attempt *)ctx)->link, req, part);
}

static void host_done(void *ctx, struct serve_request *req)
{
    link_request_done(((struct attempt *)ctx)->link, req);
}

static void host_load(void *ctx, uint32_t waiting, uint32_t running)
{
    link_send_load(((struct attempt *)ctx)->link, waiting, running);
}

int worker_serve_main(int argc, char **argv)
{
    struct attempt a;
    struct serve_host host = {.ctx = &a,
                              .ready = host_ready,
                              .next = host_next,
                              .cancelled = host_cancelled,
                              .reply = host_reply,
                              .done = host_done,
                              .load = host_load};
    struct pd_why why = {""};
    const char *weights, *number;
    struct model_tuned_store store;
    enum pd_err err;

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (attempt_begin(argc, argv, true, &a) != PD_OK)
        return 1;
    host.model = a.assign->model;
    host.job = a.assign->job;
    host.checkpoint = a.assign->checkpoint;
    host.digest = a.assign->digest[0] ? a.assign->digest : NULL;
    host.threads = (uint32_t)a.assign->threads;
    weights = args_get(argc, argv, "--weights");
    host.bf16_weights = weights && strcmp(weights, "bf16") == 0;
    number = args_get(argc, argv, "--device");
    host.cuda = number && strcmp(number, "cuda") == 0;
    store = attempt_tuned(&a);
    host.tuned = &store;
    number = args_get(argc, argv, "--decode");
    host.memory_kind = !number ? 0 : strcmp(number, "cache") == 0 ? 1 : strcmp(number, "state") == 0 ? 2 : 0;
    number = args_get(argc, argv, "--delay-us");
    host.delay_us = number ? strtoll(number, NULL, 10) : 0;
    number = args_get(argc, argv, "--memory");
    host.memory_bytes = number ? strtoull(number, NULL, 10) : 0;
    if (!host.checkpoint)
        err = pd_fail(&why, PD_ERR_INVALID, "no checkpoint was assigned");
    else
        err = serve_run(&host, &why);
    if (err != PD_OK)
        pd_log(PD_LOG_ERROR, "worker", "model=%s error=%s why=\"%s\"", host.model, pd_err_name(err),
               why.text);
    if (link_stop_asked(a.link) != LINK_LEAVE_NOW) {
        const char *cause = err == PD_OK ? "done" : err == PD_ERR_LIMIT ? "limit" : "failed";
        struct pd_why bye;

        /* Polyd records no end of a serving worker: it only hears why. */
        if (link_bye(a.link, cause, 0, why.text, 2000000, &bye) != PD_OK)
            pd_log(PD_LOG_WARNING, "worker", "bye=unanswered");
    }
    attempt_end(&a);
    return err == PD_OK ? 0 : 1;
}
