/* Registration: a checkpoint of a run, an upload, a file below a data root or an average of checkpoints becomes the next version of a model.
 *
 *   checkpoint ------------------------------------------------> row
 *   upload --(upload.c)--> file --\
 *   file or folder of a data root -> polyd-worker weights import --> file of the registry -> row
 *   checkpoints (average.c) -------> polyd-worker weights average --/
 *
 * Nothing is registered whose file is not complete; a file whose row does not come is removed, at the latest when the
 * next daemon starts. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "api/average.h"
#include "api/handlers.h"
#include "api/json.h"
#include "api/models.h"
#include "api/server.h"
#include "api/upload.h"
#include "daemon/digest/digest.h"
#include "daemon/job/job.h"
#include "daemon/polyd/store/tx.h"

#define DESCRIPTION_MAX 16384
#define TENSORS_SHOWN 200 /* of a refusal */

static bool name_fits(struct api_req *r, const char *model)
{
    if (!api_failed(r) && !api_model_name_ok(model))
        api_fail(r, PD_ERR_INVALID,
                 "a model's name has 1 to %d of A-Z a-z 0-9 . _ - and does not begin with a point",
                 API_MODEL_MAX);
    return !api_failed(r);
}

/* ---- the row ---------------------------------------------------------------------------------- */

struct registration {
    struct api_write w; /* first */
    char model[API_MODEL_MAX + 1];
    int64_t run, checkpoint, n;
    /* of weights; file "": of a checkpoint */
    char file[512];
    struct store_weights weights;
    char name[64], sha256[DIGEST_SHA256_HEX_SIZE];
    char *source, *document;
};

/* Runs after the commit, even if register_answer never does: the commit alone decides whether the file has a row. */
static void registration_done(struct api_write *w)
{
    struct registration *g = (struct registration *)(void *)w;

    if (g->file[0] && (w->err != PD_OK || w->replayed))
        (void)unlink(g->file);
    free(g->source);
    free(g->document);
}

static enum pd_err register_apply(struct store_tx *tx, struct api_write *w, struct pd_why *why)
{
    struct registration *g = (struct registration *)(void *)w;
    int64_t checkpoint = g->checkpoint;
    enum pd_err err = PD_OK;

    if (g->file[0])
        err = store_weights_register(tx, g->model, &g->weights, &g->n, why);
    else if (!checkpoint)
        err = store_checkpoint_choose(tx, g->run, &checkpoint, why);
    if (err == PD_OK && !g->file[0])
        err = store_model_register(tx, g->model, checkpoint, &g->n, why);
    if (err == PD_ERR_NOT_FOUND && !g->file[0]) {
        strcpy(w->param, g->checkpoint ? "checkpoint_id" : "run_id");
        err = PD_ERR_INVALID;
    }
    if (err != PD_OK)
        return err;
    w->status = 201;
    /* What a repeated request needs to find the version again. */
    api_json_int(&w->answer, g->n);
    return PD_OK;
}

static void register_answer(struct api_req *r)
{
    struct api_write *w = api_write_result(r);
    struct registration *g = (struct registration *)(void *)w;
    char location[256];
    int64_t n;

    if (!w)
        return;
    n = w->replayed && w->answer.data ? strtoll(w->answer.data, NULL, 10) : g->n;
    if (w->replayed)
        api_reply_header(r, "Idempotency-Replayed", "true");
    snprintf(location, sizeof location, "/api/v1/models/%s/versions/%lld", g->model, (long long)n);
    api_reply_header(r, "Location", location);
    api_answer_version(r, g->model, n, 201);
}

static struct registration *begin(struct api_req *r)
{
    struct api_write *w =
        api_write_begin(r, sizeof(struct registration), true, registration_done, register_answer);
    struct registration *g = (struct registration *)(void *)w;

    if (!w)
        return NULL;
    snprintf(g->model, sizeof g->model, "%s", api_param(r, 0));
    w->apply = register_apply;
    return g;
}

/* ---- weights ---------------------------------------------------------------------------------- */

