/* The layer of the environment: POLYD_SECTION_KEY and POLYD_DATA_NAME. */
#include "daemon/polyd/config/load.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/nearest.h"

const char *load_env_get(const char *const *env, const char *name)
{
    size_t n = strlen(name);

    for (; env && *env; env++) {
        if (strncmp(*env, name, n) == 0 && (*env)[n] == '=' && (*env)[n + 1])
            return *env + n + 1;
    }
    return NULL;
}

void load_env_name(const struct config_row *row, char *out, size_t size)
{
    snprintf(out, size, "POLYD_%s_%s", row->section, row->key);
    for (char *p = out; *p; p++)
        *p = (char)toupper((unsigned char)*p);
}

/* Variables with the prefix POLYD_ that are not settings. */
static bool env_foreign(const char *name)
{
    return strcmp(name, "POLYD_CONFIG") == 0 || strcmp(name, "POLYD_TOKEN") == 0 ||
           strncmp(name, "POLYD_TEST_", 11) == 0 || strncmp(name, "POLYD_SELFTEST", 14) == 0;
}

static void read_env_one(struct load *l, const char *name, const char *value)
{
    char names[CONFIG_MAX_ROWS][80];
    const char *list[CONFIG_MAX_ROWS];
    char lower[CONFIG_ROOT_NAME + 2], section[32];
    const char *near;
    bool ours = false;

    snprintf(l->origin, sizeof l->origin, "%s", name);
    if (strncmp(name, "POLYD_DATA_", 11) == 0) {
        snprintf(lower, sizeof lower, "%.*s", CONFIG_ROOT_NAME + 1, name + 11); /* too long stays too long */
        for (char *p = lower; *p; p++)
            *p = (char)tolower((unsigned char)*p);
        load_root(l, lower, value);
        return;
    }
    for (size_t i = 0; i < config_row_count; i++) {
        load_env_name(&config_rows[i], names[i], sizeof names[i]);
        list[i] = names[i];
        if (strcmp(name, names[i]) == 0) {
            load_value(l, i, value);
            return;
        }
        snprintf(section, sizeof section, "%.*s", (int)(6 + strlen(config_rows[i].section) + 1), names[i]);
        ours = ours || strncmp(name, section, strlen(section)) == 0;
    }
    near = pd_nearest(name, list, config_row_count, NULL);
    if (ours)
        load_error(l, "unknown setting%s%s%s", near ? "; did you mean '" : "", near ? near : "",
                   near ? "'?" : "");
    else if (near) /* others may be meant for a worker or a test */
        load_warning(l, "is not a setting; did you mean '%s'?", near);
}

void load_env(struct load *l, const char *const *env)
{
    l->source = CONFIG_SOURCE_ENV;
    for (; env && *env; env++) {
        const char *eq = strchr(*env, '=');
        char name[128];
        if (strncmp(*env, "POLYD_", 6) != 0 || !eq || (size_t)(eq - *env) >= sizeof name)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)(eq - *env), *env);
        if (!env_foreign(name))
            read_env_one(l, name, eq + 1);
    }
}
