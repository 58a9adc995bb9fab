/* The graphs around a network: that decoding with a cache equals the whole pass, and what is refused. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/task/task.h"
#include "tests/model/rig.h"

static void test_decoding_with_cache_equals_the_whole_pass(void **state)
{
    enum { B = 2, T = 20, PROMPT = 11, BUCKET = 16, CACHE = 24, V = 31 };
    struct pk_backend *b = NULL;
    struct pd_why why;

    (void)state;
    assert_int_equal(pk_backend_cpu()->open(NULL, 0, 2, &b, &why), PD_OK);
    for (int form = 0; form < 7; form++) {
        const bool softmax = form % 2 && form<4, constant = form> 4; /* a state instead of a cache */
        struct model_spec s = gpt_spec();
        struct model_store *store = NULL;
        struct rig whole = {0}, prefill = {0}, decode = {0};
        int32_t ids[B * T], target[B * T], in[B * BUCKET], pos[B * BUCKET], position[B], length[B], pick[B];
        float want[B * T * V], got[B * V];
        struct model *m;

        s.attention.phi = softmax ? PK_PHI_SOFTMAX : PK_PHI_POLY;
        if (form == 4) { /* trained in linear order */
            s.attention.degree = 2;
            s.attention.form = PK_FORM_LINEAR;
        }
        if (constant) {
            s.attention.degree = form - 4;
            s.attention.row_power = 0.5;
        }
        if (form == 2 || form == 3 || form == 6) { /* the keys in the cache are normalised ones */
            s.placement = MODEL_S5;
            s.norm_kind = PK_NORM_RMS;
            s.attention.qk_norm = true;
            s.pos_after = softmax;
        }
        m = make(&s);
        assert_int_equal(model_store_new(m, pk_backend_cpu(), b, &store, &why), PD_OK);
        assert_int_equal(model_store_init(store, 5, &why), PD_OK);
        assert_int_equal(model_graph_eval(m, &task_cross_entropy, B, T, &whole.g, &why), PD_OK);
        if (constant) {
            assert_int_equal(model_graph_decode_state(m, B, BUCKET, &prefill.g, &why), PD_OK);
            assert_int_equal(model_graph_decode_state(m, B, 1, &decode.g, &why), PD_OK);
        } else {
            assert_int_equal(model_graph_decode(m, B, BUCKET, CACHE, &prefill.g, &why), PD_OK);
            assert_int_equal(model_graph_decode(m, B, 1, CACHE, &decode.g, &why), PD_OK);
        }
        plan(&whole, store, b, NULL);
        plan(&prefill, store, b, NULL);
        plan(&decode, store, b, &prefill);
        for (int i = 0; i < B * T; i++) {
            ids[i] = (i * 7 + i / 3) % V;
            target[i] = 0;
        }
        put(&whole, "input", ids);
        put(&whole, "target", target);
        assert_int_equal(pk_exec_run(whole.e, &why), PD_OK);
        assert_int_equal(pk_exec_read(whole.e, "logits", want, sizeof want, &why), PD_OK);
        for (int i = 0; i < B; i++) { /* a prompt shorter than its bucket */
            for (int k = 0; k < BUCKET; k++) {
                in[i * BUCKET + k] = k < PROMPT ? ids[i * T + k] : 0;
                pos[i * BUCKET + k] = k;
            }
            position[i] = 0;
            length[i] = constant ? PROMPT : BUCKET; /* padding would enter the state for good */
            pick[i] = i * BUCKET + PROMPT - 1;
        }
        put(&prefill, "input", in);
        put(&prefill, "pos", pos);
        put(&prefill, "position", position);
        put(&prefill, "length", length);
        put(&prefill, "pick", pick);
        assert_int_equal(pk_exec_run(prefill.e, &why), PD_OK);
        assert_int_equal(pk_exec_read(prefill.e, "logits", got, sizeof got, &why), PD_OK);
        for (int at = PROMPT - 1;; at++) {
            for (int i = 0; i < B; i++)
                for (int k = 0; k < V; k++)
                    assert_true(fabsf(got[i * V + k] - want[(i * T + at) * V + k]) < 2e-5f);
            if (at == T - 1)
                break;
            for (int i = 0; i < B; i++) {
                in[i] = ids[i * T + at + 1];
                pos[i] = position[i] = at + 1;
                length[i] = at + 2;
                pick[i] = i;
            }
            put(&decode, "input", in);
            put(&decode, "pos", pos);
            put(&decode, "position", position);
            put(&decode, "length", length);
            put(&decode, "pick", pick);
            assert_int_equal(pk_exec_run(decode.e, &why), PD_OK);
            assert_int_equal(pk_exec_read(decode.e, "logits", got, sizeof got, &why), PD_OK);
        }
        if (!constant) {
            position[0] = CACHE; /* beyond the cache: an error of the run, not a write outside */
            put(&decode, "position", position);
            assert_int_equal(pk_exec_run(decode.e, &why), PD_ERR_INVALID);
        }
        close_rig(&decode, b);
        close_rig(&prefill, b);
        close_rig(&whole, b);
        model_store_free(store);
        model_free(m);
    }
    pk_backend_cpu()->close(b);
}

