/* The layer of the flags. */
#include "daemon/polyd/config/load.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/nearest.h"

const struct load_action load_actions[LOAD_ACTIONS] = {
    {"help", CONFIG_ACTION_HELP, "print the help and exit"},
    {"version", CONFIG_ACTION_VERSION, "print the version and exit"},
    {"check-config", CONFIG_ACTION_CHECK, "print every error of the configuration and exit"},
    {"sample-config", CONFIG_ACTION_SAMPLE,
     "print a configuration file with every setting at its default and exit"},
    {"manual", CONFIG_ACTION_MANUAL, "print the manual page polyd(8) and exit"},
    {"manual-conf", CONFIG_ACTION_FORMAT, "print the manual page polyd.conf(5) and exit"},
    {"init", CONFIG_ACTION_INIT,
     "run the daemon; if the state folder has runs but no database, first move them into old-... in that "
     "folder"},
};

static void flag_unknown(struct load *l, const char *name)
{
    const char *list[2 * CONFIG_MAX_ROWS + 8];
    char dotted[CONFIG_MAX_ROWS][64], near[96];
    size_t n = 0;

    for (size_t i = 0; i < config_row_count; i++) {
        snprintf(dotted[i], sizeof dotted[i], "%s.%s", config_rows[i].section, config_rows[i].key);
        list[n++] = dotted[i];
        if (config_rows[i].flag)
            list[n++] = config_rows[i].flag;
    }
    for (size_t i = 0; i < LOAD_ACTIONS; i++)
        list[n++] = load_actions[i].name;
    list[n++] = "config";
    list[n++] = "data";
    load_error(l, "unknown flag%s", pd_did_you_mean(near, sizeof near, name, list, n));
}

/* --data NAME=PATH */
static void flag_data(struct load *l, const char *value)
{
    const char *eq = strchr(value, '=');
    char name[CONFIG_ROOT_NAME + 2];

    if (!eq) {
        load_error(l, "needs NAME=PATH, not '%s'", value);
        return;
    }
    snprintf(name, sizeof name, "%.*s",
             (int)(eq - value < CONFIG_ROOT_NAME + 1 ? eq - value : CONFIG_ROOT_NAME + 1), value);
    load_root(l, name, eq + 1);
}

/* One flag with its value; NULL value: it is missing. */
static void flag_set(struct load *l, const char *name, const char *value)
{
    const char *dot = strchr(name, '.');
    size_t i = 0;
    char section[64];

    snprintf(section, sizeof section, "%.*s", dot ? (int)(dot - name < 63 ? dot - name : 63) : 0, name);
    while (i < config_row_count && !(config_rows[i].flag && strcmp(config_rows[i].flag, name) == 0))
        i++;
    if (i == config_row_count && dot)
        i = load_row(section, dot + 1);
    if (strcmp(name, "data") == 0) {
        flag_data(l, value);
    } else if (strcmp(section, "data") == 0) {
        load_root(l, dot + 1, value);
    } else {
        load_value(l, i, value);
    }
}

/* The value of a flag given without one; NULL: it needs a value. */
static const char *flag_bare(const char *name)
{
    for (size_t i = 0; i < config_row_count; i++) {
        if (config_rows[i].flag && strcmp(config_rows[i].flag, name) == 0)
            return config_rows[i].bare;
    }
    return NULL;
}

/* Whether there is such a flag that takes a value. */
static bool flag_known(const char *name)
{
    const char *dot = strchr(name, '.');
    char section[64];

    if (strcmp(name, "data") == 0 || strncmp(name, "data.", 5) == 0)
        return true;
    for (size_t i = 0; i < config_row_count; i++) {
        if (config_rows[i].flag && strcmp(config_rows[i].flag, name) == 0)
            return true;
    }
    if (!dot || dot - name > 63)
        return false;
    snprintf(section, sizeof section, "%.*s", (int)(dot - name), name);
    return load_row(section, dot + 1) < config_row_count;
}

void load_flags(struct load *l, int argc, const char *const *argv, bool apply, const char **ret_file)
{
    int i = 1;

    l->source = CONFIG_SOURCE_FLAG;
    for (; i < argc && argv[i][0] == '-' && argv[i][1]; i++) {
        const char *name = argv[i] + 1, *eq, *value = NULL;
        char word[128];
        size_t k = 0;

        if (strcmp(argv[i], "--") == 0) {
            i++;
            break;
        }
        if (strcmp(argv[i], "-h") == 0) {
            l->c->action = CONFIG_ACTION_HELP;
            continue;
        }
        snprintf(l->origin, sizeof l->origin, "%.*s", (int)strcspn(argv[i], "="), argv[i]);
        name += *name == '-';
        eq = strchr(name, '=');
        snprintf(word, sizeof word, "%.*s", (int)(eq ? (eq - name < 127 ? eq - name : 127) : 127), name);
        while (k < LOAD_ACTIONS && strcmp(load_actions[k].name, word) != 0)
            k++;
        if (k < LOAD_ACTIONS && argv[i][1] == '-') {
            if (eq && apply)
                load_error(l, "takes no value");
            l->c->action = load_actions[k].action;
            continue;
        }
        if (argv[i][1] != '-' || (strcmp(word, "config") != 0 && !flag_known(word))) {
            if (apply)
                flag_unknown(l, word);
            continue;
        }
        value = eq ? eq + 1 : flag_bare(word);
        if (!value && i + 1 < argc)
            value = argv[++i];
        if (strcmp(word, "config") == 0) {
            if (value && *value)
                *ret_file = value;
            else if (apply)
                load_error(l, "needs a file");
        } else if (apply && value) {
            flag_set(l, word, value);
        } else if (apply) {
            load_error(l, "needs a value");
        }
    }
    if (apply) {
        l->c->args = argv + (i < argc ? i : argc);
        l->c->arg_count = (size_t)(i < argc ? argc - i : 0);
    }
}
