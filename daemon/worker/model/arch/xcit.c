/* XCiT (arXiv:2106.09681) with the names and layouts of its authors' code.
 *
 * Attention between channels: per head z = tau q' k / (|q_i| |k_j|), (d, d), the norms over tokens; they and the
 * temperature tau are applied to the small matrix, so that normalised q and k are never written. Behind the blocks
 * two class-attention layers, in which the class token alone asks; the other rows pass through them as in the
 * authors' code: gamma1 u is added to them too, and the feed-forward branch doubles them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/job.h"
#include "daemon/worker/model/arch/arch.h"

#define CLASS_LAYERS 2
#define CODE 32 /* numbers of the Fourier code for each axis */
#define CODE_BASE 10000.0
#define NORM_LEAST 1e-12 /* of a row that q and k are divided by */

static const struct net_block block = {
    .prefix = "blocks", .fc1 = "mlp.fc1", .fc2 = "mlp.fc2", .hidden_dropout = true};
static const struct net_block class_block = {
    .prefix = "cls_attn_blocks", .fc1 = "mlp.fc1", .fc2 = "mlp.fc2", .hidden_dropout = true};

struct named {
    char text[96];
};

static const char *name_of(struct named *to, const struct net_block *b, int layer, const char *part)
{
    snprintf(to->text, sizeof to->text, "%s.%d.%s", b->prefix, layer, part);
    return to->text;
}

/* LayerScale: gamma x, where the model has it. */
static struct pk_val layer_scale(struct net *n, struct pk_val x, const struct net_block *b, int layer,
                                 const char *part)
{
    const struct model_spec *s = &n->m->spec;
    const struct net_how how = {.role = MODEL_ROLE_GAIN,
                                .start = {.rest = {MODEL_DRAW_VALUE, s->layerscale, 0}}};
    struct named a;

    if (!(s->layerscale > 0))
        return x;
    return pk_mul(n->g, x, net_param(n, name_of(&a, b, layer, part), PK_SHAPE(s->width), &how));
}

/* ---- stem ---- */

/* Convolutions that halve the grid. */
static int stem_layers(const struct model_spec *s)
{
    int layers = 0;

    while (1 << layers < s->patch_h)
        layers++;
    return layers;
}

/* images (B, C, H, W) -> (B, H / patch, W / patch, D) */
static struct pk_val stem(struct net *n, struct pk_val images)
{
    static const int32_t last[] = {0, 2, 3, 1};
    const int layers = stem_layers(&n->m->spec);
    struct pk_val x = pk_permute(n->g, images, last);

    pk_graph_scope(n->g, "patch_embed");
    for (int i = 0; i < layers; i++) {
        struct named conv, norm;

        if (i)
            x = pk_gelu(n->g, x, false);
        snprintf(conv.text, sizeof conv.text, "patch_embed.proj.%d.0", 2 * i);
        snprintf(norm.text, sizeof norm.text, "patch_embed.proj.%d.1", 2 * i);
        x = net_convolution(n, x, conv.text, n->m->spec.width >> (layers - 1 - i), 3, 2, 1);
        x = net_batch_norm(n, x, norm.text);
    }
    return x;
}

/* (H W, 64): CODE numbers of the row, then of the column; place r of an axis of R stands at 2 pi (r + 1) / (R + 1e-6),
 * by sines and cosines of falling frequencies in turn. */
static struct pk_val fourier_code(struct net *n, int64_t rows, int64_t columns)
{
    const bool wide = n->m->spec.dtype == PK_F64;
    const int64_t count = rows * columns * 2 * CODE;
    double *all = calloc((size_t)count + 1, sizeof *all);
    struct pk_val x;

