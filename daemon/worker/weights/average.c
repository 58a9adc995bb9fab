/* The mean of several checkpoints of one network, as a file of the registry.
 *
 *   files --> one network, one tokenizer --> each tensor: the sum in double, in the order of the files, divided by their
 *   number --> one file with the parameters' public names
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/digest/digest.h"
#include "daemon/worker/data/tokenizer.h"
#include "daemon/worker/model/model.h"
#include "daemon/worker/train/checkpoint.h"
#include "daemon/worker/weights/weights.h"
#include "kernels/base/json.h"

#define CHUNK 4096 /* elements at once */
#define META_MAX (MODEL_META_ITEMS + 8)

struct source {
    struct data_st *st;
    struct train_state state;
    bool averages; /* it serves its averaged weights */
};

struct average {
    struct source *files;
    size_t count;
    struct model_spec spec;
    struct train_tensor *tensors;
    const struct data_st_tensor **from; /* of each tensor those of the files, file by file */
    size_t tensor_count;
    struct data_st_meta_item meta[META_MAX];
    size_t meta_count;
};

/* ---- the files ---- */

static enum pd_err open_file(struct source *s, size_t i, const char *line, size_t len, struct pd_why *why)
{
    const size_t digits = DIGEST_SHA256_HEX_SIZE - 1;
    char path[4096], hex[DIGEST_SHA256_HEX_SIZE];
    struct pd_why reason = {""};
    const void *bytes;
    size_t size;
    enum pd_err err;

    if (len < digits + 2 || line[digits] != ' ' || len - digits - 1 >= sizeof path)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "weights average: line %zu is not a digest and a path",
                       i + 1);
    memcpy(path, line + digits + 1, len - digits - 1);
    path[len - digits - 1] = '\0';
    err = train_checkpoint_open(path, &s->st, &s->state, &reason);
    if (err != PD_OK)
        return pd_fail(why, err == PD_ERR_NOMEM ? err : PD_ERR_INVALID, "#/average/%zu: %.300s", i,
                       reason.text);
    bytes = data_st_bytes(s->st, &size);
    if (strncmp(digest_sha256_hex(bytes, size, hex), line, digits) != 0)
        return pd_fail(why, PD_ERR_INVALID,
                       "#/average/%zu: the file has changed since the request: its digest is %.12s", i, hex);
    s->averages = data_st_meta(s->st, "polyd.serve") && !strcmp(data_st_meta(s->st, "polyd.serve"), "ema");
    return PD_OK;
}

static enum pd_err open_files(struct average *a, const char *list, struct pd_why *why)
{
    enum pd_err err = PD_OK;

    a->files = calloc(WEIGHTS_AVERAGE_MAX, sizeof *a->files);
    if (!a->files)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the list of files");
    for (const char *line = list; *line && err == PD_OK;) {
        const char *end = strchrnul(line, '\n');

        if (a->count == WEIGHTS_AVERAGE_MAX)
            return pd_fail(why, PD_ERR_LIMIT, "#/average: more than %d files", WEIGHTS_AVERAGE_MAX);
        err = open_file(&a->files[a->count], a->count, line, (size_t)(end - line), why);
        a->count++;
        line = *end ? end + 1 : end;
    }
    if (err == PD_OK && a->count < 2)
        err = pd_fail(why, PD_ERR_INVALID, "#/average: an average needs at least two files");
    return err;
}

/* ---- what they have in common ---- */

static bool same_text(const struct data_st *a, const struct data_st *b, const char *key)
{
    const char *x = data_st_meta(a, key), *y = data_st_meta(b, key);

    return x == y || (x && y && !strcmp(x, y));
}

static bool same_bytes(const struct data_st_tensor *x, const struct data_st_tensor *y)
{
    return x == y || (x && y && x->bytes == y->bytes && !memcmp(x->data, y->data, x->bytes));
}

