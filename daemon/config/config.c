/* Four layers over one table. Every value goes through set_value, whatever its layer, and
 * leaves its text and origin for GET /api/v1/config. */
#include "daemon/config/config.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <ini.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/config/table.h"
#include "kernels/base/arena.h"
#include "kernels/base/file.h"
#include "kernels/base/nearest.h"

#define MAX_ROWS 64

struct setting {
    const char *value;
    enum config_source source;
    const char *origin;
    int line; /* in the file, to name the first of two */
};

struct config_private {
    struct pd_arena *arena;
    struct setting settings[MAX_ROWS];
    struct config_root roots[CONFIG_MAX_ROOTS];
    const char *names[CONFIG_MAX_ROOTS];
    struct setting root_settings[CONFIG_MAX_ROOTS];
};

/* What loading carries along. */
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

/* ---- Reports ---- */

void config_report_init(struct config_report *report)
{
    memset(report, 0, sizeof *report);
}

static void problems_done(struct config_problem *p, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(p[i].where);
        free(p[i].what);
    }
    free(p);
}

void config_report_done(struct config_report *report)
{
    problems_done(report->errors, report->error_count);
    problems_done(report->warnings, report->warning_count);
    config_report_init(report);
}

#define MOST_PROBLEMS 200 /* a file full of nonsense need not be told in full */

static void problem_add(struct config_report *r, struct config_problem **list, size_t *count,
                        const char *where, const char *fmt, va_list args)
{
    struct config_problem one = {NULL, NULL}, *p;

    if (r->failed || *count >= MOST_PROBLEMS)
        return;
    if (vasprintf(&one.what, fmt, args) < 0) {
        r->failed = true;
        return;
    }
    one.where = strdup(where);
    p = one.where ? realloc(*list, (*count + 1) * sizeof *p) : NULL;
    if (!p) {
        r->failed = true;
        free(one.where);
        free(one.what);
        return;
    }
    p[(*count)++] = one;
    *list = p;
}

static void PD_PRINTF(2, 3) error_at(struct load *l, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    problem_add(l->report, &l->report->errors, &l->report->error_count, l->origin, fmt, args);
    va_end(args);
}

static void PD_PRINTF(2, 3) warning_at(struct load *l, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    problem_add(l->report, &l->report->warnings, &l->report->warning_count, l->origin, fmt, args);
    va_end(args);
}

void config_report_text(const struct config_report *report, struct pd_buf *out)
{
    for (size_t i = 0; i < report->error_count; i++)
        pd_buf_printf(out, "%s: %s\n", report->errors[i].where, report->errors[i].what);
    for (size_t i = 0; i < report->warning_count; i++)
        pd_buf_printf(out, "warning: %s: %s\n", report->warnings[i].where, report->warnings[i].what);
}

/* ---- Values ---- */

/* A copy that lives as long as the configuration; NULL (and nomem) without memory. */
static const char *keep(struct load *l, const char *text)
{
    const char *copy = pd_arena_strdup(l->p->arena, text);

    if (!copy)
        l->nomem = true;
    return copy;
}

static const char *absolute(struct load *l, const char *path)
{
    char here[PATH_MAX];
    const char *base = l->base_dir;
    struct pd_buf b;
    const char *out;

    if (path[0] == '/')
        return keep(l, path);
    if (!base || base[0] != '/') {
        if (!getcwd(here, sizeof here)) {
            error_at(l, "cannot find the working directory: %s", strerror(errno));
            return NULL;
        }
    }
    pd_buf_init(&b, 0);
    if (!base)
        pd_buf_printf(&b, "%s/%s", here, path);
    else if (base[0] == '/')
        pd_buf_printf(&b, "%s/%s", base, path);
    else
        pd_buf_printf(&b, "%s/%s/%s", here, base, path);
    out = b.data && !b.failed ? keep(l, b.data) : NULL;
    if (!out)
        l->nomem = true;
    pd_buf_done(&b);
    return out;
}

static bool parse_int(const char *text, int64_t *ret)
{
    char *end;
    long long v;

    if (!isdigit((unsigned char)text[0]) && text[0] != '-')
        return false;
    errno = 0;
    v = strtoll(text, &end, 10);
    if (errno || *end)
        return false;
    *ret = v;
    return true;
}

