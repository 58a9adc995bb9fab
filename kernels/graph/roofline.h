/* kernels/graph/roofline.h: what a planned step moves and computes, node by node, and how long that takes at
 * best.
 *
 * A count, not a measurement: every input and output of a kernel passes memory once (repeated axes once), and
 * a node takes the longer of its bytes at the speed of memory and its products at the speed of the
 * multipliers. Needs no device. What a kernel reads twice, its scratch, and caches are not seen. */
#pragma once

#include "kernels/base/buf.h"
#include "kernels/graph/op/rule.h"

/* Per second: of multiply-adds counted as two, and of bytes read and written. */
struct pk_peaks {
    double flops, bytes;
};
#define PK_PEAKS_H200 ((struct pk_peaks){790e12, 4.3e12}) /* bf16; kernels/PERFORMANCE.md 1 */

const char *pk_kind_name(enum pk_kind kind); /* "matmul", ...; static */

/* Of one call; its data pointers are not looked at. */
struct pk_cost pk_call_cost(const struct pk_call *call);
/* Seconds. */
double pk_cost_seconds(const struct pk_cost *c, const struct pk_peaks *at);

struct pk_roofline {
    struct pk_roofline_row {
        double calls, read, written, flop, seconds;
    } kind[PK_KIND_COUNT][2], total; /* [1]: of the backward part */
    double tiny; /* calls below 2 us, which is about what starting a kernel of a recorded graph costs */
};
/* Adds one run of the plan, `times` over. */
void pk_roofline_add(struct pk_roofline *r, const struct pk_exec *e, const struct pk_peaks *at, double times);
/* A table by kind for people. */
void pk_roofline_text(const struct pk_roofline *r, const struct pk_peaks *at, struct pd_buf *to);
/* The nodes of one run, those alike in one line, the longest first; at most `most` lines. */
PD_NODISCARD enum pd_err pk_roofline_nodes(const struct pk_exec *e, const struct pk_peaks *at, double times,
                                           size_t most, struct pd_buf *to, struct pd_why *why);
