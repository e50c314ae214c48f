/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading and writing files of tensors: .npy, .npz, .safetensors, and TensorFlow's TensorProto.
 * PNG files are read only.
 * Functions return 0 or a negative errno, and then put the error into @err, beginning with the name
 * of the file. -EINVAL: the file is malformed. -ENOTSUP: it contains something that tensorlease
 * cannot share, or the format has no such type. A file may be used by one thread at a time.
 */
#pragma once

#include "files/entry.h"

/* Returns the format for a suffix .npy, .npz, .safetensors, .pb or .png, else FILE_FORMAT_UNKNOWN.
 */
enum file_format file_format_of(const char *path);
/*
 * Returns the format called "npy", "npz", "safetensors", "pb" or "png". The reverse returns NULL
 * for FILE_FORMAT_UNKNOWN.
 */
enum file_format file_format_by_name(const char *name);
const char *file_format_name(enum file_format format);
/* Returns whether a file of that format holds one tensor without a name. */
bool file_format_is_single(enum file_format format);

/*
 * Opens a file, or standard input if @path is "-", and checks everything in it but the bytes of the
 * tensors. Close it with file_close().
 */
int file_open(struct tensor_file *f, const char *path, enum file_format format, char *err,
	      size_t err_len);
/* The same, and @interrupted may stop it while a pipe is opened or read. */
int file_open_interruptible(struct tensor_file *f, const char *path, enum file_format format,
			    file_interrupted interrupted, void *context, char *err, size_t err_len);
void file_close(struct tensor_file *f);

/*
 * Reads entry @i, packed and in C order, straight to @dst, which has space for its nbytes. Read
 * each entry only once, because @progress (which may be NULL) counts all of them together.
 */
int file_read_entry(struct tensor_file *f, size_t i, void *dst, file_progress progress,
		    void *context, char *err, size_t err_len);

/*
 * Writes a file, or to standard output if @path is "-". A regular file is replaced as a whole at
 * the end; if this fails it is unchanged. @count is 1 for a format of one tensor.
 */
int file_write(const char *path, enum file_format format, const struct file_item *items,
	       size_t count, file_progress progress, void *context, char *err, size_t err_len);
/* The same with texts about the whole file, and @interrupted (which may be NULL) may stop it while
 * a pipe is opened or written, or a .npz's data is summed. -ENOTSUP: the format has no such texts.
 */
int file_write_noted(const char *path, enum file_format format, const struct file_item *items,
		     size_t count, const struct file_note *notes, size_t note_count,
		     file_progress progress, file_interrupted interrupted, void *context, char *err,
		     size_t err_len);
