/* Downloads: the weights of a checkpoint or of a model's version under their public names, and the file itself.
 *
 *   row of the store -> layout (kept, or from `polyd-worker weights layout`) -> header and ranges of the file
 *                  \-> the file as it is
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/file.h"
#include "api/handlers.h"
#include "api/json.h"
#include "api/models.h"
#include "api/server.h"
#include "daemon/job/job.h"

#define LAYOUT_MAX ((size_t)16 << 20)

/* What is to be sent. */
struct source {
    char *path, *document; /* owned; document NULL: the file describes itself */
    char digest[STORE_DIGEST_HEX], name[200];
    int64_t bytes, step;
    bool full; /* no memory for a copy */
};

static void source_done(struct source *s)
{
    free(s->path);
    free(s->document);
}

static void take(struct source *s, const char *path, const char *digest, int64_t bytes, int64_t step)
{
    free(s->path);
    s->path = strdup(path);
    s->full = s->full || !s->path;
    snprintf(s->digest, sizeof s->digest, "%s", digest);
    s->bytes = bytes;
    s->step = step;
}

static void take_document(struct source *s, const char *document)
{
    if (!document[0])
        return;
    free(s->document);
    s->document = strdup(document);
    s->full = s->full || !s->document;
}

/* ---- the rows ---- */

static bool version_row(void *ctx, const struct store_model_version *v)
{
    struct source *s = ctx;

    take(s, v->path, v->digest, v->bytes, v->step);
    take_document(s, v->document);
    snprintf(s->name, sizeof s->name, "%.128s-%lld", v->model, (long long)v->n);
    return false;
}

static bool run_row(void *ctx, const struct store_run *run)
{
    take_document(ctx, run->document);
    return false;
}

struct wish {
    struct source *source;
    const char *which; /* best, last or a step */
    int64_t step;
};

/* Rows come newest first. */
static bool checkpoint_row(void *ctx, const struct store_checkpoint *c)
{
    struct wish *w = ctx;
    struct source *s = w->source;
    bool fits;

    if (!strcmp(w->which, "last"))
        fits = !s->path || c->step > s->step;
    else
        fits = !s->path && (w->step < 0 ? !strcmp(c->kind, "best") : c->step == w->step);
    if (fits) {
        take(s, c->path, c->digest, c->bytes, c->step);
        snprintf(s->name, sizeof s->name, "run-%lld-step-%lld", (long long)c->run_id, (long long)c->step);
    }
    return true;
}

/* False: the request has been failed. */
static bool find_checkpoint(struct api_req *r, struct source *s)
{
    int64_t id = api_param_id(r, 0);
    struct wish wish = {.source = s, .which = api_param(r, 1), .step = -1};
    struct store *store;
    struct pd_why why = {.text = ""};
    enum pd_err err;

    if (!id || !(store = api_reader(r)) || !api_run_exists(r, store, id, NULL))
        return false;
    if (strcmp(wish.which, "best") != 0 && strcmp(wish.which, "last") != 0 &&
        !api_parse_int(wish.which, 0, INT64_MAX, &wish.step)) {
        api_fail(r, PD_ERR_NOT_FOUND, "'%.60s' is not a checkpoint: name best, last, or the step of one",
                 wish.which);
        return false;
    }
    err = store_run_get(store, id, run_row, s, &why);
    if (err == PD_OK)
        err = store_checkpoint_list(store, id, false, checkpoint_row, &wish, &why);
    if (err == PD_OK && !s->path && !s->full)
        err = wish.step >= 0 ? pd_fail(&why, PD_ERR_NOT_FOUND, "run %lld has no checkpoint at step %lld",
                                       (long long)id, (long long)wish.step)
                             : pd_fail(&why, PD_ERR_NOT_FOUND, "run %lld has no %s checkpoint", (long long)id,
                                       wish.which);
    if (err == PD_OK && s->full)
        err = pd_fail(&why, PD_ERR_NOMEM, "no memory for the download");
    if (err != PD_OK)
        api_fail_why(r, err, &why);
    return err == PD_OK;
}

