/* Kind check: examines a statement of the theory (daemon/worker/check). A stop leaves nothing, and the next attempt starts again:
 * draws are functions of the seed, so it finds the same. */
#include <stdio.h>

#include "daemon/worker/check/check.h"
#include "daemon/worker/kinds/kinds.h"
#include "kernels/base/clock.h"
#include "kernels/base/json.h"

static bool on_stop(void *user)
{
    return link_stop_asked(((struct attempt *)user)->link) != LINK_GO_ON;
}

static void on_progress(void *user, int64_t done, int64_t total)
{
    link_progress(((struct attempt *)user)->link, done, total, false);
}

/* The verdict is also sent separately, so that lists need not parse the result. */
static enum pd_err send(struct attempt *a, const struct job_config *config, const struct check_summary *s,
                        const struct pd_buf *json, struct pd_why *why)
{
    const char *name = job_theorem_name((enum job_theorem)config->check.theorem);
    const int64_t now = pd_clock_wall_us();
    struct link_stats stats;
    struct pd_buf meta;
    enum pd_err err;

    pd_buf_init(&meta, 0);
    pd_json_open(&meta, '{');
    pd_json_kv_str(&meta, "check", name);
    pd_json_kv_str(&meta, "verdict", check_verdict_name(s->verdict));
    pd_json_kv_int(&meta, "rows", s->rows);
    pd_json_kv_int(&meta, "judged", s->judged);
    pd_json_kv_int(&meta, "failed", s->failed);
    pd_json_close(&meta, '}');
    err = pd_buf_err(&meta);
    if (err == PD_OK) {
        link_blob(a->link, "check", "check", 0, meta.data, json->data, json->len);
        link_stats(a->link, &stats);
        if (stats.dropped_blobs)
            err = pd_fail(why, PD_ERR_LIMIT,
                          "the result did not fit the send queue while polyd was disconnected");
    } else {
        pd_fail(why, err, "no memory for the result");
    }
    if (err == PD_OK) {
        link_metric(a->link, "check/judged", 0, now, (double)s->judged);
        link_metric(a->link, "check/failed", 0, now, (double)s->failed);
        link_event(a->link, "check", check_verdict_name(s->verdict), NULL);
        printf("%s %s: %lld of %lld criteria hold, %lld numbers\n", name, check_verdict_name(s->verdict),
               (long long)(s->judged - s->failed), (long long)s->judged, (long long)s->rows);
    }
    pd_buf_done(&meta);
    return err;
}

static void run(struct attempt *a, struct job_config *config, struct role_result *ret)
{
    const struct check_host host = {.user = a, .stop = on_stop, .progress = on_progress};
    struct check_summary summary;
    struct pd_why why = {""};
    struct pd_buf json;
    enum pd_err err;

    pd_buf_init(&json, CHECK_JSON_BYTES);
    err = check_run(config, &host, &summary, &json, &why);
    if (err == PD_OK)
        err = send(a, config, &summary, &json, &why);
    if (err == PD_OK) {
        ret->cause = "done";
    } else if (err == PD_ERR_CANCELLED) {
        ret->cause = "checkpointed";
        ret->silent = link_stop_asked(a->link) == LINK_LEAVE_NOW;
    } else {
        ret->cause = pd_err_lasting(err) ? "invalid" : "failed";
        snprintf(ret->text, sizeof ret->text, "%s", why.text);
    }
    pd_buf_done(&json);
}

const struct worker_kind kind_check = {.run = run};
