/* The serve role for points to the solution of an equation. They go through the graph in batches, as the samples of a classifier do. */
#include <string.h>

#include "daemon/worker/process/role_serve_internal.h"
#include "kernels/base/json.h"

static enum pd_err read_points(struct role *r, struct item *it, struct pd_why *why)
{
    const struct serve_request *req = it->req;
    const struct wire_tensor *t = &req->tensors[0];
    enum pd_err err = serve_params_field(req->json, req->json_len, &it->params, why);

    (void)r;
    if (err != PD_OK)
        return err;
    if (req->count != 1 || strcmp(t->name, "points") != 0)
        return pd_fail(why, PD_ERR_INVALID, "this model takes one input, 'points'");
    if (strcmp(t->dtype, "FP32") != 0)
        return pd_fail(why, PD_ERR_INVALID, "input 'points' must be FP32, not %s", t->dtype);
    if (t->rank != 2 || t->shape[1] != 2 || t->shape[0] < 1 || t->shape[0] > (int64_t)ROLE_SERVE_COST)
        return pd_fail(why, PD_ERR_INVALID,
                       "input 'points' must have the shape [n,2], rows of x and t, 1 <= n <= %u",
                       ROLE_SERVE_COST);
    it->sample_bytes = 2 * sizeof(float);
    if (t->bytes != (size_t)t->shape[0] * it->sample_bytes)
        return pd_fail(why, PD_ERR_INVALID, "input 'points' has %zu bytes, which do not match its shape",
                       t->bytes);
    it->images = t->shape[0];
    return PD_OK;
}

/* Says in the answer's parameters how many points lie outside the domain. */
static void warn(const struct role *r, const struct item *it, struct pd_buf *out)
{
    int64_t first = 0, outside = serve_points_outside(r->model, it->req->tensors[0].data, it->images, &first);

    if (!outside)
        return;
    pd_json_open(out, '{');
    pd_json_key(out, "warning");
    pd_json_strf(out,
                 "%lld of %lld points lie outside the domain that the model was trained on, 0 <= x <= %.6g "
                 "and 0 <= t <= %.6g; their u is extrapolated. The first is point %lld",
                 (long long)outside, (long long)it->images, r->info->domain[0], r->info->domain[1],
                 (long long)first);
    pd_json_kv_int(out, "outside", outside);
    pd_json_close(out, '}');
}

static void reply_field(struct role *r, struct item *it, const struct serve_scores *scores, int64_t first,
                        int64_t batch)
{
    const struct wire_tensor u =
        role_tensor("u", "FP32", scores->logits + first, (size_t)it->images * sizeof(float), it->images, -1);
    const struct wire_timing timing = role_timing(it, (uint64_t)batch, 0);
    struct serve_result part = {.tensors = &u, .count = 1, .last = true, .timing = &timing};
    struct pd_buf parameters;

    pd_buf_init(&parameters, 0);
    warn(r, it, &parameters);
    if (pd_buf_err(&parameters) != PD_OK)
        part = (struct serve_result){.err = PD_ERR_NOMEM, .text = "no memory for a warning", .last = true};
    else
        part.json = parameters.len ? parameters.data : NULL;
    r->host->reply(r->host->ctx, it->req, &part);
    pd_buf_done(&parameters);
}

const struct role_kind role_kind_field = {
    .form = &serve_kind_field,
    .request = "infer",
    .refusal = "solution of an equation: it does not complete text",
    .read = read_points,
    .push = role_samples_push,
    .company_us = role_samples_company_us,
    .run = role_samples_run,
    .reply = reply_field,
};
