/* tests/golden/recipe.h: the files of group augment that are about a whole recipe. */
#pragma once

#include "tests/golden/rig.h"

/* Runs the file of that name; false: it is none of these. */
bool gold_recipe(struct gold *g, const char *name);
