/* tests/golden/vision.h: what the groups of whole networks of images under their public names share. */
#pragma once

#include "daemon/worker/model/model.h"
#include "tests/golden/rig.h"

/* An object or number of the config, and a whole number of an object. */
const json_t *vision_part(const struct golden *c, const char *key);
int32_t vision_whole(const json_t *o, const char *key);

/* The config's attention; what all these networks have. False: it is none of ours. */
bool vision_attention(const struct golden *c, struct model_attention *a);
bool vision_common(const struct golden *c, struct model_spec *s);

/* Fills the parameters, each of which the file has, and which are all that it has. */
void vision_put_params(struct golden *c, struct golden_rig *rig, const struct model *m);
void vision_put(struct golden *c, struct golden_rig *rig, const char *leaf, const char *tensor);
/* An output against a tensor; every gradient against PREFIX/NAME. */
void vision_compare(struct golden *c, struct golden_rig *rig, const char *output, const char *want_name);
void vision_compare_gradients(struct golden *c, struct golden_rig *rig, const struct model *m,
                              const char *prefix);
