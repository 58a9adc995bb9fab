/* daemon/spec/internal.h: what the files of this room share; not for other rooms.
 *
 * A run is resolved field by field: for each row of the table the value is looked up in the
 * layers from the highest down (sweep, overrides, document, preset, recipe), else its default is
 * taken; it is checked, written into struct spec_run and, if wanted, into the resolved document.
 * Since every known key is a row, this is the same as merging the objects, and each value
 * remembers its layer, so that an error can point at the place that set it. */
#pragma once

#include <jansson.h>

#include "daemon/spec/spec.h"
#include "kernels/base/arena.h"
#include "kernels/base/nearest.h"

#define SPEC_MAX_SEED 9007199254740991.0 /* 2^53 - 1: the largest whole number that JSON readers agree on */

enum spec_type {
    SPEC_T_BOOL,
    SPEC_T_INT,
    SPEC_T_NUMBER,
    SPEC_T_STRING,
    SPEC_T_ENUM,
    SPEC_T_INT_PAIR,    /* n or [rows, columns] */
    SPEC_T_NUMBER_PAIR, /* [a, b] */
    SPEC_T_ENUM_OR_NUM, /* a name, or a number instead of the last value of the enum */
    SPEC_T_INTS,
    SPEC_T_NUMBERS,
    SPEC_T_STRINGS,
    SPEC_T_ENUMS,
    SPEC_T_OBJECT, /* null or an object whose keys are rows of their own */
    SPEC_T_TAGS,   /* string to string */
    SPEC_T_PARAMS, /* the template's own keys */
    SPEC_T_DEPENDS,
    SPEC_T_OVERRIDES,
    SPEC_T_AXES
};

enum {
    SPEC_F_NULLABLE = 1 << 0,
    SPEC_F_MIN_OPEN = 1 << 1, /* the minimum itself is excluded */
    SPEC_F_MAX_OPEN = 1 << 2,
    SPEC_F_ONLY = 1 << 3,     /* this build can run nothing but the default */
    SPEC_F_FIXED = 1 << 4,    /* cannot be swept */
    SPEC_F_NOPLAN = 1 << 5,   /* does not change the plan */
    SPEC_F_COMPUTED = 1 << 6, /* written when resolving; a given value is replaced */
    SPEC_F_WORD = 1 << 7,     /* a string of A-Za-z0-9._- only */
    SPEC_F_LATER = 1 << 8,    /* as SPEC_F_ONLY, but refused by a check of its own */
};

enum spec_layer {
    SPEC_LAYER_DEFAULT,
    SPEC_LAYER_RECIPE,
    SPEC_LAYER_PRESET,
    SPEC_LAYER_DOCUMENT,
    SPEC_LAYER_OVERRIDE,
    SPEC_LAYER_SWEEP
};

/* Of several keys exactly one has a value; naming one in a layer hides the others below it. */
enum spec_group {
    SPEC_GROUP_NONE,
    SPEC_GROUP_LENGTH,
    SPEC_GROUP_WARMUP,
    SPEC_GROUP_CHECKPOINT,
    SPEC_GROUP_COUNT
};

struct spec_names {
    unsigned count;
    const char *const *names;
};

struct spec_ctx;
struct spec_run;

struct spec_field {
    const char *pointer;
    enum spec_type type;
    unsigned flags;
    enum spec_group group;
    size_t offset; /* in struct spec_run; SPEC_NO_OFFSET if it has no place */
    const struct spec_names *names;
    uint32_t available; /* bit i: value i of the enum can run in this build; 0: all of them */
    double min, max;    /* range; of strings, their bytes; of lists, their length */
    const char *def;    /* JSON text; NULL with `rule` */
    json_t *(*rule)(struct spec_ctx *c); /* new reference; NULL: missing (already reported) or no memory */
    const char *rule_text;               /* what the rule does, for people */
    bool (*check)(struct spec_ctx *c, const struct spec_field *f,
                  const char *text);          /* of a string; reports */
    bool (*useful)(const struct spec_run *r); /* false: a given value has no effect */
    const char *useful_text;                  /* "unless attention.activation is poly" */
    /* A row that came with a later schema: in a document of an earlier one neither preset nor recipe sets it,
     * and `before` gives the default that such a document was computed with. 0: there from the first. */
    int since;
    json_t *(*before)(struct spec_ctx *c);
    const char *before_text;
    const char *meaning;
    const char *reference;
};