static void test_classify_equals_evaluation_and_scale_forms_agree(void **state)
{
    struct pk_backend *b = NULL;
    float images[2 * 3 * 8 * 12], first[10] = {0}, got[10], eval[10];
    int32_t target[2] = {1, 2};
    struct pd_why why;

    (void)state;
    assert_int_equal(pk_backend_cpu()->open(NULL, 0, 2, &b, &why), PD_OK);
    for (size_t i = 0; i < sizeof images / sizeof images[0]; i++)
        images[i] = (float)((i * 37) % 64) / 32 - 1;
    /* c = 0.2 as a constant, and trained directly, as log, as softplus, for a layer, a head, the whole model
     */
    for (int form = 0; form < 10; form++) {
        struct model_spec s = vit_spec();
        struct model_store *store = NULL;
        struct rig r = {0}, e = {0};
        struct model *m;

        s.pool = MODEL_POOL_MEAN;
        if (form) {
            s.attention.scale = MODEL_SCALE_LEARNED;
            s.attention.scale_param = (enum model_scale_param)((form - 1) % 3);
            s.attention.share = (enum model_share)((form - 1) / 3);
        }
        m = make(&s);
        assert_int_equal(model_store_new(m, pk_backend_cpu(), b, &store, &why), PD_OK);
        assert_int_equal(model_store_init(store, 5, &why), PD_OK);
        assert_int_equal(model_graph_classify(m, 2, 1, &r.g, &why), PD_OK);
        assert_int_equal(model_graph_eval(m, &task_cross_entropy, 2, 0, &e.g, &why), PD_OK);
        plan(&r, store, b, NULL);
        plan(&e, store, b, NULL);
        put(&r, "input", images);
        put(&e, "input", images);
        put(&e, "target", target);
        assert_int_equal(pk_exec_run(r.e, &why), PD_OK);
        assert_int_equal(pk_exec_run(e.e, &why), PD_OK);
        assert_int_equal(pk_exec_read(r.e, "logits", got, sizeof got, &why), PD_OK);
        assert_int_equal(pk_exec_read(e.e, "logits", eval, sizeof eval, &why), PD_OK);
        assert_memory_equal(got, eval, sizeof got);
        if (form == 0)
            memcpy(first, got, sizeof first);
        for (int i = 0; i < 10; i++)
            assert_true(fabsf(got[i] - first[i]) < 1e-5f);
        close_rig(&r, b);
        close_rig(&e, b);
        model_store_free(store);
        model_free(m);
    }
    pk_backend_cpu()->close(b);
}

/* A GPT with classes: Hugging Face's name and layout of the head, logits of the row that is named, and
 * nothing of what stands behind it. */
