/* The serve role for images and texts to classes: small requests share a batch, a large one takes turns by
 * slices. */
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/process/role_serve_internal.h"
#include "kernels/base/clock.h"

/* How an element of a tensor of BYTES becomes a sample; `to` has room for one. */
struct element {
    const char *what; /* for people */
    size_t bytes;     /* of a sample */
    int64_t most;     /* in one request */
    enum pd_err (*read)(const struct serve *s, const void *bytes, size_t len, void *to, struct pd_why *why);
};

static enum pd_err read_picture(const struct serve *s, const void *bytes, size_t len, void *to,
                                struct pd_why *why)
{
    return serve_picture_read(s, bytes, len, to, why);
}

static enum pd_err read_text(const struct serve *s, const void *bytes, size_t len, void *to,
                             struct pd_why *why)
{
    return serve_text_read(s, bytes, len, to, why);
}

static enum pd_err read_elements(struct role *r, struct item *it, const struct element *e, struct pd_why *why)
{
    const struct wire_tensor *t = &it->req->tensors[0];
    size_t left = t->bytes;
    const char *at = t->data;
    enum pd_err err = PD_OK;

    if (t->rank != 1 || t->shape[0] < 1 || t->shape[0] > e->most)
        return pd_fail(why, PD_ERR_INVALID, "input '%s' of BYTES must have the shape [n], 1 <= n <= %lld",
                       t->name, (long long)e->most);
    for (int64_t i = 0; i < t->shape[0] && err == PD_OK; i++) {
        struct pd_why inner = {""};
        uint32_t len = 0;
        void *to;

        if (left >= sizeof len)
            memcpy(&len, at, sizeof len);
        if (left < sizeof len || len > left - sizeof len)
            return pd_fail(why, PD_ERR_INVALID, "input '%s': element %lld exceeds the input", t->name,
                           (long long)i);
        to = pd_buf_reserve(&it->prepared, e->bytes);
        if (!to)
            return pd_fail(why, PD_ERR_NOMEM, "no memory for %lld %ss", (long long)t->shape[0], e->what);
        err = e->read(r->model, at + sizeof len, len, to, &inner);
        if (err != PD_OK)
            return pd_fail(why, err, "input '%s', %s %lld: %s", t->name, e->what, (long long)i, inner.text);
        at += sizeof len + len;
        left -= sizeof len + len;
    }
    if (left)
        return pd_fail(why, PD_ERR_INVALID, "input '%s' has %zu bytes after its last element", t->name, left);
    it->images = t->shape[0];
    it->sample_bytes = e->bytes;
    return PD_OK;
}

/* Rows of ids, INT32 or INT64. */
static enum pd_err read_ids(struct role *r, struct item *it, struct pd_why *why)
{
    const struct wire_tensor *t = &it->req->tensors[0];
    const bool wide = strcmp(t->dtype, "INT64") == 0;
    const size_t size = wide ? sizeof(int64_t) : sizeof(int32_t),
                 bytes = serve_text_ints(r->model) * sizeof(int32_t);
    const int64_t most = serve_texts_max(r->model);
    int64_t *row = NULL;
    enum pd_err err = PD_OK;

    if (!wide && strcmp(t->dtype, "INT32") != 0)
        return pd_fail(why, PD_ERR_INVALID, "input 'tokens' must be INT32 or INT64, not %s", t->dtype);
    if (t->rank != 2 || t->shape[0] < 1 || t->shape[0] > most || t->shape[1] < 1 ||
        (uint64_t)t->shape[1] > t->bytes / size / (uint64_t)t->shape[0] ||
        t->bytes != (size_t)(t->shape[0] * t->shape[1]) * size)
        return pd_fail(
            why, PD_ERR_INVALID,
            "input 'tokens' must have the shape [n, tokens], 1 <= n <= %lld, with n x tokens numbers",
            (long long)most);
    row = calloc((size_t)t->shape[1], sizeof *row);
    if (!row)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for %lld tokens", (long long)t->shape[1]);
    for (int64_t i = 0; i < t->shape[0] && err == PD_OK; i++) {
        const char *from = (const char *)t->data + (size_t)(i * t->shape[1]) * size;
        struct pd_why inner = {""};
        void *to = pd_buf_reserve(&it->prepared, bytes);

        for (int64_t k = 0; k < t->shape[1]; k++) {
            int32_t narrow = 0;

            memcpy(wide ? (void *)&row[k] : (void *)&narrow, from + (size_t)k * size, size);
            if (!wide)
                row[k] = narrow;
        }
        err = to ? serve_ids_read(r->model, row, (size_t)t->shape[1], to, &inner)
                 : pd_fail(&inner, PD_ERR_NOMEM, "no memory for a text");
        if (err != PD_OK)
            (void)pd_fail(why, err, "input 'tokens', row %lld: %s", (long long)i, inner.text);
    }
    free(row);
    it->images = t->shape[0];
    it->sample_bytes = bytes;
    return err;
}

