/* api/picture.h: the figures that a template names ("pictures"; api/openapi.yaml, TemplatePicture) as numbers of one submission, for
 * its report: the same that the page of the experiment draws. picture.c has those of series, picture_stored.c those of blobs and
 * plans. Everything is bounded: what is left out is named in the experiment's `cut`. */
#pragma once

#include "api/experiment.h"

#define PICTURE_RUNS 8 /* combinations whose maps, histograms or plans one figure has */
#define PICTURE_CELLS                                                                                        \
    64 /* rows and columns of a map: of a larger one evenly chosen ones, both ends included */

/* Of a submission: the member "pictures" of an open object. */
PD_NODISCARD enum pd_err pictures_json(struct pd_buf *b, struct experiment *x,
                                       const struct experiment_set *set, struct pd_why *why);

/* picture_stored.c: panels of one job appended to an open array. `is` is the figure's kind: maps, solution, gradients, memory. */
PD_NODISCARD enum pd_err picture_stored_json(struct pd_buf *b, struct experiment *x, const char *is,
                                             const struct experiment_job *job, struct pd_why *why);

/* The run shown for a combination: the first that succeeded, else its first. */
const struct experiment_run *picture_run(const struct experiment_job *job, const struct experiment_row *row);
/* {"job_id","run_id","point","values"} without the closing brace. */
void picture_place_json(struct pd_buf *b, const struct experiment_job *job, const struct experiment_row *row,
                        const struct experiment_run *run);
