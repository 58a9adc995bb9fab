/* Bytes and products of calls, and tables of them. */
#include "kernels/graph/roofline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/graph/build.h"

#define TINY_SECONDS 2e-6

const char *pk_kind_name(enum pk_kind kind)
{
    static const char *const name[PK_KIND_COUNT] = {
        [PK_KIND_MATMUL] = "matmul",
        [PK_KIND_ATTENTION] = "attention",
        [PK_KIND_NORM] = "norm",
        [PK_KIND_LOSS] = "cross-entropy",
        [PK_KIND_ELEMENTWISE] = "elementwise",
        [PK_KIND_MOVEMENT] = "movement",
        [PK_KIND_SUM] = "sum",
        [PK_KIND_EMBEDDING] = "embedding",
        [PK_KIND_OPTIMISER] = "optimiser",
        [PK_KIND_RANKS] = "ranks",
    };

    return (unsigned)kind < PK_KIND_COUNT ? name[kind] : "unknown";
}

static enum pk_kind kind_of(enum pk_op op)
{
    switch (op) {
    case PK_OP_MATMUL:
        return PK_KIND_MATMUL;
    case PK_OP_ATTENTION:
    case PK_OP_ATTENTION_BWD:
    case PK_OP_ATTENTION_STATS:
    case PK_OP_ATTENTION_STATE:
    case PK_OP_ATTENTION_JVP:
    case PK_OP_ATTENTION_BWD2:
        return PK_KIND_ATTENTION;
    case PK_OP_NORM:
    case PK_OP_NORM_BWD:
        return PK_KIND_NORM;
    case PK_OP_SOFTMAX:
    case PK_OP_SOFTMAX_BWD:
    case PK_OP_CROSS_ENTROPY:
    case PK_OP_CROSS_ENTROPY_BWD:
    case PK_OP_CROSS_ENTROPY_GRAD:
        return PK_KIND_LOSS;
    case PK_OP_SUM:
    case PK_OP_MAX:
        return PK_KIND_SUM;
    case PK_OP_GATHER:
    case PK_OP_SCATTER_ADD:
    case PK_OP_ONE_HOT:
        return PK_KIND_EMBEDDING;
    case PK_OP_SUMSQ:
    case PK_OP_ADAMW:
    case PK_OP_MSGDW:
    case PK_OP_ACCUMULATE:
        return PK_KIND_OPTIMISER;
    case PK_OP_ALL_REDUCE:
    case PK_OP_BROADCAST_RANKS:
        return PK_KIND_RANKS;
    case PK_OP_EXPR:
    case PK_OP_DROPOUT:
        return PK_KIND_ELEMENTWISE;
    default:
        return PK_KIND_MOVEMENT;
    }
}

/* Bytes that a view shows; axes that are repeated count once. */
static double bytes_of(const struct pk_view *v)
{
    double n = (double)pk_dtype_size(v->dtype);

    for (int32_t i = 0; i < v->shape.rank; i++)
        n *= v->stride[i] || v->shape.dim[i] == 0 ? (double)v->shape.dim[i] : 1;
    return n;
}

static double count_of(const struct pk_view *v)
{
    return (double)pk_shape_count(&v->shape);
}

static double columns_of(const struct pk_view *v)
{
    return v->shape.rank ? (double)v->shape.dim[v->shape.rank - 1] : 1;
}

/* Multiply-adds of attention, as two, in units of one product of all queries by all keys. */
static double attention_flop(const struct pk_call *c, double products)
{
    const struct pk_attention_attr *a = &c->attr->attention;
    const struct pk_view *q = &c->in[0], *k = &c->in[a->packed ? 0 : 1];
    const bool state = c->op == PK_OP_ATTENTION_STATE, packed = a->packed && !state;
    double batch = (double)q->shape.dim[0], heads = (double)q->shape.dim[packed ? 3 : 1];
    double nq = (double)q->shape.dim[packed ? 1 : 2], nk = (double)k->shape.dim[packed ? 1 : 2];
    double d = columns_of(q), pairs = a->causal ? nk > nq ? nq * (nk - nq / 2) : nq * nk / 2 : nq * nk;

    if (state || a->form == PK_FORM_LINEAR) /* keys into the state, queries out of it */
        pairs = nq * (double)pk_attention_features(a->degree, (int64_t)d);
    return 2 * products * batch * heads * pairs * d;
}

struct pk_cost pk_call_cost(const struct pk_call *c)
{
    struct pk_cost cost = {.kind = kind_of(c->op)};
    int32_t at;

    for (int32_t i = 0; i < c->n_in; i++)
        cost.read += bytes_of(&c->in[i]);
    for (int32_t i = 0; i < c->n_out; i++)
        cost.written += bytes_of(&c->out[i]);
    switch (c->op) {
    case PK_OP_GATHER: /* of the table the rows that are wanted */
        cost.read = bytes_of(&c->in[1]) + count_of(&c->out[0]) * (double)pk_dtype_size(c->in[0].dtype);
        break;
    case PK_OP_MATMUL:
        cost.flop = 2 * count_of(&c->out[0]) * columns_of(&c->in[0]);
        break;
    case PK_OP_ATTENTION:
    case PK_OP_ATTENTION_STATE:
        cost.flop = attention_flop(c, 2);
        break;
    case PK_OP_ATTENTION_BWD:
        cost.flop = attention_flop(c, 5);
        /* y is there for rows that are divided by their sums, and for a learned scale */
        at = c->n_in - 2 - pk_phi_normalised(c->attr->attention.phi);
        if (!pk_phi_normalised(c->attr->attention.phi) && !c->attr->attention.has_scale)
            cost.read -= bytes_of(&c->in[at]);
        break;
    case PK_OP_ATTENTION_STATS:
        cost.flop = attention_flop(c, 1);
        break;
    case PK_OP_ATTENTION_JVP:
        cost.flop = attention_flop(c, 5);
        break;
    case PK_OP_ATTENTION_BWD2:
        cost.flop = attention_flop(c, 12);
        break;
    case PK_OP_CACHE_APPEND: /* the rest of the cache stays */
        cost.read = bytes_of(&c->in[1]);
        cost.written = count_of(&c->in[1]) * (double)pk_dtype_size(c->in[0].dtype);
        break;
    default:
        break;
    }
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

struct line { /* calls that look alike */
    char text[224];
    bool backward;
    struct pk_cost cost;
    double calls, seconds; /* of all */
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
