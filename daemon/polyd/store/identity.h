/* daemon/polyd/store/identity.h: which database belongs to a state folder. Private to the module.
 *
 * The database has a random identity (table store), and the folder's file "store-id" contains it. The marker
 * is written after the database is on disk, by rename: a folder has the marker only if it had the database.
 */
#pragma once

#include "daemon/polyd/store/db.h"

#define STORE_UUID_SIZE 33 /* 32 digits and the NUL */

/* Under the folder's lock, before the database is opened for writing. PD_OK: the database belongs to this
 * folder, or the folder is new. PD_ERR_CONFLICT: the folder holds runs, models or a marker, and their
 * database is missing, empty, damaged or belongs to another folder; nothing was changed, and `why` names
 * --init.
 *
 * With `init` such a folder is emptied instead: database, runs, models, blobs and marker are moved into
 * <state_dir>/old-<time>. Nothing is deleted. If the database belongs to this folder, `init` has no effect.
 */
PD_NODISCARD enum pd_err store_identity_admit(const char *state_dir, bool init, struct pd_why *why);

/* After the migration: reads the identity into `out` and writes a missing marker. */
PD_NODISCARD enum pd_err store_identity_settle(struct db *d, const char *state_dir, bool external_checkpoint,
                                               char out[STORE_UUID_SIZE], struct pd_why *why);

/* The identity in the marker; "" = there is no marker. PD_ERR_CORRUPT: invalid contents. */
PD_NODISCARD enum pd_err store_identity_marker(const char *state_dir, char out[STORE_UUID_SIZE],
                                               struct pd_why *why);
