/* GPT-2 with the names and layouts of Hugging Face: matrices as [in, out], the head tied to the embedding.
 * With classes it is their GPT2ForSequenceClassification: `score` reads the last token of each text, and
 * nothing is tied. */
#include <string.h>

#include "daemon/job/job.h"
#include "daemon/worker/model/arch/arch.h"
#include "kernels/base/text.h"

static const struct net_block block = {
    .prefix = "transformer.h",
    .norm1 = "ln_1",
    .attention = "attn",
    .qkv = "attn.c_attn",
    .proj = "attn.c_proj",
    .mid1 = "mid_1",
    .norm2 = "ln_2",
    .mlp = "mlp",
    .fc1 = "mlp.c_fc",
    .fc2 = "mlp.c_proj",
    .mid2 = "mid_2",
    .residual_std = true,
};

static const char input_norm[] = "transformer.ln_in";

/* (rows, D); nanoGPT: embeddings decay. */
static struct pk_val table(struct net *n, const char *name, int64_t rows, bool tied)
{
    const struct net_how how = {.role = MODEL_ROLE_EMBED,
                                .factor = tied,
                                .narrow = true,
                                .decay = true,
                                .start = net_start_normal(&n->m->spec, NET_STD)};

    return net_param(n, name, PK_SHAPE(rows, n->m->spec.width), &how);
}

static struct pk_val symbols(struct net *n)
{
    return table(n, "transformer.wte.weight", n->m->spec.vocab, n->m->spec.classes == 0);
}

/* (classes, D), without a bias */
static struct pk_val score(struct net *n)
{
    const struct model_spec *s = &n->m->spec;
    const struct net_how how = {.role = MODEL_ROLE_MATRIX,
                                .factor = true,
                                .decay = true,
                                .start = net_start(s, s->width, s->classes, NET_STD)};

    return net_param(n, "score.weight", PK_SHAPE(s->classes, s->width), &how);
}

/* tokens (B, T) -> (B, T, D) behind the last block and norm. positions PK_NONE: 0 .. T - 1. */
static struct pk_val hidden(struct net *n, struct pk_val tokens, struct pk_val positions)
{
    const struct model_spec *s = &n->m->spec;
    struct pk_val wte = symbols(n), wpe = PK_NONE, x, where = PK_NONE;

    if (s->pos)
        wpe = table(n, "transformer.wpe.weight", s->context, false);
    net_shared_scale(n, &s->attention);
    pk_graph_scope(n->g, "transformer");
    x = pk_cast(n->g, pk_gather(n->g, wte, tokens), s->dtype);
    if (s->pos) {
        where = positions.id ? pk_gather(n->g, wpe, positions) : pk_slice(n->g, wpe, 0, 0, n->tokens);
        where = pk_cast(n->g, where, s->dtype);
    }
    if (where.id && !s->pos_after)
        x = pk_add(n->g, x, where);
    x = net_input_norm(n, net_embedding_dropout(n, x), input_norm);
    if (where.id && s->pos_after)
        x = pk_add(n->g, x, where);
    for (int i = 0; i < s->depth; i++)
        x = net_block(n, x, &block, i);
    pk_graph_scope(n->g, "head");
    if (s->final_norm)
        x = net_norm(n, x, "transformer.ln_f");
    return pk_reshape(n->g, x, PK_SHAPE(n->batch * n->tokens, s->width));
}

static struct pk_val forward(struct net *n, struct pk_val tokens)
{
    struct pk_val x = hidden(n, tokens, PK_NONE);

    if (!n->m->spec.classes)
        return pk_linear(n->g, x, symbols(n), true, PK_NONE);
    x = pk_gather(n->g, x, pk_input(n->g, "last", PK_I32, PK_SHAPE(n->batch)));
    return pk_linear(n->g, x, score(n), true, PK_NONE);
}

static struct pk_val decode(struct net *n, struct pk_val tokens, struct pk_val positions, struct pk_val pick)
{
    struct pk_val x = pk_gather(n->g, hidden(n, tokens, positions), pick);

    return pk_linear(n->g, x, symbols(n), true, PK_NONE);
}

static struct pk_val first_block(struct net *n, struct pk_val x)
{
    return net_block(n, net_input_norm(n, x, input_norm), &block, 0);
}

static enum pd_err from_config(const struct job_config *c, struct model_spec *s, struct pd_why *why)
{
    (void)why;
    s->context = (int32_t)c->model.context;
    return PD_OK;
}

static enum pd_err check(const struct model_spec *s, struct pd_why *why)
{
    if (s->classes < 0 || s->classes > 1000000)
        return pd_fail(why, PD_ERR_INVALID, "#/model: texts in %d classes", s->classes);
    if (s->vocab < 1)
        return pd_fail(why, PD_ERR_INVALID,
                       "#/model: the size of the vocabulary is unknown: there is no tokenizer, and no tensor "
                       "transformer.wte.weight");
    if (s->vocab > 10000000 || s->context < 1 || s->context > 1048576)
        return pd_fail(why, PD_ERR_INVALID, "#/model/context: %d positions, %d symbols", s->context,
                       s->vocab);
    return PD_OK;
}

/* Mask buffers of attention. */
static bool not_parameter(const char *name)
{
    return pd_text_ends(name, ".attn.bias") || pd_text_ends(name, ".attn.masked_bias");
}

const struct model_arch model_gpt = {
    .name = "gpt",
    .number = 1,
    .reads = MODEL_READS_TOKENS,
    .causal = true,
    .from_config = from_config,
    .check = check,
    .forward = forward,
    .decode = decode,
    .first_block = first_block,
    .prefix = "transformer.",
    .not_parameter = not_parameter,
    .repeated = "lm_head.weight",
    .repeats = "transformer.wte.weight",
    .classes = {"score.weight", 0},
    .vocab = {"transformer.wte.weight", 0},
    .block = "transformer.h.*",
};
