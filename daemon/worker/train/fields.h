/* daemon/worker/train/fields.h: private to this module: matrices that an evaluation stores in addition to its
 * metrics (struct task_map), as blobs: the solution of an equation, the exact one, and the error.
 *
 * Belongs to the training thread. */
#pragma once

#include "daemon/worker/train/session.h"

#define FIELDS_MOST 24 /* maximum number of stored steps, the last one included */

/* Whether the evaluation of this step stores matrices: the last step and evenly spaced others. last: the run ends early
 * after it. */
bool fields_due(const struct session *s, int64_t step, bool last);
/* Reports those of the graph's last run. */
PD_NODISCARD enum pd_err fields_send(const struct session *s, struct executable *from, struct pd_why *why);
