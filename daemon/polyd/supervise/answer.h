/* daemon/polyd/supervise/answer.h: what a worker answers in JSON, read. Plain functions of bytes. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What `polyd-worker info` says. Of a plug-in: why it does not open, "" if it does. */
struct answer_info {
    char version[64];
    char backend_cuda[512], comm_nccl[512];
};

/* False, leaving *ret alone, unless the text is one JSON object with all of that. */
bool answer_info_read(const char *json, size_t len, struct answer_info *ret);

/* The bytes that a run needs on each device according to its plan; 0 = the text does not say. */
int64_t answer_plan_bytes(const char *json, size_t len);
