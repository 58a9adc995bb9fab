/* Weights of other programs: their names, layouts and numbers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/worker/data/safetensors.h"
#include "daemon/worker/task/task.h"
#include "kernels/base/buf.h"
#include "tests/model/rig.h"

struct file {
    struct data_st_tensor t[64];
    size_t count;
    struct pd_buf bytes;
    struct data_st *st;
};

/* A file with the model's parameters, value of element k of parameter i = i + k / 1024; names without the
 * first `skip` characters where they begin with "transformer.". */
static void begin_file(struct file *f, const struct model *m, size_t skip)
{
    memset(f, 0, sizeof *f);
    for (size_t i = 0; i < model_param_count(m); i++) {
        const struct model_param *p = model_param(m, i);
        struct data_st_tensor *t = &f->t[f->count++];

        t->name = p->name + (strncmp(p->name, "transformer.", 12) ? 0 : skip);
        t->dtype = DATA_ST_F32;
        t->rank = p->shape.rank;
        memcpy(t->dim, p->shape.dim, sizeof t->dim);
    }
}

static void end_file(struct file *f)
{
    struct pd_why why;

    pd_buf_init(&f->bytes, 0);
    if (data_st_header(f->t, f->count, NULL, 0, &f->bytes, &why) != PD_OK)
        fail_msg("%s", why.text);
    for (size_t i = 0; i < f->count; i++) {
        int64_t n = 1;

        for (int k = 0; k < f->t[i].rank; k++)
            n *= f->t[i].dim[k];
        for (int64_t k = 0; k < n; k++) {
            float x = (float)i + (float)k / 1024;

            pd_buf_append(&f->bytes, &x, sizeof x);
        }
    }
    if (data_st_parse(f->bytes.data, f->bytes.len, &f->st, &why) != PD_OK)
        fail_msg("%s", why.text);
}

static void done_file(struct file *f)
{
    data_st_free(f->st);
    pd_buf_done(&f->bytes);
}

static enum pd_err check(void *user, size_t i, const void *data, size_t bytes, struct pd_why *why)
{
    const float *x = data;

    (void)why;
    (*(size_t *)user)++;
    assert_true(x[0] == (float)i);
    assert_true(bytes < 8 || x[1] == (float)i + 1.0f / 1024);
    return PD_OK;
}

static void test_files_of_other_programs_read(void **state)
{
    struct model_spec s = gpt_spec();
    struct model *m = make(&s);
    struct file f;
    struct pd_why why;
    size_t seen = 0;

    (void)state;
    for (size_t skip = 0; skip <= 12; skip += 12) { /* with and without transformer. */
        begin_file(&f, m, skip);
        f.t[f.count++] =
            (struct data_st_tensor){.name = "h.0.attn.bias", .dtype = DATA_ST_F32, .rank = 1, .dim = {9}};
        f.t[f.count++] =
            (struct data_st_tensor){.name = "transformer.h.1.attn.masked_bias", .dtype = DATA_ST_F32};
        f.t[f.count++] =
            (struct data_st_tensor){.name = "lm_head.weight", .dtype = DATA_ST_F32, .rank = 1, .dim = {3}};
        f.t[f.count++] =
            (struct data_st_tensor){.name = "optim.m.x", .dtype = DATA_ST_F32, .rank = 1, .dim = {3}};
        end_file(&f);
        seen = 0;
        assert_int_equal(model_params_read(m, f.st, false, check, &seen, &why), PD_OK);
        assert_int_equal(seen, model_param_count(m));
        done_file(&f);
    }
    model_free(m);
    s.attention.scale = MODEL_SCALE_LEARNED;
    m = make(&s);
    begin_file(&f, m, 0);
    for (size_t i = 0; i < f.count; i++)
        if (!strcmp(f.t[i].name, "transformer.h.1.attn.attn_scale"))
            f.t[i].name = "transformer.h.1.attn.phi_scale"; /* its name in other folders */
    end_file(&f);
    seen = 0;
    assert_int_equal(model_params_read(m, f.st, false, check, &seen, &why), PD_OK);
    done_file(&f);
    model_free(m);
}

