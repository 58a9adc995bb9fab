/* daemon/worker/data/shards.c: see shards.h. */
#include "daemon/worker/data/shards.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/worker/data/data.h"

#define INDEX_MAX ((size_t)16 << 20)

/* ---- the index ---- */

struct entry {
    const char *name, *file;
};

struct data_shards_index {
    json_t *json; /* owns the texts */
    struct entry *entries;
    size_t count;
};

/* A name in the folder itself, and none that is hidden. */
static bool is_file_name(const char *file)
{
    return file && file[0] && file[0] != '.' && !strchr(file, '/') && strlen(file) <= 255;
}

enum pd_err data_shards_index_parse(const void *json, size_t len, struct data_shards_index **ret,
                                    struct pd_why *why)
{
    struct data_shards_index *x = calloc(1, sizeof *x);
    json_error_t error;
    json_t *map, *value;
    const char *name;
    enum pd_err err = PD_OK;

    if (!x)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the index");
    x->json = json_loadb(json, len, JSON_REJECT_DUPLICATES, &error);
    map = json_object_get(x->json, "weight_map");
    if (!x->json)
        err = pd_fail(why, PD_ERR_CORRUPT, "index: %.200s", error.text);
    else if (!json_is_object(map) || !json_object_size(map))
        err = pd_fail(why, PD_ERR_CORRUPT, "index: weight_map must be an object from tensor names to files");
    else if (json_object_size(map) > DATA_ST_TENSOR_LIMIT)
        err = pd_fail(why, PD_ERR_LIMIT, "index: more than %d tensors", DATA_ST_TENSOR_LIMIT);
    else if (!(x->entries = calloc(json_object_size(map), sizeof *x->entries)))
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for the index");
    if (err == PD_OK)
        json_object_foreach(map, name, value)
        {
            if (!is_file_name(json_string_value(value))) {
                err = pd_fail(why, PD_ERR_CORRUPT, "index: '%.80s' is in no file of this folder", name);
                break;
            }
            x->entries[x->count++] = (struct entry){name, json_string_value(value)};
        }
    if (err == PD_OK)
        *ret = x;
    else
        data_shards_index_free(x);
    return err;
}

struct data_shards_index *data_shards_index_free(struct data_shards_index *x)
{
    if (x) {
        json_decref(x->json);
        free(x->entries);
        free(x);
    }
    return NULL;
}

size_t data_shards_index_count(const struct data_shards_index *x)
{
    return x->count;
}

const char *data_shards_index_at(const struct data_shards_index *x, size_t i, const char **ret_file)
{
    *ret_file = x->entries[i].file;
    return x->entries[i].name;
}

/* ---- files ---- */

struct data_shards {
    struct data_st *st[DATA_SHARDS_MAX];
    char *name[DATA_SHARDS_MAX];
    size_t files;
    const struct data_st_tensor **tensors; /* file by file */
    size_t count;
    const struct data_st_tensor **by_name;
};

struct data_shards *data_shards_free(struct data_shards *s)
{
    if (s) {
        for (size_t i = 0; i < s->files; i++) {
            data_st_free(s->st[i]);
            free(s->name[i]);
        }
        free(s->tensors);
        free(s->by_name);
        free(s);
    }
    return NULL;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct data_st_tensor *const *)a)->name,
                  (*(const struct data_st_tensor *const *)b)->name);
}

static enum pd_err list_tensors(struct data_shards *s, struct pd_why *why)
{
    size_t count = 0;

    for (size_t i = 0; i < s->files; i++)
        count += data_st_count(s->st[i]);
    s->tensors = calloc(count + 1, sizeof(const struct data_st_tensor *));
    s->by_name = calloc(count + 1, sizeof(const struct data_st_tensor *));
    if (!s->tensors || !s->by_name)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for %zu tensors", count);
    for (size_t i = 0; i < s->files; i++)
        for (size_t k = 0; k < data_st_count(s->st[i]); k++)
            s->by_name[s->count] = s->tensors[s->count] = data_st_at(s->st[i], k), s->count++;
    qsort(s->by_name, s->count, sizeof(const struct data_st_tensor *), by_name);
    for (size_t i = 1; i < s->count; i++)
        if (!strcmp(s->by_name[i]->name, s->by_name[i - 1]->name))
            return pd_fail(why, PD_ERR_CORRUPT, "'%.80s' is in two files", s->by_name[i]->name);
    return PD_OK;
}

static enum pd_err add_file(struct data_shards *s, int fd, const char *name, struct pd_why *why)
{
    enum pd_err err;

    if (s->files == DATA_SHARDS_MAX)
        return pd_fail(why, PD_ERR_LIMIT, "more than %d files", DATA_SHARDS_MAX);
    err = data_st_open_fd(fd, name, &s->st[s->files], why);
    if (err != PD_OK)
        return err;
    s->name[s->files++] = strdup(name);
    return s->name[s->files - 1] ? PD_OK : pd_fail(why, PD_ERR_NOMEM, "no memory for '%s'", name);
}

enum pd_err data_shards_open_fd(int fd, const char *name, struct data_shards **ret, struct pd_why *why)
{
    struct data_shards *s = calloc(1, sizeof *s);
    enum pd_err err = s ? add_file(s, fd, name, why) : pd_fail(why, PD_ERR_NOMEM, "no memory for '%s'", name);

