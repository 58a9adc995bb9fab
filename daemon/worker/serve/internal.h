/* daemon/worker/serve/internal.h: shared by the sources of this module. */
#pragma once

#include "daemon/worker/data/image.h"
#include "daemon/worker/data/tokenizer.h"
#include "daemon/worker/model/model.h"
#include "daemon/worker/serve/sample.h"
#include "daemon/worker/serve/serve.h"
#include "kernels/backend/backend.h"
#include "kernels/graph/graph.h"

#define SERVE_BUCKETS_MAX 12
#define SERVE_SCORE 64 /* maximum tokens of a given text scored by one run, i.e. rows of logits */
#define SERVE_DECODE_BATCH                                                                                   \
    16 /* maximum sequences in one decoding graph, the limit of the small matrix products */

/* One planned graph: of a classifier's batch size, or of the number of tokens that one call of a language model reads. */
struct serve_bucket {
    int32_t size;
    int32_t batch; /* language: concurrent sequences */
    bool every;    /* language: outputs the logits of every token, for scoring a text */
    int32_t picks; /* language: rows of logits */
    struct pk_graph *graph;
    struct pk_exec *exec;
    int32_t bound_slot; /* language: the first slot whose cache its states are bound to; -1 = none */
};

/* A stream's slot in the caches. */
struct serve_slot {
    bool open;
    struct serve_stream *owner; /* NULL: warm-up */
    size_t used;                /* positions that have been written */
};

/* Inputs of one run, in host memory. */
struct serve_rows {
    int32_t token[SERVE_CHUNK], pos[SERVE_CHUNK];
    int32_t position[SERVE_DECODE_BATCH], length[SERVE_DECODE_BATCH], pick[SERVE_CHUNK];
};

/* A row of a decoding step: the token that the slot's sequence reads next. */
struct serve_next {
    bool there;
    int32_t token, position;
};

struct data_st;

struct serve {
    struct serve_info info;
    struct serve_memory memory;
    uint64_t memory_max; /* 0 = no limit */
    struct pk_host host;
    struct model_tuned *tuned;
    const struct pk_backend_api *api;
    struct pk_backend *backend;
    struct model *model;
    struct model_store *store;
    struct serve_bucket bucket[SERVE_BUCKETS_MAX]; /* growing sizes */
    struct pk_arena *arena;                        /* of all buckets: one runs at a time */
    size_t buckets;
    float *staging; /* host memory: images of one batch, or the logits of one step */
    int32_t *ids;   /* host memory: tokens of the texts of one batch, then the row that is read of each */
    float *results; /* host memory: logits of one batch */
    /* Inputs in back-end memory, large enough for the largest bucket and bound to all. */
    void *input, *pos, *position, *length, *pick;
    /* classifiers */
    char *label_text; /* owned: the names of the classes, each ended by NUL */
    const char **labels;
    struct data_eval_fit fit;         /* images: preprocessing */
    struct data_tokenizer *tokenizer; /* of tokens */
    size_t most;  /* texts: tokens that training read of one, by its data set; 0: as many as positions */
    bool cuts;    /* texts: training read the beginning of a longer one */
    bool listops; /* texts: expressions of ListOps */
    /* language */
    int32_t heads, cache_length;
    enum serve_memory_kind memory_kind;
    bool state;        /* a constant-size state instead of keys and values */
    int32_t slabs;     /* two per layer (keys, values), or one (state) */
    size_t slot_bytes; /* keys (or values, or the state) of one layer of one stream */
    void *slab;        /* back-end memory: the caches of `slots` streams */
    int32_t slots;
    struct serve_slot slot[SERVE_STREAMS_MAX + SERVE_DECODE_BATCH];
    struct serve_rows rows;
    char *copy;                   /* host memory: caches being moved */
    int64_t columns;              /* of the logits: the vocabulary, padding included */
    struct serve_stream *streams; /* open ones, linked */
    uint32_t stream_count;
};

/* Allocates back-end memory and counts it in *total. */
PD_NODISCARD enum pd_err serve_alloc(struct serve *s, size_t bytes, size_t *total, void **ret,
                                     struct pd_why *why);

/* Checks the memory known so far against memory_max. `caches`: of all streams together. */
PD_NODISCARD enum pd_err serve_fits(struct serve *s, size_t caches, struct pd_why *why);