    if (!all) {
        n->failed = true;
        return PK_NONE;
    }
    for (int64_t i = 0; i < count; i++) {
        const int64_t e = i % (2 * CODE), place = i / (2 * CODE);
        const int64_t at = e < CODE ? place / columns : place % columns, of = e < CODE ? rows : columns,
                      k = e % CODE;
        const double angle = 2 * 3.14159265358979323846 * (double)(at + 1) / ((double)of + 1e-6) /
                             pow(CODE_BASE, (double)(k / 2 * 2) / CODE);

        all[i] = k % 2 ? cos(angle) : sin(angle);
    }
    for (int64_t i = 0; !wide && i < count; i++) /* in place, from the first */
        ((float *)all)[i] = (float)all[i];
    x = pk_const(n->g, wide ? PK_F64 : PK_F32, PK_SHAPE(rows * columns, 2 * CODE), all);
    free(all);
    return x;
}

/* The code of every place by a 1 x 1 convolution: (H W, D). */
static struct pk_val positions(struct net *n, int64_t rows, int64_t columns)
{
    const struct model_spec *s = &n->m->spec;
    const struct net_how how = {
        .role = MODEL_ROLE_CONV, .decay = true, .start = net_start(s, 2.0 * CODE, s->width, NET_STD)};
    struct pk_val w =
        net_param(n, "pos_embeder.token_projection.weight", PK_SHAPE(s->width, 2 * CODE, 1, 1), &how);
    struct pk_val b =
        net_vector(n, "pos_embeder.token_projection", "bias", MODEL_ROLE_BIAS, PK_SHAPE(s->width), 0);

    pk_graph_scope(n->g, "pos_embeder");
    return pk_linear(n->g, fourier_code(n, rows, columns), pk_reshape(n->g, w, PK_SHAPE(s->width, 2 * CODE)),
                     true, b);
}

/* ---- attention between channels ---- */

/* x (B, N, D) -> W_Q | W_K | W_V as (B, N, 3, H, d). */
static struct pk_val project(struct net *n, struct pk_val x, const struct model_attention *a, const char *qkv,
                             int64_t tokens, int layer)
{
    const struct model_spec *s = &n->m->spec;

    x = net_linear(n, x, qkv, 3 * (int64_t)s->width, net_start_qkv(s, a, s->width));
    net_mark(n, qkv, MODEL_WEIGHT_QKV, layer);
    return pk_reshape(n->g, x, PK_SHAPE(n->batch, tokens, 3, s->heads, s->width / s->heads));
}

/* 1 / |channel over all tokens| of x (B, N, H, d), as (B, H, d, 1). Squared and summed as x is stored, channels
 * innermost: this and its derivative then run along memory. */
static struct pk_val inverse_norms(struct net *n, struct pk_val x)
{
    static const int32_t order[] = {0, 2, 3, 1};
    struct pk_val sum = pk_sum(n->g, pk_mul(n->g, x, x), 1u << 1, true);

    pk_graph_exact(n->g, true);
    sum = pk_max2(n->g, sum, pk_fill(n->g, n->m->spec.dtype, PK_SHAPE(1), NORM_LEAST * NORM_LEAST));
    sum = pk_unary(n->g, PK_EX_RSQRT, sum);
    pk_graph_exact(n->g, false);
    return pk_permute(n->g, sum, order);
}

static struct pk_val temperature(struct net *n, const char *path)
{
    const struct model_spec *s = &n->m->spec;
    const struct net_how how = {
        .role = MODEL_ROLE_GAIN, .decay = s->decay_temperature, .start = {.rest = {MODEL_DRAW_VALUE, 1, 0}}};
    char full[112];

    snprintf(full, sizeof full, "%s.temperature", path);
    return net_param(n, full, PK_SHAPE(s->heads, 1, 1), &how);
}

static struct pk_val identity(struct net *n, int64_t d)
{
    const bool wide = n->m->spec.dtype == PK_F64;
    void *all = calloc((size_t)(d * d), sizeof(double));
    struct pk_val x;

    if (!all) {
        n->failed = true;
        return PK_NONE;
    }
    for (int64_t i = 0; i < d; i++) {
        if (wide)
            ((double *)all)[i * d + i] = 1;
        else
            ((float *)all)[i * d + i] = 1;
    }
    x = pk_const(n->g, wide ? PK_F64 : PK_F32, PK_SHAPE(d, d), all);
    free(all);
    return x;
}

