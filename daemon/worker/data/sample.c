/* daemon/worker/data/sample.c: one sample as the network reads it. See set.h. */
#include <math.h>
#include <string.h>

#include "daemon/worker/data/augment.h"
#include "daemon/worker/data/codec.h"
#include "daemon/worker/data/philox.h"
#include "daemon/worker/data/randaugment.h"
#include "daemon/worker/data/set.h"

static size_t area(const struct data_info *i)
{
    return (size_t)i->channels * (size_t)i->height * (size_t)i->width;
}

size_t data_sample_scratch(const struct data_set *set)
{
    return 2 * area(&set->info);
}

/* Zero padding by `shift` and a crop at a random place, (height, width, channels). */
static void pad_crop(const uint8_t *from, const struct data_info *i, int32_t dy, int32_t dx, uint8_t *to)
{
    size_t pixel = (size_t)i->channels;

    for (int32_t y = 0; y < i->height; y++)
        for (int32_t x = 0; x < i->width; x++, to += pixel) {
            int32_t sy = y + dy, sx = x + dx;

            if (sy < 0 || sy >= i->height || sx < 0 || sx >= i->width)
                memset(to, 0, pixel);
            else
                memcpy(to, from + ((size_t)sy * (size_t)i->width + (size_t)sx) * pixel, pixel);
        }
}

static enum pd_err get(const struct data_set *set, uint32_t index, struct data_image *ret, bool *ret_owned,
                       struct pd_why *why)
{
    size_t size = (size_t)set->info.channels * (size_t)set->stored_height * (size_t)set->stored_width;

    if (set->pictures)
        return data_picture_get(set, index, ret, ret_owned, why);
    *ret_owned = false;
    *ret = (struct data_image){.pixels = set->pixels + (size_t)index * size,
                               .height = set->stored_height,
                               .width = set->stored_width,
                               .channels = set->info.channels};
    return PD_OK;
}

/* RandAugment; what comes from outside the picture has its mean colour. */
static uint8_t *change(const struct data_set *set, struct data_draw *draw, uint8_t *pixels, uint8_t *other)
{
    const struct data_recipe *r = &set->options.recipe;
    struct data_randaugment o = {.n = r->ra_n,
                                 .m = r->ra_m,
                                 .std = r->ra_std,
                                 .increasing = r->ra_increasing,
                                 .filter = set->options.filter};

    for (int32_t c = 0; c < set->info.channels; c++)
        o.fill[c] = (uint8_t)lrint(255 * (double)set->info.mean[c]);
    return data_ra_change(draw, &o, pixels, other, set->info.height, set->info.width, set->info.channels);
}

/* The picture's bytes (height, width, channels), in one of both buffers. */
static enum pd_err prepare(const struct data_set *set, const struct data_image *image, struct data_draw *draw,
                           bool training, uint8_t *work, uint8_t *other, const uint8_t **ret,
                           struct pd_why *why)
{
    const struct data_options *o = &set->options;
    const struct data_info *i = &set->info;
    enum data_crop crop = training ? o->crop : DATA_CROP_NONE;
    uint8_t *swap;
    enum pd_err err;

    if (crop == DATA_CROP_RRC) {
        struct data_box box = data_rrc_box(draw, image->height, image->width, o->rrc_scale, o->rrc_ratio);

        err = data_image_resize(image, &box, o->filter, i->height, i->width, work, why);
    } else {
        struct data_eval_fit fit = i->fit;

        if (crop == DATA_CROP_PAD)
            fit.crop = 1; /* the shift is the crop */
        err = data_image_fit_pixels(image, &fit, work, why);
    }
    if (err != PD_OK)
        return err;
    if (crop == DATA_CROP_PAD && o->shift) {
        uint32_t range = (uint32_t)(2 * o->shift + 1);
        int32_t dy = (int32_t)(data_draw_next(draw) * range) - o->shift;
        int32_t dx = (int32_t)(data_draw_next(draw) * range) - o->shift;

        pad_crop(work, i, dy, dx, other);
        swap = work;
        work = other;
        other = swap;
    }
    if (training && o->flip > 0 && data_draw_next(draw) < o->flip)
        data_flip(work, i->height, i->width, i->channels);
    if (training && o->recipe.ra_n > 0)
        work = change(set, draw, work, other);
    *ret = work;
    return PD_OK;
}

/* ---- images: "input", "target", "mix" ---- */

/* Training pictures with erased places are normalised here: noise is no byte. */
static bool ready(const struct data_set *set, enum data_split split)
{
    return split == DATA_TRAIN && set->options.recipe.erasing > 0;
}

static bool mixes(const struct data_set *set, enum data_split split)
{
    const struct data_recipe *r = &set->options.recipe;

    return split == DATA_TRAIN && (r->mixup > 0 || r->cutmix > 0);
}

enum { INPUT, TARGET, MIX, MIXES = 6 };

static int image_tensors(const struct data_set *set, enum data_split split, int32_t batch,
                         struct data_tensor ret[DATA_TENSORS_MAX])
{
    const struct data_info *i = &set->info;

