/* web/assets_table.h: between assets.c and the table that embed.mjs writes. */
#pragma once

#include "web/assets.h"

extern const struct web_asset web_asset_table[]; /* sorted by path, strcmp order */
extern const size_t web_asset_table_len;