/* Diagnostics of phi at logits z (B, H, d, d): those of queries z and of keys that are unit vectors. */
static void diagnose(struct net *n, size_t at, struct pk_val z, const struct pk_attention_spec *spec)
{
    const struct pk_shape shape = pk_shape_of(n->g, z);
    const int64_t d = shape.dim[3];
    struct pk_val unit;

    if (!n->stats && !n->maps)
        return;
    unit = pk_broadcast(n->g, identity(n, d), shape);
    if (n->stats)
        n->stats[at] = pk_attention_stats(
            n->g, z, unit, pk_fill(n->g, n->m->spec.dtype, PK_SHAPE(shape.dim[0], d, 1), 0), *spec);
    if (n->maps)
        net_maps(n, at, z, unit, *spec);
}

/* Cross-covariance attention of x (B, N, D): (B, N, D) before the projection. */
static struct pk_val cross_covariance(struct net *n, struct pk_val x, const char *path, const char *qkv_name,
                                      int layer)
{
    static const int32_t rows[] = {0, 2, 3, 1}, columns[] = {0, 2, 1, 3};
    const struct model_spec *s = &n->m->spec;
    const struct model_attention *a = &s->attention;
    const int64_t d = s->width / s->heads;
    struct pk_attention_spec spec = {
        .phi = a->phi, .degree = a->degree, .scale = 1, .bias = a->logit_bias, .tau = 1};
    struct pk_val qkv = project(n, x, a, qkv_name, n->tokens, layer), part[3], norm[2], z, w,
                  tau = temperature(n, path);
    size_t scale = 0, at = n->module++;

    for (int i = 0; i < 3; i++)
        part[i] = pk_reshape(n->g, pk_slice(n->g, qkv, 2, i, 1), PK_SHAPE(n->batch, n->tokens, s->heads, d));
    norm[0] = inverse_norms(n, part[0]);
    norm[1] = inverse_norms(n, part[1]);
    part[0] = pk_permute(n->g, part[0], rows); /* (B, H, d, N) */
    part[1] = pk_permute(n->g, part[1], rows);
    part[2] = pk_permute(n->g, part[2], columns); /* (B, H, N, d) */
    z = pk_matmul(n->g, part[0], pk_transpose(n->g, part[1]));
    pk_graph_exact(n->g, true); /* rounding logits before a power multiplies the error by it */
    z = pk_mul(n->g, pk_mul(n->g, z, pk_mul(n->g, norm[0], tau)), pk_transpose(n->g, norm[1]));
    pk_graph_exact(n->g, false);
    if (a->scale == MODEL_SCALE_LEARNED)
        spec.scale_value = net_learned_scale(n, a, s->heads, path, &scale);
    else
        spec.scale = a->scale_value;
    net_module_declare(n, path, a, s->heads, scale);
    net_module_axis(n, MODEL_AXIS_CHANNELS);
    diagnose(n, at, z, &spec);
    pk_graph_exact(n->g, true);
    w = pk_attention_weights(n->g, z, spec);
    pk_graph_exact(n->g, false);
    w = pk_dropout(n->g, w, n->rng, a->dropout, net_stream(layer, NET_AT_WEIGHTS));
    x = pk_permute(n->g, pk_matmul(n->g, part[2], pk_transpose(n->g, w)),
                   columns); /* y_n = sum_j A_ij v_nj */
    return pk_reshape(n->g, x, PK_SHAPE(n->batch, n->tokens, s->width));
}

/* ---- blocks ---- */

static struct pk_val project_out(struct net *n, struct pk_val x, const struct net_block *b, int layer,
                                 int stream)
{
    const struct model_spec *s = &n->m->spec;
    struct named a;

    x = net_linear(n, x, name_of(&a, b, layer, "attn.proj"), s->width,
                   net_start(s, s->width, s->width, NET_STD));
    net_mark(n, a.text, MODEL_WEIGHT_O, stream);
    return net_dropout(n, x, stream, NET_AT_PROJECTION);
}

