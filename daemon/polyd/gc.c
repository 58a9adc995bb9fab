#include "daemon/polyd/gc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/polyd/state_dir.h"
#include "daemon/polyd/store/store.h"
#include "daemon/polyd/supervise/clean.h"
#include "kernels/base/tree.h"

#define PATH_SIZE 4096
#define YOUNG_S 60 /* a running daemon writes a file before the row that names it: leave such files alone */

struct item {
    char *path;
    struct item *next;
};

struct scan {
    const struct config *config;
    struct store *store;
    const char *dir;
    bool dry, daemon_runs;
    struct item *items, **tail;
    long long things, bytes;
    int kept; /* deleted files and folders that could not be removed, and why the first of them */
    struct pd_why kept_why;
    enum pd_err err;
    struct pd_why why;
};

static void fail(struct scan *s, enum pd_err err)
{
    if (s->err == PD_OK)
        s->err = err;
}

/* ---- printing and collecting what was found --------------------------------------------------- */

static void line(long long bytes, const char *path, const char *word)
{
    printf("%14lld  %s  (%s)\n", bytes, path, word);
}

static bool is_young(const char *path)
{
    struct stat st;

    return lstat(path, &st) != 0 || time(NULL) - st.st_mtime < YOUNG_S;
}

/* `name`: below the state folder. */
static void found(struct scan *s, const char *name, const char *word)
{
    char path[PATH_SIZE];
    struct pd_tree size;
    struct item *item;

    if (snprintf(path, sizeof path, "%s/%s", s->dir, name) >= (int)sizeof path ||
        (s->daemon_runs && is_young(path)) || pd_tree_measure(path, &size, NULL) != PD_OK)
        return;
    line(size.bytes, name, word);
    s->things++;
    s->bytes += size.bytes;
    if (s->dry)
        return;
    item = calloc(1, sizeof *item);
    if (!item || !(item->path = strdup(path))) {
        free(item);
        fail(s, pd_fail(&s->why, PD_ERR_NOMEM, "no memory for the list"));
        return;
    }
    *s->tail = item;
    s->tail = &item->next;
}

/* Is a file held by a live process? */
static bool is_held(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    bool held = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK;

    if (fd >= 0)
        close(fd);
    return held;
}

static void each_entry(struct scan *s, const char *folder,
                       void (*see)(struct scan *s, const char *folder, const char *name))
{
    char path[PATH_SIZE];
    const struct dirent *e;
    DIR *d;

    snprintf(path, sizeof path, "%s/%s", s->dir, folder);
    d = opendir(path);
    while (d && s->err == PD_OK && (e = readdir(d)))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            see(s, folder, e->d_name);
    if (d)
        closedir(d);
}

/* ---- what may lie where ----------------------------------------------------------------------- */

static void see_run(struct scan *s, const char *folder, const char *name)
{
    char path[PATH_SIZE];
    bool known = true;

    if (!name[0] || strspn(name, "0123456789") != strlen(name) || strlen(name) > 18)
        return; /* not a run's */
    fail(s, store_run_known(s->store, atoll(name), &known, &s->why));
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (s->err == PD_OK && !known)
        found(s, path, "its run is not in the database");
}

static void see_blob(struct scan *s, const char *folder, const char *name)
{
    char path[PATH_SIZE];
    bool known = true;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (strstr(name, ".tmp.")) {
        found(s, path, "left by a write that was cut off");
        return;
    }
    if (strspn(name, "0123456789abcdef") != 64 || name[64])
        return;
    fail(s, store_blob_known(s->store, name, &known, &s->why));
    if (s->err == PD_OK && !known)
        found(s, path, "no run shows it");
}

static void see_blob_folder(struct scan *s, const char *folder, const char *name)
{
    char path[PATH_SIZE];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (strlen(name) == 2 && strspn(name, "0123456789abcdef") == 2)
        each_entry(s, path, see_blob);
}

static void see_weights(struct scan *s, const char *folder, const char *name)
{
    char path[PATH_SIZE];
    bool known = true;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    fail(s, store_weights_known(s->store, name, &known, &s->why));
    if (s->err == PD_OK && !known && !s->daemon_runs)
        found(s, path, "no version of a model is made of it");
}

static void see_upload(struct scan *s, const char *folder, const char *name)
{
    char path[PATH_SIZE];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (!s->daemon_runs)
        found(s, path, "left by an upload that was cut off");
}

static void see_serve(struct scan *s, const char *folder, const char *name)
{
    char path[PATH_SIZE], lock[PATH_SIZE + 64];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    snprintf(lock, sizeof lock, "%s/%s/lock", s->dir, path);
    if (!s->daemon_runs && strspn(name, "0123456789") == strlen(name) && !is_held(lock))
        found(s, path, "of a served model's worker that is gone");
}

static void see_cache(struct scan *s, const char *folder, const char *name)
{
    char path[PATH_SIZE], full[PATH_SIZE + 64];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    snprintf(full, sizeof full, "%s/%s", s->dir, path);
    if (strstr(name, ".tmp-") && !is_held(full))
        found(s, path, "left by a write that was cut off");
}

