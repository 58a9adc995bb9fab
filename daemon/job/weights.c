/* What a file of weights says about itself: the part of a resolved document that describes a network and how data
 * reach it. */
#include <string.h>

#include "daemon/job/internal.h"

/* No path, seed, length or rate: those belong to a run. */
static const char *const kept[] = {"/data/dataset",           "/data/image_size",
                                   "/data/context",           "/data/tokenizer",
                                   "/data/augment/eval_crop", "/data/augment/interpolation",
                                   "/train/precision",        "/schema"};

static bool keep(json_t *to, json_t *from, const char *pointer)
{
    json_t *v = job_json_at(from, pointer), *copy;

    if (!v)
        return true;
    copy = job_json_copy(v);
    return copy && job_json_put(to, pointer, copy);
}

enum pd_err job_weights_document(const char *json, size_t len, struct pd_buf *ret_json, struct pd_why *why)
{
    static const char *const sections[] = {"/model", "/attention", "/norm"};
    json_t *doc = NULL, *to = json_object();
    enum pd_err err = job_json_load(json, len, &doc, why);
    bool ok = err == PD_OK && to;

    for (size_t i = 0; ok && i < sizeof sections / sizeof *sections; i++)
        ok = keep(to, doc, sections[i]);
    for (size_t i = 0; ok && i < sizeof kept / sizeof *kept; i++)
        ok = keep(to, doc, kept[i]);
    if (ok)
        job_json_write(to, ret_json);
    if (err == PD_OK && (!ok || pd_buf_err(ret_json) != PD_OK))
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for the description of the network");
    json_decref(to);
    json_decref(doc);
    return err;
}
