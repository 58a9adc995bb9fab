/* Which form x and x^2 take: quadratic (N x N scores), or linear (features, linear.cu).
 *
 * A model by counting (kernels/ENGINE.md 8): for x the forms break even at three times the time ratio of the floors,
 * for x^2 at twice the ratio of FLOP, because the products of the quadratic form are faster. From a quarter of that
 * length to four times it, where the model may be wrong, both forms are measured: when a plan asks for the workspace
 * of such a call, they run alternately on artificial tokens, and the host stores the times under device, degree,
 * length, mask, type and direction; from then on the record decides. If the host stores no records, while a graph is
 * recorded, or without memory for the trial, the model decides. A plan made without a device is valid either way: in
 * that range the workspace is large enough for both. */
#include <stdio.h>

#include "kernels/backend/cuda/attention/call.cuh"

#define KEY "attention_order/p%d/n%d/d%d/%s/%s/%s"
#define DOUBT 4 /* times the model's length, and one in it */
#define TURNS 3
#define TRIAL_BYTES ((size_t)64 << 20) /* of one tensor of a trial at most */

/* Length from which the model takes the linear form, [p - 1][causal]. */
static const int model_from[2][2] = {{1024, 2048}, {5000, 10000}};

namespace
{
struct record {
    int64_t square_ns, linear_ns;
};
enum order { SQUARE, LINEAR, EITHER };
struct question {
    enum pk_phi phi; /* a power */
    int degree, n, d;
    bool causal, backward;
    enum pk_dtype dtype;
};
} // namespace

static enum order order_of(const struct pk_call *c, struct question *ret)
{
    const struct pk_attention_attr *x = &c->attr->attention;
    struct att a;
    int from;

    if (x->form == PK_FORM_QUADRATIC)
        return SQUARE;
    att_read(&a, c);
    if (pk_attention_not_linear(x, a.nq, a.nk, !x->has_mask ? 0 : a.windows ? 3 : 2))
        return SQUARE;
    if (x->form == PK_FORM_LINEAR)
        return LINEAR;
    /* With few queries (decoding) the quadratic form is cheaper for any number of keys. */
    *ret = {x->phi,        x->degree, a.nq < a.nk ? a.nq : a.nk, a.d, x->causal, c->op == PK_OP_ATTENTION_BWD,
            c->in[0].dtype};
    from = model_from[x->degree - 1][x->causal];
    return ret->n < from / DOUBT ? SQUARE : ret->n >= from * DOUBT ? LINEAR : EITHER;
}

static void name_of(const struct pk_backend *b, const struct question *q, char *key, size_t size)
{
    snprintf(key, size, KEY, q->degree, q->n, q->d, q->causal ? "causal" : "full",
             q->dtype == PK_BF16      ? "bf16"
             : b->math == PK_MATH_F32 ? "f32"
                                      : "tf32",
             q->backward ? "bwd" : "fwd");
}
static bool recall(const struct pk_backend *b, const struct question *q, struct record *ret)
{
    char key[112];

    if (!b || !b->host || !b->host->tuned_get)
        return false;
    name_of(b, q, key, sizeof key);
    return b->host->tuned_get(b->host->user, key, ret, sizeof *ret) == sizeof *ret;
}
static void remember(const struct pk_backend *b, const struct question *q, const struct record *r)
{
    char key[112];

    name_of(b, q, key, sizeof key);
    b->host->tuned_put(b->host->user, key, r, sizeof *r);
}

bool att_is_linear(const struct pk_backend *b, const struct pk_call *c)
{
    struct question q;
    struct record r;
    const enum order order = order_of(c, &q);

    if (order != EITHER)
        return order == LINEAR;
    return recall(b, &q, &r) ? r.linear_ns < r.square_ns : q.n >= model_from[q.degree - 1][q.causal];
}

/* ---- the trial ---- */

namespace
{
struct trial {
    struct pk_attr attr[2]; /* square, linear */
    struct pk_view in[5], out[3];
    struct pk_call call[2];
    char *memory;
    size_t bytes;
};
} // namespace

