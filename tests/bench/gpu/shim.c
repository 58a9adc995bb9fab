/* tests/bench/gpu/shim.c: the CUDA back end behind a few plain functions, for a program that times it beside
 * its peers in one process (attention.py loads bench_gpu.so by ctypes).
 *
 * Sizes are in elements, memory is the caller's device memory, dense. Functions that can fail return 0 or
 * write a sentence into `error` and return -1. One thread. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend/load.h"
#include "kernels/formula/formula.h"
#include "kernels/graph/tensor.h"

#define SHIM __attribute__((visibility("default")))
#define TENSORS_MOST 400

struct shim {
    const struct pk_backend_api *api;
    struct pk_backend *backend;
};

struct shim_plan {
    struct shim *shim;
    struct pk_call *calls;
    size_t count;
    struct pk_attr attr;
    struct pk_view *views;
    void *workspace;
    size_t workspace_bytes;
    struct pk_formula_plan *formula; /* of attention by a formula */
};

/* What one attention does. qkv, dqkv and the tangent are packed (b, n, 3, h, d), y, dy and their derivatives
 * (b, n, h, d); sums (b, h, n) f32, for softmax; for a formula (b, h, R, n) of the R values that its plan keeps of a row,
 * at most 8. */
enum shim_pass {
    SHIM_FORWARD,  /* qkv -> y, sums */
    SHIM_BACKWARD, /* qkv, y, dy, sums -> dqkv */
    SHIM_TANGENT,  /* qkv, tangent -> y, how it changes */
    SHIM_SECOND    /* qkv, dy, tangent (what flows into dqkv) -> dqkv, ddy */
};
struct shim_attention {
    int32_t b, n, h, d;
    int32_t phi;    /* enum pk_phi */
    int32_t degree; /* of x^p */
    int32_t form;   /* enum pk_form */
    int32_t causal;
    int32_t pass;  /* enum shim_pass */
    int32_t dtype; /* enum pk_dtype */
    double scale, bias;
    void *qkv, *y, *sums, *dy, *dqkv, *tangent, *ddy;
};

SHIM struct shim *shim_open(char *error, size_t size);
SHIM struct shim *shim_close(struct shim *s);
SHIM void *shim_stream(struct shim *s);
/* Device memory, for programs that have no other way to it. NULL: there is none. */
SHIM void *shim_alloc(struct shim *s, size_t bytes);
/* Products of f32 in TF32, or not. */
SHIM int shim_tf32(struct shim *s, int on, char *error, size_t size);
SHIM int shim_sync(struct shim *s, char *error, size_t size);
SHIM struct shim_plan *shim_attention(struct shim *s, const struct shim_attention *a, char *error,
                                      size_t size);
/* Forward or backward with a formula without learned scalars in place of phi, degree, scale and bias. Compiles its kernels. */
SHIM struct shim_plan *shim_formula(struct shim *s, const struct shim_attention *a, const char *text,
                                    char *error, size_t size);
SHIM struct shim_plan *shim_adamw(struct shim *s, int tensors, const int64_t *sizes, void *const *p,
                                  void *const *g, void *const *m, void *const *v, const void *hyper,
                                  const void *gate, char *error, size_t size);
SHIM struct shim_plan *shim_sumsq(struct shim *s, int tensors, const int64_t *sizes, void *const *g,
                                  void *sum, char *error, size_t size);
SHIM struct shim_plan *shim_free(struct shim_plan *p);
SHIM int shim_run(struct shim_plan *p, char *error, size_t size);
SHIM int64_t shim_workspace(const struct shim_plan *p);

static int said(const struct pd_why *why, char *error, size_t size)
{
    snprintf(error, size, "%s", why->text);
    return -1;
}

struct shim *shim_open(char *error, size_t size)
{
    struct shim *s = calloc(1, sizeof *s);
    struct pd_why why = {"no memory"};
    enum pd_err err = s ? pk_backend_load("cuda", PK_LOAD_RUN, &s->api, &why) : PD_ERR_NOMEM;