/* What a request says of weights. */
struct sent {
    char *description;    /* JSON; owned; NULL: the file's own */
    char preset[72];      /* "" = none */
    char tokenizer[4097]; /* "<root>/<folder>"; "" = none */
    char path[4097];      /* "<root>/<file or folder>"; "" = an upload */
    char sha256[DIGEST_SHA256_HEX_SIZE];
    bool bytes;
};

struct importing {
    struct api_wait *wait;
    char model[API_MODEL_MAX + 1], file[512], upload_sha256[DIGEST_SHA256_HEX_SIZE];
    char path[4097], upload[512];
    json_t *averaged; /* what an average was made of; NULL: weights that came from elsewhere */
    char *document;   /* of an average */
    bool kept;        /* handed on */
    struct pd_buf answer;
    enum pd_err err;
    struct pd_why why;
};

static void importing_done(void *data)
{
    struct importing *m = data;

    if (m->file[0] && !m->kept)
        (void)unlink(m->file);
    json_decref(m->averaged);
    free(m->document);
    pd_buf_done(&m->answer);
}

/* A client knows an upload, not the file of the state folder. */
static void hide_upload(struct importing *m)
{
    static const char name[] = "the upload";
    char *at = m->upload[0] ? strstr(m->why.text, m->upload) : NULL,
         *end = at ? at + strlen(m->upload) : NULL;

    if (!at)
        return;
    if (at > m->why.text && at[-1] == '\'' && *end == '\'') {
        at--;
        end++;
    }
    memmove(at + strlen(name), end, strlen(end) + 1);
    memcpy(at, name, strlen(name));
}

/* Any thread; the answer is borrowed. */
static void imported(void *ctx, enum pd_err err, const struct pd_why *why, const char *answer)
{
    struct importing *m = ctx;

    m->err = err;
    if (err == PD_OK)
        pd_buf_str(&m->answer, answer);
    else
        m->why = *why;
    hide_upload(m);
    api_wait_end(m->wait);
}

static void add_problem(struct pd_buf *b, struct pd_buf *sentence, const char *name, const char *detail,
                        size_t *shown)
{
    char pointer[200];

    if ((*shown)++ >= TENSORS_SHOWN)
        return;
    snprintf(pointer, sizeof pointer, "#/tensors/%.160s", name);
    api_json_open(b, '{');
    api_json_kv_str(b, "pointer", pointer);
    api_json_kv_str(b, "detail", detail);
    api_json_close(b, '}');
    if (sentence->len < 300)
        pd_buf_printf(sentence, "%s'%.100s' %.120s", sentence->len ? "; " : "", name, detail);
    else if (sentence->data[sentence->len - 1] != '.')
        pd_buf_str(sentence, "; ...");
}

/* The tensors that do not fit, all with their names. */
static void refuse(struct api_req *r, const json_t *answer)
{
    struct pd_buf details, sentence;
    size_t shown = 0, i;
    json_t *each;

    pd_buf_init(&details, 0);
    pd_buf_init(&sentence, 0);
    api_json_open(&details, '[');
    json_array_foreach(json_object_get(answer, "missing"), i, each)
        add_problem(&details, &sentence, json_string_value(each), "is missing", &shown);
    json_array_foreach(json_object_get(answer, "surplus"), i, each)
        add_problem(&details, &sentence, json_string_value(each), "is no parameter of this network", &shown);
    json_array_foreach(json_object_get(answer, "wrong"), i, each)
        add_problem(&details, &sentence, json_string_value(json_object_get(each, "name")),
                    json_string_value(json_object_get(each, "detail")), &shown);
    api_json_close(&details, ']');
    if (pd_buf_err(&details) != PD_OK || pd_buf_err(&sentence) != PD_OK)
        api_fail(r, PD_ERR_NOMEM, "no memory for the answer");
    else
        api_fail_details(r, PD_ERR_INVALID, details.data, "the weights do not fit the network: %s",
                         sentence.data);
    pd_buf_done(&details);
    pd_buf_done(&sentence);
}