/* Each file must have the network, the input and the tokenizer of the first. */
static enum pd_err compare(const struct average *a, struct pd_why *why)
{
    static const char *const inputs[] = {"polyd.data.kind", "polyd.data.mean", "polyd.data.std",
                                         "polyd.data.classes"};
    const struct data_st *first = a->files[0].st;

    for (size_t i = 1; i < a->count; i++) {
        const struct data_st *st = a->files[i].st;
        struct model_spec spec;
        const char *key;
        struct pd_why reason = {""};

        if (model_spec_from_meta(st, &spec, &reason) != PD_OK)
            return pd_fail(why, PD_ERR_INVALID, "#/average/%zu: %.300s", i, reason.text);
        key = model_spec_differs(&a->spec, &spec);
        for (size_t k = 0; !key && k < sizeof inputs / sizeof *inputs; k++)
            key = same_text(first, st, inputs[k]) ? NULL : inputs[k];
        if (key) {
            const char *has = data_st_meta(st, key), *wanted = data_st_meta(first, key);

            return pd_fail(why, PD_ERR_INVALID,
                           "#/average/%zu: has another network: its %.60s is %.80s, %.80s in the first file",
                           i, key + strlen("polyd."), has ? has : "not set", wanted ? wanted : "not set");
        }
        if (!same_bytes(data_st_find(first, DATA_TOKENIZER_TENSOR), data_st_find(st, DATA_TOKENIZER_TENSOR)))
            return pd_fail(why, PD_ERR_INVALID,
                           "#/average/%zu: its tokenizer differs from that of the first file", i);
    }
    return PD_OK;
}

/* ---- the tensors ---- */

/* The name of a tensor that the file serves, NULL of others. */
static const char *served_name(const struct source *s, const char *name)
{
    const bool average = !strncmp(name, "ema.", 4);

    if (!strncmp(name, "optim.", 6) || !strncmp(name, "polyd.", 6) || average != s->averages)
        return NULL;
    return average ? name + 4 : name;
}

static bool is_float(const struct data_st_tensor *t)
{
    return t->dtype == DATA_ST_F32 || t->dtype == DATA_ST_F16 || t->dtype == DATA_ST_BF16 ||
           t->dtype == DATA_ST_F64;
}

static size_t served_count(const struct source *s)
{
    size_t n = 0;

    for (size_t i = 0; i < data_st_count(s->st); i++)
        n += served_name(s, data_st_at(s->st, i)->name) != NULL;
    return n;
}

static enum pd_err find_others(struct average *a, const char *name, const struct data_st_tensor **from,
                               struct pd_why *why)
{
    for (size_t i = 1; i < a->count; i++) {
        const struct source *s = &a->files[i];
        char own[256];

        snprintf(own, sizeof own, "%s%.240s", s->averages ? "ema." : "", name);
        from[i] = data_st_find(s->st, own);
        if (!from[i])
            return pd_fail(why, PD_ERR_INVALID, "#/average/%zu: lacks '%.80s' of the first file", i, name);
        if (from[i]->rank != from[0]->rank ||
            memcmp(from[i]->dim, from[0]->dim, sizeof from[i]->dim[0] * (size_t)from[i]->rank) != 0)
            return pd_fail(why, PD_ERR_INVALID,
                           "#/average/%zu: the shape of '%.80s' differs from that in the first file", i,
                           name);
        if (is_float(from[i]) != is_float(from[0]) && from[0]->rank) /* counts were F32 before 2026-12 */
            return pd_fail(why, PD_ERR_INVALID, "#/average/%zu: '%.80s' is %s, %s in the first file", i, name,
                           data_st_dtype_name(from[i]->dtype), data_st_dtype_name(from[0]->dtype));
    }
    return PD_OK;
}

static enum pd_err list_tensors(struct average *a, struct pd_why *why)
{
    const struct source *first = &a->files[0];
    const size_t most = data_st_count(first->st) + 1;
    enum pd_err err = PD_OK;

