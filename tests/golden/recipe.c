/* Group augment, the rest of it: RandAugment, mixup and cutmix with their labels, erasing, repeated augmentation and
 * averages of buffers, from recorded draws. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/data/data.h"
#include "daemon/worker/data/randaugment.h"
#include "daemon/worker/model/net.h"
#include "daemon/worker/task/task.h"
#include "tests/golden/recipe.h"

static const char *const names[DATA_RA_OPS] = {"AutoContrast",
                                               "Equalize",
                                               "Invert",
                                               "Rotate",
                                               "PosterizeIncreasing",
                                               "SolarizeIncreasing",
                                               "SolarizeAdd",
                                               "ColorIncreasing",
                                               "ContrastIncreasing",
                                               "BrightnessIncreasing",
                                               "SharpnessIncreasing",
                                               "ShearX",
                                               "ShearY",
                                               "TranslateXRel",
                                               "TranslateYRel"};

static double number(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static double entry_at(const json_t *list, size_t i)
{
    return json_is_array(list) ? json_number_value(json_array_get(list, i)) : json_number_value(list);
}

static enum data_ra_op op_of(struct golden *c, const json_t *o)
{
    const char *text = json_string_value(json_object_get(o, "op"));

    for (int i = 0; text && i < DATA_RA_OPS; i++)
        if (!strcmp(names[i], text))
            return (enum data_ra_op)i;
    golden_fail(c, "no operation '%s'", text ? text : "");
    return DATA_RA_INVERT;
}

/* Bytes to the byte: Pillow's arithmetic is integers, and floats in an order that is known. */
static void same_bytes(struct golden *c, const char *name, const uint8_t *got,
                       const struct data_st_tensor *want)
{
    size_t off = 0;

    for (uint64_t i = 0; i < want->count; i++)
        off += got[i] != ((const uint8_t *)want->data)[i];
    golden_near(c, name, (double)off, 0, 0);
}

/* The argument that an operation has at a level, and what comes of it. */
static bool ra_ops(struct golden *c)
{
    const struct data_st_tensor *in = golden_find(c, "in/image");
    const json_t *entry;
    size_t i;

    json_array_foreach(json_object_get(c->config, "cases"), i, entry)
    {
        const enum data_ra_op op = op_of(c, entry);
        const char *filter = json_string_value(json_object_get(entry, "resample"));
        const struct data_randaugment o = {
            .fill = {124, 116, 104},
            .filter = filter && !strcmp(filter, "bilinear") ? DATA_FILTER_BILINEAR : DATA_FILTER_BICUBIC};
        const json_t *arg = json_object_get(entry, "arg");
        const double own = data_ra_arg(op, number(entry, "level"), (int)number(entry, "sign"), true);
        const struct data_st_tensor *want = golden_find(c, "out/%ld", (long)number(entry, "case"));
        uint8_t *to;

        if (!in || !want)
            return true;
        to = calloc(1, want->count);
        if (json_array_size(arg))
            golden_near(c, names[op], own, entry_at(arg, 0), 1e-12 * fmax(1, fabs(own)));
        data_ra_apply(op, own, &o, in->data, (int32_t)in->dim[0], (int32_t)in->dim[1], 3, to);
        same_bytes(c, names[op], to, want);
        free(to);
    }
    return true;
}

static bool ra_compose(struct golden *c)
{
    const struct data_randaugment o = {.fill = {124, 116, 104}, .filter = DATA_FILTER_BICUBIC};
    const json_t *entry, *step;
    size_t i, k;

    json_array_foreach(json_object_get(c->config, "cases"), i, entry)
    {
        const long n = (long)number(entry, "case");
        const struct data_st_tensor *in = golden_find(c, "in/%ld", n), *want = golden_find(c, "out/%ld", n);
        uint8_t *at, *other;

        if (!in || !want)
            return true;
        at = calloc(1, want->count);
        other = calloc(1, want->count);
        memcpy(at, in->data, want->count);
        json_array_foreach(json_object_get(entry, "steps"), k, step)
        {
            const enum data_ra_op op = op_of(c, step);
            uint8_t *from = at;

            golden_near(c, "index", op, number(step, "index"), 0);
            if (!json_is_true(json_object_get(step, "applied")))
                continue;
            data_ra_apply(op, data_ra_arg(op, number(step, "magnitude"), (int)number(step, "sign"), true), &o,
                          from, (int32_t)in->dim[0], (int32_t)in->dim[1], 3, other);
            at = other;
            other = from;
        }
        same_bytes(c, "composed", at, want);
        free(at);
        free(other);
    }
    return true;
}

