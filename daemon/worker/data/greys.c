/* daemon/worker/data/greys.c: the pictures of CIFAR-10 as sequences: 1024 greys, row by row.
 *
 * grey = 0.2989 R + 0.5870 G + 0.1140 B, rounded, as the Long Range Arena has it. The pictures come from an inner data set,
 * in CIFAR-10's binary form or as JPEG or PNG files, which divides them too. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/data/set.h"

#define SIDE 32
#define GREYS 256

static uint8_t grey_of(double r, double g, double b)
{
    return (uint8_t)floor(0.2989 * r + 0.5870 * g + 0.1140 * b + 0.5);
}

/* One part: greys into `made`, as many as fit. */
static enum pd_err take_part(struct data_set *set, const struct data_set *pictures, enum data_split part,
                             uint8_t *pixels, void *scratch, struct pd_why *why)
{
    const int64_t count = set->info.count[part], all = SIDE * SIDE,
                  most = set->info.context < all ? set->info.context : all;
    struct data_labelled *to = &set->labelled[part];
    struct data_ids *ids = &set->made[part];
    enum pd_err err = PD_OK;

    to->start = calloc((size_t)count + 1, sizeof *to->start);
    to->classes = malloc((size_t)(count + 1) * sizeof *to->classes);
    ids->items = malloc((size_t)(count * most + 1) * sizeof *ids->items);
    if (!to->start || !to->classes || !ids->items)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for %lld pictures", (long long)count);
    for (int64_t i = 0; i < count && err == PD_OK; i++) {
        void *const place[] = {pixels, &to->classes[i]};

        err = i % 1024 ? PD_OK : data_in_time(set->options.until_us, why);
        if (err == PD_OK)
            err = pictures->form->make(pictures, part, 0, 0, i, (uint32_t)i, 0, scratch, place, why);
        for (int64_t k = 0; k < most; k++)
            ids->items[ids->count++] = grey_of(pixels[k], pixels[all + k], pixels[2 * all + k]);
        to->start[i + 1] = (int64_t)ids->count;
    }
    set->cut_texts += most < all ? count : 0;
    set->info.tokens[part] = (int64_t)ids->count;
    return err;
}

static enum pd_err copy_names(struct data_set *set, const struct data_info *from, struct pd_why *why)
{
    set->names = calloc((size_t)from->classes + 1, sizeof *set->names);
    for (int32_t c = 0; set->names && c < from->classes; c++) {
        char number[16];

        snprintf(number, sizeof number, "%d", c);
        set->names[c] = strdup(from->class_names ? from->class_names[c] : number);
        set->info.classes++;
        if (!set->names[c])
            return pd_fail(why, PD_ERR_NOMEM, "no memory for the classes");
    }
    set->info.class_names = (const char *const *)set->names;
    return set->names ? PD_OK : pd_fail(why, PD_ERR_NOMEM, "no memory for the classes");
}

/* The pictures, from CIFAR-10's own files, or from others if these are missing: an archive has none of them. */
static enum pd_err open_pictures(const struct data_options *o, bool headers_only, struct data_set **ret,
                                 struct pd_why *why)
{
    struct data_options in = *o;
    enum pd_err err = PD_ERR_NOT_FOUND;

    in.crop = DATA_CROP_NONE;
    in.flip = 0;
    in.eval_crop = 1;
    memset(&in.recipe, 0, sizeof in.recipe);
    in.dataset = DATA_SET_CIFAR10;
    in.height = in.width = 0;
    if (!o->path || !data_archive_named(o->path))
        err = data_open(&in, headers_only, ret, why);
    if (err != PD_ERR_NOT_FOUND)
        return err;
    in.dataset = DATA_SET_PICTURES;
    in.height = in.width = SIDE;
    return data_open(&in, headers_only, ret, why);
}

enum pd_err data_open_greys(struct data_set *set, const struct data_options *o, bool headers_only,
                            struct pd_why *why)
{
    struct data_set *pictures = NULL;
    uint8_t *pixels = NULL;
    void *scratch = NULL;
    enum pd_err err = open_pictures(o, headers_only, &pictures, why);

    if (err == PD_OK &&
        (pictures->info.channels != 3 || pictures->info.height != SIDE || pictures->info.width != SIDE))
        err = pd_fail(
            why, PD_ERR_INVALID,
            "the pictures have %d x %d pixels and %d channels; %d x %d pixels and 3 channels are required",
            pictures->info.height, pictures->info.width, pictures->info.channels, SIDE, SIDE);
    if (err == PD_OK) {
        memcpy(set->info.count, pictures->info.count, sizeof set->info.count);
        set->samples = pictures->samples;
        set->unread = pictures->unread;
        set->links = pictures->links;
        set->info.unread = set->unread.count;
        set->info.unread_name = set->unread.count ? set->unread.name : NULL;
        err = copy_names(set, &pictures->info, why);
    }
    if (err == PD_OK)
        err = data_tokenizer_ids_new(GREYS, &set->tokenizer, why);
    if (err == PD_OK) {
        set->info.tokenizer = set->tokenizer;
        set->info.vocab = GREYS;
        set->info.estimated = headers_only;
    }
    if (err == PD_OK && !headers_only) {
        pixels = malloc(3 * SIDE * SIDE);
        scratch = malloc(data_sample_scratch(pictures) + 1);
        if (!pixels || !scratch)
            err = pd_fail(why, PD_ERR_NOMEM, "no memory for a picture");
        for (int part = 0; part < DATA_SPLITS && err == PD_OK; part++)
            if (set->info.count[part])
                err = take_part(set, pictures, (enum data_split)part, pixels, scratch, why);
        memcpy(set->info.digest, pictures->info.digest, sizeof set->info.digest);
        set->info.digest_of = pictures->info.digest_of;
    }
    if (err == PD_OK) {
        set->bad = pictures->bad;
        pictures->bad = NULL; /* moved to the outer set */
    }
    free(pixels);
    free(scratch);
    data_free(pictures);
    return err;
}
