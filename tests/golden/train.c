/* Group train: thirty steps of the training graph, in f32 and f64 or (GOLDEN_MATH=bf16) in mixed precision.
 *
 * No band comes from a run of ours:
 *
 *                          f32                    bf16                 f64
 *   loss                   loss_tol_f32           loss_tol_bf16        1e-10
 *   norm of the gradients  20 distances           4 distances          1e-10
 *   parameters at the end  20 final_param_dev_f32 4 distances          1e-10, or the rounding of the file
 *
 * 20 and 4 are what tests/golden/README.md 9 multiplies its measurements by, 1e-10 is of its part 10. A
 * distance is the largest so far, in the 2-norm, between the exact run of network.h and its emulation of f32
 * or bf16: of all gradients (norms cannot be further apart), or of one parameter.
 *
 * An optimiser that does a part of its work (biases left out, no decay) may stay within all that. So every
 * step is also held to tests/golden/README.md 7: from the states before and after it, what it should have
 * done is computed in double, and the difference may be the rounding of the states' own type. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/task/task.h"
#include "daemon/worker/train/optim/optim.h"
#include "daemon/worker/train/schedule.h"
#include "tests/golden/bf16.h"
#include "tests/golden/models.h"
#include "tests/golden/network.h"
#include "tests/lib/worst.h"

static struct train_schedule schedule_of(struct golden *c)
{
    struct train_schedule s = {
        .curve = TRAIN_CURVE_COSINE, .lr = golden_num(c, "lr", 0), .steps_per_unit = 1};

    if (golden_num(c, "lr_decay_iters", 0) > 0) {
        s.warm_form = TRAIN_WARM_NANOGPT;
        s.warm = golden_num(c, "warmup_iters", 0);
        s.total = golden_num(c, "lr_decay_iters", 0);
        s.min_lr = golden_num(c, "min_lr", 0);
        s.shifted = true;
    } else {
        s.warm = golden_num(c, "warmup_t", 0);
        s.total = golden_num(c, "t_initial", 0);
        s.min_lr = golden_num(c, "lr_min", 0);
        s.warmup_lr = golden_num(c, "warmup_lr_init", 0);
    }
    return s;
}

static bool spared(const struct golden *c, const char *name)
{
    const json_t *list = json_object_get(c->config, "no_decay"), *item;
    size_t i;

    json_array_foreach(list, i, item)
    {
        if (json_is_string(item) && !strcmp(json_string_value(item), name))
            return true;
    }
    return false;
}

static void check_groups(struct golden *c, const struct model *m)
{
    for (size_t i = 0; i < model_param_count(m); i++) {
        const struct model_param *p = model_param(m, i);

        c->compared++;
        if (spared(c, p->name) == p->decay)
            golden_fail(c, "'%s' is %sdecayed here", p->name, p->decay ? "" : "not ");
    }
}

/* ---- a case ---- */

enum { MOST_PARAMS = 64 };

struct numbers {
    double *input[2], *target[2], *lr, *loss, *loss_tol, *norm;
    size_t steps, inputs, targets, batch;
};

static void read_numbers(struct golden *c, const char *input, const char *band, struct numbers *n)
{
    for (int i = 0; i < 2; i++) {
        n->input[i] = golden_tensor(c, &n->inputs, "batch%d.%s", i, input);
        n->target[i] = golden_tensor(c, &n->targets, "batch%d.targets", i);
    }
    n->lr = golden_tensor(c, &n->steps, "lr.f64");
    n->loss = golden_tensor(c, NULL, "loss.f64");
    n->loss_tol = band ? golden_tensor(c, NULL, "%s", band) : NULL;
    n->norm = golden_tensor(c, NULL, "grad_norm.f64");
}

/* ---- bands ---- */

/* The exact run after its last step, and the largest distances of the emulation from it. */
struct bands {
    struct network *exact, *rounded;
    double gradient[256]; /* by step */
    double value[MOST_PARAMS];
    double factor;
};

