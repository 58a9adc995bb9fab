/* Which keys exist, and what somebody who misspelt one may have meant. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/spec/internal.h"

const struct spec_field *spec_field_find(const char *pointer)
{
    for (size_t i = 0; i < spec_field_count; i++) {
        if (strcmp(spec_fields[i].pointer, pointer) == 0)
            return &spec_fields[i];
    }
    return NULL;
}

bool spec_field_below(const char *pointer)
{
    size_t n = strlen(pointer);

    for (size_t i = 0; i < spec_field_count; i++) {
        if (strncmp(spec_fields[i].pointer, pointer, n) == 0 && spec_fields[i].pointer[n] == '/')
            return true;
    }
    return false;
}

#define MOST_SIBLINGS 64

/* The distinct keys right below `parent`, each NUL-terminated in `text`. */
static size_t siblings(const char *parent, char text[MOST_SIBLINGS][40], const char *names[MOST_SIBLINGS])
{
    size_t n = strlen(parent), count = 0;

    for (size_t i = 0; i < spec_field_count && count < MOST_SIBLINGS; i++) {
        const char *p = spec_fields[i].pointer;
        size_t k = 0;
        if (strncmp(p, parent, n) != 0 || p[n] != '/')
            continue;
        snprintf(text[count], sizeof text[count], "%.*s", (int)strcspn(p + n + 1, "/"), p + n + 1);
        while (k < count && strcmp(text[k], text[count]) != 0)
            k++;
        if (k == count) {
            names[count] = text[count];
            count++;
        }
    }
    return count;
}

/* A field with this last key, elsewhere; NULL if none. */
static const char *elsewhere(const char *key)
{
    for (size_t i = 0; i < spec_field_count; i++) {
        const char *last = strrchr(spec_fields[i].pointer, '/') + 1;
        if (strcmp(last, key) == 0)
            return spec_fields[i].pointer;
    }
    /* Or a section of that name: "optimizer" at the top belongs at /train/optimizer. */
    for (size_t i = 0; i < spec_field_count; i++) {
        const char *p = spec_fields[i].pointer, *at = p;
        size_t n = strlen(key);
        while ((at = strchr(at + 1, '/')) != NULL) {
            const char *start = at;
            while (start > p && start[-1] != '/')
                start--;
            if ((size_t)(at - start) == n && memcmp(start, key, n) == 0)
                return p;
        }
    }
    return NULL;
}

const char *spec_keys_unknown(char *out, size_t size, const char *parent, const char *key)
{
    char text[MOST_SIBLINGS][40];
    const char *names[MOST_SIBLINGS] = {NULL};
    size_t count = siblings(parent, text, names);
    unsigned distance = 3;
    const char *near = pd_nearest(key, names, count, &distance);
    const char *other = elsewhere(key);

    if (near && (distance == 1 || !other)) {
        snprintf(out, size, "unknown key; did you mean '%s'?", near);
    } else if (other) {
        /* Cut the pointer after the key, should the key be a section. */
        size_t n = strlen(key), len = strlen(other);
        const char *at = other;
        while ((at = strchr(at, '/')) != NULL) {
            if (strncmp(at + 1, key, n) == 0 && (at[1 + n] == '/' || at[1 + n] == '\0')) {
                len = (size_t)(at + 1 + n - other);
                break;
            }
            at++;
        }
        snprintf(out, size, "unknown key here; it belongs at %.*s", (int)len, other);
    } else {
        snprintf(out, size, "unknown key");
    }
    return out;
}

void spec_keys_check(struct spec_ctx *c, json_t *v, const char *pointer, const char *place)
{
    const char *key;
    json_t *child;
    char said[256];

    json_object_foreach(v, key, child)
    {
        struct pd_buf path, spot;
        const struct spec_field *f;

        pd_buf_init(&path, 0);
        pd_buf_init(&spot, 0);
        pd_buf_printf(&path, "%s/%s", pointer, key);
        pd_buf_str(&spot, place);
        spec_pointer_add(&spot, key);
        if (pd_buf_err(&path) != PD_OK || pd_buf_err(&spot) != PD_OK) {
            c->nomem = true;
        } else {
            /* A key with a slash must not pass for a path. */
            f = strchr(key, '/') ? NULL : spec_field_find(path.data);
            if (f) {
                if (f->type == SPEC_T_OBJECT && json_is_object(child))
                    spec_keys_check(c, child, path.data, spot.data);
            } else if (!strchr(key, '/') && spec_field_below(path.data)) {
                if (json_is_object(child))
                    spec_keys_check(c, child, path.data, spot.data);
                else
                    spec_report_error(c->report, spot.data, "must be an object, not %s",
                                      spec_json_kind(child));
            } else {
                spec_report_error(c->report, spot.data, "%s",
                                  spec_keys_unknown(said, sizeof said, pointer, key));
            }
        }
        pd_buf_done(&path);
        pd_buf_done(&spot);
    }
}
