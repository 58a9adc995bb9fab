/* daemon/worker/process/role_tokens.h: requests of the kinds "tokenize" and "detokenize". */
#pragma once

#include <stdbool.h>

#include "daemon/worker/serve/serve.h"
#include "daemon/wire/serve_host.h"

#define ROLE_TOKENS_TEXT_MAX ((size_t)8 << 20) /* maximum bytes of text for a list of tokens */

bool role_tokens_is(const struct serve_request *req);
/* Answers immediately, with one part. The caller still owns the request. */
void role_tokens_answer(const struct serve_host *host, const struct serve *model,
                        const struct serve_request *req);
