/* Walks the data roots, folder by folder, and writes what it finds. */
#include "daemon/worker/data/have.h"

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
#include "daemon/worker/data/tokens.h"
#include "daemon/job/job.h"
#include "kernels/base/json.h"
#include "kernels/base/clock.h"

#define PEEK_NAMES 64 /* read of a folder to see whether pictures lie in it */
#define DOCUMENTS_LEAST                                                                                      \
    8 /* a folder with at least this many text files is a data set; fewer are single texts */
#define BIT(form) (1u << (form))

struct name {
    char *text;
    int type; /* DT_DIR, DT_REG, DT_LNK, or DT_UNKNOWN: none of these */
};

struct names {
    struct name *item;
    size_t count;
};

struct have {
    const struct data_root *root;
    int dir; /* of the root */
    int64_t until_us;
    size_t entries, folders; /* so far, of all roots */
    bool over;               /* a limit of the whole is reached */
    bool truncated;          /* this root: something was left out */
    struct pd_buf *out;
};

/* ---- writing ---- */

static bool is_utf8(const char *text)
{
    return data_text_foreign((const uint8_t *)text, strlen(text)) == 0;
}

static void put_fits(struct pd_buf *b, const struct data_fit *fits, size_t count, bool fit)
{
    pd_json_key(b, fit ? "fits" : "almost");
    pd_json_open(b, '[');
    for (size_t i = 0; i < count; i++) {
        if (fits[i].fits != fit)
            continue;
        pd_json_open(b, '{');
        pd_json_kv_str(b, "dataset", fits[i].dataset);
        if (fit) {
            pd_json_kv_str(b, "split", fits[i].split);
            pd_json_kv_bool(b, "checked", fits[i].checked);
        } else {
            pd_json_kv_str(b, "missing",
                           is_utf8(fits[i].missing) ? fits[i].missing : "a name in it is not UTF-8");
        }
        pd_json_close(b, '}');
    }
    pd_json_close(b, ']');
}

/* bytes < 0: not known. */
static void put_entry(struct have *h, const char *path, const char *kind, int64_t bytes,
                      const struct data_fit *fits, size_t count, const char *note)
{
    if (h->entries == DATA_HAVE_ENTRIES) {
        h->truncated = true;
        return;
    }
    h->entries++;
    pd_json_open(h->out, '{');
    pd_json_kv_str(h->out, "path", path);
    pd_json_kv_str(h->out, "kind", kind);
    pd_json_key(h->out, "bytes");
    if (bytes < 0)
        pd_json_null(h->out);
    else
        pd_json_int(h->out, bytes);
    put_fits(h->out, fits, count, true);
    put_fits(h->out, fits, count, false);
    pd_json_kv_str(h->out, "note", note);
    pd_json_close(h->out, '}');
}

/* ---- folders ---- */

static bool over(struct have *h)
{
    if (h->entries >= DATA_HAVE_ENTRIES || h->folders >= DATA_HAVE_FOLDERS ||
        pd_clock_mono_us() > h->until_us || h->out->failed)
        h->truncated = h->over = true;
    return h->over;
}

/* Of a place below the root; the root itself is "". No link is followed. */
static int open_at(const struct have *h, const char *below, int flags)
{
    return data_walk_beneath(h->dir, *below ? below : ".", flags | O_CLOEXEC | O_NOFOLLOW);
}

static const char *below_of(const struct have *h, const char *path)
{
    path += strlen(h->root->name);
    return path + strspn(path, "/");
}

static int by_text(const void *a, const void *b)
{
    return strcmp(((const struct name *)a)->text, ((const struct name *)b)->text);
}

static void names_done(struct names *n)
{
    for (size_t i = 0; i < n->count; i++)
        free(n->item[i].text);
    free(n->item);
    *n = (struct names){0};
}

static int type_of(int dir, const struct dirent *e)
{
    struct stat s;

    if (e->d_type != DT_UNKNOWN)
        return e->d_type;
    if (fstatat(dir, e->d_name, &s, AT_SYMLINK_NOFOLLOW) != 0)
        return DT_UNKNOWN;
    return S_ISDIR(s.st_mode)   ? DT_DIR
           : S_ISREG(s.st_mode) ? DT_REG
           : S_ISLNK(s.st_mode) ? DT_LNK
                                : DT_UNKNOWN;
}

