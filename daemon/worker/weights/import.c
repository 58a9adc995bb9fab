/* Weights come in: a safetensors file, or a folder of several, becomes a checkpoint of polyd at step 0.
 *
 *   description, or the file's own --> the network --> each tensor: a parameter, passed over, or refused
 *   --> one file with the parameters' public names, the bytes as they came, and what polyd needs to know
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/digest/digest.h"
#include "daemon/job/job.h"
#include "daemon/worker/data/shards.h"
#include "daemon/worker/data/tokenizer.h"
#include "daemon/worker/model/model.h"
#include "daemon/worker/task/task.h"
#include "daemon/worker/train/checkpoint.h"
#include "daemon/worker/weights/weights.h"
#include "kernels/base/json.h"

#define META_MAX (MODEL_META_ITEMS + 8)
#define NAMED_MAX 500 /* tensors that a refusal names of each kind */

/* ---- what is wrong with the tensors ---- */

struct findings {
    struct pd_buf missing, surplus, wrong; /* JSON arrays, without the last bracket */
    size_t missing_count, surplus_count, wrong_count;
};

static void findings_init(struct findings *f)
{
    struct pd_buf *all[] = {&f->missing, &f->surplus, &f->wrong};

    memset(f, 0, sizeof *f);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        pd_buf_init(all[i], 0);
        pd_json_open(all[i], '[');
    }
}

static void findings_done(struct findings *f)
{
    pd_buf_done(&f->missing);
    pd_buf_done(&f->surplus);
    pd_buf_done(&f->wrong);
}

static void note(struct pd_buf *b, size_t *count, const char *name)
{
    if ((*count)++ < NAMED_MAX)
        pd_json_str(b, name);
}

/* One that is there and cannot be taken: `why` says so without its name. */
static void note_wrong(struct findings *f, const char *name, const char *why)
{
    if (f->wrong_count++ >= NAMED_MAX)
        return;
    pd_json_open(&f->wrong, '{');
    pd_json_kv_str(&f->wrong, "name", name);
    pd_json_kv_str(&f->wrong, "detail", why);
    pd_json_close(&f->wrong, '}');
}

/* ---- the import ---- */

/* The tensors of a file that make up a parameter, in their order along axis 0. */
struct import_source {
    const struct data_st_tensor *part[MODEL_PARTS_MAX];
    int of;     /* 0: none was found */
    bool wrong; /* a part is there and does not fit, which was noted */
};

struct import {
    const struct weights_import *o;
    struct data_shards *files;
    struct job_weights declared; /* document.len 0: the file describes itself */
    bool described;              /* `declared` was read */
    struct model_spec spec;
    struct model *model;
    struct data_tokenizer *tokenizer;
    struct pd_buf tokenizer_bytes, ignored;
    struct import_source *found; /* of each parameter */
    bool *seen;                  /* of each parameter: a tensor has its name, fitting or not */
    const char *tokenizer_path;  /* rooted; NULL: it came in the file, or there is none */
    bool averages;               /* polyd wrote the file, and it serves averaged weights */
    struct data_st_meta_item meta[META_MAX];
    size_t meta_count;
    char *spec_text, mean[64], std[64];
};

static enum pd_err open_files(struct import *m, struct pd_why *why)
{
    const struct weights_import *o = m->o;
    struct pd_why reason = {""};
    int fd = -1;
    enum pd_err err;

    if (o->file)
        return data_shards_open(o->file, &m->files, why);
    err = data_path_open(o->roots, o->root_count, o->path, true, &fd, &reason);
    if (err == PD_OK)
        err = data_shards_open_dir(o->roots, o->root_count, o->path, &m->files, why);
    else if ((err = data_path_open(o->roots, o->root_count, o->path, false, &fd, why)) == PD_OK)
        err = data_shards_open_fd(fd, o->path, &m->files, why);
    if (fd >= 0)
        close(fd);
    return err;
}

