/* api/average.h: the checkpoints of which a version of a model shall be the mean. */
#pragma once

#include <jansson.h>

#include "api/http.h"
#include "kernels/base/buf.h"

struct api_average {
    struct pd_buf list; /* for `polyd-worker weights average`: digest and path, a line each */
    json_t *sources;    /* [{"model" or "run", "step", "sha256"}, ..], as the version's source names them */
    char *document;     /* of the first: it describes the network; "" = its file alone does */
};

/* Reads `entries`, the member average of a request, and looks up what it names: {"run", "checkpoint"} or {"model"}, as
 * train.start does. False: the request has been failed. *ret is the caller's either way (api_average_done). */
bool api_average_read(struct api_req *r, json_t *entries, struct api_average *ret);
void api_average_done(struct api_average *a);
