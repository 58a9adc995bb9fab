/* kernels/graph/roofline.h: the bytes and FLOP of a planned step, node by node, and the least time they take.
 *
 * A count, not a measurement: every input and output of a kernel is moved once (broadcast axes counted once). The
 * time of a node is the longer of bytes / memory bandwidth and FLOP / peak rate. Needs no device. Repeated reads,
 * scratch and caches are not modelled. */
#pragma once

#include "kernels/base/buf.h"
#include "kernels/graph/op/rule.h"

/* FLOP per second (a multiply-add is two), and bytes read or written per second. */
struct pk_peaks {
    double flops, bytes;
};
#define PK_PEAKS_H200 ((struct pk_peaks){790e12, 4.3e12}) /* bf16; kernels/PERFORMANCE.md 1 */

const char *pk_kind_name(enum pk_kind kind); /* "matmul", ...; static */

/* Kind, bytes and FLOP of one call; data pointers are ignored. */
struct pk_cost pk_call_cost(const struct pk_call *call);
/* The least time of a call, in seconds. */
double pk_cost_seconds(const struct pk_cost *c, const struct pk_peaks *at);

struct pk_roofline {
    struct pk_roofline_row {
        double calls, read, written, flop, seconds;
    } kind[PK_KIND_COUNT][2], total; /* [1]: of the backward part */
    double tiny; /* calls below 2 us, about the launch cost of a kernel in a recorded graph */
};
/* Adds `times` runs of the plan. */
void pk_roofline_add(struct pk_roofline *r, const struct pk_exec *e, const struct pk_peaks *at, double times);
/* Appends a table by kind, for people. */
void pk_roofline_text(const struct pk_roofline *r, const struct pk_peaks *at, struct pd_buf *to);
/* Appends a table of the nodes of one run, equal ones in one line, the longest first; at most `most` lines.
 * PD_ERR_NOMEM. */
PD_NODISCARD enum pd_err pk_roofline_nodes(const struct pk_exec *e, const struct pk_peaks *at, double times,
                                           size_t most, struct pd_buf *to, struct pd_why *why);