    ret[INPUT] = (struct data_tensor){.name = "input",
                                      .dtype = ready(set, split) ? PK_F32 : PK_U8,
                                      .shape = PK_SHAPE(batch, i->channels, i->height, i->width)};
    ret[TARGET] = (struct data_tensor){.name = "target", .dtype = PK_I32, .shape = PK_SHAPE(batch)};
    ret[MIX] = (struct data_tensor){.name = "mix", .dtype = PK_F32, .shape = PK_SHAPE(batch, MIXES)};
    return mixes(set, split) ? MIX + 1 : MIX;
}

static bool image_whole(const struct data_set *set, enum data_split split)
{
    (void)split;
    return set->labels;
}

static void blank(const struct data_set *set, enum data_split split, void *const *to)
{
    int32_t *target = to[TARGET];

    memset(to[INPUT], 0, area(&set->info) * (ready(set, split) ? sizeof(float) : 1));
    *target = DATA_IGNORE;
}

static void image_none(const struct data_set *set, int32_t row, void *const *to)
{
    (void)row;
    blank(set, DATA_VAL, to);
}

/* How the group of the picture at this place is mixed: columns of "mix" in the order of model.h. */
static void draw_mix(const struct data_set *set, uint64_t seed, int64_t epoch, int64_t position, float *to)
{
    const struct data_recipe *r = &set->options.recipe;
    const int32_t height = set->info.height, width = set->info.width;
    struct data_box box = {.height = height, .width = width};
    double share = 1, weight = 0;
    struct data_draw draw;
    bool cut;

    data_draw_init(&draw, seed, DATA_STREAM_MIX, epoch, position - position % r->mix_group);
    if (data_draw_next(&draw) < r->mix_prob) {
        cut = r->cutmix > 0 && (!(r->mixup > 0) || data_draw_next(&draw) < r->switch_prob);
        share = data_draw_beta(&draw, cut ? r->cutmix : r->mixup);
        weight = 1 - share;
        if (cut) {
            box = data_cutmix_box(&draw, share, height, width, &share);
            weight = 1;
        }
    }
    *to++ = (float)share;
    *to++ = (float)weight;
    *to++ = (float)box.top;
    *to++ = (float)(box.top + box.height);
    *to++ = (float)box.left;
    *to = (float)(box.left + box.width);
}

/* As the graph normalises bytes, with noise in a rectangle. */
static void put_ready(const struct data_set *set, struct data_draw *draw, const uint8_t *pixels, float *to)
{
    const struct data_info *i = &set->info;
    const struct data_box box = data_erase_box(draw, set->options.recipe.erasing, i->height, i->width);
    const size_t plane = (size_t)i->height * (size_t)i->width;

    for (int32_t c = 0; c < i->channels; c++)
        for (size_t k = 0; k < plane; k++)
            to[(size_t)c * plane + k] =
                ((float)pixels[k * (size_t)i->channels + (size_t)c] / 255.0f - i->mean[c]) / i->std[c];
    for (int32_t c = 0; c < i->channels; c++)
        for (int32_t y = 0; y < box.height; y++)
            for (int32_t x = 0; x < box.width; x++)
                to[(size_t)c * plane + (size_t)(box.top + y) * (size_t)i->width + (size_t)(box.left + x)] =
                    (float)data_draw_normal(draw);
}

/* What cannot be decoded becomes black with DATA_IGNORE and is noted. */
static enum pd_err image_make(const struct data_set *set, enum data_split split, uint64_t seed, int64_t epoch,
                              int64_t position, uint32_t sample, int32_t row, void *scratch, void *const *to,
                              struct pd_why *why)
{
    const struct data_info *i = &set->info;
    uint32_t index = set->pick[split][sample];
    struct data_image image = {0};
    const uint8_t *pixels = NULL;
    struct data_draw draw;
    struct pd_why reason = {""};
    int32_t *target = to[1];
    bool owned = false;
    enum pd_err err;

    (void)row;
    data_draw_init(&draw, seed, DATA_STREAM_AUGMENT, epoch, position);
    if (mixes(set, split))
        draw_mix(set, seed, epoch, position, to[MIX]);
    err = get(set, index, &image, &owned, &reason);
    if (err == PD_OK)
        err = prepare(set, &image, &draw, split == DATA_TRAIN, scratch, (uint8_t *)scratch + area(i), &pixels,
                      &reason);
    if (owned)
        data_image_done(&image);
    if (set->pictures && (err == PD_ERR_CORRUPT || err == PD_ERR_UNSUPPORTED || err == PD_ERR_LIMIT)) {
        data_bad_note(set, index, data_picture_name(set, index), reason.text);
        blank(set, split, to);
        return data_bad_check(set, why);
    }
    if (err != PD_OK)
        return pd_fail(why, err, "%s", reason.text);
    if (ready(set, split))
        put_ready(set, &draw, pixels, to[INPUT]);
    else
        data_planes(pixels, i->height, i->width, i->channels, to[INPUT]);
    *target = set->labels[index];
    return PD_OK;
}