static bool erasing(struct golden *c)
{
    const json_t *entry;
    size_t i;

    json_array_foreach(json_object_get(c->config, "cases"), i, entry)
    {
        const json_t *draws = json_object_get(entry, "draws");
        const long n = (long)number(entry, "case");
        const struct data_st_tensor *in = golden_find(c, "in/%ld", n);
        size_t count = 0;
        double recorded[64], *x = golden_tensor(c, &count, "in/%ld", n),
                             *want = golden_tensor(c, NULL, "out/%ld", n);
        struct data_draw draw = {.recorded = recorded};
        struct data_box box;

        for (size_t k = 0; k < json_array_size(draws) && k < 64; k++)
            recorded[k] = entry_at(draws, k);
        if (!in || !x || !want)
            return true;
        box = data_erase_box(&draw, number(entry, "prob"), (int32_t)in->dim[1], (int32_t)in->dim[2]);
        golden_near(c, "draws", (double)(draw.recorded - recorded), (double)json_array_size(draws), 0);
        if (box.height) {
            const double *noise = golden_tensor(c, NULL, "in/noise_%ld", n);

            for (int64_t ch = 0; noise && ch < in->dim[0]; ch++)
                for (int32_t y = 0; y < box.height; y++)
                    for (int32_t z = 0; z < box.width; z++)
                        x[(ch * in->dim[1] + box.top + y) * in->dim[2] + box.left + z] =
                            noise[(ch * box.height + y) * box.width + z];
        }
        golden_close(c, "erased", x, want, count, 0, 0);
    }
    return true;
}

/* Row i of input "mix" of a case. */
static void mix_row(struct golden *c, const json_t *entry, int i, int batch, int32_t height, int32_t width,
                    double *to)
{
    const char *mode = json_string_value(json_object_get(entry, "mode"));
    const size_t k = mode && !strcmp(mode, "pair") && i >= batch / 2 ? (size_t)(batch - 1 - i) : (size_t)i;
    const json_t *cut = json_object_get(entry, "cutmix");
    const bool cutmix = json_is_array(cut) ? json_is_true(json_array_get(cut, k)) : json_is_true(cut);
    double share = entry_at(json_object_get(entry, "lam"), k);
    struct data_box box = {.height = height, .width = width};
    double weight = 1 - share;

    if (cutmix) {
        const double recorded[2] = {entry_at(json_object_get(entry, "cy"), k) / height,
                                    entry_at(json_object_get(entry, "cx"), k) / width};
        struct data_draw draw = {.recorded = recorded};

        box = data_cutmix_box(&draw, share, height, width, &share);
        weight = 1;
    }
    golden_near(c, "lam_effective", share, entry_at(json_object_get(entry, "lam_effective"), (size_t)i),
                1e-6);
    to[MODEL_MIX_SHARE] = share;
    to[MODEL_MIX_WEIGHT] = weight;
    to[MODEL_MIX_TOP] = box.top;
    to[MODEL_MIX_BOTTOM] = box.top + box.height;
    to[MODEL_MIX_LEFT] = box.left;
    to[MODEL_MIX_RIGHT] = box.left + box.width;
}

/* Images, and the labels as the gradient of their loss shows them: of each row softmax - target. */
static void mix_case(struct golden *c, const json_t *entry, const struct data_st_tensor *in)
{
    const long n = (long)number(entry, "case");
    const int batch = (int)in->dim[0], classes = (int)golden_num(c, "num_classes", 0);
    const int32_t height = (int32_t)in->dim[2], width = (int32_t)in->dim[3];
    struct model model = {.spec = {.dtype = PK_F32}};
    struct net net = {.g = pk_graph_new(false), .m = &model, .batch = batch};
    struct model_rows rows = {.logits = PK_NONE};
    struct pk_val images, sums[MODEL_SUMS_MAX], grad, logits;
    struct golden_rig *rig;
    double *mix = calloc((size_t)batch * MODEL_MIXES, sizeof *mix);
    double *got, *x, *z = golden_tensor(c, NULL, "in/logits"),
                     *target = golden_tensor(c, NULL, "out/target_%ld", n);
    size_t count = 0, seen = 0;

    images =
        net_mix(&net, pk_input(net.g, "x", PK_F32, PK_SHAPE(batch, in->dim[1], height, width)), batch, &rows);
    pk_output(net.g, "mixed", images);
    logits = rows.logits = pk_param(net.g, "logits", PK_F32, PK_SHAPE(batch, classes));
    task_cross_entropy.emit(net.g, &rows, number(entry, "smoothing"), sums);
    pk_grad(net.g, sums[0], PK_NONE, &logits, 1, &grad);
    pk_output(net.g, "target", pk_sub(net.g, pk_softmax(net.g, logits), grad));
    pk_output(net.g, "count", sums[1]);
    rig = golden_rig_new(c, net.g);
    for (int i = 0; i < batch; i++)
        mix_row(c, entry, i, batch, height, width, mix + i * MODEL_MIXES);
    x = golden_tensor(c, &count, "in/x");
    if (rig && x && z && target) {
        const double *labels = golden_tensor(c, NULL, "in/labels"),
                     *want = golden_tensor(c, NULL, "out/x_%ld", n);

        golden_rig_put(rig, "x", x, count);
        golden_rig_put(rig, "logits", z, (size_t)(batch * classes));
        golden_rig_put(rig, "target", labels, (size_t)batch);
        golden_rig_put(rig, "mix", mix, (size_t)batch * MODEL_MIXES);
        if (golden_rig_run(rig)) {
            got = golden_rig_output(rig, "mixed", &seen);
            golden_close(c, "mixed", got, want, seen, 1e-6, 1e-6);
            got = golden_rig_output(rig, "target", &seen);
            golden_close(c, "target", got, target, seen, 2e-6, 1);
            golden_near(c, "count", *golden_rig_output(rig, "count", NULL), batch, 1e-5);
        }
    }
    golden_rig_free(rig);
    free(mix);
}

