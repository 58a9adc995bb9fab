/* daemon/store/tx_private.h: the transaction as the room's own files see it. */
#pragma once

#include "daemon/store/db.h"
#include "daemon/store/tx.h"

struct metric_cache;

/* clock.c */
struct store_clock {
    int64_t base_us; /* const after the start */
    int64_t seen_us; /* as it stands in the file */
};
/* After the migration. */
enum pd_err store_clock_start(struct db *d, struct store_clock *ret, struct pd_why *why);
/* Inside a transaction: writes the time down now and then. */
enum pd_err store_clock_keep(struct db *d, struct store_clock *c, int64_t clock_us, struct pd_why *why);
int64_t store_clock_us(const struct store_clock *c);

struct store_tx {
    struct db *db;
    int64_t now_us;               /* wall clock, for display */
    int64_t clock_us;             /* the store's own */
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