/* The names of a folder in byte order, at most `most`; false: there are more. Takes the descriptor. */
static bool names_read(int fd, size_t most, struct names *ret)
{
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *e;
    size_t size = 0;
    bool all = true;

    *ret = (struct names){0};
    if (!d && fd >= 0)
        close(fd);
    while (d && (e = readdir(d)) != NULL) {
        if (e->d_name[0] == '.')
            continue;
        if (ret->count == most) {
            all = false;
            break;
        }
        if (ret->count == size) {
            struct name *more = realloc(ret->item, (size = size ? 2 * size : 64) * sizeof *more);

            if (!more) {
                all = false;
                break;
            }
            ret->item = more;
        }
        ret->item[ret->count] = (struct name){.text = strdup(e->d_name), .type = type_of(dirfd(d), e)};
        if (!ret->item[ret->count].text) {
            all = false;
            break;
        }
        ret->count++;
    }
    if (d)
        closedir(d);
    if (ret->count)
        qsort(ret->item, ret->count, sizeof *ret->item, by_text);
    return all;
}

enum level { IMAGES, CLASS, PART };

/* Whether pictures lie in the folder; of a class also in its folder "images", of a part in those of its
 * classes. */
static bool holds_pictures(const struct have *h, const char *below, enum level level)
{
    struct names n;
    bool found = false;

    (void)names_read(open_at(h, below, O_RDONLY | O_DIRECTORY), PEEK_NAMES, &n);
    for (size_t i = 0; i < n.count && !found; i++)
        found = level != PART && n.item[i].type != DT_DIR && data_picture_named(n.item[i].text);
    for (size_t i = 0; i < n.count && !found && level != IMAGES; i++) {
        char inner[PATH_MAX];

        if (n.item[i].type == DT_DIR && (level == PART || !strcmp(n.item[i].text, "images")) &&
            (size_t)snprintf(inner, sizeof inner, "%s/%s", below, n.item[i].text) < sizeof inner)
            found = holds_pictures(h, inner, level - 1);
    }
    names_done(&n);
    return found;
}

/* A folder of a picture set: of one part (classes below), or of one class (pictures, perhaps in images/). */
static bool of_pictures(const struct have *h, const char *path, const char *name)
{
    return holds_pictures(h, below_of(h, path), data_part_folder_named(name) ? PART : CLASS);
}

/* Whether at least `least` documents lie in the folder itself. */
static bool holds_documents(const struct have *h, const char *path, size_t least)
{
    struct names n;
    size_t found = 0;

    (void)names_read(open_at(h, below_of(h, path), O_RDONLY | O_DIRECTORY), PEEK_NAMES, &n);
    for (size_t i = 0; i < n.count; i++)
        found += n.item[i].type != DT_DIR && data_document_named(n.item[i].text);
    names_done(&n);
    return found >= least;
}

/* A folder of a set of documents: of one part, or one of many files. */
static bool of_documents(const struct have *h, const char *path, const char *name)
{
    return holds_documents(h, path, data_part_folder_named(name) ? 1 : DOCUMENTS_LEAST);
}

/* Bytes of the folder's own files that belong to one of the forms; -1: of pictures or documents, which are too many. */
static int64_t folder_bytes(const struct have *h, const char *path, const struct names *n, unsigned forms)
{
    int dir = open_at(h, below_of(h, path), O_RDONLY | O_DIRECTORY);
    int64_t sum = forms & (BIT(DATA_SET_PICTURES) | BIT(DATA_SET_DOCUMENTS)) ? -1 : 0;
    struct stat s;

    for (size_t i = 0; dir >= 0 && sum >= 0 && i < n->count; i++)
        if (n->item[i].type == DT_REG &&
            (data_idx_named(n->item[i].text) || data_cifar_named(n->item[i].text) ||
             data_part_text_named(n->item[i].text) || data_labelled_named(n->item[i].text)) &&
            fstatat(dir, n->item[i].text, &s, AT_SYMLINK_NOFOLLOW) == 0)
            sum += s.st_size;
    if (dir >= 0)
        close(dir);
    return sum;
}

/* ---- files and links ---- */

static void put_file(struct have *h, const char *path, const char *name)
{
    struct data_fit fits[DATA_HAVE_FITS];
    int fd = open_at(h, below_of(h, path), O_RDONLY | O_NONBLOCK);
    const char *packing = NULL;
    struct stat s;
    size_t count = 0;

    if (fd < 0) {
        put_entry(h, path, "file", -1, NULL, 0, "it cannot be read");
        return;
    }
    if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode)) {
        close(fd);
        return;
    }
    if (data_archive_named(name)) {
        count = data_fits(h->root, path, BIT(DATA_SET_PICTURES), h->until_us, fits);
    } else if (data_text_begins(fd, &packing)) {
        count =
            data_fits(h->root, path, BIT(DATA_SET_TEXT) | (job_table_of(name) ? BIT(DATA_SET_LABELLED) : 0),
                      h->until_us, fits);
    } else if (packing) {
        fits[count++] = (struct data_fit){.dataset = job_dataset_info(JOB_DATASET_TEXT)->name};
        snprintf(fits[0].missing, sizeof fits[0].missing,
                 "it begins as a file packed by %s: unpack it, or pack it by gzip, which is read", packing);
    }
    close(fd);
    if (count)
        put_entry(h, path, "file", s.st_size, fits, count, NULL);
}

