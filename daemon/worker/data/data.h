/* daemon/worker/data/data.h: data sets, their order, and the threads that prepare batches.
 *
 * The order of samples and every random choice is a function of (seed, epoch, position) through a
 * counter-based generator (philox.h): no state has to be saved, and neither timing nor the number of threads
 * can change it. Files lie under named roots, `<root>/<relative>`; no "..", no symbolic link leaves a root.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/worker/data/image.h"
#include "daemon/worker/data/tokenizer.h"
#include "kernels/base/err.h"
#include "kernels/graph/tensor.h"

/* A named folder of the daemon's configuration. */
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
#define DATA_EQUATION_WORDS "convection reaction wave"
#define DATA_GRID_MAX 1024 /* points of an axis */
/* The exact solution; `c` is beta, rho or the speed of the wave. */
double data_equation_exact(enum data_equation equation, double c, double x, double t);
/* "convection", "reaction", "wave", else "none"; static. */
const char *data_equation_name(enum data_equation equation);
/* Where x ends; it begins at 0, and t lies in [0, 1]. */
double data_equation_width(enum data_equation equation);

enum data_dataset {
    DATA_SET_MNIST,
    DATA_SET_DIGITS_GEN,
    DATA_SET_CIFAR10,
    DATA_SET_PICTURES,       /* folders of JPEG and PNG files, or a tar of them */
    DATA_SET_TEXT,           /* one file */
    DATA_SET_TEXTS,          /* a folder with a file for each part */
    DATA_SET_LABELLED,       /* texts with classes: one table, or a folder with one for each part */
    DATA_SET_TEXT_GEN,       /* sentences that polyd makes */
    DATA_SET_DOCUMENTS,      /* a folder of text files, a document each */
    DATA_SET_POINTS,         /* grids of points of an equation, which polyd makes */
    DATA_SET_LISTOPS_GEN,    /* labelled sequences that polyd makes: expressions and their values */
    DATA_SET_PATHFINDER_GEN, /* likewise: pictures of curves, pixel by pixel */
    DATA_SET_LISTOPS,        /* labelled expressions from tables, as the Long Range Arena has them */
    DATA_SET_IMDB,           /* labelled texts from tables without a header, their bytes from 1 on */
    DATA_SET_AAN,            /* likewise pairs of texts */
    DATA_SET_GREYS,          /* pictures of CIFAR-10, grey by grey */
    DATA_SET_PAIRS           /* pairs of pieces of a folder's documents: from one document, or from two */
};
/* How this build reads a data set of the job document (enum job_dataset); false: it does not. */
bool data_form(int dataset, enum data_dataset *ret);
enum data_split { DATA_TRAIN, DATA_VAL, DATA_TEST };
#define DATA_SPLITS 3
/* The samples that DATA_VAL stands for: an evaluation may ask for others than training does. */
enum data_scored { DATA_SCORED_VAL, DATA_SCORED_TEST, DATA_SCORED_TRAIN };
enum data_split_rule { DATA_SPLIT_GIVEN, DATA_SPLIT_FRACTION, DATA_SPLIT_COUNT, DATA_SPLIT_STANDARD };
enum data_crop { DATA_CROP_NONE, DATA_CROP_PAD, DATA_CROP_RRC };

/* Most bytes read from one file of a data set, after decompression (a plain tar is not read whole). */
#define DATA_FILE_LIMIT ((size_t)4 << 30)
#define DATA_FOLDER_LIMIT ((size_t)64 << 30) /* likewise from all files of a folder of documents */
#define DATA_DOCUMENTS_MAX 20000000
#define DATA_PICTURES_MAX 50000000
#define DATA_GENERATED_BYTES_MAX ((int64_t)64 << 20) /* of the training and validation text of text_gen */
#define DATA_CLASSES_MAX 100000

