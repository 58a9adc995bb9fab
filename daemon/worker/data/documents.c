/* daemon/worker/data/documents.c: a folder of text files, a document each, as one text for each part.
 *
 * Files are read in the byte order of their paths below the folder, whatever order the file system lists them in.
 * OpenWebText's preparation in nanoGPT ends each document with <|endoftext|>, and gpt2_bpe does so here (ids.c). The
 * other tokenizers have no such token: for them a line feed is added to each document. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/worker/data/path.h"
#include "daemon/worker/data/set.h"
#include "kernels/base/buf.h"
#include "kernels/base/text.h"

#define DEPTH_MAX 8 /* folders below the set's own */

static const char *const part_folders[DATA_SPLITS][4] = {{"train"}, {"validation", "valid", "val"}, {"test"}};

/* Paths of files below the set's folder, each with its NUL. */
struct paths {
    struct pd_buf text;
    size_t *at; /* where each begins */
    size_t count, capacity;
};

static void paths_done(struct paths *p)
{
    pd_buf_done(&p->text);
    free(p->at);
}

bool data_document_named(const char *name)
{
    return name[0] != '.' && (pd_text_ends(name, ".txt") || pd_text_ends(name, ".txt.gz"));
}

static enum pd_err add(struct paths *p, const char *path, struct pd_why *why)
{
    if (p->count >= DATA_DOCUMENTS_MAX)
        return pd_fail(why, PD_ERR_LIMIT, "more than %d files", DATA_DOCUMENTS_MAX);
    if (p->count == p->capacity) {
        size_t capacity = p->capacity ? 2 * p->capacity : 1024;
        size_t *more = realloc(p->at, capacity * sizeof *more);

        if (!more)
            return pd_fail(why, PD_ERR_NOMEM, "no memory for a list of %zu files", capacity);
        p->at = more;
        p->capacity = capacity;
    }
    p->at[p->count++] = p->text.len;
    pd_buf_append(&p->text, path, strlen(path) + 1);
    return pd_buf_err(&p->text) == PD_OK ? PD_OK
                                         : pd_fail(why, PD_ERR_NOMEM, "no memory for a list of files");
}

static void count_unread(struct data_set *set, const char *path)
{
    if (!set->unread_files++)
        snprintf(set->unread_file, sizeof set->unread_file, "%.255s", path);
}

/* A link counts as what it leads to; whether that lies below the data root is checked when it is opened. */
static int type_of(int dir, const struct dirent *e)
{
    struct stat s;

    if (e->d_type != DT_UNKNOWN && e->d_type != DT_LNK)
        return e->d_type;
    if (fstatat(dir, e->d_name, &s, 0) != 0)
        return DT_UNKNOWN;
    return S_ISDIR(s.st_mode) ? DT_DIR : S_ISREG(s.st_mode) ? DT_REG : DT_UNKNOWN;
}

static enum pd_err fail_open(const char *path, struct pd_why *why)
{
    if (errno == EXDEV || errno == ELOOP)
        return pd_fail(why, PD_ERR_DENIED, "'%s' leads outside its folder", path);
    return pd_fail_errno(why, errno, "cannot open '%s'", path);
}

static enum pd_err list(struct data_set *set, int dir, const char *path, int depth, struct paths *p,
                        struct pd_why *why)
{
    int fd = data_open_beneath(dir, path, O_RDONLY | O_DIRECTORY);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *e;
    enum pd_err err = PD_OK;

    if (!d) {
        err = fail_open(path, why);
        if (fd >= 0)
            close(fd);
        return err;
    }
    while (err == PD_OK && (e = readdir(d)) != NULL) {
        char inner[PATH_MAX];
        int type = e->d_name[0] == '.' ? DT_UNKNOWN : type_of(dirfd(d), e);

        if (type != DT_DIR && type != DT_REG)
            continue;
        if ((size_t)snprintf(inner, sizeof inner, "%s%s%s", path, *path ? "/" : "", e->d_name) >=
            sizeof inner)
            err = pd_fail(why, PD_ERR_LIMIT, "a path has more than %d bytes", PATH_MAX);
        else if (type == DT_DIR && depth == DEPTH_MAX)
            err = pd_fail(why, PD_ERR_LIMIT, "'%s' is nested more than %d folders deep", inner, DEPTH_MAX);
        else if (type == DT_DIR)
            err = list(set, dir, inner, depth + 1, p, why);
        else if (data_document_named(e->d_name))
            err = add(p, inner, why);
        else
            count_unread(set, inner);
        if (err == PD_OK)
            err = data_in_time(set->options.until_us, why);
    }
    closedir(d);
    return err;
}

static int by_path(const void *a, const void *b, void *text)
{
    return strcmp((const char *)text + *(const size_t *)a, (const char *)text + *(const size_t *)b);
}

