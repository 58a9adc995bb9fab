/* tests/golden/case_train.c: thirty steps of the training graph. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/train/schedule.h"
#include "tests/golden/bf16.h"
#include "tests/golden/models.h"

static struct train_schedule schedule_of(struct golden *c)
{
    struct train_schedule s = {
        .curve = TRAIN_CURVE_COSINE, .lr = golden_num(c, "lr", 0), .steps_per_unit = 1};

    if (golden_num(c, "lr_decay_iters", 0) > 0) {
        s.warm_form = TRAIN_WARM_NANOGPT;
        s.warm = golden_num(c, "warmup_iters", 0);
        s.total = golden_num(c, "lr_decay_iters", 0);
        s.min_lr = golden_num(c, "min_lr", 0);
        s.shifted = true;
    } else {
        s.warm = golden_num(c, "warmup_t", 0);
        s.total = golden_num(c, "t_initial", 0);
        s.min_lr = golden_num(c, "lr_min", 0);
        s.warmup_lr = golden_num(c, "warmup_lr_init", 0);
    }
    return s;
}

static void check_groups(struct golden *c, const struct model *m)
{
    const json_t *list = json_object_get(c->config, "no_decay"), *item;

    for (size_t i = 0; i < model_param_count(m); i++) {
        const struct model_param *p = model_param(m, i);
        bool spared = false;
        size_t k;

        json_array_foreach(list, k, item)
        {
            spared |= json_is_string(item) && !strcmp(json_string_value(item), p->name);
        }
        c->compared++;
        if (spared == p->decay)
            golden_fail(c, "'%s' is %sdecayed here", p->name, p->decay ? "" : "not ");
    }
}

/* All parameters as one vector: what bf16 is held to. */
static void compare_final_together(struct golden *c, struct golden_rig *rig, const struct model *m)
{
    double off = 0, all = 0;

    for (size_t i = 0; i < model_param_count(m); i++) {
        const char *name = model_param(m, i)->name;
        size_t n = 0;
        const double *got, *want;

        if (!golden_find(c, "final.%s", name))
            continue;
        got = golden_rig_leaf(rig, name, &n);
        want = golden_tensor(c, NULL, "final.%s", name);
        for (size_t k = 0; got && want && k < n; k++) {
            off += (got[k] - want[k]) * (got[k] - want[k]);
            all += want[k] * want[k];
        }
    }
    golden_near(c, "all parameters as one vector", sqrt(off / all), 0, 0);
}

static void compare_final(struct golden *c, struct golden_rig *rig, const struct model *m)
{
    for (size_t i = 0; i < model_param_count(m); i++) {
        const struct model_param *p = model_param(m, i);
        size_t n = 0, third;
        double *got = golden_rig_leaf(rig, p->name, &n), *want, *length, sum = 0;
        /* Fact 6: the key bias has no gradient under softmax and walks on rounding noise. */
        bool key_bias =
            p->role == MODEL_ROLE_BIAS && (strstr(p->name, "qkv.bias") || strstr(p->name, "c_attn.bias"));

        third = n / 3;
        if (golden_find(c, "final.%s", p->name)) {
            want = golden_tensor(c, NULL, "final.%s", p->name);
            if (key_bias) {
                golden_close(c, p->name, got, want, third, 1e-2, 1e-6);
                golden_close(c, p->name, got + 2 * third, want + 2 * third, third, 1e-2, 1e-6);
            } else {
                golden_close(c, p->name, got, want, n, 1e-2, 1e-6);
            }
        }
        if (key_bias)
            continue;
        length = golden_tensor(c, NULL, "final_l2.%s.f64", p->name);
        for (size_t k = 0; k < n; k++)
            sum += got[k] * got[k];
        if (length)
            golden_near(c, p->name, sqrt(sum), *length, 1e-2 * *length);
    }
}

