/* daemon/polyd/config/load.h: shared by the sources of this module: the state of loading, and the functions
 * of each layer (load_file, load_env, load_flags). Every problem is reported at l->origin. */
#pragma once

#include <limits.h>
#include <stdbool.h>

#include "daemon/polyd/config/config.h"
#include "daemon/polyd/config/table.h"
#include "kernels/base/arena.h"

#define CONFIG_MAX_ROWS 64

struct setting {
    const char *value;
    enum config_source source;
    const char *origin;
    int line; /* line in the file, for reporting duplicates */
};

struct config_private {
    struct pd_arena *arena;
    struct setting settings[CONFIG_MAX_ROWS];
    struct config_root roots[CONFIG_MAX_ROOTS];
    const char *names[CONFIG_MAX_ROOTS];
    struct setting root_settings[CONFIG_MAX_ROOTS];
};

/* The state of loading. */
struct load {
    struct config *c;
    struct config_private *p;
    struct config_report *report;
    enum config_source source;
    const char *file;     /* while the file is read */
    const char *base_dir; /* relative paths start here; NULL: the working directory */
    char origin[PATH_MAX + 32];
    const char *text; /* what is left of the file */
    int line;
    bool nomem;
};

void PD_PRINTF(2, 3) load_error(struct load *l, const char *fmt, ...);
void PD_PRINTF(2, 3) load_warning(struct load *l, const char *fmt, ...);

/* A copy that lives as long as the configuration; NULL (and nomem) without memory. */
const char *load_copy(struct load *l, const char *text);

/* Checks and stores the value of row i. */
void load_value(struct load *l, size_t i, const char *text);

/* Checks and stores a data root. */
void load_root(struct load *l, const char *name, const char *path);

/* The row of section.key; config_row_count if there is none. */
size_t load_row(const char *section, const char *key);

/* Stores a value by section and key; reports unknown names. */
void load_named(struct load *l, const char *section, const char *key, const char *value);

/* The layer of a file, and of its text. */
void load_file(struct load *l, const char *path);
void load_text(struct load *l, const char *text);

/* The layer of the environment; NULL `env` is an empty one. */
void load_env(struct load *l, const char *const *env);

/* The variable's value; NULL if it is unset or empty. */
const char *load_env_get(const char *const *env, const char *name);

/* POLYD_SECTION_KEY. */
void load_env_name(const struct config_row *row, char *out, size_t size);

/* Flags without a value: they replace running the daemon, or change how it starts. */
#define LOAD_ACTIONS 7
extern const struct load_action {
    const char *name;
    enum config_action action;
    const char *meaning;
} load_actions[LOAD_ACTIONS];

/* Reads the flags. `apply` false: reads only the action, --config and the position of the first argument,
 * because they decide what else is read. */
void load_flags(struct load *l, int argc, const char *const *argv, bool apply, const char **ret_file);
