/* Groups swin and deit: whole networks under their public names: logits, losses, every gradient
 * as the vectors have them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/task/task.h"
#include "tests/golden/vision.h"

/* Ten times what a float32 run of the references needs, and more for sums that cancel. */
#define OUT_RTOL 2e-5
#define GRAD_RTOL 2e-4
#define SCALE_RTOL 1e-3
#define GRAD_FLOOR 1e-3 /* of the file's largest gradient */

const json_t *vision_part(const struct golden *c, const char *key)
{
    return json_object_get(c->config, key);
}

int32_t vision_whole(const json_t *o, const char *key)
{
    return (int32_t)json_integer_value(json_object_get(o, key));
}

bool vision_attention(const struct golden *c, struct model_attention *a)
{
    const json_t *o = vision_part(c, "attention"), *start = vision_part(c, "scale_init");
    const char *kind = json_string_value(json_object_get(o, "kind"));
    const char *mode = json_string_value(json_object_get(o, "scale_mode"));

    *a = (struct model_attention){.degree = 1, .scale_value = 1, .scale_lr_mult = 1, .init_logit_std = -1};
    if (!kind || !strcmp(kind, "softmax"))
        return kind != NULL;
    a->phi = PK_PHI_POLY;
    a->degree = vision_whole(o, "p");
    if (json_is_number(start))
        a->scale_value = json_number_value(start);
    a->scale = !mode || !strcmp(mode, "none") ? MODEL_SCALE_NONE
               : !strcmp(mode, "learned")     ? MODEL_SCALE_LEARNED
                                              : MODEL_SCALE_FIXED;
    return !strcmp(kind, "poly") && mode;
}

bool vision_common(const struct golden *c, struct model_spec *s)
{
    const json_t *m = vision_part(c, "model");

    *s = (struct model_spec){
        .width = vision_whole(m, "embed_dim"),
        .channels = 3,
        .image_h = vision_whole(m, "img_size"),
        .image_w = vision_whole(m, "img_size"),
        .patch_h = vision_whole(m, "patch_size"),
        .patch_w = vision_whole(m, "patch_size"),
        .classes = vision_whole(m, "num_classes"),
        .bias = true,
        .final_norm = true,
        .norm_eps = golden_num(c, "ln_eps", 0),
        .dtype = PK_F32,
    };
    s->mlp_width = (int32_t)(json_number_value(json_object_get(m, "mlp_ratio")) * s->width);
    return vision_attention(c, &s->attention);
}

static bool swin_spec(const struct golden *c, struct model_spec *s)
{
    const json_t *m = vision_part(c, "model"), *blocks = vision_part(c, "blocks"), *b;
    size_t i;

    if (!vision_common(c, s))
        return false;
    s->arch = &model_swin;
    s->window = vision_whole(m, "window_size");
    for (i = 0; i < json_array_size(json_object_get(m, "depths")); i++) {
        s->stage_depth[i] = (int32_t)json_integer_value(json_array_get(json_object_get(m, "depths"), i));
        s->stage_heads[i] = (int32_t)json_integer_value(json_array_get(json_object_get(m, "num_heads"), i));
        s->depth += s->stage_depth[i];
    }
    s->heads = s->stage_heads[0];
    s->count = MODEL_COUNT_WINDOW;
    if (s->attention.scale == MODEL_SCALE_FIXED || s->attention.scale == MODEL_SCALE_LEARNED)
        s->count_power = 0.5;
    json_array_foreach(blocks, i, b)
    {
        s->attention.n_for_scale = vision_whole(b, "window") * vision_whole(b, "window");
    }
    return true;
}

/* The file calls a learned scale phi_scale. */
static const char *name_of(const char *own, char *out, size_t size)
{
    const char *tail = strstr(own, "attn_scale");

    if (!tail)
        return own;
    snprintf(out, size, "%.*sphi_scale%s", (int)(tail - own), own, tail + strlen("attn_scale"));
    return out;
}