static void trial_of(struct pk_backend *b, const struct question *q, int64_t pairs, struct trial *t)
{
    const size_t tensor =
        ((size_t)pairs * (size_t)q->n * (size_t)q->d * pk_dtype_size(q->dtype) + 255) / 256 * 256;
    const struct pk_shape rows = PK_SHAPE(1, pairs, q->n, q->d), inside = PK_SHAPE(1, q->n, pairs, q->d);
    size_t at = 0, most = 0;

    for (int i = 0; i < 5; i++, at += tensor)
        t->in[i] = pk_view_dense(t->memory ? t->memory + at : NULL, q->dtype, i < 3 ? rows : inside);
    for (int i = 0; i < 3; i++, at += tensor)
        t->out[i] = pk_view_dense(t->memory ? t->memory + at : NULL, q->dtype, q->backward ? rows : inside);
    for (int i = 0; i < 2; i++) {
        struct pk_call *c = &t->call[i];

        t->attr[i] = {};
        t->attr[i].attention.phi = q->phi;
        t->attr[i].attention.degree = q->degree;
        t->attr[i].attention.tau = t->attr[i].attention.scale = 1.0 / q->d;
        t->attr[i].attention.causal = q->causal;
        t->attr[i].attention.form = i ? PK_FORM_LINEAR : PK_FORM_QUADRATIC;
        *c = {};
        c->op = q->backward ? PK_OP_ATTENTION_BWD : PK_OP_ATTENTION;
        c->attr = &t->attr[i];
        c->n_in = q->backward ? 5 : 3;
        c->n_out = q->backward ? 3 : 1;
        c->in = t->in;
        c->out = t->out;
        c->workspace_bytes =
            q->backward ? cuda_attention_bwd_workspace(b, c) : cuda_attention_workspace(b, c);
        c->workspace = t->memory ? t->memory + at : NULL;
        most = c->workspace_bytes > most ? c->workspace_bytes : most;
    }
    t->bytes = at + most;
}

/* One run of an order, in ns; < 0: it failed. */
static int64_t run_once(struct pk_backend *b, const struct pk_call *c, cudaEvent_t begin, cudaEvent_t end)
{
    struct pd_why why;
    float ms = 0;

    if (cudaEventRecord(begin, b->stream) != cudaSuccess ||
        (c->op == PK_OP_ATTENTION_BWD ? cuda_attention_bwd(b, c, &why) : cuda_attention(b, c, &why)) !=
            PD_OK ||
        cudaEventRecord(end, b->stream) != cudaSuccess || cudaEventSynchronize(end) != cudaSuccess ||
        cudaEventElapsedTime(&ms, begin, end) != cudaSuccess)
        return -1;
    return (int64_t)((double)ms * 1e6);
}

/* As many pairs as fill a device twice or a trial holds: the ratio is what counts. */
static bool measure(struct pk_backend *b, const struct question *q, int64_t pairs, struct record *ret)
{
    const int64_t fill = 2 * (int64_t)b->multiprocessors,
                  fit = (int64_t)(TRIAL_BYTES / ((size_t)q->n * (size_t)q->d * pk_dtype_size(q->dtype)));
    cudaEvent_t begin = NULL, end = NULL;
    int64_t best[2] = {-1, -1};
    struct trial t = {};
    bool good = false;

    pairs = pairs < fill ? pairs : fill;
    pairs = pairs < fit ? pairs : fit;
    trial_of(b, q, pairs < 1 ? 1 : pairs, &t);
    if (cudaMalloc((void **)&t.memory, t.bytes) != cudaSuccess || cudaEventCreate(&begin) != cudaSuccess ||
        cudaEventCreate(&end) != cudaSuccess ||
        cudaMemsetAsync(t.memory, 0x3c, t.bytes, b->stream) != cudaSuccess) /* small numbers, in any type */
        goto out;
    trial_of(b, q, pairs < 1 ? 1 : pairs, &t);
    good = true;
    for (int turn = 0; turn < 2 * (1 + TURNS) && good; turn++) {
        const int64_t ns = run_once(b, &t.call[turn % 2], begin, end);
        int64_t *const least = &best[turn % 2];

        good = ns >= 0;
        if (turn >= 2 && (*least < 0 || ns < *least)) /* the first ones warm up */
            *least = ns;
    }
out:
    (void)cudaStreamSynchronize(b->stream);
    if (begin)
        (void)cudaEventDestroy(begin);
    if (end)
        (void)cudaEventDestroy(end);
    (void)cudaFree(t.memory);
    (void)cudaGetLastError();
    *ret = {best[0], best[1]};
    return good;
}

size_t att_order_workspace(const struct pk_backend *b, const struct pk_call *c, size_t square)
{
    struct question q;
    struct record r;
    const enum order order = order_of(c, &q);
    size_t linear;

    if (order == SQUARE)
        return square;
    linear = att_linear_workspace(b, c);
    if (order == LINEAR)
        return linear;
    if (b && b->host && b->host->tuned_put && b->host->tuned_get && !b->forgetful && !recall(b, &q, &r)) {
        struct pk_backend *const mine = (struct pk_backend *)b;
        enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
        struct att a;

        att_read(&a, c);
        if (cudaStreamIsCapturing(b->stream, &status) == cudaSuccess &&
            status == cudaStreamCaptureStatusNone) {
            if (measure(mine, &q, (int64_t)a.batch * a.heads, &r))
                remember(b, &q, &r);
            mine->forgetful = !recall(b, &q, &r); /* or there was no room for the trial */
        }
    }
    return linear > square ? linear : square;
}