static bool find_version(struct api_req *r, struct source *s)
{
    int64_t n = api_model_version(r, api_param(r, 0), api_param(r, 1));
    struct store *store = n ? api_reader(r) : NULL;
    struct pd_why why = {.text = ""};
    enum pd_err err;

    if (!store)
        return false;
    err = store_model_version_get(store, api_param(r, 0), n, version_row, s, &why);
    if (err == PD_OK && s->full)
        err = pd_fail(&why, PD_ERR_NOMEM, "no memory for the download");
    if (err != PD_OK)
        api_fail_why(r, err, &why);
    return err == PD_OK;
}

/* ---- the file ---- */

/* False: the request has been failed. A file of another size than the row says is not sent. */
static bool open_file(struct api_req *r, const struct source *s, struct api_file *f)
{
    struct pd_why why = {.text = ""};
    struct stat st;

    f->fd = open(s->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (f->fd < 0)
        api_fail(r, errno == ENOENT ? PD_ERR_NOT_FOUND : (int)pd_fail_errno(&why, errno, "open"),
                 "the file of step %lld cannot be opened: %s", (long long)s->step, strerror(errno));
    else if (fstat(f->fd, &st) || st.st_size != s->bytes)
        api_fail(r, PD_ERR_CORRUPT, "the file of step %lld has not the %lld bytes that it was written with",
                 (long long)s->step, (long long)s->bytes);
    else
        return true;
    api_file_done(f);
    return false;
}

static void send_file(struct api_req *r, struct source *s)
{
    struct api_file f = {.fd = -1};
    char name[240];

    if (!open_file(r, s, &f))
        return;
    f.parts = calloc(1, sizeof *f.parts);
    if (!f.parts) {
        api_file_done(&f);
        api_fail(r, PD_ERR_NOMEM, "no memory for the download");
        return;
    }
    f.parts[0].bytes = f.bytes = (uint64_t)s->bytes;
    f.part_count = 1;
    snprintf(name, sizeof name, "%s-checkpoint.safetensors", s->name);
    api_reply_file(r, &f, s->digest, name);
}

/* ---- weights ---- */

struct weights {
    struct api_wait *wait;
    struct source source;
    struct pd_buf layout;
    enum pd_err err;
    struct pd_why why;
};

static void weights_done(void *data)
{
    struct weights *w = data;

    source_done(&w->source);
    pd_buf_done(&w->layout);
}

/* The header with its length word before it; false without memory. */
static bool take_header(struct api_file *f, const json_t *header)
{
    size_t len = json_string_length(header);

    f->head = malloc(len + 8);
    if (!f->head)
        return false;
    for (int i = 0; i < 8; i++)
        f->head[i] = (char)((uint64_t)len >> 8 * i & 255);
    memcpy(f->head + 8, json_string_value(header), len);
    f->bytes = f->head_bytes = len + 8;
    return true;
}

static bool take_parts(struct api_file *f, const json_t *parts)
{
    size_t count = json_array_size(parts);

    f->parts = calloc(count + 1, sizeof *f->parts);
    if (!f->parts)
        return false;
    for (size_t i = 0; i < count; i++) {
        const json_t *part = json_array_get(parts, i);

        f->parts[i].offset = (uint64_t)json_integer_value(json_array_get(part, 0));
        f->parts[i].bytes = (uint64_t)json_integer_value(json_array_get(part, 1));
        f->bytes += f->parts[i].bytes;
    }
    f->part_count = count;
    return true;
}

static void send_weights(struct api_req *r, const struct source *s, const struct pd_buf *layout)
{
    struct api_file f = {.fd = -1};
    json_error_t error;
    json_t *all = json_loadb(layout->data ? layout->data : "", layout->len, JSON_DISABLE_EOF_CHECK, &error);
    const json_t *header = json_object_get(all, "header"), *parts = json_object_get(all, "parts");
    const char *sha256 = json_string_value(json_object_get(all, "sha256"));
    char name[240];

    snprintf(name, sizeof name, "%s.safetensors", s->name);
    if (!all && api_json_no_memory(&error))
        api_fail(r, PD_ERR_NOMEM, "no memory for the layout of the weights");
    else if (!json_is_string(header) || !json_is_array(parts) || !sha256)
        api_fail(r, PD_ERR_INTERNAL, "the worker's layout of the weights cannot be read");
    else if (open_file(r, s, &f)) {
        if (take_header(&f, header) && take_parts(&f, parts))
            api_reply_file(r, &f, sha256, name);
        else
            api_fail(r, PD_ERR_NOMEM, "no memory for the download");
    }
    api_file_done(&f);
    json_decref(all);
}

/* Any thread; the answer is borrowed. */
static void laid_out(void *ctx, enum pd_err err, const struct pd_why *why, const char *answer)
{
    struct weights *w = ctx;

    w->err = err;
    if (err == PD_OK)
        pd_buf_str(&w->layout, answer);
    else
        w->why = *why;
    api_wait_end(w->wait);
}

static void weights_answer(struct api_req *r)
{
    struct weights *w = api_waited(r);

    if (w->err == PD_OK)
        w->err = pd_buf_err(&w->layout);
    if (w->err == PD_ERR_INVALID) /* it was written by polyd: the file has changed since */
        api_fail(r, PD_ERR_CORRUPT, "the weights of step %lld: %s", (long long)w->source.step, w->why.text);
    else if (w->err != PD_OK)
        api_fail_why(r, w->err, &w->why);
    else
        send_weights(r, &w->source, &w->layout);
}

static void ask_layout(struct api_req *r, struct source *s, const char *key)
{
    struct pd_buf document;
    struct sup_weights asked = {.args = {"layout", "--file", s->path}, .digest = key, .done = laid_out};
    struct pd_why why = {.text = ""};
    struct api_wait *wait;
    struct weights *w;
    enum pd_err err = PD_OK;

    pd_buf_init(&document, LAYOUT_MAX);
    if (s->document)
        err = job_weights_document(s->document, strlen(s->document), &document, &why);
    asked.document = document.data;
    wait = api_wait_begin(r, sizeof *w, weights_done, weights_answer);
    if (wait) {
        w = api_wait_data(wait);
        w->wait = wait;
        w->source = *s;
        *s = (struct source){.path = NULL}; /* moved */
        pd_buf_init(&w->layout, LAYOUT_MAX);
        asked.ctx = w;
        if (err == PD_OK)
            err = sup_weights_ask(api_deps_of(api_of(r))->sup, &asked, &why);
        if (err != PD_OK)
            laid_out(w, err, &why, NULL);
    }
    pd_buf_done(&document);
}

static void weights_of(struct api_req *r, struct source *s)
{
    struct store *store = api_reader(r);
    char key[STORE_DIGEST_HEX + 8];
    struct pd_buf kept;
    struct pd_why why = {.text = ""};

    if (!store)
        return;
    snprintf(key, sizeof key, "weights:%s", s->digest);
    pd_buf_init(&kept, LAYOUT_MAX);
    if (store_plan_get(store, key, &kept, &why) == PD_OK)
        send_weights(r, s, &kept);
    else
        ask_layout(r, s, key);
    pd_buf_done(&kept);
}

/* ---- the handlers ---- */

static void download(struct api_req *r, bool (*find)(struct api_req *, struct source *),
                     void (*send)(struct api_req *, struct source *))
{
    struct source s = {.path = NULL};

    if (find(r, &s))
        send(r, &s);
    source_done(&s);
}

void api_checkpoint_weights(struct api_req *r)
{
    download(r, find_checkpoint, weights_of);
}

void api_checkpoint_file(struct api_req *r)
{
    download(r, find_checkpoint, send_file);
}

void api_model_version_weights(struct api_req *r)
{
    download(r, find_version, weights_of);
}

void api_model_version_file(struct api_req *r)
{
    download(r, find_version, send_file);
}
