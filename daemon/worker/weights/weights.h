/* daemon/worker/weights/weights.h: weights under public names (timm, Hugging Face), out of polyd and into it.
 *
 * Pure functions over files, on the caller's thread. Files are mapped, so that their size is not held in memory. */
#pragma once

#include "kernels/base/buf.h"
#include "kernels/base/err.h"

/* Metadata of a safetensors file: the members model, attention, norm and data of a job document (JSON) that
 * describe its network. */
#define WEIGHTS_DOCUMENT "polyd.document"

/* Where the bytes of a checkpoint's public weights lie, as JSON:
 *
 *   {"bytes": of the whole safetensors file, "sha256": its digest in hex,
 *    "header": its JSON header, padded with blanks; the length word (8 bytes, little-endian) stands before it,
 *    "parts": [[offset, bytes], ..] of the checkpoint, which follow the header in this order}
 *
 * The tensors are those that the checkpoint serves (its averaged weights if `polyd.serve` says so), under the
 * names of the network's public files; no optimiser state, no tokenizer. The metadata describe network and
 * data; `document`, unless it is NULL, is stored there as polyd.document.
 *
 * PD_ERR_CORRUPT: the file is damaged or no checkpoint. */
PD_NODISCARD enum pd_err weights_layout(const char *path, const char *document, struct pd_buf *ret_json,
                                        struct pd_why *why);
