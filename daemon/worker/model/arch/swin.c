/* Swin Transformer (arXiv:2103.14030) with the names of its authors' repository.
 *
 * A stage works on a grid of tokens; attention sees the tokens of one window of M x M. Every other block shifts
 * the grid by M/2 first, so that windows overlap those of the block before; a mask parts tokens that are
 * neighbours only because the grid was rolled. Between stages four neighbours become one token of twice the
 * width.
 *
 *      patches -> norm -> [blocks] -> merge -> [blocks] -> merge -> ... -> norm -> mean -> head
 *
 * The position bias is part of the logits, so a power acts on it too; the mask multiplies behind phi. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/job/job.h"
#include "daemon/worker/model/arch/arch.h"
#include "kernels/base/text.h"

static const struct net_block block = {
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

/* A stage's tokens, and how a block of it cuts them into windows. */
struct grid {
    int64_t rows, columns, window, shift;
};

/* A side that is no longer than the window makes one window of that side, which is not shifted. */
static struct grid grid_of(const struct model_spec *s, int stage, int number)
{
    struct grid at = {.rows = (s->image_h / s->patch_h) >> stage,
                      .columns = (s->image_w / s->patch_w) >> stage};
    const int64_t side = at.rows < at.columns ? at.rows : at.columns;

    at.window = side <= s->window ? side : s->window;
    at.shift = side <= s->window || number % 2 == 0 ? 0 : at.window / 2;
    return at;
}

static int64_t windows_of(const struct grid *at)
{
    return at->rows / at->window * (at->columns / at->window);
}

/* N of a block. */
static double count_of(const struct model_spec *s, const struct grid *at)
{
    return (double)(s->count == MODEL_COUNT_WINDOW ? at->window * at->window : at->rows * at->columns);
}

/* The attention of a block: its own N, and the factor or bias that comes of it. */
static struct model_attention attention_of(const struct model_spec *s, const struct grid *at)
{
    struct model_attention a = s->attention;
    const double first = a.n_for_scale;

    if (s->count == MODEL_COUNT_SPEC)
        return a;
    a.n_for_scale = count_of(s, at);
    if (a.scale == MODEL_SCALE_K) /* a constant, or that of a formula times a power of N */
        a.scale_value *= pow(a.n_for_scale / first, -s->count_power);
    else if (s->count_power == 0.5)
        a.scale_value = 1 / sqrt(a.n_for_scale);
    else if (s->count_power > 0)
        a.scale_value = pow(a.n_for_scale, -s->count_power);
    if (a.logit_bias != 0)
        a.logit_bias = -log(a.n_for_scale);
    return a;
}

/* x (B, rows, columns, C) with its rows (axis 1) or columns (axis 2) moved up by `by`, those in front behind. */
static struct pk_val roll(struct net *n, struct pk_val x, int32_t axis, int64_t extent, int64_t by)
{
    const struct pk_val part[] = {pk_slice(n->g, x, axis, by, extent - by), pk_slice(n->g, x, axis, 0, by)};

    return by ? pk_concat(n->g, axis, part, 2) : x;
}

static const int32_t swapped[] = {0, 1, 3,
                                  2, 4, 5}; /* rows inside a window and columns of windows, both ways */

/* (B, rows columns, C) -> (B windows, M M, C): windows row by row, tokens of each row by row. */
static struct pk_val to_windows(struct net *n, struct pk_val x, const struct grid *at, int64_t width)
{
    const int64_t m = at->window, down = at->rows / m, across = at->columns / m;

    x = pk_reshape(n->g, x, PK_SHAPE(n->batch, at->rows, at->columns, width));
    x = roll(n, x, 1, at->rows, at->shift);
    x = roll(n, x, 2, at->columns, at->shift);
    x = pk_reshape(n->g, x, PK_SHAPE(n->batch, down, m, across, m, width));
    return pk_reshape(n->g, pk_permute(n->g, x, swapped), PK_SHAPE(n->batch * down * across, m * m, width));
}

static struct pk_val from_windows(struct net *n, struct pk_val x, const struct grid *at, int64_t width)
{
    const int64_t m = at->window, down = at->rows / m, across = at->columns / m;

