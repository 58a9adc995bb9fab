/* Mixed precision: the types of every call follow the contract at the head of op.h, on every graph the models
 * make; less memory is planned; and what comes out is what f32 gives, but for rounding. */
#include <stddef.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/train/optim/optim.h"
#include "daemon/worker/model/model.h"
#include "daemon/worker/task/task.h"
#include "kernels/graph/passes/passes.h"
#include "kernels/graph/plan.h"
#include "tests/graph/net.h"
#include "tests/graph/rig.h"

/* ---- a back end that only judges ---- */

static struct {
    int half, wide_products, second;
    char wrong[256];
} seen;

static bool is_half(const struct pk_view *v)
{
    return v->dtype == PK_BF16;
}

static bool f32_or_int(const struct pk_view *v)
{
    return v->dtype != PK_BF16;
}

#define MUST(condition)                                                                                      \
    do {                                                                                                     \
        if (!(condition) && !seen.wrong[0])                                                                  \
            snprintf(seen.wrong, sizeof seen.wrong, "%s: %s", pk_op_name(c->op), #condition);                \
    } while (0)

static void judge_attention(const struct pk_call *c)
{
    const struct pk_attention_attr *a = &c->attr->attention;
    int parts = c->op != PK_OP_ATTENTION_STATE && a->packed ? 1 : 3, at = parts;
    bool half = is_half(&c->in[0]);

    for (int i = 0; i < parts; i++)
        MUST(is_half(&c->in[i]) == half);
    for (; at < parts + a->has_scale + a->has_bias; at++)
        MUST(f32_or_int(&c->in[at]));
    at += a->has_mask + a->has_length + a->has_rng;
    switch (c->op) {
    case PK_OP_ATTENTION_BWD:
        MUST(is_half(&c->in[at]) == half && is_half(&c->in[at + 1]) == half);
        if (at + 2 < c->n_in)
            MUST(f32_or_int(&c->in[at + 2]));
        for (int i = 0; i < c->n_out; i++)
            MUST(is_half(&c->out[i]) == (half && i < parts));
        break;
    case PK_OP_ATTENTION_STATS:
        for (int i = 0; i < c->n_out; i++)
            MUST(f32_or_int(&c->out[i]));
        break;
    case PK_OP_ATTENTION_STATE:
        MUST(f32_or_int(&c->in[c->n_in - 1]) && is_half(&c->out[0]) == half);
        break;
    default:
        MUST(is_half(&c->out[0]) == half);
        if (c->n_out > 1)
            MUST(f32_or_int(&c->out[1]));
    }
}

static bool judge(struct pk_backend *b, const struct pk_call *c)
{
    bool in_half = false;

    (void)b;
    for (int i = 0; i < c->n_in; i++)
        in_half = in_half || is_half(&c->in[i]);
    for (int i = 0; i < c->n_out; i++)
        seen.half += is_half(&c->out[i]);
    switch (c->op) {
    case PK_OP_COPY:
        MUST(c->attr->copy.dtype == c->out[0].dtype);
        break;
    case PK_OP_NORM:
        for (int i = 1; i < c->n_in; i++)
            MUST(f32_or_int(&c->in[i]));
        for (int i = 1; i < c->n_out; i++)
            MUST(f32_or_int(&c->out[i]));
        break;
    case PK_OP_NORM_BWD:
        for (int i = 1; i < c->n_in - c->attr->norm.has_residual; i++)
            MUST(i == 2 || f32_or_int(&c->in[i]));
        for (int i = 1; i < c->n_out - c->attr->norm.again; i++)
            MUST(f32_or_int(&c->out[i]));
        break;
    case PK_OP_MATMUL:
        MUST(c->in[0].dtype == c->in[1].dtype);
        if (c->attr->matmul.has_residual || c->attr->matmul.slope)
            MUST(c->in[c->n_in - 1].dtype == c->out[0].dtype);
        if (c->attr->matmul.keeps)
            MUST(c->out[1].dtype == c->out[0].dtype);
        if (c->attr->matmul.sums)
            MUST(f32_or_int(&c->out[c->n_out - 1]));
        seen.wide_products += !in_half;
        break;
    case PK_OP_CROSS_ENTROPY:
    case PK_OP_SUM:
    case PK_OP_MAX:
    case PK_OP_SUMSQ:
        for (int i = 0; i < c->n_out; i++)
            MUST(f32_or_int(&c->out[i]));
        break;
    case PK_OP_SCATTER_ADD:
        MUST(f32_or_int(&c->out[0]) && (c->n_in < 3 || f32_or_int(&c->in[2])));
        break;
    case PK_OP_CROSS_ENTROPY_BWD:
        MUST(c->in[0].dtype == c->out[0].dtype && f32_or_int(&c->in[2]) && f32_or_int(&c->in[3]));
        break;
    case PK_OP_CROSS_ENTROPY_GRAD:
        MUST(c->in[0].dtype == c->out[0].dtype && f32_or_int(&c->in[2]));
        for (int i = 1; i < 4; i++)
            MUST(f32_or_int(&c->out[i]));
        break;
    case PK_OP_ADAMW:
    case PK_OP_MSGDW:
    case PK_OP_ACCUMULATE: /* gradients of parameters keep their bits; the last may be a working copy */
    case PK_OP_BLEND:
        for (int i = 0; i < c->n_in; i++)
            MUST(is_half(&c->in[i]) == (c->attr->optim.copy && i == c->n_in - 1));
        break;
    case PK_OP_CACHE_APPEND:
        MUST(c->in[0].dtype == c->in[1].dtype);
        break;
    case PK_OP_ATTENTION_JVP:
    case PK_OP_ATTENTION_BWD2:
        MUST(!in_half);
        for (int i = 0; i < c->n_out; i++)
            MUST(f32_or_int(&c->out[i]));
        seen.second++;
        break;
    case PK_OP_ATTENTION:
    case PK_OP_ATTENTION_BWD:
    case PK_OP_ATTENTION_STATS:
    case PK_OP_ATTENTION_STATE:
        judge_attention(c);
        break;
    default:
        break;
    }
    return pk_backend_cpu()->supports(NULL, c);
}

static size_t no_workspace(struct pk_backend *b, const struct pk_call *c)
{
    (void)b;
    (void)c;
    return 0;
}

static const struct pk_backend_api judging = {
    .abi = PK_BACKEND_ABI, .name = "judge", .supports = judge, .workspace_bytes = no_workspace};

static struct pk_plan_report plan(struct pk_graph *g, enum pk_precision precision)
{
    struct pk_plan_report report;
    struct pk_exec *e = NULL;
    struct pd_why why = {""};

    memset(&seen, 0, sizeof seen);
    pk_graph_precision(g, precision);
    if (pk_exec_new(g, &judging, NULL, &e, &why) != PD_OK)
        fail_msg("%s", why.text);
    if (seen.wrong[0] && precision == PK_PRECISION_MIXED)
        fail_msg("%s", seen.wrong);
    pk_exec_report(e, &report);
    pk_exec_free(e);
    return report;
}

/* ---- the models' graphs ---- */

static const struct model_train_options options = {.loss = &task_cross_entropy,
                                                   .batch = 4,
                                                   .context = 32,
                                                   .label_smoothing = 0.1,
                                                   .clip_norm = 1.0,
                                                   .optimizer = &optim_adamw.graph,
                                                   .beta1 = 0.9,
                                                   .beta2 = 0.95,
                                                   .eps = 1e-8,
                                                   .weight_decay = 0.1,
                                                   .ema = 0.99};

static struct model_spec spec_of(const struct model_arch *arch, int variant)
{
    struct model_spec s = {.arch = arch,
                           .width = 64,
                           .depth = 2,
                           .heads = 2,
                           .mlp_width = 256,
                           .bias = true,
                           .final_norm = true,
                           .norm_eps = 1e-6,
                           .attention.phi = PK_PHI_POLY,
                           .attention.degree = 3,
                           .attention.scale = MODEL_SCALE_FIXED,
                           .attention.n_for_scale = 16,
                           .attention.scale_value = 0.25,
                           .attention.scale_lr_mult = 1,
                           .attention.init_logit_std = -1,
                           .pos = true,
                           .mixed = true};

    if (arch == &model_vit) {
        s.channels = 3;
        s.image_h = s.image_w = 16;
        s.patch_h = s.patch_w = 4;
        s.classes = 10;
        s.pool = variant & 1 ? MODEL_POOL_CLS : MODEL_POOL_MEAN;
    } else {
        s.vocab = 61;
        s.context = 32;
        s.gelu_tanh = true;
    }
    if (variant & 2) {
        s.placement = MODEL_S5;
        s.norm_kind = PK_NORM_RMS;
        s.attention.qk_norm = s.attention.qk_per_head = true;
        s.pos_after = true;
        s.dropout = s.drop_path = s.attention.dropout = 0.1;
    }
    if (variant & 4) {
        s.attention.scale = MODEL_SCALE_LEARNED;
        s.attention.share = variant & 2 ? MODEL_SHARE_HEAD : MODEL_SHARE_LAYER;
        s.attention.scale_param = variant & 1 ? MODEL_PARAM_LOG : MODEL_PARAM_SOFTPLUS;
    }
    if (variant & 8)
        s.attention.phi = PK_PHI_SOFTMAX;
    if ((variant & 12) == 12) {
        s.attention.scale = MODEL_SCALE_NONE;
        s.attention.phi = PK_PHI_POLY;
        s.attention.degree = 1;
        s.attention.scale_value = 1;
        s.attention.l1_tokens = arch == &model_vit;
    }
    return s;
}

enum { TRAIN, GRADS, PART, APPLY, EVAL, PROBE, SERVE, STATE, GRAPHS };

static struct pk_graph *graph_of(const struct model *m, int which)
{
    const struct model_spec *s = model_spec(m);
    bool gpt = s->arch == &model_gpt;
    struct pk_graph *g = NULL;
    struct pd_why why = {""};
    enum pd_err err = PD_OK;

    switch (which) {
    case TRAIN:
    case GRADS:
        err = model_graph_train(m, &options, which == GRADS, &g, &why);
        break;
    case PART:
        err = model_graph_part(m, &options, &g, &why);
        break;
    case APPLY:
        err = model_graph_apply(m, &options, &g, &why);
        break;
    case EVAL:
        err = model_graph_eval(m, &task_cross_entropy, 4, 32, &g, &why);
        break;
    case PROBE:
        err = model_graph_probe(m, 4, 32, true, &g, &why);
        break;
    case SERVE:
        err = gpt ? model_graph_decode(m, 2, 8, 32, &g, &why) : model_graph_classify(m, 4, 1, &g, &why);
        break;
    default:
        if (gpt && model_has_state(s))
            err = model_graph_decode_state(m, 2, 8, &g, &why);
    }
    if (err != PD_OK)
        fail_msg("graph %d: %s", which, why.text);
    return g;
}

static void test_mixed_every_graph_of_the_models_follows_the_contract(void **state)
{
    struct pd_why why = {""};

    (void)state;
    for (int arch = 0; arch < 2; arch++)
        for (int variant = 0; variant < 16; variant++) {
            struct model_spec s = spec_of(arch ? &model_gpt : &model_vit, variant);
            struct model *m = NULL;

            assert_int_equal(model_new(&s, &m, &why), PD_OK);
            for (int which = 0; which < GRAPHS; which++) {
                struct pk_graph *g = graph_of(m, which);

                if (!g)
                    continue;
                (void)plan(g, PK_PRECISION_MIXED);
                if (which == APPLY)
                    assert_int_equal(seen.half, 0);
                else
                    assert_true(seen.half > 2);
                if (which != APPLY)
                    assert_int_equal(seen.wide_products, 0);
                (void)plan(g, PK_PRECISION_FULL);
                pk_graph_free(g);
            }
            model_free(m);
        }
}

static void test_mixed_a_weight_has_one_working_copy(void **state)
{
    struct model_spec s = spec_of(&model_gpt, 0);
    struct model *m = NULL;
    struct pd_why why = {""};
    struct pk_graph *g;
    int matrices = 0, casts = 0;

    (void)state;
    assert_int_equal(model_new(&s, &m, &why), PD_OK);
    for (size_t i = 0; i < model_param_count(m); i++)
        matrices += strstr(model_param(m, i)->name, ".c_") && strstr(model_param(m, i)->name, "weight");
    g = graph_of(m, TRAIN);
    assert_int_equal(pk_passes_run(g, &why), PD_OK);
    for (uint32_t i = 1; i < g->n_node; i++)
        casts += pk_is_kernel(&g->node[i]) && g->node[i].op == PK_OP_COPY;
    /* the four matrices of a block, and the tied head, which forward and both derivatives share */
    assert_int_equal(casts, matrices + 1);
    pk_graph_free(g);
    model_free(m);
}

/* Where the graph has states for them there is no cast of a weight left: the updates write them. */
static void test_mixed_updates_write_the_working_copies(void **state)
{
    const struct model_optimiser *const optimizers[] = {&optim_adamw.graph, &optim_msgdw.graph,
                                                        &optim_msgd_l2.graph};
    struct model_train_options o = options;
    struct pd_why why = {""};

    (void)state;
    o.copies = true;
    for (int arch = 0; arch < 2; arch++)
        for (size_t optimizer = 0; optimizer < 3; optimizer++)
            for (int form = 0; form < 5; form++) {
                struct model_spec s = spec_of(arch ? &model_gpt : &model_vit, 0);
                struct model *m = NULL;
                struct pk_graph *g = NULL;
                int casts = 0, copies = 0, updates = 0, matrices = 4 * s.depth + (!arch ? 2 : 1);
                enum pd_err err;

                o.optimizer = optimizers[optimizer];
                o.ema = form & 1 ? 0.99 : 0;
                o.ranks = form == 4 ? 2 : 1;
                o.zero = form == 4;
                assert_int_equal(model_new(&s, &m, &why), PD_OK);
                err = form == 2   ? model_graph_part(m, &o, &g, &why)
                      : form == 3 ? model_graph_apply(m, &o, &g, &why)
                                  : model_graph_train(m, &o, false, &g, &why);
                assert_int_equal(err, PD_OK);
                (void)plan(g, PK_PRECISION_MIXED);
                assert_int_equal(pk_passes_run(g, &why), PD_OK);
                for (size_t i = 0; i < pk_graph_leaf_count(g); i++)
                    copies += strncmp(pk_graph_leaf(g, i).name, "half/", 5) == 0;
                for (uint32_t i = 1; i < g->n_node; i++) {
                    const struct pk_node *n = &g->node[i];

                    if (!pk_is_kernel(n))
                        continue;
                    casts += n->op == PK_OP_COPY &&
                             g->node[g->value[g->value[n->in[0]].root].node].op == PK_OP_PARAM;
                    updates += (n->op == PK_OP_ADAMW || n->op == PK_OP_MSGDW) && n->attr->optim.copy;
                }
                if (form == 4) { /* each rank rounds what the others send */
                    assert_int_equal(copies + updates, 0);
                    assert_int_equal(casts, matrices);
                } else {
                    assert_int_equal(casts, 0);
                    assert_int_equal(copies, matrices);
                    assert_int_equal(updates, form == 2 ? 0 : matrices);
                }
                pk_graph_free(g);
                model_free(m);
            }
}

static void test_mixed_working_copies_are_checked(void **state)
{
    struct pd_why why = {""};

    (void)state;
    for (int wrong = 0; wrong < 4; wrong++) {
        struct pk_graph *g = pk_graph_new(false);
        struct pk_val w =
            wrong == 1 ? pk_input(g, "w", PK_F32, PK_SHAPE(2, 3)) : pk_param(g, "w", PK_F32, PK_SHAPE(2, 3));
        struct pk_val c = pk_state(g, "c", wrong == 2 ? PK_F32 : PK_BF16,
                                   wrong == 3 ? PK_SHAPE(3, 2) : PK_SHAPE(2, 3), PK_CAT_WEIGHTS);

        pk_working_copy(g, w, c);
        assert_int_equal(pk_graph_check(g, &why), wrong ? PD_ERR_INVALID : PD_OK);
        if (wrong)
            assert_non_null(strstr(why.text, "working copy"));
        pk_graph_free(g);
    }
}

static void test_mixed_plans_fewer_bytes(void **state)
{
    struct model_spec s = spec_of(&model_gpt, 0);
    struct model_train_options o = options;
    struct pk_plan_report full, mixed;
    struct model *m = NULL;
    struct pd_why why = {""};
    struct pk_graph *g;

    (void)state;
    s.width = 256;
    s.mlp_width = 1024;
    s.depth = 4;
    s.context = o.context = 256;
    o.batch = 8;
    s.mixed = false;
    assert_int_equal(model_new(&s, &m, &why), PD_OK);
    assert_int_equal(model_graph_train(m, &o, false, &g, &why), PD_OK);
    full = plan(g, PK_PRECISION_FULL);
    mixed = plan(g, PK_PRECISION_MIXED);
    if (!((double)mixed.arena_bytes < 0.72 * (double)full.arena_bytes))
        fail_msg("%zu bytes of arena in f32, %zu mixed", full.arena_bytes, mixed.arena_bytes);
    /* Masters lie where the weights lay; what is computed with comes on top, in the arena. */
    assert_int_equal(mixed.bytes[PK_CAT_MASTER], full.bytes[PK_CAT_WEIGHTS]);
    assert_int_equal(full.bytes[PK_CAT_MASTER], 0);
    assert_true(mixed.bytes[PK_CAT_WEIGHTS] > 0 &&
                mixed.bytes[PK_CAT_WEIGHTS] < full.bytes[PK_CAT_WEIGHTS] * 6 / 10);
    assert_int_equal(mixed.bytes[PK_CAT_MOMENT1], full.bytes[PK_CAT_MOMENT1]);
    assert_true((double)mixed.arena_bytes <= 1.1 * (double)mixed.live_bound);
    pk_graph_free(g);
    model_free(m);
}

/* Derivatives of derivatives of attention stay f32, in a graph whose rest is mixed. */
static void test_mixed_second_derivatives_of_attention_are_f32(void **state)
{
    struct pk_graph *g = pk_graph_new(false);
    struct pk_val x = pk_input(g, "x", PK_F32, PK_SHAPE(2, 5, 8));
    struct pk_val w = pk_param(g, "w", PK_F32, PK_SHAPE(8, 3 * 2 * 4));
    struct pk_val qkv = pk_reshape(g, pk_matmul(g, x, w), PK_SHAPE(2, 5, 3, 2, 4)), dx, dw;
    struct pk_attention_spec spec = {.phi = PK_PHI_POLY, .degree = 3, .scale = 0.5};
    struct pk_val y = pk_attention_packed(g, qkv, spec);

    (void)state;
    pk_grad(g, pk_sum(g, pk_mul(g, y, y), 15, false), PK_NONE, &x, 1, &dx);
    pk_grad(g, pk_sum(g, pk_mul(g, dx, dx), 7, false), PK_NONE, &w, 1, &dw);
    pk_output(g, "dw", dw);
    (void)plan(g, PK_PRECISION_MIXED);
    assert_true(seen.second > 0 && seen.half > 0);
    pk_graph_free(g);
}

/* q, k and v of parameters alone are no batch and stay f32; what flows back from a batch then has to be f32
 * too. */
static void test_mixed_attention_of_parameters_is_f32_throughout(void **state)
{
    struct pk_graph *g = pk_graph_new(false);
    const struct pk_shape shape = PK_SHAPE(2, 2, 5, 8);
    struct pk_val q[3] = {pk_param(g, "q", PK_F32, shape), pk_param(g, "k", PK_F32, shape),
                          pk_param(g, "v", PK_F32, shape)};
    struct pk_attention_spec spec = {.phi = PK_PHI_POLY, .degree = 3, .scale = 0.5};
    struct pk_val seed = pk_input(g, "seed", PK_F32, PK_SHAPE(2, 5, 2, 8)), grad[3];

    (void)state;
    pk_grad(g, pk_attention(g, q[0], q[1], q[2], spec), pk_scale(g, seed, 2), q, 3, grad);
    for (int i = 0; i < 3; i++)
        pk_output(g, (const char *[]){"dq", "dk", "dv"}[i], grad[i]);
    (void)plan(g, PK_PRECISION_MIXED);
    pk_graph_free(g);
}

/* ---- values ---- */

static struct rig *start(const struct net *n, enum pk_precision precision)
{
    const double hyper[4] = {0.002, 0.1, 0.01, 1}, gate[2] = {1, 1};
    struct rig *r = rig_new_on(pk_backend_cpu(), 2, false);

    net_build(r->g, n);
    pk_graph_precision(r->g, precision);
    rig_plan(r);
    for (int64_t i = 0; i < n->batch * n->tokens; i++) {
        rig_put(r, "tokens", i, (double)(i * 7 % n->vocabulary));
        rig_put(r, "targets", i, (double)(i * 5 % n->vocabulary));
    }
    if (n->train) {
        rig_set(r, "hyper", hyper);
        rig_set(r, "gate", gate);
    }
    for (size_t i = 0; i < pk_graph_leaf_count(r->g); i++) {
        struct pk_leaf l = pk_graph_leaf(r->g, i);

        if (l.category == PK_CAT_MOMENT1 || l.category == PK_CAT_MOMENT2)
            memset(rig_leaf(r, l.name), 0, l.bytes);
    }
    return r;
}

/* All parameters, as numbers; *ret_count of them. Freed by the caller. */
static double *parameters(struct rig *r, size_t *ret_count)
{
    double *all = NULL;
    size_t n = 0;

    for (size_t i = 0; i < pk_graph_leaf_count(r->g); i++) {
        const struct pk_leaf l = pk_graph_leaf(r->g, i);
        const float *from = rig_leaf(r, l.name);
        const size_t count = (size_t)pk_shape_count(&l.shape);

        if (l.category != PK_CAT_WEIGHTS || l.dtype != PK_F32)
            continue;
        all = realloc(all, (n + count) * sizeof *all);
        assert_non_null(all);
        for (size_t k = 0; k < count; k++)
            all[n++] = (double)from[k];
    }
    *ret_count = n;
    return all;
}

static double apart(const double *a, const double *b, size_t n)
{
    double square = 0;

    for (size_t k = 0; k < n; k++)
        square += (a[k] - b[k]) * (a[k] - b[k]);
    return sqrt(square);
}

/* tests/golden/README.md 10: in bf16 a loss may be off by 1e-2, all gradients as one vector by 1e-1. A loss
 * hardly falls in four steps: that the optimiser works shows in how far the parameters have moved, which
 * gradients decide. */
static void test_mixed_trains_as_f32_does_but_for_rounding(void **state)
{
    (void)state;
    for (int variant = 0; variant < 10; variant++) {
        struct net n = {.batch = 2,
                        .tokens = 17,
                        .width = 32,
                        .heads = 2,
                        .depth = 2,
                        .vocabulary = variant < 8 ? 29 : 1030, /* laid out as 1088 */
                        .dtype = PK_F32,
                        .train = true,
                        .clip = variant & 1,
                        .separate = variant & 2,
                        .attention = {.degree = 2, .scale = 0.25, .causal = true}};
        struct rig *full, *mixed, *again;
        double *before, *wide, *narrow, moved;
        size_t count;

        n.attention.phi = variant & 4 ? PK_PHI_SOFTMAX : PK_PHI_POLY;
        full = start(&n, PK_PRECISION_FULL);
        mixed = start(&n, PK_PRECISION_MIXED);
        again = start(&n, PK_PRECISION_MIXED);
        pk_exec_poison(mixed->exec, true);
        before = parameters(full, &count);
        for (int step = 0; step < 4; step++) {
            double a, b;

            rig_run(full);
            rig_run(mixed);
            rig_run(again);
            a = rig_scalar(full, "loss");
            b = rig_scalar(mixed, "loss");
            if (!(fabs(a - b) <= 0.01 * fabs(a)))
                fail_msg("variant %d, step %d: %.9g in f32, %.9g mixed", variant, step, a, b);
            if (step == 0)
                assert_true(a != b); /* it is another computation */
            assert_true(b == rig_scalar(again, "loss"));
        }
        wide = parameters(full, &count);
        narrow = parameters(mixed, &count);
        moved = apart(wide, before, count);
        assert_true(moved > 0);
        if (!(apart(narrow, wide, count) <= 0.1 * moved))
            fail_msg("variant %d: parameters moved by %.3g; in mixed precision they are off by %.3g", variant,
                     moved, apart(narrow, wide, count));
        free(before);
        free(wide);
        free(narrow);
        rig_free(full);
        rig_free(mixed);
        rig_free(again);
    }
}

/* Every "half.<name>" becomes <name>, rounded. */
static void fill_copies(struct rig *r)
{
    for (size_t i = 0; i < pk_graph_leaf_count(r->g); i++) {
        struct pk_leaf l = pk_graph_leaf(r->g, i);

        if (strncmp(l.name, "half.", 5) != 0)
            continue;
        for (size_t k = 0; k < l.bytes / 2; k++) {
            uint32_t bits;

            memcpy(&bits, (const float *)rig_leaf(r, l.name + 5) + k, sizeof bits);
            ((uint16_t *)rig_leaf(r, l.name))[k] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
        }
    }
}

/* Working copies that the updates write give the bits of those that every step makes anew, also after a step
 * that was left out, and are the parameters rounded at any time. */
static void test_mixed_working_copies_change_no_bit(void **state)
{
    struct net n = {.batch = 2,
                    .tokens = 17,
                    .width = 32,
                    .heads = 2,
                    .depth = 2,
                    .vocabulary = 29,
                    .dtype = PK_F32,
                    .train = true,
                    .clip = true,
                    .gelu_tanh = true,
                    .attention = {.degree = 2, .scale = 0.25, .causal = true, .phi = PK_PHI_POLY}};
    struct rig *with, *without;

    (void)state;
    without = start(&n, PK_PRECISION_MIXED);
    n.copies = true;
    with = start(&n, PK_PRECISION_MIXED);
    fill_copies(with);
    for (int step = 0; step < 5; step++) {
        const double gate[2] = {1, step != 2};

        rig_set(with, "gate", gate);
        rig_set(without, "gate", gate);
        rig_run(with);
        rig_run(without);
        assert_true(rig_scalar(with, "loss") == rig_scalar(without, "loss"));
        for (size_t i = 0; i < pk_graph_leaf_count(without->g); i++) {
            struct pk_leaf l = pk_graph_leaf(without->g, i);

            if (memcmp(rig_leaf(with, l.name), rig_leaf(without, l.name), l.bytes) != 0)
                fail_msg("step %d: '%s' has other bits", step, l.name);
        }
        for (size_t i = 0; i < pk_graph_leaf_count(with->g); i++) {
            struct pk_leaf l = pk_graph_leaf(with->g, i);
            void *was;

            if (strncmp(l.name, "half.", 5) != 0)
                continue;
            was = malloc(l.bytes);
            assert_non_null(was);
            memcpy(was, rig_leaf(with, l.name), l.bytes);
            fill_copies(with);
            assert_memory_equal(was, rig_leaf(with, l.name), l.bytes);
            free(was);
        }
    }
    rig_free(with);
    rig_free(without);
}

static void test_mixed_results_and_leaves_stay_f32(void **state)
{
    struct net n = {.batch = 1,
                    .tokens = 5,
                    .width = 16,
                    .heads = 2,
                    .depth = 1,
                    .vocabulary = 11,
                    .dtype = PK_F32,
                    .attention = {.degree = 1, .scale = 1}};
    struct rig *r = start(&n, PK_PRECISION_MIXED);
    int64_t count;
    double *logits;

    (void)state;
    rig_run(r);
    logits = rig_read(r, "logits", &count); /* as f32: another size would be refused */
    assert_int_equal(count, 5 * 11);
    free(logits);
    rig_free(r);
}

static void test_mixed_refuses_f64(void **state)
{
    struct pk_graph *g = pk_graph_new(false);
    struct pk_exec *e = NULL;
    struct pd_why why = {""};
    struct pk_val x = pk_input(g, "x", PK_F64, PK_SHAPE(2, 3));

    (void)state;
    pk_output(g, "y", pk_add(g, x, x));
    pk_graph_precision(g, PK_PRECISION_MIXED);
    assert_int_equal(pk_exec_new(g, pk_backend_cpu(), NULL, &e, &why), PD_ERR_UNSUPPORTED);
    assert_non_null(strstr(why.text, "f64"));
    pk_graph_free(g);
}

/* A parameter that is read, written and read again has two working copies. */
static void test_mixed_a_working_copy_is_of_one_version(void **state)
{
    struct rig *r = rig_new_on(pk_backend_cpu(), 1, false);
    struct pk_val x = pk_input(r->g, "x", PK_F32, PK_SHAPE(2, 2));
    struct pk_val w = pk_state(r->g, "w", PK_F32, PK_SHAPE(2, 2), PK_CAT_WEIGHTS);
    struct pk_val one = pk_input(r->g, "one", PK_F32, PK_SHAPE(1));
    const double eye[4] = {1, 0, 0, 1}, twice[4] = {2, 0, 0, 2}, first = 1;
    struct pk_val before = pk_matmul(r->g, x, w), after;
    double *a, *b;
    int64_t n;

    (void)state;
    pk_accumulate(r->g, w, pk_input(r->g, "new", PK_F32, PK_SHAPE(2, 2)), one);
    after = pk_matmul(r->g, x, w);
    pk_output(r->g, "before", before);
    pk_output(r->g, "after", after);
    pk_graph_precision(r->g, PK_PRECISION_MIXED);
    rig_plan(r);
    rig_set(r, "w", eye);
    rig_set(r, "new", twice);
    rig_set(r, "one", &first);
    rig_run(r);
    a = rig_read(r, "before", &n);
    b = rig_read(r, "after", &n);
    for (int i = 0; i < 4; i++)
        assert_true(b[i] == 2 * a[i] && a[i] != 0);
    free(a);
    free(b);
    rig_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mixed_every_graph_of_the_models_follows_the_contract),
        cmocka_unit_test(test_mixed_a_weight_has_one_working_copy),
        cmocka_unit_test(test_mixed_updates_write_the_working_copies),
        cmocka_unit_test(test_mixed_working_copies_are_checked),
        cmocka_unit_test(test_mixed_working_copies_change_no_bit),
        cmocka_unit_test(test_mixed_plans_fewer_bytes),
        cmocka_unit_test(test_mixed_second_derivatives_of_attention_are_f32),
        cmocka_unit_test(test_mixed_attention_of_parameters_is_f32_throughout),
        cmocka_unit_test(test_mixed_trains_as_f32_does_but_for_rounding),
        cmocka_unit_test(test_mixed_results_and_leaves_stay_f32),
        cmocka_unit_test(test_mixed_refuses_f64),
        cmocka_unit_test(test_mixed_a_working_copy_is_of_one_version),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