/* False if there is no emulation, or its formulas are not the vectors'. */
static bool find_bands(struct golden *c, const struct model *m, const struct numbers *n, struct bands *b)
{
    const int before = c->failed;
    double worst = 0;

    b->factor = gold_bf16() ? GOLD_BF16_TIMES : 20;
    b->exact = golden_network(c, m, "param0", 0);
    b->rounded = golden_network(c, m, "param0", gold_bf16() ? 8 : 24);
    if (!b->exact || !b->rounded || n->steps >= sizeof b->gradient / sizeof *b->gradient) {
        golden_fail(c, "no emulation for this case");
        return false;
    }
    for (size_t t = 0; t <= n->steps; t++) {
        const double *input = n->input[t % 2], *target = n->target[t % 2];
        char what[48];

        snprintf(what, sizeof what, "loss[%zu] of the exact run", t);
        golden_near(c, what, network_gradient(b->exact, input, target, n->batch), n->loss[t], 1e-10);
        (void)network_gradient(b->rounded, input, target, n->batch);
        worst = fmax(worst, golden_gradient_distance(b->exact, b->rounded, ""));
        b->gradient[t] = worst;
        for (size_t i = 0; i < network_param_count(b->exact); i++) {
            const struct network_param *p = network_param(b->exact, i);

            b->value[i] =
                fmax(b->value[i], network_distance(p->value, network_param(b->rounded, i)->value, p->count));
        }
        if (t == n->steps)
            break;
        snprintf(what, sizeof what, "grad_norm[%zu] of the exact run", t);
        golden_near(c, what, network_update(b->exact, n->lr[t], t), n->norm[t], 1e-10 * n->norm[t]);
        (void)network_update(b->rounded, n->lr[t], t);
    }
    return c->failed == before;
}

/* Each parameter, the learned scales of all layers as one (the distance of one number may be small by
 * chance), and everything as one. */
static void compare_final_bf16(struct golden *c, struct golden_rig *rig, const struct bands *b)
{
    enum { SCALES, ALL, SUMS };
    double off[SUMS] = {0}, allowed[SUMS] = {0};

    for (size_t i = 0; i < network_param_count(b->exact); i++) {
        const struct network_param *exact = network_param(b->exact, i);
        const double *got = golden_rig_leaf(rig, exact->name, NULL);
        const bool scale = strstr(exact->name, "attn_scale") != NULL;
        double mine;

        if (!got)
            continue;
        mine = network_distance(got, exact->value, exact->count);
        if (!scale)
            golden_near(c, exact->name, mine, 0, b->factor * b->value[i]);
        for (int sum = scale ? SCALES : ALL; sum < SUMS; sum++) {
            off[sum] += mine * mine;
            allowed[sum] += b->value[i] * b->value[i];
        }
    }
    golden_near(c, "all learned scales as one vector", sqrt(off[SCALES]), 0,
                b->factor * sqrt(allowed[SCALES]));
    golden_near(c, "all parameters as one vector", sqrt(off[ALL]), 0, b->factor * sqrt(allowed[ALL]));
}

/* ---- parameters at the end, in f32 and f64 ---- */

static void compare_final(struct golden *c, struct golden_rig *rig, const struct model *m, bool f64)
{
    const double rtol = f64 ? 1e-10 : 20 * golden_num(c, "final_param_dev_f32", 0);

    for (size_t i = 0; i < model_param_count(m); i++) {
        const struct model_param *p = model_param(m, i);
        const double stored = fmax(rtol, 0x1p-23); /* the file has the parameters in f32 */
        size_t n = 0, third;
        double *got = golden_rig_leaf(rig, p->name, &n), *want, *length, sum = 0;
        /* Fact 6: the key bias has no gradient under softmax and walks on rounding noise. */
        bool key_bias =
            p->role == MODEL_ROLE_BIAS && (strstr(p->name, "qkv.bias") || strstr(p->name, "c_attn.bias"));

        third = n / 3;
        if (golden_find(c, "final.%s", p->name)) {
            want = golden_tensor(c, NULL, "final.%s", p->name);
            if (key_bias) {
                golden_close(c, p->name, got, want, third, stored, 1e-6);
                golden_close(c, p->name, got + 2 * third, want + 2 * third, third, stored, 1e-6);
            } else {
                golden_close(c, p->name, got, want, n, stored, 1e-6);
            }
        }
        if (key_bias)
            continue;
        length = golden_tensor(c, NULL, "final_l2.%s.f64", p->name);
        for (size_t k = 0; k < n; k++)
            sum += got[k] * got[k];
        if (length)
            golden_near(c, p->name, sqrt(sum), *length, rtol * *length);
    }
}

/* ---- one step, recomputed ---- */

struct states { /* of one parameter */
    double *value, *first, *second;
};

