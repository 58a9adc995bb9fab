/* What a run has drawn rather than plotted: attention matrices, histograms (train.h: struct train_blob). */
#include <stdio.h>

#include "api/handlers.h"
#include "api/json.h"
#include "api/rows.h"
#include "api/server.h"
#include "daemon/polyd/store/store.h"
#include "kernels/base/file.h"

#define BLOB_BYTES_MAX (16u * 1024u * 1024u) /* one frame of a worker */

static bool key_row(void *ctx, const struct store_blob_key *k)
{
    struct pd_buf *b = ctx;

    api_json_open(b, '{');
    api_json_kv_str(b, "key", k->key);
    api_json_kv_str(b, "kind", k->kind);
    api_json_kv_int(b, "count", k->count);
    api_json_kv_int(b, "first_step", k->first_step);
    api_json_kv_int(b, "last_step", k->last_step);
    api_json_close(b, '}');
    return true;
}

static bool blob_row(void *ctx, const struct store_blob *blob)
{
    struct pd_buf *b = ctx;

    api_json_open(b, '{');
    api_json_kv_id(b, "id", blob->id);
    api_json_kv_int(b, "attempt", blob->attempt);
    api_json_kv_int(b, "step", blob->step);
    api_json_kv_time(b, "time", blob->time_us);
    api_json_kv_int(b, "bytes", blob->bytes);
    api_json_kv_str(b, "digest", blob->sha256);
    api_json_key(b, "meta");
    api_json_raw(b, blob->meta);
    api_json_close(b, '}');
    return true;
}

void api_run_blobs(struct api_req *r)
{
    static const char *const names[] = {"key", "after", "limit", NULL};
    const int64_t id = api_param_id(r, 0);
    char key[STORE_KEY_MAX + 1] = "";
    struct pd_why why = {.text = ""};
    struct store *store;
    struct pd_buf b;
    int64_t after, limit;
    bool chosen;
    enum pd_err err;

    if (!id || api_query_refuse_others(r, names))
        return;
    chosen = api_query(r, "key", key, sizeof key);
    after = api_query_int(r, "after", 0, INT64_MAX, -1);
    limit = api_query_int(r, "limit", 1, STORE_PAGE_MAX, STORE_PAGE_MAX);
    if (api_failed(r) || !(store = api_reader(r)) || !api_run_exists(r, store, id, NULL))
        return;
    pd_buf_init(&b, 0);
    api_json_open(&b, '{');
    api_json_key(&b, chosen ? "blobs" : "keys");
    api_json_open(&b, '[');
    err = chosen ? store_blob_list(store, id, key, after, (int)limit, blob_row, &b, &why)
                 : store_blob_keys(store, id, key_row, &b, &why);
    api_json_close(&b, ']');
    api_json_close(&b, '}');
    api_answer(r, err, &why, &b);
}

struct found {
    struct pd_buf bytes;
    char tag[STORE_DIGEST_HEX + 2];
    bool seen; /* by the client */
    const char *match;
    enum pd_err err;
    struct pd_why why;
};

static void read_file(void *ctx, const struct store_blob *blob, const char *path)
{
    struct found *f = ctx;

    snprintf(f->tag, sizeof f->tag, "\"%s\"", blob->sha256);
    f->seen = f->match && api_etag_match(f->match, f->tag, true);
    if (!f->seen)
        f->err = pd_file_read(path, BLOB_BYTES_MAX, &f->bytes, &f->why);
}

void api_run_blob(struct api_req *r)
{
    const int64_t id = api_param_id(r, 0), blob = id ? api_param_id(r, 1) : 0;
    struct found f = {.match = api_header(r, "If-None-Match"), .err = PD_OK, .why = {.text = ""}};
    struct store *store;
    enum pd_err err;

    if (!blob || !(store = api_reader(r)) || !api_run_exists(r, store, id, NULL))
        return;
    pd_buf_init(&f.bytes, 0);
    err = store_blob_get(store, id, blob, read_file, &f, &f.why);
    if (err == PD_OK)
        err = f.err;
    if (err == PD_OK) {
        api_reply_header(r, "ETag", f.tag);
        api_reply_header(r, "Cache-Control", "private, max-age=31536000, immutable");
    }
    if (err != PD_OK)
        api_fail_why(r, err, &f.why);
    else if (f.seen)
        api_reply_empty(r, 304);
    else
        api_reply(r, 200, "application/octet-stream", &f.bytes);
    pd_buf_done(&f.bytes);
}