/* Of a rooted folder without a tokenizer of its own: the one that lies in it, if there is one. */
static enum pd_err open_tokenizer(struct import *m, struct pd_why *why)
{
    const struct weights_import *o = m->o;
    const char *path = o->tokenizer ? o->tokenizer : o->path;
    const struct data_st *st = data_shards_first(m->files);
    const struct data_st_tensor *own = data_st_find(st, DATA_TOKENIZER_TENSOR);
    struct pd_why reason = {""};
    int fd = -1;
    enum pd_err err;

    if (own && !o->tokenizer) { /* polyd wrote the file */
        if (own->dtype != DATA_ST_U8 || own->rank != 1)
            return pd_fail(why, PD_ERR_CORRUPT, "the file's tokenizer is not a sequence of bytes");
        return data_tokenizer_load(own->data, (size_t)own->bytes, &m->tokenizer, why);
    }
    if (!path)
        return PD_OK;
    err = data_path_open(o->roots, o->root_count, path, true, &fd, &reason);
    if (err == PD_OK)
        err = data_tokenizer_bpe_open(o->roots, o->root_count, path, &m->tokenizer, &reason);
    if (fd >= 0)
        close(fd);
    if (err == PD_OK)
        m->tokenizer_path = path;
    if (err == PD_OK ||
        (!o->tokenizer && (err == PD_ERR_NOT_FOUND || err == PD_ERR_IO || err == PD_ERR_INVALID)))
        return PD_OK;
    return pd_fail(why, err, "the tokenizer: %s", reason.text);
}

/* ---- the network ---- */

static const struct data_st_tensor *find(void *user, const char *name)
{
    return data_shards_find(user, name);
}

/* By the request's description, else by what the file says of itself. */
static enum pd_err describe(struct import *m, struct pd_why *why)
{
    const struct data_st *st = data_shards_first(m->files);
    const char *text = m->o->description ? m->o->description : data_st_meta(st, WEIGHTS_DOCUMENT);
    struct job_config *config = NULL;
    struct job_report report;
    enum pd_err err;

    if (!text)
        return data_st_meta(st, "polyd.model.arch")
                   ? model_spec_from_meta(st, &m->spec, why)
                   : pd_fail(why, PD_ERR_INVALID,
                             "the file does not describe its network: set preset or description");
    job_report_init(&report);
    err = job_weights_read(text, strlen(text), m->tokenizer_path, &m->declared, &report);
    if (err == PD_ERR_INVALID && report.error_count)
        (void)pd_fail(why, err, "%.200s: %.250s", report.errors[0].pointer, report.errors[0].detail);
    else if (err != PD_OK)
        (void)pd_fail(why, err, "no memory for the description");
    job_report_done(&report);
    m->described = err == PD_OK;
    if (err == PD_OK)
        err = job_config_load(m->declared.document.data, m->declared.document.len, &config, why);
    if (err == PD_OK && !m->o->description && data_st_meta(st, "polyd.model.arch"))
        err = model_spec_from_meta(st, &m->spec, why); /* to the last bit */
    else if (err == PD_OK)
        err = model_spec_from_tensors(config, m->declared.mean_count ? m->declared.mean : NULL,
                                      m->declared.std, find, m->files, &m->spec, why);
    job_config_free(config);
    if (err == PD_OK && m->declared.mean_count && m->declared.mean_count != m->spec.channels)
        err = pd_fail(why, PD_ERR_INVALID, "#/mean: has %d numbers, the images have %d channels",
                      m->declared.mean_count, m->spec.channels);
    if (err == PD_OK && m->declared.classes && m->declared.classes != m->spec.classes)
        err = pd_fail(why, PD_ERR_INVALID, "#/classes: has %lld names, the network has %d classes",
                      (long long)m->declared.classes, m->spec.classes);
    return err;
}

/* ---- the tensors ---- */

