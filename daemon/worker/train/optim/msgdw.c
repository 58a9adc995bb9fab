/* SGD with momentum. mSGDW: decay of the weights apart from the gradient (kernels/ATTENTION.md 10); SGD with
 * L2: the decay is part of the gradient and goes through the momentum (PyTorch's SGD). The first step sets
 * the momentum to the gradient. */
#include "daemon/worker/train/optim/optim.h"

static void update_decoupled(struct pk_graph *g, const struct model_update *u)
{
    pk_msgdw(g, u->param, u->grad, u->state[0], u->hyper, u->gate, u->spec);
}

static void update_l2(struct pk_graph *g, const struct model_update *u)
{
    struct pk_optim_spec spec = u->spec;

    spec.l2 = true;
    pk_msgdw(g, u->param, u->grad, u->state[0], u->hyper, u->gate, spec);
}

static void hyper(const struct model_train_options *o, int64_t applied, double lr, double ret[4])
{
    (void)o;
    ret[0] = lr;
    ret[1] = ret[2] = 1;
    ret[3] = applied == 0;
}

const struct optim optim_msgdw = {
    .graph = {.name = "msgdw", .states = 1, .state = {{"m/", PK_CAT_MOMENT1}}, .update = update_decoupled},
    .saved = {"optim.m."},
    .number = 1,
    .hyper = hyper,
};

const struct optim optim_msgd_l2 = {
    .graph = {.name = "msgd_l2", .states = 1, .state = {{"m/", PK_CAT_MOMENT1}}, .update = update_l2},
    .saved = {"optim.m."},
    .number = 2,
    .hyper = hyper,
};