    x = pk_permute(n->g, pk_reshape(n->g, x, PK_SHAPE(n->batch, down, across, m, m, width)), swapped);
    x = pk_reshape(n->g, x, PK_SHAPE(n->batch, at->rows, at->columns, width));
    x = roll(n, x, 1, at->rows, at->shift ? at->rows - at->shift : 0);
    x = roll(n, x, 2, at->columns, at->shift ? at->columns - at->shift : 0);
    return pk_reshape(n->g, x, PK_SHAPE(n->batch, at->rows * at->columns, width));
}

/* The bias of each pair of a window, (H, M M, M M): a learned number for each difference of places and head. */
static struct pk_val position_bias(struct net *n, int64_t m, int64_t heads, const char *path)
{
    const struct model_spec *s = &n->m->spec;
    const struct net_how how = {.role = MODEL_ROLE_EMBED, .start = net_start_normal(s, NET_STD)};
    const int64_t side = 2 * m - 1, tokens = m * m;
    int32_t *index = malloc((size_t)(tokens * tokens) * sizeof *index);
    struct pk_val table, place;
    char name[112];

    snprintf(name, sizeof name, "%s.relative_position_bias_table", path);
    table = net_param(n, name, PK_SHAPE(side * side, heads), &how);
    if (!index) {
        n->failed = true;
        return PK_NONE;
    }
    for (int64_t i = 0; i < tokens; i++)
        for (int64_t j = 0; j < tokens; j++)
            index[i * tokens + j] = (int32_t)((i / m - j / m + m - 1) * side + (i % m - j % m + m - 1));
    place = pk_const(n->g, PK_I32, PK_SHAPE(tokens, tokens), index);
    free(index);
    return pk_bias_of_table(n->g, table, place);
}

/* Along one side of the rolled grid: before the last window, in it, or come round from the front. */
static int band(int64_t at, int64_t extent, const struct grid *g)
{
    return at < extent - g->window ? 0 : at < extent - g->shift ? 1 : 2;
}

static int region(const struct grid *g, int64_t window, int64_t token)
{
    const int64_t across = g->columns / g->window;
    const int64_t row = window / across * g->window + token / g->window;
    const int64_t column = window % across * g->window + token % g->window;

    return 3 * band(row, g->rows, g) + band(column, g->columns, g);
}

/* U8 (windows, M M, M M): 1 for pairs of tokens that are neighbours in the image too. */
static struct pk_val mask_of(struct net *n, const struct grid *g)
{
    const int64_t tokens = g->window * g->window, windows = windows_of(g);
    uint8_t *visible = malloc((size_t)(windows * tokens * tokens));
    struct pk_val mask;

    if (!visible) {
        n->failed = true;
        return PK_NONE;
    }
    for (int64_t w = 0; w < windows; w++)
        for (int64_t i = 0; i < tokens; i++)
            for (int64_t j = 0; j < tokens; j++)
                visible[(w * tokens + i) * tokens + j] = region(g, w, i) == region(g, w, j);
    mask = pk_const(n->g, PK_U8, PK_SHAPE(windows, tokens, tokens), visible);
    free(visible);
    return mask;
}

static struct pk_val attend(struct net *n, struct pk_val x, const struct net_place *p, const char *path,
                            const char *qkv)
{
    const struct grid *at = p->user;
    const int64_t batch = n->batch, tokens = n->tokens;
    const struct net_pairs pairs = {.bias = position_bias(n, at->window, p->heads, path),
                                    .mask = at->shift ? mask_of(n, at) : PK_NONE};

    x = to_windows(n, x, at, p->width);
    n->batch = batch * windows_of(at);
    n->tokens = at->window * at->window;
    x = net_attention(n, x, p->attention, p->heads, path, qkv, p->layer, &pairs);
    n->batch = batch;
    n->tokens = tokens;
    return from_windows(n, x, at, p->width);
}

/* (B, rows columns, C) -> (B, rows columns / 4, 2 C). Of the four neighbours the one below comes second. */
static struct pk_val merge(struct net *n, struct pk_val x, const struct grid *at, int stage, int64_t width)
{
    static const int32_t order[] = {0, 1, 3, 4, 2, 5};
    const struct net_how how = {
        .role = MODEL_ROLE_MATRIX,
        .factor = true,
        .narrow = true,
        .decay = true,
        .start = net_start(&n->m->spec, 4.0 * (double)width, 2.0 * (double)width, NET_STD)};
    const int64_t down = at->rows / 2, across = at->columns / 2;
    char name[64];

