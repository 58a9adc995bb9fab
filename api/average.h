/* api/average.h: the checkpoints whose average becomes a model version. */
#pragma once

#include <jansson.h>

#include "api/http.h"
#include "kernels/base/buf.h"

struct api_average {
    struct pd_buf
        list;        /* input of `polyd-worker weights average`: one line of digest and path per checkpoint */
    json_t *sources; /* [{"model" or "run", "step", "sha256"}, ..], as the version's source names them */
    char *document;  /* document of the first, which describes the network; "" = only the file does */
};

/* Reads `entries`, the member average of a request, and looks up the checkpoints: {"run", "checkpoint"} or
 * {"model"}, as train.start does. False: an error reply was set. The caller owns *ret in either case
 * (api_average_done). */
bool api_average_read(struct api_req *r, json_t *entries, struct api_average *ret);
void api_average_done(struct api_average *a);