static bool parse_list(struct load *l, const struct config_row *row, const char *text,
                       struct config_list *ret)
{
    const char **items = pd_arena_alloc(l->p->arena, CONFIG_MAX_LIST * sizeof *items);
    char *copy = pd_arena_strdup(l->p->arena, text);
    size_t n = 0;

    if (!items || !copy) {
        l->nomem = true;
        return false;
    }
    for (char *save = NULL, *word = strtok_r(copy, ", \t", &save); word;
         word = strtok_r(NULL, ", \t", &save)) {
        if (n == CONFIG_MAX_LIST) {
            error_at(l, "%s.%s has more than %d entries", row->section, row->key, CONFIG_MAX_LIST);
            return false;
        }
        items[n++] = word;
    }
    *ret = (struct config_list){n, items};
    return true;
}

static void list_words(const struct config_row *row, struct pd_buf *b)
{
    for (unsigned i = 0; row->words[i]; i++)
        pd_buf_printf(b, "%s%s", i ? ", " : "", row->words[i]);
}

static bool parse_word(struct load *l, const struct config_row *row, const char *text, int64_t *ret)
{
    struct pd_buf b;
    char near[64];
    unsigned n = 0;

    for (unsigned i = 0; row->words[i]; i++, n++) {
        if (strcmp(row->words[i], text) != 0)
            continue;
        if (row->known_only && i >= row->known_only) {
            error_at(l, "%s.%s = %s is known but not available in this version", row->section, row->key,
                     text);
            return false;
        }
        *ret = row->values[i];
        return true;
    }
    pd_buf_init(&b, 0);
    list_words(row, &b);
    error_at(l, "%s.%s must be one of %s, not '%s'%s", row->section, row->key, b.data ? b.data : "", text,
             pd_did_you_mean(near, sizeof near, text, row->words, n));
    pd_buf_done(&b);
    return false;
}

/* Checks and stores one value; reports at l->origin. */
static void set_value(struct load *l, size_t i, const char *text)
{
    const struct config_row *row = &config_rows[i];
    struct setting *s = &l->p->settings[i];
    void *at = (char *)l->c + row->offset;
    unsigned char bytes[sizeof(struct in6_addr)];
    const char *copy = text;
    int64_t v;

    switch (row->type) {
    case CONFIG_T_INT:
        if (!parse_int(text, &v)) {
            error_at(l, "%s.%s must be a whole number, not '%s'", row->section, row->key, text);
            return;
        }
        if (v < row->min || v > row->max) {
            error_at(l, "%s.%s must be from %lld to %lld, not %lld", row->section, row->key,
                     (long long)row->min, (long long)row->max, (long long)v);
            return;
        }
        *(int64_t *)at = v;
        break;
    case CONFIG_T_WORD:
        if (!parse_word(l, row, text, at))
            return;
        break;
    case CONFIG_T_ADDRESS:
        if (inet_pton(AF_INET, text, bytes) != 1 && inet_pton(AF_INET6, text, bytes) != 1) {
            error_at(l, "%s.%s must be an address such as 127.0.0.1 or ::1, not '%s'", row->section, row->key,
                     text);
            return;
        }
        *(const char **)at = copy = keep(l, text);
        break;
    case CONFIG_T_PATH:
        if (!*text) {
            error_at(l, "%s.%s must not be empty", row->section, row->key);
            return;
        }
        copy = absolute(l, text);
        *(const char **)at = copy;
        break;
    case CONFIG_T_LIST:
        if (!parse_list(l, row, text, at))
            return;
        break;
    }
    s->value = copy ? keep(l, copy) : NULL;
    s->source = l->source;
    s->origin = keep(l, l->origin);
    s->line = l->source == CONFIG_SOURCE_FILE ? l->line : 0;
}

