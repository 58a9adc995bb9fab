/* daemon/worker/weights/weights.h: export, import and averaging of weights under public names (timm, Hugging Face).
 *
 * The functions run on the caller's thread and keep no state. They map files instead of reading them into memory. */
#pragma once

#include "daemon/worker/data/data.h"
#include "kernels/base/buf.h"
#include "kernels/base/err.h"

/* Metadata key of a safetensors file: the members model, attention, norm and data of the job document (JSON) that describes
 * its network. */
#define WEIGHTS_DOCUMENT "polyd.document"

/* Describes the public safetensors file of a checkpoint as JSON, so that the caller can send it without a copy:
 *
 *   {"bytes": size of the file, "sha256": its digest in hex,
 *    "header": its JSON header, padded with blanks; an 8-byte little-endian length precedes it,
 *    "parts": [[offset, bytes], ..] ranges of the checkpoint that follow the header in this order}
 *
 * The file has the tensors that the checkpoint serves (the averaged weights if its metadata `polyd.serve` is "ema") under
 * the names of the network's public files, without optimiser state and tokenizer. Its metadata describe network and data;
 * `document` is stored as polyd.document unless it is NULL.
 *
 * PD_ERR_CORRUPT: the file is damaged or not a checkpoint. */
PD_NODISCARD enum pd_err weights_layout(const char *path, const char *document, struct pd_buf *ret_json,
                                        struct pd_why *why);

/* An import of weights into the registry. */
struct weights_import {
    const char *to;   /* the file to write */
    const char *file; /* a safetensors file; NULL: `path` */
    const char *path; /* "<root>/<relative>": a file, or a folder as data_shards_open_dir reads it */
    /* "<root>/<relative>": a folder with vocab.json and merges.txt; NULL: the files in the folder `path`, else the tokenizer
     * stored in the file */
    const char *tokenizer;
    bool bytes;              /* a language model without a tokenizer reads bytes; false: it reads ids */
    const char *description; /* input of job_weights_read; NULL: the description in the file's metadata */
    const struct data_root *roots;
    size_t root_count;
};

/* Checks names and shapes of the tensors against the network and writes `to`: a checkpoint without optimiser state, with the
 * parameters under their public names, their bytes and dtypes unchanged. The result is JSON:
 *
 *   {"bytes", "sha256": of the file, "step", "document": resolved, or "", "tokenizer": its kind or null,
 *    "parameters": number of elements, "ignored": [names of skipped tensors]}
 * or, if tensors do not match (nothing is written),
 *   {"refused": a sentence, "missing": [names], "surplus": [names], "wrong": [{"name", "detail"}, ..]}
 *
 * PD_ERR_CORRUPT: a file is malformed. PD_ERR_INVALID: the description is invalid; the sentence begins with its pointer.
 * PD_ERR_NOT_FOUND, PD_ERR_DENIED: a path cannot be opened. PD_ERR_FULL: the disk is full. */
PD_NODISCARD enum pd_err weights_import(const struct weights_import *o, struct pd_buf *ret_json,
                                        struct pd_why *why);

#define WEIGHTS_AVERAGE_MAX 64

/* Writes the mean of the served weights of several checkpoints of one network to `to`. Each tensor is summed in double
 * precision in the order of the list and rounded to F32 (F64 if the first file has F64); integer tensors are copied from
 * the first file. All files must have the network, input and tokenizer of the first; settings that only training reads may
 * differ. The result has no optimiser state, and the largest step of the files.
 *
 * list: one line for each of 2 to WEIGHTS_AVERAGE_MAX files: its SHA-256 in hex, a blank and its path. The result is JSON:
 *   {"bytes", "sha256": of the file, "step", "tokenizer": its kind or null, "parameters": number of elements, "ignored": []}
 *
 * PD_ERR_INVALID: a file is damaged, has changed, or has another network; the sentence begins with its pointer,
 * #/average/INDEX. PD_ERR_FULL, PD_ERR_NOMEM. */
PD_NODISCARD enum pd_err weights_average(const char *to, const char *list, struct pd_buf *ret_json,
                                         struct pd_why *why);