static void test_texts_with_classes_are_read_at_their_last_token(void **state)
{
    enum { BATCH = 3, TOKENS = 7, CLASSES = 5 };
    static const int32_t length[BATCH] = {7, 1, 4};
    struct model_spec s = gpt_spec(), bare = s;
    struct pk_backend *b = NULL;
    struct model_store *store = NULL;
    struct rig r = {0};
    struct model *m, *plain;
    const struct model_param *score;
    float first[BATCH * CLASSES], again[BATCH * CLASSES], alone[CLASSES];
    int32_t tokens[BATCH * TOKENS], last[BATCH];
    struct pk_graph *g = NULL;
    struct pd_why why;

    (void)state;
    s.classes = CLASSES;
    m = make(&s);
    plain = make(&bare);
    score = named(m, "score.weight");
    assert_non_null(score);
    assert_int_equal(model_param_count(m), model_param_count(plain) + 1); /* no bias */
    assert_ptr_equal(score, model_param(m, model_param_count(m) - 1));
    assert_true(pk_shape_equal(&score->shape, &PK_SHAPE(CLASSES, s.width)));
    assert_true(score->decay && score->start.rest.kind == MODEL_DRAW_NORMAL && score->start.rest.a == 0.02);
    assert_true(!model_decodes(&s) && model_decodes(&bare));
    assert_int_equal(model_graph_decode(m, 1, 1, 8, &g, &why), PD_ERR_UNSUPPORTED);
    s.init = MODEL_INIT_XAVIER;
    model_free(plain);
    plain = make(&s);
    assert_int_equal(named(plain, "score.weight")->start.rest.kind, MODEL_DRAW_UNIFORM);
    assert_int_equal(pk_backend_cpu()->open(NULL, 0, 2, &b, &why), PD_OK);
    assert_int_equal(model_store_new(m, pk_backend_cpu(), b, &store, &why), PD_OK);
    assert_int_equal(model_store_init(store, 5, &why), PD_OK);
    assert_int_equal(model_graph_classify(m, BATCH, TOKENS, &r.g, &why), PD_OK);
    plan(&r, store, b, NULL);
    for (int padding = 0; padding < 2; padding++) {
        for (int i = 0; i < BATCH * TOKENS; i++)
            tokens[i] = i % TOKENS < length[i / TOKENS] ? (i * 5 + 1) % s.vocab : padding * 3;
        for (int i = 0; i < BATCH; i++)
            last[i] = i * TOKENS + length[i] - 1;
        put(&r, "input", tokens);
        put(&r, "last", last);
        assert_int_equal(pk_exec_run(r.e, &why), PD_OK);
        assert_int_equal(pk_exec_read(r.e, "logits", padding ? again : first, sizeof first, &why), PD_OK);
    }
    assert_memory_equal(first, again, sizeof first);
    close_rig(&r, b);
    for (int i = 0; i < BATCH; i++) { /* each text alone, without padding */
        struct rig one = {0};

        last[0] = length[i] - 1;
        assert_int_equal(model_graph_classify(m, 1, length[i], &one.g, &why), PD_OK);
        plan(&one, store, b, NULL);
        put(&one, "input", tokens + i * TOKENS);
        put(&one, "last", last);
        assert_int_equal(pk_exec_run(one.e, &why), PD_OK);
        assert_int_equal(pk_exec_read(one.e, "logits", alone, sizeof alone, &why), PD_OK);
        for (int c = 0; c < CLASSES; c++)
            assert_true(fabsf(alone[c] - first[i * CLASSES + c]) < 1e-5f);
        close_rig(&one, b);
    }
    model_store_free(store);
    model_free(m);
    model_free(plain);
    pk_backend_cpu()->close(b);
}

static void test_wrong_graphs_refused(void **state)
{
    struct model_spec s = gpt_spec(), v = vit_spec();
    struct model *gpt = make(&s), *vit = make(&v);
    struct pk_graph *g = NULL;
    struct pd_why why;

    (void)state;
    assert_int_equal(model_graph_classify(gpt, 1, 1, &g, &why), PD_ERR_UNSUPPORTED);
    assert_int_equal(model_graph_decode(vit, 1, 1, 8, &g, &why), PD_ERR_UNSUPPORTED);
    assert_int_equal(model_graph_decode_state(vit, 1, 1, &g, &why), PD_ERR_UNSUPPORTED);
    assert_int_equal(model_graph_decode_state(gpt, 1, 1, &g, &why), PD_ERR_UNSUPPORTED); /* x^3 */
    assert_int_equal(model_graph_decode(gpt, 1, 9, 8, &g, &why), PD_ERR_INVALID);
    assert_int_equal(model_graph_eval(gpt, &task_cross_entropy, 1, 25, &g, &why), PD_ERR_INVALID);
    assert_int_equal(model_graph_eval(gpt, &task_cross_entropy, 0, 5, &g, &why), PD_ERR_INVALID);
    model_free(gpt);
    model_free(vit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decoding_with_cache_equals_the_whole_pass),
        cmocka_unit_test(test_classify_equals_evaluation_and_scale_forms_agree),
        cmocka_unit_test(test_texts_with_classes_are_read_at_their_last_token),
        cmocka_unit_test(test_wrong_graphs_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
