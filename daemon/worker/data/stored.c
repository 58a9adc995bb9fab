/* daemon/worker/data/stored.c: images kept as they are: MNIST, generated digits, CIFAR-10. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "daemon/worker/data/path.h"
#include "daemon/worker/data/set.h"
#include "kernels/base/text.h"

#define DIGITS_TRAIN 4000
#define DIGITS_VAL 1000
#define DIGITS_TEST 1000
#define DIGITS_LIMIT 1000000
/* Generated validation digits start here, so that no training digit is among them; test digits likewise. */
#define DIGITS_VAL_FIRST ((int64_t)1 << 32)
#define DIGITS_TEST_FIRST ((int64_t)2 << 32)

static void digit_info(struct data_set *set)
{
    set->info.channels = 1;
    set->info.classes = 10;
    data_normalisation(1, set->info.mean, set->info.std);
}

enum pd_err data_open_mnist(struct data_set *set, const struct data_options *o, bool headers_only,
                            struct pd_why *why)
{
    const bool standard = o->rule == DATA_SPLIT_STANDARD;
    struct data_idx part[2] = {{0}};
    int64_t given[DATA_SPLITS] = {0}, whole, size;
    int dir = -1;
    enum pd_err err;

    digit_info(set);
    err = data_path_open(o->roots, o->root_count, o->path, true, &dir, why);
    for (int i = 0; err == PD_OK && i < 2; i++) {
        err = data_idx_read(set, dir, i == 0, headers_only, &part[i], why);
        if (i && err == PD_ERR_NOT_FOUND && standard)
            err = PD_OK; /* there is no test part */
    }
    if (err != PD_OK)
        goto out;
    if (part[1].count && (part[0].height != part[1].height || part[0].width != part[1].width)) {
        err = pd_fail(why, PD_ERR_CORRUPT, "training and test images differ in size");
        goto out;
    }
    given[DATA_TRAIN] = part[0].count;
    given[standard ? DATA_TEST : DATA_VAL] = part[1].count;
    whole = part[0].count + part[1].count;
    err = data_divide_samples(set, o, given, headers_only, why);
    if (err != PD_OK)
        goto out;
    set->stored_height = part[0].height;
    set->stored_width = part[0].width;
    if (headers_only)
        goto out;
    size = (int64_t)part[0].height * part[0].width;
    set->pixels = realloc(part[0].pixels, (size_t)(whole * size));
    if (set->pixels)
        part[0].pixels = NULL; /* moved */
    set->labels = malloc((size_t)whole * sizeof *set->labels);
    if (!set->pixels || !set->labels) {
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for %lld images", (long long)whole);
        goto out;
    }
    if (part[1].count)
        memcpy(set->pixels + part[0].count * size, part[1].pixels, (size_t)(part[1].count * size));
    for (int64_t i = 0; i < whole; i++)
        set->labels[i] = i < part[0].count ? part[0].labels[i] : part[1].labels[i - part[0].count];
out:
    for (int i = 0; i < 2; i++) {
        free(part[i].pixels);
        free(part[i].labels);
    }
    if (dir >= 0)
        close(dir);
    return err;
}

enum pd_err data_open_digits(struct data_set *set, const struct data_options *o, bool headers_only,
                             struct pd_why *why)
{
    static const int64_t first[DATA_SPLITS] = {0, DIGITS_VAL_FIRST, DIGITS_TEST_FIRST},
                         usual[DATA_SPLITS] = {DIGITS_TRAIN, DIGITS_VAL, DIGITS_TEST};
    const int64_t *count = set->info.count;
    int64_t at = 0;
    enum pd_err err = data_divide_made(o, usual, set->info.count, why);