/* What the version was made of. */
static char *source_json(const struct importing *m, const json_t *answer)
{
    json_t *source = json_pack("{s:O*,s:O*}", "tokenizer", json_object_get(answer, "tokenizer"), "ignored",
                               json_object_get(answer, "ignored"));
    char *text = NULL;
    bool ok = source != NULL;

    if (ok && m->path[0])
        ok = json_object_set_new(source, "path", json_string(m->path)) == 0;
    if (ok && m->averaged)
        ok = json_object_set(source, "average", m->averaged) == 0;
    if (ok && m->upload_sha256[0])
        ok = json_object_set_new(source, "sha256", json_string(m->upload_sha256)) == 0;
    if (ok)
        text = json_dumps(source, JSON_COMPACT);
    json_decref(source);
    return text;
}

static void write_row(struct api_req *r, struct importing *m, const json_t *answer)
{
    const char *sha256 = json_string_value(json_object_get(answer, "sha256")),
               *document = m->averaged ? m->document : json_string_value(json_object_get(answer, "document"));
    struct registration *g;
    struct pd_why why = {.text = ""};

    if (!sha256 || !document) {
        api_fail(r, PD_ERR_INTERNAL, "the worker's answer about the weights cannot be read");
        return;
    }
    g = begin(r);
    if (!g)
        return;
    snprintf(g->file, sizeof g->file, "%s", m->file);
    m->kept = true; /* by the registration from here on */
    snprintf(g->name, sizeof g->name, "models/%.50s", strrchr(m->file, '/') + 1);
    snprintf(g->sha256, sizeof g->sha256, "%s", sha256);
    g->source = source_json(m, answer);
    g->document = strdup(document);
    g->weights = (struct store_weights){.path = g->name,
                                        .bytes = json_integer_value(json_object_get(answer, "bytes")),
                                        .step = json_integer_value(json_object_get(answer, "step")),
                                        .digest = g->sha256,
                                        .origin = m->averaged  ? "average"
                                                  : m->path[0] ? "root"
                                                               : "upload",
                                        .source = g->source,
                                        .document = g->document};
    if (!g->source || !g->document)
        api_write_fail(&g->w, pd_fail(&why, PD_ERR_NOMEM, "no memory for the registration"), &why);
    else
        api_write_submit(&g->w, STORE_LANE_COMMAND, 3);
}

/* The member of the request that a refusal without a place is about. */
static const char *import_member(const char *why)
{
    return strncmp(why, "the tokenizer: ", strlen("the tokenizer: ")) ? "path" : "tokenizer";
}

static void import_answer(struct api_req *r)
{
    struct importing *m = api_waited(r);
    json_t *answer = NULL;
    char place[200];
    const char *rest;

    if (m->err == PD_OK)
        m->err = pd_buf_err(&m->answer);
    if (m->err != PD_OK) {
        rest = pd_why_place(m->why.text, place, sizeof place);
        if (m->err == PD_ERR_INVALID && strcmp(place, "#") != 0)
            api_fail_param(r, PD_ERR_INVALID, place + 2, "%s: %s", place + 2, rest);
        else if (m->path[0] && api_fault_row((int)m->err)->status == 422)
            api_fail_param(r, (int)m->err, import_member(m->why.text), "%s: %s", import_member(m->why.text),
                           m->why.text);
        else
            api_fail_why(r, m->err, &m->why);
        return;
    }
    answer = json_loadb(m->answer.data, m->answer.len, 0, NULL);
    if (json_object_get(answer, "refused"))
        refuse(r, answer);
    else
        write_row(r, m, answer);
    json_decref(answer);
}

/* The description with the preset in it; NULL: there is neither. */
static const char *description_of(struct api_req *r, struct sent *s)
{
    json_t *all;
    char *text;

    if (!s->preset[0])
        return s->description;
    all = s->description ? json_loads(s->description, 0, NULL) : json_object();
    text = all && json_object_set_new(all, "preset", json_string(s->preset)) == 0
               ? json_dumps(all, JSON_COMPACT)
               : NULL;
    json_decref(all);
    free(s->description);
    s->description = text;
    if (!text)
        api_fail(r, PD_ERR_NOMEM, "no memory for the description");
    return text;
}

/* A worker is about to write a file of the registry; NULL: the request has been failed. */
static struct importing *begin_import(struct api_req *r)
{
    struct api_wait *wait;
    struct importing *m;
    char to[512];

