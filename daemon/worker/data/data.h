/* daemon/worker/data/data.h: data sets, their shuffling, and the threads that prepare batches.
 *
 * The order of samples and every random choice are functions of (seed, epoch, position) through a counter-based
 * generator (philox.h). A checkpoint therefore stores no loader state, and neither timing nor the number of threads
 * changes a batch. Files lie below named roots, `<root>/<relative>`; neither ".." nor a symbolic link can leave a root. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/worker/data/image.h"
#include "daemon/worker/data/tokenizer.h"
#include "kernels/base/err.h"
#include "kernels/graph/tensor.h"

/* A data folder with its name in the daemon's configuration. */
struct data_root {
    const char *name;
    const char *path;
};

enum data_kind { DATA_IMAGES, DATA_TOKENS, DATA_POINTS };

/* ---- differential equations with a known solution (points.c) ---- */

/* u(x, t) on a rectangle:
 *   convection  u_t + c u_x = 0,       u = sin(x - c t)                           x in [0, 2 pi], t in [0, 1]
 *   reaction    u_t - c u (1 - u) = 0, u = h e^(c t) / (h e^(c t) + 1 - h)        likewise
 *               with h = exp(-(x - pi)^2 / (2 (pi / 4)^2))
 *   wave        u_tt - c^2 u_xx = 0,   u = sin(pi x) cos(c pi t) + sin(3 pi x) cos(3 c pi t) / 2
 *                                                                                 x in [0, 1], t in [0, 1] */
enum data_equation {
    DATA_EQUATION_NONE,
    DATA_EQUATION_CONVECTION,
    DATA_EQUATION_REACTION,
    DATA_EQUATION_WAVE,
    DATA_EQUATIONS
};
#define DATA_EQUATION_NAMES "convection reaction wave"
#define DATA_GRID_MAX 1024 /* most points of an axis */
/* The exact solution u(x, t); `c` is beta (convection), rho (reaction) or the wave speed. */
double data_equation_exact(enum data_equation equation, double c, double x, double t);
/* "convection", "reaction", "wave", else "none"; static. */
const char *data_equation_name(enum data_equation equation);
/* Length of the domain of x, which begins at 0; t lies in [0, 1]. */
double data_equation_width(enum data_equation equation);

enum data_dataset {
    DATA_SET_MNIST,
    DATA_SET_DIGITS_GEN,
    DATA_SET_CIFAR10,
    DATA_SET_PICTURES,       /* folders of JPEG and PNG files, or a tar of them */
    DATA_SET_TEXT,           /* one file */
    DATA_SET_TEXTS,          /* a folder with a file for each part */
    DATA_SET_LABELLED,       /* texts with classes: one table, or a folder with one for each part */
    DATA_SET_TEXT_GEN,       /* generated sentences */
    DATA_SET_DOCUMENTS,      /* a folder of text files, one document each */
    DATA_SET_POINTS,         /* generated grids of points of an equation */
    DATA_SET_LISTOPS_GEN,    /* generated labelled sequences: expressions and their values */
    DATA_SET_PATHFINDER_GEN, /* generated labelled sequences: pixels of pictures of curves */
    DATA_SET_LISTOPS,        /* labelled expressions in tables of the Long Range Arena */
    DATA_SET_IMDB,           /* labelled texts in tables without a header row, as padded bytes */
    DATA_SET_AAN,            /* labelled pairs of texts in tables without a header row, as padded bytes */
    DATA_SET_GREYS,          /* pictures of CIFAR-10 as sequences of grey values */
    DATA_SET_PAIRS           /* pairs of passages of a folder's documents: of one document, or of two */
};
/* Maps a data set of the job document (enum job_dataset) to the form that reads it; false: this build cannot read it. */
bool data_form(int dataset, enum data_dataset *ret);
enum data_split { DATA_TRAIN, DATA_VAL, DATA_TEST };
#define DATA_SPLITS 3
/* The samples that DATA_VAL denotes. Training scores the validation part; an evaluation may choose another part. */
enum data_scored { DATA_SCORED_VAL, DATA_SCORED_TEST, DATA_SCORED_TRAIN };
enum data_split_rule { DATA_SPLIT_GIVEN, DATA_SPLIT_FRACTION, DATA_SPLIT_COUNT, DATA_SPLIT_STANDARD };
enum data_crop { DATA_CROP_NONE, DATA_CROP_PAD, DATA_CROP_RRC };

