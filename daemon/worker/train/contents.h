/* daemon/worker/train/contents.h: private to this module: the tensors and metadata of a run's checkpoint, and their
 * exchange between ranks.
 *
 * Every rank has the same list of tensors. Used by checkpoints.c only. */
#pragma once

#include "daemon/worker/train/trainer.h"

struct contents;

/* Borrows `s` and `t`. On PD_OK the caller owns *ret. */
PD_NODISCARD enum pd_err contents_open(const struct session *s, struct trainer *t, struct contents **ret,
                                       struct pd_why *why);
/* NULL is fine; returns NULL. */
struct contents *contents_close(struct contents *c);

/* Writes a checkpoint as train_checkpoint_write. */
PD_NODISCARD enum pd_err contents_write(struct contents *c, const char *path, const struct train_state *state,
                                        struct train_file_info *ret, struct pd_why *why);
/* Sets parameters, averages and states to those of a checkpoint. resumes: reports if the files of the data have changed
 * since (event data_changed). PD_ERR_CONFLICT: it belongs to another run, or to data with other classes;
 * PD_ERR_CORRUPT: it is damaged. The trainer's memory may have been written to in either case. */
PD_NODISCARD enum pd_err contents_read(struct contents *c, const char *path, bool resumes,
                                       struct train_state *ret, struct pd_why *why);

/* Copies parameters, and with train.start.optimizer their states of the optimiser and ret->applied_before, from the file of
 * train.start, and reports missing and unused tensors (event started_from). States of other parameters stay zero. Rank 0 only. */
PD_NODISCARD enum pd_err contents_start(struct contents *c, struct train_state *ret, struct pd_why *why);

/* ---- several ranks; no effect with one rank ---- */

/* Sends rank 0's parameters, and with `all` averages and states, to every rank that stores them. */
PD_NODISCARD enum pd_err contents_share(struct contents *c, bool all, struct pd_why *why);
/* Checks that the parameters of all ranks are bitwise equal; PD_ERR_CORRUPT otherwise. */
PD_NODISCARD enum pd_err contents_compare(const struct contents *c, struct pd_why *why);
/* Copies states that other ranks store to rank 0, for contents_write. contents_ungather frees the copies. */
PD_NODISCARD enum pd_err contents_gather(struct contents *c, struct pd_why *why);
void contents_ungather(struct contents *c);