/* Plans one bucket of `graph`, which it takes over even if it fails, and binds parameters. */
PD_NODISCARD enum pd_err serve_bucket_add(struct serve *s, struct pk_graph *graph, int32_t size,
                                          struct pd_why *why);

/* Functions that differ between serving forms, one file each. */
struct serve_kind {
    const char *name; /* in the signature and in struct task */
    bool narrow;      /* its matrices may be stored in bf16 (serve_options.bf16_weights) */
    /* Adds properties of the data from the checkpoint at `path` to the network's shape. May be NULL. */
    enum pd_err (*shape)(const struct data_st *st, const char *path, struct model_spec *spec,
                         struct pd_why *why);
    /* Reads the form's metadata of the checkpoint; the model exists, its memory is not yet allocated. */
    enum pd_err (*read)(struct serve *s, const struct data_st *st, const char *path, struct pd_why *why);
    /* Plans its graphs, allocates their inputs, and runs each once. */
    enum pd_err (*open)(struct serve *s, struct pd_why *why);
    /* Its members of the signature: comma-separated, the first without one. */
    void (*signature)(const struct serve *s, struct pd_buf *out);
    /* Classifiers; NULL for other forms. `put` copies sample i of the part to row `row` of the batch in host memory;
     * `send` sends `size` rows to the back end, those beyond `used` as padding. */
    enum pd_err (*put)(struct serve *s, const struct serve_samples *part, int64_t i, int64_t row,
                       struct pd_why *why);
    enum pd_err (*send)(struct serve *s, int64_t used, int32_t size, struct pd_why *why);
};

/* ---- classify.c: shared by classifiers ---- */

/* An input of a classifier's graphs, in back-end memory. */
struct serve_input {
    const char *name;
    void *memory;
};
/* Plans a graph for every batch size from `least` on and samples of `context` tokens (images: 1), binds the inputs, and
 * runs each graph once. */
PD_NODISCARD enum pd_err serve_classes_open(struct serve *s, size_t least, int32_t context,
                                            const struct serve_input *inputs, size_t count,
                                            struct pd_why *why);
/* Reads the class names from the checkpoint, one per line. */
PD_NODISCARD enum pd_err serve_labels_read(struct serve *s, const struct data_st *st, const char *path,
                                           struct pd_why *why);
/* Writes "outputs", "classes", "batch_max" and, if the model has class names, "labels" of the signature. */
void serve_put_classes(const struct serve *s, struct pd_buf *out);

/* ---- tokens.c ---- */

/* Reads the checkpoint's tokenizer, or makes one of bytes. PD_ERR_INVALID: its tokens exceed the model's vocabulary. */
PD_NODISCARD enum pd_err serve_tokenizer_read(struct serve *s, const struct data_st *st, struct pd_why *why);

/* ---- language.c ---- */

PD_NODISCARD enum pd_err serve_slot_take(struct serve *s, struct serve_stream *owner, int32_t *ret,
                                         struct pd_why *why);
void serve_slot_give(struct serve *s, int32_t slot);
/* Reads up to `left` tokens of one sequence, *ret_read of them; the logits of the last one, or of `every` one
 * in rows, go to s->staging. */
PD_NODISCARD enum pd_err serve_chunk_read(struct serve *s, int32_t slot, const int32_t *tokens, int32_t left,
                                          int32_t position, bool every, int32_t *ret_read,
                                          struct pd_why *why);
/* Before a step: may move streams to other slots (serve_stream_moved). */
PD_NODISCARD enum pd_err serve_decode_begin(struct serve *s, struct pd_why *why);
/* Reads one token each of the slots from `first` (a multiple of SERVE_DECODE_BATCH) on; the logits of row i
 * go to row i of s->staging. */
PD_NODISCARD enum pd_err serve_decode_group(struct serve *s, int32_t first, const struct serve_next *next,
                                            int32_t count, struct pd_why *why);

/* ---- stream.c ---- */

void serve_stream_moved(struct serve_stream *t, int32_t slot);
/* Position of the stream's next token in its cache. */
int32_t serve_stream_position(const struct serve_stream *t);

/* Whether this token ends a text. */
bool serve_token_ends(const struct serve *s, int32_t id);

/* A tensor of a signature. `sizes`: of the dimensions after the first, which is any. */
void serve_put_tensor(struct pd_buf *out, const char *name, const char *datatype, const int64_t *sizes,
                      size_t count);
