/* api/checkpoint.h: the checkpoints that a job document names. */
#pragma once

#include "api/http.h"
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