static bool root_name_ok(const char *name)
{
    return *name && name[0] != '.' && strlen(name) <= CONFIG_ROOT_NAME &&
           name[strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")] == '\0';
}

static void set_root(struct load *l, const char *name, const char *path)
{
    struct config_private *p = l->p;
    size_t i = 0;
    struct stat st;

    if (!root_name_ok(name)) {
        error_at(
            l, "a data root's name has 1 to %d of A-Za-z0-9._- and does not begin with a dot; '%s' does not",
            CONFIG_ROOT_NAME, name);
        return;
    }
    if (!*path) {
        error_at(l, "the data root '%s' needs a path", name);
        return;
    }
    while (i < l->c->data.count && strcmp(p->roots[i].name, name) != 0)
        i++;
    if (i == CONFIG_MAX_ROOTS) {
        error_at(l, "more than %d data roots", CONFIG_MAX_ROOTS);
        return;
    }
    if (i < l->c->data.count && l->source == CONFIG_SOURCE_FILE && p->root_settings[i].line) {
        error_at(l, "data.%s is set twice; first in line %d", name, p->root_settings[i].line);
        return;
    }
    path = absolute(l, path);
    name = keep(l, name);
    if (!path || !name)
        return;
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode))
        warning_at(l, "the data root '%s' is no directory: %s", name, path);
    p->roots[i] = (struct config_root){name, path};
    p->names[i] = name;
    p->root_settings[i] =
        (struct setting){path, l->source, keep(l, l->origin), l->source == CONFIG_SOURCE_FILE ? l->line : 0};
    if (i == l->c->data.count)
        l->c->data.count++;
}

/* ---- Names ---- */

/* The row of section.key; config_row_count if there is none. */
static size_t row_find(const char *section, const char *key)
{
    size_t i = 0;

    while (i < config_row_count &&
           (strcmp(config_rows[i].section, section) != 0 || strcmp(config_rows[i].key, key) != 0))
        i++;
    return i;
}

/* Reports an unknown section or key. */
static void unknown(struct load *l, const char *section, const char *key)
{
    const char *sections[MAX_ROWS], *keys[MAX_ROWS];
    size_t n = 0, m = 0;
    bool known = strcmp(section, "data") == 0;
    char near[64];

    for (size_t i = 0; i < config_row_count; i++) {
        sections[n++] = config_rows[i].section;
        if (strcmp(config_rows[i].section, section) == 0) {
            keys[m++] = config_rows[i].key;
            known = true;
        }
    }
    sections[n++] = "data";
    if (!*section)
        error_at(l, "'%s' stands before the first [section]", key);
    else if (!known)
        error_at(l, "unknown section '%s'%s", section,
                 pd_did_you_mean(near, sizeof near, section, sections, n));
    else
        error_at(l, "unknown key '%s' in section '%s'%s", key, section,
                 pd_did_you_mean(near, sizeof near, key, keys, m));
}

static void set_named(struct load *l, const char *section, const char *key, const char *value)
{
    size_t i = row_find(section, key);

    if (strcmp(section, "data") == 0) {
        set_root(l, key, value);
    } else if (i == config_row_count) {
        unknown(l, section, key);
    } else if (l->source == CONFIG_SOURCE_FILE && l->p->settings[i].line) {
        error_at(l, "%s.%s is set twice; first in line %d", section, key, l->p->settings[i].line);
    } else {
        set_value(l, i, value);
    }
}

/* ---- The file ---- */

/* What libinih would pass over or cut in silence is told here, line by line. */
static void check_line(struct load *l, const char *line, size_t len)
{
    while (len && isspace((unsigned char)*line)) {
        line++;
        len--;
    }
    while (len && isspace((unsigned char)line[len - 1]))
        len--;
    if (!len || *line == ';' || *line == '#')
        return;
    if (*line == '[') {
        if (!memchr(line, ']', len))
            error_at(l, "a section needs a closing ]");
        else if ((const char *)memchr(line, ']', len) - line > CONFIG_ROOT_NAME)
            error_at(l, "the section's name is too long");
    } else {
        size_t name = 0;
        while (name < len && line[name] != '=' && line[name] != ':')
            name++;
        if (name == len)
            error_at(l, "expected key = value");
        else if (name > CONFIG_ROOT_NAME)
            error_at(l, "the key is too long");
        else if (name == 0)
            error_at(l, "expected key = value");
    }
}

