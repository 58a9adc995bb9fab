/* daemon/worker/data/set.c: opening data sets, and keeping count of what cannot be read. */
#include "daemon/worker/data/set.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/data/cache.h"
#include "daemon/worker/data/pictures.h"
#include "daemon/worker/data/tokens.h"
#include "kernels/base/clock.h"

void data_normalisation(int channels, float mean[3], float std[3])
{
    static const float imagenet_mean[3] = {0.485f, 0.456f, 0.406f},
                       imagenet_std[3] = {0.229f, 0.224f, 0.225f};

    for (int i = 0; i < 3; i++) {
        mean[i] = channels == 3 ? imagenet_mean[i] : 0.1307f;
        std[i] = channels == 3 ? imagenet_std[i] : 0.3081f;
    }
}

/* ---- what cannot be read ---- */

struct named {
    int64_t index; /* of the image, and one; 0: none */
    char name[256], reason[256];
};

struct data_bad {
    pthread_mutex_t lock;
    int64_t count, reported;
    int64_t fresh; /* of them, found here since data_bad_save */
    uint8_t *seen; /* a bit for each image of the set */
    size_t seen_bytes;
    struct named *named; /* the first DATA_BAD_NAMED */
};

static struct data_bad *bad_new(int64_t images)
{
    struct data_bad *b = calloc(1, sizeof *b);

    if (!b)
        return NULL;
    b->seen_bytes = (size_t)images / 8 + 1;
    b->seen = calloc(b->seen_bytes, 1);
    b->named = calloc(DATA_BAD_NAMED, sizeof *b->named);
    if (!b->seen || !b->named) {
        free(b->seen);
        free(b->named);
        free(b);
        return NULL;
    }
    pthread_mutex_init(&b->lock, NULL);
    return b;
}

static void bad_free(struct data_bad *b)
{
    if (!b)
        return;
    pthread_mutex_destroy(&b->lock);
    free(b->seen);
    free(b->named);
    free(b);
}

/* Whether the image is a new one, which it is not after this. */
static bool count_bad(struct data_bad *b, int64_t index, const char *name, const char *reason)
{
    if (b->seen[index / 8] >> index % 8 & 1)
        return false;
    b->seen[index / 8] |= (uint8_t)(1 << index % 8);
    if (b->count < DATA_BAD_NAMED) {
        b->named[b->count].index = index + 1;
        snprintf(b->named[b->count].name, sizeof b->named->name, "%s", name);
        snprintf(b->named[b->count].reason, sizeof b->named->reason, "%s", reason);
    }
    b->count++;
    return true;
}

void data_bad_note(const struct data_set *set, int64_t index, const char *name, const char *reason)
{
    struct data_bad *b = set->bad;

    pthread_mutex_lock(&b->lock);
    b->fresh += count_bad(b, index, name, reason);
    pthread_mutex_unlock(&b->lock);
}

/* ---- the same of several ranks: the names, then the bits ---- */

size_t data_bad_size(const struct data_set *set)
{
    return set->pictures && set->bad ? DATA_BAD_NAMED * sizeof(struct named) + set->bad->seen_bytes : 0;
}

int64_t data_bad_fresh(const struct data_set *set)
{
    int64_t n;

    pthread_mutex_lock(&set->bad->lock);
    n = set->bad->fresh;
    pthread_mutex_unlock(&set->bad->lock);
    return n;
}

void data_bad_save(const struct data_set *set, void *to)
{
    struct data_bad *b = set->bad;
    const size_t names = DATA_BAD_NAMED * sizeof *b->named;

    pthread_mutex_lock(&b->lock);
    memcpy(to, b->named, names);
    memcpy((char *)to + names, b->seen, b->seen_bytes);
    b->fresh = 0;
    pthread_mutex_unlock(&b->lock);
}

void data_bad_merge(const struct data_set *set, const void *from)
{
    struct data_bad *b = set->bad;
    const struct named *named = from;
    const uint8_t *seen = (const uint8_t *)(named + DATA_BAD_NAMED);

    pthread_mutex_lock(&b->lock);
    for (int i = 0; i < DATA_BAD_NAMED && named[i].index; i++)
        (void)count_bad(b, named[i].index - 1, named[i].name, named[i].reason);
    for (size_t k = 0; k < b->seen_bytes; k++)
        for (int bit = 0; seen[k] != b->seen[k] && bit < 8; bit++)
            if (seen[k] >> bit & 1)
                (void)count_bad(b, (int64_t)k * 8 + bit, "", ""); /* behind those that are named */
    pthread_mutex_unlock(&b->lock);
}

/* ---- what is reported ---- */

