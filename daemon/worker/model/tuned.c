#include "daemon/worker/model/tuned.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_NAME "tuned.records"
#define LINE_MOST 2048
#define RECORDS_MOST 65536
#define VALUE_MOST 256 /* bytes */

struct record {
    char *key;
    unsigned char value[VALUE_MOST];
    size_t size;
};

struct model_tuned {
    void (*log)(void *user, int level, const char *line);
    void *user;
    char folder[4096];              /* "": none */
    char path[4096];                /* "": no file */
    struct model_tuned_store store; /* recall NULL: none */
    struct pk_backend_info device;  /* sm 0: model_tuned_recall has not been called */
    size_t fresh;                   /* records measured by this process */
    struct record *record;
    size_t count, cap;
};

static const struct record *find(const struct model_tuned *t, const char *key)
{
    for (size_t i = 0; i < t->count; i++)
        if (!strcmp(t->record[i].key, key))
            return &t->record[i];
    return NULL;
}

/* False without memory, or where there are too many; an older record of the name stays. */
static bool add(struct model_tuned *t, const char *key, const void *value, size_t size)
{
    struct record *r;

    if (t->count == RECORDS_MOST || size > VALUE_MOST || find(t, key))
        return false;
    if (t->count == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 64;
        struct record *more = realloc(t->record, cap * sizeof *more);

        if (!more)
            return false;
        t->record = more;
        t->cap = cap;
    }
    r = &t->record[t->count];
    r->key = strdup(key);
    if (!r->key)
        return false;
    memcpy(r->value, value, size);
    r->size = size;
    t->count++;
    return true;
}

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* "key<TAB>hexadecimal value" */
static void read_line(struct model_tuned *t, char *line)
{
    unsigned char value[VALUE_MOST];
    char *tab = strchr(line, '\t');
    size_t n = 0;

    if (!tab || tab == line)
        return;
    *tab++ = '\0';
    for (; n < VALUE_MOST && digit(tab[2 * n]) >= 0 && digit(tab[2 * n + 1]) >= 0; n++)
        value[n] = (unsigned char)(digit(tab[2 * n]) << 4 | digit(tab[2 * n + 1]));
    if (n && tab[2 * n] == '\n') /* else it was cut off */
        (void)add(t, line, value, n);
}

enum pd_err model_tuned_new(const char *folder, const struct model_tuned_store *store,
                            void (*log)(void *user, int level, const char *line), void *user,
                            struct model_tuned **ret, struct pd_why *why)
{
    struct model_tuned *t = calloc(1, sizeof *t);
    char line[LINE_MOST];
    FILE *f;

    if (!t)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for records of measured choices");
    t->log = log;
    t->user = user;
    *ret = t;
    if (store)
        t->store = *store;
    if (folder && snprintf(t->folder, sizeof t->folder, "%s", folder) >= (int)sizeof t->folder)
        t->folder[0] = '\0';
    if (!folder || store)
        return PD_OK;
    if ((mkdir(folder, 0750) != 0 && errno != EEXIST) ||
        snprintf(t->path, sizeof t->path, "%s/" FILE_NAME, folder) >= (int)sizeof t->path) {
        t->path[0] = '\0'; /* a folder that cannot be made costs speed, not the run */
        return PD_OK;
    }
    f = fopen(t->path, "re");
    while (f && fgets(line, sizeof line, f))
        read_line(t, line);
    if (f)
        fclose(f);
    return PD_OK;
}

struct model_tuned *model_tuned_free(struct model_tuned *t)
{
    if (t) {
        for (size_t i = 0; i < t->count; i++)
            free(t->record[i].key);
        free(t->record);
        free(t);
    }
    return NULL;
}

static size_t get(void *user, const char *key, void *value, size_t size)
{
    const struct record *r = find(user, key);

    if (!r || r->size > size)
        return 0;
    memcpy(value, r->value, r->size);
    return r->size;
}

static void report_record(struct model_tuned *t, const char *key, const void *value, size_t size)
{
    if (!t->device.sm || !add(t, key, value, size))
        return;
    t->fresh++;
    t->store.report(t->store.ctx, &t->device, key, value, size);
}

/* One write of one line: those of other workers do not come between. */
static void put(void *user, const char *key, const void *value, size_t size)
{
    struct model_tuned *t = user;
    const unsigned char *byte = value;
    char line[LINE_MOST];
    size_t at = strlen(key);
    int fd;

    if (t->store.report) {
        report_record(t, key, value, size);
        return;
    }
    if (at + 2 * size + 3 > sizeof line || strpbrk(key, "\t\n") || !add(t, key, value, size))
        return;
    memcpy(line, key, at);
    t->fresh++;
    line[at++] = '\t';
    for (size_t i = 0; i < size; i++)
        at += (size_t)snprintf(line + at, 3, "%02x", byte[i]);
    line[at++] = '\n';
    fd = open(t->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
    if (fd < 0)
        return;
    if (write(fd, line, at) != (ssize_t)at && t->log)
        t->log(t->user, 4, "a measured choice could not be written down");
    close(fd);
}

static void log_line(void *user, int level, const char *text)
{
    struct model_tuned *t = user;

    if (t->log)
        t->log(t->user, level, text);
}

void model_tuned_lend(struct model_tuned *t, struct pk_host *host)
{
    bool kept = t->path[0] || t->store.recall;

    host->user = t;
    host->log = log_line;
    host->tuned_get = kept ? get : NULL;
    host->tuned_put = kept ? put : NULL;
    host->cache_dir = t->folder[0] ? t->folder : NULL;
}

/* A record from the store; a malformed one is ignored. */
static void take(void *to, const char *key, const void *value, size_t size)
{
    struct model_tuned *t = to;
    char line[128];

    if (key[0] && size && size <= VALUE_MOST)
        (void)add(t, key, value, size);
    else if (t->log) {
        snprintf(line, sizeof line, "a measured choice of %zu bytes was ignored: %.60s", size, key);
        t->log(t->user, 4, line);
    }
}

void model_tuned_recall(struct model_tuned *t, const struct pk_backend_info *device)
{
    if (!t->store.recall || !device->sm) /* a CPU measures nothing */
        return;
    t->device = *device;
    t->store.recall(t->store.ctx, device, take, t);
}

void model_tuned_count(const struct model_tuned *t, size_t *ret_known, size_t *ret_new)
{
    *ret_known = t->count - t->fresh;
    *ret_new = t->fresh;
}