/* An fgets over the text that counts lines. */
static char *read_line(char *out, int size, void *user)
{
    struct load *l = user;
    const char *end;
    size_t len;

    if (!*l->text)
        return NULL;
    end = strchr(l->text, '\n');
    len = end ? (size_t)(end - l->text) : strlen(l->text);
    l->line++;
    snprintf(l->origin, sizeof l->origin, "%s:%d", l->file, l->line);
    if (len + 2 > (size_t)size || len > CONFIG_MAX_LINE) {
        error_at(l, "the line is longer than %d bytes", CONFIG_MAX_LINE);
        out[0] = '\0';
    } else {
        check_line(l, l->text, len);
        memcpy(out, l->text, len);
        out[len] = '\0';
    }
    l->text += len + (end != NULL);
    return out;
}

static int on_pair(void *user, const char *section, const char *key, const char *value)
{
    set_named(user, section, key, value ? value : "");
    return 1;
}

static void read_text(struct load *l, const char *text)
{
    int rc;

    l->text = text;
    l->line = 0;
    l->source = CONFIG_SOURCE_FILE;
    /* Long lines on the heap, and no continuation lines: an indented line is a mistake here. */
    ini_use_stack = false;
    ini_allow_realloc = false;
    ini_initial_alloc = CONFIG_MAX_LINE + 3;
    ini_max_line = CONFIG_MAX_LINE + 3;
    ini_allow_multiline = false;
    rc = ini_parse_stream(read_line, l, on_pair, l);
    if (rc == -2)
        l->nomem = true;
    snprintf(l->origin, sizeof l->origin, "%s", l->file);
    if (rc > 0 && !l->report->error_count)
        error_at(l, "line %d cannot be read", rc);
}

static void read_file(struct load *l, const char *path)
{
    struct pd_buf text;
    struct pd_why why;
    char folder[PATH_MAX];
    char *slash;
    enum pd_err err;

    pd_buf_init(&text, 0);
    l->file = l->c->file = keep(l, path);
    snprintf(l->origin, sizeof l->origin, "%s", path);
    err = l->file ? pd_file_read(path, CONFIG_MAX_FILE, &text, &why) : PD_ERR_NOMEM;
    if (err == PD_ERR_NOMEM) {
        l->nomem = true;
    } else if (err != PD_OK) {
        error_at(l, "%s", why.text);
    } else if (text.len && memchr(text.data, '\0', text.len)) {
        error_at(l, "is not a text file");
    } else if (text.len) {
        snprintf(folder, sizeof folder, "%s", path);
        slash = strrchr(folder, '/');
        if (slash)
            *slash = '\0';
        l->base_dir = slash ? *folder ? folder : "/" : NULL;
        read_text(l, text.data);
        l->base_dir = NULL;
    }
    pd_buf_done(&text);
}

/* ---- The environment ---- */

static const char *env_get(const char *const *env, const char *name)
{
    size_t n = strlen(name);

    for (; env && *env; env++) {
        if (strncmp(*env, name, n) == 0 && (*env)[n] == '=' && (*env)[n + 1])
            return *env + n + 1;
    }
    return NULL;
}

static void env_name(const struct config_row *row, char *out, size_t size)
{
    snprintf(out, size, "POLYD_%s_%s", row->section, row->key);
    for (char *p = out; *p; p++)
        *p = (char)toupper((unsigned char)*p);
}

/* Variables with our prefix that are no setting. */
static bool env_foreign(const char *name)
{
    return strcmp(name, "POLYD_CONFIG") == 0 || strcmp(name, "POLYD_TOKEN") == 0 ||
           strncmp(name, "POLYD_TEST_", 11) == 0 || strncmp(name, "POLYD_SELFTEST", 14) == 0;
}