static bool is_float(const struct data_st_tensor *t)
{
    return t->dtype == DATA_ST_F32 || t->dtype == DATA_ST_F16 || t->dtype == DATA_ST_BF16 ||
           t->dtype == DATA_ST_F64;
}

static bool is_count(const struct data_st_tensor *t)
{
    return t->dtype == DATA_ST_I64 || t->dtype == DATA_ST_I32;
}

/* t: part `as` of parameter i. */
static void check_tensor(struct import *m, struct findings *f, const struct data_st_tensor *t, size_t i,
                         struct model_part as)
{
    const struct model_param *p = model_param(m->model, i);
    struct pk_shape shape = {.rank = t->rank}, part = p->shape;
    struct import_source *to = &m->found[i];
    char have[96], want[96], text[300];

    m->seen[i] = true;
    memcpy(shape.dim, t->dim, sizeof shape.dim);
    if (as.of > 1)
        part.dim[0] /= as.of;
    if (!pk_shape_equal(&shape, &part))
        snprintf(text, sizeof text, "is %s, the network needs %s", pk_shape_text(&shape, have, sizeof have),
                 pk_shape_text(&part, want, sizeof want));
    else if (!is_float(t) && !(p->role == MODEL_ROLE_BUFFER && is_count(t)))
        snprintf(text, sizeof text, "is %s, no number with a fraction", data_st_dtype_name(t->dtype));
    else if (to->part[as.at] || (to->of && to->of != as.of))
        snprintf(text, sizeof text, "is there under two names");
    else {
        to->part[as.at] = t;
        to->of = as.of;
        return;
    }
    to->wrong = true;
    note_wrong(f, t->name, text);
}

/* The parts of parameter i must all be there, and of one type. */
static void check_parts(struct import *m, struct findings *f, size_t i)
{
    const struct import_source *from = &m->found[i];
    const struct data_st_tensor *first = NULL;

    for (int k = 0; k < from->of && !from->wrong; k++) {
        const struct data_st_tensor *t = from->part[k];
        char text[200];

        if (!t)
            snprintf(text, sizeof text, "lacks part %d of its %d", k + 1, from->of);
        else if (first && t->dtype != first->dtype)
            snprintf(text, sizeof text, "has a part of type %s and one of type %s",
                     data_st_dtype_name(first->dtype), data_st_dtype_name(t->dtype));
        first = first ? first : t;
        if (!t || t->dtype != first->dtype) {
            note_wrong(f, model_param(m->model, i)->name, text);
            return;
        }
    }
}

/* A tensor that repeats a parameter holds the same bytes: with others it would be a network of another kind. */
static void check_repeated(struct import *m, struct findings *f, const struct data_st_tensor *t, size_t i)
{
    const struct data_st_tensor *of = m->found[i].part[0];

    if (!of || of->dtype != t->dtype || of->bytes != t->bytes || memcmp(of->data, t->data, t->bytes) != 0) {
        char text[160];

        snprintf(text, sizeof text, "differs from '%.80s', to which it is tied here",
                 model_param(m->model, i)->name);
        note_wrong(f, t->name, text);
    }
}

/* Its name without the prefix of averages; NULL: it is not what the file serves. */
static const char *served_name(const struct import *m, const struct data_st_tensor *t)
{
    const bool average = !strncmp(t->name, "ema.", 4);

    return !m->averages ? t->name : average ? t->name + 4 : NULL;
}