/* Unless outputs are named, what the model lacks is left out. */
static enum pd_err read_params(const struct role *r, struct item *it, struct pd_why *why)
{
    enum pd_err err = serve_params_infer(it->req->json, it->req->json_len, &it->params, why);

    if (err == PD_OK && it->params.outputs != SERVE_OUT_ALL && it->params.outputs & SERVE_OUT_LABEL &&
        !r->info->labels)
        err = pd_fail(why, PD_ERR_INVALID, "there is no output 'label': the model has no names of classes");
    return err;
}

static enum pd_err read_texts(struct role *r, struct item *it, struct pd_why *why)
{
    const struct serve_request *req = it->req;
    const struct element e = {.what = "text",
                              .bytes = serve_text_ints(r->model) * sizeof(int32_t),
                              .most = serve_texts_max(r->model),
                              .read = read_text};
    enum pd_err err = read_params(r, it, why);

    if (err != PD_OK)
        return err;
    if (req->count == 1 && strcmp(req->tensors[0].name, "tokens") == 0)
        return read_ids(r, it, why);
    if (req->count != 1 || strcmp(req->tensors[0].name, "text") != 0)
        return pd_fail(why, PD_ERR_INVALID, "this model takes one input, 'text' or 'tokens'");
    if (strcmp(req->tensors[0].dtype, "BYTES") != 0)
        return pd_fail(why, PD_ERR_INVALID, "input 'text' must be BYTES, not %s", req->tensors[0].dtype);
    return read_elements(r, it, &e, why);
}

static enum pd_err read_images(struct role *r, struct item *it, struct pd_why *why)
{
    const struct serve_request *req = it->req;
    const struct serve_info *info = r->info;
    const struct wire_tensor *t = &req->tensors[0];
    const int64_t want[3] = {info->channels, info->height, info->width};
    int64_t elements = info->channels * info->height * info->width;
    bool bytes, shape;
    enum pd_err err = read_params(r, it, why);

    if (err != PD_OK)
        return err;
    if (req->count != 1 || strcmp(t->name, "image") != 0)
        return pd_fail(why, PD_ERR_INVALID, "this model takes one input, 'image'");
    if (strcmp(t->dtype, "BYTES") == 0)
        return read_elements(r, it,
                             &(struct element){.what = "picture",
                                               .bytes = (size_t)elements,
                                               .most = r->info->batch_max,
                                               .read = read_picture},
                             why);
    bytes = strcmp(t->dtype, "UINT8") == 0;
    if (!bytes && strcmp(t->dtype, "FP32") != 0)
        return pd_fail(why, PD_ERR_INVALID, "input 'image' must be FP32, UINT8 or BYTES, not %s", t->dtype);
    shape = t->rank == 4 && t->shape[0] >= 1 && t->shape[0] <= (int64_t)ROLE_SERVE_COST;
    for (int i = 0; shape && i < 3; i++)
        shape = t->shape[i + 1] == want[i];
    if (!shape)
        return pd_fail(why, PD_ERR_INVALID,
                       "input 'image' must have the shape [n,%lld,%lld,%lld], 1 <= n <= %u",
                       (long long)want[0], (long long)want[1], (long long)want[2], ROLE_SERVE_COST);
    if (t->bytes != (size_t)(t->shape[0] * elements) * (bytes ? 1 : sizeof(float)))
        return pd_fail(why, PD_ERR_INVALID, "input 'image' has %zu bytes, which do not match its shape",
                       t->bytes);
    it->images = t->shape[0];
    it->sample_bytes = (size_t)elements * (bytes ? 1 : sizeof(float));
    return PD_OK;
}