/* Fills the parameters, each of which the file has, and which are all that it has. */
void vision_put_params(struct golden *c, struct golden_rig *rig, const struct model *m)
{
    size_t seen = 0, there = 0;

    for (size_t i = 0; i < model_trained_count(m); i++) {
        const char *own = model_param(m, i)->name;
        size_t count = 0;
        char text[96];
        const double *x = golden_tensor(c, &count, "param/%s", name_of(own, text, sizeof text));

        if (x)
            golden_rig_put(rig, own, x, count);
        seen += x != NULL;
    }
    for (size_t i = 0; i < data_st_count(c->st); i++)
        there += strncmp(data_st_at(c->st, i)->name, "param/", 6) == 0;
    if (there != seen)
        golden_fail(c, "%zu parameters of the file are ours, of %zu", seen, there);
}

void vision_compare_gradients(struct golden *c, struct golden_rig *rig, const struct model *m,
                              const char *prefix)
{
    double largest = 0;
    char text[96];

    for (size_t i = 0; i < model_trained_count(m); i++) {
        size_t n = 0;
        const double *want =
            golden_tensor(c, &n, "%s/%s", prefix, name_of(model_param(m, i)->name, text, sizeof text));

        for (size_t k = 0; want && k < n; k++)
            largest = fmax(largest, fabs(want[k]));
    }
    for (size_t i = 0; i < model_trained_count(m); i++) {
        const struct model_param *p = model_param(m, i);
        char name[96];
        size_t n = 0, count = 0;
        const double *want = golden_tensor(c, &n, "%s/%s", prefix, name_of(p->name, text, sizeof text)), *got;

        snprintf(name, sizeof name, "grad/%s", p->name);
        got = golden_rig_output(rig, name, &count);
        if (want && got && n == count)
            golden_close(c, name, got, want, n, p->role == MODEL_ROLE_SCALE ? SCALE_RTOL : GRAD_RTOL,
                         GRAD_FLOOR * largest);
        else
            golden_fail(c, "%s: %zu numbers, reference %zu", name, count, n);
    }
}

void vision_compare(struct golden *c, struct golden_rig *rig, const char *output, const char *want_name)
{
    size_t n = 0, count = 0;
    const double *want = golden_tensor(c, &n, "%s", want_name), *got = golden_rig_output(rig, output, &count);

    if (want && got && n == count)
        golden_close(c, output, got, want, n, OUT_RTOL, 1e-6);
    else
        golden_fail(c, "%s: %zu numbers, reference %zu", output, count, n);
}

void vision_put(struct golden *c, struct golden_rig *rig, const char *leaf, const char *tensor)
{
    size_t n = 0;
    const double *x = golden_tensor(c, &n, "%s", tensor);

    if (x)
        golden_rig_put(rig, leaf, x, n);
}

static bool swin(struct golden *c)
{
    struct model_train_options o = {.loss = &task_cross_entropy, .batch = (int32_t)golden_num(c, "batch", 0)};
    struct model_spec spec;
    struct model *m = NULL;
    struct pk_graph *g = NULL;
    struct golden_rig *rig = NULL;
    struct pd_why why;

    if (!swin_spec(c, &spec))
        return false;
    if (model_new(&spec, &m, &why) != PD_OK || model_graph_train(m, &o, true, &g, &why) != PD_OK)
        golden_fail(c, "%s", why.text);
    else
        rig = golden_rig_new(c, g);
    if (rig) {
        vision_put_params(c, rig, m);
        vision_put(c, rig, "input", "in/x");
        vision_put(c, rig, "target", "in/labels");
        if (golden_rig_run(rig)) {
            vision_compare(c, rig, "logits", "out/logits");
            vision_compare(c, rig, "loss", "out/loss");
            vision_compare_gradients(c, rig, m, "grad");
        }
    }
    golden_rig_free(rig);
    model_free(m);
    return true;
}

/* The labels mixed with those of the mirrored rows, as input "mix" has it; the file's own soft targets must be
 * these. */
