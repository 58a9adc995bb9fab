/* daemon/worker/train/maps.h: private to this module: attention matrices of chosen layers and heads over the
 * probe batch, as blobs, with their entropy and effective rank (train.h: struct train_blob).
 *
 * Only rank 0 computes them. Training thread only. */
#pragma once

#include "daemon/worker/train/session.h"

struct maps;

/* Plans the graph and feeds it the probe batch. `store` is borrowed until maps_close, as `s` is. On PD_OK the
 * caller owns *ret: NULL where the document asks for no matrices. */
PD_NODISCARD enum pd_err maps_open(const struct session *s, struct model_store *store, struct maps **ret,
                                   struct pd_why *why);
/* NULL is fine; returns NULL. */
struct maps *maps_close(struct maps *m);
/* Reports the matrices for the current parameters, and adds their statistics as points. */
PD_NODISCARD enum pd_err maps_run(struct maps *m, struct pd_why *why);
/* displacement.c: mean of a matrix (n, n) over the pairs of query and key with the same displacement, that of
 * the key less that of the query. Pictures: rows and columns of patches behind `lead` other tokens,
 * n = lead + rows columns, to (2 rows - 1, 2 columns - 1). Texts: rows 1, columns n, lead 0, to (2 n - 1). */
void maps_displacement(const double *matrix, int64_t n, int64_t lead, int64_t rows, int64_t columns,
                       double *to);
/* The mean over pairs of different patches in one row of the picture, and in one column, over that of all such pairs. A
 * patch and itself are no pair. 1 where there is no such pair, or all are 0. */
void maps_same(const double *matrix, int64_t n, int64_t lead, int64_t rows, int64_t columns, double *ret_row,
               double *ret_column);