static void reply_scores(struct role *r, struct item *it, const struct serve_scores *scores, int64_t first,
                         int64_t batch)
{
    size_t n = (size_t)it->images, classes = (size_t)r->info->outputs, row = classes * sizeof(float);
    struct wire_tensor out[4];
    struct pd_buf labels;
    struct wire_timing timing = role_timing(it, (uint64_t)batch, 0);
    struct serve_result part = {.tensors = out, .last = true, .timing = &timing};

    if (it->params.outputs & SERVE_OUT_LOGITS)
        out[part.count++] = role_tensor("logits", "FP32", scores->logits + (size_t)first * classes, n * row,
                                        it->images, r->info->outputs);
    if (it->params.outputs & SERVE_OUT_PROBABILITIES)
        out[part.count++] =
            role_tensor("probabilities", "FP32", scores->probabilities + (size_t)first * classes, n * row,
                        it->images, r->info->outputs);
    if (it->params.outputs & SERVE_OUT_CLASS)
        out[part.count++] =
            role_tensor("class", "INT64", scores->classes + first, n * sizeof(int64_t), it->images, -1);
    pd_buf_init(&labels, 0);
    if (it->params.outputs & SERVE_OUT_LABEL && r->info->labels) {
        for (size_t i = 0; i < n; i++) {
            int64_t c = scores->classes[(size_t)first + i];
            const char *name = c >= 0 ? r->info->labels[c] : "";
            uint32_t len = (uint32_t)strlen(name);

            pd_buf_append(&labels, &len, sizeof len);
            pd_buf_append(&labels, name, len);
        }
        if (pd_buf_err(&labels) == PD_OK)
            out[part.count++] = role_tensor("label", "BYTES", labels.data, labels.len, it->images, -1);
    }
    r->host->reply(r->host->ctx, it->req, &part);
    pd_buf_done(&labels);
}

static enum pd_err scores_new(const struct role *r, int64_t images, struct serve_scores *ret,
                              struct pd_why *why)
{
    size_t row = (size_t)r->info->outputs * sizeof(float);

    ret->logits = malloc((size_t)images * row);
    ret->probabilities = malloc((size_t)images * row);
    ret->classes = malloc((size_t)images * sizeof(int64_t));
    if (!ret->logits || !ret->probabilities || !ret->classes)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the scores of %lld images", (long long)images);
    return PD_OK;
}

static struct serve_samples samples_of(const struct item *it)
{
    const struct wire_tensor *t = &it->req->tensors[0];

    return (struct serve_samples){.data = it->prepared.len ? it->prepared.data : t->data,
                                  .bytes = it->prepared.len || strcmp(t->dtype, "UINT8") == 0,
                                  .count = it->images};
}

static void classify_items(struct role *r, size_t count, int64_t images)
{
    struct serve_scores scores = {.logits = NULL};
    struct pd_why why = {{0}};
    enum pd_err err;
    int64_t first = 0;

    for (size_t i = 0; i < count; i++) {
        r->batch[i]->begun_us = pd_clock_mono_us();
        r->batch_samples[i] = samples_of(r->batch[i]);
    }
    err = scores_new(r, images, &scores, &why);
    if (err == PD_OK)
        err = serve_classify(r->model, r->batch_samples, count, &scores, &why);
    if (err != PD_OK && count > 1) {
        /* One bad picture must not spoil its neighbours' answers: each again, alone. */
        for (size_t i = 0; i < count; i++) {
            struct item *it = r->batch[0] = r->batch[i];

            classify_items(r, 1, it->images);
        }
        goto out;
    }
    for (size_t i = 0; i < count; i++) {
        struct item *it = r->batch[i];

        if (err != PD_OK) {
            role_item_fail(r, it, err, why.text);
            continue;
        }
        r->kind->reply(r, it, &scores, first, images);
        first += it->images;
        role_item_free(r, it);
    }
out:
    free(scores.logits);
    free(scores.probabilities);
    free(scores.classes);
}

/* The next images of a large request, at most a batch of them. */
static enum pd_err score_more(struct role *r, struct item *it, struct pd_why *why)
{
    size_t row = (size_t)r->info->outputs, done = (size_t)it->scored;
    struct serve_scores to = {.logits = it->scores.logits + done * row,
                              .probabilities = it->scores.probabilities + done * row,
                              .classes = it->scores.classes + done};
    struct serve_samples part = samples_of(it);
    enum pd_err err;

