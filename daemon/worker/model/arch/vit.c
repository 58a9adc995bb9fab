/* ViT (arXiv:2010.11929) with the names and layouts of timm. With mean pooling there is no cls_token and the
 * norm behind the mean is fc_norm. */
#include "daemon/job/job.h"
#include "daemon/worker/model/arch/arch.h"

static const char input_norm[] = "norm_pre";

static struct pk_val forward(struct net *n, struct pk_val images)
{
    const struct model_spec *s = &n->m->spec;
    int64_t patches = (int64_t)(s->image_h / s->patch_h) * (s->image_w / s->patch_w), d = s->width;
    const bool cls = s->pool == MODEL_POOL_CLS;
    struct pk_val x, both[2] = {PK_NONE, PK_NONE}, where = PK_NONE;

    if (cls)
        both[0] = net_token(n, "cls_token", 1e-6);
    if (s->pos)
        where = net_positions(n, patches + cls);
    x = net_patches(n, images);
    net_shared_scale(n, &s->attention);
    n->tokens = patches + cls;
    if (cls) {
        both[1] = x;
        x = pk_concat(n->g, 1, both, 2);
    }
    if (where.id && !s->pos_after)
        x = pk_add(n->g, x, pk_cast(n->g, where, s->dtype));
    x = net_input_norm(n, net_embedding_dropout(n, x), input_norm);
    if (where.id && s->pos_after)
        x = pk_add(n->g, x, pk_cast(n->g, where, s->dtype));
    for (int i = 0; i < s->depth; i++)
        x = net_block(n, x, &net_timm_block, i);
    pk_graph_scope(n->g, "head");
    if (cls)
        x = pk_reshape(n->g, pk_slice(n->g, x, 1, 0, 1), PK_SHAPE(n->batch, d));
    else
        x = pk_mean(n->g, x, 1u << 1, false);
    if (s->final_norm)
        x = net_norm(n, x, cls ? "norm" : "fc_norm");
    return net_linear(n, x, "head", s->classes, net_start(s, (double)d, s->classes, NET_STD));
}

static struct pk_val first_block(struct net *n, struct pk_val x)
{
    return net_block(n, net_input_norm(n, x, input_norm), &net_timm_block, 0);
}

static enum pd_err from_config(const struct job_config *c, struct model_spec *s, struct pd_why *why)
{
    s->pool = c->model.pool == JOB_POOL_CLS ? MODEL_POOL_CLS : MODEL_POOL_MEAN;
    return net_images_from_config(c, s, why);
}

const struct model_arch model_vit = {
    .name = "vit",
    .number = 0,
    .reads = MODEL_READS_IMAGES,
    .transposed = true,
    .from_config = from_config,
    .check = net_check_images,
    .forward = forward,
    .first_block = first_block,
    .classes = {"head.weight", 0},
    .channels = {"patch_embed.proj.weight", 1},
    .block = "blocks.*",
};
