#include "daemon/worker/task/task.h"
#include "tests/serve/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/data/tokenizer.h"
#include "daemon/worker/train/checkpoint.h"

static void must(enum pd_err err, const struct pd_why *why, const char *what)
{
    if (err == PD_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, pd_err_name(err), why->text);
    abort();
}

static struct model_spec common(enum pk_phi phi)
{
    return (struct model_spec){
        .width = 32,
        .depth = 2,
        .heads = 2,
        .mlp_width = 64,
        .bias = true,
        .final_norm = true,
        .norm_eps = 1e-5,
        .attention.phi = phi,
        .attention.degree = 3,
        .attention.scale = phi == PK_PHI_POLY ? MODEL_SCALE_FIXED : MODEL_SCALE_NONE,
        .attention.n_for_scale = 32,
        .attention.scale_value = phi == PK_PHI_POLY ? 0.17677669529663687 : 1,
        .attention.scale_lr_mult = 1,
        .init = MODEL_INIT_NORMAL,
        .attention.init_logit_std = -1,
        .dtype = PK_F32,
    };
}

struct model_spec test_vit_spec(enum pk_phi phi)
{
    struct model_spec s = common(phi);

    s.arch = &model_vit;
    s.channels = 2;
    s.image_h = s.image_w = 12;
    s.patch_h = s.patch_w = 4;
    s.classes = 10;
    s.pool = MODEL_POOL_MEAN;
    s.pos = true;
    return s;
}

struct model_spec test_gpt_spec(enum pk_phi phi)
{
    struct model_spec s = common(phi);

    s.arch = &model_gpt;
    s.vocab = 256;
    s.context = 32;
    s.pos = true;
    return s;
}

struct model_spec test_landmark_spec(enum pk_phi phi, enum model_pinv start, bool pairs)
{
    struct model_spec s = test_gpt_spec(phi);

    s.arch = &model_nystrom;
    s.classes = 3;
    s.pool = MODEL_POOL_MEAN;
    s.context = 16;
    s.landmarks = 4;
    s.conv_kernel = 3;
    s.pinv_iterations = 2;
    s.pinv_start = start;
    s.zero_pads = s.pairs = pairs;
    return s;
}

static enum pd_err copy_tensor(void *user, void *to, const void *memory, size_t bytes, struct pd_why *why)
{
    (void)user;
    (void)why;
    memcpy(to, memory, bytes);
    return PD_OK;
}

void test_checkpoint_write(const char *path, const struct model_spec *spec, uint64_t seed)
{
    test_checkpoint_write_full(path, spec, seed, NULL, NULL);
}

void test_checkpoint_write_full(const char *path, const struct model_spec *spec, uint64_t seed,
                                const struct pd_buf *tokenizer, const char *classes)
{
    struct data_st_meta_item meta[MODEL_META_ITEMS + 3];
    struct train_state state = {.step = 7, .applied = 7, .best_step = -1};
    struct train_file_info info;
    struct train_tensor *tensors;
    struct model *m = NULL;
    struct pd_why why = {{0}};
    size_t count, metas = 0;
    char *text = NULL;

    must(model_new(spec, &m, &why), &why, "model_new");
    count = model_param_count(m);
    tensors = calloc(count + 1, sizeof *tensors);
    for (size_t i = 0; i < count; i++) {
        const struct model_param *p = model_param(m, i);
        size_t n = (size_t)pk_shape_count(&p->shape);
        float *values = malloc(n * sizeof *values);

        must(model_param_init(m, i, seed, values, &why), &why, "model_param_init");
        for (size_t k = 0; p->role != MODEL_ROLE_GAIN && p->role != MODEL_ROLE_SCALE && k < n; k++)
            values[k] *= seed ? 12 : 0; /* from deviation 0.02 to one where attention and classes differ */
        tensors[i].st = (struct data_st_tensor){.name = p->name, .dtype = DATA_ST_F32, .rank = p->shape.rank};
        memcpy(tensors[i].st.dim, p->shape.dim, (size_t)p->shape.rank * sizeof p->shape.dim[0]);
        tensors[i].st.count = n;
        tensors[i].st.bytes = n * sizeof(float);
        tensors[i].memory = values;
    }
    must(model_spec_to_meta(spec, false, meta, &metas, &text, &why), &why, "model_spec_to_meta");
    meta[metas++] = (struct data_st_meta_item){"polyd.data.mean", spec->channels == 2 ? "0.25,0.75" : "0.25"};
    meta[metas++] = (struct data_st_meta_item){"polyd.data.std", spec->channels == 2 ? "0.5,0.125" : "0.5"};
    if (classes)
        meta[metas++] = (struct data_st_meta_item){"polyd.data.classes", classes};
    if (tokenizer)
        tensors[count] = (struct train_tensor){.st = {.name = DATA_TOKENIZER_TENSOR,
                                                      .dtype = DATA_ST_U8,
                                                      .rank = 1,
                                                      .dim = {(int64_t)tokenizer->len},
                                                      .count = tokenizer->len,
                                                      .bytes = tokenizer->len,
                                                      .data = tokenizer->data}};
    must(train_checkpoint_write(path, tensors, count + (tokenizer != NULL), &state, meta, metas, copy_tensor,
                                NULL, &info, &why),
         &why, path);
    for (size_t i = 0; i < count; i++)
        free(tensors[i].memory);
    free(text);
    free(tensors);
    model_free(m);
}

