/* daemon/polyd/state_dir.h: restricts the state folder to its owner. */
#pragma once

#include "kernels/base/err.h"

/* Makes the folder where it is missing, mode 0700. One that others may look into, or that an older polyd
 * filled, is tightened: folders 0700, files 0600, whatever their owner; where that is not permitted
 * (another's folder, a file system without modes), the log says so. From here on the process makes files of
 * mode 0600 at most, and so do the workers that it starts. */
PD_NODISCARD enum pd_err state_dir_open(const char *dir, struct pd_why *why);
