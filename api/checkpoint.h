/* api/checkpoint.h: the checkpoints that a job document names. */
#pragma once

#include "api/http.h"
#include "api/models.h"
#include "daemon/job/job.h"

/* If the document's kind uses a checkpoint, or its training starts from one (train.start), finds it and
 * appends the complete document; appends nothing for other documents. What is wrong with the document goes to
 * the report (PD_ERR_INVALID); a store that cannot be read fails the request. */
PD_NODISCARD enum pd_err api_checkpoint_fold(struct api_req *r, const char *json, size_t len,
                                             struct pd_buf *ret_json, struct job_report *report);
/* The same for a document with a teacher: appends it with the version, its file and digest. */
PD_NODISCARD enum pd_err api_teacher_fold(struct api_req *r, const char *json, size_t len,
                                          struct pd_buf *ret_json, struct job_report *report);

/* A checkpoint or model version as stored. */
struct api_found {
    struct job_found at; /* its texts point into the following buffers */
    char model[API_MODEL_MAX + 24];
    char *path, *document; /* path: relative to the state folder */
    char sha256[STORE_DIGEST_HEX];
    enum job_kind kind; /* of the run */
    bool full;          /* out of memory while copying */
};

/* Looks up `wanted`. `at`: the pointer in the request, such as "/average/2". Errors of the request go to the
 * report (PD_ERR_INVALID), other failures to `why`. *ret must be zeroed; afterwards the caller owns it,
 * whatever the result (api_found_done). */
PD_NODISCARD enum pd_err api_checkpoint_find(struct store *store, const struct job_wanted *wanted,
                                             const char *at, struct api_found *ret, struct job_report *report,
                                             struct pd_why *why);
void api_found_done(struct api_found *f);