int64_t data_bad_count(const struct data_set *set)
{
    int64_t n;

    if (!set->bad)
        return 0;
    pthread_mutex_lock(&set->bad->lock);
    n = set->bad->count;
    pthread_mutex_unlock(&set->bad->lock);
    return n;
}

bool data_bad_next(const struct data_set *set, char name[256], char reason[256])
{
    struct data_bad *b = set->bad;
    bool more;

    if (!b)
        return false;
    pthread_mutex_lock(&b->lock);
    more = b->reported < b->count && b->reported < DATA_BAD_NAMED;
    if (more) {
        memcpy(name, b->named[b->reported].name, 256);
        memcpy(reason, b->named[b->reported].reason, 256);
        b->reported++;
    }
    pthread_mutex_unlock(&b->lock);
    return more;
}

enum pd_err data_bad_check(const struct data_set *set, struct pd_why *why)
{
    int64_t n = data_bad_count(set), whole = 0;

    for (int i = 0; i < DATA_SPLITS; i++)
        whole += set->info.count[i];
    if (n <= DATA_BAD_MIN || (double)n <= DATA_BAD_SHARE * (double)whole)
        return PD_OK;
    return pd_fail(why, PD_ERR_CORRUPT,
                   "%lld of %lld pictures so far cannot be decoded, the first '%.200s': %.200s", (long long)n,
                   (long long)whole, set->bad->named[0].name, set->bad->named[0].reason);
}

/* ---- what is odd ---- */

/* Names of files may hold any bytes; what leaves here is UTF-8. */
static void clean(char *text)
{
    size_t len = strlen(text);

    for (size_t i = 0, n; i < len; i += n) {
        n = data_utf8_sequence((const uint8_t *)text + i, len - i);
        if (!n) {
            text[i] = '?';
            n = 1;
        }
    }
}

size_t data_warnings(const struct data_set *set, struct data_warning ret[DATA_WARNINGS_MAX])
{
    const struct data_info *i = &set->info;
    size_t n = 0;

    if (i->unread_name) {
        struct data_warning *w = &ret[n++];

        *w = (struct data_warning){.kind = "unread_pictures", .pointer = "#/data/path"};
        snprintf(w->fields, sizeof w->fields, "files=%lld", (long long)i->unread);
        snprintf(w->text, sizeof w->text,
                 "%lld files are neither JPEG nor PNG and are not read, for example %s", (long long)i->unread,
                 i->unread_name);
    }
    if (set->links.count) {
        struct data_warning *w = &ret[n++];

        *w = (struct data_warning){.kind = "unread_links", .pointer = "#/data/path"};
        snprintf(w->fields, sizeof w->fields, "files=%lld", (long long)set->links.count);
        snprintf(w->text, sizeof w->text,
                 "%lld files of the archive are links and are not read, for example %s; archive the files "
                 "themselves (tar --dereference --hard-dereference)",
                 (long long)set->links.count, set->links.name);
    }
    if (set->median_height && i->height > DATA_ENLARGED * set->median_height &&
        i->width > DATA_ENLARGED * set->median_width) {
        struct data_warning *w = &ret[n++];

        *w = (struct data_warning){.kind = "enlarged_pictures", .pointer = "#/data/image_size"};
        snprintf(w->fields, sizeof w->fields, "median=%dx%d", set->median_height, set->median_width);
        snprintf(w->text, sizeof w->text,
                 "the pictures are %d x %d (median) and are enlarged to image_size %d x %d, which costs %.0f "
                 "times their pixels; set a smaller data.image_size",
                 set->median_height, set->median_width, i->height, i->width,
                 (double)i->height * i->width / ((double)set->median_height * set->median_width));
    }
    if (set->text_packing) {
        struct data_warning *w = &ret[n++];

        *w = (struct data_warning){.kind = "packed_text", .pointer = "#/data/path"};
        snprintf(w->fields, sizeof w->fields, "packing=%s", set->text_packing);
        snprintf(w->text, sizeof w->text,
                 "the file is compressed with %s, and training reads the compressed bytes; decompress it, or "
                 "compress it with gzip, which polyd reads",
                 set->text_packing);
    }
    if (set->unread_files) {
        struct data_warning *w = &ret[n++];

        *w = (struct data_warning){.kind = "unread_files", .pointer = "#/data/path"};
        snprintf(w->fields, sizeof w->fields, "files=%lld", (long long)set->unread_files);
        snprintf(
            w->text, sizeof w->text,
            "%lld files are not read because their names end in neither .txt nor .txt.gz, for example %s",
            (long long)set->unread_files, set->unread_file);
    }
    if ((double)set->foreign_bytes > DATA_FOREIGN_SHARE * (double)set->text_bytes) {
        struct data_warning *w = &ret[n++];

        *w = (struct data_warning){.kind = "not_utf8", .pointer = "#/data/path"};
        snprintf(w->fields, sizeof w->fields, "bytes=%lld", (long long)set->foreign_bytes);
        snprintf(
            w->text, sizeof w->text,
            "%.1f %% of the text's bytes are not UTF-8: convert the text, or set data.tokenizer to bytes",
            100 * (double)set->foreign_bytes / (double)set->text_bytes);
    }
    if (set->cut_texts) {
        struct data_warning *w = &ret[n++];
        const int64_t texts = i->count[DATA_TRAIN] + i->count[DATA_VAL] + i->count[DATA_TEST];
        const int32_t fit = i->context / (i->pairs ? 2 : 1), most = set->options.most,
                      read = most > 0 && most < fit ? most : fit;

        *w = (struct data_warning){.kind = "cut_texts", .pointer = "#/data/context"};
        snprintf(w->fields, sizeof w->fields, "texts=%lld", (long long)set->cut_texts);
        snprintf(w->text, sizeof w->text,
                 "%lld of %lld texts have more than %d tokens: of these the first %d are read",
                 (long long)set->cut_texts, (long long)texts, read, read);
    }
    for (size_t k = 0; k < n; k++)
        clean(ret[k].text);
    return n;
}

