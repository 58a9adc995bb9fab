/* daemon/data/set.c: opening data sets and dividing them into a training and a validation part. */
#include "daemon/data/set.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/data/philox.h"

#define DIGITS_TRAIN 4000
#define DIGITS_VAL 1000
#define DIGITS_LIMIT 1000000
/* Generated validation digits start here, so that no training digit is among them. */
#define DIGITS_VAL_FIRST ((int64_t)1 << 32)

/* The customary constants of MNIST's training part; generated digits use them too. */
#define DIGIT_MEAN 0.1307f
#define DIGIT_STD 0.3081f

/* Sizes of the two parts, from a rule over `whole` samples; `given` says what the data set itself divides. */
static enum pd_err divide(const struct data_options *o, int64_t whole, const int64_t given[2], int64_t ret[2],
                          struct pd_why *why)
{
    switch (o->rule) {
    case DATA_SPLIT_GIVEN:
        ret[0] = given[0];
        ret[1] = given[1];
        break;
    case DATA_SPLIT_FRACTION:
        if (!(o->train_share > 0 && o->val_share > 0 && o->train_share + o->val_share <= 1 + 1e-9))
            return pd_fail(why, PD_ERR_INVALID, "data.split: shares must be positive and sum to at most 1");
        ret[0] = (int64_t)floor((double)whole * o->train_share + 1e-6);
        ret[1] = (int64_t)floor((double)whole * o->val_share + 1e-6);
        if (ret[0] + ret[1] > whole)
            ret[1] = whole - ret[0];
        break;
    case DATA_SPLIT_COUNT:
        ret[0] = o->train_count;
        ret[1] = o->val_count;
        break;
    }
    if (ret[0] < 1 || ret[1] < 1)
        return pd_fail(why, PD_ERR_INVALID, "data.split leaves a part empty");
    return PD_OK;
}

static void shuffle(uint32_t *item, int64_t count, uint64_t seed, enum data_stream stream, uint64_t epoch)
{
    uint32_t word[4];

    for (int64_t i = count - 1; i > 0; i--) {
        uint32_t j, t;

        if ((count - 1 - i) % 4 == 0)
            data_random(seed, stream, epoch, (uint64_t)(count - 1 - i) / 4, word);
        j = data_bounded(word[(count - 1 - i) % 4], (uint32_t)i + 1);
        t = item[i];
        item[i] = item[j];
        item[j] = t;
    }
}

/* `take` of the images first .. first+count-1, a seeded choice if not all. NULL without memory. */
static uint32_t *choose(int64_t first, int64_t count, int64_t skip, int64_t take, bool mixed, uint64_t seed)
{
    uint32_t *all = malloc((size_t)count * sizeof *all), *some;

    if (!all)
        return NULL;
    for (int64_t i = 0; i < count; i++)
        all[i] = (uint32_t)(first + i);
    if (mixed)
        shuffle(all, count, seed, DATA_STREAM_SPLIT, (uint64_t)first);
    memmove(all, all + skip, (size_t)take * sizeof *all);
    some = realloc(all, (size_t)take * sizeof *all);
    return some ? some : all;
}

static enum pd_err open_mnist(struct data_set *set, const struct data_options *o, bool headers_only,
                              struct pd_why *why)
{
    struct data_idx part[2] = {{0}};
    int64_t given[2], whole, size;
    int dir = -1;
    enum pd_err err;