#define SPEC_NO_OFFSET ((size_t)-1)

extern const struct spec_field spec_fields[];
extern const size_t spec_field_count;

struct spec_item {
    const char *pointer;
    const char *json;
};

struct spec_preset {
    const char *name;
    int arch;                      /* enum spec_arch */
    int patch, patch_at_64;        /* 0: largest divisor of the side <= side/7 */
    const struct spec_item *items; /* ends with a NULL pointer */
    const char *meaning;
};
extern const struct spec_preset spec_presets[];
extern const size_t spec_preset_count;

struct spec_recipe {
    const char *name;
    const struct spec_item *items; /* NULL: known, not available */
    const char *meaning;
};
extern const struct spec_recipe spec_recipes[];
extern const size_t spec_recipe_count;

extern const struct spec_names spec_names_dataset, spec_names_arch;
extern const size_t spec_dataset_count;

/* A run with the values that concern the whole job. */
struct spec_run {
    struct spec_config config; /* first: config->owner is this */
    struct pd_arena *arena;
    struct spec_head head; /* name .. depends_on_count, method .. concurrency; resources is in config */
    const char *template_name;
    int variant;
    int64_t schema;
    bool sweep_present;
    int64_t samples, sweep_seed;
    int64_t min_steps, reduction;
};

/* One axis of a sweep. */
struct spec_axis {
    size_t index;        /* its place in the document's array, for pointers */
    const char *pointer; /* borrowed from the document */
    json_t *values;      /* array, owned; NULL for a distribution */
    bool from_values;    /* the document listed them: errors point at the entry */
    bool log;            /* distribution: uniform in the logarithm */
    bool integer;        /* the field holds whole numbers: drawn values are rounded */
    double lo, hi;
};

struct spec_sweep {
    struct spec_axis axes[SPEC_MAX_AXES];
    size_t count;
    bool random;
    int64_t samples;
    int64_t seed;
};

/* The swept values of one run. */
struct spec_point {
    json_t *values[SPEC_MAX_AXES]; /* owned references */
    size_t entry[SPEC_MAX_AXES];   /* index in the axis' list */
};

/* The state of resolving one run. */
struct spec_ctx {
    const struct spec_env *env;
    bool check_roots;
    struct spec_report *report;
    json_t *document;               /* layer; borrowed */
    json_t *overrides;              /* layer, folded into a tree; borrowed or NULL */
    json_t *override_map;           /* the same as the document has it: pointer to value; borrowed or NULL */
    const struct spec_sweep *sweep; /* layer, with `point`; or NULL */
    const struct spec_point *point;
    const struct spec_recipe *recipe; /* once known */
    const struct spec_preset *preset;
    int64_t schema; /* of the document */
    int64_t trial;  /* added to the seed */
    bool in_job;    /* read the sweep's own keys too */
    bool lenient;   /* the sweep is broken: leave out the checks it may have satisfied */
    struct spec_run *run;
    struct spec_config *g;          /* &run->config */
    json_t *out;                    /* resolved document, or NULL if not wanted */
    uint8_t layer[192];             /* of each field; enum spec_layer */
    uint8_t bad[192];               /* the field had an error: rules about it keep quiet */
    json_t *asked[192];             /* what the document asks for in rows that may have no effect; owned */
    int8_t group[SPEC_GROUP_COUNT]; /* the layer that decides for the group; -1: not looked up yet */
    bool failed;                    /* an error was reported */
    bool nomem;
};

/* ---- report.c ---- */
/* Appends "/" and the key to a pointer in URI-fragment form (escaped and percent-encoded). */
void spec_pointer_add(struct pd_buf *b, const char *key);

/* ---- json.c ---- */
/* Loads with the limits of the document. PD_ERR_LIMIT, PD_ERR_CORRUPT, PD_ERR_NOMEM. */
enum pd_err spec_json_load(const char *text, size_t len, json_t **ret, struct pd_why *why);
/* RFC 8785. Out of memory: the buffer's flag is set. */
void spec_json_write(const json_t *v, struct pd_buf *b);
/* ECMAScript's Number.toString. `out` holds 32 bytes. */
const char *spec_json_number(double v, char *out);
/* A literal of the tables, as a new reference; NULL without memory. */
json_t *spec_json_literal(const char *text);
/* "an integer", "null", ... for messages. Static. */
const char *spec_json_kind(const json_t *v);
/* Walks a plain pointer ("/a/b", no escapes) down from `root`; NULL if absent. Borrowed. */
json_t *spec_json_at(json_t *root, const char *pointer);
/* A whole number as an integer, so that 1 and 1.0 are equal; new reference. */
json_t *spec_json_num(double v);
/* Sets a copy-free reference to `v` (stolen) at the pointer, making objects on the way; an object on an
 * object merges. False without memory. */