struct data_options {
    enum data_dataset dataset;
    /* "<root>/<relative>"; NULL for digits_gen, text_gen, listops_gen and pathfinder_gen.
     *   mnist     a folder with the four IDX files (plain or .gz): {train,train10k}-images-idx3-ubyte,
     *             {train,..}-labels-idx1-ubyte, {t10k,t2k}-...
     *   cifar10   a folder with data_batch*.bin and, where there are any, test_batch*.bin (plain or .gz), or
     *             one such file; names of the classes from batches.meta.txt in the same folder
     *   pictures  a folder, or a tar (plain or .gz), with train/CLASS/... and val/CLASS/..., or CLASS/...
     *             alone; val/images with val_annotations.txt (Tiny-ImageNet) is understood
     *   text      one file, plain or gzip'd
     *   texts     a folder with a file for each part: {ptb.,wiki.,}train.{txt,tokens}[.gz], ...valid or val
     *   documents a folder of *.txt[.gz], in folders of its own or not, a document each; files below train/,
     *             {validation,valid,val}/ and test/ are these parts, where there are such folders
     *   labelled  one file *.{tsv,csv,jsonl}[.gz] with the columns label and text, or a folder with train.*,
     *             {valid,val,validation}.* (for want of these test.*) and test.*
     *   listops   the same with the columns Target and Source, also basic_{train,val,test}.*
     *   imdb      the same without a header row: label, id, text
     *   aan       the same without a header row: label, id, id, text, text; also new_aan_pairs.{train,eval,test}.*
     *   greys     as cifar10, or as pictures (which become 32 x 32)
     *   pairs     as documents
     */
    const char *path;
    const struct data_root *roots;
    size_t root_count;
    enum data_split_rule rule;
    /* fraction: shares of the whole (text: contiguous; images, labelled texts: after a shuffle seeded with
     * `seed`). count: that many samples (text: bytes), from the parts that the data set itself has, else
     * disjoint ones of a seeded shuffle. given: as the data set comes; for digits_gen 4000 and 1000; for
     * text_gen 1,000,000 and 100,000 bytes; for text 0.9 and 0.1. These three make two parts, of which the
     * second may be the set's own test part.
     * standard: three parts. Validation and test come from files of their own where the set has some, else from the
     * training files; `amount` says how much. */
    enum data_scored scored;
    double train_share, val_share;
    int64_t train_count, val_count;
    /* standard, by enum data_split: below 1 a share, of the part's own files or else of the training files; from 1 on
     * that many samples (text: bytes); 0 = of own files all. For want of own files a tenth validates and nothing
     * is tested; training takes what is left. Generated data: no shares; 0 = 4000, 1000 and 1000 digits or
     * 1,000,000, 100,000 and 100,000 bytes. */
    double amount[DATA_SPLITS];
    /* standard, pictures: the folder val is the test part, as ImageNet's results are published */
    bool val_is_test;
    uint64_t seed; /* of the shuffle, and of what is generated; the order of samples is the loader's */

    /* text */
    int32_t context;    /* tokens of a sequence; of a labelled text the most that are kept */
    int32_t depth;      /* listops_gen: levels of an expression, at most */
    int32_t min_tokens; /* listops_gen: of a sequence, at least */
    int32_t contour;    /* pathfinder_gen: dashes of a curve */
    int32_t most; /* of labelled sequences (of pairs: of each) what comes later is cut off; 0: all that fit */
    enum data_tokenizer_kind tokenizer;
    const char *tokenizer_path; /* gpt2_bpe: folder of its files, "<root>/<relative>" */
    /* A stream of text that another set's tokenizer cuts, of the kind above, borrowed until data_free; NULL: its
     * own. Such a set is only scored: DATA_VAL is its test part, or all of a text without parts, and the other
     * parts are empty. PD_ERR_INVALID where it has no test part. */
    const struct data_tokenizer *tokens;

    /* images */
    int32_t height, width; /* what the network reads; 0 = as stored (not for pictures) */
    enum data_crop crop;   /* of training pictures */
    int32_t shift;         /* pad_crop: pixels of zero pad and random shift */
    double rrc_scale[2], rrc_ratio[2];
    double flip; /* probability of a mirrored training picture */
    struct data_recipe {
        int32_t ra_n; /* RandAugment: operations for each picture; 0: none */
        double ra_m, ra_std;
        bool ra_increasing;
        double mixup, cutmix;         /* alphas; 0: not */
        double mix_prob, switch_prob; /* that a group is mixed; that it is by cutmix where both are on */
        int32_t mix_group;            /* images that are mixed with each other; divides the batch of a part */
        double erasing;               /* probability; training pictures then come normalised, of f32 */
        int32_t repeats;     /* times that an epoch's order holds each picture, one after the other */
    } recipe;                /* of training pictures */
    double eval_crop;        /* 0 stands for 1 */
    enum data_filter filter; /* of every change of size */

