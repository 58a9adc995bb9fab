/* tests/golden/optim.c: optimisers step by step, with the optimiser part of the training graph;
 * schedules. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/train/optim/optim.h"
#include "daemon/worker/model/net.h"
#include "daemon/worker/train/schedule.h"
#include "tests/golden/rig.h"

static bool listed(const struct golden *c, const char *key, const char *name)
{
    const json_t *list = json_object_get(c->config, key), *item;
    size_t i;

    json_array_foreach(list, i, item)
    {
        if (json_is_string(item) && !strcmp(json_string_value(item), name))
            return true;
    }
    return false;
}

static void schedule(struct golden *c, const char *tensor, struct train_schedule s)
{
    size_t n = 0;
    double *want = golden_tensor(c, &n, "%s", tensor);

    for (size_t i = 0; want && i < n; i++) {
        char what[64];

        snprintf(what, sizeof what, "%s[%zu]", tensor, i);
        golden_near(c, what, train_schedule_lr(&s, (int64_t)i), want[i], 1e-12 * fabs(want[i]) + 1e-22);
    }
}

static void schedules(struct golden *c, bool nanogpt)
{
    struct train_schedule s = {
        .curve = TRAIN_CURVE_COSINE, .lr = golden_num(c, "lr", 0), .steps_per_unit = 1};

    if (nanogpt) {
        s.warm = golden_num(c, "warmup_iters", 0);
        s.total = golden_num(c, "lr_decay_iters", 0);
        s.min_lr = golden_num(c, "min_lr", 0);
        s.shifted = true;
        s.warm_form = TRAIN_WARM_NANOGPT;
        schedule(c, "lr.f64", s);
        s.warm_form = TRAIN_WARM_NANOGPT_OLD;
        schedule(c, "lr_before_fix.f64", s);
        return;
    }
    s.warm = golden_num(c, "warmup_t", 0);
    s.total = golden_num(c, "t_initial", 0);
    s.min_lr = golden_num(c, "lr_min", 0);
    s.warmup_lr = golden_num(c, "warmup_lr_init", 0);
    schedule(c, "lr.f64", s);
    /* timm's warmup_prefix moves the clock but not its length */
    s.shifted = true;
    s.total += s.warm;
    schedule(c, "lr_warmup_prefix.f64", s);
    s.total -= s.warm;
    s.warmup_lr = 0;
    schedule(c, "lr_halfcycle.f64", s);
}

static const char *golden_label(const char *what, const char *name)
{
    static char text[64];

    snprintf(text, sizeof text, "%s of %s", what, name);
    return text;
}

/* Appends the numbers of step t to what is kept of one tensor: the reference holds all steps in one. */
static void keep(const double *from, size_t count, double **all, size_t t)
{
    *all = realloc(*all, (t + 1) * count * sizeof **all);
    if (*all && from)
        memcpy(*all + t * count, from, count * sizeof **all);
}

