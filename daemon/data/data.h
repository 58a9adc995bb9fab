/* daemon/data/data.h: data sets, their order, and the thread that prepares batches.
 *
 * The order of samples and every random choice is a function of (seed, epoch, position) through a
 * counter-based generator (philox.h): no state has to be saved, and timing cannot change it. Files lie
 * under named roots, `<root>/<relative>`; no "..", no symbolic link leaves a root. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/base/err.h"

/* A named folder of the daemon's configuration. */
struct data_root {
    const char *name;
    const char *path;
};

enum data_kind { DATA_IMAGES, DATA_TOKENS };
enum data_dataset { DATA_SET_MNIST, DATA_SET_DIGITS_GEN, DATA_SET_TEXT };
enum data_split { DATA_TRAIN, DATA_VAL };
enum data_split_rule { DATA_SPLIT_GIVEN, DATA_SPLIT_FRACTION, DATA_SPLIT_COUNT };

/* Most bytes read from one file of a data set, after decompression. */
#define DATA_FILE_LIMIT ((size_t)4 << 30)

struct data_options {
    enum data_dataset dataset;
    /* mnist: a folder with the four IDX files (plain or .gz): {train,train10k}-images-idx3-ubyte,
     * {train,..}-labels-idx1-ubyte, {t10k,t2k}-...; text: one file. "<root>/<relative>"; for digits_gen NULL.
     */
    const char *path;
    const struct data_root *roots;
    size_t root_count;
    enum data_split_rule rule;
    /* fraction: shares of the whole (text: contiguous; images: after a shuffle seeded with `seed`).
     * count: that many samples (text: bytes). given: as the data set comes; for digits_gen 4000 and 1000;
     * for text 0.9 and 0.1. count for mnist: train from the training files, val from the test files. */
    double train_share, val_share;
    int64_t train_count, val_count;
    uint64_t seed;
    int32_t context; /* text: tokens of a sequence */
    int32_t shift;   /* images: pad_crop, 0 = none: pixels of zero pad and random shift in training */
};

struct data_info {
    enum data_kind kind;
    int32_t channels, height, width, classes; /* images */
    int32_t vocab, context;                   /* tokens: ids 0..vocab-1 */
    int64_t count[2];                         /* samples of DATA_TRAIN, DATA_VAL: images or sequences */
    int64_t tokens[2];                        /* bytes of each part of a text; 0 for images */
    float mean, std;                          /* images: value = (byte / 255 - mean) / std */
};

struct data_set;

/* Opens and reads the data set. headers_only: sizes only, no sample can be drawn. */
PD_NODISCARD enum pd_err data_open(const struct data_options *options, bool headers_only,
                                   struct data_set **ret, struct pd_why *why);
struct data_set *data_free(struct data_set *set);
/* Borrowed until data_free. */
const struct data_info *data_info(const struct data_set *set);

/* One batch in host memory. Images: input f32 (batch, channels, height, width), target (batch). Tokens: input
 * I32 (batch, context), target (batch, context), the next token of each. Samples beyond `used` are zeros with
 * target DATA_IGNORE. */
#define DATA_IGNORE (-100)
struct data_batch {
    int32_t batch, used;
    const float *images;   /* or NULL */
    const int32_t *tokens; /* or NULL */
    const int32_t *targets;
    int64_t epoch;
};

/* Steps of one pass over the training part: whole batches only, the rest of an epoch is left out. */
int64_t data_steps_per_epoch(const struct data_set *set, int32_t batch);

/* A loader prepares batches in order on its own thread, two ahead. The set must outlive it. Training: batch k
 * is global step k, for ever, shuffled anew each epoch and augmented. Validation: the whole part once, in
 * file order, not augmented, the last batch padded. `first` is the first batch. */
struct data_loader;
PD_NODISCARD enum pd_err data_loader_start(const struct data_set *set, enum data_split split, int32_t batch,
                                           uint64_t seed, int64_t first, struct data_loader **ret,
                                           struct pd_why *why);
/* The next batch, borrowed until the next call; batch->used = 0 at the end of a validation pass. */
PD_NODISCARD enum pd_err data_loader_next(struct data_loader *l, const struct data_batch **ret,
                                          struct pd_why *why);
struct data_loader *data_loader_free(struct data_loader *l);

/* The 28 x 28 picture of one generated digit, 0..9: a pure function of its arguments. */
void data_digit_draw(uint64_t seed, int64_t index, int digit, uint8_t pixels[28 * 28]);

/* Opens the file or folder `<root>/<relative>` for reading; *ret_fd is the caller's to close. Nothing outside
 * the root is ever opened: PD_ERR_DENIED. */
PD_NODISCARD enum pd_err data_path_open(const struct data_root *roots, size_t count, const char *path,
                                        bool directory, int *ret_fd, struct pd_why *why);