static void see_top(struct scan *s, const char *folder, const char *name)
{
    char path[PATH_SIZE];
    struct pd_tree size;

    (void)folder;
    if (strstr(name, ".tmp.") && !s->daemon_runs)
        found(s, name, "left by a write that was cut off");
    snprintf(path, sizeof path, "%s/%s", s->dir, name);
    if (!strncmp(name, "old-", 4) && pd_tree_measure(path, &size, NULL) == PD_OK)
        line(size.bytes, name, "stays: moved aside by --init; remove it by hand");
    else if (!strcmp(name, "polyd.db.before-migration") && pd_tree_measure(path, &size, NULL) == PD_OK)
        line(size.bytes, name, "stays: the database as it was before its last migration; remove it by hand");
}

static void cache_file(void *ctx, const char *name, int64_t bytes)
{
    struct scan *s = ctx;
    char path[PATH_SIZE];

    snprintf(path, sizeof path, "cache/%s", name);
    line(bytes, path, "over cache.max_bytes, unused for longest");
    s->things++;
    s->bytes += bytes;
}

static void trim_cache(struct scan *s)
{
    char dir[PATH_SIZE];
    struct pd_tree held;
    int64_t freed, most = s->config->cache.max_bytes;

    snprintf(dir, sizeof dir, "%s/cache", s->dir);
    fail(s, pd_folder_measure(dir, CLEAN_CACHE_SUFFIX, &held, &s->why));
    if (s->err == PD_OK && held.bytes > most)
        fail(s, pd_folder_trim(dir, CLEAN_CACHE_SUFFIX, held.bytes - most, s->dry, cache_file, s, &freed,
                               &s->why));
}

/* ---- the command ------------------------------------------------------------------------------ */

/* The rest of earlier deletions, so that no row names a file that goes. */
static enum pd_err finish_deletions(struct store_writer *w, struct scan *s)
{
    struct clean_host host = {.writer = w, .reader = s->store, .state_dir = s->dir};
    struct clean_pass pass = {.run = 0};
    enum pd_err err = PD_OK;
    bool worked = true;

    while (err == PD_OK && worked)
        err = clean_step(&host, &pass, &worked, &s->why);
    s->kept = pass.kept;
    s->kept_why = pass.why;
    return err;
}

static void remove_items(struct scan *s)
{
    struct pd_why why;

    for (const struct item *i = s->items; i; i = i->next) {
        enum pd_err err = pd_tree_remove(i->path, &why);

        if (err != PD_OK) {
            fprintf(stderr, "polyd gc: %s\n", why.text);
            s->why = why;
            fail(s, err);
        }
    }
}

static void scan_all(struct scan *s)
{
    struct store_space space;
    int64_t deleting = 0;

    each_entry(s, "runs", see_run);
    each_entry(s, "blobs", see_blob_folder);
    each_entry(s, "models", see_weights);
    each_entry(s, "uploads", see_upload);
    each_entry(s, "serve", see_serve);
    each_entry(s, "cache", see_cache);
    each_entry(s, ".", see_top);
    if (s->err == PD_OK)
        trim_cache(s);
    if (s->err == PD_OK)
        fail(s, store_all_space(s->store, &space, &deleting, &s->why));
    if (s->dry && deleting)
        printf("%lld deleted runs are still to be removed\n", (long long)deleting);
}

static void scan_done(struct scan *s)
{
    while (s->items) {
        struct item *i = s->items;

        s->items = i->next;
        free(i->path);
        free(i);
    }
    store_close(s->store);
}

int gc(const struct config *config, bool dry)
{
    struct scan s = {.config = config, .dir = config->state.dir, .dry = dry, .why = {""}};
    struct store_writer_options o = {.state_dir = config->state.dir};
    struct store_writer *w = NULL;
    char path[PATH_SIZE];

    s.tail = &s.items;
    snprintf(path, sizeof path, "%s/polyd.db", s.dir);
    if (access(path, R_OK)) {
        fprintf(stderr, "polyd gc: there is no database '%s': %s\n", path, strerror(errno));
        return 1;
    }
    if (dry) {
        char lock[PATH_SIZE];

        snprintf(lock, sizeof lock, "%s/lock", s.dir);
        s.daemon_runs = is_held(lock);
    } else {
        s.err = state_dir_open(s.dir, &s.why);
        if (s.err == PD_OK)
            s.err = store_writer_start(&o, &w, &s.why);
        if (s.err == PD_ERR_BUSY)
            snprintf(s.why.text, sizeof s.why.text,
                     "a running polyd uses '%.300s': stop it first, or use --dry-run; polyd removes what "
                     "is deleted "
                     "by itself",
                     s.dir);
    }
    if (s.err == PD_OK)
        s.err = store_open_reader(path, &s.store, &s.why);
    if (s.err == PD_OK)
        scan_all(&s);
    if (s.err == PD_OK && w)
        s.err = finish_deletions(w, &s);
    if (s.err == PD_OK && w)
        remove_items(&s);
    if (s.err == PD_OK && s.kept) {
        s.err = PD_ERR_IO;
        s.why = s.kept_why;
    }
    if (s.err == PD_OK)
        printf("%s: %lld thing%s, %lld bytes%s\n", s.dir, s.things, s.things == 1 ? "" : "s", s.bytes,
               dry ? ", nothing was removed" : " removed");
    else
        fprintf(stderr, "polyd gc: %s\n", s.why.text);
    scan_done(&s);
    store_writer_stop(w);
    return s.err == PD_OK ? 0 : 1;
}
