/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of tensors: .npy, .npz, .safetensors, and TensorFlow's TensorProto. Functions return 0 or a
 * negative errno; then the text in @err says what is wrong, with the file's name. -EINVAL:
 * malformed; -ENOTSUP: it has what is not shared, or the format has no such type. One thread at a
 * time per file.
 */
#pragma once

#include "files/entry.h"

/* By the suffix: .npy, .npz, .safetensors, .pb; FILE_FORMAT_UNKNOWN. */
enum file_format file_format_of(const char *path);
/* "npy", "npz", "safetensors", "pb"; the reverse gives NULL. */
enum file_format file_format_by_name(const char *name);
const char *file_format_name(enum file_format format);
/* Does a file of it hold one tensor without a name? */
bool file_format_is_single(enum file_format format);

/*
 * Opens a file, or "-" for standard input, and checks everything about it but the tensors' bytes.
 * Close with file_close().
 */
int file_open(struct tensor_file *f, const char *path, enum file_format format, char *err,
	      size_t err_len);
void file_close(struct tensor_file *f);

/*
 * Reads entry @i, its nbytes bytes, in C order, packed, straight to @dst. Each entry once, for
 * @progress (which may be NULL) counts them all together.
 */
int file_read_entry(struct tensor_file *f, size_t i, void *dst, file_progress progress,
		    void *context, char *err, size_t err_len);

/*
 * Writes a file, or to standard output if @path is "-". A regular file is replaced at the end, as a
 * whole: after a failure it is what it was. @count is 1 for a format of one tensor.
 */
int file_write(const char *path, enum file_format format, const struct file_item *items,
	       size_t count, file_progress progress, void *context, char *err, size_t err_len);
