/* daemon/worker/model/arch/patches.c: what networks of images begin with: the patch embedding, and what they ask of
 * the images. */
#include "daemon/job/job.h"
#include "daemon/worker/model/arch/arch.h"

const struct net_block net_timm_block = {
    .prefix = "blocks",
    .norm1 = "norm1",
    .attention = "attn",
    .qkv = "attn.qkv",
    .proj = "attn.proj",
    .mid1 = "mid1",
    .norm2 = "norm2",
    .mlp = "mlp",
    .fc1 = "mlp.fc1",
    .fc2 = "mlp.fc2",
    .mid2 = "mid2",
    .hidden_dropout = true,
};

struct pk_val net_token(struct net *n, const char *name, double std)
{
    const int64_t width = n->m->spec.width;
    const struct net_how how = {.role = MODEL_ROLE_EMBED,
                                .start = {.rest = {.kind = MODEL_DRAW_NORMAL, .a = std}}};

    return pk_broadcast(n->g, net_param(n, name, PK_SHAPE(1, 1, width), &how), PK_SHAPE(n->batch, 1, width));
}

struct pk_val net_positions(struct net *n, int64_t count)
{
    const struct net_how how = {
        .role = MODEL_ROLE_EMBED, .narrow = true, .start = net_start_normal(&n->m->spec, NET_STD)};

    return net_param(n, "pos_embed", PK_SHAPE(1, count, n->m->spec.width), &how);
}

struct pk_val net_patches(struct net *n, struct pk_val images)
{
    static const int32_t order[] = {0, 2, 4, 1, 3, 5};
    const struct model_spec *s = &n->m->spec;
    int64_t rows = s->image_h / s->patch_h, columns = s->image_w / s->patch_w;
    int64_t d = s->width, size = (int64_t)s->channels * s->patch_h * s->patch_w;
    const struct net_how weight = {.role = MODEL_ROLE_CONV,
                                   .factor = true,
                                   .decay = true,
                                   .start = net_start(s, (double)size, (double)d, NET_STD)},
                         zero = {.role = MODEL_ROLE_CONV};
    struct pk_val x, w, b = PK_NONE;

    w = net_param(n, "patch_embed.proj.weight", PK_SHAPE(d, s->channels, s->patch_h, s->patch_w), &weight);
    if (s->bias)
        b = net_param(n, "patch_embed.proj.bias", PK_SHAPE(d), &zero);
    pk_graph_scope(n->g, "patch_embed");
    /* patches row by row, each flattened as (channel, row, column) */
    x = pk_reshape(n->g, images, PK_SHAPE(n->batch, s->channels, rows, s->patch_h, columns, s->patch_w));
    x = pk_reshape(n->g, pk_permute(n->g, x, order), PK_SHAPE(n->batch, rows * columns, size));
    return pk_linear(n->g, x, pk_reshape(n->g, w, PK_SHAPE(d, size)), true, b);
}

enum pd_err net_images_from_config(const struct job_config *c, struct model_spec *s, struct pd_why *why)
{
    if (c->data.image_size[0] && (c->data.image_size[0] != s->image_h || c->data.image_size[1] != s->image_w))
        return pd_fail(why, PD_ERR_UNSUPPORTED,
                       "#/data/image_size: the images are %d x %d; resizing is not available in this build",
                       s->image_h, s->image_w);
    s->patch_h = (int32_t)c->model.patch[0];
    s->patch_w = (int32_t)c->model.patch[1];
    return PD_OK;
}

enum pd_err net_check_images(const struct model_spec *s, struct pd_why *why)
{
    if (s->channels < 1 || s->image_h < 1 || s->image_w < 1 || s->channels > 64 || s->image_h > 4096 ||
        s->image_w > 4096 || s->classes < 1 || s->classes > 1000000)
        return pd_fail(why, PD_ERR_INVALID, "#/model: images of %d x %d x %d in %d classes", s->channels,
                       s->image_h, s->image_w, s->classes);
    if (s->patch_h < 1 || s->patch_w < 1 || s->image_h % s->patch_h || s->image_w % s->patch_w)
        return pd_fail(why, PD_ERR_INVALID,
                       "#/model/patch: a patch of %d x %d does not divide images of %d x %d", s->patch_h,
                       s->patch_w, s->image_h, s->image_w);
    return PD_OK;
}