    err = data_path_open(o->roots, o->root_count, o->path, true, &dir, why);
    for (int i = 0; err == PD_OK && i < 2; i++)
        err = data_idx_read(dir, i == 0, headers_only, &part[i], why);
    if (err != PD_OK)
        goto out;
    if (part[0].height != part[1].height || part[0].width != part[1].width) {
        err = pd_fail(why, PD_ERR_CORRUPT, "training and test images differ in size");
        goto out;
    }
    given[0] = part[0].count;
    given[1] = part[1].count;
    whole = given[0] + given[1];
    if (whole > UINT32_MAX) {
        err = pd_fail(why, PD_ERR_LIMIT, "more than 2^32 images");
        goto out;
    }
    err = divide(o, whole, given, set->info.count, why);
    if (err != PD_OK)
        goto out;
    if (o->rule == DATA_SPLIT_COUNT)
        for (int i = 0; i < 2; i++)
            if (set->info.count[i] > given[i]) {
                err = pd_fail(why, PD_ERR_INVALID, "data.split.%s asks for %lld images, there are %lld",
                              i ? "val" : "train", (long long)set->info.count[i], (long long)given[i]);
                goto out;
            }
    set->info.height = part[0].height;
    set->info.width = part[0].width;
    if (headers_only)
        goto out;
    size = (int64_t)part[0].height * part[0].width;
    set->pixels = realloc(part[0].pixels, (size_t)(whole * size));
    if (set->pixels)
        part[0].pixels = NULL; /* moved */
    set->labels = realloc(part[0].labels, (size_t)whole);
    if (set->labels)
        part[0].labels = NULL; /* moved */
    if (!set->pixels || !set->labels) {
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for %lld images", (long long)whole);
        goto out;
    }
    memcpy(set->pixels + given[0] * size, part[1].pixels, (size_t)(given[1] * size));
    memcpy(set->labels + given[0], part[1].labels, (size_t)given[1]);
    for (int i = 0; i < 2; i++) {
        bool pooled = o->rule == DATA_SPLIT_FRACTION;

        set->pick[i] = choose(pooled || !i ? 0 : given[0], pooled ? whole : given[i],
                              pooled && i ? set->info.count[0] : 0, set->info.count[i],
                              o->rule != DATA_SPLIT_GIVEN, o->seed);
        if (!set->pick[i])
            err = pd_fail(why, PD_ERR_NOMEM, "no memory for the order of images");
    }
out:
    for (int i = 0; i < 2; i++) {
        free(part[i].pixels);
        free(part[i].labels);
    }
    if (dir >= 0)
        close(dir);
    return err;
}

static enum pd_err open_digits(struct data_set *set, const struct data_options *o, bool headers_only,
                               struct pd_why *why)
{
    const int64_t given[2] = {DIGITS_TRAIN, DIGITS_VAL};
    int64_t whole;
    enum pd_err err = divide(o, DIGITS_TRAIN + DIGITS_VAL, given, set->info.count, why);

    if (err != PD_OK)
        return err;
    if (set->info.count[0] > DIGITS_LIMIT || set->info.count[1] > DIGITS_LIMIT)
        return pd_fail(why, PD_ERR_LIMIT, "data.split: at most %d generated digits a part", DIGITS_LIMIT);
    set->info.height = set->info.width = 28;
    if (headers_only)
        return PD_OK;
    whole = set->info.count[0] + set->info.count[1];
    set->pixels = malloc((size_t)whole * 784);
    set->labels = malloc((size_t)whole);
    if (!set->pixels || !set->labels)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for %lld digits", (long long)whole);
    for (int part = 0; part < 2; part++) {
        int64_t first = part ? set->info.count[0] : 0;

        set->pick[part] = malloc((size_t)set->info.count[part] * sizeof *set->pick[part]);
        if (!set->pick[part])
            return pd_fail(why, PD_ERR_NOMEM, "no memory for the order of digits");
        for (int64_t i = 0; i < set->info.count[part]; i++) {
            set->labels[first + i] = (uint8_t)(i % 10);
            data_digit_draw(o->seed, part ? DIGITS_VAL_FIRST + i : i, (int)(i % 10),
                            set->pixels + (first + i) * 784);
            set->pick[part][i] = (uint32_t)(first + i);
        }
    }
    return PD_OK;
}

static enum pd_err open_text(struct data_set *set, const struct data_options *o, bool headers_only,
                             struct pd_why *why)
{
    int64_t given[2], whole, got = 0;
    struct stat s;
    int fd = -1;
    enum pd_err err = data_path_open(o->roots, o->root_count, o->path, false, &fd, why);

