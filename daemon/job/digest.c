/* Digests of resolved documents: of all of one, of what changes its plan, of what decides the numbers of its
 * run. */
#include <stdio.h>
#include <string.h>

#include "daemon/digest/digest.h"
#include "daemon/job/internal.h"

enum pd_err job_tree_digest(const json_t *v, const char *facts, char out[JOB_DIGEST_SIZE], struct pd_why *why)
{
    struct pd_buf b;
    enum pd_err err;

    pd_buf_init(&b, 0);
    job_json_write(v, &b);
    if (facts)
        pd_buf_printf(&b, "\n%s", facts);
    err = pd_buf_err(&b);
    if (err != PD_OK)
        (void)pd_fail(why, err, "no memory for a digest");
    else
        digest_sha256_hex(b.data, b.len, out);
    pd_buf_done(&b);
    return err;
}

enum pd_err job_config_digest(const char *json, size_t len, char out[JOB_DIGEST_SIZE], struct pd_why *why)
{
    json_t *v = NULL;
    enum pd_err err = job_json_load(json, len, &v, why);

    if (err == PD_OK)
        err = job_tree_digest(v, NULL, out, why);
    json_decref(v);
    return err;
}

/* Takes the key at the pointer out of its object. */
void job_json_forget(json_t *root, const char *pointer)
{
    const char *slash = strrchr(pointer, '/');
    char parent[128];

    snprintf(parent, sizeof parent, "%.*s", (int)(slash - pointer), pointer);
    json_object_del(job_json_at(root, parent), slash + 1);
}

enum pd_err job_plan_digest(const char *json, size_t len, const char *facts, char out[JOB_DIGEST_SIZE],
                            struct pd_why *why)
{
    json_t *v = NULL;
    enum pd_err err = job_json_load(json, len, &v, why);

    if (err == PD_OK && !json_is_object(v))
        err = pd_fail(why, PD_ERR_CORRUPT, "the document must be an object, not %s", job_json_kind(v));
    if (err == PD_OK) {
        for (size_t i = 0; i < job_field_count; i++) {
            if (job_fields[i].flags & JOB_F_NOPLAN)
                job_json_forget(v, job_fields[i].pointer);
        }
        err = job_tree_digest(v, facts ? facts : "", out, why);
    }
    json_decref(v);
    return err;
}

/* Whether the row's value in the resolved document decides what is computed: it has an effect and is not the
 * default. A default is left out, so that checkpoints written before the row still fit. A row whose default is
 * computed (def NULL) has none to leave out: if such a row is added, the old digest (train/digest.c) must be
 * what old checkpoints are compared with. */
static bool decides(const struct job_field *f, const struct job_run *run, bool earlier, const json_t *v)
{
    bool (*const test)(const struct job_run *r) = earlier && f->in_earlier ? f->in_earlier
                                                  : f->in_digest           ? f->in_digest
                                                                           : f->useful;
    json_t *def;
    bool same;

    if (!v || f->flags & JOB_F_OFF_TRAJECTORY || (test && !test(run)))
        return false;
    if (f->type == JOB_T_OBJECT) /* that it is there; its members say the rest */
        return json_is_object(v);
    def = f->def ? job_json_literal(f->def) : NULL;
    same = def && json_equal(def, v);
    json_decref(def);
    return !same;
}

enum pd_err job_trajectory(const struct job_doc *job, bool earlier, char out[JOB_DIGEST_SIZE],
                           struct pd_why *why)
{
    struct pd_buf text, resolved;
    json_t *v = NULL;
    enum pd_err err;

    pd_buf_init(&text, 0);
    pd_buf_init(&resolved, 0);
    err = job_run_resolve(job, 0, &resolved, why);
    if (err == PD_OK)
        err = job_json_load(resolved.data, resolved.len, &v, why);
    for (size_t i = 0; err == PD_OK && i < job_field_count; i++) {
        const json_t *value = job_json_at(v, job_fields[i].pointer);

        if (!decides(&job_fields[i], job_first(job), earlier, value))
            continue;
        pd_buf_printf(&text, "%s=", job_fields[i].pointer);
        if (job_fields[i].type != JOB_T_OBJECT)
            job_json_write(value, &text);
        pd_buf_str(&text, "\n");
    }
    if (err == PD_OK) {
        err = pd_buf_err(&text);
        if (err == PD_OK)
            digest_sha256_hex(text.data ? text.data : "", text.len, out);
        else
            (void)pd_fail(why, err, "no memory for a digest");
    }
    json_decref(v);
    pd_buf_done(&resolved);
    pd_buf_done(&text);
    return err;
}
