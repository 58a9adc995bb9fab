/* Group xcit: whole networks under their public names, in training mode (logits, loss, every gradient, what a step
 * makes of BatchNorm's buffers) and in evaluation mode (logits by the buffers that the file has). */
#include <math.h>
#include <string.h>

#include "daemon/worker/task/task.h"
#include "tests/golden/vision.h"

static bool spec_of(const struct golden *c, struct model_spec *s)
{
    const json_t *m = vision_part(c, "model"), *size = vision_part(c, "in_hw"),
                 *tokens = vision_part(c, "tokens");
    const char *kind = golden_text(c, "class_attention", "");
    const json_t *start = vision_part(c, "scale_init_class_attention");

    if (!vision_common(c, s) || (strcmp(kind, "softmax") != 0 && strcmp(kind, "poly") != 0))
        return false;
    s->arch = &model_xcit;
    s->image_h = (int32_t)json_integer_value(json_array_get(size, 0));
    s->image_w = (int32_t)json_integer_value(json_array_get(size, 1));
    s->depth = vision_whole(m, "depth");
    s->heads = vision_whole(m, "num_heads");
    s->class_depth = vision_whole(m, "cls_attn_layers");
    s->layerscale = json_number_value(json_object_get(m, "eta"));
    s->class_norm_alone = !json_is_true(json_object_get(m, "tokens_norm"));
    s->pos = true;
    s->attention.n_for_scale = (double)(json_integer_value(json_array_get(tokens, 0)) *
                                        json_integer_value(json_array_get(tokens, 1)));
    s->class_attention = s->attention;
    s->class_attention.n_for_scale++;
    if (!strcmp(kind, "softmax")) {
        s->class_attention.phi = PK_PHI_SOFTMAX;
        s->class_attention.scale = MODEL_SCALE_NONE;
        s->class_attention.scale_value = 1;
        s->class_attention.degree = 1;
    } else if (json_is_number(start)) {
        s->class_attention.scale_value = json_number_value(start);
    }
    return true;
}

static void put_buffers(struct golden *c, struct golden_rig *rig, const struct model *m)
{
    for (size_t i = model_trained_count(m); i < model_param_count(m); i++) {
        char tensor[96];

        snprintf(tensor, sizeof tensor, "buffer_before/%s", model_param(m, i)->name);
        vision_put(c, rig, model_param(m, i)->name, tensor);
    }
}

static void compare_buffers(struct golden *c, struct golden_rig *rig, const struct model *m)
{
    size_t there = 0;

    for (size_t i = model_trained_count(m); i < model_param_count(m); i++) {
        char next[96], tensor[96];

        snprintf(next, sizeof next, "next/%s", model_param(m, i)->name);
        snprintf(tensor, sizeof tensor, "buffer_after/%s", model_param(m, i)->name);
        vision_compare(c, rig, next, tensor);
    }
    for (size_t i = 0; i < data_st_count(c->st); i++)
        there += strncmp(data_st_at(c->st, i)->name, "buffer_after/", 13) == 0;
    if (there != model_param_count(m) - model_trained_count(m))
        golden_fail(c, "the file has %zu buffers, the model %zu", there,
                    model_param_count(m) - model_trained_count(m));
}

static void train(struct golden *c, const struct model *m, const struct model_train_options *o)
{
    struct pk_graph *g = NULL;
    struct golden_rig *rig = NULL;
    struct pd_why why;

    if (model_graph_train(m, o, true, &g, &why) != PD_OK)
        golden_fail(c, "%s", why.text);
    else
        rig = golden_rig_new(c, g);
    if (rig) {
        vision_put_params(c, rig, m);
        put_buffers(c, rig, m);
        vision_put(c, rig, "input", "in/x");
        vision_put(c, rig, "target", "in/labels");
        if (golden_rig_run(rig)) {
            vision_compare(c, rig, "logits", "out/logits");
            vision_compare(c, rig, "loss", "out/loss");
            vision_compare_gradients(c, rig, m, "grad");
            compare_buffers(c, rig, m);
        }
    }
    golden_rig_free(rig);
}

static void evaluate(struct golden *c, const struct model *m, int32_t batch)
{
    struct pk_graph *g = NULL;
    struct golden_rig *rig = NULL;
    struct pd_why why;

    if (model_graph_classify(m, batch, 0, &g, &why) != PD_OK)
        golden_fail(c, "%s", why.text);
    else
        rig = golden_rig_new(c, g);
    if (rig) {
        vision_put_params(c, rig, m);
        put_buffers(c, rig, m);
        vision_put(c, rig, "input", "in/x");
        if (golden_rig_run(rig))
            vision_compare(c, rig, "logits", "out/logits_eval_mode_running_stats_before");
    }
    golden_rig_free(rig);
}

static bool xcit(struct golden *c)
{
    struct model_train_options o = {.loss = &task_cross_entropy, .batch = (int32_t)golden_num(c, "batch", 0)};
    struct model_spec spec;
    struct model *m = NULL;
    struct pd_why why;

    if (!spec_of(c, &spec))
        return false;
    if (model_new(&spec, &m, &why) != PD_OK) {
        golden_fail(c, "%s", why.text);
        return true;
    }
    train(c, m, &o);
    evaluate(c, m, o.batch);
    model_free(m);
    return true;
}

void gold_xcit(struct gold *g)
{
    golden_case(g, xcit);
}