static void read_env_one(struct load *l, const char *name, const char *value)
{
    char names[MAX_ROWS][80];
    const char *list[MAX_ROWS];
    char lower[CONFIG_ROOT_NAME + 2], section[32];
    const char *near;
    bool ours = false;

    snprintf(l->origin, sizeof l->origin, "%s", name);
    if (strncmp(name, "POLYD_DATA_", 11) == 0) {
        snprintf(lower, sizeof lower, "%.*s", CONFIG_ROOT_NAME + 1, name + 11); /* too long stays too long */
        for (char *p = lower; *p; p++)
            *p = (char)tolower((unsigned char)*p);
        set_root(l, lower, value);
        return;
    }
    for (size_t i = 0; i < config_row_count; i++) {
        env_name(&config_rows[i], names[i], sizeof names[i]);
        list[i] = names[i];
        if (strcmp(name, names[i]) == 0) {
            set_value(l, i, value);
            return;
        }
        snprintf(section, sizeof section, "%.*s", (int)(6 + strlen(config_rows[i].section) + 1), names[i]);
        ours = ours || strncmp(name, section, strlen(section)) == 0;
    }
    near = pd_nearest(name, list, config_row_count, NULL);
    if (ours)
        error_at(l, "unknown setting%s%s%s", near ? "; did you mean '" : "", near ? near : "",
                 near ? "'?" : "");
    else if (near) /* the rest may be meant for a worker or a test */
        warning_at(l, "is no setting; did you mean '%s'?", near);
}

static void read_env(struct load *l, const char *const *env)
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

/* ---- Flags ---- */

static const struct {
    const char *name;
    enum config_action action;
    const char *meaning;
} actions[] = {
    {"help", CONFIG_ACTION_HELP, "print this and leave"},
    {"version", CONFIG_ACTION_VERSION, "print the version and leave"},
    {"check-config", CONFIG_ACTION_CHECK, "name everything that is wrong with the configuration and leave"},
    {"sample-config", CONFIG_ACTION_SAMPLE, "print a file with every setting at its default and leave"},
};
#define ACTION_COUNT (sizeof actions / sizeof *actions)

static void flag_unknown(struct load *l, const char *name)
{
    const char *list[2 * MAX_ROWS + 8];
    char dotted[MAX_ROWS][64], near[96];
    size_t n = 0;

    for (size_t i = 0; i < config_row_count; i++) {
        snprintf(dotted[i], sizeof dotted[i], "%s.%s", config_rows[i].section, config_rows[i].key);
        list[n++] = dotted[i];
        if (config_rows[i].flag)
            list[n++] = config_rows[i].flag;
    }
    for (size_t i = 0; i < ACTION_COUNT; i++)
        list[n++] = actions[i].name;
    list[n++] = "config";
    list[n++] = "data";
    error_at(l, "unknown flag%s", pd_did_you_mean(near, sizeof near, name, list, n));
}

/* --data NAME=PATH */
static void flag_data(struct load *l, const char *value)
{
    const char *eq = strchr(value, '=');
    char name[CONFIG_ROOT_NAME + 2];

    if (!eq) {
        error_at(l, "needs NAME=PATH, not '%s'", value);
        return;
    }
    snprintf(name, sizeof name, "%.*s",
             (int)(eq - value < CONFIG_ROOT_NAME + 1 ? eq - value : CONFIG_ROOT_NAME + 1), value);
    set_root(l, name, eq + 1);
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
        i = row_find(section, dot + 1);
    if (strcmp(name, "data") == 0) {
        flag_data(l, value);
    } else if (strcmp(section, "data") == 0) {
        set_root(l, dot + 1, value);
    } else {
        set_value(l, i, value);
    }
}

/* Whether the flag takes a value. */
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
    return row_find(section, dot + 1) < config_row_count;
}

/* Goes through the flags. `apply` false: only actions, --config and where the words begin are taken,
 * since those decide what else is read. */
