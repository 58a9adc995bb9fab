/* Shared by the files of the serve role: a request, the role, and the functions that differ between serving
 * forms. */
#pragma once

#include "daemon/worker/process/role_serve.h"
#include "daemon/worker/serve/params.h"
#include "daemon/worker/serve/queue.h"
#include "daemon/worker/serve/serve.h"

/* One request from its arrival to its last part. */
struct item {
    struct item *next; /* among the running */
    struct serve_request *req;
    struct serve_params params;
    int64_t images;         /* infer: or texts, or points */
    struct pd_buf prepared; /* infer: pictures or texts as the model reads them */
    size_t sample_bytes;    /* infer: of one image or text, in `prepared` or as it came */
    /* infer, of a request that is computed in slices: of `scored` images so far */
    struct serve_scores scores;
    int64_t scored;
    struct pd_buf prompt; /* complete: int32_t ids */
    struct serve_stream *stream;
    int64_t arrived_us, begun_us, first_us, last_us; /* first, last: tokens */
    size_t made;                                     /* tokens so far */
    int64_t patience_us;                             /* complete: from arrival to deadline; 0 = none */
    int64_t sent_us;                                 /* complete: when the latest part was sent */
    uint64_t rounds, rows;                           /* steps of the model, and sequences in them */
    /* Parts of the answer not sent yet: all of them without `stream`. */
    struct pd_buf text, tokens, lengths, logprobs, top_tokens, top_logprobs, top_text, top_lengths;
    struct pd_buf end; /* JSON sent with the last part */
};

struct role;

/* Functions that parse and answer the requests of one serving form. */
struct role_kind {
    const struct serve_kind *form;
    const char *request; /* their kind on the wire */
    const char *refusal; /* error sentence for other requests: "model NAME is a ..." */
    enum pd_err (*read)(struct role *r, struct item *it, struct pd_why *why);
    /* Adds it to the queue; PD_ERR_BUSY: the queue is full. */
    enum pd_err (*push)(struct role *r, struct item *it);
    /* How long the oldest request may still wait to form a batch: 0 = run now. NULL: requests do not wait. */
    int64_t (*company_us)(struct role *r);
    /* One round. */
    void (*run)(struct role *r);
    /* For forms with samples in batches: answers with the scores from row `first` on. */
    void (*reply)(struct role *r, struct item *it, const struct serve_scores *scores, int64_t first,
                  int64_t batch);
};
extern const struct role_kind role_kind_classify, role_kind_classify_text, role_kind_field,
    role_kind_language;

struct role {
    const struct role_kind *kind;
    const struct serve_host *host;
    struct serve *model;
    const struct serve_info *info;
    struct serve_queue *queue;
    struct item *running; /* active completions, in order of arrival */
    uint32_t running_count;
    struct item *large; /* infer: requests larger than a batch; each gets a slice in turn */
    uint32_t large_count;
    uint64_t large_images; /* of all of them */
    struct serve_samples *batch_samples;
    struct item **batch; /* both: ROLE_SERVE_QUEUE entries */
};

/* role_serve_classify.c: requests that are samples, small ones in one batch, a large one by slices. */
enum pd_err role_samples_push(struct role *r, struct item *it);
int64_t role_samples_company_us(struct role *r);
void role_samples_run(struct role *r);
/* Answers the request with an error, and frees the item and the request. */
void role_item_fail(struct role *r, struct item *it, enum pd_err err, const char *text);
/* Frees the item, and the request, which has been answered. */
void role_item_free(struct role *r, struct item *it);
/* Why a request is cancelled: the client disconnected, or the deadline passed before a completion's first token.
 * PD_OK: it is not. */
PD_NODISCARD enum pd_err role_unwanted(const struct role *r, const struct item *it, struct pd_why *why);
/* A tensor of an answer; data is borrowed. columns < 0: it has one dimension. */
struct wire_tensor role_tensor(const char *name, const char *dtype, const void *data, size_t bytes,
                               int64_t rows, int64_t columns);
struct wire_timing role_timing(const struct item *it, uint64_t batch, uint64_t tokens);
