/* What the state folder takes: by kind of file, by job, the workers' cache. */
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "api/handlers.h"
#include "api/json.h"
#include "api/rows.h"
#include "api/server.h"
#include "daemon/polyd/supervise/clean.h"
#include "kernels/base/tree.h"

#define JOBS_MOST 1000

static bool job_size(void *ctx, const struct store_job_size *j)
{
    struct pd_buf *b = ctx;

    api_json_open(b, '{');
    api_json_kv_id(b, "id", j->job_id);
    api_json_kv_str(b, "name", j->name);
    api_json_kv_str(b, "experiment", j->experiment);
    api_json_kv_int(b, "runs", j->runs);
    api_json_kv_int(b, "bytes", j->bytes);
    api_json_kv_time(b, "archived", j->archived_us);
    api_json_close(b, '}');
    return true;
}

static void cache_json(struct pd_buf *b, const struct config *config)
{
    char path[4096];
    struct pd_tree held;

    snprintf(path, sizeof path, "%s/cache", config->state.dir);
    api_json_key(b, "cache");
    api_json_open(b, '{');
    api_json_kv_str(b, "path", path);
    if (pd_folder_measure(path, CLEAN_CACHE_SUFFIX, &held, NULL) != PD_OK)
        held = (struct pd_tree){0};
    api_json_kv_int(b, "bytes", held.bytes);
    api_json_kv_int(b, "files", held.files);
    api_json_kv_int(b, "max_bytes", config->cache.max_bytes);
    api_json_close(b, '}');
}

static void database_json(struct pd_buf *b, const char *dir, int64_t *ret_bytes)
{
    static const char *const names[] = {"polyd.db", "polyd.db-wal"};
    char path[4096];
    struct stat st;

    *ret_bytes = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        if (stat(path, &st) == 0)
            *ret_bytes += st.st_size;
    }
    api_json_kv_int(b, "database", *ret_bytes);
}

void api_space_json(struct pd_buf *b, const struct store_space *space)
{
    api_json_open(b, '{');
    api_json_kv_int(b, "checkpoints", space->checkpoints);
    api_json_kv_int(b, "logs", space->logs);
    api_json_kv_int(b, "blobs", space->blobs);
    api_json_kv_int(b, "total", space->checkpoints + space->logs + space->blobs);
    api_json_close(b, '}');
}

void api_storage_get(struct api_req *r)
{
    static const char *const names[] = {"limit", NULL};
    const struct config *config = api_config(api_of(r));
    struct pd_why why = {.text = ""};
    struct store_space space = {0};
    int64_t deleting = 0, database = 0;
    struct statvfs disk;
    struct store *store;
    struct pd_buf b;
    enum pd_err err;
    int limit;

    if (api_query_refuse_others(r, names))
        return;
    limit = (int)api_query_int(r, "limit", 1, JOBS_MOST, 20);
    if (api_failed(r) || !(store = api_reader(r)))
        return;
    pd_buf_init(&b, 0);
    err = store_begin(store, &why);
    if (err == PD_OK)
        err = store_all_space(store, &space, &deleting, &why);
    api_json_open(&b, '{');
    api_json_kv_str(&b, "path", config->state.dir);
    if (statvfs(config->state.dir, &disk) == 0)
        api_json_kv_int(&b, "free", (int64_t)(disk.f_bavail * disk.f_frsize));
    else
        api_json_kv_null(&b, "free");
    database_json(&b, config->state.dir, &database);
    api_json_key(&b, "runs");
    api_space_json(&b, &space);
    api_json_kv_int(&b, "models", space.weights);
    cache_json(&b, config);
    api_json_kv_int(&b, "deleting", deleting);
    api_json_key(&b, "jobs");
    api_json_open(&b, '[');
    if (err == PD_OK)
        err = store_job_sizes(store, limit, job_size, &b, &why);
    store_end(store);
    api_json_close(&b, ']');
    api_json_close(&b, '}');
    api_answer(r, err, &why, &b);
}
