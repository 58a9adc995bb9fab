/* Measured choices that the store keeps for back ends: how many for which device, and forgetting them. */
#include <stdio.h>
#include <string.h>

#include "api/handlers.h"
#include "api/json.h"
#include "api/rows.h"
#include "api/server.h"
#include "daemon/polyd/store/tx.h"

/* Sums come by device: one object each, with a part for every driver and library. */
struct table {
    struct pd_buf b;
    char device[128]; /* whose object is open; "" = none */
    int64_t version;
    int64_t records, bytes;
};

static void close_device(struct table *t)
{
    if (!t->device[0])
        return;
    api_json_close(&t->b, ']');
    api_json_kv_int(&t->b, "records", t->records);
    api_json_kv_int(&t->b, "bytes", t->bytes);
    api_json_close(&t->b, '}');
    t->device[0] = '\0';
}

static bool sum_row(void *ctx, const struct store_tuned_sum *s)
{
    struct table *t = ctx;

    if (strcmp(t->device, s->device) != 0) {
        close_device(t);
        snprintf(t->device, sizeof t->device, "%s", s->device);
        t->version = s->version;
        t->records = t->bytes = 0;
        api_json_open(&t->b, '{');
        api_json_kv_str(&t->b, "device", s->device);
        api_json_kv_int(&t->b, "version", s->version);
        api_json_key(&t->b, "kept");
        api_json_open(&t->b, '[');
    }
    api_json_open(&t->b, '{');
    api_json_kv_str(&t->b, "driver", s->driver);
    api_json_kv_str(&t->b, "library", s->library);
    api_json_kv_int(&t->b, "records", s->records);
    api_json_kv_int(&t->b, "bytes", s->bytes);
    api_json_kv_time(&t->b, "first", s->first_us);
    api_json_kv_time(&t->b, "last", s->last_us);
    api_json_close(&t->b, '}');
    t->records += s->records;
    t->bytes += s->bytes;
    return true;
}

void api_tuned_list(struct api_req *r)
{
    struct store *store = api_reader(r);
    struct pd_why why = {.text = ""};
    struct table t = {.records = 0};
    enum pd_err err;

    if (!store)
        return;
    pd_buf_init(&t.b, 0);
    api_json_open(&t.b, '{');
    api_json_key(&t.b, "devices");
    api_json_open(&t.b, '[');
    err = store_tuned_sums(store, NULL, sum_row, &t, &why);
    close_device(&t);
    api_json_close(&t.b, ']');
    api_json_close(&t.b, '}');
    api_answer(r, err, &why, &t.b);
}

void api_tuned_get(struct api_req *r)
{
    struct store *store = api_reader(r);
    const char *device = api_param(r, 0);
    struct pd_why why = {.text = ""};
    struct table t = {.records = 0};
    char tag[32];
    enum pd_err err;

    if (!store)
        return;
    pd_buf_init(&t.b, 0);
    err = store_tuned_sums(store, device, sum_row, &t, &why);
    if (err != PD_OK)
        api_fail_why(r, err, &why);
    else if (!t.device[0])
        api_fail(r, PD_ERR_NOT_FOUND, "no measured choices are stored for '%.127s'", device);
    else if (!api_not_modified(r, t.version)) {
        close_device(&t);
        api_reply_header(r, "ETag", api_etag(t.version, tag));
        api_reply_json(r, 200, &t.b);
    }
    pd_buf_done(&t.b);
}

/* ---- forgetting --------------------------------------------------------------------------------- */

struct drop {
    struct api_write w; /* first */
    char device[128];
    int64_t version;
};

static enum pd_err drop_apply(struct store_tx *tx, struct api_write *w, struct pd_why *why)
{
    struct drop *d = (struct drop *)(void *)w;

    w->status = 204;
    return store_tuned_drop(tx, d->device, d->version, "a client", why);
}

static void drop_answer(struct api_req *r)
{
    if (api_write_result(r))
        api_reply_empty(r, 204);
}

void api_tuned_drop(struct api_req *r)
{
    const char *device = api_param(r, 0);
    int64_t version;
    struct drop *d;

    if (!api_if_match(r, true, &version))
        return;
    if (strlen(device) >= sizeof d->device) {
        api_fail(r, PD_ERR_NOT_FOUND, "no measured choices are stored for '%.127s'", device);
        return;
    }
    d = (struct drop *)(void *)api_write_begin(r, sizeof *d, false, NULL, drop_answer);
    if (!d)
        return;
    snprintf(d->device, sizeof d->device, "%s", device);
    d->version = version;
    d->w.apply = drop_apply;
    api_write_submit(&d->w, STORE_LANE_COMMAND, 2);
}
