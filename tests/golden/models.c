/* Group models: whole networks: logits, loss, every gradient; and the loss alone. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/task/task.h"
#include "tests/golden/bf16.h"
#include "tests/golden/models.h"

static enum model_placement setting_of(const char *text)
{
    return text[0] == 'S' && text[1] >= '1' && text[1] <= '5' ? (enum model_placement)(text[1] - '1')
                                                              : MODEL_S1;
}

bool golden_model_spec(struct golden *c, struct model_spec *s)
{
    const char *activation = golden_text(c, "activation", ""), *kind = golden_text(c, "scale_kind", "none");
    bool gpt = !strcmp(golden_text(c, "arch", ""), "gpt2");

    memset(s, 0, sizeof *s);
    s->arch = gpt ? &model_gpt : &model_vit;
    s->width = (int32_t)golden_num(c, "D", 0);
    s->heads = (int32_t)golden_num(c, "H", 0);
    s->depth = (int32_t)golden_num(c, "layers", 0);
    s->mlp_width = (int32_t)golden_num(c, "mlp", 4) * s->width;
    s->gelu_tanh = !strcmp(golden_text(c, "gelu", ""), "gelu_new");
    s->bias = golden_flag(c, "bias", true);
    s->final_norm = true;
    s->norm_eps = golden_num(c, "norm_eps", 0);
    s->norm_kind = !strcmp(golden_text(c, "norm", ""), "rmsnorm") ? PK_NORM_RMS : PK_NORM_LAYER;
    s->placement = setting_of(golden_text(c, "setting", "standard"));
    s->attention.qk_norm = golden_flag(c, "qknorm", false);
    s->channels = (int32_t)golden_num(c, "chans", 0);
    s->image_h = s->image_w = (int32_t)golden_num(c, "image", 0);
    s->patch_h = s->patch_w = (int32_t)golden_num(c, "patch", 0);
    s->classes = (int32_t)golden_num(c, "classes", 0);
    s->pool = MODEL_POOL_CLS;
    s->pos = true;
    s->vocab = (int32_t)golden_num(c, "vocab", 0);
    if (gpt && !s->vocab) { /* train/ does not say it */
        const struct data_st_tensor *wte = golden_find(c, "param0.transformer.wte.weight");

        s->vocab = wte ? (int32_t)wte->dim[0] : 0;
    }
    s->context = (int32_t)golden_num(c, "T", 0);
    s->attention.degree = (int32_t)golden_num(c, "p", 1);
    s->attention.n_for_scale = golden_num(c, "n_for_scale", 0);
    s->attention.scale_value = golden_num(c, "scale_value", 1);
    s->attention.logit_bias = golden_num(c, "logit_bias", 0);
    s->attention.scale_lr_mult = 1;
    s->attention.init_logit_std = -1;
    s->dtype = PK_F32;
    if (!strcmp(activation, "softmax"))
        s->attention.phi = PK_PHI_SOFTMAX;
    else if (!strcmp(activation, "poly"))
        s->attention.phi = PK_PHI_POLY;
    else if (!strcmp(activation, "sigmoid"))
        s->attention.phi = PK_PHI_SIGMOID;
    else if (!strcmp(activation, "relu"))
        s->attention.phi = PK_PHI_RELU;
    else
        return false;
    if (s->attention.phi == PK_PHI_SIGMOID || s->attention.phi == PK_PHI_RELU) {
        s->attention.scale = MODEL_SCALE_FIXED;
        s->attention.scale_value =
            pow(s->attention.n_for_scale, -golden_num(c, "alpha", s->attention.phi == PK_PHI_RELU));
        return true;
    }
    if (!strncmp(kind, "learned", 7)) {
        s->attention.scale = MODEL_SCALE_LEARNED;
        s->attention.share = !strcmp(kind, "learnedhead") ? MODEL_SHARE_HEAD : MODEL_SHARE_LAYER;
        s->attention.scale_value = golden_num(c, "scale_init", 1);
    } else if (!strcmp(kind, "invsqrtn")) {
        s->attention.scale = MODEL_SCALE_FIXED;
    } else if (!strcmp(kind, "invk")) {
        s->attention.scale = MODEL_SCALE_K;
    } else if (strcmp(kind, "none")) {
        return false;
    }
    return true;
}

void golden_put_params(struct golden *c, struct golden_rig *rig, const struct model *m, const char *prefix)
{
    size_t seen = 0;

    for (size_t i = 0; i < model_param_count(m); i++) {
        const char *name = model_param(m, i)->name;
        size_t count = 0;
        double *x = golden_tensor(c, &count, "%s.%s", prefix, name);

        golden_rig_put(rig, name, x, count);
        seen += x != NULL;
    }
    /* and no parameter of the file is unknown to the model */
    for (size_t i = 0; i < data_st_count(c->st); i++) {
        const char *name = data_st_at(c->st, i)->name;
        size_t n = strlen(prefix);

        if (!strncmp(name, prefix, n) && name[n] == '.' && seen-- == 0)
            golden_fail(c, "'%s' is not a parameter of our model", name);
    }
}