static enum pd_err note_end(struct data_ends *d, int64_t at, struct pd_why *why)
{
    if (d->count == d->capacity) {
        size_t capacity = d->capacity ? 2 * d->capacity : 1024;
        int64_t *more = realloc(d->at, capacity * sizeof *more);

        if (!more)
            return pd_fail(why, PD_ERR_NOMEM, "no memory for the ends of %zu documents", capacity);
        d->at = more;
        d->capacity = capacity;
    }
    d->at[d->count++] = at;
    return PD_OK;
}

/* Appends one document and, for a tokenizer without an end token, a line feed. */
static enum pd_err read_document(struct data_set *set, int dir, const char *path, bool size_only, int64_t *at,
                                 struct pd_why *why)
{
    int fd = data_open_beneath(dir, path, O_RDONLY | O_NONBLOCK);
    enum pd_err err = fd < 0 ? fail_open(path, why) : data_text_append(set, fd, path, size_only, at, why);

    if (err == PD_OK && set->options.tokenizer != DATA_TOKENIZER_GPT2_BPE) {
        if (!size_only)
            err = data_text_reserve(set, (size_t)*at + 1, path, why);
        if (err == PD_OK && !size_only)
            set->text[*at] = '\n';
        ++*at;
    }
    return err == PD_OK ? note_end(&set->document, *at, why) : err;
}

/* All documents below `folder`, "" for the set's own. */
static enum pd_err read_folder(struct data_set *set, int dir, const char *folder, bool size_only, int64_t *at,
                               struct pd_why *why)
{
    struct paths p = {.count = 0};
    enum pd_err err;

    pd_buf_init(&p.text, 0);
    err = list(set, dir, folder, 0, &p, why);
    if (err == PD_OK && p.count)
        qsort_r(p.at, p.count, sizeof *p.at, by_path, p.text.data);
    for (size_t i = 0; i < p.count && err == PD_OK; i++) {
        err = read_document(set, dir, (const char *)p.text.data + p.at[i], size_only, at, why);
        if (err == PD_OK)
            err = data_in_time(set->options.until_us, why);
    }
    paths_done(&p);
    return err;
}

/* The folder of a part; NULL: it has none. */
static const char *folder_of(int dir, int part)
{
    for (int i = 0; i < 4 && part_folders[part][i]; i++) {
        int fd = data_open_beneath(dir, part_folders[part][i], O_PATH | O_DIRECTORY);

        if (fd >= 0) {
            close(fd);
            return part_folders[part][i];
        }
    }
    return NULL;
}

static enum pd_err read_parts(struct data_set *set, const struct data_options *o, int dir,
                              const char *const folder[DATA_SPLITS], bool size_only,
                              int64_t given[DATA_SPLITS], struct pd_why *why)
{
    const enum data_split needed = o->tokens ? DATA_TEST : DATA_TRAIN;
    int64_t at = 0;
    enum pd_err err = PD_OK;

    if (!folder[needed])
        return pd_fail(why, PD_ERR_NOT_FOUND, "'%s' has no folder '%s'", o->path, part_folders[needed][0]);
    for (int part = 0; part < DATA_SPLITS && err == PD_OK; part++) {
        const int64_t before = at;

        if (!folder[part] || !data_text_wants(o, (enum data_split)part))
            continue;
        err = read_folder(set, dir, folder[part], size_only, &at, why);
        given[part] = at - before;
        if (err == PD_OK && !given[part])
            err = pd_fail(why, PD_ERR_NOT_FOUND, "'%s/%s' has no text: no file name ends in .txt or .txt.gz",
                          o->path, folder[part]);
    }
    return err;
}

enum pd_err data_documents_read(struct data_set *set, const struct data_options *o, bool size_only,
                                int64_t given[DATA_SPLITS], struct pd_why *why)
{
    const char *folder[DATA_SPLITS] = {NULL};
    const enum data_split whole = o->tokens ? DATA_TEST : DATA_TRAIN;
    bool parts = false;
    int dir = -1;
    enum pd_err err = data_path_open(o->roots, o->root_count, o->path, true, &dir, why);

    if (err != PD_OK)
        return err;
    for (int part = 0; part < DATA_SPLITS; part++) {
        folder[part] = folder_of(dir, part);
        parts = parts || folder[part];
    }
    if (parts) {
        err = read_parts(set, o, dir, folder, size_only, given, why);
    } else {
        err = read_folder(set, dir, "", size_only, &given[whole], why);
        if (err == PD_OK && !given[whole])
            err = pd_fail(why, PD_ERR_NOT_FOUND, "'%s' has no text: no file name ends in .txt or .txt.gz",
                          o->path);
    }
    close(dir);
    return err;
}
