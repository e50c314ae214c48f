/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An open file of tensors: what is in it, and where. Each format fills this in when it opens a
 * file, having checked all of it but the bytes of the tensors themselves. Who reads files includes
 * file.h.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tensorlease/dlpack.h>

#include "files/input.h"
#include "files/npy.h"
#include "files/report.h"

enum { FILE_NDIM_MAX = 64, FILE_ENTRIES_MAX = 65536 };

#define FILE_BYTES_MAX (UINT64_MAX / 8) /* 2^61 - 1: the largest whose bits can be counted */

enum file_format {
	FILE_FORMAT_UNKNOWN,
	FILE_NPY,
	FILE_NPZ,
	FILE_SAFETENSORS,
	FILE_TENSORPROTO,
	FILE_FORMATS
};

struct file_entry {
	char *name; /* "" in a format of one tensor; not checked to be a tensor's name */
	DLDataType dtype;
	int32_t ndim;
	int64_t *shape;
	uint64_t nbytes;
	bool fortran_order; /* in the file: what is read is in C order whatever it is there */

	/* the format's own */
	uint64_t offset; /* in the file */
	uint64_t packed; /* bytes there; of a TensorProto's list: that its numbers make */
	uint64_t skip;	 /* of what is unpacked: the header of a .npy file */
	uint32_t crc;
	uint32_t kind; /* zip: the method; TensorProto: the field that has the values, 0: none has
			*/
};

/* A text about the file as a whole. */
struct file_note {
	char *key, *text;
};

struct tensor_file {
	enum file_format format;
	struct file_entry *entries;
	size_t count;
	struct file_note *notes;
	size_t note_count;
	uint64_t nbytes; /* of all entries */

	/* file.c's and the formats' own */
	char *path; /* for messages */
	struct input in;
	struct npy npy;
	file_progress progress; /* of the read that goes on */
	void *context;
	uint64_t done; /* of nbytes, over all reads */
};

/* What a file to be written holds. */
struct file_item {
	const char *name;
	DLDataType dtype;
	int32_t ndim;
	const int64_t *shape;
	const void *data; /* C-contiguous, packed */
};

/* The @len bytes at @text as a string of their own; NULL: no memory. */
char *file_text_new(const char *text, size_t len);

/* One more entry, with a copy of @name; NULL: no memory. Takes over nothing. */
struct file_entry *file_entry_add(struct tensor_file *f, const char *name, size_t len);
/* A copy of @shape. -ENOMEM. */
int file_entry_set_shape(struct file_entry *e, int32_t ndim, const int64_t *shape);
int file_note_add(struct tensor_file *f, const char *key, const char *text);

/*
 * Counts the bits of the elements of that shape, packed. A size of 0 does not excuse the others:
 * without it they must make a number of bytes. -EOVERFLOW: over FILE_BYTES_MAX bytes.
 */
int file_count_bits(DLDataType t, int32_t ndim, const int64_t *shape, uint64_t *bits);

/* No name may be there twice. */
int file_check_names(const struct tensor_file *f, const struct report *to);

/* @bytes more were read: tells the progress function. */
int file_advance(struct tensor_file *f, uint64_t bytes, const struct report *to);
/* @size bytes of the file from @offset on, straight to @dst, with progress. */
int file_read_straight(struct tensor_file *f, uint64_t offset, uint64_t size, void *dst,
		       const struct report *to);
