/* The table of networks. */
#include <string.h>

#include "daemon/worker/model/arch/arch.h"

#define ROW(name) &model_##name,
static const struct model_arch *const table[] = {MODEL_NETWORKS(ROW)};

const struct model_arch *model_arch_find(const char *name)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i]->name, name))
            return table[i];
    return NULL;
}

const struct model_arch *model_arch_numbered(int number)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i]->number == number)
            return table[i];
    return NULL;
}
