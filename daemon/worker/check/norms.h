/* daemon/worker/check/norms.h: Monte Carlo estimates of the norms in theorems 4.1 to 4.3 of the polynomial papers. The
 * golden tests use it too. */
#pragma once

#include "daemon/worker/check/closed.h"
#include "daemon/worker/check/draw.h"

#define CHECK_POWERS_MAX 6

/* One sample: X (N, D) and the projections XQ, XK (N, d), with auxiliary arrays. */
struct check_rig {
    struct check_shape shape;
    double *x, *w, *q, *k, *kt; /* w: Q or K; kt: XK transposed (d, N) */
    double *x2, *k2;            /* |x_i|^2, |k_j|^2 */
    double *row, *power;        /* N numbers */
};
/* Number of doubles that a sample of this shape needs. */
size_t check_rig_size(const struct check_shape *s);
/* Initialises a sample in `memory` of that size, which the caller owns. */
void check_rig_init(struct check_rig *r, const struct check_shape *s, double *memory);
/* Draws X, Q and K. */
void check_rig_draw(struct check_rig *r, struct check_draws *d);
/* Row i of X Q K^T X^T, without 1/sqrt d, into r->row. */
void check_rig_row(struct check_rig *r, long long i);

/* For p = 1 .. powers: ret_power[p-1] = ||(X Q K^T X^T / sqrt d)^p||_F^2 and ret_gradient[p-1] =
 * ||d (X Q K^T X^T)^p / dQ||_F^2 of the current sample. ret_gradient may be NULL. */
void check_rig_norms(struct check_rig *r, int powers, double *ret_power, double *ret_gradient);
/* For p = 1 .. powers: ||(X Q K^T X^T / sqrt d)^p||_F^2 with matrix powers. scratch: 5 d^2 doubles. */
void check_rig_matrix_norms(struct check_rig *r, int powers, double *ret, double *scratch);
/* ||softmax(X Q K^T X^T / sqrt d)||_F and the Frobenius norm of its Jacobian. */
void check_rig_softmax(struct check_rig *r, double *ret_norm, double *ret_jacobian);