/* The feed-forward branch of layer `number` of `b`, whose noise is that of layer `layer` of all. */
static struct pk_val feed_forward(struct net *n, struct pk_val x, const struct net_block *b, int number,
                                  int layer)
{
    const struct model_spec *s = &n->m->spec;
    const struct net_place p = {
        .number = number, .layer = layer, .width = s->width, .mlp_width = s->mlp_width};

    return net_feed_forward(n, x, b, &p);
}

/* Local patch interaction, among neighbours on the grid. */
static struct pk_val local_interaction(struct net *n, struct pk_val x, int layer, int64_t rows,
                                       int64_t columns)
{
    const int64_t width = n->m->spec.width;
    struct named a;

    x = pk_reshape(n->g, x, PK_SHAPE(n->batch, rows, columns, width));
    x = net_depthwise(n, x, name_of(&a, &block, layer, "local_mp.conv1"), 3);
    x = net_batch_norm(n, pk_gelu(n->g, x, false), name_of(&a, &block, layer, "local_mp.bn"));
    x = net_depthwise(n, x, name_of(&a, &block, layer, "local_mp.conv2"), 3);
    return pk_reshape(n->g, x, PK_SHAPE(n->batch, n->tokens, width));
}

static struct pk_val channel_layer(struct net *n, struct pk_val x, int layer, int64_t rows, int64_t columns)
{
    struct named a, b;
    struct pk_val h;

    pk_graph_scope(n->g, name_of(&a, &block, layer, "attn"));
    h = net_norm(n, x, name_of(&a, &block, layer, "norm1"));
    h = cross_covariance(n, h, name_of(&a, &block, layer, "attn"), name_of(&b, &block, layer, "attn.qkv"),
                         layer);
    h = layer_scale(n, project_out(n, h, &block, layer, layer), &block, layer, "gamma1");
    x = pk_add(n->g, x, net_drop_path(n, h, layer, NET_AT_PATH1));
    pk_graph_scope(n->g, name_of(&a, &block, layer, "local_mp"));
    h = local_interaction(n, net_norm(n, x, name_of(&a, &block, layer, "norm3")), layer, rows, columns);
    x = pk_add(n->g, x, net_drop_path(n, layer_scale(n, h, &block, layer, "gamma3"), layer, NET_AT_PATH3));
    pk_graph_scope(n->g, name_of(&a, &block, layer, "mlp"));
    h = feed_forward(n, net_norm(n, x, name_of(&a, &block, layer, "norm2")), &block, layer, layer);
    return pk_add(n->g, x, net_drop_path(n, layer_scale(n, h, &block, layer, "gamma2"), layer, NET_AT_PATH2));
}

/* Row 0 of x (B, N + 1, D), or all others. */
static struct pk_val first_row(struct net *n, struct pk_val x)
{
    return pk_slice(n->g, x, 1, 0, 1);
}

static struct pk_val other_rows(struct net *n, struct pk_val x)
{
    return pk_slice(n->g, x, 1, 1, n->tokens);
}

static struct pk_val join(struct net *n, struct pk_val first, struct pk_val others)
{
    const struct pk_val both[2] = {first, others};

    return pk_concat(n->g, 1, both, 2);
}