    a->tensors = calloc(most, sizeof *a->tensors);
    a->from = calloc(most * a->count, sizeof *a->from);
    if (!a->tensors || !a->from)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the table of tensors");
    for (size_t i = 1; i < a->count; i++)
        if (served_count(&a->files[i]) != served_count(first))
            return pd_fail(why, PD_ERR_INVALID, "#/average/%zu: has %zu tensors, the first file %zu", i,
                           served_count(&a->files[i]), served_count(first));
    for (size_t k = 0; k < data_st_count(first->st) && err == PD_OK; k++) {
        const struct data_st_tensor *t = data_st_at(first->st, k);
        const char *name = served_name(first, t->name);
        const struct data_st_tensor **from = a->from + a->tensor_count * a->count;
        struct train_tensor *to = &a->tensors[a->tensor_count];

        if (!name && strcmp(t->name, DATA_TOKENIZER_TENSOR) != 0)
            continue;
        to->st = *t;
        a->tensor_count++;
        if (!name)
            continue;
        to->st.name = name;
        from[0] = t;
        err = find_others(a, name, from, why);
        for (size_t i = 0; err == PD_OK && i < a->count && is_float(t); i++)
            if (!is_float(from[i]))
                t = from[i];
        if (!is_float(t)) { /* a count: that of the first file that has it as one */
            to->st = *t;
            to->st.name = name;
            continue;
        }
        to->st.dtype = t->dtype == DATA_ST_F64 ? DATA_ST_F64 : DATA_ST_F32;
        to->st.bytes = t->count * data_st_dtype_size(to->st.dtype);
        to->st.data = NULL;
        to->memory = from;
    }
    return err;
}

/* ---- the mean ---- */

/* Adds `count` elements of the tensor, from `at` on. */
static enum pd_err add(const struct data_st_tensor *t, uint64_t at, uint64_t count, double *sum,
                       struct pd_why *why)
{
    struct data_st_tensor part = *t;
    double values[CHUNK];
    enum pd_err err;

    part.data = (const uint8_t *)t->data + at * data_st_dtype_size(t->dtype);
    part.count = count;
    part.bytes = count * data_st_dtype_size(t->dtype);
    err = data_st_read_f64(&part, values, count, why);
    for (uint64_t i = 0; i < count && err == PD_OK; i++)
        sum[i] += values[i];
    return err;
}

/* Of the tensor whose sources `memory` lists: the means, as F64 or F32. */
static enum pd_err get(void *user, void *to, const void *memory, size_t bytes, struct pd_why *why)
{
    const struct average *a = user;
    const struct data_st_tensor *const *from = memory;
    const bool wide = from[0]->dtype == DATA_ST_F64;
    enum pd_err err = PD_OK;

    if (bytes != from[0]->count * (wide ? sizeof(double) : sizeof(float)))
        return pd_fail(why, PD_ERR_INTERNAL, "the mean of '%.80s' has another size", from[0]->name);
    for (uint64_t at = 0; at < from[0]->count && err == PD_OK; at += CHUNK) {
        const uint64_t count = from[0]->count - at < CHUNK ? from[0]->count - at : CHUNK;
        double sum[CHUNK] = {0};

        for (size_t i = 0; i < a->count && err == PD_OK; i++)
            err = add(from[i], at, count, sum, why);
        for (uint64_t i = 0; i < count && err == PD_OK; i++) {
            const double mean = sum[i] / (double)a->count;
            const float narrow = (float)mean;

            if (wide)
                memcpy((double *)to + at + i, &mean, sizeof mean);
            else
                memcpy((float *)to + at + i, &narrow, sizeof narrow);
        }
    }
    return err;
}

/* ---- the file ---- */

/* The network and what it reads, as the first file says it. */
static enum pd_err list_meta(struct average *a, struct pd_why *why)
{
    const struct data_st *st = a->files[0].st;