static void read_flags(struct load *l, int argc, const char *const *argv, bool apply, const char **ret_file)
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
        while (k < ACTION_COUNT && strcmp(actions[k].name, word) != 0)
            k++;
        if (k < ACTION_COUNT && argv[i][1] == '-') {
            if (eq && apply)
                error_at(l, "takes no value");
            l->c->action = actions[k].action;
            continue;
        }
        if (argv[i][1] != '-' || (strcmp(word, "config") != 0 && !flag_known(word))) {
            if (apply)
                flag_unknown(l, word);
            continue;
        }
        value = eq ? eq + 1 : i + 1 < argc ? argv[++i] : NULL;
        if (strcmp(word, "config") == 0) {
            if (value && *value)
                *ret_file = value;
            else if (apply)
                error_at(l, "needs a file");
        } else if (apply && value) {
            flag_set(l, word, value);
        } else if (apply) {
            error_at(l, "needs a value");
        }
    }
    if (apply) {
        l->c->args = argv + (i < argc ? i : argc);
        l->c->arg_count = (size_t)(i < argc ? argc - i : 0);
    }
}

/* ---- Defaults ---- */

static bool readable(const char *path)
{
    return access(path, R_OK) == 0;
}

/* $var/rest, or ~/home_rest if the variable is unset; false without either. */
static bool user_path(const char *const *env, const char *var, const char *rest, const char *home_rest,
                      char *out, size_t size)
{
    const char *base = env_get(env, var), *home = env_get(env, "HOME");

    /* The XDG rules: a relative path there is to be ignored. */
    if (base && base[0] == '/')
        return (size_t)snprintf(out, size, "%s/%s", base, rest) < size;
    if (home && home[0] == '/')
        return (size_t)snprintf(out, size, "%s/%s", home, home_rest) < size;
    return false;
}

/* Which file to read; NULL: none. `found` holds PATH_MAX bytes. */
static const char *choose_file(const char *flag, const char *const *env, char *found)
{
    const char *folder = env_get(env, "CONFIGURATION_DIRECTORY");

    if (flag)
        return flag;
    if (env_get(env, "POLYD_CONFIG"))
        return env_get(env, "POLYD_CONFIG");
    if (folder && (size_t)snprintf(found, PATH_MAX, "%s/polyd.conf", folder) < PATH_MAX && readable(found))
        return found;
    strcpy(found, "/etc/polyd/polyd.conf");
    if (readable(found))
        return found;
    if (user_path(env, "XDG_CONFIG_HOME", "polyd/polyd.conf", ".config/polyd/polyd.conf", found, PATH_MAX) &&
        readable(found))
        return found;
    return NULL;
}

static void default_state_dir(struct load *l, const char *const *env)
{
    char path[PATH_MAX];
    const char *dir = env_get(env, "STATE_DIRECTORY");
    size_t i = row_find("state", "dir");

    snprintf(l->origin, sizeof l->origin, "default");
    if (dir) /* systemd lists several with colons; ours is the first */
        snprintf(path, sizeof path, "%.*s", (int)strcspn(dir, ":"), dir);
    else if (geteuid() == 0 && env_get(env, "INVOCATION_ID"))
        strcpy(path, "/var/lib/polyd");
    else if (!user_path(env, "XDG_STATE_HOME", "polyd", ".local/state/polyd", path, sizeof path)) {
        error_at(l, "state.dir: neither XDG_STATE_HOME nor HOME is set; name it with --state-dir");
        return;
    }
    set_value(l, i, path);
}

static void default_worker(struct load *l)
{
    static const char *const places[] = {"polyd-worker", "../libexec/polyd/polyd-worker",
                                         "../libexec/polyd-worker"};
    char self[PATH_MAX], path[PATH_MAX + 64];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    char *slash;

    self[n > 0 ? n : 0] = '\0';
    slash = strrchr(self, '/');
    if (slash)
        *slash = '\0';
    snprintf(l->origin, sizeof l->origin, "default");
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(path, sizeof path, "%s/%s", self, places[i]);
        if (access(path, X_OK) == 0)
            break;
        if (i + 1 == sizeof places / sizeof *places) {
            snprintf(path, sizeof path, "%s/%s", self, places[0]);
            warning_at(l, "worker.path: no polyd-worker beside %s", self);
        }
    }
    set_value(l, row_find("worker", "path"), path);
}

static void set_defaults(struct load *l)
{
    l->source = CONFIG_SOURCE_DEFAULT;
    snprintf(l->origin, sizeof l->origin, "default");
    for (size_t i = 0; i < config_row_count; i++) {
        if (config_rows[i].def)
            set_value(l, i, config_rows[i].def);
        else
            l->p->settings[i] = (struct setting){"", CONFIG_SOURCE_DEFAULT, "default", 0};
    }
}