static void match(struct import *m, struct findings *f)
{
    const char *marker = model_respelt_marker(&m->spec);
    const bool respelt = marker && data_shards_find(m->files, marker);
    char own[MODEL_TENSOR_NAME];
    size_t i;

    for (int pass = 0; pass < 2; pass++) /* what repeats a parameter is compared once that is known */
        for (size_t k = 0; k < data_shards_count(m->files); k++) {
            const struct data_st_tensor *t = data_shards_at(m->files, k);
            const char *name = served_name(m, t);
            struct model_part part = MODEL_WHOLE;
            enum model_tensor is;

            if (name && respelt) {
                part = model_respelt_name(&m->spec, name, own);
                name = own;
            }
            is = name ? model_tensor_of(m->model, name, &i) : MODEL_TENSOR_IGNORED;
            if (pass && is == MODEL_TENSOR_REPEATS)
                check_repeated(m, f, t, i);
            if (pass || is == MODEL_TENSOR_REPEATS)
                continue;
            if (is == MODEL_TENSOR_PARAM)
                check_tensor(m, f, t, i, part);
            else if (is == MODEL_TENSOR_IGNORED)
                pd_json_str(&m->ignored, t->name);
            else
                note(&f->surplus, &f->surplus_count, t->name);
        }
    for (i = 0; i < model_param_count(m->model); i++) {
        const char *name = model_param(m->model, i)->name;

        if (!m->seen[i] && model_param(m->model, i)->whole) /* old versions of PyTorch did not count */
            continue;
        if (!m->seen[i])
            note(&f->missing, &f->missing_count, name);
        check_parts(m, f, i);
    }
}

static void write_findings(struct pd_buf *out, struct findings *f)
{
    struct pd_buf *lists[] = {&f->missing, &f->surplus, &f->wrong};
    static const char *const names[] = {"missing", "surplus", "wrong"};

    pd_json_open(out, '{');
    pd_json_key(out, "refused");
    pd_json_strf(out, "the tensors do not fit the network: %zu missing, %zu surplus, %zu of the wrong form",
                 f->missing_count, f->surplus_count, f->wrong_count);
    for (size_t i = 0; i < 3; i++) {
        pd_json_close(lists[i], ']');
        pd_json_key(out, names[i]);
        pd_json_raw(out, lists[i]->data);
        if (pd_buf_err(lists[i]) != PD_OK)
            out->failed = true;
    }
    pd_json_close(out, '}');
}

/* ---- metadata in addition to the tensors ---- */

/* A network of tokens without a tokenizer takes ids. */
static enum pd_err settle_tokenizer(struct import *m, struct pd_why *why)
{
    enum pd_err err = PD_OK;
    int32_t ids;

    if (!m->spec.vocab) { /* it reads no text */
        m->tokenizer = data_tokenizer_free(m->tokenizer);
        return PD_OK;
    }
    ids = model_text_ids(&m->spec);
    if (!m->tokenizer && m->o->bytes)
        return ids >= 256 ? PD_OK
                          : pd_fail(why, PD_ERR_INVALID,
                                    "#/data/tokenizer: there are 256 bytes, the network has %d tokens", ids);
    if (!m->tokenizer)
        err = data_tokenizer_ids_new(ids, &m->tokenizer, why);
    if (err == PD_OK && data_tokenizer_vocab(m->tokenizer) > ids)
        err = pd_fail(why, PD_ERR_INVALID, "the tokenizer has %d tokens, the network %d",
                      data_tokenizer_vocab(m->tokenizer), ids);
    return err == PD_OK ? data_tokenizer_save(m->tokenizer, &m->tokenizer_bytes, why) : err;
}

static void add_meta(struct import *m, const char *key, const char *value)
{
    m->meta[m->meta_count++] = (struct data_st_meta_item){key, value};
}

#define CHANNELS 3 /* most in a description, and in data sets */

static const char *list_channels(char out[64], const float *v, int channels)
{
    int n = 0;

    for (int i = 0; i < channels && i < CHANNELS; i++)
        n += snprintf(out + n, (size_t)(64 - n), "%s%.9g", i ? "," : "", (double)v[i]);
    return out;
}

static enum pd_err list_meta(struct import *m, struct pd_buf *document, struct pd_why *why)
{
    const struct data_st *st = data_shards_first(m->files);
    const struct task *task = task_of(&m->spec);
    const char *mean = data_st_meta(st, "polyd.data.mean"), *std = data_st_meta(st, "polyd.data.std");
    enum pd_err err;

