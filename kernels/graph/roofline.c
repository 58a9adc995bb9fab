/* Bytes and FLOP of calls, and tables of them. */
#include "kernels/graph/roofline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/graph/build.h"

#define TINY_SECONDS 2e-6

const char *pk_kind_name(enum pk_kind kind)
{
    static const char *const name[PK_KIND_COUNT] = {
        [PK_KIND_NONE] = "none",           [PK_KIND_MATMUL] = "matmul",
        [PK_KIND_ATTENTION] = "attention", [PK_KIND_NORM] = "norm",
        [PK_KIND_LOSS] = "cross-entropy",  [PK_KIND_ELEMENTWISE] = "elementwise",
        [PK_KIND_MOVEMENT] = "movement",   [PK_KIND_SUM] = "sum",
        [PK_KIND_EMBEDDING] = "embedding", [PK_KIND_OPTIMISER] = "optimiser",
        [PK_KIND_RANKS] = "ranks",         [PK_KIND_CONVOLUTION] = "convolution",
    };

    return (unsigned)kind < PK_KIND_COUNT ? name[kind] : "unknown";
}

struct pk_cost pk_call_cost(const struct pk_call *c)
{
    const struct pk_rule *rule = pk_rule_of(c->op);
    struct pk_cost cost = {.kind = rule->kind};

    for (int32_t i = 0; i < c->n_in; i++)
        cost.read += pk_view_bytes(&c->in[i]);
    for (int32_t i = 0; i < c->n_out; i++)
        cost.written += pk_view_bytes(&c->out[i]);
    if (rule->cost)
        rule->cost(c, &cost);
    return cost;
}

double pk_cost_seconds(const struct pk_cost *c, const struct pk_peaks *at)
{
    double bytes = (c->read + c->written) / at->bytes, flop = c->flop / at->flops;

    return bytes > flop ? bytes : flop;
}

/* ---- tables ---- */

struct adding {
    struct pk_roofline *to;
    const struct pk_peaks *at;
    double times;
};

static void row_add(struct pk_roofline_row *r, const struct pk_cost *c, double seconds, double times)
{
    r->calls += times;
    r->read += times * c->read;
    r->written += times * c->written;
    r->flop += times * c->flop;
    r->seconds += times * seconds;
}

static void add_call(void *user, const char *scope, bool backward, const struct pk_call *call)
{
    struct adding *a = user;
    struct pk_cost c = pk_call_cost(call);
    double seconds = pk_cost_seconds(&c, a->at);

    (void)scope;
    row_add(&a->to->kind[c.kind][backward], &c, seconds, a->times);
    row_add(&a->to->total, &c, seconds, a->times);
    a->to->tiny += seconds < TINY_SECONDS ? a->times : 0;
}

void pk_roofline_add(struct pk_roofline *r, const struct pk_exec *e, const struct pk_peaks *at, double times)
{
    struct adding a = {r, at, times};

    pk_exec_each(e, add_call, &a);
}

static void row_text(const struct pk_roofline_row *r, const char *name, const char *part, struct pd_buf *to)
{
    pd_buf_printf(to, "%-14s %-9s %8.0f %10.5g %10.5g %10.5g %10.5g\n", name, part, r->calls, r->read * 1e-9,
                  r->written * 1e-9, r->flop * 1e-12, r->seconds * 1e3);
}

void pk_roofline_text(const struct pk_roofline *r, const struct pk_peaks *at, struct pd_buf *to)
{
    pd_buf_printf(to,
                  "counted, not measured: at %.0f TFLOP/s and %.2f TB/s\n"
                  "%-14s %-9s %8s %10s %10s %10s %10s\n",
                  at->flops * 1e-12, at->bytes * 1e-12, "kind", "part", "kernels", "GB read", "GB written",
                  "TFLOP", "ms");
    for (int k = 0; k < PK_KIND_COUNT; k++)
        for (int b = 0; b < 2; b++)
            if (r->kind[k][b].calls > 0)
                row_text(&r->kind[k][b], pk_kind_name((enum pk_kind)k), b ? "backward" : "forward", to);
    row_text(&r->total, "total", "", to);
    pd_buf_printf(to, "kernels below %.0f us: %.0f\n", TINY_SECONDS * 1e6, r->tiny);
}

