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
/* displacement.c: mean of a matrix (n, n) over the pairs with the same displacement, position of the key minus that of the
 * query. Pictures: rows x columns patches after `lead` other tokens, n = lead + rows columns; `to` is (2 rows - 1,
 * 2 columns - 1). Texts: rows 1, columns n, lead 0; `to` is (2 n - 1). */
void maps_displacement(const double *matrix, int64_t n, int64_t lead, int64_t rows, int64_t columns,
                       double *to);
/* Means over pairs of different patches in the same row, and in the same column, of the picture, divided by the mean over
 * all pairs of different patches. 1 if there is no such pair, or all values are 0. */
void maps_same(const double *matrix, int64_t n, int64_t lead, int64_t rows, int64_t columns, double *ret_row,
               double *ret_column);
