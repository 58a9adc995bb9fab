/* T20: what the optimisers compute (DNT paper, section on training; timm's SGDW). */
#include <string.h>

#include "daemon/worker/check/net.h"
#include "daemon/worker/train/optim/optim.h"

enum { START, GRADIENTS }; /* streams of draws */

struct settings {
    const char *optimiser;
    double momentum, decay;
};

static double rate(int64_t step)
{
    return 0.1 / (1 + (double)step); /* a schedule */
}

/* The engine's steps: parameters into p; after the first step the momentum into m. */
static void engine_steps(struct check *c, const struct settings *s, int64_t steps, int64_t n, double *p,
                         double *m)
{
    const struct optim *o = optim_find(s->optimiser);
    static const double gate[2] = {1, 1};
    struct check_engine en;
    struct model_update u = {.spec = {.momentum = s->momentum, .weight_decay = s->decay, .lr_mult = 1}};
    double *g = check_numbers(c, (size_t)n);
    struct check_draws start = check_draws(c->seed, START, 0);
    size_t count;
    const double *at, *moment;

    if (!g || !check_engine_open(c, &en))
        return;
    u.param = pk_param(en.g, "p", PK_F64, PK_SHAPE(n));
    u.grad = pk_input(en.g, "g", PK_F64, PK_SHAPE(n));
    u.state[0] = pk_state(en.g, "m", PK_F64, PK_SHAPE(n), PK_CAT_MOMENT1);
    u.hyper = pk_input(en.g, "hyper", PK_F64, PK_SHAPE(4));
    u.gate = pk_input(en.g, "gate", PK_F64, PK_SHAPE(2));
    o->graph.update(en.g, &u);
    check_engine_plan(c, &en);
    check_normals(&start, 1, p, (size_t)n);
    check_engine_put(c, &en, "p", p);
    check_engine_put(c, &en, "gate", gate);
    at = check_engine_leaf(c, &en, "p", &count);
    moment = check_engine_leaf(c, &en, "m", &count);
    for (int64_t t = 0; t < steps && c->err == PD_OK; t++) {
        struct check_draws d = check_draws(c->seed, GRADIENTS, (uint32_t)t);
        const double hyper[4] = {rate(t), 1, 1, t == 0};

        check_normals(&d, 1, g, (size_t)n);
        check_engine_put(c, &en, "g", g);
        check_engine_put(c, &en, "hyper", hyper);
        check_engine_run(c, &en);
        if (t == 0 && m && c->err == PD_OK)
            memcpy(m, moment, (size_t)n * sizeof *m);
    }
    if (c->err == PD_OK)
        memcpy(p, at, (size_t)n * sizeof *p);
    check_engine_close(&en);
}

/* How the same steps are written by hand. */
enum order { DECAY_FIRST, DECAY_LAST, DECAY_AT_BASE_RATE, DECAY_IN_GRADIENT };

/* a b + c: `fused` rounds once, as a processor's multiply-add does, else the product is rounded too. */
static double multiply_add(bool fused, double a, double b, double c)
{
    return fused ? fma(a, b, c) : a * b + c;
}

/* `fused`: bits for the decay in the gradient (1), the momentum (2) and the step (4). */
static void hand_steps(struct check *c, const struct settings *s, enum order order, unsigned fused,
                       int64_t steps, int64_t n, double *p)
{
    double *g = check_numbers(c, (size_t)n), *m = check_numbers(c, (size_t)n);
    struct check_draws start = check_draws(c->seed, START, 0);

    if (!m)
        return;
    check_normals(&start, 1, p, (size_t)n);
    for (int64_t t = 0; t < steps; t++) {
        struct check_draws d = check_draws(c->seed, GRADIENTS, (uint32_t)t);
        const double lr = rate(t), factor = 1 - (order == DECAY_AT_BASE_RATE ? rate(0) : lr) * s->decay;

        check_normals(&d, 1, g, (size_t)n);
        for (int64_t i = 0; i < n; i++) {
            if (order == DECAY_IN_GRADIENT)
                g[i] = multiply_add(fused & 1, p[i], s->decay, g[i]);
            else if (order != DECAY_LAST)
                p[i] = p[i] * factor;
            m[i] = t == 0 ? g[i] : multiply_add(fused & 2, m[i], s->momentum, g[i]);
            p[i] = multiply_add(fused & 4, -lr, m[i], p[i]);
            if (order == DECAY_LAST)
                p[i] = p[i] * factor;
        }
    }
}

/* How many of the numbers differ in any bit, and by how much at most. */
static double differing(const double *a, const double *b, int64_t n, double *ret_most)
{
    double count = 0, most = 0;

    for (int64_t i = 0; i < n; i++) {
        count += memcmp(&a[i], &b[i], sizeof *a) != 0;
        most = fmax(most, fabs(a[i] - b[i]));
    }
    if (ret_most)
        *ret_most = most;
    return count;
}

/* How many numbers are none of those that the steps by hand give, whichever multiply-adds are fused: the engine's kernel
 * has those that its compiler chose for the processor, in its vectors and in the rest of a row apart. */
static double differing_from_hand(struct check *c, const struct settings *s, enum order order, int64_t steps,
                                  const double *a, int64_t n)
{
    double *b = check_numbers(c, (size_t)n), *met = check_numbers(c, (size_t)n), count = 0;

    if (!b || !met)
        return (double)n;
    for (unsigned fused = 0; fused < 8; fused++) {
        hand_steps(c, s, order, fused, steps, n, b);
        for (int64_t i = 0; i < n; i++)
            met[i] = fused > 0 && met[i] != 0 ? 1 : a[i] == b[i];
    }
    for (int64_t i = 0; i < n; i++)
        count += met[i] == 0;
    return count;
}

