/* Rewrites of a private copy of the graph. A value that is replaced by another is recorded in a table;
 * the views over it are laid again. */
#include "kernels/graph/passes.h"

#include <stdlib.h>
#include <string.h>

/* What nothing reads, and that writes no leaf, dies. */
static bool sweep(struct pk_graph *g)
{
    bool *alive = calloc(g->n_node, sizeof *alive);
    uint32_t *todo = calloc(g->n_node, sizeof *todo);
    size_t n = 0;

    if (!alive || !todo) {
        free(alive);
        free(todo);
        return false;
    }
    for (uint32_t i = 1; i < g->n_node; i++) {
        const struct pk_rule *rule = pk_rule_of(g->node[i].op);

        if (!g->node[i].dead && rule && rule->in_place) {
            alive[i] = true;
            todo[n++] = i;
        }
    }
    for (size_t i = 0; i < g->n_output; i++) {
        uint32_t node = g->value[g->output[i].value].node;

        if (!alive[node]) {
            alive[node] = true;
            todo[n++] = node;
        }
    }
    while (n) {
        const struct pk_node *x = &g->node[todo[--n]];

        for (int32_t i = 0; i < x->n_in; i++) {
            uint32_t node = g->value[x->in[i]].node;

            if (!alive[node]) {
                alive[node] = true;
                todo[n++] = node;
            }
        }
    }
    for (uint32_t i = 1; i < g->n_node; i++)
        g->node[i].dead = !alive[i];
    free(alive);
    free(todo);
    return true;
}

enum pd_err pk_passes_run(struct pk_graph *g, struct pd_why *why)
{
    if (!sweep(g))
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the passes");
    return PD_OK;
}

enum pd_err pk_passes_recompute(struct pk_graph *g, bool *ret_any, struct pd_why *why)
{
    (void)g;
    (void)why;
    *ret_any = false;
    return PD_OK;
}