    if (err != PD_OK)
        return err;
    if (fstat(fd, &s) != 0) {
        err = pd_fail_errno(why, errno, "cannot stat '%s'", o->path);
        goto out;
    }
    whole = s.st_size;
    if ((uint64_t)whole > DATA_FILE_LIMIT) {
        err = pd_fail(why, PD_ERR_LIMIT, "'%s' holds %lld bytes, the limit is %zu", o->path, (long long)whole,
                      DATA_FILE_LIMIT);
        goto out;
    }
    given[0] = (int64_t)floor((double)whole * 0.9);
    given[1] = whole - given[0];
    err = divide(o, whole, given, set->info.tokens, why);
    if (err == PD_OK && set->info.tokens[0] + set->info.tokens[1] > whole)
        err = pd_fail(why, PD_ERR_INVALID, "data.split asks for more bytes than the %lld of '%s'",
                      (long long)whole, o->path);
    if (err != PD_OK)
        goto out;
    set->start[1] = (size_t)set->info.tokens[0];
    for (int i = 0; i < 2; i++) {
        set->info.count[i] = (set->info.tokens[i] - 1) / o->context;
        if (set->info.count[i] < 1) {
            err = pd_fail(why, PD_ERR_INVALID,
                          "data.split: the %s part of '%s' is shorter than data.context + 1",
                          i ? "validation" : "training", o->path);
            goto out;
        }
        if (set->info.count[i] > UINT32_MAX) {
            err = pd_fail(why, PD_ERR_LIMIT, "more than 2^32 sequences");
            goto out;
        }
    }
    if (headers_only)
        goto out;
    set->pixels = malloc((size_t)whole);
    if (!set->pixels) {
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for '%s'", o->path);
        goto out;
    }
    while (got < whole) {
        ssize_t n = read(fd, set->pixels + got, (size_t)(whole - got));

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            err = n < 0 ? pd_fail_errno(why, errno, "cannot read '%s'", o->path)
                        : pd_fail(why, PD_ERR_IO, "'%s' became shorter while it was read", o->path);
            goto out;
        }
        got += n;
    }
out:
    close(fd);
    return err;
}

enum pd_err data_open(const struct data_options *o, bool headers_only, struct data_set **ret,
                      struct pd_why *why)
{
    struct data_set *set = calloc(1, sizeof *set);
    enum pd_err err = PD_ERR_INTERNAL;

    if (!set)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a data set");
    set->options = *o;
    set->options.path = NULL;
    set->options.roots = NULL;
    switch (o->dataset) {
    case DATA_SET_MNIST:
    case DATA_SET_DIGITS_GEN:
        set->info.kind = DATA_IMAGES;
        set->info.channels = 1;
        set->info.classes = 10;
        set->info.mean = DIGIT_MEAN;
        set->info.std = DIGIT_STD;
        err = o->dataset == DATA_SET_MNIST ? open_mnist(set, o, headers_only, why)
                                           : open_digits(set, o, headers_only, why);
        if (err == PD_OK && (o->shift < 0 || o->shift > 64))
            err = pd_fail(why, PD_ERR_INVALID, "data.augment.pad_crop.shift must be 0 to 64");
        break;
    case DATA_SET_TEXT:
        set->info.kind = DATA_TOKENS;
        set->info.vocab = 256;
        set->info.context = o->context;
        err = o->context < 1 ? pd_fail(why, PD_ERR_INVALID, "data.context must be at least 1")
                             : open_text(set, o, headers_only, why);
        break;
    }
    if (err != PD_OK) {
        data_free(set);
        return err;
    }
    *ret = set;
    return PD_OK;
}

struct data_set *data_free(struct data_set *set)
{
    if (set) {
        free(set->pixels);
        free(set->labels);
        free(set->pick[0]);
        free(set->pick[1]);
        free(set);
    }
    return NULL;
}

const struct data_info *data_info(const struct data_set *set)
{
    return &set->info;
}

int64_t data_steps_per_epoch(const struct data_set *set, int32_t batch)
{
    return set->info.count[DATA_TRAIN] / batch;
}

void data_shuffle_epoch(uint32_t *item, int64_t count, uint64_t seed, int64_t epoch)
{
    for (int64_t i = 0; i < count; i++)
        item[i] = (uint32_t)i;
    shuffle(item, count, seed, DATA_STREAM_SHUFFLE, (uint64_t)epoch);
}
