/* Whose a series is: keys that a run's worker writes are the worker's alone, before its first point and after
 * its last. */
#include <string.h>

#include "daemon/job/job.h"
#include "daemon/polyd/store/tx_private.h"

/* The configuration of the run; NULL: polyd does not carry it out, or no document of this build is there to
 * ask. */
static enum pd_err config_of(struct store_tx *tx, int64_t run_id, struct job_config **ret, struct pd_why *why)
{
    struct tx_run r;
    sqlite3_stmt *st;
    const char *document;
    enum pd_err err = tx_run_read(tx, run_id, &r, why);

    if (err != PD_OK || !job_kind_info(r.kind)->worker)
        return err;
    err = db_bind(tx->db, &st, why, "SELECT document FROM run WHERE id = ?1", "i", run_id);
    if (err == PD_OK)
        err = db_step(tx->db, st, why);
    if (err != PD_OK)
        return err;
    document = db_text(st, 0);
    if (job_config_load(document, strlen(document), ret, NULL) != PD_OK)
        *ret = NULL;
    db_done(st);
    return PD_OK;
}

static enum pd_err check_key(struct store_tx *tx, int64_t run_id, const char *key, struct job_config **config,
                             bool *asked, struct pd_why *why)
{
    bool there, own;
    int attempt;
    enum pd_err err = tx_series_source(tx, run_id, key, &there, &attempt, why);

    if (err != PD_OK || (there && !attempt))
        return err;
    if (!there && !*asked) { /* read once a batch, and only for a key that is new */
        err = config_of(tx, run_id, config, why);
        *asked = true;
    }
    own = there ? attempt > 0 : *config && job_config_writes(*config, key);
    if (err == PD_OK && own)
        err = pd_fail(why, PD_ERR_CONFLICT,
                      "the run itself writes %.200s; use another prefix, such as mine/%.200s", key, key);
    return err;
}

enum pd_err store_metric_check_client(struct store_tx *tx, int64_t run_id, const struct store_metric *points,
                                      size_t count, size_t *ret_index, struct pd_why *why)
{
    struct job_config *config = NULL;
    bool asked = false;
    enum pd_err err = PD_OK;

    for (size_t i = 0; err == PD_OK && i < count; i++) {
        if (i && (points[i].key == points[i - 1].key || !strcmp(points[i].key, points[i - 1].key)))
            continue;
        err = check_key(tx, run_id, points[i].key, &config, &asked, why);
        if (err == PD_ERR_CONFLICT)
            *ret_index = i;
    }
    job_config_free(config);
    return err;
}
