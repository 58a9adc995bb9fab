/* daemon/worker/train/start.c: see start.h. */
#include "daemon/worker/train/start.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/digest/digest.h"
#include "daemon/worker/data/safetensors.h"

#define AVERAGES "ema."

enum pd_err start_open(const struct session *s, struct data_st **ret, struct pd_why *why)
{
    const struct job_start *start = &s->config->train.start;
    char path[4096], hex[DIGEST_SHA256_HEX_SIZE];
    struct pd_why reason = {""};
    struct data_st *st = NULL;
    const void *bytes;
    size_t len;
    enum pd_err err;

    if (!s->dirs->state)
        return pd_fail(why, PD_ERR_INVALID, "#/train/start: this run has no state folder");
    if (snprintf(path, sizeof path, "%s/%s", s->dirs->state, start->path) >= (int)sizeof path)
        return pd_fail(why, PD_ERR_LIMIT, "#/train/start/path: the path is too long");
    err = data_st_open(path, &st, &reason);
    if (err != PD_OK)
        return pd_fail(why, err, "#/train/start: the file cannot be read: %.300s", reason.text);
    bytes = data_st_bytes(st, &len);
    if (strcmp(digest_sha256_hex(bytes, len, hex), start->sha256) != 0) {
        data_st_free(st);
        return pd_fail(why, PD_ERR_CORRUPT, "#/train/start: the file has the digest %.12s, not %.12s", hex,
                       start->sha256);
    }
    *ret = st;
    return PD_OK;
}

/* ---- reporting ---- */

struct names {
    struct pd_buf text;
    size_t count;
};

static void add_name(struct names *n, const char *name)
{
    pd_buf_printf(&n->text, "%s%s", n->count++ ? ", " : "", name);
}

static enum pd_err report(const struct session *s, struct names n[3], size_t taken, struct pd_why *why)
{
    static const char *const words[] = {"not in the file", "reset to initial values",
                                        "in the file but not used"};
    const struct job_start *start = &s->config->train.start;
    char fields[200];
    struct pd_buf text;
    enum pd_err err = PD_OK;

    pd_buf_init(&text, 0);
    pd_buf_printf(&text, "%zu parameters begin from %s", taken, start->model ? start->model : start->path);
    for (int i = 0; i < 3; i++) {
        if (n[i].count)
            pd_buf_printf(&text, "; %s: %s", words[i], n[i].text.data);
        if (err == PD_OK)
            err = pd_buf_err(&n[i].text);
    }
    if (err == PD_OK)
        err = pd_buf_err(&text);
    snprintf(fields, sizeof fields, "sha256=%.12s taken=%zu missing=%zu reset=%zu unused=%zu optimizer=%d",
             start->sha256, taken, n[0].count, n[1].count, n[2].count, start->optimizer);
    if (err == PD_OK) {
        reporter_event(s->reporter, "started_from", fields, text.data);
        reporter_log(s->reporter, "%s", text.data);
    } else {
        (void)pd_fail(why, err, "no memory for the names of parameters");
    }
    pd_buf_done(&text);
    return err;
}

/* ---- parameters ---- */

static bool fits(const struct model_param *p, const struct data_st_tensor *t, struct pd_why *why)
{
    struct pk_shape shape = {.rank = t->rank};
    char have[96], want[96];

    memcpy(shape.dim, t->dim, sizeof shape.dim);
    if (pk_shape_equal(&shape, &p->shape))
        return true;
    (void)pd_fail(why, PD_ERR_INVALID,
                  "#/train/start: '%.80s' has the shape %s, the network needs %s; list it in "
                  "train.start.reset to initialise it",
                  t->name, pk_shape_text(&shape, have, sizeof have),
                  pk_shape_text(&p->shape, want, sizeof want));
    return false;
}

/* The name of a tensor that may be a parameter; NULL: it is a state, or not what is taken. */
static const char *served_name(const char *name, bool averages)
{
    const bool average = !strncmp(name, AVERAGES, strlen(AVERAGES));

    if (!strncmp(name, "optim.", 6) || !strncmp(name, "polyd.", 6) || average != averages)
        return NULL;
    return average ? name + strlen(AVERAGES) : name;
}

enum pd_err start_params(const struct session *s, struct model_store *store, const struct data_st *st,
                         bool *ret_taken, struct pd_why *why)
{
    const struct job_start *start = &s->config->train.start;
    const struct model *m = s->setup.model;
    const char *serve = data_st_meta(st, "polyd.serve");
    /* A run that goes on with its optimiser goes on with what that has made. */
    const bool averages = serve && !strcmp(serve, "ema") && !start->optimizer;
    bool *seen = calloc(model_param_count(m) + 1, sizeof *seen);
    struct names names[3] = {{.count = 0}};
    size_t taken = 0, i;
    enum pd_err err = PD_OK;

    for (i = 0; i < 3; i++)
        pd_buf_init(&names[i].text, 0);
    if (!seen)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the table of parameters");
    for (size_t k = 0; k < data_st_count(st) && err == PD_OK; k++) {
        const struct data_st_tensor *t = data_st_at(st, k);
        const char *name = served_name(t->name, averages);

        if (!name)
            continue;
        if (model_tensor_of(m, name, &i) != MODEL_TENSOR_PARAM || seen[i] ||
            model_name_listed(start->reset, model_param(m, i)->name))
            add_name(&names[2], t->name);
        else if (!fits(model_param(m, i), t, why))
            err = PD_ERR_INVALID;
        else if ((err = model_store_set(store, i, t, why)) == PD_OK)
            taken += seen[i] = true;
    }
    for (i = 0; i < model_param_count(m) && err == PD_OK; i++)
        if (!seen[i])
            add_name(&names[model_name_listed(start->reset, model_param(m, i)->name)],
                     model_param(m, i)->name);
    if (err == PD_OK && !taken)
        err = pd_fail(why, PD_ERR_INVALID, "#/train/start: the file has no parameter of this network");
    if (err == PD_OK)
        err = report(s, names, taken, why);
    if (err == PD_OK && ret_taken)
        memcpy(ret_taken, seen, model_param_count(m) * sizeof *seen);
    for (i = 0; i < 3; i++)
        pd_buf_done(&names[i].text);
    free(seen);
    return err;
}

/* ---- the optimiser ---- */

enum pd_err start_states(const struct session *s, const struct data_st *st, int64_t *ret_applied,
                         struct pd_why *why)
{
    const char *name = data_st_meta(st, "polyd.optimizer"), *own = s->setup.optim->graph.name;
    const char *applied = data_st_meta(st, "polyd.applied"),
               *before = data_st_meta(st, "polyd.applied_before");

    if (!name || !applied)
        return pd_fail(why, PD_ERR_INVALID, "#/train/start/optimizer: the file has no optimiser state");
    if (strcmp(name, own) != 0)
        return pd_fail(why, PD_ERR_INVALID,
                       "#/train/start/optimizer: the file has the state of %.40s, this run uses %s", name,
                       own);
    *ret_applied = strtoll(applied, NULL, 10) + (before ? strtoll(before, NULL, 10) : 0);
    return PD_OK;
}