/* Most bytes read from one file of a data set, after decompression. An uncompressed tar is read file by file and has no
 * such limit. */
#define DATA_FILE_LIMIT ((size_t)4 << 30)
#define DATA_FOLDER_LIMIT ((size_t)64 << 30) /* the same for all files of a folder of documents together */
#define DATA_DOCUMENTS_MAX 20000000
#define DATA_PICTURES_MAX 50000000
#define DATA_GENERATED_BYTES_MAX ((int64_t)64 << 20) /* of all parts of text_gen together */
#define DATA_CLASSES_MAX 100000

struct data_options {
    enum data_dataset dataset;
    /* "<root>/<relative>"; NULL for digits_gen, text_gen, listops_gen and pathfinder_gen.
     *   mnist     a folder with the four IDX files ([.gz]): {train,train10k}-images-idx3-ubyte,
     *             {train,..}-labels-idx1-ubyte, {t10k,t2k}-...
     *   cifar10   a folder with data_batch*.bin and optionally test_batch*.bin ([.gz]), or one such file; class names
     *             come from batches.meta.txt in the same folder
     *   pictures  a folder or a tar ([.gz]) with train/CLASS/... and val/CLASS/..., or with CLASS/... alone; also
     *             val/images with val_annotations.txt (Tiny-ImageNet)
     *   text      one file ([.gz])
     *   texts     a folder with a file for each part: {ptb.,wiki.,}train.{txt,tokens}[.gz], ...valid or val
     *   documents a folder of *.txt[.gz] at any depth, one document each; the folders train/, {validation,valid,val}/ and
     *             test/, if present, are the parts
     *   labelled  one file *.{tsv,csv,jsonl}[.gz] with the columns label and text, or a folder with train.*,
     *             {valid,val,validation}.* (if missing, test.*) and test.*
     *   listops   as labelled, with the columns Target and Source; also basic_{train,val,test}.*
     *   imdb      as labelled, without a header row: label, id, text
     *   aan       as labelled, without a header row: label, id, id, text, text; also new_aan_pairs.{train,eval,test}.*
     *   greys     as cifar10, or as pictures (resized to 32 x 32)
     *   pairs     as documents
     */
    const char *path;
    const struct data_root *roots;
    size_t root_count;
    /* How the samples are divided:
     *   fraction  train_share and val_share of all samples (text: contiguous; images and labelled texts: after a shuffle
     *             seeded with `seed`)
     *   count     train_count and val_count samples (text: bytes), from the parts of the data set if it has parts, else
     *             disjoint ones after a seeded shuffle
     *   given     the parts of the data set; digits_gen: 4000 and 1000; text_gen: 1,000,000 and 100,000 bytes; text: 0.9
     *             and 0.1
     *   standard  three parts by `amount`; validation and test come from files of their own if the set has such files,
     *             else from the training files
     * The first three make two parts; the second may be the test part of the set. */
    enum data_split_rule rule;
    enum data_scored scored;
    double train_share, val_share;
    int64_t train_count, val_count;
    /* standard: the size of each part. Below 1: a share of the part's own files, or of the training files if it has none;
     * from 1 on: a number of samples (text: bytes). 0: all of its own files; without such files a tenth for validation,
     * nothing for test, the rest for training. Generated data have no shares; 0: 4000, 1000 and 1000 digits, or 1,000,000,
     * 100,000 and 100,000 bytes. */
    double amount[DATA_SPLITS];
    /* standard, pictures: the folder val is the test part, as in published results on ImageNet */
    bool val_is_test;
    uint64_t seed; /* of the division and of generated data; the loader has the seed of the order */

