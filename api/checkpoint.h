/* api/checkpoint.h: the checkpoints that a job document names. */
#pragma once

#include "api/http.h"
#include "api/models.h"
#include "daemon/job/job.h"

/* The version of a model that a document names, as the store had it. */
struct api_named {
    const char *param; /* the member that names it: "train/start/model"; static */
    char model[API_MODEL_MAX + 1];
    int64_t n; /* 0 = the document names none */
    char sha256[STORE_DIGEST_HEX];
};

/* If the document's kind uses a checkpoint, or its training starts from one (train.start), finds it and
 * appends the complete document; appends nothing for other documents. What is wrong with the document goes to
 * the report (PD_ERR_INVALID); a store that cannot be read fails the request. *ret_named must be zeroed; it is
 * filled if the document names a version. */
PD_NODISCARD enum pd_err api_checkpoint_fold(struct api_req *r, const char *json, size_t len,
                                             struct pd_buf *ret_json, struct api_named *ret_named,
                                             struct job_report *report);
/* The same for a document with a teacher: appends it with the version, its file and digest. */
PD_NODISCARD enum pd_err api_teacher_fold(struct api_req *r, const char *json, size_t len,
                                          struct pd_buf *ret_json, struct api_named *ret_named,
                                          struct job_report *report);

/* A checkpoint or model version as stored. */
struct api_found {
    struct job_found at; /* its texts point into the following buffers */
    char model[API_MODEL_MAX + 24];
    char name[API_MODEL_MAX + 1]; /* of the model; "": found by a run */
    int64_t n;                    /* the version; 0: likewise */
    char *path, *document;        /* path: relative to the state folder */
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
