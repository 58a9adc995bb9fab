/* api/target.h: the paper's tables that a template names ("targets"; api/openapi.yaml, TemplateTarget) with the numbers of
 * one submission. Page and report show what stands here. */
#pragma once

#include "api/experiment.h"

/* The combination of the job that the alternatives name (daemon/job/claim.h, job_claim_matches): of several, the best by the mean of
 * the metric that ranks the job; NULL: none. *ret_of: how many fit. */
const struct experiment_row *target_row(const struct experiment_job *job, const json_t *alternatives,
                                        size_t *ret_of);

/* The statistic of a series over the runs of the combination that succeeded: its last values. */
struct api_stat target_stat(const struct experiment_job *job, const struct experiment_row *row,
                            const struct experiment_series *series);

/* Of a submission: the member "targets" of an open object. A number in per cent is a share times 100. */
PD_NODISCARD enum pd_err targets_json(struct pd_buf *b, struct experiment *x,
                                      const struct experiment_set *set, struct pd_why *why);