    digit_info(set);
    for (int part = 0; err == PD_OK && part < DATA_SPLITS; part++)
        if (count[part] > DIGITS_LIMIT)
            err = pd_fail(why, PD_ERR_LIMIT, "#/data/split: at most %d digits are generated for one part",
                          DIGITS_LIMIT);
    if (err != PD_OK)
        return err;
    if (o->scored != DATA_SCORED_VAL) {
        set->info.count[DATA_VAL] = count[data_scored_part(o->scored)];
        set->info.count[DATA_TEST] = 0;
    }
    set->stored_height = set->stored_width = 28;
    set->samples = count[DATA_TRAIN] + count[DATA_VAL] + count[DATA_TEST];
    if (headers_only)
        return PD_OK;
    set->pixels = malloc((size_t)set->samples * 784);
    set->labels = malloc((size_t)set->samples * sizeof *set->labels);
    if (!set->pixels || !set->labels)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for %lld digits", (long long)set->samples);
    for (int part = 0; part < DATA_SPLITS; part++) {
        const int64_t from = first[part == DATA_VAL ? (int)data_scored_part(o->scored) : part];

        set->pick[part] = count[part] ? malloc((size_t)count[part] * sizeof *set->pick[part]) : NULL;
        if (count[part] && !set->pick[part])
            return pd_fail(why, PD_ERR_NOMEM, "no memory for the order of digits");
        for (int64_t i = 0; i < count[part]; i++, at++) {
            set->labels[at] = (int32_t)(i % 10);
            data_digit_draw(o->seed, from + i, (int)(i % 10), set->pixels + at * 784);
            set->pick[part][i] = (uint32_t)at;
        }
    }
    return PD_OK;
}

/* ---- CIFAR-10 ---- */

#define SIDE 32
#define PLANE (SIDE * SIDE)
#define CIFAR_FILES_MAX 64
#define NAMES_BYTES_MAX 4096

/* Mean and deviation of each channel over the 50,000 training images, as usually given. */
static const float cifar_mean[3] = {0.4914f, 0.4822f, 0.4465f}, cifar_std[3] = {0.2470f, 0.2435f, 0.2616f};

enum pd_err data_cifar_unpack(const uint8_t *records, int64_t count, uint8_t *pixels, int32_t *labels,
                              struct pd_why *why)
{
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *from = records + i * DATA_CIFAR_RECORD;

        if (*from > 9)
            return pd_fail(why, PD_ERR_CORRUPT, "record %lld has the label %d; labels are 0 to 9",
                           (long long)i, *from);
        labels[i] = *from++;
        for (int k = 0; k < PLANE; k++, pixels += 3) {
            pixels[0] = from[k];
            pixels[1] = from[PLANE + k];
            pixels[2] = from[2 * PLANE + k];
        }
    }
    return PD_OK;
}

static enum pd_err open_uncompressed(int dir, const char *name, int *ret, struct pd_why *why)
{
    struct stat s;
    int fd = data_open_beneath(dir, name, O_RDONLY | O_NONBLOCK);

    if (fd < 0) {
        if (errno == EXDEV || errno == ELOOP)
            return pd_fail(why, PD_ERR_DENIED, "'%s' leads outside its folder", name);
        return pd_fail_errno(why, errno, "cannot open '%s'", name);
    }
    if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode)) {
        close(fd);
        return pd_fail(why, PD_ERR_INVALID, "'%s' is not a regular file", name);
    }
    *ret = fd;
    return PD_OK;
}

