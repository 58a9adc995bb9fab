/* POST /api/v1/runs/{id}/metrics: a batch goes to the writer's metrics lane and is answered after the commit.
 */
#include <string.h>

#include "api/handlers.h"
#include "api/ingest.h"
#include "api/json.h"
#include "api/server.h"
#include "kernels/base/clock.h"

struct ingest {
    struct api_write w; /* first */
    int64_t run, stored;
    struct api_batch batch;
};

static void ingest_done(struct api_write *w)
{
    api_batch_done(&((struct ingest *)(void *)w)->batch);
}

static enum pd_err ingest_apply(struct store_tx *tx, struct api_write *w, struct pd_why *why)
{
    struct ingest *in = (struct ingest *)(void *)w;
    int64_t step = -1;
    size_t bad = 0;
    bool external;
    enum pd_err err = store_metric_check_client(tx, in->run, in->batch.points, in->batch.count, &bad, why);

    if (err == PD_ERR_CONFLICT)
        snprintf(w->param, sizeof w->param, "points/%zu/key", bad);
    if (err == PD_OK)
        err = store_metric_append(tx, in->run, 0, in->batch.points, in->batch.count, &in->stored, why);
    for (size_t i = 0; i < in->batch.count; i++)
        if (in->batch.points[i].step > step)
            step = in->batch.points[i].step;
    return err == PD_OK ? store_run_heard(tx, in->run, step, &external, why) : err;
}

static void ingest_answer(struct api_req *r)
{
    struct api_write *w = api_write_result(r);
    struct ingest *in = (struct ingest *)(void *)w;
    struct pd_buf b;

    if (!w)
        return;
    atomic_fetch_add(&api_counters_of(api_of(r))->ingest_points, in->batch.count);
    pd_buf_init(&b, 0);
    api_json_open(&b, '{');
    api_json_kv_int(&b, "received", (int64_t)in->batch.count);
    api_json_kv_int(&b, "stored", in->stored);
    api_json_close(&b, '}');
    api_reply_json(r, 200, &b);
}

void api_run_ingest(struct api_req *r)
{
    int64_t id = api_param_id(r, 0);
    struct api_batch batch;
    struct pd_why why = {.text = ""};
    char pointer[128];
    struct api_write *w;
    struct ingest *in;
    const char *body;
    size_t len;
    enum pd_err err;

    if (!id)
        return;
    body = api_body(r, &len);
    err = api_batch_parse(body ? body : "", len, pd_clock_wall_us(), &batch, pointer, sizeof pointer, &why);
    if (err == PD_ERR_CORRUPT) {
        api_fail(r, API_FAULT_MALFORMED, "%s", why.text);
        return;
    }
    if (err == PD_ERR_INVALID || err == PD_ERR_LIMIT) {
        const char *place = pointer + (pointer[1] == '/' ? 2 : 1);

        api_fail_param(r, (int)err, place, "%s%s%s", place, *place ? ": " : "", why.text);
        return;
    }
    if (err != PD_OK) {
        api_fail_why(r, err, &why);
        return;
    }
    w = api_write_begin(r, sizeof *in, false, ingest_done, ingest_answer);
    if (!w) {
        api_batch_done(&batch);
        return;
    }
    in = (struct ingest *)(void *)w;
    in->run = id;
    in->batch = batch; /* moved */
    w->apply = ingest_apply;
    api_write_submit(w, STORE_LANE_METRICS, batch.count ? (int)batch.count : 1);
}
