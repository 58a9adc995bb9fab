/* daemon/job/internal.h: shared by the sources of this module; private to it.
 *
 * A run is resolved field by field: for each row of the table the value is looked up in the
 * layers from the highest down (sweep, overrides, document, preset, recipe), else its default is
 * taken; it is checked, written into struct job_run and, if wanted, into the resolved document.
 * Since every known key is a row, this is the same as merging the objects, and each value
 * remembers its layer, so that an error can point at the place that set it. */
#pragma once

#include <jansson.h>

#include "daemon/job/job.h"
#include "kernels/base/arena.h"
#include "kernels/base/nearest.h"

#define JOB_MAX_SEED 9007199254740991.0 /* 2^53 - 1: the largest whole number that JSON readers agree on */

enum job_type {
    JOB_T_BOOL,
    JOB_T_INT,
    JOB_T_NUMBER,
    JOB_T_STRING,
    JOB_T_ENUM,
    JOB_T_INT_PAIR,    /* n or [rows, columns] */
    JOB_T_NUMBER_PAIR, /* [a, b] */
    JOB_T_ENUM_OR_NUM, /* a name, or a number instead of the last value of the enum */
    JOB_T_INTS,
    JOB_T_NUMBERS,
    JOB_T_STRINGS,
    JOB_T_ENUMS,
    JOB_T_OBJECT, /* null or an object whose keys are rows of their own */
    JOB_T_TAGS,   /* string to string */
    JOB_T_PARAMS, /* the template's own keys */
    JOB_T_DEPENDS,
    JOB_T_SCALARS, /* learned scalars by name, objects {init, per, form} */
    JOB_T_SETS,    /* names of data sets, or objects {dataset, path, name} */
    JOB_T_OVERRIDES,
    JOB_T_AXES,
    JOB_T_FORMULAS /* formulas, or objects {formula, params}: an axis (formulas.c); no resolved run has it */
};

enum {
    JOB_F_NULLABLE = 1 << 0,
    JOB_F_MIN_OPEN = 1 << 1, /* the minimum itself is excluded */
    JOB_F_MAX_OPEN = 1 << 2,
    JOB_F_ONLY = 1 << 3,           /* this build can run nothing but the default */
    JOB_F_FIXED = 1 << 4,          /* cannot be swept */
    JOB_F_NOPLAN = 1 << 5,         /* does not change the plan */
    JOB_F_COMPUTED = 1 << 6,       /* written when resolving; a given value is replaced */
    JOB_F_NAME = 1 << 7,           /* a string of A-Za-z0-9._- only */
    JOB_F_LATER = 1 << 8,          /* as JOB_F_ONLY, but refused by a check of its own */
    JOB_F_OFF_TRAJECTORY = 1 << 9, /* changes no number that training computes: left out of job_trajectory */
    JOB_F_MIN_RAISED = 1 << 10,    /* the minimum was 0, excluded: a stored value below it is a warning */
};

enum job_layer {
    JOB_LAYER_DEFAULT,
    JOB_LAYER_RECIPE,
    JOB_LAYER_PRESET,
    JOB_LAYER_DOCUMENT,
    JOB_LAYER_OVERRIDE,
    JOB_LAYER_SWEEP
};

/* Of several keys exactly one has a value; naming one in a layer hides the others below it. */
enum job_group { JOB_GROUP_NONE, JOB_GROUP_LENGTH, JOB_GROUP_WARMUP, JOB_GROUP_CHECKPOINT, JOB_GROUP_COUNT };

struct job_names {
    unsigned count;
    const char *const *names;
};

struct job_ctx;
struct job_run;

struct job_field {
    const char *pointer;
    enum job_type type;
    unsigned flags;
    enum job_group group;
    size_t offset; /* in struct job_run; JOB_NO_OFFSET if it has no place */
    const struct job_names *names;
    uint32_t available;                 /* bit i: value i of the enum can run in this build; 0: all of them */
    bool (*runs)(unsigned i);           /* the same, from another table; NULL: `available` applies */
    double min, max;                    /* range; of strings, their bytes; of lists, their length */
    const char *def;                    /* JSON text; NULL with `rule` */
    json_t *(*rule)(struct job_ctx *c); /* new reference; NULL: missing (already reported) or no memory */
    const char *rule_text;              /* the rule as displayed text */
    bool (*check)(struct job_ctx *c, const struct job_field *f, const char *text); /* of a string; reports */
    bool (*useful)(const struct job_run *r); /* false: a given value has no effect */
    const char *useful_text;                 /* "unless attention.activation is poly" */
    /* In place of `useful` for the trajectory digest, where `useful` came to exclude more: so checkpoints from before still
     * fit. NULL: `useful`. */
    bool (*in_digest)(const struct job_run *r);
    /* In place of both for the earlier trajectory digest, where they came to exclude less. NULL: as for the other digest. */
    bool (*in_earlier)(const struct job_run *r);
    /* A row that came with a later schema: in a document of an earlier one neither preset nor recipe sets it,
     * and `before` gives the default that such a document was computed with. 0: there from the first. */
    int since;
    json_t *(*before)(struct job_ctx *c);
    const char *before_text;
    const char *meaning;
    const char *reference; /* section of a document of the tree, as path and anchor; "": none */
};

