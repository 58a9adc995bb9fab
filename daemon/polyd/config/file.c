/* The layer of the file. Only this source uses libinih. */
#include "daemon/polyd/config/load.h"

#include <ctype.h>
#include <ini.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/file.h"

/* Reports, line by line, what libinih would silently ignore or cut. */
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
            load_error(l, "a section needs a closing ]");
        else if ((const char *)memchr(line, ']', len) - line > CONFIG_ROOT_NAME)
            load_error(l, "the section's name is too long");
    } else {
        size_t name = 0;
        while (name < len && line[name] != '=' && line[name] != ':')
            name++;
        if (name == len)
            load_error(l, "expected key = value");
        else if (name > CONFIG_ROOT_NAME)
            load_error(l, "the key is too long");
        else if (name == 0)
            load_error(l, "expected key = value");
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
        load_error(l, "the line is longer than %d bytes", CONFIG_MAX_LINE);
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
    load_named(user, section, key, value ? value : "");
    return 1;
}

void load_text(struct load *l, const char *text)
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
        load_error(l, "line %d cannot be read", rc);
}

void load_file(struct load *l, const char *path)
{
    struct pd_buf text;
    struct pd_why why;
    char folder[PATH_MAX];
    char *slash;
    enum pd_err err;

    pd_buf_init(&text, 0);
    l->file = l->c->file = load_copy(l, path);
    snprintf(l->origin, sizeof l->origin, "%s", path);
    err = l->file ? pd_file_read(path, CONFIG_MAX_FILE, &text, &why) : PD_ERR_NOMEM;
    if (err == PD_ERR_NOMEM) {
        l->nomem = true;
    } else if (err != PD_OK) {
        load_error(l, "%s", why.text);
    } else if (text.len && memchr(text.data, '\0', text.len)) {
        load_error(l, "is not a text file");
    } else if (text.len) {
        snprintf(folder, sizeof folder, "%s", path);
        slash = strrchr(folder, '/');
        if (slash)
            *slash = '\0';
        l->base_dir = slash ? *folder ? folder : "/" : NULL;
        load_text(l, text.data);
        l->base_dir = NULL;
    }
    pd_buf_done(&text);
}
