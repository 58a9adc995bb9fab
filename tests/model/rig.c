#include "tests/model/rig.h"

#include <string.h>

struct model_spec gpt_spec(void)
{
    return (struct model_spec){.arch = &model_gpt,
                               .width = 16,
                               .depth = 2,
                               .heads = 2,
                               .mlp_width = 64,
                               .gelu_tanh = true,
                               .bias = true,
                               .final_norm = true,
                               .norm_eps = 1e-5,
                               .vocab = 31,
                               .context = 24,
                               .pos = true,
                               .attention.phi = PK_PHI_POLY,
                               .attention.degree = 3,
                               .attention.scale = MODEL_SCALE_FIXED,
                               .attention.n_for_scale = 24,
                               .attention.scale_value = 0.2,
                               .attention.scale_lr_mult = 1,
                               .init = MODEL_INIT_NORMAL,
                               .attention.init_logit_std = 1,
                               .dtype = PK_F32};
}

struct model_spec vit_spec(void)
{
    struct model_spec s = gpt_spec();

    s.arch = &model_vit;
    s.channels = 3;
    s.image_h = 8;
    s.image_w = 12;
    s.patch_h = 4;
    s.patch_w = 3;
    s.classes = 5;
    s.gelu_tanh = false;
    s.init = MODEL_INIT_TRUNC_NORMAL;
    return s;
}

struct model *make(const struct model_spec *s)
{
    struct model *m = NULL;
    struct pd_why why;

    if (model_new(s, &m, &why) != PD_OK)
        fail_msg("%s", why.text);
    return m;
}

const struct model_param *named(const struct model *m, const char *name)
{
    for (size_t i = 0; i < model_param_count(m); i++)
        if (!strcmp(model_param(m, i)->name, name))
            return model_param(m, i);
    return NULL;
}

void plan(struct rig *r, struct model_store *store, struct pk_backend *b, const struct rig *share)
{
    const struct pk_backend_api *api = pk_backend_cpu();
    struct pd_why why;

    if (pk_exec_new(r->g, api, b, &r->e, &why) != PD_OK || model_store_bind(store, r->e, r->g, &why) != PD_OK)
        fail_msg("%s", why.text);
    r->count = pk_graph_leaf_count(r->g);
    assert_true(r->count <= 256);
    for (size_t i = 0; i < r->count; i++) {
        struct pk_leaf leaf = pk_graph_leaf(r->g, i);
        void *memory = NULL;

        r->memory[i] = NULL;
        if (leaf.kind == PK_OP_PARAM)
            continue;
        for (size_t k = 0; share && leaf.kind == PK_OP_STATE && k < share->count; k++)
            if (!strcmp(pk_graph_leaf(share->g, k).name, leaf.name))
                memory = share->memory[k];
        if (!memory)
            memory = r->memory[i] = api->alloc(b, leaf.bytes);
        assert_int_equal(pk_exec_bind(r->e, leaf.name, memory, &why), PD_OK);
    }
}

void put(struct rig *r, const char *name, const void *from)
{
    for (size_t i = 0; i < r->count; i++)
        if (!strcmp(pk_graph_leaf(r->g, i).name, name)) {
            memcpy(r->memory[i], from, pk_graph_leaf(r->g, i).bytes);
            return;
        }
    fail_msg("no leaf '%s'", name);
}

void close_rig(struct rig *r, struct pk_backend *b)
{
    for (size_t i = 0; i < r->count; i++)
        if (r->memory[i])
            pk_backend_cpu()->free(b, r->memory[i]);
    pk_exec_free(r->e);
    pk_graph_free(r->g);
}