    snprintf(name, sizeof name, "layers.%d.downsample", stage);
    pk_graph_scope(n->g, name);
    x = pk_reshape(n->g, x, PK_SHAPE(n->batch, down, 2, across, 2, width));
    x = pk_reshape(n->g, pk_permute(n->g, x, order), PK_SHAPE(n->batch, down * across, 4 * width));
    snprintf(name, sizeof name, "layers.%d.downsample.norm", stage);
    x = net_norm(n, x, name);
    snprintf(name, sizeof name, "layers.%d.downsample.reduction.weight", stage);
    return pk_linear(n->g, x, net_param(n, name, PK_SHAPE(2 * width, 4 * width), &how), true, PK_NONE);
}

static struct pk_val stage_of(struct net *n, struct pk_val x, int stage, int *layer)
{
    const struct model_spec *s = &n->m->spec;
    struct net_block b = block;
    char prefix[32];

    snprintf(prefix, sizeof prefix, "layers.%d.blocks", stage);
    b.prefix = prefix;
    for (int j = 0; j < s->stage_depth[stage]; j++) {
        const struct grid at = grid_of(s, stage, j);
        const struct model_attention attention = attention_of(s, &at);
        const struct net_place place = {.number = j,
                                        .layer = (*layer)++,
                                        .width = s->width << stage,
                                        .heads = s->stage_heads[stage],
                                        .mlp_width = s->mlp_width << stage,
                                        .attention = &attention,
                                        .attend = attend,
                                        .user = &at};

        n->tokens = at.rows * at.columns;
        x = net_block_at(n, x, &b, &place);
    }
    return x;
}

static struct pk_val forward(struct net *n, struct pk_val images)
{
    const struct model_spec *s = &n->m->spec;
    int layer = 0, last = 0;
    struct pk_val x = net_norm(n, net_patches(n, images), "patch_embed.norm");

    net_shared_scale(n, &s->attention);
    x = net_input_norm(n, net_embedding_dropout(n, x), "norm_pre");
    for (int i = 0; i < MODEL_STAGES_MAX && s->stage_depth[i]; i++) {
        const struct grid before = grid_of(s, i ? i - 1 : 0, 0);

        if (i)
            x = merge(n, x, &before, i - 1, s->width << (i - 1));
        x = stage_of(n, x, i, &layer);
        last = i;
    }
    pk_graph_scope(n->g, "head");
    if (s->final_norm)
        x = net_norm(n, x, "norm");
    x = pk_mean(n->g, x, 1u << 1, false);
    return net_linear(n, x, "head", s->classes,
                      net_start(s, (double)(s->width << last), s->classes, NET_STD));
}

/* Whether N of every stage is that of the first, which the factor has already. */
static bool one_count(const struct model_spec *s)
{
    for (int i = 0; i < MODEL_STAGES_MAX && s->stage_depth[i]; i++) {
        const struct grid at = grid_of(s, i, 0);

        if (count_of(s, &at) != s->attention.n_for_scale)
            return false;
    }
    return true;
}

/* What N is for this network's blocks, and the power of it that stands before phi. */
static void count_from_config(const struct job_config *c, struct model_spec *s)
{
    switch (c->attention.n_for_scale) {
    case JOB_N_WINDOW:
    case JOB_N_KEYS:
        s->count = MODEL_COUNT_WINDOW;
        break;
    case JOB_N_PATCHES:
        s->count = MODEL_COUNT_GRID;
        break;
    default:
        return;
    }
    if (job_activation_counted(c->attention.activation))
        s->count_power = c->attention.alpha;
    else if (s->attention.scale == MODEL_SCALE_FIXED || s->attention.scale == MODEL_SCALE_LEARNED)
        s->count_power = 0.5;
    else if (!one_count(s)) /* else 0, which checkpoints of before this power have */
        s->count_power = model_formula_power(c);
}