/* The class row of u (B, N + 1, D) attends to all of them: (B, 1, D). */
static struct pk_val class_attention(struct net *n, struct pk_val u, const char *path, const char *qkv_name,
                                     int stream)
{
    static const int32_t order[] = {0, 2, 1, 3};
    const struct model_spec *s = &n->m->spec;
    const struct model_attention *a = &s->class_attention;
    const int64_t d = s->width / s->heads, rows = n->tokens + 1;
    struct pk_attention_spec spec = {.phi = a->phi,
                                     .degree = a->degree,
                                     .scale = a->scale == MODEL_SCALE_LEARNED ? 1 : a->scale_value,
                                     .bias = a->logit_bias,
                                     .dropout = a->dropout,
                                     .stream = net_stream(stream, NET_AT_WEIGHTS),
                                     .rng = n->rng};
    struct pk_val qkv = project(n, u, a, qkv_name, rows, stream), part[3], y;
    size_t scale = 0, at = n->module++;

    for (int i = 0; i < 3; i++) {
        part[i] = pk_reshape(n->g, pk_slice(n->g, qkv, 2, i, 1), PK_SHAPE(n->batch, rows, s->heads, d));
        part[i] = pk_permute(n->g, i ? part[i] : first_row(n, part[i]), order);
    }
    if (a->scale == MODEL_SCALE_LEARNED)
        spec.scale_value = net_learned_scale(n, a, s->heads, path, &scale);
    net_module_declare(n, path, a, s->heads, scale);
    net_module_axis(n, MODEL_AXIS_CLASS);
    if (n->stats)
        n->stats[at] = pk_attention_stats(n->g, part[0], part[1], first_row(n, u), spec);
    if (n->maps)
        net_maps(n, at, part[0], part[1], spec);
    y = pk_attention(n->g, part[0], part[1], part[2], spec);
    return pk_reshape(n->g, y, PK_SHAPE(n->batch, 1, s->width));
}

static struct pk_val class_layer(struct net *n, struct pk_val x, int layer)
{
    const struct model_spec *s = &n->m->spec;
    const int stream = s->depth + layer;
    struct named a, b;
    struct pk_val u, h;

    pk_graph_scope(n->g, name_of(&a, &class_block, layer, "attn"));
    u = net_norm(n, x, name_of(&a, &class_block, layer, "norm1"));
    h = class_attention(n, u, name_of(&a, &class_block, layer, "attn"),
                        name_of(&b, &class_block, layer, "attn.qkv"), stream);
    h = join(n, project_out(n, h, &class_block, layer, stream), other_rows(n, u));
    x = pk_add(n->g, x, layer_scale(n, h, &class_block, layer, "gamma1"));
    pk_graph_scope(n->g, name_of(&a, &class_block, layer, "mlp"));
    name_of(&a, &class_block, layer, "norm2");
    x = s->class_norm_alone ? join(n, net_norm(n, first_row(n, x), a.text), other_rows(n, x))
                            : net_norm(n, x, a.text);
    h = layer_scale(n, feed_forward(n, first_row(n, x), &class_block, layer, stream), &class_block, layer,
                    "gamma2");
    return pk_add(n->g, x, join(n, h, other_rows(n, x)));
}

static struct pk_val class_token(struct net *n)
{
    const struct net_how how = {.role = MODEL_ROLE_EMBED, .start = net_start_normal(&n->m->spec, NET_STD)};

    return net_param(n, "cls_token", PK_SHAPE(1, 1, n->m->spec.width), &how);
}

static struct pk_val forward(struct net *n, struct pk_val images)
{
    const struct model_spec *s = &n->m->spec;
    const int64_t rows = s->image_h / s->patch_h, columns = s->image_w / s->patch_w;
    struct pk_val token = class_token(n), x = stem(n, images);

    n->tokens = rows * columns;
    net_shared_scale(n, &s->attention);
    x = pk_reshape(n->g, x, PK_SHAPE(n->batch, n->tokens, s->width));
    if (s->pos)
        x = pk_add(n->g, x, positions(n, rows, columns));
    x = net_embedding_dropout(n, x);
    for (int i = 0; i < s->depth; i++)
        x = channel_layer(n, x, i, rows, columns);
    x = join(n, pk_broadcast(n->g, token, PK_SHAPE(n->batch, 1, s->width)), x);
    for (int i = 0; i < s->class_depth; i++)
        x = class_layer(n, x, i);
    pk_graph_scope(n->g, "head");
    if (s->final_norm)
        x = net_norm(n, x, "norm");
    x = pk_reshape(n->g, first_row(n, x), PK_SHAPE(n->batch, s->width));
    return net_linear(n, x, "head", s->classes, net_start(s, s->width, s->classes, NET_STD));
}

static enum pd_err from_config(const struct job_config *c, struct model_spec *s, struct pd_why *why)
{
    const double keys = (double)(s->image_h / c->model.patch[0] * (s->image_w / c->model.patch[1]) + 1);
    enum pd_err err;

