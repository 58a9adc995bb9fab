/* daemon/worker/model/distil.c: a teacher inside the training graph, and what its student owes it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/model/arch/arch.h"

#define PREFIX "teacher/"
#define CLASSES (1u << 1) /* the axis of logits (rows, classes) */

void model_teacher_name(const struct model *teacher, size_t i, char *out, size_t size)
{
    snprintf(out, size, PREFIX "%s", teacher->param[i].name);
}

bool model_teacher_named(const char *leaf)
{
    return !strncmp(leaf, PREFIX, sizeof PREFIX - 1);
}

/* The teacher's logits of these images: its forward pass, over states that nothing changes, without noise. */
static struct pk_val teacher_logits(struct net *n, const struct model *teacher, struct pk_val images)
{
    struct net t = {.g = n->g,
                    .m = teacher,
                    .batch = n->batch,
                    .causal = teacher->spec.arch->causal,
                    .teacher = true,
                    .param = calloc(teacher->count + 1, sizeof *t.param)};
    struct pk_val logits = PK_NONE;

    pk_graph_scope(n->g, "teacher");
    if (t.param)
        logits = teacher->spec.arch->forward(&t, images);
    n->failed |= !t.param || t.failed;
    free(t.param);
    return logits;
}

static struct pk_val log_softmax(struct pk_graph *g, struct pk_val x)
{
    x = pk_sub(g, x, pk_maximum(g, x, CLASSES, true));
    return pk_sub(g, x, pk_unary(g, PK_EX_LOG, pk_sum(g, pk_unary(g, PK_EX_EXP, x), CLASSES, true)));
}

/* 1 at the first of the largest of each row, else 0: how the maximum changes with each logit. */
static struct pk_val largest(struct pk_graph *g, struct pk_val logits)
{
    struct pk_val first;

    pk_grad(g, pk_maximum_flow(g, logits, CLASSES, false), PK_NONE, &logits, 1, &first);
    return first;
}

struct pk_val net_distil(struct net *n, const struct model_distil *d, struct pk_val images,
                         const struct model_rows *rows)
{
    const struct model_spec *s = &n->m->spec;
    struct pk_val t = d->teacher ? teacher_logits(n, d->teacher, images)
                                 : pk_input(n->g, "teacher", s->dtype, PK_SHAPE(n->batch, s->classes)),
                  x = n->distilled, each;

    pk_graph_scope(n->g, "distillation");
    pk_graph_exact(n->g, true);
    if (d->soft) {
        const struct pk_val log_t = log_softmax(n->g, pk_scale(n->g, t, 1 / d->tau));
        const struct pk_val log_s = log_softmax(n->g, pk_scale(n->g, x, 1 / d->tau));

        each = pk_mul(n->g, pk_unary(n->g, PK_EX_EXP, log_t), pk_sub(n->g, log_t, log_s));
        each = pk_scale(n->g, each, d->tau * d->tau / s->classes);
    } else {
        each = pk_scale(n->g, pk_mul(n->g, largest(n->g, t), log_softmax(n->g, x)), -1);
    }
    each = pk_mul(n->g, pk_sum(n->g, each, CLASSES, false), rows->valid);
    each = pk_reshape(n->g, pk_sum(n->g, each, 1u << 0, true), PK_SHAPE(1));
    pk_graph_exact(n->g, false);
    return each;
}