/* Records of one file, plain or gzip, appended; takes the descriptor over. */
static enum pd_err read_records(int fd, const char *name, struct data_set *set, int64_t *at,
                                bool headers_only, struct pd_why *why)
{
    gzFile f = gzdopen(fd, "rb");
    uint8_t *records = NULL;
    size_t len = 0, size = 0;
    enum pd_err err = PD_OK;
    struct stat s;
    int code = Z_OK;

    if (!f) {
        close(fd);
        return pd_fail(why, PD_ERR_NOMEM, "no memory to read '%s'", name);
    }
    if (headers_only && gzdirect(f) && fstat(fd, &s) == 0) { /* not packed: its size says how many */
        len = (size_t)s.st_size;
        if (len > DATA_FILE_LIMIT) {
            err = pd_fail(why, PD_ERR_LIMIT, "'%s' holds more than %zu bytes", name, DATA_FILE_LIMIT);
            goto out;
        }
        goto counted;
    }
    for (;;) {
        int n;

        if (len == size) {
            uint8_t *more;

            if (size >= DATA_FILE_LIMIT) {
                err = pd_fail(why, PD_ERR_LIMIT, "'%s' holds more than %zu bytes", name, DATA_FILE_LIMIT);
                goto out;
            }
            size = size ? size * 2 : (size_t)1 << 20;
            more = realloc(records, size);
            if (!more) {
                err = pd_fail(why, PD_ERR_NOMEM, "no memory to read '%s'", name);
                goto out;
            }
            records = more;
        }
        n = gzread(f, records + len, (unsigned)(size - len < 1u << 30 ? size - len : 1u << 30));
        if (n < 0) {
            err = pd_fail(why, PD_ERR_CORRUPT, "'%s': %s", name, gzerror(f, &code));
            goto out;
        }
        if (n == 0)
            break;
        len += (size_t)n;
        err = data_in_time(set->options.until_us, why);
        if (err != PD_OK)
            goto out;
    }
counted:
    (void)gzerror(f, &code);
    if (code != Z_OK && code != Z_STREAM_END) {
        err = pd_fail(why, PD_ERR_CORRUPT, "'%s' is truncated", name);
    } else if (!len || len % DATA_CIFAR_RECORD) {
        err = pd_fail(why, PD_ERR_CORRUPT, "'%s' has %zu bytes, which is not a multiple of a record's %d",
                      name, len, DATA_CIFAR_RECORD);
    } else if (!headers_only) {
        int64_t count = (int64_t)(len / DATA_CIFAR_RECORD), whole = *at + count;
        uint8_t *pixels = realloc(set->pixels, (size_t)whole * 3 * PLANE);
        int32_t *labels = realloc(set->labels, (size_t)whole * sizeof *labels);
        struct pd_why reason = {""};

        set->pixels = pixels ? pixels : set->pixels;
        set->labels = labels ? labels : set->labels;
        if (!pixels || !labels)
            err = pd_fail(why, PD_ERR_NOMEM, "no memory for %lld images", (long long)whole);
        else if (data_cifar_unpack(records, count, pixels + *at * 3 * PLANE, labels + *at, &reason) != PD_OK)
            err = pd_fail(why, PD_ERR_CORRUPT, "'%s': %s", name, reason.text);
        else
            data_note_file(set, name, records, len, NULL, 0);
    }
    if (err == PD_OK)
        *at += (int64_t)(len / DATA_CIFAR_RECORD);
out:
    free(records);
    gzclose(f);
    return err;
}

/* What the training records are called, and those of the test part. */
static const char *const cifar_stems[2] = {"data_batch", "test_batch"};

bool data_cifar_named(const char *name)
{
    return (!strncmp(name, cifar_stems[0], strlen(cifar_stems[0])) ||
            !strncmp(name, cifar_stems[1], strlen(cifar_stems[1]))) &&
           (pd_text_ends(name, ".bin") || pd_text_ends(name, ".bin.gz"));
}

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Names of the folder that begin with `stem` and end in .bin or .bin.gz, in byte order. */
static enum pd_err list(int dir, const char *stem, char names[CIFAR_FILES_MAX][NAME_MAX + 1], int *ret,
                        struct pd_why *why)
{
    int fd = data_open_beneath(dir, ".", O_RDONLY | O_DIRECTORY), count = 0;
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *e;

