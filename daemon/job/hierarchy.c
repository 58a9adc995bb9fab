/* Hierarchical networks (Swin): sizes that follow from their lists of stages, and the checks of these lists. */
#include "daemon/job/rules.h"

#include "daemon/job/internal.h"

#define STAGES_MAX 8

/* The side of the windows on a grid: a side that is no longer than a window makes one window. */
static int64_t window_side(const struct job_config *g, int64_t rows, int64_t columns)
{
    const int64_t side = rows < columns ? rows : columns;

    return side < g->model.window ? side : g->model.window;
}

int64_t job_config_window(const struct job_config *g)
{
    int64_t side;

    if (!job_network(g->model.arch)->windows || !job_config_patches(g))
        return 0;
    side =
        window_side(g, g->data.image_size[0] / g->model.patch[0], g->data.image_size[1] / g->model.patch[1]);
    return side * side;
}

int64_t job_config_heads_most(const struct job_config *g)
{
    const struct job_ints *counts = &g->model.head_counts;
    int64_t most = g->model.heads;

    for (size_t i = 0; job_network(g->model.arch)->stages && i < counts->count; i++)
        most = counts->items[i] > most ? counts->items[i] : most;
    return most;
}

/* N of the modules of a stage, `rows` x `columns` tokens. */
static double stage_n(const struct job_config *g, int64_t rows, int64_t columns)
{
    const int64_t side = window_side(g, rows, columns);

    switch (g->attention.n_for_scale) {
    case JOB_N_WINDOW:
    case JOB_N_KEYS:
        return (double)(side * side);
    case JOB_N_PATCHES:
        return (double)(rows * columns);
    default:
        return g->attention.n;
    }
}

bool job_config_stage(const struct job_config *g, size_t i, struct job_stage *ret)
{
    const struct job_model *m = &g->model;

    if (!job_network(m->arch)->stages) {
        *ret = (struct job_stage){
            .blocks = m->depth, .heads = m->heads, .head_dim = job_config_head_dim(g), .n = g->attention.n};
        return i == 0;
    }
    if (i >= m->depths.count)
        return false;
    *ret = (struct job_stage){.blocks = m->depths.items[i],
                              .heads = m->head_counts.items[i],
                              .head_dim = m->widths.items[i] / m->head_counts.items[i],
                              .n = stage_n(g, (g->data.image_size[0] / m->patch[0]) >> i,
                                           (g->data.image_size[1] / m->patch[1]) >> i)};
    return true;
}

/* The lists are there, agree in length, and give a width and heads to each stage. */
static bool check_lists(struct job_ctx *c)
{
    const struct job_model *m = &c->g->model;
    const struct {
        const char *pointer, *what;
        const struct job_ints *list;
    } lists[] = {{"/model/widths", "width", &m->widths},
                 {"/model/depths", "blocks", &m->depths},
                 {"/model/head_counts", "heads", &m->head_counts}};
    const struct {
        const char *pointer;
        int64_t value;
        json_t *(*rule)(struct job_ctx *c);
    } singles[] = {{"/model/width", m->width, job_rule_width},
                   {"/model/depth", m->depth, job_rule_depth},
                   {"/model/heads", m->heads, job_rule_heads}};

    for (int i = 0; i < 3; i++) {
        if (job_ctx_bad(c, lists[i].pointer))
            return false;
        if (!lists[i].list->count)
            job_ctx_error(c, lists[i].pointer, "is needed by a %s: the %s of each stage",
                          job_arch_name(m->arch), lists[i].what);
        else if (lists[i].list->count > STAGES_MAX)
            job_ctx_error(c, lists[i].pointer, "has %zu stages, more than the %d allowed",
                          lists[i].list->count, STAGES_MAX);
        else if (lists[i].list->count != m->widths.count)
            job_ctx_error(c, lists[i].pointer, "has %zu stages, but model.widths has %zu",
                          lists[i].list->count, m->widths.count);
        else
            continue;
        return false;
    }
    for (int i = 0; i < 3; i++) {
        json_t *own = singles[i].rule(c);
        const bool same = own && json_integer_value(own) == singles[i].value;

        json_decref(own);
        if (same || job_ctx_bad(c, singles[i].pointer))
            continue;
        job_ctx_error(c, singles[i].pointer, "follows from the lists of a %s: omit it",
                      job_arch_name(m->arch));
        return false;
    }
    return true;
}

/* Stage i has the grid of patches halved i times. Named is what the user set, the patch before the image before the
 * stages. */
static void cannot_be_halved(struct job_ctx *c, size_t i, int64_t rows, int64_t columns)
{
    const struct job_config *g = c->g;
    const char *place = job_ctx_layer(c, "/model/patch") >= JOB_LAYER_DOCUMENT       ? "/model/patch"
                        : job_ctx_layer(c, "/data/image_size") >= JOB_LAYER_DOCUMENT ? "/data/image_size"
                                                                                     : "/model/depths";

    job_ctx_error(
        c, place,
        "%lldx%lld pixels in patches of %lldx%lld are %lldx%lld patches, which cannot be halved %zu "
        "time%s, as %zu stages need: each side of data.image_size must be a multiple of model.patch "
        "x %lld",
        (long long)g->data.image_size[0], (long long)g->data.image_size[1], (long long)g->model.patch[0],
        (long long)g->model.patch[1], (long long)rows, (long long)columns, i, i == 1 ? "" : "s", i + 1,
        1ll << i);
}

static bool check_stage(struct job_ctx *c, size_t i)
{
    const struct job_model *m = &c->g->model;
    const int64_t width = m->widths.items[i], heads = m->head_counts.items[i];
    const int64_t rows = c->g->data.image_size[0] / m->patch[0],
                  columns = c->g->data.image_size[1] / m->patch[1];
    const int64_t parts = (int64_t)1 << i;
    int64_t side;

    if (width != m->widths.items[0] * parts)
        job_ctx_error(c, "/model/widths", "must double from stage to stage: stage %zu has %lld, not %lld",
                      i + 1, (long long)width, (long long)(m->widths.items[0] * parts));
    else if (width % heads != 0)
        job_ctx_error(c, "/model/head_counts", "%lld heads do not divide the width %lld of stage %zu",
                      (long long)heads, (long long)width, i + 1);
    else if (rows % parts || columns % parts)
        cannot_be_halved(c, i, rows, columns);
    else if (side = window_side(c->g, rows / parts, columns / parts),
             rows / parts % side || columns / parts % side)
        job_ctx_error(c, "/model/window",
                      "must divide the grid: stage %zu has %lldx%lld tokens, a window %lld", i + 1,
                      (long long)(rows / parts), (long long)(columns / parts), (long long)side);
    else
        return true;
    return false;
}

void job_check_stages(struct job_ctx *c)
{
    const struct job_model *m = &c->g->model;

    if (job_ctx_bad(c, "/model/patch") || job_ctx_bad(c, "/data/image_size") ||
        job_ctx_bad(c, "/model/window") || !job_config_patches(c->g))
        return;
    if (m->pool == JOB_POOL_CLS && !job_ctx_bad(c, "/model/pool"))
        job_ctx_error(c, "/model/pool", "must be mean: a %s has no class token", job_arch_name(m->arch));
    if (!check_lists(c))
        return;
    for (size_t i = 0; i < m->widths.count && check_stage(c, i); i++)
        ;
}