static int64_t cores(void)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    return sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
}

/* What is computed once all layers have spoken. */
static void finish(struct load *l, const char *const *env)
{
    struct config *c = l->c;

    l->source = CONFIG_SOURCE_DEFAULT;
    if (!c->state.dir)
        default_state_dir(l, env);
    if (!c->worker.path)
        default_worker(l);
    if (!c->devices.threads_per_slot) {
        struct setting *s = &l->p->settings[row_find("devices", "threads_per_slot")];
        char text[32];
        c->devices.threads_per_slot = cores() / c->devices.cpu_slots > 1 ? cores() / c->devices.cpu_slots : 1;
        if (c->devices.threads_per_slot > 256)
            c->devices.threads_per_slot = 256;
        snprintf(text, sizeof text, "%lld", (long long)c->devices.threads_per_slot);
        s->value = keep(l, text);
    }
    if (strncmp(c->server.listen, "127.", 4) != 0 && strcmp(c->server.listen, "::1") != 0) {
        snprintf(l->origin, sizeof l->origin, "%s", l->p->settings[row_find("server", "listen")].origin);
        warning_at(l, "server.listen is not a loopback address: whoever reaches it can submit jobs");
    }
    c->data.roots = l->p->roots;
    c->data.names = l->p->names;
}

/* ---- Public ---- */

static struct config *config_new(void)
{
    struct config *c = calloc(1, sizeof *c);

    if (!c)
        return NULL;
    c->owner = calloc(1, sizeof *c->owner);
    if (c->owner)
        c->owner->arena = pd_arena_new();
    if (!c->owner || !c->owner->arena)
        return config_free(c);
    return c;
}

struct config *config_free(struct config *c)
{
    if (c) {
        if (c->owner)
            pd_arena_free(c->owner->arena);
        free(c->owner);
        free(c);
    }
    return NULL;
}

enum pd_err config_load(int argc, const char *const *argv, const char *const *env, struct config **ret_config,
                        struct config_report *report)
{
    static const char *const no_args[] = {NULL};
    struct load *l = calloc(1, sizeof *l);
    const char *file = NULL;
    char found[PATH_MAX];
    enum pd_err err = PD_ERR_NOMEM;

    _Static_assert(MAX_ROWS >= 32, "room for every row");
    if (!l)
        return PD_ERR_NOMEM;
    l->c = config_new();
    if (!l->c)
        goto out;
    l->p = l->c->owner;
    l->report = report;
    l->c->args = no_args;
    set_defaults(l);
    read_flags(l, argc, argv, false, &file);
    if (l->c->action == CONFIG_ACTION_RUN || l->c->action == CONFIG_ACTION_CHECK) {
        file = choose_file(file, env, found);
        if (file)
            read_file(l, file);
        read_env(l, env);
        read_flags(l, argc, argv, true, &file);
        finish(l, env);
    }
    if (l->nomem || report->failed)
        goto out;
    err = report->error_count ? PD_ERR_INVALID : PD_OK;
    if (err == PD_OK) {
        *ret_config = l->c;
        l->c = NULL; /* moved to the caller */
    }
out:
    config_free(l->c);
    free(l);
    return err;
}

size_t config_setting_count(const struct config *c)
{
    return config_row_count + c->data.count;
}

struct config_setting config_setting_at(const struct config *c, size_t i)
{
    const struct setting *s;

    if (i < config_row_count) {
        s = &c->owner->settings[i];
        return (struct config_setting){
            config_rows[i].section, config_rows[i].key, s->value, s->source, s->origin,
            config_rows[i].meaning};
    }
    s = &c->owner->root_settings[i - config_row_count];
    return (struct config_setting){
        "data", c->owner->names[i - config_row_count], s->value, s->source, s->origin, "data root"};
}

const char *config_source_name(enum config_source s)
{
    static const char *const names[] = {"default", "file", "environment", "flag"};

    return (unsigned)s < sizeof names / sizeof *names ? names[s] : NULL;
}