    part.first = it->scored;
    part.data = (const char *)part.data + done * it->sample_bytes;
    part.count -= it->scored;
    if (part.count > (int64_t)r->info->batch_max)
        part.count = r->info->batch_max;
    err = serve_classify(r->model, &part, 1, &to, why);
    it->scored += part.count;
    return err;
}

/* One batch for the request at the head of the large ones, which goes to their end. So what came later waits
 * for one batch, not for thousands of images, and several large ones advance concurrently. */
static void run_slice(struct role *r)
{
    struct item *it = r->large, **end = &r->large;
    struct pd_why why = {{0}};
    enum pd_err err = role_unwanted(r, it, &why);

    r->large = it->next;
    it->next = NULL;
    if (err == PD_OK && !it->begun_us) {
        it->begun_us = pd_clock_mono_us();
        err = scores_new(r, it->images, &it->scores, &why);
    }
    if (err == PD_OK)
        err = score_more(r, it, &why);
    if (err == PD_OK && it->scored < it->images) {
        while (*end)
            end = &(*end)->next;
        *end = it;
        return;
    }
    r->large_count--;
    r->large_images -= (uint64_t)it->images;
    if (err != PD_OK) {
        role_item_fail(r, it, err, why.text);
    } else {
        r->kind->reply(r, it, &it->scores, 0, r->info->batch_max);
        role_item_free(r, it);
    }
}

/* How long the oldest request still waits for company: 0 = a batch is to be run now. */
int64_t role_samples_company_us(struct role *r)
{
    const struct item *it = serve_queue_peek(r->queue);
    int64_t left;

    if (!it || r->info->apart || serve_queue_cost(r->queue) >= r->info->batch_max)
        return 0;
    left = it->arrived_us + r->host->delay_us - pd_clock_mono_us();
    return left > 0 ? left : 0;
}

/* Takes as many waiting requests as fit one batch and answers them. */
static void run_small(struct role *r)
{
    size_t count = 0;
    int64_t images = 0;
    struct item *it;

    while (count < ROLE_SERVE_QUEUE && (it = serve_queue_peek(r->queue))) {
        if (count && (r->info->apart || images + it->images > (int64_t)r->info->batch_max))
            break;
        r->batch[count++] = serve_queue_pop(r->queue);
        images += it->images;
    }
    if (count) {
        r->host->load(r->host->ctx, serve_queue_count(r->queue) + r->large_count, (uint32_t)count);
        classify_items(r, count, images);
    }
}

void role_samples_run(struct role *r)
{
    if (!role_samples_company_us(r))
        run_small(r);
    if (r->large) {
        r->host->load(r->host->ctx, serve_queue_count(r->queue) + r->large_count - 1, 1);
        run_slice(r);
    }
}

/* The large ones have a bound of their own: they do not fill the queue for the others. */
static enum pd_err push_large(struct role *r, struct item *it)
{
    struct item **end = &r->large;

    if (r->large_count == ROLE_SERVE_QUEUE ||
        (r->large_count && r->large_images + (uint64_t)it->images > ROLE_SERVE_COST))
        return PD_ERR_BUSY;
    while (*end)
        end = &(*end)->next;
    *end = it;
    r->large_count++;
    r->large_images += (uint64_t)it->images;
    return PD_OK;
}

enum pd_err role_samples_push(struct role *r, struct item *it)
{
    if (it->images > (int64_t)r->info->batch_max)
        return push_large(r, it);
    return serve_queue_push(r->queue, it, (uint64_t)it->images, it->req->deadline_us);
}

const struct role_kind role_kind_classify = {
    .form = &serve_kind_classify,
    .request = "infer",
    .refusal = "classifier: it does not complete text",
    .read = read_images,
    .push = role_samples_push,
    .company_us = role_samples_company_us,
    .run = role_samples_run,
    .reply = reply_scores,
};

const struct role_kind role_kind_classify_text = {
    .form = &serve_kind_classify_text,
    .request = "infer",
    .refusal = "classifier of texts: it does not complete them",
    .read = read_texts,
    .push = role_samples_push,
    .company_us = role_samples_company_us,
    .run = role_samples_run,
    .reply = reply_scores,
};
