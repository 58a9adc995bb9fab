#include "web/assets.h"

#include <string.h>

#include "web/assets_table.h"

const struct web_asset *web_asset_find(const char *path)
{
    size_t lo = 0, hi = web_asset_table_len;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int order = strcmp(path, web_asset_table[mid].path);

        if (order == 0)
            return &web_asset_table[mid];
        if (order < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

const struct web_asset *web_asset_at(size_t i)
{
    return i < web_asset_table_len ? &web_asset_table[i] : NULL;
}