const char *config_root_path(const struct config *c, const char *name)
{
    for (size_t i = 0; i < c->data.count; i++) {
        if (strcmp(c->data.roots[i].name, name) == 0)
            return c->data.roots[i].path;
    }
    return NULL;
}

static const char *default_text(const struct config_row *row)
{
    return row->def_text ? row->def_text : *row->def ? row->def : "none";
}

void config_help(struct pd_buf *out)
{
    const char *section = "";
    char name[80];

    pd_buf_str(
        out,
        "polyd: trains and serves transformers; see /api/v1 and the dashboard\n\n"
        "  polyd [flags]                   run the daemon\n"
        "  polyd [flags] fields            print every field of a job document\n"
        "  polyd [flags] verify [quick]    check the state directory, also while the daemon runs\n"
        "  polyd [flags] routes            print every route of the API\n\n"
        "A value comes from a flag, else from the environment, else from the file, else it is the default.\n"
        "The file is --config, else $POLYD_CONFIG, else /etc/polyd/polyd.conf (as a service\n"
        "$CONFIGURATION_DIRECTORY/polyd.conf), else ~/.config/polyd/polyd.conf.\n\n"
        "  --config FILE\n      the file to read\n"
        "  --data NAME=PATH, --data.NAME=PATH, POLYD_DATA_NAME\n"
        "      a data root: jobs read only below these folders, as NAME/...; may be repeated\n");
    for (size_t i = 0; i < ACTION_COUNT; i++)
        pd_buf_printf(out, "  --%s%s\n      %s\n", actions[i].name, i ? "" : ", -h", actions[i].meaning);
    for (size_t i = 0; i < config_row_count; i++) {
        const struct config_row *row = &config_rows[i];
        if (strcmp(section, row->section) != 0)
            pd_buf_printf(out, "\n[%s]\n", row->section);
        section = row->section;
        env_name(row, name, sizeof name);
        pd_buf_str(out, "  ");
        if (row->flag)
            pd_buf_printf(out, "--%s %s, ", row->flag, row->arg);
        pd_buf_printf(out, "--%s.%s=%s, %s\n      %s", row->section, row->key, row->arg, name, row->meaning);
        if (row->type == CONFIG_T_INT)
            pd_buf_printf(out, " (%lld to %lld)", (long long)row->min, (long long)row->max);
        pd_buf_printf(out, "\n      default: %s\n", default_text(row));
    }
}

void config_sample(struct pd_buf *out)
{
    const char *section = "";

    pd_buf_str(
        out,
        "# polyd.conf: settings of polyd, each at its default. Made by `polyd --sample-config`; a test "
        "keeps\n"
        "# it true. The environment (POLYD_SERVER_PORT) and flags (--server.port) win over this file.\n\n"
        "[data]\n"
        "# Folders that jobs may read, as NAME = PATH: data.path in a job begins with such a name.\n"
        "#mnist = /srv/data/mnist\n"
        "#corpora = /srv/data/corpora\n");
    for (size_t i = 0; i < config_row_count; i++) {
        const struct config_row *row = &config_rows[i];
        if (strcmp(section, row->section) != 0)
            pd_buf_printf(out, "\n[%s]\n", row->section);
        section = row->section;
        pd_buf_printf(out, "# %s\n", row->meaning);
        if (row->def)
            pd_buf_printf(out, "#%s =%s%s\n", row->key, *row->def ? " " : "", row->def);
        else
            pd_buf_printf(out, "# (default: %s)\n#%s =\n", row->def_text, row->key);
    }
}

void config_fuzz(const uint8_t *bytes, size_t len)
{
    struct config_report report;
    struct load *l = calloc(1, sizeof *l);
    char *text = malloc(len + 1);

    config_report_init(&report);
    if (l && text) {
        l->c = config_new();
        if (l->c) {
            l->p = l->c->owner;
            l->report = &report;
            l->file = "fuzz";
            memcpy(text, bytes, len);
            text[len] = '\0';
            set_defaults(l);
            read_text(l, text);
        }
        config_free(l->c);
    }
    config_report_done(&report);
    free(text);
    free(l);
}
