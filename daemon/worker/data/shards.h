/* daemon/worker/data/shards.h: the tensors of a model in one safetensors file, or in several with an index, as Hugging
 * Face stores large models: model.safetensors, or model.safetensors.index.json with its files. */
#pragma once

#include "daemon/worker/data/safetensors.h"

#define DATA_SHARDS_MAX 256
#define DATA_SHARDS_INDEX "model.safetensors.index.json"
#define DATA_SHARDS_SINGLE "model.safetensors"

struct data_root;
struct data_shards;

/* Maps one file. The caller owns *ret. */
PD_NODISCARD enum pd_err data_shards_open(const char *path, struct data_shards **ret, struct pd_why *why);
/* The same for an open file; the caller keeps `fd`. `name` is for messages. */
PD_NODISCARD enum pd_err data_shards_open_fd(int fd, const char *name, struct data_shards **ret,
                                             struct pd_why *why);
/* Maps the files of the folder "<root>/<relative>" `path`: those of its index, or model.safetensors if there is no
 * index. Files of the index lie in the folder itself; they may be symbolic links to files below the root. Errors: a file of the index is missing, a tensor is
 * not in the file that the index gives, a tensor is not in the index, or two files have a tensor of one name. */
PD_NODISCARD enum pd_err data_shards_open_dir(const struct data_root *roots, size_t root_count,
                                              const char *path, struct data_shards **ret, struct pd_why *why);
struct data_shards *data_shards_free(struct data_shards *s);

/* All tensors; borrowed until data_shards_free. */
size_t data_shards_count(const struct data_shards *s);
const struct data_st_tensor *data_shards_at(const struct data_shards *s, size_t i);
const struct data_st_tensor *data_shards_find(const struct data_shards *s, const char *name); /* or NULL */
/* The first file, for its metadata. */
const struct data_st *data_shards_first(const struct data_shards *s);

/* A parsed index: tensor names with the file of each, in the order of the index. */
struct data_shards_index;
PD_NODISCARD enum pd_err data_shards_index_parse(const void *json, size_t len, struct data_shards_index **ret,
                                                 struct pd_why *why);
struct data_shards_index *data_shards_index_free(struct data_shards_index *x);
size_t data_shards_index_count(const struct data_shards_index *x);
/* Name of tensor i; *ret_file: its file, a name without a folder. Both are borrowed until data_shards_index_free. */
const char *data_shards_index_at(const struct data_shards_index *x, size_t i, const char **ret_file);