struct network *golden_network(struct golden *c, const struct model *m, const char *prefix, int bits)
{
    struct network *n = network_new(c->config, bits);

    for (size_t i = 0; n && i < model_param_count(m); i++) {
        const char *name = model_param(m, i)->name;
        size_t count = 0;
        const double *value = golden_tensor(c, &count, "%s.%s", prefix, name);

        if (value)
            network_add(n, name, value, count);
    }
    return n;
}

double golden_gradient_distance(struct network *a, struct network *b, const char *part)
{
    double square = 0;

    for (size_t i = 0; i < network_param_count(a); i++) {
        const struct network_param *p = network_param(a, i);

        if (strstr(p->name, part))
            square += pow(network_distance(p->grad, network_param(b, i)->grad, p->count), 2);
    }
    return sqrt(square);
}

static bool cross_entropy(struct golden *c)
{
    const struct data_st_tensor *t = golden_find(c, "logits");
    struct pk_graph *g = pk_graph_new(false);
    struct golden_rig *rig;
    struct pk_val logits, mean, grad;
    struct pk_loss loss;
    size_t rows = 0, n = 0, count;
    double *targets = golden_tensor(c, &rows, "targets"), *x = golden_tensor(c, &n, "logits"), *want, *got;

    if (!t || !targets || !x)
        return true;
    logits = pk_param(g, "logits", PK_F32, PK_SHAPE(t->dim[0], t->dim[1]));
    loss =
        pk_cross_entropy(g, logits, pk_input(g, "target", PK_I32, PK_SHAPE((int64_t)rows)),
                         golden_num(c, "label_smoothing", 0), (int32_t)golden_num(c, "ignore_index", -100));
    mean = pk_div(g, loss.loss_sum, loss.count);
    pk_grad(g, mean, PK_NONE, &logits, 1, &grad);
    pk_output(g, "loss", mean);
    pk_output(g, "dlogits", grad);
    rig = golden_rig_new(c, g);
    if (!rig)
        return true;
    golden_rig_put(rig, "logits", x, n);
    golden_rig_put(rig, "target", targets, rows);
    if (golden_rig_run(rig)) {
        got = golden_rig_output(rig, "loss", NULL);
        want = golden_tensor(c, NULL, "loss.f64");
        if (got && want)
            golden_near(c, "loss", *got, *want, gold_rtol(c->g, 5e-6) * fabs(*want));
        got = golden_rig_output(rig, "dlogits", &count);
        want = golden_tensor(c, NULL, "dlogits.f64");
        if (got && want)
            golden_close(c, "dlogits", got, want, count, 1e-5, 1e-6);
    }
    golden_rig_free(rig);
    return true;
}

/* Of the emulation: its error of the logits relative to the largest, and what gradients may be off as one
 * vector: all, and those of learned scales. */
struct bands {
    double logits, all, scales;
};

static struct bands find_bands(struct golden *c, const struct model *m, const double *input,
                               const double *target, size_t batch, size_t logits)
{
    struct network *exact = golden_network(c, m, "param", 0), *rounded = golden_network(c, m, "param", 8);
    const double *loss = golden_tensor(c, NULL, "loss.f64"), *norm = golden_tensor(c, NULL, "grad_norm.f64");
    struct bands b = {0};
    double most = 0;

    if (exact && rounded && loss && norm) {
        golden_near(c, "loss of the exact run", network_gradient(exact, input, target, batch), *loss, 1e-10);
        (void)network_gradient(rounded, input, target, batch);
        for (size_t i = 0; i < logits; i++) {
            const double x = network_logits(exact)[i];

            most = fmax(most, fabs(x));
            b.logits = fmax(b.logits, fabs(network_logits(rounded)[i] - x));
        }
        b.logits /= most;
        b.all = GOLD_BF16_TIMES * golden_gradient_distance(exact, rounded, "");
        b.scales = GOLD_BF16_TIMES * golden_gradient_distance(exact, rounded, "attn_scale");
        golden_near(c, "grad_norm of the exact run", network_update(exact, 0, 0), *norm, 1e-10 * *norm);
    } else {
        golden_fail(c, "no emulation for this case");
    }
    network_free(exact);
    network_free(rounded);
    return b;
}

/* `bands`: NULL in f32, for which tests/golden/README.md 10 has them. A ReLU's gradients jump where rounding
 * moves a logit over 0: in bf16 tests/golden/README.md 10 has a band for all of them together, and says not
 * to test one by one. */
