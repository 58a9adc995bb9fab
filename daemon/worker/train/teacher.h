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
};

/* The checkpoint that the document names below `state_dir`, and no other. Its classes, channels and image size
 * must be those of the data, it must fit `task`, and both must normalise pixels alike: PD_ERR_INVALID with the field and both
 * numbers. `student`: whose dtype and precision it computes with. The caller owns the storage, zeroed before,
 * and calls teacher_done in every case. */
PD_NODISCARD enum pd_err teacher_init(struct teacher *t, const struct job_config *config,
                                      const char *state_dir, const struct data_info *data,
                                      const struct task *task, const struct model_spec *student,
                                      struct pd_why *why);
void teacher_done(struct teacher *t);
/* Its weights on the device: those that would be served. The caller owns *ret. */
PD_NODISCARD enum pd_err teacher_load(const struct teacher *t, const struct pk_backend_api *api,
                                      struct pk_backend *backend, struct model_store **ret,
                                      struct pd_why *why);
