/* daemon/polyd/supervise/answer.h: what a worker answers in JSON, read. Plain functions of bytes. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The answer of `polyd-worker info`. Plug-ins: the reason why one cannot be opened; "": it can. */
struct answer_info {
    char version[64];
    char backend_cuda[512], comm_nccl[512];
};

/* False, leaving *ret alone, unless the text is one JSON object with all of that. */
bool answer_info_read(const char *json, size_t len, struct answer_info *ret);

/* The bytes that a run needs on each device according to its plan; 0: the text does not contain it. */
int64_t answer_plan_bytes(const char *json, size_t len);