    /* text */
    int32_t context;    /* tokens of a sequence; longer labelled texts are cut */
    int32_t depth;      /* listops_gen: most levels of an expression */
    int32_t min_tokens; /* listops_gen: fewest tokens of a sequence */
    int32_t contour;    /* pathfinder_gen: dashes of a curve */
    int32_t most;       /* most tokens of a labelled sequence (of each of a pair); 0: as many as fit */
    enum data_tokenizer_kind tokenizer;
    const char *tokenizer_path; /* gpt2_bpe: folder of its files, "<root>/<relative>" */
    /* The tokenizer of another data set, of the kind above, for a text that is only scored; borrowed until data_free.
     * DATA_VAL is then the test part, or the whole of a text without parts, and the other parts are empty.
     * PD_ERR_INVALID: the set has no test part. NULL: the set makes its own tokenizer. */
    const struct data_tokenizer *tokens;

    /* images */
    int32_t height, width; /* of the network's input; 0: as stored (not for pictures) */
    enum data_crop crop;   /* of training pictures */
    int32_t shift;         /* pad_crop: zero padding and largest shift, in pixels */
    double rrc_scale[2], rrc_ratio[2];
    double flip; /* probability that a training picture is mirrored */
    struct data_recipe {
        int32_t ra_n; /* RandAugment: operations for each picture; 0: none */
        double ra_m, ra_std;
        bool ra_increasing;
        double mixup, cutmix; /* alphas of the Beta distributions; 0: off */
        double mix_prob,
            switch_prob;     /* probability that a group is mixed; that it is by cutmix if both are on */
        int32_t mix_group;   /* images that are mixed with each other; divides the batch of a part */
        double erasing;      /* probability; above 0 training pictures are normalised f32 */
        int32_t repeats;     /* repeated augmentation: times that an epoch has each picture, consecutively */
    } recipe;                /* of training pictures */
    double eval_crop;        /* crop of struct data_eval_fit; 0: 1 */
    enum data_filter filter; /* of every resizing */

    /* points */
    enum data_equation equation;
    double coefficient; /* c of data_equation_exact */
    int32_t grid[2],
        test_grid[2]; /* points along t, along x, both ends included; of training, of evaluation */
    double step;      /* difference in t between points of a sequence of `context` points */

    const char *cache_dir; /* absolute; NULL: nothing is cached (cache.h) */
    /* Deadline on the monotonic clock for opening with headers_only (PD_ERR_TIMEOUT); 0: none. */
    int64_t until_us;
};

struct data_info {
    enum data_kind kind;
    int32_t channels, height, width; /* images: extents of the network's input */
    int32_t classes;                 /* images, labelled texts; else 0 */
    int32_t vocab, context;          /* tokens: ids 0..vocab-1 */
    bool pairs;                      /* a sample is two sequences of at most context / 2 tokens */
    enum data_equation equation;     /* points; else DATA_EQUATION_NONE, with the next four 0 */
    double coefficient, step;
    int32_t grid[2], test_grid[2];
    int64_t count[DATA_SPLITS];     /* samples of each part: images or sequences; without a test part 0 */
    int64_t tokens[DATA_SPLITS];    /* tokens of each part of a text; 0 for images */
    float mean[3], std[3];          /* images: the network reads (byte / 255 - mean) / std of the channel */
    struct data_eval_fit fit;       /* images: the evaluation transform */
    const char *const *class_names; /* `classes` names, or NULL */
    int64_t unread;                 /* images: files in formats that polyd does not read (.webp, .bmp, ...) */
    const char *unread_name;        /* name of one of them; NULL: there are none */
    const struct data_tokenizer *tokenizer; /* tokens; NULL if only headers were read */
    /* SHA-256 of the list of files read (note.c), in hex; "" if only headers or no files were read. */
    char digest[65];
    const char *
        digest_of; /* what the list covers: "contents" or "names_and_sizes" (pictures); static; NULL: no digest */
    bool estimated; /* headers only: token counts are estimates, because the text is long */
};

struct data_set;

/* Opens and reads the data set. headers_only: reads sizes only; no sample can be drawn. The caller owns *ret. */
PD_NODISCARD enum pd_err data_open(const struct data_options *options, bool headers_only,
                                   struct data_set **ret, struct pd_why *why);