/* Bytes of moments in the plan of a training step, for each trained parameter of f32. */
static double moment_bytes(struct check *c, const char *optimiser)
{
    const struct model_spec s = check_net_spec(MODEL_S5, 32, 2, 7, PK_F32);
    struct pk_plan_report report;
    struct check_net net;
    double bytes;

    if (!check_net_train(c, &net, &s, optimiser, 8))
        return NAN;
    memset(&report, 0, sizeof report);
    if (c->err == PD_OK)
        pk_exec_report(net.en.exec, &report);
    bytes = (double)(report.bytes[PK_CAT_MOMENT1] + report.bytes[PK_CAT_MOMENT2]) /
            (double)model_param_elements(net.model);
    check_net_close(&net);
    return bytes;
}

static void t20(struct check *c)
{
    const int64_t steps = (int64_t)check_param(c, "steps"), n = (int64_t)check_param(c, "parameters");
    double *a = check_numbers(c, (size_t)n), *b = check_numbers(c, (size_t)n),
           *m = check_numbers(c, (size_t)n), *g = check_numbers(c, (size_t)n), most;
    struct settings s = {"msgdw", 0.9, 0.05}, l2 = {"msgd_l2", 0.9, 0.05};
    static const struct {
        enum order order;
        const char *what;
    } others[] = {{DECAY_LAST, "decay after the step"},
                  {DECAY_AT_BASE_RATE, "decay at the rate of the first step"}};
    struct check_draws first = check_draws(c->seed, GRADIENTS, 0);

    if (!g)
        return;
    engine_steps(c, &s, steps, n, a, m);
    if (!check_go(c, 0.3))
        return;
    check_equal(c, differing_from_hand(c, &s, DECAY_FIRST, steps, a, n), 0, 0,
                "mSGDW, %lld steps: numbers that differ in any bit from the recursion by hand",
                (long long)steps);
    check_normals(&first, 1, g, (size_t)n);
    check_equal(c, differing(m, g, n, NULL), 0, 0,
                "the momentum after the first step: numbers that differ from the gradient");
    for (size_t i = 0; i < 2; i++) {
        hand_steps(c, &s, others[i].order, 0, steps, n, b);
        differing(a, b, n, &most);
        check_value(c, most, NAN, NAN, 1e-9, INFINITY,
                    "mSGDW against %s: greatest difference (they are not the same)", others[i].what);
    }
    s.decay = 0;
    engine_steps(c, &s, steps, n, a, NULL);
    check_equal(c, differing_from_hand(c, &s, DECAY_IN_GRADIENT, steps, a, n), 0, 0,
                "mSGDW without decay: numbers that differ from SGD with momentum");
    if (!check_go(c, 0.6))
        return;
    s.decay = l2.decay;
    engine_steps(c, &s, steps, n, a, NULL);
    engine_steps(c, &l2, steps, n, b, NULL);
    differing(a, b, n, &most);
    check_value(c, most, NAN, NAN, 1e-9, INFINITY,
                "decoupled decay against L2, momentum 0.9: greatest difference");
    check_equal(c, differing_from_hand(c, &l2, DECAY_IN_GRADIENT, steps, b, n), 0, 0,
                "SGD with L2: numbers that differ from the recursion by hand");
    s.momentum = l2.momentum = 0;
    engine_steps(c, &s, steps, n, a, NULL);
    engine_steps(c, &l2, steps, n, b, NULL);
    differing(a, b, n, &most);
    check_value(c, most, NAN, 0, 0, 1e-12,
                "decoupled decay against L2, no momentum: greatest difference (the same but for rounding)");
    check_equal(c, moment_bytes(c, "adamw"), 8, 0, "AdamW: bytes of state for each parameter");
    check_equal(c, moment_bytes(c, "msgdw"), 4, 0, "mSGDW: bytes of state for each parameter");
    if (c->nth == 0) {
        struct check_plot *plot = check_plot(c, "Greatest difference from mSGDW after so many steps", "steps",
                                             false, "difference", true);

        s.momentum = 0.9;
        for (size_t i = 0; i < 3; i++) {
            static const char *const names[] = {"decay after the step", "decay at the rate of the first step",
                                                "decay in the gradient (L2)"};
            static const enum order orders[] = {DECAY_LAST, DECAY_AT_BASE_RATE, DECAY_IN_GRADIENT};
            struct check_series *line = check_series(c, plot, "points", "%s", names[i]);

            for (int64_t k = 2; k <= steps && k <= 64; k++) {
                hand_steps(c, &s, DECAY_FIRST, 0, k, n, a);
                hand_steps(c, &s, orders[i], 0, k, n, b);
                differing(a, b, n, &most);
                check_point(c, line, (double)k, most, 0);
            }
        }
    }
    check_evidence(c, "The optimiser decays by the scheduled rate, then steps; its first momentum is the "
                      "gradient. L2 in the gradient is another method as soon "
                      "as there is momentum. AdamW keeps 8 bytes for each parameter, mSGDW 4.");
}

const struct check_theorem check_T20 = {
    .source = "DNT paper, memory of optimisers (table 2); timm's SGDW",
    .claimed = "mSGDW keeps one state where AdamW keeps two",
    .correct = "True: 8 bytes and 4 bytes for each parameter of four. Each step multiplies the weights by 1 "
               "- eta_t lambda at the scheduled rate, then "
               "subtracts eta_t m; the first momentum is the gradient, not a part of it. SGD with L2 in the "
               "gradient differs where there is momentum.",
    .wrong = false,
    .seed = t20,
};
