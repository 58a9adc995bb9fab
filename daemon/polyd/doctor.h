/* daemon/polyd/doctor.h: `polyd doctor`: reports as text whether jobs can run here. */
#pragma once

struct config;

/* Starts no daemon and touches no GPU beyond asking the driver; reads the store beside a running daemon.
 * Returns the exit status: 0 when jobs can run here at all. */
int doctor(const struct config *config);
