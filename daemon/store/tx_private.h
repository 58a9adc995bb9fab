/* daemon/store/tx_private.h: the transaction as the room's own files see it. */
#pragma once

#include "daemon/store/db.h"
#include "daemon/store/tx.h"

struct metric_cache;

struct store_tx {
    struct db *db;
    int64_t now_us;
    struct metric_cache *metrics; /* the writer's; see tx_metric.c */
    struct store_commit commit;   /* what this group brings */
    int64_t commit_runs[STORE_COMMIT_RUNS];
    int64_t metric_touches; /* grows when the metric cache changed */
    enum pd_err failed;     /* the whole group, PD_OK = committed */
    struct pd_why failed_why;
};

/* tx_metric.c: the cache of keys and open roll-ups lives with the writer. */
struct metric_cache *store_metric_cache_new(void);
struct metric_cache *store_metric_cache_free(struct metric_cache *c);
/* Writes the roll-ups and latest values that the group changed. Before the commit. */
enum pd_err store_metric_flush(struct store_tx *tx, struct pd_why *why);
/* Forgets everything: something was rolled back, memory may be ahead of the file. */
void store_metric_forget(struct metric_cache *c);
