/* daemon/serve/internal.h: what the files of this room share. */
#pragma once

#include "daemon/model/model.h"
#include "daemon/serve/sample.h"
#include "daemon/serve/serve.h"
#include "kernels/backend/backend.h"
#include "kernels/graph/graph.h"

#define SERVE_BUCKETS_MAX 12

/* One planned graph: a classifier's batch size, or how many tokens one call reads. */
struct serve_bucket {
    int32_t size;
    struct pk_graph *graph;
    struct pk_exec *exec;
    const struct serve_stream *bound; /* whose cache its states are bound to */
};

struct serve {
    struct serve_info info;
    struct serve_memory memory;
    const struct pk_backend_api *api;
    struct pk_backend *backend;
    struct model *model;
    struct model_store *store;
    struct serve_bucket bucket[SERVE_BUCKETS_MAX]; /* growing sizes */
    size_t buckets;
    float *staging; /* host memory: images of one batch, or the logits of one token */
    float *results; /* host memory: logits of one batch */
    /* Inputs in back-end memory, large enough for the largest bucket and bound to all. */
    void *input, *pos, *position, *length, *pick;
    /* classifier: value = (byte / 255 - mean) / std */
    float mean, std;
    /* language */
    int32_t layers;
    size_t cache_layer_bytes;     /* keys (or values) of one layer of one stream */
    struct serve_stream *streams; /* open ones, linked */
    uint32_t stream_count;
};

/* Allocates back-end memory and counts it in *total. */
PD_NODISCARD enum pd_err serve_alloc(struct serve *s, size_t bytes, size_t *total, void **ret,
                                     struct pd_why *why);

/* Plans one bucket of `graph` (taken over, also on failure) and binds parameters. */
PD_NODISCARD enum pd_err serve_bucket_add(struct serve *s, struct pk_graph *graph, int32_t size,
                                          struct pd_why *why);

/* The parts of serve_open and serve_close that differ. */
PD_NODISCARD enum pd_err serve_classifier_open(struct serve *s, struct pd_why *why);
PD_NODISCARD enum pd_err serve_language_open(struct serve *s, struct pd_why *why);
