#include "tests/graph/net.h"

#include <stdio.h>
#include <string.h>

struct made {
    struct pk_graph *g;
    const struct net *n;
    struct pk_val param[1024];
    char name[1024][32];
    size_t count;
};

static struct pk_val param(struct made *m, const char *name, int layer, struct pk_shape shape)
{
    snprintf(m->name[m->count], sizeof m->name[0], "%s.%d", name, layer);
    m->param[m->count] = pk_param(m->g, m->name[m->count], m->n->dtype, shape);
    if (m->n->copies && name[0] == 'w' && strcmp(name, "wpe") != 0) {
        char half[48];

        snprintf(half, sizeof half, "half.%s", m->name[m->count]);
        pk_working_copy(m->g, m->param[m->count], pk_state(m->g, half, PK_BF16, shape, PK_CAT_WEIGHTS));
    }
    return m->param[m->count++];
}

static struct pk_val block(struct made *m, struct pk_val x, int layer)
{
    const struct net *n = m->n;
    const struct pk_norm_spec norm = {PK_NORM_LAYER, PK_EPS_MEAN, 1e-5};
    int64_t d = n->width, h = n->heads;
    struct pk_graph *g = m->g;
    struct pk_val y;
    char scope[32];

    snprintf(scope, sizeof scope, "blocks.%d", layer);
    pk_graph_scope(g, scope);
    y = pk_norm(g, x, param(m, "g1", layer, PK_SHAPE(d)), param(m, "b1", layer, PK_SHAPE(d)), norm);
    y = pk_linear(g, y, param(m, "wqkv", layer, PK_SHAPE(3 * d, d)), true,
                  param(m, "bqkv", layer, PK_SHAPE(3 * d)));
    y = pk_reshape(g, y, PK_SHAPE(n->batch, n->tokens, 3, h, d / h));
    if (n->separate) {
        static const int32_t order[4] = {0, 2, 1, 3};
        struct pk_val part[3];

        for (int i = 0; i < 3; i++)
            part[i] = pk_permute(
                g, pk_reshape(g, pk_slice(g, y, 2, i, 1), PK_SHAPE(n->batch, n->tokens, h, d / h)), order);
        y = pk_attention(g, part[0], part[1], part[2], n->attention);
    } else {
        y = pk_attention_packed(g, y, n->attention);
    }
    y = pk_reshape(g, y, PK_SHAPE(n->batch, n->tokens, d));
    y = pk_linear(g, y, param(m, "wo", layer, PK_SHAPE(d, d)), true, param(m, "bo", layer, PK_SHAPE(d)));
    x = pk_add(g, x, y);
    y = pk_norm(g, x, param(m, "g2", layer, PK_SHAPE(d)), param(m, "b2", layer, PK_SHAPE(d)), norm);
    y = pk_gelu(g,
                pk_linear(g, y, param(m, "w1", layer, PK_SHAPE(4 * d, d)), true,
                          param(m, "c1", layer, PK_SHAPE(4 * d))),
                n->gelu_tanh);
    y = pk_linear(g, y, param(m, "w2", layer, PK_SHAPE(d, 4 * d)), true, param(m, "c2", layer, PK_SHAPE(d)));
    return pk_add(g, x, y);
}

void net_build(struct pk_graph *g, const struct net *n)
{
    static struct made storage; /* not allocated: test_nomem counts */
    struct made *m = &storage;
    struct pk_val grad[1024], x, tokens, targets, table, logits, norm = PK_NONE;
    struct pk_loss loss;

    memset(m, 0, sizeof *m);
    m->g = g;
    m->n = n;
    tokens = pk_input(g, "tokens", PK_I32, PK_SHAPE(n->batch, n->tokens));
    targets = pk_input(g, "targets", PK_I32, PK_SHAPE(n->batch * n->tokens));
    table = param(m, "wte", 0, PK_SHAPE(n->vocabulary, n->width));
    x = pk_add(g, pk_gather(g, table, tokens), param(m, "wpe", 0, PK_SHAPE(n->tokens, n->width)));
    for (int i = 0; i < n->depth; i++)
        x = block(m, x, i);
    pk_graph_scope(g, "head");
    x = pk_norm(g, x, param(m, "gf", 0, PK_SHAPE(n->width)), PK_NONE,
                (struct pk_norm_spec){PK_NORM_LAYER, PK_EPS_MEAN, 1e-5});
    logits = pk_reshape(g, pk_linear(g, x, table, true, PK_NONE), /* tied */
                        PK_SHAPE(n->batch * n->tokens, n->vocabulary));
    loss = pk_cross_entropy(g, logits, targets, 0.0, -1);
    pk_output(g, "loss", loss.loss_sum);
    if (n->train) {
        struct pk_val hyper = pk_input(g, "hyper", n->dtype, PK_SHAPE(4)),
                      gate = pk_input(g, "gate", n->dtype, PK_SHAPE(2));

        pk_grad(g, loss.loss_sum, PK_NONE, m->param, m->count, grad);
        if (n->clip) {
            norm = pk_unary(g, PK_EX_SQRT, pk_sumsq(g, grad, m->count));
            gate = pk_mul(g, gate, pk_unary(g, PK_EX_RECIP, pk_offset(g, norm, 1.0)));
            pk_output(g, "norm", norm);
        }
        for (size_t i = 0; i < m->count; i++) {
            char a[40], b[40];
            struct pk_optim_spec spec = {
                .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1, .lr_mult = 1.0};

            snprintf(a, sizeof a, "m.%s", m->name[i]);
            snprintf(b, sizeof b, "v.%s", m->name[i]);
            pk_adamw(g, m->param[i], grad[i],
                     pk_state(g, a, n->dtype, pk_shape_of(g, m->param[i]), PK_CAT_MOMENT1),
                     pk_state(g, b, n->dtype, pk_shape_of(g, m->param[i]), PK_CAT_MOMENT2), hyper, gate,
                     spec);
        }
    } else {
        pk_output(g, "logits", logits);
    }
}
