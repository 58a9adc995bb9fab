/* Graphs of checks: planning, leaves, Jacobians. */
#include "daemon/worker/check/engine.h"

#include <string.h>

static bool good(struct check *c, enum pd_err err, const struct pd_why *why)
{
    if (err != PD_OK)
        check_fail(c, err, "%s", why->text);
    return err == PD_OK;
}

bool check_engine_around(struct check *c, struct check_engine *en, struct pk_graph *g)
{
    const struct pk_backend_api *api = pk_backend_cpu();
    struct pd_why why = {""};

    memset(en, 0, sizeof *en);
    if (c->err == PD_OK && g && good(c, api->open(NULL, 0, 1, &en->backend, &why), &why)) {
        en->g = g;
        return true;
    }
    check_fail(c, PD_ERR_NOMEM, "no memory for a graph");
    pk_graph_free(g);
    return false;
}

bool check_engine_open(struct check *c, struct check_engine *en)
{
    return check_engine_around(c, en, c->err == PD_OK ? pk_graph_new(false) : NULL);
}

void check_engine_plan(struct check *c, struct check_engine *en)
{
    const struct pk_backend_api *api = pk_backend_cpu();
    struct pd_why why = {""};

    if (c->err != PD_OK || !good(c, pk_graph_check(en->g, &why), &why) ||
        !good(c, pk_exec_new(en->g, api, en->backend, &en->exec, &why), &why))
        return;
    en->leaves = pk_graph_leaf_count(en->g);
    if (en->leaves > CHECK_ENGINE_LEAVES)
        check_fail(c, PD_ERR_LIMIT, "a graph of %zu leaves", en->leaves);
    for (size_t i = 0; i < en->leaves && c->err == PD_OK; i++) {
        const struct pk_leaf l = pk_graph_leaf(en->g, i);

        en->memory[i] = api->alloc(en->backend, l.bytes ? l.bytes : 1);
        if (!en->memory[i]) {
            check_fail(c, PD_ERR_NOMEM, "no memory for a graph");
            return;
        }
        memset(en->memory[i], 0, l.bytes);
        good(c, pk_exec_bind(en->exec, l.name, en->memory[i], &why), &why);
    }
}

static void *find(struct check *c, struct check_engine *en, const char *name, struct pk_leaf *ret)
{
    for (size_t i = 0; c->err == PD_OK && i < en->leaves; i++) {
        *ret = pk_graph_leaf(en->g, i);
        if (!strcmp(ret->name, name))
            return en->memory[i];
    }
    check_fail(c, PD_ERR_INTERNAL, "the graph has no leaf '%s'", name);
    return NULL;
}

void *check_engine_leaf(struct check *c, struct check_engine *en, const char *leaf, size_t *ret_count)
{
    struct pk_leaf l;
    void *memory = find(c, en, leaf, &l);

    if (memory)
        *ret_count = (size_t)pk_shape_count(&l.shape);
    return memory;
}

void check_engine_put(struct check *c, struct check_engine *en, const char *leaf, const double *from)
{
    struct pk_leaf l;
    void *memory = find(c, en, leaf, &l);

    for (int64_t i = 0; memory && i < pk_shape_count(&l.shape); i++)
        if (l.dtype == PK_F64)
            ((double *)memory)[i] = from[i];
        else
            ((float *)memory)[i] = (float)from[i];
}

void check_engine_put_ints(struct check *c, struct check_engine *en, const char *leaf, const int32_t *from)
{
    struct pk_leaf l;
    void *memory = find(c, en, leaf, &l);

    if (memory)
        memcpy(memory, from, l.bytes);
}

void check_engine_run(struct check *c, struct check_engine *en)
{
    struct pd_why why = {""};

    if (c->err == PD_OK)
        good(c, pk_exec_run(en->exec, &why), &why);
}

void check_engine_get(struct check *c, struct check_engine *en, const char *output, double *to, size_t count)
{
    struct pk_shape shape;
    const void *at = c->err == PD_OK ? pk_exec_output(en->exec, output, &shape) : NULL;

    if (!at || (size_t)pk_shape_count(&shape) != count) {
        check_fail(c, PD_ERR_INTERNAL, "the graph has no output '%s' of %zu elements", output, count);
        return;
    }
    if (en->f32)
        for (size_t i = 0; i < count; i++)
            to[i] = ((const float *)at)[i];
    else
        memcpy(to, at, count * sizeof *to);
}

void check_engine_close(struct check_engine *en)
{
    for (size_t i = 0; i < CHECK_ENGINE_LEAVES; i++)
        if (en->memory[i])
            pk_backend_cpu()->free(en->backend, en->memory[i]);
    pk_exec_free(en->exec);
    pk_graph_free(en->g);
    if (en->backend)
        pk_backend_cpu()->close(en->backend);
    memset(en, 0, sizeof *en);
}

void check_engine_jacobian(struct check *c, struct check_engine *en, size_t ys, size_t xs, double *ret)
{
    double *seed = check_numbers(c, ys);

    for (size_t k = 0; c->err == PD_OK && k < ys; k++) {
        memset(seed, 0, ys * sizeof *seed);
        seed[k] = 1;
        check_engine_put(c, en, "seed", seed);
        check_engine_run(c, en);
        check_engine_get(c, en, "dx", ret + k * xs, xs);
    }
}

void check_engine_differences(struct check *c, struct check_engine *en, size_t ys, size_t xs, double step,
                              double *ret)
{
    double *up = check_numbers(c, ys), *down = check_numbers(c, ys), most = 0;
    size_t count = 0;
    double *x = check_engine_leaf(c, en, "x", &count);

    for (size_t j = 0; c->err == PD_OK && j < xs; j++)
        most = fmax(most, fabs(x[j]));
    for (size_t j = 0; c->err == PD_OK && j < xs; j++) {
        const double here = x[j], h = step * most;

        x[j] = here + h;
        check_engine_run(c, en);
        check_engine_get(c, en, "y", up, ys);
        x[j] = here - h;
        check_engine_run(c, en);
        check_engine_get(c, en, "y", down, ys);
        x[j] = here;
        for (size_t k = 0; c->err == PD_OK && k < ys; k++)
            ret[k * xs + j] = (up[k] - down[k]) / (2 * h);
    }
}
