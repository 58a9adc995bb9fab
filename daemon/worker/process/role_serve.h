/* daemon/worker/process/role_serve.h: the serve role: one loaded model answers requests until it is asked to
 * stop. */
#pragma once

#include "daemon/wire/serve_host.h"

#define ROLE_SERVE_QUEUE 256u      /* requests that wait */
#define ROLE_SERVE_COST (1u << 20) /* limit of waiting images, or of prompt tokens plus requested tokens */

/* Opens host->checkpoint, calls host->ready, and serves on the calling thread until host->next says
 * PD_ERR_CLOSED; unfinished requests are then answered with PD_ERR_CLOSED. All memory of the model is
 * released before it returns. PD_OK after such an end; anything else (the model cannot be opened) is the
 * reason, before `ready`. */
PD_NODISCARD enum pd_err serve_run(const struct serve_host *host, struct pd_why *why);