struct data_set *data_free(struct data_set *set);
/* Borrowed until data_free. */
const struct data_info *data_info(const struct data_set *set);

/* Warnings about a readable set, for dry runs and the events of a run. */
#define DATA_WARNINGS_MAX 4
#define DATA_ENLARGED 1.5 /* warn above this ratio of the input's sides to the median sides of the pictures */
#define DATA_FOREIGN_SHARE 0.01 /* warn above this share of bytes that are not UTF-8 */
struct data_warning {
    const char *
        kind; /* of the event: "unread_pictures", "unread_links", "enlarged_pictures", "unread_files", "not_utf8", "packed_text"; static */
    const char *pointer; /* the field responsible, such as "#/data/path"; static */
    char fields[64];     /* of the event, such as "files=3" */
    char text[400];
};
size_t data_warnings(const struct data_set *set, struct data_warning ret[DATA_WARNINGS_MAX]);

/* Counters of the work done by data_open; a second start with a warm cache has smaller ones. */
struct data_work {
    int64_t tokenised_bytes;  /* bytes of text converted to tokens */
    int64_t decoded_pictures; /* pictures decoded to fill a cache */
    int64_t cache_hits, cache_misses;
};
void data_work(const struct data_set *set, struct data_work *ret);

/* One batch in host memory: tensors with the names of the graphs' inputs; their first dimension is `batch`.
 *   images  "input" U8 (batch, channels, height, width), "target" I32 (batch); in training with erasing "input" is
 *           F32 and normalised; in training with mixup or cutmix also "mix" F32 (batch, MODEL_MIXES), see model.h
 *   tokens  "input" I32 (batch, context), "target" I32 (batch, context): the next token of each
 *   labelled texts  "input" I32 (batch, context): tokens, then zeros; "last" I32 (batch): the index of the last token
 *           among the rows of the graph's input (of one padding token if the text is empty); "target" I32 (batch):
 *           the class
 *   points  "x", "t" F32 (batch, points, context): a sample is a whole grid, t outermost; in validation also "exact" F32
 *           (batch, points): the solution at the first point of each sequence
 * Samples from `used` on, and pictures that cannot be decoded, are zeros with target DATA_IGNORE. */
#define DATA_IGNORE (-100)
#define DATA_TENSORS_MAX 8
struct data_tensor {
    const char *name; /* static */
    enum pk_dtype dtype;
    struct pk_shape shape;
    const void *data;
};
struct data_batch {
    int32_t batch, used;
    int64_t epoch;
    int count;
    struct data_tensor tensor[DATA_TENSORS_MAX];
};

/* Names, dtypes and shapes of the tensors in batches of a part; `data` is NULL and `used` 0. */
void data_batch_form(const struct data_set *set, enum data_split split, int32_t batch,
                     struct data_batch *ret);
/* The tensor of that name, borrowed from the batch; NULL: there is none. */
const struct data_tensor *data_batch_find(const struct data_batch *b, const char *name);

/* Samples of an epoch over `samples` samples: all of them, or with repeated augmentation (as in DeiT's reference code)
 * the largest multiple of 256 that does not exceed them: an epoch is no longer than without it. */
#define DATA_REPEATS_MULTIPLE 256
int64_t data_epoch_samples(int64_t samples, int32_t repeats);
/* Steps of one epoch of training: full batches only, the remaining samples are skipped. */
int64_t data_steps_per_epoch(const struct data_set *set, int32_t batch);

/* Starts a loader, which prepares batches in order on `threads` threads of its own (1 .. DATA_LOADER_THREADS_MAX) ahead
 * of the reader. The set must outlive it. Training: batch k belongs to global step k, without end; each epoch is
 * reshuffled and augmented. Validation and test: the part once, in file order, not augmented, the last batch padded; of a
 * text whole windows only, without up to context - 1 targets at its end.
 * `first` is the number of the first batch. The caller owns *ret. */
