#include "daemon/worker/process/run_folder.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "daemon/digest/digest.h"
#include "kernels/base/file.h"

#define PATH_SIZE 4096

struct owner {
    char store[40];
    long long run;
    char document[DIGEST_SHA256_HEX_SIZE];
};

static bool has_checkpoints(const char *run_dir)
{
    char path[PATH_SIZE];
    struct dirent *e;
    bool found = false;
    DIR *d;

    if (snprintf(path, sizeof path, "%s/checkpoints", run_dir) >= (int)sizeof path || !(d = opendir(path)))
        return false;
    while (!found && (e = readdir(d)))
        found = strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return found;
}

static enum pd_err read_owner(const char *path, struct owner *ret, struct pd_why *why)
{
    struct pd_buf text;
    enum pd_err err;

    pd_buf_init(&text, 0);
    err = pd_file_read(path, 4096, &text, why);
    if (err == PD_OK && (!text.data || sscanf(text.data, "polyd run %lld of store %39s document %64s",
                                              &ret->run, ret->store, ret->document) != 3))
        err = pd_fail(why, PD_ERR_CONFLICT, "'%s' does not contain the run of this folder", path);
    pd_buf_done(&text);
    return err;
}

enum pd_err run_folder_claim(const struct link_assign *a, int64_t run, int attempt, struct pd_why *why)
{
    char path[PATH_SIZE], text[256], document[DIGEST_SHA256_HEX_SIZE];
    struct owner owner;
    enum pd_err err;
    int len;

    if (!a->store[0])
        return PD_OK; /* assigned by an older polyd */
    digest_sha256_hex(a->job, a->job_len, document);
    if (snprintf(path, sizeof path, "%s/run-id", a->run_dir) >= (int)sizeof path)
        return pd_fail(why, PD_ERR_LIMIT, "the run directory's name is too long");
    err = read_owner(path, &owner, why);
    if (err == PD_OK) {
        if (strcmp(owner.store, a->store) != 0)
            return pd_fail(why, PD_ERR_CONFLICT,
                           "the folder '%.200s' belongs to run %lld of another database (%.8s, not %.8s)",
                           a->run_dir, owner.run, owner.store, a->store);
        if (owner.run != run)
            return pd_fail(why, PD_ERR_CONFLICT, "the folder '%.200s' belongs to run %lld, not %lld",
                           a->run_dir, owner.run, (long long)run);
        if (strcmp(owner.document, document) != 0)
            return pd_fail(why, PD_ERR_CONFLICT,
                           "the folder '%.200s' belongs to run %lld of another document (%.8s, not %.8s)",
                           a->run_dir, owner.run, owner.document, document);
        return PD_OK;
    }
    if (err != PD_ERR_NOT_FOUND)
        return err;
    /* Folders made before there were markers get theirs; but a run that begins has no checkpoints. */
    if (attempt == 1 && has_checkpoints(a->run_dir))
        return pd_fail(
            why, PD_ERR_CONFLICT,
            "the folder '%.200s' has checkpoints of another run: this is the first attempt of run %lld",
            a->run_dir, (long long)run);
    len = snprintf(text, sizeof text, "polyd run %lld of store %s document %s\n", (long long)run, a->store,
                   document);
    err = pd_file_make_dirs(a->run_dir, why);
    return err == PD_OK ? pd_file_replace(path, text, (size_t)len, 0600, why) : err;
}