static bool run(struct golden *c)
{
    static const char *const names[] = {"w", "b", "attn_scale"};
    struct model_train_options o = {
        .clip_norm = golden_num(c, "max_norm", 0),
        .optimizer =
            !strcmp(golden_text(c, "optimizer", ""), "msgdw") ? &optim_msgdw.graph : &optim_adamw.graph,
        .beta1 = golden_num(c, "beta1", 0),
        .beta2 = golden_num(c, "beta2", 0),
        .eps = golden_num(c, "eps", 0),
        .momentum = golden_num(c, "momentum", 0),
        .dampening = golden_num(c, "dampening", 0),
        .nesterov = golden_flag(c, "nesterov", false),
        .weight_decay = golden_num(c, "weight_decay", 0),
    };
    bool adamw = o.optimizer == &optim_adamw.graph;
    struct model_optim_item item[3];
    double *grads[3], *params[3], *first[3], *second[3], *lr, *norm, *coefficient,
        *trajectory[3][3] = {{NULL}};
    size_t size[3], steps = (size_t)golden_num(c, "steps", 0);
    const char *name = golden_text(c, "case", "");
    struct pk_graph *g;
    struct golden_rig *rig;

    if (!strncmp(name, "schedule_", 9)) {
        schedules(c, !strcmp(name, "schedule_nanogpt"));
        return true;
    }
    g = pk_graph_new(false);
    for (int i = 0; i < 3; i++) {
        const struct data_st_tensor *t = golden_find(c, "param0.%s", names[i]);
        struct pk_shape shape = {0};
        char grad[32];

        if (!t) {
            golden_fail(c, "no parameter '%s'", names[i]);
            pk_graph_free(g);
            return true;
        }
        shape.rank = t->rank;
        memcpy(shape.dim, t->dim, sizeof shape.dim);
        size[i] = (size_t)t->count;
        snprintf(grad, sizeof grad, "g/%s", names[i]);
        item[i] = (struct model_optim_item){.name = names[i],
                                            .param = pk_param(g, names[i], PK_F32, shape),
                                            .grad = pk_input(g, grad, PK_F32, shape),
                                            .decay = listed(c, "decayed", names[i]),
                                            .lr_mult = 1};
        grads[i] = golden_tensor(c, NULL, "grads.%s", names[i]);
        params[i] = golden_tensor(c, NULL, "params.%s.f64", names[i]);
        first[i] = golden_tensor(c, NULL, adamw ? "exp_avg.%s" : "momentum.%s", names[i]);
        second[i] = adamw ? golden_tensor(c, NULL, "exp_avg_sq.%s", names[i]) : NULL;
    }
    model_emit_optimiser(g, &o, PK_NONE, PK_NONE, item, 3, NULL, 0);
    lr = golden_tensor(c, NULL, "lr.f64");
    norm = golden_tensor(c, NULL, "grad_norm.f64");
    coefficient = golden_tensor(c, NULL, "clip_coef.f64");
    rig = c->failed ? NULL : golden_rig_new(c, g);
    if (!rig)
        return true;
    for (int i = 0; i < 3; i++)
        golden_rig_put(rig, names[i], golden_tensor(c, NULL, "param0.%s", names[i]), size[i]);
    for (size_t t = 0; t < steps; t++) {
        double hyper[4] = {lr[t], 1 - pow(o.beta1, (double)t + 1), 1 - pow(o.beta2, (double)t + 1), t == 0},
               *got;
        char what[64];

        golden_rig_put(rig, "hyper", hyper, 4);
        for (int i = 0; i < 3; i++) {
            snprintf(what, sizeof what, "g/%s", names[i]);
            golden_rig_put(rig, what, grads[i] + t * size[i], size[i]);
        }
        if (!golden_rig_run(rig))
            break;
        got = golden_rig_output(rig, "grad_norm", NULL);
        if (got) {
            snprintf(what, sizeof what, "grad_norm[%zu]", t);
            golden_near(c, what, *got, norm[t], 2e-6 * norm[t]);
            snprintf(what, sizeof what, "clip_coef[%zu]", t);
            if (o.clip_norm > 0)
                golden_near(c, what, fmin(1, o.clip_norm / (*got + 1e-6)), coefficient[t],
                            2e-6 * coefficient[t]);
        }
        for (int i = 0; i < 3; i++) {
            snprintf(what, sizeof what, "m/%s", names[i]);
            keep(golden_rig_leaf(rig, names[i], NULL), size[i], &trajectory[0][i], t);
            keep(golden_rig_leaf(rig, what, NULL), size[i], &trajectory[1][i], t);
            what[0] = 'v';
            if (adamw)
                keep(golden_rig_leaf(rig, what, NULL), size[i], &trajectory[2][i], t);
        }
    }
    for (int i = 0; i < 3; i++) {
        size_t n = steps * size[i];

        if (!c->failed) {
            golden_close(c, golden_label("params", names[i]), trajectory[0][i], params[i], n, 2e-6, 1e-6);
            golden_close(c, golden_label("first moment", names[i]), trajectory[1][i], first[i], n, 2e-6,
                         1e-6);
            if (adamw)
                golden_close(c, golden_label("second moment", names[i]), trajectory[2][i], second[i], n, 2e-6,
                             1e-6);
        }
        for (int k = 0; k < 3; k++)
            free(trajectory[k][i]);
    }
    golden_rig_free(rig);
    return true;
}

void gold_optim(struct gold *g)
{
    golden_case(g, run);
}