    /* points */
    enum data_equation equation;
    double coefficient;            /* c of data_equation_exact */
    int32_t grid[2], test_grid[2]; /* points of t, of x, both ends included: trained on, evaluated on */
    double step;                   /* in t, from a point of a sequence of `context` to the next */

    const char *cache_dir; /* absolute; NULL = nothing is cached (cache.h) */
    /* On the monotonic clock: opening with headers_only ends then with PD_ERR_TIMEOUT; 0 = whenever. */
    int64_t until_us;
};

struct data_info {
    enum data_kind kind;
    int32_t channels, height, width; /* images, as the network reads them */
    int32_t classes;                 /* images, labelled texts; else 0 */
    int32_t vocab, context;          /* tokens: ids 0..vocab-1 */
    bool pairs;                      /* a sample is two sequences, each in half the context */
    enum data_equation equation;     /* points; else none, and what follows is 0 */
    double coefficient, step;
    int32_t grid[2], test_grid[2];
    int64_t count[DATA_SPLITS];     /* samples by enum data_split: images or sequences; no test part: 0 */
    int64_t tokens[DATA_SPLITS];    /* tokens of each part of a text; 0 for images */
    float mean[3], std[3];          /* images: the network reads (byte / 255 - mean) / std of the channel */
    struct data_eval_fit fit;       /* images: the evaluation transform */
    const char *const *class_names; /* `classes` of them, or NULL */
    int64_t unread;          /* images: files of a kind of picture that is not read (.webp, .bmp, ...) */
    const char *unread_name; /* one of them; NULL = there are none */
    const struct data_tokenizer *tokenizer; /* tokens; NULL where only headers were read */
    /* Of the files that were read, SHA-256 in hex (note.c says of what); "" where only headers were read or nothing was, and
     * digest_of, else static, is then NULL. */
    char digest[65];
    const char *digest_of; /* "contents", or "names_and_sizes" of pictures */
    bool estimated;        /* headers only: counts of tokens are a guess, the text was too long to be read */
};

struct data_set;

/* Opens and reads the data set. headers_only: sizes only, no sample can be drawn. */
PD_NODISCARD enum pd_err data_open(const struct data_options *options, bool headers_only,
                                   struct data_set **ret, struct pd_why *why);
struct data_set *data_free(struct data_set *set);
/* Borrowed until data_free. */
const struct data_info *data_info(const struct data_set *set);

/* What is odd about the set, though it can be read: for dry runs and the events of a run. */
#define DATA_WARNINGS_MAX 4
#define DATA_ENLARGED 1.5 /* so much larger than most pictures the network's input may be without a word */
#define DATA_FOREIGN_SHARE 0.01 /* of a text's bytes may be no UTF-8 without a word */
struct data_warning {
    const char *
        kind; /* of the event: "unread_pictures", "enlarged_pictures", "unread_files", "not_utf8", "packed_text"; static */
    const char *pointer; /* the field that decides it, "#/data/path"; static */
    char fields[64];     /* of the event: "files=3" */
    char text[400];
};
size_t data_warnings(const struct data_set *set, struct data_warning ret[DATA_WARNINGS_MAX]);

/* What the opening did: how a second start shows that it did less. */
struct data_work {
    int64_t tokenised_bytes;  /* text that was cut into tokens */
    int64_t decoded_pictures; /* decoded to fill a cache */
    int64_t cache_hits, cache_misses;
};
void data_work(const struct data_set *set, struct data_work *ret);

/* One batch in host memory: tensors under the names of the graphs' inputs, the first dimension `batch`.
 *   images  "input" U8 (batch, channels, height, width), "target" I32 (batch); of training with erasing "input"
 *           F32, normalised; of training with mixup or cutmix "mix" F32 (batch, MODEL_MIXES), as model.h has it
 *   tokens  "input" I32 (batch, context), "target" I32 (batch, context): the next token of each
 *   labelled texts  "input" I32 (batch, context): tokens, then zeros; "last" I32 (batch): the row of its last
 *           token among the rows of the graph's input (one token of padding where a text has none);
 *           "target" I32 (batch): its class
 *   points  "x", "t" F32 (batch, points, context): a sample is a whole grid, t outermost; of validation also "exact" F32
 *           (batch, points), the solution at the first point of each sequence
 * Samples beyond `used` are zeros with target DATA_IGNORE, and so is a picture that cannot be decoded. */
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