/* The losses of the file on soft targets as such, and by binary cross-entropy, are none of this build. */
static bool mixing(struct golden *c)
{
    const struct data_st_tensor *in = golden_find(c, "in/x");
    const json_t *entry;
    size_t i;

    if (!in)
        return true;
    json_array_foreach(json_object_get(c->config, "cases"), i, entry) mix_case(c, entry, in);
    return true;
}

/* Rank r of R takes every R-th place from r on. */
static void repeated(struct golden *c)
{
    const int64_t samples = (int64_t)golden_num(c, "dataset_size", 0),
                  ranks = (int64_t)golden_num(c, "replicas", 1);
    const int32_t repeats = (int32_t)golden_num(c, "repeats", 1);
    const int64_t epoch = data_epoch_samples(samples, repeats);
    const double *order = golden_tensor(c, NULL, "in/ra_permutation");

    for (int64_t r = 0; order && r < ranks; r++) {
        size_t n = 0;
        const double *want = golden_tensor(c, &n, "out/ra_rank_%lld", (long long)r);
        double *got = calloc(n + 1, sizeof *got);

        golden_near(c, "length", (double)n * (double)ranks, (double)epoch, 0);
        for (size_t k = 0; want && k < n; k++)
            got[k] = order[((int64_t)k * ranks + r) / repeats];
        golden_close(c, "ra_rank", got, want, n, 0, 0);
        free(got);
    }
}

/* Averages of buffers by the op that keeps them. */
static void averages(struct golden *c, double keep, const char *out)
{
    static const char *const tensors[] = {"0.weight", "0.bias",         "1.weight",
                                          "1.bias",   "1.running_mean", "1.running_var"};

    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        const struct data_st_tensor *t = golden_find(c, "in/ema_init/%s", tensors[i]);
        struct pk_graph *g = pk_graph_new(false);
        struct golden_rig *rig;
        size_t n = 0;
        double *x = golden_tensor(c, &n, "in/ema_init/%s", tensors[i]),
               *want = golden_tensor(c, NULL, "%s/%s", out, tensors[i]);

        if (!t || !x || !want)
            return;
        pk_blend(g, pk_state(g, "average", PK_F32, PK_SHAPE((int64_t)n), PK_CAT_EMA),
                 pk_input(g, "x", PK_F32, PK_SHAPE((int64_t)n)), pk_fill(g, PK_F32, PK_SHAPE(1), 1), keep);
        rig = golden_rig_new(c, g);
        if (!rig)
            return;
        golden_rig_put(rig, "average", x, n);
        for (int step = 0; step < 4; step++) {
            golden_rig_put(rig, "x", golden_tensor(c, NULL, "in/ema_step%d/%s", step, tensors[i]), n);
            golden_rig_run(rig);
        }
        golden_close(c, tensors[i], golden_rig_leaf(rig, "average", NULL), want, n, 2e-6, 1e-6);
        golden_rig_free(rig);
    }
}

static bool sampler(struct golden *c)
{
    repeated(c);
    averages(c, 0.99996, "out/ema_d0.99996");
    averages(c, 0.9, "out/ema_d0.9");
    return true;
}

bool gold_recipe(struct gold *g, const char *name)
{
    static const struct {
        const char *file;
        bool (*run)(struct golden *c);
    } files[] = {{"randaugment_ops.safetensors", ra_ops},
                 {"randaugment_compose.safetensors", ra_compose},
                 {"random_erasing.safetensors", erasing},
                 {"mixup_cutmix_losses.safetensors", mixing},
                 {"sampler_droppath_ema.safetensors", sampler}};

    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (!strcmp(files[i].file, name)) {
            golden_case(g, files[i].run);
            return true;
        }
    return false;
}