    if (api_failed(r) || !api_upload_place(r, "models", to, sizeof to))
        return NULL;
    wait = api_wait_begin(r, sizeof *m, importing_done, import_answer);
    if (!wait)
        return NULL;
    m = api_wait_data(wait);
    m->wait = wait;
    pd_buf_init(&m->answer, 0);
    snprintf(m->model, sizeof m->model, "%s", api_param(r, 0));
    snprintf(m->file, sizeof m->file, "%s", to);
    return m;
}

static void import_weights(struct api_req *r, struct sent *s, const struct api_upload *upload)
{
    const char *description = description_of(r, s);
    struct sup_weights asked = {.document = description, .done = imported};
    struct pd_why why = {.text = ""};
    struct importing *m = begin_import(r);
    int n = 0;
    enum pd_err err;

    if (!m)
        return;
    snprintf(m->path, sizeof m->path, "%s", s->path);
    if (upload) {
        snprintf(m->upload, sizeof m->upload, "%s", upload->path);
        digest_hex(upload->sha256, sizeof upload->sha256, m->upload_sha256);
    }
    asked.ctx = m;
    asked.args[n++] = "import";
    asked.args[n++] = "--to";
    asked.args[n++] = m->file;
    asked.args[n++] = upload ? "--file" : "--path";
    asked.args[n++] = upload ? upload->path : s->path;
    if (s->tokenizer[0]) {
        asked.args[n++] = "--tokenizer";
        asked.args[n++] = s->tokenizer;
    }
    if (s->bytes) {
        asked.args[n++] = "--bytes";
        asked.args[n++] = "yes";
    }
    err = sup_weights_ask(api_deps_of(api_of(r))->sup, &asked, &why);
    if (err != PD_OK)
        imported(m, err, &why, NULL);
}

static void average_checkpoints(struct api_req *r, struct api_average *a)
{
    struct sup_weights asked = {.document = a->list.data, .done = imported};
    struct pd_why why = {.text = ""};
    struct importing *m = begin_import(r);
    enum pd_err err;

    if (!m)
        return;
    m->averaged = json_incref(a->sources);
    m->document = a->document;
    a->document = NULL; /* moved */
    asked.ctx = m;
    asked.args[0] = "average";
    asked.args[1] = "--to";
    asked.args[2] = m->file;
    err = sup_weights_ask(api_deps_of(api_of(r))->sup, &asked, &why);
    if (err != PD_OK)
        imported(m, err, &why, NULL);
}

/* ---- what a request says ---------------------------------------------------------------------- */

/* What is wrong with the description, by the member that has it. */
static void fail_description(struct api_req *r, const struct sent *s, const struct job_problem *problem)
{
    char param[200];

    if (s->preset[0] && !strcmp(problem->pointer, "#/model/preset"))
        strcpy(param, "preset");
    else
        snprintf(param, sizeof param, "description%.150s", problem->pointer + 1);
    api_fail_param(r, PD_ERR_INVALID, param, "%s: %.300s", param, problem->detail);
}

static void check_description(struct api_req *r, const struct sent *s)
{
    struct job_weights weights;
    struct job_report report;
    enum pd_err err;

    if (!s->description)
        return;
    job_report_init(&report);
    err = job_weights_read(s->description, strlen(s->description), s->tokenizer[0] ? s->tokenizer : NULL,
                           &weights, &report);
    if (err == PD_OK)
        job_weights_done(&weights);
    else if (report.error_count)
        fail_description(r, s, &report.errors[0]);
    else
        api_fail(r, err, "the description cannot be read");
    job_report_done(&report);
}

static void check_digest(struct api_req *r, const char *sha256)
{
    uint8_t bytes[DIGEST_SHA256_BYTES];

    if (sha256[0] && !digest_unhex(sha256, bytes, sizeof bytes))
        api_fail_param(r, PD_ERR_INVALID, "sha256", "sha256 must be 64 hexadecimal digits");
}

