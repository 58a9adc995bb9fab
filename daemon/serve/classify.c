/* The classifier: images of one or many requests go through the graph in batches. A batch takes the smallest
 * planned size that holds it; rows beyond the images are zeros and their results are not looked at. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/serve/internal.h"

static size_t image_elements(const struct serve *s)
{
    return (size_t)(s->info.channels * s->info.height * s->info.width);
}

enum pd_err serve_classifier_open(struct serve *s, struct pd_why *why)
{
    const struct model_spec *spec = model_spec(s->model);
    size_t largest = s->info.batch_max;
    size_t input_bytes;
    enum pd_err err;

    if (spec->dtype != PK_F32)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "only models of element type f32 are served");
    s->info.channels = spec->channels;
    s->info.height = spec->image_h;
    s->info.width = spec->image_w;
    s->info.outputs = spec->classes;
    input_bytes = largest * image_elements(s) * sizeof(float);
    s->staging = calloc(largest * image_elements(s), sizeof *s->staging);
    s->results = calloc(largest * (size_t)spec->classes, sizeof *s->results);
    if (!s->staging || !s->results)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a batch of %zu images", largest);
    err = serve_alloc(s, input_bytes, &s->memory.inputs_bytes, &s->input, why);
    if (err == PD_OK)
        err = s->api->upload(s->backend, s->input, s->staging, input_bytes, why);
    for (size_t size = 1; err == PD_OK;) {
        struct pk_graph *graph = NULL;

        err = model_graph_classify(s->model, (int32_t)size, &graph, why);
        if (err == PD_OK)
            err = serve_bucket_add(s, graph, (int32_t)size, why);
        if (err == PD_OK)
            err = serve_fits(s, 0, why);
        if (err == PD_OK)
            err = pk_exec_bind(s->bucket[s->buckets - 1].exec, "input", s->input, why);
        if (err == PD_OK)
            err = pk_exec_run(s->bucket[s->buckets - 1].exec, why); /* warm-up */
        if (size == largest)
            break;
        size = size * 2 < largest ? size * 2 : largest;
    }
    return err;
}

/* The pixel that is wrong: the first that is not finite, else the first off the scale. */
static enum pd_err wrong_pixel(const float *pixels, size_t n, int64_t image, struct pd_why *why)
{
    for (size_t k = 0; k < n; k++)
        if (!isfinite(pixels[k]))
            return pd_fail(why, PD_ERR_INVALID, "image %lld has a pixel that is not finite",
                           (long long)image);
    for (size_t k = 0; k < n; k++)
        if (pixels[k] < SERVE_PIXEL_LOW || pixels[k] > SERVE_PIXEL_HIGH)
            return pd_fail(
                why, PD_ERR_INVALID,
                "image %lld has a pixel of %g: input 'image' of FP32 is on the scale 0..1, not 0..255 "
                "and not normalised (the model subtracts mean and divides by deviation itself); send "
                "0..255 as UINT8",
                (long long)image, (double)pixels[k]);
    return pd_fail(why, PD_ERR_INTERNAL, "image %lld was found wrong and is not", (long long)image);
}

/* Writes image `i` of the part, normalised, to `to`. */
static enum pd_err put_image(const struct serve *s, const struct serve_images *part, int64_t i, float *to,
                             struct pd_why *why)
{
    size_t n = image_elements(s), plane = n / (size_t)s->info.channels;

    if (part->bytes) {
        const uint8_t *from = (const uint8_t *)part->data + (size_t)i * n;

        /* The very expression of training (data_info), so that a byte gives the same float there and here. */
        for (size_t k = 0; k < n; k++)
            to[k] = ((float)from[k] / 255.0f - s->mean[k / plane]) / s->std[k / plane];
    } else {
        const char *from = (const char *)part->data + (size_t)i * n * sizeof(float);
        int wrong = 0;

        memcpy(to, from, n * sizeof(float)); /* a tensor of the wire may lie anywhere */
        for (size_t k = 0; k < n; k++)
            wrong |= !(to[k] >= SERVE_PIXEL_LOW && to[k] <= SERVE_PIXEL_HIGH); /* NaN is neither */
        if (wrong)
            return wrong_pixel(to, n, part->first + i, why);
        for (size_t k = 0; k < n; k++)
            to[k] = (to[k] - s->mean[k / plane]) / s->std[k / plane];
    }
    return PD_OK;
}

static void put_scores(const float *logits, int64_t classes, int64_t row, const struct serve_scores *ret)
{
    double sum = serve_logsumexp(logits, (int32_t)classes);
    int64_t best = 0;

    for (int64_t c = 1; c < classes; c++) {
        if (logits[c] > logits[best])
            best = c;
    }
    if (ret->logits)
        memcpy(ret->logits + row * classes, logits, (size_t)classes * sizeof(float));
    if (ret->probabilities) {
        for (int64_t c = 0; c < classes; c++)
            ret->probabilities[row * classes + c] = (float)exp((double)logits[c] - sum);
    }
    if (ret->classes)
        ret->classes[row] = isnan(sum) ? -1 : best;
}

static enum pd_err run_batch(struct serve *s, int64_t used, int64_t first, const struct serve_scores *ret,
                             struct pd_why *why)
{
    size_t n = image_elements(s), classes = (size_t)s->info.outputs, i = 0;
    struct serve_bucket *b;
    enum pd_err err;

    while (s->bucket[i].size < used)
        i++;
    b = &s->bucket[i];
    memset(s->staging + (size_t)used * n, 0, (size_t)(b->size - used) * n * sizeof(float));
    err = s->api->upload(s->backend, s->input, s->staging, (size_t)b->size * n * sizeof(float), why);
    if (err == PD_OK)
        err = pk_exec_run(b->exec, why);
    if (err == PD_OK)
        err = pk_exec_read(b->exec, "logits", s->results, (size_t)b->size * classes * sizeof(float), why);
    for (int64_t r = 0; err == PD_OK && r < used; r++)
        put_scores(s->results + (size_t)r * classes, (int64_t)classes, first + r, ret);
    return err;
}

enum pd_err serve_classify(struct serve *s, const struct serve_images *parts, size_t count,
                           const struct serve_scores *ret, struct pd_why *why)
{
    int64_t used = 0, first = 0;
    enum pd_err err = PD_OK;

    if (s->info.kind != SERVE_CLASSIFIER)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "a language model does not classify images");
    for (size_t p = 0; p < count; p++) {
        for (int64_t i = 0; i < parts[p].count; i++) {
            err = put_image(s, &parts[p], i, s->staging + (size_t)used * image_elements(s), why);
            if (err != PD_OK)
                return err;
            if (++used < (int64_t)s->info.batch_max)
                continue;
            err = run_batch(s, used, first, ret, why);
            if (err != PD_OK)
                return err;
            first += used;
            used = 0;
        }
    }
    return used ? run_batch(s, used, first, ret, why) : PD_OK;
}
