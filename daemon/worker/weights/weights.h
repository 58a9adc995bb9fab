/* daemon/worker/weights/weights.h: weights under public names (timm, Hugging Face), out of polyd and into it.
 *
 * Pure functions over files, on the caller's thread. Files are mapped, so that their size is not held in memory. */
#pragma once

#include "daemon/worker/data/data.h"
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

/* Weights that are to become a file of the registry. */
struct weights_import {
    const char *to;   /* the file to write */
    const char *file; /* a safetensors file; NULL: `path` */
    const char *path; /* "<root>/<relative>": a file, or a folder as data_shards_open_dir reads it */
    const char *
        tokenizer; /* "<root>/<relative>": the folder of vocab.json and merges.txt; NULL: of a folder `path` those
                                that lie in it, else the file's own */
    bool bytes;              /* a language model without a tokenizer reads bytes; else it takes ids */
    const char *description; /* as job_weights_read takes it; NULL: what the file says of itself */
    const struct data_root *roots;
    size_t root_count;
};

/* Checks the tensors against the network by name and shape, and writes `to`: a checkpoint without optimiser state, the
 * parameters under their public names with the bytes and types that they came with. The answer is JSON:
 *
 *   {"bytes", "sha256": of the file, "step", "document": resolved, or "", "tokenizer": its kind or null,
 *    "parameters": how many numbers, "ignored": [names of tensors that were passed over]}
 * or, where tensors do not fit and nothing was written,
 *   {"refused": a sentence, "missing": [names], "surplus": [names], "wrong": [{"name", "detail"}, ..]}
 *
 * PD_ERR_CORRUPT: a file is malformed. PD_ERR_INVALID: the description is; the sentence begins with its pointer.
 * PD_ERR_NOT_FOUND, PD_ERR_DENIED: a path. PD_ERR_FULL. */
PD_NODISCARD enum pd_err weights_import(const struct weights_import *o, struct pd_buf *ret_json,
                                        struct pd_why *why);

#define WEIGHTS_AVERAGE_MAX 64

/* Writes `to`: the mean of what several checkpoints of one network serve, tensor by tensor, summed in double precision in
 * the order of the list and rounded to F32 (to F64 where the first file has F64; whole numbers are the first's). Network,
 * input and tokenizer are those of the first file, which the others must share; settings of training alone may differ.
 * There is no state of an optimiser; the step is the highest.
 *
 * list: a line for each of 2 to WEIGHTS_AVERAGE_MAX files, its SHA-256 in hex, a blank and its path. The answer is JSON:
 *   {"bytes", "sha256": of the file, "step", "tokenizer": its kind or null, "parameters": how many numbers, "ignored": []}
 *
 * PD_ERR_INVALID: a file is damaged, has changed, or is of another network; the sentence begins with its pointer,
 * #/average/INDEX. PD_ERR_FULL, PD_ERR_NOMEM. */
PD_NODISCARD enum pd_err weights_average(const char *to, const char *list, struct pd_buf *ret_json,
                                         struct pd_why *why);
