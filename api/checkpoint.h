/* api/checkpoint.h: the checkpoints that a job document names. */
#pragma once

#include "api/http.h"
#include "api/models.h"
#include "daemon/job/job.h"

/* Where the document's kind works with a checkpoint, or its training begins with one (train.start), finds it and appends
 * the complete document; appends
 * nothing for other documents. What is wrong with the document goes to the report (PD_ERR_INVALID); a store
 * that cannot be read fails the request. */
PD_NODISCARD enum pd_err api_checkpoint_fold(struct api_req *r, const char *json, size_t len,
                                             struct pd_buf *ret_json, struct job_report *report);
/* The same of a document that learns from a model: appends it with the version, its file and digest. */
PD_NODISCARD enum pd_err api_teacher_fold(struct api_req *r, const char *json, size_t len,
                                          struct pd_buf *ret_json, struct job_report *report);

/* A checkpoint or a version of a model as the store knows it. */
struct api_found {
    struct job_found at; /* its texts lie in what follows */
    char model[API_MODEL_MAX + 24];
    char *path, *document; /* path: from the state folder on */
    char sha256[STORE_DIGEST_HEX];
    enum job_kind kind; /* of the run */
    bool full;          /* for want of memory nothing more was copied */
};

/* Finds what `wanted` names. `at`: the place in the request, such as "/average/2"; what is wrong goes to the report
 * (PD_ERR_INVALID), other failures to `why`. *ret is zero before and the caller's afterwards, whatever the result:
 * api_found_done. */
PD_NODISCARD enum pd_err api_checkpoint_find(struct store *store, const struct job_wanted *wanted,
                                             const char *at, struct api_found *ret, struct job_report *report,
                                             struct pd_why *why);
void api_found_done(struct api_found *f);
