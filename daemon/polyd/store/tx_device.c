/* Devices out of service. The runs that hold them are no concern of this table. */
#include <sqlite3.h>

#include "daemon/polyd/store/tx_private.h"
#include "kernels/base/json.h"

static enum pd_err device_event(struct store_tx *tx, const char *kind, const struct store_drain *d,
                                struct pd_why *why)
{
    enum pd_err err;
    struct pd_buf b;

    pd_buf_init(&b, 0);
    pd_json_open(&b, '{');
    pd_json_kv_str(&b, "device", d->device);
    pd_json_kv_str(&b, "name", d->name);
    pd_json_kv_str(&b, "reason", d->reason);
    pd_json_kv_str(&b, "who", d->who);
    pd_json_close(&b, '}');
    err = pd_buf_err(&b);
    if (err == PD_OK)
        err = store_event_add(tx, kind, 0, 0, 0, b.data, NULL, why);
    if (err == PD_OK)
        err = store_audit(tx, d->who, kind, d->device, NULL, b.data, why);
    pd_buf_done(&b);
    return err;
}

enum pd_err store_device_drain(struct store_tx *tx, const struct store_drain *d, struct pd_why *why)
{
    enum pd_err err = db_run(tx->db, why,
                             "INSERT OR IGNORE INTO device_drain (device, name, reason, who, time_us) VALUES "
                             "(?1, ?2, ?3, ?4, ?5)",
                             "tttti", d->device, d->name, d->reason, d->who, tx->now_us);

    if (err != PD_OK || sqlite3_changes(tx->db->db) == 0)
        return err;
    return device_event(tx, "device.drained", d, why);
}

enum pd_err store_device_undrain(struct store_tx *tx, const struct store_drain *d, struct pd_why *why)
{
    enum pd_err err = db_run(tx->db, why, "DELETE FROM device_drain WHERE device = ?1", "t", d->device);

    if (err != PD_OK || sqlite3_changes(tx->db->db) == 0)
        return err;
    return device_event(tx, "device.undrained", d, why);
}
