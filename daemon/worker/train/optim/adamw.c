/* AdamW (arXiv:1711.05101, algorithm 2), with PyTorch's order of operations: decay, moments, bias correction.
 */
#include <math.h>

#include "daemon/worker/train/optim/optim.h"

static void update(struct pk_graph *g, const struct model_update *u)
{
    pk_adamw(g, u->param, u->grad, u->state[0], u->state[1], u->hyper, u->gate, u->spec);
}

static void hyper(const struct model_train_options *o, int64_t applied, double lr, double ret[4])
{
    const double t = (double)(applied + 1);

    ret[0] = lr;
    /* 1 - beta^t without cancellation */
    ret[1] = -expm1(t * log(o->beta1));
    ret[2] = -expm1(t * log(o->beta2));
    ret[3] = o->cycled ? o->beta1 : applied == 0;
}

const struct optim optim_adamw = {
    .graph = {.name = "adamw",
              .states = 2,
              .state = {{"m/", PK_CAT_MOMENT1}, {"v/", PK_CAT_MOMENT2}},
              .update = update},
    .saved = {"optim.m.", "optim.v."},
    .number = 0,
    .hyper = hyper,
};
