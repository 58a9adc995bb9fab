/* daemon/worker/data/set.h: private to this module: the representation of a data set. */
#pragma once

#include <stddef.h>

#include "daemon/digest/digest.h"
#include "daemon/worker/data/data.h"

struct data_pictures;
struct data_cache;
struct data_bad;

/* The token ids of one part of a text: an array of little-endian numbers of `width` bytes (1, 2 or 4). */
struct data_ids_view {
    const void *ids; /* NULL if only headers were read */
    int width;
    int64_t count;
};

/* How samples of one kind of data become tensors. All functions but `tensors` are pure. */
struct data_set;
struct data_form {
    enum data_kind kind;
    /* Writes names, dtypes and shapes, with `batch` as first dimension; returns their number. */
    int (*tensors)(const struct data_set *set, enum data_split split, int32_t batch,
                   struct data_tensor ret[DATA_TENSORS_MAX]);
    /* Whether samples can be drawn; false: only headers were read. */
    bool (*whole)(const struct data_set *set, enum data_split split);
    /* Writes sample `sample` of a part, at `position` of an epoch, to to[i] for tensor i. `row`: its index in the
     * graph's input, which is a part of the batch if a step has several parts. */
    enum pd_err (*make)(const struct data_set *set, enum data_split split, uint64_t seed, int64_t epoch,
                        int64_t position, uint32_t sample, int32_t row, void *scratch, void *const *to,
                        struct pd_why *why);
    /* Writes a padding sample of the last validation batch. */
    void (*none)(const struct data_set *set, int32_t row, void *const *to);
};
extern const struct data_form data_form_images, data_form_tokens, data_form_labelled, data_form_points;

/* The labelled texts of one part; `made` has their tokens, concatenated. */
struct data_labelled {
    int64_t *start;   /* offset of each text's tokens, and their end; NULL if only headers were read */
    int32_t *classes; /* of each text */
};

/* Ascending offsets in the bytes of a text. */
struct data_ends {
    int64_t *at;
    size_t count, capacity;
};

/* The digest of the list of files read (note.c). */
struct data_note {
    struct digest_sha256 list;
    int64_t files;
    bool names; /* the list has names and sizes only */
};

/* Files that are not read, and the name of one of them. */
struct data_passed {
    int64_t count;
    char name[256];
};

struct data_set {
    struct data_info info;
    struct data_note note;
    const struct data_form *form;
    struct data_options options; /* its pointers are not valid after data_open */
    /* images of all parts, concatenated; each (height, width, channels) as stored */
    uint8_t *pixels;
    int32_t stored_height, stored_width;
    struct data_pictures *pictures; /* files to decode, instead of pixels */
    int64_t samples;                /* including those that belong to no part; 0 for streams of text */
    int32_t median_height,
        median_width; /* median extents of the stored pictures, estimated from a sample; 0: unknown */
    int32_t *labels;
    uint32_t *pick[DATA_SPLITS]; /* images, labelled texts: index of each sample of a part */
    char **names;                /* class names; info.class_names points here */
    struct data_bad *bad;
    struct data_passed unread, links; /* pictures of other formats; links in an archive of pictures */
    /* text */
    uint8_t *text;
    struct data_ids_view part[DATA_SPLITS];
    struct data_ids made[DATA_SPLITS];   /* owned ids that `part` points to */
    struct data_cache *map[DATA_SPLITS]; /* the mapped cache that `part` points to */
    struct data_labelled labelled[DATA_SPLITS];
    int64_t unread_files;  /* folder of documents: files with other names */
    char unread_file[256]; /* name of one of them */
    int64_t cut_texts;     /* labelled texts with more tokens than the context */
    struct data_tokenizer *tokenizer;
    size_t text_size;          /* bytes allocated for `text` */
    struct data_ends document; /* ends of the documents after which an end token is inserted; empty: none */
    int64_t text_bytes, foreign_bytes; /* bytes of the text; of these not UTF-8 (0 if bytes are tokens) */
    const char *text_packing; /* compression format of a text that is read compressed; static; NULL: none */
    struct data_work work;
};