    if (!task)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "this build has no task for such a network");
    if (m->spec.channels > CHANNELS && !(mean && std))
        return pd_fail(
            why, PD_ERR_UNSUPPORTED,
            "the network reads images of %d channels; a mean and a deviation can be given for at most %d",
            m->spec.channels, CHANNELS);
    err = model_spec_to_meta(&m->spec, false, m->meta, &m->meta_count, &m->spec_text, why);
    if (err != PD_OK)
        return err;
    add_meta(m, "polyd.data.kind", task->data_kind);
    add_meta(m, "polyd.data.mean",
             mean && !m->declared.mean_count ? mean : list_channels(m->mean, m->spec.mean, m->spec.channels));
    add_meta(m, "polyd.data.std",
             std && !m->declared.std_count ? std : list_channels(m->std, m->spec.std, m->spec.channels));
    if (m->declared.class_names.len)
        add_meta(m, "polyd.data.classes", m->declared.class_names.data);
    else if (data_st_meta(st, "polyd.data.classes"))
        add_meta(m, "polyd.data.classes", data_st_meta(st, "polyd.data.classes"));
    if (!m->declared.document.len)
        return PD_OK;
    err = job_weights_document(m->declared.document.data, m->declared.document.len, document, why);
    if (err == PD_OK)
        add_meta(m, WEIGHTS_DOCUMENT, document->data);
    return err;
}

/* Training starts from its beginning: nothing is known of how the weights came to be but the step that the file may tell. */
static struct train_state state_of(const struct data_st *st)
{
    const char *text = data_st_meta(st, "polyd.step");
    int64_t step = text ? strtoll(text, NULL, 10) : 0;

    step = step > 0 && step < INT64_MAX / 2 ? step : 0;
    return (struct train_state){.step = step,
                                .applied = step,
                                .best_step = -1,
                                .loss_train = NAN,
                                .loss_val = NAN,
                                .metric_val = NAN,
                                .best_value = NAN,
                                .score = NAN,
                                .stop_best = NAN};
}

/* The parts of a parameter, one behind the other: those of a matrix's rows are whole in memory. */
static enum pd_err get_parts(void *user, void *to, const void *memory, size_t bytes, struct pd_why *why)
{
    const struct import_source *from = memory;
    size_t at = 0;

    (void)user;
    for (int k = 0; k < from->of; at += from->part[k++]->bytes) {
        if (at + from->part[k]->bytes > bytes)
            return pd_fail(why, PD_ERR_INTERNAL, "'%.80s' does not fit its parameter", from->part[k]->name);
        memcpy((char *)to + at, from->part[k]->data, from->part[k]->bytes);
    }
    return PD_OK;
}

static struct train_tensor tensor_of(struct import_source *from, const char *name)
{
    static const int64_t zero = 0;
    const struct data_st_tensor none = {
        .dtype = DATA_ST_I64, .count = 1, .bytes = sizeof zero, .data = &zero};
    struct train_tensor t = {.st = from->of ? *from->part[0] : none};

    t.st.name = name;
    if (!from->of) /* a count that the file lacks */
        return t;
    if (from->of == 1)
        return t;
    t.st.dim[0] *= from->of;
    t.st.count *= (uint64_t)from->of;
    t.st.bytes *= (uint64_t)from->of;
    t.st.data = NULL;
    t.memory = from;
    return t;
}

static enum pd_err write_file(struct import *m, struct train_file_info *ret, struct pd_why *why)
{
    const size_t params = model_param_count(m->model);
    struct train_tensor *tensors = calloc(params + 1, sizeof *tensors);
    struct train_state state = state_of(data_shards_first(m->files));
    struct pd_buf document;
    size_t count = params;
    enum pd_err err;

