/* AdamW (arXiv:1711.05101, algorithm 2), with PyTorch's order of operations: decay, moments, bias correction.
 */
#include <math.h>

#include "daemon/worker/train/optim/optim.h"

static void update(struct pk_graph *g, const struct model_update *u)
{
    pk_adamw(g, u->param, u->grad, u->state[0], u->state[1], u->hyper, u->gate, u->spec);
}

static enum pd_err step(const struct optim_closure *c, const struct model_train_options *o, int64_t applied,
                        double lr, struct pd_why *why)
{
    const double t = (double)(applied + 1);
    /* 1 - beta^t without cancellation */
    const double hyper[4] = {lr, -expm1(t * log(o->beta1)), -expm1(t * log(o->beta2)),
                             o->cycled ? o->beta1 : applied == 0};

    return c->evaluate(c->user, hyper, why);
}

const struct optim optim_adamw = {
    .graph = {.name = "adamw",
              .states = 2,
              .state = {{"m/", PK_CAT_MOMENT1}, {"v/", PK_CAT_MOMENT2}},
              .update = update},
    .saved = {"optim.m.", "optim.v."},
    .number = 0,
    .step = step,
};