static void compare_gradients(struct golden *c, struct golden_rig *rig, const struct model *m,
                              const struct bands *bands)
{
    const bool kink = bands && !strcmp(golden_text(c, "activation", ""), "relu");
    double largest = 0, off = 0, all = 0, norm = 0, scales = 0;
    double *want_norm = golden_tensor(c, NULL, "grad_norm.f64"), band;

    for (size_t i = 0; i < model_param_count(m); i++) {
        size_t n = 0;
        double *want = golden_tensor(c, &n, "grad.%s", model_param(m, i)->name);

        for (size_t k = 0; want && k < n; k++)
            largest = fmax(largest, fabs(want[k]));
    }
    for (size_t i = 0; i < model_param_count(m); i++) {
        const struct model_param *p = model_param(m, i);
        char name[96];
        size_t n = 0;
        double *want = golden_tensor(c, &n, "grad.%s", p->name), *got, *yard;

        snprintf(name, sizeof name, "grad/%s", p->name);
        got = golden_rig_output(rig, name, NULL);
        if (!want || !got)
            continue;
        for (size_t k = 0; k < n; k++) {
            off += (got[k] - want[k]) * (got[k] - want[k]);
            all += want[k] * want[k];
            norm += got[k] * got[k];
        }
        if (p->role != MODEL_ROLE_SCALE) {
            if (!kink)
                golden_close(c, name, got, want, n, gold_band(c->g, "grads", 5e-5), 0.02 * largest);
        } else if (bands) {
            scales += pow(network_distance(got, want, n), 2);
        } else {
            yard = golden_tensor(c, NULL, "grad_abs.%s.f64", p->name);
            for (size_t k = 0; yard && k < n; k++)
                golden_near(c, name, got[k], want[k], gold_rtol(c->g, 2e-5) * yard[k]);
        }
    }
    band = bands && !kink ? bands->all : (kink ? 1e-1 : gold_rtol(c->g, 2e-5)) * sqrt(all);
    golden_near(c, "all gradients as one vector", sqrt(off), 0, band);
    if (want_norm) /* no further off than the vector */
        golden_near(c, "grad_norm", sqrt(norm), *want_norm, band);
    if (bands)
        golden_near(c, "all learned scales' gradients as one vector", sqrt(scales), 0, bands->scales);
}

static bool run(struct golden *c)
{
    struct model_spec spec;
    struct model *m = NULL;
    struct pk_graph *g = NULL;
    struct golden_rig *rig = NULL;
    struct model_train_options o = {.loss = &task_cross_entropy,
                                    .label_smoothing = golden_num(c, "label_smoothing", 0)};
    const struct data_st_tensor *in;
    double *want, *got, *targets, rtol;
    struct bands bands = {0};
    struct pd_why why;
    size_t n = 0, count = 0;

    if (!strcmp(golden_text(c, "kind", ""), "cross_entropy"))
        return cross_entropy(c);
    if (!golden_model_spec(c, &spec))
        return false;
    in = golden_find(c, spec.arch == &model_gpt ? "input_ids" : "images");
    targets = golden_tensor(c, &n, "targets");
    if (!in || !targets) {
        golden_fail(c, "no input or targets");
        return true;
    }
    o.batch = (int32_t)in->dim[0];
    o.context = (int32_t)in->dim[1];
    if (model_new(&spec, &m, &why) != PD_OK || model_graph_train(m, &o, true, &g, &why) != PD_OK)
        golden_fail(c, "%s", why.text);
    else
        rig = golden_rig_new(c, g);
    if (rig) {
        double *x = golden_tensor(c, &count, "%s", in->name);

        golden_put_params(c, rig, m, "param");
        golden_rig_put(rig, "input", x, count);
        golden_rig_put(rig, "target", targets, n);
        if (golden_rig_run(rig)) {
            want = golden_tensor(c, &n, "logits");
            got = golden_rig_output(rig, "logits", &count);
            if (gold_bf16())
                bands = find_bands(c, m, x, targets, (size_t)o.batch, n);
            /* The errors of a few logits may be small by chance: the larger of two emulations' counts. */
            rtol = gold_band(c->g, "logits", 1e-5);
            if (want && got && n == count)
                golden_close(c, "logits", got, want, n, fmax(rtol, GOLD_BF16_TIMES * bands.logits), 1e-6);
            else
                golden_fail(c, "logits: %zu numbers, reference %zu", count, n);
            want = golden_tensor(c, NULL, "loss.f64");
            got = golden_rig_output(rig, "loss", NULL);
            if (want && got) /* tests/golden/README.md 10 */
                golden_near(c, "loss", *got, *want, gold_rtol(c->g, gold_bf16() ? 1e-2 : 5e-6) * fabs(*want));
            compare_gradients(c, rig, m, gold_bf16() ? &bands : NULL);
        }
    }
    golden_rig_free(rig);
    model_free(m);
    return true;
}

void gold_models(struct gold *g)
{
    golden_case(g, run);
}
