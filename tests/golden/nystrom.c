/* Group nystrom: landmark attention alone (its matrices, output, every gradient, the residual of the pseudo-inverse) and
 * classifiers of sequences under their public names. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/model/net.h"
#include "daemon/worker/task/task.h"
#include "tests/golden/vision.h"

#define OUT_RTOL 2e-5
#define GRAD_RTOL 2e-4
#define SCALE_RTOL 1e-3
#define GRAD_FLOOR 1e-3 /* of the file's largest gradient */
#define RESIDUAL_TOLERANCE 1e-4

static bool start_of(const struct golden *c, enum model_pinv *ret)
{
    static const char *const words[] = {"matrix_abs", "global_abs", "global_colsum"};
    const char *word = golden_text(c, "pinv_init", "");

    for (int i = 0; i < 3; i++)
        if (!strcmp(words[i], word)) {
            *ret = (enum model_pinv)i;
            return true;
        }
    return false;
}

static int32_t whole(const struct golden *c, const char *key)
{
    return (int32_t)golden_num(c, key, 0);
}

/* ---- attention alone ---- */

enum { Q, K, V };

struct alone {
    struct pk_val in[3], conv, scale, mask, y, gy, grad[5];
    struct net_nystrom r;
};

static struct pk_graph *write_attention(const struct golden *c, const struct model_attention *a,
                                        enum model_pinv start)
{
    static const int32_t order[] = {0, 2, 1, 3};
    static const char *const names[] = {"q", "k", "v"}, *const grads[] = {"dq", "dk", "dv", "dconv",
                                                                          "dscale"};
    const int64_t b = whole(c, "batch"), h = whole(c, "num_head"), n = whole(c, "seq_len"),
                  d = whole(c, "head_dim");
    const struct pk_shape shape = PK_SHAPE(b, h, n, d);
    struct pk_graph *g = pk_graph_new(false);
    struct alone l = {.scale = PK_NONE};
    struct net_nystrom_spec s = {
        .landmarks = whole(c, "num_landmarks"), .iterations = whole(c, "pinv_iterations"), .start = start};
    struct pk_val wrt[5], x[3], wide;
    size_t count = 4;

    for (int i = 0; i < 3; i++)
        l.in[i] = pk_param(g, names[i], PK_F32, shape);
    l.conv = pk_param(g, "conv", PK_F32, PK_SHAPE(h, 1, whole(c, "conv_kernel_size"), 1));
    if (a->scale == MODEL_SCALE_LEARNED)
        l.scale = pk_param(g, "scale", PK_F32, PK_SHAPE(1));
    l.mask = pk_input(g, "mask", PK_F32, PK_SHAPE(b, n));
    l.gy = pk_input(g, "gy", PK_F32, shape);
    wide = pk_reshape(g, l.mask, PK_SHAPE(b, n, 1, 1));
    for (int i = 0; i < 3; i++)
        x[i] = pk_mul(g, pk_permute(g, l.in[i], order), wide);
    s.attention = (struct pk_attention_spec){.phi = a->phi,
                                             .degree = a->degree,
                                             .scale = l.scale.id ? 1 : a->scale_value,
                                             .scale_value = l.scale,
                                             .mask = pk_cast(g, l.mask, PK_U8)};
    l.r = net_nystrom(g, x[Q], x[K], x[V], &s);
    l.y = pk_add(g, l.r.y, net_sequence_convolution(g, x[V], l.conv));
    l.y = pk_copy(g, pk_permute(g, l.y, order));
    pk_output(g, "y", l.y);
    memcpy(wrt, l.in, sizeof l.in);
    wrt[3] = l.conv;
    if (l.scale.id)
        wrt[count++] = l.scale;
    pk_grad(g, l.y, l.gy, wrt, count, l.grad);
    for (size_t i = 0; i < count; i++)
        pk_output(g, grads[i], l.grad[i]);
    if (l.r.f2.id) {
        const struct pk_val c0 = l.scale.id ? l.scale : pk_fill(g, PK_F32, PK_SHAPE(1), a->scale_value);

        pk_output(g, "q_landmarks", l.r.q);
        pk_output(g, "k_landmarks", l.r.k);
        pk_output(g, "f2", pk_mul(g, l.r.f2, c0)); /* the file's have the factor */
        pk_output(g, "z", pk_div(g, l.r.z, c0));
        pk_output(g, "residual", net_inverse_residual(g, l.r.f2, l.r.z));
    }
    return g;
}

