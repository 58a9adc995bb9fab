/* Group augment: resampling, the evaluation transform, random resized crops and flips, from recorded draws.
 * tests/golden/README.md 11: bytes may differ by 1 in at most 0.1 % of places. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/data/augment.h"
#include "daemon/worker/data/image.h"
#include "daemon/worker/model/net.h"
#include "tests/golden/golden.h"
#include "tests/golden/recipe.h"
#include "tests/golden/rig.h"

static const struct data_st_tensor *find(struct gold *g, const char *what, long n, const char *suffix)
{
    const struct data_st_tensor *t;
    char name[96];

    snprintf(name, sizeof name, n < 0 ? "%s%s" : "%s%s%ld", what, suffix ? suffix : "", n);
    if (suffix && n >= 0)
        snprintf(name, sizeof name, "%s%ld%s", what, n, suffix);
    t = data_st_find(g->st, name);
    if (!t)
        gold_fail(g, "no tensor '%s'", name);
    return t;
}

static void compare_bytes(struct gold *g, const uint8_t *got, const struct data_st_tensor *want)
{
    const uint8_t *bytes = want->data;
    uint64_t off = 0, far = 0;

    for (uint64_t i = 0; i < want->count; i++) {
        int d = abs(got[i] - bytes[i]);

        off += d != 0;
        far += d > 1;
    }
    g->compared++;
    if (far || off * 1000 > want->count)
        gold_fail(g, "%s: %llu of %llu bytes differ, %llu by more than 1", want->name,
                  (unsigned long long)off, (unsigned long long)want->count, (unsigned long long)far);
    if (want->count && (double)off / (double)want->count * 1000 > g->worst)
        g->worst = (double)off / (double)want->count * 1000;
}

static struct data_image image_of(const struct data_st_tensor *t)
{
    union {
        const void *in;
        uint8_t *out; /* only read from */
    } pixels = {.in = t->data};

    return (struct data_image){.pixels = pixels.out,
                               .height = (int32_t)t->dim[0],
                               .width = (int32_t)t->dim[1],
                               .channels = (int32_t)t->dim[2]};
}

static void resize_to(struct gold *g, const struct data_image *from, const struct data_box *box,
                      enum data_filter filter, const struct data_st_tensor *want)
{
    uint8_t *to = gold_alloc(g, want->count);
    struct pd_why why;

    if (data_image_resize(from, box, filter, (int32_t)want->dim[0], (int32_t)want->dim[1], to, &why) != PD_OK)
        gold_fail(g, "%s: %s", want->name, why.text);
    else
        compare_bytes(g, to, want);
}

static const char *const suffixes[] = {"_bicubic", "_bilinear", "_nearest"};

/* The bytes of the evaluation transform as the network reads them. */
static bool normalised(struct golden *c)
{
    const json_t *list = json_object_get(c->config, "eval"), *entry;
    size_t i;

    json_array_foreach(list, i, entry)
    {
        const long n = (long)json_integer_value(json_object_get(entry, "case"));
        const struct data_st_tensor *bytes = golden_find(c, "out/eval_u8_%ld", n);
        size_t count = 0, got_count = 0;
        const double *want = golden_tensor(c, &count, "out/eval_tensor_%ld", n), *got;
        struct model_spec spec = {.pixels = MODEL_PIXELS_BYTES, .channels = 3, .dtype = PK_F32};
        struct pk_graph *g = pk_graph_new(false);
        struct golden_rig *rig;
        double *pixels;

        if (!bytes || !want)
            return false;
        for (size_t k = 0; k < 3; k++) {
            spec.mean[k] = (float)json_number_value(json_array_get(json_object_get(c->config, "mean"), k));
            spec.std[k] = (float)json_number_value(json_array_get(json_object_get(c->config, "std"), k));
        }
        pk_output(
            g, "normalised",
            net_normalise(g, &spec, pk_input(g, "x", PK_U8, PK_SHAPE(3, bytes->dim[0], bytes->dim[1]))));
        rig = golden_rig_new(c, g);
        if (!rig)
            return true;
        pixels = gold_alloc(c->g, count * sizeof *pixels);
        for (size_t k = 0; k < count; k++) /* the file has the channels of a pixel side by side */
            pixels[k] = ((const uint8_t *)bytes->data)[k % (count / 3) * 3 + k / (count / 3)];
        golden_rig_put(rig, "x", pixels, count);
        if (golden_rig_run(rig) && (got = golden_rig_output(rig, "normalised", &got_count)) != NULL)
            golden_close(c, "out/eval_tensor", got, want, count, 1e-6, 1);
        golden_rig_free(rig);
    }
    return true;
}