#define JOB_NO_OFFSET ((size_t)-1)

bool job_field_runs(const struct job_field *f, unsigned i); /* value i of an enum, in this build */

extern const struct job_field job_fields[];
extern const size_t job_field_count;

struct job_item {
    const char *pointer;
    const char *json;
};
/* An array of them with the NULL pointer that ends it. */
#define JOB_ITEMS(...)                                                                                       \
    (const struct job_item[])                                                                                \
    {                                                                                                        \
        __VA_ARGS__,                                                                                         \
        {                                                                                                    \
            NULL, NULL                                                                                       \
        }                                                                                                    \
    }

struct job_preset {
    const char *name;
    int patch, patch_at_64;       /* 0: largest divisor of the side <= side/7 */
    const struct job_item *items; /* ends with a NULL pointer */
    const char *meaning;
};
/* Preset i of all networks, ordered by network; NULL after the last. */
const struct job_preset *job_preset_at(size_t i, int *ret_arch);

enum job_reads { JOB_READS_OTHER, JOB_READS_IMAGES, JOB_READS_TEXT, JOB_READS_POINTS };

/* Properties of a network that the document depends on; a row with its presets in networks.c. */
struct job_network {
    const char *name;
    bool available; /* this build has it */
    enum job_reads reads;
    bool causal;
    bool stages;            /* extents are lists, one entry a stage */
    bool windows;           /* attention within windows */
    bool channel_attention; /* attention between channels */
    bool distils;           /* a second token and head, which learn from a teacher */
    bool landmarks;         /* attention through landmarks */
    bool equations;         /* a solution of a differential equation */
    /* defaults of /attention/n_for_scale, /norm/eps, /train/optimizer/betas and weight_decay,
     * /train/clip_norm (0: null), /train/init, and of /model/gelu without a preset */
    const char *n_for_scale;
    double norm_eps, beta2, weight_decay, clip_norm;
    const char *init;
    bool gelu_tanh;
    const struct job_preset *presets; /* ends with a NULL name */
};
/* Properties of an optimiser that the document depends on; a row in optimisers.c. */
struct job_optimiser {
    bool available;          /* this build has it */
    bool betas;              /* it reads betas and eps */
    bool momentum;           /* it reads momentum, dampening, nesterov */
    bool searches;           /* it searches along lines, at one batch and without random choices */
    double lr, weight_decay; /* defaults; weight_decay -1: the network's */
    const char *scale_param; /* default of /attention/scale_param */
};
/* Of /train/optimizer/name; never NULL. */
const struct job_optimiser *job_optimiser(int name);
bool job_optimiser_runs(unsigned name);
extern const struct job_names job_names_optimiser;

#define JOB_NO_DISTILLATION "a %s has no distillation head; a deit has" /* name of the network */
/* Of /model/arch; never NULL. */
const struct job_network *job_network(int arch);
bool job_network_runs(unsigned arch);

struct job_recipe {
    const char *name;
    const struct job_item *items; /* NULL: known, not available */
    const char *meaning;
};
extern const struct job_recipe job_recipes[];
extern const size_t job_recipe_count;

extern const struct job_names job_names_dataset, job_names_arch;
extern const size_t job_dataset_count;
bool job_dataset_runs(unsigned dataset);

/* A run with the values that concern the whole job. */
struct job_run {
    struct job_config config; /* first: config->owner is this */
    struct pd_arena *arena;
    struct job_head head; /* name .. depends_on_count, method .. concurrency; resources is in config */
    const char *template_name;
    int variant;
    int64_t schema;
    bool sweep_present;
    int64_t samples, sweep_seed;
    int64_t min_steps, reduction;
};

/* One axis of a sweep. */
struct job_axis {
    size_t index;        /* its place in the document's array, for pointers */
    const char *pointer; /* borrowed from the document */
    json_t *values;      /* array, owned; NULL for a distribution */
    bool from_values;    /* the document listed them: errors point at the entry */
    bool log;            /* distribution: uniform in the logarithm */
    bool integer;        /* the field holds whole numbers: drawn values are rounded */
    double lo, hi;
};

struct job_sweep {
    struct job_axis axes[JOB_MAX_AXES];
    size_t count;
    bool random;
    int64_t samples;
    int64_t seed;
};

/* The swept values of one run. */
struct job_point {
    json_t *values[JOB_MAX_AXES]; /* owned references */
    size_t entry[JOB_MAX_AXES];   /* index in the axis' list */
};