    if (err == PD_OK)
        err = s->api->open(NULL, 0, 1, &s->backend, &why);
    if (err != PD_OK) {
        said(&why, error, size);
        free(s);
        return NULL;
    }
    return s;
}

struct shim *shim_close(struct shim *s)
{
    if (s) {
        s->api->close(s->backend);
        free(s);
    }
    return NULL;
}

void *shim_stream(struct shim *s)
{
    return s->api->stream(s->backend);
}

void *shim_alloc(struct shim *s, size_t bytes)
{
    return s->api->alloc(s->backend, bytes);
}

int shim_tf32(struct shim *s, int on, char *error, size_t size)
{
    struct pd_why why = {""};

    return s->api->set_math(s->backend, on ? PK_MATH_TF32 : PK_MATH_F32, &why) == PD_OK
               ? 0
               : said(&why, error, size);
}

int shim_sync(struct shim *s, char *error, size_t size)
{
    struct pd_why why = {""};

    return s->api->sync(s->backend, &why) == PD_OK ? 0 : said(&why, error, size);
}

struct shim_plan *shim_free(struct shim_plan *p)
{
    struct pd_why why;

    if (p) {
        (void)!p->shim->api->sync(p->shim->backend, &why); /* calls that run may still read what follows */
        if (p->workspace)
            p->shim->api->free(p->shim->backend, p->workspace);
        free(p->calls);
        free(p->views);
        free(p->formula);
        free(p);
    }
    return NULL;
}

static struct shim_plan *plan_new(struct shim *s, size_t calls, size_t views)
{
    struct shim_plan *p = calloc(1, sizeof *p);

    if (!p)
        return NULL;
    p->shim = s;
    p->count = calls;
    p->calls = calloc(calls, sizeof *p->calls);
    p->views = calloc(views, sizeof *p->views);
    return p->calls && p->views ? p : shim_free(p);
}

/* Asks the back end whether it runs the calls, and gives them their workspace: one after the other use the
 * same. */
static struct shim_plan *plan_ready(struct shim_plan *p, char *error, size_t size)
{
    const struct pk_backend_api *api = p->shim->api;

    for (size_t i = 0; i < p->count; i++) {
        size_t bytes = api->workspace_bytes(p->shim->backend, &p->calls[i]);

        if (!api->supports(p->shim->backend, &p->calls[i])) {
            snprintf(error, size, "the back end does not run this");
            return shim_free(p);
        }
        if (bytes > p->workspace_bytes)
            p->workspace_bytes = bytes;
    }
    if (p->workspace_bytes) {
        p->workspace = api->alloc(p->shim->backend, p->workspace_bytes);
        if (!p->workspace) {
            snprintf(error, size, "no memory for %zu bytes of workspace", p->workspace_bytes);
            return shim_free(p);
        }
    }
    for (size_t i = 0; i < p->count; i++) {
        p->calls[i].workspace = p->workspace;
        p->calls[i].workspace_bytes = p->workspace_bytes;
    }
    return p;
}

struct shim_plan *shim_attention(struct shim *s, const struct shim_attention *a, char *error, size_t size)
{
    static const enum pk_op op[] = {PK_OP_ATTENTION, PK_OP_ATTENTION_BWD, PK_OP_ATTENTION_JVP,
                                    PK_OP_ATTENTION_BWD2};
    const struct pk_shape packed = PK_SHAPE(a->b, a->n, 3, a->h, a->d),
                          one = PK_SHAPE(a->b, a->n, a->h, a->d);
    const enum pk_dtype dtype = (enum pk_dtype)a->dtype;
    bool normalised = pk_phi_normalised((enum pk_phi)a->phi);
    struct shim_plan *p = plan_new(s, 1, 8);
    struct pk_view *in, *out;
    struct pk_call *c;