#define DATA_LOADER_THREADS_MAX 64
struct data_loader;
PD_NODISCARD enum pd_err data_loader_start(const struct data_set *set, enum data_split split, int32_t batch,
                                           uint64_t seed, int64_t first, int threads,
                                           struct data_loader **ret, struct pd_why *why);
/* One rank's share of the same batches. A batch of `whole` samples is divided into `parts` equal parts, and each part
 * into `ranks` equal pieces; the loader delivers piece `rank` of each part, concatenated: whole / ranks samples. These
 * samples and their augmentation equal those of one loader of the whole batch. parts x ranks divides whole. Validation
 * has one part, and every rank has the same number of batches; the last may be empty (used = 0) for some ranks. */
struct data_share {
    int32_t whole, parts;
    int rank, ranks;
};
PD_NODISCARD enum pd_err data_loader_start_share(const struct data_set *set, enum data_split split,
                                                 const struct data_share *share, uint64_t seed, int64_t first,
                                                 int threads, struct data_loader **ret, struct pd_why *why);
/* Waits for the next batch, which is borrowed until the next call; batch->used is 0 at the end of a validation pass.
 * PD_ERR_CORRUPT: more than DATA_BAD_SHARE of the pictures, and more than DATA_BAD_MIN, cannot be decoded. Other
 * errors: a file can no longer be read. */
#define DATA_BAD_SHARE 0.01
#define DATA_BAD_MIN 10
PD_NODISCARD enum pd_err data_loader_next(struct data_loader *l, const struct data_batch **ret,
                                          struct pd_why *why);
/* Total time that data_loader_next has waited, in microseconds. */
int64_t data_loader_waited_us(const struct data_loader *l);
struct data_loader *data_loader_free(struct data_loader *l);

/* Number of different pictures that could not be decoded so far. */
int64_t data_bad_count(const struct data_set *set);
/* Returns the next of the first DATA_BAD_NAMED such pictures with its name and the reason, each once; false: there is
 * no further one at present. */
#define DATA_BAD_NAMED 100
bool data_bad_next(const struct data_set *set, char name[256], char reason[256]);
/* PD_ERR_CORRUPT: too many pictures cannot be decoded (data_loader_next); the sentence names the first. */
PD_NODISCARD enum pd_err data_bad_check(const struct data_set *set, struct pd_why *why);
/* Ranks that open one set tell each other which pictures they could not decode. data_bad_size: bytes that
 * data_bad_save writes, equal on all ranks; 0: the set has no picture files, and the others must not be called.
 * data_bad_fresh: number of pictures found since data_bad_save. data_bad_merge adds what another rank has saved. */
size_t data_bad_size(const struct data_set *set);
int64_t data_bad_fresh(const struct data_set *set);
void data_bad_save(const struct data_set *set, void *to);
void data_bad_merge(const struct data_set *set, const void *from);

/* Draws the 28 x 28 picture of one generated digit, 0..9. A pure function of its arguments. */
void data_digit_draw(uint64_t seed, int64_t index, int digit, uint8_t pixels[28 * 28]);

/* Appends a ListOps text of the Long Range Arena to `out` without parentheses. PD_ERR_INVALID: a word is not a token of
 * ListOps; the sentence names it. */
PD_NODISCARD enum pd_err data_listops_clean(const char *text, size_t len, struct pd_buf *out,
                                            struct pd_why *why);

/* Default mean and standard deviation of each channel for images of `channels` channels: those of ImageNet for three,
 * else those of MNIST's training part in all entries. */
void data_normalisation(int channels, float mean[3], float std[3]);

/* Opens the file or folder `<root>/<relative>` for reading; the caller closes *ret_fd. PD_ERR_DENIED: the path leads
 * outside the root. */
PD_NODISCARD enum pd_err data_path_open(const struct data_root *roots, size_t count, const char *path,
                                        bool directory, int *ret_fd, struct pd_why *why);
/* The same for the file `name` of a folder. It may be a symbolic link to any file below the root, as in Hugging Face's
 * cache. */
PD_NODISCARD enum pd_err data_path_open_in(const struct data_root *roots, size_t count, const char *folder,
                                           const char *name, int *ret_fd, struct pd_why *why);
