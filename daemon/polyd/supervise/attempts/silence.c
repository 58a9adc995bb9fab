/* Runs of external clients become lost after too long without a message. */
#include <stdio.h>
#include <stdlib.h>

#include "daemon/polyd/supervise/attempts/internal.h"
#include "kernels/base/log.h"

struct lost_op {
    struct loop_op op;
    int64_t run, before_us;
    char reason[96];
};

static enum pd_err lost_apply(struct store_tx *tx, struct loop_op *op, struct pd_why *why)
{
    struct lost_op *l = (struct lost_op *)op;

    return store_run_lost(tx, l->run, l->before_us, l->reason, why);
}

struct silent {
    struct attempts *s;
    int64_t before_us;
};

static bool silent_run(void *ctx, int64_t run_id)
{
    struct silent *silent = ctx;
    struct lost_op *l = calloc(1, sizeof *l);

    if (!l)
        return false; /* the next look finds it again */
    l->op.apply = lost_apply;
    l->op.rows = 4;
    l->run = run_id;
    l->before_us = silent->before_us;
    snprintf(l->reason, sizeof l->reason, "nothing was heard of it for %lld s",
             (long long)(silent->s->o->silence_us / 1000000));
    loop_write(silent->s->loop, &l->op);
    return true;
}

void silence_look(struct attempts *s)
{
    int64_t now_us = store_writer_clock_us(loop_writer(s->loop));
    struct silent silent = {.s = s, .before_us = now_us - s->o->silence_us};
    struct pd_why why;

    /* While polyd was down, no message could arrive. */
    if (silent.before_us < s->since_us)
        return;
    if (store_run_silent(loop_reader(s->loop), silent.before_us, silent_run, &silent, &why) != PD_OK)
        pd_log(PD_LOG_ERROR, "supervise", "silence=unreadable why=\"%s\"", why.text);
}