    for (size_t i = 0; i < data_st_meta_count(st); i++) {
        const char *value, *key = data_st_meta_at(st, i, &value);

        if (strncmp(key, "polyd.model.", 12) != 0 && strncmp(key, "polyd.data.", 11) != 0 &&
            strncmp(key, "polyd.formula", 13) != 0)
            continue;
        if (a->meta_count == META_MAX)
            return pd_fail(why, PD_ERR_LIMIT, "the first file describes its network with more than %d items",
                           META_MAX);
        a->meta[a->meta_count++] = (struct data_st_meta_item){key, value};
    }
    return PD_OK;
}

/* No run made these weights: of its state only the highest step remains. */
static struct train_state state_of(const struct average *a)
{
    struct train_state s = {.best_step = -1,
                            .loss_train = NAN,
                            .loss_val = NAN,
                            .metric_val = NAN,
                            .best_value = NAN,
                            .score = NAN,
                            .stop_best = NAN};

    for (size_t i = 0; i < a->count; i++)
        if (a->files[i].state.step > s.step)
            s.step = s.applied = a->files[i].state.step;
    return s;
}

static enum pd_err write_answer(struct average *a, const struct train_file_info *file, struct pd_buf *out,
                                struct pd_why *why)
{
    const struct data_st_tensor *own = data_st_find(a->files[0].st, DATA_TOKENIZER_TENSOR);
    struct data_tokenizer *tokenizer = NULL;
    char hex[DIGEST_SHA256_HEX_SIZE];
    uint64_t elements = 0;
    enum pd_err err = own ? data_tokenizer_load(own->data, (size_t)own->bytes, &tokenizer, why) : PD_OK;

    if (err != PD_OK)
        return err;
    for (size_t i = 0; i < a->tensor_count; i++)
        elements += strcmp(a->tensors[i].st.name, DATA_TOKENIZER_TENSOR) != 0 ? a->tensors[i].st.count : 0;
    pd_json_open(out, '{');
    pd_json_kv_uint(out, "bytes", file->bytes);
    pd_json_kv_str(out, "sha256", digest_hex(file->sha256, sizeof file->sha256, hex));
    pd_json_kv_int(out, "step", state_of(a).step);
    pd_json_kv_str(out, "tokenizer",
                   tokenizer       ? data_tokenizer_kind_name(data_tokenizer_kind(tokenizer))
                   : a->spec.vocab ? "bytes"
                                   : NULL);
    pd_json_kv_uint(out, "parameters", elements);
    pd_json_key(out, "ignored");
    pd_json_open(out, '[');
    pd_json_close(out, ']');
    pd_json_close(out, '}');
    data_tokenizer_free(tokenizer);
    return pd_buf_err(out) == PD_OK ? PD_OK : pd_fail(why, PD_ERR_NOMEM, "no memory for the answer");
}

enum pd_err weights_average(const char *to, const char *list, struct pd_buf *ret_json, struct pd_why *why)
{
    struct average a = {.count = 0};
    struct train_state state;
    struct train_file_info file;
    enum pd_err err = open_files(&a, list, why);

    if (err == PD_OK)
        err = model_spec_from_meta(a.files[0].st, &a.spec, why);
    if (err == PD_OK)
        err = compare(&a, why);
    if (err == PD_OK)
        err = list_tensors(&a, why);
    if (err == PD_OK)
        err = list_meta(&a, why);
    if (err == PD_OK) {
        state = state_of(&a);
        err = train_checkpoint_write(to, a.tensors, a.tensor_count, &state, a.meta, a.meta_count, get, &a,
                                     &file, why);
    }
    if (err == PD_OK)
        err = write_answer(&a, &file, ret_json, why);
    for (size_t i = 0; i < a.count; i++)
        data_st_free(a.files[i].st);
    free(a.files);
    free(a.tensors);
    free(a.from);
    return err;
}
