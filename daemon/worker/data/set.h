/* daemon/worker/data/set.h: private to this module: what a data set holds. */
#pragma once

#include <stddef.h>

#include "daemon/digest/digest.h"
#include "daemon/worker/data/data.h"

struct data_pictures;
struct data_cache;
struct data_bad;

/* The ids of one part of a text: one after the other, `width` bytes each (1, 2 or 4, little-endian). */
struct data_ids_view {
    const void *ids; /* NULL when only headers were read */
    int width;
    int64_t count;
};

/* How the samples of one kind of data become tensors. All but `tensors` are functions of their arguments. */
struct data_set;
struct data_form {
    enum data_kind kind;
    /* Names, dtypes and shapes, each with `batch` as its first dimension; how many. */
    int (*tensors)(const struct data_set *set, enum data_split split, int32_t batch,
                   struct data_tensor ret[DATA_TENSORS_MAX]);
    /* Whether samples can be drawn, or only headers were read. */
    bool (*whole)(const struct data_set *set, enum data_split split);
    /* Sample number `sample` of a part, at place `position` of an epoch, written to to[i] for tensor i.
     * `row`: its place in the graph's input, which is a part of the batch where a step has several. */
    enum pd_err (*make)(const struct data_set *set, enum data_split split, uint64_t seed, int64_t epoch,
                        int64_t position, uint32_t sample, int32_t row, void *scratch, void *const *to,
                        struct pd_why *why);
    /* The padding of the last validation batch. */
    void (*none)(const struct data_set *set, int32_t row, void *const *to);
};
extern const struct data_form data_form_images, data_form_tokens, data_form_labelled, data_form_points;

/* The labelled texts of one part, whose tokens lie one after the other in `made`. */
struct data_labelled {
    int64_t
        *start; /* where those of each text begin, and behind the last; NULL when only headers were read */
    int32_t *classes; /* of each text */
};

/* Ascending places in the bytes of a text. */
struct data_ends {
    int64_t *at;
    size_t count, room;
};

/* The list of files whose digest is the set's. */
struct data_note {
    struct digest_sha256 list;
    int64_t files;
    bool names; /* names and sizes alone */
};

struct data_set {
    struct data_info info;
    struct data_note note;
    const struct data_form *form;
    struct data_options options; /* its pointers are not kept */
    /* images of all parts, one after the other; each (height, width, channels) as stored */
    uint8_t *pixels;
    int32_t stored_height, stored_width;
    struct data_pictures *pictures; /* or these, to be decoded */
    int64_t samples;                /* all of them, also those that no part took; 0 for streams of text */
    int32_t median_height,
        median_width; /* of pictures as their files have them, from a sample; 0 = unknown */
    int32_t *labels;
    uint32_t *pick[DATA_SPLITS]; /* images, labelled texts: index of each sample of a part */
    char **names;                /* of the classes; info.class_names points here */
    struct data_bad *bad;
    /* text */
    uint8_t *text;
    struct data_ids_view part[DATA_SPLITS];
    struct data_ids made[DATA_SPLITS];   /* ids that this set owns, behind part */
    struct data_cache *map[DATA_SPLITS]; /* or a mapped cache */
    struct data_labelled labelled[DATA_SPLITS];
    int64_t unread_files;  /* of a folder of documents: files of other names */
    char unread_file[256]; /* one of them */
    int64_t cut_texts;     /* labelled texts with more tokens than the context */
    struct data_tokenizer *tokenizer;
    size_t text_room;          /* bytes that `text` has memory for */
    struct data_ends document; /* where documents end that the tokenizer's end token follows; else none */
    int64_t text_bytes, foreign_bytes; /* of the text; those that are not UTF-8 (0 where bytes are tokens) */
    const char *text_packing;          /* how its bytes are packed, if they are and are read so; static */
    struct data_work work;
};

/* ---- divide.c ---- */

/* Sizes of the parts, from the options' rule over `whole` samples. `given`: samples in files of each part's own; under
 * the rules other than standard test files are not counted, and what is tested is not decided here: ret[DATA_TEST] is 0.
 * The rule "given" is refused where a part has none. */