/* ---- opening ---- */

enum pd_err data_in_time(int64_t until_us, struct pd_why *why)
{
    return until_us && pd_clock_mono_us() > until_us
               ? pd_fail(why, PD_ERR_TIMEOUT, "its files could not be read in time")
               : PD_OK;
}

static enum pd_err check_images(const struct data_options *o, struct pd_why *why)
{
    if (o->shift < 0 || o->shift > 64)
        return pd_fail(why, PD_ERR_INVALID, "#/data/augment/pad_crop/shift: must be 0 to 64");
    if (o->height < 0 || o->height > 4096 || o->width < 0 || o->width > 4096 || !o->height != !o->width)
        return pd_fail(why, PD_ERR_INVALID, "#/data/image_size: must be at most 4096 per side");
    if (!(o->flip >= 0 && o->flip <= 1) || !(o->eval_crop >= 0 && o->eval_crop <= 1))
        return pd_fail(why, PD_ERR_INVALID, "#/data/augment: flip and eval_crop must be 0 to 1");
    if (o->crop == DATA_CROP_RRC &&
        !(o->rrc_scale[0] > 0 && o->rrc_scale[0] <= o->rrc_scale[1] && o->rrc_scale[1] <= 1 &&
          o->rrc_ratio[0] > 0 && o->rrc_ratio[0] <= o->rrc_ratio[1] && isfinite(o->rrc_ratio[1])))
        return pd_fail(why, PD_ERR_INVALID, "#/data/augment/rrc: scale or ratio is out of range");
    return PD_OK;
}

/* What follows from the stored size and the options. */
static enum pd_err finish_images(struct data_set *set, const struct data_options *o, bool headers_only,
                                 struct pd_why *why)
{
    struct data_info *i = &set->info;

    i->height = o->height ? o->height : set->stored_height;
    i->width = o->width ? o->width : set->stored_width;
    if (i->height < 1 || i->width < 1)
        return pd_fail(why, PD_ERR_INVALID, "#/data/image_size: is required: these pictures vary in size");
    i->fit = (struct data_eval_fit){.channels = i->channels,
                                    .height = i->height,
                                    .width = i->width,
                                    .crop = o->eval_crop > 0 ? o->eval_crop : 1,
                                    .filter = o->filter};
    i->class_names = (const char *const *)set->names;
    if (set->pictures) {
        set->unread = set->pictures->unread;
        set->links = set->pictures->links;
    }
    i->unread = set->unread.count;
    i->unread_name = set->unread.count ? set->unread.name : NULL;
    if (headers_only)
        return PD_OK;
    set->bad = bad_new(set->samples);
    return set->bad ? PD_OK : pd_fail(why, PD_ERR_NOMEM, "no memory for a data set");
}

static const struct data_form *form_of(enum data_dataset dataset)
{
    switch (dataset) {
    case DATA_SET_TEXT:
    case DATA_SET_TEXTS:
    case DATA_SET_TEXT_GEN:
    case DATA_SET_DOCUMENTS:
        return &data_form_tokens;
    case DATA_SET_LABELLED:
    case DATA_SET_LISTOPS_GEN:
    case DATA_SET_PATHFINDER_GEN:
    case DATA_SET_LISTOPS:
    case DATA_SET_IMDB:
    case DATA_SET_AAN:
    case DATA_SET_GREYS:
    case DATA_SET_PAIRS:
        return &data_form_labelled;
    case DATA_SET_POINTS:
        return &data_form_points;
    default:
        return &data_form_images;
    }
}