static void test_files_that_do_not_fit_refused(void **state)
{
    struct model_spec s = gpt_spec();
    struct model *m = make(&s);
    struct file f;
    struct pd_why why;
    size_t seen = 0;

    (void)state;
    begin_file(&f, m, 0);
    f.count--; /* one is missing */
    end_file(&f);
    assert_int_equal(model_params_read(m, f.st, false, check, &seen, &why), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "lacks"));
    done_file(&f);
    begin_file(&f, m, 0);
    f.t[f.count++] = (struct data_st_tensor){.name = "transformer.h.2.ln_1.weight", .dtype = DATA_ST_F32};
    end_file(&f);
    assert_int_equal(model_params_read(m, f.st, false, check, &seen, &why), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "is not a parameter"));
    done_file(&f);
    begin_file(&f, m, 0);
    f.t[1].dim[0]++;
    end_file(&f);
    assert_int_equal(model_params_read(m, f.st, false, check, &seen, &why), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "the model needs"));
    done_file(&f);
    begin_file(&f, m, 0);
    f.t[f.count] = f.t[0];
    f.t[f.count++].name += 12; /* wte with and without prefix */
    end_file(&f);
    assert_int_equal(model_params_read(m, f.st, false, check, &seen, &why), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "twice"));
    done_file(&f);
    model_free(m);
}

/* Every name and shape of timm's VisionTransformer and transformers' GPT2LMHeadModel, and none besides. */
static void test_names_and_shapes_are_those_of_the_originals(void **state)
{
    struct named_shape {
        const char *name;
        int rank;
        int64_t dim[4];
    };
    static const struct named_shape timm[] = {{"cls_token", 3, {1, 1, 16}},
                                              {"pos_embed", 3, {1, 9, 16}},
                                              {"patch_embed.proj.weight", 4, {16, 3, 4, 3}},
                                              {"patch_embed.proj.bias", 1, {16}},
                                              {"blocks.0.norm1.weight", 1, {16}},
                                              {"blocks.0.norm1.bias", 1, {16}},
                                              {"blocks.0.attn.qkv.weight", 2, {48, 16}},
                                              {"blocks.0.attn.qkv.bias", 1, {48}},
                                              {"blocks.0.attn.proj.weight", 2, {16, 16}},
                                              {"blocks.0.attn.proj.bias", 1, {16}},
                                              {"blocks.0.norm2.weight", 1, {16}},
                                              {"blocks.0.norm2.bias", 1, {16}},
                                              {"blocks.0.mlp.fc1.weight", 2, {64, 16}},
                                              {"blocks.0.mlp.fc1.bias", 1, {64}},
                                              {"blocks.0.mlp.fc2.weight", 2, {16, 64}},
                                              {"blocks.0.mlp.fc2.bias", 1, {16}},
                                              {"norm.weight", 1, {16}},
                                              {"norm.bias", 1, {16}},
                                              {"head.weight", 2, {5, 16}},
                                              {"head.bias", 1, {5}}};
    static const struct named_shape hf[] = {{"transformer.wte.weight", 2, {31, 16}},
                                            {"transformer.wpe.weight", 2, {24, 16}},
                                            {"transformer.h.0.ln_1.weight", 1, {16}},
                                            {"transformer.h.0.ln_1.bias", 1, {16}},
                                            {"transformer.h.0.attn.c_attn.weight", 2, {16, 48}},
                                            {"transformer.h.0.attn.c_attn.bias", 1, {48}},
                                            {"transformer.h.0.attn.c_proj.weight", 2, {16, 16}},
                                            {"transformer.h.0.attn.c_proj.bias", 1, {16}},
                                            {"transformer.h.0.ln_2.weight", 1, {16}},
                                            {"transformer.h.0.ln_2.bias", 1, {16}},
                                            {"transformer.h.0.mlp.c_fc.weight", 2, {16, 64}},
                                            {"transformer.h.0.mlp.c_fc.bias", 1, {64}},
                                            {"transformer.h.0.mlp.c_proj.weight", 2, {64, 16}},
                                            {"transformer.h.0.mlp.c_proj.bias", 1, {16}},
                                            {"transformer.ln_f.weight", 1, {16}},
                                            {"transformer.ln_f.bias", 1, {16}}};

    (void)state;
    for (int gpt = 0; gpt < 2; gpt++) {
        struct model_spec s = gpt ? gpt_spec() : vit_spec();
        const struct named_shape *want = gpt ? hf : timm;
        size_t count = gpt ? sizeof hf / sizeof hf[0] : sizeof timm / sizeof timm[0];
        struct model *m;

        s.depth = 1;
        m = make(&s);
        assert_int_equal(model_param_count(m), count);
        for (size_t i = 0; i < count; i++) {
            const struct model_param *p = named(m, want[i].name);

            if (!p)
                fail_msg("no '%s'", want[i].name);
            assert_int_equal(p->shape.rank, want[i].rank);
            for (int k = 0; k < want[i].rank; k++)
                assert_int_equal(p->shape.dim[k], want[i].dim[k]);
        }
        model_free(m);
    }
}

