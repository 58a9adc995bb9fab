/* daemon/worker/process/role_serve.h: the serve role: one loaded model answers requests until it is told to
 * stop. */
#pragma once

#include "daemon/wire/serve_host.h"

#define ROLE_SERVE_QUEUE 256u      /* requests that wait */
#define ROLE_SERVE_COST (1u << 20) /* images, or prompt and asked-for tokens, that wait */

/* Opens host->checkpoint, calls host->ready, and serves on the calling thread until host->next says
 * PD_ERR_CLOSED; what is unfinished then is answered PD_ERR_CLOSED. All memory of the model is given back
 * before it returns. PD_OK after such an end; anything else (the model cannot be opened) is the reason,
 * before `ready`. */
PD_NODISCARD enum pd_err serve_run(const struct serve_host *host, struct pd_why *why);
