/* Writes: the reply follows the commit. A handler validates, suspends, submits; the writer resumes it. */
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "api/rows.h"
#include "api/server.h"
#include "api/upload.h"
#include "daemon/digest/digest.h"
#include "daemon/polyd/store/tx.h"

/* The wait's data begins with one of these; the handler's `done` is stored in it. */
struct holder {
    void (*done)(struct api_write *);
    _Alignas(max_align_t) struct api_write w;
};

static void holder_done(void *data)
{
    struct holder *h = data;

    if (h->done)
        h->done(&h->w);
    pd_buf_done(&h->w.answer);
}

static void scope_of(struct api_req *r, char *out, size_t size, uint8_t body_sha256[32])
{
    size_t len;
    const char *body = api_body(r, &len);
    const struct api_upload *upload = api_upload_of(r);

    snprintf(out, size, "POST %s", api_path(r));
    if (upload)
        memcpy(body_sha256, upload->sha256, sizeof upload->sha256);
    else
        digest_sha256(body ? body : "", len, body_sha256);
}

bool api_write_repeated(struct api_req *r)
{
    const char *header = api_header(r, "Idempotency-Key");
    struct store *store = header ? api_reader(r) : NULL;
    char key[256], scope[sizeof((struct api_write *)0)->scope];
    uint8_t body_sha256[32];
    struct pd_buf answer;
    struct pd_why why;
    int status;
    enum pd_err err;

    if (!store || !api_idempotency_key(header, key, sizeof key))
        return false;
    scope_of(r, scope, sizeof scope, body_sha256);
    pd_buf_init(&answer, 0);
    err = store_idem_get(store, scope, key, body_sha256, &status, &answer, &why);
    pd_buf_done(&answer);
    return err == PD_OK || err == PD_ERR_CONFLICT;
}

struct api_write *api_write_begin(struct api_req *r, size_t size, bool keyed,
                                  void (*done)(struct api_write *), void (*next)(struct api_req *))
{
    const char *header = keyed ? api_header(r, "Idempotency-Key") : NULL;
    char key[256] = "";
    struct api_wait *wait;
    struct holder *h;

    if (header && !api_idempotency_key(header, key, sizeof key)) {
        api_fail(r, API_FAULT_KEY_MISSING, "Idempotency-Key must be 1 to 255 printable characters");
        return NULL;
    }
    wait = api_wait_begin(r, offsetof(struct holder, w) + size, holder_done, next);
    if (!wait)
        return NULL;
    h = api_wait_data(wait);
    h->done = done;
    h->w.api = api_of(r);
    h->w.wait = wait;
    pd_buf_init(&h->w.answer, 0);
    if (header) {
        h->w.keyed = true;
        memcpy(h->w.key, key, sizeof key);
        scope_of(r, h->w.scope, sizeof h->w.scope, h->w.body_sha256);
    }
    return &h->w;
}

static enum pd_err write_apply(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct api_write *w = ctx;
    enum pd_err err;

    pd_buf_done(&w->answer); /* a rerun overwrites */
    pd_buf_init(&w->answer, 0);
    w->replayed = false;
    w->param[0] = '\0';
    if (!w->keyed)
        return w->apply(tx, w, why);
    err = store_idem_claim(tx, w->scope, w->key, w->body_sha256, &w->status, &w->answer, why);
    if (err == PD_ERR_EXISTS) {
        w->replayed = true;
        return pd_buf_err(&w->answer);
    }
    if (err == PD_ERR_CONFLICT) {
        w->status = API_FAULT_KEY_REUSED;
        return err;
    }
    if (err != PD_OK)
        return err;
    err = w->apply(tx, w, why);
    if (err != PD_OK)
        return err;
    if (pd_buf_err(&w->answer) != PD_OK)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the answer");
    return store_idem_finish(tx, w->scope, w->key, w->status, w->answer.data, w->answer.len, why);
}

static void write_done(void *ctx, enum pd_err err, const struct pd_why *why)
{
    struct api_write *w = ctx;

    w->err = err;
    if (why)
        w->why = *why;
    /* After a request was given up the supervisor may be gone; the next daemon starts from the rows. */
    if (err == PD_OK && w->notify && !api_stopping(w->api))
        sup_notify(api_deps_of(w->api)->sup);
    api_wait_end(w->wait);
}

void api_write_submit(struct api_write *w, enum store_lane lane, int rows)
{
    struct store_work work = {.lane = lane, .rows = rows, .apply = write_apply, .done = write_done, .ctx = w};
    struct pd_why why = {.text = ""};
    enum pd_err err = store_writer_submit(api_deps_of(w->api)->writer, &work, &why);

    if (err != PD_OK)
        write_done(w, err, &why);
}

void api_write_fail(struct api_write *w, enum pd_err err, const struct pd_why *why)
{
    w->notify = false;
    write_done(w, err, why);
}

struct api_write *api_write_of(struct api_req *r)
{
    struct holder *h = api_waited(r);

    return &h->w;
}

struct api_write *api_write_result(struct api_req *r)
{
    struct api_write *w = api_write_of(r);

    if (w->err == PD_OK)
        return w;
    if (w->err == PD_ERR_CONFLICT && w->status == API_FAULT_KEY_REUSED)
        api_fail(r, API_FAULT_KEY_REUSED, "this Idempotency-Key was used with another body");
    else if (w->param[0])
        api_fail_param(r, (int)w->err, w->param, "%s: %s", w->param, w->why.text);
    else
        api_fail_why(r, w->err, &w->why);
    return NULL;
}

void api_write_created(struct api_req *r, struct api_write *w, const char *path)
{
    json_t *answer = json_loadb(w->answer.data ? w->answer.data : "", w->answer.len, 0, NULL);
    const char *id = json_string_value(json_object_get(answer, "id"));
    json_t *version = json_object_get(answer, "version");
    char location[128], tag[32];

    if (w->replayed)
        api_reply_header(r, "Idempotency-Replayed", "true");
    if (json_is_array(json_object_get(answer, "jobs"))) {
        api_reply_json(r, w->status, &w->answer);
    } else if (id && json_is_integer(version)) {
        snprintf(location, sizeof location, "%s/%s", path, id);
        api_reply_header(r, "Location", location);
        api_reply_header(r, "ETag", api_etag(json_integer_value(version), tag));
        api_reply_json(r, w->status, &w->answer);
    } else {
        api_fail(r, PD_ERR_INTERNAL, "the stored answer cannot be read");
    }
    json_decref(answer);
}