/* Of a file: in the query. False: the request has been failed. */
static bool read_query(struct api_req *r, struct sent *s)
{
    static const char *const known[] = {"preset", "description", "tokenizer", "sha256", NULL};
    char description[DESCRIPTION_MAX];

    memset(s, 0, sizeof *s);
    if (api_query_refuse_others(r, known))
        return false;
    (void)api_query(r, "preset", s->preset, sizeof s->preset);
    (void)api_query(r, "sha256", s->sha256, sizeof s->sha256);
    (void)api_query(r, "tokenizer", s->tokenizer, sizeof s->tokenizer);
    if (!strcmp(s->tokenizer, "bytes")) {
        s->bytes = true;
        s->tokenizer[0] = '\0';
    }
    if (api_query(r, "description", description, sizeof description) &&
        !(s->description = strdup(description)))
        api_fail(r, PD_ERR_NOMEM, "no memory for the description");
    check_digest(r, s->sha256);
    if (!api_failed(r) && s->description)
        (void)description_of(r, s);
    if (!api_failed(r))
        check_description(r, s);
    return !api_failed(r);
}

bool api_register_check(struct api_req *r)
{
    struct sent s;

    if (read_query(r, &s) && api_draining(api_of(r)))
        api_fail(r, API_FAULT_DRAINING, "the server is draining and registers nothing");
    free(s.description);
    return name_fits(r, api_param(r, 0));
}

static void fail_digest(struct api_req *r, const char *param, const char *hex)
{
    api_fail_param(r, PD_ERR_INVALID, param,
                   "%s: the upload has the SHA-256 %s, which differs from the request's", param, hex);
}

/* One member of a digest header; the value of another algorithm is not looked at. False: it cannot be read. */
static bool digest_member_read(const char *text, size_t len, bool *found, uint8_t sha256[DIGEST_SHA256_BYTES])
{
    const char *value = memchr(text, '=', len), *end = text + len;
    size_t key_len;

    while (end > text && strchr(" \t", end[-1]))
        end--;
    key_len = (size_t)((value ? value : end) - text);
    while (key_len && strchr(" \t", text[key_len - 1]))
        key_len--;
    *found = key_len == strlen("sha-256") && !strncasecmp(text, "sha-256", key_len);
    if (!*found)
        return true;
    while (value && ++value < end && strchr(" \t", *value))
        ;
    return value && end - value > 2 && *value == ':' && end[-1] == ':' &&
           digest_unbase64(value + 1, (size_t)(end - value) - 2, sha256, DIGEST_SHA256_BYTES);
}

/* RFC 9530: sha-256=:BASE64:, of what was sent, in a list with other algorithms. False: the request has been failed. */
static bool digest_header_fits(struct api_req *r, const char *name, const struct api_upload *upload)
{
    const char *at = api_header(r, name);
    char hex[DIGEST_SHA256_HEX_SIZE];
    uint8_t sent[DIGEST_SHA256_BYTES];
    bool found;

    while (at && *at && !api_failed(r)) {
        const char *member = at + strspn(at, " \t,");
        const size_t len = strcspn(member, ",");

        if (!digest_member_read(member, len, &found, sent))
            api_fail_param(r, PD_ERR_INVALID, name, "%s must be sha-256=:BASE64:, the Base64 of %d bytes",
                           name, DIGEST_SHA256_BYTES);
        else if (found && memcmp(sent, upload->sha256, sizeof sent) != 0)
            fail_digest(r, name, digest_hex(upload->sha256, sizeof upload->sha256, hex));
        at = member + len;
    }
    return !api_failed(r);
}

/* False: the bytes are not those that the request announced; the request has been failed. */
static bool bytes_fit(struct api_req *r, const struct sent *s, const struct api_upload *upload)
{
    char hex[DIGEST_SHA256_HEX_SIZE];

    digest_hex(upload->sha256, sizeof upload->sha256, hex);
    if (s->sha256[0] && strcasecmp(hex, s->sha256) != 0)
        fail_digest(r, "sha256", hex);
    return !api_failed(r) && digest_header_fits(r, "Content-Digest", upload) &&
           digest_header_fits(r, "Repr-Digest", upload);
}