bool spec_json_put(json_t *root, const char *pointer, json_t *v);
/* A deep copy, or NULL without memory: jansson's own would leave out what it has no room for. */
json_t *spec_json_copy(json_t *v);
/* Merges `from` into the object `to`, deeply. False without memory. */
bool spec_json_merge(json_t *to, json_t *from);

/* ---- keys.c: which keys exist ---- */
const struct spec_field *spec_field_find(const char *pointer);
/* Whether some field lies below the pointer. */
bool spec_field_below(const char *pointer);
/* Reports every unknown key in `v`, which lies at `pointer` in the document (plain form) and at `place` in
 * the report (fragment form). */
void spec_keys_check(struct spec_ctx *c, json_t *v, const char *pointer, const char *place);
/* Hands out what other trainers call a field until `each` is false; returns how many. */
size_t spec_keys_synonyms(bool (*each)(void *ctx, const char *word, const char *pointer), void *ctx);
/* A sentence on an unknown pointer, with a suggestion, in `out`. Returns `out`. */
const char *spec_keys_unknown(char *out, size_t size, const char *parent, const char *key);

/* ---- take.c ---- */
/* Where the run keeps the field; NULL: nowhere. */
void *spec_place(struct spec_ctx *c, const struct spec_field *f);
/* Checks the value and stores it in the run. Returns it as the resolved document has it, a new reference;
 * NULL after an error, which is reported. */
json_t *spec_take(struct spec_ctx *c, const struct spec_field *f, json_t *v);
/* What null leaves in the run. */
void spec_take_null(struct spec_ctx *c, const struct spec_field *f);

/* ---- resolve.c ---- */
/* Resolves one run into c->run (allocated here) and c->out. Errors go to the report. */
enum pd_err spec_resolve(struct spec_ctx *c);
/* Reports an error about a field, pointing at the place that set it. */
void spec_ctx_error(struct spec_ctx *c, const char *pointer, const char *fmt, ...) PD_PRINTF(3, 4);
void spec_ctx_warning(struct spec_ctx *c, const char *pointer, const char *fmt, ...) PD_PRINTF(3, 4);
/* Which layer set the field, and whether it had an error. */
enum spec_layer spec_ctx_layer(const struct spec_ctx *c, const char *pointer);
bool spec_ctx_bad(const struct spec_ctx *c, const char *pointer);
struct spec_run *spec_run_free(struct spec_run *run);

/* ---- rules.c ---- */
/* The checks that concern several fields. */
void spec_rules_check(struct spec_ctx *c);
/* Whether the first evaluation (`evals`), else the first step of the schedule, lies beyond a run of so many
 * steps; then the words for it. */
bool spec_rules_beyond(const struct spec_config *g, int64_t steps, bool evals, char *out, size_t size);

/* ---- metric.c ---- */
/* Whether the run itself writes this metric key. */
bool spec_metric_known(const struct spec_config *g, const char *key);
/* Says of a sweep's metric that its runs do not write it. */
void spec_metric_warn(struct spec_report *report, const struct spec_config *g, const char *key);

/* ---- sweep.c ---- */
/* Reads /sweep of the document into `s` (spec_sweep_done whatever happens), leaving out axes that an
 * override sets. Errors go to the report. */
void spec_sweep_parse(struct spec_ctx *c, struct spec_sweep *s);
void spec_sweep_done(struct spec_sweep *s);
/* Combinations; more than SPEC_MAX_RUNS are given as SPEC_MAX_RUNS + 1. */
int64_t spec_sweep_points(const struct spec_sweep *s);
/* In how many of the `points` combinations the axis of this index has this entry of its list. */
int64_t spec_sweep_uses(const struct spec_sweep *s, int64_t points, size_t index, size_t entry);
/* The values of combination `n`. False without memory. */
bool spec_sweep_point(const struct spec_sweep *s, int64_t n, struct spec_point *ret);
void spec_point_done(const struct spec_sweep *s, struct spec_point *p);