/* The batches of this part: names, dtypes and shapes; no data, and nothing is used. */
void data_batch_form(const struct data_set *set, enum data_split split, int32_t batch,
                     struct data_batch *ret);
/* NULL: the batch has no tensor of that name. */
const struct data_tensor *data_batch_find(const struct data_batch *b, const char *name);

/* Samples of an epoch over so many: all, or with repeats the floor of a multiple of 256, each taken several times
 * (the reference's repeated augmentation: an epoch is no longer than without it). */
#define DATA_REPEATS_MULTIPLE 256
int64_t data_epoch_samples(int64_t samples, int32_t repeats);
/* Steps of one pass over the training part: whole batches only, the rest of an epoch is left out. */
int64_t data_steps_per_epoch(const struct data_set *set, int32_t batch);

/* A loader prepares batches in order on `threads` threads of its own (1 .. DATA_LOADER_THREADS_MAX), ahead of
 * the reader. The set must outlive it. Training: batch k is global step k, for ever, shuffled anew each epoch
 * and augmented. Validation and test: the whole part once, in file order, not augmented, the last batch padded.
 * `first` is the first batch. */
#define DATA_LOADER_THREADS_MAX 64
struct data_loader;
PD_NODISCARD enum pd_err data_loader_start(const struct data_set *set, enum data_split split, int32_t batch,
                                           uint64_t seed, int64_t first, int threads,
                                           struct data_loader **ret, struct pd_why *why);
/* One rank's share of the same batches: of each of the `parts` equal parts of a batch of `whole` samples the
 * rank-th of `ranks` equal pieces, one behind the other: a batch holds whole / ranks samples. Which samples
 * these are, and how they are changed, is as if one loader made the whole. parts x ranks divides whole;
 * validation has one part, and as many batches for every rank: the last may hold none (used = 0) for some. */
struct data_share {
    int32_t whole, parts;
    int rank, ranks;
};
PD_NODISCARD enum pd_err data_loader_start_share(const struct data_set *set, enum data_split split,
                                                 const struct data_share *share, uint64_t seed, int64_t first,
                                                 int threads, struct data_loader **ret, struct pd_why *why);
/* The next batch, borrowed until the next call; batch->used = 0 at the end of a validation pass. Fails when a
 * file cannot be read any more, and PD_ERR_CORRUPT when more than DATA_BAD_SHARE of the pictures (and more
 * than DATA_BAD_MIN) could not be decoded: such a set is not what the job named. */
#define DATA_BAD_SHARE 0.01
#define DATA_BAD_MIN 10
PD_NODISCARD enum pd_err data_loader_next(struct data_loader *l, const struct data_batch **ret,
                                          struct pd_why *why);
/* Microseconds that data_loader_next has waited in all. */
int64_t data_loader_waited_us(const struct data_loader *l);
struct data_loader *data_loader_free(struct data_loader *l);

/* Pictures of the set that could not be decoded so far, each counted once. */
int64_t data_bad_count(const struct data_set *set);
/* Hands out each of the first DATA_BAD_NAMED of them once: true, with its name and what is wrong, while there
 * are any not yet handed out. */
#define DATA_BAD_NAMED 100
bool data_bad_next(const struct data_set *set, char name[256], char reason[256]);

/* The 28 x 28 picture of one generated digit, 0..9: a pure function of its arguments. */
void data_digit_draw(uint64_t seed, int64_t index, int digit, uint8_t pixels[28 * 28]);

/* Mean and deviation of each channel as images of so many channels are normalised by default: those of ImageNet
 * for three, those of MNIST's training part (all entries alike) for others. */
void data_normalisation(int channels, float mean[3], float std[3]);

/* Opens the file or folder `<root>/<relative>` for reading; *ret_fd is the caller's to close. Nothing outside
 * the root is ever opened: PD_ERR_DENIED. */
PD_NODISCARD enum pd_err data_path_open(const struct data_root *roots, size_t count, const char *path,
                                        bool directory, int *ret_fd, struct pd_why *why);