    s->pool = MODEL_POOL_CLS;
    s->pos = c->model.pos == JOB_POS_FOURIER;
    s->layerscale = isnan(c->model.layerscale) ? 0 : c->model.layerscale;
    s->decay_temperature = c->train.optimizer.decay_temperature;
    s->class_depth = CLASS_LAYERS;
    err = model_attention_of_keys(c, keys, c->attention.class_attention == JOB_CLASS_ATTENTION_SOFTMAX,
                                  &s->class_attention, why);
    return err == PD_OK ? net_images_from_config(c, s, why) : err;
}

static enum pd_err check(const struct model_spec *s, struct pd_why *why)
{
    enum pd_err err = net_check_images(s, why);

    if (err != PD_OK)
        return err;
    if (s->patch_h != s->patch_w || s->patch_h < 2 || s->patch_h > 64 || s->patch_h & (s->patch_h - 1))
        return pd_fail(
            why, PD_ERR_INVALID,
            "#/model/patch: %d x %d; the stem halves the image, so it is a power of two from 2 to 64",
            s->patch_h, s->patch_w);
    if (s->width % (1 << (stem_layers(s) - 1)))
        return pd_fail(why, PD_ERR_INVALID,
                       "#/model/width: %d is not a multiple of %d, which the stem of patch size %d requires",
                       s->width, 1 << (stem_layers(s) - 1), s->patch_h);
    if (s->placement != MODEL_S1)
        return pd_fail(why, PD_ERR_INVALID, "#/norm/placement: an xcit supports only S1");
    if (s->attention.qk_norm || s->attention.l1_tokens)
        return pd_fail(why, PD_ERR_INVALID, "%s: an xcit has norms of its own on queries and keys",
                       s->attention.qk_norm ? "#/attention/qk_norm" : "#/attention/activation");
    if (s->attention.init_logit_std >= 0)
        return pd_fail(
            why, PD_ERR_INVALID,
            "#/attention/init_logit_std: an xcit normalises queries and keys, so that it has no effect");
    if (s->attention.share == MODEL_SHARE_GLOBAL && s->attention.scale == MODEL_SCALE_LEARNED)
        return pd_fail(why, PD_ERR_INVALID,
                       "#/attention/scale_share: an xcit has two kinds of attention: use layer or head");
    if (s->class_depth < 1 || s->class_depth > 16 || !(s->layerscale >= 0) || !isfinite(s->layerscale))
        return pd_fail(why, PD_ERR_INVALID, "#/model/layerscale: %g, with %d class layers", s->layerscale,
                       s->class_depth);
    return model_attention_check(s, &s->class_attention, why);
}

/* timm: `pos_embed` for `pos_embeder`; class attention has a layer each for queries, keys and values, because it asks for
 * the class token alone. */
static struct model_part own_name(const char *name, char *out, size_t size)
{
    static const char letters[] = "qkv";
    int layer, tail = 0;
    char letter;

    if (sscanf(name, "cls_attn_blocks.%d.attn.%c.%n", &layer, &letter, &tail) == 2 && tail &&
        strchr(letters, letter)) {
        snprintf(out, size, "cls_attn_blocks.%d.attn.qkv.%s", layer, name + tail);
        return (struct model_part){(int)(strchr(letters, letter) - letters), 3};
    }
    if (!strncmp(name, "pos_embed.", 10))
        snprintf(out, size, "pos_embeder.%s", name + 10);
    else
        snprintf(out, size, "%s", name);
    return MODEL_WHOLE;
}

const struct model_arch model_xcit = {
    .name = "xcit",
    .number = -1,
    .reads = MODEL_READS_IMAGES,
    .transposed = true,
    .from_config = from_config,
    .check = check,
    .forward = forward,
    .respelt = {"cls_attn_blocks.0.attn.q.weight", own_name},
    .classes = {"head.weight", 0},
    .channels = {"patch_embed.proj.0.0.weight", 1},
    .block = "blocks.*",
};
