/* Images to classes, and what all classifiers share: samples of one or many requests go through the graph
 * in batches. A batch takes the smallest planned size that holds it; results of the rows beyond are not
 * looked at. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/data/safetensors.h"
#include "daemon/worker/serve/internal.h"
#include "kernels/base/json.h"

/* ---- what classifiers share ---- */

enum pd_err serve_labels_read(struct serve *s, const struct data_st *st, const char *path, struct pd_why *why)
{
    const int32_t classes = model_spec(s->model)->classes;
    const char *text = data_st_meta(st, "polyd.data.classes");
    char *at;
    int32_t n = 0;

    s->info.outputs = classes;
    if (!text)
        return PD_OK;
    s->label_text = strdup(text);
    s->labels = calloc((size_t)classes, sizeof *s->labels);
    if (!s->label_text || !s->labels)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the names of %d classes", classes);
    for (at = s->label_text; at && n < classes; n++) {
        s->labels[n] = at;
        at = strchr(at, '\n');
        if (at)
            *at++ = '\0';
    }
    if (at || n < classes)
        return pd_fail(why, PD_ERR_CORRUPT, "checkpoint '%s' names %s than %d classes", path,
                       at ? "more" : "fewer", classes);
    s->info.labels = s->labels;
    return PD_OK;
}

enum pd_err serve_classes_open(struct serve *s, size_t least, int32_t context,
                               const struct serve_input *inputs, size_t count, struct pd_why *why)
{
    size_t largest = s->info.batch_max;
    enum pd_err err = PD_OK;

    s->results = calloc(largest * (size_t)s->info.outputs, sizeof *s->results);
    if (!s->results)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the scores of a batch");
    for (size_t size = least; err == PD_OK;) {
        struct pk_graph *graph = NULL;

        err = model_graph_classify(s->model, (int32_t)size, context, &graph, why);
        if (err == PD_OK)
            err = serve_bucket_add(s, graph, (int32_t)size, why);
        if (err == PD_OK)
            err = serve_fits(s, 0, why);
        for (size_t i = 0; err == PD_OK && i < count; i++)
            err = pk_exec_bind(s->bucket[s->buckets - 1].exec, inputs[i].name, inputs[i].memory, why);
        if (err == PD_OK)
            err = pk_exec_run(s->bucket[s->buckets - 1].exec, why); /* warm-up */
        if (size == largest)
            break;
        size = size * 2 < largest ? size * 2 : largest;
    }
    return err;
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
    size_t classes = (size_t)s->info.outputs, i = 0;
    struct serve_bucket *b;
    enum pd_err err;

    while (s->bucket[i].size < used)
        i++;
    b = &s->bucket[i];
    err = s->info.kind->send(s, used, b->size, why);
    if (err == PD_OK)
        err = pk_exec_run(b->exec, why);
    if (err == PD_OK)
        err = pk_exec_read(b->exec, "logits", s->results, (size_t)b->size * classes * sizeof(float), why);
    for (int64_t r = 0; err == PD_OK && r < used; r++)
        put_scores(s->results + (size_t)r * classes, (int64_t)classes, first + r, ret);
    return err;
}