static void put_link(struct have *h, const char *path)
{
    int fd = data_open_beneath(h->dir, below_of(h, path), O_PATH);
    bool out = fd < 0 && (errno == EXDEV || errno == ELOOP);

    if (fd >= 0)
        close(fd);
    put_entry(h, path, "link", -1, NULL, 0,
              out      ? "a symbolic link that leads outside its data root; jobs cannot follow it"
              : fd < 0 ? "a symbolic link to nothing"
                       : "a symbolic link inside its data root; its target is listed at its own path");
}

/* ---- the walk ---- */

static void walk(struct have *h, const char *path, int depth);

/* Which forms the names in a folder speak for. */
static unsigned forms_of(const struct have *h, const char *path, const struct names *n)
{
    unsigned forms = 0;
    size_t documents = 0;

    for (size_t i = 0; i < n->count; i++) {
        const struct name *e = &n->item[i];
        char inner[PATH_MAX];

        if (e->type == DT_DIR) {
            if ((size_t)snprintf(inner, sizeof inner, "%s/%s", path, e->text) >= sizeof inner)
                continue;
            if (!(forms & BIT(DATA_SET_PICTURES)) && of_pictures(h, inner, e->text))
                forms |= BIT(DATA_SET_PICTURES);
            if (!(forms & BIT(DATA_SET_DOCUMENTS)) && of_documents(h, inner, e->text))
                forms |= BIT(DATA_SET_DOCUMENTS);
            continue;
        }
        documents += data_document_named(e->text) && !data_part_text_named(e->text);
        forms |= data_idx_named(e->text) ? BIT(DATA_SET_MNIST) : 0;
        forms |= data_cifar_named(e->text) ? BIT(DATA_SET_CIFAR10) : 0;
        forms |= data_part_text_named(e->text) ? BIT(DATA_SET_TEXTS) : 0;
        forms |= data_labelled_named(e->text) ? BIT(DATA_SET_LABELLED) : 0;
    }
    return forms | (documents >= DOCUMENTS_LEAST ? BIT(DATA_SET_DOCUMENTS) : 0);
}

/* The forms among those tried that fit. */
static unsigned fitting(const struct data_fit *fits, size_t count)
{
    unsigned forms = 0;

    for (size_t i = 0; i < count; i++) {
        enum data_dataset form;

        for (int d = 0; fits[i].fits && job_dataset_info((enum job_dataset)d); d++)
            if (job_dataset_info((enum job_dataset)d)->name == fits[i].dataset && data_form(d, &form))
                forms |= BIT(form);
    }
    return forms;
}

static void put_inner(struct have *h, const char *path, const struct name *e, unsigned forms, int depth)
{
    const char *name = e->text;

    if (!is_utf8(name)) {
        struct pd_buf shown;

        pd_buf_init(&shown, 0);
        pd_buf_printf(&shown, "%.*s/?", (int)(strlen(path) - strlen(name) - 1), path);
        put_entry(h, shown.data ? shown.data : "?", e->type == DT_DIR ? "folder" : "file", -1, NULL, 0,
                  "its name is not UTF-8: no job document can name it");
        pd_buf_done(&shown);
    } else if (e->type == DT_LNK) {
        put_link(h, path);
    } else if (e->type == DT_DIR) {
        if ((forms & BIT(DATA_SET_PICTURES) && of_pictures(h, path, name)) ||
            (forms & BIT(DATA_SET_DOCUMENTS) && of_documents(h, path, name)))
            return; /* of the set that was just listed */
        if (depth == DATA_HAVE_DEPTH)
            h->truncated = true;
        else
            walk(h, path, depth + 1);
    } else if (e->type == DT_REG && !data_picture_named(name) && !data_idx_named(name) &&
               !data_cifar_named(name) && !(forms & BIT(DATA_SET_TEXTS) && data_part_text_named(name)) &&
               !(forms & BIT(DATA_SET_LABELLED) && data_labelled_named(name)) &&
               !(forms & BIT(DATA_SET_DOCUMENTS) && data_document_named(name))) {
        put_file(h, path, name);
    }
}