/* ---- divide.c ---- */

/* Computes the sizes of the parts from the options' rule for `whole` samples. `given`: samples in each part's own files.
 * Rules other than standard do not count test files, and ret[DATA_TEST] is 0. PD_ERR_INVALID: a part is empty or too
 * large, or the rule is "given" and a part has no files. */
PD_NODISCARD enum pd_err data_divide(const struct data_options *o, int64_t whole,
                                     const int64_t given[DATA_SPLITS], int64_t ret[DATA_SPLITS],
                                     struct pd_why *why);
/* The same for generated data, with the default sizes `usual`. Under rules other than standard the test part is as large
 * as the validation part if an evaluation scores it, else 0. */
PD_NODISCARD enum pd_err data_divide_made(const struct data_options *o, const int64_t usual[DATA_SPLITS],
                                          int64_t ret[DATA_SPLITS], struct pd_why *why);
/* Divides images or labelled texts, numbered in the order training files, validation files, test files. Fills info.count
 * and, unless headers_only, pick. */
PD_NODISCARD enum pd_err data_divide_samples(struct data_set *set, const struct data_options *o,
                                             const int64_t given[DATA_SPLITS], bool headers_only,
                                             struct pd_why *why);
/* The part that DATA_VAL denotes. */
enum data_split data_scored_part(enum data_scored scored);
/* Returns PD_ERR_INVALID with the sentence that the set has no test part. */
PD_NODISCARD enum pd_err data_no_test(const struct data_options *o, struct pd_why *why);
/* Fills item with a permutation of 0 .. count-1: the order of this epoch. */
void data_shuffle_epoch(uint32_t *item, int64_t count, uint64_t seed, int64_t epoch);

/* ---- note.c ---- */

/* Adds a file that was read completely to the digest: its decompressed bytes, in two pieces. */
void data_note_file(struct data_set *set, const char *name, const void *head, size_t head_len,
                    const void *rest, size_t rest_len);
/* Adds a file that is read later to the digest, by name and size. */
void data_note_name(struct data_set *set, const char *name, uint64_t size);
/* Sets info.digest if a file was added. */
void data_note_end(struct data_set *set);

/* ---- set.c ---- */

/* Records that picture `index`, named `name`, cannot be decoded. */
void data_bad_note(const struct data_set *set, int64_t index, const char *name, const char *reason);

/* PD_ERR_TIMEOUT after the deadline `until_us` of struct data_options, else PD_OK. */
PD_NODISCARD enum pd_err data_in_time(int64_t until_us, struct pd_why *why);

/* ---- the kinds; each fills the set; on failure data_free releases what was filled ---- */

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
/* Frees the samples of data_open_labelled; data_info stays valid. */
void data_labelled_done(struct data_set *set);

/* ---- whether a file name is one that a kind of data set reads ---- */

bool data_idx_named(const char *name);         /* a file of an IDX pair */
bool data_cifar_named(const char *name);       /* records of CIFAR-10 */
bool data_part_text_named(const char *name);   /* one part of a text */
bool data_labelled_named(const char *name);    /* a table of labelled texts */
bool data_part_folder_named(const char *name); /* the folder of a part of pictures */
bool data_picture_named(const char *name);     /* a JPEG or PNG */
bool data_archive_named(const char *name);     /* an archive of pictures */

/* ---- idx.c, stored.c ---- */

/* Pictures and labels of one IDX pair, owned by the caller; NULL with headers_only. */
struct data_idx {
    uint8_t *pixels, *labels;
    int64_t count;
    int32_t height, width;
};
PD_NODISCARD enum pd_err data_idx_read(struct data_set *set, int dir, bool training, bool headers_only,
                                       struct data_idx *ret, struct pd_why *why);

