/* Migrations are the files of migrations/, embedded at build in their order (migrations.h is
 * generated). Forward only, all pending ones in one transaction. */
#include <stdio.h>
#include <unistd.h>

#include "daemon/polyd/store/db.h"
#include "daemon/polyd/store/migrations.h"
#include "kernels/base/log.h"

#define BUSY_WITH "bringing the database to this version's schema"
#define BUSY_EVERY 20000 /* instructions of SQLite: about a millisecond */

int store_schema_version(void)
{
    return (int)(sizeof store_migrations / sizeof *store_migrations);
}

static enum pd_err read_pragmas(struct db *d, int64_t *ret_version, int64_t *ret_application,
                                struct pd_why *why)
{
    enum pd_err err = db_int(d, ret_version, why, "PRAGMA user_version", "");

    return err == PD_OK ? db_int(d, ret_application, why, "PRAGMA application_id", "") : err;
}

static enum pd_err check(int64_t version, int64_t application, struct pd_why *why)
{
    if (version > store_schema_version())
        return pd_fail(
            why, PD_ERR_VERSION,
            "the database has schema version %lld, this build supports up to %d: use the newer polyd",
            (long long)version, store_schema_version());
    if (application != STORE_APPLICATION_ID && (version || application))
        return pd_fail(why, PD_ERR_VERSION, "the database belongs to another program (application id 0x%llx)",
                       (unsigned long long)application);
    return PD_OK;
}

enum pd_err store_check_version(struct db *d, struct pd_why *why)
{
    int64_t version, application;
    enum pd_err err = read_pragmas(d, &version, &application, why);

    if (err == PD_OK)
        err = check(version, application, why);
    if (err == PD_OK && version != store_schema_version())
        err = pd_fail(why, PD_ERR_VERSION,
                      "the database has schema version %lld and must be migrated to %d first",
                      (long long)version, store_schema_version());
    return err;
}

static int still_busy(void *ctx)
{
    const struct store_busy *busy = ctx;

    busy->fn(busy->ctx, BUSY_WITH);
    return 0;
}

static enum pd_err migrate(struct db *d, const char *backup, struct pd_why *why)
{
    int64_t version, application;
    char pragmas[128];
    enum pd_err err;

    err = read_pragmas(d, &version, &application, why);
    if (err == PD_OK)
        err = check(version, application, why);
    if (err != PD_OK || version == store_schema_version())
        return err;
    if (version > 0 && backup) {
        unlink(backup); /* VACUUM INTO wants no file there; an earlier copy was of an older schema */
        err = db_run(d, why, "VACUUM INTO ?1", "t", backup);
        if (err != PD_OK)
            return err;
    }
    err = db_exec(d, "BEGIN EXCLUSIVE", why);
    if (err != PD_OK)
        return err;
    /* Look again under the lock: two processes may race. */
    err = read_pragmas(d, &version, &application, why);
    if (err == PD_OK)
        err = check(version, application, why);
    for (int64_t v = version; err == PD_OK && v < store_schema_version(); v++) {
        err = db_exec(d, (const char *)store_migrations[v].sql, why);
        if (err == PD_OK)
            pd_log(PD_LOG_INFO, "store", "migration=%s", store_migrations[v].name);
    }
    if (err == PD_OK) {
        snprintf(pragmas, sizeof pragmas, "PRAGMA user_version = %d; PRAGMA application_id = %d",
                 store_schema_version(), STORE_APPLICATION_ID);
        err = db_exec(d, pragmas, why);
    }
    if (err == PD_OK)
        err = db_exec(d, "COMMIT", why);
    if (err != PD_OK && !sqlite3_get_autocommit(d->db))
        sqlite3_exec(d->db, "ROLLBACK", NULL, NULL, NULL);
    return err;
}

enum pd_err store_migrate(struct db *d, const char *backup, struct store_busy busy, struct pd_why *why)
{
    int64_t version = 0;
    enum pd_err err;

    if (busy.fn && db_int(d, &version, why, "PRAGMA user_version", "") == PD_OK &&
        version < store_schema_version()) {
        busy.fn(busy.ctx, BUSY_WITH);
        sqlite3_progress_handler(d->db, BUSY_EVERY, still_busy, &busy);
    }
    err = migrate(d, backup, why);
    sqlite3_progress_handler(d->db, 0, NULL, NULL);
    return err;
}
