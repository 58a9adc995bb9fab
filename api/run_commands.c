/* Commands to a single run: cancel, pause, resume, retry. */
#include <string.h>

#include "api/handlers.h"
#include "api/rows.h"
#include "api/server.h"
#include "daemon/polyd/store/tx.h"

enum run_verb { RUN_CANCEL, RUN_PAUSE, RUN_RESUME, RUN_RETRY };

struct command {
    struct api_write w; /* first */
    enum run_verb verb;
    int64_t id, version;
    char reason[512];
};

static enum pd_err command_apply(struct store_tx *tx, struct api_write *w, struct pd_why *why)
{
    struct command *c = (struct command *)(void *)w;

    w->status = 200;
    switch (c->verb) {
    case RUN_CANCEL:
        return store_run_cancel(tx, c->id, c->version, c->reason, why);
    case RUN_PAUSE:
        return store_run_pause(tx, c->id, c->version, why);
    case RUN_RESUME:
        return store_run_resume(tx, c->id, c->version, why);
    case RUN_RETRY:
        return store_run_retry(tx, c->id, c->version, why);
    }
    return PD_ERR_INTERNAL;
}

static void command_answer(struct api_req *r)
{
    struct api_write *w = api_write_result(r);

    if (w)
        api_answer_run(r, ((struct command *)(void *)w)->id, false);
}

static void run_command(struct api_req *r, enum run_verb verb)
{
    int64_t id = api_param_id(r, 0), version;
    char reason[512] = "";
    struct api_write *w;
    struct command *c;

    if (!id || !api_if_match(r, false, &version) ||
        !(verb == RUN_CANCEL ? api_reason(r, reason, sizeof reason) : api_empty_body(r)))
        return;
    w = api_write_begin(r, sizeof *c, true, NULL, command_answer);
    if (!w)
        return;
    c = (struct command *)(void *)w;
    c->verb = verb;
    c->id = id;
    c->version = version;
    memcpy(c->reason, reason, sizeof reason);
    w->apply = command_apply;
    w->notify = true;
    api_write_submit(w, STORE_LANE_COMMAND, 4);
}

void api_run_cancel(struct api_req *r)
{
    run_command(r, RUN_CANCEL);
}

void api_run_pause(struct api_req *r)
{
    run_command(r, RUN_PAUSE);
}

void api_run_resume(struct api_req *r)
{
    run_command(r, RUN_RESUME);
}

void api_run_retry(struct api_req *r)
{
    run_command(r, RUN_RETRY);
}