static bool run(struct golden *c)
{
    struct model_train_options o = {
        .label_smoothing = golden_num(c, "label_smoothing", 0),
        .clip_norm = golden_num(c, "max_norm", 0),
        .optimizer = !strcmp(golden_text(c, "optimizer", ""), "msgdw") ? MODEL_MSGDW : MODEL_ADAMW,
        .beta1 = golden_num(c, "beta1", 0),
        .beta2 = golden_num(c, "beta2", 0),
        .eps = golden_num(c, "eps", 0),
        .momentum = golden_num(c, "momentum", 0),
        .dampening = golden_num(c, "dampening", 0),
        .nesterov = golden_flag(c, "nesterov", false),
        .weight_decay = golden_num(c, "weight_decay", 0),
    };
    struct train_schedule schedule = schedule_of(c);
    struct model_spec spec;
    struct model *m = NULL;
    struct pk_graph *g = NULL;
    struct golden_rig *rig = NULL;
    double *input[2], *target[2], *lr, *loss, *loss_tol, *norm, *got, off = 0, all = 0;
    size_t steps = 0, in_count = 0, target_count = 0;
    const struct data_st_tensor *in;
    const char *in_name;
    struct pd_why why;

    if (!golden_model_spec(c, &spec))
        return false;
    in_name = spec.arch == MODEL_GPT ? "input_ids" : "images";
    in = golden_find(c, "batch0.%s", in_name);
    for (int i = 0; i < 2; i++) {
        input[i] = golden_tensor(c, &in_count, "batch%d.%s", i, in_name);
        target[i] = golden_tensor(c, &target_count, "batch%d.targets", i);
    }
    lr = golden_tensor(c, &steps, "lr.f64");
    loss = golden_tensor(c, NULL, "loss.f64");
    loss_tol = golden_tensor(c, NULL, "loss_tol_f32.f64");
    norm = golden_tensor(c, NULL, "grad_norm.f64");
    if (c->failed)
        return true;
    o.batch = (int32_t)in->dim[0];
    o.context = (int32_t)in->dim[1];
    if (model_new(&spec, &m, &why) != PD_OK || model_graph_train(m, &o, false, &g, &why) != PD_OK)
        golden_fail(c, "%s", why.text);
    else
        rig = golden_rig_new(c, g);
    if (rig) {
        check_groups(c, m);
        golden_put_params(c, rig, m, "param0");
    }
    for (size_t t = 0; rig && t <= steps; t++) {
        double rate = t < steps ? train_schedule_lr(&schedule, (int64_t)t) : 0;
        double hyper[4] = {rate, 1 - pow(o.beta1, (double)t + 1), 1 - pow(o.beta2, (double)t + 1), t == 0};
        char what[32];

        if (t < steps) {
            snprintf(what, sizeof what, "lr[%zu]", t);
            golden_near(c, what, rate, lr[t], 1e-12 * lr[t]);
        } else {
            (gold_bf16() ? compare_final_together : compare_final)(
                c, rig, m); /* before a last step that only serves to see the loss */
        }
        golden_rig_put(rig, "hyper", hyper, 4);
        golden_rig_put(rig, "input", input[t % 2], in_count);
        golden_rig_put(rig, "target", target[t % 2], target_count);
        if (!golden_rig_run(rig))
            break;
        snprintf(what, sizeof what, "loss[%zu]", t);
        got = golden_rig_output(rig, "loss", NULL);
        if (got && (t < 8 || !gold_bf16()))
            golden_near(c, what, *got, loss[t], loss_tol[t]);
        off += got ? (*got - loss[t]) / (double)(steps + 1) : 0;
        all += loss[t] / (double)(steps + 1);
        snprintf(what, sizeof what, "grad_norm[%zu]", t);
        got = golden_rig_output(rig, "grad_norm", NULL);
        if (got && t < steps && (t < 5 || !gold_bf16()))
            golden_near(c, what, *got, norm[t], 1e-2 * norm[t]);
    }
    if (gold_bf16())
        golden_near(c, "loss, the mean of all steps", all + off, all, 0);
    golden_rig_free(rig);
    model_free(m);
    return true;
}

void gold_train(struct gold *g)
{
    golden_case(g, run);
}