static void resize(struct gold *g)
{
    const json_t *list = json_object_get(g->config, "resize"), *entry;
    size_t i;

    json_array_foreach(list, i, entry)
    {
        long n = (long)json_integer_value(json_object_get(entry, "case"));
        const struct data_st_tensor *from = find(g, "in/", n, "");
        struct data_image image;

        if (!from)
            return;
        image = image_of(from);
        for (int f = 0; f < 3; f++) {
            const struct data_st_tensor *want = find(g, "out/", n, suffixes[f]);
            struct data_box all = {.height = image.height, .width = image.width};

            if (want)
                resize_to(g, &image, &all, (enum data_filter)f, want);
        }
    }
    list = json_object_get(g->config, "eval");
    json_array_foreach(list, i, entry)
    {
        long n = (long)json_integer_value(json_object_get(entry, "case"));
        const struct data_st_tensor *from = find(g, "in/eval_", n, ""),
                                    *want = find(g, "out/eval_u8_", n, "");
        struct data_eval_fit fit = {.channels = 3,
                                    .crop = json_number_value(json_object_get(entry, "crop_pct"))};
        struct data_image image;
        struct pd_why why;
        uint8_t *planes, *pixels;
        size_t area;

        if (!from || !want)
            return;
        image = image_of(from);
        fit.height = (int32_t)want->dim[0];
        fit.width = (int32_t)want->dim[1];
        area = (size_t)fit.height * (size_t)fit.width;
        planes = gold_alloc(g, 3 * area);
        pixels = gold_alloc(g, 3 * area);
        if (data_image_fit_eval(&image, &fit, planes, &why) != PD_OK) {
            gold_fail(g, "%s: %s", want->name, why.text);
            return;
        }
        for (size_t k = 0; k < 3 * area; k++)
            pixels[k] = planes[k % 3 * area + k / 3];
        compare_bytes(g, pixels, want);
    }
    {
        const struct data_st_tensor *from = find(g, "in/hflip", -1, NULL),
                                    *want = find(g, "out/hflip", -1, NULL);
        uint8_t *copy;

        if (!from || !want)
            return;
        copy = gold_alloc(g, from->count);
        memcpy(copy, from->data, from->count);
        data_flip(copy, (int32_t)from->dim[0], (int32_t)from->dim[1], 3);
        compare_bytes(g, copy, want);
    }
}

static void number_pair(const json_t *o, const char *key, double to[2])
{
    for (size_t i = 0; i < 2; i++)
        to[i] = json_number_value(json_array_get(json_object_get(o, key), i));
}

static int32_t whole(const json_t *o, const char *key)
{
    return (int32_t)json_integer_value(json_object_get(o, key));
}

static void random_resized_crop(struct gold *g)
{
    const json_t *list = json_object_get(g->config, "cases"), *entry;
    size_t i;

    json_array_foreach(list, i, entry)
    {
        const json_t *draws = json_object_get(entry, "draws");
        size_t count = json_array_size(draws);
        double *recorded = gold_alloc(g, (count + 1) * sizeof *recorded), scale[2], ratio[2];
        struct data_draw draw = {.recorded = recorded};
        long n = (long)whole(entry, "case");
        struct data_box box;

        for (size_t k = 0; k < count; k++)
            recorded[k] = json_number_value(json_array_get(draws, k));
        number_pair(entry, "scale", scale);
        number_pair(entry, "ratio", ratio);
        box = data_rrc_box(&draw, whole(entry, "height"), whole(entry, "width"), scale, ratio);
        g->compared++;
        if (box.top != whole(entry, "i") || box.left != whole(entry, "j") ||
            box.height != whole(entry, "h") || box.width != whole(entry, "w") ||
            draw.recorded != recorded + count)
            gold_fail(g, "case %ld: box %d %d %d %d after %td draws", n, box.top, box.left, box.height,
                      box.width, draw.recorded - recorded);
        if (json_is_true(json_object_get(entry, "has_image"))) {
            const struct data_st_tensor *from = find(g, "in/", n, "");
            struct data_image image;

            if (!from)
                return;
            image = image_of(from);
            for (int f = 0; f < 2; f++) {
                const struct data_st_tensor *want = find(g, "out/", n, suffixes[f]);

                if (want)
                    resize_to(g, &image, &box, (enum data_filter)f, want);
            }
        }
    }
}

void gold_augment(struct gold *g)
{
    const char *name = strrchr(g->path, '/');

    name = name ? name + 1 : g->path;
    if (strcmp(name, "resize.safetensors") == 0) {
        resize(g);
        golden_case(g, normalised);
    } else if (strcmp(name, "random_resized_crop.safetensors") == 0)
        random_resized_crop(g);
    else if (!gold_recipe(g, name))
        gold_fail(g, "no test knows this file");
}
