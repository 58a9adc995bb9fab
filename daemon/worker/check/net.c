/* The small network: graphs, data, steps. */
#include "daemon/worker/check/net.h"

#include <stdio.h>
#include <string.h>

#include "daemon/worker/data/data.h"
#include "daemon/worker/task/task.h"
#include "daemon/worker/train/optim/optim.h"

#define SIDE 28
#define CLASSES 10

struct model_spec check_net_spec(enum model_placement placement, int32_t width, int32_t depth, int32_t patch,
                                 enum pk_dtype dtype)
{
    struct model_spec s = {.arch = &model_vit,
                           .width = width,
                           .depth = depth,
                           .heads = width % 2 ? 1 : 2,
                           .mlp_width = 4 * width,
                           .bias = true,
                           .final_norm = true,
                           .classes = CLASSES,
                           .norm_kind = placement == MODEL_S1 ? PK_NORM_LAYER : PK_NORM_RMS,
                           .norm_eps = 1e-6,
                           .placement = placement,
                           .channels = 1,
                           .image_h = SIDE,
                           .image_w = SIDE,
                           .patch_h = patch,
                           .patch_w = patch,
                           .pool = MODEL_POOL_CLS,
                           .pos = true,
                           .init = MODEL_INIT_TRUNC_XAVIER,
                           .dtype = dtype};

    s.attention = (struct model_attention){.phi = PK_PHI_SOFTMAX,
                                           .degree = 1,
                                           .scale = MODEL_SCALE_NONE,
                                           .scale_value = 1,
                                           .scale_lr_mult = 1,
                                           .qk_norm = placement != MODEL_S1,
                                           .init_logit_std = -1};
    return s;
}

static struct model_train_options options(const struct optim *o, int32_t batch)
{
    return (struct model_train_options){.loss = &task_cross_entropy,
                                        .batch = batch,
                                        .optimizer = o ? &o->graph : NULL,
                                        .beta1 = 0.9,
                                        .beta2 = 0.999,
                                        .eps = 1e-8,
                                        .momentum = 0.9};
}

static bool open_around(struct check *c, struct check_net *net, struct pk_graph *g, enum pd_err err,
                        const struct pd_why *why)
{
    if (err != PD_OK)
        check_fail(c, err, "%s", why->text);
    if (err == PD_OK && check_engine_around(c, &net->en, g)) {
        net->en.f32 = model_spec(net->model)->dtype == PK_F32;
        check_engine_plan(c, &net->en);
        return true;
    }
    net->model = model_free(net->model);
    return false;
}

bool check_net_train(struct check *c, struct check_net *net, const struct model_spec *spec,
                     const char *optimiser, int32_t batch)
{
    const struct model_train_options o = options(optimiser ? optim_find(optimiser) : NULL, batch);
    struct pk_graph *g = NULL;
    struct pd_why why = {""};
    enum pd_err err;

    memset(net, 0, sizeof *net);
    net->batch = batch;
    if (c->err != PD_OK)
        return false;
    err = model_new(spec, &net->model, &why);
    if (err == PD_OK)
        err = model_graph_train(net->model, &o, !optimiser, &g, &why);
    return open_around(c, net, g, err, &why);
}

bool check_net_forward(struct check *c, struct check_net *net, const struct model_spec *spec, int32_t batch)
{
    struct pk_graph *g = NULL;
    struct pd_why why = {""};
    enum pd_err err;

    memset(net, 0, sizeof *net);
    net->batch = batch;
    if (c->err != PD_OK)
        return false;
    err = model_new(spec, &net->model, &why);
    if (err == PD_OK)
        err = model_graph_classify(net->model, batch, 0, &g, &why);
    return open_around(c, net, g, err, &why);
}

void check_net_close(struct check_net *net)
{
    check_engine_close(&net->en);
    net->model = model_free(net->model);
}

static size_t leaf_of(const struct check_net *net, const char *name)
{
    size_t i = 0;

    while (i < net->en.leaves && strcmp(pk_graph_leaf(net->en.g, i).name, name) != 0)
        i++;
    return i;
}

void *check_net_param(struct check *c, struct check_net *net, size_t i, size_t *ret_count)
{
    const char *name = model_param(net->model, i)->name;

    if (c->err != PD_OK || leaf_of(net, name) == net->en.leaves)
        return NULL;
    return check_engine_leaf(c, &net->en, name, ret_count);
}

void check_net_init(struct check *c, struct check_net *net)
{
    struct pd_why why = {""};
    size_t count;

    for (size_t i = 0; i < model_param_count(net->model); i++) {
        void *to = check_net_param(c, net, i, &count);

        if (to && model_param_init(net->model, i, c->seed + 1, to, &why) != PD_OK)
            check_fail(c, PD_ERR_INTERNAL, "%s", why.text);
    }
}

void check_net_copy(struct check *c, struct check_net *net, struct check_net *from)
{
    for (size_t i = 0; c->err == PD_OK && i < model_param_count(net->model); i++) {
        const struct model_param *p = model_param(net->model, i);
        const size_t to = leaf_of(net, p->name), at = leaf_of(from, p->name);

        if (to < net->en.leaves && at < from->en.leaves) {
            const struct pk_leaf a = pk_graph_leaf(net->en.g, to), b = pk_graph_leaf(from->en.g, at);

            if (a.bytes == b.bytes && a.dtype == b.dtype)
                memcpy(net->en.memory[to], from->en.memory[at], a.bytes);
        }
    }
}

void check_net_digits(struct check *c, struct check_net *net, int64_t first)
{
    double *images = check_numbers(c, (size_t)net->batch * SIDE * SIDE);
    int32_t targets[4096];

    if (!images || net->batch > 4096)
        return;
    for (int32_t i = 0; i < net->batch; i++) {
        uint8_t pixels[SIDE * SIDE];

        targets[i] = (int32_t)((first + i) % CLASSES);
        data_digit_draw(c->seed, first + i, targets[i], pixels);
        for (int k = 0; k < SIDE * SIDE; k++)
            images[i * SIDE * SIDE + k] = (pixels[k] / 255.0 - 0.13) / 0.31;
    }
    check_engine_put(c, &net->en, "input", images);
    if (leaf_of(net, "target") < net->en.leaves)
        check_engine_put_ints(c, &net->en, "target", targets);
}

bool check_net_steps(struct check *c, struct check_net *net, const char *optimiser, int64_t steps, double lr,
                     double share, double part)
{
    const struct optim *optim = optim_find(optimiser);
    const struct model_train_options o = options(optim, net->batch);

    for (int64_t i = 0; i < steps; i++) {
        struct pd_arena *scratch = c->scratch; /* of one step */
        double hyper[4];

        if (!check_go(c, share + part * (double)i / (double)steps))
            return false;
        c->scratch = pd_arena_new();
        if (c->scratch)
            check_net_digits(c, net, i * net->batch);
        else
            check_fail(c, PD_ERR_NOMEM, "no memory for a batch");
        pd_arena_free(c->scratch);
        c->scratch = scratch;
        if (c->err != PD_OK)
            return false;
        optim->hyper(&o, i, lr, hyper);
        check_engine_put(c, &net->en, "hyper", hyper);
        check_engine_run(c, &net->en);
    }
    return c->err == PD_OK;
}