    pd_buf_init(&document, 0);
    if (!tensors)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for %zu tensors", params);
    for (size_t i = 0; i < params; i++)
        tensors[i] = tensor_of(&m->found[i], model_param(m->model, i)->name);
    if (m->tokenizer_bytes.len)
        tensors[count++].st = (struct data_st_tensor){.name = DATA_TOKENIZER_TENSOR,
                                                      .dtype = DATA_ST_U8,
                                                      .rank = 1,
                                                      .dim = {(int64_t)m->tokenizer_bytes.len},
                                                      .count = m->tokenizer_bytes.len,
                                                      .bytes = m->tokenizer_bytes.len,
                                                      .data = m->tokenizer_bytes.data};
    err = list_meta(m, &document, why);
    if (err == PD_OK)
        err = train_checkpoint_write(m->o->to, tensors, count, &state, m->meta, m->meta_count, get_parts,
                                     NULL, ret, why);
    pd_buf_done(&document);
    free(tensors);
    return err;
}

static void write_answer(struct import *m, const struct train_file_info *file, struct pd_buf *out)
{
    char hex[DIGEST_SHA256_HEX_SIZE];

    pd_json_open(out, '{');
    pd_json_kv_uint(out, "bytes", file->bytes);
    pd_json_kv_str(out, "sha256", digest_hex(file->sha256, sizeof file->sha256, hex));
    pd_json_kv_int(out, "step", state_of(data_shards_first(m->files)).step);
    pd_json_kv_str(out, "document", m->declared.document.len ? m->declared.document.data : "");
    pd_json_kv_str(out, "tokenizer",
                   m->tokenizer    ? data_tokenizer_kind_name(data_tokenizer_kind(m->tokenizer))
                   : m->spec.vocab ? "bytes"
                                   : NULL);
    pd_json_kv_int(out, "parameters", model_param_elements(m->model));
    pd_json_close(&m->ignored, ']');
    pd_json_key(out, "ignored");
    pd_json_raw(out, m->ignored.data);
    pd_json_close(out, '}');
}

/* ---- the command ---- */

static enum pd_err import_done(struct import *m, enum pd_err err)
{
    data_shards_free(m->files);
    if (m->described)
        job_weights_done(&m->declared);
    model_free(m->model);
    data_tokenizer_free(m->tokenizer);
    pd_buf_done(&m->tokenizer_bytes);
    pd_buf_done(&m->ignored);
    free(m->found);
    free(m->seen);
    free(m->spec_text);
    return err;
}

enum pd_err weights_import(const struct weights_import *o, struct pd_buf *ret_json, struct pd_why *why)
{
    struct import m = {.o = o};
    struct train_file_info file;
    struct findings f;
    const char *serve;
    enum pd_err err;

    pd_buf_init(&m.tokenizer_bytes, 0);
    pd_buf_init(&m.ignored, 0);
    pd_json_open(&m.ignored, '[');
    err = open_files(&m, why);
    if (err == PD_OK)
        err = open_tokenizer(&m, why);
    if (err == PD_OK)
        err = describe(&m, why);
    if (err == PD_OK)
        err = model_new(&m.spec, &m.model, why);
    if (err != PD_OK)
        return import_done(&m, err);
    serve = data_st_meta(data_shards_first(m.files), "polyd.serve");
    m.averages = serve && !strcmp(serve, "ema");
    m.found = calloc(model_param_count(m.model) + 1, sizeof *m.found);
    m.seen = calloc(model_param_count(m.model) + 1, sizeof *m.seen);
    if (!m.found || !m.seen)
        return import_done(&m, pd_fail(why, PD_ERR_NOMEM, "no memory for the table of parameters"));
    findings_init(&f);
    match(&m, &f);
    if (f.missing_count || f.surplus_count || f.wrong_count) {
        write_findings(ret_json, &f);
    } else {
        err = settle_tokenizer(&m, why);
        if (err == PD_OK)
            err = write_file(&m, &file, why);
        if (err == PD_OK)
            write_answer(&m, &file, ret_json);
    }
    findings_done(&f);
    if (err == PD_OK && pd_buf_err(ret_json) != PD_OK)
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for the answer");
    return import_done(&m, err);
}