static bool read_states(struct golden_rig *rig, const struct model *m, bool adamw, struct states *to)
{
    bool all = true;

    for (size_t i = 0; i < model_param_count(m); i++) {
        char name[128];

        to[i].value = golden_rig_leaf(rig, model_param(m, i)->name, NULL);
        snprintf(name, sizeof name, "m/%s", model_param(m, i)->name);
        to[i].first = golden_rig_leaf(rig, name, NULL);
        name[0] = 'v';
        to[i].second = adamw ? golden_rig_leaf(rig, name, NULL) : NULL;
        all = all && to[i].value && to[i].first && (to[i].second || !adamw);
    }
    return all;
}

/* What a number of this size may be off after `count` operations, each of which rounds to half a unit. */
static double rounding(double size, double count, bool f64)
{
    return fabs(size) * count * (f64 ? 0x1p-53 : 0x1p-24) + (f64 ? 0x1p-1022 : 0x1p-126);
}

/* From `old` to `new` at this rate, with the gradient g that the first moment was given: m' = b1 m + (1 - b1)
 * g or mu m + (1 - dampening) g. From g and the states follow v' and p', and the norm of all g is the one
 * that the graph reports, clipped. */
static void check_step(struct golden *c, const struct model *m, const struct model_train_options *o, size_t t,
                       double lr, double norm, const struct states *old, const struct states *new, bool f64)
{
    const bool adamw = o->optimizer == &optim_adamw.graph;
    const double keep = adamw ? o->beta1 : t ? o->momentum : 0;
    const double part = adamw ? 1 - o->beta1 : t ? 1 - o->dampening : 1;
    const double clipped = o->clip_norm > 0 ? norm * fmin(1, o->clip_norm / (norm + 1e-6)) : norm;
    double square = 0, slack = 0;
    char what[128];

    for (size_t i = 0; i < model_param_count(m); i++) {
        const struct model_param *p = model_param(m, i);
        const double decay = spared(c, p->name) ? 0 : lr * o->weight_decay;
        double worst = 0, worst_v = 0;

        for (int64_t k = 0; k < pk_shape_count(&p->shape); k++) {
            const double m0 = old[i].first[k], m1 = new[i].first[k], p0 = old[i].value[k];
            const double g = (m1 - keep * m0) / part;
            const double g_off = rounding(fabs(m1) + fabs(m0) + fabs(g), 4, f64) / part;
            double step = lr * (o->nesterov ? g + o->momentum * m1 : m1);

            square += g * g;
            slack += g_off * g_off;
            if (adamw) {
                const double v0 = old[i].second[k], v1 = new[i].second[k];
                const double v = o->beta2 * v0 + (1 - o->beta2) * g * g;
                const double off =
                    rounding(v0 + g * g, 4, f64) + (1 - o->beta2) * (2 * fabs(g) + g_off) * g_off;

                worst_v = worse(worst_v, fabs(v1 - v) / off);
                step = lr / (1 - pow(o->beta1, (double)t + 1)) * m1 /
                       (sqrt(v1 / (1 - pow(o->beta2, (double)t + 1))) + o->eps);
            }
            worst = worse(worst, fabs(new[i].value[k] - (p0 * (1 - decay) - step)) /
                                     (rounding(p0, 4, f64) + rounding(step, 16, f64)));
        }
        snprintf(what, sizeof what, "step %zu of %.96s, in roundings", t, p->name);
        golden_near(c, what, worst, 0, 1);
        if (adamw)
            golden_near(c, what, worst_v, 0, 1);
    }
    snprintf(what, sizeof what, "norm of what the moments were given in step %zu", t);
    golden_near(c, what, sqrt(square), clipped, sqrt(slack) + (f64 ? 1e-10 : 2e-6) * clipped);
}

/* ---- the trajectory ---- */

struct trajectory {
    const struct model *m;
    const struct model_train_options *o;
    const struct numbers *n;
    const struct bands *bands; /* NULL in f64 */
    bool f64;
};