enum pd_err data_open(const struct data_options *o, bool headers_only, struct data_set **ret,
                      struct pd_why *why)
{
    struct data_set *set = calloc(1, sizeof *set);
    const struct data_form *form = form_of(o->dataset);
    const bool images = form == &data_form_images;
    enum pd_err err = PD_OK;

    if (!set)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a data set");
    set->options = *o;
    set->options.path = set->options.tokenizer_path = set->options.cache_dir = NULL;
    set->options.roots = NULL;
    set->form = form;
    set->info.kind = form->kind;
    set->info.context = images ? 0 : o->context;
    set->info.pairs = o->dataset == DATA_SET_AAN || o->dataset == DATA_SET_PAIRS;
    if (images)
        err = check_images(o, why);
    else if (o->context < 1)
        err = pd_fail(why, PD_ERR_INVALID, "#/data/context: must be at least 1");
    else if (set->info.pairs && o->context % 2)
        err = pd_fail(why, PD_ERR_INVALID,
                      "#/data/context: %d tokens cannot be divided into two sequences; must be even",
                      o->context);
    if (err != PD_OK)
        goto out;
    switch (o->dataset) {
    case DATA_SET_MNIST:
        err = data_open_mnist(set, o, headers_only, why);
        break;
    case DATA_SET_DIGITS_GEN:
        err = data_open_digits(set, o, headers_only, why);
        break;
    case DATA_SET_CIFAR10:
        err = data_open_cifar(set, o, headers_only, why);
        break;
    case DATA_SET_PICTURES:
        err = data_open_pictures(set, o, headers_only, why);
        break;
    case DATA_SET_TEXT:
    case DATA_SET_TEXTS:
    case DATA_SET_TEXT_GEN:
    case DATA_SET_DOCUMENTS:
        err = data_open_text(set, o, headers_only, why);
        break;
    case DATA_SET_LABELLED:
    case DATA_SET_LISTOPS_GEN:
    case DATA_SET_PATHFINDER_GEN:
    case DATA_SET_LISTOPS:
    case DATA_SET_IMDB:
    case DATA_SET_AAN:
    case DATA_SET_PAIRS:
        err = data_open_labelled(set, o, headers_only, why);
        break;
    case DATA_SET_GREYS:
        err = data_open_greys(set, o, headers_only, why);
        break;
    case DATA_SET_POINTS:
        err = data_open_points(set, o, why);
        break;
    }
    if (err == PD_OK && images)
        err = finish_images(set, o, headers_only, why);
    if (err == PD_OK && !headers_only)
        data_note_end(set);
out:
    if (err != PD_OK) {
        if (err != PD_ERR_NOMEM)
            pd_why_at(why, "#/data/path");
        data_free(set);
        return err;
    }
    *ret = set;
    return PD_OK;
}

struct data_set *data_free(struct data_set *set)
{
    if (set) {
        for (int i = 0; i < DATA_SPLITS; i++) {
            free(set->pick[i]);
            free(set->made[i].items);
            data_cache_close(set->map[i]);
        }
        for (int32_t c = 0; set->names && c < set->info.classes; c++)
            free(set->names[c]);
        free(set->names);
        data_labelled_done(set);
        data_pictures_free(set->pictures);
        data_tokenizer_free(set->tokenizer);
        bad_free(set->bad);
        free(set->pixels);
        free(set->labels);
        free(set->text);
        free(set->document.at);
        free(set);
    }
    return NULL;
}

const struct data_info *data_info(const struct data_set *set)
{
    return &set->info;
}

void data_work(const struct data_set *set, struct data_work *ret)
{
    *ret = set->work;
}

void data_batch_form(const struct data_set *set, enum data_split split, int32_t batch, struct data_batch *ret)
{
    *ret = (struct data_batch){.batch = batch};
    ret->count = set->form->tensors(set, split, batch, ret->tensor);
}

const struct data_tensor *data_batch_find(const struct data_batch *b, const char *name)
{
    for (int i = 0; i < b->count; i++)
        if (!strcmp(b->tensor[i].name, name))
            return &b->tensor[i];
    return NULL;
}

int64_t data_epoch_samples(int64_t samples, int32_t repeats)
{
    return repeats > 1 ? samples / DATA_REPEATS_MULTIPLE * DATA_REPEATS_MULTIPLE : samples;
}

int64_t data_steps_per_epoch(const struct data_set *set, int32_t batch)
{
    return data_epoch_samples(set->info.count[DATA_TRAIN], set->options.recipe.repeats) / batch;
}