float *test_eval_logits(const char *path, const void *input, int32_t batch, int32_t context)
{
    const struct pk_backend_api *api = pk_backend_cpu();
    struct pk_backend *backend = NULL;
    struct data_st *st = NULL;
    struct model_spec spec;
    struct model *m = NULL;
    struct model_store *store = NULL;
    struct pk_graph *graph = NULL;
    struct pk_exec *exec = NULL;
    struct pd_why why = {{0}};
    size_t rows, in_bytes, out_bytes;
    void *in, *target;
    float *out;

    must(api->open(&(struct pk_host){0}, 0, 1, &backend, &why), &why, "backend");
    must(data_st_open(path, &st, &why), &why, path);
    must(model_spec_from_meta(st, &spec, &why), &why, "meta");
    must(model_new(&spec, &m, &why), &why, "model");
    must(model_store_new(m, api, backend, &store, &why), &why, "store");
    must(model_store_read(store, st, &why), &why, "read");
    must(model_graph_eval(m, &task_cross_entropy, batch, context, &graph, &why), &why, "graph");
    must(pk_exec_new(graph, api, backend, &exec, &why), &why, "exec");
    must(model_store_bind(store, exec, graph, &why), &why, "bind");
    rows = (size_t)batch * (spec.arch == &model_gpt ? (size_t)context : 1);
    in_bytes = spec.arch == &model_gpt
                   ? rows * sizeof(int32_t)
                   : rows * (size_t)(spec.channels * spec.image_h * spec.image_w) * sizeof(float);
    out_bytes = rows * (size_t)(spec.arch == &model_gpt ? spec.vocab : spec.classes) * sizeof(float);
    in = api->alloc(backend, in_bytes);
    target = api->alloc(backend, rows * sizeof(int32_t));
    out = calloc(1, out_bytes);
    must(api->upload(backend, in, input, in_bytes, &why), &why, "input");
    for (size_t i = 0; i < rows; i++)
        must(api->upload(backend, (int32_t *)target + i, &(int32_t){0}, sizeof(int32_t), &why), &why,
             "target");
    must(pk_exec_bind(exec, "input", in, &why), &why, "bind");
    must(pk_exec_bind(exec, "target", target, &why), &why, "bind");
    must(pk_exec_run(exec, &why), &why, "run");
    must(pk_exec_read(exec, "logits", out, out_bytes, &why), &why, "logits");
    pk_exec_free(exec);
    pk_graph_free(graph);
    model_store_free(store);
    api->free(backend, in);
    api->free(backend, target);
    model_free(m);
    data_st_free(st);
    api->close(backend);
    return out;
}