static void compare(struct golden *c, struct golden_rig *rig, const char *output, const char *tensor,
                    double rtol, double floor)
{
    size_t n = 0, count = 0;
    const double *want = golden_tensor(c, &n, "%s", tensor), *got = golden_rig_output(rig, output, &count);

    if (want && got && n == count)
        golden_close(c, output, got, want, n, rtol, floor);
    else
        golden_fail(c, "%s: %zu numbers, reference %zu", output, count, n);
}

/* q~ of ours is without the d^(-1/4) that the file's has. */
static void compare_landmarks(struct golden *c, struct golden_rig *rig, const char *output)
{
    const double by = pow(golden_num(c, "head_dim", 1), -0.25);
    size_t n = 0, count = 0;
    const double *want = golden_tensor(c, &n, "aux/%s", output);
    double *got = golden_rig_output(rig, output, &count);

    for (size_t i = 0; got && i < count; i++)
        got[i] *= by;
    if (want && got && n == count)
        golden_close(c, output, got, want, n, OUT_RTOL, 1e-6);
    else
        golden_fail(c, "%s: %zu numbers, reference %zu", output, count, n);
}

static double largest_of(struct golden *c, bool scale)
{
    static const char *const tensors[] = {"grad_in/q", "grad_in/k", "grad_in/v", "grad/conv.weight",
                                          "grad/phi_scale"};
    double most = 0;

    for (int i = 0; i < (scale ? 5 : 4); i++) {
        size_t n = 0;
        const double *x = golden_tensor(c, &n, "%s", tensors[i]);

        for (size_t k = 0; x && k < n; k++)
            most = fmax(most, fabs(x[k]));
    }
    return most;
}

static bool attention_alone(struct golden *c)
{
    struct model_attention a;
    enum model_pinv start;
    struct golden_rig *rig;
    bool learned, through = whole(c, "num_landmarks") < whole(c, "seq_len");
    double floor;

    if (!vision_attention(c, &a) || !start_of(c, &start))
        return false;
    learned = a.scale == MODEL_SCALE_LEARNED;
    rig = golden_rig_new(c, write_attention(c, &a, start));
    if (!rig)
        return true;
    vision_put(c, rig, "q", "in/q");
    vision_put(c, rig, "k", "in/k");
    vision_put(c, rig, "v", "in/v");
    vision_put(c, rig, "mask", "in/mask");
    vision_put(c, rig, "gy", "in/grad_out");
    vision_put(c, rig, "conv", "param/conv.weight");
    if (learned)
        vision_put(c, rig, "scale", "param/phi_scale");
    if (golden_rig_run(rig)) {
        floor = GRAD_FLOOR * largest_of(c, learned);
        compare(c, rig, "y", "out/x", OUT_RTOL, 1e-6);
        compare(c, rig, "dq", "grad_in/q", GRAD_RTOL, floor);
        compare(c, rig, "dk", "grad_in/k", GRAD_RTOL, floor);
        compare(c, rig, "dv", "grad_in/v", GRAD_RTOL, floor);
        compare(c, rig, "dconv", "grad/conv.weight", GRAD_RTOL, floor);
        if (learned)
            compare(c, rig, "dscale", "grad/phi_scale", SCALE_RTOL, floor);
        if (through) {
            size_t n = 0;
            const double *residual = golden_rig_output(rig, "residual", &n);

            compare_landmarks(c, rig, "q_landmarks");
            compare_landmarks(c, rig, "k_landmarks");
            compare(c, rig, "f2", "aux/kernel_2", OUT_RTOL, 1e-6);
            compare(c, rig, "z", "aux/pinv", 10 * OUT_RTOL, 1e-6);
            if (residual)
                golden_near(c, "pinv_relative_residual", *residual,
                            golden_num(c, "pinv_relative_residual", -1), RESIDUAL_TOLERANCE);
        }
    }
    golden_rig_free(rig);
    return true;
}

