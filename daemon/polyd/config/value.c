/* Values and data roots: checked, copied and stored with their origin, whatever their layer. */
#include "daemon/polyd/config/load.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/nearest.h"

/* ---- Values ---- */

const char *load_copy(struct load *l, const char *text)
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
        return load_copy(l, path);
    if (!base || base[0] != '/') {
        if (!getcwd(here, sizeof here)) {
            load_error(l, "cannot find the working directory: %s", strerror(errno));
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
    out = b.data && !b.failed ? load_copy(l, b.data) : NULL;
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
            load_error(l, "%s.%s has more than %d entries", row->section, row->key, CONFIG_MAX_LIST);
            return false;
        }
        items[n++] = word;
    }
    *ret = (struct config_list){n, items};
    return true;
}

static void list_words(const struct config_row *row, struct pd_buf *b)
{
    for (unsigned i = 0; row->choices[i]; i++)
        pd_buf_printf(b, "%s%s", i ? ", " : "", row->choices[i]);
}

static bool parse_word(struct load *l, const struct config_row *row, const char *text, int64_t *ret)
{
    struct pd_buf b;
    char near[64];
    unsigned n = 0;

    for (unsigned i = 0; row->choices[i]; i++, n++) {
        if (strcmp(row->choices[i], text) != 0)
            continue;
        if (row->known_only && i >= row->known_only) {
            load_error(l, "%s.%s = %s is known but not available in this version", row->section, row->key,
                       text);
            return false;
        }
        *ret = row->values[i];
        return true;
    }
    pd_buf_init(&b, 0);
    list_words(row, &b);
    load_error(l, "%s.%s must be one of %s, not '%s'%s", row->section, row->key, b.data ? b.data : "", text,
               pd_did_you_mean(near, sizeof near, text, row->choices, n));
    pd_buf_done(&b);
    return false;
}

void load_value(struct load *l, size_t i, const char *text)
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
            load_error(l, "%s.%s must be a whole number, not '%s'", row->section, row->key, text);
            return;
        }
        if (v < row->min || v > row->max) {
            load_error(l, "%s.%s must be from %lld to %lld, not %lld", row->section, row->key,
                       (long long)row->min, (long long)row->max, (long long)v);
            return;
        }
        *(int64_t *)at = v;
        break;
    case CONFIG_T_CHOICE:
        if (!parse_word(l, row, text, at))
            return;
        break;
    case CONFIG_T_ADDRESS:
        if (inet_pton(AF_INET, text, bytes) != 1 && inet_pton(AF_INET6, text, bytes) != 1) {
            load_error(l, "%s.%s must be an address such as 127.0.0.1 or ::1, not '%s'", row->section,
                       row->key, text);
            return;
        }
        *(const char **)at = copy = load_copy(l, text);
        break;
    case CONFIG_T_PATH:
        if (!*text) {
            load_error(l, "%s.%s must not be empty", row->section, row->key);
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
    s->value = copy ? load_copy(l, copy) : NULL;
    s->source = l->source;
    s->origin = load_copy(l, l->origin);
    s->line = l->source == CONFIG_SOURCE_FILE ? l->line : 0;
}

static bool root_name_ok(const char *name)
{
    return *name && name[0] != '.' && strlen(name) <= CONFIG_ROOT_NAME &&
           name[strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")] == '\0';
}

void load_root(struct load *l, const char *name, const char *path)
{
    struct config_private *p = l->p;
    size_t i = 0;
    struct stat st;

    if (!root_name_ok(name)) {
        load_error(
            l, "a data root's name has 1 to %d of A-Za-z0-9._- and does not begin with a dot; '%s' does not",
            CONFIG_ROOT_NAME, name);
        return;
    }
    if (!*path) {
        load_error(l, "the data root '%s' needs a path", name);
        return;
    }
    while (i < l->c->data.count && strcmp(p->roots[i].name, name) != 0)
        i++;
    if (i == CONFIG_MAX_ROOTS) {
        load_error(l, "more than %d data roots", CONFIG_MAX_ROOTS);
        return;
    }
    if (i < l->c->data.count && l->source == CONFIG_SOURCE_FILE && p->root_settings[i].line) {
        load_error(l, "data.%s is set twice; first in line %d", name, p->root_settings[i].line);
        return;
    }
    path = absolute(l, path);
    name = load_copy(l, name);
    if (!path || !name)
        return;
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode))
        load_warning(l, "the data root '%s' is not a directory: %s", name, path);
    p->roots[i] = (struct config_root){name, path};
    p->names[i] = name;
    p->root_settings[i] = (struct setting){path, l->source, load_copy(l, l->origin),
                                           l->source == CONFIG_SOURCE_FILE ? l->line : 0};
    if (i == l->c->data.count)
        l->c->data.count++;
}

/* ---- Names ---- */

size_t load_row(const char *section, const char *key)
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
    const char *sections[CONFIG_MAX_ROWS], *keys[CONFIG_MAX_ROWS];
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
        load_error(l, "'%s' stands before the first [section]", key);
    else if (!known)
        load_error(l, "unknown section '%s'%s", section,
                   pd_did_you_mean(near, sizeof near, section, sections, n));
    else
        load_error(l, "unknown key '%s' in section '%s'%s", key, section,
                   pd_did_you_mean(near, sizeof near, key, keys, m));
}

void load_named(struct load *l, const char *section, const char *key, const char *value)
{
    size_t i = load_row(section, key);

    if (strcmp(section, "data") == 0) {
        load_root(l, key, value);
    } else if (i == config_row_count) {
        unknown(l, section, key);
    } else if (l->source == CONFIG_SOURCE_FILE && l->p->settings[i].line) {
        load_error(l, "%s.%s is set twice; first in line %d", section, key, l->p->settings[i].line);
    } else {
        load_value(l, i, value);
    }
}
