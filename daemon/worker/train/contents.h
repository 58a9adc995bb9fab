/* daemon/worker/train/contents.h: private to this module: what a checkpoint of a run holds: its tensors,
 * where they lie, and its metadata; and how ranks make up one.
 *
 * Every rank has the same list. Belongs to the checkpoints. */
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
/* Sets parameters, averages and states to those of a checkpoint. PD_ERR_CONFLICT: it belongs to another run;
 * PD_ERR_CORRUPT: it is damaged. The trainer's memory may have been written to in either case. */
PD_NODISCARD enum pd_err contents_read(struct contents *c, const char *path, struct train_state *ret,
                                       struct pd_why *why);

/* Sets parameters, and with train.start.optimizer the optimiser's states and ret->applied_before, to those of the file
 * that train.start names, and reports what it did not find or did not use (event started_from). Rank 0. */
PD_NODISCARD enum pd_err contents_start(struct contents *c, struct train_state *ret, struct pd_why *why);

/* ---- several ranks; nothing is done where there is one ---- */

/* Hands rank 0's parameters, and with `all` averages and states, to every rank that keeps them. */
PD_NODISCARD enum pd_err contents_share(struct contents *c, bool all, struct pd_why *why);
/* Whether every rank has rank 0's parameters, to the bit; PD_ERR_CORRUPT where not. */
PD_NODISCARD enum pd_err contents_compare(const struct contents *c, struct pd_why *why);
/* Before contents_write: copies states that another rank keeps to rank 0. contents_ungather frees them. */
PD_NODISCARD enum pd_err contents_gather(struct contents *c, struct pd_why *why);
void contents_ungather(struct contents *c);
