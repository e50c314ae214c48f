/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves tensors between files, arrays and the daemon, for the command line and the Python package.
 * This layer stands on the public API, files/ and tensor/; it prints nothing and knows neither of
 * its callers.
 *
 * Functions that return int return 0 or a negative errno. If they fail, @why, a buffer of
 * FILE_ERROR_TEXT bytes, has the error. An empty @why means that the library refused, and
 * tl_last_error() has the text. All calls may block: for file I/O, for the daemon, and for space.
 */
#pragma once

#include <string.h>

#include <tensorlease/tensorlease.h>

#include "files/file.h"

enum { TRANSFER_DTYPE_TEXT = 32 };

/* Writes the name of an element type, as "float32" or "int4x2", to @text, and returns that. */
const char *transfer_dtype(DLDataType dtype, char text[TRANSFER_DTYPE_TEXT]);

/* A prefix is a path, as for tl_list(): "a/b" and "a/b/" are the same. Returns what stands between
 * @prefix and the names below it. */
static inline const char *transfer_separator(const char *prefix)
{
	size_t len = strlen(prefix);

	return len && prefix[len - 1] != '/' ? "/" : "";
}

/* ---- a file becomes tensors ---- */

/*
 * The name under which entry @i of @f is published: "PREFIX/entry", or only the entry's name if
 * @prefix is empty, or only PREFIX if the format holds one tensor without a name. The caller frees
 * the text. NULL: there is no memory.
 */
char *transfer_name(const struct tensor_file *f, size_t i, const char *prefix);

/*
 * Publishes all tensors of @count files on @device, the CPU or a GPU, in one step, after every byte
 * was read and checked. Of @options it uses the lifetime, and the timeout for space. Nothing is
 * published if it fails.
 */
int transfer_load(tl_client *client, struct tensor_file *files, size_t count, const char *prefix,
		  DLDevice device, const tl_put_options *options, file_progress progress,
		  void *context, char *why);

/* ---- arrays become tensors ---- */

/*
 * Publishes copies of @count arrays, sources[i] as items[i], in one step. Those in main memory may
 * have any strides. Those on a GPU are copied there, on @stream, for which the host waits if
 * @sealed. items[i] has the name, and the shape, type and flags of its source. Waits for space for
 * @timeout_ns. -EINVAL and -ENOTSUP with a text: a source breaks a rule of DLPack, or the CPU
 * cannot read its memory; the text names its item. Nothing is published if it fails. *@had_space
 * becomes true when it had the space.
 */
int transfer_put(tl_client *client, const tl_group_item *items, const DLTensor *const *sources,
		 size_t count, intptr_t stream, bool sealed, int64_t timeout_ns, bool *had_space,
		 char *why);

/* ---- tensors become a snapshot, and a file ---- */

/* The name of a tensor alone that is given as a prefix, which may end in "/". The caller frees it.
 * NULL: there is no memory. */
char *transfer_name_alone(const char *prefix);

/* Leases on tensors as of one moment, sorted by name. All zero means that it holds none. */
struct snapshot {
	char **names;
	size_t count;
	size_t prefix; /* bytes at the start of each name that are left out of a file */
	DLManagedTensorVersioned **tensors;
};

/*
 * Gets all tensors below @prefix, and no others, as tl_get_many() does with @options, which may be
 * NULL. It holds all or none of a group's names. Finding none is no failure. -EBUSY: they change
 * faster than they can be got.
 */
int snapshot_get(struct snapshot *s, tl_client *client, const char *prefix,
		 const tl_get_options *options, char *why);

/*
 * Gets tensors for a file of @format: all below @prefix/, or the one named @prefix. Those on a GPU
 * are copied from there. -ENOENT: there is none. After a failure @s still needs snapshot_deinit().
 */
int snapshot_get_for_file(struct snapshot *s, tl_client *client, const char *prefix,
			  enum file_format format, char *why);

/* Writes the tensors to a file, with texts about the whole file. @interrupted may be NULL.
 * -ENOTSUP: a file of @format cannot have one of them, or texts. */
int snapshot_save(const struct snapshot *s, const char *path, enum file_format format,
		  const struct file_note *notes, size_t note_count, file_progress progress,
		  file_interrupted interrupted, void *context, char *why);

/* The same to .safetensors files of at most @shard_bytes each, and an index, as model_write() makes
 * them. */
int snapshot_save_shards(const struct snapshot *s, const char *path, uint64_t shard_bytes,
			 size_t *shards, file_progress progress, file_interrupted interrupted,
			 void *context, char *why);

/* Releases the tensors that are still in @s: a caller may take one by leaving NULL in its place. */
void snapshot_deinit(struct snapshot *s);
