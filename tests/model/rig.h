/* tests/model/rig.h: what the tests of models share: two small networks, and a planned graph with its memory.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/worker/model/model.h"

struct model_spec gpt_spec(void);
struct model_spec vit_spec(void);
/* Fails the test if the spec is refused. */
struct model *make(const struct model_spec *s);
/* NULL if the model has no such parameter. */
const struct model_param *named(const struct model *m, const char *name);

struct rig {
    struct pk_graph *g;
    struct pk_exec *e;
    void *memory[256];
    size_t count;
};

/* Plans, binds parameters and fresh inputs; states come from `share` where it has them. */
void plan(struct rig *r, struct model_store *store, struct pk_backend *b, const struct rig *share);
void put(struct rig *r, const char *name, const void *from);
void close_rig(struct rig *r, struct pk_backend *b);