static void register_upload(struct api_req *r)
{
    const struct api_upload *upload = api_upload_of(r);
    struct sent s;

    if (!read_query(r, &s) || !name_fits(r, api_param(r, 0))) {
        free(s.description);
        return;
    }
    if (!upload)
        api_fail(r, PD_ERR_INVALID, "the body is empty: it must be a safetensors file");
    else if (bytes_fit(r, &s, upload))
        import_weights(r, &s, upload);
    free(s.description);
}

static bool text_member(struct api_req *r, json_t *body, const char *key, char *out, size_t size)
{
    const json_t *value = json_object_get(body, key);
    const char *text = json_string_value(value);

    if (value && (!text || !*text || strlen(text) >= size))
        api_fail_param(r, PD_ERR_INVALID, key, "%s must be a text of 1 to %zu bytes", key, size - 1);
    else if (text)
        snprintf(out, size, "%s", text);
    return text != NULL;
}

static void register_rooted(struct api_req *r, json_t *body)
{
    static const char *const known[] = {"path", "preset", "description", "tokenizer"};
    const json_t *description = json_object_get(body, "description");
    struct sent s = {.description = NULL};
    json_t *value;
    const char *key;

    json_object_foreach(body, key, value)
    {
        bool found = false;

        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            found = found || !strcmp(key, known[i]);
        if (!found)
            api_fail_param(r, PD_ERR_INVALID, key, "%.100s does not go with path", key);
    }
    (void)text_member(r, body, "path", s.path, sizeof s.path);
    (void)text_member(r, body, "preset", s.preset, sizeof s.preset);
    if (text_member(r, body, "tokenizer", s.tokenizer, sizeof s.tokenizer) && !strcmp(s.tokenizer, "bytes")) {
        s.bytes = true;
        s.tokenizer[0] = '\0';
    }
    if (description && !json_is_object(description))
        api_fail_param(r, PD_ERR_INVALID, "description", "description must be an object");
    else if (description &&
             !(s.description = json_dumps(description, JSON_COMPACT | JSON_REAL_PRECISION(17))))
        api_fail(r, PD_ERR_NOMEM, "no memory for the description");
    if (name_fits(r, api_param(r, 0)))
        (void)description_of(r, &s);
    if (!api_failed(r))
        check_description(r, &s);
    if (!api_failed(r))
        import_weights(r, &s, NULL);
    free(s.description);
}

static void register_average(struct api_req *r, json_t *body)
{
    struct api_average a;
    json_t *value;
    const char *key;

    json_object_foreach(body, key, value) if (strcmp(key, "average") != 0)
        api_fail_param(r, PD_ERR_INVALID, key, "%.100s does not go with average", key);
    if (!name_fits(r, api_param(r, 0)))
        return;
    if (api_average_read(r, json_object_get(body, "average"), &a))
        average_checkpoints(r, &a);
    api_average_done(&a);
}

static void register_checkpoint(struct api_req *r, json_t *body)
{
    struct registration *g;
    int64_t run, checkpoint;
    json_t *value;
    const char *key;

    json_object_foreach(body, key, value) if (strcmp(key, "run_id") != 0 && strcmp(key, "checkpoint_id") != 0)
        api_fail_param(r, PD_ERR_INVALID, key, "unknown member '%.100s'", key);
    run = api_id_member(r, body, "run_id");
    checkpoint = api_id_member(r, body, "checkpoint_id");
    if (!api_failed(r) && (run != 0) == (checkpoint != 0))
        api_fail_param(r, PD_ERR_INVALID, "",
                       "name either run_id or checkpoint_id, or a path, or an average");
    if (!name_fits(r, api_param(r, 0)) || !(g = begin(r)))
        return;
    g->run = run;
    g->checkpoint = checkpoint;
    api_write_submit(&g->w, STORE_LANE_COMMAND, 3);
}

void api_model_register(struct api_req *r)
{
    static const char *const none[] = {NULL};
    json_t *body;

    if (api_media_type_is(api_header(r, "Content-Type"), "application/octet-stream")) {
        register_upload(r);
        return;
    }
    if (api_query_refuse_others(r, none) || !(body = api_body_json(r, 0)))
        return;
    if (json_object_get(body, "path"))
        register_rooted(r, body);
    else if (json_object_get(body, "average"))
        register_average(r, body);
    else
        register_checkpoint(r, body);
    json_decref(body);
}