static enum pd_err from_config(const struct job_config *c, struct model_spec *s, struct pd_why *why)
{
    const struct job_ints *depths = &c->model.depths, *heads = &c->model.head_counts;
    enum pd_err err;

    if (depths->count < 1 || depths->count > MODEL_STAGES_MAX || heads->count != depths->count)
        return pd_fail(why, PD_ERR_INVALID,
                       "#/model/depths: a swin has 1 to %d stages, each with blocks and heads",
                       MODEL_STAGES_MAX);
    for (size_t i = 0; i < depths->count; i++) {
        s->stage_depth[i] = (int32_t)depths->items[i];
        s->stage_heads[i] = (int32_t)heads->items[i];
    }
    s->window = (int32_t)c->model.window;
    s->pool = MODEL_POOL_MEAN;
    s->pos = false;
    err = net_images_from_config(c, s, why);
    if (err == PD_OK)
        count_from_config(c, s);
    return err;
}

static enum pd_err check_stage(const struct model_spec *s, int i, struct pd_why *why)
{
    const int64_t rows = s->image_h / s->patch_h, columns = s->image_w / s->patch_w;
    const struct grid at = grid_of(s, i, 0);
    const int64_t width = (int64_t)s->width << i;

    if (s->stage_heads[i] < 1 || width % s->stage_heads[i])
        return pd_fail(why, PD_ERR_INVALID,
                       "#/model/head_counts: stage %d has %d heads, which do not divide %lld", i + 1,
                       s->stage_heads[i], (long long)width);
    if (rows % ((int64_t)1 << i) || columns % ((int64_t)1 << i))
        return pd_fail(why, PD_ERR_INVALID,
                       "#/model/depths: %lld x %lld patches cannot be halved %d times, which %d stages need",
                       (long long)rows, (long long)columns, i, i + 1);
    if (at.rows % at.window || at.columns % at.window)
        return pd_fail(why, PD_ERR_INVALID,
                       "#/model/window: stage %d has %lld x %lld tokens, which windows of %lld do not divide",
                       i + 1, (long long)at.rows, (long long)at.columns, (long long)at.window);
    return PD_OK;
}

static enum pd_err check(const struct model_spec *s, struct pd_why *why)
{
    int64_t blocks = 0;
    enum pd_err err = net_check_images(s, why);

    if (err == PD_OK && (s->window < 1 || s->window > 64))
        err = pd_fail(why, PD_ERR_INVALID, "#/model/window: %d; must be 1 to 64", s->window);
    for (int i = 0; err == PD_OK && i < MODEL_STAGES_MAX && s->stage_depth[i]; i++) {
        blocks += s->stage_depth[i];
        err = check_stage(s, i, why);
    }
    if (err == PD_OK && (blocks < 1 || blocks != s->depth))
        err = pd_fail(why, PD_ERR_INVALID, "#/model/depths: the stages have %lld blocks, the network %d",
                      (long long)blocks, s->depth);
    return err;
}

/* What the repository computes at start and saves all the same. */
static bool not_parameter(const char *name)
{
    return pd_text_ends(name, ".attn.relative_position_index") || pd_text_ends(name, ".attn_mask");
}

/* timm since 0.9: the merge of patches is the first part of the stage that it leads to, not the last of the one before,
 * and the classifier is `head.fc`. */
static struct model_part own_name(const char *name, char *out, size_t size)
{
    int stage, tail = 0;

    if (sscanf(name, "layers.%d.downsample.%n", &stage, &tail) == 1 && tail && stage > 0)
        snprintf(out, size, "layers.%d.downsample.%s", stage - 1, name + tail);
    else if (!strncmp(name, "head.fc.", 8))
        snprintf(out, size, "head.%s", name + 8);
    else
        snprintf(out, size, "%s", name);
    return MODEL_WHOLE;
}

const struct model_arch model_swin = {
    .name = "swin",
    .number = -1,
    .reads = MODEL_READS_IMAGES,
    .transposed = true,
    .from_config = from_config,
    .check = check,
    .forward = forward,
    .not_parameter = not_parameter,
    .respelt = {"head.fc.weight", own_name},
    .classes = {"head.weight", 0},
    .channels = {"patch_embed.proj.weight", 1},
    .block = "layers.*.blocks.*",
};
