/* Passes change how a graph is computed, never what: without any one of them a small ViT and a small GPT give
 * the same loss and gradients. */
#include "tests/graph/rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/model/model.h"
#include "daemon/worker/task/task.h"
#include "daemon/worker/train/optim/optim.h"
#include "kernels/graph/passes/passes.h"

static const struct model_train_options options = {.loss = &task_cross_entropy,
                                                   .batch = 2,
                                                   .context = 8,
                                                   .label_smoothing = 0.1,
                                                   .optimizer = &optim_adamw.graph,
                                                   .beta1 = 0.9,
                                                   .beta2 = 0.95,
                                                   .eps = 1e-8};

#define OUTPUTS_MAX 256

static struct pk_graph *graph_of(const struct model_arch *arch, bool mixed)
{
    struct model_spec s = {.arch = arch,
                           .width = 32,
                           .depth = 2,
                           .heads = 2,
                           .mlp_width = 64,
                           .bias = true,
                           .final_norm = true,
                           .norm_eps = 1e-6,
                           .attention.phi = PK_PHI_SOFTMAX,
                           .attention.scale_value = 1,
                           .attention.scale_lr_mult = 1,
                           .attention.init_logit_std = -1,
                           .pos = true,
                           .dtype = mixed ? PK_F32 : PK_F64,
                           .mixed = mixed};
    struct model *m = NULL;
    struct pk_graph *g = NULL;
    struct pd_why why = {""};

    if (arch == &model_vit) {
        s.channels = 3;
        s.image_h = s.image_w = 8;
        s.patch_h = s.patch_w = 4;
        s.classes = 10;
        s.pool = MODEL_POOL_CLS;
    } else {
        s.vocab = 61; /* no multiple of 64: rows of logits are laid out */
        s.context = 8;
        s.gelu_tanh = true;
    }
    if (model_new(&s, &m, &why) != PD_OK || model_graph_train(m, &options, true, &g, &why) != PD_OK)
        fail_msg("%s", why.text);
    model_free(m);
    pk_graph_precision(g, mixed ? PK_PRECISION_MIXED : PK_PRECISION_FULL);
    return g;
}

/* Plans and runs the graph; the outputs in their order, each malloc'ed, as is the list. */
static double **run_all(struct rig *r, int64_t *n)
{
    double **all = calloc(r->g->n_output, sizeof *all);

    assert_non_null(all);
    rig_replan(r);
    rig_run(r);
    for (size_t i = 0; i < r->g->n_output; i++)
        all[i] = rig_read(r, r->g->output[i].name, &n[i]);
    return all;
}

static void free_all(struct rig *r, double **all)
{
    for (size_t i = 0; i < r->g->n_output; i++)
        free(all[i]);
    free(all);
}

static double distance(const double *a, const double *b, int64_t n)
{
    double d = 0, whole = 0;

    for (int64_t i = 0; i < n; i++) {
        d += (a[i] - b[i]) * (a[i] - b[i]);
        whole += b[i] * b[i];
    }
    return whole > 0 ? sqrt(d / whole) : sqrt(d);
}

struct seen {
    char ran[256];
    uint32_t first, last;
};

static void see(void *user, const char *pass, uint32_t before, uint32_t after)
{
    struct seen *s = user;
    size_t n = strlen(s->ran);

    assert_true(before > 0 && after > 0);
    s->first = n ? s->first : before;
    s->last = after;
    snprintf(s->ran + n, sizeof s->ran - n, "%s ", pass);
}

static void without_each(const struct model_arch *arch, bool mixed, double tolerance)
{
    struct rig *r = rig_new_on(pk_backend_cpu(), 1, false);
    struct seen seen = {.ran = ""};
    double **whole, **part;
    int64_t n[OUTPUTS_MAX], n_part[OUTPUTS_MAX];

    pk_graph_free(r->g);
    r->g = graph_of(arch, mixed);
    r->g->passes.trace = see;
    r->g->passes.user = &seen;
    rig_plan(r);
    for (size_t i = 0; i < pk_graph_leaf_count(r->g); i++) { /* near what training starts with */
        struct pk_leaf l = pk_graph_leaf(r->g, i);

        for (int64_t k = 0; k < pk_shape_count(&l.shape) && l.kind == PK_OP_PARAM; k++)
            rig_put(r, l.name, k, 0.2 * rig_get(r, l.name, k));
    }
    memset(&seen, 0, sizeof seen);
    assert_true(r->g->n_output <= OUTPUTS_MAX);
    whole = run_all(r, n);
    assert_true(seen.last < seen.first);
    for (size_t i = 0; pk_passes_name(i); i++) {
        const char *name = pk_passes_name(i);
        bool ran = strstr(seen.ran, name) != NULL;
        struct seen again = {.ran = ""};

        r->g->passes.user = &again;
        r->g->passes.off = 1u << i;
        part = run_all(r, n_part);
        if (strstr(again.ran, name) || (!ran && mixed))
            fail_msg("pass %s: ran %s; all: %s", name, again.ran, seen.ran);
        for (size_t o = 0; o < r->g->n_output; o++) {
            double d = distance(part[o], whole[o], n[o]);

            assert_int_equal(n_part[o], n[o]);
            if (!(d <= tolerance))
                fail_msg("without pass %s output %s is off by %g", name, r->g->output[o].name, d);
        }
        free_all(r, part);
    }
    free_all(r, whole);
    rig_free(r);
}

static void test_passes_each_can_be_left_out(void **state)
{
    (void)state;
    without_each(&model_vit, false, 1e-11);
    without_each(&model_gpt, false, 1e-11);
}

static void test_passes_each_can_be_left_out_of_a_mixed_plan(void **state)
{
    (void)state;
    without_each(&model_vit, true, 0.02);
    without_each(&model_gpt, true, 0.02);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_passes_each_can_be_left_out),
        cmocka_unit_test(test_passes_each_can_be_left_out_of_a_mixed_plan),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