/* The state of resolving one run. */
struct job_ctx {
    const struct job_env *env;
    bool check_roots;
    struct job_report *report;
    json_t *document;              /* layer; borrowed */
    json_t *overrides;             /* layer, folded into a tree; borrowed or NULL */
    json_t *override_map;          /* the same as the document has it: pointer to value; borrowed or NULL */
    const struct job_sweep *sweep; /* layer, with `point`; or NULL */
    const struct job_point *point;
    const struct job_recipe *recipe; /* once known */
    const struct job_preset *preset;
    int preset_arch; /* its network, as /model/arch */
    int64_t schema;  /* of the document */
    int64_t trial;   /* added to the seed */
    bool in_job;     /* read the sweep's own keys too */
    bool lenient;    /* the sweep is broken: leave out the checks it may have satisfied */
    struct job_run *run;
    struct job_config *g;          /* &run->config */
    json_t *out;                   /* resolved document, or NULL if not wanted */
    uint8_t layer[256];            /* of each field; enum job_layer */
    uint8_t bad[256];              /* the field had an error: rules about it keep quiet */
    json_t *asked[256];            /* values that the document sets in rows that may have no effect; owned */
    int8_t group[JOB_GROUP_COUNT]; /* the layer that decides for the group; -1: not looked up yet */
    bool failed;                   /* an error was reported */
    bool nomem;
};

/* ---- report.c ---- */
/* Appends "/" and the key to a pointer in URI-fragment form (escaped and percent-encoded). */
void job_pointer_add(struct pd_buf *b, const char *key);

/* ---- json.c ---- */
/* Loads with the limits of the document. PD_ERR_LIMIT, PD_ERR_CORRUPT, PD_ERR_NOMEM. */
enum pd_err job_json_load(const char *text, size_t len, json_t **ret, struct pd_why *why);
/* RFC 8785. Out of memory: the buffer's flag is set. */
void job_json_write(const json_t *v, struct pd_buf *b);
/* ECMAScript's Number.toString. `out` holds 32 bytes. */
const char *job_json_number(double v, char *out);
/* A literal of the tables, as a new reference; NULL without memory. */
json_t *job_json_literal(const char *text);
/* "an integer", "null", ... for messages. Static. */
const char *job_json_kind(const json_t *v);
/* Walks a plain pointer ("/a/b", no escapes) down from `root`; NULL if absent. Borrowed. */
json_t *job_json_at(json_t *root, const char *pointer);
/* A whole number as an integer, so that 1 and 1.0 are equal; new reference. */
json_t *job_json_num(double v);
/* Sets a copy-free reference to `v` (stolen) at the pointer, making objects on the way; an object on an
 * object merges. False without memory. */
bool job_json_put(json_t *root, const char *pointer, json_t *v);
/* A deep copy, or NULL if out of memory; jansson's own copy would omit members in that case. */
json_t *job_json_copy(json_t *v);
/* Merges `from` into the object `to`, deeply. False without memory. */
bool job_json_merge(json_t *to, json_t *from);

/* ---- keys.c: which keys exist ---- */
const struct job_field *job_field_find(const char *pointer);
/* Whether a field has this pointer as prefix. */
bool job_field_below(const char *pointer);
/* Reports every unknown key in `v`, which lies at `pointer` in the document (plain form) and at `place` in
 * the report (fragment form). */
void job_keys_check(struct job_ctx *c, json_t *v, const char *pointer, const char *place);
/* Calls `each` for every name that other trainers use for a field, until it returns false; returns the number of calls. */
size_t job_keys_synonyms(bool (*each)(void *ctx, const char *word, const char *pointer), void *ctx);
/* A sentence on an unknown pointer, with a suggestion, in `out`. Returns `out`. */
const char *job_keys_unknown(char *out, size_t size, const char *parent, const char *key);

/* ---- take.c ---- */
/* Where the run keeps the field; NULL: nowhere. */
void *job_place(struct job_ctx *c, const struct job_field *f);
/* Checks the value and stores it in the run. Returns it as the resolved document has it, a new reference;
 * NULL after an error, which is reported. */
json_t *job_take(struct job_ctx *c, const struct job_field *f, json_t *v);
/* The same for a row of JOB_T_SETS. */
json_t *job_take_sets(struct job_ctx *c, const struct job_field *f, json_t *v);
/* formula.c: the same for a row of JOB_T_SCALARS; the checks of attention.formula; whether it runs as a built-in. */
json_t *job_take_scalars(struct job_ctx *c, const struct job_field *f, json_t *v);
void job_formula_check(struct job_ctx *c);
bool job_formula_builtin(const struct job_config *g);
/* formulas.c: attention.formulas, a list that is short for the last axis of the sweep. `fold` replaces it in the
 * document; `done` makes the report point at the list where it points at that axis. False: an error is in the report,
 * or there is no memory. */