static void put_mix(struct golden *c, struct golden_rig *rig, const struct model_spec *s)
{
    const double share = golden_num(c, "lam", 1), smoothing = golden_num(c, "smoothing", 0);
    const int batch = (int)golden_num(c, "batch", 0);
    double *mix = calloc((size_t)batch * MODEL_MIXES, sizeof *mix), *soft;
    const double *labels = golden_tensor(c, NULL, "in/labels"), *want;
    size_t n = 0;

    want = golden_tensor(c, &n, "in/soft_target");
    soft = calloc(n + 1, sizeof *soft);
    if (mix && soft && labels && want && n == (size_t)(batch * s->classes)) {
        for (int i = 0; i < batch; i++) {
            mix[i * MODEL_MIXES + MODEL_MIX_SHARE] = share;
            for (int k = 0; k < s->classes; k++)
                soft[i * s->classes + k] =
                    smoothing / s->classes +
                    (1 - smoothing) *
                        (share * ((int)labels[i] == k) + (1 - share) * ((int)labels[batch - 1 - i] == k));
        }
        golden_rig_put(rig, "mix", mix, (size_t)batch * MODEL_MIXES);
        golden_close(c, "soft_target", soft, want, n, 1e-6, 1e-6);
    } else {
        golden_fail(c, "no labels to mix");
    }
    free(mix);
    free(soft);
}

/* One loss of the file: logits of both heads and their mean; of the hard one the gradients. */
static void deit_loss(struct golden *c, const struct model *m, const struct model_distil *distil, bool mixed,
                      const char *want)
{
    struct model_train_options o = {.loss = &task_cross_entropy,
                                    .batch = (int32_t)golden_num(c, "batch", 0),
                                    .label_smoothing = golden_num(c, "smoothing", 0),
                                    .distil = distil};
    struct pk_graph *g = NULL;
    struct golden_rig *rig = NULL;
    struct pd_why why;

    o.mix_group = mixed ? o.batch : 0;
    if (model_graph_train(m, &o, true, &g, &why) != PD_OK)
        golden_fail(c, "%s", why.text);
    else
        rig = golden_rig_new(c, g);
    if (!rig)
        return;
    vision_put_params(c, rig, m);
    vision_put(c, rig, "input", "in/x");
    vision_put(c, rig, "target", "in/labels");
    vision_put(c, rig, "teacher", "in/teacher_logits");
    if (mixed)
        put_mix(c, rig, model_spec(m));
    if (golden_rig_run(rig)) {
        vision_compare(c, rig, "logits", "out/logits_eval");
        vision_compare(c, rig, "logits/own", "out/logits_cls");
        vision_compare(c, rig, "logits/distilled", "out/logits_dist");
        vision_compare(c, rig, "loss", want);
        if (!strcmp(want, "out/loss_hard"))
            vision_compare_gradients(c, rig, m, "grad");
    }
    golden_rig_free(rig);
}

static bool deit(struct golden *c)
{
    const json_t *m = vision_part(c, "model");
    const struct model_distil none = {.tau = 1}, hard = {.alpha = golden_num(c, "alpha", 0), .tau = 1},
                              soft = {.soft = true, .alpha = hard.alpha, .tau = golden_num(c, "tau", 1)};
    struct model_spec spec;
    struct model *model = NULL;
    struct pd_why why;

    if (!vision_common(c, &spec))
        return false;
    spec.arch = &model_deit;
    spec.depth = vision_whole(m, "depth");
    spec.heads = vision_whole(m, "num_heads");
    spec.pos = true;
    spec.attention.n_for_scale = golden_num(c, "num_patches", 0);
    if (model_new(&spec, &model, &why) != PD_OK) {
        golden_fail(c, "%s", why.text);
        return true;
    }
    deit_loss(c, model, &none, true, "out/loss_none");
    deit_loss(c, model, &hard, true, "out/loss_hard");
    deit_loss(c, model, &soft, true, "out/loss_soft");
    deit_loss(c, model, &none, false, "out/loss_label_smoothing_ce_cls");
    model_free(model);
    return true;
}

void gold_deit(struct gold *g)
{
    golden_case(g, deit);
}

void gold_swin(struct gold *g)
{
    golden_case(g, swin);
}