PD_NODISCARD enum pd_err data_divide(const struct data_options *o, int64_t whole,
                                     const int64_t given[DATA_SPLITS], int64_t ret[DATA_SPLITS],
                                     struct pd_why *why);
/* Likewise of data that are made: `usual` by default. Under the rules other than standard what is tested is as long as
 * what validates, if an evaluation asks for it. */
PD_NODISCARD enum pd_err data_divide_made(const struct data_options *o, const int64_t usual[DATA_SPLITS],
                                          int64_t ret[DATA_SPLITS], struct pd_why *why);
/* Divides images or labelled texts, those of the training files first, then those of validation, then of test files,
 * and fills info.count and, unless headers_only, pick. */
PD_NODISCARD enum pd_err data_divide_samples(struct data_set *set, const struct data_options *o,
                                             const int64_t given[DATA_SPLITS], bool headers_only,
                                             struct pd_why *why);
/* The part whose samples stand for the validation part. */
enum data_split data_scored_part(enum data_scored scored);
/* PD_ERR_INVALID: the set has no test part of its own, and its split leaves none. */
PD_NODISCARD enum pd_err data_no_test(const struct data_options *o, struct pd_why *why);
/* Fills item with 0 .. count-1 in the order of this epoch. */
void data_shuffle_epoch(uint32_t *item, int64_t count, uint64_t seed, int64_t epoch);

/* ---- note.c ---- */

/* Notes a file that was read whole: its unpacked bytes, in two pieces. */
void data_note_file(struct data_set *set, const char *name, const void *head, size_t head_len,
                    const void *rest, size_t rest_len);
/* Notes a file that is read later. */
void data_note_name(struct data_set *set, const char *name, uint64_t size);
/* Sets info.digest, if any file was noted. */
void data_note_end(struct data_set *set);

/* ---- set.c ---- */

/* Notes that picture `index` (named `name`) cannot be decoded. */
void data_bad_note(const struct data_set *set, int64_t index, const char *name, const char *reason);
/* Whether there are too many of them to go on; `why` then names the first. */
PD_NODISCARD enum pd_err data_bad_check(const struct data_set *set, struct pd_why *why);

/* PD_ERR_TIMEOUT past the time of struct data_options, else PD_OK. */
PD_NODISCARD enum pd_err data_in_time(int64_t until_us, struct pd_why *why);

/* ---- the kinds; each fills the set, which data_free releases also half-filled ---- */

PD_NODISCARD enum pd_err data_open_mnist(struct data_set *set, const struct data_options *o,
                                         bool headers_only, struct pd_why *why);
PD_NODISCARD enum pd_err data_open_digits(struct data_set *set, const struct data_options *o,
                                          bool headers_only, struct pd_why *why);
PD_NODISCARD enum pd_err data_open_cifar(struct data_set *set, const struct data_options *o,
                                         bool headers_only, struct pd_why *why);
PD_NODISCARD enum pd_err data_open_pictures(struct data_set *set, const struct data_options *o,
                                            bool headers_only, struct pd_why *why);
PD_NODISCARD enum pd_err data_open_text(struct data_set *set, const struct data_options *o, bool headers_only,
                                        struct pd_why *why);
PD_NODISCARD enum pd_err data_open_labelled(struct data_set *set, const struct data_options *o,
                                            bool headers_only, struct pd_why *why);
PD_NODISCARD enum pd_err data_open_points(struct data_set *set, const struct data_options *o,
                                          struct pd_why *why);
PD_NODISCARD enum pd_err data_open_greys(struct data_set *set, const struct data_options *o,
                                         bool headers_only, struct pd_why *why);
/* Frees what data_open_labelled kept of the samples; the set stays good for its facts. */
void data_labelled_done(struct data_set *set);

/* ---- names that the kinds know ---- */

/* Of a file of an IDX pair; of CIFAR-10's records; of one part of a text, or of labelled texts; a folder's
 * of a part of pictures. */
bool data_idx_named(const char *name);
bool data_cifar_named(const char *name);
bool data_part_text_named(const char *name);
bool data_labelled_named(const char *name);
bool data_part_folder_named(const char *name);
/* A JPEG's or a PNG's; of an archive of them. */
bool data_picture_named(const char *name);
bool data_archive_named(const char *name);

/* ---- idx.c, cifar.c ---- */

