/* The store's clock: it never goes back and never jumps, whatever is done to the wall clock; over a restart
 * of the daemon it goes on exactly, over one of the machine as well as can be known. */
#include <stdio.h>
#include <string.h>

#include "daemon/polyd/store/tx_private.h"
#include "kernels/base/clock.h"
#include "kernels/base/file.h"

#define SEEN_US                                                                                              \
    10000000 /* so far it may fall back when the machine loses power while its wall clock is wrong */

/* The name of this start of the machine; "" = it cannot be known. */
static void this_boot(char *out, size_t size)
{
    struct pd_buf text;

    out[0] = '\0';
    pd_buf_init(&text, 0);
    if (pd_file_read("/proc/sys/kernel/random/boot_id", 128, &text, NULL) == PD_OK && text.data)
        snprintf(out, size, "%.*s", (int)strcspn(text.data, "\n"), text.data);
    pd_buf_done(&text);
}

enum pd_err store_clock_start(struct db *d, struct store_clock *ret, struct pd_why *why)
{
    int64_t wall_us = pd_clock_wall_us(), boot_us = pd_clock_boot_us(), seen_us;
    char boot[80], was[80];
    sqlite3_stmt *st;
    enum pd_err err = db_bind(d, &st, why, "SELECT boot, clock_base_us, clock_seen_us FROM store", "");

    if (err == PD_OK)
        err = db_step(d, st, why);
    if (err != PD_OK)
        return err == PD_ERR_NOT_FOUND ? pd_fail(why, PD_ERR_CORRUPT, "the database has no clock") : err;
    snprintf(was, sizeof was, "%s", db_text(st, 0));
    seen_us = sqlite3_column_int64(st, 2);
    *ret = (struct store_clock){
        .base_us = sqlite3_column_int64(st, 1), .previous_us = seen_us, .seen_us = seen_us};
    db_done(st);
    this_boot(boot, sizeof boot);
    if (boot[0] && !strcmp(boot, was))
        return PD_OK;
    ret->base_us = (wall_us > seen_us ? wall_us : seen_us) - boot_us;
    if (!seen_us)
        ret->seen_us = wall_us;
    /* The first commit writes clock_seen_us: a start that fails before it leaves the last moment of earlier
     * attempts as it is. */
    return db_run(d, why, "UPDATE store SET boot = ?1, clock_base_us = ?2, clock_seen_us = ?3", "tii", boot,
                  ret->base_us, ret->seen_us);
}

enum pd_err store_clock_save(struct db *d, struct store_clock *c, int64_t clock_us, struct pd_why *why)
{
    enum pd_err err;

    if (clock_us - c->seen_us < SEEN_US)
        return PD_OK;
    err = db_run(d, why, "UPDATE store SET clock_seen_us = ?1", "i", clock_us);
    if (err == PD_OK)
        c->seen_us = clock_us;
    return err;
}

int64_t store_clock_us(const struct store_clock *c)
{
    return pd_clock_boot_us() + c->base_us;
}