    if (!p) {
        snprintf(error, size, "no memory");
        return NULL;
    }
    in = p->views;
    out = p->views + 5;
    c = p->calls;
    p->attr.attention = (struct pk_attention_attr){.phi = (enum pk_phi)a->phi,
                                                   .degree = a->degree,
                                                   .tau = 1.0 / __builtin_sqrt((double)a->d),
                                                   .scale = a->scale,
                                                   .bias = a->bias,
                                                   .form = (enum pk_form)a->form,
                                                   .causal = a->causal != 0,
                                                   .packed = true};
    c->attr = &p->attr;
    c->op = op[a->pass];
    c->in = in;
    c->out = out;
    in[c->n_in++] = pk_view_dense(a->qkv, dtype, packed);
    if (a->pass == SHIM_BACKWARD)
        in[c->n_in++] = pk_view_dense(a->y, dtype, one);
    if (a->pass == SHIM_BACKWARD || a->pass == SHIM_SECOND)
        in[c->n_in++] = pk_view_dense(a->dy, dtype, one);
    if (a->pass == SHIM_BACKWARD && normalised)
        in[c->n_in++] = pk_view_dense(a->sums, PK_F32, PK_SHAPE(a->b, a->h, a->n));
    if (a->pass == SHIM_TANGENT || a->pass == SHIM_SECOND)
        in[c->n_in++] = pk_view_dense(a->tangent, dtype, packed);
    if (a->pass == SHIM_FORWARD || a->pass == SHIM_TANGENT)
        out[c->n_out++] = pk_view_dense(a->y, dtype, one);
    else
        out[c->n_out++] = pk_view_dense(a->dqkv, dtype, packed);
    if (a->pass == SHIM_FORWARD && normalised)
        out[c->n_out++] = pk_view_dense(a->sums, PK_F32, PK_SHAPE(a->b, a->h, a->n));
    if (a->pass == SHIM_SECOND)
        out[c->n_out++] = pk_view_dense(a->ddy, dtype, one);
    return plan_ready(p, error, size);
}

struct shim_plan *shim_formula(struct shim *s, const struct shim_attention *a, const char *text, char *error,
                               size_t size)
{
    const struct pk_shape packed = PK_SHAPE(a->b, a->n, 3, a->h, a->d),
                          one = PK_SHAPE(a->b, a->n, a->h, a->d);
    const enum pk_dtype dtype = (enum pk_dtype)a->dtype;
    const bool back = a->pass == SHIM_BACKWARD;
    struct shim_plan *p = plan_new(s, 1, 8);
    struct pk_formula *f = NULL;
    struct pk_formula_fault fault;
    struct pd_why why = {"no memory"};
    int64_t rows;
    struct pk_view kept, *out;
    struct pk_call *c;

    if (!p) {
        said(&why, error, size);
        return NULL;
    }
    p->formula = calloc(1, sizeof *p->formula);
    if (pk_formula_parse(text, strlen(text), PK_FORMULA_ACTIVATION, false, NULL, 0, &f, &fault) != PD_OK) {
        snprintf(error, size, "%s", fault.text);
        return shim_free(p);
    }
    if (!p->formula || pk_formula_plan(f, p->formula, &why) != PD_OK) {
        pk_formula_free(f);
        said(&why, error, size);
        return shim_free(p);
    }
    pk_formula_free(f);
    c = p->calls;
    out = p->views + 5;
    p->attr.formula.plan = p->formula;
    p->attr.formula.n = a->n;
    p->attr.formula.layers = 1;
    p->attr.attention = (struct pk_attention_attr){.phi = PK_PHI_SIGMOID,
                                                   .tau = 1.0 / __builtin_sqrt((double)a->d),
                                                   .scale = 1,
                                                   .causal = a->causal != 0,
                                                   .packed = true};
    *c = (struct pk_call){
        .op = back ? PK_OP_FORMULA_BWD : PK_OP_FORMULA, .attr = &p->attr, .in = p->views, .out = out};
    rows = p->formula->rows + p->formula->shift;
    for (int k = 0; k < p->formula->rows; k++)
        rows += p->formula->row[k] == PK_ROW_MAX;
    kept = pk_view_dense(a->sums, PK_F32, PK_SHAPE(a->b, a->h, rows, a->n));
    p->views[c->n_in++] = pk_view_dense(a->qkv, dtype, packed);
    if (back) {
        p->views[c->n_in++] = pk_view_dense(a->y, dtype, one);
        p->views[c->n_in++] = pk_view_dense(a->dy, dtype, one);
    }
    if (back && rows)
        p->views[c->n_in++] = kept;
    out[c->n_out++] = back ? pk_view_dense(a->dqkv, dtype, packed) : pk_view_dense(a->y, dtype, one);
    if (!back && rows)
        out[c->n_out++] = kept;
    p = plan_ready(p, error, size);
    if (p && s->api->compile && s->api->compile(s->backend, p->calls, 1, NULL, NULL, &why) != PD_OK) {
        said(&why, error, size);
        return shim_free(p);
    }
    return p;
}

