/* DeiT with a distillation token (arXiv:2012.12877, section 4) with timm's names: a ViT with a second token and
 * a second head, which learns from a teacher. What is scored and served is the mean of both heads. */
#include "daemon/job/job.h"
#include "daemon/worker/model/arch/arch.h"

#define TOKENS 2 /* additional tokens: class and distillation */

static const char input_norm[] = "norm_pre";

/* The logits of token `which`. */
static struct pk_val head(struct net *n, struct pk_val x, int64_t which, const char *name)
{
    const struct model_spec *s = &n->m->spec;

    x = pk_reshape(n->g, pk_slice(n->g, x, 1, which, 1), PK_SHAPE(n->batch, s->width));
    return net_linear(n, x, name, s->classes, net_start(s, s->width, s->classes, NET_STD));
}

static struct pk_val forward(struct net *n, struct pk_val images)
{
    const struct model_spec *s = &n->m->spec;
    const int64_t patches = (int64_t)(s->image_h / s->patch_h) * (s->image_w / s->patch_w);
    struct pk_val part[TOKENS + 1], where = PK_NONE, x;

    part[0] = net_token(n, "cls_token", NET_STD);
    part[1] = net_token(n, "dist_token", NET_STD);
    if (s->pos)
        where = net_positions(n, patches + TOKENS);
    part[2] = net_patches(n, images);
    net_shared_scale(n, &s->attention);
    n->tokens = patches + TOKENS;
    x = pk_concat(n->g, 1, part, TOKENS + 1);
    if (where.id && !s->pos_after)
        x = pk_add(n->g, x, pk_cast(n->g, where, s->dtype));
    x = net_input_norm(n, net_embedding_dropout(n, x), input_norm);
    if (where.id && s->pos_after)
        x = pk_add(n->g, x, pk_cast(n->g, where, s->dtype));
    for (int i = 0; i < s->depth; i++)
        x = net_block(n, x, &net_timm_block, i);
    pk_graph_scope(n->g, "head");
    if (s->final_norm)
        x = net_norm(n, x, "norm");
    n->own = head(n, x, 0, "head");
    n->distilled = head(n, x, 1, "head_dist");
    return pk_scale(n->g, pk_add(n->g, n->own, n->distilled), 0.5);
}

static enum pd_err from_config(const struct job_config *c, struct model_spec *s, struct pd_why *why)
{
    s->pool = MODEL_POOL_CLS;
    return net_images_from_config(c, s, why);
}

const struct model_arch model_deit = {
    .name = "deit",
    .number = -1,
    .reads = MODEL_READS_IMAGES,
    .transposed = true,
    .distils = true,
    .from_config = from_config,
    .check = net_check_images,
    .forward = forward,
    .classes = {"head.weight", 0},
    .channels = {"patch_embed.proj.weight", 1},
    .block = "blocks.*",
};