static void follow(struct golden *c, struct golden_rig *rig, const struct trajectory *s)
{
    const struct train_schedule schedule = schedule_of(c);
    const bool adamw = s->o->optimizer == &optim_adamw.graph;
    const struct numbers *n = s->n;
    struct states old[MOST_PARAMS], new[MOST_PARAMS];
    double *got, loss_tol, norm_tol;
    char what[48];

    if (!read_states(rig, s->m, adamw, old))
        return;
    for (size_t t = 0; t <= n->steps; t++) {
        double rate = t < n->steps ? train_schedule_lr(&schedule, (int64_t)t) : 0;
        double hyper[4] = {rate, 1 - pow(s->o->beta1, (double)t + 1), 1 - pow(s->o->beta2, (double)t + 1),
                           t == 0};

        if (t == n->steps) { /* before a last step that only serves to see the loss */
            if (gold_bf16())
                compare_final_bf16(c, rig, s->bands);
            else
                compare_final(c, rig, s->m, s->f64);
        } else {
            snprintf(what, sizeof what, "lr[%zu]", t);
            golden_near(c, what, rate, n->lr[t], 1e-12 * n->lr[t]);
        }
        golden_rig_put(rig, "hyper", hyper, 4);
        golden_rig_put(rig, "input", n->input[t % 2], n->inputs);
        golden_rig_put(rig, "target", n->target[t % 2], n->targets);
        if (!golden_rig_run(rig))
            return;
        loss_tol = s->f64 ? 1e-10 : n->loss_tol[t];
        snprintf(what, sizeof what, "loss[%zu]", t);
        got = golden_rig_output(rig, "loss", NULL);
        if (got)
            golden_near(c, what, *got, n->loss[t], loss_tol);
        if (t == n->steps)
            return;
        snprintf(what, sizeof what, "grad_norm[%zu]", t);
        norm_tol = s->f64 ? 1e-10 * n->norm[t] : s->bands->factor * s->bands->gradient[t];
        got = golden_rig_output(rig, "grad_norm", NULL);
        if (!got || !read_states(rig, s->m, adamw, new))
            return;
        golden_near(c, what, *got, n->norm[t], norm_tol);
        check_step(c, s->m, s->o, t, rate, *got, old, new, s->f64);
        memcpy(old, new, sizeof old);
    }
}

static bool train(struct golden *c, bool f64)
{
    struct model_train_options o = {
        .loss = &task_cross_entropy,
        .label_smoothing = golden_num(c, "label_smoothing", 0),
        .clip_norm = golden_num(c, "max_norm", 0),
        .optimizer =
            !strcmp(golden_text(c, "optimizer", ""), "msgdw") ? &optim_msgdw.graph : &optim_adamw.graph,
        .beta1 = golden_num(c, "beta1", 0),
        .beta2 = golden_num(c, "beta2", 0),
        .eps = golden_num(c, "eps", 0),
        .momentum = golden_num(c, "momentum", 0),
        .dampening = golden_num(c, "dampening", 0),
        .nesterov = golden_flag(c, "nesterov", false),
        .weight_decay = golden_num(c, "weight_decay", 0),
    };
    struct numbers numbers = {0};
    struct bands bands = {0};
    struct model_spec spec;
    struct model *m = NULL;
    struct pk_graph *g = NULL;
    struct golden_rig *rig = NULL;
    const struct data_st_tensor *in;
    const char *name;
    struct pd_why why;

    if (!golden_model_spec(c, &spec))
        return false;
    if (f64)
        spec.dtype = PK_F64;
    name = spec.arch == &model_gpt ? "input_ids" : "images";
    in = golden_find(c, "batch0.%s", name);
    read_numbers(c, name, gold_bf16() ? "loss_tol_bf16.f64" : "loss_tol_f32.f64", &numbers);
    if (c->failed)
        return true;
    numbers.batch = (size_t)in->dim[0];
    o.batch = (int32_t)in->dim[0];
    o.context = (int32_t)in->dim[1];
    if (model_new(&spec, &m, &why) != PD_OK || model_graph_train(m, &o, false, &g, &why) != PD_OK)
        golden_fail(c, "%s", why.text);
    else if (model_param_count(m) > MOST_PARAMS)
        golden_fail(c, "%zu parameters", model_param_count(m));
    else
        rig = golden_rig_new(c, g);
    if (rig) {
        check_groups(c, m);
        golden_put_params(c, rig, m, "param0");
        if (f64 || find_bands(c, m, &numbers, &bands))
            follow(c, rig, &(struct trajectory){m, &o, &numbers, f64 ? NULL : &bands, f64});
    }
    network_free(bands.exact);
    network_free(bands.rounded);
    golden_rig_free(rig);
    model_free(m);
    return true;
}

static bool run(struct golden *c)
{
    return train(c, false) && (gold_bf16() || train(c, true));
}

void gold_train(struct gold *g)
{
    golden_case(g, run);
}