#define DATA_CIFAR_RECORD 3073 /* a label, then 1024 bytes of red, green and blue each */
/* Splits `count` records into pixels (count, 32, 32, 3) and labels (count). PD_ERR_CORRUPT: a label exceeds 9. */
PD_NODISCARD enum pd_err data_cifar_unpack(const uint8_t *records, int64_t count, uint8_t *pixels,
                                           int32_t *labels, struct pd_why *why);

/* ---- pictures.c ---- */

struct data_pictures *data_pictures_free(struct data_pictures *p);
/* Reads picture `index` from its file or from the cache. *ret_owned: whether the caller owns ret->pixels. */
PD_NODISCARD enum pd_err data_picture_get(const struct data_set *set, int64_t index, struct data_image *ret,
                                          bool *ret_owned, struct pd_why *why);
const char *data_picture_name(const struct data_set *set, int64_t index);

/* ---- text.c ---- */

/* With headers_only the token count of a longer text is an estimate. */
#define DATA_COUNTED_BYTES_MAX ((size_t)64 << 20)
/* Opens a file of the folder, or else its gzip'd form. *ret_fd is -1 if there is neither. */
PD_NODISCARD enum pd_err data_part_open(int dir, const char *name, int *ret_fd, struct pd_why *why);
/* Whether this part of a set with files for each part is read. */
bool data_text_wants(const struct data_options *o, enum data_split part);

/* ---- documents.c ---- */

/* Reads a folder of documents into set->text and set->document. given[]: bytes of each part; without parts all bytes are
 * DATA_TRAIN (with options->tokens: DATA_TEST). size_only: reads no text. */
PD_NODISCARD enum pd_err data_documents_read(struct data_set *set, const struct data_options *o,
                                             bool size_only, int64_t given[DATA_SPLITS], struct pd_why *why);
/* Whether a name is that of a document, or of a part's folder. */
bool data_document_named(const char *name);

/* ---- ids.c ---- */

/* Sets info.tokenizer to that of the options, or to set->tokenizer, which it makes or opens: characters from the first
 * `whole` bytes of the text, words from the first `train` bytes. */
PD_NODISCARD enum pd_err data_open_tokenizer(struct data_set *set, const struct data_options *o,
                                             const void *text, size_t whole, size_t train,
                                             struct pd_why *why);
/* Converts `len` bytes of set->text from offset `start` to tokens, as set->part[part]. */
PD_NODISCARD enum pd_err data_open_ids(struct data_set *set, const struct data_options *o,
                                       enum data_split part, int64_t start, size_t len, struct pd_why *why);

/* ---- textfile.c ---- */

/* Whether the set is a folder of documents, read as one text. */
bool data_of_documents(const struct data_set *set);

/* Reserves `len` + 1 bytes in set->text. PD_ERR_NOMEM. */
PD_NODISCARD enum pd_err data_text_reserve(struct data_set *set, size_t len, const char *name,
                                           struct pd_why *why);
/* Appends the file, decompressed if it is gzip'd, to set->text, whose first *at bytes are used; size_only: only adds its
 * size to *at. Closes the descriptor. PD_ERR_LIMIT: more than DATA_FILE_LIMIT bytes (documents: DATA_FOLDER_LIMIT),
 * before or after decompression. */
PD_NODISCARD enum pd_err data_text_append(struct data_set *set, int fd, const char *name, bool size_only,
                                          int64_t *at, struct pd_why *why);
/* Whether the beginning of the file, decompressed if it is gzip'd, is text. *ret_packing: the name of a compression
 * format that polyd does not read, else NULL; static. The caller keeps the descriptor; its offset changes. */
bool data_text_begins(int fd, const char **ret_packing);
/* The number of bytes that are not part of a valid UTF-8 sequence. */
int64_t data_text_foreign(const uint8_t *text, size_t len);
/* Why no class may have this name, as "is not UTF-8"; NULL: it may. Checkpoints store the names, one a line. */
const char *data_class_odd(const char *name, size_t len);

/* ---- sample.c ---- */

/* Bytes of the `scratch` argument of data_form.make. */
size_t data_sample_scratch(const struct data_set *set);