    if (err == PD_OK)
        err = list_tensors(s, why);
    if (err == PD_OK)
        *ret = s;
    else
        data_shards_free(s);
    return err;
}

enum pd_err data_shards_open(const char *path, struct data_shards **ret, struct pd_why *why)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    enum pd_err err = fd < 0 ? pd_fail_errno(why, errno, "cannot open '%s'", path)
                             : data_shards_open_fd(fd, path, ret, why);

    if (fd >= 0)
        close(fd);
    return err;
}

/* A folder below a data root. */
struct folder {
    const struct data_root *roots;
    size_t root_count;
    const char *path;
};

static enum pd_err open_at(struct data_shards *s, const struct folder *f, const char *name,
                           struct pd_why *why)
{
    int fd = -1;
    enum pd_err err = data_path_open_in(f->roots, f->root_count, f->path, name, &fd, why);

    if (err == PD_OK)
        err = add_file(s, fd, name, why);
    if (fd >= 0)
        close(fd);
    return err;
}

/* The file of that name; s->files: it is not open. */
static size_t file_of(const struct data_shards *s, const char *name)
{
    size_t i = 0;

    while (i < s->files && strcmp(s->name[i], name) != 0)
        i++;
    return i;
}

static bool is_of(const struct data_st *st, const struct data_st_tensor *t)
{
    size_t len;
    const char *bytes = data_st_bytes(st, &len), *at = t ? t->data : NULL;

    return at && at >= bytes && at <= bytes + len;
}

static enum pd_err open_indexed(struct data_shards *s, const struct folder *f,
                                const struct data_shards_index *x, struct pd_why *why)
{
    enum pd_err err = PD_OK;

    for (size_t i = 0; i < x->count && err == PD_OK; i++)
        if (file_of(s, x->entries[i].file) == s->files)
            err = open_at(s, f, x->entries[i].file, why);
    if (err == PD_OK)
        err = list_tensors(s, why);
    for (size_t i = 0; i < x->count && err == PD_OK; i++)
        if (!is_of(s->st[file_of(s, x->entries[i].file)], data_shards_find(s, x->entries[i].name)))
            err = pd_fail(why, PD_ERR_CORRUPT, "'%.80s' is not in '%.80s', as the index says",
                          x->entries[i].name, x->entries[i].file);
    if (err == PD_OK && s->count != x->count)
        err = pd_fail(why, PD_ERR_CORRUPT, "the files have %zu tensors, the index %zu", s->count, x->count);
    return err;
}

/* PD_ERR_NOT_FOUND: the folder has no index. */
static enum pd_err read_index(const struct folder *f, struct pd_buf *to, struct pd_why *why)
{
    int fd = -1;
    char piece[16384];
    ssize_t n = 0;
    enum pd_err err = data_path_open_in(f->roots, f->root_count, f->path, DATA_SHARDS_INDEX, &fd, why);

    while (err == PD_OK && (n = read(fd, piece, sizeof piece)) > 0)
        pd_buf_append(to, piece, (size_t)n);
    if (err == PD_OK && n < 0)
        err = pd_fail_errno(why, errno, "cannot read '%s'", DATA_SHARDS_INDEX);
    if (err == PD_OK && pd_buf_err(to) != PD_OK)
        err = pd_fail(why, pd_buf_err(to), "'%s' is too large", DATA_SHARDS_INDEX);
    if (fd >= 0)
        close(fd);
    return err;
}

enum pd_err data_shards_open_dir(const struct data_root *roots, size_t root_count, const char *path,
                                 struct data_shards **ret, struct pd_why *why)
{
    const struct folder f = {roots, root_count, path};
    struct data_shards *s = calloc(1, sizeof *s);
    struct data_shards_index *x = NULL;
    struct pd_buf json;
    enum pd_err err;

    if (!s)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the weights");
    pd_buf_init(&json, INDEX_MAX);
    err = read_index(&f, &json, why);
    if (err == PD_ERR_NOT_FOUND) {
        err = open_at(s, &f, DATA_SHARDS_SINGLE, why);
        if (err == PD_ERR_NOT_FOUND)
            err = pd_fail(why, PD_ERR_NOT_FOUND, "the folder has neither %s nor %s", DATA_SHARDS_SINGLE,
                          DATA_SHARDS_INDEX);
        if (err == PD_OK)
            err = list_tensors(s, why);
    } else if (err == PD_OK) {
        err = data_shards_index_parse(json.data ? json.data : "", json.len, &x, why);
        if (err == PD_OK)
            err = open_indexed(s, &f, x, why);
    }
    if (err == PD_OK) {
        *ret = s;
        s = NULL; /* moved to the caller */
    }
    pd_buf_done(&json);
    data_shards_index_free(x);
    data_shards_free(s);
    return err;
}

size_t data_shards_count(const struct data_shards *s)
{
    return s->count;
}

const struct data_st_tensor *data_shards_at(const struct data_shards *s, size_t i)
{
    return s->tensors[i];
}

const struct data_st_tensor *data_shards_find(const struct data_shards *s, const char *name)
{
    const struct data_st_tensor key = {.name = name}, *wanted = &key, **found;

    if (!s->count)
        return NULL;
    found = bsearch(&wanted, s->by_name, s->count, sizeof(const struct data_st_tensor *), by_name);
    return found ? *found : NULL;
}

const struct data_st *data_shards_first(const struct data_shards *s)
{
    return s->st[0];
}
