/* The table of the back end. */
#include "tests/reference/internal.h"

struct pk_backend {
    int unused;
};

static enum pd_err run_one(const struct pk_call *c, struct pd_why *why)
{
    switch (c->op) {
    case PK_OP_COPY:
        ref_copy(c);
        return PD_OK;
    case PK_OP_FILL:
        ref_fill(c);
        return PD_OK;
    case PK_OP_CONCAT:
        ref_concat(c);
        return PD_OK;
    case PK_OP_PAD:
        ref_pad(c);
        return PD_OK;
    case PK_OP_GATHER:
        return ref_gather(c, why);
    case PK_OP_SCATTER_ADD:
        return ref_scatter_add(c, why);
    case PK_OP_ONE_HOT:
        ref_one_hot(c);
        return PD_OK;
    case PK_OP_EXPR:
        ref_expr(c);
        return PD_OK;
    case PK_OP_SUM:
    case PK_OP_MAX:
        ref_reduce(c);
        return PD_OK;
    case PK_OP_SUMSQ:
        ref_sumsq(c);
        return PD_OK;
    case PK_OP_MATMUL:
        ref_matmul(c);
        return PD_OK;
    case PK_OP_DROPOUT:
        ref_dropout(c);
        return PD_OK;
    case PK_OP_NORM:
        ref_norm(c);
        return PD_OK;
    case PK_OP_NORM_BWD:
        ref_norm_bwd(c);
        return PD_OK;
    case PK_OP_SOFTMAX:
        ref_softmax(c);
        return PD_OK;
    case PK_OP_SOFTMAX_BWD:
        ref_softmax_bwd(c);
        return PD_OK;
    case PK_OP_CROSS_ENTROPY:
        return ref_cross_entropy(c, why);
    case PK_OP_CROSS_ENTROPY_BWD:
        return ref_cross_entropy_bwd(c, why);
    case PK_OP_CROSS_ENTROPY_GRAD:
        return ref_cross_entropy_grad(c, why);
    case PK_OP_ATTENTION:
        ref_attention(c);
        return PD_OK;
    case PK_OP_ATTENTION_BWD:
        ref_attention_bwd(c);
        return PD_OK;
    case PK_OP_ATTENTION_JVP:
    case PK_OP_ATTENTION_BWD2:
        ref_attention_second(c);
        return PD_OK;
    case PK_OP_ATTENTION_STATS:
        ref_attention_stats(c);
        return PD_OK;
    case PK_OP_ATTENTION_STATE:
        ref_attention_state(c);
        return PD_OK;
    case PK_OP_FORMULA:
        ref_formula(c);
        return PD_OK;
    case PK_OP_FORMULA_BWD:
        ref_formula_bwd(c);
        return PD_OK;
    case PK_OP_FORMULA_STATS:
        ref_formula_stats(c);
        return PD_OK;
    case PK_OP_CACHE_APPEND:
        return ref_cache_append(c, why);
    case PK_OP_ADAMW:
        ref_adamw(c);
        return PD_OK;
    case PK_OP_MSGDW:
        ref_msgdw(c);
        return PD_OK;
    case PK_OP_ACCUMULATE:
        ref_accumulate(c);
        return PD_OK;
    case PK_OP_BLEND:
        ref_blend(c);
        return PD_OK;
    case PK_OP_CONV2D:
    case PK_OP_CONV2D_DX:
    case PK_OP_CONV2D_DW:
        ref_conv2d(c);
        return PD_OK;
    case PK_OP_DWCONV2D:
    case PK_OP_DWCONV2D_DW:
        ref_dwconv2d(c);
        return PD_OK;
    case PK_OP_ALL_REDUCE: /* of one rank: whoever has more uses another back end */
        memmove(c->out[0].data, c->in[0].data,
                (size_t)pk_shape_count(&c->in[0].shape) * pk_dtype_size(c->in[0].dtype));
        return PD_OK;
    case PK_OP_BROADCAST_RANKS:
        return PD_OK;
    default:
        return pd_fail(why, PD_ERR_UNSUPPORTED, "op %d never reaches a back end", (int)c->op);
    }
}

static enum pd_err ref_run(struct pk_backend *b, const struct pk_call *calls, size_t n, struct pd_why *why)
{
    enum pd_err err = PD_OK;

    (void)b;
    for (size_t i = 0; i < n && err == PD_OK; i++)
        err = run_one(&calls[i], why);
    return err;
}

static enum pd_err ref_open(const struct pk_host *host, int device, int threads, struct pk_backend **ret,
                            struct pd_why *why)
{
    (void)host;
    (void)device;
    (void)threads;
    *ret = calloc(1, sizeof **ret);
    return *ret ? PD_OK : pd_fail(why, PD_ERR_NOMEM, "no memory for a back end");
}

static struct pk_backend *ref_close(struct pk_backend *b)
{
    free(b);
    return NULL;
}

static bool ref_supports(struct pk_backend *b, const struct pk_call *call)
{
    (void)b;
    return call->op >= PK_OP_COPY && call->op < PK_OP_COUNT;
}

static size_t ref_workspace(struct pk_backend *b, const struct pk_call *call)
{
    (void)b;
    (void)call;
    return 0;
}

static void *ref_alloc(struct pk_backend *b, size_t bytes)
{
    (void)b;
    return aligned_alloc(256, (bytes + 255) / 256 * 256);
}

static void ref_free(struct pk_backend *b, void *memory)
{
    (void)b;
    free(memory);
}

static enum pd_err ref_move(struct pk_backend *b, void *to, const void *from, size_t bytes,
                            struct pd_why *why)
{
    (void)b;
    (void)why;
    memcpy(to, from, bytes);
    return PD_OK;
}

static enum pd_err ref_sync(struct pk_backend *b, struct pd_why *why)
{
    (void)b;
    (void)why;
    return PD_OK;
}

const struct pk_backend_api *reference_backend(void)
{
    static const struct pk_backend_api api = {
        .abi = PK_BACKEND_ABI,
        .name = "reference",
        .open = ref_open,
        .close = ref_close,
        .supports = ref_supports,
        .workspace_bytes = ref_workspace,
        .alloc = ref_alloc,
        .free = ref_free,
        .upload = ref_move,
        .download = ref_move,
        .run = ref_run,
        .sync = ref_sync,
        .host_memory = true,
    };

    return &api;
}