static void walk(struct have *h, const char *path, int depth)
{
    struct data_fit fits[DATA_HAVE_FITS];
    size_t count = 0;
    struct names n;
    unsigned forms;
    int fd;

    if (over(h))
        return;
    h->folders++;
    fd = open_at(h, below_of(h, path), O_RDONLY | O_DIRECTORY);
    if (fd < 0) {
        put_entry(h, path, "folder", -1, NULL, 0, "it cannot be read");
        return;
    }
    if (!names_read(fd, DATA_HAVE_NAMES, &n))
        h->truncated = true;
    forms = forms_of(h, path, &n);
    if (forms)
        count = data_fits(h->root, path, forms, h->until_us, fits);
    if (count)
        put_entry(h, path, "folder", folder_bytes(h, path, &n, forms), fits, count, NULL);
    forms = fitting(fits, count);
    for (size_t i = 0; i < n.count; i++) {
        char inner[PATH_MAX];

        if (over(h))
            break;
        if ((size_t)snprintf(inner, sizeof inner, "%s/%s", path, n.item[i].text) < sizeof inner)
            put_inner(h, inner, &n.item[i], forms, depth);
    }
    names_done(&n);
}

static enum pd_err list_root(struct have *h, const char *path, struct pd_why *why)
{
    struct pd_why inner = {""};
    const char *slash;
    struct stat s;
    int fd = -1;
    enum pd_err err;

    if (!path) {
        walk(h, h->root->name, 0);
        return PD_OK;
    }
    err = data_path_open(h->root, 1, path, true, &fd, &inner);
    if (err == PD_OK) {
        close(fd);
        walk(h, path, 0);
        return PD_OK;
    }
    err = data_path_open(h->root, 1, path, false, &fd, &inner);
    if (err != PD_OK || fstat(fd, &s) != 0)
        return pd_fail(why, PD_ERR_INVALID, "%s", inner.text);
    close(fd);
    slash = strrchr(path, '/');
    put_file(h, path, slash ? slash + 1 : path);
    return PD_OK;
}

/* Without doubled slashes, and none at the end. */
static bool tidy(const char *path, char out[PATH_MAX])
{
    size_t len = 0;

    for (; *path; path++) {
        if (*path == '/' && (path[1] == '/' || !path[1]))
            continue;
        if (len + 1 >= PATH_MAX)
            return false;
        out[len++] = *path;
    }
    out[len] = 0;
    return true;
}

enum pd_err data_have(const struct data_root *roots, size_t count, const char *path, struct pd_buf *out,
                      struct pd_why *why)
{
    struct have h = {.until_us = pd_clock_mono_us() + DATA_HAVE_US, .out = out};
    size_t named = path ? strcspn(path, "/") : 0;
    bool truncated = false, any = false;
    char tidied[PATH_MAX];
    enum pd_err err = PD_OK;

    if (path && !tidy(path, tidied))
        return pd_fail(why, PD_ERR_INVALID, "the path has more than %d bytes", PATH_MAX);
    path = path ? tidied : NULL;

    pd_json_open(out, '{');
    pd_json_key(out, "roots");
    pd_json_open(out, '[');
    for (size_t i = 0; i < count && err == PD_OK; i++) {
        if (path && (strlen(roots[i].name) != named || memcmp(roots[i].name, path, named) != 0))
            continue;
        h.root = &roots[i];
        h.truncated = false;
        any = true;
        pd_json_open(out, '{');
        pd_json_kv_str(out, "name", roots[i].name);
        pd_json_key(out, "entries");
        pd_json_open(out, '[');
        h.dir = open(roots[i].path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (h.dir < 0) {
            char text[PATH_MAX + 128];

            snprintf(text, sizeof text, "the data root '%s' (%s) cannot be opened: %s", roots[i].name,
                     roots[i].path, strerror(errno));
            pd_json_close(out, ']');
            pd_json_kv_bool(out, "truncated", false);
            pd_json_kv_str(out, "error", is_utf8(text) ? text : "its path is not UTF-8");
        } else {
            err = list_root(&h, path, why);
            close(h.dir);
            pd_json_close(out, ']');
            pd_json_kv_bool(out, "truncated", h.truncated);
            pd_json_kv_str(out, "error", NULL);
        }
        pd_json_close(out, '}');
        truncated = truncated || h.truncated;
    }
    pd_json_close(out, ']');
    pd_json_kv_bool(out, "truncated", truncated);
    pd_json_close(out, '}');
    if (err == PD_OK && path && !any)
        err = pd_fail(why, PD_ERR_INVALID, "'%.*s' is not a configured data root", (int)named, path);
    if (err == PD_OK && pd_buf_err(out) != PD_OK)
        err = pd_fail(why, pd_buf_err(out), "no memory for the list");
    return err;
}