    if (!d) {
        int saved = errno;

        if (fd >= 0)
            close(fd);
        return pd_fail_errno(why, saved, "cannot list the folder of data.path");
    }
    while ((e = readdir(d)) != NULL) {
        if (strncmp(e->d_name, stem, strlen(stem)) != 0 ||
            !(pd_text_ends(e->d_name, ".bin") || pd_text_ends(e->d_name, ".bin.gz")))
            continue;
        if (count == CIFAR_FILES_MAX) {
            closedir(d);
            return pd_fail(why, PD_ERR_LIMIT, "more than %d files %s*.bin", CIFAR_FILES_MAX, stem);
        }
        strcpy(names[count++], e->d_name);
    }
    closedir(d);
    qsort(names, (size_t)count, sizeof *names, by_name);
    *ret = count;
    return PD_OK;
}

/* The ten lines of batches.meta.txt; silently none where the file is missing or not of that form. */
static enum pd_err read_names(int dir, struct data_set *set, struct pd_why *why)
{
    char text[NAMES_BYTES_MAX + 1], *at = text;
    struct pd_why ignored;
    ssize_t n;
    int fd;

    if (open_uncompressed(dir, "batches.meta.txt", &fd, &ignored) != PD_OK)
        return PD_OK;
    n = read(fd, text, NAMES_BYTES_MAX);
    close(fd);
    if (n <= 0)
        return PD_OK;
    text[n] = 0;
    set->names = calloc(10, sizeof *set->names);
    if (!set->names)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the names of the classes");
    for (int i = 0; i < 10; i++) {
        size_t len = strcspn(at, "\r\n");

        if (!len || len > 64 || data_class_odd(at, len))
            goto none;
        set->names[i] = strndup(at, len);
        if (!set->names[i])
            return pd_fail(why, PD_ERR_NOMEM, "no memory for the names of the classes");
        at += len;
        at += strspn(at, "\r\n");
    }
    if (!*at)
        return PD_OK;
none:
    for (int i = 0; i < 10; i++)
        free(set->names[i]);
    free(set->names);
    set->names = NULL;
    return PD_OK;
}

enum pd_err data_open_cifar(struct data_set *set, const struct data_options *o, bool headers_only,
                            struct pd_why *why)
{
    char(*names)[NAME_MAX + 1] = NULL;
    int64_t given[DATA_SPLITS] = {0}, at = 0;
    bool file = o->path && (pd_text_ends(o->path, ".bin") || pd_text_ends(o->path, ".bin.gz"));
    int dir = -1, fd = -1, count = 0;
    enum pd_err err;

    set->info.channels = 3;
    set->info.classes = 10;
    memcpy(set->info.mean, cifar_mean, sizeof cifar_mean);
    memcpy(set->info.std, cifar_std, sizeof cifar_std);
    set->stored_height = set->stored_width = SIDE;
    if (file) {
        err = data_path_open(o->roots, o->root_count, o->path, false, &fd, why);
        if (err == PD_OK)
            err = read_records(fd, o->path, set, &at, headers_only, why);
        given[0] = at;
    } else {
        names = calloc(CIFAR_FILES_MAX, sizeof *names);
        err = names ? data_path_open(o->roots, o->root_count, o->path, true, &dir, why)
                    : pd_fail(why, PD_ERR_NOMEM, "no memory for a list of files");
        for (int part = 0; err == PD_OK && part < 2; part++) {
            int64_t before = at;

            err = list(dir, cifar_stems[part], names, &count, why);
            if (err == PD_OK && !part && !count)
                err = pd_fail(why, PD_ERR_NOT_FOUND,
                              "data_batch*.bin is missing, and so is data_batch*.bin.gz");
            for (int i = 0; err == PD_OK && i < count; i++) {
                err = open_uncompressed(dir, names[i], &fd, why);
                if (err == PD_OK)
                    err = read_records(fd, names[i], set, &at, headers_only, why);
            }
            given[!part ? DATA_TRAIN : o->rule == DATA_SPLIT_STANDARD ? DATA_TEST : DATA_VAL] = at - before;
        }
        if (err == PD_OK)
            err = read_names(dir, set, why);
    }
    if (err == PD_OK)
        err = data_divide_samples(set, o, given, headers_only, why);
    free(names);
    if (dir >= 0)
        close(dir);
    return err;
}