enum pd_err serve_classify(struct serve *s, const struct serve_samples *parts, size_t count,
                           const struct serve_scores *ret, struct pd_why *why)
{
    const struct serve_kind *kind = s->info.kind;
    int64_t used = 0, first = 0;
    enum pd_err err = PD_OK;

    if (!kind->put)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "a language model does not classify");
    for (size_t p = 0; p < count; p++) {
        for (int64_t i = 0; i < parts[p].count; i++) {
            err = kind->put(s, &parts[p], i, used, why);
            if (err != PD_OK)
                return err;
            if (++used < (int64_t)s->info.batch_max && !(s->info.apart && i + 1 == parts[p].count))
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

void serve_put_classes(const struct serve *s, struct pd_buf *out)
{
    const struct serve_info *i = &s->info;
    const int64_t classes[] = {i->outputs};

    pd_json_key(out, "outputs");
    pd_json_open(out, '[');
    serve_put_tensor(out, "logits", "FP32", classes, 1);
    serve_put_tensor(out, "probabilities", "FP32", classes, 1);
    serve_put_tensor(out, "class", "INT64", NULL, 0);
    if (i->labels)
        serve_put_tensor(out, "label", "BYTES", NULL, 0);
    pd_json_close(out, ']');
    pd_json_kv_int(out, "classes", i->outputs);
    pd_json_kv_uint(out, "batch_max", i->batch_max);
    if (!i->labels)
        return;
    pd_json_key(out, "labels");
    pd_json_open(out, '[');
    for (int64_t c = 0; c < i->outputs; c++)
        pd_json_str(out, i->labels[c]);
    pd_json_close(out, ']');
}

/* ---- images ---- */

static size_t image_elements(const struct serve *s)
{
    return (size_t)(s->info.channels * s->info.height * s->info.width);
}

/* Requests come as numbers 0..1 or as bytes, which become such numbers; the graph does the rest. */
static enum pd_err shape_pictures(const struct data_st *st, const char *path, struct model_spec *spec,
                                  struct pd_why *why)
{
    if (spec->channels > MODEL_PIXEL_CHANNELS)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "images of %d channels are not served", spec->channels);
    spec->pixels = MODEL_PIXELS_UNIT;
    return model_spec_normalisation(st, spec)
               ? PD_OK
               : pd_fail(why, PD_ERR_CORRUPT, "checkpoint '%s' has an invalid mean or deviation", path);
}

static enum pd_err read_pictures(struct serve *s, const struct data_st *st, const char *path,
                                 struct pd_why *why)
{
    const struct model_spec *spec = model_spec(s->model);

    s->fit.channels = spec->channels;
    s->fit.height = spec->image_h;
    s->fit.width = spec->image_w;
    return serve_labels_read(s, st, path, why);
}

static enum pd_err open_graphs(struct serve *s, struct pd_why *why)
{
    const struct model_spec *spec = model_spec(s->model);
    size_t largest = s->info.batch_max;
    size_t input_bytes;
    enum pd_err err;

    s->info.channels = spec->channels;
    s->info.height = spec->image_h;
    s->info.width = spec->image_w;
    input_bytes = largest * image_elements(s) * sizeof(float);
    s->staging = calloc(largest * image_elements(s), sizeof *s->staging);
    if (!s->staging)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a batch of %zu images", largest);
    err = serve_alloc(s, input_bytes, &s->memory.inputs_bytes, &s->input, why);
    if (err == PD_OK)
        err = s->api->upload(s->backend, s->input, s->staging, input_bytes, why);
    return err == PD_OK ? serve_classes_open(s, 1, 1, &(struct serve_input){"input", s->input}, 1, why) : err;
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
            return pd_fail(why, PD_ERR_INVALID,
                           "image %lld has a pixel of %g: an FP32 'image' has values in 0..1, neither 0..255 "
                           "nor normalised (the model subtracts the mean and divides by the deviation "
                           "itself); send 0..255 as UINT8",
                           (long long)image, (double)pixels[k]);
    return pd_fail(why, PD_ERR_INTERNAL, "image %lld was rejected without a reason", (long long)image);
}

/* On the scale 0..1. */
static enum pd_err put_image(struct serve *s, const struct serve_samples *part, int64_t i, int64_t row,
                             struct pd_why *why)
{
    size_t n = image_elements(s);
    float *to = s->staging + (size_t)row * n;

    if (part->bytes) {
        const uint8_t *from = (const uint8_t *)part->data + (size_t)i * n;

        for (size_t k = 0; k < n; k++)
            to[k] = (float)from[k] / 255.0f;
    } else {
        const char *from = (const char *)part->data + (size_t)i * n * sizeof(float);
        int wrong = 0;

        memcpy(to, from, n * sizeof(float)); /* a tensor of the wire may lie anywhere */
        for (size_t k = 0; k < n; k++)
            wrong |= !(to[k] >= SERVE_PIXEL_LOW && to[k] <= SERVE_PIXEL_HIGH); /* NaN is neither */
        if (wrong)
            return wrong_pixel(to, n, part->first + i, why);
    }
    return PD_OK;
}

static enum pd_err send_images(struct serve *s, int64_t used, int32_t size, struct pd_why *why)
{
    size_t n = image_elements(s);

    memset(s->staging + (size_t)used * n, 0, (size_t)(size - used) * n * sizeof(float));
    return s->api->upload(s->backend, s->input, s->staging, (size_t)size * n * sizeof(float), why);
}

/* ---- signature ---- */

static void put_channels(struct pd_buf *out, const char *name, const float *values, int64_t count)
{
    pd_json_key(out, name);
    pd_json_open(out, '[');
    for (int64_t c = 0; c < count; c++)
        pd_json_num32(out, values[c]);
    pd_json_close(out, ']');
}

/* What the numbers of input 'image' mean, for those who make them. */
static void put_pixels(const struct serve *s, struct pd_buf *out)
{
    const struct serve_info *i = &s->info;

    pd_json_key(out, "pixels");
    pd_json_open(out, '{');
    pd_json_key(out, "FP32");
    pd_json_raw(out, "[0,1]");
    pd_json_key(out, "UINT8");
    pd_json_raw(out, "[0,255]");
    pd_json_kv_str(out, "order", "channel, row, column");
    pd_json_kv_str(out, "channels", i->channels == 1 ? "grey" : i->channels == 3 ? "RGB" : "the data set's");
    put_channels(out, "mean", model_spec(s->model)->mean, i->channels);
    put_channels(out, "std", model_spec(s->model)->std, i->channels);
    pd_json_kv_str(out, "normalised_by", "the model");
    if (serve_pictures(s)) {
        pd_json_key(out, "resize");
        pd_json_strf(
            out,
            "JPEG and PNG alone: scaled to cover %lld x %lld divided by %.4g, the middle cut out, as "
            "in validation",
            (long long)i->height, (long long)i->width, s->fit.crop);
    }
    pd_json_close(out, '}');
}

static void put_signature(const struct serve *s, struct pd_buf *out)
{
    const struct serve_info *i = &s->info;
    const int64_t image[] = {i->channels, i->height, i->width};

    if (serve_pictures(s)) {
        pd_json_key(out, "pictures");
        pd_json_open(out, '[');
        pd_json_str(out, "image/jpeg");
        pd_json_str(out, "image/png");
        pd_json_close(out, ']');
    }
    pd_json_key(out, "inputs");
    pd_json_open(out, '[');
    serve_put_tensor(out, "image", "FP32", image, 3);
    pd_json_close(out, ']');
    serve_put_classes(s, out);
    put_pixels(s, out);
}

const struct serve_kind serve_kind_classify = {
    .name = "classifier",
    .shape = shape_pictures,
    .read = read_pictures,
    .open = open_graphs,
    .signature = put_signature,
    .put = put_image,
    .send = send_images,
};
