/* daemon/polyd/doctor.h: `polyd doctor`: reports as text whether jobs can run here. */
#pragma once

struct config;

/* Starts no daemon and uses no GPU except for querying the driver; may read the store while a daemon runs.
 * Returns the exit status: 0 when jobs can run here at all. */
int doctor(const struct config *config);
