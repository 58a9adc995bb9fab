/* The table of optimisers. */
#include "daemon/worker/train/optim/optim.h"

#include <string.h>

#define ROW(name) &optim_##name,
static const struct optim *const table[] = {OPTIMS(ROW)};

const struct optim *optim_find(const char *name)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i]->graph.name, name))
            return table[i];
    return NULL;
}

size_t optim_state_bytes(const struct optim *o, size_t param_bytes)
{
    return (size_t)o->graph.states * param_bytes;
}