/* Pictures and labels of one IDX pair. headers_only leaves both NULL. The caller owns them. */
struct data_idx {
    uint8_t *pixels, *labels;
    int64_t count;
    int32_t height, width;
};
PD_NODISCARD enum pd_err data_idx_read(struct data_set *set, int dir, bool training, bool headers_only,
                                       struct data_idx *ret, struct pd_why *why);

#define DATA_CIFAR_RECORD 3073 /* a label, then 1024 bytes of red, green and blue each */
/* Splits records into (32, 32, 3) pixels and labels; both hold `count` of them. PD_ERR_CORRUPT: a label
 * beyond 9. */
PD_NODISCARD enum pd_err data_cifar_unpack(const uint8_t *records, int64_t count, uint8_t *pixels,
                                           int32_t *labels, struct pd_why *why);

/* ---- pictures.c ---- */

struct data_pictures *data_pictures_free(struct data_pictures *p);
/* Picture `index`, decoded or from the cache; *ret_owned tells whether ret->pixels is the caller's. */
PD_NODISCARD enum pd_err data_picture_get(const struct data_set *set, int64_t index, struct data_image *ret,
                                          bool *ret_owned, struct pd_why *why);
const char *data_picture_name(const struct data_set *set, int64_t index);

/* ---- text.c ---- */

/* For its size alone a longer text is not cut into tokens: their number is then a guess. */
#define DATA_COUNTED_BYTES_MAX ((size_t)64 << 20)
/* Opens a file of the folder, or for want of it its gzip'd form: *ret_fd stays -1 if there is neither. */
PD_NODISCARD enum pd_err data_part_open(int dir, const char *name, int *ret_fd, struct pd_why *why);
/* Whether this part of a set that has parts of its own is read. */
bool data_text_wants(const struct data_options *o, enum data_split part);

/* ---- documents.c ---- */

/* Reads a folder of documents into set->text and set->document; given[] are the bytes of the parts that it has, or of
 * the whole as DATA_TRAIN (with options->tokens: as DATA_TEST). size_only: no text. */
PD_NODISCARD enum pd_err data_documents_read(struct data_set *set, const struct data_options *o,
                                             bool size_only, int64_t given[DATA_SPLITS], struct pd_why *why);
/* Of one of its files; of a part's folder. */
bool data_document_named(const char *name);

/* ---- ids.c ---- */

/* Sets info.tokenizer: the options' one, or set->tokenizer, which is made or opened; the characters are those of the
 * first `whole` bytes, the words of `train`. */
PD_NODISCARD enum pd_err data_open_tokenizer(struct data_set *set, const struct data_options *o,
                                             const void *text, size_t whole, size_t train,
                                             struct pd_why *why);
/* The tokens of `len` bytes of set->text from `start` on, as set->part[part]. */
PD_NODISCARD enum pd_err data_open_ids(struct data_set *set, const struct data_options *o,
                                       enum data_split part, int64_t start, size_t len, struct pd_why *why);

/* ---- textfile.c ---- */

/* Appends the file, unpacked if it is gzip'd, to set->text, whose first *at bytes are used; size_only: only
 * adds to *at. Takes the descriptor over. PD_ERR_LIMIT beyond DATA_FILE_LIMIT (of documents DATA_FOLDER_LIMIT), also
 * when unpacked. */
/* Memory for `len` bytes and one more in set->text. */
PD_NODISCARD enum pd_err data_text_room(struct data_set *set, size_t len, const char *name,
                                        struct pd_why *why);
PD_NODISCARD enum pd_err data_text_append(struct data_set *set, int fd, const char *name, bool size_only,
                                          int64_t *at, struct pd_why *why);
/* Whether the file begins as text does, also when it is unpacked; *ret_packing: how it is packed where that
 * is not read, else NULL (static). The descriptor stays the caller's, at any place. */
bool data_text_begins(int fd, const char **ret_packing);
/* Bytes that belong to no UTF-8 sequence. */
int64_t data_text_foreign(const uint8_t *text, size_t len);

/* ---- sample.c: one sample, a function of its arguments ---- */

/* Bytes of `scratch` that `make` of a form works in. */
size_t data_sample_scratch(const struct data_set *set);