/* ---- classifiers ---- */

static bool spec_of(const struct golden *c, struct model_spec *s)
{
    const char *pool = golden_text(c, "pooling_mode", "");

    *s = (struct model_spec){.arch = &model_nystrom,
                             .width = whole(c, "transformer_dim"),
                             .depth = whole(c, "num_layers"),
                             .heads = whole(c, "num_head"),
                             .mlp_width = whole(c, "transformer_hidden_dim"),
                             .bias = true,
                             .final_norm = true,
                             .classes = whole(c, "num_classes"),
                             .vocab = whole(c, "vocab_size"),
                             .context = whole(c, "seq_len"),
                             .landmarks = whole(c, "num_landmarks"),
                             .conv_kernel = whole(c, "conv_kernel_size"),
                             .pinv_iterations = whole(c, "pinv_iterations"),
                             .norm_eps = golden_num(c, "ln_eps", 0),
                             .pool = !strcmp(pool, "CLS") ? MODEL_POOL_CLS : MODEL_POOL_MEAN,
                             .pos = true,
                             .zero_pads = true,
                             .pairs = golden_flag(c, "dual", false),
                             .dtype = PK_F32};
    if (s->pairs)
        s->context *= 2;
    return vision_attention(c, &s->attention) && start_of(c, &s->pinv_start) &&
           (!strcmp(pool, "CLS") || !strcmp(pool, "MEAN"));
}

/* Both sequences of a pair are one row of the input. Id 0 alone says what is padding: the last token is the last place. */
static void put_sequences(struct golden *c, struct golden_rig *rig, const struct model_spec *s, int32_t batch)
{
    const int32_t parts = s->pairs ? 2 : 1, n = s->context / parts;
    double *all = calloc((size_t)batch * (size_t)s->context, sizeof *all),
           *last = calloc((size_t)batch, sizeof *last);

    for (int32_t p = 0; all && p < parts; p++) {
        size_t count = 0;
        const double *ids = golden_tensor(c, &count, "in/input_ids_%d", p);

        for (int32_t i = 0; ids && i < batch; i++)
            memcpy(all + i * s->context + p * n, ids + i * n, (size_t)n * sizeof *all);
    }
    for (int32_t i = 0; last && i < batch; i++)
        last[i] = (double)(i + 1) * n - 1;
    if (all && last) {
        golden_rig_put(rig, "input", all, (size_t)batch * (size_t)s->context);
        if (!s->pairs)
            golden_rig_put(rig, "last", last, (size_t)batch);
    }
    free(all);
    free(last);
}

static bool classifier(struct golden *c)
{
    struct model_train_options o = {.loss = &task_cross_entropy, .batch = whole(c, "batch")};
    struct golden_rig *rig = NULL;
    struct pk_graph *g = NULL;
    struct model_spec spec;
    struct model *m = NULL;
    struct pd_why why;

    if (!spec_of(c, &spec))
        return false;
    o.context = spec.context;
    if (model_new(&spec, &m, &why) != PD_OK || model_graph_train(m, &o, true, &g, &why) != PD_OK)
        golden_fail(c, "%s", why.text);
    else
        rig = golden_rig_new(c, g);
    if (rig) {
        vision_put_params(c, rig, m);
        put_sequences(c, rig, &spec, o.batch);
        vision_put(c, rig, "target", "in/labels");
        if (golden_rig_run(rig)) {
            vision_compare(c, rig, "logits", "out/scores");
            vision_compare(c, rig, "loss", "out/loss");
            vision_compare_gradients(c, rig, m, "grad");
        }
    }
    golden_rig_free(rig);
    model_free(m);
    return true;
}

static bool nystrom(struct golden *c)
{
    return golden_find(c, "in/q") ? attention_alone(c) : classifier(c);
}

void gold_nystrom(struct gold *g)
{
    golden_case(g, nystrom);
}