struct line { /* calls with the same text */
    char text[224];
    bool backward;
    struct pk_cost cost;
    double calls, seconds; /* sums over them */
    int products_bound;
};

struct lines {
    struct line *at;
    size_t count, cap;
    const struct pk_peaks *peaks;
    double times;
    bool failed;
};

static void put_view(char *text, size_t size, const struct pk_view *v)
{
    size_t n = strlen(text);

    snprintf(text + n, size - n, "%s%s", n ? " " : "", pk_dtype_name(v->dtype));
    n = strlen(text);
    if (n + 1 < size)
        pk_shape_text(&v->shape, text + n, size - n);
}

static void line_add(void *user, const char *scope, bool backward, const struct pk_call *call)
{
    struct lines *l = user;
    struct pk_cost c = pk_call_cost(call);
    char text[sizeof l->at->text], views[160] = "";
    double seconds = pk_cost_seconds(&c, l->peaks);

    (void)scope;
    for (int32_t i = 0; i < call->n_out && i < 1; i++)
        put_view(views, sizeof views, &call->out[i]);
    strncat(views, " <-", sizeof views - strlen(views) - 1);
    for (int32_t i = 0; i < call->n_in && i < 3; i++)
        put_view(views, sizeof views, &call->in[i]);
    snprintf(text, sizeof text, "%s %s%s", pk_op_name(call->op), views, call->n_in > 3 ? " .." : "");
    for (size_t i = 0; i < l->count; i++)
        if (l->at[i].backward == backward && strcmp(l->at[i].text, text) == 0 &&
            l->at[i].cost.read == c.read && l->at[i].cost.written == c.written) {
            l->at[i].calls += l->times;
            l->at[i].seconds += l->times * seconds;
            return;
        }
    if (l->failed || !pk_grow((void **)&l->at, sizeof *l->at, l->count, &l->cap)) {
        l->failed = true;
        return;
    }
    l->at[l->count] = (struct line){.backward = backward,
                                    .cost = c,
                                    .calls = l->times,
                                    .seconds = l->times * seconds,
                                    .products_bound = c.flop / l->peaks->flops >= seconds};
    memcpy(l->at[l->count++].text, text, sizeof text);
}

static int line_compare(const void *x, const void *y)
{
    const struct line *a = x, *b = y;

    if (a->seconds != b->seconds)
        return a->seconds > b->seconds ? -1 : 1;
    return strcmp(a->text, b->text);
}

enum pd_err pk_roofline_nodes(const struct pk_exec *e, const struct pk_peaks *at, double times, size_t most,
                              struct pd_buf *to, struct pd_why *why)
{
    struct lines l = {.peaks = at, .times = times};

    pk_exec_each(e, line_add, &l);
    if (l.failed) {
        free(l.at);
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a table of nodes");
    }
    if (l.count)
        qsort(l.at, l.count, sizeof *l.at, line_compare);
    pd_buf_printf(to, "%10s %8s %10s %10s %-7s %s\n", "ms", "kernels", "MB each", "GFLOP each", "bound",
                  "node, first output <- inputs");
    for (size_t i = 0; i < l.count && i < most; i++) {
        const struct line *n = &l.at[i];

        pd_buf_printf(to, "%10.5g %8.0f %10.5g %10.5g %-7s %s%s\n", n->seconds * 1e3, n->calls,
                      (n->cost.read + n->cost.written) * 1e-6, n->cost.flop * 1e-9,
                      n->products_bound ? "compute" : "memory", n->backward ? "d " : "", n->text);
    }
    free(l.at);
    return pd_buf_err(to);
}