struct job_formulas {
    json_t *list; /* as the client wrote it; NULL: there is none */
    size_t axis;
};
bool job_formulas_fold(json_t *doc, struct job_report *report, struct job_formulas *ret);
bool job_formulas_done(struct job_formulas *f, struct job_report *report);
/* The row's value where a list has not been replaced, which only the document itself can have: an error. */
json_t *job_take_formulas(struct job_ctx *c, const struct job_field *f);
/* Whether such a row may name the data set. */
bool job_set_runs(unsigned dataset);
/* The value that null stands for in the run. */
void job_take_null(struct job_ctx *c, const struct job_field *f);

/* ---- resolve.c ---- */
/* Resolves one run into c->run (allocated here) and c->out. Errors go to the report. */
enum pd_err job_resolve(struct job_ctx *c);
/* Reports an error about a field, pointing at the place that set it. */
void job_ctx_error(struct job_ctx *c, const char *pointer, const char *fmt, ...) PD_PRINTF(3, 4);
/* The same for what an earlier version accepted: of a stored document a warning, so that its run can go on. */
void job_ctx_refuse(struct job_ctx *c, const char *pointer, const char *fmt, ...) PD_PRINTF(3, 4);
void job_ctx_warning(struct job_ctx *c, const char *pointer, const char *fmt, ...) PD_PRINTF(3, 4);
/* Which layer set the field, and whether it had an error. */
enum job_layer job_ctx_layer(const struct job_ctx *c, const char *pointer);
bool job_ctx_bad(const struct job_ctx *c, const char *pointer);
struct job_run *job_run_free(struct job_run *run);

/* ---- rules.c ---- */
/* The rows of the data set and the network that are resolved so far. */
const struct job_dataset_info *job_ctx_dataset(const struct job_ctx *c);
const struct job_network *job_ctx_network(const struct job_ctx *c);
/* Whether the data are one file, which a job divides. */
bool job_ctx_one_file(const struct job_ctx *c);
/* Samples of a batch that one rank computes in one part of a step; 0: they are not known yet. */
int64_t job_part_of_batch(const struct job_config *g);

/* The checks that concern several fields. */
void job_rules_check(struct job_ctx *c);
/* Whether the first evaluation (`evals`), else the first step of the schedule, lies beyond a run of so many
 * steps; then the words for it. */
bool job_rules_beyond(const struct job_config *g, int64_t steps, bool evals, char *out, size_t size);

/* ---- metric.c ---- */
/* Whether the run itself writes this metric key. */
bool job_metric_known(const struct job_config *g, const char *key);
/* Whether it is measured on the test part: never a criterion of selection. */
bool job_metric_tested(const char *key);
/* Whether it is a number of the run's evaluations; and the list of these: "loss/val, acc/val". */
bool job_metric_scored(const struct job_config *g, const char *key);
const char *job_metrics_scored(const struct job_config *g, char *out, size_t size);
/* Reports a sweep's metric that its runs do not write. */
void job_metric_warn(struct job_report *report, const struct job_config *g, const char *key);
/* Reports a mode (enum job_mode) that selects the worst value of the metric. */
void job_metric_warn_mode(struct job_report *report, const char *key, int mode);

/* ---- sweep.c ---- */
/* Reads /sweep of the document into `s` (job_sweep_done whatever happens), leaving out axes that an
 * override sets. Errors go to the report. */
void job_sweep_parse(struct job_ctx *c, struct job_sweep *s);
void job_sweep_done(struct job_sweep *s);
/* Combinations; more than JOB_MAX_RUNS are given as JOB_MAX_RUNS + 1. */
int64_t job_sweep_points(const struct job_sweep *s);
/* In how many of the `points` combinations the axis of this index has this entry of its list. */
int64_t job_sweep_uses(const struct job_sweep *s, int64_t points, size_t index, size_t entry);
/* The values of combination `n`. False without memory. */
bool job_sweep_point(const struct job_sweep *s, int64_t n, struct job_point *ret);
void job_point_done(const struct job_sweep *s, struct job_point *p);

/* ---- digest.c ---- */

/* SHA-256 of the value's RFC 8785 form, followed by `facts` unless NULL. */
enum pd_err job_tree_digest(const json_t *v, const char *facts, char out[JOB_DIGEST_SIZE],
                            struct pd_why *why);
/* Takes the key at the pointer out of its object. */
void job_json_forget(json_t *root, const char *pointer);
/* Of the job's only run: see struct job_config. */
enum pd_err job_trajectory(const struct job_doc *job, bool earlier, char out[JOB_DIGEST_SIZE],
                           struct pd_why *why);
/* The run that parsing resolved. Borrowed. */
const struct job_run *job_first(const struct job_doc *job);
