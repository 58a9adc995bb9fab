/* Group blocks: one block in each placement, with its InputNorm; and GELU alone. tests/golden/README.md 4. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/golden/bf16.h"
#include "tests/golden/models.h"

/* The case as a model of one block: the name of a parameter in the file. */
static const char *block_name(const char *name)
{
    const char *dot = strstr(name, ".0.");

    if (dot)
        return dot + 3;
    return !strncmp(name, "transformer.", 12) ? name + 12 : name;
}

static bool activation(struct golden *c, bool tanh_form)
{
    struct pk_graph *g = pk_graph_new(false);
    struct golden_rig *rig;
    size_t n = 0;
    double *x = golden_tensor(c, &n, "x"), *gy = golden_tensor(c, NULL, "gy"), *got, *want;
    struct pk_val in = pk_param(g, "x", PK_F32, PK_SHAPE((int64_t)n)), y, grad;

    y = pk_gelu(g, in, tanh_form);
    pk_grad(g, y, pk_input(g, "gy", PK_F32, PK_SHAPE((int64_t)n)), &in, 1, &grad);
    pk_output(g, "y", y);
    pk_output(g, "dx", grad);
    rig = golden_rig_new(c, g);
    if (!rig)
        return true;
    golden_rig_put(rig, "x", x, n);
    golden_rig_put(rig, "gy", gy, n);
    if (golden_rig_run(rig)) {
        got = golden_rig_output(rig, "y", NULL);
        want = golden_tensor(c, NULL, "y.f64");
        if (got && want)
            golden_close(c, "y", got, want, n, 2e-6, 1e-6);
        got = golden_rig_output(rig, "dx", NULL);
        want = golden_tensor(c, NULL, "dx.f64");
        if (got && want)
            golden_close(c, "dx", got, want, n, 2e-6, 1e-6);
    }
    golden_rig_free(rig);
    return true;
}

static bool block(struct golden *c)
{
    const char *kind = golden_text(c, "kind", "");
    const struct data_st_tensor *h = golden_find(c, "h");
    struct model_spec spec;
    struct model *m = NULL;
    struct pk_graph *g = NULL;
    struct golden_rig *rig = NULL;
    struct pd_why why;
    double largest = 0, rtol, *got, *want;
    size_t n = 0, seen = 0;

    if (!strcmp(kind, "gelu") || !strcmp(kind, "gelu_new"))
        return activation(c, !strcmp(kind, "gelu_new"));
    if (!golden_model_spec(c, &spec) || !h)
        return false;
    spec.arch = !strcmp(golden_text(c, "layout", ""), "gpt2") ? &model_gpt : &model_vit;
    spec.depth = 1;
    spec.vocab = spec.context = 16;
    spec.channels = spec.classes = spec.image_h = spec.image_w = spec.patch_h = spec.patch_w = 1;
    /* x^3 with MidNorm amplifies the error of tiny outputs: tests/golden/README.md 10 */
    rtol = gold_band(c->g, "", spec.attention.phi == PK_PHI_POLY && spec.placement >= MODEL_S4 ? 2e-5 : 1e-5);
    if (model_new(&spec, &m, &why) != PD_OK ||
        model_graph_block(m, (int32_t)h->dim[0], (int32_t)h->dim[1], golden_flag(c, "causal", false), &g,
                          &why) != PD_OK)
        golden_fail(c, "%s", why.text);
    else
        rig = golden_rig_new(c, g);
    if (!rig)
        goto out;
    got = golden_tensor(c, &n, "h");
    golden_rig_put(rig, "h", got, n);
    got = golden_tensor(c, &n, "gy");
    golden_rig_put(rig, "gy", got, n);
    for (size_t i = 0; i < model_param_count(m); i++) {
        const char *name = model_param(m, i)->name;

        if (!golden_find(c, "param.%s", block_name(name)))
            continue; /* not of a block; one that is missing shows as its gradient */
        got = golden_tensor(c, &n, "param.%s", block_name(name));
        golden_rig_put(rig, name, got, n);
    }
    if (!golden_rig_run(rig))
        goto out;
    got = golden_rig_output(rig, "y", NULL);
    want = golden_tensor(c, &n, "y");
    if (got && want)
        golden_close(c, "y", got, want, n, rtol, 1e-6);
    got = golden_rig_output(rig, "dh", NULL);
    want = golden_tensor(c, &n, "dh");
    if (got && want)
        golden_close(c, "dh", got, want, n, rtol, 1e-6);
    for (size_t i = 0; i < data_st_count(c->st); i++) {
        const struct data_st_tensor *t = data_st_at(c->st, i);

        if (strncmp(t->name, "grad.", 5))
            continue;
        want = golden_tensor(c, &n, "%s", t->name);
        for (size_t k = 0; want && k < n; k++)
            largest = fmax(largest, fabs(want[k]));
    }
    for (size_t i = 0; i < model_param_count(m); i++) {
        const struct model_param *p = model_param(m, i);
        const char *name = block_name(p->name);
        char text[96];

        if (!golden_find(c, "grad.%s", name))
            continue;
        seen++;
        snprintf(text, sizeof text, "grad/%s", p->name);
        got = golden_rig_output(rig, text, NULL);
        want = golden_tensor(c, &n, "grad.%s", name);
        if (!got || !want)
            continue;
        if (p->role == MODEL_ROLE_SCALE && golden_find(c, "grad_abs.%s.f64", name)) {
            double *yard = golden_tensor(c, NULL, "grad_abs.%s.f64", name);

            for (size_t k = 0; k < n; k++)
                golden_near(c, text, got[k], want[k], gold_scale_band(c->g) * yard[k]);
        } else {
            golden_close(c, text, got, want, n, rtol, 0.02 * largest);
        }
    }
    for (size_t i = 0; i < data_st_count(c->st); i++)
        seen -=
            !strncmp(data_st_at(c->st, i)->name, "grad.", 5) && !strstr(data_st_at(c->st, i)->name, ".f64");
    if (seen)
        golden_fail(c, "gradients of the file that are no parameters of our block");
out:
    golden_rig_free(rig);
    model_free(m);
    return true;
}

void gold_blocks(struct gold *g)
{
    golden_case(g, block);
}
