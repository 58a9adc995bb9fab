/* daemon/worker/train/teacher.h: private to this module: the teacher of a run.
 *
 * Belongs to the training thread. */
#pragma once

#include "daemon/job/job.h"
#include "daemon/worker/data/data.h"
#include "daemon/worker/model/model.h"
#include "daemon/worker/task/task.h"

struct data_st;

struct teacher {
    struct data_st *st; /* its checkpoint */
    struct model *model;
    struct model_distil distil; /* of the training graph; borrows the model */
    bool gone;                  /* there is no such file; it will not come back */
};

/* Opens the document's checkpoint below `state_dir` and verifies its digest. PD_ERR_INVALID, with the field and both values:
 * classes, channels, image size or normalisation differ from those of the data, or it does not fit `task`. The teacher
 * computes with dtype and precision of `student`. The caller owns the storage, zeroes it before, and calls teacher_done in
 * every case. */
PD_NODISCARD enum pd_err teacher_init(struct teacher *t, const struct job_config *config,
                                      const char *state_dir, const struct data_info *data,
                                      const struct task *task, const struct model_spec *student,
                                      struct pd_why *why);
void teacher_done(struct teacher *t);
/* Loads its served weights to the device. The caller owns *ret. */
PD_NODISCARD enum pd_err teacher_load(const struct teacher *t, const struct pk_backend_api *api,
                                      struct pk_backend *backend, struct model_store **ret,
                                      struct pd_why *why);