const struct data_form data_form_images = {.kind = DATA_IMAGES,
                                           .tensors = image_tensors,
                                           .whole = image_whole,
                                           .make = image_make,
                                           .none = image_none};

/* ---- tokens: "input", "target" ---- */

static int token_tensors(const struct data_set *set, enum data_split split, int32_t batch,
                         struct data_tensor ret[DATA_TENSORS_MAX])
{
    const struct data_info *i = &set->info;

    (void)split;
    ret[0] = (struct data_tensor){.name = "input", .dtype = PK_I32, .shape = PK_SHAPE(batch, i->context)};
    ret[1] = ret[0];
    ret[1].name = "target";
    return 2;
}

static bool token_whole(const struct data_set *set, enum data_split split)
{
    return set->part[split].ids;
}

static void token_none(const struct data_set *set, int32_t row, void *const *to)
{
    int32_t *tokens = to[0], *targets = to[1];

    (void)row;
    for (int32_t i = 0; i < set->info.context; i++) {
        tokens[i] = 0;
        targets[i] = DATA_IGNORE;
    }
}

static int32_t id_at(const struct data_ids_view *v, int64_t at)
{
    switch (v->width) {
    case 1:
        return ((const uint8_t *)v->ids)[at];
    case 2:
        return ((const uint16_t *)v->ids)[at];
    default:
        return ((const int32_t *)v->ids)[at];
    }
}

static enum pd_err token_make(const struct data_set *set, enum data_split split, uint64_t seed, int64_t epoch,
                              int64_t position, uint32_t window, int32_t row, void *scratch, void *const *to,
                              struct pd_why *why)
{
    int32_t *tokens = to[0], *targets = to[1];
    const struct data_ids_view *part = &set->part[split];
    int64_t context = set->info.context, last = part->count - context - 1;
    int64_t at = (int64_t)window * context;

    (void)position;
    (void)row;
    (void)scratch;
    (void)why;
    if (split == DATA_TRAIN) {
        uint32_t word[4];

        /* The grid of windows begins elsewhere in each epoch, so that no border is learned. */
        data_random(seed, DATA_STREAM_WINDOW, (uint64_t)epoch, 0, word);
        at += data_bounded(word[0], (uint32_t)context);
    }
    if (at > last)
        at = last;
    for (int64_t i = 0; i < context; i++)
        tokens[i] = id_at(part, at + i);
    memcpy(targets, tokens + 1, (size_t)(context - 1) * sizeof *targets);
    targets[context - 1] = id_at(part, at + context);
    return PD_OK;
}

const struct data_form data_form_tokens = {.kind = DATA_TOKENS,
                                           .tensors = token_tensors,
                                           .whole = token_whole,
                                           .make = token_make,
                                           .none = token_none};

/* ---- labelled texts: "input", "last", "target" ---- */

static int labelled_tensors(const struct data_set *set, enum data_split split, int32_t batch,
                            struct data_tensor ret[DATA_TENSORS_MAX])
{
    const struct data_info *i = &set->info;

    (void)split;
    ret[0] = (struct data_tensor){.name = "input", .dtype = PK_I32, .shape = PK_SHAPE(batch, i->context)};
    ret[1] = (struct data_tensor){.name = "last", .dtype = PK_I32, .shape = PK_SHAPE(batch)};
    ret[2] = ret[1];
    ret[2].name = "target";
    return 3;
}

static bool labelled_whole(const struct data_set *set, enum data_split split)
{
    return set->labelled[split].start;
}

/* `count` tokens, then padding. Attention is causal: no token sees what stands behind it. */
static void put_labelled(const struct data_set *set, const int32_t *ids, int64_t count, int32_t class,
                         int32_t row, void *const *to)
{
    int32_t *tokens = to[0], *last = to[1], *target = to[2];
    const int32_t context = set->info.context;

    if (count)
        memcpy(tokens, ids, (size_t)count * sizeof *tokens);
    memset(tokens + count, 0, (size_t)(context - count) * sizeof *tokens);
    *last = row * context + (count ? (int32_t)count - 1 : 0);
    *target = class;
}

static void labelled_none(const struct data_set *set, int32_t row, void *const *to)
{
    put_labelled(set, NULL, 0, DATA_IGNORE, row, to);
}

static enum pd_err labelled_make(const struct data_set *set, enum data_split split, uint64_t seed,
                                 int64_t epoch, int64_t position, uint32_t sample, int32_t row, void *scratch,
                                 void *const *to, struct pd_why *why)
{
    const struct data_labelled *part = &set->labelled[split];
    const int64_t from = part->start[sample];

    (void)seed;
    (void)epoch;
    (void)position;
    (void)scratch;
    (void)why;
    put_labelled(set, set->made[split].items ? set->made[split].items + from : NULL,
                 part->start[sample + 1] - from, part->classes[sample], row, to);
    return PD_OK;
}

const struct data_form data_form_labelled = {.kind = DATA_TOKENS,
                                             .tensors = labelled_tensors,
                                             .whole = labelled_whole,
                                             .make = labelled_make,
                                             .none = labelled_none};