/* transformers' GPT2Model, published in float32 without `transformer.` and lm_head: read by its names, and
 * its logits against those that an independent computation in double gave for these six tokens. */
static void test_published_tiny_gpt2_reads_and_computes(void **state)
{
    enum { T = 6, V = 21 };
    static const int32_t ids[T] = {3, 17, 0, 20, 9, 9}, target[T] = {0};
    static const double want[T][4] = {/* of symbols 0, 7, 20; sum of all absolute values */
                                      {-0.0324507596, -0.0120686408, -0.0147702072, 0.552292781},
                                      {-0.0359396884, -0.0133661953, -0.0163582194, 0.611672291},
                                      {0.0361143853, 0.0134311662, 0.016437734, 0.614645529},
                                      {-0.0336893729, -0.0125292889, -0.0153339714, 0.57337325},
                                      {0.0345060415, 0.012833013, 0.0157056842, 0.587272467},
                                      {-0.0366085416, -0.013614946, -0.016662653, 0.623055779}};
    const char *shared = getenv("POLYD_SHARED");
    struct model_spec s = gpt_spec();
    struct model_store *store = NULL;
    struct pk_backend *b = NULL;
    struct data_st *st = NULL;
    struct rig r = {0};
    struct model *m;
    float logits[T * V];
    char path[512];
    struct pd_why why;

    (void)state;
    snprintf(path, sizeof path, "%s/data/models/tiny_gpt2/model.safetensors", shared ? shared : "");
    if (!shared || access(path, R_OK)) {
        print_message("skipped: POLYD_SHARED does not name a folder with data/models\n");
        skip();
    }
    s.width = 2;
    s.heads = 1;
    s.depth = 1;
    s.mlp_width = 8;
    s.vocab = V;
    s.context = 1024;
    s.attention.phi = PK_PHI_SOFTMAX;
    s.attention.scale = MODEL_SCALE_NONE;
    s.attention.scale_value = 1;
    m = make(&s);
    assert_int_equal(pk_backend_cpu()->open(NULL, 0, 1, &b, &why), PD_OK);
    assert_int_equal(model_store_new(m, pk_backend_cpu(), b, &store, &why), PD_OK);
    assert_int_equal(data_st_open(path, &st, &why), PD_OK);
    if (model_store_read(store, st, &why) != PD_OK)
        fail_msg("%s", why.text);
    data_st_free(st);
    assert_int_equal(model_graph_eval(m, &task_cross_entropy, 1, T, &r.g, &why), PD_OK);
    plan(&r, store, b, NULL);
    put(&r, "input", ids);
    put(&r, "target", target);
    assert_int_equal(pk_exec_run(r.e, &why), PD_OK);
    assert_int_equal(pk_exec_read(r.e, "logits", logits, sizeof logits, &why), PD_OK);
    for (int i = 0; i < T; i++) {
        const float *l = logits + i * V;
        double sum = 0;

        for (int k = 0; k < V; k++)
            sum += fabs((double)l[k]);
        assert_true(fabs((double)l[0] - want[i][0]) < 1e-6 && fabs((double)l[7] - want[i][1]) < 1e-6 &&
                    fabs((double)l[20] - want[i][2]) < 1e-6 && fabs(sum - want[i][3]) < 1e-5);
    }
    close_rig(&r, b);
    model_store_free(store);
    pk_backend_cpu()->close(b);
    model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files_of_other_programs_read),
        cmocka_unit_test(test_files_that_do_not_fit_refused),
        cmocka_unit_test(test_names_and_shapes_are_those_of_the_originals),
        cmocka_unit_test(test_published_tiny_gpt2_reads_and_computes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