/* AdamW, or with v NULL momentum SGD with decoupled decay. */
struct shim_plan *shim_adamw(struct shim *s, int tensors, const int64_t *sizes, void *const *p,
                             void *const *g, void *const *m, void *const *v, const void *hyper,
                             const void *gate, char *error, size_t size)
{
    struct shim_plan *plan =
        tensors > 0 && tensors <= TENSORS_MOST ? plan_new(s, (size_t)tensors, (size_t)tensors * 9) : NULL;

    if (!plan) {
        snprintf(error, size, "1 to %d tensors", TENSORS_MOST);
        return NULL;
    }
    plan->attr.optim.beta1 = 0.9;
    plan->attr.optim.beta2 = 0.95;
    plan->attr.optim.eps = 1e-8;
    plan->attr.optim.weight_decay = 0.1;
    plan->attr.optim.lr_mult = 1;
    plan->attr.optim.momentum = 0.9;
    for (int i = 0; i < tensors; i++) {
        struct pk_view *at = plan->views + 9 * i;

        int n = 3;

        at[0] = pk_view_dense(p[i], PK_F32, PK_SHAPE(sizes[i]));
        at[1] = pk_view_dense(g[i], PK_F32, PK_SHAPE(sizes[i]));
        at[2] = pk_view_dense(m[i], PK_F32, PK_SHAPE(sizes[i]));
        if (v)
            at[n++] = pk_view_dense(v[i], PK_F32, PK_SHAPE(sizes[i]));
        at[n++] = pk_view_dense((void *)(uintptr_t)hyper, PK_F32, PK_SHAPE(4));
        at[n++] = pk_view_dense((void *)(uintptr_t)gate, PK_F32, PK_SHAPE(2));
        at[n] = at[0];
        at[n + 1] = at[2];
        at[n + 2] = at[3];
        plan->calls[i] = (struct pk_call){.op = v ? PK_OP_ADAMW : PK_OP_MSGDW,
                                          .attr = &plan->attr,
                                          .n_in = n,
                                          .n_out = v ? 3 : 2,
                                          .in = at,
                                          .out = at + n};
    }
    return plan_ready(plan, error, size);
}

struct shim_plan *shim_sumsq(struct shim *s, int tensors, const int64_t *sizes, void *const *g, void *sum,
                             char *error, size_t size)
{
    struct shim_plan *plan =
        tensors > 0 && tensors <= TENSORS_MOST ? plan_new(s, 1, (size_t)tensors + 1) : NULL;

    if (!plan) {
        snprintf(error, size, "1 to %d tensors", TENSORS_MOST);
        return NULL;
    }
    for (int i = 0; i < tensors; i++)
        plan->views[i] = pk_view_dense(g[i], PK_F32, PK_SHAPE(sizes[i]));
    plan->views[tensors] = pk_view_dense(sum, PK_F32, PK_SHAPE(1));
    plan->calls[0] = (struct pk_call){.op = PK_OP_SUMSQ,
                                      .attr = &plan->attr,
                                      .n_in = tensors,
                                      .n_out = 1,
                                      .in = plan->views,
                                      .out = plan->views + tensors};
    return plan_ready(plan, error, size);
}

int shim_run(struct shim_plan *p, char *error, size_t size)
{
    struct pd_why why = {""};

    return p->shim->api->run(p->shim->backend, p->calls, p->count, &why) == PD_OK ? 0
                                                                                  : said(&why, error, size);
}

int64_t shim_workspace(const struct shim_plan *p)
{
    return (int64_t)p->workspace_bytes;
}
