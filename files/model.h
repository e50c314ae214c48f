/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model in one or several .safetensors files ("shards") of one directory, as Hugging Face lays
 * them out: model-00001-of-00002.safetensors and so on, and model.safetensors.index.json, an index
 * that says which file has which tensor. Errors are as in file.h.
 */
#pragma once

#include "files/file.h"

struct model {
	char *path; /* the index, or the only file */
	struct tensor_file *files;
	size_t count;
};

/* Returns whether @path is a directory or ends as the name of an index does. */
bool model_is(const char *path);

/*
 * Opens all files of a model and checks them as file_open() does. @path is an index, or a directory
 * that has one index, or without one a single .safetensors file. -EINVAL: a file lacks a tensor
 * that the index names, or it is not clear which files are meant. Call model_close() even after a
 * failure.
 */
int model_open(struct model *m, const char *path, char *err, size_t err_len);
void model_close(struct model *m);

/*
 * Writes tensors to shards of at most @shard_bytes each, or of one tensor that is larger, and then
 * an index. @path ends in ".safetensors", before which the shards have their numbers. If all of it
 * fits into one file, that is called @path and has no index. *@shards is their number. Each file is
 * replaced as a whole. An index that was there is removed first: after a failure there is none.
 */
int model_write(const char *path, uint64_t shard_bytes, const struct file_item *items, size_t count,
		size_t *shards, file_progress progress, file_interrupted interrupted, void *context,
		char *err, size_t err_len);
/* The paths of shard @i of @shards, and of the index. The caller frees them; NULL: no memory. */
char *model_shard_path(const char *path, size_t i, size_t shards);
char *model_index_path(const char *path);
